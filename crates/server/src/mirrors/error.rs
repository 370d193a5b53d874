//! Errors of mirrors: their roles, their sources and their transfers.
//!
//! Each has its kind and the step that comes next.

use cairn_api::ErrorKind;
use cairn_api::remedy::{NO_THREAD_NEXT, volume_kind, volume_next};
use cairn_mirror::{MirrorError, Refusal};
use cairn_stream::StreamError;

use crate::mirrors::role_error::RoleError;

/// An error of mirrors: their roles, their sources and their transfers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MirrorsError {
    /// A mirror's next update begins at it.
    #[error("`{name}` is held for the mirror {mirror} as the base of its next update")]
    HeldForMirror {
        /// The snapshot.
        name: String,
        /// Of this volume.
        volume: String,
        /// The argument for `cairn mirror forget`.
        mirror: String,
    },
    /// The mirror begins no updates.
    #[error("the mirror `{volume}` is paused")]
    Paused {
        /// The mirror.
        volume: String,
    },
    /// A mirror's destination takes no changes of its own.
    #[error("`{volume}` is the destination of a mirror and takes no other changes")]
    IsDestination {
        /// Its name.
        volume: String,
    },
    /// Several mirrors of a volume were failed over, and each has been written to.
    #[error("several mirrors of `{volume}` were failed over: {}", mirrors.iter().map(|(name, address)| format!("{name} at {address}")).collect::<Vec<_>>().join(", "))]
    SeveralDeparted {
        /// The volume.
        volume: String,
        /// The name and the address of each.
        mirrors: Vec<(String, String)>,
    },
    /// It has no source, and no other volume is known to have taken its place.
    #[error("`{volume}` is not a mirror, and no mirror of it has reported a failover")]
    NotDeparted {
        /// The volume.
        volume: String,
    },
    /// A mirror was requested, but the volume is not one.
    #[error("`{volume}` is not a mirror")]
    NotAMirror {
        /// Its name.
        volume: String,
    },
    /// A mirror's volume cannot be deleted without its mirror.
    #[error("`{volume}` is a mirror and follows its source")]
    FollowsSource {
        /// Its name.
        volume: String,
    },
    /// A mirror provisions a volume of its own.
    #[error("the destination is not empty: volume `{volume}` exists here")]
    DestinationTaken {
        /// Its name.
        volume: String,
    },
    /// Its first image would be open to everybody.
    #[error(
        "the source cannot read the access settings of the LUNs of `{volume}`, so nothing of it is shown here"
    )]
    AccessUnknown {
        /// The mirror.
        volume: String,
    },
    /// The source's volume of that name is a different one.
    #[error("the source has a different volume under the name that `{volume}` mirrors")]
    OtherVolume {
        /// The mirror.
        volume: String,
    },
    /// It is to follow a mirror that has no image as new as its own.
    #[error("the mirror at {address} is behind what `{volume}` shows, and has nothing for it yet")]
    IsBehind {
        /// The mirror that was to follow.
        volume: String,
        /// The server with the other one.
        address: String,
    },
    /// Nothing has arrived yet.
    #[error("no image of `{volume}` has arrived yet")]
    NoImage {
        /// The mirror.
        volume: String,
    },
    /// The mirror was failed over: it no longer follows its source.
    #[error("`{volume}` was failed over and no longer follows its source")]
    FailedOver {
        /// Its name.
        volume: String,
    },
    /// A role or a lock forbids it.
    #[error(transparent)]
    Role(RoleError),
    /// The transfer failed.
    #[error("the transfer of `{volume}` failed: {source}")]
    Mirror {
        /// Its name.
        volume: String,
        /// The cause.
        source: Box<cairn_mirror::MirrorError>,
    },
    /// Data that only this side has needs a decision.
    #[error(
        "{bytes} bytes that were written to `{volume}` are not on the other side{}: following it would discard them",
        match snapshots.len() { 0 => String::new(), _ => format!(", nor are its snapshots {}", snapshots.join(", ")) }
    )]
    Undecided {
        /// Here.
        volume: String,
        /// Blocks that only this side has.
        bytes: u64,
        /// Snapshots that only this side has.
        snapshots: Vec<String>,
    },
    /// A side that was to follow the other one has nothing in common with it.
    #[error("`{volume}` can't follow the other side by what both have: {source}")]
    NothingInCommon {
        /// Here.
        volume: String,
        /// The price of comparing.
        source: Box<cairn_mirror::MirrorError>,
    },
    /// The record of a mirror's source was given up.
    #[error("the source of `{volume}` is no longer known")]
    SourceForgotten {
        /// The mirror.
        volume: String,
    },
    /// The other side of a mirror did not announce its address.
    #[error("the other side has not announced its mirror address")]
    Unlocated,
}

