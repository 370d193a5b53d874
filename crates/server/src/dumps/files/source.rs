//! The tree of an image as a dump wants it, read ahead.
//!
//! Threads load the next files of the dump: small files and directories in batches, whose blocks
//! are read from the device together, and large files one piece after the other. Loaded data that
//! is not yet used is bounded in bytes and in files.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, FileId};
use cairn_bsddump::{Attribute, Entry, Inode, InodeMap, Kind, ROOT, Source, Time};
use cairn_files::{NodeKind, Stat, Tree, TreeError};
use parking_lot::{Condvar, Mutex};

/// Threads that read ahead: one makes a batch ready while the other's is on its way from the
/// device.
pub(super) const THREADS: usize = 2;
/// A file that is not longer is loaded whole, with its attributes; a directory with its names.
const SMALL: u64 = 256 << 10;
/// Bytes of a longer file that are read at once.
const PIECE: u64 = 1 << 20;
/// Pieces of a long file ahead of the one that is written.
const PIECES_AHEAD: u64 = 4;
/// Files ahead of the one that is written.
const FILES_AHEAD: usize = 512;
/// Files that a thread loads at a time, in one batch: 16 MiB at most.
const BATCH: usize = 64;
/// Bytes that are loaded and not yet written; past it each thread may still have one batch in
/// progress.
const BYTES_AHEAD: u64 = 40 << 20;
/// Entries that are requested at once.
const AT_ONCE: usize = 1024;

// A file that is waited for can be loaded.
const _: () = assert!(BATCH <= FILES_AHEAD);

/// The names in a directory, and its parent.
type Names = (Vec<Entry>, u32);

/// The extended attributes, and the content or the names where all of them are loaded.
struct Loaded {
    attributes: io::Result<Vec<Attribute>>,
    content: Option<io::Result<Vec<u8>>>,
    /// They are wanted once.
    names: Option<io::Result<Names>>,
    stat: io::Result<Stat>,
    /// Approximate size in memory.
    bytes: u64,
}

/// Where bytes of a file that was loaded ahead are.
enum Ahead {
    Copied,
    /// It is long.
    Pieces {
        size: u64,
    },
    /// It has holes, or could not be read in one go.
    Nothing,
}

/// The finished and the remaining work of the threads.
#[derive(Default)]
struct Work {
    order: Vec<u32>,
    /// The first of `order` that no thread has begun to load.
    next: usize,
    /// The file of `order` that is being written.
    at: usize,
    loaded: HashMap<u32, Loaded>,
    loaded_bytes: u64,
    /// Pieces of long files that are requested, by file and offset: in progress, or loaded.
    wanted: Vec<(FileId, u64, usize)>,
    pieces: HashMap<(FileId, u64), Option<io::Result<Vec<u8>>>>,
    ended: bool,
}

impl Work {
    /// A thread may begin with another batch.
    fn has_room(&self) -> bool {
        let is_near = self.next + BATCH <= self.at + FILES_AHEAD;
        self.next < self.order.len() && self.loaded_bytes < BYTES_AHEAD && is_near
    }
}

/// A tree to dump.
pub(super) struct TreeSource {
    tree: Arc<Tree>,
    /// Names of directories that were read, when they are wanted.
    names: Mutex<Option<Vec<(u32, u32)>>>,
    /// Numbers of files whose inodes can't be read, if there are such files.
    lost: Mutex<Vec<(FileId, FileId)>>,
    work: Mutex<Work>,
    /// Signals that there is more to load, or the end.
    more: Condvar,
    /// Something was loaded.
    done: Condvar,
}

/// Ends the threads of a source.
pub(super) struct Ends<'a>(&'a TreeSource);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.work.lock().ended = true;
        self.0.more.notify_all();
    }
}

