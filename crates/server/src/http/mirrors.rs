//! Peers and mirrors over HTTP.

use std::sync::Arc;

use axum::extract::{Path, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(list_peers))
        .routes(routes!(invite_peer))
        .routes(routes!(rename_peer, revoke_peer))
        .routes(routes!(list_mirrors, create_mirror))
        .routes(routes!(plan_mirror))
        .routes(routes!(show_mirror, set_mirror, delete_mirror))
        .routes(routes!(update_mirror, price_update))
        .routes(routes!(abort_mirror))
        .routes(routes!(repoint_mirror))
        .routes(routes!(rewind_mirror))
        .routes(routes!(verify_mirror))
        .routes(routes!(forget_follower))
        .routes(routes!(failover))
        .routes(routes!(divergence))
        .routes(routes!(resync_mirror))
        .routes(routes!(failback_mirror))
        .routes(routes!(reverse_mirror))
        .routes(routes!(allow_reverse))
        .routes(routes!(unlock_mirror))
        .routes(routes!(dry_run))
}

/// Who may mirror from here, and who is invited to.
#[utoipa::path(get, path = "/v1/peers", tag = "peers", responses((status = 200, body = [api::Peer])))]
async fn list_peers(State(server): State<Arc<Server>>) -> Answer<Vec<api::Peer>> {
    blocking(server, |server| Ok(server.list_peers())).await
}

/// Makes a token that one destination can use once.
#[utoipa::path(post, path = "/v1/peers/invite", tag = "peers", request_body = api::Invite,
    responses((status = 200, body = api::Invitation), (status = "default", body = ErrorBody)))]
async fn invite_peer(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::Invite>,
) -> Answer<api::Invitation> {
    blocking(server, move |server| server.invite(&request)).await
}

/// Renames a peer. All peers with its certificate get the name.
#[utoipa::path(patch, path = "/v1/peers/{peer}", tag = "peers", params(("peer" = String, Path,)),
    request_body = api::RenamePeer,
    responses((status = 200, body = api::Peer), (status = "default", body = ErrorBody)))]
async fn rename_peer(
    State(server): State<Arc<Server>>,
    Path(peer): Path<String>,
    Body(request): Body<api::RenamePeer>,
) -> Answer<api::Peer> {
    blocking(server, move |server| server.rename_peer(&peer, &request.name)).await
}

/// Forgets a peer or an invitation.
#[utoipa::path(delete, path = "/v1/peers/{peer}", tag = "peers", params(("peer" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn revoke_peer(State(server): State<Arc<Server>>, Path(peer): Path<String>) -> Answer<()> {
    blocking(server, move |server| server.revoke_peer(&peer)).await
}

/// The mirrors of which this server is the destination.
#[utoipa::path(get, path = "/v1/mirrors", tag = "mirrors", responses((status = 200, body = [api::Mirror])))]
async fn list_mirrors(State(server): State<Arc<Server>>) -> Answer<Vec<api::Mirror>> {
    blocking(server, |server| Ok(server.list_mirrors())).await
}

/// Provisions a mirror, begins its baseline and installs its schedule; or makes a volume that is
/// here the mirror. Devices, a log device, a history and a spill are named on the control socket
/// only.
#[utoipa::path(post, path = "/v1/mirrors", tag = "mirrors", request_body = api::CreateMirror,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn create_mirror(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::CreateMirror>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.create_mirror(request)).await
}

/// What the creation of a mirror would send. The token is used; the same server can use it again.
#[utoipa::path(post, path = "/v1/mirror-plans", tag = "mirrors", request_body = api::CreateMirror,
    responses((status = 200, body = api::MirrorPlan), (status = "default", body = ErrorBody)))]
async fn plan_mirror(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::CreateMirror>,
) -> Answer<api::MirrorPlan> {
    blocking(server, move |server| server.plan_mirror(&request)).await
}

/// One mirror.
#[utoipa::path(get, path = "/v1/mirrors/{mirror}", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = api::Mirror), (status = "default", body = ErrorBody)))]
async fn show_mirror(State(server): State<Arc<Server>>, Path(mirror): Path<String>) -> Answer<api::Mirror> {
    blocking(server, move |server| server.show_mirror(&mirror)).await
}

/// Ends a mirror and deletes its volume; its source is told.
#[utoipa::path(delete, path = "/v1/mirrors/{mirror}", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = api::DeletedMirror), (status = "default", body = ErrorBody)))]
async fn delete_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
) -> Answer<api::DeletedMirror> {
    blocking(server, move |server| server.delete_mirror(&mirror)).await
}

/// Changes what is wanted of a mirror: its schedule, its lag, whether the source holds a base,
/// whether it is paused.
#[utoipa::path(patch, path = "/v1/mirrors/{mirror}", tag = "mirrors",
    params(("mirror" = String, Path,)), request_body = api::SetMirror,
    responses((status = 200, body = api::Mirror), (status = "default", body = ErrorBody)))]
async fn set_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::SetMirror>,
) -> Answer<api::Mirror> {
    blocking(server, move |server| server.set_mirror(&mirror, &request)).await
}

/// Begins an update now.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/update", tag = "mirrors",
    params(("mirror" = String, Path,)), request_body = api::UpdateRequest,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn update_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::UpdateRequest>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.update_mirror(&mirror, &request)).await
}

