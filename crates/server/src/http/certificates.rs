//! Certificates over HTTP.

use std::sync::Arc;

use axum::extract::State;
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new().routes(routes!(show_tls)).routes(routes!(issue_certificate))
}

/// The certificates of the server, and the root that clients need.
#[utoipa::path(get, path = "/v1/tls", tag = "access", responses((status = 200, body = api::Tls)))]
async fn show_tls(State(server): State<Arc<Server>>) -> Answer<api::Tls> {
    blocking(server, |server| Ok(server.show_tls())).await
}

/// Issues a certificate of an NBD client. The answer is the only place that has its key.
#[utoipa::path(post, path = "/v1/tls/certificates", tag = "access", request_body = api::IssueCertificate,
    responses((status = 200, body = api::IssuedCertificate), (status = "default", body = ErrorBody)))]
async fn issue_certificate(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::IssueCertificate>,
) -> Answer<api::IssuedCertificate> {
    blocking(server, move |server| server.issue_certificate(&request)).await
}
