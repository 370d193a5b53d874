//! Objects about mirrors: what is asked of them, how they are, how their roles change.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ErrorBody, MirrorVerify, Problem};

/// A mirror asks every few seconds how far behind it is: one that has not for a day is gone, or cut
/// off, and what is kept for it grows.
const UNHEARD_MS: u64 = 24 * 3_600_000;

/// Makes a mirror of a source's volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateMirror {
    /// The source's volume.
    pub volume: String,
    /// The name here; the source's when not given.
    pub name: Option<String>,
    /// What `cairn peer invite` printed.
    pub token: String,
    /// An update begins that often; only on request when not given.
    pub every_ms: Option<u64>,
    /// Or by a cron expression: minute, hour, day of the month, month, day of the week.
    pub cron: Option<String>,
    /// Or all the time: changes follow within seconds.
    #[serde(default)]
    pub continuous: bool,
    /// The time zone of the expression and of the hours of a limit: an IANA name such as
    /// `Europe/Berlin`; UTC when not given.
    pub zone: Option<String>,
    /// Snapshots of the source stay here for so long, whatever becomes of them there: an update
    /// that would take one away is refused.
    pub lock_ms: Option<u64>,
    /// A secret that lifts the locks before their time; only a digest of it is kept.
    pub lock_key: Option<String>,
    /// The lag that is wanted at most. Past it the mirror is `behind`, on both ends.
    pub rpo_ms: Option<u64>,
    /// The source holds no base snapshot for it, and so pins no space: it goes by the record of
    /// changes that it keeps in any case.
    #[serde(default)]
    pub no_hold: bool,
    /// A transfer that moves no byte for so long is ended; as long as the server waits when not
    /// given.
    pub stall_ms: Option<u64>,
    /// Disks or files for the mirror; a sparse file in the data directory when empty.
    #[serde(default)]
    pub devices: Vec<String>,
    /// A disk or a file for the intent log, which the mirror needs once it has failed over; on its
    /// devices when not given.
    pub log_device: Option<String>,
    /// A history under the mirror, with a mark for each image that an update brings; none when not
    /// given.
    pub history: Option<crate::VolumeHistory>,
    /// How the link to the source is used.
    #[serde(default)]
    pub link: LinkWish,
    /// The volume of that name is here, and becomes the mirror; a new one when not given.
    #[serde(default)]
    pub seed: Option<SeedMirror>,
}

impl CreateMirror {
    /// The name here.
    pub fn name_here(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.volume)
    }
}

/// Makes a volume that is here the mirror: only blocks that differ are sent. It must have a
/// snapshot in common with the source.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SeedMirror {
    /// Save what only this side has in a new file of this absolute path on the server.
    pub spill: Option<String>,
    /// Discard what only this side has.
    pub discard: bool,
    /// Without a common snapshot, compare checksums.
    pub compare: bool,
}

/// What the creation of a mirror would send. Nothing is made.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MirrorPlan {
    /// The name here.
    pub name: String,
    /// The source's volume.
    pub volume: String,
    /// Where the source is.
    pub address: String,
    /// A full copy.
    pub full_bytes: u64,
    /// Blocks that the source's present state has and the volume here lacks, before packing; none
    /// when that is unknown, as no snapshot is common.
    pub changed_bytes: Option<u64>,
    /// Checksums that are compared when no snapshot is common.
    pub compare_bytes: Option<u64>,
    /// What the volume here has that the source does not; none for a new volume.
    pub divergence: Option<Divergence>,
}

/// How the link to a source is to be used; what is not given stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LinkWish {
    /// Bytes a second at most: `50M`, `off`, or by the time of day, as in
    /// `100M, mon-fri 08:00-18:00=10M`. It holds for a running transfer at once.
    pub limit: Option<String>,
    /// Connections of a transfer, 1 to 16; from the next one on.
    pub connections: Option<u32>,
    /// Whether what is sent is packed with zstd.
    pub compress: Option<Compress>,
    /// Updates by an interval are spread over a part of it, for the sake of the source's clients,
    /// as they are when nothing was said; false for as fast as they go.
    pub spread: Option<bool>,
}

