//! NLM version 4: locks of byte ranges and shares (RFC 1813, appendix II; X/Open XNFS).
//!
//! Each of the first five procedures also exists as a message: its reply is empty, and the results
//! come later, as a call of the other side.

use crate::xdr::{Malformed, Reader, Xdr, write_opaque, xdr_enum, xdr_struct};

/// The program number of NLM.
pub const NLM_PROGRAM: u32 = 100_021;
/// The version for NFS version 3.
pub const NLM_VERSION: u32 = 4;
/// The longest opaque bytes and names.
pub const NLM_BYTES_MAX: usize = 1024;

/// Bytes with a limit: a name, a handle, an owner, or a cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Xdr<'a> for Bytes<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.opaque(NLM_BYTES_MAX).map(Self)
    }

    fn write(&self, into: &mut Vec<u8>) {
        write_opaque(self.0, into);
    }
}

xdr_enum! {
    /// `nlm4_stats`.
    LockStatus {
        /// Done.
        Granted = 0,
        /// Another lock is in the way, or there is no such request.
        Denied = 1,
        /// The server has no room for it.
        NoLocks = 2,
        /// It waits; a callback comes.
        Blocked = 3,
        /// Only locks from before the restart of the server can be claimed now.
        Grace = 4,
        /// It would wait for itself.
        Deadlock = 5,
        /// The files can't be changed.
        ReadOnly = 6,
        /// The handle is of no file.
        Stale = 7,
        /// The range is too large.
        TooLarge = 8,
        /// The server failed.
        Failed = 9,
    }
}

xdr_struct! {
    /// A range of a file, and its owner.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    LockOf<'a> {
        /// The name of the client's machine.
        caller: Bytes<'a>,
        /// The file.
        file: Bytes<'a>,
        /// The owner on that machine.
        owner: Bytes<'a>,
        /// The process, which is a part of the owner.
        process: u32,
        /// The first byte.
        offset: u64,
        /// So many; 0 for all up to the largest.
        length: u64,
    }
}

xdr_struct! {
    /// The arguments of TEST and GRANTED.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    TestArguments<'a> {
        /// Comes back with the results.
        cookie: Bytes<'a>,
        /// Not shared.
        exclusive: bool,
        /// The lock.
        lock: LockOf<'a>,
    }
}

xdr_struct! {
    /// The arguments of LOCK and NM_LOCK.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    LockArguments<'a> {
        /// Comes back with the results.
        cookie: Bytes<'a>,
        /// Wait for the lock.
        block: bool,
        /// Not shared.
        exclusive: bool,
        /// The lock.
        lock: LockOf<'a>,
        /// The client had it before the restart of the server.
        reclaim: bool,
        /// Changes with each start of the client.
        state: u32,
    }
}

xdr_struct! {
    /// The arguments of CANCEL.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    CancelArguments<'a> {
        /// Comes back with the results.
        cookie: Bytes<'a>,
        /// As in the request to cancel.
        block: bool,
        /// As in the request to cancel.
        exclusive: bool,
        /// As in the request to cancel.
        lock: LockOf<'a>,
    }
}

xdr_struct! {
    /// The arguments of UNLOCK.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    UnlockArguments<'a> {
        /// Comes back with the results.
        cookie: Bytes<'a>,
        /// The range.
        lock: LockOf<'a>,
    }
}

xdr_struct! {
    /// The arguments of SHARE and UNSHARE.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    ShareArguments<'a> {
        /// Comes back with the results.
        cookie: Bytes<'a>,
        /// The name of the client's machine.
        caller: Bytes<'a>,
        /// The file.
        file: Bytes<'a>,
        /// The owner on that machine.
        owner: Bytes<'a>,
        /// Denied to others: 1 reading, 2 writing.
        deny: Rights,
        /// Done by this owner: 1 reading, 2 writing.
        access: Rights,
        /// The client had it before the restart of the server.
        reclaim: bool,
    }
}

xdr_struct! {
    /// The arguments of FREE_ALL.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    FreeAll<'a> {
        /// The name of the client's machine.
        caller: Bytes<'a>,
        /// Changes with each start of the client.
        state: u32,
    }
}

