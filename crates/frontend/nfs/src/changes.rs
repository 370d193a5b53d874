//! The procedures that change files and names.
//!
//! Each looks at attributes before and after its change under the guards of the files, so that a
//! client may trust them. The changes of a round become durable together, after the guards were
//! released and before the first of the replies is sent.

use std::sync::Arc;

use cairn_base::FileId;
use cairn_files::{New, NodeKind, Rename, SetStat, SetTime, Stat, Tree, TreeError};
use cairn_proto_nfs::{
    CreateHow, Failed, Handle, Kind, Linked, Made, MakeNode, Place, Renamed, Reply, SetAttributes, Stable,
    Status, Time, Verifier, Wcc, WccAttributes, Written,
};

use crate::attributes::{device_number, set_time, time};
use crate::handle::Where;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::node::{Node, Request, SNAPSHOTS_NAME};
use crate::operations::{Answer, bare};
use crate::rights::{EXECUTE, WRITE, may_remove};
use crate::status::{status, status_of_file};

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;
const MODE_BITS: u32 = 0o7777;
/// The permissions of a file that a client makes without naming any.
const MODE_DEFAULT: u32 = 0o600;
/// The attribute that gives a program rights; a change of the content removes it.
const CAPABILITY: &[u8] = b"security.capability";
/// How often CREATE looks again at a name that others change meanwhile.
const CREATE_ROUNDS: usize = 8;

/// An outcome with the tree that has to be durable before it is sent.
fn changed<T, E>(outcome: Result<(T, Arc<Tree>), E>, reply: impl FnOnce(Result<T, E>) -> Reply) -> Answer {
    match outcome {
        Ok((done, tree)) => Answer { reply: reply(Ok(done)), sync: Some(tree) },
        Err(failed) => reply(Err(failed)).into(),
    }
}

/// A change that failed.
type Change<T> = Result<(T, Arc<Tree>), Failed<Wcc>>;

/// The failure of a change, with the attributes that stay.
fn fail(node: &Node, before: WccAttributes) -> impl Fn(Status) -> Failed<Wcc> + '_ {
    move |status| Failed { status, rest: node.wcc(before) }
}

/// The failure of a change that did not begin.
fn refuse(node: &Node) -> impl Fn(Status) -> Failed<Wcc> + '_ {
    move |status| Failed { status, rest: Wcc { before: None, after: Some(node.attributes()) } }
}

/// The name of a file that is made, or the new name of one.
fn check_new_name(directory: &Node, name: &[u8]) -> Result<(), Status> {
    match name {
        b"." | b".." => Err(Status::Exists),
        SNAPSHOTS_NAME if directory.has_snapshots() => Err(Status::Exists),
        _ => Ok(()),
    }
}

/// The name of a file that is removed.
fn check_old_name(directory: &Node, name: &[u8]) -> Result<(), Status> {
    match name {
        b"." | b".." => Err(Status::Invalid),
        SNAPSHOTS_NAME if directory.has_snapshots() => Err(Status::Access),
        _ => Ok(()),
    }
}

