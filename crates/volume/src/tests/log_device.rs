//! The intent log on a device of its own: the joint guarantees of two devices, and the errors when
//! one is missing.

use std::time::{Duration, Instant};

use cairn_base::{LogId, Rng};
use cairn_device::{DeviceError, Extent, FaultPart, Geometry, LoggedKind, Operation, Request, SideDevice};
use cairn_format::layout::{LABEL_START, LOG_HEADER_A, LOG_HEADER_B};

use super::*;

const BLOCKS: u64 = 2048;

/// A volume's device and a log device, on one power supply.
#[derive(Clone)]
struct Pair {
    both: Arc<FaultDevice>,
    main: Arc<FaultPart>,
    log: Arc<FaultPart>,
}

/// Where the log device begins on the device that represents both.
fn border() -> u64 {
    Volume::device_bytes(BLOCKS, Role::Normal)
}

fn one<D: Device + 'static>(log: &Arc<D>) -> [Arc<dyn Device>; 1] {
    [log.clone()]
}

fn id(number: u8) -> LogId {
    LogId([number; 16])
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1)))
}

fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 1 << 20, clock: clock() }
}

fn format_options() -> FormatOptions {
    FormatOptions { id: VolumeId([7; 16]), blocks: BLOCKS, role: Role::Normal }
}

impl Pair {
    fn of(both: FaultDevice) -> Self {
        let both = Arc::new(both);
        let main = Arc::new(both.part(0..border()));
        let log = Arc::new(both.part(border()..border() + Volume::LOG_DEVICE_BYTES_MIN));
        Self { both, main, log }
    }

    /// Two devices, nothing on them.
    fn blank() -> Self {
        Self::of(FaultDevice::new(border() + Volume::LOG_DEVICE_BYTES_MIN))
    }

    /// A volume with log 1 on the second device.
    fn fresh() -> (Self, Arc<Volume>) {
        let pair = Self::blank();
        let log = NewLog { device: &*pair.log, id: id(1) };
        Volume::format_with_log(&*pair.main, &log, &format_options(), &*clock()).expect("it is formatted");
        let volume = pair.open().expect("it opens");
        assert_eq!(volume.status().log_device, Some(id(1)));
        (pair, volume)
    }

    fn open(&self) -> Result<Arc<Volume>, VolumeError> {
        Volume::open_with_log(self.main.clone(), &one(&self.log), options())
    }

    /// Both after a power cut.
    fn cycled(&self, seed: u64) -> Self {
        Self::of(self.both.power_cycle(&mut Rng::new(seed)))
    }

    /// A copy of the log device as it is now.
    fn copy_of_log(&self) -> Arc<MemoryDevice> {
        let copy = MemoryDevice::new(Volume::LOG_DEVICE_BYTES_MIN);
        let mut bytes = vec![0; Volume::LOG_DEVICE_BYTES_MIN as usize];
        self.log.read_into(0, &mut bytes).expect("it is read");
        copy.write_from(0, &bytes).expect("it is written");
        Arc::new(copy)
    }

    fn target(&self, number: u8) -> LogTarget {
        LogTarget::Device { device: self.log.clone(), id: id(number) }
    }
}

fn refusal(outcome: Result<Arc<Volume>, VolumeError>) -> VolumeError {
    match outcome {
        Ok(_) => panic!("the volume opens"),
        Err(error) => error,
    }
}

#[test]
fn flush_is_durable_on_both_devices_after_a_cut_at_each_operation() {
    let (mut whole, mut lost) = (0, 0);
    for seed in 0..160 {
        let (pair, volume) = Pair::fresh();
        let lun = file(&volume, 200);
        write(&volume, lun, 0, 20, 1000).expect("there is room");
        volume.flush().expect("it flushes");
        // The batches of a flush are begun in either order in turn.
        if seed % 2 == 1 {
            write(&volume, lun, 100, 1, 1).expect("there is room");
            volume.flush().expect("it flushes");
        }
        write(&volume, lun, 0, 20, 2000).expect("there is room");
        volume.punch(lun, Lba(30), 5).expect("it is punched");
        pair.both.cut_after(seed % 5);
        let cut = volume.flush().is_err();
        assert_eq!(cut, seed % 5 < 4, "a flush is a write and a device flush on each device");
        drop(volume);
        let pair = pair.cycled(seed);
        let volume = pair.open().expect("it opens");
        let read = read(&volume, lun, 0, 20);
        let (old, new): (Vec<u64>, Vec<u64>) = ((1000..1020).collect(), (2000..2020).collect());
        assert!(read == new || (cut && read == old), "seed {seed}: {read:?}");
        whole += u64::from(cut && read == new);
        lost += u64::from(read == old);
        assert_sound(&volume);
    }
    assert!(whole > 10 && lost > 10, "{whole} {lost}");
}

