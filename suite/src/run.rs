//! Several programs at a time, each with a file for all that it prints.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use wait_timeout::ChildExt;

use crate::{Program, Times};

/// One program that has run.
#[derive(Debug)]
pub struct Outcome {
    /// [`Program::name`].
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

/// Runs all programs with `arguments`, `jobs` at a time, and reports each to `done` when it has
/// ended. Programs are started in the order of [`Times::sort`], the slowest first. A program that
/// runs longer than `limit` is killed and has failed.
///
/// # Errors
/// A program that can't be started, or a file for its output that can't be made.
pub fn run_all(
    mut programs: Vec<Program>,
    arguments: &[String],
    jobs: usize,
    limit: Duration,
    logs: &Path,
    times: &mut Times,
    done: &mut (dyn FnMut(&Outcome) + Send),
) -> Result<Vec<Outcome>> {
    times.sort(&mut programs);
    let queue = Mutex::new(programs);
    let ended = Mutex::new((Vec::new(), done));
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let next = queue.lock().expect("no job panics").pop();
                let Some(program) = next else { return Ok(()) };
                let outcome = run(&program, arguments, limit, logs)?;
                let mut ended = ended.lock().expect("no job panics");
                (ended.1)(&outcome);
                ended.0.push(outcome);
            }
        };
        let jobs: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        jobs.into_iter().try_for_each(|job| job.join().expect("a job does not panic"))
    })?;
    let (outcomes, _) = ended.into_inner().expect("no job panics");
    for outcome in outcomes.iter().filter(|outcome| outcome.passed) {
        times.note(&outcome.name, outcome.took.as_secs());
    }
    Ok(outcomes)
}

fn run(program: &Program, arguments: &[String], limit: Duration, logs: &Path) -> Result<Outcome> {
    let log = logs.join(format!("{}.txt", program.name.replace([' ', '/'], "-")));
    let file = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let errors = file.try_clone().context("cannot share a file")?;
    let began = Instant::now();
    let mut child = Command::new(&program.executable)
        .args(arguments)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .spawn()
        .with_context(|| format!("cannot run {}", program.executable.display()))?;
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
    Ok(Outcome { name: program.name.clone(), passed, output, took })
}
