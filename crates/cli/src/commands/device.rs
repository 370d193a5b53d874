//! `cairn device` and `cairn history`.

use cairn_api as api;
use cairn_api::ErrorKind;
use cairn_api::client::Client;
use cairn_base::Interval;

use super::export::login_lines;
use super::volume::{absolute_path, segment};
use crate::arguments::{Beneath, Device, Enable, History, InstantArgument, WindowArguments};
use crate::exit::Failure;
use crate::instant::{Moment, now_ns, parse, show};
use crate::output::{Output, duration, size, table};

/// Lost versions that are named.
const LOST_SHOWN: usize = 8;

/// Runs a command on adopted devices.
pub fn run(command: Device, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Device::Adopt(adopt) => {
            let absolute = |path: &std::path::Path| -> Result<String, Failure> {
                if let Some(text) = path.to_str().filter(|text| text.starts_with("lun:")) {
                    return Ok(text.to_owned());
                }
                absolute_path(path)
            };
            let request = api::AdoptDevice {
                name: adopt.name,
                origin: absolute(&adopt.origin)?,
                history: adopt.history.as_deref().map(absolute).transpose()?,
                size_bytes: adopt.size.map(|size| size.0),
                history_bytes: adopt.history_size.map(|size| size.0),
                placement: adopt.placement,
                granularity: adopt.granularity,
                window: window(&adopt.window)?,
                block_bytes: adopt.block.map(|block| u32::try_from(block.0).unwrap_or(u32::MAX)),
                dirty_bytes: adopt.dirty.map(|size| size.0),
                cache_bytes: adopt.cache.map(|size| size.0),
                in_use: adopt.in_use,
            };
            let device: api::Device = client.post("/v1/devices", &request)?;
            output.tell(&device, |device| {
                let lines = device.target.iter().flat_map(login_lines);
                device.uris.iter().cloned().chain(lines).collect::<Vec<_>>().join("\n")
            });
        }
        Device::List => {
            let devices: Vec<api::Device> = client.get("/v1/devices")?;
            output.show(&devices, |devices| {
                let row = |device: &api::Device| {
                    [
                        device.name.clone(),
                        size(device.size_bytes),
                        if device.problem.is_some() { "problem" } else { "ok" }.to_owned(),
                        device.origin.clone(),
                        device.history.clone().unwrap_or_else(|| "none".to_owned()),
                    ]
                };
                let problem = |device: &api::Device| {
                    device.problem.as_ref().map(|problem| format!("\n{}: {problem}", device.name))
                };
                let problems: String = devices.iter().filter_map(problem).collect();
                table(["NAME", "SIZE", "STATE", "ORIGIN", "HISTORY"], devices.iter().map(row)) + &problems
            });
        }
        Device::Show { name } => {
            let devices: Vec<api::Device> = client.get("/v1/devices")?;
            let Some(device) = devices.into_iter().find(|device| device.name == name) else {
                let what = format!("there is no adopted device `{name}`");
                return Err(Failure::new(
                    ErrorKind::NotFound,
                    what,
                    "list what exists with `cairn device list`",
                ));
            };
            output.show(&device, show_device);
        }
        Device::Release { name, without_history, dry_run } => {
            let devices: Vec<api::Device> = client.get("/v1/devices")?;
            let known = devices.into_iter().find(|device| device.name == name);
            let (device, what) = match known {
                Some(device) if device.history.is_none() => (device, format!("this ends the export {name}")),
                Some(device) if device.size_bytes == 0 && without_history => {
                    let what = format!(
                        "this discards the history of {name} and its clones, even if it can't be opened. {} keeps its content as of the last flush. With the placement `logging`, and during a revert, blocks that only the history has are lost",
                        device.origin
                    );
                    (device, what)
                }
                // A device that is not open is opened for its release.
                Some(device) if device.size_bytes == 0 => {
                    let what = format!(
                        "this discards the history of {name}; {} keeps its present content",
                        device.origin
                    );
                    (device, what)
                }
                _ => {
                    let status: api::HistoryStatus = client.get(&path(&name)?)?;
                    let since = show(status.start_ns);
                    let shown: Vec<&str> = status.views.iter().map(|view| view.name.as_str()).collect();
                    let first = match shown[..] {
                        [] => String::new(),
                        _ => format!("; first its views and clones have to be ended: {}", shown.join(", ")),
                    };
                    let what = format!(
                        "this discards the history of {name} since {since}; {} keeps its present content{first}",
                        status.device.origin
                    );
                    (status.device, what)
                }
            };
            if dry_run {
                output.show(&device, |_| format!("{what}; nothing was done"));
                return Ok(());
            }
            output.confirm(&what)?;
            let query = if without_history { "?without_history=true" } else { "" };
            let job: api::Job = client.delete(&format!("{}{query}", path(&name)?))?;
            super::follow(job, client, output)?;
            let released = serde_json::json!({ "released": name, "origin": device.origin });
            output.tell(&released, |_| format!("{} is a plain disk again", device.origin));
        }
    }
    Ok(())
}

