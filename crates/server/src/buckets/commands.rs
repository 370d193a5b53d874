//! Commands on buckets: the methods of the server for them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use cairn_api as api;
use cairn_bucket::{Abilities, Allowed, Place, Use, Verdict};
use serde::Serialize;

use crate::buckets::error::BucketsError;
use crate::buckets::keys::identities;
use crate::buckets::{BUCKETS_MAX, Bucket, Buckets, Source, check_file, variable};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::names;

/// All uses, in the order in which they are shown.
const USES: [Use; 4] = [Use::Dump, Use::Lock, Use::Mirror, Use::Volume];

/// The word of a value in the API, which is that of the document.
fn word<T: Serialize>(value: T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn uses(abilities: &Abilities) -> Vec<api::BucketUse> {
    let show = |what: Use| {
        let (allowed, reasons) = match abilities.allows(what) {
            Allowed::Yes => (true, Vec::new()),
            Allowed::WithWarnings(reasons) => (true, reasons),
            Allowed::No(reasons) => (false, reasons),
        };
        api::BucketUse { what: word(what), allowed, reasons }
    };
    USES.into_iter().map(show).collect()
}

/// Refuses a store that is unsafe for every use: without dumps nothing else is possible, as a lock
/// is of a dump.
fn refuse_unsafe(bucket: &Bucket) -> Result<(), ServerError> {
    let allowed = |what: &Use| !matches!(bucket.abilities.allows(*what), Allowed::No(_));
    if [Use::Dump, Use::Mirror, Use::Volume].iter().any(allowed) {
        return Ok(());
    }
    let Allowed::No(reasons) = bucket.abilities.allows(Use::Dump) else { return Ok(()) };
    let (name, place) = (bucket.name.clone(), bucket.place.clone());
    Err(BucketsError::Unsafe { name, place, reasons }.into())
}

/// Findings that differ.
fn changes(before: &Abilities, now: &Abilities) -> Vec<api::BucketChange> {
    let differs = |found: &&cairn_bucket::Found| before.verdict(found.ability) != found.verdict;
    let show = |found: &cairn_bucket::Found| api::BucketChange {
        ability: word(found.ability),
        before: word(before.verdict(found.ability)),
        now: word(found.verdict),
        says: found.says.clone(),
    };
    now.found.iter().filter(differs).map(show).collect()
}

/// A file of this machine that a request names.
fn file_named(what: &'static str, path: Option<&String>) -> Result<Option<PathBuf>, ServerError> {
    let Some(path) = path.map(PathBuf::from) else { return Ok(None) };
    if !path.is_absolute() {
        return Err(ServerError::Invalid {
            fault: "the path of a credentials, certificate or key file is relative",
            next: "name the file by its full path, which begins with `/`",
        });
    }
    check_file(what, &path)?;
    Ok(Some(path))
}

impl Bucket {
    pub(super) fn show(&self) -> api::Bucket {
        let path = |path: &PathBuf| path.display().to_string();
        let ability = |found: &cairn_bucket::Found| api::BucketAbility {
            ability: word(found.ability),
            verdict: word::<Verdict>(found.verdict),
            says: found.says.clone(),
        };
        api::Bucket {
            name: self.name.clone(),
            place: self.place.clone(),
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            path_style: self.path_style,
            authority: self.authority.as_ref().map(path),
            credentials: self.credentials.as_ref().map(Source::shown),
            encryption: self.encryption.as_ref().map(|own| api::BucketEncryption {
                key_id: own.key_id.clone(),
                key_file: own.key_file.display().to_string(),
                recipient: own.recipient.clone(),
            }),
            added_ms: self.added_ms,
            probed_ms: self.probed_ms,
            abilities: self.abilities.found.iter().map(ability).collect(),
            uses: uses(&self.abilities),
            left: self.abilities.left.clone(),
        }
    }

    /// Notes for the owner of a bucket that works. `key_file` is that of a new bucket.
    fn notes(&self, key_file: Option<&Path>) -> Vec<String> {
        let mut notes = Vec::new();
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://")) {
            notes.push(format!("requests to {} are not encrypted", self.place));
        }
        let credentials = match &self.credentials {
            Some(Source::File(path) | Source::Section(path, _)) => Some(path.as_path()),
            _ => None,
        };
        let key_file = key_file.or_else(|| self.encryption.as_ref().map(|own| own.key_file.as_path()));
        for path in credentials.into_iter().chain(key_file) {
            if fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
                let path = path.display();
                notes.push(format!("other users may read {path}; `chmod 600 {path}` prevents that"));
            }
        }
        notes
    }
}

