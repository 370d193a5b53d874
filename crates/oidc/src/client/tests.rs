//! Sign-ins against a provider that does each thing wrong.

use std::time::Duration;

use cairn_base::{ManualClock, Timestamp};
use cairn_notify::Secret;

use super::*;
use crate::failure::Fault;
use crate::fake::{CLIENT, FakeProvider, Mood, Wrong};

const NOW_S: u64 = 1_800_000_000;

struct World {
    provider: FakeProvider,
    clock: Arc<ManualClock>,
    client: Client,
    runtime: tokio::runtime::Runtime,
}

fn settings(provider: &FakeProvider) -> Settings {
    Settings {
        name: "Fake".to_owned(),
        issuer: provider.issuer().to_owned(),
        client_id: CLIENT.0.to_owned(),
        secret: Some(Secret::new(CLIENT.1)),
        redirect_url: "https://storage1:7400/oidc".to_owned(),
        scopes: Vec::new(),
        authority: None,
    }
}

fn world() -> World {
    let provider = FakeProvider::start();
    provider.change(|script| script.now_s = Some(NOW_S));
    let clock = Arc::new(ManualClock::new(Timestamp(NOW_S * 1_000_000_000)));
    let client = Client::new(settings(&provider), clock.clone()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    World { provider, clock, client, runtime }
}

fn returned(query: Vec<(String, String)>) -> Returned {
    let get = |name: &str| query.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone());
    Returned { state: get("state").unwrap(), code: get("code"), error: get("error"), description: None }
}

impl World {
    fn begin(&self) -> Result<Begun, Failure> {
        self.runtime.block_on(self.client.begin(None))
    }

    fn finish(&self, binding: &str, returned: &Returned) -> Result<Person, Failure> {
        self.runtime.block_on(self.client.finish(binding, returned))
    }

    /// A whole sign-in.
    fn sign_in(&self) -> Result<Person, Failure> {
        let begun = self.begin()?;
        self.finish(&begun.binding, &returned(self.provider.agree(&begun.url)))
    }

    fn refusal(&self, wrong: Wrong) -> String {
        self.provider.change(|script| script.wrong = wrong);
        let failure = self.sign_in().unwrap_err();
        assert_eq!(failure.fault, Fault::Refused, "{failure:?}");
        failure.message
    }
}

#[test]
fn sign_in_gives_the_claims_of_the_person() {
    let world = world();
    let person = world.sign_in().unwrap();
    assert_eq!(person.name(), "ann@example.com");
    assert!("groups=storage".parse::<crate::Matcher>().unwrap().matches(&person));
    // The description and the keys are kept.
    world.sign_in().unwrap();
    assert_eq!(world.provider.requests("/realm/.well-known/openid-configuration"), 1);
    assert_eq!(world.provider.requests("/realm/keys"), 1);
    let url = world.begin().unwrap().url;
    assert!(
        url.contains("scope=openid+profile+email+groups") && url.contains("code_challenge_method=S256"),
        "{url}"
    );
    assert!(!url.contains("secret"), "{url}");
}

#[test]
fn provider_may_want_the_secret_in_the_form() {
    let world = world();
    let ways = serde_json::json!(["client_secret_post"]);
    world.provider.change(|script| {
        drop(script.description.insert("token_endpoint_auth_methods_supported".into(), ways))
    });
    world.sign_in().unwrap();
}

#[test]
fn claims_that_are_not_in_the_token_are_fetched_and_must_be_of_the_same_person() {
    let world = world();
    let set = |further: serde_json::Value| {
        let claims = serde_json::json!({ "sub": "7" }).as_object().cloned().unwrap();
        world.provider.change(|script| {
            (script.claims, script.further) = (claims, further.as_object().cloned());
        });
    };
    set(serde_json::json!({
        "sub": "7", "email": "ann@example.com", "email_verified": true, "groups": ["a"], "iss": "https://other",
    }));
    let person = world.sign_in().unwrap();
    assert_eq!(person.name(), "ann@example.com");
    assert_eq!(person.claims["iss"], world.provider.issuer(), "the claim of the token stays");
    for other in [serde_json::json!({ "sub": "8", "groups": ["a"] }), serde_json::json!({ "groups": ["a"] })]
    {
        set(other);
        assert!(world.sign_in().unwrap_err().message.contains("another person"));
    }
    // Without these claims another rule might match.
    set(serde_json::json!({ "sub": "7" }));
    world.sign_in().unwrap();
    world.provider.change(|script| script.further = None);
    assert!(world.sign_in().unwrap_err().message.contains("answers 401 instead of its claims"));
}

