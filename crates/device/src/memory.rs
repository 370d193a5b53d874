//! A device in memory, sparse: for tests, and for data that need not outlive the process.

use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::BLOCK_SIZE;
use parking_lot::RwLock;

use crate::image::{self, Image};
use crate::{Action, Device, DeviceError, Extent, Geometry, Operation, Request, Segments, Ticket};

/// The longest atomic write.
const ATOMIC_BYTES_MAX: u32 = 1 << 20;

/// Bytes in memory. Blocks that were never written, or were trimmed, take no space.
#[derive(Debug)]
pub struct MemoryDevice {
    length: AtomicU64,
    image: RwLock<Image>,
}

impl MemoryDevice {
    /// `length` bytes of zeroes.
    pub fn new(length: u64) -> Self {
        Self::with_image(length, Image::default())
    }

    pub(crate) fn with_image(length: u64, image: Image) -> Self {
        Self { length: AtomicU64::new(length), image: RwLock::new(image) }
    }

    /// Makes it at least `length` bytes long.
    pub fn grow(&self, length: u64) {
        self.length.fetch_max(length, Ordering::AcqRel);
    }
}

impl Device for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            length: self.length.load(Ordering::Acquire),
            alignment: 1,
            read_only: false,
            trims: true,
            fast_zeroes: true,
        }
    }

    fn lengthen(&self, length: u64) -> Result<(), DeviceError> {
        self.grow(length);
        Ok(())
    }

    fn run(&self, batch: &mut [Operation]) {
        let geometry = self.geometry();
        for operation in batch {
            if !operation.is_pending() {
                continue;
            }
            let outcome = geometry.admit(operation.request()).map(|()| match operation.request() {
                Request::Read { offset, length } => self.image.read().read(*offset, u64::from(*length)),
                Request::Write { offset, data, .. } => {
                    self.image.write().write(*offset, data);
                    Segments::default()
                }
                Request::Trim { offset, length, .. } | Request::WriteZeroes { offset, length, .. } => {
                    self.image.write().clear(*offset, *length);
                    Segments::default()
                }
                Request::Flush | Request::Prefetch { .. } => Segments::default(),
            });
            operation.finish(outcome);
        }
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        self.run(batch);
    }

    fn atomic_bytes_max(&self) -> u32 {
        ATOMIC_BYTES_MAX
    }

    fn write_atomic(
        &self,
        offset: u64,
        data: Segments,
        fua: bool,
        ticket: Option<&Ticket>,
    ) -> Result<(), DeviceError> {
        let block = BLOCK_SIZE as u64;
        let whole = offset.is_multiple_of(block) && (data.len() as u64).is_multiple_of(block);
        if !whole || data.len() > ATOMIC_BYTES_MAX as usize {
            return Err(DeviceError::not_atomic(offset, &data));
        }
        let _pass = Ticket::begin_with(ticket)?;
        // One write holds the lock from its first byte to its last.
        self.one(Operation::new(Request::Write { offset, data, fua }))
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.geometry().admit_range(Action::Extents, offset, length)?;
        Ok(image::extents(&self.image.read(), offset, length, limit))
    }
}
