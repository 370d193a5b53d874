//! Several programs at a time, each with a file for all that it prints.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

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
/// ended. Programs are started in the order of [`Times::sort`], the slowest first.
///
/// # Errors
/// A program that can't be started, or a file for its output that can't be made.
pub fn run_all(
    mut programs: Vec<Program>,
    arguments: &[String],
    jobs: usize,
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
                let outcome = run(&program, arguments, logs)?;
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

fn run(program: &Program, arguments: &[String], logs: &Path) -> Result<Outcome> {
    let log = logs.join(format!("{}.txt", program.name.replace([' ', '/'], "-")));
    let file = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let errors = file.try_clone().context("cannot share a file")?;
    let began = Instant::now();
    let status = Command::new(&program.executable)
        .args(arguments)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .status()
        .with_context(|| format!("cannot run {}", program.executable.display()))?;
    let took = began.elapsed();
    let output = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    Ok(Outcome { name: program.name.clone(), passed: status.success(), output, took })
}
