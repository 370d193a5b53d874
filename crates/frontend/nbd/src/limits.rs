//! How much a session takes at once, and what happens past it.

use std::ops::Range;
use std::time::Duration;

/// Bytes taken from a socket in one call. Requests that did not fit come with the next.
pub(crate) const RECEIVE_BYTES: usize = 256 << 10;

/// What is taken in one call beside the payload of a long write: the header of the next request, and little of its
/// payload, since that would have to be copied.
pub(crate) const RECEIVE_BYTES_BETWEEN_WRITES: usize = 512;

/// Writes from this length on have the rest of their payload received straight into blocks.
pub(crate) const LONG_WRITE_BYTES: u32 = 32 << 10;

/// Memory that is set aside for the payload of one write before its bytes come.
pub(crate) const PAYLOAD_BYTES_AHEAD: usize = 1 << 20;

/// Operations in a batch; further requests wait for the next batch.
pub(crate) const BATCH_OPERATIONS_MAX: usize = 256;

/// Bytes read and written in a batch by a session that has a whole window; a request that is longer goes in pieces.
pub(crate) const BATCH_BYTES_MAX: u64 = 8 << 20;

/// The window of a session when the budget is used up, in bytes.
pub(crate) const WINDOW_BYTES_MIN: u64 = 256 << 10;

/// The budget of all windows of a server, in bytes; past it sessions get the least window each. A batch can be longer than its
/// window by one request that is not.
pub(crate) const WINDOWS_BYTES: u64 = 32 << 20;

/// Pieces in one call that sends or receives (IOV_MAX of Linux); more go with the next call.
pub(crate) const VECTORS_MAX: usize = 1024;

/// Bytes that a socket buffers on its way out. The kernel gives less when its own limit is lower.
pub(crate) const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// A client that has not finished negotiating by then is closed.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Clients that negotiate at once; one more closes the oldest of them, so that silent clients keep no others out.
pub(crate) const HANDSHAKES_MAX: usize = 64;

/// Sessions at once by default; one more is refused with `NBD_REP_ERR_POLICY`.
pub(crate) const SESSIONS_MAX: usize = 256;

/// How long closing waits for sessions that are in the middle of an operation.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

/// Seconds without traffic before TCP asks whether the client is still there.
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Seconds between such questions.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Questions without an answer after which a connection is closed.
pub(crate) const KEEPALIVE_PROBES: u32 = 4;

/// How long a session looks for the next request before it sleeps.
pub(crate) const LOOK_DURATION: Duration = Duration::from_micros(40);

/// A sleep that took less was no wake-up of an idle core; one that took more is not worth burning a core for.
pub(crate) const SLEEP_WORTH_AVOIDING: Range<Duration> =
    Duration::from_micros(15)..Duration::from_micros(120);

/// Requests that are looked for after a sleep worth avoiding, until another sleep probes how things are.
pub(crate) const LOOKS: u32 = 64;

const _: () = assert!(WINDOW_BYTES_MIN <= BATCH_BYTES_MAX && BATCH_BYTES_MAX <= WINDOWS_BYTES);
