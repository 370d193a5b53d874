//! People, rules and grants, without a provider.

use cairn_base::{ManualClock, Timestamp};
use serde_json::json;

use super::*;

struct World {
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
    oidc: Arc<Oidc>,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_800_000_000_000_000_000)));
    let oidc = Oidc::open(dir.path(), clock.clone());
    oidc.set(&provider()).unwrap();
    World { dir, clock, oidc }
}

fn provider() -> SetOidc {
    let text = |text: &str| Some(text.to_owned());
    SetOidc {
        issuer: text("https://login.example.com"),
        client_id: text("cairn"),
        client_secret: Some(api::Hidden("the secret of the client\n".to_owned())),
        redirect_url: text("https://storage1:7400/oidc"),
        ..SetOidc::default()
    }
}

fn rule(name: &str, claim: &str, role: Role) -> CreateOidcRule {
    CreateOidcRule {
        name: name.to_owned(),
        claims: vec![claim.to_owned()],
        role,
        volumes: Vec::new(),
        expires_ms: None,
        session_ms: None,
    }
}

fn ann() -> Person {
    let claims = json!({ "sub": "7", "email": "ann@example.com", "email_verified": true, "groups": ["staff", "storage"] });
    Person { claims: claims.as_object().unwrap().clone() }
}

#[test]
fn first_rule_that_matches_decides_about_a_person() {
    let World { dir: _dir, oidc, .. } = world();
    let refused = oidc.grant(&ann()).unwrap_err();
    assert!(refused.message.contains("no rule admits ann@example.com"), "{refused:?}");
    assert!(refused.message.contains("groups=staff,storage"), "{refused:?}");
    oidc.create_rule(&rule("admins", "groups=storage-admins", Role::Administrator)).unwrap();
    let bound =
        CreateOidcRule { volumes: vec!["vol0".to_owned()], ..rule("team", "groups=storage", Role::Operator) };
    oidc.create_rule(&bound).unwrap();
    oidc.create_rule(&rule("staff", "groups=staff", Role::Viewer)).unwrap();
    let identity = oidc.grant(&ann()).unwrap();
    let actor = oidc.actor(&identity).unwrap();
    assert_eq!((&actor.name[..], actor.role), ("oidc:ann@example.com", Role::Operator));
    assert_eq!(actor.volumes, Some(["vol0".to_owned()].into_iter().collect()));
    assert_eq!(oidc.rules().unwrap().iter().map(|rule| rule.sessions).collect::<Vec<_>>(), [0, 1, 0]);
    assert!(oidc.actor(&identity[..identity.len() - 1]).is_none() && oidc.actor("").is_none());
}

#[test]
fn all_claims_of_a_rule_must_match() {
    let World { dir: _dir, oidc, .. } = world();
    let both = |second: &str| CreateOidcRule {
        claims: vec!["groups=staff".to_owned(), second.to_owned()],
        ..rule(second.split_once('=').unwrap().1, "", Role::Viewer)
    };
    oidc.create_rule(&both("groups=nobody")).unwrap();
    assert!(oidc.grant(&ann()).is_err());
    oidc.create_rule(&both("groups=storage")).unwrap();
    oidc.grant(&ann()).unwrap();
}

#[test]
fn grant_ends_with_its_rule_its_time_its_provider_and_a_sign_out() {
    let World { dir: _dir, oidc, clock } = world();
    let create = |name: &str, expires_ms, session_ms| {
        oidc.create_rule(&CreateOidcRule {
            expires_ms,
            session_ms,
            ..rule(name, "groups=staff", Role::Viewer)
        })
        .unwrap();
        oidc.grant(&ann()).unwrap()
    };
    let is_valid = |identity: &str| oidc.actor(identity).is_some();
    let minute = Duration::from_secs(60);
    let granted = create("a", None, Some(120_000));
    clock.advance(minute);
    assert!(is_valid(&granted));
    clock.advance(minute);
    assert!(!is_valid(&granted), "the session was this long");
    let granted = oidc.grant(&ann()).unwrap();
    oidc.delete_rule("a").unwrap();
    assert!(!is_valid(&granted), "its rule is gone");
    assert!(oidc.delete_rule("a").is_err());

    let granted = create("a", Some(90_000), None);
    clock.advance(minute);
    assert!(is_valid(&granted));
    // The wall clock is set back.
    clock.set(Timestamp(1_700_000_000_000_000_000));
    clock.advance(minute);
    assert!(!is_valid(&granted), "its rule has expired");
    assert!(oidc.grant(&ann()).is_err());
    oidc.delete_rule("a").unwrap();

    let granted = create("a", None, None);
    oidc.forget(&granted);
    assert!(!is_valid(&granted), "it signed out");
    let granted = oidc.grant(&ann()).unwrap();
    clock.advance(SESSION_MAX);
    assert!(!is_valid(&granted), "no session is longer");
    let granted = oidc.grant(&ann()).unwrap();
    oidc.set(&SetOidc { name: Some("Example".to_owned()), ..SetOidc::default() }).unwrap();
    assert!(is_valid(&granted), "it is the same provider");
    oidc.set(&SetOidc { client_id: Some("other".to_owned()), ..SetOidc::default() }).unwrap();
    assert!(!is_valid(&granted), "it is another client");
    let granted = oidc.grant(&ann()).unwrap();
    oidc.delete().unwrap();
    assert!(!is_valid(&granted) && oidc.delete().is_err());
}