fn failed(error: TreeError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

impl TreeSource {
    pub(super) fn new(tree: Arc<Tree>) -> Self {
        Self {
            tree,
            names: Mutex::default(),
            lost: Mutex::default(),
            work: Mutex::default(),
            more: Condvar::new(),
            done: Condvar::new(),
        }
    }

    /// Sets the files to write and their order. From here on [`TreeSource::load`] has work.
    pub(super) fn begin(&self, order: Vec<u32>) {
        self.work.lock().order = order;
        self.more.notify_all();
    }

    /// Stops the threads when it is dropped. They wait for the next file to load, so a join would
    /// hang for ever if one of them could not be started or the writing panics.
    pub(super) fn ends(&self) -> Ends<'_> {
        Ends(self)
    }

    /// Begins to note the names of the directories that are read.
    pub(super) fn collect(&self) {
        *self.names.lock() = Some(Vec::new());
    }

    /// The recorded names, file and directory; none if a directory could not be read.
    pub(super) fn collected(&self) -> Option<Vec<(u32, u32)>> {
        self.names.lock().take()
    }

    fn number(&self, file: FileId) -> io::Result<u32> {
        number_of(&self.tree, file)
    }

    fn file(&self, number: u32) -> FileId {
        file_of(&self.tree, number)
    }

    /// The loop of a thread: loads the next files until the end.
    pub(super) fn load(&self) {
        let mut work = self.work.lock();
        loop {
            if work.ended {
                return;
            }
            if let Some((file, offset, length)) = work.wanted.pop() {
                drop(work);
                let piece = read_whole(&self.tree, file, offset, length);
                work = self.work.lock();
                work.pieces.insert((file, offset), Some(piece));
                self.done.notify_all();
                continue;
            }
            if work.has_room() {
                let end = (work.next + BATCH).min(work.order.len());
                let batch = work.order[work.next..end].to_vec();
                work.next = end;
                drop(work);
                let loaded = self.load_batch(&batch);
                work = self.work.lock();
                for (number, one) in batch.into_iter().zip(loaded) {
                    work.loaded_bytes += one.bytes;
                    work.loaded.insert(number, one);
                }
                self.done.notify_all();
                continue;
            }
            self.more.wait(&mut work);
        }
    }

    /// Loads files: the content of those that are small in one go.
    fn load_batch(&self, numbers: &[u32]) -> Vec<Loaded> {
        let files: Vec<FileId> = numbers.iter().map(|number| self.file(*number)).collect();
        let stats: Vec<io::Result<Stat>> =
            files.iter().map(|file| self.tree.stat(*file).map_err(failed)).collect();
        // Where holes are is not in its inode.
        let is_whole = |stat: &io::Result<Stat>| {
            stat.as_ref().is_ok_and(|stat| stat.kind != NodeKind::File || !has_holes(stat))
        };
        let known = files.iter().zip(&stats);
        let together: Vec<FileId> = known.filter(|(_, stat)| is_whole(stat)).map(|(file, _)| *file).collect();
        let mut contents = self.tree.read_together(&together, SMALL).into_iter();
        let load = |(number, (file, stat)): (&u32, (FileId, io::Result<Stat>))| {
            let content = if is_whole(&stat) { contents.next().flatten() } else { None };
            let content = content.map(|read| read.map_err(failed));
            let attributes = match &stat {
                Ok(stat) if stat.has_xattrs => self.read_attributes(file),
                _ => Ok(Vec::new()),
            };
            // Names take somewhat more memory than their blocks.
            let is_listed = |stat: &&Stat| stat.kind == NodeKind::Directory && 2 * stat.bytes <= SMALL;
            let listed = stat.as_ref().ok().filter(is_listed).map(|stat| 2 * stat.bytes);
            let names = listed.map(|_| self.read_entries(*number));
            let read = content.as_ref().and_then(|read| read.as_ref().ok()).map_or(0, Vec::len);
            Loaded { attributes, content, names, stat, bytes: read as u64 + listed.unwrap_or(0) }
        };
        numbers.iter().zip(files.into_iter().zip(stats)).map(load).collect()
    }

    fn read_attributes(&self, file: FileId) -> io::Result<Vec<Attribute>> {
        let mut attributes = Vec::new();
        for name in self.tree.xattrs(file).map_err(failed)? {
            let value = self.tree.xattr(file, &name).map_err(failed)?;
            attributes.push(Attribute { name, value });
        }
        Ok(attributes)
    }

    /// Waits for the loaded content of a file, if it is one that is loaded ahead.
    fn with<T>(&self, number: u32, get: impl FnOnce(&mut Loaded) -> T) -> Option<T> {
        let mut work = self.work.lock();
        // Only files that the threads have begun are waited for: not before the order is known, and
        // not files outside of the dump.
        let position = match work.order.get(work.at) {
            Some(now) if *now == number => work.at,
            Some(_) if work.order.get(work.at + 1) == Some(&number) => work.at + 1,
            _ => work.order.iter().skip(work.at).position(|one| *one == number)? + work.at,
        };
        if position > work.at {
            self.leave(&mut work, position);
        }
        while !work.loaded.contains_key(&number) {
            self.done.wait(&mut work);
        }
        work.loaded.get_mut(&number).map(get)
    }

    /// The dump has finished the files before `position`.
    fn leave(&self, work: &mut Work, position: usize) {
        for index in work.at..position {
            let number = work.order[index];
            if let Some(gone) = work.loaded.remove(&number) {
                work.loaded_bytes -= gone.bytes;
            }
        }
        work.at = position;
        for (file, offset, _) in std::mem::take(&mut work.wanted) {
            work.pieces.remove(&(file, offset));
        }
        work.pieces.retain(|_, piece| piece.is_none());
        // Not before there is room for a whole batch: a thread that wakes earlier would sleep
        // again.
        if work.has_room() {
            self.more.notify_one();
        }
    }

    fn read_entries(&self, directory: u32) -> io::Result<Names> {
        let file = self.file(directory);
        let parent = self.number(self.tree.parent(file).map_err(failed)?)?;
        let mut entries = Vec::new();
        let mut after = 0;
        loop {
            let found = self.tree.read_directory(file, after, AT_ONCE).map_err(failed)?;
            let Some(last) = found.last() else { break };
            after = last.cookie;
            for entry in found.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
                let number = self.number(entry.file)?;
                entries.push(Entry { number, kind: Some(kind(entry.kind)), name: entry.name });
            }
        }
        Ok((entries, parent))
    }

    /// Bytes of a long file: waits for this piece, and requests the next ones. False where a piece
    /// could not be read: most of these bytes may be fine.
    fn read_long(&self, file: FileId, size: u64, offset: u64, bytes: &mut [u8]) -> bool {
        let mut filled = 0;
        while filled < bytes.len() {
            let at = offset + filled as u64;
            let start = at - at % PIECE;
            let mut work = self.work.lock();
            // A failed one stays until the dump is past it: otherwise reading it block by block
            // would load it again for each block.
            work.pieces.retain(|(of, at), piece| *of != file || *at >= start || piece.is_none());
            for ahead in 0..=PIECES_AHEAD {
                let piece = start + ahead * PIECE;
                if piece < size && !work.pieces.contains_key(&(file, piece)) {
                    work.pieces.insert((file, piece), None);
                    let length = PIECE.min(size - piece) as usize;
                    // Taken from the end.
                    work.wanted.insert(0, (file, piece, length));
                }
            }
            self.more.notify_all();
            while matches!(work.pieces.get(&(file, start)), Some(None)) {
                self.done.wait(&mut work);
            }
            let Some(Some(Ok(piece))) = work.pieces.get(&(file, start)) else { return false };
            let from = (at - start) as usize;
            let count = (piece.len() - from).min(bytes.len() - filled);
            bytes[filled..filled + count].copy_from_slice(&piece[from..from + count]);
            filled += count;
            if from + count == piece.len() {
                work.pieces.remove(&(file, start));
            }
        }
        true
    }
}

