//! Measurements of the engine alone: finding the changed blocks of a large sparse volume, opening
//! it after a crash, and thousands of snapshots without a program's start in each figure.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use cairn_base::{BLOCK_SIZE, FileId, Lba, Rng, SnapshotId, VolumeId};
use cairn_device::{Block, BlockMut, FileDevice, FileOptions, SystemClock};
use cairn_format::FileKind;
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume};

use crate::Plan;
use crate::report::{Report, Target, median};

/// Blocks in one stretch of changes: 1 MiB.
const CLUSTER_BLOCKS: u64 = 256;
/// The default of the server.
const CACHE_BYTES: u64 = 256 << 20;

/// A volume in a sparse file with one large file, and a thread that does its background work.
pub(crate) struct Bench {
    volume: Arc<Volume>,
    file: FileId,
    stop: Arc<AtomicBool>,
    background: Option<std::thread::JoinHandle<()>>,
}

impl Bench {
    /// A new volume of `bytes` whose file has half of that.
    pub(crate) fn create(path: &Path, bytes: u64) -> Result<Self> {
        let blocks = bytes / BLOCK_SIZE as u64;
        let device = FileDevice::create(path, Volume::device_bytes(blocks, Role::Normal))?;
        let options = FormatOptions { id: VolumeId([7; 16]), blocks, role: Role::Normal };
        Volume::format(&device, &options, &SystemClock::new())?;
        // Releases the file's lock.
        drop(device);
        let mut bench = Self::open(path, FileId(0))?;
        bench.file = bench.volume.compound().create(FileKind::Lun, bytes / 2)?;
        bench.volume.consistency_point()?;
        Ok(bench)
    }

    /// The volume on the device, with the file that it was made with.
    fn open(path: &Path, file: FileId) -> Result<Self> {
        let device = Arc::new(FileDevice::open(path, FileOptions::default())?);
        let options = OpenOptions { cache_bytes: CACHE_BYTES, clock: Arc::new(SystemClock::new()) };
        let volume = Volume::open(device, options)?;
        let stop = Arc::new(AtomicBool::new(false));
        let background = std::thread::spawn({
            let (volume, stop) = (volume.clone(), stop.clone());
            move || {
                while !stop.load(Ordering::Relaxed) && volume.background(Duration::from_millis(50)).is_ok() {}
            }
        });
        Ok(Self { volume, file, stop, background: Some(background) })
    }

