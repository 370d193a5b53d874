//! Image dumps: read in order, indexed, opened as a device and restored.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::{Checksum, ManualClock, Timestamp};
use cairn_device::MemoryDevice;
use cairn_format::SnapshotEntry;
use cairn_format::dump::{DumpHeader, DumpId, DumpLevel};
use cairn_format::stream::{
    RecordHeader, RecordKind, StreamHeader, StreamTrailer, chain_digest, root_digest, table_digest,
};
use cairn_stream::{
    Compression, Dump, DumpBytes, DumpLabel, OpenDump, PartIndex, PartReader, Plan, Work, arrange, restore,
};
use cairn_volume::{OpenOptions, Role, Volume};

use crate::scene::{look_at, open, scene};
use crate::streams::{seal_header, split, start};

const HEADS: usize = DumpHeader::SIZE + StreamHeader::SIZE;
/// A larger block space is not opened: a volume takes a bit of memory for each block of the claimed
/// size.
const SPACE_MAX: u64 = 1 << 20;

/// The bytes as they came and with all sums made right: in order, by index, as a volume, and
/// restored. The output is within the announced size, the two readers agree, and the restored
/// volume equals the mounted one.
pub(crate) fn image_dump(data: &[u8]) {
    for bytes in [data.to_vec(), sealed(data)] {
        let bytes: Arc<dyn DumpBytes> = Arc::new(bytes);
        let Ok(mut reader) = PartReader::open_file("input", &bytes) else { continue };
        let mut blocks = 0;
        let whole = loop {
            match reader.extents() {
                Ok(Some(runs)) => blocks += runs.iter().map(|(_, run)| run.len() as u64).sum::<u64>(),
                Ok(None) => break reader.lost().is_empty(),
                Err(_) => break false,
            }
        };
        assert_eq!(reader.blocks(), blocks);
        let announced = reader.head().stream.changed_blocks;
        assert!(!whole || blocks == announced, "a part that is whole has what it announced");
        let index = PartIndex::open("input", bytes.clone()).expect("its head was read");
        assert!(!whole || (index.is_whole() && !index.is_cut()), "both readers find the trailer");
        if reader.head().stream.space_blocks > SPACE_MAX {
            continue;
        }
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let mounted = OpenDump::open(vec![index], true, true, clock.clone(), 1 << 20);
        let mounted = mounted.map(|dump| look_at(&dump.volume));
        // For a record whose sum alone is wrong the mounted dump serves the blocks that the block
        // above confirms; a restore leaves it out.
        restored(&bytes, whole && mounted.is_ok_and(|sound| sound));
    }
}

/// `sound`: the part is whole, and so is the mounted volume.
fn restored(bytes: &Arc<dyn DumpBytes>, sound: bool) {
    let Ok(part) = PartReader::open_file("input", bytes) else { return };
    let blocks = part.head().stream.space_blocks;
    let Ok(dumps) = arrange(vec![part], false) else { return };
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    let cancel = AtomicBool::new(false);
    let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let options = OpenOptions { cache_bytes: 1 << 20, clock };
    let restored = restore(dumps, &*device, blocks, true, Timestamp(1), &mut work).is_ok();
    let Ok(volume) = Volume::open(device, options) else {
        assert!(!(restored && sound), "what can be mounted is restored");
        return;
    };
    assert!(restored, "what is refused leaves no volume");
    let found = look_at(&volume);
    assert!(found || !sound, "what is restored is what is mounted");
}

/// A dump with every checksum, number and digest made right, as far as its records can be
/// distinguished.
fn sealed(data: &[u8]) -> Vec<u8> {
    let mut dump: [u8; DumpHeader::SIZE] = start(data);
    let (body, checksum) = dump.split_at_mut(DumpHeader::SIZE - size_of::<Checksum>());
    checksum.copy_from_slice(&Checksum::of(body).0);
    let mut stream: [u8; StreamHeader::SIZE] = start(data.get(DumpHeader::SIZE..).unwrap_or(&[]));
    seal_header(&mut stream);
    let (Ok(mut dump), Ok(mut stream)) = (DumpHeader::parse(&dump), StreamHeader::parse(&stream)) else {
        return [&dump[..], &stream].concat();
    };
    let (records, rest) = split(data.get(HEADS..).unwrap_or(&[]));
    let mut table = std::collections::BTreeMap::new();
    for (header, payload) in records.iter().filter(|(header, _)| header.kind == RecordKind::Entries) {
        let entries =
            payload.chunks(SnapshotEntry::SIZE).filter_map(|bytes| SnapshotEntry::parse(bytes).ok()?);
        table.extend(entries.take(header.items as usize).map(|entry| (entry.id, entry)));
    }
    stream.changed_blocks = records.iter().map(|(header, _)| u64::from(header.blocks)).sum();
    stream.volume = dump.volume;
    if let Some((target, entry)) = table.last_key_value() {
        (stream.target, stream.target_digest) = (*target, root_digest(entry));
    }
    (dump.part, dump.parts, dump.blocks) = (0, 1, stream.changed_blocks);
    dump.snapshots = (table.len() as u64).max(1);
    dump.table_digest = table_digest(table.values());
    let heads = [&dump.to_bytes()[..], &stream.to_bytes()].concat();
    let mut out = heads.clone();
    let mut digest = chain_digest(Checksum::default(), &heads);
    for (sequence, (mut header, mut payload)) in (0..).zip(records) {
        if header.kind == RecordKind::Trailer {
            let (blocks, table_digest) = (stream.changed_blocks, dump.table_digest);
            let trailer = StreamTrailer { records: sequence, blocks, digest, table_digest };
            payload = trailer.to_bytes().to_vec();
        }
        header.sequence = sequence;
        header.checksum = Checksum::of(&payload);
        let bytes: [u8; RecordHeader::SIZE] = header.to_bytes_in(dump.dump);
        digest = chain_digest(digest, &bytes);
        out.extend(bytes);
        out.extend(payload);
    }
    out.extend(rest);
    if out.len() >= HEADS && rest.len() == HEADS {
        let at = out.len() - HEADS;
        out[at..].copy_from_slice(&heads);
    }
    out
}

/// Dumps of the golden volume: everything, and a snapshot against an older one, which is opened
/// without its base.
pub(crate) fn image_dump_seeds() -> Vec<Vec<u8>> {
    let volume = open(scene().volume.device()).expect("the golden volume opens");
    let snapshots = volume.snapshots();
    let (first, last) = (snapshots[0].id, snapshots[snapshots.len() - 1].id);
    let of = |base, target, compression, id| {
        let plan = Plan::against(&volume, base, target).expect("a plan");
        let label = DumpLabel {
            id: DumpId([id; 16]),
            level: DumpLevel::Level(0),
            name: "golden".to_owned(),
            created: Timestamp(1),
        };
        let cancel = AtomicBool::new(false);
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        let mut bytes = Vec::new();
        let written = Dump::new(&plan, label, 1).write_part(0, &mut bytes, compression, &mut work);
        written.expect("memory takes it");
        bytes
    };
    vec![of(None, first, Compression::Zstd, 1), of(Some(first), last, Compression::Zstd, 2)]
}
