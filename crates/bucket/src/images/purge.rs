//! Deletes all images of a volume.
//!
//! Claims stay, so that an owner that was fenced before stays fenced. Bases go first, the oldest
//! first: until the newest base is deleted the newest image is whole, and then there is none. An
//! interrupted purge is repeated.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::error::ImagesError;
use super::names::{self, Folder};
use super::owner::Owner;
use crate::name::Name;
use crate::store::list_all;

/// Objects that are deleted between two looks at the next epoch.
const BATCH: usize = 256;

impl Owner {
    /// Deletes the images, and returns the number of deleted objects. `told` receives how many are
    /// deleted so far, and of how many. After an error the volume must be claimed again.
    ///
    /// # Errors
    /// [`ImagesError::Fenced`]: the images are those of another server. The store failed.
    pub fn purge(
        mut self,
        told: &mut dyn FnMut(u64, u64),
        cancel: &Arc<AtomicBool>,
    ) -> Result<u64, ImagesError> {
        self.settle(cancel)?;
        let folders =
            [Folder::Base, Folder::Root, Folder::Checkpoint, Folder::List, Folder::Progress, Folder::Region];
        let mut all: Vec<Name> = Vec::new();
        for folder in folders {
            let prefix = names::prefix(self.inner.volume, folder)?;
            let listed = list_all(&*self.inner.store, &prefix, cancel)?;
            let listed = listed.into_iter().map(|listed| listed.name);
            match folder {
                // Their names count down. A late list may lack the newest one.
                Folder::Base => {
                    let own = names::base(self.inner.volume, self.epoch)?;
                    all.extend(listed.rev().filter(|name| *name != own));
                    all.push(own);
                }
                _ => all.extend(listed),
            }
        }
        let (mut gone, total) = (0, all.len() as u64);
        told(gone, total);
        for some in all.chunks(BATCH) {
            self.check(cancel)?;
            for name in some {
                self.inner.store.delete(name, cancel)?;
                gone += 1;
            }
            told(gone, total);
        }
        Ok(gone)
    }
}
