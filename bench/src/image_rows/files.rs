//! Image dumps into files and back, next to the disk's own speed.
//!
//! On one disk a dump reads as much as it writes, and many disks share their bandwidth between
//! reads and writes. So there are two peers: fio that writes and does nothing else, and fio that
//! reads the volume and writes a file at the same time. The speed of the program alone shows where
//! the other side is memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cairn_volume::{Role, Volume};

use super::{FILES, FILLED, Figures, fio, fio_of, on_both, served};
use crate::Plan;
use crate::cairn::Cairn;
use crate::files_rows::drop_caches;
use crate::process::{run, settle};
use crate::report::{Report, Target, median};

const WRITES: &str = "fio, direct writes of a file";
const BOTH: &str = "fio, the volume's file read and a file written at once";
const READS: &str = "fio, direct reads of the volume's file";
/// Streams of the dumps in several parts.
const STREAMS: [usize; 2] = [2, 4];

/// A file in memory as the device of a volume, while this lives.
struct InMemory(PathBuf);

impl InMemory {
    fn new(blocks: u64) -> Result<Self> {
        let path = Path::new("/dev/shm").join(format!("cairn-bench-{}-image", std::process::id()));
        std::fs::File::create(&path)?.set_len(Volume::device_bytes(blocks, Role::Normal))?;
        Ok(Self(path))
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[derive(Default)]
struct Rows {
    writes: Vec<f64>,
    reads: Vec<f64>,
    both: Vec<f64>,
    dump: Figures,
    restore: Figures,
    restore_cached: Figures,
    from_memory: Figures,
    to_memory: Figures,
    streams: [Figures; STREAMS.len()],
}

/// Level 0 into files, and back.
pub(super) fn files(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = plan.export_bytes();
    let contents = ((bytes as f64 * FILLED) as u64, FILES);
    let Some((ext4, cairn)) = on_both(plan, report, (bytes, 0), contents)? else { return Ok(()) };
    drop(ext4);
    let planned = cairn.json(&["image", "dump", "vol0", "-0", "-n"])?;
    let data = planned["data_bytes"].as_f64().context("the plan says its bytes")?;
    let mut rows = Rows::default();
    for round in 0..plan.rounds() {
        one_round(plan, &cairn, data, round, &mut rows)?;
    }
    rows.tell(report);
    Ok(())
}

fn one_round(plan: &Plan, cairn: &Cairn, data: f64, round: usize, rows: &mut Rows) -> Result<()> {
    let at = |name: &str| plan.folder.join(name).display().to_string();
    let (file, scratch) = (at("dump"), plan.folder.join("fio"));
    let volume = cairn.folder().join("volumes/vol0/volume.img");
    let (whole, from) = (data as u64 & !((1 << 20) - 1), 64 << 20);
    let dump = |of: &str, more: &[&str]| {
        let arguments = [&["image", "dump", of, "-0", "--overwrite", "--to", &file], more].concat();
        served(cairn, &arguments)
    };
    rows.reads.push(fio(&volume, "read", from, whole)? / 1e6);
    rows.writes.push(fio(&scratch, "write", 0, whole)? / 1e6);
    std::fs::remove_file(&scratch)?;
    settle()?;
    rows.both.push(fio_of(&[(&volume, "read", from), (&scratch, "write", 0)], whole)? / 1e6);
    std::fs::remove_file(&scratch)?;
    settle()?;
    for (streams, figures) in STREAMS.iter().zip(&mut rows.streams) {
        figures.add(data, dump("vol0", &["--streams", &streams.to_string()])?);
        (1..=*streams).try_for_each(|part| std::fs::remove_file(format!("{file}.{part}")))?;
        settle()?;
    }
    rows.dump.add(data, dump("vol0", &[])?);
    for (cached, figures) in [(false, &mut rows.restore), (true, &mut rows.restore_cached)] {
        settle()?;
        drop_caches()?;
        if cached {
            run(std::process::Command::new("dd").args([&format!("if={file}"), "of=/dev/null", "bs=1M"]))?;
        }
        let name = format!("restored{round}{cached}");
        figures.add(data, served(cairn, &["image", "restore", &name, &file])?);
        cairn.cli(&["volume", "delete", &name, "--yes"])?;
    }
    settle()?;
    drop_caches()?;
    let memory = InMemory::new(plan.export_bytes() * 3 / 4096)?;
    let device = memory.0.display().to_string();
    rows.to_memory.add(data, served(cairn, &["image", "restore", "memory", &file, "--device", &device])?);
    settle()?;
    rows.from_memory.add(data, dump("memory", &[])?);
    cairn.cli(&["volume", "delete", "memory", "--yes"])?;
    std::fs::remove_file(&file)?;
    settle()
}

impl Rows {
    fn tell(self, report: &mut Report) {
        let [writes, reads, both] = [self.writes, self.reads, self.both].map(median);
        let mut row = |work: &str, figures: &Figures, peer: (&'static str, f64), asked| {
            report.against(format!("{work}, durable"), "MB/s", Some(figures.rate()), peer, asked);
        };
        let asked = Target::AtLeast(0.9);
        row("dump -0 to a file on the same disk", &self.dump, (WRITES, writes), asked);
        row("dump -0 to a file on the same disk", &self.dump, (BOTH, both), asked);
        for (streams, figures) in STREAMS.iter().zip(&self.streams) {
            row(&format!("dump -0 to {streams} files on the same disk"), figures, (BOTH, both), asked);
        }
        row("dump -0 of a volume in memory to a file", &self.from_memory, (WRITES, writes), asked);
        row("restore from a file on the same disk, checked", &self.restore, (WRITES, writes), asked);
        row("restore from a file on the same disk, checked", &self.restore, (BOTH, both), asked);
        row("restore from a file in the page cache, checked", &self.restore_cached, (WRITES, writes), asked);
        row("restore from a file to a volume in memory, checked", &self.to_memory, (READS, reads), asked);
        for (work, figures) in [
            ("dump -0 to a file on the same disk", &self.dump),
            ("dump -0 of a volume in memory to a file", &self.from_memory),
            ("restore from a file on the same disk", &self.restore),
            ("restore from a file in the page cache", &self.restore_cached),
            ("restore from a file to a volume in memory", &self.to_memory),
        ] {
            report.alone(format!("{work}, processor"), "s/GiB", figures.cpu(), Target::None);
        }
    }
}