/// A dump's numbers have 32 bits, and 2 for the root; the file that has that number here takes the
/// root's.
pub(super) fn number_of(tree: &Tree, file: FileId) -> io::Result<u32> {
    let root = tree.root();
    let number = match file.0 {
        _ if file == root => u64::from(ROOT),
        2 => root.0,
        other => other,
    };
    let too_large = "its number does not fit into a dump, whose numbers have 32 bits";
    u32::try_from(number).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, too_large))
}

/// The file that has a number in a dump.
fn file_of(tree: &Tree, number: u32) -> FileId {
    let root = tree.root();
    match u64::from(number) {
        2 => root,
        other if other == root.0 => FileId(2),
        other => FileId(other),
    }
}

/// A directory's path, or the number of another file: its names are not known without a search of
/// all directories.
pub(super) fn name_of(tree: &Tree, number: u32) -> String {
    match tree.directory_path(file_of(tree, number)) {
        Ok(path) => format!("/{}", cairn_files::quoted_path(&path)),
        Err(_) => format!("the file with the number {number}"),
    }
}

/// An error once more: it can't be cloned.
fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// According to the count of blocks.
fn has_holes(stat: &Stat) -> bool {
    stat.blocks < stat.bytes.div_ceil(BLOCK_SIZE as u64)
}

