//! Where an origin or a history is: a file or disk, or a LUN of a volume of this server.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::ServerError;

/// The prefix of a LUN's place.
const LUN: &str = "lun:";

/// Where a device is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub(crate) enum Place {
    /// Absolute.
    File(PathBuf),
    Lun {
        volume: String,
        lun: String,
    },
}

impl Place {
    /// Whether a file of that name exists. A LUN may exist.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Place::File(path) => path.symlink_metadata().is_ok(),
            Place::Lun { .. } => true,
        }
    }

    /// Whether a file can be made there: there is none, or one without a length.
    pub(crate) fn is_free(&self) -> bool {
        match self {
            Place::File(path) => {
                path.symlink_metadata().map_or(true, |found| found.is_file() && found.len() == 0)
            }
            Place::Lun { .. } => false,
        }
    }

    /// Reads `lun:VOLUME/LUN` or an absolute path.
    pub(crate) fn parse(text: &str) -> Result<Self, ServerError> {
        let place = Self::from(text.to_owned());
        match &place {
            Place::File(path) if !path.is_absolute() => {
                let fault = "the path is neither absolute nor lun:VOLUME/LUN";
                Err(ServerError::Invalid { fault, next: "give a path that begins with `/`" })
            }
            _ => Ok(place),
        }
    }

    /// `VOLUME/LUN` when it is one.
    pub(crate) fn lun_name(&self) -> Option<String> {
        match self {
            Place::File(_) => None,
            Place::Lun { volume, lun } => Some(format!("{volume}/{lun}")),
        }
    }

    pub(crate) fn is_in(&self, volume: &str) -> bool {
        matches!(self, Place::Lun { volume: mine, .. } if mine == volume)
    }
}

impl From<String> for Place {
    fn from(text: String) -> Self {
        match text.strip_prefix(LUN).and_then(|name| name.split_once('/')) {
            Some((volume, lun)) => Place::Lun { volume: volume.to_owned(), lun: lun.to_owned() },
            None => Place::File(text.into()),
        }
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => path.display().fmt(f),
            Place::Lun { volume, lun } => write!(f, "{LUN}{volume}/{lun}"),
        }
    }
}
