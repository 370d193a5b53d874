//! Making a volume and opening one: superblocks, tables, the used map, replay of the intent log.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::locks::{Condvar, Mutex};
use cairn_base::{BLOCK_SIZE, Checksum, Clock, FileId, Generation, SnapshotId, Timestamp, Vbn, VolumeId};
use cairn_device::{Block, Device, DeviceError};
use cairn_format::layout::{SPACE_BLOCKS_MAX, SPACE_BLOCKS_MIN, SUPERBLOCK_A, SUPERBLOCK_B};
use cairn_format::{
    BlockPointer, Cursor, Inode, Layout, LogEntry, LogRecord, LogTail, Role, Root, SegmentKind, Superblock,
    TableRef, TreeRef,
};

use crate::commit::pending::Commit;
use crate::commit::release::Releases;
use crate::commit::space::{Redirects, Space, device_blocks, fresh_layout, label_bytes, map_blocks};
use crate::commit::superblock::{newest_superblock, read_slot, read_slots, slot_block, write_slot};
use crate::commit::table::{SnapshotTable, TableReader, load_redirects};
use crate::commit::used::UsedMap;
use crate::error::VolumeError;
use crate::known_files::ROOT_DIRECTORY;
use crate::limits::{Memory, REDIRECT_RUNS_MAX};
use crate::log::device::{self as log_device, NewLog};
use crate::log::intent::{LogArea, LogWriter, Replay, replay, zero_ring};
use crate::log::mend::{Mends, Unmended};
use crate::memory::overlay::Overlay;
use crate::memory::roots::{Committed, Ended};
use crate::memory::state::State;
use crate::past::since_map::SinceMap;
use crate::read::compare::Maps;
use crate::read::store::Store;
use crate::volume::Volume;

/// Options for a new volume.
#[derive(Debug, Clone, Copy)]
pub struct FormatOptions {
    /// Its name for ever; a destination takes its source's.
    pub id: VolumeId,
    /// Block space in blocks of 4 KiB.
    pub blocks: u64,
    /// A destination also gets a redirect area and a have map.
    pub role: Role,
}

/// How to open.
pub struct OpenOptions {
    /// Bytes of memory for blocks and changes: half is block cache, the rest is for writes in
    /// flight. The map of blocks in use (32 MiB per TiB) comes on top.
    pub cache_bytes: u64,
    /// The source of the time.
    pub clock: Arc<dyn Clock>,
}

/// Volumes that were opened in this process.
static OPENED: AtomicU64 = AtomicU64::new(0);

impl Volume {
    /// Bytes of device that a volume of `blocks` needs.
    pub fn device_bytes(blocks: u64, role: Role) -> u64 {
        device_blocks(&fresh_layout(blocks, role == Role::Destination)) * BLOCK_SIZE as u64
    }

    /// The largest block space, in blocks, that fits on a device of `bytes`; 0 when none does.
    pub fn blocks_for(bytes: u64, role: Role) -> u64 {
        let (mut low, mut high) = (0, (bytes / BLOCK_SIZE as u64).min(SPACE_BLOCKS_MAX));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if Self::device_bytes(middle, role) <= bytes {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        if low < SPACE_BLOCKS_MIN { 0 } else { low }
    }

    /// Makes an empty volume on `device`. A device that holds a volume is left alone.
    pub fn format(
        device: &dyn Device,
        options: &FormatOptions,
        clock: &dyn Clock,
    ) -> Result<(), VolumeError> {
        Self::format_on(device, None, options, clock)
    }

    /// Makes an empty volume on `device`, with the intent log on a device of its own. Refuses a
    /// device that already holds a volume or a log.
    pub fn format_with_log(
        device: &dyn Device,
        log: &NewLog<'_>,
        options: &FormatOptions,
        clock: &dyn Clock,
    ) -> Result<(), VolumeError> {
        Self::format_on(device, Some(log), options, clock)
    }

    fn format_on(
        device: &dyn Device,
        log: Option<&NewLog<'_>>,
        options: &FormatOptions,
        clock: &dyn Clock,
    ) -> Result<(), VolumeError> {
        let blocks = options.blocks;
        let layout = new_layout(device, options, SPACE_BLOCKS_MIN)?;
        // Nothing that a consistency point or a flush writes of its own accord can lack room from
        // here on.
        device.allocate(0, label_bytes(&layout))?;
        // A log of an earlier life would be refused by its volume id; its blocks are zeroed all the
        // same, so that check never sees them.
        zero_ring(device, layout.log_start, layout.log_blocks)?;
        let now = clock.now();
        let superblock = Superblock {
            volume: options.id,
            role: options.role,
            sequence: 1,
            layout,
            external_log: log.map(|log| log_device::prepare(log, options.id, now)).transpose()?,
            log_tail: LogTail { position: 0, sequence: 1 },
            root: Root {
                generation: Generation(1),
                created: now,
                blocks,
                used: 0,
                next_file: ROOT_DIRECTORY.0 + 1,
                changed: now,
                inode_file: TreeRef::empty(1),
                active_map: TreeRef::empty(map_blocks(blocks)),
            },
            parent: SnapshotId(0),
            next_snapshot: 1,
            cursor: Cursor { snapshot: SnapshotId(0), received: Timestamp(0) },
            snapshots: TableRef::default(),
            redirects: TableRef::default(),
        };
        device.flush()?;
        for address in [SUPERBLOCK_A, SUPERBLOCK_B] {
            write_slot(device, &superblock, address)?;
        }
        device.flush()?;
        Ok(())
    }

    /// Opens the volume on `device`: the newest superblock that verifies, then the intent log. All
    /// flushed data is present.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>, VolumeError> {
        Self::open_on(device, Log::OnOneOf(&[]), options)
    }

