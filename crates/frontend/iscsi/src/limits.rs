//! How much a session takes at once, and what happens past it.

use std::time::Duration;

/// Bytes taken from a socket in one call. PDUs that did not fit come with the next.
pub(crate) const RECEIVE_BYTES: usize = 256 << 10;

/// What is taken in one call beside the data of a long write: the next header, and little of its data, since that would have to be copied.
pub(crate) const RECEIVE_BYTES_BETWEEN: usize = 512;

/// Data segments from this length on are received straight into blocks.
pub(crate) const LONG_SEGMENT_BYTES: usize = 8 << 10;

/// Memory that is set aside for data before its bytes come.
pub(crate) const PAYLOAD_BYTES_AHEAD: usize = 1 << 20;

/// Operations in a batch; further commands wait for the next.
pub(crate) const BATCH_OPERATIONS_MAX: usize = 256;

/// Bytes read and written in a batch by a session that has a whole window; a command that is longer goes in pieces.
pub(crate) const BATCH_BYTES_MAX: u64 = 8 << 20;

/// The window of a session when the budget is used up, in bytes.
pub(crate) const WINDOW_BYTES_MIN: u64 = 256 << 10;

/// The budget of all windows of a server, in bytes; past it sessions get the least window each. What an initiator sends unasked comes on
/// top: the first burst of each command in the command window.
pub(crate) const WINDOWS_BYTES: u64 = 32 << 20;

/// Pieces in one call that sends or receives (IOV_MAX of Linux); more go with the next call.
pub(crate) const VECTORS_MAX: usize = 1024;

/// An initiator that has not logged in by then is closed.
pub(crate) const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Initiators that log in at once; one more closes the oldest of them, so that silent ones keep no others out.
pub(crate) const LOGINS_MAX: usize = 64;

/// Sessions at once; one more is refused with status 0x0302.
pub(crate) const SESSIONS_MAX: usize = 256;

/// A refused proof is told only after so long, so that secrets can't be tried fast.
pub(crate) const REFUSAL_PAUSE: Duration = Duration::from_millis(500);

/// How long closing waits for sessions that are in the middle of an operation.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

/// How often an idle session looks whether there is something to tell its initiator.
pub(crate) const IDLE_LOOK: Duration = Duration::from_secs(2);

/// An initiator that takes no byte for so long is closed.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Seconds without traffic before TCP asks whether the initiator is still there.
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Seconds between such questions.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Questions without an answer after which a connection is closed.
pub(crate) const KEEPALIVE_PROBES: u32 = 4;

/// How long a session looks for the next request before it sleeps.
pub(crate) const LOOK_DURATION: Duration = Duration::from_micros(40);
/// A sleep that took less was no wake-up of an idle core; one that took more is not worth burning a core for.
pub(crate) const SLEEP_WORTH_AVOIDING: std::ops::Range<Duration> =
    Duration::from_micros(15)..Duration::from_micros(120);
/// Requests that are looked for after a sleep worth avoiding, until another sleep probes how things are.
pub(crate) const LOOKS: u32 = 64;

/// Extents that one GET LBA STATUS looks at.
pub(crate) const EXTENTS_MAX: usize = 256;

/// Bytes that a command which reads and writes by itself (WRITE SAME, VERIFY, EXTENDED COPY) handles at once.
pub(crate) const STRIDE_BYTES: u32 = 1 << 20;

const _: () = assert!(WINDOW_BYTES_MIN <= BATCH_BYTES_MAX && BATCH_BYTES_MAX <= WINDOWS_BYTES);
