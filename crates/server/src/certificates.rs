//! Certificates of this server for clients: of the API and the page over HTTPS, and of NBD over
//! TLS.
//!
//! The owner names a certificate and a key in PEM; both are loaded again when they change.
//! Otherwise the server issues its own, signed by its [authority](authority), whose root clients
//! know. The authority also issues the certificates of NBD clients. Peers of mirrors are not
//! concerned: they pin the certificate in `identity.pem`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use cairn_api as api;
use cairn_base::Clock;
use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificates::authority::Authority;
use crate::certificates::error::CertificatesError;
use crate::certificates::reading::read;
use crate::error::ServerError;
use crate::names;
use crate::peers::identity::Fingerprint;
use crate::peers::tls;

pub(crate) mod authority;
mod commands;
pub(crate) mod error;
mod reading;

/// The interval between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A certificate that expires within this time is a problem.
const SOON: Duration = Duration::from_secs(30 * 24 * 3600);

/// The certificate that clients get now.
struct Current {
    key: Arc<CertifiedKey>,
    not_after_ms: u64,
    names: Vec<String>,
    fingerprint: Fingerprint,
    /// Of the files that it is from.
    stamps: Option<[Stamp; 2]>,
}

/// The state of a file that changes with its content: length, and time of change.
type Stamp = (u64, Option<Duration>);

/// The certificates of a server.
pub(crate) struct Certificates {
    clock: Arc<dyn Clock>,
    authority: Authority,
    /// Certificates, the server's first, and the key.
    files: Option<[PathBuf; 2]>,
    /// Names and addresses of this server beside those that it finds.
    names: Vec<String>,
    current: RwLock<Current>,
    /// Why the present content of the files is not used.
    fault: Mutex<Option<String>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("files", &self.files).finish_non_exhaustive()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn stamp(path: &Path) -> std::io::Result<Stamp> {
    let found = std::fs::metadata(path)?;
    Ok((found.len(), found.modified()?.duration_since(UNIX_EPOCH).ok()))
}

impl Certificates {
    /// The certificates of the server with this data directory. `files` are the certificate and the
    /// key in PEM, if the owner names them; `names` are further names of this server.
    pub(crate) fn open(
        dir: &Path,
        clock: Arc<dyn Clock>,
        files: Option<[PathBuf; 2]>,
        names: Vec<String>,
    ) -> Result<Arc<Self>, ServerError> {
        let authority = Authority::open(dir, now_ms(&*clock))?;
        let current = match &files {
            Some(files) => load(files)?,
            None => issue(&authority, &names, now_ms(&*clock))?,
        };
        let (current, fault) = (RwLock::new(current), Mutex::default());
        Ok(Arc::new(Self { clock, authority, files, names, current, fault }))
    }

    fn now_ms(&self) -> u64 {
        now_ms(&*self.clock)
    }

    /// Loads the files if they have changed; issues another certificate if the present one is old.
    fn refresh(&self) {
        let (not_after_ms, stamps) = {
            let current = self.current.read();
            (current.not_after_ms, current.stamps)
        };
        let new = match &self.files {
            Some([certificate, key]) => {
                let now = stamp(certificate).and_then(|one| Ok([one, stamp(key)?]));
                if now.is_ok_and(|now| Some(now) == stamps) {
                    self.fault.lock().take();
                    return;
                }
                self.files.as_ref().map(load)
            }
            None => {
                let left_ms = not_after_ms.saturating_sub(self.now_ms());
                (left_ms < authority::SERVER_DAYS * 12 * 3_600_000)
                    .then(|| issue(&self.authority, &self.names, self.now_ms()))
            }
        };
        match new {
            None => {}
            Some(Ok(new)) => {
                tracing::info!(not_after_ms = new.not_after_ms, "took another certificate for TLS");
                *self.current.write() = new;
                self.fault.lock().take();
            }
            // Such as a certificate without its key, while both are being replaced.
            Some(Err(error)) => {
                let before = self.fault.lock().replace(error.to_string());
                if before.as_deref() != Some(&error.to_string()) {
                    tracing::warn!(%error, "the certificate for TLS has changed and cannot be used; the last one stays");
                }
            }
        }
    }

    /// Looks at the files from now on, on a thread of its own.
    pub(crate) fn watch(self: &Arc<Self>) -> Result<Watching, ServerError> {
        let own = self.clone();
        let (end, ended) = channel();
        let thread = std::thread::Builder::new()
            .name("certificates".to_owned())
            .spawn(move || {
                while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                    own.refresh();
                }
            })
            .map_err(|source| ServerError::Thread { what: "certificates", source })?;
        Ok(Watching { end: Some(end), thread: Some(thread) })
    }

