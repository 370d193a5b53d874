//! When a failed delivery is tried again.

use std::time::Duration;

use cairn_base::Rng;

use crate::deliver::{Failure, Fault};

/// The first wait after a failure that may pass by itself, and the longest.
const PASSING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(900));
/// The same after one that needs a person.
const LASTING: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// Tries of a message that the target refuses for its content, before it is discarded.
const REFUSED_TRIES: u32 = 6;

/// The decision after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    /// Try the same message after this time.
    For(Duration),
    /// Give the message up, and try the next one after this time.
    Discard(Duration),
}

/// The failures in a row of one target.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    failures: u32,
    refused: u32,
}

impl Pace {
    /// A delivery succeeded.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// A delivery failed: the time to the next one, between half of the wait and all of it, so that
    /// servers that failed together do not return together.
    pub fn failed(&mut self, failure: &Failure, rng: &mut Rng) -> Sleep {
        let (first, longest) = match failure.fault {
            Fault::Passing => PASSING,
            Fault::Lasting | Fault::Refused => LASTING,
        };
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let wait = first.saturating_mul(factor).min(longest);
        let half = wait / 2;
        let jitter =
            Duration::from_millis(rng.below(u64::try_from(half.as_millis()).unwrap_or(u64::MAX) + 1));
        let asked = failure.retry_after.unwrap_or_default().min(LASTING.1);
        let wait = (half + jitter).max(asked);
        self.failures = self.failures.saturating_add(1);
        self.refused = if failure.fault == Fault::Refused { self.refused + 1 } else { 0 };
        if self.refused >= REFUSED_TRIES {
            self.refused = 0;
            return Sleep::Discard(wait);
        }
        Sleep::For(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(fault: Fault) -> Failure {
        Failure { fault, message: String::new(), next: String::new(), retry_after: None }
    }

    #[test]
    fn waits_grow_to_a_limit_and_start_again_after_a_success() {
        let (mut pace, mut rng) = (Pace::default(), Rng::new(1));
        let mut before = Duration::ZERO;
        for _ in 0..100 {
            let Sleep::For(wait) = pace.failed(&failure(Fault::Passing), &mut rng) else { panic!() };
            assert!(wait <= PASSING.1 && wait * 2 >= before.min(PASSING.1 / 2));
            before = wait;
        }
        assert!(before >= PASSING.1 / 2);
        pace.succeeded();
        assert!(
            matches!(pace.failed(&failure(Fault::Passing), &mut rng), Sleep::For(wait) if wait <= PASSING.0)
        );
    }

    #[test]
    fn a_message_that_is_refused_each_time_does_not_block_the_queue_for_ever() {
        let (mut pace, mut rng) = (Pace::default(), Rng::new(2));
        let tries =
            (1..).find(|_| matches!(pace.failed(&failure(Fault::Refused), &mut rng), Sleep::Discard(_)));
        assert_eq!(tries, Some(REFUSED_TRIES));
        // Nothing is discarded for a wrong password or a dead network.
        for fault in [Fault::Lasting, Fault::Passing] {
            let mut pace = Pace::default();
            assert!((0..1000).all(|_| matches!(pace.failed(&failure(fault), &mut rng), Sleep::For(_))));
        }
    }

    #[test]
    fn a_receiver_that_names_a_time_gets_it_within_reason() {
        let (mut pace, mut rng) = (Pace::default(), Rng::new(3));
        let asks =
            |seconds| Failure { retry_after: Some(Duration::from_secs(seconds)), ..failure(Fault::Passing) };
        assert_eq!(pace.failed(&asks(120), &mut rng), Sleep::For(Duration::from_secs(120)));
        assert_eq!(pace.failed(&asks(1 << 40), &mut rng), Sleep::For(LASTING.1));
    }
}
