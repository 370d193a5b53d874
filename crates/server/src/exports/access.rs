//! Access to exports, and their settings: `DIR/exports.json`; and the persistent reservations of
//! iSCSI: `DIR/reservations.json`.
//!
//! An export without an entry is open to every client that reaches a listener, as a server listens
//! by default only on addresses of its own machine. A LUN that was adopted as a device is one disk
//! with two names: its settings are stored under the LUN's name.
//!
//! A LUN of a mirror without settings here is open only to clients that its source admits:
//! [`Access::take_over`] updates these settings regularly while the mirror follows, and they remain
//! after a failover. CHAP secrets are not transferred, so that the owner of a mirror can't write to
//! its source; an initiator that needs one is refused until the owner of this side sets it.
//! Settings of this side's owner override those of the source, for all settings of a LUN at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use cairn_api as api;
use cairn_frontend_iscsi::{
    Account, Credential, Initiator, LoginError, Registration, ReservationState, nexus_name,
};
use cairn_mirror::LunAccess;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::exports::nbd_rules::{NbdRule, Restricted};
use crate::exports::target_names::DEVICE_PORT;
use crate::state;
use crate::state::Unread;

/// The shortest secret of CHAP, in bytes (RFC 7143, section 9.2.1: 96 bits).
const SECRET_BYTES_MIN: usize = 12;
/// Logical blocks by default, in bytes.
const BLOCK_BYTES: u32 = 512;

/// An address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network {
    address: IpAddr,
    prefix: u8,
}

impl FromStr for Network {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        let invalid = || ServerError::Invalid {
            fault: "invalid network",
            next: "give an address such as 10.0.0.7, or a network such as 10.0.0.0/24",
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| invalid())?)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().map_err(|_| invalid())?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        match prefix.unwrap_or(whole) {
            prefix if prefix <= whole => Ok(Self { address, prefix }),
            _ => Err(invalid()),
        }
    }
}

impl Network {
    pub(super) fn holds(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.prefix);
                let cut = |address: u32| u64::from(address) >> shift;
                cut(network.into()) == cut(address.into())
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let cut = |address: u128| match 128 - u32::from(self.prefix) {
                    128 => 0,
                    shift => address >> shift,
                };
                cut(network.into()) == cut(address.into())
            }
            _ => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Secret {
    name: String,
    secret: String,
}

impl From<&Secret> for Credential {
    fn from(secret: &Secret) -> Self {
        Self { name: secret.name.clone(), secret: secret.secret.as_bytes().to_vec() }
    }
}

