//! People who signed in by an identity provider: `DIR/oidc.json`, which has the settings of the
//! provider with its secret, and the rules that give people a role.
//!
//! A person who signed in has a grant, in memory, which a session of the page names. The grant
//! names the rule. So a session ends with its rule, when the rule expires, when the provider is
//! deleted, and when the server ends. Claims are read once, at the sign-in: a change at the
//! provider counts at the next sign-in, at most [`SESSION_MAX`] later.
//!
//! Lock order: `document`, `client`, `grants`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_api::{self as api, CreateOidcRule, OidcRule, Role, SetOidc};
use cairn_base::Clock;
use cairn_oidc::{Client, Failure, Fault, Matcher, Person, Secret, Settings};
use cairn_web::{Begun, Later, NotSignedIn, Provider, ProviderShown, Returned};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::actors::Actor;
use crate::actors::error::ActorsError;
use crate::error::ServerError;
use crate::names;
use crate::peers::token::{random_bytes, random_name};
use crate::state;
use crate::state::Unread;

/// The start of the identity of a grant. The identity of a token has hexadecimal digits only.
const PREFIX: &str = "oidc:";

/// A session lasts at most so long.
const SESSION_MAX: Duration = Duration::from_secs(12 * 3600);

/// A shorter session is a mistake.
const SESSION_MIN: Duration = Duration::from_secs(60);

/// A longer expiry is a mistake.
const EXPIRY_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// More rules are a mistake.
const RULES_MAX: usize = 1000;

/// Claims in one rule.
const CLAIMS_MAX: usize = 10;

/// People who are signed in. Past that the oldest one has to sign in again.
const GRANTS_MAX: usize = 1000;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Rule {
    name: String,
    /// Random: another rule may get the name later.
    series: String,
    claims: Vec<Matcher>,
    role: Role,
    volumes: Vec<String>,
    created_ms: u64,
    expires_ms: Option<u64>,
    session_ms: u64,
    /// The expiry by the monotonic clock, in this run of the program.
    #[serde(skip)]
    ends: Option<Duration>,
}

/// The content of `oidc.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct OidcDocument {
    #[serde(default)]
    settings: Option<Settings>,
    #[serde(default)]
    rules: Vec<Rule>,
}

/// A person who signed in.
struct Grant {
    identity: String,
    /// `oidc:PERSON`.
    name: String,
    /// The series of the rule that admitted the person.
    series: String,
    /// By the monotonic clock.
    ends: Duration,
}

/// Sign-in by an identity provider.
pub(crate) struct Oidc {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    document: Mutex<OidcDocument>,
    /// The settings and rules are unknown: none is admitted.
    unread: Mutex<Option<Unread>>,
    /// Made of the settings when it is needed.
    client: Mutex<Option<Arc<Client>>>,
    grants: Mutex<Vec<Grant>>,
}

const fn invalid(fault: &'static str, next: &'static str) -> ServerError {
    ServerError::Invalid { fault, next }
}

/// There is no such rule.
fn no_rule(name: &str) -> ServerError {
    ServerError::NotFound { what: "rule", name: name.to_owned(), list: "cairn oidc rule list" }
}

/// The rule for an empty text, which removes a value; a missing one keeps it.
fn kept_or(set: Option<&str>, old: Option<String>) -> Option<String> {
    match set.map(str::trim) {
        Some("") => None,
        Some(text) => Some(text.to_owned()),
        None => old,
    }
}

/// The settings of a request, the others as they were.
fn settings_of(asked: &SetOidc, old: Option<&Settings>) -> Result<Settings, ServerError> {
    let text = |set: &Option<String>, old: Option<&String>, fault, next| {
        set.as_deref()
            .map(str::trim)
            .or(old.map(String::as_str))
            .map(str::to_owned)
            .ok_or(invalid(fault, next))
    };
    let issuer = text(
        &asked.issuer,
        old.map(|old| &old.issuer),
        "the provider has no address yet",
        "give it with --issuer, as the documentation of the provider shows it",
    )?;
    // Another provider must not learn the secret.
    let kept = old.filter(|old| old.issuer == issuer);
    let secret = match &asked.client_secret {
        Some(api::Hidden(text)) => Some(Secret::new(text)).filter(|secret| !secret.expose().is_empty()),
        None => kept.and_then(|old| old.secret.clone()),
    };
    let name = match (&asked.name, old) {
        (Some(name), _) => name.trim().to_owned(),
        (None, Some(old)) if old.name != Settings::default_name(&old.issuer) => old.name.clone(),
        (None, _) => Settings::default_name(&issuer),
    };
    let settings = Settings {
        name,
        client_id: text(
            &asked.client_id,
            old.map(|old| &old.client_id),
            "the client ID is missing",
            "register this server at the provider, and give its ID with --client-id",
        )?,
        redirect_url: text(
            &asked.redirect_url,
            old.map(|old| &old.redirect_url),
            "the redirect URL is missing",
            "give the address of this page and /oidc, such as --redirect-url https://storage1:7400/oidc",
        )?,
        secret,
        scopes: asked.scopes.clone().or(old.map(|old| old.scopes.clone())).unwrap_or_default(),
        authority: kept_or(asked.authority.as_deref(), old.and_then(|old| old.authority.clone())),
        issuer,
    };
    settings.check().map_err(|error| invalid(error.fault, error.next))?;
    Ok(settings)
}

