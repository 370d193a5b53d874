//! The stream alone: into a vector and out of it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::{Lba, ManualClock, Rng, SnapshotId, Timestamp, VolumeId};
use cairn_device::{Block, BlockMut, Device, MemoryDevice};
use cairn_format::stream::{STREAM_VERSION, StreamHeader};
use cairn_format::{FileKind, FormatError};
use cairn_volume::{FormatOptions, OpenOptions, ReceivedImage, Role, Volume};

mod hostile;
mod plans;
mod threads;

use crate::{
    AbortReason, Compression, Have, Helper, Own, Plan, StreamError, Threads, Work, abort, apply, produce,
};

fn volume(role: Role) -> Arc<Volume> {
    volume_on(Arc::new(MemoryDevice::new(Volume::device_bytes(4096, role))), role)
}

fn volume_on(device: Arc<dyn Device>, role: Role) -> Arc<Volume> {
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let options = FormatOptions { id: VolumeId([1; 16]), blocks: 4096, role };
    Volume::format(&*device, &options, &*clock).expect("formatted");
    Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock }).expect("opened")
}

/// A source with some blocks, half of each compressible, and its stream.
fn stream(compression: Compression) -> (Plan, Vec<u8>) {
    let source = volume(Role::Normal);
    let file = source.compound().create(FileKind::Lun, 4096 * 700).expect("a file");
    let mut rng = Rng::new(1);
    let blocks: Vec<(Lba, Block)> = (0..600)
        .map(|lba| {
            let mut block = BlockMut::zeroed();
            rng.fill(&mut block[..2048]);
            (Lba(lba), block.freeze())
        })
        .collect();
    source.write(file, &mut blocks.into_iter()).expect("written");
    let target = source.create_snapshot("one").expect("a snapshot").id;
    let plan = Plan::new(&source, &[], target).expect("a plan");
    let mut bytes = Vec::new();
    with_work(|work| produce(&plan, &mut bytes, compression, work)).expect("produced");
    (plan, bytes)
}

pub(crate) struct Scoped;

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

/// Runs it on one thread or on two.
pub(crate) fn on_threads<T>(two: bool, run: impl FnOnce(&mut Work<'_>) -> T) -> T {
    let cancel = AtomicBool::new(false);
    let threads = two.then_some(&Scoped as &dyn Threads);
    run(&mut Work { cancel: &cancel, progress: &mut |_| {}, threads })
}

fn with_work<T>(run: impl FnOnce(&mut Work<'_>) -> T) -> T {
    on_threads(false, run)
}

fn take(bytes: &[u8], into: &Arc<Volume>) -> Result<crate::Applied, StreamError> {
    with_work(|work| apply(&mut &bytes[..], into, work))
}

#[test]
fn a_plan_knows_the_bytes_of_its_stream() {
    let (plan, bytes) = stream(Compression::None);
    assert_eq!(plan.bytes(), bytes.len() as u64);
    assert!(plan.blocks() >= 600);
    let overhead = bytes.len() as u64 - plan.blocks() * 4096;
    assert!(overhead * 100 < plan.blocks() * 4096, "{overhead} bytes of overhead");
}

#[test]
fn compressed_or_not_the_image_is_the_same() {
    let (_, plain) = stream(Compression::None);
    let (_, packed) = stream(Compression::Zstd);
    assert!(packed.len() * 10 < plain.len() * 7, "{} of {}", packed.len(), plain.len());
    for bytes in [plain, packed] {
        let into = volume(Role::Destination);
        let applied = take(&bytes, &into).expect("applied");
        assert_eq!((applied.name.as_str(), applied.bytes), ("one", bytes.len() as u64));
        assert!(into.check(&mut |_| {}).expect("checked").findings.is_empty());
        assert_eq!(Have::of(&into).len(), 1);
    }
}

#[test]
fn every_damage_and_every_cut_is_refused() {
    let (_, bytes) = stream(Compression::Zstd);
    let into = volume(Role::Destination);
    let mut rng = Rng::new(2);
    for round in 0..400 {
        let mut bytes = bytes.clone();
        // The header, the end, and anywhere else.
        let at = match round % 3 {
            0 => rng.below(400),
            1 => bytes.len() as u64 - 1 - rng.below(800),
            _ => rng.below(bytes.len() as u64),
        } as usize;
        if round % 2 == 0 {
            bytes[at] ^= 1 << rng.below(8);
        } else {
            bytes.truncate(at);
        }
        take(&bytes, &into).expect_err("damaged");
        assert_eq!(into.status().cursor.snapshot.0, 0);
    }
    take(&bytes, &into).expect("the whole one is taken");
}

#[test]
fn a_later_version_is_refused_by_its_number() {
    let (_, mut bytes) = stream(Compression::None);
    bytes[8..12].copy_from_slice(&(STREAM_VERSION + 1).to_le_bytes());
    let error = take(&bytes, &volume(Role::Destination)).expect_err("a later version");
    let later = STREAM_VERSION + 1;
    assert!(
        matches!(error, StreamError::Format(FormatError::Version { found, .. }) if found == later),
        "{error:?}"
    );
}

#[test]
fn a_writer_that_gives_up_says_why() {
    let (_, bytes) = stream(Compression::None);
    for (reason, code) in [(AbortReason::ReadFailed, 1), (AbortReason::Cancelled, 2), (AbortReason::Other, 0)]
    {
        let mut cut = bytes[..StreamHeader::SIZE].to_vec();
        abort(&mut cut, reason).expect("written");
        let error = take(&cut, &volume(Role::Destination)).expect_err("aborted");
        assert!(matches!(error, StreamError::Aborted(said) if said == reason), "{error:?}");
        assert_eq!(reason.code(), code, "other versions know it by its number");
    }
}

#[test]
fn an_image_of_another_volume_is_refused() {
    let (_, bytes) = stream(Compression::None);
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(4096, Role::Destination)));
    let options = FormatOptions { id: VolumeId([2; 16]), blocks: 4096, role: Role::Destination };
    Volume::format(&*device, &options, &*clock).expect("formatted");
    let other = Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock }).expect("opened");
    assert!(matches!(take(&bytes, &other), Err(StreamError::WrongVolume { .. })));
}

