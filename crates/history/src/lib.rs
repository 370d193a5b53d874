//! A device that remembers: copy-on-write and redirect-on-write snapshots and continuous data
//! protection for any device.
//!
//! [`History`] wraps an *origin* and a *store*. A snapshot is history whose granularity is "at
//! marks" (2006 paper); every write, or every interval, is continuous data protection (2007 paper,
//! section 2). The engine starts no thread: callers write, and somebody calls [`History::step`].
//!
//! # Time
//! Each write gets a stamp when it is taken: wall time that never goes backwards. Two stamps are in
//! one *window* when no kept instant lies between them. Kept instants are all (every write), the
//! ends of intervals, and *cuts*: marks, and both sides of a revert. Of the writes of a block in
//! one window only the last is retained.
//!
//! # What the log says
//! The store is a log of [entries](cairn_format::history::HistoryEntry). `Redo(b, t)`: the content
//! of block b from t on. `Undo(b, t)`: its content until t. `Gone(b, t)`: the last redo of b holds
//! until t only. The content of b at T is that of the last entry up to T if it is a redo, else that
//! of the next entry if it is an undo, else that of the origin. That one rule serves all
//! placements:
//!
//! | placement | a write that leaves the cache makes | and the origin |
//! |---|---|---|
//! | checkpointing | Undo, if the window of the block's last entry is another | is written |
//! | logging | Redo | stays, until the window moves on |
//! | split-stream, split-down-stream | Undo if the last entry is no Redo (the base), Redo | is written: at its own time, or with the log |
//! | hybrid | as checkpointing or as split-down-stream, by region; Gone where it changes | is written |
//!
//! The index (what is where, by block and time) is in memory, at most 32 bytes a version. It is
//! made from the summaries of the log's segments on open, or from the records themselves where a
//! summary is damaged. An embedded engine (redb, fjall) was not taken: each version would be
//! written once more, and its commits would have to be tied to the flushes of two devices; a log
//! that holds block, time, length and checksum is an index already.
//!
//! # What is stored of a content
//! All of it, unless the owner wants a [`Reduction`]: then what it differs by from an earlier
//! version of its block (XOR, without the stretches of zeroes), or nothing, where the same bytes
//! are stored already. Both refer to contents of their own segment, which stay there for as long as
//! the segment is needed for any version; so nothing of what moves the window, thins, reverts or
//! empties segments has to know of it. Room is counted as if nothing were reduced: no work that was
//! begun can lack any, and what is needed of a segment moves on to others when it would fill less
//! than half of one whole. How it is done, and what damage costs, is in `reduce.rs`.
//!
//! # Invariants, and what a cut leaves
//! 1. *No place of the log is written twice* before the superblock has freed its segment, and that
//!    superblock is durable before the segment is written again. A cut in the middle of a record
//!    leaves a torn end: it is not durable, no flush has covered it, and the log ends before it.
//!    The superblock names segments *ahead*: the log goes on in them without another superblock, so
//!    that without a client's flush nothing is flushed for a long time. Opening follows it for as
//!    long as each segment begins with the record after the last one of the segment before. Where
//!    it ends, records behind that end are looked through: if one of them says that what is not
//!    there was durable, that is damage, and reported.
//! 2. *The origin is written only after the entries that tell of it are durable.* A cut between the
//!    two leaves, for checkpointing: an undo whose content the origin still has, which is true as
//!    well. For splits: a redo that the origin lacks; opening writes it there (again). The origin
//!    never has content of which the history does not know.
//! 3. *Logging writes the origin only when the window moves on*, with content of the new start of
//!    the window, after the superblock says that the old instants are gone. A cut leaves a part of
//!    it written: all of it is still in the log, and it is written again.
//! 4. *Entries up to the cut time do not count.* The cut moves only after what they held and is
//!    still needed is durable elsewhere (the origin, or an undo). A cut before that leaves them
//!    all.
//! 5. *A revert is one superblock write.* From then on the content of a block that has no later
//!    entry is that at the target. The background copy writes it as any write of the revert's time;
//!    it is over when the superblock says so, and goes on after a cut. Where an undo of the
//!    revert's time is there and no later entry, the origin is written again. A client's write to a
//!    block that is not copied yet waits until the copy of it is durable.
//! 6. *A flush* writes out the cache, then makes store and origin durable. What is acknowledged
//!    before is in both. One that waited for another is over with it, when all that it asks for was
//!    taken before that one began.
//! 7. *What is damaged is never served*: each version has a checksum in its entry; a record or
//!    summary that fails where it was durable is reported. Where a version that is needed elsewhere
//!    can't be read, an entry says that it is lost, and the rest goes on.
//! 8. *What a version is stored by is stored before it, in the same segment*: a version of a chain
//!    of [eight](cairn_format::delta::LINKS_MAX) at most. A cut leaves both or not the younger one.
//!    A store that was ever reduced says so in the version of its superblock, before the first such
//!    entry; programs that know nothing of it refuse it.
//! 9. *A segment has its room* in the file system below before it counts as spare, so that the log
//!    never ends in the middle for want of it; where that can't be promised, what found none is
//!    written again to the same place. Until then the log does not say that the origin has it.
//!
//! # What it does not do
//! A view of an instant that the window leaves (only when the store is full: views hold the window
//! otherwise) fails its reads. A reduction does not look further back than the segment that is
//! being filled, and not at what is stored whole already.

mod below;
mod cache;
mod content;
mod counters;
mod destage;
mod device;
mod elapsed;
mod error;
mod found;
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
