//! Where the server meets `cairn-mirror`: progress and errors in the words of the API.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_api::ErrorKind;
use cairn_api::remedy::{NO_THREAD_NEXT, volume_kind, volume_next};
use cairn_base::BLOCK_SIZE;
use cairn_mirror::{
    Client, Departure, Destination, GiveTogether, GiveWay, Heir, Lag, LunAccess, MirrorError, Pace, PeerName,
    Refusal, Relationship, Route, Source, SourceVolumes, Successor, Threads, TransferKind, TransferReport,
};
use cairn_stream::StreamError;
use cairn_volume::{Snapshot, Volume};

use crate::error::ServerError;
use crate::identity::Fingerprint;
use crate::jobs::Progress;
use crate::mirrors::{Asker, Mirrors};
use crate::peers::Peers;
use crate::threads::Scoped;
use crate::volumes::{Volumes, is_of_full_history};

/// Digits of a fingerprint that name a peer: 128 bits, and short enough for the name of a snapshot.
const PEER_DIGITS: usize = 32;
pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;

/// The digits under which `cairn-mirror` knows the holder of a certificate.
pub(crate) fn peer_digits(certificate: Fingerprint) -> String {
    let mut digits = certificate.to_string();
    digits.truncate(PEER_DIGITS);
    digits
}

/// The volumes that one peer may have.
pub(crate) struct Offered<'a> {
    pub(crate) volumes: &'a Volumes,
    pub(crate) peers: &'a Peers,
    pub(crate) mirrors: &'a Mirrors,
    pub(crate) certificate: Fingerprint,
    /// Where the peer connects from.
    pub(crate) host: Option<std::net::IpAddr>,
    /// The server ends.
    pub(crate) ending: &'a AtomicBool,
    /// The last refusal that the peer knows, by its number.
    pub(crate) last_refusal: u32,
}

/// Longest address that a peer may give for itself.
const ADDRESS_MAX: usize = 300;

impl Offered<'_> {
    fn asker(&self) -> Asker {
        Asker { certificate: self.certificate, host: self.host }
    }

    /// Why a snapshot of a volume can't be made, or the like, in words that the peer knows.
    fn refusal_of(&self, volume: &str, error: &ServerError) -> Refusal {
        tracing::debug!(volume, %error, "what a mirror needs of its source was not begun");
        let refusal = if is_of_full_history(error) { Refusal::NoRoom } else { Refusal::Hook };
        refusal.for_who_knows(self.last_refusal)
    }
}

