//! Bundles of connections.

use std::collections::VecDeque;
use std::io::{self, Cursor, Read, Write};

use cairn_base::Rng;

use crate::Bundle;

/// A pipe that takes and gives a few bytes at a time.
struct Narrow {
    bytes: VecDeque<u8>,
    rng: Rng,
}

impl Read for Narrow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = 1 + self.rng.below(70_000) as usize;
        let most = most.min(buffer.len());
        self.bytes.read(&mut buffer[..most])
    }
}

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = (1 + self.rng.below(70_000) as usize).min(bytes.len());
        self.bytes.write(&bytes[..most])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lanes(count: usize, rng: &mut Rng) -> Vec<Narrow> {
    (0..count).map(|_| Narrow { bytes: VecDeque::new(), rng: rng.fork() }).collect()
}

#[test]
fn a_bundle_gives_what_was_written_in_order_whatever_the_pieces() {
    let mut rng = Rng::new(5);
    for count in [1, 2, 3, 8] {
        let mut bundle = Bundle::new(lanes(count, &mut rng));
        let mut written = Vec::new();
        let mut read = Vec::new();
        for _ in 0..60 {
            let most = [10, 5_000, 400_000][rng.below(3) as usize];
            let piece: Vec<u8> = (0..rng.below(most)).map(|_| rng.below(256) as u8).collect();
            bundle.write_all(&piece).expect("it takes it");
            written.extend_from_slice(&piece);
            if rng.below(2) == 0 {
                bundle.flush().expect("it flushes");
                let mut got = vec![0; written.len() - read.len()];
                bundle.read_exact(&mut got).expect("all of it is there");
                read.extend_from_slice(&got);
            }
        }
        bundle.flush().expect("it flushes");
        bundle.read_to_end(&mut read).expect("the end");
        assert!(read == written, "{count} connections");
        let used = bundle.lanes().iter().all(|lane| lane.bytes.is_empty());
        assert!(used, "nothing is left over");
    }
}

#[test]
fn a_bundle_spreads_what_it_carries_evenly() {
    let mut bundle = Bundle::new(vec![Vec::new(), Vec::new(), Vec::new(), Vec::new()]);
    bundle.write_all(&vec![7; 8 << 20]).expect("it takes it");
    bundle.flush().expect("it flushes");
    assert!(bundle.lanes().iter().all(|lane: &Vec<u8>| (2 << 20..(2 << 20) + 100).contains(&lane.len())));
}

#[test]
fn bytes_that_are_no_chunks_are_refused_and_a_cut_chunk_is_told_from_an_end() {
    let read = |bytes: &[u8]| {
        let mut out = Vec::new();
        Bundle::new(vec![Cursor::new(bytes.to_vec())]).read_to_end(&mut out).map(|_| out)
    };
    assert_eq!(read(&[]).expect("an end"), []);
    assert_eq!(read(&[2, 0, 0, 0, 8, 9]).expect("a chunk and an end"), [8, 9]);
    for (bytes, kind) in [
        (&[0, 0, 0, 0][..], io::ErrorKind::InvalidData),
        (&[1, 0, 2, 0, 0], io::ErrorKind::InvalidData),
        (&[255; 8], io::ErrorKind::InvalidData),
        (&[3, 0], io::ErrorKind::UnexpectedEof),
        (&[3, 0, 0, 0, 1], io::ErrorKind::UnexpectedEof),
    ] {
        assert_eq!(read(bytes).expect_err("it is none").kind(), kind, "{bytes:?}");
    }
}
