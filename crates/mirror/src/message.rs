//! Messages between the two sides: a request of the destination, an answer of the source.
//!
//! The hello never changes its form, so that any two versions can distinguish each other.

use cairn_base::{Checksum, FileId, Generation, SnapshotId, Timestamp, Vbn, VolumeId};
use cairn_format::Role;
use cairn_stream::{Compression, Have};

use crate::access::{LunAccess, parse_access, put_access};
use crate::copies::{CopiesAnswer, CopiesRequest};
use crate::error::{MirrorError, NackReason, Refusal};
use crate::handover::{Departure, Standing, Successor};
use crate::lag::SourceStatus;
use crate::relationship::Relationship;
use crate::route::{HOPS_MAX, Route};
use crate::wire::{Body, Frame, Parser};

/// The version of everything after the hello. Both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 8;
/// Volumes whose roles change together at most, in one message.
pub const HEIRS_MAX: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"CAIRNMIR");

/// Requests of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Hello {
        version: u32,
    },
    ProvisionInfo {
        volume: String,
    },
    Update(Update),
    Status(StatusOf),
    /// Which of the maps that the source asked about began at the image here.
    Began(Began),
    /// Blocks that are here, in order of vbn; none: that was all.
    Claims(Vec<(Vbn, Checksum)>),
    Ack {
        target: SnapshotId,
        /// As in the request, but current: some mirror may have received the shown image meanwhile.
        keep: Vec<SnapshotId>,
    },
    Nack {
        reason: NackReason,
    },
    /// About blocks that both sides have.
    Copies(CopiesRequest),
    /// The state and snapshots of the other side; perhaps with news of this one.
    Standing(StandingOf),
    /// The other side is to become the destination, and this one the source.
    HandOver(HandOver),
    /// The same of all volumes of a group, at one instant.
    HandOverTogether(HandOverTogether),
    /// Asks for an answer when there is an update.
    Await(Await),
    /// The mirror is permanently gone. A source that does not know this message hangs up, and keeps
    /// the mirror's state: nothing is lost by that, so it needs no new version.
    Farewell {
        volume: String,
        relationship: Relationship,
    },
    /// The access rules of a volume's LUNs. As for [`Request::Farewell`], a source that does not
    /// know it hangs up.
    Access {
        volume: String,
    },
}

/// A request for a notice of changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Await {
    pub(crate) volume: String,
    pub(crate) relationship: Relationship,
    /// The snapshot that it shows.
    pub(crate) base: SnapshotId,
    pub(crate) base_root: Checksum,
    /// A digest of the names of the snapshots there, without those of mirrors.
    pub(crate) labels: Checksum,
    /// Once a change is that old.
    pub(crate) step_ms: u64,
    /// In any case.
    pub(crate) wait_ms: u64,
}

/// A question for the standing of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StandingOf {
    pub(crate) volume: String,
    pub(crate) relationship: Relationship,
    /// Set when the requesting side was failed over.
    pub(crate) departed: Option<Departure>,
}

/// The wish of a destination to take over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HandOver {
    pub(crate) volume: String,
    pub(crate) id: VolumeId,
    pub(crate) relationship: Relationship,
    /// The snapshot that it shows.
    pub(crate) shown: SnapshotId,
    pub(crate) successor: Successor,
}

/// The wish of the mirrors of a group to take over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HandOverTogether {
    /// Its name on both sides.
    pub(crate) group: String,
    pub(crate) members: Vec<HandOver>,
}

/// The relation between a request for an update and the image shown at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stance {
    /// It was received.
    Follows,
    /// It was written there, and the source must have it.
    OwnHead,
    /// It was written there, and is given up along with the snapshots that the source does not
    /// have.
    GivesUp,
    /// The same, and it was spilled: the spill can only be opened with the base, which stays.
    GivesUpSpilled,
}

impl Stance {
    /// The source's image need not descend from the image shown.
    pub(crate) fn gives_up(self) -> bool {
        matches!(self, Stance::GivesUp | Stance::GivesUpSpilled)
    }

    /// The image shown was written there.
    pub(crate) fn has_head(self) -> bool {
        self != Stance::Follows
    }
}

/// A request for the status of a volume and of one of its mirrors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatusOf {
    pub(crate) volume: String,
    pub(crate) relationship: Relationship,
    /// The maximum lag that the destination's owner wants.
    pub(crate) rpo_ms: Option<u64>,
    pub(crate) base: SnapshotId,
    pub(crate) base_root: Checksum,
}

