//! NLM and NSM: the calls of clients about locks.

use std::net::IpAddr;
use std::sync::Arc;

use cairn_files::NodeKind;
use cairn_proto_nfs::nlm::{
    Answered, Ask, FreeAll, LockArguments, LockOf, LockStatus, NlmCall, NlmReply, ShareArguments,
    TestArguments, Tested,
};
use cairn_proto_nfs::nsm::NsmCall;
use cairn_proto_nfs::{Handle, Status};

use crate::handle::FileRef;
use crate::locks::host::{LockHost, Owner};
use crate::locks::ranges::Range;
use crate::locks::table::{FileKey, Grant, Wanted};
use crate::locks::{How, Locks};
use crate::node::Request;
use crate::rights::{READ, WRITE};

/// The locks, for the requests of one session.
pub(crate) struct Locking<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) locks: &'a Locks,
    /// The address of the server that the client uses.
    pub(crate) server: IpAddr,
}

/// The status for a handle that gives no file.
fn lock_status(status: Status) -> LockStatus {
    match status {
        Status::Stale | Status::BadHandle => LockStatus::Stale,
        Status::Access | Status::Perm => LockStatus::Denied,
        Status::ReadOnly => LockStatus::ReadOnly,
        // The client tries again, as it does in a grace period.
        Status::Jukebox => LockStatus::Grace,
        _ => LockStatus::Failed,
    }
}

