//! From a handle to a file: which export, which tree, and whether it is still the same file.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use cairn_base::FileId;
use cairn_files::{NodeKind, Stat, Tree};
use cairn_proto_nfs::rpc::Credential;
use cairn_proto_nfs::{Attributes, Handle, Status, Wcc, WccAttributes};
use cairn_volume::Snapshot;

use crate::attributes::{attributes, before};
use crate::credentials::Caller;
use crate::exports::{Export, Exports};
use crate::handle::{FileRef, Where};
use crate::rights::allows;
use crate::status::{status, status_of_file};
use crate::view::View;
use crate::warnings::Warnings;

/// The name below which every directory shows its snapshots. It is in no listing.
pub(crate) const SNAPSHOTS_NAME: &[u8] = b".snapshot";
/// The mode of such a directory: readable by all, writable by none.
const SNAPSHOTS_MODE: u32 = 0o040_555;

/// Bits of the number of a file in a snapshot that are the file's own. The upper ones tell the
/// snapshots apart, so that no client takes a file of the past for the present one.
const FILE_BITS: u32 = 40;
const SNAPSHOT_MARK: u64 = 1 << 62;
const SNAPSHOTS_MARK: u64 = 1 << 63;

/// The surroundings of a request.
pub(crate) struct Request<'a> {
    pub(crate) exports: &'a dyn Exports,
    pub(crate) warnings: &'a Warnings,
    pub(crate) client: IpAddr,
    pub(crate) credential: &'a Credential,
    /// The first export that the client of this connection was admitted to.
    pub(crate) admitted: &'a OnceLock<String>,
}

/// The file of a handle, and the user that asks for it.
pub(crate) struct Node {
    pub(crate) export: Arc<dyn Export>,
    pub(crate) view: Arc<View>,
    /// The tree that it is in; of a `.snapshot` that of its directory.
    pub(crate) tree: Arc<Tree>,
    pub(crate) at: FileRef,
    /// When it was found; of a `.snapshot` made up.
    pub(crate) stat: Stat,
    pub(crate) caller: Caller,
}

impl Request<'_> {
    /// The file of a handle.
    ///
    /// # Errors
    /// [`Status::BadHandle`] for one without the form of a handle. [`Status::Stale`] if its file,
    /// snapshot or export is gone, or if the key of no export fits. [`Status::Access`] for a client
    /// in no network of the export. [`Status::Jukebox`] while the volume shows nothing; damage.
    pub(crate) fn node(&self, handle: &Handle) -> Result<Node, Status> {
        let Some(unverified) = FileRef::open(handle) else {
            self.warnings.invalid_handle(self.client);
            return Err(Status::BadHandle);
        };
        let (volume, root) = unverified.claims();
        let (mut is_known, mut is_unavailable) = (false, false);
        for export in self.exports.all().iter().filter(|export| export.volume() == volume) {
            let Ok(view) = export.view() else {
                is_unavailable = true;
                continue;
            };
            if view.root != root {
                continue;
            }
            is_known = true;
            if let Some(at) = unverified.verify(&view.keys) {
                return self.find(export.clone(), view, at);
            }
        }
        if is_unavailable {
            return Err(Status::Jukebox);
        }
        // A client made it up, or its export has ended and another one shows the same files.
        if is_known {
            self.warnings.invalid_handle(self.client);
        }
        Err(Status::Stale)
    }

    fn find(&self, export: Arc<dyn Export>, view: Arc<View>, at: FileRef) -> Result<Node, Status> {
        if !export.admits(self.client) {
            self.warnings.refused(self.client, export.name());
            return Err(Status::Access);
        }
        self.admitted.get_or_init(|| export.name().to_owned());
        let tree = tree_of(&view, at.place)?;
        if tree.is_own(at.file) {
            return Err(Status::Stale);
        }
        let stat = tree.stat(at.file).map_err(|error| status_of_file(&error))?;
        if generation(&stat) != at.generation || stat.links == 0 {
            return Err(Status::Stale);
        }
        let stat = match at.place {
            Where::Snapshots => snapshots_stat(at.file, &view.served.snapshots()),
            _ => stat,
        };
        let caller = Caller::of(self.credential, &export.rules());
        Ok(Node { export, view, tree, at, stat, caller })
    }

    /// The root of an export, for MOUNT.
    pub(crate) fn root_of(&self, export: &Arc<dyn Export>) -> Result<Node, Status> {
        let view = export.view().map_err(|_| Status::Jukebox)?;
        let stat = view.served.tree().stat(view.root).map_err(|error| status_of_file(&error))?;
        let at = FileRef {
            volume: export.volume(),
            root: view.root,
            place: Where::Present,
            file: view.root,
            generation: generation(&stat),
        };
        self.find(export.clone(), view, at)
    }
}

/// The tree of a place.
fn tree_of(view: &View, place: Where) -> Result<Arc<Tree>, Status> {
    match place {
        Where::Present => Ok(view.served.tree().clone()),
        _ if !view.shows_snapshots => Err(Status::Stale),
        Where::Snapshots => Ok(view.served.tree().clone()),
        Where::Snapshot(tag) => {
            let snapshot = view.served.snapshot_of(tag).ok_or(Status::Stale)?;
            view.served.tree_of(snapshot.id).ok_or(Status::Stale)
        }
    }
}