impl SourceVolumes for Offered<'_> {
    fn volume(&self, name: &str, _peer: &PeerName) -> Result<Arc<Volume>, Refusal> {
        let open = self.volumes.get(name).map_err(|error| {
            // One that is there and not open is told of to whom it is open otherwise.
            let is_there = error.kind() != ErrorKind::NotFound;
            match is_there && self.peers.allows(self.certificate, name, None).is_ok() {
                true => Refusal::SourceFailed,
                false => Refusal::NoSuchVolume,
            }
        })?;
        let allowed = self.peers.allows(self.certificate, name, Some(open.volume.id()));
        allowed.map(|()| open.volume.clone()).map_err(|_| Refusal::NoSuchVolume)
    }

    fn reachable(&self, address: &str) -> String {
        let is_one = address.len() <= ADDRESS_MAX && address.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_one {
            return String::new();
        }
        match (address.strip_prefix(':'), self.host) {
            (Some(port), Some(std::net::IpAddr::V6(host))) => format!("[{host}]:{port}"),
            (Some(port), Some(host)) => format!("{host}:{port}"),
            _ => address.to_owned(),
        }
    }

    fn hand_over(
        &self,
        volume: &str,
        _peer: &PeerName,
        relationship: Relationship,
        successor: &Successor,
        give: &mut GiveWay<'_>,
    ) -> Result<Snapshot, Refusal> {
        self.mirrors.hand_over(volume, self.asker(), relationship, successor, give)
    }

    fn hand_over_together(
        &self,
        group: &str,
        _peer: &PeerName,
        heirs: &[Heir],
        give: &mut GiveTogether<'_>,
    ) -> Result<Vec<Snapshot>, Refusal> {
        self.mirrors.hand_over_together(group, self.asker(), heirs, give)
    }

    fn departed(
        &self,
        volume: &str,
        _peer: &PeerName,
        _relationship: Relationship,
        departure: &Departure,
        known: bool,
    ) {
        let (address, generation) = (self.reachable(&departure.address), departure.generation.0);
        if known {
            tracing::warn!(
                volume,
                by = address,
                generation,
                "a mirror of this volume was failed over: it does not follow any more"
            );
        }
    }

    fn rest(&self, time: std::time::Duration) -> bool {
        if !self.ending.load(Ordering::Acquire) {
            std::thread::sleep(time);
        }
        !self.ending.load(Ordering::Acquire)
    }

    fn in_words(&self, refusal: Refusal) -> Refusal {
        refusal.for_who_knows(self.last_refusal)
    }

    fn sent(&self, volume: &str, bytes: u64) {
        let Ok(open) = self.volumes.get(volume) else { return };
        open.governor.sent(bytes, &mut |time| self.rest(time));
    }

    fn around_snapshot(&self, volume: &str, make: &mut dyn FnMut()) -> Result<(), Refusal> {
        let made = self.volumes.get(volume).and_then(|open| open.snapshot_with(make));
        made.map_err(|error| self.refusal_of(volume, &error))
    }

    fn check_room(&self, volume: &str) -> Result<(), Refusal> {
        let Ok(open) = self.volumes.get(volume) else { return Ok(()) };
        match open.refuse_if_floor_leaves_no_room() {
            Err(error) if is_of_full_history(&error) => Err(self.refusal_of(volume, &error)),
            // What else is wrong with it is told by what it was asked for.
            _ => Ok(()),
        }
    }

    fn upstream_lag(&self, volume: &str) -> Option<Lag> {
        self.mirrors.upstream_lag(volume)
    }

    fn route(&self, volume: &str) -> Route {
        self.mirrors.route(volume)
    }

    fn access(&self, volume: &str) -> Result<Vec<LunAccess>, Refusal> {
        self.mirrors.access_of(volume).map_err(|error| {
            tracing::warn!(volume, %error, "a mirror is not told who may use the LUNs here");
            Refusal::SourceFailed
        })
    }

    fn former(&self, volume: &str, _peer: &PeerName, relationship: Relationship) -> Option<PeerName> {
        self.mirrors.name_towards(volume, self.certificate, relationship)
    }
}

/// On the source: answers one destination until it hangs up.
pub(crate) fn serve(
    stream: &mut (impl Read + Write),
    source: &Source,
    offered: &Offered<'_>,
    cancel: &AtomicBool,
) -> Result<(), MirrorError> {
    let peer = PeerName::new(&peer_digits(offered.certificate))
        .map_err(|_| MirrorError::Protocol("its certificate has no name"))?;
    let mut work =
        cairn_stream::Work { cancel, progress: &mut |_| (), threads: Some(&Scoped as &dyn Threads) };
    source.serve_session(stream, offered, &peer, &mut work)
}

/// What is seen of a transfer.
#[derive(Default)]
pub(crate) struct Seen {
    /// The name of the snapshot that it brings.
    pub(crate) snapshot: String,
    pub(crate) sent_bytes: u64,
    /// Of the changed ones.
    pub(crate) arrived_bytes: u64,
    pub(crate) changed_bytes: u64,
    pub(crate) full_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) wasted_bytes: u64,
    pub(crate) up_to_date: bool,
}

/// On the destination: bringing the newest image.
pub(crate) struct Fetch<'a> {
    pub(crate) destination: &'a Destination,
    pub(crate) progress: &'a Progress,
    /// Ends it at the next record.
    pub(crate) cancel: &'a AtomicBool,
    pub(crate) compare: bool,
}

