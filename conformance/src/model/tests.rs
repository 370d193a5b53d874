use cairn_base::BLOCK_SIZE;

use super::{Model, content};

fn image(versions: &[u32]) -> Vec<u8> {
    let bytes = |(block, version): (u32, &u32)| match version {
        0 => [0; BLOCK_SIZE],
        version => content(7, block, *version),
    };
    (0..).zip(versions).flat_map(bytes).collect()
}

/// Two blocks, version 1 of both flushed, version 2 of the first answered.
fn model() -> Model {
    let mut model = Model::new(7, 2);
    model.submit(0, 2, false);
    model.answer(0, 2, false);
    let sent = model.flush_sent();
    model.flush_answered(sent);
    model.submit(0, 1, false);
    model.answer(0, 1, false);
    model
}

#[test]
fn flushed_or_later_versions_are_allowed_and_nothing_else() {
    for good in [[1, 1], [2, 1]] {
        model().settle(&image(&good)).unwrap();
    }
    for bad in [[0, 1], [1, 0], [3, 1]] {
        assert!(model().settle(&image(&bad)).is_err(), "{bad:?}");
    }
    let mut torn = image(&[2, 1]);
    torn[..512].copy_from_slice(&image(&[1, 1])[..512]);
    assert!(model().settle(&torn).is_err(), "a mixture");
}

#[test]
fn what_was_shown_after_a_kill_stays() {
    let mut model = model();
    model.settle(&image(&[1, 1])).unwrap();
    assert!(model.settle(&image(&[2, 1])).is_err(), "a lost version came back");
    model.settle(&image(&[1, 1])).unwrap();
    model.submit(0, 1, false);
    model.settle(&image(&[3, 1])).unwrap();
}

#[test]
fn write_answered_after_a_flush_was_sent_is_not_covered_by_it() {
    let mut model = Model::new(7, 1);
    let sent = model.flush_sent();
    model.submit(0, 1, false);
    model.answer(0, 1, false);
    model.flush_answered(sent);
    model.settle(&image(&[0])).unwrap();
}

#[test]
fn snapshot_shows_what_was_answered_before_it_or_submitted_until_it_was_made() {
    let mut model = model();
    let oldest = model.snapshot_begins();
    model.submit(1, 1, false);
    let shown = model.snapshot_made("s".to_owned(), oldest);
    model.submit(0, 1, false);
    for good in [[2, 1], [2, 2]] {
        model.compare_snapshot(&shown, &image(&good)).unwrap();
    }
    for bad in [[1, 1], [3, 1]] {
        assert!(model.compare_snapshot(&shown, &image(&bad)).is_err(), "{bad:?}");
    }
}
