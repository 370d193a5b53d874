//! The API over HTTP: the routes, the access to them, and the form of errors.
//!
//! This is the only asynchronous part of the server. Every handler passes its work to a thread that
//! may block.

mod admission;
mod answer;
mod auth;
mod bucket_mirrors;
mod buckets;
mod certificates;
mod changed;
mod clones;
mod devices;
mod drills;
mod dump_files;
mod dumps;
mod fleet;
mod groups;
mod guests;
mod images;
mod mirrors;
mod mounts;
mod nfs;
mod notify;
mod oidc;
mod page;
mod plans;
mod quotas;
mod recordings;
mod rules;
mod secured;
mod tokens;
mod volumes;

use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use cairn_api::{self as api, ErrorBody, VERSION_HEADER};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::budgets::Budgets;
use crate::daemon::error::DaemonError;
use crate::daemon::metrics;
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::http::answer::{Answer, Body, MAX_BODY, Refusal, blocking, unless_it_waits};

#[derive(OpenApi)]
#[openapi(info(
    title = "Cairn",
    description = "Volumes that never overwrite, their LUNs, snapshots and mirrors. Over TCP each request carries \
                   `Authorization: Bearer TOKEN`; on the control socket the permissions of the file decide. \
                   `x-cairn-access` names the roles of tokens that permit a request; a token that is bound to volumes \
                   permits none with `whole_server`."
))]
struct Description;

fn api() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(status))
        .routes(routes!(exports))
        .routes(routes!(damaged_state))
        .routes(routes!(restore_state))
        .routes(routes!(give_up_state))
        .routes(routes!(jobs))
        .routes(routes!(job, cancel_job))
        .merge(volumes::routes())
        .merge(changed::routes())
        .merge(mirrors::routes())
        .merge(images::routes())
        .merge(devices::routes())
        .merge(clones::routes())
        .merge(drills::routes())
        .merge(mounts::routes())
        .merge(nfs::routes())
        .merge(dumps::routes())
        .merge(quotas::routes())
        .merge(groups::routes())
        .merge(buckets::routes())
        .merge(bucket_mirrors::routes())
        .merge(notify::routes())
        .merge(fleet::routes())
        .merge(recordings::routes())
        .merge(plans::routes())
        .merge(tokens::routes())
        .merge(oidc::routes())
        .merge(certificates::routes())
        .merge(page::routes())
        .merge(dump_files::routes())
}

/// The description, with the roles that each route needs.
fn description() -> utoipa::openapi::OpenApi {
    let mut described = api().into_openapi();
    rules::describe(&mut described);
    described
}

/// The description of the API, as pretty JSON: the answer of `/v1/openapi.json` and the content of
/// `docs/openapi.json`.
pub fn openapi_json() -> String {
    let mut text = description().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// The routes. `elsewhere`: for clients of other machines, which run no commands here and name no
/// files.
fn router(server: Arc<Server>, elsewhere: bool) -> Router {
    let (router, _) = api().split_for_parts();
    let description = description().to_pretty_json().unwrap_or_default();
    let answer = move || {
        let description = description.clone();
        async move { ([("content-type", "application/json")], description) }
    };
    let router = router
        .route("/v1/openapi.json", axum::routing::get(answer))
        .route("/metrics", axum::routing::get(metrics))
        .fallback(|uri: Uri| async move {
            Refusal::from(ServerError::Daemon(DaemonError::NoSuchPath { path: uri.path().to_owned() }))
        })
        .layer(axum::middleware::from_fn_with_state(server.clone(), tell_of_waits));
    let router = match elsewhere {
        false => router,
        true => router
            .layer(axum::middleware::from_fn(drills::refuse_commands))
            .layer(axum::middleware::from_fn(mounts::refuse_from_afar))
            .layer(axum::middleware::from_fn(notify::refuse_from_afar))
            .layer(axum::middleware::from_fn(devices::refuse_paths)),
    };
    router
        .layer(axum::middleware::from_fn_with_state(server.clone(), admission::decide))
        .layer(axum::middleware::from_fn(tell_what_is_wrong))
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY))
        .layer(axum::middleware::map_response(tell_version))
        .with_state(server)
}

