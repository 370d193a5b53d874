//! Programs that wait for a job. A build adds them while jobs take them, the slowest first.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::{Program, Times};

/// Programs that are ready to run. Jobs wait for more until the queue is closed.
#[derive(Debug)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    times: Times,
}

#[derive(Debug, Default)]
struct Waiting {
    programs: Vec<Program>,
    is_closed: bool,
}

impl Queue {
    /// An empty queue that is open. `times` decides the order.
    pub fn open(times: Times) -> Self {
        Self { waiting: Mutex::default(), changed: Condvar::new(), times }
    }

    /// A queue of these programs alone.
    pub fn of(programs: Vec<Program>, times: Times) -> Self {
        let queue = Self::open(times);
        programs.into_iter().for_each(|program| queue.add(program));
        queue.close();
        queue
    }

    /// Adds a program that can run now.
    pub fn add(&self, program: Program) {
        let mut waiting = self.lock();
        waiting.programs.push(program);
        self.times.sort(&mut waiting.programs);
        self.changed.notify_one();
    }

    /// Says that no program follows.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// The slowest program that waits. Blocks while there is none and the queue is open; `None`
    /// when it is closed and empty.
    pub fn next(&self) -> Option<Program> {
        let mut waiting = self.lock();
        loop {
            if let Some(program) = waiting.programs.pop() {
                return Some(program);
            }
            if waiting.is_closed {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
