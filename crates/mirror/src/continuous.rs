//! Continuous mode: a lag of seconds. The destination asks for a notice when the source has changed
//! ([`Destination::follow`]), and then for a *step*: an update that costs the source one
//! consistency point, and no reads of the blocks that it wrote.
//!
//! 1. *Await*: the source answers when a change that the destination lacks is older than
//!    [`Pace::step`], or after [`Pace::wait`], with the lag. So a waiting destination always knows
//!    its lag, and the loss of a source is noticed.
//! 2. *Step*: one consistency point of the source makes and holds the snapshot, releases the one
//!    before its base, and advances the since maps. The blocks that it wrote are still in memory
//!    ([`cairn_volume::Volume::keep_fresh`]) and are sent from there; a client's write is written
//!    once.
//! 3. The destination verifies and commits the image as in any other update: it shows consistency
//!    points of the source and nothing in between.
//!
//! *Falling behind* needs no special handling. The blocks to send are found by comparing maps, as
//! in any update, so the result is exact whatever was missed; memory only saves reads. When more
//! was written than memory holds, the older blocks are read from the device, and the next step is
//! larger, and so cheaper for each change. After any error the next request is an update like any
//! other. A missing base, no common snapshot, an unfinished transfer and changed roles are handled
//! as in those.
//!
//! A scheduled or manual update whose base the source holds is made as a step is, with hooks around
//! it and without blocks in memory. Its old base is released once it has arrived.
//!
//! Hooks are not run for steps: an image equals the state after a crash at that moment, which
//! databases are made for.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{Checksum, SnapshotId};
use cairn_format::stream::root_digest;
use cairn_format::{Role, SnapshotEntry};
use cairn_stream::{Have, MIRROR_PREFIX};
use cairn_volume::{Snapshot, Step, Volume, VolumeError};

use crate::client::{Client, unexpected};
use crate::destination::{Destination, TransferReport, Work};
use crate::error::{MirrorError, Refusal};
use crate::follower::since_number;
use crate::lag::SourceStatus;
use crate::message::{Answer, Await, Request, Update};
use crate::offer::SourceVolumes;
use crate::relationship::{PeerName, name_in, prefix};
use crate::roles::handed_over;
use crate::source::{Base, KnownMaps, Prepared, Shows, Source, common, own_snapshots, status_of};

/// The longest rest of a source that waits for a change: how late it may notice one.
const REST: Duration = Duration::from_millis(20);

/// The longest wait for a change, whatever is requested: it limits the time until a lost connection
/// is noticed.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How closely a mirror follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// A change that is older than this at the source begins a step.
    pub step: Duration,
    /// The source answers after this long in any case, and after a minute.
    pub wait: Duration,
}

impl Destination {
    /// Waits until there is a change at the source for [`Pace::step`], and brings it; `None` when
    /// nothing was due for [`Pace::wait`]. Call it repeatedly on the same connection.
    ///
    /// # Errors
    /// As [`Destination::update`].
    pub fn follow<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        pace: Pace,
        work: &mut Work<'_>,
    ) -> Result<Option<TransferReport>, MirrorError> {
        let (base, base_root) = self.base();
        let millis = |time: Duration| time.as_millis().try_into().unwrap_or(u64::MAX);
        let wish = Await {
            volume: self.source_volume().to_owned(),
            relationship: self.relationship,
            base,
            base_root,
            labels: labels(&self.volume().snapshot_entries()),
            step_ms: millis(pace.step),
            wait_ms: millis(pace.wait),
        };
        let asked = self.volume().clock().monotonic();
        // Nothing is received meanwhile, so that blocks move home.
        let (due, status) = match client.ask(&Request::Await(wish))? {
            Answer::Awaited { due, status } => (due, status),
            answer => return Err(unexpected(answer)),
        };
        // If nothing was due, the source waited for this long before it answered.
        self.heard_ahead(status, if due { asked } else { asked + pace.wait })?;
        if due { self.step(client, work).map(Some) } else { Ok(None) }
    }
}

/// A digest of the names and contents of the owner's snapshots.
fn labels(entries: &[SnapshotEntry]) -> Checksum {
    let named = entries.iter().filter(|entry| !entry.name.starts_with(MIRROR_PREFIX));
    let all: Vec<u8> = named.flat_map(|entry| Have::from(entry).label.0).collect();
    Checksum::of(&all)
}

