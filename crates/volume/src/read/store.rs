//! Blocks by pointer: the cache in front of the device, and the rule that nothing unverified
//! passes.

use std::hash::BuildHasherDefault;
use std::sync::Arc;

use crate::locks::RwLock;
use cairn_base::{BLOCK_SIZE, Checksum, Vbn, VolumeId};
use cairn_device::{Block, Device, DeviceError, Operation, Segments};
use cairn_format::{BlockPointer, Node, NodeAddress, SegmentKind};
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, UnitWeighter};

use crate::commit::space::{Redirects, Space};
use crate::error::{Place, VolumeError, is_of_a_place};
use crate::health::damage::{Damage, DamagedBlock};
use crate::known_files::INODE_FILE;
use crate::limits::Memory;
use crate::memory::number_hash::NumberHasher;
use crate::read::fresh::Fresh;

/// The part of the data cache for blocks that were used more than once. While that part is empty,
/// new blocks go there at once, so with a large part the first fill of a volume kept all later
/// blocks out.
const HOT_DATA: f64 = 0.1;
/// The same for nodes, most of which are used repeatedly: the library's default.
const HOT_NODES: f64 = 0.97;
/// Evicted blocks that are remembered, for each block in the cache: one that is read again soon
/// stays then.
const REMEMBERED: f64 = 1.0;
/// Blocks that one device operation carries at most: 1 MiB.
const RUN_BLOCKS_MAX: u64 = 256;

/// Wanted blocks of one call from which on an operation also reads unwanted ones between them. Few
/// blocks are read at the same time anyway.
const SPREAD_MIN: usize = 128;
/// Unwanted blocks in a row that one operation reads along: they cost a disk about as much as one
/// more operation (10 us and 1.1 GB/s were measured).
const GAP_BLOCKS: u64 = 2;

/// A block to load: its pointer, and its expected kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) pointer: BlockPointer,
    pub(crate) place: Place,
}

/// Which of the loaded data stays in memory. Nodes always stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    All,
    Nothing,
}

/// A cached block with the checksum that it was verified against. A vbn is reused, so a hit counts
/// only when the pointer names the same checksum: the cache needs no notice of frees.
#[derive(Clone)]
struct Cached {
    checksum: Checksum,
    block: Block,
}

/// The blocks of a volume.
pub(crate) struct Store {
    device: Arc<dyn Device>,
    volume: VolumeId,
    space: RwLock<Arc<Space>>,
    data: BlockCache,
    nodes: BlockCache,
    damage: Damage,
    fresh: Fresh,
}

/// Hashes numbers the same way in every run: evictions, and so reads from the device, must not
/// differ between two runs of the simulator.
type BlockCache = Cache<u64, Cached, UnitWeighter, BuildHasherDefault<NumberHasher>>;

impl Store {
    pub(crate) fn new(device: Arc<dyn Device>, volume: VolumeId, space: Space, memory: &Memory) -> Self {
        let cache = |bytes: u64, hot: f64| {
            let blocks = (bytes as usize / BLOCK_SIZE).max(64);
            let options = OptionsBuilder::new()
                .estimated_items_capacity(blocks)
                .weight_capacity(blocks as u64)
                .hot_allocation(hot)
                .ghost_allocation(REMEMBERED)
                .build()
                .expect("both capacities are given");
            BlockCache::with_options(options, Default::default(), Default::default(), Default::default())
        };
        let (data, nodes) = (cache(memory.data_cache, HOT_DATA), cache(memory.node_cache, HOT_NODES));
        Self {
            device,
            volume,
            space: RwLock::new(Arc::new(space)),
            data,
            nodes,
            damage: Damage::default(),
            fresh: Fresh::new(memory.fresh_blocks),
        }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Continues over another device that has the same blocks.
    pub(crate) fn stand_on(&mut self, device: Arc<dyn Device>) {
        self.device = device;
    }

    pub(crate) fn volume(&self) -> VolumeId {
        self.volume
    }

    pub(crate) fn damage(&self) -> &Damage {
        &self.damage
    }

    pub(crate) fn fresh(&self) -> &Fresh {
        &self.fresh
    }

    pub(crate) fn space(&self) -> Arc<Space> {
        self.space.read().clone()
    }

    pub(crate) fn set_space(&self, space: Space) {
        *self.space.write() = Arc::new(space);
    }

    /// A block of data if it is in memory. A hole is zeroes.
    #[inline]
    pub(crate) fn cached_data(&self, pointer: &BlockPointer) -> Option<Block> {
        cached_in(&self.data, pointer)
    }

    /// A node, or a block of inodes or of a map, if it is in memory.
    #[inline]
    pub(crate) fn cached_node(&self, pointer: &BlockPointer) -> Option<Block> {
        cached_in(&self.nodes, pointer)
    }

    /// A block of any kind if it is in memory.
    pub(crate) fn cached(&self, pointer: &BlockPointer) -> Option<Block> {
        self.cached_data(pointer).or_else(|| self.cached_node(pointer))
    }

    /// Empties the caches.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn forget(&self) {
        self.data.clear();
        self.nodes.clear();
    }

