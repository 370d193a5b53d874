//! The heads of calls and replies (RFC 5531), with AUTH_NONE and AUTH_SYS.

use crate::xdr::{Malformed, Reader, Xdr, write_opaque};

/// The program number of NFS.
pub const NFS_PROGRAM: u32 = 100_003;
/// The program number of MOUNT.
pub const MOUNT_PROGRAM: u32 = 100_005;
/// The version of both.
pub const VERSION: u32 = 3;

/// Groups that AUTH_SYS has room for, beside the first.
pub const GROUPS_MAX: usize = 16;
/// Bytes of a credential or a verifier.
const AUTH_BYTES_MAX: usize = 400;
/// Bytes of the name of a client's machine.
const MACHINE_BYTES_MAX: usize = 255;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// `auth_stat`.
const AUTH_BADCRED: u32 = 1;
const AUTH_TOOWEAK: u32 = 5;

const MSG_ACCEPTED: u32 = 0;
const MSG_DENIED: u32 = 1;

/// The rights that a client claims. Nothing proves them: AUTH_SYS trusts the client's machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// None.
    None,
    /// A user of the client's machine.
    Sys {
        /// The user.
        uid: u32,
        /// The first group.
        gid: u32,
        /// Further groups, 16 at most.
        groups: Vec<u32>,
    },
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcCall<'a> {
    /// The client's number for it. A repeated call has the same.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// The claimed user.
    pub credential: Credential,
    /// The arguments, still encoded.
    pub arguments: &'a [u8],
}

/// A message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// A call to execute.
    Call(RpcCall<'a>),
    /// A call that gets this reply.
    Refused {
        /// The client's number for it.
        xid: u32,
        /// The reason.
        refusal: Refusal,
    },
}

/// Why a call is not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another version of RPC than 2.
    RpcVersion,
    /// The credential can't be read.
    BadCredential,
    /// A kind of credential that this server does not have.
    OtherCredential,
    /// There is no such program here.
    NoProgram,
    /// There is the program in this version alone.
    ProgramVersion(u32),
    /// The program has no such procedure.
    NoProcedure,
    /// The arguments can't be read.
    BadArguments,
    /// The server failed.
    SystemError,
}

/// Reads the head of a message from a client.
///
/// # Errors
/// [`Malformed`] if it is not a call; then no reply is possible.
pub fn parse(record: &[u8]) -> Result<Incoming<'_>, Malformed> {
    let from = &mut Reader::new(record);
    let xid = u32::read(from)?;
    if u32::read(from)? != CALL {
        return Err(Malformed("it is not a call"));
    }
    if u32::read(from)? != RPC_VERSION {
        return Ok(Incoming::Refused { xid, refusal: Refusal::RpcVersion });
    }
    let (program, version, procedure) = (u32::read(from)?, u32::read(from)?, u32::read(from)?);
    let (flavor, body) = (u32::read(from)?, from.opaque(AUTH_BYTES_MAX)?);
    let (_verifier, _) = (u32::read(from)?, from.opaque(AUTH_BYTES_MAX)?);
    let credential = match flavor {
        AUTH_NONE => Credential::None,
        AUTH_SYS => match parse_sys(body) {
            Ok(credential) => credential,
            Err(Malformed(_)) => return Ok(Incoming::Refused { xid, refusal: Refusal::BadCredential }),
        },
        _ => return Ok(Incoming::Refused { xid, refusal: Refusal::OtherCredential }),
    };
    Ok(Incoming::Call(RpcCall { xid, program, version, procedure, credential, arguments: from.rest() }))
}

fn parse_sys(body: &[u8]) -> Result<Credential, Malformed> {
    let from = &mut Reader::new(body);
    let _stamp = u32::read(from)?;
    from.opaque(MACHINE_BYTES_MAX)?;
    let (uid, gid, count) = (u32::read(from)?, u32::read(from)?, u32::read(from)? as usize);
    if count > GROUPS_MAX {
        return Err(Malformed("it has more than 16 groups"));
    }
    let groups = (0..count).map(|_| u32::read(from)).collect::<Result<_, _>>()?;
    from.end()?;
    Ok(Credential::Sys { uid, gid, groups })
}

/// Writes the head of a call of a client; its arguments follow.
pub fn write_call(call: &RpcCall<'_>, into: &mut Vec<u8>) {
    let head = [call.xid, CALL, RPC_VERSION, call.program, call.version, call.procedure];
    head.iter().for_each(|word| word.write(into));
    match &call.credential {
        Credential::None => [AUTH_NONE, 0].iter().for_each(|word| word.write(into)),
        Credential::Sys { uid, gid, groups } => {
            let mut body = Vec::new();
            [0, 0, *uid, *gid, groups.len() as u32].iter().for_each(|word| word.write(&mut body));
            groups.iter().for_each(|group| group.write(&mut body));
            AUTH_SYS.write(into);
            write_opaque(&body, into);
        }
    }
    [AUTH_NONE, 0].iter().for_each(|word| word.write(into));
    into.extend_from_slice(call.arguments);
}

/// Writes the head of a successful reply; its results follow.
pub fn write_accepted(xid: u32, into: &mut Vec<u8>) {
    // The verifier is AUTH_NONE without bytes, and the state SUCCESS.
    [xid, REPLY, MSG_ACCEPTED, AUTH_NONE, 0, 0].iter().for_each(|word| word.write(into));
}

/// Writes the whole reply to a call that is not executed.
pub fn write_refusal(xid: u32, refusal: Refusal, into: &mut Vec<u8>) {
    let words: &[u32] = match refusal {
        Refusal::RpcVersion => &[MSG_DENIED, 0, RPC_VERSION, RPC_VERSION],
        Refusal::BadCredential => &[MSG_DENIED, 1, AUTH_BADCRED],
        Refusal::OtherCredential => &[MSG_DENIED, 1, AUTH_TOOWEAK],
        Refusal::NoProgram => &[MSG_ACCEPTED, AUTH_NONE, 0, 1],
        Refusal::ProgramVersion(version) => &[MSG_ACCEPTED, AUTH_NONE, 0, 2, version, version],
        Refusal::NoProcedure => &[MSG_ACCEPTED, AUTH_NONE, 0, 3],
        Refusal::BadArguments => &[MSG_ACCEPTED, AUTH_NONE, 0, 4],
        Refusal::SystemError => &[MSG_ACCEPTED, AUTH_NONE, 0, 5],
    };
    [xid, REPLY].iter().chain(words).for_each(|word| word.write(into));
}

/// A reply as a client reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcReply<'a> {
    /// The number of the call.
    pub xid: u32,
    /// The results, still encoded; `None` if the call was not executed.
    pub results: Option<&'a [u8]>,
}

/// Reads a reply.
///
/// # Errors
/// [`Malformed`].
pub fn parse_reply(record: &[u8]) -> Result<RpcReply<'_>, Malformed> {
    let from = &mut Reader::new(record);
    let xid = u32::read(from)?;
    if u32::read(from)? != REPLY {
        return Err(Malformed("it is not a reply"));
    }
    if u32::read(from)? != MSG_ACCEPTED {
        return Ok(RpcReply { xid, results: None });
    }
    let (_flavor, _) = (u32::read(from)?, from.opaque(AUTH_BYTES_MAX)?);
    let is_success = u32::read(from)? == 0;
    Ok(RpcReply { xid, results: is_success.then(|| from.rest()) })
}
