//! Mounts over HTTP.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::error::DaemonError;
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::http::answer::{Answer, Body, Refusal, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new().routes(routes!(list_mounts, create_mount)).routes(routes!(unmount))
}

/// The mounts.
#[utoipa::path(get, path = "/v1/mounts", tag = "mounts", responses((status = 200, body = [api::Mount])))]
async fn list_mounts(State(server): State<Arc<Server>>) -> Answer<Vec<api::Mount>> {
    blocking(server, |server| Ok(server.mounts.list())).await
}

/// Mounts files of a volume on this machine. On the control socket only.
#[utoipa::path(post, path = "/v1/mounts", tag = "mounts", request_body = api::CreateMount,
    responses((status = 200, body = api::Mount), (status = "default", body = ErrorBody)))]
async fn create_mount(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::CreateMount>,
) -> Answer<api::Mount> {
    blocking(server, move |server| server.create_mount(&request)).await
}

/// Removes a mount permanently. On the control socket only.
#[utoipa::path(post, path = "/v1/unmount", tag = "mounts", request_body = api::Unmount,
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn unmount(State(server): State<Arc<Server>>, Body(request): Body<api::Unmount>) -> Answer<()> {
    blocking(server, move |server| server.mounts.remove(&request)).await
}

/// Refuses mounts that are requested over TCP: a directory belongs to this machine.
pub(super) async fn refuse_from_afar(request: Request, next: Next) -> Result<Response, Refusal> {
    let path = request.uri().path();
    if request.method() == Method::POST && (path == "/v1/mounts" || path == "/v1/unmount") {
        return Err(ServerError::Daemon(DaemonError::LocalOnly {
            what: "a mount is a directory of the server's machine",
        })
        .into());
    }
    Ok(next.run(request).await)
}
