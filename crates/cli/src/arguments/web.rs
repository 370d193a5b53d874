//! Arguments of `cairn web`.

use std::net::SocketAddr;

use clap::Args;

/// `cairn web`.
#[derive(Debug, Args)]
pub struct Web {
    /// Serve the page at this loopback address; port 0 is any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Only print the link
    #[arg(long)]
    pub no_open: bool,
}
