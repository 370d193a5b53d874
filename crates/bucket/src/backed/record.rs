//! The presence file: which blocks of an image are on the local device.
//!
//! A head block, then two areas of the same length. The area in use has a checkpoint, then blocks
//! of marks, one batch for each flush that needs some. A full area is followed by a checkpoint in
//! the other one, and an opening also makes one. `docs/bucket-volumes.md` has every field.
//!
//! A checkpoint is flushed before the first block of the older area is cleared, and marks follow
//! only after that. So the older area is used only if the newer one was never complete, and a
//! damaged area is not mistaken for the remains of a crash.

use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Checksum, VolumeId};
use cairn_device::{Device, DeviceError, Operation, Segments};

use super::base::{BASE_WORDS, Base, BaseParts};
use super::error::BackedError;
use super::presence::{Change, Mark, Presence, Snapshot};
use super::{BLOCK, REGION};
use crate::images::{ImageId, REGION_BLOCKS};

/// The version of the file that this program writes, and the newest that it reads.
pub(super) const VERSION: u32 = 2;
/// The version without changes of the base, and without blocks that become absent.
const VERSION_WITHOUT_BASE: u32 = 1;
const MAGIC: [u8; 8] = *b"CAIRNPRS";
/// Bytes of the head before its checksum.
const HEAD_FIELDS: usize = 8 + 4 + 4 + 16 + 16 + 16 + 8 * 4;
/// Bytes of a block of an area before its words.
const BLOCK_HEAD: usize = 32;
/// Words of a block of an area.
const WORDS: usize = (BLOCK_SIZE - BLOCK_HEAD - 16) / 8;
/// Blocks of marks in an area: about 500,000 marks.
const MARK_BLOCKS: u64 = 1024;
/// Words of a region in a checkpoint at most.
const REGION_WORDS: u64 = 1 + (REGION_BLOCKS / 64) as u64;
/// Blocks that are read or written at once.
const AT_ONCE: u64 = 256;
/// More regions than a volume can have.
const REGIONS_MAX: u64 = 1 << 32;

const CHECKPOINT: u32 = 1;
const CHECKPOINT_END: u32 = 2;
const MARKS: u32 = 3;

/// In the top byte of a word.
const ABSENT: u64 = 1;
const PARTIAL: u64 = 2;
const MARK: u64 = 3;
const GONE: u64 = 4;
const BASE: u64 = 5;

/// The image below a device, as the head of its presence file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// The volume.
    pub volume: VolumeId,
    /// The image.
    pub image: ImageId,
    /// Blocks of its block space.
    pub blocks: u64,
    /// Regions of which it has blocks.
    pub regions: u64,
    /// Bytes of their objects.
    pub stored: u64,
    /// The version of its file.
    version: u32,
    /// Identifies this file.
    id: [u8; 16],
}

impl Backing {
    fn all_regions(&self) -> u64 {
        self.blocks.div_ceil(REGION)
    }

    fn area_blocks(&self) -> u64 {
        area_blocks(self.blocks)
    }

    /// The first block of an area.
    fn area(&self, area: u64) -> u64 {
        1 + area * self.area_blocks()
    }

    fn head(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK_SIZE);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(&self.volume.0);
        bytes.extend_from_slice(&self.image.0);
        for number in [self.blocks, self.regions, self.stored, self.area_blocks()] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = Checksum::of(&bytes);
        bytes.extend_from_slice(&checksum.0);
        bytes.resize(BLOCK_SIZE, 0);
        bytes
    }
}

fn area_blocks(blocks: u64) -> u64 {
    let words = blocks.div_ceil(REGION) * REGION_WORDS;
    // The last block also has room for a base.
    words.div_ceil(WORDS as u64) + 1 + MARK_BLOCKS
}

/// Bytes of the presence file of an image with that many blocks. The file may be sparse.
pub fn presence_bytes(blocks: u64) -> u64 {
    (1 + 2 * area_blocks(blocks)) * BLOCK
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |eight| u64::from_le_bytes(*eight))
}

