//! The flags of `cairn key`.

use std::path::PathBuf;

use clap::Subcommand;

/// `cairn key`.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Create a key file for encrypted buckets
    ///
    /// Prints the public key, which is the recipient that other servers add. The file has the
    /// secret key. Without it the data of a bucket is lost, unless the bucket has another
    /// recipient.
    Create {
        /// A new file
        file: PathBuf,
    },
    /// List the key files that the server uses, with their buckets
    List,
    /// Show the public keys of a key file
    Show {
        /// The file
        file: PathBuf,
    },
}

impl Key {
    /// It needs no server.
    pub fn is_local(&self) -> bool {
        !matches!(self, Key::List)
    }
}
