//! Tests that the generated code belongs to the protocol file.

use prost::Message;
use sha2::{Digest, Sha256};

use crate::v1;

#[test]
fn generated_code_names_the_digest_of_the_protocol_file() {
    let digest = Sha256::digest(include_bytes!("../csi.proto"));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let first = include_str!("../generated/csi.v1.rs").lines().next().unwrap_or_default();
    assert!(first.contains(&digest), "run `just csi-proto`: {first}");
}

#[test]
fn message_survives_encoding() {
    let range = v1::CapacityRange { required_bytes: 1 << 30, limit_bytes: -1 };
    let bytes = range.encode_to_vec();
    assert_eq!(v1::CapacityRange::decode(&bytes[..]), Ok(range));
    assert!(v1::CreateVolumeRequest::decode(&[0xff; 7][..]).is_err());
}
