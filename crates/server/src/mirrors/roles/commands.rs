//! Commands that change the roles of a mirror: the methods of the server for them.

use std::path::Path;
use std::sync::{Arc, Weak};

use cairn_api as api;
use cairn_mirror::{Departure, Follower, Standing};
use cairn_volume::{Divergence, Role};

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::document::{MirrorDocument, millis, now_ms};
use crate::mirrors::error::MirrorsError;
use crate::mirrors::roles::{BLOCK, is_lost};
use crate::mirrors::{Relation, transfer};
use crate::peers::error::PeersError;
use crate::volumes::open::OpenVolume;

impl Server {
    /// The mirror of that name; or, for a volume whose mirror has reported its failover, the
    /// relation to that one, which is not saved yet.
    fn other_side(
        &self,
        name: &str,
        from: Option<&str>,
        mirror: Option<&str>,
    ) -> Result<Arc<Relation>, ServerError> {
        self.mirrors.check_known(name)?;
        let open = self.volumes.get(name)?;
        let known = self.mirrors.get(name).ok();
        let follower = self.departed(&open, from, mirror, known.as_deref())?;
        if let Some(relation) =
            known.filter(|known| follower.as_ref().is_none_or(|own| own.name == known.follower()))
        {
            if let Some(from) = from {
                self.mirrors.look_for(&relation, from)?;
                self.mirrors.keep(&relation, |document| {
                    document.address = from.to_owned();
                    document.unseen = false;
                })?;
            }
            return Ok(relation);
        }
        let follower = follower
            .ok_or_else(|| ServerError::Mirrors(MirrorsError::NotDeparted { volume: name.to_owned() }))?;
        self.peers.check_known()?;
        let peer = follower.peer().to_owned();
        let pinned = self.peers.pinned().into_iter().find(|pinned| transfer::peer_digits(*pinned) == peer);
        let fingerprint = pinned.ok_or(ServerError::Peers(PeersError::PeerNotPinned))?;
        let number = follower.name.rsplit_once('-').and_then(|(_, hex)| u64::from_str_radix(hex, 16).ok());
        let relationship = number.ok_or(ServerError::Bug)?;
        let Some(Departure { address, volume, .. }) = follower.departed else { return Err(ServerError::Bug) };
        let address = from.map_or(address, str::to_owned);
        if address.is_empty() {
            return Err(ServerError::Mirrors(MirrorsError::Unlocated));
        }
        let mut pending = self.mirrors.pending.lock();
        pending.retain(|_, relation| relation.strong_count() > 0);
        if let Some(relation) = pending.get(name).and_then(Weak::upgrade) {
            if relation.follower() != follower.name {
                return Err(ServerError::Busy {
                    name: name.to_owned(),
                    by: "it is compared with another of its mirrors",
                });
            }
            relation.document.lock().address = address;
            return Ok(relation);
        }
        let mut document = MirrorDocument::of(&address, fingerprint, &volume, relationship);
        // Snapshots from another source stay locked.
        if let Ok(before) = self.mirrors.get(name) {
            document.locks_of(&before.known());
        }
        document.rpo_ms = follower.rpo.map(millis);
        let path = self.volumes.folder(name).join("mirror.json");
        let relation = Arc::new(Relation::new(&open, path, document, now_ms(&*self.clock)));
        pending.insert(name.to_owned(), Arc::downgrade(&relation));
        Ok(relation)
    }

    /// The mirror of a volume that was failed over, and is meant. If several were, the user must
    /// name one: each has different writes. None is meant if a relation is known and nothing
    /// indicates another.
    fn departed(
        &self,
        open: &OpenVolume,
        from: Option<&str>,
        mirror: Option<&str>,
        known: Option<&Relation>,
    ) -> Result<Option<Follower>, ServerError> {
        let mut departed = self.source.followers();
        departed.retain(|follower| follower.volume == open.volume.id() && follower.departed.is_some());
        if !departed.is_empty() && !open.is_destination() {
            // The id may be another one's as well.
            let own = self.mirrors_of(open).map_err(ServerError::volume(&open.name))?;
            departed.retain(|follower| own.iter().any(|mirror| mirror.name == follower.name));
        }
        if let Some(mirror) = mirror {
            let found = departed.into_iter().find(|follower| follower.name == mirror);
            if found.is_none() && known.is_some_and(|known| known.follower() == mirror) {
                return Ok(None);
            }
            let (what, name) = ("failed-over mirror", mirror.to_owned());
            return found.map(Some).ok_or(ServerError::NotFound { what, name, list: "cairn status" });
        }
        // A volume that follows has one source, even if other mirrors were failed over before.
        if open.is_destination() || departed.len() < 2 {
            return Ok(departed.pop().filter(|_| known.is_none()));
        }
        let address = |follower: &Follower| {
            follower.departed.as_ref().map(|departure| departure.address.clone()).unwrap_or_default()
        };
        let mut there: Vec<&Follower> =
            departed.iter().filter(|follower| from.is_some_and(|from| from == address(follower))).collect();
        if let (Some(one), true) = (there.pop(), there.is_empty()) {
            return Ok(Some(one.clone()));
        }
        let mirrors = departed.iter().map(|follower| (follower.name.clone(), address(follower))).collect();
        Err(ServerError::Mirrors(MirrorsError::SeveralDeparted { volume: open.name.clone(), mirrors }))
    }

