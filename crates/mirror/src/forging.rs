//! Hand-made messages for the simulator, to play a lying side and to read the answers. No other
//! code outside of this crate uses the codec of messages.

use cairn_base::{Checksum, FileId, Generation, SnapshotId, Timestamp, Vbn, VolumeId};
use cairn_stream::{Compression, Have};
use cairn_volume::Position;

use crate::copies::{Asks, CopiesAnswer, CopiesRequest, RegionAnswer, RegionOf};
use crate::error::{NackReason, Refusal};
use crate::handover::{Departure, Standing, Successor};
use crate::lag::SourceStatus;
use crate::message::{
    Answer, Await, Began, HandOver, HandOverTogether, PROTOCOL_VERSION, Request, Stance, StandingOf,
    StatusOf, Update,
};
use crate::relationship::Relationship;
use crate::wire::{Frame, read_frame, write_frame};

/// Requests of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Its hello.
    Hello,
    /// The requirements for a destination.
    Provision,
    /// An image, for a destination that has these snapshots and this many blocks of no image.
    Update(Vec<Have>, u64),
    /// The status.
    Status,
    /// The answer to a question about since maps.
    Began,
    /// Blocks that it has.
    Claims(Vec<(Vbn, Checksum)>),
    /// It has the image.
    Ack(SnapshotId),
    /// It does not take the image.
    Nack(NackReason),
    /// Blocks that are damaged there.
    Fetch(Vec<(Vbn, Checksum)>),
    /// The damaged blocks at the source.
    Needs,
    /// It sends this many blocks.
    Give(usize),
    /// A region of a snapshot.
    Region,
    /// The state of the other side.
    Standing,
    /// It wants to take over.
    HandOver,
    /// A change.
    Await,
    /// The mirror is gone.
    Farewell,
    /// The access rules of LUNs.
    Access,
}

/// Answers of a source.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// Its hello.
    Hello,
    /// The requirements for a destination: the volume, its blocks.
    Provision(VolumeId, u64),
    /// Nothing has changed.
    UpToDate(SourceStatus),
    /// Which of two maps began at the image.
    AskBegan(FileId, FileId),
    /// The destination's blocks from a block on.
    AskClaims(Vbn),
    /// A stream follows: the target and its name, blocks that are left out.
    Transfer(SnapshotId, String, u64, SourceStatus),
    /// Whether an update is due.
    Awaited(bool, SourceStatus),
    /// The status.
    Status(SourceStatus),
    /// No.
    Refused(Refusal),
    /// The requested bytes of blocks.
    Blocks(Vec<Option<Vec<u8>>>),
    /// The damaged blocks at the source.
    Needs(Vec<(Vbn, Checksum)>),
    /// This many blocks were repaired.
    Mended(u64),
    /// A region: its digest, and its blocks.
    Region(Checksum, Vec<(Vbn, Checksum, bool)>),
    /// It does not have that root.
    NoSuchRoot,
    /// Its state.
    Standing(Standing),
    /// It has given its role away.
    HandedOver(SnapshotId),
    /// The state kept for the mirror is discarded.
    Farewell,
}

/// The request at the start of `bytes`, and its length; `None` without a complete one.
pub fn asked(bytes: &[u8]) -> Option<(Asked, usize)> {
    let (frame, length) = framed(bytes)?;
    let asked = match Request::parse(&frame).ok()? {
        Request::Hello { .. } => Asked::Hello,
        Request::ProvisionInfo { .. } => Asked::Provision,
        Request::Update(update) => Asked::Update(update.have, update.claims),
        Request::Status(_) => Asked::Status,
        Request::Began(_) => Asked::Began,
        Request::Claims(claims) => Asked::Claims(claims),
        Request::Ack { target, .. } => Asked::Ack(target),
        Request::Nack { reason } => Asked::Nack(reason),
        Request::Copies(CopiesRequest { asks, .. }) => match asks {
            Asks::Fetch(wanted) => Asked::Fetch(wanted),
            Asks::Needs => Asked::Needs,
            Asks::Give(blocks) => Asked::Give(blocks.len()),
            Asks::Region(_) => Asked::Region,
        },
        Request::Standing(_) => Asked::Standing,
        Request::HandOver(_) | Request::HandOverTogether(_) => Asked::HandOver,
        Request::Await(_) => Asked::Await,
        Request::Farewell { .. } => Asked::Farewell,
        Request::Access { .. } => Asked::Access,
    };
    Some((asked, length))
}

