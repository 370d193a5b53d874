//! Listing of directories, and the directories `.snapshot`, which no tree has.

use std::sync::Arc;

use cairn_base::FileId;
use cairn_files::{NodeKind, Stat};
use cairn_volume::Snapshot;
use zerocopy::IntoBytes;

use crate::abi::*;
use crate::attributes::{DT_DIR, attr_out, entry, entry_type, statx_out};
use crate::node::{Node, TIMES};
use crate::operations::Answer;
use crate::received::WRITE_MAX;
use crate::shown::{Shown, Slot};
use crate::times::by_time;

/// Most entries that are read from a tree at once.
const ENTRIES_MAX: usize = 512;
/// A directory's mode bits: readable by all, writable by none.
const SNAPSHOTS_MODE: u32 = 0o040_555;
/// Cookies of a `.snapshot`: `.` is 1, `..` is 2, a snapshot's is its number and this.
const COOKIE_BASE: u64 = 2;

/// A growing listing, up to the kernel's size limit.
struct Listing {
    bytes: Vec<u8>,
    room: usize,
    plus: bool,
}

impl Listing {
    fn record(&self, name: &[u8]) -> usize {
        let plus = if self.plus { size_of::<fuse_entry_out>() } else { 0 };
        (plus + size_of::<fuse_dirent>() + name.len()).next_multiple_of(8)
    }

    fn has_room(&self, name: &[u8]) -> bool {
        self.bytes.len() + self.record(name) <= self.room
    }

