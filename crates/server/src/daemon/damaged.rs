//! State files that exist but cannot be read: the parts that each keeps out of service, and the
//! ways to recover.
//!
//! A server starts with those of its files that can be read. The content of a damaged one is
//! unknown, not empty: the part that owns it stays out of service until the content is known again,
//! or the owner gives the file up. The file itself is not changed. [`KINDS`] lists the effects of
//! each; the parts of the server implement them.
//!
//! - `restore`: the owner has put a copy in its place, or chooses the previous generation, which is
//!   kept beside some of them ([`state::keeps_previous`]); the part that owns the file loads it,
//!   without a restart.
//! - `give up`: the file is set aside as `NAME.json.damaged`, and the part continues as if the file
//!   had never existed.
//!
//! Changing such a file by hand is not a third way: a file that was removed, or replaced without a
//! command, is still unknown, and reported as such ([`Unknown`]).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use cairn_api as api;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use crate::actors::{oidc, tokens};
use crate::daemon::error::DaemonError;
use crate::dumps::{files as dumps, images};
use crate::error::ServerError;
use crate::exports::{access, mounts, nfs};
use crate::mirrors::{drills, followers, governor};
use crate::schedules::hooks;
use crate::{buckets, devices, fleet, groups, mirrors, names, notify, peers, schedules, state, volumes};

mod commands;

/// The places of the files of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// `DIR/FILE`.
    Server,
    /// `DIR/volumes/NAME/FILE`.
    Volume,
    /// `DIR/devices/NAME.json`.
    Device,
}

/// A kind of state file.
struct Kind {
    file: &'static str,
    place: Place,
    /// Reads the file as its owner does.
    check: fn(&Path) -> Result<(), ServerError>,
    /// The parts that are out of service while it is unknown.
    means: &'static str,
    /// The cost of giving it up; `None` if the part could not continue without it.
    costs: Option<&'static str>,
    /// Its owner reports the problem already.
    is_told: bool,
}

fn check<T: DeserializeOwned>(path: &Path) -> Result<(), ServerError> {
    state::load::<T>(path).map(drop)
}

/// Reads a file that must exist.
fn check_present<T: DeserializeOwned>(path: &Path) -> Result<(), ServerError> {
    state::load::<T>(path)?
        .map(drop)
        .ok_or_else(|| ServerError::Daemon(DaemonError::StateGone { path: path.to_owned() }))
}

/// State files that could not be read when they were needed. Their content is unknown until they
/// are loaded or given up, even if another file has replaced them by now.
#[derive(Default)]
pub(crate) struct Unknown(Mutex<BTreeSet<PathBuf>>);

impl Unknown {
    /// Of a data directory that is being opened.
    pub(crate) fn of(dir: &Path) -> Self {
        Self(Mutex::new(survey(dir).into_iter().map(|found| found.path).collect()))
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.0.lock().iter().cloned().collect()
    }

    fn has(&self, path: &Path) -> bool {
        self.0.lock().contains(path)
    }

    fn forget(&self, path: &Path) {
        self.0.lock().remove(path);
    }
}

const fn kind(
    place: Place,
    file: &'static str,
    check: fn(&Path) -> Result<(), ServerError>,
    means: &'static str,
    costs: &'static str,
) -> Kind {
    Kind { file, place, check, means, costs: Some(costs), is_told: false }
}

