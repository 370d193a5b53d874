//! The settings of a provider: its address, and the registration of this server there.

use std::net::IpAddr;

use cairn_notify::Secret;
use reqwest::Url;
use serde::{Deserialize, Serialize};

/// The path of the page to which a provider sends browsers back.
pub const CALLBACK: &str = "/oidc";

/// Letters of a name on a button.
const NAME_MAX: usize = 40;

/// Scopes beside `openid`.
const SCOPES_MAX: usize = 20;

/// Bytes of a client ID, a secret or an address.
const TEXT_MAX: usize = 2048;

/// A provider, and this server as its client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The provider's name on the button of the page.
    pub name: String,
    /// Its address, as it writes it in its tokens.
    pub issuer: String,
    /// The name of this server at the provider.
    pub client_id: String,
    /// Its secret there; none for a public client.
    pub secret: Option<Secret>,
    /// The address of the page to which the provider sends browsers back.
    pub redirect_url: String,
    /// Scopes beside `openid`. None: those that tell the name, the mail address and the groups.
    pub scopes: Vec<String>,
    /// Certificates (PEM) that are trusted beside those of the machine.
    pub authority: Option<String>,
}

/// Settings that cannot work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidSettings {
    /// The fault, as a sentence.
    pub fault: &'static str,
    /// The remedy.
    pub next: &'static str,
}

const fn invalid(fault: &'static str, next: &'static str) -> InvalidSettings {
    InvalidSettings { fault, next }
}

/// Whether the host of an address is this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether no other machine can read and change requests to an address.
pub(crate) fn is_private(url: &Url) -> bool {
    url.scheme() == "https" || (url.scheme() == "http" && is_loopback(url))
}

/// An address without a user, a query and a fragment.
fn plain_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok().filter(|_| text.len() <= TEXT_MAX)?;
    let is_plain = url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    Some(url).filter(|url| is_plain && url.has_host())
}

impl Settings {
    /// The name of a provider that was given none: the host of its address.
    pub fn default_name(issuer: &str) -> String {
        let host = Url::parse(issuer).ok().and_then(|url| url.host_str().map(str::to_owned));
        host.unwrap_or_default().chars().take(NAME_MAX).collect()
    }

    /// Checks all that can be checked without the provider.
    pub fn check(&self) -> Result<(), InvalidSettings> {
        let letters = self.name.chars().count();
        if letters == 0 || letters > NAME_MAX || self.name.chars().any(char::is_control) {
            return Err(invalid("the name of a provider has 1 to 40 letters", "give a short --name"));
        }
        let issuer = plain_url(&self.issuer).ok_or(invalid(
            "the issuer is no plain URL",
            "give its address without a query, such as --issuer https://login.example.com",
        ))?;
        if !is_private(&issuer) {
            return Err(invalid(
                "the issuer is not reached over https",
                "give an address with https://; only a provider on this machine may have http://",
            ));
        }
        let is_text = |text: &str| {
            !text.is_empty()
                && text.len() <= TEXT_MAX
                && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        };
        if !is_text(&self.client_id) {
            return Err(invalid(
                "the client ID has other characters than printable ASCII",
                "give the --client-id that the provider shows",
            ));
        }
        if self.secret.as_ref().is_some_and(|secret| !is_text(secret.expose())) {
            return Err(invalid(
                "the client secret has other characters than printable ASCII",
                "give the secret that the provider shows with --client-secret-file FILE",
            ));
        }
        self.callback()?;
        let is_scope = |scope: &String| is_text(scope) && !scope.contains([' ', '"', '\\']);
        if self.scopes.len() > SCOPES_MAX || !self.scopes.iter().all(is_scope) {
            return Err(invalid(
                "a scope is one word, and there are at most 20",
                "give each with its own --scope",
            ));
        }
        Ok(())
    }

    /// The address to which browsers return.
    pub(crate) fn callback(&self) -> Result<Url, InvalidSettings> {
        let next =
            "give the address of this page and /oidc, such as --redirect-url https://storage1:7400/oidc";
        let url = plain_url(&self.redirect_url).ok_or(invalid("the redirect URL is no plain URL", next))?;
        if !is_private(&url) {
            return Err(invalid(
                "the redirect URL has no https, so others could read the code in it",
                "serve the page with `cairn serve --http ADDRESS --tls`, and give an address with https://",
            ));
        }
        if url.path() != CALLBACK {
            return Err(invalid("the path of the redirect URL is not /oidc", next));
        }
        Ok(url)
    }

    /// `SCHEME://HOST:PORT` of the page on which a sign-in works.
    pub fn origin(&self) -> String {
        self.callback().map(|url| url.origin().ascii_serialization()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            name: "Example".to_owned(),
            issuer: "https://login.example.com/realm".to_owned(),
            client_id: "cairn".to_owned(),
            secret: Some(Secret::new("a secret")),
            redirect_url: "https://storage1:7400/oidc".to_owned(),
            scopes: vec!["groups".to_owned()],
            authority: None,
        }
    }

    #[test]
    fn only_loopback_addresses_go_without_https() {
        assert_eq!(settings().check(), Ok(()));
        for issuer in ["http://127.0.0.1:5556/dex", "http://localhost/", "http://[::1]:1"] {
            assert_eq!(Settings { issuer: issuer.to_owned(), ..settings() }.check(), Ok(()), "{issuer}");
        }
        for issuer in [
            "http://login.example.com",
            "http://localhost.example.com",
            "http://10.0.0.1",
            "ftp://localhost",
            "login.example.com",
            "https://user:word@login.example.com",
            "https://login.example.com?a=b",
            "file:///etc/passwd",
            "",
        ] {
            assert!(Settings { issuer: issuer.to_owned(), ..settings() }.check().is_err(), "{issuer}");
        }
        for url in ["http://storage1:7400/oidc", "https://storage1:7400/", "https://storage1/oidc#x", "oidc"]
        {
            assert!(Settings { redirect_url: url.to_owned(), ..settings() }.check().is_err(), "{url}");
        }
        assert_eq!(settings().origin(), "https://storage1:7400");
    }

    #[test]
    fn texts_that_would_break_a_request_or_a_page_are_refused() {
        for name in ["", "a\nb", &"x".repeat(41)] {
            assert!(Settings { name: name.to_owned(), ..settings() }.check().is_err(), "{name}");
        }
        for scope in ["a b", "", "\u{e4}"] {
            assert!(Settings { scopes: vec![scope.to_owned()], ..settings() }.check().is_err(), "{scope}");
        }
        assert!(Settings { client_id: "a\r\nb".to_owned(), ..settings() }.check().is_err());
        assert_eq!(Settings::default_name("https://login.example.com/realm"), "login.example.com");
        assert!(!format!("{:?}", settings()).contains("a secret"));
    }
}
