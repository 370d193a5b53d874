//! What a volume must hold, as plainly as possible: maps from block numbers to contents.
//!
//! Every block knows what is surely durable (its *floor*) and what was written since, with the generation that each write went into. After a
//! power cut the volume tells which generation it came back with: what that generation has must be there, what was flushed must be there, and
//! what was only written may be there or not, block by block, but never anything else.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use cairn_base::{FileId, Generation};

use crate::content::{Seen, Tag};

/// The exact content of one state: a snapshot, or what is active at a moment.
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
    /// What block `lba` reads as.
    pub fn tag(&self, lba: u64) -> Tag {
        self.content.get(&lba).copied().unwrap_or_default()
    }
}

#[derive(Clone, Debug, Default)]
struct BlockModel {
    floor: Tag,
    history: Vec<(Generation, Tag)>,
}

impl BlockModel {
    fn now(&self) -> Tag {
        self.history.last().map_or(self.floor, |(_, tag)| *tag)
    }
}

/// A file of the active state.
#[derive(Clone, Debug)]
pub struct FileModel {
    logged: bool,
    blocks: BTreeMap<u64, BlockModel>,
    created: Generation,
    removed: Option<Generation>,
    /// Length in blocks: durable, and as it was changed since.
    length: u64,
    lengths: Vec<(Generation, u64)>,
}

impl FileModel {
    /// Length in blocks.
    pub fn length(&self) -> u64 {
        self.lengths.last().map_or(self.length, |(_, length)| *length)
    }

    /// What block `lba` reads as now.
    pub fn tag(&self, lba: u64) -> Tag {
        self.blocks.get(&lba).map_or(Tag::ZERO, BlockModel::now)
    }

    fn put(&mut self, lba: u64, generation: Generation, tag: Tag) {
        self.blocks.entry(lba).or_default().history.push((generation, tag));
    }
}

/// The active state.
#[derive(Clone, Debug, Default)]
pub struct Model {
    files: BTreeMap<FileId, FileModel>,
}

impl Model {
    /// A state that is durable as it is.
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
        Self { files: files.collect() }
    }

    /// Files that have not been removed.
    pub fn files(&self) -> impl Iterator<Item = (FileId, &FileModel)> {
        self.files.iter().filter(|(_, file)| file.removed.is_none()).map(|(id, file)| (*id, file))
    }

    /// One of them.
    pub fn file(&self, id: FileId) -> &FileModel {
        &self.files[&id]
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
        self.change(id, |file| file.removed = Some(generation));
    }

    /// A file got another length; what a smaller one cuts off is gone.
    pub fn resize(&mut self, id: FileId, length: u64, generation: Generation) {
        self.change(id, |file| {
            let gone: Vec<u64> = file.blocks.range(length..).map(|(lba, _)| *lba).collect();
            gone.into_iter().for_each(|lba| file.put(lba, generation, Tag::ZERO));
            file.lengths.push((generation, length));
        });
    }

    /// A block was written.
    pub fn write(&mut self, id: FileId, lba: u64, tag: Tag, generation: Generation) {
        self.change(id, |file| file.put(lba, generation, tag));
    }

    /// Blocks became a hole.
    pub fn punch(&mut self, id: FileId, start: u64, count: u64, generation: Generation) {
        self.change(id, |file| {
            let gone: Vec<u64> = file.blocks.range(start..start + count).map(|(lba, _)| *lba).collect();
            gone.into_iter().for_each(|lba| file.put(lba, generation, Tag::ZERO));
        });
    }

    fn change(&mut self, id: FileId, change: impl FnOnce(&mut FileModel)) {
        if let Some(file) = self.files.get_mut(&id) {
            change(file);
        }
    }

    /// A flush succeeded.
    pub fn flushed(&mut self) {
        for file in self.files.values_mut().filter(|file| file.logged) {
            for block in file.blocks.values_mut() {
                block.floor = block.now();
                block.history.clear();
            }
        }
    }

    /// A consistency point succeeded, the last generation is `generation`.
    pub fn committed(&mut self, generation: Generation) {
        self.files.retain(|_, file| file.removed.is_none());
        for file in self.files.values_mut() {
            file.length = file.length();
            file.lengths.clear();
            file.created = file.created.min(generation);
            for block in file.blocks.values_mut() {
                block.floor = block.now();
                block.history.clear();
            }
            file.blocks.retain(|_, block| block.floor != Tag::ZERO);
        }
    }

    /// What is there now, exactly.
    pub fn frozen(&self) -> Arc<Frozen> {
        let files = self.files().map(|(id, file)| {
            let content = file.blocks.iter().map(|(lba, block)| (*lba, block.now()));
            let content = content.filter(|(_, tag)| *tag != Tag::ZERO).collect();
            (id, FrozenFile { blocks: file.length(), content, logged: file.logged })
        });
        Arc::new(Frozen { files: files.collect() })
    }

    /// The power was cut, and the volume came back with `generation` and files of these lengths. Checks them, takes what `read` finds in each for
    /// the truth, and goes on from there.
    pub fn after_cut(
        &mut self,
        generation: Generation,
        found: &BTreeMap<FileId, u64>,
        read: &mut dyn FnMut(FileId, u64) -> Result<Seen>,
    ) -> Result<()> {
        self.files.retain(|_, file| {
            file.created <= generation && file.removed.is_none_or(|removed| removed > generation)
        });
        let expected: Vec<FileId> = self.files.keys().copied().collect();
        let there: Vec<FileId> = found.keys().copied().collect();
        ensure!(expected == there, "files {there:?} came back with {generation:?}, expected {expected:?}");
        for (id, file) in &mut self.files {
            let committed = file.lengths.iter().rev().find(|(changed, _)| *changed <= generation);
            file.length = committed.map_or(file.length, |(_, length)| *length);
            file.lengths.clear();
            file.removed = None;
            ensure!(found[id] == file.length, "{id:?} has {} blocks, expected {}", found[id], file.length);
            for (lba, seen) in (0..).zip(read(*id, file.length)?) {
                let block = file.blocks.remove(&lba).unwrap_or_default();
                let first = block.history.iter().rposition(|(written, _)| *written <= generation);
                let mut allowed: Vec<Tag> =
                    block.history[first.unwrap_or(0)..].iter().map(|(_, tag)| *tag).collect();
                if first.is_none() {
                    allowed.push(block.floor);
                }
                match seen {
                    Some(tag) if allowed.contains(&tag) => {
                        if tag != Tag::ZERO {
                            file.blocks.insert(lba, BlockModel { floor: tag, history: Vec::new() });
                        }
                    }
                    Some(tag) => bail!(
                        "{id:?} block {lba} came back as {tag:?}, allowed is {allowed:?} (durable {:?}, written {:?}, at {generation:?})",
                        block.floor,
                        block.history
                    ),
                    None => bail!("{id:?} block {lba} came back torn"),
                }
            }
            file.blocks.retain(|lba, _| *lba < file.length);
        }
        Ok(())
    }
}
