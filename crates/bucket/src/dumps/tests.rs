//! Dumps of real volumes in buckets: written, resumed, listed, opened, restored, locked, pruned;
//! cut at every call.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{BLOCK_SIZE, ManualClock, Rng, SnapshotId, Timestamp, VolumeId};
use cairn_device::{BlockMut, MemoryDevice, Operation, Segments};
use cairn_files::Luns;
use cairn_format::dump::{DumpId, DumpLevel};
use cairn_stream::{
    Compression, Dump, DumpBytes, DumpError, DumpLabel, OpenDump, PartIndex, PartReader, Plan, Work, arrange,
    restore,
};
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume};

mod golden;
mod resumed;

use super::keep::expendable;
use super::skeleton::Builder;
use super::*;
use crate::seal::{BucketKey, KeyHolder, Sealed, Seeded, sealed};
use crate::{Directory, Faults, Habits, ListFrom, Memory, Page, Patience, Piece, Retrying, Upload};

const BLOCKS: u64 = 8192;
const LUN_BLOCKS: u64 = 5000;
const VOLUME: VolumeId = VolumeId([7; 16]);
const NOW: Timestamp = Timestamp(1_795_000_000_000_000_000);

struct Spawned;

impl Workers for Spawned {
    fn start(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().spawn(job).map(|_| ())
    }
}

/// Gives no thread to any caller.
struct None_;

impl Workers for None_ {
    fn start(&self, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(NOW))
}

fn never() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}

fn dumps_in(store: Arc<dyn Store>) -> BucketDumps {
    BucketDumps::new(store, Arc::new(Spawned), Rng::new(1))
}

fn memory() -> Arc<Memory> {
    let clock = clock();
    Arc::new(Memory::new(clock.clone(), clock))
}

struct Source {
    volume: Arc<Volume>,
    luns: Luns,
    rng: Rng,
}

impl Source {
    fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
        let options = FormatOptions { id: VOLUME, blocks: BLOCKS, role: Role::Normal };
        Volume::format(&*device, &options, &*clock()).expect("formatted");
        let volume =
            Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock: clock() }).expect("opened");
        let luns = Luns::new(volume.clone());
        luns.create("a", LUN_BLOCKS * BLOCK_SIZE as u64).expect("a LUN");
        Self { volume, luns, rng: Rng::new(5) }
    }

    /// Writes some blocks, and keeps them as a snapshot.
    fn step(&mut self, writes: u64, name: &str) -> SnapshotId {
        let device = self.luns.open("a").expect("the LUN");
        let mut batch: Vec<Operation> = (0..writes)
            .map(|_| {
                let mut block = BlockMut::zeroed();
                self.rng.fill(&mut block[..]);
                Operation::write(self.rng.below(LUN_BLOCKS) * 4096, Segments::from(block.freeze()))
            })
            .collect();
        device.run(&mut batch);
        batch.into_iter().for_each(|write| write.into_outcome().expect("written"));
        self.volume.create_snapshot(name).expect("a snapshot").id
    }

    fn content(&self) -> Vec<u8> {
        content_of(&self.luns)
    }
}

fn content_of(luns: &Luns) -> Vec<u8> {
    let device = luns.open("a").expect("the LUN");
    let mut all = Vec::new();
    for at in (0..LUN_BLOCKS).step_by(500) {
        let blocks = (LUN_BLOCKS - at).min(500);
        all.extend(device.read(at * 4096, (blocks * 4096) as u32).expect("read").to_vec());
    }
    all
}

/// Writes a dump of `target` against `base` into a bucket.
fn write(
    dumps: &BucketDumps,
    source: &Source,
    number: u8,
    (base, on): (Option<SnapshotId>, Option<u8>),
    target: SnapshotId,
    parts: u32,
) -> Result<DumpIndex, DumpsError> {
    let cancel = never();
    let id = DumpId([number; 16]);
    let on = on.map(|on| DumpId([on; 16]));
    let plan = Plan::against(&source.volume, base, target).expect("a plan");
    let level = base.map_or(DumpLevel::Level(0), |_| DumpLevel::Level(number.min(9)));
    let created = Timestamp(NOW.0 + u64::from(number) * 3_600_000_000_000);
    let label = DumpLabel { id, level, name: "vol0".to_owned(), created };
    let dump = Dump::new(&plan, label, parts);
    dumps.begin(VOLUME, id, on, &cancel)?;
    let mut entries = Vec::new();
    for part in 0..parts {
        let mut upload = dumps.part((VOLUME, id, part), dump.bytes(), &cancel)?;
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        // As the server does: records go out as they are, and the writer notes its place.
        let begun = cairn_stream::Begun::default();
        let mut pieces_end = Vec::new();
        {
            let upload = std::cell::RefCell::new(&mut upload);
            let mut out = Sink(&upload);
            let onto = cairn_stream::Onto {
                out: &mut out,
                reached: &mut |at| {
                    pieces_end.push(*at);
                    upload.borrow_mut().reached(at)
                },
            };
            let compression = if part % 2 == 0 { Compression::None } else { Compression::Zstd };
            dump.resume_part(part, &begun, onto, compression, &mut work).map_err(io::Error::other)?;
        }
        entries.push(dumps.finish_part((VOLUME, id, part), upload, &cancel)?);
    }
    let snapshots = source.volume.snapshots();
    let target_name =
        snapshots.iter().find(|snapshot| snapshot.id == target).expect("it is there").name.clone();
    let index = DumpIndex {
        volume: VOLUME,
        dump: id,
        name: "vol0".to_owned(),
        level,
        created,
        target,
        target_name,
        base,
        on,
        blocks: dump.blocks(),
        parts: entries,
    };
    dumps.seal(&index, &cancel)?;
    Ok(index)
}

