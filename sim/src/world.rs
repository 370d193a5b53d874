//! One volume on a fault device, the model that it must match, and the actions that clients and
//! owners take.
//!
//! The actions are in `actions`, and the handling of power cuts is in `recovery`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use cairn_base::{Clock, FileId, Generation, Lba, LogId, ManualClock, Rng, SnapshotId, Timestamp, VolumeId};
use cairn_device::FaultDevice;
use cairn_format::FileKind;
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::{
    BlockRead, CloneDevice, FormatOptions, Image, Kept, NewLog, OpenOptions, ROOT_DIRECTORY, Role, Snapshot,
    Volume, VolumeError,
};

use parking_lot::Mutex;

use crate::content::{Seen, Tag};
use crate::model::{Frozen, Model};
use crate::tally::Tally;
use crate::timeline::{Standing, Timeline};
use crate::waist::{Eye, Waist, parts};

/// Block cache of a simulated volume: small, so that much is read from the device.
const CACHE_BYTES: u64 = 128 << 10;

/// The parameters of a volume's life.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Blocks of block space at format.
    pub blocks: u64,
    /// Blocks that it may grow to.
    pub blocks_max: u64,
    /// Most files at a time.
    pub files: usize,
    /// Blocks of the longest file; may be more than the volume has.
    pub file_blocks: u64,
    /// Most snapshots at a time.
    pub snapshots: usize,
    /// The intent log begins on a device of its own; otherwise in the label area. It moves in the
    /// course of a life.
    pub log_device: bool,
    /// The power fails about once in this many actions; 0 for never.
    pub cut_every: u64,
}

/// A snapshot as it must be.
#[derive(Debug, Clone)]
pub struct SnapshotModel {
    /// Its name.
    pub name: String,
    /// It may not be deleted.
    pub held: bool,
    /// Its content.
    pub content: Arc<Frozen>,
}

/// An action that a power cut may have caught half way.
#[derive(Debug, Clone)]
pub enum Pending {
    /// A new snapshot.
    Snapshot(String),
    /// Deletion, of all or none.
    Delete(Vec<SnapshotId>),
    /// Another name.
    Rename(SnapshotId, String),
    /// Hold or release.
    Hold(SnapshotId, bool),
    /// Back to a snapshot; the previous content is kept as a new one.
    Rollback(SnapshotId),
    /// The same, done and known.
    RolledBack,
    /// More block space.
    Grow(u64),
}

/// The owner's task number.
pub(crate) const OWNER: usize = 0;

/// A volume and its model.
pub struct World {
    pub(crate) side: &'static str,
    pub(crate) rng: Rng,
    pub(crate) fault_rng: Rng,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) config: Config,
    pub(crate) device: Arc<FaultDevice>,
    /// The observer of the device while the volume is open, and the log's part of it as the volume
    /// sees it.
    pub(crate) eye: Option<Arc<Mutex<Eye>>>,
    pub(crate) log: Option<Arc<Waist>>,
    pub(crate) volume: Option<Arc<Volume>>,
    pub(crate) model: Model,
    pub(crate) snapshots: BTreeMap<SnapshotId, SnapshotModel>,
    pub(crate) blocks: u64,
    /// The operations in progress, by task.
    pub(crate) pending: BTreeMap<usize, Pending>,
    /// A mirror's source makes and deletes snapshots of its own here.
    pub(crate) mirrored: bool,
    /// The snapshot that it is a clone of.
    pub(crate) origin: Option<Origin>,
    /// Open images, with the content that they must show as long as they are open.
    pub(crate) held: Vec<(Image, Arc<Frozen>)>,
    pub(crate) next_tag: u64,
    pub(crate) next_name: u64,
    /// Blocks that writes could take when no operation was in progress.
    pub(crate) free_before: u64,
    /// Power cuts so far.
    pub cuts: u64,
    /// Refusals for lack of space so far.
    pub full: u64,
}

