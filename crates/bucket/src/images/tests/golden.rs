//! A bucket of every released format is read by this program, and continued.

use std::path::PathBuf;

use super::super::codec::VERSION;
use super::*;
use crate::dumps::KeepDumps;

/// Every version that there is a bucket of.
const VERSIONS: &[&str] = &["images-v1"];
/// The bucket of this program's version.
const NEWEST: &str = "images-v1";
const IMAGES: u64 = 9;

fn folder(version: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version)
}

/// Two owners, a checkpoint, expired images, and an update that was interrupted.
fn lived() -> Arc<Memory> {
    let memory = Arc::new(Memory::new(clock(), clock()));
    let images = images_of(memory.clone(), &clock(), 1, 1);
    let models = line(IMAGES + 1);
    let mut owner = images.claim("one", NOW, &never()).expect("claimed");
    for number in 1..=IMAGES {
        if number == 6 {
            owner.expire(&KeepDumps { last: 3, ..KeepDumps::default() }, NOW, &never()).expect("expired");
            owner = images.claim("two", NOW, &never()).expect("claimed");
        }
        advance(&mut owner, number, &models[number as usize - 1], &models[number as usize])
            .expect("committed");
    }
    let (base, target) = (label(IMAGES, NOW), label(IMAGES + 1, NOW));
    let update = owner.begin(Some(base.id), target.id, &never()).expect("begun");
    put_changed(&update, &models[IMAGES as usize], &models[IMAGES as usize + 1]).expect("put");
    memory
}

/// Names, lengths and bytes of all objects, one after the other.
fn packed(memory: &Memory) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in memory.names() {
        let object = memory.raw(&name).expect("an object");
        bytes.extend_from_slice(format!("{name}\n{}\n", object.len()).as_bytes());
        bytes.extend_from_slice(&object);
    }
    bytes
}

fn unpacked(mut bytes: &[u8]) -> Arc<Memory> {
    let memory = Memory::new(clock(), clock());
    let line = |bytes: &mut &[u8]| {
        let end = bytes.iter().position(|byte| *byte == b'\n').expect("a line");
        let text = std::str::from_utf8(&bytes[..end]).expect("text").to_owned();
        *bytes = &bytes[end + 1..];
        text
    };
    while !bytes.is_empty() {
        let name = Name::new(line(&mut bytes)).expect("a name");
        let length: usize = line(&mut bytes).parse().expect("a length");
        let object = Bytes::copy_from_slice(&bytes[..length]);
        bytes = &bytes[length..];
        memory.put_new(&name, object, Nonce([3; 16]), &never()).expect("put");
    }
    Arc::new(memory)
}

#[test]
fn golden_buckets_are_read_and_continued() {
    let models = line(IMAGES + 1);
    for version in VERSIONS {
        let file = std::fs::read(folder(version).join("bucket.zst")).expect("the golden bucket");
        let memory = unpacked(&zstd::stream::decode_all(&file[..]).expect("unpacked"));
        let images = images_of(memory.clone(), &clock(), 1, 2);
        let labels = images.images(&never()).expect("a list");
        assert_eq!(labels.iter().map(|label| label.number).collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8, 9]);
        for label in &labels {
            let reader = images.image(Some(label.id), &never()).expect("opened");
            assert_reads(&reader, &models[label.number as usize]);
        }
        let mut owner = images.claim("three", NOW, &never()).expect("claimed");
        assert_eq!(owner.epoch(), 3);
        let (base, target) = (label(IMAGES, NOW), label(IMAGES + 1, NOW));
        let update = owner.begin(Some(base.id), target.id, &never()).expect("begun");
        assert_eq!(update.resumed(), 2, "the progress is read");
        put_changed(&update, &models[IMAGES as usize], &models[IMAGES as usize + 1]).expect("put");
        owner.commit(&update, target, &content(IMAGES + 1), NOW, &never()).expect("committed");
        owner.sweep(Duration::ZERO, NOW, &never()).expect("swept");
        owner.sweep_orphans(Orphans::All, Duration::ZERO, NOW, &never()).expect("swept");
        for label in images.images(&never()).expect("a list") {
            let reader = images.image(Some(label.id), &never()).expect("opened");
            assert_reads(&reader, &models[label.number as usize]);
        }
    }
}

#[test]
fn this_version_has_a_golden_bucket() {
    assert_eq!((NEWEST, VERSION), ("images-v1", 1), "a new version needs a bucket of its own");
    assert!(VERSIONS.contains(&NEWEST));
    let file = std::fs::read(folder(NEWEST).join("bucket.zst")).expect("the golden bucket");
    let golden = unpacked(&zstd::stream::decode_all(&file[..]).expect("unpacked"));
    assert_eq!(golden.names(), lived().names(), "this program uses other names");
}

#[test]
#[ignore = "writes the golden bucket of a new version; that of a released one is never made anew"]
fn golden_bucket_is_written() {
    let folder = folder(NEWEST);
    assert!(!folder.exists(), "it exists and stays as it is");
    std::fs::create_dir_all(&folder).expect("a folder");
    let packed = zstd::stream::encode_all(&packed(&lived())[..], 19).expect("packed");
    std::fs::write(folder.join("bucket.zst"), packed).expect("written");
}