/// Shares a part between its writer and the reports of its place.
struct Sink<'a, 'b>(&'a std::cell::RefCell<&'b mut PartUpload>);

impl Write for Sink<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

impl cairn_stream::Out for Sink<'_, '_> {
    fn record(&mut self, record: cairn_stream::Outgoing) -> io::Result<()> {
        self.0.borrow_mut().record(record)
    }
}

fn parts_of(dumps: &BucketDumps, chain: &[DumpIndex]) -> Vec<(String, Arc<dyn DumpBytes>)> {
    let cancel = never();
    let part = |index: &DumpIndex, part: u32| -> (String, Arc<dyn DumpBytes>) {
        (format!("{}/{part}", index.dump), dumps.open_part(index, part, &cancel).expect("a part"))
    };
    chain
        .iter()
        .flat_map(|index| (0..index.parts.len() as u32).map(move |number| part(index, number)))
        .collect()
}

/// Restores a chain and reads the LUN.
fn restored(dumps: &BucketDumps, chain: &[DumpIndex]) -> Vec<u8> {
    let cancel = never();
    let readers: Result<Vec<PartReader>, DumpError> =
        parts_of(dumps, chain).iter().map(|(file, bytes)| PartReader::open_file(file, bytes)).collect();
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    let arranged = arrange(readers.expect("parts"), false).expect("a chain");
    restore(arranged, &*device, BLOCKS, false, NOW, &mut work).expect("restored");
    let volume = Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock: clock() }).expect("opened");
    content_of(&Luns::new(volume))
}

fn three_levels(dumps: &BucketDumps) -> (Vec<DumpIndex>, Vec<Vec<u8>>) {
    let mut source = Source::new();
    let (mut indexes, mut contents, mut base) = (Vec::new(), Vec::new(), None);
    for (number, writes) in [(0_u8, 4000), (1, 300), (2, 50)] {
        let target = source.step(writes, &format!("s{number}"));
        contents.push(source.content());
        let on = number.checked_sub(1);
        indexes.push(
            write(dumps, &source, number, (base, on), target, 1 + u32::from(number % 2)).expect("written"),
        );
        base = Some(target);
    }
    (indexes, contents)
}

fn round_trip(store: Arc<dyn Store>) {
    let dumps = dumps_in(store);
    let (indexes, contents) = three_levels(&dumps);
    let cancel = never();
    let listing = dumps.list(None, &cancel).expect("a listing");
    assert_eq!(listing.dumps, indexes);
    assert!(listing.unfinished.is_empty() && listing.unreadable.is_empty(), "{listing:?}");
    for (number, content) in contents.iter().enumerate() {
        let chain = BucketDumps::chain(&listing.dumps, indexes[number].dump).expect("a chain");
        assert_eq!(chain.len(), number + 1);
        assert!(restored(&dumps, &chain) == *content, "level {number}");
    }
    // Mounted straight from the bucket.
    let open: Vec<PartIndex> = parts_of(&dumps, &indexes)
        .into_iter()
        .map(|(file, bytes)| PartIndex::open(&file, bytes).expect("an index"))
        .collect();
    assert!(open.iter().all(PartIndex::is_whole));
    let OpenDump { volume, .. } = OpenDump::open(open, false, false, clock(), 1 << 20).expect("opened");
    assert!(content_of(&Luns::new(volume)) == contents[2]);
}

#[test]
fn dump_in_memory_and_in_a_directory_comes_back_byte_for_byte() {
    round_trip(memory());
    let folder = tempfile::tempdir().expect("a folder");
    round_trip(Arc::new(Directory::open(folder.path(), clock(), Rng::new(2)).expect("open")));
}

#[test]
fn dump_in_an_encrypted_bucket_comes_back_byte_for_byte_and_nothing_in_it_is_readable() {
    let below = memory();
    round_trip(Arc::new(sealed(below.clone(), 1)));
    for name in below.names() {
        let bytes = below.raw(&name).expect("an object");
        for word in ["vol0", "CAIRN\0", "\"s1\"", "cairn-dump"] {
            assert!(!bytes.windows(word.len()).any(|some| some == word.as_bytes()), "{word} in {name}");
        }
        assert!(!name.as_str().contains("dumps") && !name.as_str().contains("index"), "{name}");
    }
    // Another key sees no dump.
    let other = KeyHolder::with_key(&BucketKey::from_bytes([1; 32]));
    let other = Sealed::new(below, Arc::new(other), Seeded::new(1));
    assert!(dumps_in(Arc::new(other)).list(None, &never()).expect("a listing").dumps.is_empty());
    let clock = clock();
    let faults = Faults { fails: 5, loses_answer: 7, done_later: 9, slow: 5, ..Faults::default() };
    let failing = Memory::with_faults(clock.clone(), clock.clone(), faults, Habits::default(), Rng::new(3));
    let patience = Patience { tries: 40, time: Duration::from_secs(100_000), ..Patience::default() };
    let retrying = Retrying::new(failing, clock.clone(), clock, Rng::new(3), patience);
    round_trip(Arc::new(sealed(Arc::new(retrying), 1)));
}

