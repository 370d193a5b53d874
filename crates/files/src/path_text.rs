//! Paths and names as text. A name is any bytes but `/` and zero, and no two of them may look the
//! same.
//!
//! For programs (JSON) a path is its text; if it is not UTF-8, a field of its own has its bytes,
//! percent-encoded. For people it is written as a shell takes it.

use std::fmt::Write;

/// The first character of the stored text of a path that is not UTF-8. No path contains it.
const RAW: char = '\0';

/// The text of bytes; each byte that is not UTF-8 becomes `\xNN`. People can distinguish the
/// results, and so can programs that know that the path is not UTF-8.
pub fn path_text(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| push_byte(&mut text, *byte));
    }
    text
}

/// The bytes of a path, percent-encoded; `None` if its text has the same information.
pub fn path_bytes(path: &[u8]) -> Option<String> {
    std::str::from_utf8(path).is_err().then(|| percent_encoded(path))
}

/// A path for people, in the syntax of a shell: plain, and in `$'...'` if it is not UTF-8, has
/// control characters, or begins like one of these.
pub fn quoted_path(path: &[u8]) -> String {
    let text = std::str::from_utf8(path).ok();
    let is_plain = |text: &&str| !text.contains(char::is_control) && !text.starts_with("$'");
    if let Some(text) = text.filter(is_plain) {
        return text.to_owned();
    }
    let mut quoted = String::from("$'");
    for chunk in path.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\n' => quoted.push_str("\\n"),
                '\t' => quoted.push_str("\\t"),
                '\'' | '\\' => quoted.extend(['\\', letter]),
                letter if letter.is_control() => {
                    let mut bytes = [0; 4];
                    letter.encode_utf8(&mut bytes).bytes().for_each(|byte| push_byte(&mut quoted, byte));
                }
                letter => quoted.push(letter),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_byte(&mut quoted, *byte));
    }
    quoted.push('\'');
    quoted
}

fn push_byte(text: &mut String, byte: u8) {
    // A string takes all that is written to it.
    let _ = write!(text, "\\x{byte:02x}");
}

fn percent_encoded(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len() + 8);
    for byte in path {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(*byte)),
            byte => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}

/// The bytes of a percent-encoded path; `None` for an invalid one.
pub fn from_percent(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, more) = more.split_at_checked(2)?;
        rest = more;
        let digits = std::str::from_utf8(digits)
            .ok()
            .filter(|digits| digits.bytes().all(|d| d.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
    }
    Some(bytes)
}

/// A path as text that can be stored and compared: other paths have other texts. [`kept_bytes`]
/// reverses it.
pub fn kept_path(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("{RAW}{}", percent_encoded(path)),
    }
}

/// The bytes of a result of [`kept_path`].
pub fn kept_bytes(kept: &str) -> Vec<u8> {
    let raw = kept.strip_prefix(RAW).and_then(from_percent);
    raw.unwrap_or_else(|| kept.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn names() -> Vec<Vec<u8>> {
        let parts: [&[u8]; 14] = [
            b"a",
            b"\xff",
            b"\xfe",
            b"\\xff",
            b"\\",
            b"'",
            b"$'",
            b"%",
            b"%FF",
            b"\n",
            b"\x1b",
            "ö".as_bytes(),
            b"\xc3",
            "\u{9b}".as_bytes(),
        ];
        let pairs = parts.iter().flat_map(|first| parts.iter().map(move |second| [*first, *second].concat()));
        parts.iter().map(|part| part.to_vec()).chain(pairs).collect()
    }

    #[test]
    fn paths_that_are_not_the_same_have_texts_that_are_not() {
        let names: HashSet<Vec<u8>> = names().into_iter().collect();
        let different = |texts: HashSet<String>| assert_eq!(texts.len(), names.len());
        different(names.iter().map(|name| quoted_path(name)).collect());
        different(names.iter().map(|name| kept_path(name)).collect());
        different(names.iter().map(|name| format!("{:?}{:?}", path_text(name), path_bytes(name))).collect());
    }

    #[test]
    fn bytes_of_a_path_come_back_from_its_texts() {
        for name in names() {
            assert_eq!(kept_bytes(&kept_path(&name)), name);
            let told = path_bytes(&name)
                .map_or(path_text(&name).into_bytes(), |bytes| from_percent(&bytes).unwrap());
            assert_eq!(told, name);
        }
        assert_eq!(from_percent("%F"), None);
        assert_eq!(from_percent("%+F"), None);
        assert_eq!(from_percent("a%2Fb"), Some(b"a/b".to_vec()));
    }

    #[test]
    fn path_that_is_shown_is_one_line_that_says_nothing_to_a_terminal() {
        assert!(names().iter().all(|name| !quoted_path(name).contains(char::is_control)));
        assert_eq!(quoted_path(b"a b"), "a b");
        assert_eq!(quoted_path(b"it's \xff\n"), r"$'it\'s \xff\n'");
    }
}
