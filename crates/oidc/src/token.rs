//! The checks of an ID token (OpenID Connect Core 1.0, section 3.1.3.7).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;

use crate::failure::{Failure, plain};
use crate::ring_provider;

/// A longer token is refused, in bytes.
const TOKEN_MAX: usize = 64 << 10;

/// The difference between two clocks that is permitted, in seconds.
const LEEWAY_S: u64 = 30;

/// Each is asymmetric: with another one, a holder of the public key or of the client's secret
/// could write tokens.
const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// A token whose header was read. Nothing in it is proven.
pub(crate) struct Signed<'a> {
    text: &'a str,
    algorithm: Algorithm,
    key_id: Option<String>,
}

/// The parts of a header that decide about the key.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
}

/// The claims that a token must have.
pub(crate) struct Expected<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) client_id: &'a str,
    pub(crate) nonce: &'a str,
    /// The wall clock, in seconds since 1970.
    pub(crate) now_s: u64,
}

fn invalid(why: &str) -> Failure {
    let next = "sign in again; if it persists, the administrator of the provider must look into it";
    Failure::refused(format!("the ID token of the provider is not valid: {why}"), next)
}

impl<'a> Signed<'a> {
    /// Reads the header.
    pub(crate) fn parse(text: &'a str) -> Result<Self, Failure> {
        if text.len() > TOKEN_MAX {
            return Err(invalid("it is too long"));
        }
        let header = text.split('.').next().unwrap_or_default();
        let header = URL_SAFE_NO_PAD.decode(header).ok();
        let header: Option<Header> = header.and_then(|header| serde_json::from_slice(&header).ok());
        let header = header.ok_or_else(|| invalid("its header cannot be read"))?;
        let known = ALGORITHMS.iter().find(|(name, _)| *name == header.alg);
        let Some((_, algorithm)) = known else {
            let name = plain(&header.alg, 20);
            return Err(invalid(&format!("it is signed by `{name}`, and only asymmetric algorithms count")));
        };
        Ok(Self { text, algorithm: *algorithm, key_id: header.kid })
    }

    /// The key among those of the provider that the token names. A token without a name is of the
    /// only key that fits.
    pub(crate) fn key<'k>(&self, keys: &'k [Jwk]) -> Option<&'k Jwk> {
        let mut fitting = keys.iter().filter(|key| self.fits(key));
        match &self.key_id {
            Some(id) => fitting.find(|key| key.common.key_id.as_ref() == Some(id)),
            None => fitting.next().filter(|_| fitting.next().is_none()),
        }
    }

    /// Whether a key may sign tokens with the algorithm of this one.
    fn fits(&self, key: &Jwk) -> bool {
        let of_use = !matches!(&key.common.public_key_use, Some(used) if *used != PublicKeyUse::Signature);
        let name = ALGORITHMS.iter().find(|(_, algorithm)| *algorithm == self.algorithm);
        let of_algorithm = key
            .common
            .key_algorithm
            .is_none_or(|bound| name.is_some_and(|(name, _)| bound.to_string() == *name));
        let of_family = DecodingKey::from_jwk(key).is_ok_and(|key| key.family() == self.algorithm.family());
        of_use && of_algorithm && of_family
    }

    /// No key fits, also after they were fetched again.
    pub(crate) fn unknown_key(&self) -> Failure {
        invalid("none of the provider's keys fits its signature")
    }

    /// The claims, after all checks.
    pub(crate) fn verify(&self, key: &Jwk, expected: &Expected) -> Result<Map<String, Value>, Failure> {
        ring_provider::install();
        let key = DecodingKey::from_jwk(key).map_err(|_| self.unknown_key())?;
        let mut rules = Validation::new(self.algorithm);
        rules.set_audience(&[expected.client_id]);
        rules.set_issuer(&[expected.issuer]);
        rules.set_required_spec_claims(&["iss", "aud", "sub"]);
        // Checked below, by the clock of the caller.
        rules.validate_exp = false;
        let decoded = decode::<Map<String, Value>>(self.text, &key, &rules);
        let claims = decoded.map_err(|error| invalid(word(error.kind())))?.claims;
        let text = |claim: &str| claims.get(claim).and_then(Value::as_str);
        if text("iss") != Some(expected.issuer) {
            return Err(invalid(word(&ErrorKind::InvalidIssuer)));
        }
        if text("sub").is_none_or(|subject| subject.trim().is_empty()) {
            return Err(invalid("it names no subject"));
        }
        let others = claims.get("aud").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
        match claims.get("azp") {
            Some(party) if party.as_str() != Some(expected.client_id) => {
                return Err(invalid("it was issued to another client"));
            }
            None if others => {
                return Err(invalid("it is for several clients, and does not tell which asked"));
            }
            _ => {}
        }
        let seconds = |claim: &str| claims.get(claim).and_then(Value::as_f64);
        let now_s = expected.now_s as f64;
        let ends_s = seconds("exp").ok_or_else(|| invalid("it does not tell when it expires"))?;
        if now_s >= ends_s + LEEWAY_S as f64 {
            return Err(invalid("it has expired; the clocks of both machines must agree"));
        }
        let begins = [("nbf", claims.get("nbf")), ("iat", claims.get("iat"))];
        for (name, value) in begins {
            let is_early = seconds(name).is_none_or(|begins_s| begins_s > now_s + LEEWAY_S as f64);
            if value.is_some() && is_early {
                return Err(invalid("it is of the future; the clocks of both machines must agree"));
            }
        }
        let nonce = text("nonce").unwrap_or_default();
        if !bool::from(nonce.as_bytes().ct_eq(expected.nonce.as_bytes())) {
            return Err(invalid("it is of another sign-in"));
        }
        Ok(claims)
    }
}

/// The reason in words. The library's own may have parts of the token.
fn word(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidSignature => "its signature is wrong",
        ErrorKind::InvalidAudience => "it is for another client",
        ErrorKind::InvalidIssuer => "it is of another issuer",
        ErrorKind::MissingRequiredClaim(_) => "its issuer, audience or subject is missing",
        ErrorKind::InvalidKeyFormat | ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => {
            "its algorithm does not fit the key"
        }
        _ => "it cannot be read",
    }
}
