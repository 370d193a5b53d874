//! Tokens and the audit log over HTTP.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Path, Query, State};
use axum::http::header::CACHE_CONTROL;
use axum::response::IntoResponse;
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::actors::Actor;
use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};
use crate::http::rules::forbidden;

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(list_tokens, create_token))
        .routes(routes!(show_token, revoke_token))
        .routes(routes!(list_audit))
        .routes(routes!(own_access))
}

/// The tokens of the API, without their secrets.
#[utoipa::path(get, path = "/v1/tokens", tag = "access",
    responses((status = 200, body = [api::AccessToken]), (status = "default", body = ErrorBody)))]
async fn list_tokens(State(server): State<Arc<Server>>) -> Answer<Vec<api::AccessToken>> {
    blocking(server, |server| server.tokens.list()).await
}

/// Creates a token. The answer is the only place that has its secret.
#[utoipa::path(post, path = "/v1/tokens", tag = "access", request_body = api::CreateToken,
    responses((status = 200, body = api::CreatedToken), (status = "default", body = ErrorBody)))]
async fn create_token(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::CreateToken>,
) -> Answer<api::CreatedToken> {
    blocking(server, move |server| server.tokens.create(&request)).await
}

/// One token, without its secret.
#[utoipa::path(get, path = "/v1/tokens/{token}", tag = "access", params(("token" = String, Path,)),
    responses((status = 200, body = api::AccessToken), (status = "default", body = ErrorBody)))]
async fn show_token(
    State(server): State<Arc<Server>>,
    Path(token): Path<String>,
) -> Answer<api::AccessToken> {
    blocking(server, move |server| server.show_token(&token)).await
}

/// Revokes a token. Its streams and its sessions of the web page end. Jobs that it has begun
/// continue.
#[utoipa::path(delete, path = "/v1/tokens/{token}", tag = "access", params(("token" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn revoke_token(State(server): State<Arc<Server>>, Path(token): Path<String>) -> Answer<()> {
    blocking(server, move |server| {
        server.tokens.revoke(&token)?;
        server.live.wake();
        Ok(())
    })
    .await
}

/// The newest lines of the audit log, the oldest of them first.
#[utoipa::path(get, path = "/v1/audit", tag = "access", params(api::AuditQuery),
    responses((status = 200, body = [api::AuditEntry]), (status = "default", body = ErrorBody)))]
async fn list_audit(
    State(server): State<Arc<Server>>,
    Query(query): Query<api::AuditQuery>,
) -> Answer<Vec<api::AuditEntry>> {
    blocking(server, move |server| server.list_audit(&query)).await
}

/// The access of the client that asks: its role, its volumes, and the requests that it may not
/// make.
#[utoipa::path(get, path = "/v1/access", tag = "access",
    responses((status = 200, body = api::OwnAccess), (status = "default", body = ErrorBody)))]
async fn own_access(Extension(actor): Extension<Actor>) -> impl IntoResponse {
    let forbidden = forbidden(actor.role, actor.volumes.is_some());
    let volumes = actor.volumes.map(|volumes| volumes.into_iter().collect());
    let own = api::OwnAccess { name: actor.name, role: actor.role, volumes, forbidden };
    ([(CACHE_CONTROL, "no-store")], Json(own))
}
