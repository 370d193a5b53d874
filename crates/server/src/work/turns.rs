//! Turns: only one thread at a time creates, deletes, opens, or closes the object of a name for an
//! operation; names are independent.
//!
//! A disk may hang for any time while it is opened. The waiting thread holds the turns of the names
//! concerned, and no others; a request for one of these waits for a while, and then fails with the
//! work that holds it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::ServerError;

/// How long a command waits for its turn before it is refused. A check of a large volume after a
/// revert may take longer than that.
const PATIENCE: Duration = Duration::from_secs(30);

/// The names whose turns are held, and the work of each holder.
///
/// The holder of a turn may request that of a clone of the same volume, and no other: so no
/// deadlock is possible.
#[derive(Default)]
pub(crate) struct Turns {
    taken: Mutex<BTreeMap<String, &'static str>>,
    over: Condvar,
}

/// A turn, until this goes.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    names: Vec<String>,
}

impl Turns {
    /// Waits until no turn of these names is held. `to` describes the work to other requests
    /// meanwhile, as in "it is being made".
    ///
    /// # Errors
    /// [`ServerError::Busy`] when that takes too long.
    pub(crate) fn take(&self, names: &[&str], to: &'static str) -> Result<Turn<'_>, ServerError> {
        self.take_within(names, to, PATIENCE)
    }

    /// The same for work that must be done, without a time limit.
    pub(crate) fn wait(&self, name: &str, to: &'static str) -> Turn<'_> {
        loop {
            if let Ok(turn) = self.take(&[name], to) {
                return turn;
            }
        }
    }

    /// The same if the turn is free; none if it is held.
    pub(crate) fn take_now(&self, name: &str, to: &'static str) -> Option<Turn<'_>> {
        self.take_within(&[name], to, Duration::ZERO).ok()
    }

    fn take_within(
        &self,
        names: &[&str],
        to: &'static str,
        patience: Duration,
    ) -> Result<Turn<'_>, ServerError> {
        let begun = Instant::now();
        let mut taken = self.taken.lock();
        // All of them at once: a holder never waits for another.
        while let Some((name, by)) = names.iter().find_map(|name| Some((*name, *taken.get(*name)?))) {
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(ServerError::Busy { name: name.to_owned(), by });
            }
            self.over.wait_for(&mut taken, left);
        }
        taken.extend(names.iter().map(|name| ((*name).to_owned(), to)));
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Ok(Turn { turns: self, names })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = self.turns.taken.lock();
        for name in &self.names {
            taken.remove(name);
        }
        drop(taken);
        self.turns.over.notify_all();
    }
}

#[cfg(test)]
mod tests;
