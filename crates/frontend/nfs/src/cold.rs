//! Reads of data that is not in memory.
//!
//! A session takes further requests while such reads wait for the disk. The protocol gives requests
//! in flight no order, so a read may finish after all later requests of its client. A read that has
//! to wait is executed again as a whole, so that it obeys the rules that its export has then.
//!
//! Reads of one file are requested from the disk together.

use std::sync::Arc;
use std::time::Instant;

use cairn_frontend_session::{Lanes, Window, Windows};
use cairn_proto_nfs::Handle;
use cairn_proto_nfs::rpc::Credential;

use crate::around::{Around, Outlet};
use crate::limits::{LANE_READS_MAX, LANE_READS_MIN, LANES_MAX, LANES_SHARE};
use crate::round::Round;

/// A read that has to wait.
pub(crate) struct ColdRead {
    pub(crate) xid: u32,
    pub(crate) credential: Credential,
    pub(crate) file: Handle,
    pub(crate) offset: u64,
    pub(crate) count: u32,
    pub(crate) since: Instant,
}

impl ColdRead {
    /// Whether both are reads of one file by one user.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.file == other.file && self.credential == other.credential
    }
}

/// Reads to do and answer, with the memory for their data.
struct Work {
    reads: Vec<ColdRead>,
    _window: Window,
}

/// The lanes of a session.
pub(crate) struct ReadLanes {
    windows: Arc<Windows>,
    lanes: Lanes<Work>,
}

impl ReadLanes {
    pub(crate) fn new(around: &Arc<Around>) -> Self {
        let windows = Arc::clone(&around.shared.options.windows);
        let around = Arc::clone(around);
        Self { windows, lanes: Lanes::new(LANES_MAX, move |work: Work| answer(work.reads, &around)) }
    }

    /// Gives reads to lanes. Returns those that find no lane or not enough memory. A round that has
    /// changes to make durable has few of its reads wait for that.
    pub(crate) fn give(&mut self, reads: Vec<ColdRead>, has_changes: bool) -> Vec<ColdRead> {
        if reads.len() < if has_changes { 1 } else { LANE_READS_MIN } {
            return reads;
        }
        let mut rest = Vec::new();
        for part in deal(reads) {
            let bytes = part.iter().map(|read| u64::from(read.count)).sum();
            if !self.lanes.has_room() {
                rest.extend(part);
                continue;
            }
            match self.windows.also(bytes) {
                None => rest.extend(part),
                Some(window) => {
                    if let Err(work) = self.lanes.give(Work { reads: part, _window: window }) {
                        rest.extend(work.reads);
                    }
                }
            }
        }
        rest
    }
}

/// Parts for a lane each. Reads of one file stay together as far as they are few, as they wait for
/// the disk together; those of different files wait one after the other.
pub(crate) fn deal(mut reads: Vec<ColdRead>) -> Vec<Vec<ColdRead>> {
    reads.sort_by(|one, other| one.file.as_bytes().cmp(other.file.as_bytes()));
    let share = (reads.len() / LANES_SHARE).clamp(LANE_READS_MIN, LANE_READS_MAX);
    let mut groups: Vec<Vec<ColdRead>> = Vec::new();
    for read in reads {
        match groups.last_mut() {
            Some(group) if group.len() < share && group[0].is_beside(&read) => group.push(read),
            _ => groups.push(vec![read]),
        }
    }
    let mut parts: Vec<Vec<ColdRead>> = Vec::new();
    for (number, group) in groups.into_iter().enumerate() {
        // Every further round adds to the parts that have room.
        let place = number % LANES_MAX;
        match parts.get_mut(place).filter(|part| part.len() + group.len() <= LANE_READS_MAX) {
            Some(part) => part.extend(group),
            None => parts.push(group),
        }
    }
    parts
}

/// Does the reads. When a reply is lost, even by a panic, the connection ends: the client would
/// wait for that reply.
fn answer(reads: Vec<ColdRead>, around: &Around) {
    struct Unanswered<'a>(Option<&'a Outlet>);
    impl Drop for Unanswered<'_> {
        fn drop(&mut self) {
            if let Some(outlet) = self.0 {
                outlet.close();
            }
        }
    }
    let mut unanswered = Unanswered(Some(&around.outlet));
    if Round::of_reads(reads).read_cold(around).is_ok() {
        unanswered.0 = None;
    }
}
