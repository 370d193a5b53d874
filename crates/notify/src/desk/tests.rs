//! The desk against a receiver that folds messages to the set of open problems, with restarts,
//! kills and failed deliveries at every step.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::policy::Quiet;

const MINUTE: u64 = 60_000;
const START: u64 = 1_795_269_600_000;

fn problem(key: &str, severity: Severity) -> Problem {
    Problem {
        key: key.to_owned(),
        severity,
        subject: key.to_owned(),
        message: format!("{key} is wrong"),
        next: "repair it".to_owned(),
    }
}

fn desk() -> Desk {
    Desk::new("t")
}

/// A person that reads all messages in order, each id once.
#[derive(Default)]
struct Reader {
    ids: BTreeSet<String>,
    open: BTreeMap<String, Severity>,
    /// Faults in the order of events.
    faults: Vec<String>,
    messages: usize,
}

impl Reader {
    fn read(&mut self, message: &Message) {
        if !self.ids.insert(message.id.clone()) {
            return;
        }
        self.messages += 1;
        // One that replaces others has lost the order of their events.
        let is_whole = message.replaces == 0;
        for Event { kind, problem, .. } in &message.events {
            let was_open = self.open.contains_key(&problem.key);
            let fits = match kind {
                EventKind::Came | EventKind::Passed => !was_open,
                EventKind::Worse | EventKind::Lasts | EventKind::Went => was_open,
            };
            if is_whole && !fits {
                self.faults.push(format!("{kind:?} of {} while open: {was_open}", problem.key));
            }
            match kind.is_open() {
                true => drop(self.open.insert(problem.key.clone(), problem.severity)),
                false => drop(self.open.remove(&problem.key)),
            }
        }
        if is_whole && message.open as usize != self.open.len() {
            self.faults.push(format!("says that {} are open, not {}", message.open, self.open.len()));
        }
    }
}

fn saved(desk: &Desk) -> Desk {
    serde_json::from_str(&serde_json::to_string(desk).unwrap()).unwrap()
}

/// A world of problems, a desk on a disk, and a reader.
struct World {
    policy: Policy,
    now_ms: u64,
    desk: Desk,
    disk: Desk,
    reader: Reader,
    made: Vec<(u64, bool)>,
}

impl World {
    fn new(policy: Policy) -> Self {
        policy.check().unwrap();
        Self {
            policy,
            now_ms: START,
            desk: desk(),
            disk: desk(),
            reader: Reader::default(),
            made: Vec::new(),
        }
    }

    fn look(&mut self, after_ms: u64, problems: &[Problem]) {
        self.now_ms += after_ms;
        let before = self.desk.next;
        if self.desk.look(&self.policy, self.now_ms, problems) {
            self.disk = saved(&self.desk);
        }
        if self.desk.next > before {
            let urgent = self.desk.made.last().is_some_and(|(_, urgent)| *urgent);
            self.made.push((self.now_ms, urgent));
        }
    }

    fn deliver_all(&mut self) {
        while let Some(message) = self.desk.head().cloned() {
            self.reader.read(&message);
            self.desk.delivered(&message.id);
        }
        self.disk = saved(&self.desk);
    }
}

fn quick() -> Policy {
    Policy { rate: u32::MAX, ..Policy::default() }
}