    /// Remembers a block of data that was just written.
    pub(crate) fn remember_data(&self, vbn: Vbn, checksum: Checksum, block: Block) {
        self.data.insert(vbn.0, Cached { checksum, block });
    }

    /// Remembers a node, or a block of inodes or of a map, that was just made.
    pub(crate) fn remember_node(&self, vbn: Vbn, checksum: Checksum, block: Block) {
        self.nodes.insert(vbn.0, Cached { checksum, block });
    }

    /// Drops the blocks cached under these numbers: other content comes there, and it may have the
    /// same checksum, as a source can make it on purpose.
    pub(crate) fn forget_blocks(&self, vbns: impl Iterator<Item = Vbn>) {
        for vbn in vbns {
            self.data.remove(&vbn.0);
            self.nodes.remove(&vbn.0);
        }
    }

    /// Evicts nodes that the active state no longer has, to make room for the next ones: new blocks
    /// without room are soon evicted by other new ones.
    pub(crate) fn forget_nodes(&self, replaced: &[Vbn]) {
        for vbn in replaced {
            self.nodes.remove(&vbn.0);
        }
    }

    fn cache_of(&self, place: &Place) -> &BlockCache {
        match place {
            Place::Data { file, .. } if *file < INODE_FILE => &self.data,
            _ => &self.nodes,
        }
    }

    /// Loads every wanted block, from memory or the device, and verifies it.
    pub(crate) fn load(&self, wanted: &[Wanted], redirects: &Redirects) -> Vec<Result<Block, VolumeError>> {
        self.load_and(Keep::All, wanted, redirects)
    }

    /// [`Store::load`] with a choice of the blocks that stay in memory.
    pub(crate) fn load_and(
        &self,
        keep: Keep,
        wanted: &[Wanted],
        redirects: &Redirects,
    ) -> Vec<Result<Block, VolumeError>> {
        let mut loaded: Vec<Option<Result<Block, VolumeError>>> = Vec::with_capacity(wanted.len());
        let mut missing = Vec::new();
        for (index, want) in wanted.iter().enumerate() {
            let cached = cached_in(self.cache_of(&want.place), &want.pointer);
            if cached.is_none() {
                missing.push(index);
            }
            loaded.push(cached.map(Ok));
        }
        if !missing.is_empty() {
            missing.sort_unstable_by_key(|index| wanted[*index].pointer.vbn);
            missing.dedup_by_key(|index| wanted[*index].pointer);
            let places = self.locate_all(missing.iter().map(|index| wanted[*index].pointer.vbn), redirects);
            let gap = if missing.len() < SPREAD_MIN { 0 } else { GAP_BLOCKS };
            for (index, read) in missing.iter().zip(self.read_spread(&places, gap)) {
                let want = &wanted[*index];
                let verified =
                    read.map_err(VolumeError::from).and_then(|block| self.verify(want, block, keep));
                self.note_damage(want, &verified);
                loaded[*index] = Some(verified);
            }
        }
        // Pointers that still lack a block are repetitions.
        let first_of =
            |pointer: &BlockPointer| missing.iter().copied().find(|index| wanted[*index].pointer == *pointer);
        (0..wanted.len())
            .map(|index| match loaded[index].clone() {
                Some(result) => result,
                None => first_of(&wanted[index].pointer)
                    .and_then(|first| loaded[first].clone())
                    .unwrap_or(Err(VolumeError::Closed)),
            })
            .collect()
    }

    /// Reads and verifies blocks from the device whatever the cache holds, and does not fill it.
    pub(crate) fn load_past_cache(
        &self,
        wanted: &[Wanted],
        redirects: &Redirects,
    ) -> Vec<Result<(), VolumeError>> {
        let places = self.locate_all(wanted.iter().map(|want| want.pointer.vbn), redirects);
        self.read_places(&places)
            .into_iter()
            .zip(wanted)
            .map(|(read, want)| {
                let damaged = VolumeError::Damaged { vbn: want.pointer.vbn, place: want.place };
                let verified = read.map_err(VolumeError::from).and_then(|block| {
                    if Checksum::of(&block[..]) == want.pointer.checksum { Ok(()) } else { Err(damaged) }
                });
                self.note_damage(want, &verified);
                verified
            })
            .collect()
    }

