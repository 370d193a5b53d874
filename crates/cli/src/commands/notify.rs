//! `cairn notify`.

use std::io::Read;
use std::path::Path;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind, Hidden};
use cairn_base::Interval;

use super::volume::segment;
use crate::arguments::{AddNotify, Notify, NotifyKind, NotifySettings, NotifySeverity, NotifyTls, SetNotify};
use crate::exit::Failure;
use crate::output::{Output, ago, duration, table};

/// More is no secret, and no certificate.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// Runs a command on notifications.
pub fn run(command: Notify, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Notify::Add(asked) => add(asked, client, output)?,
        Notify::List => {
            let targets: Vec<api::NotifyTarget> = client.get("/v1/notify")?;
            output.show(&targets, |targets| list(targets));
        }
        Notify::Show { name } => {
            let target: api::NotifyTarget = client.get(&path(&name)?)?;
            output.show(&target, show);
        }
        Notify::Set(SetNotify { name, settings }) => {
            let settings = request(settings)?;
            let target: api::NotifyTarget = match settings == api::NotifySettings::default() {
                true => client.get(&path(&name)?)?,
                false => client.patch(&path(&name)?, &settings)?,
            };
            output.show(&target, show);
        }
        Notify::Test { name } => test(&name, client, output)?,
        Notify::Delete { name, dry_run } => {
            let query = if dry_run { "?dry_run=true" } else { "" };
            let target: api::NotifyTarget = client.get(&path(&name)?)?;
            let () = client.delete(&format!("{}{query}", path(&name)?))?;
            let waiting = match target.waiting {
                0 => String::new(),
                1 => "; 1 message that waits is not sent".to_owned(),
                many => format!("; {many} messages that wait are not sent"),
            };
            match dry_run {
                true => {
                    output.show(&target, |_| format!("{name} would be deleted{waiting}; nothing was done"));
                }
                false => output
                    .tell(&serde_json::json!({ "deleted": name }), |_| format!("deleted {name}{waiting}")),
            }
        }
    }
    Ok(())
}

fn add(asked: AddNotify, client: &Client, output: Output) -> Result<(), Failure> {
    let AddNotify { name, kind, settings } = asked;
    segment(&name)?;
    let kind = match kind {
        NotifyKind::Mail => api::NotifyKind::Mail,
        NotifyKind::Webhook => api::NotifyKind::Webhook,
        NotifyKind::Slack => api::NotifyKind::Slack,
        NotifyKind::Mattermost => api::NotifyKind::Mattermost,
        NotifyKind::Ntfy => api::NotifyKind::Ntfy,
        NotifyKind::Alertmanager => api::NotifyKind::Alertmanager,
        NotifyKind::Command => api::NotifyKind::Command,
        NotifyKind::Ping => api::NotifyKind::Ping,
    };
    let asked = api::AddNotify { name, kind, settings: request(settings)? };
    let target: api::NotifyTarget = client.post("/v1/notify", &asked)?;
    output.tell(&target, |target| {
        format!("added {}; `cairn notify test {}` sends a test", target.name, target.name)
    });
    Ok(())
}

fn test(name: &str, client: &Client, output: Output) -> Result<(), Failure> {
    let test: api::NotifyTest = client.post(&format!("{}/test", path(name)?), &())?;
    if test.delivered {
        output.tell(&test, |test| format!("delivered: {}", test.answer));
        return Ok(());
    }
    let message = format!("the test did not reach {name}: {}", test.answer);
    Err(Failure::new(ErrorKind::Failed, message, test.next.unwrap_or_default()))
}

fn path(name: &str) -> Result<String, Failure> {
    Ok(format!("/v1/notify/{}", segment(name)?))
}

