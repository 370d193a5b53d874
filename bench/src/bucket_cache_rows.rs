//! Volumes whose home is a bucket: reads and writes in the cache next to a local volume, and the
//! memory of a TiB.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_base::{BLOCK_SIZE, Clock, FileId, Lba, Rng, SnapshotId, Timestamp, VolumeId};
use cairn_bucket::images::{BucketImages, ImageId, ImageLabel, REGION_BLOCKS, RegionBlocks, VolumeImage};
use cairn_bucket::{Memory, Sleep, Workers};
use cairn_device::{Block, BlockMut, SystemClock};

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::fio::{Load, Seen, Target as Export};
use crate::report::{Report, Target, median};
use crate::stores::Store;
use crate::volume_rows::Bench;

const MIB: f64 = (1 << 20) as f64;

/// 4 KiB requests of a volume on a cache and of a local one, in one server, by turns.
pub(crate) fn cache(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        return Ok(());
    }
    let bytes: u64 = if plan.quick { 32 << 20 } else { 1 << 30 };
    let store = Store::start(&plan.folder.join("cache-store"))?;
    let cairn = Cairn::start(plan, "cache-cairn", "off", MEMORY_DEFAULT_MIB)?;
    let disk = plan.folder.join("cache-disk");
    std::fs::create_dir(&disk)?;
    let disk = disk.to_str().context("a path that is no text")?;
    store.add_to(&cairn, "home", store.address())?;
    cairn.make_lun(bytes * 4, bytes)?;
    let (size, room) = ((bytes * 4).to_string(), (bytes * 3).to_string());
    for (lag, target) in [("1h", Target::AtLeast(0.95)), ("5s", Target::None)] {
        // The images of a deleted volume stay in the bucket, with its name.
        let (name, lun) = (format!("cached-{lag}"), format!("cached-{lag}/db"));
        let create = ["volume", "create", &name, "--bucket", "home:", "--size", &size];
        let cached = ["--cache-disk", disk, "--cache-size", &room, "--lag", lag];
        cairn.cli(&[&create[..], &cached[..]].concat())?;
        cairn.cli(&["lun", "create", &lun, "--size", &bytes.to_string()])?;
        for lun in ["vol0/db", &lun] {
            Load::fill(bytes).run(&export(plan, &cairn, lun)?)?;
        }
        for (pattern, work) in [("randread", "reads"), ("randwrite", "writes")] {
            let load = Load::small(pattern, 32, bytes, plan.turn());
            let (mut own, mut local) = (Vec::new(), Vec::new());
            for round in 0..plan.rounds() {
                let mut turns = [("vol0/db", &mut local), (lun.as_str(), &mut own)];
                // Neither is always the first.
                if round % 2 == 1 {
                    turns.reverse();
                }
                for (lun, seen) in turns {
                    seen.push(load.run(&export(plan, &cairn, lun)?)?);
                }
            }
            let rate = |seen: &[Seen]| median(seen.iter().map(|seen| seen.iops / 1e3).collect());
            let cpu = |seen: &[Seen]| median(seen.iter().map(|seen| seen.cpu_per_100k).collect());
            let work = format!("4 KiB random {work} in the cache, depth 32, an image each {lag}");
            let peer = ("local volume", rate(&local));
            report.against(&work, "thousand a second", Some(rate(&own)), peer, target);
            let (work, peer) = (format!("{work}: processor time"), ("local volume", cpu(&local)));
            report.against(work, "s for 100,000", Some(cpu(&own)), peer, Target::None);
        }
        cairn.cli(&["volume", "delete", &name, "--yes"])?;
    }
    report.note(format!(
        "{} MiB of data, of which the memory of the server has a part. The cache has room for all of it.",
        bytes >> 20
    ));
    Ok(())
}

fn export<'a>(plan: &'a Plan, cairn: &'a Cairn, name: &str) -> Result<Export<'a>> {
    let server = cairn.server()?;
    Ok(Export { server, uri: server.uri(name), scratch: &plan.folder })
}

struct Threads;

impl Workers for Threads {
    fn start(&self, job: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        std::thread::Builder::new().spawn(job).map(drop)
    }
}

/// Bytes of this process in memory.
fn resident() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}

/// The memory that a TiB in a bucket takes.
pub(crate) fn memory(plan: &Plan, report: &mut Report) -> Result<()> {
    if plan.only_peers {
        return Ok(());
    }
    let took = owner_of_a_tib(plan)?;
    report.alone(
        "memory of the owner of 1 TiB: first image, with a block in each region",
        "MiB",
        took / MIB,
        Target::Limit(16.0),
    );
    fragmented(plan, report)
}