/// The snapshot that a clone was made of.
pub(crate) struct Origin {
    parent: Arc<Volume>,
    snapshot: SnapshotId,
    /// The parent keeps it while this lives; a drill's clone has none.
    _kept: Option<Kept>,
    /// The clone keeps it always.
    _own: Option<Kept>,
}

/// A name that no log had before.
pub(crate) fn log_id(rng: &mut Rng) -> LogId {
    let mut bytes = [1; 16];
    rng.fill(&mut bytes);
    LogId(bytes)
}

/// The id of every simulated volume: a mirror has its source's.
pub const VOLUME: VolumeId = VolumeId(*b"simulated volume");

/// The start of simulated time: late enough for a wall clock that is behind.
const EPOCH: Timestamp = Timestamp(1_700_000_000_000_000_000);
/// A wall clock is wrong by this at most, in milliseconds: an hour.
const WRONG_MS_MAX: u64 = 3_600_000;

/// Sets the wall clock of a server: before or after the time that has passed, by up to an hour.
pub(crate) fn set_clock(clock: &ManualClock, rng: &mut Rng) {
    let behind = clock.monotonic().saturating_sub(Duration::from_millis(WRONG_MS_MAX));
    let shown = behind + Duration::from_millis(rng.below(2 * WRONG_MS_MAX));
    clock.set(Timestamp(shown.as_nanos() as u64));
}

impl World {
    /// Formats and opens a volume. Each server has a clock of its own, which is wrong, and is
    /// sometimes set.
    pub fn new(side: &'static str, rng: &mut Rng, config: Config, role: Role) -> Result<Self> {
        let clock = Arc::new(ManualClock::new(EPOCH));
        set_clock(&clock, rng);
        let bytes = Volume::device_bytes(config.blocks_max + 1024, role);
        let device = Arc::new(FaultDevice::new(bytes + Volume::LOG_DEVICE_BYTES_MIN));
        let options = FormatOptions { id: VOLUME, blocks: config.blocks, role };
        let [main, log] = parts(&device);
        if config.log_device {
            let log = NewLog { device: &log, id: log_id(rng) };
            Volume::format_with_log(&main, &log, &options, &*clock)?;
        } else {
            Volume::format(&main, &options, &*clock)?;
        }
        let mut world = Self {
            side,
            rng: rng.fork(),
            fault_rng: rng.fork(),
            clock,
            config,
            device,
            eye: None,
            log: None,
            volume: None,
            model: Model::default(),
            snapshots: BTreeMap::new(),
            blocks: config.blocks,
            pending: BTreeMap::new(),
            mirrored: false,
            origin: None,
            held: Vec::new(),
            next_tag: 0,
            next_name: 0,
            free_before: 0,
            cuts: 0,
            full: 0,
        };
        world.volume = Some(world.open()?);
        Ok(world)
    }

    /// A volume that takes no changes because inodes can't be read counts as one that does not
    /// open.
    pub(crate) fn open(&mut self) -> Result<Arc<Volume>, VolumeError> {
        let volume = self.open_as_it_is()?;
        match volume.status().latched {
            Some(reason @ VolumeError::InodesLost(_)) => Err(reason),
            _ => Ok(volume),
        }
    }

    pub(crate) fn open_as_it_is(&mut self) -> Result<Arc<Volume>, VolumeError> {
        let clock: Arc<dyn Clock> = self.clock.clone();
        let (eye, [device, log]) = Eye::on(&self.device, self.fault_rng.fork());
        self.eye = Some(eye);
        self.log = Some(log.clone());
        let options = OpenOptions { cache_bytes: CACHE_BYTES, clock };
        let Some(origin) = &mut self.origin else {
            return Volume::open_with_log(device, &[log], options);
        };
        let device = Arc::new(CloneDevice::new(&origin.parent, origin.snapshot, device)?);
        let volume = Volume::open_with_log(device, &[log], options)?;
        origin._own = Some(volume.keep_snapshot(origin.snapshot)?);
        Ok(volume)
    }

