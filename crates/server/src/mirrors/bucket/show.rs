//! The report on a mirror in a bucket: its state, with the reason and the remedy.

use std::time::Duration;

use cairn_api::{self as api, BucketMirrorState as State};
use cairn_volume::Volume;

use super::document::{BucketMirrorDocument, Image};
use super::error::{BucketMirrorError, Why, next_of};
use super::overdue::overdue;
use super::working::has_images;
use super::{BucketMirror, BucketMirrors, Live};
use crate::mirrors::document::millis;

/// A state, and why.
struct Judged {
    state: State,
    reason: String,
    remedy: Option<String>,
    check: u8,
}

/// The facts from which a state is derived.
struct Facts<'a> {
    name: &'a str,
    volume: &'a str,
    document: &'a BucketMirrorDocument,
    live: &'a Live,
    has_images: bool,
    lag_ms: Option<u64>,
}

/// The age of the first change that an image does not have; 0 without one.
pub(super) fn lag_of(volume: &Volume, image: &Image) -> Duration {
    let entries = volume.snapshot_entries();
    let is_it = |entry: &&cairn_format::SnapshotEntry| {
        entry.id.0 == image.number && entry.root.created == image.taken()
    };
    match entries.iter().find(is_it) {
        Some(entry) => volume.age_of_changes(&entry.root).unwrap_or_default(),
        // Its snapshot is gone, as after a rollback: changes since are unknown.
        None => volume.clock().now().since(image.taken()),
    }
}

impl BucketMirrors {
    /// All of them, by name.
    pub(crate) fn list(&self) -> Vec<api::BucketMirror> {
        self.all().iter().map(|mirror| self.show(mirror)).collect()
    }

    /// The problems of these mirrors.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let problem = |shown: api::BucketMirror| {
            if let Some(late) = overdue(&shown) {
                return Some(late);
            }
            let next = shown.remedy.filter(|_| shown.check > 0)?;
            Some(api::Problem { subject: shown.name, message: shown.reason, next })
        };
        self.list().into_iter().filter_map(problem).collect()
    }

    pub(super) fn show(&self, mirror: &BucketMirror) -> api::BucketMirror {
        let document = mirror.document.lock().clone();
        let open = self.volumes.get(&mirror.volume).ok();
        let image = document.image;
        let lag = open.as_ref().zip(image).map(|(open, image)| lag_of(&open.volume, &image));
        let (name, lag_ms) = (mirror.name(), lag.map(millis));
        let live = mirror.live.lock();
        let facts = Facts {
            name: &name,
            volume: &mirror.volume,
            document: &document,
            live: &live,
            has_images: open.as_ref().is_none_or(|open| has_images(open)),
            lag_ms,
        };
        let over_rpo = facts.is_late();
        let Judged { state, reason, remedy, check } = facts.judge();
        let waits = !document.paused && document.stopped.is_none();
        let next_ms = live.retry_ms.or(live.next_ms);
        api::BucketMirror {
            id: format!("{:016x}", mirror.id),
            volume: mirror.volume.clone(),
            volume_id: open.as_ref().map(|open| open.volume.id().to_string()).unwrap_or_default(),
            bucket: document.bucket,
            state,
            reason,
            remedy,
            check,
            lag_ms,
            rpo_ms: document.rpo_ms,
            over_rpo,
            every_ms: document.when.every_ms,
            continuous: document.when.continuous,
            cron: document.when.cron,
            zone: document.when.zone,
            paused: document.paused,
            keep: document.keep,
            limit: document.limit,
            limit_now_bytes: mirror.pace.rate(),
            image: image.map(|image| image.id().to_string()),
            image_number: image.map(|image| image.number),
            image_ms: image.map(|image| image.taken_ns / 1_000_000),
            images: document.images,
            stored_bytes: document.stored_bytes,
            epoch: document.owned.unwrap_or(0),
            last: document.last,
            next_ms: next_ms.filter(|_| waits),
            sent_bytes: document.sent_bytes,
            updates: document.updates,
            problem: live.problem.clone(),
            verified: document.verified,
            repairs: document.repairs.len() as u64,
            name,
        }
    }
}

