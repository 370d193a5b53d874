//! A server's identity: one self-signed certificate and its key, made once, known to peers by its
//! SHA-256.
//!
//! Names and dates in the certificate mean nothing here: a peer pins the certificate itself. So it
//! does not expire.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::ServerError;
use crate::peers::error::PeersError;
use crate::state;

/// SHA-256 of a certificate in DER; 64 hexadecimal digits as text. All zeroes, which no certificate
/// has, represent an unknown one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate.as_ref()).into())
    }
}

/// The text is not a fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is 64 hexadecimal digits")]
pub struct InvalidFingerprint;

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 64 || !text.is_ascii() {
            return Err(InvalidFingerprint);
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| InvalidFingerprint)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| InvalidFingerprint)?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = InvalidFingerprint;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> String {
        fingerprint.to_string()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Certificate and key.
pub(crate) struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) fingerprint: Fingerprint,
}

impl Identity {
    /// The identity in `dir` (`identity.pem`: key, then certificate), created if there is none.
    pub(crate) fn open(dir: &Path) -> Result<Self, ServerError> {
        let path = dir.join("identity.pem");
        // A symbolic link counts as existing, even while its target is missing.
        let is_missing =
            std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if is_missing {
            if dir.join("peers.json").exists() {
                tracing::warn!(
                    path = %path.display(),
                    "THE KEY OF THIS SERVER IS MISSING, and a new one is made: servers that know the old key will treat this as another server. Restore the old key, and restart the server. Without it every mirror, here and of the volumes here, needs a new token (`cairn peer invite`, `cairn mirror repoint`)"
                );
            }
            let mut params = rcgen::CertificateParams::new(vec!["cairn".to_owned()])?;
            params.distinguished_name.push(rcgen::DnType::CommonName, "cairn");
            params.not_after = rcgen::date_time_ymd(9999, 12, 31);
            let key = rcgen::KeyPair::generate()?;
            let certificate = params.self_signed(&key)?;
            let pem = format!("{}{}", key.serialize_pem(), certificate.pem());
            state::replace(&path, pem.as_bytes()).map_err(ServerError::path("write", &path))?;
        }
        let pem = std::fs::read(&path).map_err(ServerError::path("read", &path))?;
        // Never recreated automatically: to its peers that would be another server.
        let damaged = |_| ServerError::Peers(PeersError::DamagedIdentity { path: path.clone() });
        let certificate = CertificateDer::from_pem_slice(&pem).map_err(damaged)?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(damaged)?;
        let fingerprint = Fingerprint::of(&certificate);
        Ok(Self { certificate, key, fingerprint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_that_is_kept_elsewhere_and_not_there_now_is_not_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("secrets");
        std::fs::create_dir(&elsewhere).unwrap();
        let dir = folder.path().join("data");
        std::fs::create_dir(&dir).unwrap();
        let first = Identity::open(&dir).unwrap().fingerprint;
        let (path, kept) = (dir.join("identity.pem"), elsewhere.join("identity.pem"));
        std::fs::rename(&path, &kept).unwrap();
        std::os::unix::fs::symlink(&kept, &path).unwrap();
        assert_eq!(Identity::open(&dir).unwrap().fingerprint, first);
        // As where that file system is mounted later.
        let away = folder.path().join("away");
        std::fs::rename(&elsewhere, &away).unwrap();
        let refused = Identity::open(&dir).map(|made| made.fingerprint);
        assert!(
            matches!(refused, Err(ServerError::Path { .. })),
            "to its peers it would be another: {refused:?}"
        );
        std::fs::rename(&away, &elsewhere).unwrap();
        assert_eq!(Identity::open(&dir).unwrap().fingerprint, first);
    }
}