/// The settings of an export before a change.
pub(crate) struct Before(Option<ExportSettings>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ExportSettings {
    initiators: Vec<String>,
    networks: Vec<String>,
    chap: Option<Secret>,
    chap_target: Option<Secret>,
    read_only: bool,
    removable: bool,
    block_bytes: u32,
    write_cache: api::WriteCache,
    /// As it is at the source of the mirror; its owner here has set nothing.
    from_source: bool,
    /// The name with which initiators authenticate at the source, whose secret is unknown here:
    /// every initiator is refused.
    secret_lacks: Option<String>,
    /// The rule for NBD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbd: Option<NbdRule>,
    /// The client that a program has reserved it for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
}

impl Default for ExportSettings {
    fn default() -> Self {
        Self {
            initiators: Vec::new(),
            networks: Vec::new(),
            chap: None,
            chap_target: None,
            read_only: false,
            removable: false,
            block_bytes: BLOCK_BYTES,
            write_cache: api::WriteCache::Auto,
            from_source: false,
            secret_lacks: None,
            nbd: None,
            holder: None,
        }
    }
}

impl From<&LunAccess> for ExportSettings {
    fn from(of: &LunAccess) -> Self {
        Self {
            initiators: of.initiators.clone(),
            networks: of.networks.clone(),
            chap: None,
            chap_target: None,
            read_only: of.read_only,
            removable: of.removable,
            block_bytes: if of.block_bytes == 4096 { 4096 } else { BLOCK_BYTES },
            // Whether initiators go down with this server as they do with the other one is not
            // known.
            write_cache: if of.durable { api::WriteCache::Off } else { api::WriteCache::Auto },
            from_source: true,
            secret_lacks: of.chap.clone(),
            nbd: None,
            holder: None,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Exports {
    exports: BTreeMap<String, ExportSettings>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Port {
    port: String,
    key: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Reserved {
    ports: Vec<Port>,
    kind: Option<u8>,
    holder: Option<String>,
}

impl Reserved {
    /// Merges the state of the same disk under its device's name. Of two reservations only one can
    /// hold: that of the LUN; the holder of the other stays registered.
    fn join(&mut self, device: Reserved) {
        let nexus = |port: &str| nexus_name(port, DEVICE_PORT);
        self.ports.extend(device.ports.iter().map(|port| Port { port: nexus(&port.port), key: port.key }));
        let Some((kind, holder)) = device.kind.zip(device.holder) else { return };
        if self.kind.is_some() {
            tracing::warn!(
                holder,
                "dropped the reservation of a LUN under the name of its device; its own reservation holds"
            );
            return;
        }
        (self.kind, self.holder) = (Some(kind), Some(nexus(&holder)));
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reservations {
    exports: BTreeMap<String, Reserved>,
}

/// How an export is offered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) read_only: bool,
    pub(crate) removable: bool,
    pub(crate) block_bytes: u32,
    pub(crate) write_cache: api::WriteCache,
}

/// Both files.
pub(crate) struct Access {
    exports_path: PathBuf,
    reservations_path: PathBuf,
    exports: Mutex<Exports>,
    reservations: Mutex<Reservations>,
    unread: Mutex<Unknown>,
}

/// The unknown state. An export without an entry is open to all, and a disk without a reservation
/// accepts writes of all: while either is unknown, clients that might be excluded are refused.
#[derive(Default)]
struct Unknown {
    exports: Option<Unread>,
    reservations: Option<Unread>,
}

impl Access {
    /// The files in `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self, ServerError> {
        let access = Self {
            exports_path: dir.join("exports.json"),
            reservations_path: dir.join("reservations.json"),
            exports: Mutex::default(),
            reservations: Mutex::default(),
            unread: Mutex::default(),
        };
        access.read();
        Ok(access)
    }

    /// Loads the present content of the files.
    pub(crate) fn read(&self) {
        let (exports, unread_exports) = state::known(&self.exports_path);
        let (reservations, unread_reservations) = state::known(&self.reservations_path);
        *self.exports.lock() = exports.unwrap_or_default();
        *self.reservations.lock() = reservations.unwrap_or_default();
        *self.unread.lock() = Unknown { exports: unread_exports, reservations: unread_reservations };
    }

    /// Refuses while access and settings of exports are unknown.
    pub(crate) fn check_known(&self) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().exports.as_ref())
    }

    /// Moves state under names of devices on LUNs to the LUN's name, as after a time when this
    /// relation was unknown: a pair is a device and its LUN. Settings of the LUN stay, but it is
    /// read-only if either was.
    pub(crate) fn join(&self, pairs: &[(String, String)]) -> Result<(), ServerError> {
        let mut exports = self.exports.lock();
        let mut reservations = self.reservations.lock();
        let (mut settings, mut reserved) = (false, false);
        for (device, lun) in pairs {
            if let Some(of_device) = exports.exports.remove(device) {
                settings = true;
                if exports.exports.contains_key(lun) {
                    tracing::warn!(
                        device,
                        lun,
                        "the settings of the LUN apply under both names; those of the device are dropped"
                    );
                }
                let read_only = of_device.read_only;
                exports.exports.entry(lun.clone()).or_insert(of_device).read_only |= read_only;
            }
            if let Some(of_device) = reservations.exports.remove(device) {
                reserved = true;
                reservations.exports.entry(lun.clone()).or_default().join(of_device);
            }
        }
        if settings {
            state::save(&self.exports_path, &*exports)?;
        }
        if reserved {
            state::save(&self.reservations_path, &*reservations)?;
        }
        Ok(())
    }

    /// May this initiator try the export, and how must it prove itself?
    pub(crate) fn admit(&self, export: &str, initiator: &Initiator) -> Result<Option<Account>, LoginError> {
        {
            let unread = self.unread.lock();
            if unread.exports.is_some() || unread.reservations.is_some() {
                return Err(LoginError::Unavailable);
            }
        }
        let exports = self.exports.lock();
        let Some(entry) = exports.exports.get(export) else { return Ok(None) };
        let named = entry.initiators.is_empty()
            || entry.initiators.iter().any(|name| name.eq_ignore_ascii_case(&initiator.name));
        let networks: Vec<Network> = entry.networks.iter().filter_map(|text| text.parse().ok()).collect();
        let near =
            entry.networks.is_empty() || networks.iter().any(|network| network.holds(initiator.address));
        if !(named && near) || entry.secret_lacks.is_some() {
            return Err(LoginError::Forbidden);
        }
        Ok(entry.chap.as_ref().map(|secret| Account {
            initiator: secret.into(),
            target: entry.chap_target.as_ref().map(Credential::from),
        }))
    }

    /// The restrictions of an export for NBD.
    pub(crate) fn restricted(&self, export: &str) -> Restricted {
        let exports = self.exports.lock();
        let Some(entry) = exports.exports.get(export) else { return Restricted::default() };
        Restricted {
            rule: entry.nbd.clone(),
            authenticates: !entry.initiators.is_empty()
                || entry.chap.is_some()
                || entry.secret_lacks.is_some(),
            networks: entry.networks.clone(),
        }
    }

    /// How an export is offered.
    pub(crate) fn offer(&self, export: &str) -> Offer {
        let exports = self.exports.lock();
        let entry = exports.exports.get(export).cloned().unwrap_or_default();
        Offer {
            read_only: entry.read_only,
            removable: entry.removable,
            block_bytes: entry.block_bytes,
            write_cache: entry.write_cache,
        }
    }

    /// As the API shows it; secrets are not shown.
    pub(crate) fn show(&self, export: &str) -> api::Access {
        let exports = self.exports.lock();
        let entry = exports.exports.get(export).cloned().unwrap_or_default();
        api::Access {
            initiators: entry.initiators,
            networks: entry.networks,
            chap: entry.chap.map(|secret| secret.name).or_else(|| entry.secret_lacks.clone()),
            chap_target: entry.chap_target.map(|secret| secret.name),
            nbd: NbdRule::words(entry.nbd.as_ref()),
            read_only: entry.read_only,
            removable: entry.removable,
            block_bytes: entry.block_bytes,
            write_cache: entry.write_cache,
            from_source: entry.from_source,
            secret_lacks: entry.secret_lacks.is_some(),
            holder: entry.holder,
        }
    }

    /// The settings for the LUNs of a volume, as sent to its mirrors.
    pub(crate) fn of_volume(&self, volume: &str) -> Result<Vec<LunAccess>, ServerError> {
        self.check_known()?;
        let exports = self.exports.lock();
        let of = |(export, entry): (&String, &ExportSettings)| {
            let lun = export.strip_prefix(volume)?.strip_prefix('/')?;
            let chap = entry.chap.as_ref().map(|secret| secret.name.clone());
            Some(LunAccess {
                lun: lun.to_owned(),
                initiators: entry.initiators.clone(),
                networks: entry.networks.clone(),
                chap: chap.or_else(|| entry.secret_lacks.clone()),
                read_only: entry.read_only,
                removable: entry.removable,
                durable: entry.write_cache == api::WriteCache::Off,
                block_bytes: entry.block_bytes,
            })
        };
        Ok(exports.exports.iter().filter_map(of).collect())
    }

    /// Stores the settings of the source for the LUNs of a mirror. Settings made here stay. Returns
    /// the exports whose settings changed.
    pub(crate) fn take_over(&self, volume: &str, luns: &[LunAccess]) -> Result<Vec<String>, ServerError> {
        self.check_known()?;
        let mut exports = self.exports.lock();
        let mut new = exports.exports.clone();
        new.retain(|export, entry| !(is_inside(export, volume) && entry.from_source));
        for of in luns {
            new.entry(format!("{volume}/{}", of.lun)).or_insert_with(|| of.into());
        }
        let both = exports.exports.keys().chain(new.keys());
        let changed: BTreeSet<String> =
            both.filter(|export| exports.exports.get(*export) != new.get(*export)).cloned().collect();
        if !changed.is_empty() {
            let new = Exports { exports: new };
            state::save(&self.exports_path, &new)?;
            *exports = new;
        }
        Ok(changed.into_iter().collect())
    }

    /// Exports that refuse every initiator for lack of a secret, with the name that initiators have
    /// at the source.
    pub(crate) fn without_secret(&self) -> Vec<(String, String)> {
        let exports = self.exports.lock();
        let lacks =
            |(export, entry): (&String, &ExportSettings)| Some((export.clone(), entry.secret_lacks.clone()?));
        exports.exports.iter().filter_map(lacks).collect()
    }

    /// Changes the settings in the request, and keeps the others.
    pub(crate) fn set(&self, export: &str, request: &api::SetAccess) -> Result<Before, ServerError> {
        for network in request.networks.iter().flatten() {
            network.parse::<Network>()?;
        }
        let nbd = request.nbd.as_deref().map(NbdRule::parse).transpose()?;
        if request.holder.as_ref().is_some_and(|holder| !is_holder(holder)) {
            return Err(ServerError::Invalid {
                fault: "a holder has at most 512 characters, all printable",
                next: "give a shorter text",
            });
        }
        let mut exports = self.exports.lock();
        let before = exports.exports.get(export).cloned();
        if let Some(expected) = &request.if_holder {
            // Under the lock of the change: of two programs that reserve it, one fails.
            let holder = before.as_ref().and_then(|entry| entry.holder.as_deref());
            if holder.unwrap_or_default() != expected {
                return Err(ServerError::Busy {
                    name: export.to_owned(),
                    by: "it is reserved for another client",
                });
            }
        }
        let was = Before(before.clone());
        // An entry equal to the default is still saved if the settings of the source would apply
        // without it.
        let is_said =
            before.as_ref().is_some_and(|entry| entry.from_source || *entry == ExportSettings::default());
        let mut entry = ExportSettings { from_source: false, ..before.unwrap_or_default() };
        if let Some(nbd) = nbd {
            entry.nbd = nbd;
        }
        if let Some(holder) = &request.holder {
            entry.holder = Some(holder.clone()).filter(|holder| !holder.is_empty());
        }
        if let Some(initiators) = &request.initiators {
            entry.initiators.clone_from(initiators);
        }
        if let Some(networks) = &request.networks {
            entry.networks.clone_from(networks);
        }
        match (&request.chap, request.no_chap) {
            (Some(_), true) => {
                return Err(ServerError::Invalid {
                    fault: "the request both sets and removes CHAP",
                    next: "give --chap-file or --no-chap",
                });
            }
            (Some(chap), false) => {
                entry.chap = Some(secret(&chap.name, &chap.secret)?);
                entry.chap_target = match (&chap.target_name, &chap.target_secret) {
                    (Some(name), Some(value)) => Some(secret(name, value)?),
                    (None, None) => None,
                    _ => {
                        return Err(ServerError::Invalid {
                            fault: "mutual CHAP needs a name and a secret of the target",
                            next: "write the line `target NAME SECRET` into the CHAP file",
                        });
                    }
                };
                if let (Some(one), Some(other)) = (&entry.chap, &entry.chap_target)
                    && one.secret == other.secret
                {
                    return Err(ServerError::Invalid {
                        fault: "the initiator and the target have the same CHAP secret",
                        next: "choose two different secrets",
                    });
                }
            }
            (None, true) => (entry.chap, entry.chap_target) = (None, None),
            (None, false) => {}
        }
        if request.chap.is_some() || request.no_chap {
            entry.secret_lacks = None;
        }
        entry.read_only = request.read_only.unwrap_or(entry.read_only);
        entry.removable = request.removable.unwrap_or(entry.removable);
        entry.write_cache = request.write_cache.unwrap_or(entry.write_cache);
        match request.block_bytes {
            None => {}
            Some(bytes @ (512 | 4096)) => entry.block_bytes = bytes,
            Some(_) => {
                return Err(ServerError::Invalid {
                    fault: "the block size is not 512 or 4096",
                    next: "give --block-size 512 or --block-size 4096",
                });
            }
        }
        let mut new = Exports { exports: exports.exports.clone() };
        if entry == ExportSettings::default() && !is_said {
            new.exports.remove(export);
        } else {
            new.exports.insert(export.to_owned(), entry);
        }
        state::save(&self.exports_path, &new)?;
        *exports = new;
        Ok(was)
    }

    /// Restores the settings of an export from [before](Self::set).
    pub(crate) fn put_back(&self, export: &str, before: Before) -> Result<(), ServerError> {
        let mut exports = self.exports.lock();
        let mut new = Exports { exports: exports.exports.clone() };
        match before.0 {
            Some(entry) => new.exports.insert(export.to_owned(), entry),
            None => new.exports.remove(export),
        };
        state::save(&self.exports_path, &new)?;
        *exports = new;
        Ok(())
    }

    /// Whether anything is set for an export.
    pub(crate) fn is_set(&self, export: &str) -> bool {
        self.exports.lock().exports.contains_key(export)
    }

    /// Copies the settings of the LUNs of `parent` to those of `clone`, also for LUNs that now
    /// exist only in snapshots; but a clone is always writable.
    pub(crate) fn copy(&self, parent: &str, clone: &str) -> Result<(), ServerError> {
        self.check_known()?;
        let mut exports = self.exports.lock();
        let mut new = exports.exports.clone();
        new.retain(|export, _| !is_inside(export, clone));
        let lun_of = |export: &str| Some(export.strip_prefix(parent)?.strip_prefix('/')?.to_owned());
        let copy = |(export, entry): (&String, &ExportSettings)| {
            let own = ExportSettings { read_only: false, from_source: false, ..entry.clone() };
            lun_of(export).map(|lun| (format!("{clone}/{lun}"), own))
        };
        new.extend(exports.exports.iter().filter_map(copy));
        if new != exports.exports {
            let new = Exports { exports: new };
            state::save(&self.exports_path, &new)?;
            *exports = new;
        }
        Ok(())
    }

    /// Removes the reservations of an export, and its settings unless `shown`, which is whether a
    /// snapshot or view still shows it.
    pub(crate) fn retire(&self, export: &str, shown: bool) -> Result<(), ServerError> {
        if !shown {
            return self.forget(|name| name == export);
        }
        self.forget_reservations(|name| name == export)
    }

    /// Removes the settings of a deleted volume.
    pub(crate) fn forget_volume(&self, volume: &str) -> Result<(), ServerError> {
        self.forget(|export| is_inside(export, volume))
    }

    /// Removes the settings of deleted exports.
    pub(crate) fn forget(&self, concerned: impl Fn(&str) -> bool) -> Result<(), ServerError> {
        let mut exports = self.exports.lock();
        if exports.exports.keys().any(|name| concerned(name)) {
            let mut left = Exports { exports: exports.exports.clone() };
            left.exports.retain(|name, _| !concerned(name));
            state::save(&self.exports_path, &left)?;
            *exports = left;
        }
        drop(exports);
        self.forget_reservations(concerned)
    }

    fn forget_reservations(&self, concerned: impl Fn(&str) -> bool) -> Result<(), ServerError> {
        let mut reservations = self.reservations.lock();
        if reservations.exports.keys().any(|name| concerned(name)) {
            let mut left = Reservations { exports: reservations.exports.clone() };
            left.exports.retain(|name, _| !concerned(name));
            state::save(&self.reservations_path, &left)?;
            *reservations = left;
        }
        Ok(())
    }

    /// The persistent reservations of an export that were kept.
    pub(crate) fn reservations(&self, export: &str) -> ReservationState {
        let reservations = self.reservations.lock();
        let Some(kept) = reservations.exports.get(export) else { return ReservationState::default() };
        let registrations = kept.ports.iter();
        ReservationState {
            generation: 0,
            persists: true,
            registrations: registrations
                .map(|port| Registration { port: port.port.clone(), key: port.key })
                .collect(),
            reserved: kept.kind.zip(kept.holder.clone()),
        }
    }

    /// Keeps them; durable when it returns.
    pub(crate) fn keep(&self, export: &str, state: &ReservationState) -> Result<(), ServerError> {
        let mut reservations = self.reservations.lock();
        let before = reservations.exports.get(export).cloned();
        if state.persists && !state.registrations.is_empty() {
            let ports = state.registrations.iter();
            let kept = Reserved {
                ports: ports.map(|known| Port { port: known.port.clone(), key: known.key }).collect(),
                kind: state.reserved.as_ref().map(|(kind, _)| *kind),
                holder: state.reserved.as_ref().map(|(_, holder)| holder.clone()),
            };
            reservations.exports.insert(export.to_owned(), kept);
        } else {
            reservations.exports.remove(export);
        }
        state::save(&self.reservations_path, &*reservations).inspect_err(|_| {
            // The next save must not include the change.
            match before {
                Some(before) => reservations.exports.insert(export.to_owned(), before),
                None => reservations.exports.remove(export),
            };
        })
    }
}

/// Longest text of a holder, in bytes.
const HOLDER_BYTES_MAX: usize = 512;

fn is_holder(text: &str) -> bool {
    text.len() <= HOLDER_BYTES_MAX && !text.chars().any(char::is_control)
}

/// Whether an export is of a volume, and not of an adopted device that has the same name.
fn is_inside(export: &str, volume: &str) -> bool {
    export.contains('/') && export.split(['/', '@']).next() == Some(volume)
}

fn secret(name: &str, value: &str) -> Result<Secret, ServerError> {
    if name.is_empty() || value.len() < SECRET_BYTES_MIN {
        return Err(ServerError::Invalid {
            fault: "CHAP needs a name and a secret of at least 12 characters",
            next: "correct the CHAP file and run the command again",
        });
    }
    Ok(Secret { name: name.to_owned(), secret: value.to_owned() })
}

#[cfg(test)]
mod tests;
