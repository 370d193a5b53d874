//! An outgoing record: its head and table in a piece of memory, and its blocks, copied after them
//! or as they were read.
//!
//! Its memory is aligned to [`ALIGNMENT`] as the record is in its stream, and uncopied blocks come
//! at a multiple of it. So a file that contains the stream from its beginning can take it past the
//! page cache, directly from where it was made. Copying each byte, out of memory that no cache
//! holds any more, used half of the processor time of a dump into a file.

use std::io::{self, IoSlice, Write};
use std::sync::Arc;

use cairn_base::{BLOCK_SIZE, Mutex};
use cairn_device::{Block, pieces};
use cairn_format::stream::RecordHeader;

/// The alignment of places, lengths and memory of direct requests.
pub const ALIGNMENT: usize = 4096;

const _: () = assert!(ALIGNMENT == BLOCK_SIZE);

/// Memory of sent records: allocating that much anew each time is costly.
#[derive(Default)]
pub(crate) struct Spare(Mutex<Vec<Vec<u8>>>);

/// A record ready to be sent.
pub struct Outgoing {
    memory: Vec<u8>,
    /// Where the record begins in that.
    begin: usize,
    /// The blocks that follow the memory.
    blocks: Vec<Block>,
    /// Where its memory goes when it is dropped.
    spare: Arc<Spare>,
}

impl Outgoing {
    /// A record at `position` of its stream, with room for its head and no payload yet, of which up
    /// to `payload_max` bytes will be copied.
    pub(crate) fn new(spare: &Arc<Spare>, position: u64, payload_max: usize) -> Self {
        let mut memory = spare.0.lock().pop().unwrap_or_default();
        memory.clear();
        memory.reserve(2 * ALIGNMENT + RecordHeader::SIZE + payload_max);
        let first_block = memory.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        let begin = first_block + (position % ALIGNMENT as u64) as usize;
        memory.resize(begin + RecordHeader::SIZE, 0);
        Self { memory, begin, blocks: Vec::new(), spare: Arc::clone(spare) }
    }

    /// A record that already has its head, for `position` of its stream.
    pub fn copy_of(bytes: &[u8], position: u64) -> Self {
        let mut record = Self::new(&Arc::default(), position, bytes.len());
        record.memory.truncate(record.begin);
        record.push(bytes);
        record
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.memory.extend_from_slice(bytes);
    }

    /// Ends the payload with `blocks`, at the next multiple of [`ALIGNMENT`] of the stream, without
    /// copying them.
    pub fn end_with(&mut self, blocks: Vec<Block>) {
        let end = self.memory.as_ptr().addr() + self.memory.len();
        self.memory.resize(self.memory.len() + end.wrapping_neg() % ALIGNMENT, 0);
        self.blocks = blocks;
    }

    /// The parts after the head.
    pub(crate) fn payload(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces_from(self.begin + RecordHeader::SIZE)
    }

    pub(crate) fn set_head(&mut self, head: &[u8; RecordHeader::SIZE]) {
        self.memory[self.begin..self.begin + RecordHeader::SIZE].copy_from_slice(head);
    }

    /// Bytes of the record.
    pub fn length(&self) -> usize {
        self.memory.len() - self.begin + self.blocks.len() * BLOCK_SIZE
    }

    /// The record, in as few pieces of memory as possible.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces_from(self.begin)
    }

    /// Bytes between the last multiple of [`ALIGNMENT`] in memory and the record: as many as there
    /// are in its stream.
    pub fn place(&self) -> usize {
        (self.memory.as_ptr().addr() + self.begin) % ALIGNMENT
    }

    /// Those [`Outgoing::place`] bytes, for the preceding bytes of the stream.
    pub fn before(&mut self) -> &mut [u8] {
        let place = self.place();
        &mut self.memory[self.begin - place..self.begin]
    }

    /// Those bytes and the record. The first piece begins, and each but the last ends, at a
    /// multiple of [`ALIGNMENT`].
    pub fn pieces_from_alignment(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces_from(self.begin - self.place())
    }

    fn pieces_from(&self, at: usize) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.memory[at..]).chain(pieces(&self.blocks))
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.spare.0.lock().push(std::mem::take(&mut self.memory));
    }
}

