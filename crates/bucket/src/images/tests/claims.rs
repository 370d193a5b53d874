//! Claims after a known epoch, the list of volumes in a bucket, whole regions, and the purge.

use super::*;
use crate::Below;

fn open(store: &Arc<Memory>, volume: VolumeId, seed: u64) -> BucketImages {
    BucketImages::with_tuning(store.clone(), Arc::new(Alone), volume, None, Rng::new(seed), SMALL)
}

fn nonce(number: u8) -> Nonce {
    Nonce([number; 16])
}

#[test]
fn claim_after_a_known_epoch_never_fences_a_server_that_took_over() {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let (one, other) = (open(&memory, VOLUME, 1), open(&memory, VOLUME, 2));
    assert_eq!(one.newest_claim(&never()).expect("none"), None);
    let mut first = one.claim_after((0, nonce(1)), "vol0 on a", NOW, &never()).expect("claimed");
    let models = line(3);
    advance(&mut first, 1, &models[0], &models[1]).expect("committed");
    first.look(&never()).expect("it is the owner");
    let claim = one.newest_claim(&never()).expect("a claim").expect("a claim");
    assert_eq!((claim.epoch, claim.nonce, claim.volume()), (1, nonce(1), "vol0"));

    // The server starts again and continues from its own epoch.
    let mut second = one.claim_after((1, nonce(2)), "vol0 on a", NOW, &never()).expect("claimed");
    assert_eq!((second.epoch(), second.newest().map(|newest| newest.number)), (2, Some(1)));
    advance(&mut second, 2, &models[1], &models[2]).expect("committed");

    let mut third = other.claim("vol0 on b", NOW, &never()).expect("claimed");
    let late = one.claim_after((2, nonce(3)), "vol0 on a", NOW, &never());
    let error = late.expect_err("it is not the newest epoch");
    assert!(matches!(&error, ImagesError::Taken { epoch: 3, by } if by == "vol0 on b"), "{error}");
    assert!(second.look(&never()).expect_err("it is fenced").is_fenced());
    third.look(&never()).expect("the refused claim fenced no one");
    advance(&mut third, 3, &models[2], &models[3]).expect("committed");
}

#[test]
fn volumes_of_a_bucket_are_listed_with_their_names_and_servers() {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let workers: Arc<dyn Workers> = Arc::new(Alone);
    let whole: Arc<dyn Store> = memory.clone();
    assert!(volumes(&whole, &workers, &never()).expect("a list").0.is_empty());
    for (number, label) in [(3, "c on x"), (1, "a on x"), (2, "no name")] {
        let images = open(&memory, VolumeId([number; 16]), number.into());
        let mut owner = images.claim(label, NOW, &never()).expect("claimed");
        let models = line(1);
        advance(&mut owner, 1, &models[0], &models[1]).expect("committed");
    }
    let below = Below::at(whole.clone(), "servers/a").expect("a path");
    let deep = BucketImages::open(below.clone(), workers.clone(), VOLUME, None, Rng::new(9));
    deep.claim(&label_of("deep", "y"), NOW, &never()).expect("claimed");

    let names = |store: &Arc<dyn Store>| {
        let (found, unreadable) = volumes(store, &workers, &never()).expect("a list");
        let shown = found.iter().map(|found| (found.id.0[0], found.claim.volume().to_owned()));
        (shown.collect::<Vec<_>>(), unreadable.len())
    };
    let three = vec![(1, "a".to_owned()), (2, String::new()), (3, "c".to_owned())];
    assert_eq!(names(&whole), (three.clone(), 0));
    assert_eq!(names(&below), (vec![(7, "deep".to_owned())], 0));

    // A damaged claim hides no other volume.
    let claim = names::epoch(VolumeId([1; 16]), 1).expect("a name");
    memory.delete(&claim, &never()).expect("deleted");
    memory.put_new(&claim, "damaged".into(), nonce(9), &never()).expect("put");
    assert_eq!(names(&whole), (three[1..].to_vec(), 1));
}

