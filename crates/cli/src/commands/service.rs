//! `cairn service install`: the files that systemd wants of a service.
//!
//! Three of them: the unit, the user for systemd-sysusers, and a configuration of one line. The
//! unit and the user belong to the command: it overwrites different content after confirmation. The
//! configuration belongs to its owner, and an existing one is not changed. Completions and manual
//! pages come with them, and a list of all installed files, for [`uninstall`].

mod uninstall;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cairn_api::ErrorKind;
use clap_complete::Shell;
use serde::Serialize;

use crate::arguments::{InstallService, Service};
use crate::exit::Failure;
use crate::output::Output;

const UNIT: &str = include_str!("service/cairn.service");
const SANDBOX: &str = include_str!("service/sandbox.conf");
/// Where the unit, the user and the configuration go.
const UNIT_PATH: &str = "etc/systemd/system/cairn.service";
const USER_PATH: &str = "etc/sysusers.d/cairn.conf";
const CONFIG_PATH: &str = "etc/cairn/cairn.toml";
/// The data directory that systemd makes itself, for the right user.
const STATE: &str = "/var/lib/cairn";
/// The directories that `ProtectHome` and `PrivateTmp` hide from the service.
const HIDDEN: [&str; 4] = ["/home", "/root", "/run/user", "/tmp"];

/// Where each shell finds its completions.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "usr/local/share/bash-completion/completions/cairn"),
    (Shell::Zsh, "usr/local/share/zsh/site-functions/_cairn"),
    (Shell::Fish, "usr/local/share/fish/vendor_completions.d/cairn.fish"),
];
/// Where manual pages go.
const MANUAL: &str = "usr/local/share/man/man1";

/// The outcome for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    Written,
    Unchanged,
    /// It is another one, and its owner's.
    Kept,
    /// Only shown.
    Shown,
}

/// A file of the service.
#[derive(Debug, Serialize)]
struct Installed {
    path: PathBuf,
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Runs a command on the service; `data` is the value of `--data`.
pub fn run(command: Service, data: Option<PathBuf>, output: Output) -> Result<(), Failure> {
    let asked = match command {
        Service::Install(asked) => asked,
        Service::Uninstall { root, dry_run } => return uninstall::run(&root, dry_run, output),
    };
    let config = asked.root.join(CONFIG_PATH);
    // The server uses this configuration, and the unit must permit its directory. An unreadable
    // configuration prevents the start of the server, which reports the reason.
    let said = super::serve::data_dir(&config);
    let wanted = data.as_ref().or(said.as_ref());
    let data = wanted.cloned().unwrap_or_else(|| STATE.into());
    let files = files(&asked, &data)?;
    if let Some(said) = said.filter(|said| *said != data) {
        return Err(Failure::new(
            ErrorKind::Usage,
            format!(
                "the data directory is {} by {}, and {} by --data",
                said.display(),
                config.display(),
                data.display()
            ),
            "leave --data out, or change it in the configuration first: the server goes by that",
        ));
    }
    let mut done = Vec::new();
    for (path, text, is_own) in files {
        let path = asked.root.join(path);
        let outcome = if asked.dry_run { Outcome::Shown } else { write(&path, &text, is_own, output)? };
        let text = (outcome == Outcome::Shown).then_some(text);
        done.push(Installed { path, outcome, text });
    }
    let more = if asked.dry_run { Vec::new() } else { write_documents(&asked.root)? };
    if !asked.dry_run {
        let own = done.iter().filter(|file| file.outcome != Outcome::Kept).map(|file| &file.path);
        uninstall::note(&asked.root, own.chain(&more))?;
    }
    let next = "systemd-sysusers && systemctl daemon-reload && systemctl enable --now cairn";
    let object = serde_json::json!({ "files": done, "documents": more, "next": next });
    if asked.dry_run {
        output.show(&object, |_| {
            let files = done.iter().map(show).collect::<Vec<_>>().join("\n");
            let pages = asked.root.join(MANUAL);
            let completions = COMPLETIONS.map(|(_, path)| asked.root.join(path).display().to_string());
            format!(
                "{files}\n# and completions: {}\n# and manual pages in {}",
                completions.join(", "),
                pages.display()
            )
        });
    } else {
        let lines = || done.iter().map(show).collect::<Vec<_>>().join("\n");
        let find = format!("commands find the server with --data {} (as root)", data.display());
        output.tell(&object, |_| {
            let pages = asked.root.join(MANUAL);
            format!(
                "{}\nwrote completions of {} shells, and manual pages in {}\nnext: {next}\n  {find}",
                lines(),
                COMPLETIONS.len(),
                pages.display()
            )
        });
    }
    Ok(())
}

/// Writes completions and manual pages, which are the command's own; their paths.
fn write_documents(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut made = Vec::new();
    for (shell, path) in COMPLETIONS {
        let path = root.join(path);
        let failed = |error| cannot_write(&path, &error);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let new = path.with_extension("new");
        fs::write(&new, crate::completion::script(shell)).map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)?;
        made.push(path);
    }
    let pages = root.join(MANUAL);
    let failed = |error| cannot_write(&pages, &error);
    fs::create_dir_all(&pages).map_err(failed)?;
    made.extend(crate::manual::write(&pages).map_err(failed)?);
    Ok(made)
}

