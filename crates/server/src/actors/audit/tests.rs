//! Tests of the audit log.

use std::os::unix::fs::PermissionsExt;

use cairn_base::ManualClock;

use super::*;

fn event(object: &str) -> Event {
    Event::of(&Actor::of_socket(Some(1000)), "DELETE /v1/volumes/{volume}".to_owned(), object.to_owned())
}

fn objects(audit: &Audit, query: &AuditQuery) -> Vec<String> {
    audit.list(query).unwrap().into_iter().map(|entry| entry.object).collect()
}

#[test]
fn lines_stay_and_a_torn_one_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::<ManualClock>::default();
    let audit = Audit::open(dir.path(), clock.clone(), false);
    audit.note(event("one"));
    clock.advance(Duration::from_secs(5));
    audit.note(event("two"));
    let path = dir.path().join("audit.jsonl");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // As a killed server may leave it.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    let audit = Audit::open(dir.path(), clock, false);
    audit.note(event("three"));
    assert_eq!(objects(&audit, &AuditQuery::default()), ["one", "three"]);
    assert_eq!(objects(&audit, &AuditQuery { since_ms: Some(1), limit: None }), ["three"]);
    assert_eq!(objects(&audit, &AuditQuery { since_ms: None, limit: Some(1) }), ["three"]);
}

#[test]
fn text_of_a_client_does_not_make_a_line_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let audit = Audit::open(dir.path(), Arc::<ManualClock>::default(), false);
    let forged = "x\n{\"at_ms\":1,\"actor\":\"token boss\"}\r\n\u{2028}";
    audit.note(event(forged));
    audit.note(event(&"ä".repeat(1000)));
    let text = std::fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    let entries = audit.list(&AuditQuery::default()).unwrap();
    assert_eq!(entries[0].object, forged);
    assert!(entries[1].object.len() <= TEXT_BYTES_MAX);
}

#[test]
fn files_rotate_and_the_newest_lines_come_from_several() {
    let dir = tempfile::tempdir().unwrap();
    let audit = Audit::open(dir.path(), Arc::<ManualClock>::default(), false);
    for number in 0..4 {
        audit.note(event(&format!("o{number}")));
        // As if the file were full.
        audit.state.lock().bytes = FILE_BYTES_MAX;
    }
    assert_eq!(objects(&audit, &AuditQuery::default()), ["o0", "o1", "o2", "o3"]);
    assert_eq!(objects(&audit, &AuditQuery { since_ms: None, limit: Some(2) }), ["o2", "o3"]);
    for number in 4..30 {
        audit.note(event(&format!("o{number}")));
        audit.state.lock().bytes = FILE_BYTES_MAX;
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), OLDER_MAX + 1);
}

#[test]
fn clients_without_credentials_do_not_fill_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::<ManualClock>::default();
    let audit = Audit::open(dir.path(), clock.clone(), false);
    let stranger = |last: u8| Event::of_stranger(Some([10, 0, 0, last].into()), "sign-in", "", "wrong token");
    for _ in 0..1000 {
        audit.note(stranger(1));
    }
    audit.note(stranger(2));
    audit.note(event("mine"));
    let count = audit.list(&AuditQuery::default()).unwrap().len();
    assert_eq!(count, STRANGER_LINES_MAX as usize + 2);
    clock.advance(WINDOW);
    audit.note(stranger(1));
    let last = audit.list(&AuditQuery::default()).unwrap().pop().unwrap();
    assert!(last.reason.contains("990 more"), "{}", last.reason);
}