/// Sends a whole snapshot, whatever the destination has: blocks in use there are redirected.
fn send_all(source: &Arc<Volume>, into: &Arc<Volume>, target: SnapshotId) {
    let changes = source.changed_blocks(&[], target).expect("they are compared");
    let mut receiver = into.receive().expect("nothing else is received");
    for run in &changes.runs {
        let blocks = source.read_blocks(&[*run]).expect("they can be read");
        receiver.write(run.0, blocks).expect("there is room");
    }
    receiver.commit(ReceivedImage { target, snapshots: changes.snapshots }).expect("it is whole");
}

#[test]
fn a_plan_of_a_mirror_reads_what_it_holds_where_that_is_though_the_same_blocks_came_again() {
    let source = volume(Role::Normal);
    let file = source.compound().create(FileKind::Lun, 4096 * 300).expect("a file");
    let write = |salt: u64| {
        let block = |lba: u64| {
            let mut block = BlockMut::zeroed();
            block[..8].copy_from_slice(&(salt * 1000 + lba).to_le_bytes());
            (Lba(lba), block.freeze())
        };
        let blocks: Vec<(Lba, Block)> = (0..300).map(block).collect();
        source.write(file, &mut blocks.into_iter()).expect("there is room");
    };
    write(1);
    let first = source.create_snapshot("first").expect("a snapshot");
    let same = source.create_snapshot("same").expect("a snapshot");
    write(2);
    let newer = source.create_snapshot("newer").expect("a snapshot");
    let mirror = volume(Role::Destination);
    send_all(&source, &mirror, newer.id);
    let held = mirror.image(Some(same.id)).expect("an export holds it");
    // A restored state descends from no known snapshot any more: it is sent again, and equals the
    // blocks that are there already.
    let before = source.rollback(first.id).expect("it rolls back");
    source.delete_snapshots(&[first.id]).expect("it is deleted");
    let back = source.create_snapshot("back").expect("a snapshot");
    send_all(&source, &mirror, back.id);
    assert_eq!(mirror.status().redirected, 0, "{:?}", mirror.status());
    let plan = Plan::against(&mirror, None, same.id).expect("a plan");
    // Other images take the numbers, and the slots of the redirect area.
    source.delete_snapshots(&[same.id, newer.id, before.id, back.id]).expect("they are deleted");
    for round in 3..40 {
        write(round);
        let next = source.create_snapshot(&format!("s{round}")).expect("a snapshot");
        send_all(&source, &mirror, next.id);
        source.delete_snapshots(&[next.id]).expect("it is deleted");
    }
    let mut bytes = Vec::new();
    with_work(|work| produce(&plan, &mut bytes, Compression::None, work)).expect("produced");
    drop((plan, held));
    let into = volume(Role::Destination);
    take(&bytes, &into).expect("every block is the one that it was");
    assert!(into.check(&mut |_| {}).expect("checked").findings.is_empty());
}
