//! Questions about two copies, and their answers, as messages.

use cairn_base::{BLOCK_SIZE, Checksum, SnapshotId, Vbn, VolumeId};
use cairn_volume::Position;

use crate::error::MirrorError;
use crate::wire::{Body, Frame, Parser};

/// Blocks in one message: 2 MiB.
pub(super) const BLOCKS_MAX: usize = 512;
/// Damaged blocks that one message names.
const NEEDS_MAX: usize = 1024;
/// Blocks of a region: 16 MiB.
pub(super) const REGION_BLOCKS: u64 = 4096;
/// Blocks that the list of a region may have: a region ends at a block of a file, and the nodes
/// above it belong to it.
pub(super) const LIST_MAX: usize = 2 * REGION_BLOCKS as usize;

/// A destination's requests about copies. Each has the source's name of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopiesRequest {
    pub(crate) volume: String,
    pub(crate) id: VolumeId,
    pub(crate) asks: Asks,
}

/// The question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asks {
    /// Blocks that are damaged at the destination.
    Fetch(Vec<(Vbn, Checksum)>),
    /// The damaged blocks at the source.
    Needs,
    /// Blocks that the source lacks.
    Give(Vec<(Vbn, Checksum, Vec<u8>)>),
    /// The source's content of a region.
    Region(RegionOf),
}

/// A region of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionOf {
    pub(crate) root: (SnapshotId, Checksum),
    /// 0: nothing.
    pub(crate) base: (SnapshotId, Checksum),
    pub(crate) from: Position,
    /// `None` means to the end.
    pub(crate) until: Option<Position>,
    /// Read everything from the media, not only the structures.
    pub(crate) everything: bool,
    /// List each block.
    pub(crate) list: bool,
}

/// A source's answers about copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CopiesAnswer {
    /// For each requested block: its bytes, or nothing.
    Blocks(Vec<Option<Vec<u8>>>),
    /// The damaged blocks at the source.
    Needs(Vec<(Vbn, Checksum)>),
    /// This many of the sent blocks are whole there now.
    Mended(u64),
    /// A region.
    Region(RegionAnswer),
    /// The snapshots are not both there.
    NoSuchRoot,
}

/// A source's content of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionAnswer {
    pub(crate) digest: Checksum,
    pub(crate) read: u64,
    pub(crate) incomplete: bool,
    /// Number, checksum, and whether the media have it so.
    pub(crate) list: Vec<(Vbn, Checksum, bool)>,
}

const FETCH: u8 = 64;
const NEEDS: u8 = 65;
const GIVE: u8 = 66;
const REGION: u8 = 67;
const BLOCKS: u8 = 68;
const MENDED: u8 = 69;
const NO_SUCH_ROOT: u8 = 70;

fn put_named(body: Body, blocks: &[(Vbn, Checksum)]) -> Body {
    let body = body.u32(blocks.len() as u32);
    blocks.iter().fold(body, |body, (vbn, checksum)| body.u64(vbn.0).array(&checksum.0))
}

fn parse_named(parser: &mut Parser<'_>, most: usize) -> Result<Vec<(Vbn, Checksum)>, MirrorError> {
    let count = counted(parser, most)?;
    (0..count).map(|_| Ok((Vbn(parser.u64()?), parser.checksum()?))).collect()
}

fn counted(parser: &mut Parser<'_>, most: usize) -> Result<usize, MirrorError> {
    let count = parser.u32()? as usize;
    if count > most { Err(MirrorError::Protocol("it names too many blocks at once")) } else { Ok(count) }
}

fn put_position(body: Body, position: Position) -> Body {
    let (tree, lba) = position.to_numbers();
    body.u64(tree).u64(lba)
}

fn parse_position(parser: &mut Parser<'_>) -> Result<Position, MirrorError> {
    Ok(Position::from_numbers((parser.u64()?, parser.u64()?)))
}

impl CopiesRequest {
    pub(crate) fn encode(&self) -> (u8, Body) {
        let body = Body::default().text(&self.volume).array(&self.id.0);
        match &self.asks {
            Asks::Fetch(wanted) => (FETCH, put_named(body, wanted)),
            Asks::Needs => (NEEDS, body),
            Asks::Give(blocks) => {
                let body = body.u32(blocks.len() as u32);
                let add = |body: Body, (vbn, checksum, bytes): &(Vbn, Checksum, Vec<u8>)| {
                    body.u64(vbn.0).array(&checksum.0).bytes(bytes)
                };
                (GIVE, blocks.iter().fold(body, add))
            }
            Asks::Region(RegionOf { root, base, from, until, everything, list }) => {
                let body = body.u64(root.0.0).array(&root.1.0).u64(base.0.0).array(&base.1.0);
                let body = put_position(body, *from).u8(u8::from(until.is_some()));
                let body = match until {
                    Some(until) => put_position(body, *until),
                    None => body,
                };
                (REGION, body.u8(u8::from(*everything)).u8(u8::from(*list)))
            }
        }
    }

