//! Settings as requests have them, to targets and policies as they are kept, and back.

use cairn_api as api;
use cairn_api::{NotifyKind, NotifySettings, NotifySeverity, NotifyTls};
use cairn_notify::{Mail, MailTls, Ping, Policy, Program, Quiet, Secret, Severity, Shape, Target, Web};

use crate::error::ServerError;

const fn invalid(fault: &'static str, next: &'static str) -> ServerError {
    ServerError::Invalid { fault, next }
}

/// The kind of a target, in the API.
pub(super) fn kind_of(target: &Target) -> NotifyKind {
    match target {
        Target::Mail(_) => NotifyKind::Mail,
        Target::Program(_) => NotifyKind::Command,
        Target::Ping(_) => NotifyKind::Ping,
        Target::Web(web) => match web.shape {
            Shape::Webhook => NotifyKind::Webhook,
            Shape::Slack => NotifyKind::Slack,
            Shape::Mattermost => NotifyKind::Mattermost,
            Shape::Ntfy => NotifyKind::Ntfy,
            Shape::Alertmanager => NotifyKind::Alertmanager,
        },
    }
}

/// Refuses settings that targets of another kind have.
fn refuse_foreign(kind: NotifyKind, set: &NotifySettings) -> Result<(), ServerError> {
    let (is_mail, is_ping) = (kind == NotifyKind::Mail, kind == NotifyKind::Ping);
    let is_command = kind == NotifyKind::Command;
    let mail = set.server.is_some() || set.tls.is_some() || set.user.is_some() || set.from.is_some();
    if (mail || set.to.is_some()) && !is_mail {
        return Err(invalid(
            "only a mail has a server, a sender and receivers",
            "leave --smtp, --tls, --user, --from and --to out",
        ));
    }
    if set.url.is_some() && (is_mail || is_command) {
        return Err(invalid(
            "a mail and a command have no address over HTTP",
            "leave --url and --url-file out",
        ));
    }
    if (set.command.is_some() || set.timeout_ms.is_some()) && !is_command {
        return Err(invalid("only a command is run", "leave --run and --timeout out"));
    }
    if (set.every_ms.is_some() || set.post.is_some()) && !is_ping {
        return Err(invalid("only a ping is sent at an interval", "leave --every and --post out"));
    }
    if set.secret.is_some() && (is_command || is_ping) {
        return Err(invalid("a command and a ping take no secret", "leave --secret-file out"));
    }
    let message = [set.group_ms, set.hold_ms, set.repeat_ms, set.repeat_max_ms];
    if is_ping && (message.iter().any(Option::is_some) || set.rate.is_some() || set.quiet.is_some()) {
        return Err(invalid(
            "a ping sends no messages",
            "leave --group, --hold, --repeat, --repeat-max, --rate and --quiet-hours out",
        ));
    }
    Ok(())
}

/// An empty text removes a value; a missing one keeps it.
fn kept_or(set: Option<&str>, old: Option<String>) -> Option<String> {
    match set {
        Some("") => None,
        Some(text) => Some(text.to_owned()),
        None => old,
    }
}

fn secret_or(set: Option<&api::Hidden>, old: Option<Secret>) -> Option<Secret> {
    match set {
        Some(api::Hidden(text)) => Some(Secret::new(text)).filter(|secret| !secret.expose().is_empty()),
        None => old,
    }
}

/// A target of that kind with these settings, the others as in `old`.
pub(super) fn target_of(
    kind: NotifyKind,
    set: &NotifySettings,
    old: Option<&Target>,
    host: &str,
) -> Result<Target, ServerError> {
    refuse_foreign(kind, set)?;
    let shape = match kind {
        NotifyKind::Mail => return mail_of(set, old, host).and_then(checked),
        NotifyKind::Command => {
            let old = old.and_then(|old| if let Target::Program(old) = old { Some(old) } else { None });
            let command = set.command.clone().or_else(|| old.map(|old| old.command.clone()));
            let timeout_ms = set.timeout_ms.or(old.map(|old| old.timeout_ms)).unwrap_or(Program::TIMEOUT_MS);
            return checked(Target::Program(Program { command: command.unwrap_or_default(), timeout_ms }));
        }
        NotifyKind::Ping => {
            let old = old.and_then(|old| if let Target::Ping(old) = old { Some(old) } else { None });
            let (url, is_shown) = url_of(set, old.map(|old| (&old.url, old.is_shown)))?;
            return checked(Target::Ping(Ping {
                url,
                is_shown,
                post: set.post.or(old.map(|old| old.post)).unwrap_or(false),
                every_ms: set.every_ms.or(old.map(|old| old.every_ms)).unwrap_or(Ping::EVERY_MS),
                authority: kept_or(set.authority.as_deref(), old.and_then(|old| old.authority.clone())),
            }));
        }
        NotifyKind::Webhook => Shape::Webhook,
        NotifyKind::Slack => Shape::Slack,
        NotifyKind::Mattermost => Shape::Mattermost,
        NotifyKind::Ntfy => Shape::Ntfy,
        NotifyKind::Alertmanager => Shape::Alertmanager,
    };
    let old = old.and_then(|old| if let Target::Web(old) = old { Some(old) } else { None });
    let (url, is_shown) = url_of(set, old.map(|old| (&old.url, old.is_shown)))?;
    checked(Target::Web(Web {
        shape,
        url,
        is_shown,
        secret: secret_or(set.secret.as_ref(), old.and_then(|old| old.secret.clone())),
        authority: kept_or(set.authority.as_deref(), old.and_then(|old| old.authority.clone())),
    }))
}