async fn tell_version(mut response: Response) -> Response {
    let version = HeaderValue::from_static(env!("CARGO_PKG_VERSION"));
    response.headers_mut().insert(VERSION_HEADER, version);
    response
}

/// Answers on the control socket, and on TCP when there is such a listener, until `end` resolves.
pub(crate) async fn serve(
    server: Arc<Server>,
    control: StdUnixListener,
    tcp: Option<(std::net::TcpListener, Option<Arc<rustls::ServerConfig>>)>,
    budgets: Budgets,
    end: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    control.set_nonblocking(true)?;
    let control = tokio::net::UnixListener::from_std(control)?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let wait = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    // Made once: a router that is served directly would be made again for each connection, and
    // `cairn` opens a connection for each request.
    let live = server.clone();
    let downloads = page::downloads(server.clone()).layer(axum::middleware::map_response(tell_version));
    let local = router(server.clone(), false).layer(axum::middleware::from_fn(auth::admit_user));
    let control = guests::Door::open(control, budgets.control);
    let local = local.merge(downloads.clone());
    let local = axum::serve(control, local.into_make_service_with_connect_info::<guests::TokenSeen>());
    let local = local.with_graceful_shutdown(wait(stopped.clone()));
    let mut tasks = vec![tokio::spawn(local.into_future())];
    if let Some((listener, tls)) = tcp {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let bearer = auth::Bearer::new(server.clone(), tls.is_some());
        let listener = secured::Secured::new(listener, tls);
        let guarded = router(server, true)
            .layer(axum::middleware::from_fn_with_state(bearer.clone(), auth::demand_token));
        let guarded = cairn_web::routes(bearer.page())
            .merge(downloads)
            .layer(axum::middleware::from_fn_with_state(bearer, auth::introduce))
            .fallback_service(guarded)
            // A refused client gets the version too. Otherwise it would assume a server of another
            // version.
            .layer(axum::middleware::map_response(tell_version));
        let guarded = guarded.into_make_service_with_connect_info::<guests::TokenSeen>();
        let remote = axum::serve(guests::Door::guarded(listener, budgets.api), guarded)
            .with_graceful_shutdown(wait(stopped));
        tasks.push(tokio::spawn(remote.into_future()));
    }
    end.await;
    live.live.end();
    let _ = stop.send(true);
    for task in tasks {
        // A client that keeps its connection open does not keep the server alive.
        let patience = std::time::Duration::from_secs(2);
        if let Ok(Ok(outcome)) = tokio::time::timeout(patience, task).await {
            outcome?;
        }
    }
    Ok(())
}

/// Reports a fault in the path of a request, in its query, or in its method, in the form of every
/// other error: the framework refuses these by itself, in plain text or without a body.
async fn tell_what_is_wrong(request: Request, next: Next) -> Response {
    let asked = format!("{} {}", request.method(), request.uri().path());
    let answer = next.run(request).await;
    let kind = answer.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if !answer.status().is_client_error() || kind.starts_with(b"application/json") {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let text = axum::body::to_bytes(body, MAX_BODY).await.unwrap_or_default();
    let reason = match String::from_utf8_lossy(&text) {
        text if text.is_empty() => format!("there is no `{asked}`"),
        text => text.into_owned(),
    };
    let told = Json(ServerError::Daemon(DaemonError::BadRequest { reason }).body()).into_response();
    for (name, value) in told.headers() {
        head.headers.insert(name, value.clone());
    }
    // Of the text that was there.
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, told.into_body())
}

/// The volume that the path of a request names. A group, a peer or a job may have the name of a
/// volume that it has nothing to do with.
fn volume_in(path: &str) -> Option<&str> {
    let mut parts = path.split('/').skip(2);
    match parts.next()? {
        "volumes" | "mirrors" | "devices" | "clones" => parts.next(),
        _ => None,
    }
}

