//! A few hundred seeds of every kind, and the simulator's own promises.

use crate::{Kind, Timeline, run};

fn seeds(kind: Kind, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut timeline = Timeline::new(false);
        if let Err(error) = run(kind, seed, &mut timeline) {
            let recent: Vec<&str> = timeline.recent().collect();
            panic!(
                "{error:#}\n{}\nreplay: cargo run --release -p cairn-sim -- {seed} --kind {}",
                recent.join("\n"),
                kind.name()
            );
        }
    }
}

#[test]
fn volume_holds_its_promises_over_power_cuts_at_random() {
    seeds(Kind::Volume, 0..200);
}

#[test]
fn volume_holds_its_promises_over_a_cut_at_every_device_operation() {
    seeds(Kind::EveryCut, 0..20);
}

#[test]
fn same_seed_gives_the_same_digest() {
    for kind in Kind::ALL {
        let digests: Vec<u64> =
            (0..2).map(|_| run(kind, 7, &mut Timeline::new(false)).expect("seed 7 runs").digest).collect();
        assert_eq!(digests[0], digests[1], "{}", kind.name());
    }
    let other = run(Kind::Volume, 8, &mut Timeline::new(false)).expect("seed 8 runs").digest;
    assert_ne!(run(Kind::Volume, 7, &mut Timeline::new(false)).expect("seed 7 runs").digest, other);
}
