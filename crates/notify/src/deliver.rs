//! Deliveries: one try each, with a limit on its time. The caller decides about the next try.
//!
//! Every future here may be dropped at any point: a target that hangs costs nothing but its own
//! time limit.

mod http;
mod mail;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::message::{Message, Origin};
use crate::target::{Ping, Target};

/// The time of one try.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Letters that are kept of an answer.
const ANSWER_MAX: usize = 200;

/// The kind of a failure: it decides about the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It may pass by itself: no connection, an overload, a failure of the server.
    Passing,
    /// A person must change something: credentials, a certificate, an address.
    Lasting,
    /// The target refuses this message; it may take the next one.
    Refused,
}

/// A failed delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its kind.
    pub fault: Fault,
    /// The failure and its cause, without secrets.
    pub message: String,
    /// The remedy.
    pub next: String,
    /// The time that the target asks for.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure without a time that the target asks for.
    pub fn new(fault: Fault, message: impl fmt::Display, next: impl fmt::Display) -> Self {
        Self { fault, message: message.to_string(), next: next.to_string(), retry_after: None }
    }
}

/// Delivers a message and returns the answer. Commands are not delivered here: their owner runs
/// them.
pub async fn send(
    target: &Target,
    message: &Message,
    origin: &Origin,
    seconds: u64,
) -> Result<String, Failure> {
    let sent = async {
        match target {
            Target::Mail(mail) => mail::send(mail, message, origin).await,
            Target::Web(web) => http::post(web, message, origin, seconds).await,
            Target::Ping(ping) => http::ping(ping).await,
            Target::Program(_) => {
                Err(Failure::new(Fault::Lasting, "a command is not sent", "report this as a bug"))
            }
        }
    };
    bounded(target, sent).await
}

/// Tells a dead man's switch that all is well.
pub async fn ping(ping: &Ping) -> Result<String, Failure> {
    bounded(&Target::Ping(ping.clone()), http::ping(ping)).await
}

async fn bounded(
    target: &Target,
    sent: impl Future<Output = Result<String, Failure>>,
) -> Result<String, Failure> {
    let outcome = match tokio::time::timeout(TIME_MAX, sent).await {
        Ok(outcome) => outcome,
        Err(_) => Err(timed_out()),
    };
    match outcome {
        Ok(answer) => Ok(target.hide_in(&excerpt(&answer))),
        Err(failure) => Err(Failure { message: target.hide_in(&failure.message), ..failure }),
    }
}

fn timed_out() -> Failure {
    Failure::new(
        Fault::Passing,
        format!("it did not answer within {} s", TIME_MAX.as_secs()),
        "check that the address is right and that the network lets this machine reach it",
    )
}

/// The first letters of an answer, in one line.
fn excerpt(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut letters = line.chars().filter(|c| !c.is_control());
    let mut short: String = letters.by_ref().take(ANSWER_MAX).collect();
    if letters.next().is_some() {
        short.push_str("...");
    }
    short
}

/// A text has no certificate in it that can be read.
#[derive(Debug)]
pub(crate) struct NoCertificate;

/// The certificates in a text (PEM): at least one.
pub(crate) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, NoCertificate> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let found = found.map_err(|_| NoCertificate)?;
    let mut trial = RootCertStore::empty();
    let all_fit = found.iter().all(|one| trial.add(one.clone()).is_ok());
    if found.is_empty() || !all_fit { Err(NoCertificate) } else { Ok(found) }
}

/// TLS that trusts the authorities of this machine, and those in a text (PEM).
///
/// # Errors
/// The certificates in the text can't be read.
pub fn client_tls(authority: Option<&str>) -> Result<ClientConfig, Failure> {
    tls(authority)
}

/// The cause of a failed request to `place`, in words.
pub fn reason_of(error: &(dyn Error + 'static), place: &str) -> String {
    failure_of(cause_of(error), place).message
}

/// TLS that trusts the authorities of this machine, and those of a target.
fn tls(authority: Option<&str>) -> Result<ClientConfig, Failure> {
    let broken = |_| Failure::new(Fault::Lasting, "TLS can't be set up", "report this as a bug");
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(pem) = authority {
        let own = certificates(pem).map_err(|_| {
            let next = "give the target certificates again with --ca";
            Failure::new(Fault::Lasting, "its own certificates can't be read", next)
        })?;
        roots.add_parsable_certificates(own);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(config.map_err(broken)?.with_root_certificates(roots).with_no_client_auth())
}

/// The cause of a failure that a person can act on, from a chain of errors.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    /// The certificate, with the reason.
    Certificate(String),
    /// The name of the host has no address.
    Name,
    /// The operating system, with its word.
    Os(String),
    /// Time.
    Time,
}

/// Looks for a known cause in a chain of errors.
fn cause_of(error: &(dyn Error + 'static)) -> Option<Cause> {
    let mut cause = Some(error);
    let mut found = None;
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            let why = match tls {
                rustls::Error::InvalidCertificate(why) => reason(why),
                other => other.to_string(),
            };
            return Some(Cause::Certificate(why));
        }
        cause = match error.downcast_ref::<std::io::Error>() {
            Some(io) => {
                if io.kind() == std::io::ErrorKind::TimedOut {
                    found = Some(Cause::Time);
                } else if io.raw_os_error().is_some() {
                    found = Some(Cause::Os(io_word(io)));
                } else if io.to_string().contains("failed to lookup address") {
                    return Some(Cause::Name);
                }
                io.get_ref().map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
            }
            None => error.source(),
        };
    }
    found
}

fn reason(why: &rustls::CertificateError) -> String {
    use rustls::CertificateError as E;
    match why {
        E::Expired | E::ExpiredContext { .. } => "it has expired".to_owned(),
        E::NotValidYet | E::NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        E::UnknownIssuer => "this machine does not trust its issuer".to_owned(),
        E::NotValidForName | E::NotValidForNameContext { .. } => "it is of another host".to_owned(),
        E::Revoked => "it was revoked".to_owned(),
        other => format!("{other:?}"),
    }
}

/// An error of the operating system without its number.
fn io_word(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// The failure for a cause at `place`.
fn failure_of(cause: Option<Cause>, place: &str) -> Failure {
    match cause {
        Some(Cause::Certificate(why)) => Failure::new(
            Fault::Lasting,
            format!("the certificate of {place} is not accepted: {why}"),
            "renew the certificate there, or name its authority with `cairn notify set NAME --ca FILE`",
        ),
        Some(Cause::Name) => Failure::new(
            Fault::Passing,
            format!("{place} is not known: its name has no address"),
            "check the name, and the name servers of this machine",
        ),
        Some(Cause::Os(word)) => Failure::new(
            Fault::Passing,
            format!("cannot reach {place}: {word}"),
            "check that the service runs, and that the network lets this machine reach it",
        ),
        Some(Cause::Time) => timed_out(),
        None => Failure::new(
            Fault::Passing,
            format!("the connection to {place} broke"),
            "check that the service there speaks the protocol of this target",
        ),
    }
}

#[cfg(test)]
mod tests;
