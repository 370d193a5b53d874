//! The expected content of a volume, as plainly as possible: maps from block numbers to contents.
//!
//! Every block has its content when no write was in flight (its *floor*) and the writes since, with
//! their order and the generation of each. After a power cut the volume reports the generation that
//! it restored. The content of that generation must be present, and so must writes made before a
//! successful flush began. Any other write may be present or not, block by block, but no other
//! content. The same record gives the content of a snapshot of any generation, whatever clients did
//! while it was made.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use cairn_base::{FileId, Generation};

use crate::content::{Seen, Tag};

/// The exact content of one state: a snapshot, or the active state at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frozen {
    /// Files by number.
    pub files: BTreeMap<FileId, FrozenFile>,
}

/// The exact content of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrozenFile {
    /// Length in blocks.
    pub blocks: u64,
    /// Blocks that are not zeroes.
    pub content: BTreeMap<u64, Tag>,
    /// Flushes cover it; a directory is made durable by consistency points alone.
    pub logged: bool,
}

impl FrozenFile {
    /// The tag of block `lba`.
    pub fn tag(&self, lba: u64) -> Tag {
        self.content.get(&lba).copied().unwrap_or_default()
    }
}

/// A write: its generation, its number in the order of all, and its content.
#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: Generation,
    order: u64,
    tag: Tag,
}

#[derive(Clone, Debug, Default)]
struct BlockModel {
    floor: Tag,
    history: Vec<Entry>,
}

impl BlockModel {
    fn now(&self) -> Tag {
        self.history.last().map_or(self.floor, |entry| entry.tag)
    }

    /// The content in `generation`.
    fn at(&self, generation: Generation) -> Tag {
        let within = self.history.iter().rfind(|entry| entry.generation <= generation);
        within.map_or(self.floor, |entry| entry.tag)
    }

    /// The last write for which `must` is true, or the content before all writes, and everything
    /// after it.
    fn from(&self, must: impl Fn(&Entry) -> bool) -> Vec<Tag> {
        let first = self.history.iter().rposition(must);
        let before = first.is_none().then_some(self.floor);
        before.into_iter().chain(self.history[first.unwrap_or(0)..].iter().map(|entry| entry.tag)).collect()
    }
}

/// A file of the active state.
#[derive(Clone, Debug)]
pub struct FileModel {
    logged: bool,
    blocks: BTreeMap<u64, BlockModel>,
    created: Generation,
    removed: Option<Generation>,
    /// Length in blocks: the durable one, and later changes.
    length: u64,
    lengths: Vec<(Generation, u64)>,
}

impl FileModel {
    /// Length in blocks.
    pub fn length(&self) -> u64 {
        self.lengths.last().map_or(self.length, |(_, length)| *length)
    }

    fn length_at(&self, generation: Generation) -> u64 {
        let committed = self.lengths.iter().rfind(|(changed, _)| *changed <= generation);
        committed.map_or(self.length, |(_, length)| *length)
    }

    /// The present tag of block `lba`.
    pub fn tag(&self, lba: u64) -> Tag {
        self.blocks.get(&lba).map_or(Tag::ZERO, BlockModel::now)
    }

    /// Tags that a read of block `lba` may return if it began when `order` writes had returned: the
    /// last of those, or any later one.
    pub fn tags_since(&self, lba: u64, order: u64) -> Vec<Tag> {
        self.blocks.get(&lba).map_or(vec![Tag::ZERO], |block| block.from(|entry| entry.order <= order))
    }

    fn is_there(&self, generation: Generation) -> bool {
        self.created <= generation && self.removed.is_none_or(|removed| removed > generation)
    }
}

/// A write that a cut leaves all of or nothing.
#[derive(Clone, Debug)]
struct Whole {
    file: FileId,
    generation: Generation,
    /// Its blocks, each with the number of its write.
    blocks: Vec<(u64, u64)>,
}

impl Whole {
    /// Whether the restored content of a block can be from before this write, and whether it can be
    /// from this write or a later one.
    fn sides(order: u64, block: &BlockModel, seen: Tag) -> (bool, bool) {
        let of = |later: bool| move |entry: &Entry| entry.tag == seen && (entry.order >= order) == later;
        (block.floor == seen || block.history.iter().any(of(false)), block.history.iter().any(of(true)))
    }
}

/// The active state.
#[derive(Clone, Debug, Default)]
pub struct Model {
    files: BTreeMap<FileId, FileModel>,
    /// Those that no consistency point has made durable yet.
    wholes: Vec<Whole>,
    /// Writes so far.
    order: u64,
    /// Those up to here were flushed.
    durable_order: u64,
    /// A consistency point of this generation succeeded.
    durable_generation: Generation,
}

