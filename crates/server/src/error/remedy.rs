//! The kind of each error, and the step that comes next: the one table of it.

use std::path::Path;

use cairn_api::ErrorKind;
use cairn_api::remedy::{
    NO_THREAD_NEXT, device_kind, device_next, dump_kind, dump_next, io_kind, log_next, volume_kind,
    volume_next,
};
use cairn_device::OpenError;
use cairn_files::{FilesError, TreeError};
use cairn_frontend_fuse::MountError;
use cairn_frontend_nbd::ListenError;
use cairn_history::HistoryError;

use super::ServerError;
use crate::state;

impl ServerError {
    /// The kind, for programs: it decides the HTTP status and the exit code.
    pub fn kind(&self) -> ErrorKind {
        use ServerError as E;
        match self {
            E::Invalid { what: "the size", .. } => ErrorKind::WrongSize,
            E::InvalidName { .. }
            | E::Invalid { .. }
            | E::OtherKind { .. }
            | E::Config { .. }
            | E::InvalidToken
            | E::BadRequest { .. }
            | E::DumpIsOlder { .. }
            | E::RestoreOfOthers { .. }
            | E::SocketPath { .. }
            | E::SeveralDeparted { .. }
            | E::NoAddress { .. } => ErrorKind::Usage,
            E::NotFound { .. } | E::NotAMirror { .. } | E::NotDeparted { .. } | E::NothingWritten { .. } => {
                ErrorKind::NotFound
            }
            E::NoSuchPath { .. } | E::StateVersion { .. } | E::PeerVersion { .. } => {
                ErrorKind::VersionMismatch
            }
            E::Taken { .. } | E::GroupsShare { .. } => ErrorKind::Taken,
            E::CloneBaseGone { .. } => ErrorKind::VolumeDamaged,
            E::InUse { .. }
            | E::HeldForMirror { .. }
            | E::SnapshotHeld { .. }
            | E::HasClone { .. }
            | E::Busy { .. }
            | E::Unfinished(_)
            | E::Shown { .. }
            | E::DumpNotWhole { .. }
            | E::DeviceClaimed { .. }
            | E::ClaimedByDevice { .. }
            | E::Mounted { .. }
            | E::MountedElsewhere { .. }
            | E::MountLeft { .. }
            | E::DataDirBusy { .. }
            | E::Paused { .. } => ErrorKind::Busy,
            E::Role(error) => error.kind(),
            E::Resume(error) => error.kind(),
            E::NbdListen(error) => listen_kind(error),
            E::IscsiListen(error) => match error {
                cairn_frontend_iscsi::ListenError::InUse { .. } => ErrorKind::PortTaken,
                cairn_frontend_iscsi::ListenError::NotPermitted { .. } => ErrorKind::Usage,
                cairn_frontend_iscsi::ListenError::Failed { source, .. } => io_kind(source),
            },
            E::Path { source, .. } | E::Listen { source, .. } => io_kind(source),
            E::DamagedState { .. }
            | E::StateUnread { .. }
            | E::StateGone { .. }
            | E::StateNotTaken { .. }
            | E::DamagedIdentity { .. } => ErrorKind::Damaged,
            E::StateKnown { .. } | E::NoPrevious { .. } => ErrorKind::NotFound,
            E::StateNeeded { .. } => ErrorKind::Usage,
            E::DeviceNotEmpty { .. } | E::DestinationTaken { .. } | E::MountNotEmpty { .. } => {
                ErrorKind::NotEmpty
            }
            E::DeviceTooSmall { .. } => ErrorKind::TooSmall,
            E::OpenDevice(error)
            | E::LogUnavailable { source: error, .. }
            | E::HistoryUnavailable { source: error, .. } => open_kind(error),
            E::OverHistory { kind, .. } => *kind,
            E::LogIsThere { .. } | E::Cron { .. } => ErrorKind::Usage,
            E::Hook { .. } | E::AccessUnknown { .. } => ErrorKind::Failed,
            E::HostFull { .. } | E::NoRoomForSocket { .. } => ErrorKind::NoSpace,
            E::ForeignState { .. } => ErrorKind::Usage,
            E::Device(error) => device_kind(error),
            E::Volume { source, .. } => volume_kind(source),
            E::Files { source, .. } => files_kind(source),
            E::VolumeUnavailable { kind, .. } | E::DeviceUnavailable { kind, .. } => *kind,
            E::History { source, .. } => history_kind(source),
            E::Adopted { .. } => ErrorKind::Busy,
            E::WithoutHistory { .. } => ErrorKind::NotFound,
            E::NotOlder { .. } => ErrorKind::Usage,
            E::Mount(error) => mount_kind(error),
            E::Tree { source, .. } => tree_kind(source),
            E::Undecided { .. }
            | E::NothingInCommon { .. }
            | E::GroupApart { .. }
            | E::GroupShowsNothing { .. } => ErrorKind::Diverged,
            E::Recording { .. } => ErrorKind::Failed,
            E::Unlocated | E::SourceForgotten { .. } => ErrorKind::PeerUnreachable,
            E::GroupFailedOver { .. }
            | E::GroupUnfinished { .. }
            | E::InGroup { .. }
            | E::IsDestination { .. }
            | E::FailedOver { .. }
            | E::FollowsSource { .. }
            | E::NoImage { .. } => ErrorKind::WrongRole,
            E::TokenExpired => ErrorKind::TokenExpired,
            E::TokenUsed => ErrorKind::TokenUsed,
            E::TokenUnknown | E::PeerNotPinned | E::VolumeNotAllowed { .. } | E::WrongSource { .. } => {
                ErrorKind::PeerRefused
            }
            E::OtherVolume { .. } | E::IsBehind { .. } => ErrorKind::Diverged,
            E::Unreachable { .. } | E::PeerGone { .. } | E::Silent { .. } => ErrorKind::PeerUnreachable,
            E::Refused { body, .. } => body.error,
            E::Mirror { source, .. } => crate::transfer::error_kind(source),
            E::Dump { source } => dump_kind(source),
            E::NoLowerDump { .. } | E::NoEarlierDump { .. } => ErrorKind::NotFound,
            E::DumpCut { source, .. } | E::RestoreCut { source, .. } => source.kind(),
            E::DumpOutput { source } => io_kind(source),
            E::DumpSource { .. } => ErrorKind::VolumeDamaged,
            E::DumpBaseGone { .. }
            | E::DumpSourceGone { .. }
            | E::DumpGivenUp { .. }
            | E::RestoreDeviceChanged { .. } => ErrorKind::Diverged,
            E::RestoredDamaged { .. } | E::RestoreUnread { .. } => ErrorKind::Damaged,
            E::Unauthorized | E::LocalOnly { .. } => ErrorKind::Unauthorized,
            E::Ending | E::Cancelled => ErrorKind::Interrupted,
            E::PeerProtocol { .. }
            | E::Tls(_)
            | E::Certificate(_)
            | E::NbdStart(_)
            | E::Thread { .. }
            | E::Bug => ErrorKind::Failed,
        }
    }

