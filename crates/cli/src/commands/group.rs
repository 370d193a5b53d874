//! `cairn group`, and `cairn snapshot create --group`.

use cairn_api as api;
use cairn_api::client::Client;

use super::schedule::{keep, keeps};
use super::volume::segment;
use super::{follow, summary};
use crate::arguments::{Group, SetGroup};
use crate::exit::Failure;
use crate::output::{Output, ago, coming, duration, interval, print_line, size, table};

/// Runs a command on groups.
pub fn run(command: Group, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Group::Create { name, volumes, apart } => {
            let group: api::Group = client.post("/v1/groups", &api::CreateGroup { name, volumes, apart })?;
            output.tell(&group, |group| {
                let name = &group.name;
                match group.members.iter().any(|member| member.follows) {
                    true => format!("made group {name}; {}\nnext: cairn group show {name}", shows(group)),
                    false => format!(
                        "made group {name}\nnext: cairn snapshot create --group {name}, or by the clock: cairn group set {name} --every 5m --keep-last 12"
                    ),
                }
            });
        }
        Group::List => {
            let groups: Vec<api::Group> = client.get("/v1/groups")?;
            output.show(&groups, |groups| list(groups));
        }
        Group::Show { name } => {
            let group: api::Group = client.get(&path(&name)?)?;
            output.show(&group, show);
        }
        Group::Set(asked) => set(&asked, client, output)?,
        Group::Together { name } => show_together(&name, true, client, output)?,
        Group::Apart { name } => show_together(&name, false, client, output)?,
        Group::Failover { name, dry_run } => failover(&name, dry_run, client, output)?,
        Group::AllowReverse { name, mirror, length, off } => {
            let for_ms = u64::try_from(length.0.as_millis()).unwrap_or(u64::MAX);
            let request = api::AllowReverse { mirror, for_ms: Some(if off { 0 } else { for_ms }) };
            let allowed: Vec<api::ReverseAllowed> =
                client.post(&format!("{}/allow-reverse", path(&name)?), &request)?;
            output.tell(&allowed, |_| match off {
                false => format!(
                    "one mirror of each volume of {name} may take over within {}\nnext: `cairn group reverse {name}` on their server, which disconnects the clients here",
                    duration(for_ms)
                ),
                true => format!("no mirror of a volume of {name} may take over"),
            });
        }
        Group::Reverse { name, dry_run } => reverse(&name, dry_run, client, output)?,
        Group::Delete { name } => {
            let () = client.delete(&path(&name)?)?;
            output.tell(&serde_json::json!({ "deleted": name }), |_| {
                format!("deleted group {name}; its volumes and their snapshots stay")
            });
        }
    }
    Ok(())
}

/// Makes a snapshot of all volumes of a group.
pub fn snapshot(name: &str, client: &Client, output: Output) -> Result<(), Failure> {
    let made: api::GroupSnapshot = client.post(&format!("{}/snapshot", path(name)?), &())?;
    output.tell(&made, |made| format!("made {} in each volume of {name}", made.name));
    Ok(())
}

fn show_together(name: &str, together: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("{}/together", path(name)?);
    let group: api::Group = client.put(&path, &api::ShowGroup { together })?;
    output.tell(&group, |group| format!("{}: {}", group.name, shows(group)));
    Ok(())
}

/// Sets the schedule of a group; asks for confirmation if the next run would delete something.
fn set(asked: &SetGroup, client: &Client, output: Output) -> Result<(), Failure> {
    let path = path(&asked.name)?;
    let keeps_all = keep(&asked.keep) == api::Keep::default();
    let has_time = asked.every.is_some() || asked.cron.is_some() || asked.zone.is_some();
    if !has_time && keeps_all && !asked.off {
        let group: api::Group = client.get(&path)?;
        output.show(&group, show);
        return Ok(());
    }
    let request = |dry_run| api::SetSchedule {
        every_ms: asked.every.map(|every| u64::try_from(every.0.as_millis()).unwrap_or(u64::MAX)),
        cron: asked.cron.clone(),
        zone: asked.zone.clone(),
        keep: keep(&asked.keep),
        dry_run,
    };
    let would: api::Group = client.put(&path, &request(true))?;
    if asked.dry_run {
        output.show(&would, |would| format!("{}\nnothing was set", show(would)));
        return Ok(());
    }
    if !would.deletes.is_empty() {
        let count = would.deletes.len();
        output.confirm(&format!(
            "by these rules the next run deletes {count} snapshots of {} in each of its volumes",
            asked.name
        ))?;
    }
    let group: api::Group = client.put(&path, &request(false))?;
    output.tell(&group, show);
    Ok(())
}

