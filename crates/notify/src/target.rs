//! Where messages go, and what a target must have.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::secret::Secret;
use crate::shapes::Shape;

/// The longest time limit of a command, and the limit by default.
const PROGRAM_MS: (u64, u64) = (600_000, 30_000);
/// The interval of a ping: at least this, and this by default.
const PING_MS: (u64, u64) = (10_000, 300_000);

/// How a mail server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MailTls {
    /// TLS after STARTTLS; without it nothing is sent. Port 587.
    Starttls,
    /// TLS from the first byte. Port 465.
    Tls,
    /// Plain text, for a mail server on the same machine. Port 25.
    Off,
}

impl MailTls {
    /// The usual port.
    pub fn port(self) -> u16 {
        match self {
            MailTls::Starttls => 587,
            MailTls::Tls => 465,
            MailTls::Off => 25,
        }
    }
}

/// A mail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mail {
    /// The host of the mail server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How it is reached.
    pub tls: MailTls,
    /// The name to sign in with.
    pub user: Option<String>,
    /// The password for it.
    pub password: Option<Secret>,
    /// The sender.
    pub from: String,
    /// The receivers.
    pub to: Vec<String>,
    /// Certificates that are trusted as well (PEM).
    pub authority: Option<String>,
}

/// A POST over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Web {
    /// The form of the body.
    pub shape: Shape,
    /// Where to; it may hold a token.
    pub url: Secret,
    /// Whether lists show all of it, as it holds no token.
    pub is_shown: bool,
    /// Signs a webhook, or is the token of an ntfy server or the bearer token of Alertmanager.
    pub secret: Option<Secret>,
    /// Certificates that are trusted as well (PEM).
    pub authority: Option<String>,
}

/// A command for a shell, with the message as JSON on its standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The command.
    pub command: String,
    /// How long it may take.
    pub timeout_ms: u64,
}

/// A dead man's switch: a request at each interval while all is well. Its receiver alarms when they
/// stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// Where to.
    pub url: Secret,
    /// Whether lists show all of it.
    pub is_shown: bool,
    /// A POST instead of a GET.
    pub post: bool,
    /// The interval.
    pub every_ms: u64,
    /// Certificates that are trusted as well (PEM).
    pub authority: Option<String>,
}

/// Where messages go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Target {
    /// A mail.
    Mail(Mail),
    /// A POST over HTTP.
    Web(Web),
    /// A command.
    Program(Program),
    /// A dead man's switch.
    Ping(Ping),
}

/// A target lacks something, or has something wrong: the reason, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidTarget {
    /// The fault, as a sentence.
    pub fault: &'static str,
    /// The remedy.
    pub next: &'static str,
}

impl fmt::Display for InvalidTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fault)
    }
}

const fn wrong(fault: &'static str, next: &'static str) -> InvalidTarget {
    InvalidTarget { fault, next }
}

impl Program {
    /// The limit by default.
    pub const TIMEOUT_MS: u64 = PROGRAM_MS.1;
}

impl Ping {
    /// The interval by default.
    pub const EVERY_MS: u64 = PING_MS.1;

    /// The interval.
    pub fn every(&self) -> Duration {
        Duration::from_millis(self.every_ms)
    }
}

impl Target {
    /// The word that commands use for its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Target::Mail(_) => "mail",
            Target::Web(web) => web.shape.word(),
            Target::Program(_) => "command",
            Target::Ping(_) => "ping",
        }
    }

    /// Where messages go, without secrets.
    pub fn shown(&self) -> String {
        match self {
            Target::Mail(mail) => format!("{} by {}:{}", mail.to.join(", "), mail.host, mail.port),
            Target::Web(Web { url, is_shown, .. }) | Target::Ping(Ping { url, is_shown, .. }) => {
                if *is_shown { url.expose().to_owned() } else { host_of(url.expose()) }
            }
            Target::Program(program) => program.command.clone(),
        }
    }

    /// Refuses one that can never work.
    pub fn check(&self) -> Result<(), InvalidTarget> {
        match self {
            Target::Mail(mail) => check_mail(mail),
            Target::Web(web) => {
                check_url(web.url.expose(), web.is_shown)?;
                let is_chat = matches!(web.shape, Shape::Slack | Shape::Mattermost);
                if is_chat && web.is_shown {
                    return Err(wrong(
                        "the address of an incoming webhook is a secret, and processes show arguments",
                        "put the address into a file and give that with --url-file",
                    ));
                }
                if is_chat && web.secret.is_some() {
                    return Err(wrong(
                        "Slack and Mattermost take no secret: their address is one",
                        "give the address only, with --url-file",
                    ));
                }
                check_authority(web.authority.as_deref())
            }
            Target::Program(program) => match program.timeout_ms {
                0 => Err(wrong("the timeout is 0", "give --timeout a time of at most 10m")),
                time if time > PROGRAM_MS.0 => {
                    Err(wrong("the timeout is longer than 10 min", "give --timeout a time of at most 10m"))
                }
                _ if program.command.trim().is_empty() => {
                    Err(wrong("the command is empty", "give --run a command"))
                }
                _ => Ok(()),
            },
            Target::Ping(ping) => {
                check_url(ping.url.expose(), ping.is_shown)?;
                if ping.every_ms < PING_MS.0 {
                    return Err(wrong("the interval is shorter than 10 s", "give --every at least 10s"));
                }
                check_authority(ping.authority.as_deref())
            }
        }
    }

    /// Replaces all its secrets in a text that others will read.
    pub(crate) fn hide_in(&self, text: &str) -> String {
        let secrets: Vec<&Secret> = match self {
            Target::Mail(mail) => mail.password.iter().collect(),
            Target::Web(web) => {
                let url = (!web.is_shown).then_some(&web.url);
                url.into_iter().chain(&web.secret).collect()
            }
            Target::Ping(ping) => (!ping.is_shown).then_some(&ping.url).into_iter().collect(),
            Target::Program(_) => Vec::new(),
        };
        let mut hidden = text.to_owned();
        for secret in secrets {
            hidden = secret.hide_in(&hidden);
            // A server may repeat the path alone.
            if let Some((_, path)) = parts_of(secret.expose()) {
                hidden = Secret::new(path).hide_in(&hidden);
            }
        }
        hidden
    }
}

