//! Doors for the fuzz targets of `fuzz/`: the codec of messages, which no other crate needs, on
//! bytes alone.

use cairn_base::{FileId, Generation, SnapshotId, Timestamp, Vbn, VolumeId};
use cairn_stream::{Compression, Have};

use crate::access::LunAccess;
use crate::error::{NackReason, Refusal};
use crate::handover::{Departure, Standing, Successor};
use crate::lag::SourceStatus;
use crate::message::{
    Answer, Await, Began, HandOver, HandOverTogether, PROTOCOL_VERSION, Request, Stance, StandingOf,
    StatusOf, Update,
};
use crate::relationship::Relationship;
use crate::route::{Hop, Route};
use crate::wire::{Frame, read_frame, write_frame};

/// The frames at the start of `bytes`, each with the bytes that writing it again gives.
pub fn frames(mut bytes: &[u8]) -> Vec<(Frame, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = read_frame(&mut bytes) {
        let again = framed(frame.kind, &frame.body);
        frames.push((frame, again));
    }
    frames
}

/// Parses a frame as sent by a destination, and by a source, and encodes both results as frames
/// again.
pub fn meanings(frame: &Frame) -> [Option<Vec<u8>>; 2] {
    let request = Request::parse(frame).ok().map(|request| request.encode());
    let answer = Answer::parse(frame).ok().map(|answer| answer.encode());
    [request, answer].map(|message| message.map(|(kind, body)| framed(kind, &body)))
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_frame(&mut bytes, kind, body).expect("a vector takes all, and what was read is not too long");
    bytes
}

/// The hello of either side.
pub fn hello() -> Vec<u8> {
    let (kind, body) = Request::Hello { version: PROTOCOL_VERSION }.encode();
    framed(kind, &body)
}

/// A request for an update of `volume`, from a destination of `blocks` that has `have`.
pub fn update(volume: &str, id: VolumeId, blocks: u64, have: Vec<Have>) -> Vec<u8> {
    let update = Update {
        volume: volume.to_owned(),
        id,
        relationship: Relationship(0xabc),
        blocks,
        compression: Compression::Zstd,
        hold: true,
        compare: false,
        step: true,
        stance: Stance::OwnHead,
        rpo_ms: Some(60_000),
        claims: 2,
        shown: have.last().map_or(SnapshotId(0), |have| have.id),
        keep: vec![SnapshotId(2)],
        have,
    };
    let (kind, body) = Request::Update(update).encode();
    framed(kind, &body)
}

/// The acknowledgement of `target`.
pub fn ack(target: SnapshotId) -> Vec<u8> {
    let (kind, body) = Request::Ack { target, keep: vec![SnapshotId(2)] }.encode();
    framed(kind, &body)
}

/// The source's answer before the stream of `target`.
pub fn transfer(target: SnapshotId, name: &str) -> Vec<u8> {
    let transfer = Answer::Transfer {
        target,
        name: name.to_owned(),
        full_blocks: 100,
        left_out: 2,
        sent_before: 3,
        in_memory: 90,
        status: status(),
    };
    let (kind, body) = transfer.encode();
    framed(kind, &body)
}

fn status() -> SourceStatus {
    SourceStatus {
        now: Timestamp(1_700_000_000_000_000_000),
        blocks: 8192,
        used: 100,
        base: SnapshotId(3),
        base_taken: Some(Timestamp(1_600_000_000_000_000_000)),
        first_change: None,
        blocks_behind: 12,
        route: Route::through(Hop::of(b"server", "vol0"), Route::default()),
    }
}

/// One of each message, as frames.
pub fn samples() -> Vec<Vec<u8>> {
    let have = Have {
        id: SnapshotId(3),
        root: cairn_base::Checksum([1; 16]),
        label: cairn_base::Checksum([2; 16]),
        entry: cairn_base::Checksum([3; 16]),
        mirror: true,
    };
    let id = VolumeId([7; 16]);
    let (requests, answers) = (requests(have), answers(have));
    let written = requests.iter().map(Request::encode).chain(answers.iter().map(Answer::encode));
    let mut samples: Vec<Vec<u8>> = written.map(|(kind, body)| framed(kind, &body)).collect();
    samples.extend([hello(), update("vol0", id, 8192, vec![have]), ack(SnapshotId(4))]);
    samples.push(transfer(SnapshotId(4), "mirror.peer1-0000000000000abc.4"));
    samples
}

