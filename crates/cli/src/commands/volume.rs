//! `cairn volume`.

use std::path::{Path, PathBuf};

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::{follow, print_findings, scrub, summary};
use crate::arguments::{Cache, Rehearse, Volume};
use crate::exit::Failure;
use crate::output::{Output, ago, duration, interval, note_line, print_besides, print_line, size, table};

/// Runs a command on volumes.
pub fn run(command: Volume, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Volume::Create { name, size: bytes, device, log_device, no_schedule, beneath, bucket, cache } => {
            let request = api::CreateVolume {
                bucket,
                cache: cache_of(&cache)?,
                name,
                size_bytes: bytes.map(|size| size.0),
                devices: absolute(&device)?,
                log_device: absolute(log_device.as_slice())?.pop(),
                history: super::device::beneath(&beneath)?,
                no_schedule,
            };
            let volume: api::Volume = client.post("/v1/volumes", &request)?;
            output.tell(&volume, |volume| {
                let (name, bytes) = (&volume.name, size(volume.size_bytes));
                let snapshots = if no_schedule { String::new() } else { scheduled(name) };
                format!(
                    "made volume {name} of {bytes}{snapshots}\nnext: cairn lun create {name}/NAME --size SIZE"
                )
            });
            if let Some(warning) = over_host(&volume) {
                note_line(&format!("warning: {warning}"));
            }
        }
        Volume::Open { from, name, at, read_only, device, fill_rate, size, cache } => {
            let (bucket, volume) =
                from.split_once(':').filter(|(_, volume)| !volume.is_empty()).ok_or_else(|| {
                    Failure::new(
                        ErrorKind::Usage,
                        format!("`{from}` names no volume in a bucket"),
                        "write BUCKET:VOLUME, such as `offsite:vol0`; `cairn bucket list` shows the buckets",
                    )
                })?;
            let request = api::OpenFromBucket {
                volume: volume.to_owned(),
                name,
                image: at,
                read_only,
                devices: absolute(&device)?,
                fill_bytes: fill_rate.map(|rate| rate.0),
                cache: cache_of(&cache)?,
                size_bytes: size.map(|size| size.0),
            };
            let job: api::Job = client.post(&format!("/v1/buckets/{}/open", segment(bucket)?), &request)?;
            let Some(api::JobOutcome::Opened(volume)) = follow(job, client, output)? else { return Ok(()) };
            if output.json {
                print_line(&summary(&volume).to_string());
            } else if !output.quiet {
                print_line(&opened(&volume));
            }
        }
        Volume::List => {
            let volumes: Vec<api::Volume> = client.get("/v1/volumes")?;
            output.show(&volumes, |volumes| list(volumes));
        }
        Volume::Show { name } => {
            let volume: api::Volume = client.get(&format!("/v1/volumes/{}", segment(&name)?))?;
            output.show(&volume, show);
        }
        Volume::Grow { name, size: bytes } => {
            let request = api::GrowVolume { size_bytes: bytes.map(|size| size.0) };
            let path = format!("/v1/volumes/{}/grow", segment(&name)?);
            let volume: api::Volume = client.post(&path, &request)?;
            output.tell(&volume, |volume| format!("{} has {} now", volume.name, size(volume.size_bytes)));
        }
        Volume::Governor { name, p99 } => {
            let path = format!("/v1/volumes/{}/governor", segment(&name)?);
            let governor: api::Governor = match p99 {
                None => client.get(&path)?,
                Some(p99) => {
                    let micros =
                        |time: cairn_base::Interval| time.0.as_micros().try_into().unwrap_or(u64::MAX);
                    client.put(&path, &api::SetGovernor { p99_limit_us: p99.0.map(micros) })?
                }
            };
            output.show(&governor, show_governor);
        }
        Volume::Hooks { name, before, after, timeout } => {
            let path = format!("/v1/volumes/{}/hooks", segment(&name)?);
            let timeout_ms = timeout.map(|timeout| u64::try_from(timeout.0.as_millis()).unwrap_or(u64::MAX));
            let set = api::SetHooks { before, after, timeout_ms };
            let asks = set.before.is_none() && set.after.is_none() && set.timeout_ms.is_none();
            let hooks: api::Hooks = if asks { client.get(&path)? } else { client.patch(&path, &set)? };
            output.show(&hooks, show_hooks);
        }
        Volume::Delete { name, dry_run } => {
            let path = format!("/v1/volumes/{}", segment(&name)?);
            let volume: api::Volume = client.get(&path)?;
            super::mirror::would(client, &api::DryRun::DeleteVolume { volume: name.clone() })?;
            let what = match volume.role {
                api::VolumeRole::Unavailable => format!(
                    "this deletes volume {name}, which is not open now: WHAT IS IN IT CANNOT BE SAID HERE ({})",
                    volume.problem.as_deref().unwrap_or("see `cairn status`")
                ),
                _ => format!(
                    "this deletes volume {name} with {} LUN(s), {} snapshot(s) and {} of data",
                    volume.luns,
                    volume.snapshots,
                    size(volume.used_bytes)
                ),
            };
            if dry_run {
                output.show(&volume, |_| format!("{what}; nothing was done"));
                return Ok(());
            }
            output.confirm(&what)?;
            let () = client.delete(&path)?;
            output.tell(&serde_json::json!({ "deleted": name }), |_| format!("deleted {name}"));
        }
        Volume::Log { name, discard_lost: true, dry_run, .. } => discard_log(&name, dry_run, client, output)?,
        Volume::Log { name, device, internal, .. } => {
            let path = format!("/v1/volumes/{}", segment(&name)?);
            let volume: api::Volume = if device.is_some() || internal {
                let request = api::MoveLog { device: absolute(device.as_slice())?.pop() };
                client.post(&format!("{path}/log"), &request)?
            } else {
                client.get(&path)?
            };
            let text = |volume: &api::Volume| {
                format!("the intent log of {} is on {}", volume.name, log_place(volume))
            };
            if device.is_some() || internal {
                output.tell(&volume, text);
            } else {
                output.show(&volume, text);
            }
        }
        Volume::Rehearse(asked) => rehearse(&asked, client, output)?,
        Volume::Check { name, deep } => check(&name, deep, client, output)?,
        Volume::Scrub { name, start, rate, every, status: _, stop, wait } => {
            let path = format!("/v1/volumes/{}/scrub", segment(&name)?);
            let is_look = !(start || stop || wait) && rate.is_none() && every.is_none();
            if is_look {
                let scrub: api::Scrub = client.get(&path)?;
                output.show(&scrub, |scrub| match scrub.running {
                    true => scrub::show(scrub),
                    false => format!("{}\nnext: cairn volume scrub {name} --start", scrub::show(scrub)),
                });
                return Ok(());
            }
            let every_ms = every.map(|every| every.0.map_or(0, |every| every.0.as_millis() as u64));
            // A schedule alone does not begin a pass now.
            let start = start || !stop && (every.is_none() || rate.is_some() || wait);
            let request = api::ScrubRequest { start, stop, rate_bytes: rate.map(|rate| rate.0), every_ms };
            let scrub: api::Scrub = client.put(&path, &request)?;
            match wait {
                true => scrub::wait(scrub, &path, client, output)?,
                false => output.tell(&scrub, scrub::show),
            }
        }
    }
    Ok(())
}

