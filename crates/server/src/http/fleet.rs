//! Other servers over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(list_fleet, add_fleet))
        .routes(routes!(show_fleet, delete_fleet))
        .routes(routes!(test_fleet))
}

/// Other servers that this one shows, by their last answers. Those whose answers are old get a
/// request.
#[utoipa::path(get, path = "/v1/fleet", tag = "fleet", params(api::FleetQuery),
    responses((status = 200, body = [api::FleetServer]), (status = "default", body = ErrorBody)))]
async fn list_fleet(
    State(server): State<Arc<Server>>,
    Query(query): Query<api::FleetQuery>,
) -> Answer<Vec<api::FleetServer>> {
    blocking(server, move |server| server.list_fleet(query)).await
}

/// Adds a server, which must answer to the token. On the control socket only: it may have an
/// address that only the machine of this server reaches.
#[utoipa::path(post, path = "/v1/fleet", tag = "fleet", request_body = api::AddFleetServer,
    responses((status = 200, body = api::FleetServer), (status = "default", body = ErrorBody)))]
async fn add_fleet(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::AddFleetServer>,
) -> Answer<api::FleetServer> {
    blocking(server, move |server| server.add_fleet(&request)).await
}

/// One other server.
#[utoipa::path(get, path = "/v1/fleet/{server}", tag = "fleet",
    params(("server" = String, Path,), api::FleetQuery),
    responses((status = 200, body = api::FleetServer), (status = "default", body = ErrorBody)))]
async fn show_fleet(
    State(server): State<Arc<Server>>,
    Path(other): Path<String>,
    Query(query): Query<api::FleetQuery>,
) -> Answer<api::FleetServer> {
    blocking(server, move |server| server.show_fleet(&other, query)).await
}

/// Asks a server now. A server that does not answer, or refuses the token, is an error.
#[utoipa::path(post, path = "/v1/fleet/{server}/test", tag = "fleet", params(("server" = String, Path,)),
    responses((status = 200, body = api::FleetServer), (status = "default", body = ErrorBody)))]
async fn test_fleet(
    State(server): State<Arc<Server>>,
    Path(other): Path<String>,
) -> Answer<api::FleetServer> {
    blocking(server, move |server| server.test_fleet(&other)).await
}

/// Deletes a server and its token here. That server keeps the token until it is revoked there.
#[utoipa::path(delete, path = "/v1/fleet/{server}", tag = "fleet", params(("server" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn delete_fleet(State(server): State<Arc<Server>>, Path(other): Path<String>) -> Answer<()> {
    blocking(server, move |server| server.delete_fleet(&other)).await
}