    /// TLS of the API and the page.
    pub(crate) fn of_http(self: &Arc<Self>) -> Result<Arc<ServerConfig>, ServerError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// TLS of NBD. A client may show a certificate, and proves that it has the key; the rules of
    /// each export decide about it.
    pub(crate) fn of_nbd(self: &Arc<Self>) -> Result<Arc<ServerConfig>, ServerError> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(tls::any_certificate())
            .with_cert_resolver(self.clone());
        Ok(Arc::new(config))
    }

    /// The names in a client's certificate that the authority has issued and that is valid now.
    pub(crate) fn names_of_client(&self, chain: &[CertificateDer<'static>]) -> Vec<String> {
        let Some((first, others)) = chain.split_first() else { return Vec::new() };
        let now = UnixTime::since_unix_epoch(Duration::from_millis(self.now_ms()));
        match self.authority.verify_client(first, others, now) {
            Ok(()) => read(first).map(|(_, names)| names).unwrap_or_default(),
            Err(error) => {
                tracing::info!(%error, "a client's certificate is not of this server's authority, or has expired");
                Vec::new()
            }
        }
    }

    /// As the API shows them.
    pub(crate) fn show(&self) -> api::Tls {
        let current = self.current.read();
        api::Tls {
            certificate: self.files.as_ref().map(|[certificate, _]| certificate.display().to_string()),
            fingerprint: current.fingerprint.to_string(),
            names: current.names.clone(),
            expires_ms: current.not_after_ms,
            root: self.authority.pem().to_owned(),
            root_fingerprint: self.authority.fingerprint().to_string(),
            root_expires_ms: self.authority.not_after_ms(),
        }
    }

    /// Issues a certificate of a client.
    pub(crate) fn issue_client(
        &self,
        request: &api::IssueCertificate,
    ) -> Result<api::IssuedCertificate, ServerError> {
        names::check("client", &request.name)?;
        self.authority.client(&request.name, request.expires_ms, self.now_ms())
    }

    /// Certificates that expire soon, and files that cannot be used.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let now_ms = self.now_ms();
        let problem = |message: String, next: &str| api::Problem {
            subject: "TLS".to_owned(),
            message,
            next: next.to_owned(),
        };
        let mut problems = Vec::new();
        let (not_after_ms, names) = {
            let current = self.current.read();
            (current.not_after_ms, current.names.join(", "))
        };
        let words = |not_after_ms: u64| match not_after_ms.checked_sub(now_ms) {
            None => "has expired: clients that verify it refuse to connect".to_owned(),
            Some(left_ms) => format!("expires in {} days", left_ms / 86_400_000),
        };
        let is_soon = |not_after_ms: u64| not_after_ms.saturating_sub(now_ms) < SOON.as_millis() as u64;
        if self.files.is_some() && is_soon(not_after_ms) {
            problems.push(problem(
                format!("the certificate of --tls-cert for {names} {}", words(not_after_ms)),
                "replace the files of --tls-cert and --tls-key; the server loads them by itself",
            ));
        }
        if is_soon(self.authority.not_after_ms()) {
            problems.push(problem(
                format!("the root certificate of this server's authority {}", words(self.authority.not_after_ms())),
                "move authority.pem in the data directory away, restart the server, and give clients the new root: cairn tls root",
            ));
        }
        if let Some(fault) = &*self.fault.lock() {
            problems.push(problem(
                format!("the files of --tls-cert and --tls-key have changed and cannot be used: {fault}"),
                "correct them; until then the server uses the last valid certificate",
            ));
        }
        problems
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().key.clone())
    }
}

fn now_ms(clock: &dyn Clock) -> u64 {
    clock.now().0 / 1_000_000
}

fn load(files: &[PathBuf; 2]) -> Result<Current, ServerError> {
    let [certificate, key] = files;
    // The stamps come first: a change during the load is noticed at the next look.
    let stamps = [
        stamp(certificate).map_err(ServerError::path("read", certificate))?,
        stamp(key).map_err(ServerError::path("read", key))?,
    ];
    let invalid = |path: &Path, fault: String| CertificatesError::Invalid { path: path.to_owned(), fault };
    let text = std::fs::read(certificate).map_err(ServerError::path("read", certificate))?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| invalid(certificate, error.to_string()))?;
    let first =
        chain.first().ok_or_else(|| invalid(certificate, "it has no certificate".to_owned()))?.clone();
    let (not_after_ms, names) =
        read(&first).ok_or_else(|| invalid(certificate, "its certificate cannot be read".to_owned()))?;
    let text = std::fs::read(key).map_err(ServerError::path("read", key))?;
    let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| invalid(key, error.to_string()))?;
    let certified = CertifiedKey::from_der(chain, private, &provider())
        .map_err(|error| invalid(key, format!("it does not fit the certificate: {error}")))?;
    let fingerprint = Fingerprint::of(&first);
    Ok(Current { key: Arc::new(certified), not_after_ms, names, fingerprint, stamps: Some(stamps) })
}

fn issue(authority: &Authority, more: &[String], now_ms: u64) -> Result<Current, ServerError> {
    let mut names = own_names();
    names.extend(more.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
    let (chain, key, not_after_ms) = authority.server(&names, now_ms)?;
    let fingerprint = Fingerprint::of(&chain[0]);
    let key = CertifiedKey::from_der(chain, key, &provider())?;
    Ok(Current { key: Arc::new(key), not_after_ms, names, fingerprint, stamps: None })
}

/// The names and addresses of this machine.
fn own_names() -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let host = names::host();
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
    };
    if is_name(&host) && host != "localhost" {
        names.push(host);
    }
    // Addresses of this machine are destinations that its kernel delivers itself.
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let mut last = "";
    for line in table.lines() {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address;
        } else if line == "/32 host LOCAL" && !names.iter().any(|name| name == last) {
            names.push(last.to_owned());
        }
    }
    let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    for digits in table.lines().filter_map(|line| line.split_whitespace().next()) {
        let Ok(number) = u128::from_str_radix(digits, 16) else { continue };
        let address = std::net::Ipv6Addr::from(number);
        if !address.is_unicast_link_local() && !names.contains(&address.to_string()) {
            names.push(address.to_string());
        }
    }
    names
}

/// A thread that looks at the files, until this is dropped.
pub(crate) struct Watching {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
