//! `cairn key`: key files, made and read by the command line itself.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cairn_api::client::Client;
use cairn_api::remedy::io_kind;
use cairn_api::{self as api, ErrorKind};
use cairn_bucket::seal::{Entropy, Identity};
use serde::Serialize;

use crate::arguments::Key;
use crate::exit::Failure;
use crate::output::{Output, note_line, table};

/// A key file.
#[derive(Serialize)]
struct KeyFile {
    file: String,
    recipients: Vec<String>,
}

impl KeyFile {
    fn new(path: &Path, identities: &[Identity]) -> Self {
        let recipients = identities.iter().map(|identity| identity.recipient().to_string()).collect();
        Self { file: path.display().to_string(), recipients }
    }
}

/// Random bytes of the operating system.
struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the system gives random numbers once it has booted");
    }
}

/// Runs a command that needs no server.
pub fn run_local(command: &Key, output: Output) -> Result<(), Failure> {
    match command {
        Key::Create { file } => create(file, output),
        Key::Show { file } => show(file, output),
        // It needs a server.
        Key::List => Ok(()),
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let what = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let next = "choose another name; a key file is never overwritten, as it may open a bucket";
            Failure::new(ErrorKind::Taken, what, next)
        }
        _ => Failure::new(io_kind(error), what, "check the path and its permissions"),
    }
}

fn create(path: &Path, output: Output) -> Result<(), Failure> {
    if path.symlink_metadata().is_ok() {
        return Err(failed(path, &io::ErrorKind::AlreadyExists.into()));
    }
    output.confirm(&format!(
        "{} will be the only key of the buckets that are encrypted with it. \
         If all copies of the file are lost, their data is lost; no one can recover it",
        path.display()
    ))?;
    let identity = Identity::generate(&SystemEntropy);
    let written = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(identity.to_file().as_bytes())?;
        file.sync_all()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    };
    written().map_err(|error| failed(path, &error))?;
    let made = KeyFile::new(path, std::slice::from_ref(&identity));
    if !output.json && !output.quiet {
        note_line("keep a copy of this file in another safe place; without it the data is lost");
    }
    output.tell(&made, |made| format!("created {}\npublic key: {}", made.file, made.recipients.join("\n")));
    Ok(())
}

fn show(path: &Path, output: Output) -> Result<(), Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| failed(path, &error))?;
    let identities = Identity::parse_file(&text).map_err(|error| {
        let what = format!("the key file {} cannot be used: {error}", path.display());
        Failure::new(ErrorKind::Usage, what, "name a file that `cairn key create FILE` made")
    })?;
    output.show(&KeyFile::new(path, &identities), |shown| shown.recipients.join("\n"));
    Ok(())
}

/// A key file of the server, and its buckets.
#[derive(Serialize)]
struct Used {
    file: String,
    recipient: String,
    buckets: Vec<String>,
}

/// Lists the key files that the server uses.
pub fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let buckets: Vec<api::Bucket> = client.get("/v1/buckets")?;
    let mut used: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for bucket in buckets {
        if let Some(own) = bucket.encryption {
            used.entry((own.key_file, own.recipient)).or_default().push(bucket.name);
        }
    }
    let used: Vec<Used> =
        used.into_iter().map(|((file, recipient), buckets)| Used { file, recipient, buckets }).collect();
    output.show(&used, |used| {
        let row = |own: &Used| [own.file.clone(), own.buckets.join(", "), own.recipient.clone()];
        table(["FILE", "BUCKETS", "PUBLIC KEY"], used.iter().map(row))
    });
    Ok(())
}
