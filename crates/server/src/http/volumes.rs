//! Volumes, LUNs and snapshots over HTTP.

use std::sync::Arc;

use axum::extract::{Path, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(list_volumes, create_volume))
        .routes(routes!(show_volume, delete_volume))
        .routes(routes!(grow_volume))
        .routes(routes!(check_volume))
        .routes(routes!(show_scrub, scrub_volume))
        .routes(routes!(move_log))
        .routes(routes!(discard_log))
        .routes(routes!(show_rehearsal, rehearse))
        .routes(routes!(list_luns, create_lun))
        .routes(routes!(resize_lun, delete_lun))
        .routes(routes!(set_access))
        .routes(routes!(list_snapshots, create_snapshot))
        .routes(routes!(delete_snapshot))
        .routes(routes!(snapshot_frees))
        .routes(routes!(rename_snapshot))
        .routes(routes!(hold_snapshot))
        .routes(routes!(rollback))
        .routes(routes!(show_hooks, set_hooks))
        .routes(routes!(show_governor, set_governor))
        .routes(routes!(list_schedules))
        .routes(routes!(set_schedule, remove_schedule))
        .routes(routes!(simulate_schedule))
}

/// The volumes.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", responses((status = 200, body = [api::Volume])))]
async fn list_volumes(State(server): State<Arc<Server>>) -> Answer<Vec<api::Volume>> {
    blocking(server, |server| Ok(server.volumes.list())).await
}

/// Makes a volume. Devices, a log device and a history are named on the control socket only.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = api::CreateVolume,
    responses((status = 200, body = api::Volume), (status = "default", body = ErrorBody)))]
async fn create_volume(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::CreateVolume>,
) -> Answer<api::Volume> {
    blocking(server, move |server| server.create_volume(&request)).await
}

/// One volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path,)),
    responses((status = 200, body = api::Volume), (status = "default", body = ErrorBody)))]
async fn show_volume(State(server): State<Arc<Server>>, Path(volume): Path<String>) -> Answer<api::Volume> {
    blocking(server, move |server| server.volumes.show(&volume)).await
}

/// Deletes a volume and its content.
#[utoipa::path(delete, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn delete_volume(State(server): State<Arc<Server>>, Path(volume): Path<String>) -> Answer<()> {
    blocking(server, move |server| server.delete_volume(&volume)).await
}

/// Grows a volume while it is in use.
#[utoipa::path(post, path = "/v1/volumes/{volume}/grow", tag = "volumes", params(("volume" = String, Path,)),
    request_body = api::GrowVolume,
    responses((status = 200, body = api::Volume), (status = "default", body = ErrorBody)))]
async fn grow_volume(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::GrowVolume>,
) -> Answer<api::Volume> {
    blocking(server, move |server| server.grow_volume(&volume, &request)).await
}

/// Moves the intent log of a volume while it is in use: one consistency point. A device is named on
/// the control socket only.
#[utoipa::path(post, path = "/v1/volumes/{volume}/log", tag = "volumes", params(("volume" = String, Path,)),
    request_body = api::MoveLog,
    responses((status = 200, body = api::Volume), (status = "default", body = ErrorBody)))]
async fn move_log(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::MoveLog>,
) -> Answer<api::Volume> {
    blocking(server, move |server| server.move_log(&volume, &request)).await
}

/// Opens a volume that lacks its intent log, at the last consistency point. Later writes are lost,
/// even flushed ones.
#[utoipa::path(post, path = "/v1/volumes/{volume}/log/discard", tag = "volumes",
    params(("volume" = String, Path,)), request_body = api::DiscardLogRequest,
    responses((status = 200, body = api::DiscardedLog), (status = "default", body = ErrorBody)))]
async fn discard_log(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::DiscardLogRequest>,
) -> Answer<api::DiscardedLog> {
    blocking(server, move |server| server.discard_log(&volume, request.dry_run)).await
}

/// The faults that are put under a volume on purpose.
#[utoipa::path(get, path = "/v1/volumes/{volume}/rehearsal", tag = "volumes", params(("volume" = String, Path,)),
    responses((status = 200, body = api::RehearsalStatus), (status = "default", body = ErrorBody)))]
