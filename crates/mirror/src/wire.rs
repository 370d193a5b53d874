//! Frames: a length, a type and a body; and the little codec of the bodies. Bytes of the other side
//! never panic and never take memory before they have arrived.

use std::io::{self, Read, Write};

use cairn_base::Checksum;

use crate::error::MirrorError;

/// Longest body, in bytes: a list of all snapshots that a volume can have.
const BODY_MAX: u32 = 8 << 20;

/// A message as it travels.
#[derive(Debug)]
pub struct Frame {
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn write_frame(
    stream: &mut (impl Write + ?Sized),
    kind: u8,
    body: &[u8],
) -> Result<(), MirrorError> {
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= BODY_MAX);
    let length = length.ok_or(MirrorError::Protocol("a message is too long to be sent"))?;
    let mut bytes = Vec::with_capacity(body.len() + 5);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(body);
    stream.write_all(&bytes)?;
    stream.flush()?;
    Ok(())
}

/// The next frame; `None` when the other side hung up between two.
pub(crate) fn read_frame(stream: &mut (impl Read + ?Sized)) -> Result<Option<Frame>, MirrorError> {
    let mut head = [0; 5];
    let first = loop {
        match stream.read(&mut head[..1]) {
            Ok(count) => break count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    };
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut head[1..])?;
    let [a, b, c, d, kind] = head;
    let length = u32::from_le_bytes([a, b, c, d]);
    if length > BODY_MAX {
        return Err(MirrorError::Protocol("a message is too long"));
    }
    let mut body = Vec::new();
    let read = stream.take(u64::from(length)).read_to_end(&mut body)?;
    if read != length as usize {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(Some(Frame { kind, body }))
}

/// Builds a body.
#[derive(Default)]
pub(crate) struct Body(pub(crate) Vec<u8>);

impl Body {
    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A value that may be missing.
    pub(crate) fn option(self, value: Option<u64>) -> Self {
        match value {
            Some(value) => self.u8(1).u64(value),
            None => self.u8(0),
        }
    }

    pub(crate) fn array(self, bytes: &[u8; 16]) -> Self {
        self.bytes(bytes)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(mut self, text: &str) -> Self {
        self = self.u32(text.len() as u32);
        self.0.extend_from_slice(text.as_bytes());
        self
    }
}

/// Takes a body apart.
pub(crate) struct Parser<'a>(pub(crate) &'a [u8]);

/// An upper limit of blocks of any kind: more would overflow 64 bits as bytes.
const BLOCKS_END: u64 = 1 << 48;

/// Longest text in a message, in bytes.
const TEXT_MAX: usize = 1024;

impl<'a> Parser<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], MirrorError> {
        let short = MirrorError::Protocol("a message is too short");
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(short)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, MirrorError> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, MirrorError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, MirrorError> {
        self.take().map(u64::from_le_bytes)
    }

    /// A number of blocks.
    pub(crate) fn blocks(&mut self) -> Result<u64, MirrorError> {
        let blocks = self.u64()?;
        let is_possible = blocks < BLOCKS_END;
        is_possible.then_some(blocks).ok_or(MirrorError::Protocol("a message has an impossible value"))
    }

    pub(crate) fn option(&mut self) -> Result<Option<u64>, MirrorError> {
        match self.u8()? {
            0 => Ok(None),
            1 => self.u64().map(Some),
            _ => Err(MirrorError::Protocol("a message has an impossible value")),
        }
    }

    pub(crate) fn flag(&mut self) -> Result<bool, MirrorError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MirrorError::Protocol("a message has an impossible value")),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn array(&mut self) -> Result<[u8; 16], MirrorError> {
        self.take()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], MirrorError> {
        let short = MirrorError::Protocol("a message is too short");
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(short)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn checksum(&mut self) -> Result<Checksum, MirrorError> {
        self.take().map(Checksum)
    }

    pub(crate) fn text(&mut self) -> Result<String, MirrorError> {
        let length = self.u32()? as usize;
        let bad = MirrorError::Protocol("a message has an impossible text");
        if length > TEXT_MAX {
            return Err(bad);
        }
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(bad.clone())?;
        self.0 = rest;
        // No name, address or expression contains a terminal's control characters, or a line break
        // for monitoring.
        let is_command = |letter: char| letter.is_control() && letter != '\t';
        let text = std::str::from_utf8(bytes).ok().filter(|text| !text.chars().any(is_command));
        text.map(str::to_owned).ok_or(bad)
    }

    /// Nothing may be left over.
    pub(crate) fn end(self) -> Result<(), MirrorError> {
        if self.0.is_empty() { Ok(()) } else { Err(MirrorError::Protocol("a message is too long")) }
    }
}
