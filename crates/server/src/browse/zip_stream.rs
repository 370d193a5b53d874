//! A folder of an image as a zip file, written as it is read: of a file only its checksum is kept.
//!
//! Contents are stored as they are. The checksum of a file stands before a content of at most one
//! piece, and after a longer one. The directory at the end of the file is made by a second walk
//! over the folder, which is the same one, as the image does not change. Files of 4 GiB, and more
//! than 65,534 files, have the fields of zip64. Names that are not UTF-8 are kept byte by byte, as
//! programs on Linux expect them. Devices, pipes and sockets are left out, and a file with several
//! names is in it several times. The format is that of PKWARE's APPNOTE 6.3.10.

use std::io::{self, Write};

use cairn_files::{NodeKind, Stat, Tree, TreeError};
use chrono::{DateTime, Datelike, Timelike};
use crc32fast::Hasher;

use super::tar_stream::{Content, Names};

/// Longest content whose checksum is known before it is written, in bytes.
const SMALL: u64 = 1 << 20;

/// Sizes and places from here on have fields of their own, which zip64 defines.
const LARGE: u64 = 0xffff_ffff;

/// The same for the number of files.
const MANY: u64 = 0xffff;

/// The name is UTF-8.
const UTF8: u16 = 1 << 11;

/// The checksum and the size are after the content.
const AFTER: u16 = 1 << 3;

/// The system that made it is Unix (3), by version 4.5 of the format.
const MADE_BY: u16 = 3 << 8 | 45;

/// Writes a folder and all below it, under `name`.
///
/// # Errors
/// Damage of the volume; those of `out`; a path that is longer than the format permits.
pub(super) fn write_folder(tree: &Tree, folder: &Stat, name: &[u8], out: impl Write) -> io::Result<()> {
    let mut zip = Zip::new(out, LARGE);
    walk(tree, folder, name, &mut |entry, content| zip.append(entry, content))?;
    let mut listing = zip.listing();
    walk(tree, folder, name, &mut |entry, _| listing.append(entry))?;
    listing.finish()
}