#[test]
fn token_with_any_wrong_claim_is_refused() {
    let world = world();
    for (wrong, word) in [
        (Wrong::Nonce, "another sign-in"),
        (Wrong::NoNonce, "another sign-in"),
        (Wrong::Audience, "another client"),
        (Wrong::Party, "another client"),
        (Wrong::Issuer, "another issuer"),
        (Wrong::Expired, "expired"),
        (Wrong::NoExpiry, "when it expires"),
        (Wrong::Future, "future"),
        (Wrong::NoSubject, "subject"),
    ] {
        let message = world.refusal(wrong);
        assert!(message.contains(word), "{wrong:?}: {message}");
    }
    world.provider.change(|script| script.wrong = Wrong::Nothing);
    world.sign_in().unwrap();
}

#[test]
fn token_counts_only_with_an_asymmetric_signature_of_the_provider() {
    let world = world();
    for (wrong, word) in [
        (Wrong::Unsigned, "`none`"),
        (Wrong::PublicKeyAsSecret, "`HS256`"),
        (Wrong::ClientSecret, "`HS256`"),
        (Wrong::OtherKey, "none of the provider's keys"),
        (Wrong::Changed, "signature is wrong"),
        (Wrong::Garbage, "header cannot be read"),
    ] {
        let message = world.refusal(wrong);
        assert!(message.contains(word), "{wrong:?}: {message}");
    }
}

#[test]
fn unknown_key_has_the_keys_fetched_again_once_a_minute() {
    let world = world();
    world.sign_in().unwrap();
    let keys = || world.provider.requests("/realm/keys");
    assert_eq!(keys(), 1);
    // The first request was within the minute.
    for _ in 0..3 {
        assert!(world.refusal(Wrong::UnknownKey).contains("none of the provider's keys"));
    }
    assert_eq!(keys(), 1);
    world.clock.advance(Duration::from_secs(61));
    world.provider.change(|script| script.now_s = Some(NOW_S + 61));
    for _ in 0..3 {
        assert!(world.refusal(Wrong::UnknownKey).contains("none of the provider's keys"));
    }
    assert_eq!(keys(), 2);
    // The provider changes its key, and signs by another algorithm.
    world.clock.advance(Duration::from_secs(61));
    world.provider.change(|script| {
        (script.now_s, script.second_key, script.wrong) = (Some(NOW_S + 122), true, Wrong::Nothing);
    });
    world.sign_in().unwrap();
    assert_eq!(keys(), 3);
}

#[test]
fn sign_in_works_once_in_the_browser_that_began_it_and_for_ten_minutes() {
    let world = world();
    let begun = world.begin().unwrap();
    let back = returned(world.provider.agree(&begun.url));
    let other = world.begin().unwrap();
    let message = world.finish(&other.binding, &back).unwrap_err().message;
    assert!(message.contains("another browser"), "{message}");
    assert!(world.finish("", &back).unwrap_err().message.contains("another browser"));
    world.finish(&begun.binding, &back).unwrap();
    let message = world.finish(&begun.binding, &back).unwrap_err().message;
    assert!(message.contains("was used"), "{message}");
    let unknown = Returned { state: "guessed".to_owned(), ..back };
    assert!(world.finish(&begun.binding, &unknown).unwrap_err().message.contains("was used"));

    let late = world.begin().unwrap();
    let back = returned(world.provider.agree(&late.url));
    world.clock.advance(PENDING_MAX);
    assert!(world.finish(&late.binding, &back).unwrap_err().message.contains("has expired"));
}

#[test]
fn code_of_another_sign_in_is_refused() {
    let world = world();
    let (first, second) = (world.begin().unwrap(), world.begin().unwrap());
    let stolen = returned(world.provider.agree(&first.url)).code;
    let back = Returned { code: stolen.clone(), ..returned(world.provider.agree(&second.url)) };
    // The provider compares the proof of the key (PKCE).
    let message = world.finish(&second.binding, &back).unwrap_err().message;
    assert!(message.contains("refused the code: invalid_grant"), "{message}");
    assert!(!message.contains(&stolen.unwrap()) && !message.contains(CLIENT.1), "{message}");
    // A code works once, also with the right proof.
    let third = world.begin().unwrap();
    let mut back = returned(world.provider.agree(&third.url));
    back.code = Some("used".to_owned());
    assert!(world.finish(&third.binding, &back).unwrap_err().message.contains("invalid_grant"));
}

