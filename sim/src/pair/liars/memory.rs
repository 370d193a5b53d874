//! The images that a destination has shown at some moment and keeps: every byte must read the same
//! for as long as an image is kept, whatever a source sends.
//!
//! An image leaves the memory when an update was accepted that does not list it any more; never one
//! that is locked, that a clone is made of, or that is open.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cairn_base::{FileId, Lba, SnapshotId};
use cairn_format::{BlockBytes, Root, SnapshotEntry};
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::{BlockRead, Image, Kept, Volume};

/// The maximum number of checked blocks of a file; a file of an invented image may claim any
/// length.
const LENGTH_MAX: u64 = 512;
/// Blocks that are read at once.
const READ: u64 = 32;

/// All files of an image, as they read: none for a block that could not be read, which an image
/// that was made up may have from the beginning.
#[derive(Default, PartialEq, Eq)]
pub struct Content(BTreeMap<FileId, (u64, Blocks)>);

type Blocks = Vec<Option<Arc<BlockBytes>>>;

impl Content {
    pub fn of(image: &Image) -> Self {
        let inodes = image.inodes().unwrap_or_default();
        let files = inodes.into_iter().filter(|inode| !inode.removed).map(|inode| {
            let length = inode.tree.length;
            (inode.id, (length, blocks(image, inode.id, length.min(LENGTH_MAX))))
        });
        Self(files.collect())
    }

    /// The image has the same content as before. Blocks that were unreadable then may have any
    /// content, and so may those damaged since.
    fn compare(&self, image: &Image, lost: &[BlockBytes]) -> Result<()> {
        let inodes = image.inodes();
        let lengths: BTreeMap<FileId, u64> = match &inodes {
            Ok(inodes) => inodes.iter().map(|inode| (inode.id, inode.tree.length)).collect(),
            Err(_) if self.0.is_empty() => return Ok(()),
            Err(error) => anyhow::bail!("its inodes can't be read: {error}"),
        };
        for (id, (length, expected)) in &self.0 {
            ensure!(
                lengths.get(id) == Some(length),
                "{id:?} had {length} blocks, and has {:?}",
                lengths.get(id)
            );
            let seen = blocks(image, *id, expected.len() as u64);
            for (lba, (expected, seen)) in expected.iter().zip(seen).enumerate() {
                let Some(expected) = expected.as_ref().filter(|bytes| !lost.contains(bytes)) else {
                    continue;
                };
                let what = seen.as_ref().map_or("can't be read", |_| "reads other bytes");
                ensure!(seen.as_ref() == Some(expected), "{id:?} block {lba} {what}");
            }
        }
        Ok(())
    }
}

fn blocks(image: &Image, file: FileId, length: u64) -> Blocks {
    let mut blocks = Vec::with_capacity(length as usize);
    for first in (0..length).step_by(READ as usize) {
        let count = READ.min(length - first);
        match read(image, file, first, count) {
            Some(read) => blocks.extend(read.into_iter().map(Some)),
            // It is unknown which of them can't be read.
            None => blocks.extend((first..first + count).map(|lba| read(image, file, lba, 1)?.pop())),
        }
    }
    blocks
}

fn read(image: &Image, file: FileId, first: u64, count: u64) -> Option<Vec<Arc<BlockBytes>>> {
    let mut reads = [BlockRead::new(Lba(first), count)];
    image.read(file, &mut reads, true);
    let [read] = reads;
    let bytes = read.outcome?.ok()?.to_vec();
    let blocks = bytes.chunks(cairn_base::BLOCK_SIZE).map(|bytes| bytes.try_into().ok().map(Arc::new));
    blocks.collect()
}

/// An image that is listed.
#[derive(Clone)]
struct Remembered {
    entry: SnapshotEntry,
    content: Arc<Content>,
    /// No update may delete it, or rename it.
    locked: bool,
}

/// The content that a destination keeps.
#[derive(Default)]
pub struct Memory {
    listed: BTreeMap<SnapshotId, Remembered>,
    shown: Option<(SnapshotId, Root)>,
    active: Arc<Content>,
    open: Vec<(Image, Arc<Content>)>,
    cloned: BTreeMap<SnapshotId, Kept>,
    /// The damaged blocks.
    lost: Vec<BlockBytes>,
}

/// The parties that may have changed a destination's list since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// An update may have been accepted.
    pub may_change: bool,
    /// New snapshots are locked.
    pub locks: bool,
}

impl Moment {
    /// Nothing may have changed.
    pub const AT_REST: Moment = Moment { may_change: false, locks: false };
}

impl Memory {
    /// Everything that is kept reads as it did. True when an update was accepted since the last
    /// look.
    pub fn look(&mut self, volume: &Arc<Volume>, moment: Moment) -> Result<bool> {
        let news = self.take(volume, moment)?;
        self.compare(volume)?;
        self.compare_open()?;
        Ok(news)
    }

    /// Open images read as before.
    pub fn compare_open(&self) -> Result<()> {
        self.open.iter().try_for_each(|(image, content)| {
            content
                .compare(image, &self.lost)
                .with_context(|| format!("in an open image of {:?}", image.snapshot()))
        })
    }

