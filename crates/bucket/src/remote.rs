//! Stores on the network: S3 of any vendor, Google Cloud Storage, Azure Blob Storage.
//!
//! The library `object_store` signs requests and knows the three protocols. This driver adds what
//! Cairn needs and the library lacks: errors with a kind, `Retry-After`, cancellation, limits of
//! time, create-only completion of uploads, locks, versions, and the pieces of an upload ([`s3`]).
//! The library's own retries are off: [`crate::Retrying`] decides.
//!
//! Locks, listings of uploads and of pieces: S3 only. Azure cannot finish an upload only if the
//! name is free: the driver looks first, so two that finish at the same time both succeed. The
//! probe reports the real behaviour of a store.
//!
//! In a bucket that keeps versions, deleting removes the version permanently; a lock prevents that.

mod codes;
mod credentials;
mod net;
mod s3;
mod xml;

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::Timestamp;
use http::header::{HeaderName, HeaderValue};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode,
    PutMultipartOptions, PutOptions, RetryConfig,
};

pub use self::credentials::{Credentials, Key, Secret, Variables};
pub use self::net::Net;

use self::codes::Meaning;
use self::credentials::{FileProvider, NoCredentials, credential_of, key_in, key_of_file, read_bounded};
use self::net::{Connector, Stopped, Trail, broken_by, time_for};
use self::s3::{Failed, S3};
use crate::error::{Blame, CredentialTrouble, StoreError, Trouble, Verb};
use crate::limits::{
    GET_BYTES_MAX, JOIN_TIME_MAX, PAGE_OBJECTS_MAX, PIECE_BYTES_MAX, PIECES_MAX, PUT_BYTES_MAX,
};
use crate::name::{Name, Prefix};
use crate::place::{Place, Service};
use crate::store::{Cursor, Head, ListFrom, Listed, Nonce, Page, Piece, Put, Store, Upload};

/// The key of the metadata with the nonce: a word that all services take.
const NONCE_KEY: &str = "cairnnonce";
/// Longest address of an endpoint.
const ENDPOINT_BYTES_MAX: usize = 512;

/// How a store is reached.
#[derive(Debug, Clone)]
pub struct Options {
    /// `https://HOST[:PORT]` of a private store; none for the service's own endpoint.
    pub endpoint: Option<String>,
    /// The region that requests are signed for.
    pub region: Option<String>,
    /// The bucket is in the path of requests, not in the host name. By default, if there is an
    /// endpoint.
    pub path_style: Option<bool>,
    /// Certificates (PEM) of authorities that are trusted besides those of the machine.
    pub authority: Option<Vec<u8>>,
    /// Where the credentials come from.
    pub credentials: Credentials,
}

impl Options {
    /// The service's own endpoint, with these credentials.
    pub fn new(credentials: Credentials) -> Self {
        Self { endpoint: None, region: None, path_style: None, authority: None, credentials }
    }
}

trait Library: ObjectStore + MultipartStore + PaginatedListStore {}

impl<T: ObjectStore + MultipartStore + PaginatedListStore> Library for T {}

/// See the module.
pub struct Remote {
    net: Arc<Net>,
    library: Arc<dyn Library>,
    /// Present for S3.
    s3: Option<S3>,
    service: Service,
    /// The beginning of all keys: empty, or ends with `/`.
    base: String,
    blame: Blame,
    /// Whether the bucket keeps versions, once an answer has shown it.
    versions: AtomicU8,
}

const VERSIONS_UNKNOWN: u8 = 0;
const VERSIONS_NONE: u8 = 1;
const VERSIONS_KEPT: u8 = 2;

impl std::fmt::Debug for Remote {
    /// Nothing of the library: it holds credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("place", &self.blame.0).finish_non_exhaustive()
    }
}

/// The address without a `/` at its end, if it holds no secret.
fn endpoint_of(text: &str) -> Option<(&str, bool)> {
    let is_plain = text.starts_with("http://");
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
    let host = host.strip_suffix('/').unwrap_or(host);
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'[' | b']' | b'_');
    let valid = !host.is_empty() && text.len() <= ENDPOINT_BYTES_MAX && host.bytes().all(allowed);
    valid.then(|| (text.strip_suffix('/').unwrap_or(text), is_plain))
}

