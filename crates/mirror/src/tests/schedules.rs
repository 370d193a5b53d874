//! Schedules of threads, explored: `cargo test -p cairn-mirror --features shuttle --lib schedules`.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_base::explored::{Condvar, Mutex, explore};
use cairn_base::{FileId, Lba, ManualClock, SnapshotId, Timestamp, VolumeId};
use cairn_device::{Block, BlockMut, Device, DeviceError, Extent, Geometry, MemoryDevice, Operation};
use cairn_format::{FileKind, Role};
use cairn_volume::{BlockRead, FormatOptions, OpenOptions, Volume};
use shuttle::thread;

use crate::message::{Stance, Update};
use crate::relationship::prefix;
use crate::source::own_snapshots;
use crate::*;

/// Schedules of each scenario and kind of scheduler.
const SCHEDULES: usize = 200;
const LENGTH: u64 = 16;
const RELATIONSHIP: Relationship = Relationship(0xabc);

/// A slow device.
struct Slow(MemoryDevice);

impl Device for Slow {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        thread::yield_now();
        self.0.run(batch);
        thread::yield_now();
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.0.extents(offset, length, limit)
    }
}

/// The smallest volume.
fn volume(role: Role) -> Arc<Volume> {
    let blocks = 1024;
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let device = Slow(MemoryDevice::new(Volume::device_bytes(blocks, Role::Destination)));
    let options = FormatOptions { id: VolumeId([7; 16]), blocks, role };
    Volume::format(&device, &options, &*clock).expect("it is formatted");
    Volume::open(Arc::new(device), OpenOptions { cache_bytes: 1 << 20, clock }).expect("it opens")
}

fn stamped(version: u64) -> Block {
    let mut bytes = BlockMut::zeroed();
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes.freeze()
}

/// One version after the other, each of its blocks separately.
fn write(volume: &Arc<Volume>, lun: FileId, version: u64) {
    for lba in 0..LENGTH {
        volume.write(lun, &mut std::iter::once((Lba(lba), stamped(version)))).expect("there is room");
    }
}

/// The versions of all blocks in the image that a volume shows.
fn shown(volume: &Arc<Volume>, lun: FileId) -> Vec<u64> {
    let image = volume.image(None).expect("there is an image");
    let mut reads = [BlockRead::new(Lba(0), LENGTH)];
    image.read(lun, &mut reads, true);
    let [read] = reads;
    let bytes = read.outcome.expect("it has an outcome").expect("it is read").to_vec();
    let version = |block: &[u8]| block.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    bytes.chunks(4096).map(version).collect()
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    /// Data in flight, and whether an end is closed.
    state: Mutex<(VecDeque<u8>, bool)>,
    moved: Condvar,
}

/// One end of a connection; both are closed when the first is dropped.
struct End {
    from: Arc<Pipe>,
    to: Arc<Pipe>,
}

fn connection() -> (End, End) {
    let (one, other) = (Arc::<Pipe>::default(), Arc::<Pipe>::default());
    (End { from: one.clone(), to: other.clone() }, End { from: other, to: one })
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut state = self.from.state.lock();
        while state.0.is_empty() && !state.1 {
            self.from.moved.wait(&mut state);
        }
        state.0.read(buffer)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut state = self.to.state.lock();
        if state.1 {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        state.0.extend(bytes);
        self.to.moved.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        for pipe in [&self.from, &self.to] {
            pipe.state.lock().1 = true;
            pipe.moved.notify_all();
        }
    }
}

/// Offers one volume to every peer. A peer that waits for a change looks again at once.
struct One(Arc<Volume>);

impl SourceVolumes for One {
    fn volume(&self, _: &str, _: &PeerName) -> Result<Arc<Volume>, Refusal> {
        Ok(self.0.clone())
    }

    fn rest(&self, _: Duration) -> bool {
        thread::yield_now();
        true
    }
}

fn peer() -> PeerName {
    PeerName::new("peer").expect("a good name")
}

