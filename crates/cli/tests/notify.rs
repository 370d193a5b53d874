//! Notifications: what reaches mail servers, webhooks and commands that work, fail, hang and come
//! back, also over a kill of the server.

#[path = "../../notify/src/deliver/tests/fakes.rs"]
#[allow(dead_code, reason = "the tests of the crate use the rest")]
mod fakes;
mod running;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fakes::{Mood, Received, Receiver};
use running::{Running, cairn, refused, wait_until};
use serde_json::Value;

/// Messages come and go within seconds.
const QUICK: [&str; 4] = ["--group", "1s", "--hold", "1s"];

fn body(received: &Received) -> Value {
    serde_json::from_str(&received.body).unwrap_or(Value::Null)
}

/// Whether a webhook has that event of that subject.
fn has(received: &Received, event: &str, subject: &str) -> bool {
    let body = body(received);
    let events = body["events"].as_array().cloned().unwrap_or_default();
    received.is_taken && events.iter().any(|one| one["event"] == event && one["subject"] == subject)
}

fn url(receiver: &Receiver) -> String {
    format!("http://{}/hook", receiver.address)
}

fn add(server: &Running, name: &str, kind: &str, more: &[&str]) {
    server.good(&[&["notify", "add", name, kind][..], more].concat());
}

/// A server with a volume whose snapshots fail on request, which is a problem until they work.
fn server(dir: &Path) -> Running {
    let server = Running::start_with(dir, "d", &["--mirror", "off"]);
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server
}

fn break_it(server: &Running) {
    server.good(&["volume", "hooks", "vol0", "--before", "exit 7"]);
    assert!(!server.run(&["snapshot", "create", "vol0@s"]).status.success());
}

fn mend_it(server: &Running) {
    server.good(&["volume", "hooks", "vol0", "--before", ""]);
}

#[test]
fn problems_reach_mail_and_webhooks_beside_targets_that_hang_and_fail() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path());
    let (mail, hook, hangs) = (Receiver::smtp(None, None), Receiver::http(None), Receiver::http(None));
    hangs.is_now(Mood::Hangs);
    let by = mail.address.to_string();
    let to = ["--smtp", &by, "--tls", "off", "--to", "ops@example.org", "--from", "cairn@example.org"];
    add(&server, "mail", "mail", &[&to[..], &QUICK].concat());
    add(&server, "hook", "webhook", &[&["--url", &url(&hook)][..], &QUICK].concat());
    add(&server, "hangs", "webhook", &[&["--url", &url(&hangs)][..], &QUICK].concat());
    break_it(&server);
    let came = mail.wait_for(|one| one.is_taken);
    assert!(came.body.contains("WARNING: vol0: the command before a snapshot"), "{}", came.body);
    hook.wait_for(|one| has(one, "came", "vol0"));
    mend_it(&server);
    mail.wait_for(|one| one.body.contains("OVER WARNING vol0"));
    hook.wait_for(|one| has(one, "went", "vol0"));
    // A target that refuses connections is a problem for the others.
    let gone = Receiver::http(None);
    let address = gone.address;
    drop(gone);
    add(&server, "gone", "webhook", &[&["--url", &format!("http://{address}/")][..], &QUICK].concat());
    break_it(&server);
    hook.wait_for(|one| has(one, "came", "notify gone"));
    let text = server.good(&["status"]);
    assert!(text.contains("notify gone: deliveries fail since"), "{text}");
    // It comes back, and gets what waited.
    let back = Receiver::http_at(address);
    server.good(&["notify", "test", "gone"]);
    back.wait_for(|one| has(one, "came", "vol0"));
    hook.wait_for(|one| has(one, "went", "notify gone"));
    assert!(hangs.all().is_empty());
}

