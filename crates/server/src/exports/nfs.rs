//! Exports of files over NFS: `DIR/nfs.json`.
//!
//! An export has a key for the handles of its clients. It is stored here, and also in the volume:
//! as the attribute `trusted.cairn.nfs` of the root of its files. So it gets to mirrors with the
//! volume, and the handles of clients stay valid at a mirror that is failed over. It is no secret
//! to readers of the volume: they read all that a handle could lead to. Two exports of volumes with
//! the same id on one server (of a clone, or of a mirror beside its source) have different keys, as
//! the key tells which of them a handle is of.
//!
//! A volume is exported over NFS or mounted on the server's machine, but not both: the kernel
//! caches the files of a mount, and would not see the changes of clients.
//!
//! Lock order: `deciding`, then `exports`, then the state of one export, then `served`, then the
//! locks of groups and volumes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cairn_api as api;
use cairn_base::VolumeId;
use cairn_files::{NodeKind, SetXattr, Tree, TreeError};
use cairn_frontend_nfs::{Export, Exports, KEY_BYTES, Key, Keys, Rules, Served, Squash, Unavailable, View};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::exports::access::Network;
use crate::groups::{Groups, Showing};
use crate::peers::token::random_bytes;
use crate::state;
use crate::state::Unread;
use crate::volumes::Volumes;
use crate::volumes::open::OpenVolume;

mod commands;
pub(crate) mod locks;

/// The attribute of the root of a volume's files with the key.
const KEY_NAME: &[u8] = b"trusted.cairn.nfs";
/// How long an export shows what it showed, before the volume is asked again.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long an image of a mirror or a snapshot stays open without a request.
const IDLE: Duration = Duration::from_secs(2);

/// The content of `nfs.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct NfsDocument {
    exports: Vec<Record>,
}

/// One export, as requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    volume: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
    /// `/` or `/PATH`, without a slash at its end.
    path: String,
    read_only: bool,
    squash: api::NfsSquash,
    networks: Vec<String>,
    /// The id of the volume, in hexadecimal.
    id: String,
    /// The key, in hexadecimal.
    key: String,
}

impl Record {
    /// `VOLUME` or `VOLUME@SNAPSHOT`.
    fn of(&self) -> String {
        match &self.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", self.volume),
            None => self.volume.clone(),
        }
    }

    fn name(&self) -> String {
        format!("{}:{}", self.of(), self.path)
    }

    fn client_path(&self) -> String {
        format!("/{}{}", self.of(), if self.path == "/" { "" } else { &self.path })
    }

    fn is(&self, volume: &str, snapshot: Option<&str>, path: &str) -> bool {
        self.volume == volume && self.snapshot.as_deref() == snapshot && self.path == path
    }

    fn key(&self) -> Option<[u8; KEY_BYTES]> {
        from_hex(&self.key)
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// The parts that all exports need.
struct Common {
    volumes: Arc<Volumes>,
    groups: Arc<Groups>,
    /// The trees that are served, by `VOLUME` or `VOLUME@SNAPSHOT`.
    served: Mutex<HashMap<String, Weak<Served>>>,
    /// The keys of all exports, by `VOLUME` or `VOLUME@SNAPSHOT`.
    keys: Mutex<Vec<(String, [u8; KEY_BYTES])>>,
    /// Differs in each process.
    start: u64,
    /// Trees that were served so far.
    trees: AtomicU64,
}

impl Common {
    /// Whether an export of another volume has a key.
    fn is_taken(&self, key: &[u8; KEY_BYTES], of: &str) -> bool {
        self.keys.lock().iter().any(|(other, known)| known == key && other != of)
    }

    /// The tree that a volume serves, which its exports share.
    fn serve(&self, of: &str, tree: &Arc<Tree>) -> Arc<Served> {
        let mut served = self.served.lock();
        served.retain(|_, known| known.strong_count() > 0);
        let known = served.get(of).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| Arc::ptr_eq(known.tree(), tree)) {
            return known;
        }
        // Another tree may lack writes that the earlier one had, and its clients learn of that by
        // another number.
        let number = self.start.wrapping_add(self.trees.fetch_add(1, Ordering::Relaxed));
        let new = Arc::new(Served::new(tree.clone(), number.to_be_bytes()));
        served.insert(of.to_owned(), Arc::downgrade(&new));
        new
    }
}

/// The files that an export showed last.
struct Kept {
    view: Arc<View>,
    looked: Instant,
    used: Instant,
}

/// An exported directory.
struct Exported {
    record: Record,
    name: String,
    client_path: String,
    networks: Vec<Network>,
    id: VolumeId,
    key: [u8; KEY_BYTES],
    common: Arc<Common>,
    kept: Mutex<Option<Kept>>,
    /// Why it showed no files when a client asked last.
    problem: Mutex<Option<String>>,
}