    /// Opens a volume that may have its intent log on one of the devices `logs`: the superblock
    /// names it, if any.
    pub fn open_with_log(
        device: Arc<dyn Device>,
        logs: &[Arc<dyn Device>],
        options: OpenOptions,
    ) -> Result<Arc<Self>, VolumeError> {
        Self::open_on(device, Log::OnOneOf(logs), options)
    }

    /// Opens the volume at its last consistency point and discards its intent log: data flushed
    /// since then is lost. The log is in the label area from then on. For a log device that is
    /// permanently lost, and for a damaged log.
    pub fn open_discarding_log(
        device: Arc<dyn Device>,
        options: OpenOptions,
    ) -> Result<Arc<Self>, VolumeError> {
        Self::open_on(device, Log::Discarded, options)
    }

    fn open_on(
        device: Arc<dyn Device>,
        log: Log<'_>,
        options: OpenOptions,
    ) -> Result<Arc<Self>, VolumeError> {
        let mut superblock = newest_superblock(&*device)?;
        let area = match &log {
            Log::Discarded => LogArea::internal(&superblock.layout),
            Log::OnOneOf(logs) => log_device::area_of(&superblock, logs)?,
        };
        refuse_short(&*device, &superblock.layout)?;
        let memory = Memory::of(options.cache_bytes);
        let space = Space::new(&superblock.layout);
        let mut store = Store::new(device.clone(), superblock.volume, space, &memory);
        let mut tables = TableReader::new(&*device, superblock.volume, &superblock.layout);
        let snapshots = SnapshotTable::load(&mut tables, &superblock.snapshots)?;
        let (redirects, redirect_blocks) = load_redirects(&mut tables, &superblock.redirects)?;
        let (label, missing) = tables.end();
        let used = used_and_stuck(&store, &redirects, &superblock.root, &snapshots);
        let found = log.replay(&*device, &area, &mut superblock)?;
        let mut state = opened_state(&superblock, snapshots, redirects, used, options.clock.monotonic());
        let (head, remains) = apply_log(&store, &mut state, found);
        let mut mends = Mends::default();
        mends.push(missing);
        match area.external_log() {
            Some(_) => area.erase(&*device, &remains)?,
            None => mends.push(area.erasures(&remains)),
        }
        if !state.open.is_empty() {
            state.changed_since = Some(options.clock.monotonic());
            // The time of these changes is unknown.
            state.known_from = Generation(state.open.generation.0 + 1);
        }
        if matches!(log, Log::Discarded) {
            tracing::warn!(generation = %superblock.root.generation, "the intent log is discarded: the volume opens at its last consistency point");
            area.zero(&*device)?;
        }
        mend_slots(&*device, &superblock, &mut mends)?;
        // A file that was copied with holes may lack it. Reading needs none.
        let label_has_room = device.allocate(0, label_bytes(&superblock.layout)).is_ok();
        mend(&mut store, device, mends)?;
        let log = LogWriter::new(superblock.volume, area, superblock.log_tail, head);
        let commit = Commit {
            superblock,
            label,
            redirect_blocks,
            redirect_runs_max: REDIRECT_RUNS_MAX,
            label_has_room,
            left: None,
            sealed: None,
        };
        let volume = Arc::new(Self::assemble(store, memory, options.clock, commit, log, state));
        volume.look_for_special_files()?;
        Ok(volume)
    }

