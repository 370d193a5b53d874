//! The context that gives a figure its meaning: the machine, the commit, the command.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::Plan;
use crate::process::run;

/// Cargo's build folder, which has room for data.
pub(crate) fn target_folder() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from)
}

/// The head of a report.
pub(crate) fn describe(plan: &Plan) -> Result<String> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cores = std::thread::available_parallelism()?;
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let memory_kib: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .context("MemTotal of /proc/meminfo")?;
    let folder = plan.folder.to_string_lossy();
    let file_system = said("findmnt", &["-n", "-o", "FSTYPE,SOURCE", "--target", &folder]);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut lines = vec![
        format!("command: `cargo run --release -p cairn-bench -- {}`", arguments.join(" ")),
        format!("commit: {}", said("git", &["describe", "--always", "--dirty", "--exclude=*"])),
        format!(
            "machine: {} x {}, {:.1} GiB memory, Linux {}, {}",
            cores,
            model.trim_start_matches([':', '\t', ' ']),
            memory_kib as f64 / (1 << 20) as f64,
            said("uname", &["-r"]),
            file_system.split_whitespace().collect::<Vec<_>>().join(" on "),
        ),
        format!(
            "peers: {}; {}; {}",
            said("nbdkit", &["--version"]),
            said("qemu-nbd", &["--version"]).lines().next().unwrap_or_default(),
            said("fio", &["--version"]),
        ),
    ];
    if plan.quick {
        lines.push("**--quick: these figures mean nothing.**".to_owned());
    }
    Ok(lines.join("  \n"))
}

/// Refuses unless the file system of `folder` has `bytes` for it, and a tenth more for other users.
pub(crate) fn ask_room(folder: &Path, bytes: u64) -> Result<()> {
    let said = run(Command::new("df").args(["--output=avail", "--block-size=1"]).arg(folder))?;
    let free: u64 = said.lines().last().and_then(|line| line.trim().parse().ok()).context("df")?;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    ensure!(
        free >= bytes + bytes / 10,
        "this table may need {:.0} GiB in {} and there are {:.1}: make room, or name another folder with --dir",
        gib(bytes + bytes / 10),
        folder.display(),
        gib(free),
    );
    Ok(())
}

/// How busy the machine and a disk have been so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Busy {
    /// Hundredths of a second of all cores: at work, and in all.
    cores: (f64, f64),
    /// Milliseconds in which the disk was busy; `None` if the kernel does not count them.
    disk: Option<f64>,
    at: Instant,
}

impl Busy {
    /// Of the disk that has `folder`.
    pub(crate) fn now(folder: &Path) -> Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let fields: Vec<f64> =
            stat.lines().next().unwrap_or_default().split_whitespace().flat_map(str::parse).collect();
        let all: f64 = fields.iter().take(8).sum();
        // The fourth is idle, the fifth waits for a disk.
        let idle: f64 = fields.iter().skip(3).take(2).sum();
        let device = folder.metadata()?.dev();
        let (major, minor) = ((device >> 8) & 0xfff, device & 0xff | (device >> 12) & 0xf_ff00);
        let disks = std::fs::read_to_string("/proc/diskstats")?;
        let disk = disks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find_map(|line| {
            let is_it = line.first()? == &major.to_string() && line.get(1)? == &minor.to_string();
            is_it.then(|| line.get(12)?.parse().ok()).flatten()
        });
        Ok(Self { cores: (all - idle, all), disk, at: Instant::now() })
    }

    /// Per cent since then: of all cores, and of the disk's time.
    pub(crate) fn since(&self, before: &Self) -> (f64, Option<f64>) {
        let (busy, all) = (self.cores.0 - before.cores.0, self.cores.1 - before.cores.1);
        let passed = (self.at - before.at).as_secs_f64() * 1e3;
        let disk = self.disk.zip(before.disk).map(|(now, before)| (now - before) / passed * 100.0);
        (busy / all.max(1.0) * 100.0, disk)
    }
}

/// The first line of a program's output, or a note that it is missing.
fn said(program: &str, arguments: &[&str]) -> String {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => format!("{program}: not known"),
    }
}
