//! One generation's record of its changes. Its counts match its entries, no place is lost or
//! released twice, the requested room is enough, and its log entries give the content that clients
//! saw.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{Generation, Rng, Vbn};
use cairn_format::{Attributes, BlockPointer, FANOUT, Inode, LogEntry, TreeRef};

use super::*;
use crate::memory::overlay::{Arrival, Flight, Overlay, Seen, Unlogged};
use crate::memory::slots::Slot;

/// Blocks of the files: their trees have three levels.
const LENGTH: u64 = FANOUT * FANOUT * 3;

/// Near the borders of nodes, mostly.
fn place(rng: &mut Rng) -> u64 {
    let near =
        [0, FANOUT - 4, FANOUT * FANOUT - 5, FANOUT * FANOUT * 2 - 2, LENGTH - 30][rng.below(5) as usize];
    if rng.one_in(4) { rng.below(LENGTH - 30) } else { near + rng.below(8) }
}

fn inode(id: FileId, stamp: u32, blocks: u64, removed: bool) -> Inode {
    let attributes = Attributes { uid: stamp, ..Attributes::default() };
    Inode { attributes, ..node(id, blocks, removed) }
}

/// Nodes and blocks of inodes that a commit of these changes rewrites, in trees of `levels` levels;
/// without the first path down the inode file.
fn needed(overlay: &Overlay, levels: u8) -> u64 {
    let mut nodes = BTreeSet::new();
    let mut path = |file: FileId, lba: u64| {
        nodes.extend((1..=levels).map(|level| (file, level, lba / FANOUT.pow(level.into()))));
    };
    for (file, changes) in &overlay.files {
        changes.slots.iter().for_each(|(lba, _)| path(*file, lba));
        for (start, end) in &changes.holes {
            path(*file, *start);
            path(*file, end - 1);
        }
    }
    for (file, inode) in &overlay.inodes {
        if let Some(inode) = inode {
            path(*file, inode.tree.length - 1);
        }
    }
    let files = || overlay.files.keys().chain(overlay.inodes.keys());
    let blocks: BTreeSet<u64> = files().map(|file| file.0 / 32).collect();
    let leaves: BTreeSet<u64> = blocks.iter().map(|block| block / FANOUT).collect();
    let above: BTreeSet<u64> = leaves.iter().map(|leaf| leaf / FANOUT).filter(|index| *index > 0).collect();
    (nodes.len() + blocks.len() + leaves.len() + above.len()) as u64
}

