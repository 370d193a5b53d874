//! The decision which messages one target gets.
//!
//! [`Desk::look`] takes the problems of now and puts messages into a queue; [`Desk::delivered`]
//! takes them out. Between two looks the value is all there is, so it is saved after each change.
//! A problem passes these states:
//!
//! - it is there, and is sent once it has lasted for the grouping time; if it is away before that,
//!   for as long as the hold time, it was never worth a message;
//! - it was sent: reminders follow while it lasts, and at once if it becomes graver;
//! - it is away, and its end is sent after the hold time. A problem that returns before that has
//!   never been away. The hold time doubles with each return soon after an end, so that a problem
//!   that flaps sends few messages;
//! - it is over, and its returns are remembered for a while.
//!
//! Quiet hours and the limit of messages in an hour delay messages; nothing is lost by them.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::message::{Event, EventKind, Message};
use crate::policy::Policy;
use crate::problem::{Problem, Severity};

/// The time over which messages are counted.
const HOUR_MS: u64 = 3_600_000;
/// Problems that are remembered after their end at most.
const OVER_MAX: usize = 1000;

/// The messages about a problem that a target was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sent {
    at_ms: u64,
    /// Reminders among these messages.
    reminders: u32,
    /// The gravest severity that was sent.
    severity: Severity,
}

/// A problem that is there, or was lately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    problem: Problem,
    since_ms: u64,
    /// Since when it is away.
    gone_ms: Option<u64>,
    sent: Option<Sent>,
    /// It has lasted for the grouping time, and only quiet hours or the limit delay its message.
    ripe: bool,
    /// It is over, and only remembered for its returns.
    over: bool,
    returns: u32,
}

impl Known {
    fn new(problem: Problem, now_ms: u64) -> Self {
        Self { problem, since_ms: now_ms, gone_ms: None, sent: None, ripe: false, over: false, returns: 0 }
    }

    /// The event that is due for it. `early` is the time by which one may come early, to go with
    /// others.
    fn due(&self, policy: &Policy, now_ms: u64, early: bool) -> Option<EventKind> {
        let slack = if early { policy.group_ms } else { 0 };
        if self.over {
            return None;
        }
        if let Some(gone_ms) = self.gone_ms {
            let is_over = now_ms.saturating_sub(gone_ms) + slack >= policy.hold_after(self.returns);
            return match self.sent {
                Some(_) => is_over.then_some(EventKind::Went),
                None => (is_over && self.ripe).then_some(EventKind::Passed),
            };
        }
        let Some(sent) = &self.sent else {
            return (self.ripe || early).then_some(EventKind::Came);
        };
        if self.problem.severity > sent.severity {
            return Some(EventKind::Worse);
        }
        let wait = policy.repeat_after(sent.reminders)?;
        let wait = if early { wait - wait / 8 } else { wait };
        (now_ms.saturating_sub(sent.at_ms) >= wait).then_some(EventKind::Lasts)
    }

    /// Notes that an event about it is in a message.
    fn note(&mut self, kind: EventKind, now_ms: u64) {
        let severity = self.problem.severity;
        self.sent = match (kind, self.sent.take()) {
            (EventKind::Went | EventKind::Passed, _) => {
                self.over = true;
                self.ripe = false;
                None
            }
            (EventKind::Lasts, Some(sent)) => {
                Some(Sent { at_ms: now_ms, reminders: sent.reminders.saturating_add(1), severity })
            }
            _ => Some(Sent { at_ms: now_ms, reminders: 0, severity }),
        };
    }
}

/// The messages that one target was sent, those that wait, and the problems of both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desk {
    /// The first part of the ids of messages.
    series: String,
    /// The number of the next message.
    next: u64,
    /// The time of the last look.
    looked_ms: u64,
    known: BTreeMap<String, Known>,
    queue: VecDeque<Message>,
    /// When messages were made in the last hour, and whether each was urgent.
    made: Vec<(u64, bool)>,
    /// Messages that the target refused, and that no message has reported yet.
    discarded: u64,
}