impl MirrorsError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            MirrorsError::SeveralDeparted { .. } => ErrorKind::Usage,
            MirrorsError::NotAMirror { .. } | MirrorsError::NotDeparted { .. } => ErrorKind::NotFound,
            MirrorsError::HeldForMirror { .. } | MirrorsError::Paused { .. } => ErrorKind::Busy,
            MirrorsError::Role(error) => error.kind(),
            MirrorsError::DestinationTaken { .. } => ErrorKind::NotEmpty,
            MirrorsError::AccessUnknown { .. } => ErrorKind::Failed,
            MirrorsError::Undecided { .. } | MirrorsError::NothingInCommon { .. } => ErrorKind::Diverged,
            MirrorsError::Unlocated | MirrorsError::SourceForgotten { .. } => ErrorKind::PeerUnreachable,
            MirrorsError::IsDestination { .. }
            | MirrorsError::FailedOver { .. }
            | MirrorsError::FollowsSource { .. }
            | MirrorsError::NoImage { .. } => ErrorKind::WrongRole,
            MirrorsError::OtherVolume { .. } | MirrorsError::IsBehind { .. } => ErrorKind::Diverged,
            MirrorsError::Mirror { source, .. } => error_kind(source),
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            MirrorsError::HeldForMirror { volume, mirror, .. } => {
                format!("delete that mirror, or forget it here with `cairn mirror forget {volume} {mirror}`")
            }
            MirrorsError::Paused { volume } => format!("`cairn mirror resume {volume}`"),
            MirrorsError::IsDestination { volume } => {
                format!("change the source, or end the mirroring with `cairn mirror failover {volume}`")
            }
            MirrorsError::FollowsSource { volume } => format!(
                "delete it with `cairn mirror delete {volume}`, or keep it with `cairn mirror failover {volume}`"
            ),
            MirrorsError::DestinationTaken { volume } => {
                format!("mirror under another name with `--as NAME`; if `{volume}` is a copy of the source, such as a restored dump, make it the mirror with `--from {volume}`")
            }
            MirrorsError::AccessUnknown { volume } => {
                format!("`cairn status` on the source names what is damaged; then `cairn mirror update {volume}`")
            }
            MirrorsError::OtherVolume { volume } => {
                format!(
                    "keep what is here with `cairn mirror failover {volume}`, then make a new mirror with `--as NAME`"
                )
            }
            MirrorsError::IsBehind { volume, .. } => {
                format!("`cairn mirror update` on that server, and then this command again; `{volume}` follows as before")
            }
            MirrorsError::NoImage { volume } => format!("transfer the baseline first: `cairn mirror update {volume}`"),
            MirrorsError::SeveralDeparted { volume, mirrors } => {
                let one = mirrors.first().map(|(name, _)| name.as_str()).unwrap_or("NAME");
                format!(
                    "choose one with --mirror; `cairn mirror resync {volume} --mirror {one} -n` shows what following that one would discard; writes to the others stay on their servers"
                )
            }
            MirrorsError::NotDeparted { .. } => {
                "a failed-over mirror reports it within seconds of reaching this server, and `cairn status` then shows it; check that this server still listens at the same --mirror address"
                    .into()
            }
            MirrorsError::Role(error) => error.next(),
            MirrorsError::NotAMirror { .. } => "see the mirrors with `cairn mirror status`".into(),
            MirrorsError::FailedOver { volume } => format!(
                "it takes writes: let the other side follow with `cairn mirror resync` there, or discard the writes here with `cairn mirror resync {volume}`"
            ),
            MirrorsError::NothingInCommon { volume, .. } => format!(
                "run the same command with `--compare`: it (`cairn mirror resync {volume} --compare ...`) compares checksums and sends the differences"
            ),
            MirrorsError::Undecided { volume, .. } => format!(
                "save them to a file with `cairn mirror resync {volume} --spill FILE`, or discard them with `--discard-divergent`; `-n` shows them"
            ),
            MirrorsError::SourceForgotten { volume } => format!(
                "run `cairn peer invite` there and `cairn mirror repoint {volume} TOKEN` here; if it is gone, `cairn mirror failover {volume}` makes the volume writable here"
            ),
            MirrorsError::Unlocated => {
                "start that server with `--mirror` and `--advertise`, and give its address here with `--from HOST:PORT`"
                    .into()
            }
            MirrorsError::Mirror { volume, source } => error_next(volume, source),
        }
    }
}

