//! The bearer token of the API over TCP.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::HeaderValue;
use axum::http::header::{AUTHORIZATION, CONNECTION};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::guests::TokenSeen;
use crate::daemon::error::DaemonError;
use crate::error::ServerError;
use crate::http::answer::Refusal;

/// How long a refusal takes.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// What a request must carry.
#[derive(Clone)]
pub(crate) struct Bearer(Arc<str>);

impl Bearer {
    pub(crate) fn new(token: String) -> Self {
        Self(token.into())
    }
}

/// Lets a request through when it carries the token; the comparison takes the same time wherever it
/// differs. Without it the connection ends, as there is room for few; with it the connection stays
/// for as long as its client likes.
pub(super) async fn demand_token(
    State(Bearer(token)): State<Bearer>,
    ConnectInfo(known): ConnectInfo<TokenSeen>,
    request: Request,
    next: Next,
) -> Response {
    let given = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
        .unwrap_or_default();
    if given.ct_eq(token.as_bytes()).into() {
        known.note();
        next.run(request).await
    } else {
        // Who guesses gets no answer sooner; the place is one that others may take meanwhile.
        tokio::time::sleep(REFUSAL_PAUSE).await;
        let mut refused = Refusal::from(ServerError::Daemon(DaemonError::Unauthorized)).into_response();
        refused.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        refused
    }
}
