//! Reading a dump: its label and maps, then directories and files one after the other.
//!
//! After a header that does not verify, the next one is searched record by record. A record counts
//! as a header only when its checksum, its date and, as long as the dump counts its records right,
//! its number fit: a file may contain a dump itself. A higher number shows how many records are
//! missing before it; the number in a dump inside of a file is lower.

use std::collections::BTreeSet;
use std::io::Read;

use crate::attributes::{self, Attribute};
use crate::directory::{self, Entry};
use crate::error::ReadError;
use crate::header::{Common, Header, What, content_checksum, foreign};
use crate::inode::{Inode, Kind};
use crate::map::InodeMap;
use crate::record::{Input, NextVolume, RECORD};

/// The maximum number of records missing in one place: numbers of records have 32 bits, so a larger
/// gap is a lower number.
const MISSING_MAX: u32 = u32::MAX / 2;
/// Records of a map of all numbers that there can be.
const MAP_RECORDS_MAX: u64 = (1 << u32::BITS) / 8 / RECORD as u64;

/// Missing files that are reported one by one. A map of 16 MiB can list any number of files, and no
/// claim of a dump may take more room than the dump has itself.
const MISSING_TOLD: usize = 1000;
/// The maximum number of impossible names that are reported.
const REFUSED_MAX: usize = 1000;

/// The head of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// 0 to 9.
    pub level: u32,
    /// When it was made, in seconds since 1970.
    pub date: u32,
    /// It has the changes since then; 0 for everything.
    pub since: u32,
    /// For people.
    pub label: Vec<u8>,
    /// The dumped file system.
    pub file_system: Vec<u8>,
    /// Its device.
    pub device: Vec<u8>,
    /// The machine.
    pub host: Vec<u8>,
}

/// The label of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeLabel {
    /// Which it is, from 1.
    pub volume: i32,
    /// The date of the dump, and the date since when it has changes: volumes of one dump have the
    /// same.
    pub date: u32,
    /// See [`VolumeLabel::date`].
    pub since: u32,
    /// The record is the first one of a volume.
    pub is_label: bool,
    /// The record is the last one of a dump.
    pub is_end: bool,
}

impl VolumeLabel {
    /// The fields in any record of a volume, if it is a header. A file can contain another dump,
    /// whose headers are read as well.
    pub fn of(record: &[u8; RECORD]) -> Option<Self> {
        let header = Header::parse(record)?;
        let (date, since) = (header.common.date, header.common.base_date);
        let (is_label, is_end) = (header.what == What::Label, header.what == What::End);
        Some(Self { volume: header.volume, date, since, is_label, is_end })
    }

    /// Whether a file with this beginning may be an interrupted volume, perhaps before its first
    /// record was complete.
    pub fn may_begin(bytes: &[u8]) -> bool {
        crate::header::may_begin(bytes)
    }
}

/// A fault found in a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// Records are missing, or are no headers where one must be.
    Skipped {
        /// The first of them, counted from 0.
        record: u64,
        /// How many.
        records: u64,
    },
    /// A file or directory with missing or changed parts.
    Hurt {
        /// Which.
        number: u32,
    },
    /// A file or directory that the dump claims to have, and that was not found.
    Missing {
        /// Which.
        number: u32,
    },
    /// The input ends before the dump does.
    Truncated,
}

/// How a file's content came out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Content {
    /// It was complete, and as it was written where that can be checked.
    pub whole: bool,
    /// Extended attributes.
    pub attributes: Vec<Attribute>,
}

/// Takes a file's content: offset and bytes, in order; the gaps are holes.
pub type Sink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> std::io::Result<()>;

/// A dump that is read from its beginning to its end.
pub struct Reader<R> {
    input: Input<R>,
    common: Common,
    used: InodeMap,
    dumped: InodeMap,
    /// The header that was read ahead.
    ahead: Option<Header>,
    /// Records are missing somewhere between the previous header and that one.
    lacks_records: bool,
    /// The file that [`Reader::next_inode`] returned, until its content is read.
    current: Option<Header>,
    seen: InodeMap,
    missing: InodeMap,
    damage: Vec<Damage>,
    hurt: BTreeSet<u32>,
    /// Impossible names, each with its directory.
    refused: Vec<(u32, Entry)>,
    /// Files followed by skipped records, and the next record found: these were the next file, or
    /// extended attributes.
    suspects: Vec<(u32, u32)>,
    ended: bool,
    /// Cairn wrote it.
    is_of_cairn: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the label and the maps.
    ///
    /// # Errors
    /// Why it is no dump that can be read here; [`ReadError::NoMaps`] when it is damaged at its
    /// head.
    pub fn open(from: R) -> Result<Self, ReadError> {
        Self::begin(from, None)
    }