/// `fsh4_mode` and `fsh4_access`: 0 to 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rights(u8);

impl Rights {
    /// These bits: 1 is reading, 2 is writing. Others are dropped.
    pub fn new(bits: u8) -> Self {
        Self(bits & 3)
    }

    /// Whether both have one of the bits.
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl<'a> Xdr<'a> for Rights {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        match u32::read(from)? {
            bits @ 0..=3 => Ok(Self(bits as u8)),
            _ => Err(Malformed("a number is not of its enumeration")),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        u32::from(self.0).write(into);
    }
}

xdr_struct! {
    /// A lock that is in the way.
    #[derive(Debug, Clone, PartialEq, Eq)]
    Holder {
        /// Not shared.
        exclusive: bool,
        /// The process.
        process: u32,
        /// The owner.
        owner: Vec<u8>,
        /// The first byte.
        offset: u64,
        /// So many; 0 for all up to the largest.
        length: u64,
    }
}

/// The results of TEST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tested {
    /// The one of the arguments.
    pub cookie: Vec<u8>,
    /// The status if it is not [`LockStatus::Denied`], or else the lock that is in the way.
    pub outcome: Result<LockStatus, Holder>,
}

impl<'a> Xdr<'a> for Tested {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let cookie = Bytes::read(from)?.0.to_vec();
        let outcome = match LockStatus::read(from)? {
            LockStatus::Denied => {
                let holder = Holder::read(from)?;
                if holder.owner.len() > NLM_BYTES_MAX {
                    return Err(Malformed("a length is too large"));
                }
                Err(holder)
            }
            status => Ok(status),
        };
        Ok(Self { cookie, outcome })
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.cookie.write(into);
        match &self.outcome {
            Ok(status) => status.write(into),
            Err(holder) => {
                LockStatus::Denied.write(into);
                holder.write(into);
            }
        }
    }
}

/// The results of LOCK, CANCEL, UNLOCK, GRANTED and NM_LOCK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The one of the arguments.
    pub cookie: Vec<u8>,
    /// The status.
    pub status: LockStatus,
}

impl<'a> Xdr<'a> for Answered {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self { cookie: Bytes::read(from)?.0.to_vec(), status: LockStatus::read(from)? })
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.cookie.write(into);
        self.status.write(into);
    }
}

