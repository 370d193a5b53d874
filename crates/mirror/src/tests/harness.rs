//! A source and a destination connected by a socket pair, random work on the source, and
//! fingerprints of a volume's content.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::{Checksum, FileId, Lba, ManualClock, Mutex, Rng, SnapshotId, Timestamp, VolumeId};
use cairn_device::{Block, BlockMut, Device, MemoryDevice};
use cairn_format::FileKind;
use cairn_stream::Compression;
use cairn_volume::{BlockRead, FormatOptions, Image, OpenOptions, Role, Snapshot, Volume, VolumeError};

use crate::{
    Client, Destination, GiveWay, GivesUp, Helper, Lag, MirrorError, Options, Own, PeerName, Refusal,
    Relationship, Source, SourceVolumes, Successor, Threads, TransferProgress, TransferReport, Work,
};

pub(super) const BLOCKS: u64 = 8192;
const FILE_BLOCKS: u64 = 300;
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Scoped;

impl Threads for Scoped {
    fn beside<'a>(&self, helpers: Vec<Helper<'a>>, own: Own<'a>) -> std::io::Result<()> {
        std::thread::scope(|scope| {
            for helper in helpers {
                scope.spawn(helper);
            }
            own();
        });
        Ok(())
    }
}

pub(super) fn open(device: &Arc<dyn Device>, clock: &Arc<ManualClock>) -> Arc<Volume> {
    let options = OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() };
    Volume::open(device.clone(), options).expect("a volume opens")
}

pub(super) fn format(device: &Arc<dyn Device>, blocks: u64, role: Role, clock: &ManualClock) {
    let options = FormatOptions { id: VolumeId([7; 16]), blocks, role };
    Volume::format(&**device, &options, clock).expect("a volume is formatted");
}

/// All that is on a device.
pub(super) fn copy_of(device: &Arc<dyn Device>) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().length as usize];
    device.read_into(0, &mut bytes).expect("a device can be read");
    bytes
}

