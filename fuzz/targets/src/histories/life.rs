//! A device with a history, whose every instant is known: it is opened, used, closed and opened
//! again, and shows exactly these.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::Arbitrary;
use cairn_base::{ManualClock, Timestamp};
use cairn_device::{Device, DeviceError, MemoryDevice, Operation};
use cairn_history::{History, HistoryError, Window};

use super::assembled::content;
use super::{Content, SECOND, open, put, read};
use crate::sparse::{Blocks, SparseDevice};

/// Slices of background work at most, at a time.
const STEPS_MAX: u8 = 40;

/// An operation on the device.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub(super) enum Work {
    Write { lba: u8, content: u8 },
    Part { lba: u8, at: u16, length: u16, content: u8 },
    Trim { lba: u8, blocks: u8 },
    Flush,
    Mark,
    Step(u8),
    Revert(u8),
    Window { segments: u8, seconds: u8 },
    Pause(u8),
    Reopen,
}

pub(super) struct Life {
    origin: Arc<dyn Device>,
    store: Arc<dyn Device>,
    clock: Arc<ManualClock>,
    block_bytes: usize,
    lengths: Vec<usize>,
    /// The device's content after each change.
    images: BTreeMap<u64, Vec<Content>>,
    /// Bytes of the store were changed: contents may be missing, or all of it.
    is_spoiled: bool,
    marks: u32,
}

impl Life {
    pub(super) fn new(
        origin: MemoryDevice,
        store: Blocks,
        store_bytes: u64,
        block_bytes: usize,
        lengths: Vec<usize>,
        images: BTreeMap<u64, Vec<Content>>,
    ) -> Self {
        let last = images.last_key_value().map_or(0, |(time, _)| *time);
        Self {
            origin: Arc::new(origin),
            store: Arc::new(SparseDevice::new(store_bytes, Arc::new(store))),
            clock: Arc::new(ManualClock::new(Timestamp(last + SECOND))),
            block_bytes,
            lengths,
            images,
            is_spoiled: false,
            marks: 0,
        }
    }

    /// Runs it, with that many bytes of writes that may wait in memory.
    pub(super) fn live(mut self, dirty_bytes: u64, is_spoiled: bool, work: &[Work]) {
        self.is_spoiled = is_spoiled;
        let Some(mut history) = self.open(dirty_bytes) else { return };
        for work in work.iter().chain([&Work::Reopen, &Work::Step(STEPS_MAX), &Work::Reopen]) {
            if let Work::Reopen = work {
                if !self.is_fine(history.flush()) {
                    continue;
                }
                drop(history);
                let Some(again) = self.open(dirty_bytes) else { return };
                history = again;
            } else {
                self.work(&history, *work);
                self.check_present(&history);
            }
        }
    }

    fn open(&self, dirty_bytes: u64) -> Option<Arc<History>> {
        match open(&self.origin, &self.store, &self.clock, dirty_bytes) {
            Ok(history) => {
                self.check_present(&history);
                self.check_instants(&history);
                Some(history)
            }
            Err(_) if self.is_spoiled => None,
            Err(error) => panic!("a store that is whole does not open: {error}"),
        }
    }

