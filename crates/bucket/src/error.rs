//! Why a call of a store failed, and the next step for a person.
//!
//! No error holds a secret: causes are kinds, codes and numbers, never texts that a store or a
//! library made from a request.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::Timestamp;

use crate::date::utc;
use crate::name::Name;

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Open it.
    Open,
    /// Create an object.
    Put,
    /// Upload a piece of an object, or begin, finish or abort such an upload.
    PutPieces,
    /// Read an object.
    Get,
    /// Inspect an object without reading it.
    Head,
    /// List objects.
    List,
    /// Delete an object.
    Delete,
    /// Lock an object against deletion.
    Lock,
}

impl Verb {
    fn doing(self) -> &'static str {
        match self {
            Verb::Open => "open",
            Verb::Put => "create",
            Verb::PutPieces => "upload",
            Verb::Get => "read",
            Verb::Head => "look at",
            Verb::List => "list",
            Verb::Delete => "delete",
            Verb::Lock => "lock",
        }
    }

    /// The permission of S3 that a key needs for it.
    fn permission(self) -> &'static str {
        match self {
            Verb::Open | Verb::List => "s3:ListBucket and s3:ListBucketMultipartUploads",
            Verb::Put => "s3:PutObject",
            Verb::PutPieces => "s3:PutObject, s3:AbortMultipartUpload and s3:ListMultipartUploadParts",
            Verb::Get => "s3:GetObject",
            Verb::Head => "s3:GetObject and s3:GetObjectRetention",
            Verb::Delete => "s3:DeleteObject and s3:DeleteObjectVersion",
            Verb::Lock => "s3:PutObjectRetention",
        }
    }
}

/// The trouble with credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialTrouble {
    /// The named place has no credentials.
    Missing,
    /// The file or variable has them in a form that cannot be read.
    Unreadable,
    /// The store does not know them, or the secret does not match.
    Wrong,
    /// They were right until their time ended.
    Expired,
    /// The machine's role gave no credentials.
    NoRole,
}

/// The trouble with the key of an encrypted bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyTrouble {
    /// No identity in the file opens the key of the bucket.
    NotRecipient,
    /// The public key is none of the recipients.
    NoRecipient,
    /// Without this recipient no identity opens the bucket.
    LastRecipient,
}

