//! A record on its way out, head and payload in one piece of memory.
//!
//! Its memory stands to [`ALIGNMENT`] as the record stands in its stream: a file that has the stream from its beginning takes it past the page cache from where it was made. What a copy of each
//! byte costs more, out of memory that no cache has any more, was half of the processor of a dump into a file.

use std::io::{self, Write};
use std::sync::Arc;

use cairn_base::Mutex;
use cairn_format::stream::RecordHeader;

/// What places, lengths and memory of direct requests are multiples of.
pub const ALIGNMENT: usize = 4096;

/// Memory of records that have gone out: as much of it is costly to get anew each time.
#[derive(Default)]
pub(crate) struct Spare(Mutex<Vec<Vec<u8>>>);

/// A record as it goes out.
pub struct Outgoing {
    memory: Vec<u8>,
    /// Where the record begins in that.
    begin: usize,
    /// Where its memory goes when it is gone.
    spare: Arc<Spare>,
}

impl Outgoing {
    /// A record at `position` of its stream, with room for its head and no payload yet, of which up to `payload_max` bytes will come.
    pub(crate) fn new(spare: &Arc<Spare>, position: u64, payload_max: usize) -> Self {
        let mut memory = spare.0.lock().pop().unwrap_or_default();
        memory.clear();
        memory.reserve(2 * ALIGNMENT + RecordHeader::SIZE + payload_max);
        let first_block = memory.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        let begin = first_block + (position % ALIGNMENT as u64) as usize;
        memory.resize(begin + RecordHeader::SIZE, 0);
        Self { memory, begin, spare: Arc::clone(spare) }
    }

    /// A record that is there already, with its head, for `position` of its stream.
    pub fn copy_of(bytes: &[u8], position: u64) -> Self {
        let mut record = Self::new(&Arc::default(), position, bytes.len());
        record.memory.truncate(record.begin);
        record.push(bytes);
        record
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.memory.extend_from_slice(bytes);
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.memory[self.begin + RecordHeader::SIZE..]
    }

    /// Has `bytes` in place of what the payload has from `at` on.
    pub(crate) fn replace_from(&mut self, at: usize, bytes: &[u8]) {
        self.memory.truncate(self.begin + RecordHeader::SIZE + at);
        self.push(bytes);
    }

    pub(crate) fn set_head(&mut self, head: &[u8; RecordHeader::SIZE]) {
        self.memory[self.begin..self.begin + RecordHeader::SIZE].copy_from_slice(head);
    }

    /// The record.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..]
    }

    /// Bytes between the last multiple of [`ALIGNMENT`] in memory and the record: as many as there are in its stream.
    pub fn place(&self) -> usize {
        (self.memory.as_ptr().addr() + self.begin) % ALIGNMENT
    }

    /// Those [`Outgoing::place`] bytes, for what stands there in the stream.
    pub fn before(&mut self) -> &mut [u8] {
        let place = self.place();
        &mut self.memory[self.begin - place..self.begin]
    }

    /// Those bytes and the record.
    pub fn from_alignment(&self) -> &[u8] {
        &self.memory[self.begin - self.place()..]
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.spare.0.lock().push(std::mem::take(&mut self.memory));
    }
}

/// What a stream is written to.
pub trait Out: Write {
    /// Writes a record, and may keep its memory until that is done.
    ///
    /// # Errors
    /// As [`Write::write_all`].
    fn record(&mut self, record: Outgoing) -> io::Result<()> {
        self.write_all(record.bytes())
    }
}

impl Out for Vec<u8> {}

/// A writer that wants nothing but bytes.
pub(crate) struct Plain<'a>(pub(crate) &'a mut dyn Write);

impl Out for Plain<'_> {}

impl Write for Plain<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_stands_in_memory_as_in_its_stream_whatever_had_the_memory_before() {
        let spare = Arc::default();
        for position in [0, 1, 4095, 4096, 5000, (1 << 40) + 77] {
            for payload in [0, 1, 4096, 100_000, 1 << 20] {
                let mut record = Outgoing::new(&spare, position, payload);
                record.push(&vec![7; payload]);
                record.set_head(&[3; RecordHeader::SIZE]);
                let place = record.place();
                assert_eq!(place as u64, position % ALIGNMENT as u64);
                record.before().fill(9);
                let all = record.from_alignment();
                assert_eq!(all.as_ptr().addr() % ALIGNMENT, 0);
                assert_eq!(all.len(), place + RecordHeader::SIZE + payload);
                assert!(all[..place].iter().all(|byte| *byte == 9) && all[place..] == *record.bytes());
                assert!(record.bytes()[..RecordHeader::SIZE].iter().all(|byte| *byte == 3));
                assert!(record.payload().len() == payload && record.payload().iter().all(|byte| *byte == 7));
                record.replace_from(payload / 2, b"end");
                assert_eq!(record.payload().len(), payload / 2 + 3);
                assert!(record.payload().ends_with(b"end"));
            }
        }
        assert_eq!(spare.0.lock().len(), 1, "one memory was enough");
    }
}