/// Whether what is sent is packed with zstd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Compress {
    /// While that makes it faster, by measuring the link and the packing.
    #[default]
    Auto,
    /// Always where it gets smaller.
    Always,
    /// Never.
    Never,
}

/// Changes what is wanted of a mirror; what is not given stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetMirror {
    /// An update begins that often; 0 for only on request.
    pub every_ms: Option<u64>,
    /// Or by a cron expression; `off` for none.
    pub cron: Option<String>,
    /// Or all the time; false for no longer. An interval or an expression ends it too.
    pub continuous: Option<bool>,
    /// The time zone of the expression and of the hours of a limit.
    pub zone: Option<String>,
    /// Snapshots stay here for so long, whatever becomes of them at the source; 0 for no longer
    /// than there.
    pub lock_ms: Option<u64>,
    /// A secret that lifts locks before their time; refused while a snapshot is locked. Empty for
    /// none.
    pub lock_key: Option<String>,
    /// The lag that is wanted at most; 0 for none.
    pub rpo_ms: Option<u64>,
    /// The source holds a base snapshot for it.
    pub hold: Option<bool>,
    /// A transfer that moves no byte for so long is ended; 0 for as long as the server waits.
    pub stall_ms: Option<u64>,
    /// No update begins, and one that runs is ended.
    pub paused: Option<bool>,
    /// How the link to the source is used.
    #[serde(default)]
    pub link: LinkWish,
}

/// Makes a mirror follow another server that has the same volume, or a mirror of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RepointMirror {
    /// What `cairn peer invite` printed there.
    pub token: String,
    /// What the volume is called there; as it was called at the source before when not given.
    pub volume: Option<String>,
}

/// Brings the newest image.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateRequest {
    /// When nothing is known to be common, compare checksums, and send what is not the same.
    #[serde(default)]
    pub compare: bool,
    /// It may take so long, and costs the source's clients less for it; as fast as it goes when not
    /// given.
    pub within_ms: Option<u64>,
}

/// What an update now would bring, as its source counts it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UpdatePrice {
    /// The mirror.
    pub name: String,
    /// The source knows what has changed since the image here: it holds the snapshot, or has a
    /// record.
    pub base_known: bool,
    /// Blocks that changed since then, before packing; all that is in use there where it does not
    /// know.
    pub changed_bytes: u64,
    /// What an update that was cut has brought already.
    pub kept_bytes: u64,
    /// A full copy.
    pub full_bytes: u64,
    /// Since the first change that is not here.
    pub lag_ms: u64,
}

/// What an abort ended.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Aborted {
    /// The mirror.
    pub name: String,
    /// An update ran. It is over now.
    pub was_running: bool,
    /// What it had brought: the next update does not bring it again.
    pub kept_bytes: u64,
}

/// A mirror of a volume here, as its source knows it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Follower {
    /// The volume here.
    pub volume: String,
    /// The peer, and which of its mirrors.
    pub name: String,
    /// The name of the peer's server, as `cairn peer list` shows it.
    #[serde(default)]
    pub peer: Option<String>,
    /// The snapshot that is held for it; none when none is, and the record of changes stands for
    /// it.
    pub base: Option<String>,
    /// Since the first change that it does not have; 0 when nothing changed, none when it is not
    /// known what it has.
    pub lag_ms: Option<u64>,
    /// Changes that it does not have.
    pub lag_bytes: Option<u64>,
    /// The lag that its owner wants at most.
    pub rpo_ms: Option<u64>,
    /// The lag is more than that.
    pub over_rpo: bool,
    /// When it was last heard of.
    pub heard_ms: Option<u64>,
    /// When it last confirmed an image.
    pub updated_ms: Option<u64>,
    /// Another image is on its way.
    pub transferring: bool,
    /// It follows continuously.
    pub continuous: bool,
    /// It was failed over, and takes writes of its own: this volume is not mirrored any more.
    pub departed: Option<Departed>,
}

