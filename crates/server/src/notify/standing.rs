//! The problems of a status as targets get them: with keys that last, and severities.

use std::collections::BTreeMap;

use cairn_api as api;
use cairn_notify::{Problem, Severity, stable};

use crate::notify::SUBJECT;

/// All problems and notes of a status. No two have the same key.
pub(crate) fn of_status(status: &api::Status) -> Vec<Problem> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut keyed = |problem: &api::Problem, severity: Severity| {
        let key = key_of(problem, status);
        let count = counts.entry(key.clone()).or_default();
        *count += 1;
        let key = if *count == 1 { key } else { format!("{key} #{count}") };
        let api::Problem { subject, message, next } = problem.clone();
        Problem { key, severity, subject, message, next }
    };
    let problems = status.problems.iter().map(|problem| match status.is_critical(problem) {
        true => (problem, Severity::Critical),
        false => (problem, Severity::Warning),
    });
    let notes = status.notes.iter().map(|note| (note, Severity::Info));
    problems.chain(notes).map(|(problem, severity)| keyed(problem, severity)).collect()
}

fn key_of(problem: &api::Problem, status: &api::Status) -> String {
    let subject = &problem.subject;
    if subject.starts_with(SUBJECT) {
        return subject.clone();
    }
    // A mirror has one problem at a time, whose words change with each try.
    let is_of = |mirror: &&api::Mirror| {
        let words = mirror.problem.as_ref().map_or(&mirror.reason, |problem| &problem.message);
        mirror.name == *subject && mirror.check > 0 && *words == problem.message
    };
    let is_of_bucket = |mirror: &&api::BucketMirror| {
        mirror.name == *subject && mirror.check > 0 && mirror.reason == problem.message
    };
    let is_mirror = status.mirrors.iter().any(|mirror| is_of(&mirror))
        || status.bucket_mirrors.iter().any(|mirror| is_of_bucket(&mirror));
    if is_mirror { format!("mirror/{subject}") } else { format!("{subject}/{}", stable(&problem.message)) }
}
