//! Any of the parts, in any order: they are put in the order of their bases, or the missing ones
//! are named.

use super::*;

const PARTS: u32 = 2;
const DUMPS: usize = 4;

/// A chain of incremental dumps, with ids in another order.
fn chain() -> Vec<Vec<Vec<u8>>> {
    let (volume, luns) = source(1);
    let mut rng = Rng::new(51);
    let mut base = None;
    [7, 9, 6, 8]
        .into_iter()
        .map(|number| {
            scribble(&luns, &mut rng, 30);
            let target = volume.create_snapshot(&format!("t{number}")).expect("a snapshot").id;
            dump(&volume, number, base.replace(target), target, PARTS, Compression::None)
        })
        .collect()
}

#[test]
fn any_set_of_parts_in_any_order_is_put_in_order_or_what_is_missing_is_named() {
    let dumps = chain();
    let ids = [7u8, 9, 6, 8];
    let mut rng = Rng::new(52);
    let mut in_order = 0;
    // Each part is one bit.
    for chosen in 1u32..1 << (DUMPS as u32 * PARTS) {
        let has = |dump: usize, part: u32| chosen >> (dump as u32 * PARTS + part) & 1 == 1;
        let mut parts: Vec<(usize, u32)> =
            (0..DUMPS).flat_map(|dump| (0..PARTS).map(move |part| (dump, part))).collect();
        parts.retain(|(dump, part)| has(*dump, *part));
        for at in (1..parts.len()).rev() {
            parts.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let open = |(dump, part): &(usize, u32)| {
            let file = format!("{dump}.{part}");
            PartReader::open_file(&file, &bytes_of(&dumps[*dump][*part as usize])).expect("a head")
        };
        for without_base in [false, true] {
            let outcome = arrange(parts.iter().map(open).collect(), without_base);
            let note = format!("{parts:?}, {without_base}");
            let there: Vec<usize> =
                (0..DUMPS).filter(|dump| (0..PARTS).any(|part| has(*dump, part))).collect();
            // By their ids, the first of which lacks a part.
            let mut by_id = there.clone();
            by_id.sort_by_key(|dump| ids[*dump]);
            let short = by_id.iter().find_map(|dump| {
                let part = (0..PARTS).find(|part| !has(*dump, *part))?;
                Some((DumpId([ids[*dump]; 16]), part + 1))
            });
            let gap = there.iter().enumerate().find(|(number, dump)| {
                let has_base = **dump == 0 || (*number > 0 && there[number - 1] == *dump - 1);
                !(has_base || without_base && *number == 0)
            });
            match (outcome, short, gap) {
                (Err(DumpError::MissingPart { dump, part, parts }), Some(expected), _) => {
                    assert_eq!(((dump, part), parts), (expected, PARTS), "{note}");
                }
                (Err(DumpError::MissingBase { file, .. }), None, Some((_, dump))) => {
                    assert_eq!(file, format!("{dump}.0"), "{note}");
                }
                (Ok(arranged), None, None) => {
                    let files: Vec<Vec<&str>> =
                        arranged.iter().map(|dump| dump.iter().map(PartReader::file).collect()).collect();
                    let expected: Vec<Vec<String>> = there
                        .iter()
                        .map(|dump| (0..PARTS).map(|part| format!("{dump}.{part}")).collect())
                        .collect();
                    assert_eq!(files, expected, "{note}");
                    in_order += 1;
                }
                (outcome, short, gap) => panic!("{note}: {:?}, {short:?}, {gap:?}", outcome.err()),
            }
        }
    }
    assert_eq!(in_order, 4 + 10, "each beginning of the chain, and each stretch of it");
}

#[test]
fn parts_of_two_dumps_with_one_id_are_told_apart() {
    let (volume, luns) = source(1);
    let mut rng = Rng::new(53);
    let mut parts = Vec::new();
    for name in ["one", "two"] {
        scribble(&luns, &mut rng, 30);
        let target = volume.create_snapshot(name).expect("a snapshot").id;
        parts.push(dump(&volume, 5, None, target, PARTS, Compression::None));
    }
    let arranged = arrange(readers(&[parts[0][0].clone(), parts[1][1].clone()]).expect("heads"), false);
    let refused = arranged.map(drop).expect_err("they do not belong together");
    let named = |file: &str, other: &str| file == "f1" && other == "f0";
    let told = matches!(&refused, DumpError::Contradiction { file, other } if named(file, other));
    assert!(told, "{refused}");
}

#[test]
fn of_dumps_against_the_same_one_the_later_comes_later() {
    let (volume, luns) = source(1);
    let mut rng = Rng::new(54);
    let mut snapshots = Vec::new();
    for name in ["zero", "one", "two"] {
        scribble(&luns, &mut rng, 30);
        snapshots.push(volume.create_snapshot(name).expect("a snapshot").id);
    }
    // By their ids the later one comes first.
    let zero = dump(&volume, 5, None, snapshots[0], 1, Compression::None).remove(0);
    let one = dump(&volume, 7, Some(snapshots[0]), snapshots[1], 1, Compression::None).remove(0);
    let two = dump(&volume, 6, Some(snapshots[0]), snapshots[2], 1, Compression::None).remove(0);
    let arranged = arrange(readers(&[two, one, zero]).expect("heads"), false).expect("arranged");
    let files: Vec<&str> = arranged.iter().flatten().map(PartReader::file).collect();
    assert_eq!(files, ["f2", "f0"], "nothing stands on the earlier one");
}

/// A volume and a copy of it, restored from its dump: each continues by itself, and assigns the
/// same numbers of blocks and of snapshots.
struct TwoCopies {
    here: (Arc<Volume>, Luns),
    there: (Arc<Volume>, Luns),
    /// Their common origin, and its dump.
    zero: SnapshotId,
    full: Vec<u8>,
}

impl TwoCopies {
    fn new(rng: &mut Rng) -> Self {
        let (volume, luns) = source(1);
        scribble(&luns, rng, 300);
        let zero = volume.create_snapshot("zero").expect("a snapshot").id;
        let full = dump(&volume, 5, None, zero, 1, Compression::None).remove(0);
        let (copy, _) = restored(std::slice::from_ref(&full), false, false).expect("restored");
        let there = (copy.clone(), Luns::new(copy));
        Self { here: (volume, luns), there, zero, full }
    }
}

/// Changes a volume, and makes a snapshot of it.
fn goes_on((volume, luns): &(Arc<Volume>, Luns), rng: &mut Rng, name: &str) -> SnapshotId {
    scribble(luns, rng, 100);
    volume.create_snapshot(name).expect("a snapshot").id
}

#[test]
fn dump_of_another_copy_takes_no_block_from_those_that_build_on_each_other() {
    let mut rng = Rng::new(55);
    let copies = TwoCopies::new(&mut rng);
    let (here, there) = (&copies.here, &copies.there);
    let one = goes_on(here, &mut rng, "one");
    let first = dump(&here.0, 6, Some(copies.zero), one, 1, Compression::None).remove(0);
    for name in ["theirs", "also-theirs"] {
        goes_on(there, &mut rng, name);
    }
    let last = there.0.snapshots().last().expect("a snapshot").id;
    let other = dump(&there.0, 7, Some(copies.zero), last, 1, Compression::Zstd).remove(0);
    here.0.create_snapshot("between").expect("a snapshot");
    let two = here.0.create_snapshot("two").expect("a snapshot").id;
    assert!(one < last && last < two, "it comes between them by its number");
    let second = dump(&here.0, 8, Some(one), two, 1, Compression::None).remove(0);
    let files = [copies.full, first, other, second];
    for threads in [false, true] {
        let (volume, _) = restored(&files, false, threads).expect("restored");
        let report = volume.check(&mut |_| {}).expect("a check");
        assert!(report.findings.is_empty(), "{:?}", report.findings.first());
        assert_eq!(shown(&volume), shown(&here.0));
    }
    let index = |(number, file): (usize, &Vec<u8>)| PartIndex::open(&format!("f{number}"), bytes_of(file));
    let parts = files.iter().enumerate().map(index).collect::<Result<Vec<_>, _>>().expect("heads");
    let mounted = OpenDump::open(parts, false, false, clock(), 1 << 20).expect("open");
    assert_eq!(shown(&mounted.volume), shown(&here.0));
}

#[test]
fn newest_dumps_of_two_copies_are_told_apart() {
    let mut rng = Rng::new(56);
    let copies = TwoCopies::new(&mut rng);
    let mut files = vec![copies.full];
    for (number, copy) in [(7, &copies.here), (6, &copies.there)] {
        let target = goes_on(copy, &mut rng, "one");
        files.push(dump(&copy.0, number, Some(copies.zero), target, 1, Compression::None).remove(0));
    }
    let refused = restored(&files, false, false).map(drop).expect_err("nobody knows which is meant");
    let named = |file: &str, other: &str| file == "f2" && other == "f1" || file == "f1" && other == "f2";
    let told = matches!(&refused, DumpError::TwoCopies { file, other, .. } if named(file, other));
    assert!(told, "{refused}");
    for file in [1, 2] {
        let chosen = [files[0].clone(), files[file].clone()];
        restored(&chosen, false, false).expect("one of them is restored");
    }
}
