//! Sign-in by an identity provider, as the browser sees it.
//!
//! A script of the page asks for the address of the provider, and gets with it a cookie and a key
//! that belong together: the cookie is kept from scripts, and the key from other ports of the
//! machine. The provider sends the browser back to [`CALLBACK`], which is the page itself. A script
//! then gives the parameters in the address to this server, with the cookie and the key. So a
//! browser that was led to that address with the parameters of a stranger does not sign in.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, HOST, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::{Page, RefusedBecause, cookie_for, refuse, set_cookie, visitor};
use crate::SIGN_IN_MAX;
use crate::sessions::secret;

/// The path to which a provider sends browsers back.
pub const CALLBACK: &str = "/oidc";

/// The purpose of the cookie of a sign-in.
const SIGN_IN: &str = "cairn-oidc";

/// The cookie of a sign-in is kept for so long, in seconds.
const COOKIE_MAX_S: u64 = 600;

/// The result of a request to a provider.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T, NotSignedIn>> + Send + 'a>>;

/// An identity provider.
pub trait Provider: Send + Sync {
    /// How the page shows it; none when none is configured.
    fn shown(&self) -> Option<ProviderShown>;

    /// Begins a sign-in of a browser at this address.
    fn begin(&self, from: Option<IpAddr>) -> Later<'_, Begun>;

    /// Ends a sign-in, and gives the identity of its client. It works once.
    fn finish(&self, binding: String, returned: Returned) -> Later<'_, String>;
}

/// A provider, as the page shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProviderShown {
    /// On the button.
    pub name: String,
    /// The origin of the page on which the sign-in works: `https://HOST:PORT`.
    pub origin: String,
}

/// A sign-in that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The address of the provider.
    pub url: String,
    /// The end of the sign-in needs it.
    pub binding: String,
}

/// The parameters with which a browser returns, and the key that it was given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Returned {
    /// The key of the sign-in.
    pub key: String,
    /// The state.
    pub state: String,
    /// The code; none after an error.
    #[serde(default)]
    pub code: Option<String>,
    /// The provider's word for an error.
    #[serde(default)]
    pub error: Option<String>,
    /// Its description of the error.
    #[serde(default)]
    pub description: Option<String>,
}

/// Why a sign-in fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotSignedIn {
    /// The failure and its cause.
    pub message: String,
    /// The remedy.
    pub next: String,
    /// The client is refused; otherwise the provider fails.
    pub is_refused: bool,
}

/// The address of the provider for a script of the page.
#[derive(Serialize)]
struct Sent {
    url: String,
    key: String,
}

fn failed(why: &NotSignedIn) -> Response {
    let status = if why.is_refused { StatusCode::FORBIDDEN } else { StatusCode::BAD_GATEWAY };
    let mut answer = refuse(status, &why.message, &why.next);
    answer.extensions_mut().insert(RefusedBecause(why.message.clone()));
    answer
}

fn none() -> Response {
    let next = "sign in with a token, or have an administrator run `cairn oidc set`";
    refuse(StatusCode::NOT_FOUND, "no identity provider is configured", next)
}

/// Whether a request names the page as the provider names it. On another name the browser has
/// neither the cookie nor the key.
fn is_at(headers: &HeaderMap, origin: &str) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let (scheme, authority) = origin.split_once("://").unwrap_or_default();
    let port = if scheme == "https" { ":443" } else { ":80" };
    host.eq_ignore_ascii_case(authority) || host.strip_suffix(port).is_some_and(|host| host == authority)
}

/// Begins a sign-in.
pub(crate) async fn begin(State(page): State<Arc<Page>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    if let Some(refused) = page.refuses(&head) {
        return refused;
    }
    let Some((provider, shown)) = page.provider.as_ref().and_then(|one| Some((one, one.shown()?))) else {
        return none();
    };
    if !is_at(&head.headers, &shown.origin) {
        let message = format!("the sign-in with {} works on another address of this page", shown.name);
        return refuse(StatusCode::FORBIDDEN, &message, &format!("open {}", shown.origin));
    }
    match provider.begin(visitor(&head)).await {
        Ok(Begun { url, binding }) => {
            let key = secret();
            let value = format!("{binding}.{key}");
            let cookie = set_cookie(SIGN_IN, &head.headers, &value, Some(COOKIE_MAX_S));
            let told = [(SET_COOKIE, cookie), (CACHE_CONTROL, "no-store".to_owned())];
            (told, Json(Sent { url, key })).into_response()
        }
        Err(why) => failed(&why),
    }
}

/// Ends a sign-in, and begins a session.
pub(crate) async fn finish(State(page): State<Arc<Page>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if let Some(refused) = page.refuses(&head) {
        return refused;
    }
    let Some(provider) = page.provider.clone() else { return none() };
    let body = axum::body::to_bytes(body, SIGN_IN_MAX).await.unwrap_or_default();
    let Ok(returned) = serde_json::from_slice::<Returned>(&body) else {
        let next = "reload the page, so that it is of the version of the server";
        return refuse(StatusCode::BAD_REQUEST, "the sign-in cannot be read", next);
    };
    // Both parts are of one browser, or the sign-in has neither.
    let binding = cookie_for(SIGN_IN, &head.headers).and_then(|cookie| cookie.split_once('.'));
    let binding = binding.filter(|(_, key)| crate::sessions::same(key, &returned.key));
    let binding = binding.map(|(binding, _)| binding.to_owned()).unwrap_or_default();
    let outcome = provider.finish(binding, returned).await;
    let mut answer = match &outcome {
        Ok(identity) => page.open(identity, &head.headers),
        Err(why) => {
            if why.is_refused {
                page.tries.note(visitor(&head), page.clock.monotonic());
            }
            failed(why)
        }
    };
    let gone = set_cookie(SIGN_IN, &head.headers, "", Some(0));
    if outcome.is_ok()
        && let Ok(gone) = HeaderValue::from_str(&gone)
    {
        answer.headers_mut().append(SET_COOKIE, gone);
    }
    answer
}
