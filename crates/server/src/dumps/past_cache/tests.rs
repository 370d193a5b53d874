use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Rng};
use cairn_device::{Block, BlockMut};
use cairn_stream::{DumpBytes, InBlocks, Out, Outgoing};

use super::writer::Writer;
use super::*;

const MIB: usize = 1 << 20;

/// There are threads for it.
fn write<T>(
    file: (&File, u64),
    lanes: usize,
    work: impl FnOnce(&mut Writer<'_>, &Line<'_>) -> T,
) -> (T, io::Result<()>) {
    super::write(file, lanes, work).expect("threads")
}

/// A folder on a disk, and one in memory if available: each may accept direct requests or not.
fn folders() -> Vec<tempfile::TempDir> {
    let mut folders = vec![tempfile::tempdir().expect("a folder")];
    folders.extend(tempfile::tempdir_in("/dev/shm"));
    folders
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    Rng::new(seed).fill(&mut noise);
    noise
}

fn file(folder: &Path) -> (PathBuf, File) {
    let path = folder.join("f");
    let file = File::options().create(true).truncate(true).read(true).write(true).open(&path);
    (path, file.expect("a file"))
}

/// Some blocks, and their bytes.
fn blocks(rng: &mut Rng) -> (Vec<Block>, Vec<u8>) {
    let count = 1 + rng.below(256) as usize;
    let content = noise(rng.below(1000), count * BLOCK_SIZE);
    let mut blocks = Vec::new();
    // In one piece of memory, or in several.
    match rng.one_in(2) {
        true => BlockMut::append_run(&mut blocks, count),
        false => blocks.extend((0..count).map(|_| BlockMut::dirty())),
    }
    let filled = blocks.into_iter().zip(content.chunks(BLOCK_SIZE)).map(|(mut block, bytes)| {
        block.copy_from_slice(bytes);
        block.freeze()
    });
    (filled.collect(), content)
}

fn all_of(reader: &mut dyn InBlocks) -> Vec<u8> {
    let (mut blocks, mut length) = (VecDeque::new(), 0);
    loop {
        match reader.next(&mut blocks).expect("read") {
            0 => break,
            read => length += read,
        }
        assert_eq!(blocks.len(), length.div_ceil(BLOCK_SIZE), "they are full");
    }
    let mut bytes: Vec<u8> = blocks.iter().flat_map(|block| block.iter().copied()).collect();
    bytes.truncate(length);
    bytes
}

fn is_direct(file: &File) -> bool {
    fcntl_getfl(file).expect("its flags").contains(OFlags::DIRECT)
}

#[test]
fn what_is_written_from_any_place_on_is_in_the_file_and_nothing_else() {
    for folder in folders() {
        for (case, at) in
            [0, 1, 4095, 4096, 5000, MIB - 1, MIB, MIB + 4096, 3 * MIB + 77].into_iter().enumerate()
        {
            for bytes in [0, 1, 4096, MIB, 9 * MIB + 333] {
                let (path, file) = file(folder.path());
                let before = noise(1, at);
                file.write_all_at(&before, 0).expect("written");
                let (content, mut rng) = (noise(2, bytes), Rng::new(case as u64));
                let (written, last) = write((&file, at as u64), lanes(case as u32), |out, _| {
                    let mut rest = &content[..];
                    while !rest.is_empty() {
                        let (now, later) =
                            rest.split_at((1 + rng.below(MIB as u64) as usize).min(rest.len()));
                        out.write_all(now)?;
                        rest = later;
                    }
                    io::Result::Ok(())
                });
                written.and(last).expect("written");
                let found = std::fs::read(&path).expect("the file");
                assert!(found[..at] == before && found[at..] == content, "{bytes} bytes from {at} on");
                assert!(!is_direct(&file), "its client reads it as before");
            }
        }
    }
}

