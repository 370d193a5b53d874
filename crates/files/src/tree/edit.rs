//! An operation on the tree while it is being assembled: it reads its own changes, and is committed
//! whole or not at all.

use std::collections::BTreeMap;

use cairn_base::{BLOCK_SIZE, FileId, Lba, VolumeId};
use cairn_device::Block;
use cairn_format::QuotaRecord;
use cairn_format::{FileKind, Inode, LeafPlace};
use cairn_volume::Change;

use super::error::TreeError;
use super::quota::{Counted, Quotas, Records};
use super::source::{Blocks, Source, check_leaf};

/// A block of a directory that was read.
struct Seen {
    content: Option<Block>,
    changed: bool,
    /// It was checked to be the right leaf, or made as one. An operation reads a leaf several times
    /// and checks it once.
    is_leaf: bool,
}

/// Changes of names, inodes and their blocks that belong together. The caller holds the locks of
/// all files that it changes.
pub(crate) struct Edit<'a> {
    source: &'a Source,
    quotas: &'a Quotas,
    now: i64,
    coarse: i64,
    inodes: BTreeMap<FileId, Inode>,
    blocks: BTreeMap<(FileId, u64), Seen>,
    /// Contents of files: too many blocks to search.
    change: Change,
    /// Quota trees that are made, changed or removed.
    records: Records,
}

impl<'a> Edit<'a> {
    pub(crate) fn new(source: &'a Source, quotas: &'a Quotas) -> Self {
        let now = source.volume().now().0.cast_signed();
        let coarse = source.volume().coarse_now().0.cast_signed().min(now);
        Self {
            source,
            quotas,
            now,
            coarse,
            inodes: BTreeMap::new(),
            blocks: BTreeMap::new(),
            change: Change::of(quotas.head()),
            records: Records::new(),
        }
    }

    /// The time of the operation, which is also that of the change: a search for changes since a
    /// moment misses none.
    pub(crate) fn now(&self) -> i64 {
        self.now
    }

    /// The same for times that programs compare and that the kernel may set: by the kernel's clock
    /// for files, so that none is older than an earlier one.
    pub(crate) fn coarse(&self) -> i64 {
        self.coarse
    }

    /// An inode as it will be.
    pub(crate) fn inode(&self, file: FileId) -> Result<Inode, TreeError> {
        match self.inodes.get(&file) {
            Some(inode) if inode.removed => Err(TreeError::NotFound),
            Some(inode) => Ok(*inode),
            None => self.source.inode(file),
        }
    }

    /// An inode to change.
    pub(crate) fn inode_mut(&mut self, file: FileId) -> Result<&mut Inode, TreeError> {
        let inode = self.inode(file)?;
        Ok(self.inodes.entry(file).or_insert(inode))
    }

    /// Makes or replaces an inode.
    pub(crate) fn put(&mut self, inode: Inode) {
        self.inodes.insert(inode.id, inode);
    }

    /// Removes a file with its content and attributes.
    pub(crate) fn remove(&mut self, file: FileId) -> Result<(), TreeError> {
        let inode = self.inode(file)?;
        if inode.attributes.extended.0 != 0 {
            self.remove_extended(inode.attributes.extended)?;
        }
        self.put(Inode { removed: true, ..inode });
        self.blocks.retain(|(owner, _), _| *owner != file);
        Ok(())
    }

    /// Removes a file of extended attributes.
    pub(crate) fn remove_extended(&mut self, file: FileId) -> Result<(), TreeError> {
        let inode = self.source.raw_inode(file)?;
        if inode.kind == FileKind::Extended {
            self.put(Inode { removed: true, ..inode });
        }
        self.blocks.retain(|(owner, _), _| *owner != file);
        Ok(())
    }

    /// The number of a file that is made.
    pub(crate) fn next_file(&self) -> Result<FileId, TreeError> {
        Ok(self.source.volume().next_file()?)
    }

    /// The file changed now.
    pub(crate) fn touch(&mut self, file: FileId) -> Result<(), TreeError> {
        self.inode_mut(file)?.attributes.changed_ns = self.now;
        Ok(())
    }

    /// Names of a directory, or bytes of a file, changed now.
    pub(crate) fn touch_content(&mut self, file: FileId) -> Result<(), TreeError> {
        let (modified, changed) = (self.coarse, self.now);
        let attributes = &mut self.inode_mut(file)?.attributes;
        (attributes.modified_ns, attributes.changed_ns) = (modified, changed);
        Ok(())
    }

    /// Writes a leaf of a directory, which counts it.
    pub(crate) fn write_leaf(
        &mut self,
        directory: FileId,
        place: LeafPlace,
        block: Block,
    ) -> Result<(), TreeError> {
        self.write_as(directory, place.lba(), block, true)
    }