/// A mirror that was failed over, as its source has heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Departed {
    /// Where mirrors reach its server; empty when it did not say.
    pub address: String,
    /// What the volume is called there.
    pub volume: String,
    /// The generation that both sides have in common.
    pub generation: u64,
    /// When it was failed over, by its clock.
    pub at_ms: u64,
    /// What was written here since that generation, and is not there.
    pub diverged_bytes: Option<u64>,
}

impl Follower {
    /// The problem that a mirror does not come any more, whatever lag its owner wants.
    pub fn unheard(&self, now_ms: u64) -> Option<Problem> {
        // What is of a time to come was heard by a clock that was ahead, and may be as old as that
        // was.
        let since_ms = now_ms.abs_diff(self.heard_ms?);
        if since_ms < UNHEARD_MS || self.departed.is_some() {
            return None;
        }
        let Self { volume, name, .. } = self;
        let shown = self.peer.as_ref().map_or_else(|| name.clone(), |peer| format!("on {peer}"));
        let kept = match (&self.base, self.lag_bytes) {
            (Some(_), Some(bytes)) => format!(", and keeps up to {bytes} bytes from being reused"),
            _ => String::new(),
        };
        Some(Problem {
            subject: volume.clone(),
            message: format!("its mirror {shown} was not heard of for {} h{kept}", since_ms / 3_600_000),
            next: format!(
                "check its server and the network; if it is gone for good, forget it with `cairn mirror forget {volume} {name}`, or all mirrors of its server with `cairn peer revoke`"
            ),
        })
    }

    /// The problem that a mirror was failed over, if it was.
    pub fn parted(&self, of_several: bool) -> Option<Problem> {
        let departed = self.departed.as_ref()?;
        let Departed { address, generation, .. } = departed;
        let what = match departed.diverged_bytes {
            Some(0) => "nothing was written here since".to_owned(),
            Some(bytes) => format!("diverged: {bytes} bytes were written here since that it does not have"),
            None => "the amount written here since is unknown".to_owned(),
        };
        let name = &self.volume;
        let which = if of_several { format!(" --mirror {}", self.name) } else { String::new() };
        let place = if address.is_empty() { String::new() } else { format!(" to {address}") };
        Some(Problem {
            subject: name.clone(),
            message: format!(
                "its mirror was failed over{place} at generation {generation}: this volume is no longer mirrored; {what}"
            ),
            next: format!(
                "`cairn mirror resync {name}{which} -n` here shows what following the other side would discard; `cairn mirror failback {name}{which}` follows it and makes this side the source again; \
                 or `cairn mirror resync` on the other side makes that one follow again"
            ),
        })
    }
}

/// What one side has that the other does not.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Divergence {
    /// The volume here.
    pub name: String,
    /// The other side.
    pub address: String,
    /// What the volume is called there.
    pub volume: String,
    /// The other side takes writes: it can be followed.
    pub other_takes_writes: bool,
    /// It takes none, but shows an image of its own source, and can be followed too.
    pub other_is_mirror: bool,
    /// The newest snapshot that both sides have; none when nothing is common.
    pub common: Option<String>,
    /// When that was taken.
    pub common_ms: Option<u64>,
    /// Its generation.
    pub common_generation: Option<u64>,
    /// Something that was written here is not there: following the other side needs a decision
    /// about it.
    pub diverged: bool,
    /// Blocks of it.
    pub lost_blocks: u64,
    /// Bytes of it.
    pub lost_bytes: u64,
    /// Snapshots that only this side has.
    pub snapshots: Vec<String>,
}