/// The scheme with the host, and the rest, of a URL over HTTP.
fn parts_of(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    let head = url.len() - rest.len();
    let end = rest.find(['/', '?', '#']).map_or(url.len(), |at| head + at);
    Some(url.split_at(end))
}

/// A URL whose path is a secret, and whose host may have a password before it.
fn host_of(url: &str) -> String {
    let Some((host, _)) = parts_of(url) else { return "***".to_owned() };
    let (scheme, authority) = host.split_at(host.find("//").map_or(0, |at| at + 2));
    let bare = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}{bare}/***")
}

fn check_url(url: &str, is_shown: bool) -> Result<(), InvalidTarget> {
    let address = "give an address such as https://host/path";
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(wrong("the address has a space or a line break in it", address));
    }
    let Some((host, rest)) = parts_of(url).filter(|(host, _)| !host.ends_with('/')) else {
        return Err(wrong("the address begins with neither https:// nor http://, or has no host", address));
    };
    if reqwest::Url::parse(url).is_err() {
        return Err(wrong("the address is no valid URL", address));
    }
    if is_shown && (host.contains('@') || rest.contains('?')) {
        return Err(wrong(
            "an address with a password or a query in it would be shown to other users of the machine",
            "put the address into a file and give that with --url-file",
        ));
    }
    Ok(())
}

fn check_mail(mail: &Mail) -> Result<(), InvalidTarget> {
    let is_address = |text: &String| text.parse::<lettre::message::Mailbox>().is_ok();
    if mail.to.is_empty() {
        return Err(wrong("a mail has no receiver", "give --to ADDRESS"));
    }
    if !mail.to.iter().all(is_address) || !is_address(&mail.from) {
        return Err(wrong("an address of a mail is not valid", "give addresses such as ops@example.org"));
    }
    if mail.host.is_empty() || mail.host.chars().any(|c| c.is_whitespace() || c == '/') {
        return Err(wrong("the mail server has no valid name", "give --smtp HOST or HOST:PORT"));
    }
    if mail.user.is_some() != mail.password.is_some() {
        return Err(wrong(
            "a user needs a password, and a password a user",
            "give --user NAME and --secret-file FILE, or neither",
        ));
    }
    if mail.tls == MailTls::Off && mail.password.is_some() {
        return Err(wrong(
            "a password would cross the network in plain text",
            "use --tls starttls or --tls tls, or send without a password",
        ));
    }
    check_authority(mail.authority.as_deref())
}

fn check_authority(pem: Option<&str>) -> Result<(), InvalidTarget> {
    match pem.map(crate::deliver::certificates) {
        None | Some(Ok(_)) => Ok(()),
        Some(Err(_)) => Err(wrong(
            "the file of certificates has none that can be read",
            "give --ca a file with certificates in PEM",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(url: &str, is_shown: bool) -> Target {
        let (shape, secret, authority) = (Shape::Webhook, None, None);
        Target::Web(Web { shape, url: Secret::new(url), is_shown, secret, authority })
    }

    #[test]
    fn a_secret_address_is_shown_by_its_host_alone() {
        assert_eq!(
            web("https://hooks.example.org/T0/B0/xyz", false).shown(),
            "https://hooks.example.org/***"
        );
        assert_eq!(web("https://user:pass@h:8443/?token=1", false).shown(), "https://h:8443/***");
        let target = web("https://h/T0/secret-path", false);
        assert_eq!(target.hide_in("no /T0/secret-path here"), "no *** here");
        assert!(!format!("{target:?}").contains("secret-path"));
    }

    #[test]
    fn addresses_that_hold_secrets_are_refused_as_arguments() {
        assert!(web("https://h/path", true).check().is_ok());
        assert!(web("https://user:pass@h/path", true).check().is_err());
        assert!(web("https://h/path?token=1", true).check().is_err());
        assert!(web("https://h/path?token=1", false).check().is_ok());
        let Target::Web(slack) = web("https://h/T0/B0", true) else { panic!() };
        assert!(Target::Web(Web { shape: Shape::Slack, ..slack }).check().is_err());
        for bad in ["h/path", "ftp://h/", "https://", "https:///x", "https://h/a b"] {
            assert!(web(bad, false).check().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_password_never_crosses_the_network_in_plain_text() {
        let mail = |tls| {
            Target::Mail(Mail {
                host: "mail.example.org".to_owned(),
                port: 25,
                tls,
                user: Some("cairn".to_owned()),
                password: Some(Secret::new("x")),
                from: "cairn@example.org".to_owned(),
                to: vec!["ops@example.org".to_owned()],
                authority: None,
            })
        };
        assert!(mail(MailTls::Starttls).check().is_ok());
        assert!(mail(MailTls::Off).check().is_err());
    }
}