fn rehearse(asked: &Rehearse, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{}/rehearsal", segment(&asked.name)?);
    let faults = api::Rehearsal {
        delay_ms: asked.delay.map_or(0, |delay| delay.0.as_millis() as u64),
        fail_reads_one_in: asked.fail_reads.unwrap_or(0),
        fail_writes_one_in: asked.fail_writes.unwrap_or(0),
        fail_flushes_one_in: asked.fail_flushes.unwrap_or(0),
        lose_unflushed: asked.lose_unflushed,
    };
    let text = |status: &api::RehearsalStatus| {
        let (volume, faults, failed) = (&status.volume, status.faults.describe(), status.failed);
        format!("faults under {volume}: {faults}; {failed} operation(s) failed on purpose so far")
    };
    let none = faults == api::Rehearsal::default();
    if none && !asked.off {
        let status: api::RehearsalStatus = client.get(&path)?;
        output.show(&status, text);
        return Ok(());
    }
    if !none {
        let name = &asked.name;
        // Do not ask for confirmation if the volume does not exist.
        let _: api::RehearsalStatus = client.get(&path)?;
        output.confirm(&format!(
            "this puts faults under volume {name} and all its clients: {}",
            faults.describe()
        ))?;
    }
    let status: api::RehearsalStatus = client.put(&path, &faults)?;
    output.tell(&status, text);
    Ok(())
}