    /// What to do next, in one sentence.
    pub fn next(&self) -> String {
        use ServerError as E;
        match self {
            E::InvalidName { .. } => "use letters, digits, `.`, `_` and `-`, beginning with a letter or a \
                digit, at most 64"
                .into(),
            E::Invalid { .. } => "correct it and run the command again".into(),
            E::NotFound { list, name, .. } => format!("see what there is with `{}`", in_place(list, name)),
            E::Taken { what: "device", .. } => {
                "see it with `cairn device list`; choose another name, or give it up first with `cairn device release DEVICE`".to_owned()
            }
            E::Taken { what: "iSCSI target", .. } => {
                "another disk has that target: its name is made of the names of the volume and the disk with a dot between, and these have dots; choose another name, see `cairn export list`".to_owned()
            }
            E::Taken { what, .. } => format!("choose another name, or delete that {what} first"),
            E::InUse { name, .. } => format!("disconnect the clients of `{name}`; `cairn status` names them"),
            E::NoEarlierDump { name, .. } | E::DumpGivenUp { name, .. } => format!("begin with everything: `cairn dump -0 -f FILE {name}`"),
            E::DumpIsOlder { .. } => "dump a snapshot that was made later, or this one with everything in it (-0)".into(),
            E::DumpOutput { .. } => "make room, or see why the reader of the pipe ended; then run it again".into(),
            E::DumpSource { .. } => "see what is damaged with `cairn volume check`".into(),
            E::Mounted { directory, .. } => format!("cairn unmount {}", directory.display()),
            E::MountLeft { directory, .. } => format!(
                "end them; or cut them off, which loses what they have not written yet: cairn unmount --force {}",
                directory.display()
            ),
            E::MountNotEmpty { .. } => "name an empty directory, such as one that `mkdir` has just made".into(),
            E::MountedElsewhere { directory, .. } => {
                format!("use it there, or take it away first: cairn unmount {}", directory.display())
            }
            E::Mount(error) => mount_next(error),
            E::Tree { name, source } => tree_next(name, source),
            E::SnapshotHeld { name } => format!(
                "`cairn snapshot release {name}` when nobody needs it any more"
            ),
            E::HeldForMirror { volume, mirror, .. } => {
                format!("end it there, or forget it here with `cairn mirror forget {volume} {mirror}`")
            }
            E::Cron { .. } => "give five fields: minute, hour, day of the month, month, day of the week, such as `30 2 * * 1-5`".into(),
            E::Hook { volume, .. } => format!("run it by hand as the server's user; `cairn volume hooks {volume}` shows it"),
            E::Paused { volume } => format!("`cairn mirror resume {volume}`"),
            E::OtherKind { device, view, kind } => {
                format!("`cairn history {kind} {device} --delete {view}` ends it; what was written to a clone goes with it")
            }
            E::Shown { device, .. } => format!(
                "end them with `cairn history view {device} --delete NAME`, and clones with `cairn history clone {device} --delete NAME`"
            ),
            E::Unfinished(error) => format!(
                "look why the disk of {} hangs; once it answers, give the same command again",
                error.export
            ),
            E::Busy { .. } => "wait until it is over; `cairn status` shows it".into(),
            E::DeviceClaimed { volume, .. } => format!(
                "choose another device; see what `{volume}` lacks with `cairn status`, or give it up with `cairn volume delete {volume}`"
            ),
            E::ClaimedByDevice { device, .. } => format!(
                "choose another one; see what `{device}` lacks with `cairn status`, which says how it is given up, too"
            ),
            E::ForeignState { path, user, .. } => format!(
                "look what it is: if it is the server's own, `chown -h {user} {0}`, else remove it; then start the server again",
                path.display()
            ),
            E::NoRoomForSocket { path } => {
                format!("free a few KiB there (`du -x {0}`, `journalctl --vacuum-size=100M`), then start the server again", path.display())
            }
            E::StateNotTaken { path } => format!("`cairn state restore {}` takes it in", path.display()),
            E::HostFull { volume, place, .. } => {
                format!("free space in {place}; {volume} takes writes again by itself")
            }
            E::DataDirBusy { path } => format!(
                "use it with `cairn status --data {}`, or choose another directory with --data",
                path.display()
            ),
            E::Path { source, path, .. } => io_next(source, path),
            E::DamagedState { path, .. } | E::StateUnread { path, .. } | E::StateGone { path } => {
                state_next(path)
            }
            E::StateKnown { .. } => "`cairn state list` shows which there are".into(),
            E::StateNeeded { path, ends } => format!("{}; or {ends}", state_next(path)),
            E::NoPrevious { path } => format!(
                "put a copy of {0} back and run `cairn state restore {0}`, or go on without it: `cairn state give-up {0}`",
                path.display()
            ),
            E::StateVersion { .. } => "use the version of cairn that wrote it, or a newer one".into(),
            E::Config { .. } => "correct the file; docs/operations.md lists its fields".into(),
            E::Listen { source, .. } => match source.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "end the program that listens there (`ss -ltnp` names it), or \
                    choose another address with --nbd, --mirror or --http"
                        .into()
                }
                std::io::ErrorKind::PermissionDenied => "choose a port above 1023".into(),
                _ => "choose an address of this machine with --nbd, --mirror or --http".into(),
            },
            E::NbdListen(_) | E::NbdStart(_) => "choose another address with --nbd, or `--nbd off`".into(),
            E::IscsiListen(_) => {
                "choose another address with --iscsi, or `--iscsi off`; tgt and LIO use port 3260 as well"
                    .into()
            }
            E::SocketPath { .. } => "choose a data directory with a shorter path (below 90 bytes)".into(),
            E::DeviceNotEmpty { path } => format!(
                "if nothing in it is wanted, clear it: a disk with `wipefs -a {0}` and `blkdiscard {0}`, a file with \
                 `truncate -s 0 {0}` and then `truncate -s SIZE {0}`; else name another device",
                path.display()
            ),
            E::DeviceTooSmall { last: Some(last), .. } => {
                format!("enlarge {}, the last device of the volume, and run the command again", last.display())
            }
            E::DeviceTooSmall { .. } => "give a smaller --size, or more --device".into(),
            E::DamagedIdentity { path } => format!(
                "put a copy of it back in its place, and start the server again. Without a copy: `mv {0} {0}.damaged`, and the server makes a new key when it starts; to its peers it is another server then: each mirror here wants a new token of its source (`cairn peer invite` there, \
                 `cairn mirror repoint VOLUME TOKEN` here), and each mirror of this server's volumes one of `cairn peer invite` here",
                path.display()
            ),
            E::OpenDevice(OpenError::InUse { .. }) => "stop that program, unmount the image or detach its loop device (`losetup -d`), and run the command again; `cairn device adopt --in-use` adopts it all the same".into(),
            E::OpenDevice(_) => "correct it and run the command again".into(),
            E::Device(error) => device_next(error).into(),
            E::Volume { volume, source } => volume_next(volume, source),
            E::Files { name, source } => files_next(name, source),
            E::History { device, source } => history_next(device, source),
            E::Adopted { device, .. } => format!("release it first: `cairn device release {device}`"),
            E::NothingWritten { .. } => {
                "let its clients work for a while, or plan from a trace: cairn trace import, cairn plan TRACE".to_owned()
            }
            E::Recording { .. } => "see whether its folder can be written, or give another --to".to_owned(),
            E::WithoutHistory { device } => format!(
                "release it and adopt it again with --history: `cairn device release {device}`"
            ),
            E::NotOlder { name } => format!("nothing: see `cairn history status {name}`"),
            E::VolumeUnavailable { next, .. } | E::DeviceUnavailable { next, .. } => next.clone(),
            E::LogUnavailable { volume, .. } => log_next(volume),
            E::HistoryUnavailable { path, .. } => format!(
                "bring {} back (attach its disk, mount its file system, restore the file), and the volume is opened within seconds",
                path.display()
            ),
            E::OverHistory { next, volume, .. } => in_place(next, volume),
            E::LogIsThere { volume } => {
                format!("move it with `cairn volume log {volume} --internal` or `--device PATH`")
            }
            E::IsDestination { volume } => {
                format!("change the source, or end the mirroring with `cairn mirror failover {volume}`")
            }
            E::GroupApart { group } => format!(
                "make one at the source with `cairn snapshot create --group {group}`, and let the mirrors bring it; or fail the volumes over one by one with `cairn mirror failover`"
            ),
            E::GroupShowsNothing { group, .. } => format!(
                "make one at the source with `cairn snapshot create --group {group}`, and let the mirrors bring it; or have each volume show its own newest image: `cairn group apart {group}`"
            ),
            E::InGroup { group, .. } => format!(
                "`cairn group failover {group}` brings all of them to that instant, and `cairn group reverse {group}` changes the roles of all of them as planned; for this one alone, `cairn group apart {group}` first"
            ),
            E::GroupsShare { group, other } => format!(
                "`cairn group create {group} ... --apart`; or have the other one's volumes show each its own newest image first: `cairn group apart {other}`"
            ),
            E::GroupUnfinished { group } => format!("go on with it: `cairn group failover {group}`"),
            E::GroupFailedOver { group } => {
                format!("see `cairn group show {group}`; what the volumes showed beyond it is in their snapshots")
            }
            E::LocalOnly { .. } => {
                "run it on the machine of the server with --data DIR, for example by ssh".into()
            }
            E::CloneBaseGone { base, clone } => format!(
                "bring the volume of {base} back into service, and `{clone}` comes with it at the next start; or delete the clone with `cairn clone delete {clone}`"
            ),
            E::HasClone { clone, .. } => format!("delete it first: `cairn clone delete {clone}`"),
            E::FollowsSource { volume } => format!(
                "delete it with `cairn mirror delete {volume}`, or keep it with `cairn mirror failover {volume}`"
            ),
            E::DestinationTaken { volume } => {
                format!("mirror under another name with `--as NAME`, or delete `{volume}` first")
            }
            E::AccessUnknown { volume } => {
                format!("`cairn status` on the source names what is damaged; then `cairn mirror update {volume}`")
            }
            E::OtherVolume { volume } => {
                format!(
                    "keep what is here with `cairn mirror failover {volume}`, then make a new mirror with `--as NAME`"
                )
            }
            E::IsBehind { volume, .. } => {
                format!("`cairn mirror update` on that server, and then this command again; `{volume}` follows as before")
            }
            E::NoImage { volume } => format!("let the baseline arrive: `cairn mirror update {volume}`"),
            E::Thread { .. } => NO_THREAD_NEXT.into(),
            E::SeveralDeparted { volume, mirrors } => {
                let one = mirrors.first().map(|(name, _)| name.as_str()).unwrap_or("NAME");
                format!(
                    "say which with --mirror, such as `cairn mirror resync {volume} --mirror {one} -n`, which says what following that one gives up; what was written to the others is on their servers"
                )
            }
            E::NotDeparted { .. } => {
                "one that was failed over says so within seconds of when it reaches this server, and `cairn status` here tells it then: wait for that, and see that this server listens for mirrors where it did (--mirror)"
                    .into()
            }
            E::Role(error) => error.next(),
            E::Resume(error) => error.next(),
            E::NotAMirror { .. } => "see the mirrors with `cairn mirror status`".into(),
            E::FailedOver { volume } => format!(
                "it takes writes: let the other side follow it with `cairn mirror resync` there, or give up what was written here with `cairn mirror resync {volume}`"
            ),
            E::NothingInCommon { volume, .. } => format!(
                "the same command again with `--compare` (`cairn mirror resync {volume} --compare ...`) compares checksums, and sends what differs"
            ),
            E::Undecided { volume, .. } => format!(
                "keep it in a file with `cairn mirror resync {volume} --spill FILE`, or drop it with `--discard-divergent`; `-n` only says what it is"
            ),
            E::SourceForgotten { volume } => format!(
                "name it: `cairn peer invite` there, and `cairn mirror repoint {volume} TOKEN`; if it is gone, `cairn mirror failover {volume}` has the volume take writes here"
            ),
            E::Unlocated => {
                "start that server with `--mirror` and `--advertise`, and name its address here with `--from HOST:PORT`"
                    .into()
            }
            E::InvalidToken => {
                "copy the whole word that `cairn peer invite` printed on the source (it begins with cairn1-)"
                    .into()
            }
            E::TokenExpired | E::TokenUsed | E::TokenUnknown => {
                "make a new one on the source with `cairn peer invite`".into()
            }
            E::VolumeNotAllowed { volume } => {
                format!("make a token for it on the source with `cairn peer invite --volume {volume}`")
            }
            E::PeerNotPinned => "invite this server again with `cairn peer invite` on the source".into(),
            E::WrongSource { .. } => {
                "check that the address is the source's and nobody's in between; if the \
                source has a new identity, make a new token there with `cairn peer invite`"
                    .into()
            }
            E::Unreachable { .. } => {
                "check that `cairn serve` runs there, that --mirror or --advertise on the \
                source is an address that this machine reaches, and the firewalls between"
                    .into()
            }
            E::PeerGone { .. } => "nothing here: the destination tries again".into(),
            E::Silent { peer, .. } => format!(
                "look at the {peer} (`cairn status` there) and at the network between; the last complete image is whole, and the next \
                 update goes on where it was. A slower peer needs a longer --mirror-patience, or `cairn mirror set NAME --stall TIME`"
            ),
            E::PeerVersion { theirs, ours } => {
                let older = if theirs < ours { "the other end" } else { "this server" };
                format!("upgrade {older}: both ends must speak the same version")
            }
            E::PeerProtocol { .. } => "check that the address is a mirror port of `cairn serve`".into(),
            E::Refused { body, .. } => body.next.clone(),
            E::Mirror { volume, source } => crate::transfer::error_next(volume, source),
            E::NoAddress { .. } => {
                "say how peers reach it: `cairn peer invite --advertise HOST:PORT`, or start the server with \
                 --mirror HOST:PORT"
                    .into()
            }
            E::Dump { source } => dump_next(source).into(),
            E::NoLowerDump { volume, .. } => format!("begin with everything: `cairn image dump {volume} -0`"),
            E::DumpNotWhole { volume } => format!("go on with `cairn image dump {volume} --resume`"),
            E::DumpSourceGone { volume, .. } => format!("begin another one in its place: `cairn image dump {volume} --anew`"),
            E::DumpCut { volume, source } => {
                let or = format!("or give it up with `cairn image levels {volume} --give-up`");
                match source.kind() {
                    ErrorKind::Interrupted => format!("go on with `cairn image dump {volume} --resume`, {or}"),
                    ErrorKind::NoSpace => format!("make room and go on with `cairn image dump {volume} --resume`, {or}"),
                    _ => format!("see to that and go on with `cairn image dump {volume} --resume`, {or}"),
                }
            }
            E::DumpBaseGone { volume, .. } => format!(
                "dump everything again with `cairn image dump {volume} -0`, or against a snapshot that is there with --base"
            ),
            E::RestoreOfOthers { volume, files } => format!(
                "name the dumps that it was begun with, all of them, wherever their files are now: they were {}; or begin with these in its place: \
                 `cairn image restore {volume} --anew FILE...`",
                files.join(" ")
            ),
            E::RestoreDeviceChanged { volume, .. } => format!(
                "bring the device back as it was left, and go on with `cairn image restore {volume} --resume`; or begin again with --anew"
            ),
            E::RestoreUnread { volume, .. } => format!(
                "put a copy of the file back in its place and run the command again; or give the restore up with `cairn image restore {volume} --give-up`, and begin anew"
            ),
            E::RestoreCut { volume, source } => {
                let or = format!("or give it up with `cairn image restore {volume} --give-up`");
                match source.kind() {
                    ErrorKind::Interrupted => format!("go on with `cairn image restore {volume} --resume`, {or}"),
                    ErrorKind::NoSpace => format!("make room and go on with `cairn image restore {volume} --resume`, {or}"),
                    ErrorKind::Damaged => format!(
                        "go on with a whole copy of the file (a pipe is read from its beginning again) with `cairn image restore {volume} --resume FILE...`, \
                         or with --accept-damage without what can't be read (`cairn image verify` says what that is), {or}"
                    ),
                    _ => format!("see to that and go on with `cairn image restore {volume} --resume`, {or}"),
                }
            }
            E::RestoredDamaged { .. } => {
                "restore what is left with --accept-damage; the reads that it concerns will fail".into()
            }
            E::Unauthorized => {
                "give the token: `--token-file FILE` with a copy of DIR/http-token of the server".into()
            }
            E::NoSuchPath { .. } => "use a client of the same version as the server".into(),
            E::BadRequest { .. } => "see /v1/openapi.json".into(),
            E::Cancelled => "run it again".into(),
            E::Ending => "start the server again; the last complete image is whole".into(),
            E::Tls(_) | E::Certificate(_) | E::Bug => {
                "report it with the log of the server; restart the server if it does not answer".into()
            }
        }
    }
}

