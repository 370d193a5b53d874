//! Tasks that take turns on one thread: several clients, an owner, two servers, each as plain code
//! that calls the engine.
//!
//! A task runs until it reaches a point where another one may overtake it: an operation of a device
//! ([`Waist`](crate::waist::Waist)), a message ([`link`](crate::link)), or a lock that another task
//! holds. The seed decides which task runs next, so the same seed gives the same run.

use std::cell::Cell;

use cairn_base::{Rng, wait_by};
use generator::{Generator, Gn, is_generator};

thread_local! {
    /// A waiting task sets it.
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// Words of a task's stack: 2 MiB, of which the system allocates the used part.
const STACK_WORDS: usize = 1 << 18;

/// Why a task lets others run.
enum Pause {
    /// It could continue.
    Ran,
    /// It waits for another one.
    Waits,
    /// It is at its end.
    Done,
}

/// The outcome of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// A task continued.
    Ran,
    /// Each waits for another one.
    Stuck,
    /// All are at their end.
    Done,
}

/// A point where another task may run. Outside of tasks it does nothing.
pub fn switch() {
    pause(Pause::Ran);
}

/// The caller cannot continue before another task has acted. It must check again afterwards.
pub fn wait() {
    assert!(is_generator(), "only a task can wait for another one");
    if ASKED.get() {
        eprintln!("a task waits here:\n{}", std::backtrace::Backtrace::force_capture());
    }
    pause(Pause::Waits);
}

#[expect(
    deprecated,
    reason = "its replacement must be handed down through every call, and the engine's calls take no such thing"
)]
fn pause(why: Pause) {
    if is_generator() {
        generator::yield_with(why);
    }
}

struct Task<'a> {
    body: Generator<'a, (), Pause>,
    waits: bool,
}

/// Some tasks.
#[derive(Default)]
pub struct Tasks<'a> {
    list: Vec<Task<'a>>,
    /// The number of times that all waited and each was asked again.
    idle: u32,
}

/// The number of rounds in which all wait that counts as for ever: a waiting task may have just
/// done something that lets another one continue.
const IDLE_ROUNDS: u32 = 16;

impl<'a> Tasks<'a> {
    /// Adds one. It does nothing before its first turn.
    pub fn spawn(&mut self, body: impl FnOnce() + Send + 'a) {
        let body = Gn::<()>::new_opt(STACK_WORDS, move || {
            body();
            Pause::Done
        });
        self.list.push(Task { body, waits: false });
    }

    /// Lets one of them run to its next pause.
    pub fn turn(&mut self, rng: &mut Rng) -> Turn {
        if self.list.is_empty() {
            return Turn::Done;
        }
        if self.list.iter().all(|task| task.waits) {
            self.idle += 1;
            self.list.iter_mut().for_each(|task| task.waits = false);
        }
        if self.idle > IDLE_ROUNDS {
            return Turn::Stuck;
        }
        let ready: Vec<usize> = (0..self.list.len()).filter(|n| !self.list[*n].waits).collect();
        let chosen = ready[rng.below(ready.len() as u64) as usize];
        wait_by(Some(wait));
        let pause = self.list[chosen].body.resume();
        wait_by(None);
        match pause {
            Some(Pause::Waits) => {
                self.list[chosen].waits = true;
                return Turn::Ran;
            }
            Some(Pause::Ran) => {}
            Some(Pause::Done) => drop(self.list.remove(chosen)),
            None => panic!("a task broke off"),
        }
        self.wake();
        Turn::Ran
    }

    /// Makes each waiting task report its place, for the report of a run in which all wait.
    pub fn ask(&mut self) {
        ASKED.set(true);
        for task in &mut self.list {
            wait_by(Some(wait));
            task.body.resume();
            wait_by(None);
        }
        ASKED.set(false);
    }

    /// An event that waiting tasks may wait for.
    pub fn wake(&mut self) {
        self.idle = 0;
        self.list.iter_mut().for_each(|task| task.waits = false);
    }
}

impl Drop for Tasks<'_> {
    /// Unfinished tasks are left as they are: their locks are of a run that has failed.
    fn drop(&mut self) {
        self.list.drain(..).filter(|task| !task.body.is_done()).for_each(std::mem::forget);
    }
}
