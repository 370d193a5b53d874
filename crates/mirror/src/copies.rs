//! Two copies of the same blocks: one side's damage is repaired from the other, and both are
//! compared.
//!
//! # Mending
//! The destination connects, so it asks for both sides. It requests blocks that are damaged here by
//! number and checksum. The source sends blocks with that checksum, from its cache or its media,
//! and no others. Then it asks which blocks the source lacks, and sends those. Either side writes
//! through [`Volume::repair`], which overwrites only unreadable blocks, with bytes that have the
//! checksum that the block's parent names: damage cannot spread. That checksum proves nothing
//! against a hostile peer: a repaired block is the peer's word, and all other blocks stay. Each
//! step is independent; a lost connection leaves blocks repaired or damaged.
//!
//! # Verifying
//! Snapshots that both sides have with the same root have the same blocks in the same order
//! ([`Volume::region`]). The destination walks its own, region by region, and the source sends a
//! digest of the same region over (vbn, checksum). The checksums are those in the pointers, where
//! only structures are read, or those of the media, where everything is read. Where digests differ
//! the blocks of the region are listed, and the block is found. A region costs 25 bytes of request
//! and 16 of digest, for about 16 MiB.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::{Checksum, SnapshotId, Vbn};
use cairn_device::{Block, BlockMut};
use cairn_format::stream::root_digest;
use cairn_volume::{
    DamagedBlock, Look, Part, Piece, Place, Position, Region, Repaired, Until, Volume, VolumeError,
};

use crate::client::{Client, unexpected};
use crate::destination::Destination;
use crate::error::{MirrorError, Refusal};
use crate::message::{Answer, Request};

mod wire;
pub(crate) use wire::{Asks, CopiesAnswer, CopiesRequest, RegionAnswer, RegionOf};
use wire::{BLOCKS_MAX, LIST_MAX, REGION_BLOCKS};

/// Differences that are reported one by one; further ones are counted.
const TOLD_MAX: usize = 1000;

/// On the source: answers a question about a volume that the peer may have.
pub(crate) fn answer(volume: &Arc<Volume>, request: &CopiesRequest) -> Result<CopiesAnswer, Refusal> {
    if volume.id() != request.id {
        return Err(Refusal::WrongVolume { expected: request.id, found: volume.id() });
    }
    Ok(match &request.asks {
        Asks::Fetch(wanted) => {
            let bytes = |block: Option<Block>| block.map(|block| block.to_vec());
            CopiesAnswer::Blocks(volume.sound_blocks(wanted).into_iter().map(bytes).collect())
        }
        Asks::Needs => CopiesAnswer::Needs(in_order(volume.damaged()).iter().map(named).collect()),
        Asks::Give(blocks) => {
            let given = blocks.iter().map(|(vbn, checksum, bytes)| (*vbn, *checksum, block_of(bytes)));
            CopiesAnswer::Mended(
                given.filter(|(vbn, sum, block)| repair(volume, *vbn, *sum, block)).count() as u64
            )
        }
        Asks::Region(asked) => match region(volume, asked) {
            Some(region) => {
                let told = |piece: &Piece| (piece.vbn, piece.checksum, piece.sound);
                let listed = asked.list.then(|| region.pieces.iter().take(LIST_MAX).map(told).collect());
                CopiesAnswer::Region(RegionAnswer {
                    digest: region.digest(),
                    read: region.read,
                    incomplete: region.incomplete,
                    list: listed.unwrap_or_default(),
                })
            }
            None => CopiesAnswer::NoSuchRoot,
        },
    })
}

/// Upper nodes first: blocks below a damaged one cannot be repaired before it.
fn in_order(mut damaged: Vec<DamagedBlock>) -> Vec<DamagedBlock> {
    let rank = |block: &DamagedBlock| match block.place {
        Place::Node(node) => std::cmp::Reverse((node.file.0, node.level)),
        Place::Data { file, .. } => std::cmp::Reverse((file.0, 0)),
        Place::Unknown => std::cmp::Reverse((0, 0)),
    };
    damaged.sort_by_key(rank);
    damaged
}

fn named(block: &DamagedBlock) -> (Vbn, Checksum) {
    (block.vbn, block.checksum)
}

fn block_of(bytes: &[u8]) -> Block {
    let mut block = BlockMut::zeroed();
    for (to, from) in block.iter_mut().zip(bytes) {
        *to = *from;
    }
    block.freeze()
}

