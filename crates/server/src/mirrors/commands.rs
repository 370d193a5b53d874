//! The API's commands for mirrors.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_api as api;
use cairn_base::BLOCK_SIZE;
use cairn_mirror::{Client, Compression, Destination, Relationship};
use cairn_volume::Role;

use super::when::When;
use super::{Mirrors, Relation, image_of, locks};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::document::{Change, Link, Manner, MirrorDocument, millis, now_ms};
use crate::mirrors::error::MirrorsError;
use crate::mirrors::limits::Limits;
use crate::mirrors::role_error::RoleError;
use crate::peers::Credential;
use crate::peers::error::PeersError;
use crate::peers::outbound::{connect, hang_up};
use crate::peers::token::{Token, random_bytes};
use crate::peers::wire::LANES_MAX;
use crate::volumes::NewVolume;
use crate::volumes::error::VolumesError;
use crate::{names, state};

/// Time for the source of a deleted mirror to answer: the delete command waits for it.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(5);

impl Server {
    pub(crate) fn list_mirrors(&self) -> Vec<api::Mirror> {
        let known = self.mirrors.all();
        let mut shown: Vec<api::Mirror> = known.iter().map(|relation| self.mirrors.show(relation)).collect();
        shown.extend(self.mirrors.show_unread());
        shown.extend(self.mirrors.show_closed());
        shown.sort_by(|a, b| a.name.cmp(&b.name));
        shown
    }

    pub(crate) fn show_mirror(&self, name: &str) -> Result<api::Mirror, ServerError> {
        let mut unknown = self.mirrors.show_unread().into_iter().chain(self.mirrors.show_closed());
        if let Some(unknown) = unknown.find(|mirror| mirror.name == name) {
            return Ok(unknown);
        }
        Ok(self.mirrors.show(&*self.mirrors.get(name)?))
    }

    /// The document of a mirror that is to be created. Everything that can be refused here is,
    /// before the token is used.
    pub(super) fn document_of(&self, request: &api::CreateMirror) -> Result<MirrorDocument, ServerError> {
        names::check("volume", request.name_here())?;
        names::check("volume", &request.volume)?;
        let token = Token::decode(&request.token)?;
        if request.every_ms == Some(0) {
            return Err(ServerError::Invalid {
                fault: "the interval is 0",
                next: "give an interval such as 15m",
            });
        }
        let (cron, zone) = (request.cron.as_deref(), request.zone.as_deref());
        let times = request.every_ms.is_some() || cron.is_some();
        let when = When::default().changed(request.every_ms, cron, zone)?;
        let when = when.continuously(request.continuous.then_some(true), times)?;
        if token.volume.as_deref().is_some_and(|only| only != request.volume) {
            return Err(ServerError::Peers(PeersError::VolumeNotAllowed { volume: request.volume.clone() }));
        }
        let link = link(&request.link, Link::default())?;
        let relationship = u64::from_le_bytes(random_bytes());
        Ok(MirrorDocument {
            credential: Some(Credential { id: token.id, secret: token.secret }),
            when,
            rpo_ms: request.rpo_ms.filter(|rpo| *rpo > 0),
            no_hold: request.no_hold,
            stall_ms: request.stall_ms.filter(|stall| *stall > 0),
            link,
            lock_ms: request.lock_ms.filter(|lock| *lock > 0),
            lock_key: request.lock_key.as_deref().map(locks::digest).transpose()?.flatten(),
            origin: true,
            ..MirrorDocument::of(&token.address, token.fingerprint, &request.volume, relationship)
        })
    }

    /// Refuses the name of a volume that is here, for a mirror that gets a new one.
    pub(super) fn refuse_taken_destination(&self, name: &str) -> Result<(), ServerError> {
        match self.volumes.get(name) {
            Err(ServerError::NotFound { .. }) => Ok(()),
            _ => Err(ServerError::Mirrors(MirrorsError::DestinationTaken { volume: name.to_owned() })),
        }
    }