/// A source's answer, as a frame.
pub fn told(told: Told) -> Vec<u8> {
    let answer = match told {
        Told::Hello => Answer::Hello { version: PROTOCOL_VERSION },
        Told::Provision(id, blocks) => Answer::Provision { id, blocks, used: blocks / 2, snapshots: 1 },
        Told::UpToDate(status) => Answer::UpToDate(status),
        Told::AskBegan(accumulating, in_flight) => {
            Answer::AskBegan { accumulating, in_flight: Some(in_flight) }
        }
        Told::AskClaims(from) => Answer::AskClaims { from },
        Told::Transfer(target, name, left_out, status) => Answer::Transfer {
            target,
            name,
            full_blocks: status.used,
            left_out,
            sent_before: 0,
            in_memory: 0,
            status,
        },
        Told::Awaited(due, status) => Answer::Awaited { due, status },
        Told::Status(status) => Answer::Status(status),
        Told::Refused(refusal) => Answer::Refused(refusal),
        Told::Blocks(blocks) => Answer::Copies(CopiesAnswer::Blocks(blocks)),
        Told::Needs(needs) => Answer::Copies(CopiesAnswer::Needs(needs)),
        Told::Mended(count) => Answer::Copies(CopiesAnswer::Mended(count)),
        Told::Region(digest, list) => Answer::Copies(CopiesAnswer::Region(RegionAnswer {
            digest,
            read: list.len() as u64,
            incomplete: false,
            list,
        })),
        Told::NoSuchRoot => Answer::Copies(CopiesAnswer::NoSuchRoot),
        Told::Standing(standing) => Answer::Standing(standing),
        Told::HandedOver(target) => Answer::HandedOver { target },
        Told::Farewell => Answer::Farewell,
    };
    written(answer.encode())
}

/// A request for an image, field by field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Which mirror.
    pub relationship: Relationship,
    /// Length of the block space there.
    pub blocks: u64,
    /// The source holds the base.
    pub hold: bool,
    /// Checksums are compared.
    pub compare: bool,
    /// It comes again in a moment.
    pub step: bool,
    /// 0: it follows; 1: it shows an own head; 2 and 3: it gives that up, and it was spilled.
    pub stance: u8,
    /// The number of blocks there that belong to no image.
    pub claims: u64,
    /// The image that it shows.
    pub shown: SnapshotId,
    /// The snapshots that the source must keep.
    pub keep: Vec<SnapshotId>,
    /// The snapshots that it has.
    pub have: Vec<Have>,
}

/// Requests of a lying destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Its hello, of a version.
    Hello(u32),
    /// The requirements for a destination.
    Provision,
    /// An image.
    Update(Wish),
    /// The status for a mirror that shows a snapshot with a root.
    Status(Relationship, SnapshotId, Checksum),
    /// A map that began at its image.
    Began(Option<FileId>, Generation, Timestamp),
    /// Blocks that it has.
    Claims(Vec<(Vbn, Checksum)>),
    /// It has an image, and the source is to keep others.
    Ack(SnapshotId, Vec<SnapshotId>),
    /// It does not take an image.
    Nack(NackReason),
    /// Blocks that are damaged there.
    Fetch(Vec<(Vbn, Checksum)>),
    /// The damaged blocks at the source.
    Needs,
    /// Blocks for the source.
    Give(Vec<(Vbn, Checksum, Vec<u8>)>),
    /// A region of a snapshot over another one, from and to a position, read as a whole or listed.
    Region([(SnapshotId, Checksum); 2], [(u64, u64); 2], [bool; 2]),
    /// The state of the source; it was failed over, or not.
    Standing(Relationship, Option<Departure>),
    /// It wants to take over, showing a snapshot.
    HandOver(Relationship, SnapshotId, Successor),
    /// The same of a group of that volume alone, twice.
    HandOverTogether(Relationship, SnapshotId, Successor),
    /// A change since a snapshot with a root.
    Await(Relationship, SnapshotId, Checksum),
    /// The mirror is gone.
    Farewell(Relationship),
    /// The access rules of LUNs.
    Access,
}