pub(super) struct Pair {
    pub(super) clock: Arc<ManualClock>,
    pub(super) source: Arc<Volume>,
    pub(super) destination: Arc<Volume>,
    pub(super) source_device: Arc<dyn Device>,
    pub(super) destination_device: Arc<dyn Device>,
    pub(super) registry: Arc<Source>,
    /// The destination server's registry of its own mirrors.
    pub(super) other_registry: Arc<Source>,
    /// The destination's name at the source, and the source's at the destination.
    pub(super) peers: [&'static str; 2],
    /// The own head that the destination gives up.
    pub(super) gives_up: Option<GivesUp>,
    pub(super) files: Vec<FileId>,
    pub(super) compression: Compression,
    pub(super) hold: bool,
}

/// Offers one volume as `vol0` to everyone; whose owner is known to mirrors of it by that name.
pub(super) struct One(pub(super) Arc<Volume>, pub(super) &'static str);

impl SourceVolumes for One {
    fn volume(&self, name: &str, _peer: &PeerName) -> Result<Arc<Volume>, Refusal> {
        if name == "vol0" { Ok(self.0.clone()) } else { Err(Refusal::NoSuchVolume) }
    }

    fn hand_over(
        &self,
        _volume: &str,
        _peer: &PeerName,
        _relationship: Relationship,
        _successor: &Successor,
        give: &mut GiveWay<'_>,
    ) -> Result<Snapshot, Refusal> {
        give().map_err(|error| Refusal::from(&error))
    }

    fn former(&self, _volume: &str, _peer: &PeerName, _relationship: Relationship) -> Option<PeerName> {
        PeerName::new(self.1).ok()
    }
}

/// A stream that breaks after a number of bytes read, and can spoil one of them.
pub(super) struct Cut {
    pub(super) stream: UnixStream,
    pub(super) left: u64,
    pub(super) spoil_at: Option<u64>,
    pub(super) read: u64,
    pub(super) written: u64,
    /// The answer to the acknowledgement does not come.
    pub(super) loses_answer: bool,
}

impl Read for Cut {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.stream.read(&mut buffer[..most])?;
        if let Some(at) = self.spoil_at.filter(|at| (self.read..self.read + count as u64).contains(at)) {
            buffer[(at - self.read) as usize] ^= 0x40;
        }
        self.read += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

impl Write for Cut {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // The type of a frame follows its length; 5 is an acknowledgement.
        if self.loses_answer && bytes.get(4) == Some(&5) {
            self.left = 0;
        }
        let count = self.stream.write(bytes)?;
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// Faults during one transfer.
#[derive(Default)]
pub(super) struct Trouble<'a> {
    pub(super) cut_after: Option<u64>,
    pub(super) spoil_at: Option<u64>,
    pub(super) threads: bool,
    /// Gets the blocks that have arrived.
    pub(super) arrived: Option<&'a AtomicU64>,
    /// Gets the bytes that the destination wrote to the source.
    pub(super) asked: Option<&'a AtomicU64>,
    pub(super) loses_answer: bool,
    /// Compares checksums if there is no common base.
    pub(super) compare: bool,
    /// Gets how it ended for the source.
    pub(super) heard: Option<&'a Mutex<Option<MirrorError>>>,
    /// Called on the source's thread at each record.
    pub(super) meanwhile: Option<&'a mut (dyn FnMut() + Send)>,
}

impl Pair {
    pub(super) fn new(seed: u64) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
        // Each may become the destination.
        let bytes = Volume::device_bytes(BLOCKS, Role::Destination);
        let device = || -> Arc<dyn Device> { Arc::new(MemoryDevice::new(bytes)) };
        Self::on(device(), device(), clock, seed)
    }

    pub(super) fn on(
        source_device: Arc<dyn Device>,
        destination_device: Arc<dyn Device>,
        clock: Arc<ManualClock>,
        seed: u64,
    ) -> Self {
        format(&source_device, BLOCKS, Role::Normal, &clock);
        format(&destination_device, BLOCKS, Role::Destination, &clock);
        let (source, destination) = (open(&source_device, &clock), open(&destination_device, &clock));
        let mut pair = Self {
            clock,
            source,
            destination,
            source_device,
            destination_device,
            registry: Arc::default(),
            other_registry: Arc::default(),
            peers: ["peer1", "peer2"],
            gives_up: None,
            files: Vec::new(),
            compression: if seed.is_multiple_of(2) { Compression::None } else { Compression::Zstd },
            hold: true,
        };
        pair.add_file();
        pair.add_file();
        pair
    }

    pub(super) fn add_file(&mut self) {
        let compound = self.source.compound();
        let file = compound.create(FileKind::Lun, FILE_BLOCKS * 4096).expect("there is room for a file");
        self.files.push(file);
    }

    pub(super) fn mirror(&self) -> Destination {
        let mirror =
            Destination::new(self.destination.clone(), "vol0", Relationship(0xabc), self.compression, None);
        mirror.set_options(Options { hold: self.hold, gives_up: self.gives_up, ..mirror.options() });
        mirror
    }

    pub(super) fn update(&self) -> Result<TransferReport, MirrorError> {
        self.update_with(&self.mirror(), Trouble::default())
    }

    pub(super) fn update_with(
        &self,
        mirror: &Destination,
        mut trouble: Trouble<'_>,
    ) -> Result<TransferReport, MirrorError> {
        let (near, far) = UnixStream::pair().expect("a socket pair");
        // As the server does: a spoiled length must not make both sides wait for each other.
        for end in [&near, &far] {
            end.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        }
        let cancel = AtomicBool::new(false);
        let threads: Option<&dyn Threads> = trouble.threads.then_some(&Scoped as &dyn Threads);
        std::thread::scope(|scope| {
            let meanwhile = trouble.meanwhile.take();
            let heard = trouble.heard;
            let cancel = &cancel;
            scope.spawn(move || {
                let mut meanwhile = meanwhile;
                let mut progress = |_| {
                    if let Some(meanwhile) = meanwhile.as_mut() {
                        meanwhile();
                    }
                };
                let mut work = cairn_stream::Work { cancel, progress: &mut progress, threads };
                let peer = PeerName::new(self.peers[0]).expect("a good name");
                let mut far = far;
                let volumes = One(self.source.clone(), self.peers[1]);
                let outcome = self.registry.serve_session(&mut far, &volumes, &peer, &mut work);
                if let Some(heard) = heard {
                    *heard.lock() = outcome.err();
                }
            });
            let mut near = Cut {
                stream: near,
                left: trouble.cut_after.unwrap_or(u64::MAX),
                spoil_at: trouble.spoil_at,
                read: 0,
                written: 0,
                loses_answer: trouble.loses_answer,
            };
            let mut progress = |at: &TransferProgress| {
                if let Some(arrived) = trouble.arrived {
                    arrived.store(at.blocks, Ordering::Relaxed);
                }
            };
            let mut work = Work { cancel, progress: &mut progress, threads };
            let outcome = Client::hello(&mut near).and_then(|mut client| match trouble.compare {
                true => mirror.update_comparing(&mut client, &mut work),
                false => mirror.update(&mut client, &mut work),
            });
            if let Some(asked) = trouble.asked {
                asked.store(near.written, Ordering::Relaxed);
            }
            outcome
        })
    }

    /// Talks to a source that serves on another thread.
    pub(super) fn converse<T>(
        &self,
        talk: impl FnOnce(&mut Client<'_, UnixStream>) -> Result<T, MirrorError>,
    ) -> Result<T, MirrorError> {
        self.converse_with(&One(self.source.clone(), self.peers[1]), talk)
    }

    /// The same with a server of its own around the source.
    pub(super) fn converse_with<T>(
        &self,
        volumes: &(dyn SourceVolumes + Sync),
        talk: impl FnOnce(&mut Client<'_, UnixStream>) -> Result<T, MirrorError>,
    ) -> Result<T, MirrorError> {
        let (mut near, mut far) = UnixStream::pair().expect("a socket pair");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let cancel = AtomicBool::new(false);
                let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
                let peer = PeerName::new(self.peers[0]).expect("a good name");
                let _ = self.registry.serve_session(&mut far, volumes, &peer, &mut work);
            });
            let outcome = talk(&mut Client::hello(&mut near)?);
            drop(near);
            outcome
        })
    }

