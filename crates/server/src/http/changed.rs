//! Changed blocks of LUNs over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new().routes(routes!(changed_ranges))
}

/// The ranges of a LUN that changed since a snapshot, up to another one or now: the same as
/// `qemu:dirty-bitmap:SNAPSHOT` over NBD. Without a first snapshot, all ranges that have blocks.
#[utoipa::path(get, path = "/v1/volumes/{volume}/luns/{lun}/changed", tag = "volumes",
    params(("volume" = String, Path,), ("lun" = String, Path,), api::ChangedQuery),
    responses((status = 200, body = api::ChangedRanges), (status = "default", body = ErrorBody)))]
async fn changed_ranges(
    State(server): State<Arc<Server>>,
    Path((volume, lun)): Path<(String, String)>,
    Query(query): Query<api::ChangedQuery>,
) -> Answer<api::ChangedRanges> {
    blocking(server, move |server| server.changed_ranges(&volume, &lun, &query)).await
}
