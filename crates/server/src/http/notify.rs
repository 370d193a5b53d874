//! Notifications over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
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
    OpenApiRouter::new()
        .routes(routes!(list_notify, add_notify))
        .routes(routes!(show_notify, set_notify, delete_notify))
        .routes(routes!(test_notify))
}

/// The targets of notifications.
#[utoipa::path(get, path = "/v1/notify", tag = "notifications",
    responses((status = 200, body = [api::NotifyTarget]), (status = "default", body = ErrorBody)))]
async fn list_notify(State(server): State<Arc<Server>>) -> Answer<Vec<api::NotifyTarget>> {
    blocking(server, |server| server.list_notify()).await
}

/// Adds a target. On the control socket only: it may be a command, or an address that only the
/// machine of the server reaches.
#[utoipa::path(post, path = "/v1/notify", tag = "notifications", request_body = api::AddNotify,
    responses((status = 200, body = api::NotifyTarget), (status = "default", body = ErrorBody)))]
async fn add_notify(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::AddNotify>,
) -> Answer<api::NotifyTarget> {
    blocking(server, move |server| server.add_notify(&request)).await
}

/// One target.
#[utoipa::path(get, path = "/v1/notify/{target}", tag = "notifications", params(("target" = String, Path,)),
    responses((status = 200, body = api::NotifyTarget), (status = "default", body = ErrorBody)))]
async fn show_notify(
    State(server): State<Arc<Server>>,
    Path(target): Path<String>,
) -> Answer<api::NotifyTarget> {
    blocking(server, move |server| server.show_notify(&target)).await
}

/// Changes settings of a target; missing ones stay as they are. On the control socket only.
#[utoipa::path(patch, path = "/v1/notify/{target}", tag = "notifications", params(("target" = String, Path,)),
    request_body = api::NotifySettings,
    responses((status = 200, body = api::NotifyTarget), (status = "default", body = ErrorBody)))]
async fn set_notify(
    State(server): State<Arc<Server>>,
    Path(target): Path<String>,
    Body(settings): Body<api::NotifySettings>,
) -> Answer<api::NotifyTarget> {
    blocking(server, move |server| server.set_notify(&target, &settings)).await
}

/// Sends a test to a target now, and reports its answer or the failure.
#[utoipa::path(post, path = "/v1/notify/{target}/test", tag = "notifications", params(("target" = String, Path,)),
    responses((status = 200, body = api::NotifyTest), (status = "default", body = ErrorBody)))]
async fn test_notify(
    State(server): State<Arc<Server>>,
    Path(target): Path<String>,
) -> Answer<api::NotifyTest> {
    blocking(server, move |server| server.test_notify(&target)).await
}

/// Deletes a target, and the messages that wait for it.
#[utoipa::path(delete, path = "/v1/notify/{target}", tag = "notifications",
    params(("target" = String, Path,), api::DeleteNotifyQuery),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn delete_notify(
    State(server): State<Arc<Server>>,
    Path(target): Path<String>,
    Query(query): Query<api::DeleteNotifyQuery>,
) -> Answer<()> {
    blocking(server, move |server| server.delete_notify(&target, query)).await
}

/// Refuses a request over TCP that adds or changes a target, adds a server of the fleet, or sets
/// the identity provider: the token gives full access to volumes, but not to the machine.
pub(super) async fn refuse_from_afar(request: Request, next: Next) -> Result<Response, Refusal> {
    let (method, path) = (request.method(), request.uri().path());
    let adds = |to: &str| method == Method::POST && path.trim_end_matches('/') == to;
    if adds("/v1/fleet") {
        let what = "a server of the fleet has an address that the server's machine reaches";
        return Err(ServerError::Daemon(DaemonError::LocalOnly { what }).into());
    }
    if method == Method::PUT && path.trim_end_matches('/') == "/v1/oidc" {
        let what = "the identity provider has an address that the server's machine reaches";
        return Err(ServerError::Daemon(DaemonError::LocalOnly { what }).into());
    }
    if adds("/v1/notify") || (method == Method::PATCH && path.starts_with("/v1/notify/")) {
        let what = "a notification target is a command, or an address that the server's machine reaches";
        return Err(ServerError::Daemon(DaemonError::LocalOnly { what }).into());
    }
    Ok(next.run(request).await)
}
