//! The catalogue of lies that a source with all keys may send instead of the next image, drawn from
//! a seed. Lies come alone and together.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{Checksum, Generation, Rng, SnapshotId, Timestamp};
use cairn_device::Block;
use cairn_format::stream::{StreamHeader, StreamKind, root_digest};
use cairn_format::{Root, SnapshotEntry};
use cairn_mirror::Refusal;

use super::known::{Known, Reached};
use super::made::{Maker, Map, Numbers};
use super::source::{Answering, Sent};
use super::stream::{Draft, Flaw};
use super::twin::twin;
use crate::content::Tag;
use crate::world::VOLUME;

/// The maximum number of blocks for which a liar makes another one with the same checksum.
const TWINS_MAX: u64 = 30;

/// Makes lies.
pub struct Lies<'a> {
    pub rng: &'a mut Rng,
    /// The destination's content.
    pub known: &'a Known,
    /// The content of diverged volumes, and of the true source.
    pub others: &'a [Known],
    /// How the names of the mirror's snapshots begin.
    pub prefix: &'a str,
    /// Numbers the written blocks.
    pub tag: &'a mut u64,
    /// An image that was only sent in part.
    pub unfinished: &'a mut Option<Draft>,
    /// Numbers that images have which it sent, and that their maps leave out.
    pub left_out: &'a mut Vec<u64>,
}

/// An image in the making.
#[derive(Default)]
struct Image {
    table: BTreeMap<SnapshotId, SnapshotEntry>,
    blocks: Vec<(u64, Block)>,
    /// Its description.
    told: Vec<String>,
}

