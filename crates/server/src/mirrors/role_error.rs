//! Refusals of changes to a mirror, its role or its snapshots: each case with its kind and its next
//! step.

use cairn_api::ErrorKind;
use cairn_base::ByteSize;

/// Why a command on a mirror is refused.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    /// A command for a mirror was given on the side that takes writes.
    #[error("`{volume}` is the source here; its mirror is `{there}` at {address}")]
    IsSource {
        /// The volume here.
        volume: String,
        /// The name of the mirror on its server.
        there: String,
        /// The address of that server.
        address: String,
    },
    /// The side that takes writes has not allowed the change.
    #[error("the server at {address} has not allowed `{volume}` to become the source of `{there}`")]
    ConsentNeeded {
        /// The volume here.
        volume: String,
        /// The volume on the other side.
        there: String,
        /// The address of the other side.
        address: String,
        /// The name of this mirror on the other side.
        mirror: String,
    },
    /// A consent is for one mirror, and there are several.
    #[error("`{volume}` has several mirrors: {}", mirrors.join(", "))]
    SeveralMirrors {
        /// The volume.
        volume: String,
        /// Their names.
        mirrors: Vec<String>,
    },
    /// A consent is for a mirror, and none has that name, or none exists.
    #[error("`{volume}` has no mirror{} that can become the source", named(mirror.as_deref()))]
    NoSuchMirror {
        /// The volume.
        volume: String,
        /// As given.
        mirror: Option<String>,
    },
    /// A transfer was aborted on request.
    #[error("the transfer into `{volume}` was aborted; the last complete image stays")]
    Aborted {
        /// The mirror.
        volume: String,
    },
    /// The other side announces an address from which it never connected.
    #[error(
        "`{volume}` is to follow {address}, an address that the other side announces, but where this server has never seen it"
    )]
    AddressUnseen {
        /// The volume.
        volume: String,
        /// As announced by the other side.
        address: String,
    },
    /// Names that come and go with mirrors and dumps.
    #[error(
        "the name `{name}` is reserved: snapshot names must not begin with `mirror.`, `image.` or `dump.`"
    )]
    ReservedName {
        /// As given.
        name: String,
    },
    /// A snapshot stays until its lock has ended.
    #[error("`{volume}@{snapshot}` is locked until {until}{}", and_others(*others))]
    Locked {
        /// The volume.
        volume: String,
        /// The snapshot whose lock ends last.
        snapshot: String,
        /// How many more are locked.
        others: usize,
        /// When that is.
        until: String,
        /// A lock key was set.
        has_key: bool,
    },
    /// Another lock key would lift locks that were not made with it.
    #[error("the lock key of `{volume}` stays as it is while {locked} snapshot(s) are locked")]
    LockKeyStays {
        /// The volume.
        volume: String,
        /// How many snapshots.
        locked: usize,
    },
    /// No second authority was named.
    #[error("`{volume}` has no lock key")]
    NoLockKey {
        /// The volume.
        volume: String,
    },
    /// Not the key.
    #[error("this is not the lock key of `{volume}`")]
    WrongLockKey {
        /// The volume.
        volume: String,
    },
    /// The disks of a new mirror have no room for its redirect area.
    #[error("the disks for `{volume}` have {}, and a mirror needs {}: the volume, and as much again for blocks whose places are still in use", ByteSize(*have), ByteSize(*need))]
    DisksTooSmall {
        /// The mirror.
        volume: String,
        /// Bytes.
        need: u64,
        /// Bytes.
        have: u64,
    },
    /// A volume that is to become a mirror follows a source already.
    #[error("`{volume}` is a mirror already, and follows its source")]
    SeedFollows {
        /// The volume.
        volume: String,
    },
    /// A volume that is to become a mirror is another one than the source's.
    #[error("`{volume}` is no copy of `{there}`: the two volumes have different identities")]
    SeedIsOther {
        /// The volume here.
        volume: String,
        /// The source's volume.
        there: String,
    },
    /// A volume that is to become a mirror has no snapshot that the source still has.
    #[error("the source has none of the snapshots of `{volume}`{}: they were deleted there, or `{volume}` is from another past of it", newest(snapshot.as_deref()))]
    SeedStale {
        /// The volume here.
        volume: String,
        /// Its newest snapshot.
        snapshot: Option<String>,
        /// The price of a comparison.
        compare: ByteSize,
        /// The largest size of the differences.
        data_max: ByteSize,
    },
    /// A volume that is to become a mirror has content that its source lacks.
    #[error("`{volume}` has changed since {}: {bytes} in it are not at the source{}", since(common.as_deref()), and_snapshots(snapshots))]
    SeedDiverged {
        /// The volume here.
        volume: String,
        /// The newest common snapshot.
        common: Option<String>,
        /// Blocks that only this side has.
        bytes: ByteSize,
        /// Snapshots that only this side has.
        snapshots: Vec<String>,
    },
}

fn newest(snapshot: Option<&str>) -> String {
    snapshot.map(|snapshot| format!(" (the newest is `{snapshot}`)")).unwrap_or_default()
}

