//! A device that remembers, against a list of all writes.
//!
//! The model keeps the whole content of the device after every action, with the stamp of the
//! action. A view of an instant must show the content after the last action up to it. After a cut
//! the present may hold, sector by sector, anything that was written since the last flush. Every
//! instant up to that flush, within the window, must read exactly as it was. Events between that
//! flush and the opening are unknown, and their instants are not checked.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{HistoryId, ManualClock, Rng, Timestamp};
use cairn_device::{Device, DeviceError, Fate, FaultDevice, FaultPart, Operation, Request, Segments};
use cairn_history::{
    FloorPolicy, Granularity, History, HistoryError, HistoryOptions, LogPosition, OpenOptions, Placement,
    Reduction, Thin, Window,
};

use crate::cuts::{Done, at_every_operation};
use crate::tally::Tally;
use crate::timeline::{Standing, Timeline};

const SECTOR: usize = 512;
const SECOND: u64 = 1_000_000_000;

/// The file system of the sparse files, which has room and has none at random.
#[derive(Debug, Clone, Copy)]
struct Host {
    /// The origin is a sparse file on it as well as the store.
    with_origin: bool,
    /// It reserves room ahead of writes, reliably.
    promises: bool,
}

/// The parameters of a life.
#[derive(Debug, Clone, Copy)]
struct Config {
    options: HistoryOptions,
    origin_bytes: u64,
    store_bytes: u64,
    dirty_bytes: u64,
    read_bytes: u64,
    /// The longest that a write is, in bytes.
    write_max: u64,
    /// Time between two actions at most, in nanoseconds.
    pause_max: u64,
    host: Option<Host>,
}

fn config(rng: &mut Rng, small: bool) -> Config {
    let placement = Placement::ALL[rng.below(5) as usize];
    let granularity = match rng.below(4) {
        0 | 1 => Granularity::EveryWrite,
        2 => Granularity::Interval(SECOND),
        _ => Granularity::Marks,
    };
    let block_bytes = [512, 1024, 4096, 4096, 8192, 65536][rng.below(6) as usize];
    let time = rng.one_in(3).then(|| Duration::from_secs(2 + rng.below(20)));
    let mut window = Window {
        time,
        bytes: rng.one_in(4).then(|| (1 << 20) + rng.below(1 << 20)),
        floor: if rng.one_in(5) { Duration::from_secs(2) } else { Duration::ZERO },
        floor_policy: FloorPolicy::Fail,
        thin: thin(rng, granularity),
        reduction: Reduction::NONE,
    };
    let mut id = [0; 16];
    rng.fill(&mut id);
    // From numbers that are random already: a seed from before this choice keeps its other choices.
    window.reduction = Reduction { xor: id[0] & 1 == 1, identical: id[0] & 2 == 2 };
    let host = (id[1] & 3 == 0).then_some(Host { with_origin: id[1] & 4 == 4, promises: id[1] & 8 == 8 });
    let blocks = if small { 4 + rng.below(28) } else { 8 + rng.below(120) };
    Config {
        options: HistoryOptions { store: HistoryId(id), placement, granularity, block_bytes, window },
        origin_bytes: blocks * 4096,
        // With more segments the log continues in several of them without a superblock.
        store_bytes: cairn_history::store_bytes_min() + rng.below(if small { 8 } else { 40 }) * (1 << 18),
        dirty_bytes: [1, 16 << 10, 128 << 10][rng.below(3) as usize],
        read_bytes: if rng.one_in(2) { 64 << 10 } else { 0 },
        write_max: if small { 12 << 10 } else { 96 << 10 },
        pause_max: [1000, SECOND / 4, 2 * SECOND][rng.below(3) as usize],
        host,
    }
}

/// Steps of retention that fit the granularity, in some lives.
fn thin(rng: &mut Rng, granularity: Granularity) -> [Option<Thin>; 4] {
    let mut steps = [None; 4];
    if granularity == Granularity::Marks || !rng.one_in(3) {
        return steps;
    }
    let mut every = 1 + rng.below(3);
    for place in steps.iter_mut().take(1 + rng.below(3) as usize) {
        every *= 2;
        let after = every + rng.below(2 * every);
        *place = Some(Thin { after: Duration::from_secs(after), every: Duration::from_secs(every) });
        every = after.next_multiple_of(every);
    }
    steps
}

