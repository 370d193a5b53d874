//! The flags of `cairn smb`.

use clap::{Args, Subcommand};

/// `cairn smb`.
#[derive(Debug, Subcommand)]
pub enum Smb {
    /// Print the Samba share for the files of a mounted volume
    ///
    /// Add the output to smb.conf on the server's machine, then run `smbcontrol all reload-config`.
    /// Windows shows all snapshots as Previous Versions.
    Config(SmbConfig),
}

/// `cairn smb config`.
#[derive(Debug, Args)]
pub struct SmbConfig {
    /// VOLUME, or VOLUME:/PATH of a directory; the volume must be mounted
    #[arg(value_name = "VOLUME[:/PATH]")]
    pub name: String,
    /// Name of the share; by default the last part of the name
    #[arg(long, value_name = "SHARE")]
    pub share: Option<String>,
    /// Keep attributes, forks and time stamps of macOS
    #[arg(long)]
    pub macos: bool,
}