/// What an update now would bring: the source is asked, and nothing is sent.
#[utoipa::path(get, path = "/v1/mirrors/{mirror}/update", tag = "mirrors",
    params(("mirror" = String, Path,)),
    responses((status = 200, body = api::UpdatePrice), (status = "default", body = ErrorBody)))]
async fn price_update(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
) -> Answer<api::UpdatePrice> {
    blocking(server, move |server| server.price_update(&mirror)).await
}

/// Brings a mirror over a history back to what it showed at an instant, ends its sessions, and
/// pauses it.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/rewind", tag = "mirrors", params(("mirror" = String, Path,)),
    request_body = api::Revert,
    responses((status = 200, body = api::Reverted), (status = "default", body = ErrorBody)))]
async fn rewind_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::Revert>,
) -> Answer<api::Reverted> {
    blocking(server, move |server| server.rewind_mirror(&mirror, &request)).await
}

/// Makes a mirror follow another server that has the same volume, without a new baseline.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/repoint", tag = "mirrors", params(("mirror" = String, Path,)),
    request_body = api::RepointMirror, responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn repoint_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::RepointMirror>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.repoint_mirror(&mirror, &request)).await
}

/// Ends a running update; answers when it is over. What it brought is there for the next one.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/abort", tag = "mirrors",
    params(("mirror" = String, Path,)),
    responses((status = 200, body = api::Aborted), (status = "default", body = ErrorBody)))]
async fn abort_mirror(State(server): State<Arc<Server>>, Path(mirror): Path<String>) -> Answer<api::Aborted> {
    blocking(server, move |server| server.abort_mirror(&mirror)).await
}

/// Compares a mirror with its source, region by region, and mends what is damaged on either side.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/verify", tag = "mirrors",
    params(("mirror" = String, Path,)), request_body = api::VerifyRequest,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn verify_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::VerifyRequest>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.verify_mirror(&mirror, &request)).await
}

/// On the source: lets go of what is kept for a mirror that will not come again.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/followers/{follower}", tag = "mirrors",
    params(("volume" = String, Path,), ("follower" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn forget_follower(
    State(server): State<Arc<Server>>,
    Path((volume, follower)): Path<(String, String)>,
) -> Answer<()> {
    blocking(server, move |server| server.forget_follower(&volume, &follower)).await
}

/// What following the other side would give up here.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/divergence", tag = "mirrors",
    params(("mirror" = String, Path,)), request_body = api::DivergenceRequest,
    responses((status = 200, body = api::Divergence), (status = "default", body = ErrorBody)))]
async fn divergence(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::DivergenceRequest>,
) -> Answer<api::Divergence> {
    blocking(server, move |server| server.divergence(&mirror, &request)).await
}

/// Makes the volume follow the other side again, after both were written to. Only what diverged is
/// sent. A file for what is spilled is named on the control socket only.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/resync", tag = "mirrors",
    params(("mirror" = String, Path,)), request_body = api::ResyncRequest,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn resync_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::ResyncRequest>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.resync_mirror(&mirror, request)).await
}

/// Resync, and then the roles change: this side is the source again.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/failback", tag = "mirrors",
    params(("mirror" = String, Path,)), request_body = api::ResyncRequest,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn failback_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::ResyncRequest>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.failback_mirror(&mirror, request)).await
}

/// Changes the roles as planned: the source stops, its last changes are brought, and this side
/// takes writes.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/reverse", tag = "mirrors",
    params(("mirror" = String, Path,)),
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn reverse_mirror(State(server): State<Arc<Server>>, Path(mirror): Path<String>) -> Answer<api::Job> {
    blocking(server, move |server| server.reverse_mirror(&mirror)).await
}

/// Makes the mirror an ordinary volume, without asking the source; or says what that would lose.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/failover", tag = "mirrors",
    params(("mirror" = String, Path,)), request_body = api::FailoverRequest,
    responses((status = 200, body = api::Failover), (status = "default", body = ErrorBody)))]
async fn failover(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::FailoverRequest>,
) -> Answer<api::Failover> {
    blocking(server, move |server| server.failover_alone(&mirror, request.dry_run)).await
}

/// On the source: lets a mirror of the volume take over (`reverse`) within some time.
#[utoipa::path(post, path = "/v1/volumes/{volume}/allow-reverse", tag = "mirrors",
    params(("volume" = String, Path,)), request_body = api::AllowReverse,
    responses((status = 200, body = api::ReverseAllowed), (status = "default", body = ErrorBody)))]
async fn allow_reverse(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::AllowReverse>,
) -> Answer<api::ReverseAllowed> {
    blocking(server, move |server| server.allow_reverse(&volume, &request)).await
}

/// Lifts the locks of a mirror's snapshots for a while, with its lock key.
#[utoipa::path(post, path = "/v1/mirrors/{mirror}/unlock", tag = "mirrors",
    params(("mirror" = String, Path,)), request_body = api::UnlockMirror,
    responses((status = 200, body = api::Mirror), (status = "default", body = ErrorBody)))]
async fn unlock_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::UnlockMirror>,
) -> Answer<api::Mirror> {
    blocking(server, move |server| server.unlock_mirror(&mirror, &request)).await
}

/// Whether a command would be refused, and why; nothing is done.
#[utoipa::path(post, path = "/v1/dry-run", tag = "server", request_body = api::DryRun,
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn dry_run(State(server): State<Arc<Server>>, Body(request): Body<api::DryRun>) -> Answer<()> {
    blocking(server, move |server| server.dry_run(&request)).await
}
