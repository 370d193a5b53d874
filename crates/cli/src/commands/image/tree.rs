//! `cairn image list PATH`, `cat` and `extract`: files in image dumps, without restoring anything.
//!
//! The dumps are opened as a volume that is read in place. Only the blocks on the path and those of
//! the file are read.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cairn_api::ErrorKind;
use cairn_base::FileId;
use cairn_bsddump::{Attribute, Inode, Kind, Time};
use cairn_files::{NodeKind, Stat, Tree, TreeError};

use super::mount::{Dumps, dump_failure, open_dump};
use crate::arguments::ExtractImage;
use crate::commands::restore::host::{Place, Target};
use crate::exit::{Failure, PARTLY_DONE};
use crate::output::{
    Output, ago, name, name as called, note_line, print_line, put_name, size, table, unwritten,
};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Entries of a directory that are read at once.
const ENTRIES: usize = 1024;

/// A path in a dump: `PATH` in the dumped state, `@SNAPSHOT:PATH` in an older snapshot that the
/// dump has.
struct DumpPath<'a> {
    snapshot: Option<&'a str>,
    path: &'a [u8],
}

impl<'a> DumpPath<'a> {
    fn of(path: &'a Path) -> Result<Self, Failure> {
        let bytes = path.as_os_str().as_bytes();
        let Some(rest) = bytes.strip_prefix(b"@") else { return Ok(Self { snapshot: None, path: bytes }) };
        let wrong = || {
            let next = "a path of an older snapshot is @SNAPSHOT:/PATH";
            Failure::new(ErrorKind::Usage, format!("{} is not a path in a dump", path.display()), next)
        };
        let colon = rest.iter().position(|byte| *byte == b':').ok_or_else(wrong)?;
        let snapshot = std::str::from_utf8(&rest[..colon]).map_err(|_| wrong())?;
        Ok(Self { snapshot: Some(snapshot), path: &rest[colon + 1..] })
    }

    /// The path from the root, without slashes at its ends. An extracted file gets this path, and
    /// stays below its destination.
    fn way_down(&self) -> Vec<u8> {
        let mut names: Vec<&[u8]> = Vec::new();
        for name in self.path.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => drop(names.pop()),
                _ => names.push(name),
            }
        }
        names.join(&b'/')
    }
}

/// A path that was found in dumps.
struct Found {
    tree: Tree,
    stat: Stat,
    /// From the root, without slashes at its ends.
    path: Vec<u8>,
}

fn find(dumps: &Dumps<'_>, path: &Path, damaged: bool) -> Result<Found, Failure> {
    let wanted = DumpPath::of(path)?;
    let dump = open_dump(dumps.index()?, false, damaged)?;
    let snapshot = match wanted.snapshot {
        Some(name) => {
            let found = dump.volume.snapshot_named(name).ok_or_else(|| {
                let next = "see which there are with `cairn image list DUMP`";
                Failure::new(ErrorKind::NotFound, format!("the dump has no snapshot `{name}`"), next)
            })?;
            Some(found.id)
        }
        None => None,
    };
    let image = dump.volume.image(snapshot).map_err(|error| dump_failure(error.into()))?;
    let tree = Tree::of_image(image).map_err(|error| tree_failure(path, &error))?;
    let stat = tree.resolve(wanted.path).map_err(|error| tree_failure(path, &error))?;
    Ok(Found { tree, stat, path: wanted.way_down() })
}

fn tree_failure(path: &Path, error: &TreeError) -> Failure {
    let (kind, next) = match error {
        TreeError::NoTree => {
            (ErrorKind::NotFound, "a dump of a volume with LUNs alone is served with `cairn image mount`")
        }
        TreeError::NotFound | TreeError::NotDirectory => {
            (ErrorKind::NotFound, "list what exists with `cairn image list DUMP... /`")
        }
        TreeError::Damaged(_) | TreeError::Volume(_) => {
            (ErrorKind::Damaged, "see what is damaged with `cairn image verify`")
        }
        _ => (ErrorKind::Failed, "see `cairn image list DUMP... /`"),
    };
    Failure::new(kind, format!("{}: {error}", path.display()), next)
}

fn letter(kind: NodeKind) -> char {
    match kind {
        NodeKind::File => '-',
        NodeKind::Directory => 'd',
        NodeKind::SymbolicLink => 'l',
        NodeKind::CharacterDevice => 'c',
        NodeKind::BlockDevice => 'b',
        NodeKind::Fifo => 'p',
        NodeKind::Socket => 's',
    }
}

