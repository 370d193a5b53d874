//! The arguments of `cairn fleet`.

use std::path::PathBuf;

use clap::Subcommand;

/// `cairn fleet`.
#[derive(Debug, Subcommand)]
pub enum Fleet {
    /// Show another server here, read with a viewer's token
    ///
    /// The server asks the other one for its status, and shows a summary on the page and in `cairn
    /// fleet list`.
    Create {
        /// Name of the other server here
        name: String,
        /// HOST:PORT of its API
        address: String,
        /// Token of the other server: @FILE, or - for standard input
        #[arg(long, value_name = "TOKEN", default_value = "-")]
        token: String,
        /// Trust the root in this file, the output of its `cairn tls root`
        #[arg(long, value_name = "FILE")]
        root: Option<PathBuf>,
    },
    /// List the other servers, the worst first
    List,
    /// Show another server
    Show {
        /// Name of the other server here
        name: String,
    },
    /// Ask another server now
    Test {
        /// Name of the other server here
        name: String,
    },
    /// Forget another server and its token
    Delete {
        /// Name of the other server here
        name: String,
    },
}
