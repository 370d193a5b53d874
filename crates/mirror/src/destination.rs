//! The destination's side of a relationship: brings the newest image, knows its lag, fails over.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairn_base::{Checksum, Mutex, SnapshotId, Timestamp};
use cairn_format::Role;
use cairn_format::stream::{StreamKind, root_digest};
use cairn_stream::{Compression, Have, Progress, StreamError, Threads, apply};
use cairn_volume::{Volume, VolumeError};

use crate::client::{Client, unexpected};
use crate::error::{MirrorError, NackReason, Refusal};
use crate::lag::{Contact, Lag, Loss};
use crate::message::{Answer, Request, Update};
use crate::relationship::Relationship;

/// How a destination is.
#[derive(Debug, Clone)]
pub enum DestinationState {
    /// No image has arrived.
    Uninitialized,
    /// The first image is on its way.
    TransferringBaseline,
    /// It shows an image and waits.
    Idle,
    /// It shows an image, and the next is on its way.
    Updating,
    /// The last transfer failed; what was shown before is shown. The next update tries again.
    Failed(MirrorError),
    /// It takes writes, and follows nobody.
    FailedOver,
}

/// What an update did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferKind {
    /// Everything was sent.
    Baseline,
    /// What had changed was sent.
    Update,
    /// Nothing had changed, nothing was sent.
    UpToDate,
}

/// How far a transfer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferProgress {
    /// The name of the snapshot that it brings.
    pub snapshot: String,
    /// Blocks that arrived.
    pub blocks: u64,
    /// Blocks that it brings; 0 until the first record.
    pub blocks_total: u64,
    /// Bytes that arrived, all included.
    pub bytes: u64,
    /// Blocks that a full copy would bring.
    pub full_blocks: u64,
}

/// What a transfer did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferReport {
    /// Everything, changes, or nothing.
    pub kind: TransferKind,
    /// The snapshot that is shown now.
    pub target: SnapshotId,
    /// Its name.
    pub name: String,
    /// When it was taken, by the source's clock.
    pub taken: Timestamp,
    /// Bytes of stream that were sent.
    pub bytes: u64,
    /// Blocks that were sent.
    pub blocks: u64,
    /// Blocks that a full copy would have sent.
    pub full_blocks: u64,
    /// From the request to the commit.
    pub duration: Duration,
    /// False when the source did not confirm that it heard of the commit; it finds out at the next update.
    pub confirmed: bool,
}

/// What goes along with a transfer.
pub struct Work<'a> {
    /// Polled at each record.
    pub cancel: &'a AtomicBool,
    /// Called at each record.
    pub progress: &'a mut dyn FnMut(&TransferProgress),
    /// Without it wire and disk take turns.
    pub threads: Option<&'a dyn Threads>,
}

struct Inner {
    state: DestinationState,
    contact: Option<Contact>,
}

/// A destination: a volume of that role, and whose mirror it is.
pub struct Destination {
    volume: Arc<Volume>,
    source_volume: String,
    relationship: Relationship,
    compression: Compression,
    inner: Mutex<Inner>,
}

