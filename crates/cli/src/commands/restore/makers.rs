//! Files of a dump on their way to the disk: one thread reads the dump, others create its files.
//!
//! A small file costs some system calls, nearly all of whose time the kernel spends on its name and
//! its inode. Those of one directory stay together, as two threads that make names in it would wait
//! for each other. The reading thread writes files that are too large for memory, as it reads them.
//!
//! # Invariants
//! 1. Each file has its names for itself, and no directory changes its name or its owner meanwhile:
//!    so the order in which files are made is free.
//! 2. Memory is bounded by [`BATCH_BYTES`] for each batch, of which there are [`WAITING`], and one
//!    for each thread.
//! 3. Problems are reported in the order of the dump, regardless of the thread that found them.
//! 4. After a write that failed (the disk is full) no other file is begun, unless the file itself
//!    is too large for this file system.
//! 5. An owner or an attribute that cannot be set is reported; the file and its other names are
//!    still restored.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cairn_bsddump::{Attribute, Inode, Kind, ReadError, Reader};

use super::host::{OWNER, Place, Stand, Target};
use crate::exit::Failure;

/// A symbolic link's target is not longer on Linux.
const LINK_MAX: usize = 4096;
/// Bytes of the largest file that is held in memory.
const HELD_MAX: u64 = 256 << 10;
/// Bytes of content from which on a batch is full.
const BATCH_BYTES: usize = 1 << 20;
/// Files in a batch that is sent when another directory begins, and in a full batch.
const BATCH_FILES: (usize, usize) = (32, 512);
/// Batches that wait for a thread: while they do, the dump is not read.
const WAITING: usize = 2;
/// Threads at most: beyond a few they wait for the journal of the file system.
const THREADS_MAX: usize = 4;

/// How a file gets its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner<'a> {
    /// Replaces any file with that name. A file that fails half way stays incomplete.
    InPlace,
    /// Replaces the file with that name only when its content is complete; until then it is in this
    /// directory. A failure leaves nothing.
    Aside(&'a str),
}

/// A file that was read.
struct Held {
    /// Its position in the dump.
    order: u64,
    inode: Inode,
    names: Vec<Vec<u8>>,
    bytes: Vec<u8>,
    /// Which parts of the file these are: offset and length of each.
    pieces: Vec<(u64, usize)>,
    attributes: Vec<Attribute>,
}

#[derive(Default)]
struct Batch {
    files: Vec<Held>,
    bytes: usize,
}

/// State shared by all threads.
#[derive(Default)]
struct Shared {
    troubles: Mutex<Vec<(u64, String)>>,
    has_failed: AtomicBool,
    /// The reason, until it is reported.
    failure: Mutex<Option<ReadError>>,
}

/// Where files of a dump are given to be made.
pub(super) struct Makers<'a> {
    /// For files that are too large to be held.
    own: Maker<'a>,
    batch: Batch,
    sender: SyncSender<Batch>,
    taken: u64,
}

/// One of the threads.
struct Maker<'a> {
    number: usize,
    target: &'a Target,
    manner: Manner<'a>,
    shared: &'a Shared,
    stand: Stand,
    aside: Stand,
}

/// The extended attributes of a file that was filled. Content that can't be written ends the
/// restore; the error inside is the file's own, as that it is too large for the file system.
type Filled<'a> = Result<io::Result<Cow<'a, [Attribute]>>, ReadError>;

/// Why a file that has its content has not got its owner, its attributes, its mode or its times.
type Undressed = Option<io::Error>;

/// A file to create: its inode, and its content.
struct Making<'a> {
    inode: &'a Inode,
    link: &'a [u8],
    mode: rustix::fs::Mode,
    fill: &'a mut dyn FnMut(Option<&File>) -> Filled<'a>,
    /// It is read as it comes, and there is nothing for a second time.
    comes_once: bool,
    is_spent: bool,
}

/// Creates all files that `read` yields. Also returns the problems of single files.
pub(super) fn run(
    target: &Target,
    manner: Manner<'_>,
    read: impl FnOnce(&mut Makers<'_>) -> Result<(), Failure>,
) -> (Result<(), Failure>, Vec<String>) {
    let shared = Shared::default();
    let (sender, receiver) = sync_channel(WAITING);
    // The threads alone have it: when all of them are gone, nothing waits for them.
    let receiver = Arc::new(Mutex::new(receiver));
    let maker = |number: usize| Maker {
        number,
        target,
        manner,
        shared: &shared,
        stand: Stand::default(),
        aside: Stand::default(),
    };
    let outcome = std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        for number in 1..=processors.min(THREADS_MAX) {
            let (maker, receiver) = (&maker, receiver.clone());
            scope.spawn(move || maker(number).serve(&receiver));
        }
        drop(receiver);
        let mut makers = Makers { own: maker(0), batch: Batch::default(), sender, taken: 0 };
        let outcome = read(&mut makers);
        makers.send();
        outcome
    });
    let failed = locked(&shared.failure).take().map_or(Ok(()), |error| Err(error.into()));
    let mut troubles = std::mem::take(&mut *locked(&shared.troubles));
    troubles.sort_by_key(|(order, _)| *order);
    (failed.and(outcome), troubles.into_iter().map(|(_, trouble)| trouble).collect())
}

