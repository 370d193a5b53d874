//! Claims of a person, and matchers of one claim.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::failure::plain;

/// Claims about the token itself, which say nothing of the person.
const OF_THE_TOKEN: [&str; 17] = [
    "iss",
    "aud",
    "exp",
    "iat",
    "nbf",
    "nonce",
    "azp",
    "at_hash",
    "c_hash",
    "jti",
    "sid",
    "auth_time",
    "acr",
    "amr",
    "typ",
    "rh",
    "uti",
];

/// Letters of one value, and of all claims, in a refusal.
const VALUE_LETTERS: usize = 60;
const CLAIMS_LETTERS: usize = 240;

/// Bytes of a matcher.
const MATCHER_MAX: usize = 512;

/// A person that signed in by a provider.
#[derive(Debug, Clone, PartialEq)]
pub struct Person {
    /// The claims of the ID token.
    pub claims: Map<String, Value>,
}

impl Person {
    /// Adds claims that the ID token lacks. Claims about a token are not of the person.
    pub(crate) fn add(&mut self, more: Map<String, Value>) {
        for (name, value) in more.into_iter().filter(|(name, _)| !OF_THE_TOKEN.contains(&name.as_str())) {
            self.claims.entry(name).or_insert(value);
        }
    }

    /// The mail address, if the provider has verified it; otherwise the subject.
    pub fn name(&self) -> String {
        let text = |claim: &str| self.claims.get(claim).and_then(Value::as_str);
        let email = text("email").filter(|email| self.has_verified_email() && !email.trim().is_empty());
        plain(email.or_else(|| text("sub")).unwrap_or_default(), VALUE_LETTERS)
    }

    /// The provider has verified that the mail address is of this person.
    fn has_verified_email(&self) -> bool {
        match self.claims.get("email_verified") {
            Some(Value::Bool(verified)) => *verified,
            // Some providers write it as text.
            Some(Value::String(text)) => text == "true",
            _ => false,
        }
    }

    /// The claims in a line, for the person whose sign-in no rule matches.
    pub fn described(&self) -> String {
        let shown = |(name, value): (&String, &Value)| {
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Array(all) => {
                    let texts =
                        all.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned));
                    texts.collect::<Vec<_>>().join(",")
                }
                other => other.to_string(),
            };
            format!("{}={}", plain(name, VALUE_LETTERS), plain(&value, VALUE_LETTERS))
        };
        let own = self.claims.iter().filter(|(name, _)| !OF_THE_TOKEN.contains(&name.as_str()));
        plain(&own.map(shown).collect::<Vec<_>>().join(" "), CLAIMS_LETTERS)
    }
}

/// A claim and the value that it must have. A claim that is a list must contain the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matcher {
    /// The name of the claim; `a.b` is also the field `b` of the claim `a`.
    pub claim: String,
    /// The value.
    pub value: String,
}

/// A text is no matcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidMatcher;

impl FromStr for Matcher {
    type Err = InvalidMatcher;

    fn from_str(text: &str) -> Result<Self, InvalidMatcher> {
        // A name that is an address has no `=`, and a value may have some.
        let (claim, value) = text.split_once('=').ok_or(InvalidMatcher)?;
        let is_valid = !claim.is_empty()
            && !value.is_empty()
            && claim.trim() == claim
            && text.len() <= MATCHER_MAX
            && !text.chars().any(char::is_control);
        if !is_valid || OF_THE_TOKEN.contains(&claim) {
            return Err(InvalidMatcher);
        }
        Ok(Self { claim: claim.to_owned(), value: value.to_owned() })
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.claim, self.value)
    }
}

