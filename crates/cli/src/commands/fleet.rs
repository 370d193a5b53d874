//! `cairn fleet`.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind, FleetState, Hidden};

use super::volume::segment;
use crate::arguments::Fleet;
use crate::exit::Failure;
use crate::output::{Output, ago, fields, size, table};
use crate::secrets;

/// How long an answer may wait for servers that were not asked lately.
const WITHIN_MS: u64 = 6000;

/// Runs a command on other servers.
pub fn run(command: Fleet, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Fleet::Create { name, address, token, root } => {
            let root = root.map(|path| {
                std::fs::read_to_string(&path).map_err(|error| {
                    let message = format!("{}: {error}", path.display());
                    Failure::new(ErrorKind::Usage, message, "check --root")
                })
            });
            let root = root.transpose()?;
            let token = Hidden(secrets::read(Some(&token), "token")?);
            let request = api::AddFleetServer { name, address, root, token };
            let server: api::FleetServer = client.post("/v1/fleet", &request)?;
            output.tell(&server, |server| format!("added {} at {}", server.name, server.address));
        }
        Fleet::List => {
            let mut servers: Vec<api::FleetServer> =
                client.get(&format!("/v1/fleet?within_ms={WITHIN_MS}"))?;
            servers.sort_by_key(|server| rank(server.state));
            output.show(&servers, |servers| list(servers));
        }
        Fleet::Show { name } => {
            let path = format!("/v1/fleet/{}?within_ms={WITHIN_MS}", segment(&name)?);
            let server: api::FleetServer = client.get(&path)?;
            output.show(&server, show);
        }
        Fleet::Test { name } => {
            let server: api::FleetServer =
                client.post(&format!("/v1/fleet/{}/test", segment(&name)?), &())?;
            output.show(&server, show);
        }
        Fleet::Delete { name } => {
            let path = format!("/v1/fleet/{}", segment(&name)?);
            let server: api::FleetServer = client.get(&path)?;
            output.confirm(&format!(
                "this forgets {} and its token; revoke the token there with `cairn token revoke`",
                server.name
            ))?;
            let () = client.delete(&path)?;
            output.tell(&serde_json::json!({ "deleted": name }), |_| format!("deleted {name}"));
        }
    }
    Ok(())
}

/// The worst first.
fn rank(state: FleetState) -> u8 {
    match state {
        FleetState::Unreachable => 0,
        FleetState::Problems => 1,
        FleetState::Unknown => 2,
        FleetState::Well => 3,
    }
}

fn state(server: &api::FleetServer) -> String {
    let problems = server.summary.as_ref().map_or(0, |summary| summary.problems);
    match server.state {
        FleetState::Unreachable => "UNREACHABLE".to_owned(),
        FleetState::Problems if problems == 1 => "1 PROBLEM".to_owned(),
        FleetState::Problems => format!("{problems} PROBLEMS"),
        FleetState::Unknown => "not asked yet".to_owned(),
        FleetState::Well => "well".to_owned(),
    }
}

fn answered(server: &api::FleetServer) -> String {
    server.answered_ms.map_or_else(|| "never".to_owned(), ago)
}

fn list(servers: &[api::FleetServer]) -> String {
    let row = |server: &api::FleetServer| {
        let count = |of: fn(&api::FleetSummary) -> u64| {
            server.summary.as_ref().map_or_else(|| "-".to_owned(), |summary| of(summary).to_string())
        };
        [
            server.name.clone(),
            server.address.clone(),
            state(server),
            count(|summary| summary.volumes),
            count(|summary| summary.mirrors),
            count(|summary| summary.over_rpo),
            answered(server),
            server.message.clone().unwrap_or_default(),
        ]
    };
    let head = ["NAME", "ADDRESS", "STATE", "VOLUMES", "MIRRORS", "BEHIND", "ANSWERED", "MESSAGE"];
    table(head, servers.iter().map(row))
}

fn show(server: &api::FleetServer) -> String {
    let mut pairs = vec![
        ["name".to_owned(), server.name.clone()],
        ["address".to_owned(), server.address.clone()],
        ["tls".to_owned(), if server.tls { "yes" } else { "no" }.to_owned()],
        ["state".to_owned(), state(server)],
        ["answered".to_owned(), answered(server)],
    ];
    pairs.extend(server.message.clone().map(|message| ["message".to_owned(), message]));
    if let Some(summary) = &server.summary {
        pairs.extend([
            ["version".to_owned(), summary.version.clone()],
            ["volumes".to_owned(), summary.volumes.to_string()],
            ["used".to_owned(), format!("{} of {}", size(summary.used_bytes), size(summary.size_bytes))],
            ["mirrors".to_owned(), summary.mirrors.to_string()],
            ["behind".to_owned(), summary.over_rpo.to_string()],
        ]);
    }
    fields(pairs)
}
