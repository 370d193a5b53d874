//! The exports that clients can open: `VOLUME/LUN` for the present, `VOLUME@SNAPSHOT/LUN` and
//! `VOLUME@VIEW/LUN` for the past; `DEVICE` and `DEVICE@VIEW` of an adopted device.
//!
//! On the destination of a mirror `VOLUME/LUN` is the newest image at the time of connecting, and
//! stays so for the whole session even if newer images arrive. A file system that is mounted from
//! it never sees its disk change. A client gets a newer image by reconnecting. The mirrors of a
//! group are shown together: as of one snapshot of the group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_api::WriteCache;
use cairn_base::{Generation, SnapshotId, Timestamp, VolumeId};
use cairn_device::DeviceError;
use cairn_files::{FilesError, LunInfo};
use cairn_frontend_nbd::{Export, ExportInfo, Exports, OpenExportError, Visitor};
use cairn_volume::{Image, Snapshot, VolumeError};
use parking_lot::Mutex;

use crate::actors::audit::{Audit, Event};
use crate::certificates::Certificates;
use crate::devices::Devices;
use crate::error::ServerError;
use crate::exports::access::Access;
use crate::exports::changed::Changed;
use crate::exports::nbd_rules::NbdRefusal;
use crate::exports::plans::Plans;
use crate::exports::recordings::Recordings;
use crate::exports::target_names::present_of;
use crate::groups::{Groups, Showing};
use crate::names::ExportName;
use crate::volumes::Volumes;
use crate::volumes::open::OpenVolume;

pub(crate) mod access;
pub(crate) mod changed;
mod commands;
pub(crate) mod error;
pub(crate) mod mounts;
pub(crate) mod nbd_rules;
pub(crate) mod nfs;
pub(crate) mod plans;
pub(crate) mod quotas;
pub(crate) mod recordings;
mod sessions;
pub(crate) mod target_names;
pub(crate) mod targets;

/// The exports of the volumes.
pub(crate) struct ExportTable {
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) access: Arc<Access>,
    pub(crate) recordings: Arc<Recordings>,
    pub(crate) plans: Arc<Plans>,
    pub(crate) frozen: Arc<FrozenNames>,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) audit: Arc<Audit>,
}

/// The names of the LUNs in snapshots, which stay as they are: clients ask for lists as often as
/// they like.
#[derive(Default)]
pub(crate) struct FrozenNames(Mutex<BTreeMap<FrozenKey, Arc<[String]>>>);

/// A snapshot. A volume that was restored may have one of the same number that is another.
type FrozenKey = (VolumeId, SnapshotId, Generation, Timestamp);

fn frozen_key(open: &OpenVolume, snapshot: &Snapshot) -> FrozenKey {
    (open.volume.id(), snapshot.id, snapshot.generation, snapshot.created)
}

impl FrozenNames {
    /// The LUNs of a snapshot; none if they can't be read.
    fn of(&self, open: &OpenVolume, snapshot: &Snapshot) -> Arc<[String]> {
        let key = frozen_key(open, snapshot);
        if let Some(known) = self.0.lock().get(&key) {
            return known.clone();
        }
        let image = open.volume.image(Some(snapshot.id));
        let Ok(luns) = image.map_err(FilesError::from).and_then(|image| open.luns.readable_in(&image)) else {
            return Arc::default();
        };
        let names: Arc<[String]> = luns.into_iter().map(|lun| lun.name).collect();
        self.0.lock().insert(key, names.clone());
        names
    }

    /// Removes snapshots that no longer exist.
    fn keep(&self, there: &BTreeSet<FrozenKey>) {
        let mut known = self.0.lock();
        if known.len() > there.len() {
            known.retain(|key, _| there.contains(key));
        }
    }
}

impl Exports for ExportTable {
    fn list(&self) -> Vec<ExportInfo> {
        let mut exports = self.devices.exports();
        let mut there = BTreeSet::new();
        for open in self.volumes.all() {
            let volume = &open.name;
            let (luns, takes_writes) = luns_of(&self.groups, &open).unwrap_or_default();
            for lun in luns {
                let description = if takes_writes { "" } else { "mirror, read-only" };
                let name = format!("{volume}/{}", lun.name);
                exports.push(ExportInfo { name, description: description.to_owned() });
            }
            for snapshot in open.volume.snapshots().iter().rev() {
                there.insert(frozen_key(&open, snapshot));
                for lun in &*self.frozen.of(&open, snapshot) {
                    let name = format!("{volume}@{}/{lun}", snapshot.name);
                    exports.push(ExportInfo { name, description: "snapshot, read-only".to_owned() });
                }
            }
            for (view, shown) in open.views() {
                for lun in open.luns.readable_in(shown.image()).unwrap_or_default() {
                    let name = format!("{volume}@{view}/{}", lun.name);
                    exports.push(ExportInfo { name, description: "an instant, read-only".to_owned() });
                }
            }
        }
        self.frozen.keep(&there);
        exports
    }