impl Server {
    /// The buckets, by name.
    pub(crate) fn list_buckets(&self) -> Result<Vec<api::Bucket>, ServerError> {
        Ok(self.buckets.all()?.iter().map(Bucket::show).collect())
    }

    /// One bucket.
    pub(crate) fn show_bucket(&self, name: &str) -> Result<api::Bucket, ServerError> {
        Ok(self.buckets.get(name)?.show())
    }

    /// Begins to probe a bucket, which is added if it can be used.
    pub(crate) fn add_bucket(&self, request: api::AddBucket) -> Result<api::Job, ServerError> {
        let key_file = file_named("key", request.key.as_ref())?;
        if let Some(path) = &key_file {
            identities(path)?;
        }
        let mut bucket = self.new_bucket(request)?;
        refuse_taken(&self.buckets, &bucket)?;
        let (buckets, name) = (self.buckets.clone(), bucket.name.clone());
        let in_use = buckets.use_by(&name, "bucket add")?;
        self.jobs.start("bucket add", &name, move |progress| {
            let _in_use = in_use;
            progress.phase("probing the store");
            bucket.notes(key_file.as_deref()).into_iter().for_each(|note| progress.note(note));
            bucket.abilities = buckets.probe(&bucket, progress.cancel_flag())?;
            bucket.probed_ms = buckets.now_ms();
            bucket.added_ms = bucket.probed_ms;
            refuse_unsafe(&bucket)?;
            refuse_taken(&buckets, &bucket)?;
            bucket.encryption =
                buckets.begin_encryption(&bucket, key_file.as_deref(), progress.cancel_flag())?;
            buckets.forget_key(&bucket.name);
            buckets.change(|document| {
                if document.buckets.len() >= BUCKETS_MAX {
                    return Err(ServerError::Invalid {
                        fault: "this server has 1,000 buckets, and can have no more",
                        next: "delete one that is not needed: `cairn bucket list`, `cairn bucket delete`",
                    });
                }
                document.buckets.push(bucket.clone());
                document.buckets.sort_by(|one, other| one.name.cmp(&other.name));
                Ok(())
            })?;
            tracing::info!(bucket = bucket.name, place = bucket.place, "a bucket was added");
            let check = api::BucketCheck { bucket: bucket.show(), changed: Vec::new() };
            Ok(Some(api::JobOutcome::Bucket(Box::new(check))))
        })
    }

