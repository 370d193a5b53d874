//! Commands on image dumps that were cut: the methods of the server for them.

use cairn_api::{self as api, ResumeError};

use crate::daemon::server::Server;
use crate::dumps::error::DumpsError;
use crate::error::ServerError;

impl Server {
    /// The image dump of a volume that can be resumed.
    pub(crate) fn unfinished_dump(&self, volume: &str) -> Result<Option<api::UnfinishedDump>, ServerError> {
        let open = self.volumes.get(volume)?;
        let document = self.making(&open).document()?;
        Ok(document.unfinished.map(|unfinished| unfinished.show(volume)))
    }

    /// Gives up an unfinished dump. Its files are its owner's.
    pub(crate) fn give_up_dump(&self, volume: &str) -> Result<(), ServerError> {
        let open = self.volumes.get(volume)?;
        let _turn = self.dumping.take(volume)?;
        let making = self.making(&open);
        let document = making.document()?;
        let Some(unfinished) = document.unfinished.clone() else {
            return Err(ServerError::Dumps(DumpsError::Resume(ResumeError::NoUnfinishedDump {
                volume: volume.to_owned(),
            })));
        };
        making.give_up(document)?;
        if let Err(error) = self.abandon_in_bucket(open.volume.id(), &unfinished) {
            tracing::warn!(volume, %error, "objects of an abandoned image dump stay in the bucket until a sweep");
        }
        Ok(())
    }

    /// The files of a dump have their names.
    pub(crate) fn confirm_dump(&self, volume: &str, id: &str) -> Result<(), ServerError> {
        let open = self.volumes.get(volume)?;
        let _turn = self.dumping.take(volume)?;
        self.making(&open).confirm(id)
    }
}
