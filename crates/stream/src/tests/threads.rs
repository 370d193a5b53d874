//! A lack of threads: an operation that needs several ends with an error, however many of them
//! there were.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use cairn_format::dump::{DumpId, DumpLevel};

use super::*;
use crate::{Dump, DumpError, DumpLabel, Helper, Own, PartReader, arrange, restore_on};

const BLOCKS: u64 = 32768;
const PARTS: u32 = 4;
/// Of the first dump: more in each part than wait to be written, and a batch is of four.
const RECORDS: u64 = PARTS as u64 * 20;
/// Nothing here takes as long.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than there is to be had.
const STACK: usize = usize::MAX / 2;

/// Threads, but for one helper of all: the system has none for it.
struct Scarce {
    lacks: usize,
    asked: AtomicUsize,
}

impl Threads for Scarce {
    fn beside<'a>(&self, helpers: Vec<Helper<'a>>, own: Own<'a>) -> std::io::Result<()> {
        std::thread::scope(|scope| {
            let mut gates: Vec<Sender<()>> = Vec::new();
            for helper in helpers {
                let lacks = self.asked.fetch_add(1, Ordering::Relaxed) + 1 == self.lacks;
                let builder = std::thread::Builder::new().stack_size(if lacks { STACK } else { 1 << 20 });
                let (gate, opened) = channel();
                builder.spawn_scoped(scope, move || opened.recv().map(|()| helper()))?;
                gates.push(gate);
            }
            gates.into_iter().for_each(|gate| gate.send(()).expect("it waits"));
            own();
            Ok(())
        })
    }
}

/// The outcome of work when there is no thread for the helper of that number, and how many helpers
/// it wanted.
fn without<T: Send + 'static>(
    helper: usize,
    run: impl FnOnce(&mut Work<'_>) -> T + Send + 'static,
) -> (T, usize) {
    let (told, outcome) = channel();
    std::thread::spawn(move || {
        let (cancel, threads) =
            (AtomicBool::new(false), Scarce { lacks: helper, asked: AtomicUsize::new(0) });
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: Some(&threads) };
        let outcome = run(&mut work);
        told.send((outcome, threads.asked.into_inner()))
    });
    let outcome = outcome.recv_timeout(PATIENCE);
    outcome.unwrap_or_else(|error| panic!("without helper {helper} it does not end with an error: {error}"))
}

fn label(number: u8) -> DumpLabel {
    let (id, level) = (DumpId([number; 16]), DumpLevel::Level(number - 1));
    DumpLabel { id, level, name: "vol0".to_owned(), created: Timestamp(u64::from(number)) }
}

/// Plans of a dump of everything and of one that builds on it.
fn plans() -> [Arc<Plan>; 2] {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let options = FormatOptions { id: VolumeId([1; 16]), blocks: BLOCKS, role: Role::Normal };
    Volume::format(&*device, &options, &*clock).expect("formatted");
    let source = Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock }).expect("opened");
    let blocks = RECORDS * 256;
    let file = source.compound().create(FileKind::Lun, blocks * 4096).expect("a file");
    let write = |from: u64, to: u64, byte: u8| {
        let block = |lba: u64| {
            let mut block = BlockMut::zeroed();
            block[..8].copy_from_slice(&lba.to_le_bytes());
            block[8] = byte;
            (Lba(lba), block.freeze())
        };
        let blocks: Vec<(Lba, Block)> = (from..to).map(block).collect();
        source.write(file, &mut blocks.into_iter()).expect("written");
    };
    (0..RECORDS).for_each(|record| write(record * 256, (record + 1) * 256, 1));
    let base = source.create_snapshot("one").expect("a snapshot").id;
    write(0, 100, 2);
    let target = source.create_snapshot("two").expect("a snapshot").id;
    [(None, base), (Some(base), target)]
        .map(|(base, target)| Arc::new(Plan::against(&source, base, target).expect("a plan")))
}

