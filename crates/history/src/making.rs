//! Makes a history, and recognises one in which nothing was recorded yet.

use std::sync::Arc;

use cairn_base::HistoryId;
use cairn_device::{Device, Geometry};
use cairn_format::history::{HistoryRecord, HistorySuperblock, SEGMENTS_START, SLOT_A, SLOT_B};

use crate::HistoryError;
use crate::history::History;
use crate::options::{HistoryOptions, OpenOptions, check, segments_of, store_bytes_min};
use crate::recover::{BLOCK, block, read_superblock};
use crate::status::set_in_superblock;

/// The unit that a disk writes atomically, in bytes.
const SECTOR: usize = 512;

impl History {
    /// Makes a new history of `origin` in `store`, which must be empty, and opens it. The origin is
    /// unchanged.
    pub fn create(
        origin: Arc<dyn Device>,
        store: Arc<dyn Device>,
        options: &HistoryOptions,
        open: OpenOptions,
    ) -> Result<Arc<Self>, HistoryError> {
        let (geometry, room) = (origin.geometry(), store.geometry());
        check(options, geometry, room)?;
        let (segment_blocks, segments) = segments_of(room.length)?;
        match read_superblock(&*store) {
            Ok(_) => return Err(HistoryError::StoreInUse),
            Err(HistoryError::NoHistory) => {}
            Err(HistoryError::Damaged { .. }) => return Err(HistoryError::StoreInUse),
            Err(error) => return Err(error),
        }
        let now = open.clock.now().0.clamp(1, u64::MAX / 4);
        let mut superblock = HistorySuperblock {
            store: options.store,
            sequence: 0,
            placement: options.placement,
            granularity: options.granularity,
            floor_policy: options.window.floor_policy,
            reduction: options.window.reduction,
            block_bytes: options.block_bytes,
            segment_blocks,
            segments,
            origin_bytes: geometry.length,
            window_ns: 0,
            window_bytes: 0,
            floor_ns: 0,
            created_ns: now,
            start_ns: now,
            cut_ns: 0,
            last_ns: now,
            durable_through: 0,
            reverts: Vec::new(),
            thinned: Vec::new(),
            live: vec![false; segments as usize],
            ahead: vec![false; segments as usize],
            ahead_from: 0,
        };
        set_in_superblock(&mut superblock, &options.window);
        let history = Self::new(origin, store, superblock, open);
        {
            let mut writer = history.writer.lock();
            history.take_first_room(&mut writer)?;
            let first = writer.free.pop_front().ok_or(HistoryError::Full)?;
            history.open_segment(&mut writer, first)?;
            history.write_superblock(&mut writer)?;
            history.sync_store(&mut writer)?;
        }
        Ok(Arc::new(history))
    }

    /// Refuses options or devices that [`create`](Self::create) would refuse, before anything is
    /// made.
    pub fn check_options(
        options: &HistoryOptions,
        origin: Geometry,
        store: Geometry,
    ) -> Result<(), HistoryError> {
        check(options, origin, store)?;
        segments_of(store.length).map(drop)
    }

    /// Which history a store has. Nothing is written: opening one over an origin that is not its
    /// own would be.
    pub fn id_of(store: &dyn Device) -> Result<HistoryId, HistoryError> {
        Ok(read_superblock(store)?.store)
    }

    /// Whether a store is in the state that [`History::release`] leaves for the history `id`: its
    /// superblocks are erased, and its log still begins as its own. Another file or disk in its
    /// place has no such log, nor has one full of zeroes.
    pub fn is_released(store: &dyn Device, id: HistoryId) -> Result<bool, HistoryError> {
        if store.geometry().length < store_bytes_min() {
            return Ok(false);
        }
        for slot in [SLOT_A, SLOT_B] {
            // For zeroes torn by a cut the first sector is present, or it is damaged.
            if block(store, slot)?.iter().take(SECTOR).any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        // Each sector of a torn block is of the one time or the other, so its first sector is
        // whole.
        let log = block(store, SEGMENTS_START)?;
        Ok(log[..SECTOR].windows(id.0.len()).any(|bytes| *bytes == id.0))
    }

    /// Whether a store begins with only the superblocks that [`History::create`] writes for the
    /// history `id`, both or one, and nothing was ever recorded in it. A torn superblock cannot be
    /// distinguished from foreign data.
    pub fn is_unfinished(store: &dyn Device, id: HistoryId) -> Result<bool, HistoryError> {
        let mut made = None;
        for address in 0..SEGMENTS_START.min(store.geometry().length / BLOCK) {
            let found = block(store, address)?;
            if found.iter().all(|byte| *byte == 0) {
                continue;
            }
            match HistorySuperblock::parse(&found, address) {
                Ok(superblock) if superblock.store == id && superblock.sequence == 1 => {
                    made = Some(superblock);
                }
                _ => return Ok(false),
            }
        }
        let Some(superblock) = made else { return Ok(false) };
        for segment in (0..superblock.segments).filter(|segment| superblock.live[*segment as usize]) {
            let first = SEGMENTS_START + segment * superblock.segment_blocks + 1;
            if HistoryRecord::peek(&block(store, first)?, id).is_ok() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
