//! Text from people and peers: tokens, configuration, state documents, the JSON of the API.

use cairn_server::fuzzing;

use crate::seeds::lines;

/// A written value reads as the same value; people's input need not be in that form.
#[track_caller]
fn settled<T: PartialEq>(first: Option<T>, again: impl FnOnce(&T) -> Option<T>) {
    if let Some(written) = first {
        assert!(again(&written).as_ref() == Some(&written), "what was written is read as something else");
    }
}

pub(crate) fn token(data: &[u8]) {
    let word = String::from_utf8_lossy(data);
    settled(fuzzing::token(&word), |again| fuzzing::token(again));
    // The data inside the base64 is reached with any text, short enough for a token.
    if data.len() <= 1024 {
        settled(fuzzing::token_of_json(data), |again| fuzzing::token(again));
    }
    fuzzing::export_name(&word);
}

pub(crate) fn token_seeds() -> Vec<Vec<u8>> {
    let token = fuzzing::sample_token();
    let mut seeds = lines(&["vol0/db", "vol0@s1/db", "cairn1-", "cairn1-AAAA", fuzzing::SAMPLE_TOKEN_JSON]);
    seeds.push(token.into_bytes());
    seeds
}

pub(crate) fn peer_hello(data: &[u8]) {
    let framed = [&(data.len() as u32).to_be_bytes()[..], data].concat();
    for bytes in [data, &framed] {
        for (number, message) in fuzzing::peer_hello(bytes).into_iter().enumerate() {
            settled(message, |again| fuzzing::peer_hello(again)[number].clone());
        }
    }
}

pub(crate) fn peer_hello_seeds() -> Vec<Vec<u8>> {
    lines(&[
        r#"{"version":1,"volume":"vol0","credential":{"id":"0011aabbccdd","secret":"c2VjcmV0"}}"#,
        r#"{"version":1,"volume":"vol0"}"#,
        r#""accepted""#,
        r#"{"version":{"version":2}}"#,
        r#"{"refused":{"error":"token-used","message":"m","next":"n"}}"#,
    ])
}

pub(crate) fn configuration(data: &[u8]) {
    drop(fuzzing::configuration(&String::from_utf8_lossy(data)));
}

pub(crate) fn configuration_seeds() -> Vec<Vec<u8>> {
    lines(&[
        "data = \"/var/lib/cairn\"\nnbd = [\"0.0.0.0:10809\", \"unix:/run/nbd.sock\"]\nnbd_tls_required = true\n\
         mirror = \"0.0.0.0:7420\"\nhttp = \"[::1]:7400\"\nadvertise = \"storage1.example.org:7420\"\ncache = \"1G\"\n",
        "cache = 268435456\nmirror = 'off'\n# a comment\n",
        "[table]\nx = 1979-05-27T07:32:00Z\ny = { z = [1.5e3, inf, 0xff] }\n",
    ])
}

pub(crate) fn state_documents(data: &[u8]) {
    for (number, document) in fuzzing::state_document(data).into_iter().enumerate() {
        settled(document, |again| fuzzing::state_document(again)[number].clone());
    }
}

pub(crate) fn state_document_seeds() -> Vec<Vec<u8>> {
    let fingerprint = "5a".repeat(32);
    let mirror = format!(
        r#"{{"version":1,"address":"h:7420","fingerprint":"{fingerprint}","volume":"vol0",
        "credential":{{"id":"00","secret":"c2Vj"}},"every_ms":900000,"continuous":false,"no_hold":false,"paused":false,
        "relationship":12,"contact":{{"at_ns":1,"now_ns":2,"blocks":3,"used":4,"base":5,"base_taken_ns":6,
        "first_change_ns":null,"blocks_behind":7,"route":[1,2,0,0,0,0,0,0]}},"sent_bytes":8,"updates":9,"last":null,
        "mended_here":1,"mended_there":2,"mended_locked":0,"link":{{"limit":"1M","connections":2,"compress":"auto",
        "at_once":false}},"lock_ms":60000,"origin":true,"unseen":false}}"#
    );
    let peers = format!(
        r#"{{"version":1,"peers":[{{"id":"00","secret_digest":"c2Vj","invited_ms":1,"expires_ms":2,"volume":null,
        "pinned":{{"fingerprint":"{fingerprint}","at_ms":3}}}}]}}"#
    );
    let volume = concat!(
        r#"{"version":1,"devices":["volume.img","/dev/sdb"],"log_devices":["/dev/sdc"],"#,
        r#""given":{"file":0,"snapshot":9}}"#
    );
    lines(&[volume, r#"{"version":1,"dumps":[]}"#, r#"{"version":2}"#, &mirror, &peers])
}

pub(crate) fn api_bodies(data: &[u8]) {
    for body in fuzzing::api_body(data) {
        assert!(fuzzing::api_body(&body).contains(&body), "what was written is read as something else");
    }
}

pub(crate) fn api_body_seeds() -> Vec<Vec<u8>> {
    lines(&[
        r#"{"name":"vol0","size_bytes":1073741824,"devices":["/dev/sdb"]}"#,
        r#"{"size_bytes":1073741824}"#,
        r#"{"size_bytes":1073741824,"allow_shrink":true}"#,
        r#"{"name":"s1"}"#,
        r#"{"volume":"vol0","expires_ms":1000,"advertise":"h:7420"}"#,
        r#"{"volume":"vol0","name":"copy","token":"cairn1-x","every_ms":900000,"devices":[]}"#,
        r#"{"dry_run":true}"#,
        r#"{"error":"token-used","message":"m","next":"n"}"#,
    ])
}
