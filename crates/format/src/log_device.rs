//! The header of a log device: whose intent log it holds, and which one.
//!
//! It is written when a log comes to the device, never while the log is in use, and cleared when
//! the log leaves or its volume is deleted. Its two copies are far apart: the device is a log as
//! long as one of them verifies.

use cairn_base::{Checksum, LogId, Timestamp, VolumeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::sealed::{self, Sealed};
use crate::superblock::ExternalLog;
use crate::{BlockBytes, FormatError, Structure, layout};

const MAGIC: [u8; 8] = *b"CAIRNLOG";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    reserved: U32,
    volume: [u8; 16],
    log: [u8; 16],
    address: U64,
    start: U64,
    blocks: U64,
    created_ns: U64,
    reserved_end: [u8; 4000],
    checksum: Checksum,
}

const _: () = assert!(size_of::<RawHeader>() == cairn_base::BLOCK_SIZE);

impl Sealed for RawHeader {
    const STRUCTURE: Structure = Structure::LogDevice;
    const MAGIC: &'static [u8] = &MAGIC;
}

/// The header of a log device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogDeviceHeader {
    /// The volume whose log it is.
    pub volume: VolumeId,
    /// The log, and the place of its ring: the same as in the superblock, while it is in use.
    pub log: ExternalLog,
    /// When the log came to the device, by the volume's clock.
    pub created: Timestamp,
}

impl LogDeviceHeader {
    /// Checks and reads the copy that was read from block `address` of a log device.
    pub fn parse(bytes: &BlockBytes, address: u64) -> Result<Self, FormatError> {
        let field = |field| FormatError::Field { structure: Structure::LogDevice, field };
        let raw = sealed::open(bytes, |raw: &RawHeader| raw.address.get() == address)?;
        if raw.reserved.get() != 0 || raw.reserved_end.iter().any(|byte| *byte != 0) {
            return Err(field("reserved byte"));
        }
        let log = ExternalLog { id: LogId(raw.log), start: raw.start.get(), blocks: raw.blocks.get() };
        if !log.is_sane() {
            return Err(field("ring"));
        }
        Ok(Self { volume: VolumeId(raw.volume), log, created: Timestamp(raw.created_ns.get()) })
    }

    /// The header as bytes for the copy at block `address`.
    pub fn write(&self, bytes: &mut BlockBytes, address: u64) {
        let raw = RawHeader {
            magic: MAGIC,
            version: layout::VERSION.into(),
            reserved: 0.into(),
            volume: self.volume.0,
            log: self.log.id.0,
            address: address.into(),
            start: self.log.start.into(),
            blocks: self.log.blocks.into(),
            created_ns: self.created.0.into(),
            reserved_end: [0; 4000],
            checksum: Checksum::default(),
        };
        sealed::seal(&raw, bytes);
    }
}