#[test]
fn restore_without_a_thread_more_ends_and_leaves_no_volume() {
    let mut files: Vec<Vec<u8>> = Vec::new();
    for (plan, number) in plans().iter().zip(1..) {
        let dump = Dump::new(plan, label(number), PARTS);
        files.extend((0..PARTS).map(|part| {
            let mut bytes = Vec::new();
            with_work(|work| dump.write_part(part, &mut bytes, Compression::Zstd, work)).expect("written");
            bytes
        }));
    }
    for lacks in 0..=8 {
        let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
        let open = |(number, file): (usize, &Vec<u8>)| {
            PartReader::open(&format!("f{number}"), Box::new(std::io::Cursor::new(file.clone())))
        };
        let parts: Result<Vec<PartReader>, DumpError> = files.iter().enumerate().map(open).collect();
        let dumps = arrange(parts.expect("heads"), false).expect("arranged");
        let onto = device.clone();
        let run = move |work: &mut Work<'_>| {
            restore_on(dumps, &*onto, BLOCKS, false, Timestamp(5), &mut (), work).map(drop)
        };
        let (outcome, helpers) = without(lacks, run);
        let clock = Arc::new(ManualClock::new(Timestamp(9)));
        let opened = Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock });
        assert_eq!((outcome.is_ok(), opened.is_ok()), (lacks == 0, lacks == 0), "{lacks}: {outcome:?}");
        assert!(helpers >= 8 || lacks > 0, "there are as many to lack");
    }
}

#[test]
fn part_of_a_dump_without_a_thread_more_says_that_it_was_given_up() {
    let [plan, _] = plans();
    let cases = [(1, Compression::Zstd), (PARTS, Compression::Zstd), (PARTS, Compression::None)];
    for ((parts, compression), lacks) in
        cases.into_iter().flat_map(|case| (0..=4).map(move |lacks| (case, lacks)))
    {
        let plan = plan.clone();
        let run = move |work: &mut Work<'_>| {
            let mut bytes = Vec::new();
            let dump = Dump::new(&plan, label(1), parts);
            (dump.write_part(0, &mut bytes, compression, work), bytes)
        };
        let ((outcome, bytes), helpers) = without(lacks, run);
        assert!((1..4).contains(&helpers) || lacks > 0, "as many are tried");
        let is_lacking = lacks > 0 && lacks <= helpers;
        assert_eq!(outcome.is_err(), is_lacking, "{lacks} of {helpers}: {outcome:?}");
        assert!(matches!(outcome, Ok(_) | Err(StreamError::NoThread(_))), "{outcome:?}");
        let mut part = PartReader::open("f", Box::new(std::io::Cursor::new(bytes))).expect("a head");
        let ended = std::iter::from_fn(|| part.extents().transpose()).find_map(Result::err);
        assert_eq!(ended.is_some(), is_lacking, "{lacks} of {helpers}: {ended:?}");
        assert!(
            matches!(ended, None | Some(DumpError::GivenUp { reason: AbortReason::Other, .. })),
            "{ended:?}"
        );
    }
}

#[test]
fn stream_without_a_thread_more_ends_and_can_be_aborted() {
    let [plan, _] = plans();
    for (compression, lacks) in [Compression::None, Compression::Zstd]
        .into_iter()
        .flat_map(|compression| (0..=4).map(move |lacks| (compression, lacks)))
    {
        let plan = plan.clone();
        let run = move |work: &mut Work<'_>| {
            let mut bytes = Vec::new();
            (produce(&plan, &mut bytes, compression, work), bytes)
        };
        let ((outcome, mut bytes), helpers) = without(lacks, run);
        assert!((1..4).contains(&helpers) || lacks > 0, "as many are tried");
        let is_lacking = lacks > 0 && lacks <= helpers;
        assert_eq!(outcome.is_err(), is_lacking, "{lacks} of {helpers}: {outcome:?}");
        assert!(matches!(outcome, Ok(_) | Err(StreamError::NoThread(_))), "{outcome:?}");
        if is_lacking {
            abort(&mut bytes, AbortReason::Other).expect("written");
            let error = take(&bytes, &destination()).expect_err("aborted");
            assert!(matches!(error, StreamError::Aborted(AbortReason::Other)), "{error:?}");
        }
    }
}

fn destination() -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Destination)));
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let options = FormatOptions { id: VolumeId([1; 16]), blocks: BLOCKS, role: Role::Destination };
    Volume::format(&*device, &options, &*clock).expect("formatted");
    Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock }).expect("opened")
}

#[test]
fn image_without_a_thread_more_is_not_taken_and_taken_with_one() {
    let (_, bytes) = stream(Compression::Zstd);
    let bytes = Arc::new(bytes);
    for lacks in 0..=2 {
        let (bytes, into) = (bytes.clone(), volume(Role::Destination));
        let onto = into.clone();
        let (outcome, helpers) = without(lacks, move |work| apply(&mut &bytes[..], &onto, work).map(drop));
        let is_lacking = lacks > 0 && lacks <= helpers;
        assert_eq!(outcome.is_err(), is_lacking, "{lacks} of {helpers}: {outcome:?}");
        assert!(matches!(outcome, Ok(_) | Err(StreamError::NoThread(_))), "{outcome:?}");
        assert_eq!(into.status().cursor.snapshot.0 == 0, is_lacking);
    }
}
