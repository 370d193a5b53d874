//! The content of `dumps.json`: the last dump of each level, and an unfinished one.

use cairn_api as api;
use cairn_base::Checksum;
use cairn_bucket::dumps::PartNote;
use cairn_format::dump::{DumpId, DumpLevel};
use cairn_stream::{Compression, Reached};
use serde::{Deserialize, Serialize};

use crate::error::ServerError;

/// The content of `dumps.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ImageDumpsDocument {
    pub(super) dumps: Vec<Record>,
    /// A dump that is written, or was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unfinished: Option<Unfinished>,
}

/// The last dump of a level.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) level: u8,
    pub(super) id: String,
    pub(super) snapshot: u64,
    pub(super) name: String,
    /// The root digest of the snapshot.
    pub(super) root: String,
    pub(super) created_ms: u64,
    pub(super) bytes: u64,
    /// The dump made the snapshot itself.
    pub(super) own: bool,
    /// The bucket that it is in, as `BUCKET:PATH/`; none for files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bucket: Option<String>,
}

/// A dump that was begun and is not whole, or not confirmed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Unfinished {
    pub(super) id: String,
    /// None: against a snapshot that was named.
    pub(super) level: Option<u8>,
    pub(super) base: Option<KnownSnapshot>,
    pub(super) target: KnownSnapshot,
    /// The dump made the snapshot itself.
    pub(super) own: bool,
    pub(super) compress: bool,
    pub(super) begun_ms: u64,
    pub(super) parts: Vec<Part>,
    /// Bytes of all parts, once every one is whole and durable: only their names are missing.
    pub(super) written: Option<u64>,
    /// The state in a bucket, for a dump without files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bucket: Option<InBucket>,
}

/// The state of a dump into a bucket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct InBucket {
    /// `BUCKET:PATH/`.
    pub(super) to: String,
    /// The dump in the bucket that it is made against.
    pub(super) on: Option<String>,
    pub(super) lock_ms: Option<u64>,
    /// Up to where each part is in the bucket.
    pub(super) parts: Vec<PartNote>,
}

/// A snapshot that must still be the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KnownSnapshot {
    pub(super) snapshot: u64,
    pub(super) name: String,
    /// Its root digest.
    pub(super) root: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Part {
    /// The client's name for it.
    pub(super) file: String,
    /// The identity of that file: a copy need not have the durable bytes.
    pub(super) identity: String,
    pub(super) marks: Vec<Mark>,
}

/// Up to where a part is durable.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) bytes: u64,
    records: u64,
    blocks: u64,
    digest: String,
}

impl Mark {
    pub(crate) fn of(at: &Reached) -> Self {
        let Reached { bytes, records, blocks, digest } = *at;
        Self { bytes, records, blocks, digest: format!("{digest:?}") }
    }

    pub(super) fn reached(&self) -> Option<Reached> {
        let digest = Checksum(u128::from_str_radix(&self.digest, 16).ok()?.to_le_bytes());
        let Self { bytes, records, blocks, .. } = *self;
        Some(Reached { bytes, records, blocks, digest })
    }
}

impl Unfinished {
    /// The kind of its base. A manually edited file may have no level.
    pub(super) fn level(&self) -> DumpLevel {
        self.level.map_or(DumpLevel::AgainstSnapshot, DumpLevel::Level)
    }

    pub(super) fn dump_id(&self) -> Result<DumpId, ServerError> {
        let id = u128::from_str_radix(&self.id, 16).map(|id| DumpId(id.to_be_bytes()));
        id.map_err(|_| ServerError::Invalid {
            fault: "the id of the unfinished dump is damaged: it is not 32 hexadecimal digits",
            next: "abandon it with `cairn image levels VOLUME --give-up`, and dump again",
        })
    }

    pub(super) fn compression(&self) -> Compression {
        if self.compress { Compression::Zstd } else { Compression::None }
    }

    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn record(&self, level: u8, bytes: u64) -> Record {
        let KnownSnapshot { snapshot, name, root } = self.target.clone();
        let (id, created_ms, own) = (self.id.clone(), self.begun_ms, self.own);
        let bucket = self.bucket.as_ref().map(|bucket| bucket.to.clone());
        Record { level, id, snapshot, name, root, created_ms, bytes, own, bucket }
    }

    pub(super) fn show(&self, volume: &str) -> api::UnfinishedDump {
        let durable = |part: &Part| part.marks.last().map_or(0, |mark| mark.bytes);
        let in_bucket = self.bucket.iter().flat_map(|bucket| &bucket.parts).map(PartNote::bytes);
        let in_files = self.parts.iter().map(durable);
        api::UnfinishedDump {
            id: self.id.clone(),
            snapshot: format!("{volume}@{}", self.target.name),
            level: self.level().to_string(),
            base: self.base.as_ref().map(|base| format!("{volume}@{}", base.name)),
            begun_ms: self.begun_ms,
            files: self.parts.iter().map(|part| part.file.clone()).collect(),
            bucket: self.bucket.as_ref().map(|bucket| bucket.to.clone()),
            durable_bytes: self.written.unwrap_or(in_files.chain(in_bucket).sum()),
            whole: self.written.is_some(),
        }
    }
}
