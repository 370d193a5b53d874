//! `cairn serve`, `cairn service`, `cairn config`: how a server is started.

use std::path::PathBuf;

use cairn_api::Address;
use cairn_base::{ByteSize, Interval};
use clap::{Args, Subcommand};

/// `cairn serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// A TOML file with the same names as these flags; `conf.d/*.toml` beside it come after it, by name
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The API over TCP: HOST:PORT or off (off; the control socket is always there)
    #[arg(long, value_name = "A")]
    pub http: Option<Address>,
    /// Where mirrors of this server's volumes connect: HOST:PORT or off (127.0.0.1:7420)
    #[arg(long, value_name = "A")]
    pub mirror: Option<Address>,
    /// NBD, beside DIR/nbd.sock: HOST:PORT, unix:PATH or off; several (127.0.0.1:10809)
    #[arg(long, value_name = "A")]
    pub nbd: Vec<Address>,
    /// iSCSI: HOST:PORT or off; several (127.0.0.1:3260)
    #[arg(long, value_name = "A")]
    pub iscsi: Vec<Address>,
    /// The portal that iSCSI discovery names, when it is another than the one that initiators come to
    #[arg(long, value_name = "HOST:PORT")]
    pub iscsi_advertise: Option<String>,
    /// Refuse NBD clients without TLS
    #[arg(long)]
    pub nbd_tls_required: bool,
    /// The mirror address that tokens name, when it is another than the one listened on
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// How long the other end of a mirror's transfer may be silent before it is given up (2m)
    #[arg(long, value_name = "TIME")]
    pub mirror_patience: Option<Interval>,
    /// Memory of each volume for cached blocks and for writes on their way (256M)
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<ByteSize>,
}

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

/// `cairn config`.
#[derive(Debug, Subcommand)]
pub enum ConfigFile {
    /// Say all that is wrong in a configuration, with what was probably meant, and what is said twice
    Check {
        /// The file; those of `conf.d` beside it are looked at too
        #[arg(default_value = "/etc/cairn/cairn.toml")]
        file: PathBuf,
    },
}
