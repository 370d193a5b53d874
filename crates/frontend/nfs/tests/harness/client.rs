//! A small client of NFS version 3, for tests: it sends any call, in any order, as any user.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use cairn_proto_nfs::nlm::*;
use cairn_proto_nfs::record::{Front, begin, finish, front};
use cairn_proto_nfs::rpc::{self, Credential, RpcCall};
use cairn_proto_nfs::*;

const PATIENCE: Duration = Duration::from_secs(60);
const REPLY_BYTES_MAX: usize = 2 << 20;

/// A connection.
pub struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    /// Calls that are to arrive together.
    held: Option<Vec<u8>>,
    pub xid: u32,
    pub credential: Credential,
}

/// A user with one group.
pub fn user(uid: u32, gid: u32) -> Credential {
    Credential::Sys { uid, gid, groups: Vec::new() }
}

/// A name in a directory.
pub fn at<'a>(directory: &Handle, name: &'a [u8]) -> Place<'a> {
    Place { directory: *directory, name }
}

/// Attributes of a new file with these permissions.
pub fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// A handle, or the status.
pub type Result<T> = std::result::Result<T, Status>;

impl Client {
    /// Connects as root.
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, received: Vec::new(), held: None, xid: 1, credential: user(0, 0) }
    }

    /// The same connection for another user.
    pub fn used_by(mut self, credential: Credential) -> Self {
        self.credential = credential;
        self
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        match &mut self.held {
            Some(held) => held.extend_from_slice(bytes),
            None => self.stream.write_all(bytes).unwrap(),
        }
    }

    /// Sends all calls of `calls` at once, so that the server takes them in one round.
    pub fn together<T>(&mut self, calls: impl FnOnce(&mut Self) -> T) -> T {
        self.held = Some(Vec::new());
        let outcome = calls(self);
        let held = self.held.take().unwrap();
        self.send_bytes(&held);
        outcome
    }

    /// Sends a call with the present number, and takes the next number.
    pub fn send_rpc(&mut self, program: u32, version: u32, procedure: u32, arguments: &[u8]) -> u32 {
        let xid = self.xid;
        self.xid += 1;
        let credential = self.credential.clone();
        let mut bytes = Vec::new();
        let start = begin(&mut bytes);
        rpc::write_call(&RpcCall { xid, program, version, procedure, credential, arguments }, &mut bytes);
        finish(&mut bytes, start, 0);
        self.send_bytes(&bytes);
        xid
    }

    pub fn send(&mut self, call: &Call<'_>) -> u32 {
        let mut arguments = Vec::new();
        call.write(&mut arguments);
        self.send_rpc(rpc::NFS_PROGRAM, rpc::VERSION, call.procedure(), &arguments)
    }

    /// The next record; `None` once the server has closed the connection.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Front::Record(record, used) = front(&self.received, REPLY_BYTES_MAX).unwrap() {
                let record = record.into_owned();
                self.received.drain(..used);
                return Some(record);
            }
            let mut piece = [0; 64 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The reply to a call that was just sent.
    pub fn reply(&mut self, xid: u32, procedure: u32) -> Reply {
        let record = self.receive().expect("the server answers");
        let reply = rpc::parse_reply(&record).unwrap();
        assert_eq!(reply.xid, xid, "the reply to another call");
        Reply::parse(procedure, reply.results.expect("the call is accepted")).unwrap()
    }

    pub fn call(&mut self, call: &Call<'_>) -> Reply {
        let xid = self.send(call);
        self.reply(xid, call.procedure())
    }

    fn mount_call(&mut self, call: &MountCall<'_>) -> MountReply {
        let mut arguments = Vec::new();
        call.write(&mut arguments);
        let xid = self.send_rpc(rpc::MOUNT_PROGRAM, rpc::VERSION, call.procedure(), &arguments);
        let record = self.receive().expect("the server answers");
        let reply = rpc::parse_reply(&record).unwrap();
        assert_eq!(reply.xid, xid);
        MountReply::parse(call.procedure(), reply.results.expect("the call is accepted")).unwrap()
    }

    pub fn mount(&mut self, path: &str) -> std::result::Result<Handle, MountStatus> {
        match self.mount_call(&MountCall::Mount(path.as_bytes())) {
            MountReply::Mount(mounted) => mounted.map(|mounted| mounted.directory),
            other => panic!("{other:?}"),
        }
    }

    pub fn exports(&mut self) -> Vec<String> {
        match self.mount_call(&MountCall::Export) {
            MountReply::Export(exports) => {
                exports.into_iter().map(|export| String::from_utf8(export.path).unwrap()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn stat(&mut self, file: &Handle) -> Result<Attributes> {
        match self.call(&Call::GetAttr { file: *file }) {
            Reply::GetAttr(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    pub fn set(&mut self, file: &Handle, new: &SetAttributes) -> Result<Wcc> {
        match self.call(&Call::SetAttr { file: *file, new: *new, guard: None }) {
            Reply::SetAttr(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    pub fn lookup(&mut self, directory: &Handle, name: &[u8]) -> Result<Found> {
        match self.call(&Call::Lookup { place: at(directory, name) }) {
            Reply::Lookup(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    /// Looks up a path.
    pub fn walk(&mut self, from: &Handle, path: &str) -> Result<Handle> {
        path.split('/').try_fold(*from, |at, name| Ok(self.lookup(&at, name.as_bytes())?.file))
    }

    pub fn access(&mut self, file: &Handle, wanted: u32) -> Result<u32> {
        match self.call(&Call::Access { file: *file, wanted }) {
            Reply::Access(outcome) => {
                outcome.map(|accessed| accessed.granted).map_err(|failed| failed.status)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn create_as(&mut self, directory: &Handle, name: &[u8], how: CreateHow) -> Result<Made> {
        match self.call(&Call::Create { place: at(directory, name), how }) {
            Reply::Create(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    /// Makes a file, or uses an existing one.
    pub fn create(&mut self, directory: &Handle, name: &[u8]) -> Result<Handle> {
        Ok(self.create_as(directory, name, CreateHow::Unchecked(mode(0o644)))?.file.unwrap())
    }

    pub fn make_directory(&mut self, directory: &Handle, name: &[u8]) -> Result<Handle> {
        match self.call(&Call::MkDir { place: at(directory, name), new: mode(0o755) }) {
            Reply::MkDir(outcome) => outcome.map(|made| made.file.unwrap()).map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    pub fn write_as(&mut self, file: &Handle, offset: u64, data: &[u8], stable: Stable) -> Result<Written> {
        let call = Call::Write { file: *file, offset, count: data.len() as u32, stable, data };
        match self.call(&call) {
            Reply::Write(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    /// Writes durably.
    pub fn write(&mut self, file: &Handle, offset: u64, data: &[u8]) -> Result<Written> {
        self.write_as(file, offset, data, Stable::FileSync)
    }

    pub fn read(&mut self, file: &Handle, offset: u64, count: u32) -> Result<Read> {
        match self.call(&Call::Read { file: *file, offset, count }) {
            Reply::Read(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    /// All bytes of a file.
    pub fn read_all(&mut self, file: &Handle) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let read = self.read(file, all.len() as u64, 256 << 10)?;
            all.extend(read.data);
            if read.end {
                return Ok(all);
            }
        }
    }

    pub fn commit(&mut self, file: &Handle) -> Result<Verifier> {
        match self.call(&Call::Commit { file: *file, offset: 0, count: 0 }) {
            Reply::Commit(outcome) => {
                outcome.map(|committed| committed.verifier).map_err(|failed| failed.status)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn remove(&mut self, directory: &Handle, name: &[u8]) -> Result<Wcc> {
        match self.call(&Call::Remove { place: at(directory, name) }) {
            Reply::Remove(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    pub fn remove_directory(&mut self, directory: &Handle, name: &[u8]) -> Result<Wcc> {
        match self.call(&Call::RmDir { place: at(directory, name) }) {
            Reply::RmDir(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    pub fn rename(&mut self, from: Place<'_>, to: Place<'_>) -> Result<Renamed> {
        match self.call(&Call::Rename { from, to }) {
            Reply::Rename(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    pub fn link(&mut self, file: &Handle, place: Place<'_>) -> Result<Linked> {
        match self.call(&Call::Link { file: *file, place }) {
            Reply::Link(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    pub fn make_link(&mut self, place: Place<'_>, target: &[u8]) -> Result<Handle> {
        match self.call(&Call::SymLink { place, new: SetAttributes::default(), target }) {
            Reply::SymLink(outcome) => outcome.map(|made| made.file.unwrap()).map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    pub fn read_link(&mut self, file: &Handle) -> Result<Vec<u8>> {
        match self.call(&Call::ReadLink { file: *file }) {
            Reply::ReadLink(outcome) => outcome.map(|link| link.target).map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    /// One listing: names with cookies, and whether it is the last.
    pub fn list_after(
        &mut self,
        directory: &Handle,
        cookie: u64,
        count: u32,
    ) -> Result<Listing<DirectoryEntry>> {
        let call = Call::ReadDir { directory: *directory, cookie, verifier: [0; 8], count };
        match self.call(&call) {
            Reply::ReadDir(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    pub fn list_plus_after(
        &mut self,
        directory: &Handle,
        cookie: u64,
        count: u32,
    ) -> Result<Listing<PlusEntry>> {
        let call =
            Call::ReadDirPlus { directory: *directory, cookie, verifier: [0; 8], names_count: count, count };
        match self.call(&call) {
            Reply::ReadDirPlus(outcome) => outcome.map_err(|failed| failed.status),
            other => panic!("{other:?}"),
        }
    }

    /// All names but `.` and `..`, sorted.
    pub fn list(&mut self, directory: &Handle) -> Result<Vec<String>> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let listing = self.list_after(directory, cookie, 8192)?;
            for entry in listing.entries {
                cookie = entry.cookie;
                names.push(String::from_utf8(entry.name).unwrap());
            }
            if listing.end {
                names.retain(|name| name != "." && name != "..");
                names.sort_unstable();
                return Ok(names);
            }
        }
    }
}

/// A lock of a process of the machine `test`.
pub fn lock_of<'a>(file: &'a Handle, process: u32, offset: u64, length: u64) -> LockOf<'a> {
    let [caller, owner] = [Bytes(b"test"), Bytes(b"owner")];
    LockOf { caller, file: Bytes(file.as_bytes()), owner, process, offset, length }
}

impl Client {
    pub fn nlm(&mut self, call: &NlmCall<'_>) -> NlmReply {
        let mut arguments = Vec::new();
        call.write(&mut arguments);
        let xid = self.send_rpc(NLM_PROGRAM, NLM_VERSION, call.procedure(), &arguments);
        let record = self.receive().expect("the server answers");
        let reply = rpc::parse_reply(&record).unwrap();
        assert_eq!(reply.xid, xid);
        NlmReply::parse(call.procedure(), reply.results.expect("the call is accepted")).unwrap()
    }

    fn answered(&mut self, call: &NlmCall<'_>) -> LockStatus {
        match self.nlm(call) {
            NlmReply::Answered(answered) => {
                assert_eq!(answered.cookie, b"cookie");
                answered.status
            }
            other => panic!("{other:?}"),
        }
    }

    /// An exclusive lock.
    pub fn lock(&mut self, lock: LockOf<'_>, block: bool) -> LockStatus {
        self.lock_as(lock, block, false, true)
    }

    pub fn lock_as(&mut self, lock: LockOf<'_>, block: bool, reclaim: bool, exclusive: bool) -> LockStatus {
        let cookie = Bytes(b"cookie");
        self.answered(&NlmCall::Ask(Ask::Lock(LockArguments {
            cookie,
            block,
            exclusive,
            lock,
            reclaim,
            state: 3,
        })))
    }

    pub fn unlock(&mut self, lock: LockOf<'_>) -> LockStatus {
        self.answered(&NlmCall::Ask(Ask::Unlock(UnlockArguments { cookie: Bytes(b"cookie"), lock })))
    }

    pub fn cancel(&mut self, lock: LockOf<'_>) -> LockStatus {
        let cookie = Bytes(b"cookie");
        self.answered(&NlmCall::Ask(Ask::Cancel(CancelArguments {
            cookie,
            block: true,
            exclusive: true,
            lock,
        })))
    }

    /// The lock that is in the way of an exclusive one.
    pub fn test_lock(&mut self, lock: LockOf<'_>) -> std::result::Result<LockStatus, Holder> {
        let cookie = Bytes(b"cookie");
        match self.nlm(&NlmCall::Ask(Ask::Test(TestArguments { cookie, exclusive: true, lock }))) {
            NlmReply::Tested(tested) => tested.outcome,
            other => panic!("{other:?}"),
        }
    }
}
