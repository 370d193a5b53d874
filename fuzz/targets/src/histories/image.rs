//! Whole stores with edits: opened, read at several instants, written to, trimmed, marked, viewed,
//! reverted, closed and opened again.
//!
//! The meaning of such a store is undefined, so not all served content can be compared. But all of
//! it has to come from somewhere: from an entry of that block in the store, with the checksum that
//! the entry names, from the origin, or from a write. And later writes are present, at every
//! instant.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use cairn_base::{BLOCK_SIZE, ManualClock, Timestamp, crc32c};
use cairn_device::{Device, Operation};
use cairn_format::delta::Delta;
use cairn_format::history::{EntryKind, HistoryEntry, PLACE_UNIT, SEGMENTS_START};
use cairn_history::{History, Window};

use super::golden::{DEVICE_BLOCKS, Golden, device_of, goldens, record_at, stored, superblock_of};
use super::{SECOND, open, put};
use crate::seeds::noise;
use crate::sparse::{Blocks, SparseDevice, block_of};
use crate::trees::Edit;

const EDITS_MAX: usize = 24;
/// Bytes of one choice: an edit, or a change of a byte.
const CHOICE: usize = 16;
/// Slices of background work at most, at a time.
const STEPS_MAX: usize = 60;

#[derive(Debug, Arbitrary)]
struct Head {
    which: u8,
    dirty: bool,
    /// One in four has changed bytes that no checksum protects.
    spoiled: u8,
}

pub(crate) fn image(data: &[u8]) {
    let mut from = Unstructured::new(data);
    let Ok(head) = Head::arbitrary(&mut from) else { return };
    let golden = &goldens()[usize::from(head.which) % goldens().len()];
    let mut choices = from.take_rest().chunks_exact(CHOICE);
    let spoiled = if head.spoiled.is_multiple_of(4) { usize::from(head.spoiled / 4 % 4) } else { 0 };
    let spoiled: Vec<&[u8]> = choices.by_ref().take(spoiled).collect();
    let edits = choices.take(EDITS_MAX).map(|choice| Edit::arbitrary(&mut Unstructured::new(choice)));
    let Ok(edits) = edits.collect::<arbitrary::Result<Vec<Edit>>>() else { return };
    let mut blocks = golden.edited(&edits);
    for choice in spoiled {
        let word = |at: usize| u64::from(choice[at]) << 8 | u64::from(choice[at + 1]);
        let number = word(0) % (golden.store_bytes / BLOCK_SIZE as u64);
        let mut bytes = crate::trees::bytes_of(&blocks, number);
        bytes[word(2) as usize % BLOCK_SIZE] = choice[4];
        blocks.insert(number, block_of(&bytes));
    }
    let mut used = Used::new(golden, blocks);
    let Ok(history) = open(&used.origin, &used.store, &used.clock, if head.dirty { 64 << 10 } else { 1 })
    else {
        return;
    };
    used.look(&history);
    let is_sound = used.work(&history);
    drop(history);
    used.lose_unflushed();
    match open(&used.origin, &used.store, &used.clock, 64 << 10) {
        Ok(again) => used.look(&again),
        Err(error) => {
            assert!(!is_sound, "a store that took all that was asked for does not open again: {error}")
        }
    }
}

pub(crate) fn image_seeds() -> Vec<Vec<u8>> {
    let whole = (0..goldens().len() as u8).map(|which| vec![which, 0, 1]);
    // The window begins in the far future, and the store goes out of service between two flushes.
    let cut_short = b"\x03\xed\xad\x00\xaa\xbe\xcb\x86\xff\xff\xff\xff\xff\xff\xff\xff\x7a\x00\xc0".to_vec();
    // The segment ahead claims a number far beyond the assigned ones.
    let far_ahead = b"\x26\x00\x00EEEE#EEEEEE\x05\x05\x05\x05F\x01\xa7r\xe3f\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05[\x05EEEEEEE\xff\xff\xff~\x01\x00\x01\x00\x01".to_vec();
    whole.chain([cut_short, far_ahead]).chain(noise(8, 90)).collect()
}