    fn assemble(
        store: Store,
        memory: Memory,
        clock: Arc<dyn Clock>,
        commit: Commit,
        log: LogWriter,
        state: State,
    ) -> Self {
        Self {
            number: OPENED.fetch_add(1, Ordering::Relaxed),
            store,
            clock,
            memory,
            commit: Mutex::new(commit),
            log_use: log.shown(),
            log: Mutex::new(log),
            directory: Mutex::new(()),
            turn: Mutex::new(()),
            state: Mutex::new(state),
            settled: Condvar::new(),
            held_back: std::sync::OnceLock::new(),
            work: Condvar::new(),
            arrivals: Condvar::new(),
            flushes: AtomicU64::new(0),
            consistency_points: AtomicU64::new(0),
        }
    }

    /// Finds the files that have to be known before anything is changed. A volume that takes writes
    /// and can't read them is latched, and is open all the same.
    fn look_for_special_files(self: &Arc<Self>) -> Result<(), VolumeError> {
        let Err(error) = self.find_special_files() else { return Ok(()) };
        if !error.is_of_a_block() {
            return Err(error);
        }
        // A volume that only shows an image needs none of that until it takes writes, and then
        // looks for it again. An image dump is read as far as possible. So is a volume, which takes
        // no changes until its mirror has restored the blocks that a change needs.
        tracing::error!(%error, "inodes that are required for any change can't be read");
        if self.status_role() == Role::Normal {
            self.state.lock().latched = Some(VolumeError::InodesLost(Box::new(error)));
        }
        Ok(())
    }
}

/// How to handle the intent log.
enum Log<'a> {
    /// Replay it. If it has a device of its own that is one of these.
    OnOneOf(&'a [Arc<dyn Device>]),
    /// Throw it away.
    Discarded,
}

impl Log<'_> {
    /// The changes that the log at `area` has on top of the superblock. If it is discarded, the
    /// superblock records that from here on.
    fn replay(
        &self,
        device: &dyn Device,
        area: &LogArea,
        superblock: &mut Superblock,
    ) -> Result<Replay, VolumeError> {
        match self {
            Log::OnOneOf(_) => {
                let committed = superblock.root.generation;
                replay(device, superblock.volume, area, superblock.log_tail, committed)
            }
            Log::Discarded => {
                superblock.external_log = None;
                superblock.log_tail.position = 0;
                superblock.sequence += 1;
                Ok(Replay::empty(superblock.log_tail))
            }
        }
    }
}

fn refuse_short(device: &dyn Device, layout: &Layout) -> Result<(), VolumeError> {
    let need = device_blocks(layout) * BLOCK_SIZE as u64;
    let have = device.geometry().length;
    if have < need { Err(VolumeError::DeviceTooSmall { need, have }) } else { Ok(()) }
}

/// The layout of a new volume on `device`, which has at least `blocks_min` blocks.
///
/// # Errors
/// The device is too small for it, or holds a volume.
pub(crate) fn new_layout(
    device: &dyn Device,
    options: &FormatOptions,
    blocks_min: u64,
) -> Result<Layout, VolumeError> {
    let blocks = options.blocks;
    if !(blocks_min..=SPACE_BLOCKS_MAX).contains(&blocks) {
        return Err(VolumeError::Size { blocks, min: blocks_min, max: SPACE_BLOCKS_MAX });
    }
    let layout = fresh_layout(blocks, options.role == Role::Destination);
    refuse_short(device, &layout)?;
    let [first, second] = read_slots(device)?;
    if first.is_ok() || second.is_ok() { Err(VolumeError::NotEmpty) } else { Ok(layout) }
}

/// The blocks in use, and those of them that are in use by redirects alone.
fn used_and_stuck(
    store: &Store,
    redirects: &Redirects,
    root: &Root,
    snapshots: &SnapshotTable,
) -> (UsedMap, HashSet<Vbn>) {
    let blocks = store.space().blocks(SegmentKind::Space);
    let mut used = load_used(store, redirects, blocks, root, snapshots.iter().map(|entry| &entry.root));
    // No block may be allocated at a place that the redirect map redirects. (A received image drops
    // redirects of blocks that no root has; a volume that was written to, and demoted since, can
    // have such blocks.)
    let stuck = redirects.each().map(|(vbn, _)| vbn).filter(|vbn| used.set(*vbn)).collect();
    (used, stuck)
}

