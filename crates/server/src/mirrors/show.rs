//! The report on a mirror: its state, from a closed list, with the reason and the remedy.

use std::time::Duration;

use cairn_api::{self as api, ErrorKind, MirrorState};
use cairn_mirror::{Follower, Lag};
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::Snapshot;

use super::{Live, Mirrors, Relation, image_of};
use crate::error::ServerError;
use crate::mirrors::document::{Change, MirrorDocument, millis, now_ms};
use crate::mirrors::error::MirrorsError;
use crate::mirrors::following::Following;
use crate::mirrors::transfer;

/// A transfer whose last byte is older than this, or than half of the configured patience, is
/// called stalled.
const QUIET: Duration = Duration::from_secs(5);

/// Time for the other side to take over, before its silence is a problem.
const TAKES_OVER_WITHIN_MS: u64 = 30_000;

/// A state, and why.
struct Judged {
    state: MirrorState,
    reason: String,
    remedy: Option<String>,
    check: u8,
}

/// The facts from which a state is derived.
struct Facts<'a> {
    name: &'a str,
    document: &'a MirrorDocument,
    live: &'a Live,
    failed_over: bool,
    /// The other side follows this one, or has given it the role and has not connected since.
    followed: bool,
    /// It shows its own writes, and the other side must continue from there.
    handed_over: bool,
    /// That was a moment ago.
    just_handed_over: bool,
    /// It shows its own writes, and the other side has taken the role: no decision about these
    /// writes exists.
    undecided: bool,
    /// The same, and it is given up for the other side's image, which is not here yet.
    given_up: bool,
    /// It follows the other side, which comes as a mirror of this one.
    is_crossed: bool,
    has_image: bool,
    /// There is a lock, but no snapshot here that it could protect.
    locks_nothing: bool,
    /// For how long the locks are lifted.
    unlocked: Option<Duration>,
    lag: Option<Lag>,
    quiet: Duration,
    patience: Duration,
}

impl Mirrors {
    /// Notes the lag of a mirror, if it is time. None is noted while the mirror takes writes.
    pub(super) fn note_lag(&self, relation: &Relation) {
        if relation.is_failed_over() {
            return;
        }
        let lag = relation.destination.lag();
        relation.live.lock().lags.note(self.clock.monotonic(), || api::LagSample {
            at_ms: now_ms(&*self.clock),
            lag_ms: lag.map(|lag| millis(lag.age)),
            lag_bytes: lag.map(|lag| lag.bytes),
        });
    }

    /// The lag of a mirror over the last days.
    pub(crate) fn lags(&self, name: &str) -> Result<Vec<api::LagSample>, ServerError> {
        let relation = self.get(name)?;
        let live = relation.live.lock();
        Ok(live.lags.list())
    }

