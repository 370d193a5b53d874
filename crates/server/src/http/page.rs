//! Routes for people who look: the files of an instant, downloads and restores, the lag of a mirror
//! over time, and a stream that reports changes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body as Content, Bytes};
use axum::extract::{ConnectInfo, Extension, Path, Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cairn_api::{self as api, ErrorBody};
use futures_core::Stream;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::actors::Actor;
use crate::browse::Sending;
use crate::daemon::live::Listener;
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::http::answer::{Answer, Body, Refusal, blocking};
use crate::http::guests::TokenSeen;

/// A stream of changes has a line that often, also without a change: so both sides notice when the
/// other one is gone.
const BEAT: Duration = Duration::from_secs(15);

/// The policy of a downloaded file that a browser shows all the same: it has no rights.
const POLICY: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'");

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(list_files))
        .routes(routes!(file_versions))
        .routes(routes!(file_content))
        .routes(routes!(prepare_download))
        .routes(routes!(plan_restore))
        .routes(routes!(restore_files))
        .routes(routes!(mirror_lags))
        .routes(routes!(changes))
}

/// The downloads that were prepared. Their URLs are secrets that work once, and need no other
/// credentials: a browser sends none with a download.
pub(super) fn downloads(server: Arc<Server>) -> Router {
    Router::new().route("/download/{secret}", get(download)).with_state(server)
}

/// Runs `work`, which reads files of a volume, if not too many others wait for its disk.
pub(super) async fn looking<T: Send + 'static>(
    server: Arc<Server>,
    volume: &str,
    work: impl FnOnce(&Server) -> Result<T, ServerError> + Send + 'static,
) -> Answer<T> {
    let place = server.browsing.look(volume)?;
    blocking(server, move |server| {
        let _place = place;
        work(server)
    })
    .await
}

/// The names in a directory of a volume, now or at an instant.
#[utoipa::path(get, path = "/v1/volumes/{volume}/files", tag = "files",
    params(("volume" = String, Path,), api::ListFiles),
    responses((status = 200, body = api::FileListing), (status = "default", body = ErrorBody)))]
async fn list_files(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Query(query): Query<api::ListFiles>,
) -> Answer<api::FileListing> {
    let name = volume.clone();
    looking(server, &name, move |server| server.list_files(&volume, &query)).await
}

/// The versions of a file over the snapshots of its volume, the newest first.
#[utoipa::path(get, path = "/v1/volumes/{volume}/files/versions", tag = "files",
    params(("volume" = String, Path,), api::ListVersions),
    responses((status = 200, body = api::FileVersions), (status = "default", body = ErrorBody)))]
async fn file_versions(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Query(query): Query<api::ListVersions>,
) -> Answer<api::FileVersions> {
    let name = volume.clone();
    looking(server, &name, move |server| server.file_versions(&volume, &query)).await
}

/// The content of a file, or of a folder as a tar or zip file. An answer that ends early is cut.
#[utoipa::path(get, path = "/v1/volumes/{volume}/files/content", tag = "files",
    params(("volume" = String, Path,), api::FilePlace),
    responses((status = 200, content_type = "application/octet-stream", body = [u8]),
        (status = "default", body = ErrorBody)))]
async fn file_content(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Query(query): Query<api::FilePlace>,
) -> Result<Response, Refusal> {
    let name = volume.clone();
    let sending = looking(server, &name, move |server| server.send_files(&volume, &query)).await?;
    Ok(send(sending.0))
}

/// Prepares a download for a browser: the answer has a URL that works once, within a minute.
#[utoipa::path(post, path = "/v1/volumes/{volume}/files/downloads", tag = "files",
    params(("volume" = String, Path,)), request_body = api::FilePlace,
    responses((status = 200, body = api::Download), (status = "default", body = ErrorBody)))]
async fn prepare_download(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Extension(actor): Extension<Actor>,
    Body(request): Body<api::FilePlace>,
) -> Answer<api::Download> {
    let name = volume.clone();
    looking(server, &name, move |server| server.prepare_download(&volume, request, actor.token)).await
}

/// The name that a restore would give a file. Nothing is written.
#[utoipa::path(post, path = "/v1/volumes/{volume}/files/restore/plan", tag = "files",
    params(("volume" = String, Path,)), request_body = api::RestoreFiles,
    responses((status = 200, body = api::RestoredFiles), (status = "default", body = ErrorBody)))]
async fn plan_restore(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::RestoreFiles>,
) -> Answer<api::RestoredFiles> {
    let name = volume.clone();
    looking(server, &name, move |server| server.plan_restore(&volume, &request)).await
}

