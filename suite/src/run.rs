//! Several programs at a time, each with a file for all that it prints.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use wait_timeout::ChildExt;

use crate::Queue;

/// One program that has run.
#[derive(Debug)]
pub struct Outcome {
    /// [`crate::Program::name`], or the name of a command that ran beside.
    pub name: String,
    /// Whether it exited with 0.
    pub passed: bool,
    /// All that it printed.
    pub output: String,
    /// From its start to its exit.
    pub took: Duration,
}

/// When a program counts as stuck. Five times the slowest program on a machine with two processors.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Tests by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that are marked `#[ignore]`.
    pub ignored: u64,
}

impl Tally {
    /// Adds the tests of another program.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// The tests that a program counted in its `test result:` line.
pub fn tally(output: &str) -> Tally {
    let mut tally = Tally::default();
    for line in output.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        for part in line.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let Some(number) = words.next().and_then(|word| word.parse::<u64>().ok()) else { continue };
            match words.next() {
                Some("passed") => tally.passed += number,
                Some("failed") => tally.failed += number,
                Some("ignored") => tally.ignored += number,
                _ => {}
            }
        }
    }
    tally
}

/// Runs the programs of `queue` with `arguments`, `jobs` at a time, until the queue is closed and
/// empty. Reports each to `done` when it has ended. A program that runs longer than `limit` is
/// killed and has failed.
///
/// # Errors
/// A program that can't be started, or a file for its output that can't be made.
pub fn run_all(
    queue: &Queue,
    arguments: &[String],
    jobs: usize,
    limit: Duration,
    logs: &Path,
    done: &(dyn Fn(&Outcome) + Sync),
) -> Result<Vec<Outcome>> {
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            while let Some(program) = queue.next() {
                let mut command = Command::new(&program.executable);
                command
                    .args(arguments)
                    .current_dir(&program.folder)
                    .env("CARGO_MANIFEST_DIR", &program.folder);
                let outcome = run(&program.name, command, limit, logs)?;
                done(&outcome);
                ended.lock().expect("no job panics").push(outcome);
            }
            Ok(())
        };
        let jobs: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        jobs.into_iter().try_for_each(|job| job.join().expect("a job does not panic"))
    })?;
    Ok(ended.into_inner().expect("no job panics"))
}

/// Runs shell commands, given as name and line, one after the other at the lowest priority. All of
/// them run, also after one has failed.
///
/// # Errors
/// As [`run_all`].
pub fn run_beside(
    commands: &[(String, String)],
    limit: Duration,
    logs: &Path,
    done: &(dyn Fn(&Outcome) + Sync),
) -> Result<Vec<Outcome>> {
    let each = commands.iter().map(|(name, line)| {
        let mut command = Command::new("nice");
        command.args(["-n", "19", "sh", "-c", line]);
        let outcome = run(name, command, limit, logs)?;
        done(&outcome);
        Ok(outcome)
    });
    each.collect()
}

fn run(name: &str, mut command: Command, limit: Duration, logs: &Path) -> Result<Outcome> {
    let log = logs.join(format!("{}.txt", name.replace([' ', '/'], "-")));
    let file = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let errors = file.try_clone().context("cannot share a file")?;
    let began = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let status = child.wait_timeout(limit).context("cannot wait for a test program")?;
    if status.is_none() {
        child.kill().context("cannot kill a test program")?;
        child.wait().context("cannot wait for a test program")?;
    }
    let took = began.elapsed();
    let mut output = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    if status.is_none() {
        writeln!(output, "killed: it still ran after {} s", limit.as_secs()).expect("a string takes it");
    }
    let passed = status.is_some_and(|status| status.success());
    Ok(Outcome { name: name.to_owned(), passed, output, took })
}
