//! SnapshotMetadata: the blocks of a snapshot, and the blocks that differ between two.
//!
//! The server compares the trees of the disk in both snapshots, at a cost proportional to the
//! changes. Ranges are whole blocks of 4 KiB, except at the end of the disk, in order, and in
//! pages.

use cairn_api as api;
use cairn_proto_csi::v1;
use tonic::Status;

use super::Controller;
use super::requests::{check_there, signed};
use crate::errors::status;

/// Ranges in a message, unless the client wants less.
const PAGE: u32 = 4096;
/// Offset past every disk: a page from there has only the size.
const PAST_ALL: u64 = i64::MAX as u64;

/// A question about ranges of a snapshot, and the place of its next page.
#[derive(Debug)]
pub(crate) struct Ranges {
    volume: String,
    since: Option<String>,
    until: String,
    offset: Option<u64>,
    limit: u32,
}

impl Controller {
    /// Begins to list the blocks of a snapshot.
    pub(crate) fn allocated(&self, asked: &v1::GetMetadataAllocatedRequest) -> Result<Ranges, Status> {
        self.begin(None, &asked.snapshot_id, asked.starting_offset, asked.max_results)
    }

    /// Begins to list the blocks that differ between two snapshots of a volume.
    pub(crate) fn delta(&self, asked: &v1::GetMetadataDeltaRequest) -> Result<Ranges, Status> {
        check_there(&asked.base_snapshot_id, "base snapshot id")?;
        let base = Some(asked.base_snapshot_id.as_str());
        self.begin(base, &asked.target_snapshot_id, asked.starting_offset, asked.max_results)
    }

    fn begin(&self, base: Option<&str>, target: &str, offset: i64, max: i32) -> Result<Ranges, Status> {
        check_there(target, "snapshot id")?;
        let limit =
            u32::try_from(max).map_err(|_| Status::invalid_argument("the number of results is negative"))?;
        let offset = u64::try_from(offset).map_err(|_| Status::out_of_range("the offset is negative"))?;
        let (volume, until) = self.existing(target)?;
        let since = match base {
            None => None,
            Some(base) => {
                let (of, since) = self.existing(base)?;
                if of != volume {
                    let message = format!("{base} and {target} are snapshots of different volumes");
                    return Err(Status::invalid_argument(message));
                }
                Some(since)
            }
        };
        let bytes = self.bytes_in(&volume, &until)?;
        if offset > bytes {
            return Err(Status::out_of_range(format!("the offset is past the end of the disk at {bytes}")));
        }
        let limit = if limit == 0 { PAGE } else { limit.min(PAGE) };
        Ok(Ranges { volume, since, until, offset: Some(offset), limit })
    }

    fn existing(&self, id: &str) -> Result<(String, String), Status> {
        let absent = || Status::not_found(format!("there is no snapshot {id}"));
        let (volume, snapshot) = self.options.prefix.snapshot(id).ok_or_else(absent)?;
        match self.cairn.snapshots(volume)?.iter().any(|one| one.name == id) {
            true => Ok((volume.to_owned(), snapshot.to_owned())),
            false => Err(absent()),
        }
    }

    /// The next page: the size of the disk, and ranges. None after the last page.
    pub(crate) fn next_page(&self, of: &mut Ranges) -> Result<Option<(i64, Vec<v1::BlockMetadata>)>, Status> {
        let Some(offset) = of.offset.filter(|offset| *offset < PAST_ALL) else { return Ok(None) };
        let since = of.since.as_deref();
        let found = self.cairn.ranges(&of.volume, since, Some(&of.until), offset, of.limit);
        let api::ChangedRanges { size_bytes, ranges, next } = found.map_err(|error| status(&error))?;
        // A page that does not lead on would be sent for ever.
        if next.is_some_and(|next| next <= offset) {
            return Err(Status::internal("the server repeats a page of ranges"));
        }
        of.offset = next;
        let shown = |range: api::ChangedRange| v1::BlockMetadata {
            byte_offset: signed(range.offset),
            size_bytes: signed(range.bytes),
        };
        Ok(Some((signed(size_bytes), ranges.into_iter().map(shown).collect())))
    }
}
