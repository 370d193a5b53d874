//! Names of objects, encrypted segment by segment.
//!
//! A segment is sealed by AES-256-SIV (RFC 5297) with the plain path above it as associated data,
//! and written in base32 with the digits `0-9a-v`. Encryption is deterministic, so a name is found
//! without a listing, and a prefix of whole segments stays a prefix. Equal segments in different
//! folders differ.
//!
//! The order of names is lost, with one exception. The last segment of an object in a folder
//! `epoch`, `base` or `root` stays readable if it is made of numbers: `n-` and the text. Numbers of
//! epochs and images count down there, so that the newest object comes first in a listing; a store
//! that counts objects by time knows them anyway. A listing is a hint: the object itself is
//! authenticated with its plain name.

use aes_siv::KeyInit;
use aes_siv::siv::Aes256Siv;
use data_encoding::BASE32_DNSSEC;

use super::keys::Keys;
use crate::name::{Name, Prefix};

/// Folders whose objects keep their order.
const ORDERED: [&str; 3] = ["epoch", "base", "root"];
/// Begins a readable segment; no encrypted one has a `-`.
const READABLE: &str = "n-";
/// Digits of a number in an ordered name.
const DIGITS: usize = 8;

/// Numbers of 8 hexadecimal digits with dots between.
fn is_numbers(segment: &str) -> bool {
    let is_number = |text: &str| {
        text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
    };
    segment.split('.').all(is_number)
}

fn is_ordered(folder: &str, segment: &str) -> bool {
    ORDERED.contains(&folder.rsplit('/').next().unwrap_or_default()) && is_numbers(segment)
}

fn cipher(keys: &Keys) -> Aes256Siv {
    Aes256Siv::new((&*keys.names).into())
}

/// Encrypts folders; none if the result is too long.
fn folders(keys: &Keys, text: &str) -> Option<String> {
    let mut sealed = String::new();
    let mut end = 0;
    for segment in text.split('/') {
        let above = text.get(..end)?.trim_end_matches('/');
        sealed.push_str(&seal_segment(keys, above, segment)?);
        sealed.push('/');
        end += segment.len() + 1;
    }
    Some(sealed)
}

fn seal_segment(keys: &Keys, above: &str, segment: &str) -> Option<String> {
    let sealed = cipher(keys).encrypt([above.as_bytes()], segment.as_bytes()).ok()?;
    Some(BASE32_DNSSEC.encode(&sealed))
}

fn open_segment(keys: &Keys, above: &str, segment: &str) -> Option<String> {
    let sealed = BASE32_DNSSEC.decode(segment.as_bytes()).ok()?;
    let plain = cipher(keys).decrypt([above.as_bytes()], &sealed).ok()?;
    String::from_utf8(plain).ok()
}

/// The name in the store; none if it is too long.
pub(super) fn seal(keys: &Keys, name: &Name) -> Option<Name> {
    let (above, last) = name.as_str().rsplit_once('/').unwrap_or(("", name.as_str()));
    let mut sealed = if above.is_empty() { String::new() } else { folders(keys, above)? };
    match is_ordered(above, last) {
        true => sealed.push_str(&format!("{READABLE}{last}")),
        false => sealed.push_str(&seal_segment(keys, above, last)?),
    }
    Name::new(sealed).ok()
}

/// The prefix in the store; none if it is too long.
pub(super) fn seal_prefix(keys: &Keys, prefix: &Prefix) -> Option<Prefix> {
    match prefix.as_str().strip_suffix('/') {
        Some(text) => Prefix::new(folders(keys, text)?).ok(),
        None => Some(Prefix::all()),
    }
}

/// The plain name; none if it is not a name that this key made.
pub(super) fn open(keys: &Keys, name: &Name) -> Option<Name> {
    let mut plain = String::new();
    let mut segments = name.as_str().split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        let opened = match segment.strip_prefix(READABLE) {
            Some(text) => (is_last && is_ordered(&plain, text)).then(|| text.to_owned())?,
            // The other form of an ordered name is no second name of its object.
            None => open_segment(keys, &plain, segment)
                .filter(|text| !(text.contains('/') || is_last && is_ordered(&plain, text)))?,
        };
        if !plain.is_empty() {
            plain.push('/');
        }
        plain.push_str(&opened);
    }
    Name::new(plain).ok()
}
