//! Programs that run beside the server: to their end, until a moment, or until they are killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Longest run of anything that ought to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The time between two checks of a condition.
pub(crate) const LOOK: Duration = Duration::from_millis(2);

/// The `cairn` named by `CAIRN_PROGRAM`, or the one next to the running program (a test is one
/// folder deeper), brought up to date when cargo runs us.
pub fn find_cairn() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("CAIRN_PROGRAM") {
        return Ok(named.into());
    }
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--locked", "--package", "cairn-cli"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        run(build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")))?;
    }
    let own = std::env::current_exe()?;
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join("cairn"));
    let found = beside.into_iter().find(|path| path.is_file());
    found.with_context(|| {
        format!("there is no cairn beside {}; build it: cargo build --package cairn-cli", own.display())
    })
}

/// Whether a program can be found.
pub(crate) fn is_installed(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs to the end, which must be a success; returns its output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{:?} does not start", command.get_program()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{command:?}: {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

/// A child that is killed when this is dropped; with all its descendants, when it leads a process
/// group of its own.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
    name: String,
}

impl Running {
    /// Starts `command` with its output in the file `log`, which grows.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log)?;
        let name = format!("{:?}", command.get_program());
        let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
        let child = child.with_context(|| format!("{name} does not start"))?;
        Ok(Self { child, log: log.to_owned(), name })
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ended already, and how.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until it ends, or until `limit`.
    pub(crate) fn ended_within(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            std::thread::sleep(LOOK.min(limit));
        }
    }

    /// Waits for the end, which must come and be a good one.
    pub(crate) fn succeeds(mut self) -> Result<()> {
        match self.ended_within(PATIENCE)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("{}: {status}: {}", self.name, self.tail()),
            None => bail!("{} does not end: {}", self.name, self.tail()),
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let group = format!("-{}", self.child.id());
        // The child was not waited for yet, so its number was not reused; the kill fails when there
        // is no such group.
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The end of its output.
    pub(crate) fn tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(2000)..]).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself, and been waited for: then its number may have been reused.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.kill();
        }
    }
}

/// Waits until `done`, and fails with `what` when that takes too long.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !done()? {
        if Instant::now() >= deadline {
            bail!("waited {} s in vain: {what}", PATIENCE.as_secs());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
