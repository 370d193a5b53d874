//! The volumes of this server as offered to a peer: the answers to the requests of its mirror.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_api::ErrorKind;
use cairn_mirror::{
    Departure, GiveTogether, GiveWay, Heir, Lag, LunAccess, MirrorError, PeerName, Refusal, Relationship,
    Route, Source, SourceVolumes, Successor, Threads,
};
use cairn_volume::{Snapshot, Volume};

use crate::error::ServerError;
use crate::mirrors::transfer::peer_digits;
use crate::mirrors::{Asker, Mirrors};
use crate::peers::Peers;
use crate::peers::identity::Fingerprint;
use crate::volumes::{Volumes, is_of_full_history};
use crate::work::threads::Scoped;

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
pub(super) const ADDRESS_MAX: usize = 300;

impl Offered<'_> {
    fn asker(&self) -> Asker {
        Asker { certificate: self.certificate, host: self.host }
    }

    /// Why a snapshot of a volume can't be made, or the like, in words that the peer knows.
    fn refusal_of(&self, volume: &str, error: &ServerError) -> Refusal {
        tracing::debug!(volume, %error, "could not begin a transfer to a mirror");
        let refusal = if is_of_full_history(error) { Refusal::NoRoom } else { Refusal::Hook };
        refusal.for_who_knows(self.last_refusal)
    }
}

impl SourceVolumes for Offered<'_> {
    fn volume(&self, name: &str, _peer: &PeerName) -> Result<Arc<Volume>, Refusal> {
        let open = self.volumes.get(name).map_err(|error| {
            // A volume that exists but is closed is reported only to peers with access to it.
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
                "a mirror of this volume was failed over: it no longer follows"
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
            // The requested operation reports other problems.
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
            tracing::warn!(volume, %error, "could not send the access settings to a mirror");
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
