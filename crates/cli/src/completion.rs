//! Completions: a script for a shell, and the names that only a server knows.
//!
//! The script is that of `clap_complete`, with a function before it that asks `cairn __complete`
//! for names of volumes, snapshots, LUNs, mirrors and peers. That command takes the words up to the
//! cursor and prints one name a line. It prints none if the word is not a name, or if no server
//! answers in time. Then the script of `clap_complete` continues with commands, options and files.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use cairn_api::client::{Client, Place};
use cairn_api::{self as api, Address, DEFAULT_DATA};
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use crate::arguments::Arguments;

/// The hidden command.
pub const COMMAND: &str = "__complete";
/// A person waits with a finger on the key.
const PATIENCE: Duration = Duration::from_secs(2);
/// More names are no help.
const MOST: usize = 1000;

const BASH: &str = r#"
_cairn_names() {
    local line="${COMP_LINE:0:COMP_POINT}" words cur names strip=""
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    cur="${words[-1]}"
    mapfile -t names < <("${words[0]}" __complete "${words[@]}" 2>/dev/null)
    if (( ${#names[@]} == 0 )); then
        _cairn "$@"
        return
    fi
    [[ $COMP_WORDBREAKS == *@* && $cur == *@* ]] && strip="${cur%"${cur##*@}"}"
    COMPREPLY=("${names[@]#"$strip"}")
    [[ ${#names[@]} -eq 1 && ${names[0]} == *[@/] ]] && compopt -o nospace 2>/dev/null
}
complete -F _cairn_names -o nosort -o bashdefault -o default cairn
"#;

const ZSH: &str = r#"
_cairn_names() {
    local -a names
    names=(${(f)"$(${words[1]} __complete "${(@)words[1,CURRENT]}" 2>/dev/null)"})
    if (( ${#names} )); then
        compadd -Q -S '' -a names
    else
        _cairn "$@"
    fi
}
compdef _cairn_names cairn
"#;

const FISH: &str = r#"
complete -c cairn -a '(cairn __complete (commandline -opc) (commandline -ct) 2>/dev/null)'
"#;

/// The script for a shell.
pub fn script(shell: Shell) -> Vec<u8> {
    let mut command = Arguments::command();
    // Into memory: it panics where it can't write.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "cairn", &mut text);
    let names = match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
        _ => "",
    };
    text.extend_from_slice(names.as_bytes());
    text
}

/// The names that complete the last of `words`, of which the first is the program.
pub fn names(words: &[OsString]) -> Vec<String> {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut command = Arguments::command();
    command.build();
    let Some(wanted) = wanted(&command, &words) else { return Vec::new() };
    let typed = words.last().map_or("", String::as_str);
    let Some(place) = place(&wanted) else { return Vec::new() };
    let Ok(client) = Client::new(place, |_| ()) else { return Vec::new() };
    client.hurry(PATIENCE);
    let known = known(wanted.kind, typed, &client).unwrap_or_default();
    known.into_iter().filter(|name| name.starts_with(typed)).take(MOST).collect()
}

/// Things that a word can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Volume,
    Lun,
    /// A LUN that is made: its volume.
    NewLun,
    Snapshot,
    NewSnapshot,
    /// A volume or a snapshot.
    Tree,
    Export,
    Device,
    /// A device or a volume that has a history.
    History,
    Group,
    Clone,
    Peer,
    Mirror,
    /// A mirror of a volume here, by the name of its peer.
    Follower,
    Bucket,
    Notify,
    Job,
    Fleet,
    OidcRule,
}

/// The word to complete, and the server that has the names.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    kind: Kind,
    data: Option<String>,
    server: Option<String>,
    token_file: Option<String>,
}

/// Walks the words as the program would read them.
fn wanted(command: &Command, words: &[String]) -> Option<Wanted> {
    let (typed, before) = words.split_last()?;
    let (mut command, mut path, mut positional) = (command, Vec::new(), 0);
    let mut of_option: Option<&Arg> = None;
    let (mut data, mut server, mut token_file) = (None, None, None);
    for word in before.iter().skip(1) {
        if let Some(option) = of_option.take() {
            match option.get_id().as_str() {
                "data" => data = Some(word.clone()),
                "server" => server = Some(word.clone()),
                "token_file" => token_file = Some(word.clone()),
                _ => {}
            }
        } else if let Some(option) = word.strip_prefix("--") {
            of_option =
                command.get_arguments().find(|one| one.get_long() == Some(option)).filter(needs_value);
        } else if let Some(short) = word.strip_prefix('-').and_then(|word| word.chars().last()) {
            of_option =
                command.get_arguments().find(|one| one.get_short() == Some(short)).filter(needs_value);
        } else if let Some(below) = command.find_subcommand(word).filter(|_| positional == 0) {
            path.push(below.get_name());
            command = below;
        } else {
            positional += 1;
        }
    }
    let argument = match of_option {
        Some(option) => option,
        None if typed.starts_with('-') => return None,
        None => {
            let all: Vec<&Arg> = command.get_positionals().collect();
            let is_many = |one: &Arg| one.get_num_args().is_some_and(|count| count.max_values() > 1);
            all.get(positional).copied().or_else(|| all.last().copied().filter(|one| is_many(one)))?
        }
    };
    Some(Wanted { kind: kind(&path, argument.get_id().as_str())?, data, server, token_file })
}

fn needs_value(option: &&Arg) -> bool {
    option.get_action().takes_values() && option.get_num_args().is_none_or(|count| count.min_values() > 0)
}

/// The kind of name that an argument takes; none if a server has no such names.
fn kind(path: &[&str], argument: &str) -> Option<Kind> {
    let kind = match (path, argument) {
        (["snapshot", "create"], "name") => Kind::NewSnapshot,
        (["snapshot", "rollback"], "name") | (["mount"], "name") => Kind::Tree,
        (["snapshot", "create"], "group") => Kind::Group,
        (["snapshot", "diff"], "names") => Kind::Tree,
        (["snapshot", ..], "volume") => Kind::Volume,
        (["snapshot", _], "name" | "names") | (["clone", "create"], "of") => Kind::Snapshot,
        (["dump"] | ["image", "dump"], "name") => Kind::Tree,
        (["volume", "create"] | ["clone", "create"] | ["group", "create"], "name") => return None,
        (["group", "create"], "volumes") => Kind::Volume,
        (["mirror", "create"], "from") => Kind::Volume,
        (["mirror", "create"], _) | (["device", "adopt"], _) | (["bucket" | "notify", "add"], _) => {
            return None;
        }
        (["volume", "open"], _) => return None,
        (["volume", _], "name") => Kind::Volume,
        (["lun", "create"], "name") => Kind::NewLun,
        (["lun", "list"] | ["quota", _] | ["image", "levels"] | ["peer", "invite"], "volume") => Kind::Volume,
        (["lun", _], "name") => Kind::Lun,
        (["export", _], "name") | (["trace", "record"], "export") => Kind::Export,
        (["device", _], "name") => Kind::Device,
        (["history", "enable"], "name") => Kind::Volume,
        (["history", _], "name") => Kind::History,
        (["group", _], "name") => Kind::Group,
        (["clone", _], "name") => Kind::Clone,
        (["peer", _], "id") => Kind::Peer,
        (["mirror", "forget"], "name") | (["mirror", _], "mirror") => Kind::Follower,
        (["mirror", "allow-reverse" | "forget"], "volume") => Kind::Volume,
        (["mirror", "resync" | "failback"], "name") => Kind::Volume,
        (["mirror", _], "name") => Kind::Mirror,
        (["bucket", _] | ["bucket", "key", _], "name") => Kind::Bucket,
        (["notify", _], "name") => Kind::Notify,
        (["job", _], "id") => Kind::Job,
        (["fleet", "show" | "test" | "delete"], "name") => Kind::Fleet,
        (["oidc", "rule", "delete"], "name") => Kind::OidcRule,
        _ => return None,
    };
    Some(kind)
}

/// Where the server is, as the words before and the environment say.
fn place(wanted: &Wanted) -> Option<Place> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let server = wanted.server.clone().or_else(|| match wanted.data {
        Some(_) => None,
        None => variable("CAIRN_SERVER"),
    });
    match server.map(|server| server.parse()) {
        None => {
            let data = wanted.data.clone().or_else(|| variable("CAIRN_DATA"));
            Some(Place::Data(data.map_or_else(|| DEFAULT_DATA.into(), PathBuf::from)))
        }
        Some(Ok(Address::Unix(path))) => Some(Place::Unix(path)),
        Some(Ok(Address::Tcp(address))) => {
            let file = wanted.token_file.clone().or_else(|| variable("CAIRN_TOKEN_FILE"))?;
            let token = std::fs::read_to_string(file).ok()?;
            Some(Place::Tcp(address, token.trim().to_owned()))
        }
        Some(_) => None,
    }
}

/// The names of a kind that a server has.
fn known(kind: Kind, typed: &str, client: &Client) -> Result<BTreeSet<String>, api::ErrorBody> {
    let volumes = || -> Result<Vec<String>, api::ErrorBody> {
        let volumes: Vec<api::Volume> = client.get("/v1/volumes")?;
        Ok(volumes.into_iter().map(|volume| volume.name).collect())
    };
    let with = |end: char| -> Result<BTreeSet<String>, api::ErrorBody> {
        Ok(volumes()?.into_iter().map(|name| format!("{name}{end}")).collect())
    };
    let status = || client.get::<api::Status>("/v1/status");
    let snapshots = |volume: &str| -> Result<BTreeSet<String>, api::ErrorBody> {
        // A name that is none is asked about nowhere.
        let volume = super::commands::segment(volume).map_err(|failure| failure.body)?;
        let snapshots: Vec<api::Snapshot> = client.get(&format!("/v1/volumes/{volume}/snapshots"))?;
        Ok(snapshots.into_iter().map(|snapshot| snapshot.name).collect())
    };
    let exports = || client.get::<Vec<api::Export>>("/v1/exports");
    Ok(match kind {
        Kind::Volume => volumes()?.into_iter().collect(),
        Kind::NewLun => with('/')?,
        Kind::NewSnapshot => with('@')?,
        Kind::Snapshot | Kind::Tree => match typed.split_once('@') {
            Some((volume, _)) => snapshots(volume)?,
            None if kind == Kind::Tree => volumes()?.into_iter().collect(),
            None => with('@')?,
        },
        Kind::Lun => {
            let is_lun = |name: &String| name.contains('/') && !name.contains('@');
            exports()?.into_iter().map(|export| export.name).filter(is_lun).collect()
        }
        Kind::Export => exports()?.into_iter().map(|export| export.name).collect(),
        Kind::Device => {
            let devices: Vec<api::Device> = client.get("/v1/devices")?;
            devices.into_iter().map(|device| device.name).collect()
        }
        Kind::History => {
            let devices: Vec<api::Device> = client.get("/v1/devices")?;
            let volumes: Vec<api::Volume> = client.get("/v1/volumes")?;
            let devices = devices.into_iter().filter(|one| one.history.is_some()).map(|one| one.name);
            let volumes = volumes.into_iter().filter(|one| one.history.is_some()).map(|one| one.name);
            devices.chain(volumes).collect()
        }
        Kind::Group => {
            let groups: Vec<api::Group> = client.get("/v1/groups")?;
            groups.into_iter().map(|group| group.name).collect()
        }
        Kind::Clone => {
            let clones: Vec<api::VolumeClone> = client.get("/v1/clones")?;
            clones.into_iter().map(|clone| clone.name).collect()
        }
        Kind::Peer => {
            let peers: Vec<api::Peer> = client.get("/v1/peers")?;
            peers.into_iter().map(|peer| peer.name).collect()
        }
        Kind::Mirror => {
            let mirrors: Vec<api::Mirror> = client.get("/v1/mirrors")?;
            mirrors.into_iter().map(|mirror| mirror.name).collect()
        }
        Kind::Follower => {
            let peer = |follower: api::Follower| follower.peer.unwrap_or(follower.name);
            status()?.followers.into_iter().map(peer).collect()
        }
        Kind::Bucket => {
            let buckets: Vec<api::Bucket> = client.get("/v1/buckets")?;
            buckets.into_iter().map(|bucket| bucket.name).collect()
        }
        Kind::OidcRule => {
            let rules: Vec<api::OidcRule> = client.get("/v1/oidc/rules")?;
            rules.into_iter().map(|rule| rule.name).collect()
        }
        Kind::Fleet => {
            let servers: Vec<api::FleetServer> = client.get("/v1/fleet")?;
            servers.into_iter().map(|server| server.name).collect()
        }
        Kind::Notify => {
            let targets: Vec<api::NotifyTarget> = client.get("/v1/notify")?;
            targets.into_iter().map(|target| target.name).collect()
        }
        Kind::Job => {
            let jobs: Vec<api::Job> = client.get("/v1/jobs")?;
            jobs.into_iter().map(|job| job.id).collect()
        }
    })
}

#[cfg(test)]
mod tests;
