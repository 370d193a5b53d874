//! Tests of the rules for NBD.

use std::sync::Arc;

use cairn_base::{ManualClock, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::*;

fn rule(words: &[&str]) -> Restricted {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    Restricted { rule: NbdRule::parse(&words).unwrap(), ..Restricted::default() }
}

fn visitor(from: Option<[u8; 4]>) -> Visitor {
    Visitor { from: from.map(IpAddr::from), ..Visitor::default() }
}

#[test]
fn words_of_a_rule_are_read_as_they_are_written() {
    let fingerprint = "AB:".repeat(31) + "AB";
    for words in
        [&["open"][..], &["unix"], &["off"], &["10.0.0.0/24", "cert:backup1"], &["cert:a", "fd00::/8"]]
    {
        let parsed = rule(words).rule;
        let mut expected: Vec<&str> = words.to_vec();
        expected.sort_by_key(|word| word.starts_with("cert:"));
        assert_eq!(NbdRule::words(parsed.as_ref()), expected);
    }
    let by_print = rule(&[&format!("cert:sha256:{fingerprint}")]);
    assert_eq!(NbdRule::words(by_print.rule.as_ref()), [format!("cert:sha256:{}", "ab".repeat(32))]);
    assert_eq!(rule(&["default"]).rule, None);
    for wrong in [
        &["closed"][..],
        &["open", "off"],
        &["unix", "10.0.0.1"],
        &["10.0.0.0/33"],
        &["cert:"],
        &["cert:a b"],
        &["cert:sha256:ab"],
        &[""],
    ] {
        let words: Vec<String> = wrong.iter().map(|word| (*word).to_owned()).collect();
        assert!(NbdRule::parse(&words).is_err(), "{wrong:?}");
    }
}

#[test]
fn export_with_chap_or_initiators_is_not_offered_over_tcp_without_a_rule() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_795_000_000_000_000_000)));
    let known = Certificates::open(dir.path(), clock, None, Vec::new()).unwrap();
    let (local, remote, unix) = (visitor(Some([127, 0, 0, 1])), visitor(Some([10, 0, 0, 7])), visitor(None));
    let restricted = Restricted { authenticates: true, ..Restricted::default() };
    assert!(restricted.admit(&local, &known).is_err() && restricted.admit(&unix, &known).is_ok());
    assert!(!restricted.is_open() && restricted.clients(false).is_none());
    let with_rule = Restricted { authenticates: true, ..rule(&["10.0.0.0/24"]) };
    assert!(with_rule.admit(&remote, &known).is_ok() && with_rule.admit(&local, &known).is_err());
    let near = Restricted { networks: vec!["10.0.0.0/24".to_owned()], ..Restricted::default() };
    assert!(near.admit(&remote, &known).is_ok() && near.admit(&local, &known).is_err() && !near.is_open());
    assert!(rule(&["unix"]).admit(&local, &known).is_err() && rule(&["unix"]).admit(&unix, &known).is_ok());
    assert!(rule(&["off"]).admit(&unix, &known).is_err());
    assert!(Restricted { authenticates: true, ..rule(&["open"]) }.admit(&remote, &known).is_ok());
    assert!(Restricted::default().is_open() && rule(&["0.0.0.0/0"]).is_open());
}

#[test]
fn certificate_is_known_by_its_name_or_its_fingerprint() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_795_000_000_000_000_000)));
    let known = Certificates::open(dir.path(), clock, None, Vec::new()).unwrap();
    let request = api::IssueCertificate { name: "backup1".to_owned(), expires_ms: None };
    let issued = known.issue_client(&request).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()];
    let with = |certificates| Visitor { tls: true, certificates, ..visitor(Some([10, 0, 0, 7])) };
    let by_name = rule(&["cert:backup1"]);
    assert_eq!(by_name.admit(&visitor(Some([10, 0, 0, 7])), &known), Err(NbdRefusal::NeedsTls));
    assert!(by_name.admit(&with(Vec::new()), &known).is_err());
    assert!(by_name.admit(&with(chain.clone()), &known).is_ok());
    assert!(rule(&["cert:other"]).admit(&with(chain.clone()), &known).is_err());
    let print = format!("cert:sha256:{}", issued.fingerprint);
    assert!(rule(&[&print]).admit(&with(chain.clone()), &known).is_ok());
    assert!(rule(&[&print, "192.0.2.0/24"]).admit(&with(chain), &known).is_err(), "both must hold");
    assert!(!by_name.is_open());
}

#[test]
fn listener_of_this_machine_is_told_from_others() {
    for address in ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.8.8.8:1", "[::ffff:127.0.0.1]:1"] {
        assert!(!is_reachable(address), "{address}");
    }
    for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "storage1:1"] {
        assert!(is_reachable(address), "{address}");
    }
}
