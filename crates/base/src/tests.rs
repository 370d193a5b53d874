//! Parsing and printing of units and ids; the numbers that must never change.

use std::time::Duration;

use crate::*;

const KIB: u64 = 1024;
const GIB: u64 = 1 << 30;

fn size(text: &str) -> Option<u64> {
    text.parse::<ByteSize>().ok().map(|size| size.0)
}

fn interval(text: &str) -> Option<Duration> {
    text.parse::<Interval>().ok().map(|interval| interval.0)
}

#[test]
fn sizes_are_powers_of_1024_in_every_spelling() {
    for text in ["4096", "4096B", "4K", "4k", "4KB", "4KiB", "4kib", " 4K ", "4.0K", "4 KiB"] {
        assert_eq!(size(text), Some(4 * KIB), "{text}");
    }
    let others = [
        ("0", 0),
        ("3M", 3 << 20),
        ("100G", 100 * GIB),
        ("1.5G", GIB * 3 / 2),
        ("2T", 2 << 40),
        ("1P", 1 << 50),
        ("18446744073709551615", u64::MAX),
    ];
    for (text, bytes) in others {
        assert_eq!(size(text), Some(bytes), "{text}");
    }
}

#[test]
fn what_is_not_a_size_is_refused() {
    let wrong = [
        "",
        " ",
        "G",
        "-1",
        "-0.5K",
        "+1",
        "1e3",
        "1X",
        "1KK",
        "1KiBs",
        "1K B",
        "1.2.3",
        ".",
        "inf",
        "NaN",
        "1_000",
        "0x10",
        "18446744073709551616",
        "16384P",
        "99999999P",
        "1é",
        "é",
        "１",
    ];
    for text in wrong {
        assert_eq!(size(text), None, "{text}");
    }
}

#[test]
fn displayed_size_is_short_and_parses_again() {
    let shown = [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1 KiB"),
        (KIB * 3 / 2, "1.50 KiB"),
        (10 * KIB + 512, "10.5 KiB"),
        (100 * GIB, "100 GiB"),
        (GIB + 1, "1.00 GiB"),
    ];
    for (bytes, text) in shown {
        assert_eq!(ByteSize(bytes).to_string(), text);
        let again = size(text).expect("what is shown can be entered");
        assert!(again.abs_diff(bytes) <= bytes / 100, "{text}");
    }
    assert_eq!(format!("{:>8}|", ByteSize(KIB)), "   1 KiB|");
}

#[test]
fn intervals_have_a_unit_and_print_as_they_parse() {
    let known = [("250ms", 250), ("10s", 10_000), ("15m", 900_000), ("1h", 3_600_000), ("1d", 86_400_000)];
    for (text, ms) in known {
        assert_eq!(interval(text), Some(Duration::from_millis(ms)), "{text}");
        assert_eq!(Interval(Duration::from_millis(ms)).to_string(), text);
    }
    assert_eq!(interval("90"), Some(Duration::from_secs(90)));
    assert_eq!(Interval(Duration::from_secs(90)).to_string(), "90s");
    for text in ["", "m", "0", "0s", "-1s", "+1s", "1.5h", "1w", "1M", "1 h", "18446744073709551615d"] {
        assert_eq!(interval(text), None, "{text}");
    }
}

#[test]
fn volume_id_parses_what_it_prints_and_nothing_else() {
    let id = VolumeId(std::array::from_fn(|index| index as u8 * 17));
    assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
    assert_eq!(id.to_string().parse(), Ok(id));
    for text in
        ["", "00", "00112233445566778899aabbccddeef", "00112233445566778899aabbccddeefg", &"+f".repeat(16)]
    {
        assert_eq!(text.parse::<VolumeId>(), Err(InvalidVolumeId), "{text}");
    }
}

#[test]
fn seeds_give_the_same_numbers_for_ever() {
    // The first numbers of the published SplitMix64 for this seed.
    let mut rng = Rng::new(1_234_567);
    let numbers = [rng.next(), rng.next(), rng.next()];
    assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    let mut seen = [false; 7];
    (0..200).for_each(|_| seen[rng.below(7) as usize] = true);
    assert_eq!(seen, [true; 7]);
    let mut bytes = [0; 19];
    rng.fill(&mut bytes);
    assert_ne!(bytes[16..], [0; 3], "the rest after whole words is filled too");
}

#[test]
fn checksums_are_the_published_ones() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(format!("{:?}", Checksum::of(b"")), "99aa06d3014798d86001c324468d497f");
    assert_ne!(Checksum::of(&[0; 4096]), Checksum::of(&[0; 4095]));
}

#[test]
fn time_since_a_later_moment_is_zero() {
    assert_eq!(Timestamp(5).since(Timestamp(3)), Duration::from_nanos(2));
    assert_eq!(Timestamp(3).since(Timestamp(5)), Duration::ZERO);
    let clock = ManualClock::new(Timestamp(7));
    clock.advance(Duration::from_nanos(3));
    assert_eq!(clock.now(), Timestamp(10));
}