impl Request<'_> {
    pub(crate) fn set_attributes(&self, file: &Handle, new: &SetAttributes, guard: Option<Time>) -> Answer {
        changed(self.try_set_attributes(file, new, guard), Reply::SetAttr)
    }

    fn try_set_attributes(&self, file: &Handle, new: &SetAttributes, guard: Option<Time>) -> Change<Wcc> {
        let mut node = self.node(file).map_err(bare)?;
        node.writable().map_err(refuse(&node))?;
        let served = node.view.served.clone();
        let _guard = served.guard(&[node.at.file]);
        let before = node.look_again().map_err(bare)?;
        let fail = fail(&node, before);
        if guard.is_some_and(|guard| guard != time(node.stat.changed_ns)) {
            return Err(fail(Status::NotSync));
        }
        let change = node.checked(new).map_err(&fail)?;
        if change != SetStat::default() {
            if change.bytes.is_some() || change.uid.is_some() || change.gid.is_some() {
                node.drop_capability().map_err(&fail)?;
            }
            node.tree.set(node.at.file, &change).map_err(|error| fail(status_of_file(&error)))?;
        }
        Ok((node.wcc(before), node.tree.clone()))
    }

    pub(crate) fn write(
        &self,
        file: &Handle,
        offset: u64,
        count: u32,
        stable: Stable,
        data: &[u8],
    ) -> Answer {
        match self.try_write(file, offset, count, data) {
            Ok((mut written, tree)) => {
                let is_synchronous = stable != Stable::Unstable;
                if is_synchronous {
                    written.committed = Stable::FileSync;
                }
                let sync = is_synchronous.then_some(tree);
                Answer { reply: Reply::Write(Ok(written)), sync }
            }
            Err(failed) => Reply::Write(Err(failed)).into(),
        }
    }

    fn try_write(&self, file: &Handle, offset: u64, count: u32, data: &[u8]) -> Change<Written> {
        let mut node = self.node(file).map_err(bare)?;
        let served = node.view.served.clone();
        match node.stat.kind {
            _ if node.is_read_only() => return Err(refuse(&node)(Status::ReadOnly)),
            NodeKind::File => {}
            NodeKind::Directory => return Err(refuse(&node)(Status::IsDirectory)),
            _ => return Err(refuse(&node)(Status::Invalid)),
        }
        let data = data.get(..count.min(TRANSFER_BYTES_MAX) as usize).unwrap_or(data);
        let _guard = served.guard(&[node.at.file]);
        let before = node.look_again().map_err(bare)?;
        let fail = fail(&node, before);
        node.require_content(WRITE).map_err(&fail)?;
        node.drop_capability().map_err(&fail)?;
        let written = node.tree.write(node.at.file, offset, data);
        let written = written.map_err(|error| fail(status_of_file(&error)))?;
        if let Some(mode) = node.mode_after_write() {
            let change = SetStat { mode: Some(mode), ..SetStat::default() };
            node.tree.set(node.at.file, &change).map_err(|error| fail(status_of_file(&error)))?;
        }
        let written = Written {
            file: node.wcc(before),
            count: written as u32,
            committed: Stable::Unstable,
            verifier: served.verifier(),
        };
        Ok((written, node.tree.clone()))
    }

    pub(crate) fn create(&self, place: &Place<'_>, how: &CreateHow) -> Answer {
        changed(self.try_create(place, how), Reply::Create)
    }

    fn try_create(&self, place: &Place<'_>, how: &CreateHow) -> Change<Made> {
        for _ in 0..CREATE_ROUNDS {
            let mut node = self.node(&place.directory).map_err(bare)?;
            node.prepare(place.name).map_err(refuse(&node))?;
            let served = node.view.served.clone();
            let there = |node: &Node| node.tree.lookup(node.at.file, place.name).ok().map(|stat| stat.file);
            let file = there(&node);
            let guarded: Vec<FileId> = [node.at.file].into_iter().chain(file).collect();
            let _guard = served.guard(&guarded);
            let before = node.look_again().map_err(bare)?;
            // The guard of the file that has the name now is another one.
            if there(&node) != file {
                continue;
            }
            let fail = fail(&node, before);
            let made = node.create(place.name, how).map_err(&fail)?;
            return Ok((node.made(&made, before), node.tree.clone()));
        }
        Err(bare(Status::Jukebox))
    }

    pub(crate) fn make_directory(&self, place: &Place<'_>, new: &SetAttributes) -> Answer {
        let make = |node: &Node| {
            let made = node.tree.make_directory(node.at.file, place.name, &node.new_file(new, 0)?);
            node.set_rest(made.map_err(|error| status(&error))?, new)
        };
        changed(self.make(place, make), Reply::MkDir)
    }

    pub(crate) fn make_link(&self, place: &Place<'_>, new: &SetAttributes, target: &[u8]) -> Answer {
        let make = |node: &Node| {
            let made = node.tree.make_link(node.at.file, place.name, target, &node.new_file(new, 0)?);
            made.map_err(|error| match error {
                // An empty target.
                TreeError::NotFound if target.is_empty() => Status::Invalid,
                error => status(&error),
            })
        };
        changed(self.make(place, make), Reply::SymLink)
    }

    pub(crate) fn make_node(&self, place: &Place<'_>, what: &MakeNode) -> Answer {
        let make = |node: &Node| {
            let (kind, device) = match what.kind {
                Kind::CharacterDevice => (NodeKind::CharacterDevice, device_number(what.device)),
                Kind::BlockDevice => (NodeKind::BlockDevice, device_number(what.device)),
                Kind::Fifo => (NodeKind::Fifo, Some(0)),
                Kind::Socket => (NodeKind::Socket, Some(0)),
                Kind::File | Kind::Directory | Kind::SymbolicLink => return Err(Status::BadType),
            };
            let is_device = matches!(kind, NodeKind::CharacterDevice | NodeKind::BlockDevice);
            if is_device && !node.caller.is_root() {
                return Err(Status::Perm);
            }
            let new = node.new_file(&what.attributes, device.ok_or(Status::Invalid)?)?;
            let new = New { mode: new.mode | kind.type_bits(), ..new };
            let made = node.tree.make(node.at.file, place.name, &new).map_err(|error| status(&error))?;
            node.set_rest(made, &what.attributes)
        };
        changed(self.make(place, make), Reply::MkNod)
    }

    /// Makes something in a directory.
    fn make(&self, place: &Place<'_>, make: impl FnOnce(&Node) -> Result<Stat, Status>) -> Change<Made> {
        let mut node = self.node(&place.directory).map_err(bare)?;
        node.prepare(place.name).map_err(refuse(&node))?;
        let served = node.view.served.clone();
        let _guard = served.guard(&[node.at.file]);
        let before = node.look_again().map_err(bare)?;
        let fail = fail(&node, before);
        node.require(WRITE | EXECUTE).map_err(&fail)?;
        let made = make(&node).map_err(&fail)?;
        Ok((node.made(&made, before), node.tree.clone()))
    }

    pub(crate) fn remove(&self, place: &Place<'_>, is_directory: bool) -> Answer {
        let reply = if is_directory { Reply::RmDir } else { Reply::Remove };
        changed(self.try_remove(place, is_directory), reply)
    }

    fn try_remove(&self, place: &Place<'_>, is_directory: bool) -> Change<Wcc> {
        let mut node = self.node(&place.directory).map_err(bare)?;
        node.directory().and_then(|()| node.writable()).map_err(refuse(&node))?;
        check_old_name(&node, place.name).map_err(refuse(&node))?;
        let served = node.view.served.clone();
        let _guard = served.guard(&[node.at.file]);
        let before = node.look_again().map_err(bare)?;
        let fail = fail(&node, before);
        node.require(WRITE | EXECUTE).map_err(&fail)?;
        let (tree, directory) = (&node.tree, node.at.file);
        let found = tree.lookup(directory, place.name).map_err(|error| fail(status(&error)))?;
        if !may_remove(&node.stat, &found, &node.caller) {
            return Err(fail(Status::Access));
        }
        let removed = match is_directory {
            true => tree.remove_directory(directory, place.name),
            false => tree.unlink(directory, place.name),
        };
        removed.map_err(|error| fail(status(&error)))?;
        Ok((node.wcc(before), tree.clone()))
    }

    pub(crate) fn rename(&self, from: &Place<'_>, to: &Place<'_>) -> Answer {
        changed(self.try_rename(from, to), Reply::Rename)
    }

    fn try_rename(&self, from: &Place<'_>, to: &Place<'_>) -> Result<(Renamed, Arc<Tree>), Failed<Renamed>> {
        let plain = |status| Failed { status, rest: Renamed::default() };
        let mut old = self.node(&from.directory).map_err(plain)?;
        let mut new = self.node(&to.directory).map_err(plain)?;
        let refuse = |status| {
            let of = |node: &Node| Wcc { before: None, after: node.attributes_now() };
            Failed { status, rest: Renamed { from: of(&old), to: of(&new) } }
        };
        // A change in a snapshot is refused as such.
        old.writable().and_then(|()| new.writable()).map_err(&refuse)?;
        if !old.is_beside(&new) {
            return Err(refuse(Status::CrossDevice));
        }
        old.directory().and_then(|()| new.directory()).map_err(&refuse)?;
        check_old_name(&old, from.name).map_err(&refuse)?;
        check_new_name(&new, to.name).map_err(|_| refuse(Status::Invalid))?;
        let served = old.view.served.clone();
        let _guard = served.guard(&[old.at.file, new.at.file]);
        let before = (old.look_again().map_err(plain)?, new.look_again().map_err(plain)?);
        let now = || Renamed { from: old.wcc(before.0), to: new.wcc(before.1) };
        let fail = |status| Failed { status, rest: now() };
        old.require(WRITE | EXECUTE).and_then(|()| new.require(WRITE | EXECUTE)).map_err(fail)?;
        let moved = old.tree.lookup(old.at.file, from.name).map_err(|error| fail(status(&error)))?;
        if !may_remove(&old.stat, &moved, &old.caller) {
            return Err(fail(Status::Access));
        }
        match new.tree.lookup(new.at.file, to.name) {
            Ok(target) if !may_remove(&new.stat, &target, &new.caller) => return Err(fail(Status::Access)),
            Ok(_) | Err(_) => {}
        }
        if moved.kind == NodeKind::Directory && old.at.file != new.at.file {
            // Its `..` changes.
            old.allows_file(&moved, WRITE).map_err(fail)?;
        }
        let renamed = old.tree.rename(old.at.file, from.name, new.at.file, to.name, Rename::Replace);
        renamed.map_err(|error| fail(status(&error)))?;
        Ok((now(), old.tree.clone()))
    }

    pub(crate) fn link(&self, file: &Handle, place: &Place<'_>) -> Answer {
        changed(self.try_link(file, place), Reply::Link)
    }

    fn try_link(&self, file: &Handle, place: &Place<'_>) -> Result<(Linked, Arc<Tree>), Failed<Linked>> {
        let plain = |status| Failed { status, rest: Linked::default() };
        let file = self.node(file).map_err(plain)?;
        let mut node = self.node(&place.directory).map_err(plain)?;
        let refuse = |status| {
            let directory = Wcc { before: None, after: Some(node.attributes()) };
            Failed { status, rest: Linked { attributes: Some(file.attributes()), directory } }
        };
        node.prepare(place.name).map_err(&refuse)?;
        if !node.is_beside(&file) {
            return Err(refuse(Status::CrossDevice));
        }
        let served = node.view.served.clone();
        let _guard = served.guard(&[node.at.file, file.at.file]);
        let before = node.look_again().map_err(plain)?;
        let now = || Linked { attributes: file.attributes_now(), directory: node.wcc(before) };
        let fail = |status| Failed { status, rest: now() };
        node.require(WRITE | EXECUTE).map_err(fail)?;
        let linked = node.tree.link(file.at.file, node.at.file, place.name);
        linked.map_err(|error| fail(status(&error)))?;
        Ok((now(), node.tree.clone()))
    }
}

