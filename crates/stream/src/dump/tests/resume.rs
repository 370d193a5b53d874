//! Parts whose writing was interrupted: they resume after the existing content, whatever has
//! happened to the file meanwhile, and become identical to uninterrupted ones.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Out, Reached};

const ID: DumpId = DumpId([7; 16]);

/// A volume with two snapshots, and a plan of all of it.
fn planned(writes: u64) -> (Arc<Volume>, Luns, Plan) {
    let (volume, luns) = source(1);
    let mut rng = Rng::new(11);
    scribble(&luns, &mut rng, writes);
    volume.create_snapshot("one").expect("a snapshot");
    scribble(&luns, &mut rng, writes);
    let target = volume.create_snapshot("two").expect("a snapshot").id;
    let plan = Plan::against(&volume, None, target).expect("a plan");
    (volume, luns, plan)
}

fn label() -> DumpLabel {
    DumpLabel { id: ID, level: DumpLevel::Level(0), name: "vol0".to_owned(), created: Timestamp(3) }
}

/// The part without an interruption, and the ends of its records with blocks.
fn uncut(dump: &Dump<'_>, part: u32, compression: Compression) -> (Vec<u8>, Vec<Reached>) {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    let reached = &mut |at: &Reached| {
        ends.push(*at);
        Ok(())
    };
    let begun = Begun::default();
    let onto = Onto { out: &mut bytes, reached };
    on_threads(false, |work| dump.resume_part(part, &begun, onto, compression, work)).expect("written");
    (bytes, ends)
}

fn begun(dump: &Dump<'_>, part: u32, file: &Vec<u8>, marks: &[Reached]) -> Result<Begun, DumpError> {
    dump.begun(part, ("f", file), marks, &|| false)
}

/// Resumes a part; returns how many bytes were there already.
fn go_on(dump: &Dump<'_>, part: u32, file: &mut Vec<u8>, compression: Compression, threads: bool) -> u64 {
    let begun = begun(dump, part, file, &[]).expect("it is that part");
    let there = begun.at().bytes;
    file.truncate(there as usize);
    let onto = Onto { out: file, reached: &mut |_| Ok(()) };
    let produced = on_threads(threads, |work| dump.resume_part(part, &begun, onto, compression, work));
    assert_eq!(produced.expect("written").bytes, file.len() as u64);
    there
}

#[test]
fn part_that_was_cut_at_any_byte_goes_on_there_and_is_the_same_file() {
    let (_volume, _luns, plan) = planned(2);
    let dump = Dump::new(&plan, label(), 1);
    let (whole, ends) = uncut(&dump, 0, Compression::Zstd);
    let with_write_part = {
        let mut bytes = Vec::new();
        on_threads(false, |work| dump.write_part(0, &mut bytes, Compression::Zstd, work)).expect("written");
        bytes
    };
    assert_eq!(whole, with_write_part);
    let mut rng = Rng::new(12);
    for length in 0..=whole.len() {
        // Heads, tables and trailer byte by byte; of the blocks between them, some.
        if (1500..whole.len() - 1500).contains(&length) && length % 11 != 0 {
            continue;
        }
        for (has_tail, is_noise) in [(false, false), (true, false), (true, true)] {
            let mut file = whole[..length].to_vec();
            if has_tail {
                // Left by a file system after it, or room reserved for the next records.
                let mut tail = vec![0; rng.below(2000) as usize];
                if is_noise {
                    rng.fill(&mut tail);
                }
                file.extend(tail);
            }
            if is_noise && length < 384 {
                continue;
            }
            let there = go_on(&dump, 0, &mut file, Compression::Zstd, false);
            assert!(file == whole, "cut at {length}");
            // The zeroes after it may equal the next record.
            let next = if has_tail && !is_noise { &whole[length..] } else { &[] };
            let zeroes = next.iter().take_while(|byte| **byte == 0).count();
            assert!(there <= (length + zeroes) as u64, "cut at {length}: {there}");
            let blocks = ends.iter().filter(|end| end.bytes <= length as u64).map(|end| end.bytes).max();
            assert!(
                there >= blocks.unwrap_or(0),
                "cut at {length}: a record that was there is written again"
            );
        }
    }
    assert!(begun(&dump, 0, &whole, &[]).expect("whole").is_whole());
    let with_room = [&whole[..], &[0; 5000]].concat();
    assert!(!begun(&dump, 0, &with_room, &[]).expect("not cut off yet").is_whole());
    assert!(!begun(&dump, 0, &whole[..whole.len() - 1].to_vec(), &[]).expect("cut").is_whole());
}