#[test]
fn record_without_its_data_is_never_believed() {
    let mut ended = 0;
    for seed in 0..40 {
        let (pair, volume) = Pair::fresh();
        let lun = file(&volume, 200);
        write(&volume, lun, 0, 20, 1000).expect("there is room");
        volume.flush().expect("it flushes");
        if seed % 2 == 1 {
            volume.flush().expect("there is nothing to flush");
        }
        write(&volume, lun, 0, 20, 2000).expect("there is room");
        // The log is done first, and the power fails when its device has flushed: the record is
        // certainly present, the data is not.
        pair.both.cut_after(2);
        assert!(volume.flush().is_err());
        drop(volume);
        let pair = pair.cycled(seed);
        let volume = pair.open().expect("it opens");
        let now = read(&volume, lun, 0, 20);
        assert!(now[0] == 1000 || now[0] == 2000, "{now:?}");
        assert!(now.iter().zip(0..).all(|(read, n)| *read == now[0] + n), "of one flush: {now:?}");
        ended += u64::from(now[0] == 1000);
        assert_sound(&volume);
        // Erased log entries do not return, whatever is written now.
        write(&volume, lun, 50, 1, 5000).expect("there is room");
        volume.flush().expect("it flushes");
        drop(volume);
        let volume = pair.cycled(seed).open().expect("it opens");
        assert_eq!(read(&volume, lun, 0, 20), now);
        assert_eq!(read(&volume, lun, 50, 1), [5050]);
    }
    assert!(ended > 5, "some data is lost: {ended}");
}

#[test]
fn flush_writes_data_on_one_device_and_records_on_the_other() {
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 200);
    let operations = || {
        let log = pair.both.take_log();
        let on_log = |one: &cairn_device::LoggedOperation| one.offset >= border();
        let all: Vec<_> = log.iter().map(|one| (one.kind, on_log(one), one.length / 4096)).collect();
        all
    };
    operations();
    write(&volume, lun, 0, 3, 1000).expect("there is room");
    volume.flush().expect("it flushes");
    let (records, data) = ((LoggedKind::Write, true, 1), (LoggedKind::Write, false, 3));
    let flush = (LoggedKind::Flush, false, 0);
    let first = operations();
    write(&volume, lun, 0, 3, 2000).expect("there is room");
    volume.flush().expect("it flushes");
    let second = operations();
    assert_eq!(first, [records, flush, data, flush], "one of both orders");
    assert_eq!(second, [data, flush, records, flush], "and the other one");
    volume.consistency_point().expect("it commits");
    assert!(
        operations().iter().all(|(_, on_log, _)| !on_log),
        "a consistency point writes nothing into the log"
    );
}

#[test]
fn log_device_that_is_missing_another_small_or_damaged_is_told() {
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 200);
    write(&volume, lun, 0, 3, 1000).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let missing = refusal(Volume::open(pair.main.clone(), options()));
    assert!(matches!(missing, VolumeError::LogMissing { log } if log == id(1)), "{missing}");
    assert!(missing.to_string().contains("--discard-lost"), "it names the way out");

    let with =
        |log: &Arc<FaultDevice>| refusal(Volume::open_with_log(pair.main.clone(), &one(log), options()));
    let small = Arc::new(FaultDevice::new(4096));
    assert!(matches!(with(&small), VolumeError::LogTooSmall { have: 4096, .. }));
    let blank = Arc::new(FaultDevice::new(Volume::LOG_DEVICE_BYTES_MIN));
    assert!(matches!(with(&blank), VolumeError::NotALog { .. }));
    let (other, _) = Pair::fresh();
    Volume::format_with_log(
        &FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)),
        &NewLog { device: &*blank, id: id(9) },
        &FormatOptions { id: VolumeId([8; 16]), ..format_options() },
        &*clock(),
    )
    .expect("it is formatted");
    let error = with(&blank);
    assert!(
        matches!(error, VolumeError::LogOther { volume: VolumeId([8, ..]), found, .. } if found == id(9)),
        "{error}"
    );
    // The id alone, which is random, does not distinguish the right log from that of another copy
    // of the same volume.
    assert!(Volume::open_with_log(pair.main.clone(), &[blank, other.log.clone()], options()).is_ok());

    // One copy of the header serves, and both are whole again afterwards; a check reports it in
    // between.
    let volume = pair.open().expect("it opens");
    pair.both.corrupt(border() + LOG_HEADER_A * 4096, 512, &mut Rng::new(1));
    let report = volume.check(&mut |_| {}).expect("checking is possible");
    assert_eq!(report.findings, [Finding::LogHeader { address: LOG_HEADER_A }]);
    drop(volume);
    let volume = pair.open().expect("the other copy serves");
    assert_eq!(read(&volume, lun, 0, 3), [1000, 1001, 1002]);
    assert_sound(&volume);
    drop(volume);
    for address in [LOG_HEADER_A, LOG_HEADER_B] {
        pair.both.corrupt(border() + address * 4096, 512, &mut Rng::new(1));
    }
    assert!(matches!(refusal(pair.open()), VolumeError::NotALog { .. }));
}

