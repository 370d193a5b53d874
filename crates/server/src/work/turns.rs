//! Turns: what is made, deleted, opened, or closed for something to be done to it is so by one at a
//! time, each name by itself.
//!
//! A disk may hang for as long as it likes while it is opened. Whoever waits for it has his turn
//! with the names that are concerned, and with no others; who asks for one of these meanwhile waits
//! for a while, and is told then what it is busy with.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::ServerError;

/// How long a command waits for its turn before it is refused. A check of a large volume after a
/// revert may take longer than that.
const PATIENCE: Duration = Duration::from_secs(30);

/// The names with which somebody has his turn, and what he does.
///
/// Who has a turn may ask for that of a clone of what it is with, and for no other: so nobody waits
/// in a circle.
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
    /// Waits until nobody has his turn with any of these names. `to` is what the others are told
    /// meanwhile, as in "it is being made".
    ///
    /// # Errors
    /// [`ServerError::Busy`] when that takes too long.
    pub(crate) fn take(&self, names: &[&str], to: &'static str) -> Result<Turn<'_>, ServerError> {
        self.take_within(names, to, PATIENCE)
    }

    /// The same for what has to be done, however long that takes.
    pub(crate) fn wait(&self, name: &str, to: &'static str) -> Turn<'_> {
        loop {
            if let Ok(turn) = self.take(&[name], to) {
                return turn;
            }
        }
    }

    /// The same where nobody has it; else what he does.
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
        // All of them at once: who has one waits for none.
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
