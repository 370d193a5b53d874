//! NSM version 1, as far as two machines use it: one tells the other that it has restarted
//! (X/Open XNFS, chapter 11).

use crate::nlm::Bytes;
use crate::xdr::{Malformed, Reader, Xdr, xdr_struct};

/// The program number of NSM.
pub const NSM_PROGRAM: u32 = 100_024;
/// The version of NSM.
pub const NSM_VERSION: u32 = 1;

xdr_struct! {
    /// The arguments of SM_NOTIFY.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Restarted<'a> {
        /// The name of the machine.
        name: Bytes<'a>,
        /// Changes with each start; odd while the machine runs.
        state: u32,
    }
}

/// A call of NSM. Its replies are empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NsmCall<'a> {
    /// Does nothing.
    Null,
    /// A machine has restarted.
    Notify(Restarted<'a>),
}

impl<'a> NsmCall<'a> {
    /// Reads the arguments of a procedure; `None` if there is no such procedure here.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(procedure: u32, arguments: &'a [u8]) -> Option<Result<Self, Malformed>> {
        let from = &mut Reader::new(arguments);
        let parsed = match procedure {
            0 => Ok(NsmCall::Null),
            6 => Xdr::read(from).map(NsmCall::Notify),
            _ => return None,
        };
        Some(parsed.and_then(|call| from.end().map(|()| call)))
    }

    /// The number of its procedure.
    pub fn procedure(&self) -> u32 {
        match self {
            NsmCall::Null => 0,
            NsmCall::Notify(_) => 6,
        }
    }

    /// Writes its arguments.
    pub fn write(&self, into: &mut Vec<u8>) {
        if let NsmCall::Notify(restarted) = self {
            restarted.write(into);
        }
    }
}