#[test]
fn log_of_an_earlier_time_is_refused() {
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 200);
    write(&volume, lun, 0, 3, 1000).expect("there is room");
    volume.flush().expect("it flushes");
    let old = pair.copy_of_log();
    volume.move_log(&LogTarget::Internal).expect("it moves");
    volume.move_log(&pair.target(2)).expect("it moves back, as another log");
    write(&volume, lun, 0, 3, 2000).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let error = refusal(Volume::open_with_log(pair.main.clone(), &one(&old), options()));
    assert!(
        matches!(error, VolumeError::LogOther { expected, found, .. } if expected == id(2) && found == id(1))
    );
    assert_eq!(read(&pair.open().expect("it opens"), lun, 0, 3), [2000, 2001, 2002]);
}

#[test]
fn log_moves_between_devices_and_a_cut_leaves_one_of_both() {
    // Without a cut, to count the operations.
    let life = |cut: Option<u64>, seed: u64| {
        let pair = Pair::blank();
        format(&*pair.main, BLOCKS);
        let volume = pair.open().expect("a log in the label area needs no device");
        let lun = file(&volume, 200);
        write(&volume, lun, 0, 3, 1000).expect("there is room");
        volume.flush().expect("it flushes");
        let start = pair.both.operations();
        cut.into_iter().for_each(|cut| pair.both.cut_after(cut));
        let steps = [
            volume.move_log(&pair.target(1)),
            write(&volume, lun, 3, 3, 1000).and_then(|()| volume.flush()),
            volume.move_log(&LogTarget::Internal),
            write(&volume, lun, 6, 3, 1000).and_then(|()| volume.flush()),
        ];
        let done = steps.iter().take_while(|step| step.is_ok()).count();
        let operations = pair.both.operations() - start;
        assert_eq!(done < 4, cut.is_some(), "{steps:?}");
        drop(volume);
        let volume = pair.cycled(seed).open().expect("the log is in one of two places, and opening finds it");
        let flushed = [3, 3, 6, 6, 9][done];
        let now = read(&volume, lun, 0, 9);
        assert!(now.iter().zip(1000..).take(flushed).all(|(a, b)| *a == b), "cut {cut:?}: {now:?}");
        assert_sound(&volume);
        operations
    };
    let operations = life(None, 0);
    for cut in 0..operations {
        for seed in 0..4 {
            life(Some(cut), seed);
        }
    }
}

#[test]
fn device_that_the_log_has_left_is_free_and_one_that_has_a_log_is_not() {
    let (pair, volume) = Pair::fresh();
    let taken = volume.move_log(&pair.target(2));
    assert!(matches!(taken, Err(VolumeError::LogTaken { log, .. }) if log == id(1)), "{taken:?}");
    let other = Volume::format_with_log(
        &MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)),
        &NewLog { device: &*pair.log, id: id(3) },
        &FormatOptions { id: VolumeId([8; 16]), ..format_options() },
        &*clock(),
    );
    assert!(matches!(other, Err(VolumeError::LogTaken { .. })), "{other:?}");
    let (device, _volume) = super::fresh(1024);
    let on_a_volume = volume.move_log(&LogTarget::Device { device, id: id(4) });
    assert!(matches!(on_a_volume, Err(VolumeError::NotEmpty)), "{on_a_volume:?}");
    let small =
        volume.move_log(&LogTarget::Device { device: Arc::new(MemoryDevice::new(1 << 20)), id: id(5) });
    assert!(matches!(small, Err(VolumeError::LogTooSmall { .. })), "{small:?}");
    assert_eq!(volume.status().log_device, Some(id(1)), "what is refused changes nothing");
    let lun = file(&volume, 10);
    write(&volume, lun, 0, 1, 1000).expect("there is room");
    volume.flush().expect("it flushes");
    volume.move_log(&LogTarget::Internal).expect("it moves");
    assert!(
        Volume::log_on(&*pair.log).expect("it is read").is_none(),
        "the device no longer says that it is a log"
    );
    volume.move_log(&pair.target(2)).expect("it is free");
}

