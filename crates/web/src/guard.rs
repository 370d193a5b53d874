//! Sign-in, and the check that a request belongs to a session.

pub(crate) mod elsewhere;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, COOKIE, HOST, ORIGIN, RETRY_AFTER, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use cairn_api::{ErrorBody, ErrorKind, Role};
use cairn_base::Clock;
use serde::{Deserialize, Serialize};

use crate::SIGN_IN_MAX;
use crate::guard::elsewhere::{Provider, ProviderShown};
use crate::links::{Link, Tries};
use crate::sessions::Sessions;

/// The header with the key of a session. A form or a script of another site cannot send it.
const KEY: HeaderName = HeaderName::from_static("x-cairn");

/// The browser sends the relation between this site and the page that makes the request.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// How long the answer to a wrong secret takes.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// How long the link of `cairn web` works.
pub(crate) const LINK_MAX: Duration = Duration::from_secs(600);

/// A session that is not used for so long ends. A page that is open and visible uses it.
const IDLE_MAX: Duration = Duration::from_secs(1800);

/// The same for `cairn web`, whose user has no secret to sign in with again.
const IDLE_LOCAL_MAX: Duration = AGE_MAX;

/// A session ends after so long.
const AGE_MAX: Duration = Duration::from_secs(12 * 3600);

/// The proof that a browser needs for a session.
enum Proof {
    /// A token of the API.
    Token(Arc<dyn Keys>),
    /// A link that works once.
    Link(Link),
}

/// The tokens that a sign-in takes.
pub trait Keys: Send + Sync {
    /// The identity of the token with this secret, if it is valid. Another token never has it.
    fn find(&self, secret: &str) -> Option<String>;

    /// The client with this identity; none when its token has expired or was revoked.
    fn describe(&self, identity: &str) -> Option<Identity>;

    /// The session of this identity has ended by a sign-out.
    fn signed_out(&self, _identity: &str) {}
}

/// The client of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// For people and the audit log.
    pub name: String,
    /// The role of its token.
    pub role: Role,
}

/// The client that has signed in: an extension of the answer.
#[derive(Debug, Clone)]
pub struct SignedInAs(pub Identity);

/// Why a sign-in is refused, for the audit log: an extension of the answer.
#[derive(Debug, Clone)]
pub struct RefusedBecause(pub String);

/// Where a request comes from: an extension of it.
#[derive(Debug, Clone, Copy)]
pub struct Visitor(pub Option<IpAddr>);

/// The sessions of the page on one listener.
pub struct Page {
    proof: Proof,
    /// Another place at which people can sign in.
    provider: Option<Arc<dyn Provider>>,
    sessions: Sessions,
    tries: Tries,
    clock: Arc<dyn Clock>,
}

/// The answer to the first question of the page.
#[derive(Serialize)]
struct Shown {
    /// `token` or `link`: what a sign-in takes.
    proof: &'static str,
    /// The request has a session.
    signed_in: bool,
    /// Its client and that client's role, with a token.
    name: Option<String>,
    role: Option<Role>,
    /// The identity provider, if one is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<ProviderShown>,
}

/// A sign-in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    secret: String,
}

/// The answer to a sign-in, beside the cookie.
#[derive(Serialize)]
struct SignedIn {
    key: String,
    name: Option<String>,
    role: Option<Role>,
}

