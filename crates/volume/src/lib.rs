//! The write-anywhere volume: never overwrites, commits by switching one root, keeps snapshots, and knows its changed blocks.
//!
//! # Invariants
//! 1. No block that the committed root or any snapshot reaches is ever written. Only the label area is overwritten. (One exception: a damaged block is
//!    overwritten with its own content, see `repair`.)
//! 2. A superblock is written only after every block that it reaches is durable. Both slots hold the newest one, written one after the other;
//!    blocks that the one before reached are reused only when both are durable, so either slot alone opens a whole volume.
//! 3. A block's bit in a root's active map is set if and only if that root reaches it.
//! 4. A block is free if and only if neither the active root nor any snapshot has its bit, and no reader still sees it.
//! 5. What was flushed is there after any crash.
//!
//! # A byte's path
//! `write` puts blocks into the open generation's overlay; write-back or a flush gives them places and writes them in long runs (`write`);
//! a flush names them in the intent log (`intent`); a consistency point merges them into new trees (`update`, `consistency`).
//! A read looks into the overlays and then into the committed tree (`image`, `tree`), through one verified cache (`store`).

mod adopt;
mod block_set;
mod change;
mod check;
mod claims;
mod clones;
mod compare;
mod consistency;
mod descent;
mod difference;
mod error;
mod file;
mod fresh;
mod have;
mod image;
mod intent;
mod kept;
mod lag;
mod limits;
mod locks;
mod log_device;
mod mend;
mod nodes;
mod numbers;
mod open;
mod overlay;
mod path;
mod reached;
mod receive;
mod region;
mod release;
mod repair;
mod roles;
mod room;
mod scrub;
mod since;
mod slots;
mod small;
mod snapshots;
mod space;
mod state;
mod store;
mod stranded;
mod table;
mod together;
mod tree;
mod update;
mod used;
mod volume;
mod walk;
mod write;

pub use cairn_format::Role;
pub use change::{Change, Head};
pub use check::{CheckDepth, CheckProgress, CheckReport, Finding};
pub use claims::BlockSet;
pub use clones::{CloneDevice, Kept};
pub use compare::Run;
pub use difference::InodePair;
pub use error::{Contradiction, Place, VolumeError};
pub use fresh::KeepsFresh;
pub use image::{BlockRead, FileExtent, Image};
pub use lag::Behind;
pub use limits::CONSISTENCY_INTERVAL;
pub use log_device::{Inspection, LogTarget, NewLog};
pub use nodes::{DirectoryTurn, ReadableInodes};
pub use numbers::Numbers;
pub use open::{FormatOptions, OpenOptions};
pub use receive::{ReceivedImage, Receiver};
pub use region::{Look, Part, Piece, Position, Region, Until};
pub use repair::{DamagedBlock, Health, Repaired};
pub use roles::Divergence;
pub use scrub::{ScrubCursor, ScrubStep};
pub use since::{SinceFiles, SinceRelationship, Step};
pub use snapshots::{Changes, Whereabouts, is_snapshot_name};
pub use volume::{Compound, ROOT_DIRECTORY, Snapshot, Volume, VolumeStatus};

// Instead of the other tests, whose threads are real ones.
#[cfg(all(test, feature = "shuttle"))]
#[path = "tests/schedules.rs"]
mod schedules;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
