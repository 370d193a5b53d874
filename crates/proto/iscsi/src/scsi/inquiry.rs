//! INQUIRY: the description of a logical unit (SPC-4, sections 6.6 and 7.8; SBC-3, section 6.6).

use super::Sense;
use crate::limits::{COMPARE_BLOCKS_MAX, TRANSFER_BYTES_MAX, UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX};

/// Size and kind of a unit, as of now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes that are written as one: writes of a part of them cost more.
    pub physical_bytes: u32,
    /// It takes no writes.
    pub read_only: bool,
    /// UNMAP frees space, and freed blocks read as zeroes.
    pub thin: bool,
    /// The longest WRITE ATOMIC, in bytes, of whole physical blocks; 0 if there is none.
    pub atomic_bytes: u32,
}

impl Geometry {
    pub(crate) fn per_physical(self) -> u32 {
        (self.physical_bytes / self.block_bytes.max(1)).max(1)
    }

    /// The longest WRITE ATOMIC, in blocks.
    pub(crate) fn atomic_max(self) -> u32 {
        self.atomic_bytes / self.block_bytes.max(1)
    }

    /// The longest transfer, in blocks.
    pub(crate) fn transfer_max(self) -> u32 {
        (TRANSFER_BYTES_MAX / u64::from(self.block_bytes.max(1))) as u32
    }
}

/// The names of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// For people: the name of the export; the product in INQUIRY is "Cairn LUN".
    pub name: String,
    /// The same for ever, on this server; in the serial number and the NAA designator (its lower 60
    /// bits).
    pub id: u64,
    /// The target ports that lead to it, numbered from 1.
    pub ports: u8,
    /// It can be ejected.
    pub removable: bool,
    /// Writes may be answered before they are durable (WCE of the caching mode page), until an
    /// initiator changes that.
    pub write_cache: bool,
}

/// A target port: a way to a unit, which may have several names as a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetPort {
    /// The target's iSCSI name.
    pub target: String,
    /// Its relative number among the ports of the unit, from 1.
    pub number: u8,
}

const VENDOR: &[u8; 8] = b"CAIRN   ";
const PRODUCT: &[u8; 16] = b"Cairn LUN       ";
/// Supported vital product data pages, in order.
const PAGES: &[u8] = &[0x00, 0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2];
/// Blocks of one WRITE SAME.
pub(crate) const WRITE_SAME_BLOCKS_MAX: u64 = 1 << 20;

impl Description {
    /// The NAA designator: locally assigned, 8 bytes.
    pub fn designator(&self) -> [u8; 8] {
        (0x3 << 60 | (self.id & !(0xf << 60))).to_be_bytes()
    }

    fn serial(&self) -> String {
        format!("{:016x}", self.id)
    }

    /// Standard INQUIRY data. `exists`: it is about LUN 0.
    pub(crate) fn standard(&self, exists: bool) -> Vec<u8> {
        let mut bytes = vec![0; 96];
        bytes[0] = if exists { 0x00 } else { 0x7f };
        bytes[1] = if self.removable { 0x80 } else { 0 };
        // SPC-4; hierarchical LUNs, format 2.
        bytes[2] = 0x06;
        bytes[3] = 0x12;
        bytes[4] = 91;
        // Implicit asymmetric access; third-party copy.
        bytes[5] = 0x18;
        bytes[6] = 0x10;
        bytes[7] = 0x02;
        bytes[8..16].copy_from_slice(VENDOR);
        bytes[16..32].copy_from_slice(PRODUCT);
        bytes[32..36].copy_from_slice(b"0001");
        // SAM-5, SPC-4, SBC-3, iSCSI.
        for (at, version) in [0x00a0u16, 0x0460, 0x04c0, 0x0960].into_iter().enumerate() {
            bytes[58 + 2 * at..60 + 2 * at].copy_from_slice(&version.to_be_bytes());
        }
        bytes
    }

    /// A page of vital product data, for a nexus through that port.
    pub(crate) fn vital(&self, page: u8, geometry: Geometry, port: &TargetPort) -> Result<Vec<u8>, Sense> {
        let body = match page {
            0x00 => PAGES.to_vec(),
            0x80 => self.serial().into_bytes(),
            0x83 => self.identification(port),
            0x86 => {
                let mut body = vec![0; 60];
                // Simple, ordered and head of queue tasks; a volatile cache.
                body[1] = 0x07;
                body[2] = 0x01;
                body
            }
            0xb0 => limits(geometry),
            0xb1 => {
                let mut body = vec![0; 60];
                // Non-rotating medium.
                body[1] = 1;
                body
            }
            // UNMAP, WRITE SAME (16) and (10) with UNMAP; unmapped blocks read as zeroes; thin.
            0xb2 if geometry.thin => vec![0, 0xe4, 2, 0],
            0xb2 => vec![0, 0, 0, 0],
            _ => return Err(Sense::INVALID_FIELD_IN_CDB),
        };
        let mut bytes = vec![0, page];
        bytes.extend_from_slice(&(body.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    fn identification(&self, port: &TargetPort) -> Vec<u8> {
        let mut body = Vec::new();
        let mut put = |code_set: u8, kind: u8, designator: &[u8]| {
            body.extend_from_slice(&[code_set, kind, 0, designator.len() as u8]);
            body.extend_from_slice(designator);
        };
        put(0x01, 0x03, &self.designator());
        let mut vendor = VENDOR.to_vec();
        vendor.extend_from_slice(self.serial().as_bytes());
        put(0x02, 0x01, &vendor);
        // Of the target port: its relative number, its group, its name.
        put(0x51, 0x94, &u32::from(port.number).to_be_bytes());
        put(0x51, 0x95, &[0, 0, 0, 1]);
        let mut name = format!("{},t,0x0001", port.target).into_bytes();
        name.truncate(251);
        name.push(0);
        name.resize(name.len().next_multiple_of(4), 0);
        put(0x53, 0x98, &name);
        body
    }
}

/// Block Limits (SBC-3, section 6.6.3).
fn limits(geometry: Geometry) -> Vec<u8> {
    let mut body = vec![0; 60];
    let physical = geometry.per_physical();
    // WSNZ: WRITE SAME has a length; none does not mean "to the end".
    body[0] = 1;
    body[1] = COMPARE_BLOCKS_MAX;
    body[2..4].copy_from_slice(&(physical as u16).to_be_bytes());
    body[4..8].copy_from_slice(&geometry.transfer_max().to_be_bytes());
    body[8..12].copy_from_slice(&((128 << 10) / geometry.block_bytes.max(1)).to_be_bytes());
    if geometry.thin {
        body[16..20].copy_from_slice(&UNMAP_BLOCKS_MAX.to_be_bytes());
        body[20..24].copy_from_slice(&UNMAP_DESCRIPTORS_MAX.to_be_bytes());
        body[24..28].copy_from_slice(&physical.to_be_bytes());
        // Alignment 0 is valid.
        body[28] = 0x80;
    }
    body[32..40].copy_from_slice(&WRITE_SAME_BLOCKS_MAX.to_be_bytes());
    if geometry.atomic_bytes > 0 {
        // Length, alignment and granularity of WRITE ATOMIC (SBC-4, section 6.6.4); no boundaries
        // within one.
        body[40..44].copy_from_slice(&geometry.atomic_max().to_be_bytes());
        body[44..48].copy_from_slice(&physical.to_be_bytes());
        body[48..52].copy_from_slice(&physical.to_be_bytes());
    }
    body
}