async fn show_rehearsal(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
) -> Answer<api::RehearsalStatus> {
    blocking(server, move |server| server.volumes.rehearsal(&volume)).await
}

/// Puts deliberate faults under a volume, until they are removed or the server ends.
#[utoipa::path(put, path = "/v1/volumes/{volume}/rehearsal", tag = "volumes", params(("volume" = String, Path,)),
    request_body = api::Rehearsal,
    responses((status = 200, body = api::RehearsalStatus), (status = "default", body = ErrorBody)))]
async fn rehearse(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::Rehearsal>,
) -> Answer<api::RehearsalStatus> {
    blocking(server, move |server| server.volumes.rehearse(&volume, &request)).await
}

/// Begins to check a volume: trees, maps and tables are compared; with `deep`, every block of data
/// is read and compared with its checksum.
#[utoipa::path(post, path = "/v1/volumes/{volume}/check", tag = "volumes", params(("volume" = String, Path,)),
    request_body = api::CheckRequest,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn check_volume(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::CheckRequest>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.check_volume(&volume, request.deep)).await
}

/// The state of a volume's scrub, and the volume's damage.
#[utoipa::path(get, path = "/v1/volumes/{volume}/scrub", tag = "volumes", params(("volume" = String, Path,)),
    responses((status = 200, body = api::Scrub), (status = "default", body = ErrorBody)))]
async fn show_scrub(State(server): State<Arc<Server>>, Path(volume): Path<String>) -> Answer<api::Scrub> {
    blocking(server, move |server| Ok(server.volumes.get(&volume)?.show_scrub())).await
}

/// Begins, changes or stops the scrub of a volume: it reads everything that the volume shows from
/// the media, in the background.
#[utoipa::path(put, path = "/v1/volumes/{volume}/scrub", tag = "volumes", params(("volume" = String, Path,)),
    request_body = api::ScrubRequest,
    responses((status = 200, body = api::Scrub), (status = "default", body = ErrorBody)))]
async fn scrub_volume(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::ScrubRequest>,
) -> Answer<api::Scrub> {
    blocking(server, move |server| server.scrub_volume(&volume, &request)).await
}

/// The LUNs of a volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}/luns", tag = "luns", params(("volume" = String, Path,)),
    responses((status = 200, body = [api::Lun]), (status = "default", body = ErrorBody)))]
async fn list_luns(State(server): State<Arc<Server>>, Path(volume): Path<String>) -> Answer<Vec<api::Lun>> {
    blocking(server, move |server| server.list_luns(&volume)).await
}

/// Makes a LUN; it is exported at once.
#[utoipa::path(post, path = "/v1/volumes/{volume}/luns", tag = "luns", params(("volume" = String, Path,)),
    request_body = api::CreateLun,
    responses((status = 200, body = api::Lun), (status = "default", body = ErrorBody)))]
async fn create_lun(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::CreateLun>,
) -> Answer<api::Lun> {
    blocking(server, move |server| server.create_lun(&volume, &request)).await
}

/// Resizes a LUN; clients see it when they connect again.
#[utoipa::path(patch, path = "/v1/volumes/{volume}/luns/{lun}", tag = "luns",
    params(("volume" = String, Path,), ("lun" = String, Path,)), request_body = api::ResizeLun,
    responses((status = 200, body = api::Lun), (status = "default", body = ErrorBody)))]
async fn resize_lun(
    State(server): State<Arc<Server>>,
    Path((volume, lun)): Path<(String, String)>,
    Body(request): Body<api::ResizeLun>,
) -> Answer<api::Lun> {
    blocking(server, move |server| server.resize_lun(&volume, &lun, &request)).await
}

/// Deletes a LUN; snapshots keep their content.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/luns/{lun}", tag = "luns",
    params(("volume" = String, Path,), ("lun" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn delete_lun(
    State(server): State<Arc<Server>>,
    Path((volume, lun)): Path<(String, String)>,
) -> Answer<()> {
    blocking(server, move |server| server.delete_lun(&volume, &lun)).await
}

/// Changes access to the export of a LUN, and its settings. Closes its sessions.
#[utoipa::path(patch, path = "/v1/volumes/{volume}/luns/{lun}/access", tag = "luns",
    params(("volume" = String, Path,), ("lun" = String, Path,)), request_body = api::SetAccess,
    responses((status = 200, body = api::Export), (status = "default", body = ErrorBody)))]
