//! Locks of clients over TCP, with a client's machine that gets calls of the server.

#[allow(dead_code, reason = "this test program uses a part of it")]
mod harness;
#[path = "harness/machine.rs"]
mod machine;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cairn_frontend_nfs::{LockRecord, NotRecorded, Recorded, RecordedHost, Rules, ServerOptions};
use cairn_proto_nfs::nlm::*;
use cairn_proto_nfs::nsm::{NSM_PROGRAM, NSM_VERSION, NsmCall, Restarted};
use cairn_proto_nfs::{Handle, rpc};
use harness::client::{Client, lock_of, user};
use harness::{Running, Scene, TestExport};
use machine::{Got, Machine};

/// A record in memory, which outlives a server.
#[derive(Debug, Default)]
struct Memory(Mutex<(u32, Vec<RecordedHost>, bool)>);

impl LockRecord for Memory {
    fn begin(&self) -> Option<Recorded> {
        let mut known = self.0.lock().unwrap();
        known.0 += 2;
        Some(Recorded { state: known.0 + 1, hosts: known.1.clone() })
    }

    fn save(&self, hosts: &[RecordedHost]) -> Result<(), NotRecorded> {
        let mut known = self.0.lock().unwrap();
        if known.2 {
            return Err(NotRecorded);
        }
        known.1 = hosts.to_vec();
        Ok(())
    }
}

struct Served {
    scene: Scene,
    machine: Machine,
    record: Arc<Memory>,
}

impl Served {
    fn new() -> Self {
        Self { scene: Scene::new(), machine: Machine::start(), record: Arc::default() }
    }

    fn start(&self, export: TestExport) -> Running {
        self.scene.serve_with(
            vec![export],
            ServerOptions {
                lock_record: self.record.clone(),
                lock_grace: Duration::from_secs(2),
                portmap_port: self.machine.port,
                ..ServerOptions::default()
            },
        )
    }
}

/// A client with a file.
fn begin(running: &Running) -> (Client, Handle) {
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    let file = client.create(&root, b"file").unwrap();
    (client, file)
}

#[test]
fn locks_exclude_others_and_end() {
    let served = Served::new();
    let running = served.start(served.scene.whole());
    let (mut client, file) = begin(&running);
    assert_eq!(client.lock(lock_of(&file, 1, 10, 10), false), LockStatus::Granted);
    assert_eq!(client.lock(lock_of(&file, 1, 10, 10), false), LockStatus::Granted);
    assert_eq!(client.lock(lock_of(&file, 2, 19, 1), false), LockStatus::Denied);
    let holder = client.test_lock(lock_of(&file, 2, 0, 0)).unwrap_err();
    assert_eq!((holder.process, holder.offset, holder.length, holder.exclusive), (1, 10, 10, true));
    assert_eq!(client.test_lock(lock_of(&file, 2, 20, 0)), Ok(LockStatus::Granted));
    assert_eq!(client.unlock(lock_of(&file, 1, 14, 2)), LockStatus::Granted);
    assert_eq!(client.lock(lock_of(&file, 2, 14, 2), false), LockStatus::Granted);
    assert_eq!(running.server.locks(), 3);
    assert_eq!(client.unlock(lock_of(&file, 1, 0, 0)), LockStatus::Granted);
    assert_eq!(client.unlock(lock_of(&file, 2, 0, 0)), LockStatus::Granted);
    assert_eq!(running.server.locks(), 0);
    assert_eq!(client.lock(lock_of(&file, 1, u64::MAX, 2), false), LockStatus::TooLarge);
    // Locks of a file that is gone end as well.
    assert_eq!(client.lock(lock_of(&file, 1, 0, 0), false), LockStatus::Granted);
    let root = client.mount("/v").unwrap();
    client.remove(&root, b"file").unwrap();
    assert_eq!(client.lock(lock_of(&file, 2, 0, 0), false), LockStatus::Stale);
    assert_eq!(client.unlock(lock_of(&file, 1, 0, 0)), LockStatus::Granted);
    assert_eq!(running.server.locks(), 0);
}