    /// Snapshots and views do not count: a disk with a past is still one disk. So is a LUN together
    /// with the device that it was adopted as; the history of that may be in another LUN.
    fn default_export(&self) -> Result<String, OpenExportError> {
        let devices = self.devices.exports().into_iter().map(|export| export.name);
        let devices = devices.filter(|name| !name.contains('@')).map(|name| self.devices.disk_of(&name));
        let mut names: BTreeSet<String> = devices.collect();
        for open in self.volumes.all() {
            let (luns, _) = luns_of(&self.groups, &open).unwrap_or_default();
            let luns = luns.iter().map(|lun| format!("{}/{}", open.name, lun.name));
            names.extend(luns.filter(|name| !self.devices.holds_history(name)));
        }
        match names.len() {
            1 => names.pop_first().ok_or(OpenExportError::NoDefault { count: 0 }),
            count => Err(OpenExportError::NoDefault { count }),
        }
    }

    fn admit(&self, name: &str, visitor: &Visitor) -> Result<(), OpenExportError> {
        let restricted = self.access.restricted(&self.settings_of(name));
        restricted.admit(visitor, &self.certificates).map_err(|refusal| match refusal {
            NbdRefusal::NeedsTls => OpenExportError::NeedsTls { name: name.to_owned() },
            NbdRefusal::Rule(reason) => OpenExportError::Forbidden { name: name.to_owned(), reason },
        })
    }

    fn refused(&self, name: &str, visitor: &Visitor, error: &OpenExportError) {
        self.audit.note(Event::of_stranger(visitor.from, "NBD open", name, &error.to_string()));
    }

    fn open(&self, name: &str) -> Result<Export, OpenExportError> {
        // An adopted LUN has two names, and is one device.
        let adopter = self.devices.adopter_of(name);
        let export = self.open_named(name, adopter.as_deref())?;
        let name = adopter.as_deref().unwrap_or(name);
        let mut tap = self.recordings.tap(name, export.device);
        // A read-only export needs no plan.
        if !export.read_only {
            tap = self.plans.watch(name, tap);
        }
        Ok(Export { device: Arc::new(tap), ..export })
    }
}

impl ExportTable {
    /// Opens an export, without a tap. `adopter`: the device that it is the origin of.
    pub(crate) fn open_named(&self, name: &str, adopter: Option<&str>) -> Result<Export, OpenExportError> {
        let unknown = || OpenExportError::Unknown { name: name.to_owned() };
        if let Err(error) = self.access.check_known() {
            tracing::warn!(export = name, %error, "every client is refused while access settings are unknown");
            return Err(OpenExportError::Failed { name: name.to_owned(), source: DeviceError::OutOfService });
        }
        // A write that went to an adopted LUN itself would be missing in the history.
        if let Some(export) = self.devices.export(adopter.unwrap_or(name)) {
            return Ok(self.offered(&self.settings_of(name), export));
        }
        if adopter.is_some() {
            return Err(unknown());
        }
        let parsed = ExportName::parse(name).ok_or_else(unknown)?;
        let open = self.volumes.get(parsed.volume).map_err(|_| unknown())?;
        let opened = match parsed.snapshot {
            Some(past) => open_past(&open, past, parsed.lun),
            None => self.open_shown(name, &open, parsed.lun),
        };
        opened.map_err(|refusal| match refusal {
            Refusal::Unknown => unknown(),
            Refusal::Failed(error) => {
                tracing::error!(export = name, %error, "an export cannot be opened");
                OpenExportError::Failed { name: name.to_owned(), source: error }
            }
        })
    }

    /// The name under which the settings of an export are stored.
    pub(crate) fn settings_of(&self, export: &str) -> String {
        self.devices.disk_of(&present_of(export))
    }

