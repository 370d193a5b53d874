//! One transfer: the request, the arrivals, and the reports to the source.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_base::SnapshotId;
use cairn_format::SnapshotEntry;
use cairn_format::stream::StreamKind;
use cairn_stream::{Applied, Have, Keeps, MIRROR_PREFIX, Progress, StreamError, apply_keeping};
use cairn_volume::{Receiver, VolumeError};

use super::{Destination, Manner, Options, Reading, TransferKind, TransferProgress, TransferReport, Work};
use crate::client::{Client, began, unexpected};
use crate::error::{MirrorError, NackReason, Refusal};
use crate::keeper::{Keeper, Withheld};
use crate::lag::SourceStatus;
use crate::message::{Answer, CLAIMS_MAX, Request, Stance, Update};

/// A source's announcement of the image that it sends.
struct Announced {
    target: SnapshotId,
    name: String,
    full_blocks: u64,
    left_out: u64,
    sent_before: u64,
    in_memory: u64,
    status: SourceStatus,
}

impl Destination {
    pub(super) fn transfer<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        work: &mut Work<'_>,
        manner: Manner,
        keeper: Option<&dyn Keeper>,
    ) -> Result<TransferReport, MirrorError> {
        let (began, asked) = (self.volume.clock().monotonic(), self.volume.clock().now());
        let (mut receiver, stance) = self.begin_receiving(client, work.cancel, manner)?;
        let (answer, asked_at) = self.request(client, &mut receiver, manner, stance)?;
        let announced = match answer {
            Answer::UpToDate(status) => {
                self.heard_ahead(status, asked_at)?;
                let shown = self.volume.status().cursor.snapshot;
                let report = self.report(TransferKind::UpToDate, shown, began);
                return Ok(TransferReport { full_blocks: status.used, ..report });
            }
            Answer::Transfer { target, name, full_blocks, left_out, sent_before, in_memory, status } => {
                Announced { target, name, full_blocks, left_out, sent_before, in_memory, status }
            }
            Answer::Refused(Refusal::NoCommonBase { blocks }) => return Err(self.price(&receiver, blocks)),
            answer => return Err(unexpected(answer)),
        };
        self.heard_ahead(announced.status, asked_at)?;
        let applied = self.apply(client, receiver, &announced, work, keeper)?;
        {
            let inner = &mut self.inner.lock();
            let lock = inner.lock;
            inner.births.follow(&self.volume);
            inner.births.arrived(&self.volume, (asked, announced.status.now), lock);
        }
        let confirmed = self.acknowledge(client, announced.target);
        let kind = match applied.kind {
            StreamKind::Full => TransferKind::Baseline,
            StreamKind::Incremental => TransferKind::Update,
        };
        Ok(TransferReport {
            bytes: applied.bytes,
            blocks: applied.blocks,
            full_blocks: announced.full_blocks,
            kept_blocks: announced.left_out,
            wasted_blocks: announced.sent_before.saturating_sub(announced.left_out),
            memory_blocks: announced.in_memory,
            confirmed,
            ..self.report(kind, announced.target, began)
        })
    }

    /// Gets the volume ready for an image. Refuses where the two sides have parted.
    fn begin_receiving<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        cancel: &AtomicBool,
        manner: Manner,
    ) -> Result<(Receiver, Stance), MirrorError> {
        let stance = self.stance()?;
        if stance == Stance::Follows {
            self.refuse_parted(client)?;
        }
        let mut receiver = self.volume.receive_with(&mut |_, _| !cancel.load(Ordering::Relaxed))?;
        if stance.gives_up() {
            receiver.give_up_head();
        }
        if manner == Manner::Compare {
            receiver.claim_shown(&mut |_| !cancel.load(Ordering::Relaxed))?;
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(MirrorError::Cancelled);
        }
        Ok((receiver, stance))
    }

    /// A report of a transfer that brought nothing, which began then.
    fn report(&self, kind: TransferKind, target: SnapshotId, began: Duration) -> TransferReport {
        let snapshot = self.volume.snapshot(target);
        TransferReport {
            kind,
            target,
            name: snapshot.as_ref().map(|snapshot| snapshot.name.clone()).unwrap_or_default(),
            taken: snapshot.map(|snapshot| snapshot.created).unwrap_or_default(),
            bytes: 0,
            blocks: 0,
            full_blocks: 0,
            kept_blocks: 0,
            wasted_blocks: 0,
            memory_blocks: 0,
            duration: self.volume.clock().monotonic().saturating_sub(began),
            confirmed: true,
        }
    }

    /// Receives the image that was announced, and commits it. An image that is refused here is
    /// refused to the source too.
    fn apply<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        receiver: Receiver,
        announced: &Announced,
        work: &mut Work<'_>,
        keeper: Option<&dyn Keeper>,
    ) -> Result<Applied, MirrorError> {
        let mut seen = TransferProgress {
            snapshot: announced.name.clone(),
            blocks: 0,
            blocks_total: 0,
            bytes: 0,
            full_blocks: announced.full_blocks,
            kept_blocks: announced.left_out,
        };
        (work.progress)(&seen);
        let outer = &mut work.progress;
        let mut tell = |progress: Progress| {
            seen.blocks = progress.blocks;
            seen.blocks_total = progress.blocks_total;
            seen.bytes = progress.bytes;
            outer(&seen);
        };
        let mut inner =
            cairn_stream::Work { cancel: work.cancel, progress: &mut tell, threads: work.threads };
        self.inner.lock().births.follow(&self.volume);
        let (now, lock) = (self.volume.clock().now(), self.options().lock);
        let births = self.inner.lock().births.clone();
        let lifted = self.lifted().is_some();
        let locked = |entry: &SnapshotEntry| {
            !lifted && !births.left(entry, now, lock).is_zero() && !entry.name.starts_with(MIRROR_PREFIX)
        };
        let withheld = RefCell::new(None);
        let admits = |snapshots: &[SnapshotEntry]| {
            let admitted = keeper.map_or(Ok(()), |keeper| keeper.admits(snapshots));
            *withheld.borrow_mut() = admitted.err();
            withheld.borrow().is_none()
        };
        let keeps = Keeps { locked: &locked, admits: &admits };
        let applied = apply_keeping(&mut Reading(client.stream), receiver, keeps, &mut inner);
        let applied = applied.and_then(|applied| {
            let is_announced = applied.target == announced.target;
            is_announced.then_some(applied).ok_or(StreamError::Inconsistent("it is of another snapshot"))
        });
        applied.map_err(|error| self.refuse_image(client, error, withheld.take()))
    }

    /// Informs the source why its image is refused.
    fn refuse_image<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        error: StreamError,
        withheld: Option<Withheld>,
    ) -> MirrorError {
        let name = |snapshot| self.volume.snapshot(snapshot).map(|it| it.name).unwrap_or_default();
        let refusal = match error {
            StreamError::Locked { snapshot } => MirrorError::Locked { name: name(snapshot) },
            StreamError::Renamed { snapshot } => MirrorError::Renamed { name: name(snapshot) },
            StreamError::NotAdmitted => {
                let Withheld { group, snapshot } = withheld.unwrap_or_default();
                MirrorError::Withheld { group, snapshot }
            }
            error => {
                if let Some(reason) = nack_reason(&error) {
                    // The source may be gone, or still busy sending; its next session starts clean
                    // either way.
                    let _ = client.tell(&Request::Nack { reason });
                }
                return error.into();
            }
        };
        let _ = client.tell(&Request::Nack { reason: NackReason::Unfit });
        refusal
    }

    /// Acknowledges the image to the source. Returns whether the source confirmed it: the image is
    /// committed here in any case.
    fn acknowledge<S: Read + Write + ?Sized>(&self, client: &mut Client<'_, S>, target: SnapshotId) -> bool {
        let told_at = self.volume.clock().monotonic();
        match client.ask(&Request::Ack { target, keep: self.kept() }) {
            Ok(Answer::Status(status)) => {
                self.heard(status, told_at);
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// Asks for an update, and answers the source's questions first. Returns its announcement, and
    /// when the source last got a message, by the monotonic clock.
    fn request<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        receiver: &mut Receiver,
        manner: Manner,
        stance: Stance,
    ) -> Result<(Answer, Duration), MirrorError> {
        let Options { compression, hold, .. } = self.options();
        let mut request = Request::Update(Update {
            volume: self.source_volume.clone(),
            id: self.volume.id(),
            relationship: self.relationship,
            blocks: self.volume.space_blocks(),
            compression,
            hold,
            compare: manner == Manner::Compare,
            step: manner == Manner::Step,
            stance,
            rpo_ms: self.rpo_ms(),
            claims: receiver.arrived_blocks(),
            shown: self.volume.status().cursor.snapshot,
            keep: self.kept(),
            have: Have::of(&self.volume),
        });
        loop {
            let asked = self.volume.clock().monotonic();
            request = match client.ask(&request)? {
                Answer::AskBegan { accumulating, in_flight } => began(&self.volume, accumulating, in_flight)?,
                Answer::AskClaims { from } => Request::Claims(receiver.arrived(from, CLAIMS_MAX)?),
                answer => return Ok((answer, asked)),
            };
        }
    }
}

/// The reason for the source when a transfer fails here; `None` when the connection itself failed,
/// or the source knows.
fn nack_reason(error: &StreamError) -> Option<NackReason> {
    match error {
        StreamError::Io(_) | StreamError::Aborted(_) => None,
        StreamError::NoThread(_) => Some(NackReason::Other),
        StreamError::Cancelled => Some(NackReason::Cancelled),
        StreamError::Volume(VolumeError::Refused(_)) => Some(NackReason::Damaged),
        StreamError::Volume(VolumeError::Contradicts(_)) => Some(NackReason::Unfit),
        StreamError::Volume(_) => Some(NackReason::VolumeFailed),
        StreamError::Locked { .. }
        | StreamError::Renamed { .. }
        | StreamError::NotAdmitted
        | StreamError::WrongVolume { .. }
        | StreamError::BaseMissing { .. }
        | StreamError::TooSmall { .. }
        | StreamError::Diverged { .. } => Some(NackReason::Unfit),
        StreamError::Format(_)
        | StreamError::OutOfOrder { .. }
        | StreamError::Digest
        | StreamError::Inconsistent(_) => Some(NackReason::Damaged),
    }
}
