//! Clones: a writable volume that begins as a snapshot of another one, costs nothing to make, and
//! never touches its parent.
//!
//! A [`CloneDevice`] is redirect-on-write over the parent's block space. A volume never overwrites
//! a block that one of its snapshots shows, so the clone keeps its base snapshot as a snapshot of
//! its own. That snapshot alone decides where a block is: its blocks are read from the parent, all
//! others, and the label area, are on the clone's own device. No other record exists, so none can
//! be torn. (The write-anywhere layer does the work that the redirect map of `history` does below a
//! volume that overwrites.)
//!
//! # Invariants
//! 1. No block that the snapshot shows is ever written through the clone: such a write is refused,
//!    it is not redirected.
//! 2. The snapshot stays in the parent as long as the clone exists, and in the clone for ever.
//!    [`Kept`] refuses every deletion of it, by a user, a dump, or an update of the mirror that the
//!    parent is.
//! 3. A clone is made by writing its label area, the superblock last ([`Volume::adopt`]): a cut
//!    leaves no volume or a whole one. The parent is only read.
//!
//! A clone has the id of its parent, as its blocks are those of the parent: block numbers, trees
//! and checksums are the same.

use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, SnapshotId, Vbn};
use cairn_device::{Block, Device, DeviceError, Geometry, Operation, Request, Segments};
use cairn_format::{Role, SnapshotEntry};

use crate::error::VolumeError;
use crate::life::open::{FormatOptions, OpenOptions};
use crate::mirror::claims::BlockSet;
use crate::mirror::receive::ReceivedImage;
use crate::read::compare::Maps;
use crate::read::image::Image;
use crate::volume::Volume;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A snapshot that cannot be deleted while this lives, held or not. It is forgotten when the
/// program ends: its owner must keep it again at start, before any other request is possible.
pub struct Kept {
    volume: Arc<Volume>,
    snapshot: SnapshotId,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut state = self.volume.state.lock();
        if let Some(count) = state.kept.get_mut(&self.snapshot) {
            *count -= 1;
            if *count == 0 {
                state.kept.remove(&self.snapshot);
            }
        }
    }
}

impl Volume {
    /// Keeps a snapshot, for a clone: deleting it, and receiving an image that lacks it, are
    /// refused with [`VolumeError::Cloned`] from here on.
    ///
    /// # Errors
    /// [`VolumeError::NoSuchSnapshot`].
    pub fn keep_snapshot(self: &Arc<Self>, snapshot: SnapshotId) -> Result<Kept, VolumeError> {
        // Nothing is deleted and no image committed meanwhile.
        let _commit = self.commit.lock();
        let mut state = self.state.lock();
        state.snapshots.get(snapshot).ok_or(VolumeError::NoSuchSnapshot(snapshot))?;
        *state.kept.entry(snapshot).or_default() += 1;
        Ok(Kept { volume: self.clone(), snapshot })
    }

    /// Keeps every snapshot up to `target`, as the base of a dump that may be resumed later.
    ///
    /// # Errors
    /// [`VolumeError::NoSuchSnapshot`] when `target` does not exist.
    pub fn keep_snapshots(self: &Arc<Self>, target: SnapshotId) -> Result<Vec<Kept>, VolumeError> {
        let _commit = self.commit.lock();
        let mut state = self.state.lock();
        state.snapshots.get(target).ok_or(VolumeError::NoSuchSnapshot(target))?;
        let ids = state.snapshots.iter().map(|entry| entry.id).filter(|id| *id <= target);
        let ids: Vec<SnapshotId> = ids.collect();
        ids.iter().for_each(|id| *state.kept.entry(*id).or_default() += 1);
        Ok(ids.into_iter().map(|snapshot| Kept { volume: self.clone(), snapshot }).collect())
    }
}

/// The device under a clone.
pub struct CloneDevice {
    parent: Image,
    own: Arc<dyn Device>,
    /// The base of the clone, as in the clone's own table.
    entry: SnapshotEntry,
    /// The blocks that the snapshot shows.
    shown: BlockSet,
    /// Bytes before the block space.
    space_at: u64,
}

/// Where a part of a read is.
enum Part {
    /// An operation on the own device.
    Own(usize),
    /// Blocks of the parent: which of those that are read, and how many.
    Parent(usize, usize),
}

impl CloneDevice {
    /// Bytes that the own device of a clone of a snapshot needs; almost all of it stays a hole.
    pub fn own_bytes(parent: &Arc<Volume>, snapshot: SnapshotId) -> Result<u64, VolumeError> {
        Ok(Volume::device_bytes(parent.entry(snapshot)?.root.blocks, Role::Normal))
    }

    /// The device of a clone of a snapshot of `parent`, whose own part is `own`
    /// ([`CloneDevice::own_bytes`], or more when the clone has grown). The snapshot stays readable
    /// while the device lives. A caller whose clone must outlive the program keeps it as well
    /// ([`Volume::keep_snapshot`]). On the clone itself, opened as any volume, it is always kept.
    ///
    /// # Errors
    /// [`VolumeError::NoSuchSnapshot`]; [`VolumeError::DeviceTooSmall`]; when the snapshot's map
    /// can't be read.
    pub fn new(
        parent: &Arc<Volume>,
        snapshot: SnapshotId,
        own: Arc<dyn Device>,
    ) -> Result<Self, VolumeError> {
        let image = parent.image(Some(snapshot))?;
        let entry = parent.entry(snapshot)?;
        let (need, have) = (Self::own_bytes(parent, snapshot)?, own.geometry().length);
        if have < need {
            return Err(VolumeError::DeviceTooSmall { need, have });
        }
        let maps = Maps { store: &parent.store, redirects: image.redirects() };
        let shown = BlockSet::of(&maps.only_in(&entry.root, &[])?);
        let space_at = Volume::space_offset(entry.root.blocks);
        let entry = SnapshotEntry { parent: SnapshotId(0), held: true, ..entry };
        Ok(Self { parent: image, own, entry, shown, space_at })
    }

