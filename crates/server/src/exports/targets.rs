//! The targets of iSCSI initiators: the export `VOLUME/LUN` is LUN 0 of
//! `iqn.2026-11.io.cairn:VOLUME.LUN`, and `VOLUME@SNAPSHOT/LUN` of
//! `iqn.2026-11.io.cairn:VOLUME.SNAPSHOT.LUN`, as `VOLUME@VIEW/LUN` is; an adopted device is
//! `iqn.2026-11.io.cairn:DEVICE`, and `DEVICE@VIEW` is `DEVICE.VIEW`. An adopted LUN has two
//! targets with one unit: the same disk at two ports.
//!
//! Names may have dots themselves. A target name is resolved by trying: LUNs of the present and
//! devices come first, then LUNs of snapshots, then views, and the shorter name of a volume or a
//! device before the longer. The result stays the same while these exist. If two disks of the
//! present have the same target name, it leads to neither, as an initiator that logs in again could
//! write to another disk. The server refuses to create such a disk, but a restore, a mirror or a
//! rollback may bring one.

use cairn_api::WriteCache;
use cairn_device::DeviceError;
use cairn_frontend_iscsi::{
    Account, Export, Initiator, LoginError, OpenTargetError, ReservationState, Targets,
};
use cairn_frontend_nbd::{Exports, OpenExportError};
use cairn_volume::Image;
use sha2::{Digest, Sha256};

use crate::actors::audit::Event;
use crate::exports::ExportTable;
use crate::exports::target_names::{DEVICE_PORT, OWN_PORT, PREFIX, target_name};
use crate::names::ExportName;
use crate::peers::token::random_bytes;
use crate::volumes::Volumes;

/// The targets of the volumes and of adopted devices.
pub(crate) struct TargetTable {
    pub(crate) exports: ExportTable,
    /// Tells this server's units from those of its mirrors, which have the same blocks and are
    /// other disks all the same.
    pub(crate) fingerprint: String,
}

/// Every way to cut a name in two at a dot.
fn cuts(name: &str) -> impl Iterator<Item = (&str, &str)> {
    name.match_indices('.').map(|(at, _)| (&name[..at], &name[at + 1..]))
}

impl TargetTable {
    fn volumes(&self) -> &Volumes {
        &self.exports.volumes
    }

    /// The export of a target name; none if the name is not a target.
    fn find(&self, target: &str) -> Option<String> {
        let name = target.strip_prefix(PREFIX)?;
        match &self.find_present(name)[..] {
            [] => {}
            [one] => return Some(one.clone()),
            several => {
                tracing::warn!(
                    target,
                    disks = several.join(", "),
                    "several disks have this target: it leads to none"
                );
                return None;
            }
        }
        let view = || {
            let mut names = cuts(name).map(|(device, view)| format!("{device}@{view}"));
            names.find(|name| self.exports.devices.export(name).is_some())
        };
        self.find_past(name).or_else(view)
    }

    /// The disks of the present that have that name. A LUN and the device on it are one.
    fn find_present(&self, name: &str) -> Vec<String> {
        let exists = |(volume, lun): &(&str, &str)| {
            self.volumes().get(volume).is_ok_and(|open| self.exports.find_lun(&open, lun).is_some())
        };
        let luns = cuts(name).filter(exists).map(|(volume, lun)| format!("{volume}/{lun}"));
        let mut found: Vec<String> = luns.collect();
        let devices = &self.exports.devices;
        if devices.export(name).is_some() && !found.contains(&devices.disk_of(name)) {
            found.push(name.to_owned());
        }
        found
    }

    fn find_past(&self, name: &str) -> Option<String> {
        for (volume, rest) in cuts(name) {
            let Ok(open) = self.volumes().get(volume) else { continue };
            for (snapshot, lun) in cuts(rest) {
                let Ok(Some(image)) = open.past(snapshot) else { continue };
                let luns = open.luns.readable_in(&image).unwrap_or_default();
                if luns.iter().any(|known| known.name == lun) {
                    return Some(format!("{volume}@{snapshot}/{lun}"));
                }
            }
        }
        None
    }

    /// The id of a unit: of this server, this volume, this LUN (a new one of the same name is
    /// another) and this snapshot; or of this device, its origin, and this view.
    fn id(&self, export: &str) -> Result<u64, DeviceError> {
        let digest = Sha256::new().chain_update(&self.fingerprint);
        let digest = match ExportName::parse(export) {
            Some(name) => self.identify_lun(digest, &name)?,
            None => {
                let identity = self.exports.devices.identity(export).ok_or(DeviceError::OutOfService)?;
                digest.chain_update(export).chain_update(identity)
            }
        };
        let digest = digest.finalize();
        let mut id = [0; 8];
        id.copy_from_slice(&digest[..8]);
        Ok(u64::from_be_bytes(id))
    }

