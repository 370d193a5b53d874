//! Tests of the fleet: the parts of foreign answers that are kept, and accepted addresses.

use serde_json::json;

use super::*;

#[test]
fn summary_takes_numbers_of_any_status_and_no_long_texts() {
    let status = json!({
        "version": "9\u{1b}[31m", "problems": [{ "subject": "vol0", "message": "x".repeat(1000) }],
        "volumes": [{ "used_bytes": u64::MAX, "size_bytes": 5 }, { "used_bytes": 3 }, 7],
        "mirrors": [{ "lag_ms": 5, "over_rpo": true }, { "lag_ms": 9 }, {}],
    });
    let found = summary(&status);
    let expected = FleetSummary {
        version: "9[31m".to_owned(),
        problems: 1,
        volumes: 3,
        mirrors: 3,
        over_rpo: 1,
        lag_ms: Some(9),
        used_bytes: u64::MAX,
        size_bytes: 5,
    };
    assert_eq!(found, expected);
    assert_eq!(first_problem(&status).unwrap().len(), TEXT_MAX);
    for other in [json!(null), json!([]), json!({ "volumes": 1, "problems": {} })] {
        assert_eq!(summary(&other), FleetSummary::default());
        assert_eq!(first_problem(&other), None);
    }
}

#[test]
fn token_is_sent_in_the_clear_to_this_machine_only() {
    let kept = |address: &str, root: Option<&str>, token: &str| Kept {
        name: "other".to_owned(),
        address: address.to_owned(),
        root: root.map(str::to_owned),
        token: token.to_owned(),
        added_ms: 0,
    };
    for (address, root, token, is_good) in [
        ("127.0.0.1:7400", None, "secret", true),
        ("[::1]:7400", None, "secret", true),
        ("storage2:7400", Some("pem"), "secret", true),
        ("storage2:7400", None, "secret", false),
        ("10.0.0.2:7400", None, "secret", false),
        ("127.0.0.1.evil.example:7400", None, "secret", false),
        ("storage2", Some("pem"), "secret", false),
        (":7400", Some("pem"), "secret", false),
        ("storage2:0", Some("pem"), "secret", false),
        ("127.0.0.1:7400", None, "", false),
        ("127.0.0.1:7400", None, "a\r\nb", false),
    ] {
        assert_eq!(kept(address, root, token).check().is_ok(), is_good, "{address} {token:?}");
    }
}

#[test]
fn server_that_is_added_later_under_the_name_has_no_old_answer() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = Fleet::open(dir.path(), Arc::new(cairn_base::ManualClock::default()));
    let kept = Kept {
        name: "other".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        root: None,
        token: "secret".to_owned(),
        added_ms: 1,
    };
    fleet.seen.lock().entry(kept.key()).or_default();
    fleet.note(&kept, Ok(json!({ "problems": [] })));
    assert_eq!(kept.show(fleet.seen.lock().get(&kept.key())).state, FleetState::Well);
    let later = Kept { added_ms: 2, ..kept.clone() };
    assert_eq!(later.show(fleet.seen.lock().get(&later.key())).state, FleetState::Unknown);
    fleet.note(&kept, Err(ErrorBody::new(ErrorKind::Failed, "gone", "wait")));
    let shown = kept.show(fleet.seen.lock().get(&kept.key()));
    assert_eq!((shown.state, shown.message.as_deref()), (FleetState::Unreachable, Some("gone")));
    assert!(!serde_json::to_string(&shown).unwrap().contains("secret"));
}
