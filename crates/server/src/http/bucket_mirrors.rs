//! Mirrors in buckets over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(list_bucket_mirrors, create_bucket_mirror))
        .routes(routes!(plan_bucket_mirror))
        .routes(routes!(show_bucket_mirror, set_bucket_mirror, delete_bucket_mirror))
        .routes(routes!(price_bucket_update, update_bucket_mirror))
        .routes(routes!(abort_bucket_mirror))
        .routes(routes!(verify_bucket_mirror))
        .routes(routes!(purge_bucket_mirror))
        .routes(routes!(restore_bucket_mirror))
        .routes(routes!(bucket_images))
}

/// The mirrors of volumes of this server in buckets.
#[utoipa::path(get, path = "/v1/bucket-mirrors", tag = "mirrors",
    responses((status = 200, body = [api::BucketMirror]), (status = "default", body = ErrorBody)))]
async fn list_bucket_mirrors(State(server): State<Arc<Server>>) -> Answer<Vec<api::BucketMirror>> {
    blocking(server, |server| Ok(server.list_bucket_mirrors())).await
}

/// Mirrors a volume into a bucket. The answer is the job of the first image.
#[utoipa::path(post, path = "/v1/bucket-mirrors", tag = "mirrors", request_body = api::CreateBucketMirror,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn create_bucket_mirror(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::CreateBucketMirror>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.create_bucket_mirror(&request)).await
}

/// The cost of a mirror in a bucket. Nothing is made.
#[utoipa::path(post, path = "/v1/bucket-mirrors/plan", tag = "mirrors", request_body = api::CreateBucketMirror,
    responses((status = 200, body = api::BucketMirrorPlan), (status = "default", body = ErrorBody)))]
async fn plan_bucket_mirror(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::CreateBucketMirror>,
) -> Answer<api::BucketMirrorPlan> {
    blocking(server, move |server| server.plan_bucket_mirror(&request)).await
}

/// One mirror in a bucket.
#[utoipa::path(get, path = "/v1/bucket-mirrors/{mirror}", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = api::BucketMirror), (status = "default", body = ErrorBody)))]
async fn show_bucket_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
) -> Answer<api::BucketMirror> {
    blocking(server, move |server| server.show_bucket_mirror(&mirror)).await
}

/// Changes the settings of a mirror in a bucket, pauses or resumes it.
#[utoipa::path(patch, path = "/v1/bucket-mirrors/{mirror}", tag = "mirrors", params(("mirror" = String, Path,)),
    request_body = api::SetBucketMirror,
    responses((status = 200, body = api::BucketMirror), (status = "default", body = ErrorBody)))]
async fn set_bucket_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
    Body(request): Body<api::SetBucketMirror>,
) -> Answer<api::BucketMirror> {
    blocking(server, move |server| server.set_bucket_mirror(&mirror, &request)).await
}

/// Deletes a mirror in a bucket. Its images stay.
#[utoipa::path(delete, path = "/v1/bucket-mirrors/{mirror}", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = api::DeletedBucketMirror), (status = "default", body = ErrorBody)))]
async fn delete_bucket_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
) -> Answer<api::DeletedBucketMirror> {
    blocking(server, move |server| server.delete_bucket_mirror(&mirror)).await
}

/// The cost of an update now, at most. Nothing is sent.
#[utoipa::path(get, path = "/v1/bucket-mirrors/{mirror}/update", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = api::BucketMirrorPlan), (status = "default", body = ErrorBody)))]
async fn price_bucket_update(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
) -> Answer<api::BucketMirrorPlan> {
    blocking(server, move |server| server.price_bucket_update(&mirror)).await
}

/// Begins an update now. The answer is a job.
#[utoipa::path(post, path = "/v1/bucket-mirrors/{mirror}/update", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn update_bucket_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.update_bucket_mirror(&mirror)).await
}

/// Cancels a running update, and answers at its end. The next update uses what it put.
#[utoipa::path(post, path = "/v1/bucket-mirrors/{mirror}/abort", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = api::Aborted), (status = "default", body = ErrorBody)))]
async fn abort_bucket_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
) -> Answer<api::Aborted> {
    blocking(server, move |server| server.abort_bucket_mirror(&mirror)).await
}

/// Reads the newest image, and compares it with its snapshot here. The answer is a job.
#[utoipa::path(post, path = "/v1/bucket-mirrors/{mirror}/verify", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn verify_bucket_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.verify_bucket_mirror(&mirror)).await
}

/// Deletes the images of a mirror, and then the mirror. The answer is a job.
#[utoipa::path(post, path = "/v1/bucket-mirrors/{mirror}/purge", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn purge_bucket_mirror(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.purge_bucket_mirror(&mirror)).await
}

/// Makes a new volume of an image in a bucket. The answer is a job. Devices are accepted on the
/// control socket only.
#[utoipa::path(post, path = "/v1/bucket-restores", tag = "mirrors", request_body = api::RestoreBucketMirror,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn restore_bucket_mirror(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::RestoreBucketMirror>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.restore_bucket_mirror(&request)).await
}

/// The mirrored volumes in a bucket, with their images.
#[utoipa::path(get, path = "/v1/buckets/{bucket}/images", tag = "buckets",
    params(("bucket" = String, Path,), api::BucketImagesQuery),
    responses((status = 200, body = api::BucketImages), (status = "default", body = ErrorBody)))]
async fn bucket_images(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Query(query): Query<api::BucketImagesQuery>,
) -> Answer<api::BucketImages> {
    blocking(server, move |server| server.bucket_images(&bucket, &query)).await
}
