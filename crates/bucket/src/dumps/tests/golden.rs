//! A bucket of each released version of the format, as files: listed, opened and restored.
//!
//! `CAIRN_WRITE_GOLDEN_BUCKET=1` writes the bucket of this version if it does not exist yet. An
//! existing one is never changed.

use std::path::PathBuf;

use super::*;

/// Where the bucket of this version is.
const NEWEST: &str = "v1";

fn folder(version: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version)
}

/// Two levels, of which the second one is packed.
fn filled(dumps: &BucketDumps) -> (Vec<DumpIndex>, Vec<Vec<u8>>) {
    let mut source = Source::new();
    let first = source.step(24, "s0");
    let mut contents = vec![source.content()];
    let zero = write(dumps, &source, 0, (None, None), first, 1).expect("written");
    let second = source.step(6, "s1");
    contents.push(source.content());
    let one = write(dumps, &source, 1, (Some(first), Some(0)), second, 2).expect("written");
    (vec![zero, one], contents)
}

#[test]
fn golden_buckets_are_listed_opened_and_restored() {
    if std::env::var_os("CAIRN_WRITE_GOLDEN_BUCKET").is_some() && !folder(NEWEST).exists() {
        std::fs::create_dir_all(folder(NEWEST)).expect("a folder");
        let store = Directory::open(&folder(NEWEST), clock(), Rng::new(2)).expect("open");
        filled(&dumps_in(Arc::new(store)));
        std::fs::remove_dir_all(folder(NEWEST).join(".cairn-bucket")).expect("nothing is on its way");
    }
    assert_eq!(INDEX_VERSION, 1, "write a golden bucket of the new version, and keep the old ones");
    let (expected, contents) = filled(&dumps_in(memory()));
    let store = memory();
    let root = folder(NEWEST);
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&root).expect("below").to_str().expect("UTF-8").to_owned();
            let bytes = std::fs::read(&path).expect("read").into();
            let put = store.put_new(&Name::new(name).expect("a name"), bytes, Nonce([1; 16]), &never());
            assert_eq!(put.expect("put"), Put::Created);
        }
    }
    let dumps = dumps_in(store);
    let listing = dumps.list(None, &never()).expect("a listing");
    assert!(listing.unreadable.is_empty() && listing.unfinished.is_empty(), "{listing:?}");
    // The length of a packed part differs between versions of zstd.
    let alike = |index: &DumpIndex| {
        let parts = vec![PartEntry { length: 0, skeleton: 0 }; index.parts.len()];
        DumpIndex { parts, ..index.clone() }
    };
    assert!(listing.dumps.iter().map(alike).eq(expected.iter().map(alike)), "{:?}", listing.dumps);
    for (number, content) in contents.iter().enumerate() {
        let chain = BucketDumps::chain(&listing.dumps, expected[number].dump).expect("a chain");
        assert!(restored(&dumps, &chain) == *content, "level {number}");
    }
    let open = parts_of(&dumps, &listing.dumps);
    let open = open.into_iter().map(|(file, bytes)| PartIndex::open(&file, bytes).expect("an index"));
    assert!(open.collect::<Vec<_>>().iter().all(PartIndex::is_whole));
}