#[test]
fn a_message_arrives_once_although_the_server_is_killed_before_its_delivery() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server(dir.path());
    let hook = Receiver::http(None);
    hook.is_now(Mood::Refuses("503 Service Unavailable".to_owned()));
    add(&server, "hook", "webhook", &[&["--url", &url(&hook)][..], &QUICK].concat());
    break_it(&server);
    let tried = hook.wait_for(|one| !one.is_taken);
    let id = body(&tried)["id"].as_str().unwrap().to_owned();
    server.kill();
    hook.is_now(Mood::Well);
    server.restart();
    let came = hook.wait_for(|one| has(one, "came", "vol0"));
    assert_eq!(body(&came)["id"], Value::String(id.clone()), "the same message, not another one");
    wait_until("it is not waiting any more", || server.json(&["notify", "show", "hook"])["waiting"] == 0);
    // The state of hooks is not kept over a restart: the problem is over.
    hook.wait_for(|one| has(one, "went", "vol0"));
    // A kill before the server has noted that repeats the message, with its id.
    wait_until("it is not waiting any more", || server.json(&["notify", "show", "hook"])["waiting"] == 0);
    server.kill();
    server.restart();
    break_it(&server);
    hook.wait_for(|one| one.header("webhook-id").as_deref() != Some(&id) && has(one, "came", "vol0"));
    wait_until("it is not waiting any more", || server.json(&["notify", "show", "hook"])["waiting"] == 0);
    let taken: Vec<Received> = hook.all().into_iter().filter(|one| one.is_taken).collect();
    let ids: BTreeSet<String> = taken.iter().filter_map(|one| one.header("webhook-id")).collect();
    assert_eq!(taken.len(), ids.len(), "nothing was repeated: {ids:?}");
}

#[test]
fn a_test_shows_the_answer_or_the_exact_failure_and_no_secret_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server(dir.path());
    let log = dir.path().join("log");
    server.kill();
    server.keep_log(&log);
    server.restart();
    let (hook, mail) = (Receiver::http(None), Receiver::smtp(None, Some("other-password")));
    let (address, secret) = (dir.path().join("url"), dir.path().join("secret"));
    std::fs::write(&address, format!("http://{}/T0/very-secret-path\n", hook.address)).unwrap();
    std::fs::write(&secret, "very-secret-password\n").unwrap();
    let (address, secret) = (address.to_str().unwrap(), secret.to_str().unwrap());
    add(&server, "chat", "slack", &["--url-file", address]);
    add(&server, "hook", "webhook", &["--url-file", address, "--secret-file", secret]);
    let text = server.good(&["notify", "test", "chat"]);
    assert!(text.contains("answers 200 OK: yes"), "{text}");
    server.good(&["notify", "test", "hook"]);
    assert!(
        hook.wait_for(|one| one.header("webhook-signature").is_some()).header("webhook-timestamp").is_some()
    );
    hook.is_now(Mood::Refuses("404 Not Found".to_owned()));
    let failed = server.run(&["notify", "test", "chat"]);
    let text = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success() && text.contains("404 Not Found") && text.contains("next:"), "{text}");
    let by = mail.address.to_string();
    let arguments =
        ["notify", "add", "m", "mail", "--smtp", &by, "--to", "a@example.org", "--from", "c@example.org"];
    let with_password = ["--user", "user", "--secret-file", secret, "--tls", "off"];
    let refusal = server.run(&[&arguments[..], &with_password].concat());
    assert!(String::from_utf8(refusal.stderr).unwrap().contains("plain text"), "a password needs TLS");
    let mut shown = String::new();
    for arguments in
        [&["notify", "list"][..], &["notify", "show", "chat"], &["notify", "show", "hook"], &["status"]]
    {
        shown += &server.good(arguments);
        shown += &server.json(arguments).to_string();
    }
    shown += &std::fs::read_to_string(&log).unwrap();
    assert!(!shown.contains("very-secret"), "{shown}");
    assert!(shown.contains(&format!("http://{}/***", hook.address)), "{shown}");
    for name in ["notify.json", "notify.desks.json"] {
        if let Ok(found) = std::fs::metadata(server.data.join(name)) {
            assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
        }
    }
    let arguments = ["notify", "add", "u", "webhook", "--url", "https://user:password@example.org/"];
    assert!(String::from_utf8(server.run(&arguments).stderr).unwrap().contains("--url-file"));
    server.good(&["notify", "delete", "chat"]);
    assert!(!server.run(&["notify", "show", "chat"]).status.success());
}

