//! Records: 1 KiB each, counted; and volumes, which are rows of them that each begin with a label.
//!
//! All records of a dump are counted, labels of volumes as well. A volume ends where it is full,
//! also in the middle of a file: the remaining pieces after a header follow the label of the next
//! one. Linux `dump` does the same.

use std::io::{Read, Write};

use crate::error::ReadError;
use crate::header::{Common, Header, What};

/// Bytes of a record (`TP_BSIZE`).
pub const RECORD: usize = 1024;
/// Records that are written at once (`NTREC`); the length of a dump and of each volume is a
/// multiple.
pub const RECORDS_PER_BLOCK: u64 = 10;
/// Fewest records of a volume: Linux `restore` reads 32 at once, and takes the missing ones of a
/// shorter file for records.
pub const VOLUME_RECORDS_MIN: u64 = 4 * RECORDS_PER_BLOCK;
/// Pieces that one header can describe (`TP_NINDIR`).
pub(crate) const PIECES_MAX: usize = 512;

/// Returns the volume with that number, from 2 on; `None` when there is none.
pub type NextVolume<R> = Box<dyn FnMut(u32) -> std::io::Result<Option<R>>>;

/// The writing end: counts records, so that each header can contain its number, and begins volumes.
pub(crate) struct Output<'a> {
    to: &'a mut dyn Write,
    common: Common,
    pub(crate) records: u64,
    /// Of a volume; `None` when all goes into one.
    volume_records: Option<u64>,
    /// The file being written, and how many of the pieces after its last header are still to come.
    number: u32,
    rest: u32,
    buffer: Vec<u8>,
}

/// Bytes that go out at once: a header with all of its pieces.
const BUFFER: usize = 512 * RECORD;

impl<'a> Output<'a> {
    /// `volume_records` is a multiple of [`RECORDS_PER_BLOCK`].
    pub(crate) fn new(to: &'a mut dyn Write, common: Common, volume_records: Option<u64>) -> Self {
        let buffer = Vec::with_capacity(BUFFER + RECORD);
        Self { to, common, records: 0, volume_records, number: 0, rest: 0, buffer }
    }

    /// Writes a header, numbered. `rest` records belong to it, which come next.
    pub(crate) fn put_header(&mut self, mut header: Header, rest: u32) -> std::io::Result<()> {
        (self.number, self.rest) = (header.number, 0);
        self.begin_volume()?;
        header.record = self.records as u32;
        self.place(&mut header);
        self.put_record(&header.to_bytes())?;
        self.rest = rest;
        Ok(())
    }

    /// Writes whole records that belong to the last header.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        debug_assert!(bytes.len().is_multiple_of(RECORD));
        if self.volume_records.is_none() {
            self.records += (bytes.len() / RECORD) as u64;
            return self.put_bytes(bytes);
        }
        for record in bytes.as_chunks::<RECORD>().0 {
            self.begin_volume()?;
            self.put_record(record)?;
            self.rest = self.rest.saturating_sub(1);
        }
        Ok(())
    }

    /// Begins the next volume when one is full, and more follows.
    fn begin_volume(&mut self) -> std::io::Result<()> {
        let is_full = self.volume_records.is_some_and(|most| self.records.is_multiple_of(most));
        if self.records == 0 || !is_full {
            return Ok(());
        }
        let mut label = Header::new(What::Label, &self.common, self.number);
        label.record = self.records as u32;
        label.rest = self.rest;
        self.place(&mut label);
        self.put_record(&label.to_bytes())
    }

    /// Records in a header its volume, and the first record of that.
    fn place(&self, header: &mut Header) {
        if let Some(most) = self.volume_records {
            header.volume = (self.records / most) as i32 + 1;
            header.first_record = (self.records / most * most) as u32;
        }
    }

    fn put_record(&mut self, record: &[u8; RECORD]) -> std::io::Result<()> {
        self.records += 1;
        self.put_bytes(record)
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
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
    next: Option<NextVolume<R>>,
    /// The identity of the dump, which its volumes contain. Unknown before the first label is read.
    dump: Option<(u32, u32)>,
    /// The volume that is read, from 1.
    pub(crate) volume: u32,
    /// Records taken so far, and those that are known to be lost.
    pub(crate) records: u64,
    /// Records that were read.
    pub(crate) read: u64,
    /// The headers at the beginning have their own numbers, and so have all.
    pub(crate) counted: bool,
    /// A record that was taken and is to be taken again.
    again: Option<[u8; RECORD]>,
    /// The present record does not continue the previous one: records are lost at the end of a
    /// volume, or its successor does not identify itself.
    torn: bool,
    /// Such records: the first, and how many.
    pub(crate) lost: Vec<(u64, u64)>,
}

