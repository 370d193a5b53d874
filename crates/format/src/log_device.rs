//! The header of a log device: whose intent log it holds, and which one.
//!
//! It is written when a log comes to the device, never while the log is in use, and cleared when the log leaves or its volume is deleted. Two
//! copies stand apart from each other: the device is a log as long as one of them verifies.

use cairn_base::{Checksum, LogId, Timestamp, VolumeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::superblock::ExternalLog;
use crate::{BlockBytes, FormatError, Structure, layout};

const MAGIC: u64 = u64::from_le_bytes(*b"CAIRNLOG");
const BODY: usize = cairn_base::BLOCK_SIZE - 16;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U64,
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

/// What a log device says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogDeviceHeader {
    /// The volume whose log it is.
    pub volume: VolumeId,
    /// Which log, and where its ring is: what the superblock says too, while it is in use.
    pub log: ExternalLog,
    /// When the log came to the device, by the volume's clock.
    pub created: Timestamp,
}

impl LogDeviceHeader {
    /// Checks and reads the copy that was read from block `address` of a log device.
    pub fn parse(bytes: &BlockBytes, address: u64) -> Result<Self, FormatError> {
        let structure = Structure::LogDevice;
        let field = |field| FormatError::Field { structure, field };
        let raw = RawHeader::ref_from_bytes(bytes.as_slice()).map_err(|_| FormatError::Magic(structure))?;
        if raw.magic.get() != MAGIC {
            return Err(FormatError::Magic(structure));
        }
        layout::check_version(structure, raw.version.get())?;
        if Checksum::of(&bytes[..BODY]) != raw.checksum {
            return Err(FormatError::Checksum(structure));
        }
        if raw.address.get() != address {
            return Err(FormatError::Misplaced(structure));
        }
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
            magic: MAGIC.into(),
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
        bytes.copy_from_slice(raw.as_bytes());
        let checksum = Checksum::of(&bytes[..BODY]);
        bytes[BODY..].copy_from_slice(&checksum.0);
    }
}
