//! Quota trees: directories with a limit for the total of their descendants.
//!
//! A quota tree begins as an empty directory. Files made in it belong to it for life: no file is
//! linked or moved into or out of it, as between file systems, so that its usage is known without a
//! search. Its record, a block of the file of quotas, changes together with the counted files, so
//! it is exact after any crash.
//!
//! An unreadable record affects the files that count in it, and not the tree: no file is read by
//! means of it. It is read again on each request, as a mirror or the device may have restored it,
//! and until then its number is not reused.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use cairn_base::{BLOCK_SIZE, FileId, Lba};
use cairn_device::BlockMut;
use cairn_format::{FANOUT, FileKind, Inode, QuotaRecord};
use cairn_volume::{Change, Head};
use parking_lot::Mutex;

use super::edit::Edit;
use super::error::TreeError;
use super::source::{Blocks, Source, damaged};
use super::stat::NodeKind;
use super::{Tree, trie};

/// The limits of a quota tree. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaLimits {
    /// Bytes, in whole blocks of 4 KiB. Content and directories count; extended attributes and the
    /// volume's own nodes do not.
    pub bytes: Option<u64>,
    /// Files of all kinds; the top counts too.
    pub files: Option<u64>,
}

/// The remaining room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes of content.
    pub bytes: u64,
    /// Files.
    pub files: u64,
}

/// A quota tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Its top.
    pub directory: FileId,
    /// Its limits.
    pub limits: QuotaLimits,
    /// Bytes that it takes, in whole blocks.
    pub used_bytes: u64,
    /// Files in it.
    pub used_files: u64,
}

impl From<&QuotaRecord> for Quota {
    fn from(record: &QuotaRecord) -> Self {
        let limit = |limit: u64| Some(limit).filter(|limit| *limit > 0);
        Self {
            directory: record.directory,
            limits: QuotaLimits { bytes: limit(record.limit_bytes), files: limit(record.limit_files) },
            used_bytes: record.used_blocks * BLOCK_SIZE as u64,
            used_files: record.used_files,
        }
    }
}

/// Records of quota trees by number; `None` is a removed one.
pub(crate) type Records = BTreeMap<u16, Option<QuotaRecord>>;

/// The quota trees of a live volume, and the lock of their records. It is the last to be taken.
pub(crate) struct Quotas {
    file: FileId,
    /// The top of quota trees whose own is gone, while their files are open.
    orphans: FileId,
    /// The active state whose records these are; changes are of it alone.
    head: Head,
    known: Mutex<KnownRecords>,
}

/// The known records.
#[derive(Default)]
struct KnownRecords {
    records: BTreeMap<u16, QuotaRecord>,
    /// Numbers whose records could not be read at the last attempt, or that may have one.
    damaged: BTreeSet<u16>,
}

/// The counts of changes: blocks and files, by quota tree.
#[derive(Default)]
pub(crate) struct Counted(BTreeMap<u16, (i64, i64)>);

impl Counted {
    /// A file is `after`, and was `before`.
    pub(crate) fn change(&mut self, before: Option<&Inode>, after: Option<&Inode>) {
        for (inode, sign) in [(before, -1), (after, 1)] {
            let Some(inode) = inode.filter(|inode| inode.kind == FileKind::Node && !inode.removed) else {
                continue;
            };
            if inode.attributes.quota != 0 {
                let counted = self.0.entry(inode.attributes.quota).or_default();
                counted.0 += sign * i64::from(inode.attributes.blocks);
                counted.1 += sign;
            }
        }
    }
}

impl Quotas {
    /// All records of a state, as far as they can be read.
    pub(crate) fn load(
        source: &Source,
        file: FileId,
        orphans: FileId,
        head: Head,
    ) -> Result<Self, TreeError> {
        let found = read_records(source, file)?;
        // For an image, a request of a quota reports its damage. No change depends on it.
        if let (Source::Live(_), Some(first)) = (source, found.damaged.first()) {
            let (number, ranges) = (first.start(), found.damaged.len());
            tracing::error!(%file, number, ranges, "records of quotas can't be read: changes that count in them are refused");
        }
        let known =
            KnownRecords { records: found.records, damaged: found.damaged.into_iter().flatten().collect() };
        Ok(Self { file, orphans, head, known: Mutex::new(known) })
    }

