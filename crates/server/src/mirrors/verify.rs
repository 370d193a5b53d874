//! Comparing a mirror with its source, and repairing damage on either side: on request, after each
//! update, and with each query for the lag.

use std::io;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_api::{self as api, file_of_finding};
use cairn_base::BLOCK_SIZE;
use cairn_mirror::{
    Client, Difference, DifferenceKind, Mended, MirrorError, Verified, VerifyProgress, VerifyWork,
};
use cairn_volume::Finding;

use super::{Mirrors, Relation};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::document::{millis, now_ms};
use crate::mirrors::error::MirrorsError;
use crate::peers::error::PeersError;
use crate::peers::outbound::{SourceStream, connect, hang_up};
use crate::peers::stall::is_silence;
use crate::volumes::open::OpenVolume;
use crate::work::background;
use crate::work::jobs::Progress;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes a second that a comparison reads from media, by default.
const RATE: u64 = 100 << 20;
/// The longest rest after a read.
const REST_MAX: Duration = Duration::from_secs(5);
/// A rest is taken in pieces of this, so that an end is noticed.
const NAP: Duration = Duration::from_millis(100);

/// A comparison that runs; it is over when this goes.
struct Verifying<'a>(&'a Relation);

impl Drop for Verifying<'_> {
    fn drop(&mut self) {
        self.0.live.lock().verifying = false;
    }
}

