//! `cairn mirror`.

use std::path::Path;
use std::time::Duration;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};
use cairn_base::Interval;

use super::export::as_at_source;
use super::volume::{absolute, segment};
use super::{follow, summary};
use crate::arguments::{Compress, Decision, Link, Mirror, Setting};
use crate::exit::{Failure, NOT_KNOWN};
use crate::image_names;
use crate::output::{
    Output, ago, coming, duration, interval, length, name, print_besides, print_line, size, table,
};
use crate::secrets;

/// For errors about the token of `cairn peer invite`.
const INVITATION: &str = "token of `cairn peer invite`";

pub mod bucket;
mod create;

/// Runs a command on mirrors.
pub fn run(command: Mirror, client: &Client, output: Output) -> Result<(), Failure> {
    let command = match bucket::run(command, client, output)? {
        Some(command) => command,
        None => return Ok(()),
    };
    match command {
        // Those are of mirrors in buckets.
        Mirror::Images { .. } | Mirror::Restore(_) => {}
        Mirror::Create {
            volume,
            token,
            bucket,
            seed,
            every,
            continuous,
            when,
            rpo,
            no_hold,
            stall,
            name,
            device,
            log_device,
            beneath,
            link,
        } => {
            let token = secrets::read(token.as_deref(), INVITATION)?;
            let dry_run = bucket.dry_run;
            let request = api::CreateMirror {
                volume,
                name: name.or_else(|| seed.from.clone()),
                token,
                every_ms: every.map(ms),
                cron: when.cron,
                continuous,
                zone: when.zone,
                lock_ms: when.lock.map(setting),
                lock_key: when.lock_key.as_deref().map(secret).transpose()?,
                rpo_ms: rpo.map(ms),
                no_hold,
                stall_ms: stall.map(ms),
                devices: absolute(&device)?,
                log_device: absolute(log_device.as_slice())?.pop(),
                history: super::device::beneath(&beneath)?,
                link: wish(link),
                seed: create::seed(*seed)?,
            };
            create::run(&request, dry_run, client, output)?;
        }
        Mirror::List | Mirror::Status { name: None } => {
            let mirrors: Vec<api::Mirror> = client.get("/v1/mirrors")?;
            let in_buckets = bucket::all(client)?;
            output.show(&bucket::Both { mirrors, in_buckets }, |both| {
                match (&both.mirrors[..], &both.in_buckets[..]) {
                    (mirrors, []) => list(mirrors),
                    ([], in_buckets) => bucket::list(in_buckets),
                    (mirrors, in_buckets) => format!("{}\n\n{}", list(mirrors), bucket::list(in_buckets)),
                }
            });
        }
        Mirror::Show { name } | Mirror::Status { name: Some(name) } => {
            let mirror: api::Mirror = client.get(&path(&name)?)?;
            let access = as_at_source(client, &[name])?;
            let access: String = access.iter().map(|line| format!("\naccess    {line}")).collect();
            output.show(&mirror, |mirror| show(mirror) + &access);
        }
        Mirror::Update { name, dry_run: true, .. } => {
            let price: api::UpdatePrice = client.get(&format!("{}/update", path(&name)?))?;
            output.show(&price, priced);
        }
        Mirror::Update { name, compare, within, dry_run: false } => {
            let request = api::UpdateRequest { compare, within_ms: within.map(ms) };
            let job: api::Job = client.post(&format!("{}/update", path(&name)?), &request)?;
            transferred(job, client, output)?;
        }
        Mirror::Check { name, rpo } => return check(name.as_deref(), rpo.map(ms), client, output),
        Mirror::Set { name, every, continuous, when, rpo, stall, hold, no_hold, link, keep } => {
            bucket::refuse_keep(&name, &keep)?;
            let times = every.is_some() || when.cron.is_some();
            let request = api::SetMirror {
                every_ms: every.map(setting),
                cron: when.cron,
                continuous: (continuous || times).then_some(continuous),
                zone: when.zone,
                lock_ms: when.lock.map(setting),
                lock_key: when.lock_key.as_deref().map(secret).transpose()?,
                rpo_ms: rpo.map(setting),
                hold: (hold || no_hold).then_some(hold),
                stall_ms: stall.map(setting),
                paused: None,
                link: wish(link),
            };
            let mirror: api::Mirror = client.patch(&path(&name)?, &request)?;
            output.tell(&mirror, show);
        }
        Mirror::Repoint { name, token, volume } => {
            let token = secrets::read(token.as_deref(), INVITATION)?;
            let request = api::RepointMirror { token, volume };
            let job: api::Job = client.post(&format!("{}/repoint", path(&name)?), &request)?;
            roles_changed(job, client, output)?;
        }
        Mirror::Rewind { name, at, dry_run } => {
            super::device::go_back(&name, &at, dry_run, true, client, output)?;
        }
        Mirror::Pause { name } => pause(&name, true, client, output)?,
        Mirror::Resume { name, .. } => pause(&name, false, client, output)?,
        Mirror::Abort { name } => {
            let aborted: api::Aborted = client.post(&format!("{}/abort", path(&name)?), &())?;
            output.tell(&aborted, |aborted| match aborted.was_running {
                true => format!(
                    "aborted the update of {}; the next one reuses {} that it transferred",
                    aborted.name,
                    size(aborted.kept_bytes)
                ),
                false => format!("no update of {} was running", aborted.name),
            });
        }
        Mirror::Verify { name, scrub, rate } => {
            let request = api::VerifyRequest { scrub, rate_bytes: rate.map(|rate| rate.0) };
            let job: api::Job = client.post(&format!("{}/verify", path(&name)?), &request)?;
            verified(job, client, output)?;
        }
        Mirror::AllowReverse { volume, mirror, length, off } => {
            let for_ms = if off { 0 } else { ms(length) };
            let asked_name = mirror.clone();
            let mirror = mirror.map(|mirror| at_source(&volume, mirror, client)).transpose()?;
            let request = api::AllowReverse { mirror, for_ms: Some(for_ms) };
            let path = format!("/v1/volumes/{}/allow-reverse", segment(&volume)?);
            let allowed: api::ReverseAllowed = client.post(&path, &request)?;
            output.tell(&allowed, |allowed| match &allowed.mirror {
                Some(mirror) => format!(
                    "the mirror {} of {volume} may become the source {}\nnext: on its server, `cairn mirror reverse` (after a failover here, `cairn mirror failback`), which disconnects the clients here",
                    asked_name.unwrap_or_else(|| of_peer(&volume, mirror, client)),
                    within(for_ms, allowed.until_ms)
                ),
                None => format!("no mirror of {volume} may become the source"),
            });
        }
        Mirror::Unlock { name, lock_key, length, off } => {
            let for_ms = Some(if off { 0 } else { ms(length) });
            let request = api::UnlockMirror { lock_key: secret(&lock_key)?, for_ms };
            let mirror: api::Mirror = client.post(&format!("{}/unlock", path(&name)?), &request)?;
            output.tell(&mirror, |mirror| match mirror.unlocked_ms {
                Some(left) => format!("the locks of {name} are lifted for {}", duration(left)),
                None => format!("the locks of {name} are in force"),
            });
        }
        Mirror::Forget { volume, name, dry_run } => forget(&volume, &name, dry_run, client, output)?,
        Mirror::Drill(asked) => super::drill::run(&asked, client, output)?,
        Mirror::Failover { name, dry_run } => failover(&name, dry_run, client, output)?,
        Mirror::Resync { name, decision } => resync(&name, decision, "resync", client, output)?,
        Mirror::Failback { name, decision } => resync(&name, decision, "failback", client, output)?,
        Mirror::Reverse { name, dry_run } => reverse(&name, dry_run, client, output)?,
        Mirror::Delete { name, dry_run, .. } => {
            let mirror: api::Mirror = client.get(&path(&name)?)?;
            would(client, &api::DryRun::DeleteMirror { mirror: name.clone() })?;
            let what =
                format!("this ends the mirror of {} and deletes volume {name} here", mirror.source_volume);
            if dry_run {
                output.show(&mirror, |_| format!("{what}; nothing was done"));
                return Ok(());
            }
            output.confirm(&what)?;
            let deleted: api::DeletedMirror = client.delete(&path(&name)?)?;
            let forget = format!("cairn mirror forget {} {}", mirror.source_volume, mirror.source_name);
            let next = Some(&forget).filter(|_| !deleted.told);
            let told = serde_json::json!({ "deleted": name, "told": deleted.told, "next_at_source": next });
            output.tell(&told, |_| match deleted.untold {
                None => format!("deleted {name}; its source discarded the state for it"),
                Some(untold) => format!(
                    "deleted {name}; its source was not notified: {}\nnext: on the source ({}), run `{forget}`, or `cairn peer revoke` of this server; until then, a base snapshot pins space there",
                    untold.message, mirror.source_address
                ),
            });
        }
    }
    Ok(())
}

