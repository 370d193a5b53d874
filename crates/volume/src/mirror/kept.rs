//! Content that no arriving image may change: all other content kept here.
//!
//! A source may be in other hands, and a checksum proves nothing against intent: a block with a
//! given XXH3-128 is made in milliseconds. So bytes are compared with bytes:
//! - An arriving block for a number in use here is refused before it is written if it has the
//!   checksum of the present block but other bytes. No two contents of one number ever have the
//!   same checksum here, and a cache that knows blocks by both never serves one for the other.
//! - Before the commit each block in use here that would be read in another place from then on is
//!   compared, byte by byte, for every snapshot that shows it and stays. Where the snapshot's own
//!   block is damaged here, a block with the checksum that its pointer names takes its place, as a
//!   repair would put it there.
//!
//! Reads are of numbers that are in use here and arrive all the same. An honest source sends those
//! that only images show which it has deleted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use cairn_base::{Checksum, SnapshotId, Vbn};
use cairn_device::{Block, DeviceError};
use cairn_format::{BlockPointer, SnapshotEntry};

use crate::commit::space::Redirects;
use crate::error::{Contradiction, VolumeError};
use crate::mirror::reached::past_damage;
use crate::past::names::is_snapshot_name;
use crate::read::compare::Maps;
use crate::read::store::Store;
use crate::read::walk::Rooted;

/// The end of the numbers that a source may assign to snapshots, generations and files. Counting
/// resumes there after a failover, with room for longer than any volume lives.
const NUMBER_MAX: u64 = 1 << 60;

/// Compares arriving blocks with the content that readers here find under their numbers. Returns
/// those that are at home already, with the same bytes.
///
/// # Errors
/// [`VolumeError::Contradicts`] of a block with the same checksum and other bytes.
pub(crate) fn compare_arrivals(
    store: &Store,
    places: &[Arc<Redirects>],
    arrived: &[(Vbn, Block)],
) -> Result<HashSet<Vbn>, VolumeError> {
    let mut at_home = HashSet::new();
    let Some(committed) = places.first() else { return Ok(at_home) };
    for (vbn, block) in arrived {
        let pointer = BlockPointer { vbn: *vbn, checksum: Checksum::of(&block[..]), ..BlockPointer::HOLE };
        // Also blocks that can't be read from the device any more.
        if store.cached(&pointer).is_some_and(|known| known[..] != block[..]) {
            return Err(forged(*vbn));
        }
    }
    for (number, redirects) in places.iter().enumerate() {
        // Blocks in the same place as for the first one were compared.
        let elsewhere = |vbn: &Vbn| number == 0 || redirects.get(*vbn) != committed.get(*vbn);
        let compared: Vec<&(Vbn, Block)> = arrived.iter().filter(|(vbn, _)| elsewhere(vbn)).collect();
        let vbns: Vec<Vbn> = compared.iter().map(|(vbn, _)| *vbn).collect();
        for ((vbn, block), there) in compared.into_iter().zip(store.read_numbers(&vbns, redirects)) {
            let Ok(there) = there else { continue };
            if there[..] == block[..] {
                if number == 0 && redirects.get(*vbn).is_none() {
                    at_home.insert(*vbn);
                }
            } else if Checksum::of(&there[..]) == Checksum::of(&block[..]) {
                return Err(forged(*vbn));
            }
        }
    }
    Ok(at_home)
}

fn forged(vbn: Vbn) -> VolumeError {
    tracing::error!(
        vbn = vbn.0,
        "a block arrived with the checksum of the one here and other bytes: its source can't be trusted"
    );
    VolumeError::Contradicts(Contradiction::Forged(vbn))
}

/// Checks the numbers in an arrived list of snapshots, on which all later checks rely.
///
/// # Errors
/// [`VolumeError::Contradicts`].
pub(crate) fn check_list(snapshots: &[SnapshotEntry]) -> Result<(), VolumeError> {
    let listed: HashMap<SnapshotId, &SnapshotEntry> =
        snapshots.iter().map(|entry| (entry.id, entry)).collect();
    let names: HashSet<&str> = snapshots.iter().map(|entry| entry.name.as_str()).collect();
    let is_wrong = |entry: &SnapshotEntry| {
        let numbers = [entry.id.0, entry.root.generation.0, entry.root.next_file];
        entry.id.0 == 0
            || numbers.iter().any(|number| *number >= NUMBER_MAX)
            || !is_snapshot_name(&entry.name)
    };
    if listed.len() != snapshots.len() || names.len() != snapshots.len() || snapshots.iter().any(is_wrong) {
        return Err(VolumeError::Contradicts(Contradiction::List));
    }
    let parent = |entry: &SnapshotEntry| listed.get(&entry.parent).copied();
    let is_older = |entry: &SnapshotEntry| {
        parent(entry).is_some_and(|parent| parent.root.generation > entry.root.generation)
    };
    match snapshots.iter().any(is_older) {
        true => Err(VolumeError::Contradicts(Contradiction::Birth)),
        false => Ok(()),
    }
}

/// The blocks that new snapshots brought, of those that would be read in another place.
#[derive(Default)]
pub(crate) struct Lineage(BTreeMap<SnapshotId, Line>);

struct Line {
    base: Base,
    brought: HashSet<Vbn>,
}

/// The base that a new snapshot was compared with: it inherits from there the blocks that it has
/// not brought.
#[derive(Clone, Copy)]
pub(crate) enum Base {
    Nothing,
    /// Another new one.
    New(SnapshotId),
    /// A snapshot that stays, or the image shown here.
    Here,
}

