//! A text that no log, list or error shows. Only a state file has it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A secret. It serialises as it is, for a file that only its owner reads; it has no `Display`, and
/// its `Debug` hides it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes a text, without the end of its line.
    pub fn new(text: &str) -> Self {
        Self(text.trim_end_matches(['\n', '\r']).to_owned())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Replaces it in a text that others will read.
    pub(crate) fn hide_in(&self, text: &str) -> String {
        // A shorter one would hide common words.
        if self.0.len() < 4 {
            return text.to_owned();
        }
        text.replace(&self.0, "***")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
