//! `cairn-suite [--jobs N] [--built FILE] [--target NAME]... [-- ARGUMENTS]`: builds the tests of
//! the workspace and runs the test programs side by side. ARGUMENTS go to every test program. FILE
//! has cargo's messages of a build that is done: cargo is not asked then, as it may be at other
//! work.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use cairn_suite::{LIMIT, Outcome, Tally, Times, parse, run_all, tally};

/// Programs at a time, for each processor. Most of their tests wait.
const JOBS_PER_PROCESSOR: usize = 2;

struct Options {
    jobs: usize,
    built: Option<PathBuf>,
    /// Names of test targets; empty for all.
    targets: Vec<String>,
    arguments: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let options = options(std::env::args().skip(1))?;
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let logs = Path::new(&target).join("suite");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let messages = match &options.built {
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
        }
        None => build()?,
    };
    let mut programs = parse(&messages);
    if !options.targets.is_empty() {
        let is_wanted =
            |name: &str| options.targets.iter().any(|target| name.ends_with(&format!(" {target}")));
        programs.retain(|program| is_wanted(&program.name));
    }
    if programs.is_empty() {
        bail!("no test program has that name");
    }
    let remembered = logs.join("seconds.json");
    let mut times = Times::load(&remembered);
    let mut outcomes =
        run_all(programs.clone(), &options.arguments, options.jobs, LIMIT, &logs, &mut times, &mut report)?;
    // Tests of servers have limits of time that a crowded machine may miss. A fault of the program
    // shows again when it has the machine for itself.
    programs.retain(|program| outcomes.iter().any(|outcome| !outcome.passed && outcome.name == program.name));
    if !programs.is_empty() && options.jobs > 1 {
        println!("{} failed beside others and run again alone", programs.len());
        outcomes.retain(|outcome| outcome.passed);
        outcomes.extend(run_all(programs, &options.arguments, 1, LIMIT, &logs, &mut times, &mut report)?);
    }
    times.save(&remembered);
    let mut all = Tally::default();
    outcomes.iter().for_each(|outcome| all.add(tally(&outcome.output)));
    let failed: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.passed).map(|outcome| outcome.name.as_str()).collect();
    println!("{} passed, {} failed, {} skipped", all.passed, all.failed, all.ignored);
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
        println!("run one again with: cargo test --package PACKAGE --test TARGET (or --lib)");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn options(mut given: impl Iterator<Item = String>) -> Result<Options> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = processors * JOBS_PER_PROCESSOR;
    let mut options = Options { jobs, built: None, targets: Vec::new(), arguments: Vec::new() };
    while let Some(option) = given.next() {
        match option.as_str() {
            "--jobs" => {
                let jobs = given.next().context("--jobs needs a number")?;
                options.jobs = jobs.parse().with_context(|| format!("--jobs {jobs} is not a number"))?;
            }
            "--built" => options.built = Some(given.next().context("--built needs a file")?.into()),
            "--target" => options.targets.push(given.next().context("--target needs a name")?),
            "--" => options.arguments = given.by_ref().collect(),
            other => bail!(
                "unknown option {other}; usage: cairn-suite [--jobs N] [--built FILE] [--target NAME]... [-- ARGUMENTS]"
            ),
        }
    }
    Ok(options)
}

/// Builds all tests and returns cargo's messages. The checks of the repository's own rules run
/// before, by themselves.
fn build() -> Result<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let built = Command::new(cargo)
        .args(["test", "--locked", "--workspace", "--exclude", "cairn-tidy", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !built.status.success() {
        bail!("the tests do not build");
    }
    String::from_utf8(built.stdout).context("cargo's messages are not UTF-8")
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