#[test]
fn dump_comes_back_through_a_store_that_fails_all_the_time() {
    for seed in 0..6 {
        let clock = clock();
        let faults = Faults { fails: 5, loses_answer: 7, done_later: 9, slow: 5, ..Faults::default() };
        let memory =
            Memory::with_faults(clock.clone(), clock.clone(), faults, Habits::default(), Rng::new(seed));
        let patience = Patience { tries: 40, time: Duration::from_secs(100_000), ..Patience::default() };
        round_trip(Arc::new(Retrying::new(memory, clock.clone(), clock, Rng::new(seed), patience)));
    }
}

#[test]
fn dump_without_threads_is_the_same() {
    let store = memory();
    let dumps = BucketDumps::new(store, Arc::new(None_), Rng::new(1));
    let (indexes, contents) = three_levels(&dumps);
    assert!(restored(&dumps, &indexes) == contents[2]);
}

/// Counts calls, and fails all from one on.
struct Cut {
    store: Arc<Memory>,
    calls: AtomicU64,
    after: u64,
}

impl Cut {
    fn call(&self) -> Result<(), StoreError> {
        if self.calls.fetch_add(1, Ordering::Relaxed) < self.after {
            return Ok(());
        }
        let place = "memory:".into();
        Err(StoreError { verb: Verb::Put, name: None, place, trouble: Trouble::Forbidden })
    }
}

impl Store for Cut {
    fn place(&self) -> &str {
        "memory:"
    }

    fn lists_in_order(&self) -> bool {
        true
    }

    fn put_new(
        &self,
        name: &Name,
        bytes: Bytes,
        nonce: Nonce,
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        self.call()?;
        self.store.put_new(name, bytes, nonce, cancel)
    }

    fn begin(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError> {
        self.call()?;
        self.store.begin(name, nonce, cancel)
    }

    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError> {
        self.call()?;
        self.store.put_piece(upload, number, bytes, cancel)
    }

    fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        self.call()?;
        self.store.pieces(upload, cancel)
    }

    fn finish(
        &self,
        upload: &Upload,
        nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        self.call()?;
        self.store.finish(upload, nonce, pieces, cancel)
    }

    fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.call()?;
        self.store.abort(upload, cancel)
    }

    fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        self.call()?;
        self.store.uploads(prefix, cancel)
    }

    fn get(&self, name: &Name, offset: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, StoreError> {
        self.call()?;
        self.store.get(name, offset, length, cancel)
    }

    fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<crate::Head, StoreError> {
        self.call()?;
        self.store.head(name, cancel)
    }

    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<Page, StoreError> {
        self.call()?;
        self.store.list(prefix, from, count, cancel)
    }

    fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.call()?;
        self.store.delete(name, cancel)
    }

    fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.call()?;
        self.store.lock_until(name, until, cancel)
    }
}

/// Checks the bucket after a cut: every listed dump restores, and a sweep leaves nothing else.
fn holds(memory: &Arc<Memory>, expected: &BTreeMap<DumpId, Vec<u8>>) -> Vec<DumpId> {
    holds_in(memory.clone(), expected)
}

/// The same of any store.
fn holds_in(store: Arc<dyn Store>, expected: &BTreeMap<DumpId, Vec<u8>>) -> Vec<DumpId> {
    let dumps = dumps_in(store.clone());
    let cancel = never();
    let listing = dumps.list(None, &cancel).expect("a listing");
    assert!(listing.unreadable.is_empty());
    for index in &listing.dumps {
        let chain = BucketDumps::chain(&listing.dumps, index.dump).expect("all that it stands on is there");
        assert!(restored(&dumps, &chain) == expected[&index.dump], "{}", index.dump);
    }
    let later = Timestamp(NOW.0 + 100 * 86_400_000_000_000);
    dumps.sweep(&HashSet::new(), Duration::from_secs(86_400), later, &cancel).expect("swept");
    let swept = dumps.list(None, &cancel).expect("a listing");
    assert!(swept.unfinished.is_empty() && swept.dumps == listing.dumps);
    assert!(store.uploads(&Prefix::all(), &cancel).expect("uploads").is_empty());
    let of_dumps =
        |name: &Name| listing.dumps.iter().any(|index| name.as_str().contains(&index.dump.to_string()));
    let objects = list_all(&*store, &Prefix::all(), &cancel).expect("a listing");
    assert!(objects.iter().all(|listed| of_dumps(&listed.name)), "{objects:?}");
    listing.dumps.iter().map(|index| index.dump).collect()
}