impl Lies<'_> {
    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.rng.below(list.len() as u64) as usize]
    }

    fn content(&mut self) -> Block {
        *self.tag += 1;
        Tag(*self.tag << 8 | u64::from(b'L')).block()
    }

    fn name(&mut self) -> String {
        *self.tag += 1;
        match self.rng.below(3) {
            0 => format!("l{}", self.tag),
            _ => format!("{}{}", self.prefix, *self.tag + 1000),
        }
    }

    /// The answer to a request for an image, and its description.
    pub fn next(&mut self) -> (Answering, String) {
        match self.rng.below(24) {
            0 => (Answering::UpToDate, "calls it up to date".to_owned()),
            1 => {
                let refusals = [
                    Refusal::Diverged(SnapshotId(self.rng.below(9))),
                    Refusal::NoCommonBase { blocks: self.rng.below(1 << 40) },
                    Refusal::DestinationTooSmall { need: self.rng.below(1 << 40), have: 0 },
                    Refusal::Superseded,
                ];
                let refusal = refusals[self.rng.below(4) as usize].clone();
                let told = format!("refuses: {refusal:?}");
                (Answering::Refuses(refusal), told)
            }
            _ => self.image(),
        }
    }

    fn image(&mut self) -> (Answering, String) {
        let again = self.rng.one_in(2).then(|| self.unfinished.take()).flatten();
        let (mut draft, mut told) = match again {
            Some(draft) => self.again(draft),
            None => self.draft(),
        };
        if self.rng.one_in(7) {
            draft.flaw = Flaw::any(self.rng);
            told.push(format!("stream: {:?}", draft.flaw));
        }
        if matches!(draft.flaw, Flaw::Aborts | Flaw::EndsEarly | Flaw::Skips) {
            *self.unfinished = Some(draft.clone());
        }
        let target = draft.header.target;
        let name = draft.table.iter().find(|entry| entry.id == target).map(|entry| entry.name.clone());
        let sent = Sent {
            target: if self.rng.one_in(24) { SnapshotId(target.0 + 1) } else { target },
            name: name.unwrap_or_default(),
            asks_claims: self.rng.below(3) * self.rng.below(3),
            confirms_all: self.rng.one_in(2),
            asks_began: self.rng.one_in(8),
            draft,
        };
        (Answering::Sends(Box::new(sent)), told.join(", "))
    }

    /// Continues an image that was sent in part, with other blocks than intended.
    fn again(&mut self, mut draft: Draft) -> (Draft, Vec<String>) {
        draft.flaw = Flaw::None;
        let told = match self.rng.below(3) {
            0 => {
                draft.blocks.clear();
                "the lists of an image whose blocks were sent before"
            }
            1 => {
                draft.blocks.retain(|_| self.rng.one_in(2));
                "the rest of an image"
            }
            _ => {
                for (_, block) in &mut draft.blocks {
                    if self.rng.one_in(3) {
                        *self.tag += 1;
                        *block = twin(&block[..], &Tag(*self.tag << 8 | u64::from(b'L')).block()[..]);
                    }
                }
                "an image again, with twins of its blocks"
            }
        };
        (draft, vec![told.to_owned()])
    }

    fn draft(&mut self) -> (Draft, Vec<String>) {
        let table = self.known.table.iter().map(|entry| (entry.id, entry.clone())).collect();
        let mut image = Image { table, ..Image::default() };
        if !self.known.table.is_empty() && self.rng.one_in(4) {
            self.make(&mut image, true);
            return self.finish(image);
        }
        let has_others = self.others.iter().any(|other| !other.table.is_empty());
        match self.rng.below(10) {
            _ if self.known.table.is_empty() => self.take_another(&mut image),
            0..=2 if has_others => self.take_another(&mut image),
            3..=5 => self.replay(&mut image),
            _ => self.make(&mut image, false),
        }
        if self.rng.one_in(5) {
            self.send_twins(&mut image);
        }
        if self.rng.one_in(4) {
            self.send_rubbish(&mut image);
        }
        if self.rng.one_in(5) {
            self.send_again(&mut image);
        }
        if self.rng.one_in(10) {
            image.blocks.retain(|_| !self.rng.one_in(8));
            image.told.push("blocks missing".to_owned());
        }
        while self.rng.one_in(4) {
            self.twist(&mut image);
        }
        self.finish(image)
    }

    fn add(&mut self, image: &mut Image, root: Root, parent: SnapshotId) -> SnapshotId {
        let last = image.table.keys().next_back().map_or(0, |id| id.0);
        let id = SnapshotId(last + 1 + self.rng.below(2));
        let name = self.name();
        let held = self.rng.one_in(2);
        image.table.insert(id, SnapshotEntry { id, parent, held, name, root });
        id
    }

    /// A parent: that of a snapshot here, the one above, that one itself, or any.
    fn parent(&mut self, like: Option<&SnapshotEntry>) -> SnapshotId {
        let any: Vec<SnapshotId> =
            self.known.table.iter().map(|entry| entry.id).chain([SnapshotId(0)]).collect();
        match (self.rng.below(6), like) {
            (0 | 1, Some(like)) => like.id,
            (2 | 3, Some(like)) => like.parent,
            (4, Some(like)) => {
                let above = self.known.table.iter().find(|entry| entry.id == like.parent);
                above.map_or(SnapshotId(0), |above| above.parent)
            }
            _ => self.pick(&any),
        }
    }

    /// The images of a volume that went another way, or that the true source has, under numbers
    /// that may be in use here.
    fn take_another(&mut self, image: &mut Image) {
        let others: Vec<&Known> = self.others.iter().filter(|other| !other.table.is_empty()).collect();
        if others.is_empty() {
            return self.make(image, false);
        }
        let other = others[self.rng.below(others.len() as u64) as usize];
        let strangers: Vec<&SnapshotEntry> = other
            .table
            .iter()
            .filter(|own| self.known.table.iter().all(|here| here.root != own.root))
            .collect();
        let mut chosen: Vec<&SnapshotEntry> = match (strangers.last(), self.rng.below(3)) {
            (None, _) => other.table.last().into_iter().collect(),
            (Some(last), 0 | 1) => vec![last],
            (Some(_), _) => strangers.clone(),
        };
        chosen.truncate(8);
        let mut numbers = BTreeSet::new();
        let mut ids: BTreeMap<SnapshotId, SnapshotId> = BTreeMap::new();
        let like = self.known.table.iter().max_by_key(|entry| entry.root.generation).cloned();
        for entry in chosen {
            let honest = ids.get(&entry.parent).copied().or_else(|| {
                self.known.table.iter().any(|here| here.id == entry.parent).then_some(entry.parent)
            });
            let parent = match self.rng.one_in(2) {
                true => honest.unwrap_or_default(),
                false => self.parent(like.as_ref()),
            };
            let id = self.add(image, entry.root, parent);
            ids.insert(entry.id, id);
            numbers.extend(other.numbers(&entry.root));
        }
        let all = self.rng.one_in(3);
        let own = numbers.into_iter().filter_map(|number| Some((number, other.blocks.get(&number)?.clone())));
        let differs = |number: u64, block: &Block| {
            self.known.blocks.get(&number).is_none_or(|here| here[..] != block[..])
        };
        image.blocks.extend(own.filter(|(number, block)| all || differs(*number, block)));
        image.told.push(format!("{} images of another volume", ids.len()));
    }

    /// Repeats a snapshot here, as a new one.
    fn replay(&mut self, image: &mut Image) {
        let entries = &self.known.table;
        let Some(entry) = entries.get(self.rng.below(entries.len().max(1) as u64) as usize).cloned() else {
            return;
        };
        let unlike: Vec<SnapshotId> =
            entries.iter().filter(|other| !has_same_content(other, &entry)).map(|other| other.id).collect();
        let parent = match unlike.is_empty() || self.rng.one_in(3) {
            true => self.parent(Some(&entry)),
            false => self.pick(&unlike),
        };
        self.add(image, entry.root, parent);
        image.told.push(format!("{} once more, as a child of {parent}", entry.id));
        if !self.rng.one_in(8) {
            let numbers = self.known.numbers(&entry.root).into_iter();
            let blocks = numbers.filter_map(|number| Some((number, self.known.blocks.get(&number)?.clone())));
            image.blocks.extend(blocks);
        }
        if self.rng.one_in(4) {
            return;
        }
        let data = self.known.reached(&entry.root).into_iter().filter(Reached::is_data);
        for number in data.map(|reached| reached.pointer.vbn.0).collect::<Vec<_>>() {
            if let Some(block) = self.known.blocks.get(&number).filter(|_| !self.rng.one_in(3)) {
                let wanted = self.content();
                image.blocks.push((number, twin(&block[..], &wanted[..])));
            }
        }
        image.told.push("twins of its data".to_owned());
    }

    /// An image that it makes itself; a `plain` one is as an honest source would make it.
    fn make(&mut self, image: &mut Image, plain: bool) {
        let mut known = self.known.clone();
        let Some(mut from) = known.table.last().cloned() else { return };
        if self.rng.one_in(2) {
            from = known.table[self.rng.below(known.table.len() as u64) as usize].clone();
        }
        for _ in 0..1 + self.rng.below(4) / 3 {
            let all =
                [Numbers::Free, Numbers::Free, Numbers::Free, Numbers::Kept, Numbers::Same, Numbers::Any];
            let mut numbers = self.pick(&all);
            let mut map =
                self.pick(&[Map::True, Map::True, Map::True, Map::LeavesOut, Map::TooMany, Map::Old]);
            let mut parent = self.parent(Some(&from));
            if plain {
                (numbers, map, parent) = (Numbers::Free, Map::True, from.id);
            }
            let every = 1 + self.rng.below(12);
            let mut rng = self.rng.fork();
            let mut maker = Maker::new(&known, &from.root, numbers, &mut rng, self.tag);
            let root = maker.image(&from.root, every, map);
            let made = std::mem::take(&mut maker.blocks);
            self.left_out.append(&mut maker.left_out);
            drop(maker);
            let id = self.add(image, root, parent);
            image.told.push(format!(
                "made from {} under {numbers:?} numbers, map {map:?}, as a child of {parent}",
                from.id
            ));
            image.blocks.extend(made.iter().map(|(number, block)| (*number, block.clone())));
            known.blocks.extend(made);
            from = image.table[&id].clone();
        }
    }

    /// Other blocks with the checksums of those here.
    fn send_twins(&mut self, image: &mut Image) {
        let mut numbers: Vec<u64> = self.known.blocks.keys().copied().collect();
        if !self.rng.one_in(4) {
            // Of data alone: the effect is other bytes, not an unreadable block.
            let data = self.known.table.iter().flat_map(|entry| self.known.reached(&entry.root));
            numbers = data
                .filter(Reached::is_data)
                .map(|reached| reached.pointer.vbn.0)
                .filter(|vbn| self.known.blocks.contains_key(vbn))
                .collect();
        }
        if numbers.is_empty() {
            return;
        }
        let count = 1 + self.rng.below(TWINS_MAX);
        for _ in 0..count {
            let number = self.pick(&numbers);
            let wanted = self.content();
            image.blocks.push((number, twin(&self.known.blocks[&number][..], &wanted[..])));
        }
        image.told.push(format!("{count} twins"));
    }

    /// Blocks that no tree names.
    fn send_rubbish(&mut self, image: &mut Image) {
        for _ in 0..1 + self.rng.below(20) {
            let number = match self.left_out.is_empty() || self.rng.one_in(2) {
                true => 1 + self.rng.below(self.known.space.max(2) - 1),
                false => self.pick(&self.left_out.clone()),
            };
            let block = self.content();
            image.blocks.push((number, block));
        }
        image.told.push("rubbish".to_owned());
    }

    /// Unchanged blocks.
    fn send_again(&mut self, image: &mut Image) {
        let some = self.known.blocks.iter().filter(|_| self.rng.one_in(4));
        image.blocks.extend(some.map(|(number, block)| (*number, block.clone())));
        image.told.push("blocks again".to_owned());
    }

    /// A lie about the table.
    fn twist(&mut self, image: &mut Image) {
        let ids: Vec<SnapshotId> = image.table.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let (one, other) = (self.pick(&ids), self.pick(&ids));
        let name = self.name();
        let told = match self.rng.below(11) {
            0 => {
                image.table.remove(&one);
                format!("without {one}")
            }
            1 => {
                image.table.retain(|id, _| *id == *ids.last().unwrap_or(id) || self.rng.one_in(2));
                "without many".to_owned()
            }
            2 => {
                entry_of(image, one).name = name;
                format!("{one} renamed")
            }
            3 => {
                entry_of(image, one).name = image.table[&other].name.clone();
                format!("{one} called as {other}")
            }
            4 => {
                let (a, b) = (image.table[&one].name.clone(), image.table[&other].name.clone());
                entry_of(image, one).name = b;
                entry_of(image, other).name = a;
                format!("names of {one} and {other} exchanged")
            }
            5 => {
                entry_of(image, one).root = image.table[&other].root;
                format!("{one} with the root of {other}")
            }
            6 => {
                let (a, b) = (image.table[&one].root, image.table[&other].root);
                entry_of(image, one).root = b;
                entry_of(image, other).root = a;
                format!("roots of {one} and {other} exchanged")
            }
            7 => {
                let parent = [SnapshotId(0), other, SnapshotId(one.0 + 5)][self.rng.below(3) as usize];
                entry_of(image, one).parent = parent;
                format!("{one} as a child of {parent}")
            }
            8 => {
                let held = !image.table[&one].held;
                entry_of(image, one).held = held;
                format!("{one} held: {held}")
            }
            9 => {
                let mut root = image.table[&one].root;
                self.set_off(&mut root);
                entry_of(image, one).root = root;
                format!("numbers of {one} off")
            }
            _ => {
                // It moves to another number.
                let new = SnapshotId(ids.last().map_or(1, |last| last.0 + 1));
                if let Some(entry) = image.table.remove(&one) {
                    image.table.insert(new, SnapshotEntry { id: new, ..entry });
                }
                format!("{one} as {new}")
            }
        };
        image.told.push(told);
    }

    fn set_off(&mut self, root: &mut Root) {
        let odd = self.pick(&[0, 1, 2, u64::from(u32::MAX), 1 << 40, (1 << 62) - 1, 1 << 62]);
        match self.rng.below(8) {
            0 => root.generation = Generation(odd),
            1 => root.next_file = odd,
            2 => root.blocks = odd,
            3 => root.used = odd,
            4 => root.created = Timestamp(odd),
            5 => root.changed = Timestamp(odd),
            6 => root.inode_file.length = odd,
            _ => root.active_map.length = odd,
        }
    }

    /// The stream of an image.
    fn finish(&mut self, mut image: Image) -> (Draft, Vec<String>) {
        let ids: Vec<SnapshotId> = image.table.keys().copied().collect();
        let last = ids.last().copied().unwrap_or(SnapshotId(1));
        let mut target = last;
        if self.rng.one_in(16) && !ids.is_empty() {
            target = self.pick(&ids);
            if self.rng.one_in(2) {
                image.table.retain(|id, _| *id <= target);
            }
            image.told.push(format!("target {target}"));
        }
        let here: BTreeMap<SnapshotId, &SnapshotEntry> =
            self.known.table.iter().map(|entry| (entry.id, entry)).collect();
        let all = self.rng.one_in(4);
        let put = image.table.values().filter(|entry| all || here.get(&entry.id) != Some(entry));
        let mut put: Vec<SnapshotEntry> = put.cloned().collect();
        let gone: Vec<SnapshotId> = here.keys().copied().filter(|id| !image.table.contains_key(id)).collect();
        if self.rng.one_in(8) {
            put.reverse();
        }
        let table: Vec<SnapshotEntry> = image.table.into_values().collect();
        let digest = table.iter().find(|entry| entry.id == target).map(root_digest).unwrap_or_default();
        let base = match self.rng.below(6) {
            0 => None,
            1 => self.known.table.first(),
            _ => self.known.table.last(),
        };
        let space = if self.rng.one_in(40) { self.rng.below(1 << 20) } else { self.known.space };
        let header = StreamHeader {
            volume: VOLUME,
            kind: if base.is_some() { StreamKind::Incremental } else { StreamKind::Full },
            base: base.map_or(SnapshotId(0), |base| base.id),
            base_digest: base.map_or(Checksum::default(), root_digest),
            target,
            target_digest: if self.rng.one_in(24) { Checksum([3; 16]) } else { digest },
            space_blocks: space,
            changed_blocks: 0,
            created: Timestamp(self.rng.next()),
        };
        match self.rng.below(3) {
            0 => image.blocks.sort_by_key(|(number, _)| *number),
            1 => shuffle(&mut image.blocks, self.rng),
            _ => {}
        }
        let draft = Draft {
            header,
            blocks: image.blocks,
            put,
            gone,
            table,
            flaw: Flaw::None,
            record_blocks: 1 + self.rng.below(60) as usize,
            lists_first: self.rng.one_in(4),
        };
        (draft, image.told)
    }
}

fn has_same_content(one: &SnapshotEntry, other: &SnapshotEntry) -> bool {
    one.root.inode_file == other.root.inode_file
}

fn entry_of(image: &mut Image, id: SnapshotId) -> &mut SnapshotEntry {
    image.table.get_mut(&id).expect("it was picked from this table")
}

fn shuffle<T>(list: &mut [T], rng: &mut Rng) {
    for at in (1..list.len()).rev() {
        list.swap(at, rng.below(at as u64 + 1) as usize);
    }
}