    /// The active state that they are of.
    pub(crate) fn head(&self) -> Head {
        self.head
    }

    /// The file that the records are in.
    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    /// Adds the counts of a change, and passes it to the volume. `own` are records that the
    /// operation makes, changes or removes.
    pub(crate) fn commit(
        &self,
        source: &Source,
        mut change: Change,
        counted: &Counted,
        own: &Records,
        frees: bool,
    ) -> Result<(), TreeError> {
        let counts = |(_, (blocks, files)): &(&u16, &(i64, i64))| *blocks != 0 || *files != 0;
        let mut numbers: Vec<u16> = counted.0.iter().filter(counts).map(|(number, _)| *number).collect();
        numbers.extend(own.keys());
        if numbers.is_empty() {
            return Ok(source.volume().change(change, frees)?);
        }
        numbers.sort_unstable();
        numbers.dedup();
        let mut known = self.known.lock();
        let mut records = Records::new();
        for number in numbers {
            let now = self.record_in(&mut known, source, number)?;
            let record = match own.get(&number) {
                // Writes after the operation's read of it count.
                Some(Some(record)) => {
                    let now = now.unwrap_or(*record);
                    Some(QuotaRecord { used_blocks: now.used_blocks, used_files: now.used_files, ..*record })
                }
                // Its files may be open without a name, and still count: its number is not reused
                // before that ends.
                Some(None) => now.map(|record| self.without_top(&record)),
                None => now,
            };
            let (blocks, files) = counted.0.get(&number).copied().unwrap_or_default();
            let Some(record) = record else { continue };
            let record = QuotaRecord {
                used_blocks: record.used_blocks.saturating_add_signed(blocks),
                used_files: record.used_files.saturating_add_signed(files),
                ..record
            };
            if self.has_no_top(&record) && record.used_files == 0 {
                change.punch(self.file, Lba(number.into()), 1);
                records.insert(number, None);
                continue;
            }
            let bytes = record.used_blocks * BLOCK_SIZE as u64;
            let is_over = |limit: u64, used: u64| limit > 0 && used > limit;
            // A tree over a limit that was lowered later may shrink, and all other changes of it
            // are allowed.
            if blocks > 0 && is_over(record.limit_bytes, bytes)
                || files > 0 && is_over(record.limit_files, record.used_files)
            {
                return Err(TreeError::Quota);
            }
            let mut block = BlockMut::dirty();
            record.write(number, &mut block);
            change.write(self.file, Lba(number.into()), block.freeze());
            records.insert(number, Some(record));
        }
        source.volume().change(change, frees)?;
        for (number, record) in records {
            match record {
                Some(record) => drop(known.records.insert(number, record)),
                None => drop(known.records.remove(&number)),
            }
        }
        Ok(())
    }

    /// The quota tree that a directory is the top of.
    pub(crate) fn topped_by(&self, source: &Source, inode: &Inode) -> Result<Option<u16>, TreeError> {
        // A file that can't be a top is known without its record.
        if NodeKind::of(inode) != NodeKind::Directory {
            return Ok(None);
        }
        let number = inode.attributes.quota;
        let record = self.record(source, number)?;
        Ok(record.filter(|record| record.directory == inode.id).map(|_| number))
    }

    /// The record of a quota tree that is being removed, or of which only open files are left.
    fn without_top(&self, record: &QuotaRecord) -> QuotaRecord {
        QuotaRecord { directory: self.orphans, limit_bytes: 0, limit_files: 0, ..*record }
    }

    fn has_no_top(&self, record: &QuotaRecord) -> bool {
        record.directory == self.orphans
    }

