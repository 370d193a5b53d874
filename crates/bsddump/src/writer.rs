//! Writing a dump, in the four phases of `dump`: find the files, find the directories that lead to
//! them, write the directories, write the rest.

use std::collections::{HashMap, HashSet};
use std::io::Write;

use crate::attributes;
use crate::directory::{self, Entry};
use crate::error::WriteError;
use crate::header::{Common, Header, What, content_checksum};
use crate::inode::{Inode, Kind, ROOT};
use crate::map::InodeMap;
use crate::record::{Output, PIECES_MAX, RECORD, RECORDS_PER_BLOCK, VOLUME_RECORDS_MIN};
use crate::source::{Selection, Source};

/// A hole at a file's end that is longer is left out: each half MiB of it would take a record, and
/// a reader knows the file's size. 1 GiB.
const END_HOLE_MAX: u64 = 1 << 30;
/// Data that can't be read at once is read in pieces of this many bytes: a file system usually
/// loses one.
const BLOCK: usize = 4096;
/// Bytes that one header describes.
const SEGMENT: u64 = (PIECES_MAX * RECORD) as u64;

/// Which dump it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// 0 to 9: 0 has everything.
    pub level: u32,
    /// When the dumped content was frozen, in seconds since 1970.
    pub date: u32,
    /// The cut-off in seconds: files that changed at it or later are dumped. It is the date of the
    /// base dump; 0 for everything.
    pub since: u32,
    /// The inodes of the base dump ([`Dump::had`]), if that was not complete: others are dumped
    /// whenever they changed, as they may have come from elsewhere. `None` if it was complete.
    pub had: Option<InodeMap>,
    /// Up to 15 bytes for people.
    pub label: Vec<u8>,
    /// Its mount point or its name; up to 63 bytes, as the two that follow.
    pub file_system: Vec<u8>,
    /// The device of the file system.
    pub device: Vec<u8>,
    /// The machine.
    pub host: Vec<u8>,
    /// The only directory or file to dump, as names from the root; the directories that lead there
    /// are included. Empty for all.
    pub subtree: Vec<Vec<u8>>,
    /// Records of a volume, label included; `None` for one volume without an end. Of these as many
    /// count as fill blocks of [`RECORDS_PER_BLOCK`], and at least [`VOLUME_RECORDS_MIN`].
    pub volume_records: Option<u64>,
}

impl Options {
    /// Bytes of every volume but the last, which may be shorter: where the output must be cut.
    pub fn volume_bytes(&self) -> Option<u64> {
        let whole = |records: u64| records.max(VOLUME_RECORDS_MIN) / RECORDS_PER_BLOCK * RECORDS_PER_BLOCK;
        self.volume_records.map(|records| whole(records).saturating_mul(RECORD as u64))
    }
}

/// The phase of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Looking at all inodes.
    MapFiles,
    /// Walking the directories.
    MapDirectories,
    /// Writing directories.
    WriteDirectories,
    /// Writing everything else.
    WriteFiles,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// In which phase.
    pub phase: Phase,
    /// Inodes or directories that the phase has done.
    pub done: u64,
    /// The number of inodes to write; 0 while it is unknown.
    pub total: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// Receives the progress of the dump; false cancels it.
pub type Watch<'a> = &'a mut dyn FnMut(Progress) -> bool;

/// Asked about every path from the root down, without a leading slash.
pub type Filter<'a> = &'a mut dyn FnMut(&[u8]) -> Selection;

/// A part of a source that could not be read, or has no place in the format.
#[derive(Debug)]
pub struct Failed {
    /// Which file.
    pub number: u32,
    /// The part that is missing in the dump.
    pub what: &'static str,
    /// Why.
    pub reason: std::io::Error,
    /// The part that another dump would add, once it can be read.
    pub lacks: Lacks,
}

/// The part that a dump should have and lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacks {
    /// Nothing that any dump has: the format has no place for it.
    Nothing,
    /// The file, or some of it.
    File,
    /// A directory, and with it the names of all that is below.
    Below,
}