impl Destination {
    /// The mirror in `volume` of the source's `source_volume`. `contact` is the last that was heard of the source before a restart.
    pub fn new(
        volume: Arc<Volume>,
        source_volume: &str,
        relationship: Relationship,
        compression: Compression,
        contact: Option<Contact>,
    ) -> Self {
        let status = volume.status();
        let state = match (status.role, status.cursor.snapshot) {
            (Role::Normal, _) => DestinationState::FailedOver,
            (Role::Destination, SnapshotId(0)) => DestinationState::Uninitialized,
            (Role::Destination, _) => DestinationState::Idle,
        };
        let source_volume = source_volume.to_owned();
        Self { volume, source_volume, relationship, compression, inner: Mutex::new(Inner { state, contact }) }
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// How it is.
    pub fn state(&self) -> DestinationState {
        self.inner.lock().state.clone()
    }

    /// The last that was heard of the source: worth keeping across a restart.
    pub fn contact(&self) -> Option<Contact> {
        self.inner.lock().contact
    }

    /// How far behind it is, as far as is known here; none before the first contact.
    pub fn lag(&self) -> Option<Lag> {
        Some(self.contact()?.lag(self.volume.clock().now()))
    }

    /// Asks the source for its status, and so for the lag.
    pub fn refresh<S: Read + Write + ?Sized>(&self, client: &mut Client<'_, S>) -> Result<Lag, MirrorError> {
        let (base, root) = self.base();
        let status = client.status(&self.source_volume, base, root)?;
        let contact = Contact { at: self.volume.clock().now(), status };
        self.inner.lock().contact = Some(contact);
        Ok(contact.lag(contact.at))
    }

    fn base(&self) -> (SnapshotId, Checksum) {
        let base = self.volume.status().cursor.snapshot;
        let entries = self.volume.snapshot_entries();
        let root = entries.iter().find(|entry| entry.id == base).map(root_digest);
        (base, root.unwrap_or_default())
    }

    /// Brings the newest image of the source. On any error the volume shows what it showed before.
    ///
    /// # Errors
    /// [`Refusal::DestinationTooSmall`] when the source has grown: grow this volume and update again.
    pub fn update<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        work: &mut Work<'_>,
    ) -> Result<TransferReport, MirrorError> {
        {
            let mut inner = self.inner.lock();
            inner.state = match inner.state {
                DestinationState::TransferringBaseline | DestinationState::Updating => {
                    return Err(MirrorError::Busy);
                }
                DestinationState::FailedOver => return Err(MirrorError::FailedOver),
                _ if self.volume.status().cursor.snapshot.0 == 0 => DestinationState::TransferringBaseline,
                _ => DestinationState::Updating,
            };
        }
        let outcome = self.transfer(client, work);
        self.inner.lock().state = match &outcome {
            Ok(_) => DestinationState::Idle,
            Err(reason) => DestinationState::Failed(reason.clone()),
        };
        outcome
    }

    fn transfer<S: Read + Write + ?Sized>(
        &self,
        client: &mut Client<'_, S>,
        work: &mut Work<'_>,
    ) -> Result<TransferReport, MirrorError> {
        let began = self.volume.clock().monotonic();
        let update = Update {
            volume: self.source_volume.clone(),
            id: self.volume.id(),
            relationship: self.relationship,
            blocks: self.volume.space_blocks(),
            compression: self.compression,
            have: Have::of(&self.volume),
        };
        let report = |kind, target: SnapshotId, bytes, blocks, full_blocks, confirmed| {
            let snapshot = self.volume.snapshot(target);
            TransferReport {
                kind,
                target,
                name: snapshot.as_ref().map(|snapshot| snapshot.name.clone()).unwrap_or_default(),
                taken: snapshot.map(|snapshot| snapshot.created).unwrap_or_default(),
                bytes,
                blocks,
                full_blocks,
                duration: self.volume.clock().monotonic().saturating_sub(began),
                confirmed,
            }
        };
        let (target, name, full_blocks, status) = match client.ask(&Request::Update(update))? {
            Answer::UpToDate(status) => {
                self.heard(status);
                let shown = self.volume.status().cursor.snapshot;
                return Ok(report(TransferKind::UpToDate, shown, 0, 0, status.used, true));
            }
            Answer::Transfer { target, name, full_blocks, status } => (target, name, full_blocks, status),
            answer => return Err(unexpected(answer)),
        };
        self.heard(status);
        let mut seen = TransferProgress { snapshot: name, blocks: 0, blocks_total: 0, bytes: 0, full_blocks };
        (work.progress)(&seen);
        let outer = &mut work.progress;
        let mut tell = |progress: Progress| {
            seen.blocks = progress.blocks;
            seen.blocks_total = progress.blocks_total;
            seen.bytes = progress.bytes;
            outer(&seen);
        };
        let mut inner =
            cairn_stream::Work { cancel: work.cancel, progress: &mut tell, threads: work.threads };
        let applied = apply(&mut Reading(client.stream), &self.volume, &mut inner).and_then(|applied| {
            let announced = applied.target == target;
            announced.then_some(applied).ok_or(StreamError::Inconsistent("it is of another snapshot"))
        });
        let applied = match applied {
            Ok(applied) => applied,
            Err(error) => {
                if let Some(reason) = nack_reason(&error) {
                    // The source may be gone, or still busy sending; its next session starts clean either way.
                    let _ = client.tell(&Request::Nack { reason });
                }
                return Err(error.into());
            }
        };
        let confirmed = match client.ask(&Request::Ack { target }) {
            Ok(Answer::Status(status)) => {
                self.heard(status);
                true
            }
            // The image is committed here whatever became of the acknowledgement.
            Ok(_) | Err(_) => false,
        };
        let kind = match applied.kind {
            StreamKind::Full => TransferKind::Baseline,
            StreamKind::Incremental => TransferKind::Update,
        };
        Ok(report(kind, target, applied.bytes, applied.blocks, full_blocks, confirmed))
    }

