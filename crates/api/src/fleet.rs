//! Objects about other servers that this one shows, each read with a token of a viewer.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::Hidden;

/// Adds a server to the fleet.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddFleetServer {
    /// Its name here.
    pub name: String,
    /// HOST:PORT of its API.
    pub address: String,
    /// The root of its certificate, in PEM. Without it the connection has no TLS, which is accepted
    /// for loopback addresses only.
    pub root: Option<String>,
    /// The secret of a token of that server with the role viewer.
    pub token: Hidden,
}

/// Selects how long an answer waits for servers that were not asked lately.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FleetQuery {
    /// At most this long, and at most 10,000 ms; by default not at all.
    pub within_ms: Option<u64>,
}

/// The state of a server of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FleetState {
    /// It was not asked yet.
    Unknown,
    /// It has no problem.
    Well,
    /// It has problems.
    Problems,
    /// It does not answer, or refuses the token.
    Unreachable,
}

/// A server of the fleet, without its token.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FleetServer {
    /// Its name here.
    pub name: String,
    /// HOST:PORT of its API.
    pub address: String,
    /// The connection has TLS.
    pub tls: bool,
    /// Its state at the last try.
    pub state: FleetState,
    /// The first of its problems, or why it does not answer.
    pub message: Option<String>,
    /// When it answered last.
    pub answered_ms: Option<u64>,
    /// Its summary by the last answer.
    pub summary: Option<FleetSummary>,
}

/// The status of a server in a few numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetSummary {
    /// The version of its program.
    pub version: String,
    /// Problems.
    pub problems: u64,
    /// Volumes that it has.
    pub volumes: u64,
    /// Mirrors that it has.
    pub mirrors: u64,
    /// Of these, mirrors that lag more than their RPO.
    pub over_rpo: u64,
    /// The largest lag of them.
    pub lag_ms: Option<u64>,
    /// Bytes in use in all volumes.
    pub used_bytes: u64,
    /// Size of all volumes.
    pub size_bytes: u64,
}
