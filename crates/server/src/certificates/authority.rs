//! The authority of a server: `DIR/authority.pem`, a key and its root certificate, made at the
//! first start.
//!
//! Its name is derived from its key, so two authorities never have the same name. Certificates of
//! servers cannot be used by clients, and those of clients not by servers.

use std::io;
use std::path::Path;
use std::sync::Arc;

use cairn_api as api;
use chrono::{DateTime, Datelike, Utc};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};

use crate::certificates::reading::read;
use crate::error::ServerError;
use crate::peers::identity::Fingerprint;
use crate::state;

/// The validity of the root, of a server's certificate, and of a client's by default, in days.
const ROOT_DAYS: u64 = 3650;
pub(super) const SERVER_DAYS: u64 = 365;
const CLIENT_DAYS: u64 = 365;

const DAY_MS: u64 = 86_400_000;

/// The key, and the root certificate.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
    pem: String,
    not_after_ms: u64,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// A day, as certificates have it. A wrong clock gives a year that they can have.
fn day(ms: u64) -> (i32, u8, u8) {
    let day = i64::try_from(ms).ok().and_then(DateTime::<Utc>::from_timestamp_millis).unwrap_or_default();
    let date = day.date_naive();
    (date.year().clamp(1970, 9998), date.month() as u8, date.day() as u8)
}

/// Sets the validity: from the day before, so that a client whose clock is late accepts it, to the
/// end. Returns the end in milliseconds.
fn set_validity(params: &mut CertificateParams, now_ms: u64, days: u64) -> u64 {
    let end_ms = now_ms.saturating_add(days.saturating_mul(DAY_MS));
    let (from, to) = (day(now_ms.saturating_sub(DAY_MS)), day(end_ms));
    params.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
    params.not_after = rcgen::date_time_ymd(to.0, to.1, to.2);
    end_ms - end_ms % DAY_MS
}

/// The certificate of the authority with this key, but for its validity.
fn root_of(key: &KeyPair) -> CertificateParams {
    let digest = Sha256::digest(key.public_key_raw());
    let number: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Cairn authority {number}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// A new key and its root certificate, in PEM.
fn make(now_ms: u64) -> Result<String, ServerError> {
    let key = KeyPair::generate()?;
    let mut params = root_of(&key);
    set_validity(&mut params, now_ms, ROOT_DAYS);
    let root = params.self_signed(&key)?;
    Ok(format!("{}{}", key.serialize_pem(), root.pem()))
}

impl Authority {
    /// The authority in `dir`, created if there is none. A damaged one is set aside: clients that
    /// verify this server then refuse it until they have the new root.
    pub(super) fn open(dir: &Path, now_ms: u64) -> Result<Self, ServerError> {
        let path = dir.join("authority.pem");
        match std::fs::read_to_string(&path) {
            Ok(text) => match Self::parse(&text) {
                Some(authority) => return Ok(authority),
                None => {
                    let aside = dir.join("authority.pem.damaged");
                    std::fs::rename(&path, &aside).map_err(ServerError::path("set aside", &path))?;
                    tracing::warn!(
                        path = %path.display(),
                        aside = %aside.display(),
                        "THE AUTHORITY FOR TLS WAS DAMAGED, and a new one was made: give clients its root (`cairn tls root`), and issue their certificates again"
                    );
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Bytes that are no text.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let aside = dir.join("authority.pem.damaged");
                std::fs::rename(&path, &aside).map_err(ServerError::path("set aside", &path))?;
            }
            Err(error) => return Err(ServerError::path("read", &path)(error)),
        }
        let text = make(now_ms)?;
        state::replace(&path, text.as_bytes()).map_err(ServerError::path("write", &path))?;
        Self::parse(&text).ok_or(ServerError::Bug)
    }

    fn parse(text: &str) -> Option<Self> {
        let key = KeyPair::from_pem(text.get(..text.find("-----BEGIN CERTIFICATE-----")?)?).ok()?;
        let root = CertificateDer::from_pem_slice(text.as_bytes()).ok()?;
        let pem = text.get(text.find("-----BEGIN CERTIFICATE-----")?..)?.to_owned();
        let (not_after_ms, _) = read(&root)?;
        let issuer = Issuer::new(root_of(&key), key);
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).ok()?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), super::provider()).build().ok()?;
        Some(Self { issuer, root, pem, not_after_ms, verifier })
    }

    /// The root certificate in PEM.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.root)
    }

    pub(super) fn not_after_ms(&self) -> u64 {
        self.not_after_ms
    }

    /// A certificate for this server, with a key of its own and the end of its validity.
    pub(super) fn server(
        &self,
        names: &[String],
        now_ms: u64,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, u64), ServerError> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "Cairn server");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let not_after_ms = set_validity(&mut params, now_ms, SERVER_DAYS);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok((vec![certificate.der().clone(), self.root.clone()], key, not_after_ms))
    }

    /// A certificate for a client, with a key of its own, which is not stored here.
    pub(super) fn client(
        &self,
        name: &str,
        expires_ms: Option<u64>,
        now_ms: u64,
    ) -> Result<api::IssuedCertificate, ServerError> {
        let days = expires_ms.map_or(CLIENT_DAYS, |expires_ms| expires_ms.div_ceil(DAY_MS));
        if days == 0 || days > ROOT_DAYS {
            return Err(ServerError::Invalid {
                fault: "a certificate is valid for at least one day and at most ten years",
                next: "give a time such as --expires 365d, or leave it out",
            });
        }
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let expires_ms = set_validity(&mut params, now_ms, days);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(api::IssuedCertificate {
            name: name.to_owned(),
            fingerprint: Fingerprint::of(certificate.der()).to_string(),
            expires_ms,
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            root: self.pem.clone(),
        })
    }

    /// Whether a certificate is a client's, of this authority, and valid now.
    pub(super) fn verify_client(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        self.verifier.verify_client_cert(certificate, others, now).map(drop)
    }
}
