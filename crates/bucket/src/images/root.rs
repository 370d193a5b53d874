//! Claims, bases, roots, checkpoints and lists: their fields, in order.

use std::fmt;

use cairn_base::{Checksum, Timestamp, VolumeId};

use super::codec::{Bad, FIELDS, Kind, Read, Version, Write};
use super::table::Entry;
use crate::store::Nonce;

/// Bytes of the label of a claim. A longer one is cut.
const LABEL_BYTES_MAX: usize = 255;
/// Bytes of a root that belong to the volume: superblock and snapshot table. More are refused.
pub(super) const CONTENT_BYTES_MAX: usize = 4 << 20;

/// Identifies an image for ever: two images with the same id have the same blocks. An update that
/// was interrupted is resumed by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ImageId(pub [u8; 16]);

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The entry of an image in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImageLabel {
    /// Which.
    pub id: ImageId,
    /// The number that the volume gave it.
    pub number: u64,
    /// When the volume was so, by the clock of the source.
    pub taken: Timestamp,
    /// Blocks of its block space.
    pub blocks: u64,
}

impl ImageLabel {
    const SIZE: usize = 40;

    fn write(&self, to: &mut Write) {
        to.bytes(&self.id.0);
        to.u64(self.number);
        to.u64(self.taken.0);
        to.u64(self.blocks);
    }

    fn read(from: &mut Read) -> Option<Self> {
        Some(Self {
            id: ImageId(from.array()?),
            number: from.u64()?,
            taken: Timestamp(from.u64()?),
            blocks: from.u64()?,
        })
    }
}

/// A root by its place, with its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RootRef {
    pub(super) epoch: u32,
    pub(super) seq: u32,
    pub(super) length: u32,
    pub(super) digest: Checksum,
}

impl RootRef {
    const SIZE: usize = 28;

    fn write(&self, to: &mut Write) {
        to.u32(self.epoch);
        to.u32(self.seq);
        to.u32(self.length);
        to.bytes(&self.digest.0);
    }

    fn read(from: &mut Read) -> Option<Self> {
        let (epoch, seq, length) = (from.u32()?, from.u32()?, from.u32()?);
        let digest = Checksum(from.array()?);
        (epoch > 0 && seq > 0 && length > 0).then_some(Self { epoch, seq, length, digest })
    }

    pub(super) fn place(&self) -> (u32, u32) {
        (self.epoch, self.seq)
    }
}

fn write_option<T>(to: &mut Write, item: Option<&T>, write: impl Fn(&T, &mut Write)) {
    to.u32(u32::from(item.is_some()));
    if let Some(item) = item {
        write(item, to);
    }
}

fn read_option<T>(from: &mut Read, read: impl Fn(&mut Read) -> Option<T>) -> Option<Option<T>> {
    match from.u32()? {
        0 => Some(None),
        1 => read(from).map(Some),
        _ => None,
    }
}

/// `epoch/<n>`: a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) epoch: u32,
    pub(super) nonce: Nonce,
    pub(super) at: Timestamp,
    pub(super) label: String,
}

impl Claim {
    pub(super) fn write(&self, volume: VolumeId) -> Vec<u8> {
        let mut to = Write::new(Kind::Epoch, volume);
        to.u32(self.epoch);
        to.bytes(&self.nonce.0);
        to.u64(self.at.0);
        let end = (0..=LABEL_BYTES_MAX).rev().find_map(|end| self.label.get(..end));
        let short = self.label.len() <= LABEL_BYTES_MAX;
        to.text(if short { &self.label } else { end.unwrap_or_default() }.as_bytes());
        to.seal()
    }

    pub(super) fn parse(bytes: &[u8], volume: VolumeId) -> Result<Self, Bad> {
        let mut from = Read::open(bytes, Kind::Epoch, volume)?;
        let fields = |from: &mut Read| {
            let (epoch, nonce, at) = (from.u32()?, Nonce(from.array()?), Timestamp(from.u64()?));
            let label = from.text().filter(|label| label.len() <= LABEL_BYTES_MAX)?;
            let label = std::str::from_utf8(label).ok()?.to_owned();
            (epoch > 0).then_some(Self { epoch, nonce, at, label })
        };
        let claim = fields(&mut from).ok_or(FIELDS)?;
        from.end().ok_or(FIELDS)?;
        Ok(claim)
    }
}

/// `base/<n>`: the root that an epoch continues from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) epoch: u32,
    /// The window of roots of this epoch.
    pub(super) window: u32,
    /// None in an empty bucket.
    pub(super) root: Option<RootRef>,
}

impl Base {
    pub(super) fn write(&self, volume: VolumeId) -> Vec<u8> {
        let mut to = Write::new(Kind::Base, volume);
        to.u32(self.epoch);
        to.u32(self.window);
        write_option(&mut to, self.root.as_ref(), RootRef::write);
        to.seal()
    }