/// True when the block is whole afterwards, or no longer in use.
fn repair(volume: &Arc<Volume>, vbn: Vbn, checksum: Checksum, block: &Block) -> bool {
    match volume.repair(vbn, checksum, block) {
        Ok(Repaired::Written | Repaired::Sound | Repaired::Gone) => true,
        Err(error) => {
            tracing::warn!(vbn = vbn.0, %error, "a damaged block could not be repaired");
            false
        }
    }
}

/// The region here, if both its snapshots are here with these roots.
fn region(volume: &Arc<Volume>, asked: &RegionOf) -> Option<Region> {
    let entries = volume.snapshot_entries();
    let is_here = |(id, digest): (SnapshotId, Checksum)| {
        id.0 == 0 || entries.iter().any(|entry| entry.id == id && root_digest(entry) == digest)
    };
    if asked.root.0.0 == 0 || !is_here(asked.root) || !is_here(asked.base) {
        return None;
    }
    let part = Part { root: asked.root.0, base: asked.base.0 };
    // A request for more than a region gets a part of it.
    let most = LIST_MAX as u64;
    let until = asked.until.map_or(Until::Blocks(most), |end| Until::First(end, most));
    let look = if asked.everything { Look::Everything } else { Look::Structures };
    volume.region(part, asked.from, until, look).ok()
}

/// The result of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mended {
    /// Damaged blocks here that are whole now.
    pub here: u64,
    /// Damaged blocks at the source that are whole now.
    pub there: u64,
    /// Blocks still damaged here: the source lacks them, or its copies are damaged as well.
    pub left_here: u64,
    /// Blocks still damaged at the source.
    pub left_there: u64,
    /// Of the blocks here, those that were repaired while a lock was in force. They are the
    /// source's word: they have the checksum of the lost block, which a hostile source can produce
    /// for other content.
    pub here_locked: u64,
}

/// Where the two sides differ, or one of them is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// The block.
    pub vbn: Vbn,
    /// The place of the block in a tree.
    pub place: Place,
    /// The snapshot in which it was found.
    pub snapshot: SnapshotId,
    /// On which side.
    pub kind: DifferenceKind,
}

/// On which side a block is not as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceKind {
    /// Damaged here.
    Here,
    /// Damaged at the source.
    There,
    /// Damaged on both sides.
    Both,
    /// Whole on both sides, but different, although the snapshots claim to be equal. Nothing is
    /// repaired automatically.
    Contradiction,
}

/// How far a comparison is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerifyProgress {
    /// Blocks that were compared, or read here alone.
    pub blocks: u64,
    /// Blocks in use: an upper bound.
    pub blocks_total: u64,
    /// Blocks that were read from the media of the side that read more.
    pub read: u64,
}

/// The context of a comparison.
pub struct VerifyWork<'a> {
    /// Polled at each region.
    pub cancel: &'a AtomicBool,
    /// Called at each region; it may rest there, for less than the other side waits for a word.
    pub progress: &'a mut dyn FnMut(VerifyProgress),
    /// The maximum number of blocks of a region, for a caller that would otherwise rest too long
    /// after one; never more than 16 MiB.
    pub region_blocks: u64,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// Blocks that both sides have, compared.
    pub blocks: u64,
    /// Snapshots that were compared.
    pub snapshots: u64,
    /// Snapshots that the source does not have any more: they were checked here alone.
    pub only_here: u64,
    /// Blocks that were read from the media here.
    pub read_here: u64,
    /// Blocks that were read from the media at the source.
    pub read_there: u64,
    /// Regions whose digests differed.
    pub regions_differing: u64,
    /// Blocks that are damaged or differ; the first thousand.
    pub differences: Vec<Difference>,
    /// All of them.
    pub differences_total: u64,
    /// Those that are whole on both sides: nothing mends them.
    pub contradictions: u64,
    /// The repaired blocks.
    pub mended: Mended,
}