impl Node {
    /// Refuses to make a name in this directory that can't be made.
    fn prepare(&self, name: &[u8]) -> Result<(), Status> {
        self.directory()?;
        self.writable()?;
        check_new_name(self, name)
    }

    /// Whether names and links may lead from one to the other.
    fn is_beside(&self, other: &Node) -> bool {
        Arc::ptr_eq(&self.tree, &other.tree)
            && self.export.name() == other.export.name()
            && self.at.place == Where::Present
            && other.at.place == Where::Present
    }

    fn allows_file(&self, stat: &Stat, wanted: u32) -> Result<(), Status> {
        let allowed = crate::rights::allows(&self.tree, stat, &self.caller, wanted);
        if allowed.map_err(|error| status(&error))? { Ok(()) } else { Err(Status::Access) }
    }

    /// The reply for a file that was made here.
    fn made(&self, made: &Stat, before: WccAttributes) -> Made {
        let place = self.at.place;
        Made {
            file: Some(self.handle_of(place, made)),
            attributes: Some(self.attributes_of(place, made.file, made)),
            directory: self.wcc(before),
        }
    }

    /// The attributes of a new file.
    fn new_file(&self, wanted: &SetAttributes, device: u32) -> Result<New, Status> {
        let caller = &self.caller;
        let others_uid = wanted.uid.is_some_and(|uid| uid != caller.uid);
        let others_gid = wanted.gid.is_some_and(|gid| !caller.is_in(gid));
        if (others_uid || others_gid) && !caller.is_root() {
            return Err(Status::Perm);
        }
        Ok(New {
            mode: wanted.mode.unwrap_or(MODE_DEFAULT) & MODE_BITS,
            uid: wanted.uid.unwrap_or(caller.uid),
            gid: wanted.gid.unwrap_or(caller.gid),
            device,
            umask: 0,
        })
    }

