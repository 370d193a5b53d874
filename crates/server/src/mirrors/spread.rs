//! An update on an interval is not urgent. It is spread over a part of the interval, so that
//! clients of the source share their disk and their processor with a slow transfer, and not with
//! one at full speed. Whenever data arrives, the rate becomes the remaining bytes divided by the
//! remaining time; when the time is over, the rest is sent at full speed.

use std::time::Duration;

use crate::mirrors::document::MirrorDocument;
use crate::mirrors::transfer::Seen;

/// The longest that an update by an interval is spread over: earlier writes wait for it, and its
/// owner chose the interval for the lag.
const WITHIN_MAX: Duration = Duration::from_secs(300);
/// The part of the configured lag beyond the interval that is used, in hundredths.
const OF_RPO: u32 = 75;
/// Bytes a second without noticeable effect on clients: a small update completes at once.
const RATE_MIN: u64 = 4 << 20;
/// Bytes a second until the first data has arrived, which has the total size. At full speed many
/// MiB would have been read by then.
const RATE_FIRST: u64 = 16 << 20;

/// A running update that has time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread {
    pub(super) began: Duration,
    pub(super) within: Duration,
}

impl Spread {
    /// Bytes a second of the link from now on; none for no limit.
    pub(super) fn rate(&self, now: Duration, seen: &Seen) -> Option<u64> {
        let left = (self.began + self.within).saturating_sub(now).as_secs_f64();
        let wanted = seen.changed_bytes.checked_sub(seen.arrived_bytes)?;
        if left <= 0.0 {
            return None;
        }
        if seen.arrived_bytes == 0 {
            return Some(RATE_FIRST);
        }
        // The compression ratio is assumed to stay the same.
        let of_each = seen.sent_bytes as f64 / seen.arrived_bytes as f64;
        Some(((wanted as f64 * of_each / left) as u64).max(RATE_MIN))
    }
}

impl MirrorDocument {
    /// The time over which a scheduled update is spread; none for full speed. A cron expression
    /// names hours in which it should complete.
    pub(super) fn within(&self) -> Option<Duration> {
        if self.link.at_once {
            return None;
        }
        let every = Duration::from_millis(self.when.every_ms?);
        let spare = self.rpo().map_or(every, |rpo| rpo.saturating_sub(every) * OF_RPO / 100);
        Some((every / 2).min(spare).min(WITHIN_MAX)).filter(|within| !within.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;

    use super::*;
    use crate::peers::identity::Fingerprint;

    const MIB: u64 = 1 << 20;

    fn seen(arrived: u64, changed: u64, sent: u64) -> Seen {
        Seen { arrived_bytes: arrived, changed_bytes: changed, sent_bytes: sent, ..Seen::default() }
    }

    #[test]
    fn what_is_left_is_divided_by_the_time_that_is_left() {
        let second = Duration::from_secs;
        let spread = Spread { began: second(100), within: second(30) };
        assert_eq!(spread.rate(second(100), &seen(0, 0, 0)), Some(RATE_FIRST), "nothing is known yet");
        assert_eq!(spread.rate(second(110), &seen(100 * MIB, 500 * MIB, 100 * MIB)), Some(20 * MIB));
        assert_eq!(spread.rate(second(110), &seen(100 * MIB, 500 * MIB, 50 * MIB)), Some(10 * MIB), "packed");
        assert_eq!(spread.rate(second(129), &seen(100 * MIB, 500 * MIB, 100 * MIB)), Some(400 * MIB));
        assert_eq!(spread.rate(second(130), &seen(100 * MIB, 500 * MIB, 100 * MIB)), None, "it is late");
        assert_eq!(spread.rate(second(101), &seen(MIB, 2 * MIB, MIB)), Some(RATE_MIN), "it is little");
        assert_eq!(spread.rate(second(101), &seen(3 * MIB, 2 * MIB, MIB)), None, "more than was said");
    }

    #[test]
    fn update_by_an_interval_has_half_of_it_or_what_the_wanted_lag_leaves() {
        let nobody = Fingerprint::of(&CertificateDer::from_slice(&[]));
        let mut document = MirrorDocument::of("source:9000", nobody, "v", 1);
        assert_eq!(document.within(), None, "on request only");
        let mut within = |every_s: u64, rpo_s: Option<u64>| {
            document.when.every_ms = Some(every_s * 1000);
            document.rpo_ms = rpo_s.map(|rpo| rpo * 1000);
            document.within().map(|within| within.as_secs())
        };
        assert_eq!(within(60, None), Some(30));
        assert_eq!(within(900, None), Some(300));
        assert_eq!(within(900, Some(1000)), Some(75));
        assert_eq!(within(900, Some(1200)), Some(225));
        assert_eq!(within(900, Some(900)), None, "there is no time");
        assert_eq!(within(900, Some(60)), None);
        document.rpo_ms = None;
        document.link.at_once = true;
        assert_eq!(document.within(), None);
    }
}
