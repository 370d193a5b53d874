//! Where a server is, and where it listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// The data directory when none is named.
pub const DEFAULT_DATA: &str = "./cairn-data";

/// `HOST:PORT`, `unix:PATH` or `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Nothing listens.
    Off,
    /// A TCP socket; the port may be 0, and the system chooses one.
    Tcp(String),
    /// A unix socket.
    Unix(PathBuf),
}

/// The text is not an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    /// It has another form.
    #[error("an address is HOST:PORT, unix:PATH or off")]
    Form,
    /// The port is not a number of 16 bits.
    #[error("a port is 1 to 65535, or 0 for any free one")]
    Port,
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Address::Off);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(InvalidAddress::Form) } else { Ok(Address::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').ok_or(InvalidAddress::Form)?;
        let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        if host.is_empty() || bare_v6 || port.is_empty() {
            return Err(InvalidAddress::Form);
        }
        if port.parse::<u16>().is_err() {
            return Err(InvalidAddress::Port);
        }
        Ok(Address::Tcp(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Off => f.pad("off"),
            Address::Tcp(address) => f.pad(address),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
