//! `cairn status`.

use cairn_server::api;

use super::{mirror, volume};
use crate::client::Client;
use crate::exit::Failure;
use crate::output::{Output, duration, size, table};

/// Prints the server at a glance.
pub fn run(client: &Client, output: Output) -> Result<(), Failure> {
    let status: api::Status = client.get("/v1/status")?;
    output.show(&status, people);
    Ok(())
}

fn people(status: &api::Status) -> String {
    let mut text = format!(
        "cairn {}  {}  up {}\nAPI {}\nNBD {}\nmirror {}\n",
        status.version,
        status.data,
        duration(status.uptime_ms),
        status.http.join("  "),
        status.nbd.join("  "),
        status.mirror.as_deref().unwrap_or("off"),
    );
    let mut part = |title: &str, body: String| text += &format!("\n{title}\n{body}\n");
    part("VOLUMES", volume::list(&status.volumes));
    part("EXPORTS", exports(&status.exports));
    part("MIRRORS", mirror::list(&status.mirrors));
    part("MIRRORED BY", followers(&status.followers));
    if status.problems.is_empty() {
        part("PROBLEMS", "none".to_owned());
    } else {
        let line = |problem: &api::Problem| {
            format!("{}: {}\n  next: {}", problem.subject, problem.message, problem.next)
        };
        part("PROBLEMS", status.problems.iter().map(line).collect::<Vec<_>>().join("\n"));
    }
    text.trim_end().to_owned()
}

fn followers(followers: &[api::Follower]) -> String {
    let row = |follower: &api::Follower| {
        let lag = match follower.lag_ms {
            0 => "0".to_owned(),
            ms => format!("{}, {}", duration(ms), size(follower.lag_bytes)),
        };
        let state = if follower.transferring { "transferring" } else { "idle" };
        let peer = follower.name.get(..16).unwrap_or(&follower.name);
        [follower.volume.clone(), peer.to_owned(), state.to_owned(), lag]
    };
    table(["VOLUME", "CERTIFICATE", "STATE", "LAG"], followers.iter().map(row))
}

fn exports(exports: &[api::Export]) -> String {
    let row = |export: &api::Export| {
        let uri = export.uris.first().cloned().unwrap_or_default();
        let mode = if export.read_only { "read-only" } else { "read-write" };
        [export.name.clone(), size(export.size_bytes), mode.into(), export.sessions.len().to_string(), uri]
    };
    table(["NAME", "SIZE", "MODE", "SESSIONS", "URI"], exports.iter().map(row))
}
