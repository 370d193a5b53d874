//! Reads of a session that wait for the disk while the session takes further requests.
//!
//! NBD gives requests in flight no order: a client that sends a read and a write of the same bytes
//! without waiting may read either content. So reads may finish beside all later requests. A flush
//! covers only changes, so it need not wait for reads.
//!
//! A lane sends whole replies on the socket of its session, under a lock that the session takes as
//! well. A session under TLS has no lanes, as TLS keeps one state for both directions.

use std::sync::Arc;

use cairn_frontend_session::{Lanes, Window, Windows};

use crate::limits::LANES_MAX;
use crate::round::{Round, Surroundings};
use crate::transport::{Outlet, Transport};

/// Reads to do and answer, with the memory for their data.
struct Reads {
    round: Box<Round>,
    _window: Window,
}

/// The lanes of a session.
pub(crate) struct ReadLanes {
    windows: Arc<Windows>,
    lanes: Option<Lanes<Reads>>,
}

impl ReadLanes {
    /// Lanes that answer on `transport`.
    pub(crate) fn new(windows: Arc<Windows>, around: &Arc<Surroundings>, transport: &Transport) -> Self {
        let lanes = transport.outlet().map(|outlet| {
            let around = Arc::clone(around);
            Lanes::new(LANES_MAX, move |reads| answer(reads, &around, &outlet))
        });
        Self { windows, lanes }
    }

    /// True if a lane has nothing to do.
    pub(crate) fn has_room(&self) -> bool {
        self.lanes.as_ref().is_some_and(Lanes::has_room)
    }

    /// Gives reads to a lane.
    ///
    /// # Errors
    /// The reads, when no lane or not enough memory is free.
    pub(crate) fn give(&mut self, round: Box<Round>) -> Result<(), Box<Round>> {
        let Some(lanes) = &mut self.lanes else { return Err(round) };
        let Some(window) = self.windows.also(round.bytes()) else { return Err(round) };
        lanes.give(Reads { round, _window: window }).map_err(|reads| reads.round)
    }
}

/// Does the reads. When a reply is lost, even by a panic, the connection ends: the client would
/// wait for that reply.
fn answer(mut reads: Reads, around: &Surroundings, outlet: &Outlet) {
    struct Unanswered<'a>(Option<&'a Outlet>);
    impl Drop for Unanswered<'_> {
        fn drop(&mut self) {
            if let Some(outlet) = self.0 {
                outlet.close();
            }
        }
    }
    let mut unanswered = Unanswered(Some(outlet));
    if reads.round.run_pending(around, &mut &*outlet).is_ok() {
        unanswered.0 = None;
    }
}
