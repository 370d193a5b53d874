//! Sends a prepared image, and handles its acknowledgement.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::{Checksum, SnapshotId, Vbn};
use cairn_format::Role;
use cairn_stream::{AbortReason, Gauge, Plan, Progress, StreamError, Work, abort, produce_gauged};
use cairn_volume::{SinceFiles, Volume};

use super::behind::{status_of, whole_lag};
use super::{
    Base, Claim, Heard, KnownMaps, Prepared, Shows, Source, Writing, answer, common, no_common_base,
    read_request, shared,
};
use crate::error::{MirrorError, Refusal};
use crate::follower::since_number;
use crate::message::{Answer, Began, Request, Update};
use crate::offer::SourceVolumes;
use crate::relationship::name_in;

/// A transfer of less may be in the buffers of sockets as a whole before a byte arrives.
const BUFFERED: u64 = 16 << 20;
/// Claims that are compared in one walk of the pointers: 96 MiB of them.
const CLAIMS_AT_ONCE: usize = 1 << 22;

/// A transfer to one mirror.
pub(super) struct Transfer<'a> {
    pub(super) source: &'a Source,
    pub(super) volume: &'a Arc<Volume>,
    pub(super) update: &'a Update,
    pub(super) prefix: &'a str,
    pub(super) prepared: &'a Prepared,
    pub(super) claim: &'a Claim<'a>,
    pub(super) volumes: &'a dyn SourceVolumes,
}

impl Transfer<'_> {
    /// Sends the image and waits for the destination's answer.
    pub(super) fn run<S: Read + Write + ?Sized>(
        &self,
        stream: &mut S,
        work: &mut Work<'_>,
    ) -> Result<Option<Shows>, MirrorError> {
        let (volume, prepared) = (self.volume, self.prepared);
        let (target, key) = (prepared.target.id, &self.claim.key);
        let plan = self.plan().and_then(|mut plan| {
            leave_out(stream, &mut plan, self.update)?;
            Ok(plan)
        });
        // Comparing both sides may have taken long.
        let status = prepared.by_now(volume).status;
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                answer(stream, &Answer::Refused(refusal_of(volume, &error)))?;
                return Err(error);
            }
        };
        let sent_before = self.source.sent.lock().get(key).copied().unwrap_or(0);
        let announcement = Answer::Transfer {
            target,
            name: prepared.target.name.clone(),
            full_blocks: volume.status().used,
            left_out: plan.left_out(),
            sent_before,
            in_memory: if prepared.step { plan.fresh_blocks() } else { 0 },
            status,
        };
        answer(stream, &announcement)?;
        let gauge = self.source.gauges.lock().entry(key.clone()).or_default().clone();
        let (clock, began) = (volume.clock(), volume.clock().monotonic());
        let sent = self.send(stream, plan, sent_before, &gauge, work)?;
        match read_request(stream).inspect_err(|_| gauge.broke())? {
            Request::Ack { target: acknowledged, keep } if acknowledged == target => {
                gauge.came_through();
                if sent < BUFFERED {
                    // The sockets took it at once: its transfer time is known only now.
                    gauge.sent(sent, clock.monotonic().saturating_sub(began));
                }
                self.acknowledged(stream, &keep)
            }
            Request::Nack { reason } => Err(MirrorError::Nack(reason)),
            _ => Err(MirrorError::Protocol("it does not acknowledge the transfer")),
        }
    }

    /// The blocks that the destination lacks.
    fn plan(&self) -> Result<Plan, MirrorError> {
        let (volume, update, target) = (self.volume, self.update, self.prepared.target.id);
        let number = since_number(name_in(self.prefix));
        let have = shared(volume, update, target);
        let plan = match self.prepared.base {
            Base::Since(base) => {
                let is_common = || common(volume, &have).is_ok_and(|common| !common.is_empty());
                match Plan::since(volume, &have, base, number, target) {
                    // Its map can't be read.
                    Err(_) if volume.since_files(number).is_none() => match update.compare || is_common() {
                        true => Plan::new(volume, &have, target),
                        false => Err(StreamError::BaseMissing { base: base.id }),
                    },
                    planned => planned,
                }
            }
            Base::Snapshots | Base::Nothing => Plan::new(volume, &have, target),
        };
        Ok(plan?)
    }

    /// Sends the blocks of a plan. Returns the bytes that this took.
    fn send<S: Read + Write + ?Sized>(
        &self,
        stream: &mut S,
        plan: Plan,
        sent_before: u64,
        gauge: &Gauge,
        work: &mut Work<'_>,
    ) -> Result<u64, MirrorError> {
        let (source, key) = (self.source, &self.claim.key);
        let stop = AtomicBool::new(false);
        let (cancel, progress) = (work.cancel, &mut work.progress);
        let mut told = 0;
        let mut tell = |at: Progress| {
            if cancel.load(Ordering::Relaxed) || self.claim.ended.load(Ordering::Relaxed) {
                stop.store(true, Ordering::Relaxed);
            }
            source.sent.lock().insert(key.clone(), sent_before + at.blocks);
            self.volumes.sent(&self.update.volume, at.bytes.saturating_sub(told));
            told = at.bytes;
            progress(at);
        };
        let mut inner = Work { cancel: &stop, progress: &mut tell, threads: work.threads };
        let compression = self.update.compression;
        let produced = produce_gauged(&plan, &mut Writing(stream), compression, gauge, &mut inner);
        drop(plan);
        match produced {
            Ok(produced) => Ok(produced.bytes),
            Err(error) => {
                gauge.broke();
                Err(give_up(self.volume, stream, error))
            }
        }
    }

    /// The destination has the image: records that, and reports its present lag.
    fn acknowledged<S: Read + Write + ?Sized>(
        &self,
        stream: &mut S,
        keep: &[SnapshotId],
    ) -> Result<Option<Shows>, MirrorError> {
        let (source, volume, update, prefix) = (self.source, self.volume, self.update, self.prefix);
        let (target, root) = (&self.prepared.target, &self.prepared.target.root);
        if !self.prepared.step {
            source.advance(volume, prefix, target, (update.hold, keep), self.claim)?;
        }
        let confirmed = Some((root.generation, root.changed));
        let files = volume.since_files(since_number(name_in(prefix)));
        let began = files.map(|files| files.accumulating);
        source.hear(volume, prefix, &Heard { confirmed, began, ..Heard::default() });
        if volume.status_role() != Role::Normal {
            source.note_relayed(&self.claim.key, &[target.id]);
        }
        source.sent.lock().remove(&self.claim.key);
        let began = |files: SinceFiles| KnownMaps {
            files,
            began: Began {
                file: Some(files.accumulating),
                generation: root.generation,
                changed: root.changed,
            },
        };
        let known = files.map(began);
        let status = status_of(volume, prefix, target.id, None, known)?;
        answer(stream, &Answer::Status(whole_lag(status, self.volumes, (volume, &update.volume))))?;
        // A base that is held may have names alone that are new, and then no map begins at it.
        Ok(Shows::of(target.id, known.filter(|_| !update.hold)))
    }
}

