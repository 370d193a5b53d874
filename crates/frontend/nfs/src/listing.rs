//! READDIR and READDIRPLUS.
//!
//! The cookie of a name is its key in the directory, which it keeps as long as it exists. So a
//! listing continues after any cookie, whatever changed since, and the verifier of cookies is
//! always zero. In a `.snapshot` the cookie of a snapshot is made of its number.

use std::sync::Arc;

use cairn_base::FileId;
use cairn_files::Tree;
use cairn_proto_nfs::{
    Attributes, DirectoryEntry, Failed, Handle, Listing, Outcome, PlusEntry, Status, Verifier, listed_bytes,
    plus_bytes,
};

use crate::handle::{HANDLE_BYTES, Where};
use crate::limits::{LISTED_TOGETHER_MAX, LISTING_BYTES_MAX};
use crate::node::{Node, Request};
use crate::operations::{bare, directory_in};
use crate::rights::{EXECUTE, READ};
use crate::status::status;
use crate::view::snapshot_tag;

/// Cookies never become invalid.
const VERIFIER: Verifier = [0; 8];
/// Bytes of a reply beside its names: attributes, verifier, and the two marks at the end.
const LISTING_HEAD_BYTES: u32 = 4 + 84 + 8 + 4 + 4 + 4;
/// Cookies of a `.snapshot`: `.` is 1, `..` is 2, a snapshot's is its number and this.
const COOKIE_BASE: u64 = 2;

/// A name, before it is known whether it has room in the reply.
struct Listed {
    cookie: u64,
    place: Where,
    file: FileId,
    name: Vec<u8>,
    /// The tree that it is in, if it has a handle and attributes in a listing with these.
    tree: Option<Arc<Tree>>,
}

/// The room in a reply.
struct Space {
    /// Bytes of the whole reply.
    bytes: usize,
    /// Bytes of names and cookies.
    names: usize,
    plus: bool,
}

impl Space {
    /// Takes the room for a name; false if there is none.
    fn take(&mut self, name: &[u8]) -> bool {
        let names = listed_bytes(name);
        let bytes = if self.plus { plus_bytes(name, HANDLE_BYTES) } else { names };
        let has_room = bytes <= self.bytes && names <= self.names;
        if has_room {
            self.bytes -= bytes;
            self.names -= names;
        }
        has_room
    }

    /// An estimate of how many names have room.
    fn count(&self) -> usize {
        let each = if self.plus { plus_bytes(b"name", HANDLE_BYTES) } else { listed_bytes(b"name") };
        (self.bytes / each).clamp(1, LISTED_TOGETHER_MAX)
    }
}

impl Request<'_> {
    pub(crate) fn read_directory(
        &self,
        directory: &Handle,
        cookie: u64,
        count: u32,
    ) -> Outcome<Listing<DirectoryEntry>, Option<Attributes>> {
        let node = self.node(directory).map_err(bare)?;
        let room = room(count);
        let (found, end) = node.list(cookie, Space { bytes: room, names: room, plus: false })?;
        let entry = |listed: Listed| DirectoryEntry {
            file_id: node.file_id(listed.place, listed.file),
            name: listed.name,
            cookie: listed.cookie,
        };
        let entries = found.into_iter().map(entry).collect();
        Ok(Listing { attributes: node.attributes_now(), verifier: VERIFIER, entries, end })
    }

    pub(crate) fn read_directory_plus(
        &self,
        directory: &Handle,
        cookie: u64,
        names_count: u32,
        count: u32,
    ) -> Outcome<Listing<PlusEntry>, Option<Attributes>> {
        let node = self.node(directory).map_err(bare)?;
        let names = names_count.min(LISTING_BYTES_MAX) as usize;
        let (found, end) = node.list(cookie, Space { bytes: room(count), names, plus: true })?;
        // With permission to read alone, a directory shows names.
        let is_open = node.at.place == Where::Snapshots || node.allows(EXECUTE).unwrap_or(false);
        let entries = found.into_iter().map(|listed| node.plus(listed, is_open)).collect();
        Ok(Listing { attributes: node.attributes_now(), verifier: VERIFIER, entries, end })
    }
}