/// A destination follows a source that is written to, while another thread looks at its image: each
/// image is of one moment of the source, none is older than the previous one, and the last one has
/// everything.
#[test]
fn mirror_that_follows_shows_moments_of_its_source_in_order_in_any_schedule() {
    const VERSIONS: u64 = 4;
    explore(SCHEDULES, || {
        let (source, destination) = (volume(Role::Normal), volume(Role::Destination));
        let lun = source.compound().create(FileKind::Lun, LENGTH * 4096).expect("there is room");
        write(&source, lun, 1);
        let (mut near, mut far) = connection();
        let offered = source.clone();
        let server = thread::spawn(move || {
            let cancel = AtomicBool::new(false);
            let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
            let _ = Source::new().serve_session(&mut far, &One(offered), &peer(), &mut work);
        });
        let mirror =
            Arc::new(Destination::new(destination.clone(), "vol0", RELATIONSHIP, Compression::None, None));
        let cancel = AtomicBool::new(false);
        let mut client = Client::hello(&mut near).expect("it is greeted");
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        mirror.update(&mut client, &mut work).expect("a baseline");
        let writing = source.clone();
        let writer = thread::spawn(move || {
            for version in 2..=VERSIONS {
                write(&writing, lun, version);
                writing.flush().expect("it flushes");
            }
        });
        let looked = destination.clone();
        let looker = thread::spawn(move || {
            let mut least = vec![1; LENGTH as usize];
            for _ in 0..6 {
                let seen = shown(&looked, lun);
                assert!(seen.is_sorted_by(|a, b| a >= b), "earlier writes are in it: {seen:?}");
                assert!(seen.iter().zip(&least).all(|(seen, least)| seen >= least), "{least:?} {seen:?}");
                least = seen;
                thread::yield_now();
            }
        });
        for _ in 0..2 {
            let pace = Pace { step: Duration::ZERO, wait: Duration::ZERO };
            mirror.follow(&mut client, pace, &mut work).expect("a step, or nothing to do");
        }
        writer.join().expect("it ends");
        looker.join().expect("it ends");
        mirror.update(&mut client, &mut work).expect("an update");
        assert_eq!(shown(&destination, lun), [VERSIONS; LENGTH as usize]);
        drop(near);
        server.join().expect("it ends");
        for volume in [&source, &destination] {
            assert_eq!(volume.check(&mut |_| {}).expect("checking is possible").findings, []);
        }
    });
}

/// Two sessions of one mirror, the earlier of which has ended for the destination: whatever it
/// still does, the source holds exactly the snapshots of the later one.
#[test]
fn later_session_of_a_mirror_has_its_base_in_any_schedule() {
    explore(SCHEDULES, || {
        let volume = volume(Role::Normal);
        let lun = volume.compound().create(FileKind::Lun, LENGTH * 4096).expect("there is room");
        write(&volume, lun, 1);
        let source = Arc::new(Source::new());
        let prefix = prefix(&peer(), RELATIONSHIP);
        let order = Arc::new(Mutex::new(Vec::new()));
        let sessions: Vec<_> = (0..2)
            .map(|which| {
                let (source, volume, prefix, order) =
                    (source.clone(), volume.clone(), prefix.clone(), order.clone());
                thread::spawn(move || {
                    let claim = {
                        let mut order = order.lock();
                        order.push(which);
                        source.claim((volume.id(), prefix.clone()))
                    };
                    let update = Update {
                        volume: "vol0".to_owned(),
                        id: volume.id(),
                        relationship: RELATIONSHIP,
                        blocks: 1024,
                        compression: Compression::None,
                        hold: true,
                        compare: false,
                        step: false,
                        stance: Stance::Follows,
                        rpo_ms: None,
                        claims: 0,
                        shown: SnapshotId(0),
                        keep: Vec::new(),
                        have: Vec::new(),
                    };
                    let prepared = match source.prepare(&volume, &update, &prefix, None, &claim) {
                        Ok(prepared) => prepared.expect("there is something to send"),
                        Err(Refusal::Superseded) => return None,
                        Err(error) => panic!("{error:?}"),
                    };
                    thread::yield_now();
                    match source.advance(&volume, &prefix, &prepared.target, (true, &[]), &claim) {
                        Ok(()) => Some(prepared.target.id),
                        Err(MirrorError::Refused(Refusal::Superseded)) => None,
                        Err(error) => panic!("{error:?}"),
                    }
                })
            })
            .collect();
        write(&volume, lun, 2);
        let got: Vec<_> = sessions.into_iter().map(|session| session.join().expect("it ends")).collect();
        let last = *order.lock().last().expect("two came");
        let held: Vec<_> = own_snapshots(&volume, &prefix)
            .into_iter()
            .map(|(snapshot, _)| (snapshot.held, Some(snapshot.id)))
            .collect();
        assert!(got[last].is_some(), "nobody takes over from the later one");
        assert_eq!(held, [(true, got[last])], "{got:?}");
    });
}
