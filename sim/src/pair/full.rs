//! A mirror one of whose sides, or the log device of whose source, takes no writes for a while: its
//! file system is full, or writes fail.
//!
//! The destination shows whole images throughout. A failure is reported: the update ends with an
//! error, and a volume that takes no more changes has the reason. Once there is room again the next
//! update succeeds. A volume that had to stop for an error only needs a restart of its server.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use cairn_base::Rng;
use cairn_device::{Action, DeviceError};
use cairn_mirror::Work;

use super::{Offers, Pair, With, offer};
use crate::tally::{Fate, RoomFault, Tally};
use crate::timeline::Timeline;
use crate::waist::parts;
use crate::world::Config;

/// EIO of Linux.
const EIO: i32 = 5;
/// A fault comes at one of this many operations.
const OPERATIONS: u64 = 30;

/// A mirror lives for a while, with one such fault after the other.
pub fn run(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed ^ 0x0066_756c_6c00);
    let kinds = RoomFault::ALL.len() as u64;
    let fault = RoomFault::ALL[(seed % kinds) as usize];
    let blocks = 1024 + rng.below(512);
    let config = Config {
        blocks,
        blocks_max: blocks,
        files: 1 + rng.below(3) as usize,
        file_blocks: 300,
        snapshots: 1 + rng.below(6) as usize,
        log_device: fault.is_of_log() || rng.one_in(4),
        cut_every: 0,
    };
    let mut pair = Pair::new(&mut rng, config)?;
    for _ in 0..2 + rng.below(4) {
        for _ in 0..6 + rng.below(14) {
            pair.source.live(timeline)?;
        }
        if rng.one_in(3) {
            pair.transfer(timeline, With::default())?;
        }
        let fate = pair.without_room(fault, &mut rng).with_context(|| format!("{fault:?}"))?;
        tally.room_fault(fault, fate);
        let at = pair.destination.standing();
        timeline.note("dst", at, &format!("! {fault:?}: {fate:?}"));
        for _ in 0..rng.below(3) {
            pair.rest(timeline)?;
        }
    }
    pair.transfer(timeline, With::default())?;
    pair.count(tally);
    let mut world = pair.fail_over(timeline)?;
    world.cuts = 0;
    for _ in 0..6 {
        world.live(timeline)?;
    }
    world.finish(timeline)
}

impl Pair {
    /// An update while one side has no room, and the one after it.
    fn without_room(&mut self, fault: RoomFault, rng: &mut Rng) -> Result<Fate> {
        let device = if fault.is_at_source() { &self.source.device } else { &self.destination.device };
        let device = device.clone();
        let (offset, length) = (0, 4096);
        let error = if fault.is_full() {
            DeviceError::NoSpace { offset, length }
        } else {
            let source = Arc::new(std::io::Error::from_raw_os_error(EIO));
            DeviceError::Io { action: Action::Write, offset, length, source }
        };
        let times = if rng.one_in(2) { 1 + rng.below(3) } else { u64::MAX };
        if fault.is_of_log() {
            let [_, log] = parts(&device);
            log.fail_next_operation(error);
            // The client's flush succeeds all the same, by a consistency point.
            self.source.volume().flush().context("a flush over a log device that fails")?;
            self.source.model.flushed();
        } else {
            device.fail_operations(rng.below(OPERATIONS), times, error);
        }
        let mut offers = Offers::new();
        self.source.adopt();
        offer(&mut offers, &self.source, true);
        let outcome = self.ask(rng)?;
        device.heal_operations();
        self.source.adopt();
        offer(&mut offers, &self.source, false);
        let latched = [&self.source, &self.destination].map(|world| world.volume().status().latched);
        for (side, reason) in ["source", "destination"].iter().zip(&latched) {
            let is_it = (*side == "source") == fault.is_at_source();
            ensure!(
                reason.is_none() || is_it,
                "the {side} stopped for what the other side lacks: {reason:?}"
            );
            ensure!(
                reason.is_none() || !fault.is_of_log(),
                "the {side} stopped for its log device: {reason:?}"
            );
        }
        let stopped = latched.iter().any(Option::is_some);
        if stopped {
            self.restart_both().context("once there is room")?;
        }
        let news = self.look(&offers, true)?;
        ensure!(outcome.is_ok() || !news || stopped || !fault.is_at_source(), "an image came with an error");
        let whole = self.source.model.frozen().files == self.shown.active.files;
        ensure!(outcome.is_err() || stopped || whole, "an update without room brought something else");
        // It resumes by itself. A server's thread acts first, within a second: a snapshot that was
        // reported to have failed may be made then.
        if self.source.volume().status().lacks_room {
            self.source.volume().consistency_point().context("the source once there is room")?;
        }
        let mut offers = Offers::new();
        self.source.adopt();
        offer(&mut offers, &self.source, true);
        self.ask(rng)?.context("the update once there is room")?;
        self.source.adopt();
        offer(&mut offers, &self.source, false);
        self.look(&offers, true)?;
        let now = self.source.model.frozen();
        ensure!(now.files == self.shown.active.files, "the update once there is room brought something else");
        self.source.check().context("at the source")?;
        Ok(match (stopped, outcome) {
            (true, _) => Fate::Refused,
            (false, Err(_)) => Fate::Reported,
            (false, Ok(())) => Fate::Survived,
        })
    }

    fn ask(&mut self, rng: &mut Rng) -> Result<Result<(), cairn_mirror::MirrorError>> {
        self.converse(rng, |client, destination| {
            let cancel = AtomicBool::new(false);
            let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
            destination.update(client, &mut work).map(drop)
        })
    }

    /// Both servers restart; all flushed data is present.
    fn restart_both(&mut self) -> Result<()> {
        self.sessions = Arc::default();
        let mut scratch = Timeline::new(false);
        self.source.recover(&mut scratch, false)?;
        self.source.cuts -= 1;
        let world = &mut self.destination;
        world.held.clear();
        world.volume = None;
        world.power_cycle();
        world.volume = Some(world.open()?);
        Ok(())
    }
}
