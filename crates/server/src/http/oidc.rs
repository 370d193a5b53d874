//! The identity provider and its rules over HTTP.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use cairn_api::{self as api, ErrorBody};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::daemon::server::Server;
use crate::http::answer::{Answer, Body, blocking};

pub(super) fn routes() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::new()
        .routes(routes!(show_oidc, set_oidc, delete_oidc))
        .routes(routes!(test_oidc))
        .routes(routes!(list_oidc_rules, create_oidc_rule))
        .routes(routes!(delete_oidc_rule))
}

/// The identity provider by which people sign in on the page, without the secret.
#[utoipa::path(get, path = "/v1/oidc", tag = "access",
    responses((status = 200, body = api::Oidc), (status = "default", body = ErrorBody)))]
async fn show_oidc(State(server): State<Arc<Server>>) -> Answer<api::Oidc> {
    blocking(server, |server| server.oidc.show()).await
}

/// Sets the identity provider. Another issuer or client ID ends the sessions of people. On the
/// control socket only: the provider has an address that the machine of the server reaches.
#[utoipa::path(put, path = "/v1/oidc", tag = "access", request_body = api::SetOidc,
    responses((status = 200, body = api::Oidc), (status = "default", body = ErrorBody)))]
async fn set_oidc(State(server): State<Arc<Server>>, Body(request): Body<api::SetOidc>) -> Answer<api::Oidc> {
    blocking(server, move |server| {
        let shown = server.oidc.set(&request)?;
        server.live.wake();
        Ok(shown)
    })
    .await
}

/// Deletes the identity provider. The sessions of people end, and the rules stay.
#[utoipa::path(delete, path = "/v1/oidc", tag = "access",
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn delete_oidc(State(server): State<Arc<Server>>) -> Answer<()> {
    blocking(server, |server| {
        server.oidc.delete()?;
        server.live.wake();
        Ok(())
    })
    .await
}

/// Asks the identity provider for its description and its keys now.
#[utoipa::path(post, path = "/v1/oidc/test", tag = "access",
    responses((status = 200, body = api::OidcTest), (status = "default", body = ErrorBody)))]
async fn test_oidc(State(server): State<Arc<Server>>) -> Answer<api::OidcTest> {
    Ok(Json(server.oidc.test().await?))
}

/// The rules that give people a role, in the order in which they are tried.
#[utoipa::path(get, path = "/v1/oidc/rules", tag = "access",
    responses((status = 200, body = [api::OidcRule]), (status = "default", body = ErrorBody)))]
async fn list_oidc_rules(State(server): State<Arc<Server>>) -> Answer<Vec<api::OidcRule>> {
    blocking(server, |server| server.oidc.rules()).await
}

/// Creates a rule, which is tried after all others.
#[utoipa::path(post, path = "/v1/oidc/rules", tag = "access", request_body = api::CreateOidcRule,
    responses((status = 200, body = api::OidcRule), (status = "default", body = ErrorBody)))]
async fn create_oidc_rule(
    State(server): State<Arc<Server>>,
    Body(request): Body<api::CreateOidcRule>,
) -> Answer<api::OidcRule> {
    blocking(server, move |server| server.oidc.create_rule(&request)).await
}

/// Deletes a rule. The sessions of people that it admitted end. Jobs that they have begun continue.
#[utoipa::path(delete, path = "/v1/oidc/rules/{rule}", tag = "access", params(("rule" = String, Path,)),
    responses((status = 200, body = ()), (status = "default", body = ErrorBody)))]
async fn delete_oidc_rule(State(server): State<Arc<Server>>, Path(rule): Path<String>) -> Answer<()> {
    blocking(server, move |server| {
        server.oidc.delete_rule(&rule)?;
        server.live.wake();
        Ok(())
    })
    .await
}