#[test]
fn cut_at_any_call_leaves_whole_dumps_only() {
    let mut source = Source::new();
    let first = source.step(200, "s0");
    let mut expected = BTreeMap::from([(DumpId([0; 16]), source.content())]);
    let second = source.step(30, "s1");
    expected.insert(DumpId([1; 16]), source.content());
    let mut seen = HashSet::new();
    for after in 0.. {
        let memory = memory();
        let cut = Arc::new(Cut { store: memory.clone(), calls: AtomicU64::new(0), after });
        let dumps = BucketDumps::new(cut, Arc::new(None_), Rng::new(1));
        let outcome = write(&dumps, &source, 0, (None, None), first, 2)
            .and_then(|index| Ok((index, write(&dumps, &source, 1, (Some(first), Some(0)), second, 1)?)))
            .and_then(|(index, above)| {
                dumps.delete(&index, NOW, &never()).expect_err("one stands on it");
                dumps.delete(&above, NOW, &never())?;
                dumps.delete(&index, NOW, &never())
            });
        seen.insert(holds(&memory, &expected));
        if outcome.is_ok() {
            assert!(memory.names().is_empty(), "{:?}", memory.names());
            break;
        }
        assert!(after < 200, "it ends");
    }
    assert_eq!(seen.len(), 3, "none, one and both: {seen:?}");
}

#[test]
fn part_that_was_cut_resumes_at_its_last_piece() {
    let memory = memory();
    let dumps = dumps_in(memory.clone());
    let cancel = never();
    let id = DumpId([3; 16]);
    dumps.begin(VOLUME, id, None, &cancel).expect("begun");
    let mut rng = Rng::new(4);
    let mut content = vec![0; 40 << 20];
    rng.fill(&mut content);
    let records: Vec<&[u8]> = content.chunks(1 << 20).collect();
    let feed = |upload: &mut PartUpload, from: usize, to: usize| {
        for (number, record) in records.iter().enumerate().take(to).skip(from) {
            upload.write_all(record).expect("taken");
            let at = cairn_stream::Reached {
                bytes: (number as u64 + 1) << 20,
                records: number as u64 + 1,
                blocks: number as u64 * 3,
                ..Default::default()
            };
            upload.reached(&at).expect("noted");
        }
    };
    let mut upload = dumps.part((VOLUME, id, 0), 0, &cancel).expect("a part");
    assert!(upload.standing().is_none());
    feed(&mut upload, 0, 37);
    upload.settle().expect("pieces");
    let standing = upload.standing().expect("some pieces are there");
    assert_eq!((standing.records, standing.pieces.len()), (32, 4), "the last piece is not full");
    // The process has ended. Its note is a file of the server.
    drop(upload);
    let text = serde_json::to_string(&standing).expect("JSON");
    let standing: PartStanding = serde_json::from_str(&text).expect("JSON");
    let mut upload = dumps.resume_part(id, 0, &standing, &cancel).expect("resumed");
    assert_eq!(upload.standing().as_ref(), Some(&standing));
    feed(&mut upload, standing.records as usize, 40);
    let calls = memory.calls();
    let entry = dumps.finish_part((VOLUME, id, 0), upload, &cancel).expect("finished");
    assert_eq!(entry, PartEntry { length: 40 << 20, skeleton: 0 });
    assert!(memory.calls() - calls <= 2, "nothing is sent twice");
    let name = dumps.name(VOLUME, id, "part-00000").expect("a name");
    assert!(memory.raw(&name).expect("there") == content);
    // A store that lost the upload.
    let error = dumps.resume_part(id, 0, &standing, &cancel).err().expect("it is finished");
    assert!(matches!(error, DumpsError::Store(StoreError { trouble: Trouble::NoUpload, .. })), "{error}");
}

#[test]
fn failed_piece_ends_the_part_and_memory_stays_bounded() {
    let memory = memory();
    let cut = Arc::new(Cut { store: memory, calls: AtomicU64::new(0), after: 3 });
    let dumps = dumps_in(cut);
    let (cancel, id) = (never(), DumpId([3; 16]));
    dumps.begin(VOLUME, id, None, &cancel).expect("begun");
    let mut upload = dumps.part((VOLUME, id, 0), 0, &cancel).expect("a part");
    let block = vec![7; 1 << 20];
    let failed = (0..2000_u64).find_map(|number| {
        let at = cairn_stream::Reached { records: number, ..Default::default() };
        upload.write_all(&block).and_then(|()| upload.reached(&at)).err()
    });
    assert!(failed.expect("it fails").to_string().contains("right"), "the cause is named");
    upload.abort().expect_err("the store refuses that too");
}

