//! A server that runs while a figure is taken: its socket, its CPU seconds, its memory; killed when
//! dropped.

use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How long a server may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A child that listens on a unix socket.
pub(crate) struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Starts `command` and waits until it listens on `socket`.
    pub(crate) fn start(command: Command, socket: &Path) -> Result<Self> {
        // A killed one leaves its socket.
        let _ = std::fs::remove_file(socket);
        Self::start_until(command, socket, || UnixStream::connect(socket).is_ok())
    }

    /// Starts `command` and waits until it is `ready`. Its output goes to a log beside `socket`,
    /// which need not be one.
    pub(crate) fn start_until(mut command: Command, socket: &Path, ready: impl Fn() -> bool) -> Result<Self> {
        let log = std::fs::File::create(socket.with_extension("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("{:?} did not start", command.get_program()))?;
        let mut server = Self { child, socket: socket.to_owned() };
        let start = Instant::now();
        while !ready() {
            if let Some(status) = server.child.try_wait()? {
                let log = std::fs::read_to_string(socket.with_extension("log")).unwrap_or_default();
                bail!("{:?} ended at once ({status}): {log}", command.get_program());
            }
            if start.elapsed() > START_LIMIT {
                bail!("{:?} does not listen on {}", command.get_program(), socket.display());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    /// The NBD URI of one of its exports.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// CPU time used so far, user and system.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        // utime and stime.
        cpu_of(&self.child.id().to_string(), 14..16)
    }

    /// The most memory that was resident at once, in bytes.
    pub(crate) fn memory_max(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
    }

    /// Ends it in order, as its owner would.
    pub(crate) fn end(mut self) -> Result<()> {
        run(Command::new("kill").arg(self.child.id().to_string()))?;
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            // Dropped, it is killed.
            ensure!(start.elapsed() < START_LIMIT, "the server on {} does not end", self.socket.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// SIGKILL, as a crash would.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, which does not affect the figures.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of programs that were run to their end so far, and of their children.
pub(crate) fn children_cpu() -> Result<Duration> {
    // cutime and cstime.
    cpu_of("self", 16..18)
}

/// The sum of some fields of `/proc/PROCESS/stat`, whose first has the number 1.
fn cpu_of(process: &str, fields: Range<usize>) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name, field 2, may contain spaces; the needed fields come after its closing bracket.
    let (_, rest) = stat.rsplit_once(')').context("/proc/PID/stat")?;
    let rest: Vec<&str> = rest.split_whitespace().collect();
    let wanted = rest.get(fields.start - 3..fields.end - 3).context("/proc/PID/stat")?;
    let ticks: u64 = wanted.iter().flat_map(|field| field.parse::<u64>()).sum();
    // Every Linux that this runs on reports hundredths of a second here (USER_HZ).
    Ok(Duration::from_millis(ticks * 10))
}

/// Runs a program to its end and returns its output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{:?} did not start", command.get_program()))?;
    if !output.status.success() {
        let arguments: Vec<_> = command.get_args().collect();
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{:?} {arguments:?} ended with {}: {}", command.get_program(), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program to its end and returns the time that it took.
pub(crate) fn timed(command: &mut Command) -> Result<Duration> {
    let start = Instant::now();
    run(command)?;
    Ok(start.elapsed())
}

/// Lets everything that a turn has left reach the disk, so that the next contender does not pay for
/// it.
pub(crate) fn settle() -> Result<()> {
    run(&mut Command::new("sync"))?;
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}
