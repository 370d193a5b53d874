//! How a volume here gives its role to a mirror of it, alone or at one instant with the others of
//! its group.
//!
//! | step | the state after a crash |
//! |---|---|
//! | its new source is saved (`mirror.json`) | unchanged: the document has no effect while the volume is writable |
//! | it becomes the destination, in one superblock write | the mirror reconnects, and gets the same answer |
//! | the consent is removed | the next start removes it |
//!
//! For a group each step is done for all volumes before the next one. A crash between two volumes
//! leaves some that show their last snapshot read-only, and others that are still writable: no data
//! is lost, and the mirrors find it when they reconnect. Then the read-only ones become writable
//! again first, since all of them must stop at one instant.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use cairn_mirror::{GiveTogether, GiveWay, Heir, Refusal, Relationship, Successor};
use cairn_volume::Snapshot;

use super::consent::Taker;
use super::when::When;
use super::{Mirrors, Relation};
use crate::error::ServerError;
use crate::mirrors::document::{Change, MirrorDocument, now_ms};
use crate::mirrors::error::MirrorsError;
use crate::peers::identity::Fingerprint;
use crate::state;
use crate::volumes::open::OpenVolume;

/// The server of a mirror that requests a role.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    /// Its certificate, which is pinned.
    pub(crate) certificate: Fingerprint,
    /// The address that it connects from.
    pub(crate) host: Option<IpAddr>,
}

impl Asker {
    /// Whether an address is that of the requesting machine.
    fn is_at(&self, address: &str) -> bool {
        let named = address.parse::<SocketAddr>().ok().map(|address| address.ip().to_canonical());
        named.is_some() && named == self.host
    }
}

/// A volume whose role a mirror requests.
struct Giving {
    open: Arc<OpenVolume>,
    /// Its source before, if any.
    before: Option<Arc<Relation>>,
    folder: PathBuf,
    /// Its source from then on.
    document: MirrorDocument,
    taker: Taker,
    /// Its owner made it a mirror of that source, and gave the roles back and forth as planned
    /// since: that source needs no further consent. After a failover it does, as the source may be
    /// why there was one.
    from_origin: bool,
    /// It has given way to it before.
    is_given: bool,
}

impl Giving {
    fn name(&self) -> &str {
        &self.open.name
    }

    fn path(&self) -> PathBuf {
        self.folder.join("mirror.json")
    }
}

fn refused(volume: &str, error: &ServerError) -> Refusal {
    tracing::error!(volume, %error, "refused the takeover of a mirror");
    Refusal::NotTaken
}

impl Mirrors {
    /// A mirror of a volume here takes over: this server records the new source of the volume, and
    /// the volume becomes the destination.
    pub(crate) fn hand_over(
        &self,
        name: &str,
        asker: Asker,
        relationship: Relationship,
        successor: &Successor,
        give: &mut GiveWay<'_>,
    ) -> Result<Snapshot, Refusal> {
        self.groups.check_known_of(name).map_err(|error| refused(name, &error))?;
        if let Some(group) = self.groups.roles_with(name) {
            tracing::warn!(
                volume = name,
                group,
                "refused a mirror that wants to take over without its group"
            );
            return Err(Refusal::InGroup(group));
        }
        let giving = self.giving(name, asker, relationship, successor)?;
        self.check_consent(&giving)?;
        giving.open.make_room_as_destination().map_err(|error| refused(name, &error))?;
        state::save(&giving.path(), &giving.document).map_err(|error| refused(name, &error))?;
        // Writes to mounted files that the kernel still caches would be refused afterwards.
        giving.open.collect();
        match give() {
            Ok(head) => {
                let (name, to) = self.has_given(giving);
                self.cut_off(&name, &to, &head);
                Ok(head)
            }
            Err(error) => {
                tracing::error!(volume = name, %error, "a volume could not give its role away");
                self.not_given(giving)?;
                Err(Refusal::from(&error))
            }
        }
    }