/// The planned content of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// Files and directories in it.
    pub inodes: u64,
    /// Directories of these.
    pub directories: u64,
    /// Bytes of content, at most: holes are not known before they are reached.
    pub bytes: u64,
}

/// The content of a dump.
#[derive(Debug)]
pub struct Written {
    /// Bytes of dump.
    pub bytes: u64,
    /// Files and directories in it.
    pub inodes: u64,
    /// Missing files, and files with zeroes in place of unreadable data.
    pub failed: Vec<Failed>,
}

/// A planned dump: its content is known.
#[derive(Debug)]
pub struct Dump {
    options: Options,
    used: InodeMap,
    /// Those of them whose names are in it.
    named: InodeMap,
    dumped: InodeMap,
    directories: InodeMap,
    /// Files with several names.
    linked: InodeMap,
    /// Names that do not belong to it, of files with several, by directory: the file may be there
    /// by another one.
    left_out: HashMap<u32, HashSet<Vec<u8>>>,
    planned: Planned,
    failed: Vec<Failed>,
    /// Past the last number in use.
    end: u64,
}

/// The content of a dump, for a caller that knows it without reading every inode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    /// All existing files: a restore removes the others.
    pub used: InodeMap,
    /// The files to dump: changed ones, and the directories that lead to them from the root, which
    /// is one of them.
    pub dumped: InodeMap,
}

/// A directory on the way down.
struct Step {
    number: u32,
    path: usize,
    entries: std::vec::IntoIter<Entry>,
    leads_to_dumped: bool,
    /// Names of the subtree that are still to be found below.
    wanted: usize,
}

impl Dump {
    /// Phases one and two: finds the content of the dump.
    ///
    /// # Errors
    /// [`WriteError::Source`] when the list of inodes can't be read, [`WriteError::NoRoot`],
    /// [`WriteError::NoSuchPath`] for a missing subtree. An unreadable inode or directory does not
    /// stop it: it is reported when the dump is written.
    pub fn plan(
        source: &mut dyn Source,
        options: Options,
        filter: Option<Filter<'_>>,
        watch: Watch<'_>,
    ) -> Result<Self, WriteError> {
        let mut dump = Self {
            options,
            used: InodeMap::new(),
            named: InodeMap::new(),
            dumped: InodeMap::new(),
            directories: InodeMap::new(),
            linked: InodeMap::new(),
            left_out: HashMap::new(),
            planned: Planned { inodes: 0, directories: 0, bytes: 0 },
            failed: Vec::new(),
            end: 0,
        };
        let mut sizes = Sizes::default();
        dump.map_files(source, &mut sizes, watch)?;
        if !dump.directories.contains(ROOT) {
            return Err(WriteError::NoRoot);
        }
        let everything = dump.options.since == 0 && dump.options.subtree.is_empty() && filter.is_none();
        let lost = source.unreadable();
        let mut all = dump.used.clone();
        // Names show which of the unreadable files exist.
        if !everything || lost.count() > 0 {
            dump.map_directories(source, filter, &lost, watch)?;
        }
        if everything {
            let (mut used, known) = (all.clone(), &dump.used);
            lost.iter().filter(|number| known.contains(*number)).for_each(|number| used.insert(number));
            lost.iter().filter(|number| dump.named.contains(*number)).for_each(|number| all.insert(number));
            (dump.used, dump.named, dump.dumped) = (used, all.clone(), all);
        }
        for number in dump.dumped.iter() {
            dump.planned.inodes += 1;
            dump.planned.directories += u64::from(dump.directories.contains(number));
            dump.planned.bytes += sizes.of(number);
        }
        Ok(dump)
    }

