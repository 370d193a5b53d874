//! The runtime below remote stores, and the HTTP client with a record of every answer.
//!
//! The library does not expose all of an answer (`Retry-After`, the date of a lock, the code of an
//! error). [`Service`] therefore notes it in a [`Trail`] of the call's task.

use std::cell::RefCell;
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http_body_util::{BodyExt, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::codes::Answer;
use super::xml;
use crate::date::parse_utc;
use crate::error::{CredentialTrouble, Trouble};
use crate::limits::{
    ANSWER_BYTES_MAX, CALL_TIME_MAX, CANCEL_POLL, CONNECT_TIME_MAX, IDLE_CONNECTIONS_MAX, RUNTIME_THREADS,
    SILENCE_MAX, SLOWEST_BYTES_PER_SECOND,
};

/// Hosts that give credentials to a machine, a container or a role. Trouble with them is one of
/// credentials.
const CREDENTIAL_HOSTS: &[&str] =
    &["169.254.169.254", "169.254.170.2", "169.254.170.23", "metadata.google.internal", "metadata"];

/// The runtime of all remote stores of a process.
#[derive(Debug)]
pub struct Net {
    /// Present until it is dropped.
    runtime: Option<tokio::runtime::Runtime>,
}

/// Time limit of a call that moves this many bytes.
pub(super) fn time_for(bytes: usize) -> Duration {
    CALL_TIME_MAX + Duration::from_secs(bytes as u64 / SLOWEST_BYTES_PER_SECOND)
}

/// Why a call has no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    Cancelled,
    TimedOut,
}

impl Net {
    /// Starts its threads.
    ///
    /// # Errors
    /// The system cannot start the thread.
    pub fn start() -> io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .thread_name("bucket")
            .enable_all()
            .build()?;
        Ok(Arc::new(Self { runtime: Some(runtime) }))
    }

    /// Runs `call` on the calling thread until it is done, `limit` is over, or `cancel` is set.
    pub(super) fn run<T>(
        &self,
        limit: Duration,
        cancel: &AtomicBool,
        extra: Option<(HeaderName, HeaderValue)>,
        call: impl Future<Output = T>,
    ) -> (Result<T, Stopped>, Trail) {
        let Some(runtime) = &self.runtime else { return (Err(Stopped::Cancelled), Trail::default()) };
        let trail = RefCell::new(Trail { extra, ..Trail::default() });
        runtime.block_on(TRAIL.scope(trail, async {
            let mut call = Box::pin(call);
            let outcome = watch(limit, cancel, &mut call).await;
            (outcome, TRAIL.with(|trail| trail.take()))
        }))
    }

    /// As [`Net::run`], on the threads of the runtime: a long answer does not wake the calling
    /// thread for each of its pieces.
    pub(super) fn run_apart<T: Send + 'static>(
        &self,
        limit: Duration,
        cancel: &AtomicBool,
        call: impl Future<Output = T> + Send + 'static,
    ) -> (Result<T, Stopped>, Trail) {
        let Some(runtime) = &self.runtime else { return (Err(Stopped::Cancelled), Trail::default()) };
        let mut task = runtime.spawn(TRAIL.scope(RefCell::default(), async {
            let done = call.await;
            (done, TRAIL.with(|trail| trail.take()))
        }));
        match runtime.block_on(watch(limit, cancel, &mut task)) {
            Ok(Ok((done, trail))) => (Ok(done), trail),
            Ok(Err(ended)) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => (Err(Stopped::Cancelled), Trail::default()),
            },
            Err(stopped) => {
                task.abort();
                (Err(stopped), Trail::default())
            }
        }
    }
}

