//! The handshake of peers before the mirror protocol begins: identity, purpose, and permission.
//!
//! Over TLS the destination sends one hello, the source answers it. Each is a length (4 bytes,
//! big-endian) and that many bytes of JSON. Everything after the answer is chunks of
//! [`cairn_mirror::Bundle`], over one connection or several, and their content belongs to
//! `cairn-mirror`.

use std::io;
use std::io::{Read, Write};

use cairn_api::ErrorBody;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::peers::Credential;

/// The version of the hello and of the data after it. Peers must have the same.
pub(crate) const PEER_VERSION: u32 = 2;
/// Longest message, in bytes.
const MAX_MESSAGE: u32 = 64 << 10;

/// The first message of a destination.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`PEER_VERSION`] of the destination.
    pub(crate) version: u32,
    /// The source's volume.
    pub(crate) volume: String,
    /// Before the source has pinned the destination's certificate.
    #[serde(default)]
    pub(crate) credential: Option<Credential>,
    /// How long the destination waits for a byte; the source does as long.
    #[serde(default)]
    pub(crate) stall_ms: Option<u64>,
    /// This connection is one of several.
    #[serde(default)]
    pub(crate) lane: Option<Lane>,
    /// [`cairn_mirror::LAST_REFUSAL`] of the destination; 0 when it is left out.
    #[serde(default)]
    pub(crate) last_refusal: u32,
}

/// A connection of a bundle. The first one is opened and accepted before the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lane {
    /// Names the bundle; the destination makes it up.
    pub(crate) bundle: String,
    /// The number of this connection, from 0.
    pub(crate) index: u32,
    /// How many.
    #[serde(rename = "of")]
    pub(crate) lanes: u32,
}

/// Most connections of one bundle.
pub(crate) const LANES_MAX: u32 = 16;

/// The answer of the source.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Welcome {
    /// The source accepts; the destination continues.
    Accepted,
    /// No.
    Refused(#[serde(deserialize_with = "harmless")] ErrorBody),
    /// The versions differ.
    Version {
        /// [`PEER_VERSION`] of the source.
        version: u32,
    },
}

/// The other side's error, as shown to people: it may be hostile, and must not control a terminal.
fn harmless<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ErrorBody, D::Error> {
    let ErrorBody { error, message, next } = ErrorBody::deserialize(deserializer)?;
    let shown = |text: String| -> String {
        let shown = |letter: char| match letter {
            '\n' | '\t' => ' ',
            letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
            letter => letter,
        };
        text.chars().map(shown).collect()
    };
    Ok(ErrorBody { error, message: shown(message), next: shown(next) })
}

/// Sends a message.
pub(crate) fn send<T: Serialize>(stream: &mut impl Write, message: &T) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(&json)?;
    stream.flush()
}

/// Receives a message; an invalid one is `InvalidData`.
pub(crate) fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut json = vec![0; length as usize];
    stream.read_exact(&mut json)?;
    serde_json::from_slice(&json).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
