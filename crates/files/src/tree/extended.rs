//! Extended attributes: all of a file's in one separate file, read and written as a whole.

use cairn_base::{BLOCK_SIZE, FileId, Timestamp};
use cairn_format::{
    Attributes, EXTENDED_BYTES_MAX, EXTENDED_NAME_MAX, EXTENDED_VALUE_MAX, Extended, FileKind, Inode, TreeRef,
};

use super::edit::Edit;
use super::error::TreeError;
use super::source::{Source, damaged};
use super::stat::{NodeKind, SetXattr};
use super::{Tree, acl};

/// The prefixes of attribute names other than access lists.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o777;

impl Tree {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`TreeError::NoAttribute`]; [`TreeError::NotFound`]; damage.
    pub fn xattr(&self, file: FileId, name: &[u8]) -> Result<Vec<u8>, TreeError> {
        self.extended(file)?.0.remove(name).ok_or_else(|| no_attribute(name))
    }

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// [`TreeError::NotFound`]; damage.
    pub fn xattrs(&self, file: FileId) -> Result<Vec<Vec<u8>>, TreeError> {
        Ok(self.extended(file)?.0.into_keys().collect())
    }

    /// All extended attributes with their values.
    fn extended(&self, file: FileId) -> Result<Extended, TreeError> {
        let _file = self.shards.get(self.shard(file)).map(|shard| shard.read());
        read_extended(&self.source, &self.source.inode(file)?)
    }

    /// The same for a holder of the file's lock.
    pub(crate) fn extended_of(&self, edit: &Edit<'_>, inode: &Inode) -> Result<Extended, TreeError> {
        let inode = edit.inode(inode.id)?;
        read_extended(&self.source, &inode)
    }

    /// Sets an extended attribute. An access list (`system.posix_acl_access`) sets the mode too,
    /// and is stored only if it has more information than a mode; one of no bytes is removed.
    ///
    /// # Errors
    /// [`TreeError::Exists`] with [`SetXattr::Create`]; [`TreeError::NoAttribute`] with
    /// [`SetXattr::Replace`]; [`TreeError::AttributeTooLarge`]; [`TreeError::AttributeName`],
    /// [`TreeError::AttributeNamespace`] and [`TreeError::Invalid`] for names that no file system
    /// takes; [`TreeError::NoSpace`] also when all of the file's would take more than 262,144
    /// bytes; [`TreeError::Invalid`] for an invalid access list; [`TreeError::NotFound`];
    /// [`TreeError::ReadOnly`]; damage.
    pub fn set_xattr(
        &self,
        file: FileId,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
    ) -> Result<(), TreeError> {
        check_name(name)?;
        if value.len() > EXTENDED_VALUE_MAX {
            return Err(TreeError::AttributeTooLarge);
        }
        let source = self.live()?;
        let _files = self.lock_files(&[file]);
        let mut edit = Edit::new(source, &self.quotas);
        let inode = edit.inode(file)?;
        let mut all = read_extended(source, &inode)?;
        match (mode, all.0.contains_key(name)) {
            (SetXattr::Create, true) => return Err(TreeError::Exists),
            (SetXattr::Replace, false) => return Err(TreeError::NoAttribute),
            _ => {}
        }
        let kept = match name {
            acl::ACCESS | acl::DEFAULT if value.len() <= 4 => None,
            acl::ACCESS => {
                let (permissions, kept) = acl::to_set(value)?;
                let mode = &mut edit.inode_mut(file)?.attributes.mode;
                *mode = *mode & !PERMISSIONS | permissions;
                kept
            }
            acl::DEFAULT => {
                if NodeKind::of(&inode) != NodeKind::Directory {
                    return Err(TreeError::Invalid("only a directory has a default access control list"));
                }
                acl::check(value)?;
                Some(value.to_vec())
            }
            _ => Some(value.to_vec()),
        };
        match kept {
            Some(value) => drop(all.0.insert(name.to_vec(), value)),
            None => drop(all.0.remove(name)),
        }
        put_extended(&mut edit, file, &all)?;
        edit.touch(file)?;
        edit.commit(false)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`TreeError::NoAttribute`]; [`TreeError::NotFound`]; [`TreeError::ReadOnly`]; damage.
    pub fn remove_xattr(&self, file: FileId, name: &[u8]) -> Result<(), TreeError> {
        let source = self.live()?;
        let _files = self.lock_files(&[file]);
        let mut edit = Edit::new(source, &self.quotas);
        let mut all = read_extended(source, &edit.inode(file)?)?;
        all.0.remove(name).ok_or_else(|| no_attribute(name))?;
        put_extended(&mut edit, file, &all)?;
        edit.touch(file)?;
        edit.commit(true)
    }

    /// Gives a new file the access control lists that it inherits.
    pub(crate) fn put_acls(
        &self,
        edit: &mut Edit<'_>,
        file: FileId,
        inherited: &acl::Inherited,
    ) -> Result<(), TreeError> {
        let mut all = Extended::default();
        let lists = [(acl::ACCESS, &inherited.access), (acl::DEFAULT, &inherited.default)];
        for (name, list) in lists {
            all.0.extend(list.clone().map(|list| (name.to_vec(), list)));
        }
        if all.0.is_empty() { Ok(()) } else { put_extended(edit, file, &all) }
    }

    /// Adapts the access list of a file to its new mode.
    pub(crate) fn acl_follows_mode(
        &self,
        edit: &mut Edit<'_>,
        file: FileId,
        mode: u32,
    ) -> Result<(), TreeError> {
        let inode = edit.inode(file)?;
        if inode.attributes.extended.0 == 0 {
            return Ok(());
        }
        let mut all = read_extended(&self.source, &inode)?;
        let Some(list) = all.0.get_mut(acl::ACCESS) else { return Ok(()) };
        *list = acl::with_mode(list, mode)?;
        put_extended(edit, file, &all)
    }
}