    /// Writes a block of a link, which counts it.
    pub(crate) fn write_block(&mut self, file: FileId, lba: u64, block: Block) -> Result<(), TreeError> {
        self.write_as(file, lba, block, false)
    }

    fn write_as(&mut self, file: FileId, lba: u64, block: Block, is_leaf: bool) -> Result<(), TreeError> {
        let is_new = self.block(file, lba)?.is_none();
        self.blocks.insert((file, lba), Seen { content: Some(block), changed: true, is_leaf });
        if is_new {
            self.inode_mut(file)?.attributes.blocks += 1;
        }
        Ok(())
    }

    /// Makes a block of a directory a hole.
    pub(crate) fn punch_block(&mut self, file: FileId, lba: u64) -> Result<(), TreeError> {
        let was_there = self.block(file, lba)?.is_some();
        self.blocks.insert((file, lba), Seen { content: None, changed: true, is_leaf: false });
        if was_there {
            let attributes = &mut self.inode_mut(file)?.attributes;
            attributes.blocks = attributes.blocks.saturating_sub(1);
        }
        Ok(())
    }

    /// Writes bytes as all of a file that has no inode of the tree: extended attributes.
    pub(crate) fn write_all(&mut self, inode: Inode, bytes: &[u8]) {
        self.put(Inode { length_bytes: bytes.len() as u64, ..inode });
        for (lba, piece) in bytes.chunks(BLOCK_SIZE).enumerate() {
            self.change.write(inode.id, Lba(lba as u64), block_of(piece));
        }
    }

    /// The content of files: blocks and holes of the same change. The caller counts its additions
    /// in the inode.
    pub(crate) fn content(&mut self) -> &mut Change {
        &mut self.change
    }

    /// Makes or changes a quota tree, or (`None`) removes it.
    pub(crate) fn put_quota(&mut self, number: u16, record: Option<QuotaRecord>) {
        self.records.insert(number, record);
    }

    /// Passes changes of attributes alone to the volume if that needs no waiting; otherwise none of
    /// them is made. They change no count of a quota.
    pub(crate) fn commit_at_once(mut self) -> Result<(), TreeError> {
        self.inodes.values().for_each(|inode| self.change.put(*inode));
        self.source.volume().change_at_once(self.change)?;
        Ok(())
    }

    /// Hands the operation to the volume. `frees`: it is made to free space, and may use the
    /// reserve.
    pub(crate) fn commit(mut self, frees: bool) -> Result<(), TreeError> {
        let mut counted = Counted::default();
        for inode in self.inodes.values() {
            let before = self.source.raw_inode(inode.id).ok();
            counted.change(before.as_ref(), Some(inode));
            self.change.put(*inode);
        }
        for ((file, lba), seen) in self.blocks.into_iter().filter(|(_, seen)| seen.changed) {
            match seen.content {
                Some(block) => self.change.write(file, Lba(lba), block),
                None => self.change.punch(file, Lba(lba), 1),
            }
        }
        self.quotas.commit(self.source, self.change, &counted, &self.records, frees)
    }
}

/// Bytes as a block, filled up with zeroes.
pub(crate) fn block_of(bytes: &[u8]) -> Block {
    let mut block = cairn_device::BlockMut::zeroed();
    block[..bytes.len()].copy_from_slice(bytes);
    block.freeze()
}

impl Blocks for Edit<'_> {
    fn volume_id(&self) -> VolumeId {
        self.source.volume().id()
    }

    fn block(&mut self, file: FileId, lba: u64) -> Result<Option<Block>, TreeError> {
        if let Some(seen) = self.blocks.get(&(file, lba)) {
            return Ok(seen.content.clone());
        }
        // A file that this operation makes has nothing below.
        let is_new = self.inodes.contains_key(&file) && self.source.raw_inode(file).is_err();
        let mut source = self.source;
        let content = if is_new { None } else { source.block(file, lba)? };
        self.blocks.insert((file, lba), Seen { content: content.clone(), changed: false, is_leaf: false });
        Ok(content)
    }

    fn leaf(&mut self, directory: FileId, place: LeafPlace) -> Result<Option<Block>, TreeError> {
        let key = (directory, place.lba());
        let block = self.block(directory, place.lba())?;
        if let (Some(block), Some(seen)) = (&block, self.blocks.get_mut(&key))
            && !seen.is_leaf
        {
            check_leaf(block, directory, place)?;
            seen.is_leaf = true;
        }
        Ok(block)
    }

    fn next_data(&mut self, file: FileId, lba: u64, end: u64) -> Result<Option<u64>, TreeError> {
        let mut source = self.source;
        source.next_data(file, lba, end)
    }
}