    /// The mirrors of a group of volumes here take over: the same of all of them, at one instant.
    pub(crate) fn hand_over_together(
        &self,
        group: &str,
        asker: Asker,
        heirs: &[Heir],
        give: &mut GiveTogether<'_>,
    ) -> Result<Vec<Snapshot>, Refusal> {
        let volumes: Vec<&str> = heirs.iter().map(|heir| heir.volume.as_str()).collect();
        self.groups.check_whole(group, &volumes).map_err(|error| {
            let refusal = refused(group, &error);
            let is_other = matches!(error, ServerError::NotFound { .. } | ServerError::Invalid { .. });
            if is_other { Refusal::OtherGroup(group.to_owned()) } else { refusal }
        })?;
        let all =
            heirs.iter().map(|heir| self.giving(&heir.volume, asker, heir.relationship, &heir.successor));
        let all: Vec<Giving> = all.collect::<Result<_, _>>()?;
        // Before anything is changed for any of them.
        all.iter().try_for_each(|giving| self.check_consent(giving))?;
        let failed = |giving: &Giving| {
            let volume = giving.name().to_owned();
            move |error: ServerError| refused(&volume, &error)
        };
        for giving in &all {
            giving.open.make_room_as_destination().map_err(failed(giving))?;
        }
        for giving in all.iter().filter(|giving| giving.is_given) {
            self.take_back(giving).map_err(failed(giving))?;
        }
        // Also of those that had given way: the consent was renewed.
        all.iter().try_for_each(|giving| self.check_consent(giving))?;
        let saved = all
            .iter()
            .try_for_each(|giving| state::save(&giving.path(), &giving.document).map_err(failed(giving)));
        if let Err(refusal) = saved {
            self.none_given(all)?;
            return Err(refusal);
        }
        // Writes to mounted files that the kernel still caches would be refused afterwards.
        all.iter().for_each(|giving| giving.open.collect());
        match give(&self.groups.name_snapshot(group).0) {
            Ok(heads) => {
                let given: Vec<_> = all.into_iter().map(|giving| self.has_given(giving)).collect();
                // Reconnecting clients see the common snapshot from now on.
                self.groups.advance_all(true);
                for ((name, to), head) in given.iter().zip(&heads) {
                    self.cut_off(name, to, head);
                }
                Ok(heads)
            }
            Err((at, error)) => {
                let volume = all.get(at).map(Giving::name).unwrap_or_default();
                tracing::error!(group, volume, %error, "a group could not give its roles away");
                self.none_given(all)?;
                Err(Refusal::from(&error))
            }
        }
    }

    fn giving(
        &self,
        name: &str,
        asker: Asker,
        relationship: Relationship,
        successor: &Successor,
    ) -> Result<Giving, Refusal> {
        let certificate = asker.certificate;
        let open = self.volumes.get(name).map_err(|_| Refusal::NoSuchVolume)?;
        // The new source is saved in the same document as the old one.
        self.check_known(name).map_err(|error| refused(name, &error))?;
        if successor.address.is_empty() {
            return Err(refused(name, &ServerError::Mirrors(MirrorsError::Unlocated)));
        }
        let is_given = open.is_destination();
        if !is_given {
            // A device on a LUN of it would have the history of another disk from then on.
            self.devices.refuse_adopted(name, None).map_err(|error| refused(name, &error))?;
        }
        let before = self.relations.lock().get(name).cloned();
        // The other side, which is not writable either, refuses an update of a volume that has
        // given its role away.
        if !is_given && before.as_ref().is_some_and(|before| before.live.lock().running) {
            return Err(Refusal::Superseded);
        }
        let from_origin = before.as_ref().is_some_and(|before| {
            let document = before.document.lock();
            let planned = document.change.is_some_and(|change| change.kind == Change::Reverse);
            document.origin
                && planned
                && document.fingerprint == certificate
                && document.relationship == relationship.0
        });
        let mut document =
            MirrorDocument::of(&successor.address, certificate, &successor.volume, relationship.0);
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let (cron, zone) = (some(&successor.cron), some(&successor.zone));
        // A schedule that this side can't parse is ignored.
        let when = When::default().changed(successor.every_ms, cron.as_deref(), zone.as_deref());
        document.when = when.unwrap_or_default();
        document.when.continuous = successor.continuous;
        document.rpo_ms = successor.rpo_ms;
        document.unseen = !asker.is_at(&successor.address);
        if let Some(before) = &before {
            let known = before.known();
            document.settings_of(&known);
            let is_known = known.fingerprint == certificate && known.address == successor.address;
            document.unseen &= !is_known || known.unseen;
        }
        document.change = Some(self.changed(Change::HandOver));
        let folder = self.volumes.folder(name);
        let taker = Taker::new(certificate, relationship);
        Ok(Giving { open, before, folder, document, taker, from_origin, is_given })
    }