    fn identify_lun(&self, digest: Sha256, name: &ExportName<'_>) -> Result<Sha256, DeviceError> {
        let open = self.volumes().get(name.volume).map_err(|_| DeviceError::OutOfService)?;
        let past = name.snapshot.map(|past| open.past(past)).transpose();
        let past = past.map_err(|error| error.to_device(0, 0))?.flatten();
        // Of a view it is the instant, which is beyond all numbers of snapshots.
        let number = match name.snapshot.and_then(|past| open.view(past)) {
            Some(view) => view.at_ns(),
            None => past.as_ref().and_then(Image::snapshot).map_or(0, |id| id.0),
        };
        let lun = match &past {
            Some(image) => {
                let luns = open.luns.readable_in(image).unwrap_or_default();
                luns.into_iter().find(|known| known.name == name.lun).ok_or(DeviceError::OutOfService)?
            }
            None => self.exports.find_lun(&open, name.lun).ok_or(DeviceError::OutOfService)?,
        };
        Ok(digest
            .chain_update(open.volume.status().id.0)
            .chain_update(lun.created.0.to_le_bytes())
            .chain_update(name.lun)
            .chain_update(number.to_le_bytes()))
    }
}

impl Targets for TargetTable {
    fn list(&self, initiator: &Initiator) -> Vec<String> {
        let admitted =
            |name: &String| self.exports.access.admit(&self.exports.settings_of(name), initiator).is_ok();
        let names = self.exports.list().into_iter().map(|export| export.name).filter(admitted);
        names.map(|name| target_name(&name)).collect()
    }

    fn admit(&self, initiator: &Initiator, target: &str) -> Result<Option<Account>, LoginError> {
        let found = self.find(target).ok_or(LoginError::NotFound)?;
        let admitted = self.exports.access.admit(&self.exports.settings_of(&found), initiator);
        if matches!(admitted, Err(LoginError::Forbidden)) {
            let reason = format!("the initiator {} is not permitted", initiator.name);
            let event = Event::of_stranger(Some(initiator.address), "iSCSI login", &found, &reason);
            self.exports.audit.note(event);
        }
        admitted
    }

    fn unproved(&self, initiator: &Initiator, target: &str) {
        let Some(found) = self.find(target) else { return };
        let reason = format!("the initiator {} has no valid CHAP secret", initiator.name);
        self.exports.audit.note(Event::of_stranger(Some(initiator.address), "iSCSI login", &found, &reason));
    }

    fn open(&self, target: &str) -> Result<Export, OpenTargetError> {
        let unknown = || OpenTargetError::Unknown { name: target.to_owned() };
        let failed = |source| OpenTargetError::Failed { name: target.to_owned(), source };
        let name = self.find(target).ok_or_else(unknown)?;
        let opened = self.exports.open(&name).map_err(|error| match error {
            OpenExportError::Failed { source, .. } => failed(source),
            _ => unknown(),
        })?;
        let offer = self.exports.access.offer(&self.exports.settings_of(&name));
        // A LUN that was adopted has two names, and is one unit: the LUN's own, which it was before
        // and will be after.
        let unit = self.exports.devices.disk_of(&name);
        let ports = if self.exports.devices.adopter_of(&unit).is_some() { DEVICE_PORT } else { OWN_PORT };
        let block_bytes = if opened.device.geometry().length % u64::from(offer.block_bytes) == 0 {
            offer.block_bytes
        } else {
            // A LUN that ends within a block of 4 KiB is offered whole.
            512
        };
        Ok(Export {
            id: self.id(&unit).map_err(failed)?,
            read_only: opened.read_only,
            device: opened.device,
            block_bytes,
            removable: offer.removable,
            write_cache: offer.write_cache == WriteCache::On,
            reservations: self.exports.access.reservations(&unit),
            port: if unit == name { OWN_PORT } else { DEVICE_PORT },
            ports,
            unit,
            name,
        })
    }

    fn random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(16) {
            chunk.copy_from_slice(&random_bytes::<16>()[..chunk.len()]);
        }
    }

    fn keep(&self, unit: &str, state: &ReservationState) -> Result<(), String> {
        self.exports.access.keep(unit, state).map_err(|error| error.to_string())
    }
}
