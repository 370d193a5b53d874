//! Which files a dump had that was of a part of its volume: of a path, or with patterns of what is
//! left out.
//!
//! A level above 0 has what changed since, by the dates of the files. A directory that comes into
//! such a part later has files that are as old as before, and that no dump has. So what a dump had
//! is noted, a bit a file, and a dump that stands on it has what is not among that as well. A
//! directory of which a name was left out is not noted: the file of that name may be by another
//! one.
//!
//! # Invariants
//! 1. A note is of one dump of a path, whose date and snapshot it names. When it is missing,
//!    damaged, or of another dump, nothing is known, and all is dumped.

use std::io;
use std::path::{Path, PathBuf};

use cairn_base::Checksum;
use cairn_bsddump::InodeMap;

use super::Record;
use crate::state;

/// Says what the file is, and which of its kind. The first kind had directories in it that lacked
/// names, so it tells nothing that can be relied on.
const MAGIC: &[u8; 8] = b"CNHAD\x00\x00\x02";
/// Bytes of the checksum at the end.
const SUM: usize = 16;

/// Where the note of the last dump of a path and level stands.
pub(super) fn path(folder: &Path, of: &str, level: u8) -> PathBuf {
    let sum = Checksum::of(of.as_bytes()).0;
    let name: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(format!("had.{name}.{level}"))
}

/// What a note of that dump begins with.
fn head(record: &Record) -> Vec<u8> {
    let (path, snapshot) = (record.path.as_bytes(), record.snapshot.as_bytes());
    let mut head = MAGIC.to_vec();
    head.extend(record.date.to_le_bytes());
    for text in [path, snapshot] {
        head.extend((text.len() as u32).to_le_bytes());
        head.extend(text);
    }
    head
}

/// Notes what a dump had, for the next one.
///
/// # Errors
/// The file system's.
pub(super) fn save(folder: &Path, record: &Record, had: &InodeMap) -> io::Result<()> {
    let mut bytes = head(record);
    bytes.extend(had.as_bytes());
    let sum = Checksum::of(&bytes);
    bytes.extend(sum.0);
    state::replace(&path(folder, &record.path, record.level), &bytes)
}

/// What a dump had; `None` when that is not known.
pub(super) fn load(folder: &Path, record: &Record) -> Option<InodeMap> {
    let bytes = std::fs::read(path(folder, &record.path, record.level)).ok()?;
    let (body, sum) = bytes.split_last_chunk::<SUM>()?;
    let map = body.strip_prefix(&head(record)[..])?;
    (Checksum::of(body).0 == *sum).then(|| InodeMap::from_bytes(map.to_vec()))
}

#[cfg(test)]
mod tests;
