//! Files inside image dumps in buckets and in folders, read in place: nothing is restored.
//!
//! Of a dump, its index and the blocks on a path are read. An opened dump is kept for a while, as
//! people look at one folder after the other. A dump never changes, so it is the same one as long
//! as its name leads to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_base::Clock;
use cairn_files::{Tree, TreeError};
use cairn_stream::{DumpBytes, OpenDump, PartIndex};
use parking_lot::Mutex;

use super::{Chain, Wanted};
use crate::buckets::Buckets;
use crate::dumps::error::DumpsError;
use crate::dumps::folders::DumpFolders;
use crate::error::ServerError;

/// Opened dumps that are kept.
const KEPT_MAX: usize = 4;

/// A dump is kept for this time after it was opened.
const KEPT_FOR: Duration = Duration::from_secs(120);

/// Memory for blocks of one dump.
const CACHE_BYTES: u64 = 16 << 20;

struct Kept {
    dump: Arc<OpenDump>,
    opened: Duration,
}

/// The dumps that were opened lately, by their names.
#[derive(Default)]
pub(crate) struct DumpTrees(Mutex<HashMap<String, Kept>>);

impl DumpTrees {
    /// The files of a dump in a bucket, or of an older snapshot in it.
    pub(crate) fn tree(
        &self,
        buckets: &Arc<Buckets>,
        clock: &Arc<dyn Clock>,
        (bucket, of): (&str, &str),
        at: Option<&str>,
    ) -> Result<Tree, ServerError> {
        let wanted = Wanted::of(bucket, of)?;
        self.tree_of(wanted.to_string(), clock, at, || open(&wanted, buckets, clock))
    }

    /// The same of a dump in a folder, by its id.
    pub(crate) fn tree_in_folder(
        &self,
        folders: &DumpFolders,
        clock: &Arc<dyn Clock>,
        (folder, id): (&str, &str),
        at: Option<&str>,
    ) -> Result<Tree, ServerError> {
        // No name of a bucket begins so.
        let name = format!("{folder}/{id}");
        self.tree_of(name, clock, at, || folders.open(folder, id, clock.clone(), CACHE_BYTES))
    }

    fn tree_of(
        &self,
        name: String,
        clock: &Arc<dyn Clock>,
        at: Option<&str>,
        open: impl FnOnce() -> Result<OpenDump, ServerError>,
    ) -> Result<Tree, ServerError> {
        let now = clock.monotonic();
        let found = {
            let mut kept = self.0.lock();
            kept.retain(|_, one| now.saturating_sub(one.opened) < KEPT_FOR);
            kept.get(&name).map(|one| one.dump.clone())
        };
        let dump = match found {
            Some(dump) => dump,
            // Without the lock: a store may take its time.
            None => {
                let dump = Arc::new(open()?);
                self.keep(name.clone(), dump.clone(), now);
                dump
            }
        };
        let full = at.map_or_else(|| name.clone(), |at| format!("{name}, snapshot {at}"));
        let snapshot = match at {
            None => None,
            Some(at) => {
                let found = dump.volume.snapshot_named(at);
                let missing = || ServerError::NotFound {
                    what: "snapshot in the dump",
                    name: at.to_owned(),
                    list: "cairn image list BUCKET:VOLUME",
                };
                Some(found.ok_or_else(missing)?.id)
            }
        };
        let image = dump.volume.image(snapshot).map_err(ServerError::volume(&full))?;
        Tree::of_image(image).map_err(|error| match error {
            TreeError::NoTree => ServerError::Invalid {
                fault: "the dump has no files: its volume had disks alone",
                next: "serve its disks with `cairn image mount`",
            },
            error => ServerError::tree(&full)(error),
        })
    }

    fn keep(&self, name: String, dump: Arc<OpenDump>, now: Duration) {
        let mut kept = self.0.lock();
        while kept.len() >= KEPT_MAX {
            let oldest = kept.iter().min_by_key(|(_, one)| one.opened).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { break };
            kept.remove(&oldest);
        }
        kept.insert(name, Kept { dump, opened: now });
    }
}

fn open(wanted: &Wanted, buckets: &Arc<Buckets>, clock: &Arc<dyn Clock>) -> Result<OpenDump, ServerError> {
    let open = buckets.open_to_read(&wanted.place.bucket)?;
    let cancel = Arc::<AtomicBool>::default();
    let chain = Chain::find(wanted, &open, &cancel)?;
    let failed = |error| wanted.place.failed(error);
    let mut parts = Vec::new();
    for index in &chain.indexes {
        for part in 0..index.parts.len() as u32 {
            let (name, _) = chain.dumps.part_names(index, part).map_err(failed)?;
            let object = format!("{}:{name}", wanted.place.bucket);
            let bytes = chain.dumps.open_part(index, part, &cancel).map_err(failed)?;
            let opened = PartIndex::open(&object, bytes as Arc<dyn DumpBytes>)?;
            if !index.has(opened.head(), part) {
                return Err(ServerError::Dumps(DumpsError::OtherObject { object }));
            }
            parts.push(opened);
        }
    }
    Ok(OpenDump::open(parts, false, false, clock.clone(), CACHE_BYTES)?)
}