fn since(common: Option<&str>) -> String {
    common.map_or("it was made".to_owned(), |common| format!("the common snapshot `{common}`"))
}

fn and_snapshots(snapshots: &[String]) -> String {
    match snapshots {
        [] => String::new(),
        names => format!(", nor are its snapshots {}", names.join(", ")),
    }
}

fn and_others(others: usize) -> String {
    if others == 0 { String::new() } else { format!(", and {others} more snapshot(s) are locked") }
}

fn named(mirror: Option<&str>) -> String {
    mirror.map(|mirror| format!(" `{mirror}`")).unwrap_or_default()
}

impl RoleError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            RoleError::IsSource { .. } => ErrorKind::WrongRole,
            RoleError::ConsentNeeded { .. } => ErrorKind::PeerRefused,
            RoleError::SeveralMirrors { .. } | RoleError::ReservedName { .. } => ErrorKind::Usage,
            RoleError::Aborted { .. } => ErrorKind::Interrupted,
            RoleError::AddressUnseen { .. } => ErrorKind::PeerRefused,
            RoleError::NoSuchMirror { .. } | RoleError::NoLockKey { .. } => ErrorKind::NotFound,
            RoleError::Locked { .. } | RoleError::LockKeyStays { .. } => ErrorKind::Busy,
            RoleError::WrongLockKey { .. } => ErrorKind::Unauthorized,
            RoleError::DisksTooSmall { .. } => ErrorKind::TooSmall,
            RoleError::SeedFollows { .. } => ErrorKind::WrongRole,
            RoleError::SeedIsOther { .. } | RoleError::SeedStale { .. } | RoleError::SeedDiverged { .. } => {
                ErrorKind::Diverged
            }
        }
    }

    /// The next step for the user.
    pub(crate) fn next(&self) -> String {
        match self {
            RoleError::IsSource { there, address, .. } => {
                format!("run the command on the server at {address}, where the mirror is called `{there}`")
            }
            RoleError::ConsentNeeded { volume, there, address, mirror } => format!(
                "on the server at {address}: `cairn mirror allow-reverse {there} --mirror {mirror}`; then run this command again within 15 minutes. Until then `{volume}` stays a mirror"
            ),
            RoleError::SeveralMirrors { volume, mirrors } => {
                let one = mirrors.first().map(String::as_str).unwrap_or("NAME");
                format!("name the one that may become the source: `cairn mirror allow-reverse {volume} --mirror {one}`")
            }
            RoleError::Aborted { volume } => {
                format!("`cairn mirror update {volume}` resumes it with what has arrived")
            }
            RoleError::AddressUnseen { volume, address } => format!(
                "check that address with the owner of the other side, and follow it there: `cairn mirror resync {volume} --from {address}`; name another address if that is wrong"
            ),
            RoleError::ReservedName { .. } => "choose another name".into(),
            RoleError::Locked { volume, until, has_key: false, .. } => format!(
                "wait until {until}: `{volume}` has no lock key that lifts the lock earlier"
            ),
            RoleError::Locked { volume, until, has_key: true, .. } => format!(
                "wait until {until}, or lift the locks for 15 minutes: `cairn mirror unlock {volume} --lock-key FILE`"
            ),
            RoleError::LockKeyStays { volume, .. } => {
                format!("`cairn mirror status {volume}` shows when the last lock ends; where a lock key was set, lift the locks with it first: `cairn mirror unlock {volume} --lock-key FILE`")
            }
            RoleError::NoLockKey { volume } => {
                format!("`cairn mirror status {volume}` shows when the last lock ends; a lock key is set with --lock-key at `cairn mirror create`, or with `cairn mirror set` while no snapshot is locked")
            }
            RoleError::DisksTooSmall { need, have, .. } => format!(
                "add a sparse file as the last --device: `truncate -s {} FILE`; it takes space only while such blocks wait",
                need.saturating_sub(*have).next_multiple_of(1 << 20)
            ),
            RoleError::SeedFollows { volume } => format!(
                "`cairn mirror update {volume}` transfers the newest image, and `cairn mirror resync {volume}` completes an interrupted creation; `cairn mirror repoint {volume} TOKEN` makes it follow another server"
            ),
            RoleError::SeedIsOther { there, .. } => format!(
                "restore an image dump of `{there}` here with `cairn image restore`, and make that volume the mirror; or leave out --from, and everything is sent"
            ),
            RoleError::SeedStale { compare, data_max, .. } => format!(
                "restore a newer dump of the source with `cairn image restore`, and name that volume; or add `--compare --discard-divergent`, which compares {compare} of checksums and sends the differences, at most {data_max}"
            ),
            RoleError::SeedDiverged { .. } => {
                "run the command again with `--spill FILE`, which saves them to a file, or with `--discard-divergent`; `-n` shows what would be sent".into()
            }
            RoleError::WrongLockKey { .. } => "name the file that was named when the lock key was set".into(),
            RoleError::NoSuchMirror { .. } => {
                "see the mirrors of this server with `cairn status --json`, among followers; a mirror is listed once it has asked for an image".into()
            }
        }
    }
}
