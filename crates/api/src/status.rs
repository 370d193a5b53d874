//! Objects about the server itself: its status, and state files that can't be read.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    BucketMirror, Device, Drill, Export, Follower, Governor, HostRoom, Leftover, Mirror, Mount, Problem,
    Schedule, Volume, VolumeRole,
};

/// A state file of the server that is there and can't be read.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DamagedFile {
    /// Below the data directory.
    pub file: String,
    /// The volume or the device that it belongs to; `server` for the server's own.
    pub subject: String,
    /// Why it can't be read.
    pub reason: String,
    /// What is out of service until it can.
    pub means: String,
    /// What it costs to give it up; none when nothing could go on without it.
    pub costs: Option<String>,
    /// When its previous generation was written, if there is one that can be read.
    pub previous_ms: Option<u64>,
    /// What to do.
    pub next: String,
}

/// To take in a state file that could not be read.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RestoreState {
    /// A path, also one below the data directory.
    pub file: String,
    /// Its previous generation instead of what is there.
    #[serde(default)]
    pub previous: bool,
}

/// To go on without a state file that can't be read.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GiveUpState {
    /// A path, also one below the data directory.
    pub file: String,
}

/// A state file that was given up.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GivenUp {
    /// As asked for.
    pub file: String,
    /// Where it was set aside; empty for one that was not there any more.
    pub aside: String,
}

/// A copy of the server's own state in one file, as it was made or restored. No answer of the API:
/// the command line makes it of the data directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StateBackup {
    /// The file.
    pub file: String,
    /// State files in it.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A server at a glance.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The version of the program.
    pub version: String,
    /// The data directory.
    pub data: String,
    /// The process.
    pub pid: u32,
    /// How long it has run.
    pub uptime_ms: u64,
    /// Memory that it has now; 0 where the system does not say.
    pub memory_bytes: u64,
    /// Memory that each open volume may take for cached blocks and for writes on their way.
    pub cache_bytes: u64,
    /// Consistency points of all open volumes since they were opened.
    pub consistency_points: u64,
    /// SHA-256 of this server's certificate.
    pub fingerprint: String,
    /// Where the API listens: the control socket first.
    pub http: Vec<String>,
    /// Where mirrors connect; none when off.
    pub mirror: Option<String>,
    /// Further addresses of that listener: where the sources of mirrors here reach this server.
    pub mirror_further: Vec<String>,
    /// Where NBD clients connect.
    pub nbd: Vec<String>,
    /// Where iSCSI initiators connect.
    pub iscsi: Vec<String>,
    /// Where NFS clients connect.
    #[serde(default)]
    pub nfs: Vec<String>,
    /// The file system of the data directory, which new volumes without devices are on.
    #[serde(default)]
    pub room: Option<HostRoom>,
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// The adopted devices.
    pub devices: Vec<Device>,
    /// The exports that clients can open.
    pub exports: Vec<Export>,
    /// The mirrors of which this server is the destination.
    pub mirrors: Vec<Mirror>,
    /// The drills of those mirrors.
    pub drills: Vec<Drill>,
    /// The mirrors of volumes of this server in buckets.
    #[serde(default)]
    pub bucket_mirrors: Vec<BucketMirror>,
    /// What mirrors may cost clients, where that was said.
    pub governors: Vec<Governor>,
    /// The mirrors that follow volumes of this server.
    pub followers: Vec<Follower>,
    /// What is kept for mirrors that nobody here knows.
    pub leftovers: Vec<Leftover>,
    /// What is mounted on the server's machine.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// The schedules of snapshots of all open volumes.
    #[serde(default)]
    pub schedules: Vec<Schedule>,
    /// What is wrong, with remedies.
    pub problems: Vec<Problem>,
    /// Advice that is no problem: all is well without it.
    #[serde(default)]
    pub notes: Vec<Problem>,
}

impl Status {
    /// Whether data is not served, or is not protected: a volume or a device is out of service or
    /// damaged, or `cairn mirror check` is critical.
    pub fn is_critical(&self, problem: &Problem) -> bool {
        let subject = &problem.subject;
        let is_hurt = |volume: &Volume| {
            volume.role == VolumeRole::Unavailable
                || volume.problem.is_some()
                || volume.scrub.as_ref().is_some_and(|scrub| !scrub.damaged.is_empty())
        };
        self.volumes.iter().any(|volume| volume.name == *subject && is_hurt(volume))
            || self.devices.iter().any(|device| device.name == *subject && device.problem.is_some())
            || self.mirrors.iter().any(|mirror| mirror.name == *subject && mirror.check > 1)
            || self.bucket_mirrors.iter().any(|mirror| mirror.name == *subject && mirror.check > 1)
    }
}