    pub(super) fn show(&self, relation: &Relation) -> api::Mirror {
        let document = relation.document.lock().clone();
        let open = self.volumes.get(&relation.name).ok();
        let shown = open.as_ref().and_then(|open| image_of(open));
        let failed_over = relation.is_failed_over();
        let own_head = open.as_ref().and_then(|open| open.volume.own_head());
        let (handed_over, undecided, given_up) =
            state_of_head(own_head.filter(|_| !failed_over).as_ref(), &document);
        let own_alone = undecided || given_up;
        let is_crossed = !failed_over && self.is_crossed(relation, &document);
        let followed = failed_over && self.is_followed(relation, &document);
        // An image from which no side continues has no lag.
        let lag = relation.destination.lag().filter(|_| !failed_over && !own_alone);
        let locked = relation.destination.locked_ever();
        let unlocked = relation.destination.lifted();
        let has_none = || !relation.destination.has_lockable();
        let locks_nothing = document.lock().is_some() && !failed_over && shown.is_some() && has_none();
        let live = relation.live.lock();
        let facts = Facts {
            name: &relation.name,
            document: &document,
            live: &live,
            failed_over,
            followed,
            handed_over,
            just_handed_over: has_just_handed_over(&document, now_ms(&*self.clock)),
            undecided,
            given_up,
            is_crossed,
            has_image: shown.is_some() && !own_alone,
            locks_nothing,
            unlocked,
            lag,
            quiet: Duration::from_millis(relation.quiet_ms(&*self.clock)),
            patience: document.stall(self.patience),
        };
        let (over_rpo, rpo_ms) = (facts.over_rpo(), document.rpo().map(millis));
        let within_ms = document.within().map(millis);
        let Judged { state, reason, remedy, check } = facts.judge();
        let image_ms = shown.as_ref().map(|shown| shown.created.0 / 1_000_000);
        let waits = !failed_over && !document.paused;
        let own_digits = transfer::peer_digits(self.identity.fingerprint);
        let left = locked.iter().map(|one| one.left).max();
        let (role, direction) = role_and_direction(&relation.name, &document, failed_over);
        api::Mirror {
            name: relation.name.clone(),
            locked: locked.len() as u64,
            locked_until_ms: left.map(|left| now_ms(&*self.clock).saturating_add(millis(left))),
            lock_key: document.lock_key.is_some(),
            unlocked_ms: unlocked.map(millis),
            role,
            direction,
            role_since_ms: document.change.map(|change| change.at_ms),
            spill: document.decision.as_ref().and_then(|decision| decision.spill.clone()),
            state,
            reason,
            remedy,
            check,
            lag_ms: lag.map(|lag| millis(lag.age)),
            lag_bytes: lag.map(|lag| lag.bytes),
            silent_ms: lag.map(|lag| millis(lag.silent)),
            stall_ms: millis(document.stall(self.patience)),
            quiet_ms: live.running.then(|| relation.quiet_ms(&*self.clock)),
            source_address: document.address,
            source_volume: document.volume,
            source_name: format!("{own_digits}-{:016x}", document.relationship),
            every_ms: document.when.every_ms,
            continuous: document.when.continuous,
            session: live.following.as_ref().filter(|following| following.steady).map(Following::show),
            cron: document.when.cron.clone(),
            zone: document.when.zone.clone(),
            lock_ms: document.lock_ms,
            rpo_ms,
            over_rpo,
            hold: !document.no_hold,
            paused: document.paused,
            limit: document.link.limit.clone(),
            limit_now_bytes: relation.pace.rate(),
            connections: document.link.connections.unwrap_or(1),
            compress: document.link.compress,
            within_ms,
            image: shown.map(|shown| shown.name),
            image_ms,
            image_age_ms: image_ms.map(|image_ms| {
                let by_clock = || now_ms(&*self.clock).saturating_sub(image_ms);
                relation.destination.image_age().map_or_else(by_clock, millis)
            }),
            last: live.transfer.clone().or(document.last),
            next_ms: live.next_ms.filter(|_| waits),
            sent_bytes: document.sent_bytes,
            updates: document.updates,
            compared_updates: live.compared,
            problem: live.problem.clone(),
            verified: document.verified,
            mended_here: document.mended_here,
            mended_there: document.mended_there,
            mended_locked: document.mended_locked,
        }
    }
}

impl Mirrors {
    /// Whether the other side of a mirror has requested an image since this one became writable, or
    /// has given it its role and has not taken that back: without a schedule it connects only on
    /// request.
    pub(super) fn is_followed(&self, relation: &Relation, document: &MirrorDocument) -> bool {
        let (name, volume) = (relation.follower(), relation.destination.volume().id());
        let since = document.change.map_or(0, |change| change.at_ms);
        let was_given = document.change.is_some_and(|change| change.kind == Change::Reverse);
        let mut followers = self.source.followers();
        followers.retain(|follower| follower.volume == volume && follower.name == name);
        let updated =
            |follower: &Follower| follower.updated.is_some_and(|updated| updated.0 / 1_000_000 >= since);
        match followers.first() {
            Some(follower) => follower.departed.is_none() && (was_given || updated(follower)),
            None => was_given,
        }
    }
}

