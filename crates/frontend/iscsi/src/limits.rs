//! Limits that only iSCSI has; `cairn_frontend_session::limits` has the others.

use std::time::Duration;

/// Data segments from this length on are received straight into blocks.
pub(crate) const LONG_SEGMENT_BYTES: usize = 8 << 10;

/// Proofs of CHAP that an address may get wrong before it has to wait.
pub(crate) const FREE_TRIES: u32 = 4;
/// The least time between two checks of proofs that have to wait, however many those are: 20 checks
/// a second.
pub(crate) const PACE_OF_ALL: Duration = Duration::from_millis(50);
/// Tries are forgotten after this time without one.
pub(crate) const PACE_MEMORY: Duration = Duration::from_secs(120);
/// Initiators that proved themselves which are remembered; past it the one is forgotten that did so
/// longest ago.
pub(crate) const KNOWN_INITIATORS_MAX: usize = 4096;
/// Addresses whose tries are remembered; past it the one that was silent for longest is forgotten.
pub(crate) const PACED_ADDRESSES_MAX: usize = 4096;
/// How often a login that has to wait looks whether its initiator is still there.
pub(crate) const PACE_LOOK: Duration = Duration::from_millis(50);

/// How long a task management function waits for commands that the device has begun; then it is
/// rejected. Linux gives one 15 s.
pub(crate) const TASK_PATIENCE: Duration = Duration::from_secs(10);

/// A session whose thread is in the device for this long is attended to by another one.
pub(crate) const STUCK: Duration = Duration::from_millis(200);

/// How often it is looked which sessions are.
pub(crate) const STUCK_LOOK: Duration = Duration::from_millis(100);

/// Bytes of data that a session takes while its thread is in the device, besides its window:
/// commands that abort waiting ones arrive with them. An initiator sends [no more than
/// this](cairn_proto_iscsi::limits::COMMAND_WINDOW) unasked.
pub(crate) const ATTENDED_BYTES_MAX: u64 = 8 << 20;

/// How often an idle session checks whether there is a notice for its initiator.
pub(crate) const IDLE_LOOK: Duration = Duration::from_secs(2);

/// An initiator that takes no byte for this long is closed.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum number of extents that one GET LBA STATUS reads.
pub(crate) const EXTENTS_MAX: usize = 256;

/// Bytes that a command which reads and writes by itself (WRITE SAME, VERIFY, EXTENDED COPY)
/// handles at once.
pub(crate) const STRIDE_BYTES: u32 = 1 << 20;
