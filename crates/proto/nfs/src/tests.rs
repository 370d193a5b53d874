//! Round trips of calls and replies, and hostile bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::nlm::*;
use crate::nsm::{NsmCall, Restarted};
use crate::portmap::{self, Binding, Mapping, PortmapCall};
use crate::record::{BadRecord, Front, begin, finish, front};
use crate::rpc::{self, Credential, Incoming, Refusal, RpcCall};
use crate::*;

fn handle() -> impl Strategy<Value = Handle> {
    vec(any::<u8>(), 0..=HANDLE_BYTES_MAX).prop_map(|bytes| Handle::new(&bytes).unwrap())
}

fn time() -> impl Strategy<Value = Time> {
    any::<(u32, u32)>().prop_map(|(seconds, nanoseconds)| Time { seconds, nanoseconds })
}

fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![Just(SetTime::Keep), Just(SetTime::Now), time().prop_map(SetTime::At)]
}

fn set_attributes() -> impl Strategy<Value = SetAttributes> {
    let numbers = any::<(Option<u32>, Option<u32>, Option<u32>, Option<u64>)>();
    (numbers, set_time(), set_time()).prop_map(|((mode, uid, gid, size), accessed, modified)| SetAttributes {
        mode,
        uid,
        gid,
        size,
        accessed,
        modified,
    })
}

fn one_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    (0..all.len()).prop_map(move |index| all[index])
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let numbers = any::<(u32, u32, u32, u32, u64, u64, u64, u64)>();
    (one_of(Kind::ALL), numbers, any::<(u32, u32)>(), [time(), time(), time()]).prop_map(
        |(kind, (mode, links, uid, gid, size, used, file_system, file_id), (major, minor), times)| {
            let [accessed, modified, changed] = times;
            let device = DeviceNumbers { major, minor };
            Attributes {
                kind,
                mode,
                links,
                uid,
                gid,
                size,
                used,
                device,
                file_system,
                file_id,
                accessed,
                modified,
                changed,
            }
        },
    )
}

fn maybe() -> impl Strategy<Value = Option<Attributes>> {
    proptest::option::of(attributes())
}

fn wcc() -> impl Strategy<Value = Wcc> {
    let before = (any::<u64>(), time(), time()).prop_map(|(size, modified, changed)| WccAttributes {
        size,
        modified,
        changed,
    });
    (proptest::option::of(before), maybe()).prop_map(|(before, after)| Wcc { before, after })
}

fn outcome<T: std::fmt::Debug, E: std::fmt::Debug>(
    good: impl Strategy<Value = T>,
    bad: impl Strategy<Value = E>,
) -> impl Strategy<Value = Outcome<T, E>> {
    let failed = (one_of(&Status::ALL[1..]), bad).prop_map(|(status, rest)| Failed { status, rest });
    prop_oneof![good.prop_map(Ok), failed.prop_map(Err)]
}

fn made() -> impl Strategy<Value = Made> {
    (proptest::option::of(handle()), maybe(), wcc()).prop_map(|(file, attributes, directory)| Made {
        file,
        attributes,
        directory,
    })
}

