//! The store of a device that remembers: its structs alone, logs that are put together, and whole
//! stores with edits.

mod assembled;
mod golden;
mod image;
mod life;
mod structs;

pub(crate) use assembled::{log, log_seeds};
pub(crate) use image::{image, image_seeds};
pub(crate) use structs::{structs, structs_seeds};

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{HistoryId, ManualClock};
use cairn_device::{Device, DeviceError, Segments};
use cairn_history::{History, HistoryError, OpenOptions};

/// Whose all stores here are.
const STORE: HistoryId = HistoryId([0x7d; 16]);
/// When their times begin.
const BEGAN: u64 = 1_700_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// The content of a block, or that nothing has it any more.
type Content = Option<Vec<u8>>;

fn open(
    origin: &Arc<dyn Device>,
    store: &Arc<dyn Device>,
    clock: &Arc<ManualClock>,
    dirty_bytes: u64,
) -> Result<Arc<History>, HistoryError> {
    let options = OpenOptions {
        dirty_bytes,
        read_bytes: 32 << 10,
        clock: clock.clone(),
        at_least: cairn_history::LogPosition::default(),
    };
    let history = History::open(origin.clone(), store.clone(), options)?;
    // The clock stands still: a thread that waits for time to pass would wait for ever.
    history.let_wait(false);
    Ok(history)
}

/// Time passes, and a block is written.
fn put(history: &History, clock: &ManualClock, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
    clock.advance(Duration::from_millis(10));
    history.write(offset, Segments::copy_of(bytes))
}

/// Bytes of a device. The only failure that is expected of these is that they are damaged or lost.
///
/// # Panics
/// When it fails otherwise.
fn read(device: &dyn Device, offset: u64, length: usize) -> Content {
    let mut bytes = vec![0; length];
    match device.read_into(offset, &mut bytes) {
        Ok(()) => Some(bytes),
        Err(DeviceError::Corrupt { .. }) => None,
        Err(error) => panic!("a read at {offset}: {error}"),
    }
}
