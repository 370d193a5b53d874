//! Threads that work together, beside the caller's: all of them, or none if the system has too few.

use std::io;
use std::sync::mpsc::channel;
use std::thread::Builder;

use cairn_stream::{Helper, Own, Threads};

/// Threads beside the caller's, so that disk and wire work at the same time.
pub(crate) struct Scoped;

impl Threads for Scoped {
    fn beside<'a>(&self, helpers: Vec<Helper<'a>>, own: Own<'a>) -> io::Result<()> {
        beside(helpers, own, &mut || Builder::new().name("transfer".to_owned()))
    }
}

/// Each helper waits until all of them have a thread. A helper that ran at once would wait for ever
/// for those that could not be started, and so would the scope: the objects that it waits at are
/// dropped after the scope.
fn beside<'a>(
    helpers: Vec<Helper<'a>>,
    own: Own<'a>,
    builder: &mut dyn FnMut() -> Builder,
) -> io::Result<()> {
    std::thread::scope(|scope| {
        let mut gates = Vec::new();
        for helper in helpers {
            let (gate, opened) = channel::<()>();
            let run = move || {
                // If the gate is never opened, there is nothing to do.
                if opened.recv().is_ok() {
                    helper();
                }
            };
            builder().spawn_scoped(scope, run)?;
            gates.push(gate);
        }
        for gate in gates {
            // The helper waits until it receives this.
            let _ = gate.send(());
        }
        own();
        Ok(())
    })
}

#[cfg(test)]
mod tests;