/// Runs a command on the history of a device.
pub fn run_history(command: History, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        History::Enable(asked) => enable(&asked, client, output)?,
        History::Disable { name, store_lost: true, dry_run } => discard(&name, dry_run, client, output)?,
        History::Disable { name, store_lost: false, dry_run } => disable(&name, dry_run, client, output)?,
        History::AcceptOlder { name, dry_run } => accept_older(&name, dry_run, client, output)?,
        History::List => {
            let found = with_history(client)?;
            output.show(&found, |found| {
                let row = |one: &WithHistory| [one.name.clone(), one.kind.to_owned(), one.history.clone()];
                table(["NAME", "KIND", "HISTORY"], found.iter().map(row))
            });
        }
        History::Status { name } => {
            let status: api::HistoryStatus = client.get(&path(&name)?)?;
            output.show(&status, page);
        }
        History::Mark { name, mark, consistent } => {
            let request = api::CreateMark { name: mark, consistent };
            let mark: api::Mark = client.post(&format!("{}/marks", path(&name)?), &request)?;
            output.tell(&mark, |mark| format!("{} is {}", mark.name, show(mark.at_ns)));
        }
        History::View { name, at, export: None, delete: None } if at.is_none() => {
            list_views(&name, false, client, output)?;
        }
        History::Clone { name, at, export: None, delete: None } if at.is_none() => {
            list_views(&name, true, client, output)?;
        }
        History::View { name, at, export, delete } => {
            view(&name, at, export, delete, false, client, output)?;
        }
        History::Clone { name, at, export, delete } => {
            view(&name, at, export, delete, true, client, output)?;
        }
        History::Revert { name, at, dry_run } => go_back(&name, &at, dry_run, false, client, output)?,
        History::Grow { name, size: bytes } => {
            let request = api::GrowHistory { size_bytes: bytes.map(|size| size.0) };
            let status: api::HistoryStatus =
                client.post(&format!("{}/grow-history", path(&name)?), &request)?;
            output.tell(&status, |status| {
                format!("the store of the history of {name} has {} now", size(status.store_bytes))
            });
        }
        History::Window { name, window: arguments } => {
            let now: api::HistoryStatus = client.get(&path(&name)?)?;
            let request = changed(&now.window, &arguments)?;
            if is_a_look(&arguments) {
                output.show(&now, |now| format!("the window of {name}: {}", window_words(&now.window)));
                return Ok(());
            }
            if keeps_less(&request, &now.window) {
                output.confirm(&format!(
                    "this discards the history of {name} beyond its new window ({}; now: {})",
                    window_words(&request),
                    window_words(&now.window)
                ))?;
            }
            let status: api::HistoryStatus = client.put(&format!("{}/window", path(&name)?), &request)?;
            output.tell(&status, |status| format!("the window of {name}: {}", window_words(&status.window)));
        }
    }
    Ok(())
}