#[test]
fn records_and_what_is_between_them_are_in_the_file_one_behind_the_other() {
    for folder in folders() {
        for (case, at) in [0, 1, 4095, 4096, MIB + 4096, 3 * MIB + 77].into_iter().enumerate() {
            for seed in 0..8 {
                let (path, file) = file(folder.path());
                let before = noise(1, at);
                file.write_all_at(&before, 0).expect("written");
                let mut rng = Rng::new(seed * 10 + case as u64);
                let content = noise(seed, 12 * MIB + rng.below(9000) as usize);
                let (written, last) = write((&file, at as u64), lanes(seed as u32), |out, line| {
                    let (mut rest, mut place) = (&content[..], at as u64);
                    while !rest.is_empty() {
                        let length = match rng.below(4) {
                            0 => rng.below(300),
                            // A record that ends with a block.
                            1 => (64 << 12) - place % 4096,
                            2 => rng.below(100_000),
                            _ => rng.below(MIB as u64),
                        };
                        let (now, later) = rest.split_at((1 + length as usize).min(rest.len()));
                        match rng.below(8) {
                            0 => out.write_all(now)?,
                            // Its creator assumed another place.
                            1 => out.record(Outgoing::copy_of(now, place + 1))?,
                            _ => out.record(Outgoing::copy_of(now, place))?,
                        }
                        (rest, place) = (later, place + now.len() as u64);
                        let upto = line.upto();
                        assert!(at as u64 <= upto && upto <= place, "{upto} of {place}");
                    }
                    io::Result::Ok(())
                });
                written.and(last).expect("written");
                let found = std::fs::read(&path).expect("the file");
                assert!(found[..at] == before && found[at..] == content, "from {at} on, seed {seed}");
                assert!(!is_direct(&file), "its client reads it as before");
            }
        }
    }
}

#[test]
fn blocks_of_records_are_in_the_file_at_whole_blocks_behind_their_head() {
    for folder in folders() {
        for at in [0, 1, 4096, MIB + 4096, 3 * MIB + 77] {
            for seed in 0..8 {
                let (path, file) = file(folder.path());
                let before = noise(1, at);
                file.write_all_at(&before, 0).expect("written");
                let (mut rng, mut content) = (Rng::new(seed), Vec::new());
                let (written, last) = write((&file, at as u64), lanes(1), |out, line| {
                    for _ in 0..60 {
                        let place = (at + content.len()) as u64;
                        let head = noise(rng.below(1000), 1 + rng.below(5000) as usize);
                        match rng.below(8) {
                            0 => {
                                out.write_all(&head)?;
                                content.extend(head);
                            }
                            // A wrong place makes a gap of another length, and does no other harm.
                            way => {
                                let mut record = Outgoing::copy_of(&head, place + u64::from(way == 1));
                                let (blocks, stored) = blocks(&mut rng);
                                record.end_with(blocks);
                                let gap = record.length() - head.len() - stored.len();
                                content.extend(head);
                                content.resize(content.len() + gap, 0);
                                content.extend(stored);
                                out.record(record)?;
                            }
                        }
                        let upto = line.upto();
                        assert!(at as u64 <= upto && upto <= (at + content.len()) as u64);
                    }
                    io::Result::Ok(())
                });
                written.and(last).expect("written");
                let found = std::fs::read(&path).expect("the file");
                assert!(found[..at] == before && found[at..] == content, "from {at} on, seed {seed}");
            }
        }
    }
}

#[test]
fn records_of_half_a_request_go_two_at_a_time_and_the_last_one_by_itself() {
    use std::time::Duration;
    let folder = tempfile::tempdir().expect("a folder");
    let (path, file) = file(folder.path());
    let content = noise(7, 3 * MIB);
    let (written, last) = write((&file, 0), lanes(1), |out, line| {
        for (number, record) in content.chunks(MIB).enumerate() {
            out.record(Outgoing::copy_of(record, (number * MIB) as u64))?;
            if number == 1 {
                while line.upto() == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            } else {
                // Long enough for a request, if it had one.
                std::thread::sleep(Duration::from_millis(100));
            }
            assert_eq!(line.upto(), [0, 2 * MIB as u64, 2 * MIB as u64][number], "after record {number}");
        }
        io::Result::Ok(())
    });
    written.and(last).expect("written");
    assert!(std::fs::read(&path).expect("the file") == content);
}

