//! LUNs by name: made, listed, resized, deleted and opened.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use cairn_base::{BLOCK_SIZE, FileId, Timestamp};
use cairn_device::Device;
use cairn_format::{DirectoryEntry, FileKind, Inode, MAX_FILE_NAME};
use cairn_volume::{Image, Volume, VolumeError};
use parking_lot::Mutex;

use crate::directory::Directory;
use crate::error::FilesError;
use crate::lun_device::LunDevice;

/// Smallest LUN, and the unit of sizes: a sector on the wire.
const SECTOR: u64 = 512;
/// Largest LUN: 16 TiB.
const LUN_BYTES_MAX: u64 = 16 << 40;

/// A LUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunInfo {
    /// Its name in the volume.
    pub name: String,
    /// Its file.
    pub file: FileId,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was created.
    pub created: Timestamp,
}

/// The LUNs of a volume.
pub struct Luns {
    volume: Arc<Volume>,
    /// The devices of open LUNs: all openers of a LUN share one, so that its order of writes to
    /// parts of blocks holds between them.
    open: Mutex<HashMap<FileId, Weak<LunDevice>>>,
}

impl Luns {
    /// The LUNs of `volume`.
    pub fn new(volume: Arc<Volume>) -> Self {
        Self { volume, open: Mutex::default() }
    }

    fn device(&self, &LunInfo { file, bytes, .. }: &LunInfo) -> Arc<LunDevice> {
        let mut open = self.open.lock();
        if let Some(device) = open.get(&file).and_then(Weak::upgrade) {
            return device;
        }
        open.retain(|_, device| device.strong_count() > 0);
        let device = Arc::new(LunDevice::active(self.volume.clone(), file, bytes));
        open.insert(file, Arc::downgrade(&device));
        device
    }

    /// Makes a LUN of `bytes`, all zeroes. It is durable when this returns.
    pub fn create(&self, name: &str, bytes: u64) -> Result<(), FilesError> {
        check_name(name)?;
        check_size(bytes)?;
        let _turn = self.volume.directory_turn();
        let directory = Directory::read(&self.volume)?;
        if directory.entries()?.iter().any(|(_, entry)| entry.name == name) {
            return Err(FilesError::NameTaken);
        }
        {
            let compound = self.volume.compound();
            let file = compound.create(FileKind::Lun, bytes)?;
            let entry = DirectoryEntry { file, name: name.to_owned() };
            directory.put(&compound, directory.free_place(), Some(&entry))?;
        }
        self.volume.consistency_point()?;
        Ok(())
    }

    /// All LUNs, by name.
    ///
    /// # Errors
    /// Also when one of them can't be read: see [`Luns::readable`].
    pub fn list(&self) -> Result<Vec<LunInfo>, FilesError> {
        self.all()?.into_iter().collect()
    }

    /// All LUNs of an image, by name.
    ///
    /// # Errors
    /// As of [`Luns::list`].
    pub fn list_in(&self, image: &Image) -> Result<Vec<LunInfo>, FilesError> {
        self.all_in(image)?.into_iter().collect()
    }

    /// The readable LUNs, by name, for a server of them: a damaged inode of one does not keep the
    /// others from their clients.
    ///
    /// # Errors
    /// Of the directory.
    pub fn readable(&self) -> Result<Vec<LunInfo>, FilesError> {
        Ok(self.all()?.into_iter().filter_map(Result::ok).collect())
    }

    /// The same of an image.
    ///
    /// # Errors
    /// Of the directory.
    pub fn readable_in(&self, image: &Image) -> Result<Vec<LunInfo>, FilesError> {
        Ok(self.all_in(image)?.into_iter().filter_map(Result::ok).collect())
    }

    fn all(&self) -> Result<Vec<Result<LunInfo, FilesError>>, FilesError> {
        look_at_all(&Directory::read(&self.volume)?, &|file| self.volume.inode(file))
    }

    fn all_in(&self, image: &Image) -> Result<Vec<Result<LunInfo, FilesError>>, FilesError> {
        look_at_all(&Directory::read_in(image)?, &|file| image.inode(file))
    }