#[test]
fn waiting_client_is_informed_and_may_decline() {
    let served = Served::new();
    let running = served.start(served.scene.whole());
    let (mut client, file) = begin(&running);
    assert_eq!(client.lock(lock_of(&file, 1, 0, 100), false), LockStatus::Granted);
    assert_eq!(client.lock(lock_of(&file, 2, 50, 10), true), LockStatus::Blocked);
    assert_eq!(client.lock(lock_of(&file, 3, 55, 1), true), LockStatus::Blocked);
    assert_eq!(client.lock(lock_of(&file, 4, 90, 1), true), LockStatus::Blocked);
    assert_eq!(client.cancel(lock_of(&file, 4, 90, 1)), LockStatus::Granted);
    assert_eq!(client.cancel(lock_of(&file, 4, 90, 1)), LockStatus::Denied);
    *served.machine.answer.lock().unwrap() = Some(LockStatus::Denied);
    client.unlock(lock_of(&file, 1, 0, 100));
    assert_eq!(served.machine.next(), Got::Granted(2, 50, 10));
    // Declined, so that the next one has it.
    assert_eq!(served.machine.next(), Got::Granted(3, 55, 1));
    let deadline = Instant::now() + Duration::from_secs(30);
    while running.server.locks() > 0 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    *served.machine.answer.lock().unwrap() = Some(LockStatus::Granted);
    assert_eq!(client.lock(lock_of(&file, 1, 0, 100), false), LockStatus::Granted);
    assert_eq!(client.lock(lock_of(&file, 2, 0, 0), true), LockStatus::Blocked);
    client.unlock(lock_of(&file, 1, 0, 0));
    assert_eq!(served.machine.next(), Got::Granted(2, 0, 0));
    assert_eq!(client.lock(lock_of(&file, 3, 5, 1), false), LockStatus::Denied);
    // Two that would wait for each other.
    let root = client.mount("/v").unwrap();
    let other = client.create(&root, b"other").unwrap();
    assert_eq!(client.lock(lock_of(&other, 3, 0, 0), false), LockStatus::Granted);
    assert_eq!(client.lock(lock_of(&other, 2, 0, 0), true), LockStatus::Blocked);
    assert_eq!(client.lock(lock_of(&file, 3, 0, 0), true), LockStatus::Deadlock);
}

#[test]
fn client_that_does_not_answer_is_informed_again() {
    let served = Served::new();
    let running = served.start(served.scene.whole());
    let (mut client, file) = begin(&running);
    assert_eq!(client.lock(lock_of(&file, 1, 0, 0), false), LockStatus::Granted);
    assert_eq!(client.lock(lock_of(&file, 2, 0, 0), true), LockStatus::Blocked);
    *served.machine.answer.lock().unwrap() = None;
    client.unlock(lock_of(&file, 1, 0, 0));
    assert_eq!(served.machine.next(), Got::Granted(2, 0, 0));
    assert_eq!(served.machine.next(), Got::Granted(2, 0, 0));
    // It has the lock meanwhile; a client that asks again has it confirmed.
    assert_eq!(client.lock(lock_of(&file, 3, 0, 0), false), LockStatus::Denied);
    assert_eq!(client.lock(lock_of(&file, 2, 0, 0), true), LockStatus::Granted);
    client.unlock(lock_of(&file, 2, 0, 0));
    assert_eq!(client.lock(lock_of(&file, 3, 0, 0), false), LockStatus::Granted);
}

