//! Making, linking, renaming and removing names: each one change that is taken whole or not at all.

use cairn_base::{BLOCK_SIZE, FileId, Timestamp};
use cairn_format::{Attributes, FileKind, Inode, TreeRef};

use super::edit::{Edit, block_of};
use super::error::TreeError;
use super::stat::{New, NodeKind, Rename, Stat};
use super::trie::{self, FoundName};
use super::{LINKS_MAX, Owner, Tree, acl, as_directory};

/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4095;
/// Set-group-ID: a directory with it gives its group to new files in it.
const SET_GROUP: u32 = 0o2000;

impl Tree {
    /// Makes a file, device, fifo or socket, by the type bits of `new.mode`; without type bits, a
    /// file.
    ///
    /// # Errors
    /// [`TreeError::Exists`]; [`TreeError::NotFound`] when the directory is gone;
    /// [`TreeError::NotDirectory`]; [`TreeError::Invalid`] for another type;
    /// [`TreeError::NoSpace`]; [`TreeError::ReadOnly`]; damage.
    pub fn make(&self, directory: FileId, name: &[u8], new: &New) -> Result<Stat, TreeError> {
        let kind = NodeKind::of_mode(new.mode)
            .filter(|kind| !matches!(kind, NodeKind::Directory | NodeKind::SymbolicLink))
            .ok_or(TreeError::Invalid("directories and symbolic links are made in other ways"))?;
        self.make_node(directory, name, new, kind, &[])
    }

    /// Makes a file without a name, as for `O_TMPFILE`, with the attributes of a file made in
    /// `directory`. It is held for the caller ([`Tree::release`] ends the hold). It is gone after
    /// the last hold, or after a crash, unless [`Tree::link`] has given it a name by then.
    ///
    /// # Errors
    /// As [`Tree::make`].
    pub fn make_unnamed(&self, directory: FileId, new: &New) -> Result<Stat, TreeError> {
        let source = self.live()?;
        let _names = self.names.write();
        let _files = self.lock_files(&[directory, self.orphans]);
        let mut edit = Edit::new(source, &self.quotas);
        let parent = self.open_directory(&edit, directory)?;
        let (file, inherited) = self.put_new(&mut edit, &parent, new, NodeKind::File, 0)?;
        self.keep_orphan(&mut edit, file, NodeKind::File)?;
        edit.inode_mut(file)?.attributes.links = 0;
        self.put_acls(&mut edit, file, &inherited)?;
        let stat = Stat::from(&edit.inode(file)?);
        edit.commit(false)?;
        self.hold_unnamed(file);
        Ok(stat)
    }

    /// Makes an empty directory.
    ///
    /// # Errors
    /// As [`Tree::make`].
    pub fn make_directory(&self, directory: FileId, name: &[u8], new: &New) -> Result<Stat, TreeError> {
        self.make_node(directory, name, new, NodeKind::Directory, &[])
    }

    /// Makes a symbolic link to `target`, 1 to 4,095 bytes.
    ///
    /// # Errors
    /// As [`Tree::make`]; [`TreeError::NameTooLong`] and [`TreeError::NotFound`] for a target that
    /// is too long, or empty.
    pub fn make_link(
        &self,
        directory: FileId,
        name: &[u8],
        target: &[u8],
        new: &New,
    ) -> Result<Stat, TreeError> {
        if target.is_empty() {
            return Err(TreeError::NotFound);
        }
        if target.len() > TARGET_MAX {
            return Err(TreeError::NameTooLong);
        }
        if target.contains(&0) {
            return Err(TreeError::Invalid("a path has no zero"));
        }
        let new = New { mode: 0o777, umask: 0, ..*new };
        self.make_node(directory, name, &new, NodeKind::SymbolicLink, target)
    }

