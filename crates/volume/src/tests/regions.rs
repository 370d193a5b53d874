//! The blocks of a root in pieces, against a model that reads whole trees: the pieces that a scrub
//! reads and that two sides of a mirror compare.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use cairn_base::{Checksum, Rng, SnapshotId, Vbn};
use cairn_format::{BlockPointer, FANOUT};

use super::*;
use crate::known_files::{ACTIVE_MAP, INODE_FILE};

const BLOCKS: u64 = 4096;
/// Blocks of a file: its tree has three levels.
const LENGTH: u64 = FANOUT * FANOUT * 2;

/// The place of a block in the order: tree, first block of file, and the higher level first.
type InOrder = (u64, u64, Reverse<u8>);
/// A block as a region has it.
type Found = (InOrder, Vbn, Checksum);
/// Each block of a root.
type Model = BTreeMap<InOrder, BlockPointer>;

fn offset(vbn: u64) -> u64 {
    (cairn_format::layout::space_start(BLOCKS) + vbn) * 4096
}

/// Everything that a root reaches.
fn whole(volume: &Arc<Volume>, root: SnapshotId) -> Model {
    let mut model = Model::new();
    if root.0 == u64::MAX {
        return model;
    }
    let image = volume.image((root.0 != 0).then_some(root)).expect("it is there");
    let mut trees = vec![(0, ACTIVE_MAP, image.root().active_map), (1, INODE_FILE, image.root().inode_file)];
    let inodes = image.inodes().expect("they can be read");
    trees.extend(inodes.iter().map(|inode| (inode.id.0 + 2, inode.id, inode.tree)));
    for (number, file, tree) in trees {
        volume.tree(image.committed(), file, tree).walk(
            &mut |pointer, level, at| {
                model.insert((number, at, Reverse(level)), *pointer);
                true
            },
            &mut |error| panic!("{error}"),
        );
    }
    model
}

/// The blocks of one that the other lacks in the same place.
fn only(root: &Model, base: &Model) -> Model {
    root.iter().filter(|(place, pointer)| base.get(place) != Some(pointer)).map(|(a, b)| (*a, *b)).collect()
}

fn place_of(piece: &Piece) -> InOrder {
    let (file, at, level) = match piece.place {
        Place::Data { file, lba } => (file, lba.0, 0),
        Place::Node(node) => (node.file, node.index * FANOUT.pow(node.level.into()), node.level),
        Place::Unknown => panic!("{piece:?} has no place"),
    };
    let tree = match file {
        ACTIVE_MAP => 0,
        INODE_FILE => 1,
        file => file.0 + 2,
    };
    (tree, at, Reverse(level))
}

fn pieces(model: &Model) -> Vec<Found> {
    model.iter().map(|(place, pointer)| (*place, pointer.vbn, pointer.checksum)).collect()
}

fn found(region: &Region) -> Vec<Found> {
    region.pieces.iter().map(|piece| (place_of(piece), piece.vbn, piece.checksum)).collect()
}

