//! Several connections as one two-way byte stream, for high-latency links: a connection carries no
//! more than its window in each round trip.
//!
//! Data goes out in chunks, a length (4 bytes, little-endian) and that many bytes, to one
//! connection after the other. The reader takes them in the same order, so no sorting and no
//! threads are needed: the other connections' windows fill and empty while one is waited for. A
//! bundle is as fast as its slowest connection times their number, and it ends when any of them
//! does.
//!
//! Both sides must number the connections alike; the caller ensures that. With one connection it
//! only adds the lengths.

use std::io::{self, Read, Write};

/// Most bytes in a chunk.
const CHUNK: usize = 128 << 10;
const LENGTH: usize = 4;

/// Connections that are used in turn.
pub struct Bundle<S> {
    lanes: Vec<S>,
    /// Data that is not sent yet: room for the length, and less than a chunk.
    out: Vec<u8>,
    /// The connection of the next chunk out.
    next_out: usize,
    /// The connection of the chunk that is read.
    at_in: usize,
    /// Bytes of that chunk that are not read yet.
    left_in: usize,
}

impl<S> Bundle<S> {
    /// Connections in the order that the other side has them in.
    ///
    /// # Panics
    /// Without a connection.
    pub fn new(lanes: Vec<S>) -> Self {
        assert!(!lanes.is_empty(), "a bundle has a connection");
        Self { lanes, out: vec![0; LENGTH], next_out: 0, at_in: 0, left_in: 0 }
    }

    /// The connections.
    pub fn lanes(&self) -> &[S] {
        &self.lanes
    }

    /// The connections, for their options: reading or writing bytes outside of the bundle breaks
    /// it.
    pub fn lanes_mut(&mut self) -> &mut [S] {
        &mut self.lanes
    }
}

impl<S: Write> Bundle<S> {
    /// Sends the bytes in `out`.
    fn send(&mut self) -> io::Result<()> {
        let length = (self.out.len() - LENGTH) as u32;
        self.out[..LENGTH].copy_from_slice(&length.to_le_bytes());
        self.lanes[self.next_out].write_all(&self.out)?;
        self.next_out = (self.next_out + 1) % self.lanes.len();
        self.out.truncate(LENGTH);
        Ok(())
    }
}

impl<S: Write> Write for Bundle<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(LENGTH + CHUNK - self.out.len());
        self.out.extend_from_slice(&bytes[..count]);
        if self.out.len() == LENGTH + CHUNK {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.out.len() > LENGTH {
            self.send()?;
        }
        self.lanes.iter_mut().try_for_each(Write::flush)
    }
}

impl<S: Read> Read for Bundle<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let lane = &mut self.lanes[self.at_in];
        if self.left_in == 0 {
            let mut length = [0; LENGTH];
            // Between two chunks the other side may hang up.
            let first = loop {
                match lane.read(&mut length[..1]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    outcome => break outcome?,
                }
            };
            if first == 0 {
                return Ok(0);
            }
            lane.read_exact(&mut length[1..])?;
            let length = u32::from_le_bytes(length) as usize;
            if !(1..=CHUNK).contains(&length) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.left_in = length;
        }
        let most = buffer.len().min(self.left_in);
        let count = lane.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left_in -= count;
        if self.left_in == 0 {
            self.at_in = (self.at_in + 1) % self.lanes.len();
        }
        Ok(count)
    }
}
