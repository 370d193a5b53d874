//! A source's claims about the descent of its snapshots are believed only as far as they can be
//! true.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{Rng, SnapshotId, Vbn};
use cairn_format::SnapshotEntry;

use super::*;
use crate::commit::space::Redirects;
use crate::mirror::descent;
use crate::read::compare::Maps;

const BLOCKS: u64 = 1024;

/// Four snapshots in a row, each with blocks of its own.
fn source() -> (Arc<Volume>, FileId, Vec<Snapshot>) {
    let (_device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    let row = (0..4).map(|number| {
        write(&source, lun, number * 10, 10, 1000 * number).expect("there is room");
        source.create_snapshot(&format!("s{number}")).expect("it is made")
    });
    let row = row.collect();
    (source, lun, row)
}

fn destination(source: &Volume) -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Destination)));
    let options = FormatOptions { id: source.id(), blocks: BLOCKS, role: Role::Destination };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
    open(&device)
}

/// Sends a snapshot whole, with entries changed by `lie`.
fn send(
    source: &Arc<Volume>,
    to: &Arc<Volume>,
    target: SnapshotId,
    lie: impl Fn(&mut Vec<SnapshotEntry>),
) -> Result<(), VolumeError> {
    let mut changes = source.changed_blocks(&[], target).expect("they are compared");
    let mut receiver = to.receive().expect("nothing else is received");
    for run in &changes.runs {
        let blocks = source.read_blocks(&[*run]).expect("they can be read");
        receiver.write(run.0, blocks).expect("there is room");
    }
    lie(&mut changes.snapshots);
    receiver.commit(ReceivedImage { target, snapshots: changes.snapshots })
}

fn with_parent(child: SnapshotId, parent: SnapshotId) -> impl Fn(&mut Vec<SnapshotEntry>) {
    move |entries| {
        for entry in entries.iter_mut().filter(|entry| entry.id == child) {
            entry.parent = parent;
        }
    }
}

fn is_refused(outcome: Result<(), VolumeError>) {
    assert!(
        matches!(&outcome, Err(VolumeError::Refused(why)) if why.contains("descend")),
        "an invented descent: {outcome:?}"
    );
}

#[test]
fn invented_descent_of_snapshots_is_refused_and_a_true_one_is_not() {
    let (source, lun, row) = source();
    let ids: Vec<SnapshotId> = row.iter().map(|snapshot| snapshot.id).collect();
    let to = destination(&source);
    // All are new: blocks that the third brought are in the fourth, but no descent connects the
    // two.
    is_refused(send(&source, &to, ids[3], with_parent(ids[3], ids[0])));
    is_refused(send(&source, &to, ids[3], with_parent(ids[3], SnapshotId(77))));
    is_refused(send(&source, &to, ids[3], with_parent(ids[1], ids[1])));
    assert_eq!(to.snapshots().len(), 0, "the volume shows what it showed");
    send(&source, &to, ids[2], |_| {}).expect("the truth");
    // One is new, and shows blocks that its invented parent's child brought.
    is_refused(send(&source, &to, ids[3], with_parent(ids[3], ids[0])));
    send(&source, &to, ids[3], |_| {}).expect("the truth");
    // All but the last are known, and one is claimed to have another past.
    let last = source.create_snapshot("last").expect("it is made");
    is_refused(send(&source, &to, last.id, with_parent(ids[3], ids[0])));
    send(&source, &to, last.id, |_| {}).expect("the truth");
    source.delete_snapshots(&[last.id]).expect("it is deleted");

    // A branch; its common ancestor is deleted, and then siblings show the blocks that it brought.
    write(&source, lun, 50, 10, 5000).expect("there is room");
    let kept = source.rollback(ids[3]).expect("it is rolled back");
    send(&source, &to, kept.id, |_| {}).expect("the truth after a rollback");
    source.delete_snapshots(&[ids[1], ids[3]]).expect("they are deleted");
    write(&source, lun, 60, 10, 6000).expect("there is room");
    let branch = source.create_snapshot("branch").expect("it is made");
    is_refused(send(&source, &to, branch.id, with_parent(branch.id, ids[0])));
    send(&source, &to, branch.id, |_| {}).expect("the truth after deletions");
    to.failover().expect("it fails over");
    to.delete_snapshots(&[ids[2], branch.id]).expect("they are deleted");
    assert_eq!(read(&to, lun, 60, 10), (6060..6070).collect::<Vec<_>>());
    assert_sound(&to);
}

/// The blocks that each snapshot shows.
type Shown = BTreeMap<SnapshotId, BTreeSet<u64>>;

