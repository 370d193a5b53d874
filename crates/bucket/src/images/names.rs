//! Names of the objects of one volume. See the table of the module above.

use cairn_base::VolumeId;

use super::codec::Version;
use super::error::ImagesError;
use crate::name::{Name, Prefix};

/// The folders below `images/<volume id>/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Folder {
    Epoch,
    Base,
    Region,
    Root,
    Checkpoint,
    List,
    Progress,
}

impl Folder {
    const fn text(self) -> &'static str {
        match self {
            Folder::Epoch => "epoch",
            Folder::Base => "base",
            Folder::Region => "region",
            Folder::Root => "root",
            Folder::Checkpoint => "checkpoint",
            Folder::List => "list",
            Folder::Progress => "progress",
        }
    }
}

fn name(volume: VolumeId, folder: Folder, rest: &str) -> Result<Name, ImagesError> {
    Name::new(format!("images/{volume}/{}/{rest}", folder.text()))
        .map_err(|_| ImagesError::Rule("the name of an object of an image is wrong"))
}

/// A number that counts down, so that the newest comes first.
fn down(number: u32) -> String {
    format!("{:08x}", u32::MAX - number)
}

pub(super) fn prefix(volume: VolumeId, folder: Folder) -> Result<Prefix, ImagesError> {
    Prefix::new(format!("images/{volume}/{}/", folder.text()))
        .map_err(|_| ImagesError::Rule("the prefix of objects of an image is wrong"))
}

pub(super) fn epoch(volume: VolumeId, epoch: u32) -> Result<Name, ImagesError> {
    name(volume, Folder::Epoch, &down(epoch))
}

pub(super) fn base(volume: VolumeId, epoch: u32) -> Result<Name, ImagesError> {
    name(volume, Folder::Base, &down(epoch))
}

pub(super) fn root(volume: VolumeId, epoch: u32, seq: u32) -> Result<Name, ImagesError> {
    name(volume, Folder::Root, &format!("{}.{}", down(epoch), down(seq)))
}

pub(super) fn region(volume: VolumeId, region: u32, at: Version) -> Result<Name, ImagesError> {
    name(volume, Folder::Region, &format!("{region:08x}/{:08x}.{:08x}", at.epoch, at.number))
}

pub(super) fn checkpoint(volume: VolumeId, at: Version) -> Result<Name, ImagesError> {
    name(volume, Folder::Checkpoint, &format!("{:08x}.{:08x}", at.epoch, at.number))
}

pub(super) fn list(volume: VolumeId, at: Version, part: u32) -> Result<Name, ImagesError> {
    name(volume, Folder::List, &format!("{:08x}.{:08x}.{part:08x}", at.epoch, at.number))
}

pub(super) fn progress(volume: VolumeId, at: Version, part: u32) -> Result<Name, ImagesError> {
    name(volume, Folder::Progress, &format!("{:08x}.{:08x}.{part:08x}", at.epoch, at.number))
}

fn hex(text: &str) -> Option<u32> {
    let valid =
        text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'));
    valid.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

/// The part of the name after the folder.
fn rest(name: &Name, folder: Folder) -> Option<&str> {
    let mut parts = name.as_str().strip_prefix("images/")?.splitn(3, '/');
    let (_, found) = (parts.next()?, parts.next()?);
    (found == folder.text()).then(|| parts.next()).flatten()
}

/// The epoch in the name of a claim.
pub(super) fn parse_epoch(name: &Name) -> Option<u32> {
    Some(u32::MAX - hex(rest(name, Folder::Epoch)?)?)
}

/// The epoch and the number in the name of a root.
pub(super) fn parse_root(name: &Name) -> Option<(u32, u32)> {
    let (epoch, seq) = rest(name, Folder::Root)?.split_once('.')?;
    Some((u32::MAX - hex(epoch)?, u32::MAX - hex(seq)?))
}

/// The region and the version in the name of a region object.
pub(super) fn parse_region(name: &Name) -> Option<(u32, Version)> {
    let (region, version) = rest(name, Folder::Region)?.split_once('/')?;
    let (epoch, number) = version.split_once('.')?;
    Some((hex(region)?, Version { epoch: hex(epoch)?, number: hex(number)? }))
}

/// The version in the name of a checkpoint, list or progress.
pub(super) fn parse_version(name: &Name, folder: Folder) -> Option<Version> {
    let mut parts = rest(name, folder)?.split('.');
    let version = Version { epoch: hex(parts.next()?)?, number: hex(parts.next()?)? };
    if folder != Folder::Checkpoint {
        hex(parts.next()?)?;
    }
    parts.next().is_none().then_some(version)
}
