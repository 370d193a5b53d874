//! `cairn trace replay`: replays a trace on a real history, and compares the cost of each placement
//! with the papers' model.

use std::io;
use std::path::Path;
use std::sync::Arc;

use cairn_api::ErrorKind;
use cairn_device::{Device, DeviceError, FileDevice, MemoryDevice};
use cairn_history::{Counters, HistoryError, IoCount, Placement};
use cairn_trace::{Model, Problems, ReplayOptions, Replayed, Survey, TraceError, dirty_blocks, replay};

use crate::arguments::{PlacementName, ReplayTrace};
use crate::commands::image::files::opening;
use crate::exit::Failure;
use crate::output::{Output, size, table};

/// A placement at a granularity.
#[derive(serde::Serialize)]
struct Row {
    placement: &'static str,
    granularity: String,
    requests: u64,
    written_blocks: u64,
    absorbed_blocks: u64,
    retained_blocks: u64,
    base_blocks: u64,
    io_per_block_write: f64,
    io_per_block_write_with_bases: f64,
    model_io_per_block_write: f64,
    model: Model,
    current_reads: Io,
    current_writes: Io,
    history_reads: Io,
    history_writes: Io,
    metadata: Io,
    read_hits: u64,
    read_misses: u64,
    versions: u64,
    index_bytes: u64,
    live_bytes: u64,
    /// The faults of the trace.
    problems: Problems,
}

#[derive(serde::Serialize)]
struct Io {
    blocks: u64,
    operations: u64,
    sequential: u64,
}

impl From<IoCount> for Io {
    fn from(count: IoCount) -> Self {
        Self { blocks: count.blocks, operations: count.operations, sequential: count.sequential }
    }
}

/// Runs it.
pub fn run(asked: &ReplayTrace, output: Output) -> Result<(), Failure> {
    if asked.input.file.as_os_str() == "-" {
        return Err(Failure::new(
            ErrorKind::Usage,
            "a replay reads the trace several times, and standard input comes once",
            "write it to a file first: `cairn trace import - --to FILE`",
        ));
    }
    let placements = match asked.placement.as_slice() {
        [] => Placement::ALL.map(PlacementName).to_vec(),
        some => some.to_vec(),
    };
    let block_bytes = u32::try_from(asked.block.0).unwrap_or(0);
    let mut rows = Vec::new();
    for granularity in &asked.granularity {
        let options = |placement: PlacementName| ReplayOptions {
            placement: placement.0,
            granularity: granularity.0,
            block_bytes,
            dirty_blocks: dirty_blocks(asked.cache.0, asked.block.0.max(1)).max(1),
            read_bytes: asked.read_cache.0,
            memory_max: asked.memory.0,
        };
        let failed = |error| super::failure(error, &asked.input.file);
        let mut reader = super::open(&asked.input)?;
        let survey = Survey::of(&mut reader, &options(placements[0])).map_err(failed)?;
        let problems = reader.problems().clone();
        for placement in &placements {
            let bar = output.count_bar("requests");
            let [origin, store] = devices(asked, &survey)?;
            let mut reader = super::open(&asked.input)?;
            let done = replay(&mut reader, &survey, &options(*placement), origin, store, &mut |requests| {
                bar.set_position(requests)
            });
            bar.finish_and_clear();
            let done = done.map_err(|error| match asked.on.as_deref().filter(|_| is_for_room(&error)) {
                Some(folder) => unmade(folder, ErrorKind::NoSpace, &error),
                None => failed(error),
            });
            let granularity = granularity.to_string();
            rows.push(row(*placement, granularity, &survey.model, done?, problems.clone()));
        }
    }
    output.show(&rows, |rows| {
        let head = [
            "PLACEMENT",
            "GRANULARITY",
            "I/O A WRITE",
            "MODEL",
            "WITH BASES",
            "CURRENT W",
            "CURRENT R",
            "HISTORY W",
            "METADATA",
            "SEQUENTIAL",
            "VERSIONS",
            "HISTORY",
        ];
        let mut text = table(head, rows.iter().map(shown));
        // It is one trace.
        text.push_str(&rows.first().map_or(String::new(), |row| super::problems(&row.problems)));
        text
    });
    Ok(())
}