#[test]
fn a_command_gets_the_message_and_a_ping_stops_while_something_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path());
    let told = dir.path().join("told");
    let command = format!("cat >> {0}; echo >> {0}", told.display());
    add(&server, "run", "command", &[&["--run", &command][..], &QUICK].concat());
    let late = ["--run", "sleep 1000", "--timeout", "1s"];
    add(&server, "late", "command", &late);
    let text = String::from_utf8(server.run(&["notify", "test", "late"]).stderr).unwrap();
    assert!(text.contains("did not end within 1000 ms"), "{text}");
    server.good(&["notify", "delete", "late"]);
    break_it(&server);
    wait_until("it is seen", || server.json(&["notify", "show", "run"])["open"] == 1);
    let pinged = Receiver::http(None);
    add(&server, "alive", "ping", &["--url", &url(&pinged), "--every", "10s"]);
    let ran = || std::fs::read_to_string(&told).is_ok_and(|text| text.contains("\"came\""));
    wait_until("the command was run", ran);
    assert!(pinged.all().is_empty(), "not all is well");
    mend_it(&server);
    assert!(pinged.wait_for(|one| one.is_taken).head.starts_with("GET /hook "));
    let over = || std::fs::read_to_string(&told).is_ok_and(|text| text.contains("\"went\""));
    wait_until("the command was told of the end", over);
    let lines = std::fs::read_to_string(&told).unwrap();
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(first["events"][0]["subject"], "vol0");
}

#[test]
fn targets_work_again_once_a_damaged_state_file_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server(dir.path());
    let hook = Receiver::http(None);
    add(&server, "hook", "webhook", &[&["--url", &url(&hook)][..], &QUICK].concat());
    break_it(&server);
    let first = hook.wait_for(|one| has(one, "came", "vol0")).header("webhook-id");
    server.kill();
    std::fs::write(server.data.join("notify.desks.json"), "{ half").unwrap();
    server.restart();
    assert!(server.json(&["state", "list"]).to_string().contains("notify.desks.json"));
    assert!(!server.run(&["notify", "set", "hook", "--rate", "5"]).status.success());
    break_it(&server);
    server.good(&["state", "give-up", "notify.desks.json", "--yes"]);
    hook.wait_for(|one| one.header("webhook-id") != first && has(one, "came", "vol0"));
}

#[test]
fn targets_are_neither_added_nor_changed_from_afar() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--mirror", "off", "--http", "127.0.0.1:0"]);
    add(&server, "run", "command", &["--run", "true"]);
    let address = server.json(&["status"])["http"][1].as_str().unwrap().to_owned();
    let far = |arguments: &[&str]| {
        let mut command = cairn();
        command.args(arguments).args(["--json", "--server", &address, "--token-file"]);
        command.arg(server.data.join("http-token")).output().unwrap()
    };
    for arguments in [
        &["notify", "add", "mine", "command", "--run", "touch /tmp/mine"][..],
        &["notify", "add", "mine", "webhook", "--url", "http://127.0.0.1:1/"],
        &["notify", "set", "run", "--run", "touch /tmp/mine"],
    ] {
        let said = refused(&far(arguments), 12, "unauthorized", arguments);
        assert!(said.contains("control socket"), "{said}");
    }
    assert!(far(&["notify", "list"]).status.success(), "they may be looked at");
    assert_eq!(server.json(&["notify", "list"])[0]["to"], "true");
}
