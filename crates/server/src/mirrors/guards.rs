//! Access to the LUNs of a mirror without settings of its owner: the same as at its source.
//!
//! The settings are queried once a minute, before a mirror shows its first image, and before a
//! planned takeover. They are saved, so that they apply when the source is gone.

use std::sync::Arc;
use std::time::Duration;

use cairn_mirror::{LunAccess, MirrorError, Refusal};

use super::{Mirrors, Relation};
use crate::error::ServerError;
use crate::mirrors::error::MirrorsError;
use crate::peers::stall::is_late;

/// Interval at which the source is queried.
const ASK_EVERY: Duration = Duration::from_secs(60);

impl Mirrors {
    /// The settings for the LUNs of a volume here, as sent to its mirrors.
    pub(crate) fn access_of(&self, volume: &str) -> Result<Vec<LunAccess>, ServerError> {
        self.access.of_volume(volume)
    }

    /// Queries the source for the access to its LUNs, and stores it. Sessions with LUNs whose
    /// settings changed are closed, as their negotiated parameters no longer hold.
    fn ask_access(&self, relation: &Relation) -> Result<(), ServerError> {
        let volume = relation.document.lock().volume.clone();
        let luns = self.talk(relation, |client| client.access(&volume))?;
        if relation.is_failed_over() {
            return Ok(());
        }
        let changed = self.access.take_over(&relation.name, &luns)?;
        let closed: usize = changed.iter().map(|export| self.close_disk(export)).sum();
        if closed > 0 {
            tracing::info!(mirror = relation.name, closed, "its source has changed the access to its LUNs");
        }
        Ok(())
    }

    /// The same for a mirror that shows an image. If it fails, the earlier settings still apply.
    pub(super) fn hear_access(&self, relation: &Relation) {
        if let Err(error) = self.ask_access(relation) {
            tracing::debug!(mirror = relation.name, %error, "could not refresh the access settings from its source");
        }
    }

    /// The same before an image is shown: no client sees an image whose access settings are
    /// unknown.
    pub(super) fn hear_access_first(&self, relation: &Relation) -> Result<(), ServerError> {
        match self.ask_access(relation) {
            Err(error) if has_hung_up(&error) => {
                tracing::warn!(mirror = relation.name, %error, "its source does not report the access to its LUNs, as it has an older version: set it here with `cairn export set`");
                Ok(())
            }
            Err(error) if is_unknown(&error) => {
                Err(ServerError::Mirrors(MirrorsError::AccessUnknown { volume: relation.name.clone() }))
            }
            asked => asked,
        }
    }

    /// The same on a thread of its own, when it is due.
    pub(super) fn ask_for_access(self: &Arc<Self>, relation: &Arc<Relation>) {
        if relation.is_failed_over() || relation.refuse_without_source().is_err() {
            return;
        }
        {
            let now = self.clock.monotonic();
            let mut live = relation.live.lock();
            if live.access_asked.is_some_and(|asked| now.saturating_sub(asked) < ASK_EVERY) {
                return;
            }
            live.access_asked = Some(now);
        }
        let (mirrors, mine) = (self.clone(), relation.clone());
        let ask = move || mirrors.hear_access(&mine);
        if let Err(error) = std::thread::Builder::new().name("access".to_owned()).spawn(ask) {
            tracing::warn!(mirror = relation.name, %error, "the access settings of its source are not queried");
        }
    }

    /// Removes the settings of a deleted mirror, from its source and from here. Another one that
    /// gets its name must not be open to its clients.
    pub(super) fn forget_access(&self, name: &str) {
        if let Err(error) = self.access.forget_volume(name) {
            tracing::warn!(mirror = name, %error, "could not remove the access settings of a deleted mirror");
        }
    }
}

/// Whether a source ended the conversation without a word, as one does that does not know the
/// question.
fn has_hung_up(error: &ServerError) -> bool {
    let ServerError::Mirrors(MirrorsError::Mirror { source, .. }) = error else { return false };
    matches!(&**source, MirrorError::Io(error) if !is_late(error))
}

/// Whether a source does not know it itself.
fn is_unknown(error: &ServerError) -> bool {
    let ServerError::Mirrors(MirrorsError::Mirror { source, .. }) = error else { return false };
    matches!(**source, MirrorError::Refused(Refusal::SourceFailed))
}

#[cfg(test)]
mod tests;