impl Remote {
    /// Opens a bucket. Sends no request to the store yet.
    ///
    /// # Errors
    /// [`Trouble::Credentials`], [`Trouble::Certificate`], or [`Trouble::Rule`] for an invalid
    /// endpoint.
    pub fn open(
        place: &Place,
        options: &Options,
        variables: Variables<'_>,
        net: &Arc<Net>,
    ) -> Result<Self, StoreError> {
        let blame = Blame(place.to_string().into());
        let of = |trouble| blame.of(Verb::Open, None, trouble);
        let Place::Remote { service, bucket, prefix } = place else {
            return Err(of(Trouble::Rule("a directory is no remote store")));
        };
        let endpoint = match &options.endpoint {
            None => None,
            Some(text) => Some(
                endpoint_of(text)
                    .ok_or_else(|| of(Trouble::Rule("an endpoint is https://HOST or https://HOST:PORT")))?,
            ),
        };
        let is_plain = endpoint.is_some_and(|(_, is_plain)| is_plain);
        // The role of a machine is queried over plain HTTP, at an endpoint of the machine.
        let only_https =
            !is_plain && matches!(options.credentials, Credentials::File { .. } | Credentials::Key(_));
        let givers: Vec<String> = [
            "AWS_EC2_METADATA_SERVICE_ENDPOINT",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_ENDPOINT_URL_STS",
        ]
        .into_iter()
        .filter_map(variables)
        .collect();
        let connector = Connector::new(options.authority.as_deref(), only_https, &givers);
        let connector = connector.map_err(|_| {
            of(Trouble::Rule("the certificate of the authority cannot be read; it is a file in PEM form"))
        })?;
        let setup = Setup { options, variables, endpoint, connector, bucket };
        let built = match service {
            Service::S3 => setup.s3().map(|(s3, library)| (library, Some(s3))),
            Service::Google => setup.google().map(|library| (library, None)),
            Service::Azure(account) => setup.azure(account).map(|library| (library, None)),
        };
        let (library, s3) = built.map_err(of)?;
        let base = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self {
            net: net.clone(),
            library,
            s3,
            service: service.clone(),
            base,
            blame,
            versions: AtomicU8::new(VERSIONS_UNKNOWN),
        })
    }

    fn key(&self, name: &Name) -> Path {
        // Names and prefixes have only characters that the library takes as they are.
        Path::from(format!("{}{name}", self.base))
    }

    fn key_text(&self, name: &Name) -> String {
        format!("{}{name}", self.base)
    }

    /// The name of a key; none if it is not a name of Cairn.
    fn name(&self, key: &str) -> Option<Name> {
        Name::new(key.strip_prefix(&self.base)?).ok()
    }

    /// Runs one call of the library. Returns the outcome, with the trail of the answer.
    fn call<T>(
        &self,
        verb: Verb,
        limit: Duration,
        cancel: &AtomicBool,
        extra: Option<(HeaderName, HeaderValue)>,
        call: impl Future<Output = Result<T, Failed>>,
    ) -> Result<(T, Trail), Meaning> {
        self.judge(verb, self.net.run(limit, cancel, extra, call))
    }

    /// The outcome of a call of the library, with the trail of the answer.
    fn judge<T>(
        &self,
        verb: Verb,
        (outcome, trail): (Result<Result<T, Failed>, Stopped>, Trail),
    ) -> Result<(T, Trail), Meaning> {
        match outcome {
            Err(Stopped::Cancelled) => Err(Meaning::Trouble(Trouble::Cancelled)),
            Err(Stopped::TimedOut) => Err(Meaning::Trouble(Trouble::TimedOut)),
            Ok(Ok(done)) => {
                if let Some(answer) = &trail.answer {
                    let kept = if answer.version.is_some() { VERSIONS_KEPT } else { VERSIONS_NONE };
                    // An answer about an object shows whether it has a version; an answer to a
                    // listing does not.
                    if kept == VERSIONS_KEPT || matches!(verb, Verb::Put | Verb::Head) {
                        self.versions.store(kept, Ordering::Relaxed);
                    }
                }
                Ok((done, trail))
            }
            Ok(Err(failed)) => Err(meaning(verb, failed, &trail)),
        }
    }

    /// As [`Remote::call`], with an error for each meaning.
    fn ask<T>(
        &self,
        (verb, name): (Verb, Option<&Name>),
        bytes: usize,
        cancel: &AtomicBool,
        call: impl Future<Output = Result<T, Failed>>,
    ) -> Result<(T, Trail), StoreError> {
        self.call(verb, time_for(bytes), cancel, None, call)
            .map_err(|meaning| self.blame.of(verb, name, trouble(meaning)))
    }

    fn s3(&self, verb: Verb, name: Option<&Name>, what: &'static str) -> Result<&S3, StoreError> {
        self.s3.as_ref().ok_or_else(|| self.blame.of(verb, name, Trouble::Unsupported(what)))
    }

    fn attributes(nonce: Nonce) -> Attributes {
        Attributes::from_iter([(Attribute::Metadata(NONCE_KEY.into()), nonce.to_string())])
    }

    /// A header for the request that ends an upload: it is refused if the name is taken.
    fn only_if_free(&self) -> Option<(HeaderName, HeaderValue)> {
        match self.service {
            Service::S3 => Some((http::header::IF_NONE_MATCH, HeaderValue::from_static("*"))),
            Service::Google => {
                let name = HeaderName::from_static("x-goog-if-generation-match");
                Some((name, HeaderValue::from_static("0")))
            }
            Service::Azure(_) => None,
        }
    }

    fn head_of(&self, verb: Verb, name: &Name, cancel: &AtomicBool) -> Result<(Head, Trail), StoreError> {
        let key = self.key(name);
        let options = GetOptions { head: true, ..GetOptions::default() };
        let outcome = self.call(verb, time_for(0), cancel, None, async {
            self.library.get_opts(&key, options).await.map_err(Failed::Library)
        });
        let (found, trail) = match outcome {
            Ok(found) => found,
            Err(Meaning::Trouble(Trouble::Missing | Trouble::NoBucket)) => {
                return Err(self.blame.of(verb, Some(name), Trouble::Missing));
            }
            Err(Meaning::Trouble(
                unnamed @ (Trouble::Forbidden | Trouble::Redirect(_) | Trouble::Server { .. }),
            )) => {
                // An answer to HEAD has no body, and so no code. A read has.
                let named = match self.get(name, 0, 1, cancel) {
                    Err(error) if !error.is_unclear() => error.trouble,
                    _ => unnamed,
                };
                return Err(self.blame.of(verb, Some(name), named));
            }
            Err(meaning) => return Err(self.blame.of(verb, Some(name), trouble(meaning))),
        };
        let nonce = found.attributes.get(&Attribute::Metadata(NONCE_KEY.into()));
        let head = Head {
            length: found.meta.size,
            tag: found.meta.e_tag.clone(),
            nonce: nonce.and_then(|text| Nonce::parse(text)),
            locked_until: trail.answer.as_ref().and_then(|answer| answer.locked_until),
        };
        Ok((head, trail))
    }
}

