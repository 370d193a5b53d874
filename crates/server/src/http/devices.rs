//! Adopted devices and their histories over HTTP.

use std::sync::Arc;

use axum::body::{Body as Bytes, to_bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use cairn_api::{self as api, ErrorBody};
use serde::de::DeserializeOwned;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::error::DaemonError;
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::http::answer::{Answer, Body, MAX_BODY, Refusal, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(list_devices, adopt_device))
        .routes(routes!(show_history, release_device))
        .routes(routes!(create_mark))
        .routes(routes!(create_view))
        .routes(routes!(delete_view))
        .routes(routes!(revert))
        .routes(routes!(set_window))
        .routes(routes!(grow_history))
        .routes(routes!(enable_history, disable_history))
        .routes(routes!(discard_history))
        .routes(routes!(accept_older))
        .routes(routes!(set_device_access))
}

/// The adopted devices.
#[utoipa::path(get, path = "/v1/devices", tag = "devices", responses((status = 200, body = [api::Device])))]
async fn list_devices(State(server): State<Arc<Server>>) -> Answer<Vec<api::Device>> {
    blocking(server, |server| Ok(server.list_devices())).await
}

/// Adopts a disk or an image in place. Anything but a LUN is named by its path, on the control
/// socket only.
#[utoipa::path(post, path = "/v1/devices", tag = "devices", request_body = api::AdoptDevice,
    responses((status = 200, body = api::Device), (status = "default", body = ErrorBody)))]
async fn adopt_device(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::AdoptDevice>,
) -> Answer<api::Device> {
    blocking(server, move |server| server.adopt_device(&request)).await
}

/// The history of a device, or under a volume.
#[utoipa::path(get, path = "/v1/devices/{device}", tag = "devices", params(("device" = String, Path,)),
    responses((status = 200, body = api::HistoryStatus), (status = "default", body = ErrorBody)))]
async fn show_history(
    State(server): State<Arc<Server>>,
    Path(device): Path<String>,
) -> Answer<api::HistoryStatus> {
    blocking(server, move |server| server.show_history(&device)).await
}

/// Leaves a plain disk with the present content. The answer is a job.
#[utoipa::path(delete, path = "/v1/devices/{device}", tag = "devices",
    params(("device" = String, Path,), api::ReleaseQuery),
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn release_device(
    State(server): State<Arc<Server>>,
    Path(device): Path<String>,
    Query(query): Query<api::ReleaseQuery>,
) -> Answer<api::Job> {
    let mine = server.clone();
    blocking(server, move |_| mine.release_device(&device, query)).await
}

/// Names the present instant.
#[utoipa::path(post, path = "/v1/devices/{device}/marks", tag = "devices", params(("device" = String, Path,)),
    request_body = api::CreateMark,
    responses((status = 200, body = api::Mark), (status = "default", body = ErrorBody)))]
async fn create_mark(
    State(server): State<Arc<Server>>,
    Path(device): Path<String>,
    Body(request): Body<api::CreateMark>,
) -> Answer<api::Mark> {
    blocking(server, move |server| server.create_mark(&device, &request)).await
}

/// Exports an instant: a view, or a clone that takes writes of its own. Of a volume over a history
/// a view of all of it.
#[utoipa::path(post, path = "/v1/devices/{device}/views", tag = "devices", params(("device" = String, Path,)),
    request_body = api::CreateView,
    responses((status = 200, body = api::View), (status = "default", body = ErrorBody)))]
async fn create_view(
    State(server): State<Arc<Server>>,
    Path(device): Path<String>,
    Body(request): Body<api::CreateView>,
) -> Answer<api::View> {
    blocking(server, move |server| server.create_view(&device, &request)).await
}

/// Ends the export of an instant. Writes to a clone are discarded.
#[utoipa::path(delete, path = "/v1/devices/{device}/views/{view}", tag = "devices",
    params(("device" = String, Path,), ("view" = String, Path,), api::ViewQuery),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn delete_view(
    State(server): State<Arc<Server>>,
    Path((device, view)): Path<(String, String)>,
    Query(query): Query<api::ViewQuery>,
) -> Answer<()> {
    blocking(server, move |server| server.delete_view(&device, &view, query.writable)).await
}