/// Why a call failed.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// The object differs from the one that was written under this name in an encrypted bucket.
    Damaged {
        /// The kind of the damage.
        how: &'static str,
        /// The name in the store, if that is another one.
        stored: Option<Name>,
    },
    /// The object was encrypted by a newer version.
    Newer(u32),
    /// The key of an encrypted bucket.
    Key(KeyTrouble),
    /// The bucket does not exist.
    NoBucket,
    /// The credentials are missing, wrong or expired.
    Credentials(CredentialTrouble),
    /// The credentials are right and have no right to do this.
    Forbidden,
    /// The store reports that this machine's clock is wrong.
    Clock,
    /// This machine does not trust the certificate of the endpoint.
    Certificate,
    /// The bucket is in another region, or at another endpoint.
    Redirect(Option<String>),
    /// The object is in an archive class and cannot be read before it is restored.
    Archived,
    /// The store has no room for it.
    Quota,
    /// The store asks for fewer requests, perhaps for this long.
    SlowDown(Option<Duration>),
    /// The object does not exist.
    Missing,
    /// The upload was finished, aborted or removed by the store.
    NoUpload,
    /// Another client created an object of that name at the same time, and the store did not
    /// decide.
    Conflict,
    /// The object is locked until this time.
    Locked(Option<Timestamp>),
    /// The store does not do this.
    Unsupported(&'static str),
    /// The caller broke a rule of this crate.
    Rule(&'static str),
    /// The store gave an answer that makes no sense.
    Answer(&'static str),
    /// The store failed: the status of HTTP, and the code of the store where it has one.
    Server {
        /// The status.
        status: u16,
        /// The code.
        code: Option<String>,
    },
    /// No connection, or it broke.
    Unreachable(io::ErrorKind),
    /// No answer in time.
    TimedOut,
    /// The caller cancelled it.
    Cancelled,
    /// The machine: a file, a directory, a thread.
    Io(Arc<io::Error>),
}

/// A call that failed: the operation, the object, the store, and the reason.
#[derive(Debug, Clone)]
pub struct StoreError {
    /// The kind of the call.
    pub verb: Verb,
    /// The object; none for the whole store.
    pub name: Option<Name>,
    /// Where, as people write it.
    pub place: Arc<str>,
    /// Why it failed.
    pub trouble: Trouble,
}

impl StoreError {
    /// Whether a later try may succeed without an intervention.
    pub fn is_transient(&self) -> bool {
        match &self.trouble {
            Trouble::SlowDown(_) | Trouble::Conflict | Trouble::Unreachable(_) | Trouble::TimedOut => true,
            Trouble::Server { status, .. } => *status >= 500 && *status != 501,
            Trouble::Answer(_) => true,
            Trouble::Io(error) => matches!(error.kind(), io::ErrorKind::Interrupted),
            _ => false,
        }
    }

    /// Whether the store may have executed the request, or may still execute it.
    pub fn is_unclear(&self) -> bool {
        match &self.trouble {
            Trouble::Unreachable(_) | Trouble::TimedOut | Trouble::Cancelled | Trouble::Answer(_) => true,
            Trouble::Server { status, .. } => *status >= 500,
            Trouble::Io(_) => true,
            _ => false,
        }
    }

    /// The object is missing.
    pub fn is_missing(&self) -> bool {
        matches!(self.trouble, Trouble::Missing)
    }

    /// The object is in an encrypted bucket and differs from the one that was written.
    pub fn is_damaged(&self) -> bool {
        matches!(self.trouble, Trouble::Damaged { .. })
    }

    /// The caller cancelled it.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.trouble, Trouble::Cancelled)
    }

    /// The next step, in plain words.
    pub fn next(&self) -> String {
        let place = &self.place;
        match &self.trouble {
            Trouble::Damaged { .. } => {
                "restore the object from a version that the store keeps, and find out why it changed"
                    .to_owned()
            }
            Trouble::Newer(_) => "use a newer cairn".to_owned(),
            Trouble::Key(trouble) => key_next(*trouble),
            Trouble::NoBucket => format!("create the bucket of {place}, or correct its name"),
            Trouble::Credentials(trouble) => credentials_next(*trouble),
            Trouble::Forbidden => format!(
                "give the key the right to {} objects in {place} (S3: {})",
                self.verb.doing(),
                self.verb.permission()
            ),
            Trouble::Clock => {
                "set the clock of this machine, for example with `timedatectl set-ntp true`".to_owned()
            }
            Trouble::Certificate => {
                "name the file of its authority: `cairn bucket add ... --ca FILE`; or correct the endpoint".to_owned()
            }
            Trouble::Redirect(Some(region)) => {
                format!("add the bucket again with its region: `cairn bucket add NAME {place} --region {region}`")
            }
            Trouble::Redirect(None) => format!(
                "add the bucket again with its region or endpoint: `cairn bucket add NAME {place} --region REGION`"
            ),
            Trouble::Archived => {
                "restore the object from the archive at the store, and end the lifecycle rule that archives objects of this prefix".to_owned()
            }
            Trouble::Quota => format!("raise the quota of {place} at the store, or delete old images there"),
            Trouble::SlowDown(_) => {
                "wait; if it stays, ask the store to allow more requests a second".to_owned()
            }
            Trouble::Missing => format!(
                "check {place}: a lifecycle rule or another program may have deleted the object"
            ),
            Trouble::NoUpload => {
                "start the upload again; if it happens again, look for a lifecycle rule that aborts uploads".to_owned()
            }
            Trouble::Conflict => "repeat the command".to_owned(),
            Trouble::Locked(Some(until)) => format!("wait until {}, when the lock ends", utc(*until)),
            Trouble::Locked(None) => "wait until the lock ends; the store shows when that is".to_owned(),
            Trouble::Unsupported(_) => format!("use another store than {place} for this"),
            Trouble::Rule(_) => "correct it and repeat the command".to_owned(),
            Trouble::Answer(_) => {
                format!("check that {place} is an object store, and that no proxy changes its answers")
            }
            Trouble::Server { status: 501 | 405, .. } => format!("use another store than {place} for this"),
            Trouble::Server { status, .. } if *status >= 500 => {
                format!("repeat the command later; if it stays, look at the log of the store at {place}")
            }
            Trouble::Server { .. } => format!("look the code up in the documentation of the store at {place}"),
            Trouble::Unreachable(io::ErrorKind::InvalidData) => {
                format!("check whether the endpoint of {place} begins with http:// or https://, then repeat the command")
            }
            Trouble::Unreachable(_) => {
                format!("check the endpoint of {place}, the network and the store, then repeat the command")
            }
            Trouble::TimedOut => format!("check the network to {place}, then repeat the command"),
            Trouble::Cancelled => "repeat the command; it resumes".to_owned(),
            Trouble::Io(error) => io_next(error, place),
        }
    }
}

fn credentials_next(trouble: CredentialTrouble) -> String {
    match trouble {
        CredentialTrouble::Missing => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the server's environment, or name a file with credentials".to_owned()
        }
        CredentialTrouble::Unreadable => {
            "correct the file: a section in brackets, then `aws_access_key_id = ...` and `aws_secret_access_key = ...`".to_owned()
        }
        CredentialTrouble::Wrong => "correct the access key and its secret".to_owned(),
        CredentialTrouble::Expired => {
            "renew the credentials; those in a file are read again by themselves".to_owned()
        }
        CredentialTrouble::NoRole => {
            "give this machine a role that may use the bucket, or name a file with credentials".to_owned()
        }
    }
}

