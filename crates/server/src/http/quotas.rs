//! Quotas of files over HTTP.

use std::sync::Arc;

use axum::extract::{Path, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new().routes(routes!(list_quotas, set_quota))
}

/// The directories of a volume that have a quota, of a mirror as it shows them.
#[utoipa::path(get, path = "/v1/volumes/{volume}/files/quotas", tag = "files", params(("volume" = String, Path,)),
    responses((status = 200, body = [api::Quota]), (status = "default", body = ErrorBody)))]
async fn list_quotas(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
) -> Answer<Vec<api::Quota>> {
    blocking(server, move |server| server.list_quotas(&volume)).await
}

/// Gives a directory a quota, changes it, or removes it; answers with the present quota, if any.
#[utoipa::path(patch, path = "/v1/volumes/{volume}/files/quotas", tag = "files", params(("volume" = String, Path,)),
    request_body = api::SetQuota,
    responses((status = 200, body = Option<api::Quota>), (status = "default", body = ErrorBody)))]
async fn set_quota(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::SetQuota>,
) -> Answer<Option<api::Quota>> {
    blocking(server, move |server| server.set_quota(&volume, &request)).await
}