/// `drwxr-xr-x`, as `ls -l` has it.
fn mode_text(stat: &Stat) -> String {
    let mut text = String::from(letter(stat.kind));
    for (shift, special, with, without) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = stat.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (stat.mode & special != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Lists a directory of a dump, or one file. Unreadable entries are reported, and the others are
/// listed.
pub fn ls(dumps: &Dumps<'_>, path: &Path, output: Output) -> Result<(), Failure> {
    let found = find(dumps, path, false)?;
    let mut list: Vec<(Vec<u8>, Stat)> = Vec::new();
    let mut troubles = Vec::new();
    if found.stat.kind == NodeKind::Directory {
        let mut first = None;
        let listed = each_entry(&found.tree, found.stat.file, |called, file| {
            match found.tree.stat(file) {
                Ok(stat) => list.push((called.to_vec(), stat)),
                Err(error) => {
                    let below = if found.path.is_empty() { "" } else { "/" };
                    troubles.push(format!("/{}{below}{}: {error}", name(&found.path), name(called)));
                    first = first.take().or(Some(error));
                }
            }
            Ok(())
        });
        if let Err(error) = listed {
            troubles.push(format!("/{}: {error}; there may be more in it", name(&found.path)));
            first = first.or(Some(error));
        }
        if let Some(error) = first.filter(|_| list.is_empty()) {
            return Err(tree_failure(path, &error));
        }
        list.sort_by(|a, b| a.0.cmp(&b.0));
    } else {
        let name = found.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        list.push((name.to_vec(), found.stat));
    }
    let shown: Vec<_> = list
        .iter()
        .map(|(name, stat)| {
            let mut entry = serde_json::json!({
                "mode": stat.mode, "links": stat.links, "uid": stat.uid,
                "gid": stat.gid, "size_bytes": stat.bytes, "modified_ms": stat.modified_ns / 1_000_000,
                "number": stat.file.0,
            });
            put_name(&mut entry, "name", name);
            entry
        })
        .collect();
    output.show(&shown, |_| {
        let row = |(name, stat): &(Vec<u8>, Stat)| {
            let target = match stat.kind {
                NodeKind::SymbolicLink => found.tree.read_link(stat.file).unwrap_or_default(),
                _ => Vec::new(),
            };
            let arrow = if target.is_empty() { "" } else { " -> " };
            [
                mode_text(stat),
                stat.links.to_string(),
                stat.uid.to_string(),
                stat.gid.to_string(),
                size(stat.bytes),
                ago(stat.modified_ns.max(0) as u64 / 1_000_000),
                format!("{}{arrow}{}", called(name), called(&target)),
            ]
        };
        table(["MODE", "LINKS", "UID", "GID", "SIZE", "CHANGED", "NAME"], list.iter().map(row))
    });
    troubles.iter().for_each(|trouble| note_line(trouble));
    if troubles.is_empty() { Ok(()) } else { Err(Failure::silent(PARTLY_DONE)) }
}

/// Calls `each` with all readable names of a directory. If some are not readable, this returns the
/// first error.
fn each_entry(
    tree: &Tree,
    directory: FileId,
    mut each: impl FnMut(&[u8], FileId) -> Result<(), TreeError>,
) -> Result<(), TreeError> {
    let (mut after, mut damage) = (0, None);
    loop {
        let entries = match tree.read_directory(directory, after, ENTRIES) {
            Ok(entries) => entries,
            Err(error) => match tree.behind_damage(directory, after) {
                Some(behind) => {
                    damage = damage.or(Some(error));
                    after = behind;
                    continue;
                }
                None => return Err(damage.unwrap_or(error)),
            },
        };
        let Some(last) = entries.last() else { return damage.map_or(Ok(()), Err) };
        after = last.cookie;
        for entry in entries.iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
            each(&entry.name, entry.file)?;
        }
    }
}

/// Writes a file of a dump to standard output.
pub fn cat(dumps: &Dumps<'_>, path: &Path) -> Result<(), Failure> {
    let found = find(dumps, path, false)?;
    if found.stat.kind != NodeKind::File {
        let next = "take it out with its directory: cairn image extract";
        return Err(Failure::new(
            ErrorKind::Usage,
            format!("{} is not a regular file", path.display()),
            next,
        ));
    }
    let mut out = std::io::stdout().lock();
    let mut at = 0;
    while at < found.stat.bytes {
        let bytes =
            found.tree.read(found.stat.file, at, PIECE).map_err(|error| tree_failure(path, &error))?;
        if bytes.is_empty() {
            break;
        }
        at += bytes.len() as u64;
        if let Err(error) = out.write_all(&bytes) {
            return unwritten(error).map_or(Ok(()), Err);
        }
    }
    out.flush().or_else(|error| unwritten(error).map_or(Ok(()), Err))
}

/// Takes a file, or a directory with all below, out of a dump.
pub fn extract(asked: &ExtractImage, dumps: &Dumps<'_>, output: Output) -> Result<(), Failure> {
    let (_, path) = asked.split();
    let found = find(dumps, path, asked.accept_damage)?;
    let target = Target::open(&asked.to).map_err(|error| {
        let next = "name a directory that exists with --to";
        Failure::new(ErrorKind::Usage, format!("{}: {error}", asked.to.display()), next)
    })?;
    let mut extract = Extract {
        tree: &found.tree,
        target,
        links: HashMap::new(),
        directories: Vec::new(),
        files: 0,
        bytes: 0,
        troubles: Vec::new(),
        is_full: false,
        bar: output.count_bar("files"),
    };
    extract.lead_to(&found.path);
    extract.take(&found.path, &found.stat);
    extract.finish();
    let Extract { files, bytes, troubles, is_full, bar, .. } = extract;
    bar.finish_and_clear();
    let told = serde_json::json!({ "files": files, "bytes": bytes, "failed": troubles });
    if output.json {
        print_line(&told.to_string());
    } else {
        troubles.iter().for_each(|trouble| note_line(trouble));
        if !output.quiet {
            print_line(&format!("{files} files and directories, {}, in {}", size(bytes), asked.to.display()));
        }
    }
    if is_full {
        let what = format!("{} is full, and not all came out", asked.to.display());
        return Err(Failure::new(ErrorKind::NoSpace, what, "free space there, and run it again"));
    }
    if troubles.is_empty() { Ok(()) } else { Err(Failure::silent(PARTLY_DONE)) }
}

struct Extract<'a> {
    tree: &'a Tree,
    target: Target,
    /// Files with several names, by where the first one is.
    links: HashMap<FileId, Vec<u8>>,
    /// They get their times when all in them is there.
    directories: Vec<(Vec<u8>, Stat)>,
    files: u64,
    bytes: u64,
    troubles: Vec<String>,
    /// The disk is full.
    is_full: bool,
    bar: indicatif::ProgressBar,
}