/// Makes a volume follow the other side.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResyncRequest {
    /// Where the other side is, when it has moved.
    pub from: Option<String>,
    /// Which of several mirrors that were failed over is to be followed, as `followers` calls it.
    pub mirror: Option<String>,
    /// Keep what only this side has in a new file of this absolute path on the server.
    pub spill: Option<String>,
    /// Drop what only this side has.
    pub discard: bool,
    /// When nothing is known to be common, compare checksums.
    pub compare: bool,
}

/// Asks what following the other side would give up.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DivergenceRequest {
    /// Where the other side is, when it has moved.
    pub from: Option<String>,
    /// Which of several mirrors that were failed over is meant, as `followers` calls it.
    pub mirror: Option<String>,
}

/// Lifts the locks of a mirror's snapshots for a while.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnlockMirror {
    /// The secret that was set as its lock key.
    pub lock_key: String,
    /// For so long; 15 minutes when not given, 0 to put them in force again.
    pub for_ms: Option<u64>,
}

/// Lets one mirror take over.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AllowReverse {
    /// Which mirror, as `followers` calls it, or the beginning of that; needed where there are
    /// several.
    pub mirror: Option<String>,
    /// Within this time; 15 minutes when not given, 0 for no longer.
    pub for_ms: Option<u64>,
}

/// Whether a mirror may take over.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ReverseAllowed {
    /// The volume.
    pub volume: String,
    /// Which mirror.
    pub mirror: Option<String>,
    /// Until when; none when no mirror may.
    pub until_ms: Option<u64>,
}

/// Which side of a mirror a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MirrorRole {
    /// It takes writes.
    Source,
    /// It is read-only, and follows.
    Destination,
}

/// What is kept for a mirror that no known peer makes: the volume was a mirror itself and brought
/// it along, or what its source forgot. A failback to the former source begins at it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Leftover {
    /// The volume here.
    pub volume: String,
    /// What `cairn mirror forget` takes.
    pub name: String,
    /// The snapshot that is held; none where changes alone are recorded, for a mirror that holds
    /// nothing here.
    pub base: Option<String>,
    /// What it keeps from being reused is at most what changed since.
    pub behind_bytes: u64,
}

/// How a mirror is: one of these, and no other. The first that applies, from the end of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MirrorState {
    /// It shows an image, and the lag is within the limit.
    Mirrored,
    /// The source does not answer.
    Silent,
    /// The lag is more than is wanted.
    Behind,
    /// No image has arrived yet, and none is on its way.
    Baseline,
    /// The last update failed; the schedule tries again.
    Failing,
    /// The source and the mirror have nothing in common: someone must decide.
    Diverged,
    /// What the source sent contradicts what the mirror keeps: the source may be in other hands.
    Contradicted,
    /// It shows an image, and the next is on its way.
    Transferring,
    /// It shows an image, and changes of the source follow as they are written, from its memory.
    Continuous,
    /// The same, and more was written than the source keeps in memory: it reads that from its
    /// device.
    CatchingUp,
    /// The first image is on its way; nothing is shown yet.
    TransferringBaseline,
    /// A transfer runs and no byte moves.
    Stalled,
    /// It was told to begin no updates.
    Paused,
    /// It takes writes now and follows nobody.
    FailedOver,
    /// It takes writes, and the other side follows it since a change of roles.
    Source,
    /// Whom it follows is not known.
    Unknown,
    /// It has given its role to the other side, and is read-only; the other side was not heard to
    /// have taken over.
    HandedOver,
}

/// A mirror that was deleted.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeletedMirror {
    /// The volume that was here.
    pub name: String,
    /// The source knows, and has let go of what it kept for it.
    pub told: bool,
    /// Why it does not.
    pub untold: Option<ErrorBody>,
}