/// Fails as the command itself would that is not run, or that is about to be asked about.
pub fn would(client: &Client, asked: &api::DryRun) -> Result<(), Failure> {
    Ok(client.post("/v1/dry-run", asked)?)
}

/// The secret in a file, without the end of its line.
fn secret(file: &Path) -> Result<String, Failure> {
    let read = std::fs::read_to_string(file);
    let text = read.map_err(|error| {
        let message = format!("cannot read the lock key in {}: {error}", file.display());
        Failure::new(
            ErrorKind::Usage,
            message,
            "name a file of text, as `head -c 32 /dev/urandom | base64` makes it",
        )
    })?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// The report on a new lock.
fn tell_lock(mirror: &api::Mirror) {
    if mirror.lock_ms.is_some()
        && mirror.locked == 0
        && let Some(next) = mirror.remedy.as_ref().filter(|_| mirror.check > 0)
    {
        print_line(&format!("warning: {}\nnext: {next}", mirror.reason));
    }
}

fn wish(link: Link) -> api::LinkWish {
    let compress = |when| match when {
        Compress::Auto => api::Compress::Auto,
        Compress::Always => api::Compress::Always,
        Compress::Never => api::Compress::Never,
    };
    let Link { limit, connections, compress: when, spread, no_spread } = link;
    let spread = if no_spread { Some(false) } else { spread };
    api::LinkWish { limit, connections, compress: when.map(compress), spread }
}

fn transferred(job: api::Job, client: &Client, output: Output) -> Result<(), Failure> {
    let Some(api::JobOutcome::Mirror(mirror)) = follow(job, client, output)? else { return Ok(()) };
    if output.json {
        print_line(&summary(&mirror).to_string());
    } else if !output.quiet {
        let last = mirror.last.clone().unwrap_or_default();
        if last.up_to_date {
            print_line(&format!("{} is up to date: nothing had changed, nothing was sent", mirror.name));
            tell_lock(&mirror);
            return Ok(());
        }
        if last.kept_bytes > 0 {
            print_line(&format!("{} were here already and were not sent again", size(last.kept_bytes)));
        }
        print_line(&format!(
            "{} is at {}: sent {} in {} (a full copy is {})",
            mirror.name,
            image_names::words_and_age(mirror.image.as_deref(), mirror.image_ms, mirror.image_age_ms),
            size(last.sent_bytes),
            duration(last.duration_ms),
            size(last.full_bytes),
        ));
        tell_lock(&mirror);
    }
    Ok(())
}

/// The cost of an update.
fn priced(price: &api::UpdatePrice) -> String {
    let name = &price.name;
    let full = size(price.full_bytes);
    let mut text = match (price.base_known, price.changed_bytes) {
        (false, _) => format!(
            "the source does not know what has changed since the image of {name}: an update goes by an older snapshot that both have, says the price of comparing, or is refused as the source was set back to before that image (a full copy is {full})"
        ),
        (true, 0) => format!("nothing has changed since the image of {name} (a full copy is {full})"),
        (true, changed) => format!(
            "{} ({changed} bytes) changed at the source since the image of {name}, the first of it {} ago (a full copy is {full})",
            size(changed),
            duration(price.lag_ms)
        ),
    };
    if price.kept_bytes > 0 {
        text += &format!("; {} of an interrupted update are here already", size(price.kept_bytes));
    }
    text + "; nothing was done"
}

fn verified(job: api::Job, client: &Client, output: Output) -> Result<(), Failure> {
    let Some(api::JobOutcome::Verify(verified)) = follow(job, client, output)? else { return Ok(()) };
    if output.json {
        print_besides(&summary(&verified).to_string());
    } else {
        verified.differences.iter().for_each(|difference| print_besides(&difference.message));
        if !output.quiet {
            print_besides(&format!("{}: {}", verified.name, comparison(&verified)));
        }
    }
    outcome_of(&verified)
}

/// The outcome of a comparison: a failure if data is still wrong afterwards.
fn outcome_of(verified: &api::MirrorVerify) -> Result<(), Failure> {
    if verified.contradictions > 0 {
        return Err(Failure::new(
            ErrorKind::Damaged,
            format!(
                "{}: {} block(s) are whole on both sides and not the same: the mirror is not to be trusted",
                verified.name, verified.contradictions
            ),
            "do not fail over to it; keep the logs of both servers, run `cairn mirror delete` and create it again",
        ));
    }
    let mended = verified.mended_here + verified.mended_there;
    let left = verified.left_here + verified.left_there;
    if verified.differences_total <= mended && left == 0 {
        return Ok(());
    }
    Err(Failure::new(
        ErrorKind::Damaged,
        format!(
            "{}: {} difference(s), {mended} block(s) repaired, {left} still damaged",
            verified.name, verified.differences_total
        ),
        "run it again: damage below a repaired node is found then; remaining damage is in both copies, see `cairn status` on both servers",
    ))
}

/// The result and the cost of a comparison.
fn comparison(verified: &api::MirrorVerify) -> String {
    let compared = match verified.snapshots {
        0 => "the source has none of the snapshots here; nothing was compared".to_owned(),
        snapshots => format!("{} in {snapshots} snapshot(s) compared", size(verified.compared_bytes)),
    };
    let alone = match verified.only_here {
        0 => String::new(),
        only => format!(", {only} snapshot(s) that only this side has read here alone"),
    };
    format!(
        "{compared}{alone}, {} difference(s), {} block(s) repaired here{} and {} at the source; read {} here and {} there, {} over the network, in {}",
        verified.differences_total,
        verified.mended_here,
        by_its_word(verified.mended_locked),
        verified.mended_there,
        size(verified.read_bytes),
        size(verified.read_there_bytes),
        size(verified.network_bytes),
        duration(verified.duration_ms),
    )
}

/// The report on blocks that were mended while a lock was in force.
fn by_its_word(blocks: u64) -> String {
    match blocks {
        0 => String::new(),
        blocks => format!(" ({blocks} under the lock, with bytes that only the source vouches for)"),
    }
}

fn ms(interval: Interval) -> u64 {
    interval.0.as_millis().try_into().unwrap_or(u64::MAX)
}

/// 0 for `off`.
fn setting(setting: Setting) -> u64 {
    setting.0.map_or(0, ms)
}

fn pause(name: &str, paused: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let request = api::SetMirror { paused: Some(paused), ..api::SetMirror::default() };
    let mirror: api::Mirror = client.patch(&path(name)?, &request)?;
    output.tell(&mirror, |mirror| match paused {
        true => format!("{name} is paused: no update runs or begins"),
        false => format!("{name} resumed: {}", mirror.reason),
    });
    Ok(())
}

/// The time for which monitoring waits for a server that hangs. It is shorter than the usual time
/// after which monitoring ends a check without a report.
const CHECK_PATIENCE: Duration = Duration::from_secs(10);

/// One line and an exit code for monitoring.
fn check(name: Option<&str>, rpo_ms: Option<u64>, client: &Client, output: Output) -> Result<(), Failure> {
    client.hurry(CHECK_PATIENCE);
    let both = match bucket::both(name, client) {
        Ok(both) => both,
        Err(failure) => return Err(unknown(&failure.body.message, output)),
    };
    let mut judged: Vec<(u8, String)> = both.mirrors.iter().map(|mirror| judge(mirror, rpo_ms)).collect();
    judged.extend(both.in_buckets.iter().map(|mirror| bucket::judge(mirror, rpo_ms)));
    let mirrors = both;
    let Some(worst) = judged.iter().map(|(level, _)| *level).max() else {
        return Err(unknown("this server has no mirror", output));
    };
    let word = ["OK", "WARNING", "CRITICAL"][usize::from(worst.min(2))];
    let lines: Vec<String> = judged.into_iter().map(|(_, line)| line).collect();
    let told = serde_json::json!({ "check": worst, "reason": lines.join("; "), "mirrors": mirrors });
    output.tell_besides(&told, |_| format!("{word} - {}", lines.join("; ")));
    if worst == 0 { Ok(()) } else { Err(Failure::silent(worst)) }
}

/// The failure for monitoring if the state cannot be determined: the server does not answer, a
/// token is missing, an option is wrong. The exit codes of other commands do not fit, because
/// monitoring would read some of them as warnings and would not know others.
pub fn unknown(reason: &str, output: Output) -> Failure {
    let told = serde_json::json!({ "check": NOT_KNOWN, "reason": reason, "mirrors": [] });
    output.tell_besides(&told, |_| format!("UNKNOWN - {reason}"));
    Failure::silent(NOT_KNOWN)
}

/// How bad it is, and a line about it; by another lag than the mirror's own where one is given.
fn judge(mirror: &api::Mirror, rpo_ms: Option<u64>) -> (u8, String) {
    use api::MirrorState as S;
    let late = rpo_ms.map(|rpo| mirror.lag_ms.is_some_and(|lag| lag > rpo));
    // A mirror that must not be trusted is wrong, however small its lag.
    let is_wrong = mirror.check == 2 && mirror.verified.as_ref().is_some_and(|last| last.contradictions > 0);
    let level = match (late, mirror.state) {
        _ if is_wrong => mirror.check,
        (Some(true), state) if state != S::FailedOver => 2,
        // Past its own lag and within the given one.
        (Some(false), S::Behind) => 0,
        (Some(false), S::Transferring | S::Continuous | S::CatchingUp) if mirror.over_rpo => 0,
        (Some(false), S::Paused) if mirror.over_rpo => 1,
        // Without an image it would not survive any disaster.
        (Some(false), S::Failing) if mirror.over_rpo && mirror.image.is_some() => 1,
        _ => mirror.check,
    };
    let line = match (rpo_ms.filter(|_| late == Some(true) && level == 2 && !is_wrong), mirror.lag_ms) {
        (Some(rpo), Some(lag)) => {
            let waiting =
                mirror.lag_bytes.map_or(String::new(), |bytes| format!(" ({} waiting)", size(bytes)));
            format!("{}: lag {} is over the RPO of {}{waiting}", mirror.name, duration(lag), duration(rpo))
        }
        _ => format!("{} {}, lag {}: {}", mirror.name, state(mirror.state), lag(mirror), mirror.reason),
    };
    // A reason may contain text of the other side, and stays in its line.
    (level, name(line.as_bytes()))
}

/// `within 15 min (until 15:23:10)`.
fn within(for_ms: u64, until_ms: Option<u64>) -> String {
    let within = format!("within {}", length(for_ms));
    until_ms.map_or(within.clone(), |until| format!("{within} (until {})", image_names::clock(until)))
}

/// The name by which a volume knows a mirror, for a mirror named after its peer.
fn at_source(volume: &str, given: String, client: &Client) -> Result<String, Failure> {
    let status: api::Status = client.get("/v1/status")?;
    let own = |follower: &&api::Follower| follower.volume == volume;
    let mut of_peer =
        status.followers.iter().filter(own).filter(|follower| follower.peer.as_deref() == Some(&*given));
    Ok(match (of_peer.next(), of_peer.next()) {
        (Some(only), None) => only.name.clone(),
        _ => given,
    })
}

/// The name of the peer that has a mirror of a volume, if it has only that one.
fn of_peer(volume: &str, mirror: &str, client: &Client) -> String {
    let status: api::Status = match client.get("/v1/status") {
        Ok(status) => status,
        Err(_) => return mirror.to_owned(),
    };
    let mut own = status.followers.into_iter().filter(|follower| follower.volume == volume);
    let peer = own.find(|follower| follower.name == mirror).and_then(|follower| follower.peer);
    peer.unwrap_or_else(|| mirror.to_owned())
}

fn forget(volume: &str, given: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let name = &*at_source(volume, given.to_owned(), client)?;
    let status: api::Status = client.get("/v1/status")?;
    let follows = status.followers.iter().any(|one| one.volume == volume && one.name == name);
    let is_there = follows || status.leftovers.iter().any(|one| one.volume == volume && one.name == name);
    if !is_there && dry_run {
        return Err(Failure::new(
            ErrorKind::NotFound,
            format!("{volume} keeps nothing for a mirror `{name}`"),
            "`cairn status --json` names those that there are, among followers and leftovers",
        ));
    }
    let what = format!(
        "this discards the state of {volume} for the mirror {given}: its next update, or a failback, must then compare checksums"
    );
    if dry_run {
        output.tell(&serde_json::json!({ "would_forget": name }), |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    // The server reports the reason, so there is no question to ask.
    if is_there {
        output.confirm(&what)?;
    }
    let () = client.delete(&format!("/v1/volumes/{}/followers/{}", segment(volume)?, segment(name)?))?;
    output.tell(&serde_json::json!({ "forgotten": name }), |_| format!("forgot {given}"));
    Ok(())
}

fn failover(name: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("{}/failover", path(name)?);
    let before: api::Failover = client.post(&path, &api::FailoverRequest { dry_run: true })?;
    let what = format!(
        "{name} is at {}; lost: {}",
        image_names::words(before.image.as_deref(), before.image_ms),
        loss(&before)
    );
    let access = as_at_source(client, std::slice::from_ref(&name.to_owned()))?;
    let access: String = access.iter().map(|line| format!("\naccess: {line}")).collect();
    if dry_run {
        output.show(&before, |_| format!("{what}; nothing was done{access}"));
        return Ok(());
    }
    output.confirm(&what)?;
    let outcome: api::Failover = client.post(&path, &api::FailoverRequest { dry_run: false })?;
    output.tell(&outcome, |outcome| {
        format!(
            "{name} takes writes now, and follows no source; the source is notified when it answers\n\
             lost: {}\n\
             roles: {}{access}\n\
             next: connect the clients to its LUNs (`cairn lun list {name}`); when the old source is back, `cairn mirror resync` there makes it follow, or `cairn mirror allow-reverse {name}` here and `cairn mirror failback` there give it the role",
            loss(outcome),
            outcome.direction,
        )
    });
    Ok(())
}

fn resync(
    name: &str,
    decision: Decision,
    kind: &str,
    client: &Client,
    output: Output,
) -> Result<(), Failure> {
    let path = path(name)?;
    let Decision { spill, discard_divergent, compare, from, mirror, dry_run } = decision;
    let mirror = mirror.map(|mirror| at_source(name, mirror, client)).transpose()?;
    if dry_run || discard_divergent {
        let mirror_name = name.to_owned();
        would(
            client,
            &match kind {
                "failback" => api::DryRun::Failback { mirror: mirror_name },
                _ => api::DryRun::Resync { mirror: mirror_name },
            },
        )?;
        let request = api::DivergenceRequest { from: from.clone(), mirror: mirror.clone() };
        let found: api::Divergence = client.post(&format!("{path}/divergence"), &request)?;
        if dry_run {
            output.show(&found, |found| format!("{}; nothing was done", divergence(found)));
            return Ok(());
        }
        if found.diverged {
            output.confirm(&divergence(&found))?;
        }
    }
    let spill = absolute(&Vec::from_iter(spill))?.into_iter().next();
    let request = api::ResyncRequest { from, mirror, spill, discard: discard_divergent, compare };
    let job: api::Job = client.post(&format!("{path}/{kind}"), &request)?;
    roles_changed(job, client, output)
}

/// The data that a resync gives up.
fn divergence(found: &api::Divergence) -> String {
    let name = &found.name;
    let common = found.common.as_deref().map_or("nothing is common".to_owned(), |common| {
        let generation = found.common_generation.unwrap_or_default();
        let common = image_names::words(Some(common), found.common_ms);
        format!("both sides have {common}, generation {generation}")
    });
    let lost = match found.diverged {
        false => format!("{name} has nothing that the other side lacks"),
        true => {
            let snapshots = match &found.snapshots[..] {
                [] => String::new(),
                names => format!(", and the snapshots {}", names.join(", ")),
            };
            format!(
                "following {} at {} discards {} bytes ({} blocks) that were written to {name} since{snapshots}",
                found.volume, found.address, found.lost_bytes, found.lost_blocks
            )
        }
    };
    let other = match (found.other_takes_writes, found.other_is_mirror) {
        (true, _) => "",
        (false, true) => "; the other side is a mirror itself, and its image is followed",
        (false, false) => "; the other side takes no writes, and can't be followed",
    };
    format!("{common}; {lost}{other}")
}

fn reverse(name: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let path = path(name)?;
    let mirror: api::Mirror = client.get(&path)?;
    would(client, &api::DryRun::ReverseMirror { mirror: name.to_owned() })?;
    let what = format!(
        "{} at {} becomes read-only, its clients are disconnected, and {name} takes writes here after a last update of {}",
        mirror.source_volume,
        mirror.source_address,
        lag(&mirror),
    );
    if dry_run {
        output.show(&mirror, |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    output.confirm(&what)?;
    let job: api::Job = client.post(&format!("{path}/reverse"), &())?;
    roles_changed(job, client, output)
}

/// Waits for the job, and reports the state of both sides.
fn roles_changed(job: api::Job, client: &Client, output: Output) -> Result<(), Failure> {
    // A paused mirror only follows another server from now on.
    let brings = job.kind != "mirror repoint";
    let Some(api::JobOutcome::Mirror(mirror)) = follow(job, client, output)? else { return Ok(()) };
    if output.json {
        print_line(&summary(&mirror).to_string());
    } else if !output.quiet {
        let last = mirror.last.clone().unwrap_or_default();
        if brings {
            print_line(&format!(
                "sent {}, changed {} (a full copy is {})",
                size(last.sent_bytes),
                size(last.changed_bytes),
                size(last.full_bytes)
            ));
        }
        if let Some(spill) = &mirror.spill {
            print_line(&format!("the changes of this side are saved in {spill}"));
        }
        print_line(&format!("roles: {}", mirror.direction));
        if mirror.role == api::MirrorRole::Source {
            let access = as_at_source(client, std::slice::from_ref(&mirror.name))?;
            access.iter().for_each(|line| print_line(&format!("access: {line}")));
        }
        let resume = format!("it is paused and was not updated: `cairn mirror resume {}`", mirror.name);
        let next = match mirror.role {
            api::MirrorRole::Source => "connect the clients here",
            api::MirrorRole::Destination if !brings => &resume,
            api::MirrorRole::Destination
                if mirror.every_ms.is_none() && mirror.cron.is_none() && !mirror.continuous =>
            {
                "it is updated on request only; give it a schedule with `cairn mirror set NAME --every 15m`"
            }
            api::MirrorRole::Destination => {
                "clients stay on the other side; to change the roles: `cairn mirror reverse` here"
            }
        };
        print_line(&format!("next: {next}"));
    }
    Ok(())
}

/// The data that a failover loses, known and unknown.
fn loss(outcome: &api::Failover) -> String {
    let within = outcome.lost_ms.map_or("(unknown time)".to_owned(), duration);
    match (outcome.lost_bytes, outcome.silent_ms) {
        (Some(bytes), Some(silent)) => format!(
            "at most the writes of the last {within}; {} were waiting {} ago",
            size(bytes),
            duration(silent)
        ),
        _ => format!("at most the writes of the last {within}"),
    }
}

fn path(name: &str) -> Result<String, Failure> {
    Ok(format!("/v1/mirrors/{}", segment(name)?))
}

/// The table of mirrors.
pub fn list(mirrors: &[api::Mirror]) -> String {
    let row = |mirror: &api::Mirror| {
        [
            mirror.name.clone(),
            state(mirror.state).to_owned(),
            other_side(mirror),
            image_names::cell(mirror.image.as_deref(), mirror.image_ms),
            mirror.lag_ms.map_or("-".to_owned(), |lag| if lag == 0 { "0".to_owned() } else { duration(lag) }),
            rhythm(mirror),
        ]
    };
    table(["NAME", "STATE", "OTHER SIDE", "IMAGE", "LAG", "EVERY"], mirrors.iter().map(row))
}

/// The volume on the other side, and its host.
fn other_side(mirror: &api::Mirror) -> String {
    let host = mirror.source_address.rsplit_once(':').map_or("", |(host, _)| host);
    match host {
        "" => mirror.source_volume.clone(),
        host => format!("{} at {host}", mirror.source_volume),
    }
}

/// When updates begin, in a cell of a table.
fn rhythm(mirror: &api::Mirror) -> String {
    match &mirror.cron {
        Some(_) => "cron".to_owned(),
        None if mirror.continuous => "continuous".to_owned(),
        None => interval(mirror.every_ms),
    }
}

fn every(mirror: &api::Mirror) -> String {
    match &mirror.cron {
        Some(cron) => format!("{cron} {}", mirror.zone.as_deref().unwrap_or("UTC")),
        None if mirror.continuous => "continuous".to_owned(),
        None => match mirror.within_ms {
            None => interval(mirror.every_ms),
            Some(within) => format!("{}, spread over up to {}", interval(mirror.every_ms), duration(within)),
        },
    }
}

fn lock(mirror: &api::Mirror) -> String {
    let length = mirror.lock_ms.map_or("off".to_owned(), duration);
    let locked = match (mirror.locked, mirror.locked_until_ms) {
        (0, _) => "no snapshot is locked".to_owned(),
        (count, None) => format!("{count} snapshot(s) are locked"),
        (count, Some(until)) => {
            format!("{count} snapshot(s) are locked, the last one ends {}", coming(until))
        }
    };
    let key = if mirror.lock_key { ", a lock key is set" } else { "" };
    let lifted = mirror.unlocked_ms.map_or(String::new(), |left| format!("; lifted for {}", duration(left)));
    format!("{length}: {locked}{key}{lifted}")
}

fn link(mirror: &api::Mirror) -> String {
    let limit = match (&mirror.limit, mirror.limit_now_bytes) {
        (None, _) => "no limit".to_owned(),
        (Some(limit), Some(now)) => format!("limit {limit} (now {}/s)", size(now)),
        (Some(limit), None) => format!("limit {limit} (none now)"),
    };
    let packed = match mirror.compress {
        api::Compress::Auto => "packed while that is faster",
        api::Compress::Always => "packed",
        api::Compress::Never => "not packed",
    };
    format!("{} connection(s), {packed}, {limit}", mirror.connections)
}

/// The lag, as far as it is known: time and bytes.
fn lag(mirror: &api::Mirror) -> String {
    match (mirror.lag_ms, mirror.lag_bytes) {
        (Some(0), _) => "0".to_owned(),
        (Some(ms), Some(bytes)) => format!("{}, {}", duration(ms), size(bytes)),
        _ => "-".to_owned(),
    }
}

fn show(mirror: &api::Mirror) -> String {
    let mut text = format!("name      {}\nstate     {}: {}", mirror.name, state(mirror.state), mirror.reason);
    if let Some(remedy) = &mirror.remedy {
        text += &format!("\n  next: {remedy}");
    }
    let rpo = match mirror.rpo_ms {
        None => String::new(),
        Some(rpo) if mirror.over_rpo => format!(", over the RPO of {}", duration(rpo)),
        Some(rpo) => format!(", within the RPO of {}", duration(rpo)),
    };
    let base = if mirror.hold { "held at the source" } else { "not held: the source records changes" };
    text += &format!("\nroles     {}", mirror.direction);
    if let Some(since) = mirror.role_since_ms {
        text += &format!(", since {}", ago(since));
    }
    if let Some(spill) = &mirror.spill {
        text += &format!("\nspill     {spill}");
    }
    text += &format!(
        "\nsource    {} at {}\nimage     {}\nlag       {}{rpo}\nevery     {}\nbase      {base}\nstall     {}\nupdates   {}\nsent      {}",
        mirror.source_volume,
        mirror.source_address,
        image_names::words_and_age(mirror.image.as_deref(), mirror.image_ms, mirror.image_age_ms)
            .trim_start_matches("image "),
        lag(mirror),
        every(mirror),
        duration(mirror.stall_ms),
        mirror.updates,
        size(mirror.sent_bytes),
    );
    text += &format!("\nlink      {}", link(mirror));
    if mirror.lock_ms.is_some() || mirror.locked > 0 {
        text += &format!("\nlock      {}", lock(mirror));
    }
    if let Some(session) = &mirror.session {
        text += &format!(
            "\nsession   since {}: {} step(s), {} of them read again at the source",
            ago(session.since_ms),
            session.steps,
            session.read_steps
        );
    }
    if let Some(next) = mirror.next_ms {
        text += &format!("\nnext      {}", coming(next));
    }
    if let Some(last) = &mirror.last {
        text += &format!(
            "\nlast      {} in {}: changed {}, sent {}, a full copy is {}",
            ago(last.started_ms),
            duration(last.duration_ms),
            size(last.changed_bytes),
            size(last.sent_bytes),
            size(last.full_bytes),
        );
        if last.kept_bytes > 0 {
            text += &format!(
                "\nresumed   {} were here already; {} had been sent for nothing",
                size(last.kept_bytes),
                size(last.wasted_bytes)
            );
        }
    }
    text += &match &mirror.verified {
        None => "\nverified  never".to_owned(),
        Some(verified) => {
            let depth = if verified.scrub { "data read as well" } else { "structures" };
            format!("\nverified  {} ({depth}): {}", ago(verified.started_ms), comparison(verified))
        }
    };
    if mirror.mended_here + mirror.mended_there > 0 {
        let (here, there) = (mirror.mended_here, mirror.mended_there);
        let word = by_its_word(mirror.mended_locked);
        text += &format!("\nmended    {here} block(s) here from the source{word}, {there} there from here");
    }
    if let Some(problem) = &mirror.problem
        && problem.message != mirror.reason
    {
        text += &format!("\nproblem   {}\n  next: {}", problem.message, problem.next);
    }
    text
}

fn state(state: api::MirrorState) -> &'static str {
    use api::MirrorState as S;
    match state {
        S::Mirrored => "mirrored",
        S::Silent => "silent",
        S::Behind => "behind",
        S::Baseline => "baseline",
        S::Failing => "failing",
        S::Diverged => "diverged",
        S::Contradicted => "contradicted",
        S::Transferring => "transferring",
        S::Continuous => "continuous",
        S::CatchingUp => "catching up",
        S::TransferringBaseline => "transferring baseline",
        S::Stalled => "stalled",
        S::Paused => "paused",
        S::FailedOver => "failed over",
        S::Source => "source",
        S::HandedOver => "handed over",
        S::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests;
