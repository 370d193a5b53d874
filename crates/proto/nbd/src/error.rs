//! Errors between two peers: those that a request can get, and violations that end a session.

use crate::constants::{
    NBD_EINVAL, NBD_EIO, NBD_ENOMEM, NBD_ENOSPC, NBD_ENOTSUP, NBD_EOVERFLOW, NBD_EPERM, NBD_ESHUTDOWN,
};

/// An error of a request, as the wire knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NbdError {
    /// `NBD_EPERM`
    #[error("the export is read-only")]
    NotPermitted,
    /// `NBD_EIO`
    #[error("input/output error")]
    Io,
    /// `NBD_ENOMEM`
    #[error("out of memory")]
    OutOfMemory,
    /// `NBD_EINVAL`
    #[error("invalid request")]
    Invalid,
    /// `NBD_ENOSPC`
    #[error("no space is left")]
    NoSpace,
    /// `NBD_EOVERFLOW`
    #[error("the request is too long")]
    Overflow,
    /// `NBD_ENOTSUP`
    #[error("not supported")]
    NotSupported,
    /// `NBD_ESHUTDOWN`
    #[error("the server is shutting down or the device is out of service")]
    Shutdown,
}

impl NbdError {
    /// The number on the wire.
    pub fn wire(self) -> u32 {
        match self {
            Self::NotPermitted => NBD_EPERM,
            Self::Io => NBD_EIO,
            Self::OutOfMemory => NBD_ENOMEM,
            Self::Invalid => NBD_EINVAL,
            Self::NoSpace => NBD_ENOSPC,
            Self::Overflow => NBD_EOVERFLOW,
            Self::NotSupported => NBD_ENOTSUP,
            Self::Shutdown => NBD_ESHUTDOWN,
        }
    }

    /// The error of a number; an unknown one counts as `NBD_EINVAL`, as the specification requires.
    pub fn from_wire(number: u32) -> Self {
        match number {
            NBD_EPERM => Self::NotPermitted,
            NBD_EIO => Self::Io,
            NBD_ENOMEM => Self::OutOfMemory,
            NBD_ENOSPC => Self::NoSpace,
            NBD_EOVERFLOW => Self::Overflow,
            NBD_ENOTSUP => Self::NotSupported,
            NBD_ESHUTDOWN => Self::Shutdown,
            _ => Self::Invalid,
        }
    }
}

/// The client broke the protocol in a way that leaves nothing to answer; the session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It set handshake flags that were not offered.
    #[error("the client set unknown handshake flags {flags:#x}")]
    UnknownClientFlags {
        /// All that it sent.
        flags: u32,
    },
    /// The magic of an option is wrong.
    #[error("an option starts with {found:#018x}, not with IHAVEOPT")]
    OptionMagic {
        /// The value that was found.
        found: u64,
    },
    /// The magic of a request is wrong.
    #[error("a request starts with {found:#010x}, not with the magic of a request")]
    RequestMagic {
        /// The value that was found.
        found: u32,
    },
    /// An option is too long to be skipped.
    #[error("option {option} carries {length} bytes")]
    OptionTooLong {
        /// Its number.
        option: u32,
        /// Bytes.
        length: u32,
    },
    /// It keeps negotiating.
    #[error("the client sent more than {max} options")]
    TooManyOptions {
        /// The limit.
        max: u32,
    },
    /// It did not offer fixed newstyle, so it can only name an export.
    #[error("the client is not fixed newstyle and sent option {option}")]
    NotFixedNewstyle {
        /// Its number.
        option: u32,
    },
    /// NBD_OPT_EXPORT_NAME has no reply for errors.
    #[error("NBD_OPT_EXPORT_NAME was refused")]
    ExportNameRefused,
    /// Bytes came after NBD_OPT_STARTTLS and before TLS: an attacker may be injecting them.
    #[error("the client sent plain bytes after NBD_OPT_STARTTLS")]
    PlainAfterStartTls,
    /// A payload is too long to be drained.
    #[error("a request carries a payload of {length} bytes")]
    PayloadTooLong {
        /// Bytes.
        length: u64,
    },
}
