//! Cutting runs of changed blocks to the requested window.

use super::*;

const RUNS: [(Lba, u64); 2] = [(Lba(1), 2), (Lba(5), 1)];

#[test]
fn window_is_covered_in_order_and_cut_inside_blocks() {
    assert_eq!(
        stretches(&RUNS, 0, 7 * 4096, 99),
        [(4096, false), (8192, true), (8192, false), (4096, true), (4096, false)]
    );
    assert_eq!(stretches(&RUNS, 5000, 1000, 99), [(1000, true)]);
    assert_eq!(stretches(&RUNS, 11 * 4096, 4096, 99), [(4096, false)]);
    assert_eq!(stretches(&[], 0, 512, 99), [(512, false)]);
}

#[test]
fn pages_have_each_range_once_and_end_with_the_lun() {
    let range = |offset, bytes| api::ChangedRange { offset, bytes };
    let whole = page(&RUNS, 6 * 4096 - 512, 0, 10);
    assert_eq!(whole.ranges, [range(4096, 8192), range(5 * 4096, 4096 - 512)]);
    assert_eq!(whole.next, None);
    let first = page(&RUNS, 6 * 4096, 0, 1);
    assert_eq!((first.ranges.clone(), first.next), (vec![range(4096, 8192)], Some(5 * 4096)));
    let second = page(&RUNS, 6 * 4096, 5 * 4096, 1);
    assert_eq!((second.ranges, second.next), (vec![range(5 * 4096, 4096)], None));
    assert_eq!(page(&RUNS, 6 * 4096, 6000, 9).ranges[0], range(6000, 3 * 4096 - 6000));
    assert!(page(&RUNS, 6 * 4096, 6 * 4096, 9).ranges.is_empty());
    assert!(page(&RUNS, 4096, 0, 9).ranges.is_empty(), "it was longer");
}

#[test]
fn limit_holds() {
    assert_eq!(stretches(&RUNS, 0, 7 * 4096, 1), [(4096, false)]);
    assert_eq!(stretches(&RUNS, 0, 7 * 4096, 2), [(4096, false), (8192, true)]);
    assert_eq!(stretches(&RUNS, 4096, 7 * 4096, 1), [(8192, true)]);
}