impl Matcher {
    /// Whether a person has the claim. A mail address counts only if the provider has verified it.
    pub fn matches(&self, person: &Person) -> bool {
        let Some(found) = find(&person.claims, &self.claim) else { return false };
        if self.claim == "email" && !person.has_verified_email() {
            return false;
        }
        let is_it = |value: &Value| match value {
            Value::String(text) if self.claim == "email" => text.eq_ignore_ascii_case(&self.value),
            Value::String(text) => *text == self.value,
            Value::Bool(flag) => self.value == if *flag { "true" } else { "false" },
            Value::Number(number) => number.to_string() == self.value,
            _ => false,
        };
        match found {
            Value::Array(values) => values.iter().any(is_it),
            one => is_it(one),
        }
    }
}

/// The claim with this name, or the field of a claim.
fn find<'a>(claims: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(found) = claims.get(path) {
        return Some(found);
    }
    let (first, rest) = path.split_once('.')?;
    find(claims.get(first)?.as_object()?, rest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn person(claims: Value) -> Person {
        Person { claims: claims.as_object().unwrap().clone() }
    }

    fn matches(matcher: &str, claims: Value) -> bool {
        matcher.parse::<Matcher>().unwrap().matches(&person(claims))
    }

    #[test]
    fn claim_matches_as_a_whole_or_as_an_element_of_a_list() {
        assert!(matches("groups=storage-admins", json!({ "groups": ["dev", "storage-admins"] })));
        assert!(matches("groups=storage-admins", json!({ "groups": "storage-admins" })));
        assert!(!matches("groups=storage", json!({ "groups": ["storage-admins"] })));
        assert!(!matches("groups=admins", json!({ "groups": { "admins": true } })));
        assert!(!matches("groups=admins", json!({ "groups": [["admins"]] })));
        assert!(!matches("groups=admins", json!({})));
        assert!(matches("realm_access.roles=a", json!({ "realm_access": { "roles": ["a"] } })));
        assert!(matches("https://example.com/roles=a", json!({ "https://example.com/roles": ["a"] })));
        assert!(matches("staff=true", json!({ "staff": true })));
        assert!(matches("filter=a=b", json!({ "filter": "a=b" })));
    }

    #[test]
    fn mail_address_counts_only_when_the_provider_verified_it() {
        let with =
            |verified: Value| json!({ "sub": "7", "email": "Ann@example.com", "email_verified": verified });
        for (verified, counts) in [
            (json!(true), true),
            (json!("true"), true),
            (json!(false), false),
            (json!("false"), false),
            (json!(null), false),
            (json!(1), false),
        ] {
            assert_eq!(matches("email=ann@example.com", with(verified.clone())), counts, "{verified}");
            let name = person(with(verified)).name();
            assert_eq!(name, if counts { "Ann@example.com" } else { "7" });
        }
        assert!(!matches("email=ann@example.com", json!({ "email": "ann@example.com" })));
    }

    #[test]
    fn matchers_name_a_claim_of_the_person_and_a_value() {
        for text in
            ["", "groups", "=a", "groups=", "iss=https://x", "aud=cairn", "nonce=1", "a\n=b", " groups=a"]
        {
            assert!(text.parse::<Matcher>().is_err(), "{text}");
        }
        let long = format!("groups={}", "x".repeat(MATCHER_MAX));
        assert!(long.parse::<Matcher>().is_err());
    }

    #[test]
    fn description_has_the_claims_of_the_person_in_a_short_line() {
        let claims = json!({ "sub": "7", "iss": "https://x", "nonce": "secret", "groups": ["a", "b"], "name": "A\n\u{1b}[2J" });
        let text = person(claims).described();
        assert!(text.contains("groups=a,b") && text.contains("sub=7"), "{text}");
        assert!(
            !text.contains("secret") && !text.contains("https://x") && !text.contains('\u{1b}'),
            "{text}"
        );
        let long = person(
            json!({ "groups": vec!["x".repeat(50); 100], "name": "y".repeat(1000), "z": "z".repeat(500), "t": "t".repeat(500), "u": "t".repeat(500) }),
        );
        assert!(long.described().chars().count() <= CLAIMS_LETTERS + 3);
    }
}
