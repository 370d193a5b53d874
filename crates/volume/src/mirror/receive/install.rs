//! The commit of an image that has arrived: its tables, its superblock, and the volume's in-memory
//! state of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{SnapshotId, Timestamp, Vbn};
use cairn_device::Operation;
use cairn_format::{Cursor, Role, SegmentKind, SnapshotEntry, Superblock, TableRef};

use super::{COLLISIONS, ReceivedImage, Receiver};
use crate::commit::pending::{Commit, prepare_redirects};
use crate::commit::space::Redirects;
use crate::commit::table::{PreparedTable, TableWrites};
use crate::commit::used::UsedMap;
use crate::error::VolumeError;
use crate::life::open::load_used;
use crate::memory::roots::{Committed, Reader};
use crate::memory::state::State;
use crate::volume::Volume;

impl Receiver {
    /// Makes an image, whose blocks are at the places in `redirects`, the content of the volume.
    ///
    /// # Errors
    /// [`VolumeError::Refused`] with [`COLLISIONS`] when the table of redirects has no room;
    /// nothing has changed then.
    pub(super) fn install(
        &mut self,
        image: &ReceivedImage,
        target: &SnapshotEntry,
        redirects: Redirects,
    ) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let mut redirects = Arc::new(redirects);
        let mut commit = volume.commit_turn()?;
        let commit = &mut *commit;
        if volume.state.lock().role != Role::Destination {
            return Err(VolumeError::WrongRole(Role::Normal));
        }
        keeps_what_is_cloned(&volume.state.lock(), image)?;
        // Found before anything is committed.
        let used = used_by_image(&volume, image, target, Arc::make_mut(&mut redirects));
        let mut superblock = superblock_of_image(&volume, commit, image, target);
        let tables = NewTables::prepare(&volume, commit, image, &redirects)?;
        superblock.snapshots = tables.snapshots.table.clone();
        superblock.redirects = tables.redirects.clone();
        let mut operations = tables.snapshots.writes.operations(&commit.label);
        operations.extend(tables.redirect_writes.operations(&commit.label));
        operations.push(Operation::flush());
        let written = match volume.store.run(operations) {
            Err(error) if error.is_room() => {
                // No superblock has named them, and the next try writes them again.
                commit.label.release(&tables.snapshots.writes.addresses());
                commit.label.release(&tables.redirect_writes.addresses());
                return Err(error);
            }
            written => written.and_then(|()| volume.write_superblock(&superblock)),
        };
        if written.is_ok() {
            volume.log.lock().committed(&superblock);
        }

        let mut guard = volume.state.lock();
        let state = &mut *guard;
        if let Err(reason) = written {
            state.latch(&reason);
            drop(guard);
            self.failed = true;
            return Err(reason);
        }
        // They are the image now.
        self.arrivals = None;
        commit.label.release(&tables.snapshots.writes.freed);
        commit.label.release(&tables.redirect_writes.freed);
        commit.redirect_blocks = tables.redirect_blocks;
        commit.superblock = superblock.clone();
        state.snapshots.apply(tables.snapshots);
        show_image(state, &superblock, redirects, used, volume.clock.monotonic());
        drop(guard);
        volume.sort_releases();
        volume.work.notify_one();
        Ok(())
    }
}

/// Refuses an image without a snapshot that a clone is based on: its blocks would be reused. The
/// arrivals stay until the clone is gone.
fn keeps_what_is_cloned(state: &State, image: &ReceivedImage) -> Result<(), VolumeError> {
    let lacks = |id: &SnapshotId| {
        let here = state.snapshots.get(*id).map(|entry| entry.root);
        !image.snapshots.iter().any(|entry| entry.id == *id && Some(entry.root) == here)
    };
    state.kept.keys().find(|id| lacks(id)).map_or(Ok(()), |id| Err(VolumeError::Cloned(*id)))
}

/// The map of blocks in use with an image. Redirects of other blocks describe content that only
/// older images show, and those have a redirect map of their own: such redirects are removed from
/// this one.
fn used_by_image(
    volume: &Volume,
    image: &ReceivedImage,
    target: &SnapshotEntry,
    redirects: &mut Redirects,
) -> UsedMap {
    let space = volume.store.space().blocks(SegmentKind::Space);
    let roots = image.snapshots.iter().map(|entry| &entry.root);
    let used = load_used(&volume.store, redirects, space, &target.root, roots);
    let stale: Vec<Vbn> = redirects.each().map(|(vbn, _)| vbn).filter(|vbn| !used.get(*vbn)).collect();
    for vbn in &stale {
        redirects.remove(*vbn);
    }
    used
}