/// A destination's knowledge of the since maps of its relationship.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Began {
    /// The map that began at its image, if it is one of those.
    pub(crate) file: Option<FileId>,
    /// Of its image.
    pub(crate) generation: Generation,
    /// Of the last change in its image.
    pub(crate) changed: Timestamp,
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
    /// The source must hold the base until the next one exists.
    pub(crate) hold: bool,
    /// Without a common base, compare checksums rather than refuse.
    pub(crate) compare: bool,
    /// It comes again in a moment: the source must do as little as possible for it.
    pub(crate) step: bool,
    pub(crate) stance: Stance,
    pub(crate) rpo_ms: Option<u64>,
    /// The number of blocks there that belong to no image: the source may ask for them.
    pub(crate) claims: u64,
    /// The snapshot that it shows; 0 before the first.
    pub(crate) shown: SnapshotId,
    /// Snapshots that mirrors of this mirror have as their bases: the source keeps them.
    pub(crate) keep: Vec<SnapshotId>,
    pub(crate) have: Vec<Have>,
}

impl Update {
    pub(crate) fn keeps(&self, id: SnapshotId) -> bool {
        self.hold && self.keep.contains(&id)
    }
}

/// Answers of a source.
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
    /// Asks whether one of these since maps began at the destination's image.
    AskBegan {
        accumulating: FileId,
        in_flight: Option<FileId>,
    },
    /// Asks for the destination's blocks, from a block on.
    AskClaims {
        from: Vbn,
    },
    /// The stream follows, without frames.
    Transfer {
        target: SnapshotId,
        name: String,
        full_blocks: u64,
        /// Blocks that are left out because the destination has them.
        left_out: u64,
        /// Blocks that were sent in earlier attempts at bringing a newer image, as far as this run
        /// of the source knows.
        sent_before: u64,
        /// Blocks that need not be read for it.
        in_memory: u64,
        status: SourceStatus,
    },
    /// Whether there is an update.
    Awaited {
        due: bool,
        status: SourceStatus,
    },
    Status(SourceStatus),
    Refused(Refusal),
    Copies(CopiesAnswer),
    Standing(Standing),
    /// This side shows that snapshot, which is the last thing that was written to it, and takes no
    /// more writes.
    HandedOver {
        target: SnapshotId,
    },
    /// The same of each volume of a group, in the order of the request.
    HandedOverTogether {
        targets: Vec<SnapshotId>,
    },
    /// The state kept for the mirror is discarded.
    Farewell,
    /// For all LUNs with access rules.
    Access(Vec<LunAccess>),
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
const BEGAN: u8 = 10;
const CLAIMS: u8 = 11;
const ASK_BEGAN: u8 = 12;
const ASK_CLAIMS: u8 = 13;
const STANDING: u8 = 14;
const HAND_OVER: u8 = 15;
const AWAIT: u8 = 18;
const HAND_OVER_TOGETHER: u8 = 19;
const FAREWELL: u8 = 20;
const ACCESS: u8 = 21;

/// Blocks in one message of claims: 4 MiB of checksums.
pub(crate) const CLAIMS_MAX: usize = 1 << 18;

fn hello(version: u32) -> Body {
    Body::default().u64(MAGIC).u32(version)
}

