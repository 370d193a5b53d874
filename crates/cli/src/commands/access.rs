//! `cairn token`, `cairn tls` and `cairn audit`.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::volume::segment;
use crate::arguments::{Audit, RoleName, Tls, Token};
use crate::exit::Failure;
use crate::image_names::clock;
use crate::instant::{self, Moment};
use crate::output::{Output, ago, coming, fields, note_line, print_line, table};

/// Runs a command on tokens.
pub fn run(command: Token, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Token::Create { name, role, volume, expires } => {
            let expires_ms = expires.map(|expires| expires.0.as_millis().try_into().unwrap_or(u64::MAX));
            let request = api::CreateToken { name, role: of_name(role), volumes: volume, expires_ms };
            let created: api::CreatedToken = client.post("/v1/tokens", &request)?;
            if !output.json && !output.quiet {
                note_line(&format!(
                    "this secret is shown once; store it in a file that only its user can read, and name the file with --token-file. Role: {}",
                    created.token.role
                ));
            }
            output.show(&created, |created| created.secret.clone());
        }
        Token::List => {
            let tokens: Vec<api::AccessToken> = client.get("/v1/tokens")?;
            output.show(&tokens, |tokens| list(tokens));
        }
        Token::Show { name } => {
            let token: api::AccessToken = client.get(&format!("/v1/tokens/{}", segment(&name)?))?;
            output.show(&token, show);
        }
        Token::Revoke { name } => {
            let path = format!("/v1/tokens/{}", segment(&name)?);
            let token: api::AccessToken = client.get(&path)?;
            output.confirm(&format!(
                "this revokes the token {}: programs and sessions that use it are refused from now on",
                token.name
            ))?;
            let () = client.delete(&path)?;
            output.tell(&serde_json::json!({ "revoked": name }), |_| format!("revoked {name}"));
        }
    }
    Ok(())
}

/// The role of a name on the command line.
pub fn of_name(role: RoleName) -> api::Role {
    match role {
        RoleName::Viewer => api::Role::Viewer,
        RoleName::Operator => api::Role::Operator,
        RoleName::Administrator => api::Role::Administrator,
        RoleName::LockKeeper => api::Role::LockKeeper,
    }
}

fn volumes(token: &api::AccessToken) -> String {
    if token.volumes.is_empty() { "all".to_owned() } else { token.volumes.join(" ") }
}

fn expiry(token: &api::AccessToken) -> String {
    match token.expires_ms {
        None => "never".to_owned(),
        Some(at_ms) if token.expired => format!("expired {}", ago(at_ms)),
        Some(at_ms) => coming(at_ms),
    }
}

fn list(tokens: &[api::AccessToken]) -> String {
    let row = |token: &api::AccessToken| {
        [token.name.clone(), token.role.to_string(), volumes(token), expiry(token)]
    };
    table(["NAME", "ROLE", "VOLUMES", "EXPIRES"], tokens.iter().map(row))
}

fn show(token: &api::AccessToken) -> String {
    let created = token.created_ms.map_or_else(|| "with the file http-token".to_owned(), clock);
    fields([
        ["name".to_owned(), token.name.clone()],
        ["role".to_owned(), token.role.to_string()],
        ["volumes".to_owned(), volumes(token)],
        ["created".to_owned(), created],
        ["expires".to_owned(), expiry(token)],
    ])
}

/// Runs a command on the audit log.
pub fn run_audit(command: &Audit, client: &Client, output: Output) -> Result<(), Failure> {
    let Audit::List { since, limit } = command;
    let since_ms = since.as_deref().map(since_ms).transpose()?;
    let since = since_ms.map_or_else(String::new, |since_ms| format!("&since_ms={since_ms}"));
    let entries: Vec<api::AuditEntry> = client.get(&format!("/v1/audit?limit={limit}{since}"))?;
    output.show(&entries, |entries| audit(entries));
    Ok(())
}

