//! Cutting runs of changed blocks to the window that a client asks for.

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
fn limit_holds() {
    assert_eq!(stretches(&RUNS, 0, 7 * 4096, 1), [(4096, false)]);
    assert_eq!(stretches(&RUNS, 0, 7 * 4096, 2), [(4096, false), (8192, true)]);
    assert_eq!(stretches(&RUNS, 4096, 7 * 4096, 1), [(8192, true)]);
}