#[test]
fn messages_are_answered_by_calls() {
    let served = Served::new();
    let running = served.start(served.scene.whole());
    let (mut client, file) = begin(&running);
    let cookie = Bytes(b"cookie");
    let lock = |process| {
        let lock = lock_of(&file, process, 0, 0);
        LockArguments { cookie, block: false, exclusive: true, lock, reclaim: false, state: 3 }
    };
    assert_eq!(client.nlm(&NlmCall::Message(Ask::Lock(lock(1)))), NlmReply::Nothing);
    assert_eq!(served.machine.next(), Got::Result(2, LockStatus::Granted));
    client.nlm(&NlmCall::Message(Ask::Lock(lock(2))));
    assert_eq!(served.machine.next(), Got::Result(2, LockStatus::Denied));
    let test = TestArguments { cookie, exclusive: true, lock: lock_of(&file, 2, 0, 0) };
    client.nlm(&NlmCall::Message(Ask::Test(test)));
    assert_eq!(served.machine.next(), Got::TestResult(Err(1)));
    let unlock = UnlockArguments { cookie, lock: lock_of(&file, 1, 0, 0) };
    client.nlm(&NlmCall::Message(Ask::Unlock(unlock)));
    assert_eq!(served.machine.next(), Got::Result(4, LockStatus::Granted));
    let share = |owner, deny| ShareArguments {
        cookie,
        caller: Bytes(b"test"),
        file: Bytes(file.as_bytes()),
        owner: Bytes(owner),
        deny: Rights::new(deny),
        access: Rights::new(3),
        reclaim: false,
    };
    let status = |reply| match reply {
        NlmReply::Shared(answered) => answered.status,
        other => panic!("{other:?}"),
    };
    assert_eq!(status(client.nlm(&NlmCall::Share(share(b"one", 2)))), LockStatus::Granted);
    assert_eq!(status(client.nlm(&NlmCall::Share(share(b"two", 0)))), LockStatus::Denied);
    assert_eq!(status(client.nlm(&NlmCall::Unshare(share(b"one", 2)))), LockStatus::Granted);
    assert_eq!(status(client.nlm(&NlmCall::Share(share(b"two", 0)))), LockStatus::Granted);
    client.nlm(&NlmCall::FreeAll(FreeAll { caller: Bytes(b"test"), state: 4 }));
    assert_eq!(running.server.locks(), 0);
}

#[test]
fn locks_are_claimed_again_after_a_restart_and_no_others_are_granted_before() {
    let served = Served::new();
    let file = {
        let running = served.start(served.scene.whole());
        let (mut client, file) = begin(&running);
        assert_eq!(client.lock(lock_of(&file, 1, 0, 10), false), LockStatus::Granted);
        file
    };
    let running = served.start(served.scene.whole());
    assert_eq!(served.machine.next(), Got::Restarted(5));
    let mut client = running.client();
    assert_eq!(client.lock(lock_of(&file, 2, 0, 10), false), LockStatus::Grace);
    assert_eq!(client.test_lock(lock_of(&file, 2, 0, 10)), Ok(LockStatus::Grace));
    assert_eq!(client.lock_as(lock_of(&file, 1, 0, 10), false, true, true), LockStatus::Granted);
    // A machine that had no lock claims none.
    let stranger = LockOf { caller: Bytes(b"stranger"), ..lock_of(&file, 1, 20, 1) };
    assert_eq!(client.lock_as(stranger, false, true, true), LockStatus::Denied);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match client.lock(lock_of(&file, 2, 0, 10), false) {
            LockStatus::Grace => std::thread::yield_now(),
            status => break assert_eq!(status, LockStatus::Denied),
        }
        assert!(Instant::now() < deadline);
    }
    assert_eq!(client.lock_as(lock_of(&file, 3, 20, 1), false, true, true), LockStatus::Grace);
    assert_eq!(client.lock(lock_of(&file, 3, 20, 1), false), LockStatus::Granted);
}

