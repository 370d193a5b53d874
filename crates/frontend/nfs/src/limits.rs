//! Limits of NFS, and the behaviour beyond them; `cairn_frontend_session::limits` has the others.

use std::ops::Range;
use std::time::Duration;

use cairn_frontend_session::limits::WINDOW_BYTES_MIN;

/// Most bytes of a READ or WRITE; FSINFO reports it to clients. It is the window of a
/// session when memory is short, so that each session can have one request in work.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 256 << 10;

/// The longest message of a client: a WRITE with its head. A longer one ends the connection.
pub(crate) const RECORD_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + (4 << 10);

/// Most bytes of the names in one listing; a client that asks for more gets fewer.
pub(crate) const LISTING_BYTES_MAX: u32 = 64 << 10;

/// Names that one look into a directory takes.
pub(crate) const LISTED_TOGETHER_MAX: usize = 512;

/// Requests of one round, which share a flush; further ones wait for the next.
pub(crate) const ROUND_REQUESTS_MAX: usize = 128;

/// Threads of a session beside its own that do reads which wait for the disk.
pub(crate) const LANES_MAX: usize = 6;
/// Reads that are worth waking another thread.
pub(crate) const LANE_READS_MIN: usize = 4;
/// Reads of one lane at most. Those of one file are dealt out to [`LANES_SHARE`] lanes.
pub(crate) const LANE_READS_MAX: usize = 16;
pub(crate) const LANES_SHARE: usize = 2;

/// The cost of a lock against the limits, beside the bytes of its owner.
pub(crate) const LOCK_BYTES: u64 = 256;
/// The locks of one client, in bytes: about 10,000. One more is refused.
pub(crate) const LOCK_BYTES_OF_HOST: u64 = 4 << 20;
/// The locks of all clients, in bytes.
pub(crate) const LOCKS_BYTES: u64 = 64 << 20;
/// Clients with locks; one more gets none.
pub(crate) const LOCK_HOSTS_MAX: usize = 1024;
/// Locks that the search for a deadlock looks at; beyond it a request waits, deadlock or not.
pub(crate) const LOCK_SEARCH_STEPS: usize = 64;
/// How long clients can claim their locks after a restart, by default. Linux takes as long.
pub(crate) const LOCK_GRACE: Duration = Duration::from_secs(45);

/// Messages to clients that are on their way at once; others wait.
pub(crate) const CALLBACK_THREADS: usize = 8;
/// The pauses between attempts to announce a lock or a restart; the last one repeats.
pub(crate) const CALLBACK_PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(10)];
/// Attempts to announce a restart, about 15 minutes.
pub(crate) const RESTART_TRIES: usize = 90;
/// Results that wait to be sent to a client as messages; further ones are dropped.
pub(crate) const MESSAGES_OF_HOST: usize = 64;
/// How long one step of a call to another machine takes at most.
pub(crate) const CALL_PATIENCE: Duration = Duration::from_secs(3);
/// Ports that only root can use, of which one is taken for a call to the own port mapper.
pub(crate) const OWN_PORTS: Range<u16> = 700..1024;
/// The longest reply of another machine.
pub(crate) const CALL_REPLY_BYTES_MAX: usize = 4 << 10;

/// How often the entries in the port mapper are looked at.
pub(crate) const REGISTER_EVERY: Duration = Duration::from_secs(60);
/// How long the thread for datagrams waits at once: the end of the server waits as long for it.
pub(crate) const DATAGRAM_PAUSE: Duration = Duration::from_millis(250);
/// The longest datagram, which is the message of a client that has restarted.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 2 << 10;

/// Replies that are kept for each client; the oldest goes first. A client repeats the requests that
/// it has in flight, which are fewer.
pub(crate) const REPLIES_KEPT: usize = 1024;
/// Clients whose replies are kept; that of the longest silence goes first.
pub(crate) const CLIENTS_KEPT: usize = 256;
/// How long a repeated request waits for the first one to end. Then the connection is closed, and
/// the client repeats it again.
pub(crate) const REPEAT_PATIENCE: Duration = Duration::from_secs(30);

/// Images of snapshots that one volume holds for clients, while they are used.
pub(crate) const SNAPSHOTS_HELD: usize = 64;
/// How long the image of a snapshot stays open without a request. A deleted snapshot keeps its
/// blocks until then.
pub(crate) const SNAPSHOT_IDLE: Duration = Duration::from_secs(2);

/// How often idle images are looked for.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often a client with an invalid handle is logged at most.
pub(crate) const LOG_EVERY: Duration = Duration::from_secs(10);

/// How long sending waits for a client that takes nothing.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Most names of a file, for PATHCONF; the tree has the limit.
pub(crate) const LINKS_MAX: u32 = 65_000;

const _: () = assert!(TRANSFER_BYTES_MAX as u64 <= WINDOW_BYTES_MIN);
const _: () = assert!(LOCK_BYTES_OF_HOST < LOCKS_BYTES);