/// Nothing is done under a lock that could leave it half done.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Makers<'_> {
    /// Takes the file that was read last, to be made under these names.
    pub(super) fn take(
        &mut self,
        reader: &mut Reader<Box<dyn Read>>,
        inode: &Inode,
        names: Vec<Vec<u8>>,
    ) -> Result<(), Failure> {
        self.taken += 1;
        if inode.kind == Kind::Regular && inode.size > HELD_MAX {
            return Ok(self.stream(reader, inode, &names)?);
        }
        let is_next_door = self.batch.files.last().is_none_or(|last| folder(&last.names) == folder(&names));
        if !is_next_door && self.batch.files.len() >= BATCH_FILES.0 {
            self.send();
        }
        let held = Held::read(reader, self.taken, inode, names)?;
        self.batch.bytes += held.bytes.len();
        self.batch.files.push(held);
        if self.batch.bytes >= BATCH_BYTES || self.batch.files.len() >= BATCH_FILES.1 {
            self.send();
        }
        self.own.shared.check()
    }

    /// Notes how a file came out that was read last and is not to be made.
    pub(super) fn note(&mut self, names: &[Vec<u8>], outcome: io::Result<()>) {
        self.taken += 1;
        if let (Err(error), Some(name)) = (outcome, names.first()) {
            self.own.shared.note(self.taken, name, &error);
        }
    }

    fn stream(
        &mut self,
        reader: &mut Reader<Box<dyn Read>>,
        inode: &Inode,
        names: &[Vec<u8>],
    ) -> Result<(), ReadError> {
        // Its access list, if any, follows its content.
        let mode = OWNER;
        let mut fill = |file: Option<&File>| {
            let Some(file) = file else { return Ok(Ok(Cow::default())) };
            let (mut end, mut too_large) = (0, None);
            let content = reader.content(&mut |offset, bytes| {
                // The rest of it is still read, to reach the next file.
                if too_large.is_some() {
                    return Ok(());
                }
                end = offset + bytes.len() as u64;
                match file.write_all_at(bytes, offset) {
                    Err(error) if is_too_large(&error) => {
                        too_large = Some(error);
                        Ok(())
                    }
                    written => written,
                }
            })?;
            if let Some(error) = too_large {
                return Ok(Err(error));
            }
            Ok(stretch(file, end, inode).map(|()| Cow::Owned(content.attributes)))
        };
        let making = Making { inode, link: &[], mode, fill: &mut fill, comes_once: true, is_spent: false };
        self.own.make(self.taken, names, making)
    }

    fn send(&mut self) {
        if !self.batch.files.is_empty() {
            // No thread receives it if all have panicked; the join reports that.
            let _ = self.sender.send(std::mem::take(&mut self.batch));
        }
    }
}

