//! The limits of this crate, each with its consequence.

use std::time::Duration;

/// Bytes of an object that is put in one call. Longer ones are put in pieces; a longer put is
/// refused.
pub const PUT_BYTES_MAX: usize = 64 << 20;

/// Bytes of one piece. A longer piece is refused.
pub const PIECE_BYTES_MAX: usize = 64 << 20;

/// Bytes of each piece but the last. Stores refuse to finish an object with a shorter one.
pub const PIECE_BYTES_MIN: usize = 5 << 20;

/// Pieces of one object. This is the limit of S3: an object has at most 640 GB with the longest
/// pieces.
pub const PIECES_MAX: u32 = 10_000;

/// Bytes fetched by one ranged get. A longer request is refused, so that memory stays bounded.
pub const GET_BYTES_MAX: usize = 64 << 20;

/// Objects in one page of a listing. A longer page is cut to this.
pub const PAGE_OBJECTS_MAX: usize = 1000;

/// Objects or uploads in a listing that is collected in memory. A longer listing is an error.
pub const COLLECTED_MAX: usize = 1_000_000;

/// Bytes of an answer without an object: an error, a list of pieces. A longer answer is an error.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Time for a connection to a store, including TLS. Past it the call fails as unreachable.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// Time without a byte of an answer to a request that sends nothing, and without an acknowledgement
/// of sent bytes by the other machine. Past it the call fails as timed out.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Time for a call, before its bytes are counted. Past it the call fails as timed out.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(60);

/// Bytes a second below which a call times out, after [`CALL_TIME_MAX`]. Several calls share a
/// link.
pub const SLOWEST_BYTES_PER_SECOND: u64 = 16 << 10;

/// Time for a store to join the pieces of an upload, in silence. Past it the call fails as timed
/// out.
pub const JOIN_TIME_MAX: Duration = Duration::from_secs(900);

/// Interval at which a call checks its flag for cancellation.
pub const CANCEL_POLL: Duration = Duration::from_millis(50);

/// Threads of the runtime that serves every remote store of this process.
pub const RUNTIME_THREADS: usize = 2;

/// Idle connections to one host that are kept.
pub const IDLE_CONNECTIONS_MAX: usize = 16;

/// The longest pause that a store may ask for. A longer one is cut to this.
pub const STORE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Bytes of a file with credentials or certificates. A longer one is refused.
pub const SECRETS_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(PIECE_BYTES_MIN <= PIECE_BYTES_MAX);
const _: () = assert!(PIECE_BYTES_MAX <= PUT_BYTES_MAX);
