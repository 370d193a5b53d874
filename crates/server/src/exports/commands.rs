//! Commands on exports: the methods of the server for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cairn_api::{self as api, tcp_uri, unix_uri};
use cairn_frontend_iscsi::SessionInfo as IscsiSession;
use cairn_frontend_nbd::{Address as NbdAddress, SessionInfo};
use cairn_frontend_session::{Activity, Rate};

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::exports::luns_of;
use crate::exports::nbd_rules::{initiators, is_reachable};
use crate::exports::target_names::{present_of, target_name};
use crate::names;
use crate::names::ExportName;

impl Server {
    /// The LUNs, and all other open exports.
    pub(crate) fn exports(&self) -> Vec<api::Export> {
        let sessions = self.nbd.sessions();
        let initiators = self.iscsi.sessions();
        let of = |name: &str| -> Vec<api::Session> {
            let nbd = sessions.iter().filter(|session| session.export == name).map(show_session);
            let iscsi = initiators.iter().filter(|session| session.export.as_deref() == Some(name));
            nbd.chain(iscsi.map(show_initiator)).collect()
        };
        let (of_nbd, of_iscsi) = (self.nbd.totals(), self.iscsi.totals());
        let totals = |name: &str| {
            let mut totals = of_nbd.get(name).copied().unwrap_or_default();
            totals += of_iscsi.get(name).copied().unwrap_or_default();
            api::ExportTotals {
                requests: totals.requests,
                read_bytes: totals.read_bytes,
                written_bytes: totals.written_bytes,
            }
        };
        let mut exports = Vec::new();
        for open in self.volumes.all() {
            // Exports without access at the moment are listed as well.
            let shown = luns_of(&self.groups, &open);
            let shows_nothing = shown.is_err();
            let (luns, takes_writes) = shown.unwrap_or((open.luns.readable().unwrap_or_default(), false));
            for lun in luns {
                let name = format!("{}/{}", open.name, lun.name);
                let adopter = self.devices.adopter_of(&name);
                exports.push(api::Export {
                    closed: shows_nothing || adopter.is_some_and(|device| self.devices.get(&device).is_err()),
                    read_only: !takes_writes
                        || self.access.offer(&name).read_only
                        || self.devices.is_history(&name),
                    target: self.target(&name),
                    access: self.access.show(&name),
                    size_bytes: lun.bytes,
                    uris: self.offered_uris(&name),
                    reach: self.reach(&name),
                    sessions: of(&name),
                    totals: totals(&name),
                    name,
                });
            }
        }
        for (name, size_bytes, read_only) in self.devices.sizes() {
            exports.push(api::Export {
                closed: false,
                read_only: read_only || self.access.offer(&self.settings_of(&name)).read_only,
                target: self.target(&name),
                access: self.access.show(&self.settings_of(&name)),
                size_bytes,
                uris: self.offered_uris(&name),
                reach: self.reach(&name),
                sessions: of(&name),
                totals: totals(&name),
                name,
            });
        }
        let mut others: Vec<&str> = sessions.iter().map(|session| session.export.as_str()).collect();
        others.extend(initiators.iter().filter_map(|session| session.export.as_deref()));
        others.sort_unstable();
        others.dedup();
        for name in others {
            let listed = exports.iter().any(|export| export.name == name);
            let Some(parsed) = ExportName::parse(name).filter(|_| !listed) else { continue };
            exports.push(api::Export {
                name: name.to_owned(),
                read_only: true,
                closed: false,
                target: self.target(name),
                access: self.access.show(&present_of(name)),
                size_bytes: self.snapshot_lun_bytes(&parsed).unwrap_or(0),
                uris: self.offered_uris(name),
                reach: self.reach(name),
                sessions: of(name),
                totals: totals(name),
            });
        }
        exports
    }

    fn snapshot_lun_bytes(&self, name: &ExportName<'_>) -> Option<u64> {
        let open = self.volumes.get(name.volume).ok()?;
        let snapshots = open.volume.snapshots();
        let snapshot = snapshots.iter().find(|snapshot| Some(snapshot.name.as_str()) == name.snapshot)?;
        let image = open.volume.image(Some(snapshot.id)).ok()?;
        open.luns.find_in(&image, name.lun).ok().map(|lun| lun.bytes)
    }

    /// The addresses at which NBD clients are admitted to an export, the socket in the data
    /// directory first.
    fn offered_uris(&self, export: &str) -> Vec<String> {
        let mut uris = self.uris(export);
        if self.access.restricted(&self.settings_of(export)).clients(false).is_none() {
            uris.retain(|uri| uri.starts_with("nbd+unix:"));
        }
        uris
    }

