//! A device that remembers: copy-on-write and redirect-on-write snapshots and continuous data
//! protection for any device.
//!
//! [`History`] wraps an *origin* and a *store*. A snapshot is history whose granularity is "at
//! marks" (2006 paper); every write, or every interval, is continuous data protection (2007 paper,
//! section 2). The engine starts no thread: clients write, and the owner's thread calls
//! [`History::step`].
//!
//! # Time
//! Each write gets a stamp when it is taken: wall time that never goes backwards. Two stamps are in
//! one *window* when no kept instant lies between them. Kept instants are all (every write), the
//! ends of intervals, and *cuts*: marks, and both sides of a revert. Of the writes of a block in
//! one window only the last is retained.
//!
//! # What the log says
//! The store is a log of [entries](cairn_format::history::HistoryEntry). `Redo(b, t)`: the content
//! of block b from t on. `Undo(b, t)`: its content until t. `Gone(b, t)`: the last redo of b is
//! valid until t only. The content of b at T comes from one of three places. It is the last entry
//! up to T if that is a redo. Otherwise it is the next entry if that is an undo. Otherwise it is
//! the origin. That one rule serves all placements:
//!
//! | placement | a write that leaves the cache makes | and the origin |
//! |---|---|---|
//! | checkpointing | Undo, if the window of the block's last entry is another | is written |
//! | logging | Redo | stays, until the window moves |
//! | split-stream, split-down-stream | Undo unless the last entry is a Redo (the base), Redo | is written: at its own time, or with the log |
//! | hybrid | as checkpointing or as split-down-stream, by region; Gone where it changes | is written |
//!
//! The index (places by block and time) is in memory, at most 32 bytes a version. Opening builds it
//! from the summaries of the log's segments, or from the records themselves where a summary is
//! damaged. An embedded engine (redb, fjall) was rejected: it would write each version once more,
//! and its commits would have to be tied to the flushes of two devices. A log with block, time,
//! length and checksum is an index already.
//!
//! # What is stored of a content
//! All of it, unless the owner wants a [`Reduction`]. Then only the difference from an earlier
//! version of its block is stored (XOR, without the stretches of zeroes), or nothing, if the same
//! bytes are stored already. Both refer to contents of their own segment, which stay there as long
//! as any version needs the segment. So the code that moves the window, thins, reverts or empties
//! segments does not depend on it. Room is counted as if nothing were reduced, so work that has
//! begun always has enough. A segment's needed versions move to other segments when they would fill
//! less than half of one, unreduced. `reduce.rs` has the method, and the cost of damage.
//!
//! # Invariants, and what a cut leaves
//! 1. *No place of the log is written twice* before the superblock has freed its segment, and that
//!    superblock is durable before the segment is written again. A cut in the middle of a record
//!    leaves a torn end: it is not durable, no flush has covered it, and the log ends before it.
//!    The superblock names segments *ahead*: the log continues in them without another superblock,
//!    so that without a client's flush no device flush happens for a long time. Opening follows the
//!    log while each segment begins with the record after the last one of the previous segment.
//!    Records after the log's end are examined: if one of them states that a missing record was
//!    durable, that is damage, and reported.
//! 2. *The origin is written only after the entries that describe the change are durable.* A cut
//!    between the two leaves, for checkpointing, an undo whose content the origin still has, which
//!    is true as well. For splits it leaves a redo that the origin lacks; opening writes it there
//!    (again). The origin never has content that the history does not know.
//! 3. *Logging writes the origin only when the window moves*, with content of the new start of the
//!    window, after the superblock records that the old instants are gone. A cut leaves a part of
//!    it written: all of it is still in the log, and it is written again.
//! 4. *Entries up to the cut time do not count.* The cut time moves only after the content that is
//!    still needed is durable elsewhere (the origin, or an undo). A power cut before that leaves
//!    all entries.
//! 5. *A revert is one superblock write.* From then on a block without a later entry has its
//!    content at the target. The background copy writes that content as a write of the revert's
//!    time. The copy ends when the superblock says so, and resumes after a cut. For a block with an
//!    undo of the revert's time and no later entry, the origin is written again. A client's write
//!    to a block that is not copied yet waits until its copy is durable.
//! 6. *A flush* writes out the cache, then makes store and origin durable. Both have all writes
//!    acknowledged before it. A flush that waited for another ends with it, if all its writes were
//!    taken before the other began.
//! 7. *Damaged content is never served*: each version has a checksum in its entry. A record or
//!    summary that fails its check, where it was durable, is reported. When a version that is
//!    needed elsewhere cannot be read, an entry marks it as lost, and the rest continues.
//! 8. *The base of a version is stored before it, in the same segment*; a chain has at most
//!    [eight](cairn_format::delta::LINKS_MAX) versions. A cut leaves both, or only the base. A
//!    store that was ever reduced records that in the version of its superblock, before the first
//!    such entry; programs without reductions refuse it.
//! 9. *The room of a segment is reserved* in the file system below before it counts as spare, so
//!    the log never ends in the middle for lack of it. Where the file system cannot promise room, a
//!    write that found none is repeated at the same place. Until then the log does not state that
//!    the origin has it.
//!
//! # What it does not do
//! A view of an instant that the window passes (only when the store is full: views hold the window
//! otherwise) fails its reads. A reduction only uses bases in the segment being filled, and skips
//! content that is already stored whole.

mod below;
mod cache;
mod content;
mod counters;
mod destage;
mod device;
mod elapsed;
mod error;
mod found;
mod grow;
mod history;
mod index;
mod locks;
mod log;
mod lost;
mod making;
mod options;
mod owed;
mod recover;
mod reduce;
mod release;
mod resolve;
mod revert;
mod room;
#[cfg(all(test, feature = "shuttle"))]
#[path = "tests/schedules.rs"]
mod schedules;
mod status;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
mod thin;
mod timeline;
mod trim;
mod view;

pub use cairn_format::history::{FloorPolicy, Granularity, Placement, Reduction};
pub use counters::{Counters, Io, IoCount};
pub use error::HistoryError;
pub use history::{History, When};
pub use options::{
    HistoryOptions, LogPosition, MAX_BLOCK, MIN_BLOCK, OpenOptions, Thin, Window, store_bytes_min,
};
pub use revert::Reverted;
pub use status::{HistoryEvent, HistoryStatus, LostVersion, Mark, RevertProgress};
pub use view::HistoryView;