impl Extract<'_> {
    /// Makes the directories that lead to a path. The new ones get the attributes that they had in
    /// the dump.
    fn lead_to(&mut self, path: &[u8]) {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        for way in ends.map(|end| &path[..end]) {
            let made = self.target.place(way).and_then(|place| place.make_directory());
            let stat = made.and_then(|is_made| match is_made {
                true => self.tree.resolve(way).map(Some).map_err(io_error),
                false => Ok(None),
            });
            match stat {
                Ok(stat) => self.directories.extend(stat.map(|stat| (way.to_vec(), stat))),
                Err(error) => self.trouble(way, &error),
            }
        }
    }

    /// Extracts one path and its descendants. A failure is reported, and affects only its own file.
    fn take(&mut self, path: &[u8], stat: &Stat) {
        let mut waiting = vec![(path.to_vec(), *stat)];
        // In a damaged tree, or in a malicious one, a path down may lead back up.
        let mut entered = HashSet::from([stat.file]);
        while let Some((path, stat)) = waiting.pop() {
            self.bar.inc(1);
            if let Err(error) = self.take_one(&path, &stat) {
                self.trouble(&path, &error);
                if self.is_full {
                    return;
                }
                continue;
            }
            self.files += 1;
            if stat.kind != NodeKind::Directory {
                continue;
            }
            let mut failed = Vec::new();
            let listed = each_entry(self.tree, stat.file, |name, file| {
                let below = if path.is_empty() { name.to_vec() } else { [&path, &b"/"[..], name].concat() };
                match self.tree.stat(file) {
                    Ok(stat) if stat.kind == NodeKind::Directory && !entered.insert(file) => {
                        failed.push((below, TreeError::Invalid("this directory has another name already")));
                    }
                    Ok(stat) => waiting.push((below, stat)),
                    Err(error) => failed.push((below, error)),
                }
                Ok(())
            });
            if let Err(error) = listed {
                failed.push((path, error));
            }
            for (path, error) in failed {
                self.trouble(&path, &io_error(error));
            }
        }
    }

    fn trouble(&mut self, path: &[u8], error: &std::io::Error) {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        self.is_full |= matches!(error.kind(), StorageFull | QuotaExceeded);
        self.troubles.push(format!("/{}: {error}", name(path)));
    }

    fn take_one(&mut self, path: &[u8], stat: &Stat) -> std::io::Result<()> {
        if stat.kind == NodeKind::Directory {
            if !path.is_empty() {
                self.target.place(path)?.make_directory()?;
                self.directories.push((path.to_vec(), *stat));
            }
            return Ok(());
        }
        let place = self.target.place(path)?;
        if stat.links > 1
            && let Some(first) = self.links.get(&stat.file)
        {
            return self.target.place(first)?.link_to(&place);
        }
        match stat.kind {
            NodeKind::File => self.take_content(&place, stat)?,
            NodeKind::SymbolicLink => place.make_link(&self.tree.read_link(stat.file).map_err(io_error)?)?,
            _ => place.make_special(&inode(stat))?,
        }
        // A file whose attributes could not be set is still the same file by all of its names.
        if stat.links > 1 {
            self.links.insert(stat.file, path.to_vec());
        }
        self.dress(&place, stat)
    }

    /// Holes stay holes.
    fn take_content(&mut self, place: &Place, stat: &Stat) -> std::io::Result<()> {
        let file = place.make_file()?;
        let mut at = 0;
        while at < stat.bytes {
            let start = match self.tree.seek_data(stat.file, at) {
                Ok(start) => start,
                Err(TreeError::NoData) => break,
                Err(error) => return Err(io_error(error)),
            };
            let end = self.tree.seek_hole(stat.file, start).map_err(io_error)?;
            at = start;
            while at < end {
                let piece = (end - at).min(PIECE as u64) as usize;
                let bytes = self.tree.read(stat.file, at, piece).map_err(io_error)?;
                if bytes.is_empty() {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                file.write_all_at(&bytes, at)?;
                at += bytes.len() as u64;
                self.bytes += bytes.len() as u64;
            }
        }
        file.set_len(stat.bytes)
    }

    fn dress(&self, place: &Place, stat: &Stat) -> std::io::Result<()> {
        let mut attributes = Vec::new();
        if stat.has_xattrs {
            for name in self.tree.xattrs(stat.file).map_err(io_error)? {
                let value = self.tree.xattr(stat.file, &name).map_err(io_error)?;
                attributes.push(Attribute { name, value });
            }
        }
        self.target.dress(place, &inode(stat), &attributes)
    }

    fn finish(&mut self) {
        // The deepest first: an entry that is made in a directory changes its times.
        for (path, stat) in std::mem::take(&mut self.directories).into_iter().rev() {
            let dressed = self.target.place(&path).and_then(|place| self.dress(&place, &stat));
            if let Err(error) = dressed {
                self.trouble(&path, &error);
            }
        }
    }
}