/// Reverts the device, or the volume over a history, to an instant at once, and closes its
/// sessions: clients reconnect.
#[utoipa::path(post, path = "/v1/devices/{device}/revert", tag = "devices", params(("device" = String, Path,)),
    request_body = api::Revert,
    responses((status = 200, body = api::Reverted), (status = "default", body = ErrorBody)))]
async fn revert(
    State(server): State<Arc<Server>>,
    Path(device): Path<String>,
    Body(request): Body<api::Revert>,
) -> Answer<api::Reverted> {
    blocking(server, move |server| server.revert_device(&device, &request)).await
}

/// Changes how much history is kept. A volume that is read-only since its history was full beneath
/// its floor is opened again by it, and its sessions end: clients connect again.
#[utoipa::path(put, path = "/v1/devices/{device}/window", tag = "devices", params(("device" = String, Path,)),
    request_body = api::Window,
    responses((status = 200, body = api::HistoryStatus), (status = "default", body = ErrorBody)))]
async fn set_window(
    State(server): State<Arc<Server>>,
    Path(device): Path<String>,
    Body(request): Body<api::Window>,
) -> Answer<api::HistoryStatus> {
    blocking(server, move |server| server.set_window(&device, &request)).await
}

/// Makes the store of a history larger while clients use the device or volume.
#[utoipa::path(post, path = "/v1/devices/{device}/grow-history", tag = "devices",
    params(("device" = String, Path,)), request_body = api::GrowHistory,
    responses((status = 200, body = api::HistoryStatus), (status = "default", body = ErrorBody)))]
async fn grow_history(
    State(server): State<Arc<Server>>,
    Path(device): Path<String>,
    Body(request): Body<api::GrowHistory>,
) -> Answer<api::HistoryStatus> {
    blocking(server, move |server| server.grow_history(&device, &request)).await
}

/// Puts a history under a volume, and ends its sessions: clients connect again. Named by a path, on
/// the control socket only.
#[utoipa::path(post, path = "/v1/volumes/{volume}/history", tag = "devices", params(("volume" = String, Path,)),
    request_body = api::EnableHistory,
    responses((status = 200, body = api::HistoryEnabled), (status = "default", body = ErrorBody)))]
async fn enable_history(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::EnableHistory>,
) -> Answer<api::HistoryEnabled> {
    blocking(server, move |server| server.enable_history(&volume, &request)).await
}

/// Takes the history away from under a volume, and ends its sessions: clients connect again once it
/// is over. The answer is a job.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/history", tag = "devices", params(("volume" = String, Path,)),
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn disable_history(State(server): State<Arc<Server>>, Path(volume): Path<String>) -> Answer<api::Job> {
    let mine = server.clone();
    blocking(server, move |_| mine.disable_history(&volume)).await
}

/// Opens a volume whose history is lost on the content of its devices.
#[utoipa::path(post, path = "/v1/volumes/{volume}/history/discard", tag = "devices", params(("volume" = String, Path,)),
    request_body = api::DiscardHistory,
    responses((status = 200, body = api::DiscardedHistory), (status = "default", body = ErrorBody)))]
async fn discard_history(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::DiscardHistory>,
) -> Answer<api::DiscardedHistory> {
    blocking(server, move |server| server.discard_history(&volume, &request)).await
}

/// Accepts a history store, of a device or under a volume, that is older than the last one seen,
/// because it and its disk were both restored from a backup.
#[utoipa::path(post, path = "/v1/devices/{device}/accept-older", tag = "devices", params(("device" = String, Path,)),
    request_body = api::AcceptOlder,
    responses((status = 200, body = api::AcceptedOlder), (status = "default", body = ErrorBody)))]
async fn accept_older(
    State(server): State<Arc<Server>>,
    Path(device): Path<String>,
    Body(request): Body<api::AcceptOlder>,
) -> Answer<api::AcceptedOlder> {
    blocking(server, move |server| server.accept_older(&device, &request)).await
}