    /// A number without a record. A number that may have one is not free: its record would be
    /// overwritten.
    fn free_number(&self) -> Option<u16> {
        let known = self.known.lock();
        (1..=u16::MAX).find(|number| !known.records.contains_key(number) && !known.damaged.contains(number))
    }

    /// Blocks that can be added to a quota tree; none where nothing limits them.
    pub(crate) fn room(&self, source: &Source, number: u16) -> Result<Option<u64>, TreeError> {
        let record = self.record(source, number)?.filter(|record| record.limit_bytes > 0);
        Ok(record.map(|record| (record.limit_bytes / BLOCK_SIZE as u64).saturating_sub(record.used_blocks)))
    }

    fn record(&self, source: &Source, number: u16) -> Result<Option<QuotaRecord>, TreeError> {
        self.record_in(&mut self.known.lock(), source, number)
    }

    /// A record, which is read again if that failed before. No change has been possible meanwhile:
    /// a change fails as well.
    fn record_in(
        &self,
        known: &mut KnownRecords,
        source: &Source,
        number: u16,
    ) -> Result<Option<QuotaRecord>, TreeError> {
        if known.damaged.contains(&number) {
            let record = read_record(source, self.file, number)?;
            known.damaged.remove(&number);
            known.records.extend(record.map(|record| (number, record)));
        }
        Ok(known.records.get(&number).copied())
    }
}

/// The records that the file of quotas has.
#[derive(Default)]
pub(crate) struct FoundRecords {
    pub(crate) records: BTreeMap<u16, QuotaRecord>,
    /// Numbers that may have records which can't be read: one, or all that one node leads to.
    pub(crate) damaged: Vec<RangeInclusive<u16>>,
}

