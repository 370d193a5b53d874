//! Which answers of a source let a first image be shown.

use std::io;

use super::*;
use crate::mirrors::error::MirrorsError;

#[test]
fn source_that_hangs_up_does_not_know_the_question_and_one_that_is_late_or_refuses_does() {
    let of = |source: MirrorError| {
        ServerError::Mirrors(MirrorsError::Mirror { volume: "v".to_owned(), source: Box::new(source) })
    };
    let cut = |kind: io::ErrorKind| of(io::Error::from(kind).into());
    assert!(
        has_hung_up(&cut(io::ErrorKind::UnexpectedEof)) && has_hung_up(&cut(io::ErrorKind::ConnectionReset))
    );
    assert!(!has_hung_up(&cut(io::ErrorKind::WouldBlock)) && !has_hung_up(&cut(io::ErrorKind::TimedOut)));
    assert!(!has_hung_up(&of(MirrorError::Refused(Refusal::SourceFailed))));
    assert!(is_unknown(&of(MirrorError::Refused(Refusal::SourceFailed))));
    assert!(!is_unknown(&of(MirrorError::Refused(Refusal::NoSuchVolume))), "that says itself what it is");
}
