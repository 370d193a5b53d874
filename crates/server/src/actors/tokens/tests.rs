//! Tests of tokens.

use std::os::unix::fs::PermissionsExt;

use cairn_base::{ManualClock, Timestamp};

use super::*;

fn ask(name: &str, role: Role) -> CreateToken {
    CreateToken { name: name.to_owned(), role, volumes: Vec::new(), expires_ms: None }
}

fn opened(dir: &Path, clock: &Arc<ManualClock>) -> Tokens {
    Tokens::open(dir, clock.clone())
}

#[test]
fn token_admits_its_role_until_it_is_revoked_and_only_a_digest_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::<ManualClock>::default();
    let tokens = opened(dir.path(), &clock);
    let volumes = vec!["vol0".to_owned()];
    let made = tokens.create(&CreateToken { volumes, ..ask("reader", Role::Viewer) }).unwrap();
    assert!(made.secret.len() > 50 && !format!("{made:?}").contains(&made.secret));
    let path = dir.path().join("tokens.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("reader") && !text.contains(&made.secret), "{text}");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // Also after a restart.
    let tokens = opened(dir.path(), &clock);
    let identity = tokens.identity(made.secret.as_bytes()).unwrap();
    let actor = tokens.actor(&identity).unwrap();
    assert_eq!((actor.name.as_str(), actor.role), ("token reader", Role::Viewer));
    assert_eq!(actor.volumes, Some(["vol0".to_owned()].into()));
    for wrong in ["", "cairnkey-", &made.secret[..made.secret.len() - 1], &format!("{} ", made.secret)] {
        assert_eq!(tokens.identity(wrong.as_bytes()), None, "{wrong:?}");
    }
    assert!(matches!(tokens.create(&ask("reader", Role::Administrator)), Err(ServerError::Taken { .. })));
    tokens.revoke("reader").unwrap();
    assert_eq!(tokens.actor(&identity), None);
    assert!(tokens.revoke("reader").is_err());
    // Another token of that name has another identity: a session of the first one gets no new role.
    tokens.create(&ask("reader", Role::Administrator)).unwrap();
    assert_eq!(tokens.actor(&identity), None);
    assert_eq!(opened(dir.path(), &clock).actor(&identity), None);
}

#[test]
fn digest_of_a_token_is_not_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = opened(dir.path(), &Arc::default());
    let made = tokens.create(&ask("a", Role::Viewer)).unwrap();
    let stored = digest(made.secret.as_bytes());
    assert_eq!(tokens.identity(stored.as_bytes()), None, "a copy of the file admits nobody");
}

#[test]
fn expired_token_is_refused_even_if_the_clock_is_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::<ManualClock>::default();
    clock.advance(Duration::from_secs(1_000_000));
    let tokens = opened(dir.path(), &clock);
    let request = CreateToken { expires_ms: Some(60_000), ..ask("a", Role::Operator) };
    let made = tokens.create(&request).unwrap();
    clock.advance(Duration::from_secs(59));
    assert!(tokens.identity(made.secret.as_bytes()).is_some());
    clock.advance(Duration::from_secs(1));
    assert!(tokens.identity(made.secret.as_bytes()).is_none());
    assert!(tokens.list().unwrap()[0].expired);
    let end = clock.now();
    clock.set(Timestamp(end.0 - 3_600_000_000_000));
    assert!(tokens.identity(made.secret.as_bytes()).is_none());
    clock.set(end);
    assert!(opened(dir.path(), &clock).identity(made.secret.as_bytes()).is_none());
    for expires_ms in [Some(0), Some(u64::MAX)] {
        assert!(tokens.create(&CreateToken { expires_ms, ..ask("b", Role::Viewer) }).is_err());
    }
}

#[test]
fn first_token_is_an_administrator_and_is_not_created_again_after_its_revocation() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::default();
    let tokens = opened(dir.path(), &clock);
    assert!(tokens.wants_first() && tokens.list().unwrap().is_empty());
    assert!(tokens.revoke(FIRST).is_err());
    let file = dir.path().join(FIRST);
    std::fs::write(&file, "secret-of-the-first-token-000000").unwrap();
    tokens.set_first("secret-of-the-first-token-000000");
    let identity = tokens.identity(b"secret-of-the-first-token-000000").unwrap();
    assert_eq!(tokens.actor(&identity).unwrap().role, Role::Administrator);
    assert_eq!(tokens.list().unwrap()[0].name, FIRST);
    assert!(matches!(tokens.create(&ask(FIRST, Role::Viewer)), Err(ServerError::Taken { .. })));
    tokens.revoke(FIRST).unwrap();
    assert!(tokens.actor(&identity).is_none() && !file.exists());
    assert!(!opened(dir.path(), &clock).wants_first());
}

#[test]
fn names_that_are_paths_or_lines_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = opened(dir.path(), &Arc::default());
    for name in ["", "../x", "a/b", "a\nb", "a b", ".hidden", "-x", "a\"b", &"x".repeat(65)] {
        assert!(tokens.create(&ask(name, Role::Viewer)).is_err(), "{name:?}");
    }
    let volumes = vec!["../x".to_owned()];
    assert!(tokens.create(&CreateToken { volumes, ..ask("a", Role::Viewer) }).is_err());
}

#[test]
fn unreadable_tokens_admit_none_and_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::default();
    let made = opened(dir.path(), &clock).create(&ask("a", Role::Viewer)).unwrap();
    let path = dir.path().join("tokens.json");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let tokens = opened(dir.path(), &clock);
    tokens.set_first("secret-of-the-first-token-000000");
    assert!(tokens.identity(made.secret.as_bytes()).is_none());
    assert!(tokens.identity(b"secret-of-the-first-token-000000").is_none(), "it may have been revoked");
    assert!(tokens.create(&ask("b", Role::Viewer)).is_err() && tokens.revoke("a").is_err());
    std::fs::write(&path, &whole).unwrap();
    tokens.read();
    assert!(tokens.identity(made.secret.as_bytes()).is_some());
}