/// Lists the views of a history, or its clones.
fn list_views(name: &str, writable: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let status: api::HistoryStatus = client.get(&path(name)?)?;
    let views: Vec<_> = status.views.into_iter().filter(|view| view.writable == writable).collect();
    output.show(&views, |views| table(["NAME", "INSTANT", "URI"], views.iter().flat_map(view_rows)));
    Ok(())
}

/// A device or a volume that has a history.
#[derive(serde::Serialize)]
struct WithHistory {
    name: String,
    kind: &'static str,
    history: String,
}

fn with_history(client: &Client) -> Result<Vec<WithHistory>, Failure> {
    let devices: Vec<api::Device> = client.get("/v1/devices")?;
    let volumes: Vec<api::Volume> = client.get("/v1/volumes")?;
    let devices = devices.into_iter().map(|one| (one.name, "device", one.history));
    let volumes = volumes.into_iter().map(|one| (one.name, "volume", one.history));
    let one =
        |(name, kind, history): (_, _, Option<String>)| Some(WithHistory { name, kind, history: history? });
    Ok(devices.chain(volumes).filter_map(one).collect())
}

fn show_device(device: &api::Device) -> String {
    let mut text = format!(
        "name     {}\nsize     {}\norigin   {}\nhistory  {}\nNBD      {}",
        device.name,
        size(device.size_bytes),
        device.origin,
        device.history.as_deref().unwrap_or("none"),
        device.uris.join("\n         ")
    );
    if let Some(target) = &device.target {
        text += &format!("\niSCSI    {}", target.name);
    }
    if let Some(problem) = &device.problem {
        text += &format!("\nproblem  {problem}");
    }
    text
}

