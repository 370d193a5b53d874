//! Buckets: object stores that this server may use, by names that commands take.
//!
//! `buckets.json` has the place of each, the endpoint, the findings of the last probe, and where
//! the credentials come from: the environment, the role of the machine, or the path of a file. The
//! secret itself is read when a bucket is opened. It is in no document, list, log, argument or
//! error. The same holds for the key of an encrypted bucket, of which the document has the public
//! id and the path of the key file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fs, io, thread};

use cairn_base::{Clock, Rng};
use cairn_bucket::limits::SECRETS_BYTES_MAX;
use cairn_bucket::seal::KeyHolder;
use cairn_bucket::{
    Abilities, Allowed, Counted, Credentials, Directory, ListFrom, Net, Options, Patience, Place, Prefix,
    ProbeWork, Remote, Retrying, Service, Sleep, Store, StoreError, Tally, Trouble, Use, Verb, Waiting,
    Workers, probe,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::buckets::error::BucketsError;
use crate::buckets::keys::Encryption;
use crate::error::ServerError;
use crate::peers::token::random_bytes;
use crate::state;
use crate::state::Unread;

mod commands;
pub(crate) mod error;
pub(crate) mod images;
mod key_commands;
mod keys;
#[cfg(test)]
mod tests;

/// Jobs that are alone with a bucket.
const ALONE: [&str; 2] = ["bucket add", "bucket delete"];

/// More buckets are a mistake.
const BUCKETS_MAX: usize = 1000;

/// How long a probe waits failures out: a store that cannot be reached is reported within a minute.
const PROBE_PATIENCE: Patience = Patience {
    tries: 4,
    time: Duration::from_secs(20),
    first: Duration::from_millis(200),
    longest: Duration::from_secs(5),
};

/// How long a read for a client of the API waits failures out: the client waits no longer.
const READ_PATIENCE: Patience = Patience {
    tries: 6,
    time: Duration::from_secs(40),
    first: Duration::from_millis(200),
    longest: Duration::from_secs(10),
};

/// Where the credentials of a bucket come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Source {
    Environment,
    Role,
    File(PathBuf),
    /// A file as AWS tools find it, with the section that `AWS_PROFILE` named.
    Section(PathBuf, String),
}

impl Source {
    /// Where tools of the service look, as far as that can be known without asking anything over
    /// the network.
    fn found(service: &Service, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let any = |names: &[&str]| names.iter().any(|name| variable(name).is_some_and(|set| !set.is_empty()));
        let in_environment = match service {
            Service::S3 => {
                return match Credentials::found(variable) {
                    Credentials::Environment => Source::Environment,
                    Credentials::File { path, section: None } => Source::File(path),
                    Credentials::File { path, section: Some(section) } => Source::Section(path, section),
                    Credentials::Role | Credentials::Key(_) => Source::Role,
                };
            }
            Service::Google => any(&["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"]),
            Service::Azure(_) => any(&[
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
                "AZURE_CLIENT_SECRET",
                "AZURE_FEDERATED_TOKEN_FILE",
            ]),
        };
        if in_environment { Source::Environment } else { Source::Role }
    }

    fn credentials(&self) -> Credentials {
        match self {
            Source::Environment => Credentials::Environment,
            Source::Role => Credentials::Role,
            Source::File(path) => Credentials::File { path: path.clone(), section: None },
            Source::Section(path, section) => {
                Credentials::File { path: path.clone(), section: Some(section.clone()) }
            }
        }
    }

    /// For people.
    fn shown(&self) -> String {
        match self {
            Source::Environment => "environment".to_owned(),
            Source::Role => "machine role".to_owned(),
            Source::File(path) => path.display().to_string(),
            Source::Section(path, section) => format!("{} [{section}]", path.display()),
        }
    }
}

/// A bucket as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Bucket {
    name: String,
    place: String,
    endpoint: Option<String>,
    region: Option<String>,
    path_style: bool,
    authority: Option<PathBuf>,
    credentials: Option<Source>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<Encryption>,
    added_ms: u64,
    probed_ms: u64,
    abilities: Abilities,
}

/// What `buckets.json` says.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct BucketsDocument {
    buckets: Vec<Bucket>,
}