/// Files of several heights that grow, shrink and go, and the snapshots made of them.
fn lived_in(seed: u64) -> (Arc<FaultDevice>, Arc<Volume>, Vec<SnapshotId>) {
    let mut rng = Rng::new(seed);
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let mut files = vec![(file(&volume, LENGTH), LENGTH)];
    let mut snapshots = Vec::new();
    for step in 0..60 {
        let which = rng.below(files.len() as u64) as usize;
        let (id, length) = files[which];
        match rng.below(12) {
            0..=4 => {
                let near =
                    [0, FANOUT - 3, FANOUT * 7, FANOUT * FANOUT - 4, LENGTH - 20][rng.below(5) as usize];
                let first = near.min(length - 1);
                write(&volume, id, first, (1 + rng.below(15)).min(length - first), step * 10_000)
                    .expect("there is room");
            }
            5 => volume.punch(id, Lba(rng.below(length)), 1).expect("it is punched"),
            6 if files.len() < 40 => {
                let length = [1, 5, FANOUT, FANOUT + 1, 3 * FANOUT, LENGTH][rng.below(6) as usize];
                // Some numbers are of files that never came.
                volume.state.lock().next_file += rng.below(40);
                files.push((file(&volume, length), length));
            }
            7 => {
                let length = [1, FANOUT, FANOUT + 5, LENGTH][rng.below(4) as usize];
                volume.compound().resize(id, length * 4096).expect("there is room");
                files[which].1 = length;
            }
            8 if files.len() > 1 => {
                volume.compound().remove(id).expect("it is removed");
                files.remove(which);
                volume.background(std::time::Duration::ZERO).expect("it works");
            }
            9 | 10 => drop(volume.consistency_point().expect("it commits")),
            _ => snapshots.push(volume.create_snapshot(&format!("s{step}")).expect("there is room").id),
        }
    }
    volume.consistency_point().expect("it commits");
    assert_sound(&volume);
    (device, volume, snapshots)
}

/// A random root and base; `None` is no base.
fn any_part(rng: &mut Rng, snapshots: &[SnapshotId]) -> (Part, SnapshotId) {
    let mut roots = vec![SnapshotId(0)];
    roots.extend(snapshots);
    let root = roots[rng.below(roots.len() as u64) as usize];
    let base = snapshots.get(rng.below(snapshots.len() as u64 + 1) as usize).copied();
    (Part { root, base: base.unwrap_or(SnapshotId(0)) }, base.unwrap_or(SnapshotId(u64::MAX)))
}

#[test]
fn regions_put_together_are_all_that_one_root_has_and_another_has_not_in_one_order() {
    let mut steps = 0;
    for seed in 0..25 {
        let (_device, volume, snapshots) = lived_in(seed);
        let mut rng = Rng::new(seed);
        for _ in 0..8 {
            let (part, base) = any_part(&mut rng, &snapshots);
            let expected = pieces(&only(&whole(&volume, part.root), &whole(&volume, base)));
            let note = format!("seed {seed}, {part:?}");
            let region = |from, until| volume.region(part, from, until, Look::Nothing).expect("it is there");
            let all = region(Position::START, Until::Blocks(u64::MAX));
            assert_eq!(found(&all), expected, "{note}");
            assert_eq!((all.next, all.read, all.incomplete), (None, 0, false), "{note}");
            // By steps of all kinds.
            let (mut from, mut got) = (Position::START, Vec::new());
            loop {
                let blocks = 1 + rng.below(20);
                let ahead = expected
                    .get(got.len() + rng.below(25) as usize)
                    .map_or((u64::MAX, 0), |next| (next.0.0, next.0.1));
                let end = Position::from_numbers((ahead.0, ahead.1 + rng.below(2))).max(from);
                let until = match rng.below(3) {
                    0 => Until::Blocks(blocks),
                    1 => Until::Position(end),
                    _ => Until::First(end, blocks),
                };
                let some = region(from, until);
                let here: Vec<_> = found(&some);
                let next = some.next.map(Position::to_numbers);
                let ends_at = expected.get(got.len() + here.len()).map(|next| (next.0.0, next.0.1));
                assert_eq!(next, ends_at, "{note}: {until:?} from {from:?}");
                let is_before =
                    |end: Position| here.iter().all(|piece| (piece.0.0, piece.0.1) < end.to_numbers());
                // Everything that begins at one block comes together: a block and the nodes of
                // which it is the first.
                let is_full = |blocks: u64| here.len() as u64 >= blocks;
                let is_short = |blocks: u64| (here.len() as u64) < blocks + 4;
                let ended = |end: Position| next.is_some_and(|next| next >= end.to_numbers());
                let is_right = match until {
                    Until::Blocks(blocks) => is_short(blocks) && (next.is_none() || is_full(blocks)),
                    Until::Position(end) => is_before(end) && (next.is_none() || ended(end)),
                    Until::First(end, blocks) => {
                        is_before(end)
                            && is_short(blocks)
                            && (next.is_none() || is_full(blocks) || ended(end))
                    }
                };
                assert!(is_right, "{note}: {until:?} from {from:?} ends at {next:?} with {here:?}");
                got.extend(here);
                steps += 1;
                match some.next {
                    Some(next) => from = Position::from_numbers(next.to_numbers()),
                    None => break,
                }
            }
            assert_eq!(got, expected, "{note}");
        }
    }
    assert!(steps > 400, "{steps}");
}