#[test]
fn generation_counts_what_it_has_and_asks_for_room_enough() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut overlay = Overlay::new(Generation(5));
        let (mut given, mut flying) = (0, Vec::new());
        let files = 1 + rng.below(40);
        // Their inodes share a block, or a node, or nothing.
        let apart = [1, 40, 32 * FANOUT + 1, 32 * FANOUT * FANOUT + 1][rng.below(4) as usize];
        for order in 1..120 {
            let file = FileId(1000 + rng.below(files) * apart);
            match rng.below(8) {
                0 => {
                    let count = if rng.one_in(5) { rng.below(LENGTH) } else { rng.below(20) };
                    let first = place(&mut rng);
                    overlay.punch(file, first, (1 + count).min(LENGTH - first), order, true);
                }
                1 => {
                    let limit = 1 + rng.below(8) as usize;
                    for (file, lba) in overlay.next_unplaced(limit, order) {
                        given += 1;
                        assert!(
                            overlay.launch(file, lba, Vbn(given)).is_some(),
                            "seed {seed}: it is unplaced"
                        );
                        flying.push((file, lba, given));
                    }
                }
                2 => {
                    let landed = flying.len() as u64;
                    for (file, lba, vbn) in flying.drain(..rng.below(landed + 1) as usize) {
                        let pointer = BlockPointer { vbn: Vbn(vbn), ..BlockPointer::HOLE };
                        let is_there = |overlay: &Overlay| {
                            let slot = overlay.files[&file].slots.get(lba);
                            matches!(slot, Some(Slot::InFlight { spot, .. }) if spot.vbn.0 == vbn)
                        };
                        let was_there = is_there(&overlay);
                        overlay.land(file, lba, pointer, order, None);
                        assert_eq!(overlay.has_placed(file, lba, Vbn(vbn)), was_there, "seed {seed}");
                        assert!(!overlay.has_placed(file, lba, Vbn(vbn + 1_000_000)), "seed {seed}: another");
                        assert!(!is_there(&overlay));
                    }
                }
                3 => {
                    given += 1;
                    let pointer = BlockPointer { vbn: Vbn(given), ..BlockPointer::HOLE };
                    // A log is replayed before anything is written or in flight.
                    let lba = place(&mut rng);
                    let slot = overlay.files.get(&file).and_then(|changes| changes.slots.get(lba));
                    match slot {
                        None | Some(Slot::Placed(_)) => overlay.replay_write(file, lba, pointer),
                        _ => overlay.abandoned.push(Vbn(given)),
                    }
                }
                4 => overlay.put_inode(inode(file, 1, place(&mut rng) + 1, false), rng.one_in(4), order),
                _ => {
                    let (first, count) = (place(&mut rng), 1 + rng.below(12));
                    overlay.write(
                        file,
                        (first..first + count).map(|lba| Arrival::new(Lba(lba), block(order))).collect(),
                        order,
                    );
                }
            }
            let note = format!("seed {seed}, order {order}");
            let slots =
                || overlay.files.values().flat_map(|changes| changes.slots.iter().map(|(_, slot)| slot));
            let holes: usize = overlay.files.values().map(|changes| changes.holes.len()).sum();
            let changes = (slots().count() + holes) as u64;
            assert_eq!(overlay.changes, changes, "{note}");
            assert_eq!(overlay.weight(), changes + overlay.inodes.len() as u64, "{note}");
            let waiting = slots().filter(|slot| matches!(slot, Slot::Unplaced { .. })).count();
            assert_eq!(overlay.unplaced, waiting as u64, "{note}");
            // Each place that was given is one block's, or given up, once.
            let mut places: Vec<u64> = slots()
                .filter_map(|slot| match slot {
                    Slot::Unplaced { .. } => None,
                    Slot::InFlight { spot, .. } | Slot::Placed(spot) => Some(spot.vbn.0),
                })
                .chain(overlay.abandoned.iter().map(|vbn| vbn.0))
                .collect();
            places.sort_unstable();
            assert_eq!(places, (1..=given).collect::<Vec<_>>(), "{note}");
            let levels = TreeRef::height_for(LENGTH);
            let (asked, need) = (overlay.nodes(levels), needed(&overlay, levels));
            assert!(asked >= need, "{note}: room for {asked} is asked for, and {need} are written");
            // At most a path of its own for each.
            let inodes = overlay.inodes.len() as u64;
            let most = (changes + holes as u64 + inodes) * u64::from(levels)
                + 3 * (overlay.files.len() as u64 + inodes)
                + 1;
            assert!(asked <= most, "{note}: room for {asked} is asked for, of {most}");
        }
    }
}

#[test]
fn block_that_is_written_again_while_it_is_in_flight_stays_the_newer_one_whichever_lands_first() {
    for newer_first in [false, true] {
        let mut overlay = Overlay::new(Generation(5));
        let file = FileId(2);
        let mut flights: Vec<Flight> = Vec::new();
        for order in [1, 2] {
            overlay.write(file, vec![Arrival::new(Lba(3), block(order))], order);
            assert_eq!(overlay.next_unplaced(9, order), [(file, 3)]);
            flights.push(overlay.launch(file, 3, Vbn(order + 9)).expect("it is unplaced"));
        }
        if newer_first {
            flights.reverse();
        }
        for Flight { file, lba, order, pointer, .. } in flights {
            overlay.land(file, lba, pointer, order, None);
            let is_newer = match overlay.files[&file].see(lba) {
                Seen::Block(seen) => seen[..] == block(2)[..],
                Seen::Pointer(pointer) => pointer.vbn == Vbn(11),
                _ => false,
            };
            assert!(is_newer, "newer first: {newer_first}, {order} has landed");
        }
        assert!(overlay.has_placed(file, 3, Vbn(11)));
        assert_eq!(overlay.abandoned, [Vbn(10)]);
    }
}

