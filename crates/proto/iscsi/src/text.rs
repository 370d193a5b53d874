//! `key=value` pairs, each ended by a zero byte (RFC 7143, section 6.1).

use crate::limits::{KEYS_MAX, VALUE_BYTES_MAX};

/// An invalid text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A pair has no `=`, or a key is empty or too long.
    #[error("the text has an invalid key=value pair")]
    NotAPair,
    /// A value is longer than any may be.
    #[error("a value of the text is too long")]
    ValueTooLong,
    /// It is not UTF-8.
    #[error("the text is not UTF-8")]
    NotUtf8,
    /// It never ends.
    #[error("the text has too many keys")]
    TooManyKeys,
}

/// The longest key (RFC 7143, section 6.1).
const KEY_BYTES_MAX: usize = 63;

/// The pairs of a text, in order. A last pair may lack its zero byte.
pub fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    let mut pairs = Vec::new();
    for pair in text.split(|byte| *byte == 0).filter(|pair| !pair.is_empty()) {
        let pair = std::str::from_utf8(pair).map_err(|_| TextError::NotUtf8)?;
        let (key, value) = pair.split_once('=').ok_or(TextError::NotAPair)?;
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(TextError::NotAPair);
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(TextError::ValueTooLong);
        }
        if pairs.len() == KEYS_MAX {
            return Err(TextError::TooManyKeys);
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// Appends a pair.
pub fn put(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// A number as text: decimal, or hexadecimal after `0x`.
pub fn number(value: &str) -> Option<u32> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            u32::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None if value.bytes().all(|digit| digit.is_ascii_digit()) => value.parse().ok(),
        None => None,
    }
}

/// Binary as text: hexadecimal after `0x`, base64 after `0b` (RFC 7143, section 6.1).
pub fn binary(value: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    let (prefix, digits) = value.split_at_checked(2)?;
    match prefix {
        "0x" | "0X" => {
            let digits = digits.as_bytes();
            if digits.is_empty() || !digits.len().is_multiple_of(2) {
                return None;
            }
            let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
            digits.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect()
        }
        "0b" | "0B" => base64::engine::general_purpose::STANDARD.decode(digits).ok(),
        _ => None,
    }
}

/// Bytes in hexadecimal after `0x`.
pub fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("0x");
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes all that is written");
    }
    text
}
