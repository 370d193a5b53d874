//! Errors of certificates for clients.
//!
//! Each has its kind and the step that comes next.

use std::path::PathBuf;

use cairn_api::ErrorKind;

/// An error of certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificatesError {
    /// A file of the owner is not what TLS needs.
    #[error("{} cannot be used for TLS: {fault}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The fault.
        fault: String,
    },
}

impl CertificatesError {
    /// The kind, for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            CertificatesError::Invalid { .. } => ErrorKind::Usage,
        }
    }

    /// The next step for the user, in one sentence.
    pub(crate) fn next(&self) -> String {
        match self {
            CertificatesError::Invalid { .. } => {
                "name a certificate in PEM with --tls-cert, the server's own first, and its key with --tls-key"
                    .to_owned()
            }
        }
    }
}