fn read_whole(tree: &Tree, file: FileId, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    if length == 0 {
        return Ok(Vec::new());
    }
    let bytes = match tree.stat(file).map_err(failed)?.kind {
        NodeKind::SymbolicLink => {
            tree.read_link(file).map_err(failed)?.into_iter().skip(offset as usize).collect()
        }
        _ => tree.read(file, offset, length).map_err(failed)?,
    };
    if bytes.len() == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn time(ns: i64) -> Time {
    Time { seconds: ns.div_euclid(1_000_000_000), nanoseconds: ns.rem_euclid(1_000_000_000) as u32 }
}

fn kind(kind: NodeKind) -> Kind {
    match kind {
        NodeKind::File => Kind::Regular,
        NodeKind::Directory => Kind::Directory,
        NodeKind::SymbolicLink => Kind::Symlink,
        NodeKind::CharacterDevice => Kind::Character,
        NodeKind::BlockDevice => Kind::Block,
        NodeKind::Fifo => Kind::Fifo,
        NodeKind::Socket => Kind::Socket,
    }
}

fn inode(number: u32, stat: &Stat) -> Inode {
    // Twelve bits of major, twenty of minor number, as the kernel's `new_decode_dev` has them.
    let device = ((stat.device >> 8) & 0xfff, stat.device & 0xff | (stat.device >> 12) & 0xf_ff00);
    Inode {
        number,
        kind: kind(stat.kind),
        permissions: (stat.mode & 0o7777) as u16,
        links: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.bytes,
        accessed: time(stat.accessed_ns),
        modified: time(stat.modified_ns),
        changed: time(stat.changed_ns),
        born: Some(time(stat.created_ns)),
        device,
    }
}

/// The threads share it with the dump.
pub(super) struct Reading<'a>(pub(super) &'a TreeSource);