#[test]
fn a_problem_is_sent_once_when_it_comes_again_while_it_lasts_and_once_when_it_goes() {
    let mut world = World::new(quick());
    let there = [problem("a", Severity::Warning)];
    let mut kinds = Vec::new();
    for minute in 0..(40 * 60) {
        let present = if minute < 30 * 60 { &there[..] } else { &[] };
        world.look(MINUTE, present);
        while let Some(message) = world.desk.head().cloned() {
            kinds.push((minute, message.events[0].kind));
            world.reader.read(&message);
            world.desk.delivered(&message.id);
        }
    }
    // Reminders after 4 and 8 more hours; the next would be 16 hours later.
    let expected = [
        (1, EventKind::Came),
        (241, EventKind::Lasts),
        (721, EventKind::Lasts),
        (1681, EventKind::Lasts),
        (1801, EventKind::Went),
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn a_moment_is_not_worth_a_message() {
    let mut world = World::new(quick());
    world.look(MINUTE, &[problem("a", Severity::Critical)]);
    (0..100).for_each(|_| world.look(10_000, &[]));
    world.deliver_all();
    assert_eq!(world.reader.messages, 0);
}

#[test]
fn what_comes_within_a_short_time_is_one_message() {
    let mut world = World::new(quick());
    let all: Vec<Problem> = (0..10).map(|n| problem(&format!("p{n}"), Severity::Warning)).collect();
    (1..=10).for_each(|count| world.look(2_000, &all[..count]));
    (0..20).for_each(|_| world.look(2_000, &all));
    assert_eq!(world.desk.waiting(), 1);
    assert_eq!(world.desk.head().unwrap().events.len(), 10);
    world.deliver_all();
    // They end nearly together as well.
    (0..=10).rev().for_each(|count| world.look(2_000, &all[..count]));
    (0..60).for_each(|_| world.look(2_000, &[]));
    assert_eq!(world.desk.waiting(), 1);
}

#[test]
fn a_problem_that_flaps_for_a_day_sends_few_messages() {
    for period_ms in [10_000, 90_000, 180_000, 600_000, 3_000_000] {
        let mut world = World::new(Policy { repeat_ms: 0, ..quick() });
        let there = [problem("a", Severity::Warning)];
        let mut at = 0;
        while at < 24 * 60 * MINUTE {
            let present = if (at / period_ms).is_multiple_of(2) { &there[..] } else { &[] };
            world.look(5_000, present);
            world.deliver_all();
            at += 5_000;
        }
        assert!(world.reader.messages <= 40, "period {period_ms}: {} messages", world.reader.messages);
        assert!(world.reader.messages >= 1, "period {period_ms}");
    }
}

#[test]
fn a_problem_that_becomes_graver_is_sent_at_once() {
    let mut world = World::new(quick());
    (0..4).for_each(|_| world.look(MINUTE, &[problem("a", Severity::Warning)]));
    world.deliver_all();
    world.look(1_000, &[problem("a", Severity::Critical)]);
    assert_eq!(world.desk.head().unwrap().events[0].kind, EventKind::Worse);
    world.deliver_all();
    // It flickers between both: no more of it.
    for turn in 0..20 {
        let severity = if turn % 2 == 0 { Severity::Warning } else { Severity::Critical };
        world.look(1_000, &[problem("a", severity)]);
    }
    assert_eq!(world.desk.waiting(), 0);
}

#[test]
fn quiet_hours_delay_all_but_critical_messages_and_lose_nothing() {
    // 03:30 UTC is in them until 07:00.
    let quiet = Quiet { from: 22 * 60, to: 7 * 60, zone: "UTC".to_owned() };
    let start = START - START % (24 * 60 * MINUTE) + 3 * 60 * MINUTE;
    let mut world = World::new(Policy { quiet: Some(quiet), ..quick() });
    world.now_ms = start;
    let (stays, passes) = (problem("stays", Severity::Warning), problem("passes", Severity::Warning));
    (0..10).for_each(|_| world.look(MINUTE, &[stays.clone(), passes.clone()]));
    (0..10).for_each(|_| world.look(MINUTE, std::slice::from_ref(&stays)));
    assert_eq!(world.desk.waiting(), 0);
    let mut there = vec![stays.clone()];
    while world.now_ms < start + 4 * 60 * MINUTE {
        world.look(MINUTE, &there);
    }
    assert_eq!(world.desk.waiting(), 1);
    let mut kinds: Vec<_> = world
        .desk
        .head()
        .unwrap()
        .events
        .iter()
        .map(|event| (event.kind, event.problem.key.as_str()))
        .collect();
    kinds.sort();
    assert_eq!(kinds, [(EventKind::Came, "stays"), (EventKind::Passed, "passes")]);
    world.deliver_all();
    // The next night something is critical.
    world.now_ms = start + 24 * 60 * MINUTE;
    there.push(problem("grave", Severity::Critical));
    (0..2).for_each(|_| world.look(MINUTE, &there));
    assert!(world.desk.head().unwrap().events.iter().any(|event| event.problem.key == "grave"));
}

#[test]
fn a_full_queue_keeps_the_newest_event_of_each_problem_and_says_so() {
    let mut world = World::new(Policy { queue: 3, hold_max_ms: 60_000, repeat_ms: 0, ..quick() });
    for turn in 0..20 {
        let there = [problem(&format!("p{turn}"), Severity::Warning)];
        (0..4).for_each(|_| world.look(MINUTE, &there));
    }
    assert_eq!(world.desk.waiting(), 3);
    let ids: Vec<&str> = world.desk.queue.iter().map(|message| message.id.as_str()).collect();
    assert_eq!(ids[0], "t-0", "the head may be on its way");
    let origin = crate::message::Origin { host: "h".to_owned(), version: "0".to_owned() };
    assert!(world.desk.queue[1].text(&origin).contains("This message replaces"));
    world.deliver_all();
    assert_eq!(world.reader.open.keys().collect::<Vec<_>>(), ["p19"]);
}

#[test]
fn a_discarded_message_is_reported_by_the_next() {
    let mut world = World::new(quick());
    (0..2).for_each(|_| world.look(MINUTE, &[problem("a", Severity::Warning)]));
    let id = world.desk.head().unwrap().id.clone();
    world.desk.discard(&id);
    (0..3).for_each(|_| world.look(MINUTE, &[]));
    assert_eq!(world.desk.head().unwrap().discarded, 1);
}

#[test]
fn a_clock_that_was_ahead_delays_no_reminder() {
    let mut world = World::new(quick());
    let there = [problem("a", Severity::Warning)];
    world.now_ms += 365 * 24 * 60 * MINUTE;
    (0..2).for_each(|_| world.look(MINUTE, &there));
    world.deliver_all();
    world.now_ms -= 365 * 24 * 60 * MINUTE;
    (0..250).for_each(|_| world.look(MINUTE, &there));
    assert_eq!(world.desk.head().unwrap().events[0].kind, EventKind::Lasts);
}

/// One step of a history: time passes, problems change, and one of these things happens.
#[derive(Debug, Clone)]
struct Step {
    after_ms: u64,
    toggles: Vec<usize>,
    then: Then,
}

#[derive(Debug, Clone, Copy)]
enum Then {
    Nothing,
    /// The head arrives, and that is saved.
    Deliver,
    /// The head arrives, and the server is killed before that is saved.
    DeliverAndKill,
    /// The server is killed.
    Kill,
    /// The server is killed in the look, before its result is on the disk.
    KillInLook,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let then = prop_oneof![
        3 => Just(Then::Nothing),
        4 => Just(Then::Deliver),
        1 => Just(Then::DeliverAndKill),
        1 => Just(Then::Kill),
        1 => Just(Then::KillInLook),
    ];
    let after = prop_oneof![4 => 1_000..20_000u64, 3 => 20_000..200_000u64, 1 => 200_000..40_000_000u64];
    let step = (after, prop::collection::vec(0..5usize, 0..3), then);
    let step = step.prop_map(|(after_ms, toggles, then)| Step { after_ms, toggles, then });
    prop::collection::vec(step, 1..150)
}

fn severity_of(number: usize) -> Severity {
    [Severity::Warning, Severity::Critical, Severity::Warning, Severity::Info, Severity::Critical][number]
}

fn policies() -> impl Strategy<Value = Policy> {
    let quiet = prop::option::of((0..1440u16, 1..1440u16));
    let settings = (0..3u8, 0..90_000u64, 0..200_000u64, 0..3u64, 1..30u32, quiet);
    settings.prop_map(|(severity, group_ms, hold_ms, hours, rate, quiet)| Policy {
        severity: [Severity::Info, Severity::Warning, Severity::Critical][usize::from(severity)],
        group_ms,
        hold_ms,
        repeat_ms: hours * HOUR_MS,
        rate,
        quiet: quiet.map(|(from, length)| Quiet { from, to: (from + length) % 1440, zone: "UTC".to_owned() }),
        ..Policy::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The reader of all messages knows in the end which problems there are, whatever was killed
    /// when, and has read each coming and each end once and in order.
    #[test]
    fn the_reader_ends_with_the_problems_that_there_are(policy in policies(), steps in steps()) {
        let mut world = World::new(policy);
        let mut present = BTreeSet::new();
        let list = |present: &BTreeSet<usize>| -> Vec<Problem> {
            present.iter().map(|number| problem(&format!("p{number}"), severity_of(*number))).collect()
        };
        for Step { after_ms, toggles, then } in steps {
            for number in toggles {
                if !present.remove(&number) {
                    present.insert(number);
                }
            }
            let problems = list(&present);
            if matches!(then, Then::KillInLook) {
                world.desk.look(&world.policy, world.now_ms + after_ms, &problems);
                world.desk = saved(&world.disk);
                world.now_ms += after_ms;
            }
            world.look(after_ms, &problems);
            let head = world.desk.head().cloned();
            if let (Some(message), Then::Deliver | Then::DeliverAndKill) = (head, then) {
                world.reader.read(&message);
                if matches!(then, Then::Deliver) {
                    world.desk.delivered(&message.id);
                    world.disk = saved(&world.desk);
                }
            }
            if matches!(then, Then::Kill | Then::DeliverAndKill) {
                world.desk = saved(&world.disk);
            }
            prop_assert!(world.desk.waiting() <= world.policy.queue);
        }
        // Nothing changes any more, for two days.
        let problems = list(&present);
        for _ in 0..(48 * 60) {
            world.look(MINUTE, &problems);
            world.deliver_all();
        }
        let severity = world.policy.severity;
        let expected: BTreeSet<&str> =
            problems.iter().filter(|one| one.severity >= severity).map(|one| one.key.as_str()).collect();
        let known: BTreeSet<&str> = world.reader.open.keys().map(String::as_str).collect();
        prop_assert_eq!(known, expected);
        prop_assert_eq!(&world.reader.faults, &Vec::<String>::new());
        // The rate holds in each hour, for urgent messages and for others.
        for (at, _) in &world.made {
            for urgent in [false, true] {
                let within = world.made.iter().filter(|(other, is)| {
                    *is == urgent && *other >= *at && *other < at + HOUR_MS
                });
                prop_assert!(within.count() <= world.policy.rate as usize);
            }
        }
        // Only urgent messages are made in quiet hours.
        let quiet = world.policy.quiet.clone();
        for (at, urgent) in &world.made {
            prop_assert!(*urgent || !quiet.as_ref().is_some_and(|quiet| quiet.is_now(*at)));
        }
    }

    /// A restart at each step changes nothing.
    #[test]
    fn restarts_change_no_message(policy in policies(), steps in steps()) {
        let (mut straight, mut restarted) = (desk(), desk());
        let (mut present, mut now_ms) = (BTreeSet::new(), START);
        for Step { after_ms, toggles, .. } in steps {
            now_ms += after_ms;
            for number in toggles {
                if !present.remove(&number) {
                    present.insert(number);
                }
            }
            let problems: Vec<Problem> =
                present.iter().map(|number| problem(&format!("p{number}"), severity_of(*number))).collect();
            straight.look(&policy, now_ms, &problems);
            restarted.look(&policy, now_ms, &problems);
            prop_assert_eq!(&straight, &restarted);
            restarted = saved(&restarted);
        }
    }

    /// A problem that stays is sent within the grouping time and one look, if nothing delays it.
    #[test]
    fn a_problem_that_stays_is_sent_in_time(group_ms in 0..120_000u64, look_ms in 1_000..10_000u64) {
        let mut world = World::new(Policy { group_ms, ..quick() });
        let mut waited = 0;
        while world.desk.waiting() == 0 {
            world.look(look_ms, &[problem("a", Severity::Warning)]);
            waited += look_ms;
            prop_assert!(waited <= group_ms + 2 * look_ms);
        }
    }
}