#[test]
fn parts_that_were_cut_in_the_middle_of_a_batch_go_on_and_are_restored() {
    for (seed, parts, compression) in
        [(1, 1, Compression::None), (2, 2, Compression::Zstd), (3, 3, Compression::None)]
    {
        let (volume, _luns, plan) = planned(2500);
        let dump = Dump::new(&plan, label(), parts);
        let mut rng = Rng::new(seed);
        let mut files = Vec::new();
        for part in 0..parts {
            let (whole, ends) = uncut(&dump, part, compression);
            assert!(part > 0 || ends.len() >= 2, "{} records", ends.len());
            let aligned = ends.iter().all(|end| end.bytes % 4096 == 0);
            assert!(aligned || compression != Compression::None, "{ends:?}");
            for end in &ends {
                let cut = end.bytes + rng.below(3) - 1;
                let mut file = whole[..cut as usize].to_vec();
                let there = go_on(&dump, part, &mut file, compression, rng.below(2) == 0);
                assert!(file == whole, "part {part} cut at {cut}");
                assert!(
                    cut - there <= (1 << 20) + 8192,
                    "one record at most is written again: {there} of {cut}"
                );
            }
            files.push(whole);
        }
        let (restored, _) = restored(&files, false, false).expect("restored");
        assert_eq!(shown(&restored), shown(&volume));
        assert!(is_sound(&restored));
    }
}

/// Takes a number of bytes and is full then.
struct Full<'a>(&'a mut Vec<u8>, usize);

impl Out for Full<'_> {}

impl Write for Full<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = bytes.len().min(self.1);
        self.0.extend_from_slice(&bytes[..taken]);
        self.1 -= taken;
        if taken == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn disk_that_is_full_again_and_again_costs_a_record_each_time() {
    let (_volume, _luns, plan) = planned(2500);
    let dump = Dump::new(&plan, label(), 1);
    let (whole, _) = uncut(&dump, 0, Compression::None);
    let mut rng = Rng::new(5);
    for threads in [false, true] {
        let (mut file, mut written, mut times) = (Vec::new(), 0, 0);
        loop {
            let begun = begun(&dump, 0, &file, &[]).expect("it is that part");
            file.truncate(begun.at().bytes as usize);
            let (before, room) = (file.len(), 1_200_000 + rng.below(1 << 20) as usize);
            let onto = Onto { out: &mut Full(&mut file, room), reached: &mut |_| Ok(()) };
            let outcome =
                on_threads(threads, |work| dump.resume_part(0, &begun, onto, Compression::None, work));
            written += file.len() - before;
            times += 1;
            assert!(times < 100, "it makes no way");
            match outcome {
                Ok(_) => break,
                Err(StreamError::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull),
                Err(other) => panic!("{other}"),
            }
        }
        assert!(file == whole && times > 2, "{times} times");
        assert!(written <= whole.len() + times * ((1 << 20) + 8192), "{written} for {}", whole.len());
    }
}

/// Counts its reads.
struct Counting<'a>(&'a Vec<u8>, AtomicU64);

impl DumpBytes for Counting<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read_at(offset, buffer)?;
        self.1.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn length(&self) -> std::io::Result<u64> {
        self.0.length()
    }
}

#[test]
fn what_was_made_durable_is_not_read_again_unless_the_file_is_another_one() {
    let (_volume, _luns, plan) = planned(2500);
    let dump = Dump::new(&plan, label(), 1);
    let (whole, ends) = uncut(&dump, 0, Compression::None);
    let [.., before, last, tail, _] = ends[..] else { panic!("{} records", ends.len()) };
    let marks = [before, last];
    let cut = whole[..tail.bytes as usize + 5000].to_vec();
    let counted = Counting(&cut, AtomicU64::new(0));
    let found = dump.begun(0, ("f", &counted), &marks, &|| false).expect("it is that part");
    assert!(found.is_as_marked());
    assert_eq!(found.at(), &tail, "what was written past the last mark is taken as well");
    let read = counted.1.load(Ordering::Relaxed);
    let due = tail.bytes - before.bytes;
    assert!(read >= due && read <= due + 8192, "{read} bytes for {due}");

    // Changed between the marks: all is read, and writing resumes before the change.
    let mut changed = cut.clone();
    changed[before.bytes as usize + 4000] ^= 1;
    let found = begun(&dump, 0, &changed, &marks).expect("it is that part");
    assert!(!found.is_as_marked());
    assert_eq!(found.at(), &before);
    // Cut off before the marks.
    let short = cut[..ends[0].bytes as usize + 77].to_vec();
    assert_eq!(begun(&dump, 0, &short, &marks).expect("it is that part").at(), &ends[0]);
    // Marks of another file.
    let wrong = [Reached { blocks: before.blocks + 1, ..before }, last];
    assert_eq!(begun(&dump, 0, &cut, &wrong).expect("it is that part").at(), &tail);
    let wrong = [before, Reached { digest: before.digest, ..last }];
    let found = begun(&dump, 0, &cut, &wrong).expect("it is that part");
    assert_eq!((found.at(), found.is_as_marked()), (&tail, false));
    // A whole part stays one.
    assert!(begun(&dump, 0, &whole, &marks).expect("whole").is_whole());
    let mut longer = whole.clone();
    longer.push(0);
    assert!(!begun(&dump, 0, &longer, &marks).expect("longer").is_whole());
    let there = go_on(&dump, 0, &mut longer, Compression::None, false);
    assert_eq!((longer == whole, there), (true, whole.len() as u64 - 384));
}