    /// Refuses a change of roles without the owner's consent, unless a change from before consents
    /// existed is repeated.
    fn check_consent(&self, giving: &Giving) -> Result<(), Refusal> {
        let name = giving.name();
        if giving.from_origin || giving.is_given || self.consents.allows(name, giving.taker, &*self.clock) {
            return Ok(());
        }
        tracing::warn!(volume = name, "refused a mirror that wants to take over without a consent");
        Err(Refusal::NotAllowed)
    }

    /// Makes a volume writable again that became read-only without the others of its group: it has
    /// no new writes, and its mirror has not taken over, as it requests the role.
    fn take_back(&self, giving: &Giving) -> Result<(), ServerError> {
        let name = giving.name();
        let none = || ServerError::Mirrors(MirrorsError::NotAMirror { volume: name.to_owned() });
        let relation = giving.before.as_ref().ok_or_else(none)?;
        // The consent of its owner was used for the change that is repeated now.
        if !giving.from_origin {
            self.consents.renew(name, &giving.folder, giving.taker, &*self.clock)?;
        }
        relation.settle()?;
        relation.destination.failover().map_err(|error| relation.failed(error))?;
        tracing::warn!(
            volume = name,
            "it is writable again, as the others of its group had not given their roles away"
        );
        Ok(())
    }

    /// It follows its mirror from now on. Returns its name and the address of the mirror.
    fn has_given(&self, giving: Giving) -> (String, String) {
        let name = giving.name().to_owned();
        let to = giving.document.address.clone();
        giving.open.stop_keeping();
        if let Err(error) = self.consents.end(&name, &giving.folder) {
            // The next start does it.
            tracing::warn!(volume = name, %error, "could not remove a used consent");
        }
        self.follows(giving);
        (name, to)
    }

    fn cut_off(&self, name: &str, to: &str, head: &Snapshot) {
        let closed = self.close_sessions(name);
        tracing::warn!(volume = name, to, snapshot = head.name, closed, "gave its role away");
    }

    fn follows(&self, giving: Giving) {
        let (name, path) = (giving.name().to_owned(), giving.path());
        if let Some(Err(error)) = giving.before.as_ref().map(|before| before.give_place(&giving.document)) {
            tracing::warn!(volume = name, %error, "an update from before a change of roles may still run");
        }
        let relation = Relation::new(&giving.open, path, giving.document, now_ms(&*self.clock));
        self.relations.lock().insert(name, Arc::new(relation));
    }

    /// The same for all volumes of a group, also for those after one that can't be saved.
    fn none_given(&self, all: Vec<Giving>) -> Result<(), Refusal> {
        let mut undone = Ok(());
        for giving in all {
            undone = undone.and(self.not_given(giving));
        }
        undone
    }

    /// It stays writable, and the document that was saved too early is removed. Not for a volume
    /// that failed in the middle, whose role only the next start knows: the document has no effect
    /// if the volume is writable.
    fn not_given(&self, giving: Giving) -> Result<(), Refusal> {
        if giving.open.is_destination() {
            // It failed when it was to take its role back.
            self.follows(giving);
            return Ok(());
        }
        if giving.open.volume.status().latched.is_some() {
            return Ok(());
        }
        let (name, path) = (giving.name(), giving.path());
        let undone = match &giving.before {
            Some(before) => state::save(&path, &*before.document.lock()),
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(ServerError::path("remove", &path)(error))
                }
                _ => Ok(()),
            },
        };
        undone.map_err(|error| refused(name, &error))
    }
}

#[cfg(test)]
mod tests;
