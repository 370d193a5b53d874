//! The mounts of the node, from `mountinfo` (proc(5)).

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tonic::Status;

use super::programs::Programs;

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountPoint {
    /// The device of the file system, `MAJOR:MINOR`.
    device: String,
    /// The mounted part of the file system.
    root: PathBuf,
    /// Where it is.
    at: PathBuf,
    /// The same, as this process sees it.
    seen: PathBuf,
}

/// All mounts, in the order of mounting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mounts(Vec<MountPoint>);

/// A word of mountinfo: spaces and others are octal.
fn unescape(word: &str) -> String {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [first, others @ ..] = rest {
        let octal = others.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn number(device: &Path) -> Result<String, Status> {
    let found = device
        .metadata()
        .map_err(|error| Status::internal(format!("cannot read {}: {error}", device.display())))?;
    if !found.file_type().is_block_device() {
        return Err(Status::internal(format!("{} is not a block device", device.display())));
    }
    let id = found.rdev();
    Ok(format!("{}:{}", rustix::fs::major(id), rustix::fs::minor(id)))
}

impl MountPoint {
    /// Whether it is the file system on a device, or the device itself.
    pub(super) fn is_of(&self, device: &Path) -> Result<bool, Status> {
        let wanted = number(device)?;
        // Other mount points are not looked at: one of a dead server would block.
        let may_be_bound = self.root.file_name() == device.file_name();
        Ok(self.device == wanted || (may_be_bound && number(&self.seen).is_ok_and(|found| found == wanted)))
    }

    /// A device is bound here, not a file system.
    pub(super) fn is_device(&self) -> bool {
        self.seen.metadata().is_ok_and(|found| found.file_type().is_block_device())
    }
}

impl Mounts {
    /// Reads them.
    pub(super) fn read(programs: &Programs) -> Result<Self, Status> {
        let path = programs.mountinfo();
        let text = std::fs::read_to_string(&path);
        let text =
            text.map_err(|error| Status::internal(format!("cannot read {}: {error}", path.display())))?;
        let mut mounts = Self::parse(&text);
        mounts.0.iter_mut().for_each(|mount| mount.seen = programs.view(&mount.at));
        Ok(mounts)
    }

    pub(super) fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let mut words = line.split(' ').skip(2);
            let device = words.next()?.to_owned();
            let root = PathBuf::from(unescape(words.next()?));
            let at = PathBuf::from(unescape(words.next()?));
            Some(MountPoint { device, root, seen: at.clone(), at })
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// The last mount at a path, which hides others.
    pub(super) fn at(&self, path: &Path) -> Option<&MountPoint> {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        self.0.iter().rev().find(|mount| mount.at == real || mount.at == *path)
    }

    /// The paths at which a device or its file system is mounted.
    pub(super) fn using(&self, device: &Path) -> Result<Vec<PathBuf>, Status> {
        let mut paths = Vec::new();
        for mount in &self.0 {
            if mount.is_of(device)? {
                paths.push(mount.at.clone());
            }
        }
        Ok(paths)
    }
}

#[cfg(test)]
mod tests;
