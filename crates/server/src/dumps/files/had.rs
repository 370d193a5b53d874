//! The files in a dump of a part of its volume: of a path, or with exclusion patterns.
//!
//! A level above 0 has the later changes, by the dates of the files. A directory that is moved into
//! such a part later has files with their old dates, which no dump has. So the files of a dump are
//! recorded, one bit per file, and a dump based on it also has the files that are not recorded. A
//! directory with an excluded name is not recorded: the file of that name may be included under
//! another name.
//!
//! # Invariants
//! 1. A record belongs to one dump of a path, and names its date and snapshot. If it is missing,
//!    damaged, or of another dump, nothing is known, and all files are dumped.

use std::io;
use std::path::{Path, PathBuf};

use cairn_base::Checksum;
use cairn_bsddump::InodeMap;

use super::Record;
use crate::state;

/// Identifies the file, and the version of its layout. The first version recorded directories that
/// lacked names, so it is not reliable.
const MAGIC: &[u8; 8] = b"CNHAD\x00\x00\x02";
/// Bytes of the checksum at the end.
const SUM: usize = 16;

/// The path of the record of the last dump of a path and level.
pub(super) fn path(folder: &Path, of: &str, level: u8) -> PathBuf {
    let sum = Checksum::of(of.as_bytes()).0;
    let name: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(format!("had.{name}.{level}"))
}

/// The head of the record of that dump.
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

/// Records the files of a dump, for the next one.
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

/// The files of a dump; `None` if they are unknown.
pub(super) fn load(folder: &Path, record: &Record) -> Option<InodeMap> {
    let bytes = std::fs::read(path(folder, &record.path, record.level)).ok()?;
    let (body, sum) = bytes.split_last_chunk::<SUM>()?;
    let map = body.strip_prefix(&head(record)[..])?;
    (Checksum::of(body).0 == *sum).then(|| InodeMap::from_bytes(map.to_vec()))
}

#[cfg(test)]
mod tests;