    /// A repair may restore an unreadable block, as it may one that does not verify. A device that
    /// is gone as a whole is no evidence.
    fn note_damage<T>(&self, want: &Wanted, outcome: &Result<T, VolumeError>) {
        let is_noted = match outcome {
            Err(VolumeError::Damaged { .. }) => true,
            Err(VolumeError::Device(error)) => is_of_a_place(error),
            _ => false,
        };
        if is_noted {
            let Wanted { pointer, place } = *want;
            self.damage.note(DamagedBlock { vbn: pointer.vbn, checksum: pointer.checksum, place });
        }
    }

    /// Writes a block at the place where it is read.
    pub(crate) fn overwrite(
        &self,
        vbn: Vbn,
        block: &Block,
        redirects: &Redirects,
    ) -> Result<(), VolumeError> {
        let offset = self.locate(vbn, redirects).ok_or(VolumeError::Refused("no such block"))?;
        self.run(vec![Operation::write(offset, Segments::from(block.clone()))])
    }

    /// Loads one block.
    pub(crate) fn load_one(&self, wanted: Wanted, redirects: &Redirects) -> Result<Block, VolumeError> {
        if let Some(block) = cached_in(self.cache_of(&wanted.place), &wanted.pointer) {
            return Ok(block);
        }
        match self.load(&[wanted], redirects).pop() {
            Some(result) => result,
            None => Err(VolumeError::Closed),
        }
    }

    /// Loads one node.
    pub(crate) fn load_node(
        &self,
        pointer: BlockPointer,
        address: NodeAddress,
        redirects: &Redirects,
    ) -> Result<Block, VolumeError> {
        self.load_one(Wanted { pointer, place: Place::Node(address) }, redirects)
    }

    fn verify(&self, want: &Wanted, block: Block, keep: Keep) -> Result<Block, VolumeError> {
        let damaged = || VolumeError::Damaged { vbn: want.pointer.vbn, place: want.place };
        if Checksum::of(&block[..]) != want.pointer.checksum {
            return Err(damaged());
        }
        if let Place::Node(address) = want.place {
            Node::parse(&block, self.volume, address, want.pointer.vbn).map_err(|_| damaged())?;
        }
        if keep == Keep::All || matches!(want.place, Place::Node(_)) {
            let cached = Cached { checksum: want.pointer.checksum, block: block.clone() };
            self.cache_of(&want.place).insert(want.pointer.vbn.0, cached);
        }
        Ok(block)
    }

    /// Bytes from the start of the device where `vbn` is read.
    fn locate(&self, vbn: Vbn, redirects: &Redirects) -> Option<u64> {
        self.space.read().place_of(vbn, redirects)
    }

    /// The same of many.
    fn locate_all(&self, vbns: impl Iterator<Item = Vbn>, redirects: &Redirects) -> Vec<Option<u64>> {
        let space = self.space.read();
        vbns.map(|vbn| space.place_of(vbn, redirects)).collect()
    }

    /// Reads blocks at places on the device, in one batch, neighbours in one operation; unverified.
    pub(crate) fn read_places(&self, places: &[Option<u64>]) -> Vec<Result<Block, DeviceError>> {
        self.read_spread(places, 0)
    }

