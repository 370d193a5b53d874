//! The access rules of a source's LUNs, as its owner has set them. A mirror is no more open than
//! that until its own owner decides otherwise.
//!
//! Secrets do not travel. The owner of a mirror can read its source, and could write to the source
//! with a secret that admits initiators there.

use crate::error::MirrorError;
use crate::wire::{Body, Parser};

/// The maximum number of LUNs in one message, and of initiators or networks of one LUN: a larger
/// message is rejected.
const LISTED_MAX: u32 = 65_536;

/// The access rules of one LUN.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LunAccess {
    /// Its name in the volume.
    pub lun: String,
    /// iSCSI names of initiators; empty: any.
    pub initiators: Vec<String>,
    /// Addresses or networks of initiators; empty: any.
    pub networks: Vec<String>,
    /// The name with which initiators prove themselves; none: they need not.
    pub chap: Option<String>,
    /// It takes no writes.
    pub read_only: bool,
    /// Initiators may eject it.
    pub removable: bool,
    /// Writes are answered when they are durable, over all protocols.
    pub durable: bool,
    /// Bytes of its logical blocks.
    pub block_bytes: u32,
}

fn put_texts(body: Body, texts: &[String]) -> Body {
    texts.iter().fold(body.u32(texts.len() as u32), |body, text| body.text(text))
}

fn parse_texts(parser: &mut Parser<'_>) -> Result<Vec<String>, MirrorError> {
    (0..parse_count(parser)?).map(|_| parser.text()).collect()
}

fn parse_count(parser: &mut Parser<'_>) -> Result<u32, MirrorError> {
    match parser.u32()? {
        count @ 0..=LISTED_MAX => Ok(count),
        _ => Err(MirrorError::Protocol("a message has an impossible value")),
    }
}

pub(crate) fn put_access(body: Body, luns: &[LunAccess]) -> Body {
    luns.iter().fold(body.u32(luns.len() as u32), |body, lun_access| {
        let LunAccess { lun, initiators, networks, chap, read_only, removable, durable, block_bytes } =
            lun_access;
        let body = put_texts(put_texts(body.text(lun), initiators), networks);
        let body = put_texts(body, chap.as_slice());
        let flags = [read_only, removable, durable];
        flags.into_iter().fold(body, |body, flag| body.u8(u8::from(*flag))).u32(*block_bytes)
    })
}

pub(crate) fn parse_access(parser: &mut Parser<'_>) -> Result<Vec<LunAccess>, MirrorError> {
    let one = |parser: &mut Parser<'_>| {
        let lun = parser.text()?;
        let (initiators, networks) = (parse_texts(parser)?, parse_texts(parser)?);
        let mut chap = parse_texts(parser)?;
        if chap.len() > 1 {
            return Err(MirrorError::Protocol("a message has an impossible value"));
        }
        Ok(LunAccess {
            lun,
            initiators,
            networks,
            chap: chap.pop(),
            read_only: parser.flag()?,
            removable: parser.flag()?,
            durable: parser.flag()?,
            block_bytes: parser.u32()?,
        })
    };
    (0..parse_count(parser)?).map(|_| one(parser)).collect()
}