impl Fetch<'_> {
    /// Brings it. `seen` is called as it comes along.
    pub(crate) fn run(
        &self,
        stream: &mut (impl Read + Write),
        seen: &mut dyn FnMut(Seen),
    ) -> Result<(), MirrorError> {
        let progress = self.progress;
        progress.phase(if self.compare { "comparing" } else { "waiting for the source" });
        let mut client = Client::hello(stream)?;
        let mut tell = |at: &cairn_mirror::TransferProgress| {
            progress.phase("transferring");
            progress.bytes(at.blocks * BLOCK, at.blocks_total * BLOCK);
            seen(Seen {
                snapshot: at.snapshot.clone(),
                sent_bytes: at.bytes,
                arrived_bytes: at.blocks * BLOCK,
                changed_bytes: at.blocks_total * BLOCK,
                full_bytes: at.full_blocks * BLOCK,
                kept_bytes: at.kept_blocks * BLOCK,
                wasted_bytes: 0,
                up_to_date: false,
            });
        };
        let mut work = cairn_mirror::Work {
            cancel: self.cancel,
            progress: &mut tell,
            threads: Some(&Scoped as &dyn Threads),
        };
        let report = match self.compare {
            true => self.destination.update_comparing(&mut client, &mut work)?,
            false => self.destination.update(&mut client, &mut work)?,
        };
        seen(Seen {
            snapshot: report.name,
            sent_bytes: report.bytes,
            arrived_bytes: report.blocks * BLOCK,
            changed_bytes: report.blocks * BLOCK,
            full_bytes: report.full_blocks * BLOCK,
            kept_bytes: report.kept_blocks * BLOCK,
            wasted_bytes: report.wasted_blocks * BLOCK,
            up_to_date: report.kind == TransferKind::UpToDate,
        });
        Ok(())
    }
}

/// On the destination: one round of following the source.
pub(crate) fn follow<S: Read + Write>(
    destination: &Destination,
    client: &mut Client<'_, S>,
    pace: Pace,
    cancel: &AtomicBool,
) -> Result<Option<TransferReport>, MirrorError> {
    let mut work =
        cairn_mirror::Work { cancel, progress: &mut |_| (), threads: Some(&Scoped as &dyn Threads) };
    destination.follow(client, pace, &mut work)
}

/// The kind of a mirror's error.
pub(crate) fn error_kind(error: &MirrorError) -> ErrorKind {
    match error {
        MirrorError::Io(_) => ErrorKind::PeerUnreachable,
        MirrorError::Version { .. } | MirrorError::Refused(Refusal::Unknown) => ErrorKind::VersionMismatch,
        MirrorError::Refused(refusal) => match refusal {
            Refusal::NoSuchVolume => ErrorKind::NotFound,
            Refusal::NotASource | Refusal::Circle => ErrorKind::WrongRole,
            Refusal::WrongVolume { .. } | Refusal::NoCommonBase { .. } | Refusal::Diverged(_) => {
                ErrorKind::Diverged
            }
            Refusal::DestinationTooSmall { .. } => ErrorKind::TooSmall,
            Refusal::SourceFull | Refusal::NoRoom => ErrorKind::NoSpace,
            Refusal::Superseded | Refusal::Behind => ErrorKind::Busy,
            Refusal::NotTaken | Refusal::InGroup(_) => ErrorKind::WrongRole,
            Refusal::OtherGroup(_) => ErrorKind::NotFound,
            Refusal::NotAllowed | Refusal::TooMany => ErrorKind::PeerRefused,
            Refusal::Hook => ErrorKind::Failed,
            Refusal::SourceFailed | Refusal::Unknown => ErrorKind::Failed,
        },
        MirrorError::Volume(error) => volume_kind(error),
        MirrorError::Busy => ErrorKind::Busy,
        MirrorError::FailedOver | MirrorError::FollowsItself => ErrorKind::WrongRole,
        MirrorError::CompareNeeded { .. } | MirrorError::Undecided { .. } => ErrorKind::Diverged,
        MirrorError::NotAhead(_) => ErrorKind::WrongRole,
        MirrorError::Locked { .. } | MirrorError::Renamed { .. } | MirrorError::Withheld { .. } => {
            ErrorKind::Diverged
        }
        MirrorError::Cancelled => ErrorKind::Interrupted,
        MirrorError::Stream(StreamError::NoThread(_)) => ErrorKind::Failed,
        MirrorError::Stream(_) => ErrorKind::Damaged,
        MirrorError::Protocol(_) | MirrorError::Nack(_) => ErrorKind::Failed,
    }
}

