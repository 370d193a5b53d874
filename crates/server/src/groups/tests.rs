//! The order of a group's snapshots.

use super::*;

fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn snapshots_of_a_group_are_in_the_order_in_which_they_were_made_whatever_their_times_say() {
    // The names begin with the hour by a clock that was put back after the second one.
    let made = names("10a 11a 10b 11b");
    assert_eq!(in_order(vec![made.clone(), made.clone()]), made);
    assert_eq!(in_order(vec![names("10a 11b"), made.clone()]), made, "one that misses some");
    assert_eq!(in_order(vec![made.clone(), names("11a 11b")]), made);
    assert_eq!(in_order(vec![names("b"), names("a b c"), names("a x b y c")]), names("a x b y c"));
    assert_eq!(in_order(vec![Vec::new(), names("b a")]), names("b a"));
    assert!(in_order(Vec::new()).is_empty());
}