    /// Parses a frame of one of these kinds; `None` for another kind.
    pub(crate) fn parse(frame: &Frame) -> Option<Result<Self, MirrorError>> {
        matches!(frame.kind, FETCH | NEEDS | GIVE | REGION).then(|| {
            let mut parser = Parser(&frame.body);
            let (volume, id) = (parser.text()?, VolumeId(parser.array()?));
            let asks = match frame.kind {
                FETCH => Asks::Fetch(parse_named(&mut parser, BLOCKS_MAX)?),
                NEEDS => Asks::Needs,
                GIVE => {
                    let count = counted(&mut parser, BLOCKS_MAX)?;
                    let one = |parser: &mut Parser<'_>| {
                        Ok((Vbn(parser.u64()?), parser.checksum()?, parser.bytes(BLOCK_SIZE)?.to_vec()))
                    };
                    Asks::Give((0..count).map(|_| one(&mut parser)).collect::<Result<_, MirrorError>>()?)
                }
                _ => Asks::Region(RegionOf {
                    root: (SnapshotId(parser.u64()?), parser.checksum()?),
                    base: (SnapshotId(parser.u64()?), parser.checksum()?),
                    from: parse_position(&mut parser)?,
                    until: if parser.flag()? { Some(parse_position(&mut parser)?) } else { None },
                    everything: parser.flag()?,
                    list: parser.flag()?,
                }),
            };
            parser.end()?;
            Ok(Self { volume, id, asks })
        })
    }
}

impl CopiesAnswer {
    pub(crate) fn encode(&self) -> (u8, Body) {
        let body = Body::default();
        match self {
            CopiesAnswer::Blocks(blocks) => {
                let body = body.u32(blocks.len() as u32);
                let add = |body: Body, bytes: &Option<Vec<u8>>| match bytes {
                    Some(bytes) => body.u8(1).bytes(bytes),
                    None => body.u8(0),
                };
                (BLOCKS, blocks.iter().fold(body, add))
            }
            CopiesAnswer::Needs(needs) => (NEEDS, put_named(body, needs)),
            CopiesAnswer::Mended(count) => (MENDED, body.u64(*count)),
            CopiesAnswer::NoSuchRoot => (NO_SUCH_ROOT, body),
            CopiesAnswer::Region(RegionAnswer { digest, read, incomplete, list }) => {
                let body = body.array(&digest.0).u64(*read).u8(u8::from(*incomplete)).u32(list.len() as u32);
                let add = |body: Body, (vbn, checksum, sound): &(Vbn, Checksum, bool)| {
                    body.u64(vbn.0).array(&checksum.0).u8(u8::from(*sound))
                };
                (REGION, list.iter().fold(body, add))
            }
        }
    }

    /// Parses a frame of one of these kinds; `None` for another kind.
    pub(crate) fn parse(frame: &Frame) -> Option<Result<Self, MirrorError>> {
        matches!(frame.kind, BLOCKS | NEEDS | MENDED | NO_SUCH_ROOT | REGION).then(|| {
            let mut parser = Parser(&frame.body);
            let answer = match frame.kind {
                BLOCKS => {
                    let count = counted(&mut parser, BLOCKS_MAX)?;
                    let one = |parser: &mut Parser<'_>| {
                        let there = parser.flag()?;
                        there.then(|| parser.bytes(BLOCK_SIZE).map(<[u8]>::to_vec)).transpose()
                    };
                    CopiesAnswer::Blocks(
                        (0..count).map(|_| one(&mut parser)).collect::<Result<_, MirrorError>>()?,
                    )
                }
                NEEDS => CopiesAnswer::Needs(parse_named(&mut parser, NEEDS_MAX)?),
                MENDED => CopiesAnswer::Mended(parser.u64()?),
                NO_SUCH_ROOT => CopiesAnswer::NoSuchRoot,
                _ => {
                    let (digest, read, incomplete) = (parser.checksum()?, parser.u64()?, parser.flag()?);
                    let count = counted(&mut parser, LIST_MAX)?;
                    let one = |parser: &mut Parser<'_>| {
                        Ok((Vbn(parser.u64()?), parser.checksum()?, parser.flag()?))
                    };
                    let list = (0..count).map(|_| one(&mut parser)).collect::<Result<_, MirrorError>>()?;
                    CopiesAnswer::Region(RegionAnswer { digest, read, incomplete, list })
                }
            };
            parser.end()?;
            Ok(answer)
        })
    }
}
