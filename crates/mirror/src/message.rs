//! What the two sides say to each other. A request of the destination, an answer of the source.
//!
//! The hello never changes its form, so that any two versions can tell each other apart.

use cairn_base::{SnapshotId, Timestamp, VolumeId};
use cairn_stream::{Compression, Have};

use crate::error::{MirrorError, NackReason, Refusal};
use crate::lag::SourceStatus;
use crate::relationship::Relationship;
use crate::wire::{Body, Frame, Parser};

/// The version of everything after the hello. Both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 1;
const MAGIC: u64 = u64::from_le_bytes(*b"CAIRNMIR");

/// What a destination asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Hello { version: u32 },
    ProvisionInfo { volume: String },
    Update(Update),
    Status { volume: String, base: SnapshotId, base_root: cairn_base::Checksum },
    Ack { target: SnapshotId },
    Nack { reason: NackReason },
}

/// A request for an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Update {
    pub(crate) volume: String,
    pub(crate) id: VolumeId,
    pub(crate) relationship: Relationship,
    /// Length of the destination's block space.
    pub(crate) blocks: u64,
    pub(crate) compression: Compression,
    pub(crate) have: Vec<Have>,
}

/// What a source answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Hello {
        version: u32,
    },
    Provision {
        id: VolumeId,
        blocks: u64,
        used: u64,
        snapshots: u64,
    },
    UpToDate(SourceStatus),
    /// The stream follows, without frames.
    Transfer {
        target: SnapshotId,
        name: String,
        full_blocks: u64,
        status: SourceStatus,
    },
    Status(SourceStatus),
    Refused(Refusal),
}

const HELLO: u8 = 1;
const PROVISION: u8 = 2;
const UPDATE: u8 = 3;
const STATUS: u8 = 4;
const ACK: u8 = 5;
const NACK: u8 = 6;
const UP_TO_DATE: u8 = 7;
const TRANSFER: u8 = 8;
const REFUSED: u8 = 9;

fn hello(version: u32) -> Body {
    Body::default().u64(MAGIC).u32(version)
}

/// A hello may be longer in a later version; only its start is looked at.
fn parse_hello(body: &[u8]) -> Result<u32, MirrorError> {
    let mut parser = Parser(body);
    if parser.u64()? != MAGIC {
        return Err(MirrorError::Protocol("its hello is another protocol's"));
    }
    parser.u32()
}

impl Request {
    pub(crate) fn encode(&self) -> (u8, Vec<u8>) {
        let body = Body::default();
        let (kind, body) = match self {
            Request::Hello { version } => (HELLO, hello(*version)),
            Request::ProvisionInfo { volume } => (PROVISION, body.text(volume)),
            Request::Update(update) => {
                let compression = match update.compression {
                    Compression::None => 0,
                    Compression::Zstd => 1,
                };
                let start = body
                    .text(&update.volume)
                    .array(&update.id.0)
                    .u64(update.relationship.0)
                    .u64(update.blocks)
                    .u8(compression)
                    .u32(update.have.len() as u32);
                let add = |body: Body, have: &Have| {
                    let digests = [&have.root.0, &have.label.0, &have.entry.0];
                    let body = body.u64(have.id.0).u8(u8::from(have.mirror));
                    digests.into_iter().fold(body, Body::array)
                };
                (UPDATE, update.have.iter().fold(start, add))
            }
            Request::Status { volume, base, base_root } => {
                (STATUS, body.text(volume).u64(base.0).array(&base_root.0))
            }
            Request::Ack { target } => (ACK, body.u64(target.0)),
            Request::Nack { reason } => {
                let code = match reason {
                    NackReason::Other => 0,
                    NackReason::Damaged => 1,
                    NackReason::VolumeFailed => 2,
                    NackReason::Cancelled => 3,
                };
                (NACK, body.u32(code))
            }
        };
        (kind, body.0)
    }

    pub(crate) fn parse(frame: &Frame) -> Result<Self, MirrorError> {
        let mut parser = Parser(&frame.body);
        let request = match frame.kind {
            HELLO => return parse_hello(&frame.body).map(|version| Request::Hello { version }),
            PROVISION => Request::ProvisionInfo { volume: parser.text()? },
            UPDATE => Request::Update(parse_update(&mut parser)?),
            STATUS => Request::Status {
                volume: parser.text()?,
                base: SnapshotId(parser.u64()?),
                base_root: parser.checksum()?,
            },
            ACK => Request::Ack { target: SnapshotId(parser.u64()?) },
            NACK => Request::Nack {
                reason: match parser.u32()? {
                    1 => NackReason::Damaged,
                    2 => NackReason::VolumeFailed,
                    3 => NackReason::Cancelled,
                    _ => NackReason::Other,
                },
            },
            _ => return Err(MirrorError::Protocol("it sent an unknown message")),
        };
        parser.end()?;
        Ok(request)
    }
}

