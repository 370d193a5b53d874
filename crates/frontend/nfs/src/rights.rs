//! Permissions: mode bits and access control lists, as `acl(5)` has them.
//!
//! The tree checks none, and no kernel stands between a client and this server.

use cairn_files::{NodeKind, Stat, Tree, TreeError};

use crate::credentials::Caller;

/// The attribute with the access control list of a file.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The version of an access control list, in front of its rules.
const LIST_VERSION: [u8; 4] = [2, 0, 0, 0];
const RULE_BYTES: usize = 8;
const USER: u16 = 0x02;
const GROUP_OWNER: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Permission to read.
pub(crate) const READ: u32 = 4;
/// Permission to write.
pub(crate) const WRITE: u32 = 2;
/// Permission to execute a file, or to look names up in a directory.
pub(crate) const EXECUTE: u32 = 1;

/// The sticky bit: in such a directory only the owner of a file removes its name.
const STICKY: u32 = 0o1000;

/// Whether a user has all the permissions `wanted`, of [`READ`], [`WRITE`] and [`EXECUTE`].
///
/// # Errors
/// The access control list of the file can't be read: then no permission is known.
pub(crate) fn allows(tree: &Tree, stat: &Stat, caller: &Caller, wanted: u32) -> Result<bool, TreeError> {
    if caller.is_root() {
        let may_execute = stat.kind == NodeKind::Directory || stat.mode & 0o111 != 0;
        return Ok(wanted & EXECUTE == 0 || may_execute);
    }
    let of_mode = |shift: u32| stat.mode >> shift & wanted == wanted;
    if caller.uid == stat.uid {
        return Ok(of_mode(6));
    }
    if stat.has_xattrs && stat.kind != NodeKind::SymbolicLink {
        match tree.xattr(stat.file, ACCESS_LIST) {
            Ok(list) => return Ok(by_list(&list, stat, caller, wanted)),
            Err(TreeError::NoAttribute) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(of_mode(if caller.is_in(stat.gid) { 3 } else { 0 }))
}

/// A rule: tag, permissions, and the user or group.
fn rules(list: &[u8]) -> impl Iterator<Item = (u16, u32, u32)> {
    let rules = list.strip_prefix(&LIST_VERSION).unwrap_or_default();
    rules.chunks_exact(RULE_BYTES).map(|rule| match *rule {
        [a, b, c, d, e, f, g, h] => (
            u16::from_le_bytes([a, b]),
            u32::from(u16::from_le_bytes([c, d])),
            u32::from_le_bytes([e, f, g, h]),
        ),
        _ => (0, 0, 0),
    })
}

/// The same for a user that does not own the file. A list that can't be read allows nothing.
fn by_list(list: &[u8], stat: &Stat, caller: &Caller, wanted: u32) -> bool {
    let mask = rules(list).find(|rule| rule.0 == MASK).map_or(7, |rule| rule.1);
    let has = |rights: u32| rights & wanted == wanted;
    if let Some((_, rights, _)) = rules(list).find(|rule| rule.0 == USER && rule.2 == caller.uid) {
        return has(rights & mask);
    }
    let is_of_caller = |rule: &(u16, u32, u32)| match rule.0 {
        GROUP_OWNER => caller.is_in(stat.gid),
        GROUP => caller.is_in(rule.2),
        _ => false,
    };
    // One of the groups must have all the rights.
    let mut groups = rules(list).filter(is_of_caller).peekable();
    if groups.peek().is_some() {
        return groups.any(|(_, rights, _)| has(rights & mask));
    }
    rules(list).find(|rule| rule.0 == OTHER).is_some_and(|rule| has(rule.1))
}

/// Whether a user may remove or replace a name of `file` in `directory`, for which it has
/// permission to write.
pub(crate) fn may_remove(directory: &Stat, file: &Stat, caller: &Caller) -> bool {
    directory.mode & STICKY == 0 || caller.is_root() || caller.uid == file.uid || caller.uid == directory.uid
}
