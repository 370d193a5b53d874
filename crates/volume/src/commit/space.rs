//! Where the blocks of a volume are on its device: segments and redirects.

use std::collections::BTreeMap;

use cairn_base::{BLOCK_SIZE, Vbn};
use cairn_format::{HaveBlock, Layout, RedirectRun, Segment, SegmentKind, layout};

/// Finds the place of a block number on the device.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    segments: Vec<Segment>,
}

impl Space {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self { segments: layout.segments.clone() }
    }

    /// Bytes from the start of the device for block `number` of `kind`, and how many blocks follow
    /// it there without a break (itself included); `None` past the end.
    pub(crate) fn locate(&self, kind: SegmentKind, number: u64) -> Option<(u64, u64)> {
        self.segments.iter().find(|s| s.kind == kind && number >= s.first && number - s.first < s.blocks).map(
            |s| {
                let within = number - s.first;
                ((s.device_block + within) * BLOCK_SIZE as u64, s.blocks - within)
            },
        )
    }

    /// Bytes from the start of the device where `vbn` is read.
    pub(crate) fn place_of(&self, vbn: Vbn, redirects: &Redirects) -> Option<u64> {
        let slot = if redirects.is_empty() { None } else { redirects.get(vbn) };
        let (kind, number) = match slot {
            Some(slot) => (SegmentKind::Redirect, slot),
            None => (SegmentKind::Space, vbn.0),
        };
        self.locate(kind, number).map(|(offset, _)| offset)
    }

    /// Where `count` blocks from `first` on are (bytes from the start of the device, and blocks),
    /// equal to [`Space::place_of`] for each where there are no redirects.
    pub(crate) fn places_of_run(
        &self,
        (first, count): (Vbn, u64),
    ) -> impl Iterator<Item = Option<(u64, u64)>> {
        let (mut next, end) = (first.0, first.0 + count);
        std::iter::from_fn(move || {
            (next < end).then(|| {
                let place = self.locate(SegmentKind::Space, next);
                let blocks = place.map_or(end - next, |(_, blocks)| blocks.min(end - next));
                next += blocks;
                place.map(|(offset, _)| (offset, blocks))
            })
        })
    }

    /// Blocks of `kind` in all.
    pub(crate) fn blocks(&self, kind: SegmentKind) -> u64 {
        self.segments.iter().filter(|s| s.kind == kind).map(|s| s.blocks).sum()
    }
}

/// The layout of a fresh device for a block space of `blocks`, with a redirect area and a have map
/// for a destination.
pub(crate) fn fresh_layout(blocks: u64, destination: bool) -> Layout {
    let label_blocks = layout::label_blocks(blocks);
    let mut fresh = Layout {
        label_start: layout::LABEL_START,
        label_blocks,
        log_start: layout::LABEL_START + label_blocks,
        log_blocks: layout::log_blocks(blocks),
        segments: vec![Segment {
            kind: SegmentKind::Space,
            first: 0,
            blocks,
            device_block: layout::space_start(blocks),
        }],
    };
    if destination {
        append_segment(&mut fresh, SegmentKind::Have, have_blocks(blocks));
        append_segment(&mut fresh, SegmentKind::Redirect, blocks);
    }
    fresh
}

/// Blocks of have map for a block space of `blocks`.
pub(crate) fn have_blocks(blocks: u64) -> u64 {
    blocks.div_ceil(HaveBlock::ENTRIES)
}

/// Adds `blocks` of `kind` at the end of the device, joined to the last segment where both kind and
/// place allow.
pub(crate) fn append_segment(layout: &mut Layout, kind: SegmentKind, blocks: u64) {
    let first = layout.segments.iter().filter(|s| s.kind == kind).map(|s| s.blocks).sum();
    let end = device_blocks(layout);
    match layout.segments.last_mut() {
        Some(last) if last.kind == kind => last.blocks += blocks,
        _ => layout.segments.push(Segment { kind, first, blocks, device_block: end }),
    }
}