fn since_ms(text: &str) -> Result<u64, Failure> {
    let now_ns = instant::now_ns();
    // A time without a sign is one that has passed.
    let text = match text.parse::<cairn_base::Interval>() {
        Ok(_) => format!("-{text}"),
        Err(_) => text.to_owned(),
    };
    let at_ns = match instant::parse(&text, now_ns)? {
        Moment::At(at_ns) => at_ns,
        Moment::Ago(ago) => now_ns.saturating_sub(ago.as_nanos().try_into().unwrap_or(u64::MAX)),
    };
    Ok(at_ns / 1_000_000)
}

fn audit(entries: &[api::AuditEntry]) -> String {
    let row = |entry: &api::AuditEntry| {
        let outcome = match entry.outcome {
            api::AuditOutcome::Done => "done",
            api::AuditOutcome::Refused => "refused",
            api::AuditOutcome::Failed => "failed",
        };
        let outcome = match entry.reason.as_str() {
            "" => outcome.to_owned(),
            reason => format!("{outcome}: {}", plain(reason)),
        };
        [
            clock(entry.at_ms),
            plain(&entry.actor),
            plain(&entry.from),
            plain(&entry.action),
            plain(&entry.object),
            outcome,
        ]
    };
    table(["TIME", "ACTOR", "FROM", "ACTION", "OBJECT", "OUTCOME"], entries.iter().map(row))
}

/// A text of a client, which must not control the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// Runs a command on certificates.
pub fn run_tls(command: &Tls, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Tls::Show => {
            let tls: api::Tls = client.get("/v1/tls")?;
            output.show(&tls, |tls| {
                fields([
                    [
                        "certificate".to_owned(),
                        tls.certificate.clone().unwrap_or_else(|| "of this server's authority".to_owned()),
                    ],
                    ["names".to_owned(), tls.names.join(" ")],
                    ["SHA-256".to_owned(), tls.fingerprint.clone()],
                    ["expires".to_owned(), coming(tls.expires_ms)],
                    ["root SHA-256".to_owned(), tls.root_fingerprint.clone()],
                    ["root expires".to_owned(), coming(tls.root_expires_ms)],
                ])
            });
        }
        Tls::Root => {
            let tls: api::Tls = client.get("/v1/tls")?;
            if output.json {
                output.show(&serde_json::json!({ "root": tls.root }), |_| String::new());
            } else {
                print_line(tls.root.trim_end());
            }
        }
        Tls::Create { name, to, expires } => {
            // Nothing is issued that could not be written.
            let taken = |error: std::io::Error| {
                let message = format!("cannot create {}: {error}", to.display());
                Failure::new(ErrorKind::Taken, message, "name a new directory with --to")
            };
            DirBuilder::new().mode(0o700).create(to).map_err(taken)?;
            let expires_ms = expires.map(|expires| expires.0.as_millis().try_into().unwrap_or(u64::MAX));
            let request = api::IssueCertificate { name: name.clone(), expires_ms };
            let issued = client.post::<api::IssuedCertificate>("/v1/tls/certificates", &request);
            let issued = issued.inspect_err(|_| drop(std::fs::remove_dir(to)))?;
            put(&to.join("ca-cert.pem"), &issued.root, 0o644)?;
            put(&to.join("client-cert.pem"), &issued.certificate, 0o644)?;
            put(&to.join("client-key.pem"), &issued.key, 0o600)?;
            let shown = serde_json::json!({
                "name": issued.name, "directory": to.display().to_string(),
                "fingerprint": issued.fingerprint, "expires_ms": issued.expires_ms,
            });
            output.tell(&shown, |_| {
                format!(
                    "issued a certificate for {name} in {}, which expires {}\nnext: cairn export set VOLUME/LUN --nbd cert:{name}",
                    to.display(),
                    coming(issued.expires_ms)
                )
            });
        }
    }
    Ok(())
}

fn put(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(file.sync_all()?)
}