impl Mirrors {
    /// Whether the other side has connected as a mirror of this one after it gave this one an
    /// image: it was restored from a copy from before its takeover.
    fn is_crossed(&self, relation: &Relation, document: &MirrorDocument) -> bool {
        let Some(last) = document.last.as_ref().filter(|last| last.complete) else { return false };
        // With a source on this same server, the name belongs to this mirror itself.
        if document.fingerprint == self.identity.fingerprint {
            return false;
        }
        let changed_ms = document.change.map_or(0, |change| change.at_ms);
        let since_ms = changed_ms.max(last.started_ms.saturating_add(last.duration_ms));
        let (name, volume) = (relation.follower(), relation.destination.volume().id());
        self.source.followers().iter().any(|follower| {
            let came = follower.heard.0 / 1_000_000 > since_ms;
            follower.volume == volume && follower.name == name && came && follower.departed.is_none()
        })
    }
}

impl Facts<'_> {
    fn over_rpo(&self) -> bool {
        self.document.rpo().zip(self.lag).is_some_and(|(rpo, lag)| lag.age > rpo)
    }

    fn diverged_problem(&self) -> Option<&api::ErrorBody> {
        let problem = self.live.problem.as_ref().filter(|_| !self.live.running)?;
        (problem.error == ErrorKind::Diverged).then_some(problem)
    }

    fn judge(&self) -> Judged {
        let judged = self.judge_lock(self.judge_state());
        let found = self.document.verified.as_ref().map_or(0, |verified| verified.contradictions);
        if found == 0 || self.failed_over || self.followed {
            return judged;
        }
        let name = self.name;
        Judged {
            reason: format!(
                "the last comparison found {found} block(s) that are whole on both sides and not the same: it is not to be trusted"
            ),
            remedy: Some(format!(
                "do not fail over to it; keep the logs of both servers, run `cairn mirror delete {name}`, and create it again; `cairn mirror verify {name}` compares again"
            )),
            check: 2,
            ..judged
        }
    }

    /// The same with the state of its lock, unless there is a worse problem.
    fn judge_lock(&self, judged: Judged) -> Judged {
        let name = self.name;
        if let Some(left) = self.unlocked.filter(|_| judged.check == 0) {
            let reason = format!(
                "its locks are lifted by the lock key for another {} min",
                left.as_secs().div_ceil(60)
            );
            let remedy = format!("`cairn mirror unlock {name} --lock-key FILE --off` locks them again");
            return Judged { reason, remedy: Some(remedy), check: 1, ..judged };
        }
        if !self.locks_nothing || judged.check > 0 {
            return judged;
        }
        let there = &self.document.volume;
        Judged {
            reason: "its lock protects nothing: the source has made no snapshots to lock, and each update replaces the mirror's own image".to_owned(),
            remedy: Some(format!(
                "make snapshots at the source, such as one a day: `cairn snapshot schedule set {there} daily --every 1d --keep-daily 30`"
            )),
            check: 1,
            ..judged
        }
    }

    /// Its state, regardless of the result of a comparison.
    fn judge_state(&self) -> Judged {
        let name = self.name;
        let late = self.over_rpo();
        let (state, reason, remedy, check) = if self.followed {
            let reason = "it takes writes, and the other side follows it".to_owned();
            (MirrorState::Source, reason, None, 0)
        } else if self.failed_over {
            let told = self.document.change.is_some_and(|change| change.told);
            let knows = if told { "knows" } else { "has not heard of it yet" };
            let next = format!(
                "connect clients to `{name}`; when the other side is back, `cairn mirror resync` there makes it follow, and `cairn mirror allow-reverse {name}` here lets \
                 `cairn mirror failback` there make it the source again; `cairn mirror resync {name}` here discards the writes here"
            );
            let reason = format!("it takes writes and follows no source; the other side {knows}");
            (MirrorState::FailedOver, reason, Some(next), 0)
        } else if let Err(error) = self.document.refuse_unseen(name) {
            (MirrorState::HandedOver, error.to_string(), Some(error.next()), 2)
        } else if self.document.address.is_empty() {
            let error =
                crate::error::ServerError::Mirrors(MirrorsError::SourceForgotten { volume: name.to_owned() });
            let reason = "it shows its last image, and its source is no longer known".to_owned();
            (MirrorState::Unknown, reason, Some(error.next()), 2)
        } else if self.is_crossed && !self.live.running {
            let next = format!(
                "`cairn mirror failover {name}` makes the side with the wanted data writable; then `cairn mirror update {name}` on the other one, where that asks for it with `--compare`"
            );
            let reason = "it follows the other side, and that side follows this one, as after a restore from an older copy: neither takes writes";
            (MirrorState::Diverged, reason.to_owned(), Some(next), 2)
        } else if let Some(problem) =
            self.diverged_problem().filter(|_| self.live.taken_over && self.handed_over)
        {
            let next = format!(
                "`cairn mirror resync {name} -n` here shows the changes that only this side has. With `--spill FILE` or `--discard-divergent` (and `--compare` if requested) it follows the other side; or `cairn mirror failover {name}` here keeps them and takes the role back, and `cairn mirror resync {name}` on the other side makes that side follow"
            );
            (MirrorState::Diverged, problem.message.clone(), Some(next), 2)
        } else if self.handed_over && self.just_handed_over && !self.live.running && !self.live.taken_over {
            let reason = "it has handed its role to the other side, which takes over within seconds";
            (MirrorState::HandedOver, reason.to_owned(), None, 0)
        } else if self.handed_over && !self.live.running && !self.live.taken_over {
            let next = format!(
                "repeat `cairn mirror reverse` (of a group: `cairn group reverse`) on the other side; if that server is gone for good, `cairn mirror failover {name}` (`cairn group failover`) takes the role back; writes there are lost if it had taken over"
            );
            let reason =
                "it has handed over its role, and the other side has not confirmed that it took over"
                    .to_owned();
            (MirrorState::HandedOver, reason, Some(next), 2)
        } else if self.undecided && !self.live.running {
            let next = format!(
                "`cairn mirror resync {name} -n` shows the changes that only this side has; `--spill FILE` saves them or `--discard-divergent` discards them, and this side follows; `cairn mirror failover {name}` keeps them and takes the role back"
            );
            let reason = "it takes no writes, because it is to follow the other side, and its own changes are neither saved nor discarded";
            (MirrorState::Diverged, reason.to_owned(), Some(next), 2)
        } else if self.document.paused && !self.live.running {
            let problem = self.live.problem.as_ref();
            let (next, check) = match problem.is_some_and(|problem| problem.error == ErrorKind::Contradicted)
            {
                true => (
                    format!(
                        "find out who has the keys of the source; `cairn mirror resume {name}` once it can be trusted again"
                    ),
                    2,
                ),
                false => (format!("`cairn mirror resume {name}`"), 1 + u8::from(late)),
            };
            (MirrorState::Paused, "its updates are paused".to_owned(), Some(next), check)
        } else if self.live.running {
            return self.judge_running(late);
        } else if let Some(problem) = &self.live.problem {
            let state = match problem.error {
                ErrorKind::Diverged => MirrorState::Diverged,
                ErrorKind::Contradicted => MirrorState::Contradicted,
                _ => MirrorState::Failing,
            };
            // A failure is not an outage while the lag is within the limit.
            let bearable =
                state == MirrorState::Failing && !late && self.document.rpo().is_some() && self.has_image;
            (state, problem.message.clone(), Some(problem.next.clone()), if bearable { 1 } else { 2 })
        } else if !self.has_image {
            let next = format!("`cairn mirror update {name}`");
            let reason = match self.given_up {
                true => "no image of the other side has arrived yet; until then it shows the discarded state",
                false => "no image has arrived yet",
            };
            (MirrorState::Baseline, reason.to_owned(), Some(next), 1)
        } else if late {
            let next = format!(
                "update now with `cairn mirror update {name}`, or more often with `cairn mirror set {name} --every TIME`"
            );
            (MirrorState::Behind, "the lag is over the RPO".to_owned(), Some(next), 2)
        } else if let Some(unanswered) = &self.live.unanswered {
            let next = unanswered.next.clone();
            (MirrorState::Silent, unanswered.message.clone(), Some(next), 1)
        } else if self.lag.is_none() {
            let next = format!("`cairn mirror update {name}`");
            let reason = "it shows an image, and its source has not reported the lag yet";
            (MirrorState::Silent, reason.to_owned(), Some(next), 1)
        } else {
            (MirrorState::Mirrored, "it shows the image, and the lag is within the limit".to_owned(), None, 0)
        };
        Judged { state, reason, remedy, check }
    }

    fn judge_running(&self, late: bool) -> Judged {
        let name = self.name;
        let limit = self.patience;
        if self.quiet > QUIET.min(limit / 2) {
            return Judged {
                state: MirrorState::Stalled,
                reason: format!("a transfer is running without progress for {} s", self.quiet.as_secs()),
                remedy: Some(format!(
                    "check the link and the source; it is aborted after {} s without progress, or by `cairn mirror abort {name}`, and the next one resumes \
                     on where it was",
                    limit.as_secs()
                )),
                check: 2,
            };
        }
        if !self.has_image {
            return Judged {
                state: MirrorState::TransferringBaseline,
                reason: match self.given_up || self.undecided {
                    true => {
                        "the image of the other side is being transferred; until then it shows the state to be discarded"
                    }
                    false => "the first image is being transferred; nothing is shown yet",
                }
                .to_owned(),
                remedy: None,
                check: 1,
            };
        }
        if let Some(following) = self.live.following.as_ref().filter(|following| following.steady) {
            return self.judge_following(following, late);
        }
        // As after a rewind, or once it follows another server: the image may be of any age.
        let unknown = self.lag.is_none();
        let remedy = (late || unknown).then(|| format!("wait for it: `cairn mirror status {name}`"));
        let reason = match unknown {
            true => {
                "an image is shown, of which its source has not said yet how far behind it is, and the next is on its way"
            }
            false => "an image is shown, and the next is on its way",
        };
        Judged {
            state: MirrorState::Transferring,
            reason: reason.to_owned(),
            remedy,
            check: if late { 2 } else { u8::from(unknown) },
        }
    }

    fn judge_following(&self, following: &Following, late: bool) -> Judged {
        let (state, reason) = match following.catching_up {
            false => (
                MirrorState::Continuous,
                "it shows an image, and changes of the source follow as they are written",
            ),
            true => (
                MirrorState::CatchingUp,
                "it shows an image, and follows; more was written than the source keeps in memory, so that it is read there again",
            ),
        };
        let remedy = late.then(|| {
            format!(
                "the link, a limit, or one of the disks takes less than is written: look at `cairn mirror status {}` and at both machines; a longer lag may be wanted: `cairn mirror set \
                 --rpo`, `--every`",
                self.name
            )
        });
        Judged { state, reason: reason.to_owned(), remedy, check: if late { 2 } else { 0 } }
    }
}