/// The kind of a mirror's error.
pub(crate) fn error_kind(error: &MirrorError) -> ErrorKind {
    match error {
        MirrorError::Io(_) => ErrorKind::PeerUnreachable,
        MirrorError::Version { .. } | MirrorError::Refused(Refusal::Unknown) => ErrorKind::VersionMismatch,
        MirrorError::Refused(refusal) => match refusal {
            Refusal::NoSuchVolume => ErrorKind::NotFound,
            Refusal::NotASource | Refusal::Circle => ErrorKind::WrongRole,
            Refusal::WrongVolume { .. } | Refusal::NoCommonBase { .. } | Refusal::Diverged(_) => {
                ErrorKind::Diverged
            }
            Refusal::DestinationTooSmall { .. } => ErrorKind::TooSmall,
            Refusal::SourceFull | Refusal::NoRoom => ErrorKind::NoSpace,
            Refusal::Superseded | Refusal::Behind => ErrorKind::Busy,
            Refusal::NotTaken | Refusal::InGroup(_) => ErrorKind::WrongRole,
            Refusal::OtherGroup(_) => ErrorKind::NotFound,
            Refusal::NotAllowed | Refusal::TooMany => ErrorKind::PeerRefused,
            Refusal::Hook => ErrorKind::Failed,
            Refusal::SourceFailed | Refusal::Unknown => ErrorKind::Failed,
        },
        MirrorError::Volume(error) => volume_kind(error),
        MirrorError::Busy => ErrorKind::Busy,
        MirrorError::FailedOver | MirrorError::FollowsItself => ErrorKind::WrongRole,
        MirrorError::CompareNeeded { .. } | MirrorError::Undecided { .. } => ErrorKind::Diverged,
        MirrorError::NotAhead(_) => ErrorKind::WrongRole,
        MirrorError::Locked { .. } | MirrorError::Renamed { .. } | MirrorError::Withheld { .. } => {
            ErrorKind::Diverged
        }
        MirrorError::Cancelled => ErrorKind::Interrupted,
        MirrorError::Stream(StreamError::NoThread(_)) => ErrorKind::Failed,
        MirrorError::Stream(_) => ErrorKind::Damaged,
        MirrorError::Protocol(_) | MirrorError::Nack(_) => ErrorKind::Failed,
    }
}