/// The state of a volume according to its superblock, without the log's changes.
fn opened_state(
    superblock: &Superblock,
    snapshots: SnapshotTable,
    redirects: Redirects,
    (used, stuck): (UsedMap, HashSet<Vbn>),
    now: Duration,
) -> State {
    let ended = Arc::new(Ended::default());
    let committed = Committed::active(superblock.root, Arc::new(redirects), ended.clone());
    let next = Generation(superblock.root.generation.0 + 1);
    State {
        role: superblock.role,
        committed,
        ended,
        readers: Vec::new(),
        active_image: Weak::new(),
        pins: HashMap::new(),
        kept: BTreeMap::new(),
        parent: superblock.parent,
        next_snapshot: superblock.next_snapshot,
        cursor: superblock.cursor,
        snapshots,
        open: Overlay::new(next),
        frozen: None,
        frozen_unlogged: Vec::new(),
        contradiction: None,
        used,
        releases: Releases::default(),
        stuck,
        next_file: superblock.root.next_file,
        levels: 1,
        order: 0,
        durable_order: 0,
        atomic_order: 0,
        flying: 0,
        launches: 0,
        awaited: 0,
        compounds: 0,
        freezing: false,
        rolling_back: false,
        heads: 0,
        removed: Vec::new(),
        changes_from: Timestamp(0),
        stranded: Vec::new(),
        tried_stranded: None,
        changed_since: None,
        first_changes: BTreeMap::new(),
        known_from: next,
        known_since: now,
        since_began: BTreeMap::new(),
        since_maps: Vec::new(),
        lost_since: BTreeSet::new(),
        log_left: false,
        latched: None,
        lacks_room: None,
        out_of_reach: None,
        room_failures: 0,
        taken: HashSet::new(),
        looked_for_inodes: now,
        closed: false,
        receiving: false,
        arrivals: None,
        recalled: false,
    }
}

/// Both slots must name this state before anything that the older one shows is reused.
fn mend_slots(device: &dyn Device, superblock: &Superblock, mends: &mut Mends) -> Result<(), VolumeError> {
    for address in [SUPERBLOCK_A, SUPERBLOCK_B] {
        if read_slot(device, address)?.ok().as_ref() != Some(superblock) {
            mends.push(vec![(address * BLOCK_SIZE as u64, slot_block(superblock, address))]);
        }
    }
    Ok(())
}

/// Writes the required repairs. Without room on the device they come before the next change.
fn mend(store: &mut Store, device: Arc<dyn Device>, mends: Mends) -> Result<(), VolumeError> {
    match mends.write(&*device) {
        Err(error @ DeviceError::NoSpace { .. }) => {
            tracing::warn!(%error, "the device has no room for repairs; the volume is opened, and the repairs come before its next change");
            store.stand_on(Arc::new(Unmended::new(device, mends)));
            Ok(())
        }
        outcome => Ok(outcome?),
    }
}

/// The OR of all maps; each shared map block is read once.
pub(crate) fn load_used<'a>(
    store: &Store,
    redirects: &Redirects,
    blocks: u64,
    root: &Root,
    snapshots: impl Iterator<Item = &'a Root>,
) -> UsedMap {
    let mut used = UsedMap::new(blocks);
    let mut unknown = Vec::new();
    let roots = std::iter::once(root.active_map).chain(snapshots.map(|root| root.active_map));
    let maps = Maps { store, redirects };
    maps.each_region(roots, &mut |region, bits| used.merge(region, bits), &mut |first, regions, reason| {
        tracing::error!(%reason, "an active map is damaged; its blocks count as in use, run `cairn volume check`");
        unknown.push((first, regions));
    });
    for (first, regions) in unknown {
        used.fill(first, regions);
    }
    used
}

/// Applies the log's changes on top of the committed root. Returns where writing resumes, and the
/// records that must not be read again.
fn apply_log(store: &Store, state: &mut State, found: Replay) -> (LogTail, Vec<u64>) {
    let mut head = found.head;
    let mut remains = found.remains;
    let committed = state.committed.root.generation;
    let mut first = 0;
    while first < found.records.len() {
        // Records that hold together or not at all: one, mostly.
        let continued = found.records[first..].iter().take_while(|record| record.header.continues).count();
        let end = (first + continued + 1).min(found.records.len());
        let group = &found.records[first..end];
        let is_whole = group.last().is_some_and(|record| !record.header.continues);
        let is_there = |record: &LogRecord| {
            let surely_durable = record.header.sequence <= found.durable_through;
            record.header.generation <= committed || surely_durable || data_is_there(store, record)
        };
        if !is_whole || !group.iter().all(is_there) {
            // The power failed during the flush that wrote these records: that flush was never
            // acknowledged.
            head = LogTail { position: found.positions[first], sequence: group[0].header.sequence };
            remains.extend(&found.positions[first..]);
            break;
        }
        let records = group.iter().filter(|record| record.header.generation > committed);
        records.flat_map(|record| &record.entries).for_each(|entry| apply_entry(state, entry));
        first = end;
    }
    (head, remains)
}