impl Held {
    fn read(
        reader: &mut Reader<Box<dyn Read>>,
        order: u64,
        inode: &Inode,
        names: Vec<Vec<u8>>,
    ) -> Result<Self, ReadError> {
        let (mut bytes, mut pieces) = (Vec::new(), Vec::new());
        let most = match inode.kind {
            Kind::Regular => HELD_MAX as usize,
            Kind::Symlink => LINK_MAX,
            _ => 0,
        };
        let content = reader.content(&mut |offset, piece| {
            let piece = &piece[..piece.len().min(most.saturating_sub(bytes.len()))];
            pieces.push((offset, piece.len()));
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(Self { order, inode: inode.clone(), names, bytes, pieces, attributes: content.attributes })
    }

    fn write_to(&self, file: &File) -> io::Result<u64> {
        let (mut rest, mut end) = (&self.bytes[..], 0);
        for (offset, length) in &self.pieces {
            let (piece, behind) = rest.split_at(*length);
            file.write_all_at(piece, *offset)?;
            end = *offset + *length as u64;
            rest = behind;
        }
        Ok(end)
    }
}

impl Maker<'_> {
    fn serve(mut self, batches: &Mutex<Receiver<Batch>>) {
        loop {
            let Ok(batch) = locked(batches).recv() else { return };
            for held in &batch.files {
                if self.shared.has_failed.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(error) = self.make_held(held) {
                    self.shared.fail(error);
                }
            }
        }
    }

    fn make_held(&mut self, held: &Held) -> Result<(), ReadError> {
        let mode = self.target.first_mode(&held.inode, &held.attributes);
        let mut fill = |file: Option<&File>| {
            let attributes = Cow::Borrowed(&held.attributes[..]);
            let Some(file) = file else { return Ok(Ok(attributes)) };
            let end = match held.write_to(file) {
                Err(error) if is_too_large(&error) => return Ok(Err(error)),
                written => written.map_err(ReadError::Output)?,
            };
            Ok(stretch(file, end, &held.inode).map(|()| attributes))
        };
        let (inode, link) = (&held.inode, &held.bytes[..]);
        let making = Making { inode, link, mode, fill: &mut fill, comes_once: false, is_spent: false };
        self.make(held.order, &held.names, making)
    }

    /// Makes a file under the first of its names that can be made, and gives it the others.
    fn make(&mut self, order: u64, names: &[Vec<u8>], mut making: Making<'_>) -> Result<(), ReadError> {
        let mut names = names.iter();
        let (place, undressed) = loop {
            let Some(name) = names.next() else { return Ok(()) };
            match self.make_at(name, &mut making)? {
                Ok((place, undressed)) => break (place, undressed.map(|error| (name, error))),
                Err(error) => {
                    self.shared.note(order, name, &error);
                    if making.is_spent {
                        names.for_each(|name| self.shared.note(order, name, &error));
                        return Ok(());
                    }
                }
            }
        };
        if let Some((name, error)) = undressed {
            self.shared.note(order, name, &error);
        }
        for name in names {
            let other = self.target.place_from(&mut self.stand, name);
            if let Err(error) = other.and_then(|other| place.link_to(&other)) {
                self.shared.note(order, name, &error);
            }
        }
        Ok(())
    }

    /// Creates a file with its content at a path. Returns its place, and why its attributes are
    /// incomplete.
    fn make_at(
        &mut self,
        path: &[u8],
        making: &mut Making<'_>,
    ) -> Result<io::Result<(Place, Undressed)>, ReadError> {
        let place = match self.target.place_from(&mut self.stand, path) {
            Ok(place) => place,
            Err(error) => return Ok(Err(error)),
        };
        let (inode, link, mode) = (making.inode, making.link, making.mode);
        let create = |place: &Place| place.make(inode, link, mode);
        match self.manner {
            Manner::InPlace => {
                let made = place.instead(create);
                Ok(self.finish(&place, made, making)?.map(|undressed| (place, undressed)))
            }
            Manner::Aside(work) => match create(&place) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let path = format!("{work}/new{}", self.number);
                    let aside = match self.target.place_from(&mut self.aside, path.as_bytes()) {
                        Ok(aside) => aside,
                        Err(error) => return Ok(Err(error)),
                    };
                    let made = aside.instead(create);
                    let finished = self.finish(&aside, made, making)?;
                    let moved = finished.and_then(|undressed| aside.move_to(&place).map(|()| undressed));
                    Ok(or_none(&aside, moved).map(|undressed| (place, undressed)))
                }
                made => {
                    let was_made = made.is_ok();
                    let finished = self.finish(&place, made, making)?;
                    let finished = if was_made { or_none(&place, finished) } else { finished };
                    Ok(finished.map(|undressed| (place, undressed)))
                }
            },
        }
    }

    /// Writes the content and the attributes of a new file. Only a failure to write the content is
    /// an error of the file.
    fn finish(
        &self,
        place: &Place,
        made: io::Result<Option<File>>,
        making: &mut Making<'_>,
    ) -> Result<io::Result<Undressed>, ReadError> {
        let file = match made {
            Ok(file) => file,
            Err(error) => return Ok(Err(error)),
        };
        making.is_spent = making.comes_once;
        let attributes = match (making.fill)(file.as_ref())? {
            Ok(attributes) => attributes,
            Err(error) => return Ok(Err(error)),
        };
        let dressed = match file {
            Some(file) => self.target.dress_open(&file, making.inode, &attributes),
            None => self.target.dress(place, making.inode, &attributes),
        };
        Ok(Ok(dressed.err()))
    }
}

/// The file is too large for this file system, or for this user's limit.
fn is_too_large(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::FileTooLarge
}

/// Removes a file that could not be completed.
fn or_none<T>(place: &Place, outcome: io::Result<T>) -> io::Result<T> {
    outcome.inspect_err(|_| drop(place.clear()))
}

/// Extends a file to its size, past the last bytes written.
fn stretch(file: &File, end: u64, inode: &Inode) -> io::Result<()> {
    if end == inode.size { Ok(()) } else { file.set_len(inode.size) }
}

fn folder(names: &[Vec<u8>]) -> Option<&[u8]> {
    let path = names.first()?;
    Some(path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |at| &path[..at]))
}

impl Shared {
    fn note(&self, order: u64, path: &[u8], error: &io::Error) {
        let trouble = super::trouble(path, error);
        locked(&self.troubles).push((order, trouble));
    }

    fn fail(&self, error: ReadError) {
        locked(&self.failure).get_or_insert(error);
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// The failure of any thread, once.
    fn check(&self) -> Result<(), Failure> {
        if self.has_failed.load(Ordering::Relaxed)
            && let Some(error) = locked(&self.failure).take()
        {
            return Err(error.into());
        }
        Ok(())
    }
}
