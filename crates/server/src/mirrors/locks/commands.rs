//! Commands on locks: the methods of the server for them.

use std::time::Duration;

use cairn_api as api;
use subtle::ConstantTimeEq;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::locks::{LIFTED_MS, digest};
use crate::mirrors::role_error::RoleError;

impl Server {
    /// Lifts the locks of a mirror for a while, for a holder of its lock key.
    pub(crate) fn unlock_mirror(
        &self,
        name: &str,
        request: &api::UnlockMirror,
    ) -> Result<api::Mirror, ServerError> {
        let relation = self.mirrors.get(name)?;
        let kept = relation.document.lock().lock_key.clone();
        let kept = kept.ok_or_else(|| RoleError::NoLockKey { volume: name.to_owned() })?;
        let given = digest(&request.lock_key)?.unwrap_or_default();
        if !bool::from(given.as_bytes().ct_eq(kept.as_bytes())) {
            return Err(RoleError::WrongLockKey { volume: name.to_owned() }.into());
        }
        let lifted = Duration::from_millis(request.for_ms.unwrap_or(LIFTED_MS));
        relation.destination.lift_locks(lifted);
        tracing::warn!(mirror = name, seconds = lifted.as_secs(), "its locks are lifted with the lock key");
        Ok(self.mirrors.show(&relation))
    }
}