    /// Where clients find an export, the socket in the data directory first. It takes no lock, as
    /// devices call it under theirs.
    pub(crate) fn uris(&self, export: &str) -> Vec<String> {
        let mut uris = vec![unix_uri(&self.nbd_socket, export)];
        for address in self.nbd.addresses() {
            match address {
                NbdAddress::Tcp(address) => {
                    uris.push(tcp_uri(&names::from_elsewhere(address), export));
                }
                NbdAddress::Unix(path) if *path != self.nbd_socket => {
                    uris.push(unix_uri(path, export));
                }
                NbdAddress::Unix(_) => {}
            }
        }
        uris
    }

    /// How clients reach an export, and which.
    fn reach(&self, export: &str) -> Vec<api::Reach> {
        let settings = self.settings_of(export);
        let restricted = self.access.restricted(&settings);
        let mut reach = Vec::new();
        for address in self.nbd.addresses() {
            let (shown, unix) = match address {
                NbdAddress::Tcp(address) => (address.clone(), false),
                NbdAddress::Unix(path) => (format!("unix:{}", path.display()), true),
            };
            if let Some(clients) = restricted.clients(unix) {
                let open = !unix && is_reachable(&shown) && restricted.is_open();
                reach.push(api::Reach { protocol: "NBD".to_owned(), address: shown, clients, open });
            }
        }
        let (clients, is_any) = initiators(&self.access.show(&settings));
        for address in self.iscsi.addresses() {
            let open = is_any && is_reachable(address);
            let (protocol, address, clients) = ("iSCSI".to_owned(), address.clone(), clients.clone());
            reach.push(api::Reach { protocol, address, clients, open });
        }
        reach
    }

    /// Listeners over which any client of another machine gets to a disk without proving its
    /// identity.
    pub(crate) fn exposure_problems(&self, exports: &[api::Export]) -> Vec<api::Problem> {
        let mut open: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for export in exports.iter().filter(|export| !export.name.contains('@')) {
            for reach in export.reach.iter().filter(|reach| reach.open) {
                open.entry((&reach.protocol, &reach.address)).or_default().push(&export.name);
            }
        }
        let problem = |((protocol, address), names): ((&str, &str), Vec<&str>)| {
            let more = match names.len() {
                count @ 0..=3 => names[..count].join(", "),
                count => format!("{} and {} more", names[..3].join(", "), count - 3),
            };
            let first = names[0];
            api::Problem {
                subject: format!("{protocol} {address}"),
                message: format!(
                    "any client that reaches {address} can read and write {more}: there is no authentication"
                ),
                next: match protocol {
                    "iSCSI" => format!(
                        "restrict each, as with `cairn export set {first} --chap-file FILE` or --network NET, or listen on another address with --iscsi"
                    ),
                    _ => format!(
                        "restrict each, as with `cairn export set {first} --nbd cert:NAME`, --nbd NETWORK or --nbd unix, or listen on another address with --nbd"
                    ),
                },
            }
        };
        open.into_iter().map(problem).collect()
    }

    /// How initiators reach an export.
    pub(crate) fn target(&self, export: &str) -> api::Target {
        api::Target { name: target_name(export), portals: self.iscsi_portals.clone() }
    }

    /// Refuses a disk whose target name would equal that of another disk, which names with dots
    /// make possible: an initiator of one would write to the other.
    pub(crate) fn refuse_second_target(&self, export: &str) -> Result<(), ServerError> {
        let name = target_name(export);
        let is_taken = self.exports().iter().any(|known| known.name != export && known.target.name == name);
        if is_taken { Err(ServerError::Taken { what: "iSCSI target", name }) } else { Ok(()) }
    }

    /// The name under which the settings of an export are stored.
    fn settings_of(&self, export: &str) -> String {
        self.devices.disk_of(&present_of(export))
    }

    /// Changes access to an export and its settings: `VOLUME/LUN` or an adopted device. Closes
    /// existing sessions, as the parameters sent to them no longer hold.
    pub(crate) fn set_access(
        &self,
        name: &str,
        request: &api::SetAccess,
    ) -> Result<api::Export, ServerError> {
        if name.contains('@') {
            return Err(ServerError::Invalid {
                fault: "only a LUN or an adopted device has settings; its snapshots, views and clones share them",
                next: "name the LUN (VOLUME/LUN) or the device",
            });
        }
        let bytes = match ExportName::parse(name) {
            Some(parsed) => {
                let open = self.volumes.get(parsed.volume)?;
                open.luns.find(parsed.lun).map_err(ServerError::files(name))?.bytes
            }
            None => {
                let sizes = self.devices.sizes();
                match sizes.iter().find(|(known, ..)| known == name) {
                    Some((_, bytes, _)) => *bytes,
                    None => self.devices.get(name).map(|_| 0)?,
                }
            }
        };
        let disk = self.devices.disk_of(name);
        if request.block_bytes.is_some_and(|bytes| bytes != 512 && bytes != 4096) {
            return Err(ServerError::Invalid {
                fault: "the block size is not 512 or 4096",
                next: "give --block-size 512 or --block-size 4096",
            });
        }
        let block_bytes = request.block_bytes.unwrap_or(self.access.show(&disk).block_bytes);
        if !bytes.is_multiple_of(u64::from(block_bytes.max(1))) {
            return Err(ServerError::Invalid {
                fault: "the size of the disk is not a multiple of the block size",
                next: "choose --block-size 512, or resize the disk to a multiple of 4096 bytes",
            });
        }
        let before = self.access.set(&disk, request)?;
        let closed = match self.close_disk(&disk) {
            Ok(closed) => closed,
            Err(unfinished) => {
                self.access.put_back(&disk, before)?;
                return Err(unfinished);
            }
        };
        tracing::info!(export = name, closed, "changed the access settings of an export");
        self.exports().into_iter().find(|export| export.name == name).ok_or(ServerError::NotFound {
            what: "export",
            name: name.to_owned(),
            list: "cairn export list",
        })
    }