    /// The same when the content is known: only the inodes to dump are read. An unreadable one does
    /// not stop it: it is reported when the dump is written.
    ///
    /// # Errors
    /// [`WriteError::NoRoot`]; [`WriteError::Cancelled`].
    pub fn plan_known(
        source: &mut dyn Source,
        options: Options,
        known: Known,
        watch: Watch<'_>,
    ) -> Result<Self, WriteError> {
        if !known.dumped.contains(ROOT) || !known.used.contains(ROOT) {
            return Err(WriteError::NoRoot);
        }
        let (mut directories, mut planned) =
            (InodeMap::new(), Planned { inodes: 0, directories: 0, bytes: 0 });
        let total = known.dumped.count();
        for number in known.dumped.iter() {
            planned.inodes += 1;
            match source.inode(number) {
                Ok(inode) if inode.kind == Kind::Directory => {
                    directories.insert(number);
                    planned.directories += 1;
                }
                Ok(inode) if inode.kind.has_content() => planned.bytes += inode.size,
                // The writer finds the error again.
                _ => {}
            }
            let progress = Progress { phase: Phase::MapFiles, done: planned.inodes, total, bytes: 0 };
            if planned.inodes % 256 == 0 && !watch(progress) {
                return Err(WriteError::Cancelled);
            }
        }
        let end = known.used.end();
        let Known { used, dumped } = known;
        let (linked, left_out) = (InodeMap::new(), HashMap::new());
        let (named, failed) = (used.clone(), Vec::new());
        Ok(Self { options, used, named, dumped, directories, linked, left_out, planned, failed, end })
    }

    /// The planned content.
    pub fn planned(&self) -> Planned {
        self.planned
    }

    /// The files that a restore of it and its base dumps has whole: dumped ones, and unchanged
    /// ones. For [`Options::had`] of dumps based on it.
    ///
    /// It excludes a directory with an omitted name whose file may be in the dump by another name.
    /// Neither of the two is newer once the name is wanted, for example with another pattern or
    /// another name of a directory above.
    pub fn had(&self) -> InodeMap {
        let mut had = self.named.clone();
        self.left_out.keys().for_each(|directory| had.remove(*directory));
        had
    }

    /// Its inodes, in the order of writing: directories, then all others. A source that reads ahead
    /// uses it.
    pub fn order(&self) -> Vec<u32> {
        let is_directory = |number: &u32| self.directories.contains(*number);
        let (mut first, second): (Vec<u32>, Vec<u32>) = self.dumped.iter().partition(is_directory);
        first.extend(second);
        first
    }

    fn map_files(
        &mut self,
        source: &mut dyn Source,
        sizes: &mut Sizes,
        watch: Watch<'_>,
    ) -> Result<(), WriteError> {
        let mut changed = InodeMap::new();
        let (mut done, mut goes_on) = (0, true);
        let since = self.options.since;
        let each = &mut |inode: &Inode| {
            self.used.insert(inode.number);
            self.end = self.end.max(u64::from(inode.number) + 1);
            if inode.kind == Kind::Directory {
                self.directories.insert(inode.number);
            } else if inode.links > 1 {
                self.linked.insert(inode.number);
            }
            let is_new = self.options.had.as_ref().is_some_and(|had| !had.contains(inode.number));
            if inode.modified.max(inode.changed).seconds >= i64::from(since) || since == 0 || is_new {
                changed.insert(inode.number);
            }
            sizes.note(inode);
            done += 1;
            if done % 4096 == 0 {
                goes_on &= watch(Progress { phase: Phase::MapFiles, done, total: 0, bytes: 0 });
            }
        };
        source.each_inode(each).map_err(WriteError::Source)?;
        self.dumped = changed;
        if goes_on { Ok(()) } else { Err(WriteError::Cancelled) }
    }