/// All of them, except the identity of the server and its token, which are not documents.
const KINDS: [Kind; 26] = [
    kind(
        Place::Server,
        "peers.json",
        check::<peers::PeersDocument>,
        "no server can mirror from here, and no invitation is made; the state that mirrors need is kept",
        "all invitations and all servers that may mirror from here: each mirror needs a new invitation (`cairn peer invite` here, `cairn mirror repoint` there)",
    ),
    kind(
        Place::Server,
        "followers.json",
        check::<followers::FollowersDocument>,
        "the state that mirrors of volumes here may need is kept, and group snapshots stay",
        "the list of mirrors of volumes here: each returns when its mirror connects; release the snapshots of mirrors that are gone with `cairn mirror forget`; a failover is reported again when its server connects",
    ),
    kind(
        Place::Server,
        "groups.json",
        check::<groups::GroupsDocument>,
        "no group can be used; mirrors that may belong to one show nothing, get no updates and don't change their roles alone; volumes of an interrupted failover show nothing either",
        "all groups, their schedules, and an interrupted failover: create them again (`cairn group create`); their snapshots stay",
    ),
    kind(
        Place::Server,
        "exports.json",
        check::<access::Exports>,
        "CRITICAL: the access settings of exports are unknown, so no client can connect to any",
        "EVERY EXPORT IS OPEN TO ANY CLIENT THAT REACHES A LISTENER until `cairn export set` restricts it; CHAP secrets, read-only settings and block sizes are lost",
    ),
    kind(
        Place::Server,
        "reservations.json",
        check::<access::Reservations>,
        "CRITICAL: the reservations of disks are unknown, so no initiator can connect over iSCSI",
        "all persistent reservations: a node of a cluster that was fenced off can write again; stop the cluster first, or have it register again",
    ),
    kind(
        Place::Server,
        "mounts.json",
        check::<mounts::MountsDocument>,
        "nothing is mounted, and nothing can be",
        "the list of mounts: mount them again with `cairn mount`",
    ),
    kind(
        Place::Server,
        "nfs.json",
        check::<nfs::NfsDocument>,
        "CRITICAL: no client can use files over NFS, and nothing can be exported",
        "all exports over NFS and their rules: export each again with `cairn export set VOLUME:/PATH --nfs`",
    ),
    kind(
        Place::Server,
        "nfs-locks.json",
        check::<nfs::locks::LocksDocument>,
        "NFS clients get no locks until the next start of the server",
        "locks that NFS clients had before the last start: these clients do not learn that they have lost them",
    ),
    kind(
        Place::Server,
        "buckets.json",
        check::<buckets::BucketsDocument>,
        "no bucket can be added, used or deleted",
        "all buckets: add each again with `cairn bucket add`; the objects in them stay",
    ),
    kind(
        Place::Server,
        "tokens.json",
        check::<tokens::TokensDocument>,
        "CRITICAL: the tokens of the API are unknown, so none is accepted over TCP; the control socket works",
        "all tokens: create them again with `cairn token create`; the token in `http-token` is accepted again, even if it was revoked",
    ),
    kind(
        Place::Server,
        "oidc.json",
        check::<oidc::OidcDocument>,
        "people cannot sign in by the identity provider; tokens work",
        "the identity provider and its rules: configure them again with `cairn oidc set` and `cairn oidc rule create`",
    ),
    kind(
        Place::Server,
        "notify.json",
        check::<notify::NotifyDocument>,
        "no notification is sent, and no target can be added, changed or deleted",
        "all notification targets: add each again with `cairn notify add`",
    ),
    kind(
        Place::Server,
        "fleet.json",
        check::<fleet::FleetDocument>,
        "no other server is shown, and none can be added or deleted",
        "the other servers that this one shows, with their tokens: add each again with `cairn fleet create`",
    ),
    kind(
        Place::Server,
        "notify.desks.json",
        check::<notify::DesksDocument>,
        "no notification is sent, and no target can be added, changed or deleted",
        "the messages that wait, and the list of problems that were sent: present problems are sent once more",
    ),
    Kind {
        file: "",
        place: Place::Device,
        check: check::<devices::open::DeviceDocument>,
        means: "CRITICAL: it is not exported, nor is a LUN that it is on",
        costs: Some(
            "the device is no longer adopted: its origin is a plain disk in its last written state (with the placement `logging` it lacks blocks that only the history has), and its history can't be opened again",
        ),
        is_told: true,
    },
    Kind {
        file: "volume.json",
        place: Place::Volume,
        check: check_present::<volumes::document::VolumeDocument>,
        means: "CRITICAL: the volume is not open, because the place of its devices is unknown",
        costs: None,
        is_told: true,
    },
    kind(
        Place::Volume,
        "mirror.json",
        check::<mirrors::document::MirrorDocument>,
        "CRITICAL: its source is unknown: it gets no updates, and its role does not change",
        "the source of the volume, and its settings as a mirror. `cairn mirror repoint` sets a source again, `cairn mirror failover` makes it writable; snapshots stay until `cairn mirror set --lock` sets a time",
    ),
    kind(
        Place::Volume,
        "bucket-mirrors.json",
        check::<mirrors::bucket::BucketMirrorsDocument>,
        "CRITICAL: its mirrors in buckets are unknown: they make no images, and it can't be deleted",
        "its mirrors in buckets: create them again with `cairn mirror create --to BUCKET: --take-over`; their images stay. An older state of a bucket is no longer detected",
    ),
    kind(
        Place::Volume,
        "reverse.json",
        check::<mirrors::Consent>,
        "no mirror of it may take over, unless it needs no permission",
        "the permission for a mirror to take over: give it again with `cairn mirror allow-reverse`",
    ),
    kind(
        Place::Volume,
        "drill.json",
        check::<drills::DrillDocument>,
        "its drills do not run",
        "the probe, the schedule and the last result of its drills: `cairn mirror drill --probe` sets them again",
    ),
    kind(
        Place::Volume,
        "schedules.json",
        check::<schedules::SchedulesDocument>,
        "its schedules make no snapshots and delete none",
        "its schedules: create them again with `cairn snapshot schedule set`; no snapshot is deleted until then",
    ),
    kind(
        Place::Volume,
        "hooks.json",
        check::<hooks::HooksDocument>,
        "no snapshot of it is made, because it may have hooks, and its mirrors get no updates",
        "the commands around its snapshots: set them again with `cairn volume hooks`; until then its snapshots are made without",
    ),
    kind(
        Place::Volume,
        "governor.json",
        check::<governor::GovernorDocument>,
        "transfers of its mirrors do not slow down for its clients",
        "the latency limit for its mirrors: set it again with `cairn volume governor`",
    ),
    kind(
        Place::Volume,
        "scrub.json",
        check::<volumes::ScrubDocument>,
        "no scheduled scrub runs, and findings of a scrub are not saved",
        "the time of its last scrub, its schedule, and the list of damaged blocks: `cairn volume scrub` finds them again",
    ),
    kind(
        Place::Volume,
        "views.json",
        check::<volumes::ViewsDocument>,
        "its views of instants are not shown, and none is made",
        "its views of instants: create them again with `cairn history view`. Loaded at the next start of the server",
    ),
    kind(
        Place::Volume,
        "dumps.json",
        check::<images::document::ImageDumpsDocument>,
        "no image dump of it is made, and the data of an unfinished one may be deleted",
        "the list of its image dumps: the next one is of level 0; release the snapshots held for them with `cairn snapshot release`",
    ),
];

