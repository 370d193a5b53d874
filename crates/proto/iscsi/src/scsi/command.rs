//! CDBs: bytes to checked commands, and the table of all that is supported.

use super::{Fields, Sense};

/// How a command concerns a reservation that another nexus holds (SPC-4, table 65; SBC-3, table
/// 13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Allowed whatever is reserved.
    Always,
    /// Conflicts with exclusive access.
    Read,
    /// Conflicts with write exclusive and exclusive access.
    Write,
    /// The command judges for itself.
    Reserving,
}

/// The data that a VERIFY compares with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Nothing: the medium must be readable.
    Nothing,
    /// All of it with as much data.
    All,
    /// Each block with one block of data.
    OneBlock,
}

/// A command that concerns the medium. `blocks` are logical blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Medium {
    /// READ (6), (10), (12), (16)
    Read {
        /// Where.
        lba: u64,
        /// How much.
        blocks: u32,
    },
    /// WRITE (6), (10), (12), (16); WRITE AND VERIFY (10), (12), (16)
    Write {
        /// Where.
        lba: u64,
        /// How much.
        blocks: u32,
        /// Durable when answered.
        fua: bool,
        /// Read back and compared with the sent data.
        verify: bool,
    },
    /// WRITE ATOMIC (16): all of it or nothing, whenever a cut comes; whole physical blocks.
    WriteAtomic {
        /// Where.
        lba: u64,
        /// How much.
        blocks: u32,
        /// Durable when answered.
        fua: bool,
    },
    /// VERIFY (10), (12), (16)
    Verify {
        /// Where.
        lba: u64,
        /// How much.
        blocks: u32,
        /// The comparison.
        compare: Compare,
    },
    /// ORWRITE (16)
    OrWrite {
        /// Where.
        lba: u64,
        /// How much.
        blocks: u32,
        /// Durable when answered.
        fua: bool,
    },
    /// COMPARE AND WRITE: as much data to compare, then to write.
    CompareAndWrite {
        /// Where.
        lba: u64,
        /// How much.
        blocks: u32,
        /// Durable when answered.
        fua: bool,
    },
    /// WRITE SAME (10), (16)
    WriteSame {
        /// Where.
        lba: u64,
        /// How much; never 0 once it is admitted.
        blocks: u64,
        /// Space may be freed.
        unmap: bool,
        /// No block of data comes; it is all zeroes.
        no_data: bool,
    },
    /// UNMAP: where and how much.
    Unmap(Vec<(u64, u32)>),
    /// SYNCHRONIZE CACHE (10), (16)
    Synchronize {
        /// It is answered before it is done.
        immediate: bool,
    },
    /// PRE-FETCH (10), (16)
    Prefetch {
        /// Where.
        lba: u64,
        /// How much.
        blocks: u64,
    },
    /// GET LBA STATUS
    LbaStatus {
        /// From where.
        lba: u64,
        /// The longest answer, in bytes.
        allocation: u32,
    },
    /// EXTENDED COPY
    Copy(super::CopyList),
}

impl Medium {
    /// Bytes that the command wants from the initiator.
    pub fn data_out_bytes(&self, block_bytes: u32) -> u64 {
        let block = u64::from(block_bytes);
        match self {
            Self::Write { blocks, .. } | Self::OrWrite { blocks, .. } | Self::WriteAtomic { blocks, .. } => {
                u64::from(*blocks) * block
            }
            Self::Verify { blocks, compare: Compare::All, .. } => u64::from(*blocks) * block,
            Self::Verify { blocks, compare: Compare::OneBlock, .. } if *blocks > 0 => block,
            Self::CompareAndWrite { blocks, .. } => 2 * u64::from(*blocks) * block,
            Self::WriteSame { no_data: false, .. } => block,
            _ => 0,
        }
    }
}

/// A command as in its CDB; its range on the medium is not yet checked against a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the specifications' own names and fields")]
pub enum Command {
    TestUnitReady,
    RequestSense {
        descriptors: bool,
        allocation: u32,
    },
    Inquiry {
        vital: bool,
        page: u8,
        allocation: u32,
    },
    Reserve6,
    Release6,
    ModeSelect {
        page_format: bool,
        save: bool,
        length: u32,
        long: bool,
    },
    ModeSense {
        no_blocks: bool,
        long_lba: bool,
        control: u8,
        page: u8,
        subpage: u8,
        allocation: u32,
        long: bool,
    },
    StartStop {
        start: bool,
        eject: bool,
        power: u8,
    },
    PreventRemoval {
        prevent: bool,
    },
    ReadCapacity10,
    ReadCapacity16 {
        allocation: u32,
    },
    ReadDefects {
        format: u8,
        long: bool,
        allocation: u32,
    },
    ReportLuns {
        select: u8,
        allocation: u32,
    },
    ReportOpcodes {
        timeouts: bool,
        options: u8,
        opcode: u8,
        action: u16,
        allocation: u32,
    },
    ReportTargetPortGroups {
        extended: bool,
        allocation: u32,
    },
    ReserveIn {
        action: u8,
        allocation: u32,
    },
    ReserveOut {
        action: u8,
        scope: u8,
        kind: u8,
        length: u32,
    },
    CopyResults {
        action: u8,
        list: u32,
        allocation: u32,
    },
    ExtendedCopy {
        length: u32,
    },
    Unmap {
        anchor: bool,
        length: u32,
    },
    /// A command that concerns the medium.
    Medium(Medium),
}

