//! Seeds of every kind, and the simulator's own promises. The soak runs more of them.

use crate::{Kind, Timeline, run};

fn seeds(kind: Kind, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut timeline = Timeline::new(false);
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(kind, seed, &mut timeline)));
        let what = match outcome {
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "it panicked, see above".to_owned(),
        };
        let recent: Vec<&str> = timeline.recent().collect();
        panic!(
            "{what}\n{}\nreplay: cargo run --release -p cairn-sim -- {seed} --kind {}",
            recent.join("\n"),
            kind.name()
        );
    }
}

#[test]
fn volume_keeps_its_promises_over_power_cuts_at_random() {
    seeds(Kind::Volume, 0..20);
}

#[test]
fn volume_keeps_its_promises_over_other_power_cuts_at_random() {
    seeds(Kind::Volume, 60..80);
}

#[test]
fn volume_keeps_its_promises_over_a_cut_at_every_device_operation() {
    seeds(Kind::EveryCut, 0..40);
}

#[test]
fn rotten_media_are_reported_and_never_served() {
    seeds(Kind::Media, 0..90);
}

#[test]
fn mirror_shows_the_last_image_or_the_new_one_whatever_happens() {
    seeds(Kind::Image, 0..40);
    seeds(Kind::Mirror, 0..40);
}

#[test]
fn same_seed_gives_the_same_digest() {
    let digest = |kind, seed| {
        run(kind, seed, &mut Timeline::new(false)).unwrap_or_else(|error| panic!("{error:#}")).digest
    };
    for kind in Kind::ALL {
        assert_eq!(digest(kind, 7), digest(kind, 7), "{}", kind.name());
    }
    assert_ne!(digest(Kind::Volume, 7), digest(Kind::Volume, 8));
}
