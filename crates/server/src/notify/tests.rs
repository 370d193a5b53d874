//! Targets without a server: their files, their problems, and messages that wait over a restart.

use cairn_api::{Hidden, NotifyKind, NotifySettings};
use cairn_base::{ManualClock, Timestamp};

use super::settings::{policy_of, target_of};
use super::*;

const START: u64 = 1_795_269_600_000;

fn problem(subject: &str) -> Problem {
    Problem {
        key: subject.to_owned(),
        severity: Severity::Warning,
        subject: subject.to_owned(),
        message: "it fails".to_owned(),
        next: "mend it".to_owned(),
    }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(START * 1_000_000)))
}

/// A target that nothing is delivered to here.
fn kept(name: &str, settings: &NotifySettings) -> Kept {
    Kept {
        name: name.to_owned(),
        series: format!("series-{name}"),
        target: target_of(NotifyKind::Webhook, settings, None, "host").unwrap(),
        policy: policy_of(NotifyKind::Webhook, settings, None).unwrap(),
        added_ms: START,
    }
}

fn settings() -> NotifySettings {
    NotifySettings { url: Some(Hidden("http://127.0.0.1:1/token".to_owned())), ..NotifySettings::default() }
}

fn with(dir: &Path, clock: &Arc<ManualClock>, targets: &[Kept]) -> Notify {
    let notify = Notify::open(dir, clock.clone());
    notify
        .change(|document| {
            document.targets = targets.to_vec();
            Ok(())
        })
        .unwrap();
    notify
}

#[test]
fn a_message_survives_a_kill_between_its_problem_and_its_delivery() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, kept) = (clock(), kept("hook", &settings()));
    let notify = with(folder.path(), &clock, std::slice::from_ref(&kept));
    notify.look(&[problem("v")]);
    clock.advance(Duration::from_secs(31));
    notify.look(&[problem("v")]);
    let head = notify.at_desk(&kept, |desk| (desk.head().cloned(), false)).unwrap();
    drop(notify);
    let again = Notify::open(folder.path(), clock.clone());
    assert_eq!(again.at_desk(&kept, |desk| (desk.head().cloned(), false)), Some(head.clone()));
    again.at_desk(&kept, |desk| (desk.delivered(&head.id), true));
    drop(again);
    // It was delivered: a look after the restart sends nothing of it again.
    let again = Notify::open(folder.path(), clock.clone());
    clock.advance(Duration::from_secs(60));
    again.look(&[problem("v")]);
    assert_eq!(again.at_desk(&kept, |desk| (desk.waiting(), false)), 0);
}

#[test]
fn files_with_secrets_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let notify = with(folder.path(), &clock(), &[kept("hook", &settings())]);
    notify.look(&[problem("v")]);
    for name in ["notify.json", "notify.desks.json"] {
        let mode = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let desks = std::fs::read_to_string(folder.path().join("notify.desks.json")).unwrap();
    assert!(!desks.contains("token"), "only one file has secrets");
}

#[test]
fn a_failing_target_is_a_problem_for_the_others_and_not_for_itself() {
    let folder = tempfile::tempdir().unwrap();
    let clock = clock();
    let targets = [kept("one", &settings()), kept("two", &settings())];
    let notify = with(folder.path(), &clock, &targets);
    let failure = || Err(Failure::new(Fault::Passing, "cannot reach h:1", "check the network"));
    notify.note(&targets[0], &failure());
    assert!(notify.problems().is_empty(), "one failure passes");
    (0..2).for_each(|_| notify.note(&targets[0], &failure()));
    let problems = notify.problems();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].subject, "notify one");
    let own = Problem { key: own_key("one"), ..problem("notify one") };
    (0..2).for_each(|_| {
        notify.look(std::slice::from_ref(&own));
        clock.advance(Duration::from_secs(31));
    });
    let waiting = |kept| notify.at_desk(kept, |desk| (desk.waiting(), false));
    assert_eq!((waiting(&targets[0]), waiting(&targets[1])), (0, 1));
    notify.note(&targets[0], &Ok(String::new()));
    assert!(notify.problems().is_empty());
}

#[test]
fn a_ping_is_sent_only_while_a_fresh_look_found_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, kept) = (clock(), kept("ping", &settings()));
    let notify = with(folder.path(), &clock, std::slice::from_ref(&kept));
    assert!(!notify.is_well(&kept), "nothing is known yet");
    *notify.seen.lock() = Seen { problems: Vec::new(), at: Some(clock.monotonic()) };
    assert!(notify.is_well(&kept));
    notify.seen.lock().problems = vec![Problem { severity: Severity::Info, ..problem("v") }];
    assert!(notify.is_well(&kept), "advice is no problem");
    notify.seen.lock().problems = vec![problem("v")];
    assert!(!notify.is_well(&kept));
    *notify.seen.lock() = Seen { problems: Vec::new(), at: Some(clock.monotonic()) };
    clock.advance(Duration::from_secs(61));
    assert!(!notify.is_well(&kept), "the look is old: the server may hang");
}

#[test]
fn unreadable_files_stop_notifications_and_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify.desks.json");
    with(folder.path(), &clock(), &[kept("hook", &settings())]);
    std::fs::write(&path, "{ half").unwrap();
    let notify = Notify::open(folder.path(), clock());
    notify.look(&[problem("v")]);
    assert!(notify.get("hook").is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{ half");
}

#[test]
fn settings_of_another_kind_are_refused_and_missing_ones_keep_their_values() {
    let mail = NotifySettings { server: Some("h".to_owned()), ..NotifySettings::default() };
    assert!(target_of(NotifyKind::Slack, &mail, None, "host").is_err());
    assert!(target_of(NotifyKind::Ping, &NotifySettings::default(), None, "host").is_err());
    let first = NotifySettings {
        secret: Some(Hidden("key1".to_owned())),
        quiet: Some("22:00-07:00".to_owned()),
        zone: Some("Europe/Berlin".to_owned()),
        ..settings()
    };
    let old = kept("hook", &first);
    let none = NotifySettings::default();
    assert_eq!(target_of(NotifyKind::Webhook, &none, Some(&old.target), "host").unwrap(), old.target);
    assert_eq!(policy_of(NotifyKind::Webhook, &none, Some(&old.policy)).unwrap(), old.policy);
    let off = NotifySettings { quiet: Some(String::new()), ..NotifySettings::default() };
    assert_eq!(policy_of(NotifyKind::Webhook, &off, Some(&old.policy)).unwrap().quiet, None);
    let wrong = NotifySettings { quiet: Some("22-7".to_owned()), ..NotifySettings::default() };
    assert!(policy_of(NotifyKind::Webhook, &wrong, None).is_err());
}