/// The content after an action.
struct Instant {
    stamp: u64,
    image: Rc<Vec<u8>>,
}

/// One life of a device that remembers.
struct Life<'a> {
    rng: Rng,
    config: Config,
    clock: Arc<ManualClock>,
    whole: Arc<FaultDevice>,
    history: Option<Arc<History>>,
    /// In order of stamps.
    instants: Vec<Instant>,
    /// The last of `instants` that is durable.
    flushed: usize,
    /// Stamps between these two are not known.
    gaps: Vec<(u64, u64)>,
    /// The whole content that a failed action may have written.
    attempted: Option<Rc<Vec<u8>>>,
    reverting: bool,
    /// The durable position of the history at occasional checks: every opening must have reached
    /// it.
    known: LogPosition,
    timeline: &'a mut Timeline,
}

impl<'a> Life<'a> {
    fn new(mut rng: Rng, config: Config, cut: Option<u64>, timeline: &'a mut Timeline) -> Result<Self> {
        let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000 * SECOND + rng.below(SECOND))));
        let mut device = FaultDevice::new(config.origin_bytes + config.store_bytes);
        if config.options.block_bytes < 4096 {
            device = device.with_sectors();
        }
        let whole = Arc::new(device);
        let mut content = vec![0; config.origin_bytes as usize];
        for sector in content.chunks_mut(SECTOR) {
            if !rng.one_in(3) {
                rng.fill(sector);
            }
        }
        let mut life = Self {
            rng,
            config,
            clock,
            whole,
            history: None,
            instants: Vec::new(),
            flushed: 0,
            gaps: Vec::new(),
            attempted: None,
            reverting: false,
            known: LogPosition::default(),
            timeline,
        };
        if let Some(host) = config.host {
            let end = config.origin_bytes + config.store_bytes;
            let start = if host.with_origin { 0 } else { config.origin_bytes };
            life.whole.be_sparse(start..end, end, host.promises);
        }
        life.origin().write_from(0, &content)?;
        life.origin().flush()?;
        let history = History::create(
            Arc::new(life.origin()),
            Arc::new(life.store()),
            &life.config.options,
            life.open_options(),
        )?;
        life.instants.push(Instant { stamp: history.status().last.0, image: Rc::new(content) });
        life.history = Some(history);
        life.say(&format!("adopted: {:?}", life.config));
        if let Some(cut) = cut {
            life.whole.cut_after(cut);
        }
        Ok(life)
    }

    fn origin(&self) -> FaultPart {
        self.whole.part(0..self.config.origin_bytes)
    }

    fn store(&self) -> FaultPart {
        self.whole.part(self.config.origin_bytes..self.config.origin_bytes + self.config.store_bytes)
    }

    fn open_options(&self) -> OpenOptions {
        OpenOptions {
            dirty_bytes: self.config.dirty_bytes,
            read_bytes: self.config.read_bytes,
            clock: self.clock.clone(),
            at_least: self.known,
        }
    }

    fn say(&mut self, what: &str) {
        let operations = self.whole.operations();
        self.timeline.note("hist", Standing { operations, generation: 0, free: 0 }, what);
    }

    fn history(&self) -> Result<Arc<History>> {
        self.history.clone().context("the history is open")
    }

    fn present(&self) -> Rc<Vec<u8>> {
        self.instants.last().map(|instant| instant.image.clone()).unwrap_or_default()
    }

    /// Notes an action that succeeded.
    fn note(&mut self, image: Rc<Vec<u8>>, several: bool) -> Result<()> {
        let stamp = self.history()?.status().last.0;
        let before = self.instants.last().map_or(0, |instant| instant.stamp);
        if several && stamp > before + 1 {
            self.gaps.push((before, stamp));
        }
        if stamp > before {
            self.instants.push(Instant { stamp, image });
        } else if let Some(last) = self.instants.last_mut() {
            last.image = image;
        }
        Ok(())
    }

    fn expected(&self, instant: u64) -> Option<&Rc<Vec<u8>>> {
        if self.gaps.iter().any(|(from, to)| *from < instant && instant < *to) {
            return None;
        }
        let at = self.instants.partition_point(|known| known.stamp <= instant);
        self.instants.get(at.checked_sub(1)?).map(|known| &known.image)
    }

    /// One action.
    fn act(&mut self, tally: &mut Tally) -> Result<Done> {
        self.timeline.step();
        let pause = self.rng.below(self.config.pause_max);
        self.clock.advance(Duration::from_nanos(pause));
        self.attempted = None;
        self.reverting = false;
        if self.config.host.is_some() && self.rng.one_in(8) {
            let room = [0, self.rng.below(1 << 20), self.config.store_bytes][self.rng.below(3) as usize];
            self.say(&format!("the host file system has {room} bytes left"));
            self.whole.leave_room(room);
        }
        let outcome = match self.rng.below(32) {
            0..=12 => self.write(),
            13..=15 => self.clear(),
            16..=18 => self.flush(),
            19 => self.mark(),
            20..=23 => self.look(),
            24 => self.revert(),
            25..=29 => self.steps(),
            // Without a number of the dice, as below.
            30 if self.whole.operations().is_multiple_of(3) => self.fold_back(),
            30 => self.compare(),
            _ => return self.reopen(tally).map(|()| Done::Fine),
        };
        match outcome {
            Ok(()) => {
                // Without another random number: earlier lives stay unchanged.
                if self.whole.operations().is_multiple_of(2) {
                    self.known = self.history()?.position().context("no device has failed")?;
                }
                Ok(Done::Fine)
            }
            Err(_) if self.whole.is_off() => Ok(Done::Off),
            Err(error) => match error.downcast_ref::<DeviceError>() {
                Some(DeviceError::NoSpace { .. }) => {
                    tally.full += 1;
                    self.say("no room: refused");
                    Ok(Done::Fine)
                }
                _ => match error.downcast_ref::<HistoryError>() {
                    Some(
                        HistoryError::Full
                        | HistoryError::NoRoomBelow { .. }
                        | HistoryError::TooManyReverts
                        | HistoryError::NoRoomToRevert { .. },
                    ) => {
                        tally.full += 1;
                        self.say("no room: refused");
                        Ok(Done::Fine)
                    }
                    _ => Err(error),
                },
            },
        }
    }

    fn place(&mut self) -> (u64, u64) {
        let all = self.config.origin_bytes;
        let mut offset = self.rng.below(all);
        let mut length = 1 + self.rng.below(self.config.write_max);
        if self.rng.one_in(2) {
            let block = u64::from(self.config.options.block_bytes);
            offset = offset / block * block;
            length = length.next_multiple_of(block);
        }
        (offset, length.min(all - offset))
    }

    /// With reduced contents: makes some of them equal to the old or other content, with a few
    /// changed bytes in some.
    fn make_alike(&self, bytes: &mut [u8], image: &[u8], offset: usize) {
        let Some(choice) = bytes.first_chunk::<8>().copied().map(u64::from_le_bytes) else { return };
        if self.config.options.window.reduction == Reduction::NONE || choice.is_multiple_of(4) {
            return;
        }
        let block = self.config.options.block_bytes as usize;
        let last = (image.len() - bytes.len()) / block;
        let elsewhere = (choice >> 8) as usize % (last + 1) * block;
        let from = if choice % 4 == 1 { elsewhere } else { offset };
        let changed: Vec<u8> = bytes.iter().copied().skip(8).take(40).collect();
        bytes.copy_from_slice(&image[from..from + bytes.len()]);
        if choice % 4 > 1 {
            for (index, byte) in changed.into_iter().enumerate() {
                let at = (index / 8 * 997 + (choice >> 16) as usize % 4096 + index % 8) % bytes.len();
                bytes[at] = byte;
            }
        }
    }

    fn write(&mut self) -> Result<()> {
        let mut batch = Vec::new();
        let mut image = (*self.present()).clone();
        let count = 1 + self.rng.below(3);
        for _ in 0..count {
            let (offset, length) = self.place();
            let mut bytes = vec![0; length as usize];
            if !self.rng.one_in(8) {
                self.rng.fill(&mut bytes);
            }
            self.make_alike(&mut bytes, &image, offset as usize);
            image[offset as usize..(offset + length) as usize].copy_from_slice(&bytes);
            let fua = self.rng.one_in(10);
            batch
                .push((Operation::new(Request::Write { offset, data: Segments::copy_of(&bytes), fua }), fua));
        }
        // One by one: each has a stamp of its own.
        for (operation, fua) in batch {
            let mut image = (*self.present()).clone();
            if let Request::Write { offset, data, .. } = operation.request() {
                data.copy_to(&mut image[*offset as usize..*offset as usize + data.len()]);
                let what = format!("write {} at {offset}{}", data.len(), if fua { " fua" } else { "" });
                self.say(&what);
            }
            let image = Rc::new(image);
            self.attempted = Some(image.clone());
            match self.history()?.one(operation) {
                Ok(()) => {
                    self.note(image, false)?;
                    self.attempted = None;
                    if fua {
                        self.flushed = self.instants.len() - 1;
                    }
                }
                // Its content was taken, and only the flush found no room.
                Err(error) if fua && !self.whole.is_off() => {
                    self.note(self.current()?, true)?;
                    return Err(error.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<()> {
        let (offset, length) = self.place();
        let mut image = (*self.present()).clone();
        image[offset as usize..(offset + length) as usize].fill(0);
        let image = Rc::new(image);
        self.attempted = Some(image.clone());
        let request = match self.rng.one_in(2) {
            true => Request::Trim { offset, length, fua: false },
            false => Request::WriteZeroes { offset, length, may_trim: self.rng.one_in(2), fua: false },
        };
        self.say(&format!("zeroes {length} at {offset}"));
        if let Err(error) = self.history()?.one(Operation::new(request)) {
            if !self.whole.is_off() {
                // A part of it may have been taken.
                self.note(self.current()?, true)?;
            }
            return Err(error.into());
        }
        self.attempted = None;
        self.note(image, true)
    }

    fn flush(&mut self) -> Result<()> {
        self.say("flush");
        self.history()?.flush()?;
        self.flushed = self.instants.len() - 1;
        Ok(())
    }

    fn mark(&mut self) -> Result<()> {
        let name = format!("m{}", self.rng.next());
        self.say("mark");
        self.history()?.mark(&name, self.rng.one_in(2))?;
        self.note(self.present(), false)?;
        self.flushed = self.instants.len() - 1;
        Ok(())
    }

    fn current(&self) -> Result<Rc<Vec<u8>>> {
        let mut bytes = vec![0; self.config.origin_bytes as usize];
        self.history()?.read_into(0, &mut bytes)?;
        Ok(Rc::new(bytes))
    }

    /// A random instant of the window.
    fn instant(&mut self) -> Result<u64> {
        let status = self.history()?.status();
        let span = status.last.0 - status.start.0;
        let among = self.rng.below(self.instants.len() as u64) as usize;
        Ok(match self.rng.below(3) {
            0 => status.start.0 + self.rng.below(span + 1),
            1 => self.instants[among].stamp.max(status.start.0),
            _ => self.instants[among].stamp.saturating_sub(1).max(status.start.0),
        })
    }

    /// Compares a view with the model.
    fn look(&mut self) -> Result<()> {
        let at = self.instant()?;
        self.look_at(at)
    }

    fn look_at(&mut self, at: u64) -> Result<()> {
        let view = match self.history()?.view(Timestamp(at)) {
            // Without room nothing can be brought where a view finds it.
            Err(
                HistoryError::BeforeWindow
                | HistoryError::BeforeBeginning
                | HistoryError::Full
                | HistoryError::NoRoomBelow { .. },
            ) => {
                return Ok(());
            }
            view => view?,
        };
        let instant = view.instant().0;
        ensure!(instant <= at, "the view of {at} shows {instant}");
        let mut bytes = vec![0; self.config.origin_bytes as usize];
        view.read_into(0, &mut bytes)?;
        self.timeline.observe(bytes.iter().copied().step_by(97));
        if let Some(expected) = self.expected(instant)
            && **expected != bytes
        {
            let at_byte = expected.iter().zip(&bytes).position(|(one, other)| one != other).unwrap_or(0);
            let known = self.history()?.explain(at_byte as u64 / u64::from(self.config.options.block_bytes));
            bail!("the view of {instant} (asked for {at}) differs at byte {at_byte}; the index has\n{known}");
        }
        Ok(())
    }

    fn compare(&mut self) -> Result<()> {
        let (current, expected) = (self.current()?, self.present());
        let at = expected.iter().zip(current.iter()).position(|(one, other)| one != other);
        ensure!(at.is_none(), "the present differs at byte {at:?}");
        Ok(())
    }

    fn revert(&mut self) -> Result<()> {
        let at = self.instant()?;
        let history = self.history()?;
        // The content that it is to bring back, also when the model does not know it.
        let image = {
            let view = match history.view(Timestamp(at)) {
                Err(HistoryError::BeforeWindow | HistoryError::BeforeBeginning) => return Ok(()),
                view => view?,
            };
            let mut bytes = vec![0; self.config.origin_bytes as usize];
            view.read_into(0, &mut bytes)?;
            if let Some(expected) = self.expected(view.instant().0) {
                ensure!(**expected == bytes, "the view of {} differs", view.instant().0);
            }
            Rc::new(bytes)
        };
        self.say("revert");
        self.attempted = Some(image.clone());
        self.reverting = true;
        match history.revert(Timestamp(at)) {
            Ok(_) => {}
            // Making room for it took its target.
            Err(HistoryError::BeforeWindow | HistoryError::BeforeBeginning) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        // The mark before it has a stamp between.
        let before = self.present();
        let stamp = history.status().last.0;
        self.instants.push(Instant { stamp: stamp - 1, image: before });
        self.note(image, false)?;
        self.flushed = self.instants.len() - 1;
        self.reverting = false;
        self.attempted = None;
        Ok(())
    }

    fn steps(&mut self) -> Result<()> {
        let count = 1 + self.rng.below(12);
        self.say(&format!("{count} steps"));
        for _ in 0..count {
            if !self.history()?.step()? {
                break;
            }
        }
        Ok(())
    }

    /// Folds back beside clients, completely or partly.
    fn fold_back(&mut self) -> Result<()> {
        self.say("fold back");
        let slices = self.whole.operations() % 7;
        let done = std::cell::Cell::new(0);
        self.history()?.fold_back(&|_, _| {
            done.set(done.get() + 1);
            slices == 0 || done.get() < slices
        })?;
        self.compare()
    }

    /// Closes and opens: in order, or killed with its memory lost.
    fn reopen(&mut self, tally: &mut Tally) -> Result<()> {
        if self.rng.one_in(2) && self.flush().is_err() {
            return if self.whole.is_off() { self.recover(tally) } else { Ok(()) };
        }
        self.say("killed");
        self.history = None;
        self.open()
    }

    /// The power fails and returns.
    fn recover(&mut self, tally: &mut Tally) -> Result<()> {
        tally.cuts += 1;
        self.history = None;
        let fate = Fate::random(&mut self.rng);
        self.say(&format!("! power cut, {fate:?}"));
        let next = self.whole.power_cycle_as(fate, &mut self.rng);
        tally.operations += self.whole.operations();
        self.whole = Arc::new(next);
        self.open()
    }

    fn open(&mut self) -> Result<()> {
        let open =
            |life: &Self| History::open(Arc::new(life.origin()), Arc::new(life.store()), life.open_options());
        let may_need_room = self.config.host.is_some_and(|host| host.with_origin || !host.promises);
        let mut opened = open(self);
        if matches!(opened, Err(HistoryError::NoRoomBelow { .. })) && may_need_room {
            self.say("its owner makes room for it to open");
            self.make_room();
            opened = open(self);
        }
        let history = match opened {
            Err(_) if self.whole.is_off() => return Ok(()),
            opened => opened?,
        };
        self.history = Some(history);
        let current = match self.current() {
            Err(_) if self.whole.is_off() => return Ok(()),
            current => current?,
        };
        self.check_present(&current)?;
        let durable = self.instants[self.flushed].stamp;
        self.instants.truncate(self.flushed + 1);
        // All later writes have later stamps than the log.
        let last = self.history()?.status().last.0.max(durable);
        self.gaps.push((durable, last + 1));
        self.clock.advance(Duration::from_nanos(last.saturating_sub(self.clock_now()) + 2));
        self.instants.push(Instant { stamp: last + 1, image: current });
        self.say("= opened");
        Ok(())
    }

    /// The host file system gets room, and the history may be asked to use it.
    fn make_room(&self) {
        self.whole.leave_room(self.config.origin_bytes + self.config.store_bytes);
        self.clock.advance(Duration::from_secs(1));
    }

    fn clock_now(&self) -> u64 {
        cairn_base::Clock::now(&*self.clock).0
    }

    /// After a cut each sector has its content at the last flush or a later one.
    fn check_present(&self, current: &[u8]) -> Result<()> {
        if let (true, Some(target)) = (self.reverting, &self.attempted)
            && **target == current
        {
            return Ok(());
        }
        let attempted = self.attempted.iter().filter(|_| !self.reverting);
        let candidates: Vec<&Rc<Vec<u8>>> =
            self.instants[self.flushed..].iter().map(|instant| &instant.image).chain(attempted).collect();
        for (index, sector) in current.chunks(SECTOR).enumerate() {
            let range = index * SECTOR..index * SECTOR + sector.len();
            let known = candidates.iter().any(|image| image[range.clone()] == *sector);
            // Two writes of one sector that were not flushed may each have left a part only where
            // the sector is not written as a whole; it always is.
            if !known {
                let lba = (index * SECTOR) as u64 / u64::from(self.config.options.block_bytes);
                let known = self.history()?.explain(lba);
                bail!(
                    "sector {index} holds what was never written there, or what a flush had replaced; the index has\n{known}"
                );
            }
        }
        Ok(())
    }

    /// Everything that should be known is compared.
    fn compare_all(&mut self) -> Result<()> {
        self.compare()?;
        let start = self.history()?.status().start.0;
        let stamps: Vec<u64> = self.instants.iter().map(|instant| instant.stamp).collect();
        for stamp in stamps {
            if stamp >= start && stamp <= self.clock_now() {
                self.look_at(stamp)?;
            }
        }
        self.look_at(start)
    }

    /// Opens until the power stays on.
    fn recover_fully(&mut self, tally: &mut Tally) -> Result<()> {
        loop {
            self.recover(tally)?;
            if !self.whole.is_off() {
                return Ok(());
            }
        }
    }

    fn finish(mut self, tally: &mut Tally) -> Result<()> {
        if self.whole.is_off() {
            self.recover_fully(tally)?;
        }
        // No cut any more.
        self.whole.cut_after(u64::MAX);
        self.compare_all()?;
        if self.config.host.is_some() {
            self.make_room();
            ensure!(self.history()?.status().failed.is_none(), "a lack of room has ended the device");
        }
        self.flush().or_else(|error| match error.downcast_ref::<DeviceError>() {
            Some(DeviceError::NoSpace { .. }) => Ok(()),
            _ => Err(error),
        })?;
        let before = self.present();
        let history = self.history()?;
        let released = match self.whole.operations().is_multiple_of(2) {
            true => history.fold_back(&|_, _| true),
            false => Ok(()),
        };
        match released.and_then(|()| history.release(&|_, _| {})) {
            Ok(()) => {
                let mut bytes = vec![0; self.config.origin_bytes as usize];
                self.origin().read_into(0, &mut bytes)?;
                ensure!(bytes == **before, "the released device differs from its last content");
            }
            Err(HistoryError::Full | HistoryError::NoRoomBelow { .. }) => {}
            Err(HistoryError::Device(DeviceError::NoSpace { .. })) => {}
            Err(error) => return Err(error.into()),
        }
        tally.operations += self.whole.operations();
        Ok(())
    }
}

/// A long life with cuts at random.
pub(crate) fn run(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed);
    let config = config(&mut rng, false);
    let actions = 100 + rng.below(150);
    let cuts = !rng.one_in(4);
    let mut life = Life::new(rng.fork(), config, None, timeline)?;
    for _ in 0..actions {
        if cuts && rng.one_in(12) {
            life.whole.cut_after(rng.below(40));
        }
        if matches!(life.act(tally)?, Done::Off) || life.whole.is_off() {
            life.recover_fully(tally)?;
            life.compare_all()?;
        }
    }
    life.finish(tally)
}

/// A short life, once for every device operation of it.
pub(crate) fn every_cut(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed);
    let config = config(&mut rng, true);
    let actions = 4 + rng.below(14);
    let script = rng.fork();
    at_every_operation(tally, |cut, tally| {
        let mut life = Life::new(script.clone(), config, cut, &mut *timeline)?;
        let start = life.whole.operations();
        let mut done = 0;
        while done < actions {
            done += 1;
            if matches!(life.act(tally)?, Done::Off) || life.whole.is_off() {
                life.recover_fully(tally)?;
                life.compare_all()?;
                // It lives on for a while.
                done = done.max(actions.saturating_sub(4));
            }
        }
        let operations = life.whole.operations().saturating_sub(start);
        life.finish(tally)?;
        Ok(operations)
    })
}
