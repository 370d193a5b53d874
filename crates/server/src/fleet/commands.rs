//! Commands on other servers: the methods of the server for them.

use std::time::Duration;

use cairn_api as api;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::fleet::PATIENCE;

impl Server {
    /// The other servers, by their last answers.
    pub(crate) fn list_fleet(&self, query: api::FleetQuery) -> Result<Vec<api::FleetServer>, ServerError> {
        let wait = Duration::from_millis(query.within_ms.unwrap_or(0));
        Ok(self.fleet.look(&self.fleet.servers()?, wait))
    }

    /// One of them.
    pub(crate) fn show_fleet(
        &self,
        name: &str,
        query: api::FleetQuery,
    ) -> Result<api::FleetServer, ServerError> {
        let wait = Duration::from_millis(query.within_ms.unwrap_or(0));
        let found = self.fleet.look(&[self.fleet.find(name)?], wait);
        found.into_iter().next().ok_or(ServerError::Bug)
    }

    /// Adds a server that answers to the token of a viewer.
    pub(crate) fn add_fleet(&self, asked: &api::AddFleetServer) -> Result<api::FleetServer, ServerError> {
        let kept = self.fleet.add(asked)?;
        tracing::info!(name = kept.name, address = kept.address, "added a server to the fleet");
        self.show_fleet(&kept.name, api::FleetQuery { within_ms: Some(PATIENCE.as_millis() as u64) })
    }

    /// Asks a server now. A server that does not answer is an error.
    pub(crate) fn test_fleet(&self, name: &str) -> Result<api::FleetServer, ServerError> {
        let kept = self.fleet.find(name)?;
        let outcome = kept.ask::<serde_json::Value>("/v1/status");
        let failed = outcome.as_ref().err().cloned();
        self.fleet.seen.lock().entry(kept.key()).or_default();
        self.fleet.note(&kept, outcome);
        match failed {
            Some(error) => Err(kept.failed(error)),
            None => Ok(kept.show(self.fleet.seen.lock().get(&kept.key()))),
        }
    }

    /// Deletes a server and its token here. The other server keeps the token until it is revoked
    /// there.
    pub(crate) fn delete_fleet(&self, name: &str) -> Result<(), ServerError> {
        self.fleet.delete(name)
    }
}
