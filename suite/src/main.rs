//! `cairn-suite [--jobs N] [--target NAME]... [--beside NAME=COMMAND]... [-- ARGUMENTS]`: builds
//! the tests of the workspace and runs the test programs side by side. ARGUMENTS go to every test
//! program. Each COMMAND is a line for the shell that runs after the build, beside the tests.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_suite::{Built, LIMIT, Outcome, Program, Queue, Tally, Times, parse, run_all, run_beside, tally};

/// Programs at a time, for each processor. Most of their tests wait.
const JOBS_PER_PROCESSOR: usize = 2;

/// When a command beside the tests counts as stuck. Tests come first, so it waits for most of the
/// time.
const BESIDE_LIMIT: Duration = Duration::from_secs(1800);

struct Options {
    jobs: usize,
    /// Names of test targets; empty for all.
    targets: Vec<String>,
    /// Commands beside the tests: name and line.
    beside: Vec<(String, String)>,
    arguments: Vec<String>,
}

impl Options {
    fn wants(&self, program: &Program) -> bool {
        let is_named = |target: &String| program.name.ends_with(&format!(" {target}"));
        self.targets.is_empty() || self.targets.iter().any(is_named)
    }
}

fn main() -> Result<ExitCode> {
    let options = options(std::env::args().skip(1))?;
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let logs = Path::new(&target).join("suite");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let remembered = logs.join("seconds.json");
    let mut times = Times::load(&remembered);
    let (programs, mut outcomes) = build_and_run(&options, &logs, times.clone())?;
    if programs.is_empty() {
        bail!("no test program has that name");
    }
    // Tests of servers have limits of time that a crowded machine may miss. A fault of the program
    // shows again when it has the machine for itself.
    let failed =
        |program: &Program| outcomes.iter().any(|outcome| !outcome.passed && outcome.name == program.name);
    let again: Vec<Program> = programs.into_iter().filter(failed).collect();
    if !again.is_empty() && options.jobs > 1 {
        println!("{} failed beside others and run again alone", again.len());
        outcomes.retain(|outcome| again.iter().all(|program| program.name != outcome.name));
        let queue = Queue::of(again, times.clone());
        outcomes.extend(run_all(&queue, &options.arguments, 1, LIMIT, &logs, &report)?);
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.passed) {
        times.note(&outcome.name, outcome.took.as_secs());
    }
    times.save(&remembered);
    Ok(conclude(&outcomes))
}

/// Runs programs while cargo still builds others. Returns all programs, and how they ended.
fn build_and_run(options: &Options, logs: &Path, times: Times) -> Result<(Vec<Program>, Vec<Outcome>)> {
    let queue = Queue::open(times);
    std::thread::scope(|scope| {
        let built = scope.spawn(|| {
            let built = build(options, &queue);
            // Also after a failure: the jobs wait for more programs until then.
            queue.close();
            let programs = built?;
            Ok((programs, run_beside(&options.beside, BESIDE_LIMIT, logs, &report)?))
        });
        let mut outcomes = run_all(&queue, &options.arguments, options.jobs, LIMIT, logs, &report)?;
        let built: Result<_> = built.join().expect("the build does not panic");
        let (programs, beside) = built?;
        outcomes.extend(beside);
        Ok((programs, outcomes))
    })
}

/// Builds the tests, and adds each program to `queue` as soon as it can run. The checks of the
/// repository's own rules run before, by themselves.
fn build(options: &Options, queue: &Queue) -> Result<Vec<Program>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut build = Command::new(cargo)
        .args(["test", "--locked", "--quiet", "--workspace", "--exclude", "cairn-tidy", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let messages = build.stdout.take().expect("its output is a pipe");
    let (mut programs, mut later) = (Vec::new(), Vec::new());
    let mut has_cairn = false;
    for line in BufReader::new(messages).lines() {
        match parse(&line.context("cannot read cargo's messages")?) {
            Some(Built::Cairn) => {
                has_cairn = true;
                later.drain(..).for_each(|program| queue.add(program));
            }
            Some(Built::Test(program)) if options.wants(&program) => {
                programs.push(program.clone());
                match program.runs_cairn && !has_cairn {
                    true => later.push(program),
                    false => queue.add(program),
                }
            }
            _ => {}
        }
    }
    if !build.wait().context("cannot wait for cargo")?.success() {
        bail!("the tests do not build");
    }
    println!("the build is complete");
    later.into_iter().for_each(|program| queue.add(program));
    Ok(programs)
}

fn options(mut given: impl Iterator<Item = String>) -> Result<Options> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = processors * JOBS_PER_PROCESSOR;
    let mut options = Options { jobs, targets: Vec::new(), beside: Vec::new(), arguments: Vec::new() };
    while let Some(option) = given.next() {
        match option.as_str() {
            "--jobs" => {
                let jobs = given.next().context("--jobs needs a number")?;
                options.jobs = jobs.parse().with_context(|| format!("--jobs {jobs} is not a number"))?;
            }
            "--target" => options.targets.push(given.next().context("--target needs a name")?),
            "--beside" => {
                let given = given.next().context("--beside needs NAME=COMMAND")?;
                let (name, line) = given.split_once('=').context("--beside needs NAME=COMMAND")?;
                options.beside.push((name.to_owned(), line.to_owned()));
            }
            "--" => options.arguments = given.by_ref().collect(),
            other => bail!(
                "unknown option {other}; usage: cairn-suite [--jobs N] [--target NAME]... \
                 [--beside NAME=COMMAND]... [-- ARGUMENTS]"
            ),
        }
    }
    Ok(options)
}

fn conclude(outcomes: &[Outcome]) -> ExitCode {
    let mut all = Tally::default();
    outcomes.iter().for_each(|outcome| all.add(tally(&outcome.output)));
    println!("{} passed, {} failed, {} skipped", all.passed, all.failed, all.ignored);
    let failed: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.passed).map(|outcome| outcome.name.as_str()).collect();
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {}", failed.join(", "));
    println!("run one test program again with: cargo test --package PACKAGE --test TARGET (or --lib)");
    ExitCode::FAILURE
}

fn report(outcome: &Outcome) {
    let counted = tally(&outcome.output);
    let word = if outcome.passed { "ok    " } else { "FAILED" };
    println!(
        "{word} {:>6.1} s  {}: {} passed, {} failed",
        outcome.took.as_secs_f64(),
        outcome.name,
        counted.passed,
        counted.failed
    );
    if !outcome.passed {
        println!("{}", outcome.output);
    }
}
