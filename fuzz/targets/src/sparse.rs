//! A device over a shared image: thousands of volumes a minute from one original, each with its own
//! changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cairn_base::BLOCK_SIZE;
use cairn_device::{Action, Block, BlockMut, Device, DeviceError, Geometry, Operation, Request, Segments};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Blocks by number; those that are missing are zero.
pub(crate) type Blocks = HashMap<u64, Block>;

/// A block of these bytes, which are 4096.
pub(crate) fn block_of(bytes: &[u8]) -> Block {
    let mut block = BlockMut::zeroed();
    block[..bytes.len()].copy_from_slice(bytes);
    block.freeze()
}

/// Shared blocks and changes on top of them. Requests are whole blocks, as volumes make them.
pub(crate) struct SparseDevice {
    length: u64,
    original: Arc<Blocks>,
    changed: Mutex<Blocks>,
}

impl SparseDevice {
    pub(crate) fn new(length: u64, original: Arc<Blocks>) -> Self {
        Self { length, original, changed: Mutex::default() }
    }

    /// Everything on it that is not zero.
    pub(crate) fn blocks(&self) -> Blocks {
        let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = (*self.original).clone();
        all.extend(changed.iter().map(|(number, block)| (*number, block.clone())));
        all.retain(|_, block| block.iter().any(|byte| *byte != 0));
        all
    }

    fn perform(&self, request: &Request) -> Segments {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut data = Segments::default();
        match request {
            Request::Read { offset, length } => {
                for number in (offset / BLOCK)..(offset + u64::from(*length)) / BLOCK {
                    let block = changed.get(&number).or_else(|| self.original.get(&number));
                    data.push_block(block.cloned().unwrap_or_else(Block::zero));
                }
            }
            Request::Write { offset, data, .. } => {
                for (number, bytes) in (offset / BLOCK..).zip(data.to_vec().chunks(BLOCK_SIZE)) {
                    changed.insert(number, block_of(bytes));
                }
            }
            Request::Trim { offset, length, .. } | Request::WriteZeroes { offset, length, .. } => {
                for number in offset / BLOCK..(offset + length) / BLOCK {
                    changed.insert(number, Block::zero());
                }
            }
            Request::Flush | Request::Prefetch { .. } => {}
        }
        data
    }

    fn refusal(&self, request: &Request) -> Option<DeviceError> {
        let (action, offset, length) = match request {
            Request::Read { offset, length } => (Action::Read, *offset, u64::from(*length)),
            Request::Write { offset, data, .. } => (Action::Write, *offset, data.len() as u64),
            Request::Trim { offset, length, .. } | Request::Prefetch { offset, length } => {
                (Action::Trim, *offset, *length)
            }
            Request::WriteZeroes { offset, length, .. } => (Action::WriteZeroes, *offset, *length),
            Request::Flush => return None,
        };
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Some(DeviceError::OutOfRange { action, offset, length, end: self.length });
        }
        let aligned = offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK);
        (!aligned).then_some(DeviceError::Unaligned { action, offset, length, alignment: BLOCK as u32 })
    }
}

impl Device for SparseDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            length: self.length,
            alignment: BLOCK as u32,
            read_only: false,
            trims: true,
            fast_zeroes: true,
        }
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            let outcome = match self.refusal(operation.request()) {
                Some(error) => Err(error),
                None => Ok(self.perform(operation.request())),
            };
            operation.finish(outcome);
        }
    }
}