/// Changes access to the export of a device, and its settings. Closes its sessions and those of its
/// views.
#[utoipa::path(patch, path = "/v1/devices/{device}/access", tag = "devices", params(("device" = String, Path,)),
    request_body = api::SetAccess,
    responses((status = 200, body = api::Export), (status = "default", body = ErrorBody)))]
async fn set_device_access(
    State(server): State<Arc<Server>>,
    Path(device): Path<String>,
    Body(request): Body<api::SetAccess>,
) -> Answer<api::Export> {
    blocking(server, move |server| server.set_access(&device, &request)).await
}

/// Refuses a request that names a file or a disk of the server's machine. The token gives full
/// access to volumes; with such requests its holder could also read or overwrite any file that the
/// server can open, or write one with the content of a volume.
pub(super) async fn refuse_paths(request: Request, next: Next) -> Result<Response, Refusal> {
    if request.method() != Method::POST {
        return Ok(next.run(request).await);
    }
    let (head, body) = request.into_parts();
    let too_long = |_| ServerError::Invalid {
        fault: "the request is larger than 1 MiB",
        next: "use a client of the same version as the server",
    };
    let body = to_bytes(body, MAX_BODY).await.map_err(too_long)?;
    if names_a_path(head.uri.path(), &body) {
        let what = "a path names a file or a disk of the server's machine";
        return Err(ServerError::Daemon(DaemonError::LocalOnly { what }).into());
    }
    Ok(next.run(Request::from_parts(head, Bytes::from(body))).await)
}

/// Whether a request names a path. It is parsed as its handler does, as one form can be written in
/// several ways; the handler refuses other requests.
fn names_a_path(path: &str, body: &[u8]) -> bool {
    fn asks<T: DeserializeOwned>(body: &[u8], is_so: impl FnOnce(T) -> bool) -> bool {
        serde_json::from_slice(body).is_ok_and(is_so)
    }
    let is_path = |place: &String| !place.starts_with("lun:");
    match path.split('/').collect::<Vec<_>>()[..] {
        ["", "v1", "devices"] => asks(body, |asked: api::AdoptDevice| {
            is_path(&asked.origin) || asked.history.as_ref().is_some_and(is_path)
        }),
        ["", "v1", "buckets"] => asks(body, |asked: api::AddBucket| {
            asked.place.starts_with("file:")
                || asked.credentials.is_some()
                || asked.authority.is_some()
                || asked.key.is_some()
        }),
        ["", "v1", "buckets", _, "key"] => asks(body, |_: api::SetBucketKey| true),
        ["", "v1", "buckets", _, "open"] => asks(body, |asked: api::OpenFromBucket| {
            !asked.devices.is_empty() || asked.cache.is_some_and(|cache| cache.disk.is_some())
        }),
        ["", "v1", "volumes"] => asks(body, |asked: api::CreateVolume| {
            !asked.devices.is_empty()
                || asked.log_device.is_some()
                || asked.history.is_some()
                || asked.cache.is_some_and(|cache| cache.disk.is_some())
        }),
        ["", "v1", "mirrors"] => asks(body, |asked: api::CreateMirror| {
            !asked.devices.is_empty()
                || asked.log_device.is_some()
                || asked.history.is_some()
                || asked.seed.is_some_and(|seed| seed.spill.is_some())
        }),
        ["", "v1", "volumes", _, "history"] => asks(body, |_: api::EnableHistory| true),
        ["", "v1", "volumes", _, "log"] => asks(body, |asked: api::MoveLog| asked.device.is_some()),
        ["", "v1", "mirrors", _, "resync" | "failback"] => {
            asks(body, |asked: api::ResyncRequest| asked.spill.is_some())
        }
        ["", "v1", "recordings"] => asks(body, |_: api::RecordExport| true),
        ["", "v1", "bucket-restores"] => {
            asks(body, |asked: api::RestoreBucketMirror| !asked.devices.is_empty())
        }
        ["", "v1", "images", "restore"] => asks(body, |asked: api::RestoreRequest| !asked.devices.is_empty()),
        _ => false,
    }
}