/// A row of the table of commands.
pub(crate) struct Row {
    pub(crate) opcode: u8,
    pub(crate) action: Option<u16>,
    pub(crate) access: Access,
    /// CDB usage data (SPC-4, section 6.35): the bits with a meaning.
    pub(crate) usage: &'static [u8],
}

const fn row(opcode: u8, action: Option<u16>, access: Access, usage: &'static [u8]) -> Row {
    Row { opcode, action, access, usage }
}

/// Only units that can promise it have it.
pub(crate) const WRITE_ATOMIC: u8 = 0x9c;

const RW6: &[u8] = &[0, 0x1f, 0xff, 0xff, 0xff, 0x07];
const RW10: &[u8] = &[0, 0xfa, 0xff, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0x07];
const RW12: &[u8] = &[0, 0xfa, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0x07];
const RW16: &[u8] =
    &[0, 0xfa, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0x07];
/// BYTCHK has two bits.
const CHECK10: &[u8] = &[0, 0xf6, 0xff, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0x07];
const CHECK12: &[u8] = &[0, 0xf6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0x07];
const CHECK16: &[u8] =
    &[0, 0xf6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0x07];
/// With NDOB.
const SAME16: &[u8] =
    &[0, 0xf9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0x07];
const ACTION16: &[u8] =
    &[0, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x07];
const ACTION12: &[u8] = &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0x07];
const RESERVE10: &[u8] = &[0, 0x1f, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07];

/// All that is supported, by opcode and service action.
pub(crate) const TABLE: &[Row] = &[
    row(0x00, None, Access::Always, &[0, 0, 0, 0, 0, 0x07]),
    row(0x03, None, Access::Always, &[0, 0x01, 0, 0, 0xff, 0x07]),
    row(0x08, None, Access::Read, RW6),
    row(0x0a, None, Access::Write, RW6),
    row(0x12, None, Access::Always, &[0, 0x01, 0xff, 0xff, 0xff, 0x07]),
    row(0x15, None, Access::Write, &[0, 0x11, 0, 0, 0xff, 0x07]),
    row(0x16, None, Access::Reserving, &[0, 0, 0, 0, 0, 0x07]),
    row(0x17, None, Access::Reserving, &[0, 0, 0, 0, 0, 0x07]),
    row(0x1a, None, Access::Read, &[0, 0x08, 0xff, 0xff, 0xff, 0x07]),
    row(0x1b, None, Access::Write, &[0, 0x01, 0, 0x0f, 0xf7, 0x07]),
    row(0x1e, None, Access::Write, &[0, 0, 0, 0, 0x03, 0x07]),
    row(0x25, None, Access::Always, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0x07]),
    row(0x28, None, Access::Read, RW10),
    row(0x2a, None, Access::Write, RW10),
    row(0x2e, None, Access::Write, CHECK10),
    row(0x2f, None, Access::Read, CHECK10),
    row(0x34, None, Access::Read, RW10),
    row(0x35, None, Access::Write, &[0, 0x02, 0xff, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0x07]),
    row(0x37, None, Access::Read, &[0, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0x07]),
    row(0x41, None, Access::Write, &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0x07]),
    row(0x42, None, Access::Write, &[0, 0x01, 0, 0, 0, 0, 0x3f, 0xff, 0xff, 0x07]),
    row(0x55, None, Access::Write, &[0, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0x07]),
    row(0x5a, None, Access::Read, &[0, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0x07]),
    row(0x5e, Some(0), Access::Always, RESERVE10),
    row(0x5e, Some(1), Access::Always, RESERVE10),
    row(0x5e, Some(2), Access::Always, RESERVE10),
    row(0x5e, Some(3), Access::Always, RESERVE10),
    row(0x5f, Some(0), Access::Reserving, RESERVE10),
    row(0x5f, Some(1), Access::Reserving, RESERVE10),
    row(0x5f, Some(2), Access::Reserving, RESERVE10),
    row(0x5f, Some(3), Access::Reserving, RESERVE10),
    row(0x5f, Some(4), Access::Reserving, RESERVE10),
    row(0x5f, Some(5), Access::Reserving, RESERVE10),
    row(0x5f, Some(6), Access::Reserving, RESERVE10),
    row(0x83, Some(0), Access::Write, ACTION16),
    row(0x84, Some(0), Access::Always, ACTION16),
    row(0x84, Some(3), Access::Always, ACTION16),
    row(0x88, None, Access::Read, RW16),
    row(0x89, None, Access::Write, RW16),
    row(0x8a, None, Access::Write, RW16),
    row(0x8b, None, Access::Write, RW16),
    row(0x8e, None, Access::Write, CHECK16),
    row(0x8f, None, Access::Read, CHECK16),
    row(0x90, None, Access::Read, RW16),
    row(0x91, None, Access::Write, RW16),
    row(0x93, None, Access::Write, SAME16),
    row(WRITE_ATOMIC, None, Access::Write, RW16),
    row(0x9e, Some(0x10), Access::Always, ACTION16),
    row(0x9e, Some(0x12), Access::Read, ACTION16),
    row(0xa0, None, Access::Always, &[0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x07]),
    row(0xa3, Some(0x0a), Access::Always, ACTION12),
    row(0xa3, Some(0x0c), Access::Read, ACTION12),
    row(0xa8, None, Access::Read, RW12),
    row(0xaa, None, Access::Write, RW12),
    row(0xae, None, Access::Write, CHECK12),
    row(0xaf, None, Access::Read, CHECK12),
    row(0xb7, None, Access::Read, &[0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x07]),
];