    /// The export of a volume's visible state.
    fn open_shown(&self, name: &str, open: &Arc<OpenVolume>, lun: &str) -> Result<Export, Refusal> {
        match self.groups.open_for_client(open) {
            Ok(Showing::Newest) => open_image(open, lun),
            Ok(Showing::Image(image)) => {
                frozen(open, &image, lun, "what all mirrors of its group had when you connected")
            }
            Ok(Showing::Live) => {
                let export = self.offered(name, open_present(open, lun)?);
                // A client that wrote to a LUN with a history in it would destroy that.
                Ok(Export { read_only: export.read_only || self.devices.is_history(name), ..export })
            }
            Err(error) => {
                tracing::warn!(export = name, %error, next = error.next(), "there is no export to connect to");
                Err(Refusal::Failed(DeviceError::OutOfService))
            }
        }
    }

    /// The LUN of that name in the visible state of a volume.
    pub(crate) fn find_lun(&self, open: &Arc<OpenVolume>, name: &str) -> Option<LunInfo> {
        luns_of(&self.groups, open).ok()?.0.into_iter().find(|lun| lun.name == name)
    }

    /// A LUN or an adopted device, as its owner has it offered.
    fn offered(&self, name: &str, export: Export) -> Export {
        let offer = self.access.offer(name);
        Export {
            read_only: export.read_only || offer.read_only,
            writes_through: offer.write_cache == WriteCache::Off,
            ..export
        }
    }
}

/// The LUNs that a volume shows, and whether they take writes.
pub(crate) fn luns_of(groups: &Groups, open: &Arc<OpenVolume>) -> Result<(Vec<LunInfo>, bool), ServerError> {
    let failed = ServerError::files(&open.name);
    let showing = groups.showing(open)?;
    let takes_writes = matches!(showing, Showing::Live);
    let luns = match showing {
        Showing::Live | Showing::Newest => open.luns.readable(),
        Showing::Image(image) => open.luns.readable_in(&image),
    };
    Ok((luns.map_err(failed)?, takes_writes))
}

enum Refusal {
    Unknown,
    Failed(DeviceError),
}

impl From<VolumeError> for Refusal {
    fn from(error: VolumeError) -> Self {
        Refusal::Failed(error.to_device(0, 0))
    }
}

impl From<FilesError> for Refusal {
    fn from(error: FilesError) -> Self {
        match error {
            FilesError::NoSuchLun => Refusal::Unknown,
            FilesError::Volume(error) => error.into(),
            _ => Refusal::Failed(DeviceError::OutOfService),
        }
    }
}

fn open_present(open: &Arc<OpenVolume>, lun: &str) -> Result<Export, Refusal> {
    let device = open.governor.timed(open.luns.open(lun)?);
    let file = open.luns.find(lun)?.file;
    Ok(Export {
        device,
        description: String::new(),
        read_only: false,
        writes_through: false,
        multi_conn: true,
        dirty_contexts: contexts(open),
        changed: Some(Arc::new(Changed::of_present(open.clone(), file))),
    })
}

fn open_image(open: &Arc<OpenVolume>, lun: &str) -> Result<Export, Refusal> {
    let image = open.volume.image(None)?;
    frozen(open, &image, lun, "the newest image of a mirror when you connected")
}

fn open_past(open: &Arc<OpenVolume>, past: &str, lun: &str) -> Result<Export, Refusal> {
    let image = open.past(past)?.ok_or(Refusal::Unknown)?;
    match open.view(past) {
        // Of a history, which has no snapshots.
        Some(_) => read_only(open.luns.open_in(&image, lun)?, "an instant"),
        None => frozen(open, &image, lun, "a snapshot"),
    }
}

/// The snapshots of a volume, the newest first, for `qemu:dirty-bitmap:SNAPSHOT`.
fn contexts(open: &OpenVolume) -> Vec<String> {
    open.volume.snapshots().iter().rev().map(|snapshot| snapshot.name.clone()).collect()
}

/// A LUN in an image of its volume. Each snapshot can be compared with it, an older one or a newer
/// one.
fn frozen(open: &Arc<OpenVolume>, image: &Image, lun: &str, description: &str) -> Result<Export, Refusal> {
    let file = open.luns.find_in(image, lun)?.file;
    let export = read_only(open.luns.open_in(image, lun)?, description)?;
    Ok(Export {
        dirty_contexts: contexts(open),
        changed: Some(Arc::new(Changed::of_image(open.clone(), file, image.clone()))),
        ..export
    })
}

fn read_only(device: Arc<dyn cairn_device::Device>, description: &str) -> Result<Export, Refusal> {
    Ok(Export {
        device,
        description: description.to_owned(),
        read_only: true,
        writes_through: false,
        multi_conn: true,
        dirty_contexts: Vec::new(),
        changed: None,
    })
}