#[test]
fn damaged_node_of_either_root_is_told_and_hides_only_what_is_below_it() {
    let (mut hidden, mut more) = (0, 0);
    for seed in 0..12 {
        let (device, volume, snapshots) = lived_in(seed);
        let mut rng = Rng::new(seed);
        for _ in 0..12 {
            let (part, base) = any_part(&mut rng, &snapshots);
            let (root, base) = (whole(&volume, part.root), whole(&volume, base));
            let expected = only(&root, &base);
            if expected.is_empty() {
                continue;
            }
            let hurt = if rng.one_in(2) { &root } else { &base };
            let leads = |place: &&InOrder| place.2.0 > 0 || place.0 == 1;
            let nodes: Vec<_> = hurt.keys().filter(leads).collect();
            let Some(place) = nodes.get(rng.below(nodes.len().max(1) as u64) as usize) else { continue };
            let vbn = hurt[place].vbn.0;
            let mut right = vec![0; 4096];
            device.read_into(offset(vbn), &mut right).expect("it is there");
            device.corrupt(offset(vbn), 4096, &mut rng);
            volume.store.forget();
            let region = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Nothing);
            let region = region.expect("it is there");
            let (got, expected) = (found(&region), pieces(&expected));
            let note = format!("seed {seed}, {part:?}, {place:?} is damaged");
            assert!(got.is_sorted_by_key(|piece| piece.0), "{note}: out of order");
            assert!(
                got.iter().all(|piece| root.get(&piece.0).is_some_and(|own| own.vbn == piece.1)),
                "{note}"
            );
            assert!(got.contains(&expected[0]), "{note}: what is above it is there");
            if got != expected {
                assert!(region.incomplete, "{note}: nobody is told");
                hidden += usize::from(expected.iter().any(|piece| !got.contains(piece)));
                more += usize::from(got.iter().any(|piece| !expected.contains(piece)));
            }
            let files =
                volume.region(part, Position::from_numbers((2, 0)), Until::Blocks(u64::MAX), Look::Nothing);
            let files = files.expect("it is there");
            let of_files: Vec<Found> = expected.iter().filter(|piece| piece.0.0 >= 2).copied().collect();
            assert!(
                files.incomplete || found(&files) == of_files,
                "{note}: nobody is told from the files on"
            );
            // Blocks on no path to a difference do not matter.
            let both = root.values().any(|own| own.vbn.0 == vbn) && base.values().any(|own| own.vbn.0 == vbn);
            assert!(!(both && region.incomplete), "{note}: both have it");
            device.write_from(offset(vbn), &right).expect("it is there");
            volume.store.forget();
            let again = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Nothing);
            let again = again.expect("it is there");
            assert_eq!((found(&again), again.incomplete), (expected, false), "{note}, and mended");
        }
    }
    assert!(hidden > 10 && more > 3, "{hidden} {more}");
}