/// The dates of BSD dumps: in the list as well, but named because code that makes dumps reads them
/// alone.
const DATES: Kind = kind(
    Place::Volume,
    "dates.json",
    check::<dumps::FileDumpsDocument>,
    "no BSD dump of it is made",
    "the dates of its BSD dumps: the next one is of level 0",
);

/// An unreadable file.
struct UnreadFile {
    kind: &'static Kind,
    path: PathBuf,
    /// The name of the volume or device; none for the server's own files.
    name: Option<String>,
    error: ServerError,
}

impl UnreadFile {
    fn previous_ms(&self) -> Option<u64> {
        let path = state::previous(&self.path);
        (self.kind.check)(&path).ok()?;
        let changed = fs::metadata(&path).ok()?.modified().ok()?;
        let since = changed.duration_since(std::time::UNIX_EPOCH).ok()?;
        since.as_millis().try_into().ok()
    }

    fn show(&self, dir: &Path) -> api::DamagedFile {
        let file = self.path.strip_prefix(dir).unwrap_or(&self.path);
        api::DamagedFile {
            file: file.display().to_string(),
            subject: self.subject(),
            reason: self.error.to_string(),
            means: self.kind.means.to_owned(),
            costs: self.kind.costs.map(str::to_owned),
            previous_ms: self.previous_ms(),
            next: self.error.next(),
        }
    }

    fn subject(&self) -> String {
        self.name.clone().unwrap_or_else(|| "server".to_owned())
    }
}

