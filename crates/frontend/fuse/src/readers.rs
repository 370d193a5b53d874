//! Which threads of a mount wait at `/dev/fuse`.
//!
//! The kernel gives each request to the thread that has waited longest. With many of them each
//! request wakes another one, whose memory is in no processor cache any more and which ran last on
//! any processor; two that take turns are faster. So at most [`READING`] wait there, and the others
//! wait here.
//!
//! # Invariants
//! 1. While one of the threads is free, one waits at the device or is on its way there: a thread
//!    that takes a request and leaves no reader calls another one first. So a request waits only
//!    when all threads are busy.
//! 2. Once the mount has ended no thread waits here.

use parking_lot::{Condvar, Mutex};

/// Threads that wait for a request while there is none: one, and one for the kernel's forget
/// requests, which come with the next request.
pub(crate) const READING: usize = 2;

#[derive(Default)]
struct State {
    /// Threads that wait at the device, or are about to.
    reading: usize,
    ended: bool,
}

/// Threads that take requests by turns.
#[derive(Default)]
pub(crate) struct Readers {
    state: Mutex<State>,
    called: Condvar,
}

impl Readers {
    /// Waits until one more thread should wait at the device; none once the mount has ended.
    pub(crate) fn enter(&self) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        self.called.wait_while(&mut state, |state| state.reading >= READING && !state.ended);
        if state.ended {
            return None;
        }
        state.reading += 1;
        Some(Turn(self))
    }

    /// The mount has ended: no thread waits any more.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.called.notify_all();
    }
}

/// One thread waits at the device, until this is dropped.
pub(crate) struct Turn<'a>(&'a Readers);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.reading -= 1;
        if state.reading == 0 {
            self.0.called.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use super::*;

    /// Requests that end on a signal, and the waiting thread.
    struct Device {
        readers: Readers,
        requests: Mutex<Receiver<Receiver<()>>>,
        waiting: Mutex<usize>,
        taken: Sender<()>,
    }

    impl Device {
        fn serve(&self) {
            while let Some(turn) = self.readers.enter() {
                *self.waiting.lock() += 1;
                let request = self.requests.lock().recv();
                *self.waiting.lock() -= 1;
                drop(turn);
                let Ok(request) = request else { return self.readers.end() };
                self.taken.send(()).expect("the test counts them");
                let _ = request.recv();
            }
        }
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A device, and its clients' end of it.
    struct Mount {
        device: Arc<Device>,
        ask: Sender<Receiver<()>>,
        seen: Receiver<()>,
        threads: Vec<JoinHandle<()>>,
    }

    impl Mount {
        fn new(threads: usize) -> Self {
            let ((ask, requests), (taken, seen)) = (channel(), channel());
            let readers = Readers::default();
            let (requests, waiting) = (Mutex::new(requests), Mutex::default());
            let device = Arc::new(Device { readers, requests, waiting, taken });
            let start = |_| {
                let device = device.clone();
                std::thread::spawn(move || device.serve())
            };
            let threads = (0..threads).map(start).collect();
            Self { device, ask, seen, threads }
        }

        /// A request, which ends when the returned sender is dropped.
        fn request(&self) -> Sender<()> {
            let (end, request) = channel();
            self.ask.send(request).expect("somebody reads");
            end
        }

        fn is_taken(&self, patience: Duration) -> bool {
            self.seen.recv_timeout(patience).is_ok()
        }

        fn end(self) {
            drop(self.ask);
            self.threads.into_iter().for_each(|thread| thread.join().expect("it ends with the device"));
        }
    }

    #[test]
    fn as_many_requests_are_taken_at_the_same_time_as_there_are_threads() {
        let mount = Mount::new(10);
        for _ in 0..3 {
            let mut held = Vec::new();
            for number in 0..10 {
                held.push(mount.request());
                assert!(mount.is_taken(PATIENCE), "request {number}");
            }
            let one_more = mount.request();
            assert!(!mount.is_taken(Duration::from_millis(50)), "all are busy");
            held.truncate(9);
            assert!(mount.is_taken(PATIENCE), "who has ended one takes the next");
            drop(one_more);
        }
        mount.end();
    }

    #[test]
    fn few_wait_for_a_request_while_there_is_none() {
        let mount = Mount::new(10);
        for round in 0..200 {
            let many = if round % 3 == 0 { 1 } else { 7 };
            let held: Vec<Sender<()>> = (0..many).map(|_| mount.request()).collect();
            (0..many).for_each(|_| assert!(mount.is_taken(PATIENCE)));
            drop(held);
            let reading = mount.device.readers.state.lock().reading;
            assert!(reading <= READING && *mount.device.waiting.lock() <= READING, "round {round}");
        }
        mount.end();
    }
}
