//! A keeper decides before a destination replaces its image: the image may belong together with
//! those of other mirrors.

use std::sync::Arc;

use cairn_format::SnapshotEntry;

/// Manages the images that a destination shows in addition to its newest one.
pub trait Keeper: Send + Sync {
    /// Whether an image with these snapshots may replace the one that is here. It has arrived and
    /// is committed next, or fails; [`Keeper::settled`] follows in any case.
    ///
    /// # Errors
    /// With the snapshots that the image lacks: nothing is changed then, and the next update
    /// retries with the arrivals.
    fn admits(&self, snapshots: &[SnapshotEntry]) -> Result<(), Withheld>;

    /// A transfer has ended, whatever the outcome.
    fn settled(&self);
}

/// Snapshots missing from an image that have to stay at the destination for now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Withheld {
    /// The volumes that show it together.
    pub group: String,
    /// The snapshot.
    pub snapshot: String,
}

/// Notifies a keeper of the end of a transfer, however it ends.
pub(crate) struct Settles(pub(crate) Option<Arc<dyn Keeper>>);

impl Drop for Settles {
    fn drop(&mut self) {
        if let Some(keeper) = &self.0 {
            keeper.settled();
        }
    }
}