#[test]
fn log_that_was_thrown_away_never_comes_back() {
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 200);
    for round in 0..20 {
        write(&volume, lun, round, 1, 1000).expect("there is room");
        volume.flush().expect("it flushes");
    }
    drop(volume);
    let inspection = Volume::inspect(&*pair.main).expect("there is a volume");
    assert_eq!(inspection.log, Some(id(1)));
    let volume = Volume::open_discarding_log(pair.main.clone(), options()).expect("it opens without its log");
    assert_eq!(volume.status().generation, inspection.generation, "at the last consistency point");
    assert_eq!(read(&volume, lun, 0, 20), [0; 20], "what was flushed since is lost");
    assert_sound(&volume);
    drop(volume);
    let volume = Volume::open(pair.main.clone(), options()).expect("it needs the log device no longer");
    // The device reappears: it is cleared at its beginning, and accepted. Its ring still has the
    // sequences that are assigned now.
    pair.log.write_from(0, &[0; 32 * 4096]).expect("it is cleared");
    volume.move_log(&pair.target(2)).expect("it moves");
    write(&volume, lun, 100, 1, 5000).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = pair.open().expect("it opens");
    assert_eq!(read(&volume, lun, 100, 1), [5100]);
    assert_eq!(read(&volume, lun, 0, 20), [0; 20], "nothing of the old log is replayed");
    assert_sound(&volume);
}

#[test]
fn damaged_log_can_be_thrown_away_wherever_it_is() {
    let (device, volume) = super::fresh(BLOCKS);
    let lun = file(&volume, 200);
    for round in 0..5 {
        write(&volume, lun, round, 1, 1000).expect("there is room");
        volume.flush().expect("it flushes");
    }
    drop(volume);
    let log_start = (LABEL_START + 256) * 4096;
    device.write_from(log_start + 4096, &[0xee; 4096]).expect("it is written");
    let damaged = refusal(Volume::open(device.clone(), options()));
    assert!(matches!(damaged, VolumeError::LogDamaged { .. }), "{damaged}");
    let volume = Volume::open_discarding_log(device.clone(), options()).expect("it opens without its log");
    assert_eq!(read(&volume, lun, 0, 5), [0; 5]);
    write(&volume, lun, 7, 1, 1000).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = Volume::open(device, options()).expect("it opens");
    assert_eq!(read(&volume, lun, 0, 8), [0, 0, 0, 0, 0, 0, 0, 1007]);
    assert_sound(&volume);
}

#[test]
fn log_device_that_fails_loses_nothing_and_the_volume_goes_on_without_it() {
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 200);
    write(&volume, lun, 0, 3, 1000).expect("there is room");
    volume.flush().expect("it flushes");
    for round in 1..4u64 {
        write(&volume, lun, round * 3, 3, 1000).expect("there is room");
        pair.log.fail_next_operation(DeviceError::OutOfService);
        volume.flush().expect("a consistency point makes it durable");
        let status = volume.status();
        assert!(status.log_left && status.log_device.is_none() && status.latched.is_none());
        // The device gets no further request, so the next user gets the failure.
        assert!(round > 1 || pair.log.flush().is_ok());
    }
    assert!(pair.log.flush().is_err());
    drop(volume);
    let cycled = pair.cycled(3);
    let volume = Volume::open(cycled.main, options()).expect("it needs the log device no longer");
    assert_eq!(read(&volume, lun, 0, 12), (1000..1012).collect::<Vec<u64>>());
    assert_sound(&volume);
    // The main device is another matter.
    write(&volume, lun, 0, 1, 1).expect("there is room");
    drop(volume);
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 200);
    write(&volume, lun, 0, 1, 1).expect("there is room");
    pair.main.fail_next_operation(DeviceError::OutOfService);
    assert!(volume.flush().is_err());
    assert!(matches!(volume.flush(), Err(VolumeError::Latched(_))));
}