impl Lineage {
    pub(crate) fn add(&mut self, id: SnapshotId, base: Base, brought: impl Iterator<Item = Vbn>) {
        self.0.insert(id, Line { base, brought: brought.collect() });
    }

    /// Whether a block of a snapshot is one that was here before this transfer.
    fn is_from_here(&self, mut id: SnapshotId, vbn: Vbn) -> bool {
        loop {
            match self.0.get(&id) {
                None => return true,
                Some(line) if line.brought.contains(&vbn) => return false,
                Some(Line { base: Base::New(base), .. }) if *base < id => id = *base,
                Some(Line { base: Base::Here, .. }) => return true,
                Some(_) => return false,
            }
        }
    }
}

/// Compares the blocks that would be read in another place, with the redirect map `after`, for
/// every snapshot that has them from before.
///
/// # Errors
/// [`VolumeError::Contradicts`] of the first that would have other bytes.
pub(crate) fn check_content(
    store: &Store,
    (before, after): (&Redirects, &Redirects),
    snapshots: &[SnapshotEntry],
    lineage: &Lineage,
) -> Result<(), VolumeError> {
    let moved = after.each().filter(|(vbn, slot)| before.get(*vbn) != Some(*slot));
    let home = before.each().filter(|(vbn, _)| after.get(*vbn).is_none());
    let mut moved: Vec<Vbn> = moved.chain(home).map(|(vbn, _)| vbn).collect();
    moved.sort_unstable();
    let mut suspects: BTreeMap<Vbn, Vec<&SnapshotEntry>> = BTreeMap::new();
    let mut without_map = HashSet::new();
    if moved.is_empty() {
        return Ok(());
    }
    for entry in snapshots {
        // A map that is here is read as before.
        let redirects = if lineage.0.contains_key(&entry.id) { after } else { before };
        let shows = match (Maps { store, redirects }).holds(&entry.root, &moved) {
            Ok(shows) => shows,
            // The content of a damaged map is unknown: the trees decide.
            Err(reason) if reason.is_of_a_block() => {
                without_map.insert(entry.id);
                vec![true; moved.len()]
            }
            Err(reason) => return Err(reason),
        };
        for (vbn, _) in moved.iter().zip(shows).filter(|(_, shows)| *shows) {
            if lineage.is_from_here(entry.id, *vbn) {
                suspects.entry(*vbn).or_default().push(entry);
            }
        }
    }
    let vbns: Vec<Vbn> = suspects.keys().copied().collect();
    let mut differing: BTreeMap<SnapshotId, (&SnapshotEntry, Vec<Replaced>)> = BTreeMap::new();
    for chunk in vbns.chunks(crate::read::tree::BATCH) {
        let places = store.read_numbers(chunk, before).into_iter().zip(store.read_numbers(chunk, after));
        for (vbn, (here, arrived)) in chunk.iter().zip(places) {
            let arrived = arrived?;
            if here.as_ref().is_ok_and(|here| here[..] == arrived[..]) {
                continue;
            }
            for entry in suspects.get(vbn).into_iter().flatten() {
                let replaced = Replaced::of(*vbn, &here, &arrived);
                differing.entry(entry.id).or_insert_with(|| (entry, Vec::new())).1.push(replaced);
            }
        }
    }
    differing.into_values().try_for_each(|(entry, replaced)| {
        only_damaged(store, before, entry, &replaced, without_map.contains(&entry.id))
    })
}

/// A block of a snapshot that would have other bytes.
struct Replaced {
    vbn: Vbn,
    /// `None` if it can't be read.
    here: Option<Checksum>,
    arrived: Checksum,
}

impl Replaced {
    fn of(vbn: Vbn, here: &Result<Block, DeviceError>, arrived: &Block) -> Self {
        let here = here.as_ref().ok().map(|block| Checksum::of(&block[..]));
        Self { vbn, here, arrived: Checksum::of(&arrived[..]) }
    }
}

/// Whether all that is replaced is damaged here, and gets the checksum that the snapshot's pointers
/// name. `has_no_map`: it is not known that the snapshot shows them.
fn only_damaged(
    store: &Store,
    redirects: &Redirects,
    entry: &SnapshotEntry,
    replaced: &[Replaced],
    has_no_map: bool,
) -> Result<(), VolumeError> {
    let wanted: HashSet<Vbn> = replaced.iter().map(|block| block.vbn).collect();
    let mut named: HashMap<Vbn, Checksum> = HashMap::new();
    let rooted = Rooted { root: &entry.root, redirects };
    // Blocks below an unreadable node are unknown, and stay as they are.
    past_damage(store, rooted, &mut |pointer| {
        if wanted.contains(&pointer.vbn) {
            named.insert(pointer.vbn, pointer.checksum);
        }
        true
    });
    let may_be = |block: &Replaced| match named.get(&block.vbn) {
        Some(named) => *named == block.arrived && block.here != Some(*named),
        None => has_no_map,
    };
    match replaced.iter().find(|block| !may_be(block)) {
        None => Ok(()),
        Some(block) => {
            tracing::error!(
                vbn = block.vbn.0,
                snapshot = entry.name,
                "a block of a snapshot here arrived with other bytes: its source can't be trusted"
            );
            Err(VolumeError::Contradicts(Contradiction::Content(entry.id)))
        }
    }
}