#[test]
fn each_block_of_a_write_gets_its_place_once_however_the_blocks_lie() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut overlay = Overlay::new(Generation(5));
        let mut expected = BTreeSet::new();
        for order in 1..6 {
            let file = FileId(2 + rng.below(2));
            // Some of the first blocks, in order, as a client may send them; twice in one call,
            // with a hole between, too.
            let lbas: Vec<u64> = (0..40).filter(|_| !rng.one_in(3)).collect();
            let write = |overlay: &mut Overlay| {
                let blocks = lbas.iter().map(|lba| Arrival::new(Lba(*lba), block(*lba)));
                overlay.write(file, blocks.collect(), order);
            };
            write(&mut overlay);
            if rng.one_in(3) {
                overlay.punch(file, 0, 40, order, true);
                expected.retain(|(of, _)| *of != file);
                write(&mut overlay);
            }
            expected.extend(lbas.iter().map(|lba| (file, *lba)));
        }
        let mut given = Vec::new();
        loop {
            let keys = overlay.next_unplaced(1 + rng.below(9) as usize, u64::MAX);
            if keys.is_empty() {
                break;
            }
            assert!(keys.is_sorted(), "seed {seed}: neighbours stay neighbours: {keys:?}");
            for (file, lba) in keys {
                let vbn = Vbn(given.len() as u64 + 1);
                assert!(overlay.launch(file, lba, vbn).is_some(), "seed {seed}: {file} {lba} is given twice");
                given.push((file, lba));
            }
        }
        given.sort_unstable();
        assert_eq!(given, expected.into_iter().collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(overlay.unplaced, 0, "seed {seed}");
    }
}

