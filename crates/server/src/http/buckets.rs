//! Buckets over HTTP.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, Refusal, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(list_buckets, add_bucket))
        .routes(routes!(show_bucket, delete_bucket))
        .routes(routes!(check_bucket))
        .routes(routes!(bucket_keys, add_bucket_recipient))
        .routes(routes!(remove_bucket_recipient))
        .routes(routes!(set_bucket_key))
        .routes(routes!(bucket_dumps))
        .routes(routes!(bucket_object))
        .routes(routes!(prune_bucket))
        .routes(routes!(open_from_bucket))
}

/// The buckets of this server.
#[utoipa::path(get, path = "/v1/buckets", tag = "buckets",
    responses((status = 200, body = [api::Bucket]), (status = "default", body = ErrorBody)))]
async fn list_buckets(State(server): State<Arc<Server>>) -> Answer<Vec<api::Bucket>> {
    blocking(server, |server| server.list_buckets()).await
}

/// Probes a bucket and adds it. The answer is a job. A directory, and files with credentials,
/// certificates or keys, are accepted on the control socket only.
#[utoipa::path(post, path = "/v1/buckets", tag = "buckets", request_body = api::AddBucket,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn add_bucket(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::AddBucket>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.add_bucket(request)).await
}

/// One bucket.
#[utoipa::path(get, path = "/v1/buckets/{bucket}", tag = "buckets", params(("bucket" = String, Path,)),
    responses((status = 200, body = api::Bucket), (status = "default", body = ErrorBody)))]
async fn show_bucket(State(server): State<Arc<Server>>, Path(bucket): Path<String>) -> Answer<api::Bucket> {
    blocking(server, move |server| server.show_bucket(&bucket)).await
}

/// Probes a bucket again. The answer is a job.
#[utoipa::path(post, path = "/v1/buckets/{bucket}/check", tag = "buckets", params(("bucket" = String, Path,)),
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn check_bucket(State(server): State<Arc<Server>>, Path(bucket): Path<String>) -> Answer<api::Job> {
    blocking(server, move |server| server.check_bucket(&bucket)).await
}

/// Deletes a bucket from this server's list. Its objects stay. It is refused while a job uses the
/// bucket.
#[utoipa::path(delete, path = "/v1/buckets/{bucket}", tag = "buckets",
    params(("bucket" = String, Path,), api::DeleteBucketQuery),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn delete_bucket(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Query(query): Query<api::DeleteBucketQuery>,
) -> Answer<()> {
    blocking(server, move |server| server.delete_bucket(&bucket, query)).await
}

/// The recipients of an encrypted bucket.
#[utoipa::path(get, path = "/v1/buckets/{bucket}/keys", tag = "buckets", params(("bucket" = String, Path,)),
    responses((status = 200, body = api::BucketKeys), (status = "default", body = ErrorBody)))]
async fn bucket_keys(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
) -> Answer<api::BucketKeys> {
    blocking(server, move |server| server.bucket_keys(&bucket)).await
}

/// Adds a recipient to an encrypted bucket: its key is wrapped for one more public key.
#[utoipa::path(post, path = "/v1/buckets/{bucket}/keys", tag = "buckets", params(("bucket" = String, Path,)),
    request_body = api::AddBucketRecipient,
    responses((status = 200, body = api::BucketKeys), (status = "default", body = ErrorBody)))]
async fn add_bucket_recipient(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Body(request): Body<api::AddBucketRecipient>,
) -> Answer<api::BucketKeys> {
    blocking(server, move |server| server.add_bucket_recipient(&bucket, &request)).await
}

/// Removes a recipient of an encrypted bucket. Its owner may have kept the key of the bucket.
#[utoipa::path(delete, path = "/v1/buckets/{bucket}/keys/{recipient}", tag = "buckets",
    params(("bucket" = String, Path,), ("recipient" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn remove_bucket_recipient(
    State(server): State<Arc<Server>>,
    Path((bucket, recipient)): Path<(String, String)>,
) -> Answer<()> {
    blocking(server, move |server| server.remove_bucket_recipient(&bucket, &recipient)).await
}

/// Names the key file that this server opens an encrypted bucket with. Accepted on the control
/// socket only.
#[utoipa::path(post, path = "/v1/buckets/{bucket}/key", tag = "buckets", params(("bucket" = String, Path,)),
    request_body = api::SetBucketKey,
    responses((status = 200, body = api::Bucket), (status = "default", body = ErrorBody)))]
async fn set_bucket_key(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Body(request): Body<api::SetBucketKey>,
) -> Answer<api::Bucket> {
    blocking(server, move |server| server.set_bucket_key(&bucket, &request)).await
}

/// The image dumps in a bucket.
#[utoipa::path(get, path = "/v1/buckets/{bucket}/dumps", tag = "buckets",
    params(("bucket" = String, Path,), api::BucketDumpsQuery),
    responses((status = 200, body = api::BucketDumps), (status = "default", body = ErrorBody)))]
async fn bucket_dumps(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Query(query): Query<api::BucketDumpsQuery>,
) -> Answer<api::BucketDumps> {
    blocking(server, move |server| server.bucket_dumps(&bucket, &query)).await
}

/// Bytes of an object of a dump, as they are in the bucket.
#[utoipa::path(get, path = "/v1/buckets/{bucket}/object", tag = "buckets",
    params(("bucket" = String, Path,), api::BucketObjectQuery),
    responses((status = 200, content_type = "application/octet-stream", body = [u8]),
        (status = "default", body = ErrorBody)))]
async fn bucket_object(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Query(query): Query<api::BucketObjectQuery>,
) -> Result<Vec<u8>, Refusal> {
    let Json(bytes) = blocking(server, move |server| server.bucket_object(&bucket, &query)).await?;
    Ok(bytes)
}

/// Deletes image dumps that no rule keeps. The answer is a job.
#[utoipa::path(post, path = "/v1/buckets/{bucket}/prune", tag = "buckets", params(("bucket" = String, Path,)),
    request_body = api::PruneBucket,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn prune_bucket(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Body(request): Body<api::PruneBucket>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.prune_bucket(&bucket, request)).await
}

/// Opens a volume from its images in a bucket. The answer is a job. Devices are named on the
/// control socket only.
#[utoipa::path(post, path = "/v1/buckets/{bucket}/open", tag = "buckets", params(("bucket" = String, Path,)),
    request_body = api::OpenFromBucket,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn open_from_bucket(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Body(request): Body<api::OpenFromBucket>,
) -> Answer<api::Job> {
    blocking(server, move |server| server.open_from_bucket(&bucket, &request)).await
}
