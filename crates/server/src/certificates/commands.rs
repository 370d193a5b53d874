//! Commands on certificates: the methods of the server for them.

use cairn_api as api;

use crate::daemon::server::Server;
use crate::error::ServerError;

impl Server {
    /// The certificates of this server.
    pub(crate) fn show_tls(&self) -> api::Tls {
        self.certificates.show()
    }

    /// Issues a certificate of an NBD client.
    pub(crate) fn issue_certificate(
        &self,
        request: &api::IssueCertificate,
    ) -> Result<api::IssuedCertificate, ServerError> {
        self.certificates.issue_client(request)
    }
}
