//! Decides by measurements whether compressing pays on a link: the wire's time for a byte, the time
//! of packing for one, and the ratio.
//!
//! Reading, packing and sending overlap, so a transfer takes as long as the slowest of them.
//! Packing helps when the wire is slower than packing and the bytes get fewer. Both change while a
//! transfer runs, so each measurement moves the estimate by a quarter. From time to time a piece is
//! packed to find out whether packing would help by now. A gauge is kept from one transfer to the
//! next, so that a short transfer need not learn.

use std::time::Duration;

use cairn_base::Mutex;
use cairn_format::stream::RECORD_BLOCKS_MAX;

/// One in this many pieces is packed only to measure.
const TRY_EVERY: u32 = 32;
/// Packing must save at least this part of the bytes: one in 16.
const SAVES_ONE_IN: f64 = 16.0;
/// Of each measurement.
const WEIGHT: f64 = 0.25;
/// Breaks after which records get no smaller: they have 4 blocks then.
const BREAKS_MAX: u32 = 3;
/// Smaller amounts are sent too fast to be measured.
const LITTLE: u64 = 64 << 10;

#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    /// Nanoseconds for each byte on the wire; none before the first measurement.
    wire: Option<f64>,
    /// Nanoseconds for each byte that is packed.
    packing: Option<f64>,
    /// Bytes after packing for each byte before it.
    ratio: f64,
    pieces: u32,
    /// Breaks since the last transfers that came through.
    breaks: u32,
}

/// The measurements of one link.
#[derive(Debug, Default)]
pub struct Gauge(Mutex<Measured>);

impl Gauge {
    /// Nothing measured yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// `bytes` bytes went out in the time `took`.
    pub fn sent(&self, bytes: u64, took: Duration) {
        if bytes >= LITTLE {
            let measured = &mut *self.0.lock();
            mix(&mut measured.wire, took.as_nanos() as f64 / bytes as f64);
        }
    }

    /// Packing turned `before` bytes into `after` in the time `took`.
    pub(crate) fn packed(&self, before: u64, after: u64, took: Duration) {
        if before == 0 {
            return;
        }
        let measured = &mut *self.0.lock();
        let ratio = after as f64 / before as f64;
        measured.ratio = match measured.packing {
            None => ratio,
            Some(_) => measured.ratio + (ratio - measured.ratio) * WEIGHT,
        };
        mix(&mut measured.packing, took.as_nanos() as f64 / before as f64);
    }

    /// The link broke in the middle of a transfer. The received part of a record is lost: the next
    /// records are smaller.
    pub fn broke(&self) {
        let measured = &mut *self.0.lock();
        measured.breaks = (measured.breaks + 1).min(BREAKS_MAX);
    }

    /// A transfer came through.
    pub fn came_through(&self) {
        let measured = &mut *self.0.lock();
        measured.breaks = measured.breaks.saturating_sub(1);
    }

    /// Blocks of a record at most: a quarter for each break.
    pub(crate) fn record_blocks(&self) -> usize {
        RECORD_BLOCKS_MAX >> (2 * self.0.lock().breaks)
    }

    /// Whether the next piece is to be packed.
    pub(crate) fn pays(&self) -> bool {
        let measured = &mut *self.0.lock();
        measured.pieces = measured.pieces.wrapping_add(1);
        measured.pieces % TRY_EVERY == 1 || measured.pays()
    }

    /// Whether packing pays, by the measurements so far.
    pub fn would_pay(&self) -> bool {
        self.0.lock().pays()
    }
}

impl Measured {
    fn pays(&self) -> bool {
        let (Some(wire), Some(packing)) = (self.wire, self.packing) else { return false };
        packing < wire && self.ratio < 1.0 - 1.0 / SAVES_ONE_IN
    }
}

fn mix(value: &mut Option<f64>, new: f64) {
    *value = Some(value.map_or(new, |old| old + (new - old) * WEIGHT));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(mib_a_second: u64) -> Duration {
        Duration::from_nanos(1_000_000_000 / mib_a_second)
    }

    #[test]
    fn packing_pays_where_the_wire_is_slower_and_the_bytes_get_fewer() {
        let gauge = Gauge::new();
        assert!(gauge.pays(), "the first piece is packed to measure");
        assert!(!gauge.pays());
        gauge.packed(MIB, MIB / 2, at(400));
        gauge.sent(MIB, at(50));
        assert!(gauge.pays());
        // The link got faster.
        (0..20).for_each(|_| gauge.sent(MIB, at(2000)));
        assert!(!gauge.would_pay());
        (0..20).for_each(|_| gauge.sent(MIB, at(10)));
        assert!(gauge.would_pay());
        // The data got random.
        (0..20).for_each(|_| gauge.packed(MIB, MIB, at(400)));
        assert!(!gauge.would_pay());
        let tries = (0..TRY_EVERY * 4).filter(|_| gauge.pays()).count();
        assert_eq!(tries, 4, "it is tried again now and then");
    }
}