    /// [`Store::read_places`], where an operation also reads up to `gap` blocks between two places.
    fn read_spread(&self, places: &[Option<u64>], gap: u64) -> Vec<Result<Block, DeviceError>> {
        let known: Vec<u64> = places.iter().flatten().copied().collect();
        let spans = spans(&known, gap);
        let read = |span: &Span| Operation::read(span.start, (span.blocks * BLOCK_SIZE as u64) as u32);
        let mut operations: Vec<Operation> = spans.iter().map(read).collect();
        self.device.run(&mut operations);
        let mut blocks = Vec::with_capacity(places.len());
        let mut again = Vec::new();
        for (operation, span) in operations.into_iter().zip(spans) {
            match operation.into_data() {
                Ok(data) if span.wanted.len() as u64 == span.blocks => {
                    append_blocks(data, span.blocks as usize, &mut blocks);
                }
                Ok(data) => {
                    let mut all = Vec::with_capacity(span.blocks as usize);
                    append_blocks(data, span.blocks as usize, &mut all);
                    let number = |place: &u64| ((place - span.start) / BLOCK_SIZE as u64) as usize;
                    let wanted = known[span.wanted].iter();
                    blocks.extend(wanted.map(|place| {
                        std::mem::replace(&mut all[number(place)], Err(DeviceError::OutOfService))
                    }));
                }
                Err(error) => {
                    if span.blocks > 1
                        && matches!(error, DeviceError::Io { .. } | DeviceError::Corrupt { .. })
                    {
                        again.extend(span.wanted.clone().map(|index| (index, known[index])));
                    }
                    blocks.extend(span.wanted.map(|_| Err(error.clone())));
                }
            }
        }
        self.read_alone(&again, &mut blocks);
        if blocks.len() == places.len() {
            return blocks;
        }
        let mut blocks = blocks.into_iter();
        places
            .iter()
            .map(|place| match place {
                Some(_) => blocks.next().unwrap_or(Err(DeviceError::OutOfService)),
                None => Err(DeviceError::OutOfService),
            })
            .collect()
    }

    /// Reads runs of blocks by number, past the cache, unverified, in order, where no block is
    /// redirected. `None` where a block cannot be read or has no place: [`Store::read_numbers`]
    /// tells which. Most bulk reads succeed and avoid the cost of a list of outcomes.
    pub(crate) fn read_runs(&self, runs: &[(Vbn, u64)]) -> Option<Vec<Block>> {
        let places: Vec<(u64, u64)> = {
            let space = self.space.read();
            runs.iter().flat_map(|run| space.places_of_run(*run)).collect::<Option<_>>()?
        };
        let runs = joined(places.into_iter());
        let mut blocks = Vec::with_capacity(runs.iter().map(|(_, count)| *count as usize).sum());
        for (operation, (_, count)) in self.read_joined(&runs).into_iter().zip(runs) {
            let before = blocks.len();
            blocks.extend(operation.into_data().ok()?.into_blocks().ok()?);
            if blocks.len() - before != count as usize {
                return None;
            }
        }
        Some(blocks)
    }

    /// Reads places on the device, in one batch.
    fn read_joined(&self, runs: &[(u64, u64)]) -> Vec<Operation> {
        let read =
            |(offset, blocks): &(u64, u64)| Operation::read(*offset, (*blocks * BLOCK_SIZE as u64) as u32);
        let mut operations: Vec<Operation> = runs.iter().map(read).collect();
        self.device.run(&mut operations);
        operations
    }

    /// Reads blocks whose request failed again, each by itself: an unreadable place costs its own
    /// block and none of its neighbours.
    fn read_alone(&self, places: &[(usize, u64)], blocks: &mut [Result<Block, DeviceError>]) {
        if places.is_empty() {
            return;
        }
        let read = |(_, offset): &(usize, u64)| Operation::read(*offset, BLOCK_SIZE as u32);
        let mut operations: Vec<Operation> = places.iter().map(read).collect();
        self.device.run(&mut operations);
        for ((index, _), operation) in places.iter().zip(operations) {
            blocks[*index] = operation.into_data().and_then(|data| whole_block(&data, 0));
        }
    }

    /// Reads blocks by number, past the cache, unverified, in the order asked.
    pub(crate) fn read_numbers(
        &self,
        vbns: &[Vbn],
        redirects: &Redirects,
    ) -> Vec<Result<Block, DeviceError>> {
        let places = self.locate_all(vbns.iter().copied(), redirects);
        self.read_places(&places)
    }