    /// Walks all directories from the root: unreachable and excluded files are not part of the
    /// dump, directories that lead to a dumped file are.
    fn map_directories(
        &mut self,
        source: &mut dyn Source,
        mut filter: Option<Filter<'_>>,
        lost: &InodeMap,
        watch: Watch<'_>,
    ) -> Result<(), WriteError> {
        let subtree = self.options.subtree.clone();
        let total = self.directories.count();
        let changed = std::mem::take(&mut self.dumped);
        let mut reached = InodeMap::new();
        let mut path: Vec<u8> = Vec::new();
        let mut done = 0;
        let mut found = subtree.is_empty();
        let mut stack = vec![self.step(source, ROOT, 0, subtree.len())];
        reached.insert(ROOT);
        while let Some(step) = stack.last_mut() {
            path.truncate(step.path);
            let Some(entry) = step.entries.next() else {
                let leads = step.leads_to_dumped || changed.contains(step.number) && step.wanted == 0;
                // The root is always included: Linux `restore` requires it.
                if leads || step.number == ROOT {
                    self.dumped.insert(step.number);
                }
                stack.pop();
                if let Some(above) = stack.last_mut() {
                    above.leads_to_dumped |= leads;
                }
                done += 1;
                if done % 256 == 0 && !watch(Progress { phase: Phase::MapDirectories, done, total, bytes: 0 })
                {
                    return Err(WriteError::Cancelled);
                }
                continue;
            };
            let wanted = step.wanted;
            let is_lost = lost.contains(entry.number);
            if is_lost {
                // It may have other names.
                self.linked.insert(entry.number);
            }
            if wanted > 0 && entry.name != subtree[subtree.len() - wanted] {
                self.leave_out(step.number, entry);
                continue;
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(&entry.name);
            if let Some(filter) = &mut filter
                && filter(&path) == Selection::Skip
            {
                // The base dump may have had this name. Its file is not gone, so a restore removes
                // the name by the content of the directory.
                step.leads_to_dumped |= self.leave_out(step.number, entry) && self.options.since > 0;
                continue;
            }
            let is_directory =
                self.directories.contains(entry.number) || is_lost && entry.kind == Some(Kind::Directory);
            if is_lost {
                self.used.insert(entry.number);
                self.end = self.end.max(u64::from(entry.number) + 1);
            }
            if wanted > 1 && !is_directory || !self.used.contains(entry.number) {
                continue;
            }
            found |= wanted <= 1;
            let first = !reached.contains(entry.number);
            reached.insert(entry.number);
            if is_lost {
                // It is unknown whether it changed; the error is reported when it is written.
                self.dumped.insert(entry.number);
                step.leads_to_dumped = true;
            }
            if is_directory {
                // Also in a damaged tree a directory is walked once.
                if first {
                    let below = self.step(source, entry.number, path.len(), wanted.saturating_sub(1));
                    stack.push(below);
                }
            } else if changed.contains(entry.number) {
                self.dumped.insert(entry.number);
                step.leads_to_dumped = true;
            }
        }
        if !found && let Some(failed) = self.failed.pop() {
            return Err(WriteError::Source(failed.reason));
        }
        if !found {
            return Err(WriteError::NoSuchPath(subtree.join(&b'/')));
        }
        // The descendants of an unreadable directory are unknown, and a restore removes files that
        // are not in use.
        if self.failed.is_empty() {
            self.used = reached.clone();
        } else {
            lost.iter().for_each(|number| self.used.insert(number));
            self.end = self.end.max(self.used.end());
        }
        self.named = reached;
        Ok(())
    }

    /// Remembers an omitted name, if its file may be in the dump by another one; returns whether it
    /// may.
    fn leave_out(&mut self, directory: u32, entry: Entry) -> bool {
        let may_be_there = self.linked.contains(entry.number);
        if may_be_there {
            self.left_out.entry(directory).or_default().insert(entry.name);
        }
        may_be_there
    }

    /// A directory's entries for the walk. An unreadable one leads nowhere, and is reported.
    fn step(&mut self, source: &mut dyn Source, number: u32, path: usize, wanted: usize) -> Step {
        let entries = source.entries(number).map(|(entries, _)| entries);
        let entries = entries.unwrap_or_else(|reason| {
            let what = "everything below this directory";
            self.failed.push(Failed { number, what, reason, lacks: Lacks::Below });
            Vec::new()
        });
        Step { number, path, entries: entries.into_iter(), leads_to_dumped: false, wanted }
    }

    /// Phases three and four: writes it, one volume after the other ([`Options::volume_bytes`]).
    ///
    /// # Errors
    /// [`WriteError::Output`] and [`WriteError::Cancelled`]. The result lists unreadable parts of
    /// the source.
    pub fn write(
        mut self,
        source: &mut dyn Source,
        out: &mut dyn Write,
        watch: Watch<'_>,
    ) -> Result<Written, WriteError> {
        let common = Common {
            date: self.options.date,
            base_date: self.options.since,
            level: self.options.level,
            label: self.options.label.clone(),
            file_system: self.options.file_system.clone(),
            device: self.options.device.clone(),
            host: self.options.host.clone(),
        };
        let volume_records = self.options.volume_bytes().map(|bytes| bytes / RECORD as u64);
        let output = Output::new(out, common.clone(), volume_records);
        let failed = std::mem::take(&mut self.failed);
        let mut tape = Tape { output, common, failed, buffer: vec![0; SEGMENT as usize] };
        let last = (self.end.max(2) - 1) as u32;
        tape.head(Header::new(What::Label, &tape.common, 0))?;
        tape.map(What::Used, &self.used, last)?;
        tape.map(What::Dumped, &self.dumped, last)?;
        let (directories, total) = (self.planned.directories, self.planned.inodes);
        let mut done = 0;
        for number in self.dumped.iter().filter(|number| self.directories.contains(*number)) {
            let left_out = self.left_out.get(&number);
            let is_kept = |entry: &Entry| {
                self.named.contains(entry.number) && left_out.is_none_or(|names| !names.contains(&entry.name))
            };
            tape.directory(source, number, &is_kept)?;
            done += 1;
            tape.tell(watch, Phase::WriteDirectories, done, directories)?;
        }
        for number in self.dumped.iter().filter(|number| !self.directories.contains(*number)) {
            tape.file(source, number)?;
            done += 1;
            tape.tell(watch, Phase::WriteFiles, done, total)?;
        }
        loop {
            tape.head(Header::new(What::End, &tape.common, last))?;
            if tape.output.records.is_multiple_of(RECORDS_PER_BLOCK) {
                break;
            }
        }
        tape.output.finish().map_err(WriteError::Output)?;
        Ok(Written { bytes: tape.output.records * RECORD as u64, inodes: total, failed: tape.failed })
    }
}

/// Sizes of files, to report the size of a dump in advance.
#[derive(Default)]
struct Sizes(Vec<(u32, u64)>);

impl Sizes {
    fn note(&mut self, inode: &Inode) {
        if inode.size > 0 && inode.kind.has_content() {
            self.0.push((inode.number, inode.size));
        }
    }

