//! The server: its parts, their start and end, and its status at a glance.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_api as api;
use cairn_base::Clock;
use cairn_frontend_iscsi::IscsiServer;
use cairn_frontend_nbd::NbdServer;
use cairn_frontend_nfs::NfsServer;

use crate::actors::audit::Audit;
use crate::actors::oidc::Oidc;
use crate::actors::tokens::Tokens;
use crate::browse::Browsing;
use crate::buckets::Buckets;
use crate::certificates::Certificates;
use crate::daemon::damaged::Unknown;
use crate::daemon::data_dir::DataDir;
use crate::daemon::home::Home;
use crate::daemon::live::Live;
use crate::devices::Devices;
use crate::dumps::folders::DumpFolders;
use crate::dumps::handover::Handover;
use crate::dumps::images::Dumping;
use crate::exports::access::Access;
use crate::exports::changed::LastAnswer;
use crate::exports::mounts::Mounts;
use crate::exports::nfs::NfsTable;
use crate::exports::plans::Plans;
use crate::exports::recordings::Recordings;
use crate::fleet::Fleet;
use crate::groups::Groups;
use crate::mirrors::Mirrors;
use crate::mirrors::bucket::BucketMirrors;
use crate::mirrors::drills::Drills;
use crate::mirrors::followers::{Followers, crowded, nearly_too_many_held};
use crate::notify::Notify;
use crate::peers::Peers;
use crate::peers::identity::Identity;
use crate::volumes::Volumes;
use crate::work::jobs::Jobs;

/// All parts of a running server.
pub(crate) struct Server {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) recordings: Arc<Recordings>,
    pub(crate) plans: Arc<Plans>,
    pub(crate) mirrors: Arc<Mirrors>,
    pub(crate) source: Arc<cairn_mirror::Source>,
    pub(crate) followers: Arc<Followers>,
    pub(crate) handover: Arc<Handover>,
    pub(crate) dumping: Arc<Dumping>,
    pub(crate) drills: Arc<Drills>,
    pub(crate) mounts: Arc<Mounts>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) buckets: Arc<Buckets>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) oidc: Arc<Oidc>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) notify: Arc<Notify>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) home: Home,
    pub(crate) bucket_mirrors: Arc<BucketMirrors>,
    pub(crate) changed: LastAnswer,
    pub(crate) browsing: Browsing,
    pub(crate) dump_folders: DumpFolders,
    pub(crate) live: Live,
    pub(crate) nbd: NbdServer,
    pub(crate) iscsi: IscsiServer,
    /// The portals that discovery reports to initiators.
    pub(crate) iscsi_portals: Vec<String>,
    pub(crate) nfs: NfsServer,
    pub(crate) nfs_exports: Arc<NfsTable>,
    pub(crate) access: Arc<Access>,
    /// DIR/nbd.sock.
    pub(crate) nbd_socket: PathBuf,
    pub(super) http_addresses: Vec<String>,
    /// The address of the mirror listener; none when off.
    pub(crate) mirror_address: Option<String>,
    pub(crate) advertise: Option<String>,
    pub(super) started: Duration,
    pub(super) data: DataDir,
    /// State files that could not be read, and were not taken in or given up since.
    pub(crate) unknown: Unknown,
}

impl Server {
    /// The server at a glance.
    pub(crate) fn status(&self) -> api::Status {
        let (followers, leftovers) = self.followers();
        let mut problems = self.volumes.problems();
        problems.extend(self.mirrors.problems());
        problems.extend(self.bucket_mirrors.problems());
        problems.extend(self.drills.problems());
        problems.extend(self.group_problems());
        problems.extend(self.devices.problems());
        problems.extend(self.mounts.problems());
        let parted = |follower: &api::Follower| {
            let are_of_it =
                |other: &&api::Follower| other.volume == follower.volume && other.departed.is_some();
            follower.parted(followers.iter().filter(are_of_it).count() > 1)
        };
        problems.extend(followers.iter().filter_map(parted));
        let now_ms = self.clock.now().0 / 1_000_000;
        problems.extend(followers.iter().filter_map(|follower| follower.unheard(now_ms)));
        problems.extend(crowded(&followers, &leftovers));
        problems.extend(self.volumes.all().iter().flat_map(|open| {
            let names: Vec<String> = open.volume.snapshots().into_iter().map(|one| one.name).collect();
            nearly_too_many_held(&open.name, &names)
        }));
        problems.extend(self.schedule_problems());
        problems.extend(self.state_problems());
        problems.extend(self.access_problems());
        problems.extend(self.home.problem(self.data.path()));
        problems.extend(self.notify.problems());
        problems.extend(self.nfs_problems());
        let exports = self.exports();
        problems.extend(self.target_problems(&exports));
        problems.extend(self.exposure_problems(&exports));
        problems.extend(self.certificates.problems());
        problems.extend(followers.iter().filter(|follower| follower.over_rpo).map(|follower| api::Problem {
            subject: follower.volume.clone(),
            message: "a mirror of it is further behind than its owner wants".to_owned(),
            next: "see `cairn mirror status` at the destination".to_owned(),
        }));
        api::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data: self.data.path().display().to_string(),
            pid: std::process::id(),
            uptime_ms: self.uptime().as_millis() as u64,
            memory_bytes: resident_bytes().unwrap_or(0),
            cache_bytes: self.volumes.cache_bytes(),
            consistency_points: self
                .volumes
                .all()
                .iter()
                .map(|open| open.volume.status().consistency_points)
                .sum(),
            fingerprint: self.identity.fingerprint.to_string(),
            http: self.http_addresses.clone(),
            mirror: self.mirror_address.clone(),
            mirror_further: self.mirrors.opened().iter().map(ToString::to_string).collect(),
            nbd: self.nbd.addresses().iter().map(ToString::to_string).collect(),
            iscsi: self.iscsi.addresses().to_vec(),
            nfs: self.nfs.addresses().to_vec(),
            room: self.volumes.room(),
            volumes: self.volumes.list(),
            devices: self.list_devices(),
            exports,
            mirrors: self.list_mirrors(),
            drills: self.drills.list(),
            bucket_mirrors: self.list_bucket_mirrors(),
            governors: self.governors(),
            followers,
            leftovers,
            mounts: self.mounts.list(),
            schedules: self.all_schedules(),
            problems,
            notes: self.notes(),
        }
    }

    /// Advice that is no problem.
    fn notes(&self) -> Vec<api::Problem> {
        let mut notes = self.unchecked_mirrors();
        notes.extend(self.bucket_mirrors.unverified());
        notes.extend(self.nfs_notes());
        notes
    }

    /// The time since the start.
    pub(crate) fn uptime(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.started)
    }

    /// The data directory, absolute.
    pub(crate) fn data_dir(&self) -> &std::path::Path {
        self.data.path()
    }

    /// The data directory, as others name it.
    pub(crate) fn data_path(&self) -> String {
        let path = self.data.path();
        std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
    }
}

/// Memory that this process has now.
fn resident_bytes() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let resident: u64 = pages.split(' ').nth(1)?.parse().ok()?;
    Some(resident * rustix::param::page_size() as u64)
}
