//! Bytes of an NFS client, from the record mark to the arguments; and replies, which tests read.

use cairn_proto_nfs::nlm::*;
use cairn_proto_nfs::nsm::{NSM_PROGRAM, NsmCall, Restarted};
use cairn_proto_nfs::portmap;
use cairn_proto_nfs::record::{Front, begin, finish, front};
use cairn_proto_nfs::rpc::{self, Credential, Incoming, RpcCall};
use cairn_proto_nfs::*;

/// As the server has it.
const RECORD_BYTES_MAX: usize = 260 << 10;

pub(crate) fn calls(data: &[u8]) {
    let mut stream = data;
    while let Ok(Front::Record(record, used)) = front(stream, RECORD_BYTES_MAX) {
        assert!(used >= record.len() + 4 && used <= stream.len());
        call(&record);
        stream = &stream[used..];
    }
    // Bytes whose record mark is not valid.
    call(data);
}

fn call(record: &[u8]) {
    let Ok(Incoming::Call(head)) = rpc::parse(record) else { return };
    let mut again = Vec::new();
    rpc::write_call(&head, &mut again);
    assert_eq!(rpc::parse(&again), Ok(Incoming::Call(head.clone())));
    if let Some(Ok(call)) = Call::parse(head.procedure, head.arguments) {
        let mut again = Vec::new();
        call.write(&mut again);
        // Only the padding may differ.
        assert_eq!(again.len(), head.arguments.len());
        assert_eq!(Call::parse(head.procedure, &again), Some(Ok(call)));
    }
    if let Some(Ok(call)) = NlmCall::parse(head.procedure, head.arguments) {
        let mut again = Vec::new();
        call.write(&mut again);
        assert_eq!(NlmCall::parse(head.procedure, &again), Some(Ok(call)));
    }
    if let Some(Ok(call)) = NsmCall::parse(head.procedure, head.arguments) {
        let mut again = Vec::new();
        call.write(&mut again);
        assert_eq!(NsmCall::parse(head.procedure, &again), Some(Ok(call)));
    }
    if let Some(Ok(call)) = MountCall::parse(head.procedure, head.arguments) {
        let mut again = Vec::new();
        call.write(&mut again);
        assert_eq!(MountCall::parse(head.procedure, &again), Some(Ok(call)));
    }
}

fn message(program: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let credential = Credential::Sys { uid: 1000, gid: 100, groups: vec![5, 6] };
    let call = RpcCall { xid: 7, program, version: rpc::VERSION, procedure, credential, arguments };
    let mut bytes = Vec::new();
    let start = begin(&mut bytes);
    rpc::write_call(&call, &mut bytes);
    finish(&mut bytes, start, 0);
    bytes
}

pub(crate) fn call_seeds() -> Vec<Vec<u8>> {
    let file = Handle::new(&[5; HANDLE_BYTES_MAX]).expect("a handle has room for this");
    let place = Place { directory: file, name: b"name" };
    let new = SetAttributes { mode: Some(0o644), size: Some(5), ..SetAttributes::default() };
    let time = Time { seconds: 1, nanoseconds: 2 };
    let node = MakeNode {
        kind: Kind::BlockDevice,
        attributes: SetAttributes { accessed: SetTime::At(time), modified: SetTime::Now, ..new },
        device: DeviceNumbers { major: 8, minor: 1 },
    };
    let calls = [
        Call::SetAttr { file, new, guard: Some(time) },
        Call::Lookup { place },
        Call::Write { file, offset: 4096, count: 5, stable: Stable::FileSync, data: b"bytes" },
        Call::Create { place, how: CreateHow::Exclusive(*b"12345678") },
        Call::SymLink { place, new, target: b"/target" },
        Call::MkNod { place, node },
        Call::Rename { from: place, to: place },
        Call::ReadDirPlus { directory: file, cookie: 9, verifier: [0; 8], names_count: 512, count: 4096 },
    ];
    let written = |call: &Call<'_>| {
        let mut arguments = Vec::new();
        call.write(&mut arguments);
        message(rpc::NFS_PROGRAM, call.procedure(), &arguments)
    };
    let mut seeds: Vec<Vec<u8>> = calls.iter().map(written).collect();
    let mut path = Vec::new();
    MountCall::Mount(b"/vol0/home").write(&mut path);
    seeds.push(message(rpc::MOUNT_PROGRAM, 1, &path));
    let (cookie, caller) = (Bytes(b"cook"), Bytes(b"client"));
    let lock =
        LockOf { caller, file: Bytes(file.as_bytes()), owner: cookie, process: 7, offset: 4096, length: 1 };
    let lock = LockArguments { cookie, block: true, exclusive: true, lock, reclaim: false, state: 3 };
    let locks = [
        NlmCall::Ask(Ask::Lock(lock)),
        NlmCall::Message(Ask::Lock(lock)),
        NlmCall::FreeAll(FreeAll { caller, state: 3 }),
    ];
    for call in locks {
        let mut arguments = Vec::new();
        call.write(&mut arguments);
        seeds.push(message(NLM_PROGRAM, call.procedure(), &arguments));
    }
    let mut arguments = Vec::new();
    let notify = NsmCall::Notify(Restarted { name: caller, state: 3 });
    notify.write(&mut arguments);
    seeds.push(message(NSM_PROGRAM, notify.procedure(), &arguments));
    seeds
}

/// The first byte is the procedure.
pub(crate) fn replies(data: &[u8]) {
    let Some((procedure, results)) = data.split_first() else { return };
    let procedure = u32::from(*procedure);
    if let Ok(reply) = Reply::parse(procedure, results) {
        let mut again = Vec::new();
        reply.write(&mut again);
        assert_eq!(Reply::parse(procedure, &again), Ok(reply));
    }
    if let Ok(reply) = MountReply::parse(procedure, results) {
        let mut again = Vec::new();
        reply.write(&mut again);
        assert_eq!(MountReply::parse(procedure, &again), Ok(reply));
    }
    if let Ok(reply) = NlmReply::parse(procedure, results) {
        let mut again = Vec::new();
        reply.write(&mut again);
        assert_eq!(NlmReply::parse(procedure, &again), Ok(reply));
    }
    drop(rpc::parse_reply(results));
    let _ = portmap::parse_number(results);
    let _ = portmap::parse_address(results);
    drop(portmap::parse_call(procedure / 16, procedure % 16, results));
}

pub(crate) fn reply_seeds() -> Vec<Vec<u8>> {
    let entries = vec![DirectoryEntry { file_id: 3, name: b"name".to_vec(), cookie: 4 }];
    let listing = Listing { attributes: None, verifier: [0; 8], entries, end: true };
    let read = Read { attributes: None, count: 5, end: true, data: b"bytes".to_vec() };
    let replies = [
        (6u8, Reply::Read(Ok(read))),
        (16, Reply::ReadDir(Ok(listing))),
        (12, Reply::Remove(Err(Failed { status: Status::Stale, rest: Wcc::default() }))),
    ];
    let written = |(procedure, reply): &(u8, Reply)| {
        let mut bytes = vec![*procedure];
        reply.write(&mut bytes);
        bytes
    };
    replies.iter().map(written).collect()
}
