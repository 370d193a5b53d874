//! Commands on hooks: the methods of the server for them.

use cairn_api as api;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::schedules::hooks::TIMEOUT_MAX;
use crate::state;

impl Server {
    /// The hooks of a volume.
    pub(crate) fn show_hooks(&self, volume: &str) -> Result<api::Hooks, ServerError> {
        Ok(self.volumes.get(volume)?.hooks.show(volume))
    }

    /// Changes the hooks; missing fields stay unchanged, and an empty command removes a hook.
    pub(crate) fn set_hooks(&self, volume: &str, set: &api::SetHooks) -> Result<api::Hooks, ServerError> {
        let open = self.volumes.get(volume)?;
        state::refuse_unread(open.hooks.unread.lock().as_ref())?;
        let limit = TIMEOUT_MAX.as_millis() as u64;
        if set.timeout_ms.is_some_and(|timeout| timeout == 0 || timeout > limit) {
            return Err(ServerError::Invalid {
                fault: "the timeout is not between 0 and 10m",
                next: "give --timeout a time of at most 10m",
            });
        }
        let some = |text: &String| Some(text.clone()).filter(|text| !text.trim().is_empty());
        {
            let mut document = open.hooks.document.lock();
            let mut changed = document.clone();
            changed.before = set.before.as_ref().map_or(changed.before, some);
            changed.after = set.after.as_ref().map_or(changed.after, some);
            changed.timeout_ms = set.timeout_ms.or(changed.timeout_ms);
            state::save(&open.hooks.path, &changed)?;
            *document = changed;
        }
        *open.hooks.problem.lock() = None;
        Ok(open.hooks.show(volume))
    }
}