/// The meaning of a failed call.
fn meaning(verb: Verb, failed: Failed, trail: &Trail) -> Meaning {
    if let Some(broken) = &trail.broken {
        return Meaning::Trouble(broken.clone());
    }
    if let Some(answer) = trail.answer.as_ref().filter(|answer| !(200..300).contains(&answer.status)) {
        return codes::meaning(verb, answer);
    }
    let error = match failed {
        Failed::Senseless(what) => return Meaning::Trouble(Trouble::Answer(what)),
        Failed::Answered => return Meaning::Trouble(Trouble::Answer("there is none")),
        Failed::Library(error) => error,
    };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(NoCredentials(trouble)) = error.downcast_ref() {
            return Meaning::Trouble(Trouble::Credentials(*trouble));
        }
        if let Some(error) = error.downcast_ref() {
            // The connection broke while the body of a success was read.
            return Meaning::Trouble(broken_by(error));
        }
        cause = error.source();
    }
    Meaning::Trouble(match error {
        object_store::Error::NotFound { .. } => Trouble::Missing,
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            Trouble::Unsupported("this request")
        }
        _ => Trouble::Answer("it is not what the protocol demands"),
    })
}

fn trouble(meaning: Meaning) -> Trouble {
    match meaning {
        Meaning::Exists => Trouble::Conflict,
        Meaning::PastEnd => Trouble::Server { status: 416, code: None },
        Meaning::Trouble(trouble) => trouble,
    }
}

struct Setup<'a> {
    options: &'a Options,
    variables: Variables<'a>,
    endpoint: Option<(&'a str, bool)>,
    connector: Connector,
    bucket: &'a str,
}

