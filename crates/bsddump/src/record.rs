//! Records: 1 KiB each, counted.

use std::io::{Read, Write};

/// Bytes of a record (`TP_BSIZE`).
pub const RECORD: usize = 1024;
/// Records that are written at once (`NTREC`), and of which a dump is a multiple.
pub(crate) const RECORDS_PER_BLOCK: u64 = 10;
/// Pieces that one header can describe (`TP_NINDIR`).
pub(crate) const PIECES_MAX: usize = 512;

/// The writing end: counts records, so that each header can say which one it is.
pub(crate) struct Output<'a> {
    to: &'a mut dyn Write,
    pub(crate) records: u64,
    buffer: Vec<u8>,
}

/// Bytes that go out at once: a header with all of its pieces.
const BUFFER: usize = 512 * RECORD;

impl<'a> Output<'a> {
    pub(crate) fn new(to: &'a mut dyn Write) -> Self {
        Self { to, records: 0, buffer: Vec::with_capacity(BUFFER + RECORD) }
    }

    /// Writes whole records.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        debug_assert!(bytes.len().is_multiple_of(RECORD));
        self.records += (bytes.len() / RECORD) as u64;
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER { self.drain() } else { Ok(()) }
    }

    fn drain(&mut self) -> std::io::Result<()> {
        self.to.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> std::io::Result<()> {
        self.drain()?;
        self.to.flush()
    }
}

/// The reading end.
pub(crate) struct Input<R> {
    from: R,
    /// Records taken so far.
    pub(crate) records: u64,
}

impl<R: Read> Input<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, records: 0 }
    }

    /// The next record; `None` at the end of the input. A piece of a record at the end counts as the end.
    pub(crate) fn take(&mut self) -> std::io::Result<Option<[u8; RECORD]>> {
        let mut record = [0; RECORD];
        let mut got = 0;
        while got < RECORD {
            match self.from.read(&mut record[got..]) {
                Ok(0) => return Ok(None),
                Ok(count) => got += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.records += 1;
        Ok(Some(record))
    }
}
