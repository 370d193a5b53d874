//! Where the content of a block at an instant is, and reading it.

use cairn_device::{DeviceError, Operation, Segments};
use cairn_format::history::EntryKind;

use crate::content::{Content, zeroes};
use crate::counters::Io;
use crate::history::{History, State};
use crate::index::Version;

/// The number of attempts of a read whose places have moved. Each time another operation has
/// finished, so more than a few are never needed; a limit turns a bug into an error instead of an
/// endless loop.
const ATTEMPTS: usize = 1000;
/// The present.
pub(crate) const NOW: u64 = u64::MAX / 2;

/// Where a block's content is.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Cached(Content),
    Place(Version),
    Zero,
    Origin,
    /// On no device.
    Lost,
}

impl Source {
    fn same(&self, other: &Source) -> bool {
        match (self, other) {
            (Source::Cached(_), Source::Cached(_))
            | (Source::Zero, Source::Zero)
            | (Source::Origin, Source::Origin)
            | (Source::Lost, Source::Lost) => true,
            (Source::Place(one), Source::Place(other)) => one == other,
            _ => false,
        }
    }
}

/// A stretch of one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) lba: u64,
    pub(crate) at: usize,
    pub(crate) count: usize,
}

impl State {
    /// Where the content of a block is below the write cache, at an instant.
    pub(crate) fn resolve(&self, lba: u64, at: u64) -> Source {
        self.resolve_as_of(lba, at).0
    }

    /// The same, and the instant that a revert represents there (`at` without a revert).
    fn resolve_as_of(&self, lba: u64, at: u64) -> (Source, u64) {
        let logging = self.logging;
        let mut at = at;
        let mut reverts = self.reverts.iter().rev();
        loop {
            let last = self.index.last_at(lba, at);
            // A revert represents the instant that it restored until the block has a later version
            // or was copied.
            if let Some(revert) = reverts.find(|revert| revert.time <= at)
                && lba >= revert.cursor
                && last.is_none_or(|last| last.time <= revert.time)
            {
                at = revert.target;
                continue;
            }
            let source = match last {
                Some(last) if last.kind == EntryKind::Redo => Source::Place(last),
                Some(last) if last.kind == EntryKind::RedoZero => Source::Zero,
                Some(last) if last.kind == EntryKind::RedoLost => Source::Lost,
                _ => self.until_next_undo(lba, at, logging),
            };
            return (source, at);
        }
    }

    /// The content up to the next undo. Redos before it are of versions that were not retained,
    /// which the log may still have after an opening: no kept instant is between them and the
    /// version that replaced them.
    fn until_next_undo(&self, lba: u64, at: u64, logging: bool) -> Source {
        let mut next = if logging { None } else { self.index.first_after(lba, at) };
        while let Some(version) = next {
            match version.kind {
                EntryKind::Undo => return Source::Place(version),
                EntryKind::UndoZero => return Source::Zero,
                EntryKind::UndoLost => return Source::Lost,
                _ => next = self.index.next(version.key()).filter(|next| next.lba == lba),
            }
        }
        match self.current.newest(lba) {
            Some(content) => Source::Cached(content.clone()),
            None => Source::Origin,
        }
    }

    fn resolve_present(&mut self, lba: u64) -> (Source, u64) {
        if let Some(content) = self.cache.newest(lba) {
            return (Source::Cached(content.clone()), NOW);
        }
        if let Some(content) = self.reads.get(lba) {
            return (Source::Cached(content), NOW);
        }
        self.resolve_as_of(lba, NOW)
    }
}

impl History {
    /// The pieces of blocks that make up a stretch of the device.
    pub(crate) fn pieces(&self, offset: u64, length: u64) -> impl Iterator<Item = Piece> + use<> {
        let block = u64::from(self.block_bytes);
        let end = offset + length;
        let mut next = offset;
        std::iter::from_fn(move || {
            if next >= end {
                return None;
            }
            let lba = next / block;
            let at = next % block;
            let count = (block - at).min(end - next);
            next += count;
            Some(Piece { lba, at: at as usize, count: count as usize })
        })
    }

    /// Reads pieces at an instant ([`NOW`]: as the last write left them).
    pub(crate) fn read_pieces(&self, pieces: &[Piece], at: u64) -> Vec<Result<Segments, DeviceError>> {
        let mut outcomes: Vec<Option<Result<Segments, DeviceError>>> = vec![None; pieces.len()];
        for _ in 0..ATTEMPTS {
            let todo: Vec<usize> = (0..pieces.len()).filter(|index| outcomes[*index].is_none()).collect();
            if todo.is_empty() {
                break;
            }
            self.attempt(pieces, &todo, at, &mut outcomes);
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or(Err(DeviceError::OutOfService))).collect()
    }