#[test]
fn locks_cover_all_levels_below_and_only_grow() {
    let memory = memory();
    let dumps = dumps_in(memory.clone());
    let (indexes, _) = three_levels(&dumps);
    let cancel = never();
    let until = |days: u64| Timestamp(NOW.0 + days * 86_400_000_000_000);
    dumps.lock(&indexes, indexes[1].dump, until(30), &cancel).expect("locked");
    let locked = |index: &DumpIndex| {
        let of = |file: &str| {
            let name = dumps.name(VOLUME, index.dump, file).expect("a name");
            memory.head(&name, &cancel).expect("a head").locked_until
        };
        assert_eq!(of("index"), of("part-00000"));
        of("index")
    };
    assert_eq!([0, 1, 2].map(|number| locked(&indexes[number])), [Some(until(30)), Some(until(30)), None]);
    dumps.lock(&indexes, indexes[2].dump, until(60), &cancel).expect("locked");
    dumps.lock(&indexes, indexes[0].dump, until(10), &cancel).expect("nothing to do");
    assert_eq!([0, 1, 2].map(|number| locked(&indexes[number])), [Some(until(60)); 3]);
    let error = dumps.delete(&indexes[2], NOW, &cancel).expect_err("locked");
    assert!(error.to_string().contains("locked until"), "{error}");
    let pruned = dumps.prune((VOLUME, &KeepDumps { last: 1, ..Default::default() }), false, NOW, &cancel);
    assert!(pruned.expect("pruned").deleted.is_empty(), "what stays stands on the others");
    assert_eq!(dumps.list(None, &cancel).expect("a listing").dumps, indexes);
}

#[test]
fn base_never_goes_before_what_stands_on_it() {
    let memory = memory();
    let dumps = dumps_in(memory.clone());
    let (indexes, contents) = three_levels(&dumps);
    let cancel = never();
    let error = dumps.delete(&indexes[0], NOW, &cancel).expect_err("needed");
    assert!(
        matches!(error, DumpsError::Needed { .. }) && error.next().contains(&indexes[1].dump.to_string())
    );
    // A dump that has just begun also holds it.
    dumps.delete(&indexes[2], NOW, &cancel).expect("the highest");
    dumps.begin(VOLUME, DumpId([9; 16]), Some(indexes[1].dump), &cancel).expect("begun");
    let error = dumps.delete(&indexes[1], NOW, &cancel).expect_err("needed");
    assert!(matches!(error, DumpsError::Needed { by, .. } if by == DumpId([9; 16])), "{error}");
    assert!(restored(&dumps, &indexes[..2]) == contents[1]);
    let error = dumps.begin(VOLUME, DumpId([8; 16]), Some(indexes[2].dump), &cancel).expect_err("it is gone");
    assert!(matches!(error, DumpsError::MissingBase { .. }), "{error}");
}

