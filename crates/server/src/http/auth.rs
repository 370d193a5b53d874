//! The bearer token of the API over TCP.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

use super::Refusal;
use crate::error::ServerError;

/// What a request must carry.
#[derive(Clone)]
pub(crate) struct Bearer(Arc<str>);

impl Bearer {
    pub(crate) fn new(token: String) -> Self {
        Self(token.into())
    }
}

/// Lets a request through when it carries the token; the comparison takes the same time wherever it differs.
pub(crate) async fn demand_token(
    State(Bearer(token)): State<Bearer>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let given = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
        .unwrap_or_default();
    if given.ct_eq(token.as_bytes()).into() {
        Ok(next.run(request).await)
    } else {
        Err(ServerError::Unauthorized.into())
    }
}