/// The buckets of a server. Lock order: `document`, then `uses`.
pub(crate) struct Buckets {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    document: Mutex<BucketsDocument>,
    /// Which buckets there are is not known.
    unread: Mutex<Option<Unread>>,
    /// Names that jobs use, and the kinds of these jobs.
    uses: Mutex<BTreeMap<String, Vec<&'static str>>>,
    /// The runtime of remote stores, from the first use of one on.
    net: Mutex<Option<Arc<Net>>>,
    /// Open stores that clients of the API read through, by name.
    readers: Mutex<BTreeMap<String, Arc<dyn Store>>>,
    /// Keys of encrypted buckets, by name.
    holders: Mutex<BTreeMap<String, Arc<KeyHolder>>>,
    /// Requests since the server started, by name.
    tallies: Mutex<BTreeMap<String, Arc<Tally>>>,
}

/// A bucket that is open for a job, which uses it for as long as this lives.
pub(crate) struct OpenBucket {
    pub(crate) name: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) workers: Arc<dyn Workers>,
    abilities: Abilities,
    _in_use: InUse,
}

impl OpenBucket {
    /// Refuses a use that the probe found to be unsafe.
    pub(crate) fn refuse_unsafe_for(&self, what: Use) -> Result<(), ServerError> {
        match self.abilities.allows(what) {
            Allowed::No(reasons) => {
                Err(BucketsError::NotSafeFor { name: self.name.clone(), what: what.noun(), reasons }.into())
            }
            Allowed::Yes | Allowed::WithWarnings(_) => Ok(()),
        }
    }

    /// Whether the store has a lock for objects.
    pub(crate) fn locks(&self) -> bool {
        !matches!(self.abilities.allows(Use::Lock), Allowed::No(_))
    }
}

/// A job uses the bucket of this name for as long as this lives.
pub(crate) struct InUse {
    buckets: Arc<Buckets>,
    name: String,
    by: &'static str,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut uses = self.buckets.uses.lock();
        if let Some(jobs) = uses.get_mut(&self.name) {
            if let Some(own) = jobs.iter().position(|by| *by == self.by) {
                jobs.swap_remove(own);
            }
            if jobs.is_empty() {
                uses.remove(&self.name);
            }
        }
    }
}

/// A thread for each job of a store.
struct OwnThreads;

impl Workers for OwnThreads {
    fn start(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        thread::Builder::new().name("bucket".to_owned()).spawn(job).map(drop)
    }
}

/// Threads for fetches of volumes.
pub(crate) fn threads() -> Arc<dyn Workers> {
    Arc::new(OwnThreads)
}

/// A generator that the operating system seeded.
pub(crate) fn rng() -> Rng {
    Rng::new(u64::from_le_bytes(random_bytes()))
}

/// A failure that is waited out, in words.
pub(crate) fn in_words((error, wait): (&StoreError, Duration)) -> String {
    format!("waiting {} s to try again: {error}", wait.as_secs_f32().ceil())
}

/// A variable of the server's environment.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Checks that the server can read a file that a bucket needs.
fn check_file(what: &'static str, path: &Path) -> Result<(), ServerError> {
    let failed = |source| BucketsError::File { what, path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")).into());
    }
    if found.len() > SECRETS_BYTES_MAX as u64 {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it has more than 1 MiB")).into());
    }
    Ok(())
}

impl Buckets {
    /// Those in the data directory.
    pub(crate) fn open(dir: &Path, clock: Arc<dyn Clock>) -> Self {
        let buckets = Self {
            path: dir.join("buckets.json"),
            clock,
            document: Mutex::default(),
            unread: Mutex::default(),
            uses: Mutex::default(),
            net: Mutex::default(),
            readers: Mutex::default(),
            holders: Mutex::default(),
            tallies: Mutex::default(),
        };
        buckets.read();
        buckets
    }