impl Page {
    /// A page whose sign-in takes one of these tokens.
    pub fn with_keys(keys: Arc<dyn Keys>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self::new(Proof::Token(keys), IDLE_MAX, clock))
    }

    /// The same, and people can also sign in by an identity provider, when one is configured.
    pub fn with_provider(
        keys: Arc<dyn Keys>,
        provider: Arc<dyn Provider>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let page = Self::new(Proof::Token(keys), IDLE_MAX, clock);
        Arc::new(Self { provider: Some(provider), ..page })
    }

    /// A page that one browser can open, by the secret that is the second part of the answer.
    pub fn with_link(clock: Arc<dyn Clock>) -> (Arc<Self>, String) {
        let (link, secret) = Link::new(clock.monotonic() + LINK_MAX);
        (Arc::new(Self::new(Proof::Link(link), IDLE_LOCAL_MAX, clock)), secret)
    }

    fn new(proof: Proof, idle_max: Duration, clock: Arc<dyn Clock>) -> Self {
        let sessions = Sessions::new(idle_max, AGE_MAX);
        Self { proof, provider: None, sessions, tries: Tries::default(), clock }
    }

    /// The identity of a request that has a session and comes from this page. It is empty for a
    /// session that began with a link.
    pub fn admits(&self, headers: &HeaderMap) -> Option<String> {
        let key = headers.get(KEY).and_then(|key| key.to_str().ok());
        match (cookie(headers), key) {
            (Some(cookie), Some(key)) if is_from_page(headers) => {
                let identity = self.sessions.admits(cookie, key, self.clock.monotonic())?;
                match &self.proof {
                    // A session ends with its token.
                    Proof::Token(keys) => keys.describe(&identity).map(|_| identity),
                    Proof::Link(_) => Some(identity),
                }
            }
            _ => None,
        }
    }

    /// The answer to a sign-in that must not be tried: it is not of this page, or its address has
    /// guessed too often.
    fn refuses(&self, head: &Parts) -> Option<Response> {
        let headers = &head.headers;
        // Another site must not sign a browser in: its user would work in a session of a stranger.
        if !headers.contains_key(KEY) || !is_from_page(headers) {
            let next = "open the page at its own address, and sign in there";
            let what = "the sign-in does not come from this page";
            return Some(refuse(StatusCode::FORBIDDEN, what, next));
        }
        // A link cannot be guessed, and on a loopback address other users of the machine must not
        // keep its user from it.
        let is_limited = matches!(self.proof, Proof::Token(_));
        let wait = self.tries.wait(visitor(head), self.clock.monotonic()).filter(|_| is_limited)?;
        let seconds = wait.as_secs() + 1;
        let next = format!("wait {seconds} s, and sign in again");
        let what = "too many sign-ins from this address were refused";
        let mut refused = refuse(StatusCode::TOO_MANY_REQUESTS, what, &next);
        refused.headers_mut().insert(RETRY_AFTER, seconds.into());
        Some(refused)
    }

    /// Begins a session of a client.
    fn open(&self, identity: &str, headers: &HeaderMap) -> Response {
        let opened = self.sessions.open(identity, self.clock.monotonic());
        let cookie = set_cookie(SESSION, headers, &opened.cookie, None);
        let told = [(SET_COOKIE, cookie), (CACHE_CONTROL, "no-store".to_owned())];
        let known = self.describe(identity);
        let (name, role) = known.clone().map(parts).unzip();
        let mut answer = (told, Json(SignedIn { key: opened.key, name, role })).into_response();
        if let Some(known) = known {
            answer.extensions_mut().insert(SignedInAs(known));
        }
        answer
    }

    fn accepts(&self, secret: &str) -> Option<String> {
        match &self.proof {
            Proof::Token(keys) => keys.find(secret),
            Proof::Link(link) => link.take(secret, self.clock.monotonic()).then(String::new),
        }
    }

    fn describe(&self, identity: &str) -> Option<Identity> {
        match &self.proof {
            Proof::Token(keys) => keys.describe(identity),
            Proof::Link(_) => None,
        }
    }
}

/// Whether a browser sent the request for a script of this page. A program that is no browser sends
/// neither header, and is judged by its secrets alone.
fn is_from_page(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let site = text(SITE).is_none_or(|site| site == "same-origin");
    let origin = text(ORIGIN).is_none_or(|origin| {
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority.is_some() && authority == text(HOST)
    });
    site && origin
}

/// The purpose of a cookie: the first part of its name.
const SESSION: &str = "cairn";