/// A hello may be longer in a later version; only its start is parsed.
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
                    Compression::Auto => 2,
                };
                let start = body
                    .text(&update.volume)
                    .array(&update.id.0)
                    .u64(update.relationship.0)
                    .u64(update.blocks)
                    .u8(compression)
                    .u8(u8::from(update.hold))
                    .u8(u8::from(update.compare))
                    .u8(u8::from(update.step))
                    .u8(match update.stance {
                        Stance::Follows => 0,
                        Stance::OwnHead => 1,
                        Stance::GivesUp => 2,
                        Stance::GivesUpSpilled => 3,
                    })
                    .option(update.rpo_ms)
                    .u64(update.claims)
                    .u64(update.shown.0)
                    .u32(update.keep.len() as u32);
                let start = update.keep.iter().fold(start, |body, id| body.u64(id.0));
                let start = start.u32(update.have.len() as u32);
                let add = |body: Body, have: &Have| {
                    let digests = [&have.root.0, &have.label.0, &have.entry.0];
                    let body = body.u64(have.id.0).u8(u8::from(have.mirror));
                    digests.into_iter().fold(body, Body::array)
                };
                (UPDATE, update.have.iter().fold(start, add))
            }
            Request::Status(asked) => {
                let body = body.text(&asked.volume).u64(asked.relationship.0).option(asked.rpo_ms);
                (STATUS, body.u64(asked.base.0).array(&asked.base_root.0))
            }
            Request::Began(began) => {
                let body = body.option(began.file.map(|file| file.0));
                (BEGAN, body.u64(began.generation.0).u64(began.changed.0))
            }
            Request::Claims(claims) => (CLAIMS, put_claims(body, claims)),
            Request::Ack { target, keep } => {
                let body = body.u64(target.0).u32(keep.len() as u32);
                (ACK, keep.iter().fold(body, |body, id| body.u64(id.0)))
            }
            Request::Nack { reason } => {
                let code = match reason {
                    NackReason::Other => 0,
                    NackReason::Damaged => 1,
                    NackReason::VolumeFailed => 2,
                    NackReason::Cancelled => 3,
                    NackReason::Unfit => 4,
                };
                (NACK, body.u32(code))
            }
            Request::Copies(request) => request.encode(),
            Request::Standing(asked) => {
                let body = body.text(&asked.volume).u64(asked.relationship.0);
                let body = match &asked.departed {
                    None => body.u8(0),
                    Some(Departure { base, root, generation, at, address, volume }) => body
                        .u8(1)
                        .u64(base.0)
                        .array(&root.0)
                        .u64(generation.0)
                        .u64(at.0)
                        .text(address)
                        .text(volume),
                };
                (STANDING, body)
            }
            Request::HandOver(wish) => (HAND_OVER, put_hand_over(body, wish)),
            Request::HandOverTogether(HandOverTogether { group, members }) => {
                let body = body.text(group).u32(members.len() as u32);
                (HAND_OVER_TOGETHER, members.iter().fold(body, put_hand_over))
            }
            Request::Await(wish) => {
                let body = body.text(&wish.volume).u64(wish.relationship.0).u64(wish.base.0);
                let body = body.array(&wish.base_root.0).array(&wish.labels.0);
                (AWAIT, body.u64(wish.step_ms).u64(wish.wait_ms))
            }
            Request::Farewell { volume, relationship } => (FAREWELL, body.text(volume).u64(relationship.0)),
            Request::Access { volume } => (ACCESS, body.text(volume)),
        };
        (kind, body.0)
    }

    pub(crate) fn parse(frame: &Frame) -> Result<Self, MirrorError> {
        if let Some(request) = CopiesRequest::parse(frame) {
            return request.map(Request::Copies);
        }
        let mut parser = Parser(&frame.body);
        let request = match frame.kind {
            HELLO => return parse_hello(&frame.body).map(|version| Request::Hello { version }),
            PROVISION => Request::ProvisionInfo { volume: parser.text()? },
            UPDATE => Request::Update(parse_update(&mut parser)?),
            STATUS => Request::Status(StatusOf {
                volume: parser.text()?,
                relationship: Relationship(parser.u64()?),
                rpo_ms: parser.option()?,
                base: SnapshotId(parser.u64()?),
                base_root: parser.checksum()?,
            }),
            BEGAN => Request::Began(Began {
                file: parser.option()?.map(FileId),
                generation: Generation(parser.u64()?),
                changed: Timestamp(parser.u64()?),
            }),
            CLAIMS => Request::Claims(parse_claims(&mut parser)?),
            ACK => Request::Ack {
                target: SnapshotId(parser.u64()?),
                keep: (0..parser.u32()?).map(|_| parser.u64().map(SnapshotId)).collect::<Result<_, _>>()?,
            },
            NACK => Request::Nack {
                reason: match parser.u32()? {
                    1 => NackReason::Damaged,
                    2 => NackReason::VolumeFailed,
                    3 => NackReason::Cancelled,
                    4 => NackReason::Unfit,
                    _ => NackReason::Other,
                },
            },
            STANDING => Request::Standing(StandingOf {
                volume: parser.text()?,
                relationship: Relationship(parser.u64()?),
                departed: match parser.flag()? {
                    false => None,
                    true => Some(Departure {
                        base: SnapshotId(parser.u64()?),
                        root: parser.checksum()?,
                        generation: Generation(parser.u64()?),
                        at: Timestamp(parser.u64()?),
                        address: parser.text()?,
                        volume: parser.text()?,
                    }),
                },
            }),
            HAND_OVER => Request::HandOver(parse_hand_over(&mut parser)?),
            HAND_OVER_TOGETHER => Request::HandOverTogether(HandOverTogether {
                group: parser.text()?,
                members: (0..parse_heirs(&mut parser)?)
                    .map(|_| parse_hand_over(&mut parser))
                    .collect::<Result<_, _>>()?,
            }),
            AWAIT => Request::Await(Await {
                volume: parser.text()?,
                relationship: Relationship(parser.u64()?),
                base: SnapshotId(parser.u64()?),
                base_root: parser.checksum()?,
                labels: parser.checksum()?,
                step_ms: parser.u64()?,
                wait_ms: parser.u64()?,
            }),
            FAREWELL => {
                Request::Farewell { volume: parser.text()?, relationship: Relationship(parser.u64()?) }
            }
            ACCESS => Request::Access { volume: parser.text()? },
            _ => return Err(MirrorError::Protocol("it sent an unknown message")),
        };
        parser.end()?;
        Ok(request)
    }
}

