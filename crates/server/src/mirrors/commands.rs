//! What the API asks of mirrors.

use std::sync::Arc;

use cairn_base::BLOCK_SIZE;
use cairn_mirror::Client;
use cairn_volume::Role;

use super::roles::Change;
use super::{Document, Relation, image_of, millis, now_ms};
use crate::api;
use crate::destination::connect;
use crate::error::ServerError;
use crate::names;
use crate::peers::Credential;
use crate::server::Server;
use crate::state;
use crate::token::{Token, random_bytes};
use crate::volumes::NewVolume;

impl Server {
    pub(crate) fn list_mirrors(&self) -> Vec<api::Mirror> {
        self.mirrors.all().iter().map(|relation| self.mirrors.show(relation)).collect()
    }

    pub(crate) fn show_mirror(&self, name: &str) -> Result<api::Mirror, ServerError> {
        Ok(self.mirrors.show(&*self.mirrors.get(name)?))
    }

    pub(crate) fn create_mirror(&self, request: api::CreateMirror) -> Result<api::Job, ServerError> {
        let mirrors = &self.mirrors;
        let name = request.name.as_deref().unwrap_or(&request.volume);
        names::check("volume", name)?;
        names::check("volume", &request.volume)?;
        let token = Token::decode(&request.token)?;
        if request.every_ms == Some(0) {
            return Err(ServerError::Invalid { what: "the interval", rule: "it is above 0" });
        }
        // Everything that can be refused here is, before the token is used.
        if token.volume.as_deref().is_some_and(|only| only != request.volume) {
            return Err(ServerError::VolumeNotAllowed { volume: request.volume });
        }
        if !matches!(self.volumes.get(name), Err(ServerError::NotFound { .. })) {
            return Err(ServerError::DestinationTaken { volume: name.to_owned() });
        }
        let document = Document {
            address: token.address,
            fingerprint: token.fingerprint,
            volume: request.volume.clone(),
            credential: Some(Credential { id: token.id, secret: token.secret }),
            every_ms: request.every_ms,
            rpo_ms: request.rpo_ms.filter(|rpo| *rpo > 0),
            no_hold: request.no_hold,
            stall_ms: request.stall_ms.filter(|stall| *stall > 0),
            paused: false,
            relationship: u64::from_le_bytes(random_bytes()),
            contact: None,
            sent_bytes: 0,
            updates: 0,
            last: None,
            verified: None,
            mended_here: 0,
            mended_there: 0,
            change: None,
            decision: None,
        };
        let patience = document.stall(mirrors.patience);
        let mut stream = connect(&self.identity, &document.source(), patience, |_| ())?;
        let wanted = Client::hello(&mut stream)
            .and_then(|mut client| client.provision_info(&request.volume))
            .map_err(|source| ServerError::Mirror { volume: name.to_owned(), source: Box::new(source) })?;
        let new = NewVolume {
            name,
            id: wanted.id,
            role: Role::Destination,
            blocks: Some(wanted.blocks),
            devices: &request.devices,
            log_device: None,
        };
        let open = self.volumes.create(&new)?;
        let path = self.volumes.folder(name).join("mirror.json");
        state::save(&path, &document)?;
        let relation = Arc::new(Relation::new(&open, path, document, now_ms(&*self.clock)));
        // The baseline is begun before the schedule can see the mirror.
        let job = mirrors.begin(&relation, Some(stream), "mirror create", false);
        mirrors.relations.lock().insert(name.to_owned(), relation);
        tracing::info!(mirror = name, source = request.volume, "made a mirror");
        job
    }

    pub(crate) fn update_mirror(
        &self,
        name: &str,
        request: &api::UpdateRequest,
    ) -> Result<api::Job, ServerError> {
        let relation = self.mirrors.get(name)?;
        self.mirrors.begin(&relation, None, "mirror update", request.compare)
    }

