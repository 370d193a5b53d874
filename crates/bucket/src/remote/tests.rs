//! Answers of stores as bytes.

use super::codes::{Answer, Meaning, meaning};
use super::xml::{elements, text};
use crate::error::{Trouble, Verb};

#[test]
fn elements_are_found_and_broken_ones_are_not() {
    let xml = "<a><b>1</b><b>2</b><c>&lt;x&gt; &amp; &quot;y&quot;&#39;&#x41;</c><d></d><b>3";
    assert_eq!(elements(xml, "b").collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(text(xml, "c").as_deref(), Some("<x> & \"y\"'A"));
    assert_eq!(text(xml, "d").as_deref(), Some(""));
    for broken in ["", "<c>", "<c>&</c>", "<c>&nope;</c>", "<c>&#xffffffff;</c>", "<c>&#;</c>", "</c><c>"] {
        assert_eq!(text(broken, "c"), None, "{broken}");
    }
}

#[test]
fn no_answer_panics_and_a_status_alone_has_a_meaning() {
    for status in 300..600 {
        for verb in [Verb::Open, Verb::Put, Verb::PutPieces, Verb::Get, Verb::Head, Verb::List, Verb::Delete]
        {
            let answer = Answer { status, ..Answer::default() };
            let means = meaning(verb, &answer);
            match status {
                412 => assert!(matches!(means, Meaning::Exists)),
                416 => assert!(matches!(means, Meaning::PastEnd)),
                503 => assert!(matches!(means, Meaning::Trouble(Trouble::SlowDown(None)))),
                _ => assert!(matches!(means, Meaning::Trouble(_))),
            }
        }
    }
}

#[test]
fn answers_of_any_bytes_are_read_without_a_panic() {
    let seed = "<ListPartsResult><IsTruncated>false</IsTruncated><Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag><Size>5</Size></Part></ListPartsResult>";
    let mut rng = cairn_base::Rng::new(7);
    for _ in 0..20_000 {
        let mut bytes = seed.as_bytes().to_vec();
        for _ in 0..=rng.below(6) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes[at] = rng.next() as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.splice(at..at, b"<&;>".iter().copied()).for_each(drop),
            }
        }
        let answer = String::from_utf8_lossy(&bytes);
        for part in elements(&answer, "Part") {
            for name in ["PartNumber", "ETag", "Size"] {
                let _ = text(part, name);
            }
        }
    }
}