/// Begins a dump in the middle of a delete, at each call of it.
#[test]
fn writer_that_begins_while_its_base_is_deleted_is_refused_or_keeps_it() {
    struct Meddling {
        cut: Cut,
        meddle: Box<dyn Fn() + Send + Sync>,
    }
    let source = {
        let mut source = Source::new();
        let target = source.step(20, "s0");
        (source, target)
    };
    let (mut refused, mut kept) = (0, 0);
    for at in 0..20 {
        let memory = memory();
        let writer = Arc::new(dumps_in(memory.clone()));
        let index = write(&writer, &source.0, 0, (None, None), source.1, 1).expect("written");
        let began = Arc::new(Mutex::new(None));
        let meddling = {
            let (writer, began, base) = (writer.clone(), began.clone(), index.dump);
            Meddling {
                cut: Cut { store: memory.clone(), calls: AtomicU64::new(0), after: u64::MAX },
                meddle: Box::new(move || {
                    *began.lock() = Some(writer.begin(VOLUME, DumpId([5; 16]), Some(base), &never()));
                }),
            }
        };
        let deleter = BucketDumps::new(Arc::new(Interposed(meddling, at)), Arc::new(None_), Rng::new(2));
        let outcome = deleter.delete(&index, NOW, &never());
        let Some(began) = began.lock().take() else { break };
        let there = writer.list(None, &never()).expect("a listing").dumps.len() == 1;
        match began {
            Ok(()) => {
                assert!(
                    outcome.is_err() && there,
                    "call {at}: the base is gone under a writer that has begun"
                );
                kept += 1;
            }
            Err(error) => {
                let expected = matches!(error, DumpsError::MissingBase { .. } | DumpsError::BaseGoes { .. });
                assert!(expected, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && kept > 0, "{refused} refused, {kept} kept");

    struct Interposed(Meddling, u64);

    impl Interposed {
        fn call(&self) -> Result<(), StoreError> {
            if self.0.cut.calls.load(Ordering::Relaxed) == self.1 {
                self.0.cut.calls.fetch_add(1, Ordering::Relaxed);
                (self.0.meddle)();
                return Ok(());
            }
            self.0.cut.call()
        }
    }

    impl Store for Interposed {
        fn place(&self) -> &str {
            "memory:"
        }

        fn lists_in_order(&self) -> bool {
            true
        }
        fn put_new(
            &self,
            name: &Name,
            bytes: Bytes,
            nonce: Nonce,
            cancel: &AtomicBool,
        ) -> Result<Put, StoreError> {
            self.call()?;
            self.0.cut.store.put_new(name, bytes, nonce, cancel)
        }
        fn begin(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError> {
            self.0.cut.store.begin(name, nonce, cancel)
        }
        fn put_piece(
            &self,
            upload: &Upload,
            number: u32,
            bytes: Bytes,
            cancel: &AtomicBool,
        ) -> Result<Piece, StoreError> {
            self.0.cut.store.put_piece(upload, number, bytes, cancel)
        }
        fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
            self.0.cut.store.pieces(upload, cancel)
        }
        fn finish(
            &self,
            upload: &Upload,
            nonce: Nonce,
            pieces: &[Piece],
            cancel: &AtomicBool,
        ) -> Result<Put, StoreError> {
            self.0.cut.store.finish(upload, nonce, pieces, cancel)
        }
        fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError> {
            self.0.cut.store.abort(upload, cancel)
        }
        fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
            self.0.cut.store.uploads(prefix, cancel)
        }
        fn get(
            &self,
            name: &Name,
            offset: u64,
            length: usize,
            cancel: &AtomicBool,
        ) -> Result<Bytes, StoreError> {
            self.call()?;
            self.0.cut.store.get(name, offset, length, cancel)
        }
        fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<crate::Head, StoreError> {
            self.call()?;
            self.0.cut.store.head(name, cancel)
        }
        fn list(
            &self,
            prefix: &Prefix,
            from: &ListFrom,
            count: usize,
            cancel: &AtomicBool,
        ) -> Result<Page, StoreError> {
            self.call()?;
            self.0.cut.store.list(prefix, from, count, cancel)
        }
        fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError> {
            self.call()?;
            self.0.cut.store.delete(name, cancel)
        }
        fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError> {
            self.0.cut.store.lock_until(name, until, cancel)
        }
    }
}

#[test]
fn damaged_and_newer_indexes_are_named_and_never_served() {
    let memory = memory();
    let dumps = dumps_in(memory.clone());
    let mut source = Source::new();
    let target = source.step(20, "s0");
    let index = write(&dumps, &source, 0, (None, None), target, 1).expect("written");
    let name = dumps.name(VOLUME, index.dump, "index").expect("a name");
    let whole = memory.raw(&name).expect("there");
    let cancel = never();
    for at in 0..whole.len() {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1;
        memory.replace(&name, Some(bytes.into()));
        let listing = dumps.list(None, &cancel).expect("a listing");
        assert!(listing.dumps.is_empty() && listing.unreadable.len() == 1, "byte {at}");
        dumps
            .prune((VOLUME, &KeepDumps { last: 1, ..Default::default() }), false, NOW, &cancel)
            .expect_err("nothing goes while that is so");
        memory.replace(&name, Some(whole.slice(..at)));
        assert!(dumps.list(None, &cancel).expect("a listing").dumps.is_empty(), "cut at {at}");
    }
    let text = String::from_utf8(whole.to_vec()).expect("text");
    let newer = text.lines().next().expect("a line").replace("\"format\":1", "\"format\":9");
    let newer = format!("{newer}\n{:?}\n", cairn_base::Checksum::of(newer.as_bytes()));
    memory.replace(&name, Some(newer.into_bytes().into()));
    let listing = dumps.list(None, &cancel).expect("a listing");
    assert!(
        matches!(listing.unreadable[0], DumpsError::Newer { version: 9, .. }),
        "{:?}",
        listing.unreadable
    );
    // Neither a damaged one nor a missing one is a reason for a sweep to take its parts.
    let later = Timestamp(NOW.0 + 100 * 86_400_000_000_000);
    let before = memory.names();
    dumps.sweep(&HashSet::new(), Duration::ZERO, later, &cancel).expect("swept");
    assert_eq!(memory.names(), before);
    memory.replace(&name, Some(whole));
    assert_eq!(dumps.list(None, &cancel).expect("a listing").dumps, [index]);
    memory.replace(&name, None);
    let listing = dumps.list(None, &cancel).expect("a listing");
    assert!(listing.unfinished.is_empty(), "{:?}", listing.unfinished);
    assert!(matches!(&listing.unreadable[..], [DumpsError::Gone(gone)] if *gone == name));
    let before = memory.names();
    dumps.sweep(&HashSet::new(), Duration::ZERO, later, &cancel).expect("swept");
    assert_eq!(memory.names(), before);
}

#[test]
fn part_that_the_store_changed_is_found() {
    let memory = memory();
    let dumps = dumps_in(memory.clone());
    let (indexes, contents) = three_levels(&dumps);
    let name = dumps.name(VOLUME, indexes[0].dump, "part-00000").expect("a name");
    let whole = memory.raw(&name).expect("there");
    // Cut: the index promises more.
    memory.replace(&name, Some(whole.slice(..whole.len() - 100)));
    let read = || -> Result<Vec<PartReader>, DumpError> {
        parts_of(&dumps, &indexes[..1])
            .iter()
            .map(|(file, bytes)| PartReader::open_file(file, bytes))
            .collect()
    };
    let failed = read().and_then(|mut readers| {
        while readers[0].extents()?.is_some() {}
        Ok(())
    });
    assert!(matches!(failed, Err(DumpError::Read { .. })), "{failed:?}");
    // Swapped with another part of the same volume.
    let other = dumps.name(VOLUME, indexes[1].dump, "part-00000").expect("a name");
    let mut swapped = memory.raw(&other).expect("there").to_vec();
    swapped.resize(whole.len(), 0);
    memory.replace(&name, Some(swapped.into()));
    let device = MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal));
    let swapped = read().and_then(|readers| {
        let cancel = never();
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        let arranged = arrange(readers, false)?;
        restore(arranged, &device, BLOCKS, false, NOW, &mut work).map(|_| ())
    });
    assert!(swapped.is_err());
    // A wrong or missing skeleton costs only requests.
    memory.replace(&name, Some(whole));
    for (number, replacement) in [None, Some(Bytes::from_static(b"nonsense")), None].into_iter().enumerate() {
        let skeleton = dumps.name(VOLUME, indexes[number].dump, "skeleton-00000").expect("a name");
        let right = memory.raw(&skeleton).expect("there");
        memory.replace(&skeleton, replacement);
        let parts = parts_of(&dumps, &indexes[number..=number]);
        let opened = PartIndex::open(&parts[0].0, parts[0].1.clone()).expect("an index");
        assert!(opened.is_whole());
        drop(right);
    }
    assert!(restored(&dumps, &indexes) == contents[2]);
}

