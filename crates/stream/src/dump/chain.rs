//! Which parts make a dump, and in which order dumps build on each other.

use std::collections::{BTreeMap, HashMap};

use cairn_base::{Checksum, SnapshotId};
use cairn_format::SnapshotEntry;
use cairn_format::dump::DumpId;
use cairn_format::stream::{StreamKind, root_digest};

use super::error::DumpError;
use super::index::PartIndex;
use super::read::{PartHead, PartReader};

/// The data of a part that decide its place.
pub trait Part {
    /// Its name.
    fn file(&self) -> &str;
    /// How it begins.
    fn head(&self) -> &PartHead;
    /// The snapshots that its dump brings, if that is known yet.
    fn table(&self) -> Option<Vec<SnapshotEntry>>;
}

impl Part for PartReader {
    fn file(&self) -> &str {
        self.file()
    }

    fn head(&self) -> &PartHead {
        self.head()
    }

    fn table(&self) -> Option<Vec<SnapshotEntry>> {
        self.table()
    }
}

impl Part for PartIndex {
    fn file(&self) -> &str {
        self.file()
    }

    fn head(&self) -> &PartHead {
        self.head()
    }

    fn table(&self) -> Option<Vec<SnapshotEntry>> {
        self.table().map(<[_]>::to_vec)
    }
}

/// Puts parts together to dumps, and dumps in the order in which they build on each other: first
/// the one of everything, then those made against it. The order in which the parts are given does
/// not matter.
///
/// The result contains only the dumps that the newest one builds on. Another dump may be contained
/// in it entirely, or be of another state of the volume (a copy that diverged, or a state that was
/// reverted). Such a dump can have other blocks under the required numbers, and would overwrite
/// them.
///
/// With `without_base` the first dump may have a base that is missing here.
///
/// # Errors
/// Parts that are missing, double, of another volume, or whose base none of the others has; two
/// that are the newest, of two copies.
pub fn arrange<P: Part>(parts: Vec<P>, without_base: bool) -> Result<Vec<Vec<P>>, DumpError> {
    let mut dumps: BTreeMap<DumpId, Vec<P>> = BTreeMap::new();
    let mut volume = None;
    for part in parts {
        let found = part.head().dump.volume;
        let expected = *volume.get_or_insert(found);
        if expected != found {
            return Err(DumpError::OtherVolume { file: part.file().to_owned(), expected, found });
        }
        dumps.entry(part.head().dump.dump).or_default().push(part);
    }
    let mut dumps: Vec<Vec<P>> = dumps.into_values().map(whole).collect::<Result<_, _>>()?;
    // A dump's base is older than its target: sorted by targets, each comes after its possible
    // bases.
    dumps.sort_by_key(|dump| dump.first().map(|part| (part.head().stream.target, part.head().stream.base)));
    let mut full: Option<&P> = None;
    // Snapshots, and the first dump that has each.
    let mut known: HashMap<(SnapshotId, Checksum), usize> = HashMap::new();
    let mut stands_on: Vec<Option<usize>> = Vec::new();
    for (number, dump) in dumps.iter().enumerate() {
        let mut base = None;
        let Some(first) = dump.first() else {
            stands_on.push(base);
            continue;
        };
        let stream = &first.head().stream;
        match stream.kind {
            StreamKind::Full => {
                if let Some(other) = full.replace(first) {
                    let (file, other) = (first.file().to_owned(), other.file().to_owned());
                    return Err(DumpError::TwoFull { file, other });
                }
            }
            StreamKind::Incremental => {
                base = known.get(&(stream.base, stream.base_digest)).copied();
                let may_lack_it = without_base && number == 0;
                if base.is_none() && !may_lack_it {
                    return Err(DumpError::MissingBase { file: first.file().to_owned(), base: stream.base });
                }
            }
        }
        stands_on.push(base);
        known.entry((stream.target, stream.target_digest)).or_insert(number);
        let table = dump.iter().find_map(Part::table).unwrap_or_default();
        for entry in &table {
            known.entry((entry.id, root_digest(entry))).or_insert(number);
        }
    }
    refuse_two_newest(&dumps)?;
    let mut needed = vec![false; dumps.len()];
    let mut next = dumps.len().checked_sub(1);
    while let Some(number) = next {
        needed[number] = true;
        next = stands_on[number];
    }
    let needed = dumps.into_iter().zip(needed).filter(|(_, is_needed)| *is_needed);
    Ok(needed.map(|(dump, _)| dump).collect())
}

/// Refuses two dumps with the same, highest number and different content: it is unknown which of
/// them is meant.
fn refuse_two_newest<P: Part>(dumps: &[Vec<P>]) -> Result<(), DumpError> {
    let firsts = || dumps.iter().rev().filter_map(|dump| dump.first());
    let Some(newest) = firsts().next() else { return Ok(()) };
    let target = |part: &P| (part.head().stream.target, part.head().stream.target_digest);
    let (snapshot, digest) = target(newest);
    let other = firsts()
        .map(|part| (part, target(part)))
        .find(|(_, (id, found))| *id == snapshot && *found != digest);
    match other {
        None => Ok(()),
        Some((other, _)) => {
            let (file, other) = (newest.file().to_owned(), other.file().to_owned());
            Err(DumpError::TwoCopies { file, other, snapshot })
        }
    }
}

/// All parts of a dump, in order, each once, and of one mind.
fn whole<P: Part>(mut parts: Vec<P>) -> Result<Vec<P>, DumpError> {
    parts.sort_by_key(|part| part.head().dump.part);
    let Some(first) = parts.first() else { return Ok(parts) };
    let (dump, count) = (first.head().dump.dump, first.head().dump.parts);
    let mut expected = 0;
    for (number, part) in parts.iter().enumerate() {
        let own = &part.head().dump;
        let other = || parts[number.saturating_sub(1)].file().to_owned();
        if !belong_together(first.head(), part.head()) {
            return Err(DumpError::Contradiction { file: part.file().to_owned(), other: other() });
        }
        if number > 0 && own.part < expected {
            return Err(DumpError::DoublePart { file: part.file().to_owned(), other: other() });
        }
        if own.part > expected {
            return Err(DumpError::MissingPart { dump, part: expected + 1, parts: count });
        }
        expected += 1;
    }
    if expected < count {
        return Err(DumpError::MissingPart { dump, part: expected + 1, parts: count });
    }
    Ok(parts)
}

fn belong_together(one: &PartHead, other: &PartHead) -> bool {
    let mut alike = other.clone();
    alike.dump.part = one.dump.part;
    alike.stream.changed_blocks = one.stream.changed_blocks;
    alike == *one
}
