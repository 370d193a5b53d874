//! A folder of an image as a tar file, written as it is read: nothing of it is kept.
//!
//! The format is POSIX pax. A name that does not fit the old header, and extended attributes, are
//! in a header of their own. Sockets are left out, as tar has no kind for them. A file that cannot
//! be read ends the stream with an error: the reader must not take the part for the whole.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use cairn_base::FileId;
use cairn_files::{Entry, NodeKind, Stat, Tree, TreeError};
use tar::{Builder, EntryType, Header};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Names that are read at once.
const NAMES: usize = 1000;

fn failed(error: TreeError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// The content of a file, in order.
pub(super) struct Content<'a> {
    tree: &'a Tree,
    file: FileId,
    at: u64,
    left: u64,
    piece: Vec<u8>,
    taken: usize,
}

impl<'a> Content<'a> {
    pub(super) fn of(tree: &'a Tree, stat: &Stat) -> Self {
        Self { tree, file: stat.file, at: 0, left: stat.bytes, piece: Vec::new(), taken: 0 }
    }

    /// The next piece; none at the end.
    ///
    /// # Errors
    /// Damage, or a file that has become shorter.
    pub(super) fn next_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.left == 0 {
            return Ok(None);
        }
        let length = self.left.min(PIECE as u64) as usize;
        let piece = self.tree.read(self.file, self.at, length).map_err(failed)?;
        if piece.len() != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += length as u64;
        self.left -= length as u64;
        Ok(Some(piece))
    }
}

impl Read for Content<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.len() {
            let Some(piece) = self.next_piece()? else { return Ok(0) };
            (self.piece, self.taken) = (piece, 0);
        }
        let count = to.len().min(self.piece.len() - self.taken);
        to[..count].copy_from_slice(&self.piece[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

/// The names of a directory, a thousand at a time.
pub(super) struct Names {
    pub(super) directory: FileId,
    after: u64,
    found: std::vec::IntoIter<Entry>,
}

impl Names {
    pub(super) fn of(directory: FileId) -> Self {
        Self { directory, after: 0, found: Vec::new().into_iter() }
    }

    /// The next name; none at the end.
    ///
    /// # Errors
    /// Those of [`Tree::read_directory`].
    pub(super) fn next(&mut self, tree: &Tree) -> Result<Option<Entry>, TreeError> {
        loop {
            for entry in self.found.by_ref() {
                self.after = entry.cookie;
                if entry.name != b"." && entry.name != b".." {
                    return Ok(Some(entry));
                }
            }
            let found = tree.read_directory(self.directory, self.after, NAMES)?;
            if found.is_empty() {
                return Ok(None);
            }
            self.found = found.into_iter();
        }
    }
}

/// Writes a folder and all below it, under `name`.
///
/// # Errors
/// Damage of the volume; those of `out`.
pub(super) fn write_folder(tree: &Tree, folder: &Stat, name: &[u8], out: impl Write) -> io::Result<()> {
    let mut writing = Writing { tree, out: Builder::new(out), linked: HashMap::new() };
    writing.append(folder, name)?;
    // The directories from the folder down to the present one: a tree may be deeper than a stack.
    let mut open = vec![(Names::of(folder.file), name.to_vec())];
    while let Some((names, path)) = open.last_mut() {
        let Some(found) = names.next(tree).map_err(failed)? else {
            open.pop();
            continue;
        };
        let below = [&path[..], b"/", &found.name].concat();
        let stat = tree.stat(found.file).map_err(failed)?;
        writing.append(&stat, &below)?;
        if stat.kind == NodeKind::Directory {
            open.push((Names::of(found.file), below));
        }
    }
    writing.out.finish()?;
    writing.out.get_mut().flush()
}

struct Writing<'a, W: Write> {
    tree: &'a Tree,
    out: Builder<W>,
    /// The first path of each file with several names.
    linked: HashMap<FileId, Vec<u8>>,
}

impl<W: Write> Writing<'_, W> {
    fn append(&mut self, stat: &Stat, path: &[u8]) -> io::Result<()> {
        let mut header = Header::new_ustar();
        let mut further: Vec<(String, Vec<u8>)> = Vec::new();
        header.set_mode(stat.mode & 0o7777);
        header.set_uid(stat.uid.into());
        header.set_gid(stat.gid.into());
        header.set_mtime(u64::try_from(stat.modified_ns.div_euclid(1_000_000_000)).unwrap_or(0));
        header.set_size(0);
        let name = match stat.kind {
            NodeKind::Directory => [path, b"/"].concat(),
            _ => path.to_vec(),
        };
        if header.set_path(as_path(&name)).is_err() {
            header.set_path("long")?;
            further.push(("path".to_owned(), name));
        }
        let first = (stat.kind != NodeKind::Directory && stat.links > 1)
            .then(|| self.linked.insert(stat.file, path.to_vec()))
            .flatten();
        let is_linked = first.is_some();
        let link = match (first, stat.kind) {
            (Some(first), _) => {
                self.linked.insert(stat.file, first.clone());
                header.set_entry_type(EntryType::Link);
                Some(first)
            }
            (None, NodeKind::SymbolicLink) => {
                header.set_entry_type(EntryType::Symlink);
                Some(self.tree.read_link(stat.file).map_err(failed)?)
            }
            _ => None,
        };
        if let Some(link) = link
            && header.set_link_name_literal(&link[..]).is_err()
        {
            further.push(("linkpath".to_owned(), link));
        }
        if !is_linked {
            match stat.kind {
                NodeKind::Socket => return Ok(()),
                NodeKind::File => header.set_size(stat.bytes),
                NodeKind::Directory => header.set_entry_type(EntryType::Directory),
                NodeKind::Fifo => header.set_entry_type(EntryType::Fifo),
                NodeKind::CharacterDevice => header.set_entry_type(EntryType::Char),
                NodeKind::BlockDevice => header.set_entry_type(EntryType::Block),
                NodeKind::SymbolicLink => {}
            }
            if matches!(stat.kind, NodeKind::CharacterDevice | NodeKind::BlockDevice) {
                header.set_device_major((stat.device >> 8) & 0xfff)?;
                header.set_device_minor(stat.device & 0xff | (stat.device >> 12) & 0xf_ff00)?;
            }
            self.attributes(stat, &mut further)?;
        }
        header.set_cksum();
        if !further.is_empty() {
            self.out.append_pax_extensions(further.iter().map(|(key, value)| (&key[..], &value[..])))?;
        }
        match stat.kind {
            NodeKind::File if !is_linked => self.out.append(&header, Content::of(self.tree, stat)),
            _ => self.out.append(&header, io::empty()),
        }
    }

    fn attributes(&self, stat: &Stat, further: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
        if !stat.has_xattrs {
            return Ok(());
        }
        for name in self.tree.xattrs(stat.file).map_err(failed)? {
            // Access lists have another form in tar, and only root can restore them.
            if name.starts_with(b"system.") {
                continue;
            }
            let Ok(text) = std::str::from_utf8(&name) else { continue };
            let value = self.tree.xattr(stat.file, &name).map_err(failed)?;
            further.push((format!("SCHILY.xattr.{text}"), value));
        }
        Ok(())
    }
}

fn as_path(bytes: &[u8]) -> &std::path::Path {
    use std::os::unix::ffi::OsStrExt;
    std::path::Path::new(std::ffi::OsStr::from_bytes(bytes))
}