#[test]
fn no_lock_is_granted_that_a_restart_would_lose() {
    let served = Served::new();
    let running = served.start(served.scene.whole());
    let (mut client, file) = begin(&running);
    served.record.0.lock().unwrap().2 = true;
    assert_eq!(client.lock(lock_of(&file, 1, 0, 0), false), LockStatus::NoLocks);
    // One that does not want to know gets it.
    let lock = lock_of(&file, 1, 0, 0);
    let cookie = Bytes(b"cookie");
    let arguments = LockArguments { cookie, block: false, exclusive: true, lock, reclaim: false, state: 3 };
    let reply = client.nlm(&NlmCall::LockUnmonitored(arguments));
    assert!(matches!(reply, NlmReply::Answered(Answered { status: LockStatus::Granted, .. })), "{reply:?}");
    client.unlock(lock_of(&file, 1, 0, 0));
    served.record.0.lock().unwrap().2 = false;
    assert_eq!(client.lock(lock_of(&file, 1, 0, 0), false), LockStatus::Granted);
    assert_eq!(served.record.0.lock().unwrap().1.len(), 1);
}

#[test]
fn restart_of_a_client_frees_its_locks_and_no_others() {
    let served = Served::new();
    let running = served.start(served.scene.whole());
    let (mut client, file) = begin(&running);
    let other = |process| LockOf { caller: Bytes(b"other"), ..lock_of(&file, process, 20, 1) };
    assert_eq!(client.lock(lock_of(&file, 1, 0, 1), false), LockStatus::Granted);
    assert_eq!(client.lock(other(1), false), LockStatus::Granted);
    let mut notify = |name: &[u8], state| {
        let call = NsmCall::Notify(Restarted { name: Bytes(name), state });
        let mut arguments = Vec::new();
        call.write(&mut arguments);
        client.send_rpc(NSM_PROGRAM, NSM_VERSION, call.procedure(), &arguments);
        let record = client.receive().unwrap();
        assert_eq!(rpc::parse_reply(&record).unwrap().results, Some(&[][..]));
        running.server.locks()
    };
    assert_eq!(notify(b"nobody", 5), 2);
    assert_eq!(notify(b"test", 3), 2, "it is of the start with these locks");
    assert_eq!(notify(b"test.example", 5), 1);
    assert_eq!(client.lock(lock_of(&file, 2, 0, 1), false), LockStatus::Granted);
    assert_eq!(client.lock(lock_of(&file, 2, 20, 1), false), LockStatus::Denied);
}

#[test]
fn locks_obey_the_rules_of_the_export() {
    let served = Served::new();
    let rules = Rules { read_only: true, ..served.scene.whole().rules };
    let running = served.start(served.scene.whole());
    let (mut client, file) = begin(&running);
    client.set(&file, &harness::client::mode(0o600)).unwrap();
    let mut stranger = running.client().used_by(user(1000, 1000));
    assert_eq!(stranger.lock(lock_of(&file, 9, 0, 0), false), LockStatus::Denied);
    assert_eq!(stranger.test_lock(lock_of(&file, 9, 0, 0)), Ok(LockStatus::Failed));
    let root = client.mount("/v").unwrap();
    assert_eq!(client.lock(lock_of(&root, 1, 0, 0), false), LockStatus::Failed);
    let mut forged = file.as_bytes().to_vec();
    forged[60] ^= 1;
    let forged = Handle::new(&forged).unwrap();
    assert_eq!(client.lock(lock_of(&forged, 1, 0, 0), false), LockStatus::Stale);
    let long = vec![0; 1025];
    let lock = LockOf { file: Bytes(&long[..1024]), ..lock_of(&file, 1, 0, 0) };
    assert_eq!(client.lock(lock, false), LockStatus::Stale);
    drop(running);
    let running = served.start(TestExport { rules, ..served.scene.whole() });
    let mut client = running.client();
    assert_eq!(client.lock(lock_of(&file, 1, 0, 0), false), LockStatus::ReadOnly);
    assert_eq!(client.lock_as(lock_of(&file, 1, 0, 0), false, false, false), LockStatus::Granted);
}
