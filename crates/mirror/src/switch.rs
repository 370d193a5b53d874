//! Changes of role at the side that asks for them: it makes its volume follow again, or takes over.

use std::collections::HashMap;
use std::io::{Read, Write};

use cairn_base::{Checksum, SnapshotId};
use cairn_format::Role;
use cairn_format::dump::DumpLevel;
use cairn_format::stream::root_digest;
use cairn_stream::{Compression, Dump, DumpLabel, Have, MIRROR_PREFIX, Plan, Produced};
use cairn_volume::{Divergence, Snapshot, Volume};

use crate::client::{Client, unexpected};
use crate::destination::{Destination, DestinationState};
use crate::error::MirrorError;
use crate::handover::{Departure, Standing, Successor};
use crate::lag::SourceStatus;
use crate::message::{Answer, HandOver, HandOverTogether, Request, StandingOf, StatusOf};

impl Destination {
    /// Asks for the other side's state and snapshots, and reports a failover of this one, if any.
    pub fn standing<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        departed: Option<Departure>,
    ) -> Result<Standing, MirrorError> {
        let (volume, relationship) = (self.source_volume.clone(), self.relationship);
        match client.ask(&Request::Standing(StandingOf { volume, relationship, departed }))? {
            Answer::Standing(standing) => Ok(standing),
            answer => Err(unexpected(answer)),
        }
    }

    /// The news of the failover of this side; none while it follows.
    pub fn departure(&self, address: &str, volume: &str, at: cairn_base::Timestamp) -> Option<Departure> {
        let status = self.volume.status();
        let base = status.cursor.snapshot;
        let entries = self.volume.snapshot_entries();
        let entry = entries.iter().find(|entry| entry.id == base);
        (status.role == Role::Normal && base.0 != 0).then(|| Departure {
            base,
            root: entry.map(root_digest).unwrap_or_default(),
            generation: entry.map_or(status.generation, |entry| entry.root.generation),
            at,
            address: address.to_owned(),
            volume: volume.to_owned(),
        })
    }

    /// The content that only this side has, and that a resync gives up. Snapshots that mirrors made
    /// for themselves do not count as the owner's.
    pub fn divergence(&self, standing: &Standing) -> Result<Divergence, MirrorError> {
        let mut divergence = self.volume.divergence(&self.common(standing))?;
        let head = self.volume.own_head().map(|head| head.id);
        divergence
            .snapshots
            .retain(|snapshot| !snapshot.name.starts_with(MIRROR_PREFIX) && Some(snapshot.id) != head);
        if !divergence.head && divergence.snapshots.is_empty() {
            // Mirrors' own notes are no loss.
            divergence.blocks = 0;
        }
        Ok(divergence)
    }

    /// The snapshots that both sides have with the same content.
    fn common(&self, standing: &Standing) -> Vec<SnapshotId> {
        let theirs: HashMap<SnapshotId, Checksum> = standing.snapshots.iter().copied().collect();
        let entries = self.volume.snapshot_entries();
        let same = entries.iter().filter(|entry| theirs.get(&entry.id) == Some(&root_digest(entry)));
        same.map(|entry| entry.id).collect()
    }

    /// The source's status, with the lag of a mirror that shows a snapshot of this volume which the
    /// source has too.
    pub fn price_from<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        snapshot: SnapshotId,
    ) -> Result<SourceStatus, MirrorError> {
        let entries = self.volume.snapshot_entries();
        let root = entries.iter().find(|entry| entry.id == snapshot).map(root_digest);
        let base_root = root.unwrap_or_default();
        client.status(StatusOf { base: snapshot, base_root, ..self.asks_status() }, &self.volume)
    }

    /// Refuses to give way to a mirror that gets its images from here, directly or through others
    /// ([`Destination::know_hop`]): then neither side would take writes.
    ///
    /// # Errors
    /// [`MirrorError::NotAhead`].
    pub fn refuse_following_itself<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
    ) -> Result<(), MirrorError> {
        let (status, _) = self.ask_status(client)?;
        self.refuse_own_route(&status).map_err(|_| {
            MirrorError::NotAhead(
                "it is a mirror of this side, directly or through others, and nothing is to be done",
            )
        })
    }

    /// Makes this volume, which takes writes, a destination that shows its own head; when it is one
    /// already, nothing happens. Its device must be long enough
    /// ([`Volume::device_bytes_as_destination`]). Where the other side is a mirror itself,
    /// [`Destination::refuse_following_itself`] comes first.
    ///
    /// # Errors
    /// [`MirrorError::NotAhead`] unless the other side takes writes or shows an image that it
    /// received; the volume's errors.
    pub fn give_way(&self, standing: &Standing) -> Result<Snapshot, MirrorError> {
        if standing.id != self.volume.id() {
            return Err(crate::Refusal::WrongVolume { expected: self.volume.id(), found: standing.id }.into());
        }
        let shows_own = standing.own_head.0 != 0;
        if standing.role == Role::Destination && (shows_own || standing.snapshots.is_empty()) {
            return Err(MirrorError::NotAhead(
                "it takes no writes, and shows no image that it received; if this side takes writes, nothing is to be done",
            ));
        }
        if let Some(head) = self.volume.own_head() {
            return Ok(head);
        }
        let mut name = format!("before-resync-{}", self.volume.open_generation().0);
        while self.volume.snapshot_named(&name).is_some() {
            name.push('_');
        }
        // Not under the lock: a disk may be slow, and requests for this side's lag would wait with
        // it.
        let head = self.volume.demote(&name, false)?;
        self.inner.lock().state = DestinationState::OwnHead;
        Ok(head)
    }

    /// Writes the own head, or the image that is shown here, and the snapshots that only this side
    /// has, as an image dump of one part against the newest common snapshot. Together with a dump
    /// of that snapshot (which the other side has) it is the whole content of this side. Without a
    /// common snapshot it is a dump of everything. The level in `label` does not matter.
    pub fn spill(
        &self,
        standing: &Standing,
        label: DumpLabel,
        out: &mut dyn Write,
        work: &mut cairn_stream::Work<'_>,
    ) -> Result<Produced, MirrorError> {
        let head = self.volume.own_head().or_else(|| self.received().map(|(image, _)| image));
        let head = head.ok_or(MirrorError::NotAhead("there is nothing here to spill"))?;
        let common = self.common(standing);
        let mut have = Have::of(&self.volume);
        have.retain(|have| common.contains(&have.id));
        let plan = Plan::new(&self.volume, &have, head.id)?;
        let level = if have.is_empty() { DumpLevel::Level(0) } else { DumpLevel::AgainstSnapshot };
        let label = DumpLabel { level, ..label };
        Ok(Dump::new(&plan, label, 1).write_part(0, out, Compression::Zstd, work)?)
    }

    /// Asks the source to give its role to this side. It shows the snapshot that is returned from
    /// then on, and takes no more writes: an update brings that, and [`Destination::take_over`]
    /// ends the change.
    ///
    /// # Errors
    /// [`crate::Refusal::Behind`] when this side does not have the source's base;
    /// [`MirrorError::Undecided`] when it shows its own head.
    pub fn ask_for_role<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        successor: Successor,
    ) -> Result<SnapshotId, MirrorError> {
        match client.ask(&Request::HandOver(self.wish_for_role(successor)?))? {
            Answer::HandedOver { target } => Ok(target),
            answer => Err(unexpected(answer)),
        }
    }

    /// The same for all mirrors of a group, which are of one server: their sources stop at one
    /// instant, and each has a snapshot of the group at it. The result is in the order of `heirs`.
    ///
    /// # Errors
    /// As [`Destination::ask_for_role`]. On an error no source has handed its role over, unless the
    /// other side died halfway: a repeated request resumes.
    pub fn ask_for_roles<S: Read + Write + ?Sized>(
        client: &mut Client<'_, S>,
        group: &str,
        heirs: Vec<(&Destination, Successor)>,
    ) -> Result<Vec<SnapshotId>, MirrorError> {
        let count = heirs.len();
        let members = heirs.into_iter().map(|(heir, successor)| heir.wish_for_role(successor));
        let wish = HandOverTogether { group: group.to_owned(), members: members.collect::<Result<_, _>>()? };
        match client.ask(&Request::HandOverTogether(wish))? {
            Answer::HandedOverTogether { targets } if targets.len() == count => Ok(targets),
            Answer::HandedOverTogether { .. } => {
                Err(MirrorError::Protocol("it has not given the roles of all volumes away"))
            }
            answer => Err(unexpected(answer)),
        }
    }

    fn wish_for_role(&self, successor: Successor) -> Result<HandOver, MirrorError> {
        let status = self.volume.status();
        if status.role != Role::Destination {
            return Err(MirrorError::FailedOver);
        }
        self.refuse_own_head()?;
        Ok(HandOver {
            volume: self.source_volume.clone(),
            id: self.volume.id(),
            relationship: self.relationship,
            shown: status.cursor.snapshot,
            successor,
        })
    }

    /// Becomes the source, with all changes: `target` is the snapshot that the other side has
    /// handed over.
    ///
    /// # Errors
    /// [`crate::Refusal::Behind`] when this side does not show it; [`MirrorError::Busy`] while a
    /// transfer runs.
    pub fn take_over(&self, target: SnapshotId) -> Result<(), MirrorError> {
        if self.volume.status().role == Role::Destination {
            self.refuse_unless_shown(target)?;
        }
        self.failover().map(drop)
    }

    /// Refuses an operation that needs the image that the other side has handed over, while this
    /// side does not show that.
    ///
    /// # Errors
    /// [`crate::Refusal::Behind`].
    pub fn refuse_unless_shown(&self, target: SnapshotId) -> Result<(), MirrorError> {
        let shown = self.volume.status().cursor.snapshot;
        match shown == target && self.volume.own_head().is_none() {
            true => Ok(()),
            false => Err(crate::Refusal::Behind.into()),
        }
    }

    /// Refuses an operation that would lose an own head that was not given up.
    fn refuse_own_head(&self) -> Result<(), MirrorError> {
        match self.volume.own_head() {
            Some(head) => Err(self.undecided(&head)),
            None => Ok(()),
        }
    }

    pub(crate) fn undecided(&self, head: &Snapshot) -> MirrorError {
        MirrorError::Undecided { blocks: blocks_after_parent(&self.volume, head) }
    }
}

/// Blocks that a head has and the snapshot before it does not.
fn blocks_after_parent(volume: &std::sync::Arc<Volume>, head: &Snapshot) -> u64 {
    let have = if head.parent.0 == 0 { Vec::new() } else { vec![head.parent] };
    volume.divergence(&have).map_or(head.root.used, |divergence| divergence.blocks)
}
