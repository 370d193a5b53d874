//! The content of `volume.json`: the places of a volume, and its base.

use std::path::PathBuf;

use cairn_base::{LogId, SnapshotId, VolumeId};
use cairn_volume::Numbers;
use serde::{Deserialize, Serialize};

use crate::volumes::from_bucket::FromBucket;
use crate::volumes::under::{Beneath, Given};

/// The base of a clone, in `volume.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CloneOf {
    pub(super) volume: String,
    /// Its number: its name may change.
    pub(super) snapshot: u64,
    /// Its root digest.
    pub(super) root: String,
    /// Its name when the clone was made.
    pub(super) name: String,
    /// It goes with the server: of a drill.
    pub(super) temporary: bool,
}

impl CloneOf {
    pub(super) fn snapshot(&self) -> SnapshotId {
        SnapshotId(self.snapshot)
    }

    /// `VOLUME@SNAPSHOT`.
    pub(crate) fn shown(&self) -> String {
        format!("{}@{}", self.volume, self.name)
    }
}

/// The future content of the devices of a volume: written before any of it exists.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Making {
    pub(super) volume: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) log: Option<String>,
}

impl Making {
    pub(super) fn new(volume: VolumeId, log: Option<LogId>) -> Self {
        Self { volume: volume.to_string(), log: log.map(|log| log.to_string()) }
    }
}

/// The content of `volume.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VolumeDocument {
    /// Absolute, or relative to the folder of the volume.
    pub(super) devices: Vec<PathBuf>,
    /// The absolute path of the log device; while the log moves, both paths. The superblock
    /// determines whether there is one, and which.
    pub(super) log_devices: Vec<PathBuf>,
    /// A clone: the devices hold the differences from a snapshot of another volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) clone_of: Option<CloneOf>,
    /// An image in a bucket below it: blocks that are not local yet are read from there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from_bucket: Option<FromBucket>,
    /// A history between the devices and the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) history: Option<Beneath>,
    /// A history that is being created, without any writes: a start removes its remains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) coming: Option<Beneath>,
    /// The planned content of its devices, recorded before any was written. Until the volume is in
    /// its place it is unused, and a start clears that content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) made_as: Option<Making>,
    /// Numbers not yet assigned by a disabled history in which the volume had been reverted.
    pub(super) given: Given,
}

impl VolumeDocument {
    /// Of a volume on those devices, with nothing else.
    pub(crate) fn of(devices: Vec<PathBuf>) -> Self {
        let (history, coming, made_as, given) = (None, None, None, Given::default());
        let (log_devices, clone_of, from_bucket) = (Vec::new(), None, None);
        Self { devices, log_devices, clone_of, from_bucket, history, coming, made_as, given }
    }

    /// The volume gives no number below these.
    pub(super) fn numbers(&self) -> Numbers {
        let beneath = self.history.as_ref().map(Beneath::given).unwrap_or_default();
        let Given { file, snapshot } = self.given.and(beneath);
        Numbers { file, snapshot }
    }
}