fn listen_kind(error: &ListenError) -> ErrorKind {
    match error {
        ListenError::InUse { .. } | ListenError::NotASocket { .. } => ErrorKind::PortTaken,
        ListenError::NotPermitted { .. } => ErrorKind::ReadOnly,
        ListenError::PathTooLong { .. } => ErrorKind::Usage,
        ListenError::Failed { source, .. } => io_kind(source),
    }
}

fn io_next(error: &std::io::Error, path: &std::path::Path) -> String {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::StorageFull | Io::QuotaExceeded => "free some space on that file system".into(),
        Io::ReadOnlyFilesystem => "choose a directory that takes writes with --data".into(),
        Io::PermissionDenied => {
            format!("give this user write access to {}, or choose another with --data", path.display())
        }
        Io::NotFound => "check the path".into(),
        _ => "put it right and run the command again".into(),
    }
}

fn history_kind(error: &HistoryError) -> ErrorKind {
    match error {
        HistoryError::Device(error) => device_kind(error),
        HistoryError::Refused { .. } => ErrorKind::Usage,
        HistoryError::StoreTooSmall { .. } => ErrorKind::TooSmall,
        HistoryError::StoreInUse => ErrorKind::NotEmpty,
        HistoryError::OtherOrigin { .. } => ErrorKind::WrongSize,
        HistoryError::Damaged { .. }
        | HistoryError::Missing { .. }
        | HistoryError::LostBlocks { .. }
        | HistoryError::StoreOlder { .. } => ErrorKind::Damaged,
        HistoryError::NoHistory
        | HistoryError::OtherStore { .. }
        | HistoryError::BeforeWindow
        | HistoryError::BeforeBeginning
        | HistoryError::AgeUnknown
        | HistoryError::NotKept { .. }
        | HistoryError::InFuture
        | HistoryError::ClockPutBack { .. }
        | HistoryError::NoSuchMark => ErrorKind::NotFound,
        HistoryError::MarkTaken => ErrorKind::Taken,
        HistoryError::TooManyReverts => ErrorKind::Busy,
        HistoryError::Full | HistoryError::NoRoomBelow { .. } | HistoryError::NoRoomToRevert { .. } => {
            ErrorKind::NoSpace
        }
        _ => ErrorKind::Failed,
    }
}