    fn put(&mut self, told: fuse_entry_out, ino: u64, cookie: u64, kind: u32, name: &[u8]) {
        let end = self.bytes.len() + self.record(name);
        if self.plus {
            self.bytes.extend(told.as_bytes());
        }
        let head = fuse_dirent { ino, off: cookie, namelen: name.len() as u32, r#type: kind };
        self.bytes.extend(head.as_bytes());
        self.bytes.extend(name);
        self.bytes.resize(end, 0);
    }
}

/// Entries after the cookie that the kernel gives as an offset; with `plus` with the lookup answer
/// of each.
pub(crate) fn read(shown: &Shown, node: u64, arguments: &fuse_read_in, plus: bool) -> Answer {
    let room = (arguments.size as usize).min(WRITE_MAX);
    let mut listing = Listing { bytes: Vec::with_capacity(room.min(1 << 16)), room, plus };
    match shown.find(node)? {
        (at, Some(slot)) => read_tree(shown, &slot, (node, at.file), arguments.offset, &mut listing)?,
        (at, None) => read_snapshots(shown, at, node, arguments.offset, &mut listing)?,
    }
    Ok(listing.bytes)
}

fn read_tree(
    shown: &Shown,
    slot: &Arc<Slot>,
    (node, directory): (u64, FileId),
    mut after: u64,
    listing: &mut Listing,
) -> Result<(), i32> {
    loop {
        let limit = ((listing.room - listing.bytes.len()) / listing.record(b"name")).clamp(1, ENTRIES_MAX);
        let entries = match slot.tree.read_directory(directory, after, limit) {
            Ok(entries) => entries,
            // The kernel has got the entries before it, and counts them; it gets this error when it
            // requests the rest.
            Err(_) if !listing.bytes.is_empty() => return Ok(()),
            Err(error) => return Err(error.errno()),
        };
        if entries.is_empty() {
            return Ok(());
        }
        for found in entries {
            if !listing.has_room(&found.name) {
                return Ok(());
            }
            let Ok(number) = shown.number(slot, found.file) else { continue };
            let is_dot = found.name == b"." || found.name == b"..";
            let kind = entry_type(found.kind.type_bits());
            // A name that was removed meanwhile is listed without a lookup answer, and the kernel
            // looks it up itself.
            let stat = (listing.plus && !is_dot).then(|| slot.tree.stat(found.file)).and_then(Result::ok);
            // Earlier entries count already, so the answer must not fail as a whole.
            let told = stat.and_then(|stat| {
                let may_keep = shown.may_keep(slot, node, &found.name);
                let told = shown.entry(slot, &stat).ok()?;
                Some(if may_keep { told } else { fuse_entry_out { entry_valid: 0, ..told } })
            });
            let told = told.unwrap_or_default();
            listing.put(told, number, found.cookie, kind, &found.name);
            after = found.cookie;
        }
    }
}

fn read_snapshots(
    shown: &Shown,
    Node { slot, file: directory }: Node,
    own: u64,
    after: u64,
    listing: &mut Listing,
) -> Result<(), i32> {
    let dots = [(1, &b"."[..]), (2, &b".."[..])];
    for (cookie, name) in dots.into_iter().filter(|(cookie, _)| *cookie > after) {
        if !listing.has_room(name) {
            return Ok(());
        }
        listing.put(fuse_entry_out::default(), own, cookie, DT_DIR, name);
    }
    let is_by_time = slot == TIMES;
    for (time, snapshot) in by_time(shown.snapshots()) {
        let cookie = snapshot.id.0 + COOKIE_BASE;
        let time = is_by_time.then_some(time.as_str());
        let name = time.unwrap_or(&snapshot.name).as_bytes();
        if cookie <= after {
            continue;
        }
        if !listing.has_room(name) {
            return Ok(());
        }
        // One that has no such directory, or no files at all, is not listed.
        let Ok(slot) = shown.snapshot(&snapshot, time) else { continue };
        let Ok(file) = in_snapshot(shown, &slot, directory) else { continue };
        let Ok(stat) = slot.tree.stat(file) else { continue };
        let Ok(number) = shown.number(&slot, file) else { continue };
        let told = match listing.plus {
            true => snapshot_entry(shown, &slot, directory, &stat).unwrap_or_default(),
            false => fuse_entry_out::default(),
        };
        listing.put(told, number, cookie, DT_DIR, name);
    }
    Ok(())
}

/// The answer for a directory as it is in a snapshot. The snapshot can be renamed or deleted at any
/// time, so each walk asks again.
pub(crate) fn snapshot_entry(
    shown: &Shown,
    slot: &Arc<Slot>,
    directory: FileId,
    stat: &Stat,
) -> Result<fuse_entry_out, i32> {
    shown.told_of_snapshot(directory);
    Ok(fuse_entry_out { entry_valid: 0, ..shown.entry(slot, stat)? })
}

/// A directory of the mounted tree, as it is in a snapshot: it has the same number. The root is the
/// root.
pub(crate) fn in_snapshot(shown: &Shown, slot: &Slot, directory: FileId) -> Result<FileId, i32> {
    let (root, top) = shown.file(FUSE_ROOT_ID)?;
    let file = if directory == top { slot.tree.root() } else { directory };
    drop(root);
    let stat = slot.tree.stat(file).map_err(|error| error.errno())?;
    if stat.kind == NodeKind::Directory && stat.links > 0 { Ok(file) } else { Err(errno::ENOENT) }
}

/// The attributes of a `.snapshot`.
pub(crate) fn snapshots_stat(number: u64, snapshots: &[Snapshot]) -> Stat {
    let newest = snapshots.last().map_or(0, |snapshot| snapshot.created.0 as i64);
    Stat {
        file: FileId(number),
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

/// The answer to GETATTR of a `.snapshot`; it changes with every snapshot, so nothing is kept.
pub(crate) fn snapshots_attributes(number: u64, snapshots: &[Snapshot]) -> fuse_attr_out {
    fuse_attr_out { attr_valid: 0, ..attr_out(number, &snapshots_stat(number, snapshots)) }
}

/// The same to STATX.
pub(crate) fn snapshots_statx(number: u64, snapshots: &[Snapshot]) -> fuse_statx_out {
    fuse_statx_out { attr_valid: 0, ..statx_out(number, &snapshots_stat(number, snapshots)) }
}

/// The answer to a lookup of a `.snapshot`.
pub(crate) fn snapshots_entry(number: u64, snapshots: &[Snapshot]) -> fuse_entry_out {
    fuse_entry_out { attr_valid: 0, ..entry(number, 0, &snapshots_stat(number, snapshots)) }
}