/// The number of a procedure, and a reply of it.
fn reply() -> impl Strategy<Value = (u32, Reply)> {
    let name = || vec(any::<u8>(), 0..40);
    let listed = (any::<u64>(), name(), any::<u64>()).prop_map(|(file_id, name, cookie)| DirectoryEntry {
        file_id,
        name,
        cookie,
    });
    let plus = ((any::<u64>(), name(), any::<u64>()), maybe(), proptest::option::of(handle())).prop_map(
        |((file_id, name, cookie), attributes, file)| PlusEntry { file_id, name, cookie, attributes, file },
    );
    let found = (handle(), maybe(), maybe()).prop_map(|(file, attributes, directory)| Found {
        file,
        attributes,
        directory,
    });
    let read = (maybe(), any::<bool>(), vec(any::<u8>(), 0..100)).prop_map(|(attributes, end, data)| Read {
        attributes,
        count: data.len() as u32,
        end,
        data,
    });
    let written = (wcc(), any::<u32>(), one_of(Stable::ALL), any::<Verifier>())
        .prop_map(|(file, count, committed, verifier)| Written { file, count, committed, verifier });
    let listing = (maybe(), any::<Verifier>(), vec(listed, 0..5), any::<bool>())
        .prop_map(|(attributes, verifier, entries, end)| Listing { attributes, verifier, entries, end });
    let plus_listing = (maybe(), any::<Verifier>(), vec(plus, 0..5), any::<bool>())
        .prop_map(|(attributes, verifier, entries, end)| Listing { attributes, verifier, entries, end });
    prop_oneof![
        Just((0, Reply::Null(()))),
        outcome(attributes(), Just(())).prop_map(|outcome| (1, Reply::GetAttr(outcome))),
        outcome(wcc(), wcc()).prop_map(|outcome| (2, Reply::SetAttr(outcome))),
        outcome(found, maybe()).prop_map(|outcome| (3, Reply::Lookup(outcome))),
        outcome(read, maybe()).prop_map(|outcome| (6, Reply::Read(outcome))),
        outcome(written, wcc()).prop_map(|outcome| (7, Reply::Write(outcome))),
        outcome(made(), wcc()).prop_map(|outcome| (8, Reply::Create(outcome))),
        outcome(wcc(), wcc()).prop_map(|outcome| (12, Reply::Remove(outcome))),
        outcome(listing, maybe()).prop_map(|outcome| (16, Reply::ReadDir(outcome))),
        outcome(plus_listing, maybe()).prop_map(|outcome| (17, Reply::ReadDirPlus(outcome))),
    ]
}

/// The variable parts of calls.
type Parts = (Handle, Handle, Vec<u8>, Vec<u8>, SetAttributes, u64, u32);

