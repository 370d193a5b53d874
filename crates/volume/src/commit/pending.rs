//! State that consistency points pass on to the next one: the superblock, the tables, and a
//! consistency point that found no room.

use std::sync::Arc;

use cairn_base::{FileId, Generation, SnapshotId, Vbn, VolumeId};
use cairn_format::{
    BlockPointer, IndexBlock, LabelPointer, LogTail, POINTERS_PER_INDEX, RUNS_PER_BLOCK, RedirectBlock,
    RedirectRun, Superblock, TableRef,
};

use crate::commit::space::Redirects;
use crate::commit::table::{LabelSpace, PreparedTable, TableWrites};
use crate::error::VolumeError;
use crate::memory::overlay::Overlay;

/// State that only consistency points use.
pub(crate) struct Commit {
    /// The one that both slots hold.
    pub(crate) superblock: Superblock,
    pub(crate) label: LabelSpace,
    /// Blocks of the label space that hold the redirect map.
    pub(crate) redirect_blocks: Vec<u64>,
    /// Runs of the redirect map at most: [`crate::limits::REDIRECT_RUNS_MAX`], or less in a test.
    pub(crate) redirect_runs_max: usize,
    /// The layer below has reserved the room of its label area. Until then no consistency point
    /// begins.
    pub(crate) label_has_room: bool,
    /// A generation that was frozen and that no root has yet, as there was no room below for its
    /// consistency point. The next one commits it first.
    pub(crate) left: Option<Left>,
    /// A consistency point that is durable except for the superblock, for which there was no room
    /// below. It is unknown whether a slot has it: no other superblock is written to the slots
    /// before it.
    pub(crate) sealed: Option<Box<Sealed>>,
}

/// A frozen generation: all changes that arrived up to `order`. Records of later ones are from
/// `tail` on.
#[derive(Clone)]
pub(crate) struct Left {
    pub(crate) generation: Generation,
    pub(crate) order: u64,
    pub(crate) tail: LogTail,
}

/// A consistency point that lacks nothing but its superblock.
pub(crate) struct Sealed {
    pub(crate) superblock: Superblock,
    pub(crate) frozen: Option<FrozenPart>,
    pub(crate) table: Option<PreparedTable>,
    pub(crate) exclusive: Exclusive,
    pub(crate) unheld: Vec<BlockPointer>,
    pub(crate) removed: Vec<FileId>,
    pub(crate) replaced: Vec<Vbn>,
}

/// A generation that left the open state.
pub(crate) struct FrozenPart {
    pub(crate) overlay: Arc<Overlay>,
    pub(crate) order: u64,
    pub(crate) tail: LogTail,
}

/// Blocks that only a deleted snapshot held, by snapshot.
pub(crate) type Exclusive = Vec<(SnapshotId, Vec<Vbn>)>;

/// Writes the redirect map whole, in the place of the one that `commit` has.
///
/// # Errors
/// [`VolumeError::TableFull`]; nothing of the label area is taken then.
pub(crate) fn prepare_redirects(
    redirects: &Redirects,
    volume: VolumeId,
    commit: &mut Commit,
) -> Result<(TableRef, Vec<u64>, TableWrites), VolumeError> {
    let runs: Vec<RedirectRun> = redirects.iter().collect();
    if runs.len() > commit.redirect_runs_max {
        return Err(VolumeError::TableFull);
    }
    let label = &mut commit.label;
    let mut writes = TableWrites::default();
    let none = LabelPointer::default();
    let mut pointers = Vec::new();
    for chunk in runs.chunks(RUNS_PER_BLOCK) {
        pointers.push(
            writes.add(label, none, |bytes, address| RedirectBlock::write(bytes, volume, address, chunk))?,
        );
    }
    let mut indexes = Vec::new();
    for chunk in pointers.chunks(POINTERS_PER_INDEX) {
        indexes.push(
            writes.add(label, none, |bytes, address| IndexBlock::write(bytes, volume, address, chunk))?,
        );
    }
    writes.freed = commit.redirect_blocks.clone();
    let addresses = writes.addresses();
    Ok((TableRef { entries: runs.len() as u64, indexes }, addresses, writes))
}
