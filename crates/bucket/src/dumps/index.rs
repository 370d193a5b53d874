//! The index of a dump in a bucket: the object that is written last, and makes the dump whole.
//!
//! A line of JSON and a line with its checksum. The version comes first. An index of a newer
//! version is reported as such, and its content is ignored.

use cairn_base::{Checksum, SnapshotId, Timestamp, VolumeId};
use cairn_format::dump::{DumpId, DumpLevel, PARTS_MAX};
use cairn_stream::PartHead;
use serde::{Deserialize, Serialize};

/// The version that this program writes, and the newest that it reads.
pub const INDEX_VERSION: u32 = 1;
/// Bytes of an index. A longer one is damaged.
pub const INDEX_BYTES_MAX: usize = 1 << 20;
/// Bytes of a part or a skeleton. An index with a longer one is damaged.
const PART_BYTES_MAX: u64 = 1 << 50;
/// Blocks of a dump, as its head limits them.
const BLOCKS_MAX: u64 = 1 << 40;
/// Bytes of a name of a volume or a snapshot.
const NAME_BYTES_MAX: usize = 128;
/// The level of a dump against a snapshot that was named.
const AGAINST_SNAPSHOT: u8 = 10;

/// A part of a dump in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    /// Bytes.
    pub length: u64,
    /// Bytes of its skeleton; 0 without one.
    pub skeleton: u64,
}

/// The description of a dump in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpIndex {
    /// The imaged volume.
    pub volume: VolumeId,
    /// Which dump.
    pub dump: DumpId,
    /// The name of the volume.
    pub name: String,
    /// Its level.
    pub level: DumpLevel,
    /// When it was begun, by the clock of its writer.
    pub created: Timestamp,
    /// The snapshot that it ends at.
    pub target: SnapshotId,
    /// The name of that.
    pub target_name: String,
    /// The snapshot that it begins at; none for a dump of everything.
    pub base: Option<SnapshotId>,
    /// The dump in this bucket that has that snapshot, which a restore needs too.
    pub on: Option<DumpId>,
    /// Blocks in all parts.
    pub blocks: u64,
    /// Its parts, in order.
    pub parts: Vec<PartEntry>,
}

#[derive(Serialize, Deserialize)]
struct Version {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct Text {
    format: u32,
    volume: String,
    dump: String,
    name: String,
    level: u8,
    created_ns: u64,
    target: u64,
    target_name: String,
    base: Option<u64>,
    on: Option<String>,
    blocks: u64,
    parts: Vec<PartEntry>,
}

/// Why an index is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoIndex {
    Damaged,
    Newer(u32),
}

/// The id in 32 hexadecimal digits.
pub(super) fn parse_dump_id(text: &str) -> Option<DumpId> {
    text.parse::<VolumeId>().ok().map(|id| DumpId(id.0))
}

impl DumpIndex {
    /// As an object.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let level = match self.level {
            DumpLevel::Level(level) => level,
            DumpLevel::AgainstSnapshot => AGAINST_SNAPSHOT,
        };
        let text = Text {
            format: INDEX_VERSION,
            volume: self.volume.to_string(),
            dump: self.dump.to_string(),
            name: self.name.clone(),
            level,
            created_ns: self.created.0,
            target: self.target.0,
            target_name: self.target_name.clone(),
            base: self.base.map(|base| base.0),
            on: self.on.map(|on| on.to_string()),
            blocks: self.blocks,
            parts: self.parts.clone(),
        };
        let mut bytes = serde_json::to_vec(&text).unwrap_or_default();
        let sum = format!("\n{:?}\n", Checksum::of(&bytes));
        bytes.extend_from_slice(sum.as_bytes());
        bytes
    }

    /// The index in an object.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, NoIndex> {
        let text = std::str::from_utf8(bytes).map_err(|_| NoIndex::Damaged)?;
        let (json, sum) =
            text.strip_suffix('\n').and_then(|text| text.rsplit_once('\n')).ok_or(NoIndex::Damaged)?;
        if format!("{:?}", Checksum::of(json.as_bytes())) != sum {
            return Err(NoIndex::Damaged);
        }
        let version: Version = serde_json::from_str(json).map_err(|_| NoIndex::Damaged)?;
        if version.format > INDEX_VERSION {
            return Err(NoIndex::Newer(version.format));
        }
        let text: Text = serde_json::from_str(json).map_err(|_| NoIndex::Damaged)?;
        let id = |text: &str| parse_dump_id(text).ok_or(NoIndex::Damaged);
        let level = match text.level {
            level @ 0..=9 => DumpLevel::Level(level),
            AGAINST_SNAPSHOT => DumpLevel::AgainstSnapshot,
            _ => return Err(NoIndex::Damaged),
        };
        let fits = |part: &PartEntry| part.length <= PART_BYTES_MAX && part.skeleton <= PART_BYTES_MAX;
        let parts_fit = (1..=PARTS_MAX as usize).contains(&text.parts.len()) && text.parts.iter().all(fits);
        // Names reach terminals.
        let is_name = |name: &str| name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control);
        let names_fit = is_name(&text.name) && is_name(&text.target_name);
        let on_nothing = text.base.is_none() && text.on.is_some();
        if !parts_fit || !names_fit || on_nothing || text.blocks > BLOCKS_MAX {
            return Err(NoIndex::Damaged);
        }
        Ok(Self {
            volume: text.volume.parse().map_err(|_| NoIndex::Damaged)?,
            dump: id(&text.dump)?,
            name: text.name,
            level,
            created: Timestamp(text.created_ns),
            target: SnapshotId(text.target),
            target_name: text.target_name,
            base: text.base.map(SnapshotId),
            on: text.on.as_deref().map(id).transpose()?,
            blocks: text.blocks,
            parts: text.parts,
        })
    }

    /// Whether a part that begins so is the part of that number of this dump.
    pub fn has(&self, head: &PartHead, part: u32) -> bool {
        let own = &head.dump;
        (own.volume, own.dump, own.part) == (self.volume, self.dump, part)
            && own.parts as usize == self.parts.len()
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.length).sum()
    }
}