impl Setup<'_> {
    fn retries() -> RetryConfig {
        RetryConfig { max_retries: 0, ..RetryConfig::default() }
    }

    fn client_options(&self) -> ClientOptions {
        let is_plain = self.endpoint.is_some_and(|(_, is_plain)| is_plain);
        ClientOptions::new().with_allow_http(is_plain)
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.variables)(name).filter(|value| !value.is_empty())
    }

    fn s3(&self) -> Result<(S3, Arc<dyn Library>), Trouble> {
        use object_store::aws::AmazonS3ConfigKey;
        let region = self.options.region.clone();
        let region =
            region.or_else(|| self.variable("AWS_REGION")).or_else(|| self.variable("AWS_DEFAULT_REGION"));
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let path_style = self.options.path_style.unwrap_or(self.endpoint.is_some());
        let is_plain = self.endpoint.is_some_and(|(_, is_plain)| is_plain);
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(self.bucket)
            .with_region(&region)
            .with_virtual_hosted_style_request(!path_style)
            .with_client_options(self.client_options())
            .with_retry(Self::retries())
            .with_http_connector(self.connector.clone())
            .with_disable_bulk_delete(true)
            .with_disable_tagging(true)
            // TLS protects the payload.
            .with_unsigned_payload(!is_plain);
        let bucket_url = match self.endpoint {
            Some((endpoint, _)) if path_style => {
                builder = builder.with_endpoint(endpoint);
                format!("{endpoint}/{}", self.bucket)
            }
            Some((endpoint, _)) => {
                let (scheme, host) = endpoint.split_once("://").unwrap_or(("https", endpoint));
                let hosted = format!("{scheme}://{}.{host}", self.bucket);
                builder = builder.with_endpoint(&hosted);
                hosted
            }
            None if path_style => format!("https://s3.{region}.amazonaws.com/{}", self.bucket),
            None => format!("https://{}.s3.{region}.amazonaws.com", self.bucket),
        };
        let with_key = |builder: AmazonS3Builder, key: &Key| {
            let provider = object_store::StaticCredentialProvider::new(credential_of(key));
            builder.with_credentials(Arc::new(provider))
        };
        builder = match &self.options.credentials {
            Credentials::Key(key) => with_key(builder, key),
            Credentials::File { path, section } => {
                let provider = FileProvider::open(path, section.as_deref()).map_err(Trouble::Credentials)?;
                builder.with_credentials(Arc::new(provider))
            }
            source => {
                let key = match source {
                    Credentials::Environment => key_in(self.variables).map_err(Trouble::Credentials)?,
                    _ => None,
                };
                match (key, source) {
                    (Some(key), _) => with_key(builder, &key),
                    (None, Credentials::Environment) if !self.names_a_role() => {
                        return Err(Trouble::Credentials(CredentialTrouble::Missing));
                    }
                    (None, _) => {
                        let roles = [
                            (AmazonS3ConfigKey::WebIdentityTokenFile, "AWS_WEB_IDENTITY_TOKEN_FILE"),
                            (AmazonS3ConfigKey::RoleArn, "AWS_ROLE_ARN"),
                            (AmazonS3ConfigKey::RoleSessionName, "AWS_ROLE_SESSION_NAME"),
                            (
                                AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
                                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                            ),
                            (
                                AmazonS3ConfigKey::ContainerCredentialsFullUri,
                                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                            ),
                            (
                                AmazonS3ConfigKey::ContainerAuthorizationTokenFile,
                                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                            ),
                            (AmazonS3ConfigKey::MetadataEndpoint, "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
                            (AmazonS3ConfigKey::StsEndpoint, "AWS_ENDPOINT_URL_STS"),
                        ];
                        for (key, variable) in roles {
                            if let Some(value) = self.variable(variable) {
                                builder = builder.with_config(key, value);
                            }
                        }
                        builder
                    }
                }
            }
        };
        let library = Arc::new(builder.build().map_err(unbuilt)?);
        let client = self.connector.client().map_err(|_| Trouble::Rule("no HTTP client can be made"))?;
        let s3 = S3 { library: library.clone(), client, region, bucket_url, signs_payload: is_plain };
        Ok((s3, library))
    }

    fn names_a_role(&self) -> bool {
        let names = [
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ];
        names.iter().any(|name| self.variable(name).is_some())
    }

    fn google(&self) -> Result<Arc<dyn Library>, Trouble> {
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(self.bucket)
            .with_client_options(self.client_options())
            .with_retry(Self::retries())
            .with_http_connector(self.connector.clone());
        if let Some((endpoint, _)) = self.endpoint {
            builder = builder.with_base_url(endpoint);
        }
        builder = match &self.options.credentials {
            Credentials::File { path, .. } => {
                let text = read_bounded(path).map_err(Trouble::Credentials)?;
                builder.with_service_account_key(text)
            }
            Credentials::Environment => {
                let file = self.variable("GOOGLE_APPLICATION_CREDENTIALS");
                let file = file.or_else(|| self.variable("GOOGLE_SERVICE_ACCOUNT"));
                let file = file.ok_or(Trouble::Credentials(CredentialTrouble::Missing))?;
                builder.with_application_credentials(file)
            }
            Credentials::Role => builder,
            Credentials::Key(_) => return Err(Trouble::Rule("Google takes a file or a role, and no key")),
        };
        Ok(Arc::new(builder.build().map_err(unbuilt)?))
    }

    fn azure(&self, account: &str) -> Result<Arc<dyn Library>, Trouble> {
        use object_store::azure::AzureConfigKey;
        let mut builder = MicrosoftAzureBuilder::new()
            .with_account(account)
            .with_container_name(self.bucket)
            .with_client_options(self.client_options())
            .with_retry(Self::retries())
            .with_disable_tagging(true)
            .with_http_connector(self.connector.clone());
        if let Some((endpoint, _)) = self.endpoint {
            builder = builder.with_endpoint(endpoint.to_owned());
        }
        let variables = [
            (AzureConfigKey::AccessKey, "AZURE_STORAGE_ACCOUNT_KEY"),
            (AzureConfigKey::AccessKey, "AZURE_STORAGE_KEY"),
            (AzureConfigKey::SasKey, "AZURE_STORAGE_SAS_TOKEN"),
            (AzureConfigKey::ClientId, "AZURE_CLIENT_ID"),
            (AzureConfigKey::ClientSecret, "AZURE_CLIENT_SECRET"),
            (AzureConfigKey::AuthorityId, "AZURE_TENANT_ID"),
            (AzureConfigKey::FederatedTokenFile, "AZURE_FEDERATED_TOKEN_FILE"),
        ];
        builder = match &self.options.credentials {
            Credentials::Key(key) => builder.with_access_key(key.secret.reveal()),
            Credentials::File { path, section } => {
                let key = key_of_file(path, section.as_deref()).map_err(Trouble::Credentials)?;
                builder.with_access_key(key.secret.reveal())
            }
            Credentials::Environment => {
                let mut found = false;
                for (key, variable) in variables {
                    if let Some(value) = self.variable(variable) {
                        builder = builder.with_config(key, value);
                        found = true;
                    }
                }
                if !found {
                    return Err(Trouble::Credentials(CredentialTrouble::Missing));
                }
                builder
            }
            Credentials::Role => builder,
        };
        Ok(Arc::new(builder.build().map_err(unbuilt)?))
    }
}

