//! The owner's probe: a command in a shell. At its time limit it is killed, with all processes that
//! it started. These are found by a variable in their environment, which also finds processes that
//! left its process group, and those left by a killed server.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cairn_api::DrillOutcome;
use cairn_base::Clock;
use rustix::process::{Signal, kill_process};

use crate::daemon::data_dir::guard;
use crate::work::programs;
use crate::work::programs::processes_with;

/// How often the end of the command is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The variable that marks the processes of probes: the mirror's name, a colon, and the data
/// directory of its server.
const RUN: &str = "CAIRN_DRILL_RUN";
/// Wait for the end of processes that earlier probes have left: one that hangs on a lost disk can't
/// be killed.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a probe's output that are kept: its end.
const SAID_MAX: u64 = 4096;

/// A command that reports by its exit code whether its data is good.
pub(super) struct Probe {
    pub(super) command: String,
    /// The mirror, and the data directory of the server.
    pub(super) of: (String, String),
    pub(super) timeout: Duration,
    /// The file for its output while it runs: a pipe could fill up.
    pub(super) log: PathBuf,
    pub(super) variables: Vec<(&'static str, String)>,
}

/// The outcome of a probe.
pub(super) struct Tried {
    pub(super) outcome: DrillOutcome,
    pub(super) exit_code: Option<i32>,
    pub(super) said: String,
}

impl Probe {
    /// Runs it to its end, to the end of its time, or until it is cancelled.
    pub(super) fn run(&self, cancelled: &AtomicBool, clock: &dyn Clock) -> Tried {
        let failed = |error: std::io::Error| Tried {
            outcome: DrillOutcome::Failed,
            exit_code: None,
            said: format!("the probe does not start: {error}"),
        };
        let mut log = match File::options().read(true).append(true).create(true).open(&self.log) {
            Ok(log) => log,
            Err(error) => return failed(error),
        };
        let mut child = match log.try_clone().and_then(|log| self.start(log)) {
            Ok(child) => child,
            Err(error) => return failed(error),
        };
        let end = clock.monotonic() + self.timeout;
        let (outcome, exit_code) = loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => break (DrillOutcome::Passed, Some(0)),
                Ok(Some(status)) => break (DrillOutcome::Failed, status.code()),
                Err(error) => return failed(error),
                Ok(None) if cancelled.load(Ordering::Relaxed) => break (DrillOutcome::Cancelled, None),
                Ok(None) if clock.monotonic() >= end => break (DrillOutcome::TimedOut, None),
                Ok(None) => std::thread::sleep(LOOK_EVERY),
            }
        };
        // Processes that it left running would continue on a removed disk.
        programs::end(child);
        end_left(&self.of.1, Some(&self.of.0));
        Tried { outcome, exit_code, said: tail(&mut log).unwrap_or_default() }
    }

    fn start(&self, log: File) -> std::io::Result<Child> {
        let mut command = Command::new("sh");
        let (mirror, data) = &self.of;
        command.env(RUN, format!("{mirror}:{data}"));
        command
            .args(["-c", &guard::shell_text(&self.command)])
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.process_group(0).spawn()
    }
}

/// Kills processes that probes of the server with that data directory have left running: those of
/// one mirror, or of all. They would write to the clone of a later drill, which has the same name.
pub(super) fn end_left(data: &str, mirror: Option<&str>) {
    let is_left = |value: &[u8]| {
        let parts = std::str::from_utf8(value).ok().and_then(|value| value.split_once(':'));
        parts.is_some_and(|(of, at)| at == data && mirror.is_none_or(|mirror| mirror == of))
    };
    let begun = Instant::now();
    loop {
        let left = processes_with(RUN, is_left);
        if left.is_empty() || begun.elapsed() > END_PATIENCE {
            return;
        }
        for process in left {
            let _ = kill_process(process, Signal::KILL);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn tail(log: &mut File) -> std::io::Result<String> {
    let length = log.seek(SeekFrom::End(0))?;
    log.seek(SeekFrom::Start(length.saturating_sub(SAID_MAX)))?;
    let mut bytes = Vec::new();
    log.take(SAID_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