    /// A new clone of a snapshot of `parent`, kept there.
    pub(crate) fn clone_of(parent: &World, snapshot: SnapshotId, rng: &mut Rng) -> Result<Self> {
        let base = parent.snapshots[&snapshot].clone();
        let volume = parent.volume();
        let blocks = parent.blocks;
        let config = Config { blocks, blocks_max: blocks + 256, snapshots: 4, cut_every: 0, ..parent.config };
        let bytes = Volume::device_bytes(config.blocks_max + 1024, Role::Normal);
        let device = FaultDevice::new(bytes + Volume::LOG_DEVICE_BYTES_MIN);
        let mut world = parent.fork(device);
        (world.side, world.rng, world.fault_rng, world.config) = ("cln", rng.fork(), rng.fork(), config);
        world.next_name = 1 << 21;
        world.full = 0;
        let clock: Arc<dyn Clock> = world.clock.clone();
        let [main, _] = parts(&world.device);
        let made = Arc::new(CloneDevice::new(&volume, snapshot, Arc::new(main))?);
        made.make(OpenOptions { cache_bytes: CACHE_BYTES, clock })?;
        drop(made);
        world.stands_on(volume, snapshot)?;
        world.volume = Some(world.open()?);
        world.model = Model::of(&base.content, world.volume().status().generation);
        world.snapshots = BTreeMap::from([(snapshot, SnapshotModel { held: true, ..base })]);
        Ok(world)
    }

    /// The parent volume of a clone has been reopened.
    pub(crate) fn stands_on(&mut self, parent: Arc<Volume>, snapshot: SnapshotId) -> Result<()> {
        let kept = Some(parent.keep_snapshot(snapshot)?);
        self.origin = Some(Origin { parent, snapshot, _kept: kept, _own: None });
        Ok(())
    }

    /// The parent no longer keeps this clone's base.
    pub(crate) fn let_base_go(&mut self) {
        if let Some(origin) = &mut self.origin {
            origin._kept = None;
        }
    }

    /// The server of a clone is gone, and the parent is closed here.
    pub(crate) fn close_parent(&mut self) {
        self.volume = None;
        self.origin = None;
    }