#[test]
fn remains_of_a_cut_flush_are_erased_on_the_log_device_too() {
    // Entries that fill a record of the longest kind, and a log that holds several of them.
    const FULL_RECORD: u64 = (32 * 4096 - 64) / 48;
    let mut told_apart = 0;
    let format = FormatOptions { blocks: 8192, ..format_options() };
    let border = Volume::device_bytes(8192, Role::Normal);
    let parts = |both: &Arc<FaultDevice>| {
        let log = both.part(border..border + Volume::LOG_DEVICE_BYTES_MIN);
        (Arc::new(both.part(0..border)), Arc::new(log))
    };
    let open = |both: &Arc<FaultDevice>| {
        let (main, log) = parts(both);
        Volume::open_with_log(main, &one(&log), options()).expect("it opens")
    };
    let both = Arc::new(FaultDevice::new(border + Volume::LOG_DEVICE_BYTES_MIN));
    let (main, log) = parts(&both);
    Volume::format_with_log(&*main, &NewLog { device: &*log, id: id(1) }, &format, &*clock())
        .expect("format");
    let volume = open(&both);
    let lun = file(&volume, 4000);
    write(&volume, lun, 0, 4000, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    for lba in 0..FULL_RECORD + 100 {
        volume.punch(lun, Lba(lba), 1).expect("it is punched");
    }
    // The log's batch starts first, and both of its records are in flight when the power fails at
    // the flush after them.
    both.cut_after(2);
    assert!(volume.flush().is_err());
    drop(volume);
    for seed in 0..60 {
        let both = Arc::new(both.power_cycle(&mut Rng::new(seed)));
        let volume = open(&both);
        let before = read(&volume, lun, 0, 3999);
        told_apart += u64::from(before.first() == Some(&1));
        for _ in 0..FULL_RECORD {
            volume.punch(lun, Lba(3999), 1).expect("it is punched");
        }
        volume.flush().expect("it flushes");
        drop(volume);
        let volume = open(&Arc::new(both.power_cycle(&mut Rng::new(seed))));
        assert_eq!(read(&volume, lun, 0, 3999), before, "seed {seed}");
        assert_eq!(read(&volume, lun, 3999, 1), [0], "what was flushed is there");
    }
    assert!(told_apart > 0, "some cut lost the first record");
}

/// A volume whose log is on a larger device than its place in the label area, and has passed the
/// end of that.
fn come_far() -> (Arc<MemoryDevice>, Arc<Volume>, FileId) {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    let log = Arc::new(MemoryDevice::new((LABEL_START + 1000) * 4096));
    let new = NewLog { device: &*log, id: id(1) };
    Volume::format_with_log(&*device, &new, &format_options(), &*clock()).expect("it is formatted");
    let volume = Volume::open_with_log(device.clone(), &one(&log), options()).expect("it opens");
    let lun = file(&volume, 400);
    for round in 0..400 {
        write(&volume, lun, round, 1, 1000).expect("there is room");
        volume.flush().expect("it flushes");
    }
    assert!(volume.status().log_used > 300, "the log on its device has room for all of it");
    assert!(!volume.status().log_left);
    (device, volume, lun)
}

#[test]
fn log_moves_into_a_smaller_place_than_it_has_come_through() {
    let (device, volume, lun) = come_far();
    volume.move_log(&LogTarget::Internal).expect("it moves");
    assert_eq!((volume.status().log_used, volume.status().log_blocks), (0, 256));
    assert!(!volume.status().log_left, "no device failed");
    write(&volume, lun, 0, 1, 5000).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = Volume::open(device, options()).expect("it opens");
    assert_eq!(read(&volume, lun, 0, 3), [5000, 1001, 1002]);
    assert_sound(&volume);
}

#[test]
fn log_that_has_come_through_more_than_there_is_in_the_label_area_can_be_thrown_away() {
    let (device, volume, lun) = come_far();
    volume.consistency_point().expect("it commits");
    drop(volume);
    let volume = Volume::open_discarding_log(device.clone(), options()).expect("it opens without its log");
    write(&volume, lun, 0, 1, 5000).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = Volume::open(device, options()).expect("it opens");
    assert_eq!(read(&volume, lun, 0, 3), [5000, 1001, 1002]);
    assert_sound(&volume);
}

/// Longest wait for another thread.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where two threads wait for each other.
#[derive(Default)]
pub(super) struct Phase {
    number: parking_lot::Mutex<u32>,
    changed: parking_lot::Condvar,
}

impl Phase {
    /// Advances to `number`, if it is the next.
    pub(super) fn reach(&self, number: u32) {
        let mut now = self.number.lock();
        if *now + 1 == number {
            *now = number;
            self.changed.notify_all();
        }
    }

    #[track_caller]
    pub(super) fn wait_for(&self, number: u32) {
        let deadline = Instant::now() + PATIENCE;
        let mut now = self.number.lock();
        while *now < number {
            let late = self.changed.wait_until(&mut now, deadline).timed_out();
            assert!(!late, "the other thread does not come as far as {number}");
        }
    }

    pub(super) fn is(&self, number: u32) -> bool {
        *self.number.lock() == number
    }
}

/// A device that reports its batches: before the first is run, and after.
pub(super) struct Told<F> {
    pub(super) below: Arc<dyn Device>,
    pub(super) tell: F,
}

impl<F: Fn(&[Operation], bool) + Send + Sync> Device for Told<F> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        (self.tell)(batch, false);
        self.below.run(batch);
        (self.tell)(batch, true);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.below.extents(offset, length, limit)
    }
}

fn flushes(batch: &[Operation]) -> bool {
    batch.len() > 1 && batch.iter().any(Operation::is_flush)
}

