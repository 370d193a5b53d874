//! The procedures that change nothing, and the choice of the others.

use std::sync::Arc;

use cairn_base::FileId;
use cairn_device::Segments;
use cairn_files::{FILE_BYTES_MAX, NodeKind, Stat, Tree, TreeError};
use cairn_proto_nfs::{
    Accessed, Attributes, Call, Committed, Failed, FileSystemInfo, FileSystemSpace, Found, Handle, Linked,
    Outcome, PathLimits, Place, Renamed, Reply, Status, Target, Time, Wcc, access,
};

use crate::handle::Where;
use crate::limits::{LINKS_MAX, LISTING_BYTES_MAX, TRANSFER_BYTES_MAX};
use crate::node::{Node, Request, SNAPSHOTS_NAME, snapshots_stat};
use crate::rights::{EXECUTE, READ, WRITE};
use crate::status::{status, status_of_file};
use crate::view::snapshot_tag;

/// Bits of FSINFO: links, symbolic links, one PATHCONF for all files, times can be set.
const PROPERTIES: u32 = 0x01 | 0x02 | 0x08 | 0x10;
/// The multiple of bytes that transfers are best made in: a block.
const MULTIPLE: u32 = cairn_base::BLOCK_SIZE as u32;

/// The outcome of a request.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// It counts only once this tree is durable.
    pub(crate) sync: Option<Arc<Tree>>,
}

/// The results of a READ, with the data in its blocks.
pub(crate) struct Replied {
    pub(crate) attributes: Option<Attributes>,
    pub(crate) data: Segments,
    pub(crate) end: bool,
}

/// The outcome of a READ.
pub(crate) type ReadOutcome = Outcome<Replied, Option<Attributes>>;

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self { reply, sync: None }
    }
}

/// Reports an error without attributes.
pub(crate) fn bare<E: Default>(status: Status) -> Failed<E> {
    Failed { status, rest: E::default() }
}

/// The reply of a procedure that failed, without attributes.
pub(crate) fn failed(procedure: u32, status: Status) -> Reply {
    match procedure {
        0 => Reply::Null(()),
        1 => Reply::GetAttr(Err(bare(status))),
        2 => Reply::SetAttr(Err(bare(status))),
        3 => Reply::Lookup(Err(bare(status))),
        4 => Reply::Access(Err(bare(status))),
        5 => Reply::ReadLink(Err(bare(status))),
        6 => Reply::Read(Err(bare(status))),
        7 => Reply::Write(Err(bare(status))),
        8 => Reply::Create(Err(bare(status))),
        9 => Reply::MkDir(Err(bare(status))),
        10 => Reply::SymLink(Err(bare(status))),
        11 => Reply::MkNod(Err(bare(status))),
        12 => Reply::Remove(Err(bare(status))),
        13 => Reply::RmDir(Err(bare(status))),
        14 => Reply::Rename(Err(Failed { status, rest: Renamed::default() })),
        15 => Reply::Link(Err(Failed { status, rest: Linked::default() })),
        16 => Reply::ReadDir(Err(bare(status))),
        17 => Reply::ReadDirPlus(Err(bare(status))),
        18 => Reply::FsStat(Err(bare(status))),
        19 => Reply::FsInfo(Err(bare(status))),
        20 => Reply::PathConf(Err(bare(status))),
        _ => Reply::Commit(Err(bare(status))),
    }
}

