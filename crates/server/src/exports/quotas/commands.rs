//! Commands on quotas: the methods of the server for them.

use std::sync::Arc;

use cairn_api as api;
use cairn_files::{Quota, QuotaLimits, Tree, TreeError, quoted_path};

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::exports::quotas::{asked_path, show};
use crate::groups::Showing;
use crate::volumes::open::OpenVolume;

impl Server {
    /// The quotas of a volume's files; for a mirror those of the visible image.
    pub(crate) fn list_quotas(&self, volume: &str) -> Result<Vec<api::Quota>, ServerError> {
        let open = self.volumes.get(volume)?;
        let failed = ServerError::tree(volume);
        let Some(tree) = self.tree_to_look_at(&open)? else { return Ok(Vec::new()) };
        let quotas = tree.quotas().map_err(&failed)?;
        quotas.iter().map(|quota| show(&tree, quota).map_err(&failed)).collect()
    }

    /// Gives a directory a quota, or changes it; durable when it returns. None if it has no quota
    /// any more.
    pub(crate) fn set_quota(
        &self,
        volume: &str,
        request: &api::SetQuota,
    ) -> Result<Option<api::Quota>, ServerError> {
        let open = self.writable(volume)?;
        open.refuse_without_room()?;
        let tree = open.live_tree()?;
        let path = asked_path(&request.path, request.path_bytes.as_deref())?;
        let set = || -> Result<Option<api::Quota>, TreeError> {
            let directory = tree.resolve(&path)?.file;
            let top = |quota: &Quota| quota.directory == directory;
            let before =
                tree.quota(directory)?.filter(top).map_or(QuotaLimits::default(), |quota| quota.limits);
            let limit = |given: Option<u64>, before: Option<u64>| match given {
                Some(limit) => Some(limit).filter(|limit| *limit > 0),
                None => before,
            };
            let limits = QuotaLimits {
                bytes: limit(request.bytes, before.bytes),
                files: limit(request.files, before.files),
            };
            tree.set_quota(directory, limits)?;
            tree.sync(directory)?;
            tree.quota(directory)?.filter(top).map(|quota| show(&tree, &quota)).transpose()
        };
        let path = quoted_path(&path);
        let quota = set().map_err(ServerError::tree(&format!("{volume}:/{path}")))?;
        tracing::info!(volume, path, ?quota, "changed a quota");
        Ok(quota)
    }

    /// The live tree, if it is open; otherwise the tree on the devices, so that reading changes
    /// nothing. None if no file was ever stored.
    pub(crate) fn tree_to_look_at(&self, open: &Arc<OpenVolume>) -> Result<Option<Arc<Tree>>, ServerError> {
        let failed = ServerError::volume(&open.name);
        let image = match self.groups.showing(open)? {
            Showing::Image(image) => image,
            Showing::Newest => open.volume.image(None).map_err(failed)?,
            Showing::Live => {
                if let Some(tree) = open.live_tree_in_use() {
                    return Ok(Some(tree));
                }
                if open.volume.status().dirty > 0 {
                    open.refuse_without_room()?;
                    open.volume.consistency_point().map_err(&failed)?;
                }
                open.volume.image(None).map_err(failed)?
            }
        };
        match Tree::of_image(image) {
            Err(TreeError::NoTree) => Ok(None),
            tree => Ok(Some(Arc::new(tree.map_err(ServerError::tree(&open.name))?))),
        }
    }
}
