//! Whether a command would be refused: a dry run reports the same error as the real run.

use cairn_api::DryRun;

use crate::daemon::server::Server;
use crate::error::ServerError;

impl Server {
    /// Refuses a command that the real run would refuse at once, with the same error.
    pub(crate) fn dry_run(&self, asked: &DryRun) -> Result<(), ServerError> {
        match asked {
            DryRun::DeleteVolume { volume } => self.check_delete_volume(volume),
            DryRun::DeleteSnapshot { volume, snapshot } => {
                self.check_delete_snapshot(volume, snapshot).map(drop)
            }
            DryRun::Rollback { volume, snapshot } => self.check_rollback(volume, snapshot),
            DryRun::DeleteMirror { mirror } => self.check_delete_mirror(mirror),
            DryRun::ReverseMirror { mirror } => self.check_reverse(mirror),
            DryRun::Resync { mirror } => self.check_follow(mirror, false),
            DryRun::Failback { mirror } => self.check_follow(mirror, true),
            DryRun::DeleteLun { volume, lun } => self.check_delete_lun(volume, lun).map(drop),
            DryRun::DeleteClone { clone } => self.check_delete_clone(clone),
            DryRun::DisableHistory { volume } => self.check_disable_history(volume).map(drop),
            DryRun::ReverseGroup { group } => self.check_reverse_group(group),
        }
    }
}
