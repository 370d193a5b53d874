//! Objects about notifications: targets, their settings, and a test of one.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A text that no log shows: a password, a token, an address that holds one.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, format = Password)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NotifyKind {
    /// A mail over SMTP.
    Mail,
    /// A POST of JSON, signed as the Standard Webhooks specification has it.
    Webhook,
    /// An incoming webhook of Slack.
    Slack,
    /// An incoming webhook of Mattermost.
    Mattermost,
    /// A topic of an ntfy server.
    Ntfy,
    /// `/api/v2/alerts` of Alertmanager.
    Alertmanager,
    /// A command with the message as JSON on its standard input.
    Command,
    /// A dead man's switch: a request at each interval while all is well.
    Ping,
}

/// How grave a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NotifySeverity {
    /// A note: all is well.
    Info,
    /// A problem.
    Warning,
    /// Data is not served, or is not protected.
    Critical,
}

/// How a mail server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NotifyTls {
    /// TLS after STARTTLS.
    Starttls,
    /// TLS from the first byte.
    Tls,
    /// Plain text.
    Off,
}

/// The settings of a target. A missing one keeps its value, or has its default for a new target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NotifySettings {
    /// Of a mail: the mail server, `HOST` or `HOST:PORT`.
    pub server: Option<String>,
    /// Of a mail: how the server is reached; `starttls` by default.
    pub tls: Option<NotifyTls>,
    /// Of a mail: the user to sign in as; empty for none.
    pub user: Option<String>,
    /// Of a mail: the sender.
    pub from: Option<String>,
    /// Of a mail: the receivers.
    pub to: Option<Vec<String>>,
    /// The address to post to or to ask for.
    pub url: Option<Hidden>,
    /// The address holds no secret: lists show it.
    pub url_is_public: bool,
    /// The password of a mail server, the key that signs a webhook, or a bearer token; empty for
    /// none.
    pub secret: Option<Hidden>,
    /// Certificates that are trusted as well (PEM); empty for none.
    pub authority: Option<String>,
    /// The command, for `sh -c`.
    pub command: Option<String>,
    /// How long the command may take; 30 s by default.
    pub timeout_ms: Option<u64>,
    /// The interval of a ping; 5 min by default.
    pub every_ms: Option<u64>,
    /// A ping is a POST instead of a GET.
    pub post: Option<bool>,
    /// Problems below it are not sent; `warning` by default.
    pub severity: Option<NotifySeverity>,
    /// A problem is sent after it has lasted this long, together with all that came meanwhile.
    pub group_ms: Option<u64>,
    /// A problem is over when it has been away for this long.
    pub hold_ms: Option<u64>,
    /// The first reminder of a problem that lasts; 0 for none.
    pub repeat_ms: Option<u64>,
    /// The longest time between two reminders.
    pub repeat_max_ms: Option<u64>,
    /// Messages in an hour; as many again may be critical.
    pub rate: Option<u32>,
    /// Hours without messages, except critical ones: `22:00-07:00`; empty for none.
    pub quiet: Option<String>,
    /// The time zone of these hours, an IANA name; UTC by default.
    pub zone: Option<String>,
}

/// Adds a target.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddNotify {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: NotifyKind,
    /// Its settings.
    #[serde(default)]
    pub settings: NotifySettings,
}

/// A target of notifications. It holds no secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NotifyTarget {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: NotifyKind,
    /// Where messages go; of a secret address the host alone.
    pub to: String,
    /// It has a password, a key or a token.
    pub has_secret: bool,
    /// Problems below it are not sent.
    pub severity: NotifySeverity,
    /// A problem is sent after it has lasted this long.
    pub group_ms: u64,
    /// A problem is over when it has been away for this long.
    pub hold_ms: u64,
    /// The first reminder of a problem that lasts; 0 for none.
    pub repeat_ms: u64,
    /// The longest time between two reminders.
    pub repeat_max_ms: u64,
    /// Messages in an hour.
    pub rate: u32,
    /// Hours without messages, except critical ones.
    pub quiet: Option<String>,
    /// The time zone of these hours.
    pub zone: Option<String>,
    /// The interval of a ping.
    pub every_ms: Option<u64>,
    /// When it was added.
    pub added_ms: u64,
    /// Problems that it was sent, and that are not over.
    pub open: u64,
    /// Messages that wait for delivery.
    pub waiting: u64,
    /// When it last took something, since the server started.
    pub delivered_ms: Option<u64>,
    /// Since when deliveries fail.
    pub failing_ms: Option<u64>,
    /// The last failure.
    pub failure: Option<String>,
    /// The remedy.
    pub next: Option<String>,
}

/// The outcome of a test of a target.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NotifyTest {
    /// The target.
    pub name: String,
    /// It took the message.
    pub delivered: bool,
    /// Its answer, or the failure.
    pub answer: String,
    /// The remedy of a failure.
    pub next: Option<String>,
}

/// How a target is deleted.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeleteNotifyQuery {
    /// Only checks that it exists.
    pub dry_run: Option<bool>,
}