/// Origin and store: in memory, or files without a name, which vanish when the program ends.
fn devices(asked: &ReplayTrace, survey: &Survey) -> Result<[Arc<dyn Device>; 2], Failure> {
    let Some(folder) = &asked.on else {
        return Ok([
            Arc::new(MemoryDevice::new(survey.origin_bytes)),
            Arc::new(MemoryDevice::new(survey.store_bytes)),
        ]);
    };
    let device = |bytes: u64| -> Result<Arc<dyn Device>, Failure> {
        let opened = |error: io::Error| opening(folder, &error);
        let file = tempfile::NamedTempFile::new_in(folder).map_err(opened)?;
        file.as_file().set_len(bytes).map_err(|error| {
            let what = format!("a file of {} can't be made: {error}", size(bytes));
            unmade(folder, opening(folder, &error).body.error, what)
        })?;
        let device = FileDevice::open(file.path(), Default::default())
            .map_err(|error| Failure::new(ErrorKind::Failed, error, "give another directory with --on"))?;
        Ok(Arc::new(device))
    };
    Ok([device(survey.origin_bytes)?, device(survey.store_bytes)?])
}

/// The devices of a replay find no place in a directory.
fn unmade(folder: &Path, kind: ErrorKind, why: impl std::fmt::Display) -> Failure {
    let next =
        "free space there, or name another directory with --on; without --on, its data is kept in memory";
    Failure::new(kind, format!("{}: {why}", folder.display()), next)
}

/// It failed for lack of room below its devices.
fn is_for_room(error: &TraceError) -> bool {
    match error {
        TraceError::Device { source, .. } => matches!(source, DeviceError::NoSpace { .. }),
        TraceError::History(HistoryError::Device(source)) => matches!(source, DeviceError::NoSpace { .. }),
        TraceError::History(error) => matches!(error, HistoryError::NoRoomBelow { .. }),
        _ => false,
    }
}

fn row(
    placement: PlacementName,
    granularity: String,
    model: &Model,
    done: Replayed,
    problems: Problems,
) -> Row {
    let counters: Counters = done.counters;
    Row {
        placement: placement.name(),
        granularity,
        requests: done.requests,
        written_blocks: counters.written_blocks,
        absorbed_blocks: counters.absorbed_blocks,
        retained_blocks: counters.retained_blocks,
        base_blocks: counters.base_blocks,
        io_per_block_write: counters.io_per_write(true),
        io_per_block_write_with_bases: counters.io_per_write(false),
        model_io_per_block_write: model.io(placement.0),
        model: *model,
        current_reads: counters.current_reads.into(),
        current_writes: counters.current_writes.into(),
        history_reads: counters.history_reads.into(),
        history_writes: counters.history_writes.into(),
        metadata: counters.metadata.into(),
        read_hits: counters.read_hits,
        read_misses: counters.read_misses,
        versions: done.versions,
        index_bytes: done.index_bytes,
        live_bytes: done.live_bytes,
        problems,
    }
}

fn shown(row: &Row) -> [String; 12] {
    let operations =
        row.current_reads.operations + row.current_writes.operations + row.history_writes.operations;
    let sequential =
        row.current_reads.sequential + row.current_writes.sequential + row.history_writes.sequential;
    [
        row.placement.to_owned(),
        row.granularity.clone(),
        format!("{:.3}", row.io_per_block_write),
        format!("{:.3}", row.model_io_per_block_write),
        format!("{:.3}", row.io_per_block_write_with_bases),
        row.current_writes.blocks.to_string(),
        row.current_reads.blocks.to_string(),
        row.history_writes.blocks.to_string(),
        row.metadata.blocks.to_string(),
        format!("{} of {}", sequential, operations),
        row.versions.to_string(),
        size(row.live_bytes),
    ]
}