fn discard_log(name: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{}/log/discard", segment(name)?);
    let asked: api::DiscardedLog = client.post(&path, &api::DiscardLogRequest { dry_run: true })?;
    let what = format!(
        "{}\nthis throws the intent log of {name} away: the volume opens at consistency point {} (made {}), and everything written \
         later is lost, ALSO WHAT WAS FLUSHED. That is what was written in the last {} s before the server ended, at most",
        asked.reason,
        asked.generation,
        ago(asked.consistency_point_ms),
        asked.lost_ms_max.div_ceil(1000),
    );
    if dry_run {
        output.show(&asked, |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    output.confirm(&what)?;
    let done: api::DiscardedLog = client.post(&path, &api::DiscardLogRequest { dry_run: false })?;
    output.tell(&done, |done| {
        format!("{name} is open at consistency point {}; its log is on its own devices", done.generation)
    });
    Ok(())
}

fn log_place(volume: &api::Volume) -> &str {
    volume.log_device.as_deref().unwrap_or("the devices of the volume")
}

fn check(name: &str, deep: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let job: api::Job =
        client.post(&format!("/v1/volumes/{}/check", segment(name)?), &api::CheckRequest { deep })?;
    let Some(api::JobOutcome::Check(result)) = follow(job, client, output)? else { return Ok(()) };
    if output.json {
        print_besides(&summary(&result).to_string());
    } else {
        print_findings(result.findings.iter().map(|finding| finding.message.as_str()));
    }
    if !result.findings.is_empty() {
        return Err(Failure::new(
            ErrorKind::Damaged,
            format!("volume {name}: {} finding(s)", result.findings.len()),
            "restore what they name from a snapshot or a mirror; see docs/tasks/disks.md",
        ));
    }
    if !output.json && !output.quiet {
        print_line(&format!("volume {name} is sound"));
    }
    Ok(())
}

/// The bytes that a volume may need beyond the free space of its file system.
fn over_host(volume: &api::Volume) -> Option<String> {
    let host = volume.host.as_ref().filter(|host| host.unwritten_bytes > host.free_bytes)?;
    let (more, free, name) = (size(host.unwritten_bytes), size(host.free_bytes), &volume.name);
    Some(format!(
        "{name} may take {more} of the file system at {}, which has {free} free: when that is full, writes to {name} fail until it has room again",
        host.path
    ))
}

/// The cache that the options ask for.
fn cache_of(cache: &Cache) -> Result<Option<api::CacheRequest>, Failure> {
    let Some(bytes) = cache.cache_size else { return Ok(None) };
    let disk = absolute(cache.cache_disk.as_slice())?.pop();
    let lag_ms = cache.lag.map(|lag| lag.0.as_millis().try_into().unwrap_or(u64::MAX));
    Ok(Some(api::CacheRequest { disk, bytes: bytes.0, lag_ms }))
}

/// The state of the cache of a volume in a bucket, in lines.
fn cache_lines(cache: &api::VolumeCache) -> String {
    let waits = match (cache.holds_back, cache.full_in_ms) {
        (true, _) => "; writes wait".to_owned(),
        (false, Some(full)) if cache.lag_ms > 2 * cache.lag_limit_ms => {
            format!("; writes wait in about {}", duration(full))
        }
        _ => String::new(),
    };
    format!(
        "cache       {} of {} used, {} only here{waits}\nlag         {}, limit {}",
        size(cache.used_bytes),
        size(cache.size_bytes),
        size(cache.only_here_bytes),
        duration(cache.lag_ms),
        duration(cache.lag_limit_ms)
    )
}

/// A volume that was opened from a bucket.
fn opened(volume: &api::Volume) -> String {
    let (name, used) = (&volume.name, size(volume.used_bytes));
    let Some(bucket) = &volume.bucket else { return format!("opened {name}") };
    let how = if bucket.read_only { "read-only" } else { "writable; its former owner is fenced" };
    if let Some(cache) = &bucket.cache {
        let (number, cache) = (bucket.number, size(cache.size_bytes));
        return format!("opened {name} with {used} of data, {how}\nimage {number}; a cache of {cache}");
    }
    format!(
        "opened {name} with {used} of data, {how}\nimage {} of {}, made {}\nbucket: {}",
        bucket.number,
        bucket.volume,
        ago(bucket.taken_ms),
        local_part(bucket)
    )
}

/// Volumes that still read blocks from a bucket, a line each.
pub fn from_buckets(volumes: &[api::Volume]) -> String {
    let line = |volume: &api::Volume| {
        let bucket =
            volume.bucket.as_ref().filter(|bucket| bucket.regions_left > 0 || bucket.cache.is_some())?;
        if let Some(cache) = &bucket.cache {
            let waits = if cache.holds_back { "  writes wait" } else { "" };
            return Some(format!(
                "{}  in {}:  cache {} of {}, {} only here{waits}",
                volume.name,
                bucket.bucket,
                size(cache.used_bytes),
                size(cache.size_bytes),
                size(cache.only_here_bytes)
            ));
        }
        let mode = if bucket.read_only { "  read-only" } else { "" };
        let (name, from) = (&volume.name, &bucket.bucket);
        Some(format!("{name}  from {from}:{}  {}{mode}", bucket.volume, local_part(bucket)))
    };
    volumes.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// How much of a volume from a bucket is local.
pub fn local_part(bucket: &api::VolumeBucket) -> String {
    match bucket.regions_left {
        0 => "all local".to_owned(),
        _ => format!("{} % local, {} to fetch", bucket.local_percent(), size(bucket.bytes_left)),
    }
}

/// The free space of a volume's file system.
fn host_free(volume: &api::Volume) -> String {
    volume.host.as_ref().map_or("-".to_owned(), |host| size(host.free_bytes))
}

fn role_in_list(volume: &api::Volume) -> String {
    let role = role(volume.role);
    match &volume.bucket {
        Some(bucket) if bucket.read_only => format!("image in {}", bucket.bucket),
        Some(bucket) if bucket.cache.is_some() => format!("{role}, in {}", bucket.bucket),
        Some(bucket) => format!("{role}, from {}", bucket.bucket),
        None => role.to_owned(),
    }
}

/// The table of volumes.
pub fn list(volumes: &[api::Volume]) -> String {
    let row = |volume: &api::Volume| {
        [
            volume.name.clone(),
            role_in_list(volume),
            size(volume.size_bytes),
            size(volume.used_bytes),
            size(volume.free_bytes),
            host_free(volume),
            volume.luns.to_string(),
            volume.snapshots.to_string(),
        ]
    };
    table(["NAME", "ROLE", "SIZE", "USED", "FREE", "HOST FREE", "LUNS", "SNAPSHOTS"], volumes.iter().map(row))
}

fn show(volume: &api::Volume) -> String {
    let mut text = format!(
        "name        {}\nid          {}\nrole        {}\nsize        {}\nused        {}\nfree        {}\n\
         dirty       {}\ngeneration  {}\nLUNs        {}\nsnapshots   {}\ndevices     {}\nlog         {}",
        volume.name,
        volume.id,
        role(volume.role),
        size(volume.size_bytes),
        size(volume.used_bytes),
        size(volume.free_bytes),
        size(volume.dirty_bytes),
        volume.generation,
        volume.luns,
        volume.snapshots,
        volume.devices.join("\n            "),
        log_place(volume),
    );
    if let Some(host) = &volume.host {
        let [free, more] = [host.free_bytes, host.unwritten_bytes].map(size);
        text += &format!("\nhost        {free} free at {}; the volume may take {more}", host.path);
    }
    if let Some(history) = &volume.history {
        text += &format!("\nhistory     {history}");
    }
    if let Some(of) = &volume.clone_of {
        text += &format!("\nclone of    {of}");
    }
    if let Some(bucket) = &volume.bucket {
        let mode = if bucket.read_only { ", read-only" } else { "" };
        let (of, number) = (&bucket.volume, bucket.number);
        text += &match &bucket.cache {
            Some(_) if number == 0 => format!("\nbucket      {}:{of}, no image yet", bucket.bucket),
            Some(_) => format!("\nbucket      {}:{of}, image {number}", bucket.bucket),
            None => format!(
                "\nbucket      {}:{of}, image {number} made {}{mode}; {}",
                bucket.bucket,
                ago(bucket.taken_ms),
                local_part(bucket)
            ),
        };
        if let Some(cache) = &bucket.cache {
            text += &format!("\n{}", cache_lines(cache));
        }
        if let Some(problem) = &bucket.problem {
            text += &format!("\n            {problem}");
        }
    }
    if let Some(scrub) = &volume.scrub {
        text += &format!("\nscrub       {}\ndamage      {}", scrub::line(scrub), scrub::damage(scrub));
    }
    if let Some(problem) = &volume.problem {
        text += &format!("\nproblem     {problem}");
    }
    text
}

fn role(role: api::VolumeRole) -> &'static str {
    match role {
        api::VolumeRole::Normal => "normal",
        api::VolumeRole::Destination => "destination",
        api::VolumeRole::Unavailable => "unavailable",
    }
}

/// The schedules that a new volume has.
fn scheduled(name: &str) -> String {
    let one = |default: &api::DefaultSchedule| {
        format!("{} every {} (keeps {})", default.label, interval(Some(default.every_ms)), default.last)
    };
    let all: Vec<String> = api::DEFAULT_SCHEDULES.iter().map(one).collect();
    format!("\nsnapshots: {}; see `cairn snapshot schedule list {name}`", all.join(", "))
}

/// Devices as the server must name them.
pub fn absolute(devices: &[PathBuf]) -> Result<Vec<String>, Failure> {
    devices.iter().map(|path| absolute_path(path)).collect()
}

/// A path for the server, which has another working directory. The API takes text: a path that is
/// not text would become another path there, perhaps that of another file.
pub fn absolute_path(path: &Path) -> Result<String, Failure> {
    std::path::absolute(path)?.into_os_string().into_string().map_err(|path| {
        Failure::new(
            ErrorKind::Usage,
            format!("the path `{}` is not UTF-8, and the API needs paths as text", path.display()),
            "name it by a symbolic link, or rename it",
        )
    })
}

/// A name as one segment of a path; the server decides whether it is a name.
pub fn segment(name: &str) -> Result<&str, Failure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !name.is_empty() && name != "." && name != ".." && name.bytes().all(plain) {
        return Ok(name);
    }
    Err(Failure::new(
        ErrorKind::Usage,
        format!("`{name}` is not a valid name"),
        "use letters, digits, `.`, `_` and `-`, beginning with a letter or a digit",
    ))
}

/// The limits on the cost of mirrors, in a line.
pub fn show_governor(governor: &api::Governor) -> String {
    let ms = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
    let now = governor.p99_us.map_or("too few requests to tell".to_owned(), ms);
    let limit = governor.p99_limit_us.map_or("no limit".to_owned(), |limit| format!("at most {}", ms(limit)));
    let rate = governor.rate_bytes.map_or("as they go".to_owned(), |rate| format!("at {}/s", size(rate)));
    format!("clients of {}: p99 {now}, {limit}; transfers of its mirrors {rate}", governor.volume)
}

fn show_hooks(hooks: &api::Hooks) -> String {
    let command = |command: &Option<String>| command.clone().unwrap_or_else(|| "-".to_owned());
    let mut text = format!(
        "before    {}\nafter     {}\ntimeout   {}",
        command(&hooks.before),
        command(&hooks.after),
        duration(hooks.timeout_ms)
    );
    if let Some(problem) = &hooks.problem {
        text += &format!("\nproblem   {problem}");
    }
    text
}
