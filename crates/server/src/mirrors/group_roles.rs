//! The mirrors of a group on their way to the roles of their sources, at one instant.

use std::sync::Arc;

use cairn_api as api;
use cairn_mirror::Destination;

use super::roles::{CATCH_UP, LITTLE};
use super::{Mirrors, Relation};
use crate::error::ServerError;
use crate::mirrors::document::{Change, Manner, now_ms};
use crate::work::jobs::Progress;

/// The mirrors of a group, without any other running job while this exists.
pub(crate) struct Claimed {
    relations: Vec<Arc<Relation>>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.relations.iter().for_each(|relation| relation.release());
    }
}

impl Mirrors {
    /// Refuses volumes that are not all mirrors of one server: it is to let all of their sources
    /// stop at once.
    pub(crate) fn refuse_apart(&self, volumes: &[String]) -> Result<(), ServerError> {
        let mut fingerprints = Vec::new();
        for volume in volumes {
            let relation = self.get(volume)?;
            self.refuse_taking_writes(&relation)?;
            fingerprints.push(relation.document.lock().fingerprint);
        }
        match fingerprints.windows(2).all(|pair| pair[0] == pair[1]) {
            true => Ok(()),
            false => Err(ServerError::Invalid {
                fault: "the volumes of the group are mirrors of different servers, and cannot change roles at one instant",
                next: "change the roles one by one with `cairn mirror reverse`, or make groups of mirrors of one server",
            }),
        }
    }

    /// Excludes all other operations on the mirrors of these volumes.
    pub(crate) fn claim_all(&self, volumes: &[String]) -> Result<Claimed, ServerError> {
        let mut claimed = Claimed { relations: Vec::new() };
        for volume in volumes {
            let relation = self.get(volume)?;
            relation.interrupt()?;
            relation.claim(&*self.clock)?;
            claimed.relations.push(relation);
        }
        Ok(claimed)
    }

    /// Transfers all data of each source, makes all of them give their roles away at one instant,
    /// and transfers their last writes. They are still mirrors then.
    pub(crate) fn ask_for_roles(
        &self,
        group: &str,
        claimed: &Claimed,
        progress: &Progress,
    ) -> Result<(), ServerError> {
        let relations = &claimed.relations;
        let Some(first) = relations.first() else { return Err(ServerError::Bug) };
        for relation in relations {
            self.let_follow(relation)?;
        }
        for _ in 0..CATCH_UP {
            if self.bring_all(relations, progress)? <= LITTLE {
                break;
            }
        }
        relations.iter().for_each(|relation| self.hear_access(relation));
        progress.phase("asking for the roles of the sources");
        let heirs = relations.iter().map(|relation| (&relation.destination, self.successor(relation)));
        let heirs: Vec<_> = heirs.collect();
        let targets = self.talk(first, |client| Destination::ask_for_roles(client, group, heirs))?;
        self.bring_all(relations, progress)?;
        for (relation, target) in relations.iter().zip(targets) {
            let shown = relation.destination.refuse_unless_shown(target);
            shown.map_err(|error| relation.failed(error))?;
        }
        progress.phase("taking over");
        Ok(())
    }

    /// An update of each; how much of all of them had changed.
    fn bring_all(&self, relations: &[Arc<Relation>], progress: &Progress) -> Result<u64, ServerError> {
        let mut changed = 0;
        for relation in relations {
            let open = self.volumes.get(&relation.name)?;
            let started_ms = now_ms(&*self.clock);
            relation.live.lock().transfer = Some(api::Transfer { started_ms, ..api::Transfer::default() });
            let whole = Manner { hold: true, ..Manner::default() };
            let outcome = self.update(relation, &open, None, progress, whole);
            self.note(relation, &outcome);
            outcome?;
            changed += relation.live.lock().transfer.as_ref().map_or(0, |last| last.changed_bytes);
        }
        Ok(changed)
    }

    /// Makes a mirror writable that has the last image of its source.
    pub(crate) fn take_over(&self, name: &str) -> Result<(), ServerError> {
        let relation = self.get(name)?;
        if relation.is_failed_over() {
            return Ok(());
        }
        self.change_role(&relation, Change::Reverse, || {
            relation.destination.failover().map_err(|error| relation.failed(error))
        })?;
        let open = self.volumes.get(name)?;
        open.skip_numbers();
        self.source.returned(&open.volume, &relation.follower());
        tracing::warn!(mirror = name, "took over: the volume is writable, and the other side follows");
        Ok(())
    }
}
