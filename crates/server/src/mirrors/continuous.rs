//! Mirrors that follow their source continuously: one session that continues as long as both sides
//! can, step after step.
//!
//! A session begins with an update like any other, which provisions, grows and finds the common
//! snapshot. After any end of it (a cut, a kill, a change of role, an abort), the schedule begins
//! the next one a moment later, with a longer pause after each failure.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_api as api;
use cairn_mirror::{Client, MirrorError, Pace, TransferReport};

use super::{Claim, Mirrors, Relation};
use crate::error::ServerError;
use crate::mirrors::document::{Manner, millis, now_ms};
use crate::mirrors::following::Following;
use crate::mirrors::transfer;
use crate::mirrors::transfer::BLOCK;
use crate::work::background;

/// A change that is older than this is on its way: a consistency point of the source each time, so
/// not much more often.
const STEP: Duration = Duration::from_millis(1500);
/// The source answers at least that often, so that the lag is known.
const WAIT: Duration = Duration::from_secs(1);

/// Pause between a session and the next; each failure doubles it.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(15);
/// Interval at which the state of a session is saved, and damage of the other side is queried.
const KEEP_EVERY: Duration = Duration::from_secs(30);

impl Relation {
    /// Ends a session of a mirror that follows continuously, for another operation; the schedule
    /// begins the next one after that.
    pub(super) fn interrupt(&self) -> Result<(), ServerError> {
        let follows = self.live.lock().following.is_some();
        if follows { self.settle() } else { Ok(()) }
    }

    /// Sets the time of the next session after the end of one.
    pub(super) fn follow_again(&self, outcome: &Result<(), ServerError>, now_ms: u64) {
        let continuous = self.document.lock().when.continuous;
        let mut live = self.live.lock();
        if continuous && live.following.is_some() {
            live.failures = if outcome.is_ok() { 0 } else { live.failures.saturating_add(1).min(8) };
            let rest = (AGAIN * 2_u32.pow(live.failures.saturating_sub(1))).min(AGAIN_MAX);
            live.next_ms = Some(now_ms + millis(rest));
        }
    }

    fn note_step(&self, report: &TransferReport, started_ms: u64) {
        let (mut document, mut live) = (self.document.lock(), self.live.lock());
        document.updates += 1;
        document.sent_bytes += report.bytes;
        let following = live.following.get_or_insert_default();
        following.steps += 1;
        following.catching_up = report.memory_blocks < report.blocks;
        following.read_steps += u64::from(following.catching_up);
        live.failures = 0;
        live.problem = None;
        live.unanswered = None;
        live.transfer = Some(api::Transfer {
            snapshot: Some(report.name.clone()),
            started_ms,
            duration_ms: millis(report.duration),
            sent_bytes: report.bytes,
            changed_bytes: report.blocks * BLOCK,
            full_bytes: report.full_blocks * BLOCK,
            kept_bytes: report.kept_blocks * BLOCK,
            wasted_bytes: report.wasted_blocks * BLOCK,
            complete: true,
            ..api::Transfer::default()
        });
    }
}

impl Mirrors {
    /// Begins the update or the session that is due.
    pub(super) fn begin_due(self: &Arc<Self>, relation: &Arc<Relation>) -> Result<(), ServerError> {
        if !relation.document.lock().when.continuous {
            // Until there is an image, an update is not spread: the mirror protects from nothing
            // yet.
            let within = relation.document.lock().within().filter(|_| relation.has_image());
            let manner = Manner { within, ..Manner::default() };
            return self.begin(relation, None, "mirror update", manner).map(drop);
        }
        relation.refuse_without_source()?;
        let open = self.volumes.get(&relation.name)?;
        relation.claim(&*self.clock)?;
        // It may have been paused since: the pause command found nothing running.
        if relation.document.lock().paused {
            relation.release();
            return Ok(());
        }
        let since_ms = now_ms(&*self.clock);
        relation.live.lock().following = Some(Following { since_ms, ..Following::default() });
        let (mirrors, mine) = (self.clone(), relation.clone());
        let started = self.jobs.start("mirror follow", &relation.name, move |progress| {
            background::step_back();
            let claim = Claim(&mine);
            let manner = Manner { follows: true, ..Manner::default() };
            let outcome = mirrors.update(&mine, &open, None, progress, manner);
            mirrors.note(&mine, &outcome);
            mine.follow_again(&outcome, now_ms(&*mirrors.clock));
            drop(claim);
            mirrors.look();
            // Its end is a failure of the link only, and `status` reports it.
            outcome.map(|()| None)
        });
        if started.is_err() {
            relation.release();
        }
        started.map(drop)
    }

    /// Follows the source until something ends that: an error, or the wish of the owner.
    pub(super) fn follow<S: Read + Write>(
        &self,
        relation: &Relation,
        stream: &mut S,
    ) -> Result<(), MirrorError> {
        let mut kept = self.clock.monotonic();
        let mut client = Client::hello(stream)?;
        relation.live.lock().following.get_or_insert_default().steady = true;
        loop {
            let document = relation.document.lock().clone();
            let ends = relation.abort.load(Ordering::Acquire) || self.ending.load(Ordering::Acquire);
            if ends || document.paused || !document.when.continuous {
                return Ok(());
            }
            let destination = &relation.destination;
            relation.take_wishes(false);
            let wait = WAIT.min(document.stall(self.patience) / 3);
            let pace = Pace { step: STEP, wait };
            let report = transfer::follow(destination, &mut client, pace, &relation.abort)?;
            match &report {
                Some(report) => {
                    let started = now_ms(&*self.clock).saturating_sub(millis(report.duration));
                    relation.note_step(report, started);
                }
                // Nothing waits any more.
                None => relation.live.lock().following.get_or_insert_default().catching_up = false,
            }
            let now = self.clock.monotonic();
            if now.saturating_sub(kept) >= KEEP_EVERY || !destination.volume().damaged().is_empty() {
                kept = now;
                self.mend(relation, &mut client);
                self.keep_contact(relation);
            }
        }
    }

    /// Saves the state of the source and the past updates.
    fn keep_contact(&self, relation: &Relation) {
        let mut document = relation.document.lock();
        document.heard(&relation.destination);
        document.last = relation.live.lock().transfer.clone().or(document.last.take());
        if let Err(error) = relation.save_known(&document) {
            tracing::warn!(mirror = relation.name, %error, "could not save the state of the last update");
        }
    }
}
