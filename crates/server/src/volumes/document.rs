//! What `volume.json` says: where a volume is, and what it is made of.

use std::path::PathBuf;

use cairn_base::{LogId, SnapshotId, VolumeId};
use cairn_volume::Numbers;
use serde::{Deserialize, Serialize};

use crate::volumes::under::{Beneath, Given};

/// What a clone is made of: in `volume.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CloneOf {
    pub(super) volume: String,
    /// Its number: its name may change.
    pub(super) snapshot: u64,
    /// Its root digest.
    pub(super) root: String,
    /// What it was called when the clone was made.
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

/// What is going to be on the devices of a volume: written before any of it is there.
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

/// What `volume.json` says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VolumeDocument {
    /// Absolute, or relative to the folder of the volume.
    pub(super) devices: Vec<PathBuf>,
    /// Where the log device is, absolute: while the log moves, both places. The superblock says
    /// whether there is one, and which.
    pub(super) log_devices: Vec<PathBuf>,
    /// A clone: the devices hold what differs from a snapshot of another volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) clone_of: Option<CloneOf>,
    /// A history between the devices and the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) history: Option<Beneath>,
    /// One that is being made, and that nothing was written through: a start takes back what there
    /// is of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) coming: Option<Beneath>,
    /// What was to be on its devices before anything was. As long as the volume is not in its place
    /// nobody has used it, and a start takes that back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) made_as: Option<Making>,
    /// Of a history that was taken away, in which the volume had been brought back: numbers that it
    /// had not given yet.
    pub(super) given: Given,
}

impl VolumeDocument {
    /// Of a volume on those devices, with nothing else.
    pub(crate) fn of(devices: Vec<PathBuf>) -> Self {
        let (history, coming, made_as, given) = (None, None, None, Given::default());
        Self { devices, log_devices: Vec::new(), clone_of: None, history, coming, made_as, given }
    }

    /// The volume gives no number below these.
    pub(super) fn numbers(&self) -> Numbers {
        let beneath = self.history.as_ref().map(Beneath::given).unwrap_or_default();
        let Given { file, snapshot } = self.given.and(beneath);
        Numbers { file, snapshot }
    }
}
