//! A tree of files of mixed sizes, as on a file server, made in a volume by the engine itself: the
//! start of a table, and not part of its figures.
//!
//! Four directories at the top with a quarter of the files each, so that four programs can dump a
//! quarter each.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cairn_base::Rng;
use cairn_files::{New, Tree};

use crate::cairn::{Cairn, VOLUME};
use crate::volume_rows::Bench;

/// Directories at the top.
pub(crate) const QUARTERS: usize = 4;
/// Files in a directory below.
const PER_DIRECTORY: usize = 200;
/// Sizes, one after the other: 4 to 256 KiB, 63 on average.
const SIZES: [usize; 6] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10];
/// The source of files' content: no file system takes it for holes, and it can't be packed.
const NOISE_BYTES: usize = 1 << 20;

/// Bytes of the file with a number.
pub(crate) fn size(number: usize) -> usize {
    SIZES[number / QUARTERS % SIZES.len()]
}

/// Where the file with a number is, from the root.
pub(crate) fn path(number: usize) -> PathBuf {
    let (quarter, directory) = place(number);
    Path::new(&quarter).join(directory).join(format!("f{number}"))
}

fn place(number: usize) -> (String, String) {
    (format!("q{}", number % QUARTERS), format!("d{}", number / QUARTERS / PER_DIRECTORY))
}

/// Data that can't be packed, and never repeats.
pub(crate) struct Noise {
    bytes: Vec<u8>,
    rng: Rng,
}

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut bytes = vec![0; NOISE_BYTES];
        rng.fill(&mut bytes);
        Self { bytes, rng }
    }

    /// That many bytes of it, at most 256 KiB.
    pub(crate) fn take(&mut self, count: usize) -> &[u8] {
        let from = self.rng.below((NOISE_BYTES - count) as u64) as usize;
        &self.bytes[from..from + count]
    }
}

/// Makes the files `0..files` in the volume of a server, which ends for that and is started again.
/// Gives their bytes.
pub(crate) fn plant(cairn: &mut Cairn, files: usize) -> Result<u64> {
    cairn.end()?;
    let bench = Bench::reopen(&cairn.folder().join("volumes").join(VOLUME).join("volume.img"))?;
    let tree = Tree::open(bench.volume().clone())?;
    let new = New { mode: 0o644, ..New::default() };
    let directory = New { mode: 0o755, ..new };
    let mut noise = Noise::new(5);
    let mut bytes = 0;
    for quarter in 0..QUARTERS {
        let top = tree.make_directory(tree.root(), place(quarter).0.as_bytes(), &directory)?.file;
        let mut folder = None;
        for (at, number) in (quarter..files).step_by(QUARTERS).enumerate() {
            if at.is_multiple_of(PER_DIRECTORY) {
                folder = Some(tree.make_directory(top, place(number).1.as_bytes(), &directory)?.file);
            }
            let folder = folder.context("a directory")?;
            let file = tree.make(folder, format!("f{number}").as_bytes(), &new)?.file;
            tree.write(file, 0, noise.take(size(number)))?;
            bytes += size(number) as u64;
        }
    }
    tree.sync_all()?;
    drop(tree);
    bench.volume().close()?;
    drop(bench);
    cairn.serve()?;
    Ok(bytes)
}