    /// The volume on the device, for callers that need no LUN.
    pub(crate) fn reopen(path: &Path) -> Result<Self> {
        Self::open(path, FileId(0))
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Writes `count` blocks from `lba`, each unlike any other.
    fn write(&self, lba: u64, count: u64, rng: &mut Rng) -> Result<()> {
        let blocks: Vec<(Lba, Block)> = (lba..lba + count).map(|lba| (Lba(lba), block(rng))).collect();
        Ok(self.volume.write(self.file, &mut blocks.into_iter())?)
    }

    /// Drops everything in memory, as a kill would; the device's content stays.
    fn crash(mut self) {
        self.end_background();
    }

    fn end_background(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.background.take() {
            // A panic in it has been printed, and the figures that follow fail.
            let _ = thread.join();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.end_background();
    }
}

/// A unique block: eight random bytes, the rest zeroes.
fn block(rng: &mut Rng) -> Block {
    let mut block = BlockMut::zeroed();
    block[..8].copy_from_slice(&(rng.next() | 1).to_le_bytes());
    block.freeze()
}

fn milliseconds<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let outcome = work()?;
    Ok((outcome, start.elapsed().as_secs_f64() * 1e3))
}

/// Changed blocks of a sparse 1 TiB with 1 % changed in clusters, from a cold start and again;
/// nothing changed.
pub(crate) fn changed_blocks(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    let bytes: u64 = if plan.quick { 8 << 30 } else { 1 << 40 };
    let clusters = bytes / 100 / CLUSTER_BLOCKS / BLOCK_SIZE as u64;
    let path = plan.folder.join("changed.img");
    let bench = Bench::create(&path, bytes)?;
    let mut rng = Rng::new(1);
    let places = bytes / 2 / CLUSTER_BLOCKS / BLOCK_SIZE as u64;
    for _ in 0..clusters / 10 {
        bench.write(rng.below(places) * CLUSTER_BLOCKS, CLUSTER_BLOCKS, &mut rng)?;
    }
    let base = bench.volume.create_snapshot("base")?.id;
    let same = bench.volume.create_snapshot("same")?.id;
    for _ in 0..clusters {
        bench.write(rng.below(places) * CLUSTER_BLOCKS, CLUSTER_BLOCKS, &mut rng)?;
    }
    let target = bench.volume.create_snapshot("target")?.id;
    let file = bench.file;
    bench.volume.close()?;
    drop(bench);

    let (mut cold, mut warm, mut nothing) = (Vec::new(), Vec::new(), Vec::new());
    let mut found = 0;
    for _ in 0..plan.rounds() {
        let bench = Bench::open(&path, file)?;
        let find = |base: SnapshotId, target: SnapshotId| {
            milliseconds(|| Ok(bench.volume.changed_blocks(&[base], target)?.blocks))
        };
        let (blocks, time) = find(base, target)?;
        found = blocks;
        cold.push(time);
        warm.push(find(base, target)?.1);
        nothing.push(find(base, same)?.1);
    }
    let size = if plan.quick { "8 GiB" } else { "1 TiB" };
    let work = |what: &str| format!("changed blocks, {size} sparse, {what}");
    report.alone(work("1 % changed, just opened"), "ms", median(cold), Target::Limit(100.0));
    report.alone(work("1 % changed, again"), "ms", median(warm), Target::Limit(100.0));
    report.alone(work("nothing changed"), "ms", median(nothing), Target::Limit(10.0));
    report.note(format!(
        "{clusters} clusters of 1 MiB were written at random places; {found} blocks were found."
    ));
    Ok(())
}

/// Create, list and delete with 10 and with 10,000 snapshots; opening with all of them.
pub(crate) fn many_snapshots(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        report.note("No peer takes part in this table.");
        return Ok(());
    }
    let path = plan.folder.join("many.img");
    let mut bench = Bench::create(&path, 100 << 30)?;
    let file = bench.file;
    let mut rng = Rng::new(2);
    let many: u64 = if plan.quick { 200 } else { 10_000 };
    let mut seen = Vec::new();
    let mut made = 0;
    for wanted in [10, many] {
        while made < wanted {
            // They differ, or deleting one would compare nothing.
            bench.write(rng.below(1 << 20), 1, &mut rng)?;
            bench.volume.create_snapshot(&format!("s{made}"))?;
            made += 1;
        }
        let [create, list, delete] = times(&bench, &mut rng, made)?;
        bench.crash();
        let (opened, open) = milliseconds(|| Bench::open(&path, file))?;
        bench = opened;
        seen.push([create, list, delete, open]);
    }
    let (few, crowded) = (seen[0], seen[1]);
    for (index, what) in
        ["create", "list", "delete", "opening after a crash, 100 GiB,"].into_iter().enumerate()
    {
        let work = format!("snapshots: {what} with {many}");
        report.against(work, "ms", Some(crowded[index]), ("cairn, with 10", few[index]), Target::None);
    }
    Ok(())
}

/// Milliseconds of create, list and delete, medians of 20, with one block written before each.
fn times(bench: &Bench, rng: &mut Rng, present: u64) -> Result<[f64; 3]> {
    let (mut create, mut list, mut delete) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..20 {
        bench.write(rng.below(1 << 20), 1, rng)?;
        let name = format!("timed{present}-{index}");
        let (snapshot, time) = milliseconds(|| Ok(bench.volume.create_snapshot(&name)?))?;
        create.push(time);
        list.push(milliseconds(|| Ok(bench.volume.snapshots().len()))?.1);
        bench.write(rng.below(1 << 20), 1, rng)?;
        delete.push(milliseconds(|| Ok(bench.volume.delete_snapshots(&[snapshot.id])?))?.1);
    }
    Ok([median(create), median(list), median(delete)])
}
