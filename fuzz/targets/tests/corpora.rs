//! The corpora in the repository match the present targets: a changed format can't leave old ones
//! unnoticed.

use std::path::Path;

use cairn_format::history::{HistorySuperblock, SLOT_B};
use cairn_format::layout::{LOG_HEADER_A, LOG_HEADER_B, SUPERBLOCK_A, SUPERBLOCK_B};
use cairn_format::{BlockBytes, LogDeviceHeader, Superblock};
use cairn_fuzz::{TARGETS, seeds};

/// The maximum size of a file in a corpus in bytes: small inputs suit a fuzzer and the repository.
const FILE_MAX: u64 = 100_000;

#[test]
fn corpora_have_what_targets_begin_with() {
    let shown = |path: &Path| path.strip_prefix(seeds::folder()).unwrap_or(path).display().to_string();
    let mut wrong: Vec<String> = Vec::new();
    for target in TARGETS {
        let made = seeds::made(target);
        assert!(!made.is_empty(), "{} begins with nothing", target.name);
        let missing = made.iter().filter(|(path, seed)| std::fs::read(path).ok().as_ref() != Some(seed));
        wrong.extend(missing.map(|(path, _)| format!("{} is missing", shown(path))));
    }
    let stale = seeds::stale().expect("the corpora can be listed");
    wrong.extend(stale.iter().map(|path| format!("{} is of an older target", shown(path))));
    assert!(wrong.is_empty(), "`cargo run -p cairn-fuzz -- corpus` mends it:\n{}", wrong.join("\n"));
}

#[test]
fn corpora_are_of_targets_and_small() {
    for folder in std::fs::read_dir(seeds::folder()).unwrap() {
        let folder = folder.unwrap();
        let name = folder.file_name().into_string().unwrap();
        assert!(TARGETS.iter().any(|target| target.name == name), "fuzz/corpus/{name} is of no target");
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            let bytes = entry.metadata().unwrap().len();
            assert!(bytes <= FILE_MAX, "{} has {bytes} bytes", entry.path().display());
        }
    }
}

/// A seed that is refused for its head leaves everything after the head untried.
#[test]
fn seeds_get_past_the_version_and_the_checksum() {
    let seeds_of = |name: &str| {
        let target = TARGETS.iter().find(|target| target.name == name).expect("it is a target");
        (target.seeds)()
    };
    let block = |seed: &[u8]| BlockBytes::try_from(seed).expect("a seed of a block has its size");
    for seed in seeds_of("superblock") {
        let read = |slot| Superblock::parse(&block(&seed), slot).is_ok();
        assert!(read(SUPERBLOCK_A) || read(SUPERBLOCK_B));
    }
    for seed in seeds_of("log_device") {
        let read = |slot| LogDeviceHeader::parse(&block(&seed), slot).is_ok();
        assert!(read(LOG_HEADER_A) || read(LOG_HEADER_B));
    }
    let is_history = |seed: &Vec<u8>| seed.starts_with(b"CAIRNHIS");
    let histories: Vec<_> = seeds_of("history_structs").into_iter().filter(is_history).collect();
    assert_eq!(histories.len(), 2);
    histories
        .iter()
        .for_each(|seed| drop(HistorySuperblock::parse(&block(seed), SLOT_B).expect("it is read")));
    let documents = seeds_of("state_documents");
    let read = |seed: &&Vec<u8>| cairn_server::fuzzing::state_document(seed).iter().any(Option::is_some);
    assert_eq!(documents.iter().filter(read).count(), documents.len() - 1, "one is of an unknown version");
}
