//! Tests of certificates, without sockets.

use cairn_base::{ManualClock, Timestamp};
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;

use super::*;

const NOW_NS: u64 = 1_795_000_000_000_000_000;

fn opened(dir: &Path, files: Option<[PathBuf; 2]>) -> (Arc<Certificates>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp(NOW_NS)));
    let names = vec!["storage1.example".to_owned(), "192.0.2.7".to_owned()];
    (Certificates::open(dir, clock.clone(), files, names).unwrap(), clock)
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[test]
fn server_has_a_certificate_for_its_names_and_keeps_its_root() {
    let dir = tempfile::tempdir().unwrap();
    let (certificates, clock) = opened(dir.path(), None);
    let shown = certificates.show();
    let key = certificates.current.read().key.clone();
    let parsed = ParsedCertificate::try_from(&key.cert[0]).unwrap();
    for name in ["storage1.example", "192.0.2.7", "localhost", "127.0.0.1", "::1"] {
        let name = ServerName::try_from(name).unwrap();
        verify_server_name(&parsed, &name).unwrap();
    }
    assert!(verify_server_name(&parsed, &ServerName::try_from("evil.example").unwrap()).is_err());
    // A server's certificate is not a client's.
    assert!(certificates.names_of_client(&key.cert).is_empty());
    assert_eq!(opened(dir.path(), None).0.show().root, shown.root);
    assert_ne!(opened(dir.path(), None).0.show().fingerprint, shown.fingerprint);
    assert!(certificates.problems().is_empty());
    clock.advance(Duration::from_secs(200 * 24 * 3600));
    certificates.refresh();
    assert!(certificates.show().expires_ms > shown.expires_ms, "it is renewed long before its end");
    clock.advance(Duration::from_secs(3630 * 24 * 3600));
    assert_eq!(certificates.problems().len(), 1, "the root expires");
}

#[test]
fn client_is_known_by_the_certificate_that_the_authority_issued() {
    let dir = tempfile::tempdir().unwrap();
    let (certificates, clock) = opened(dir.path(), None);
    let ask = |name: &str, expires_ms| api::IssueCertificate { name: name.to_owned(), expires_ms };
    let issued = certificates.issue_client(&ask("backup1", Some(10 * 86_400_000))).unwrap();
    let chain = vec![der(&issued.certificate)];
    assert_eq!(certificates.names_of_client(&chain), ["backup1"]);
    assert_eq!(Fingerprint::of(&chain[0]).to_string(), issued.fingerprint);
    // Of the authority of another server, with the same name.
    let other = tempfile::tempdir().unwrap();
    let foreign = opened(other.path(), None).0.issue_client(&ask("backup1", None)).unwrap();
    assert!(certificates.names_of_client(&[der(&foreign.certificate)]).is_empty());
    assert!(certificates.names_of_client(&[der(&foreign.certificate), der(&issued.certificate)]).is_empty());
    assert!(certificates.names_of_client(&[]).is_empty());
    // The root itself is no client.
    assert!(certificates.names_of_client(&[der(&issued.root)]).is_empty());
    clock.advance(Duration::from_secs(11 * 86_400));
    assert!(certificates.names_of_client(&chain).is_empty(), "it has expired");
    for name in ["", "a b", "../x", "a,b"] {
        assert!(certificates.issue_client(&ask(name, None)).is_err(), "{name:?}");
    }
    assert!(certificates.issue_client(&ask("x", Some(0))).is_err());
    let text = std::fs::read_to_string(dir.path().join("authority.pem")).unwrap();
    assert!(!text.contains(issued.key.lines().nth(1).unwrap()), "the key of a client is not stored");
}

#[test]
fn files_of_the_owner_are_loaded_again_when_both_fit() {
    let dir = tempfile::tempdir().unwrap();
    let make = |days: u64| {
        let authority = Authority::open(dir.path(), NOW_NS / 1_000_000).unwrap();
        let now_ms = NOW_NS / 1_000_000 - (365 - days) * 86_400_000;
        let (chain, key, _) = authority.server(&["storage1.example".to_owned()], now_ms).unwrap();
        let pem = |kind: &str, bytes: &[u8]| {
            use base64::Engine;
            let text = base64::engine::general_purpose::STANDARD.encode(bytes);
            format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n")
        };
        (pem("CERTIFICATE", &chain[0]), pem("PRIVATE KEY", key.secret_der()))
    };
    let files = [dir.path().join("server.crt"), dir.path().join("server.key")];
    let put = |certificate: &str, key: &str| {
        std::fs::write(&files[0], certificate).unwrap();
        std::fs::write(&files[1], key).unwrap();
    };
    let first = make(200);
    put(&first.0, &first.1);
    let (certificates, _) = opened(dir.path(), Some(files.clone()));
    let before = certificates.show();
    assert_eq!(before.names, ["storage1.example"]);
    assert!(certificates.problems().is_empty());
    // A certificate that does not fit its key, as in the middle of a replacement, and no
    // certificate.
    let second = make(20);
    for certificate in [&second.0[..], "nonsense"] {
        put(certificate, &first.1);
        certificates.refresh();
        assert_eq!(certificates.show().fingerprint, before.fingerprint);
        assert_eq!(certificates.problems().len(), 1);
    }
    put(&second.0, &second.1);
    certificates.refresh();
    let after = certificates.show();
    assert_ne!(after.fingerprint, before.fingerprint);
    let problems = certificates.problems();
    assert!(problems.len() == 1 && problems[0].message.contains("expires in"), "{problems:?}");
}

#[test]
fn damaged_authority_is_set_aside_and_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let root = opened(dir.path(), None).0.show().root;
    let path = dir.path().join("authority.pem");
    for damage in [&b""[..], b"nonsense", &[0xff; 100]] {
        std::fs::write(&path, damage).unwrap();
        assert_ne!(opened(dir.path(), None).0.show().root, root);
        assert_eq!(std::fs::read(dir.path().join("authority.pem.damaged")).unwrap(), damage);
    }
}
