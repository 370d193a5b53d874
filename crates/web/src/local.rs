//! The page on a loopback address, for a user who may use the control socket.
//!
//! It passes requests of a session on to the server, which decides about them as about requests of
//! the command line.

use std::fmt;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::get;
use axum::{Router, middleware};
use cairn_base::Clock;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::guard::{Page, refuse};

/// The server that requests go to.
#[derive(Clone)]
pub enum Target {
    /// Its control socket.
    Unix(PathBuf),
    /// A server over TCP.
    Tcp {
        /// HOST:PORT.
        address: String,
        /// The token of its API.
        token: String,
        /// With TLS.
        tls: Option<Arc<ClientConfig>>,
    },
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Unix(socket) => f.debug_tuple("Unix").field(socket).finish(),
            Target::Tcp { address, .. } => f.debug_tuple("Tcp").field(address).finish_non_exhaustive(),
        }
    }
}

/// A page that is about to be served.
pub struct LocalPage {
    page: Arc<Page>,
    listener: TcpListener,
    target: Target,
    /// The address for a browser; it works once.
    pub url: String,
}

impl LocalPage {
    /// The page on this listener. The listener must have a loopback address.
    pub fn new(listener: TcpListener, target: Target, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let (page, secret) = Page::with_link(clock);
        let url = format!("http://{}/#link={secret}", listener.local_addr()?);
        Ok(Self { page, listener, target, url })
    }
}

#[derive(Clone)]
struct Passing {
    page: Arc<Page>,
    target: Target,
    port: u16,
}

/// Serves a page until `end` resolves.
pub async fn serve_local(
    local: LocalPage,
    end: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    local.listener.set_nonblocking(true)?;
    let port = local.listener.local_addr()?.port();
    let listener = tokio::net::TcpListener::from_std(local.listener)?;
    let passing = Passing { page: local.page, target: local.target, port };
    let router = router(passing);
    axum::serve(listener, router).with_graceful_shutdown(end).await
}

fn router(passing: Passing) -> Router {
    // A download carries no key of a session: its URL is a secret that works once.
    let pass = Router::new()
        .route("/download/{secret}", get(pass_download))
        .fallback(pass)
        .with_state(passing.clone());
    crate::routes(passing.page.clone())
        .fallback_service(pass)
        .layer(middleware::from_fn_with_state(passing, demand_loopback))
}

/// Refuses a request that names the server otherwise than by its loopback address: the name of
/// another site may lead here, whose scripts the browser would take for those of this page.
async fn demand_loopback(State(passing): State<Passing>, request: Request, next: Next) -> Response {
    if is_loopback(request.headers(), passing.port) {
        return next.run(request).await;
    }
    let what = "the page is not served under this name";
    refuse(StatusCode::MISDIRECTED_REQUEST, what, "open the address that `cairn web` printed")
}

fn is_loopback(headers: &HeaderMap, port: u16) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| host == format!("{name}:{port}"))
}

/// Passes a request of a session on.
async fn pass(State(passing): State<Passing>, request: Request) -> Response {
    if passing.page.admits(request.headers()).is_none() {
        let next = "run `cairn web` again, and open the link that it prints";
        return refuse(StatusCode::UNAUTHORIZED, "there is no such session", next);
    }
    answer(&passing, request).await
}

/// Passes a download on, whose URL the server checks.
async fn pass_download(State(passing): State<Passing>, request: Request) -> Response {
    answer(&passing, request).await
}

async fn answer(passing: &Passing, request: Request) -> Response {
    match forward(&passing.target, request).await {
        Ok(response) => response,
        Err(error) => {
            let what = format!("the server does not answer: {error}");
            refuse(StatusCode::BAD_GATEWAY, &what, "see whether it runs with `cairn status`")
        }
    }
}

async fn forward(
    target: &Target,
    request: Request,
) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    // No header of the browser is passed on: cookies and keys are between it and this page.
    let mut onward = Request::builder().method(head.method).uri(path).header(HOST, "cairn");
    if let Some(kind) = head.headers.get(CONTENT_TYPE) {
        onward = onward.header(CONTENT_TYPE, kind);
    }
    match target {
        Target::Unix(socket) => {
            let stream = tokio::net::UnixStream::connect(socket).await?;
            converse(stream, onward.body(body)?).await
        }
        Target::Tcp { address, token, tls } => {
            let request = onward.header(AUTHORIZATION, format!("Bearer {token}")).body(body)?;
            let stream = tokio::net::TcpStream::connect(address).await?;
            let Some(tls) = tls else { return converse(stream, request).await };
            let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
            converse(TlsConnector::from(tls.clone()).connect(name, stream).await?, request).await
        }
    }
}

async fn converse<S>(
    stream: S,
    request: Request,
) -> Result<Response, Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the body of the answer.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to the server ended");
        }
    });
    let mut response = sender.send_request(request).await?.map(Body::new);
    response.headers_mut().remove(CONNECTION);
    response.headers_mut().remove(TRANSFER_ENCODING);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_reach_the_page() {
        let is = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            is_loopback(&headers, 7400)
        };
        assert!(is("127.0.0.1:7400") && is("localhost:7400") && is("[::1]:7400"));
        for other in ["evil.example:7400", "127.0.0.1:7401", "127.0.0.1", "127.0.0.1.evil.example:7400", ""] {
            assert!(!is(other), "{other}");
        }
    }
}
