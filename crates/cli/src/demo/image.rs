//! A disk image of real files: parts of `/usr`, as an ext4 file system made by `mke2fs -d`, which
//! needs no root.
//!
//! Without mke2fs the same files are written one after the other, each with a header: not a file
//! system, but real data.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use indicatif::ProgressBar;

use crate::exit::Failure;
use crate::output::size;

/// Where real files come from, the most telling first.
const TREES: [&str; 5] = ["/usr/bin", "/usr/sbin", "/usr/share", "/usr/lib", "/usr/libexec"];
/// A single file may take this part of the budget.
const FILE_SHARE: u64 = 8;
/// Files at most: inodes and time.
const MAX_FILES: u64 = 20_000;

/// The image.
pub struct Picture {
    /// A sparse file.
    pub path: PathBuf,
    /// Its length.
    pub length: u64,
    files: u64,
    bytes: u64,
    ext4: bool,
}

impl Picture {
    /// A description, for the table.
    pub fn note(&self) -> String {
        let kind = if self.ext4 { "ext4" } else { "no mke2fs here: plain files in a row" };
        format!("{} files of /usr, {}; {kind}", self.files, size(self.bytes))
    }
}

/// Builds it in `dir` from at most `budget` bytes of files.
pub fn build(dir: &Path, budget: u64, bar: &ProgressBar) -> Result<Picture, Failure> {
    let stage = dir.join("files");
    let mut copy = Copy { files: 0, bytes: 0, budget, bar };
    for tree in TREES {
        let name = tree.trim_start_matches('/');
        copy.tree(Path::new(tree), &stage.join(name))?;
    }
    let path = dir.join("disk.img");
    let room = copy.bytes + copy.bytes / 4 + copy.files * 4096 + (64 << 20);
    let length = room.next_multiple_of(64 << 20);
    File::create(&path)?.set_len(length)?;
    let ext4 = make_ext4(&stage, &path)?;
    if !ext4 {
        lay_in_a_row(&stage, &path)?;
    }
    let picture = Picture { path, length, files: copy.files, bytes: copy.bytes, ext4 };
    fs::remove_dir_all(&stage)?;
    Ok(picture)
}

struct Copy<'a> {
    files: u64,
    bytes: u64,
    budget: u64,
    bar: &'a ProgressBar,
}

impl Copy<'_> {
    /// Copies regular files and symbolic links until the budget is spent; unreadable files are
    /// skipped.
    fn tree(&mut self, from: &Path, to: &Path) -> Result<(), Failure> {
        if fs::symlink_metadata(from).map_or(true, |metadata| !metadata.is_dir()) {
            return Ok(());
        }
        fs::create_dir_all(to)?;
        let Ok(listing) = fs::read_dir(from) else { return Ok(()) };
        let mut entries: Vec<_> = listing.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            if self.bytes >= self.budget || self.files >= MAX_FILES {
                return Ok(());
            }
            let Ok(metadata) = entry.metadata() else { continue };
            let target = to.join(entry.file_name());
            if metadata.is_dir() {
                self.tree(&entry.path(), &target)?;
            } else if metadata.is_symlink() {
                if let Ok(link) = fs::read_link(entry.path()) {
                    std::os::unix::fs::symlink(link, &target)?;
                }
            } else if metadata.is_file() && metadata.len() <= self.budget / FILE_SHARE {
                match fs::copy(entry.path(), &target) {
                    Ok(bytes) => {
                        self.files += 1;
                        self.bytes += bytes;
                        self.bar.set_position(self.bytes);
                    }
                    Err(error)
                        if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
                    {
                        return Err(error.into());
                    }
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// False if mke2fs is missing.
fn make_ext4(stage: &Path, image: &Path) -> Result<bool, Failure> {
    for program in ["mke2fs", "/sbin/mke2fs", "/usr/sbin/mke2fs"] {
        let outcome = Command::new(program)
            .args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-E", "lazy_itable_init=1", "-d"])
            .arg(stage)
            .arg(image)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output();
        match outcome {
            Ok(outcome) if outcome.status.success() => return Ok(true),
            Ok(outcome) => {
                let text = String::from_utf8_lossy(&outcome.stderr);
                eprintln!("note: mke2fs failed, so the files are laid in a row: {}", text.trim());
                return Ok(false);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    eprintln!("note: mke2fs (package e2fsprogs) is missing, so the files are laid in a row");
    Ok(false)
}

/// Writes all files below `stage` in a row. Each begins at a block boundary, with a line of its
/// name and length.
fn lay_in_a_row(stage: &Path, image: &Path) -> Result<(), Failure> {
    let mut out = File::options().write(true).open(image)?;
    let mut at = 0u64;
    let mut folders = vec![stage.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)?.flatten() {
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() {
                let header = format!("{} {}\n", entry.path().display(), metadata.len());
                out.seek(SeekFrom::Start(at))?;
                out.write_all(header.as_bytes())?;
                let copied = std::io::copy(&mut File::open(entry.path())?.take(metadata.len()), &mut out)?;
                at = (at + header.len() as u64 + copied).next_multiple_of(4096);
            }
        }
    }
    Ok(())
}
