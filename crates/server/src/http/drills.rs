//! Drills over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
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
    OpenApiRouter::new().routes(routes!(list_drills)).routes(routes!(drill, forget_drill))
}

/// The drills of all mirrors.
#[utoipa::path(get, path = "/v1/drills", tag = "mirrors", responses((status = 200, body = [api::Drill])))]
async fn list_drills(State(server): State<Arc<Server>>) -> Answer<Vec<api::Drill>> {
    blocking(server, |server| Ok(server.drills.list())).await
}

/// Begins a drill: a clone of the newest image is served, the probe runs, and the clone is deleted.
/// On the control socket only, as a probe is a command.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/drill", tag = "mirrors", params(("mirror" = String, Path,)),
    request_body = api::DrillRequest,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn drill(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::DrillRequest>,
) -> Answer<api::Job> {
    let own = server.clone();
    blocking(server, move |_| own.drill(&mirror, &request)).await
}

/// Ends the schedule of a mirror's drills, and forgets its probe.
#[utoipa::path(delete, path = "/v1/mirrors/{mirror}/drill", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn forget_drill(State(server): State<Arc<Server>>, Path(mirror): Path<String>) -> Answer<()> {
    blocking(server, move |server| server.drills.forget(&mirror)).await
}

/// Refuses a request that runs commands: the token gives full access to volumes, but not to the
/// machine.
pub(super) async fn refuse_commands(request: Request, next: Next) -> Result<Response, Refusal> {
    let (method, path) = (request.method(), request.uri().path());
    if method == Method::POST && path.ends_with("/drill") {
        return Err(ServerError::Daemon(DaemonError::LocalOnly { what: "a probe is a command" }).into());
    }
    if method == Method::PATCH && path.ends_with("/hooks") {
        return Err(ServerError::Daemon(DaemonError::LocalOnly { what: "a hook is a command" }).into());
    }
    Ok(next.run(request).await)
}