#[test]
fn file_is_as_long_as_what_is_written_whatever_room_was_taken() {
    for folder in folders() {
        for (at, bytes) in [(0, 5 * MIB), (0, 40 * MIB + 7), (MIB + 4096, 9 * MIB)] {
            let (path, file) = file(folder.path());
            file.set_len(at as u64).expect("made longer");
            let content = noise(9, bytes);
            let (written, last) = write((&file, at as u64), lanes(1), |out, _| out.write_all(&content));
            written.and(last).expect("written");
            let found = std::fs::read(&path).expect("the file");
            assert!(found.len() == at + bytes && found[at..] == content);
            // A cancelled writer leaves only the bytes written so far.
            let end = found.len() as u64;
            let (given_up, last) = write((&file, end), lanes(1), |out, line| {
                out.write_all(&content)?;
                out.write_all(&content[..4 * MIB])?;
                io::Result::<u64>::Ok(line.upto())
            });
            let upto = given_up.and_then(|upto| last.map(|()| upto)).expect("written");
            assert!(upto <= file.metadata().expect("its length").len());
            assert_eq!(file.metadata().expect("its length").len(), end + (bytes + 4 * MIB) as u64);
        }
    }
}

#[test]
fn room_that_is_taken_ahead_leaves_most_of_a_disk_to_others() {
    use super::writer::room_behind;
    const MUCH: u64 = 1 << 40;
    let mib = |count: u64| count << 20;
    assert_eq!(room_behind(0, 4096, MUCH), Some(mib(8)), "a file that has nothing");
    assert_eq!(room_behind(mib(100), mib(101), MUCH), Some(mib(200)), "as much as it has");
    assert_eq!(room_behind(mib(1000), mib(1001), MUCH), Some(mib(1256)), "and no more than so much");
    assert_eq!(room_behind(mib(1000), mib(1001), mib(320)), Some(mib(1020)), "a part of what is left");
    assert_eq!(room_behind(mib(1000), mib(1002), mib(16)), None, "there is as good as nothing left");
    assert_eq!(room_behind(0, 4096, 0), None);
}

#[test]
fn requests_count_once_all_before_them_are_done() {
    let mut begun = writer::Begun::default();
    let numbers: Vec<u64> = [10, 20, 30, 40].into_iter().map(|end| begun.begin(end)).collect();
    assert_eq!(begun.done(numbers[1]), None, "the first is on its way");
    assert_eq!(begun.done(numbers[3]), None);
    assert_eq!(begun.done(numbers[0]), Some(20));
    let last = begun.begin(50);
    assert_eq!(begun.done(numbers[2]), Some(40));
    assert_eq!(begun.done(last), Some(50));
}

#[test]
fn what_is_said_to_be_written_is_in_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, file) = file(folder.path());
    let content = noise(3, 20 * MIB + 5);
    let (mut seen, mut was_direct) = (0, false);
    let (written, last) = write((&file, 0), lanes(1), |out, line| {
        for chunk in content.chunks(MIB / 3) {
            out.write_all(chunk)?;
            let upto = line.upto() as usize;
            let found = std::fs::read(&path)?;
            assert!(
                found.len() >= upto && found[..upto] == content[..upto],
                "up to {upto} of {}",
                found.len()
            );
            (seen, was_direct) = (upto, was_direct || is_direct(&file));
        }
        io::Result::Ok(())
    });
    written.and(last).expect("written");
    assert!(seen > 10 * MIB, "it goes on meanwhile: {seen}");
    let takes = switch(&file, true).is_ok();
    assert_eq!(was_direct, takes, "it goes past the page cache where that is possible");
}