    /// The data that only this side has.
    pub(crate) fn divergence(
        &self,
        name: &str,
        request: &api::DivergenceRequest,
    ) -> Result<api::Divergence, ServerError> {
        let relation = self.other_side(name, request.from.as_deref(), request.mirror.as_deref())?;
        let (standing, divergence) = self.mirrors.compare_sides(&relation)?;
        let document = relation.document.lock().clone();
        Ok(described(name, &document, &standing, &divergence))
    }

    /// Checks that a volume can follow the other side, and with `alone` that it can take its role
    /// without a group.
    pub(crate) fn check_follow(&self, name: &str, alone: bool) -> Result<(), ServerError> {
        if alone {
            self.groups.refuse_role_alone(name)?;
        }
        self.refuse_history_on(name)?;
        self.volumes.get(name)?.refuse_while_writes_wait()
    }

    /// Checks that a mirror can request the role of its source.
    pub(crate) fn check_reverse(&self, name: &str) -> Result<(), ServerError> {
        self.mirrors.refuse_taking_writes(&*self.mirrors.get(name)?)?;
        self.groups.refuse_role_alone(name)?;
        self.volumes.get(name)?.refuse_while_writes_wait()
    }

    pub(crate) fn resync_mirror(
        &self,
        name: &str,
        wish: api::ResyncRequest,
    ) -> Result<api::Job, ServerError> {
        self.refuse_nonsense(&wish)?;
        self.check_follow(name, false)?;
        let relation = self.other_side(name, wish.from.as_deref(), wish.mirror.as_deref())?;
        self.mirrors.start(
            &relation,
            "mirror resync",
            |_| Ok(()),
            move |mirrors, relation, open, progress| mirrors.resync(relation, open, progress, &wish),
        )
    }

    pub(crate) fn failback_mirror(
        &self,
        name: &str,
        wish: api::ResyncRequest,
    ) -> Result<api::Job, ServerError> {
        self.refuse_nonsense(&wish)?;
        self.check_follow(name, true)?;
        let relation = self.other_side(name, wish.from.as_deref(), wish.mirror.as_deref())?;
        self.mirrors.start(
            &relation,
            "mirror failback",
            |_| Ok(()),
            move |mirrors, relation, open, progress| {
                mirrors.resync(relation, open, progress, &wish)?;
                mirrors.reverse(relation, open, progress)
            },
        )
    }

    pub(crate) fn reverse_mirror(&self, name: &str) -> Result<api::Job, ServerError> {
        self.check_reverse(name)?;
        let relation = self.mirrors.get(name)?;
        self.mirrors.start(
            &relation,
            "mirror reverse",
            |_| Ok(()),
            |mirrors, relation, open, progress| mirrors.reverse(relation, open, progress),
        )
    }

    /// A volume that becomes a destination shows the other side's data, and a device on a LUN of it
    /// would have the history of another disk.
    pub(crate) fn refuse_history_on(&self, name: &str) -> Result<(), ServerError> {
        match self.volumes.get(name)?.is_destination() {
            true => Ok(()),
            false => self.devices.refuse_adopted(name, None),
        }
    }

    pub(super) fn refuse_nonsense(&self, wish: &api::ResyncRequest) -> Result<(), ServerError> {
        if wish.spill.is_some() && wish.discard {
            let fault = "local changes are either saved or discarded, not both";
            return Err(ServerError::Invalid { fault, next: "give --spill FILE or --discard-divergent" });
        }
        match &wish.spill {
            Some(path) if !Path::new(path).is_absolute() => {
                Err(ServerError::NotAbsolute { what: "the path of the spill" })
            }
            _ => Ok(()),
        }
    }
}

/// The data that only this side has, as the API describes it.
pub(super) fn described(
    name: &str,
    document: &MirrorDocument,
    standing: &Standing,
    divergence: &Divergence,
) -> api::Divergence {
    let (common, lost) = (divergence.common.as_ref(), is_lost(divergence));
    let follows = standing.role == Role::Destination && standing.own_head.0 == 0;
    api::Divergence {
        name: name.to_owned(),
        address: document.address.clone(),
        volume: document.volume.clone(),
        other_takes_writes: standing.role == Role::Normal,
        other_is_mirror: follows && !standing.snapshots.is_empty(),
        common: common.map(|common| common.name.clone()),
        common_ms: common.map(|common| common.created.0 / 1_000_000),
        common_generation: common.map(|common| common.generation.0),
        diverged: lost,
        lost_blocks: if lost { divergence.blocks } else { 0 },
        lost_bytes: if lost { divergence.blocks * BLOCK } else { 0 },
        snapshots: divergence.snapshots.iter().map(|snapshot| snapshot.name.clone()).collect(),
    }
}