    /// Records the present list and image.
    fn take(&mut self, volume: &Arc<Volume>, moment: Moment) -> Result<bool> {
        let now = self.now(volume)?;
        let listed: BTreeMap<SnapshotId, SnapshotEntry> =
            volume.snapshot_entries().into_iter().map(|entry| (entry.id, entry)).collect();
        let same = self.listed.values().map(|listed| &listed.entry).eq(listed.values());
        if same && self.shown == Some(now) {
            return Ok(false);
        }
        ensure!(
            moment.may_change || self.shown.is_none(),
            "what is shown and listed has changed though no update came: {:?} and {:?}, was {:?} and {:?}",
            now.0,
            listed.values().map(|entry| (entry.id, &entry.name)).collect::<Vec<_>>(),
            self.shown.map(|shown| shown.0),
            self.listed.values().map(|listed| (listed.entry.id, &listed.entry.name)).collect::<Vec<_>>()
        );
        let mut before = std::mem::take(&mut self.listed);
        for (id, was) in &before {
            let is = listed.get(id).filter(|entry| entry.root == was.entry.root);
            let name = &was.entry.name;
            ensure!(is.is_some() || !was.locked, "{name} ({id}) is locked, and an update took it away");
            ensure!(
                is.is_none_or(|entry| entry.name == *name) || !was.locked,
                "{name} ({id}) is locked, and is called {:?} now",
                is.map(|entry| &entry.name)
            );
            ensure!(
                is.is_some() || !self.cloned.contains_key(id),
                "{name} ({id}) has a clone, and an update took it away"
            );
        }
        for (id, entry) in listed {
            let was = before.remove(&id).filter(|was| was.entry.root == entry.root);
            let remembered = match was {
                Some(was) => Remembered { entry, ..was },
                None => {
                    let content = volume.image(Some(id)).map(|image| Content::of(&image)).unwrap_or_default();
                    let locked = moment.locks && !entry.name.starts_with(MIRROR_PREFIX);
                    Remembered { entry, content: Arc::new(content), locked }
                }
            };
            self.listed.insert(id, remembered);
        }
        self.shown = Some(now);
        self.active = Arc::new(Content::of(&volume.image(None)?));
        Ok(true)
    }

    fn now(&self, volume: &Arc<Volume>) -> Result<(SnapshotId, Root)> {
        Ok((volume.status().cursor.snapshot, *volume.image(None)?.root()))
    }

    /// The listed and shown images read as before; also for a volume that was opened on a copy of
    /// the device.
    pub fn compare(&self, volume: &Arc<Volume>) -> Result<()> {
        for (id, listed) in &self.listed {
            let kind = if listed.locked { ", which is locked" } else { "" };
            let what = || format!("in snapshot {id} ({}){kind}", listed.entry.name);
            let image = volume.image(Some(*id)).with_context(what)?;
            ensure!(*image.root() == listed.entry.root, "{} has another root", what());
            listed.content.compare(&image, &self.lost).with_context(what)?;
        }
        self.active.compare(&volume.image(None)?, &self.lost).context("in the image that is shown")
    }

    /// A volume on a copy of the device lists and shows the same.
    pub fn compare_copy(&self, volume: &Arc<Volume>) -> Result<()> {
        let listed: Vec<SnapshotEntry> = volume.snapshot_entries();
        let expected = self.listed.values().map(|listed| &listed.entry);
        ensure!(expected.eq(listed.iter()), "other snapshots are listed");
        ensure!(self.shown == Some(self.now(volume)?), "another image is shown");
        self.compare(volume)
    }

    /// The snapshots that are listed.
    pub fn ids(&self) -> Vec<SnapshotId> {
        self.listed.keys().copied().collect()
    }

    /// How many of them are locked.
    pub fn locked(&self) -> usize {
        self.listed.values().filter(|listed| listed.locked).count()
    }

    /// Opens an image permanently, or the one shown.
    pub fn open(&mut self, volume: &Arc<Volume>, id: Option<SnapshotId>) -> Result<()> {
        let content = match id {
            Some(id) => self.listed.get(&id).map(|listed| listed.content.clone()),
            None => Some(self.active.clone()),
        };
        if let Some(content) = content {
            self.open.push((volume.image(id)?, content));
        }
        Ok(())
    }

    /// Closes the open images.
    pub fn close(&mut self) {
        self.open.clear();
    }

    /// A clone is made of a snapshot.
    pub fn clone_of(&mut self, volume: &Arc<Volume>, id: SnapshotId) -> Result<()> {
        self.cloned.insert(id, volume.keep_snapshot(id)?);
        Ok(())
    }

    /// All clones are gone.
    pub fn remove_clones(&mut self) {
        self.cloned.clear();
    }

    /// Releases the volume, which is closed or lost. Clones stay.
    pub fn leave(&mut self) -> Vec<SnapshotId> {
        self.open.clear();
        std::mem::take(&mut self.cloned).into_keys().collect()
    }

    /// The volume was opened again.
    pub fn come_back(&mut self, volume: &Arc<Volume>, cloned: Vec<SnapshotId>) -> Result<()> {
        for id in cloned {
            self.cloned.insert(id, volume.keep_snapshot(id).context("a clone's base is gone")?);
        }
        Ok(())
    }

    /// A block with these bytes is damaged: its places may return anything from here on, or fail.
    pub fn lose(&mut self, bytes: &BlockBytes) {
        self.lost.push(*bytes);
    }

    /// The volume takes writes: its content is not a mirror's any more.
    pub fn forget_active(&mut self) {
        self.active = Arc::default();
    }

    /// Its owner deletes a snapshot, once it takes writes.
    pub fn delete(&mut self, id: SnapshotId) {
        self.listed.remove(&id);
    }
}