#[test]
fn disk_that_is_full_is_told_once_and_nothing_is_written_any_more() {
    let file = File::options().write(true).open("/dev/full").expect("a full disk");
    let (written, last) = write((&file, 0), lanes(1), |out, _| {
        let outcome = (0..100).try_for_each(|_| out.write_all(&noise(4, MIB)));
        assert!(out.write_all(b"more").is_err(), "nothing is taken behind a failure");
        outcome
    });
    assert_eq!(written.expect_err("it is full").kind(), io::ErrorKind::StorageFull);
    assert!(last.is_err());
    let records = |out: &mut Writer<'_>, _: &Line<'_>| {
        (0..100).try_for_each(|number: u64| {
            out.record(Outgoing::copy_of(&noise(4, MIB + 1), number * (MIB as u64 + 1)))
        })
    };
    let (written, last) = write((&file, 0), lanes(1), records);
    assert_eq!(written.expect_err("it is full").kind(), io::ErrorKind::StorageFull);
    assert!(last.is_err());
    let (written, last) = write((&file, 0), lanes(1), |out, _| out.write_all(b"a little"));
    written.expect("it waits to be a piece");
    assert_eq!(last.expect_err("it is full").kind(), io::ErrorKind::StorageFull);
}

#[test]
fn file_that_takes_bytes_at_its_end_alone_has_them_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("f");
    let file = File::options().create(true).append(true).open(&path).expect("a file");
    let content = noise(5, 12 * MIB + 9);
    let (written, last) = write((&file, 0), lanes(1), |out, _| out.write_all(&content));
    written.and(last).expect("written");
    assert!(std::fs::read(&path).expect("the file") == content);
}

#[test]
fn request_that_is_refused_goes_through_the_page_cache_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, file) = file(folder.path());
    let direct = Direct::new();
    direct.enter(&file);
    let invalid = || Err(io::Error::from(Errno::INVAL));
    let mut outcomes = vec![Ok(7), invalid(), Err(io::ErrorKind::Interrupted.into())];
    let done = direct.request(&file, &mut || outcomes.pop().expect("asked three times"));
    assert_eq!(done.expect("done"), 7);
    assert!(!is_direct(&file));
    let mut times = 0;
    let refused = direct.request(&file, &mut || {
        times += 1;
        invalid()
    });
    assert!(refused.is_err() && times == 2, "one that is wrong stays so");
}

#[test]
fn file_is_read_from_any_place_on_in_order_and_anywhere() {
    for folder in folders() {
        for length in [0, 1, 4096, MIB, 4 * MIB, 9 * MIB + 4097] {
            let (path, file) = file(folder.path());
            let content = noise(6, length);
            std::fs::write(&path, &content).expect("written");
            let source = Source::new(file.try_clone().expect("the same open file"));
            for at in [0, 1, 4095, 4096, MIB - 1, MIB, 5 * MIB + 3, 20 * MIB] {
                let expected = content.get(at..).unwrap_or_default();
                let before = at % ALIGNMENT;
                let in_order = all_of(&mut *source.in_order(at as u64).expect("threads"));
                let found = in_order.get(before..).unwrap_or_default();
                assert!(found == expected, "{} bytes from {at} on of {length}", found.len());
                for bytes in [1, 5000, 2 * MIB] {
                    let mut found = vec![0; bytes];
                    let have = source.read_at(at as u64, &mut found).expect("read");
                    assert!(
                        found[..have] == expected[..bytes.min(expected.len())],
                        "{bytes} at {at} of {length}"
                    );
                }
            }
            assert_eq!(source.length().expect("its length"), length as u64);
            drop(source);
        }
    }
}

#[test]
fn reader_that_is_left_early_leaves_the_file_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, file) = file(folder.path());
    std::fs::write(&path, noise(7, 12 * MIB)).expect("written");
    let source = Arc::new(Source::new(file.try_clone().expect("the same open file")));
    let mut reader = source.in_order(5).expect("threads");
    assert_eq!(reader.next(&mut VecDeque::new()).expect("read"), PIECE);
    drop((reader, source));
    assert!(!is_direct(&file), "its threads have ended");
}

#[test]
fn files_that_are_written_side_by_side_share_what_may_be_on_its_way() {
    assert_eq!([0, 1, 2, 3, 4, 5, 64].map(lanes), [4, 4, 2, 2, 2, 2, 2]);
}