/// Calls `each` with the folder and all below it that a zip file can have.
fn walk(
    tree: &Tree,
    folder: &Stat,
    name: &[u8],
    each: &mut dyn FnMut(&Entry, Content<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let failed = |error: TreeError| io::Error::from_raw_os_error(error.errno());
    let mut visit = |stat: &Stat, path: &[u8]| -> io::Result<()> {
        let Some(entry) = Entry::of(tree, stat, path)? else { return Ok(()) };
        each(&entry, Content::of(tree, stat))
    };
    visit(folder, name)?;
    // The directories from the folder down to the present one: a tree may be deeper than a stack.
    let mut open = vec![(Names::of(folder.file), name.to_vec())];
    while let Some((names, path)) = open.last_mut() {
        let Some(found) = names.next(tree).map_err(failed)? else {
            open.pop();
            continue;
        };
        let below = [&path[..], b"/", &found.name].concat();
        let stat = tree.stat(found.file).map_err(failed)?;
        visit(&stat, &below)?;
        if stat.kind == NodeKind::Directory {
            open.push((Names::of(found.file), below));
        }
    }
    Ok(())
}

/// A file of the archive, without its content.
#[derive(Debug, Clone)]
struct Entry {
    name: Vec<u8>,
    /// Type and permissions.
    mode: u32,
    modified: i64,
    bytes: u64,
    /// The target of a symbolic link, which is its content.
    link: Option<Vec<u8>>,
}

impl Entry {
    fn of(tree: &Tree, stat: &Stat, path: &[u8]) -> io::Result<Option<Self>> {
        let (kind, link, bytes) = match stat.kind {
            NodeKind::File => (0o100_000, None, stat.bytes),
            NodeKind::Directory => (0o040_000, None, 0),
            NodeKind::SymbolicLink => {
                let target = tree.read_link(stat.file);
                let target = target.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
                (0o120_000, Some(target.clone()), target.len() as u64)
            }
            _ => return Ok(None),
        };
        let slash: &[u8] = if stat.kind == NodeKind::Directory { b"/" } else { b"" };
        let name = [path, slash].concat();
        if name.len() > usize::from(u16::MAX) {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, "a path is too long for a zip file"));
        }
        let modified = stat.modified_ns.div_euclid(1_000_000_000);
        Ok(Some(Self { name, mode: kind | stat.mode & 0o7777, modified, bytes, link }))
    }

    /// The checksum is after the content.
    fn is_streamed(&self) -> bool {
        self.bytes > SMALL && self.link.is_none()
    }

    fn flags(&self) -> u16 {
        let utf8 = if std::str::from_utf8(&self.name).is_ok() { UTF8 } else { 0 };
        utf8 | if self.is_streamed() { AFTER } else { 0 }
    }

    /// Time and date, in steps of two seconds from 1980 on, for programs that know no others.
    fn dos_time(&self) -> [u16; 2] {
        let time =
            DateTime::from_timestamp(self.modified, 0).filter(|time| (1980..2108).contains(&time.year()));
        let Some(time) = time else { return [0, (1 << 5) | 1] };
        let clock = (time.hour() << 11) | (time.minute() << 5) | (time.second() / 2);
        let date = ((time.year() as u32 - 1980) << 9) | (time.month() << 5) | time.day();
        [clock as u16, date as u16]
    }

    /// The field with the time by the second.
    fn exact_time(&self) -> Vec<u8> {
        let Ok(seconds) = i32::try_from(self.modified) else { return Vec::new() };
        [&0x5455u16.to_le_bytes()[..], &5u16.to_le_bytes(), &[1], &seconds.to_le_bytes()].concat()
    }

    /// The header before the content.
    fn header(&self, checksum: u32, large: u64) -> Vec<u8> {
        let is_large = self.bytes >= large;
        let (checksum, bytes) = if self.is_streamed() { (0, 0) } else { (checksum, self.bytes) };
        let mut further = self.exact_time();
        if is_large {
            further.extend([&1u16.to_le_bytes()[..], &16u16.to_le_bytes()].concat());
            further.extend([bytes.to_le_bytes(), bytes.to_le_bytes()].concat());
        }
        let bytes = if is_large { LARGE as u32 } else { bytes as u32 };
        let mut header = Vec::with_capacity(30 + self.name.len() + further.len());
        header.extend(0x0403_4b50u32.to_le_bytes());
        for field in [if is_large { 45 } else { 20 }, self.flags(), 0] {
            header.extend(field.to_le_bytes());
        }
        self.dos_time().iter().for_each(|field| header.extend(field.to_le_bytes()));
        for field in [checksum, bytes, bytes] {
            header.extend(field.to_le_bytes());
        }
        for length in [self.name.len(), further.len()] {
            header.extend((length as u16).to_le_bytes());
        }
        header.extend(&self.name);
        header.extend(further);
        header
    }

    /// The bytes after a streamed content.
    fn trailer(&self, checksum: u32, large: u64) -> Vec<u8> {
        if !self.is_streamed() {
            return Vec::new();
        }
        let mut trailer = [0x0807_4b50u32.to_le_bytes(), checksum.to_le_bytes()].concat();
        for _ in 0..2 {
            match self.bytes >= large {
                true => trailer.extend(self.bytes.to_le_bytes()),
                false => trailer.extend((self.bytes as u32).to_le_bytes()),
            }
        }
        trailer
    }

    /// The record in the directory at the end of the file.
    fn record(&self, checksum: u32, place: u64, large: u64) -> Vec<u8> {
        let mut beyond = Vec::new();
        let mut field = |value: u64, count: usize| match value >= large {
            true => {
                (0..count).for_each(|_| beyond.extend(value.to_le_bytes()));
                LARGE as u32
            }
            false => value as u32,
        };
        let (bytes, place) = (field(self.bytes, 2), field(place, 1));
        let mut further = self.exact_time();
        if !beyond.is_empty() {
            further.extend([1u16.to_le_bytes(), (beyond.len() as u16).to_le_bytes()].concat());
            further.extend(&beyond);
        }
        let mut record = Vec::with_capacity(46 + self.name.len() + further.len());
        record.extend(0x0201_4b50u32.to_le_bytes());
        for field in [MADE_BY, if beyond.is_empty() { 20 } else { 45 }, self.flags(), 0] {
            record.extend(field.to_le_bytes());
        }
        self.dos_time().iter().for_each(|field| record.extend(field.to_le_bytes()));
        for field in [checksum, bytes, bytes] {
            record.extend(field.to_le_bytes());
        }
        for length in [self.name.len(), further.len(), 0, 0, 0] {
            record.extend((length as u16).to_le_bytes());
        }
        // The directory flag of MS-DOS, below the mode.
        let directory = u32::from(self.mode & 0o170_000 == 0o040_000) << 4;
        record.extend((self.mode << 16 | directory).to_le_bytes());
        record.extend(place.to_le_bytes());
        record.extend(&self.name);
        record.extend(further);
        record
    }
}

