use super::Round;

#[test]
fn round_ends_once_its_answers_are_as_long_as_its_data_may_be() {
    let mut round = Round::default();
    round.out.resize(999, 0);
    assert!(!round.is_full(1000));
    round.out.push(0);
    assert!(round.is_full(1000), "one command of 48 bytes can have an answer of 64 KiB");
}