#[test]
fn opening_a_part_takes_few_requests() {
    let memory = memory();
    let dumps = dumps_in(memory.clone());
    let mut source = Source::new();
    let target = source.step(4000, "s0");
    let index = write(&dumps, &source, 0, (None, None), target, 1).expect("written");
    assert!(index.parts[0].length > 10 << 20 && index.parts[0].skeleton > 0);
    let part: Arc<dyn DumpBytes> = dumps.open_part(&index, 0, &never()).expect("a part");
    let before = memory.calls();
    assert!(PartIndex::open("part", part).expect("an index").is_whole());
    assert!(memory.calls() - before <= 3, "{} requests", memory.calls() - before);
}

#[test]
fn skeleton_gives_back_what_it_took_and_nothing_else() {
    let mut rng = Rng::new(1);
    let mut builder = Builder::default();
    let mut entries: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut at = 0;
    for _ in 0..2500 {
        let mut bytes = vec![0; 1 + rng.below(2000) as usize];
        rng.fill(&mut bytes);
        builder.take(at, &bytes);
        let length = bytes.len() as u64;
        entries.push((at, bytes));
        at += length + rng.below(1 << 20);
    }
    let object = builder.finish();
    let read = |at: u64, count: usize| -> io::Result<Option<Vec<u8>>> {
        let begin = at as usize;
        Ok(object.get(begin..begin.saturating_add(count)).map(<[u8]>::to_vec))
    };
    let skeleton = Skeleton::open(object.len() as u64, &read).expect("read").expect("a skeleton");
    for (at, bytes) in &entries {
        let skip = rng.below(bytes.len() as u64) as usize;
        let mut buffer = vec![0; bytes.len() - skip];
        assert!(skeleton.read(at + skip as u64, &mut buffer, &read).expect("read"));
        assert_eq!(buffer, bytes[skip..]);
        let mut longer = vec![0; bytes.len() + 1];
        assert!(!skeleton.read(*at, &mut longer, &read).expect("read"), "past the entry");
    }
    for _ in 0..100 {
        let mut broken = object.clone();
        let at = rng.below(broken.len() as u64) as usize;
        broken[at] ^= 1 << rng.below(8);
        let read = |at: u64, count: usize| -> io::Result<Option<Vec<u8>>> {
            let begin = at as usize;
            Ok(broken.get(begin..begin.saturating_add(count)).map(<[u8]>::to_vec))
        };
        let Some(skeleton) = Skeleton::open(broken.len() as u64, &read).expect("read") else { continue };
        for (at, bytes) in entries.iter().step_by(97) {
            let mut buffer = vec![0; bytes.len()];
            if skeleton.read(*at, &mut buffer, &read).expect("read") {
                assert_eq!(buffer, *bytes, "a chunk that is damaged is left out");
            }
        }
    }
    for length in [0, 1, 39, 40, 41] {
        assert!(Skeleton::open(length, &read).expect("read").is_none());
    }
}

