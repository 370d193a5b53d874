//! Access control lists as the kernel stores them, and their relation to a mode.
//!
//! The two attributes are lists of (tag, permissions, id) after a version
//! (`linux/posix_acl_xattr.h`); the rules are those of `acl(5)` and of `fs/posix_acl.c`.

use super::error::TreeError;

/// The attribute with the access rights of a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the access list of new files in a directory.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: [u8; 4] = [2, 0, 0, 0];
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const NAMED_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The rights that a new file inherits from its directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inherited {
    pub(crate) mode: u32,
    pub(crate) gid: u32,
    pub(crate) access: Option<Vec<u8>>,
    pub(crate) default: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A list that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Acl(Vec<Rule>);

impl Acl {
    fn parse(value: &[u8]) -> Result<Self, TreeError> {
        let bad = TreeError::Invalid("not an access control list");
        let rules =
            value.strip_prefix(&VERSION).filter(|rules| rules.len().is_multiple_of(8)).ok_or(bad.clone())?;
        let rules: Vec<Rule> = rules
            .chunks_exact(8)
            .map(|rule| match *rule {
                [a, b, c, d, e, f, g, h] => Rule {
                    tag: u16::from_le_bytes([a, b]),
                    permissions: u16::from_le_bytes([c, d]),
                    id: u32::from_le_bytes([e, f, g, h]),
                },
                _ => Rule { tag: 0, permissions: 0, id: 0 },
            })
            .collect();
        let count = |tag: u16| rules.iter().filter(|rule| rule.tag == tag).count();
        let known =
            rules.iter().all(|rule| rule.permissions <= 7 && rule.tag.count_ones() == 1 && rule.tag <= OTHER);
        let named = count(USER) + count(NAMED_GROUP) > 0;
        let once = count(OWNER) == 1 && count(GROUP) == 1 && count(OTHER) == 1 && count(MASK) <= 1;
        if known && once && (!named || count(MASK) == 1) && rules.is_sorted_by_key(|rule| rule.tag) {
            Ok(Self(rules))
        } else {
            Err(bad)
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_vec();
        for rule in &self.0 {
            bytes.extend_from_slice(&rule.tag.to_le_bytes());
            bytes.extend_from_slice(&rule.permissions.to_le_bytes());
            bytes.extend_from_slice(&rule.id.to_le_bytes());
        }
        bytes
    }

    fn of(&mut self, tag: u16) -> Option<&mut u16> {
        self.0.iter_mut().find(|rule| rule.tag == tag).map(|rule| &mut rule.permissions)
    }

    /// The rule that the group's bits of the mode represent: the mask, if there is one.
    fn group_class(&mut self) -> Option<&mut u16> {
        let tag = if self.has_mask() { MASK } else { GROUP };
        self.of(tag)
    }

    fn has_mask(&self) -> bool {
        self.0.iter().any(|rule| rule.tag == MASK)
    }

    /// Has no more information than a mode.
    fn is_a_mode(&self) -> bool {
        self.0.iter().all(|rule| matches!(rule.tag, OWNER | GROUP | OTHER))
    }

    /// The nine permission bits that it shows.
    fn permissions(&mut self) -> u32 {
        let bits = |rule: Option<&mut u16>| rule.map_or(0, |bits| u32::from(*bits));
        bits(self.of(OWNER)) << 6 | bits(self.group_class()) << 3 | bits(self.of(OTHER))
    }
}

/// The effect of setting an access list: the mode's permissions, and the list to store, if it has
/// more than those.
pub(crate) fn to_set(value: &[u8]) -> Result<(u32, Option<Vec<u8>>), TreeError> {
    let mut acl = Acl::parse(value)?;
    let permissions = acl.permissions();
    Ok((permissions, (!acl.is_a_mode()).then(|| acl.to_bytes())))
}

/// Refuses a value that is not a valid list.
pub(crate) fn check(value: &[u8]) -> Result<(), TreeError> {
    Acl::parse(value).map(drop)
}

/// The access list after the mode was set to `mode`.
pub(crate) fn with_mode(value: &[u8], mode: u32) -> Result<Vec<u8>, TreeError> {
    let mut acl = Acl::parse(value)?;
    let set = |rule: Option<&mut u16>, shift: u32| {
        if let Some(permissions) = rule {
            *permissions = (mode >> shift & 7) as u16;
        }
    };
    set(acl.of(OWNER), 6);
    set(acl.group_class(), 3);
    set(acl.of(OTHER), 0);
    Ok(acl.to_bytes())
}

/// The attributes of a file made with `mode` in a directory that has the default list `value`.
pub(crate) fn inherit(value: &[u8], mode: u32, gid: u32, is_directory: bool) -> Result<Inherited, TreeError> {
    let mut acl = Acl::parse(value)?;
    let mut narrow = |tag: u16, shift: u32| {
        if let Some(permissions) = acl.of(tag) {
            *permissions &= (mode >> shift & 7) as u16;
        }
    };
    narrow(OWNER, 6);
    narrow(OTHER, 0);
    let class = if acl.has_mask() { MASK } else { GROUP };
    if let Some(permissions) = acl.of(class) {
        *permissions &= (mode >> 3 & 7) as u16;
    }
    let mode = mode & !0o777 | acl.permissions();
    Ok(Inherited {
        mode,
        gid,
        access: (!acl.is_a_mode()).then(|| acl.to_bytes()),
        default: is_directory.then(|| value.to_vec()),
    })
}
