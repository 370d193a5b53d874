//! BSD dumps and differences of files over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(plan_file_dump))
        .routes(routes!(file_dump))
        .routes(routes!(dump_dates))
        .routes(routes!(diff_snapshots))
}

/// The planned content of a BSD dump of files. Nothing is written.
#[utoipa::path(post, path = "/v1/volumes/{volume}/files/dump/plan", tag = "files", params(("volume" = String, Path,)),
    request_body = api::FileDumpRequest,
    responses((status = 200, body = api::FileDumpPlan), (status = "default", body = ErrorBody)))]
async fn plan_file_dump(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::FileDumpRequest>,
) -> Answer<api::FileDumpPlan> {
    blocking(server, move |server| server.plan_file_dump(&volume, &request)).await
}

/// Begins to write a BSD dump of files into the file or pipe of a ticket.
#[utoipa::path(post, path = "/v1/volumes/{volume}/files/dump", tag = "files", params(("volume" = String, Path,)),
    request_body = api::FileDumpRequest,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn file_dump(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::FileDumpRequest>,
) -> Answer<api::Job> {
    let own = server.clone();
    blocking(server, move |_| own.file_dump(&volume, &request)).await
}

/// The last BSD dump of each path and level.
#[utoipa::path(get, path = "/v1/volumes/{volume}/files/dump", tag = "files", params(("volume" = String, Path,)),
    responses((status = 200, body = [api::FileDumpRecord]), (status = "default", body = ErrorBody)))]
async fn dump_dates(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
) -> Answer<Vec<api::FileDumpRecord>> {
    blocking(server, move |server| server.dump_dates(&volume)).await
}

/// The files that differ between two snapshots, or between one and the volume as it is, by path.
#[utoipa::path(get, path = "/v1/volumes/{volume}/files/diff", tag = "files",
    params(("volume" = String, Path,), api::DiffSnapshots),
    responses((status = 200, body = [api::FileChange]), (status = "default", body = ErrorBody)))]
async fn diff_snapshots(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Query(api::DiffSnapshots { from, to }): Query<api::DiffSnapshots>,
) -> Answer<Vec<api::FileChange>> {
    blocking(server, move |server| server.diff_snapshots(&volume, &from, to.as_deref())).await
}
