//! `cairn trace generate`: the workloads of the papers as traces.

use std::io::{BufWriter, IsTerminal, Write};

use cairn_api::ErrorKind;
use cairn_trace::{IoMeter, PostMark, Spc1, TraceError, TraceHeader, TraceRecord, TraceWriter};

use super::{Counted, Made};
use crate::arguments::{GenerateTrace, Workload};
use crate::exit::Failure;
use crate::output::{Output, size, unwritten};

/// The generated trace.
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
    let made = if to_pipe { None } else { Some(Made::begin(&asked.to, asked.overwrite)?) };
    let output_to: Box<dyn Write + '_> = match &made {
        Some(made) => Box::new(&made.file),
        None => Box::new(std::io::stdout().lock()),
    };
    // A reader that closes the pipe early is not a failure.
    let ended = |error: TraceError| match (&made, error) {
        (Some(made), error) => Err(made.failed(error)),
        (None, TraceError::Io(error)) => unwritten(error).map_or(Ok(()), Err),
        (None, error) => Err(super::failure(error, &asked.to)),
    };
    let bar = output.count_bar("requests");
    let sink = Counted { output: BufWriter::new(output_to), bytes: 0 };
    let mut writer = match TraceWriter::new(sink, &TraceHeader::default(), true) {
        Ok(writer) => writer,
        Err(error) => return ended(error),
    };
    for name in devices {
        if let Err(error) = writer.device(name) {
            return ended(error);
        }
    }
    let mut last_ns = 0;
    for record in requests {
        if let Err(error) = writer.push(&record) {
            return ended(error);
        }
        last_ns = record.at_ns;
        if writer.records().is_multiple_of(1 << 16) {
            bar.set_position(writer.records());
        }
    }
    bar.finish_and_clear();
    let requests = writer.records();
    let bytes = match writer.finish() {
        Ok(sink) => sink.bytes,
        Err(error) => return ended(error),
    };
    let Some(made) = made else { return Ok(()) };
    made.keep()?;
    let generated =
        Generated { file: asked.to.display().to_string(), requests, duration_s: last_ns as f64 / 1e9, bytes };
    output.tell(&generated, |generated| {
        format!(
            "{} requests over {:.0} s: {} in {}",
            generated.requests,
            generated.duration_s,
            size(generated.bytes),
            generated.file
        )
    });
    Ok(())
}

type Requests = Box<dyn Iterator<Item = TraceRecord>>;

fn workload(asked: &GenerateTrace) -> Result<(&'static [&'static str], Requests), Failure> {
    let refuse =
        |message: &str| Err(Failure::new(ErrorKind::Usage, message, "correct it and run the command again"));
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