/// The image that the mirrors of a group show.
fn shows(group: &api::Group) -> String {
    let follows = group.members.iter().all(|member| member.follows || !member.is_there);
    match (&group.shown, group.together, follows) {
        (Some(shown), ..) => format!("its mirrors show {}, made {}", shown.name, ago(shown.created_ms)),
        (None, true, true) => "its mirrors show nothing until all have a snapshot of the group".to_owned(),
        (None, true, false) => "its volumes show one instant when all of them are mirrors".to_owned(),
        (None, false, _) => "each of its mirrors shows its own newest image".to_owned(),
    }
}

fn failover(name: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("{}/failover", path(name)?);
    let before: api::GroupFailover = client.post(&path, &api::FailoverRequest { dry_run: true })?;
    let what = format!(
        "all volumes of {name} are reverted to {}, made {}\n{}",
        before.snapshot,
        before.created_ms.map_or("at an unknown time".to_owned(), ago),
        losses(&before)
    );
    if dry_run {
        output.show(&before, |_| format!("{what}\nnothing was done"));
        return Ok(());
    }
    let volumes: Vec<String> = before.lost.iter().map(|of| of.volume.clone()).collect();
    let access = super::export::as_at_source(client, &volumes)?;
    let access: String = access.iter().map(|line| format!("\naccess: {line}")).collect();
    output.confirm(&what)?;
    let done: api::GroupFailover = client.post(&path, &api::FailoverRequest { dry_run: false })?;
    output.tell(&done, |done| {
        format!(
            "the volumes of {name} take writes now, all as of {}{access}\nnext: connect the clients to their LUNs (`cairn lun list`)",
            done.snapshot
        )
    });
    Ok(())
}

