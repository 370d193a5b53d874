//! The flags of `cairn notify`.

use std::path::PathBuf;

use cairn_base::Interval;
use clap::{Args, Subcommand, ValueEnum};

/// `cairn notify`.
#[derive(Debug, Subcommand)]
pub enum Notify {
    /// Add a target: a mail, a webhook, a command or a ping
    #[command(alias = "create")]
    Add(AddNotify),
    /// List all targets, and whether they work
    List,
    /// Show one target: its settings, and how deliveries go
    Show {
        /// Its name
        name: String,
    },
    /// Send a test now, and show the answer or the exact failure
    Test {
        /// Its name
        name: String,
    },
    /// Change settings of a target; without any, show them
    Set(SetNotify),
    /// Delete a target, and the messages that wait for it
    Delete {
        /// Its name
        name: String,
        /// Only check that it exists
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn notify add`.
#[derive(Debug, Args)]
pub struct AddNotify {
    /// A name of your choice
    pub name: String,
    /// The kind of target
    #[arg(value_enum)]
    pub kind: NotifyKind,
    /// Its settings
    #[command(flatten)]
    pub settings: NotifySettings,
}

/// `cairn notify set`.
#[derive(Debug, Args)]
pub struct SetNotify {
    /// Its name
    pub name: String,
    /// The changes
    #[command(flatten)]
    pub settings: NotifySettings,
}

/// The kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NotifyKind {
    /// A mail over SMTP
    Mail,
    /// A POST of JSON, signed as the Standard Webhooks specification has it
    Webhook,
    /// An incoming webhook of Slack
    Slack,
    /// An incoming webhook of Mattermost
    Mattermost,
    /// A topic of an ntfy server
    Ntfy,
    /// The address of Alertmanager that ends with /api/v2/alerts
    Alertmanager,
    /// A command that gets the message as JSON on its standard input
    Command,
    /// A dead man's switch: a request at each interval while all is well
    Ping,
}

/// How a mail server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NotifyTls {
    /// TLS after STARTTLS
    Starttls,
    /// TLS from the first byte
    Tls,
    /// Plain text, for a mail server on the same machine
    Off,
}

/// The least grave problem that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NotifySeverity {
    /// Advice too
    Info,
    /// All problems
    Warning,
    /// Only data that is not served, or not protected
    Critical,
}

/// The settings of a target.
#[derive(Debug, Args)]
pub struct NotifySettings {
    /// Post to this address, or ask for it; lists and processes show it
    #[arg(long, value_name = "URL", conflicts_with = "url_file")]
    pub url: Option<String>,
    /// Read the address from this file; `-` is stdin
    ///
    /// For an address that holds a token, such as those of Slack, Mattermost and most dead man's
    /// switches. Lists and logs show its host alone.
    #[arg(long, value_name = "FILE")]
    pub url_file: Option<PathBuf>,
    /// Read a password, signing key or bearer token from this file; `-` is stdin
    ///
    /// The password of the mail server; the key that signs a webhook (`whsec_` and base64, or any
    /// text); the token of ntfy or Alertmanager. An empty file removes it.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Trust the certificates in this file as well (PEM); an empty file: no more
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Send mail by this server
    #[arg(long, value_name = "HOST[:PORT]")]
    pub smtp: Option<String>,
    /// Reach the mail server so (default: starttls)
    #[arg(long, value_enum, value_name = "MODE")]
    pub tls: Option<NotifyTls>,
    /// Sign in to the mail server as this user; '' for none
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Send mail from this address (default: cairn@HOST)
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<String>,
    /// Send mail to this address; can be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub to: Vec<String>,
    /// Run this command, by `sh -c` as the server's user
    #[arg(long, value_name = "COMMAND")]
    pub run: Option<String>,
    /// Kill the command after this time (default: 30s, at most 10m)
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Interval>,
    /// Ping at this interval (default: 5m)
    #[arg(long, value_name = "TIME")]
    pub every: Option<Interval>,
    /// Ping with POST instead of GET
    #[arg(long)]
    pub post: bool,
    /// Ping with GET again
    #[arg(long, conflicts_with = "post")]
    pub no_post: bool,
    /// Send only problems that are at least so grave (default: warning)
    #[arg(long, value_enum, value_name = "SEVERITY")]
    pub severity: Option<NotifySeverity>,
    /// Send a problem once it has lasted this long (default: 30s)
    ///
    /// All that came meanwhile is in the same message.
    #[arg(long, value_name = "TIME")]
    pub group: Option<Interval>,
    /// Call a problem over once it is away for this long (default: 1m)
    ///
    /// The time doubles each time that the problem returns soon, up to an hour.
    #[arg(long, value_name = "TIME")]
    pub hold: Option<Interval>,
    /// Remind of a problem that lasts after this time (default: 4h)
    ///
    /// The time doubles with each reminder, up to --repeat-max.
    #[arg(long, value_name = "TIME")]
    pub repeat: Option<Interval>,
    /// Remind at least this often (default: 1d)
    #[arg(long, value_name = "TIME")]
    pub repeat_max: Option<Interval>,
    /// Send no reminders
    #[arg(long, conflicts_with = "repeat")]
    pub no_repeat: bool,
    /// Send at most this many messages an hour (default: 20)
    ///
    /// As many again may tell of something critical. Nothing is lost: a later message has it.
    #[arg(long, value_name = "COUNT")]
    pub rate: Option<u32>,
    /// Send only critical problems in these hours, such as 22:00-07:00
    #[arg(long, value_name = "FROM-TO")]
    pub quiet_hours: Option<String>,
    /// Send at any hour
    #[arg(long, conflicts_with = "quiet_hours")]
    pub no_quiet_hours: bool,
    /// Take the quiet hours in this time zone (default: that of this machine)
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
}