impl Source for Reading<'_> {
    fn each_inode(&mut self, each: &mut dyn FnMut(&Inode)) -> io::Result<()> {
        let own = self.0;
        let root = own.tree.root();
        each(&inode(ROOT, &own.tree.stat(root).map_err(failed)?));
        // The file whose number the root takes gets the root's own number.
        let mut exchanged = None;
        let mut from = Some(FileId(0));
        while let Some(at) = from {
            let nodes = own.tree.readable_nodes(at).map_err(failed)?;
            from = nodes.next;
            own.lost.lock().extend(nodes.lost);
            for stat in nodes.stats.iter().filter(|stat| stat.links > 0) {
                match stat.file {
                    file if file == root => {
                        if let Some(stat) = exchanged.take() {
                            each(&inode(own.number(FileId(2))?, &stat));
                        }
                    }
                    FileId(2) => exchanged = Some(*stat),
                    file => each(&inode(own.number(file)?, stat)),
                }
            }
        }
        Ok(())
    }

    fn unreadable(&mut self) -> InodeMap {
        let mut lost = InodeMap::new();
        for (first, end) in &*self.0.lost.lock() {
            // A file whose number does not fit in a dump is reported by its name.
            (first.0..end.0)
                .filter_map(|file| self.0.number(FileId(file)).ok())
                .for_each(|number| lost.insert(number));
        }
        lost
    }

    fn inode(&mut self, number: u32) -> io::Result<Inode> {
        let of = |stat: &Stat| inode(number, stat);
        let known = self.0.with(number, |loaded| loaded.stat.as_ref().map(of).map_err(again));
        let read = known
            .unwrap_or_else(|| self.0.tree.stat(self.0.file(number)).map(|stat| of(&stat)).map_err(failed));
        if read.is_err() {
            // If it is a directory its names will not be read: the recorded names are incomplete.
            *self.0.names.lock() = None;
        }
        read
    }

    fn entries(&mut self, directory: u32) -> io::Result<Names> {
        let known = self.0.with(directory, |loaded| loaded.names.take()).flatten();
        let read = known.unwrap_or_else(|| self.0.read_entries(directory));
        let mut names = self.0.names.lock();
        match (&read, &mut *names) {
            (Ok((entries, _)), Some(names)) => {
                names.extend(entries.iter().map(|entry| (entry.number, directory)));
            }
            (Err(_), names) => *names = None,
            _ => {}
        }
        drop(names);
        read
    }

    fn extents(&mut self, number: u32) -> io::Result<Vec<(u64, u64)>> {
        let own = self.0;
        let known = own.with(number, |loaded| match (&loaded.stat, &loaded.content) {
            (Ok(stat), Some(_)) => Some(vec![(0, stat.bytes)]),
            (Ok(stat), None) if !has_holes(stat) => Some(vec![(0, stat.bytes)]),
            _ => None,
        });
        if let Some(whole) = known.flatten() {
            return Ok(whole);
        }
        let file = own.file(number);
        let stat = own.tree.stat(file).map_err(failed)?;
        if stat.kind == NodeKind::SymbolicLink {
            return Ok(vec![(0, stat.bytes)]);
        }
        let mut extents = Vec::new();
        let mut at = 0;
        while at < stat.bytes {
            let start = match own.tree.seek_data(file, at) {
                Ok(start) => start,
                Err(TreeError::NoData) => break,
                Err(error) => return Err(failed(error)),
            };
            let end = own.tree.seek_hole(file, start).map_err(failed)?;
            extents.push((start, end - start));
            at = end;
        }
        Ok(extents)
    }

    fn read(&mut self, number: u32, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let own = self.0;
        let end = offset as usize + bytes.len();
        let ahead = own.with(number, |loaded| match (&loaded.content, &loaded.stat) {
            (Some(Ok(content)), _) => match content.get(offset as usize..end) {
                Some(part) => {
                    bytes.copy_from_slice(part);
                    Ahead::Copied
                }
                None => Ahead::Nothing,
            },
            (None, Ok(stat)) if !has_holes(stat) => Ahead::Pieces { size: stat.bytes },
            _ => Ahead::Nothing,
        });
        let file = own.file(number);
        let is_read = match ahead.unwrap_or(Ahead::Nothing) {
            Ahead::Copied => true,
            Ahead::Pieces { size } => own.read_long(file, size, offset, bytes),
            Ahead::Nothing => false,
        };
        // More is loaded ahead than is requested here, so an unreadable block in it does not mean
        // that these bytes are.
        if !is_read {
            bytes.copy_from_slice(&read_whole(&own.tree, file, offset, bytes.len())?);
        }
        Ok(())
    }

    fn attributes(&mut self, number: u32) -> io::Result<Vec<Attribute>> {
        let known = self.0.with(number, |loaded| loaded.attributes.as_ref().cloned().map_err(again));
        match known {
            Some(attributes) => attributes,
            None => self.0.read_attributes(self.0.file(number)),
        }
    }
}

#[cfg(test)]
mod tests;
