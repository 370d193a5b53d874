//! Commands on changes: the methods of the server for it.

use cairn_api as api;
use cairn_files::LunInfo;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::exports::changed::{Changed, PAGE_RANGES, PAGE_RANGES_MAX, page};

impl Server {
    /// The ranges of a LUN that changed between a snapshot and another one, or now; or, without the
    /// first one, all that have blocks. A page of them.
    pub(crate) fn changed_ranges(
        &self,
        volume: &str,
        lun: &str,
        query: &api::ChangedQuery,
    ) -> Result<api::ChangedRanges, ServerError> {
        let limit = query.limit.unwrap_or(PAGE_RANGES) as usize;
        if limit == 0 || limit > PAGE_RANGES_MAX {
            return Err(ServerError::Invalid {
                fault: "the limit is not between 1 and 100,000 ranges",
                next: "ask for 1 to 100,000 ranges",
            });
        }
        let open = self.volumes.get(volume)?;
        let failed = ServerError::volume(volume);
        let name = format!("{volume}/{lun}");
        let of_lun = ServerError::files(&name);
        let named = |name: &str| open.volume.snapshot_named(name).ok_or_else(|| open.no_snapshot(name));
        query.since.as_deref().map(named).transpose()?;
        let until = query.until.as_deref().map(named).transpose()?;
        let image = until.as_ref().map(|until| open.volume.image(Some(until.id))).transpose();
        let image = image.map_err(&failed)?;
        let found = match &image {
            Some(image) => open.luns.find_in(image, lun),
            None => open.luns.find(lun),
        };
        let LunInfo { file, bytes, .. } = found.map_err(&of_lun)?;
        let until = until.map(|until| until.id);
        let changed = match image {
            Some(image) => Changed::of_image(open.clone(), file, image),
            None => Changed::of_present(open.clone(), file),
        };
        let id = open.volume.id();
        if let Some((of, lun, up_to, answer)) = &*self.changed.0.lock()
            && (*of, *lun, *up_to) == (id, file, until)
        {
            *changed.last.lock() = Some(answer.clone());
        }
        let runs = changed.runs(query.since.as_deref()).map_err(&failed)?;
        *self.changed.0.lock() = changed.last.into_inner().map(|answer| (id, file, until, answer));
        Ok(page(&runs, bytes, query.offset.unwrap_or(0), limit))
    }
}