fn history_next(device: &str, error: &HistoryError) -> String {
    match error {
        HistoryError::Device(error) => device_next(error).into(),
        HistoryError::Refused { .. } => "choose another value; `cairn device adopt --help` lists them".into(),
        HistoryError::StoreTooSmall { .. } => "give a larger --history-size or a larger disk".into(),
        HistoryError::StoreInUse => "give another --history, or release the device that uses it".into(),
        HistoryError::NoHistory => "see that --history is the file that belongs to this device".into(),
        HistoryError::OtherStore { .. } => {
            "put the store that belongs to it at its place; disks whose names change at a start are named by /dev/disk/by-id".into()
        }
        HistoryError::OtherOrigin { .. } => {
            "bring the origin back to the length that it had; its history fits no other".into()
        }
        HistoryError::Damaged { .. } | HistoryError::Missing { .. } => {
            "keep a copy of both files; unless the placement is logging the origin has the last flushed content".into()
        }
        HistoryError::StoreOlder { .. } => format!(
            "put the store back as it was when the server last had it; if its disk was put back together with it, `cairn history accept-older {device}` takes both as they are"
        ),
        HistoryError::LostBlocks { .. } => format!(
            "write those blocks anew, whole, from a copy or as zeroes (`cairn history status {device}` names them), then ask again"
        ),
        HistoryError::BeforeWindow
        | HistoryError::BeforeBeginning
        | HistoryError::InFuture
        | HistoryError::NoSuchMark => {
            format!("see the span and the marks with `cairn history status {device}`")
        }
        HistoryError::AgeUnknown => format!(
            "name the instant by its time, with --at '2026-11-20 14:03:07', or by a mark: `cairn history status {device}` shows the span and the marks"
        ),
        HistoryError::ClockPutBack { .. } | HistoryError::NotKept { .. } => format!(
            "name an instant by its mark (`cairn history mark {device} NAME` sets one now), or by one of the times that `cairn history status {device}` shows"
        ),
        HistoryError::MarkTaken => "choose another name".into(),
        HistoryError::TooManyReverts => {
            format!("wait until `cairn history status {device}` shows no copy any more")
        }
        HistoryError::NoRoomToRevert { .. } => format!(
            "choose a later instant, or make the floor shorter with `cairn history window {device} --floor TIME`; `cairn history clone {device} --at TIME` serves this one beside the present"
        ),
        HistoryError::NoRoomBelow { .. } => {
            "free some space on the file system where that is, or choose another one".into()
        }
        HistoryError::Full => {
            format!("make the floor shorter with `cairn history window {device} --floor TIME`, or wait")
        }
        _ => "see the log of the server".into(),
    }
}

