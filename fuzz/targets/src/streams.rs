//! The image stream: its structs, its reader, and streams that are applied to a destination.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use cairn_base::{Checksum, SnapshotId, Timestamp, Vbn, VolumeId, crc32c};
use cairn_format::SnapshotEntry;
use cairn_format::stream::{
    Encoding, RecordHeader, RecordKind, StreamHeader, StreamKind, StreamRun, StreamTrailer, chain_digest,
    parse_ids, root_digest, table_digest,
};
use cairn_stream::{Consumer, Record};
use cairn_volume::Volume;

use crate::blocks::snapshot;
use crate::scene::{Original, look_at, open, scene, take, work_on};

/// The first bytes of the input as an array; zeroes where it is shorter.
pub(crate) fn start<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let length = data.len().min(N);
    bytes[..length].copy_from_slice(&data[..length]);
    bytes
}

/// The place of the CRC in a record's header: the four bytes whose zeroing gives the sum that they
/// hold.
fn crc_place() -> usize {
    static PLACE: OnceLock<usize> = OnceLock::new();
    *PLACE.get_or_init(|| {
        let bytes = record(RecordKind::Gone, Encoding::Plain, 2, 0, 16).to_bytes();
        let is_place = |place: &usize| {
            let mut without = bytes;
            without[*place..place + 4].fill(0);
            crc32c(&without).to_le_bytes() == bytes[*place..place + 4]
        };
        (0..RecordHeader::SIZE - 4).find(is_place).expect("the header of a record carries its CRC")
    })
}

pub(crate) fn seal_header(bytes: &mut [u8; StreamHeader::SIZE]) {
    let (body, checksum) = bytes.split_at_mut(StreamHeader::SIZE - size_of::<Checksum>());
    checksum.copy_from_slice(&Checksum::of(body).0);
}

fn seal_record(bytes: &mut [u8; RecordHeader::SIZE]) {
    let place = crc_place();
    bytes[place..place + 4].fill(0);
    let crc = crc32c(bytes).to_le_bytes();
    bytes[place..place + 4].copy_from_slice(&crc);
}

pub(crate) fn structs(data: &[u8]) {
    let mut header: [u8; StreamHeader::SIZE] = start(data);
    let mut record: [u8; RecordHeader::SIZE] = start(data);
    for sealed in [false, true] {
        if sealed {
            seal_header(&mut header);
            seal_record(&mut record);
        }
        if let Ok(read) = StreamHeader::parse(&header) {
            assert!(read.to_bytes() == header, "a header was accepted that is written in another way");
        }
        if let Ok(read) = RecordHeader::parse(&record) {
            assert!(read.to_bytes() == record, "a record was accepted that is written in another way");
            if let Ok(runs) = StreamRun::parse_all(&read, data.get(RecordHeader::SIZE..).unwrap_or(&[])) {
                assert_eq!(runs.iter().map(|(_, count)| count).sum::<u32>(), read.blocks);
            }
        }
    }
    if let Ok(trailer) = StreamTrailer::parse(data) {
        assert!(trailer.to_bytes()[..] == *data, "a trailer was accepted that is written in another way");
    }
    if let Ok(Some(entry)) = SnapshotEntry::parse(data) {
        assert!(entry.to_bytes()[..] == *data, "a snapshot was accepted that is written in another way");
    }
    let ids: Vec<u8> = parse_ids(data).flat_map(|id| id.0.to_le_bytes()).collect();
    assert!(data.starts_with(&ids), "ids are written as they were read");
}

fn record(kind: RecordKind, encoding: Encoding, items: u32, blocks: u32, payload: u32) -> RecordHeader {
    RecordHeader { kind, encoding, sequence: 5, items, blocks, payload, checksum: Checksum([1; 16]) }
}

