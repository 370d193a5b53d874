//! `cairn oidc`.

use std::path::Path;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind, Hidden};
use cairn_base::Interval;

use super::access::of_name;
use super::volume::segment;
use crate::arguments::{Oidc, OidcRule, SetOidc};
use crate::exit::Failure;
use crate::output::{Output, ago, coming, duration, fields, table};
use crate::secrets;

/// Runs a command on the identity provider.
pub fn run(command: Oidc, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Oidc::Set(asked) => {
            let request = request(asked)?;
            let shown: api::Oidc = match request == api::SetOidc::default() {
                true => client.get("/v1/oidc")?,
                false => client.put("/v1/oidc", &request)?,
            };
            output.tell(&shown, |shown| format!("{}\nnext: cairn oidc test", show(shown)));
        }
        Oidc::Show => {
            let shown: api::Oidc = client.get("/v1/oidc")?;
            output.show(&shown, show);
        }
        Oidc::Test => {
            let found: api::OidcTest = client.post("/v1/oidc/test", &())?;
            output.show(&found, |found| {
                fields([
                    ["sign-in".to_owned(), found.authorization.clone()],
                    ["tokens".to_owned(), found.token.clone()],
                    ["keys".to_owned(), found.keys.to_string()],
                    ["scopes".to_owned(), found.scopes.join(" ")],
                ])
            });
        }
        Oidc::Delete => {
            let shown: api::Oidc = client.get("/v1/oidc")?;
            output.confirm(&format!(
                "this deletes {} and its secret here: people cannot sign in by it, and {} end",
                shown.name,
                count(shown.sessions)
            ))?;
            let () = client.delete("/v1/oidc")?;
            output.tell(&serde_json::json!({ "deleted": shown.name }), |_| format!("deleted {}", shown.name));
        }
        Oidc::Rule(command) => run_rule(command, client, output)?,
    }
    Ok(())
}

fn run_rule(command: OidcRule, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        OidcRule::Create { name, claim, role, volume, expires, session } => {
            let ms = |time: Interval| u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX);
            let request = api::CreateOidcRule {
                name,
                claims: claim,
                role: of_name(role),
                volumes: volume,
                expires_ms: expires.map(ms),
                session_ms: session.map(ms),
            };
            let rule: api::OidcRule = client.post("/v1/oidc/rules", &request)?;
            output.tell(&rule, |rule| {
                format!(
                    "created {}: people with {} have the role {}",
                    rule.name,
                    rule.claims.join(" and "),
                    rule.role
                )
            });
        }
        OidcRule::List => {
            let rules: Vec<api::OidcRule> = client.get("/v1/oidc/rules")?;
            output.show(&rules, |rules| list(rules));
        }
        OidcRule::Delete { name } => {
            let rules: Vec<api::OidcRule> = client.get("/v1/oidc/rules")?;
            let sessions = rules.iter().find(|rule| rule.name == name).map_or(0, |rule| rule.sessions);
            output.confirm(&format!("this deletes the rule {name}: {} end", count(sessions)))?;
            let () = client.delete(&format!("/v1/oidc/rules/{}", segment(&name)?))?;
            output.tell(&serde_json::json!({ "deleted": name }), |_| format!("deleted {name}"));
        }
    }
    Ok(())
}

fn count(sessions: u64) -> String {
    if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions") }
}

/// The settings as a request has them, with the content of the files.
fn request(asked: SetOidc) -> Result<api::SetOidc, Failure> {
    let client_secret = match asked.client_secret_file {
        Some(path) => Some(Hidden(secret_in(&path)?)),
        None => asked.no_client_secret.then(Hidden::default),
    };
    let authority = match &asked.ca {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            let message = format!("cannot read {}: {error}", path.display());
            Failure::new(ErrorKind::Usage, message, "name a file with certificates in PEM that you may read")
        })?),
        None => asked.no_ca.then(String::new),
    };
    let scopes = match asked.default_scopes {
        true => Some(Vec::new()),
        false => Some(asked.scope).filter(|scopes| !scopes.is_empty()),
    };
    Ok(api::SetOidc {
        name: asked.name,
        issuer: asked.issuer,
        client_id: asked.client_id,
        client_secret,
        redirect_url: asked.redirect_url,
        scopes,
        authority,
    })
}

fn secret_in(path: &Path) -> Result<String, Failure> {
    let place = match path.to_str() {
        Some("-") => "-".to_owned(),
        _ => format!("@{}", path.display()),
    };
    secrets::read(Some(&place), "client secret")
}

fn show(shown: &api::Oidc) -> String {
    let secret = if shown.has_secret { "set" } else { "none: a public client" };
    let scopes = if shown.scopes.is_empty() { "default".to_owned() } else { shown.scopes.join(" ") };
    let authority = if shown.has_authority { "of this machine and its own" } else { "of this machine" };
    fields([
        ["name".to_owned(), shown.name.clone()],
        ["issuer".to_owned(), shown.issuer.clone()],
        ["client ID".to_owned(), shown.client_id.clone()],
        ["client secret".to_owned(), secret.to_owned()],
        ["redirect URL".to_owned(), shown.redirect_url.clone()],
        ["scopes".to_owned(), scopes],
        ["certificates".to_owned(), authority.to_owned()],
        ["sessions".to_owned(), shown.sessions.to_string()],
    ])
}

fn list(rules: &[api::OidcRule]) -> String {
    let row = |rule: &api::OidcRule| {
        let volumes = if rule.volumes.is_empty() { "all".to_owned() } else { rule.volumes.join(" ") };
        let expires = match rule.expires_ms {
            None => "never".to_owned(),
            Some(at_ms) if rule.expired => format!("expired {}", ago(at_ms)),
            Some(at_ms) => coming(at_ms),
        };
        [
            rule.name.clone(),
            rule.claims.join(" "),
            rule.role.to_string(),
            volumes,
            expires,
            duration(rule.session_ms),
            rule.sessions.to_string(),
        ]
    };
    table(["NAME", "CLAIMS", "ROLE", "VOLUMES", "EXPIRES", "SESSION", "SIGNED IN"], rules.iter().map(row))
}