    /// Sets those attributes of a new file that it was not made with.
    fn set_rest(&self, made: Stat, wanted: &SetAttributes) -> Result<Stat, Status> {
        let change = SetStat {
            bytes: wanted.size.filter(|size| made.kind == NodeKind::File && *size != made.bytes),
            accessed: set_time(wanted.accessed),
            modified: set_time(wanted.modified),
            ..SetStat::default()
        };
        if change == SetStat::default() {
            return Ok(made);
        }
        self.tree.set(made.file, &change).map_err(|error| status(&error))
    }

    /// CREATE, under the guards of this directory and of the file that has the name.
    fn create(&self, name: &[u8], how: &CreateHow) -> Result<Stat, Status> {
        let there = match self.tree.lookup(self.at.file, name) {
            Ok(stat) => Some(stat),
            Err(TreeError::NotFound) if !name.is_empty() => None,
            Err(error) => return Err(status(&error)),
        };
        if let Some(there) = there {
            self.require(EXECUTE)?;
            return match how {
                CreateHow::Guarded(_) => Err(Status::Exists),
                CreateHow::Exclusive(verifier) if is_made_by(&there, verifier) => Ok(there),
                CreateHow::Exclusive(_) => Err(Status::Exists),
                CreateHow::Unchecked(_) if there.kind != NodeKind::File => Err(Status::Exists),
                CreateHow::Unchecked(wanted) => match wanted.size {
                    Some(size) => self.cut(&there, size),
                    None => Ok(there),
                },
            };
        }
        self.require(WRITE | EXECUTE)?;
        let make = |new: &New| {
            let new = New { mode: new.mode | NodeKind::File.type_bits(), ..*new };
            self.tree.make(self.at.file, name, &new).map_err(|error| status(&error))
        };
        match how {
            CreateHow::Unchecked(wanted) | CreateHow::Guarded(wanted) => {
                self.set_rest(make(&self.new_file(wanted, 0)?)?, wanted)
            }
            CreateHow::Exclusive(verifier) => {
                let made = make(&self.new_file(&SetAttributes::default(), 0)?)?;
                // The client sets the times once it has the reply.
                let (accessed, modified) = verifier_times(verifier);
                let change = SetStat {
                    accessed: Some(SetTime::At(accessed)),
                    modified: Some(SetTime::At(modified)),
                    ..SetStat::default()
                };
                self.tree.set(made.file, &change).map_err(|error| status(&error))
            }
        }
    }

