//! `cairn status`.

use cairn_api as api;
use cairn_api::client::Client;

use super::{drill, mirror, volume};
use crate::exit::Failure;
use crate::output::{Output, ago, duration, size, table};

/// Prints the server at a glance.
pub fn run(client: &Client, output: Output) -> Result<(), Failure> {
    let status: api::Status = client.get("/v1/status")?;
    output.show(&status, people);
    Ok(())
}

fn people(status: &api::Status) -> String {
    let mirrors: Vec<String> = status.mirror.iter().chain(&status.mirror_further).cloned().collect();
    let mut text = format!(
        "cairn {}  {}  up {}\nAPI {}\nNBD {}\niSCSI {}\nmirror {}\n",
        status.version,
        status.data,
        duration(status.uptime_ms),
        status.http.join("  "),
        status.nbd.join("  "),
        listed(&status.iscsi),
        listed(&mirrors),
    );
    let mut part = |title: &str, body: String| text += &format!("\n{title}\n{body}\n");
    part("VOLUMES", volume::list(&status.volumes));
    part("EXPORTS", exports(&status.exports));
    if status.exports.iter().any(|export| !export.sessions.is_empty()) {
        part("SESSIONS", sessions(&status.exports));
    }
    part("MIRRORS", mirror::list(&status.mirrors));
    if !status.governors.is_empty() {
        let lines: Vec<String> = status.governors.iter().map(volume::show_governor).collect();
        part("GOVERNORS", lines.join("\n"));
    }
    if !status.drills.is_empty() {
        part("DRILLS", drill::list(&status.drills));
    }
    part("MIRRORED BY", followers(&status.followers));
    if !status.leftovers.is_empty() {
        part("KEPT FOR A FAILBACK, OR FOR NOBODY", leftovers(&status.leftovers));
    }
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

/// Addresses, or that there are none.
pub fn listed(addresses: &[String]) -> String {
    if addresses.is_empty() { "off".to_owned() } else { addresses.join("  ") }
}

fn followers(followers: &[api::Follower]) -> String {
    let row = |follower: &api::Follower| {
        let lag = match (follower.lag_ms, follower.lag_bytes) {
            (Some(0), _) => "0".to_owned(),
            (Some(ms), Some(bytes)) => format!("{}, {}", duration(ms), size(bytes)),
            _ => "-".to_owned(),
        };
        let state = match (follower.transferring, follower.over_rpo) {
            (true, _) => "transferring",
            (false, true) => "behind",
            (false, false) => "idle",
        };
        let peer = follower.name.get(..16).unwrap_or(&follower.name);
        let heard = follower.heard_ms.map_or("-".to_owned(), ago);
        [follower.volume.clone(), peer.to_owned(), state.to_owned(), lag, heard]
    };
    table(["VOLUME", "CERTIFICATE", "STATE", "LAG", "HEARD"], followers.iter().map(row))
}

/// Held snapshots, and records of changes, of mirrors that no peer here makes.
fn leftovers(leftovers: &[api::Leftover]) -> String {
    let row = |leftover: &api::Leftover| {
        let end = format!("cairn mirror forget {} {}", leftover.volume, leftover.name);
        let pins = leftover.base.as_ref().map_or("-".to_owned(), |_| size(leftover.behind_bytes));
        let held =
            leftover.base.clone().unwrap_or_else(|| format!("{}: which blocks change", leftover.volume));
        [held, pins, end]
    };
    table(["HELD", "PINS AT MOST", "TO LET IT GO"], leftovers.iter().map(row))
}

fn exports(exports: &[api::Export]) -> String {
    let row = |export: &api::Export| {
        let uri = export.uris.first().cloned().unwrap_or_default();
        let mode = match export.read_only {
            _ if export.closed => "closed",
            true => "read-only",
            false => "read-write",
        };
        [export.name.clone(), size(export.size_bytes), mode.into(), export.sessions.len().to_string(), uri]
    };
    table(["NAME", "SIZE", "MODE", "SESSIONS", "URI"], exports.iter().map(row))
}

/// Who uses what, and what they did in the last seconds.
fn sessions(exports: &[api::Export]) -> String {
    let row = |export: &api::Export, session: &api::Session| {
        let client = match &session.initiator {
            Some(initiator) => format!("iSCSI {initiator} {}", session.peer),
            None => format!("NBD {}", session.peer),
        };
        let api::Activity { read, write, .. } = session.activity;
        let [reads, writes] = [read, write].map(|rate| match rate.per_second {
            few if few < 10.0 => format!("{few:.1}"),
            many => format!("{many:.0}"),
        });
        let [read_bytes, written_bytes] = [read, write].map(|rate| size(rate.bytes_per_second));
        let (read, write) = (latencies(&read), latencies(&write));
        [export.name.clone(), client, reads, read_bytes, read, writes, written_bytes, write]
    };
    let rows =
        exports.iter().flat_map(|export| export.sessions.iter().map(move |session| row(export, session)));
    table(["EXPORT", "CLIENT", "READS/s", "READ/s", "p50, p99", "WRITES/s", "WRITTEN/s", "p50, p99"], rows)
}

/// Both latencies of a rate.
fn latencies(rate: &api::Rate) -> String {
    match rate.p50_us.zip(rate.p99_us) {
        Some((half, most)) => format!("{}, {}", latency(half), latency(most)),
        None => "-".to_owned(),
    }
}

/// Microseconds, as people read them.
fn latency(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.1} us"),
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e5 => format!("{:.1} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests;