    fn make_node(
        &self,
        directory: FileId,
        name: &[u8],
        new: &New,
        kind: NodeKind,
        target: &[u8],
    ) -> Result<Stat, TreeError> {
        trie::check_name(name)?;
        let source = self.live()?;
        let _names = self.names.write();
        let _files = self.lock_files(&[directory]);
        let mut edit = Edit::new(source, &self.quotas);
        let parent = self.open_directory(&edit, directory)?;
        if trie::find(&mut edit, &parent, name)?.is_some() {
            return Err(TreeError::Exists);
        }
        let (file, inherited) = self.put_new(&mut edit, &parent, new, kind, target.len())?;
        let key = trie::insert(&mut edit, directory, name, file, kind)?;
        match kind {
            NodeKind::Directory => {
                trie::set_parent(&mut edit, file, directory, key)?;
                edit.inode_mut(directory)?.attributes.links += 1;
            }
            NodeKind::SymbolicLink => edit.write_block(file, 0, block_of(target))?,
            _ => {}
        }
        self.put_acls(&mut edit, file, &inherited)?;
        edit.touch_content(directory)?;
        let stat = Stat::from(&edit.inode(file)?);
        edit.commit(false)?;
        Ok(stat)
    }

    /// Puts the inode of a new file of `length` bytes, with the links that one name makes.
    fn put_new(
        &self,
        edit: &mut Edit<'_>,
        parent: &Inode,
        new: &New,
        kind: NodeKind,
        length: usize,
    ) -> Result<(FileId, acl::Inherited), TreeError> {
        let file = self.volume().next_file()?;
        let inherited = self.inherit(edit, parent, new, kind)?;
        let attributes = Attributes {
            mode: kind.type_bits() | inherited.mode,
            links: if kind == NodeKind::Directory { 2 } else { 1 },
            uid: new.uid,
            gid: inherited.gid,
            device: match kind {
                NodeKind::CharacterDevice | NodeKind::BlockDevice => new.device,
                _ => 0,
            },
            quota: parent.attributes.quota,
            accessed_ns: edit.coarse(),
            modified_ns: edit.coarse(),
            changed_ns: edit.now(),
            ..Attributes::default()
        };
        let length_bytes = if kind == NodeKind::Directory { BLOCK_SIZE as u64 } else { length as u64 };
        edit.put(Inode {
            kind: FileKind::Node,
            removed: false,
            id: file,
            length_bytes,
            created: Timestamp(edit.coarse().max(0).cast_unsigned()),
            relationship: 0,
            tree: TreeRef::empty(1),
            attributes,
        });
        Ok((file, inherited))
    }

    /// Mode, group and ACLs that a new file gets from its directory.
    fn inherit(
        &self,
        edit: &Edit<'_>,
        parent: &Inode,
        new: &New,
        kind: NodeKind,
    ) -> Result<acl::Inherited, TreeError> {
        let mut mode = new.mode & 0o7777;
        let gives_group = parent.attributes.mode & SET_GROUP != 0;
        let gid = if gives_group { parent.attributes.gid } else { new.gid };
        if gives_group && kind == NodeKind::Directory {
            mode |= SET_GROUP;
        }
        let default = match kind {
            NodeKind::SymbolicLink => None,
            _ => self.extended_of(edit, parent)?.0.remove(acl::DEFAULT),
        };
        Ok(match default {
            Some(default) => acl::inherit(&default, mode, gid, kind == NodeKind::Directory)?,
            None => acl::Inherited { mode: mode & !(new.umask & 0o777), gid, access: None, default: None },
        })
    }

