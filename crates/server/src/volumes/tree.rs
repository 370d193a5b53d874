//! The files of a volume: its one live tree, shared by all that need it, and the mounts of it.

use std::sync::Arc;

use cairn_files::Tree;
use cairn_frontend_fuse::Mount;

use super::OpenVolume;
use crate::error::ServerError;

impl OpenVolume {
    /// The live tree, which is made if there is none yet. It closes when nobody has it any more.
    pub(crate) fn live_tree(&self) -> Result<Arc<Tree>, ServerError> {
        let mut tree = self.tree.lock();
        // One that a rollback has overtaken is not handed out again.
        if let Some(tree) = tree.upgrade().filter(|tree| tree.is_current()) {
            return Ok(tree);
        }
        let opened = Tree::open(self.volume.clone()).map(Arc::new).map_err(ServerError::tree(&self.name))?;
        *tree = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// Makes a snapshot with the hooks of the volume around it. Of mounted files it has everything that was written before: the kernel is asked for what it still holds.
    pub(crate) fn snapshot_with<T>(&self, make: impl FnOnce() -> T) -> Result<T, ServerError> {
        self.hooks.around(&self.name, || {
            self.collect();
            make()
        })
    }

    /// Notes a mount of the live tree.
    pub(crate) fn is_mounted_by(&self, mount: &Arc<Mount>) {
        let mut mounts = self.mounts.lock();
        mounts.retain(|known| known.strong_count() > 0);
        mounts.push(Arc::downgrade(mount));
    }

    fn collect(&self) {
        let mounts: Vec<Arc<Mount>> = self.mounts.lock().iter().filter_map(|mount| mount.upgrade()).collect();
        for mount in mounts {
            if let Err(error) = mount.collect() {
                let point = mount.point().display();
                tracing::warn!(volume = self.name, %point, %error, "what programs wrote last is not in a snapshot");
            }
        }
    }
}
