//! The meaning of answers: one table from status and code to kinds of trouble.
//!
//! The codes are those of S3 and of the stores that speak it, of Google Cloud Storage (the same, by
//! its XML API) and of Azure Blob Storage. A code that is not here keeps its status and its name.

use std::time::Duration;

use cairn_base::Timestamp;

use crate::error::{CredentialTrouble, Trouble, Verb};

/// The fields that are kept of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// The status of HTTP.
    pub(super) status: u16,
    /// The code in the body or in a header.
    pub(super) code: Option<String>,
    /// The region that the bucket is in, if the answer names it.
    pub(super) region: Option<String>,
    /// The time during which the store wants no request.
    pub(super) retry_after: Option<Duration>,
    /// Until when the object is locked.
    pub(super) locked_until: Option<Timestamp>,
    /// The version of the object, in a bucket that keeps versions.
    pub(super) version: Option<String>,
}

/// The meaning of an unsuccessful answer.
#[derive(Debug, Clone)]
pub(super) enum Meaning {
    /// An object of that name exists.
    Exists,
    /// The range begins past the end.
    PastEnd,
    Trouble(Trouble),
}

/// The meaning of an unsuccessful answer to this verb.
pub(super) fn meaning(verb: Verb, answer: &Answer) -> Meaning {
    let code = answer.code.as_deref().unwrap_or_default();
    let credentials = |trouble| Meaning::Trouble(Trouble::Credentials(trouble));
    match code {
        "PreconditionFailed" | "BlobAlreadyExists" | "UploadedBlobAlreadyExists" => return Meaning::Exists,
        "InvalidRange" => return Meaning::PastEnd,
        _ => {}
    }
    let trouble = match code {
        "NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted" | "ResourceNotFound" => {
            Trouble::NoBucket
        }
        "NoSuchKey" | "NoSuchVersion" | "BlobNotFound" => Trouble::Missing,
        "NoSuchUpload" | "InvalidPart" | "InvalidPartOrder" | "InvalidBlockList" | "InvalidBlockId" => {
            Trouble::NoUpload
        }
        "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException" | "RequestExpired" => {
            return credentials(CredentialTrouble::Expired);
        }
        "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "InvalidToken"
        | "InvalidSecurity"
        | "AuthenticationFailed"
        | "InvalidAuthenticationInfo"
        | "UnrecognizedClientException" => return credentials(CredentialTrouble::Wrong),
        "RequestTimeTooSkewed" => Trouble::Clock,
        "AuthorizationHeaderMalformed"
        | "PermanentRedirect"
        | "TemporaryRedirect"
        | "IllegalLocationConstraintException"
            if answer.region.is_some() || !code.starts_with("Auth") =>
        {
            Trouble::Redirect(answer.region.clone())
        }
        "AuthorizationHeaderMalformed" => return credentials(CredentialTrouble::Wrong),
        "ObjectLocked" | "BlobImmutableDueToPolicy" | "BlobImmutableDueToLegalHold" => Trouble::Locked(None),
        "AccessDenied"
        | "AllAccessDisabled"
        | "AccountProblem"
        | "AuthorizationFailure"
        | "AuthorizationPermissionMismatch"
        | "InsufficientAccountPermissions" => Trouble::Forbidden,
        "InvalidObjectState" | "BlobArchived" | "BlobBeingRehydrated" => Trouble::Archived,
        "QuotaExceeded"
        | "QuotaExceededException"
        | "XMinioAdminBucketQuotaExceeded"
        | "XMinioStorageFull"
        | "InsufficientStorage"
        | "AccountLimitExceeded" => Trouble::Quota,
        "SlowDown"
        | "SlowDownRead"
        | "SlowDownWrite"
        | "ServiceUnavailable"
        | "ServerBusy"
        | "RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequests"
        | "BandwidthLimitExceeded" => Trouble::SlowDown(answer.retry_after),
        "ConditionalRequestConflict" | "OperationAborted" => Trouble::Conflict,
        "RequestTimeout" | "OperationTimedOut" => Trouble::TimedOut,
        "NotImplemented" | "MethodNotAllowed" => Trouble::Unsupported(unsupported(verb)),
        "InvalidRequest" | "ObjectLockConfigurationNotFoundError" | "InvalidBucketState"
            if verb == Verb::Lock =>
        {
            Trouble::Unsupported("locks: its object lock is not enabled")
        }
        _ => return of_status(verb, answer),
    };
    Meaning::Trouble(trouble)
}

/// The meaning of the status alone, for an answer without a body.
fn of_status(verb: Verb, answer: &Answer) -> Meaning {
    Meaning::Trouble(match answer.status {
        412 => return Meaning::Exists,
        416 => return Meaning::PastEnd,
        301 | 302 | 307 | 308 => Trouble::Redirect(answer.region.clone()),
        401 => Trouble::Credentials(CredentialTrouble::Wrong),
        403 => Trouble::Forbidden,
        404 if matches!(verb, Verb::Get | Verb::Head | Verb::Lock) => Trouble::Missing,
        404 if verb == Verb::PutPieces => Trouble::NoUpload,
        404 => Trouble::NoBucket,
        408 => Trouble::TimedOut,
        409 => Trouble::Conflict,
        405 | 501 => Trouble::Unsupported(unsupported(verb)),
        429 | 503 => Trouble::SlowDown(answer.retry_after),
        507 => Trouble::Quota,
        status => Trouble::Server { status, code: answer.code.clone() },
    })
}

fn unsupported(verb: Verb) -> &'static str {
    match verb {
        Verb::Put => "create-only puts",
        Verb::PutPieces => "objects in pieces",
        Verb::Lock => "locks",
        Verb::List => "this listing",
        Verb::Open | Verb::Get | Verb::Head | Verb::Delete => "this request",
    }
}