impl Locking<'_> {
    /// Executes a call of NLM.
    pub(crate) fn nlm(&self, call: &NlmCall<'_>) -> NlmReply {
        match call {
            NlmCall::Null | NlmCall::TestResult(_) | NlmCall::Result(..) => NlmReply::Nothing,
            NlmCall::Ask(Ask::Test(arguments)) => NlmReply::Tested(self.test(arguments)),
            NlmCall::Ask(ask) => NlmReply::Answered(self.answer(ask)),
            NlmCall::Message(ask) => {
                self.answer_by_call(ask);
                NlmReply::Nothing
            }
            NlmCall::Share(arguments) => NlmReply::Shared(self.share(arguments)),
            NlmCall::Unshare(arguments) => NlmReply::Shared(self.unshare(arguments)),
            NlmCall::LockUnmonitored(arguments) => NlmReply::Answered(self.lock(arguments, false)),
            NlmCall::FreeAll(FreeAll { caller, .. }) => {
                if let Ok(host) = self.host(caller.0) {
                    self.locks.free(&host);
                }
                NlmReply::Nothing
            }
        }
    }

    /// Executes a call of NSM.
    pub(crate) fn nsm(&self, call: &NsmCall<'_>) {
        if let NsmCall::Notify(restarted) = call
            && let Ok(name) = std::str::from_utf8(restarted.name.0)
        {
            self.locks.restarted(self.request.client, name, restarted.state);
        }
    }

    fn answer(&self, ask: &Ask<'_>) -> Answered {
        match ask {
            Ask::Lock(arguments) => self.lock(arguments, true),
            Ask::Cancel(arguments) => {
                let wanted = self.claimed(&arguments.lock, arguments.exclusive);
                let status = wanted.map_or_else(|status| status, |wanted| self.locks.cancel(&wanted));
                answered(arguments.cookie.0, status)
            }
            Ask::Unlock(arguments) => {
                let wanted = self.claimed(&arguments.lock, true);
                let status = wanted.map_or_else(|status| status, |wanted| self.locks.unlock(&wanted));
                answered(arguments.cookie.0, status)
            }
            // This server waits for no lock of another.
            Ask::Test(arguments) | Ask::Granted(arguments) => {
                answered(arguments.cookie.0, LockStatus::Denied)
            }
        }
    }

    fn answer_by_call(&self, ask: &Ask<'_>) {
        let (number, caller) = match ask {
            Ask::Test(arguments) => (1, arguments.lock.caller),
            Ask::Lock(arguments) => (2, arguments.lock.caller),
            Ask::Cancel(arguments) => (3, arguments.lock.caller),
            Ask::Unlock(arguments) => (4, arguments.lock.caller),
            Ask::Granted(arguments) => (5, arguments.lock.caller),
        };
        let result = match ask {
            Ask::Test(arguments) => NlmCall::TestResult(self.test(arguments)),
            other => NlmCall::Result(number, self.answer(other)),
        };
        // An address that is admitted to no export gets no call.
        if self.request.admitted.get().is_some()
            && let Ok(host) = self.host(caller.0)
        {
            self.locks.send(&host, self.server, &result);
        }
    }

    fn test(&self, arguments: &TestArguments<'_>) -> Tested {
        let outcome = match self.wanted(&arguments.lock, arguments.exclusive) {
            Ok(wanted) => self.locks.test(&wanted),
            // There is no lock to show.
            Err(LockStatus::Denied) => Ok(LockStatus::Failed),
            Err(status) => Ok(status),
        };
        Tested { cookie: arguments.cookie.0.to_vec(), outcome }
    }

    fn lock(&self, arguments: &LockArguments<'_>, monitored: bool) -> Answered {
        let LockArguments { block, exclusive, reclaim, state, .. } = *arguments;
        let status = match self.wanted(&arguments.lock, exclusive) {
            Ok(wanted) => {
                let handle = arguments.lock.file.0.to_vec();
                let grant = Grant { wanted, handle, server: self.server };
                self.locks.lock(grant, &How { block, reclaim, monitored, state })
            }
            Err(status) => status,
        };
        answered(arguments.cookie.0, status)
    }

    fn share(&self, arguments: &ShareArguments<'_>) -> Answered {
        let owner = self.share_owner(arguments);
        let file = self.file(arguments.file.0, false);
        let status = match (owner, file) {
            (Ok(owner), Ok(file)) => {
                let rights = (arguments.access, arguments.deny);
                self.locks.share(file, &owner, rights, arguments.reclaim, self.server)
            }
            (Err(status), _) | (_, Err(status)) => status,
        };
        answered(arguments.cookie.0, status)
    }

    fn unshare(&self, arguments: &ShareArguments<'_>) -> Answered {
        let status = match (self.share_owner(arguments), claimed_file(arguments.file.0)) {
            (Ok(owner), Ok(file)) => {
                self.locks.unshare(file, &owner);
                LockStatus::Granted
            }
            (Err(status), _) | (_, Err(status)) => status,
        };
        answered(arguments.cookie.0, status)
    }

    fn host(&self, name: &[u8]) -> Result<LockHost, LockStatus> {
        let name = std::str::from_utf8(name).map_err(|_| LockStatus::Failed)?;
        Ok(LockHost { address: self.request.client, name: name.to_owned() })
    }

    fn owner(&self, caller: &[u8], bytes: &[u8], process: u32) -> Result<Arc<Owner>, LockStatus> {
        Ok(Arc::new(Owner { host: self.host(caller)?, process, bytes: bytes.to_vec() }))
    }

    fn share_owner(&self, arguments: &ShareArguments<'_>) -> Result<Arc<Owner>, LockStatus> {
        // A share has no process.
        self.owner(arguments.caller.0, arguments.owner.0, 0)
    }

    /// A lock of a file that the caller may lock.
    fn wanted(&self, lock: &LockOf<'_>, exclusive: bool) -> Result<Wanted, LockStatus> {
        let file = self.file(lock.file.0, exclusive)?;
        self.of(file, lock, exclusive)
    }

    /// A lock of a file that may be gone. The owner is one of this client, so that it can end its
    /// own locks alone.
    fn claimed(&self, lock: &LockOf<'_>, exclusive: bool) -> Result<Wanted, LockStatus> {
        self.of(claimed_file(lock.file.0)?, lock, exclusive)
    }

    fn of(&self, file: FileKey, lock: &LockOf<'_>, exclusive: bool) -> Result<Wanted, LockStatus> {
        let owner = self.owner(lock.caller.0, lock.owner.0, lock.process)?;
        let range = Range::new(lock.offset, lock.length).ok_or(LockStatus::TooLarge)?;
        Ok(Wanted { file, owner, range, exclusive })
    }

    fn file(&self, handle: &[u8], exclusive: bool) -> Result<FileKey, LockStatus> {
        let handle = Handle::new(handle).ok_or(LockStatus::Stale)?;
        let node = self.request.node(&handle).map_err(lock_status)?;
        if node.stat.kind != NodeKind::File {
            return Err(LockStatus::Failed);
        }
        // As the kernel of a client checks it when a program opens the file.
        let may_open = node.require_content(READ).or_else(|_| node.require_content(WRITE));
        may_open.map_err(lock_status)?;
        if exclusive && node.is_read_only() {
            return Err(LockStatus::ReadOnly);
        }
        Ok(node.at.into())
    }
}

/// The file that a handle claims to be of.
fn claimed_file(handle: &[u8]) -> Result<FileKey, LockStatus> {
    let handle = Handle::new(handle).ok_or(LockStatus::Stale)?;
    let unverified = FileRef::open(&handle).ok_or(LockStatus::Stale)?;
    Ok(unverified.claimed().into())
}

fn answered(cookie: &[u8], status: LockStatus) -> Answered {
    Answered { cookie: cookie.to_vec(), status }
}

/// Whether a repeated call could undo a later one.
pub(crate) fn must_not_repeat(call: &NlmCall<'_>) -> bool {
    match call {
        NlmCall::Ask(Ask::Lock(_) | Ask::Cancel(_) | Ask::Unlock(_))
        | NlmCall::Message(Ask::Lock(_) | Ask::Cancel(_) | Ask::Unlock(_))
        | NlmCall::Share(_)
        | NlmCall::Unshare(_)
        | NlmCall::LockUnmonitored(_)
        | NlmCall::FreeAll(_) => true,
        NlmCall::Null
        | NlmCall::Ask(Ask::Test(_) | Ask::Granted(_))
        | NlmCall::Message(Ask::Test(_) | Ask::Granted(_))
        | NlmCall::TestResult(_)
        | NlmCall::Result(..) => false,
    }
}