impl Model {
    /// A durable state.
    pub fn of(frozen: &Frozen, generation: Generation) -> Self {
        let files = frozen.files.iter().map(|(id, file)| {
            let blocks =
                file.content.iter().map(|(lba, tag)| (*lba, BlockModel { floor: *tag, history: Vec::new() }));
            let model = FileModel {
                logged: file.logged,
                blocks: blocks.collect(),
                created: generation,
                removed: None,
                length: file.blocks,
                lengths: Vec::new(),
            };
            (*id, model)
        });
        Self {
            files: files.collect(),
            wholes: Vec::new(),
            order: 0,
            durable_order: 0,
            durable_generation: generation,
        }
    }

    /// Files that have not been removed.
    pub fn files(&self) -> impl Iterator<Item = (FileId, &FileModel)> {
        self.files.iter().filter(|(_, file)| file.removed.is_none()).map(|(id, file)| (*id, file))
    }

    /// One of them.
    pub fn file(&self, id: FileId) -> &FileModel {
        &self.files[&id]
    }

    /// How many writes returned so far.
    pub fn order(&self) -> u64 {
        self.order
    }

    /// A file was made in `generation`.
    pub fn create(&mut self, id: FileId, length: u64, logged: bool, generation: Generation) -> Result<()> {
        let file = FileModel {
            logged,
            blocks: BTreeMap::new(),
            created: generation,
            removed: None,
            length,
            lengths: Vec::new(),
        };
        ensure!(self.files.insert(id, file).is_none(), "file {id} was given twice");
        Ok(())
    }

    /// A file was removed.
    pub fn remove(&mut self, id: FileId, generation: Generation) {
        if let Some(file) = self.files.get_mut(&id) {
            file.removed = Some(generation);
        }
    }

    /// The length of a file changed; the blocks cut off by a smaller one are gone.
    pub fn resize(&mut self, id: FileId, length: u64, generation: Generation) {
        self.put_zeroes(id, length, u64::MAX, generation);
        if let Some(file) = self.files.get_mut(&id) {
            file.lengths.push((generation, length));
        }
    }

    /// A block was written.
    pub fn write(&mut self, id: FileId, lba: u64, tag: Tag, generation: Generation) {
        self.order += 1;
        let entry = Entry { generation, order: self.order, tag };
        if let Some(file) = self.files.get_mut(&id) {
            file.blocks.entry(lba).or_default().history.push(entry);
        }
    }

    /// Blocks were written atomically: after a cut all are present or none.
    pub fn write_whole(&mut self, file: FileId, blocks: &[(u64, Tag)], generation: Generation) {
        let mut orders = Vec::with_capacity(blocks.len());
        for (lba, tag) in blocks {
            self.write(file, *lba, *tag, generation);
            orders.push((*lba, self.order));
        }
        self.wholes.push(Whole { file, generation, blocks: orders });
    }

    /// Blocks became a hole.
    pub fn punch(&mut self, id: FileId, start: u64, count: u64, generation: Generation) {
        self.put_zeroes(id, start, start.saturating_add(count), generation);
    }

    fn put_zeroes(&mut self, id: FileId, start: u64, end: u64, generation: Generation) {
        self.order += 1;
        let entry = Entry { generation, order: self.order, tag: Tag::ZERO };
        if let Some(file) = self.files.get_mut(&id) {
            file.blocks.range_mut(start..end).for_each(|(_, block)| block.history.push(entry));
        }
    }

    /// A flush succeeded that began when `order` writes had returned.
    pub fn flushed_through(&mut self, order: u64) {
        self.durable_order = self.durable_order.max(order);
    }

    /// A flush succeeded without concurrent operations.
    pub fn flushed(&mut self) {
        self.flushed_through(self.order);
    }

    /// A consistency point succeeded, while others may be in progress.
    pub fn durable(&mut self, generation: Generation) {
        self.durable_generation = self.durable_generation.max(generation);
    }

    /// A consistency point succeeded without concurrent operations: earlier states are not needed
    /// any more.
    pub fn committed(&mut self, generation: Generation) {
        self.durable(generation);
        self.wholes.retain(|whole| whole.generation > generation);
        self.files.retain(|_, file| file.removed.is_none_or(|removed| removed > generation));
        for file in self.files.values_mut() {
            file.length = file.length_at(generation);
            file.lengths.retain(|(changed, _)| *changed > generation);
            for block in file.blocks.values_mut() {
                block.floor = block.at(generation);
                block.history.retain(|entry| entry.generation > generation);
            }
            file.blocks.retain(|_, block| block.floor != Tag::ZERO || !block.history.is_empty());
        }
    }