/// A device in use, and the possible contents of its blocks.
struct Used {
    origin: Arc<dyn Device>,
    store: Arc<dyn Device>,
    clock: Arc<ManualClock>,
    block_bytes: usize,
    explained: Vec<HashSet<Vec<u8>>>,
    /// Blocks written since the store was opened first; the content of others is unknown.
    written: BTreeMap<usize, Vec<u8>>,
    /// The same at the last flush.
    flushed: BTreeMap<usize, Vec<u8>>,
    /// The same at the instants of marks.
    marked: BTreeMap<u64, BTreeMap<usize, Vec<u8>>>,
}

impl Used {
    fn new(golden: &Golden, blocks: Blocks) -> Self {
        let zeroes = vec![0; golden.block_bytes];
        let mut explained = Vec::new();
        let mut stored = contents(&blocks, golden);
        for (lba, content) in golden.origin.chunks(golden.block_bytes).enumerate() {
            let mut all = HashSet::from([zeroes.clone(), content.to_vec()]);
            all.extend(stored.remove(&(lba as u64)).unwrap_or_default());
            explained.push(all);
        }
        Self {
            origin: device_of(&golden.origin),
            store: Arc::new(SparseDevice::new(golden.store_bytes, Arc::new(blocks))),
            clock: Arc::new(ManualClock::new(Timestamp(golden.last + SECOND))),
            block_bytes: golden.block_bytes,
            explained,
            written: BTreeMap::new(),
            flushed: BTreeMap::new(),
            marked: BTreeMap::new(),
        }
    }

    /// Reads everything there is to read.
    fn look(&self, history: &Arc<History>) {
        let status = history.status();
        self.check(&**history, &self.written);
        drop((history.marks(), history.explain(0)));
        let mut instants: Vec<u64> = status.marks.iter().map(|mark| mark.time.0).collect();
        instants.extend(status.reverts.iter().flat_map(|revert| [revert.time.0, revert.instant.0]));
        let (start, last) = (status.start.0, status.last.0);
        instants.truncate(20);
        instants.extend((0..8).map(|part| start.saturating_add(last.saturating_sub(start) / 8 * part)));
        instants.extend([start, last, last.saturating_sub(1), 0, u64::MAX]);
        instants.extend(self.marked.keys());
        let nothing = BTreeMap::new();
        for instant in instants {
            if let Ok(view) = history.view(Timestamp(instant)) {
                let known = self.marked.get(&instant).filter(|_| view.instant().0 == instant);
                self.check(&view, known.unwrap_or(&nothing));
            }
        }
    }

    /// All that is served can be explained.
    fn check(&self, device: &dyn Device, known: &BTreeMap<usize, Vec<u8>>) {
        for lba in 0..DEVICE_BLOCKS {
            let mut bytes = vec![0; self.block_bytes];
            let outcome = device.read_into((lba * self.block_bytes) as u64, &mut bytes);
            match known.get(&lba) {
                Some(written) => {
                    outcome.expect("what was written can be read");
                    assert!(bytes == *written, "block {lba} is not what was written");
                }
                None if outcome.is_ok() => {
                    assert!(self.explained[lba].contains(&bytes), "block {lba} shows what nothing explains");
                }
                None => {}
            }
        }
    }

    /// Ordinary work; true when nothing was refused.
    fn work(&mut self, history: &Arc<History>) -> bool {
        let mut is_sound = true;
        let before = history.status().last;
        for round in 0..3u8 {
            for lba in [1, 4, 5, 9] {
                is_sound &= self.write(history, lba, round * 16 + lba as u8 + 1);
            }
            is_sound &= self.trim(history, 2 + usize::from(round));
            is_sound &= self.flush(history);
            is_sound &= self.mark(history, round);
            self.check(&**history, &self.written);
            for _ in 0..STEPS_MAX {
                let more = history.step();
                is_sound &= more.is_ok();
                if !matches!(more, Ok(true)) {
                    break;
                }
            }
            self.check(&**history, &self.written);
            match round {
                0 => drop(history.set_window(Window { bytes: Some(3 << 18), ..history.status().window })),
                1 => is_sound &= self.revert(history, before),
                _ => {}
            }
        }
        self.look(history);
        self.flush(history) && is_sound
    }

