//! The bytes of files: read, written, cut, punched, searched for holes and copied.

use cairn_base::{BLOCK_SIZE, FileId, Lba};
use cairn_device::{BlockMut, Segments};
use cairn_format::Inode;

use super::edit::Edit;
use super::error::TreeError;
use super::quota::Quotas;
use super::source::Source;
use super::stat::{Allocate, NodeKind, SetStat, SetTime, Stat};
use super::{FILE_BYTES_MAX, Tree};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes of one change of content: longer writes are several changes, each of which is atomic.
const PIECE: u64 = 1 << 20;
/// An access time that is older than this is brought up to date by a read: a day.
const ACCESS_AGE_NS: i64 = 86_400_000_000_000;

/// The data to write.
enum Data<'a> {
    /// Bytes, which are copied into blocks.
    Bytes(&'a [u8]),
    /// Blocks that are full of it but for the last, from the beginning of one on.
    Blocks(std::vec::IntoIter<BlockMut>),
}

/// The blocks of a read, and the bytes of them that it is for.
struct Blocks {
    first: u64,
    count: u64,
    from: usize,
    bytes: usize,
}

impl Blocks {
    /// `None` for a read that gives no bytes.
    fn of(inode: &Inode, offset: u64, length: usize) -> Option<Self> {
        let end = inode.length_bytes.min(offset.saturating_add(length as u64));
        if offset >= end {
            return None;
        }
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let (from, bytes) = ((offset - first * BLOCK) as usize, (end - offset) as usize);
        Some(Self { first, count: last - first, from, bytes })
    }

    fn cut(&self, read: &Segments) -> Segments {
        read.slice(self.from, self.bytes)
    }
}

impl Tree {
    /// Up to `length` bytes at `offset`, fewer at the end. Brings the access time up to date as
    /// `relatime` does.
    ///
    /// # Errors
    /// [`TreeError::IsDirectory`]; [`TreeError::Invalid`] for a file without content;
    /// [`TreeError::NotFound`]; damage of a block that is read.
    pub fn read(&self, file: FileId, offset: u64, length: usize) -> Result<Vec<u8>, TreeError> {
        Ok(self.read_shared(file, offset, length)?.to_vec())
    }

    /// [`Tree::read`] without a copy: the blocks are those that are in memory.
    ///
    /// # Errors
    /// Those of [`Tree::read`].
    pub fn read_shared(&self, file: FileId, offset: u64, length: usize) -> Result<Segments, TreeError> {
        let (data, inode) = {
            let _file = self.shards.get(self.shard(file)).map(|shard| shard.read());
            let inode = as_file(self.source.inode(file)?)?;
            (self.read_data(&inode, offset, length)?, inode)
        };
        self.note_access(&inode);
        Ok(data)
    }

    /// [`Tree::read_shared`] of bytes that are in memory; `None` if some are not, or if that is
    /// not known without a wait.
    ///
    /// # Errors
    /// Those of [`Tree::read`].
    pub fn read_ready(
        &self,
        file: FileId,
        offset: u64,
        length: usize,
    ) -> Result<Option<Segments>, TreeError> {
        let (data, inode) = {
            // A change of the file that waits for the disk, or for reads that do, holds this.
            let shard = self.shards.get(self.shard(file)).map(|shard| shard.try_read());
            if let Some(None) = shard {
                return Ok(None);
            }
            let inode = as_file(self.source.inode(file)?)?;
            let Some(blocks) = Blocks::of(&inode, offset, length) else {
                return Ok(Some(Segments::default()));
            };
            let Some(read) = self.source.read_ready(file, blocks.first, blocks.count) else {
                return Ok(None);
            };
            (blocks.cut(&read?), inode)
        };
        self.note_access(&inode);
        Ok(Some(data))
    }