/// Waits for a call until `limit` is over or `cancel` is set.
async fn watch<F: Future + Unpin>(
    limit: Duration,
    cancel: &AtomicBool,
    call: &mut F,
) -> Result<F::Output, Stopped> {
    let mut left = limit;
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(Stopped::Cancelled);
        }
        if left.is_zero() {
            return Err(Stopped::TimedOut);
        }
        let step = left.min(CANCEL_POLL);
        match tokio::time::timeout(step, &mut *call).await {
            Ok(outcome) => return Ok(outcome),
            Err(_) => left -= step,
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The last event on the wire during a call.
#[derive(Debug, Clone, Default)]
pub(super) struct Trail {
    /// A header of requests that finish an upload: the library has no way to pass it.
    extra: Option<(HeaderName, HeaderValue)>,
    /// The last answer of the store.
    pub(super) answer: Option<Answer>,
    /// Why there was no answer.
    pub(super) broken: Option<Trouble>,
}

tokio::task_local! {
    static TRAIL: RefCell<Trail>;
}

/// Makes clients with the certificates of this store.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    tls: Arc<rustls::ClientConfig>,
    https_only: bool,
    /// Hosts with their ports that give credentials, besides those that always do.
    givers: Arc<[String]>,
}

/// The certificate of an authority cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoCertificate;

impl Connector {
    /// Trusts the authorities of this machine, and those in `authority` (PEM). `givers` are
    /// addresses that give credentials.
    pub(super) fn new(
        authority: Option<&[u8]>,
        https_only: bool,
        givers: &[String],
    ) -> Result<Self, NoCertificate> {
        let mut roots = rustls::RootCertStore::empty();
        let system = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(system.certs);
        if let Some(pem) = authority {
            let mut own = 0;
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate.map_err(|_| NoCertificate)?).map_err(|_| NoCertificate)?;
                own += 1;
            }
            if own == 0 {
                return Err(NoCertificate);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| NoCertificate)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let address = |giver: &String| giver.parse::<http::Uri>().ok()?.authority().map(ToString::to_string);
        Ok(Self { tls: Arc::new(tls), https_only, givers: givers.iter().filter_map(address).collect() })
    }

    pub(super) fn client(&self) -> Result<HttpClient, reqwest::Error> {
        // A proxy reaches another machine's role, if any.
        let direct = self.builder().read_timeout(SILENCE_MAX).no_proxy().build()?;
        let client = self.builder().read_timeout(SILENCE_MAX).build()?;
        // Silence is counted from the first byte that is sent, and a slow link takes long for a
        // piece.
        let sender = self.builder().build()?;
        Ok(HttpClient::new(Service { client, sender, direct, givers: self.givers.clone() }))
    }

    fn builder(&self) -> reqwest::ClientBuilder {
        reqwest::Client::builder()
            .tls_backend_preconfigured((*self.tls).clone())
            .https_only(self.https_only)
            .http1_only()
            .connect_timeout(CONNECT_TIME_MAX)
            .tcp_user_timeout(SILENCE_MAX)
            .tcp_keepalive(SILENCE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("cairn/", env!("CARGO_PKG_VERSION")))
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        self.client().map_err(|error| object_store::Error::Generic {
            store: "http",
            source: Box::new(error.without_url()),
        })
    }
}

#[derive(Debug)]
struct Service {
    client: reqwest::Client,
    /// For requests with a body.
    sender: reqwest::Client,
    /// For services that give credentials: no proxy.
    direct: reqwest::Client,
    givers: Arc<[String]>,
}

impl HttpService for Service {
    fn call<'own, 'out>(
        &'own self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'out>>
    where
        'own: 'out,
        Self: 'out,
    {
        Box::pin(self.execute(request))
    }
}

impl Service {
    async fn execute(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = request.uri().host().unwrap_or_default();
        let authority = request.uri().authority().map(http::uri::Authority::as_str).unwrap_or_default();
        let is_near = CREDENTIAL_HOSTS.contains(&host) || self.givers.iter().any(|giver| giver == authority);
        let gives_credentials = is_near || host.starts_with("sts.");
        let sends = matches!(*request.method(), http::Method::PUT | http::Method::POST);
        let client = match (is_near, sends) {
            (true, _) => &self.direct,
            (_, true) => &self.sender,
            _ => &self.client,
        };
        let query = request.uri().query().unwrap_or_default();
        let finishes = request.method() == http::Method::POST && query.contains("uploadId=");
        if finishes && let Some((name, value)) = on_trail(|trail| trail.extra.clone()).flatten() {
            request.headers_mut().insert(name, value);
        }
        match HttpService::call(client, request).await {
            Ok(response) if gives_credentials => {
                if !response.status().is_success() {
                    let missing = Trouble::Credentials(CredentialTrouble::NoRole);
                    on_trail(|trail| trail.broken = Some(missing));
                }
                Ok(response)
            }
            Ok(response) => self.note(response, finishes).await,
            Err(error) => {
                let broken = match gives_credentials {
                    true => Trouble::Credentials(CredentialTrouble::NoRole),
                    false => broken_by(&error),
                };
                on_trail(|trail| (trail.answer, trail.broken) = (None, Some(broken)));
                Err(error)
            }
        }
    }