    /// Sets the length of an existing file that CREATE uses.
    fn cut(&self, file: &Stat, size: u64) -> Result<Stat, Status> {
        self.allows_file(file, WRITE)?;
        if file.has_xattrs {
            drop_capability(&self.tree, file.file)?;
        }
        let mode = without_rights(file).filter(|_| !self.caller.is_root());
        let change = SetStat { bytes: Some(size), mode, ..SetStat::default() };
        self.tree.set(file.file, &change).map_err(|error| status(&error))
    }

    /// The mode after a write, if it changes: a user other than root takes rights away.
    fn mode_after_write(&self) -> Option<u32> {
        without_rights(&self.stat).filter(|_| !self.caller.is_root())
    }

    fn drop_capability(&self) -> Result<(), Status> {
        match self.stat.has_xattrs && self.stat.kind == NodeKind::File {
            true => drop_capability(&self.tree, self.at.file),
            false => Ok(()),
        }
    }

    /// The change that SETATTR asks for, if this user may make it.
    fn checked(&self, new: &SetAttributes) -> Result<SetStat, Status> {
        let (stat, caller) = (&self.stat, &self.caller);
        let is_owner = caller.is_root() || caller.uid == stat.uid;
        let (accessed, modified) = (set_time(new.accessed), set_time(new.modified));
        if new.uid.is_some_and(|uid| uid != stat.uid) && !caller.is_root() {
            return Err(Status::Perm);
        }
        let may_give = |gid: u32| caller.is_root() || is_owner && caller.is_in(gid);
        if new.gid.is_some_and(|gid| gid != stat.gid && !may_give(gid)) {
            return Err(Status::Perm);
        }
        let is_at = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        if (new.mode.is_some() || is_at(accessed) || is_at(modified)) && !is_owner {
            return Err(Status::Perm);
        }
        if (accessed.is_some() || modified.is_some()) && !is_owner {
            self.require(WRITE)?;
        }
        if new.size.is_some() {
            match stat.kind {
                NodeKind::File => {}
                NodeKind::Directory => return Err(Status::IsDirectory),
                _ => return Err(Status::Invalid),
            }
            self.require_content(WRITE)?;
        }
        let gives_away = new.uid.is_some() || new.gid.is_some();
        let mode = match new.mode {
            Some(mode) => {
                let group = new.gid.unwrap_or(stat.gid);
                let keeps = caller.is_root() || caller.is_in(group);
                Some(mode & MODE_BITS & if keeps { u32::MAX } else { !SET_GROUP })
            }
            None if stat.kind == NodeKind::Directory => None,
            None if gives_away || new.size.is_some() && !caller.is_root() => without_rights(stat),
            None => None,
        };
        Ok(SetStat {
            mode,
            uid: new.uid,
            gid: new.gid,
            bytes: new.size,
            accessed,
            modified,
            ..SetStat::default()
        })
    }
}

