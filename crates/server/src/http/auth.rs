//! The identity of each client: its token, its session of the web page, or its user on the control
//! socket.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cairn_api::AuditOutcome;
use cairn_web::{BEGIN, Identity, Keys, Page, RefusedBecause, SignedInAs, Visitor};

use super::guests::TokenSeen;
use crate::actors::Actor;
use crate::actors::audit::Event;
use crate::daemon::error::DaemonError;
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::http::admission::note;
use crate::http::answer::Refusal;

/// The duration of a refusal.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// The name of a sign-in in the audit log.
const SIGN_IN: &str = "sign in";

/// The credentials that a request must carry: a token, or those of a browser that signed in with
/// one.
#[derive(Clone)]
pub(crate) struct Bearer {
    server: Arc<Server>,
    page: Arc<Page>,
    /// Connections have TLS.
    tls: bool,
}

impl Bearer {
    pub(crate) fn new(server: Arc<Server>, tls: bool) -> Self {
        let keys = Arc::new(KeysOf(server.clone()));
        let page = Page::with_provider(keys, server.oidc.clone(), server.clock.clone());
        Self { server, page, tls }
    }

    /// The web page, with its sign-in.
    pub(super) fn page(&self) -> Arc<Page> {
        self.page.clone()
    }

    /// The client of a request; none without valid credentials.
    fn actor(&self, headers: &HeaderMap) -> Option<Actor> {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let identity = match (given.next(), given.next()) {
            (None, _) => self.page.admits(headers)?,
            (Some(value), None) => self.server.tokens.identity(value.as_bytes().strip_prefix(b"Bearer ")?)?,
            // A proxy may have judged another one of them.
            (Some(_), Some(_)) => return None,
        };
        self.server.actor(&identity)
    }
}

/// The clients that a server knows.
struct KeysOf(Arc<Server>);

impl Keys for KeysOf {
    fn find(&self, secret: &str) -> Option<String> {
        self.0.tokens.identity(secret.as_bytes())
    }

    fn describe(&self, identity: &str) -> Option<Identity> {
        let actor = self.0.actor(identity)?;
        Some(Identity { name: actor.name, role: actor.role })
    }

    fn signed_out(&self, identity: &str) {
        self.0.oidc.forget(identity);
        self.0.live.wake();
    }
}

/// Tells the page where a request comes from. A connection on which a browser has signed in has
/// shown a token.
pub(super) async fn introduce(
    State(bearer): State<Bearer>,
    ConnectInfo(known): ConnectInfo<TokenSeen>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(Visitor(known.address()));
    // A request for the address of the identity provider is no try yet.
    let signs_in = request.method() == Method::POST && request.uri().path() != BEGIN;
    let mut answer = next.run(request).await;
    // A browser sends the cookie over TLS only, whatever it has said about the origin of its
    // request.
    if bearer.tls {
        let cookies = answer.headers().get_all(SET_COOKIE).iter().map(secured).collect::<Vec<_>>();
        answer.headers_mut().remove(SET_COOKIE);
        for cookie in cookies {
            answer.headers_mut().append(SET_COOKIE, cookie);
        }
    }
    if !signs_in {
        return answer;
    }
    let why = answer.extensions().get::<RefusedBecause>().map(|RefusedBecause(why)| why.clone());
    let why = why.unwrap_or_else(|| "the page refused the token".to_owned());
    let event = Event::of_stranger(known.address(), SIGN_IN, "", &why);
    match answer.extensions().get::<SignedInAs>() {
        Some(SignedInAs(Identity { name, role })) => {
            known.note();
            let (actor, outcome) = (Some(name.clone()), AuditOutcome::Done);
            let event = Event { actor, role: Some(*role), outcome, reason: String::new(), ..event };
            note(&bearer.server, event).await;
        }
        None => note(&bearer.server, event).await,
    }
    answer
}

/// A cookie that browsers send over TLS only.
fn secured(cookie: &HeaderValue) -> HeaderValue {
    match cookie.to_str() {
        Ok(text) if !text.contains("; Secure") => {
            HeaderValue::from_str(&format!("{text}; Secure")).unwrap_or_else(|_| cookie.clone())
        }
        _ => cookie.clone(),
    }
}

/// Lets a request of the control socket through. The mode of the socket has admitted its user.
pub(super) async fn admit_user(
    ConnectInfo(known): ConnectInfo<TokenSeen>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(Actor::of_socket(known.uid()));
    next.run(request).await
}

/// Lets a request through when it carries a token or has a session. Without it the connection ends,
/// as there is room for few; with it the connection stays for as long as its client likes.
pub(super) async fn demand_token(
    State(bearer): State<Bearer>,
    ConnectInfo(known): ConnectInfo<TokenSeen>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(actor) = bearer.actor(request.headers()) {
        known.note();
        request.extensions_mut().insert(Actor { from: known.address(), ..actor });
        return next.run(request).await;
    }
    let asked = format!("{} {}", request.method(), request.uri().path());
    let refusal = Refusal::from(ServerError::Daemon(DaemonError::Unauthorized));
    let is_try = request.headers().contains_key(AUTHORIZATION) || request.method() != Method::GET;
    if is_try {
        note(&bearer.server, Event::of_stranger(known.address(), &asked, "", "no valid token")).await;
    }
    // A client that guesses gets no answer sooner; another client may take its place meanwhile.
    tokio::time::sleep(REFUSAL_PAUSE).await;
    let mut refused = refusal.into_response();
    refused.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    refused
}
