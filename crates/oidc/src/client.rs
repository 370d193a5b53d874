//! Sign-ins: each begins with an address of the provider and ends with a person.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_base::Clock;
use cairn_notify::Secret;
use parking_lot::Mutex;
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::claims::Person;
use crate::failure::{Failure, plain};
use crate::provider::{Described, Found, Provider, read};
use crate::settings::Settings;
use crate::token::{Expected, Signed};

/// A sign-in must end within this time.
const PENDING_MAX: Duration = Duration::from_secs(600);

/// Sign-ins that have begun, of one address and of all. Past that the oldest one is forgotten.
const PENDING_OF_ONE: usize = 64;
const PENDING_OF_ALL: usize = 1024;

/// The time for the end of a sign-in. A browser without a session keeps its connection for 10 s.
const FINISH_MAX: Duration = Duration::from_secs(8);

/// A longer code is refused, in bytes.
const CODE_MAX: usize = 8192;

const AGAIN: &str = "sign in again";

/// A sign-in that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The address of the provider to which the browser goes.
    pub url: String,
    /// The browser keeps it and shows it at the end: another one does not have it.
    pub binding: String,
}

/// The parameters with which a browser returns from the provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Returned {
    /// Of the sign-in.
    pub state: String,
    /// Of the provider, to be exchanged; none after an error.
    pub code: Option<String>,
    /// The provider's word for an error.
    pub error: Option<String>,
    /// Its description of the error.
    pub description: Option<String>,
}

struct Pending {
    state: String,
    binding: String,
    nonce: String,
    verifier: String,
    from: Option<IpAddr>,
    begun: Duration,
}

/// The sign-ins by one provider.
pub struct Client {
    settings: Settings,
    provider: Provider,
    clock: Arc<dyn Clock>,
    pending: Mutex<Vec<Pending>>,
}

/// 256 random bits that can stand in an address.
fn secret() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    let failed = |_| Failure::provider("the operating system gives no random bytes", "try again");
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

impl Client {
    /// Sign-ins with these settings, which were checked.
    ///
    /// # Errors
    /// The certificates of the settings can't be read.
    pub fn new(settings: Settings, clock: Arc<dyn Clock>) -> Result<Self, Failure> {
        let provider = Provider::new(&settings, clock.clone())?;
        Ok(Self { settings, provider, clock, pending: Mutex::default() })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Asks the provider for its description and its keys.
    ///
    /// # Errors
    /// It does not answer, or not as it must.
    pub async fn test(&self) -> Result<Found, Failure> {
        self.provider.test().await
    }

    /// Begins a sign-in of a browser at this address.
    ///
    /// # Errors
    /// The provider does not answer, or not as it must.
    pub async fn begin(&self, from: Option<IpAddr>) -> Result<Begun, Failure> {
        let described = self.provider.described().await?;
        let (state, binding, nonce, verifier) = (secret()?, secret()?, secret()?, secret()?);
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        let mut url = described.authorization;
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.settings.client_id)
            .append_pair("redirect_uri", &self.settings.redirect_url)
            .append_pair("scope", &described.scopes.join(" "))
            .append_pair("state", &state)
            .append_pair("nonce", &nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        let begun = self.clock.monotonic();
        self.keep(Pending { state, binding: binding.clone(), nonce, verifier, from, begun });
        Ok(Begun { url: url.into(), binding })
    }

    fn keep(&self, new: Pending) {
        let mut pending = self.pending.lock();
        pending.retain(|one| new.begun.saturating_sub(one.begun) < PENDING_MAX);
        // The oldest is first. An address that begins many pushes out its own.
        let of_one = pending.iter().filter(|one| one.from == new.from).count();
        let oldest = match (of_one >= PENDING_OF_ONE, pending.len() >= PENDING_OF_ALL) {
            (true, _) => pending.iter().position(|one| one.from == new.from),
            (false, true) => Some(0),
            (false, false) => None,
        };
        if let Some(oldest) = oldest {
            pending.remove(oldest);
        }
        pending.push(new);
    }

    /// Ends a sign-in with what the browser brought. It works once.
    ///
    /// # Errors
    /// The sign-in is refused, or the provider fails.
    pub async fn finish(&self, binding: &str, returned: &Returned) -> Result<Person, Failure> {
        let pending = self.take(binding, &returned.state)?;
        if let Some(error) = &returned.error {
            let words = [Some(error), returned.description.as_ref()].into_iter().flatten();
            let words = words.map(|word| plain(word, 100)).collect::<Vec<_>>().join(": ");
            return Err(Failure::refused(format!("the provider refused the sign-in: {words}"), AGAIN));
        }
        let code = returned.code.as_deref().filter(|code| !code.is_empty() && code.len() <= CODE_MAX);
        let code = code.ok_or_else(|| Failure::refused("the provider gave no code", AGAIN))?;
        match tokio::time::timeout(FINISH_MAX, self.exchange(&pending, code)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::provider(
                format!("the provider did not answer within {} s", FINISH_MAX.as_secs()),
                "try again later, or sign in with a token",
            )),
        }
    }