/// Each call with these parts.
fn calls<'a>(parts: &'a Parts) -> Vec<Call<'a>> {
    let (file, other, name, data, new, offset, count) = parts;
    let (file, new, offset, count) = (*file, *new, *offset, *count);
    let place = Place { directory: file, name };
    let to = Place { directory: *other, name: data };
    let verifier = offset.to_be_bytes();
    let guard = Some(Time { seconds: count, nanoseconds: 7 });
    let device = DeviceNumbers { major: count, minor: 1 };
    let node = |kind| match kind {
        Kind::BlockDevice | Kind::CharacterDevice => MakeNode { kind, attributes: new, device },
        Kind::Socket | Kind::Fifo => MakeNode { kind, attributes: new, device: DeviceNumbers::default() },
        _ => MakeNode { kind, attributes: SetAttributes::default(), device: DeviceNumbers::default() },
    };
    let mut calls = vec![
        Call::Null {},
        Call::GetAttr { file },
        Call::SetAttr { file, new, guard },
        Call::SetAttr { file, new, guard: None },
        Call::Lookup { place },
        Call::Access { file, wanted: count },
        Call::ReadLink { file },
        Call::Read { file, offset, count },
        Call::Create { place, how: CreateHow::Unchecked(new) },
        Call::Create { place, how: CreateHow::Guarded(new) },
        Call::Create { place, how: CreateHow::Exclusive(verifier) },
        Call::MkDir { place, new },
        Call::SymLink { place, new, target: data },
        Call::Remove { place },
        Call::RmDir { place },
        Call::Rename { from: place, to },
        Call::Link { file, place: to },
        Call::ReadDir { directory: file, cookie: offset, verifier, count },
        Call::ReadDirPlus { directory: file, cookie: offset, verifier, names_count: 9, count },
        Call::FsStat { file },
        Call::FsInfo { file },
        Call::PathConf { file },
        Call::Commit { file, offset, count },
    ];
    calls.extend(Stable::ALL.iter().map(|stable| Call::Write { file, offset, count, stable: *stable, data }));
    calls.extend(Kind::ALL.iter().map(|kind| Call::MkNod { place, node: node(*kind) }));
    calls
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn call_survives_encoding(
        parts in (handle(), handle(), vec(any::<u8>(), 0..300), vec(any::<u8>(), 0..300), set_attributes(),
            any::<u64>(), any::<u32>())
    ) {
        for call in calls(&parts) {
            let mut bytes = Vec::new();
            call.write(&mut bytes);
            prop_assert_eq!(bytes.len() % 4, 0);
            prop_assert_eq!(Call::parse(call.procedure(), &bytes), Some(Ok(call)));
            // No shorter and no longer message is the same call.
            if let Some(cut) = bytes.len().checked_sub(4) {
                prop_assert!(Call::parse(call.procedure(), &bytes[..cut]).unwrap().is_err());
            }
            bytes.extend([0; 4]);
            prop_assert!(Call::parse(call.procedure(), &bytes).unwrap().is_err());
        }
    }

    #[test]
    fn reply_survives_encoding((procedure, reply) in reply()) {
        let mut bytes = Vec::new();
        reply.write(&mut bytes);
        prop_assert_eq!(Reply::parse(procedure, &bytes), Ok(reply));
    }

    #[test]
    fn rpc_head_survives_encoding(
        (xid, procedure, uid, gid) in any::<(u32, u32, u32, u32)>(),
        groups in vec(any::<u32>(), 0..=rpc::GROUPS_MAX),
        arguments in vec(any::<u8>(), 0..64),
    ) {
        for credential in [Credential::None, Credential::Sys { uid, gid, groups }] {
            let call = RpcCall {
                xid,
                program: rpc::NFS_PROGRAM,
                version: rpc::VERSION,
                procedure,
                credential,
                arguments: &arguments,
            };
            let mut bytes = Vec::new();
            rpc::write_call(&call, &mut bytes);
            prop_assert_eq!(rpc::parse(&bytes), Ok(Incoming::Call(call)));
        }
    }

    #[test]
    fn records_are_found_in_any_fragments(
        record in vec(any::<u8>(), 0..200),
        cuts in vec(0usize..200, 0..8),
        rest in vec(any::<u8>(), 0..20),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(record.len())).collect();
        cuts.push(record.len());
        cuts.sort_unstable();
        let (mut stream, mut from) = (Vec::new(), 0);
        for (index, cut) in cuts.iter().enumerate() {
            let last = if index + 1 == cuts.len() { 1u32 << 31 } else { 0 };
            stream.extend(((cut - from) as u32 | last).to_be_bytes());
            stream.extend(&record[from..*cut]);
            from = *cut;
        }
        let whole = stream.len();
        for length in 0..whole {
            prop_assert!(matches!(front(&stream[..length], 200), Ok(Front::More(more)) if more <= whole - length));
        }
        stream.extend(rest);
        prop_assert_eq!(front(&stream, 200), Ok(Front::Record(record.into(), whole)));
    }

    #[test]
    fn hostile_bytes_are_refused_or_stable(bytes in vec(any::<u8>(), 0..300), procedure in 0u32..24) {
        let _ = rpc::parse(&bytes);
        let _ = rpc::parse_reply(&bytes);
        if let Some(Ok(call)) = Call::parse(procedure, &bytes) {
            let mut again = Vec::new();
            call.write(&mut again);
            prop_assert_eq!(Call::parse(procedure, &again), Some(Ok(call)));
        }
        let _ = Reply::parse(procedure, &bytes);
        let _ = MountCall::parse(procedure, &bytes);
        let _ = MountReply::parse(procedure, &bytes);
        if let Some(Ok(call)) = NlmCall::parse(procedure, &bytes) {
            let mut again = Vec::new();
            call.write(&mut again);
            prop_assert_eq!(NlmCall::parse(procedure, &again), Some(Ok(call)));
        }
        let _ = NlmReply::parse(procedure, &bytes);
        let _ = NsmCall::parse(procedure, &bytes);
        let _ = portmap::parse_number(&bytes);
        let _ = portmap::parse_address(&bytes);
        let _ = portmap::parse_call(2 * (procedure % 3), procedure % 4, &bytes);
    }

    #[test]
    fn lock_messages_survive_encoding(
        (texts, numbers) in ([vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..40)],
            any::<(u32, u64, u64, u32)>()),
        (block, exclusive, reclaim) in any::<(bool, bool, bool)>(),
        status in one_of(LockStatus::ALL),
        rights in (0u8..4, 0u8..4),
    ) {
        let [caller, file, owner] = [Bytes(&texts[0]), Bytes(&texts[1]), Bytes(&texts[2])];
        let (process, offset, length, state) = numbers;
        let lock = LockOf { caller, file, owner, process, offset, length };
        let cookie = file;
        let asks = [
            Ask::Test(TestArguments { cookie, exclusive, lock }),
            Ask::Lock(LockArguments { cookie, block, exclusive, lock, reclaim, state }),
            Ask::Cancel(CancelArguments { cookie, block, exclusive, lock }),
            Ask::Unlock(UnlockArguments { cookie, lock }),
            Ask::Granted(TestArguments { cookie, exclusive, lock }),
        ];
        let (deny, access) = (Rights::new(rights.0), Rights::new(rights.1));
        let share = ShareArguments { cookie, caller, file, owner, deny, access, reclaim };
        let holder = Holder { exclusive, process, owner: owner.0.to_vec(), offset, length };
        let answered = Answered { cookie: cookie.0.to_vec(), status };
        let outcome = if status == LockStatus::Denied { Err(holder) } else { Ok(status) };
        let tested = Tested { cookie: cookie.0.to_vec(), outcome };
        let calls = asks.iter().flat_map(|ask| [NlmCall::Ask(*ask), NlmCall::Message(*ask)]).chain([
            NlmCall::Null,
            NlmCall::TestResult(tested.clone()),
            NlmCall::Result(2, answered.clone()),
            NlmCall::Result(5, answered.clone()),
            NlmCall::Share(share),
            NlmCall::Unshare(share),
            NlmCall::LockUnmonitored(LockArguments { cookie, block, exclusive, lock, reclaim, state }),
            NlmCall::FreeAll(FreeAll { caller, state }),
        ]);
        for call in calls {
            let mut bytes = Vec::new();
            call.write(&mut bytes);
            prop_assert_eq!(NlmCall::parse(call.procedure(), &bytes), Some(Ok(call)));
        }
        let notify = NsmCall::Notify(Restarted { name: caller, state });
        let mut bytes = Vec::new();
        notify.write(&mut bytes);
        prop_assert_eq!(NsmCall::parse(notify.procedure(), &bytes), Some(Ok(notify)));
        let replies = [
            (0, NlmReply::Nothing),
            (1, NlmReply::Tested(tested)),
            (2, NlmReply::Answered(answered.clone())),
            (20, NlmReply::Shared(answered)),
        ];
        for (procedure, reply) in replies {
            let mut bytes = Vec::new();
            reply.write(&mut bytes);
            prop_assert_eq!(NlmReply::parse(procedure, &bytes), Ok(reply));
        }
    }
}