    /// Operations that write blocks home, neighbours in one operation. `writes` is best sorted by
    /// vbn.
    pub(crate) fn write_home<'a>(&self, writes: impl Iterator<Item = (Vbn, &'a Block)>) -> Vec<Operation> {
        self.write_kind(SegmentKind::Space, writes.map(|(vbn, block)| (vbn.0, block)))
    }

    /// Operations that write numbered blocks of a kind of segment, neighbours in one operation.
    pub(crate) fn write_kind<'a>(
        &self,
        kind: SegmentKind,
        writes: impl Iterator<Item = (u64, &'a Block)>,
    ) -> Vec<Operation> {
        let space = self.space.read();
        let mut operations = Vec::new();
        let mut run: Option<(u64, Segments, u64)> = None;
        for (number, block) in writes {
            let (offset, _) = space.locate(kind, number).expect("blocks are allocated within the space");
            match &mut run {
                Some((start, data, blocks))
                    if *start + data.len() as u64 == offset && *blocks < RUN_BLOCKS_MAX =>
                {
                    data.push_block(block.clone());
                    *blocks += 1;
                }
                _ => {
                    if let Some((start, data, _)) = run.take() {
                        operations.push(Operation::write(start, data));
                    }
                    run = Some((offset, Segments::from(block.clone()), 1));
                }
            }
        }
        if let Some((start, data, _)) = run {
            operations.push(Operation::write(start, data));
        }
        operations
    }

    /// Runs operations and returns the first failure. A lack of room is returned only if there is
    /// no other failure, as more room does not repair a failed flush.
    pub(crate) fn run(&self, mut operations: Vec<Operation>) -> Result<(), VolumeError> {
        if !operations.is_empty() {
            self.device.run(&mut operations);
        }
        let mut outcome = Ok(());
        for operation in operations {
            match operation.into_outcome() {
                Ok(()) => {}
                Err(error @ DeviceError::NoSpace { .. }) => outcome = outcome.and(Err(error.into())),
                Err(error) => return Err(error.into()),
            }
        }
        outcome
    }
}

#[inline]
fn cached_in(cache: &BlockCache, pointer: &BlockPointer) -> Option<Block> {
    if pointer.is_hole() {
        return Some(Block::zero());
    }
    let cached = cache.get(&pointer.vbn.0)?;
    (cached.checksum == pointer.checksum).then_some(cached.block)
}

/// Blocks with their places as [`Store::write_home`] takes them.
pub(crate) fn pairs(writes: &[(Vbn, Block)]) -> impl Iterator<Item = (Vbn, &Block)> {
    writes.iter().map(|(vbn, block)| (*vbn, block))
}

/// Places on the device (bytes, and blocks) with neighbours made one, up to as much as one
/// operation has.
pub(crate) fn joined(places: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (mut offset, mut count) in places {
        if let Some((start, blocks)) = runs.last_mut()
            && *start + *blocks * BLOCK_SIZE as u64 == offset
        {
            let more = count.min(RUN_BLOCKS_MAX - *blocks);
            *blocks += more;
            (offset, count) = (offset + more * BLOCK_SIZE as u64, count - more);
        }
        while count > 0 {
            let blocks = count.min(RUN_BLOCKS_MAX);
            runs.push((offset, blocks));
            (offset, count) = (offset + blocks * BLOCK_SIZE as u64, count - blocks);
        }
    }
    runs
}

/// One operation that reads wanted blocks.
pub(crate) struct Span {
    /// In bytes.
    pub(crate) start: u64,
    pub(crate) blocks: u64,
    /// Its part of the list of wanted places.
    pub(crate) wanted: std::ops::Range<usize>,
}

/// The operations that read `places`, in their order. Places that are in order and have at most
/// `gap` blocks between them are read together.
pub(crate) fn spans(places: &[u64], gap: u64) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (index, place) in places.iter().enumerate() {
        if let Some(span) = spans.last_mut()
            && let Some(between) = place.checked_sub(span.start + span.blocks * BLOCK_SIZE as u64)
            && between <= gap * BLOCK_SIZE as u64
            && span.blocks + between / (BLOCK_SIZE as u64) < RUN_BLOCKS_MAX
        {
            span.blocks += between / BLOCK_SIZE as u64 + 1;
            span.wanted.end = index + 1;
        } else {
            spans.push(Span { start: *place, blocks: 1, wanted: index..index + 1 });
        }
    }
    spans
}

/// The `count` blocks of a read, whatever the device has answered, as others follow.
pub(crate) fn append_blocks(data: Segments, count: usize, blocks: &mut Vec<Result<Block, DeviceError>>) {
    let before = blocks.len();
    // A device usually answers an aligned read in whole blocks; otherwise the bytes are assembled.
    match data.into_blocks() {
        Ok(whole) => blocks.extend(whole.map(Ok)),
        Err(data) => blocks.extend((0..count).map(|n| whole_block(&data, n))),
    }
    blocks.resize(before + count, Err(DeviceError::OutOfService));
}

/// The `n`th block of data that was read in other pieces.
fn whole_block(data: &Segments, n: usize) -> Result<Block, DeviceError> {
    if (n + 1) * BLOCK_SIZE > data.len() {
        return Err(DeviceError::OutOfService);
    }
    let mut block = cairn_device::BlockMut::dirty();
    data.slice(n * BLOCK_SIZE, BLOCK_SIZE).copy_to(&mut block[..]);
    Ok(block.freeze())
}
