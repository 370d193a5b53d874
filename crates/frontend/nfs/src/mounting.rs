//! MOUNT: the handle of an exported directory, or of a directory below one.

use std::sync::Arc;

use cairn_proto_nfs::{Exported, MountCall, MountReply, MountStatus, Mounted, Status};

use crate::exports::Export;
use crate::node::Request;

/// AUTH_SYS, the one kind of credential that names a user.
const FLAVORS: [u32; 1] = [1];

impl Request<'_> {
    /// Executes a call.
    pub(crate) fn mount(&self, call: &MountCall<'_>) -> MountReply {
        match call {
            MountCall::Null | MountCall::Unmount(_) | MountCall::UnmountAll => MountReply::Nothing,
            MountCall::Dump => MountReply::Dump,
            MountCall::Mount(path) => MountReply::Mount(self.mounted(path)),
            MountCall::Export => MountReply::Export(self.list()),
        }
    }

    /// The exports that the client may use: others do not concern it.
    fn list(&self) -> Vec<Exported> {
        let all = self.exports.all();
        let mine = all.iter().filter(|export| export.admits(self.client));
        let exported = |export: &Arc<dyn Export>| Exported {
            path: export.path().as_bytes().to_vec(),
            clients: export.networks().into_iter().map(String::into_bytes).collect(),
        };
        mine.map(exported).collect()
    }

    fn mounted(&self, path: &[u8]) -> Result<Mounted, MountStatus> {
        let wanted: Vec<&[u8]> = parts(path).collect();
        if wanted.iter().any(|part| matches!(*part, b"." | b"..")) {
            return Err(MountStatus::Invalid);
        }
        let all = self.exports.all();
        let depth = |export: &&Arc<dyn Export>| parts(export.path().as_bytes()).count();
        let holds = |export: &&Arc<dyn Export>| {
            let mut own = parts(export.path().as_bytes());
            own.by_ref().zip(&wanted).all(|(own, wanted)| own == *wanted) && depth(export) <= wanted.len()
        };
        // Of an export in another one, the inner one has the rules.
        let Some(export) = all.iter().filter(holds).max_by_key(depth) else {
            return Err(MountStatus::NoEntry);
        };
        let mut node = self.root_of(export).map_err(mount_status)?;
        for part in wanted.iter().skip(depth(&export)) {
            node = node.step(part).map_err(mount_status)?;
        }
        node.directory().map_err(mount_status)?;
        tracing::info!(client = %self.client, export = export.name(), "an NFS client mounts");
        Ok(Mounted { directory: node.handle(), flavors: FLAVORS.to_vec() })
    }
}

/// The names of a path.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

fn mount_status(status: Status) -> MountStatus {
    match status {
        Status::Access | Status::Perm => MountStatus::Access,
        Status::NoEntry | Status::Stale => MountStatus::NoEntry,
        Status::NotDirectory => MountStatus::NotDirectory,
        Status::Invalid => MountStatus::Invalid,
        Status::NameTooLong => MountStatus::NameTooLong,
        Status::Io => MountStatus::Io,
        _ => MountStatus::ServerFault,
    }
}