/// Names of the entries of a folder.
fn names_in(dir: &Path) -> Vec<String> {
    let listing = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        listing.map(|found| found.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Whether there is a folder of a volume of that name.
fn is_volume(dir: &Path, name: &str) -> bool {
    let folder = dir.join("volumes").join(name);
    // An entry that is not a volume has no document of one.
    names::check("volume", name).is_ok()
        && folder.is_dir()
        && names_in(&folder).iter().any(|file| file.starts_with("volume."))
}

/// The kind of a state file, and the volume or device that it is of.
fn kind_of(dir: &Path, path: &Path) -> Option<(&'static Kind, Option<String>)> {
    let inside = path.strip_prefix(dir).ok()?;
    let parts: Vec<&str> = inside.iter().map(|part| part.to_str().unwrap_or_default()).collect();
    let of = |place: Place, file: &str| {
        KINDS.iter().chain([&DATES]).find(|kind| kind.place == place && kind.file == file)
    };
    match parts[..] {
        [file] => Some((of(Place::Server, file)?, None)),
        ["devices", file] => Some((of(Place::Device, "")?, Some(file.strip_suffix(".json")?.to_owned()))),
        ["volumes", volume, file] => Some((of(Place::Volume, file)?, Some(volume.to_owned()))),
        _ => None,
    }
}

/// All state files below a data directory that can't be read.
fn survey(dir: &Path) -> Vec<UnreadFile> {
    let mut found = Vec::new();
    let mut look = |kind: &'static Kind, path: PathBuf, name: Option<&String>| {
        if let Err(error) = (kind.check)(&path) {
            let error = match error {
                // A folder in its place, or a file without read permission.
                ServerError::Path { .. } => ServerError::Daemon(DaemonError::StateUnread {
                    path: path.clone(),
                    reason: error.to_string(),
                }),
                error => error,
            };
            found.push(UnreadFile { kind, path, name: name.cloned(), error });
        }
    };
    let volumes = names_in(&dir.join("volumes"));
    let devices = names_in(&dir.join("devices"));
    for kind in KINDS.iter().chain([&DATES]) {
        match kind.place {
            Place::Server => look(kind, dir.join(kind.file), None),
            // A name that begins with a dot is being made or deleted.
            Place::Volume => volumes.iter().filter(|name| is_volume(dir, name)).for_each(|name| {
                look(kind, dir.join("volumes").join(name).join(kind.file), Some(name));
            }),
            Place::Device => devices.iter().for_each(|file| {
                if let Some(name) = file.strip_suffix(".json") {
                    look(kind, dir.join("devices").join(file), Some(&name.to_owned()));
                }
            }),
        }
    }
    found
}

/// Refuses to start if a newer version of this program has run: its files are intact, and nothing
/// in them is lost by waiting for the right program. The files of a single volume that never
/// prevented a start do not now either.
pub(crate) fn refuse_newer(dir: &Path) -> Result<(), ServerError> {
    let stops = |found: &UnreadFile| {
        let is_newer = matches!(found.error, ServerError::Daemon(DaemonError::StateVersion { found, supported, .. }) if found > supported);
        is_newer
            && (found.kind.place != Place::Volume || matches!(found.kind.file, "mirror.json" | "drill.json"))
    };
    survey(dir).into_iter().find(stops).map_or(Ok(()), |found| Err(found.error))
}

/// A place beside a file that nothing has yet, for it to be set aside.
fn aside(path: &Path) -> PathBuf {
    let named = |end: String| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let mut places = (2..).map(|number| named(format!(".damaged-{number}")));
    let first = named(".damaged".to_owned());
    if first.exists() { places.find(|place| !place.exists()).unwrap_or(first) } else { first }
}

/// Keeps a file under another name, while `change` replaces or removes the original. The file never
/// seems to be missing: it is kept first, and if the change fails or is interrupted the original
/// stays unchanged.
fn set_aside(path: &Path, change: impl FnOnce() -> io::Result<()>) -> Result<PathBuf, ServerError> {
    let kept = aside(path);
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    // A folder cannot have a hard link, and one to another user's file may be forbidden.
    let keep = || if is_file { state::keep_as(path, &kept) } else { Err(io::ErrorKind::IsADirectory.into()) };
    keep()
        .or_else(|_| fs::rename(path, &kept).and_then(|()| state::sync_parent(&kept)))
        .map_err(ServerError::path("write", &kept))?;
    change().map_err(ServerError::path("change", path))?;
    Ok(kept)
}