/// The room for names in a reply of `count` bytes.
fn room(count: u32) -> usize {
    count.min(LISTING_BYTES_MAX).saturating_sub(LISTING_HEAD_BYTES) as usize
}

impl Node {
    /// Names after a cookie, as many as have room, and whether the last one is among them.
    fn list(&self, after: u64, mut space: Space) -> Result<(Vec<Listed>, bool), Failed<Option<Attributes>>> {
        let fail = |status| Failed { status, rest: Some(self.attributes()) };
        self.directory().map_err(fail)?;
        let (found, end) = match self.at.place {
            Where::Snapshots => self.list_snapshots(after, &mut space),
            _ => {
                self.require(READ).map_err(fail)?;
                self.list_tree(after, &mut space).map_err(fail)?
            }
        };
        // A client would ask for the same again without end.
        if found.is_empty() && !end { Err(fail(Status::TooSmall)) } else { Ok((found, end)) }
    }

    fn list_tree(&self, mut after: u64, space: &mut Space) -> Result<(Vec<Listed>, bool), Status> {
        let mut found = Vec::new();
        loop {
            let entries = match self.tree.read_directory(self.at.file, after, space.count()) {
                Ok(entries) => entries,
                // The client gets the names before it, and this error when it asks for the rest.
                Err(_) if !found.is_empty() => return Ok((found, false)),
                Err(error) => return Err(status(&error)),
            };
            if entries.is_empty() {
                return Ok((found, true));
            }
            for entry in entries {
                if !space.take(&entry.name) {
                    return Ok((found, false));
                }
                after = entry.cookie;
                let (mut place, mut file) = (self.at.place, entry.file);
                let is_parent = entry.name == b"..";
                if is_parent {
                    // Not the one outside of the export.
                    (place, file) =
                        self.parent().map_or((self.at.place, self.at.file), |(at, stat)| (at, stat.file));
                }
                let is_shown = space.plus && !is_parent && entry.name != b".";
                let tree = is_shown.then(|| self.tree.clone());
                found.push(Listed { cookie: after, place, file, name: entry.name, tree });
            }
        }
    }

    fn list_snapshots(&self, after: u64, space: &mut Space) -> (Vec<Listed>, bool) {
        let mut found = Vec::new();
        let dots = [(1, &b"."[..], Where::Snapshots), (2, &b".."[..], Where::Present)];
        for (cookie, name, place) in dots.into_iter().filter(|(cookie, ..)| *cookie > after) {
            if !space.take(name) {
                return (found, false);
            }
            let file = self.at.file;
            found.push(Listed { cookie, place, file, name: name.to_vec(), tree: None });
        }
        for snapshot in self.view.served.snapshots() {
            let cookie = snapshot.id.0 + COOKIE_BASE;
            if cookie <= after {
                continue;
            }
            // One that has no such directory, or no files at all, is not listed.
            let Some(tree) = self.view.served.tree_of(snapshot.id) else { continue };
            if directory_in(&tree, self.at.file).is_none() {
                continue;
            }
            if !space.take(snapshot.name.as_bytes()) {
                return (found, false);
            }
            let place = Where::Snapshot(snapshot_tag(&snapshot));
            let name = snapshot.name.into_bytes();
            found.push(Listed { cookie, place, file: self.at.file, name, tree: Some(tree) });
        }
        (found, true)
    }

    /// A name with attributes and handle. One that was removed meanwhile has none, and the client
    /// looks it up itself.
    fn plus(&self, listed: Listed, is_open: bool) -> PlusEntry {
        let Listed { cookie, place, file, name, tree } = listed;
        let stat = tree.filter(|_| is_open).and_then(|tree| tree.stat(file).ok());
        let stat = stat.filter(|stat| stat.links > 0);
        PlusEntry {
            file_id: self.file_id(place, file),
            name,
            cookie,
            attributes: stat.as_ref().map(|stat| self.attributes_of(place, file, stat)),
            file: stat.as_ref().map(|stat| self.handle_of(place, stat)),
        }
    }
}