pub(crate) fn struct_seeds() -> Vec<Vec<u8>> {
    let header = StreamHeader {
        volume: VolumeId([7; 16]),
        kind: StreamKind::Incremental,
        base: SnapshotId(4),
        base_digest: root_digest(&snapshot(4)),
        target: SnapshotId(6),
        target_digest: root_digest(&snapshot(6)),
        space_blocks: 8192,
        changed_blocks: 77,
        created: Timestamp(1_700_000_000_000_000_000),
    };
    let runs = [StreamRun::new(Vbn(7), 1), StreamRun::new(Vbn(9), 2)];
    let runs: Vec<u8> = runs.iter().flat_map(|run| run.bytes().to_vec()).collect();
    let extents = record(RecordKind::Extents, Encoding::Plain, 2, 3, runs.len() as u32 + 3 * 4096);
    let trailer =
        StreamTrailer { records: 9, blocks: 77, digest: Checksum([2; 16]), table_digest: Checksum([3; 16]) };
    vec![
        header.to_bytes().to_vec(),
        [extents.to_bytes().to_vec(), runs].concat(),
        record(RecordKind::Abort, Encoding::Plain, 1, 0, 0).to_bytes().to_vec(),
        trailer.to_bytes().to_vec(),
        snapshot(4).to_bytes().to_vec(),
    ]
}

/// A stream with every checksum, number and digest in it made right, as far as its records can be
/// distinguished. `here` are the reader's snapshots.
pub(crate) fn sealed(data: &[u8], here: &[SnapshotEntry]) -> Vec<u8> {
    let mut header: [u8; StreamHeader::SIZE] = start(data);
    seal_header(&mut header);
    let Ok(mut stream) = StreamHeader::parse(&header) else { return header.to_vec() };
    let (records, rest) = split(data.get(StreamHeader::SIZE..).unwrap_or(&[]));
    let mut table: BTreeMap<SnapshotId, SnapshotEntry> =
        here.iter().map(|entry| (entry.id, entry.clone())).collect();
    for (header, payload) in &records {
        match header.kind {
            RecordKind::Entries => {
                let entries = payload
                    .chunks(SnapshotEntry::SIZE)
                    .filter_map(|bytes| SnapshotEntry::parse(bytes).ok()?);
                table.extend(entries.map(|entry| (entry.id, entry)));
            }
            RecordKind::Gone => parse_ids(payload).for_each(|id| drop(table.remove(&id))),
            _ => {}
        }
    }
    stream.changed_blocks = records.iter().map(|(header, _)| u64::from(header.blocks)).sum();
    if let Some((target, entry)) = table.last_key_value() {
        stream.target = *target;
        stream.target_digest = root_digest(entry);
    }
    if let Some(base) = here.iter().find(|entry| entry.id == stream.base) {
        stream.base_digest = root_digest(base);
    }
    let mut out = stream.to_bytes().to_vec();
    let mut digest = chain_digest(Checksum::default(), &out);
    for (sequence, (mut header, mut payload)) in (0..).zip(records) {
        if header.kind == RecordKind::Trailer {
            let trailer = StreamTrailer {
                records: sequence,
                blocks: stream.changed_blocks,
                digest,
                table_digest: table_digest(table.values()),
            };
            payload = trailer.to_bytes().to_vec();
        }
        header.sequence = sequence;
        header.checksum = Checksum::of(&payload);
        let bytes = header.to_bytes();
        digest = chain_digest(digest, &bytes);
        out.extend(bytes);
        out.extend(payload);
    }
    out.extend(rest);
    out
}

/// The records at the start of `data`, and the invalid rest.
pub(crate) fn split(mut data: &[u8]) -> (Vec<(RecordHeader, Vec<u8>)>, &[u8]) {
    let mut records = Vec::new();
    while let Some((head, rest)) = data.split_first_chunk::<{ RecordHeader::SIZE }>() {
        let mut head = *head;
        seal_record(&mut head);
        let Ok(header) = RecordHeader::parse(&head) else { break };
        let Some((payload, rest)) = rest.split_at_checked(header.payload as usize) else { break };
        records.push((header, payload.to_vec()));
        data = rest;
    }
    (records, data)
}