/// Restores a file or a folder from an instant, beside the present one. The answer is a job.
#[utoipa::path(post, path = "/v1/volumes/{volume}/files/restore", tag = "files",
    params(("volume" = String, Path,)), request_body = api::RestoreFiles,
    responses((status = 200, body = api::Job), (status = "default", body = ErrorBody)))]
async fn restore_files(
    State(server): State<Arc<Server>>,
    Path(volume): Path<String>,
    Body(request): Body<api::RestoreFiles>,
) -> Answer<api::Job> {
    let (name, own) = (volume.clone(), server.clone());
    looking(server, &name, move |_| own.restore_files(&volume, request)).await
}

/// The lag of a mirror over the last two days, one sample a minute since the server started.
#[utoipa::path(get, path = "/v1/mirrors/{mirror}/lags", tag = "mirrors", params(("mirror" = String, Path,)),
    responses((status = 200, body = [api::LagSample]), (status = "default", body = ErrorBody)))]
async fn mirror_lags(
    State(server): State<Arc<Server>>,
    Path(mirror): Path<String>,
) -> Answer<Vec<api::LagSample>> {
    blocking(server, move |server| server.mirrors.lags(&mirror)).await
}

/// A stream of server-sent events: `changed` each time that the status or a job has changed, at
/// most once a second.
#[utoipa::path(get, path = "/v1/changes", tag = "server",
    responses((status = 200, content_type = "text/event-stream", body = String),
        (status = "default", body = ErrorBody)))]
async fn changes(
    State(server): State<Arc<Server>>,
    Extension(actor): Extension<Actor>,
) -> Result<Response, Refusal> {
    let listener = Listener::new(&server, actor.token)?;
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Content::from_stream(Events::of(listener))).into_response())
}

/// Begins a prepared download.
async fn download(
    State(server): State<Arc<Server>>,
    Path(secret): Path<String>,
    request: Request,
) -> Response {
    let begun = blocking(server, move |server| server.begin_download(&secret)).await;
    match begun {
        Ok(axum::Json(Some(sending))) => {
            // The URL is a proof: the connection may stay for as long as the download takes.
            if let Some(ConnectInfo(known)) = request.extensions().get::<ConnectInfo<TokenSeen>>() {
                known.note();
            }
            send(sending)
        }
        Ok(axum::Json(None)) => {
            let text = "This link was used, or has expired. Download the file again from the page.\n";
            (StatusCode::NOT_FOUND, [(CACHE_CONTROL, "no-store")], text).into_response()
        }
        Err(refusal) => refusal.into_response(),
    }
}

pub(super) fn send(sending: Sending) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(bytes) = sending.bytes {
        headers.insert(CONTENT_LENGTH, bytes.into());
    }
    if let Ok(disposition) = HeaderValue::from_str(&disposition(&sending.file_name)) {
        headers.insert(CONTENT_DISPOSITION, disposition);
    }
    (headers, Content::from_stream(sending.content)).into_response()
}

/// The header with the name of a file, by RFC 6266: plain for old programs, and exact.
fn disposition(name: &[u8]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~@ ".contains(&byte);
    let plain: String =
        name.iter().map(|byte| if is_plain(*byte) { char::from(*byte) } else { '_' }).collect();
    let exact: String = String::from_utf8_lossy(name)
        .bytes()
        .map(|byte| match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect();
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}")
}

/// The next text of a stream; none at its end.
type Next = Pin<Box<dyn Future<Output = Option<(Listener, &'static str)>> + Send>>;

/// The events of one page.
struct Events {
    next: Option<Next>,
}

impl Events {
    fn of(listener: Listener) -> Self {
        // The page learns at once that the stream works.
        Self { next: Some(Box::pin(async move { Some((listener, ": hello\n\n")) })) }
    }
}

async fn next_event(mut listener: Listener) -> Option<(Listener, &'static str)> {
    let text = match tokio::time::timeout(BEAT, listener.changes.changed()).await {
        Ok(_) => "data: changed\n\n",
        Err(_) => ": beat\n\n",
    };
    (!listener.is_over()).then_some((listener, text))
}

impl Stream for Events {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        match next.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some((listener, text))) => {
                self.next = Some(Box::pin(next_event(listener)));
                Poll::Ready(Some(Ok(Bytes::from_static(text.as_bytes()))))
            }
            Poll::Ready(None) => {
                self.next = None;
                Poll::Ready(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_downloads_are_plain_for_old_programs_and_exact_for_others() {
        let plain = "attachment; filename=\"report.txt\"; filename*=UTF-8''report.txt";
        assert_eq!(disposition(b"report.txt"), plain);
        let hostile = disposition("a\"\r\nb/\u{e4}".as_bytes());
        assert_eq!(hostile, "attachment; filename=\"a___b___\"; filename*=UTF-8''a%22%0D%0Ab%2F%C3%A4");
    }
}
