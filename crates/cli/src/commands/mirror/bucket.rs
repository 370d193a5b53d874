//! `cairn mirror` for mirrors in buckets, which are named `BUCKET:[PATH/]VOLUME`.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};
use serde::Serialize;

use crate::arguments::{IntoBucket, KeepImages, Link, Mirror, MirrorWhen, RestoreMirror};
use crate::commands::export::open_to_all;
use crate::commands::volume::{absolute, segment};
use crate::commands::{follow, summary};
use crate::exit::Failure;
use crate::output::{Output, ago, coming, duration, interval, name, print_besides, print_line, size, table};

/// Mirrors of either kind, as one list.
pub(super) struct Both {
    pub(super) mirrors: Vec<api::Mirror>,
    pub(super) in_buckets: Vec<api::BucketMirror>,
}

impl Serialize for Both {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(untagged)]
        enum One<'a> {
            Mirror(&'a api::Mirror),
            InBucket(&'a api::BucketMirror),
        }
        let mirrors = self.mirrors.iter().map(One::Mirror);
        serializer.collect_seq(mirrors.chain(self.in_buckets.iter().map(One::InBucket)))
    }
}

/// Runs a command on a mirror in a bucket; returns one that is of another mirror.
pub(super) fn run(command: Mirror, client: &Client, output: Output) -> Result<Option<Mirror>, Failure> {
    let is_one = |name: &str| name.contains(':');
    match command {
        Mirror::Create { volume, bucket, every, continuous, when, rpo, link, beneath, .. }
            if bucket.to.is_some() =>
        {
            if beneath.history.is_some() {
                return Err(usage("a mirror in a bucket has no history", "leave out --history"));
            }
            let times = (every.map(super::ms), continuous, rpo.map(super::ms));
            create(volume, &bucket, times, when, link, client, output)?;
        }
        Mirror::Show { name } | Mirror::Status { name: Some(name) } if is_one(&name) => {
            output.show(&find(&name, client)?, show);
        }
        Mirror::Update { name, dry_run, compare, within } if is_one(&name) => {
            if compare || within.is_some() {
                let next = "leave out --compare and --within; --limit of `mirror set` slows it";
                return Err(usage("an update into a bucket needs no comparison", next));
            }
            let path = path(&name, client)?;
            if dry_run {
                let plan: api::BucketMirrorPlan = client.get(&format!("{path}/update"))?;
                output.show(&plan, |plan| {
                    format!(
                        "{} changed since the newest image of {}{}; nothing was done",
                        size(plan.data_bytes),
                        plan.name,
                        cost("this update", &plan.first)
                    )
                });
            } else {
                transferred(client.post(&format!("{path}/update"), &())?, client, output)?;
            }
        }
        Mirror::Set { name, every, when, rpo, link, keep, continuous, stall, hold, no_hold }
            if is_one(&name) =>
        {
            if stall.is_some() || hold || no_hold || when.lock.is_some() || when.lock_key.is_some() {
                let next = "use --every, --cron, --continuous, --zone, --rpo, --limit and the --keep options";
                return Err(usage("a mirror in a bucket has no such setting", next));
            }
            let limit = limit_of(link)?;
            let mirror = find(&name, client)?;
            let times = every.is_some() || when.cron.is_some();
            let request = api::SetBucketMirror {
                continuous: (continuous || times).then_some(continuous),
                every_ms: every.map(super::setting),
                cron: when.cron,
                zone: when.zone,
                rpo_ms: rpo.map(super::setting),
                keep: kept(&keep, mirror.keep),
                limit,
                ..api::SetBucketMirror::default()
            };
            let mirror: api::BucketMirror = client.patch(&path_of(&mirror), &request)?;
            output.tell(&mirror, show);
        }
        Mirror::Pause { name } if is_one(&name) => {
            let request = api::SetBucketMirror { paused: Some(true), ..api::SetBucketMirror::default() };
            let mirror: api::BucketMirror = client.patch(&path(&name, client)?, &request)?;
            output.tell(&mirror, |_| format!("{name} is paused: no update runs or begins"));
        }
        Mirror::Resume { name, take_over, accept_older } if is_one(&name) => {
            let request = api::SetBucketMirror {
                paused: Some(false),
                take_over,
                accept_older,
                ..api::SetBucketMirror::default()
            };
            let mirror: api::BucketMirror = client.patch(&path(&name, client)?, &request)?;
            output.tell(&mirror, |mirror| format!("{name} resumed: {}", mirror.reason));
        }
        Mirror::Resume { take_over: true, .. } | Mirror::Resume { accept_older: true, .. } => {
            let next = "name a mirror in a bucket, such as offsite:vol0";
            return Err(usage("--take-over and --accept-older are for mirrors in buckets", next));
        }
        Mirror::Abort { name } if is_one(&name) => {
            let aborted: api::Aborted = client.post(&format!("{}/abort", path(&name, client)?), &())?;
            output.tell(&aborted, |aborted| match aborted.was_running {
                true => format!("aborted the update of {name}; the next one uses the objects that it put"),
                false => format!("no update of {name} was running"),
            });
        }
        Mirror::Verify { name, scrub, rate } if is_one(&name) => {
            if scrub || rate.is_some() {
                let next = "leave out --scrub and --rate";
                return Err(usage("the verification of a bucket reads all data already", next));
            }
            verified(client.post(&format!("{}/verify", path(&name, client)?), &())?, client, output)?;
        }
        Mirror::Delete { name, purge, dry_run } if is_one(&name) => {
            delete(&name, purge, dry_run, client, output)?
        }
        Mirror::Delete { purge: true, .. } => {
            return Err(usage("--purge is for mirrors in buckets", "name one, such as offsite:vol0"));
        }
        Mirror::Images { of } => images(&of, client, output)?,
        Mirror::Restore(asked) => restore(&asked, client, output)?,
        command => return Ok(Some(command)),
    }
    Ok(None)
}