#[test]
fn port_mapper_messages_survive_encoding() {
    let mapping = Mapping { program: 100_003, version: 3, protocol: portmap::TCP, port: 2049 };
    let binding = Binding { program: 100_003, version: 3, network: "tcp6", address: "::.8.1", owner: "root" };
    let calls = [
        PortmapCall::Set(mapping),
        PortmapCall::Unset(mapping),
        PortmapCall::GetPort(mapping),
        PortmapCall::SetBinding(binding.clone()),
        PortmapCall::UnsetBinding(binding.clone()),
        PortmapCall::GetAddress(binding),
    ];
    for call in calls {
        let mut bytes = Vec::new();
        call.write(&mut bytes);
        assert_eq!(portmap::parse_call(call.version(), call.procedure(), &bytes), Ok(call));
    }
    for (text, port) in
        [("10.0.0.1.8.1", Some(2049)), ("::.3.232", Some(1000)), ("", Some(0)), ("1.256", None)]
    {
        let mut bytes = Vec::new();
        portmap::write_address(text, &mut bytes);
        assert_eq!(portmap::parse_address(&bytes).ok(), port);
    }
}

#[test]
fn longest_bytes_of_a_lock_have_a_limit() {
    let lock = |bytes| {
        let [caller, file, owner] = [Bytes(b"c"), Bytes(b"f"), Bytes(bytes)];
        let lock = LockOf { caller, file, owner, process: 1, offset: 0, length: 0 };
        let mut written = Vec::new();
        NlmCall::Ask(Ask::Unlock(UnlockArguments { cookie: caller, lock })).write(&mut written);
        written
    };
    assert!(NlmCall::parse(4, &lock(&[7; NLM_BYTES_MAX])).unwrap().is_ok());
    assert!(NlmCall::parse(4, &lock(&[7; NLM_BYTES_MAX + 1])).unwrap().is_err());
}

#[test]
fn written_record_is_found() {
    let mut out = b"before".to_vec();
    let start = begin(&mut out);
    out.extend_from_slice(b"12345678");
    finish(&mut out, start, 4);
    assert_eq!(&out[6..10], &[0x80, 0, 0, 12]);
}

#[test]
fn too_long_record_is_refused_by_its_head() {
    assert_eq!(front(&[0x80, 0, 1, 0], 255), Err(BadRecord::TooLong { most: 255 }));
    let endless = [0u8; 4].repeat(100);
    assert_eq!(front(&endless, 255), Err(BadRecord::TooManyFragments));
}

