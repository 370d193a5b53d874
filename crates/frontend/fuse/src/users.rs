//! Users of a file system: programs that have a file of it open, work in a directory of it or have
//! it in memory, and mount namespaces in which it is still mounted.
//!
//! For messages. A server without root rights sees only its own user's programs, and a holder
//! without a process (a loop device, an export of NFS) is invisible.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::mount::{DeviceNumber, is_on, mounted_line};

/// The users of the file system with that number, such as `bash (1234)`, in order of process.
pub(crate) fn users_of(device: DeviceNumber) -> Vec<String> {
    let own_namespace = fs::read_link("/proc/self/ns/mnt").ok();
    let mut namespaces = HashSet::from([own_namespace]);
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let mut numbers: Vec<u32> = listed.filter_map(number).collect();
    numbers.sort_unstable();
    let mut users = Vec::new();
    for number in numbers {
        let process = Path::new("/proc").join(number.to_string());
        let name = || {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            format!("{} ({number})", name.trim_end())
        };
        if works_in(&process, device) {
            users.push(name());
        } else if namespaces.insert(fs::read_link(process.join("ns/mnt")).ok())
            && has_mounted(&process, device)
        {
            users.push(format!("the mount namespace of {}", name()));
        }
    }
    users
}

fn works_in(process: &Path, device: DeviceNumber) -> bool {
    let own = ["cwd", "root", "exe"].map(|name| process.join(name));
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    own.into_iter().chain(open).any(|path| is_on(&path, device)) || has_mapped(process, device)
}

/// Field 4 of a line of `maps`: the device in hexadecimal.
fn has_mapped(process: &Path, (major, minor): DeviceNumber) -> bool {
    let wanted = format!("{major:02x}:{minor:02x}");
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    maps.split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(3))
        .any(|field| field == wanted.as_bytes())
}

fn has_mounted(process: &Path, device: DeviceNumber) -> bool {
    let table = fs::read(process.join("mountinfo")).unwrap_or_default();
    let mut lines = table.split(|byte| *byte == b'\n').map(std::ffi::OsStr::from_bytes);
    lines.any(|line| mounted_line(&line.to_string_lossy()).is_some_and(|line| line.device == device))
}