    /// Owners leave a mirror's own snapshots alone, and the base of a clone.
    pub(crate) fn is_left_alone(&self, id: SnapshotId, snapshot: &SnapshotModel) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.snapshot == id)
            || self.mirrored && snapshot.name.starts_with(MIRROR_PREFIX)
    }

    /// Keeps every moment at which the power may go from now on, or none.
    pub(crate) fn watch(&self, keeps: bool) {
        if let Some(eye) = &self.eye {
            eye.lock().keep(keeps);
        }
    }

    /// The power went, and is back.
    pub(crate) fn power_cycle(&mut self) {
        self.device = Arc::new(self.device.power_cycle(&mut self.fault_rng));
    }

    /// The same volume with the same past on another device, with a different future. It is not
    /// open yet.
    pub(crate) fn fork(&self, device: FaultDevice) -> World {
        World {
            side: self.side,
            rng: self.rng.clone(),
            fault_rng: self.fault_rng.clone(),
            clock: Arc::new(ManualClock::new(self.clock.now())),
            config: self.config,
            device: Arc::new(device),
            eye: None,
            log: None,
            volume: None,
            model: self.model.clone(),
            snapshots: self.snapshots.clone(),
            blocks: self.blocks,
            pending: self.pending.clone(),
            mirrored: self.mirrored,
            origin: None,
            held: Vec::new(),
            next_tag: self.next_tag,
            next_name: self.next_name,
            free_before: self.free_before,
            cuts: 0,
            full: 0,
        }
    }

    /// Learns which snapshots a mirror made or released: each shows the content of its generation.
    pub(crate) fn adopt(&mut self) {
        if !self.mirrored {
            return;
        }
        let Some(volume) = &self.volume else { return };
        let there: BTreeMap<SnapshotId, Snapshot> = volume
            .snapshots()
            .into_iter()
            .filter(|snapshot| snapshot.name.starts_with(MIRROR_PREFIX))
            .map(|snapshot| (snapshot.id, snapshot))
            .collect();
        self.snapshots.retain(|id, s| !s.name.starts_with(MIRROR_PREFIX) || there.contains_key(id));
        for (id, snapshot) in there {
            let model = &self.model;
            let known = self.snapshots.entry(id).or_insert_with(|| SnapshotModel {
                name: snapshot.name,
                held: snapshot.held,
                content: model.frozen_at(snapshot.generation),
            });
            known.held = snapshot.held;
        }
    }

    /// Adds the counts of this world.
    pub fn count(&self, tally: &mut Tally) {
        tally.operations += self.device.operations();
        tally.cuts += self.cuts;
        tally.full += self.full;
    }

    pub(crate) fn volume(&self) -> Arc<Volume> {
        self.volume.clone().expect("a volume is open between actions")
    }

    /// The generation that changes of now go into.
    pub(crate) fn open_generation(&self) -> Generation {
        self.volume().open_generation()
    }

    pub(crate) fn standing(&self) -> Standing {
        let operations = self.device.operations();
        match &self.volume {
            None => Standing { operations, ..Standing::default() },
            Some(volume) => {
                let status = volume.status();
                Standing { operations, generation: status.generation.0, free: status.free }
            }
        }
    }

    /// The same while tasks are in progress, which may hold locks that a status needs.
    pub(crate) fn standing_in_round(&self) -> Standing {
        let generation = self.volume.as_ref().map_or(0, |volume| volume.open_generation().0 - 1);
        Standing { operations: self.device.operations(), generation, free: self.free_before }
    }

    pub(crate) fn note(&self, timeline: &mut Timeline, what: &str) {
        timeline.note(self.side, self.standing(), what);
    }

    pub(crate) fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        // Sides of a mirror never write the same content by chance.
        Tag(self.next_tag << 8 | u64::from(self.side.as_bytes()[0]))
    }

    pub(crate) fn name(&mut self) -> String {
        self.next_name += 1;
        format!("s{}", self.next_name)
    }

    pub(crate) fn pick_file(&mut self) -> Option<FileId> {
        let files: Vec<FileId> = self.model.files().map(|(id, _)| id).collect();
        (!files.is_empty()).then(|| files[self.rng.below(files.len() as u64) as usize])
    }

    /// A file that clients write to.
    pub(crate) fn pick_lun(&mut self) -> Option<FileId> {
        let files: Vec<FileId> =
            self.model.files().map(|(id, _)| id).filter(|id| *id != ROOT_DIRECTORY).collect();
        (!files.is_empty()).then(|| files[self.rng.below(files.len() as u64) as usize])
    }

    pub(crate) fn pick_snapshot(&mut self) -> Option<SnapshotId> {
        let own = self.snapshots.iter().filter(|(id, s)| !self.is_left_alone(**id, s));
        let ids: Vec<SnapshotId> = own.map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| ids[self.rng.below(ids.len() as u64) as usize])
    }

    pub(crate) fn advance(&mut self) {
        let step = self.rng.below(4000);
        self.clock.advance(Duration::from_millis(step));
        if self.rng.one_in(16) {
            set_clock(&self.clock, &mut self.rng);
        }
    }

    /// Compares the active state with the model, all of it or one file.
    pub fn compare_active(&mut self, only: Option<FileId>) -> Result<()> {
        let volume = self.volume();
        for (id, file) in self.model.files().filter(|(id, _)| only.is_none_or(|only| only == *id)) {
            let inode = volume.inode(id)?;
            ensure!(inode.tree.length == file.length().max(1), "{id:?} has length {}", inode.tree.length);
            let seen = read_active(&volume, id, 0, file.length())?;
            for (lba, seen) in (0..).zip(seen) {
                let expected = file.tag(lba);
                ensure!(seen == Some(expected), "{id:?} block {lba} reads {seen:?}, expected {expected:?}");
            }
        }
        Ok(())
    }

    /// Compares a snapshot with its expected content.
    pub fn compare_snapshot(&self, id: SnapshotId) -> Result<()> {
        let image = self.volume().image(Some(id))?;
        compare_image(&image, &self.snapshots[&id].content)
            .map_err(|error| error.context(format!("in snapshot {id} ({})", self.snapshots[&id].name)))
    }

    /// Compares everything that exists.
    pub fn compare_all(&mut self) -> Result<()> {
        self.compare_active(None)?;
        let listed: BTreeMap<SnapshotId, (String, bool)> =
            self.volume().snapshots().into_iter().map(|s| (s.id, (s.name, s.held))).collect();
        let expected: BTreeMap<SnapshotId, (String, bool)> =
            self.snapshots.iter().map(|(id, s)| (*id, (s.name.clone(), s.held))).collect();
        ensure!(listed == expected, "snapshots are {listed:?}, expected {expected:?}");
        for id in self.snapshots.keys() {
            self.compare_snapshot(*id)?;
        }
        self.compare_held()
    }

    /// Open images show their earlier content.
    pub fn compare_held(&self) -> Result<()> {
        for (image, content) in &self.held {
            compare_image(image, content).map_err(|error| error.context("in an image that is held open"))?;
        }
        Ok(())
    }

    /// `check` must find nothing.
    pub fn check(&mut self) -> Result<()> {
        let volume = self.volume();
        let report = volume.check(&mut |_| {})?;
        if volume.status().role == Role::Normal {
            self.model.committed(volume.status().generation);
        }
        if let Some(finding) = report.findings.first() {
            bail!("check finds {} things, first: {finding} ({finding:?})", report.findings.len());
        }
        Ok(())
    }
}

