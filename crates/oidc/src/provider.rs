//! The description of a provider and its keys, as it publishes them.
//!
//! Both are kept for a while. The keys are fetched again when a token names an unknown one, at most
//! once a minute: otherwise any client could have this server send requests. A failure is kept for
//! some seconds, so that a provider that hangs holds up one sign-in and not all.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::Clock;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{AlgorithmFamily, DecodingKey};
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::failure::{Failure, plain};
use crate::settings::{Settings, is_loopback, is_private};
use crate::token::Signed;
use crate::web::{Answer, Web, place};

/// A description and keys are used for so long.
const AGE_MAX: Duration = Duration::from_secs(3600);

/// The least time between two requests for keys.
const KEYS_EVERY: Duration = Duration::from_secs(60);

/// A failure is the answer for so long.
const FAILURE_KEPT: Duration = Duration::from_secs(5);

/// More keys are a mistake.
const KEYS_MAX: usize = 100;

/// Where the description is, below the issuer.
const WELL_KNOWN: &str = "/.well-known/openid-configuration";

const ISSUER_NEXT: &str = "compare the issuer of `cairn oidc show` with the documentation of the provider";

/// The parts of a description that are used (OpenID Connect Discovery 1.0, section 3).
#[derive(Debug, Clone, Deserialize)]
struct Document {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    userinfo_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    scopes_supported: Option<Vec<String>>,
    code_challenge_methods_supported: Option<Vec<String>>,
}

/// The same after its checks.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) authorization: Url,
    pub(crate) token: Url,
    keys: Url,
    /// Further claims of a person.
    pub(crate) person: Option<Url>,
    /// The provider wants the secret in the form and not in the header.
    pub(crate) secret_in_form: bool,
    pub(crate) scopes: Vec<String>,
}

/// A provider that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Where browsers are sent.
    pub authorization: String,
    /// Where codes are exchanged.
    pub token: String,
    /// Keys that can sign.
    pub keys: usize,
    /// Scopes that a sign-in asks for.
    pub scopes: Vec<String>,
}

#[derive(Default)]
struct State {
    described: Option<(Described, Duration)>,
    failed: Option<(Failure, Duration)>,
    keys: Vec<Jwk>,
    keys_at: Option<Duration>,
    /// Why the last request for keys brought none.
    keys_failed: Option<Failure>,
}

/// A provider.
pub(crate) struct Provider {
    issuer: String,
    own_scopes: Vec<String>,
    pub(crate) web: Web,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

impl Provider {
    pub(crate) fn new(settings: &Settings, clock: Arc<dyn Clock>) -> Result<Self, Failure> {
        Ok(Self {
            issuer: settings.issuer.clone(),
            own_scopes: settings.scopes.clone(),
            web: Web::new(settings.authority.as_deref())?,
            clock,
            state: Mutex::default(),
        })
    }

    /// The description, fetched if it is not known.
    pub(crate) async fn described(&self) -> Result<Described, Failure> {
        let mut state = self.state.lock().await;
        let now = self.clock.monotonic();
        let is_within = |at: Duration, limit: Duration| now.saturating_sub(at) < limit;
        if let Some((described, _)) = state.described.as_ref().filter(|(_, at)| is_within(*at, AGE_MAX)) {
            return Ok(described.clone());
        }
        if let Some((failure, _)) = state.failed.as_ref().filter(|(_, at)| is_within(*at, FAILURE_KEPT)) {
            return Err(failure.clone());
        }
        match self.fetch_description().await {
            Ok(described) => {
                state.described = Some((described.clone(), self.clock.monotonic()));
                state.failed = None;
                Ok(described)
            }
            Err(failure) => {
                state.failed = Some((failure.clone(), self.clock.monotonic()));
                Err(failure)
            }
        }
    }

    /// The key of a token.
    pub(crate) async fn key_of(&self, token: &Signed<'_>) -> Result<Jwk, Failure> {
        let described = self.described().await?;
        let mut state = self.state.lock().await;
        let age = state.keys_at.map(|at| self.clock.monotonic().saturating_sub(at));
        let found = token.key(&state.keys).cloned();
        match (found, age) {
            (Some(key), Some(age)) if age < AGE_MAX => return Ok(key),
            (None, Some(age)) if age < KEYS_EVERY => {
                return Err(state.keys_failed.clone().unwrap_or_else(|| token.unknown_key()));
            }
            _ => {}
        }
        // Also a request counts that fails, or that the caller's limit cuts.
        state.keys_at = Some(self.clock.monotonic());
        state.keys.clear();
        state.keys_failed =
            Some(Failure::provider("the provider did not give its keys", "try again in a minute"));
        let fetched = self.fetch_keys(&described).await;
        state.keys_failed = fetched.as_ref().err().cloned();
        state.keys = fetched?;
        token.key(&state.keys).cloned().ok_or_else(|| token.unknown_key())
    }

