//! Errors of trees as NFS numbers them (RFC 1813, section 2.6).

use cairn_files::TreeError;
use cairn_proto_nfs::Status;
use cairn_volume::VolumeError;

/// The status for a failed operation on a name.
pub(crate) fn status(error: &TreeError) -> Status {
    match error {
        TreeError::NotFound => Status::NoEntry,
        TreeError::Exists => Status::Exists,
        TreeError::NotDirectory => Status::NotDirectory,
        TreeError::IsDirectory => Status::IsDirectory,
        TreeError::NotEmpty => Status::NotEmpty,
        TreeError::NameTooLong => Status::NameTooLong,
        TreeError::Invalid(_) | TreeError::NoData | TreeError::AttributeName => Status::Invalid,
        TreeError::NotPermitted => Status::Perm,
        TreeError::TooLarge => Status::TooLarge,
        TreeError::TooManyLinks => Status::TooManyLinks,
        TreeError::NoSpace | TreeError::AttributeTooLarge => Status::NoSpace,
        TreeError::Quota => Status::Quota,
        TreeError::CrossesQuota => Status::CrossDevice,
        TreeError::NoAttribute | TreeError::AttributeNamespace | TreeError::Unsupported => {
            Status::NotSupported
        }
        TreeError::ReadOnly | TreeError::Volume(VolumeError::Latched(_) | VolumeError::InodesLost(_)) => {
            Status::ReadOnly
        }
        // The volume was rolled back a moment ago, or is about to be open: the client tries again.
        TreeError::Stale | TreeError::NoTree | TreeError::Volume(VolumeError::Closed) => Status::Jukebox,
        TreeError::Damaged(_) | TreeError::Volume(_) => {
            tracing::error!(%error, "a request of an NFS client failed");
            Status::Io
        }
    }
}

/// The status for a failed operation on the file of a handle.
pub(crate) fn status_of_file(error: &TreeError) -> Status {
    match error {
        TreeError::NotFound => Status::Stale,
        other => status(other),
    }
}
