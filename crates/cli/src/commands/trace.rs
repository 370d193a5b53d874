//! `cairn trace`: traces in files. Only recording needs a server.

mod analyse;
mod generate;
mod plan;
mod record;
mod replay;

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cairn_api::ErrorKind;
use cairn_api::client::Client;
use cairn_trace::{Problems, ReadOptions, TraceError, TraceHeader, TraceReader, TraceWriter};
use tempfile::NamedTempFile;

use super::image::files::opening;
use crate::arguments::{ImportTrace, PlanTrace, RecordTrace, Trace, TraceInput};
use crate::exit::Failure;
use crate::output::{Output, size};

/// Runs a command.
pub fn run(command: Trace, output: Output) -> Result<(), Failure> {
    match command {
        Trace::List => unreachable!("it needs a server and was run with one"),
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

/// Lists the recordings that run.
pub fn list_recordings(client: &Client, output: Output) -> Result<(), Failure> {
    record::list(client, output)
}

/// Runs `cairn plan` for a trace.
pub fn run_plan(asked: &PlanTrace, output: Output) -> Result<(), Failure> {
    plan::run(asked, output)
}

/// Runs `cairn plan` for the volumes of a server.
pub fn run_live_plan(asked: &PlanTrace, client: &Client, output: Output) -> Result<(), Failure> {
    plan::run_live(asked, client, output)
}

/// The result of an import.
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

/// The destination of a new trace. A file has its name when it is whole and on its medium. A pipe
/// or a device such as `/dev/null` gets the bytes at once.
struct Made {
    to: PathBuf,
    /// Until it has its name.
    temporary: Option<NamedTempFile>,
    file: File,
}

impl Made {
    fn begin(to: &Path, overwrite: bool) -> Result<Self, Failure> {
        let failed = |error: &io::Error| unwritable(to, error);
        let existing = to.metadata().ok();
        if existing.as_ref().is_some_and(|found| !found.is_file()) {
            let file = File::options().write(true).open(to).map_err(|error| failed(&error))?;
            return Ok(Self { to: to.to_owned(), temporary: None, file });
        }
        if existing.is_some() && !overwrite {
            return Err(Failure::new(
                ErrorKind::Taken,
                format!("{} is there already", to.display()),
                "give another name, or --overwrite",
            ));
        }
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        // The trace reveals the times and the uses of a user's disk.
        builder.permissions(Permissions::from_mode(0o600));
        let temporary = builder.tempfile_in(folder).map_err(|error| failed(&error))?;
        let file = temporary.as_file().try_clone().map_err(|error| failed(&error))?;
        Ok(Self { to: to.to_owned(), temporary: Some(temporary), file })
    }

    /// All of it was written.
    fn keep(self) -> Result<(), Failure> {
        let Some(temporary) = self.temporary else { return Ok(()) };
        let kept = self.file.sync_all().and_then(|()| Ok(temporary.persist(&self.to)?));
        kept.map(drop).map_err(|error| unwritable(&self.to, &error))
    }

    /// The failure at its destination.
    fn failed(&self, error: TraceError) -> Failure {
        match error {
            TraceError::Io(error) => unwritable(&self.to, &error),
            error => failure(error, &self.to),
        }
    }
}

fn unwritable(to: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Failure::new(
            ErrorKind::NoSpace,
            format!("{} can't be written: {error}", to.display()),
            "free space there, or name another place with --to",
        ),
        _ => opening(to, error),
    }
}

/// Counts the bytes that pass.
struct Counted<W> {
    output: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

fn import(asked: &ImportTrace, output: Output) -> Result<(), Failure> {
    let mut reader = open(&asked.input)?;
    let made = Made::begin(&asked.to, asked.overwrite)?;
    let unwritten = |error| made.failed(error);
    let failed = |error| failure(error, &asked.input.file);
    let first = reader.next().map_err(failed)?.ok_or(TraceError::Empty).map_err(failed)?;
    let header = TraceHeader { began_ns: reader.began_ns() };
    let bar = output.count_bar("requests");
    let sink = Counted { output: BufWriter::new(&made.file), bytes: 0 };
    let mut writer = TraceWriter::new(sink, &header, !asked.plain).map_err(unwritten)?;
    let mut named = 0;
    let mut next = Some(first);
    let mut last_ns = 0;
    while let Some(record) = next {
        for name in &reader.devices()[named..] {
            writer.device(name).map_err(unwritten)?;
        }
        named = reader.devices().len();
        writer.push(&record).map_err(unwritten)?;
        last_ns = record.at_ns;
        if writer.records().is_multiple_of(1 << 16) {
            bar.set_position(writer.records());
        }
        next = reader.next().map_err(failed)?;
    }
    bar.finish_and_clear();
    let requests = writer.records();
    let bytes = writer.finish().map_err(unwritten)?.bytes;
    made.keep()?;
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

/// A name as a part of a path of the API, whatever it has in it.
fn escaped(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~@".contains(&byte);
    let escape =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(escape).collect()
}

/// The fault of a trace, and the next step.
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
        TraceError::Refused { .. } => (ErrorKind::Usage, "correct it and run the command again"),
        TraceError::Device { .. } | TraceError::History(_) => {
            (ErrorKind::Failed, "check the device that the message names, and run it again")
        }
    };
    Failure::new(kind, format!("{}: {error}", file.display()), next)
}

/// Problems as lines after a sentence; nothing where there are none.
fn problems(problems: &Problems) -> String {
    if problems.count == 0 {
        return String::new();
    }
    let mut text = format!("\n{} line(s) or record(s) are not requests and were skipped:", problems.count);
    for (kind, count) in &problems.kinds {
        text.push_str(&format!("\n  {count} x {kind}"));
    }
    for shown in &problems.shown {
        text.push_str(&format!("\n  line {}: {}: {}", shown.line, shown.problem, shown.text));
    }
    text
}
