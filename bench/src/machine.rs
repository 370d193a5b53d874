//! What a figure is worthless without: the machine, the commit, the command.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::Plan;

/// Where cargo builds, and so where there is room for data.
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

/// The first thing a program prints, or that it is not there.
fn said(program: &str, arguments: &[&str]) -> String {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => format!("{program}: not known"),
    }
}