/// A mirror, as its destination knows it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Mirror {
    /// The volume here.
    pub name: String,
    /// Snapshots here whose locks are in force.
    pub locked: u64,
    /// When the last of those locks ends.
    pub locked_until_ms: Option<u64>,
    /// A lock key was set, which lifts locks before their time.
    pub lock_key: bool,
    /// For how long the locks are lifted from now on; none while they are in force.
    pub unlocked_ms: Option<u64>,
    /// Which side of the mirror it is now.
    pub role: MirrorRole,
    /// Both sides and the direction between them, for people.
    pub direction: String,
    /// Since when it has this role, if that ever changed.
    pub role_since_ms: Option<u64>,
    /// The file that has what was given up here last.
    pub spill: Option<String>,
    /// How it is.
    pub state: MirrorState,
    /// Why it is in that state.
    pub reason: String,
    /// What to do about it; none when nothing need be.
    pub remedy: Option<String>,
    /// For monitoring: 0 all is well, 1 look at it, 2 act.
    pub check: u8,
    /// HOST:PORT.
    pub source_address: String,
    /// The volume there.
    pub source_volume: String,
    /// What the source calls this mirror: `cairn mirror forget` there takes it.
    pub source_name: String,
    /// An update begins that often.
    pub every_ms: Option<u64>,
    /// Or by this cron expression.
    pub cron: Option<String>,
    /// Or all the time.
    pub continuous: bool,
    /// What a mirror that follows continuously has done since it last connected; none while it is
    /// not connected.
    pub session: Option<MirrorSession>,
    /// In this time zone; UTC when none is told.
    pub zone: Option<String>,
    /// For how long snapshots stay here whatever becomes of them at the source.
    pub lock_ms: Option<u64>,
    /// The lag that is wanted at most.
    pub rpo_ms: Option<u64>,
    /// The lag is more than that.
    pub over_rpo: bool,
    /// The source holds a base snapshot for it.
    pub hold: bool,
    /// A transfer that moves no byte for so long is ended.
    pub stall_ms: u64,
    /// No update begins.
    pub paused: bool,
    /// Bytes a second at most, by the time of day; none for as fast as it goes.
    pub limit: Option<String>,
    /// The limit now.
    pub limit_now_bytes: Option<u64>,
    /// Connections of a transfer.
    pub connections: u32,
    /// Whether what is sent is packed.
    pub compress: Compress,
    /// An update by the interval may take so long, for the sake of the source's clients; none for
    /// as fast as it goes.
    pub within_ms: Option<u64>,
    /// The snapshot that it shows.
    pub image: Option<String>,
    /// When that was taken, by the source's clock.
    pub image_ms: Option<u64>,
    /// How old the image is, by this server's clock: what a failover now would lose at most.
    pub image_age_ms: Option<u64>,
    /// Since the first change at the source that is not here, as far as is known; grows while the
    /// source is silent.
    pub lag_ms: Option<u64>,
    /// Changes at the source that are not here, when it was last heard of.
    pub lag_bytes: Option<u64>,
    /// Since the source was last heard of.
    pub silent_ms: Option<u64>,
    /// While an update runs: since its last byte came. It is given up at `--mirror-patience`.
    pub quiet_ms: Option<u64>,
    /// What the running or last update did.
    pub last: Option<Transfer>,
    /// When the next update begins.
    pub next_ms: Option<u64>,
    /// Bytes sent since the mirror was made.
    pub sent_bytes: u64,
    /// Updates that went through since the mirror was made.
    pub updates: u64,
    /// Updates since the server started that had no common image to go by: all was compared, or
    /// sent.
    pub compared_updates: u64,
    /// Why the last update failed.
    pub problem: Option<ErrorBody>,
    /// The last comparison with the source that came to its end.
    pub verified: Option<MirrorVerify>,
    /// Damaged blocks here that were brought from the source since the mirror was made.
    pub mended_here: u64,
    /// Damaged blocks of the source that were given to it.
    pub mended_there: u64,
    /// Of the blocks here, those that came while a lock was in force: they are the source's word,
    /// checked against a checksum that does not stop intent.
    pub mended_locked: u64,
}