fn number4(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

fn array(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
}

/// See [`super::BackedDevice::inspect`].
pub(super) fn inspect(device: &dyn Device) -> Result<Backing, BackedError> {
    if device.geometry().length < BLOCK {
        return Err(BackedError::NotOne);
    }
    let head = device.read(0, BLOCK_SIZE as u32)?.to_vec();
    if !head.starts_with(&MAGIC) {
        return Err(BackedError::NotOne);
    }
    let version = number4(&head, 8);
    if version > VERSION {
        return Err(BackedError::Newer { version });
    }
    let fields = head.get(..HEAD_FIELDS).unwrap_or_default();
    if Checksum::of(fields).0 != array(&head, HEAD_FIELDS) || version == 0 {
        return Err(BackedError::Damaged("its head has a wrong checksum"));
    }
    let backing = Backing {
        version,
        id: array(&head, 16),
        volume: VolumeId(array(&head, 32)),
        image: ImageId(array(&head, 48)),
        blocks: number(&head, 64),
        regions: number(&head, 72),
        stored: number(&head, 80),
    };
    let counts = backing.all_regions() < REGIONS_MAX && backing.regions <= backing.all_regions();
    if !counts || number(&head, 88) != backing.area_blocks() {
        return Err(BackedError::Damaged("its head has wrong numbers"));
    }
    let (need, have) = (presence_bytes(backing.blocks), device.geometry().length);
    if have < need { Err(BackedError::RecordTooSmall { need, have }) } else { Ok(backing) }
}

/// A block of an area that verified.
struct Read {
    generation: u64,
    /// Of marks: the number of the first block of the batch, which was written before one flush. Of
    /// a checkpoint: the tag of its words up to here.
    batch: u64,
    kind: u32,
    words: Vec<u64>,
}

fn parse(backing: &Backing, address: u64, bytes: &[u8]) -> Option<Read> {
    let (fields, checksum) = bytes.split_last_chunk::<16>()?;
    if sum(backing, address, fields).0 != *checksum {
        return None;
    }
    let (kind, count) = (number4(fields, 16), number4(fields, 20) as usize);
    let words = fields.get(BLOCK_HEAD..BLOCK_HEAD + count.checked_mul(8)?)?;
    let words = words.chunks_exact(8).map(|word| number(word, 0)).collect();
    Some(Read { generation: number(fields, 0), batch: number(fields, 8), kind, words })
}

/// The checksum also has the file and the place.
fn sum(backing: &Backing, address: u64, fields: &[u8]) -> Checksum {
    Checksum::of_pieces([&backing.id[..], &address.to_le_bytes()[..], fields].into_iter())
}

fn block(
    backing: &Backing,
    address: u64,
    (generation, batch, kind): (u64, u64, u32),
    words: &[u64],
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK_SIZE);
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(&batch.to_le_bytes());
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&(words.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    bytes.resize(BLOCK_SIZE - 16, 0);
    let checksum = sum(backing, address, &bytes);
    bytes.extend_from_slice(&checksum.0);
    bytes
}

fn word_of(kind: u64, mark: Mark) -> u64 {
    kind << 56 | u64::from(mark.count - 1) << 42 | u64::from(mark.place) << 32 | u64::from(mark.region)
}

fn words_of_base(base: &Base) -> impl Iterator<Item = u64> {
    (0_u64..).zip(base.parts()).map(|(number, part)| BASE << 56 | number << 48 | part)
}

fn words_of(change: &Change) -> Vec<u64> {
    match change {
        Change::Local(mark) => vec![word_of(MARK, *mark)],
        Change::Absent(mark) => vec![word_of(GONE, *mark)],
        Change::Base(base) => words_of_base(base).collect(),
    }
}

/// Words of changes, at most.
fn words_at_most(changes: &[Change]) -> usize {
    let bases = changes.iter().filter(|change| matches!(change, Change::Base(_))).count();
    changes.len() + bases * (BASE_WORDS - 1)
}

/// The mark in a word.
fn mark_of(word: u64) -> Option<Mark> {
    let (place, count) = ((word >> 32 & 0x3ff) as u16, (word >> 42 & 0x3ff) as u16 + 1);
    let fits = usize::from(place + count) <= REGION_BLOCKS && word >> 52 & 0xf == 0;
    fits.then_some(Mark { region: word as u32, place, count })
}

/// The part of a base in a word: its number and its bits.
fn part_of(word: u64) -> (usize, u64) {
    ((word >> 48 & 0xff) as usize, word & 0xffff_ffff_ffff)
}

/// Makes a new file, see [`super::BackedDevice::create`].
pub(super) fn create(
    device: &dyn Device,
    (volume, base, blocks): (VolumeId, Base, u64),
    id: [u8; 16],
    regions: impl Iterator<Item = (u32, u32)>,
) -> Result<(), BackedError> {
    let (need, have) = (presence_bytes(blocks), device.geometry().length);
    if have < need {
        return Err(BackedError::RecordTooSmall { need, have });
    }
    match inspect(device) {
        Err(BackedError::NotOne) => {}
        Err(error) => return Err(error),
        Ok(_) => return Err(BackedError::Exists),
    }
    let all = blocks.div_ceil(REGION);
    if all >= REGIONS_MAX {
        return Err(BackedError::Damaged("the image has too many regions"));
    }
    let mut lacking = vec![0_u64; all.div_ceil(64) as usize];
    let version = if base.number == 0 { VERSION_WITHOUT_BASE } else { VERSION };
    let image = base.image;
    let mut backing = Backing { volume, image, blocks, regions: 0, stored: 0, version, id };
    for (region, bytes) in regions {
        let word = lacking.get_mut(region as usize / 64).filter(|_| u64::from(region) < all);
        let word = word.ok_or(BackedError::Damaged("the image has a region past its block space"))?;
        *word |= 1 << (region % 64);
        backing.regions += 1;
        backing.stored += u64::from(bytes);
    }
    let snapshot = Snapshot { base, lacking, partial: Default::default() };
    Record { backing, area: 1, generation: 0, next: 0, end: 0 }.checkpoint(device, &snapshot)?;
    // The head makes it a presence file.
    device.write(0, Segments::copy_of(&backing.head()))?;
    Ok(device.flush()?)
}

/// Opens a file: reads the newest area, and begins the other one.
pub(super) fn open(device: &Arc<dyn Device>, backing: &Backing) -> Result<(Presence, Record), BackedError> {
    let first = |area: u64| -> Result<Option<u64>, BackedError> {
        let address = backing.area(area);
        let bytes = device.read(address * BLOCK, BLOCK_SIZE as u32)?.to_vec();
        Ok(parse(backing, address, &bytes).map(|read| read.generation))
    };
    let mut areas = Vec::new();
    for area in [0, 1] {
        areas.extend(first(area)?.map(|generation| (generation, area)));
    }
    areas.sort_unstable();
    while let Some((generation, area)) = areas.pop() {
        let Some(presence) = load(&**device, backing, (generation, area))? else { continue };
        let mut record = Record { backing: *backing, area, generation, next: 0, end: 0 };
        let (snapshot, _) = presence.snapshot();
        record.checkpoint(&**device, &snapshot)?;
        return Ok((presence, record));
    }
    Err(BackedError::Damaged("it has no whole checkpoint"))
}

/// The content of an area; none if its checkpoint is not complete.
fn load(
    device: &dyn Device,
    backing: &Backing,
    (generation, area): (u64, u64),
) -> Result<Option<Presence>, BackedError> {
    let mut loading = Loading::new(backing);
    let mut at = 0;
    while at < backing.area_blocks() && !loading.is_past(at) {
        let some = AT_ONCE.min(backing.area_blocks() - at);
        let bytes = device.read((backing.area(area) + at) * BLOCK, (some * BLOCK) as u32)?.to_vec();
        for (number, bytes) in (at..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            let read = parse(backing, backing.area(area) + number, bytes);
            if !loading.take(number, read.filter(|read| read.generation == generation))? {
                return Ok(None);
            }
        }
        at += some;
    }
    loading.finish()
}

/// An area that is being read.
struct Loading {
    regions: u64,
    snapshot: Snapshot,
    base: BaseParts,
    /// Words of a checkpoint that are not a whole item yet.
    words: Vec<u64>,
    chain: Checksum,
    changes: Vec<Change>,
    /// The number of the last block of the checkpoint.
    complete: Option<u64>,
    /// The number of the block at which marks end.
    ended: Option<u64>,
}

impl Loading {
    fn new(backing: &Backing) -> Self {
        let regions = backing.all_regions();
        let lacking = vec![0; regions.div_ceil(64) as usize];
        // Files of the first version have no other one.
        let first = Base { image: backing.image, ..Base::default() };
        Self {
            regions,
            snapshot: Snapshot { base: first, lacking, ..Snapshot::default() },
            base: BaseParts::default(),
            words: Vec::new(),
            chain: Checksum([0; 16]),
            changes: Vec::new(),
            complete: None,
            ended: None,
        }
    }

    fn is_past(&self, number: u64) -> bool {
        self.complete.is_some_and(|end| number > end + MARK_BLOCKS)
    }

    /// Takes the next block; none if it did not verify. False if the checkpoint is not complete.
    fn take(&mut self, number: u64, read: Option<Read>) -> Result<bool, BackedError> {
        let Some(end) = self.complete else {
            let Some(read) = read.filter(|read| matches!(read.kind, CHECKPOINT | CHECKPOINT_END)) else {
                return Ok(false);
            };
            self.chain = chained(self.chain, &read.words);
            if tag(self.chain) != read.batch {
                // Blocks of two checkpoints that were both interrupted.
                return Ok(false);
            }
            self.words.extend(read.words);
            self.take_items()?;
            if read.kind == CHECKPOINT_END {
                self.complete = Some(number);
            }
            return Ok(true);
        };
        if number > end + MARK_BLOCKS {
            return Ok(true);
        }
        let marks = read.filter(|read| read.kind == MARKS);
        match (marks, self.ended) {
            (Some(read), None) => {
                for word in read.words {
                    let unknown = BackedError::Damaged("it has an unknown mark");
                    let change = match word >> 56 {
                        MARK => mark_of(word).map(Change::Local),
                        GONE => mark_of(word).map(Change::Absent),
                        BASE => match self.base.take(part_of(word).0, part_of(word).1) {
                            Ok(None) => continue,
                            base => base.ok().flatten().map(Change::Base),
                        },
                        _ => None,
                    };
                    self.changes.push(change.ok_or(unknown)?);
                }
            }
            (None, None) => self.ended = Some(number),
            // A later batch shows that the batch before it was durable.
            (Some(read), Some(ended)) if read.batch > ended => {
                return Err(BackedError::Damaged("it lacks marks that were durable"));
            }
            _ => {}
        }
        Ok(true)
    }

    /// Takes whole items from the words of the checkpoint.
    fn take_items(&mut self) -> Result<(), BackedError> {
        let past = BackedError::Damaged("it has a region past the block space");
        let mut rest = &self.words[..];
        while let Some((word, later)) = rest.split_first() {
            let first = *word & 0xffff_ffff;
            if word >> 56 == BASE {
                let (number, part) = part_of(*word);
                let base = self.base.take(number, part);
                let base = base.map_err(|()| BackedError::Damaged("it has a part of a base"))?;
                self.snapshot.base = base.unwrap_or(self.snapshot.base);
                rest = later;
                continue;
            }
            let count = match word >> 56 {
                ABSENT => *word >> 32 & 0xff_ffff,
                PARTIAL => 1,
                _ => return Err(BackedError::Damaged("it has an unknown item")),
            };
            if first + count > self.regions {
                return Err(past);
            }
            rest = later;
            if word >> 56 == PARTIAL {
                let Some((bits, later)) = later.split_first_chunk::<{ REGION_BLOCKS / 64 }>() else {
                    rest = &self.words[self.words.len() - 1 - later.len()..];
                    break;
                };
                self.snapshot.partial.insert(first as u32, Box::new(*bits));
                rest = later;
            }
            for region in first..first + count {
                let word = self.snapshot.lacking.get_mut(region as usize / 64);
                *word.ok_or_else(|| past.clone())? |= 1 << (region % 64);
            }
        }
        self.words = rest.to_vec();
        Ok(())
    }

    fn finish(self) -> Result<Option<Presence>, BackedError> {
        if self.complete.is_none() || !self.words.is_empty() {
            return Ok(None);
        }
        let presence = Presence::new(self.snapshot);
        for change in self.changes {
            presence.replay(change);
        }
        let known = presence.take().len();
        presence.saved(known);
        Ok(Some(presence))
    }
}

/// The digest of the words of a checkpoint so far.
fn chained(before: Checksum, words: &[u64]) -> Checksum {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Checksum::of_pieces([&before.0[..], &bytes[..]].into_iter())
}

/// The part of that digest that a block has.
fn tag(chain: Checksum) -> u64 {
    number(&chain.0, 0)
}

/// Where the next marks go.
pub(super) struct Record {
    backing: Backing,
    area: u64,
    generation: u64,
    /// The number of the next block in the area.
    next: u64,
    /// The number after the last block of marks.
    end: u64,
}

impl Record {
    /// Whether these changes fit before the next checkpoint.
    pub(super) fn has_room(&self, changes: &[Change]) -> bool {
        self.next + words_at_most(changes).div_ceil(WORDS) as u64 <= self.end
    }

    /// Makes the file one of the present version: an older program refuses it from now on.
    pub(super) fn renew(&mut self, device: &dyn Device) -> Result<(), DeviceError> {
        if self.backing.version < VERSION {
            let renewed = Backing { version: VERSION, ..self.backing };
            // All of it is in one sector.
            device.write(0, Segments::copy_of(&renewed.head()))?;
            device.flush()?;
            self.backing = renewed;
        }
        Ok(())
    }

    /// Adds changes, and makes them durable.
    pub(super) fn append(&mut self, device: &dyn Device, changes: &[Change]) -> Result<(), DeviceError> {
        let (first, mut batch) = (self.next, Vec::new());
        let words: Vec<u64> = changes.iter().flat_map(words_of).collect();
        for (number, words) in (first..).zip(words.chunks(WORDS)) {
            let address = self.backing.area(self.area) + number;
            let bytes = block(&self.backing, address, (self.generation, first, MARKS), words);
            batch.push(Operation::write(address * BLOCK, Segments::copy_of(&bytes)));
        }
        let blocks = batch.len() as u64;
        batch.push(Operation::flush());
        device.run(&mut batch);
        batch.into_iter().try_for_each(Operation::into_outcome)?;
        self.next = first + blocks;
        Ok(())
    }

    /// Writes a checkpoint into the other area, makes it durable, and clears the area in use.
    pub(super) fn checkpoint(&mut self, device: &dyn Device, snapshot: &Snapshot) -> Result<(), DeviceError> {
        let (area, generation) = (1 - self.area, self.generation + 1);
        let mut out = Out {
            device,
            backing: &self.backing,
            area,
            generation,
            next: 0,
            chain: Checksum([0; 16]),
            words: Vec::new(),
            batch: Vec::new(),
        };
        if self.backing.version > VERSION_WITHOUT_BASE {
            out.words.extend(words_of_base(&snapshot.base));
        }
        let mut run: Option<(u64, u64)> = None;
        for region in lacking(&snapshot.lacking) {
            let partial = u32::try_from(region).ok().and_then(|region| snapshot.partial.get(&region));
            match (&mut run, partial) {
                (Some((first, count)), None) if *first + *count == region && *count < 0xff_ffff => {
                    *count += 1
                }
                (_, None) => {
                    let before = run.replace((region, 1));
                    out.absent(before)?;
                }
                (_, Some(bits)) => {
                    out.absent(run.take())?;
                    out.words.push(PARTIAL << 56 | region);
                    out.words.extend_from_slice(&bits[..]);
                    out.write(false)?;
                }
            }
        }
        out.absent(run)?;
        out.write(true)?;
        let next = out.next;
        device.flush()?;
        let old = self.backing.area(self.area);
        device.write(old * BLOCK, Segments::copy_of(&[0; BLOCK_SIZE]))?;
        device.flush()?;
        (self.area, self.generation) = (area, generation);
        (self.next, self.end) = (next, (next + MARK_BLOCKS).min(self.backing.area_blocks()));
        Ok(())
    }
}

/// Lacking regions, in order.
fn lacking(words: &[u64]) -> impl Iterator<Item = u64> + '_ {
    (0_u64..)
        .zip(words)
        .filter(|(_, word)| **word != 0)
        .flat_map(|(at, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit))
}

