//! The web page of a server: its files, and the sessions of browsers.
//!
//! The page is a client of the HTTP API like the command line. A browser signs in once, with the
//! token of the API, with a link that works once, or by an identity provider. It then has a
//! session: a cookie that scripts cannot read, and a key that only scripts of this page can read.
//! Each request of a session needs both. Another site cannot send the key, and another program on a
//! port of the same machine, which gets the cookies of all ports, does not have it.

mod files;
mod guard;
mod links;
mod local;
mod sessions;

pub use guard::elsewhere::{Begun, CALLBACK, Later, NotSignedIn, Provider, ProviderShown, Returned};
pub use guard::{Identity, Keys, Page, RefusedBecause, SignedInAs, Visitor};
pub use local::{LocalPage, Target, serve_local};

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

/// The page may load its own files and nothing else. Of styles in a document, only its own is
/// permitted.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let style = files::style_source();
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self' {style}; img-src 'self' data:; \
         connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    )
});

/// Longest body of a sign-in, in bytes.
const SIGN_IN_MAX: usize = 16 << 10;

/// The path of requests that begin a sign-in elsewhere.
pub const BEGIN: &str = "/session/oidc";

/// The headers of every answer of the page, also of refusals.
const HEADERS: [(HeaderName, &str); 5] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The page at `/` and its files below `/page/`, which anyone may read, and the sign-in at
/// `/session`.
pub fn routes(page: Arc<Page>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/page/{file}", get(file))
        .route("/page/{version}/{file}", get(file_of_version))
        .route(CALLBACK, get(index))
        .route("/session", get(guard::show).post(guard::sign_in).delete(guard::sign_out))
        .route(BEGIN, post(guard::elsewhere::begin))
        .route("/session/oidc/finish", post(guard::elsewhere::finish))
        .layer(DefaultBodyLimit::max(SIGN_IN_MAX))
        .layer(axum::middleware::map_response(with_headers))
        .with_state(page)
}

async fn with_headers(mut response: Response) -> Response {
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The browser asks for the document each time, so that a server of another version is never shown
/// by the files of the one before.
const ASK: &str = "no-cache";

/// A file below its version never changes.
const KEEP: &str = "public, max-age=31536000, immutable";

async fn index(State(_): State<Arc<Page>>, headers: HeaderMap) -> Response {
    send(files::find("index.html"), ASK, &headers)
}

async fn file(State(_): State<Arc<Page>>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    send(files::find(&name), ASK, &headers)
}

async fn file_of_version(
    State(_): State<Arc<Page>>,
    Path((version, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    send(files::find(&name).filter(|_| version == files::version()), KEEP, &headers)
}

/// Whether a browser takes gzip.
fn unpacks(headers: &HeaderMap) -> bool {
    let all = headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    let mut offers = all.flat_map(|line| line.split(',')).map(|offer| offer.split(';').map(str::trim));
    offers.any(|mut offer| {
        offer.next() == Some("gzip")
            && offer.next().is_none_or(|weight| {
                weight.strip_prefix("q=").and_then(|q| q.parse().ok()).is_some_and(|q: f32| q > 0.0)
            })
    })
}

/// A file, or that the browser has it.
fn send(file: Option<&'static files::Sent>, keep: &'static str, headers: &HeaderMap) -> Response {
    let Some(file) = file else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    let packs = unpacks(headers);
    let form = if packs { &file.packed } else { &file.plain };
    let shared = [(ETAG, &form.tag[..]), (CACHE_CONTROL, keep), (VARY, "accept-encoding")];
    let known = headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == form.tag.as_bytes());
    if known {
        return (StatusCode::NOT_MODIFIED, shared).into_response();
    }
    let mut answer = (shared, [(CONTENT_TYPE, file.kind)], &form.bytes[..]).into_response();
    if packs {
        answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    answer
}

#[cfg(test)]
mod tests;
