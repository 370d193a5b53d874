//! Where a bucket is, as people write it: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`,
//! `azure://ACCOUNT/CONTAINER/PREFIX`, `file:///DIR`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Longest prefix in bytes: with the longest name it stays below 1,024.
const PREFIX_BYTES_MAX: usize = 480;

/// Which protocol a remote store speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Service {
    /// S3, of any vendor.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage, in this account.
    Azure(String),
}

/// Where a bucket is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A directory of this machine.
    Directory(PathBuf),
    /// A bucket of a service, and a prefix in it: empty, or segments without a `/` at the end.
    Remote {
        /// The service.
        service: Service,
        /// The bucket or container.
        bucket: String,
        /// The beginning of the names of objects.
        prefix: String,
    },
}

/// The text names no place for a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPlace {
    /// No known scheme.
    #[error(
        "a bucket is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, azure://ACCOUNT/CONTAINER/PREFIX or file:///DIR"
    )]
    Scheme,
    /// A directory that is not absolute.
    #[error("file:// needs an absolute directory: file:///DIR")]
    Relative,
    /// Not a name of a bucket.
    #[error("a bucket name has 3 to 63 letters, digits, `.`, `_` and `-`")]
    Bucket,
    /// Not a prefix.
    #[error(
        "a prefix has segments of letters, digits, `.`, `_`, `=` and `-`, separated by `/`; none is empty or begins with a dot"
    )]
    Prefix,
}

fn is_bucket(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (3..=63).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(allowed)
}

fn is_prefix(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'=' | b'-');
    let is_segment = |text: &str| !text.is_empty() && !text.starts_with('.') && text.bytes().all(allowed);
    text.is_empty() || (text.len() <= PREFIX_BYTES_MAX && text.split('/').all(is_segment))
}

impl FromStr for Place {
    type Err = InvalidPlace;

    fn from_str(text: &str) -> Result<Self, InvalidPlace> {
        let (scheme, rest) = text.split_once("://").ok_or(InvalidPlace::Scheme)?;
        if scheme == "file" {
            let path = PathBuf::from(rest);
            return if path.is_absolute() { Ok(Place::Directory(path)) } else { Err(InvalidPlace::Relative) };
        }
        let (service, rest) = match scheme {
            "s3" => (Service::S3, rest),
            "gs" => (Service::Google, rest),
            "azure" => {
                let (account, rest) = rest.split_once('/').ok_or(InvalidPlace::Bucket)?;
                if !is_bucket(account) {
                    return Err(InvalidPlace::Bucket);
                }
                (Service::Azure(account.to_owned()), rest)
            }
            _ => return Err(InvalidPlace::Scheme),
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !is_bucket(bucket) {
            return Err(InvalidPlace::Bucket);
        }
        if !is_prefix(prefix) {
            return Err(InvalidPlace::Prefix);
        }
        Ok(Place::Remote { service, bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Directory(path) => write!(f, "file://{}", path.display()),
            Place::Remote { service, bucket, prefix } => {
                match service {
                    Service::S3 => write!(f, "s3://{bucket}")?,
                    Service::Google => write!(f, "gs://{bucket}")?,
                    Service::Azure(account) => write!(f, "azure://{account}/{bucket}")?,
                }
                if prefix.is_empty() { Ok(()) } else { write!(f, "/{prefix}") }
            }
        }
    }
}