fn usage(message: &str, next: &str) -> Failure {
    Failure::new(ErrorKind::Usage, message, next)
}

/// Refuses --keep options of a mirror that is not in a bucket.
pub(super) fn refuse_keep(name: &str, keep: &KeepImages) -> Result<(), Failure> {
    match kept(keep, api::Keep::default()) {
        None => Ok(()),
        Some(_) => Err(usage(
            "the --keep options are for mirrors in buckets",
            &format!("`cairn mirror set {name} --lock` keeps snapshots of this mirror"),
        )),
    }
}

/// All mirrors in buckets. An older server has none.
pub(super) fn all(client: &Client) -> Result<Vec<api::BucketMirror>, Failure> {
    Ok(client.get("/v1/bucket-mirrors")?)
}

/// The mirrors that a check is about.
pub(super) fn both(name: Option<&str>, client: &Client) -> Result<Both, Failure> {
    Ok(match name {
        Some(name) if name.contains(':') => {
            Both { mirrors: Vec::new(), in_buckets: vec![find(name, client)?] }
        }
        Some(name) => Both { mirrors: vec![client.get(&super::path(name)?)?], in_buckets: Vec::new() },
        None => Both { mirrors: client.get("/v1/mirrors")?, in_buckets: all(client)? },
    })
}

fn find(name: &str, client: &Client) -> Result<api::BucketMirror, Failure> {
    let found = all(client)?.into_iter().find(|mirror| mirror.name == name);
    found.ok_or_else(|| {
        let message = format!("there is no mirror `{name}` on this server");
        Failure::new(ErrorKind::NotFound, message, "`cairn mirror list` shows all mirrors")
    })
}

fn path_of(mirror: &api::BucketMirror) -> String {
    format!("/v1/bucket-mirrors/{}", mirror.id)
}

fn path(name: &str, client: &Client) -> Result<String, Failure> {
    Ok(path_of(&find(name, client)?))
}

/// The rules with those that are given; none if none is given.
fn kept(keep: &KeepImages, before: api::Keep) -> Option<api::Keep> {
    let KeepImages { keep_last, keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_yearly } = *keep;
    let given = [keep_last, keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_yearly];
    given.iter().any(Option::is_some).then(|| api::Keep {
        last: keep_last.unwrap_or(before.last),
        hourly: keep_hourly.unwrap_or(before.hourly),
        daily: keep_daily.unwrap_or(before.daily),
        weekly: keep_weekly.unwrap_or(before.weekly),
        monthly: keep_monthly.unwrap_or(before.monthly),
        yearly: keep_yearly.unwrap_or(before.yearly),
    })
}

