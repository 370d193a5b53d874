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
    /// Delete a bucket from the list; its objects stay
    Delete {
        /// Its name
        name: String,
        /// Only check that it can be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
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
}