/// Puts a history under a volume.
fn enable(asked: &Enable, client: &Client, output: Output) -> Result<(), Failure> {
    let Enable { name, .. } = asked;
    let history = api::VolumeHistory {
        store: absolute_path(&asked.history)?,
        store_bytes: asked.history_size.map(|size| size.0),
        placement: asked.placement,
        granularity: asked.granularity.clone(),
        window: window(&asked.window)?,
    };
    let path = format!("/v1/volumes/{}/history", segment(name)?);
    let request = |dry_run| api::EnableHistory { history: history.clone(), dry_run };
    let would: api::HistoryEnabled = client.post(&path, &request(true))?;
    let what = format!(
        "this puts a history in {} under {name}, and ends its {} session(s): clients connect again",
        would.store, would.sessions_ended
    );
    if asked.dry_run {
        output.show(&would, |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    if would.sessions_ended > 0 {
        output.confirm(&what)?;
    }
    let enabled: api::HistoryEnabled = client.post(&path, &request(false))?;
    output.tell(&enabled, |enabled| {
        format!(
            "{name} remembers from now on, in {}; {} session(s) were ended\nnext: cairn history status {name}",
            enabled.store, enabled.sessions_ended
        )
    });
    Ok(())
}

/// Takes the history away from under a volume.
fn disable(name: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let status: api::HistoryStatus = client.get(&path(name)?)?;
    super::mirror::would(client, &api::DryRun::DisableHistory { volume: name.to_owned() })?;
    let store = status.device.history.clone().unwrap_or_default();
    let what = format!(
        "this discards the history of {name} since {}, with its marks; the volume stays as it is. Clients reconnect once, after the content of today was copied back",
        show(status.start_ns)
    );
    if dry_run {
        output.show(&status, |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    output.confirm(&what)?;
    let job: api::Job = client.delete(&format!("/v1/volumes/{}/history", segment(name)?))?;
    super::follow(job, client, output)?;
    let disabled = serde_json::json!({ "disabled": name, "store": store });
    output.tell(&disabled, |_| format!("{name} has no history now; {store} is free for other use"));
    Ok(())
}

/// Opens a volume with a lost history.
fn discard(name: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{}/history/discard", segment(name)?);
    let found: api::DiscardedHistory = client.post(&path, &api::DiscardHistory { dry_run: true })?;
    let at = show(found.consistency_point_ms.saturating_mul(1_000_000));
    let what = format!(
        "this discards the history of {name} in {} for good ({}); the devices of the volume keep its consistency point of {at}, and the writes flushed since",
        found.store, found.reason
    );
    if dry_run {
        output.show(&found, |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    output.confirm(&what)?;
    let discarded: api::DiscardedHistory = client.post(&path, &api::DiscardHistory { dry_run: false })?;
    output.tell(&discarded, |_| {
        format!("{name} is open without a history\nnext: cairn volume check {name} --deep")
    });
    let Some(first) = discarded.findings.first() else { return Ok(()) };
    Err(Failure::new(
        ErrorKind::Damaged,
        format!("{name} is open, and its check finds {} thing(s) wrong: {first}", discarded.findings.len()),
        format!(
            "run `cairn volume check {name} --deep`; restore missing data from a mirror or an image dump"
        ),
    ))
}

/// Takes an older store for that of its history.
fn accept_older(name: &str, dry_run: bool, client: &Client, output: Output) -> Result<(), Failure> {
    let path = format!("{}/accept-older", path(name)?);
    let found: api::AcceptedOlder = client.post(&path, &api::AcceptOlder { dry_run: true })?;
    let what = format!(
        "this accepts the history of {name} in {} as it is ({}). This is right if its disk was restored together with it. With a newer disk, {name} would mix old and new data, and show instants that never existed",
        found.store, found.reason
    );
    if dry_run {
        output.show(&found, |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    output.confirm(&what)?;
    let accepted: api::AcceptedOlder = client.post(&path, &api::AcceptOlder { dry_run: false })?;
    output.tell(&accepted, |_| format!("{name} is in service\nnext: cairn history status {name}"));
    Ok(())
}

/// Brings a device or a volume back to an instant; a mirror is paused by it.
pub fn go_back(
    name: &str,
    at: &InstantArgument,
    dry_run: bool,
    mirror: bool,
    client: &Client,
    output: Output,
) -> Result<(), Failure> {
    // Read once: a time relative to now must mean the same in the check and in the action.
    let (instant, read) = (instant(at)?, std::time::Instant::now());
    let request = |dry_run| {
        let since = read.elapsed().as_nanos() as u64;
        let ago_ns = instant.ago_ns.map(|ago| ago.saturating_add(since));
        api::Revert { at_ns: instant.at_ns, ago_ns, mark: instant.mark.clone(), dry_run }
    };
    let (path, command) = match mirror {
        true => (format!("/v1/mirrors/{}/rewind", segment(name)?), "cairn mirror rewind"),
        false => (format!("{}/revert", path(name)?), "cairn history revert"),
    };
    let would: api::Reverted = client.post(&path, &request(true))?;
    let pauses = if mirror { ", pauses its updates" } else { "" };
    let what = format!(
        "this brings {name} back to {}, the last instant kept up to {}{pauses}, and ends its {} session(s)",
        show(would.at_ns),
        at.words(),
        would.sessions_ended
    );
    if dry_run {
        output.show(&would, |_| format!("{what}; nothing was done"));
        return Ok(());
    }
    output.confirm(&what)?;
    let reverted: api::Reverted = client.post(&path, &request(false))?;
    output.tell(&reverted, |reverted| {
        let (at, ended, undo) = (show(reverted.at_ns), reverted.sessions_ended, &reverted.undo);
        let paused = if mirror {
            format!("\nits updates are paused; to resume them: cairn mirror resume {name}")
        } else {
            String::new()
        };
        format!("{name} shows {at}; {ended} session(s) were ended{paused}\nto undo: {command} {name} --mark {undo}")
    });
    let Some(first) = reverted.findings.first() else { return Ok(()) };
    Err(Failure::new(
        ErrorKind::Damaged,
        format!(
            "{name} is back, and its check finds {} thing(s) wrong there: {first}",
            reverted.findings.len()
        ),
        format!("see `cairn volume check {name}`, or undo it: {command} {name} --mark {}", reverted.undo),
    ))
}

/// A history under a new volume, as it was asked for.
pub fn beneath(asked: &Beneath) -> Result<Option<api::VolumeHistory>, Failure> {
    let window = window(&asked.window)?;
    let Some(store) = &asked.history else {
        return match window == api::Window::default() {
            true => Ok(None),
            false => Err(Failure::new(
                ErrorKind::Usage,
                "a window was given, and no history",
                "name a file or an empty disk for it with --history PATH",
            )),
        };
    };
    Ok(Some(api::VolumeHistory {
        store: absolute_path(store)?,
        store_bytes: asked.history_size.map(|size| size.0),
        placement: asked.placement,
        granularity: asked.granularity.clone(),
        window,
    }))
}

fn view(
    name: &str,
    at: InstantArgument,
    export: Option<String>,
    delete: Option<String>,
    writable: bool,
    client: &Client,
    output: Output,
) -> Result<(), Failure> {
    if let Some(view) = delete {
        if writable {
            let status: api::HistoryStatus = client.get(&path(name)?)?;
            let full = format!("{name}@{view}");
            let Some(known) = status.views.iter().find(|known| known.name == view || known.name == full)
            else {
                let next = format!("list what exists with `cairn history clone {name}`");
                return Err(Failure::new(ErrorKind::NotFound, format!("there is no clone `{full}`"), next));
            };
            // The server refuses for a view.
            if known.writable {
                output.confirm(&format!("this deletes the clone {full} and everything written to it"))?;
            }
        }
        // The server must not delete a clone as a view, because that also deletes the clone's data.
        let () = client.delete(&format!("{}/views/{}?writable={writable}", path(name)?, segment(&view)?))?;
        let deleted = serde_json::json!({ "deleted": format!("{name}@{view}") });
        output.tell(&deleted, |_| match writable {
            true => format!("deleted the clone {name}@{view} and everything written to it"),
            false => format!("{name}@{view} is no longer exported"),
        });
        return Ok(());
    }
    let request = api::CreateView { name: export, instant: instant(&at)?, writable };
    let view: api::View = client.post(&format!("{}/views", path(name)?), &request)?;
    output.tell(&view, |view| {
        let first = format!("{} shows {}", view.name, show(view.at_ns));
        std::iter::once(first).chain(view.uris.iter().cloned()).collect::<Vec<_>>().join("\n")
    });
    Ok(())
}

/// A row for each place at which clients find a view.
fn view_rows(view: &api::View) -> Vec<[String; 3]> {
    let mut uris = view.uris.clone();
    if uris.is_empty() {
        uris.push(String::new());
    }
    let mut first = [view.name.clone(), show(view.at_ns)];
    let row = |uri| {
        let [name, at] = std::mem::take(&mut first);
        [name, at, uri]
    };
    uris.into_iter().map(row).collect()
}

fn path(name: &str) -> Result<String, Failure> {
    Ok(format!("/v1/devices/{}", segment(name)?))
}

fn instant(argument: &InstantArgument) -> Result<api::Instant, Failure> {
    let at = |moment| match moment {
        Moment::At(at_ns) => api::Instant::at(at_ns),
        Moment::Ago(ago) => api::Instant::ago(ago),
    };
    match (&argument.at, &argument.mark, &argument.to) {
        (Some(text), None, None) => parse(text, now_ns()).map(at),
        (None, Some(mark), None) => Ok(api::Instant::mark(mark)),
        // A valid name that is not a time is a mark.
        (None, None, Some(to)) => match parse(to, now_ns()) {
            Ok(moment) => Ok(at(moment)),
            Err(_) if segment(to).is_ok() && !to.starts_with('-') => Ok(api::Instant::mark(to)),
            Err(failure) => Err(failure),
        },
        _ => Err(Failure::new(
            ErrorKind::Usage,
            "no instant was given",
            "name one with --at '2026-11-20 14:03:07', --at -5m or --mark NAME; `cairn history status` shows the window",
        )),
    }
}

/// The window of a new history.
fn window(arguments: &WindowArguments) -> Result<api::Window, Failure> {
    changed(&api::Window::default(), arguments)
}

/// True if nothing is to be changed. Setting an unchanged value has an effect: it opens a volume
/// again that is read-only for lack of room.
fn is_a_look(arguments: &WindowArguments) -> bool {
    let WindowArguments { window, floor, floor_policy, thin, reduce } = arguments;
    window.is_empty() && floor.is_none() && floor_policy.is_none() && thin.is_empty() && reduce.is_none()
}

/// A window with the requested changes: all other settings stay. Length and size are one setting,
/// and so are all steps of retention.
fn changed(before: &api::Window, arguments: &WindowArguments) -> Result<api::Window, Failure> {
    let ms = |interval: Interval| interval.0.as_millis() as u64;
    let mut window = before.clone();
    if let Some(floor) = arguments.floor {
        window.floor_ms = floor.0.map(ms);
    }
    window.floor_policy = arguments.floor_policy.or(window.floor_policy);
    window.reduce = arguments.reduce.or(window.reduce);
    if !arguments.thin.is_empty() {
        window.thin = arguments.thin.iter().filter_map(|step| step.0).collect();
    }
    if !arguments.window.is_empty() {
        (window.time_ms, window.bytes) = (None, None);
    }
    for part in arguments.window.iter().filter(|part| *part != "off") {
        if let Ok(interval) = part.parse::<Interval>()
            && part.ends_with(['s', 'm', 'h', 'd'])
        {
            window.time_ms = Some(ms(interval));
        } else if let Ok(bytes) = part.parse::<cairn_base::ByteSize>() {
            window.bytes = Some(bytes.0);
        } else {
            return Err(Failure::new(
                ErrorKind::Usage,
                format!("`{part}` is not a window"),
                "give a length of time such as 24h, a size such as 100G, or both: --window 24h --window 100G; `off` removes the limit",
            ));
        }
    }
    Ok(window)
}

/// True when history that one window keeps falls out of the `new` one.
fn keeps_less(new: &api::Window, old: &api::Window) -> bool {
    let less = |new: Option<u64>, old: Option<u64>| new.unwrap_or(u64::MAX) < old.unwrap_or(u64::MAX);
    let thins = new.thin.iter().any(|step| {
        let before = old.thin.iter().filter(|before| before.after_ms <= step.after_ms);
        before.map(|before| before.every_ms).max().unwrap_or(0) < step.every_ms
    });
    less(new.time_ms, old.time_ms) || less(new.bytes, old.bytes) || thins
}

fn window_words(window: &api::Window) -> String {
    let mut words = Vec::new();
    words.extend(window.time_ms.map(duration));
    words.extend(window.bytes.map(size));
    if words.is_empty() {
        words.push("as long as there is room".to_owned());
    }
    if let Some(floor) = window.floor_ms {
        let policy = match window.floor_policy {
            Some(api::FloorPolicy::Wait) => "writes wait",
            Some(api::FloorPolicy::Fail) | None => "writes fail",
        };
        words.push(format!("never less than {} ({policy})", duration(floor)));
    }
    for step in &window.thin {
        words.push(format!("past {} one instant every {}", duration(step.after_ms), duration(step.every_ms)));
    }
    words.extend(window.reduce.and_then(reduce_words).map(|words| format!("stored as {words}")));
    words.join(", ")
}

/// The storage of reduced contents, in words.
fn reduce_words(reduce: api::Reduce) -> Option<&'static str> {
    match reduce {
        api::Reduce::None => None,
        api::Reduce::Xor => Some("the difference from an earlier version"),
        api::Reduce::Identical => Some("identical content once"),
        api::Reduce::All => Some("the difference from an earlier version, identical content once"),
    }
}

fn page(status: &api::HistoryStatus) -> String {
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
    row("device", format!("{} ({})", status.device.name, size(status.device.size_bytes)));
    row("origin", status.device.origin.clone());
    row("history", status.device.history.clone().unwrap_or_default());
    let placement = serde_json::to_value(status.placement).unwrap_or_default();
    let kind = placement.as_str().unwrap_or_default().to_owned();
    row(
        "placement",
        format!("{kind}, granularity {}, blocks of {}", status.granularity, size(status.block_bytes.into())),
    );
    row("window", window_words(&status.window));
    row("from", show(status.start_ns));
    row("to", show(status.last_ns));
    row(
        "space",
        format!(
            "{} used of {}, {} of it needed; {} versions",
            size(status.used_bytes),
            size(status.store_bytes),
            size(status.live_bytes),
            status.versions
        ),
    );
    let cost = match status.bytes_per_hour {
        0 => "not known yet".to_owned(),
        bytes => format!("{} an hour", size(bytes)),
    };
    row(
        "cost",
        format!(
            "{cost}; {:.2} I/O per written block; index {}",
            status.io_per_write,
            size(status.index_bytes)
        ),
    );
    if status.window.reduce.and_then(reduce_words).is_some() || status.stored_bytes < status.content_bytes {
        row(
            "reduced",
            format!(
                "{} to {} since it was opened: {} versions to what differs, {} to nothing",
                size(status.content_bytes),
                size(status.stored_bytes),
                status.xor_versions,
                status.identical_versions
            ),
        );
    }
    for (name, io) in [
        ("reads of the origin", status.current_reads),
        ("writes of the origin", status.current_writes),
        ("reads of the log", status.history_reads),
        ("writes of the log", status.history_writes),
        ("metadata", status.metadata),
    ] {
        if io.operations > 0 {
            let each = io.blocks as f64 / status.written_blocks.max(1) as f64;
            let words = format!("{} blocks ({each:.2} a written block)", io.blocks);
            row(name, format!("{words} in {} operations, {} in sequence", io.operations, io.sequential));
        }
    }
    if let Some(folding) = status.folding {
        row("folding back", format!("block {} of {}", folding.done_blocks, folding.blocks));
    }
    if status.given_up > 0 {
        row("given up", format!("{} times for lack of space", status.given_up));
    }
    for copy in &status.reverts {
        row(
            "copying",
            format!("back to {}: block {} of {}", show(copy.at_ns), copy.done_blocks, copy.blocks),
        );
    }
    if let Some(problem) = &status.device.problem {
        row("problem", problem.clone());
    }
    if status.waiting > 0 {
        let why = "the store is full, and the floor lets none of its history go";
        row("waiting", format!("{} writes and flushes for room: {why}", status.waiting));
    }
    if status.lost_versions > 0 {
        let first = status.lost.iter().take(LOST_SHOWN);
        let first = first.map(|lost| format!("block {} at {}", lost.block, show(lost.at_ns)));
        let more = if status.lost_versions > LOST_SHOWN as u64 { ", ..." } else { "" };
        let first = first.collect::<Vec<_>>().join(", ");
        row("lost", format!("{} versions can't be read: {first}{more}", status.lost_versions));
    }
    for mark in &status.marks {
        let rest = if mark.consistent { ", consistent" } else { "" };
        row("mark", format!("{} at {}{rest}", mark.name, show(mark.at_ns)));
    }
    for view in &status.views {
        let kind = if view.writable { "clone" } else { "view" };
        let closed =
            view.problem.as_ref().map(|why| format!(": it can't be opened: {why}")).unwrap_or_default();
        row(kind, format!("{} of {}{closed}", view.name, show(view.at_ns)));
    }
    table(["", ""], rows)
}