fn limit_of(link: Link) -> Result<Option<String>, Failure> {
    let Link { limit, connections, compress, spread, no_spread } = link;
    if connections.is_some() || compress.is_some() || spread.is_some() || no_spread {
        let next = "leave out --connections, --compress and --spread: regions are always compressed, and several are sent at a time";
        return Err(usage("a mirror in a bucket has no such setting", next));
    }
    Ok(limit)
}

fn create(
    volume: String,
    bucket: &IntoBucket,
    (every_ms, continuous, rpo_ms): (Option<u64>, bool, Option<u64>),
    when: MirrorWhen,
    link: Link,
    client: &Client,
    output: Output,
) -> Result<(), Failure> {
    segment(&volume)?;
    let request = api::CreateBucketMirror {
        volume,
        to: bucket.to.clone().unwrap_or_default(),
        every_ms,
        cron: when.cron,
        continuous,
        zone: when.zone,
        rpo_ms,
        keep: kept(&bucket.keep, api::Keep::default()),
        limit: limit_of(link)?,
        take_over: bucket.take_over,
    };
    if bucket.dry_run {
        let plan: api::BucketMirrorPlan = client.post("/v1/bucket-mirrors/plan", &request)?;
        output.show(&plan, planned);
        return Ok(());
    }
    transferred(client.post("/v1/bucket-mirrors", &request)?, client, output)
}

fn planned(plan: &api::BucketMirrorPlan) -> String {
    let there = match (&plan.owner, plan.images) {
        (Some(owner), images) if images > 0 => {
            format!("\n{images} image(s) of it are there, made by {owner}; --take-over continues them")
        }
        _ => String::new(),
    };
    format!(
        "{} of blocks would be mirrored as {}{}{}, and more for the changes of the volume{there}; nothing was done",
        size(plan.data_bytes),
        plan.name,
        cost("the first image", &plan.first),
        cost("a month without changes", &plan.month),
    )
}

fn cost(of: &str, cost: &api::BucketCost) -> String {
    format!(
        "\n{of} costs at most: {} objects, {} requests that write and {} that read, {}; by list prices of one vendor ${:.2} for requests and ${:.2} a month for room",
        cost.objects,
        cost.puts,
        cost.gets,
        size(cost.bytes),
        cost.dollars_once,
        cost.dollars_monthly,
    )
}

fn transferred(job: api::Job, client: &Client, output: Output) -> Result<(), Failure> {
    let Some(api::JobOutcome::BucketMirror(mirror)) = follow(job, client, output)? else { return Ok(()) };
    if output.json {
        print_line(&summary(&mirror).to_string());
    } else if !output.quiet {
        let last = mirror.last.clone().unwrap_or_default();
        if last.up_to_date {
            print_line(&format!("{} is up to date: nothing had changed, nothing was sent", mirror.name));
            return Ok(());
        }
        if last.resumed_regions > 0 {
            print_line(&format!(
                "{} region(s) of an interrupted update were there and were not sent again",
                last.resumed_regions
            ));
        }
        print_line(&format!(
            "{} is at {}: put {} in {} region(s) in {}; the image has {}",
            mirror.name,
            image(&mirror),
            size(last.sent_bytes),
            last.regions,
            duration(last.duration_ms),
            size(mirror.stored_bytes),
        ));
    }
    Ok(())
}

