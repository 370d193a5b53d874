//! Sign-in by an identity provider that speaks OpenID Connect: the authorization code flow with
//! PKCE (OpenID Connect Core 1.0, RFC 7636).
//!
//! [`Client::begin`] gives an address of the provider, to which the browser goes. The browser
//! returns with a code, and [`Client::finish`] exchanges it for an ID token. The result is a
//! [`Person`] with the claims of that token. Rules on claims are the caller's; [`Matcher`] decides
//! about one claim.
//!
//! A sign-in belongs to one browser, works once, and ends after ten minutes. An ID token counts
//! only if a key of the provider signed it, by an asymmetric algorithm, for this client and for
//! this sign-in. Secrets and codes are in no error and no log.

mod claims;
mod client;
mod failure;
#[cfg(feature = "fake")]
#[path = "tests/fake.rs"]
pub mod fake;
mod provider;
mod ring_provider;
mod settings;
mod token;
mod web;

pub use cairn_notify::Secret;
pub use claims::{InvalidMatcher, Matcher, Person};
pub use client::{Begun, Client, Returned};
pub use failure::{Failure, Fault};
pub use provider::Found;
pub use settings::{CALLBACK, InvalidSettings, Settings};
