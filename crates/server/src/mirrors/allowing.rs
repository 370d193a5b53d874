//! Which mirror an owner lets take over: a consent is for one mirror, and no other can use it.

use std::collections::BTreeMap;

use cairn_api as api;
use cairn_mirror::{MirrorError, Refusal, Relationship};

use super::consent::Taker;
use super::{Mirrors, Relation};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::document::{ALLOWED_MS, Change};
use crate::mirrors::error::MirrorsError;
use crate::mirrors::role_error::RoleError;
use crate::mirrors::transfer;
use crate::peers::identity::Fingerprint;

impl Server {
    /// Lets a mirror of a volume here take over within that time, or no longer.
    pub(crate) fn allow_reverse(
        &self,
        volume: &str,
        request: &api::AllowReverse,
    ) -> Result<api::ReverseAllowed, ServerError> {
        let meant = self.check_allow_reverse(volume, request)?;
        let (mirrors, folder) = (&self.mirrors, self.volumes.folder(volume));
        let volume = volume.to_owned();
        let Some((mirror, taker)) = meant else {
            mirrors.consents.end(&volume, &folder)?;
            return Ok(api::ReverseAllowed { volume, mirror: None, until_ms: None });
        };
        let for_ms = request.for_ms.unwrap_or(ALLOWED_MS);
        let until_ms = mirrors.consents.give(&volume, &folder, (taker, for_ms), &*self.clock)?;
        Ok(api::ReverseAllowed { volume, mirror: Some(mirror), until_ms: Some(until_ms) })
    }

    /// Checks that a mirror can take over. Returns the named mirror; none if a consent is to end.
    pub(crate) fn check_allow_reverse(
        &self,
        volume: &str,
        request: &api::AllowReverse,
    ) -> Result<Option<(String, Taker)>, ServerError> {
        if self.volumes.get(volume)?.is_destination() {
            return Err(ServerError::Mirrors(MirrorsError::IsDestination { volume: volume.to_owned() }));
        }
        if request.for_ms == Some(0) {
            return Ok(None);
        }
        self.refuse_history_on(volume)?;
        self.mirror_meant(volume, request.mirror.as_deref()).map(Some)
    }

    /// The mirror whose name has this prefix; without a name the only existing one.
    fn mirror_meant(&self, volume: &str, wish: Option<&str>) -> Result<(String, Taker), ServerError> {
        let mut mirrors = self.may_take_over(volume)?;
        if let Some(wish) = wish {
            mirrors.retain(|name, _| name.starts_with(wish));
        }
        let names: Vec<String> = mirrors.keys().cloned().collect();
        let mut left = mirrors.into_iter();
        match (left.next(), left.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => {
                let (volume, mirror) = (volume.to_owned(), wish.map(str::to_owned));
                Err(RoleError::NoSuchMirror { volume, mirror }.into())
            }
            (Some(_), Some(_)) => {
                Err(RoleError::SeveralMirrors { volume: volume.to_owned(), mirrors: names }.into())
            }
        }
    }

    /// The mirrors of a volume whose servers are admitted here. The other side of a mirror that
    /// took over is one of them before it has asked for an image.
    fn may_take_over(&self, volume: &str) -> Result<BTreeMap<String, Taker>, ServerError> {
        self.peers.check_known()?;
        self.followers.check_known()?;
        let open = self.volumes.get(volume)?;
        let own = self.mirrors_of(&open).map_err(ServerError::volume(volume))?;
        let pinned: BTreeMap<String, Fingerprint> =
            self.peers.pinned().into_iter().map(|pinned| (transfer::peer_digits(pinned), pinned)).collect();
        let of_follower = |name: &str| {
            let (peer, number) = name.rsplit_once('-')?;
            let relationship = Relationship(u64::from_str_radix(number, 16).ok()?);
            Some(Taker::new(*pinned.get(peer)?, relationship))
        };
        let mut mirrors: BTreeMap<String, Taker> = own
            .into_iter()
            .filter_map(|mirror| Some((mirror.name.clone(), of_follower(&mirror.name)?)))
            .collect();
        if let Ok(relation) = self.mirrors.get(volume)
            && relation.refuse_without_source().is_ok()
        {
            let document = relation.document.lock();
            let taker = Taker::new(document.fingerprint, Relationship(document.relationship));
            drop(document);
            mirrors.insert(relation.follower(), taker);
        }
        Ok(mirrors)
    }
}

impl Mirrors {
    /// Refuses a command for a mirror on the writable side, and names that side.
    pub(super) fn refuse_taking_writes(&self, relation: &Relation) -> Result<(), ServerError> {
        if !relation.is_failed_over() {
            return Ok(());
        }
        let document = relation.document.lock().clone();
        let volume = relation.name.clone();
        let was_failed_over = document.change.is_none_or(|change| change.kind == Change::Failover);
        if was_failed_over && !self.is_followed(relation, &document) {
            return Err(ServerError::Mirrors(MirrorsError::FailedOver { volume }));
        }
        let (there, address) = (document.volume.clone(), document.address.clone());
        Err(RoleError::IsSource { volume, there, address }.into())
    }

    /// Names the server that lacks a consent, and the command that gives it.
    pub(super) fn name_consent(&self, relation: &Relation, error: ServerError) -> ServerError {
        match error {
            ServerError::Mirrors(MirrorsError::Mirror { source, .. })
                if matches!(*source, MirrorError::Refused(Refusal::NotAllowed)) =>
            {
                let document = relation.document.lock();
                RoleError::ConsentNeeded {
                    volume: relation.name.clone(),
                    there: document.volume.clone(),
                    address: document.address.clone(),
                    mirror: self.own_name(document.relationship),
                }
                .into()
            }
            error => error,
        }
    }

    /// The name of this mirror on the other side.
    pub(super) fn own_name(&self, relationship: u64) -> String {
        format!("{}-{relationship:016x}", transfer::peer_digits(self.identity.fingerprint))
    }
}
