//! The thread that runs schedules, and that opens volumes and devices once their disks are back.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::schedules::{LOOK_EVERY, OPENING_PATIENCE, OPENING_PAUSE, OPENINGS_MAX};
use crate::work::aside::Aside;

/// The searches for missing devices, each with the time at which it began. A disk that hangs while
/// it is opened blocks its search; a later search skips it, and opens the others.
#[derive(Default)]
struct Openings(Vec<(Instant, JoinHandle<()>)>);

impl Openings {
    /// Opens waiting volumes and devices on a thread of its own, unless none waits or the last
    /// attempt may still complete.
    fn look(&mut self, server: &Arc<Server>) {
        self.0.retain(|(_, thread)| !thread.is_finished());
        let hangs = |(begun, _): &(Instant, JoinHandle<()>)| begun.elapsed() > OPENING_PATIENCE;
        if !self.0.iter().all(hangs) || self.0.len() > OPENINGS_MAX || !server.waits_for_devices() {
            return;
        }
        let server = server.clone();
        match std::thread::Builder::new().name("opening".to_owned()).spawn(move || server.open_waiting()) {
            Ok(thread) => self.0.push((Instant::now(), thread)),
            Err(error) => tracing::warn!(%error, "the search for missing devices waits for a thread"),
        }
    }

    /// Waits for a running attempt, for as long as a disk takes that does not hang: a later opening
    /// is as after a kill.
    pub(super) fn end(self) {
        let begun = Instant::now();
        for (_, thread) in self.0 {
            while !thread.is_finished() && begun.elapsed() < OPENING_PATIENCE {
                std::thread::sleep(OPENING_PAUSE);
            }
            match thread.is_finished() {
                true if thread.join().is_err() => {
                    tracing::error!("the search for missing devices had panicked")
                }
                true => {}
                false => tracing::warn!("a disk that is being opened does not answer; not waiting for it"),
            }
        }
    }
}

/// The thread that runs schedules, and looks whether devices are back that volumes wait for; it
/// ends when this is dropped.
pub(crate) struct Runner {
    ending: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    pub(crate) fn start(server: Arc<Server>) -> Result<Self, ServerError> {
        let ending = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = ending.clone();
        let look = move || {
            let (ended, wake) = &*shared;
            let (mut aside, mut openings) = (Aside::default(), Openings::default());
            loop {
                openings.look(&server);
                server.run_schedules(&mut aside);
                server.run_groups(&mut aside);
                let mut ended = ended.lock();
                if !*ended {
                    wake.wait_for(&mut ended, LOOK_EVERY);
                }
                if *ended {
                    break;
                }
            }
            aside.end();
            openings.end();
        };
        let thread = std::thread::Builder::new().name("snapshots".to_owned()).spawn(look);
        let thread =
            thread.map_err(|source| ServerError::Thread { what: "the schedules of snapshots", source })?;
        Ok(Self { ending, thread: Some(thread) })
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        *self.ending.0.lock() = true;
        self.ending.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was already reported by its thread.
            let _ = thread.join();
        }
    }
}