    /// Asks the provider now.
    pub(crate) async fn test(&self) -> Result<Found, Failure> {
        let described = self.fetch_description().await?;
        let keys = self.fetch_keys(&described).await?;
        if keys.is_empty() {
            return Err(Failure::provider("the provider publishes no key that can be used", ISSUER_NEXT));
        }
        let mut state = self.state.lock().await;
        state.failed = None;
        state.described = Some((described.clone(), self.clock.monotonic()));
        Ok(Found {
            authorization: described.authorization.to_string(),
            token: described.token.to_string(),
            keys: keys.len(),
            scopes: described.scopes,
        })
    }

    async fn fetch_description(&self) -> Result<Described, Failure> {
        let address = format!("{}{WELL_KNOWN}", self.issuer.trim_end_matches('/'));
        let broken = |_| Failure::provider("the issuer is no URL", "set it again with `cairn oidc set`");
        let url = Url::parse(&address).map_err(broken)?;
        let document: Document = read(self.web.get(&url).await?, &url, "description")?;
        if document.issuer != self.issuer {
            let message = format!("the provider calls itself `{}`", plain(&document.issuer, 200));
            return Err(Failure::provider(message, "give exactly that to `cairn oidc set --issuer`"));
        }
        let is_local = is_loopback(&url) && url.scheme() == "http";
        let endpoint = |text: &str| {
            let url = Url::parse(text).ok().filter(|url| url.has_host() && url.fragment().is_none());
            // A provider elsewhere must not send a secret to a program of this machine.
            let url = url.filter(|url| url.scheme() == "https" || (is_local && is_private(url)));
            let message =
                || format!("the provider names the address `{}`, which has no https", plain(text, 200));
            url.ok_or_else(|| Failure::provider(message(), ISSUER_NEXT))
        };
        let methods = &document.code_challenge_methods_supported;
        if methods.as_ref().is_some_and(|methods| !methods.iter().any(|method| method == "S256")) {
            let next = "use a provider that supports PKCE with S256";
            return Err(Failure::provider("the provider does not support PKCE with S256", next));
        }
        let ways = document.token_endpoint_auth_methods_supported.unwrap_or_default();
        let has = |way: &str| ways.iter().any(|one| one == way);
        Ok(Described {
            authorization: endpoint(&document.authorization_endpoint)?,
            token: endpoint(&document.token_endpoint)?,
            keys: endpoint(&document.jwks_uri)?,
            person: document.userinfo_endpoint.as_deref().map(endpoint).transpose()?,
            secret_in_form: has("client_secret_post") && !has("client_secret_basic"),
            scopes: self.scopes(&document.scopes_supported.unwrap_or_default()),
        })
    }

    fn scopes(&self, supported: &[String]) -> Vec<String> {
        let mut scopes = vec!["openid".to_owned()];
        let has = |scope: &str| supported.iter().any(|one| one == scope);
        let mut own = self.own_scopes.clone();
        if own.is_empty() {
            own = ["profile", "email"].map(str::to_owned).to_vec();
            own.extend(has("groups").then(|| "groups".to_owned()));
        }
        scopes.extend(own.into_iter().filter(|scope| scope != "openid"));
        scopes
    }

    async fn fetch_keys(&self, described: &Described) -> Result<Vec<Jwk>, Failure> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = read(self.web.get(&described.keys).await?, &described.keys, "set of keys")?;
        // A key of a kind that is not known is no fault of the others.
        let known = set.keys.into_iter().take(KEYS_MAX).filter_map(|key| serde_json::from_value(key).ok());
        let is_public = |key: &DecodingKey| key.family() != AlgorithmFamily::Hmac;
        Ok(known.filter(|key| DecodingKey::from_jwk(key).is_ok_and(|key| is_public(&key))).collect())
    }
}

/// The object in a successful answer.
pub(crate) fn read<T: serde::de::DeserializeOwned>(
    answer: Answer,
    url: &Url,
    what: &str,
) -> Result<T, Failure> {
    let place = place(url);
    if answer.status != StatusCode::OK {
        let message = format!("{place} answers {} instead of its {what}", answer.status.as_u16());
        return Err(Failure::provider(message, ISSUER_NEXT));
    }
    serde_json::from_slice(&answer.body)
        .map_err(|_| Failure::provider(format!("the {what} of {place} cannot be read"), ISSUER_NEXT))
}
