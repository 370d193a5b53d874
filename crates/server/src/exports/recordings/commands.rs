//! Commands on recordings: the methods of the server for them.

use std::sync::Arc;

use cairn_api as api;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::exports::ExportTable;

impl Server {
    /// The name under which the sessions of an export are recorded: an adopted LUN has two.
    fn recorded_as(&self, export: &str) -> String {
        self.devices.adopter_of(export).unwrap_or_else(|| export.to_owned())
    }

    pub(crate) fn start_recording(&self, asked: &api::RecordExport) -> Result<api::Recording, ServerError> {
        let table = ExportTable {
            volumes: self.volumes.clone(),
            groups: self.groups.clone(),
            devices: self.devices.clone(),
            access: self.access.clone(),
            recordings: self.recordings.clone(),
            plans: self.plans.clone(),
            frozen: Arc::default(),
            certificates: self.certificates.clone(),
            audit: self.audit.clone(),
        };
        let name = self.recorded_as(&asked.export);
        if table.open_named(&name, None).is_err() {
            let (name, list) = (asked.export.clone(), "cairn status");
            return Err(ServerError::NotFound { what: "export", name, list });
        }
        self.recordings.start(&name, asked)
    }

    pub(crate) fn stop_recording(&self, export: &str) -> Result<api::Recording, ServerError> {
        self.recordings.stop(&self.recorded_as(export))
    }
}
