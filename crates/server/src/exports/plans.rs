//! Statistics on the writes of all exports in use, for `cairn plan VOLUME`: a curve for each export
//! and one for each volume, over all its LUNs.
//!
//! A curve is fed by the taps of the sessions, of any protocol, and is in memory only: it begins
//! with the first session after a start of the server. Writes of programs to mounted files do not
//! go through an export and are not in it. [`Curve`] documents its cost.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_base::Clock;
use cairn_trace::{Curve, Tap};
use parking_lot::Mutex;

use crate::names::ExportName;

mod commands;

/// The curves of a server.
pub(crate) struct Plans {
    clock: Arc<dyn Clock>,
    curves: Mutex<BTreeMap<String, Arc<Curve>>>,
}

impl Plans {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, curves: Mutex::default() }
    }

    /// Makes a tap feed the curves of an export that is opened for writing.
    pub(crate) fn watch(&self, export: &str, mut tap: Tap) -> Tap {
        let mut curves = self.curves.lock();
        // A deleted or unused export is dropped after a day without a write.
        curves.retain(|_, curve| Arc::strong_count(curve) > 1 || !curve.is_idle());
        let volume = ExportName::parse(export).map(|name| name.volume);
        for subject in [Some(export), volume].into_iter().flatten() {
            let curve = match curves.get(subject) {
                Some(curve) => curve.clone(),
                // The lists of granularities are our own: this does not fail.
                None => match Curve::new(self.clock.clone()) {
                    Ok(curve) => curves.entry(subject.to_owned()).or_insert(Arc::new(curve)).clone(),
                    Err(_) => continue,
                },
            };
            tap = tap.with_curve(curve, export);
        }
        tap
    }

    /// Removes the curves of deleted subjects: others can get their names.
    pub(crate) fn forget(&self, is_gone: impl Fn(&str) -> bool) {
        self.curves.lock().retain(|subject, _| !is_gone(subject));
    }

    fn find(&self, subject: &str) -> Option<Arc<Curve>> {
        self.curves.lock().get(subject).cloned()
    }
}
