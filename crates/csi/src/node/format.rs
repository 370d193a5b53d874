//! File systems on disks: what a disk holds, and a new file system on one that holds nothing.
//!
//! `mkfs` makes the file system in a sparse file on the node, and its blocks are copied to the
//! disk. First the disk gets a mark at its beginning, then all blocks but the first ones, and these
//! last, with a flush after each step. So a disk is blank, marked, or has a whole file system. A
//! marked one is formatted again: a crash never leaves a disk that is neither.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, SeekFrom, seek};
use tonic::Status;

use super::programs::Programs;
use crate::controller::FileSystem;

/// The mark of a disk that is being formatted.
const MARK: &[u8; 32] = b"cairn csi: format in progress v1\0".first_chunk().expect("32 bytes");
/// Bytes at the beginning that are written last. Both file systems have their superblock there.
const FIRST: usize = 64 << 10;
/// Bytes at the beginning and at the end of a disk that must be zero to call it blank. Other file
/// systems, partition tables and volume managers have their marks there.
const LOOKED_AT: u64 = 1 << 20;
/// Where the superblock of ext4 has its magic number, and that of XFS.
const EXT4_MAGIC: (usize, &[u8]) = (1024 + 56, &[0x53, 0xef]);
const XFS_MAGIC: (usize, &[u8]) = (0, b"XFSB");
/// Bytes at the end of a disk that a file system may leave unused: a group too short to use.
const UNUSED_MAX: u64 = 8 << 20;
/// The beginning of the name of an image, in the folder of notes.
const IMAGE: &str = "format-";
/// The unit of copying.
const CHUNK: usize = 64 << 10;

/// The content of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Its beginning and its end are zero.
    Blank,
    /// A format was cut off.
    Unfinished,
    /// A file system.
    Has(FileSystem),
    /// Something else.
    Other,
}

fn failed(device: &Path) -> impl Fn(io::Error) -> Status {
    move |error| Status::internal(format!("cannot use {}: {error}", device.display()))
}

/// The length of a device.
pub(super) fn bytes_of(device: &Path) -> Result<u64, Status> {
    let file = File::open(device).map_err(failed(device))?;
    seek(&file, SeekFrom::End(0)).map_err(|error| failed(device)(error.into()))
}

fn has(bytes: &[u8], (at, magic): (usize, &[u8])) -> bool {
    bytes.get(at..at + magic.len()) == Some(magic)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut number = [0; N];
    if let Some(found) = bytes.get(at..at + N) {
        number.copy_from_slice(found);
    }
    number
}

/// Whether a file system is shorter than its disk, by more than it leaves unused at the end.
pub(super) fn is_shorter(device: &Path, file_system: FileSystem) -> Result<bool, Status> {
    let mut first = vec![0; 4096];
    let file = File::open(device).map_err(failed(device))?;
    file.read_exact_at(&mut first, 0).map_err(failed(device))?;
    let bytes = match file_system {
        // The superblock is at 1024: blocks at 4 and 0x150, the block size at 0x18 (ext4(5)).
        FileSystem::Ext4 => {
            let low = u32::from_le_bytes(number(&first, 1024 + 4));
            let has_high = u32::from_le_bytes(number(&first, 1024 + 0x60)) & 0x80 != 0;
            let high = if has_high { u32::from_le_bytes(number(&first, 1024 + 0x150)) } else { 0 };
            let shift = u32::from_le_bytes(number(&first, 1024 + 0x18)).min(6);
            (u64::from(high) << 32 | u64::from(low)) << (10 + shift)
        }
        // The block size at 4, blocks at 8 (xfs(5)).
        FileSystem::Xfs => {
            let block = u32::from_be_bytes(number(&first, 4));
            u64::from_be_bytes(number(&first, 8)).saturating_mul(block.into())
        }
    };
    Ok(bytes.saturating_add(UNUSED_MAX) < bytes_of(device)?)
}