    pub(super) fn refresh(&self, mirror: &Destination) -> Result<Lag, MirrorError> {
        self.converse(|client| mirror.refresh(client))
    }

    /// An update that is cancelled after a number of records.
    pub(super) fn update_cancelled_after(
        &self,
        limit: u64,
        records: &AtomicU64,
    ) -> Result<TransferReport, MirrorError> {
        let cancel = AtomicBool::new(false);
        self.converse(|client| {
            let mut progress = |at: &TransferProgress| {
                if at.blocks > 0 && records.fetch_add(1, Ordering::Relaxed) + 1 >= limit {
                    cancel.store(true, Ordering::Relaxed);
                }
            };
            let mut work = Work { cancel: &cancel, progress: &mut progress, threads: None };
            self.mirror().update(client, &mut work)
        })
    }

    pub(super) fn write(&self, file: FileId, lba: u64, count: u64, rng: &mut Rng) {
        self.try_write(file, lba, count, rng).expect("the source takes writes");
    }

    pub(super) fn try_write(
        &self,
        file: FileId,
        lba: u64,
        count: u64,
        rng: &mut Rng,
    ) -> Result<(), VolumeError> {
        let blocks: Vec<(Lba, Block)> = (lba..(lba + count).min(FILE_BLOCKS))
            .map(|number| {
                let mut block = BlockMut::zeroed();
                // Half of each block compresses.
                rng.fill(&mut block[..2048]);
                (Lba(number), block.freeze())
            })
            .collect();
        self.source.write(file, &mut blocks.into_iter())
    }

    /// One random thing that an owner or a client does on the source.
    pub(super) fn work(&self, rng: &mut Rng) {
        self.clock.advance(Duration::from_millis(rng.below(3000)));
        // A rollback takes those away that are younger than its snapshot.
        let mut there = self.files.clone();
        there.retain(|file| self.source.inode(*file).is_ok());
        let file = there[rng.below(there.len() as u64) as usize];
        let lba = rng.below(FILE_BLOCKS);
        match rng.below(20) {
            0..=10 => self.write(file, lba, 1 + rng.below(40), rng),
            11..=13 => self
                .source
                .punch(file, Lba(lba), (1 + rng.below(60)).min(FILE_BLOCKS - lba))
                .expect("the source takes punches"),
            14 => self.source.flush().expect("the source flushes"),
            15 => drop(self.source.consistency_point().expect("a consistency point")),
            16 | 17 => {
                let name = format!("s{}", rng.next());
                self.source.create_snapshot(&name).expect("a snapshot");
            }
            18 => {
                let own: Vec<SnapshotId> =
                    self.source.snapshots().iter().filter(|s| !s.held).map(|s| s.id).collect();
                if !own.is_empty() {
                    let id = own[rng.below(own.len() as u64) as usize];
                    // It may have been deleted by another thread of the test.
                    let _ = self.source.delete_snapshots(&[id]);
                }
            }
            _ => {
                let all = self.source.snapshots();
                if !all.is_empty() && rng.one_in(2) {
                    let id = all[rng.below(all.len() as u64) as usize].id;
                    let _ = self.source.rollback(id);
                }
            }
        }
    }