async fn set_access(
    State(server): State<Arc<Server>>,
    Path((volume, lun)): Path<(String, String)>,
    Body(request): Body<api::SetAccess>,
) -> Answer<api::Export> {
    blocking(server, move |server| server.set_access(&format!("{volume}/{lun}"), &request)).await
}

/// The snapshots of a volume, the oldest first.
#[utoipa::path(get, path = "/v1/volumes/{volume}/snapshots", tag = "snapshots",
    params(("volume" = String, Path,)),
    responses((status = 200, body = [api::Snapshot]), (status = "default", body = ErrorBody)))]
async fn list_snapshots(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
) -> Answer<Vec<api::Snapshot>> {
    blocking(server, move |server| server.list_snapshots(&volume)).await
}

/// Makes a snapshot.
#[utoipa::path(post, path = "/v1/volumes/{volume}/snapshots", tag = "snapshots",
    params(("volume" = String, Path,)), request_body = api::CreateSnapshot,
    responses((status = 200, body = api::Snapshot), (status = "default", body = ErrorBody)))]
async fn create_snapshot(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::CreateSnapshot>,
) -> Answer<api::Snapshot> {
    blocking(server, move |server| server.create_snapshot(&volume, &request.name)).await
}

/// Deletes a snapshot; blocks that nothing else uses become free.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/snapshots/{snapshot}", tag = "snapshots",
    params(("volume" = String, Path,), ("snapshot" = String, Path,)),
    responses((status = 200, body = api::Freed), (status = "default", body = ErrorBody)))]
async fn delete_snapshot(
    State(server): State<Arc<Server>>,
    Path((volume, snapshot)): Path<(String, String)>,
) -> Answer<api::Freed> {
    blocking(server, move |server| server.delete_snapshot(&volume, &snapshot)).await
}

/// The space that a deletion of a snapshot would free, alone and together with the snapshots before
/// and after it. Nothing is deleted.
#[utoipa::path(get, path = "/v1/volumes/{volume}/snapshots/{snapshot}/frees", tag = "snapshots",
    params(("volume" = String, Path,), ("snapshot" = String, Path,)),
    responses((status = 200, body = api::SnapshotFrees), (status = "default", body = ErrorBody)))]
async fn snapshot_frees(
    State(server): State<Arc<Server>>,
    Path((volume, snapshot)): Path<(String, String)>,
) -> Answer<api::SnapshotFrees> {
    // It reads maps from the disk of the volume, which may hang.
    let place = server.browsing.look(&volume)?;
    blocking(server, move |server| {
        let _place = place;
        server.snapshot_frees(&volume, &snapshot)
    })
    .await
}

/// Renames a snapshot.
#[utoipa::path(post, path = "/v1/volumes/{volume}/snapshots/{snapshot}/rename", tag = "snapshots",
    params(("volume" = String, Path,), ("snapshot" = String, Path,)), request_body = api::RenameSnapshot,
    responses((status = 200, body = api::Snapshot), (status = "default", body = ErrorBody)))]
async fn rename_snapshot(
    State(server): State<Arc<Server>>,
    Path((volume, snapshot)): Path<(String, String)>,
    Body(request): Body<api::RenameSnapshot>,
) -> Answer<api::Snapshot> {
    blocking(server, move |server| server.rename_snapshot(&volume, &snapshot, &request.name)).await
}

/// Rolls the volume back to a snapshot. The answer is the snapshot of the state before: roll back
/// to it to undo.
#[utoipa::path(post, path = "/v1/volumes/{volume}/snapshots/{snapshot}/rollback", tag = "snapshots",
    params(("volume" = String, Path,), ("snapshot" = String, Path,)),
    responses((status = 200, body = api::Snapshot), (status = "default", body = ErrorBody)))]
async fn rollback(
    State(server): State<Arc<Server>>,
    Path((volume, snapshot)): Path<(String, String)>,
) -> Answer<api::Snapshot> {
    blocking(server, move |server| server.rollback_alone(&volume, &snapshot)).await
}

