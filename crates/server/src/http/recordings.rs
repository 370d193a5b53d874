//! Recordings of exports over HTTP.

use std::sync::Arc;

use axum::extract::{Path, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new().routes(routes!(list_recordings, start_recording)).routes(routes!(stop_recording))
}

/// The recordings that are under way, and those that are over and were not ended.
#[utoipa::path(get, path = "/v1/recordings", tag = "server", responses((status = 200, body = [api::Recording])))]
async fn list_recordings(State(server): State<Arc<Server>>) -> Answer<Vec<api::Recording>> {
    blocking(server, |server| Ok(server.recordings.list())).await
}

/// Begins to record an export, under open sessions as well. One recording of an export at a time.
/// On the control socket only.
#[utoipa::path(post, path = "/v1/recordings", tag = "server", request_body = api::RecordExport,
    responses((status = 200, body = api::Recording), (status = "default", body = ErrorBody)))]
async fn start_recording(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::RecordExport>,
) -> Answer<api::Recording> {
    blocking(server, move |server| server.start_recording(&request)).await
}

/// Ends the recording of an export; its trace is whole and durable.
#[utoipa::path(delete, path = "/v1/recordings/{export}", tag = "server", params(("export" = String, Path,)),
    responses((status = 200, body = api::Recording), (status = "default", body = ErrorBody)))]
async fn stop_recording(
    State(server): State<Arc<Server>>,
    Path(export): Path<String>,
) -> Answer<api::Recording> {
    blocking(server, move |server| server.stop_recording(&export)).await
}