/// The text of the library may hold its settings, and so is not kept.
fn unbuilt(error: object_store::Error) -> Trouble {
    drop(error);
    Trouble::Credentials(CredentialTrouble::Unreadable)
}

impl Store for Remote {
    fn place(&self) -> &str {
        &self.blame.0
    }

    fn lists_in_order(&self) -> bool {
        true
    }

    fn put_new(
        &self,
        name: &Name,
        bytes: Bytes,
        nonce: Nonce,
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        if bytes.len() > PUT_BYTES_MAX {
            return Err(self.blame.of(
                Verb::Put,
                Some(name),
                Trouble::Rule("an object of one put is too long"),
            ));
        }
        let (key, length) = (self.key(name), bytes.len());
        let options = PutOptions {
            mode: PutMode::Create,
            attributes: Self::attributes(nonce),
            ..PutOptions::default()
        };
        let outcome = self.call(Verb::Put, time_for(length), cancel, None, async {
            self.library.put_opts(&key, bytes.into(), options).await.map_err(Failed::Library)
        });
        match outcome {
            Ok(_) => Ok(Put::Created),
            Err(Meaning::Exists) => Ok(Put::Exists),
            Err(meaning) => Err(self.blame.of(Verb::Put, Some(name), trouble(meaning))),
        }
    }