/// Answers early for a request that changes a volume and waits for room in its history. This covers
/// requests whose path names the volume. A handler whose body names it calls [`unless_it_waits`]
/// itself.
async fn tell_of_waits(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let subject = volume_in(request.uri().path()).map(str::to_owned);
    let Some(volume) = subject.filter(|_| request.method() != Method::GET) else {
        return next.run(request).await;
    };
    match unless_it_waits(&server, &volume, next.run(request)).await {
        Ok(answer) => answer,
        Err(refusal) => refusal.into_response(),
    }
}

/// Metrics for monitoring systems: not JSON, and not a part of the described API.
async fn metrics(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Refusal> {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let form = metrics::Form::of(accepts);
    let Json(text) = blocking(server, move |server| server.metrics(form)).await?;
    Ok(([("content-type", form.content_type())], text))
}

/// The server at a glance.
#[utoipa::path(get, path = "/v1/status", tag = "server", responses((status = 200, body = api::Status)))]
async fn status(State(server): State<Arc<Server>>) -> Answer<api::Status> {
    blocking(server, |server| Ok(server.status())).await
}

/// The state files of the server that are there and can't be read.
#[utoipa::path(get, path = "/v1/state", tag = "server", responses((status = 200, body = [api::DamagedFile])))]
async fn damaged_state(State(server): State<Arc<Server>>) -> Answer<Vec<api::DamagedFile>> {
    blocking(server, |server| Ok(server.damaged_state())).await
}

/// Takes in a state file that could not be read: as it is by now, or its previous generation.
#[utoipa::path(post, path = "/v1/state/restore", tag = "server", request_body = api::RestoreState,
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn restore_state(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::RestoreState>,
) -> Answer<()> {
    blocking(server, move |server| server.restore_state(&request)).await
}

/// Goes on without a state file that can't be read, as if there had been none. It is set aside.
#[utoipa::path(post, path = "/v1/state/give-up", tag = "server", request_body = api::GiveUpState,
    responses((status = 200, body = api::GivenUp), (status = "default", body = ErrorBody)))]
async fn give_up_state(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::GiveUpState>,
) -> Answer<api::GivenUp> {
    blocking(server, move |server| server.give_up_state(&request)).await
}

/// What NBD clients can open.
#[utoipa::path(get, path = "/v1/exports", tag = "server", responses((status = 200, body = [api::Export])))]
async fn exports(State(server): State<Arc<Server>>) -> Answer<Vec<api::Export>> {
    blocking(server, |server| Ok(server.exports())).await
}

/// Work that runs or has run, the newest first.
#[utoipa::path(get, path = "/v1/jobs", tag = "server", responses((status = 200, body = [api::Job])))]
async fn jobs(State(server): State<Arc<Server>>) -> Answer<Vec<api::Job>> {
    blocking(server, |server| Ok(server.jobs.list())).await
}

/// One job, when it is over or after a while, whichever comes first.
#[utoipa::path(get, path = "/v1/jobs/{job}", tag = "server", params(("job" = String, Path,), api::JobQuery),
    responses((status = 200, body = api::Job), (status = 404, body = ErrorBody)))]
async fn job(
    State(server): State<Arc<Server>>,
    Path(job): Path<String>,
    Query(query): Query<api::JobQuery>,
) -> Answer<api::Job> {
    server.jobs.over(&job, Duration::from_millis(query.within_ms.unwrap_or(0))).await;
    blocking(server, move |server| server.jobs.show(&job)).await
}

/// Asks a job to end: a check or a comparison ends, and has failed then; a transfer ends at its
/// next record. Answers at once.
#[utoipa::path(delete, path = "/v1/jobs/{job}", tag = "server", params(("job" = String, Path,)),
    responses((status = 200, body = api::Job), (status = 404, body = ErrorBody)))]
async fn cancel_job(State(server): State<Arc<Server>>, Path(job): Path<String>) -> Answer<api::Job> {
    blocking(server, move |server| server.jobs.cancel(&job)).await
}

#[cfg(test)]
mod tests;