    /// Closes the sessions with a disk, of its present or past, whose settings are stored under
    /// this name. Returns their number.
    pub(crate) fn close_disk(&self, disk: &str) -> Result<usize, ServerError> {
        let mut open: Vec<String> = self.exports().into_iter().map(|export| export.name).collect();
        open.retain(|export| self.settings_of(export) == disk);
        self.close_all(&open)
    }

    /// Exports that refuse all logins for lack of a secret.
    pub(crate) fn access_problems(&self) -> Vec<api::Problem> {
        if self.iscsi_portals.is_empty() {
            return Vec::new();
        }
        let problem = |(export, name): (String, String)| api::Problem {
            message: format!(
                "no initiator can log in over iSCSI: the source requires the CHAP secret of `{name}`, and secrets are not mirrored"
            ),
            next: format!(
                "`cairn export set {export} --chap-file FILE` with that secret or another one, best before a failover; or `--no-chap`, and it needs none here"
            ),
            subject: export,
        };
        self.access.without_secret().into_iter().map(problem).collect()
    }

    /// Disks without a usable target, as another disk's target has the same name.
    pub(crate) fn target_problems(&self, exports: &[api::Export]) -> Vec<api::Problem> {
        let mut disks: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for export in exports.iter().filter(|export| !export.name.contains('@')) {
            disks.entry(&export.target.name).or_default().insert(self.devices.disk_of(&export.name));
        }
        let problem = |(target, disks): (&str, BTreeSet<String>)| {
            let first = disks.first().filter(|_| disks.len() > 1 && !self.iscsi_portals.is_empty())?.clone();
            let all = disks.into_iter().collect::<Vec<_>>().join(", ");
            Some(api::Problem {
                subject: first,
                message: format!("{all} have the same iSCSI target {target}: no initiator can log in to them"),
                next: "delete one of them, or bring its volume here under another name; over NBD each has its own"
                    .to_owned(),
            })
        };
        disks.into_iter().filter_map(problem).collect()
    }
}

fn show_session(session: &SessionInfo) -> api::Session {
    api::Session {
        id: session.id,
        peer: session.peer.clone(),
        requests: session.totals.requests,
        read_bytes: session.totals.read_bytes,
        written_bytes: session.totals.written_bytes,
        activity: activity(session.activity),
        initiator: None,
        parameters: None,
    }
}

fn show_initiator(session: &IscsiSession) -> api::Session {
    let agreed = &session.operational;
    api::Session {
        id: session.id,
        peer: session.peer.clone(),
        requests: session.totals.requests,
        read_bytes: session.totals.read_bytes,
        written_bytes: session.totals.written_bytes,
        activity: activity(session.activity),
        initiator: Some(session.initiator.clone()),
        parameters: Some(api::IscsiParameters {
            header_digest: agreed.header_digest,
            data_digest: agreed.data_digest,
            max_recv_data_segment_length: agreed.send_segment,
            max_burst_length: agreed.max_burst,
            first_burst_length: agreed.first_burst,
            initial_r2t: agreed.initial_r2t,
            immediate_data: agreed.immediate_data,
        }),
    }
}

pub(super) fn activity(activity: Activity) -> api::Activity {
    let Activity { window, read, write, other } = activity;
    let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
    api::Activity { window_ms, read: rate(read), write: rate(write), other: rate(other) }
}

fn rate(rate: Rate) -> api::Rate {
    let us = |latency: Duration| latency.as_nanos() as f64 / 1e3;
    api::Rate {
        per_second: (rate.per_second * 10.0).round() / 10.0,
        bytes_per_second: rate.bytes_per_second.round() as u64,
        p50_us: rate.p50.map(us),
        p99_us: rate.p99.map(us),
    }
}