    /// Gives a file that is not a directory another name, or a first name to one of
    /// [`Tree::make_unnamed`].
    ///
    /// # Errors
    /// [`TreeError::NotPermitted`] for a directory; [`TreeError::TooManyLinks`];
    /// [`TreeError::CrossesQuota`]; as [`Tree::make`].
    pub fn link(&self, file: FileId, directory: FileId, name: &[u8]) -> Result<Stat, TreeError> {
        trie::check_name(name)?;
        let source = self.live()?;
        let _names = self.names.write();
        let _files = self.lock_files(&[file, directory, self.orphans]);
        let mut edit = Edit::new(source, &self.quotas);
        let parent = self.open_directory(&edit, directory)?;
        let inode = edit.inode(file)?;
        let kind = NodeKind::of(&inode);
        if kind == NodeKind::Directory {
            return Err(TreeError::NotPermitted);
        }
        if trie::find(&mut edit, &parent, name)?.is_some() {
            return Err(TreeError::Exists);
        }
        if inode.attributes.links == 0 {
            // One that was made without a name gets its first; one that has lost its last does not
            // get another, as on other systems.
            if !self.is_unnamed(file) {
                return Err(TreeError::NotFound);
            }
            self.forget_orphan(&mut edit, file)?;
        }
        if inode.attributes.links >= LINKS_MAX {
            return Err(TreeError::TooManyLinks);
        }
        if inode.attributes.quota != parent.attributes.quota {
            return Err(TreeError::CrossesQuota);
        }
        trie::insert(&mut edit, directory, name, file, kind)?;
        edit.inode_mut(file)?.attributes.links += 1;
        edit.touch(file)?;
        edit.touch_content(directory)?;
        let stat = Stat::from(&edit.inode(file)?);
        edit.commit(false)?;
        self.is_named_now(file);
        Ok(stat)
    }

