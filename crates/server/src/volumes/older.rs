//! A volume whose history is older than the last state that its server has seen: it stays closed
//! until the newer store is back, or its owner accepts the older one.

use cairn_api as api;
use cairn_history::HistoryError;

use super::Volumes;
use crate::devices::error::DevicesError;
use crate::error::ServerError;
use crate::storage::seen::Seen;
use crate::volumes::disks::BUSY_PATIENCE;
use crate::volumes::under::seen_path;

impl Volumes {
    /// Accepts an older store of the volume's history on its owner's command, or only reports its
    /// state.
    ///
    /// # Errors
    /// [`DevicesError::NotOlder`] if the store is not older, and any other error that keeps the
    /// volume closed.
    pub(crate) fn accept_older(&self, name: &str, dry_run: bool) -> Result<api::AcceptedOlder, ServerError> {
        let _turn = self.turns.take(&[name], "it is being opened with an older history")?;
        let reason = match self
            .still_closed(name, &|| ServerError::Devices(DevicesError::NotOlder { name: name.to_owned() }))?
        {
            reason @ ServerError::Devices(DevicesError::History {
                source: HistoryError::StoreOlder { .. },
                ..
            }) => reason,
            other => return Err(other),
        };
        let beneath = self.document(name)?.history.ok_or(ServerError::Bug)?;
        let answer = api::AcceptedOlder {
            name: name.to_owned(),
            store: beneath.store().display().to_string(),
            reason: reason.to_string(),
            dry_run,
        };
        if dry_run {
            return Ok(answer);
        }
        let path = seen_path(&self.folder(name));
        Seen::forget(&path).map_err(ServerError::path("remove", &path))?;
        let open = self.open_one(name, BUSY_PATIENCE)?;
        tracing::warn!(volume = name, %reason, "accepted the older store of a history");
        self.put(name, &Ok(open));
        self.open_clones_of(name);
        Ok(answer)
    }
}