/// Counts the bytes over a stream.
struct Counted<'a> {
    stream: &'a mut SourceStream,
    bytes: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.stream.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Mirrors {
    /// Repairs damage on either side over a connection after its handshake. A failed repair is
    /// retried with the next query for the lag.
    pub(super) fn mend<S: Read + Write>(&self, relation: &Relation, client: &mut Client<'_, S>) {
        match relation.destination.mend(client) {
            Ok(mended) => self.note_mended(relation, &mended),
            Err(error) => {
                tracing::debug!(mirror = relation.name, %error, "repaired nothing from the other side")
            }
        }
    }

    fn note_mended(&self, relation: &Relation, mended: &Mended) {
        if *mended == Mended::default() {
            return;
        }
        tracing::warn!(
            mirror = relation.name,
            here = mended.here,
            at_source = mended.there,
            left_here = mended.left_here,
            left_at_source = mended.left_there,
            under_lock = mended.here_locked,
            "requested damaged blocks from the other side"
        );
        if mended.here + mended.there > 0 {
            let mut document = relation.document.lock();
            document.mended_here += mended.here;
            document.mended_there += mended.there;
            document.mended_locked += mended.here_locked;
            if let Err(error) = relation.save_known(&document) {
                tracing::warn!(mirror = relation.name, %error, "could not save the repairs");
            }
        }
    }

    fn begin_verify(
        self: &Arc<Self>,
        relation: &Arc<Relation>,
        request: api::VerifyRequest,
    ) -> Result<api::Job, ServerError> {
        let name = relation.name.clone();
        self.refuse_taking_writes(relation)?;
        relation.refuse_without_source()?;
        if request.rate_bytes.is_some_and(|rate| rate < BLOCK) {
            return Err(ServerError::Invalid {
                fault: "the rate is below 4 KiB per second",
                next: "give --rate 4K or more",
            });
        }
        let open = self.volumes.get(&name)?;
        if std::mem::replace(&mut relation.live.lock().verifying, true) {
            return Err(ServerError::Busy { name, by: "a comparison runs" });
        }
        let (mirrors, mine) = (self.clone(), relation.clone());
        let started = self.jobs.start("mirror verify", &name, move |progress| {
            background::step_back();
            let _verifying = Verifying(&mine);
            let verified = mirrors.verify(&mine, &open, request, progress)?;
            let mut document = mine.document.lock();
            document.verified = Some(verified.clone());
            if let Err(error) = mine.save_known(&document) {
                tracing::warn!(mirror = mine.name, %error, "could not save the comparison");
            }
            Ok(Some(api::JobOutcome::Verify(Box::new(verified))))
        });
        if started.is_err() {
            relation.live.lock().verifying = false;
        }
        started
    }

    fn verify(
        &self,
        relation: &Relation,
        open: &OpenVolume,
        request: api::VerifyRequest,
        progress: &Progress,
    ) -> Result<api::MirrorVerify, ServerError> {
        progress.phase("connecting");
        let (started_ms, began) = (now_ms(&*self.clock), self.clock.monotonic());
        let document = relation.document.lock().clone();
        let patience = document.stall(self.patience);
        let mut stream = connect(&self.identity, &document.source(), patience, &|_| ())?;
        let mut counted = Counted { stream: &mut stream, bytes: 0 };
        progress.phase(if request.scrub { "reading both sides" } else { "comparing" });
        let rate = request.rate_bytes.unwrap_or(RATE) as f64;
        let (mut last, mut read) = (began, 0);
        let mut tell = |at: VerifyProgress| {
            progress.bytes(at.blocks * BLOCK, at.blocks_total.max(at.blocks) * BLOCK);
            if !request.scrub {
                return;
            }
            // As a scrub does: to the rate, and not more than half of the time.
            let took = self.clock.monotonic().saturating_sub(last);
            let due = Duration::from_secs_f64(((at.read - read) * BLOCK) as f64 / rate);
            let mut rest = took.max(due.saturating_sub(took));
            while !rest.is_zero() && !progress.cancelled().load(Ordering::Relaxed) {
                std::thread::sleep(rest.min(NAP));
                rest = rest.saturating_sub(NAP);
            }
            (last, read) = (self.clock.monotonic(), at.read);
        };
        // A side that receives nothing within its patience hangs up.
        let rest = REST_MAX.min(patience / 4);
        let region_blocks = if request.scrub { (rate * rest.as_secs_f64()) as u64 / BLOCK } else { u64::MAX };
        let mut work = VerifyWork { cancel: progress.cancelled(), progress: &mut tell, region_blocks };
        let outcome = Client::hello(&mut counted)
            .and_then(|mut client| relation.destination.verify(&mut client, request.scrub, &mut work));
        let network_bytes = counted.bytes;
        hang_up(&mut stream);
        let verified = outcome.map_err(|source| match source {
            MirrorError::Cancelled => ServerError::Cancelled,
            source if is_silence(&source) => ServerError::Peers(PeersError::Silent {
                peer: "source",
                address: document.address.clone(),
                patience,
            }),
            source => ServerError::Mirrors(MirrorsError::Mirror {
                volume: relation.name.clone(),
                source: Box::new(source),
            }),
        })?;
        self.note_mended(relation, &verified.mended);
        let finding = |difference: &Difference| file_of_finding(&finding_of(difference));
        open.find_paths(verified.differences.iter().filter_map(finding));
        let show = |difference: &Difference| show_difference(open, &document.volume, difference);
        let Verified { mended, .. } = verified;
        Ok(api::MirrorVerify {
            name: relation.name.clone(),
            started_ms,
            duration_ms: millis(self.clock.monotonic().saturating_sub(began)),
            scrub: request.scrub,
            snapshots: verified.snapshots,
            only_here: verified.only_here,
            compared_bytes: verified.blocks * BLOCK,
            read_bytes: verified.read_here * BLOCK,
            read_there_bytes: verified.read_there * BLOCK,
            network_bytes,
            differences_total: verified.differences_total,
            contradictions: verified.contradictions,
            differences: verified.differences.iter().map(show).collect(),
            mended_here: mended.here,
            mended_there: mended.there,
            mended_locked: mended.here_locked,
            left_here: mended.left_here,
            left_there: mended.left_there,
        })
    }
}

fn finding_of(difference: &Difference) -> Finding {
    let Difference { vbn, place, snapshot, .. } = *difference;
    Finding::DamagedBlock { vbn, place, snapshot }
}

fn show_difference(open: &OpenVolume, there: &str, difference: &Difference) -> api::CheckFinding {
    let Difference { vbn, place, snapshot, kind } = *difference;
    let shown = open.show_finding(&finding_of(difference));
    let message = match kind {
        DifferenceKind::Here => format!("here: {}", shown.message),
        DifferenceKind::There => format!("at the source ({there}): {}", shown.message),
        DifferenceKind::Both => format!("on both sides: {}", shown.message),
        DifferenceKind::Contradiction => format!(
            "block {vbn} ({place}) is whole on both sides and not the same, though snapshot {snapshot} is: the mirror is not to be trusted"
        ),
    };
    api::CheckFinding { message, ..shown }
}

impl Server {
    pub(crate) fn verify_mirror(
        &self,
        name: &str,
        request: &api::VerifyRequest,
    ) -> Result<api::Job, ServerError> {
        let relation = self.mirrors.get(name)?;
        self.mirrors.begin_verify(&relation, *request)
    }
}
