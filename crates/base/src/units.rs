//! Sizes and intervals as people write them: `100G`, `4KiB`, `15m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes; suffixes K, M, G, T and P are powers of 1024 (`KB`, `KiB` and `K` mean the
/// same).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ByteSize(pub u64);

/// The text is not a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a size is a number with an optional suffix K, M, G, T or P (powers of 1024), such as 100G")]
pub struct InvalidByteSize;

const SUFFIXES: [(u64, char); 5] =
    [(1 << 50, 'P'), (1 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')];

impl FromStr for ByteSize {
    type Err = InvalidByteSize;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let suffix = text[digits.len()..].to_ascii_uppercase();
        let unit = match suffix.as_str() {
            "" | "B" => 1,
            _ => {
                let letter = suffix.chars().next().ok_or(InvalidByteSize)?;
                if !matches!(&suffix[1..], "" | "B" | "IB") {
                    return Err(InvalidByteSize);
                }
                SUFFIXES.iter().find(|(_, s)| *s == letter).ok_or(InvalidByteSize)?.0
            }
        };
        // A displayed number, `1.50 GiB`, has a space and is understood. Signs and exponents are
        // not.
        let digits = digits.trim_end();
        if !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(InvalidByteSize);
        }
        if let Ok(whole) = digits.parse::<u64>() {
            return whole.checked_mul(unit).map(ByteSize).ok_or(InvalidByteSize);
        }
        let fraction: f64 = digits.parse().map_err(|_| InvalidByteSize)?;
        let bytes = fraction * unit as f64;
        if !(0.0..9e18).contains(&bytes) {
            return Err(InvalidByteSize);
        }
        Ok(ByteSize(bytes as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match SUFFIXES.iter().find(|(unit, _)| self.0 >= *unit) {
            None => format!("{} B", self.0),
            Some((unit, letter)) => {
                let value = self.0 as f64 / *unit as f64;
                let digits = if value >= 100.0 || self.0.is_multiple_of(*unit) {
                    0
                } else if value >= 10.0 {
                    1
                } else {
                    2
                };
                format!("{value:.digits$} {letter}iB")
            }
        };
        f.pad(&text)
    }
}

/// A length of time between two runs: `10s`, `15m`, `1h`, `1d`; a bare number is seconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Interval(pub Duration);

/// The text is not an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an interval is a whole number above 0 with ms, s, m, h or d, such as 15m")]
pub struct InvalidInterval;

impl FromStr for Interval {
    type Err = InvalidInterval;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidInterval);
        }
        let count: u64 = digits.parse().map_err(|_| InvalidInterval)?;
        let unit_ms = match &text[digits.len()..] {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(InvalidInterval),
        };
        match count.checked_mul(unit_ms) {
            Some(ms) if ms > 0 => Ok(Interval(Duration::from_millis(ms))),
            _ => Err(InvalidInterval),
        }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
        match units.iter().find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit)) {
            Some((unit, suffix)) => f.pad(&format!("{}{suffix}", ms / unit)),
            None => f.pad(&format!("{ms}ms")),
        }
    }
}