#[test]
fn flush_waits_for_both_devices_at_the_same_time() {
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 10);
    drop(volume);
    let (at_main, at_log) = (Arc::new(Phase::default()), Arc::new(Phase::default()));
    // Neither device continues before the other one has its batch: one after the other would never
    // end.
    let meet = |mine: &Arc<Phase>, other: &Arc<Phase>| {
        let (mine, other) = (mine.clone(), other.clone());
        move |batch: &[Operation], done: bool| {
            if flushes(batch) && !done {
                mine.reach(1);
                other.wait_for(1);
            }
        }
    };
    let main = Told { below: pair.main.clone(), tell: meet(&at_main, &at_log) };
    let log = Told { below: pair.log.clone(), tell: meet(&at_log, &at_main) };
    let log: Arc<dyn Device> = Arc::new(SideDevice::new(Arc::new(log)).expect("a thread"));
    let volume = Volume::open_with_log(Arc::new(main), &[log], options()).expect("it opens");
    write(&volume, lun, 0, 1, 1000).expect("there is room");
    volume.flush().expect("it flushes");
    assert_eq!(volume.status().log_device, Some(id(1)), "neither waited in vain");
    drop(volume);
    assert_eq!(read(&pair.open().expect("it opens"), lun, 0, 1), [1000]);
}

#[test]
fn flush_while_the_log_moves_is_in_neither_log_and_not_lost() {
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 10);
    drop(volume);
    let phase = Arc::new(Phase::default());
    // 1: the log may be moved; 2: the superblock that names the new place is about to be written;
    // 3: the data of a flush is written meanwhile.
    let told = phase.clone();
    let tell = move |batch: &[Operation], done: bool| {
        let is_slot = batch.iter().any(|one| matches!(one.request(), Request::Write { offset: 0, .. }));
        let is_write = batch.iter().any(|one| matches!(one.request(), Request::Write { .. }));
        if is_slot && !done && told.is(1) {
            told.reach(2);
            told.wait_for(3);
        } else if is_write && !is_slot && done {
            told.reach(3);
        }
    };
    let main = Arc::new(Told { below: pair.main.clone(), tell });
    let log: Arc<dyn Device> = pair.log.clone();
    let volume = Volume::open_with_log(main, &[log], options()).expect("it opens");
    phase.reach(1);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            phase.wait_for(2);
            write(&volume, lun, 0, 1, 1000).expect("there is room");
            volume.flush().expect("it flushes");
        });
        volume.move_log(&LogTarget::Internal).expect("it moves");
        client.join().expect("the client ends");
    });
    for seed in 0..10 {
        let volume = pair.cycled(seed).open().expect("it opens");
        assert_eq!(read(&volume, lun, 0, 1), [1000], "seed {seed}");
    }
}

#[test]
fn log_device_that_is_full_is_not_given_up() {
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 100);
    let points = volume.status().consistency_points;
    for number in 0.. {
        write(&volume, lun, number % 100, 1, number).expect("there is room");
        volume.flush().expect("it flushes");
        if volume.status().consistency_points > points {
            break;
        }
    }
    write(&volume, lun, 7, 1, 5000).expect("there is room");
    volume.flush().expect("it flushes");
    let status = volume.status();
    assert_eq!((status.log_device, status.log_left, status.log_used), (Some(id(1)), false, 1));
    drop(volume);
    assert_eq!(read(&pair.open().expect("it opens"), lun, 7, 1), [5007]);
}

#[test]
fn damaged_header_of_the_log_device_is_one_finding_and_is_written_anew() {
    for address in [cairn_format::layout::LOG_HEADER_A, cairn_format::layout::LOG_HEADER_B] {
        let (pair, volume) = Pair::fresh();
        let lun = file(&volume, 10);
        write(&volume, lun, 0, 10, 100).expect("there is room");
        volume.flush().expect("it flushes");
        assert_sound(&volume);
        pair.log.write_from(address * 4096, &[0x5a; 4096]).expect("it is there");
        let found = volume.check(&mut |_| {}).expect("checking is possible").findings;
        assert_eq!(found, [Finding::LogHeader { address }]);
        let mut cursor = volume.begin_scrub();
        assert_eq!(volume.scrub(&mut cursor, 1000).expect("it is open").findings, found);
        drop(volume);
        let volume = pair.open().expect("the other copy serves");
        assert_eq!(read(&volume, lun, 0, 10), (100..110).collect::<Vec<_>>());
        assert_sound(&volume);
    }
}

/// The volume's device is restored from a backup, but its log's is not: the log belongs to a state
/// that no longer exists.
#[test]
fn volume_that_is_older_than_its_log_is_refused_and_goes_on_without_it_by_a_word() {
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 200);
    write(&volume, lun, 0, 20, 1000).expect("there is room");
    volume.consistency_point().expect("it commits");
    let mut backup = vec![0; border() as usize];
    pair.main.read_into(0, &mut backup).expect("it is read");
    for round in 0..8 {
        write(&volume, lun, 0, 20, 2000 + round).expect("there is room");
        volume.flush().expect("it flushes");
        volume.consistency_point().expect("it commits");
    }
    write(&volume, lun, 0, 10, 3000).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = pair.open().expect("the two belong together");
    assert_eq!(read(&volume, lun, 0, 1), [3000]);
    drop(volume);
    pair.main.write_from(0, &backup).expect("it is written");
    assert!(matches!(refusal(pair.open()), VolumeError::OlderThanLog { .. }));
    let volume = Volume::open_discarding_log(pair.main.clone(), options()).expect("by its owner's word");
    assert_eq!(read(&volume, lun, 0, 1), [1000]);
}

