//! Encrypted buckets: headers, chunks, maps, names and wrapped keys as a hostile store gives them.

use cairn_bucket::Name;
use cairn_bucket::seal::fuzz;

/// The name that objects are opened under.
fn name() -> Option<Name> {
    Name::new("images/a/epoch/fffffffe").ok()
}

/// The bytes as each kind of object. Accepted input is written again as the same bytes.
pub(crate) fn seals(data: &[u8]) {
    if let Some(header) = data.first_chunk()
        && let Some(again) = fuzz::reread_header(header)
    {
        assert!(again == *header, "a header is read as something else");
    }
    if let Some(again) = fuzz::reread_map(data) {
        assert!(again == data, "a map is read as something else");
    }
    if let Some(again) = fuzz::reread_wrapped(data) {
        assert!(again == data, "a wrapped key is read as something else");
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(name) = Name::new(text)
        && let Some(again) = fuzz::reread_name(&name)
    {
        assert!(again == name, "two names have one object");
    }
    let Some(name) = name() else { return };
    if let Some(plain) = fuzz::open(&name, data) {
        assert!(plain.len() < data.len());
    }
    // A sealed object opens, and no longer after a change of any byte.
    let mut object = fuzz::seal(&name, data);
    assert!(fuzz::open(&name, &object).as_deref() == Some(data));
    let at = data.iter().fold(0_usize, |at, byte| at.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    let at = at % object.len();
    if let Some(byte) = object.get_mut(at) {
        *byte ^= 1;
        assert!(fuzz::open(&name, &object).is_none(), "byte {at} was changed");
    }
}

/// The golden bucket: names, lengths and objects.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let golden = include_bytes!("../../../crates/bucket/tests/golden/sealed-v1/bucket");
    let (mut seeds, mut rest) = (Vec::new(), &golden[..]);
    while let Some((name, after)) = line(rest) {
        let Some((length, after)) = line(after) else { break };
        let length = std::str::from_utf8(length).ok().and_then(|text| text.parse::<usize>().ok());
        let Some((object, after)) = length.and_then(|length| after.split_at_checked(length)) else { break };
        seeds.push(name.to_vec());
        seeds.push(object.to_vec());
        rest = after;
    }
    if let Some(name) = name() {
        seeds.push(fuzz::seal(&name, b"content"));
    }
    // Two pieces of a map.
    seeds.push([[5, 0, 0, 0].as_slice(), &[7; 16], &[9, 0, 1, 0], &[8; 16]].concat());
    seeds
}

fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}