impl Exported {
    /// `None` for a record that no server wrote.
    fn new(record: Record, common: Arc<Common>) -> Option<Self> {
        let networks = record.networks.iter().map(|text| text.parse()).collect::<Result<_, _>>().ok()?;
        Some(Self {
            name: record.name(),
            client_path: record.client_path(),
            networks,
            id: VolumeId(from_hex(&record.id)?),
            key: record.key()?,
            common,
            kept: Mutex::default(),
            problem: Mutex::default(),
            record,
        })
    }

    /// The files that it shows now; opens them if they are not open.
    fn look(&self) -> Result<Arc<View>, ServerError> {
        let looked = self.look_at_volume();
        let problem = looked.as_ref().err().map(ToString::to_string);
        if *self.problem.lock() != problem {
            if let Some(problem) = &problem {
                tracing::warn!(export = self.name, problem, "an NFS export shows no files; clients wait");
            }
            *self.problem.lock() = problem;
        }
        looked
    }

    fn look_at_volume(&self) -> Result<Arc<View>, ServerError> {
        let mut kept = self.kept.lock();
        let now = Instant::now();
        if let Some(known) = &mut *kept {
            known.used = now;
            let is_fresh = now.saturating_duration_since(known.looked) < LOOK_EVERY;
            if is_fresh && known.view.served.tree().is_current() {
                return Ok(known.view.clone());
            }
        }
        let open = self.common.volumes.get(&self.record.volume)?;
        let known = kept.as_ref().map(|known| known.view.served.tree().clone());
        let tree = self.tree(&open, known.as_ref())?;
        let view = match kept.take() {
            Some(known) if Arc::ptr_eq(known.view.served.tree(), &tree) => known.view,
            _ => Arc::new(self.show(&open, &tree)?),
        };
        *kept = Some(Kept { view: view.clone(), looked: now, used: now });
        Ok(view)
    }

    /// The tree to show: the known one, if that is still right.
    fn tree(&self, open: &Arc<OpenVolume>, known: Option<&Arc<Tree>>) -> Result<Arc<Tree>, ServerError> {
        let failed = ServerError::tree(&self.name);
        let known = known.filter(|tree| Arc::ptr_eq(tree.volume(), &open.volume));
        let image = match &self.record.snapshot {
            Some(past) => {
                let found = open.past(past).map_err(ServerError::volume(&self.record.volume))?;
                found.ok_or_else(|| open.no_snapshot(past))?
            }
            None => match self.common.groups.showing(open)? {
                Showing::Live => return open.live_tree(),
                Showing::Image(image) => image,
                Showing::Newest => {
                    open.volume.image(None).map_err(ServerError::volume(&self.record.volume))?
                }
            },
        };
        let generation = image.root().generation;
        let is_it =
            |tree: &&Arc<Tree>| tree.image().is_some_and(|image| image.root().generation == generation);
        match known.filter(is_it) {
            Some(tree) => Ok(tree.clone()),
            None => Ok(Arc::new(Tree::of_image(image).map_err(failed)?)),
        }
    }

    fn show(&self, open: &OpenVolume, tree: &Arc<Tree>) -> Result<View, ServerError> {
        let failed = ServerError::tree(&self.name);
        if open.volume.id() != self.id {
            return Err(ServerError::NotFound {
                what: "volume of the export",
                name: self.name.clone(),
                list: "cairn volume list",
            });
        }
        let found = tree.resolve(self.record.path.as_bytes()).map_err(&failed)?;
        if found.kind != NodeKind::Directory {
            return Err(failed(TreeError::NotDirectory));
        }
        let keys = self.keys(tree);
        let served = self.common.serve(&self.record.of(), tree);
        Ok(View { served, root: found.file, keys, shows_snapshots: self.record.snapshot.is_none() })
    }

    /// The key in the volume comes first: its clients may come from a server that the volume was
    /// mirrored from.
    fn keys(&self, tree: &Tree) -> Keys {
        let own = Key::new(self.key);
        let in_volume = key_in(tree).filter(|key| !self.common.is_taken(key, &self.record.of()));
        match in_volume {
            Some(key) if key != self.key => Keys { own: Key::new(key), earlier: vec![own] },
            Some(_) => Keys { own, earlier: Vec::new() },
            None => {
                // After a rollback to before the export, or for a mirror of an older volume.
                if self.record.snapshot.is_none() && !tree.is_read_only() {
                    put_key(tree, &self.key, &self.name);
                }
                Keys { own, earlier: Vec::new() }
            }
        }
    }

    /// Drops an image that no client has used for a while, and a tree that has ended.
    fn rest(&self) {
        let gone = {
            let Some(mut kept) = self.kept.try_lock() else { return };
            let Some(known) = &*kept else { return };
            let tree = known.view.served.tree();
            let is_idle = tree.is_read_only() && known.used.elapsed() > IDLE;
            if is_idle || !tree.is_current() { kept.take() } else { None }
        };
        match gone {
            Some(gone) => drop(gone),
            None => {
                let view = self.kept.lock().as_ref().map(|known| known.view.clone());
                if let Some(view) = view {
                    view.served.rest();
                }
            }
        }
    }
}

