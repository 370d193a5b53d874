//! Commands on plans: the methods of the server for them.

use cairn_api as api;
use cairn_trace::TraceError;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::exports::error::ExportsError;
use crate::names::ExportName;

impl Server {
    /// The plan for a volume, one of its LUNs or a device, over a link of `link` bytes a second.
    pub(crate) fn plan(&self, subject: &str, link: u64) -> Result<api::LivePlan, ServerError> {
        if link == 0 {
            return Err(ServerError::Invalid {
                fault: "the bandwidth of the link is 0",
                next: "give --link in bytes per second, such as 50M",
            });
        }
        let is_known = self.volumes.get(subject).is_ok() || self.devices.export(subject).is_some();
        let adopter = self.devices.adopter_of(subject);
        let name = adopter.as_deref().unwrap_or(subject);
        let Some(curve) = self.plans.find(name) else {
            let (name, list) = (subject.to_owned(), "cairn status");
            let is_known = is_known
                || ExportName::parse(subject).is_some_and(|name| {
                    self.volumes.get(name.volume).is_ok_and(|open| open.luns.find(name.lun).is_ok())
                });
            return Err(match is_known {
                true => ServerError::Exports(ExportsError::NothingWritten { name }),
                false => ServerError::NotFound { what: "volume, export or device", name, list },
            });
        };
        let live = match curve.plan(link as f64) {
            Ok(live) => live,
            Err(TraceError::Empty) => {
                return Err(ServerError::Exports(ExportsError::NothingWritten { name: subject.to_owned() }));
            }
            Err(source) => {
                return Err(ServerError::Exports(ExportsError::Recording {
                    export: subject.to_owned(),
                    source,
                }));
            }
        };
        Ok(api::LivePlan {
            subject: name.to_owned(),
            began_ms: live.began.0 / 1_000_000,
            elapsed_ms: live.elapsed.as_millis() as u64,
            written_bytes: live.written_bytes,
            sampled_one_in: live.one_in,
            sampled_blocks: live.sampled_blocks,
            memory_bytes: curve.memory(),
            plan: live.plan,
        })
    }
}
