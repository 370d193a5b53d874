//! Limits of NFS, and the behaviour beyond them; `cairn_frontend_session::limits` has the others.

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