fn open_kind(error: &OpenError) -> ErrorKind {
    match error {
        OpenError::Missing { .. } => ErrorKind::NotFound,
        OpenError::Exists { .. } => ErrorKind::Taken,
        OpenError::Busy { .. } | OpenError::InUse { .. } => ErrorKind::Busy,
        OpenError::NotStorage { .. } | OpenError::TooLong { .. } => ErrorKind::Usage,
        OpenError::ReadOnlyFileSystem { .. } | OpenError::Permission { .. } => ErrorKind::ReadOnly,
        OpenError::NoSpace { .. } => ErrorKind::NoSpace,
        OpenError::Io { .. } => ErrorKind::Failed,
    }
}

/// A next step with the name that is known in the place of `VOLUME` or `DEVICE`: `name` begins with it.
fn in_place(next: &str, name: &str) -> String {
    let owner = name.split(['@', '/', ':', ' ']).next().filter(|owner| !owner.is_empty());
    match owner {
        // The others have to be made up by the reader.
        Some(owner) if !next.contains("NEWVOLUME") => next.replace("VOLUME", owner).replace("DEVICE", owner),
        _ => next.to_owned(),
    }
}

/// What becomes of a state file that can't be read.
fn state_next(path: &Path) -> String {
    let file = path.display();
    let older = match state::previous(path).is_file() {
        true => {
            format!("; `cairn state restore {file} --previous` takes what it said before its last change")
        }
        false => String::new(),
    };
    format!(
        "put a copy of it back and run `cairn state restore {file}`{older}; `cairn state give-up {file}` goes on without it, and says first what that costs"
    )
}

