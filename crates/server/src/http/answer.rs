//! Answers of the API: the results of handlers, the form of errors, and the threads that do the
//! work.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use cairn_api::{ErrorBody, ErrorKind};

use crate::daemon::error::DaemonError;
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::volumes::waits_with_writes;

/// Longest body of a request, in bytes: the longest sensible one is a list of devices.
pub(super) const MAX_BODY: usize = 1 << 20;

/// The challenge for a client's authentication.
pub(super) const CHALLENGE: &str = "Bearer realm=\"cairn\"";

/// Time for which a request waits for room in a history before it is answered, and the interval of
/// the check.
pub(super) const WAIT_PATIENCE: Duration = Duration::from_secs(6);

pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A refused or failed request.
pub(crate) struct Refusal(ErrorBody);

impl From<ServerError> for Refusal {
    fn from(error: ServerError) -> Self {
        Refusal(error.body())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = http_status(self.0.error);
        let mut response = (status, Json(self.0)).into_response();
        // By RFC 9110, 15.5.2, each such answer names the authentication scheme: clients rely on
        // it.
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        response
    }
}

pub(super) fn http_status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Usage | ErrorKind::WrongSize | ErrorKind::TooSmall => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorKind::NotFound | ErrorKind::VersionMismatch => StatusCode::NOT_FOUND,
        ErrorKind::Forbidden | ErrorKind::TokenExpired | ErrorKind::TokenUsed | ErrorKind::PeerRefused => {
            StatusCode::FORBIDDEN
        }
        ErrorKind::Taken
        | ErrorKind::Busy
        | ErrorKind::PortTaken
        | ErrorKind::NotEmpty
        | ErrorKind::WrongRole
        | ErrorKind::Diverged
        | ErrorKind::Contradicted => StatusCode::CONFLICT,
        ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::PeerUnreachable => StatusCode::BAD_GATEWAY,
        ErrorKind::Interrupted => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::ReadOnly | ErrorKind::Damaged | ErrorKind::VolumeDamaged | ErrorKind::Failed => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

/// A JSON body; a fault in it is reported like every other error.
pub(crate) struct Body<T>(pub(crate) T);

impl<T, S> FromRequest<S> for Body<T>
where
    Json<T>: FromRequest<S, Rejection = JsonRejection>,
    S: Send + Sync,
{
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        match Json::from_request(request, state).await {
            Ok(Json(body)) => Ok(Body(body)),
            Err(rejection) => {
                Err(ServerError::Daemon(DaemonError::BadRequest { reason: rejection.body_text() }).into())
            }
        }
    }
}

/// The answer of `work`. If it waits for room in the history of that volume as its writes do,
/// answers that it has begun and will complete when there is room. Most requests without room are
/// refused before they begin; one that loses a race for the last room is not.
pub(crate) async fn unless_it_waits<T: Send + 'static>(
    server: &Server,
    volume: &str,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Refusal> {
    let mut answer = tokio::spawn(work);
    let mut waited = Duration::ZERO;
    while waited < WAIT_PATIENCE {
        match tokio::time::timeout(LOOK_EVERY, &mut answer).await {
            Ok(outcome) => return outcome.map_err(|_| ServerError::Bug.into()),
            Err(_) if server.volumes.get(volume).is_ok_and(|open| open.waits_for_room()) => {
                waited += LOOK_EVERY;
            }
            Err(_) => {}
        }
    }
    Err(waits_with_writes(volume).into())
}

pub(super) type Answer<T> = Result<Json<T>, Refusal>;

/// Runs `work` on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(
    server: Arc<Server>,
    work: impl FnOnce(&Server) -> Result<T, ServerError> + Send + 'static,
) -> Answer<T> {
    match tokio::task::spawn_blocking(move || work(&server)).await {
        Ok(outcome) => Ok(Json(outcome?)),
        Err(_) => Err(ServerError::Bug.into()),
    }
}
