//! Each way in which a token is refused, and that pinning survives a restart.

use cairn_base::ManualClock;

use super::*;
use crate::peers::error::PeersError;

const NOW: Timestamp = Timestamp(1_700_000_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn fingerprint(digits: &str) -> Fingerprint {
    digits.repeat(32).parse().unwrap()
}

fn invite(peers: &Peers, volume: Option<&str>) -> Credential {
    let invitation = peers
        .invite(
            &clock(NOW),
            fingerprint("ab"),
            "host:1".to_owned(),
            volume.map(str::to_owned),
            None,
            Some(HOUR),
        )
        .unwrap();
    let token = Token::decode(&invitation.token).unwrap();
    Credential { id: token.id, secret: token.secret }
}

/// Both of its times are the same.
fn clock(at: Timestamp) -> ManualClock {
    ManualClock::new(at)
}

fn later(by: Duration) -> Timestamp {
    Timestamp(NOW.0 + by.as_nanos() as u64)
}

#[test]
fn token_is_good_for_one_destination_and_pins_it_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (fingerprint("01"), fingerprint("02"));
    let peers = Peers::open(dir.path()).unwrap();
    let credential = invite(&peers, None);
    assert!(matches!(
        peers.admit(&clock(NOW), one, None, "v", None),
        Err(ServerError::Peers(PeersError::PeerNotPinned))
    ));
    peers.admit(&clock(NOW), one, Some(&credential), "v", None).unwrap();
    peers
        .admit(&clock(later(HOUR * 2)), one, Some(&credential), "v", None)
        .expect("a lost answer can be asked for again");
    assert!(matches!(
        peers.admit(&clock(NOW), other, Some(&credential), "v", None),
        Err(ServerError::Peers(PeersError::TokenUsed))
    ));
    let reopened = Peers::open(dir.path()).unwrap();
    reopened.admit(&clock(later(HOUR * 1000)), one, None, "v", None).unwrap();
    assert!(matches!(
        reopened.admit(&clock(NOW), other, None, "v", None),
        Err(ServerError::Peers(PeersError::PeerNotPinned))
    ));
}

#[test]
fn expired_unknown_and_forged_tokens_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let peers = Peers::open(dir.path()).unwrap();
    let credential = invite(&peers, None);
    let one = fingerprint("01");
    assert!(matches!(
        peers.admit(&clock(later(HOUR)), one, Some(&credential), "v", None),
        Err(ServerError::Peers(PeersError::TokenExpired))
    ));
    let forged = Credential { id: credential.id.clone(), secret: Secret::random() };
    assert!(matches!(
        peers.admit(&clock(NOW), one, Some(&forged), "v", None),
        Err(ServerError::Peers(PeersError::TokenUnknown))
    ));
    peers.revoke(&credential.id).unwrap();
    assert!(matches!(
        peers.admit(&clock(NOW), one, Some(&credential), "v", None),
        Err(ServerError::Peers(PeersError::TokenUnknown))
    ));
    assert!(matches!(peers.revoke(&credential.id), Err(ServerError::NotFound { .. })));
}

#[test]
fn restricted_token_opens_its_volume_only() {
    let dir = tempfile::tempdir().unwrap();
    let peers = Peers::open(dir.path()).unwrap();
    let credential = invite(&peers, Some("db"));
    let one = fingerprint("01");
    let refused = |outcome| matches!(outcome, Err(ServerError::Peers(PeersError::VolumeNotAllowed { .. })));
    assert!(refused(peers.admit(&clock(NOW), one, Some(&credential), "mail", None)));
    peers.admit(&clock(NOW), one, Some(&credential), "db", None).unwrap();
    assert!(refused(peers.admit(&clock(NOW), one, None, "mail", None)));
    peers.admit(&clock(NOW), one, None, "db", None).unwrap();
}

#[test]
fn token_that_names_no_volume_is_for_the_first_one() {
    let dir = tempfile::tempdir().unwrap();
    let peers = Peers::open(dir.path()).unwrap();
    let credential = invite(&peers, None);
    let one = fingerprint("01");
    peers.admit(&clock(NOW), one, Some(&credential), "mail", None).unwrap();
    let reopened = Peers::open(dir.path()).unwrap();
    for with in [None, Some(&credential)] {
        let refused = reopened.admit(&clock(NOW), one, with, "db", None);
        assert!(matches!(refused, Err(ServerError::Peers(PeersError::VolumeNotAllowed { .. }))));
        reopened.admit(&clock(NOW), one, with, "mail", None).unwrap();
    }
}

