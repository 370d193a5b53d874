//! Sessions of clients: which there are, and their end. The methods of the server for them.

use cairn_frontend_nbd::SessionInfo;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::exports::error::ExportsError;
use crate::names::ExportName;

impl Server {
    pub(crate) fn sessions_of(&self, concerned: impl Fn(&ExportName<'_>) -> bool) -> Vec<String> {
        let name = |session: SessionInfo| session.export;
        let mine = |name: &String| ExportName::parse(name).is_some_and(|parsed| concerned(&parsed));
        let nbd = self.nbd.sessions().into_iter().map(name);
        let iscsi = self.iscsi.sessions().into_iter().filter_map(|session| session.export);
        nbd.chain(iscsi).filter(mine).collect()
    }

    /// How many sessions an export has.
    pub(crate) fn sessions_named(&self, name: &str) -> usize {
        let nbd = self.nbd.sessions().into_iter().filter(|session| session.export == name).count();
        let initiators = self.iscsi.sessions();
        nbd + initiators.iter().filter(|session| session.export.as_deref() == Some(name)).count()
    }

    /// Ends the sessions of an export; the count of them. Nothing of them can happen any more when
    /// it returns.
    ///
    /// # Errors
    /// [`ExportsError::Unfinished`]: the caller changes nothing.
    pub(crate) fn close_named(&self, name: &str) -> Result<usize, ServerError> {
        let (nbd, iscsi) = (self.nbd.close_export(name), self.iscsi.close_export(name));
        Ok(nbd? + iscsi?)
    }

    /// The same for several; all are closed, even if one fails.
    pub(super) fn close_all(&self, names: &[String]) -> Result<usize, ServerError> {
        let outcomes: Vec<_> = names.iter().map(|name| self.close_named(name)).collect();
        outcomes.into_iter().sum()
    }

    /// True when a client has one of these exports open.
    pub(crate) fn has_sessions(&self, concerned: impl Fn(&ExportName<'_>) -> bool) -> bool {
        !self.sessions_of(concerned).is_empty()
    }

    /// Refuses a change that would remove a disk in use by clients.
    pub(crate) fn refuse_if_in_use(
        &self,
        name: &str,
        concerned: impl Fn(&ExportName<'_>) -> bool,
    ) -> Result<(), ServerError> {
        match self.sessions_of(concerned).len() {
            0 => Ok(()),
            sessions => Err(ServerError::Exports(ExportsError::InUse { name: name.to_owned(), sessions })),
        }
    }

    /// Ends the sessions of some exports; the count of them. Nothing of them can happen any more
    /// when it returns.
    ///
    /// # Errors
    /// [`ExportsError::Unfinished`]: the caller changes nothing.
    pub(crate) fn close_sessions(
        &self,
        concerned: impl Fn(&ExportName<'_>) -> bool,
    ) -> Result<usize, ServerError> {
        let mut names = self.sessions_of(concerned);
        names.sort_unstable();
        names.dedup();
        self.close_all(&names)
    }

    /// The same for LUNs that accept no more writes in any case: those of a volume that was closed,
    /// reverted, or has become a destination.
    pub(crate) fn end_sessions(&self, concerned: impl Fn(&ExportName<'_>) -> bool) -> usize {
        self.close_sessions(concerned).unwrap_or_else(|unfinished| {
            tracing::warn!(%unfinished, "closed sessions still wait for their disk");
            0
        })
    }
}