fn key_next(trouble: KeyTrouble) -> String {
    match trouble {
        KeyTrouble::NotRecipient => {
            "name the file of a key that is a recipient; a server that has the bucket adds one with `cairn bucket key add`"
        }
        KeyTrouble::NoRecipient => "list the recipients with `cairn bucket key list`",
        KeyTrouble::LastRecipient => "add another recipient first, with `cairn bucket key add`",
    }
    .to_owned()
}

fn io_next(error: &io::Error, place: &str) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("free space at {place}, then repeat the command")
        }
        io::ErrorKind::PermissionDenied => format!("give the server the right to write at {place}"),
        io::ErrorKind::ReadOnlyFilesystem => format!("mount the file system of {place} for writing"),
        io::ErrorKind::NotFound => format!("create {place}, or mount what belongs there"),
        _ => format!("look at the log of the kernel (dmesg) and mend what holds {place}"),
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}", self.verb.doing(), self.place)?;
        if let Some(name) = &self.name {
            write!(f, "{}{name}", if self.place.ends_with('/') { "" } else { "/" })?;
        }
        f.write_str(": ")?;
        match &self.trouble {
            Trouble::Damaged { how, stored: Some(stored) } => {
                write!(f, "the object is damaged: {how} (its name in the store is {stored})")
            }
            Trouble::Damaged { how, stored: None } => write!(f, "the object is damaged: {how}"),
            Trouble::Newer(version) => {
                write!(f, "the object was encrypted in version {version}, which this program does not know")
            }
            Trouble::Key(KeyTrouble::NotRecipient) => {
                f.write_str("the bucket is encrypted for other keys than those in the key file")
            }
            Trouble::Key(KeyTrouble::NoRecipient) => {
                f.write_str("the public key is none of the recipients of the bucket")
            }
            Trouble::Key(KeyTrouble::LastRecipient) => {
                f.write_str("this is the last recipient; without it the data of the bucket is lost")
            }
            Trouble::NoBucket => f.write_str("the bucket does not exist"),
            Trouble::Credentials(CredentialTrouble::Missing) => f.write_str("no credentials were found"),
            Trouble::Credentials(CredentialTrouble::Unreadable) => {
                f.write_str("the credentials are not in the form of an AWS credentials file")
            }
            Trouble::Credentials(CredentialTrouble::Wrong) => {
                f.write_str("the store rejects the credentials")
            }
            Trouble::Credentials(CredentialTrouble::Expired) => f.write_str("the credentials have expired"),
            Trouble::Credentials(CredentialTrouble::NoRole) => {
                f.write_str("the role of this machine gives no credentials")
            }
            Trouble::Forbidden => f.write_str("the credentials do not give the right to do this"),
            Trouble::Clock => {
                f.write_str("the clock of this machine differs too much from that of the store")
            }
            Trouble::Certificate => {
                f.write_str("this machine does not trust the certificate of the endpoint")
            }
            Trouble::Redirect(Some(region)) => write!(f, "the bucket is in region {region}"),
            Trouble::Redirect(None) => f.write_str("the bucket is in another region, or at another endpoint"),
            Trouble::Archived => f.write_str("the store has moved the object to an archive class"),
            Trouble::Quota => f.write_str("the store has no room for it"),
            Trouble::SlowDown(_) => f.write_str("the store asks for fewer requests"),
            Trouble::Missing => f.write_str("there is no such object"),
            Trouble::NoUpload => f.write_str("the store no longer has this upload"),
            Trouble::Conflict => f.write_str("another client writes the same object"),
            Trouble::Locked(Some(until)) => write!(f, "it is locked until {}", utc(*until)),
            Trouble::Locked(None) => f.write_str("it is locked"),
            Trouble::Unsupported(what) => write!(f, "the store does not support {what}"),
            Trouble::Rule(rule) => f.write_str(rule),
            Trouble::Answer(what) => write!(f, "the answer of the store makes no sense: {what}"),
            Trouble::Server { status, code: Some(code) } => write!(f, "the store answers {status} ({code})"),
            Trouble::Server { status, code: None } => write!(f, "the store answers {status}"),
            Trouble::Unreachable(kind) => write!(f, "the store is unreachable ({kind})"),
            Trouble::TimedOut => f.write_str("the store did not answer in time"),
            Trouble::Cancelled => f.write_str("it was cancelled"),
            Trouble::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.trouble {
            Trouble::Io(error) => Some(error.as_ref()),
            _ => None,
        }
    }
}

/// Makes the errors of one store.
#[derive(Debug, Clone)]
pub(crate) struct Blame(pub(crate) Arc<str>);

impl Blame {
    pub(crate) fn of(&self, verb: Verb, name: Option<&Name>, trouble: Trouble) -> StoreError {
        StoreError { verb, name: name.cloned(), place: self.0.clone(), trouble }
    }

    pub(crate) fn io(&self, verb: Verb, name: Option<&Name>, error: io::Error) -> StoreError {
        self.of(verb, name, Trouble::Io(Arc::new(error)))
    }
}