fn verified(job: api::Job, client: &Client, output: Output) -> Result<(), Failure> {
    let Some(api::JobOutcome::BucketVerify(verified)) = follow(job, client, output)? else { return Ok(()) };
    if output.json {
        print_besides(&summary(&verified).to_string());
    } else {
        verified.damaged.iter().for_each(|line| print_besides(line));
        if !output.quiet {
            print_besides(&format!("{}: {}", verified.name, comparison(&verified)));
        }
    }
    let name = &verified.name;
    if verified.contradictions > 0 {
        return Err(Failure::new(
            ErrorKind::Damaged,
            format!(
                "{name}: {} block(s) are missing in the bucket or differ from the snapshot here",
                verified.contradictions
            ),
            "check the volume with `cairn volume check --deep`; if it is good, mirror it to another path, and delete this mirror",
        ));
    }
    match verified.damaged_total {
        0 => Ok(()),
        count => Err(Failure::new(
            ErrorKind::Damaged,
            format!("{name}: {count} object(s) are damaged or missing"),
            format!(
                "`cairn mirror update {name}` puts them again; older images may need the old ones: find out why the store lost data"
            ),
        )),
    }
}

fn comparison(verified: &api::BucketVerify) -> String {
    let compared = match verified.compared_bytes {
        0 if verified.damaged_total > 0 => "nothing was compared with its snapshot".to_owned(),
        0 => "its snapshot no longer exists here, so nothing was compared with it".to_owned(),
        bytes => format!("{} compared with the snapshot here", size(bytes)),
    };
    format!(
        "{} region(s), {} read, {compared}, {} damaged object(s), {} wrong block(s), in {}",
        verified.regions,
        size(verified.read_bytes),
        verified.damaged_total,
        verified.contradictions,
        duration(verified.duration_ms),
    )
}

