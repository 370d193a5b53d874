//! The rights of a calling program of which the kernel tells only the thread.
//!
//! With mounts whose user numbers are mapped (`FUSE_ALLOW_IDMAP`), a request that makes no file has
//! no user and no group. `/proc` has them, as this program sees them, while the thread waits for
//! its answer.

use std::fs;

/// The capability to change a file and leave its set-user-id bits (`CAP_FSETID`).
const CAPABILITY_BIT: u64 = 1 << 4;

/// The rights of a thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// It is root, here and not only to itself, and has [`CAPABILITY_BIT`].
    pub(crate) may_keep_rights: bool,
    groups: Vec<u32>,
}

impl Caller {
    /// The thread with that number; `None` when it is not seen from here.
    pub(crate) fn of(thread: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{thread}/status")).ok()?)
    }

    /// `Uid` and `Gid` are real, effective, saved, and that for file access (`proc_pid_status(5)`).
    pub(crate) fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let for_files = |name: &str| field(name)?.split_whitespace().nth(3)?.parse::<u32>().ok();
        let capabilities = u64::from_str_radix(field("CapEff")?.trim(), 16).ok()?;
        let more = field("Groups")?.split_whitespace().filter_map(|group| group.parse().ok());
        Some(Self {
            may_keep_rights: for_files("Uid")? == 0 && capabilities & CAPABILITY_BIT != 0,
            groups: more.chain([for_files("Gid")?]).collect(),
        })
    }

    pub(crate) fn is_in(&self, group: u32) -> bool {
        self.groups.contains(&group)
    }
}
