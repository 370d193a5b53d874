//! The expected content of the disk: an image file that gets every change of the disk, and a hash
//! of each piece.
//!
//! The hash of an image is BLAKE3 over the BLAKE3 hashes of its pieces in order, so that it is
//! known at any moment without reading the image again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blake3::Hash;
use cairn_api::ErrorKind;
use cairn_base::Rng;
use cairn_device::{Device, FileDevice, FileOptions};
use cairn_frontend_nbd::Client;
use indicatif::ProgressBar;

use crate::exit::Failure;

/// Bytes in a piece.
const PIECE: usize = 1 << 20;
/// Bytes of a change: a cluster of blocks.
const CLUSTER: usize = 64 << 10;
/// Requests in flight.
const DEPTH: usize = 16;
/// Bytes in a request of a copy.
const REQUEST: u32 = 128 << 10;

/// The image.
pub struct Model {
    file: File,
    length: u64,
    data: Vec<(u64, u64)>,
    pieces: Vec<Hash>,
}

impl Model {
    /// Reads the image at `path`; holes are known to be zero.
    pub fn open(path: &Path, length: u64) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(ErrorKind::Failed, error, "run it again");
        let device = FileDevice::open(path, FileOptions { read_only: true, ..FileOptions::default() })
            .map_err(|error| failed(&error))?;
        let mut data = Vec::new();
        let mut at = 0;
        while at < length {
            let extents = device.extents(at, length - at, 4096).map_err(|error| failed(&error))?;
            for extent in extents {
                if !extent.hole {
                    data.push((at, extent.length));
                }
                at += extent.length;
            }
        }
        drop(device);
        let file = File::options().read(true).write(true).open(path)?;
        let empty = blake3::hash(&vec![0; PIECE]);
        let count = length.div_ceil(PIECE as u64) as usize;
        let mut model = Self { file, length, data, pieces: vec![empty; count] };
        for (offset, bytes) in model.data.clone() {
            let first = offset / PIECE as u64;
            for piece in first..(offset + bytes).div_ceil(PIECE as u64) {
                model.hash_piece(piece as usize)?;
            }
        }
        Ok(model)
    }

    /// Bytes outside of holes.
    pub fn data_bytes(&self) -> u64 {
        self.data.iter().map(|(_, length)| length).sum()
    }

    /// The hash of the image as it is now.
    pub fn hash(&self) -> Hash {
        combine(&self.pieces)
    }

    /// Writes all data outside of holes to the disk, and flushes.
    pub fn copy_to(&self, disk: &mut Client, bar: &ProgressBar) -> Result<(), Failure> {
        let mut buffer = vec![0; PIECE];
        for &(offset, length) in &self.data {
            let mut at = offset;
            while at < offset + length {
                let count = (offset + length - at).min(PIECE as u64) as usize;
                self.file.read_exact_at(&mut buffer[..count], at)?;
                disk.write_all(at, &buffer[..count], REQUEST, DEPTH)?;
                at += count as u64;
                bar.inc(count as u64);
            }
        }
        disk.flush()?;
        Ok(())
    }

    /// Overwrites about `bytes` in clusters all over the disk and the model, and flushes; returns
    /// how many.
    pub fn change(&mut self, disk: &mut Client, rng: &mut Rng, bytes: u64) -> Result<u64, Failure> {
        let mut cluster = vec![0; CLUSTER];
        let mut touched = std::collections::BTreeSet::new();
        let mut written = 0;
        while written < bytes {
            let offset = rng.below(self.length / CLUSTER as u64) * CLUSTER as u64;
            rng.fill(&mut cluster);
            disk.write_all(offset, &cluster, CLUSTER as u32, 1)?;
            self.file.write_all_at(&cluster, offset)?;
            touched.insert((offset / PIECE as u64) as usize);
            written += CLUSTER as u64;
        }
        disk.flush()?;
        for piece in touched {
            self.hash_piece(piece)?;
        }
        Ok(written)
    }

    fn hash_piece(&mut self, piece: usize) -> Result<(), Failure> {
        let at = (piece * PIECE) as u64;
        let mut buffer = vec![0; (self.length - at).min(PIECE as u64) as usize];
        self.file.read_exact_at(&mut buffer, at)?;
        self.pieces[piece] = blake3::hash(&buffer);
        Ok(())
    }
}

/// Reads a whole disk and hashes it in the same way.
pub fn hash_of(disk: &mut Client, bar: &ProgressBar) -> Result<Hash, Failure> {
    let length = disk.size();
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < length {
        let mut buffer = vec![0; (length - at).min(PIECE as u64) as usize];
        disk.read_all(at, &mut buffer, REQUEST, DEPTH)?;
        pieces.push(blake3::hash(&buffer));
        at += buffer.len() as u64;
        bar.set_position(at);
    }
    Ok(combine(&pieces))
}

fn combine(pieces: &[Hash]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for piece in pieces {
        hasher.update(piece.as_bytes());
    }
    hasher.finalize()
}
