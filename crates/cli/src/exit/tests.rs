use std::collections::HashMap;

use super::*;

/// Every bad input that a script must be able to tell from every other one.
const TOLD_APART: &[ErrorKind] = &[
    ErrorKind::Usage,
    ErrorKind::WrongSize,
    ErrorKind::Taken,
    ErrorKind::NotFound,
    ErrorKind::Busy,
    ErrorKind::TooSmall,
    ErrorKind::PortTaken,
    ErrorKind::NoSpace,
    ErrorKind::ReadOnly,
    ErrorKind::VolumeDamaged,
    ErrorKind::Damaged,
    ErrorKind::TokenExpired,
    ErrorKind::TokenUsed,
    ErrorKind::PeerRefused,
    ErrorKind::PeerUnreachable,
    ErrorKind::VersionMismatch,
    ErrorKind::NotEmpty,
    ErrorKind::Diverged,
    ErrorKind::Interrupted,
    ErrorKind::Failed,
];

#[test]
fn no_two_kinds_of_bad_input_share_an_exit_code() {
    let mut kinds = HashMap::new();
    for kind in TOLD_APART {
        let before = kinds.insert(code(*kind), kind);
        assert!(before.is_none(), "{kind:?} and {before:?} have the same exit code");
    }
    assert!(!kinds.contains_key(&DONE) && !kinds.contains_key(&PARTLY_DONE));
}

#[test]
fn quota_that_is_used_up_is_told_as_a_full_disk_is() {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    for kind in [StorageFull, QuotaExceeded] {
        assert_eq!(Failure::from(std::io::Error::from(kind)).code, NO_SPACE, "{kind}");
        let opened = crate::commands::image::files::opening("dump".as_ref(), &kind.into());
        assert_eq!(opened.code, NO_SPACE, "{kind}");
        assert!(opened.body.next.contains("free space"), "{}", opened.body.next);
    }
}

#[test]
fn exit_codes_are_those_of_the_document() {
    let text = include_str!("../../../../docs/reference/exit-codes.md");
    let rows = text.lines().skip_while(|line| !line.starts_with("| exit code |"));
    let mut documented = HashMap::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let Ok(number) = cells[1].parse::<u8>() else { continue };
        for kind in cells[2].split('`').skip(1).step_by(2) {
            documented.insert(kind.to_owned(), number);
        }
    }
    let others =
        [ErrorKind::Unauthorized, ErrorKind::Forbidden, ErrorKind::Contradicted, ErrorKind::WrongRole];
    for kind in TOLD_APART.iter().chain(&others) {
        let name = serde_json::to_value(kind).expect("a kind has a name");
        let name = name.as_str().expect("a name is text");
        assert_eq!(documented.remove(name), Some(code(*kind)), "{name}");
    }
    assert!(documented.is_empty(), "only in the document: {documented:?}");
}