/// Looks at a disk.
pub(super) fn content(device: &Path) -> Result<Content, Status> {
    let file = File::open(device).map_err(failed(device))?;
    let bytes = bytes_of(device)?;
    let read = |offset: u64, length: u64| {
        let mut buffer = vec![0; usize::try_from(length).unwrap_or(0)];
        file.read_exact_at(&mut buffer, offset).map(|()| buffer)
    };
    let looked_at = LOOKED_AT.min(bytes);
    let first = read(0, looked_at).map_err(failed(device))?;
    if first.starts_with(MARK) {
        return Ok(Content::Unfinished);
    }
    if has(&first, XFS_MAGIC) {
        return Ok(Content::Has(FileSystem::Xfs));
    }
    if has(&first, EXT4_MAGIC) {
        return Ok(Content::Has(FileSystem::Ext4));
    }
    let last = read(bytes - looked_at, looked_at).map_err(failed(device))?;
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    Ok(if is_zero(&first) && is_zero(&last) { Content::Blank } else { Content::Other })
}

/// Removes the images that a driver left when it was killed.
pub(super) fn clear(state: &Path) {
    for entry in std::fs::read_dir(state).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(IMAGE) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Makes a file system on a disk that is blank, or marked.
pub(super) fn make(
    programs: &Programs,
    state: &Path,
    device: &Path,
    file_system: FileSystem,
    is_first: bool,
) -> Result<(), Status> {
    std::fs::create_dir_all(state).map_err(failed(state))?;
    let image = tempfile::Builder::new().prefix(IMAGE).tempfile_in(state).map_err(failed(state))?;
    image.as_file().set_len(bytes_of(device)?).map_err(failed(image.path()))?;
    let path = image.path().display().to_string();
    match file_system {
        FileSystem::Ext4 => programs.run("mkfs.ext4", &["-q", "-F", "-m0", &path])?,
        // Sectors of 4 KiB work on a disk with either size.
        FileSystem::Xfs => programs.run("mkfs.xfs", &["-q", "-f", "-s", "size=4096", &path])?,
    };
    // The program may have replaced the file.
    let image = File::open(image.path()).map_err(failed(image.path()))?;
    // Without it a mounted disk could be opened.
    let exclusive = i32::try_from(OFlags::EXCL.bits()).unwrap_or(0);
    let is_block = device.metadata().is_ok_and(|found| found.file_type().is_block_device());
    let disk = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(if is_block { exclusive } else { 0 })
        .open(device)
        .map_err(failed(device))?;
    let mut steps = Copy { image, disk, left: None };
    if !is_first && is_block {
        // Blocks of the first attempt may be where the new file system has none.
        drop(steps.disk);
        programs.run(
            "blkdiscard",
            &["--zeroout", "--offset", &FIRST.to_string(), &device.display().to_string()],
        )?;
        let disk = OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(device);
        steps.disk = disk.map_err(failed(device))?;
    }
    steps.run().map_err(failed(device))
}

/// The copy of a file system to a disk.
struct Copy {
    image: File,
    disk: File,
    /// Writes and flushes that are still carried out, for tests of crashes; none: all.
    left: Option<u32>,
}

impl Copy {
    fn step(&mut self) -> io::Result<()> {
        match &mut self.left {
            None => Ok(()),
            Some(0) => Err(io::Error::other("cut off")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.step()?;
        self.disk.write_all_at(bytes, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.step()?;
        self.disk.sync_all()
    }

    fn run(&mut self) -> io::Result<()> {
        let mut mark = vec![0; FIRST];
        mark[..MARK.len()].copy_from_slice(MARK);
        self.write(&mark, 0)?;
        self.flush()?;
        let end = self.image.metadata()?.len();
        let mut offset = FIRST as u64;
        while let Some((from, to)) = self.data(offset)? {
            let mut at = from.max(offset);
            while at < to {
                let length = usize::try_from(to - at).unwrap_or(CHUNK).min(CHUNK);
                let mut chunk = vec![0; length];
                self.image.read_exact_at(&mut chunk, at)?;
                if chunk.iter().any(|byte| *byte != 0) {
                    self.write(&chunk, at)?;
                }
                at += length as u64;
            }
            offset = to;
        }
        self.flush()?;
        let mut first = vec![0; FIRST.min(usize::try_from(end).unwrap_or(FIRST))];
        self.image.read_exact_at(&mut first, 0)?;
        self.write(&first, 0)?;
        self.flush()
    }

    /// The next part of the image that is not a hole.
    fn data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        let from = match seek(&self.image, SeekFrom::Data(offset)) {
            Ok(from) => from,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some((from, seek(&self.image, SeekFrom::Hole(from))?)))
    }
}

#[cfg(test)]
mod tests;
