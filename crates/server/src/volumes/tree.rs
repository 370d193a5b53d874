//! The files of a volume: its one live tree, shared by all that need it, and the mounts of it.

use std::sync::Arc;
use std::time::Duration;

use cairn_files::{Owner, Tree};
use cairn_frontend_fuse::Mount;
use cairn_volume::Image;
use rustix::process::{getegid, geteuid};

use crate::error::ServerError;
use crate::volumes::open::OpenVolume;
use crate::volumes::snapshots::find_snapshot;
use crate::work::background;

/// How often is looked whether a mount has let go of a tree, and how long is waited in between.
const LET_GO_ROUNDS: u32 = 100;
const LET_GO_ROUND: Duration = Duration::from_millis(10);

impl OpenVolume {
    /// What a volume is busy with whose mount was taken away while programs work in it.
    pub(crate) const STILL_USED: &str = "programs still work in a mount of it that was taken away";

    /// The live tree, which is made if there is none yet, for the user of this server: without root
    /// nobody could write to it otherwise. It closes when nobody has it any more.
    pub(crate) fn live_tree(&self) -> Result<Arc<Tree>, ServerError> {
        let mut tree = self.tree.lock();
        // One that a rollback has overtaken is not handed out again.
        if let Some(tree) = tree.upgrade().filter(|tree| tree.is_current()) {
            return Ok(tree);
        }
        let owner = Owner { uid: geteuid().as_raw(), gid: getegid().as_raw() };
        let opened = Tree::open_for(self.volume.clone(), owner).map(Arc::new);
        let opened = opened.map_err(ServerError::tree(&self.name))?;
        *tree = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// The live tree, if somebody has it.
    pub(crate) fn live_tree_in_use(&self) -> Option<Arc<Tree>> {
        self.tree.lock().upgrade().filter(|tree| tree.is_current())
    }

    /// Makes a snapshot with the hooks of the volume around it. Of mounted files it has everything
    /// that was written before: the kernel is asked for what it still holds.
    pub(crate) fn snapshot_with<T>(&self, make: impl FnOnce() -> T) -> Result<T, ServerError> {
        // A program that is quiesced does not wait for room in a history.
        self.refuse_without_room()?;
        // A hook inherits the priority of its thread, and the program that it has stopped waits for
        // all of this.
        background::ahead(|| {
            self.hooks.around(&self.name, || {
                self.collect();
                make()
            })
        })
    }

    /// Notes a mount of the live tree.
    pub(crate) fn is_mounted_by(&self, mount: &Arc<Mount>) {
        let mut mounts = self.mounts.lock();
        mounts.retain(|known| known.strong_count() > 0);
        mounts.push(Arc::downgrade(mount));
    }

    /// True when nobody has the live tree, after a moment for those who are letting it go; `let_go`
    /// does so with what the caller has of those that have ended. Programs may work in a mount that
    /// was taken away from under them.
    pub(crate) fn has_no_live_tree(&self, let_go: impl Fn()) -> bool {
        for _ in 0..LET_GO_ROUNDS {
            let_go();
            if self.tree.lock().strong_count() == 0 {
                return true;
            }
            std::thread::sleep(LET_GO_ROUND);
        }
        false
    }

    /// A snapshot, or (`None`) the volume, which takes writes, with everything that was written to
    /// it before.
    pub(crate) fn image_of(&self, snapshot: Option<&str>) -> Result<Image, ServerError> {
        let failed = ServerError::volume(&self.name);
        let id = snapshot.map(|name| find_snapshot(self, name)).transpose()?.map(|found| found.id);
        if id.is_none() {
            self.refuse_without_room()?;
            self.collect();
            self.volume.consistency_point().map_err(&failed)?;
        }
        self.volume.image(id).map_err(&failed)
    }

    /// Asks the kernel for what it still holds of mounted files.
    pub(crate) fn collect(&self) {
        let mounts: Vec<Arc<Mount>> = self.mounts.lock().iter().filter_map(|mount| mount.upgrade()).collect();
        for mount in mounts {
            if let Err(error) = mount.collect() {
                let point = mount.point().display();
                tracing::warn!(volume = self.name, %point, %error, "what programs wrote last is not in a snapshot");
            }
        }
    }
}