impl Facts<'_> {
    fn is_late(&self) -> bool {
        self.document.rpo_ms.zip(self.lag_ms).is_some_and(|(rpo, lag)| lag > rpo)
    }

    fn judge(&self) -> Judged {
        let judged = self.judge_state();
        let Some(verified) = &self.document.verified else { return judged };
        let name = self.name;
        if verified.contradictions > 0 && judged.check < 2 {
            return Judged {
                reason: format!(
                    "the last verification found {} block(s) that are missing in the bucket or differ from the snapshot here",
                    verified.contradictions
                ),
                remedy: Some(format!(
                    "check the volume with `cairn volume check {} --deep`; if it is good, mirror it to another path, and delete {name}",
                    self.volume
                )),
                check: 2,
                ..judged
            };
        }
        if !self.document.repairs.is_empty() && judged.check == 0 {
            return Judged {
                reason: format!(
                    "the last verification found {} damaged object(s), which the next update replaces",
                    self.document.repairs.len()
                ),
                remedy: Some(format!(
                    "`cairn mirror update {name}` replaces them now; older images may need them: find out why the store lost data"
                )),
                check: 2,
                ..judged
            };
        }
        judged
    }

    fn judge_state(&self) -> Judged {
        let (name, late) = (self.name, self.is_late());
        let worse = if late { 2 } else { 1 };
        if let Some(stopped) = &self.document.stopped {
            let state = match stopped.why {
                Why::Fenced => State::Fenced,
                Why::Replayed => State::Replayed,
                Why::Damaged | Why::Newer => State::Damaged,
                Why::Diverged => State::Diverged,
            };
            let remedy = Some(next_of(stopped.why, name));
            return Judged { state, reason: stopped.message.clone(), remedy, check: 2 };
        }
        let judged = |state, reason: &str, remedy: Option<String>, check| Judged {
            state,
            reason: reason.to_owned(),
            remedy,
            check,
        };
        if !self.has_images {
            let error = BucketMirrorError::NotASource { volume: self.volume.to_owned() };
            return judged(State::NotASource, &error.to_string(), Some(error.next()), 1);
        }
        if self.document.paused {
            let resume = format!("`cairn mirror resume {name}`");
            return judged(State::Paused, "it makes no images until it is resumed", Some(resume), worse);
        }
        if let Some(problem) = self.live.problem.as_ref().filter(|_| !self.live.running) {
            let next = match self.live.retry_ms {
                Some(_) => format!("{}; it is retried by itself", problem.next),
                None => problem.next.clone(),
            };
            return judged(State::Failing, &problem.message, Some(next), worse);
        }
        // A retry does not end the problem that it retries.
        if let Some(problem) = self.live.problem.as_ref().filter(|_| self.live.running) {
            let reason = format!("an update runs; the one before failed: {}", problem.message);
            return judged(State::Transferring, &reason, Some(problem.next.clone()), worse);
        }
        if self.live.running {
            let check = if late { 2 } else { 0 };
            let remedy = late
                .then(|| "wait until the update ends; a higher --limit or --rpo prevents this".to_owned());
            return judged(State::Transferring, "an update runs", remedy, check);
        }
        if self.document.image.is_none() {
            let update = format!("`cairn mirror update {name}` makes the first image");
            return judged(State::Baseline, "it has no image yet", Some(update), 1);
        }
        if late {
            let next =
                format!("`cairn mirror update {name}` makes an image now; a shorter --every prevents this");
            return judged(State::Behind, "its lag exceeds the RPO", Some(next), 2);
        }
        judged(State::Mirrored, "its newest image is in the bucket", None, 0)
    }
}
