//! Cuts that are tried without being taken: at each moment that the device's eye kept, the power
//! fails in a copy of the world. The copy is opened, checked, compared and sometimes continues to
//! live. The world itself continues undisturbed, so a run has as many futures as it has moments.

use std::sync::Arc;

use anyhow::{Context, Result};
use cairn_base::Rng;
use cairn_device::{Device, Fate, FaultDevice, Operation, Request};

use crate::tally::Tally;
use crate::timeline::Timeline;
use crate::waist::{CutPoint, parts};
use crate::world::World;

/// Judges the state after a cut: gets the device with power again, and a description of the cut.
pub type Judge<'a, F> = dyn FnMut(&mut F, FaultDevice, &str) -> Result<()> + 'a;

/// Tries cuts and counts them.
pub struct Forks<'a> {
    rng: Rng,
    pub tally: &'a mut Tally,
}

impl<'a> Forks<'a> {
    pub fn new(rng: &mut Rng, tally: &'a mut Tally) -> Self {
        Self { rng: rng.fork(), tally }
    }

    /// Tries every moment that the world's device kept.
    pub fn try_all(&mut self, world: &mut World, timeline: &mut Timeline) -> Result<()> {
        let Some(eye) = world.eye.clone() else { return Ok(()) };
        let points = eye.lock().take();
        for point in points {
            self.each_device(&point, &mut |forks, device, what| {
                let mut scratch = Timeline::new(false);
                let mut fork = world.fork(device);
                let outcome = forks.judge(&mut fork, &mut scratch);
                forks.tally.cuts += fork.cuts;
                timeline.observe(scratch.digest().to_le_bytes());
                outcome.with_context(|| {
                    let recent: Vec<&str> = scratch.recent().collect();
                    format!(
                        "with a cut at {what} after {} operations\n{}",
                        point.device.operations(),
                        recent.join("\n")
                    )
                })
            })?;
        }
        Ok(())
    }

    /// The device after a cut at each operation of the batch: in all the fates where the volatile
    /// writes differ, otherwise in one.
    pub fn each_device(&mut self, point: &CutPoint, judge: &mut Judge<'_, Self>) -> Result<()> {
        let mut fresh = true;
        for (number, request) in point.batch.iter().enumerate() {
            self.tally.points += 1;
            let device = Arc::new(point.device.fork());
            let parts = parts(&device);
            let operations =
                |batch: &[Request]| -> Vec<Operation> { batch.iter().cloned().map(Operation::new).collect() };
            device.cut_after(number as u64);
            parts[point.target].run(&mut operations(&point.batch));
            for (target, batch) in &point.beside {
                parts[*target].catch(&mut operations(batch));
            }
            // Up to the next flush the whole batch is in flight wherever the cut comes: the same
            // choices of kept writes.
            let fates: &[Fate] = if fresh { &Fate::ALL } else { &[Fate::Each] };
            fresh = matches!(request, Request::Flush);
            for fate in fates {
                let what = format!("{} ({fate:?})", name(request));
                let device = device.power_cycle_as(*fate, &mut self.rng);
                judge(self, device, &what)?;
            }
        }
        Ok(())
    }

    fn judge(&mut self, fork: &mut World, timeline: &mut Timeline) -> Result<()> {
        let again = self.rng.one_in(8);
        fork.fault_rng = self.rng.fork();
        fork.come_back(timeline, again)?;
        fork.check()?;
        if self.rng.one_in(16) {
            fork.rng = self.rng.fork();
            for _ in 0..3 {
                fork.live(timeline)?;
            }
            fork.compare_all()?;
            fork.check()?;
        }
        Ok(())
    }
}

fn name(request: &Request) -> String {
    match request.range() {
        None => "a flush".to_owned(),
        Some((action, offset, length)) => format!("{action:?} {offset}+{length}"),
    }
}
