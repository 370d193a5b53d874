//! The decision about each request: whether the role of its client permits it, and whether it
//! concerns the volumes of its token. Each change and each refused try gets its line in the audit
//! log here.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::{Body as Bytes, to_bytes};
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cairn_api::{AuditOutcome, ErrorBody};
use serde_json::Value;

use crate::actors::Actor;
use crate::actors::audit::Event;
use crate::actors::error::ActorsError;
use crate::daemon::error::DaemonError;
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::http::answer::{MAX_BODY, Refusal};
use crate::http::rules::{Need, Of, rule_of};

/// Fields of a body that name the object of a request that has none in its path.
const NAMES: [&str; 8] = ["name", "volume", "mirror", "clone", "export", "group", "directory", "file"];

/// Kinds of jobs whose subject is no volume, although it may have the name of one.
const NOT_OF_VOLUMES: [&str; 4] = ["bucket", "group", "image prune", "device"];

/// Lets a request through if its client may make it. The client is an extension of the request; a
/// request without one has come past the authentication, and is refused.
pub(super) async fn decide(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let Some(actor) = request.extensions().get::<Actor>().cloned() else {
        return Refusal::from(ServerError::Daemon(DaemonError::Unauthorized)).into_response();
    };
    let (mut head, body) = request.into_parts();
    let route = head.extensions.get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let rule = route.as_deref().and_then(|route| rule_of(head.method.as_str(), route));
    let reads = matches!(head.method, Method::GET | Method::HEAD);
    // A handler of GET reads no body.
    let body = if reads { Ok(axum::body::Bytes::new()) } else { to_bytes(body, MAX_BODY).await };
    let Ok(body) = body else {
        return Refusal::from(ServerError::Invalid {
            fault: "the request is larger than 1 MiB, or its end did not arrive",
            next: "use a client of the same version as the server",
        })
        .into_response();
    };
    let asked: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let names = names_in(&mut head).await;
    let (need, of) = match (rule, &route) {
        (Some(rule), _) => (rule.need.of(&asked), rule.of),
        // A path without a route: the answer says so.
        (None, None) => (Need::ViewOrLocks, Of::Anything),
        (None, Some(_)) => (Need::Administer, Of::Server),
    };
    let action = format!("{} {}", head.method, route.as_deref().unwrap_or(head.uri.path()));
    let event = Event::of(&actor, action, object(&names, &asked));
    if let Err(error) = may(&server, &actor, need, of, &names, &asked) {
        note(&server, Event { outcome: AuditOutcome::Refused, reason: error.to_string(), ..event }).await;
        return Refusal::from(error).into_response();
    }
    let request = Request::from_parts(head, Bytes::from(body));
    if reads || need.only_reads() {
        let answer = next.run(request).await;
        return match &actor.volumes {
            Some(volumes) => narrowed(answer, of, volumes).await,
            None => answer,
        };
    }
    // The change and its line do not depend on a client that waits for the answer.
    let noted = tokio::spawn(async move {
        let (answer, outcome, reason) = judged(next.run(request).await).await;
        note(&server, Event { outcome, reason, ..event }).await;
        answer
    });
    noted.await.unwrap_or_else(|_| Refusal::from(ServerError::Bug).into_response())
}

/// Writes a line of the audit log; the disk may let it wait.
pub(super) async fn note(server: &Arc<Server>, event: Event) {
    let server = server.clone();
    let _ = tokio::task::spawn_blocking(move || server.audit.note(event)).await;
}

/// The parameters of the path, decoded; none, where one of them is not text.
async fn names_in(head: &mut Parts) -> Option<Vec<String>> {
    let params = RawPathParams::from_request_parts(head, &()).await.ok()?;
    Some(params.iter().map(|(_, value)| value.to_owned()).collect())
}

/// The object of a request, for the audit log.
fn object(names: &Option<Vec<String>>, asked: &Value) -> String {
    let of_body =
        |fields: &[&str]| fields.iter().find_map(|field| asked.get(field)?.as_str()).map(str::to_owned);
    match names {
        // As a snapshot that is created in a volume.
        Some(names) if !names.is_empty() => {
            names.iter().cloned().chain(of_body(&["name"])).collect::<Vec<_>>().join("/")
        }
        _ => of_body(&NAMES).unwrap_or_default(),
    }
}

/// The volume of an export, a snapshot or a LUN.
fn volume_of(name: &str) -> &str {
    name.split(['/', '@']).next().unwrap_or_default()
}