#[test]
fn damaged_node_of_a_base_that_is_taller_is_told() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    // A file that grows: its tree gets taller, and never lower again. An earlier snapshot is
    // compared with a later one.
    let id = file(&volume, 8);
    write(&volume, id, 0, 8, 400).expect("there is room");
    let short = volume.create_snapshot("short").expect("it is made").id;
    volume.compound().resize(id, 3 * FANOUT * 4096).expect("it grows");
    write(&volume, id, 3, 1, 300).expect("there is room");
    write(&volume, id, FANOUT, 4, 300).expect("there is room");
    let middle = volume.create_snapshot("middle").expect("it is made").id;
    volume.compound().resize(id, LENGTH * 4096).expect("it grows");
    write(&volume, id, 2, 1, 100).expect("there is room");
    write(&volume, id, FANOUT * FANOUT, 4, 200).expect("there is room");
    let tall = volume.create_snapshot("tall").expect("it is made").id;
    let tree = id.0 + 2;
    let (mut told, mut hidden) = (0, 0);
    for (root, base) in [(middle, tall), (short, tall), (short, middle), (tall, short), (middle, short)] {
        let part = Part { root, base };
        let (of_root, of_base) = (whole(&volume, root), whole(&volume, base));
        let expected = pieces(&only(&of_root, &of_base));
        let all = || volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Nothing);
        let sound = all().expect("it is there");
        assert_eq!((found(&sound), sound.incomplete), (expected.clone(), false), "{part:?}");
        let nodes = of_base.iter().filter(|(place, _)| place.0 == tree && place.2.0 > 0);
        for (place, pointer) in nodes.filter(|(_, own)| !of_root.values().any(|other| other.vbn == own.vbn)) {
            let mut right = vec![0; 4096];
            device.read_into(offset(pointer.vbn.0), &mut right).expect("it is there");
            device.corrupt(offset(pointer.vbn.0), 4096, &mut Rng::new(1));
            volume.store.forget();
            let region = all().expect("it is there");
            let note = format!("{part:?}, {place:?} of the base is damaged");
            // The result may cover more than necessary, and reports it; never less.
            let got = found(&region);
            assert!(expected.iter().all(|piece| got.contains(piece)), "{note}");
            assert!(region.incomplete || got == expected, "{note}: nobody is told");
            // A path to the common part is the path to the compared blocks.
            let leads = place.1 == 0;
            assert_eq!(region.incomplete, leads, "{note}");
            told += u64::from(region.incomplete);
            hidden += u64::from(got != expected);
            device.write_from(offset(pointer.vbn.0), &right).expect("it is there");
            volume.store.forget();
        }
    }
    assert!(told >= 6 && hidden >= 3, "{told} {hidden}");
}

#[test]
fn what_is_looked_at_is_read_and_what_is_not_counts_as_sound() {
    let (device, volume, _) = lived_in(3);
    let part = Part { root: SnapshotId(0), base: SnapshotId(0) };
    let look =
        |look| volume.region(part, Position::START, Until::Blocks(u64::MAX), look).expect("it is there");
    let expected = whole(&volume, SnapshotId(0));
    let is_structure = |place: &InOrder| place.2.0 > 0 || place.0 < 2;
    let structures = expected.keys().filter(|place| is_structure(place)).count();
    let reads = [Look::Nothing, Look::Structures, Look::Everything].map(|how| look(how).read);
    assert_eq!(reads, [0, structures as u64, expected.len() as u64]);
    let digest = look(Look::Nothing).digest();
    assert_eq!(look(Look::Everything).digest(), digest);
    let data = expected.iter().find(|(place, _)| place.0 > 1 && place.2.0 == 0).expect("there is data");
    let map = expected.iter().find(|(place, _)| place.0 == 0 && place.2.0 == 0).expect("there is a map");
    for (block, structure) in [(data, false), (map, true)] {
        let vbn = block.1.vbn;
        let mut right = vec![0; 4096];
        device.read_into(offset(vbn.0), &mut right).expect("it is there");
        device.corrupt(offset(vbn.0), 4096, &mut Rng::new(1));
        volume.store.forget();
        for (how, told) in [(Look::Nothing, false), (Look::Structures, structure), (Look::Everything, true)] {
            let region = look(how);
            let unsound: Vec<Vbn> =
                region.pieces.iter().filter(|piece| !piece.sound).map(|piece| piece.vbn).collect();
            assert_eq!(unsound, if told { vec![vbn] } else { Vec::new() }, "{how:?}");
            assert_eq!(region.digest() == digest, !told, "{how:?}");
        }
        device.write_from(offset(vbn.0), &right).expect("it is there");
    }
}

