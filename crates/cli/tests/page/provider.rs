//! Sign-in by an identity provider, which is at another site, in a real browser.

use std::path::Path;

use cairn_oidc::fake::{CLIENT, FakeProvider, Mood, Wrong};

use crate::browser::Browser;
use crate::running::Running;
use crate::server_with_http;

/// A server whose people sign in by a provider: those of the group `storage` are operators.
fn server(dir: &Path, provider: &FakeProvider) -> (Running, String) {
    let (server, url) = server_with_http(dir);
    let secret = dir.join("secret");
    std::fs::write(&secret, format!("{}\n", CLIENT.1)).unwrap();
    let redirect = format!("{url}oidc");
    let set = ["oidc", "set", "--issuer", provider.issuer(), "--client-id", CLIENT.0, "--name", "Example"];
    let more = ["--redirect-url", &redirect, "--client-secret-file", secret.to_str().unwrap()];
    server.good(&[&set[..], &more].concat());
    (server, url)
}

#[test]
fn person_signs_in_by_a_provider_with_the_keyboard_and_is_out_when_the_rule_goes() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let provider = FakeProvider::start();
    let (server, url) = server(dir.path(), &provider);
    browser.open(&format!("{url}#/log"));
    browser.until("document.activeElement?.id === 'provider'");
    browser.until_text("Sign in with Example");
    browser.picture("sign-in-provider");
    browser.key("Enter");
    browser.until_text("no rule admits ann@example.com");
    browser.until_text("groups=staff,storage");
    browser.picture("sign-in-provider-refused");
    assert_eq!(browser.value("location.pathname + location.search"), "/", "the code stays in the address");
    let told = browser.complaints();
    assert!(
        told.iter().all(|line| line.contains("403") || line.contains(&provider.address.port().to_string())),
        "{told:?}"
    );

    server.good(&["oidc", "rule", "create", "storage", "--claim", "groups=storage", "--role", "operator"]);
    browser.until("document.activeElement?.id === 'provider'");
    browser.key("Enter");
    browser.until_text("oidc:ann@example.com");
    browser.until_text("operator");
    assert_eq!(browser.value("location.hash"), "#/log", "the view at which the sign-in began");
    assert_eq!(browser.value("document.cookie"), "", "scripts do not see the session");
    browser.value("location.reload()");
    browser.until_text("oidc:ann@example.com");
    browser.picture("signed-in-by-provider");
    server.good(&["oidc", "rule", "delete", "storage", "--yes"]);
    browser.until_text("the session has ended");
}

#[test]
fn address_with_the_code_of_another_browser_starts_no_session() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let provider = FakeProvider::start();
    let (server, url) = server(dir.path(), &provider);
    server.good(&["oidc", "rule", "create", "storage", "--claim", "groups=storage", "--role", "operator"]);
    browser.open(&url);
    browser.until("document.activeElement?.id === 'provider'");
    // A stranger begins a sign-in, and leads this browser to its end.
    let begun = browser.value(
        "fetch('/session/oidc', { method: 'POST', headers: { 'x-cairn': 'none' } }).then((answer) => answer.json())",
    );
    let query = provider.agree(begun["url"].as_str().unwrap());
    let query: Vec<String> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
    browser.forget();
    browser.open(&format!("{url}oidc?{}", query.join("&")));
    browser.until_text("Not signed in: this sign-in was begun in another browser");
    // The provider fails, and a token works without it.
    provider.change(|script| script.wrong = Wrong::PublicKeyAsSecret);
    browser.until("document.activeElement?.id === 'provider'");
    browser.key("Enter");
    browser.until_text("only asymmetric algorithms count");
    provider.change(|script| script.mood = Mood::Ends);
    browser.until("document.activeElement?.id === 'provider'");
    browser.key("Enter");
    browser.until("location.protocol === 'chrome-error:'");
    browser.open(&url);
    browser.until("document.activeElement?.id === 'provider'");
    browser.value("document.getElementById('token').focus()");
    browser.write(&crate::token(&server));
    browser.key("Enter");
    browser.until_text("All is well");
    let audit = server.good(&["audit", "list"]);
    assert!(audit.contains("refused: this sign-in was begun in another browser"), "{audit}");
}
