//! Reads the newest image of a mirror in its bucket, and compares it with its snapshot here.
//!
//! Every region that the image names is read whole, and every digest is checked. If the snapshot of
//! the image exists here, each of its blocks is compared as well. The next update puts the regions
//! of damaged objects again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cairn_api as api;
use cairn_base::{BLOCK_SIZE, SnapshotId};
use cairn_bucket::Trouble;
use cairn_bucket::images::{ImagesError, RegionBlocks, VolumeImage, has_snapshot};

use super::working::Failure;
use super::{BucketMirror, BucketMirrors};
use crate::volumes::open::OpenVolume;
use crate::work::jobs::Progress;

/// Damaged objects that are named.
const NAMED_MAX: usize = 100;
/// Regions that are read at the same time.
const AT_ONCE: usize = 8;

impl BucketMirrors {
    /// See the module.
    pub(super) fn read_all(
        &self,
        mirror: &BucketMirror,
        open: &Arc<OpenVolume>,
        progress: &Progress,
    ) -> Result<api::BucketVerify, Failure> {
        let (began, started_ms, cancel) = (self.clock.monotonic(), self.now_ms(), progress.cancel_flag());
        progress.phase("opening the image");
        let document = mirror.document.lock().clone();
        let bucket = self.open_bucket(mirror, "it is verified")?;
        let seen = document.seen.map(Into::into);
        let images = document.place().images(&bucket, open.volume.id(), seen)?;
        let reader = images.image(None, cancel)?;
        let label = reader.label();
        let target = SnapshotId(label.number);
        let entries = open.volume.snapshot_entries();
        let is_here = |entry: &&cairn_format::SnapshotEntry| {
            entry.id == target && has_snapshot(reader.content(), entry)
        };
        // It holds the snapshot from here on.
        let local = match entries.iter().any(|entry| is_here(&entry)) {
            true => Some(VolumeImage::new(&open.volume, &[], target)?),
            false => None,
        };
        let stored: HashMap<u32, u32> = reader.regions().collect();
        let mut regions: BTreeSet<u32> = stored.keys().copied().collect();
        if let Some(local) = &local {
            // Without a base, every region with a block has a changed block.
            regions.extend(local.changed_regions());
        }
        let regions: Vec<u32> = regions.into_iter().collect();
        let total: u64 = stored.values().map(|bytes| u64::from(*bytes)).sum();
        let mut verified = api::BucketVerify {
            name: mirror.name(),
            started_ms,
            image: label.id.to_string(),
            image_ms: label.taken.0 / 1_000_000,
            regions: stored.len() as u64,
            ..api::BucketVerify::default()
        };
        let mut repairs = BTreeSet::new();
        progress.phase("reading the image");
        for some in regions.chunks(AT_ONCE) {
            for (region, read) in some.iter().zip(reader.read_regions(some, cancel)) {
                match read {
                    Ok(blocks) => {
                        if let Some(local) = &local {
                            let found = compare(&local.region(*region)?, &blocks);
                            verified.compared_bytes += found.compared * BLOCK_SIZE as u64;
                            verified.contradictions += found.differing + found.missing;
                            // The blocks here may be the wrong ones: they replace no others.
                            if found.missing > 0 && found.differing == 0 {
                                repairs.insert(*region);
                            }
                        }
                    }
                    Err(ImagesError::NoBlock(_)) => {
                        let lacking = local.as_ref().map(|local| local.region(*region)).transpose()?;
                        verified.contradictions += lacking.map_or(0, |blocks| blocks.len() as u64);
                        repairs.insert(*region);
                    }
                    Err(
                        error @ (ImagesError::Damaged { .. }
                        | ImagesError::Gone(_)
                        | ImagesError::Newer { .. }),
                    ) => {
                        verified.damaged_total += 1;
                        if verified.damaged.len() < NAMED_MAX {
                            verified.damaged.push(error.to_string());
                        }
                        repairs.insert(*region);
                    }
                    // Its neighbours are read all the same.
                    Err(ImagesError::Store(error)) if matches!(error.trouble, Trouble::Archived) => {
                        verified.damaged_total += 1;
                        if verified.damaged.len() < NAMED_MAX {
                            verified.damaged.push(error.to_string());
                        }
                        repairs.insert(*region);
                    }
                    Err(error) => return Err(error.into()),
                }
                verified.read_bytes += u64::from(stored.get(region).copied().unwrap_or(0));
            }
            progress.bytes(verified.read_bytes, total);
        }
        verified.duration_ms = self.clock.monotonic().saturating_sub(began).as_millis() as u64;
        self.change(mirror, |document| {
            document.verified = Some(verified.clone());
            // A later update may have put them again already: then they are put once more.
            document.repairs = repairs;
            Ok(())
        })?;
        Ok(verified)
    }
}

/// Blocks of a region.
struct Compared {
    compared: u64,
    differing: u64,
    missing: u64,
}

fn compare(here: &RegionBlocks, there: &RegionBlocks) -> Compared {
    let stored: HashMap<usize, &[u8]> = there.iter().collect();
    let mut found = Compared { compared: here.len() as u64, differing: 0, missing: 0 };
    for (place, block) in here.iter() {
        match stored.get(&place) {
            Some(other) if *other == block => {}
            Some(_) => found.differing += 1,
            None => found.missing += 1,
        }
    }
    found
}