fn parse_update(parser: &mut Parser<'_>) -> Result<Update, MirrorError> {
    let volume = parser.text()?;
    let id = VolumeId(parser.array()?);
    let relationship = Relationship(parser.u64()?);
    let blocks = parser.u64()?;
    let compression = match parser.u8()? {
        0 => Compression::None,
        1 => Compression::Zstd,
        _ => return Err(MirrorError::Protocol("it asks for an unknown compression")),
    };
    let count = parser.u32()?;
    let mut have = Vec::new();
    for _ in 0..count {
        have.push(Have {
            id: SnapshotId(parser.u64()?),
            mirror: parser.u8()? != 0,
            root: parser.checksum()?,
            label: parser.checksum()?,
            entry: parser.checksum()?,
        });
    }
    Ok(Update { volume, id, relationship, blocks, compression, have })
}

impl Answer {
    pub(crate) fn encode(&self) -> (u8, Vec<u8>) {
        let body = Body::default();
        let (kind, body) = match self {
            Answer::Hello { version } => (HELLO, hello(*version)),
            Answer::Provision { id, blocks, used, snapshots } => {
                (PROVISION, body.array(&id.0).u64(*blocks).u64(*used).u64(*snapshots))
            }
            Answer::UpToDate(status) => (UP_TO_DATE, put_status(body, status)),
            Answer::Transfer { target, name, full_blocks, status } => {
                (TRANSFER, put_status(body.u64(target.0).text(name).u64(*full_blocks), status))
            }
            Answer::Status(status) => (STATUS, put_status(body, status)),
            Answer::Refused(refusal) => (REFUSED, put_refusal(body, refusal)),
        };
        (kind, body.0)
    }

    pub(crate) fn parse(frame: &Frame) -> Result<Self, MirrorError> {
        let mut parser = Parser(&frame.body);
        let answer = match frame.kind {
            HELLO => return parse_hello(&frame.body).map(|version| Answer::Hello { version }),
            PROVISION => Answer::Provision {
                id: VolumeId(parser.array()?),
                blocks: parser.u64()?,
                used: parser.u64()?,
                snapshots: parser.u64()?,
            },
            UP_TO_DATE => Answer::UpToDate(parse_status(&mut parser)?),
            TRANSFER => Answer::Transfer {
                target: SnapshotId(parser.u64()?),
                name: parser.text()?,
                full_blocks: parser.u64()?,
                status: parse_status(&mut parser)?,
            },
            STATUS => Answer::Status(parse_status(&mut parser)?),
            REFUSED => Answer::Refused(parse_refusal(&mut parser)?),
            _ => return Err(MirrorError::Protocol("it sent an unknown message")),
        };
        parser.end()?;
        Ok(answer)
    }
}

fn put_status(body: Body, status: &SourceStatus) -> Body {
    body.u64(status.now.0)
        .u64(status.blocks)
        .u64(status.used)
        .u64(status.base.0)
        .option(status.base_taken.map(|at| at.0))
        .option(status.first_change.map(|at| at.0))
        .u64(status.blocks_behind)
}

fn parse_status(parser: &mut Parser<'_>) -> Result<SourceStatus, MirrorError> {
    Ok(SourceStatus {
        now: Timestamp(parser.u64()?),
        blocks: parser.u64()?,
        used: parser.u64()?,
        base: SnapshotId(parser.u64()?),
        base_taken: parser.option()?.map(Timestamp),
        first_change: parser.option()?.map(Timestamp),
        blocks_behind: parser.u64()?,
    })
}

fn put_refusal(body: Body, refusal: &Refusal) -> Body {
    match refusal {
        Refusal::Unknown => body.u32(0),
        Refusal::NoSuchVolume => body.u32(1),
        Refusal::NotASource => body.u32(2),
        Refusal::WrongVolume { expected, found } => body.u32(3).array(&expected.0).array(&found.0),
        Refusal::NoCommonBase => body.u32(4),
        Refusal::Diverged(snapshot) => body.u32(5).u64(snapshot.0),
        Refusal::DestinationTooSmall { need, have } => body.u32(6).u64(*need).u64(*have),
        Refusal::SourceFull => body.u32(7),
        Refusal::SourceFailed => body.u32(8),
        Refusal::Superseded => body.u32(9),
    }
}

fn parse_refusal(parser: &mut Parser<'_>) -> Result<Refusal, MirrorError> {
    Ok(match parser.u32()? {
        1 => Refusal::NoSuchVolume,
        2 => Refusal::NotASource,
        3 => Refusal::WrongVolume { expected: VolumeId(parser.array()?), found: VolumeId(parser.array()?) },
        4 => Refusal::NoCommonBase,
        5 => Refusal::Diverged(SnapshotId(parser.u64()?)),
        6 => Refusal::DestinationTooSmall { need: parser.u64()?, have: parser.u64()? },
        7 => Refusal::SourceFull,
        8 => Refusal::SourceFailed,
        9 => Refusal::Superseded,
        _ => Refusal::Unknown,
    })
}
