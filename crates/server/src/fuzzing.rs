//! Doors for the fuzz targets of `fuzz/`: this crate's decoders, which nothing else outside needs,
//! on bytes alone.
//!
//! Each returns the parsed value, encoded again; `None` if the bytes were refused. A refusal is
//! also formatted, as a failure to format a message is a bug as well.

use std::path::Path;

use cairn_api as api;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::daemon::config::{Config, Settings};
use crate::dumps::images;
use crate::error::ServerError;
use crate::peers::token::Token;
use crate::peers::wire;
use crate::{mirrors, names, peers, state, volumes};

/// Checks that a refusal has a message.
fn told<T>(outcome: Result<T, ServerError>) -> Option<T> {
    outcome
        .map_err(|error| {
            let body = error.body();
            assert!(!body.message.is_empty() && !body.next.is_empty(), "an error says something");
        })
        .ok()
}

/// An invitation.
pub fn token(word: &str) -> Option<String> {
    told(Token::decode(word)).map(|token| token.encode())
}

/// The JSON in a token.
pub const SAMPLE_TOKEN_JSON: &str = concat!(
    r#"{"id":"0011aabbccdd","address":"storage1.example.org:7420","fingerprint":""#,
    "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
    r#"","secret":"c2VjcmV0c2VjcmV0c2Vj","expires_s":1700000000,"volume":"vol0"}"#
);

/// A token that an invitation could be.
pub fn sample_token() -> String {
    token_of_json(SAMPLE_TOKEN_JSON.as_bytes()).expect("the sample is a token")
}

/// The token with the content `json`.
pub fn token_of_json(json: &[u8]) -> Option<String> {
    serde_json::from_slice::<Token>(json).ok().map(|token| token.encode())
}

/// A configuration file, with the defaults for missing keys.
pub fn configuration(text: &str) -> Option<String> {
    let settings = told(Settings::parse(Path::new("cairn.toml"), text))?;
    told(Config::new(settings)).map(|config| format!("{config:?}"))
}

/// The documents of a data directory: `volume.json`, `dumps.json`, `mirror.json`, `peers.json`.
pub fn state_document(bytes: &[u8]) -> [Option<Vec<u8>>; 4] {
    [
        document::<volumes::document::VolumeDocument>(bytes),
        document::<images::document::ImageDumpsDocument>(bytes),
        document::<mirrors::document::MirrorDocument>(bytes),
        document::<peers::PeersDocument>(bytes),
    ]
}

fn document<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<Vec<u8>> {
    let path = Path::new("volumes/vol0/state.json");
    let document = told(state::parse::<T>(path, bytes))?;
    told(state::text(path, &document))
}

/// The messages of peers before the mirror protocol begins: a destination's hello, and a source's
/// answer.
pub fn peer_hello(mut bytes: &[u8]) -> [Option<Vec<u8>>; 2] {
    let again = |message: &dyn Fn(&mut Vec<u8>) -> std::io::Result<()>| {
        let mut out = Vec::new();
        message(&mut out).ok().map(|()| out)
    };
    let mut same = bytes;
    let hello = wire::receive::<wire::Hello>(&mut bytes).ok();
    let welcome = wire::receive::<wire::Welcome>(&mut same).ok();
    [
        hello.and_then(|hello| again(&|out| wire::send(out, &hello))),
        welcome.and_then(|welcome| again(&|out| wire::send(out, &welcome))),
    ]
}

/// Names of exports as NBD clients send them.
pub fn export_name(text: &str) {
    if let Some(name) = names::ExportName::parse(text) {
        for (what, part) in
            [("volume", Some(name.volume)), ("snapshot", name.snapshot), ("LUN", Some(name.lun))]
        {
            if let Some(part) = part {
                told(names::check(what, part));
            }
        }
    }
}

/// The body of every request of the API.
pub fn api_body(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut read = Vec::new();
    let mut also = |again: Option<Vec<u8>>| read.extend(again);
    also(json::<api::CreateVolume>(bytes));
    also(json::<api::GrowVolume>(bytes));
    also(json::<api::OpenFromBucket>(bytes));
    also(json::<api::CreateLun>(bytes));
    also(json::<api::ResizeLun>(bytes));
    also(json::<api::CreateSnapshot>(bytes));
    also(json::<api::CreateClone>(bytes));
    also(json::<api::DrillRequest>(bytes));
    also(json::<api::RenameSnapshot>(bytes));
    also(json::<api::Invite>(bytes));
    also(json::<api::CreateMirror>(bytes));
    also(json::<api::FailoverRequest>(bytes));
    also(json::<api::ErrorBody>(bytes));
    read
}

fn json<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<Vec<u8>> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    serde_json::to_vec(&value).ok()
}