impl Desk {
    /// A desk for a new target. `series` is random, so that no two have messages of one id.
    pub fn new(series: &str) -> Self {
        Self { series: series.to_owned(), ..Self::default() }
    }

    /// Takes the problems of now, and queues a message if one is due. True if the desk has changed
    /// and is to be saved before a message is delivered.
    pub fn look(&mut self, policy: &Policy, now_ms: u64, problems: &[Problem]) -> bool {
        let mut changed = self.follow_clock(now_ms);
        changed |= self.see(policy, now_ms, problems);
        if let Some(message) = self.make(policy, now_ms) {
            self.put(policy, message);
            changed = true;
        }
        changed
    }

    /// The message that is to be delivered next.
    pub fn head(&self) -> Option<&Message> {
        self.queue.front()
    }

    /// Messages that wait for delivery.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Problems that the target has been sent, and that are not over.
    pub fn open(&self) -> usize {
        self.known.values().filter(|known| known.sent.is_some()).count()
    }

    /// The message of that id arrived.
    pub fn delivered(&mut self, id: &str) {
        self.queue.retain(|message| message.id != id);
    }

    /// The target refuses that message each time: the next one reports that.
    pub fn discard(&mut self, id: &str) {
        if let Some(at) = self.queue.iter().position(|message| message.id == id)
            && let Some(message) = self.queue.remove(at)
        {
            let lost = message.discarded.saturating_add(u64::from(message.replaces.max(1)));
            self.discarded = self.discarded.saturating_add(lost);
        }
    }

    /// The next id, for a message outside of the queue.
    pub fn take_id(&mut self) -> String {
        let id = format!("{}-{}", self.series, self.next);
        self.next += 1;
        id
    }

    /// Moves all times back with a clock that was set back: otherwise reminders would wait for as
    /// long as the clock was ahead.
    fn follow_clock(&mut self, now_ms: u64) -> bool {
        let ahead = self.looked_ms.saturating_sub(now_ms);
        self.looked_ms = now_ms;
        if ahead == 0 {
            return false;
        }
        let back = |at: &mut u64| *at = at.saturating_sub(ahead);
        for known in self.known.values_mut() {
            back(&mut known.since_ms);
            if let Some(gone) = &mut known.gone_ms {
                back(gone);
            }
            if let Some(sent) = &mut known.sent {
                back(&mut sent.at_ms);
            }
        }
        self.made.iter_mut().for_each(|(at, _)| back(at));
        true
    }

    /// Compares the problems of now with the known ones.
    fn see(&mut self, policy: &Policy, now_ms: u64, problems: &[Problem]) -> bool {
        let mut changed = false;
        let present: BTreeMap<&str, &Problem> = problems
            .iter()
            .filter(|problem| problem.severity >= policy.severity)
            .map(|problem| (problem.key.as_str(), problem))
            .collect();
        for (key, problem) in &present {
            let Some(known) = self.known.get_mut(*key) else {
                self.known.insert((*key).to_owned(), Known::new((*problem).clone(), now_ms));
                changed = true;
                continue;
            };
            if known.over {
                let returns = known.returns.saturating_add(1);
                *known = Known { returns, ..Known::new((*problem).clone(), now_ms) };
                changed = true;
                continue;
            }
            changed |= known.gone_ms.take().is_some() || known.problem.severity != problem.severity;
            // A new number in a sentence is not worth a write.
            known.problem.clone_from(problem);
            let is_ripe = now_ms.saturating_sub(known.since_ms) >= policy.group_ms;
            if known.sent.is_none() && is_ripe && !known.ripe {
                known.ripe = true;
                changed = true;
            }
        }
        for (key, known) in &mut self.known {
            if !known.over && known.gone_ms.is_none() && !present.contains_key(key.as_str()) {
                known.gone_ms = Some(now_ms);
                changed = true;
            }
            // It was there for a moment only.
            let gone_for = known.gone_ms.map_or(0, |gone_ms| now_ms.saturating_sub(gone_ms));
            let was_short = known.sent.is_none() && !known.ripe && !known.over;
            if was_short && known.gone_ms.is_some() && gone_for >= policy.hold_after(known.returns) {
                known.over = true;
                changed = true;
            }
        }
        changed | self.forget(policy, now_ms)
    }

