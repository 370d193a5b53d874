//! Programs of the host from inside a container.
//!
//! The image of Cairn has no programs but its own. `cairn __host PROGRAM ...` enters the mount
//! namespace of process 1 and becomes the program there. It needs the process namespace of the host
//! (`hostPID`) and the rights of root. It is a process of its own, as only one without threads can
//! change its namespace.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The first argument of that mode.
pub const COMMAND: &str = "__host";
/// Another process than 1 of the host, for tests.
const PROCESS: &str = "CAIRN_HOST_PROCESS";
/// The exit code if the program does not start.
const FAILED: u8 = 127;

/// The folder in `/proc` of a process of the host.
pub fn process() -> PathBuf {
    Path::new("/proc").join(std::env::var_os(PROCESS).unwrap_or_else(|| "1".into()))
}

/// Becomes the program that the arguments name. Returns only on a failure.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        eprintln!("{what}: {error}");
        ExitCode::from(FAILED)
    };
    let Some((program, arguments)) = arguments.split_first() else {
        return failed(COMMAND, &"there is no program");
    };
    let path = process().join("ns/mnt");
    let namespace = match std::fs::File::open(&path) {
        Ok(namespace) => namespace,
        Err(error) => return failed(&path.to_string_lossy(), &error),
    };
    if let Err(error) = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount)) {
        return failed("cannot enter the mount namespace of the host", &error);
    }
    let error = Command::new(program).args(arguments).current_dir("/").exec();
    failed(&program.to_string_lossy(), &error)
}