impl Source {
    /// Answers a destination that waits for a change.
    pub(crate) fn awaited(
        &self,
        volume: &Arc<Volume>,
        wish: &Await,
        shows: Option<Shows>,
        peer: &PeerName,
        volumes: &dyn SourceVolumes,
    ) -> Result<(bool, SourceStatus), Refusal> {
        let prefix = prefix(peer, wish.relationship);
        let (step, wait) = (Duration::from_millis(wish.step_ms), Duration::from_millis(wish.wait_ms));
        let wait = wait.min(WAIT_MAX);
        let clock = volume.clock();
        let began = clock.monotonic();
        let entries = volume.snapshot_entries();
        let base = entries.iter().find(|entry| entry.id == wish.base && root_digest(entry) == wish.base_root);
        // Without its base an update has to find the common snapshot. For a destination, an image
        // is due when it shows another one.
        let relays = volume.status_role() != Role::Normal;
        // If its base is not held, the map that began at it exists.
        let number = since_number(name_in(&prefix));
        let is_there = |known: &KnownMaps| {
            let files = volume.since_files(number);
            files.is_some_and(|files| [Some(files.accumulating), files.in_flight].contains(&known.began.file))
        };
        let known = shows.filter(|shows| base.is_none() && !relays && shows.image == wish.base);
        let known = known.map(|shows| shows.known).filter(is_there);
        let root = base.map(|base| base.root);
        let age = || match (root, known) {
            (Some(root), _) => volume.age_of_changes(&root),
            (None, Some(KnownMaps { began, .. })) => {
                volume.age_of_changes_after(began.generation, began.changed)
            }
            (None, None) => None,
        };
        let at_once = match (base, known) {
            (None, None) => true,
            _ if relays => volume.status().cursor.snapshot != wish.base,
            _ => age().is_none() && labels(&entries) != wish.labels,
        };
        // The following check runs often: not at every snapshot.
        drop(entries);
        let due = at_once
            || loop {
                let stays = match (relays, &known) {
                    (true, _) => volume.status().cursor.snapshot == wish.base,
                    (false, Some(known)) => is_there(known),
                    (false, None) => volume.snapshot(wish.base).is_some(),
                };
                if !stays {
                    break true;
                }
                let age = if relays { None } else { age() };
                if age.is_some_and(|age| age >= step) {
                    break true;
                }
                let waited = clock.monotonic().saturating_sub(began);
                let left = wait.saturating_sub(waited).min(age.map_or(wait, |age| step - age));
                // No wait if waiting is off, and never one too short to be a rest.
                if waited >= wait || !volumes.rest(left.clamp(Duration::from_millis(1), REST)) {
                    break false;
                }
            };
        Ok((due, status_of(volume, &prefix, wish.base, Some(wish.base_root), known)?))
    }

    /// The base of a step, or of an update that is made as one: the image that the destination
    /// shows, which is held for it here. `None` when an update has more work than a step.
    pub(crate) fn step_base(&self, volume: &Volume, update: &Update, prefix: &str) -> Option<Snapshot> {
        let plain = update.hold && !update.compare && !update.stance.has_head();
        if !plain || volume.status_role() != Role::Normal || handed_over(volume, prefix).is_some() {
            return None;
        }
        let theirs = update.have.iter().find(|have| have.id == update.shown)?;
        let own = own_snapshots(volume, prefix);
        let base = own.into_iter().map(|(snapshot, _)| snapshot).find(|own| own.id == update.shown)?;
        let now = volume.status();
        if !update.step && now.dirty == 0 && now.changed == base.root.changed {
            // The maximum number of names for which no new map is begun.
            return None;
        }
        let entries = volume.snapshot_entries();
        let same = |entry: &SnapshotEntry| entry.id == base.id && root_digest(entry) == theirs.root;
        (base.held && entries.iter().any(same)).then_some(base)
    }

    /// As `prepare` does it, in one consistency point. The caller has the housekeeping, and has
    /// looked whether volume and lengths fit.
    pub(crate) fn prepare_step(
        &self,
        volume: &Arc<Volume>,
        update: &Update,
        prefix: &str,
        base: &Snapshot,
    ) -> Result<Result<Prepared, SourceStatus>, Refusal> {
        let refused = |error: VolumeError| Refusal::from(&error);
        common(volume, &update.have)?;
        let began = volume.clock().monotonic();
        let here = status_of(volume, prefix, base.id, None, None)?;
        let theirs: Vec<Checksum> =
            update.have.iter().filter(|have| !have.mirror).map(|have| have.label).collect();
        let ours: Vec<Checksum> = volume
            .snapshot_entries()
            .iter()
            .filter(|entry| !entry.name.starts_with(MIRROR_PREFIX))
            .map(|entry| Have::from(entry).label)
            .collect();
        if here.first_change.is_none() && theirs == ours {
            return Ok(Err(here));
        }
        let own = own_snapshots(volume, prefix);
        let name = format!("{prefix}{}", own.last().map_or(0, |(_, number)| *number) + 1);
        let over: Vec<SnapshotId> = own
            .iter()
            .map(|(snapshot, _)| snapshot.id)
            .filter(|id| *id != base.id && !update.keeps(*id) && !volume.is_cloned(*id))
            .collect();
        let number = since_number(name_in(prefix));
        let step = Step { name: &name, relationship: Some(number), base: base.id, over: &over };
        let target = match volume.create_snapshot_step(step) {
            // Too full for the map. With the base held the map is not needed; it continues from
            // where it began.
            Err(VolumeError::NoSpace) => volume.create_snapshot_step(Step { relationship: None, ..step }),
            other => other,
        };
        let target = target.map_err(refused)?;
        // The destination's lag until it has this snapshot. The wall clock may have been set since.
        let found = volume.clock().monotonic();
        let status = here.after(found.saturating_sub(began));
        Ok(Ok(Prepared { target, base: Base::Snapshots, status, found, step: update.step }))
    }
}
