//! The corpora as files: `fuzz/corpus/TARGET/NAME`, made from real bytes.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cairn_base::{Checksum, Rng};

use crate::{TARGETS, Target};

/// The prefix of seeds' names; inputs that crashed once have other names.
const SEED: &str = "seed-";

/// Where corpora are: a folder for each target.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus")
}

/// The corpus of a target as its seeds are now: each with its file.
pub fn made(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = folder().join(target.name);
    let named = |seed: Vec<u8>| (folder.join(format!("{SEED}{:?}", Checksum::of(&seed))), seed);
    (target.seeds)().into_iter().map(named).collect()
}

/// Former seeds in the corpora that no target makes any more; inputs that crashed once are not
/// among them.
pub fn stale() -> Result<Vec<PathBuf>> {
    let made: HashSet<PathBuf> = TARGETS.iter().flat_map(made).map(|(path, _)| path).collect();
    let mut stale = Vec::new();
    for folder in std::fs::read_dir(folder()).context("the corpora are there")? {
        for entry in std::fs::read_dir(folder?.path())? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(SEED) && !made.contains(&entry.path()) {
                stale.push(entry.path());
            }
        }
    }
    stale.sort();
    Ok(stale)
}

/// Writes the seeds of all targets, and removes those that no target makes any more.
pub fn write() -> Result<()> {
    for (path, seed) in TARGETS.iter().flat_map(made) {
        let folder = path.parent().context("a seed lies in a folder")?;
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        std::fs::write(&path, &seed).with_context(|| path.display().to_string())?;
    }
    for path in stale()? {
        std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
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

/// For inputs that choose operations: any bytes will do.
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