    /// Allowed refusals of a device: there is no room, or, if bytes were changed, a block is
    /// damaged.
    fn is_fine(&self, outcome: Result<(), DeviceError>) -> bool {
        match outcome {
            Ok(()) => true,
            Err(DeviceError::NoSpace { .. }) => false,
            Err(_) if self.is_spoiled => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn now(&self) -> &Vec<Content> {
        self.images.last_key_value().expect("it begins with one").1
    }

    fn at(&self, time: u64) -> &Vec<Content> {
        self.images.range(..=time).next_back().expect("the first is of the start").1
    }

    /// The device has changed.
    fn became(&mut self, history: &History, image: Vec<Content>) {
        self.images.insert(history.status().last.0, image);
    }

    fn work(&mut self, history: &Arc<History>, work: Work) {
        let blocks = self.lengths.len();
        let block = |lba: u8| usize::from(lba) % blocks;
        let mut image = self.now().clone();
        match work {
            Work::Write { lba, content: seed } => {
                let lba = block(lba);
                image[lba] = Some(content(seed, self.lengths[lba]));
                let bytes = image[lba].clone().unwrap_or_default();
                if self.is_fine(put(history, &self.clock, (lba * self.block_bytes) as u64, &bytes)) {
                    self.became(history, image);
                }
            }
            Work::Part { lba, at, length, content: seed } => {
                let lba = block(lba);
                let at = usize::from(at) % self.lengths[lba];
                let length = 1 + usize::from(length) % (self.lengths[lba] - at);
                let bytes = content(seed, length);
                let outcome = put(history, &self.clock, (lba * self.block_bytes + at) as u64, &bytes);
                match &mut image[lba] {
                    Some(old) => old[at..at + length].copy_from_slice(&bytes),
                    lost if length == self.lengths[lba] => *lost = Some(bytes),
                    None => {
                        let is_refused =
                            matches!(outcome, Err(DeviceError::Corrupt { .. } | DeviceError::NoSpace { .. }));
                        return assert!(is_refused || self.is_spoiled, "a part of what is lost was taken");
                    }
                }
                if self.is_fine(outcome) {
                    self.became(history, image);
                }
            }
            Work::Trim { lba, blocks: count } => {
                let lba = block(lba);
                let end = (lba + 1 + usize::from(count % 4)).min(blocks);
                (lba..end).for_each(|lba| image[lba] = Some(vec![0; self.lengths[lba]]));
                let length: usize = self.lengths[lba..end].iter().sum();
                let mut batch = [Operation::trim((lba * self.block_bytes) as u64, length as u64)];
                self.clock.advance(Duration::from_millis(10));
                history.run(&mut batch);
                let [trim] = batch;
                if self.is_fine(trim.into_outcome()) {
                    self.became(history, image);
                }
            }
            Work::Flush => drop(self.is_fine(history.flush())),
            Work::Mark => self.mark(history),
            Work::Step(count) => self.step(history, count),
            Work::Revert(which) => self.revert(history, which),
            Work::Window { segments, seconds } => {
                let bytes = (segments % 8 > 0).then_some(u64::from(segments % 8) << 18);
                let time = (seconds % 8 > 0).then(|| Duration::from_secs(u64::from(seconds % 8)));
                let reduction = history.status().window.reduction;
                drop(history.set_window(Window { time, bytes, reduction, ..Window::default() }));
            }
            Work::Pause(pause) => self.clock.advance(Duration::from_millis(u64::from(pause) * 20)),
            Work::Reopen => {}
        }
    }

    fn mark(&mut self, history: &Arc<History>) {
        self.marks += 1;
        match history.mark(&format!("fuzz {}", self.marks), true) {
            Ok(mark) => {
                let view = history.view(mark.time).expect("a mark that was just made is in the window");
                assert_eq!(view.instant(), mark.time, "a mark is an instant that is kept");
                self.check(&view, mark.time.0);
            }
            Err(HistoryError::Full) => {}
            Err(_) if self.is_spoiled => {}
            Err(error) => panic!("a mark: {error}"),
        }
    }

    fn step(&self, history: &History, count: u8) {
        for _ in 0..count % (STEPS_MAX + 1) {
            match history.step() {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) if self.is_spoiled => return,
                Err(error) => panic!("a step: {error}"),
            }
        }
    }

    fn revert(&mut self, history: &Arc<History>, which: u8) {
        let times: Vec<u64> = self.images.keys().copied().collect();
        let at = times[usize::from(which) % times.len()];
        match history.revert(Timestamp(at)) {
            Ok(reverted) => {
                let image = self.at(reverted.instant.0).clone();
                self.became(history, image);
            }
            Err(HistoryError::BeforeWindow | HistoryError::BeforeBeginning) => {
                assert!(at < history.status().start.0, "{at} is in the window")
            }
            Err(HistoryError::TooManyReverts | HistoryError::NoRoomToRevert { .. } | HistoryError::Full) => {}
            Err(_) if self.is_spoiled => {}
            Err(error) => panic!("a revert: {error}"),
        }
    }

    fn check_present(&self, history: &Arc<History>) {
        let status = history.status();
        assert_eq!(status.failed, None, "the devices are whole");
        self.check(&**history, u64::MAX);
    }

    /// All instants of the window are unchanged.
    fn check_instants(&self, history: &Arc<History>) {
        for time in self.images.keys() {
            match history.view(Timestamp(*time)) {
                Ok(view) => self.check(&view, view.instant().0),
                Err(HistoryError::BeforeWindow | HistoryError::BeforeBeginning) => {
                    assert!(*time < history.status().start.0, "{time} is in the window");
                }
                Err(_) if self.is_spoiled => {}
                Err(error) => panic!("a view of {time}: {error}"),
            }
        }
    }

    fn check(&self, device: &dyn Device, time: u64) {
        for (lba, (length, meant)) in self.lengths.iter().zip(self.at(time)).enumerate() {
            let found = read(device, (lba * self.block_bytes) as u64, *length);
            let is_explained = found == *meant || self.is_spoiled && found.is_none();
            assert!(is_explained, "block {lba} at {time}: {:?} and not {:?}", shown(&found), shown(meant));
        }
    }
}

/// The start of a content.
fn shown(content: &Content) -> Option<&[u8]> {
    content.as_ref().map(|bytes| &bytes[..bytes.len().min(16)])
}
