//! Names of objects, and the prefixes that select them.
//!
//! A name is valid in every store and on every file system, so that a bucket can be copied from one
//! to another. A caller never uses a name and another name below it: `a` and `a/b` exclude each
//! other, as a directory cannot hold both.

use std::fmt;
use std::str::FromStr;

/// Longest name in bytes. S3 allows 1,024 with the prefix of the bucket in front.
pub const NAME_BYTES_MAX: usize = 512;
/// Longest segment in bytes. File systems allow 255.
pub const SEGMENT_BYTES_MAX: usize = 200;

/// The name of an object, relative to the prefix that the store was opened with.
///
/// Segments of `a-z`, `0-9`, `.`, `_` and `-`, separated by `/`. No segment is empty or begins with
/// a dot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// The text is not a name of an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "an object name has segments of a-z, 0-9, `.`, `_` and `-`, separated by `/`; no segment is empty or begins with a dot"
)]
pub struct InvalidName;

fn is_segment(segment: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-');
    !segment.is_empty()
        && segment.len() <= SEGMENT_BYTES_MAX
        && !segment.starts_with('.')
        && segment.bytes().all(allowed)
}

impl Name {
    /// Checks the text.
    ///
    /// # Errors
    /// The text violates the rules of [`Name`].
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
        let text = text.into();
        let valid = text.len() <= NAME_BYTES_MAX && text.split('/').all(is_segment);
        if valid { Ok(Self(text)) } else { Err(InvalidName) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name:{}", self.0)
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

/// Selects every object whose name begins with this prefix: empty, or whole segments that end with
/// `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Prefix(String);

impl Prefix {
    /// Selects every object.
    pub fn all() -> Self {
        Self::default()
    }

    /// Checks the text.
    ///
    /// # Errors
    /// It is neither empty nor a name followed by `/`.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
        let text = text.into();
        let valid = text.is_empty()
            || text
                .strip_suffix('/')
                .is_some_and(|name| name.len() < NAME_BYTES_MAX && name.split('/').all(is_segment));
        if valid { Ok(Self(text)) } else { Err(InvalidName) }
    }

    /// The prefix as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it selects `name`.
    pub fn has(&self, name: &Name) -> bool {
        name.0.starts_with(&self.0)
    }

    /// The name of `rest` below this prefix.
    ///
    /// # Errors
    /// The two together are not a valid name.
    pub fn name(&self, rest: &str) -> Result<Name, InvalidName> {
        Name::new(format!("{}{rest}", self.0))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