    fn begin(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError> {
        let key = self.key(name);
        let options =
            PutMultipartOptions { attributes: Self::attributes(nonce), ..PutMultipartOptions::default() };
        let begun = self.ask((Verb::PutPieces, Some(name)), 0, cancel, async {
            self.library.create_multipart_opts(&key, options).await.map_err(Failed::Library)
        });
        Ok(Upload { name: name.clone(), id: begun?.0 })
    }

    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError> {
        let name = Some(&upload.name);
        if number == 0 || number > PIECES_MAX || bytes.len() > PIECE_BYTES_MAX {
            let rule = "a piece has a number from 1 to 10,000 and at most 64 MiB";
            return Err(self.blame.of(Verb::PutPieces, name, Trouble::Rule(rule)));
        }
        let (key, length) = (self.key(&upload.name), bytes.len());
        let (part, _) = self.ask((Verb::PutPieces, name), length, cancel, async {
            let index = number as usize - 1;
            self.library.put_part(&key, &upload.id, index, bytes.into()).await.map_err(Failed::Library)
        })?;
        Ok(Piece { number, length: length as u64, tag: part.content_id })
    }

    fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        let name = Some(&upload.name);
        let s3 = self.s3(Verb::PutPieces, name, "listing the pieces of an upload")?;
        let key = self.key_text(&upload.name);
        Ok(self.ask((Verb::PutPieces, name), 0, cancel, s3.pieces(&key, &upload.id))?.0)
    }