    /// Several reads of one file, each as offset and length. Their blocks are requested from the
    /// device together. Each has an outcome as [`Tree::read_shared`] gives it.
    ///
    /// Changes of the file do not wait for the device meanwhile. If there was one, the reads are
    /// done again.
    ///
    /// # Errors
    /// Those of [`Tree::read`] that concern all of them.
    pub fn read_several(
        &self,
        file: FileId,
        wanted: &[(u64, usize)],
    ) -> Result<Vec<Result<Segments, TreeError>>, TreeError> {
        let before = as_file(self.source.inode(file)?)?;
        let mut data = self.read_places(&before, wanted);
        let inode = {
            let _file = self.shards.get(self.shard(file)).map(|shard| shard.read());
            let inode = as_file(self.source.inode(file)?)?;
            let state = |inode: &Inode| (inode.length_bytes, inode.attributes.changed_ns);
            // Bytes that were cut off between the two looks would be zeroes. Most blocks are in
            // memory now.
            if state(&inode) != state(&before) {
                data = self.read_places(&inode, wanted);
            }
            inode
        };
        self.note_access(&inode);
        Ok(data)
    }

    fn read_places(&self, inode: &Inode, wanted: &[(u64, usize)]) -> Vec<Result<Segments, TreeError>> {
        if let [(offset, length)] = *wanted {
            return vec![self.read_data(inode, offset, length)];
        }
        let blocks: Vec<Option<Blocks>> =
            wanted.iter().map(|(offset, length)| Blocks::of(inode, *offset, *length)).collect();
        let places: Vec<(u64, u64)> =
            blocks.iter().flatten().map(|blocks| (blocks.first, blocks.count)).collect();
        let mut read = self.source.read_several(inode.id, &places).into_iter();
        let cut = |blocks: Option<Blocks>| match blocks {
            None => Ok(Segments::default()),
            Some(blocks) => Ok(blocks.cut(&read.next().ok_or(TreeError::Stale)??)),
        };
        blocks.into_iter().map(cut).collect()
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] for other files; [`TreeError::NotFound`]; damage.
    pub fn read_link(&self, file: FileId) -> Result<Vec<u8>, TreeError> {
        let inode = self.source.inode(file)?;
        if NodeKind::of(&inode) != NodeKind::SymbolicLink {
            return Err(TreeError::Invalid("not a symbolic link"));
        }
        Ok(self.read_data(&inode, 0, inode.length_bytes.min(BLOCK) as usize)?.to_vec())
    }

    fn read_data(&self, inode: &Inode, offset: u64, length: usize) -> Result<Segments, TreeError> {
        let Some(blocks) = Blocks::of(inode, offset, length) else { return Ok(Segments::default()) };
        Ok(blocks.cut(&self.read_blocks(inode, blocks.first, blocks.count)?))
    }

    /// A read that can't note its time has read all the same, and waits for no room to note it.
    fn note_access(&self, inode: &Inode) {
        let now = self.volume().coarse_now().0.cast_signed();
        let attributes = &inode.attributes;
        let is_older = attributes.accessed_ns <= attributes.modified_ns.max(attributes.changed_ns);
        let is_old = now.saturating_sub(attributes.accessed_ns) > ACCESS_AGE_NS;
        if self.is_read_only() || !(is_older || is_old) || now <= attributes.accessed_ns {
            return;
        }
        let _file = self.lock_files(&[inode.id]);
        let mut edit = Edit::new(&self.source, &self.quotas);
        if let Ok(inode) = edit.inode_mut(inode.id) {
            inode.attributes.accessed_ns = now;
            let _ = edit.commit_at_once();
        }
    }

    /// Writes bytes at `offset`, all of them: in pieces of up to 1 MiB, each of which is present
    /// whole or not at all after a crash. Returns how many.
    ///
    /// # Errors
    /// [`TreeError::TooLarge`] past the largest size, and nothing is written;
    /// [`TreeError::NoSpace`] or [`TreeError::Quota`]: if an earlier piece was written the number
    /// of its bytes is returned instead; [`TreeError::IsDirectory`]; [`TreeError::NotFound`];
    /// [`TreeError::ReadOnly`]; damage of a block that is written in part.
    pub fn write(&self, file: FileId, offset: u64, data: &[u8]) -> Result<usize, TreeError> {
        self.write_at(file, offset, data.len(), Data::Bytes(data), true)
    }

