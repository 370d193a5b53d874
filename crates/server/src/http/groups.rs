//! Groups of volumes over HTTP.

use std::sync::Arc;

use axum::extract::{Path, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(list_groups, create_group))
        .routes(routes!(show_group, set_group, delete_group))
        .routes(routes!(snapshot_group))
        .routes(routes!(failover_group))
        .routes(routes!(reverse_group))
        .routes(routes!(allow_group_reverse))
        .routes(routes!(show_group_together))
}

/// The groups of volumes here.
#[utoipa::path(get, path = "/v1/groups", tag = "groups", responses((status = 200, body = [api::Group])))]
async fn list_groups(State(server): State<Arc<Server>>) -> Answer<Vec<api::Group>> {
    blocking(server, |server| Ok(server.list_groups())).await
}

/// Makes a group of volumes.
#[utoipa::path(post, path = "/v1/groups", tag = "groups", request_body = api::CreateGroup,
    responses((status = 200, body = api::Group), (status = "default", body = ErrorBody)))]
async fn create_group(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::CreateGroup>,
) -> Answer<api::Group> {
    blocking(server, move |server| server.create_group(request)).await
}

/// One group.
#[utoipa::path(get, path = "/v1/groups/{group}", tag = "groups", params(("group" = String, Path,)),
    responses((status = 200, body = api::Group), (status = "default", body = ErrorBody)))]
async fn show_group(State(server): State<Arc<Server>>, Path(group): Path<String>) -> Answer<api::Group> {
    blocking(server, move |server| server.show_group(&group)).await
}

/// Sets when snapshots of a group are made, and how long they are kept.
#[utoipa::path(put, path = "/v1/groups/{group}", tag = "groups", params(("group" = String, Path,)),
    request_body = api::SetSchedule,
    responses((status = 200, body = api::Group), (status = "default", body = ErrorBody)))]
async fn set_group(
    State(server): State<Arc<Server>>,
    Path(group): Path<String>,
    Body(request): Body<api::SetSchedule>,
) -> Answer<api::Group> {
    blocking(server, move |server| server.set_group(&group, &request)).await
}

/// Ends a group; its volumes and their snapshots stay.
#[utoipa::path(delete, path = "/v1/groups/{group}", tag = "groups", params(("group" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn delete_group(State(server): State<Arc<Server>>, Path(group): Path<String>) -> Answer<()> {
    blocking(server, move |server| server.delete_group(&group)).await
}

/// Makes a snapshot of all volumes of a group, at one instant.
#[utoipa::path(post, path = "/v1/groups/{group}/snapshot", tag = "groups", params(("group" = String, Path,)),
    responses((status = 200, body = api::GroupSnapshot), (status = "default", body = ErrorBody)))]
async fn snapshot_group(
    State(server): State<Arc<Server>>,
    Path(group): Path<String>,
) -> Answer<api::GroupSnapshot> {
    blocking(server, move |server| server.snapshot_group(&group)).await
}

/// Makes the mirrors of a group writable, all at one instant.
#[utoipa::path(post, path = "/v1/groups/{group}/failover", tag = "groups", params(("group" = String, Path,)),
    request_body = api::FailoverRequest,
    responses((status = 200, body = api::GroupFailover), (status = "default", body = ErrorBody)))]
async fn failover_group(
    State(server): State<Arc<Server>>,
    Path(group): Path<String>,
    Body(request): Body<api::FailoverRequest>,
) -> Answer<api::GroupFailover> {
    blocking(server, move |server| server.failover_group(&group, request.dry_run)).await
}

/// Changes the roles of all volumes of a group as planned: their sources stop at one instant, their
/// last changes are transferred, and all of the mirrors become writable.
#[utoipa::path(post, path = "/v1/groups/{group}/reverse", tag = "groups", params(("group" = String, Path,)),
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn reverse_group(State(server): State<Arc<Server>>, Path(group): Path<String>) -> Answer<api::Job> {
    let own = server.clone();
    blocking(server, move |_| own.reverse_group(&group)).await
}

/// On the source: lets the mirrors of all volumes of a group take over (`reverse`) within some
/// time.
#[utoipa::path(post, path = "/v1/groups/{group}/allow-reverse", tag = "groups", params(("group" = String, Path,)),
    request_body = api::AllowReverse,
    responses((status = 200, body = [api::ReverseAllowed]), (status = "default", body = ErrorBody)))]
async fn allow_group_reverse(
    State(server): State<Arc<Server>>,
    Path(group): Path<String>,
    Body(request): Body<api::AllowReverse>,
) -> Answer<Vec<api::ReverseAllowed>> {
    blocking(server, move |server| server.allow_group_reverse(&group, &request)).await
}

/// Says whether the mirrors of a group show one instant, or each its own newest image.
#[utoipa::path(put, path = "/v1/groups/{group}/together", tag = "groups", params(("group" = String, Path,)),
    request_body = api::ShowGroup,
    responses((status = 200, body = api::Group), (status = "default", body = ErrorBody)))]
async fn show_group_together(
    State(server): State<Arc<Server>>,
    Path(group): Path<String>,
    Body(request): Body<api::ShowGroup>,
) -> Answer<api::Group> {
    blocking(server, move |server| server.show_group_together(&group, request.together)).await
}
