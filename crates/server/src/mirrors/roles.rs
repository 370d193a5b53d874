//! Changes of role as the server executes them: resync, reverse, failback, and the news of a
//! failover.
//!
//! Only the volume decides its state (`cairn_volume`: its role and the image that it shows).
//! `mirror.json` names the other side, the origin of the present roles, and the decision about an
//! own head. It is written before the volume changes, so that a volume never follows an unknown
//! side. An entry that is too early has no effect, because the volume's role decides.

use std::fs;
use std::fs::{File, Metadata, TryLockError};
use std::io::BufWriter;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_api as api;
use cairn_base::{BLOCK_SIZE, SnapshotId};
use cairn_format::dump::{DumpId, DumpLevel};
use cairn_format::stream::root_digest;
use cairn_mirror::{Client, MirrorError, PeerName, Refusal, Relationship, Standing, Successor};
use cairn_stream::{DumpLabel, PartReader};
use cairn_volume::{Divergence, Role, Snapshot};

use super::{ASK_EVERY, Asking, Mirrors, Relation, TELL_EVERY};
use crate::error::ServerError;
use crate::mirrors::document::{Change, Changed, Decision, Manner, MirrorDocument, hex, now_ms};
use crate::mirrors::error::MirrorsError;
use crate::mirrors::transfer;
use crate::peers::identity::Fingerprint;
use crate::peers::outbound::{SourceAddress, SourceStream, connect, hang_up};
use crate::peers::token::random_bytes;
use crate::state;
use crate::volumes::open::OpenVolume;
use crate::work::jobs::Progress;

mod commands;
mod seeding;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Largest number of updates with which a mirror catches up before it asks the source to stop.
pub(super) const CATCH_UP: usize = 3;
/// An update of no more than this is little enough for the stop: 4 MiB.
pub(super) const LITTLE: u64 = 4 << 20;

/// A side that takes writes reports that to the other one, unless the other one has come as a
/// mirror within this time. The other side may have been restored from a backup since, or may have
/// lost the list of its mirrors.
const COMES_WITHIN_MS: u64 = 60_000;

/// The time that a side has to take over a role from here, before it gets a question.
const TAKES_OVER_MS: u64 = 3_000;

/// The knowledge about a volume before it was to follow a side.
struct Before {
    /// How the present roles of the two had come about.
    change: Option<Changed>,
    /// It was no mirror.
    is_new: bool,
    /// Its relation to another side.
    other: Option<Arc<Relation>>,
}

