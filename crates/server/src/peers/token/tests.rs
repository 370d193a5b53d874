//! Tokens to text and back, and invalid ones.

use super::*;
use crate::peers::error::PeersError;

fn token() -> Token {
    Token {
        id: random_name(),
        address: "source.example:7420".to_owned(),
        fingerprint: "ab".repeat(32).parse().unwrap(),
        secret: Secret::random(),
        expires_s: 1_800_000_000,
        volume: Some("vol0".to_owned()),
    }
}

#[test]
fn token_survives_being_a_word() {
    let token = token();
    let word = token.encode();
    assert!(word.starts_with("cairn1-"));
    assert!(word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{word}");
    assert_eq!(Token::decode(&format!(" {word}\n")).unwrap(), token);
}

#[test]
fn cut_or_foreign_words_are_refused() {
    let word = token().encode();
    for wrong in ["", "cairn1-", "cairn2-abc", &word[..word.len() - 5], &word[7..], &"x".repeat(5000)] {
        assert!(matches!(Token::decode(wrong), Err(ServerError::Peers(PeersError::InvalidToken))), "{wrong}");
    }
}

#[test]
fn secret_matches_only_its_own_digest_and_never_shows() {
    let (one, other) = (Secret::random(), Secret::random());
    assert!(one.matches(&one.digest()));
    assert!(!one.matches(&other.digest()));
    assert_eq!(format!("{one:?}"), "(secret)");
}