#[test]
fn regions_with_one_digest_have_the_same_blocks_in_the_same_places() {
    let piece = |vbn: u64, content: &[u8]| Piece {
        vbn: Vbn(vbn),
        checksum: Checksum::of(content),
        place: Place::Unknown,
        sound: true,
    };
    let digest = |pieces: &[Piece]| Region { pieces: pieces.to_vec(), ..Region::default() }.digest();
    let (a, b) = (piece(5, b"a"), piece(6, b"b"));
    let regions: [&[Piece]; 8] = [
        &[],
        &[a],
        &[a, b],
        &[b, a],
        &[a, Piece { sound: false, ..b }],
        &[Piece { sound: false, ..a }, b],
        &[a, Piece { vbn: Vbn(7), ..b }],
        &[a, Piece { checksum: Checksum::of(b"c"), ..b }],
    ];
    for (at, one) in regions.iter().enumerate() {
        for (other_at, other) in regions.iter().enumerate() {
            assert_eq!(digest(one) == digest(other), at == other_at, "{one:?}, {other:?}");
        }
    }
}

#[test]
fn nodes_of_a_region_are_read_many_at_a_time_and_none_is_called_damaged() {
    const LEAVES: u64 = 100;
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let options = OpenOptions { cache_bytes: 16 << 20, clock };
    let volume = Volume::open(device.clone(), options).expect("it opens");
    let id = file(&volume, LENGTH);
    let places = |step: usize| (0..LEAVES).step_by(step).flat_map(|n| [n, FANOUT + n]).map(|n| n * FANOUT);
    places(1).for_each(|lba| write(&volume, id, lba, 1, 1000).expect("there is room"));
    let base = volume.create_snapshot("base").expect("it is made").id;
    places(3).for_each(|lba| write(&volume, id, lba, 1, 2000).expect("there is room"));
    volume.consistency_point().expect("it commits");
    for base in [SnapshotId(0), base] {
        let part = Part { root: SnapshotId(0), base };
        let before = if base.0 == 0 { Model::new() } else { whole(&volume, base) };
        let expected = pieces(&only(&whole(&volume, SnapshotId(0)), &before));
        volume.store.forget();
        device.take_read_batches();
        let region = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Nothing);
        let batches = device.take_read_batches();
        assert_eq!(found(&region.expect("it is there")), expected);
        assert_eq!(volume.damaged(), [], "{part:?}");
        if base.0 == 0 {
            assert!(batches < LEAVES / 2, "{batches} times for {} leaves", 2 * LEAVES);
        }
    }
}