/// The mode without the bits that give its executor rights, if it has any.
fn without_rights(stat: &Stat) -> Option<u32> {
    if stat.kind != NodeKind::File {
        return None;
    }
    let group = if stat.mode & GROUP_EXECUTES == 0 { 0 } else { SET_GROUP };
    let gone = stat.mode & (SET_USER | group);
    (gone != 0).then_some(stat.mode & MODE_BITS & !gone)
}

fn drop_capability(tree: &Tree, file: FileId) -> Result<(), Status> {
    match tree.remove_xattr(file, CAPABILITY) {
        Ok(()) | Err(TreeError::NoAttribute) => Ok(()),
        Err(error) => Err(status_of_file(&error)),
    }
}

/// The verifier of an exclusive CREATE as access and modification time: seconds since 1970.
fn verifier_times(verifier: &Verifier) -> (i64, i64) {
    let [a, b, c, d, e, f, g, h] = *verifier;
    let ns = |seconds: u32| i64::from(seconds) * 1_000_000_000;
    (ns(u32::from_be_bytes([a, b, c, d])), ns(u32::from_be_bytes([e, f, g, h])))
}

/// Whether an exclusive CREATE with this verifier has made a file, and no client has changed it.
fn is_made_by(stat: &Stat, verifier: &Verifier) -> bool {
    stat.kind == NodeKind::File
        && stat.bytes == 0
        && (stat.accessed_ns, stat.modified_ns) == verifier_times(verifier)
}