    fn flush(&mut self, history: &History) -> bool {
        let is_durable = history.flush().is_ok();
        if is_durable {
            self.flushed.clone_from(&self.written);
        }
        is_durable
    }

    /// Writes since the last flush may be lost, for example when the store turned out to be damaged
    /// meanwhile.
    fn lose_unflushed(&mut self) {
        let flushed = &self.flushed;
        self.written.retain(|lba, bytes| flushed.get(lba) == Some(bytes));
    }

    fn write(&mut self, history: &History, lba: usize, byte: u8) -> bool {
        let bytes = vec![byte; self.block_bytes];
        self.explained[lba].insert(bytes.clone());
        let is_taken = put(history, &self.clock, (lba * self.block_bytes) as u64, &bytes).is_ok();
        if is_taken {
            self.written.insert(lba, bytes);
        } else {
            self.written.remove(&lba);
        }
        is_taken
    }

    fn trim(&mut self, history: &History, lba: usize) -> bool {
        self.clock.advance(Duration::from_millis(10));
        let mut batch = [Operation::trim((lba * self.block_bytes) as u64, self.block_bytes as u64)];
        history.run(&mut batch);
        let [trim] = batch;
        let is_taken = trim.into_outcome().is_ok();
        if is_taken {
            self.written.insert(lba, vec![0; self.block_bytes]);
        } else {
            self.written.remove(&lba);
        }
        is_taken
    }

    fn mark(&mut self, history: &History, round: u8) -> bool {
        let mark = history.mark(&format!("fuzz {round}"), false);
        if let Ok(mark) = &mark {
            self.marked.insert(mark.time.0, self.written.clone());
        }
        mark.is_ok()
    }

    fn revert(&mut self, history: &Arc<History>, to: Timestamp) -> bool {
        let reverted = history.revert(to);
        if let Ok(reverted) = &reverted {
            self.written = self.marked.get(&reverted.instant.0).cloned().unwrap_or_default();
            self.flushed.clone_from(&self.written);
        }
        // There may be no room, or the window may have passed it.
        true
    }
}

/// The contents of blocks according to the entries of a store, as far as they exist.
fn contents(blocks: &Blocks, golden: &Golden) -> HashMap<u64, Vec<Vec<u8>>> {
    let mut all: HashMap<u64, Vec<Vec<u8>>> = HashMap::new();
    let Some(superblock) = superblock_of(blocks) else { return all };
    for block in blocks.keys().filter(|block| **block > SEGMENTS_START) {
        let Some(record) = record_at(blocks, *block) else { continue };
        let segment = (block - SEGMENTS_START) / superblock.segment_blocks;
        let base = (SEGMENTS_START + segment * superblock.segment_blocks) * BLOCK_SIZE as u64;
        for entry in
            record.entries.iter().filter(|entry| entry.kind.has_data() && entry.kind != EntryKind::Mark)
        {
            if let Some(content) = content_of(blocks, base, entry, golden.block_bytes) {
                all.entry(entry.lba).or_default().push(content);
            }
        }
    }
    all
}

/// The stored bytes of an entry in a segment that begins at byte `base`.
fn content_of(blocks: &Blocks, base: u64, entry: &HistoryEntry, block_bytes: usize) -> Option<Vec<u8>> {
    let mut from = base + u64::from(entry.place) * PLACE_UNIT;
    let (mut sum, mut units) = (entry.crc, if entry.reduced { entry.length as u64 / PLACE_UNIT } else { 0 });
    let mut deltas = Vec::new();
    loop {
        let length = if units == 0 { block_bytes } else { (units * PLACE_UNIT) as usize };
        let bytes = stored(blocks, from, length);
        if crc32c(&bytes) != sum {
            return None;
        }
        if units == 0 {
            let mut content = bytes;
            for delta in deltas.iter().rev() {
                Delta::apply(delta, &mut content).ok()?;
            }
            return Some(content);
        }
        let delta = Delta::parse(&bytes).ok()?;
        from = from.checked_sub(u64::from(delta.back) * PLACE_UNIT)?;
        (sum, units) = (delta.base_crc, delta.base_units.into());
        deltas.push(delta);
    }
}