fn delete(given: &str, purge: bool, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let mirror = find(given, client)?;
    let images = match purge {
        true => format!("deletes its {} image(s) in the bucket", mirror.images),
        false => {
            format!("leaves its {} image(s), {}, in the bucket", mirror.images, size(mirror.stored_bytes))
        }
    };
    let what = format!("this ends the mirror {given} of volume {}, and {images}", mirror.volume);
    if dry_run {
        output.show(&mirror, |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    output.confirm(&what)?;
    let deleted: api::DeletedBucketMirror = match purge {
        true => {
            let job = client.post(&format!("{}/purge", path_of(&mirror)), &())?;
            match follow(job, client, output)? {
                Some(api::JobOutcome::BucketMirrorDeleted(deleted)) => deleted,
                _ => return Ok(()),
            }
        }
        false => client.delete(&path_of(&mirror))?,
    };
    output.tell(&deleted, |deleted| match deleted.deleted_objects {
        0 => format!(
            "deleted {given}; {} image(s) stay in the bucket\nnext: `cairn mirror restore` restores them, `cairn mirror create {} --to {} --take-over` continues them, and `cairn mirror delete {given} --purge` then deletes them",
            deleted.images, mirror.volume, deleted.place
        ),
        objects => format!("deleted {given} and {objects} object(s) in the bucket; its claims stay"),
    });
    Ok(())
}

/// A text of a query, in which other bytes are percent-encoded.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn images(of: &str, client: &Client, output: Output) -> Result<(), Failure> {
    let Some((bucket, of)) = of.split_once(':') else {
        return Err(usage(
            "a mirrored volume in a bucket is BUCKET:[PATH/]VOLUME",
            "put a colon after the name of the bucket",
        ));
    };
    let path = format!("/v1/buckets/{}/images?of={}", segment(bucket)?, encoded(of));
    let found: api::BucketImages = client.get(&path)?;
    output.show(&found, |found| {
        let volumes = found.volumes.iter().map(volume_in_bucket);
        let unreadable = found.unreadable.iter().map(|line| format!("unreadable: {line}"));
        let parts: Vec<String> = volumes.chain(unreadable).collect();
        if parts.is_empty() { "no mirrored volume is there".to_owned() } else { parts.join("\n\n") }
    });
    Ok(())
}

fn volume_in_bucket(volume: &api::BucketVolume) -> String {
    let row = |image: &api::BucketImage| {
        let id = image.id.get(..12).unwrap_or(&image.id).to_owned();
        [image.number.to_string(), id, ago(image.taken_ms), size(image.size_bytes)]
    };
    format!(
        "volume    {}\nid        {}\nowner     {}, since {}\nnewest    {} in objects\n{}",
        name(volume.volume.as_bytes()),
        volume.volume_id,
        name(volume.owner.as_bytes()),
        ago(volume.claimed_ms),
        size(volume.stored_bytes),
        table(["IMAGE", "ID", "MADE", "SIZE"], volume.images.iter().rev().map(row))
    )
}

fn restore(asked: &RestoreMirror, client: &Client, output: Output) -> Result<(), Failure> {
    segment(&asked.name)?;
    let from = match &asked.from {
        Some(from) => from.clone(),
        None => unfinished(&asked.name, client)?,
    };
    let request = api::RestoreBucketMirror {
        name: asked.name.clone(),
        from,
        image: asked.at.clone(),
        size_bytes: asked.size.map(|size| size.0),
        devices: absolute(&asked.device)?,
        resume: asked.resume,
        anew: asked.anew,
    };
    let job = client.post("/v1/bucket-restores", &request)?;
    let Some(api::JobOutcome::Restore(result)) = follow(job, client, output)? else { return Ok(()) };
    if output.json {
        print_line(&summary(&result).to_string());
    } else if !output.quiet {
        let there = match result.there_bytes {
            0 => String::new(),
            there => format!(" ({} of them were there)", size(there)),
        };
        print_line(&format!(
            "restored {} into {}: {} snapshot(s), {} of blocks{there}; its present state is {}",
            name(result.dumped_from.as_bytes()),
            result.volume,
            result.snapshots,
            size(result.data_bytes),
            result.snapshot,
        ));
        if let Some(open) = open_to_all(client, &result.volume)? {
            print_line(&open);
        }
    }
    Ok(())
}

/// Resumes the unfinished restore of a volume.
pub fn resume_restore(name: &str, client: &Client, output: Output) -> Result<(), Failure> {
    let (name, resume) = (name.to_owned(), true);
    let (from, at, size, device) = (None, None, None, Vec::new());
    restore(&RestoreMirror { name, from, at, size, device, resume, anew: false }, client, output)
}

/// The image of an unfinished restore.
fn unfinished(volume: &str, client: &Client) -> Result<String, Failure> {
    let all: Vec<api::UnfinishedRestore> = client.get("/v1/images/restores")?;
    let found = all.into_iter().find(|one| one.volume == volume && one.of_mirror);
    found.and_then(|one| one.files.into_iter().next()).ok_or_else(|| {
        let message = format!("there is no unfinished restore of `{volume}` from a mirror in a bucket");
        Failure::new(ErrorKind::NotFound, message, "`cairn status` names unfinished restores")
    })
}

/// The table of mirrors in buckets.
pub fn list(mirrors: &[api::BucketMirror]) -> String {
    let row = |mirror: &api::BucketMirror| {
        [
            mirror.name.clone(),
            state(mirror.state).to_owned(),
            mirror.image_ms.map_or("-".to_owned(), ago),
            mirror.images.to_string(),
            lag(mirror),
            rhythm(mirror),
        ]
    };
    table(["IN BUCKET", "STATE", "IMAGE", "KEPT", "LAG", "EVERY"], mirrors.iter().map(row))
}

fn lag(mirror: &api::BucketMirror) -> String {
    mirror.lag_ms.map_or("-".to_owned(), |lag| if lag == 0 { "0".to_owned() } else { duration(lag) })
}

fn rhythm(mirror: &api::BucketMirror) -> String {
    match &mirror.cron {
        Some(cron) => format!("{cron} {}", mirror.zone.as_deref().unwrap_or("UTC")),
        None if mirror.continuous => "continuous".to_owned(),
        None => interval(mirror.every_ms),
    }
}

fn image(mirror: &api::BucketMirror) -> String {
    match (mirror.image_number, mirror.image_ms) {
        (Some(number), Some(made)) => format!("image {number}, made {}", ago(made)),
        _ => "no image".to_owned(),
    }
}

fn keep(keep: &api::Keep) -> String {
    let all = [
        ("last", keep.last),
        ("hourly", keep.hourly),
        ("daily", keep.daily),
        ("weekly", keep.weekly),
        ("monthly", keep.monthly),
        ("yearly", keep.yearly),
    ];
    let rules: Vec<String> =
        all.iter().filter(|(_, count)| *count > 0).map(|(rule, count)| format!("{rule} {count}")).collect();
    if rules.is_empty() { "all".to_owned() } else { rules.join(", ") }
}

fn show(mirror: &api::BucketMirror) -> String {
    let mut text = format!("name      {}\nstate     {}: {}", mirror.name, state(mirror.state), mirror.reason);
    if let Some(remedy) = &mirror.remedy {
        text += &format!("\n  next: {remedy}");
    }
    let rpo = match mirror.rpo_ms {
        None => String::new(),
        Some(rpo) if mirror.over_rpo => format!(", over the RPO of {}", duration(rpo)),
        Some(rpo) => format!(", within the RPO of {}", duration(rpo)),
    };
    let limit = match (&mirror.limit, mirror.limit_now_bytes) {
        (None, _) => "no limit".to_owned(),
        (Some(limit), Some(now)) => format!("{limit} (now {}/s)", size(now)),
        (Some(limit), None) => format!("{limit} (none now)"),
    };
    text += &format!(
        "\nvolume    {}\nimage     {}\nlag       {}{rpo}\nevery     {}\nkeeps     {}\nimages    {}, the newest has {}\nclaim     epoch {}\nlimit     {limit}\nupdates   {}\nsent      {}",
        mirror.volume,
        image(mirror),
        lag(mirror),
        rhythm(mirror),
        keep(&mirror.keep),
        mirror.images,
        size(mirror.stored_bytes),
        mirror.epoch,
        mirror.updates,
        size(mirror.sent_bytes),
    );
    if let Some(next) = mirror.next_ms {
        text += &format!("\nnext      {}", coming(next));
    }
    if let Some(last) = &mirror.last {
        text += &format!("\nlast      {}: ", ago(last.started_ms));
        text += &match last.up_to_date {
            true => "nothing had changed".to_owned(),
            false => format!(
                "put {} in {} region(s) in {}",
                size(last.sent_bytes),
                last.regions,
                duration(last.duration_ms)
            ),
        };
    }
    text += &match &mirror.verified {
        None => "\nverified  never".to_owned(),
        Some(verified) => format!("\nverified  {}: {}", ago(verified.started_ms), comparison(verified)),
    };
    if let Some(problem) = &mirror.problem
        && problem.message != mirror.reason
    {
        text += &format!("\nproblem   {}\n  next: {}", problem.message, problem.next);
    }
    text
}

/// How bad it is, and a line about it; by another lag than the mirror's own where one is given.
pub(super) fn judge(mirror: &api::BucketMirror, rpo_ms: Option<u64>) -> (u8, String) {
    use api::BucketMirrorState as S;
    let late = rpo_ms.map(|rpo| mirror.lag_ms.is_some_and(|lag| lag > rpo));
    let level = match (late, mirror.state) {
        (Some(true), _) => 2,
        // Past its own lag and within the given one.
        (Some(false), S::Behind) => 0,
        (Some(false), S::Transferring) if mirror.over_rpo => 0,
        (Some(false), S::Paused | S::Failing) if mirror.over_rpo => 1,
        _ => mirror.check,
    };
    let line = match rpo_ms.zip(mirror.lag_ms).filter(|(rpo, lag)| lag > rpo) {
        Some((rpo, lag)) => {
            format!("{}: lag {} is over the RPO of {}", mirror.name, duration(lag), duration(rpo))
        }
        None => format!("{} {}, lag {}: {}", mirror.name, state(mirror.state), lag(mirror), mirror.reason),
    };
    // A reason may contain text of another server, and stays in its line.
    (level, name(line.as_bytes()))
}

fn state(state: api::BucketMirrorState) -> &'static str {
    use api::BucketMirrorState as S;
    match state {
        S::Mirrored => "mirrored",
        S::Behind => "behind",
        S::Baseline => "baseline",
        S::Failing => "failing",
        S::Transferring => "transferring",
        S::Paused => "paused",
        S::NotASource => "not a source",
        S::Fenced => "fenced",
        S::Replayed => "replayed",
        S::Damaged => "damaged",
        S::Diverged => "diverged",
    }
}