/// Whether a client may make a request.
fn may(
    server: &Server,
    actor: &Actor,
    need: Need,
    of: Of,
    names: &Option<Vec<String>>,
    asked: &Value,
) -> Result<(), ServerError> {
    if !need.admits(actor.role) {
        let (role, needed) = (actor.role, need.words());
        return Err(ActorsError::RoleTooLow { actor: actor.name.clone(), role, needed }.into());
    }
    let Some(volumes) = &actor.volumes else { return Ok(()) };
    let first = names.as_ref().and_then(|names| names.first()).map(String::as_str);
    let has = |name: &str| volumes.contains(name);
    let is_mine = match of {
        Of::Anything | Of::Listed(_) | Of::Status => true,
        Of::Server => false,
        Of::Volume => first.is_some_and(has),
        Of::Export => first.is_some_and(|name| name.contains('/') && has(volume_of(name))),
        Of::Device => first.is_some_and(|name| {
            has(volume_of(name)) && (name.contains('/') || server.devices.is_free(volume_of(name)))
        }),
        Of::Job => first.is_some_and(|job| {
            let job = server.jobs.show(job);
            job.is_ok_and(|job| is_of_volume(&job.kind) && has(volume_of(&job.subject)))
        }),
        Of::Named(fields) => {
            let mut named = fields.iter().filter_map(|field| asked.get(field)).peekable();
            named.peek().is_some() && named.all(|name| name.as_str().is_some_and(has))
        }
    };
    if is_mine {
        return Ok(());
    }
    let object = match of {
        Of::Server => "the server as a whole".to_owned(),
        _ => format!("`{}`", object(names, asked)),
    };
    Err(ActorsError::OtherVolume { actor: actor.name.clone(), object }.into())
}

fn is_of_volume(kind: &str) -> bool {
    !NOT_OF_VOLUMES.iter().any(|other| kind.starts_with(other))
}

/// An answer, and its outcome for the audit log.
async fn judged(answer: Response) -> (Response, AuditOutcome, String) {
    if answer.status().is_success() {
        return (answer, AuditOutcome::Done, String::new());
    }
    let outcome = match answer.status() {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => AuditOutcome::Refused,
        _ => AuditOutcome::Failed,
    };
    let (head, body) = answer.into_parts();
    let text = to_bytes(body, MAX_BODY).await.unwrap_or_default();
    let reason = match serde_json::from_slice::<ErrorBody>(&text) {
        Ok(error) => error.message,
        Err(_) => head.status.to_string(),
    };
    (Response::from_parts(head, Bytes::from(text)), outcome, reason)
}

/// The part of an answer that a token may see which is bound to volumes.
async fn narrowed(answer: Response, of: Of, volumes: &BTreeSet<String>) -> Response {
    if !matches!(of, Of::Listed(_) | Of::Status) || !answer.status().is_success() {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let is_json = head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes() == b"application/json");
    let read = to_bytes(body, usize::MAX).await.ok().filter(|_| is_json);
    let Some(mut value) = read.and_then(|text| serde_json::from_slice::<Value>(&text).ok()) else {
        return Refusal::from(ServerError::Bug).into_response();
    };
    narrow(&mut value, of, volumes);
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, Bytes::from(value.to_string()))
}

/// The lists of the status, and the field of their elements that names a volume. Lists of other
/// names are emptied.
const OF_STATUS: [(&str, &str); 11] = [
    ("volumes", "name"),
    ("exports", "name"),
    ("mirrors", "name"),
    ("drills", "mirror"),
    ("governors", "volume"),
    ("followers", "volume"),
    ("leftovers", "volume"),
    ("schedules", "volume"),
    ("problems", "subject"),
    ("notes", "subject"),
    ("bucket_mirrors", "volume"),
];

/// Addresses of the server, which are no lists of volumes.
const ADDRESSES: [&str; 5] = ["http", "mirror_further", "nbd", "iscsi", "nfs"];

fn narrow(value: &mut Value, of: Of, volumes: &BTreeSet<String>) {
    match (of, value) {
        (Of::Listed(field), Value::Array(elements)) => elements.retain(|one| is_mine(one, field, volumes)),
        (Of::Status, Value::Object(fields)) => {
            for (name, value) in fields {
                let Value::Array(elements) = value else { continue };
                let field = OF_STATUS.iter().find(|(list, _)| list == name).map(|(_, field)| *field);
                match field {
                    // An adopted device is an export without a slash.
                    Some(field) if name == "exports" => elements.retain(|one| {
                        let is_lun = one[field].as_str().is_some_and(|name| name.contains('/'));
                        is_lun && is_mine(one, field, volumes)
                    }),
                    Some(field) => elements.retain(|one| is_mine(one, field, volumes)),
                    None if ADDRESSES.contains(&name.as_str()) => {}
                    None => elements.clear(),
                }
            }
        }
        (_, value) => *value = Value::Null,
    }
}

fn is_mine(element: &Value, field: &str, volumes: &BTreeSet<String>) -> bool {
    let is_other = element.get("kind").and_then(Value::as_str).is_some_and(|kind| !is_of_volume(kind));
    !is_other
        && element.get(field).and_then(Value::as_str).is_some_and(|name| volumes.contains(volume_of(name)))
}

#[cfg(test)]
mod tests;