    pub(crate) fn create_mirror(&self, request: api::CreateMirror) -> Result<api::Job, ServerError> {
        let mirrors = &self.mirrors;
        let name = request.name_here();
        let document = self.document_of(&request)?;
        if let Some(seed) = &request.seed {
            return self.seed_mirror(name, &request, seed, document);
        }
        self.refuse_taken_destination(name)?;
        let patience = document.stall(mirrors.patience);
        let mut stream = connect(&self.identity, &document.link(), patience, &|_| ())?;
        let wanted = Client::hello(&mut stream)
            .and_then(|mut client| client.provision_info(&request.volume))
            .map_err(|source| {
                ServerError::Mirrors(MirrorsError::Mirror {
                    volume: name.to_owned(),
                    source: Box::new(source),
                })
            })?;
        // Its source is recorded as soon as the volume exists.
        let follows = |folder: &Path| state::save(&folder.join("mirror.json"), &document);
        let new = NewVolume {
            name,
            id: wanted.id,
            role: Role::Destination,
            blocks: Some(wanted.blocks),
            devices: &request.devices,
            log_device: request.log_device.as_deref(),
            history: request.history.as_ref(),
            beside: Some(&follows),
        };
        self.refuse_second_history(&new)?;
        let open = self.volumes.create(&new).map_err(|error| in_words_of_disks(name, error))?;
        let path = self.volumes.folder(name).join("mirror.json");
        let relation = Arc::new(Relation::new(&open, path, document, now_ms(&*self.clock)));
        // The baseline is begun before the schedule can see the mirror.
        let job = mirrors.begin(&relation, Some(stream), "mirror create", Manner::default());
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
        self.volumes.get(name)?.refuse_while_writes_wait()?;
        let within = request.within_ms.map(Duration::from_millis);
        let manner = Manner { compare: request.compare, within, ..Manner::default() };
        self.mirrors.begin(&relation, None, "mirror update", manner)
    }

    /// Queries the source for the size of an update now.
    pub(crate) fn price_update(&self, name: &str) -> Result<api::UpdatePrice, ServerError> {
        let relation = self.mirrors.get(name)?;
        self.mirrors.refuse_taking_writes(&relation)?;
        let destination = &relation.destination;
        let lag = self.mirrors.talk(&relation, |client| destination.refresh(client))?;
        let status = destination.contact().ok_or(ServerError::Bug)?.status;
        Ok(api::UpdatePrice {
            name: name.to_owned(),
            base_known: status.base_taken.is_some(),
            changed_bytes: lag.bytes,
            kept_bytes: destination.arrived_blocks() * BLOCK_SIZE as u64,
            full_bytes: status.used * BLOCK_SIZE as u64,
            lag_ms: millis(lag.age),
        })
    }

    /// Changes the settings of a mirror. A change of the schedule counts from now.
    pub(crate) fn set_mirror(&self, name: &str, set: &api::SetMirror) -> Result<api::Mirror, ServerError> {
        let relation = self.mirrors.get(name)?;
        self.mirrors.refuse_taking_writes(&relation)?;
        let some = |value: u64| (value > 0).then_some(value);
        {
            let mut document = relation.document.lock();
            let mut changed = document.clone();
            let times = set.every_ms.is_some_and(|every| every > 0)
                || set.cron.as_deref().is_some_and(|cron| cron != "off");
            changed.when = changed.when.changed(set.every_ms, set.cron.as_deref(), set.zone.as_deref())?;
            changed.when = changed.when.continuously(set.continuous, times)?;
            changed.lock_ms = set.lock_ms.map_or(changed.lock_ms, some);
            if let Some(key) = &set.lock_key {
                relation.refuse_lock_key()?;
                changed.lock_key = locks::digest(key)?;
            }
            changed.rpo_ms = set.rpo_ms.map_or(changed.rpo_ms, some);
            changed.stall_ms = set.stall_ms.map_or(changed.stall_ms, some);
            changed.no_hold = set.hold.map_or(changed.no_hold, |hold| !hold);
            changed.paused = set.paused.unwrap_or(changed.paused);
            changed.link = link(&set.link, changed.link)?;
            relation.destination.set_lock(changed.lock());
            changed.note_births(&relation.destination);
            relation.save(&changed).inspect_err(|_| relation.destination.set_lock(document.lock()))?;
            relation.destination.set_options(changed.options());
            let resumed = document.paused && !changed.paused;
            let now_ms = now_ms(&*self.clock);
            if resumed || changed.when != document.when {
                let next = changed.when.next_ms(now_ms);
                // Missed runs become one update now.
                let missed = relation.live.lock().next_ms.is_some_and(|due| due <= now_ms);
                let now = resumed && (missed || changed.when.every_ms.is_some());
                relation.live.lock().failures = 0;
                relation.live.lock().next_ms = if now { next.map(|_| now_ms) } else { next };
            }
            *document = changed;
        }
        relation.set_pace(now_ms(&*self.clock));
        if set.link.spread == Some(false) {
            relation.hurry.store(true, Ordering::Release);
            relation.trickle.set(None);
        }
        if set.paused == Some(true) {
            relation.settle()?;
        }
        self.mirrors.look();
        Ok(self.mirrors.show(&relation))
    }