    fn finish(
        &self,
        upload: &Upload,
        _nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        let name = Some(&upload.name);
        let in_order = (1..).zip(pieces).all(|(number, piece): (u32, _)| piece.number == number);
        if pieces.is_empty() || !in_order {
            let rule = "an upload is finished with all pieces from the first one on";
            return Err(self.blame.of(Verb::PutPieces, name, Trouble::Rule(rule)));
        }
        let extra = self.only_if_free();
        if extra.is_none() {
            match self.head(&upload.name, cancel) {
                Ok(_) => return Ok(Put::Exists),
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        let key = self.key(&upload.name);
        let parts = pieces.iter().map(|piece| PartId { content_id: piece.tag.clone() }).collect();
        let outcome = self.call(Verb::PutPieces, JOIN_TIME_MAX, cancel, extra, async {
            self.library.complete_multipart(&key, &upload.id, parts).await.map_err(Failed::Library)
        });
        match outcome {
            Ok(_) => Ok(Put::Created),
            Err(Meaning::Exists) => Ok(Put::Exists),
            Err(meaning) => Err(self.blame.of(Verb::PutPieces, name, trouble(meaning))),
        }
    }

    fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError> {
        let (name, key) = (Some(&upload.name), self.key(&upload.name));
        let outcome = self.ask((Verb::PutPieces, name), 0, cancel, async {
            self.library.abort_multipart(&key, &upload.id).await.map_err(Failed::Library)
        });
        match outcome {
            Err(error) if !matches!(error.trouble, Trouble::NoUpload | Trouble::Missing) => Err(error),
            _ => Ok(()),
        }
    }

    fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        let s3 = self.s3(Verb::List, None, "listing uploads")?;
        let prefix = format!("{}{prefix}", self.base);
        let (found, _) = self.ask((Verb::List, None), 0, cancel, s3.uploads(&prefix))?;
        let upload = |listed: s3::Listed| Some(Upload { name: self.name(&listed.key)?, id: listed.id });
        let mut uploads: Vec<Upload> = found.into_iter().filter_map(upload).collect();
        uploads.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
        Ok(uploads)
    }

    fn get(&self, name: &Name, offset: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, StoreError> {
        let mut pieces = self.get_pieces(name, offset, length, cancel)?;
        Ok(match pieces.len() {
            0 => Bytes::new(),
            1 => pieces.remove(0),
            _ => pieces.concat().into(),
        })
    }

    fn get_pieces(
        &self,
        name: &Name,
        offset: u64,
        length: usize,
        cancel: &AtomicBool,
    ) -> Result<Vec<Bytes>, StoreError> {
        let of = |trouble| self.blame.of(Verb::Get, Some(name), trouble);
        if length > GET_BYTES_MAX {
            return Err(of(Trouble::Rule("a read is longer than 64 MiB")));
        }
        if length == 0 {
            return Ok(Vec::new());
        }
        let (library, key) = (self.library.clone(), self.key(name));
        let range = GetRange::Bounded(offset..offset.saturating_add(length as u64));
        let options = GetOptions { range: Some(range), ..GetOptions::default() };
        const TOO_LONG: &str = "it is longer than what was asked for";
        let ran = self.net.run_apart(time_for(length), cancel, async move {
            let found = library.get_opts(&key, options).await.map_err(Failed::Library)?;
            if found.range.end - found.range.start > length as u64 {
                return Err(Failed::Senseless(TOO_LONG));
            }
            let (mut stream, mut pieces, mut have) = (found.into_stream(), Vec::new(), 0);
            while let Some(piece) = poll_fn(|context| stream.as_mut().poll_next(context)).await {
                let piece = piece.map_err(Failed::Library)?;
                have += piece.len();
                if have > length {
                    return Err(Failed::Senseless(TOO_LONG));
                }
                pieces.push(piece);
            }
            Ok(pieces)
        });
        match self.judge(Verb::Get, ran) {
            Ok((pieces, _)) => Ok(pieces),
            Err(Meaning::PastEnd) => Ok(Vec::new()),
            Err(meaning) => Err(of(trouble(meaning))),
        }
    }

    fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<Head, StoreError> {
        Ok(self.head_of(Verb::Head, name, cancel)?.0)
    }

    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<Page, StoreError> {
        let whole = format!("{}{prefix}", self.base);
        let (mut options, mut after) = (PaginatedListOptions::default(), None);
        options.max_keys = Some(count.clamp(1, PAGE_OBJECTS_MAX));
        match from {
            ListFrom::Start => {}
            ListFrom::Page(cursor) => options.page_token = Some(cursor.0.clone()),
            ListFrom::After(name) => {
                after = Some(name);
                // Azure has no such start: its pages are cut here.
                if !matches!(self.service, Service::Azure(_)) {
                    options.offset = Some(self.key_text(name));
                }
            }
        }
        let (found, _) = self.ask((Verb::List, None), 0, cancel, async {
            let prefix = (!whole.is_empty()).then_some(whole.as_str());
            self.library.list_paginated(prefix, options).await.map_err(Failed::Library)
        })?;
        let listed = |meta: object_store::ObjectMeta| {
            let name = self.name(meta.location.as_ref())?;
            let created = u64::try_from(meta.last_modified.timestamp_nanos_opt()?).ok()?;
            Some(Listed { name, length: meta.size, created: Timestamp(created) })
        };
        let mut objects: Vec<Listed> = found.result.objects.into_iter().filter_map(listed).collect();
        if let Some(after) = after {
            objects.retain(|listed| listed.name > *after);
        }
        Ok(Page { objects, next: found.page_token.map(Cursor) })
    }

    fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError> {
        let key = self.key(name);
        if let Some(s3) = &self.s3
            && self.versions.load(Ordering::Relaxed) != VERSIONS_NONE
        {
            let (head, trail) = match self.head_of(Verb::Delete, name, cancel) {
                Err(error) if error.is_missing() => return Ok(()),
                found => found?,
            };
            let version = trail.answer.and_then(|answer| answer.version);
            if let Some(version) = version {
                let text = self.key_text(name);
                let outcome =
                    self.ask((Verb::Delete, Some(name)), 0, cancel, s3.delete_version(&text, &version));
                return match outcome {
                    // Stores refuse a lock in several words.
                    Err(StoreError {
                        trouble: Trouble::Forbidden | Trouble::Server { status: 400, .. },
                        ..
                    }) if head.locked_until.is_some() => {
                        Err(self.blame.of(Verb::Delete, Some(name), Trouble::Locked(head.locked_until)))
                    }
                    Err(error) if error.is_missing() => Ok(()),
                    outcome => outcome.map(|_| ()),
                };
            }
        }
        let outcome = self.ask((Verb::Delete, Some(name)), 0, cancel, async {
            self.library.delete(&key).await.map_err(Failed::Library)
        });
        match outcome {
            Err(error) if error.is_missing() => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }

    fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError> {
        let s3 = self.s3(Verb::Lock, Some(name), "locks")?;
        let key = self.key_text(name);
        // The protocol has whole seconds.
        let until = Timestamp(until.0.next_multiple_of(1_000_000_000));
        let error = match self.ask((Verb::Lock, Some(name)), 0, cancel, s3.lock(&key, until)) {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if !matches!(
            error.trouble,
            Trouble::Forbidden | Trouble::Locked(_) | Trouble::Server { status: 400, .. }
        ) {
            return Err(error);
        }
        // A longer lock is refused as if the right were missing.
        match self.head(name, cancel)?.locked_until {
            Some(held) if held >= until => Ok(()),
            _ => Err(error),
        }
    }
}
