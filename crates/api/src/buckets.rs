//! Objects about buckets: object stores that a server may use.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Adds a bucket. The server probes it first; the answer is a job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddBucket {
    /// The name that commands use.
    pub name: String,
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `azure://ACCOUNT/CONTAINER/PREFIX` or
    /// `file:///DIR`.
    pub place: String,
    /// `https://HOST[:PORT]` of a store other than the service's own.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The region that requests are signed for.
    #[serde(default)]
    pub region: Option<String>,
    /// The bucket is in the path of requests, not in the host name. Always so with an endpoint.
    #[serde(default)]
    pub path_style: bool,
    /// A file of the server's machine with certificates (PEM) that the server also trusts.
    #[serde(default)]
    pub authority: Option<String>,
    /// A file of the server's machine with credentials. Without it the server looks as AWS tools
    /// do: in its environment, in `~/.aws/credentials`, and at the role of the machine.
    #[serde(default)]
    pub credentials: Option<String>,
    /// A key file of the server's machine, as `cairn key create` makes it. The server encrypts all
    /// objects and their names. The place must be empty, or encrypted for a key in this file.
    #[serde(default)]
    pub key: Option<String>,
}

/// The encryption of a bucket. It holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketEncryption {
    /// The id of the key of the bucket: the same on each server that has the bucket.
    pub key_id: String,
    /// The key file, on the server's machine.
    pub key_file: String,
    /// The public key of the key in that file that opens the bucket.
    pub recipient: String,
}

/// The recipients of an encrypted bucket: a key of each opens it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketKeys {
    /// The id of the key of the bucket.
    pub key_id: String,
    /// The recipients.
    pub recipients: Vec<BucketRecipient>,
}

/// A recipient of an encrypted bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketRecipient {
    /// The public key.
    pub recipient: String,
    /// This server has the secret key.
    pub own: bool,
}

/// Adds a recipient to an encrypted bucket.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddBucketRecipient {
    /// The public key, as `cairn key show` prints it.
    pub recipient: String,
}

/// Names the key file that this server opens an encrypted bucket with.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetBucketKey {
    /// The file, on the server's machine.
    pub key: String,
}

/// How a bucket is deleted.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeleteBucketQuery {
    /// Only checks that it can be deleted.
    pub dry_run: Option<bool>,
}

/// A bucket that the server may use. It holds no secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Bucket {
    /// The name that commands use.
    pub name: String,
    /// The place of the bucket.
    pub place: String,
    /// Of a store other than the service's own.
    pub endpoint: Option<String>,
    /// The region that requests are signed for.
    pub region: Option<String>,
    /// The bucket is in the path of requests, not in the host name.
    pub path_style: bool,
    /// The file with certificates that the server also trusts.
    pub authority: Option<String>,
    /// Where its credentials come from: `environment`, `machine role` or the path of a file; none
    /// of a directory.
    pub credentials: Option<String>,
    /// How it is encrypted; none of a bucket that is not.
    #[serde(default)]
    pub encryption: Option<BucketEncryption>,
    /// When it was added.
    pub added_ms: u64,
    /// When it was probed last.
    pub probed_ms: u64,
    /// The findings of that probe.
    pub abilities: Vec<BucketAbility>,
    /// The uses that these findings permit.
    pub uses: Vec<BucketUse>,
    /// Objects that the probe could not delete yet.
    pub left: Vec<String>,
}

/// One finding of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketAbility {
    /// The tested ability, such as `create-only`.
    pub ability: String,
    /// `yes`, `no` or `unknown`.
    pub verdict: String,
    /// The same as a sentence.
    pub says: String,
}

/// Whether a bucket may be used for something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketUse {
    /// `dump`, `lock`, `mirror` or `volume`.
    #[serde(rename = "use")]
    pub what: String,
    /// It may be.
    pub allowed: bool,
    /// Why the use is not permitted, or notes about it.
    pub reasons: Vec<String>,
}

/// The outcome of a probe: a bucket, and the changes since the previous probe.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BucketCheck {
    /// The bucket as it is now.
    pub bucket: Bucket,
    /// Findings that differ from those of the probe before; none of the first probe.
    pub changed: Vec<BucketChange>,
}

/// A finding that differs from that of the probe before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketChange {
    /// The tested ability.
    pub ability: String,
    /// `yes`, `no` or `unknown`.
    pub before: String,
    /// `yes`, `no` or `unknown`.
    pub now: String,
    /// The present finding as a sentence.
    pub says: String,
}
