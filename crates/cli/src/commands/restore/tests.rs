//! The choice of files in a dump.

use super::*;

/// Comparing each name with all others would take too long.
#[test]
fn file_with_very_many_names_is_chosen_by_each_of_them_once() {
    let chosen: Chosen = (0..300_000).map(|n| (format!("links/{n:07}").into_bytes(), 7)).collect();
    let twice: Chosen = [&chosen[..], &chosen[..10], &[(b"links".to_vec(), 2)]].concat();
    let names = names_of(&twice);
    assert_eq!((names.len(), names[&2].len()), (2, 1));
    let wanted: Vec<Vec<u8>> = chosen.into_iter().map(|(path, _)| path).collect();
    assert!(names[&7] == wanted, "in the order in which they were chosen");
}
