//! Routes for the files inside image dumps, in buckets and in folders of the configuration.

use std::sync::Arc;

use axum::extract::{Extension, Path, Query, State};
use axum::response::Response;
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::actors::Actor;
use crate::browse::Source;
use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, Refusal};
use crate::http::page::{looking, send};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(list_dump_files))
        .routes(routes!(dump_file_content))
        .routes(routes!(prepare_dump_download))
        .routes(routes!(list_dump_folders))
        .routes(routes!(list_folder_dumps))
        .routes(routes!(list_folder_dump_files))
        .routes(routes!(folder_dump_file_content))
        .routes(routes!(prepare_folder_dump_download))
}

/// The name for the places of a bucket, which no volume has.
fn of_bucket(bucket: &str) -> String {
    format!("{bucket}:")
}

/// A path in a dump, and the name of the dump.
fn split(asked: api::DumpFilePlace) -> (String, api::FilePlace) {
    let api::DumpFilePlace { of, at, path, path_bytes, archive } = asked;
    (of, api::FilePlace { at, path, path_bytes, archive })
}

/// The names in a directory inside an image dump in a bucket. Nothing is restored.
#[utoipa::path(get, path = "/v1/buckets/{bucket}/files", tag = "files",
    params(("bucket" = String, Path,), api::ListDumpFiles),
    responses((status = 200, body = api::FileListing), (status = "default", body = ErrorBody)))]
async fn list_dump_files(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Query(query): Query<api::ListDumpFiles>,
) -> Answer<api::FileListing> {
    looking(server, &of_bucket(&bucket), move |server| {
        server.list_dump_files(&Source::in_bucket(&bucket, &query.of), &query)
    })
    .await
}

/// The content of a file in an image dump, or of a folder as a tar or zip file. An answer that ends
/// early is cut.
#[utoipa::path(get, path = "/v1/buckets/{bucket}/files/content", tag = "files",
    params(("bucket" = String, Path,), api::DumpFilePlace),
    responses((status = 200, content_type = "application/octet-stream", body = [u8]),
        (status = "default", body = ErrorBody)))]
async fn dump_file_content(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Query(query): Query<api::DumpFilePlace>,
) -> Result<Response, Refusal> {
    let name = of_bucket(&bucket);
    let sending = looking(server, &name, move |server| {
        let (of, place) = split(query);
        server.send_dump_files(&Source::in_bucket(&bucket, &of), &place)
    });
    Ok(send(sending.await?.0))
}

/// Prepares a download out of an image dump for a browser: the answer has a URL that works once,
/// within a minute.
#[utoipa::path(post, path = "/v1/buckets/{bucket}/files/downloads", tag = "files",
    params(("bucket" = String, Path,)), request_body = api::DumpFilePlace,
    responses((status = 200, body = api::Download), (status = "default", body = ErrorBody)))]
async fn prepare_dump_download(
    State(server): State<Arc<Server>>,
    Path(bucket): Path<String>,
    Extension(actor): Extension<Actor>,
    Body(request): Body<api::DumpFilePlace>,
) -> Answer<api::Download> {
    looking(server, &of_bucket(&bucket), move |server| {
        let (of, place) = split(request);
        server.prepare_dump_download(Source::in_bucket(&bucket, &of), place, actor.token)
    })
    .await
}

/// The folders of the configuration whose image dumps people may look into.
#[utoipa::path(get, path = "/v1/dump-folders", tag = "files",
    responses((status = 200, body = [api::DumpFolder]), (status = "default", body = ErrorBody)))]
async fn list_dump_folders(State(server): State<Arc<Server>>) -> Answer<Vec<api::DumpFolder>> {
    Ok(axum::Json(server.dump_folders.list()))
}

/// The image dumps in files of a folder, the newest first.
#[utoipa::path(get, path = "/v1/dump-folders/{folder}/dumps", tag = "files", params(("folder" = String, Path,)),
    responses((status = 200, body = [api::FolderDump]), (status = "default", body = ErrorBody)))]
async fn list_folder_dumps(
    State(server): State<Arc<Server>>,
    Path(folder): Path<String>,
) -> Answer<Vec<api::FolderDump>> {
    let name = folder.clone();
    looking(server, &name, move |server| server.dump_folders.dumps(&folder)).await
}

/// The names in a directory inside an image dump in a folder, which `of` names by its id. Nothing
/// is restored.
#[utoipa::path(get, path = "/v1/dump-folders/{folder}/files", tag = "files",
    params(("folder" = String, Path,), api::ListDumpFiles),
    responses((status = 200, body = api::FileListing), (status = "default", body = ErrorBody)))]
async fn list_folder_dump_files(
    State(server): State<Arc<Server>>,
    Path(folder): Path<String>,
    Query(query): Query<api::ListDumpFiles>,
) -> Answer<api::FileListing> {
    let name = folder.clone();
    looking(server, &name, move |server| {
        server.list_dump_files(&Source::in_folder(&folder, &query.of), &query)
    })
    .await
}

/// The content of a file in an image dump in a folder, or of a folder in it as a tar or zip file.
/// An answer that ends early is cut.
#[utoipa::path(get, path = "/v1/dump-folders/{folder}/files/content", tag = "files",
    params(("folder" = String, Path,), api::DumpFilePlace),
    responses((status = 200, content_type = "application/octet-stream", body = [u8]),
        (status = "default", body = ErrorBody)))]
async fn folder_dump_file_content(
    State(server): State<Arc<Server>>,
    Path(folder): Path<String>,
    Query(query): Query<api::DumpFilePlace>,
) -> Result<Response, Refusal> {
    let name = folder.clone();
    let sending = looking(server, &name, move |server| {
        let (of, place) = split(query);
        server.send_dump_files(&Source::in_folder(&folder, &of), &place)
    });
    Ok(send(sending.await?.0))
}

/// Prepares a download out of an image dump in a folder for a browser: the answer has a URL that
/// works once, within a minute.
#[utoipa::path(post, path = "/v1/dump-folders/{folder}/files/downloads", tag = "files",
    params(("folder" = String, Path,)), request_body = api::DumpFilePlace,
    responses((status = 200, body = api::Download), (status = "default", body = ErrorBody)))]
async fn prepare_folder_dump_download(
    State(server): State<Arc<Server>>,
    Path(folder): Path<String>,
    Extension(actor): Extension<Actor>,
    Body(request): Body<api::DumpFilePlace>,
) -> Answer<api::Download> {
    let name = folder.clone();
    looking(server, &name, move |server| {
        let (of, place) = split(request);
        server.prepare_dump_download(Source::in_folder(&folder, &of), place, actor.token)
    })
    .await
}