    /// Changes the size. A smaller one destroys the data past the new end and needs `allow_shrink`.
    /// Clients see it when they reconnect.
    pub fn resize(&self, name: &str, bytes: u64, allow_shrink: bool) -> Result<(), FilesError> {
        check_size(bytes)?;
        let _turn = self.volume.directory_turn();
        let lun = self.find(name)?;
        if bytes < lun.bytes && !allow_shrink {
            return Err(FilesError::WouldShrink { bytes: lun.bytes });
        }
        if bytes < lun.bytes && !bytes.is_multiple_of(BLOCK_SIZE as u64) {
            let end = bytes.next_multiple_of(BLOCK_SIZE as u64).min(lun.bytes);
            if end < lun.bytes {
                // Whole blocks go first: on a full volume they are the room for the next step.
                self.volume.compound().resize(lun.file, end)?;
                self.volume.consistency_point()?;
            }
            // The cut part of the last block must read as zeroes if the LUN grows again.
            self.device(&lun)
                .one(cairn_device::Operation::trim(bytes, end - bytes))
                .map_err(VolumeError::from)?;
        }
        self.volume.compound().resize(lun.file, bytes)?;
        self.volume.consistency_point()?;
        Ok(())
    }

    /// Deletes a LUN. Its name is gone when this returns; its space is freed in the background, as
    /// far as no snapshot holds it.
    pub fn delete(&self, name: &str) -> Result<(), FilesError> {
        let _turn = self.volume.directory_turn();
        let directory = Directory::read(&self.volume)?;
        let entries = directory.entries()?;
        let (place, entry) =
            entries.iter().find(|(_, entry)| entry.name == name).ok_or(FilesError::NoSuchLun)?;
        // Names of LUNs don't begin with a dot; those of the tree's roots do.
        check_name(name).map_err(|_| FilesError::NoSuchLun)?;
        {
            let compound = self.volume.compound();
            directory.put(&compound, *place, None)?;
            compound.remove(entry.file)?;
        }
        self.volume.consistency_point()?;
        Ok(())
    }

    /// A LUN of the active state.
    pub fn find(&self, name: &str) -> Result<LunInfo, FilesError> {
        find(&Directory::read(&self.volume)?, name, &|file| self.volume.inode(file))
    }

    /// A LUN of an image.
    pub fn find_in(&self, image: &Image, name: &str) -> Result<LunInfo, FilesError> {
        find(&Directory::read_in(image)?, name, &|file| image.inode(file))
    }

    /// Whether an image has a LUN of that name. No inodes are read.
    pub fn is_in(&self, image: &Image, name: &str) -> Result<bool, FilesError> {
        Ok(Directory::read_in(image)?.entries()?.iter().any(|(_, entry)| entry.name == name))
    }

    /// The LUN as a device; read-only while the volume is a destination.
    pub fn open(&self, name: &str) -> Result<Arc<dyn Device>, FilesError> {
        Ok(self.device(&self.find(name)?))
    }

    /// A LUN of an image as a read-only device. It holds the image: its content does not change,
    /// whatever is deleted or transferred meanwhile.
    pub fn open_in(&self, image: &Image, name: &str) -> Result<Arc<dyn Device>, FilesError> {
        let LunInfo { file, bytes, .. } = self.find_in(image, name)?;
        Ok(Arc::new(LunDevice::frozen(image.clone(), file, bytes)))
    }
}

/// Reads an inode.
type ReadInode<'a> = &'a dyn Fn(FileId) -> Result<Inode, VolumeError>;

/// The LUN of a name in the root directory, if it is one: the roots of the tree of names are in
/// there as well.
fn look_at(entry: &DirectoryEntry, inode: ReadInode<'_>) -> Result<Option<LunInfo>, FilesError> {
    let inode = inode(entry.file)?;
    let info = LunInfo {
        name: entry.name.clone(),
        file: entry.file,
        bytes: inode.length_bytes,
        created: inode.created,
    };
    Ok((inode.kind == FileKind::Lun).then_some(info))
}

fn look_at_all(
    directory: &Directory,
    inode: ReadInode<'_>,
) -> Result<Vec<Result<LunInfo, FilesError>>, FilesError> {
    let mut entries: Vec<DirectoryEntry> = directory.entries()?.into_iter().map(|(_, entry)| entry).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries.iter().filter_map(|entry| look_at(entry, inode).transpose()).collect())
}

/// Reads the inode of that LUN alone: damage of another one does not matter.
fn find(directory: &Directory, name: &str, inode: ReadInode<'_>) -> Result<LunInfo, FilesError> {
    let entries = directory.entries()?;
    let (_, entry) = entries.iter().find(|(_, entry)| entry.name == name).ok_or(FilesError::NoSuchLun)?;
    look_at(entry, inode)?.ok_or(FilesError::NoSuchLun)
}

fn check_name(name: &str) -> Result<(), FilesError> {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    let good = (1..=MAX_FILE_NAME).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with(['-', '.']);
    if good { Ok(()) } else { Err(FilesError::InvalidName) }
}

fn check_size(bytes: u64) -> Result<(), FilesError> {
    let good = (SECTOR..=LUN_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(SECTOR);
    if good { Ok(()) } else { Err(FilesError::Size { bytes }) }
}
