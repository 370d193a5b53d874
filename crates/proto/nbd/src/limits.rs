//! Limits on a peer's requests, and the behaviour beyond them.

/// The longest read and the longest payload of a write, in bytes (the specification's default). A
/// longer read gets `NBD_EOVERFLOW`; a longer write is drained and gets the same, or past
/// [`DRAIN_BYTES_MAX`] ends the session.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The longest payload that is read and thrown away to keep a session alive after a bad request;
/// past it the session ends.
pub const DRAIN_BYTES_MAX: u64 = 64 << 20;

/// The longest string of the protocol (names, descriptions, queries, messages), in bytes. A longer
/// one is refused with `NBD_REP_ERR_TOO_BIG`.
pub const STRING_BYTES_MAX: usize = 4096;

/// The longest data of an option. A longer one is skipped and refused with `NBD_REP_ERR_TOO_BIG`,
/// or past [`OPTION_SKIP_BYTES_MAX`] ends the session.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;

/// The longest data of an option that is skipped to keep a session alive.
pub const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;

/// Options in one negotiation; one more ends the session.
pub const OPTIONS_MAX: u32 = 4096;

/// Metadata contexts that one session can select; further queries are left out of the answer.
pub const CONTEXTS_MAX: usize = 64;

/// Extents in one block status reply for one context; the rest is left to the next request.
pub const EXTENTS_MAX: usize = 8192;

/// The longest payload of a server's reply that a client takes, on top of the data that it asked
/// for.
pub const REPLY_EXTRA_BYTES_MAX: u64 = 1 << 20;

const _: () = assert!(PAYLOAD_BYTES_MAX as u64 <= DRAIN_BYTES_MAX);
const _: () = assert!(OPTION_BYTES_MAX <= OPTION_SKIP_BYTES_MAX);
const _: () = assert!(STRING_BYTES_MAX * 2 < OPTION_BYTES_MAX as usize);
const _: () = assert!(8 + 16 * EXTENTS_MAX as u64 <= REPLY_EXTRA_BYTES_MAX);
