//! One call at a time for each volume and each name.
//!
//! The sidecars repeat a call that takes long. The second call must not run beside the first: it
//! gets `ABORTED`, which means that the first one is still at work, and is repeated later.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;

/// The names that calls work on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<BTreeSet<String>>>);

/// A name that a call works on.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    name: String,
}

impl Turns {
    /// Takes the turn of a name.
    pub(crate) fn take(&self, name: &str) -> Result<Turn, Status> {
        match self.0.lock().insert(name.to_owned()) {
            true => Ok(Turn { turns: self.clone(), name: name.to_owned() }),
            false => Err(Status::aborted(format!("another call works on {name}"))),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.0.lock().remove(&self.name);
    }
}
