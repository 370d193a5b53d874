//! Images in buckets: their required properties, every cut and every delay of a small life, many
//! seeds of a large one, and stores that change their content.

mod amplification;
mod claims;
mod cuts;
mod duel;
mod golden;
mod hostile;
mod life;
mod plain;
mod sealed;
mod structures;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{BLOCK_SIZE, ManualClock, Mutex, Rng, Timestamp, Vbn, VolumeId};

use super::*;
use crate::{
    Head, ListFrom, Memory, Name, Nonce, Page, Patience, Piece, Prefix, Put, Retrying, StoreError, Trouble,
    Upload, Verb,
};

const VOLUME: VolumeId = VolumeId([7; 16]);
const NOW: Timestamp = Timestamp(1_795_000_000_000_000_000);

/// So small that everything happens often.
const SMALL: Tuning = Tuning { since_max: 2, delta_max: 3, list_entries: 2, window: 3, progress: 2 };

/// Gives no thread to any caller, so that a run is the same each time.
struct Alone;

impl Workers for Alone {
    fn start(&self, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

struct Spawned;

impl Workers for Spawned {
    fn start(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().spawn(job).map(|_| ())
    }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(NOW))
}

fn never() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}

/// Region and place of each live block, with its content.
type Model = BTreeMap<(u32, usize), u64>;

/// Half of the blocks compress.
fn block(stamp: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_SIZE];
    match stamp % 2 {
        0 => bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&stamp.to_le_bytes())),
        _ => Rng::new(stamp).fill(&mut bytes),
    }
    bytes
}

fn blocks_of(model: &Model, region: u32) -> RegionBlocks {
    let mut blocks = RegionBlocks::new();
    for ((_, place), stamp) in model.range((region, 0)..(region + 1, 0)) {
        blocks.push(*place, &block(*stamp));
    }
    blocks
}

/// The regions that an update must put.
fn changed(base: &Model, target: &Model) -> BTreeSet<u32> {
    let is_new = |at: &(u32, usize), stamp: &u64| base.get(at) != Some(stamp);
    let new = target.iter().filter(|(at, stamp)| is_new(at, stamp)).map(|(at, _)| at.0);
    let empty = base
        .keys()
        .map(|at| at.0)
        .filter(|region| target.range((*region, 0)..(region + 1, 0)).next().is_none());
    new.chain(empty).collect()
}

fn label(number: u64, taken: Timestamp) -> ImageLabel {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&number.to_le_bytes());
    ImageLabel { id: ImageId(id), number, taken, blocks: 1 << 20 }
}

fn content(number: u64) -> Vec<u8> {
    format!("superblock and table of image {number}").into_bytes()
}

/// Every block of an open image matches the model, and so do the bytes of the volume.
fn assert_reads(reader: &ImageReader, model: &Model) {
    assert_eq!(reader.content(), content(reader.label().number));
    for ((region, place), stamp) in model {
        let vbn = Vbn(u64::from(*region) * REGION_BLOCKS as u64 + *place as u64);
        let read = reader.read(vbn, 1, &never());
        assert!(read.expect("a block that is live") == block(*stamp), "{vbn} of {:?}", reader.label());
    }
}

/// The fate of one call of a [`Gate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// This call and all later ones fail: the machine is lost.
    Cut,
    /// The call is done, and then the machine is lost.
    CutAfter,
    /// The call times out, and takes effect when the test calls `settle`.
    Late,
    /// The call is done, and its answer is lost.
    Lost,
}

type Deed = Box<dyn FnOnce(&Memory) + Send>;
type Visit = Box<dyn FnOnce() + Send>;

/// A store of one machine in front of a shared one: counts calls, and has a fate for one of them.
struct Gate {
    store: Arc<Memory>,
    calls: AtomicU64,
    fate: Option<(u64, Fate)>,
    /// Something that happens before a call.
    visit: Mutex<Option<(u64, Visit)>>,
    late: Mutex<Vec<Deed>>,
    /// Something that happens before each call.
    each: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Gate {
    fn new(store: &Arc<Memory>, fate: Option<(u64, Fate)>) -> Arc<Self> {
        Arc::new(Self {
            store: store.clone(),
            calls: AtomicU64::new(0),
            fate,
            visit: Mutex::new(None),
            late: Mutex::new(Vec::new()),
            each: Mutex::new(None),
        })
    }

    /// Executes the late calls.
    fn settle(&self) {
        let late = std::mem::take(&mut *self.late.lock());
        late.into_iter().for_each(|deed| deed(&self.store));
    }

    fn around<T>(
        &self,
        run: impl FnOnce(&Memory) -> Result<T, StoreError>,
        deed: Option<Deed>,
    ) -> Result<T, StoreError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let visit = {
            let mut visit = self.visit.lock();
            visit.take_if(|(at, _)| *at == call)
        };
        if let Some((_, visit)) = visit {
            visit();
        }
        if let Some(each) = &*self.each.lock() {
            each();
        }
        let failed = |trouble| StoreError { verb: Verb::Put, name: None, place: "gate:".into(), trouble };
        match self.fate {
            Some((at, Fate::Cut)) if call >= at => Err(failed(Trouble::Forbidden)),
            Some((at, Fate::CutAfter)) if call == at => {
                let _ = run(&self.store);
                Err(failed(Trouble::Forbidden))
            }
            Some((at, Fate::CutAfter)) if call > at => Err(failed(Trouble::Forbidden)),
            Some((at, Fate::Lost)) if call == at => {
                let _ = run(&self.store);
                Err(failed(Trouble::TimedOut))
            }
            Some((at, Fate::Late)) if call == at => {
                self.late.lock().extend(deed);
                Err(failed(Trouble::TimedOut))
            }
            _ => run(&self.store),
        }
    }
}