    /// Removes a name of a file that is not a directory. With the last one the file is gone, once
    /// it has no hold.
    ///
    /// # Errors
    /// [`TreeError::NotFound`]; [`TreeError::IsDirectory`]; [`TreeError::NotDirectory`];
    /// [`TreeError::ReadOnly`]; damage.
    pub fn unlink(&self, directory: FileId, name: &[u8]) -> Result<(), TreeError> {
        self.remove_name(directory, name, false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`TreeError::NotEmpty`]; [`TreeError::NotDirectory`]; [`TreeError::NotFound`];
    /// [`TreeError::ReadOnly`]; damage.
    pub fn remove_directory(&self, directory: FileId, name: &[u8]) -> Result<(), TreeError> {
        self.remove_name(directory, name, true)
    }

    fn remove_name(&self, directory: FileId, name: &[u8], is_directory: bool) -> Result<(), TreeError> {
        trie::check_name(name)?;
        let source = self.live()?;
        let _names = self.names.write();
        let mut edit = Edit::new(source, &self.quotas);
        // Names do not change meanwhile, so its meaning now is valid until the end.
        let inode = self.open_directory(&edit, directory)?;
        let found = trie::find(&mut edit, &inode, name)?.ok_or(TreeError::NotFound)?;
        let _files = self.lock_files(&[directory, found.file, self.orphans]);
        self.load_to_remove(found.file);
        match (is_directory, found.kind == NodeKind::Directory) {
            (true, false) => return Err(TreeError::NotDirectory),
            (false, true) => return Err(TreeError::IsDirectory),
            _ => {}
        }
        self.drop_link(&mut edit, directory, &found)?;
        trie::remove(&mut edit, directory, found.key)?;
        edit.touch_content(directory)?;
        edit.commit(true)
    }

    /// Changes a file when a name of it goes. The caller removes the name itself.
    fn drop_link(&self, edit: &mut Edit<'_>, directory: FileId, found: &FoundName) -> Result<(), TreeError> {
        let file = found.file;
        if found.kind == NodeKind::Directory {
            if !trie::is_empty(edit, file)? {
                return Err(TreeError::NotEmpty);
            }
            let inode = edit.inode_mut(file)?;
            inode.attributes.links = 0;
            if let Some(number) = self.quotas.topped_by(&self.source, inode)? {
                inode.attributes.quota = 0;
                edit.put_quota(number, None);
            }
            let links = &mut edit.inode_mut(directory)?.attributes.links;
            *links = links.saturating_sub(1);
        } else {
            let links = &mut edit.inode_mut(file)?.attributes.links;
            *links = links.saturating_sub(1);
        }
        edit.touch(file)?;
        if edit.inode(file)?.attributes.links > 0 {
            return Ok(());
        }
        if self.stays_without_name(file) {
            self.keep_orphan(edit, file, found.kind)
        } else {
            edit.remove(file)
        }
    }

    /// Renames, by all rules of `rename` but permissions.
    ///
    /// # Errors
    /// [`TreeError::NotFound`]; [`TreeError::Exists`] with [`Rename::NoReplace`];
    /// [`TreeError::Invalid`] for a directory into itself; [`TreeError::NotEmpty`];
    /// [`TreeError::IsDirectory`]; [`TreeError::NotDirectory`]; [`TreeError::CrossesQuota`]; as
    /// [`Tree::make`].
    pub fn rename(
        &self,
        from: FileId,
        name: &[u8],
        to: FileId,
        new_name: &[u8],
        mode: Rename,
    ) -> Result<(), TreeError> {
        self.rename_and_leave(from, name, to, new_name, mode, None).map(drop)
    }

    /// As [`Tree::rename`], and leaves a whiteout of that owner under the old name, in the same
    /// step: a character device 0:0 without permissions, which hides the name in the layer below
    /// for overlayfs. Returns its file; `None` where nothing is left, or both names are of one
    /// file, which stay.
    ///
    /// # Errors
    /// As [`Tree::rename`]; [`TreeError::Invalid`] with [`Rename::Exchange`], which leaves no name.
    pub fn rename_and_leave(
        &self,
        from: FileId,
        name: &[u8],
        to: FileId,
        new_name: &[u8],
        mode: Rename,
        whiteout: Option<Owner>,
    ) -> Result<Option<FileId>, TreeError> {
        if whiteout.is_some() && mode == Rename::Exchange {
            return Err(TreeError::Invalid("names that change places leave none"));
        }
        trie::check_name(name)?;
        trie::check_name(new_name)?;
        let source = self.live()?;
        let _names = self.names.write();
        let mut edit = Edit::new(source, &self.quotas);
        let (from_inode, to_inode) = (self.open_directory(&edit, from)?, self.open_directory(&edit, to)?);
        let moved = trie::find(&mut edit, &from_inode, name)?.ok_or(TreeError::NotFound)?;
        let target = trie::find(&mut edit, &to_inode, new_name)?;
        let mut files = vec![from, to, moved.file, self.orphans];
        files.extend(target.map(|target| target.file));
        let _files = self.lock_files(&files);
        self.check_descent(&moved, to)?;
        let mut left = None;
        match (mode, target) {
            (Rename::NoReplace, Some(_)) => return Err(TreeError::Exists),
            (Rename::Exchange, None) => return Err(TreeError::NotFound),
            (Rename::Exchange, Some(target)) => {
                self.check_descent(&target, from)?;
                if target.file == moved.file {
                    return Ok(None);
                }
                self.check_quota_of(&edit, target.file, from)?;
                self.check_quota_of(&edit, moved.file, to)?;
                self.exchange(&mut edit, from, &moved, to, &target)?;
            }
            (_, target) => {
                // Two names of one file: both stay.
                if target.is_some_and(|target| target.file == moved.file) {
                    return Ok(None);
                }
                self.check_quota_of(&edit, moved.file, to)?;
                left = whiteout.map(|owner| self.make_whiteout(&mut edit, from, owner)).transpose()?;
                self.move_name(&mut edit, (from, &moved, left), (to, new_name, target))?;
            }
        }
        edit.touch(moved.file)?;
        edit.touch_content(from)?;
        edit.touch_content(to)?;
        edit.commit(false)?;
        Ok(left)
    }

    /// A whiteout in a directory that has no name yet.
    fn make_whiteout(
        &self,
        edit: &mut Edit<'_>,
        directory: FileId,
        owner: Owner,
    ) -> Result<FileId, TreeError> {
        let parent = edit.inode(directory)?;
        let new = New { uid: owner.uid, gid: owner.gid, ..New::default() };
        let (file, inherited) = self.put_new(edit, &parent, &new, NodeKind::CharacterDevice, 0)?;
        self.put_acls(edit, file, &inherited)?;
        Ok(file)
    }

    /// Moves a named file, under whose name `left` stays, to another name, which may exist.
    fn move_name(
        &self,
        edit: &mut Edit<'_>,
        (from, moved, left): (FileId, &FoundName, Option<FileId>),
        (to, new_name, target): (FileId, &[u8], Option<FoundName>),
    ) -> Result<(), TreeError> {
        let is_directory = moved.kind == NodeKind::Directory;
        let key = match target {
            Some(target) => {
                match (is_directory, target.kind == NodeKind::Directory) {
                    (true, false) => return Err(TreeError::NotDirectory),
                    (false, true) => return Err(TreeError::IsDirectory),
                    _ => {}
                }
                self.drop_link(edit, to, &target)?;
                trie::replace(edit, to, target.key, moved.file, moved.kind)?;
                target.key
            }
            None => trie::insert(edit, to, new_name, moved.file, moved.kind)?,
        };
        match left {
            Some(left) => trie::replace(edit, from, moved.key, left, NodeKind::CharacterDevice)?,
            None => trie::remove(edit, from, moved.key)?,
        }
        if is_directory {
            trie::set_parent(edit, moved.file, to, key)?;
            self.move_links(edit, from, to)?;
        }
        Ok(())
    }

    fn exchange(
        &self,
        edit: &mut Edit<'_>,
        from: FileId,
        moved: &FoundName,
        to: FileId,
        target: &FoundName,
    ) -> Result<(), TreeError> {
        trie::replace(edit, from, moved.key, target.file, target.kind)?;
        trie::replace(edit, to, target.key, moved.file, moved.kind)?;
        if moved.kind == NodeKind::Directory {
            trie::set_parent(edit, moved.file, to, target.key)?;
            self.move_links(edit, from, to)?;
        }
        if target.kind == NodeKind::Directory {
            trie::set_parent(edit, target.file, from, moved.key)?;
            self.move_links(edit, to, from)?;
        }
        edit.touch(target.file)
    }

    /// A directory went from one directory into another: its `..` counts there.
    fn move_links(&self, edit: &mut Edit<'_>, from: FileId, to: FileId) -> Result<(), TreeError> {
        let links = &mut edit.inode_mut(from)?.attributes.links;
        *links = links.saturating_sub(1);
        edit.inode_mut(to)?.attributes.links += 1;
        Ok(())
    }

    /// A directory does not go into itself, or below.
    fn check_descent(&self, moved: &FoundName, to: FileId) -> Result<(), TreeError> {
        if moved.kind != NodeKind::Directory {
            return Ok(());
        }
        self.go_up(to, &mut |at, _| {
            if at == moved.file {
                return Err(TreeError::Invalid("a directory does not go into itself, or below"));
            }
            Ok(())
        })
    }

    /// Files stay in the quota tree where they were made, in which their blocks count.
    fn check_quota_of(&self, edit: &Edit<'_>, file: FileId, directory: FileId) -> Result<(), TreeError> {
        let (inode, quota) = (edit.inode(file)?, edit.inode(directory)?.attributes.quota);
        // A top does not move into itself, which is refused anyway: its record is not needed, and
        // may be damaged.
        if inode.attributes.quota == quota {
            return Ok(());
        }
        // The top of a quota tree is in none where its name is.
        let is_top = quota == 0 && self.quotas.topped_by(&self.source, &inode)?.is_some();
        if is_top { Ok(()) } else { Err(TreeError::CrossesQuota) }
    }

    /// A directory that still has a name: in one that was removed nothing is made.
    pub(crate) fn open_directory(&self, edit: &Edit<'_>, file: FileId) -> Result<Inode, TreeError> {
        let inode = as_directory(edit.inode(file)?)?;
        if inode.attributes.links == 0 { Err(TreeError::NotFound) } else { Ok(inode) }
    }
}