impl Destination {
    fn ask_copies<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        asks: Asks,
    ) -> Result<CopiesAnswer, MirrorError> {
        let request = CopiesRequest { volume: self.source_volume().to_owned(), id: self.volume().id(), asks };
        match client.ask(&Request::Copies(request))? {
            Answer::Copies(answer) => Ok(answer),
            answer => Err(unexpected(answer)),
        }
    }

    /// Fetches blocks that are damaged here from the source, and sends the source the blocks that
    /// are damaged there.
    ///
    /// # Errors
    /// Errors of the connection. The result lists blocks that could not be repaired.
    pub fn mend<S: Read + Write + ?Sized>(&self, client: &mut Client<'_, S>) -> Result<Mended, MirrorError> {
        let volume = self.volume();
        let mut mended = Mended::default();
        for wanted in in_order(volume.damaged()).iter().map(named).collect::<Vec<_>>().chunks(BLOCKS_MAX) {
            let CopiesAnswer::Blocks(blocks) = self.ask_copies(client, Asks::Fetch(wanted.to_vec()))? else {
                return Err(MirrorError::Protocol("its answer is to another question"));
            };
            for ((vbn, checksum), bytes) in wanted.iter().zip(blocks) {
                let whole = bytes.is_some_and(|bytes| repair(volume, *vbn, *checksum, &block_of(&bytes)));
                mended.here += u64::from(whole);
            }
        }
        mended.here_locked = if self.options().lock.is_some() { mended.here } else { 0 };
        mended.left_here = volume.damaged().len() as u64;
        let CopiesAnswer::Needs(needs) = self.ask_copies(client, Asks::Needs)? else {
            return Err(MirrorError::Protocol("its answer is to another question"));
        };
        for part in needs.chunks(BLOCKS_MAX) {
            let found = part.iter().zip(volume.sound_blocks(part));
            let blocks: Vec<_> =
                found.filter_map(|((vbn, sum), block)| Some((*vbn, *sum, block?.to_vec()))).collect();
            if blocks.is_empty() {
                continue;
            }
            let CopiesAnswer::Mended(count) = self.ask_copies(client, Asks::Give(blocks))? else {
                return Err(MirrorError::Protocol("its answer is to another question"));
            };
            mended.there += count.min(part.len() as u64);
        }
        mended.left_there = (needs.len() as u64).saturating_sub(mended.there);
        Ok(mended)
    }

    /// Compares the common snapshots of both sides, region by region, and repairs damage. Both
    /// sides read structures from their media; with `everything` all data as well.
    ///
    /// # Errors
    /// Errors of the connection, and [`MirrorError::Cancelled`]. The result lists the differences.
    pub fn verify<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        everything: bool,
        work: &mut VerifyWork<'_>,
    ) -> Result<Verified, MirrorError> {
        let mut verified = Verified::default();
        let mut common: BTreeSet<SnapshotId> = BTreeSet::new();
        let entries = self.volume().snapshot_entries();
        let status = self.volume().status();
        let mut at = VerifyProgress { blocks_total: status.used, ..VerifyProgress::default() };
        let digests: HashMap<SnapshotId, (SnapshotId, Checksum)> =
            entries.iter().map(|entry| (entry.id, (entry.parent, root_digest(entry)))).collect();
        for entry in &entries {
            let mut base = entry.parent;
            while base.0 != 0 && !common.contains(&base) {
                base = digests.get(&base).map_or(SnapshotId(0), |(parent, _)| *parent);
            }
            let base = (base, digests.get(&base).map_or(Checksum::default(), |(_, digest)| *digest));
            let asked = RegionOf {
                root: (entry.id, root_digest(entry)),
                base,
                from: Position::START,
                until: None,
                everything,
                list: false,
            };
            let mut comparing = Comparing { verified: &mut verified, at: &mut at, both: true };
            match self.compare_root(client, asked, &mut comparing, work)? {
                true => {
                    common.insert(entry.id);
                    verified.snapshots += 1;
                }
                false => verified.only_here += 1,
            }
        }
        verified.mended = self.mend(client)?;
        Ok(verified)
    }

    /// False when the source does not have it.
    fn compare_root<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        mut asked: RegionOf,
        comparing: &mut Comparing<'_>,
        work: &mut VerifyWork<'_>,
    ) -> Result<bool, MirrorError> {
        let (volume, part) = (self.volume(), Part { root: asked.root.0, base: asked.base.0 });
        let look = if asked.everything { Look::Everything } else { Look::Structures };
        let blocks = work.region_blocks.clamp(1, REGION_BLOCKS);
        loop {
            if work.cancel.load(Ordering::Relaxed) {
                return Err(MirrorError::Cancelled);
            }
            // Where it ends is found without reading, so that both sides read at the same time.
            let ends = match volume.region(part, asked.from, Until::Blocks(blocks), Look::Nothing) {
                // An update has taken it away.
                Err(VolumeError::NoSuchSnapshot(_)) => return Ok(false),
                ends => ends?.next,
            };
            asked.until = ends;
            let asks = |asked| {
                let (name, id) = (self.source_volume().to_owned(), volume.id());
                Request::Copies(CopiesRequest { volume: name, id, asks: Asks::Region(asked) })
            };
            if comparing.both {
                client.tell(&asks(asked))?;
            }
            let until = ends.map_or(Until::Blocks(u64::MAX), Until::Position);
            let own = volume.region(part, asked.from, until, look);
            let theirs = if comparing.both { region_answer(client.hear()?)? } else { None };
            let own = match own {
                Err(VolumeError::NoSuchSnapshot(_)) => return Ok(false),
                own => own?,
            };
            comparing.both &= theirs.is_some();
            comparing.at.blocks += own.pieces.len() as u64;
            comparing.verified.read_here += own.read;
            let there = theirs.as_ref().map_or(0, |theirs| theirs.read);
            comparing.verified.read_there += there;
            comparing.at.read += own.read.max(there);
            let mut list = None;
            if let Some(theirs) = theirs {
                comparing.verified.blocks += own.pieces.len() as u64;
                let differs = theirs.digest != own.digest();
                comparing.verified.regions_differing += u64::from(differs);
                // Blocks damaged on both sides have the same digest.
                if differs || own.pieces.iter().any(|piece| !piece.sound) {
                    let listed = Asks::Region(RegionOf { list: true, ..asked });
                    list = region_answer(Answer::Copies(self.ask_copies(client, listed)?))?;
                }
            }
            comparing.note(asked.root.0, &own, list.as_ref());
            (work.progress)(*comparing.at);
            match ends {
                Some(next) => asked.from = next,
                None => return Ok(comparing.both),
            }
        }
    }
}