    fn new_bucket(&self, request: api::AddBucket) -> Result<Bucket, ServerError> {
        let api::AddBucket { name, place, endpoint, region, path_style, authority, credentials, key: _ } =
            request;
        names::check("bucket", &name)?;
        let parsed: Place =
            place.parse().map_err(|source| BucketsError::Place { place: place.clone(), source })?;
        let is_word = |text: &String| {
            (1..=64).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if region.as_ref().is_some_and(|region| !is_word(region)) {
            return Err(ServerError::Invalid {
                fault: "invalid region: it has 1 to 64 letters, digits and `-`",
                next: "correct --region, such as eu-central-1",
            });
        }
        let authority = file_named("certificate", authority.as_ref())?;
        let given = file_named("credentials", credentials.as_ref())?;
        let credentials = match &parsed {
            Place::Directory(root) => {
                if endpoint.is_some()
                    || region.is_some()
                    || path_style
                    || authority.is_some()
                    || given.is_some()
                {
                    return Err(ServerError::Invalid {
                        fault: "a bucket in a directory has no endpoint, region, certificate or credentials",
                        next: "leave these options out",
                    });
                }
                self.refuse_own_directory(root)?;
                None
            }
            Place::Remote { service, .. } => {
                Some(given.map_or_else(|| Source::found(service, &variable), Source::File))
            }
        };
        Ok(Bucket {
            name,
            // Written in one way, so that two of one place are known to be.
            place: parsed.to_string(),
            endpoint,
            region,
            path_style,
            authority,
            credentials,
            encryption: None,
            added_ms: 0,
            probed_ms: 0,
            abilities: Abilities::default(),
        })
    }

    /// Refuses a directory that the server keeps its own files in: objects and state would mix.
    fn refuse_own_directory(&self, root: &Path) -> Result<(), ServerError> {
        let real = |path: &Path| -> io::Result<PathBuf> { fs::canonicalize(path) };
        match (real(root), real(self.data_dir())) {
            (Ok(root), Ok(data)) if root.starts_with(&data) || data.starts_with(&root) => {
                Err(ServerError::Invalid {
                    fault: "the directory of the bucket overlaps the data directory of the server",
                    next: "choose a directory outside of the data directory, and not above it",
                })
            }
            // The store reports a missing one.
            _ => Ok(()),
        }
    }

    /// Begins to probe a bucket again.
    pub(crate) fn check_bucket(&self, name: &str) -> Result<api::Job, ServerError> {
        let buckets = self.buckets.clone();
        let in_use = buckets.use_by(name, "bucket check")?;
        let bucket = buckets.get(name)?;
        self.jobs.start("bucket check", name, move |progress| {
            let _in_use = in_use;
            progress.phase("probing the store");
            bucket.notes(None).into_iter().for_each(|note| progress.note(note));
            let found = buckets.probe(&bucket, progress.cancel_flag())?;
            buckets.check_encryption(&bucket, progress.cancel_flag())?;
            let changed = changes(&bucket.abilities, &found);
            for change in &changed {
                let api::BucketChange { ability, before, now, .. } = change;
                tracing::warn!(bucket = bucket.name, ability, before, now, "an ability of a bucket changed");
            }
            let now_ms = buckets.now_ms();
            let shown = buckets.change(|document| {
                let own = document.buckets.iter_mut().find(|own| own.name == bucket.name);
                // It is in use, and so cannot have been deleted.
                let own = own.ok_or(ServerError::Bug)?;
                own.abilities = found;
                own.probed_ms = now_ms;
                Ok(own.show())
            })?;
            Ok(Some(api::JobOutcome::Bucket(Box::new(api::BucketCheck { bucket: shown, changed }))))
        })
    }

    /// Deletes a bucket from the list. Its objects stay.
    pub(crate) fn delete_bucket(&self, name: &str, query: api::DeleteBucketQuery) -> Result<(), ServerError> {
        self.buckets.get(name)?;
        self.refuse_dumped_into(name)?;
        self.refuse_read_from(name)?;
        self.bucket_mirrors.refuse_mirrored_into(name)?;
        if query.dry_run == Some(true) {
            return self.buckets.refuse_used(name);
        }
        // Held until the document has changed, so that no job begins to use it meanwhile.
        let _alone = self.buckets.use_by(name, "bucket delete")?;
        self.buckets.change(|document| {
            document.buckets.retain(|bucket| bucket.name != name);
            Ok(())
        })?;
        self.buckets.forget_key(name);
        tracing::info!(bucket = name, "a bucket was deleted from the list; its objects stay");
        Ok(())
    }
}

fn refuse_taken(buckets: &Buckets, bucket: &Bucket) -> Result<(), ServerError> {
    let all = buckets.all()?;
    if all.iter().any(|other| other.name == bucket.name) {
        return Err(ServerError::Taken { what: "bucket", name: bucket.name.clone() });
    }
    let same = |other: &&Bucket| other.place == bucket.place && other.endpoint == bucket.endpoint;
    match all.iter().find(same) {
        Some(other) => {
            let (place, other) = (bucket.place.clone(), other.name.clone());
            Err(BucketsError::PlaceTaken { place, other }.into())
        }
        None => Ok(()),
    }
}
