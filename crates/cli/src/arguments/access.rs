//! The arguments of `cairn token`, `cairn tls` and `cairn audit`.

use std::path::PathBuf;

use cairn_base::Interval;
use clap::{Subcommand, ValueEnum};

/// `cairn token`.
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Create a token for the API over TCP and the web page
    ///
    /// Prints its secret. The server stores only a digest and cannot show the secret again.
    Create {
        /// Name of the token; the audit log shows it
        name: String,
        /// Permit the requests of this role
        #[arg(long)]
        role: RoleName,
        /// Permit only this volume; can be repeated
        ///
        /// Default: all volumes and the server itself.
        #[arg(long, value_name = "VOLUME")]
        volume: Vec<String>,
        /// Let the token expire after this time, such as 30d
        #[arg(long, value_name = "TIME")]
        expires: Option<Interval>,
    },
    /// List tokens
    List,
    /// Show a token
    Show {
        /// Name of the token
        name: String,
    },
    /// Revoke a token; its sessions of the web page end
    #[command(alias = "delete")]
    Revoke {
        /// Name of the token
        name: String,
    },
}

/// A role on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum RoleName {
    /// Read
    Viewer,
    /// Read, create and change; destroy nothing, change no roles or access
    Operator,
    /// All requests
    Administrator,
    /// Read mirrors, set and lift locks of their snapshots
    LockKeeper,
}

/// `cairn tls`.
#[derive(Debug, Subcommand)]
pub enum Tls {
    /// Show the certificates of the server, their names and expiry
    Show,
    /// Print the root certificate that clients need, in PEM
    Root,
    /// Issue a certificate for an NBD client
    ///
    /// Writes ca-cert.pem, client-cert.pem and client-key.pem, as libnbd, nbdkit and qemu expect
    /// them. The server does not keep the key.
    Create {
        /// Name of the client; rules name it as cert:NAME
        name: String,
        /// Write the files into this new directory
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// Let the certificate expire after this time (default 365d)
        #[arg(long, value_name = "TIME")]
        expires: Option<Interval>,
    },
}

/// `cairn audit`.
#[derive(Debug, Subcommand)]
pub enum Audit {
    /// List changes and refused tries: by whom, from where, the outcome
    List {
        /// Show lines since this instant, such as -1d or yesterday 14:03
        #[arg(long, value_name = "INSTANT", allow_hyphen_values = true)]
        since: Option<String>,
        /// Show at most this many lines, the newest
        #[arg(long, value_name = "N", default_value = "100")]
        limit: usize,
    },
}