#[test]
fn block_that_lands_is_logged_when_it_is_asked_for_and_the_file_is_one_that_is() {
    let mut overlay = Overlay::new(Generation(5));
    let files = [FileId(1), FileId(2)];
    let is_logged = |file: FileId| file == files[1];
    for file in files {
        overlay.write(file, (0..2).map(|lba| Arrival::new(Lba(lba), block(lba))).collect(), 1);
    }
    for (n, (file, lba)) in overlay.next_unplaced(usize::MAX, 1).into_iter().enumerate() {
        let Flight { pointer, order, .. } =
            overlay.launch(file, lba, Vbn(n as u64 + 1)).expect("it is unplaced");
        overlay.land(file, lba, pointer, order, if lba == 0 { Some(&is_logged) } else { None });
    }
    let logged: Vec<(FileId, u64)> = overlay
        .take_unlogged(u64::MAX)
        .iter()
        .map(|unlogged| match unlogged.entry {
            LogEntry::Write { file, lba, .. } => (file, lba.0),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(logged, [(files[1], 0)]);
}

#[test]
fn neighbours_share_their_nodes_in_the_room_that_is_asked_for() {
    let mut overlay = Overlay::new(Generation(5));
    overlay.write(FileId(2), (0..FANOUT * 5).map(|lba| Arrival::new(Lba(lba), block(lba))).collect(), 1);
    let asked = overlay.nodes(3);
    assert!((5 + 2..5 + 2 + 6).contains(&asked), "{asked}");
    overlay.punch(FileId(2), 0, FANOUT * 5, 2, true);
    assert_eq!((overlay.changes, overlay.unplaced), (1, 0));
    assert!(overlay.nodes(3) < asked);
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Shown {
    blocks: BTreeMap<(FileId, u64), u64>,
    /// Existing files, each with a stamp.
    files: BTreeMap<FileId, u32>,
}

impl Shown {
    fn punch(&mut self, file: FileId, first: u64, count: u64) {
        self.blocks.retain(|(of, lba), _| *of != file || !(first..first + count).contains(lba));
    }

    /// Takes an entry of the log; `written` is the content of the device.
    fn replay(&mut self, entry: &LogEntry, written: &BTreeMap<u64, u64>) {
        match *entry {
            LogEntry::Write { file, lba, vbn, .. } => {
                self.blocks.insert((file, lba.0), written[&vbn.0]);
            }
            LogEntry::Hole { file, lba, count } => self.punch(file, lba.0, count),
            LogEntry::Inode(inode) if inode.removed => {
                self.files.remove(&inode.id);
            }
            LogEntry::Inode(inode) => {
                self.files.insert(inode.id, inode.attributes.uid);
            }
        }
    }

    /// Without blocks of files that are not there.
    fn seen(&self) -> Self {
        let mut seen = self.clone();
        seen.blocks.retain(|(file, _), _| self.files.contains_key(file));
        seen
    }
}

fn place_of(entry: &LogEntry) -> Option<u64> {
    match entry {
        LogEntry::Write { vbn, .. } => Some(vbn.0),
        _ => None,
    }
}

/// A generation, its clients and its log.
struct Logged {
    rng: Rng,
    overlay: Overlay,
    order: u64,
    /// The content that clients saw after each order.
    shown: Vec<Shown>,
    gone: BTreeSet<FileId>,
    /// Blocks that were launched and have not landed.
    flying: Vec<(FileId, u64, Vbn, u64)>,
    written: BTreeMap<u64, u64>,
    log: Vec<LogEntry>,
    holes: usize,
}

impl Logged {
    fn change(&mut self) {
        self.order += 1;
        let (order, file) = (self.order, FileId(2 + self.rng.below(6)));
        let mut shown = self.shown.last().cloned().unwrap_or_default();
        if self.gone.contains(&file) {
            self.shown.push(shown);
            return;
        }
        let is_made = !shown.files.contains_key(&file);
        match self.rng.below(8) {
            0 if !is_made => {
                // As a change that removes a file: its blocks need no log entry of their own.
                self.overlay.punch(file, 0, 64, order, false);
                self.overlay.put_inode(inode(file, 0, 64, true), true, order);
                shown.punch(file, 0, 64);
                shown.files.remove(&file);
                self.gone.insert(file);
            }
            1 | 2 if !is_made => {
                let (first, count) = (self.rng.below(32), 1 + self.rng.below(32));
                self.overlay.punch(file, first, count, order, true);
                shown.punch(file, first, count);
                self.holes += 1;
            }
            3..=5 if !is_made => {
                let (first, count) = (self.rng.below(60), 1 + self.rng.below(4));
                self.overlay.write(
                    file,
                    (first..first + count).map(|lba| Arrival::new(Lba(lba), block(order))).collect(),
                    order,
                );
                shown.blocks.extend((first..first + count).map(|lba| ((file, lba), order)));
            }
            _ => {
                self.overlay.put_inode(inode(file, order as u32, 64, false), false, order);
                shown.files.insert(file, order as u32);
            }
        }
        self.shown.push(shown);
    }

    fn launch(&mut self, limit: usize, order: u64) -> Vec<(FileId, u64, Vbn, u64)> {
        let mut launched = Vec::new();
        for (file, lba) in self.overlay.next_unplaced(limit, order) {
            let vbn = Vbn(self.written.len() as u64 + 1);
            let Flight { block, order, .. } = self.overlay.launch(file, lba, vbn).expect("it is unplaced");
            let number = u64::from_le_bytes(block[..8].try_into().expect("8 bytes"));
            self.written.insert(vbn.0, number);
            launched.push((file, lba, vbn, order));
        }
        launched
    }

    /// All launches of others have landed.
    fn land(&mut self) {
        for (file, lba, vbn, order) in std::mem::take(&mut self.flying) {
            let pointer = BlockPointer { vbn, ..BlockPointer::HOLE };
            self.overlay.land(file, lba, pointer, order, Some(&|_| true));
        }
    }

    /// As `Volume::flush`. Meanwhile others continue. False when the log had no room.
    fn flush(&mut self) -> bool {
        let cut = self.order;
        let mut due = self.overlay.take_unlogged(cut);
        let own = self.launch(usize::MAX, cut);
        for _ in 0..self.rng.below(5) {
            self.change();
        }
        self.land();
        due.extend(self.overlay.take_unlogged(cut));
        assert!(due.iter().all(|unlogged| unlogged.order <= cut), "what came later is not due");
        due.extend(own.iter().map(|(file, lba, vbn, order)| {
            let checksum = Default::default();
            Unlogged {
                order: *order,
                entry: LogEntry::Write { file: *file, lba: Lba(*lba), vbn: *vbn, checksum },
            }
        }));
        due.sort_by_key(|unlogged| unlogged.order);
        for (file, lba, vbn, order) in own {
            self.overlay.land(file, lba, BlockPointer { vbn, ..BlockPointer::HOLE }, order, None);
        }
        // The log is written without a lock: others continue here too.
        for _ in 0..self.rng.below(3) {
            self.change();
        }
        if self.rng.one_in(4) {
            self.overlay.put_back_unlogged(due);
            return false;
        }
        self.log.extend(due.iter().map(|unlogged| unlogged.entry));
        let mut replayed = Shown::default();
        self.log.iter().for_each(|entry| replayed.replay(entry, &self.written));
        let replayed = replayed.seen();
        // For each block and each file the content at the cut, or a later one.
        let since = &self.shown[cut as usize..];
        let keys = |shown: &Shown| shown.blocks.keys().copied().collect::<Vec<_>>();
        for key in since.iter().flat_map(keys).chain(keys(&replayed)).collect::<BTreeSet<_>>() {
            let found = replayed.blocks.get(&key);
            assert!(since.iter().any(|shown| shown.seen().blocks.get(&key) == found), "{key:?} is {found:?}");
        }
        for file in (2..8).map(FileId) {
            let found = replayed.files.get(&file);
            assert!(since.iter().any(|shown| shown.files.get(&file) == found), "{file} is {found:?}");
        }
        if since.len() == 1 {
            assert_eq!(replayed, since[0].seen());
        }
        true
    }
}

#[test]
fn log_gives_what_clients_saw_at_each_flush_whatever_found_no_room_before() {
    let (mut done, mut full) = (0, 0);
    for seed in 0..200 {
        let mut life = Logged {
            rng: Rng::new(seed),
            overlay: Overlay::new(Generation(5)),
            order: 0,
            shown: vec![Shown::default()],
            gone: BTreeSet::new(),
            flying: Vec::new(),
            written: BTreeMap::new(),
            log: Vec::new(),
            holes: 0,
        };
        for _ in 0..100 {
            match life.rng.below(8) {
                0 => {
                    let limit = 1 + life.rng.below(6) as usize;
                    let launched = life.launch(limit, u64::MAX);
                    life.flying.extend(launched);
                }
                1 => life.land(),
                2 => {
                    let has_room = life.flush();
                    *(if has_room { &mut done } else { &mut full }) += 1;
                }
                _ => life.change(),
            }
        }
        while !life.flush() {}
        while !life.flush() {}
        let places: Vec<u64> = life.log.iter().filter_map(place_of).collect();
        let each: BTreeSet<u64> = places.iter().copied().collect();
        assert_eq!(places.len(), each.len(), "seed {seed}: a block is logged once");
        let is_hole = |entry: &&LogEntry| matches!(entry, LogEntry::Hole { .. });
        assert!(life.log.iter().filter(is_hole).count() <= life.holes, "seed {seed}: a hole is logged once");
    }
    assert!(done > 100 && full > 100, "{done} {full}");
}

#[test]
fn inode_that_changes_again_and_again_is_logged_once() {
    let mut overlay = Overlay::new(Generation(5));
    for order in 1..50 {
        overlay.put_inode(inode(FileId(2 + order % 2), order as u32, 1, false), false, order);
    }
    let stamps = |due: Vec<Unlogged>| -> Vec<u32> {
        let stamp = |unlogged: &Unlogged| match unlogged.entry {
            LogEntry::Inode(inode) => inode.attributes.uid,
            other => panic!("{other:?}"),
        };
        due.iter().map(stamp).collect()
    };
    assert_eq!(stamps(overlay.take_unlogged(u64::MAX)), [49, 48]);
    overlay.put_inode(inode(FileId(2), 77, 1, false), false, 50);
    assert_eq!(stamps(overlay.take_unlogged(49)), [], "it came later");
    assert_eq!(stamps(overlay.take_unlogged(50)), [77]);
}
