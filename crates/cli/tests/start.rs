//! Pages of the book run as they are written: each `bash` block of a page, in order, in one shell,
//! with the program of this build. These are all Start pages, and the Tasks pages that need no
//! disks, paths or second server. `src/documents.rs` checks that the commands of all others parse.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process_group};

/// The commands of a page.
fn commands(page: &str) -> String {
    let mut commands = String::new();
    let mut is_command = false;
    for line in page.lines() {
        match line {
            "```bash" => is_command = true,
            "```" => is_command = false,
            line if is_command => commands.extend([line, "\n"]),
            _ => {}
        }
    }
    commands
}

fn is_missing(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    !found.is_ok_and(|found| found.status.success())
}

/// Runs a Start page in an empty folder. `mounts` are the folders that a failed run may leave
/// mounted.
fn run(name: &str, needs: &[&str], mounts: &[&str]) {
    let missing: Vec<&&str> = needs.iter().filter(|program| is_missing(program)).collect();
    let is_root = rustix::process::geteuid().is_root();
    if !missing.is_empty() || !is_root {
        assert!(std::env::var_os("CI").is_none(), "this needs root and {needs:?}; missing: {missing:?}");
        eprintln!("skipped: this needs root and {needs:?}");
        return;
    }
    run_commands(name, &commands_of(&format!("start/{name}")), mounts);
}

/// The commands of a page of the book.
fn commands_of(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let commands = commands(&fs::read_to_string(path).unwrap());
    assert!(commands.lines().count() > 3, "{page} has no commands");
    commands
}

/// Runs the commands of the section `name` in an empty folder.
fn run_commands(name: &str, commands: &str, mounts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    // The database of one page runs as another user.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_cairn")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let printed = folder.path().join("printed");
    let file = fs::File::create(&printed).unwrap();
    let mut shell = Command::new("bash")
        .args(["-e", "-x", "-o", "pipefail", "-c", commands])
        .current_dir(folder.path())
        .env("PATH", path)
        .env_remove("CAIRN_DATA")
        .env_remove("CAIRN_SERVER")
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .process_group(0)
        .spawn()
        .unwrap();
    let status = shell.wait().unwrap();
    // A page that failed leaves its servers and mounts.
    let group = Pid::from_raw(i32::try_from(shell.id()).unwrap()).unwrap();
    kill_process_group(group, Signal::KILL).ok();
    for mount in mounts {
        unmount(folder.path().join(mount), UnmountFlags::DETACH).ok();
    }
    let printed = fs::read_to_string(printed).unwrap();
    assert!(status.success(), "{name} failed:\n{printed}");
}

/// A server with a volume and a snapshot, as the Tasks pages take for granted. Commands that ask
/// get a yes.
const BEFORE_TASKS: &str = "
cairn() { command cairn --yes \"$@\"; }
cairn serve --nbd off --iscsi off --mirror off &
timeout 30 sh -c 'until cairn status >/dev/null 2>&1; do sleep 0.1; done'
cairn volume create vol0 --size 1G
cairn snapshot create vol0@friday
";

#[test]
fn tasks_on_one_volume_run_as_their_pages_describe() {
    let mut commands = BEFORE_TASKS.to_owned();
    // The faults of the last page may end the writes to the volume.
    for page in ["nbd", "snapshots", "clones", "rehearse"] {
        commands.push_str(&commands_of(&format!("tasks/{page}.md")));
    }
    commands.push_str("kill %1\n");
    run_commands("tasks", &commands, &[]);
}

#[test]
fn server_starts_and_its_service_is_shown_as_the_page_describes() {
    run("install.md", &[], &[]);
}

#[test]
fn deleted_file_comes_back_as_the_page_describes() {
    run("deleted-file.md", &["fusermount3"], &["files"]);
}

#[test]
fn mirror_fails_over_as_the_page_describes() {
    run("first-mirror.md", &["qemu-io"], &[]);
}

#[test]
fn database_returns_to_a_mark_as_the_page_describes() {
    run("database.md", &["fusermount3", "setpriv"], &["pg"]);
}
