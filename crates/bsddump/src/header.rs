//! Headers: the records that describe the following ones (`struct s_spcl` of
//! `protocols/dumprestore.h`).
//!
//! The last 64 bytes of a header are spare in the format. Cairn stores there the data that the
//! format has no room for: whole nanoseconds, times past 2038, the time when a file was made, and a
//! checksum of the following pieces. Readers without support for that ignore them.

use cairn_base::crc32c;
use zerocopy::little_endian::{I32, I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::inode::{Inode, Kind, Time};
use crate::record::{PIECES_MAX, RECORD};

/// `NFS_MAGIC`.
pub(crate) const MAGIC: u32 = 60012;
const OLD_MAGIC: u32 = 60011;
const UFS2_MAGIC: u32 = 0x1954_0119;
/// The sum of the 256 words of a header.
const SUM: u32 = 84446;

/// The header has the new layout of inodes (`DR_NEWINODEFMT`).
const NEW_INODES: u32 = 0x2;
/// The label is a new one (`DR_NEWHEADER`).
const NEW_LABEL: u32 = 0x1;
const COMPRESSED: u32 = 0x80;
/// Attributes alone, no content (`DR_METAONLY`).
const ATTRIBUTES_ALONE: u32 = 0x100;
/// The following records are extended attributes (`DR_EXTATTRIBUTES`).
const EXTENDED: u32 = 0x8000;
/// Their encoding is that of ext2 (`EXT_XATTR`).
const EXTENDED_AS_EXT2: u32 = 3;

const EXTRA_MAGIC: u32 = u32::from_le_bytes(*b"CRN1");
/// The parts of [`RawExtra`] that have a meaning.
const HAS_TIMES: u32 = 1;
const HAS_BIRTH: u32 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawTime {
    seconds: I32,
    microseconds: I32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawDumpInode {
    mode: U16,
    links: U16,
    old_uid: U16,
    old_gid: U16,
    size: U64,
    accessed: RawTime,
    modified: RawTime,
    changed: RawTime,
    device: U32,
    device_wide: U32,
    blocks: [u8; 52],
    flags: U32,
    sectors: U32,
    generation: U32,
    uid: U32,
    gid: U32,
    spare: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawExtra {
    magic: U32,
    content_crc: U32,
    accessed_seconds: I64,
    modified_seconds: I64,
    changed_seconds: I64,
    born_seconds: I64,
    nanoseconds: [U32; 4],
    has: U32,
    attribute_blocks: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawDumpHeader {
    kind: U32,
    date: U32,
    base_date: U32,
    volume: I32,
    record: U32,
    inode: U32,
    magic: U32,
    checksum: U32,
    file: RawDumpInode,
    count: U32,
    pieces: [u8; PIECES_MAX],
    label: [u8; 16],
    level: U32,
    file_system: [u8; 64],
    device: [u8; 64],
    host: [u8; 64],
    flags: U32,
    first_record: U32,
    records_per_block: U32,
    extended: U32,
    record_high: U32,
    first_record_high: U32,
    spare: [u8; 48],
    extra: RawExtra,
}

const _: () = assert!(size_of::<RawDumpInode>() == 128);
const _: () = assert!(size_of::<RawDumpHeader>() == RECORD);

/// The kind of records after a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Nothing: it is the label (`TS_TAPE`).
    Label,
    /// A file's or directory's first pieces (`TS_INODE`).
    File,
    /// More of them (`TS_ADDR`).
    More,
    /// The map of the inodes in the dump (`TS_BITS`).
    Dumped,
    /// The map of the inodes in use (`TS_CLRI`).
    Used,
    /// Nothing: the dump ends (`TS_END`).
    End,
}

/// The fields common to all headers of a dump.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Common {
    pub(crate) date: u32,
    pub(crate) base_date: u32,
    pub(crate) level: u32,
    pub(crate) label: Vec<u8>,
    pub(crate) file_system: Vec<u8>,
    pub(crate) device: Vec<u8>,
    pub(crate) host: Vec<u8>,
}

/// A header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) what: What,
    pub(crate) common: Common,
    pub(crate) number: u32,
    /// The number of the record in the dump, as far as 32 bits reach.
    pub(crate) record: u32,
    /// Which volume of tape, from 1.
    pub(crate) volume: i32,
    /// The record that the volume begins with.
    pub(crate) first_record: u32,
    /// For a label: the number of records after it that still belong to the previous header.
    pub(crate) rest: u32,
    /// The file; `None` if the header is of another kind, or the mode is unknown.
    pub(crate) file: Option<Inode>,
    /// Bytes of all pieces of the file, or of these extended attributes.
    pub(crate) size: u64,
    /// For a map: its records. For others 0; their pieces have the count.
    pub(crate) map_records: u32,
    /// Which of the next pieces of the file are present; the others are holes.
    pub(crate) pieces: Vec<bool>,
    /// The following records are extended attributes of the previous file.
    pub(crate) extended: Option<u32>,
    pub(crate) attributes_alone: bool,
    pub(crate) compressed: bool,
    /// The checksum of the pieces, if Cairn wrote them.
    pub(crate) content_crc: Option<u32>,
    /// How many blocks of extended attributes follow the content, where Cairn wrote it.
    pub(crate) attribute_blocks: Option<u32>,
}

impl Header {
    pub(crate) fn new(what: What, common: &Common, number: u32) -> Self {
        Self {
            what,
            common: common.clone(),
            number,
            record: 0,
            volume: 1,
            first_record: 0,
            rest: 0,
            file: None,
            size: 0,
            map_records: 0,
            pieces: Vec::new(),
            extended: None,
            attributes_alone: false,
            compressed: false,
            content_crc: None,
            attribute_blocks: None,
        }
    }

    /// Marks it as that of extended attributes.
    pub(crate) fn with_extended(mut self) -> Self {
        self.extended = Some(EXTENDED_AS_EXT2);
        self
    }

    /// True for extended attributes in the encoding that is known.
    pub(crate) fn is_known_extended(&self) -> bool {
        self.extended == Some(EXTENDED_AS_EXT2)
    }

    pub(crate) fn to_bytes(&self) -> [u8; RECORD] {
        let Ok(mut raw) = RawDumpHeader::read_from_bytes(&[0; RECORD]) else { unreachable!("its size") };
        raw.kind = match self.what {
            What::Label => 1,
            What::File => 2,
            What::Dumped => 3,
            What::More => 4,
            What::End => 5,
            What::Used => 6,
        }
        .into();
        raw.date = self.common.date.into();
        raw.base_date = self.common.base_date.into();
        raw.volume = self.volume.into();
        raw.record = self.record.into();
        raw.inode = self.number.into();
        raw.magic = MAGIC.into();
        if let Some(file) = &self.file {
            raw.file = raw_inode(file);
        }
        raw.file.size = self.size.into();
        raw.count = match self.what {
            What::Label => self.rest,
            _ if self.pieces.is_empty() => self.map_records,
            _ => self.pieces.len() as u32,
        }
        .into();
        for (byte, is_there) in raw.pieces.iter_mut().zip(&self.pieces) {
            *byte = u8::from(*is_there);
        }
        put_text(&mut raw.label, &self.common.label);
        raw.level = self.common.level.into();
        put_text(&mut raw.file_system, &self.common.file_system);
        put_text(&mut raw.device, &self.common.device);
        put_text(&mut raw.host, &self.common.host);
        let mut flags = NEW_INODES;
        for (holds, flag) in [
            (self.what == What::Label, NEW_LABEL),
            (self.extended.is_some(), EXTENDED),
            (self.attributes_alone, ATTRIBUTES_ALONE),
            (self.compressed, COMPRESSED),
        ] {
            flags |= if holds { flag } else { 0 };
        }
        // On the last header the flag of new inodes would mean that it lists volumes.
        raw.flags = if self.what == What::End { 0 } else { flags }.into();
        raw.first_record = self.first_record.into();
        raw.records_per_block = (crate::record::RECORDS_PER_BLOCK as u32).into();
        raw.extended = self.extended.unwrap_or(0).into();
        raw.extra = raw_extra(self.file.as_ref(), self.content_crc);
        raw.extra.attribute_blocks = self.attribute_blocks.unwrap_or(0).into();
        raw.checksum = SUM.wrapping_sum(raw.as_bytes()).into();
        let mut bytes = [0; RECORD];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads a header; `None` when the record is invalid, or not of this format.
    pub(crate) fn parse(bytes: &[u8; RECORD]) -> Option<Self> {
        let raw = RawDumpHeader::ref_from_bytes(bytes).ok()?;
        if raw.magic.get() != MAGIC || SUM.wrapping_sum(bytes) != 0 {
            return None;
        }
        let what = match raw.kind.get() {
            1 => What::Label,
            2 => What::File,
            3 => What::Dumped,
            4 => What::More,
            5 => What::End,
            6 => What::Used,
            _ => return None,
        };
        let count = raw.count.get();
        let is_map = matches!(what, What::Dumped | What::Used);
        let pieces = match what {
            What::File | What::More => {
                let pieces = raw.pieces.get(..usize::try_from(count).ok()?)?;
                pieces.iter().map(|byte| *byte != 0).collect()
            }
            _ => Vec::new(),
        };
        let extra = Some(&raw.extra).filter(|extra| extra.magic.get() == EXTRA_MAGIC);
        let flags = raw.flags.get();
        Some(Self {
            what,
            common: Common {
                date: raw.date.get(),
                base_date: raw.base_date.get(),
                level: raw.level.get(),
                label: text(&raw.label),
                file_system: text(&raw.file_system),
                device: text(&raw.device),
                host: text(&raw.host),
            },
            number: raw.inode.get(),
            record: raw.record.get(),
            volume: raw.volume.get(),
            first_record: raw.first_record.get(),
            rest: if what == What::Label { count } else { 0 },
            file: (what == What::File).then(|| inode(raw, extra)).flatten(),
            size: raw.file.size.get(),
            map_records: if is_map { count } else { 0 },
            extended: (flags & EXTENDED != 0).then(|| raw.extended.get()),
            attributes_alone: flags & ATTRIBUTES_ALONE != 0,
            compressed: flags & COMPRESSED != 0,
            content_crc: extra.filter(|_| !pieces.is_empty() || is_map).map(|extra| extra.content_crc.get()),
            pieces,
            attribute_blocks: extra.map(|extra| extra.attribute_blocks.get()),
        })
    }
}

/// Whether the bytes may be the beginning of a header, as far as they reach.
pub(crate) fn may_begin(bytes: &[u8]) -> bool {
    let at = std::mem::offset_of!(RawDumpHeader, magic);
    bytes.get(at..at + size_of::<u32>()) == Some(&MAGIC.to_le_bytes()[..])
}

/// The possible format of a record without one of our headers.
pub(crate) fn foreign(bytes: &[u8; RECORD]) -> Option<&'static str> {
    let magic = RawDumpHeader::ref_from_bytes(bytes).ok()?.magic.get();
    match magic {
        OLD_MAGIC => Some("a system before 4.3BSD"),
        UFS2_MAGIC => Some("FreeBSD's UFS2"),
        _ if magic.swap_bytes() == MAGIC => Some("a machine of the other byte order"),
        _ => None,
    }
}

/// The checksum of content in a header.
pub(crate) fn content_checksum(bytes: &[u8]) -> u32 {
    crc32c(bytes)
}

trait WrappingSum {
    /// This number less the sum of the words of `bytes`.
    fn wrapping_sum(self, bytes: &[u8]) -> u32;
}

impl WrappingSum for u32 {
    fn wrapping_sum(self, bytes: &[u8]) -> u32 {
        let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        words.fold(self, u32::wrapping_sub)
    }
}

fn put_text(place: &mut [u8], text: &[u8]) {
    // The last byte stays zero: readers expect a C string.
    let length = text.len().min(place.len() - 1);
    place[..length].copy_from_slice(&text[..length]);
}

fn text(place: &[u8]) -> Vec<u8> {
    place.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}

fn raw_time(time: Time) -> RawTime {
    let seconds = time.seconds.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    RawTime { seconds: seconds.into(), microseconds: ((time.nanoseconds / 1000) as i32).into() }
}

fn time(raw: RawTime) -> Time {
    let microseconds = u32::try_from(raw.microseconds.get()).unwrap_or(0).min(999_999);
    Time { seconds: raw.seconds.get().into(), nanoseconds: microseconds * 1000 }
}

/// `dev_t` as Linux and glibc have it in 32 bits: 12 bits of major number and 20 of minor.
fn raw_device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

fn device(raw: u32) -> (u32, u32) {
    (raw >> 8 & 0xfff, (raw & 0xff) | (raw >> 12 & 0xf_ff00))
}

fn raw_inode(file: &Inode) -> RawDumpInode {
    let is_device = matches!(file.kind, Kind::Block | Kind::Character);
    RawDumpInode {
        mode: ((file.kind.mode() as u16) | (file.permissions & 0o7777)).into(),
        links: (file.links.min(0x7fff) as u16).into(),
        old_uid: (file.uid as u16).into(),
        old_gid: (file.gid as u16).into(),
        size: file.size.into(),
        accessed: raw_time(file.accessed),
        modified: raw_time(file.modified),
        changed: raw_time(file.changed),
        device: if is_device { raw_device(file.device) } else { 0 }.into(),
        device_wide: 0.into(),
        blocks: [0; 52],
        flags: 0.into(),
        sectors: (file.size.div_ceil(512).min(u32::MAX.into()) as u32).into(),
        generation: 0.into(),
        uid: file.uid.into(),
        gid: file.gid.into(),
        spare: [0; 8],
    }
}

fn raw_extra(file: Option<&Inode>, content_crc: Option<u32>) -> RawExtra {
    let born = file.and_then(|file| file.born);
    let times = file.map_or([Time::default(); 3], |file| [file.accessed, file.modified, file.changed]);
    let [accessed, modified, changed] = times;
    let has = if file.is_some() { HAS_TIMES } else { 0 } | if born.is_some() { HAS_BIRTH } else { 0 };
    let born = born.unwrap_or_default();
    RawExtra {
        magic: EXTRA_MAGIC.into(),
        content_crc: content_crc.unwrap_or(0).into(),
        accessed_seconds: accessed.seconds.into(),
        modified_seconds: modified.seconds.into(),
        changed_seconds: changed.seconds.into(),
        born_seconds: born.seconds.into(),
        nanoseconds: [accessed, modified, changed, born].map(|time| time.nanoseconds.into()),
        has: has.into(),
        attribute_blocks: 0.into(),
    }
}

fn inode(raw: &RawDumpHeader, extra: Option<&RawExtra>) -> Option<Inode> {
    let file = &raw.file;
    let kind = Kind::of_mode(file.mode.get().into())?;
    let whole = |seconds: I64, index: usize, extra: &RawExtra| Time {
        seconds: seconds.get(),
        nanoseconds: extra.nanoseconds[index].get().min(999_999_999),
    };
    let mut inode = Inode {
        number: raw.inode.get(),
        kind,
        permissions: file.mode.get() & 0o7777,
        links: file.links.get().into(),
        uid: file.uid.get(),
        gid: file.gid.get(),
        size: file.size.get(),
        accessed: time(file.accessed),
        modified: time(file.modified),
        changed: time(file.changed),
        born: None,
        device: (0, 0),
    };
    if matches!(kind, Kind::Block | Kind::Character) {
        // ext2 keeps large numbers in the second word.
        let raw = if file.device.get() != 0 { file.device.get() } else { file.device_wide.get() };
        inode.device = device(raw);
    }
    if let Some(extra) = extra {
        if extra.has.get() & HAS_TIMES != 0 {
            inode.accessed = whole(extra.accessed_seconds, 0, extra);
            inode.modified = whole(extra.modified_seconds, 1, extra);
            inode.changed = whole(extra.changed_seconds, 2, extra);
        }
        if extra.has.get() & HAS_BIRTH != 0 {
            inode.born = Some(whole(extra.born_seconds, 3, extra));
        }
    }
    Some(inode)
}