/// Generations without a flush leave no record: then the first existing one shows how far the log
/// is ahead.
#[test]
fn log_of_one_record_tells_that_its_volume_is_older_too() {
    for generations in [1, 2, 12] {
        let (pair, volume) = Pair::fresh();
        let lun = file(&volume, 200);
        for _ in 0..10 {
            file(&volume, 1);
        }
        write(&volume, lun, 0, 20, 1000).expect("there is room");
        volume.consistency_point().expect("it commits");
        let mut backup = vec![0; border() as usize];
        pair.main.read_into(0, &mut backup).expect("it is read");
        for round in 0..generations {
            write(&volume, lun, 0, 20, 2000 + round).expect("there is room");
            volume.consistency_point().expect("it commits");
        }
        write(&volume, lun, 0, 10, 3000).expect("there is room");
        volume.flush().expect("it flushes");
        drop(volume);
        assert_eq!(read(&pair.open().expect("the two belong together"), lun, 0, 1), [3000]);
        pair.main.write_from(0, &backup).expect("it is written");
        match pair.open() {
            // As after the loss of the newest superblocks, which is possible.
            Ok(_) => assert!(generations < 3, "{generations} generations are missing"),
            Err(error) => assert!(
                generations == 12 && matches!(error, VolumeError::OlderThanLog { .. }),
                "{generations} generations are missing: {error}"
            ),
        }
    }
}

#[test]
fn volume_is_as_made_until_something_of_it_is_durable() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    assert!(!Volume::is_as_made(&*device), "there is none");
    format(&*device, BLOCKS);
    assert!(Volume::is_as_made(&*device));
    let volume = super::open(&device);
    volume.close().expect("it closes");
    assert!(Volume::is_as_made(&*device), "nothing was written");
    let volume = super::open(&device);
    let lun = volume.compound().create(FileKind::Lun, 4096).expect("there is room");
    write(&volume, lun, 0, 1, 1).expect("there is room");
    assert!(Volume::is_as_made(&*device), "it is in memory alone");
    volume.flush().expect("it flushes");
    assert!(!Volume::is_as_made(&*device), "its log has something");
    volume.consistency_point().expect("it commits");
    assert!(!Volume::is_as_made(&*device));
    drop(volume);
    let volume = super::open(&device);
    assert!(!Volume::is_as_made(&*device), "whatever its log has");
    drop(volume);
}

fn content(device: &dyn Device) -> Vec<u8> {
    device.read(0, device.geometry().length as u32).expect("it can be read").to_vec()
}

#[test]
fn volume_that_takes_no_writes_any_more_leaves_the_device_of_a_new_log_as_it_is() {
    for is_closed in [true, false] {
        let (pair, log) = (Pair::blank(), Arc::new(MemoryDevice::new(Volume::LOG_DEVICE_BYTES_MIN)));
        format(&*pair.main, BLOCKS);
        let volume = super::open(&pair.main);
        let lun = file(&volume, 10);
        if is_closed {
            volume.close().expect("it closes");
        } else {
            write(&volume, lun, 0, 1, 1).expect("there is room");
            pair.main.fail_next_operation(DeviceError::OutOfService);
            assert!(volume.flush().is_err());
        }
        let refused = volume.move_log(&LogTarget::Device { device: log.clone(), id: id(1) });
        assert!(matches!(refused, Err(VolumeError::Closed | VolumeError::Latched(_))), "{refused:?}");
        assert!(content(&*log).iter().all(|byte| *byte == 0), "it can be that of another volume");
        assert!(volume.move_log(&LogTarget::Internal).is_err());
    }
}

#[test]
fn log_that_is_to_go_where_it_is_stays_and_keeps_what_was_flushed() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = super::open(&device);
    let lun = file(&volume, 10);
    write(&volume, lun, 0, 5, 100).expect("there is room");
    volume.flush().expect("it flushes");
    let before = device.operations();
    device.cut_after(1);
    volume.move_log(&LogTarget::Internal).expect("it is there");
    assert_eq!(device.operations(), before, "nothing is written for it");
    drop(volume);
    let volume = super::open(&Arc::new(device.power_cycle(&mut Rng::new(1))));
    assert_eq!(read(&volume, lun, 0, 5), (100..105).collect::<Vec<_>>());
}