/// The state of data that only this side has: whether it was given to the other side, waits for a
/// decision, or was discarded.
fn state_of_head(own_head: Option<&Snapshot>, document: &MirrorDocument) -> (bool, bool, bool) {
    let updated = document.last.as_ref().is_some_and(|last| last.complete);
    let was_given = own_head.is_some_and(|head| head.name.starts_with(MIRROR_PREFIX));
    let given_up = own_head.is_some_and(|head| {
        let decision = document.decision.as_ref();
        decision.is_some_and(|decision| decision.head == head.id.0 && decision.image.is_none())
    });
    let handed_over = !updated && was_given && !given_up;
    let undecided = own_head.is_some() && !was_given && !given_up;
    (handed_over, undecided, given_up)
}

/// Whether this side gave its role away so lately that the other side may not have taken it yet.
fn has_just_handed_over(document: &MirrorDocument, now_ms: u64) -> bool {
    document.change.is_some_and(|change| {
        change.kind == Change::HandOver && now_ms.abs_diff(change.at_ms) < TAKES_OVER_WITHIN_MS
    })
}

/// The role of this side, and both sides with the direction between them.
fn role_and_direction(here: &str, document: &MirrorDocument, failed_over: bool) -> (api::MirrorRole, String) {
    let other = format!("{} at {}", document.volume, document.address);
    match failed_over {
        true => (api::MirrorRole::Source, format!("{here} (here, source) -> {other} (destination)")),
        false => (api::MirrorRole::Destination, format!("{other} (source) -> {here} (here, destination)")),
    }
}

#[cfg(test)]
mod tests;