/// The remedy for a mirror's error.
pub(crate) fn error_next(volume: &str, error: &MirrorError) -> String {
    match error {
        MirrorError::Version { .. } | MirrorError::Refused(Refusal::Unknown) => {
            "install the same version of cairn on both servers".into()
        }
        MirrorError::Refused(refusal) => match refusal {
            Refusal::NoSuchVolume => "see the volumes of the source with `cairn volume list` there".into(),
            Refusal::Circle => format!(
                "`cairn mirror reverse {volume}` on the other side completes an interrupted change of roles; if there was none, run `cairn mirror failover {volume}` on the side with the wanted data, and `cairn mirror update {volume}` on the other one"
            ),
            Refusal::NotASource => "mirror the source of that mirror, or fail it over there".into(),
            Refusal::Diverged(_) => format!(
                "to keep the mirror's data, run `cairn mirror failover {volume}` at the mirror and `cairn mirror resync` at the old source. To keep the source's data, `cairn mirror resync {volume} -n` at the mirror shows its own writes, and `--spill FILE` or `--discard-divergent` follows the source without them"
            ),
            Refusal::WrongVolume { .. } | Refusal::NoCommonBase { .. } => format!(
                "keep what is here with `cairn mirror failover {volume}`, and make a new mirror with `--as NAME`; or \
                 delete this one and create it again"
            ),
            Refusal::DestinationTooSmall { .. } => {
                format!("enlarge its last device, then update again: `cairn mirror update {volume}`")
            }
            Refusal::SourceFull => "delete snapshots or LUNs on the source, trim, or grow its volume".into(),
            Refusal::NoRoom => format!(
                "on the source: allow old history to be discarded with `cairn history window VOLUME --floor TIME` and a shorter time, or `--floor off`; the next update then resumes, or `cairn mirror update {volume}` here does at once"
            ),
            Refusal::Superseded => "wait for the other update; `cairn mirror status` shows it".into(),
            Refusal::Behind => format!("`cairn mirror update {volume}`, then again"),
            Refusal::Hook => {
                "see `cairn status` and `cairn volume hooks` on the source; the next update retries"
                    .into()
            }
            Refusal::NotAllowed => format!(
                "on the source: `cairn mirror allow-reverse VOLUME` (of a group: `cairn group allow-reverse GROUP`), then run this command again within 15 minutes; nothing was lost, and `{volume}` follows as before"
            ),
            Refusal::TooMany => "on the source: `cairn status --json` lists this server's mirrors, and `cairn mirror forget VOLUME NAME` forgets one that is gone for good".into(),
            Refusal::InGroup(group) => format!(
                "`cairn group reverse {group}` here changes the roles of all of them at one instant (`cairn group create {group} ...` first, if there is no such group here); for this one alone, `cairn group apart {group}` on the source first"
            ),
            Refusal::OtherGroup(group) => format!(
                "compare `cairn group show {group}` here and on the source: on both sides it has the same name and the same volumes; create it again where it differs"
            ),
            Refusal::NotTaken => "see `cairn status` and the log on the source".into(),
            Refusal::SourceFailed | Refusal::Unknown => "see `cairn status` on the source".into(),
        },
        MirrorError::Volume(error) => volume_next(volume, error),
        MirrorError::CompareNeeded { .. } => format!("`cairn mirror update {volume} --compare`"),
        MirrorError::Stream(StreamError::NoThread(_)) => NO_THREAD_NEXT.into(),
        MirrorError::FollowsItself => format!(
            "give this mirror a writable source with `cairn mirror repoint {volume} TOKEN`, or make one volume of the ring writable with `cairn mirror failover` on its server; if one is writable already, the next updates clear this error"
        ),
        MirrorError::FailedOver => format!(
            "let the other side follow with `cairn mirror resync` there, or discard the writes here with `cairn mirror resync {volume}`"
        ),
        MirrorError::Undecided { .. } => format!(
            "`cairn mirror resync {volume} --spill FILE` saves the changes to a file and follows, `--discard-divergent` discards them; `cairn mirror failover {volume}` makes this side writable again"
        ),
        MirrorError::Locked { .. } => format!(
            "find out at the source why it was deleted. `cairn mirror status {volume}` shows when the lock ends and whether a lock key was set; with that key `cairn mirror unlock {volume} --lock-key FILE` lifts it, and the next update goes through. `cairn mirror failover {volume}` keeps what is here"
        ),
        MirrorError::Renamed { name } => format!(
            "ask at the source who renamed it, and give it its name back there with `cairn snapshot rename`: here it stays `{name}` until its lock has run out"
        ),
        MirrorError::Withheld { group, .. } => format!(
            "make a newer one at the source with `cairn snapshot create --group {group}`, and update again; or have each volume here show its own newest image: `cairn group apart {group}`"
        ),
        MirrorError::NotAhead(_) => {
            "see `cairn mirror status` on both sides: the one with the wanted data must take writes, or follow a third server"
                .into()
        }
        _ => format!("update again with `cairn mirror update {volume}`; the last complete image is whole"),
    }
}