fn refusal_of(volume: &Volume, error: &MirrorError) -> Refusal {
    match error {
        MirrorError::Volume(error) => Refusal::from(error),
        MirrorError::Refused(refusal) => refusal.clone(),
        MirrorError::Stream(StreamError::BaseMissing { .. }) => no_common_base(volume),
        _ => Refusal::SourceFailed,
    }
}

/// Removes the destination's blocks from a plan.
fn leave_out<S: Read + Write + ?Sized>(
    stream: &mut S,
    plan: &mut Plan,
    update: &Update,
) -> Result<(), MirrorError> {
    if update.claims == 0 || plan.blocks() == 0 {
        return Ok(());
    }
    let mut from = Some(Vbn(0));
    plan.leave_out(&mut || {
        let mut claims: Vec<(Vbn, Checksum)> = Vec::new();
        while let Some(next) = from.filter(|_| claims.len() < CLAIMS_AT_ONCE) {
            answer(stream, &Answer::AskClaims { from: next })?;
            let Request::Claims(more) = read_request(stream)? else {
                return Err(MirrorError::Protocol("it does not say what it has"));
            };
            if more.first().is_some_and(|(vbn, _)| *vbn < next) {
                return Err(MirrorError::Protocol("its list of blocks is out of order or too long"));
            }
            from = more.last().map(|(vbn, _)| Vbn(vbn.0 + 1));
            claims.extend(more);
        }
        Ok(claims)
    })
}

/// Informs the other side why the stream ends.
fn give_up<S: Write + ?Sized>(volume: &Volume, stream: &mut S, error: StreamError) -> MirrorError {
    let reason = match &error {
        // It is being rolled back, or gets a history, or its server ends: it has no fault.
        StreamError::Volume(_) if volume.is_closed() => Some(AbortReason::Cancelled),
        StreamError::Volume(_) => Some(AbortReason::ReadFailed),
        StreamError::Cancelled => Some(AbortReason::Cancelled),
        StreamError::NoThread(_) => Some(AbortReason::Other),
        _ => None,
    };
    if let Some(reason) = reason {
        // Best effort: the reason of the failure matters more.
        let _ = abort(&mut Writing(stream), reason);
    }
    error.into()
}
