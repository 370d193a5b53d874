//! Mirrors whose `mirror.json` can't be read, and those whose document was given up.
//!
//! The role of such a volume is in the volume itself: one that follows shows its last image
//! read-only, and a writable one stays writable. Its source is unknown: it gets no image, cannot
//! give its role away, and is not deleted. Once the document is given up it has no source until its
//! owner names one, and keeps every snapshot until its owner sets a retention.

use std::path::Path;

use cairn_api::{self as api, MirrorState};

use super::{Mirrors, Relation};
use crate::daemon::error::DaemonError;
use crate::error::ServerError;
use crate::mirrors::document::{MirrorDocument, now_ms};
use crate::mirrors::error::MirrorsError;
use crate::mirrors::role_error::RoleError;
use crate::mirrors::transfer;
use crate::peers::identity::Fingerprint;
use crate::peers::token::random_bytes;
use crate::state;
use crate::state::Unread;

/// Retention of the snapshots of a mirror whose retention is unknown: a hundred years.
pub(super) const UNTIL_SAID_MS: u64 = 100 * 365 * 24 * 3_600_000;

impl Mirrors {
    /// Refuses while the present or earlier source of a volume is unknown.
    pub(super) fn check_known(&self, name: &str) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().get(name))
    }

    /// The document of a mirror whose source was given up: it stays a mirror without a source, and
    /// keeps its snapshots until its owner sets their retention. A writable volume needs no such
    /// document.
    pub(crate) fn of_nobody(&self, name: &str) -> Result<Option<Vec<u8>>, ServerError> {
        if !self.volumes.get(name)?.is_destination() {
            return Ok(None);
        }
        let relationship = u64::from_le_bytes(random_bytes());
        let document = MirrorDocument {
            lock_ms: Some(UNTIL_SAID_MS),
            ..MirrorDocument::of("", Fingerprint::default(), name, relationship)
        };
        state::text(&self.volumes.folder(name).join("mirror.json"), &document).map(Some)
    }

    /// The record of a mirror was given up.
    pub(crate) fn forget_source(&self, name: &str) {
        self.unread.lock().remove(name);
        let known = self.relations.lock().remove(name);
        if let Some(relation) = known {
            // Its running jobs would save the discarded record again.
            relation.retire();
        }
    }

    /// An earlier document, adapted so that a mirror resumes with it: the mirror gets no updates
    /// before its owner has checked it.
    pub(crate) fn of_an_earlier_time(&self, name: &str, path: &Path) -> Result<Vec<u8>, ServerError> {
        let missing = || ServerError::Daemon(DaemonError::NoPrevious { path: path.to_owned() });
        let mut document = state::load::<MirrorDocument>(path)?.ok_or_else(missing)?;
        document.paused |= self.volumes.get(name)?.is_destination();
        state::text(path, &document)
    }

    /// The mirrors whose documents can't be read, of which only the existence is known.
    pub(super) fn show_unread(&self) -> Vec<api::Mirror> {
        let unread = self.unread.lock().clone();
        let show = |(name, unread): (String, Unread)| {
            let open = self.volumes.get(&name).ok()?;
            let error = unread.error();
            let path = self.volumes.folder(&name).join("mirror.json");
            let relation = Relation::new(
                &open,
                path,
                MirrorDocument::of("", Fingerprint::default(), "", 0),
                now_ms(&*self.clock),
            );
            let shown = self.show(&relation);
            let unknown = "the other side is unknown";
            let reason = match relation.is_failed_over() {
                true => format!("the volume takes writes, and its relation to a mirror is unknown: {error}"),
                false => format!("it shows its last image, gets no newer one and takes no writes: {error}"),
            };
            Some(api::Mirror {
                direction: unknown.to_owned(),
                source_address: String::new(),
                source_volume: String::new(),
                source_name: String::new(),
                state: MirrorState::Unknown,
                reason,
                remedy: Some(error.next()),
                check: 2,
                problem: Some(error.body()),
                ..shown
            })
        };
        unread.into_iter().filter_map(show).collect()
    }
}

impl Mirrors {
    /// The name of the source of a volume as a mirror of this side; none if it has no source.
    pub(crate) fn source_of(&self, name: &str) -> Option<String> {
        let relation = self.relations.lock().get(name).cloned()?;
        (!relation.is_failed_over()).then(|| relation.follower())
    }

    /// Whether a volume is a mirror of that name of another one on this very server: either side of
    /// it has that name then.
    pub(crate) fn is_of_this_server(&self, name: &str, mirror: &str) -> bool {
        let relation = self.relations.lock().get(name).cloned();
        relation.is_some_and(|relation| {
            let is_own = relation.document.lock().fingerprint == self.identity.fingerprint;
            is_own && relation.follower() == mirror
        })
    }
}

impl Relation {
    /// The name of the other side as a mirror of this one.
    pub(super) fn follower(&self) -> String {
        let document = self.document.lock();
        format!("{}-{:016x}", transfer::peer_digits(document.fingerprint), document.relationship)
    }

    /// Refuses if the record of the other side was given up.
    pub(super) fn refuse_without_source(&self) -> Result<(), ServerError> {
        let document = self.document.lock();
        match document.address.is_empty() {
            true => Err(ServerError::Mirrors(MirrorsError::SourceForgotten { volume: self.name.clone() })),
            false => document.refuse_unseen(&self.name),
        }
    }
}

impl MirrorDocument {
    /// Refuses to connect to an address that only the other side has announced.
    pub(super) fn refuse_unseen(&self, volume: &str) -> Result<(), ServerError> {
        let (volume, address) = (volume.to_owned(), self.address.clone());
        if self.unseen { Err(RoleError::AddressUnseen { volume, address }.into()) } else { Ok(()) }
    }
}
