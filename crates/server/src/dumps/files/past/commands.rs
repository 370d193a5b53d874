//! Commands on the records of dumps of files: the methods of the server for them.

use std::sync::atomic::Ordering;

use cairn_base::Timestamp;
use cairn_volume::Snapshot;

use crate::daemon::server::Server;
use crate::dumps::files::{FileDumpsDocument, Record};
use crate::error::ServerError;
use crate::state;
use crate::volumes::open::OpenVolume;

impl Server {
    /// The volume is rolled back to a snapshot next: dumps of younger states lose their dates.
    pub(crate) fn forget_dumps_past(
        &self,
        open: &OpenVolume,
        snapshot: &Snapshot,
    ) -> Result<(), ServerError> {
        let _turn = open.dates.lock();
        self.retain_dumps(open, |record| !record.is_past(snapshot))
    }

    /// Runs a change that takes the volume back to an earlier instant: dumps made since then lose
    /// their dates, and a running one gets none.
    pub(crate) fn forget_dumps_since<T>(
        &self,
        open: &OpenVolume,
        then: Timestamp,
        bring_back: impl FnOnce() -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let second = then.0 / 1_000_000_000;
        // Held to the end: a dump that completes meanwhile would record its date after this.
        let _turn = open.dates.lock();
        self.retain_dumps(open, |record| u64::from(record.date) < second)?;
        let brought_back = bring_back();
        // Also if it has failed after that, as when the volume does not open there.
        let is_the_same = self.volumes.get(&open.name).is_ok_and(|now| std::ptr::eq(&*now, open));
        if !is_the_same {
            open.brought_back_to.store(second, Ordering::Release);
        }
        brought_back
    }

    /// The dates are locked.
    fn retain_dumps(&self, open: &OpenVolume, stays: impl Fn(&Record) -> bool) -> Result<(), ServerError> {
        let path = self.dates_path(&open.name);
        let Some(mut document) = state::load::<FileDumpsDocument>(&path)? else { return Ok(()) };
        let before = document.dates.len();
        document.dates.retain(stays);
        if document.dates.len() == before { Ok(()) } else { state::save(&path, &document) }
    }
}
