//! Mirrors whose volumes are not open, as a device is missing or damaged: they show no image and
//! receive none, but are reported, as otherwise monitoring would see only the healthy ones.

use cairn_api::{self as api, MirrorRole, MirrorState};

use super::Mirrors;
use crate::mirrors::document::MirrorDocument;
use crate::mirrors::transfer;
use crate::peers::identity::Fingerprint;
use crate::state;

impl Mirrors {
    /// All of them, according to their documents.
    pub(super) fn show_closed(&self) -> Vec<api::Mirror> {
        let mut closed = self.volumes.list();
        // A mirror that a command has closed for a moment is known, and shown with the others.
        let known = self.relations.lock();
        closed.retain(|volume| {
            volume.role == api::VolumeRole::Unavailable && !known.contains_key(&volume.name)
        });
        drop(known);
        let names = closed.into_iter().map(|volume| volume.name);
        names.filter_map(|name| self.show_one_closed(&name)).collect()
    }

    fn show_one_closed(&self, name: &str) -> Option<api::Mirror> {
        let error = self.volumes.get(name).err()?;
        let path = self.volumes.folder(name).join("mirror.json");
        let document = match state::load::<MirrorDocument>(&path) {
            Ok(document) => document?,
            // Only its existence is known.
            Err(_) => MirrorDocument::of("", Fingerprint::default(), "", 0),
        };
        let other = format!("{} at {}", document.volume, document.address);
        let takes_writes = document.takes_writes();
        let (role, direction) = match takes_writes {
            _ if document.address.is_empty() => {
                (MirrorRole::Destination, "the other side is unknown".to_owned())
            }
            true => (MirrorRole::Source, format!("{name} (here, source) -> {other} (destination)")),
            false => (MirrorRole::Destination, format!("{other} (source) -> {name} (here, destination)")),
        };
        let source_name =
            format!("{}-{:016x}", transfer::peer_digits(self.identity.fingerprint), document.relationship);
        let rpo_ms = document.rpo().map(crate::mirrors::document::millis);
        let stall_ms = crate::mirrors::document::millis(document.stall(self.patience));
        let within_ms = document.within().map(crate::mirrors::document::millis);
        Some(api::Mirror {
            name: name.to_owned(),
            locked: self.locked(name).len() as u64,
            locked_until_ms: None,
            lock_key: document.lock_key.is_some(),
            unlocked_ms: None,
            role,
            direction,
            role_since_ms: document.change.map(|change| change.at_ms),
            spill: document.decision.as_ref().and_then(|decision| decision.spill.clone()),
            state: MirrorState::Unknown,
            reason: format!("it shows nothing and is brought nothing: {error}"),
            remedy: Some(error.next()),
            check: 2,
            source_address: document.address,
            source_volume: document.volume,
            source_name,
            every_ms: document.when.every_ms,
            cron: document.when.cron,
            continuous: document.when.continuous,
            session: None,
            zone: document.when.zone,
            lock_ms: document.lock_ms,
            rpo_ms,
            over_rpo: false,
            hold: !document.no_hold,
            stall_ms,
            paused: document.paused,
            limit: document.link.limit.clone(),
            limit_now_bytes: None,
            connections: document.link.connections.unwrap_or(1),
            compress: document.link.compress,
            within_ms,
            image: None,
            image_ms: None,
            image_age_ms: None,
            lag_ms: None,
            lag_bytes: None,
            silent_ms: None,
            quiet_ms: None,
            last: document.last,
            next_ms: None,
            sent_bytes: document.sent_bytes,
            updates: document.updates,
            compared_updates: 0,
            problem: Some(error.body()),
            verified: document.verified,
            mended_here: document.mended_here,
            mended_there: document.mended_there,
            mended_locked: document.mended_locked,
        })
    }
}