impl Mirrors {
    /// A conversation with the other side that is not a transfer.
    pub(super) fn talk<T>(
        &self,
        relation: &Relation,
        say: impl FnOnce(&mut Client<'_, SourceStream>) -> Result<T, MirrorError>,
    ) -> Result<T, ServerError> {
        let document = relation.document.lock().clone();
        document.refuse_unseen(&relation.name)?;
        let patience = document.stall(self.patience);
        let mut stream = connect(&self.identity, &document.source(), patience, &|_| ())?;
        let said = Client::hello(&mut stream).and_then(|mut client| say(&mut client));
        hang_up(&mut stream);
        said.map_err(|source| relation.failed(source))
    }

    /// Refuses an address at which the other side is not.
    fn look_for(&self, relation: &Relation, address: &str) -> Result<(), ServerError> {
        let document = relation.document.lock().clone();
        let there = SourceAddress { address, ..document.source() };
        let mut stream = connect(&self.identity, &there, document.stall(self.patience), &|_| ())?;
        hang_up(&mut stream);
        Ok(())
    }

    /// The address at which mirrors reach this server, as far as it knows.
    fn own_address(&self) -> String {
        // The other side knows by which name it reaches this machine.
        match self.opened().first() {
            Some(address) => format!(":{}", address.port()),
            None => self.address.clone(),
        }
    }

    /// Lets the other side come and follow, where it is known.
    pub(super) fn let_follow(&self, relation: &Relation) -> Result<(), ServerError> {
        if relation.refuse_without_source().is_err() {
            return Ok(());
        }
        let (fingerprint, address) = {
            let document = relation.document.lock();
            (document.fingerprint, document.address.clone())
        };
        let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
        let of = relation.destination.volume().id();
        self.peers.pin(self.clock.now(), fingerprint, &relation.name, of)?;
        self.peers.name_after(fingerprint, host);
        Ok(())
    }

    /// Tells the other side that this one takes writes, on a thread of its own, until it has heard,
    /// and from then on while it does not come as a mirror.
    pub(super) fn tell_of_failover(self: &Arc<Self>, relation: &Arc<Relation>) {
        let changed = relation.document.lock().change;
        let takes_writes = |changed: &Changed| matches!(changed.kind, Change::Failover | Change::Reverse);
        let Some(changed) = changed.filter(takes_writes) else { return };
        if relation.refuse_without_source().is_err() {
            return;
        }
        {
            let now = self.clock.monotonic();
            let every = if changed.told { ASK_EVERY } else { TELL_EVERY };
            let mut live = relation.live.lock();
            let asked = live.asked.is_some_and(|asked| now.saturating_sub(asked) < every);
            if asked || live.running || live.asking || !relation.is_failed_over() {
                return;
            }
            live.asking = true;
            live.asked = Some(now);
        }
        let asking = Asking::of(relation);
        if changed.told && self.is_heard_of(relation) {
            return;
        }
        let (mirrors, mine) = (self.clone(), relation.clone());
        let tell = move || {
            let _asking = asking;
            if let Err(error) = mirrors.let_follow(&mine) {
                tracing::debug!(mirror = mine.name, %error, "the other side may not come and follow yet");
            }
            let at = cairn_base::Timestamp(changed.at_ms * 1_000_000);
            let news = mine.destination.departure(&mirrors.own_address(), &mine.name, at);
            let told = mirrors.talk(&mine, |client| mine.destination.standing(client, news));
            if told.is_ok() && !changed.told {
                let mut document = mine.document.lock();
                if document.change == Some(changed) {
                    document.change = Some(Changed { told: true, ..changed });
                    if let Err(error) = mine.save_known(&document) {
                        tracing::warn!(mirror = mine.name, %error, "that the other side knows was not written down");
                    }
                }
            }
            let mut live = mine.live.lock();
            // A side that has received the news need not answer.
            live.unanswered = told.err().filter(|_| !changed.told).map(|error| error.body());
        };
        // Without a thread, a later call reports it.
        let _ = std::thread::Builder::new().name("tell".to_owned()).spawn(tell);
    }

    /// Whether the other side has come as a mirror a moment ago.
    fn is_heard_of(&self, relation: &Relation) -> bool {
        let (name, volume) = (relation.follower(), relation.destination.volume().id());
        let now_ms = now_ms(&*self.clock);
        self.source.followers().iter().any(|follower| {
            let recent = is_recent(follower.heard.0 / 1_000_000, now_ms, COMES_WITHIN_MS);
            follower.volume == volume && follower.name == name && recent && follower.departed.is_none()
        })
    }

    /// Asks the other side whether it has taken over the role that was handed to it, on a thread of
    /// its own, until it has: a mirror without a schedule would not learn it otherwise.
    pub(super) fn ask_for_heir(self: &Arc<Self>, relation: &Arc<Relation>) {
        let given_ms = {
            let document = relation.document.lock();
            let updated = document.last.as_ref().is_some_and(|last| last.complete);
            match document.change {
                Some(Changed { kind: Change::HandOver, at_ms, .. }) if !updated => at_ms,
                _ => return,
            }
        };
        if relation.destination.volume().own_head().is_none() || relation.is_failed_over() {
            return;
        }
        // It brings the last image first.
        if is_recent(given_ms, now_ms(&*self.clock), TAKES_OVER_MS) {
            return;
        }
        {
            let now = self.clock.monotonic();
            let mut live = relation.live.lock();
            let asked = live.asked.is_some_and(|asked| now.saturating_sub(asked) < ASK_EVERY);
            if live.taken_over || asked || live.running || live.asking {
                return;
            }
            live.asking = true;
            live.asked = Some(now);
        }
        let asking = Asking::of(relation);
        let (mirrors, mine) = (self.clone(), relation.clone());
        let ask = move || {
            let _asking = asking;
            let said = mirrors.talk(&mine, |client| mine.destination.standing(client, None));
            let mut live = mine.live.lock();
            live.taken_over = said.as_ref().is_ok_and(|said| said.role == Role::Normal);
            live.unanswered = said.err().map(|error| error.body());
        };
        // Without a thread, a later call asks.
        let _ = std::thread::Builder::new().name("heir".to_owned()).spawn(ask);
    }

    /// The name by which the other side of a mirror knows this server as a mirror of it.
    pub(crate) fn name_towards(
        &self,
        volume: &str,
        certificate: Fingerprint,
        relationship: Relationship,
    ) -> Option<PeerName> {
        let relation = self.relations.lock().get(volume).cloned()?;
        let document = relation.document.lock();
        let same = document.fingerprint == certificate && document.relationship == relationship.0;
        let own = PeerName::new(&transfer::peer_digits(self.identity.fingerprint)).ok();
        own.filter(|_| same)
    }

    pub(super) fn changed(&self, kind: Change) -> Changed {
        Changed { kind, at_ms: now_ms(&*self.clock), told: kind != Change::Failover }
    }

    /// Asks the other side, and counts the data that only this side has.
    fn compare_sides(&self, relation: &Relation) -> Result<(Standing, Divergence), ServerError> {
        let standing = self.talk(relation, |client| relation.destination.standing(client, None))?;
        if standing.id != relation.destination.volume().id() {
            return Err(ServerError::Mirrors(MirrorsError::OtherVolume { volume: relation.name.clone() }));
        }
        let divergence = relation.destination.divergence(&standing).map_err(|e| relation.failed(e))?;
        Ok((standing, divergence))
    }

    /// Makes a volume follow the other side, after the decision about its own data.
    fn resync(
        &self,
        relation: &Arc<Relation>,
        open: &Arc<OpenVolume>,
        progress: &Progress,
        wish: &api::ResyncRequest,
    ) -> Result<(), ServerError> {
        self.follow_other(relation, open, progress, wish).map_err(|error| match error {
            ServerError::Mirrors(MirrorsError::Mirror { volume, source })
                if matches!(*source, MirrorError::CompareNeeded { .. }) =>
            {
                ServerError::Mirrors(MirrorsError::NothingInCommon { volume, source })
            }
            error => error,
        })
    }

    /// Gives up the writer role if the volume takes writes, or gives up an image that the other
    /// side no longer has. Then brings the other's image.
    fn follow_other(
        &self,
        relation: &Arc<Relation>,
        open: &Arc<OpenVolume>,
        progress: &Progress,
        wish: &api::ResyncRequest,
    ) -> Result<(), ServerError> {
        progress.phase("asking the other side");
        let own = open.volume.own_head();
        // A head that was to be dropped and is to be spilled now is not dropped.
        let as_decided = |decision: &Decision| wish.spill.is_none() || decision.spill == wish.spill;
        let decided = |head: &Snapshot| {
            let decision = relation.document.lock().decision.clone();
            let of_it = decision.filter(|of| of.head == head.id.0 && of.image.is_none());
            of_it.is_some_and(|decision| as_decided(&decision))
        };
        let manner = || Manner { compare: wish.compare, ..Manner::default() };
        let takes_writes = open.volume.status().role == Role::Normal;
        if own.is_none() && !takes_writes {
            let decision = relation.document.lock().decision.clone();
            if decision.is_some_and(|decision| decision.image.is_some() && !as_decided(&decision)) {
                self.keep(relation, |document| document.decision = None)?;
            }
            match self.update(relation, open, None, progress, manner()) {
                Err(error) if has_parted(&error) => self.give_up_image(relation, progress, wish)?,
                done => return done,
            }
        } else if takes_writes || own.as_ref().is_some_and(|head| !decided(head)) {
            let (standing, divergence) = self.compare_sides(relation)?;
            self.refuse_circle(relation, &standing)?;
            self.refuse_undecided(relation, &divergence, wish)?;
            refuse_without_common(relation, &standing, &divergence, wish)?;
            self.give_way(relation, open, progress, &standing, wish)?;
        }
        self.update(relation, open, None, progress, manner())
    }

    /// Gives up the image that is shown and that the other side does not have any more, as it was
    /// set back to an earlier copy. It is shown until another one is there.
    fn give_up_image(
        &self,
        relation: &Relation,
        progress: &Progress,
        wish: &api::ResyncRequest,
    ) -> Result<(), ServerError> {
        let (standing, divergence) = self.compare_sides(relation)?;
        self.refuse_undecided(relation, &divergence, wish)?;
        refuse_without_common(relation, &standing, &divergence, wish)?;
        let (image, root) = relation.destination.received().ok_or(ServerError::Bug)?;
        let spill = Spill::begin(wish.spill.as_deref(), true)?;
        let spill = self.spill_as_wished(relation, (&standing, &divergence), &image, progress, spill)?;
        let decision = Decision { head: image.id.0, image: Some(hex(root)), spill };
        tracing::warn!(
            mirror = relation.name,
            image = image.name,
            "an image that the other side lacks is being discarded"
        );
        self.keep(relation, |document| document.decision = Some(decision))
    }

    /// Refuses to follow a mirror that gets its images from here.
    fn refuse_circle(&self, relation: &Relation, standing: &Standing) -> Result<(), ServerError> {
        if standing.role == Role::Normal {
            return Ok(());
        }
        let destination = &relation.destination;
        destination.know_hop(self.hop(&relation.name));
        self.talk(relation, |client| destination.refuse_following_itself(client))
    }

    fn refuse_undecided(
        &self,
        relation: &Relation,
        divergence: &Divergence,
        wish: &api::ResyncRequest,
    ) -> Result<(), ServerError> {
        let lost = divergence.snapshots.iter().map(|snapshot| snapshot.id);
        self.refuse_losing(&relation.name, &lost.collect::<Vec<_>>())?;
        if !is_lost(divergence) || wish.spill.is_some() || wish.discard {
            return Ok(());
        }
        Err(ServerError::Mirrors(MirrorsError::Undecided {
            volume: relation.name.clone(),
            bytes: divergence.blocks * BLOCK,
            snapshots: divergence.snapshots.iter().map(|snapshot| snapshot.name.clone()).collect(),
        }))
    }

    fn give_way(
        &self,
        relation: &Arc<Relation>,
        open: &Arc<OpenVolume>,
        progress: &Progress,
        standing: &Standing,
        wish: &api::ResyncRequest,
    ) -> Result<(), ServerError> {
        progress.phase("giving way");
        let failed = |error| relation.failed(error);
        open.make_room_as_destination()?;
        let took_writes = open.volume.status().role == Role::Normal;
        // Clients are not cut off for a file that can't be written.
        let spill = Spill::begin(wish.spill.as_deref(), !took_writes)?;
        let before = self.take_place(relation)?;
        // Writes of programs that the kernel still holds belong to the head; later they would be
        // refused.
        open.collect();
        let gave_way = relation.destination.give_way(standing).map_err(failed);
        let head = gave_way.inspect_err(|_| self.not_given_way(relation, &before))?;
        let closed = self.close_sessions(&relation.name);
        tracing::warn!(
            mirror = relation.name,
            head = head.name,
            closed,
            "the volume gives way to the other side"
        );
        // Looked at again now that nothing is written any more.
        let divergence = relation.destination.divergence(standing).map_err(failed)?;
        if let Err(undecided) = self.refuse_undecided(relation, &divergence, wish) {
            if took_writes {
                relation.destination.failover().map_err(failed)?;
                open.skip_numbers();
                self.not_given_way(relation, &before);
                open.volume.delete_snapshots(&[head.id]).map_err(ServerError::volume(&relation.name))?;
            }
            return Err(undecided);
        }
        open.stop_keeping();
        let has_it = standing.snapshots.iter().any(|(id, _)| *id == head.id);
        if !is_lost(&divergence) && !took_writes && has_it {
            // After a handover the other side continues from it.
            return Ok(());
        }
        let spill = self.spill_as_wished(relation, (standing, &divergence), &head, progress, spill)?;
        let decision = Decision { head: head.id.0, image: None, spill };
        self.keep(relation, |document| document.decision = Some(decision))
    }

    /// Records that a volume follows that side from now on. If it has a relation to another side so
    /// far, that relation starts nothing and saves nothing any more.
    fn take_place(&self, relation: &Arc<Relation>) -> Result<Before, ServerError> {
        let known = self.relations.lock().get(&relation.name).cloned();
        let (is_new, other) = (known.is_none(), known.filter(|known| !Arc::ptr_eq(known, relation)));
        let set_aside = |is_so: bool| {
            if let Some(other) = &other {
                let _theirs = other.document.lock();
                other.replaced.store(is_so, Ordering::Release);
            }
        };
        set_aside(true);
        let change = relation.document.lock().change;
        let changed = Some(self.changed(Change::Resync));
        self.keep(relation, |document| document.change = changed).inspect_err(|_| set_aside(false))?;
        self.relations.lock().insert(relation.name.clone(), relation.clone());
        Ok(Before { change, is_new, other })
    }

    /// The volume takes writes as before. It is not a mirror if it was none, and is that of another
    /// side if it was that.
    fn not_given_way(&self, relation: &Relation, before: &Before) {
        let takes_writes =
            relation.is_failed_over() && relation.destination.volume().status().latched.is_none();
        let undone = match &before.other {
            Some(other) if takes_writes => {
                relation.retire();
                self.relations.lock().insert(relation.name.clone(), other.clone());
                let document = other.document.lock();
                other.replaced.store(false, Ordering::Release);
                other.save(&document).map_err(|error| error.to_string())
            }
            None if takes_writes && before.is_new => {
                self.relations.lock().remove(&relation.name);
                state::remove(&relation.path).map_err(|error| error.to_string())
            }
            _ => return self.take_back_change(relation, before.change),
        };
        if let Err(error) = undone {
            tracing::warn!(
                mirror = relation.name,
                error,
                "that it was to follow the other side is written down still"
            );
        }
    }

    /// The file with the data that is given up, if there is such data and the user asked for a
    /// file.
    fn spill_as_wished(
        &self,
        relation: &Relation,
        (standing, divergence): (&Standing, &Divergence),
        head: &Snapshot,
        progress: &Progress,
        spill: Option<Spill>,
    ) -> Result<Option<String>, ServerError> {
        let Some(spill) = spill.filter(|_| is_lost(divergence)) else { return Ok(None) };
        progress.phase("spilling");
        let base = divergence.common.as_ref().map(|common| common.id);
        let path = spill.path.display().to_string();
        self.spill(relation, standing, (head, base), spill, progress)?;
        Ok(Some(path))
    }

    /// Writes the data that is given up to a file, an image dump, which gets its name only when it
    /// is whole and durable.
    fn spill(
        &self,
        relation: &Relation,
        standing: &Standing,
        (head, base): (&Snapshot, Option<SnapshotId>),
        mut spill: Spill,
        progress: &Progress,
    ) -> Result<(), ServerError> {
        let Some(file) = &spill.file else {
            // It may be from an attempt that was interrupted right after it. A spill that opens
            // with the data that the other side has now also keeps that data.
            return if is_spill_of(&spill.path, relation, head, base) { Ok(()) } else { Err(spill.taken()) };
        };
        let written = |error| ServerError::path("write", &spill.unfinished)(error);
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut tell =
            |at: cairn_stream::Progress| progress.bytes(at.blocks * BLOCK, at.blocks_total * BLOCK);
        let mut work =
            cairn_stream::Work { cancel: progress.cancelled(), progress: &mut tell, threads: None };
        let label = DumpLabel {
            id: DumpId(random_bytes()),
            level: DumpLevel::AgainstSnapshot,
            name: relation.name.clone(),
            created: self.clock.now(),
        };
        let spilled = relation.destination.spill(standing, label, &mut out, &mut work);
        let spilled = spilled.map_err(|error| relation.failed(error))?;
        out.into_inner().map_err(|error| written(error.into_error()))?;
        file.sync_all().map_err(written)?;
        if spill.path.exists() {
            return Err(spill.taken());
        }
        fs::rename(&spill.unfinished, &spill.path)
            .and_then(|()| state::sync_parent(&spill.path))
            .map_err(ServerError::path("write", &spill.path))?;
        spill.file = None;
        tracing::info!(mirror = relation.name, path = %spill.path.display(), blocks = spilled.blocks, "spilled what was written here");
        Ok(())
    }

    /// Brings all there is, takes the source's role, and gives it this one's.
    fn reverse(
        &self,
        relation: &Relation,
        open: &Arc<OpenVolume>,
        progress: &Progress,
    ) -> Result<(), ServerError> {
        self.refuse_taking_writes(relation)?;
        self.let_follow(relation)?;
        let whole = Manner { hold: true, ..Manner::default() };
        for _ in 0..CATCH_UP {
            self.update(relation, open, None, progress, whole)?;
            let changed = relation.live.lock().transfer.as_ref().map_or(0, |last| last.changed_bytes);
            if changed <= LITTLE {
                break;
            }
        }
        self.hear_access(relation);
        progress.phase("asking for the role of the source");
        let successor = self.successor(relation);
        let destination = &relation.destination;
        let target = self.talk(relation, |client| destination.ask_for_role(client, successor));
        let target = target.map_err(|error| self.name_consent(relation, error))?;
        self.update(relation, open, None, progress, whole)?;
        progress.phase("taking over");
        self.change_role(relation, Change::Reverse, || {
            destination.take_over(target).map_err(|error| relation.failed(error))
        })?;
        open.skip_numbers();
        self.source.returned(&open.volume, &relation.follower());
        tracing::warn!(
            mirror = relation.name,
            "took over: the volume takes writes, and the other side follows"
        );
        Ok(())
    }

    /// How the other side follows this one once the roles have changed.
    pub(super) fn successor(&self, relation: &Relation) -> Successor {
        let document = relation.document.lock();
        Successor {
            address: self.own_address(),
            volume: relation.name.clone(),
            every_ms: document.when.every_ms,
            cron: document.when.cron.clone().unwrap_or_default(),
            continuous: document.when.continuous,
            zone: document.when.zone.clone().unwrap_or_default(),
            rpo_ms: document.rpo_ms,
        }
    }

    /// Changes a role. Its origin is recorded first. After a failure the previous record is
    /// restored: a side that has taken over must not forget that because it could not follow.
    pub(super) fn change_role<T>(
        &self,
        relation: &Relation,
        kind: Change,
        act: impl FnOnce() -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let before = relation.document.lock().change;
        self.keep(relation, |document| document.change = Some(self.changed(kind)))?;
        act().inspect_err(|_| self.take_back_change(relation, before))
    }

    /// Reverts the record of a change that did not happen. Not for a volume that failed in the
    /// middle of it: only its next start shows its role.
    fn take_back_change(&self, relation: &Relation, before: Option<Changed>) {
        if relation.destination.volume().status().latched.is_some() {
            return;
        }
        if let Err(error) = self.keep(relation, |document| document.change = before) {
            tracing::warn!(mirror = relation.name, %error, "a change of its role that failed is written down still");
        }
    }

    /// Changes the saved state of a mirror.
    pub(super) fn keep(
        &self,
        relation: &Relation,
        change: impl FnOnce(&mut MirrorDocument),
    ) -> Result<(), ServerError> {
        let mut document = relation.document.lock();
        let mut changed = document.clone();
        change(&mut changed);
        relation.save(&changed)?;
        *document = changed;
        Ok(())
    }
}

/// A file for the data that is given up. During writing it has another name and is locked: another
/// volume that is to be spilled to the same file does not write into it.
struct Spill {
    path: PathBuf,
    unfinished: PathBuf,
    /// None where there is a file of that name already: it may be the spill.
    file: Option<File>,
}

impl Spill {
    /// Opens it, before anything is given up. `may_be_there` where an attempt before this one may
    /// have written it.
    fn begin(path: Option<&str>, may_be_there: bool) -> Result<Option<Self>, ServerError> {
        let Some(path) = path.map(PathBuf::from) else { return Ok(None) };
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(".part");
        let mut spill = Self { path, unfinished: unfinished.into(), file: None };
        if spill.path.exists() {
            return if may_be_there { Ok(Some(spill)) } else { Err(spill.taken()) };
        }
        let failed = |source| ServerError::path("write", &spill.unfinished)(source);
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&spill.unfinished).map_err(failed)?;
        let busy = || ServerError::Busy {
            name: spill.unfinished.display().to_string(),
            by: "another spill is written to it",
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(busy()),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let own = file.metadata().map_err(failed)?;
        // Its previous writer may have renamed it since it was opened.
        let is_it = |there: Metadata| (own.dev(), own.ino()) == (there.dev(), there.ino());
        if !fs::metadata(&spill.unfinished).is_ok_and(is_it) {
            return Err(busy());
        }
        if own.len() > 0 {
            file.set_len(0).map_err(failed)?;
        }
        spill.file = Some(file);
        Ok(Some(spill))
    }