    /// The same for a caller that has cached the bytes and sets their modification time by
    /// [`Tree::set`], before or after this. The change time is set now.
    ///
    /// # Errors
    /// Those of [`Tree::write`], also when an earlier piece was written.
    pub fn write_back(&self, file: FileId, offset: u64, data: &[u8]) -> Result<usize, TreeError> {
        self.write_at(file, offset, data.len(), Data::Bytes(data), false)
    }

    /// Either of the two for the first `length` bytes in `blocks`, which are stored as they are:
    /// only the bytes of a partly written block are copied.
    ///
    /// # Errors
    /// Those of [`Tree::write`] or [`Tree::write_back`]; [`TreeError::Invalid`] for an offset that
    /// is not the beginning of a block, or more bytes than there are in the blocks.
    pub fn write_blocks(
        &self,
        file: FileId,
        offset: u64,
        length: usize,
        blocks: Vec<BlockMut>,
        is_kept_back: bool,
    ) -> Result<usize, TreeError> {
        if !offset.is_multiple_of(BLOCK) || length > blocks.len() * BLOCK_SIZE {
            return Err(TreeError::Invalid("whole blocks are written to whole blocks"));
        }
        self.write_at(file, offset, length, Data::Blocks(blocks.into_iter()), !is_kept_back)
    }