#[test]
fn used_token_does_not_tell_which_volumes_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let peers = Peers::open(dir.path()).unwrap();
    let credential = invite(&peers, None);
    let (one, other) = (fingerprint("01"), fingerprint("02"));
    peers.knows(one, &credential, "mistyped").expect("it is told before the token is used up");
    peers.admit(&clock(NOW), one, Some(&credential), "mail", None).unwrap();
    for certificate in [one, other] {
        let refused = peers.knows(certificate, &credential, "guessed");
        assert!(
            matches!(refused, Err(ServerError::Peers(PeersError::VolumeNotAllowed { .. }))),
            "the answer for one that there is"
        );
    }
    assert!(matches!(
        peers.knows(other, &credential, "mail"),
        Err(ServerError::Peers(PeersError::TokenUsed))
    ));
}

#[test]
fn secret_is_not_in_the_state_file() {
    let dir = tempfile::tempdir().unwrap();
    let peers = Peers::open(dir.path()).unwrap();
    let credential = invite(&peers, None);
    let text = std::fs::read_to_string(dir.path().join("peers.json")).unwrap();
    let secret = serde_json::to_string(&credential.secret).unwrap();
    assert!(text.contains(&credential.id) && !text.contains(secret.trim_matches('"')));
}

#[test]
fn token_is_good_for_its_time_whatever_becomes_of_the_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    let peers = Peers::open(dir.path()).unwrap();
    let credential = invite(&peers, None);
    let one = fingerprint("01");
    let put_back = clock(later(HOUR));
    put_back.set(later(HOUR / 4));
    let refused = peers.admit(&put_back, one, Some(&credential), "v", None);
    assert!(
        matches!(refused, Err(ServerError::Peers(PeersError::TokenExpired))),
        "an hour has passed, whatever it shows"
    );
    assert_eq!(peers.list(&put_back)[0].state, PeerState::Expired);
    let put_back = clock(later(HOUR / 2));
    put_back.set(Timestamp(NOW.0 - HOUR.as_nanos() as u64));
    peers.admit(&put_back, one, Some(&credential), "v", None).expect("half an hour has passed");
}

#[test]
fn peer_of_a_volume_that_is_gone_is_none_of_another_one_that_gets_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Some(VolumeId([1; 16])), Some(VolumeId([2; 16])));
    let refused = |outcome| matches!(outcome, Err(ServerError::Peers(PeersError::VolumeNotAllowed { .. })));
    let (one, other, third) = (fingerprint("01"), fingerprint("02"), fingerprint("03"));
    let peers = Peers::open(dir.path()).unwrap();
    let tokens = [invite(&peers, Some("db")), invite(&peers, None)];
    peers.admit(&clock(NOW), one, Some(&tokens[0]), "db", first).unwrap();
    // Of one that came while the volume was not open it is known when it comes again.
    peers.admit(&clock(NOW), other, Some(&tokens[1]), "db", None).unwrap();
    peers.admit(&clock(NOW), other, None, "db", first).unwrap();
    peers.pin(NOW, third, "db", VolumeId([1; 16])).unwrap();
    for peers in [&peers, &Peers::open(dir.path()).unwrap()] {
        for certificate in [one, other, third] {
            assert!(refused(peers.admit(&clock(NOW), certificate, None, "db", second)));
            assert!(refused(peers.allows(certificate, "db", second)));
            peers.allows(certificate, "db", first).expect("it may be back");
            peers.allows(certificate, "db", None).expect("it is not open");
        }
        assert!(refused(peers.admit(&clock(NOW), one, Some(&tokens[0]), "db", second)));
    }
    peers.pin(NOW, one, "db", VolumeId([2; 16])).unwrap();
    peers.allows(one, "db", second).expect("its owner has let it in");
}

#[test]
fn peer_is_named_after_its_host_until_it_is_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (fingerprint("01"), fingerprint("02"));
    let peers = Peers::open(dir.path()).unwrap();
    for certificate in [one, two] {
        let credential = invite(&peers, None);
        peers.admit(&clock(NOW), certificate, Some(&credential), "v", None).unwrap();
        peers.name_after(certificate, "10.0.0.2");
    }
    let second = invite(&peers, None);
    peers.admit(&clock(NOW), one, Some(&second), "w", None).unwrap();
    let names = || peers.list(&clock(NOW)).into_iter().map(|peer| peer.name).collect::<Vec<_>>();
    assert_eq!(names(), ["10.0.0.2", "10.0.0.2-2", "10.0.0.2"]);
    let id = peers.list(&clock(NOW))[0].id.clone();
    peers.rename(&id, "backup").unwrap();
    peers.name_after(one, "10.0.0.9");
    assert_eq!(names(), ["backup", "10.0.0.2-2", "backup"], "one server has one name");
    assert!(matches!(peers.rename(&id, "10.0.0.2-2"), Err(ServerError::Taken { .. })));
    assert!(matches!(peers.rename(&id, "no/name"), Err(ServerError::InvalidName { .. })));
    assert_eq!(Peers::open(dir.path()).unwrap().names()[0], (one, "backup".to_owned()));
    assert_eq!(host_name("[fd00::1]"), "ip6-fd00--1");
}
