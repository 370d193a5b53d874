//! Any of the parts, in any order: they are put in the order in which they build on each other, or what is missing is named.

use super::*;

const PARTS: u32 = 2;
const DUMPS: usize = 4;

/// Dumps that are each made against the one before, with ids that are not in that order.
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
            // By their ids, the first of which a part is missing.
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
    assert_eq!(files, ["f2", "f1", "f0"]);
}
