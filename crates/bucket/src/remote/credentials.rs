//! Credentials of remote stores: from the environment, a file, or the role of the machine.
//!
//! A secret is shown by nothing here: [`Secret`] prints dots, and errors name the kind of trouble
//! only.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use cairn_base::Mutex;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

use crate::error::CredentialTrouble;
use crate::limits::SECRETS_BYTES_MAX;

/// The section of a credentials file used by default.
const DEFAULT_SECTION: &str = "default";

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("...")
    }
}

/// A key of an account: for S3 the access key and its secret, for Azure the key of the account as
/// `secret`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The access key; it is not a secret.
    pub id: String,
    /// Its secret.
    pub secret: Secret,
    /// The token of a session, if the key is temporary.
    pub token: Option<Secret>,
}

/// Where the credentials come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The variables of the environment that other tools use (`AWS_ACCESS_KEY_ID` and so on).
    Environment,
    /// A file as AWS tools have it: sections in brackets, `aws_access_key_id = ...`. For Google,
    /// the file of a service account. It is read again when it changes.
    File {
        /// The file.
        path: PathBuf,
        /// The section; `default` by default.
        section: Option<String>,
    },
    /// The role of the machine, container or pod.
    Role,
    /// A key that the caller has.
    Key(Key),
}

impl Credentials {
    /// Where other tools would look: the environment, then the file of AWS tools, then the role of
    /// the machine.
    pub fn found(variables: Variables<'_>) -> Self {
        let variable = |name| variables(name).filter(|value| !value.is_empty());
        if variable("AWS_ACCESS_KEY_ID").is_some() {
            return Credentials::Environment;
        }
        let home = || variable("HOME").map(|home| PathBuf::from(home).join(".aws/credentials"));
        let path = variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from).or_else(home);
        match path.filter(|path| path.is_file()) {
            Some(path) => Credentials::File { path, section: variable("AWS_PROFILE") },
            None => Credentials::Role,
        }
    }
}

/// Reads a variable of the environment; a parameter, so that tests have their own.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The key in the variables of AWS tools; none if they are not set.
pub(super) fn key_in(variables: Variables<'_>) -> Result<Option<Key>, CredentialTrouble> {
    let variable = |name| variables(name).filter(|value| !value.is_empty());
    match (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
        (Some(id), Some(secret)) => {
            let token = variable("AWS_SESSION_TOKEN").map(Secret::new);
            Ok(Some(Key { id, secret: Secret::new(secret), token }))
        }
        (None, None) => Ok(None),
        _ => Err(CredentialTrouble::Missing),
    }
}

/// Reads a file of at most [`SECRETS_BYTES_MAX`] bytes.
pub(super) fn read_bounded(path: &Path) -> Result<String, CredentialTrouble> {
    let length = std::fs::metadata(path).map_err(|_| CredentialTrouble::Missing)?.len();
    if length > SECRETS_BYTES_MAX as u64 {
        return Err(CredentialTrouble::Unreadable);
    }
    let bytes = std::fs::read(path).map_err(|_| CredentialTrouble::Missing)?;
    String::from_utf8(bytes).map_err(|_| CredentialTrouble::Unreadable)
}

/// The keys and values of one section.
pub(super) fn section_of(text: &str, section: &str) -> Option<BTreeMap<String, String>> {
    let mut found: Option<BTreeMap<String, String>> = None;
    let mut within = false;
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            within = name.trim() == section;
            if within {
                found.get_or_insert_default();
            }
        } else if within && let Some((key, value)) = line.split_once('=') {
            found.get_or_insert_default().insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

/// The key in a file of AWS tools.
pub(super) fn key_of_file(path: &Path, section: Option<&str>) -> Result<Key, CredentialTrouble> {
    let text = read_bounded(path)?;
    let values = section_of(&text, section.unwrap_or(DEFAULT_SECTION)).ok_or(CredentialTrouble::Missing)?;
    let value = |key| values.get(key).filter(|value| !value.is_empty()).cloned();
    let (Some(id), Some(secret)) = (value("aws_access_key_id"), value("aws_secret_access_key")) else {
        return Err(CredentialTrouble::Unreadable);
    };
    let token = value("aws_session_token").map(Secret::new);
    Ok(Key { id, secret: Secret::new(secret), token })
}

/// Missing credentials, as an error of the library: [`super::trouble`] unwraps it again.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("there are no credentials")]
pub(super) struct NoCredentials(pub(super) CredentialTrouble);

/// A file that is read again when it changes, so that renewed credentials are taken without a
/// restart.
#[derive(Debug)]
pub(super) struct FileProvider {
    path: PathBuf,
    section: Option<String>,
    read: Mutex<Option<(SystemTime, Arc<AwsCredential>)>>,
}

impl FileProvider {
    /// Reads the file once, to report a fault in it at once.
    pub(super) fn open(path: &Path, section: Option<&str>) -> Result<Self, CredentialTrouble> {
        let provider =
            Self { path: path.to_owned(), section: section.map(str::to_owned), read: Mutex::new(None) };
        provider.current()?;
        Ok(provider)
    }

    fn current(&self) -> Result<Arc<AwsCredential>, CredentialTrouble> {
        let changed = std::fs::metadata(&self.path).and_then(|found| found.modified());
        let changed = changed.map_err(|_| CredentialTrouble::Missing)?;
        let mut read = self.read.lock();
        if let Some((at, credential)) = &*read
            && *at == changed
        {
            return Ok(credential.clone());
        }
        let credential = Arc::new(credential_of(&key_of_file(&self.path, self.section.as_deref())?));
        *read = Some((changed, credential.clone()));
        Ok(credential)
    }
}

/// A key in the library's form.
pub(super) fn credential_of(key: &Key) -> AwsCredential {
    AwsCredential {
        key_id: key.id.clone(),
        secret_key: key.secret.reveal().to_owned(),
        token: key.token.as_ref().map(|token| token.reveal().to_owned()),
    }
}

impl CredentialProvider for FileProvider {
    type Credential = AwsCredential;

    fn get_credential<'own, 'out>(
        &'own self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<AwsCredential>>> + Send + 'out>>
    where
        'own: 'out,
        Self: 'out,
    {
        let credential = self.current().map_err(|trouble| object_store::Error::Generic {
            store: "credentials",
            source: Box::new(NoCredentials(trouble)),
        });
        Box::pin(std::future::ready(credential))
    }
}
