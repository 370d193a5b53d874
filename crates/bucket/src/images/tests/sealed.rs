//! Images in an encrypted bucket: a life of two owners, each object changed, an old root replayed,
//! and each answer lost.

use super::super::{label_of, volumes};
use super::hostile::{named, read_all_of};
use super::*;
use crate::below::Below;
use crate::seal::{BucketKey, KeyHolder, Sealed, Seeded, sealed};

fn client(memory: &Arc<Memory>, seed: u64) -> Arc<Sealed> {
    Arc::new(sealed(memory.clone(), seed))
}

/// Two owners; also the objects when the second one began.
fn lived(memory: &Arc<Memory>) -> (Vec<Model>, Option<Seen>, BTreeMap<Name, Bytes>) {
    let images = images_of(client(memory, 1), &clock(), 1, 1);
    let models = line(9);
    let mut old = BTreeMap::new();
    let mut owner = images.claim("one", NOW, &never()).expect("claimed");
    for number in 1..=9 {
        if number == 6 {
            old = memory
                .names()
                .into_iter()
                .map(|name| (name.clone(), memory.raw(&name).expect("it")))
                .collect();
            owner = images.claim("two", NOW, &never()).expect("claimed");
        }
        advance(&mut owner, number, &models[number as usize - 1], &models[number as usize])
            .expect("committed");
    }
    (models, images.seen(), old)
}

#[test]
fn images_in_an_encrypted_bucket_are_read_and_nothing_in_it_is_readable() {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let (models, seen, _) = lived(&memory);
    assert!(read_all_of(client(&memory, 2), &models, seen).is_empty());
    let volume = VOLUME.to_string();
    for name in memory.names() {
        let bytes = memory.raw(&name).expect("an object");
        for word in ["superblock and table", "CAIRNIMG"] {
            assert!(!bytes.windows(word.len()).any(|some| some == word.as_bytes()), "{name}");
        }
        for word in ["images", "region", "root", "epoch", volume.as_str()] {
            assert!(!name.as_str().contains(word), "{name}");
        }
    }
    let wrong = KeyHolder::with_key(&BucketKey::from_bytes([8; 32]));
    let wrong = Sealed::new(memory, Arc::new(wrong), Seeded::new(1));
    let images = images_of(Arc::new(wrong), &clock(), 1, 1);
    assert!(images.images(&never()).expect("another key sees no names").is_empty());
}

#[test]
fn changed_object_of_an_encrypted_image_is_named_and_never_served() {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let (models, seen, _) = lived(&memory);
    let mut rng = Rng::new(4);
    let names = memory.names();
    let mut noticed = 0;
    for (number, name) in names.iter().enumerate() {
        let was = memory.raw(name).expect("an object");
        let other = memory.raw(&names[(number + 1) % names.len()]).expect("an object");
        let mut flipped = was.to_vec();
        // Not in the version.
        let at = 12 + rng.below(was.len() as u64 - 12) as usize;
        flipped[at] ^= 1 << rng.below(8);
        for changed in [flipped.into(), was.slice(..was.len() - 1), other] {
            memory.replace(name, Some(changed));
            let errors = read_all_of(client(&memory, 3), &models, seen);
            noticed += usize::from(!errors.is_empty());
            for error in errors {
                let is_named = named(&error).is_some() || matches!(error, ImagesError::Replayed { .. });
                assert!(is_named, "{name}: {error}");
            }
        }
        memory.replace(name, Some(was));
    }
    assert!(noticed > names.len(), "{noticed} of {} changes were noticed", 3 * names.len());
}

#[test]
fn old_root_of_an_encrypted_bucket_is_detected_by_a_server_that_has_seen_a_newer_one() {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let (models, seen, old) = lived(&memory);
    for name in memory.names() {
        memory.replace(&name, old.get(&name).cloned());
    }
    let errors = read_all_of(client(&memory, 2), &models, seen);
    assert!(matches!(errors[..], [ImagesError::Replayed { .. }]), "{errors:?}");
    assert!(read_all_of(client(&memory, 2), &models, None).is_empty(), "it is an older state as a whole");
}

/// The seal above or below the store that waits failures out.
#[test]
fn lost_and_late_answers_of_an_encrypted_bucket_are_resolved() {
    let models = line(3);
    for above in [true, false] {
        for call in 1..60 {
            for fate in [Fate::Lost, Fate::Late] {
                let memory = Arc::new(Memory::new(clock(), clock()));
                let gate = Gate::new(&memory, Some((call, fate)));
                let store: Arc<dyn Store> = match above {
                    true => {
                        let patience = Patience { time: Duration::from_secs(1 << 20), ..Patience::default() };
                        let clock = clock();
                        let retrying =
                            Retrying::new(gate.clone(), clock.clone(), clock, Rng::new(call), patience);
                        Arc::new(sealed(Arc::new(retrying), call))
                    }
                    false => Arc::new(sealed(gate.clone(), call)),
                };
                let images = images_of(store, &clock(), 12, call);
                let mut owner = images.claim("one", NOW, &never()).expect("claimed");
                for number in 1..=3 {
                    advance(&mut owner, number, &models[number as usize - 1], &models[number as usize])
                        .expect("committed");
                }
                gate.settle();
                let errors = read_all_of(client(&memory, 99), &models, images.seen());
                assert!(errors.is_empty(), "call {call} {fate:?}: {errors:?}");
            }
        }
    }
}

#[test]
fn volumes_of_an_encrypted_bucket_are_found_also_below_a_path() {
    for path in ["", "servers/a"] {
        let memory = Arc::new(Memory::new(clock(), clock()));
        let store = Below::at(client(&memory, 1), path).expect("a path");
        let workers: Arc<dyn Workers> = Arc::new(Alone);
        let (mut rng, mut ids) = (Rng::new(3), Vec::new());
        for number in 0..12 {
            let id = VolumeId(u128::from(rng.next()).to_be_bytes());
            let images = BucketImages::open(store.clone(), workers.clone(), id, None, Rng::new(number));
            images.claim(&label_of(&format!("vol{number}"), "a"), NOW, &never()).expect("claimed");
            ids.push((id, format!("vol{number}")));
        }
        ids.sort();
        let (found, unreadable) = volumes(&store, &workers, &never()).expect("listed");
        let found: Vec<(VolumeId, String)> =
            found.iter().map(|found| (found.id, found.name().expect("a name").to_owned())).collect();
        assert_eq!(found, ids, "{path}");
        assert!(unreadable.is_empty());
    }
}