/// A failure as an error of the API.
fn failed(failure: Failure) -> ServerError {
    ActorsError::Provider { message: failure.message, next: failure.next }.into()
}

fn not_signed_in(failure: Failure) -> NotSignedIn {
    let is_refused = failure.fault == Fault::Refused;
    NotSignedIn { message: failure.message, next: failure.next, is_refused }
}

impl Oidc {
    /// The provider and the rules in `dir`.
    pub(crate) fn open(dir: &Path, clock: Arc<dyn Clock>) -> Arc<Self> {
        let oidc = Self {
            path: dir.join("oidc.json"),
            clock,
            document: Mutex::default(),
            unread: Mutex::default(),
            client: Mutex::default(),
            grants: Mutex::default(),
        };
        oidc.read();
        Arc::new(oidc)
    }

    /// Loads the present content of the file.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<OidcDocument>(&self.path);
        let mut document = document.unwrap_or_default();
        let (wall_ms, now) = (self.wall_ms(), self.clock.monotonic());
        for rule in &mut document.rules {
            let left = |expires_ms: u64| now + Duration::from_millis(expires_ms.saturating_sub(wall_ms));
            rule.ends = rule.expires_ms.map(left);
        }
        *self.document.lock() = document;
        *self.client.lock() = None;
        *self.unread.lock() = unread;
    }

    fn wall_ms(&self) -> u64 {
        self.clock.now().0 / 1_000_000
    }

    fn refuse_unread(&self) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())
    }

    fn has_expired(&self, rule: &Rule) -> bool {
        rule.expires_ms.is_some_and(|expires_ms| self.wall_ms() >= expires_ms)
            || rule.ends.is_some_and(|ends| self.clock.monotonic() >= ends)
    }

    /// The client with this identity; none when its grant has ended.
    pub(crate) fn actor(&self, identity: &str) -> Option<Actor> {
        if !identity.starts_with(PREFIX) || self.unread.lock().is_some() {
            return None;
        }
        let document = self.document.lock();
        document.settings.as_ref()?;
        let now = self.clock.monotonic();
        let grants = self.grants.lock();
        let grant = grants.iter().find(|grant| grant.identity == identity && now < grant.ends)?;
        let rule = document.rules.iter().find(|rule| rule.series == grant.series)?;
        if self.has_expired(rule) {
            return None;
        }
        let volumes = (!rule.volumes.is_empty()).then(|| rule.volumes.iter().cloned().collect());
        let (name, token) = (grant.name.clone(), Some(identity.to_owned()));
        Some(Actor { name, role: rule.role, volumes, from: None, token })
    }

    /// Ends a grant.
    pub(crate) fn forget(&self, identity: &str) {
        self.grants.lock().retain(|grant| grant.identity != identity);
    }

    /// Grants that are valid, by the series of their rules.
    fn sessions(&self, is_of: impl Fn(&str) -> bool) -> u64 {
        let now = self.clock.monotonic();
        let grants = self.grants.lock();
        grants.iter().filter(|grant| now < grant.ends && is_of(&grant.series)).count() as u64
    }

    fn described(&self, settings: &Settings, document: &OidcDocument) -> api::Oidc {
        let live =
            |series: &str| document.rules.iter().any(|rule| rule.series == series && !self.has_expired(rule));
        api::Oidc {
            name: settings.name.clone(),
            issuer: settings.issuer.clone(),
            client_id: settings.client_id.clone(),
            has_secret: settings.secret.is_some(),
            redirect_url: settings.redirect_url.clone(),
            scopes: settings.scopes.clone(),
            has_authority: settings.authority.is_some(),
            sessions: self.sessions(live),
        }
    }

    /// The settings of the provider.
    pub(crate) fn show(&self) -> Result<api::Oidc, ServerError> {
        self.refuse_unread()?;
        let document = self.document.lock();
        let settings = document.settings.as_ref().ok_or(ActorsError::NoProvider)?;
        Ok(self.described(settings, &document))
    }

    /// Sets the provider. Another provider, or another client of it, ends all sessions.
    pub(crate) fn set(&self, asked: &SetOidc) -> Result<api::Oidc, ServerError> {
        self.refuse_unread()?;
        let mut document = self.document.lock();
        let settings = settings_of(asked, document.settings.as_ref())?;
        // It reads the certificates.
        let client = Client::new(settings.clone(), self.clock.clone()).map_err(failed)?;
        let is_same = document
            .settings
            .as_ref()
            .is_some_and(|old| old.issuer == settings.issuer && old.client_id == settings.client_id);
        let new = OidcDocument { settings: Some(settings.clone()), ..document.clone() };
        state::save(&self.path, &new)?;
        *document = new;
        *self.client.lock() = Some(Arc::new(client));
        if !is_same {
            self.grants.lock().clear();
        }
        Ok(self.described(&settings, &document))
    }

    /// Deletes the provider. Its sessions end, and the rules stay.
    pub(crate) fn delete(&self) -> Result<(), ServerError> {
        self.refuse_unread()?;
        let mut document = self.document.lock();
        if document.settings.is_none() {
            return Err(ActorsError::NoProvider.into());
        }
        let new = OidcDocument { settings: None, ..document.clone() };
        state::save(&self.path, &new)?;
        *document = new;
        *self.client.lock() = None;
        self.grants.lock().clear();
        Ok(())
    }

    /// The client of the provider; none without one.
    fn client(&self) -> Result<Option<Arc<Client>>, Failure> {
        if self.unread.lock().is_some() {
            return Ok(None);
        }
        let document = self.document.lock();
        let Some(settings) = &document.settings else { return Ok(None) };
        let mut client = self.client.lock();
        if client.is_none() {
            *client = Some(Arc::new(Client::new(settings.clone(), self.clock.clone())?));
        }
        Ok(client.clone())
    }

    /// Asks the provider now.
    pub(crate) async fn test(&self) -> Result<api::OidcTest, ServerError> {
        self.refuse_unread()?;
        let client = self.client().map_err(failed)?.ok_or(ActorsError::NoProvider)?;
        let found = client.test().await.map_err(failed)?;
        Ok(api::OidcTest {
            authorization: found.authorization,
            token: found.token,
            keys: found.keys as u64,
            scopes: found.scopes,
        })
    }

    fn show_rule(&self, rule: &Rule) -> OidcRule {
        OidcRule {
            name: rule.name.clone(),
            claims: rule.claims.iter().map(ToString::to_string).collect(),
            role: rule.role,
            volumes: rule.volumes.clone(),
            created_ms: rule.created_ms,
            expires_ms: rule.expires_ms,
            expired: self.has_expired(rule),
            session_ms: rule.session_ms,
            sessions: self.sessions(|series| series == rule.series && !self.has_expired(rule)),
        }
    }

    /// All rules, in the order in which they are tried.
    pub(crate) fn rules(&self) -> Result<Vec<OidcRule>, ServerError> {
        self.refuse_unread()?;
        Ok(self.document.lock().rules.iter().map(|rule| self.show_rule(rule)).collect())
    }

    /// Creates a rule, which is tried after all others.
    pub(crate) fn create_rule(&self, asked: &CreateOidcRule) -> Result<OidcRule, ServerError> {
        self.refuse_unread()?;
        names::check("rule", &asked.name)?;
        for volume in &asked.volumes {
            names::check("volume", volume)?;
        }
        let claims: Result<Vec<Matcher>, _> = asked.claims.iter().map(|text| text.parse()).collect();
        let claims = claims.ok().filter(|claims| (1..=CLAIMS_MAX).contains(&claims.len())).ok_or(invalid(
            "a rule has 1 to 10 claims of the person, each as CLAIM=VALUE",
            "give a claim such as --claim groups=storage-admins",
        ))?;
        let expires = asked.expires_ms.map(Duration::from_millis);
        if expires.is_some_and(|expires| expires.is_zero() || expires > EXPIRY_MAX) {
            return Err(invalid(
                "a rule expires after at least 1 ms and at most 100 years",
                "give a time such as --expires 30d, or leave it out",
            ));
        }
        let session = asked.session_ms.map_or(SESSION_MAX, Duration::from_millis);
        if !(SESSION_MIN..=SESSION_MAX).contains(&session) {
            return Err(invalid(
                "a session lasts at least 1 minute and at most 12 hours",
                "give a time such as --session 8h, or leave it out",
            ));
        }
        let mut document = self.document.lock();
        if document.rules.iter().any(|rule| rule.name == asked.name) {
            return Err(ServerError::Taken { what: "rule", name: asked.name.clone() });
        }
        if document.rules.len() >= RULES_MAX {
            return Err(invalid(
                "there are 1000 rules",
                "delete those that are not used with `cairn oidc rule delete`",
            ));
        }
        let created_ms = self.wall_ms();
        let rule = Rule {
            name: asked.name.clone(),
            series: random_name(),
            claims,
            role: asked.role,
            volumes: asked.volumes.clone(),
            created_ms,
            expires_ms: asked.expires_ms.map(|expires| created_ms.saturating_add(expires)),
            session_ms: session.as_millis() as u64,
            ends: expires.map(|expires| self.clock.monotonic() + expires),
        };
        let mut new = document.clone();
        new.rules.push(rule.clone());
        state::save(&self.path, &new)?;
        *document = new;
        Ok(self.show_rule(&rule))
    }

    /// Deletes a rule. The sessions of people that it admitted end.
    pub(crate) fn delete_rule(&self, name: &str) -> Result<(), ServerError> {
        self.refuse_unread()?;
        let mut document = self.document.lock();
        let series = document.rules.iter().find(|rule| rule.name == name).map(|rule| rule.series.clone());
        let series = series.ok_or_else(|| no_rule(name))?;
        let mut new = document.clone();
        new.rules.retain(|rule| rule.name != name);
        state::save(&self.path, &new)?;
        *document = new;
        self.grants.lock().retain(|grant| grant.series != series);
        Ok(())
    }

    /// Grants a person the access of the first rule that matches, and returns the identity.
    fn grant(&self, person: &Person) -> Result<String, NotSignedIn> {
        let document = self.document.lock();
        let admits = |rule: &&Rule| {
            !self.has_expired(rule) && rule.claims.iter().all(|matcher| matcher.matches(person))
        };
        let Some(rule) = document.rules.iter().find(admits) else {
            return Err(NotSignedIn {
                message: format!(
                    "no rule admits {}; the provider sent these claims: {}",
                    person.name(),
                    person.described()
                ),
                next: "ask an administrator for a rule of `cairn oidc rule create` that matches a claim"
                    .to_owned(),
                is_refused: true,
            });
        };
        let secret: String = random_bytes::<32>().iter().map(|byte| format!("{byte:02x}")).collect();
        let now = self.clock.monotonic();
        let grant = Grant {
            identity: format!("{PREFIX}{secret}"),
            name: format!("{PREFIX}{}", person.name()),
            series: rule.series.clone(),
            ends: now + Duration::from_millis(rule.session_ms).min(SESSION_MAX),
        };
        let identity = grant.identity.clone();
        let mut grants = self.grants.lock();
        grants.retain(|grant| now < grant.ends);
        if grants.len() >= GRANTS_MAX {
            grants.remove(0);
        }
        grants.push(grant);
        Ok(identity)
    }
}

