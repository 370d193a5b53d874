//! The files of a volume: its one live tree, shared by all users, and its mounts.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::FileId;
use cairn_files::{Owner, Tree};
use cairn_frontend_fuse::Mount;
use cairn_volume::Image;
use rustix::process::{getegid, geteuid};

use crate::error::ServerError;
use crate::volumes::open::OpenVolume;
use crate::volumes::snapshots::find_snapshot;
use crate::work::background;

/// Number of checks whether a mount has released a tree, and the pause between them.
const LET_GO_ROUNDS: u32 = 100;
const LET_GO_ROUND: Duration = Duration::from_millis(10);

impl OpenVolume {
    /// The work of a volume whose mount was removed while programs use it.
    pub(crate) const STILL_USED: &str = "programs still work in a mount of it that was taken away";

    /// The live tree, created if there is none yet, owned by the user of this server: otherwise
    /// only root could write to it. It closes with its last user.
    pub(crate) fn live_tree(&self) -> Result<Arc<Tree>, ServerError> {
        let mut tree = self.tree.lock();
        // A tree from before a rollback is not returned again.
        if let Some(tree) = tree.upgrade().filter(|tree| tree.is_current()) {
            return Ok(tree);
        }
        let owner = Owner { uid: geteuid().as_raw(), gid: getegid().as_raw() };
        let opened = Tree::open_for(self.volume.clone(), owner).map(Arc::new);
        let opened = opened.map_err(ServerError::tree(&self.name))?;
        *tree = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// The live tree, if it is in use.
    pub(crate) fn live_tree_in_use(&self) -> Option<Arc<Tree>> {
        self.tree.lock().upgrade().filter(|tree| tree.is_current())
    }

    /// Makes a snapshot with the hooks of the volume around it. It has all earlier writes to
    /// mounted files: the kernel's cache is written back first.
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

    /// True if the live tree is unused, after a moment for users that are releasing it; `let_go`
    /// drops the caller's own ended mounts. Programs may still use a mount that was removed under
    /// them.
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

    /// A snapshot, or (`None`) the writable volume with all earlier writes.
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

    /// Has the kernel look a name up again that the server has created in the live tree, or
    /// removed. The caller holds no lock of the tree.
    pub(crate) fn forget_name(&self, directory: FileId, name: &[u8]) {
        self.live_mounts().iter().for_each(|mount| mount.forget_name(directory, name));
    }

    fn live_mounts(&self) -> Vec<Arc<Mount>> {
        self.mounts.lock().iter().filter_map(|mount| mount.upgrade()).collect()
    }

    /// Makes the kernel write back its cache of mounted files.
    pub(crate) fn collect(&self) {
        for mount in self.live_mounts() {
            if let Err(error) = mount.collect() {
                let point = mount.point().display();
                tracing::warn!(volume = self.name, %point, %error, "the last writes of programs are not in a snapshot");
            }
        }
    }
}
