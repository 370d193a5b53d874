//! Objects about TLS: certificates of the server and of its clients.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The certificates of the server.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Tls {
    /// The file of the server's certificate; none when the server's authority issued it.
    pub certificate: Option<String>,
    /// SHA-256 of the server's certificate.
    pub fingerprint: String,
    /// The names and addresses in it.
    pub names: Vec<String>,
    /// When it expires.
    pub expires_ms: u64,
    /// The root certificate of the server's authority, in PEM. Clients need it unless the owner
    /// named another certificate.
    pub root: String,
    /// SHA-256 of the root certificate.
    pub root_fingerprint: String,
    /// When the root certificate expires.
    pub root_expires_ms: u64,
}

/// Issues a certificate of a client.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueCertificate {
    /// The name of the client, which rules of exports name.
    pub name: String,
    /// It expires after this time; by default 365 days.
    pub expires_ms: Option<u64>,
}

/// A certificate that was issued.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct IssuedCertificate {
    /// The name of the client.
    pub name: String,
    /// SHA-256 of the certificate.
    pub fingerprint: String,
    /// When it expires.
    pub expires_ms: u64,
    /// The certificate, in PEM.
    pub certificate: String,
    /// Its key, in PEM. The server does not store it.
    pub key: String,
    /// The root certificate, in PEM.
    pub root: String,
}

impl fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedCertificate").field("name", &self.name).finish_non_exhaustive()
    }
}