#[test]
fn settings_and_rules_survive_and_the_secret_goes_to_no_other_provider() {
    let World { oidc, dir, clock } = world();
    oidc.create_rule(&rule("a", "email=ann@example.com", Role::Viewer)).unwrap();
    let text = std::fs::read_to_string(dir.path().join("oidc.json")).unwrap();
    assert!(text.contains("the secret of the client"));
    let shown =
        format!("{:?} {}", oidc.show().unwrap(), serde_json::to_string(&oidc.show().unwrap()).unwrap());
    assert!(!shown.contains("the secret of the client"), "{shown}");
    let again = Oidc::open(dir.path(), clock);
    assert!(again.show().unwrap().has_secret && again.rules().unwrap().len() == 1);
    let changed = again.set(&SetOidc { name: Some("Example".to_owned()), ..SetOidc::default() }).unwrap();
    assert!(changed.has_secret && changed.name == "Example");
    let other = SetOidc { issuer: Some("https://other.example.com".to_owned()), ..SetOidc::default() };
    assert!(!again.set(&other).unwrap().has_secret);
    let back =
        again.set(&SetOidc { issuer: Some("https://login.example.com".to_owned()), ..SetOidc::default() });
    assert!(!back.unwrap().has_secret);
}

#[test]
fn invalid_settings_and_rules_change_nothing() {
    let World { oidc, dir, .. } = world();
    let before = std::fs::read(dir.path().join("oidc.json")).unwrap();
    let text = |text: &str| Some(text.to_owned());
    for asked in [
        SetOidc { issuer: text("http://login.example.com"), ..SetOidc::default() },
        SetOidc { redirect_url: text("https://storage1:7400/"), ..SetOidc::default() },
        SetOidc { authority: text("no certificate"), ..SetOidc::default() },
        SetOidc { client_id: text(""), ..SetOidc::default() },
        SetOidc { scopes: Some(vec!["a b".to_owned()]), ..SetOidc::default() },
    ] {
        assert!(oidc.set(&asked).is_err(), "{asked:?}");
    }
    let good = rule("a", "groups=staff", Role::Viewer);
    for asked in [
        CreateOidcRule { claims: Vec::new(), ..good.clone() },
        CreateOidcRule { claims: vec!["groups".to_owned()], ..good.clone() },
        CreateOidcRule { claims: vec!["iss=https://login.example.com".to_owned()], ..good.clone() },
        CreateOidcRule { expires_ms: Some(0), ..good.clone() },
        CreateOidcRule { session_ms: Some(1), ..good.clone() },
        CreateOidcRule { session_ms: Some(13 * 3_600_000), ..good.clone() },
        CreateOidcRule { name: "a b".to_owned(), ..good.clone() },
        CreateOidcRule { volumes: vec!["../x".to_owned()], ..good.clone() },
    ] {
        assert!(oidc.create_rule(&asked).is_err(), "{asked:?}");
    }
    assert_eq!(std::fs::read(dir.path().join("oidc.json")).unwrap(), before);
    let fresh = tempfile::tempdir().unwrap();
    let empty = Oidc::open(fresh.path(), Arc::<ManualClock>::default());
    assert!(empty.set(&SetOidc { issuer: text("https://login.example.com"), ..SetOidc::default() }).is_err());
    assert!(empty.shown().is_none() && empty.show().is_err());
}

#[test]
fn no_person_is_admitted_while_the_rules_cannot_be_read() {
    let World { oidc, dir, .. } = world();
    oidc.create_rule(&rule("a", "groups=staff", Role::Viewer)).unwrap();
    let granted = oidc.grant(&ann()).unwrap();
    std::fs::write(dir.path().join("oidc.json"), "{ cut").unwrap();
    oidc.read();
    assert!(oidc.actor(&granted).is_none() && oidc.shown().is_none() && oidc.rules().is_err());
}

#[test]
fn browsers_return_to_the_path_of_the_page() {
    assert_eq!(cairn_oidc::CALLBACK, cairn_web::CALLBACK);
}