    /// The snapshot that the clone is made of.
    pub fn snapshot(&self) -> SnapshotId {
        self.entry.id
    }

    /// Makes the clone: its label area, on an own device that holds no volume. The relationships of
    /// the parent's mirrors are not cloned: no mirror would use their maps.
    ///
    /// # Errors
    /// Those of [`Volume::adopt`] and of the first opening.
    pub fn make(self: &Arc<Self>, options: OpenOptions) -> Result<(), VolumeError> {
        let (id, blocks) = (self.parent.volume().id(), self.entry.root.blocks);
        let format = FormatOptions { id, blocks, role: Role::Normal };
        let image = ReceivedImage { target: self.entry.id, snapshots: vec![self.entry.clone()] };
        Volume::adopt(&**self, &format, &image, options.clock.now())?;
        let volume = Volume::open(self.clone(), options)?;
        if let Some(reason @ VolumeError::InodesLost(_)) = volume.status().latched {
            // It would never take a change.
            return Err(reason);
        }
        for mirror in volume.since_relationships() {
            volume.delete_since(mirror.relationship)?;
        }
        volume.close()
    }

    fn is_shown(&self, block: u64) -> bool {
        let space = self.space_at / BLOCK;
        block >= space && self.shown.has(Vbn(block - space))
    }

    /// Whether a range has a block that the snapshot shows.
    fn touches(&self, offset: u64, length: u64) -> bool {
        (offset / BLOCK..(offset + length).div_ceil(BLOCK)).any(|block| self.is_shown(block))
    }

    /// Cuts a read where one side ends and the other begins.
    fn parts(&self, offset: u64, length: u64, own: &mut Vec<Operation>, vbns: &mut Vec<Vbn>) -> Vec<Part> {
        let (mut at, end) = (offset / BLOCK, (offset + length) / BLOCK);
        let mut parts = Vec::new();
        while at < end {
            let shown = self.is_shown(at);
            let count = (at..end).take_while(|block| self.is_shown(*block) == shown).count();
            parts.push(match shown {
                true => {
                    let first = vbns.len();
                    let vbn = at - self.space_at / BLOCK;
                    vbns.extend((vbn..vbn + count as u64).map(Vbn));
                    Part::Parent(first, count)
                }
                false => {
                    own.push(Operation::read(at * BLOCK, (count as u64 * BLOCK) as u32));
                    Part::Own(own.len() - 1)
                }
            });
            at += count as u64;
        }
        parts
    }
}

impl Device for CloneDevice {
    fn geometry(&self) -> Geometry {
        Geometry { alignment: BLOCK_SIZE as u32, ..self.own.geometry() }
    }

    fn run(&self, batch: &mut [Operation]) {
        let geometry = self.geometry();
        let (mut own, mut vbns) = (Vec::new(), Vec::new());
        let mut plans: Vec<(usize, Vec<Part>)> = Vec::new();
        for (index, operation) in batch.iter_mut().enumerate().filter(|(_, operation)| operation.is_pending())
        {
            let request = operation.request();
            if let Err(refusal) = geometry.admit(request) {
                operation.finish(Err(refusal));
                continue;
            }
            match (request, request.range()) {
                (Request::Read { .. }, Some((_, offset, length))) => {
                    plans.push((index, self.parts(offset, length, &mut own, &mut vbns)));
                }
                (Request::Prefetch { .. }, Some((_, offset, length))) if self.touches(offset, length) => {
                    operation.succeed();
                }
                (_, Some((_, offset, length))) if self.touches(offset, length) => {
                    // Only the repair of a damaged block asks for it: that is the parent's to do.
                    operation.finish(Err(DeviceError::ReadOnly));
                }
                _ => {
                    own.push(Operation::new(request.clone()));
                    plans.push((index, vec![Part::Own(own.len() - 1)]));
                }
            }
        }
        if !own.is_empty() {
            self.own.run(&mut own);
        }
        let shown = match vbns.is_empty() {
            true => Vec::new(),
            false => self.parent.volume().store.read_numbers(&vbns, self.parent.redirects()),
        };
        for (index, parts) in plans {
            batch[index].finish(gather(&parts, &own, &shown));
        }
    }

    fn prepare(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        match self.touches(offset, length) {
            true => Ok(()),
            false => self.own.prepare(offset, length),
        }
    }
}

/// The outcome of an operation out of those of its parts.
fn gather(
    parts: &[Part],
    own: &[Operation],
    shown: &[Result<Block, DeviceError>],
) -> Result<Segments, DeviceError> {
    let mut data = Segments::default();
    for part in parts {
        match part {
            Part::Own(number) => match own[*number].outcome() {
                Some(Ok(read)) => data.append(read.clone()),
                Some(Err(error)) => return Err(error.clone()),
                None => return Err(DeviceError::OutOfService),
            },
            Part::Parent(first, count) => {
                for block in &shown[*first..first + count] {
                    data.push_block(block.clone()?);
                }
            }
        }
    }
    Ok(data)
}