/// A procedure that also exists as a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask<'a> {
    /// Looks for a lock that is in the way.
    Test(TestArguments<'a>),
    /// Takes a lock.
    Lock(LockArguments<'a>),
    /// Ends a wait.
    Cancel(CancelArguments<'a>),
    /// Gives a range up.
    Unlock(UnlockArguments<'a>),
    /// From the server to a client that has waited.
    Granted(TestArguments<'a>),
}

impl<'a> Ask<'a> {
    fn read(number: u32, from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match number {
            1 => Ask::Test(Xdr::read(from)?),
            2 => Ask::Lock(Xdr::read(from)?),
            3 => Ask::Cancel(Xdr::read(from)?),
            4 => Ask::Unlock(Xdr::read(from)?),
            _ => Ask::Granted(Xdr::read(from)?),
        })
    }

    /// 1 to 5.
    fn number(&self) -> u32 {
        match self {
            Ask::Test(_) => 1,
            Ask::Lock(_) => 2,
            Ask::Cancel(_) => 3,
            Ask::Unlock(_) => 4,
            Ask::Granted(_) => 5,
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        match self {
            Ask::Test(arguments) | Ask::Granted(arguments) => arguments.write(into),
            Ask::Lock(arguments) => arguments.write(into),
            Ask::Cancel(arguments) => arguments.write(into),
            Ask::Unlock(arguments) => arguments.write(into),
        }
    }
}

/// The first procedure that is a message.
const FIRST_MESSAGE: u32 = 6;
/// The first procedure that has the results of a message.
const FIRST_RESULT: u32 = 11;

/// A call of NLM, in either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NlmCall<'a> {
    /// Does nothing.
    Null,
    /// The results are in the reply.
    Ask(Ask<'a>),
    /// The results come as a call of the other side.
    Message(Ask<'a>),
    /// The results of a message TEST.
    TestResult(Tested),
    /// The results of another message; its number, 2 to 5.
    Result(u32, Answered),
    /// Takes a share.
    Share(ShareArguments<'a>),
    /// Gives a share up.
    Unshare(ShareArguments<'a>),
    /// LOCK, but the client does not learn of a restart of the server.
    LockUnmonitored(LockArguments<'a>),
    /// The client has restarted.
    FreeAll(FreeAll<'a>),
}

impl<'a> NlmCall<'a> {
    /// Reads the arguments of a procedure; `None` if there is no such procedure.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(procedure: u32, arguments: &'a [u8]) -> Option<Result<Self, Malformed>> {
        let from = &mut Reader::new(arguments);
        let parsed = match procedure {
            0 => Ok(NlmCall::Null),
            1..=5 => Ask::read(procedure, from).map(NlmCall::Ask),
            6..=10 => Ask::read(procedure + 1 - FIRST_MESSAGE, from).map(NlmCall::Message),
            11 => Tested::read(from).map(NlmCall::TestResult),
            12..=15 => {
                Answered::read(from).map(|result| NlmCall::Result(procedure + 1 - FIRST_RESULT, result))
            }
            20 => Xdr::read(from).map(NlmCall::Share),
            21 => Xdr::read(from).map(NlmCall::Unshare),
            22 => Xdr::read(from).map(NlmCall::LockUnmonitored),
            23 => Xdr::read(from).map(NlmCall::FreeAll),
            _ => return None,
        };
        Some(parsed.and_then(|call| from.end().map(|()| call)))
    }

    /// The number of its procedure.
    pub fn procedure(&self) -> u32 {
        match self {
            NlmCall::Null => 0,
            NlmCall::Ask(ask) => ask.number(),
            NlmCall::Message(ask) => ask.number() + FIRST_MESSAGE - 1,
            NlmCall::TestResult(_) => FIRST_RESULT,
            NlmCall::Result(number, _) => number + FIRST_RESULT - 1,
            NlmCall::Share(_) => 20,
            NlmCall::Unshare(_) => 21,
            NlmCall::LockUnmonitored(_) => 22,
            NlmCall::FreeAll(_) => 23,
        }
    }

    /// Writes its arguments.
    pub fn write(&self, into: &mut Vec<u8>) {
        match self {
            NlmCall::Null => {}
            NlmCall::Ask(ask) | NlmCall::Message(ask) => ask.write(into),
            NlmCall::TestResult(tested) => tested.write(into),
            NlmCall::Result(_, answered) => answered.write(into),
            NlmCall::Share(arguments) | NlmCall::Unshare(arguments) => arguments.write(into),
            NlmCall::LockUnmonitored(arguments) => arguments.write(into),
            NlmCall::FreeAll(arguments) => arguments.write(into),
        }
    }
}

/// A reply of NLM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NlmReply {
    /// NULL, messages, results and FREE_ALL.
    Nothing,
    /// TEST.
    Tested(Tested),
    /// LOCK, CANCEL, UNLOCK, GRANTED and NM_LOCK.
    Answered(Answered),
    /// SHARE and UNSHARE.
    Shared(Answered),
}

impl NlmReply {
    /// Reads the results of a procedure.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(procedure: u32, results: &[u8]) -> Result<Self, Malformed> {
        let from = &mut Reader::new(results);
        let reply = match procedure {
            0 | 6..=15 | 23 => NlmReply::Nothing,
            1 => NlmReply::Tested(Xdr::read(from)?),
            2..=5 | 22 => NlmReply::Answered(Xdr::read(from)?),
            20 | 21 => {
                let answered = Xdr::read(from)?;
                // A sequence number without a meaning.
                let _ = u32::read(from)?;
                NlmReply::Shared(answered)
            }
            _ => return Err(Malformed("there is no such reply of NLM")),
        };
        from.end()?;
        Ok(reply)
    }

    /// Writes its results.
    pub fn write(&self, into: &mut Vec<u8>) {
        match self {
            NlmReply::Nothing => {}
            NlmReply::Tested(tested) => tested.write(into),
            NlmReply::Answered(answered) => answered.write(into),
            NlmReply::Shared(answered) => {
                answered.write(into);
                0u32.write(into);
            }
        }
    }
}
