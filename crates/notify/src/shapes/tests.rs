//! The forms of bodies, and the signature.

use super::*;

fn origin() -> Origin {
    Origin { host: "store1".to_owned(), version: "0.1.0".to_owned() }
}

fn message(kind: EventKind, severity: Severity) -> Message {
    let problem = Problem {
        key: "mirror/vol0".to_owned(),
        severity,
        subject: "vol0".to_owned(),
        message: "the lag is over the RPO <5 min>".to_owned(),
        next: "update now".to_owned(),
    };
    let until_ms = (!kind.is_open()).then_some(1_795_269_700_000);
    let event = Event { kind, problem, since_ms: 1_795_269_600_000, until_ms, returns: 0 };
    let mut message = Message::test("s-1", 1_795_269_787_000);
    (message.events, message.test, message.open) = (vec![event], false, 1);
    message
}

#[test]
fn the_signature_is_the_example_of_the_standard() {
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let found = signature(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
    assert_eq!(found, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

#[test]
fn chat_servers_get_one_text_without_markup_of_ours() {
    let slack = body(Shape::Slack, &message(EventKind::Came, Severity::Critical), &origin(), "");
    let text = slack["text"].as_str().unwrap();
    assert!(text.starts_with("*store1: CRITICAL: vol0: the lag is over the RPO &lt;5 min&gt;*"), "{text}");
    let mattermost = body(Shape::Mattermost, &message(EventKind::Went, Severity::Warning), &origin(), "");
    assert!(mattermost["text"].as_str().unwrap().starts_with("**store1: OK: over: vol0"));
}

#[test]
fn ntfy_gets_a_priority_and_its_topic() {
    let ntfy = body(Shape::Ntfy, &message(EventKind::Came, Severity::Critical), &origin(), "ops");
    assert_eq!((&ntfy["topic"], &ntfy["priority"]), (&json!("ops"), &json!(5)));
}

#[test]
fn an_alert_has_the_same_labels_when_it_comes_and_when_it_goes() {
    let came = body(Shape::Alertmanager, &message(EventKind::Came, Severity::Warning), &origin(), "");
    let went = body(Shape::Alertmanager, &message(EventKind::Went, Severity::Warning), &origin(), "");
    assert_eq!(came[0]["labels"], went[0]["labels"]);
    assert_eq!(came[0]["startsAt"], went[0]["startsAt"]);
    let ends = |alerts: &Value| alerts[0]["endsAt"].as_str().unwrap().to_owned();
    assert!(ends(&went) < time(1_795_269_787_000) && ends(&came) > time(1_795_269_787_000));
}

#[test]
fn a_long_text_ends_between_two_letters() {
    let mut long = message(EventKind::Came, Severity::Warning);
    long.events[0].problem.message = "ä".repeat(10_000);
    for shape in [Shape::Slack, Shape::Ntfy, Shape::Webhook] {
        assert!(!body(shape, &long, &origin(), "t").is_null());
    }
}
