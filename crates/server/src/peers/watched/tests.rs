//! Peers that trickle, on a clock of the test's own.

use std::io;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{ManualClock, Timestamp};

use super::Watched;

/// Sends and accepts a number of bytes at once, each time after a delay.
struct Slow {
    clock: Arc<ManualClock>,
    bytes: usize,
    after: Duration,
}

impl Slow {
    fn some(&self, most: usize) -> usize {
        self.clock.advance(self.after);
        self.bytes.min(most)
    }
}

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.some(buffer.len()))
    }
}

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.some(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn watched(bytes: usize, after: Duration) -> (Arc<ManualClock>, Watched<Slow>) {
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let slow = Slow { clock: clock.clone(), bytes, after };
    (clock.clone(), Watched::new(slow, clock, Duration::from_secs(120)))
}

#[test]
fn peer_that_trickles_a_byte_a_second_counts_as_stalled() {
    let (clock, mut stream) = watched(1, Duration::from_secs(1));
    let mut buffer = [0; 100];
    let read = (0..1000).find_map(|n| stream.read(&mut buffer).err().map(|error| (n, error.kind())));
    assert_eq!(read, Some((119, io::ErrorKind::TimedOut)));
    let written = (0..1000).find_map(|n| stream.write(&buffer).err().map(|error| (n, error.kind())));
    assert_eq!(written, Some((119, io::ErrorKind::TimedOut)));
    drop(clock);
}

#[test]
fn peer_that_has_to_be_through_in_some_time_is_given_up_then_however_much_it_gives() {
    let (_, mut stream) = watched(100, Duration::from_secs(1));
    let mut buffer = [0; 100];
    stream.set_end(Some(Duration::from_secs(20)));
    let read = (0..1000).find_map(|n| stream.read(&mut buffer).err().map(|error| (n, error.kind())));
    assert_eq!(read, Some((19, io::ErrorKind::TimedOut)));
    assert_eq!(stream.write(&buffer).map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    stream.set_end(None);
    for _ in 0..100 {
        assert!(stream.read(&mut buffer).unwrap() > 0);
        assert!(stream.write(&buffer).unwrap() > 0);
    }
}

#[test]
fn slow_link_a_busy_reader_and_short_answers_are_no_stall() {
    let mut buffer = [0; 4096];
    let (_, mut slow) = watched(300, Duration::from_secs(10));
    for _ in 0..100 {
        assert!(slow.read(&mut buffer).unwrap() > 0);
        assert!(slow.write(&buffer).unwrap() > 0);
    }
    // Time between two calls belongs to this side.
    let (clock, mut busy) = watched(1, Duration::ZERO);
    for _ in 0..100 {
        assert!(busy.read(&mut buffer).unwrap() > 0);
        clock.advance(Duration::from_secs(60));
    }
    // One byte of answer to each question, each a minute later.
    let (clock, mut terse) = watched(1, Duration::from_secs(60));
    for _ in 0..100 {
        assert!(terse.read(&mut buffer).unwrap() > 0);
        terse.inner.after = Duration::ZERO;
        assert!(terse.write(&buffer).unwrap() > 0);
        terse.inner.after = Duration::from_secs(60);
    }
    drop(clock);
}