/// The settings as a request has them, with the content of the files.
fn request(asked: NotifySettings) -> Result<api::NotifySettings, Failure> {
    let is_stdin = |path: &Option<std::path::PathBuf>| path.as_deref() == Some(Path::new("-"));
    let stdins = [&asked.url_file, &asked.secret_file, &asked.ca].into_iter().filter(|path| is_stdin(path));
    if stdins.count() > 1 {
        let next = "put all but one into files";
        return Err(Failure::new(ErrorKind::Usage, "several files are to be read from stdin", next));
    }
    let ms = |interval: Interval| u64::try_from(interval.0.as_millis()).unwrap_or(u64::MAX);
    let read = |path: Option<&std::path::PathBuf>| path.map(|path| text_of(path)).transpose();
    let url = match read(asked.url_file.as_ref())? {
        Some(text) => Some(text.trim().to_owned()),
        None => asked.url.clone(),
    };
    let zone = match (&asked.zone, &asked.quiet_hours) {
        (None, Some(_)) => jiff::tz::TimeZone::system().iana_name().map(str::to_owned),
        (zone, _) => zone.clone(),
    };
    Ok(api::NotifySettings {
        server: asked.smtp,
        tls: asked.tls.map(|tls| match tls {
            NotifyTls::Starttls => api::NotifyTls::Starttls,
            NotifyTls::Tls => api::NotifyTls::Tls,
            NotifyTls::Off => api::NotifyTls::Off,
        }),
        user: asked.user,
        from: asked.from,
        to: Some(asked.to).filter(|to| !to.is_empty()),
        url: url.map(Hidden),
        url_is_public: asked.url.is_some(),
        secret: read(asked.secret_file.as_ref())?
            .map(|text| Hidden(text.trim_end_matches(['\n', '\r']).to_owned())),
        authority: read(asked.ca.as_ref())?.map(|text| text.trim().to_owned()),
        command: asked.run,
        timeout_ms: asked.timeout.map(ms),
        every_ms: asked.every.map(ms),
        post: (asked.post || asked.no_post).then_some(asked.post),
        severity: asked.severity.map(|severity| match severity {
            NotifySeverity::Info => api::NotifySeverity::Info,
            NotifySeverity::Warning => api::NotifySeverity::Warning,
            NotifySeverity::Critical => api::NotifySeverity::Critical,
        }),
        group_ms: asked.group.map(ms),
        hold_ms: asked.hold.map(ms),
        repeat_ms: if asked.no_repeat { Some(0) } else { asked.repeat.map(ms) },
        repeat_max_ms: asked.repeat_max.map(ms),
        rate: asked.rate,
        quiet: if asked.no_quiet_hours { Some(String::new()) } else { asked.quiet_hours },
        zone,
    })
}

/// The text in a file of this machine, or on standard input.
fn text_of(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| {
        let message = format!("cannot read {}: {error}", path.display());
        Failure::new(ErrorKind::Usage, message, "name a text file that you may read, or `-` for stdin")
    };
    let mut text = String::new();
    match path == Path::new("-") {
        true => std::io::stdin().take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?,
        false => {
            let file = std::fs::File::open(path).map_err(failed)?;
            file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?
        }
    };
    Ok(text)
}

fn kind(target: &api::NotifyTarget) -> String {
    match serde_json::to_value(target.kind) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn severity(target: &api::NotifyTarget) -> &'static str {
    match target.severity {
        api::NotifySeverity::Info => "info",
        api::NotifySeverity::Warning => "warning",
        api::NotifySeverity::Critical => "critical",
    }
}

/// How deliveries go.
fn state(target: &api::NotifyTarget) -> String {
    match (target.failing_ms, target.delivered_ms) {
        (Some(since_ms), _) => format!("FAILS since {}", ago(since_ms).trim_end_matches(" ago")),
        (None, Some(at_ms)) => format!("works, {}", ago(at_ms)),
        (None, None) => "not used yet".to_owned(),
    }
}

fn list(targets: &[api::NotifyTarget]) -> String {
    let row = |target: &api::NotifyTarget| {
        let least = severity(target).to_owned();
        let waiting = target.waiting.to_string();
        [target.name.clone(), kind(target), target.to.clone(), least, waiting, state(target)]
    };
    table(["NAME", "KIND", "TO", "FROM", "WAITING", "STATE"], targets.iter().map(row))
}

fn show(target: &api::NotifyTarget) -> String {
    let mut lines = vec![("kind", kind(target)), ("to", target.to.clone())];
    let is_ping = target.kind == api::NotifyKind::Ping;
    if target.has_secret {
        lines.push(("secret", "set".to_owned()));
    }
    if let Some(every_ms) = target.every_ms {
        lines.push(("every", duration(every_ms)));
    }
    let word = if is_ping { "pings unless" } else { "severity" };
    lines.push((word, format!("{} or worse", severity(target))));
    if !is_ping {
        lines.push(("group", duration(target.group_ms)));
        lines.push(("hold", duration(target.hold_ms)));
        lines.push((
            "repeat",
            match target.repeat_ms {
                0 => "never".to_owned(),
                first => format!("{}, growing to {}", duration(first), duration(target.repeat_max_ms)),
            },
        ));
        let rate =
            if target.rate == u32::MAX { "no limit".to_owned() } else { format!("{} an hour", target.rate) };
        lines.push(("rate", rate));
        if let (Some(quiet), Some(zone)) = (&target.quiet, &target.zone) {
            lines.push(("quiet", format!("{quiet} {zone}, except critical problems")));
        }
        lines.push(("open", format!("{} problems were sent and are not over", target.open)));
        lines.push(("waiting", format!("{} messages", target.waiting)));
    }
    lines.push(("state", state(target)));
    if let Some(failure) = &target.failure {
        lines.push(("failure", failure.clone()));
    }
    if let Some(next) = &target.next {
        lines.push(("next", next.clone()));
    }
    let lines: Vec<String> = lines.iter().map(|(label, value)| format!("{label:<12} {value}")).collect();
    format!("{}\n{}", target.name, lines.join("\n"))
}