    pub(super) fn parse(bytes: &[u8], volume: VolumeId) -> Result<Self, Bad> {
        let mut from = Read::open(bytes, Kind::Base, volume)?;
        let fields = |from: &mut Read| {
            let (epoch, window) = (from.u32()?, from.u32()?);
            let root = read_option(from, RootRef::read)?;
            let fits = root.is_none_or(|root| root.epoch < epoch);
            (epoch > 0 && window > 0 && fits).then_some(Self { epoch, window, root })
        };
        let base = fields(&mut from).ok_or(FIELDS)?;
        from.end().ok_or(FIELDS)?;
        Ok(base)
    }
}

/// An object of a list, or a checkpoint, by its place, with its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PartRef {
    pub(super) at: Version,
    pub(super) part: u32,
    pub(super) length: u32,
    pub(super) digest: Checksum,
}

impl PartRef {
    const SIZE: usize = 32;

    fn write(&self, to: &mut Write) {
        to.version(self.at);
        to.u32(self.part);
        to.u32(self.length);
        to.bytes(&self.digest.0);
    }

    fn read(from: &mut Read) -> Option<Self> {
        Some(Self {
            at: from.version()?,
            part: from.u32()?,
            length: from.u32()?,
            digest: Checksum(from.array()?),
        })
    }
}

/// A root since the last checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Since {
    pub(super) root: RootRef,
    pub(super) label: ImageLabel,
    /// Whether it changes the table by itself.
    pub(super) changes: bool,
}

impl Since {
    const SIZE: usize = RootRef::SIZE + ImageLabel::SIZE + 4;

    fn write(&self, to: &mut Write) {
        self.root.write(to);
        self.label.write(to);
        to.u32(u32::from(self.changes));
    }

    fn read(from: &mut Read) -> Option<Self> {
        let (root, label) = (RootRef::read(from)?, ImageLabel::read(from)?);
        let changes = from.u32().filter(|flag| *flag <= 1)? == 1;
        Some(Self { root, label, changes })
    }
}

/// `root/<epoch>.<seq>`: an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) epoch: u32,
    pub(super) seq: u32,
    /// Objects up to it that no kept image names are garbage.
    pub(super) mark: Version,
    pub(super) written: Timestamp,
    /// The root before; none at the first one.
    pub(super) previous: Option<RootRef>,
    pub(super) label: ImageLabel,
    /// Superblock and snapshot table, as the volume writes them.
    pub(super) content: Vec<u8>,
    /// Regions in the table, and bytes of their objects.
    pub(super) regions: u32,
    pub(super) stored: u64,
    pub(super) checkpoint: Option<PartRef>,
    /// Roots since the checkpoint, in order.
    pub(super) since: Vec<Since>,
    /// Changes of the table by this root, in order of regions.
    pub(super) delta: Vec<(u32, Entry)>,
}

/// Bytes of a root beside its content and its delta, at most.
pub(super) const ROOT_FIELDS_MAX: usize = 1 << 20;

const ENTRY_SIZE: usize = 32;

fn write_entries(to: &mut Write, entries: &[(u32, Entry)]) {
    to.u32(entries.len() as u32);
    for (region, entry) in entries {
        to.u32(*region);
        to.version(entry.at);
        to.u32(entry.length);
        to.bytes(&entry.digest.0);
    }
}

fn read_entries(from: &mut Read) -> Option<Vec<(u32, Entry)>> {
    let entries = from.items(ENTRY_SIZE, |from| {
        let (region, at, length) = (from.u32()?, from.version()?, from.u32()?);
        Some((region, Entry { at, length, digest: Checksum(from.array()?) }))
    })?;
    entries.is_sorted_by(|one, other| one.0 < other.0).then_some(entries)
}

impl Root {
    pub(super) fn write(&self, volume: VolumeId) -> Vec<u8> {
        let mut to = Write::new(Kind::Root, volume);
        to.u32(self.epoch);
        to.u32(self.seq);
        to.version(self.mark);
        to.u64(self.written.0);
        write_option(&mut to, self.previous.as_ref(), RootRef::write);
        self.label.write(&mut to);
        to.text(&self.content);
        to.u32(self.regions);
        to.u64(self.stored);
        write_option(&mut to, self.checkpoint.as_ref(), PartRef::write);
        to.u32(self.since.len() as u32);
        self.since.iter().for_each(|since| since.write(&mut to));
        write_entries(&mut to, &self.delta);
        to.seal()
    }

    pub(super) fn parse(bytes: &[u8], volume: VolumeId) -> Result<Self, Bad> {
        let mut from = Read::open(bytes, Kind::Root, volume)?;
        let root = Self::fields(&mut from).ok_or(FIELDS)?;
        from.end().ok_or(FIELDS)?;
        Ok(root)
    }