    /// Takes in what the file says by now.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<BucketsDocument>(&self.path);
        let mut held = self.document.lock();
        *held = document.unwrap_or_default();
        *self.unread.lock() = unread;
    }

    /// Refuses while the buckets are not known.
    fn check_known(&self) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())
    }

    fn all(&self) -> Result<Vec<Bucket>, ServerError> {
        self.check_known()?;
        Ok(self.document.lock().buckets.clone())
    }

    fn get(&self, name: &str) -> Result<Bucket, ServerError> {
        let found = self.all()?.into_iter().find(|bucket| bucket.name == name);
        found.ok_or_else(|| ServerError::NotFound {
            what: "bucket",
            name: name.to_owned(),
            list: "cairn bucket list",
        })
    }

    /// Whether a bucket is encrypted. One that does not exist is not.
    pub(crate) fn is_encrypted(&self, name: &str) -> bool {
        self.get(name).is_ok_and(|bucket| bucket.encryption.is_some())
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().0 / 1_000_000
    }

    /// Changes the document and its file, or neither.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut BucketsDocument) -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let mut document = self.document.lock();
        self.check_known()?;
        let mut changed = document.clone();
        let outcome = change(&mut changed)?;
        state::save(&self.path, &changed)?;
        *document = changed;
        Ok(outcome)
    }

    /// Notes that a job uses a name. One that makes or deletes the bucket is alone.
    fn use_by(self: &Arc<Self>, name: &str, by: &'static str) -> Result<InUse, ServerError> {
        let mut uses = self.uses.lock();
        let jobs = uses.entry(name.to_owned()).or_default();
        let conflicts = |other: &&&'static str| ALONE.contains(&by) || ALONE.contains(*other);
        if let Some(by) = jobs.iter().find(conflicts) {
            return Err(BucketsError::InUse { name: name.to_owned(), by }.into());
        }
        jobs.push(by);
        Ok(InUse { buckets: self.clone(), name: name.to_owned(), by })
    }

    fn refuse_used(&self, name: &str) -> Result<(), ServerError> {
        match self.uses.lock().get(name).and_then(|jobs| jobs.first()) {
            Some(by) => Err(BucketsError::InUse { name: name.to_owned(), by }.into()),
            None => Ok(()),
        }
    }

    fn net(&self) -> Result<Arc<Net>, ServerError> {
        let mut net = self.net.lock();
        if let Some(net) = &*net {
            return Ok(net.clone());
        }
        let started = Net::start().map_err(|source| ServerError::Thread { what: "buckets", source })?;
        Ok(net.insert(started).clone())
    }

    fn tally(&self, name: &str) -> Arc<Tally> {
        self.tallies.lock().entry(name.to_owned()).or_default().clone()
    }

    /// The requests to each bucket since the server started, by name.
    pub(crate) fn requests(&self) -> Vec<(String, Arc<Tally>)> {
        let known = self.document.lock().buckets.clone();
        known.into_iter().map(|bucket| (bucket.name.clone(), self.tally(&bucket.name))).collect()
    }

    /// Opens a client of a bucket that waits failures out, and encrypts if the bucket is encrypted.
    /// It makes no request.
    fn client(
        &self,
        bucket: &Bucket,
        patience: Patience,
        waiting: Option<Arc<Waiting>>,
    ) -> Result<Arc<dyn Store>, ServerError> {
        let below = self.client_below(bucket, patience, waiting)?;
        match &bucket.encryption {
            Some(encryption) => Ok(Arc::new(self.sealed(&bucket.name, encryption, below)?)),
            None => Ok(below),
        }
    }

    /// The same without encryption.
    fn client_below(
        &self,
        bucket: &Bucket,
        patience: Patience,
        waiting: Option<Arc<Waiting>>,
    ) -> Result<Arc<dyn Store>, ServerError> {
        let place: Place = bucket
            .place
            .parse()
            .map_err(|source| BucketsError::Place { place: bucket.place.clone(), source })?;
        let failed = |source: StoreError| store_error(&bucket.name, source);
        let store: Arc<dyn Store> = match &place {
            Place::Directory(root) => {
                Arc::new(Directory::open(root, self.clock.clone(), rng()).map_err(failed)?)
            }
            Place::Remote { .. } => {
                let credentials = bucket.credentials.as_ref().map_or(Credentials::Role, Source::credentials);
                let mut options = Options::new(credentials);
                options.endpoint.clone_from(&bucket.endpoint);
                options.region.clone_from(&bucket.region);
                options.path_style = bucket.path_style.then_some(true);
                if let Some(path) = &bucket.authority {
                    check_file("certificate", path)?;
                    options.authority = Some(fs::read(path).map_err(|source| BucketsError::File {
                        what: "certificate",
                        path: path.clone(),
                        source,
                    })?);
                }
                Arc::new(Remote::open(&place, &options, &variable, &self.net()?).map_err(failed)?)
            }
        };
        let store = Counted::new(store, self.tally(&bucket.name));
        let retrying = Retrying::new(store, self.clock.clone(), Arc::new(Sleep::default()), rng(), patience);
        Ok(match waiting {
            Some(waiting) => Arc::new(retrying.telling(waiting)),
            None => Arc::new(retrying),
        })
    }

    /// Opens a bucket for a job. `waiting` shows the failure that the job waits out.
    pub(crate) fn open_for(
        self: &Arc<Self>,
        name: &str,
        by: &'static str,
        waiting: &Arc<Mutex<Option<String>>>,
    ) -> Result<OpenBucket, ServerError> {
        let shown = waiting.clone();
        let waiting: Arc<Waiting> = Arc::new(move |failure| {
            *shown.lock() = failure.map(in_words);
        });
        self.open_telling(name, by, waiting)
    }

    /// The same with any receiver of the failures that are waited out.
    pub(crate) fn open_telling(
        self: &Arc<Self>,
        name: &str,
        by: &'static str,
        waiting: Arc<Waiting>,
    ) -> Result<OpenBucket, ServerError> {
        let in_use = self.use_by(name, by)?;
        let bucket = self.get(name)?;
        let store = self.client(&bucket, Patience::default(), Some(waiting))?;
        let (workers, abilities) = (Arc::new(OwnThreads), bucket.abilities);
        Ok(OpenBucket { name: bucket.name, store, workers, abilities, _in_use: in_use })
    }

    /// Opens a bucket for a volume that reads blocks from it, which must not wait for long.
    pub(crate) fn open_for_volume(self: &Arc<Self>, name: &str) -> Result<OpenBucket, ServerError> {
        let in_use = self.use_by(name, "a volume reads blocks from it")?;
        let bucket = self.get(name)?;
        let store = self.client(&bucket, READ_PATIENCE, None)?;
        Ok(OpenBucket {
            name: bucket.name,
            store,
            workers: threads(),
            abilities: bucket.abilities,
            _in_use: in_use,
        })
    }

    /// Opens a bucket to answer a request.
    pub(crate) fn open_to_read(self: &Arc<Self>, name: &str) -> Result<OpenBucket, ServerError> {
        let in_use = self.use_by(name, "objects in it are read")?;
        let bucket = self.get(name)?;
        let known = self.readers.lock().get(name).cloned();
        let store = match known {
            Some(store) => store,
            None => {
                let store = self.client(&bucket, READ_PATIENCE, None)?;
                self.readers.lock().insert(name.to_owned(), store.clone());
                store
            }
        };
        let (workers, abilities) = (Arc::new(OwnThreads), bucket.abilities);
        Ok(OpenBucket { name: bucket.name, store, workers, abilities, _in_use: in_use })
    }

    /// Finds out what a bucket really does.
    fn probe(&self, bucket: &Bucket, cancel: &Arc<AtomicBool>) -> Result<Abilities, ServerError> {
        let failed = |source: StoreError| store_error(&bucket.name, source);
        let store = self.client_below(bucket, PROBE_PATIENCE, None)?;
        // A store that cannot be used at all is known after one request; a probe would also try to
        // clean up.
        let anything = Prefix::new("probe/").map_err(|_| ServerError::Bug)?;
        store.list(&anything, &ListFrom::Start, 1, cancel).map_err(failed)?;
        let workers: Arc<dyn Workers> = Arc::new(OwnThreads);
        let work = ProbeWork {
            other: self.client_below(bucket, PROBE_PATIENCE, None)?,
            workers: &workers,
            clock: &*self.clock,
            rng: &mut rng(),
            cancel,
        };
        probe(&store, work).map_err(failed)
    }
}

/// An error of a store, of the bucket of that name.
pub(crate) fn store_error(name: &str, source: StoreError) -> ServerError {
    match source.trouble {
        Trouble::Cancelled => ServerError::Cancelled,
        // The rule that an endpoint or a certificate breaks; there is no object to name.
        Trouble::Rule(rule) if source.verb == Verb::Open => {
            ServerError::Invalid { fault: rule, next: "correct it and run the command again" }
        }
        _ => BucketsError::Store { name: name.to_owned(), source: Box::new(source) }.into(),
    }
}
