//! `cairn service`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `cairn service`.
#[derive(Debug, Subcommand)]
pub enum Service {
    /// Write the unit, the user and the configuration of a service of systemd; no server is needed
    Install(InstallService),
}

/// `cairn service install`.
#[derive(Debug, Args)]
pub struct InstallService {
    /// Who runs it; made by systemd-sysusers when there is no such user
    #[arg(long, value_name = "NAME", default_value = "cairn")]
    pub user: String,
    /// The group that may use raw disks, such as `disk`: for volumes on them
    #[arg(long, value_name = "GROUP")]
    pub disks: Option<String>,
    /// Leave out what keeps `cairn mount`, and commands around snapshots that need sudo, from working
    #[arg(long)]
    pub mounts: bool,
    /// The program that the service runs; this one when not given
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Write below this directory instead of `/`, as for a package or an image
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Only print what would be written
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}