/// The superblock that shows an image, without its tables.
fn superblock_of_image(
    volume: &Volume,
    commit: &Commit,
    image: &ReceivedImage,
    target: &SnapshotEntry,
) -> Superblock {
    let mut superblock = commit.superblock.clone();
    superblock.sequence += 1;
    superblock.root = target.root;
    // A flush beside a consistency point leaves records of the generation that is committed then.
    // The generation of an image may be an earlier one, and replay would take them for changes of
    // it.
    superblock.log_tail = volume.log.lock().mark();
    superblock.parent = target.id;
    let newest = image.snapshots.iter().map(|entry| entry.id.0).max().unwrap_or(0);
    superblock.next_snapshot = superblock.next_snapshot.max(newest + 1);
    let received = volume.clock.now().max(Timestamp(Cursor::OWN.0 + 1));
    superblock.cursor = Cursor { snapshot: target.id, received };
    superblock
}

/// The tables of an image, which no superblock names yet.
struct NewTables {
    snapshots: PreparedTable,
    redirects: TableRef,
    /// Blocks of the label space that hold the redirect map.
    redirect_blocks: Vec<u64>,
    redirect_writes: TableWrites,
}

impl NewTables {
    /// # Errors
    /// [`VolumeError::Refused`] with [`COLLISIONS`] when the table of redirects has no room;
    /// nothing of the label area is taken then.
    fn prepare(
        volume: &Volume,
        commit: &mut Commit,
        image: &ReceivedImage,
        redirects: &Redirects,
    ) -> Result<Self, VolumeError> {
        let snapshots = volume.state.lock().snapshots.replaced_by(
            image.snapshots.clone(),
            volume.id(),
            &mut commit.label,
        )?;
        match prepare_redirects(redirects, volume.id(), commit) {
            Ok((redirects, redirect_blocks, redirect_writes)) => {
                Ok(Self { snapshots, redirects, redirect_blocks, redirect_writes })
            }
            Err(reason) => {
                commit.label.release(&snapshots.writes.addresses());
                let full = matches!(reason, VolumeError::TableFull);
                Err(if full { VolumeError::Refused(COLLISIONS) } else { reason })
            }
        }
    }
}

/// Shows an image whose superblock is committed and whose snapshots are in the state.
fn show_image(
    state: &mut State,
    superblock: &Superblock,
    redirects: Arc<Redirects>,
    used: UsedMap,
    now: Duration,
) {
    drop(state.switch(superblock.root, redirects));
    state.readers.retain(Reader::is_alive);
    state.parent = superblock.parent;
    state.next_snapshot = superblock.next_snapshot;
    state.cursor = superblock.cursor;
    state.next_file = superblock.root.next_file;
    state.open.generation = cairn_base::Generation(superblock.root.generation.0 + 1);
    // The records about a head that was written here do not apply to this one.
    state.forget_head(now);
    let same = |id: SnapshotId, pin: &Arc<Committed>| {
        state.snapshots.get(id).is_some_and(|entry| entry.root == pin.root)
    };
    let pins: HashMap<SnapshotId, Arc<Committed>> =
        state.pins.iter().filter_map(|(id, pin)| Some((*id, pin.upgrade()?))).collect();
    let renumbered: Vec<SnapshotId> =
        pins.iter().filter(|(id, pin)| !same(**id, pin)).map(|(id, _)| *id).collect();
    // Blocks that only older images show stay in use while they have readers. Blocks that already
    // waited for a reader are part of these, except those that the new image uses again.
    let gone = state.used.replace(used);
    state.pins.retain(|id, _| pins.contains_key(id) && !renumbered.contains(id));
    // The holder of an image whose snapshot is gone is a reader from here on, for every later image
    // and every block moved home.
    state.readers.extend(renumbered.iter().map(|id| Reader::of(&pins[id])));
    let mut readers = state.readers.clone();
    readers.extend(pins.values().map(Reader::of));
    readers.extend(state.releases.clear());
    state.stuck.clear();
    state.releases.add_unsorted(&readers, gone);
    state.settle_releases();
}
