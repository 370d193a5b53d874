//! `cairn service uninstall`: removes the files of `cairn service install`.
//!
//! The installation keeps a list of its files with a checksum of each. A file that was changed
//! since belongs to its owner, and stays. Data is not in the list.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cairn_api::ErrorKind;
use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::output::Output;

/// The list, below the root.
const LIST: &str = "etc/cairn/installed.json";
/// The link that `systemctl enable` makes.
const ENABLED: &str = "etc/systemd/system/multi-user.target.wants/cairn.service";

/// A file that was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Made {
    /// Below the root.
    path: PathBuf,
    /// Of its content.
    blake3: String,
}

fn digest(path: &Path) -> io::Result<String> {
    Ok(blake3::hash(&fs::read(path)?).to_hex().to_string())
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Failure {
    let path = path.display().to_string();
    move |error| {
        let next = match error.kind() {
            io::ErrorKind::PermissionDenied => "run it as root (sudo)",
            _ => "see what is wrong with the file, and run it again",
        };
        Failure::new(ErrorKind::Failed, format!("{path}: {error}"), next)
    }
}

/// Keeps the list of the files of an installation. Files of an earlier installation that this one
/// did not make stay in it.
pub fn note<'a>(root: &Path, made: impl Iterator<Item = &'a PathBuf>) -> Result<(), Failure> {
    let list = root.join(LIST);
    let mut all = read(&list)?.unwrap_or_default();
    for path in made {
        let below = path.strip_prefix(root).unwrap_or(path).to_owned();
        let blake3 = digest(path).map_err(failed(path))?;
        all.retain(|one| one.path != below);
        all.push(Made { path: below, blake3 });
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    let text = serde_json::to_string_pretty(&all).unwrap_or_default() + "\n";
    let new = list.with_extension("new");
    fs::write(&new, text).and_then(|()| fs::rename(&new, &list)).map_err(failed(&list))
}

fn read(list: &Path) -> Result<Option<Vec<Made>>, Failure> {
    let text = match fs::read_to_string(list) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(list)(error)),
    };
    let made: Vec<Made> = serde_json::from_str(&text).map_err(|error| {
        let what = format!("{} is damaged: {error}", list.display());
        Failure::new(ErrorKind::Failed, what, "run `cairn service install` again, which writes it anew")
    })?;
    let is_below = |one: &Made| one.path.is_relative() && !one.path.iter().any(|part| part == "..");
    Ok(Some(made.into_iter().filter(is_below).collect()))
}

/// Removes the installed files.
pub fn run(root: &Path, dry_run: bool, output: Output) -> Result<(), Failure> {
    let list = root.join(LIST);
    let Some(made) = read(&list)? else {
        let what = format!("`cairn service install` made nothing here: there is no {}", list.display());
        return Err(Failure::new(
            ErrorKind::NotFound,
            what,
            "name the directory of the installation with --root",
        ));
    };
    refuse_running(root)?;
    let (mut own, mut changed) = (Vec::new(), Vec::new());
    for one in made {
        let path = root.join(&one.path);
        match digest(&path) {
            Ok(now) if now == one.blake3 => own.push(path),
            Ok(_) => changed.push(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path)(error)),
        }
    }
    let kept: String =
        changed.iter().map(|path| format!("\nkept {}, which was changed", path.display())).collect();
    let object = serde_json::json!({ "removes": own, "keeps": changed });
    if dry_run {
        output.show(&object, |_| {
            let removed: String = own.iter().map(|path| format!("removes {}\n", path.display())).collect();
            format!("{removed}nothing was done{kept}")
        });
        return Ok(());
    }
    output.confirm(&format!("this removes {} files of the service below {}", own.len(), root.display()))?;
    for path in &own {
        fs::remove_file(path).map_err(failed(path))?;
    }
    fs::remove_file(&list).map_err(failed(&list))?;
    // A directory that has more in it stays.
    let _ = fs::remove_dir(root.join("etc/cairn"));
    let removed = serde_json::json!({ "removed": own, "kept": changed });
    output.tell(&removed, |_| {
        format!(
            "removed {} files; the data directory stays as it is{kept}\nnext: systemctl daemon-reload",
            own.len()
        )
    });
    Ok(())
}

/// Refuses while the service is enabled or runs: systemd would not find its unit any more.
fn refuse_running(root: &Path) -> Result<(), Failure> {
    let runs = || {
        let asked = std::process::Command::new("systemctl").args(["is-active", "--quiet", "cairn"]).status();
        asked.is_ok_and(|status| status.success())
    };
    if root.join(ENABLED).symlink_metadata().is_ok() || (root == Path::new("/") && runs()) {
        let next = "systemctl disable --now cairn, then run it again";
        return Err(Failure::new(ErrorKind::Busy, "the service is enabled or runs", next));
    }
    Ok(())
}