impl Store for Gate {
    fn place(&self) -> &str {
        "gate:"
    }

    fn lists_in_order(&self) -> bool {
        true
    }

    fn put_new(
        &self,
        name: &Name,
        bytes: Bytes,
        nonce: Nonce,
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        let (late_name, late_bytes) = (name.clone(), bytes.clone());
        let deed: Deed = Box::new(move |store| {
            let _ = store.put_new(&late_name, late_bytes, nonce, &AtomicBool::new(false));
        });
        self.around(|store| store.put_new(name, bytes, nonce, cancel), Some(deed))
    }

    fn begin(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError> {
        self.store.begin(name, nonce, cancel)
    }

    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError> {
        self.store.put_piece(upload, number, bytes, cancel)
    }

    fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        self.store.pieces(upload, cancel)
    }

    fn finish(
        &self,
        upload: &Upload,
        nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        self.store.finish(upload, nonce, pieces, cancel)
    }

    fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.store.abort(upload, cancel)
    }

    fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        self.store.uploads(prefix, cancel)
    }

    fn get(&self, name: &Name, offset: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, StoreError> {
        self.around(|store| store.get(name, offset, length, cancel), None)
    }

    fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<Head, StoreError> {
        self.around(|store| store.head(name, cancel), None)
    }

    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<Page, StoreError> {
        self.around(|store| store.list(prefix, from, count, cancel), None)
    }

    fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError> {
        let late_name = name.clone();
        let deed: Deed = Box::new(move |store| {
            let _ = store.delete(&late_name, &AtomicBool::new(false));
        });
        self.around(|store| store.delete(name, cancel), Some(deed))
    }

    fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.store.lock_until(name, until, cancel)
    }
}

/// The images as a machine has them that waits failures out.
fn images_of(store: Arc<dyn Store>, clock: &Arc<ManualClock>, tries: u32, seed: u64) -> BucketImages {
    let patience = Patience { tries, time: Duration::from_secs(1 << 20), ..Patience::default() };
    let retrying = Retrying::new(store, clock.clone(), clock.clone(), Rng::new(seed ^ 1), patience);
    BucketImages::with_tuning(Arc::new(retrying), Arc::new(Alone), VOLUME, None, Rng::new(seed), SMALL)
}

/// Puts the regions that an update must put.
fn put_changed(update: &Update, base: &Model, target: &Model) -> Result<(), ImagesError> {
    for region in changed(base, target) {
        if !update.has(region) {
            update.put_region(region, &blocks_of(target, region), &never())?;
        }
    }
    Ok(())
}

/// A whole update.
fn advance(owner: &mut Owner, number: u64, base: &Model, target: &Model) -> Result<Seen, ImagesError> {
    let label = label(number, Timestamp(NOW.0 + number * 3_600_000_000_000));
    let update = owner.begin(owner.newest().map(|newest| newest.id), label.id, &never())?;
    put_changed(&update, base, target)?;
    owner.commit(&update, label, &content(number), label.taken, &never())
}

/// Models of a few images of which each changes some regions, and empties one.
fn line(count: u64) -> Vec<Model> {
    let mut models = vec![Model::new()];
    for number in 1..=count {
        let mut model = models.last().cloned().unwrap_or_default();
        for at in 0..3_u64 {
            let region = ((number * 2 + at) % 5) as u32;
            model.insert((region, (number as usize * 37 + at as usize) % REGION_BLOCKS), number * 10 + at);
        }
        let emptied = (number % 5) as u32;
        if number % 3 == 0 {
            model.retain(|at, _| at.0 != emptied);
        }
        models.push(model);
    }
    models
}
