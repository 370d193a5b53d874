//! The answers of a volume to its cache: which blocks the image of a snapshot has, and which are in
//! use.

use std::sync::Arc;

use cairn_base::{SnapshotId, Vbn};
use cairn_volume::{REACHED_BLOCKS, REACHED_WORDS, Reached, Volume, VolumeError};

use super::base::Base;
use super::cache::Clean;
use super::presence::Bits;
use crate::images::REGION_BLOCKS;

const WORDS: usize = REGION_BLOCKS / 64;
const REGION: u64 = REGION_BLOCKS as u64;

/// See the module. It is made for each round of eviction, as it holds the snapshots.
pub struct VolumeClean {
    volume: Arc<Volume>,
    reached: Reached,
    /// The blocks of the map that was read last, with its number.
    words: Option<(u64, Box<[u64; REACHED_WORDS]>)>,
    /// Why a map could not be read.
    failed: Option<VolumeError>,
}

impl VolumeClean {
    /// Of a volume whose device reads absent blocks from the image `base`; none if the volume does
    /// not have the snapshot of that image any more, so that nothing is clean.
    ///
    /// # Errors
    /// The volume is closed.
    pub fn new(volume: &Arc<Volume>, base: &Base) -> Result<Option<Self>, VolumeError> {
        let reached = match volume.reached_up_to(SnapshotId(base.number)) {
            Ok(reached) => reached,
            Err(VolumeError::NoSuchSnapshot(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_it = base.is_of(reached.target());
        let clean = Self { volume: volume.clone(), reached, words: None, failed: None };
        Ok(is_it.then_some(clean))
    }

    /// Why the last map could not be read, if one could not.
    pub fn failed(&self) -> Option<&VolumeError> {
        self.failed.as_ref()
    }

    /// The number of a block of a map, and the first word of a region in it.
    fn place(region: u32) -> (u64, usize) {
        let first = u64::from(region) * REGION;
        (first / REACHED_BLOCKS, (first % REACHED_BLOCKS / 64) as usize)
    }
}

impl Clean for VolumeClean {
    fn has(&mut self, region: u32) -> Option<Bits> {
        let (number, at) = Self::place(region);
        if self.words.as_ref().is_none_or(|(known, _)| *known != number) {
            match self.reached.words(number) {
                Ok(words) => self.words = Some((number, words)),
                Err(error) => {
                    self.failed = Some(error);
                    return None;
                }
            }
        }
        let (_, words) = self.words.as_ref()?;
        words.get(at..at + WORDS)?.first_chunk::<WORDS>().copied()
    }

    fn in_use(&self, region: u32) -> Option<Bits> {
        let mut bits = [0; WORDS];
        self.volume.in_use(self.reached.target(), Vbn(u64::from(region) * REGION), &mut bits)?;
        Some(bits)
    }
}