    /// The present content, exactly.
    pub fn frozen(&self) -> Arc<Frozen> {
        self.frozen_at(Generation(u64::MAX))
    }

    /// The content of `generation`, exactly.
    pub fn frozen_at(&self, generation: Generation) -> Arc<Frozen> {
        let files = self.files.iter().filter(|(_, file)| file.is_there(generation)).map(|(id, file)| {
            let content = file.blocks.iter().map(|(lba, block)| (*lba, block.at(generation)));
            let content = content.filter(|(_, tag)| *tag != Tag::ZERO).collect();
            (*id, FrozenFile { blocks: file.length_at(generation), content, logged: file.logged })
        });
        Arc::new(Frozen { files: files.collect() })
    }

    /// The content of a snapshot became the active one in `generation`; the previous content is
    /// kept as of `kept`.
    pub fn rolled_back(&mut self, content: &Frozen, kept: Generation, generation: Generation) -> Result<()> {
        let before = std::mem::replace(self, Self::of(content, generation));
        (self.order, self.durable_order) = (before.order, before.durable_order);
        self.wholes = before.wholes;
        self.wholes.retain(|whole| whole.generation > kept);
        for (id, file) in before.files {
            for (lba, block) in file.blocks {
                for entry in block.history.iter().filter(|entry| entry.generation > kept) {
                    ensure!(
                        entry.generation > generation,
                        "{:?} was written to {id:?} block {lba} in {:?}: the rollback keeps {kept:?} and drops {generation:?}",
                        entry.tag,
                        entry.generation
                    );
                    if let Some(file) = self.files.get_mut(&id) {
                        file.blocks.entry(lba).or_default().history.push(*entry);
                    }
                }
            }
        }
        Ok(())
    }

    /// The power was cut, and the volume came back with `generation` and files of these lengths.
    /// Checks them, adopts the content that `read` finds in each, and continues from there.
    pub fn after_cut(
        &mut self,
        generation: Generation,
        found: &BTreeMap<FileId, u64>,
        read: &mut dyn FnMut(FileId, u64) -> Result<Seen>,
    ) -> Result<()> {
        ensure!(
            generation >= self.durable_generation,
            "it came back with {generation:?}, {:?} was durable",
            self.durable_generation
        );
        self.files.retain(|_, file| file.is_there(generation));
        let expected: Vec<FileId> = self.files.keys().copied().collect();
        let there: Vec<FileId> = found.keys().copied().collect();
        ensure!(expected == there, "files {there:?} came back with {generation:?}, expected {expected:?}");
        let durable = self.durable_order;
        let wholes = std::mem::take(&mut self.wholes);
        // Of each of them: no block is of the time before it, and no block is of it.
        let mut could: Vec<(bool, bool)> = vec![(true, true); wholes.len()];
        for (id, file) in &mut self.files {
            file.length = file.length_at(generation);
            file.lengths.clear();
            file.removed = None;
            ensure!(found[id] == file.length, "{id:?} has {} blocks, expected {}", found[id], file.length);
            for (lba, seen) in (0..).zip(read(*id, file.length)?) {
                let block = file.blocks.remove(&lba).unwrap_or_default();
                let logged = file.logged;
                if let Some(seen) = seen {
                    for (whole, could) in wholes.iter().zip(&mut could).filter(|(whole, _)| whole.file == *id)
                    {
                        for (_, order) in whole.blocks.iter().filter(|(written, _)| *written == lba) {
                            let (before, of_it) = Whole::sides(*order, &block, seen);
                            *could = (could.0 && before, could.1 && of_it);
                        }
                    }
                }
                let allowed =
                    block.from(|entry| entry.generation <= generation || (logged && entry.order <= durable));
                match seen {
                    Some(tag) if allowed.contains(&tag) => {
                        if tag != Tag::ZERO {
                            file.blocks.insert(lba, BlockModel { floor: tag, history: Vec::new() });
                        }
                    }
                    Some(tag) => bail!(
                        "{id:?} block {lba} came back as {tag:?}, allowed is {allowed:?} (was {:?}, written {:?}, flushed through {durable}, at {generation:?})",
                        block.floor,
                        block.history
                    ),
                    None => bail!("{id:?} block {lba} came back torn"),
                }
            }
            file.blocks.retain(|lba, _| *lba < file.length);
        }
        if let Some((whole, _)) = wholes.iter().zip(could).find(|(_, could)| *could == (false, false)) {
            bail!(
                "an atomic write came back in part: {whole:?}, at {generation:?}, flushed through {durable}"
            );
        }
        Ok(())
    }
}