/// The reader alone, on the bytes as they came and with all sums made right.
pub(crate) fn reader(data: &[u8]) {
    for bytes in [data.to_vec(), sealed(data, &[])] {
        let mut input = &bytes[..];
        let Ok(mut consumer) = Consumer::open(&mut input) else { continue };
        let (mut blocks, most) = (0, consumer.header().changed_blocks);
        loop {
            match consumer.record() {
                Ok(Record::Extents(runs)) => {
                    blocks += runs.iter().map(|(_, run)| run.len() as u64).sum::<u64>()
                }
                Ok(Record::Trailer(trailer)) => {
                    assert_eq!((trailer.blocks, consumer.blocks()), (blocks, blocks));
                    break;
                }
                Ok(_) => {}
                Err(_) => break,
            }
            assert!(blocks <= most, "no more blocks are handed out than were announced");
        }
    }
}

pub(crate) fn stream_seeds() -> Vec<Vec<u8>> {
    vec![short(&scene().baseline), short(&scene().update)]
}

/// A stream without most of its blocks, so that a fuzzer's changes rarely hit data.
fn short(stream: &[u8]) -> Vec<u8> {
    let (records, _) = split(&stream[StreamHeader::SIZE..]);
    let mut out = stream[..StreamHeader::SIZE].to_vec();
    for (mut header, mut payload) in records {
        if header.kind == RecordKind::Extents && header.encoding == Encoding::Plain {
            let runs = StreamRun::parse_all(&header, &payload).expect("a golden stream is whole");
            payload = StreamRun::new(runs[0].0, 1).bytes().to_vec();
            payload.extend([5; 4096]);
            (header.items, header.blocks, header.payload) = (1, 1, payload.len() as u32);
        }
        out.extend(header.to_bytes());
        out.extend(payload);
    }
    out
}

/// The same stream with all its blocks, each record packed as well as it can be.
pub(crate) fn packed(stream: &[u8]) -> Vec<u8> {
    let (records, _) = split(&stream[StreamHeader::SIZE..]);
    let mut out = stream[..StreamHeader::SIZE].to_vec();
    for (mut header, mut payload) in records {
        if header.kind == RecordKind::Extents && header.encoding == Encoding::Plain {
            let data = payload.split_off(header.items as usize * StreamRun::SIZE);
            payload.extend(zstd::bulk::compress(&data, 19).expect("memory is packed"));
            header = RecordHeader { encoding: Encoding::Zstd, payload: payload.len() as u32, ..header };
        }
        out.extend(header.to_bytes());
        out.extend(payload);
    }
    sealed(&out, &[])
}

/// The seeds of applied streams are whole streams: only those are committed.
pub(crate) fn apply_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (first, stream) in [scene().baseline.clone(), packed(&scene().update)].into_iter().enumerate() {
        seeds.push([&[first as u8][..], &stream].concat());
    }
    seeds.push([&[2][..], &short(&scene().update)].concat());
    seeds
}

/// The destinations that streams are tried on, by the first byte of an input.
pub(crate) fn destination(choice: u8) -> &'static Original {
    match choice % 3 {
        0 => &scene().empty,
        1 => &scene().begun,
        _ => &scene().destination,
    }
}

/// The content of a destination that a refused stream must not change.
pub(crate) fn shown(volume: &Arc<Volume>) -> (SnapshotId, Vec<SnapshotEntry>) {
    (volume.status().cursor.snapshot, volume.snapshot_entries())
}

/// Whole streams on destinations of every kind: refused without a trace, or taken whole.
pub(crate) fn applied(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let device = destination(*choice).device();
    let into = open(device.clone()).expect("the destination opens");
    let before = shown(&into);
    for stream in [rest.to_vec(), sealed(rest, &before.1)] {
        if take(&stream, &into).is_ok() {
            let sound = look_at(&into);
            drop(into);
            let again = open(device).expect("what was committed opens");
            assert_eq!(look_at(&again), sound, "what was committed is what is found");
            if sound && again.failover().is_ok() {
                work_on(&again);
            }
            return;
        }
        assert!(shown(&into) == before, "a refused stream changes nothing");
    }
    assert!(look_at(&into), "a refused stream harms nothing");
}
