//! A client of the API: over the control socket of a data directory, or over TCP with a token.
//!
//! One connection a request: commands make few requests, and a restart of the server between two of
//! them needs no special case.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{ErrorBody, ErrorKind, VERSION_HEADER};

/// Longest wait for the answer to one request. Work that may take longer is a job.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where the server is.
#[derive(Debug, Clone)]
pub enum Place {
    /// `DIR/control.sock`.
    Data(PathBuf),
    /// Another unix socket.
    Unix(PathBuf),
    /// HOST:PORT, with the token.
    Tcp(String, String),
}

/// The status, the version of the program that answered, and the body.
type Answer = (hyper::StatusCode, Option<String>, Bytes);

/// A client.
pub struct Client {
    place: Place,
    /// For [`Place::Tcp`].
    tls: Option<Arc<ClientConfig>>,
    runtime: tokio::runtime::Runtime,
    /// Takes a line for the user, besides the result of a command.
    note: fn(&str),
    told_version: std::cell::Cell<bool>,
    patience: std::cell::Cell<Duration>,
    answer_max: std::cell::Cell<usize>,
}

impl Client {
    /// A client of the server at `place`; nothing is sent yet. `note` shows the user a line.
    pub fn new(place: Place, note: fn(&str)) -> Result<Self, ErrorBody> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (told_version, patience) = (std::cell::Cell::new(false), std::cell::Cell::new(PATIENCE));
        let answer_max = std::cell::Cell::new(usize::MAX);
        Ok(Self { place, tls: None, runtime, note, told_version, patience, answer_max })
    }

    /// Uses TLS over TCP from now on, and trusts the roots in this PEM.
    pub fn use_tls(&mut self, roots: &[u8]) -> Result<(), ErrorBody> {
        let invalid = |error: &dyn std::fmt::Display| {
            let next = "name the file that `cairn tls root` printed on the server";
            ErrorBody::new(ErrorKind::Usage, format!("the roots of --tls-root cannot be used: {error}"), next)
        };
        let mut store = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(roots) {
            store.add(root.map_err(|error| invalid(&error))?).map_err(|error| invalid(&error))?;
        }
        if store.is_empty() {
            return Err(invalid(&"there is no certificate in the file"));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(&error))?
            .with_root_certificates(store)
            .with_no_client_auth();
        self.tls = Some(Arc::new(config));
        Ok(())
    }

    /// Its configuration of TLS, if it uses that.
    pub fn tls(&self) -> Option<Arc<ClientConfig>> {
        self.tls.clone()
    }

    /// Reads no longer answers than that from now on, in bytes.
    pub fn read_at_most(&self, bytes: usize) {
        self.answer_max.set(bytes);
    }

    /// Waits no longer than that for an answer from now on.
    pub fn hurry(&self, patience: Duration) {
        self.patience.set(patience);
    }

    /// Ctrl-C, from now on; it does not end the program any more.
    pub fn interrupts(&self) -> Result<tokio::signal::unix::Signal, ErrorBody> {
        let _inside = self.runtime.enter();
        Ok(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?)
    }

    /// SIGTERM, from now on; it does not end the program any more.
    pub fn terminations(&self) -> Result<tokio::signal::unix::Signal, ErrorBody> {
        let _inside = self.runtime.enter();
        Ok(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?)
    }

    /// Waits; true when there was such a signal, as a Ctrl-C.
    pub fn wait(&self, time: Duration, interrupts: &mut tokio::signal::unix::Signal) -> bool {
        self.runtime.block_on(async { tokio::time::timeout(time, interrupts.recv()).await.is_ok() })
    }

    /// Where the server is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// GET.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ErrorBody> {
        self.request(Method::GET, path, None::<&()>)
    }

    /// GET of bytes that are not JSON.
    pub fn get_bytes(&self, path: &str) -> Result<Bytes, ErrorBody> {
        let request = self.prepare(Method::GET, path, None::<&()>)?;
        let (status, version, bytes) = self.runtime.block_on(self.answer(request))?;
        self.compare_version(version.as_deref());
        match status.is_success() {
            true => Ok(bytes),
            false => Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| broken(&status))),
        }
    }

    /// GET, unless a signal comes or `leaves` returns true meanwhile: then there is no answer. It
    /// calls `leaves` once in `every`.
    pub fn get_unless<T: DeserializeOwned>(
        &self,
        path: &str,
        signals: &mut [tokio::signal::unix::Signal],
        every: Duration,
        leaves: &dyn Fn() -> bool,
    ) -> Result<Option<T>, ErrorBody> {
        self.ask_unless(Method::GET, path, signals, every, leaves)
    }

    /// DELETE, unless a signal comes meanwhile.
    pub fn delete_unless<T: DeserializeOwned>(
        &self,
        path: &str,
        signal: &mut tokio::signal::unix::Signal,
    ) -> Result<Option<T>, ErrorBody> {
        self.ask_unless(Method::DELETE, path, std::slice::from_mut(signal), PATIENCE, &|| false)
    }

    fn ask_unless<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        signals: &mut [tokio::signal::unix::Signal],
        every: Duration,
        leaves: &dyn Fn() -> bool,
    ) -> Result<Option<T>, ErrorBody> {
        let request = self.prepare(method, path, None::<&()>)?;
        let left = async {
            loop {
                let signal = poll_fn(|context| {
                    match signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    }
                });
                if tokio::time::timeout(every, signal).await.is_ok() || leaves() {
                    return;
                }
            }
        };
        let answer = self.runtime.block_on(async {
            let (mut answer, mut left) = (pin!(self.answer(request)), pin!(left));
            poll_fn(|context| match answer.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => left.as_mut().poll(context).map(|()| None),
            })
            .await
        });
        answer.map(|answer| self.understand(answer?)).transpose()
    }

    /// POST.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ErrorBody> {
        self.request(Method::POST, path, Some(body))
    }

    /// PUT.
    pub fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ErrorBody> {
        self.request(Method::PUT, path, Some(body))
    }

    /// PATCH.
    pub fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ErrorBody> {
        self.request(Method::PATCH, path, Some(body))
    }

    /// DELETE.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ErrorBody> {
        self.request(Method::DELETE, path, None::<&()>)
    }

    fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ErrorBody> {
        let request = self.prepare(method, path, body)?;
        self.understand(self.runtime.block_on(self.answer(request))?)
    }

    fn prepare(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Request<Full<Bytes>>, ErrorBody> {
        let bytes = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| broken(&error))?,
            None => Vec::new(),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "cairn")
            .header("content-type", "application/json");
        if let Place::Tcp(_, token) = &self.place {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.body(Full::new(Bytes::from(bytes))).map_err(|error| broken(&error))
    }

    async fn answer(&self, request: Request<Full<Bytes>>) -> Result<Answer, ErrorBody> {
        let patience = self.patience.get();
        tokio::time::timeout(patience, self.exchange(request)).await.unwrap_or_else(|_| {
            Err(ErrorBody::new(
                ErrorKind::Failed,
                format!("the server did not answer within {} s", patience.as_secs()),
                "see its log; `cairn status` shows what it is at",
            ))
        })
    }

    fn understand<T: DeserializeOwned>(&self, answer: Answer) -> Result<T, ErrorBody> {
        let (status, version, bytes) = answer;
        self.compare_version(version.as_deref());
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| broken(&error));
        }
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => Err(body),
            Err(_) => Err(broken(&status)),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer, ErrorBody> {
        let answer_max = self.answer_max.get();
        match &self.place {
            Place::Data(dir) => {
                let path = dir.join("control.sock");
                let stream = tokio::net::UnixStream::connect(&path)
                    .await
                    .map_err(|error| no_server(&dir.display(), Some(dir), &error))?;
                converse(stream, request, answer_max).await
            }
            Place::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path)
                    .await
                    .map_err(|error| no_server(&path.display(), None, &error))?;
                converse(stream, request, answer_max).await
            }
            Place::Tcp(address, _) => {
                let stream = tokio::net::TcpStream::connect(address)
                    .await
                    .map_err(|error| no_server(address, None, &error))?;
                let Some(tls) = &self.tls else { return converse(stream, request, answer_max).await };
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                let host = host.trim_matches(['[', ']']).to_owned();
                let name = ServerName::try_from(host).map_err(|error| broken(&error))?;
                let stream = tokio_rustls::TlsConnector::from(tls.clone()).connect(name, stream).await;
                let stream = stream.map_err(|error| {
                    ErrorBody::new(
                        ErrorKind::PeerUnreachable,
                        format!("TLS with {address} failed: {error}"),
                        "check that --tls-root has the root of this server (`cairn tls root` there), and that the server has --tls; `cairn tls show` lists its names",
                    )
                })?;
                converse(stream, request, answer_max).await
            }
        }
    }

    fn compare_version(&self, theirs: Option<&str>) {
        let ours = env!("CARGO_PKG_VERSION");
        let theirs = theirs.unwrap_or("an unknown version");
        if theirs != ours && !self.told_version.replace(true) {
            (self.note)(&format!(
                "note: the server is {theirs} and this program is {ours}; use the same version of both"
            ));
        }
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    request: Request<Full<Bytes>>,
    answer_max: usize,
) -> Result<Answer, ErrorBody> {
    fn cut(error: impl std::fmt::Display) -> ErrorBody {
        ErrorBody::new(
            ErrorKind::Failed,
            format!("the server broke the connection: {error}"),
            "see whether it still runs with `cairn status`, and its log",
        )
    }
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(cut)?;
    let driver = tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(cut)?;
    let status = response.status();
    let version = response.headers().get(VERSION_HEADER).and_then(|value| value.to_str().ok());
    let version = version.map(str::to_owned);
    let body = Limited::new(response.into_body(), answer_max).collect().await;
    let bytes = body.map_err(cut)?.to_bytes();
    driver.abort();
    Ok((status, version, bytes))
}

fn broken(what: &dyn std::fmt::Display) -> ErrorBody {
    ErrorBody::new(
        ErrorKind::Failed,
        format!("the server's answer cannot be used: {what}"),
        "check that `cairn serve` and this program have the same version",
    )
}

fn no_server(place: &dyn std::fmt::Display, dir: Option<&Path>, error: &std::io::Error) -> ErrorBody {
    use std::io::ErrorKind as Io;
    if error.kind() == Io::PermissionDenied {
        return ErrorBody::new(
            ErrorKind::Unauthorized,
            format!("this user may not talk to the server of {place}"),
            "run the command as the user that runs the server",
        );
    }
    match dir {
        Some(dir) => {
            let dir = quoted(dir);
            ErrorBody::new(
                ErrorKind::Failed,
                format!("no server is running for {place}"),
                format!("start one with `cairn serve --data {dir}`"),
            )
        }
        None => ErrorBody::new(
            ErrorKind::PeerUnreachable,
            format!("no server answers at {place}: {error}"),
            "check the address; over TCP the server must have been started with --http HOST:PORT",
        ),
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+=:,".contains(&byte)) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