fn reverse(name: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let path = path(name)?;
    let group: api::Group = client.get(&path)?;
    super::mirror::would(client, &api::DryRun::ReverseGroup { group: name.to_owned() })?;
    let lag = |member: &api::GroupMember| {
        let behind = member.lag_ms.map_or("-".to_owned(), duration);
        format!("{} is behind by {behind}", member.volume)
    };
    let behind: Vec<String> = group.members.iter().map(lag).collect();
    let what = format!(
        "the sources of all volumes of {name} become read-only at one instant, their clients are disconnected, and the volumes take writes here after a last update: {}",
        behind.join(", ")
    );
    if dry_run {
        output.show(&group, |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    output.confirm(&what)?;
    let job: api::Job = client.post(&format!("{path}/reverse"), &())?;
    let Some(api::JobOutcome::GroupReverse(done)) = follow(job, client, output)? else { return Ok(()) };
    if output.json {
        print_line(&summary(&done).to_string());
    } else if !output.quiet {
        print_line(&format!("the volumes of {name} take writes now, all as of {}", done.snapshot));
        for mirror in &done.mirrors {
            print_line(&format!("roles: {}", mirror.direction));
        }
        let volumes: Vec<String> = done.mirrors.iter().map(|mirror| mirror.name.clone()).collect();
        let access = super::export::as_at_source(client, &volumes)?;
        access.iter().for_each(|line| print_line(&format!("access: {line}")));
        print_line("next: connect the clients here");
    }
    Ok(())
}

fn losses(failover: &api::GroupFailover) -> String {
    let row = |loss: &api::GroupLoss| {
        [
            loss.volume.clone(),
            size(loss.undone_bytes),
            loss.lost_bytes.map_or("not known".to_owned(), size),
            loss.lost_ms.map_or("-".to_owned(), duration),
        ]
    };
    table(
        ["VOLUME", "BEYOND IT (kept as a snapshot)", "NOT HERE, AS FAR AS KNOWN", "AND ALL OF THE LAST"],
        failover.lost.iter().map(row),
    )
}

fn path(name: &str) -> Result<String, Failure> {
    Ok(format!("/v1/groups/{}", segment(name)?))
}

fn volumes(group: &api::Group) -> String {
    group.members.iter().map(|member| member.volume.as_str()).collect::<Vec<_>>().join(", ")
}

fn when(group: &api::Group) -> String {
    match (&group.cron, group.every_ms) {
        (Some(cron), _) => format!("{cron} {}", group.zone.as_deref().unwrap_or("UTC")),
        (None, Some(every)) => format!("every {}", interval(Some(every))),
        (None, None) => "on request".to_owned(),
    }
}

fn list(groups: &[api::Group]) -> String {
    let row = |group: &api::Group| {
        let common = group.common.as_ref().map_or("none".to_owned(), |common| ago(common.created_ms));
        [group.name.clone(), volumes(group), when(group), common, group.problem.clone().unwrap_or_default()]
    };
    table(["NAME", "VOLUMES", "SNAPSHOTS", "ALL HAVE", ""], groups.iter().map(row))
}

fn show(group: &api::Group) -> String {
    let mut text =
        format!("name      {}\nsnapshots {}, keeps {}", group.name, when(group), keeps(&group.keep));
    if let Some(next) = group.next_ms {
        text += &format!(", next {}", coming(next));
    }
    let follows: Vec<&str> =
        group.members.iter().filter(|member| member.follows).map(|member| member.volume.as_str()).collect();
    if (group.every_ms.is_some() || group.cron.is_some()) && !follows.is_empty() {
        text += &format!(
            "\n          NEVER HERE: {} follow a source, which makes their snapshots",
            follows.join(", ")
        );
    }
    if !group.deletes.is_empty() {
        text += &format!("\n          the next run deletes {}", group.deletes.join(", "));
    }
    text += &match &group.common {
        Some(common) => format!("\nall have  {}, made {}", common.name, ago(common.created_ms)),
        None => "\nall have  no snapshot of the group".to_owned(),
    };
    if group.members.iter().any(|member| member.follows) {
        text += &format!("\nshown     {}", shows(group));
    }
    if let Some(spread) = group.spread_ms {
        text += &format!("\nimages    {} apart", duration(spread));
    }
    if let Some(failover) = &group.failover {
        let left = match &failover.left[..] {
            [] => String::new(),
            left => format!("; not yet: {}", left.join(", ")),
        };
        let what = if failover.reverse { "reversed" } else { "failover" };
        text += &format!("\n{what}  {} to {}{left}", ago(failover.at_ms), failover.snapshot);
    }
    if let Some(problem) = &group.problem {
        text += &format!("\nproblem   {problem}");
    }
    let row = |member: &api::GroupMember| {
        let role = match (member.is_there, member.follows) {
            (false, _) => "not there",
            (true, true) => "mirror",
            (true, false) => "takes writes",
        };
        [
            member.volume.clone(),
            role.to_owned(),
            member.image_ms.map_or("-".to_owned(), ago),
            member.lag_ms.map_or("-".to_owned(), duration),
            member.beyond_bytes.map_or("-".to_owned(), size),
        ]
    };
    // The data that waits to be shown, or is kept for the mirrors that lag behind.
    let head = ["VOLUME", "IS", "NEWEST IMAGE", "LAG", "HELD BACK"];
    text += &format!("\n\n{}", table(head, group.members.iter().map(row)));
    if !group.snapshots.is_empty() {
        let row = |snapshot: &api::GroupSnapshot| {
            let missing = match &snapshot.missing[..] {
                [] => "all".to_owned(),
                missing => format!("all but {}", missing.join(", ")),
            };
            let kept = match &snapshot.kept_for[..] {
                [] => String::new(),
                peers => {
                    let short = |peer: &String| peer.get(..12).unwrap_or(peer).to_owned();
                    let peers: Vec<String> = peers.iter().map(short).collect();
                    format!("stays for the mirrors at {}", peers.join(", "))
                }
            };
            [snapshot.name.clone(), ago(snapshot.created_ms), missing, kept]
        };
        text += &format!("\n\n{}", table(["SNAPSHOT", "MADE", "IN", ""], group.snapshots.iter().map(row)));
    }
    text
}