fn apply_entry(state: &mut State, entry: &LogEntry) {
    let file = match entry {
        LogEntry::Write { file, .. } | LogEntry::Hole { file, .. } => *file,
        LogEntry::Inode(inode) => inode.id,
    };
    // A file whose creation is in no consistency point is lost. Its number must not be reused by
    // another file, which would show its blocks.
    state.next_file = state.next_file.max(file.0.saturating_add(1));
    match *entry {
        LogEntry::Write { file, lba, vbn, checksum } => {
            if state.open.has_placed(file, lba.0, vbn) {
                return;
            }
            // Only a free block is written to. A block that is in use, or out of range, is not this
            // volume's: it must never be freed.
            if !state.used.set(vbn) {
                state.contradiction.get_or_insert(vbn);
            }
            let birth = state.open.generation;
            state.open.replay_write(file, lba.0, BlockPointer { vbn, birth, checksum });
        }
        LogEntry::Hole { file, lba, count } => state.open.punch(file, lba.0, count, 0, false),
        LogEntry::Inode(inode) => state.open.set_inode(inode.id, Some(inode)),
    }
}

fn data_is_there(store: &Store, record: &LogRecord) -> bool {
    let named: Vec<_> = record
        .entries
        .iter()
        .filter_map(|entry| match entry {
            LogEntry::Write { vbn, checksum, .. } => Some((*vbn, *checksum)),
            LogEntry::Hole { .. } | LogEntry::Inode(_) => None,
        })
        .collect();
    let vbns: Vec<_> = named.iter().map(|(vbn, _)| *vbn).collect();
    store
        .read_numbers(&vbns, &Redirects::default())
        .into_iter()
        .zip(named)
        .all(|(block, (_, checksum))| block.is_ok_and(|block: Block| Checksum::of(&block[..]) == checksum))
}

impl Volume {
    /// Finds removed files whose space is still to be freed, since maps, and the heights of the
    /// trees. Some inodes may be unreadable although none of them can be a since map
    /// ([`crate::past::since`], invariant 4). Then only their files are lost until they can be
    /// read. Removed files among them are found at the next opening.
    ///
    /// # Errors
    /// Of inodes that can't be read where a since map may be one of them, or one was changed after
    /// the last consistency point.
    pub(crate) fn find_special_files(self: &Arc<Self>) -> Result<(), VolumeError> {
        let image = self.image(None)?;
        let mut removed = Vec::new();
        let mut since_maps = Vec::new();
        let mut levels = 1;
        let (replayed, written) = {
            let state = self.state.lock();
            (state.open.inodes.clone(), state.open.files.keys().copied().collect::<Vec<_>>())
        };
        let changed: BTreeSet<FileId> = replayed.keys().copied().chain(written).collect();
        // The log's version of an inode lacks the blocks, which the root has.
        let mut trees = Vec::new();
        let mut visit = |inode: Inode| {
            levels = levels.max(inode.tree.height);
            since_maps.extend(SinceMap::of(&inode));
            match replayed.get(&inode.id) {
                Some(Some(_)) => trees.push((inode.id, inode.tree)),
                _ if inode.removed => removed.push(inode.id),
                _ => {}
            }
        };
        let mut all_known = true;
        let looked = image.each_inode_past(&mut visit, &mut |lost| {
            if lost.may_have_since_map(image.root()) || changed.range(lost.numbers.clone()).next().is_some() {
                return Err(lost.error);
            }
            tracing::error!(from = %lost.numbers.start, to = %lost.numbers.end, error = %lost.error, "inodes can't be read; only the files with these numbers are unavailable until they can be");
            all_known = false;
            Ok(())
        });
        if !all_known {
            // How tall their trees are will matter when they can be read.
            levels = TreeRef::HEIGHT_MAX;
        }
        for inode in replayed.values().flatten() {
            levels = levels.max(TreeRef::height_for(inode.tree.length));
            if inode.removed {
                removed.push(inode.id);
            }
        }
        let mut state = self.state.lock();
        for (file, tree) in trees {
            if let Some(Some(changed)) = state.open.inodes.get_mut(&file) {
                changed.tree = TreeRef { length: changed.tree.length, ..tree };
            }
        }
        looked?;
        state.removed = removed;
        state.since_maps = since_maps;
        state.levels = state.levels.max(levels);
        Ok(())
    }
}
