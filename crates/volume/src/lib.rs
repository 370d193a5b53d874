//! The write-anywhere volume: never overwrites, commits by switching one root, keeps snapshots, and
//! knows its changed blocks.
//!
//! # Invariants
//! 1. No block that the committed root or any snapshot reaches is ever written. Only the label area
//!    is overwritten. (One exception: a damaged block is overwritten with its own content, see
//!    `repair`.)
//! 2. A superblock is written only after every block that it reaches is durable. Both slots hold
//!    the newest superblock, written one after the other. Blocks of the previous superblock are
//!    reused only when both slots are durable, so either slot alone opens a whole volume.
//! 3. A block's bit in a root's active map is set if and only if that root reaches it.
//! 4. A block is free if and only if neither the active root nor any snapshot has its bit, and no
//!    reader still sees it.
//! 5. Flushed data survives any crash.
//!
//! # A byte's path
//! `write` puts blocks into the open generation's overlay. Write-back or a flush assigns places to
//! them and writes them in long runs (`write`). A flush names them in the intent log (`intent`). A
//! consistency point merges them into new trees (`update`, `consistency`). A read looks into the
//! overlays and then into the committed tree (`image`, `tree`), through one verified cache
//! (`store`).
//!
//! # Folders
//! Each folder is a part of the volume, and its `mod.rs` states its scope. `memory` has changes
//! that no root has yet, `commit` turns them into roots, and `read` reads roots. `log` makes
//! flushes durable, `past` has snapshots and clones, and `mirror` has the two sides of a mirror.
//! `health` finds and repairs damage, `life` makes and opens volumes. `volume` is the object that
//! all of them work on: most of their code is `impl Volume`.

mod commit;
mod error;
mod health;
mod known_files;
mod life;
mod limits;
mod locks;
mod log;
mod memory;
mod mirror;
mod past;
mod read;
mod volume;

pub use cairn_format::Role;
pub use error::{Contradiction, Place, VolumeError};
pub use health::check::{CheckDepth, CheckProgress, CheckReport, Finding};
pub use health::damage::DamagedBlock;
pub use health::repair::{Health, Repaired};
pub use health::scrub::{ScrubCursor, ScrubStep};
pub use known_files::ROOT_DIRECTORY;
pub use life::open::{FormatOptions, OpenOptions};
pub use limits::CONSISTENCY_INTERVAL;
pub use log::device::{Inspection, LogTarget, NewLog};
pub use memory::change::{Change, Head};
pub use memory::numbers::Numbers;
pub use mirror::claims::BlockSet;
pub use mirror::keeps_fresh::KeepsFresh;
pub use mirror::lag::Behind;
pub use mirror::receive::{ReceivedImage, Receiver};
pub use mirror::roles::Divergence;
pub use past::clones::{CloneDevice, Kept};
pub use past::evictable::{MapWords, REACHED_BLOCKS, REACHED_WORDS, Reached};
pub use past::names::is_snapshot_name;
pub use past::since::{SinceFiles, SinceRelationship, Step};
pub use past::snapshots::{Changes, Whereabouts};
pub use read::compare::Run;
pub use read::difference::InodePair;
pub use read::image::{BlockRead, FileExtent, Image};
pub use read::nodes::{DirectoryTurn, ReadableInodes};
pub use read::region::{Look, Part, Piece, Position, Region, Until};
pub use volume::{Compound, HoldBack, Snapshot, Volume, VolumeStatus};

// Replaces the other tests, which use real threads.
#[cfg(all(test, feature = "shuttle"))]
#[path = "tests/schedules.rs"]
mod schedules;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
