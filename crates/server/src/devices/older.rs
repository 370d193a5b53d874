//! A device whose store is older than the last state that its server has seen: it stays closed
//! until the newer store is back, or its owner accepts the older one.

use cairn_api as api;
use cairn_history::HistoryError;

use super::{DeviceState, Devices};
use crate::daemon::error::DaemonError;
use crate::devices::error::DevicesError;
use crate::devices::open::DeviceDocument;
use crate::error::ServerError;
use crate::storage::seen::Seen;

impl Devices {
    /// Accepts an older store of a device on its owner's command, or only reports its state.
    ///
    /// # Errors
    /// [`DevicesError::NotOlder`] if the store is not older, and any other error that keeps the
    /// device closed.
    pub(crate) fn accept_older(&self, name: &str, dry_run: bool) -> Result<api::AcceptedOlder, ServerError> {
        let _turn = self.turns.take(&[name], "it is being opened with an older history")?;
        let document = self.closed_with_history(name)?;
        // The recorded reason may be from the last start.
        let reason = match self.start(name, &document) {
            Ok(entry) => {
                self.entries.write().insert(name.to_owned(), entry);
                return Err(ServerError::Devices(DevicesError::NotOlder { name: name.to_owned() }));
            }
            Err(
                reason @ ServerError::Devices(DevicesError::History {
                    source: HistoryError::StoreOlder { .. },
                    ..
                }),
            ) => reason,
            Err(other) => return Err(other),
        };
        let store = document.history.as_ref().map(ToString::to_string).unwrap_or_default();
        let answer = api::AcceptedOlder { name: name.to_owned(), store, reason: reason.to_string(), dry_run };
        if dry_run {
            return Ok(answer);
        }
        let path = self.seen_path(name);
        Seen::forget(&path).map_err(ServerError::path("remove", &path))?;
        let entry = self.start(name, &document)?;
        tracing::warn!(device = name, %reason, "accepted the older store of a history");
        self.entries.write().insert(name.to_owned(), entry);
        Ok(answer)
    }

    /// The document of a device with a history that could not be opened.
    fn closed_with_history(&self, name: &str) -> Result<DeviceDocument, ServerError> {
        if let Some(DeviceState::Unavailable(document, error)) = self.entries.read().get(name)
            && document.history.is_some()
            && !matches!(**error, ServerError::Daemon(DaemonError::StateUnread { .. }))
        {
            return Ok(document.clone());
        }
        self.get(name)?;
        Err(ServerError::Devices(DevicesError::NotOlder { name: name.to_owned() }))
    }

    /// A history that is gone is not looked for again; another one has another name.
    pub(super) fn forget_seen(&self, name: &str) {
        if let Err(error) = Seen::forget(&self.seen_path(name)) {
            tracing::warn!(device = name, %error, "could not remove the saved position of a removed history");
        }
    }
}