    /// Reads the pieces of `todo` that stay in their places meanwhile.
    fn attempt(
        &self,
        pieces: &[Piece],
        todo: &[usize],
        at: u64,
        outcomes: &mut [Option<Result<Segments, DeviceError>>],
    ) {
        let present = at == NOW;
        // The content of a present read where a revert represents an earlier instant.
        let mut instants = vec![at; pieces.len()];
        let (sources, epoch) = {
            let mut state = self.state.lock();
            if !present && at < state.start {
                todo.iter().for_each(|index| outcomes[*index] = Some(Err(DeviceError::OutOfService)));
                return;
            }
            let sources: Vec<Source> = todo
                .iter()
                .map(|index| {
                    let lba = pieces[*index].lba;
                    if !present {
                        return state.resolve(lba, at);
                    }
                    let (source, instant) = state.resolve_present(lba);
                    instants[*index] = instant;
                    source
                })
                .collect();
            (sources, state.epoch)
        };
        let mut placed = Vec::new();
        let mut original = Vec::new();
        for (index, source) in todo.iter().zip(&sources) {
            let piece = pieces[*index];
            match source {
                Source::Cached(content) => {
                    self.tally.add(&self.tally.read_hits, 1);
                    let whole = content.clone().into_segments(self.length_of(piece.lba));
                    outcomes[*index] = Some(Ok(whole.slice(piece.at, piece.count)));
                }
                Source::Zero => outcomes[*index] = Some(Ok(zeroes(piece.count))),
                Source::Lost => {
                    let length = u64::from(self.block_bytes);
                    outcomes[*index] = Some(Err(DeviceError::Corrupt { offset: piece.lba * length, length }));
                }
                Source::Place(version) => placed.push((*index, *version)),
                Source::Origin => original.push(*index),
            }
        }
        let mut read: Vec<(usize, Source, Result<Segments, DeviceError>)> = Vec::new();
        let wanted: Vec<(Version, usize)> =
            placed.iter().map(|(_, version)| (*version, self.length_of(version.lba))).collect();
        if !wanted.is_empty() {
            for ((index, version), data) in placed.into_iter().zip(self.read_versions(&wanted)) {
                read.push((index, Source::Place(version), data));
            }
        }
        for (index, data) in self.read_origin(pieces, &original) {
            read.push((index, Source::Origin, data));
        }
        self.tally.add(&self.tally.read_misses, read.len() as u64);
        let mut state = self.state.lock();
        for (index, source, data) in read {
            let (piece, instant) = (pieces[index], instants[index]);
            let whole = matches!(source, Source::Place(_)) || piece.count == self.length_of(piece.lba);
            // The window may have moved, or the log may have been cleaned, while the devices were
            // read. A present read may be older than a concurrent write, as on any disk; bytes that
            // fail their checksum may only have moved. If a revert restored the present, the copy
            // of an earlier revert may have written the origin: that was the present before, and is
            // not now.
            let moved = if instant == NOW {
                data.is_err() && !state.resolve(piece.lba, NOW).same(&source)
            } else {
                instant < state.start || !state.resolve(piece.lba, instant).same(&source)
            };
            if moved {
                continue;
            }
            if let (true, true, Ok(data)) = (present && state.epoch == epoch, whole, &data) {
                state.reads.put(piece.lba, Content::Data(data.clone()));
            }
            let block_bytes = u64::from(self.block_bytes);
            outcomes[index] = Some(match data {
                Ok(data) if data.len() != piece.count => Ok(data.slice(piece.at, piece.count)),
                Ok(data) => Ok(data),
                Err(DeviceError::Corrupt { offset, .. }) => {
                    self.tally.add(&self.tally.damaged, 1);
                    tracing::error!(
                        block = piece.lba,
                        store_offset = offset,
                        "a version in the history is damaged and is not served"
                    );
                    Err(DeviceError::Corrupt { offset: piece.lba * block_bytes, length: block_bytes })
                }
                Err(error) => Err(error),
            });
        }
    }

    /// Reads pieces of the origin, neighbours together.
    fn read_origin(&self, pieces: &[Piece], which: &[usize]) -> Vec<(usize, Result<Segments, DeviceError>)> {
        const JOINED_MAX: u64 = 1 << 20;
        if which.is_empty() {
            return Vec::new();
        }
        let block = u64::from(self.block_bytes);
        let alignment = u64::from(self.origin.geometry().alignment);
        let mut runs: Vec<(u64, u64, Vec<usize>)> = Vec::new();
        for index in which {
            let piece = pieces[*index];
            let start = (piece.lba * block + piece.at as u64) / alignment * alignment;
            let end = (piece.lba * block + (piece.at + piece.count) as u64).next_multiple_of(alignment);
            match runs.last_mut() {
                Some((from, to, indexes)) if *to == start && end - *from <= JOINED_MAX => {
                    *to = end;
                    indexes.push(*index);
                }
                _ => runs.push((start, end, vec![*index])),
            }
        }
        let mut batch: Vec<Operation> =
            runs.iter().map(|(start, end, _)| Operation::read(*start, (end - start) as u32)).collect();
        self.origin.run(&mut batch);
        let mut read = Vec::with_capacity(which.len());
        for (operation, (start, _, indexes)) in batch.into_iter().zip(runs) {
            let data = operation.into_data();
            for index in indexes {
                let piece = pieces[index];
                let skip = (piece.lba * block + piece.at as u64 - start) as usize;
                read.push((index, data.clone().map(|data| data.slice(skip, piece.count))));
            }
        }
        read
    }

    /// Whole blocks of the origin, for the history: counted.
    pub(crate) fn stage_origin(&self, lbas: &[u64]) -> Vec<Result<Content, DeviceError>> {
        let pieces: Vec<Piece> =
            lbas.iter().map(|lba| Piece { lba: *lba, at: 0, count: self.length_of(*lba) }).collect();
        let which: Vec<usize> = (0..pieces.len()).collect();
        for piece in &pieces {
            let offset = piece.lba * u64::from(self.block_bytes);
            self.tally.io(Io::CurrentRead, 1, offset, piece.count as u64);
        }
        let mut read = self.read_origin(&pieces, &which);
        read.sort_by_key(|(index, _)| *index);
        read.into_iter().map(|(_, data)| data.map(Content::of)).collect()
    }

    /// Whole blocks at an instant, past the write cache.
    pub(crate) fn contents_at(&self, lbas: &[u64], at: u64) -> Vec<Result<Content, DeviceError>> {
        let pieces: Vec<Piece> =
            lbas.iter().map(|lba| Piece { lba: *lba, at: 0, count: self.length_of(*lba) }).collect();
        self.read_pieces(&pieces, at).into_iter().map(|data| data.map(Content::of)).collect()
    }
}
