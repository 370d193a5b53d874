//! A dump as a device, against a plain copy of its content.

use cairn_base::BLOCK_SIZE;
use cairn_device::{DeviceError, Request};

use super::*;
use crate::dump::device::{DumpDevice, Kept};

const BLOCK: u64 = 4096;

/// The block space that the dumps have, the oldest first: each block is where the newest of them
/// has it.
fn space_in(dumps: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let mut space = vec![0; (BLOCKS * BLOCK) as usize];
    for file in dumps.concat() {
        let mut reader = PartReader::open_file("f", &bytes_of(&file)).expect("a head");
        while let Some(runs) = reader.extents().expect("whole") {
            for (first, blocks) in runs {
                for (vbn, block) in (first.0..).zip(blocks) {
                    space[(vbn * BLOCK) as usize..][..BLOCK_SIZE].copy_from_slice(&block[..]);
                }
            }
        }
    }
    space
}

/// The device of these dumps, and a copy of all of its bytes.
fn device_and_copy(dumps: &[Vec<Vec<u8>>]) -> (DumpDevice, Vec<u8>) {
    let files = dumps.concat();
    let parts: Result<Vec<_>, _> = files.iter().map(|file| PartIndex::open("f", bytes_of(file))).collect();
    let device = DumpDevice::new(arrange(parts.expect("heads"), false).expect("arranged"), BLOCKS);
    let mut copy = vec![0; device.geometry().length as usize];
    let space = space_in(dumps);
    copy[Volume::space_offset(BLOCKS) as usize..][..space.len()].copy_from_slice(&space);
    (device, copy)
}

/// A request near one of the edges or anywhere; few reach past the end, or are of no whole blocks.
fn any_request(rng: &mut Rng, length: u64) -> Request {
    let space = Volume::space_offset(BLOCKS);
    let edges = [0, space, space + BLOCKS * BLOCK, length];
    let near = edges[rng.below(4) as usize] / BLOCK;
    let place = match rng.below(3) {
        0 => rng.below(length / BLOCK),
        _ => (near + rng.below(12)).saturating_sub(6),
    };
    let count = match rng.below(8) {
        0 => 0,
        1 => 1 + rng.below(700),
        _ => 1 + rng.below(12),
    };
    // Some are left as they came, so that they reach past the end.
    let fits = if rng.one_in(7) { count } else { count.min((length / BLOCK).saturating_sub(place)) };
    let (mut offset, mut bytes) = (place * BLOCK, fits * BLOCK);
    match rng.below(40) {
        0 => offset += 512,
        1 => bytes += 512,
        _ => {}
    }
    let mut data = vec![0; bytes as usize];
    rng.fill(&mut data);
    match rng.below(16) {
        0 | 1 => Request::Write { offset, data: Segments::copy_of(&data), fua: rng.one_in(2) },
        2 => Request::WriteZeroes { offset, length: bytes, may_trim: rng.one_in(2), fua: rng.one_in(2) },
        3 => Request::Trim { offset, length: bytes, fua: false },
        4 => Request::Prefetch { offset, length: bytes },
        5 => Request::Flush,
        _ => Request::Read { offset, length: bytes as u32 },
    }
}

/// The answers of a plain device that takes writes to the label alone.
fn expected(request: &Request, copy: &mut [u8]) -> Result<Vec<u8>, &'static str> {
    let Some((_, offset, length)) = request.range() else { return Ok(Vec::new()) };
    if !offset.is_multiple_of(BLOCK) || !length.is_multiple_of(BLOCK) {
        return Err("unaligned");
    }
    let end = offset + length;
    if end > copy.len() as u64 {
        return Err("past the end");
    }
    let of_label = end <= Volume::space_offset(BLOCKS);
    let bytes = &mut copy[offset as usize..end as usize];
    match request {
        Request::Read { .. } => Ok(bytes.to_vec()),
        Request::Write { data, .. } if of_label => {
            bytes.copy_from_slice(&data.to_vec());
            Ok(Vec::new())
        }
        Request::WriteZeroes { .. } if of_label => {
            bytes.fill(0);
            Ok(Vec::new())
        }
        Request::Flush | Request::Prefetch { .. } => Ok(Vec::new()),
        Request::Write { .. } | Request::WriteZeroes { .. } | Request::Trim { .. } => Err("read-only"),
    }
}

