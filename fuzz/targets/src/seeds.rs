//! The corpora as files: `fuzz/corpus/TARGET/NAME`, made from real bytes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cairn_base::{Checksum, Rng};

use crate::TARGETS;

/// Where corpora are: a folder for each target.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus")
}

/// Writes the seeds of all targets, beside whatever is there.
pub fn write() -> Result<()> {
    for target in TARGETS {
        let folder = folder().join(target.name);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        for seed in (target.seeds)() {
            let path = folder.join(format!("seed-{:?}", Checksum::of(&seed)));
            std::fs::write(&path, &seed).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// The corpus of a target, in order of name; empty when there is none.
pub fn read(target: &str) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = folder().join(target);
    let mut paths = Vec::new();
    if folder.is_dir() {
        for entry in std::fs::read_dir(&folder)? {
            paths.push(entry?.path());
        }
    }
    paths.sort();
    paths.into_iter().map(|path| Ok((path.clone(), std::fs::read(&path)?))).collect()
}

/// For inputs that choose what is done: any bytes will do.
pub(crate) fn noise(count: u64, length: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|seed| {
            let mut bytes = vec![0; length];
            Rng::new(seed).fill(&mut bytes);
            bytes
        })
        .collect()
}

/// Texts as inputs.
pub(crate) fn lines(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