fn put_hand_over(body: Body, wish: &HandOver) -> Body {
    let HandOver { volume, id, relationship, shown, successor } = wish;
    let body = body.text(volume).array(&id.0).u64(relationship.0).u64(shown.0);
    let Successor { address, volume, every_ms, cron, continuous, zone, rpo_ms } = successor;
    let body = body.text(address).text(volume).option(*every_ms).text(cron).text(zone);
    body.option(*rpo_ms).u8(u8::from(*continuous))
}

fn parse_hand_over(parser: &mut Parser<'_>) -> Result<HandOver, MirrorError> {
    Ok(HandOver {
        volume: parser.text()?,
        id: VolumeId(parser.array()?),
        relationship: Relationship(parser.u64()?),
        shown: SnapshotId(parser.u64()?),
        successor: Successor {
            address: parser.text()?,
            volume: parser.text()?,
            every_ms: parser.option()?,
            cron: parser.text()?,
            zone: parser.text()?,
            rpo_ms: parser.option()?,
            continuous: parser.flag()?,
        },
    })
}

fn parse_heirs(parser: &mut Parser<'_>) -> Result<usize, MirrorError> {
    let count = parser.u32()? as usize;
    match count {
        1..=HEIRS_MAX => Ok(count),
        _ => Err(MirrorError::Protocol("it names no volume, or too many at once")),
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
        2 => Compression::Auto,
        _ => return Err(MirrorError::Protocol("it asks for an unknown compression")),
    };
    let hold = parser.flag()?;
    let compare = parser.flag()?;
    let step = parser.flag()?;
    let stance = match parser.u8()? {
        0 => Stance::Follows,
        1 => Stance::OwnHead,
        2 => Stance::GivesUp,
        3 => Stance::GivesUpSpilled,
        _ => return Err(MirrorError::Protocol("a message has an impossible value")),
    };
    let rpo_ms = parser.option()?;
    let claims = parser.u64()?;
    let shown = SnapshotId(parser.u64()?);
    let keep = (0..parser.u32()?).map(|_| parser.u64().map(SnapshotId)).collect::<Result<_, _>>()?;
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
    Ok(Update {
        volume,
        id,
        relationship,
        blocks,
        compression,
        hold,
        compare,
        step,
        stance,
        rpo_ms,
        claims,
        shown,
        keep,
        have,
    })
}

/// Runs of blocks that follow each other: the first, how many, and their checksums.
fn put_claims(mut body: Body, claims: &[(Vbn, Checksum)]) -> Body {
    for run in claims.chunk_by(|(a, _), (b, _)| a.0 + 1 == b.0) {
        let Some((first, _)) = run.first() else { continue };
        body = body.u64(first.0).u32(run.len() as u32);
        body = run.iter().fold(body, |body, (_, checksum)| body.array(&checksum.0));
    }
    body
}

fn parse_claims(parser: &mut Parser<'_>) -> Result<Vec<(Vbn, Checksum)>, MirrorError> {
    let mut claims = Vec::new();
    let mut next = 0;
    while !parser.is_empty() {
        let (first, count) = (parser.u64()?, parser.u32()?);
        if first < next || count == 0 || claims.len() + count as usize > CLAIMS_MAX {
            return Err(MirrorError::Protocol("its list of blocks is out of order or too long"));
        }
        next =
            first.checked_add(u64::from(count)).ok_or(MirrorError::Protocol("it names impossible blocks"))?;
        for vbn in first..next {
            claims.push((Vbn(vbn), parser.checksum()?));
        }
    }
    Ok(claims)
}

