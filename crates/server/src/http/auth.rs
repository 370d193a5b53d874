//! The bearer token of the API over TCP, and the sessions of browsers that have shown it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cairn_base::Clock;
use cairn_web::{Page, Visitor};
use subtle::ConstantTimeEq;

use super::guests::TokenSeen;
use crate::daemon::error::DaemonError;
use crate::error::ServerError;
use crate::http::answer::Refusal;

/// The duration of a refusal.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// The credentials that a request must carry: the token, or those of a browser that signed in with
/// it.
#[derive(Clone)]
pub(crate) struct Bearer {
    token: Arc<str>,
    page: Arc<Page>,
}

impl Bearer {
    pub(crate) fn new(token: String, clock: Arc<dyn Clock>) -> Self {
        Self { page: Page::with_token(token.clone(), clock), token: token.into() }
    }

    /// The web page, with its sign-in.
    pub(super) fn page(&self) -> Arc<Page> {
        self.page.clone()
    }
}

/// Tells the page where a request comes from. A connection on which a browser has signed in has
/// shown the token.
pub(super) async fn introduce(
    ConnectInfo(known): ConnectInfo<TokenSeen>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(Visitor(known.address()));
    let signs_in = request.method() == Method::POST;
    let answer = next.run(request).await;
    if signs_in && answer.status().is_success() {
        known.note();
    }
    answer
}

/// Lets a request through when it carries the token or has a session; the comparison takes the same
/// time wherever it differs. Without it the connection ends, as there is room for few; with it the
/// connection stays for as long as its client likes.
pub(super) async fn demand_token(
    State(Bearer { token, page }): State<Bearer>,
    ConnectInfo(known): ConnectInfo<TokenSeen>,
    request: Request,
    next: Next,
) -> Response {
    let given = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
        .unwrap_or_default();
    if bool::from(given.ct_eq(token.as_bytes())) || page.admits(request.headers()) {
        known.note();
        next.run(request).await
    } else {
        // A client that guesses gets no answer sooner; another client may take its place meanwhile.
        tokio::time::sleep(REFUSAL_PAUSE).await;
        let mut refused = Refusal::from(ServerError::Daemon(DaemonError::Unauthorized)).into_response();
        refused.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        refused
    }
}
