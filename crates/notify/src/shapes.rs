//! The bodies of messages in the forms that receivers take, and the signature of a webhook.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::message::{Event, EventKind, Message, Origin, time};
use crate::problem::{Problem, Severity};
use crate::secret::Secret;

/// How long Alertmanager takes an alert for firing that is not sent again, in milliseconds.
const FIRES_FOR_MS: u64 = 30 * 60_000;
/// Letters of a text that chat servers take.
const CHAT_MAX: usize = 3500;

/// The form of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Cairn's own, signed as the Standard Webhooks specification has it.
    Webhook,
    /// An incoming webhook of Slack.
    Slack,
    /// An incoming webhook of Mattermost.
    Mattermost,
    /// A topic of an ntfy server.
    Ntfy,
    /// `/api/v2/alerts` of Alertmanager.
    Alertmanager,
}

impl Shape {
    /// The word that commands use.
    pub fn word(self) -> &'static str {
        match self {
            Shape::Webhook => "webhook",
            Shape::Slack => "slack",
            Shape::Mattermost => "mattermost",
            Shape::Ntfy => "ntfy",
            Shape::Alertmanager => "alertmanager",
        }
    }
}

/// The body of a message in that form, as JSON. `topic` is that of ntfy.
pub fn body(shape: Shape, message: &Message, origin: &Origin, topic: &str) -> Value {
    match shape {
        Shape::Webhook => webhook(message, origin),
        Shape::Slack => json!({ "text": chat(message, origin, "*", escaped) }),
        Shape::Mattermost => json!({ "text": chat(message, origin, "**", str::to_owned) }),
        Shape::Ntfy => json!({
            "topic": topic,
            "title": format!("{}: {}", origin.host, message.title()),
            "message": shortened(&message.text(origin)),
            "priority": match message.severity() {
                Severity::Critical => 5,
                Severity::Warning => 3,
                Severity::Info => 2,
            },
            "tags": [match message.severity() {
                Severity::Critical => "rotating_light",
                Severity::Warning => "warning",
                Severity::Info => "white_check_mark",
            }],
        }),
        Shape::Alertmanager => alerts(message, origin),
    }
}

fn webhook(message: &Message, origin: &Origin) -> Value {
    let event = |event: &Event| {
        json!({
            "event": event.kind,
            "severity": event.problem.severity,
            "key": event.problem.key,
            "subject": event.problem.subject,
            "message": event.problem.message,
            "next": event.problem.next,
            "since": time(event.since_ms),
            "until": event.until_ms.map(time),
            "returns": event.returns,
        })
    };
    json!({
        "format": 1,
        "id": message.id,
        "time": time(message.at_ms),
        "host": origin.host,
        "version": origin.version,
        "test": message.test,
        "severity": message.severity(),
        "title": message.title(),
        "text": message.text(origin),
        "events": message.events.iter().map(event).collect::<Vec<_>>(),
        "open": message.open,
        "open_critical": message.open_critical,
        "replaces": message.replaces,
        "omitted": message.omitted,
        "discarded": message.discarded,
    })
}

/// Slack takes these three for markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(CHAT_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

fn chat(message: &Message, origin: &Origin, bold: &str, escape: impl Fn(&str) -> String) -> String {
    let title = escape(&format!("{}: {}", origin.host, message.title()));
    format!("{bold}{title}{bold}\n{}", escape(&shortened(&message.text(origin))))
}

/// One alert for each event. Labels are what makes it the same alert: none of them changes while a
/// problem lasts, except the severity, by which people route.
fn alerts(message: &Message, origin: &Origin) -> Value {
    let alert = |event: &Event| {
        let Event { kind, problem, since_ms, until_ms, .. } = event;
        let ends_ms = match kind.is_open() {
            true => message.at_ms.saturating_add(FIRES_FOR_MS),
            false => until_ms.unwrap_or(message.at_ms),
        };
        json!({
            "labels": {
                "alertname": "CairnProblem",
                "instance": origin.host,
                "subject": problem.subject,
                "problem": problem.key,
                "severity": problem.severity,
            },
            "annotations": { "summary": problem.message, "description": problem.next },
            "startsAt": time(*since_ms),
            "endsAt": time(ends_ms),
        })
    };
    let mut events = message.events.clone();
    if message.test {
        let problem = Problem {
            key: "test".to_owned(),
            severity: Severity::Info,
            subject: "notify".to_owned(),
            message: "a test of notifications".to_owned(),
            next: "nothing is to be done".to_owned(),
        };
        let (since_ms, until_ms) = (message.at_ms, Some(message.at_ms.saturating_add(60_000)));
        events.push(Event { kind: EventKind::Passed, problem, since_ms, until_ms, returns: 0 });
    }
    Value::Array(events.iter().map(alert).collect())
}

/// The value of `webhook-signature`, by the Standard Webhooks specification: the HMAC-SHA256 of id,
/// time and body. A secret `whsec_...` is base64, any other is taken as it is.
pub fn signature(secret: &Secret, id: &str, seconds: u64, body: &[u8]) -> String {
    let text = secret.expose();
    let decoded = text.strip_prefix("whsec_").and_then(|encoded| STANDARD.decode(encoded).ok());
    let key = hmac::Key::new(hmac::HMAC_SHA256, decoded.as_deref().unwrap_or(text.as_bytes()));
    let mut context = hmac::Context::with_key(&key);
    context.update(format!("{id}.{seconds}.").as_bytes());
    context.update(body);
    format!("v1,{}", STANDARD.encode(context.sign()))
}

#[cfg(test)]
mod tests;