/// The growth of this process while it puts an image with a block in each region of a TiB, and
/// holds it. The objects are not kept.
fn owner_of_a_tib(plan: &Plan) -> Result<f64> {
    let regions: u32 = if plan.quick { 1 << 13 } else { 1 << 18 };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = Arc::new(Memory::new(clock, Arc::new(Sleep::default())));
    let (volume, cancel) = (VolumeId([7; 16]), Arc::new(AtomicBool::new(false)));
    let images = BucketImages::open(store.clone(), Arc::new(Threads), volume, None, Rng::new(3));
    let now = Timestamp(1 << 60);
    let mut owner = images.claim("bench", now, &cancel)?;
    let mut block = vec![0; BLOCK_SIZE];
    block[0] = 1;
    let mut blocks = RegionBlocks::new();
    blocks.push(9, &block);
    let drop_objects = || {
        let is_large =
            |name: &str| ["/region/", "/progress/", "/list/"].iter().any(|folder| name.contains(folder));
        for name in store.names().iter().filter(|name| is_large(name.as_str())) {
            store.replace(name, None);
        }
    };
    let before = resident()?;
    let id = ImageId([5; 16]);
    let update = owner.begin(None, id, &cancel)?;
    for region in 0..regions {
        update.put_region(region, &blocks, &cancel)?;
        if region % 4096 == 0 {
            drop_objects();
        }
    }
    let label = ImageLabel { id, number: 1, taken: now, blocks: u64::from(regions) * REGION_BLOCKS as u64 };
    owner.commit(&update, label, &[], now, &cancel)?;
    drop_objects();
    // The device reads from the same table.
    let reader = owner.reader();
    let took = resident()? - before;
    drop((reader, update));
    anyhow::ensure!(owner.regions().count() == regions as usize);
    Ok(took)
}

/// The memory of an update of a volume whose free blocks are scattered.
fn fragmented(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes: u64 = if plan.quick { 256 << 20 } else { 4 << 30 };
    let path = plan.folder.join("fragmented.img");
    let (bench, target) = make_fragmented(&path, bytes)?;
    let volume = bench.volume();
    let runs = volume.changed_blocks(&[], target)?.runs.len();
    let image = VolumeImage::new(volume, &[], target)?;
    let mut most = 0;
    for region in image.changed_regions() {
        image.region(region)?;
        most = most.max(image.memory());
    }
    report.alone(
        format!("memory of an update of {} GiB, 70 % full, in {runs} runs of blocks", bytes >> 30),
        "MiB",
        most as f64 / MIB,
        Target::None,
    );
    report.alone(
        "the same with a list of all runs, as it was before",
        "MiB",
        runs as f64 * 32.0 / MIB,
        Target::None,
    );
    report
        .note("The memory of an update is 64 KiB for each TiB, and a window over the maps of at most 1 MiB.");
    drop(image);
    drop(bench);
    Ok(std::fs::remove_file(path)?)
}

fn make_fragmented(path: &Path, bytes: u64) -> Result<(Bench, SnapshotId)> {
    let bench = Bench::create(path, bytes)?;
    let volume = bench.volume().clone();
    let file = volume.compound().create(cairn_format::FileKind::Lun, bytes / 10 * 7)?;
    let blocks = bytes / 10 * 7 / BLOCK_SIZE as u64;
    let mut rng = Rng::new(11);
    let mut write = |file: FileId, lbas: Vec<u64>| -> Result<()> {
        for some in lbas.chunks(1024) {
            let mut block = |lba: &u64| {
                let mut block = BlockMut::zeroed();
                block[..8].copy_from_slice(&(rng.next() | 1).to_le_bytes());
                (Lba(*lba), block.freeze())
            };
            let some: Vec<(Lba, Block)> = some.iter().map(&mut block).collect();
            volume.write(file, &mut some.into_iter())?;
        }
        volume.consistency_point()?;
        Ok(())
    };
    // Every other block is written again, so its place comes free.
    write(file, (0..blocks).collect())?;
    for from in [0, 1] {
        write(file, (from..blocks).step_by(8).collect())?;
        std::thread::sleep(Duration::from_millis(50));
    }
    let target = bench.volume().create_snapshot("s")?.id;
    Ok((bench, target))
}
