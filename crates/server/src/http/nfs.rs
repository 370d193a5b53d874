//! Exports over NFS, over HTTP.

use std::sync::Arc;

use axum::extract::{Path, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new().routes(routes!(list_nfs)).routes(routes!(set_nfs)).routes(routes!(remove_nfs))
}

/// The directories that are exported over NFS.
#[utoipa::path(get, path = "/v1/nfs", tag = "nfs", responses((status = 200, body = [api::NfsExport])))]
async fn list_nfs(State(server): State<Arc<Server>>) -> Answer<Vec<api::NfsExport>> {
    blocking(server, |server| Ok(server.list_nfs())).await
}

/// Exports a directory of a volume over NFS, or changes such an export.
#[utoipa::path(put, path = "/v1/volumes/{volume}/nfs", tag = "nfs", params(("volume" = String, Path,)),
    request_body = api::SetNfs,
    responses((status = 200, body = api::NfsExport), (status = "default", body = ErrorBody)))]
async fn set_nfs(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::SetNfs>,
) -> Answer<api::NfsExport> {
    blocking(server, move |server| server.set_nfs(&volume, &request)).await
}

/// Ends the export of a directory.
#[utoipa::path(post, path = "/v1/volumes/{volume}/nfs/remove", tag = "nfs", params(("volume" = String, Path,)),
    request_body = api::RemoveNfs,
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn remove_nfs(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::RemoveNfs>,
) -> Answer<()> {
    blocking(server, move |server| server.remove_nfs(&volume, &request)).await
}
