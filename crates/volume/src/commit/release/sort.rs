//! Which images show blocks of unknown birth, according to their maps.

use std::collections::BTreeMap;

use cairn_base::Vbn;

use super::{Mask, Release, bit_of};
use crate::read::compare::Maps;
use crate::volume::Volume;

impl Volume {
    /// Finds out by the maps which images show blocks of unknown birth; those that none shows are
    /// free at once. The caller holds `commit`.
    pub(crate) fn sort_releases(&self) {
        loop {
            let (id, blocks, readers) = {
                let state = self.state.lock();
                let Some(release) = state.releases.list.iter().find(|release| !release.sorted) else {
                    return;
                };
                (release.id, release.blocks.clone(), release.readers.clone())
            };
            let mut masks: Vec<Mask> = vec![0; blocks.len()];
            for (index, reader) in readers.iter().enumerate() {
                // A short reader may read all of them, and a map that can't be read holds
                // everything back.
                let mut shown = vec![true; blocks.len()];
                if !reader.is_short() {
                    // One that was closed meanwhile needs nothing.
                    let Some(root) = reader.upgrade() else { continue };
                    let maps = Maps { store: &self.store, redirects: &root.redirects };
                    shown = maps.holds(&root.root, &blocks).unwrap_or(shown);
                }
                for (mask, _) in masks.iter_mut().zip(shown).filter(|(_, shown)| *shown) {
                    *mask |= bit_of(index);
                }
            }
            let mut groups: BTreeMap<Mask, Vec<Vbn>> = BTreeMap::new();
            for (mask, vbn) in masks.into_iter().zip(blocks) {
                groups.entry(mask).or_default().push(vbn);
            }
            let mut state = self.state.lock();
            // Meanwhile all of its readers may have ended and the blocks may have a new owner. Or
            // its images have ended and others have joined it.
            let still = |release: &Release| release.id == id && !release.sorted;
            let Some(at) = state.releases.list.iter().position(still) else { continue };
            state.releases.list.remove(at);
            state.releases.add_groups(&readers, groups);
            state.settle_releases();
        }
    }
}