/// The name of a cookie. Browsers send a cookie to every port of a machine, so each port has a name
/// of its own.
fn cookie_name(purpose: &str, headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').map(|(_, port)| port);
    let port = port.filter(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    format!("{purpose}-{}", port.unwrap_or("session"))
}

/// The value of the cookie of a session.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    cookie_for(SESSION, headers)
}

fn cookie_for<'a>(purpose: &str, headers: &'a HeaderMap) -> Option<&'a str> {
    let name = cookie_name(purpose, headers);
    let all = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// A header that sets the cookie. With TLS, which a proxy in front of the server adds, the header
/// asks the browser to send the cookie over TLS only.
fn set_cookie(purpose: &str, headers: &HeaderMap, value: &str, age: Option<u64>) -> String {
    let name = cookie_name(purpose, headers);
    let is_tls = headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let secure = if is_tls { "; Secure" } else { "" };
    let age = age.map(|age| format!("; Max-Age={age}")).unwrap_or_default();
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{age}")
}

fn parts(identity: Identity) -> (String, Role) {
    (identity.name, identity.role)
}

/// How a browser can sign in, and whether it has.
pub(crate) async fn show(State(page): State<Arc<Page>>, headers: HeaderMap) -> Response {
    let proof = match page.proof {
        Proof::Token(_) => "token",
        Proof::Link(_) => "link",
    };
    let identity = page.admits(&headers);
    let (name, role) = identity.as_deref().and_then(|identity| page.describe(identity)).map(parts).unzip();
    let provider = page.provider.as_ref().and_then(|provider| provider.shown());
    let shown = Shown { proof, signed_in: identity.is_some(), name, role, provider };
    ([(CACHE_CONTROL, "no-store")], Json(shown)).into_response()
}

/// Begins a session for a browser that has the token or the link.
pub(crate) async fn sign_in(State(page): State<Arc<Page>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if let Some(refused) = page.refuses(&head) {
        return refused;
    }
    let from = visitor(&head);
    let body = axum::body::to_bytes(body, SIGN_IN_MAX).await.unwrap_or_default();
    let Ok(asked) = serde_json::from_slice::<SignIn>(&body) else {
        let next = "reload the page, so that it is of the version of the server";
        return refuse(StatusCode::BAD_REQUEST, "the sign-in cannot be read", next);
    };
    let Some(identity) = page.accepts(asked.secret.trim()) else {
        page.tries.note(from, page.clock.monotonic());
        tokio::time::sleep(REFUSAL_PAUSE).await;
        let (what, next) = match page.proof {
            Proof::Token(_) => (
                "the token is wrong",
                "copy the content of DIR/http-token, where DIR is the data directory of the server, or use a token of `cairn token create`",
            ),
            Proof::Link(_) => (
                "the link was used, or has expired",
                "run `cairn web` again for a new link; each link works once, within 10 minutes",
            ),
        };
        return refuse(StatusCode::FORBIDDEN, what, next);
    };
    page.open(&identity, &head.headers)
}

fn visitor(head: &Parts) -> Option<IpAddr> {
    head.extensions.get::<Visitor>().and_then(|visitor| visitor.0)
}

/// Ends a session.
pub(crate) async fn sign_out(State(page): State<Arc<Page>>, headers: HeaderMap) -> Response {
    let Some(identity) = page.admits(&headers) else {
        return refuse(StatusCode::UNAUTHORIZED, "there is no such session", "sign in again");
    };
    if let Proof::Token(keys) = &page.proof {
        keys.signed_out(&identity);
    }
    if let Some(cookie) = cookie(&headers) {
        page.sessions.close(cookie);
    }
    ([(SET_COOKIE, set_cookie(SESSION, &headers, "", Some(0)))], Json(())).into_response()
}

/// A refusal, as the API words it.
pub(crate) fn refuse(status: StatusCode, what: &str, next: &str) -> Response {
    let body = ErrorBody::new(ErrorKind::Unauthorized, what, next);
    (status, [(CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

#[cfg(test)]
mod tests;
