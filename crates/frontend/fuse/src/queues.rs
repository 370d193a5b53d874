//! Requests that come by io_uring: a queue for each processor, with seats that threads use.
//!
//! The thread of a seat stays on the processor of its queue, as the callers do. A queue has a few
//! seats, as requests wait for devices, too.
//!
//! If an answer needs data that the kernel still caches, the thread of the seat asks for it, and
//! others of the queue take it: the usual number of seats stays available, with new ones if need
//! be. A request that came to the queue before a new seat waits until some seat answers (see
//! [`cairn_frontend_fuse_ring`]). It would wait for ever if all others wait for it: so a new seat
//! gets a request to answer.
//!
//! Writes may have to wait for room, all concurrent write-back of the kernel, and so do requests
//! that wait for them. One seat of a queue stays free, so that any other request on that processor
//! is answered. As many more seats as needed are added, up to the number of threads that read
//! `/dev/fuse` without queues.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use cairn_frontend_fuse_ring::{self as ring, Seat};
use parking_lot::Mutex;

use crate::abi::errno;
use crate::conversation::{Step, unique_of, unless_panic, with_answer, with_data};
use crate::operations::Answer;
use crate::received::Received;
use crate::received::WRITE_MAX;
use crate::session::{Connection, THREADS};

/// Seats of all queues together, limited by the minimum and the maximum of one.
const SEATS: usize = 16;
const SEATS_MIN: usize = 2;
const SEATS_MAX: usize = 4;

/// The queue of one processor.
#[derive(Default)]
pub(crate) struct Queue {
    seats: Mutex<Seats>,
}

/// How many there are.
#[derive(Default)]
struct Seats {
    all: usize,
    /// Their threads wait for the kernel.
    apart: usize,
    /// Seats whose threads answer a request, or wait to answer one.
    busy: usize,
}

/// The seats of each queue of the kernel; none if that is impossible.
pub(crate) fn seats(device: &Arc<OwnedFd>) -> Vec<Vec<Seat>> {
    let all = ring::queues().and_then(|queues| {
        let each = of_each(queues.into());
        (0..queues).map(|queue| (0..each).map(|_| seat(device, queue)).collect()).collect()
    });
    all.unwrap_or_else(|error: io::Error| {
        tracing::warn!(%error, "a mount can't use io_uring: its requests are read from /dev/fuse");
        Vec::new()
    })
}

/// The number of seats of each of `queues` queues.
fn of_each(queues: usize) -> usize {
    (SEATS / queues.max(1)).clamp(SEATS_MIN, SEATS_MAX)
}

fn seat(device: &Arc<OwnedFd>, queue: u16) -> io::Result<Seat> {
    Seat::new(device.clone(), queue, WRITE_MAX)
}

impl Connection {
    /// Has threads take the seats. False when there are none, or the kernel refuses them: then
    /// `/dev/fuse` stays in use.
    pub(crate) fn sit_down(self: &Arc<Self>, seats: Vec<Vec<Seat>>) -> bool {
        let each =
            (0..).zip(seats).flat_map(|(queue, seats)| seats.into_iter().map(move |seat| (queue, seat)));
        for (queue, seat) in each {
            if let Err(error) = self.add(queue, seat) {
                tracing::warn!(%error, queue, "a mount can't use io_uring: its requests are read from /dev/fuse");
                return false;
            }
        }
        !self.queues.is_empty()
    }

    /// Has a thread take a seat of a queue. It is registered when this returns.
    fn add(self: &Arc<Self>, queue: usize, seat: Seat) -> io::Result<()> {
        let (registered, is_registered) = sync_channel(1);
        self.thread(&format!("q{queue}"), move |own| own.sit(queue, seat, &registered))?;
        is_registered.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }

    /// Takes requests until the mount ends.
    fn sit(self: Arc<Self>, number: usize, mut seat: Seat, registered: &SyncSender<io::Result<()>>) {
        ring::stay_on(number as u16);
        let outcome = seat.register();
        let is_refused = outcome.is_err();
        if !is_refused {
            self.queues[number].seats.lock().all += 1;
        }
        // The starter of this thread waits for it.
        let _ = registered.send(outcome);
        if is_refused {
            return;
        }
        let mut received = Received::new();
        let error = loop {
            if let Err(error) = seat.exchange() {
                break error;
            }
            self.take_seated(number, &mut seat, &mut received);
        };
        self.queues[number].seats.lock().all -= 1;
        use io::ErrorKind::{ConnectionAborted, NotConnected};
        if !matches!(error.kind(), NotConnected | ConnectionAborted) {
            tracing::error!(%error, queue = number, "a seat for requests of a mount is lost");
            if let Err(error) = self.add_another(number) {
                tracing::error!(%error, queue = number, "this queue has no other seat");
            }
        }
    }

    fn add_another(self: &Arc<Self>, queue: usize) -> io::Result<()> {
        self.add(queue, seat(&self.device, queue as u16)?)
    }

    /// One request.
    fn take_seated(self: &Arc<Self>, number: usize, seat: &mut Seat, received: &mut Received) {
        let Some(request) = seat.request() else {
            // Passed on as it is, the answer is invalid, and the kernel turns it into an error.
            tracing::error!("a request of the kernel is invalid");
            return;
        };
        received.put(&request);
        self.keep_one_free(number, received);
        self.take_as_it_is(number, seat, received);
        self.queues[number].seats.lock().busy -= 1;
    }

    /// Counts a request, and adds a seat if it takes the last one.
    fn keep_one_free(self: &Arc<Self>, number: usize, received: &Received) {
        let is_last = {
            let mut seats = self.queues[number].seats.lock();
            seats.busy += 1;
            seats.busy >= seats.all && seats.all - seats.apart < THREADS
        };
        if !is_last {
            return;
        }
        match self.add_another(number) {
            Ok(()) => received.node().into_iter().for_each(|node| self.have_asked(node)),
            Err(error) => tracing::warn!(%error, queue = number, "no seat of a queue is free"),
        }
    }

    fn take_as_it_is(self: &Arc<Self>, number: usize, seat: &mut Seat, received: &mut Received) {
        match self.files.take_safely(received) {
            Step::Answer { unique, answer } => put(seat, unique, answer),
            Step::Data { unique, data } => {
                if with_data(unique, data, |parts| seat.answer(parts)).is_err() {
                    put(seat, unique, Err(errno::EIO));
                }
            }
            Step::AfterForgetting { unique, answer, stretch } => {
                let forgotten = self.aside(number, stretch.ino, || self.forget(stretch));
                put(seat, unique, forgotten.and(answer));
            }
            Step::AfterData { node } => {
                let bytes = received.bytes();
                let sent = self.aside(number, node, || self.forget_content(node));
                let answer = sent.and_then(|()| unless_panic(|| self.files.answer_late(&bytes)).flatten());
                put(seat, unique_of(&bytes).unwrap_or(0), answer);
            }
            Step::BeforeForgetting { unique, answer, node } => {
                put(seat, unique, answer);
                self.forget_lost(node);
            }
            Step::Silence => put(seat, unique_of(&received.bytes()).unwrap_or(0), Err(errno::EINVAL)),
            Step::End { unique } => put(seat, unique, Ok(Vec::new())),
        }
    }

    /// Does work that waits for the kernel, while others take the kernel's requests for the file.
    fn aside(self: &Arc<Self>, number: usize, file: u64, work: impl FnOnce()) -> Result<(), i32> {
        let seats = &self.queues[number].seats;
        let others = {
            let mut seats = seats.lock();
            seats.apart += 1;
            seats.all - seats.apart
        };
        let added = if others < of_each(self.queues.len()) { self.add_another(number) } else { Ok(()) };
        let outcome = match added {
            Err(error) if others == 0 => {
                tracing::error!(%error, "no thread could take the kernel's cached data of a file");
                Err(errno::EIO)
            }
            _ => {
                self.have_asked(file);
                work();
                Ok(())
            }
        };
        seats.lock().apart -= 1;
        outcome
    }
}

/// Stores an answer. One longer than any request allows becomes an error.
fn put(seat: &mut Seat, unique: u64, answer: Answer) {
    if with_answer(unique, answer, |parts| seat.answer(parts)).is_err() {
        let _ = with_answer(unique, Err(errno::EIO), |parts| seat.answer(parts));
    }
}