    /// Makes a mirror follow another server that has its image or an older one in common with it:
    /// the source of its source, mostly.
    pub(crate) fn repoint_mirror(
        &self,
        name: &str,
        request: &api::RepointMirror,
    ) -> Result<api::Job, ServerError> {
        let mirrors = &self.mirrors;
        let relation = mirrors.get(name)?;
        self.mirrors.refuse_taking_writes(&relation)?;
        let token = Token::decode(&request.token)?;
        let volume = request.volume.clone().unwrap_or_else(|| relation.document.lock().volume.clone());
        names::check("volume", &volume)?;
        if token.volume.as_deref().is_some_and(|only| only != volume) {
            return Err(ServerError::Peers(PeersError::VolumeNotAllowed { volume }));
        }
        let there = |before: &MirrorDocument| MirrorDocument {
            address: token.address.clone(),
            fingerprint: token.fingerprint,
            volume: volume.clone(),
            credential: None,
            contact: None,
            parted: None,
            verified: None,
            ..before.clone()
        };
        let credential = Some(Credential { id: token.id.clone(), secret: token.secret.clone() });
        let document = MirrorDocument { credential, ..there(&relation.document.lock()) };
        let patience = document.stall(mirrors.patience);
        // It must be the same volume; otherwise nothing is changed.
        let failed = |source| {
            ServerError::Mirrors(MirrorsError::Mirror { volume: name.to_owned(), source: Box::new(source) })
        };
        let mut stream = connect(&self.identity, &document.link(), patience, &|_| ())?;
        let mut client = Client::hello(&mut stream).map_err(failed)?;
        let wanted = client.provision_info(&document.volume).map_err(failed)?;
        let open = self.volumes.get(name)?;
        if wanted.id != open.volume.id() {
            return Err(ServerError::Mirrors(MirrorsError::OtherVolume { volume: name.to_owned() }));
        }
        let relationship = Relationship(document.relationship);
        let asks = Destination::new(open.volume.clone(), &volume, relationship, Compression::None, None);
        let standing = asks.standing(&mut client, None).map_err(failed)?;
        let newest = standing.snapshots.iter().map(|(id, _)| *id).max();
        if standing.role == Role::Destination && newest < Some(open.volume.status().cursor.snapshot) {
            // The visible image here would seem to be of another past.
            return Err(ServerError::Mirrors(MirrorsError::IsBehind {
                volume: name.to_owned(),
                address: document.address,
            }));
        }
        // Keeps the settings that the owner has changed meanwhile. The source from which it failed
        // over must be notified.
        let document = relation.give_place_to(|before| match before.takes_writes() {
            true => Err(ServerError::Mirrors(MirrorsError::FailedOver { volume: name.to_owned() })),
            false => Ok(there(before)),
        })?;
        let (to, volume) = (document.address.clone(), document.volume.clone());
        let repointed = Arc::new(Relation::new(&open, relation.path.clone(), document, now_ms(&*self.clock)));
        mirrors.relations.lock().insert(name.to_owned(), repointed.clone());
        tracing::info!(mirror = name, to, volume, "follows another server");
        if repointed.document.lock().paused {
            // It follows the other side, on its owner's schedule.
            hang_up(&mut stream);
            let mirrors = mirrors.clone();
            return self.jobs.start("mirror repoint", name, move |_| {
                Ok(Some(api::JobOutcome::Mirror(Box::new(mirrors.show(&repointed)))))
            });
        }
        mirrors.begin(&repointed, Some(stream), "mirror update", Manner::default())
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
        self.mirrors.refuse_taking_writes(&relation)?;
        let open = self.volumes.get(name)?;
        let shown = image_of(&open);
        if shown.is_none() {
            return Err(ServerError::Mirrors(MirrorsError::NoImage { volume: name.to_owned() }));
        }
        let mut unfinished = relation.destination.arrived_blocks();
        open.refuse_while_writes_wait()?;
        let loss = if dry_run {
            relation.destination.loss()
        } else {
            relation.settle()?;
            unfinished = relation.destination.arrived_blocks();
            // Written first: without effect while the volume follows.
            let loss = self.mirrors.change_role(&relation, Change::Failover, || {
                let failed = |source| {
                    ServerError::Mirrors(MirrorsError::Mirror {
                        volume: name.to_owned(),
                        source: Box::new(source),
                    })
                };
                relation.destination.failover().map_err(failed)
            })?;
            if let Err(error) = self.mirrors.let_follow(&relation) {
                // It is retried while the other side is notified.
                tracing::warn!(mirror = name, %error, "the other side may not follow yet");
            }
            open.skip_numbers();
            tracing::warn!(mirror = name, image = loss.image_name, "failed over: the volume is writable now");
            loss
        };
        let at_most = loss.age_at_most();
        // Without a contact there is nothing but the two clocks.
        let since_image = loss.image_age.unwrap_or_else(|| self.clock.now().since(loss.image_taken));
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

    /// Checks that a mirror can be deleted.
    pub(crate) fn check_delete_mirror(&self, name: &str) -> Result<(), ServerError> {
        let relation = self.mirrors.get(name)?;
        self.mirrors.refuse_taking_writes(&relation)?;
        self.mirrors.refuse_locked(name)?;
        self.bucket_mirrors.refuse_if_mirrored(name)?;
        self.refuse_while_dumped(name)?;
        self.refuse_if_in_use(name, |export| export.volume == name)?;
        self.mounts.refuse_if_mounted(name, |volume, _| volume == name)?;
        self.nfs_exports.refuse_if_exported(|volume, _| volume == name)?;
        self.volumes.refuse_if_cloned(name)
    }

    /// Ends a mirror and deletes its volume, and tells the source, which need not keep anything for
    /// it any more.
    pub(crate) fn delete_mirror(&self, name: &str) -> Result<api::DeletedMirror, ServerError> {
        self.check_delete_mirror(name)?;
        let relation = self.mirrors.get(name)?;
        relation.settle()?;
        self.volumes.delete(name)?;
        self.mirrors.forget(name);
        self.drills.forget_volume(name);
        self.plans.forget(|subject| subject.split('/').next() == Some(name));
        self.mirrors.forget_access(name);
        // The others may have more in common without it, and its held snapshots are released.
        self.groups.advance_all(true);
        // If notified earlier, the source might have released the base of a mirror that stays after
        // all.
        let told = self.mirrors.say_farewell(&relation);
        if let Err(error) = &told {
            tracing::info!(mirror = name, %error, "could not notify the source of a deleted mirror");
        }
        let untold = told.err().map(|error| error.body());
        Ok(api::DeletedMirror { name: name.to_owned(), told: untold.is_none(), untold })
    }
}

/// Disks that are as large as those of the source are too small by the areas of a destination.
fn in_words_of_disks(volume: &str, error: ServerError) -> ServerError {
    match error {
        ServerError::Volumes(VolumesError::DeviceTooSmall { need, have, .. }) => {
            RoleError::DisksTooSmall { volume: volume.to_owned(), need, have }.into()
        }
        error => error,
    }
}

impl Mirrors {
    fn say_farewell(&self, relation: &Relation) -> Result<(), ServerError> {
        relation.refuse_without_source()?;
        let document = relation.document.lock().clone();
        let patience = document.stall(self.patience).min(FAREWELL_PATIENCE);
        let mut stream = connect(&self.identity, &document.source(), patience, &|_| ())?;
        let relationship = Relationship(document.relationship);
        let said = Client::hello(&mut stream)
            .and_then(|mut client| client.farewell(&document.volume, relationship))
            .map_err(|source| relation.failed(source));
        hang_up(&mut stream);
        said
    }
}

/// The earlier link settings, with the requested changes.
fn link(wish: &api::LinkWish, before: Link) -> Result<Link, ServerError> {
    let limit = match &wish.limit {
        None => before.limit,
        Some(text) => {
            let limits: Limits = text.parse()?;
            (!limits.is_off()).then(|| limits.to_string())
        }
    };
    let connections = wish.connections.or(before.connections);
    if connections.is_some_and(|connections| !(1..=LANES_MAX).contains(&connections)) {
        return Err(ServerError::Invalid {
            fault: "the number of connections is not between 1 and 16",
            next: "give --connections 1 to 16",
        });
    }
    let at_once = wish.spread.map_or(before.at_once, |spread| !spread);
    Ok(Link { limit, connections, compress: wish.compress.unwrap_or(before.compress), at_once })
}