/// Bytes that claims of blocks in `runs` take on the wire, the questions included.
pub(crate) fn claims_bytes(runs: impl Iterator<Item = (Vbn, u64)>) -> u64 {
    const FRAME: u64 = 5;
    let (mut bytes, mut room) = (0, 0);
    for (_, mut count) in runs {
        while count > 0 {
            if room == 0 {
                // The question, a frame with a vbn; and the frame of the answer.
                bytes += FRAME + 8 + FRAME;
                room = CLAIMS_MAX as u64;
            }
            let part = count.min(room);
            bytes += 12 + part * 16;
            room -= part;
            count -= part;
        }
    }
    // The last question gets an empty answer.
    bytes + FRAME + 8 + FRAME
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
            Answer::AskBegan { accumulating, in_flight } => {
                (ASK_BEGAN, body.u64(accumulating.0).option(in_flight.map(|file| file.0)))
            }
            Answer::AskClaims { from } => (ASK_CLAIMS, body.u64(from.0)),
            Answer::Transfer { target, name, full_blocks, left_out, sent_before, in_memory, status } => {
                let body = body.u64(target.0).text(name).u64(*full_blocks).u64(*left_out).u64(*sent_before);
                (TRANSFER, put_status(body.u64(*in_memory), status))
            }
            Answer::Awaited { due, status } => (AWAIT, put_status(body.u8(u8::from(*due)), status)),
            Answer::Status(status) => (STATUS, put_status(body, status)),
            Answer::Refused(refusal) => (REFUSED, put_refusal(body, refusal)),
            Answer::Copies(answer) => answer.encode(),
            Answer::Standing(standing) => (STANDING, put_standing(body, standing)),
            Answer::HandedOver { target } => (HAND_OVER, body.u64(target.0)),
            Answer::HandedOverTogether { targets } => {
                let body = body.u32(targets.len() as u32);
                (HAND_OVER_TOGETHER, targets.iter().fold(body, |body, target| body.u64(target.0)))
            }
            Answer::Farewell => (FAREWELL, body),
            Answer::Access(luns) => (ACCESS, put_access(body, luns)),
        };
        (kind, body.0)
    }

    pub(crate) fn parse(frame: &Frame) -> Result<Self, MirrorError> {
        if let Some(answer) = CopiesAnswer::parse(frame) {
            return answer.map(Answer::Copies);
        }
        let mut parser = Parser(&frame.body);
        let answer = match frame.kind {
            HELLO => return parse_hello(&frame.body).map(|version| Answer::Hello { version }),
            PROVISION => Answer::Provision {
                id: VolumeId(parser.array()?),
                blocks: parser.blocks()?,
                used: parser.blocks()?,
                snapshots: parser.u64()?,
            },
            UP_TO_DATE => Answer::UpToDate(parse_status(&mut parser)?),
            TRANSFER => Answer::Transfer {
                target: SnapshotId(parser.u64()?),
                name: parser.text()?,
                full_blocks: parser.blocks()?,
                left_out: parser.blocks()?,
                sent_before: parser.blocks()?,
                in_memory: parser.blocks()?,
                status: parse_status(&mut parser)?,
            },
            AWAIT => Answer::Awaited { due: parser.flag()?, status: parse_status(&mut parser)? },
            STATUS => Answer::Status(parse_status(&mut parser)?),
            ASK_BEGAN => Answer::AskBegan {
                accumulating: FileId(parser.u64()?),
                in_flight: parser.option()?.map(FileId),
            },
            ASK_CLAIMS => Answer::AskClaims { from: Vbn(parser.u64()?) },
            REFUSED => Answer::Refused(parse_refusal(&mut parser)?),
            STANDING => Answer::Standing(parse_standing(&mut parser)?),
            HAND_OVER => Answer::HandedOver { target: SnapshotId(parser.u64()?) },
            HAND_OVER_TOGETHER => Answer::HandedOverTogether {
                targets: (0..parse_heirs(&mut parser)?)
                    .map(|_| parser.u64().map(SnapshotId))
                    .collect::<Result<_, _>>()?,
            },
            FAREWELL => Answer::Farewell,
            ACCESS => Answer::Access(parse_access(&mut parser)?),
            _ => return Err(MirrorError::Protocol("it sent an unknown message")),
        };
        parser.end()?;
        Ok(answer)
    }
}

fn put_status(body: Body, status: &SourceStatus) -> Body {
    let body = body
        .u64(status.now.0)
        .u64(status.blocks)
        .u64(status.used)
        .u64(status.base.0)
        .option(status.base_taken.map(|at| at.0))
        .option(status.first_change.map(|at| at.0))
        .u64(status.blocks_behind);
    status.route.numbers().into_iter().fold(body, Body::u64)
}