    /// The same for a dump in volumes: `from` is the first, and `next` is asked for each that
    /// follows. One out of turn or of another dump is an error whenever it comes; a missing one is
    /// where the dump is cut off.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open_volumes(from: R, next: NextVolume<R>) -> Result<Self, ReadError> {
        Self::begin(from, Some(next))
    }

    fn begin(from: R, next: Option<NextVolume<R>>) -> Result<Self, ReadError> {
        let mut input = Input::new(from, next);
        let first = input.take_next()?.ok_or(ReadError::NotADump)?;
        let Some(label) = Header::parse(&first).filter(|header| header.what == What::Label) else {
            return Err(foreign(&first).map_or(ReadError::NotADump, ReadError::Foreign));
        };
        if label.compressed {
            return Err(ReadError::Compressed);
        }
        if label.volume > 1 {
            return Err(ReadError::NotTheFirst(label.volume));
        }
        input.counted = label.record == 0;
        input.belongs_to(&label.common);
        let mut reader = Self {
            input,
            common: label.common,
            used: InodeMap::new(),
            dumped: InodeMap::new(),
            ahead: None,
            lacks_records: false,
            current: None,
            seen: InodeMap::new(),
            missing: InodeMap::new(),
            damage: Vec::new(),
            hurt: BTreeSet::new(),
            refused: Vec::new(),
            suspects: Vec::new(),
            ended: false,
            is_of_cairn: label.attribute_blocks.is_some(),
        };
        reader.used = reader.map(What::Used)?;
        reader.dumped = reader.map(What::Dumped)?;
        reader.advance()?;
        Ok(reader)
    }

    /// The dump's label.
    pub fn label(&self) -> Label {
        let common = self.common.clone();
        Label {
            level: common.level,
            date: common.date,
            since: common.base_date,
            label: common.label,
            file_system: common.file_system,
            device: common.device,
            host: common.host,
        }
    }

    /// Inodes that were in use when it was made. Files of an earlier dump that are not among them
    /// are deleted.
    pub fn used(&self) -> &InodeMap {
        &self.used
    }

    /// Inodes that the dump has.
    pub fn dumped(&self) -> &InodeMap {
        &self.dumped
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.input.read * RECORD as u64
    }

    /// The volume that is read, from 1.
    pub fn volume(&self) -> u32 {
        self.input.volume
    }

    /// Files and directories that the dump claims to have, and that were not found: known at its
    /// end.
    pub fn missing(&self) -> &InodeMap {
        &self.missing
    }

    /// The faults found so far. Of missing files these are the first thousand: [`Reader::missing`]
    /// has all.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Names in directories that no file can have, each with the number of the directory: the first
    /// thousand.
    pub fn refused(&self) -> &[(u32, Entry)] {
        &self.refused
    }

    /// The next directory or file; unread content of the previous one is skipped. Directories come
    /// first.
    pub fn next_inode(&mut self) -> Result<Option<Inode>, ReadError> {
        if self.current.is_some() {
            self.content(&mut |_, _| Ok(()))?;
        }
        while let Some(header) = self.ahead.take() {
            match (header.what, &header.file) {
                (What::File, Some(inode)) if header.extended.is_none() => {
                    let inode = inode.clone();
                    // A header's claim is not proof: a number that the dump does not have takes no
                    // room here.
                    if self.dumped.contains(inode.number) {
                        self.seen.insert(inode.number);
                    }
                    self.current = Some(header);
                    return Ok(Some(inode));
                }
                (What::End, _) => {
                    self.end(false);
                    return Ok(None);
                }
                // Pieces whose beginning is lost.
                (What::File | What::More, _) => {
                    // A file whose own header is lost as well is reported as missing, at the end.
                    if self.seen.contains(header.number) {
                        self.hurt(header.number);
                    }
                    self.pass_over(&header)?;
                }
                _ => {}
            }
            self.advance()?;
        }
        self.end(true);
        Ok(None)
    }

    /// Whether the dump has only the attributes of the file that [`Reader::next_inode`] returned
    /// last: its content is unchanged since the base dump. So Linux `dump -m` writes files whose
    /// attributes changed and whose content did not.
    pub fn has_attributes_alone(&self) -> bool {
        self.current.as_ref().is_some_and(|header| header.attributes_alone)
    }

    /// Whether there may be such files in it: Cairn writes none.
    pub fn may_have_attributes_alone(&self) -> bool {
        !self.is_of_cairn
    }

    /// Whether the next file is a directory, as far as known without reading it, so that a caller
    /// can stop before the first other.
    pub fn comes_directory(&self) -> bool {
        let is_directory =
            |header: &Header| header.file.as_ref().is_some_and(|file| file.kind == Kind::Directory);
        self.ahead.as_ref().is_some_and(|header| header.extended.is_none() && is_directory(header))
    }

    /// The content of the file that [`Reader::next_inode`] returned last, and its extended
    /// attributes.
    ///
    /// # Errors
    /// The input's, and the sink's own.
    pub fn content(&mut self, sink: Sink<'_>) -> Result<Content, ReadError> {
        let Some(first) = self.current.take() else { return Ok(Content::default()) };
        let (number, size) = (first.number, first.size);
        let records_before = self.damage.len();
        let mut at = self.pieces(&first, 0, size, sink)?;
        self.advance_behind(&first)?;
        while let Some(header) =
            self.ahead.take_if(|header| header.what == What::More && header.number == number)
        {
            // Records that were lost in between can have been pieces of this file: where these
            // belong is not known. Bytes that are wrong move nothing.
            let lost = &self.damage[records_before..];
            if lost.iter().any(|damage| !matches!(damage, Damage::Hurt { .. })) {
                self.pass_over(&header)?;
            } else {
                at = self.pieces(&header, at, size, sink)?;
            }
            self.advance_behind(&header)?;
        }
        if at < size && (self.damage.len() > records_before || self.ahead.is_none()) {
            self.hurt(number);
        }
        let mut attributes = Vec::new();
        let mut blocks = 0;
        while let Some(header) =
            self.ahead.take_if(|h| h.what == What::File && h.extended.is_some() && h.number == number)
        {
            blocks += 1;
            let mut bytes = Vec::new();
            self.pieces(&header, 0, header.size, &mut |_, piece| {
                bytes.extend(piece);
                Ok(())
            })?;
            let (some, good) = attributes::parse(&bytes);
            attributes.extend(some);
            if !good || !header.is_known_extended() {
                self.hurt(number);
            }
            self.advance_behind(&header)?;
        }
        // For a dump of another program the next records show that this was all.
        let is_cut_off = first.attribute_blocks.is_none() && self.ahead.is_none();
        if is_cut_off || first.attribute_blocks.is_some_and(|written| written != blocks) {
            self.hurt(number);
        }
        let is_untold = first.attribute_blocks.is_none() && !self.hurt.contains(&number);
        if self.damage.len() > records_before && is_untold {
            let next = self.ahead.as_ref().map_or(u32::MAX, |header| header.number);
            self.suspects.push((number, next));
        }
        Ok(Content { whole: !self.hurt.contains(&number), attributes })
    }

    /// The entries of the directory that [`Reader::next_inode`] returned last, without `.` and
    /// `..`, and the outcome of reading its content.
    pub fn entries(&mut self) -> Result<(Vec<Entry>, Content), ReadError> {
        let told = self.current.as_ref().map(|header| (header.number, header.size));
        let mut bytes = Vec::new();
        let mut content = self.content(&mut |offset, piece| {
            // Directories have no holes; one with holes is read up to the first, and the rest is
            // missing.
            if offset == bytes.len() as u64 {
                bytes.extend(piece);
            }
            Ok(())
        })?;
        let parsed = directory::parse(&bytes);
        let lacks = |(_, size): &(u32, u64)| parsed.mangled || bytes.len() as u64 != *size;
        if let Some((number, _)) = told.filter(lacks) {
            self.hurt(number);
            content.whole = false;
            let left = REFUSED_MAX.saturating_sub(self.refused.len());
            self.refused.extend(parsed.refused.into_iter().take(left).map(|entry| (number, entry)));
        }
        Ok((parsed.entries, content))
    }

    /// Passes the pieces after a header to `sink`; returns the offset after them.
    fn pieces(&mut self, header: &Header, mut at: u64, size: u64, sink: Sink<'_>) -> Result<u64, ReadError> {
        let mut all = Vec::with_capacity(header.pieces.len() * RECORD);
        let mut ends_early = false;
        for _ in header.pieces.iter().filter(|is_there| **is_there) {
            match self.input.take_next()? {
                Some(record) => all.extend_from_slice(&record),
                None => {
                    ends_early = true;
                    break;
                }
            }
        }
        self.note_lost();
        let is_wrong = header.content_crc.is_some_and(|sum| sum != content_checksum(&all));
        if ends_early || is_wrong {
            self.hurt(header.number);
        }
        let mut rest = &all[..];
        for run in header.pieces.chunk_by(|a, b| a == b) {
            let length = run.len() * RECORD;
            let wanted = size.saturating_sub(at).min(length as u64);
            if run[0] {
                let (there, behind) = rest.split_at(rest.len().min(length));
                rest = behind;
                let bytes = &there[..there.len().min(wanted as usize)];
                if !bytes.is_empty() {
                    sink(at, bytes).map_err(ReadError::Output)?;
                }
                if there.len() < length {
                    at += bytes.len() as u64;
                    break;
                }
            }
            at += wanted;
        }
        Ok(at)
    }

    fn pass_over(&mut self, header: &Header) -> Result<(), ReadError> {
        for _ in header.pieces.iter().filter(|is_there| **is_there) {
            if self.input.take_next()?.is_none() {
                break;
            }
        }
        self.note_lost();
        Ok(())
    }

    /// Reports the loss between volumes.
    fn note_lost(&mut self) {
        let lost = std::mem::take(&mut self.input.lost);
        self.damage.extend(lost.into_iter().map(|(record, records)| Damage::Skipped { record, records }));
    }

    fn hurt(&mut self, number: u32) {
        if self.hurt.insert(number) {
            self.damage.push(Damage::Hurt { number });
        }
    }

    /// A map at the head of the dump.
    fn map(&mut self, what: What) -> Result<InodeMap, ReadError> {
        let record = self.input.take_next()?.ok_or(ReadError::NoMaps)?;
        let header = Header::parse(&record).filter(|header| header.what == what).ok_or(ReadError::NoMaps)?;
        self.input.counted &= header.record == (self.input.records - 1) as u32;
        if u64::from(header.map_records) > MAP_RECORDS_MAX {
            return Err(ReadError::NoMaps);
        }
        let mut bytes = Vec::new();
        for _ in 0..header.map_records {
            bytes.extend_from_slice(&self.input.take_next()?.ok_or(ReadError::NoMaps)?);
        }
        // A changed map would have existing files deleted.
        if header.content_crc.is_some_and(|sum| sum != content_checksum(&bytes)) {
            return Err(ReadError::NoMaps);
        }
        Ok(InodeMap::from_bytes(bytes))
    }

    /// Reads the next header ahead, after the pieces of another one: if records are missing in
    /// between, only the sum of its pieces tells which of these are its own.
    fn advance_behind(&mut self, header: &Header) -> Result<(), ReadError> {
        self.advance()?;
        if self.lacks_records && header.content_crc.is_none() && header.pieces.contains(&true) {
            self.hurt(header.number);
        }
        Ok(())
    }

    /// Reads the next header ahead, wherever it is.
    fn advance(&mut self) -> Result<(), ReadError> {
        (self.ahead, self.lacks_records) = (None, false);
        // The first of the records without a header, and their number; labels of volumes in between
        // do not count.
        let mut passed: Option<(u64, u64)> = None;
        while let Some(record) = self.input.take_any()? {
            self.note_lost();
            let position = self.input.records - 1;
            let header = Header::parse(&record);
            let found = header.and_then(|header| Some((self.missing_before(&header, position)?, header)));
            if let Some((missing, header)) = found {
                self.lacks_records = missing > 0;
                self.input.records += missing;
                if missing > 0 {
                    let (start, count) = passed.unwrap_or((position, 0));
                    passed = Some((start, count + missing));
                }
                self.note_passed(passed);
                self.ahead = Some(header);
                return Ok(());
            }
            let (start, count) = passed.unwrap_or((position, 0));
            passed = Some((start, count + 1));
        }
        self.note_lost();
        self.note_passed(passed);
        Ok(())
    }

    fn note_passed(&mut self, passed: Option<(u64, u64)>) {
        self.damage.extend(passed.map(|(record, records)| Damage::Skipped { record, records }));
    }

    /// How many records are missing before a header of this dump, by its number; `None` for a
    /// header of another dump.
    fn missing_before(&self, header: &Header, position: u64) -> Option<u64> {
        let is_kind = matches!(header.what, What::File | What::More | What::End);
        if !is_kind || header.common.date != self.common.date {
            return None;
        }
        if !self.input.counted {
            return Some(0);
        }
        let is_known = header.what == What::End || self.dumped.contains(header.number);
        match header.record.wrapping_sub(position as u32) {
            0 => Some(0),
            missing @ 1..=MISSING_MAX if is_known => Some(missing.into()),
            _ => None,
        }
    }

    fn end(&mut self, early: bool) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if early {
            self.damage.push(Damage::Truncated);
        }
        self.missing = self.dumped.without(&self.seen);
        for (number, next) in std::mem::take(&mut self.suspects) {
            // Between directories and the rest the numbers start over.
            let is_missing_between = if number <= next {
                self.missing.has_any(number, next)
            } else {
                self.missing.has_any(number.saturating_add(1), u32::MAX) || self.missing.has_any(1, next)
            };
            if !is_missing_between {
                self.hurt(number);
            }
        }
        let told = self.missing.iter().take(MISSING_TOLD);
        self.damage.extend(told.map(|number| Damage::Missing { number }));
    }
}