/// A connection of a mirror that follows its source continuously.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MirrorSession {
    /// Since when.
    pub since_ms: u64,
    /// Images that it has brought.
    pub steps: u64,
    /// Those of them for which the source had to read from its device what it had written.
    pub read_steps: u64,
    /// The last one was one of those.
    pub catching_up: bool,
}

/// An update, running or over.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Transfer {
    /// The snapshot that it brings.
    pub snapshot: Option<String>,
    /// When it began.
    pub started_ms: u64,
    /// How long it took, or has taken.
    pub duration_ms: u64,
    /// Over the network, all included.
    pub sent_bytes: u64,
    /// Blocks that it brings.
    pub changed_bytes: u64,
    /// What a full copy would bring: all blocks in use.
    pub full_bytes: u64,
    /// Blocks that were there from unfinished updates, or that a comparison found, and were not
    /// sent.
    pub kept_bytes: u64,
    /// Blocks that unfinished updates had sent for nothing: lost on the way, or no longer part of
    /// the image. What the source knows of.
    pub wasted_bytes: u64,
    /// Nothing had changed, and nothing was sent.
    pub up_to_date: bool,
    /// It is over, and the image is there.
    pub complete: bool,
}

/// The lag of a mirror at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LagSample {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The lag; none if it was not known.
    pub lag_ms: Option<u64>,
    /// Changes at the source that were not here.
    pub lag_bytes: Option<u64>,
}

/// What a failover costs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Failover {
    /// The volume here; it takes writes now (not after a dry run).
    pub name: String,
    /// The image that it shows.
    pub image: Option<String>,
    /// When that was taken, by the source's clock.
    pub image_ms: Option<u64>,
    /// Everything that is lost was written within this long before now, at most.
    pub lost_ms: Option<u64>,
    /// Changes at the source that are not in the image, when it was last heard of.
    pub lost_bytes: Option<u64>,
    /// Since the source was last heard of: what it wrote in that time is lost besides.
    pub silent_ms: Option<u64>,
    /// Bytes of an unfinished update that were received, also by earlier attempts, and are thrown
    /// away.
    pub discarded_bytes: u64,
    /// Both sides and the direction between them, for people.
    pub direction: String,
    /// It was only asked what would happen.
    pub dry_run: bool,
}

/// Fails a mirror over.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailoverRequest {
    /// Only say what would be lost.
    #[serde(default)]
    pub dry_run: bool,
}

/// A command of which is asked whether it would be refused.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(tag = "what", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DryRun {
    /// `volume delete`.
    DeleteVolume {
        /// The volume.
        volume: String,
    },
    /// `snapshot delete`.
    DeleteSnapshot {
        /// The volume.
        volume: String,
        /// The snapshot.
        snapshot: String,
    },
    /// `snapshot rollback`.
    Rollback {
        /// The volume.
        volume: String,
        /// The snapshot.
        snapshot: String,
    },
    /// `mirror delete`.
    DeleteMirror {
        /// The mirror.
        mirror: String,
    },
    /// `mirror reverse`.
    ReverseMirror {
        /// The mirror.
        mirror: String,
    },
    /// `mirror resync`.
    Resync {
        /// The volume here.
        mirror: String,
    },
    /// `mirror failback`.
    Failback {
        /// The volume here.
        mirror: String,
    },
    /// `lun delete`.
    DeleteLun {
        /// The volume.
        volume: String,
        /// The LUN.
        lun: String,
    },
    /// `clone delete`.
    DeleteClone {
        /// The clone.
        clone: String,
    },
    /// `history disable`.
    DisableHistory {
        /// The volume.
        volume: String,
    },
    /// `group reverse`.
    ReverseGroup {
        /// The group.
        group: String,
    },
}

#[cfg(test)]
mod tests;