    fn taken(&self) -> ServerError {
        ServerError::Taken { what: "file", name: self.path.display().to_string() }
    }
}

impl Drop for Spill {
    /// Deletes a file that was not needed, or not finished.
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

impl Relation {
    pub(super) fn failed(&self, source: MirrorError) -> ServerError {
        ServerError::Mirrors(MirrorsError::Mirror { volume: self.name.clone(), source: Box::new(source) })
    }
}

/// Whether an event was noted within that time, by the wall clock. A time in the future comes from
/// a clock that was ahead, and may be as old as that clock was ahead.
fn is_recent(at_ms: u64, now_ms: u64, within_ms: u64) -> bool {
    now_ms.abs_diff(at_ms) < within_ms
}

/// Whether something that its owner wrote is only here.
fn is_lost(divergence: &Divergence) -> bool {
    divergence.head || !divergence.snapshots.is_empty()
}

/// Whether an update failed because the other side does not have the image shown here.
fn has_parted(error: &ServerError) -> bool {
    let ServerError::Mirrors(MirrorsError::Mirror { source, .. }) = error else { return false };
    matches!(**source, MirrorError::Refused(Refusal::Diverged(_)))
}

/// Refuses an action that would have to compare all blocks, unless the user asked for that.
fn refuse_without_common(
    relation: &Relation,
    standing: &Standing,
    divergence: &Divergence,
    wish: &api::ResyncRequest,
) -> Result<(), ServerError> {
    if divergence.common.is_some() || wish.compare {
        return Ok(());
    }
    let compare_bytes = divergence.blocks * 16;
    let data_bytes_max = standing.used * BLOCK;
    Err(relation.failed(MirrorError::CompareNeeded { compare_bytes, data_bytes_max }))
}

fn is_spill_of(path: &Path, relation: &Relation, head: &Snapshot, base: Option<SnapshotId>) -> bool {
    let part = File::open(path).ok().and_then(|file| PartReader::open("", Box::new(file)).ok());
    let Some(part) = part else { return false };
    let header = &part.head().stream;
    let volume = relation.destination.volume();
    let entries = volume.snapshot_entries();
    let digest = |id| entries.iter().find(|entry| entry.id == id).map(root_digest);
    let same_base = header.base == base.unwrap_or_default()
        && base.and_then(digest).is_none_or(|digest| digest == header.base_digest);
    let same_head = header.target == head.id && digest(head.id) == Some(header.target_digest);
    header.volume == volume.id() && same_head && same_base
}

#[cfg(test)]
mod tests;