fn shown(maps: Maps<'_>, entries: &[SnapshotEntry]) -> Shown {
    let blocks = |entry: &SnapshotEntry| -> BTreeSet<u64> {
        let runs = maps.only_in(&entry.root, &[]).expect("its map can be read");
        runs.into_iter().flat_map(descent::each).map(|vbn| vbn.0).collect()
    };
    entries.iter().map(|entry| (entry.id, blocks(entry))).collect()
}

/// Whether each block was created in one place: all snapshots that show it, while their parent does
/// not, have the same parent.
fn is_possible(shown: &Shown, entries: &[SnapshotEntry]) -> bool {
    let nothing = BTreeSet::new();
    let mut places: BTreeMap<u64, SnapshotId> = BTreeMap::new();
    entries.iter().all(|entry| {
        let above = if entry.parent.0 == 0 { &nothing } else { &shown[&entry.parent] };
        let mut tops = shown[&entry.id].difference(above);
        tops.all(|vbn| *places.entry(*vbn).or_insert(entry.parent) == entry.parent)
    })
}

/// Those of the snapshots that are left when all others are deleted.
fn left(entries: &[SnapshotEntry], is_left: impl Fn(SnapshotId) -> bool) -> Vec<SnapshotEntry> {
    let parents: BTreeMap<SnapshotId, SnapshotId> =
        entries.iter().map(|entry| (entry.id, entry.parent)).collect();
    let nearest = |mut id: SnapshotId| {
        while id.0 != 0 && !is_left(id) {
            id = parents[&id];
        }
        id
    };
    let left = entries.iter().filter(|entry| is_left(entry.id));
    left.map(|entry| SnapshotEntry { parent: nearest(entry.parent), ..entry.clone() }).collect()
}

#[test]
fn descent_is_believed_where_each_block_came_into_the_world_in_one_place_and_nowhere_else() {
    let (mut believed, mut refused, mut outside) = (0, 0, 0);
    for seed in 0..25 {
        let mut rng = Rng::new(seed);
        let (_device, source) = fresh(BLOCKS);
        let lun = file(&source, 100);
        for number in 0..10 {
            write(&source, lun, rng.below(100), 1, 1000 * number).expect("there is room");
            let made = source.create_snapshot(&format!("s{number}")).expect("it is made");
            if rng.one_in(3) {
                let ids: Vec<SnapshotId> = source.snapshots().iter().map(|one| one.id).collect();
                let back = ids[rng.below(ids.len() as u64) as usize];
                if back != made.id {
                    source.rollback(back).expect("it is rolled back");
                }
            }
        }
        let truth = source.snapshot_entries();
        let redirects = Redirects::default();
        let maps = Maps { store: &source.store, redirects: &redirects };
        let shown = shown(maps, &truth);
        for round in 0..25 {
            let mut some = |one_in: u64| -> BTreeSet<SnapshotId> {
                truth.iter().filter(|_| !rng.one_in(one_in)).map(|entry| entry.id).collect()
            };
            let (known, sent) = (some(2), some(4));
            let mut here = left(&truth, |id| known.contains(&id));
            let mut image = left(&truth, |id| sent.contains(&id));
            if image.is_empty() {
                continue;
            }
            assert!(is_possible(&shown, &image), "seed {seed}: the truth");
            if !rng.one_in(3) {
                let at = rng.below(image.len() as u64) as usize;
                let above = rng.below(at as u64 + 1) as usize;
                image[at].parent = if above == at { SnapshotId(0) } else { image[above].id };
            }
            // Other snapshots that got the same numbers here: one, or all of them, in the descent
            // that the source claims.
            match rng.below(6) {
                0 if !here.is_empty() => {
                    let at = rng.below(here.len() as u64) as usize;
                    here[at].root.generation.0 += 1000;
                }
                1 => {
                    here = image.clone();
                    here.iter_mut().for_each(|entry| entry.root.generation.0 += 1000);
                }
                _ => {}
            }
            let end =
                image.iter().filter_map(|entry| shown[&entry.id].last()).max().map_or(1, |last| last + 1);
            let in_use = |run: Run| -> Vec<Vbn> {
                let is_here = |vbn: &Vbn| here.iter().any(|entry| shown[&entry.id].contains(&vbn.0));
                descent::each(run).filter(is_here).collect()
            };
            let outcome = descent::check(maps, &here, &image, (end, &in_use));
            let note = format!("seed {seed}, round {round}: {here:?} {image:?}");
            if is_possible(&shown, &image) {
                outcome.unwrap_or_else(|error| panic!("{error}: {note}"));
                believed += 1;
            } else {
                assert!(matches!(outcome, Err(VolumeError::Refused(_))), "{note}");
                refused += 1;
            }
            // All are new, and one shows a block that no root can have.
            let past = descent::check(maps, &[], &image, (end - 1, &|_| Vec::new()));
            assert!(matches!(past, Err(VolumeError::Refused(_))), "{note}");
            outside += 1;
        }
    }
    assert!(believed > 100 && refused > 50 && outside > 100, "{believed} {refused} {outside}");
}