/// Tells a file from another one with the same number.
fn generation(stat: &Stat) -> u64 {
    stat.created_ns.cast_unsigned()
}

/// The attributes of the `.snapshot` of a directory.
pub(crate) fn snapshots_stat(directory: FileId, snapshots: &[Snapshot]) -> Stat {
    let newest = snapshots.last().map_or(0, |snapshot| snapshot.created.0.cast_signed());
    Stat {
        file: directory,
        kind: NodeKind::Directory,
        mode: SNAPSHOTS_MODE,
        links: 2,
        uid: 0,
        gid: 0,
        device: 0,
        bytes: 0,
        blocks: 0,
        accessed_ns: newest,
        modified_ns: newest,
        changed_ns: newest,
        created_ns: newest,
        has_xattrs: false,
    }
}

impl Node {
    /// Whether a request can change it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.export.rules().read_only || self.at.place != Where::Present || self.tree.is_read_only()
    }

    /// Refuses a change of something that can't be changed.
    pub(crate) fn writable(&self) -> Result<(), Status> {
        if self.is_read_only() { Err(Status::ReadOnly) } else { Ok(()) }
    }

    /// Refuses anything but a directory.
    pub(crate) fn directory(&self) -> Result<(), Status> {
        if self.stat.kind == NodeKind::Directory { Ok(()) } else { Err(Status::NotDirectory) }
    }

    /// Whether its directories have a `.snapshot`.
    pub(crate) fn has_snapshots(&self) -> bool {
        self.view.shows_snapshots && self.at.place == Where::Present
    }

    /// Whether the caller has permissions to it.
    pub(crate) fn allows(&self, wanted: u32) -> Result<bool, Status> {
        allows(&self.tree, &self.stat, &self.caller, wanted).map_err(|error| status(&error))
    }

    /// Refuses a caller without permissions.
    pub(crate) fn require(&self, wanted: u32) -> Result<(), Status> {
        if self.allows(wanted)? { Ok(()) } else { Err(Status::Access) }
    }

    /// The same for the content of a file, whose owner always has it: a client checked the
    /// permissions when a program opened the file, and they may be other ones now.
    pub(crate) fn require_content(&self, wanted: u32) -> Result<(), Status> {
        if self.caller.uid == self.stat.uid { Ok(()) } else { self.require(wanted) }
    }

    /// Looks again, for the attributes under a guard.
    pub(crate) fn look_again(&mut self) -> Result<WccAttributes, Status> {
        self.stat = self.tree.stat(self.at.file).map_err(|error| status_of_file(&error))?;
        if self.stat.links == 0 {
            return Err(Status::Stale);
        }
        Ok(before(&self.stat))
    }

    /// The attributes when it was found.
    pub(crate) fn attributes(&self) -> Attributes {
        self.attributes_of(self.at.place, self.at.file, &self.stat)
    }

    /// The attributes now; none if it is gone.
    pub(crate) fn attributes_now(&self) -> Option<Attributes> {
        if self.at.place == Where::Snapshots {
            return Some(self.attributes());
        }
        let stat = self.tree.stat(self.at.file).ok().filter(|stat| stat.links > 0)?;
        Some(self.attributes_of(self.at.place, self.at.file, &stat))
    }

    /// The attributes before and after a change.
    pub(crate) fn wcc(&self, before: WccAttributes) -> Wcc {
        Wcc { before: Some(before), after: self.attributes_now() }
    }

    /// The number of a file of this export.
    pub(crate) fn file_id(&self, place: Where, file: FileId) -> u64 {
        match place {
            Where::Present => file.0,
            Where::Snapshots => SNAPSHOTS_MARK | file.0,
            Where::Snapshot(tag) => {
                let file = file.0 & ((1 << FILE_BITS) - 1);
                SNAPSHOT_MARK | tag << FILE_BITS & (SNAPSHOT_MARK - 1) | file
            }
        }
    }

    /// The attributes of another file of this export.
    pub(crate) fn attributes_of(&self, place: Where, file: FileId, stat: &Stat) -> Attributes {
        let file_system = self.view.keys.own.number(&self.view.root.0.to_le_bytes());
        attributes(stat, file_system, self.file_id(place, file))
    }

    /// The handle of a file of this export. Of a `.snapshot` `stat` is that of its directory.
    pub(crate) fn handle_of(&self, place: Where, stat: &Stat) -> Handle {
        let at = FileRef { place, file: stat.file, generation: generation(stat), ..self.at };
        at.seal(&self.view.keys.own)
    }

    /// A directory in this one, for the rest of a path of MOUNT.
    pub(crate) fn step(self, name: &[u8]) -> Result<Self, Status> {
        let (place, stat) = self.find(name)?;
        let at = FileRef { place, file: stat.file, generation: generation(&stat), ..self.at };
        let tree = tree_of(&self.view, place)?;
        let stat = match place {
            Where::Snapshots => snapshots_stat(at.file, &self.view.served.snapshots()),
            _ => stat,
        };
        Ok(Self { tree, at, stat, ..self })
    }

    /// Its own handle.
    pub(crate) fn handle(&self) -> Handle {
        self.at.seal(&self.view.keys.own)
    }
}