    fn write_at(
        &self,
        file: FileId,
        offset: u64,
        length: usize,
        mut data: Data<'_>,
        is_modified_now: bool,
    ) -> Result<usize, TreeError> {
        let source = self.live()?;
        let end = offset.checked_add(length as u64).filter(|end| *end <= FILE_BYTES_MAX);
        end.ok_or(TreeError::TooLarge)?;
        let _file = self.lock_files(&[file]);
        let mut written = 0;
        while written < length {
            let at = offset + written as u64;
            let piece = (length - written).min((PIECE - at % PIECE) as usize);
            match write_piece(source, &self.quotas, file, at, piece, &mut data, is_modified_now) {
                Ok(()) => written += piece,
                // A program continues after the returned count. A kernel that writes back takes a
                // part for all of it, and would lose the rest silently.
                Err(_) if written > 0 && is_modified_now => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    /// Changes attributes, all of them at once. With a new length the modification time is now,
    /// unless it is given.
    ///
    /// # Errors
    /// [`TreeError::IsDirectory`] and [`TreeError::Invalid`] for the length of a file that has
    /// none; [`TreeError::TooLarge`]; [`TreeError::NotFound`]; [`TreeError::ReadOnly`];
    /// [`TreeError::NoSpace`]; damage.
    pub fn set(&self, file: FileId, change: &SetStat) -> Result<Stat, TreeError> {
        let source = self.live()?;
        let _file = self.lock_files(&[file]);
        let mut edit = Edit::new(source, &self.quotas);
        let mut frees = false;
        if let Some(bytes) = change.bytes {
            frees = bytes < edit.inode(file)?.length_bytes;
            set_length(source, &mut edit, file, bytes)?;
        }
        if let Some(mode) = change.mode {
            let old = &mut edit.inode_mut(file)?.attributes.mode;
            *old = *old & !0o7777 | mode & 0o7777;
            self.acl_follows_mode(&mut edit, file, mode)?;
        }
        let (now, coarse) = (edit.now(), edit.coarse());
        let at = |time: SetTime| match time {
            SetTime::Now => coarse,
            SetTime::At(ns) => ns,
        };
        let inode = edit.inode_mut(file)?;
        let attributes = &mut inode.attributes;
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.accessed_ns = change.accessed.map_or(attributes.accessed_ns, at);
        attributes.modified_ns = change.modified.map_or(attributes.modified_ns, at);
        // It never goes back: a search for changes since a moment (a dump) would miss one that is
        // reported late.
        attributes.changed_ns = change.changed_ns.map_or(now, |told| told.max(attributes.changed_ns));
        if let Some(created) = change.created_ns {
            inode.created = cairn_base::Timestamp(created.max(0).cast_unsigned());
        }
        let stat = Stat::from(&*inode);
        edit.commit(frees)?;
        Ok(stat)
    }

    /// Makes room, a hole, or zeroes; see [`Allocate`].
    ///
    /// # Errors
    /// [`TreeError::Invalid`] for no bytes; [`TreeError::TooLarge`]; [`TreeError::NoSpace`] and
    /// [`TreeError::Quota`]; as [`Tree::write`].
    pub fn allocate(&self, file: FileId, offset: u64, length: u64, mode: Allocate) -> Result<(), TreeError> {
        let source = self.live()?;
        if length == 0 {
            return Err(TreeError::Invalid("a range has bytes"));
        }
        let end =
            offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(TreeError::TooLarge)?;
        let _file = self.lock_files(&[file]);
        let mut edit = Edit::new(source, &self.quotas);
        let inode = as_file(edit.inode(file)?)?;
        match mode {
            Allocate::Extend | Allocate::Keep => {
                let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
                let there = source.count_data(file, first, last.min(inode.tree.length))?;
                let added = last - first - there;
                if self.quotas.room(source, inode.attributes.quota)?.is_some_and(|room| added > room) {
                    return Err(TreeError::Quota);
                }
                if added > self.volume().status().free {
                    return Err(TreeError::NoSpace);
                }
            }
            Allocate::Punch | Allocate::Zero { .. } => {
                punch(source, &mut edit, &inode, offset, end.min(inode.length_bytes))?;
            }
        }
        let extends = matches!(mode, Allocate::Extend | Allocate::Zero { keep: false });
        if extends && end > inode.length_bytes {
            edit.inode_mut(file)?.length_bytes = end;
        }
        edit.touch_content(file)?;
        edit.commit(matches!(mode, Allocate::Punch | Allocate::Zero { keep: true }))
    }

    /// The first byte from `offset` on that is not in a hole.
    ///
    /// # Errors
    /// [`TreeError::NoData`] when there is none; as [`Tree::read`].
    pub fn seek_data(&self, file: FileId, offset: u64) -> Result<u64, TreeError> {
        let (inode, blocks) = self.seek_start(file, offset)?;
        let found = self.source.next_block(file, offset / BLOCK, blocks, false)?;
        let at = found.ok_or(TreeError::NoData)? * BLOCK;
        if at < inode.length_bytes { Ok(at.max(offset)) } else { Err(TreeError::NoData) }
    }

    /// The first byte from `offset` on that is a hole's; the end of the file counts as one.
    ///
    /// # Errors
    /// [`TreeError::NoData`] past the end; as [`Tree::read`].
    pub fn seek_hole(&self, file: FileId, offset: u64) -> Result<u64, TreeError> {
        let (inode, blocks) = self.seek_start(file, offset)?;
        let found = self.source.next_block(file, offset / BLOCK, blocks, true)?;
        Ok(found.map_or(inode.length_bytes, |lba| (lba * BLOCK).max(offset)).min(inode.length_bytes))
    }

    fn seek_start(&self, file: FileId, offset: u64) -> Result<(Inode, u64), TreeError> {
        let inode = as_file(self.source.inode(file)?)?;
        if offset >= inode.length_bytes {
            return Err(TreeError::NoData);
        }
        Ok((inode, inode.length_bytes.div_ceil(BLOCK)))
    }

    /// Copies bytes from one file to another, or within one, through memory. Holes stay holes.
    /// Returns how many: fewer at the end of the first.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] for ranges of one file that overlap; as [`Tree::read`] and
    /// [`Tree::write`], of the first piece.
    pub fn copy_range(
        &self,
        from: FileId,
        from_offset: u64,
        to: FileId,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, TreeError> {
        self.live()?;
        if from == to
            && from_offset < to_offset.saturating_add(length)
            && to_offset < from_offset.saturating_add(length)
        {
            return Err(TreeError::Invalid("the ranges overlap"));
        }
        let size = as_file(self.source.inode(from)?)?.length_bytes;
        let length = length.min(size.saturating_sub(from_offset));
        let mut done = 0;
        while done < length {
            match self.copy_piece(from, from_offset + done, to, to_offset + done, length - done) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn copy_piece(&self, from: FileId, at: u64, to: FileId, to_at: u64, most: u64) -> Result<u64, TreeError> {
        let data = match self.seek_data(from, at) {
            Ok(data) => data.min(at + most),
            Err(TreeError::NoData) => at + most,
            Err(error) => return Err(error),
        };
        if data > at {
            let end = to_at.checked_add(data - at).filter(|end| *end <= FILE_BYTES_MAX);
            end.ok_or(TreeError::TooLarge)?;
            self.allocate(to, to_at, data - at, Allocate::Zero { keep: false })?;
            return Ok(data - at);
        }
        let hole = self.seek_hole(from, at)?;
        let bytes = self.read(from, at, most.min(hole - at).min(PIECE) as usize)?;
        Ok(self.write(to, to_at, &bytes)? as u64)
    }
}

fn as_file(inode: Inode) -> Result<Inode, TreeError> {
    match NodeKind::of(&inode) {
        NodeKind::File => Ok(inode),
        NodeKind::Directory => Err(TreeError::IsDirectory),
        _ => Err(TreeError::Invalid("this has no bytes")),
    }
}

/// The content of a block that is written in part, to change.
fn block_to_change(source: &Source, inode: &Inode, lba: u64) -> Result<BlockMut, TreeError> {
    if lba >= inode.length_bytes.div_ceil(BLOCK) {
        return Ok(BlockMut::zeroed());
    }
    let mut block = BlockMut::dirty();
    source.read(inode.id, lba, 1)?.copy_to(&mut block[..]);
    Ok(block)
}

/// How many of a range of blocks are holes, and which of its first and last are not.
fn holes_in(source: &Source, inode: &Inode, first: u64, end: u64) -> Result<u64, TreeError> {
    let old_end = inode.length_bytes.div_ceil(BLOCK);
    let within = first.min(old_end)..end.min(old_end);
    if within.is_empty() {
        return Ok(end - first);
    }
    let there = source.volume().allocated(inode.id, Lba(within.start), within.end - within.start)?;
    let there = there.into_iter().filter(|there| *there).count() as u64;
    Ok(end - first - there)
}

impl Data<'_> {
    /// The next `length` bytes as blocks of the file: those from `offset` on, up to where a piece
    /// ends.
    fn next_blocks(
        &mut self,
        source: &Source,
        inode: &Inode,
        offset: u64,
        length: usize,
    ) -> Result<Vec<BlockMut>, TreeError> {
        let end = offset + length as u64;
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let count = (last - first) as usize;
        let mut blocks = Vec::with_capacity(count);
        match self {
            Data::Bytes(_) => BlockMut::append_run(&mut blocks, count),
            Data::Blocks(given) => blocks.extend(given.take(count)),
        }
        for (lba, block) in (first..).zip(&mut blocks) {
            let start = lba * BLOCK;
            let (from, to) = (offset.max(start), end.min(start + BLOCK));
            let part = (from - start) as usize..(to - start) as usize;
            let is_whole = part.len() == BLOCK_SIZE;
            match self {
                Data::Bytes(bytes) => {
                    if !is_whole {
                        *block = block_to_change(source, inode, lba)?;
                    }
                    let (piece, rest) = bytes.split_at(part.len());
                    block[part].copy_from_slice(piece);
                    *bytes = rest;
                }
                Data::Blocks(_) if is_whole => {}
                Data::Blocks(_) => {
                    let mut changed = block_to_change(source, inode, lba)?;
                    changed[part.clone()].copy_from_slice(&block[part]);
                    *block = changed;
                }
            }
        }
        Ok(blocks)
    }
}

/// Writes the next bytes of `data`: `length` bytes, which do not reach past the end of a piece.
fn write_piece(
    source: &Source,
    quotas: &Quotas,
    file: FileId,
    offset: u64,
    length: usize,
    data: &mut Data<'_>,
    is_modified_now: bool,
) -> Result<(), TreeError> {
    let mut edit = Edit::new(source, quotas);
    let inode = as_file(edit.inode(file)?)?;
    let end = offset + length as u64;
    let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
    let fresh = holes_in(source, &inode, first, last)?;
    for (lba, block) in (first..).zip(data.next_blocks(source, &inode, offset, length)?) {
        edit.content().write(file, Lba(lba), block.freeze());
    }
    let (now, coarse) = (edit.now(), edit.coarse());
    let inode = edit.inode_mut(file)?;
    inode.length_bytes = inode.length_bytes.max(end);
    inode.attributes.blocks += fresh as u32;
    inode.attributes.changed_ns = now;
    if is_modified_now {
        inode.attributes.modified_ns = coarse;
    }
    edit.commit(false)
}

/// Changes the length of a file. The cut part of its last block becomes zero.
fn set_length(source: &Source, edit: &mut Edit<'_>, file: FileId, bytes: u64) -> Result<(), TreeError> {
    let inode = as_file(edit.inode(file)?)?;
    if bytes > FILE_BYTES_MAX {
        return Err(TreeError::TooLarge);
    }
    if bytes < inode.length_bytes {
        let (keep, end) = (bytes.div_ceil(BLOCK), inode.length_bytes.div_ceil(BLOCK));
        let gone = match keep {
            0 => u64::from(inode.attributes.blocks),
            _ => source.count_data(file, keep, end)?,
        };
        // The first block of an empty file is still part of it, as a hole.
        if keep == 0 {
            edit.content().punch(file, Lba(0), 1);
        }
        let cut = bytes % BLOCK;
        if cut > 0 && holes_in(source, &inode, keep - 1, keep)? == 0 {
            let mut block = block_to_change(source, &inode, keep - 1)?;
            block[cut as usize..].fill(0);
            edit.content().write(file, Lba(keep - 1), block.freeze());
        }
        let blocks = &mut edit.inode_mut(file)?.attributes.blocks;
        *blocks = blocks.saturating_sub(gone as u32);
    }
    edit.inode_mut(file)?.length_bytes = bytes;
    edit.touch_content(file)
}

/// Makes bytes of a file zero: whole blocks become holes. `end` is not past the end of the file.
fn punch(
    source: &Source,
    edit: &mut Edit<'_>,
    inode: &Inode,
    offset: u64,
    end: u64,
) -> Result<(), TreeError> {
    if offset >= end {
        return Ok(());
    }
    // Bytes past the end of a file are zero, so its last block is punched whole.
    let last = if end == inode.length_bytes { end.div_ceil(BLOCK) } else { end / BLOCK };
    let first = offset.div_ceil(BLOCK);
    let mut edges = Vec::new();
    if !offset.is_multiple_of(BLOCK) {
        edges.push((offset / BLOCK, offset, end.min(first * BLOCK)));
    }
    if last * BLOCK < end && (last >= first || offset.is_multiple_of(BLOCK)) {
        edges.push((last, (last * BLOCK).max(offset), end));
    }
    for (lba, from, to) in edges {
        if holes_in(source, inode, lba, lba + 1)? == 0 {
            let mut block = block_to_change(source, inode, lba)?;
            block[(from - lba * BLOCK) as usize..(to - lba * BLOCK) as usize].fill(0);
            edit.content().write(inode.id, Lba(lba), block.freeze());
        }
    }
    if first < last {
        let gone = source.count_data(inode.id, first, last)?;
        edit.content().punch(inode.id, Lba(first), last - first);
        let blocks = &mut edit.inode_mut(inode.id)?.attributes.blocks;
        *blocks = blocks.saturating_sub(gone as u32);
    }
    Ok(())
}
