//! `cairn serve`, `cairn service`, `cairn config`: how a server is started.

use std::path::PathBuf;

use cairn_api::Address;
use cairn_base::{ByteSize, Interval};
use clap::{Args, Subcommand};

/// `cairn serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Read this TOML file, then `conf.d/*.toml` beside it by name
    ///
    /// The keys have the names of these options, which override them.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serve the API over TCP at HOST:PORT, or off (default)
    ///
    /// The control socket is always available.
    #[arg(long, value_name = "A")]
    pub http: Option<Address>,
    /// Listen for mirrors at HOST:PORT or off (default 127.0.0.1:7420)
    #[arg(long, value_name = "A")]
    pub mirror: Option<Address>,
    /// Listen for NBD: HOST:PORT, unix:PATH or off
    ///
    /// In addition to DIR/nbd.sock. Can be repeated. Default: 127.0.0.1:10809.
    #[arg(long, value_name = "A")]
    pub nbd: Vec<Address>,
    /// Listen for iSCSI: HOST:PORT or off (default 127.0.0.1:3260)
    ///
    /// Can be repeated.
    #[arg(long, value_name = "A")]
    pub iscsi: Vec<Address>,
    /// Listen for NFS: HOST:PORT or off (default)
    ///
    /// The usual port is 2049. Can be repeated.
    #[arg(long, value_name = "A")]
    pub nfs: Vec<Address>,
    /// Announce this portal in iSCSI discovery
    ///
    /// Default: the address that an initiator connected to.
    #[arg(long, value_name = "HOST:PORT")]
    pub iscsi_advertise: Option<String>,
    /// Refuse NBD clients without TLS
    #[arg(long)]
    pub nbd_tls_required: bool,
    /// Put this mirror address into tokens
    ///
    /// Default: the address of --mirror.
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Abort a mirror transfer after this silence (default 2m)
    #[arg(long, value_name = "TIME")]
    pub mirror_patience: Option<Interval>,
    /// Serve the API over TCP and the page with TLS
    ///
    /// Default certificate: one of the authority that the server makes; clients need its root, see
    /// `cairn tls root`.
    #[arg(long)]
    pub tls: bool,
    /// Use this certificate (PEM) for HTTPS and NBD; implies --tls
    ///
    /// The server loads it again when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Use this key (PEM) with --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Put this name or address into the certificate of the server
    ///
    /// In addition to those of the machine. Can be repeated.
    #[arg(long, value_name = "NAME", conflicts_with = "tls_cert")]
    pub tls_name: Vec<String>,
    /// Permit --http without TLS at an address of the network
    #[arg(long)]
    pub http_insecure: bool,
    /// Send lines of the audit log to the system's log as well
    #[arg(long)]
    pub audit_syslog: bool,
    /// Show the files inside image dumps of this folder on the page
    ///
    /// Can be repeated. The dumps are files directly in it; links are not followed.
    #[arg(long, value_name = "DIR")]
    pub dumps: Vec<PathBuf>,
    /// Memory per volume for cached blocks and writes (default 256M)
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<ByteSize>,
}

/// `cairn service`.
#[derive(Debug, Subcommand)]
pub enum Service {
    /// Install a systemd service: unit, user and configuration
    ///
    /// Also installs the completions of shells and the manual pages.
    Install(InstallService),
    /// Remove exactly what `service install` made; keeps all data
    Uninstall {
        /// Remove below this directory, as for a package or an image
        #[arg(long, value_name = "DIR", default_value = "/")]
        root: PathBuf,
        /// Only show what would be removed
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn service install`.
#[derive(Debug, Args)]
pub struct InstallService {
    /// Run the service as this user; systemd-sysusers creates it
    #[arg(long, value_name = "NAME", default_value = "cairn")]
    pub user: String,
    /// Let the service use raw disks through this group, such as `disk`
    #[arg(long, value_name = "GROUP")]
    pub disks: Option<String>,
    /// Relax the sandbox for `cairn mount`, and for hooks that need sudo
    #[arg(long)]
    pub mounts: bool,
    /// Run this program (default: this one)
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Write below this directory, as for a package or an image
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Only show what would be written
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// `cairn config`.
#[derive(Debug, Subcommand)]
pub enum ConfigFile {
    /// Report errors, duplicate keys and likely typos in a configuration
    Check {
        /// Configuration file; also checks `conf.d/*.toml` beside it
        #[arg(default_value = "/etc/cairn/cairn.toml")]
        file: PathBuf,
    },
}