/// The target of a stream.
pub trait Out: Write {
    /// Writes a record, and may keep its memory until that is done.
    ///
    /// # Errors
    /// As [`Write::write_all`].
    fn record(&mut self, record: Outgoing) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = record.pieces().map(IoSlice::new).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match self.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Out for Vec<u8> {}

/// A writer that only takes bytes.
pub(crate) struct Plain<'a>(pub(crate) &'a mut dyn Write);

impl Out for Plain<'_> {}

impl Write for Plain<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u8, blocks: usize) -> Vec<Block> {
        (0..blocks).map(|number| Block::copy_of(&[seed.wrapping_add(number as u8); BLOCK_SIZE])).collect()
    }

    #[test]
    fn record_stands_in_memory_as_in_its_stream_whatever_had_the_memory_before() {
        let spare = Arc::default();
        for position in [0, 1, 4095, 4096, 5000, (1 << 40) + 77] {
            for (payload, blocks) in
                [(0, 0), (1, 0), (100_000, 0), (1 << 20, 0), (12, 1), (3000, 256), (4048, 3)]
            {
                let mut record = Outgoing::new(&spare, position, payload + ALIGNMENT);
                record.push(&vec![7; payload]);
                let content = noise(11, blocks);
                if blocks > 0 {
                    record.end_with(content.clone());
                }
                record.set_head(&[3; RecordHeader::SIZE]);
                let place = record.place();
                assert_eq!(place as u64, position % ALIGNMENT as u64);
                record.before().fill(9);
                let pieces: Vec<&[u8]> = record.pieces_from_alignment().collect();
                assert_eq!(pieces[0].as_ptr().addr() % ALIGNMENT, 0);
                for pair in pieces.windows(2) {
                    assert_eq!((pair[0].len() % ALIGNMENT, pair[1].as_ptr().addr() % ALIGNMENT), (0, 0));
                }
                let (all, bytes) = (pieces.concat(), record.pieces().collect::<Vec<_>>().concat());
                assert_eq!(bytes.len(), record.length());
                assert!(all[..place].iter().all(|byte| *byte == 9) && all[place..] == bytes);
                assert!(bytes[..RecordHeader::SIZE].iter().all(|byte| *byte == 3));
                let found = record.payload().collect::<Vec<_>>().concat();
                assert!(
                    found == bytes[RecordHeader::SIZE..] && found[..payload].iter().all(|byte| *byte == 7)
                );
                let stored: Vec<u8> = content.iter().flat_map(|block| block.iter().copied()).collect();
                let before = found.len() - stored.len();
                assert!(found[before..] == stored && found[payload..before].iter().all(|byte| *byte == 0));
                assert!(before - payload < ALIGNMENT);
                let mut out = Vec::new();
                out.record(record).expect("memory takes it");
                assert!(out == bytes);
            }
        }
        assert_eq!(spare.0.lock().len(), 1, "one memory was enough");
    }

    /// Takes a limited number of bytes at a time.
    struct Narrow(Vec<u8>, usize);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.1);
            self.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn writer_that_takes_little_at_a_time_gets_the_whole_record() {
        for most in [1, 4095, 5000, 1 << 20] {
            let mut record = Outgoing::new(&Arc::default(), 77, ALIGNMENT);
            record.end_with(noise(1, 9));
            let expected = record.pieces().collect::<Vec<_>>().concat();
            let mut out = Narrow(Vec::new(), most);
            Plain(&mut out).record(record).expect("it takes all");
            assert!(out.0 == expected, "{most} bytes at a time");
        }
    }
}
