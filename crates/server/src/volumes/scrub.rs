//! The scrub of a volume: a thread that reads everything from the media, a little at a time, and
//! its findings.
//!
//! The thread yields: between two pieces it rests at least as long as the piece took, so clients
//! have the devices for more than half of the time, and it keeps to a rate. `scrub.json` stores the
//! cursor and the findings; a restart resumes where it stopped, and checks damaged blocks again.

use std::time::Duration;

use cairn_api::{self as api, file_of, file_of_finding};
use cairn_base::{BLOCK_SIZE, Clock};
use cairn_files::{path_bytes, path_text, quoted_path};
use cairn_volume::{DamagedBlock, Finding, Health, Place};

use crate::error::ServerError;
use crate::state;
use crate::volumes::open::{OpenVolume, PATIENCE};
use crate::volumes::scrub_state::{Damaged, Inner, Running, ScrubDocument};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of one piece: 1 MiB.
const PIECE: u64 = 256;
/// Bytes a second of a scrub, by default.
const RATE: u64 = 100 << 20;
/// The longest rest between two pieces: a rate that was changed is noticed within it.
const REST_MAX: Duration = Duration::from_millis(200);
/// Interval at which the cursor is saved: after a kill at most this much is read again.
const WRITE_EVERY: Duration = Duration::from_secs(10);
/// Interval at which damaged blocks are checked again.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Findings of one pass that are kept; more are counted.
const FINDINGS_MAX: usize = 1000;
/// Damaged blocks that `cairn status` names one by one.
const NAMED_MAX: usize = 8;

impl OpenVolume {
    /// Reloads an unreadable document: damage found since stays recorded.
    pub(crate) fn read_scrub(&self) {
        let (document, unread) = state::known::<ScrubDocument>(&self.scrub.path);
        let document = document.unwrap_or_default();
        self.volume.remember_damaged(document.damaged.iter().map(DamagedBlock::from));
        self.scrub.inner.lock().document = document;
        *self.scrub.unread.lock() = unread;
    }