/// Five snapshots in a row; the maps of some can't be read.
fn hurt(which: &[usize]) -> (Arc<Volume>, Vec<SnapshotEntry>, Shown) {
    let (device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    for number in 0..5 {
        write(&source, lun, number * 10, 10, 1000 * number).expect("there is room");
        source.create_snapshot(&format!("s{number}")).expect("it is made");
    }
    let entries = source.snapshot_entries();
    let redirects = Redirects::default();
    let shown = shown(Maps { store: &source.store, redirects: &redirects }, &entries);
    for at in which {
        let place = cairn_format::layout::space_start(BLOCKS) + entries[*at].root.active_map.pointer.vbn.0;
        device.write_from(place * 4096, &[9; 4096]).expect("it is there");
    }
    source.store.forget();
    (source, entries, shown)
}

fn looked_at(
    source: &Volume,
    shown: &Shown,
    here: &[SnapshotEntry],
    image: &[SnapshotEntry],
) -> Result<(), VolumeError> {
    let redirects = Redirects::default();
    let maps = Maps { store: &source.store, redirects: &redirects };
    let in_use = |run: Run| -> Vec<Vbn> {
        let is_here = |vbn: &Vbn| here.iter().any(|entry| shown[&entry.id].contains(&vbn.0));
        descent::each(run).filter(is_here).collect()
    };
    descent::check(maps, here, image, (BLOCKS, &in_use))
}

#[test]
fn damaged_map_of_a_snapshot_here_is_no_reason_to_refuse_what_arrives() {
    // The first is not an ancestor of any new one; the fourth is.
    for which in [&[0][..], &[3], &[0, 1, 2, 3]] {
        let (source, entries, shown) = hurt(which);
        let (known, newest) = (&entries[..4], entries[4].id);
        looked_at(&source, &shown, known, &entries).expect("the truth");
        // The source has deleted some of those that are here.
        for gone in [1, 2] {
            let image = left(&entries, |id| id != entries[gone].id);
            looked_at(&source, &shown, known, &image).expect("the truth");
        }
        let image = left(&entries, |id| id == entries[3].id || id == newest);
        looked_at(&source, &shown, &left(known, |id| id == entries[3].id), &image).expect("the truth");
    }
}

#[test]
fn descent_of_new_snapshots_that_cannot_be_looked_at_is_not_believed() {
    let (source, entries, shown) = hurt(&[2]);
    let is_damaged = |outcome: Result<(), VolumeError>| {
        assert!(matches!(outcome, Err(VolumeError::Damaged { .. })), "{outcome:?}");
    };
    is_damaged(looked_at(&source, &shown, &[], &entries));
    // Another one that is here does not matter.
    let mut image = entries[..3].to_vec();
    image[1].parent = SnapshotId(0);
    is_damaged(looked_at(&source, &shown, &entries[..1], &image));
}

#[test]
fn sibling_with_the_same_blocks_up_to_the_last_of_the_space_is_believed() {
    let (source, entries, shown) = hurt(&[]);
    let redirects = Redirects::default();
    let maps = Maps { store: &source.store, redirects: &redirects };
    let known = SnapshotEntry { parent: SnapshotId(0), ..entries[4].clone() };
    let new = SnapshotEntry { id: SnapshotId(known.id.0 + 1), ..known.clone() };
    let image = [known.clone(), new];
    let end = shown[&known.id].last().expect("it shows something") + 1;
    let look =
        |space| descent::check(maps, &image[..1], &image, (space, &|run| descent::each(run).collect()));
    for space in [end, end + 1, BLOCKS] {
        look(space).expect("they were made of one that is gone");
    }
    is_refused(look(end - 1));
}

#[test]
fn runs_are_looked_up_in_pieces_that_together_are_all_of_them() {
    let most = descent::PIECE;
    let runs =
        [(5, 3 * most + 7), (1 << 20, most), (9_000_000, 1), (9_000_002, most + 1), (1 << 40, 2 * most)];
    let runs = runs.map(|(first, count)| (Vbn(first), count));
    let mut joined: Vec<Run> = Vec::new();
    for (first, count) in descent::pieces(&runs) {
        assert!((1..=most).contains(&count), "a piece of {count} blocks");
        match joined.last_mut() {
            Some((begin, length)) if begin.0 + *length == first.0 => *length += count,
            _ => joined.push((first, count)),
        }
    }
    assert_eq!(joined, runs);
}