fn io_error(error: TreeError) -> std::io::Error {
    std::io::Error::other(error.to_string())
}

/// The attributes of a restored file, as the other ways to restore set them.
fn inode(stat: &Stat) -> Inode {
    let time = |ns: i64| Time {
        seconds: ns.div_euclid(1_000_000_000),
        nanoseconds: ns.rem_euclid(1_000_000_000) as u32,
    };
    // Twelve bits of major, twenty of minor number, as the kernel's `new_decode_dev` has them.
    let device = ((stat.device >> 8) & 0xfff, stat.device & 0xff | (stat.device >> 12) & 0xf_ff00);
    let kind = match stat.kind {
        NodeKind::File => Kind::Regular,
        NodeKind::Directory => Kind::Directory,
        NodeKind::SymbolicLink => Kind::Symlink,
        NodeKind::CharacterDevice => Kind::Character,
        NodeKind::BlockDevice => Kind::Block,
        NodeKind::Fifo => Kind::Fifo,
        NodeKind::Socket => Kind::Socket,
    };
    Inode {
        number: 0,
        kind,
        permissions: (stat.mode & 0o7777) as u16,
        links: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.bytes,
        accessed: time(stat.accessed_ns),
        modified: time(stat.modified_ns),
        changed: time(stat.changed_ns),
        born: None,
        device,
    }
}
