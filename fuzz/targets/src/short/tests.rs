use super::*;

#[test]
fn changes_are_the_same_for_a_seed_and_hit_everything() {
    let corpus = vec![vec![0; 8], vec![1; 100], Vec::new()];
    let made = |seed| {
        let mut rng = Rng::new(seed);
        (0..2000).map(|_| changed(&corpus, &mut rng)).collect::<Vec<_>>()
    };
    assert_eq!(made(1), made(1));
    assert_ne!(made(1), made(2));
    let longest = made(1).iter().map(Vec::len).max();
    assert!(longest > Some(100) && made(1).iter().any(Vec::is_empty));
    assert!((0..8).all(|at| made(1).iter().any(|input| input.len() == 8 && input[at] != 0)));
}
