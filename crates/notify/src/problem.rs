//! A problem as a target gets it, and the key that makes it the same problem tomorrow.

use serde::{Deserialize, Serialize};

/// How grave a problem is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; all is well.
    Info,
    /// Something needs attention.
    #[default]
    Warning,
    /// Data is not served, or is not protected.
    Critical,
}

impl Severity {
    /// The word of it in lower case.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// A problem that exists now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The same for as long as it is the same problem, however its numbers change.
    pub key: String,
    /// How grave it is now.
    pub severity: Severity,
    /// The object: a volume, a mirror, a target.
    pub subject: String,
    /// The problem, as a sentence.
    pub message: String,
    /// The remedy.
    pub next: String,
}

/// Units that change with the number before them.
const UNITS: [&str; 17] = [
    "B", "KiB", "MiB", "GiB", "TiB", "PiB", "us", "ms", "s", "min", "h", "d", "day", "days", "hours",
    "minutes", "%",
];

/// The part of a sentence that stays the same while the problem lasts: its first clause, without
/// numbers and their units. The cause of a failure, which follows a colon, may change at each try.
pub fn stable(message: &str) -> String {
    let clause = message.split(": ").next().unwrap_or(message);
    let mut words: Vec<String> = Vec::new();
    let mut after_number = false;
    for word in clause.split_whitespace() {
        let bare = word.trim_end_matches([',', ';', '.']);
        if after_number && UNITS.contains(&bare) {
            after_number = false;
            continue;
        }
        let is_number = bare.starts_with(|c: char| c.is_ascii_digit());
        let kept: String = match is_number {
            true => "#".to_owned(),
            false => bare.to_owned(),
        };
        after_number = is_number;
        words.push(kept);
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_causes_do_not_change_a_key() {
        let one = "the file system of its files (/srv) has 3.2 GiB free, and v may still take 9.0 GiB of it";
        let two = "the file system of its files (/srv) has 900 MiB free, and v may still take 9.1 GiB of it";
        assert_eq!(stable(one), stable(two));
        assert_eq!(
            stable("the last snapshot of schedule daily failed: no space"),
            stable("the last snapshot of schedule daily failed: busy")
        );
        assert_ne!(stable("schedule daily failed"), stable("schedule hourly failed"));
    }

    #[test]
    fn volumes_whose_names_have_digits_keep_their_keys_apart() {
        assert_ne!(stable("no mirror of db1 answers"), stable("no mirror of db2 answers"));
    }
}