/// Adds `more` blocks of block space, and of the areas of a destination if it has them.
///
/// A superblock names few segments, and a source may grow often. The first added segment has the
/// kind of the last existing one, so that they join, and a have map grows to at least twice its
/// size.
pub(crate) fn grow_layout(layout: &mut Layout, more: u64) {
    let blocks_of = |layout: &Layout, kind| -> u64 {
        layout.segments.iter().filter(|s| s.kind == kind).map(|s| s.blocks).sum()
    };
    let (have, need) =
        (blocks_of(layout, SegmentKind::Have), have_blocks(blocks_of(layout, SegmentKind::Space) + more));
    let redirects = blocks_of(layout, SegmentKind::Redirect) > 0;
    let (first, last) = match layout.segments.last().map(|last| last.kind) {
        Some(SegmentKind::Redirect) => (SegmentKind::Redirect, Some(SegmentKind::Space)),
        _ => (SegmentKind::Space, redirects.then_some(SegmentKind::Redirect)),
    };
    append_segment(layout, first, more);
    if have > 0 && need > have {
        append_segment(layout, SegmentKind::Have, (need - have).max(have));
    }
    if let Some(last) = last {
        append_segment(layout, last, more);
    }
}

/// Adds the areas that a destination has in addition to block space, if they are missing.
pub(crate) fn add_destination_areas(layout: &mut Layout) {
    let blocks_of = |layout: &Layout, kind| -> u64 {
        layout.segments.iter().filter(|s| s.kind == kind).map(|s| s.blocks).sum()
    };
    let space = blocks_of(layout, SegmentKind::Space);
    for (kind, need) in [(SegmentKind::Have, have_blocks(space)), (SegmentKind::Redirect, space)] {
        let missing = need.saturating_sub(blocks_of(layout, kind));
        if missing > 0 {
            append_segment(layout, kind, missing);
        }
    }
}

/// Bytes from the start of the device that have everything but the block space: superblocks, tables
/// and the intent log of the label area.
pub(crate) fn label_bytes(layout: &Layout) -> u64 {
    (layout.log_start + layout.log_blocks) * BLOCK_SIZE as u64
}

/// Blocks of device that `layout` needs.
pub(crate) fn device_blocks(layout: &Layout) -> u64 {
    let fixed = layout.log_start + layout.log_blocks;
    layout.segments.iter().map(|s| s.device_block + s.blocks).max().unwrap_or(fixed)
}

/// Blocks whose content is in the redirect area instead of at home (a destination's collisions).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Redirects {
    /// By first vbn: count and first slot.
    runs: BTreeMap<u64, (u64, u64)>,
}

impl Redirects {
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(crate) fn insert(&mut self, run: RedirectRun) {
        if let Some((first, (count, slot))) = self.runs.range_mut(..run.vbn.0).next_back()
            && first + *count == run.vbn.0
            && *slot + *count == run.slot
        {
            *count += run.count;
            return;
        }
        self.runs.insert(run.vbn.0, (run.count, run.slot));
    }

    /// The slot that holds `vbn`.
    pub(crate) fn get(&self, vbn: Vbn) -> Option<u64> {
        let (first, (count, slot)) = self.runs.range(..=vbn.0).next_back()?;
        (vbn.0 - first < *count).then(|| slot + (vbn.0 - first))
    }

    /// Takes `vbn` out; true if it was in.
    pub(crate) fn remove(&mut self, vbn: Vbn) -> bool {
        let Some((&first, &(count, slot))) = self.runs.range(..=vbn.0).next_back() else {
            return false;
        };
        let within = vbn.0 - first;
        if within >= count {
            return false;
        }
        self.runs.remove(&first);
        if within > 0 {
            self.runs.insert(first, (within, slot));
        }
        if within + 1 < count {
            self.runs.insert(vbn.0 + 1, (count - within - 1, slot + within + 1));
        }
        true
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = RedirectRun> + '_ {
        self.runs.iter().map(|(vbn, (count, slot))| RedirectRun {
            vbn: Vbn(*vbn),
            slot: *slot,
            count: *count,
        })
    }

    /// Every redirected vbn with its slot.
    pub(crate) fn each(&self) -> impl Iterator<Item = (Vbn, u64)> + '_ {
        self.iter().flat_map(|run| (0..run.count).map(move |n| (Vbn(run.vbn.0 + n), run.slot + n)))
    }
}

/// Blocks of an active map over `blocks` of block space.
pub(crate) fn map_blocks(blocks: u64) -> u64 {
    blocks.div_ceil(cairn_format::layout::BITS_PER_MAP_BLOCK)
}