    fn of(&self, number: u32) -> u64 {
        self.0.binary_search_by_key(&number, |(number, _)| *number).map_or(0, |index| self.0[index].1)
    }
}

/// The output of the dump.
struct Tape<'a> {
    output: Output<'a>,
    common: Common,
    failed: Vec<Failed>,
    /// The data of a file for one header: one buffer for all of them, as clearing half a MiB is
    /// more work than a small file.
    buffer: Vec<u8>,
}

impl Tape<'_> {
    fn tell(&self, watch: Watch<'_>, phase: Phase, done: u64, total: u64) -> Result<(), WriteError> {
        let progress = Progress { phase, done, total, bytes: self.output.records * RECORD as u64 };
        if watch(progress) { Ok(()) } else { Err(WriteError::Cancelled) }
    }

    fn head(&mut self, header: Header) -> Result<(), WriteError> {
        let there = header.pieces.iter().filter(|is_there| **is_there).count() as u32;
        let rest = header.map_records + there;
        self.output.put_header(header, rest).map_err(WriteError::Output)
    }

    fn map(&mut self, what: What, map: &InodeMap, last: u32) -> Result<(), WriteError> {
        let bytes = map.to_records(u64::from(last));
        let mut header = Header::new(what, &self.common, last);
        header.size = bytes.len() as u64;
        header.map_records = (bytes.len() / RECORD) as u32;
        header.content_crc = Some(content_checksum(&bytes));
        self.head(header)?;
        self.output.put(&bytes).map_err(WriteError::Output)
    }

    fn fail(&mut self, number: u32, what: &'static str, reason: std::io::Error) {
        self.failed.push(Failed { number, what, reason, lacks: Lacks::File });
    }

    fn fail_below(&mut self, number: u32, what: &'static str, reason: std::io::Error) {
        self.failed.push(Failed { number, what, reason, lacks: Lacks::Below });
    }

    fn directory(
        &mut self,
        source: &mut dyn Source,
        number: u32,
        is_kept: &dyn Fn(&Entry) -> bool,
    ) -> Result<(), WriteError> {
        let mut inode = match source.inode(number) {
            Ok(inode) => inode,
            Err(reason) => {
                self.fail_below(number, "the whole directory", reason);
                return Ok(());
            }
        };
        let (entries, parent) = match source.entries(number) {
            Ok(entries) => entries,
            // One without its names would mean that everything in it is gone.
            Err(reason) => {
                self.fail_below(number, "this directory with the names in it", reason);
                return Ok(());
            }
        };
        // A file that the filter excluded has no name in the dump either.
        let kept = entries.iter().filter(|entry| is_kept(entry));
        let bytes = directory::encode(number, parent, kept);
        inode.size = bytes.len() as u64;
        let pieces = bytes.len().div_ceil(RECORD);
        let mut padded = bytes;
        padded.resize(pieces * RECORD, 0);
        let (blocks, said) = self.attribute_blocks(source, &inode);
        for (index, segment) in padded.chunks(SEGMENT as usize).enumerate() {
            let mut header = self.file_header(&inode, index == 0);
            header.attribute_blocks = Some(said);
            header.pieces = vec![true; segment.len() / RECORD];
            header.content_crc = Some(content_checksum(segment));
            self.head(header)?;
            self.output.put(segment).map_err(WriteError::Output)?;
        }
        self.attributes(&inode, blocks)
    }

    fn file(&mut self, source: &mut dyn Source, number: u32) -> Result<(), WriteError> {
        let inode = match source.inode(number) {
            // Its turn is over: it was not recognised as one, as it could not be read.
            Ok(inode) if inode.kind == Kind::Directory => {
                let reason = std::io::Error::other("it could not be read before");
                self.fail_below(number, "the whole directory", reason);
                return Ok(());
            }
            Ok(inode) => inode,
            Err(reason) => {
                self.fail(number, "the whole file", reason);
                return Ok(());
            }
        };
        let (blocks, said) = self.attribute_blocks(source, &inode);
        if inode.kind.has_content() && inode.size > 0 {
            self.content(source, &inode, said)?;
        } else {
            let mut header = self.file_header(&inode, true);
            header.attribute_blocks = Some(said);
            self.head(header)?;
        }
        self.attributes(&inode, blocks)
    }

    fn content(
        &mut self,
        source: &mut dyn Source,
        inode: &Inode,
        attribute_blocks: u32,
    ) -> Result<(), WriteError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let outcome = self.content_by(source, inode, attribute_blocks, &mut buffer);
        self.buffer = buffer;
        outcome
    }

    fn content_by(
        &mut self,
        source: &mut dyn Source,
        inode: &Inode,
        attribute_blocks: u32,
        buffer: &mut [u8],
    ) -> Result<(), WriteError> {
        let mut is_whole = true;
        let mut extents = match source.extents(inode.number) {
            Ok(extents) => extents,
            Err(reason) => {
                self.fail(inode.number, "the content: it is a hole in the dump", reason);
                is_whole = false;
                Vec::new()
            }
        };
        extents.retain(|(offset, length)| *length > 0 && *offset < inode.size);
        let end = extents.last().map_or(0, |(offset, length)| (offset + length).min(inode.size));
        let end = if inode.size - end > END_HOLE_MAX { end } else { inode.size };
        let mut rest = extents.as_slice();
        let mut at = 0;
        loop {
            let length = SEGMENT.min(end - at);
            while let [(offset, size), more @ ..] = rest
                && offset + size <= at
            {
                rest = more;
            }
            let pieces = pieces_of(rest, at, length);
            let (there, is_read) = self.read_pieces(source, inode, at, &pieces, buffer);
            let mut header = self.file_header(inode, at == 0);
            header.attribute_blocks = Some(attribute_blocks);
            let sum = content_checksum(&buffer[..there]);
            // Zeroes and holes in place of unreadable data get a wrong sum: a reader reports the
            // file.
            header.content_crc = Some(if is_whole && is_read { sum } else { !sum });
            header.pieces = pieces;
            self.head(header)?;
            self.output.put(&buffer[..there]).map_err(WriteError::Output)?;
            at += length;
            if at >= end {
                return Ok(());
            }
        }
    }

    /// Reads the data pieces of a segment, one after the other, into `buffer`; returns their bytes,
    /// and whether all were read. Unreadable ones become zeroes.
    fn read_pieces(
        &mut self,
        source: &mut dyn Source,
        inode: &Inode,
        at: u64,
        pieces: &[bool],
        buffer: &mut [u8],
    ) -> (usize, bool) {
        let (mut there, mut is_read) = (0, true);
        let mut index = 0;
        while index < pieces.len() {
            let run = pieces[index..].iter().take_while(|piece| **piece == pieces[index]).count();
            if pieces[index] {
                let from = at + (index * RECORD) as u64;
                let bytes = ((run * RECORD) as u64).min(inode.size - from) as usize;
                let place = &mut buffer[there..there + run * RECORD];
                place[bytes..].fill(0);
                if let Err(reason) = source.read(inode.number, from, &mut place[..bytes]) {
                    is_read = false;
                    read_blocks(source, inode.number, from, &mut place[..bytes]);
                    self.fail(inode.number, "some of its content: it is zeroes in the dump", reason);
                }
                there += run * RECORD;
            }
            index += run;
        }
        (there, is_read)
    }

    fn file_header(&self, inode: &Inode, first: bool) -> Header {
        let what = if first { What::File } else { What::More };
        let mut header = Header::new(what, &self.common, inode.number);
        header.file = Some(inode.clone());
        header.size = inode.size;
        header
    }

    /// A file's extended attributes as blocks, and how many there are. They are read before its
    /// header is written, which contains that number: also of unreadable ones, so that they are
    /// known to be missing.
    fn attribute_blocks(&mut self, source: &mut dyn Source, inode: &Inode) -> (Vec<Vec<u8>>, u32) {
        let attributes = match source.attributes(inode.number) {
            Ok(attributes) => attributes,
            Err(reason) => {
                self.fail(inode.number, "its extended attributes", reason);
                return (Vec::new(), 1);
            }
        };
        let (blocks, left_out) = attributes::encode(&attributes);
        for name in left_out {
            let name = name.escape_ascii();
            let reason = std::io::Error::other(format!("the format has no place for `{name}`"));
            let what = "an extended attribute";
            self.failed.push(Failed { number: inode.number, what, reason, lacks: Lacks::Nothing });
        }
        let count = blocks.len() as u32;
        (blocks, count)
    }

    fn attributes(&mut self, inode: &Inode, blocks: Vec<Vec<u8>>) -> Result<(), WriteError> {
        for block in blocks {
            let mut header = self.file_header(inode, true).with_extended();
            header.size = block.len() as u64;
            header.pieces = vec![true; block.len().div_ceil(RECORD)];
            let mut padded = block;
            padded.resize(header.pieces.len() * RECORD, 0);
            header.content_crc = Some(content_checksum(&padded));
            self.head(header)?;
            self.output.put(&padded).map_err(WriteError::Output)?;
        }
        Ok(())
    }
}

/// Reads the readable ones of these bytes; the rest is zeroes.
fn read_blocks(source: &mut dyn Source, number: u32, from: u64, bytes: &mut [u8]) {
    for (index, block) in bytes.chunks_mut(BLOCK).enumerate() {
        if source.read(number, from + (index * BLOCK) as u64, block).is_err() {
            block.fill(0);
        }
    }
}

/// Which pieces of `length` bytes from `at` contain a part of an extent.
fn pieces_of(extents: &[(u64, u64)], at: u64, length: u64) -> Vec<bool> {
    let mut pieces = vec![false; length.div_ceil(RECORD as u64) as usize];
    for (offset, size) in extents.iter().take_while(|(offset, _)| *offset < at + length) {
        let first = offset.saturating_sub(at) / RECORD as u64;
        let end = ((offset + size).min(at + length).saturating_sub(at)).div_ceil(RECORD as u64);
        for piece in pieces.iter_mut().take(end as usize).skip(first as usize) {
            *piece = true;
        }
    }
    pieces
}
