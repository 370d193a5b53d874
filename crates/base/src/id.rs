//! Newtypes for the numbers that name things. Two bare `u64` in a row are a mistake waiting.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number!(
    /// Volume block number: the place of a 4 KiB block in a volume's block space, from 0. The same
    /// number holds the same content on a source and on its mirror. Vbn 0 is never allocated, so
    /// that a pointer of all zeroes is a hole.
    Vbn,
    "vbn:"
);
number!(
    /// Logical block address: the number of a 4 KiB block in a file (a LUN is a file), from 0.
    Lba,
    "lba:"
);
number!(
    /// The number of a consistency point; it counts up by one with each. 0 is before the first.
    Generation,
    "gen:"
);
number!(
    /// A file of a volume; never reused for another file. 0 means none.
    FileId,
    "file:"
);
number!(
    /// A snapshot of a volume; never reused for another snapshot. 0 means none.
    SnapshotId,
    "snap:"
);

/// Names a volume for ever; made at random by format, kept by its mirrors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VolumeId(pub [u8; 16]);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume:{self}")
    }
}

/// The text is not 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a volume id is 32 hexadecimal digits")]
pub struct InvalidVolumeId;

impl std::str::FromStr for VolumeId {
    type Err = InvalidVolumeId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidVolumeId);
        }
        let mut id = [0; 16];
        for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| InvalidVolumeId)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| InvalidVolumeId)?;
        }
        Ok(Self(id))
    }
}

/// Names an intent log that lives on a device of its own; made at random whenever a volume's log
/// moves to a device, so that a log that the volume has left is never taken for the present one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogId(pub [u8; 16]);

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log:{self}")
    }
}

/// Names a history store; made at random when a device is adopted, so that remains of an earlier
/// history are never taken for the present one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HistoryId(pub [u8; 16]);

impl fmt::Display for HistoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for HistoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "history:{self}")
    }
}