fn requests(have: Have) -> Vec<Request> {
    let id = VolumeId([7; 16]);
    let wish = HandOver {
        volume: "vol0".to_owned(),
        id,
        relationship: Relationship(0xabc),
        shown: SnapshotId(3),
        successor: Successor {
            address: ":7420".to_owned(),
            volume: "copy".to_owned(),
            every_ms: Some(900_000),
            cron: "0 2 * * *".to_owned(),
            continuous: true,
            zone: String::new(),
            rpo_ms: None,
        },
    };
    vec![
        Request::ProvisionInfo { volume: "vol0".to_owned() },
        Request::Status(StatusOf {
            volume: "vol0".to_owned(),
            relationship: Relationship(0xabc),
            rpo_ms: Some(60_000),
            base: SnapshotId(3),
            base_root: have.root,
        }),
        Request::Began(Began {
            file: Some(FileId(9)),
            generation: Generation(4),
            changed: Timestamp(1_600_000_000_000_000_000),
        }),
        Request::Claims(vec![(Vbn(3), have.root), (Vbn(4), have.label), (Vbn(9), have.entry)]),
        Request::Nack { reason: NackReason::Damaged },
        Request::Farewell { volume: "vol0".to_owned(), relationship: Relationship(7) },
        Request::Access { volume: "vol0".to_owned() },
        Request::Standing(StandingOf {
            volume: "vol0".to_owned(),
            relationship: Relationship(0xabc),
            departed: Some(Departure {
                base: SnapshotId(3),
                root: have.root,
                generation: Generation(4),
                at: Timestamp(1_600_000_000_000_000_000),
                address: "mirror.example:7420".to_owned(),
                volume: "copy".to_owned(),
            }),
        }),
        Request::Await(Await {
            volume: "vol0".to_owned(),
            relationship: Relationship(0xabc),
            base: SnapshotId(3),
            base_root: have.root,
            labels: have.label,
            step_ms: 1000,
            wait_ms: 2000,
        }),
        Request::HandOver(wish.clone()),
        Request::HandOverTogether(HandOverTogether {
            group: "bank".to_owned(),
            members: vec![wish.clone(), HandOver { volume: "logs".to_owned(), ..wish }],
        }),
    ]
}

fn answers(have: Have) -> Vec<Answer> {
    let id = VolumeId([7; 16]);
    vec![
        Answer::Provision { id, blocks: 8192, used: 100, snapshots: 3 },
        Answer::UpToDate(status()),
        Answer::Awaited { due: true, status: status() },
        Answer::Status(status()),
        Answer::Refused(Refusal::WrongVolume { expected: id, found: VolumeId([8; 16]) }),
        Answer::Refused(Refusal::DestinationTooSmall { need: 8192, have: 4096 }),
        Answer::Refused(Refusal::Diverged(SnapshotId(3))),
        Answer::Refused(Refusal::NoCommonBase { blocks: 100 }),
        Answer::Refused(Refusal::NoRoom),
        Answer::AskBegan { accumulating: FileId(9), in_flight: Some(FileId(8)) },
        Answer::AskClaims { from: Vbn(5) },
        Answer::Farewell,
        Answer::Access(vec![
            LunAccess {
                lun: "db".to_owned(),
                initiators: vec!["iqn.a".to_owned(), "iqn.b".to_owned()],
                networks: vec!["10.0.0.0/24".to_owned()],
                chap: Some("alice".to_owned()),
                read_only: true,
                removable: false,
                durable: true,
                block_bytes: 4096,
            },
            LunAccess { lun: "log".to_owned(), block_bytes: 512, ..LunAccess::default() },
        ]),
        Answer::HandedOver { target: SnapshotId(5) },
        Answer::HandedOverTogether { targets: vec![SnapshotId(5), SnapshotId(9)] },
        Answer::Refused(Refusal::InGroup("bank".to_owned())),
        Answer::Refused(Refusal::OtherGroup("bank".to_owned())),
        Answer::Standing(Standing {
            id,
            role: cairn_format::Role::Destination,
            own_head: SnapshotId(5),
            handed_over: true,
            generation: Generation(4),
            changed: Timestamp(1_600_000_000_000_000_000),
            used: 100,
            snapshots: vec![(SnapshotId(3), have.root), (SnapshotId(5), have.label)],
        }),
    ]
}
