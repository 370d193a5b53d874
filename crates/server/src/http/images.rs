//! Image dumps over HTTP.

use std::sync::Arc;

use axum::extract::{Path, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(plan_dump))
        .routes(routes!(dump))
        .routes(routes!(levels))
        .routes(routes!(forget_level))
        .routes(routes!(unfinished_dump, give_up_dump))
        .routes(routes!(confirm_dump))
        .routes(routes!(restore))
        .routes(routes!(unfinished_restores))
        .routes(routes!(give_up_restore))
}

/// The planned image dump of a volume, to the byte. Nothing is written.
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

/// Begins to dump a volume into the files of a ticket, or resumes its unfinished dump.
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

/// Forgets the image dumps of a level and of all higher ones, and releases the snapshots that they
/// hold.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/image/levels/{level}", tag = "images",
    params(("volume" = String, Path,), ("level" = u8, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn forget_level(
    State(server): State<Arc<Server>>,
    Path((volume, level)): Path<(String, u8)>,
) -> Answer<()> {
    blocking(server, move |server| server.forget_level(&volume, level)).await
}

/// The image dump of a volume that can be resumed; null if there is none.
#[utoipa::path(get, path = "/v1/volumes/{volume}/image/unfinished", tag = "images", params(("volume" = String, Path,)),
    responses((status = 200, body = Option<api::UnfinishedDump>), (status = "default", body = ErrorBody)))]
async fn unfinished_dump(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
) -> Answer<Option<api::UnfinishedDump>> {
    blocking(server, move |server| server.unfinished_dump(&volume)).await
}

/// Gives up the unfinished image dump of a volume, and releases its snapshots. Its files stay.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/image/unfinished", tag = "images", params(("volume" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn give_up_dump(State(server): State<Arc<Server>>, Path(volume): Path<String>) -> Answer<()> {
    blocking(server, move |server| server.give_up_dump(&volume)).await
}

/// The files of a complete image dump have their names: from here on it is the last one of its
/// level.
#[utoipa::path(post, path = "/v1/volumes/{volume}/image/confirm", tag = "images", params(("volume" = String, Path,)),
    request_body = api::ConfirmDump,
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn confirm_dump(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::ConfirmDump>,
) -> Answer<()> {
    blocking(server, move |server| server.confirm_dump(&volume, &request.id)).await
}

/// Begins to restore the files of a ticket into a new volume, or resumes its unfinished restore.
#[utoipa::path(post, path = "/v1/images/restore", tag = "images", request_body = api::RestoreRequest,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn restore(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::RestoreRequest>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.restore(&request)).await
}

/// The restores that can be resumed.
#[utoipa::path(get, path = "/v1/images/restores", tag = "images",
    responses((status = 200, body = [api::UnfinishedRestore]), (status = "default", body = ErrorBody)))]
async fn unfinished_restores(State(server): State<Arc<Server>>) -> Answer<Vec<api::UnfinishedRestore>> {
    blocking(server, move |server| Ok(server.unfinished_restores())).await
}

/// Gives up an unfinished restore: its files are deleted, and its devices can be named again.
#[utoipa::path(delete, path = "/v1/images/restores/{volume}", tag = "images", params(("volume" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn give_up_restore(State(server): State<Arc<Server>>, Path(volume): Path<String>) -> Answer<()> {
    blocking(server, move |server| server.volumes.give_up_restore(&volume)).await
}