/// A file cannot be written, and the next step.
fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let next = match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root (sudo), or below another directory with --root",
        _ => "see that the directory can be written to",
    };
    Failure::new(ErrorKind::Failed, format!("{}: {error}", path.display()), next)
}

fn show(file: &Installed) -> String {
    let path = file.path.display();
    match (file.outcome, &file.text) {
        (Outcome::Written, _) => format!("wrote {path}"),
        (Outcome::Unchanged, _) => format!("{path} is as it should be"),
        (Outcome::Kept, _) => format!("kept {path}, which is yours"),
        (Outcome::Shown, text) => format!("# {path}\n{}", text.as_deref().unwrap_or_default()),
    }
}

/// Path below the root, text, and whether it is the command's own.
fn files(asked: &InstallService, data: &Path) -> Result<[(&'static str, String, bool); 3], Failure> {
    let usage = |message: String, next: &str| Err(Failure::new(ErrorKind::Usage, message, next));
    let is_word = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    for name in [Some(&asked.user), asked.disks.as_ref()].into_iter().flatten() {
        if !is_word(name) {
            return usage(
                format!("`{name}` is not a name of a user or group"),
                "give letters, digits, - and _",
            );
        }
    }
    let program = match &asked.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()?,
    };
    for path in [&program, &data.to_owned()] {
        let is_plain = path.to_str().is_some_and(|text| {
            !text.bytes().any(|byte| byte.is_ascii_whitespace() || b"%$\"'\\;".contains(&byte))
        });
        if !path.is_absolute() || !is_plain {
            let message = format!("{} is not a valid path for a unit", path.display());
            return usage(message, "give an absolute path without spaces, quotes, %, $ and ;");
        }
    }
    let hidden = HIDDEN.iter().find(|hidden| program.starts_with(hidden) || data.starts_with(hidden));
    if let Some(hidden) = hidden.filter(|_| !asked.mounts) {
        let message = format!("the sandbox of the service hides {hidden}");
        return usage(
            message,
            "install the program first, as with `install -m 755 cairn /usr/local/bin/`, or name it with --program; the data directory is --data",
        );
    }
    let place = match data == Path::new(STATE) {
        true => "StateDirectory=cairn\nStateDirectoryMode=0700".to_owned(),
        // It is there before, and belongs to the user.
        false => format!("ReadWritePaths={}", data.display()),
    };
    let devices = match &asked.disks {
        Some(group) => format!("SupplementaryGroups={group}"),
        None => "PrivateDevices=yes".to_owned(),
    };
    let sandbox = match (asked.mounts, &asked.disks) {
        (false, _) => SANDBOX.replace("@DEVICES@", &devices),
        (true, Some(_)) => format!("{devices}\n\n"),
        (true, None) => "\n".to_owned(),
    };
    let mut unit = UNIT.replace("@SANDBOX@\n", &sandbox);
    for (name, value) in [
        ("@PROGRAM@", program.display().to_string()),
        ("@CONFIG@", format!("/{CONFIG_PATH}")),
        ("@USER@", asked.user.clone()),
        ("@DATA@", data.display().to_string()),
        ("@PLACE@", place),
    ] {
        unit = unit.replace(name, &value);
    }
    let user = format!("u {} - \"Cairn storage server\" {}\n", asked.user, data.display());
    let config = format!(
        "# Configuration of `cairn serve`; keys are the names of its options, see `cairn serve --help`.\ndata = \"{}\"\n",
        data.display()
    );
    Ok([(UNIT_PATH, unit, true), (USER_PATH, user, true), (CONFIG_PATH, config, false)])
}

/// Writes a file, unless it is there; one of the command's own that differs when that is confirmed.
fn write(path: &Path, text: &str, is_own: bool, output: Output) -> Result<Outcome, Failure> {
    let failed = |error: io::Error| cannot_write(path, &error);
    match fs::read_to_string(path) {
        Ok(there) if there == text => return Ok(Outcome::Unchanged),
        Ok(_) if !is_own => return Ok(Outcome::Kept),
        Ok(_) => output.confirm(&format!("{} differs and is overwritten", path.display()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    // Write a new file beside it first, so that systemd reads a whole one.
    let new = path.with_extension("new");
    fs::write(&new, text).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)?;
    Ok(Outcome::Written)
}