/// Blocks of a file of the active state, as they read.
pub(crate) fn read_active(volume: &Arc<Volume>, file: FileId, lba: u64, count: u64) -> Result<Seen> {
    let mut reads = requests(lba, count);
    volume.read(file, &mut reads, false);
    volume.read(file, &mut reads, true);
    tags(reads)
}

/// Blocks of a file of an image, as they read.
pub(crate) fn read_image(image: &Image, file: FileId, count: u64) -> Result<Seen> {
    let mut reads = requests(0, count);
    image.read(file, &mut reads, true);
    tags(reads)
}

fn requests(lba: u64, count: u64) -> Vec<BlockRead> {
    (lba..lba + count).step_by(32).map(|at| BlockRead::new(Lba(at), 32.min(lba + count - at))).collect()
}

fn tags(reads: Vec<BlockRead>) -> Result<Seen> {
    let mut seen = Vec::new();
    for read in reads {
        let Some(outcome) = read.outcome else { bail!("a read that may wait has no outcome") };
        let bytes = outcome?.to_vec();
        ensure!(
            bytes.len() as u64 == read.count * 4096,
            "a read of {} blocks gave {} bytes",
            read.count,
            bytes.len()
        );
        seen.extend(bytes.chunks_exact(4096).map(Tag::of));
    }
    Ok(seen)
}

/// Clients and owners see it; other files are those that mirrors keep for themselves.
pub(crate) fn is_of_owners(kind: FileKind) -> bool {
    matches!(kind, FileKind::Lun | FileKind::Directory)
}

/// Compares an image with its expected content: files, lengths, every block.
pub fn compare_image(image: &Image, expected: &Frozen) -> Result<()> {
    let found: BTreeMap<FileId, u64> = image
        .inodes()?
        .into_iter()
        .filter(|inode| !inode.removed && is_of_owners(inode.kind))
        .map(|inode| (inode.id, inode.tree.length))
        .collect();
    let lengths: BTreeMap<FileId, u64> = expected.files.iter().map(|(id, file)| (*id, file.blocks)).collect();
    ensure!(found == lengths, "files and their blocks are {found:?}, expected {lengths:?}");
    for (id, file) in &expected.files {
        for (lba, seen) in (0..).zip(read_image(image, *id, file.blocks)?) {
            let expected = file.tag(lba);
            ensure!(seen == Some(expected), "{id:?} block {lba} reads {seen:?}, expected {expected:?}");
        }
    }
    Ok(())
}