/// The records in the file of quotas. A damaged record affects only itself; other errors end it.
pub(crate) fn read_records(source: &Source, file: FileId) -> Result<FoundRecords, TreeError> {
    let mut found = FoundRecords::default();
    let length = match source.inode(file) {
        Ok(inode) => inode.tree.length.min(1 << 16),
        // Any number may have one.
        Err(TreeError::Damaged(_)) => {
            found.damaged.push(1..=u16::MAX);
            return Ok(found);
        }
        Err(error) => return Err(error),
    };
    let mut at = 1;
    while at < length {
        // An unreadable node hides the blocks below it, and none after it.
        let end = ((at / FANOUT + 1) * FANOUT).min(length);
        match source.next_block(file, at, end, false) {
            Ok(None) => at = end,
            Ok(Some(lba)) => {
                let number = lba as u16;
                match read_record(source, file, number) {
                    Ok(record) => found.records.extend(record.map(|record| (number, record))),
                    Err(TreeError::Damaged(_)) => found.damaged.push(number..=number),
                    Err(error) => return Err(error),
                }
                at = lba + 1;
            }
            Err(TreeError::Damaged(_)) => {
                found.damaged.push(at as u16..=(end - 1) as u16);
                at = end;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn read_record(source: &Source, file: FileId, number: u16) -> Result<Option<QuotaRecord>, TreeError> {
    let (mut blocks, lba) = (source, u64::from(number));
    if lba >= source.inode(file)?.tree.length {
        return Ok(None);
    }
    let Some(block) = blocks.block(file, lba)? else { return Ok(None) };
    QuotaRecord::parse(&block, number).map_err(|_| damaged(file, lba))
}

impl Tree {
    /// Makes an empty directory the top of a quota tree, or changes the limits of one. Without
    /// limits an empty one becomes an ordinary directory again, and one with files continues to
    /// count. A limit may be below the present usage: then nothing can be added.
    ///
    /// # Errors
    /// [`TreeError::NotEmpty`] for a directory with files; [`TreeError::Invalid`] inside of another
    /// quota tree, and for the root; [`TreeError::NotDirectory`]; [`TreeError::NoSpace`] also with
    /// 65,535 quota trees; [`TreeError::ReadOnly`]; damage.
    pub fn set_quota(&self, directory: FileId, limits: QuotaLimits) -> Result<(), TreeError> {
        let source = self.live()?;
        let _names = self.names.write();
        let _files = self.lock_files(&[directory]);
        let mut edit = Edit::new(source, &self.quotas);
        let inode = self.open_directory(&edit, directory)?;
        if directory == self.root {
            return Err(TreeError::Invalid("the limit of the whole tree is the volume's size"));
        }
        let is_empty = trie::is_empty(&mut edit, directory)?;
        let with_limits = |record: QuotaRecord| QuotaRecord {
            limit_bytes: limits.bytes.unwrap_or(0),
            limit_files: limits.files.unwrap_or(0),
            ..record
        };
        match (inode.attributes.quota, self.quotas.topped_by(source, &inode)?) {
            (_, Some(number)) if is_empty && limits == QuotaLimits::default() => {
                edit.put_quota(number, None);
                edit.inode_mut(directory)?.attributes.quota = 0;
            }
            (_, Some(number)) => {
                let record = self.quotas.record(source, number)?.ok_or(TreeError::NotFound)?;
                edit.put_quota(number, Some(with_limits(record)));
            }
            (0, None) if limits == QuotaLimits::default() => return Ok(()),
            (0, None) if !is_empty => return Err(TreeError::NotEmpty),
            (0, None) => {
                let number = self.quotas.free_number().ok_or(TreeError::NoSpace)?;
                let record =
                    QuotaRecord { directory, limit_bytes: 0, limit_files: 0, used_blocks: 0, used_files: 0 };
                // The directory's own usage is added with the change of its inode.
                edit.put_quota(number, Some(with_limits(record)));
                edit.inode_mut(directory)?.attributes.quota = number;
                let file = edit.inode_mut(self.quotas.file)?;
                file.length_bytes = file.length_bytes.max((u64::from(number) + 1) * BLOCK_SIZE as u64);
            }
            _ => return Err(TreeError::Invalid("the directory is in a quota tree already")),
        }
        edit.touch(directory)?;
        edit.commit(false)
    }

    /// The room that a file or directory can still take, in the volume and in its quota tree.
    ///
    /// # Errors
    /// [`TreeError::NotFound`]; damage, also of the record of the quota.
    pub fn room(&self, file: FileId) -> Result<Room, TreeError> {
        let free = self.volume().status().free;
        let number = self.source.inode(file)?.attributes.quota;
        let record = self.quotas.record(&self.source, number)?;
        let left = |limit: u64, used: u64| if limit == 0 { u64::MAX } else { limit.saturating_sub(used) };
        let of_quota = record.map_or(Room { bytes: u64::MAX, files: u64::MAX }, |record| Room {
            bytes: left(record.limit_bytes, record.used_blocks.saturating_mul(BLOCK_SIZE as u64)),
            files: left(record.limit_files, record.used_files),
        });
        let bytes = of_quota.bytes.min(free.saturating_mul(BLOCK_SIZE as u64));
        Ok(Room { bytes, files: of_quota.files.min(free) })
    }

    /// The quota tree that a file or directory is in.
    ///
    /// # Errors
    /// [`TreeError::NotFound`]; damage, also of its record.
    pub fn quota(&self, file: FileId) -> Result<Option<Quota>, TreeError> {
        let number = self.source.inode(file)?.attributes.quota;
        let record = self.quotas.record(&self.source, number)?;
        let record = record.filter(|record| !self.quotas.has_no_top(record));
        Ok(record.as_ref().map(Quota::from))
    }

    /// All quota trees.
    ///
    /// # Errors
    /// Damage of any record: a list without it would report no limit for its tree.
    pub fn quotas(&self) -> Result<Vec<Quota>, TreeError> {
        let quotas = &self.quotas;
        let mut known = quotas.known.lock();
        while let Some(number) = known.damaged.first().copied() {
            quotas.record_in(&mut known, &self.source, number)?;
        }
        let records = known.records.values();
        Ok(records.filter(|record| !quotas.has_no_top(record)).map(Quota::from).collect())
    }
}