    /// Forgets problems whose end is long ago.
    fn forget(&mut self, policy: &Policy, now_ms: u64) -> bool {
        let before = self.known.len();
        let memory_ms = policy.memory_ms();
        let ended = |known: &Known| known.gone_ms.filter(|_| known.over);
        self.known.retain(|_, known| ended(known).is_none_or(|at| now_ms.saturating_sub(at) < memory_ms));
        let mut ends: Vec<u64> = self.known.values().filter_map(ended).collect();
        if ends.len() > OVER_MAX {
            ends.sort_unstable();
            let oldest = ends[ends.len() - OVER_MAX];
            self.known.retain(|_, known| ended(known).is_none_or(|at| at > oldest));
        }
        self.known.len() != before
    }

    /// Makes a message of all that is due, unless it must wait.
    fn make(&mut self, policy: &Policy, now_ms: u64) -> Option<Message> {
        let due = |known: &Known| known.due(policy, now_ms, false).map(|kind| (kind, known.problem.severity));
        let due: Vec<(EventKind, Severity)> = self.known.values().filter_map(due).collect();
        if due.is_empty() {
            return None;
        }
        let is_urgent = due.iter().any(|(kind, severity)| kind.is_open() && *severity == Severity::Critical);
        let is_quiet = policy.quiet.as_ref().is_some_and(|quiet| quiet.is_now(now_ms));
        self.made.retain(|(at, _)| now_ms.saturating_sub(*at) < HOUR_MS);
        let made = self.made.iter().filter(|(_, urgent)| *urgent == is_urgent).count();
        if (is_quiet && !is_urgent) || made >= policy.rate as usize {
            return None;
        }
        let mut events = Vec::new();
        for known in self.known.values_mut() {
            let Some(kind) = known.due(policy, now_ms, true) else { continue };
            events.push(Event {
                kind,
                problem: known.problem.clone(),
                since_ms: known.since_ms,
                until_ms: known.gone_ms,
                returns: known.returns,
            });
            known.note(kind, now_ms);
        }
        let open = || self.known.values().filter(|known| known.sent.is_some());
        let grave = open().filter(|known| known.problem.severity == Severity::Critical).count();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (open, open_critical) = (count(open().count()), count(grave));
        self.made.push((now_ms, is_urgent));
        let mut message = Message { events, open, open_critical, ..Message::test(&self.take_id(), now_ms) };
        message.test = false;
        message.discarded = std::mem::take(&mut self.discarded);
        message.bound();
        Some(message)
    }

    /// Queues a message. When too many wait, the two oldest ones that are not on their way become
    /// one.
    fn put(&mut self, policy: &Policy, message: Message) {
        self.queue.push_back(message);
        while self.queue.len() > policy.queue.max(3) {
            let (Some(older), Some(newer)) = (self.queue.remove(1), self.queue.remove(1)) else { return };
            self.queue.insert(1, merged(older, newer));
        }
    }
}

/// One message for two: of each problem the newest event.
fn merged(older: Message, newer: Message) -> Message {
    let mut events: BTreeMap<String, Event> = BTreeMap::new();
    for event in older.events.into_iter().chain(newer.events) {
        events.insert(event.problem.key.clone(), event);
    }
    let mut message = Message {
        events: events.into_values().collect(),
        replaces: older.replaces.max(1).saturating_add(newer.replaces.max(1)),
        omitted: older.omitted.saturating_add(newer.omitted),
        discarded: older.discarded.saturating_add(newer.discarded),
        ..newer
    };
    message.bound();
    message
}

#[cfg(test)]
mod tests;
