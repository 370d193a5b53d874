//! `cairn status`.

use cairn_api::client::Client;
use cairn_api::{self as api, Leftover};

use super::export::{clients, nbd_clients};
use super::{drill, mirror, mount, schedule, volume};
use crate::exit::Failure;
use crate::image_names;
use crate::output::{Output, ago, duration, size, table};

/// Columns of a client in a table that is to fit 80.
const CLIENT_WIDTH: usize = 22;

/// Prints the server at a glance.
pub fn run(client: &Client, output: Output) -> Result<(), Failure> {
    let status: api::Status = client.get("/v1/status")?;
    output.show(&status, people);
    Ok(())
}

fn people(status: &api::Status) -> String {
    let mirrors: Vec<String> = status.mirror.iter().chain(&status.mirror_further).cloned().collect();
    let mut text = format!(
        "{}\ncairn {}  {}  up {}\nAPI {}\nNBD {}\niSCSI {}\nmirror {}\n",
        headline(status),
        status.version,
        status.data,
        duration(status.uptime_ms),
        status.http.join("  "),
        status.nbd.join("  "),
        listed(&status.iscsi),
        listed(&mirrors),
    );
    if !status.nfs.is_empty() {
        text += &format!("NFS {}\n", status.nfs.join("  "));
    }
    let mut part = |title: &str, body: String| text += &format!("\n{title}\n{body}\n");
    part("VOLUMES", volume::list(&status.volumes));
    let buckets = volume::from_buckets(&status.volumes);
    if !buckets.is_empty() {
        part("READ FROM BUCKETS", buckets);
    }
    let hosts = hosts(&status.volumes);
    if !hosts.is_empty() {
        part("FILE SYSTEMS OF THIS MACHINE", hosts);
    }
    part("EXPORTS", exports(&status.exports));
    if status.exports.iter().any(|export| !export.sessions.is_empty()) {
        part("SESSIONS", sessions(&status.exports));
    }
    if !status.mounts.is_empty() {
        part("MOUNTS", mount::list(&status.mounts));
    }
    if !status.schedules.is_empty() {
        part("SCHEDULES", schedule::list(&status.schedules));
    }
    part("MIRRORS", mirror::list(&status.mirrors));
    if !status.bucket_mirrors.is_empty() {
        part("MIRRORS IN BUCKETS", mirror::bucket::list(&status.bucket_mirrors));
    }
    if !status.governors.is_empty() {
        let lines: Vec<String> = status.governors.iter().map(volume::show_governor).collect();
        part("GOVERNORS", lines.join("\n"));
    }
    if !status.drills.is_empty() {
        part("DRILLS", drill::list(&status.drills));
    }
    part("MIRRORED BY", followers(&status.followers));
    if !status.leftovers.is_empty() {
        part("KEPT FOR A FAILBACK, OR FOR A MIRROR THAT IS GONE", leftovers(&status.leftovers));
    }
    if !status.problems.is_empty() {
        let line = |problem: &api::Problem| {
            let mark = if status.is_critical(problem) { "CRITICAL " } else { "" };
            format!("{mark}{}: {}\n  next: {}", problem.subject, problem.message, problem.next)
        };
        part("PROBLEMS", status.problems.iter().map(line).collect::<Vec<_>>().join("\n"));
    } else {
        part("PROBLEMS", "none".to_owned());
    }
    if !status.notes.is_empty() {
        let line = |note: &api::Problem| format!("{}: {}\n  next: {}", note.subject, note.message, note.next);
        part("NOTES", status.notes.iter().map(line).collect::<Vec<_>>().join("\n"));
    }
    text.trim_end().to_owned()
}

/// One line: all is well, or the number of problems and their severity.
fn headline(status: &api::Status) -> String {
    let grave = status.problems.iter().filter(|problem| status.is_critical(problem)).count();
    let of = |count: usize| if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") };
    match (status.problems.len(), grave) {
        (0, _) => "OK: no problems".to_owned(),
        (all, 0) => format!("WARNING: {}", of(all)),
        (all, grave) if all == grave => format!("CRITICAL: {}", of(all)),
        (all, grave) => format!("CRITICAL: {}, {grave} of them critical", of(all)),
    }
}

