//! A sealed bucket of each released version of the format opens with this program.

use std::path::PathBuf;

use super::super::object::VERSION;
use super::*;
use crate::limits::PIECE_BYTES_MIN;
use crate::list_all;

/// The bucket of this program's version.
const NEWEST: &str = "sealed-v1";
const VERSIONS: &[&str] = &["sealed-v1"];

fn folder(version: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version)
}

/// Repeats itself, so that the packed bucket is as small as encryption lets it be.
fn small() -> Bytes {
    b"content of a small object".repeat(40).into()
}

const EPOCH: &str = "images/07070707070707070707070707070707/epoch/fffffffe";
const INDEX: &str = "dumps/07070707070707070707070707070707/00000000000000000000000000000000/index";
const PART: &str = "dumps/07070707070707070707070707070707/00000000000000000000000000000000/part-00000";

fn identity() -> Identity {
    Identity::generate(&*Seeded::new(77))
}

/// Objects put at once and in pieces, for two recipients.
fn filled() -> Arc<Memory> {
    let (memory, entropy, cancel) = (memory(), Seeded::new(5), never());
    let ring = Keyring::new(&*memory);
    let other = Identity::generate(&*Seeded::new(78)).recipient();
    let id = ring.create(&[identity().recipient(), other], &*entropy, &cancel).expect("made");
    let store = Sealed::new(memory.clone(), Arc::new(KeyHolder::new(id, vec![identity()])), entropy);
    for text in [EPOCH, INDEX] {
        store.put_new(&name(text), small(), Nonce([1; 16]), &cancel).expect("put");
    }
    let begun = store.begin(&name(PART), Nonce([2; 16]), &cancel).expect("begun");
    let piece = store.put_piece(&begun, 1, small(), &cancel).expect("a piece");
    store.finish(&begun, Nonce([2; 16]), &[piece], &cancel).expect("finished");
    memory
}

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
    let memory = memory();
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
    memory
}

#[test]
fn golden_sealed_buckets_open() {
    assert_eq!((NEWEST, VERSION), ("sealed-v1", 1), "a new version needs a bucket of its own");
    assert!(VERSIONS.contains(&NEWEST));
    for version in VERSIONS {
        let text = std::fs::read_to_string(folder(version).join("identity")).expect("the identity");
        let identities = Identity::parse_file(&text).expect("an identity");
        let memory = unpacked(&std::fs::read(folder(version).join("bucket")).expect("the golden bucket"));
        let KeyringState::Encrypted(id) = Keyring::new(&*memory).state(&never()).expect("a state") else {
            panic!("it is encrypted")
        };
        let holder = Arc::new(KeyHolder::new(id, identities));
        assert_eq!(Keyring::new(&*memory).recipients(&holder, &never()).expect("a list").len(), 2);
        let store = Sealed::new(memory, holder, Seeded::new(1));
        let listed = list_all(&store, &Prefix::all(), &never()).expect("a listing");
        assert!(listed.iter().map(|listed| &listed.name).eq([&name(INDEX), &name(PART), &name(EPOCH)]));
        for text in [INDEX, PART, EPOCH] {
            assert_eq!(
                store.get(&name(text), 0, PIECE_BYTES_MIN, &never()).expect("read"),
                small(),
                "{text}"
            );
        }
    }
}

/// The names and key objects depend on the format alone.
#[test]
fn this_version_writes_the_golden_sealed_bucket() {
    let golden = unpacked(&std::fs::read(folder(NEWEST).join("bucket")).expect("the golden bucket"));
    let made = filled();
    assert_eq!(golden.names(), made.names());
    for name in golden.names() {
        assert_eq!(golden.raw(&name), made.raw(&name), "{name}");
    }
}

#[test]
#[ignore = "writes the golden bucket of a new version; that of a released one is never made anew"]
fn golden_sealed_bucket_is_written() {
    let folder = folder(NEWEST);
    assert!(!folder.exists(), "it exists and stays as it is");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("identity"), &*identity().to_file()).expect("written");
    std::fs::write(folder.join("bucket"), packed(&filled())).expect("written");
}