#[test]
fn damage_before_the_place_where_a_region_begins_is_not_told() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let id = file(&volume, 5 * FANOUT);
    (0..5).for_each(|leaf| write(&volume, id, leaf * FANOUT, 2, 1000).expect("there is room"));
    volume.consistency_point().expect("it commits");
    let model = whole(&volume, SnapshotId(0));
    let tree = id.0 + 2;
    let hurt = model[&(tree, FANOUT, Reverse(1))].vbn;
    device.corrupt(offset(hurt.0), 4096, &mut Rng::new(1));
    for from in [FANOUT, FANOUT + 1, 2 * FANOUT - 1, 2 * FANOUT, 2 * FANOUT + 1, 3 * FANOUT, 5 * FANOUT] {
        volume.store.forget();
        let part = Part { root: SnapshotId(0), base: SnapshotId(0) };
        let begin = Position::from_numbers((tree, from));
        let region = volume.region(part, begin, Until::Blocks(u64::MAX), Look::Nothing);
        let region = region.expect("it is there");
        let is_behind = from >= 2 * FANOUT;
        assert_eq!(region.incomplete, !is_behind, "from block {from}");
        let expected = pieces(&model).into_iter().filter(|piece| (piece.0.0, piece.0.1) >= (tree, from));
        assert!(!is_behind || found(&region) == expected.collect::<Vec<_>>(), "from block {from}");
    }
    // After all that the tree could have.
    device.corrupt(offset(model[&(tree, 0, Reverse(2))].vbn.0), 4096, &mut Rng::new(1));
    for (from, is_told) in [(FANOUT * FANOUT - 1, true), (FANOUT * FANOUT, false)] {
        volume.store.forget();
        let part = Part { root: SnapshotId(0), base: SnapshotId(0) };
        let begin = Position::from_numbers((tree, from));
        let region = volume.region(part, begin, Until::Blocks(u64::MAX), Look::Nothing);
        assert_eq!(region.expect("it is there").incomplete, is_told, "from block {from}");
    }
}

#[test]
fn damage_in_two_places_is_told_as_in_one_of_them() {
    let mut told = [0; 3];
    for seed in 0..10 {
        let (device, volume, snapshots) = lived_in(seed);
        let mut rng = Rng::new(seed);
        for _ in 0..12 {
            let (part, base) = any_part(&mut rng, &snapshots);
            let (root, base) = (whole(&volume, part.root), whole(&volume, base));
            let leads = |place: &InOrder| place.2.0 > 0 || place.0 == 1;
            let of = |model: Model| -> Vec<(InOrder, u64)> {
                let nodes = model.into_iter().filter(|(place, _)| leads(place));
                nodes.map(|(place, pointer)| (place, pointer.vbn.0)).collect()
            };
            let (news, olds) = (of(only(&root, &base)), of(only(&base, &root)));
            // Blocks of inodes of the base; nodes of it in one tree; any two.
            let kind = rng.below(3) as usize;
            let candidates: Vec<u64> = match kind {
                0 => olds.iter().filter(|(place, _)| place.2.0 == 0).map(|(_, vbn)| *vbn).collect(),
                1 => {
                    let Some((first, _)) = olds.get(rng.below(olds.len().max(1) as u64) as usize) else {
                        continue;
                    };
                    olds.iter().filter(|(place, _)| place.0 == first.0).map(|(_, vbn)| *vbn).collect()
                }
                _ => olds.iter().chain(&news).map(|(_, vbn)| *vbn).collect(),
            };
            if candidates.len() < 2 {
                continue;
            }
            let any = |rng: &mut Rng| candidates[rng.below(candidates.len() as u64) as usize];
            let (one, other) = (any(&mut rng), any(&mut rng));
            if one == other {
                continue;
            }
            let mut is_told = |hurt: &[u64]| {
                let rights: Vec<Vec<u8>> = hurt
                    .iter()
                    .map(|vbn| {
                        let mut right = vec![0; 4096];
                        device.read_into(offset(*vbn), &mut right).expect("it is there");
                        device.corrupt(offset(*vbn), 4096, &mut rng);
                        right
                    })
                    .collect();
                volume.store.forget();
                let region = volume.region(part, Position::START, Until::Blocks(u64::MAX), Look::Nothing);
                for (vbn, right) in hurt.iter().zip(rights) {
                    device.write_from(offset(*vbn), &right).expect("it is there");
                }
                region.expect("it is there").incomplete
            };
            let alone = [is_told(&[one]), is_told(&[other])];
            let together = is_told(&[one, other]);
            assert_eq!(
                together,
                alone[0] || alone[1],
                "seed {seed}, {part:?}: {alone:?} of {one} and {other}"
            );
            told[kind] += usize::from(alone == [true, true]);
        }
    }
    assert!(told.iter().all(|told| *told >= 3), "{told:?}");
}
