//! Protocol data units: the basic header segment, as RFC 7143, section 11, draws it.
//!
//! Every PDU has a header of 48 bytes whose first half is alike in all. The words of the second
//! half depend on the opcode, and the views here name them. Integers are big-endian. The bytes
//! after the header (additional header segments, digests, data, padding) are counted here and
//! transferred by the owner of the socket.

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a basic header segment.
pub const HEADER_BYTES: usize = 48;
/// Bytes of a digest.
pub const DIGEST_BYTES: usize = 4;
/// The tag that names nothing.
pub const NO_TAG: u32 = 0xffff_ffff;

/// Opcodes of RFC 7143, section 11.2.1.2.
pub mod opcode {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI_COMMAND: u8 = 0x01;
    pub const TASK_MANAGEMENT: u8 = 0x02;
    pub const LOGIN: u8 = 0x03;
    pub const TEXT: u8 = 0x04;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const SNACK: u8 = 0x10;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const TEXT_RESPONSE: u8 = 0x24;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
}

/// The final bit of most PDUs; T (transit) of a login.
pub const FLAG_FINAL: u8 = 0x80;
/// More text follows in another PDU.
pub const FLAG_CONTINUE: u8 = 0x40;
/// A command reads.
pub const FLAG_READ: u8 = 0x40;
/// A command writes.
pub const FLAG_WRITE: u8 = 0x20;
/// More was to be transferred than the initiator expected.
pub const FLAG_OVERFLOW: u8 = 0x04;
/// Less was transferred than the initiator expected.
pub const FLAG_UNDERFLOW: u8 = 0x02;
/// A Data-In carries the status.
pub const FLAG_STATUS: u8 = 0x01;

/// A basic header segment.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Default,
)]
#[repr(C)]
pub struct Header {
    pub(crate) opcode: u8,
    /// F and the flags of the opcode.
    pub flags: u8,
    /// Bytes 2 and 3: response, status, versions, by opcode.
    pub detail: [u8; 2],
    pub(crate) additional_words: u8,
    pub(crate) data_length: [u8; 3],
    /// The logical unit; ISID and TSIH in a login.
    pub lun: [u8; 8],
    /// The initiator task tag.
    pub task_tag: U32,
    /// Bytes 20 to 47.
    pub words: [U32; 7],
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Header {
    /// A header of a PDU that a target sends, final, with no data.
    pub fn new(opcode: u8, task_tag: u32) -> Self {
        Self { opcode, flags: FLAG_FINAL, task_tag: task_tag.into(), ..Self::default() }
    }

    /// The header at the front of `bytes`, if there are as many.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// The kind of the PDU, without the I bit.
    pub fn opcode(&self) -> u8 {
        self.opcode & 0x3f
    }

    /// It must be delivered at once and takes no place in the command window.
    pub fn is_immediate(&self) -> bool {
        self.opcode & 0x40 != 0
    }

    /// Marks it for immediate delivery.
    pub fn immediate(mut self) -> Self {
        self.opcode |= 0x40;
        self
    }

    /// The F bit, or T of a login.
    pub fn is_final(&self) -> bool {
        self.flags & FLAG_FINAL != 0
    }

    /// Bytes of additional header segments.
    pub fn additional_bytes(&self) -> usize {
        usize::from(self.additional_words) * 4
    }

    /// Bytes of the data segment without padding.
    pub fn data_bytes(&self) -> u32 {
        let [a, b, c] = self.data_length;
        u32::from_be_bytes([0, a, b, c])
    }

    /// Sets the length of the data segment, which is below 16 MiB.
    pub fn with_data(mut self, bytes: usize) -> Self {
        let [_, a, b, c] = u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
        self.data_length = [a, b, c];
        self
    }

    /// The word at `index` of the second half.
    pub fn word(&self, index: usize) -> u32 {
        self.words.get(index).map_or(0, |word| word.get())
    }

    /// Sets a word of the second half.
    pub fn with_word(mut self, index: usize, value: u32) -> Self {
        if let Some(word) = self.words.get_mut(index) {
            *word = value.into();
        }
        self
    }

    /// The initiator task tag.
    pub fn tag(&self) -> u32 {
        self.task_tag.get()
    }

    /// `CmdSN` of every request but Data-Out and SNACK.
    pub fn command_number(&self) -> u32 {
        self.word(1)
    }

    /// The CDB of a SCSI command; a longer one continues in an additional header segment.
    pub fn cdb(&self) -> [u8; 16] {
        let mut cdb = [0; 16];
        for (bytes, word) in cdb.chunks_exact_mut(4).zip(&self.words[3..]) {
            bytes.copy_from_slice(word.as_bytes());
        }
        cdb
    }

    /// Sets the CDB (an initiator does).
    pub fn with_cdb(mut self, cdb: &[u8; 16]) -> Self {
        for (bytes, word) in cdb.chunks_exact(4).zip(&mut self.words[3..]) {
            if let Ok(value) = U32::read_from_bytes(bytes) {
                *word = value;
            }
        }
        self
    }
}

/// Bytes of padding after `bytes`: PDUs end on multiples of four.
pub fn padding(bytes: usize) -> usize {
    bytes.wrapping_neg() % 4
}

/// CRC32C of the pieces one after the other, as sent on the wire (RFC 7143, section 13.1).
pub fn digest(pieces: &[&[u8]]) -> [u8; 4] {
    pieces.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece)).to_le_bytes()
}

/// CRC32C of some bytes followed by `more`.
pub fn digest_append(crc: u32, more: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, more)
}

/// Appends a PDU whose data is `data`, with digests as negotiated.
pub fn put(out: &mut Vec<u8>, header: Header, data: &[u8], header_digest: bool, data_digest: bool) {
    let header = header.with_data(data.len());
    put_header(out, &header, header_digest);
    if data.is_empty() {
        return;
    }
    out.extend_from_slice(data);
    let zeroes = &[0; 3][..padding(data.len())];
    out.extend_from_slice(zeroes);
    if data_digest {
        out.extend_from_slice(&digest(&[data, zeroes]));
    }
}

/// Appends a header, whose data the caller sends after it.
pub fn put_header(out: &mut Vec<u8>, header: &Header, header_digest: bool) {
    out.extend_from_slice(header.as_bytes());
    if header_digest {
        out.extend_from_slice(&digest(&[header.as_bytes()]));
    }
}