    pub(super) fn assert_mirrored(&self) {
        assert_clean(&self.destination);
        let shown = self.destination.status().cursor.snapshot;
        let target = self.source.image(Some(shown)).expect("the target is at the source");
        let active = self.destination.image(None).expect("an image");
        assert_eq!(content(&target), content(&active), "the active state");
        let mut compared = 0;
        for snapshot in self.destination.snapshots() {
            let Ok(there) = self.source.image(Some(snapshot.id)) else { continue };
            let here = self.destination.image(Some(snapshot.id)).expect("a listed snapshot opens");
            assert_eq!(content(&there), content(&here), "snapshot {}", snapshot.name);
            compared += 1;
        }
        assert!(compared > 0, "at least the target is compared");
        let missing = self.source.snapshots().into_iter().filter(|s| s.id <= shown);
        for snapshot in missing {
            assert!(self.destination.snapshot(snapshot.id).is_some(), "{} is missing", snapshot.name);
        }
    }

    /// Nothing was written at the source since the update.
    pub(super) fn assert_same(&self) {
        assert_clean(&self.destination);
        let there = self.source.image(None).expect("an image");
        let here = self.destination.image(None).expect("an image");
        let named = |image: &Image| {
            let since = |kind: FileKind| kind.is_since_map();
            let inodes = image.inodes().expect("inodes can be read");
            let files: Vec<FileId> = inodes.iter().filter(|i| !since(i.kind)).map(|i| i.id).collect();
            let mut content = content(image);
            content.retain(|file, _| files.contains(file));
            content
        };
        assert_eq!(named(&there), named(&here), "the active state");
    }

    /// The other direction.
    pub(super) fn swap(&mut self) {
        std::mem::swap(&mut self.source, &mut self.destination);
        std::mem::swap(&mut self.source_device, &mut self.destination_device);
        std::mem::swap(&mut self.registry, &mut self.other_registry);
        self.peers.reverse();
    }

    pub(super) fn reopen_destination(&mut self) {
        self.destination = open(&self.destination_device, &self.clock);
    }

    pub(super) fn move_home(&self) {
        while self.destination.status().redirected > 0 {
            let before = self.destination.status().redirected;
            self.destination.background(Duration::ZERO).expect("background work");
            assert!(self.destination.status().redirected < before, "blocks move home when nobody reads");
        }
    }
}

pub(super) fn assert_clean(volume: &Arc<Volume>) {
    let report = volume.check(&mut |_| {}).expect("a check runs");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Every file of an image: its length and the checksum of each block.
pub(super) type Content = BTreeMap<FileId, (u64, Vec<Checksum>)>;

pub(super) fn content(image: &Image) -> Content {
    let mut files = BTreeMap::new();
    for inode in image.inodes().expect("inodes can be read") {
        let mut reads = [BlockRead::new(Lba(0), inode.tree.length)];
        image.read(inode.id, &mut reads, true);
        let [read] = reads;
        let data = read.outcome.expect("it was waited for").expect("every block verifies").to_vec();
        let sums = data.chunks(4096).map(Checksum::of).collect();
        files.insert(inode.id, (inode.length_bytes, sums));
    }
    files
}

/// Everything that a volume shows.
pub(super) fn fingerprint(volume: &Arc<Volume>) -> BTreeMap<String, Content> {
    let mut shown: BTreeMap<String, Content> = volume
        .snapshots()
        .into_iter()
        .map(|snapshot| {
            let image = volume.image(Some(snapshot.id)).expect("a listed snapshot opens");
            (snapshot.name, content(&image))
        })
        .collect();
    shown.insert("(active)".to_owned(), content(&volume.image(None).expect("an image")));
    shown
}
