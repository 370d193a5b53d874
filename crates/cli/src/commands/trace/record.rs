//! `cairn trace record`: the requests of clients to an export of a running server, as a trace.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use crate::arguments::RecordTrace;
use crate::commands::volume::absolute_path;
use crate::exit::Failure;
use crate::instant::show;
use crate::output::{Output, duration, size, table};

/// Runs it.
pub fn run(asked: &RecordTrace, client: &Client, output: Output) -> Result<(), Failure> {
    let Some(export) = &asked.export else { return list(client, output) };
    if asked.stop {
        let path = format!("/v1/recordings/{}", super::escaped(export));
        let recording: api::Recording = client.delete(&path)?;
        output.tell(&recording, |recording| {
            format!(
                "{} requests of {} over {} are in {} ({}): {}",
                recording.requests,
                recording.export,
                duration(recording.elapsed_ms),
                recording.file,
                size(recording.bytes),
                recording.end.as_deref().unwrap_or("running"),
            )
        });
        return Ok(());
    }
    let Some(file) = &asked.to else {
        return Err(Failure::new(
            ErrorKind::Usage,
            format!("no file is given for the trace of {export}"),
            "give --to FILE to begin, or --stop to end a recording",
        ));
    };
    let request = api::RecordExport {
        export: export.clone(),
        file: absolute_path(file)?,
        bytes_max: asked.max.map(|size| size.0),
        time_max_ms: asked.time.map(|time| time.0.as_millis() as u64),
        plain: asked.plain,
    };
    let recording: api::Recording = client.post("/v1/recordings", &request)?;
    output.tell(&recording, |recording| {
        let until = match recording.time_max_ms {
            Some(time) => format!("for {}", duration(time)),
            None => format!("until `cairn trace record {} --stop`", recording.export),
        };
        format!(
            "{} is recorded into {} {until}, {} at most",
            recording.export,
            recording.file,
            size(recording.bytes_max)
        )
    });
    Ok(())
}

/// Shows the recordings.
pub fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let recordings: Vec<api::Recording> = client.get("/v1/recordings")?;
    output.show(&recordings, |recordings| page(recordings));
    Ok(())
}

fn page(recordings: &[api::Recording]) -> String {
    let row = |recording: &api::Recording| {
        [
            recording.export.clone(),
            show(recording.began_ms * 1_000_000),
            duration(recording.elapsed_ms),
            recording.requests.to_string(),
            format!("{} of {}", size(recording.bytes), size(recording.bytes_max)),
            recording.end.clone().unwrap_or_else(|| "running".to_owned()),
            recording.file.clone(),
        ]
    };
    table(["EXPORT", "BEGAN", "FOR", "REQUESTS", "BYTES", "STATE", "FILE"], recordings.iter().map(row))
}