/// The contents of the archive, as they are written.
struct Zip<W> {
    out: W,
    at: u64,
    /// [`LARGE`], but for tests.
    large: u64,
    /// Of each entry, in order.
    checksums: Vec<u32>,
}

impl<W: Write> Zip<W> {
    fn new(out: W, large: u64) -> Self {
        Self { out, at: 0, large, checksums: Vec::new() }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn append(&mut self, entry: &Entry, content: impl Pieces) -> io::Result<()> {
        let mut content = content;
        let mut hasher = Hasher::new();
        if entry.is_streamed() {
            self.put(&entry.header(0, self.large))?;
            while let Some(piece) = content.next()? {
                hasher.update(&piece);
                self.put(&piece)?;
            }
        } else {
            let mut whole = entry.link.clone().unwrap_or_default();
            while entry.link.is_none() && entry.bytes > 0 {
                let Some(piece) = content.next()? else { break };
                whole.extend(piece);
            }
            hasher.update(&whole);
            self.put(&entry.header(hasher.clone().finalize(), self.large))?;
            self.put(&whole)?;
        }
        let checksum = hasher.finalize();
        self.checksums.push(checksum);
        self.put(&entry.trailer(checksum, self.large))
    }

    /// Ends the contents.
    fn listing(self) -> Listing<W> {
        Listing { begin: self.at, zip: self, entries: 0, place: 0 }
    }
}

/// A content in pieces.
trait Pieces {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>>;
}

impl Pieces for Content<'_> {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.next_piece()
    }
}

/// The directory of the archive, as it is written.
struct Listing<W> {
    zip: Zip<W>,
    /// Where it begins.
    begin: u64,
    entries: usize,
    /// Where the header of the next entry is.
    place: u64,
}

impl<W: Write> Listing<W> {
    /// Appends the record of an entry. The entries come in the order of their contents.
    fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let large = self.zip.large;
        let changed = || io::Error::other("the folder of an image has changed");
        let checksum = *self.zip.checksums.get(self.entries).ok_or_else(changed)?;
        self.zip.put(&entry.record(checksum, self.place, large))?;
        self.entries += 1;
        let around = entry.header(checksum, large).len() + entry.trailer(checksum, large).len();
        self.place += around as u64 + entry.bytes;
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        if self.place != self.begin || self.entries != self.zip.checksums.len() {
            return Err(io::Error::other("the folder of an image has changed"));
        }
        let (begin, end, entries) = (self.begin, self.zip.at, self.entries as u64);
        let bytes = end - begin;
        if entries >= MANY || end >= self.zip.large {
            let mut wide = [&0x0606_4b50u32.to_le_bytes()[..], &44u64.to_le_bytes()].concat();
            wide.extend([MADE_BY.to_le_bytes(), 45u16.to_le_bytes()].concat());
            wide.extend([0; 8]);
            for field in [entries, entries, bytes, begin] {
                wide.extend(field.to_le_bytes());
            }
            wide.extend([0x0706_4b50u32.to_le_bytes(), 0u32.to_le_bytes()].concat());
            wide.extend(end.to_le_bytes());
            wide.extend(1u32.to_le_bytes());
            self.zip.put(&wide)?;
        }
        let narrow = |value: u64| if value >= self.zip.large { LARGE as u32 } else { value as u32 };
        let mut last = [0x0605_4b50u32.to_le_bytes(), [0; 4]].concat();
        let count = entries.min(MANY) as u16;
        last.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
        last.extend([narrow(bytes).to_le_bytes(), narrow(begin).to_le_bytes()].concat());
        last.extend([0; 2]);
        self.zip.put(&last)?;
        self.zip.out.flush()
    }
}

#[cfg(test)]
mod tests;