fn files_kind(error: &FilesError) -> ErrorKind {
    match error {
        FilesError::NoSuchLun => ErrorKind::NotFound,
        FilesError::NameTaken => ErrorKind::Taken,
        FilesError::Size { .. } => ErrorKind::WrongSize,
        FilesError::InvalidName | FilesError::WouldShrink { .. } => ErrorKind::Usage,
        FilesError::Volume(error) => volume_kind(error),
    }
}

fn files_next(name: &str, error: &FilesError) -> String {
    let volume = name.split('/').next().unwrap_or(name).trim_start_matches("lun:");
    match error {
        FilesError::NoSuchLun => format!("see what there is with `cairn lun list {volume}`"),
        FilesError::NameTaken | FilesError::InvalidName => "choose another name".into(),
        FilesError::Size { .. } => "give another --size".into(),
        FilesError::WouldShrink { .. } => {
            "if what lies past the new end is not wanted, run it again with --shrink".into()
        }
        FilesError::Volume(error) => volume_next(volume, error),
    }
}

fn mount_kind(error: &MountError) -> ErrorKind {
    match error {
        MountError::Busy { .. } => ErrorKind::Busy,
        MountError::Directory { .. } => ErrorKind::Usage,
        MountError::Tree(error) => tree_kind(error),
        MountError::System(source) => io_kind(source),
        MountError::NoDevice | MountError::NoHelper | MountError::Refused { .. } => ErrorKind::Failed,
    }
}

