//! Brings a LUN to the content of a file, by writing the file's changes since the last look, as a
//! file system on the LUN would.
//!
//! A copy of the whole file would write every block, and with a volume that never overwrites each
//! of them has changed then.

use std::fs::File;
use std::hash::Hasher;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::wires::open_export;

const BLOCK: usize = 4096;
/// Blocks of one write at most.
const AT_ONCE: usize = 256;

/// The earlier content of a file.
pub(crate) struct Known {
    sums: Vec<u64>,
}

impl Known {
    /// The present content of a file.
    pub(crate) fn of(file: &Path) -> Result<Self> {
        let mut sums = Vec::new();
        each_block(file, |_, block| {
            sums.push(sum(block));
            Ok(())
        })?;
        Ok(Self { sums })
    }

    /// Writes the changed blocks to an export on a socket, flushes it, and returns how many bytes
    /// they were.
    pub(crate) fn write_changes(&mut self, file: &Path, socket: &Path, export: &str) -> Result<u64> {
        let mut client = Client::connect(socket, export)?;
        let (mut run, mut from, mut written) = (Vec::new(), 0, 0);
        let sums = &mut self.sums;
        each_block(file, |number, block| {
            let now = sum(block);
            let follows = number == from + run.len() / BLOCK && run.len() < AT_ONCE * BLOCK;
            if sums.get(number).is_some_and(|known| *known == now) {
                return Ok(());
            }
            if !follows && !run.is_empty() {
                client.request(1, (from * BLOCK) as u64, &run)?;
                run.clear();
            }
            if run.is_empty() {
                from = number;
            }
            run.extend_from_slice(block);
            written += BLOCK as u64;
            sums[number] = now;
            Ok(())
        })?;
        if !run.is_empty() {
            client.request(1, (from * BLOCK) as u64, &run)?;
        }
        client.request(3, 0, &[])?;
        Ok(written)
    }
}

fn sum(block: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(block);
    hasher.finish()
}

/// Hands on the whole blocks of a file with their numbers.
fn each_block(file: &Path, mut act: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
    let mut file = File::open(file)?;
    let blocks = file.metadata()?.len() as usize / BLOCK;
    let mut piece = vec![0; AT_ONCE * BLOCK];
    for first in (0..blocks).step_by(AT_ONCE) {
        let count = AT_ONCE.min(blocks - first);
        file.read_exact(&mut piece[..count * BLOCK])?;
        for (at, block) in piece[..count * BLOCK].chunks_exact(BLOCK).enumerate() {
            act(first + at, block)?;
        }
    }
    Ok(())
}

/// A client of NBD that waits for each of its requests: its time is in no figure.
struct Client(UnixStream);

impl Client {
    fn connect(socket: &Path, export: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        open_export(&mut stream, export)?;
        Ok(Self(stream))
    }

    /// Write is 1, flush 3.
    fn request(&mut self, command: u16, offset: u64, data: &[u8]) -> Result<()> {
        let mut header = 0x2560_9513u32.to_be_bytes().to_vec();
        header.extend_from_slice(&[0, 0]);
        header.extend_from_slice(&command.to_be_bytes());
        header.extend_from_slice(&[0; 8]);
        header.extend_from_slice(&offset.to_be_bytes());
        header.extend_from_slice(&(data.len() as u32).to_be_bytes());
        self.0.write_all(&header)?;
        self.0.write_all(data)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        ensure!(reply.starts_with(&0x6744_6698u32.to_be_bytes()), "no reply of NBD");
        ensure!(reply[4..8] == [0; 4], "an error of NBD: {:?}", &reply[4..8]);
        Ok(())
    }
}
