//! Errors of files, with Linux's number for each.

use cairn_volume::VolumeError;

/// Why an operation on a tree was refused or failed. Nothing of it was done then.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TreeError {
    /// There is no such name, or the file is gone.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already.
    #[error("the name exists already")]
    Exists,
    /// A part of the path is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// A directory where there may be none.
    #[error("this is a directory")]
    IsDirectory,
    /// A directory that is to go has names.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name of more than 255 bytes, or the target of a link of more than 4,095.
    #[error("the name is too long: 255 bytes are the most")]
    NameTooLong,
    /// It makes no sense; which rule it breaks.
    #[error("{0}")]
    Invalid(&'static str),
    /// No kind of file for which that can be done.
    #[error("that is not permitted for this kind of file")]
    NotPermitted,
    /// Past the largest size of a file.
    #[error("a file has 16 TiB at most")]
    TooLarge,
    /// Another name would be one too many.
    #[error("a file has 65,000 names at most")]
    TooManyLinks,
    /// No room in the volume, or for more extended attributes of this file.
    #[error("the volume is full: delete files or snapshots, or grow it with `cairn volume grow`")]
    NoSpace,
    /// No room in the quota tree.
    #[error("the quota of this directory is used up")]
    Quota,
    /// A name in another quota tree than the file's.
    #[error("a file does not move into or out of a quota tree: copy it")]
    CrossesQuota,
    /// No data, or no hole, from there on.
    #[error("no data beyond this offset")]
    NoData,
    /// No such extended attribute.
    #[error("the file has no such attribute")]
    NoAttribute,
    /// An extended attribute of more than 64 KiB.
    #[error("the value of an extended attribute has 65,536 bytes at most")]
    AttributeTooLarge,
    /// The name of an extended attribute has no byte, or more than 255.
    #[error("the name of an extended attribute has 1 to 255 bytes")]
    AttributeName,
    /// An extended attribute outside of the namespaces that file systems of Linux have.
    #[error("extended attributes are named user.NAME, trusted.NAME or security.NAME, or are access lists")]
    AttributeNamespace,
    /// This tree does not support it.
    #[error("this is not supported")]
    Unsupported,
    /// It is an image's, or the volume is a mirror's destination.
    #[error("the tree is read-only")]
    ReadOnly,
    /// The volume was rolled back, or a mirror's image has replaced its content.
    #[error("the volume was rolled back since the tree was opened: open it again")]
    Stale,
    /// No file was ever stored in this state of the volume.
    #[error("this volume has no files; `cairn mount` creates the first directory")]
    NoTree,
    /// A block that is needed can't be read, or does not fit.
    #[error("the file or its directory is damaged: {0}")]
    Damaged(VolumeError),
    /// The volume below.
    #[error(transparent)]
    Volume(VolumeError),
}

impl From<VolumeError> for TreeError {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::NoSpace | VolumeError::NoRoomBelow | VolumeError::TableFull => TreeError::NoSpace,
            VolumeError::NoSuchFile(_) => TreeError::NotFound,
            VolumeError::WrongRole(_) => TreeError::ReadOnly,
            VolumeError::OtherHead => TreeError::Stale,
            VolumeError::Label(_) => TreeError::Damaged(error),
            error if error.is_of_a_block() => TreeError::Damaged(error),
            _ => TreeError::Volume(error),
        }
    }
}

impl TreeError {
    /// Linux's number (`errno`), for x86 and ARM alike.
    pub fn errno(&self) -> i32 {
        match self {
            TreeError::NotPermitted => 1,
            TreeError::NotFound | TreeError::NoTree => 2,
            TreeError::Damaged(_) => 5,
            TreeError::NoData => 6,
            TreeError::AttributeTooLarge => 7,
            TreeError::Exists => 17,
            TreeError::CrossesQuota => 18,
            TreeError::NotDirectory => 20,
            TreeError::IsDirectory => 21,
            TreeError::Invalid(_) => 22,
            TreeError::TooLarge => 27,
            TreeError::NoSpace => 28,
            TreeError::ReadOnly => 30,
            TreeError::AttributeName => 34,
            TreeError::TooManyLinks => 31,
            TreeError::NameTooLong => 36,
            TreeError::NotEmpty => 39,
            TreeError::NoAttribute => 61,
            TreeError::Unsupported | TreeError::AttributeNamespace => 95,
            TreeError::Stale => 116,
            TreeError::Quota => 122,
            TreeError::Volume(VolumeError::Latched(_) | VolumeError::InodesLost(_)) => 30,
            TreeError::Volume(_) => 5,
        }
    }
}