/// Words on their way into the blocks of a checkpoint.
struct Out<'a> {
    device: &'a dyn Device,
    backing: &'a Backing,
    area: u64,
    generation: u64,
    next: u64,
    chain: Checksum,
    words: Vec<u64>,
    batch: Vec<Operation>,
}

impl Out<'_> {
    fn absent(&mut self, run: Option<(u64, u64)>) -> Result<(), DeviceError> {
        let Some((first, count)) = run else { return Ok(()) };
        self.words.push(ABSENT << 56 | count << 32 | first);
        self.write(false)
    }

    /// Writes full blocks, and at the end all.
    fn write(&mut self, end: bool) -> Result<(), DeviceError> {
        while self.words.len() > WORDS || end {
            let some: Vec<u64> = self.words.drain(..self.words.len().min(WORDS)).collect();
            let is_last = end && self.words.is_empty();
            let kind = if is_last { CHECKPOINT_END } else { CHECKPOINT };
            let address = self.backing.area(self.area) + self.next;
            self.chain = chained(self.chain, &some);
            let bytes = block(self.backing, address, (self.generation, tag(self.chain), kind), &some);
            self.batch.push(Operation::write(address * BLOCK, Segments::copy_of(&bytes)));
            self.next += 1;
            if self.batch.len() as u64 >= AT_ONCE || is_last {
                let mut batch = std::mem::take(&mut self.batch);
                self.device.run(&mut batch);
                batch.into_iter().try_for_each(Operation::into_outcome)?;
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }
}
