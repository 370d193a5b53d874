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

    /// Sets what the latency of clients may be; it holds for running transfers at once.
    pub(crate) fn set_governor(
        &self,
        volume: &str,
        set: &api::SetGovernor,
    ) -> Result<api::Governor, ServerError> {
        let open = self.volumes.get(volume)?;
        if set.p99_limit_us.is_some_and(|limit| !(100..=1_000_000).contains(&limit)) {
            return Err(ServerError::Invalid {
                what: "the latency that clients may see",
                rule: "it is between 100 microseconds and 1 second, or off",
            });
        }
        open.governor.set(set.p99_limit_us)?;
        Ok(open.governor.show(volume))
    }
}