fn mount_next(error: &MountError) -> String {
    match error {
        MountError::NoDevice => "modprobe fuse; in a container, start that with --device /dev/fuse".into(),
        MountError::NoHelper => "install it (Debian: apt-get install fuse3), or run the server as root".into(),
        MountError::Directory { .. } => "make the directory first, or name another one".into(),
        MountError::Busy { path } => {
            format!("`fuser -vm {0}` names the programs; or cairn unmount --lazy {0}", path.display())
        }
        MountError::Refused { reason, .. } if reason.contains("/dev/fuse") => {
            "let the server's user open it (`ls -l /dev/fuse`: mode 0666 on most systems), or run the server as root".into()
        }
        MountError::Refused { .. } => {
            "name an empty directory that the server's user owns; --allow-other needs `user_allow_other` in /etc/fuse.conf".into()
        }
        MountError::Tree(error) => tree_next("", error),
        MountError::System(_) => "see the server's log".into(),
    }
}

fn tree_kind(error: &TreeError) -> ErrorKind {
    match error {
        TreeError::NotFound | TreeError::NoTree => ErrorKind::NotFound,
        TreeError::NoSpace | TreeError::Quota => ErrorKind::NoSpace,
        TreeError::NotEmpty => ErrorKind::NotEmpty,
        TreeError::ReadOnly => ErrorKind::ReadOnly,
        TreeError::Stale => ErrorKind::Busy,
        TreeError::Damaged(source) | TreeError::Volume(source) => volume_kind(source),
        _ => ErrorKind::Usage,
    }
}

fn tree_next(name: &str, error: &TreeError) -> String {
    match error {
        TreeError::NoTree => {
            "no file was ever stored in it: mount the volume itself and store some, or name a later snapshot"
                .into()
        }
        TreeError::Damaged(source) | TreeError::Volume(source) => volume_next(name, source),
        TreeError::Stale => "run the command again: it is made with what there is now".into(),
        // Quotas alone ask for an empty directory here.
        TreeError::NotEmpty => {
            "make another directory, give it the quota while it is empty, and copy there what is in this one"
                .into()
        }
        _ => "correct it and run the command again".into(),
    }
}