    /// One round of the scrub's thread: a piece when one is due, or a wait.
    pub(super) fn scrub_round(&self, clock: &dyn Clock) {
        self.look_at_damage(clock);
        if let Err(error) = self.volume.free_stranded() {
            tracing::warn!(volume = self.name, %error, "removed files with unreadable nodes are not freed: other data is unreadable too");
        }
        let mut inner = self.scrub.inner.lock();
        let (now, now_ms) = (clock.monotonic(), clock.now().0 / 1_000_000);
        if inner.document.running.is_none()
            && inner.document.next_ms(now_ms).is_some_and(|next| next <= now_ms)
        {
            self.begin_pass(&mut inner, now, now_ms);
        }
        let Some(running) = &inner.document.running else {
            self.scrub.wake.wait_for(&mut inner, PATIENCE);
            return;
        };
        if now < inner.next {
            let rest = (inner.next - now).min(REST_MAX);
            self.scrub.wake.wait_for(&mut inner, rest);
            return;
        }
        let (mut cursor, started_ms) = (running.cursor(), running.started_ms);
        drop(inner);
        let step = self.volume.scrub(&mut cursor, PIECE);
        if let Ok(step) = &step {
            self.find_paths(step.findings.iter().filter_map(file_of_finding));
        }
        let after = clock.monotonic();
        let mut inner = self.scrub.inner.lock();
        let inner = &mut *inner;
        let rate = inner.document.rate_bytes.unwrap_or(RATE).max(BLOCK);
        // It was stopped, or stopped and restarted, meanwhile.
        let Some(running) = inner.document.running.as_mut().filter(|now| now.started_ms == started_ms) else {
            return;
        };
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                tracing::debug!(volume = self.name, %error, "a scrub waits");
                inner.next = after + Duration::from_secs(1);
                return;
            }
        };
        running.keep(&cursor);
        running.blocks += step.blocks;
        let took = after.saturating_sub(now);
        let rest = took
            .max(Duration::from_secs_f64((step.blocks * BLOCK) as f64 / rate as f64).saturating_sub(took));
        inner.next = after + rest;
        running.spent_ms += (took + rest).as_millis() as u64;
        for finding in &step.findings {
            let shown = self.show_finding(finding);
            tracing::error!(volume = self.name, finding = shown.message, "a scrub found damage");
            running.findings_total += 1;
            if running.findings.len() < FINDINGS_MAX {
                running.findings.push(shown);
            }
        }
        if step.finished {
            self.end_pass(inner, clock, false);
        } else if !step.findings.is_empty() || after.saturating_sub(inner.written) >= WRITE_EVERY {
            self.scrub.write(inner, after);
        }
    }

    fn begin_pass(&self, inner: &mut Inner, now: Duration, now_ms: u64) {
        let mut running = Running {
            started_ms: now_ms,
            spent_ms: 0,
            blocks: 0,
            done: 0,
            newest: 0,
            current: None,
            tree: 0,
            lba: 0,
            findings: Vec::new(),
            findings_total: 0,
        };
        running.keep(&self.volume.begin_scrub());
        inner.document.running = Some(running);
        inner.next = now;
        self.scrub.write(inner, now);
        tracing::info!(volume = self.name, "a scrub begins");
    }

    fn end_pass(&self, inner: &mut Inner, clock: &dyn Clock, stopped: bool) {
        let Some(running) = inner.document.running.take() else { return };
        let bytes = running.blocks * BLOCK;
        tracing::info!(
            volume = self.name,
            bytes,
            findings = running.findings_total,
            stopped,
            "a scrub is over"
        );
        inner.document.last = Some(api::ScrubResult {
            started_ms: running.started_ms,
            finished_ms: clock.now().0 / 1_000_000,
            bytes,
            stopped,
            findings_total: running.findings_total,
            findings: running.findings,
        });
        self.scrub.write(inner, clock.monotonic());
    }

    /// Rechecks damaged blocks now and then, and saves the list of them.
    fn look_at_damage(&self, clock: &dyn Clock) {
        let now = clock.monotonic();
        let is_due = {
            let mut inner = self.scrub.inner.lock();
            let is_due = inner.looked.is_none_or(|looked| now.saturating_sub(looked) >= LOOK_EVERY);
            if is_due {
                inner.looked = Some(now);
            }
            is_due
        };
        for block in self.volume.damaged().iter().filter(|_| is_due) {
            match self.volume.look_again(block) {
                Ok(Health::Damaged | Health::Gone | Health::Sound) => {}
                Ok(Health::Mended) => {
                    tracing::warn!(volume = self.name, vbn = block.vbn.0, "repaired from memory")
                }
                Err(error) => tracing::debug!(volume = self.name, %error, "a damaged block is not checked"),
            }
            if self.ending.load(std::sync::atomic::Ordering::Acquire) {
                break;
            }
        }
        self.keep_damage(clock);
    }

    /// Saves the list of damaged blocks for the next start, if it has changed; retries a failed
    /// save after a while and at the end.
    pub(super) fn keep_damage(&self, clock: &dyn Clock) {
        let (known, repaired) = (self.volume.damaged(), self.volume.repaired_blocks());
        let mut inner = self.scrub.inner.lock();
        let damaged: Vec<Damaged> = known.iter().map(Into::into).collect();
        let mended = repaired - inner.counted;
        let now = clock.monotonic();
        let ends = self.ending.load(std::sync::atomic::Ordering::Acquire);
        let again = inner.unwritten && (ends || now.saturating_sub(inner.written) >= WRITE_EVERY);
        if again || mended > 0 || damaged != inner.document.damaged {
            inner.counted = repaired;
            inner.document.repaired += mended;
            if mended > 0 {
                inner.document.repaired_ms = Some(clock.now().0 / 1_000_000);
            }
            inner.document.damaged = damaged;
            self.scrub.write(&mut inner, now);
        }
    }

    /// Begins, changes or stops the scrub.
    pub(crate) fn set_scrub(
        &self,
        request: &api::ScrubRequest,
        clock: &dyn Clock,
    ) -> Result<api::Scrub, ServerError> {
        if request.rate_bytes.is_some_and(|rate| rate < BLOCK) {
            return Err(ServerError::Invalid {
                fault: "the rate is below 4 KiB per second",
                next: "give --rate 4K or more",
            });
        }
        if request.rate_bytes.is_some() || request.every_ms.is_some() {
            // It would be forgotten.
            state::refuse_unread(self.scrub.unread.lock().as_ref())?;
        }
        let (now, now_ms) = (clock.monotonic(), clock.now().0 / 1_000_000);
        {
            let mut inner = self.scrub.inner.lock();
            let inner = &mut *inner;
            if request.rate_bytes.is_some() {
                inner.document.rate_bytes = request.rate_bytes;
                inner.next = now;
            }
            if let Some(every) = request.every_ms {
                inner.document.every_ms = (every > 0).then_some(every);
                inner.document.asked_ms = now_ms;
            }
            if request.stop {
                self.end_pass(inner, clock, true);
            } else if request.start && inner.document.running.is_none() {
                self.begin_pass(inner, now, now_ms);
            }
            self.scrub.write(inner, now);
            self.scrub.wake.notify_all();
        }
        Ok(self.show_scrub())
    }

    /// How the scrub is.
    pub(crate) fn show_scrub(&self) -> api::Scrub {
        let status = self.volume.status();
        let damaged = self.volume.damaged();
        self.find_paths(damaged.iter().filter_map(|block| Some((None, file_of(block.place)?))));
        let document = self.scrub.inner.lock().document.clone();
        let total = status.used * BLOCK;
        let (running, now_ms) = (document.running.as_ref(), self.volume.clock().now().0 / 1_000_000);
        let done = running.map_or(0, |running| running.blocks * BLOCK);
        let spent = running.map_or(0, |running| running.spent_ms);
        let rate = (done * 1000).checked_div(spent).unwrap_or(0);
        api::Scrub {
            volume: self.name.clone(),
            running: running.is_some(),
            rate_bytes: document.rate_bytes.unwrap_or(RATE),
            every_ms: document.every_ms,
            next_ms: document.next_ms(now_ms).filter(|_| running.is_none()),
            started_ms: running.map(|running| running.started_ms),
            done_bytes: done,
            total_bytes: if running.is_some() { total.max(done) } else { 0 },
            present_rate: rate,
            seconds_left: running.filter(|_| rate > 0).map(|_| total.saturating_sub(done).div_ceil(rate)),
            findings: running.map(|running| running.findings.clone()).unwrap_or_default(),
            last: document.last.clone(),
            damaged: damaged.iter().map(|block| self.show_damaged(block)).collect(),
            repaired_blocks: document.repaired,
            repaired_ms: document.repaired_ms,
        }
    }

    fn show_damaged(&self, block: &DamagedBlock) -> api::DamagedBlock {
        let lun = self.lun_of(block.place).map(|lun| format!("{}/{lun}", self.name));
        let path = match &lun {
            Some(_) => None,
            None => file_of(block.place).and_then(|file| self.path_anywhere(file)),
        };
        let shown = path.as_ref().map(|(path, of)| format!("{}{of}", quoted_path(path)));
        let named = lun.as_ref().or(shown.as_ref());
        let offset_bytes = match block.place {
            Place::Data { lba, .. } if named.is_some() => Some(lba.0 * BLOCK),
            _ => None,
        };
        let what = match (named, offset_bytes, block.place) {
            (Some(named), Some(offset), Place::Data { lba, .. }) => {
                format!("block {lba} of {named} (bytes {offset} to {})", offset + BLOCK - 1)
            }
            (Some(named), _, place) => format!("{place} ({named})"),
            (None, _, place) => place.to_string(),
        };
        let message = format!("block {} is damaged: {what} cannot be read", block.vbn);
        let raw = path.as_ref().and_then(|(path, _)| path_bytes(path));
        let path = path.map(|(path, of)| format!("{}{of}", path_text(&path)));
        api::DamagedBlock { block: block.vbn.0, message, lun, path, path_bytes: raw, offset_bytes }
    }

    /// The damage, for `cairn status`.
    pub(super) fn damage_problems(&self) -> Vec<api::Problem> {
        let damaged = self.volume.damaged();
        let named = damaged.iter().take(NAMED_MAX);
        self.find_paths(named.clone().filter_map(|block| Some((None, file_of(block.place)?))));
        let next = "a mirror that has it gives it back by itself (`cairn mirror status` says whether one answers); else write over it, or restore it \
                    from a snapshot";
        let problem = |message| api::Problem { subject: self.name.clone(), message, next: next.to_owned() };
        let mut problems: Vec<_> = named.map(|block| problem(self.show_damaged(block).message)).collect();
        if damaged.len() > NAMED_MAX {
            let more = damaged.len() - NAMED_MAX;
            problems.push(problem(format!(
                "{more} more blocks are damaged: see `cairn volume scrub {}`",
                self.name
            )));
        }
        problems
    }

    /// A finding as the API tells it: with the LUN or the file, and the snapshot, named. Of many,
    /// [their paths](Self::find_paths) are to be looked for first.
    pub(crate) fn show_finding(&self, finding: &Finding) -> api::CheckFinding {
        let name = &self.name;
        let lun = match finding {
            Finding::DamagedBlock { place, .. } => self.lun_of(*place),
            _ => None,
        };
        let lun = lun.map(|lun| format!("{name}/{lun}"));
        let path = match &lun {
            Some(_) => None,
            None => file_of_finding(finding).and_then(|of| self.path_of(of)),
        };
        let named = lun.clone().or(path.as_ref().map(|path| quoted_path(path)));
        let of = named.map(|named| format!(" ({named})")).unwrap_or_default();
        let snapshot = finding.snapshot().and_then(|id| self.volume.snapshot(id));
        let snapshot = snapshot.map(|snapshot| format!("{name}@{}", snapshot.name));
        let named = snapshot.as_ref().map(|snapshot| format!(" [{snapshot}]")).unwrap_or_default();
        let message = format!("{finding}{of}{named}");
        let path_bytes = path.as_ref().and_then(|path| path_bytes(path));
        api::CheckFinding { message, lun, path: path.map(|path| path_text(&path)), path_bytes, snapshot }
    }
}

#[cfg(test)]
mod tests;
