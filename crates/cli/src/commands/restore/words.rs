//! Words of a line as a shell reads them: quotes, backslashes, and patterns for names.

/// Why a line has no words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unended;

/// A byte of a word: quoted ones match themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Byte {
    byte: u8,
    quoted: bool,
}

/// A word: bytes, some of which may be wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word(Vec<Byte>);

/// Reads a line. Single quotes take all as it is; in double quotes and outside of quotes a
/// backslash takes the next byte as it is.
pub(super) fn split(line: &[u8]) -> Result<Vec<Word>, Unended> {
    let mut words = Vec::new();
    let mut word: Option<Vec<Byte>> = None;
    let mut quote = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        let (literal, quoted) = match (quote, byte) {
            (None, byte) if byte.is_ascii_whitespace() => {
                words.extend(word.take().map(Word));
                continue;
            }
            (None, b'\'' | b'"') => {
                quote = Some(byte);
                word.get_or_insert_default();
                continue;
            }
            (Some(open), byte) if byte == open => {
                quote = None;
                continue;
            }
            (None | Some(b'"'), b'\\') => (bytes.next().ok_or(Unended)?, true),
            (quote, byte) => (byte, quote.is_some()),
        };
        word.get_or_insert_default().push(Byte { byte: literal, quoted });
    }
    if quote.is_some() {
        return Err(Unended);
    }
    words.extend(word.map(Word));
    Ok(words)
}

impl Word {
    /// Bytes that match themselves.
    pub(super) fn literal(bytes: &[u8]) -> Self {
        Self(bytes.iter().map(|byte| Byte { byte: *byte, quoted: true }).collect())
    }

    /// As it was meant, without quotes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|byte| byte.byte).collect()
    }

    /// Whether it begins at the root.
    pub(super) fn is_absolute(&self) -> bool {
        self.0.first().is_some_and(|byte| byte.byte == b'/')
    }

    /// The names of a path.
    pub(super) fn names(&self) -> impl Iterator<Item = Word> + '_ {
        self.0.split(|byte| byte.byte == b'/').filter(|name| !name.is_empty()).map(|name| Word(name.to_vec()))
    }

    /// Whether it may match several names.
    pub(super) fn is_pattern(&self) -> bool {
        self.0.iter().any(|byte| !byte.quoted && matches!(byte.byte, b'*' | b'?' | b'['))
    }

    /// Whether it matches a name. A leading dot of a name must match literally.
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let is_hidden = name.first() == Some(&b'.');
        let shows_hidden = self.0.first().is_some_and(|first| first.byte == b'.');
        (!is_hidden || shows_hidden) && matches(&self.0, name)
    }
}

/// By going back to the last `*` alone, so that no pattern takes long.
fn matches(pattern: &[Byte], name: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at).is_some_and(|byte| !byte.quoted && byte.byte == b'*') {
            at += 1;
            star = Some((at, read));
            continue;
        }
        match (name.get(read), one(&pattern[at..], name.get(read).copied())) {
            (None, _) if at == pattern.len() => return true,
            (Some(_), Some(length)) => (at, read) = (at + length, read + 1),
            _ => match star {
                Some((behind, from)) if from < name.len() => {
                    (at, read) = (behind, from + 1);
                    star = Some((behind, from + 1));
                }
                _ => return false,
            },
        }
    }
}

/// The length of the pattern's first element; none if it does not match this byte.
fn one(pattern: &[Byte], byte: Option<u8>) -> Option<usize> {
    let (first, byte) = (pattern.first()?, byte?);
    match first.byte {
        b'?' if !first.quoted => Some(1),
        b'[' if !first.quoted => match set(&pattern[1..], byte) {
            Some((length, is_in)) => is_in.then_some(1 + length),
            // Without a closing bracket it is not a set.
            None => (byte == b'[').then_some(1),
        },
        literal => (literal == byte).then_some(1),
    }
}

/// The length of a set with its end, and whether a byte is in it.
fn set(pattern: &[Byte], byte: u8) -> Option<(usize, bool)> {
    let is = |at: usize, wanted: u8| pattern.get(at).is_some_and(|byte| !byte.quoted && byte.byte == wanted);
    let negated = is(0, b'!') || is(0, b'^');
    let begin = usize::from(negated);
    let (mut at, mut is_in) = (begin, false);
    loop {
        // As the first character of the set, it is literal.
        if at > begin && is(at, b']') {
            return Some((at + 1, is_in != negated));
        }
        let from = pattern.get(at)?.byte;
        let ends = !is(at + 2, b']') && is(at + 1, b'-');
        let to = if ends { pattern.get(at + 2)?.byte } else { from };
        is_in |= (from..=to).contains(&byte);
        at += if ends { 3 } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Word {
        split(text.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn line_has_the_words_that_a_shell_would_read() {
        let words = |line: &str| -> Vec<String> {
            let words = split(line.as_bytes()).unwrap();
            words.iter().map(|word| String::from_utf8(word.bytes()).unwrap()).collect()
        };
        assert_eq!(words("  add  a\tb "), ["add", "a", "b"]);
        assert_eq!(words(r#"add 'a b' "c 'd'" e\ f g"h"i"#), ["add", "a b", "c 'd'", "e f", "ghi"]);
        assert_eq!(words(r#"'a\b' "a\"b" '' \'"#), ["a\\b", "a\"b", "", "'"]);
        assert!(words("   ").is_empty());
        for unended in ["add 'a", "add \"a", "add a\\"] {
            assert_eq!(split(unended.as_bytes()), Err(Unended), "{unended}");
        }
    }

    #[test]
    fn pattern_stands_for_the_names_that_a_shell_would_find() {
        for (pattern, good, bad) in [
            ("*", &["a", "ab"][..], &[".a"][..]),
            (".*", &[".a"], &["a"]),
            ("a*b*c", &["abc", "a-b-b-c", "abbcc"], &["ab", "abcd"]),
            ("?b", &["ab"], &["b", "aab", ".b"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "-x"]),
            ("[!a-c]x", &["dx"], &["ax"]),
            ("[]x]", &["]", "x"], &["a"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("a[b", &["a[b"], &["ab"]),
            (r"a\*", &["a*"], &["ab"]),
            ("'a*'", &["a*"], &["ab"]),
            ("*'*'", &["a*", "*"], &["a"]),
        ] {
            good.iter().for_each(|name| assert!(word(pattern).matches(name.as_bytes()), "{pattern} {name}"));
            bad.iter().for_each(|name| assert!(!word(pattern).matches(name.as_bytes()), "{pattern} {name}"));
        }
        assert!(word("*a*a*a*a*a*a*a*a*b").matches(&[b"a".repeat(100_000), b"b".to_vec()].concat()));
        assert!(!word("'*'").is_pattern() && word("a?").is_pattern());
    }
}
