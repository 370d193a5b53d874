//! The progress of a restore, as in `restore.json`.

use cairn_api as api;
use cairn_base::{BLOCK_SIZE, Checksum, Vbn};
use cairn_device::{Device, DeviceError, FileDevice};
use cairn_stream::{Lost, PartReached, Standing};
use serde::{Deserialize, Serialize};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The progress of a restore, as in `restore.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RestoreNotes {
    pub(super) dumped_from: String,
    pub(super) begun_ms: u64,
    pub(super) accept_damage: bool,
    /// The names of the files.
    pub(super) files: Vec<String>,
    /// The dumps, in the order in which they build on each other.
    pub(super) dumps: Vec<String>,
    /// Blocks of all of them.
    pub(super) total_blocks: u64,
    /// Of the new volume.
    pub(super) space_blocks: u64,
    /// Bytes of its devices.
    pub(super) lengths: Vec<u64>,
    /// The index of the dump that is being written; the earlier ones are done.
    pub(super) dump: usize,
    /// Of that dump; none for a part without a record yet.
    pub(super) parts: Vec<Option<PartNotes>>,
    /// Blocks that are durable, of all dumps.
    pub(super) blocks: u64,
    /// The unreadable parts of the earlier dumps, each with its file.
    pub(super) lost: Vec<(String, Spot)>,
    pub(super) samples: Vec<Sample>,
    /// It restores an image of a mirror: `dumps` has the id of the image, and the offset of its
    /// only part counts regions.
    #[serde(default)]
    pub(super) of_mirror: bool,
}

/// Up to where a part is durable.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PartNotes {
    offset: u64,
    sequence: u64,
    digest: String,
    digest_lost: bool,
    blocks: u64,
    last: u64,
    lost: Vec<Spot>,
}

/// An unreadable part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Spot {
    offset: u64,
    length: u64,
    blocks: Option<u32>,
    after: u64,
    before: Option<u64>,
    spare: bool,
}

/// A block that was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Sample {
    /// By its place among the devices.
    pub(super) device: usize,
    /// Where on it, in bytes.
    pub(super) at: u64,
    pub(super) vbn: u64,
    /// The dump.
    pub(super) dump: usize,
    pub(super) checksum: String,
}

impl Spot {
    pub(crate) fn of(lost: &Lost) -> Self {
        let Lost { offset, length, blocks, after, before, spare } = *lost;
        Self { offset, length, blocks, after: after.0, before: before.map(|vbn| vbn.0), spare }
    }

    fn lost(&self) -> Lost {
        let Self { offset, length, blocks, after, before, spare } = *self;
        Lost { offset, length, blocks, after: Vbn(after), before: before.map(Vbn), spare }
    }
}

impl PartNotes {
    pub(crate) fn of(at: &PartReached) -> Self {
        Self {
            offset: at.offset,
            sequence: at.sequence,
            digest: format!("{:?}", at.digest),
            digest_lost: at.digest_lost,
            blocks: at.blocks,
            last: at.last.0,
            lost: at.lost.iter().map(Spot::of).collect(),
        }
    }

    pub(super) fn reached(&self) -> Option<PartReached> {
        Some(PartReached {
            offset: self.offset,
            sequence: self.sequence,
            digest: Checksum(u128::from_str_radix(&self.digest, 16).ok()?.to_le_bytes()),
            digest_lost: self.digest_lost,
            blocks: self.blocks,
            last: Vbn(self.last),
            lost: self.lost.iter().map(Spot::lost).collect(),
        })
    }
}

impl RestoreNotes {
    /// As the API shows it.
    pub(super) fn show(self, volume: String) -> api::UnfinishedRestore {
        api::UnfinishedRestore {
            volume,
            dumped_from: self.dumped_from,
            begun_ms: self.begun_ms,
            files: self.files,
            durable_bytes: self.blocks * BLOCK,
            total_bytes: self.total_blocks * BLOCK,
            of_mirror: self.of_mirror,
        }
    }

    /// Whether a device has its earlier length; the last one may have grown.
    pub(crate) fn has_length(&self, number: usize, device: &FileDevice) -> bool {
        let length = device.geometry().length;
        let is_last = number + 1 == self.lengths.len();
        self.lengths.get(number).is_some_and(|known| length == *known || (is_last && length > *known))
    }

    /// Whether a device has the blocks written to it; none if that is unknown.
    pub(crate) fn is_on(&self, number: usize, device: &FileDevice) -> Result<Option<bool>, DeviceError> {
        let mut known = None;
        for sample in self.samples.iter().filter(|sample| sample.device == number) {
            if sample.at.saturating_add(BLOCK) > device.geometry().length {
                return Ok(Some(false));
            }
            let found = Checksum::of(&device.read(sample.at, BLOCK as u32)?.to_vec());
            if format!("{found:?}") != sample.checksum {
                return Ok(Some(false));
            }
            known = Some(true);
        }
        Ok(known)
    }

    pub(super) fn standing(&self) -> Standing {
        Standing {
            dump: self.dump,
            parts: self.parts.iter().map(|part| part.as_ref().and_then(PartNotes::reached)).collect(),
            blocks: self.blocks,
            lost: self.lost.iter().map(|(file, spot)| (file.clone(), spot.lost())).collect(),
        }
    }

    pub(super) fn stand(&mut self, at: &Standing) {
        self.dump = at.dump;
        self.parts = at.parts.iter().map(|part| part.as_ref().map(PartNotes::of)).collect();
        self.blocks = at.blocks;
        self.lost = at.lost.iter().map(|(file, lost)| (file.clone(), Spot::of(lost))).collect();
    }
}