#[test]
fn whole_regions_have_the_blocks_of_the_image() {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let images = open(&memory, VOLUME, 1);
    let mut owner = images.claim("one", NOW, &never()).expect("claimed");
    let models = line(5);
    for number in 1..=5 {
        advance(&mut owner, number, &models[number as usize - 1], &models[number as usize])
            .expect("committed");
    }
    let reader = images.image(None, &never()).expect("opened");
    let regions: Vec<u32> = reader.regions().map(|(region, _)| region).collect();
    let mut found = Model::new();
    for (region, blocks) in regions.iter().zip(reader.read_regions(&regions, &never())) {
        for (place, bytes) in blocks.expect("read").iter() {
            let stamp = models[5].get(&(*region, place));
            if let Some(stamp) = stamp {
                assert!(bytes == block(*stamp), "block {place} of region {region}");
                found.insert((*region, place), *stamp);
            }
        }
    }
    assert_eq!(found, models[5]);
    assert!(matches!(reader.read_regions(&[999], &never())[0], Err(ImagesError::NoBlock(_))));
}

#[test]
fn purge_deletes_all_but_claims_whatever_interrupts_it() {
    let models = line(6);
    let full = || {
        let memory = Arc::new(Memory::new(clock(), clock()));
        let images = open(&memory, VOLUME, 1);
        for epoch in 1..=3_u64 {
            let mut owner = images.claim("one", NOW, &never()).expect("claimed");
            for number in epoch * 2 - 1..=epoch * 2 {
                advance(&mut owner, number, &models[number as usize - 1], &models[number as usize])
                    .expect("committed");
            }
        }
        memory
    };
    let left = |memory: &Arc<Memory>| {
        let names = memory.names().into_iter().filter(|name| !name.as_str().contains("/epoch/"));
        names.collect::<Vec<_>>()
    };
    let memory = full();
    let images = open(&memory, VOLUME, 2);
    let owner = images.claim("one", NOW, &never()).expect("claimed");
    let mut last = (0, 0);
    let gone = owner.purge(&mut |done, of| last = (done, of), &never()).expect("purged");
    assert_eq!((last, left(&memory)), ((gone, gone), Vec::new()));
    assert!(images.images(&never()).is_err(), "this server saw images");
    let anew = open(&memory, VOLUME, 3);
    assert!(anew.images(&never()).expect("a list").is_empty());
    let mut owner = anew.claim("one", NOW, &never()).expect("claimed");
    assert_eq!(owner.epoch(), 5);
    advance(&mut owner, 1, &models[0], &models[1]).expect("committed");
    assert_reads(&anew.image(None, &never()).expect("opened"), &models[1]);

    // Cut at each call: either the newest image is whole, or there is none.
    for at in 1.. {
        let memory = full();
        let gate = Gate::new(&memory, Some((at, Fate::Cut)));
        let images = images_of(gate, &clock(), 1, 4);
        let purged =
            images.claim("one", NOW, &never()).and_then(|owner| owner.purge(&mut |_, _| (), &never()));
        let after = open(&memory, VOLUME, 5);
        if let Ok(reader) = after.image(None, &never()) {
            assert_reads(&reader, &models[6]);
        } else {
            assert!(after.images(&never()).expect("a list").is_empty(), "cut at {at}");
        }
        if purged.is_ok() {
            break;
        }
        let owner = after.claim("one", NOW, &never()).expect("claimed");
        owner.purge(&mut |_, _| (), &never()).expect("purged");
        assert!(left(&memory).is_empty(), "cut at {at}");
    }

    // A purge by an owner that is fenced deletes nothing.
    let memory = full();
    let images = open(&memory, VOLUME, 6);
    let owner = images.claim("one", NOW, &never()).expect("claimed");
    open(&memory, VOLUME, 7).claim("two", NOW, &never()).expect("claimed");
    let before = memory.names();
    assert!(owner.purge(&mut |_, _| (), &never()).expect_err("it is fenced").is_fenced());
    assert_eq!(memory.names(), before);
}