#[test]
fn refusal_of_the_provider_is_passed_on_in_one_line() {
    let world = world();
    let begun = world.begin().unwrap();
    let state = returned(world.provider.agree(&begun.url)).state;
    let (error, description) = (Some("access_denied".to_owned()), Some("no\n\u{1b}[2Jway".to_owned()));
    let back = Returned { state, code: None, error, description };
    let message = world.finish(&begun.binding, &back).unwrap_err().message;
    assert_eq!(message, "the provider refused the sign-in: access_denied: no [2Jway");
    assert!(world.finish(&begun.binding, &back).unwrap_err().message.contains("was used"));
}

#[test]
fn provider_that_is_down_or_fails_holds_up_nothing_for_long() {
    for mood in [Mood::Ends, Mood::Fails] {
        let world = world();
        world.provider.change(|script| script.mood = mood);
        let failure = world.begin().unwrap_err();
        assert_eq!(failure.fault, Fault::Provider, "{failure:?}");
        // A failure is the answer for some seconds.
        world.begin().unwrap_err();
        assert_eq!(world.provider.requests("/realm/.well-known/openid-configuration"), 1);
        world.provider.change(|script| script.mood = Mood::Well);
        world.clock.advance(Duration::from_secs(6));
        let begun = world.begin().unwrap();
        // It fails later.
        let back = returned(world.provider.agree(&begun.url));
        world.provider.change(|script| script.mood = mood);
        let failure = world.finish(&begun.binding, &back).unwrap_err();
        assert_eq!(failure.fault, Fault::Provider, "{failure:?}");
    }
}

#[test]
fn provider_that_hangs_is_given_up() {
    let world = world();
    world.provider.change(|script| script.mood = Mood::Hangs);
    let failure = world.begin().unwrap_err();
    assert!(failure.fault == Fault::Provider && failure.message.contains("within 6 s"), "{failure:?}");
}

#[test]
fn description_must_be_of_the_issuer_and_name_safe_addresses() {
    let world = world();
    let test = |name: &str, value: serde_json::Value| {
        world.provider.change(|script| script.description = [(name.to_owned(), value)].into_iter().collect());
        world.runtime.block_on(world.client.test()).unwrap_err().message
    };
    assert!(test("issuer", "https://another.example.com".into()).contains("calls itself"));
    for field in ["authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"] {
        for address in ["http://login.example.com/x", "ftp://127.0.0.1/x", "javascript:alert(1)", ""] {
            assert!(test(field, address.into()).contains("no https"), "{field} {address}");
        }
    }
    assert!(test("code_challenge_methods_supported", serde_json::json!(["plain"])).contains("PKCE"));
    assert!(test("jwks_uri", format!("{}/none", world.provider.issuer()).into()).contains("answers 404"));
    world.provider.change(|script| script.description.clear());
    let found = world.runtime.block_on(world.client.test()).unwrap();
    assert_eq!(found.keys, 1, "one of an unknown kind is left out");
    assert_eq!(found.scopes, ["openid", "profile", "email", "groups"]);
}

#[test]
fn sign_ins_that_never_end_take_a_bounded_amount_of_memory() {
    let world = world();
    let first = world.begin().unwrap();
    let from = |last: usize| Some(IpAddr::from(u32::try_from(last).unwrap().to_be_bytes()));
    for _ in 0..2 * PENDING_OF_ONE {
        world.runtime.block_on(world.client.begin(from(1))).unwrap();
    }
    assert_eq!(world.client.pending.lock().len(), PENDING_OF_ONE + 1);
    // One address that begins many has not pushed out another one's.
    world.finish(&first.binding, &returned(world.provider.agree(&first.url))).unwrap();
    for one in 0..2 * PENDING_OF_ALL {
        world.runtime.block_on(world.client.begin(from(one))).unwrap();
    }
    assert_eq!(world.client.pending.lock().len(), PENDING_OF_ALL);
}