/// Holds a snapshot, so that it can't be deleted, or lets it go.
#[utoipa::path(post, path = "/v1/volumes/{volume}/snapshots/{snapshot}/hold", tag = "snapshots",
    params(("volume" = String, Path,), ("snapshot" = String, Path,)), request_body = api::HoldSnapshot,
    responses((status = 200, body = api::Snapshot), (status = "default", body = ErrorBody)))]
async fn hold_snapshot(
    State(server): State<Arc<Server>>,
    Path((volume, snapshot)): Path<(String, String)>,
    Body(request): Body<api::HoldSnapshot>,
) -> Answer<api::Snapshot> {
    blocking(server, move |server| server.hold_snapshot(&volume, &snapshot, request.held)).await
}

/// The commands around each snapshot of a volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}/hooks", tag = "snapshots", params(("volume" = String, Path,)),
    responses((status = 200, body = api::Hooks), (status = "default", body = ErrorBody)))]
async fn show_hooks(State(server): State<Arc<Server>>, Path(volume): Path<String>) -> Answer<api::Hooks> {
    blocking(server, move |server| server.show_hooks(&volume)).await
}

/// Changes them.
#[utoipa::path(patch, path = "/v1/volumes/{volume}/hooks", tag = "snapshots", params(("volume" = String, Path,)),
    request_body = api::SetHooks, responses((status = 200, body = api::Hooks), (status = "default", body = ErrorBody)))]
async fn set_hooks(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::SetHooks>,
) -> Answer<api::Hooks> {
    blocking(server, move |server| server.set_hooks(&volume, &request)).await
}

/// The limit on the cost of a volume's mirrors for its clients, and the present cost.
#[utoipa::path(get, path = "/v1/volumes/{volume}/governor", tag = "mirrors", params(("volume" = String, Path,)),
    responses((status = 200, body = api::Governor), (status = "default", body = ErrorBody)))]
async fn show_governor(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
) -> Answer<api::Governor> {
    blocking(server, move |server| server.show_governor(&volume)).await
}

/// Sets it.
#[utoipa::path(put, path = "/v1/volumes/{volume}/governor", tag = "mirrors", params(("volume" = String, Path,)),
    request_body = api::SetGovernor, responses((status = 200, body = api::Governor), (status = "default", body = ErrorBody)))]
async fn set_governor(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::SetGovernor>,
) -> Answer<api::Governor> {
    blocking(server, move |server| server.set_governor(&volume, &request)).await
}

/// The schedules of snapshots of a volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}/schedules", tag = "snapshots",
    params(("volume" = String, Path,)),
    responses((status = 200, body = [api::Schedule]), (status = "default", body = ErrorBody)))]
async fn list_schedules(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
) -> Answer<Vec<api::Schedule>> {
    blocking(server, move |server| server.list_schedules(&volume)).await
}

/// Sets a schedule of snapshots: makes it, or puts it in the place of the one with this label.
#[utoipa::path(put, path = "/v1/volumes/{volume}/schedules/{label}", tag = "snapshots",
    params(("volume" = String, Path,), ("label" = String, Path,)), request_body = api::SetSchedule,
    responses((status = 200, body = api::Schedule), (status = "default", body = ErrorBody)))]
async fn set_schedule(
    State(server): State<Arc<Server>>,
    Path((volume, label)): Path<(String, String)>,
    Body(request): Body<api::SetSchedule>,
) -> Answer<api::Schedule> {
    blocking(server, move |server| server.set_schedule(&volume, &label, &request)).await
}

/// Ends a schedule; its snapshots stay.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/schedules/{label}", tag = "snapshots",
    params(("volume" = String, Path,), ("label" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn remove_schedule(
    State(server): State<Arc<Server>>,
    Path((volume, label)): Path<(String, String)>,
) -> Answer<()> {
    blocking(server, move |server| server.remove_schedule(&volume, &label)).await
}

/// The snapshots that a schedule would have made and kept some time from now.
#[utoipa::path(post, path = "/v1/schedules/simulate", tag = "snapshots", request_body = api::Simulate,
    responses((status = 200, body = api::Simulation), (status = "default", body = ErrorBody)))]
async fn simulate_schedule(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::Simulate>,
) -> Answer<api::Simulation> {
    blocking(server, move |server| server.simulate_schedule(&request)).await
}
