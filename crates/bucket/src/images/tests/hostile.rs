//! A store that changes, swaps, cuts, replays and deletes objects: no wrong byte is ever served,
//! and the object is named.

use super::*;
use crate::dumps::KeepDumps;

struct Scene {
    memory: Arc<Memory>,
    models: Vec<Model>,
    seen: Option<Seen>,
    /// Objects of an older state of the bucket.
    old: BTreeMap<Name, Bytes>,
}

fn scene() -> Scene {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let images = images_of(memory.clone(), &clock(), 1, 1);
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
    owner.expire(&KeepDumps { last: 6, ..KeepDumps::default() }, NOW, &never()).expect("expired");
    Scene { memory, models, seen: images.seen(), old }
}

/// Reads all readable data, as a server that has seen `seen`. Wrong bytes panic.
fn read_all(scene: &Scene, seen: Option<Seen>) -> Vec<ImagesError> {
    read_all_of(scene.memory.clone(), &scene.models, seen)
}

/// The same of any store.
pub(super) fn read_all_of(store: Arc<dyn Store>, models: &[Model], seen: Option<Seen>) -> Vec<ImagesError> {
    let images = BucketImages::with_tuning(store, Arc::new(Alone), VOLUME, seen, Rng::new(2), SMALL);
    let labels = match images.images(&never()) {
        Ok(labels) => labels,
        Err(error) => return vec![error],
    };
    let mut errors = Vec::new();
    for label in labels {
        let reader = match images.image(Some(label.id), &never()) {
            Ok(reader) => reader,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let model = &models[label.number as usize];
        assert_eq!(reader.content(), content(label.number));
        for ((region, place), stamp) in model {
            let vbn = Vbn(u64::from(*region) * REGION_BLOCKS as u64 + *place as u64);
            match reader.read(vbn, 1, &never()) {
                Ok(bytes) => assert!(bytes == block(*stamp), "{vbn} of image {} is wrong", label.number),
                Err(error) => errors.push(error),
            }
        }
        let regions: Vec<u32> = reader.regions().map(|(region, _)| region).collect();
        for (region, read) in regions.iter().zip(reader.read_regions(&regions, &never())) {
            let blocks = match read {
                Ok(blocks) => blocks,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            let of_model = |(place, bytes): &(usize, &[u8])| {
                model.get(&(*region, *place)).is_some_and(|stamp| *bytes != block(*stamp))
            };
            assert!(
                !blocks.iter().any(|at| of_model(&at)),
                "region {region} of image {} is wrong",
                label.number
            );
        }
    }
    errors
}

pub(super) fn named(error: &ImagesError) -> Option<&Name> {
    match error {
        ImagesError::Damaged { name, .. } | ImagesError::Gone(name) | ImagesError::Newer { name, .. } => {
            Some(name)
        }
        _ => None,
    }
}

/// Puts `bytes` in the place of an object, reads everything, and puts it back.
fn with(scene: &Scene, name: &Name, bytes: Option<Bytes>) -> Vec<ImagesError> {
    let was = scene.memory.raw(name).expect("an object");
    // The store takes one away only as a whole, and gives one back only to a name that it has.
    scene.memory.replace(name, bytes);
    let errors = read_all(scene, scene.seen);
    if scene.memory.raw(name).is_none() {
        scene.memory.put_new(name, was.clone(), Nonce([1; 16]), &never()).expect("put back");
    }
    scene.memory.replace(name, Some(was));
    errors
}

/// The object is named, or the store is found to be in an older state.
fn assert_detected(errors: &[ImagesError], name: &Name, how: &str) {
    assert!(!errors.is_empty(), "{name} was {how}, and nothing was noticed");
    for error in errors {
        let is_named = named(error) == Some(name) || matches!(error, ImagesError::Replayed { .. });
        assert!(is_named, "{name} was {how}: {error}");
    }
}

/// Objects whose change affects the served data.
fn needed(scene: &Scene) -> Vec<Name> {
    let names = scene.memory.names().into_iter();
    names.filter(|name| !with(scene, name, None).is_empty()).collect()
}

#[test]
fn untouched_bucket_is_read_without_an_error() {
    let scene = scene();
    assert!(read_all(&scene, scene.seen).is_empty());
    let folders: BTreeSet<String> = needed(&scene)
        .iter()
        .map(|name| name.as_str().split('/').nth(2).unwrap_or_default().to_owned())
        .collect();
    let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
    assert_eq!(folders, ["base", "checkpoint", "epoch", "list", "region", "root"]);
}

#[test]
fn flipped_cut_and_lengthened_objects_are_detected_and_named() {
    let scene = scene();
    let mut rng = Rng::new(1);
    for name in needed(&scene) {
        let bytes = scene.memory.raw(&name).expect("an object");
        for round in 0..6 {
            let mut flipped = bytes.to_vec();
            // Blocks that no image shows any more may be in frames that are not read.
            let head = if name.as_str().contains("/region/") { 200 } else { bytes.len() };
            let at = if round == 0 { 0 } else { rng.below(head.min(bytes.len()) as u64) as usize };
            flipped[at] ^= 1 << rng.below(8);
            assert_detected(&with(&scene, &name, Some(flipped.into())), &name, "flipped");
            let cut = rng.below(bytes.len() as u64) as usize;
            assert_detected(&with(&scene, &name, Some(bytes.slice(..cut))), &name, "cut");
        }
        let longer: Bytes = [&bytes[..], &[0]].concat().into();
        assert_detected(&with(&scene, &name, Some(longer)), &name, "lengthened");
    }
}

#[test]
fn every_flip_in_a_region_is_detected_or_of_no_effect() {
    let scene = scene();
    for name in scene.memory.names().iter().filter(|name| name.as_str().contains("/region/")) {
        let bytes = scene.memory.raw(name).expect("an object");
        for at in (0..bytes.len()).step_by(211) {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 0x40;
            let errors = with(&scene, name, Some(flipped.into()));
            assert!(errors.iter().all(|error| named(error) == Some(name)), "{name}: {errors:?}");
        }
    }
}

#[test]
fn objects_in_the_place_of_others_are_detected_and_named() {
    let scene = scene();
    let names = needed(&scene);
    for name in &names {
        // All of its own kind, and some of the others.
        let folder = |name: &Name| name.as_str().split('/').nth(2).map(str::to_owned);
        let others =
            names.iter().enumerate().filter(|(at, other)| folder(other) == folder(name) || at % 9 == 0);
        for (_, other) in others.filter(|(_, other)| *other != name) {
            let bytes = scene.memory.raw(other);
            assert_detected(&with(&scene, name, bytes), name, "replaced by another object");
        }
    }
}

#[test]
fn deleted_objects_are_detected_and_named() {
    let scene = scene();
    let mut unnamed = 0;
    for name in needed(&scene) {
        let errors = with(&scene, &name, None);
        // Without the newest epoch or root the bucket looks like one in an older state. Without its
        // base, the newest epoch looks like one that never began.
        let shown = errors.iter().all(|error| named(error) == Some(&name));
        assert!(
            shown || errors.iter().all(|error| matches!(error, ImagesError::Replayed { .. })),
            "{name}: {errors:?}"
        );
        unnamed += u32::from(!shown);
    }
    assert!(unnamed <= 4, "{unnamed} deletions were not named");
}

#[test]
fn bucket_that_goes_back_is_detected_by_a_server_that_saw_it_later() {
    let mut scene = scene();
    let now: Vec<Name> = scene.memory.names();
    for name in &now {
        scene.memory.replace(name, scene.old.get(name).cloned());
    }
    // Objects that were deleted since then come back too.
    for (name, bytes) in &scene.old {
        if scene.memory.raw(name).is_none() {
            scene.memory.put_new(name, bytes.clone(), Nonce([1; 16]), &never()).expect("put back");
        }
    }
    let errors = read_all(&scene, scene.seen);
    assert!(matches!(errors[..], [ImagesError::Replayed { .. }]), "{errors:?}");
    // To a server that comes for the first time it is a bucket as it was.
    assert!(read_all(&scene, None).is_empty());
    // And an owner of it is refused too.
    let images = BucketImages::with_tuning(
        scene.memory.clone(),
        Arc::new(Alone),
        VOLUME,
        scene.seen,
        Rng::new(2),
        SMALL,
    );
    let error = images.claim("three", NOW, &never()).expect_err("it went back");
    assert!(matches!(error, ImagesError::Replayed { .. }), "{error}");
    scene.seen = None;
}

#[test]
fn another_volume_and_a_newer_version_are_refused() {
    let scene = scene();
    let name = needed(&scene).into_iter().find(|name| name.as_str().contains("/root/")).expect("a root");
    let mut newer = scene.memory.raw(&name).expect("a root").to_vec();
    newer[8] = 2;
    let errors = with(&scene, &name, Some(newer.into()));
    assert!(
        errors.iter().all(|error| matches!(
            error,
            ImagesError::Newer { version: 2, .. } | ImagesError::Damaged { .. }
        )),
        "{errors:?}"
    );
    let other =
        BucketImages::open(scene.memory.clone(), Arc::new(Alone), VolumeId([8; 16]), None, Rng::new(1));
    assert!(other.images(&never()).expect("a list").is_empty());
}

#[test]
fn region_of_the_same_name_with_other_blocks_is_detected_and_named() {
    use super::super::names::parse_region;
    use super::super::region::RegionHeader;
    let scene = scene();
    let mut forged_any = false;
    for name in needed(&scene).iter().filter(|name| name.as_str().contains("/region/")) {
        let (region, at) = parse_region(name).expect("a region");
        let bytes = scene.memory.raw(name).expect("an object");
        let header = RegionHeader::parse(&bytes, VOLUME).expect("a header");
        // As another Cairn would write it there: every checksum is right, and so is the length.
        let mut forged = header.clone();
        let first = usize::try_from(header.frame_at(0)).expect("short");
        let mut frames = bytes[first..].to_vec();
        let mut at_frame = 0;
        for frame in forged.frames.iter_mut().filter(|frame| frame.blocks != 0) {
            let stored = &mut frames[at_frame..at_frame + frame.length as usize];
            at_frame += frame.length as usize;
            if stored.len().is_multiple_of(BLOCK_SIZE) {
                stored.fill(0x77);
                frame.digest = cairn_base::Checksum::of(stored);
            }
        }
        if forged == header {
            continue;
        }
        forged_any = true;
        let object = [forged.write(VOLUME), frames].concat();
        assert_eq!((object.len(), region, at), (bytes.len(), header.region, header.at));
        assert_detected(&with(&scene, name, Some(object.into())), name, "written anew");
    }
    assert!(forged_any);
}