    fn fields(from: &mut Read) -> Option<Self> {
        let root = Self {
            epoch: from.u32()?,
            seq: from.u32()?,
            mark: from.version()?,
            written: Timestamp(from.u64()?),
            previous: read_option(from, RootRef::read)?,
            label: ImageLabel::read(from)?,
            content: from.text().filter(|content| content.len() <= CONTENT_BYTES_MAX)?.to_vec(),
            regions: from.u32()?,
            stored: from.u64()?,
            checkpoint: read_option(from, PartRef::read)?,
            since: from.items(Since::SIZE, Since::read)?,
            delta: read_entries(from)?,
        };
        let own = (root.epoch, root.seq);
        let older = root.previous.is_none_or(|previous| previous.place() < own);
        let sorted = root.since.is_sorted_by(|one, other| one.root.place() < other.root.place());
        let before = root.since.last().is_none_or(|last| last.root.place() < own);
        (root.epoch > 0 && root.seq > 0 && older && sorted && before).then_some(root)
    }
}

/// An image in the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) root: RootRef,
    pub(super) label: ImageLabel,
    /// When it expired; none while it is kept.
    pub(super) expired: Option<Timestamp>,
}

impl Kept {
    const SIZE: usize = RootRef::SIZE + ImageLabel::SIZE + 8;

    fn write(&self, to: &mut Write) {
        self.root.write(to);
        self.label.write(to);
        to.u64(self.expired.map_or(0, |at| at.0.max(1)));
    }

    fn read(from: &mut Read) -> Option<Self> {
        let (root, label) = (RootRef::read(from)?, ImageLabel::read(from)?);
        let expired = Some(Timestamp(from.u64()?)).filter(|at| at.0 > 0);
        Some(Self { root, label, expired })
    }
}

/// `checkpoint/<epoch>.<update>`: the lists of the table, and the catalog. Images since are in the
/// roots that name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) at: Version,
    /// Lists of the whole table, at some time.
    pub(super) major: Vec<PartRef>,
    /// Lists of all changes since then.
    pub(super) minor: Vec<PartRef>,
    /// Bytes of the minor lists that were written since the major ones.
    pub(super) minor_bytes: u64,
    pub(super) catalog: Vec<Kept>,
}

/// Images in a catalog. With more, an update is refused until some have expired.
pub(super) const IMAGES_MAX: usize = 16_384;
/// Bytes of a checkpoint. A longer one is damaged.
pub(super) const CHECKPOINT_BYTES_MAX: usize = 8 << 20;

impl Checkpoint {
    pub(super) fn write(&self, volume: VolumeId) -> Vec<u8> {
        let mut to = Write::new(Kind::Checkpoint, volume);
        to.version(self.at);
        for parts in [&self.major, &self.minor] {
            to.u32(parts.len() as u32);
            parts.iter().for_each(|part| part.write(&mut to));
        }
        to.u64(self.minor_bytes);
        to.u32(self.catalog.len() as u32);
        self.catalog.iter().for_each(|kept| kept.write(&mut to));
        to.seal()
    }

    pub(super) fn parse(bytes: &[u8], volume: VolumeId) -> Result<Self, Bad> {
        let mut from = Read::open(bytes, Kind::Checkpoint, volume)?;
        let fields = |from: &mut Read| {
            let checkpoint = Self {
                at: from.version()?,
                major: from.items(PartRef::SIZE, PartRef::read)?,
                minor: from.items(PartRef::SIZE, PartRef::read)?,
                minor_bytes: from.u64()?,
                catalog: from.items(Kept::SIZE, Kept::read)?,
            };
            let catalog = &checkpoint.catalog;
            let sorted = catalog.is_sorted_by(|one, other| one.root.place() < other.root.place());
            sorted.then_some(checkpoint)
        };
        let checkpoint = fields(&mut from).ok_or(FIELDS)?;
        from.end().ok_or(FIELDS)?;
        Ok(checkpoint)
    }
}

/// `list/...` and `progress/...`: entries of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List {
    pub(super) at: Version,
    pub(super) part: u32,
    /// The image of an update that is under way; zero in a list.
    pub(super) image: ImageId,
    pub(super) entries: Vec<(u32, Entry)>,
}

impl List {
    pub(super) fn write(&self, kind: Kind, volume: VolumeId) -> Vec<u8> {
        let mut to = Write::new(kind, volume);
        to.version(self.at);
        to.u32(self.part);
        to.bytes(&self.image.0);
        write_entries(&mut to, &self.entries);
        to.seal()
    }

    pub(super) fn parse(bytes: &[u8], kind: Kind, volume: VolumeId) -> Result<Self, Bad> {
        let mut from = Read::open(bytes, kind, volume)?;
        let fields = |from: &mut Read| {
            Some(Self {
                at: from.version()?,
                part: from.u32()?,
                image: ImageId(from.array()?),
                entries: read_entries(from)?,
            })
        };
        let list = fields(&mut from).ok_or(FIELDS)?;
        from.end().ok_or(FIELDS)?;
        Ok(list)
    }
}