fn parse_status(parser: &mut Parser<'_>) -> Result<SourceStatus, MirrorError> {
    Ok(SourceStatus {
        now: Timestamp(parser.u64()?),
        blocks: parser.blocks()?,
        used: parser.blocks()?,
        base: SnapshotId(parser.u64()?),
        base_taken: parser.option()?.map(Timestamp),
        first_change: parser.option()?.map(Timestamp),
        blocks_behind: parser.blocks()?,
        route: parse_route(parser)?,
    })
}

fn parse_route(parser: &mut Parser<'_>) -> Result<Route, MirrorError> {
    let mut numbers = [0; HOPS_MAX];
    for number in &mut numbers {
        *number = parser.u64()?;
    }
    Ok(numbers.into())
}

fn put_standing(body: Body, standing: &Standing) -> Body {
    let Standing { id, role, own_head, handed_over, generation, changed, used, snapshots } = standing;
    let body = body
        .array(&id.0)
        .u8(u8::from(*role == Role::Destination))
        .u64(own_head.0)
        .u8(u8::from(*handed_over))
        .u64(generation.0)
        .u64(changed.0)
        .u64(*used)
        .u32(snapshots.len() as u32);
    snapshots.iter().fold(body, |body, (id, root)| body.u64(id.0).array(&root.0))
}

fn parse_standing(parser: &mut Parser<'_>) -> Result<Standing, MirrorError> {
    let mut standing = Standing {
        id: VolumeId(parser.array()?),
        role: if parser.flag()? { Role::Destination } else { Role::Normal },
        own_head: SnapshotId(parser.u64()?),
        handed_over: parser.flag()?,
        generation: Generation(parser.u64()?),
        changed: Timestamp(parser.u64()?),
        used: parser.blocks()?,
        snapshots: Vec::new(),
    };
    let count = parser.u32()?;
    for _ in 0..count {
        standing.snapshots.push((SnapshotId(parser.u64()?), parser.checksum()?));
    }
    Ok(standing)
}

fn put_refusal(body: Body, refusal: &Refusal) -> Body {
    match refusal {
        Refusal::Unknown => body.u32(0),
        Refusal::NoSuchVolume => body.u32(1),
        Refusal::NotASource => body.u32(2),
        Refusal::WrongVolume { expected, found } => body.u32(3).array(&expected.0).array(&found.0),
        Refusal::NoCommonBase { blocks } => body.u32(4).u64(*blocks),
        Refusal::Diverged(snapshot) => body.u32(5).u64(snapshot.0),
        Refusal::DestinationTooSmall { need, have } => body.u32(6).u64(*need).u64(*have),
        Refusal::SourceFull => body.u32(7),
        Refusal::SourceFailed => body.u32(8),
        Refusal::Superseded => body.u32(9),
        Refusal::NotTaken => body.u32(10),
        Refusal::Behind => body.u32(11),
        Refusal::Hook => body.u32(12),
        Refusal::NotAllowed => body.u32(13),
        Refusal::InGroup(group) => body.u32(14).text(group),
        Refusal::OtherGroup(group) => body.u32(15).text(group),
        Refusal::Circle => body.u32(16),
        Refusal::NoRoom => body.u32(17),
        Refusal::TooMany => body.u32(18),
    }
}

fn parse_refusal(parser: &mut Parser<'_>) -> Result<Refusal, MirrorError> {
    Ok(match parser.u32()? {
        1 => Refusal::NoSuchVolume,
        2 => Refusal::NotASource,
        3 => Refusal::WrongVolume { expected: VolumeId(parser.array()?), found: VolumeId(parser.array()?) },
        4 => Refusal::NoCommonBase { blocks: parser.blocks()? },
        5 => Refusal::Diverged(SnapshotId(parser.u64()?)),
        6 => Refusal::DestinationTooSmall { need: parser.blocks()?, have: parser.blocks()? },
        7 => Refusal::SourceFull,
        8 => Refusal::SourceFailed,
        9 => Refusal::Superseded,
        10 => Refusal::NotTaken,
        11 => Refusal::Behind,
        12 => Refusal::Hook,
        13 => Refusal::NotAllowed,
        14 => Refusal::InGroup(parser.text()?),
        15 => Refusal::OtherGroup(parser.text()?),
        16 => Refusal::Circle,
        17 => Refusal::NoRoom,
        18 => Refusal::TooMany,
        _ => Refusal::Unknown,
    })
}
