//! Plans over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new().routes(routes!(plan))
}

/// The link cost of a lag, the cheapest history, and one configuration: for a volume, an export or
/// a device, from a sample of its clients' writes.
#[utoipa::path(get, path = "/v1/plans/{subject}", tag = "server",
    params(("subject" = String, Path,), api::PlanQuery),
    responses((status = 200, body = api::LivePlan), (status = "default", body = ErrorBody)))]
async fn plan(
    State(server): State<Arc<Server>>,
    Path(subject): Path<String>,
    Query(query): Query<api::PlanQuery>,
) -> Answer<api::LivePlan> {
    blocking(server, move |server| server.plan(&subject, query.link)).await
}