/// The error for a name without an attribute: the usual one if the name is valid, or one of its
/// own.
fn no_attribute(name: &[u8]) -> TreeError {
    check_name(name).err().unwrap_or(TreeError::NoAttribute)
}

/// Takes the names that ext4 takes, and gives its errors for others.
fn check_name(name: &[u8]) -> Result<(), TreeError> {
    if name.is_empty() || name.len() > EXTENDED_NAME_MAX {
        return Err(TreeError::AttributeName);
    }
    if name.contains(&0) {
        return Err(TreeError::Invalid("an attribute has a name without zeroes"));
    }
    if matches!(name, acl::ACCESS | acl::DEFAULT) {
        return Ok(());
    }
    let inside = NAMESPACES.iter().find_map(|namespace| name.strip_prefix(*namespace));
    match inside {
        Some([]) => Err(TreeError::Invalid("an attribute has a name in its namespace")),
        Some(_) => Ok(()),
        None => Err(TreeError::AttributeNamespace),
    }
}

fn read_extended(source: &Source, inode: &Inode) -> Result<Extended, TreeError> {
    let id = inode.attributes.extended;
    if id.0 == 0 {
        return Ok(Extended::default());
    }
    let extended = source.raw_inode(id)?;
    let bad = || damaged(id, 0);
    let good = extended.kind == FileKind::Extended && extended.length_bytes <= EXTENDED_BYTES_MAX as u64;
    if !good {
        return Err(bad());
    }
    let blocks = extended.length_bytes.div_ceil(BLOCK_SIZE as u64);
    let mut bytes = source.read(id, 0, blocks)?.to_vec();
    bytes.truncate(extended.length_bytes as usize);
    Extended::parse(&bytes, inode.id).map_err(|_| bad())
}

/// Gives a file these attributes instead of those that it has.
fn put_extended(edit: &mut Edit<'_>, file: FileId, all: &Extended) -> Result<(), TreeError> {
    let id = edit.inode(file)?.attributes.extended;
    if all.0.is_empty() {
        if id.0 != 0 {
            edit.remove_extended(id)?;
            edit.inode_mut(file)?.attributes.extended = FileId(0);
        }
        return Ok(());
    }
    if all.size() > EXTENDED_BYTES_MAX {
        return Err(TreeError::NoSpace);
    }
    let id = if id.0 == 0 { edit.next_file()? } else { id };
    edit.inode_mut(file)?.attributes.extended = id;
    let inode = Inode {
        kind: FileKind::Extended,
        removed: false,
        id,
        length_bytes: 0,
        created: Timestamp(edit.now().max(0).cast_unsigned()),
        relationship: 0,
        tree: TreeRef::empty(1),
        attributes: Attributes::default(),
    };
    edit.write_all(inode, &all.to_bytes(file));
    Ok(())
}