impl Request<'_> {
    /// Executes a call. A READ has its own way, [`Request::read_ready`].
    pub(crate) fn execute(&self, call: &Call<'_>) -> Answer {
        match *call {
            Call::Null {} => Reply::Null(()).into(),
            Call::GetAttr { file } => Reply::GetAttr(self.get_attributes(&file)).into(),
            Call::SetAttr { file, new, guard } => self.set_attributes(&file, &new, guard),
            Call::Lookup { place } => Reply::Lookup(self.lookup(&place)).into(),
            Call::Access { file, wanted } => Reply::Access(self.access(&file, wanted)).into(),
            Call::ReadLink { file } => Reply::ReadLink(self.read_link(&file)).into(),
            Call::Read { .. } => failed(call.procedure(), Status::ServerFault).into(),
            Call::Write { file, offset, count, stable, data } => {
                self.write(&file, offset, count, stable, data)
            }
            Call::Create { place, how } => self.create(&place, &how),
            Call::MkDir { place, new } => self.make_directory(&place, &new),
            Call::SymLink { place, new, target } => self.make_link(&place, &new, target),
            Call::MkNod { place, node } => self.make_node(&place, &node),
            Call::Remove { place } => self.remove(&place, false),
            Call::RmDir { place } => self.remove(&place, true),
            Call::Rename { from, to } => self.rename(&from, &to),
            Call::Link { file, place } => self.link(&file, &place),
            Call::ReadDir { directory, cookie, count, .. } => {
                Reply::ReadDir(self.read_directory(&directory, cookie, count)).into()
            }
            Call::ReadDirPlus { directory, cookie, names_count, count, .. } => {
                Reply::ReadDirPlus(self.read_directory_plus(&directory, cookie, names_count, count)).into()
            }
            Call::FsStat { file } => Reply::FsStat(self.space(&file)).into(),
            Call::FsInfo { file } => Reply::FsInfo(self.limits(&file)).into(),
            Call::PathConf { file } => Reply::PathConf(self.path_limits(&file)).into(),
            Call::Commit { file, .. } => self.commit(&file),
        }
    }

    fn get_attributes(&self, file: &Handle) -> Outcome<Attributes, ()> {
        self.node(file).map(|node| node.attributes()).map_err(bare)
    }

    fn lookup(&self, place: &Place<'_>) -> Outcome<Found, Option<Attributes>> {
        let directory = self.node(&place.directory).map_err(bare)?;
        let attributes = Some(directory.attributes());
        let (at, stat) = directory.find(place.name).map_err(|status| Failed { status, rest: attributes })?;
        let shown = match at {
            Where::Snapshots => snapshots_stat(stat.file, &directory.view.served.snapshots()),
            _ => stat,
        };
        Ok(Found {
            file: directory.handle_of(at, &stat),
            attributes: Some(directory.attributes_of(at, stat.file, &shown)),
            directory: attributes,
        })
    }

    fn access(&self, file: &Handle, wanted: u32) -> Outcome<Accessed, Option<Attributes>> {
        let node = self.node(file).map_err(bare)?;
        let attributes = Some(node.attributes());
        let is_directory = node.stat.kind == NodeKind::Directory;
        let change = if is_directory { WRITE | EXECUTE } else { WRITE };
        let needs = [
            (access::READ, READ),
            (access::LOOKUP, EXECUTE),
            (access::MODIFY, change),
            (access::EXTEND, change),
            (access::DELETE, change),
            (access::EXECUTE, EXECUTE),
        ];
        let mut granted = 0;
        for (bit, rights) in needs.into_iter().filter(|(bit, _)| wanted & bit != 0) {
            let has_meaning = match bit {
                access::LOOKUP | access::DELETE => is_directory,
                access::EXECUTE => !is_directory,
                _ => true,
            };
            let changes = matches!(bit, access::MODIFY | access::EXTEND | access::DELETE);
            if !has_meaning || changes && node.is_read_only() {
                continue;
            }
            if node.allows(rights).map_err(|status| Failed { status, rest: attributes })? {
                granted |= bit;
            }
        }
        Ok(Accessed { attributes, granted })
    }

    fn read_link(&self, file: &Handle) -> Outcome<Target, Option<Attributes>> {
        let node = self.node(file).map_err(bare)?;
        let attributes = Some(node.attributes());
        let fail = |status| Failed { status, rest: attributes };
        if node.stat.kind != NodeKind::SymbolicLink {
            return Err(fail(Status::Invalid));
        }
        let target = node.tree.read_link(node.at.file).map_err(|error| fail(status_of_file(&error)))?;
        Ok(Target { attributes, target })
    }

    /// READ of data that is in memory; `None` if it has to wait for the disk.
    pub(crate) fn read_ready(
        &self,
        file: &Handle,
        offset: u64,
        count: u32,
    ) -> Outcome<Option<Replied>, Option<Attributes>> {
        let node = self.readable(file)?;
        match node.tree.read_ready(node.at.file, offset, length(count)) {
            Ok(data) => Ok(data.map(|data| node.replied(offset, data))),
            Err(error) => Err(node.fail_read(&error)),
        }
    }

    /// READ of several parts of a file, each as offset and count; waits for the disk.
    pub(crate) fn read_several(&self, file: &Handle, wanted: &[(u64, u32)]) -> Vec<ReadOutcome> {
        let node = match self.readable(file) {
            Ok(node) => node,
            Err(failed) => return wanted.iter().map(|_| Err(failed)).collect(),
        };
        let places: Vec<(u64, usize)> =
            wanted.iter().map(|(offset, count)| (*offset, length(*count))).collect();
        match node.tree.read_several(node.at.file, &places) {
            Ok(read) => {
                let outcome = |((offset, _), data): (&(u64, u32), Result<Segments, TreeError>)| {
                    let data = data.map_err(|error| node.fail_read(&error))?;
                    Ok(node.replied(*offset, data))
                };
                wanted.iter().zip(read).map(outcome).collect()
            }
            Err(error) => {
                let failed = node.fail_read(&error);
                wanted.iter().map(|_| Err(failed)).collect()
            }
        }
    }

    /// A file whose content the caller may read.
    fn readable(&self, file: &Handle) -> Outcome<Node, Option<Attributes>> {
        let node = self.node(file).map_err(bare)?;
        let fail = |status| Failed { status, rest: Some(node.attributes()) };
        match node.stat.kind {
            NodeKind::File => {}
            NodeKind::Directory => return Err(fail(Status::IsDirectory)),
            _ => return Err(fail(Status::Invalid)),
        }
        // A program that is executed is read by the client's kernel.
        let may_read = node.require_content(READ).or_else(|_| node.require(EXECUTE));
        may_read.map_err(fail)?;
        Ok(node)
    }

    fn space(&self, file: &Handle) -> Outcome<FileSystemSpace, Option<Attributes>> {
        let node = self.node(file).map_err(bare)?;
        let attributes = Some(node.attributes());
        let fail = |status| Failed { status, rest: attributes };
        let space = node.tree.statfs().map_err(|error| fail(status(&error)))?;
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(space.block_bytes));
        // A quota tree may have less room than the volume.
        let room = match node.is_read_only() {
            true => None,
            false => node.tree.room(node.at.file).ok(),
        };
        let free_bytes = bytes(space.free);
        Ok(FileSystemSpace {
            attributes,
            total_bytes: bytes(space.blocks),
            free_bytes,
            available_bytes: room.map_or(free_bytes, |room| room.bytes.min(free_bytes)),
            total_files: space.files,
            free_files: space.files_free,
            available_files: room.map_or(space.files_free, |room| room.files.min(space.files_free)),
            invariant_seconds: 0,
        })
    }

    fn limits(&self, file: &Handle) -> Outcome<FileSystemInfo, Option<Attributes>> {
        let node = self.node(file).map_err(bare)?;
        Ok(FileSystemInfo {
            attributes: Some(node.attributes()),
            read_max: TRANSFER_BYTES_MAX,
            read_preferred: TRANSFER_BYTES_MAX,
            read_multiple: MULTIPLE,
            write_max: TRANSFER_BYTES_MAX,
            write_preferred: TRANSFER_BYTES_MAX,
            write_multiple: MULTIPLE,
            listing_preferred: LISTING_BYTES_MAX,
            file_bytes_max: FILE_BYTES_MAX,
            time_step: Time { seconds: 0, nanoseconds: 1 },
            properties: PROPERTIES,
        })
    }

    fn path_limits(&self, file: &Handle) -> Outcome<PathLimits, Option<Attributes>> {
        let node = self.node(file).map_err(bare)?;
        let attributes = Some(node.attributes());
        let space =
            node.tree.statfs().map_err(|error| Failed { status: status(&error), rest: attributes })?;
        Ok(PathLimits {
            attributes,
            links_max: LINKS_MAX,
            name_max: space.name_max,
            no_truncation: true,
            owner_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    }

    fn commit(&self, file: &Handle) -> Answer {
        let node = match self.node(file) {
            Ok(node) => node,
            Err(status) => return failed(21, status).into(),
        };
        let file = Wcc { before: None, after: Some(node.attributes()) };
        let committed = Committed { file, verifier: node.view.served.verifier() };
        // Writes that an earlier read-only state refused are none of those that count here.
        let sync = (!node.tree.is_read_only()).then(|| node.tree.clone());
        Answer { reply: Reply::Commit(Ok(committed)), sync }
    }
}

/// The bytes that a READ asks for, as far as one gives them.
fn length(count: u32) -> usize {
    count.min(TRANSFER_BYTES_MAX) as usize
}

impl Node {
    /// The results of a READ.
    fn replied(&self, offset: u64, data: Segments) -> Replied {
        let attributes = self.attributes_now();
        let size = attributes.map_or(self.stat.bytes, |attributes| attributes.size);
        let end = offset.saturating_add(data.len() as u64) >= size;
        Replied { attributes, data, end }
    }

    fn fail_read(&self, error: &TreeError) -> Failed<Option<Attributes>> {
        Failed { status: status_of_file(error), rest: Some(self.attributes()) }
    }

    /// Finds a name in this directory: its place and attributes. Of a `.snapshot` they are those of
    /// its directory.
    pub(crate) fn find(&self, name: &[u8]) -> Result<(Where, Stat), Status> {
        self.directory()?;
        if self.at.place == Where::Snapshots {
            return self.find_snapshot(name);
        }
        self.require(EXECUTE)?;
        match name {
            b"." => Ok((self.at.place, self.stat)),
            b".." => self.parent(),
            SNAPSHOTS_NAME if self.has_snapshots() => Ok((Where::Snapshots, self.stat)),
            name => {
                let stat = self.tree.lookup(self.at.file, name).map_err(|error| status(&error))?;
                Ok((self.at.place, stat))
            }
        }
    }

    /// Finds a name in a `.snapshot`: this directory as it was.
    fn find_snapshot(&self, name: &[u8]) -> Result<(Where, Stat), Status> {
        match name {
            b"." | b".." => {
                let stat = self.tree.stat(self.at.file).map_err(|error| status_of_file(&error))?;
                let place = if name == b"." { Where::Snapshots } else { Where::Present };
                return Ok((place, stat));
            }
            _ => {}
        }
        let snapshots = self.view.served.snapshots();
        let snapshot = snapshots.iter().find(|snapshot| snapshot.name.as_bytes() == name);
        let snapshot = snapshot.ok_or(Status::NoEntry)?;
        let tree = self.view.served.tree_of(snapshot.id).ok_or(Status::NoEntry)?;
        let stat = directory_in(&tree, self.at.file).ok_or(Status::NoEntry)?;
        Ok((Where::Snapshot(snapshot_tag(snapshot)), stat))
    }

    /// The parent of this directory. That of the root of an export is itself, and that of the root
    /// in a snapshot the `.snapshot`.
    pub(crate) fn parent(&self) -> Result<(Where, Stat), Status> {
        let stat_of = |file| self.tree.stat(file).map_err(|error| status_of_file(&error));
        if self.at.file == self.view.root {
            return Ok(match self.at.place {
                Where::Present => (Where::Present, self.stat),
                _ => (
                    Where::Snapshots,
                    self.view.served.tree().stat(self.view.root).map_err(|_| Status::Stale)?,
                ),
            });
        }
        let parent = self.tree.parent(self.at.file).map_err(|error| status_of_file(&error))?;
        // A directory that was moved out of the export has a parent outside of it.
        if !self.is_inside(parent)? {
            return Err(Status::Access);
        }
        Ok((self.at.place, stat_of(parent)?))
    }

    /// Whether a directory is the root of the export, or below it.
    fn is_inside(&self, directory: FileId) -> Result<bool, Status> {
        let top = self.tree.root();
        let mut at = directory;
        while at != self.view.root {
            if at == top {
                return Ok(false);
            }
            at = self.tree.parent(at).map_err(|error| status_of_file(&error))?;
        }
        Ok(true)
    }
}

/// A directory as it is in the tree of a snapshot; `None` if it was not there.
pub(crate) fn directory_in(tree: &Tree, directory: FileId) -> Option<Stat> {
    let stat = tree.stat(directory).ok()?;
    (stat.kind == NodeKind::Directory && stat.links > 0 && !tree.is_own(directory)).then_some(stat)
}