#[test]
fn mounted_dump_answers_any_request_as_a_plain_copy_would() {
    let (mut reads, mut crossing, mut refused) = (0, 0, 0);
    for (seed, parts, compression, newest) in [
        (31, 1, Compression::None, 4),
        (32, 3, Compression::Zstd, 4),
        (33, 2, Compression::None, 1),
        (34, 1, Compression::Zstd, 2),
    ] {
        let (_, dumps) = life(seed, parts, compression);
        let (device, mut copy) = device_and_copy(&dumps[..newest]);
        let space = Volume::space_offset(BLOCKS);
        let mut rng = Rng::new(seed);
        for round in 0..400 {
            let mut batch: Vec<Operation> = (0..1 + rng.below(3))
                .map(|_| Operation::new(any_request(&mut rng, copy.len() as u64)))
                .collect();
            // One that has its outcome already is left alone.
            let done = rng.one_in(5);
            if done {
                batch[0].finish(Err(DeviceError::OutOfService));
            }
            device.run(&mut batch);
            for (number, operation) in batch.into_iter().enumerate() {
                let request = operation.request().clone();
                let note = format!("seed {seed}, round {round}: {:?}", request.range());
                let outcome = operation.into_data();
                if done && number == 0 {
                    assert!(matches!(outcome, Err(DeviceError::OutOfService)), "{note}");
                    continue;
                }
                match (expected(&request, &mut copy), outcome) {
                    (Ok(bytes), Ok(data)) => {
                        assert_eq!(data.len(), bytes.len(), "{note}");
                        assert!(data.to_vec() == bytes, "{note}");
                        let edges = [space, space + BLOCKS * BLOCK];
                        let range = request.range().map_or(0..0, |(_, at, count)| at + 1..at + count);
                        reads += u64::from(!bytes.is_empty());
                        crossing += edges.iter().filter(|edge| range.contains(*edge)).count();
                    }
                    (Err(why), Err(error)) => {
                        let right = match why {
                            "unaligned" => matches!(error, DeviceError::Unaligned { .. }),
                            "past the end" => matches!(error, DeviceError::OutOfRange { .. }),
                            _ => matches!(error, DeviceError::ReadOnly),
                        };
                        assert!(right, "{note}: {why}, and it says: {error}");
                        refused += 1;
                    }
                    (expected, outcome) => {
                        panic!("{note}: {:?} and not {outcome:?}", expected.map(|bytes| bytes.len()));
                    }
                }
            }
        }
        // All of it, by the largest requests: nothing that was refused has left anything.
        for at in (0..copy.len()).step_by(8 << 20) {
            let length = (copy.len() - at).min(8 << 20);
            let seen = device.read(at as u64, length as u32).expect("it can be read").to_vec();
            assert!(seen == copy[at..at + length], "seed {seed}, at {at}");
        }
    }
    assert!(reads > 500 && crossing > 60 && refused > 100, "{reads} {crossing} {refused}");
}

/// A chain of incremental dumps, of a volume that reuses the blocks of deleted snapshots: the newer
/// dumps have other content for numbers that the older ones have too.
#[test]
fn block_that_several_dumps_have_is_the_one_of_the_newest() {
    let (volume, luns) = source(1);
    let mut rng = Rng::new(36);
    let (mut dumps, mut base) = (Vec::new(), None);
    for number in 1..12 {
        scribble(&luns, &mut rng, 700);
        let target = volume.create_snapshot(&format!("t{number}")).expect("a snapshot").id;
        dumps.push(dump(&volume, number, base, target, 1 + u32::from(number) % 2, Compression::Zstd));
        let before = base.replace(target);
        // The last dump has the previous snapshot, too.
        if let Some(gone) = before.filter(|_| number < 11) {
            volume.delete_snapshots(&[gone]).expect("deleted");
        }
    }
    let of_all = dumps.iter().map(|parts| {
        let parts = parts.iter().map(|file| PartIndex::open("f", bytes_of(file)).expect("a head"));
        parts.flat_map(|part| part.entries.clone()).map(|entry| u64::from(entry.blocks)).sum::<u64>()
    });
    let (device, copy) = device_and_copy(&dumps);
    let distinct = copy.chunks_exact(4096).filter(|block| block.iter().any(|byte| *byte != 0)).count();
    let twice = of_all.sum::<u64>().saturating_sub(distinct as u64);
    assert!(twice > 500, "{twice} blocks are there more than once");
    for at in (0..copy.len()).step_by(1 << 20) {
        let length = (copy.len() - at).min(1 << 20);
        let seen = device.read(at as u64, length as u32).expect("it can be read").to_vec();
        assert!(seen == copy[at..at + length], "at {at}");
    }
    let mounted = opened(&dumps.concat(), false, false).expect("opened");
    assert!(shown(&mounted.volume) == shown(&volume), "mounted");
    let (restored, _) = restored(&dumps.concat(), false, false).expect("restored");
    assert!(shown(&restored) == shown(&volume), "restored");
}

#[test]
fn newest_of_what_is_kept_stays_and_there_is_never_more_than_it_may_be() {
    let kept = Kept::new(4);
    let mut model: Vec<((usize, usize), u64)> = Vec::new();
    let mut rng = Rng::new(35);
    let (mut hits, mut misses) = (0, 0);
    for number in 0..2000 {
        let place = (rng.below(2) as usize, rng.below(4) as usize);
        let at = model.iter().position(|(own, _)| *own == place);
        let found = at.map(|at| {
            let item = model.remove(at);
            model.push(item);
            item.1
        });
        assert_eq!(kept.get(place), found, "step {number}");
        if found.is_some() {
            hits += 1;
            continue;
        }
        misses += 1;
        kept.put(place, number);
        model.push((place, number));
        if model.len() > 4 {
            model.remove(0);
        }
        assert!(kept.len() <= 4);
    }
    assert!(hits > 200 && misses > 200, "{hits} {misses}");
}