    /// Changes what is wanted of a mirror. A change of the schedule counts from now.
    pub(crate) fn set_mirror(&self, name: &str, set: &api::SetMirror) -> Result<api::Mirror, ServerError> {
        let relation = self.mirrors.get(name)?;
        if relation.is_failed_over() {
            return Err(ServerError::FailedOver { volume: name.to_owned() });
        }
        let some = |value: u64| (value > 0).then_some(value);
        {
            let mut document = relation.document.lock();
            let mut changed = document.clone();
            changed.every_ms = set.every_ms.map_or(changed.every_ms, some);
            changed.rpo_ms = set.rpo_ms.map_or(changed.rpo_ms, some);
            changed.stall_ms = set.stall_ms.map_or(changed.stall_ms, some);
            changed.no_hold = set.hold.map_or(changed.no_hold, |hold| !hold);
            changed.paused = set.paused.unwrap_or(changed.paused);
            state::save(&relation.path, &changed)?;
            relation.destination.set_options(changed.options());
            let resumed = document.paused && !changed.paused;
            let now_ms = now_ms(&*self.clock);
            if resumed || set.every_ms.is_some() {
                // What was missed meanwhile is one update now.
                let delay = |every: u64| if resumed { 0 } else { every };
                let next = changed.every_ms.map(|every| now_ms.saturating_add(delay(every)));
                relation.live.lock().next_ms = next;
            }
            *document = changed;
        }
        if set.paused == Some(true) {
            relation.settle()?;
        }
        self.mirrors.look();
        Ok(self.mirrors.show(&relation))
    }

    /// Ends a running update, and answers when it is over.
    pub(crate) fn abort_mirror(&self, name: &str) -> Result<api::Aborted, ServerError> {
        let relation = self.mirrors.get(name)?;
        let was_running = relation.live.lock().running;
        if was_running {
            relation.settle()?;
        }
        let kept_bytes = relation.destination.arrived_blocks() * BLOCK_SIZE as u64;
        Ok(api::Aborted { name: name.to_owned(), was_running, kept_bytes })
    }

    pub(crate) fn failover(&self, name: &str, dry_run: bool) -> Result<api::Failover, ServerError> {
        let relation = self.mirrors.get(name)?;
        if relation.is_failed_over() {
            return Err(ServerError::FailedOver { volume: name.to_owned() });
        }
        let open = self.volumes.get(name)?;
        let shown = image_of(&open);
        if shown.is_none() {
            return Err(ServerError::NoImage { volume: name.to_owned() });
        }
        let mut unfinished = relation.destination.arrived_blocks();
        let loss = if dry_run {
            relation.destination.loss()
        } else {
            relation.settle()?;
            unfinished = relation.destination.arrived_blocks();
            // Written first: without effect while the volume follows.
            let fingerprint = relation.document.lock().fingerprint;
            self.mirrors.keep(&relation, |document| {
                document.change = Some(self.mirrors.changed(Change::Failover));
            })?;
            // The other side may come and follow.
            self.peers.pin(self.clock.now(), fingerprint, name)?;
            let failed = |source| ServerError::Mirror { volume: name.to_owned(), source: Box::new(source) };
            let loss = relation.destination.failover().map_err(failed)?;
            tracing::warn!(mirror = name, image = loss.image_name, "failed over: the volume takes writes");
            loss
        };
        let at_most = loss.age_at_most();
        let since_image = self.clock.now().since(loss.image_taken);
        Ok(api::Failover {
            name: name.to_owned(),
            image: Some(loss.image_name),
            image_ms: Some(loss.image_taken.0 / 1_000_000),
            lost_ms: Some(millis(at_most.unwrap_or(since_image))),
            lost_bytes: loss.bytes_known,
            silent_ms: loss.silent.map(millis),
            discarded_bytes: unfinished * BLOCK_SIZE as u64,
            direction: self.mirrors.show(&relation).direction,
            dry_run,
        })
    }

    pub(crate) fn delete_mirror(&self, name: &str) -> Result<(), ServerError> {
        let relation = self.mirrors.get(name)?;
        if relation.is_failed_over() {
            return Err(ServerError::FailedOver { volume: name.to_owned() });
        }
        self.refuse_if_in_use(name, |export| export.volume == name)?;
        relation.settle()?;
        self.volumes.delete(name)?;
        self.mirrors.forget(name);
        Ok(())
    }
}
