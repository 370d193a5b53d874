//! Deliberate faults under a volume, for owners who want to test the effects. They end with the
//! server at the latest.

use std::time::Duration;

use cairn_api as api;
use cairn_device::Faults;

use super::Volumes;
use crate::error::ServerError;
use crate::volumes::open::OpenVolume;

/// The longest delay, in milliseconds: past it a slow device cannot be distinguished from one that
/// has stopped.
const DELAY_MAX_MS: u64 = 60_000;

impl Volumes {
    /// Sets the faults under a volume; no faults ends the rehearsal.
    pub(crate) fn rehearse(
        &self,
        name: &str,
        request: &api::Rehearsal,
    ) -> Result<api::RehearsalStatus, ServerError> {
        let open = self.get(name)?;
        if request.delay_ms > DELAY_MAX_MS {
            return Err(ServerError::Invalid {
                fault: "the delay is longer than a minute",
                next: "give --delay at most 1m",
            });
        }
        open.rehearsal.set(Faults {
            delay: Duration::from_millis(request.delay_ms),
            reads_one_in: request.fail_reads_one_in,
            writes_one_in: request.fail_writes_one_in,
            flushes_one_in: request.fail_flushes_one_in,
            lose_unflushed: request.lose_unflushed,
        });
        let faults = request.describe();
        tracing::warn!(volume = name, faults, "deliberate faults are active under a volume");
        Ok(open.rehearsal_status())
    }

    /// The faults under a volume.
    pub(crate) fn rehearsal(&self, name: &str) -> Result<api::RehearsalStatus, ServerError> {
        Ok(self.get(name)?.rehearsal_status())
    }
}

impl OpenVolume {
    fn rehearsal_status(&self) -> api::RehearsalStatus {
        let faults = self.rehearsal.faults();
        api::RehearsalStatus {
            volume: self.name.clone(),
            faults: api::Rehearsal {
                delay_ms: faults.delay.as_millis() as u64,
                fail_reads_one_in: faults.reads_one_in,
                fail_writes_one_in: faults.writes_one_in,
                fail_flushes_one_in: faults.flushes_one_in,
                lose_unflushed: faults.lose_unflushed,
            },
            failed: self.rehearsal.failed(),
        }
    }

    /// Active faults, reported as a problem so that their effects do not surprise later.
    pub(super) fn rehearsal_problem(&self) -> Option<api::Problem> {
        let status = self.rehearsal_status();
        (status.faults != api::Rehearsal::default()).then(|| api::Problem {
            subject: self.name.clone(),
            message: format!("faults are put under the volume on purpose: {}", status.faults.describe()),
            next: format!("end the rehearsal with `cairn volume rehearse {} --off`", self.name),
        })
    }
}
