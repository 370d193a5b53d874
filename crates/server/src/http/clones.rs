//! Clones over HTTP.

use std::sync::Arc;

use axum::extract::{Path, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking, unless_it_waits};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new().routes(routes!(list_clones, create_clone)).routes(routes!(delete_clone))
}

/// The clones.
#[utoipa::path(get, path = "/v1/clones", tag = "clones", responses((status = 200, body = [api::VolumeClone])))]
async fn list_clones(State(server): State<Arc<Server>>) -> Answer<Vec<api::VolumeClone>> {
    blocking(server, |server| Ok(server.volumes.list_clones())).await
}

/// Makes a clone of a snapshot: a volume that can be written to, and that costs nothing at first.
#[utoipa::path(post, path = "/v1/clones", tag = "clones", request_body = api::CreateClone,
    responses((status = 200, body = api::VolumeClone), (status = "default", body = ErrorBody)))]
async fn create_clone(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::CreateClone>,
) -> Answer<api::VolumeClone> {
    let volume = request.volume.clone();
    let work = blocking(server.clone(), move |server| server.create_clone(&request));
    unless_it_waits(&server, &volume, work).await?
}

/// Deletes a clone and all its writes.
#[utoipa::path(delete, path = "/v1/clones/{clone}", tag = "clones", params(("clone" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn delete_clone(State(server): State<Arc<Server>>, Path(clone): Path<String>) -> Answer<()> {
    blocking(server, move |server| server.delete_clone(&clone)).await
}
