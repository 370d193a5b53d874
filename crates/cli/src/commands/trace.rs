//! `cairn trace`: traces in files. Only recording needs a server.

mod analyse;
mod generate;
mod plan;
mod record;
mod replay;

use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::Path;

use cairn_server::api::ErrorKind;
use cairn_trace::{Problems, ReadOptions, TraceError, TraceHeader, TraceReader, TraceWriter};

use crate::arguments::{ImportTrace, PlanTrace, RecordTrace, Trace, TraceInput};
use crate::client::Client;
use crate::exit::Failure;
use crate::output::{Output, size};

/// Runs a command.
pub fn run(command: Trace, output: Output) -> Result<(), Failure> {
    match command {
        Trace::Record(_) => unreachable!("it talks to a server, and was run there"),
        Trace::Import(asked) => import(&asked, output),
        Trace::Analyse(asked) => analyse::run(&asked, output),
        Trace::Replay(asked) => replay::run(&asked, output),
        Trace::Generate(asked) => generate::run(&asked, output),
    }
}

/// Records an export of a server.
pub fn run_record(asked: &RecordTrace, client: &Client, output: Output) -> Result<(), Failure> {
    record::run(asked, client, output)
}

/// Runs `cairn plan` for a trace.
pub fn run_plan(asked: &PlanTrace, output: Output) -> Result<(), Failure> {
    plan::run(asked, output)
}

/// Runs `cairn plan` for what a server serves.
pub fn run_live_plan(asked: &PlanTrace, client: &Client, output: Output) -> Result<(), Failure> {
    plan::run_live(asked, client, output)
}

/// What an import did.
#[derive(serde::Serialize)]
struct Imported {
    file: String,
    format: &'static str,
    compression: &'static str,
    requests: u64,
    devices: Vec<String>,
    duration_s: f64,
    bytes: u64,
    problems: Problems,
}

fn import(asked: &ImportTrace, output: Output) -> Result<(), Failure> {
    if asked.to.exists() && !asked.overwrite {
        return Err(Failure::new(
            ErrorKind::Taken,
            format!("{} is there already", asked.to.display()),
            "give another name, or --overwrite",
        ));
    }
    let mut reader = open(&asked.input)?;
    let folder = asked.to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    let failed = |error| failure(error, &asked.input.file);
    let first = reader.next().map_err(failed)?.ok_or(TraceError::Empty).map_err(failed)?;
    let header = TraceHeader { began_ns: reader.began_ns() };
    let bar = output.count_bar("requests");
    let mut writer =
        TraceWriter::new(BufWriter::new(file.as_file()), &header, !asked.plain).map_err(failed)?;
    let mut named = 0;
    let mut next = Some(first);
    let mut last_ns = 0;
    while let Some(record) = next {
        for name in &reader.devices()[named..] {
            writer.device(name).map_err(failed)?;
        }
        named = reader.devices().len();
        writer.push(&record).map_err(failed)?;
        last_ns = record.at_ns;
        if writer.records().is_multiple_of(1 << 16) {
            bar.set_position(writer.records());
        }
        next = reader.next().map_err(failed)?;
    }
    bar.finish_and_clear();
    let requests = writer.records();
    let written = writer.finish().map_err(failed)?;
    written.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    let bytes = file.as_file().metadata()?.len();
    file.persist(&asked.to).map_err(|error| error.error)?;
    let imported = Imported {
        file: asked.to.display().to_string(),
        format: reader.format().name(),
        compression: reader.compression(),
        requests,
        devices: reader.devices().to_vec(),
        duration_s: last_ns as f64 / 1e9,
        bytes,
        problems: reader.problems().clone(),
    };
    output.tell(&imported, |imported| {
        format!(
            "{} requests on {} device(s) over {:.0} s, read as {}: {} in {}{}",
            imported.requests,
            imported.devices.len(),
            imported.duration_s,
            imported.format,
            size(imported.bytes),
            imported.file,
            problems(&imported.problems),
        )
    });
    Ok(())
}

/// Opens a trace.
fn open(input: &TraceInput) -> Result<TraceReader, Failure> {
    let options = ReadOptions { format: input.format, action: input.action };
    let source: Box<dyn Read + Send> = if input.file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        let file = File::open(&input.file).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Failed,
            };
            Failure::new(kind, format!("{}: {error}", input.file.display()), "check the name of the trace")
        })?;
        Box::new(file)
    };
    TraceReader::open(source, &options).map_err(|error| failure(error, &input.file))
}

/// What is wrong with a trace, and what to do next.
fn failure(error: TraceError, file: &Path) -> Failure {
    let (kind, next) = match &error {
        TraceError::Io(_) => (ErrorKind::Failed, "see whether the file is whole, and readable to its end"),
        TraceError::UnknownFormat => {
            (ErrorKind::Usage, "name it with --format; for blkparse try --action D or --action C as well")
        }
        TraceError::Header(_) => (ErrorKind::Damaged, "import the trace again from where it came"),
        TraceError::Empty => {
            (ErrorKind::Usage, "check the format; for blkparse try --action D or --action C")
        }
        TraceError::Memory { .. } => {
            (ErrorKind::NoSpace, "give more with --memory, or analyse a part of the trace")
        }
        TraceError::Refused { .. } => (ErrorKind::Usage, "put it right and run the command again"),
        TraceError::Device { .. } | TraceError::History(_) => {
            (ErrorKind::Failed, "see what the message says of the device, and run it again")
        }
    };
    Failure::new(kind, format!("{}: {error}", file.display()), next)
}

/// Problems as lines after a sentence; nothing where there are none.
fn problems(problems: &Problems) -> String {
    if problems.count == 0 {
        return String::new();
    }
    let mut text = format!("\n{} line(s) or record(s) are no requests and were left out:", problems.count);
    for (kind, count) in &problems.kinds {
        text.push_str(&format!("\n  {count} x {kind}"));
    }
    for shown in &problems.shown {
        text.push_str(&format!("\n  line {}: {}: {}", shown.line, shown.problem, shown.text));
    }
    text
}