    /// Notes the headers of the answer. The body of an error is read whole, within a limit; so is
    /// that of an answer that completes an upload, as S3 may report an error there after a success
    /// status.
    async fn note(&self, response: HttpResponse, finishes: bool) -> Result<HttpResponse, HttpError> {
        let mut answer = answer_of(response.status().as_u16(), response.headers());
        if response.status().is_success() && !finishes {
            on_trail(|trail| (trail.answer, trail.broken) = (Some(answer), None));
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = bounded(body).await?;
        let text = String::from_utf8_lossy(&body);
        if !parts.status.is_success() || text.contains("<Error>") {
            answer.code = answer.code.or_else(|| xml::text(&text, "Code").filter(|code| is_code(code)));
            let region = xml::text(&text, "Region").filter(|region| is_code(region));
            answer.region = answer.region.or(region);
            if parts.status.is_success() {
                answer.status = 500;
            }
        }
        on_trail(|trail| (trail.answer, trail.broken) = (Some(answer), None));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)))
    }
}

/// Reads a body that is not an object.
pub(super) async fn bounded(body: HttpResponseBody) -> Result<Bytes, HttpError> {
    match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(error) => match error.downcast::<HttpError>() {
            Ok(error) => Err(*error),
            Err(error) => Err(HttpError::new_boxed(HttpErrorKind::Decode, error)),
        },
    }
}

fn on_trail<T>(change: impl FnOnce(&mut Trail) -> T) -> Option<T> {
    TRAIL.try_with(|trail| change(&mut trail.borrow_mut())).ok()
}

/// Codes and regions are words: no other text of a store is shown to users.
fn is_code(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= 64 && text.bytes().all(allowed)
}

fn answer_of(status: u16, headers: &HeaderMap) -> Answer {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Answer {
        status,
        code: header("x-ms-error-code").filter(|code| is_code(code)).map(str::to_owned),
        region: header("x-amz-bucket-region").filter(|region| is_code(region)).map(str::to_owned),
        retry_after: seconds.map(Duration::from_secs),
        locked_until: header("x-amz-object-lock-retain-until-date").and_then(parse_utc),
        version: header("x-amz-version-id").map(str::to_owned),
    }
}

/// The kind of a failure, by its chain of causes. Their texts are not kept.
pub(super) fn broken_by(error: &HttpError) -> Trouble {
    let mut kind = match error.kind() {
        HttpErrorKind::Timeout => return Trouble::TimedOut,
        HttpErrorKind::Connect => io::ErrorKind::NotConnected,
        HttpErrorKind::Interrupted | HttpErrorKind::Request => io::ErrorKind::ConnectionReset,
        _ => io::ErrorKind::Other,
    };
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if is_certificate(error) {
            return Trouble::Certificate;
        }
        cause = match error.downcast_ref::<io::Error>() {
            Some(error) => {
                if error.kind() != io::ErrorKind::Other {
                    kind = error.kind();
                }
                // The error that an I/O error wraps is not among its causes.
                error.get_ref().map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
            }
            None => error.source(),
        };
    }
    match kind {
        io::ErrorKind::TimedOut => Trouble::TimedOut,
        kind => Trouble::Unreachable(kind),
    }
}

fn is_certificate(error: &(dyn Error + 'static)) -> bool {
    let tls = error.downcast_ref::<rustls::Error>();
    matches!(tls, Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented))
}
