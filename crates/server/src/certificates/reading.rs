//! The parts of a certificate that rustls does not tell: the end of its validity, and the names and
//! addresses in it (RFC 5280, sections 4.1.2.5 and 4.2.1.6).

use std::net::IpAddr;

use chrono::NaiveDateTime;
use yasna::models::TaggedDerValue;
use yasna::{Tag, parse_der};

/// The object identifier of the extension with the names (2.5.29.17), in DER.
const NAMES: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x11];

/// The tags of the times in a certificate (X.680): with two digits of the year, and with four.
const UTC_TIME: u64 = 23;
const GENERALIZED_TIME: u64 = 24;

/// The elements of a sequence, each in DER.
fn elements(der: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let read = parse_der(der, |reader| {
        reader.read_sequence_of(|reader| {
            found.push(reader.read_der()?);
            Ok(())
        })
    });
    read.ok().map(|()| found)
}

fn tagged(der: &[u8]) -> Option<TaggedDerValue> {
    parse_der(der, |reader| reader.read_tagged_der()).ok()
}

fn time_ms(der: &[u8]) -> Option<u64> {
    let value = tagged(der)?;
    let text = std::str::from_utf8(value.value()).ok()?;
    let whole = match value.tag().tag_number {
        // By RFC 5280 two digits are a year from 1950 to 2049.
        UTC_TIME => {
            let century = if text.get(..2)?.parse::<u8>().ok()? < 50 { "20" } else { "19" };
            format!("{century}{text}")
        }
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let time = NaiveDateTime::parse_from_str(&whole, "%Y%m%d%H%M%SZ").ok()?;
    Some(u64::try_from(time.and_utc().timestamp_millis()).unwrap_or(0))
}

fn name(der: &[u8]) -> Option<String> {
    let value = tagged(der)?;
    let (tag, bytes) = (value.tag(), value.value());
    if tag == Tag::context(2) {
        return std::str::from_utf8(bytes).ok().map(str::to_owned);
    }
    if tag != Tag::context(7) {
        return None;
    }
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
    };
    Some(address.to_string())
}

/// The names and addresses in the extensions of a certificate.
fn names(extensions: &[u8]) -> Option<Vec<String>> {
    let all = elements(tagged(extensions)?.value())?;
    for extension in all {
        let parts = elements(&extension)?;
        if parts.first().is_some_and(|identifier| identifier[..] == NAMES) {
            let inside = tagged(parts.last()?)?;
            return Some(elements(inside.value())?.iter().filter_map(|der| name(der)).collect());
        }
    }
    Some(Vec::new())
}

/// The end of a certificate's validity, in milliseconds since 1970, and its names.
pub(super) fn read(certificate: &[u8]) -> Option<(u64, Vec<String>)> {
    let signed = elements(elements(certificate)?.first()?)?;
    // The version is absent in the oldest certificates.
    let has_version = tagged(signed.first()?)?.tag() == Tag::context(0);
    let validity = elements(signed.get(3 + usize::from(has_version))?)?;
    let extensions =
        signed.iter().find(|part| tagged(part).is_some_and(|part| part.tag() == Tag::context(3)));
    let names = extensions.map_or_else(|| Some(Vec::new()), |extensions| names(extensions))?;
    Some((time_ms(validity.get(1)?)?, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_and_names_of_a_certificate_are_read_and_damaged_ones_are_refused() {
        for (year, end_ms) in [(2049, 2_493_072_000_000), (2060, 2_840_140_800_000)] {
            let names = ["storage1.example", "192.0.2.7", "2001:db8::1"].map(str::to_owned);
            let mut params = rcgen::CertificateParams::new(names.to_vec()).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            let der = certificate.der();
            assert_eq!(read(der), Some((end_ms, names.to_vec())));
            for end in 0..der.len() {
                assert_eq!(read(&der[..end]), None, "{end}");
            }
            for at in 0..der.len() {
                let mut other = der.to_vec();
                other[at] ^= 0xff;
                let _ = read(&other);
            }
        }
        assert_eq!(read(b"nonsense"), None);
    }
}