/// The file systems that hold volumes, and the space left on them.
fn hosts(volumes: &[api::Volume]) -> String {
    let mut hosts: Vec<(&api::HostRoom, u64)> = Vec::new();
    for host in volumes.iter().filter_map(|volume| volume.host.as_ref()) {
        match hosts.iter_mut().find(|(other, _)| other.path == host.path) {
            Some((_, more)) => *more = more.saturating_add(host.unwritten_bytes),
            None => hosts.push((host, host.unwritten_bytes)),
        }
    }
    if hosts.is_empty() {
        return String::new();
    }
    let row = |(host, more): &(&api::HostRoom, u64)| {
        let note = if *more > host.free_bytes { "too small for all volumes" } else { "" };
        [host.path.clone(), size(host.size_bytes), size(host.free_bytes), size(*more), note.to_owned()]
    };
    table(["MOUNTED AT", "SIZE", "FREE", "VOLUMES MAY TAKE", ""], hosts.iter().map(row))
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
        let state = follower_state(follower);
        let peer = peer_of(follower);
        let heard = follower.heard_ms.map_or("-".to_owned(), ago);
        [follower.volume.clone(), peer, state.to_owned(), lag, heard]
    };
    table(["VOLUME", "PEER", "STATE", "LAG", "HEARD"], followers.iter().map(row))
}

/// How a mirror of a volume here is.
pub fn follower_state(follower: &api::Follower) -> &'static str {
    match (follower.transferring, follower.over_rpo) {
        _ if follower.departed.is_some() => "failed over",
        (true, _) => "transferring",
        (false, true) => "behind",
        (false, false) => "follows",
    }
}

/// The name of the peer that has a mirror; with `-v` that of the mirror itself.
pub fn peer_of(follower: &api::Follower) -> String {
    match &follower.peer {
        Some(peer) if !image_names::is_in_full() => peer.clone(),
        _ => follower.name.clone(),
    }
}

/// Held snapshots, and records of changes, of mirrors that no peer here makes.
fn leftovers(leftovers: &[api::Leftover]) -> String {
    let lines = |leftover: &api::Leftover| {
        let kept = match &leftover.base {
            Some(base) => {
                let (_, name) = base.split_once('@').unwrap_or(("", base));
                let pins = size(leftover.behind_bytes);
                format!("{}, pins at most {pins}", image_names::words(Some(name), None))
            }
            None => "a record of changes".to_owned(),
        };
        let Leftover { volume, name, .. } = leftover;
        format!("{volume}: {kept}\n  discard it: cairn mirror forget {volume} {name}")
    };
    leftovers.iter().map(lines).collect::<Vec<_>>().join("\n")
}

fn exports(exports: &[api::Export]) -> String {
    let row = |export: &api::Export| {
        let mode = match export.read_only {
            _ if export.closed => "closed",
            true => "read-only",
            false => "read-write",
        };
        let clients = [nbd_clients(export), clients(&export.access)];
        let [nbd, iscsi] = clients;
        [
            export.name.clone(),
            size(export.size_bytes),
            mode.into(),
            nbd,
            iscsi,
            export.sessions.len().to_string(),
        ]
    };
    table(["NAME", "SIZE", "MODE", "NBD CLIENTS", "ISCSI CLIENTS", "SESSIONS"], exports.iter().map(row))
}

/// The clients and their exports, with their activity in the last seconds; the latencies are those
/// of the slower kind of request.
fn sessions(exports: &[api::Export]) -> String {
    let row = |export: &api::Export, session: &api::Session| {
        let client = match &session.initiator {
            Some(initiator) => format!("iSCSI {initiator}"),
            None => format!("NBD {}", session.peer),
        };
        let api::Activity { read, write, .. } = session.activity;
        let operations = match read.per_second + write.per_second {
            few if few < 10.0 => format!("{few:.1}"),
            many => format!("{many:.0}"),
        };
        let [read_bytes, written_bytes] = [read, write].map(|rate| size(rate.bytes_per_second));
        let slower = if read.p99_us > write.p99_us { read } else { write };
        let client = shortened(&client, CLIENT_WIDTH);
        [export.name.clone(), client, operations, read_bytes, written_bytes, latencies(&slower)]
    };
    let rows =
        exports.iter().flat_map(|export| export.sessions.iter().map(move |session| row(export, session)));
    table(["EXPORT", "CLIENT", "IOPS", "READ/s", "WRITTEN/s", "p50, p99"], rows)
}

/// At most this many columns: a longer text loses its middle, so that names that differ at the end
/// stay different.
fn shortened(text: &str, columns: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= columns {
        return text.to_owned();
    }
    let (head, tail) = ((columns - 1) / 2, columns / 2);
    let start = letters.iter().take(head);
    start.chain(&['~']).chain(letters.iter().skip(letters.len() - tail)).collect()
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