/// What to do about a mirror's error.
pub(crate) fn error_next(volume: &str, error: &MirrorError) -> String {
    match error {
        MirrorError::Version { .. } | MirrorError::Refused(Refusal::Unknown) => {
            "install the same version of cairn on both servers".into()
        }
        MirrorError::Refused(refusal) => match refusal {
            Refusal::NoSuchVolume => "see the volumes of the source with `cairn volume list` there".into(),
            Refusal::Circle => format!(
                "`cairn mirror reverse {volume}` on the other side ends a change of roles that was cut off; if there was none, `cairn mirror failover {volume}` on the side that has what is wanted, and `cairn mirror update {volume}` on the other one"
            ),
            Refusal::NotASource => "mirror the source of that mirror, or fail it over there".into(),
            Refusal::Diverged(_) => format!(
                "`cairn mirror failover {volume}` at the mirror has what it shows go on, and the old source follows it with `cairn mirror resync`; or `cairn mirror resync {volume} -n` at the mirror says what it alone has, and with `--spill FILE` or `--discard-divergent` it gives that up and follows the source"
            ),
            Refusal::WrongVolume { .. } | Refusal::NoCommonBase { .. } => format!(
                "keep what is here with `cairn mirror failover {volume}`, and make a new mirror with `--as NAME`; or \
                 delete this one and create it again"
            ),
            Refusal::DestinationTooSmall { .. } => {
                format!("enlarge its last device, then update again: `cairn mirror update {volume}`")
            }
            Refusal::SourceFull => "delete snapshots or LUNs on the source, trim, or grow its volume".into(),
            Refusal::NoRoom => format!(
                "on the source: let old history go with `cairn history window VOLUME --floor TIME` and a shorter one, or with `--floor off`; the next update goes on then, or at once `cairn mirror update {volume}` here"
            ),
            Refusal::Superseded => "wait for the other update; `cairn mirror status` shows it".into(),
            Refusal::Behind => format!("`cairn mirror update {volume}`, then again"),
            Refusal::Hook => {
                "see `cairn status` and `cairn volume hooks` on the source; the next update tries again"
                    .into()
            }
            Refusal::NotAllowed => format!(
                "on the source: `cairn mirror allow-reverse VOLUME` (of a group: `cairn group allow-reverse GROUP`), and then this command again within 15 minutes; what was to be lost by that is nothing: `{volume}` follows as before"
            ),
            Refusal::TooMany => "on the source: `cairn status --json` lists this server's mirrors, and `cairn mirror forget VOLUME NAME` lets go of one that will not come again".into(),
            Refusal::InGroup(group) => format!(
                "`cairn group reverse {group}` here changes the roles of all of them at one instant (`cairn group create {group} ...` first, if there is no such group here); for this one alone, `cairn group apart {group}` on the source first"
            ),
            Refusal::OtherGroup(group) => format!(
                "compare `cairn group show {group}` here and on the source: on both sides it has the same name and the same volumes; make it anew where it has not"
            ),
            Refusal::NotTaken => "see `cairn status` and the log on the source".into(),
            Refusal::SourceFailed | Refusal::Unknown => "see `cairn status` on the source".into(),
        },
        MirrorError::Volume(error) => volume_next(volume, error),
        MirrorError::CompareNeeded { .. } => format!("`cairn mirror update {volume} --compare`"),
        MirrorError::Stream(StreamError::NoThread(_)) => NO_THREAD_NEXT.into(),
        MirrorError::FollowsItself => format!(
            "give this mirror a source that takes writes with `cairn mirror repoint {volume} TOKEN`, or have one volume of the ring take writes with `cairn mirror failover` on its server; where one does by now, its mirrors say so with their next update"
        ),
        MirrorError::FailedOver => format!(
            "let the other side follow with `cairn mirror resync` there, or give up what was written here with `cairn mirror resync {volume}`"
        ),
        MirrorError::Undecided { .. } => format!(
            "`cairn mirror resync {volume} --spill FILE` keeps it in a file and follows, `--discard-divergent` drops it; `cairn mirror failover {volume}` takes it back"
        ),
        MirrorError::Locked { .. } => format!(
            "ask at the source who deleted it. `cairn mirror status {volume}` says when the lock ends and whether a lock key was set; with that key `cairn mirror unlock {volume} --lock-key FILE` lifts it, and the next update goes through. `cairn mirror failover {volume}` keeps what is here"
        ),
        MirrorError::Renamed { name } => format!(
            "ask at the source who renamed it, and give it its name back there with `cairn snapshot rename`: here it stays `{name}` until its lock has run out"
        ),
        MirrorError::Withheld { group, .. } => format!(
            "make a newer one at the source with `cairn snapshot create --group {group}`, and update again; or have each volume here show its own newest image: `cairn group apart {group}`"
        ),
        MirrorError::NotAhead(_) => format!(
            "see `cairn mirror status` on both sides; where the other one is the mirror of a third server: `cairn mirror failover` there, `cairn mirror resync {volume}` here, the same there, and \
             here once more"
        ),
        _ => format!("update again with `cairn mirror update {volume}`; the last complete image is whole"),
    }
}