fn checked(target: Target) -> Result<Target, ServerError> {
    match target.check() {
        Ok(()) => Ok(target),
        Err(wrong) => Err(invalid(wrong.fault, wrong.next)),
    }
}

fn url_of(set: &NotifySettings, old: Option<(&Secret, bool)>) -> Result<(Secret, bool), ServerError> {
    match (&set.url, old) {
        (Some(api::Hidden(url)), _) => Ok((Secret::new(url.trim()), set.url_is_public)),
        (None, Some((url, is_shown))) => Ok((url.clone(), is_shown)),
        (None, None) => Err(invalid(
            "the target has no address",
            "give --url-file FILE with the address in it, or --url URL if it holds no secret",
        )),
    }
}

fn mail_of(set: &NotifySettings, old: Option<&Target>, host: &str) -> Result<Target, ServerError> {
    let old = old.and_then(|old| if let Target::Mail(old) = old { Some(old) } else { None });
    let tls = match set.tls {
        Some(NotifyTls::Starttls) => MailTls::Starttls,
        Some(NotifyTls::Tls) => MailTls::Tls,
        Some(NotifyTls::Off) => MailTls::Off,
        None => old.map_or(MailTls::Starttls, |old| old.tls),
    };
    let (host_name, port) = match (&set.server, old) {
        (Some(server), _) => host_and_port(server, tls)?,
        (None, Some(old)) => (old.host.clone(), old.port),
        (None, None) => return Err(invalid("the mail server is missing", "give --smtp HOST or HOST:PORT")),
    };
    let from = set.from.clone().or_else(|| old.map(|old| old.from.clone()));
    Ok(Target::Mail(Mail {
        host: host_name,
        port,
        tls,
        user: kept_or(set.user.as_deref(), old.and_then(|old| old.user.clone())),
        password: secret_or(set.secret.as_ref(), old.and_then(|old| old.password.clone())),
        from: from.unwrap_or_else(|| format!("cairn@{host}")),
        to: set.to.clone().or_else(|| old.map(|old| old.to.clone())).unwrap_or_default(),
        authority: kept_or(set.authority.as_deref(), old.and_then(|old| old.authority.clone())),
    }))
}

/// `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`.
fn host_and_port(server: &str, tls: MailTls) -> Result<(String, u16), ServerError> {
    let bad = || invalid("the mail server is no HOST:PORT", "give --smtp HOST or HOST:PORT");
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
            (host, rest.strip_prefix(':'))
        }
        None => match server.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (server, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| bad())?,
        None => tls.port(),
    };
    Ok((host.to_owned(), port))
}

/// A policy with these settings, the others as in `old`.
pub(super) fn policy_of(
    kind: NotifyKind,
    set: &NotifySettings,
    old: Option<&Policy>,
) -> Result<Policy, ServerError> {
    let default = match kind {
        NotifyKind::Alertmanager => Policy::for_a_relay(),
        _ => Policy::default(),
    };
    let mut policy = old.cloned().unwrap_or(default);
    policy.severity = match set.severity {
        Some(NotifySeverity::Info) => Severity::Info,
        Some(NotifySeverity::Warning) => Severity::Warning,
        Some(NotifySeverity::Critical) => Severity::Critical,
        None => policy.severity,
    };
    policy.group_ms = set.group_ms.unwrap_or(policy.group_ms);
    policy.hold_ms = set.hold_ms.unwrap_or(policy.hold_ms);
    policy.repeat_ms = set.repeat_ms.unwrap_or(policy.repeat_ms);
    policy.repeat_max_ms = set.repeat_max_ms.unwrap_or(policy.repeat_max_ms.max(policy.repeat_ms));
    policy.rate = set.rate.unwrap_or(policy.rate);
    if let Some(text) = &set.quiet {
        let old_zone = policy.quiet.as_ref().map(|quiet| quiet.zone.clone());
        let zone = set.zone.clone().or(old_zone).unwrap_or_else(|| "UTC".to_owned());
        policy.quiet = match text.trim() {
            "" => None,
            text => Some(quiet_of(text, zone)?),
        };
    } else if let (Some(zone), Some(quiet)) = (&set.zone, &mut policy.quiet) {
        quiet.zone.clone_from(zone);
    }
    policy.check().map_err(|wrong| invalid(wrong.0, "correct the setting and run the command again"))?;
    Ok(policy)
}

/// `22:00-07:00`.
fn quiet_of(text: &str, zone: String) -> Result<Quiet, ServerError> {
    let minutes = |text: &str| {
        let (hour, minute) = text.trim().split_once(':')?;
        let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
        (hour < 24 && minute < 60).then_some(hour * 60 + minute)
    };
    let parsed = text.split_once('-').and_then(|(from, to)| Some((minutes(from)?, minutes(to)?)));
    let (from, to) = parsed
        .ok_or_else(|| invalid("the quiet hours are no times of a day", "give --quiet-hours 22:00-07:00"))?;
    Ok(Quiet { from, to, zone })
}

/// Quiet hours as a request has them.
pub(super) fn shown_quiet(quiet: &Quiet) -> String {
    let Quiet { from, to, .. } = quiet;
    format!("{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
}