/// Answers of a source, as far as a lying destination needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// A stream follows, of that snapshot.
    Transfer(SnapshotId),
    /// Which map began at the image.
    AskBegan(FileId),
    /// The blocks there from a block on.
    AskClaims(Vbn),
    /// No.
    Refused(Refusal),
    /// The state of the source.
    Standing(Standing),
    /// The damaged blocks at the source.
    Needs(Vec<(Vbn, Checksum)>),
    /// Another message.
    Other,
}

/// A request about `volume`, as a frame.
pub fn ask(volume: &str, id: VolumeId, ask: Ask) -> Vec<u8> {
    let name = volume.to_owned();
    let copies = |asks| Request::Copies(CopiesRequest { volume: volume.to_owned(), id, asks });
    let hand_over = |relationship, shown, successor| HandOver {
        volume: volume.to_owned(),
        id,
        relationship,
        shown,
        successor,
    };
    let request = match ask {
        Ask::Hello(version) => Request::Hello { version },
        Ask::Provision => Request::ProvisionInfo { volume: name },
        Ask::Update(wish) => Request::Update(Update {
            volume: name,
            id,
            relationship: wish.relationship,
            blocks: wish.blocks,
            compression: Compression::None,
            hold: wish.hold,
            compare: wish.compare,
            step: wish.step,
            stance: match wish.stance {
                0 => Stance::Follows,
                1 => Stance::OwnHead,
                2 => Stance::GivesUp,
                _ => Stance::GivesUpSpilled,
            },
            rpo_ms: None,
            claims: wish.claims,
            shown: wish.shown,
            keep: wish.keep,
            have: wish.have,
        }),
        Ask::Status(relationship, base, base_root) => {
            Request::Status(StatusOf { volume: name, relationship, rpo_ms: Some(1), base, base_root })
        }
        Ask::Began(file, generation, changed) => Request::Began(Began { file, generation, changed }),
        Ask::Claims(claims) => Request::Claims(claims),
        Ask::Ack(target, keep) => Request::Ack { target, keep },
        Ask::Nack(reason) => Request::Nack { reason },
        Ask::Fetch(wanted) => copies(Asks::Fetch(wanted)),
        Ask::Needs => copies(Asks::Needs),
        Ask::Give(blocks) => copies(Asks::Give(blocks)),
        Ask::Region([root, base], [from, until], [everything, list]) => copies(Asks::Region(RegionOf {
            root,
            base,
            from: Position::from_numbers(from),
            until: Some(Position::from_numbers(until)),
            everything,
            list,
        })),
        Ask::Standing(relationship, departed) => {
            Request::Standing(StandingOf { volume: name, relationship, departed })
        }
        Ask::HandOver(relationship, shown, successor) => {
            Request::HandOver(hand_over(relationship, shown, successor))
        }
        Ask::HandOverTogether(relationship, shown, successor) => {
            let wish = hand_over(relationship, shown, successor);
            Request::HandOverTogether(HandOverTogether {
                group: "g".to_owned(),
                members: vec![wish.clone(), wish],
            })
        }
        Ask::Await(relationship, base, base_root) => Request::Await(Await {
            volume: name,
            relationship,
            base,
            base_root,
            labels: base_root,
            step_ms: 0,
            wait_ms: 0,
        }),
        Ask::Farewell(relationship) => Request::Farewell { volume: name, relationship },
        Ask::Access => Request::Access { volume: name },
    };
    written(request.encode())
}

/// The answer at the start of `bytes`, and its length; `None` without a complete one.
pub fn answered(bytes: &[u8]) -> Option<(Answered, usize)> {
    let (frame, length) = framed(bytes)?;
    let answered = match Answer::parse(&frame).ok()? {
        Answer::Transfer { target, .. } => Answered::Transfer(target),
        Answer::AskBegan { accumulating, .. } => Answered::AskBegan(accumulating),
        Answer::AskClaims { from } => Answered::AskClaims(from),
        Answer::Refused(refusal) => Answered::Refused(refusal),
        Answer::Standing(standing) => Answered::Standing(standing),
        Answer::Copies(CopiesAnswer::Needs(needs)) => Answered::Needs(needs),
        _ => Answered::Other,
    };
    Some((answered, length))
}

fn framed(bytes: &[u8]) -> Option<(Frame, usize)> {
    let mut left = bytes;
    let frame = read_frame(&mut left).ok()??;
    Some((frame, bytes.len() - left.len()))
}

fn written((kind, body): (u8, Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A vector takes all bytes; a body too long for a frame is dropped.
    let _ = write_frame(&mut bytes, kind, &body);
    bytes
}
