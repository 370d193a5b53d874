//! Commands on governors: the methods of the server for them.

use cairn_api as api;

use crate::daemon::server::Server;
use crate::error::ServerError;

impl Server {
    pub(crate) fn show_governor(&self, volume: &str) -> Result<api::Governor, ServerError> {
        Ok(self.volumes.get(volume)?.governor.show(volume))
    }

    /// The governors that have something to keep.
    pub(crate) fn governors(&self) -> Vec<api::Governor> {
        let all = self.volumes.all().into_iter().map(|open| open.governor.show(&open.name));
        all.filter(|governor| governor.p99_limit_us.is_some()).collect()
    }

    /// Sets the limit of the latency of clients; it applies to running transfers at once.
    pub(crate) fn set_governor(
        &self,
        volume: &str,
        set: &api::SetGovernor,
    ) -> Result<api::Governor, ServerError> {
        let open = self.volumes.get(volume)?;
        if set.p99_limit_us.is_some_and(|limit| !(100..=1_000_000).contains(&limit)) {
            return Err(ServerError::Invalid {
                fault: "the latency limit is not between 100 us and 1 s",
                next: "give --p99 a time in that range, such as 20ms, or `off`",
            });
        }
        open.governor.set(set.p99_limit_us)?;
        Ok(open.governor.show(volume))
    }
}
