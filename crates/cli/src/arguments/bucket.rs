//! The flags of `cairn bucket`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `cairn bucket`.
#[derive(Debug, Subcommand)]
pub enum Bucket {
    /// Probe an object store, and add it under a name
    #[command(alias = "create")]
    Add(AddBucket),
    /// List all buckets
    List,
    /// Show one bucket, and what its store can do
    Show {
        /// Its name
        name: String,
    },
    /// Probe a bucket again, and report what changed
    Check {
        /// Its name
        name: String,
    },
    /// Manage the recipients of an encrypted bucket
    #[command(subcommand)]
    Key(BucketKey),
    /// Delete a bucket from the list; its objects stay
    Delete {
        /// Its name
        name: String,
        /// Only check that it can be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
}

/// `cairn bucket key`.
#[derive(Debug, Subcommand)]
pub enum BucketKey {
    /// List the recipients: the key file of each opens the bucket
    List {
        /// The name of the bucket
        name: String,
    },
    /// Add a recipient
    Add {
        /// The name of the bucket
        name: String,
        /// The public key that `cairn key show FILE` prints
        recipient: String,
    },
    /// Remove a recipient; it may have kept the key of the bucket
    ///
    /// The wrapped key is deleted. This does not revoke the key of the bucket from a server that
    /// has opened it. To do that, move the data to a new bucket.
    Remove {
        /// The name of the bucket
        name: String,
        /// The public key, as `list` shows it
        recipient: String,
    },
    /// Open the bucket with another key file of the server's machine
    Set {
        /// The name of the bucket
        name: String,
        /// The file
        file: PathBuf,
    },
}

/// `cairn bucket add`.
#[derive(Debug, Args)]
pub struct AddBucket {
    /// The name that commands use
    pub name: String,
    /// s3://BUCKET/PREFIX, gs://..., azure://ACCOUNT/CONTAINER/... or file:///DIR
    #[arg(value_name = "URL")]
    pub place: String,
    /// Use this store instead of the service's own
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Sign requests for this region
    #[arg(long, value_name = "REGION")]
    pub region: Option<String>,
    /// Put the bucket into the path, not the host name (always with --endpoint)
    #[arg(long)]
    pub path_style: bool,
    /// Trust the certificates in this file of the server's machine (PEM)
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Read the credentials from this file of the server's machine
    ///
    /// For S3 a file as AWS tools have it, for Google the file of a service account. The server
    /// reads it again when it changes. Without it the server looks at its environment, then at
    /// ~/.aws/credentials, then at the role of the machine.
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// Encrypt everything for the key in this file of the server's machine
    ///
    /// `cairn key create` makes the file. The place must be empty, or encrypted for this key.
    /// Contents and names are encrypted; sizes and times are visible.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}