/// The key in the root of a volume's files.
fn key_in(tree: &Tree) -> Option<[u8; KEY_BYTES]> {
    tree.xattr(tree.root(), KEY_NAME).ok()?.try_into().ok()
}

/// Stores the key in the volume, for its mirrors. Best effort: without it the handles of clients
/// are stale at a mirror that is failed over.
fn put_key(tree: &Tree, key: &[u8; KEY_BYTES], export: &str) {
    if let Err(error) = tree.set_xattr(tree.root(), KEY_NAME, key, SetXattr::Any) {
        tracing::warn!(export, %error, "the key of an NFS export is not in its volume; clients must mount again after a failover");
    }
}

impl Export for Exported {
    fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> &str {
        &self.client_path
    }

    fn volume(&self) -> VolumeId {
        self.id
    }

    fn rules(&self) -> Rules {
        let squash = match self.record.squash {
            api::NfsSquash::Root => Squash::Root,
            api::NfsSquash::None => Squash::None,
            api::NfsSquash::All => Squash::All,
        };
        Rules { read_only: self.record.read_only, squash, anonymous: Rules::NOBODY }
    }

    fn admits(&self, client: IpAddr) -> bool {
        self.networks.is_empty() || self.networks.iter().any(|network| network.holds(client))
    }

    fn networks(&self) -> Vec<String> {
        self.record.networks.clone()
    }

    fn view(&self) -> Result<Arc<View>, Unavailable> {
        self.look().map_err(|_| Unavailable)
    }
}

#[derive(Default)]
struct Table {
    mine: Vec<Arc<Exported>>,
    /// The same as clients see them.
    shown: Arc<[Arc<dyn Export>]>,
}

impl Table {
    fn new(mine: Vec<Arc<Exported>>) -> Self {
        let shown = mine.iter().map(|export| export.clone() as Arc<dyn Export>).collect();
        Self { mine, shown }
    }
}

/// The exports of a server.
pub(crate) struct NfsTable {
    path: PathBuf,
    /// The exports are unknown.
    unread: Mutex<Option<Unread>>,
    common: Arc<Common>,
    exports: Mutex<Table>,
    /// Held while it is decided whether a volume is exported or mounted.
    deciding: Mutex<()>,
}

impl NfsTable {
    /// The exports in the file of a data directory.
    pub(crate) fn open(
        data: &Path,
        volumes: Arc<Volumes>,
        groups: Arc<Groups>,
    ) -> Result<Arc<Self>, ServerError> {
        let common = Common {
            volumes,
            groups,
            served: Mutex::default(),
            keys: Mutex::default(),
            start: u64::from_be_bytes(random_bytes()),
            trees: AtomicU64::new(0),
        };
        let table = Self {
            path: data.join("nfs.json"),
            unread: Mutex::default(),
            common: Arc::new(common),
            exports: Mutex::default(),
            deciding: Mutex::default(),
        };
        table.read();
        Ok(Arc::new(table))
    }

    /// Loads the present content of the file.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<NfsDocument>(&self.path);
        *self.unread.lock() = unread;
        let records = document.unwrap_or_default().exports;
        let made = records.into_iter().filter_map(|record| {
            let name = record.name();
            let made = Exported::new(record, self.common.clone());
            if made.is_none() {
                tracing::error!(export = name, "an NFS export is not served: its record is not valid");
            }
            made.map(Arc::new)
        });
        self.put(made.collect());
    }

    fn put(&self, exports: Vec<Arc<Exported>>) {
        *self.common.keys.lock() = exports.iter().map(|export| (export.record.of(), export.key)).collect();
        *self.exports.lock() = Table::new(exports);
    }

    fn all_mine(&self) -> Vec<Arc<Exported>> {
        self.exports.lock().mine.clone()
    }

    /// The name of an export of a volume.
    fn of_volume(&self, concerned: impl Fn(&str, Option<&str>) -> bool) -> Option<String> {
        let exports = self.exports.lock();
        let is_it =
            |export: &&Arc<Exported>| concerned(&export.record.volume, export.record.snapshot.as_deref());
        exports.mine.iter().find(is_it).map(|export| export.name.clone())
    }

    /// Releases all trees: the server ends.
    pub(crate) fn end(&self) {
        self.exports.lock().mine.iter().for_each(|export| drop(export.kept.lock().take()));
    }
}

impl Exports for NfsTable {
    fn all(&self) -> Arc<[Arc<dyn Export>]> {
        self.exports.lock().shown.clone()
    }

    fn rest(&self) {
        self.all_mine().iter().for_each(|export| export.rest());
    }
}
