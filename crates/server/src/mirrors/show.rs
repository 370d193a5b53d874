//! What a mirror looks like: its state, of a closed list, with the reason and what to do about it.

use std::time::Duration;

use cairn_mirror::Lag;

use super::{Document, Live, Mirrors, Relation, image_of, millis, now_ms};
use crate::api::{self, ErrorKind, MirrorState};

/// A transfer whose last byte is older than this, or than half of what its owner allows, is called stalled.
const QUIET: Duration = Duration::from_secs(5);

/// A state, and why.
struct Judged {
    state: MirrorState,
    reason: String,
    remedy: Option<String>,
    check: u8,
}

/// What a state is judged by.
struct Facts<'a> {
    name: &'a str,
    document: &'a Document,
    live: &'a Live,
    failed_over: bool,
    has_image: bool,
    lag: Option<Lag>,
    quiet: Duration,
    patience: Duration,
}

impl Mirrors {
    pub(super) fn show(&self, relation: &Relation) -> api::Mirror {
        let document = relation.document.lock().clone();
        let open = self.volumes.get(&relation.name).ok();
        let shown = open.as_ref().and_then(|open| image_of(open));
        let failed_over = relation.is_failed_over();
        let lag = relation.destination.lag().filter(|_| !failed_over);
        let live = relation.live.lock();
        let facts = Facts {
            name: &relation.name,
            document: &document,
            live: &live,
            failed_over,
            has_image: shown.is_some(),
            lag,
            quiet: Duration::from_millis(relation.quiet_ms(&*self.clock)),
            patience: document.stall(self.patience),
        };
        let over_rpo = facts.over_rpo();
        let Judged { state, reason, remedy, check } = facts.judge();
        let image_ms = shown.as_ref().map(|shown| shown.created.0 / 1_000_000);
        let waits = !failed_over && !document.paused;
        api::Mirror {
            name: relation.name.clone(),
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
            every_ms: document.every_ms,
            rpo_ms: document.rpo_ms,
            over_rpo,
            hold: !document.no_hold,
            paused: document.paused,
            image: shown.map(|shown| shown.name),
            image_ms,
            image_age_ms: image_ms.map(|image_ms| now_ms(&*self.clock).saturating_sub(image_ms)),
            last: live.transfer.clone().or(document.last),
            next_ms: live.next_ms.filter(|_| waits),
            sent_bytes: document.sent_bytes,
            updates: document.updates,
            problem: live.problem.clone(),
            verified: document.verified,
            mended_here: document.mended_here,
            mended_there: document.mended_there,
        }
    }
}

impl Facts<'_> {
    fn over_rpo(&self) -> bool {
        let rpo = self.document.rpo_ms.map(Duration::from_millis);
        rpo.zip(self.lag).is_some_and(|(rpo, lag)| lag.age > rpo)
    }

    fn judge(&self) -> Judged {
        let name = self.name;
        let late = self.over_rpo();
        let (state, reason, remedy, check) = if self.failed_over {
            let next =
                format!("connect clients to `{name}`; make a new mirror of it with `cairn peer invite` here");
            (MirrorState::FailedOver, "it takes writes and follows nobody".to_owned(), Some(next), 0)
        } else if self.document.paused && !self.live.running {
            let next = format!("`cairn mirror resume {name}`");
            (
                MirrorState::Paused,
                "it was told to begin no updates".to_owned(),
                Some(next),
                1 + u8::from(late),
            )
        } else if self.live.running {
            return self.judge_running(late);
        } else if let Some(problem) = &self.live.problem {
            let diverged = problem.error == ErrorKind::Diverged;
            let state = if diverged { MirrorState::Diverged } else { MirrorState::Failing };
            // A failure is not an outage while the lag is as is wanted.
            let bearable = !diverged && !late && self.document.rpo_ms.is_some() && self.has_image;
            (state, problem.message.clone(), Some(problem.next.clone()), if bearable { 1 } else { 2 })
        } else if !self.has_image {
            let next = format!("`cairn mirror update {name}`");
            (MirrorState::Baseline, "no image has arrived yet".to_owned(), Some(next), 1)
        } else if late {
            let next = format!(
                "update now with `cairn mirror update {name}`, or more often with `cairn mirror set {name} --every TIME`"
            );
            (MirrorState::Behind, "changes are waiting for longer than is wanted".to_owned(), Some(next), 2)
        } else if let Some(unanswered) = &self.live.unanswered {
            let next = unanswered.next.clone();
            (MirrorState::Silent, unanswered.message.clone(), Some(next), 1)
        } else {
            (MirrorState::Mirrored, "it shows the image, and the lag is as is wanted".to_owned(), None, 0)
        };
        Judged { state, reason, remedy, check }
    }

    fn judge_running(&self, late: bool) -> Judged {
        let name = self.name;
        let limit = self.patience;
        if self.quiet > QUIET.min(limit / 2) {
            return Judged {
                state: MirrorState::Stalled,
                reason: format!("a transfer runs, and no byte has moved for {} s", self.quiet.as_secs()),
                remedy: Some(format!(
                    "look at the link and at the source; it is ended after {} s without a byte, or by `cairn mirror abort {name}`, and the next goes \
                     on where it was",
                    limit.as_secs()
                )),
                check: 2,
            };
        }
        if !self.has_image {
            return Judged {
                state: MirrorState::TransferringBaseline,
                reason: "the first image is on its way; nothing is shown yet".to_owned(),
                remedy: None,
                check: 1,
            };
        }
        let remedy = late.then(|| format!("wait for it: `cairn mirror status {name}`"));
        Judged {
            state: MirrorState::Transferring,
            reason: "an image is shown, and the next is on its way".to_owned(),
            remedy,
            check: if late { 2 } else { 0 },
        }
    }
}
