//! Where a server listens and a client connects: `HOST:PORT` or `unix:PATH`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An address of NBD.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// `HOST:PORT`, looked up when used.
    Tcp(String),
    /// `unix:PATH`
    Unix(PathBuf),
}

/// The text is not a valid address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an address is HOST:PORT or unix:PATH, such as 127.0.0.1:10809")]
pub struct InvalidAddress;

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(InvalidAddress) } else { Ok(Address::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').ok_or(InvalidAddress)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(InvalidAddress);
        }
        Ok(Address::Tcp(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => f.write_str(address),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