impl Provider for Oidc {
    fn shown(&self) -> Option<ProviderShown> {
        if self.unread.lock().is_some() {
            return None;
        }
        let document = self.document.lock();
        let settings = document.settings.as_ref()?;
        Some(ProviderShown { name: settings.name.clone(), origin: settings.origin() })
    }

    fn begin(&self, from: Option<IpAddr>) -> Later<'_, Begun> {
        Box::pin(async move {
            let client = self.client().map_err(not_signed_in)?.ok_or_else(gone)?;
            let begun = client.begin(from).await.map_err(not_signed_in)?;
            Ok(Begun { url: begun.url, binding: begun.binding })
        })
    }

    fn finish(&self, binding: String, returned: Returned) -> Later<'_, String> {
        Box::pin(async move {
            let client = self.client().map_err(not_signed_in)?.ok_or_else(gone)?;
            let Returned { state, code, error, description, .. } = returned;
            let returned = cairn_oidc::Returned { state, code, error, description };
            let person = client.finish(&binding, &returned).await.map_err(not_signed_in)?;
            // The provider may have been replaced meanwhile.
            let now = self.client().map_err(not_signed_in)?;
            if !now.is_some_and(|now| Arc::ptr_eq(&now, &client)) {
                return Err(gone());
            }
            self.grant(&person)
        })
    }
}

fn gone() -> NotSignedIn {
    NotSignedIn {
        message: "the identity provider was deleted or changed".to_owned(),
        next: "sign in again".to_owned(),
        is_refused: true,
    }
}

#[cfg(test)]
mod tests;
