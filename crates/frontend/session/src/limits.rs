//! How much a session of any front end takes at once, and the behaviour beyond that.

use std::ops::Range;
use std::time::Duration;

/// Bytes taken from a socket in one call. Requests that did not fit come with the next.
pub const RECEIVE_BYTES: usize = 256 << 10;

/// Bytes taken in one call together with the data of a long write: the next header, and little of
/// its data, since that would have to be copied.
pub const RECEIVE_BYTES_BETWEEN: usize = 512;

/// Memory that is set aside for the data of one write before its bytes come.
pub const PAYLOAD_BYTES_AHEAD: usize = 1 << 20;

/// The same when its first bytes are copied: the initiator of a session may begin many writes and
/// send a byte of each.
pub const FILL_BYTES_AHEAD: usize = 64 << 10;

/// Operations in a batch; further requests wait for the next batch.
pub const BATCH_OPERATIONS_MAX: usize = 256;

/// Bytes read and written in a batch by a session that has a whole window; a request that is longer
/// goes in pieces.
pub const BATCH_BYTES_MAX: u64 = 8 << 20;

/// The window of a session when the budget is used up, in bytes.
pub const WINDOW_BYTES_MIN: u64 = 256 << 10;

/// The budget of all windows of a server, in bytes; beyond it sessions get the least window each. A
/// batch can exceed its window by one short request, and unsolicited data of a client comes on top.
pub const WINDOWS_BYTES: u64 = 32 << 20;

/// Pieces in one call that sends or receives (IOV_MAX of Linux); more go with the next call.
pub const VECTORS_MAX: usize = 1024;

/// Bytes that a unix socket buffers on its way out. The kernel gives less when its own limit is
/// lower.
pub const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// A client that has not finished negotiating by then is closed; one that asks for things meanwhile
/// has as long again after each, up to [`HANDSHAKE_LONGEST`].
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest negotiation. A client that asks for each of some hundred exports over a slow link
/// takes a while.
pub const HANDSHAKE_LONGEST: Duration = Duration::from_secs(180);

/// Clients that negotiate at once, of each listener; one more takes the place of another
/// ([`crate::Lobby`]), so that silent clients keep no others out.
pub const HANDSHAKES_MAX: usize = 256;

/// How long a connection keeps its place on which nothing came.
pub const SILENT_GRACE: Duration = Duration::from_millis(250);
/// The same for one with received data. A handshake over a slow link takes that long.
pub const SPOKEN_GRACE: Duration = Duration::from_secs(2);

/// Sessions at once by default, of each listener; one more is refused.
pub const SESSIONS_MAX: usize = 256;

/// One in this many sessions is reserved for other addresses than the one with the most sessions.
pub const SESSIONS_FOR_OTHERS: usize = 8;

/// A session that has asked for nothing since it began gives its place to another client once it is
/// that old.
pub const UNUSED_GRACE: Duration = Duration::from_secs(10);

/// How long closing waits for changes that a device has begun. Then it is refused.
pub const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

/// How long closing waits for threads of sessions that can't change anything any more.
pub const LINGER: Duration = Duration::from_secs(5);

/// How long a new session waits for one of the same export whose client sends no more, before that
/// one is closed: it may be at its last answers.
pub const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// A session that was in its device for this long checks whether its client is still there, before
/// it takes the client's further requests.
pub const SLOW_ROUND: Duration = Duration::from_secs(1);

/// The least time from one look whether a client has hung up to the next, where nothing had to
/// wait.
pub const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long accepting pauses when the system is out of files or memory.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Seconds without traffic before TCP asks whether the client is still there.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Seconds between such questions.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Questions without an answer after which a connection is closed.
pub const KEEPALIVE_PROBES: u32 = 4;

/// How long a session looks for the next request before it sleeps.
pub const LOOK_DURATION: Duration = Duration::from_micros(40);
/// A shorter sleep was not a wake-up of an idle core; a longer one is not worth burning a core for.
pub const SLEEP_WORTH_AVOIDING: Range<Duration> = Duration::from_micros(15)..Duration::from_micros(120);
/// Requests that are looked for after a sleep worth avoiding, until another sleep probes how things
/// are.
pub const LOOKS: u32 = 64;

/// Half of the time that rates and latencies cover: the last 5 to 10 seconds.
pub const METER_PERIOD: Duration = Duration::from_secs(5);

const _: () = assert!(WINDOW_BYTES_MIN <= BATCH_BYTES_MAX && BATCH_BYTES_MAX <= WINDOWS_BYTES);