#[test]
fn file_of_anything_else_is_not_gone_on_with() {
    let (_volume, _luns, plan) = planned(600);
    let dump = Dump::new(&plan, label(), 2);
    let (own, ends) = uncut(&dump, 0, Compression::None);
    let (sibling, _) = uncut(&dump, 1, Compression::None);
    let refused = |file: &Vec<u8>, marks: &[Reached]| begun(&dump, 0, file, marks).expect_err("refused");
    assert!(matches!(refused(&sibling, &[]), DumpError::OtherFile { part: 1, .. }));
    assert!(matches!(refused(&b"a letter to my aunt".to_vec(), &[]), DumpError::OtherFile { .. }));
    let other = Dump::new(&plan, DumpLabel { id: DumpId([8; 16]), ..label() }, 2);
    let (other, _) = uncut(&other, 0, Compression::None);
    assert!(matches!(refused(&other, &[]), DumpError::OtherFile { .. }));
    let renamed = Dump::new(&plan, DumpLabel { name: "vol1".to_owned(), ..label() }, 2);
    let (renamed, _) = uncut(&renamed, 0, Compression::None);
    assert!(matches!(refused(&renamed, &[]), DumpError::OtherBegin { .. }));
    // The remains of a beginning after a power cut do not count as one; after a durable record,
    // zeroes cannot be such remains.
    for torn in [Vec::new(), vec![0; 9000], own[..300].to_vec(), [&own[..300], &[0; 9000]].concat()] {
        assert_eq!(begun(&dump, 0, &torn, &[]).expect("nothing"), Begun::default());
    }
    assert!(matches!(refused(&vec![0; 9000], &ends[..1]), DumpError::OtherFile { .. }));
    assert_eq!(begun(&dump, 0, &Vec::new(), &ends[..1]).expect("emptied"), Begun::default());
}

#[test]
fn what_happens_to_the_volume_meanwhile_does_not_change_what_is_dumped() {
    let (volume, luns, plan) = planned(800);
    let target = volume.snapshot_named("two").expect("the snapshot").id;
    let kept = volume.keep_snapshots(target).expect("kept");
    let expected = shown(&volume);
    let (mut file, uninterrupted) = {
        let dump = Dump::new(&plan, label(), 1);
        let (whole, ends) = uncut(&dump, 0, Compression::None);
        (whole[..ends[0].bytes as usize].to_vec(), whole)
    };
    // As after a restart: nothing is pinned, and owners change what they like.
    drop(plan);
    let one = volume.snapshot_named("one").expect("the snapshot").id;
    assert!(volume.delete_snapshots(&[one]).is_err(), "it is kept for the dump");
    volume.rename_snapshot(one, "uno").expect("renamed");
    volume.hold_snapshot(target, true).expect("held");
    let mut rng = Rng::new(13);
    for round in 0..4 {
        scribble(&luns, &mut rng, 300);
        let made = volume.create_snapshot(&format!("later{round}")).expect("a snapshot").id;
        if round % 2 == 0 {
            volume.delete_snapshots(&[made]).expect("deleted");
        }
    }
    let begun_with = |file: &[u8]| begun_table("f", &bytes_of(file), ID).expect("read");
    let table = begun_with(&file).expect("the table is there");
    let again = || Plan::against(&volume, None, target).expect("a plan");
    {
        let plan = again();
        let bare = Dump::new(&plan, label(), 1);
        assert!(matches!(begun(&bare, 0, &file, &[]), Err(DumpError::OtherBegin { .. })), "names are in it");
    }
    let plan = again().with_table(table.clone()).expect("the same snapshots");
    let dump = Dump::new(&plan, label(), 1);
    assert!(go_on(&dump, 0, &mut file, Compression::None, true) > 4096);
    assert!(file == uninterrupted, "as if nothing had happened");
    let (restored, _) = restored(&[file], false, false).expect("restored");
    assert_eq!(shown(&restored), expected);
    // Once they may be deleted, it can't be resumed.
    drop(dump);
    drop(plan);
    drop(kept);
    volume.delete_snapshots(&[one]).expect("deleted");
    let gone = again().with_table(table).map(drop).expect_err("refused");
    assert!(matches!(gone, StreamError::Diverged { snapshot } if snapshot == one), "{gone}");
    assert!(begun_with(&uninterrupted[..200]).is_none() && begun_with(&[7; 9000]).is_none());
}