/// The service action of a CDB, for opcodes that have such.
fn action_of(opcode: u8, cdb: &[u8; 16]) -> Option<u16> {
    let has = TABLE.iter().any(|row| row.opcode == opcode && row.action.is_some());
    has.then(|| u16::from(cdb[1] & 0x1f))
}

/// The row of a CDB; an unknown opcode or service action is refused.
pub(crate) fn find(cdb: &[u8; 16]) -> Result<&'static Row, Sense> {
    let action = action_of(cdb[0], cdb);
    let known = TABLE.iter().any(|row| row.opcode == cdb[0]);
    TABLE.iter().find(|row| row.opcode == cdb[0] && row.action == action).ok_or(if known {
        // The service action is in byte 1.
        Sense::INVALID_FIELD_IN_CDB.in_byte(1)
    } else {
        Sense::INVALID_OPCODE
    })
}

/// Decodes a CDB.
pub fn decode(cdb: &[u8; 16]) -> Result<Command, Sense> {
    let row = find(cdb)?;
    let fields = Fields(cdb);
    // NACA: no auto contingent allegiance here.
    let control = row.usage.len() - 1;
    if fields.bit(control, 2) {
        return Err(Sense::INVALID_FIELD_IN_CDB);
    }
    Ok(match cdb[0] {
        0x00 => Command::TestUnitReady,
        0x03 => Command::RequestSense { descriptors: fields.bit(1, 0), allocation: fields.u8(4).into() },
        0x12 => {
            Command::Inquiry { vital: fields.bit(1, 0), page: fields.u8(2), allocation: fields.u16(3).into() }
        }
        0x15 | 0x55 => Command::ModeSelect {
            page_format: fields.bit(1, 4),
            save: fields.bit(1, 0),
            length: if cdb[0] == 0x15 { fields.u8(4).into() } else { fields.u16(7).into() },
            long: cdb[0] == 0x55,
        },
        0x16 => Command::Reserve6,
        0x17 => Command::Release6,
        0x1a | 0x5a => Command::ModeSense {
            no_blocks: fields.bit(1, 3),
            long_lba: cdb[0] == 0x5a && fields.bit(1, 4),
            control: fields.u8(2) >> 6,
            page: fields.u8(2) & 0x3f,
            subpage: fields.u8(3),
            allocation: if cdb[0] == 0x1a { fields.u8(4).into() } else { fields.u16(7).into() },
            long: cdb[0] == 0x5a,
        },
        0x1b => {
            Command::StartStop { start: fields.bit(4, 0), eject: fields.bit(4, 1), power: fields.u8(4) >> 4 }
        }
        0x1e => Command::PreventRemoval { prevent: fields.u8(4) & 3 != 0 },
        0x25 => Command::ReadCapacity10,
        0x37 => {
            let format = fields.u8(2) & 0x1f;
            Command::ReadDefects { format, long: false, allocation: fields.u16(7).into() }
        }
        0xb7 => {
            let format = fields.u8(1) & 0x1f;
            Command::ReadDefects { format, long: true, allocation: fields.u32(6) }
        }
        0x42 => Command::Unmap { anchor: fields.bit(1, 0), length: fields.u16(7).into() },
        0x5e => Command::ReserveIn { action: cdb[1] & 0x1f, allocation: fields.u16(7).into() },
        0x5f => Command::ReserveOut {
            action: cdb[1] & 0x1f,
            scope: cdb[2] >> 4,
            kind: cdb[2] & 0x0f,
            length: fields.u32(5),
        },
        0x83 => Command::ExtendedCopy { length: fields.u32(10) },
        0x84 => Command::CopyResults {
            action: cdb[1] & 0x1f,
            list: fields.u8(2).into(),
            allocation: fields.u32(10),
        },
        0x9e if row.action == Some(0x10) => Command::ReadCapacity16 { allocation: fields.u32(10) },
        0xa0 => Command::ReportLuns { select: fields.u8(2), allocation: fields.u32(6) },
        0xa3 if row.action == Some(0x0a) => {
            Command::ReportTargetPortGroups { extended: cdb[1] >> 5 == 1, allocation: fields.u32(6) }
        }
        0xa3 => Command::ReportOpcodes {
            timeouts: fields.bit(2, 7),
            options: fields.u8(2) & 7,
            opcode: fields.u8(3),
            action: fields.u16(4),
            allocation: fields.u32(6),
        },
        _ => Command::Medium(medium(cdb[0], fields)?),
    })
}

