//! `cairn trace generate`: the workloads of the papers as traces.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};

use cairn_server::api::ErrorKind;
use cairn_trace::{IoMeter, PostMark, Spc1, TraceError, TraceHeader, TraceRecord, TraceWriter};

use crate::arguments::{GenerateTrace, Workload};
use crate::exit::Failure;
use crate::output::{Output, size};

/// What was made.
#[derive(serde::Serialize)]
struct Generated {
    file: String,
    requests: u64,
    duration_s: f64,
    bytes: u64,
}

/// Runs it.
pub fn run(asked: &GenerateTrace, output: Output) -> Result<(), Failure> {
    let usage = |message: &str, next: &str| Failure::new(ErrorKind::Usage, message, next);
    let (devices, requests) = workload(asked)?;
    let to_pipe = asked.to.as_os_str() == "-";
    if to_pipe && std::io::stdout().is_terminal() {
        return Err(usage(
            "a trace is not written to a terminal",
            "name a file with --to FILE, or pipe it on: `cairn trace generate spc1 | cairn trace analyse -`",
        ));
    }
    let sink: Box<dyn Write> = if to_pipe {
        Box::new(std::io::stdout().lock())
    } else {
        let mut options = File::options();
        options.write(true).create(asked.overwrite).truncate(asked.overwrite).create_new(!asked.overwrite);
        let file = options.open(&asked.to).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::new(
                ErrorKind::Taken,
                format!("{} is there already", asked.to.display()),
                "give another name, or --overwrite",
            ),
            _ => Failure::from(error),
        })?;
        Box::new(file)
    };
    let failed = |error: TraceError| super::failure(error, &asked.to);
    let bar = output.count_bar("requests");
    let mut writer = TraceWriter::new(BufWriter::new(sink), &TraceHeader::default(), true).map_err(failed)?;
    for name in devices {
        writer.device(name).map_err(failed)?;
    }
    let mut last_ns = 0;
    for record in requests {
        if let Err(error) = writer.push(&record) {
            return broken_pipe_is_an_end(error, to_pipe).map_err(failed);
        }
        last_ns = record.at_ns;
        if writer.records().is_multiple_of(1 << 16) {
            bar.set_position(writer.records());
        }
    }
    bar.finish_and_clear();
    let requests = writer.records();
    if let Err(error) = writer.finish() {
        return broken_pipe_is_an_end(error, to_pipe).map_err(failed);
    }
    if to_pipe {
        return Ok(());
    }
    let bytes = std::fs::metadata(&asked.to)?.len();
    let made =
        Generated { file: asked.to.display().to_string(), requests, duration_s: last_ns as f64 / 1e9, bytes };
    output.tell(&made, |made| {
        format!(
            "{} requests over {:.0} s: {} in {}",
            made.requests,
            made.duration_s,
            size(made.bytes),
            made.file
        )
    });
    Ok(())
}

/// A reader that has seen enough is no failure.
fn broken_pipe_is_an_end(error: TraceError, to_pipe: bool) -> Result<(), TraceError> {
    match error {
        TraceError::Io(error) if to_pipe && error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        error => Err(error),
    }
}

type Requests = Box<dyn Iterator<Item = TraceRecord>>;

fn workload(asked: &GenerateTrace) -> Result<(&'static [&'static str], Requests), Failure> {
    let refuse = |message: &str| {
        Err(Failure::new(ErrorKind::Usage, message, "put it right and run the command again"))
    };
    Ok(match &asked.workload {
        Workload::Spc1 { bsu, size, time, with_log } => {
            if *bsu == 0 || *bsu > 100_000 || size.0 < 64 << 20 || size.0 > 1 << 50 {
                return refuse("SPC-1-like takes 1 to 100000 BSU on 64 MiB to 1 PiB");
            }
            let requests = Spc1::new(*bsu, size.0, time.0.as_secs_f64(), *with_log, asked.seed);
            (&Spc1::DEVICES, Box::new(requests))
        }
        Workload::Iometer { size, length, reads, rate, time } => {
            if length.0 == 0 || length.0 > 1 << 26 || size.0 < length.0 || size.0 > 1 << 50 || *rate == 0 {
                return refuse(
                    "IoMeter takes requests of 1 B to 64 MiB, at least one a second, on a disk of up to 1 PiB",
                );
            }
            let share = f64::from(*reads) / 100.0;
            let seconds = time.0.as_secs_f64();
            let requests = IoMeter::new(size.0, length.0, share, f64::from(*rate), seconds, asked.seed);
            (&["disk"], Box::new(requests))
        }
        Workload::Postmark { files, transactions, rate } => {
            if *rate == 0 || *files > 10_000_000 || *transactions > 100_000_000 || files + transactions == 0 {
                return refuse(
                    "PostMark takes up to 10000000 files and 100000000 transactions, at least one a second",
                );
            }
            (&["disk"], Box::new(PostMark::new(*files, *transactions, f64::from(*rate), asked.seed)))
        }
    })
}