#[test]
fn credentials_of_other_kinds_are_refused() {
    let call = RpcCall {
        xid: 5,
        program: rpc::NFS_PROGRAM,
        version: 3,
        procedure: 1,
        credential: Credential::Sys { uid: 1, gid: 2, groups: vec![3; 16] },
        arguments: &[],
    };
    let mut bytes = Vec::new();
    rpc::write_call(&call, &mut bytes);
    let refused =
        |bytes: &[u8], refusal| assert_eq!(rpc::parse(bytes), Ok(Incoming::Refused { xid: 5, refusal }));
    let mut other = bytes.clone();
    other[11] = 3;
    refused(&other, Refusal::RpcVersion);
    let mut other = bytes.clone();
    other[27] = 6;
    refused(&other, Refusal::OtherCredential);
    // Seventeen groups, which the body has no room for.
    let mut other = bytes;
    let count = 24 + 8 + 16;
    assert_eq!(other[count + 3], 16);
    other[count + 3] = 17;
    refused(&other, Refusal::BadCredential);
}

#[test]
fn head_of_a_read_is_that_of_the_whole_reply() {
    let read = Read { attributes: None, count: 5, end: true, data: b"hello".to_vec() };
    let (mut whole, mut head) = (Vec::new(), Vec::new());
    Reply::Read(Ok(read)).write(&mut whole);
    read_reply_head(None, 5, true, &mut head);
    assert_eq!(whole, [&head[..], b"hello\0\0\0"].concat());
}

#[test]
fn entry_sizes_are_those_of_the_wire() {
    let name = b"seven77";
    let size = |reply: &Reply| {
        let mut bytes = Vec::new();
        reply.write(&mut bytes);
        bytes.len()
    };
    let listing =
        |entries| Reply::ReadDir(Ok(Listing { attributes: None, verifier: [0; 8], entries, end: true }));
    let entry = DirectoryEntry { file_id: 1, name: name.to_vec(), cookie: 2 };
    assert_eq!(size(&listing(vec![entry])) - size(&listing(vec![])), listed_bytes(name));
    let attributes = Attributes {
        kind: Kind::File,
        mode: 0,
        links: 1,
        uid: 0,
        gid: 0,
        size: 0,
        used: 0,
        device: DeviceNumbers::default(),
        file_system: 0,
        file_id: 1,
        accessed: Time::default(),
        modified: Time::default(),
        changed: Time::default(),
    };
    let entry = PlusEntry {
        file_id: 1,
        name: name.to_vec(),
        cookie: 2,
        attributes: Some(attributes),
        file: Handle::new(&[7; 64]),
    };
    let listing =
        |entries| Reply::ReadDirPlus(Ok(Listing { attributes: None, verifier: [0; 8], entries, end: true }));
    assert_eq!(size(&listing(vec![entry])) - size(&listing(vec![])), plus_bytes(name, 64));
}

#[test]
fn mount_messages_survive_encoding() {
    let calls = [
        MountCall::Null,
        MountCall::Mount(b"/vol0"),
        MountCall::Dump,
        MountCall::Unmount(b"/"),
        MountCall::Export,
    ];
    for call in calls {
        let mut bytes = Vec::new();
        call.write(&mut bytes);
        assert_eq!(MountCall::parse(call.procedure(), &bytes), Some(Ok(call)));
    }
    let directory = Handle::new(&[9; 64]).unwrap();
    let exported = Exported { path: b"/vol0/home".to_vec(), clients: vec![b"10.0.0.0/8".to_vec()] };
    let replies = [
        (0, MountReply::Nothing),
        (1, MountReply::Mount(Ok(Mounted { directory, flavors: vec![1] }))),
        (1, MountReply::Mount(Err(MountStatus::Access))),
        (2, MountReply::Dump),
        (5, MountReply::Export(vec![exported])),
    ];
    for (procedure, reply) in replies {
        let mut bytes = Vec::new();
        reply.write(&mut bytes);
        assert_eq!(MountReply::parse(procedure, &bytes), Ok(reply));
    }
    let long = vec![b'a'; MOUNT_PATH_BYTES_MAX + 4];
    let mut bytes = Vec::new();
    MountCall::Mount(&long).write(&mut bytes);
    assert!(MountCall::parse(1, &bytes).unwrap().is_err());
}