    /// The sign-in of this state, which is used up.
    fn take(&self, binding: &str, state: &str) -> Result<Pending, Failure> {
        let mut pending = self.pending.lock();
        let now = self.clock.monotonic();
        pending.retain(|one| now.saturating_sub(one.begun) < PENDING_MAX);
        let Some(at) = pending.iter().position(|one| same(&one.state, state)) else {
            let next = "sign in again; a sign-in works once, within 10 minutes";
            return Err(Failure::refused("this sign-in was used, or has expired", next));
        };
        // Another browser, which was given the address, must not use up the sign-in.
        if !same(&pending[at].binding, binding) {
            let message = "this sign-in was begun in another browser, or a later one has replaced it";
            return Err(Failure::refused(message, AGAIN));
        }
        Ok(pending.remove(at))
    }

    async fn exchange(&self, pending: &Pending, code: &str) -> Result<Person, Failure> {
        let described = self.provider.described().await?;
        let (token, access) = self.ask_for_tokens(&described, pending, code).await?;
        let signed = Signed::parse(&token)?;
        let key = self.provider.key_of(&signed).await?;
        let expected = Expected {
            issuer: &self.settings.issuer,
            client_id: &self.settings.client_id,
            nonce: &pending.nonce,
            now_s: self.clock.now().0 / 1_000_000_000,
        };
        let mut person = Person { claims: signed.verify(&key, &expected)? };
        if let (Some(url), Some(access)) = (&described.person, access) {
            self.ask_for_claims(url, &access, &mut person).await?;
        }
        Ok(person)
    }

    /// Adds the claims that the provider gives elsewhere (OpenID Connect Core 1.0, section 5.3).
    /// Many providers put mail address and groups there alone. A failure refuses the sign-in:
    /// without a claim a later rule might match, which gives another role.
    async fn ask_for_claims(&self, url: &Url, access: &str, person: &mut Person) -> Result<(), Failure> {
        let more: Map<String, Value> =
            read(self.provider.web.get_with(url, access).await?, url, "claims of the person")?;
        // An answer about another person must not count (section 5.3.2).
        if more.get("sub").is_none() || more.get("sub") != person.claims.get("sub") {
            let message = "the provider sent the claims of another person";
            return Err(Failure::refused(message, "the administrator of the provider must look into it"));
        }
        person.add(more);
        Ok(())
    }

    /// The form with a code; and the name and the secret of this server, where these go elsewhere.
    fn form<'a>(
        &'a self,
        described: &Described,
        pending: &Pending,
        code: &str,
    ) -> (String, Option<(&'a str, &'a Secret)>) {
        let settings = &self.settings;
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code")
            .append_pair("code", code)
            .append_pair("redirect_uri", &settings.redirect_url)
            .append_pair("code_verifier", &pending.verifier);
        if let Some(secret) = settings.secret.as_ref().filter(|_| !described.secret_in_form) {
            return (form.finish(), Some((&settings.client_id, secret)));
        }
        form.append_pair("client_id", &settings.client_id);
        if let Some(secret) = &settings.secret {
            form.append_pair("client_secret", secret.expose());
        }
        (form.finish(), None)
    }

    /// Exchanges a code for an ID token, and a token for further claims.
    async fn ask_for_tokens(
        &self,
        described: &Described,
        pending: &Pending,
        code: &str,
    ) -> Result<(String, Option<String>), Failure> {
        #[derive(Deserialize)]
        struct Answered {
            id_token: Option<String>,
            access_token: Option<String>,
            error: Option<String>,
            error_description: Option<String>,
        }
        let settings = &self.settings;
        let (form, basic) = self.form(described, pending, code);
        let answer = self.provider.web.post(&described.token, form, basic).await?;
        let status = answer.status;
        let answered: Option<Answered> = serde_json::from_slice(&answer.body).ok();
        if status == StatusCode::OK
            && let Some(token) = answered.as_ref().and_then(|read| read.id_token.clone())
        {
            return Ok((token, answered.and_then(|read| read.access_token)));
        }
        if status.is_server_error() {
            let message = format!("the provider answers {} to the code", status.as_u16());
            return Err(Failure::provider(message, "try again later, or sign in with a token"));
        }
        let words = answered
            .map(|read| [read.error, read.error_description].into_iter().flatten().collect::<Vec<_>>());
        let words =
            words.unwrap_or_default().iter().map(|word| plain(word, 100)).collect::<Vec<_>>().join(": ");
        let words = match words.replace(code, "***") {
            words if words.is_empty() => format!("status {}, without an ID token", status.as_u16()),
            words => match &settings.secret {
                Some(secret) => words.replace(secret.expose(), "***"),
                None => words,
            },
        };
        let next = "sign in again; if it persists, check the client ID, its secret and the redirect URL";
        Err(Failure::refused(format!("the provider refused the code: {words}"), next))
    }
}

#[cfg(test)]
mod tests;
