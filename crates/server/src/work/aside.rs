//! Threads for work that may take long, one at a time of each name.

use std::collections::BTreeMap;
use std::thread::JoinHandle;

/// Work that may take as long as its hooks or its devices, without delaying other schedules: each
/// on a thread, one at a time for each name.
#[derive(Default)]
pub(crate) struct Aside(BTreeMap<String, JoinHandle<()>>);

impl Aside {
    /// Runs it on a thread of its own. Does nothing while the last work of that name still runs: it
    /// is then due again later.
    pub(crate) fn run(&mut self, name: String, work: impl FnOnce() + Send + 'static) {
        if self.0.get(&name).is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        match std::thread::Builder::new().name("snapshot".to_owned()).spawn(work) {
            Ok(thread) => drop(self.0.insert(name, thread)),
            Err(error) => tracing::warn!(name, %error, "a scheduled snapshot waits for a thread"),
        }
    }

    /// Waits for all.
    pub(crate) fn end(self) {
        for (name, thread) in self.0 {
            if thread.join().is_err() {
                tracing::error!(name, "a scheduled snapshot had panicked");
            }
        }
    }
}