/// Where and how much, by the length of the CDB.
fn place(opcode: u8, fields: Fields<'_>) -> (u64, u32) {
    match opcode >> 5 {
        0 => {
            let blocks = match fields.u8(4) {
                0 => 256,
                blocks => blocks.into(),
            };
            (u64::from(fields.u24(1) & 0x1f_ffff), blocks)
        }
        1 | 2 => (fields.u32(2).into(), fields.u16(7).into()),
        5 => (fields.u32(2).into(), fields.u32(6)),
        _ => (fields.u64(2), fields.u32(10)),
    }
}

fn medium(opcode: u8, fields: Fields<'_>) -> Result<Medium, Sense> {
    let (lba, blocks) = place(opcode, fields);
    let short = opcode >> 5 == 0;
    // No protection information is kept.
    let protects = !short && !matches!(opcode, 0x34 | 0x90 | 0x35 | 0x91 | 0x9e) && fields.u8(1) >> 5 != 0;
    if protects {
        return Err(Sense::INVALID_FIELD_IN_CDB);
    }
    let fua = !short && fields.bit(1, 3);
    Ok(match opcode {
        0x08 | 0x28 | 0xa8 | 0x88 => Medium::Read { lba, blocks },
        0x0a | 0x2a | 0xaa | 0x8a => Medium::Write { lba, blocks, fua, verify: false },
        0x2e | 0xae | 0x8e => {
            // BYTCHK 2 is reserved, and 3 is for VERIFY.
            if fields.u8(1) >> 1 & 3 > 1 {
                return Err(Sense::INVALID_FIELD_IN_CDB);
            }
            Medium::Write { lba, blocks, fua: true, verify: true }
        }
        0x2f | 0xaf | 0x8f => Medium::Verify {
            lba,
            blocks,
            compare: match fields.u8(1) >> 1 & 3 {
                0 => Compare::Nothing,
                1 => Compare::All,
                3 => Compare::OneBlock,
                _ => return Err(Sense::INVALID_FIELD_IN_CDB),
            },
        },
        WRITE_ATOMIC => {
            // There is no size of boundaries to ask for.
            if fields.u16(10) != 0 {
                return Err(Sense::INVALID_FIELD_IN_CDB);
            }
            Medium::WriteAtomic { lba, blocks: fields.u16(12).into(), fua }
        }
        0x8b => Medium::OrWrite { lba, blocks, fua },
        0x89 => Medium::CompareAndWrite { lba, blocks: fields.u8(13).into(), fua },
        0x41 | 0x93 => {
            let unmap = fields.bit(1, 3);
            let no_data = opcode == 0x93 && fields.bit(1, 0);
            // Nothing can be anchored: a hole takes no space until it is written.
            if fields.bit(1, 4) || (opcode == 0x41 && fields.u8(1) & 7 != 0) {
                return Err(Sense::INVALID_FIELD_IN_CDB);
            }
            Medium::WriteSame { lba, blocks: blocks.into(), unmap, no_data }
        }
        0x35 | 0x91 => Medium::Synchronize { immediate: fields.bit(1, 1) },
        0x34 | 0x90 => Medium::Prefetch { lba, blocks: blocks.into() },
        0x9e => Medium::LbaStatus { lba, allocation: fields.u32(10) },
        _ => return Err(Sense::INVALID_OPCODE),
    })
}
