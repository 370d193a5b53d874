//! A volume whose history is older than what its server has seen of it: it stays closed until the
//! store is there again, or its owner takes it as it is.

use cairn_api as api;
use cairn_history::HistoryError;

use super::Volumes;
use crate::devices::error::DevicesError;
use crate::error::ServerError;
use crate::storage::seen::Seen;
use crate::volumes::disks::BUSY_PATIENCE;
use crate::volumes::under::seen_path;

impl Volumes {
    /// Takes a store that is older than it was for that of the volume's history, by its owner's
    /// word, or only says what that is.
    ///
    /// # Errors
    /// [`DevicesError::NotOlder`] where there is nothing to take, and what else keeps the volume
    /// closed.
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
        tracing::warn!(volume = name, %reason, "the older store of a history was taken as it is");
        self.put(name, &Ok(open));
        self.open_clones_of(name);
        Ok(answer)
    }
}
