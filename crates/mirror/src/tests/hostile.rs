//! Bytes of a hostile or foreign other side: an error, never a panic, and nothing of the volume
//! changes.

use std::io::{Cursor, Read, Write};
use std::sync::atomic::AtomicBool;

use cairn_base::{Checksum, FileId, Generation, Rng, SnapshotId, Timestamp, Vbn, VolumeId};
use cairn_stream::{Compression, Have};

use super::harness::{One, Pair};
use crate::message::{Answer, Began, PROTOCOL_VERSION, Request, Stance, StatusOf, Update};
use crate::relationship::split;
use crate::wire::{Frame, read_frame, write_frame};
use crate::{Client, MirrorError, PeerName, Refusal, Relationship, Route, SourceStatus, Work};

/// Sends the prepared bytes, and discards whatever it receives.
struct Says(Cursor<Vec<u8>>);

impl Read for Says {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Says {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn frame(bytes: &mut Vec<u8>, (kind, body): (u8, Vec<u8>)) {
    write_frame(bytes, kind, &body).expect("a short frame");
}

fn serve(pair: &Pair, bytes: Vec<u8>) -> Result<(), MirrorError> {
    let cancel = AtomicBool::new(false);
    let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    let peer = PeerName::new("peer1").expect("a good name");
    let mut says = Says(Cursor::new(bytes));
    pair.registry.serve_session(&mut says, &One(pair.source.clone(), pair.peers[1]), &peer, &mut work)
}

fn an_update() -> Request {
    let have = Have {
        id: SnapshotId(3),
        root: Checksum([1; 16]),
        label: Checksum([2; 16]),
        entry: Checksum([3; 16]),
        mirror: true,
    };
    Request::Update(Update {
        volume: "vol0".to_owned(),
        id: VolumeId([7; 16]),
        relationship: Relationship(5),
        blocks: 9000,
        compression: Compression::Zstd,
        hold: false,
        compare: true,
        step: false,
        stance: Stance::Follows,
        rpo_ms: Some(7),
        claims: 9,
        shown: SnapshotId(3),
        keep: vec![SnapshotId(2)],
        have: vec![have],
    })
}

/// Requests of every kind that answers a question.
fn answers() -> [Request; 3] {
    let began = Began { file: Some(FileId(9)), generation: Generation(4), changed: Timestamp(5) };
    let claims = [3, 4, 5, 9].map(|vbn| (Vbn(vbn), Checksum([vbn as u8; 16]))).to_vec();
    let of = StatusOf {
        volume: "vol0".to_owned(),
        relationship: Relationship(1),
        rpo_ms: None,
        base: SnapshotId(2),
        base_root: Checksum([6; 16]),
    };
    [Request::Began(began), Request::Claims(claims), Request::Status(of)]
}

#[test]
fn messages_come_out_as_they_went_in() {
    let (kind, body) = an_update().encode();
    assert_eq!(Request::parse(&Frame { kind, body }).expect("it parses"), an_update());
    for request in answers() {
        let (kind, body) = request.encode();
        assert_eq!(Request::parse(&Frame { kind, body }).expect("it parses"), request);
    }
    for answer in
        [Answer::AskBegan { accumulating: FileId(4), in_flight: None }, Answer::AskClaims { from: Vbn(77) }]
    {
        let (kind, body) = answer.encode();
        assert_eq!(Answer::parse(&Frame { kind, body }).expect("it parses"), answer);
    }
    for refusal in [
        Refusal::NoCommonBase { blocks: 3 },
        Refusal::DestinationTooSmall { need: 5, have: 3 },
        Refusal::Superseded,
    ] {
        let (kind, body) = Answer::Refused(refusal.clone()).encode();
        assert_eq!(Answer::parse(&Frame { kind, body }).expect("it parses"), Answer::Refused(refusal));
    }
}

#[test]
fn every_message_is_written_again_as_it_was_read() {
    for sample in crate::fuzzing::samples() {
        let frame = read_frame(&mut sample.as_slice()).expect("it is whole").expect("it is a frame");
        let mut again = crate::fuzzing::meanings(&frame).into_iter().flatten();
        assert!(again.any(|again| again == sample), "kind {}", frame.kind);
    }
}

#[test]
fn another_version_is_told_with_both_numbers() {
    let pair = Pair::new(0);
    let mut bytes = Vec::new();
    frame(&mut bytes, Request::Hello { version: PROTOCOL_VERSION + 1 }.encode());
    let error = serve(&pair, bytes.clone()).expect_err("another version");
    assert!(
        matches!(error, MirrorError::Version { theirs, ours: PROTOCOL_VERSION } if theirs == PROTOCOL_VERSION + 1),
        "{error:?}"
    );
    let error = Client::hello(&mut Says(Cursor::new(bytes))).map(drop).expect_err("another version");
    assert!(
        matches!(error, MirrorError::Version { theirs, ours: PROTOCOL_VERSION } if theirs == PROTOCOL_VERSION + 1),
        "{error:?}"
    );
}

#[test]
fn text_that_tells_a_terminal_what_to_do_is_no_message() {
    let status = SourceStatus {
        now: Timestamp(9),
        blocks: 8,
        used: 7,
        base: SnapshotId(0),
        base_taken: None,
        first_change: None,
        blocks_behind: 6,
        route: Route::default(),
    };
    let parsed = |name: &str| {
        let name = name.to_owned();
        let (target, full_blocks, left_out, sent_before, in_memory) = (SnapshotId(1), 5, 0, 0, 0);
        let answer = Answer::Transfer { target, name, full_blocks, left_out, sent_before, in_memory, status };
        let (kind, body) = answer.encode();
        Answer::parse(&Frame { kind, body })
    };
    assert!(parsed("mirror.peer1-5.7").is_ok() && parsed("Übung 7").is_ok());
    for name in ["\x1b]0;all is well\x07", "\u{9b}2J", "a\nOK - all is well", "\x7f", "a\rb"] {
        assert!(matches!(parsed(name), Err(MirrorError::Protocol(_))), "{name:?}");
    }
    let (kind, body) = Answer::Refused(Refusal::InGroup("\x1b[8m".to_owned())).encode();
    assert!(matches!(Answer::parse(&Frame { kind, body }), Err(MirrorError::Protocol(_))));
}

#[test]
fn numbers_of_blocks_that_no_volume_has_are_no_message() {
    let status = |used: u64, blocks_behind: u64| SourceStatus {
        now: Timestamp(9),
        blocks: 8,
        used,
        base: SnapshotId(0),
        base_taken: None,
        first_change: None,
        blocks_behind,
        route: Route::default(),
    };
    let transfer = |full_blocks: u64, left_out: u64, sent_before: u64, in_memory: u64| Answer::Transfer {
        target: SnapshotId(1),
        name: "mirror.peer1-5.7".to_owned(),
        full_blocks,
        left_out,
        sent_before,
        in_memory,
        status: status(7, 6),
    };
    let provision =
        |blocks: u64, used: u64| Answer::Provision { id: VolumeId([7; 16]), blocks, used, snapshots: 1 };
    let parsed = |answer: Answer| {
        let (kind, body) = answer.encode();
        Answer::parse(&Frame { kind, body })
    };
    for good in [transfer(1 << 40, 5, 5, 5), provision(1 << 40, 1 << 40), Answer::Status(status(1 << 40, 9))]
    {
        assert_eq!(parsed(good.clone()).expect("it is a message"), good);
    }
    // In bytes they would not go into 64 bits.
    let most = u64::MAX / 4096 + 1;
    for bad in [
        transfer(most, 0, 0, 0),
        transfer(1, most, 0, 0),
        transfer(1, 0, u64::MAX, 0),
        transfer(1, 0, 0, most),
        provision(most, 0),
        provision(8, most),
        Answer::Status(status(most, 0)),
        Answer::UpToDate(status(7, u64::MAX)),
        Answer::Refused(Refusal::NoCommonBase { blocks: most }),
    ] {
        assert!(matches!(parsed(bad.clone()), Err(MirrorError::Protocol(_))), "{bad:?}");
    }
}

#[test]
fn mirror_whose_first_update_is_refused_is_none_of_those_that_follow() {
    let pair = Pair::new(0);
    let refused = |relationship: u64| {
        let Request::Update(update) = an_update() else { unreachable!("it is one") };
        let of_another = Update { id: VolumeId([8; 16]), relationship: Relationship(relationship), ..update };
        let mut bytes = Vec::new();
        frame(&mut bytes, Request::Hello { version: PROTOCOL_VERSION }.encode());
        frame(&mut bytes, Request::Update(of_another).encode());
        serve(&pair, bytes).expect_err("it is another volume")
    };
    for relationship in 0..20 {
        let error = refused(relationship);
        assert!(matches!(error, MirrorError::Refused(Refusal::WrongVolume { .. })), "{error}");
    }
    assert_eq!(pair.registry.followers().len(), 0, "each would be written down, and missed after a day");
    pair.update().expect("a baseline");
    let known = pair.registry.followers();
    refused(0xabc);
    assert_eq!(pair.registry.followers().len(), known.len(), "one that has an image stays known");
}

#[test]
fn nothing_is_answered_before_a_hello_and_a_length_takes_no_memory() {
    let pair = Pair::new(0);
    let mut bytes = Vec::new();
    frame(&mut bytes, Request::ProvisionInfo { volume: "vol0".to_owned() }.encode());
    assert!(matches!(serve(&pair, bytes), Err(MirrorError::Protocol(_))));
    assert!(matches!(serve(&pair, b"\xff\xff\xff\xff\x01".to_vec()), Err(MirrorError::Protocol(_))));
    assert!(matches!(serve(&pair, b"GET / HTTP/1.1\r\n\r\n".to_vec()), Err(MirrorError::Protocol(_))));
}

#[test]
fn random_bytes_and_spoiled_messages_never_panic() {
    let pair = Pair::new(0);
    let mut rng = Rng::new(9);
    for _ in 0..3000 {
        let mut bytes = Vec::new();
        frame(&mut bytes, Request::Hello { version: PROTOCOL_VERSION }.encode());
        frame(&mut bytes, an_update().encode());
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes[at] = rng.next() as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, rng.next() as u8),
            }
        }
        let _ = serve(&pair, bytes.clone());
        let mut reader = Cursor::new(bytes);
        while let Ok(Some(frame)) = read_frame(&mut reader) {
            let _ = (Request::parse(&frame), Answer::parse(&frame));
        }
        let mirror = pair.mirror();
        let mut noise = vec![0; 200];
        rng.fill(&mut noise);
        let mut answers = Vec::new();
        frame(&mut answers, Answer::Hello { version: PROTOCOL_VERSION }.encode());
        answers.extend(noise);
        let mut says = Says(Cursor::new(answers));
        let mut client = Client::hello(&mut says).expect("a good hello");
        let cancel = AtomicBool::new(false);
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        mirror.update(&mut client, &mut work).expect_err("noise is no update");
    }
    assert_eq!(pair.destination.status().cursor.snapshot.0, 0);
}

#[test]
fn names_of_mirrors_can_not_be_taken_for_those_of_others() {
    assert!(PeerName::new("a.b").is_err() && PeerName::new("").is_err() && PeerName::new("é").is_err());
    assert_eq!(split("mirror.peer1-0000000000000abc.12"), Some(("mirror.peer1-0000000000000abc.", 12)));
    assert_eq!(split("mirror.12"), None);
    assert_eq!(split("daily.12"), None);
}