#[test]
fn cost_of_a_dump_is_known_before_it_is_made() {
    let memory = memory();
    let dumps = dumps_in(memory.clone());
    let mut source = Source::new();
    let target = source.step(4000, "s0");
    let plan = Plan::against(&source.volume, None, target).expect("a plan");
    let label =
        DumpLabel { id: DumpId([0; 16]), level: DumpLevel::Level(0), name: "vol0".to_owned(), created: NOW };
    let bytes = Dump::new(&plan, label, 1).bytes();
    let cost = Cost::of_dump(bytes, 1, false, false);
    let before = memory.calls();
    write(&dumps, &source, 0, (None, None), target, 1).expect("written");
    // The delete of `begun` is free.
    let calls = memory.calls() - before - 1;
    assert!(calls.abs_diff(cost.puts + cost.gets) <= 1, "{calls} calls, {cost:?}");
    let names = memory.names();
    assert_eq!(names.len() as u64, cost.objects);
    let there: u64 = names.iter().map(|name| memory.raw(name).expect("there").len() as u64).sum();
    assert!(there.abs_diff(cost.bytes) * 100 < cost.bytes, "{there} bytes, {cost:?}");
    // In an encrypted bucket.
    let below = self::memory();
    let sealed = dumps_in(Arc::new(sealed(below.clone(), 1)));
    let cost = cost.encrypted(1);
    write(&sealed, &source, 0, (None, None), target, 1).expect("written");
    let calls = below.calls() - 1;
    assert!(calls.abs_diff(cost.puts + cost.gets) <= 3, "{calls} calls, {cost:?}");
    let names = below.names();
    assert_eq!(names.len() as u64, cost.objects);
    let there: u64 = names.iter().map(|name| below.raw(name).expect("there").len() as u64).sum();
    assert!(there.abs_diff(cost.bytes) * 100 < cost.bytes, "{there} bytes, {cost:?}");
    // A tebibyte on one part: pieces of 8 MiB.
    let large = Cost::of_dump(1 << 40, 1, false, true);
    let prices = Prices::default();
    assert!((0.6..0.7).contains(&large.once(&prices)), "{}", large.once(&prices));
    assert!((25.2..25.4).contains(&large.monthly(&prices)), "{}", large.monthly(&prices));
}

fn index_at(number: u8, hours: u64, on: Option<u8>) -> DumpIndex {
    DumpIndex {
        volume: VOLUME,
        dump: DumpId([number; 16]),
        name: "v".to_owned(),
        level: DumpLevel::Level(0),
        created: Timestamp(NOW.0 + hours * 3_600_000_000_000),
        target: SnapshotId(1),
        target_name: "s".to_owned(),
        base: on.map(|on| SnapshotId(on.into())),
        on: on.map(|on| DumpId([on; 16])),
        blocks: 1,
        parts: vec![PartEntry { length: 1, skeleton: 0 }],
    }
}

#[test]
fn keep_rules_keep_the_newest_of_each_period_and_all_below() {
    // A full dump a week, one above it each day.
    let mut dumps = Vec::new();
    for day in 0..60_u8 {
        let on = (day % 7 != 0).then(|| day - 1);
        dumps.push(index_at(day, u64::from(day) * 24, on));
    }
    let gone = |keep: KeepDumps, begun: &[u8]| -> Vec<u8> {
        let begun = begun.iter().map(|number| DumpId([*number; 16])).collect();
        expendable(&dumps, &begun, &keep).into_iter().map(|dump| dump.0[0]).collect()
    };
    assert!(gone(KeepDumps::default(), &[]).is_empty(), "no rule keeps everything");
    let kept = |gone: &[u8]| -> Vec<u8> { (0..60).filter(|day| !gone.contains(day)).collect() };
    let last = gone(KeepDumps { last: 2, ..Default::default() }, &[]);
    assert_eq!(kept(&last), [56, 57, 58, 59]);
    let daily = gone(KeepDumps { daily: 5, ..Default::default() }, &[]);
    assert_eq!(kept(&daily), (49..60).collect::<Vec<_>>(), "day 55 stands on all of its week");
    let monthly = gone(KeepDumps { monthly: 2, ..Default::default() }, &[]);
    let kept_monthly = kept(&monthly);
    assert!(kept_monthly.contains(&59) && kept_monthly.len() < 20, "{kept_monthly:?}");
    let begun = gone(KeepDumps { last: 1, ..Default::default() }, &[10]);
    assert_eq!(kept(&begun), [7, 8, 9, 10, 56, 57, 58, 59]);
    for gone in [last, daily, monthly, begun] {
        for (place, number) in gone.iter().enumerate() {
            let above =
                gone.iter().position(|other| dumps[usize::from(*other)].on == Some(DumpId([*number; 16])));
            assert!(above.is_none_or(|above| above < place), "{number} goes before what stands on it");
        }
    }
}

#[test]
fn keep_rules_never_break_a_chain_whatever_the_clock_said() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let dumps: Vec<DumpIndex> = (0..20_u8)
            .map(|number| {
                let on = (number > 0 && !rng.one_in(4)).then(|| rng.below(number.into()) as u8);
                index_at(number, rng.below(5000), on)
            })
            .collect();
        let keep = KeepDumps {
            last: rng.below(3) as u32,
            hourly: rng.below(3) as u32,
            daily: rng.below(3) as u32,
            weekly: rng.below(3) as u32,
            monthly: rng.below(2) as u32,
            yearly: rng.below(2) as u32,
        };
        let gone = expendable(&dumps, &HashSet::new(), &keep);
        let mut left: Vec<DumpIndex> = dumps.clone();
        for dump in gone {
            assert!(left.iter().all(|index| index.on != Some(dump)), "seed {seed}: one still stands on it");
            left.retain(|index| index.dump != dump);
        }
        for index in &left {
            BucketDumps::chain(&left, index.dump).expect("whole");
        }
    }
}