#[test]
fn log_comes_into_the_label_area_as_a_ring_of_zeroes_whatever_was_there() {
    let (pair, volume) = Pair::fresh();
    let lun = file(&volume, 10);
    let layout = volume.commit.lock().superblock.layout.clone();
    let ring = layout.log_start * 4096..(layout.log_start + layout.log_blocks) * 4096;
    pair.main.write_from(ring.start, &vec![0xee; (ring.end - ring.start) as usize]).expect("it is there");
    volume.move_log(&LogTarget::Internal).expect("it moves");
    let bytes = pair.main.read(ring.start, (ring.end - ring.start) as u32).expect("it is there").to_vec();
    assert!(bytes.iter().all(|byte| *byte == 0));
    write(&volume, lun, 0, 5, 100).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = Volume::open(pair.main.clone(), options()).expect("its log is there");
    assert_eq!(read(&volume, lun, 0, 5), (100..105).collect::<Vec<_>>());
}

#[test]
fn log_does_not_go_to_a_device_that_fails_in_any_of_what_prepares_it() {
    let main = Arc::new(MemoryDevice::new(border()));
    format(&*main, BLOCKS);
    let volume = super::open(&main);
    let lun = file(&volume, 10);
    let mut failures = 0;
    loop {
        let log = Arc::new(FaultDevice::new(Volume::LOG_DEVICE_BYTES_MIN));
        log.fail_operations(failures, 1, DeviceError::OutOfService);
        let target = LogTarget::Device { device: log.clone(), id: id(failures as u8 + 1) };
        let Err(error) = volume.move_log(&target) else { break };
        assert!(matches!(error, VolumeError::LogDevice(_)), "{error}");
        assert_eq!((volume.status().log_device, volume.status().latched.is_none()), (None, true));
        write(&volume, lun, 0, 5, 100 * failures).expect("it goes on");
        volume.flush().expect("it flushes");
        let again = super::open(&main);
        assert_eq!(read(&again, lun, 0, 1), [100 * failures], "its log is where it was");
        failures += 1;
    }
    assert_eq!(failures, 5, "zeroes, two headers, and a flush behind either");
    assert_eq!(volume.status().log_device, Some(id(6)));
}

/// A failed flush of the volume's device may have lost earlier writes of others.
#[test]
fn failure_of_the_volumes_device_while_the_log_leaves_a_failed_one_latches_the_volume() {
    let mut failures = 0;
    for after in 0.. {
        let main = Arc::new(FaultDevice::new(border()));
        let log = Arc::new(FaultDevice::new(Volume::LOG_DEVICE_BYTES_MIN));
        let new = NewLog { device: &*log, id: id(1) };
        Volume::format_with_log(&*main, &new, &format_options(), &*clock()).expect("it is formatted");
        let volume = Volume::open_with_log(main.clone(), &one(&log), options()).expect("it opens");
        let lun = file(&volume, 10);
        write(&volume, lun, 0, 5, 100).expect("there is room");
        log.fail_next_operation(DeviceError::OutOfService);
        main.fail_operations(after, 1, DeviceError::OutOfService);
        if volume.flush().is_ok() {
            break;
        }
        failures += 1;
        let again = volume.flush();
        assert!(matches!(again, Err(VolumeError::Latched(_))), "after {after}: {again:?}");
        assert!(volume.status().latched.is_some());
    }
    assert!(failures > 8, "{failures} places");
}

#[test]
fn log_device_may_be_longer_than_its_log_and_not_shorter() {
    let main = Arc::new(MemoryDevice::new(border()));
    let length = Volume::LOG_DEVICE_BYTES_MIN + 40 * 4096;
    let log = Arc::new(MemoryDevice::new(length));
    let new = NewLog { device: &*log, id: id(1) };
    Volume::format_with_log(&*main, &new, &format_options(), &*clock()).expect("it is formatted");
    let volume = Volume::open_with_log(main.clone(), &one(&log), options()).expect("it opens");
    let lun = file(&volume, 10);
    write(&volume, lun, 0, 5, 100).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let short = Arc::new(MemoryDevice::new(length - 4096));
    short.write_from(0, &content(&*log)[..(length - 4096) as usize]).expect("it is there");
    let refused = refusal(Volume::open_with_log(main.clone(), &one(&short), options()));
    let is_told =
        matches!(refused, VolumeError::LogTooSmall { need, have } if (need, have) == (length, length - 4096));
    assert!(is_told, "{refused}");
    log.grow(length + 100 * 4096);
    let volume = Volume::open_with_log(main, &one(&log), options()).expect("it is longer now");
    assert_eq!(read(&volume, lun, 0, 5), (100..105).collect::<Vec<_>>());
}