fn region_answer(answer: Answer) -> Result<Option<RegionAnswer>, MirrorError> {
    match answer {
        Answer::Copies(CopiesAnswer::Region(region)) => Ok(Some(region)),
        Answer::Copies(CopiesAnswer::NoSuchRoot) => Ok(None),
        answer => Err(unexpected(answer)),
    }
}

pub(crate) struct Comparing<'a> {
    pub(crate) verified: &'a mut Verified,
    pub(crate) at: &'a mut VerifyProgress,
    /// The source has this root.
    pub(crate) both: bool,
}

impl Comparing<'_> {
    /// Finds the blocks of a region that are not as they should be; `theirs` where the digests
    /// differ.
    pub(crate) fn note(&mut self, snapshot: SnapshotId, own: &Region, theirs: Option<&RegionAnswer>) {
        let list: HashMap<Vbn, (Checksum, bool)> = theirs
            .map(|theirs| theirs.list.iter().map(|(vbn, sum, sound)| (*vbn, (*sum, *sound))).collect())
            .unwrap_or_default();
        // The blocks below an unreadable node are unknown, and the other side's blocks there are no
        // contradiction.
        let whole = theirs.is_some_and(|theirs| !theirs.incomplete) && !own.incomplete;
        let mut known = BTreeSet::new();
        for piece in &own.pieces {
            known.insert(piece.vbn);
            let there = list.get(&piece.vbn);
            let kind = match (piece.sound, there, theirs.is_some()) {
                (true, None, false) | (true, Some((_, true)), _) => {
                    match there.is_some_and(|(sum, _)| *sum != piece.checksum) {
                        true => DifferenceKind::Contradiction,
                        false => continue,
                    }
                }
                (true, None, true) if whole => DifferenceKind::Contradiction,
                (true, None, true) => continue,
                (true, Some((_, false)), _) => DifferenceKind::There,
                (false, Some((_, false)), _) => DifferenceKind::Both,
                (false, _, _) => DifferenceKind::Here,
            };
            self.tell(Difference { vbn: piece.vbn, place: piece.place, snapshot, kind });
        }
        for vbn in list.keys().filter(|vbn| whole && !known.contains(vbn)) {
            let kind = DifferenceKind::Contradiction;
            self.tell(Difference { vbn: *vbn, place: Place::Unknown, snapshot, kind });
        }
    }

    fn tell(&mut self, difference: Difference) {
        self.verified.differences_total += 1;
        self.verified.contradictions += u64::from(difference.kind == DifferenceKind::Contradiction);
        if self.verified.differences.len() < TOLD_MAX {
            self.verified.differences.push(difference);
        }
    }
}
