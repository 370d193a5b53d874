//! Image dumps over HTTP.

use std::sync::Arc;

use axum::extract::{Path, State};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Body, blocking};
use crate::api::{self, ErrorBody};
use crate::server::Server;

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(plan_dump))
        .routes(routes!(dump))
        .routes(routes!(levels))
        .routes(routes!(forget_level))
        .routes(routes!(restore))
}

/// What an image dump of a volume would be, to the byte. Nothing is written.
#[utoipa::path(post, path = "/v1/volumes/{volume}/image/plan", tag = "images", params(("volume" = String, Path,)),
    request_body = api::DumpRequest,
    responses((status = 200, body = api::DumpPlan), (status = "default", body = ErrorBody)))]
async fn plan_dump(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::DumpRequest>,
) -> Answer<api::DumpPlan> {
    blocking(server, move |server| server.plan_dump(&volume, &request)).await
}

/// Begins to dump a volume into the files of a ticket.
#[utoipa::path(post, path = "/v1/volumes/{volume}/image/dump", tag = "images", params(("volume" = String, Path,)),
    request_body = api::DumpRequest,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn dump(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::DumpRequest>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.dump(&volume, &request)).await
}

/// The last image dump of each level.
#[utoipa::path(get, path = "/v1/volumes/{volume}/image/levels", tag = "images", params(("volume" = String, Path,)),
    responses((status = 200, body = [api::DumpRecord]), (status = "default", body = ErrorBody)))]
async fn levels(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
) -> Answer<Vec<api::DumpRecord>> {
    blocking(server, move |server| server.dump_levels(&volume)).await
}

/// Forgets the image dumps of a level and of all higher ones, and lets go of the snapshots that they hold.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/image/levels/{level}", tag = "images",
    params(("volume" = String, Path,), ("level" = u8, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn forget_level(
    State(server): State<Arc<Server>>,
    Path((volume, level)): Path<(String, u8)>,
) -> Answer<()> {
    blocking(server, move |server| server.forget_level(&volume, level)).await
}

/// Begins to restore the files of a ticket into a new volume.
#[utoipa::path(post, path = "/v1/images/restore", tag = "images", request_body = api::RestoreRequest,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn restore(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::RestoreRequest>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.restore(&request)).await
}
