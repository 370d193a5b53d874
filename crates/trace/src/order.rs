//! Requests in order of time: traces recorded on several processors, or at completion, are slightly
//! out of order.

use std::collections::VecDeque;

use cairn_format::trace::TraceRecord;

/// Requests that wait for earlier ones at most: 2.6 MB.
pub(crate) const WINDOW: usize = 1 << 16;

/// Puts requests in order of time; those of one time stay in the order in which they came.
#[derive(Default)]
pub(crate) struct Order {
    /// In order of time, with the line of each.
    waiting: VecDeque<(TraceRecord, u64)>,
    last: u64,
}

impl Order {
    /// Takes one; true when it is too late for its place.
    pub(crate) fn push(&mut self, record: TraceRecord, line: u64) -> bool {
        if record.at_ns < self.last {
            return false;
        }
        // In most traces it belongs at the end; from there on the way is as long as the disorder.
        let mut at = self.waiting.len();
        if at > 64 && self.waiting[at - 64].0.at_ns > record.at_ns {
            at = self.waiting.partition_point(|(other, _)| other.at_ns <= record.at_ns);
        } else {
            while at > 0 && self.waiting[at - 1].0.at_ns > record.at_ns {
                at -= 1;
            }
        }
        self.waiting.insert(at, (record, line));
        true
    }

    /// The next one with its line, when no earlier one can come, or none will come at all
    /// (`ended`).
    pub(crate) fn pop(&mut self, ended: bool) -> Option<(TraceRecord, u64)> {
        if !ended && self.waiting.len() < WINDOW {
            return None;
        }
        let (record, line) = self.waiting.pop_front()?;
        self.last = record.at_ns;
        Some((record, line))
    }
}