impl<R: Read> Input<R> {
    pub(crate) fn new(from: R, next: Option<NextVolume<R>>) -> Self {
        let lost = Vec::new();
        Self {
            from,
            next,
            dump: None,
            volume: 1,
            records: 0,
            read: 0,
            counted: true,
            again: None,
            torn: false,
            lost,
        }
    }

    /// From here on volumes must be of this dump.
    pub(crate) fn belongs_to(&mut self, common: &Common) {
        self.dump = Some((common.date, common.base_date));
    }

    /// The next record, of this volume or the next one, whether it continues the previous one or
    /// not; `None` at the end of the last.
    pub(crate) fn take_any(&mut self) -> Result<Option<[u8; RECORD]>, ReadError> {
        let taken = self.take()?;
        self.torn = false;
        Ok(taken)
    }

    fn take(&mut self) -> Result<Option<[u8; RECORD]>, ReadError> {
        if let Some(record) = self.again.take() {
            self.records += 1;
            return Ok(Some(record));
        }
        loop {
            if let Some(record) = self.read_record()? {
                self.records += 1;
                return Ok(Some(record));
            }
            if !self.begin_volume()? {
                return Ok(None);
            }
        }
    }

    /// The next record if it continues the previous one; `None` also after a loss. Then continue
    /// with [`Input::take_any`].
    pub(crate) fn take_next(&mut self) -> Result<Option<[u8; RECORD]>, ReadError> {
        let taken = self.take()?;
        if !self.torn {
            return Ok(taken);
        }
        if taken.is_some() {
            self.records -= 1;
            self.again = taken;
        }
        Ok(None)
    }

    /// The next volume: its label is read here.
    fn begin_volume(&mut self) -> Result<bool, ReadError> {
        let (Some(next), Some(dump)) = (&mut self.next, self.dump) else { return Ok(false) };
        let wanted = self.volume + 1;
        let Some(from) = next(wanted)? else {
            self.next = None;
            return Ok(false);
        };
        self.from = from;
        let label = self.read_record()?.ok_or(ReadError::NoVolume { wanted })?;
        let label = Header::parse(&label).filter(|label| label.what == What::Label);
        if let Some(label) = &label {
            let is_of_it = (label.common.date, label.common.base_date) == dump;
            if !is_of_it || u32::try_from(label.volume) != Ok(wanted) {
                return Err(ReadError::OtherVolume { wanted, found: label.volume, is_of_it });
            }
        }
        self.volume = wanted;
        match label {
            Some(label) if !self.counted || label.record == self.records as u32 => {}
            // The volume before ended too early.
            Some(label) => {
                let begins = u64::from(label.record);
                self.lost.push((begins.min(self.records), begins.abs_diff(self.records)));
                self.records = begins;
                self.torn = true;
            }
            None => {
                self.lost.push((self.records, 1));
                self.torn = true;
            }
        }
        self.records += 1;
        Ok(true)
    }

    /// The next record of this volume. A piece of a record at the end counts as the end.
    fn read_record(&mut self) -> std::io::Result<Option<[u8; RECORD]>> {
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
        self.read += 1;
        Ok(Some(record))
    }
}