    fn heard(&self, status: crate::lag::SourceStatus) {
        self.inner.lock().contact = Some(Contact { at: self.volume.clock().now(), status });
    }

    /// What a failover now would lose.
    pub fn loss(&self) -> Loss {
        let image = self.volume.status().cursor.snapshot;
        let snapshot = self.volume.snapshot(image);
        let contact = self.contact();
        Loss {
            image,
            image_name: snapshot.as_ref().map(|snapshot| snapshot.name.clone()).unwrap_or_default(),
            image_taken: snapshot.map(|snapshot| snapshot.created).unwrap_or_default(),
            bytes_known: contact.map(|contact| contact.status.bytes()),
            age_known: contact.map(|contact| contact.status.age()),
            silent: contact.map(|contact| self.volume.clock().now().since(contact.at)),
        }
    }

    /// Makes the volume writable, with the last image, and says what is lost. The source is not needed.
    ///
    /// # Errors
    /// [`MirrorError::Busy`] while a transfer runs: cancel it first. [`MirrorError::FailedOver`] when it was done before.
    pub fn failover(&self) -> Result<Loss, MirrorError> {
        let mut inner = self.inner.lock();
        match inner.state {
            DestinationState::TransferringBaseline | DestinationState::Updating => {
                return Err(MirrorError::Busy);
            }
            DestinationState::FailedOver => return Err(MirrorError::FailedOver),
            _ => {}
        }
        let before = std::mem::replace(&mut inner.state, DestinationState::FailedOver);
        drop(inner);
        let loss = self.loss();
        if let Err(error) = self.volume.failover() {
            self.inner.lock().state = before;
            return Err(error.into());
        }
        Ok(loss)
    }
}

/// A reader that borrows the stream of a client.
struct Reading<'a, S: Read + ?Sized>(&'a mut S);

impl<S: Read + ?Sized> Read for Reading<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

/// What the source is told of a failure here; nothing when the connection itself failed, or the source knows.
fn nack_reason(error: &StreamError) -> Option<NackReason> {
    match error {
        StreamError::Io(_) | StreamError::Aborted(_) => None,
        StreamError::Cancelled => Some(NackReason::Cancelled),
        StreamError::Volume(VolumeError::Refused(_) | VolumeError::Damaged { .. }) => {
            Some(NackReason::Damaged)
        }
        StreamError::Volume(_) => Some(NackReason::VolumeFailed),
        _ => Some(NackReason::Damaged),
    }
}

impl MirrorError {
    /// The blocks that this destination needs, when that is what an update failed on.
    pub fn blocks_needed(&self) -> Option<u64> {
        match self {
            MirrorError::Refused(Refusal::DestinationTooSmall { need, .. }) => Some(*need),
            _ => None,
        }
    }
}
