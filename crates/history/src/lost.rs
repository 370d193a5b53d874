//! Content that cannot be read any more, and the operations that continue all the same.
//!
//! A version that the window, a revert or a write needs elsewhere may be unreadable: damaged in the
//! store, or a bad place of a disk. Nothing can restore it, and it must not block all other work.
//! So the log records that the block's content is *lost*, from a time on or until a time, in an
//! entry without content. Reads that need it fail, as they did before; no wrong content replaces
//! it. A write of the whole block ends it.
//!
//! A device that does not answer at all is another matter: then the work fails, and everything is
//! unchanged when the device is back.

use cairn_base::BLOCK_SIZE;
use cairn_device::{Device, DeviceError, Segments};
use cairn_format::history::{EntryKind, NO_LBA};

use crate::HistoryError;
use crate::content::Content;
use crate::history::{History, State};
use crate::index::Version;
use crate::log::{Pending, Writer};
use crate::resolve::{NOW, Source};

/// The number of reads before content counts as lost.
pub(crate) const ATTEMPTS: usize = 3;

impl History {
    /// The contents of versions. Those that the store has no more are lost; an error means that the
    /// store does not answer.
    pub(crate) fn contents_of(&self, versions: &[Version]) -> Result<Vec<Content>, HistoryError> {
        let with_length = |version: &Version| (*version, self.length_of(version.lba));
        let wanted: Vec<(Version, usize)> =
            versions.iter().filter(|version| version.kind.has_data()).map(with_length).collect();
        let mut read = self.read_versions(&wanted).into_iter();
        let mut contents = Vec::with_capacity(versions.len());
        for version in versions {
            contents.push(match version.kind {
                EntryKind::RedoLost | EntryKind::UndoLost => Content::Lost,
                kind if !kind.has_data() => Content::Zero,
                _ => match read.next().unwrap_or(Err(DeviceError::OutOfService)) {
                    Ok(data) => Content::Data(data),
                    Err(error) => {
                        let again = || {
                            self.read_versions(&[with_length(version)])
                                .pop()
                                .unwrap_or(Err(DeviceError::OutOfService))
                        };
                        let found = self.insist(&*self.store, error, again)?;
                        found.map_or_else(|error| self.lose(version.lba, version.time, &error), Content::Data)
                    }
                },
            });
        }
        Ok(contents)
    }

    /// The content of a block of the origin until `time`; lost when the origin has it no more.
    pub(crate) fn base_of(
        &self,
        lba: u64,
        time: u64,
        read: Result<Content, DeviceError>,
    ) -> Result<Content, HistoryError> {
        let again = || self.stage_origin(&[lba]).pop().unwrap_or(Err(DeviceError::OutOfService));
        match read {
            Ok(content) => Ok(content),
            Err(error) => {
                let found = self.insist(&*self.origin, error, again)?;
                Ok(found.unwrap_or_else(|error| self.lose(lba, time, &error)))
            }
        }
    }

    /// The content that a revert to `at` restores of a block; lost when neither device has it any
    /// more.
    pub(crate) fn brought_back(
        &self,
        lba: u64,
        at: u64,
        read: Result<Content, DeviceError>,
    ) -> Result<Content, HistoryError> {
        let again = || self.contents_at(&[lba], at).pop().unwrap_or(Err(DeviceError::OutOfService));
        match read {
            Ok(content) => Ok(content),
            Err(error) => {
                self.answers(&*self.origin, &error)?;
                let found = self.insist(&*self.store, error, again)?;
                Ok(found.unwrap_or_else(|error| self.lose(lba, at, &error)))
            }
        }
    }

    /// Repeats failed reads. The outer error is that of a device that does not answer, the inner
    /// one that of lost content.
    pub(crate) fn insist<T>(
        &self,
        device: &dyn Device,
        error: DeviceError,
        mut again: impl FnMut() -> Result<T, DeviceError>,
    ) -> Result<Result<T, DeviceError>, HistoryError> {
        let mut error = error;
        for _ in 1..ATTEMPTS {
            match again() {
                Ok(found) => return Ok(Ok(found)),
                Err(other) => error = other,
            }
        }
        self.answers(device, &error)?;
        // It may have been away until now: its answer counts once it responds.
        Ok(again())
    }

    /// Whether a device that failed a read answers another one, at its start or its end.
    pub(crate) fn answers(&self, device: &dyn Device, error: &DeviceError) -> Result<(), HistoryError> {
        let geometry = device.geometry();
        let length = (BLOCK_SIZE as u64).max(u64::from(geometry.alignment)).min(geometry.length);
        let ends =
            [0, (geometry.length - length) / u64::from(geometry.alignment) * u64::from(geometry.alignment)];
        let read = |offset: u64| -> Result<Segments, DeviceError> {
            device.read(offset, (length.min(geometry.length - offset)) as u32)
        };
        let is_lost = match error {
            DeviceError::Corrupt { .. } => true,
            DeviceError::Io { .. } => ends.into_iter().any(|offset| read(offset).is_ok()),
            _ => false,
        };
        if is_lost { Ok(()) } else { Err(HistoryError::Device(error.clone())) }
    }

    fn lose(&self, lba: u64, time: u64, error: &DeviceError) -> Content {
        self.tally.add(&self.tally.damaged, 1);
        tracing::error!(
            block = lba,
            time_ns = time,
            %error,
            "a version of a block can't be read and is lost: reads of instants that need it fail; other requests continue"
        );
        Content::Lost
    }

    /// Records in the log that blocks are lost, each from its time on.
    pub(crate) fn write_lost(&self, writer: &mut Writer, lost: &[(u64, u64)]) -> Result<(), HistoryError> {
        let pending = |(lba, time): &(u64, u64)| Pending {
            lba: *lba,
            time: *time,
            kind: EntryKind::RedoLost,
            data: None,
        };
        let versions = self.append(writer, lost.iter().map(pending).collect())?;
        self.publish(&mut self.state.lock(), writer.superblock.segment_blocks, &versions);
        Ok(())
    }

    /// Refuses to release a disk on which blocks have wrong content.
    pub(crate) fn refuse_lost(&self) -> Result<(), HistoryError> {
        let state = self.state.lock();
        let mut blocks: Vec<u64> = state.lost.iter().map(|(lba, _)| *lba).collect();
        blocks.dedup();
        blocks.retain(|lba| {
            state.cache.newest(*lba).is_none() && matches!(state.resolve(*lba, NOW), Source::Lost)
        });
        match blocks.first() {
            None => Ok(()),
            Some(first) => {
                let offset = first * u64::from(self.block_bytes);
                Err(HistoryError::LostBlocks { count: blocks.len() as u64, offset })
            }
        }
    }
}

impl State {
    /// A version has been added to the index.
    pub(crate) fn note_lost(&mut self, version: &Version) {
        if version.lba != NO_LBA && version.is_lost() {
            self.lost.insert((version.lba, version.time));
        }
    }

    /// A version has left the index.
    pub(crate) fn forget_lost(&mut self, version: &Version) {
        if !version.is_lost() {
            return;
        }
        // The content of a block until a time, and its content from then on, can both be lost.
        let beside = self.index.get((version.lba, version.time, u8::from(version.is_undo())));
        if !beside.is_some_and(|beside| beside.is_lost()) {
            self.lost.remove(&(version.lba, version.time));
        }
    }
}
