//! Sessions as initiators see them: limits, bad manners, ends.
mod harness;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::Rng;
use cairn_device::{Device, DeviceError, Extent, FaultDevice, LoggedKind, MemoryDevice, Operation};
use cairn_frontend_iscsi::{
    Account, Credential, Export, IscsiServer, Listener, LoginError, OpenTargetError, ReservationState,
    ServerOptions, Targets,
};
use cairn_proto_iscsi::pdu::{self, Header, opcode};
use harness::initiator::{Initiator, transfer};
use harness::{PREFIX, SIZE, TestServer, TestTargets, eventually};
use parking_lot::Mutex;

const READS: u8 = 0x40;
const WRITES: u8 = 0x20;

fn login(server: &TestServer, isid: u8) -> Initiator {
    Initiator::login(&server.portal, &format!("{PREFIX}v.plain"), isid, false).unwrap()
}

#[test]
fn initiators_that_never_log_in_keep_no_others_out() {
    let server = TestServer::plain();
    let mut silent: Vec<_> =
        (0..300).map(|_| std::net::TcpStream::connect(&server.portal).unwrap()).collect();
    // Half a header is not a login either.
    silent.iter_mut().for_each(|stream| _ = stream.write_all(&[0x43, 0x87, 0]));
    assert!(login(&server, 1).is_served());
}

#[test]
fn sessions_past_the_limit_are_refused_and_one_of_the_same_port_takes_the_place_of_the_older() {
    let server = TestServer::start(ServerOptions { max_sessions: 1, ..ServerOptions::default() });
    let mut first = login(&server, 1);
    let refused = Initiator::login(&server.portal, &format!("{PREFIX}v.plain"), 2, false);
    assert_eq!(refused.err(), Some(0x0302));
    let mut again = login(&server, 1);
    assert!(first.is_closed(), "the older session of the port ends");
    assert!(again.is_served());
    assert_eq!(server.server.sessions().len(), 1);
}

#[test]
fn targets_that_are_not_there_or_not_for_everybody_are_refused() {
    let server = TestServer::plain();
    let status =
        |target: &str| Initiator::login(&server.portal, &format!("{PREFIX}{target}"), 1, false).err();
    assert_eq!(status("v.none"), Some(0x0203));
    assert_eq!(status("v.private"), Some(0x0202));
    assert_eq!(status("v.chap"), Some(0x0201), "no proof");
}

#[test]
fn streams_of_nonsense_end_their_session_and_no_other() {
    let server = TestServer::plain();
    let mut witness = login(&server, 200);
    for seed in 0..150u64 {
        let mut rng = Rng::new(seed);
        let mut initiator = login(&server, (seed % 100) as u8);
        let mut bytes = vec![0; 48 + rng.below(4000) as usize];
        rng.fill(&mut bytes);
        // Some begin like a valid PDU, so that more than the first check is tested.
        if seed % 3 != 0 {
            let kinds = [
                opcode::SCSI_COMMAND,
                opcode::DATA_OUT,
                opcode::TEXT,
                opcode::TASK_MANAGEMENT,
                opcode::NOP_OUT,
                opcode::SNACK,
            ];
            let kind = kinds[rng.below(kinds.len() as u64) as usize];
            let length = bytes.len() - 48;
            let mut header = Header::parse(&bytes).unwrap();
            header = Header::new(kind, header.tag())
                .with_data(length)
                .with_word(0, length as u32)
                .with_word(1, 1)
                .with_cdb(&bytes[32..48].try_into().unwrap());
            header.flags = (seed as u8) | 0x80;
            let mut whole = Vec::new();
            pdu::put_header(&mut whole, &header, false);
            bytes[..48].copy_from_slice(&whole);
        }
        // It may be closed before all of it is sent.
        let _ = initiator.stream.write_all(&bytes);
        let _ = initiator.stream.shutdown(std::net::Shutdown::Write);
        while initiator.receive().is_some() {}
        assert!(witness.is_served(), "seed {seed}");
    }
    drop(witness);
    eventually("all sessions have ended", || server.server.sessions().is_empty());
}

#[test]
fn initiator_that_takes_no_answers_holds_up_nobody() {
    let server = TestServer::plain();
    let mut stuck = login(&server, 1);
    for tag in 0..100 {
        stuck.command(tag, &transfer(0x28, 0, 8192), READS, 8192 * 512, &[]);
    }
    let mut other = login(&server, 2);
    for round in 0..20 {
        other.command(1, &transfer(0x2a, round * 8, 8), WRITES, 4096, &[round as u8; 4096]);
        assert_eq!(other.status().0, 0);
    }
    assert_eq!(server.server.sessions().len(), 2);
}

#[test]
fn wrong_digest_of_data_is_rejected_and_ends_the_session() {
    let server = TestServer::plain();
    let target = format!("{PREFIX}v.plain");
    let mut initiator = Initiator::login(&server.portal, &target, 1, true).unwrap();
    initiator.command(1, &transfer(0x2a, 0, 1), WRITES, 512, &[7; 512]);
    assert_eq!(initiator.status().0, 0);
    let mut header = Header::new(opcode::SCSI_COMMAND, 2)
        .with_word(0, 512)
        .with_word(1, 2)
        .with_cdb(&transfer(0x2a, 0, 1));
    header.flags = 0x80 | WRITES;
    let mut bytes = Vec::new();
    pdu::put(&mut bytes, header, &[8; 512], true, true);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    initiator.stream.write_all(&bytes).unwrap();
    let (reject, _) = initiator.receive().unwrap();
    assert_eq!((reject.opcode(), reject.detail[0]), (opcode::REJECT, 2));
    assert!(initiator.is_closed());
    let mut initiator = login(&server, 1);
    initiator.command(1, &transfer(0x28, 0, 1), READS, 512, &[]);
    assert_eq!(initiator.receive().unwrap().1, [7; 512], "what came damaged was not written");
}

#[test]
fn snack_is_rejected_and_the_session_goes_on() {
    let server = TestServer::plain();
    let mut initiator = login(&server, 1);
    initiator.send(Header::new(opcode::SNACK, 5), &[]);
    initiator.command_number -= 1;
    let (reject, _) = initiator.receive().unwrap();
    assert_eq!((reject.opcode(), reject.detail[0]), (opcode::REJECT, 3));
    assert!(initiator.is_served());
}

#[test]
fn resize_and_removal_are_told_to_initiators_that_are_idle() {
    let server = TestServer::plain();
    let mut initiator = login(&server, 1);
    assert!(initiator.is_served(), "it has seen the size");
    server.grow("v.plain");
    let (told, data) = initiator.receive().expect("within the time of a look around");
    assert_eq!((told.opcode(), told.word(4) >> 24), (opcode::ASYNC, 0));
    assert_eq!((data[2 + 2], data[2 + 12], data[2 + 13]), (6, 0x2a, 9), "CAPACITY DATA HAS CHANGED");
    initiator.command(1, &[0; 16], 0, 0, &[]);
    assert_eq!(initiator.status(), (2, vec![6, 0x2a, 9]), "as a unit attention too");
    assert!(initiator.is_served());
    assert_eq!(server.server.close_export("v/plain"), Ok(1));
    let (told, _) = initiator.receive().expect("it is told");
    assert_eq!((told.opcode(), told.word(4) >> 24), (opcode::ASYNC, 3), "connections are dropped");
    assert!(initiator.is_closed());
}

/// One session manages tasks while another one's write waits for its data; returns the answers that
/// both get to the next command.
fn manages(function: u8) -> [(u8, Vec<u8>); 2] {
    let server = TestServer::plain();
    let (mut one, mut other) = (login(&server, 1), login(&server, 2));
    // A write whose data does not come.
    one.command(1, &transfer(0x2a, 0, 8), WRITES, 4096, &[]);
    assert_eq!(one.receive().unwrap().0.opcode(), opcode::R2T);
    let mut header = Header::new(opcode::TASK_MANAGEMENT, 9).immediate();
    header.flags = 0x80 | function;
    other.send(header, &[]);
    let (done, _) = other.receive().unwrap();
    assert_eq!((done.opcode(), done.detail[0]), (opcode::TASK_MANAGEMENT_RESPONSE, 0));
    let told = [&mut one, &mut other].map(|initiator| {
        initiator.command(2, &[0; 16], 0, 0, &[]);
        initiator.status()
    });
    // The write is over: its tag is free, and nothing was written.
    one.command(1, &transfer(0x28, 0, 8), READS, 4096, &[]);
    assert_eq!(one.receive().unwrap().1, [0; 4096]);
    told
}

#[test]
fn reset_of_the_unit_ends_the_tasks_of_all_and_tells_them() {
    let told = (2, vec![6, 0x29, 3]);
    assert_eq!(manages(5), [told.clone(), told], "BUS DEVICE RESET FUNCTION OCCURRED");
}

#[test]
fn clear_task_set_ends_the_tasks_of_all_and_tells_the_others() {
    assert_eq!(manages(4), [(2, vec![6, 0x2f, 0]), (0, vec![])], "COMMANDS CLEARED BY ANOTHER INITIATOR");
}

#[test]
fn bursts_of_odd_lengths_write_every_byte() {
    let server = TestServer::plain();
    let mut initiator = login(&server, 1);
    // 1000 bytes at once, the rest by R2T: no boundary of a block is hit.
    let data: Vec<u8> = (0..8192u32).map(|byte| (byte % 251) as u8).collect();
    initiator.command(1, &transfer(0x2a, 3, 16), WRITES, 8192, &data[..1000]);
    let (asked, _) = initiator.receive().unwrap();
    assert_eq!((asked.opcode(), asked.word(5), asked.word(6)), (opcode::R2T, 1000, 7192));
    let header = Header::new(opcode::DATA_OUT, 1).with_word(0, asked.word(0)).with_word(5, 1000);
    initiator.send(header, &data[1000..]);
    assert_eq!(initiator.status().0, 0);
    initiator.command(2, &transfer(0x28, 3, 16), READS, 8192, &[]);
    let mut read = Vec::new();
    while read.len() < data.len() {
        read.extend(initiator.receive().unwrap().1);
    }
    assert_eq!(read, data);
}

/// One target without a write cache, in blocks of 4 KiB.
struct Through(Arc<dyn Device>);

/// A server of it, and a session.
fn through(device: Arc<dyn Device>) -> (IscsiServer, Initiator) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let targets = Arc::new(Through(device));
    let server = IscsiServer::start(vec![listener], targets, ServerOptions::default()).unwrap();
    let initiator = Initiator::login(&server.addresses()[0], &format!("{PREFIX}v.plain"), 1, false).unwrap();
    (server, initiator)
}

impl Targets for Through {
    fn list(&self, _: &cairn_frontend_iscsi::Initiator) -> Vec<String> {
        vec![format!("{PREFIX}v.plain")]
    }

    fn admit(&self, _: &cairn_frontend_iscsi::Initiator, _: &str) -> Result<Option<Account>, LoginError> {
        Ok(None)
    }

    fn open(&self, _: &str) -> Result<Export, OpenTargetError> {
        Ok(Export {
            name: "v/plain".to_owned(),
            unit: "v/plain".to_owned(),
            port: 1,
            ports: 1,
            device: self.0.clone(),
            id: 1,
            read_only: false,
            block_bytes: 4096,
            removable: false,
            write_cache: false,
            reservations: ReservationState::default(),
        })
    }

    fn random(&self, bytes: &mut [u8]) {
        Rng::new(1).fill(bytes);
    }

    fn keep(&self, _: &str, _: &ReservationState) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn write_that_comes_in_pieces_is_made_durable_once_before_its_answer() {
    let device = Arc::new(FaultDevice::new(1 << 20));
    let (_server, mut initiator) = through(device.clone());
    let mut data = vec![0; 128 << 10];
    Rng::new(2).fill(&mut data);
    device.take_log();
    let half = data.len() / 2;
    initiator.command(1, &transfer(0x2a, 0, 32), WRITES, data.len() as u32, &data[..half]);
    let (asked, _) = initiator.receive().unwrap();
    assert_eq!((asked.opcode(), asked.word(5)), (opcode::R2T, half as u32));
    let header = Header::new(opcode::DATA_OUT, 1).with_word(0, asked.word(0)).with_word(5, half as u32);
    initiator.send(header, &data[half..]);
    assert_eq!(initiator.status().0, 0);
    let log = device.take_log();
    let durable =
        |operation: &&cairn_device::LoggedOperation| operation.fua || operation.kind == LoggedKind::Flush;
    assert_eq!(log.iter().filter(durable).count(), 1, "{log:?}");
    assert_eq!(device.durable_snapshot().read(0, data.len() as u32).unwrap().to_vec(), data);
}

/// PERSISTENT RESERVE OUT with APTPL; its status.
fn reserve_out(initiator: &mut Initiator, action: u8, kind: u8, keys: (u64, u64)) -> u8 {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, kind, 24);
    let mut list = [keys.0.to_be_bytes(), keys.1.to_be_bytes(), [0; 8]].concat();
    list[20] = 1;
    initiator.command(50, &cdb, WRITES, 24, &list);
    initiator.status().0
}

#[test]
fn reservation_that_cannot_be_written_down_does_not_hold() {
    let server = TestServer::plain();
    let (mut one, mut other) = (login(&server, 1), login(&server, 2));
    assert_eq!(reserve_out(&mut one, 0, 0, (0, 11)), 0);
    assert_eq!(reserve_out(&mut other, 0, 0, (0, 22)), 0);
    assert_eq!(reserve_out(&mut one, 1, 1, (11, 0)), 0, "write exclusive");
    let kept = server.targets.kept.lock().clone();
    server.targets.forgetful.store(true, Ordering::SeqCst);
    // To preempt the reservation, to release it, to register anew: each fails, and no unit
    // attention is sent.
    assert_eq!(reserve_out(&mut other, 5, 1, (22, 11)), 2, "CHECK CONDITION");
    assert_eq!(reserve_out(&mut one, 2, 1, (11, 0)), 2);
    assert_eq!(reserve_out(&mut one, 3, 0, (11, 0)), 2);
    assert_eq!(reserve_out(&mut one, 0, 0, (11, 33)), 2);
    assert_eq!(*server.targets.kept.lock(), kept);
    let write = |initiator: &mut Initiator| {
        initiator.command(9, &transfer(0x2a, 0, 1), WRITES, 512, &[1; 512]);
        initiator.status()
    };
    assert_eq!(write(&mut one).0, 0, "it holds it still, under its old key");
    assert_eq!(write(&mut other).0, 0x18, "RESERVATION CONFLICT");
    server.targets.forgetful.store(false, Ordering::SeqCst);
    assert_eq!(reserve_out(&mut other, 4, 1, (22, 11)), 0, "the key is known still");
    assert_eq!(write(&mut one), (2, vec![6, 0x2a, 5]), "REGISTRATIONS PREEMPTED");
    assert_eq!(write(&mut one).0, 0x18);
    assert_eq!(write(&mut other).0, 0);
    assert_ne!(*server.targets.kept.lock(), kept);
}

#[test]
fn initiator_that_does_not_log_in_in_time_is_closed() {
    let options = ServerOptions { login_timeout: Duration::from_millis(200), ..ServerOptions::default() };
    let server = TestServer::start(options);
    let mut logged_in = login(&server, 1);
    let connect = |bytes: &[u8]| {
        let mut stream = std::net::TcpStream::connect(&server.portal).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    // One sends nothing, one stops in a header, one in its text, and one never finishes its login.
    let mut header = Vec::new();
    pdu::put_header(&mut header, &Header::new(opcode::LOGIN, 1).immediate().with_data(500), false);
    for bytes in [&[][..], &header[..20], &header[..]] {
        let mut stream = connect(bytes);
        assert_eq!(std::io::Read::read(&mut stream, &mut [0; 48]).ok(), Some(0), "{} bytes", bytes.len());
    }
    assert!(logged_in.is_served(), "the time is that of a login");
}

#[test]
fn writes_whose_data_never_comes_are_asked_for_within_the_window_and_hold_up_nobody() {
    let server = TestServer::plain();
    let mut stuck = login(&server, 1);
    const EACH: u32 = 4 << 20;
    for tag in 0..60 {
        stuck.command(tag, &transfer(0x2a, tag * 100, (EACH / 512) as u16), WRITES, EACH, &[]);
    }
    let mut asked = 0;
    // The first ping is answered once all of them were checked, the second after a request for
    // them.
    for _ in 0..2 {
        let ping = Header::new(opcode::NOP_OUT, 99).immediate().with_word(0, pdu::NO_TAG);
        stuck.send(ping, &[]);
        loop {
            let (said, _) = stuck.receive().unwrap();
            match said.opcode() {
                opcode::R2T => asked += said.word(6),
                opcode::NOP_IN => break,
                other => panic!("{other:#x}"),
            }
        }
    }
    assert!(
        (1..=8 << 20).contains(&asked),
        "a session has a window of 8 MiB at most, and was asked for {asked}"
    );
    let mut other = login(&server, 2);
    other.command(1, &transfer(0x2a, 0, 8), WRITES, 4096, &[7; 4096]);
    assert_eq!(other.status().0, 0);
    // Once the tasks are gone there is room again.
    let mut header = Header::new(opcode::TASK_MANAGEMENT, 98).immediate();
    header.flags = 0x80 | 2;
    stuck.send(header, &[]);
    loop {
        let (said, _) = stuck.receive().unwrap();
        if said.opcode() == opcode::TASK_MANAGEMENT_RESPONSE {
            break;
        }
    }
    stuck.command(1, &transfer(0x28, 0, 8), READS, 4096, &[]);
    assert_eq!(stuck.receive().unwrap().1, [7; 4096]);
}

#[test]
fn commands_past_the_window_are_not_taken() {
    let server = TestServer::plain();
    let mut initiator = login(&server, 1);
    initiator.command(1, &[0; 16], 0, 0, &[]);
    let (answer, _) = initiator.receive().unwrap();
    let (expected, most) = (answer.word(2), answer.word(3));
    assert_eq!(expected, initiator.command_number);
    initiator.command_number = most.wrapping_add(1);
    initiator.command(2, &[0; 16], 0, 0, &[]);
    // An initiator that does so has lost count; its commands in order are done all the same (RFC
    // 7143, section 4.2.2.1).
    initiator.command_number = expected;
    initiator.command(3, &[0; 16], 0, 0, &[]);
    let (answer, _) = initiator.receive().unwrap();
    assert_eq!((answer.opcode(), answer.tag()), (opcode::SCSI_RESPONSE, 3), "and the other was not answered");
}

#[test]
fn rates_and_latencies_of_a_session_are_told() {
    let server = TestServer::plain();
    let mut initiator = login(&server, 1);
    for lba in 0..32 {
        initiator.command(1, &transfer(0x2a, lba * 8, 8), WRITES, 4096, &[7; 4096]);
        assert_eq!(initiator.status().0, 0);
        initiator.command(1, &transfer(0x28, lba * 8, 4), READS, 2048, &[]);
        assert_eq!(initiator.receive().unwrap().1, [7; 2048]);
    }
    initiator.command(1, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, 0, &[]);
    assert_eq!(initiator.status().0, 0);
    // A write requested in bursts counts once, with all its bytes.
    initiator.command(2, &transfer(0x2a, 0, 2048), WRITES, 1 << 20, &[]);
    loop {
        let (said, _) = initiator.receive().unwrap();
        if said.opcode() != opcode::R2T {
            break;
        }
        let header = Header::new(opcode::DATA_OUT, 2).with_word(0, said.word(0)).with_word(5, said.word(5));
        initiator.send(header, &vec![9; said.word(6) as usize]);
    }
    let session = &server.server.sessions()[0];
    let (totals, activity) = (session.totals, session.activity);
    assert_eq!(
        (totals.requests, totals.written_bytes, totals.read_bytes),
        (66, (32 << 12) + (1 << 20), 32 << 11)
    );
    let count = |rate: cairn_frontend_iscsi::Rate| rate.per_second * activity.window.as_secs_f64().max(0.1);
    for (rate, requests) in [(activity.read, 32.0), (activity.write, 33.0), (activity.other, 1.0)] {
        assert!((count(rate) - requests).abs() < 0.01, "{activity:?}");
        assert!(rate.p50.is_some() && rate.p50 <= rate.p99, "{activity:?}");
    }
}

/// Two targets that are names of one disk.
struct Names {
    device: Arc<MemoryDevice>,
    /// The first opened device, once, as if the disk became another one right after that.
    before: Mutex<Option<Arc<MemoryDevice>>>,
    /// The answers to initiators that ask to log in, from the last one on; then all may.
    asked: Mutex<Vec<Result<Option<Account>, LoginError>>>,
}

impl Targets for Names {
    fn list(&self, _: &cairn_frontend_iscsi::Initiator) -> Vec<String> {
        vec![format!("{PREFIX}v.lun"), format!("{PREFIX}device")]
    }

    fn admit(&self, _: &cairn_frontend_iscsi::Initiator, _: &str) -> Result<Option<Account>, LoginError> {
        self.asked.lock().pop().unwrap_or(Ok(None))
    }

    fn open(&self, target: &str) -> Result<Export, OpenTargetError> {
        let name = &target[PREFIX.len()..];
        Ok(Export {
            name: name.to_owned(),
            unit: "v/lun".to_owned(),
            port: if name == "device" { 2 } else { 1 },
            ports: 2,
            device: self.before.lock().take().unwrap_or(self.device.clone()),
            id: 1,
            read_only: false,
            block_bytes: 512,
            removable: false,
            write_cache: false,
            reservations: ReservationState::default(),
        })
    }

    fn random(&self, bytes: &mut [u8]) {
        Rng::new(1).fill(bytes);
    }

    fn keep(&self, _: &str, _: &ReservationState) -> Result<(), String> {
        Ok(())
    }
}

/// A server of that disk, with its portal.
fn named(before: Option<Arc<MemoryDevice>>) -> (IscsiServer, String, Arc<MemoryDevice>) {
    named_and_asked(before, Vec::new())
}

/// The same, with [answers for initiators](Names::asked).
fn named_and_asked(
    before: Option<Arc<MemoryDevice>>,
    asked: Vec<Result<Option<Account>, LoginError>>,
) -> (IscsiServer, String, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let names = Names { device: device.clone(), before: Mutex::new(before), asked: Mutex::new(asked) };
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let server = IscsiServer::start(vec![listener], Arc::new(names), ServerOptions::default()).unwrap();
    let portal = server.addresses()[0].clone();
    (server, portal, device)
}

#[test]
fn targets_that_are_names_of_one_disk_share_what_its_unit_knows() {
    let (_server, portal, device) = named(None);
    let log_in = |target: &str| Initiator::login(&portal, &format!("{PREFIX}{target}"), 1, false).unwrap();
    let (mut one, mut other) = (log_in("v.lun"), log_in("device"));
    // RESERVE (6), of SPC-2.
    let mut cdb = [0; 16];
    cdb[0] = 0x16;
    one.command(1, &cdb, 0, 0, &[]);
    assert_eq!(one.status().0, 0);
    other.command(1, &[0; 16], 0, 0, &[]);
    assert_eq!(other.status().0, 0x18, "RESERVATION CONFLICT");
    drop(one);
    eventually("the end of a reservation with its session", || {
        other.command(1, &[0; 16], 0, 0, &[]);
        other.status().0 == 0
    });
    let mut one = log_in("v.lun");
    assert!(one.is_served(), "it has seen the size");
    device.grow(2 * SIZE);
    for session in [&mut one, &mut other] {
        session.command(2, &[0; 16], 0, 0, &[]);
        assert_eq!(session.status(), (2, vec![6, 0x2a, 9]), "CAPACITY DATA HAS CHANGED");
    }
    let mut header = Header::new(opcode::TASK_MANAGEMENT, 9).immediate();
    header.flags = 0x80 | 5;
    other.send(header, &[]);
    assert_eq!(other.receive().unwrap().0.opcode(), opcode::TASK_MANAGEMENT_RESPONSE);
    one.command(3, &[0; 16], 0, 0, &[]);
    assert_eq!(one.status(), (2, vec![6, 0x29, 3]), "BUS DEVICE RESET FUNCTION OCCURRED");
}

#[test]
fn session_has_what_its_target_is_once_others_know_of_the_session() {
    let (server, portal, device) = named(Some(Arc::new(MemoryDevice::new(SIZE))));
    let mut initiator = Initiator::login(&portal, &format!("{PREFIX}v.lun"), 1, false).unwrap();
    initiator.command(1, &transfer(0x2a, 0, 1), WRITES, 512, &[7; 512]);
    assert_eq!(initiator.status().0, 0);
    assert_eq!(device.read(0, 512).unwrap().to_vec(), [7; 512], "not what was there before it was known");
    assert_eq!(server.close_export("v.lun"), Ok(1));
}

#[test]
fn initiator_that_may_not_log_in_any_more_is_refused_at_the_end_of_its_login() {
    let secret = Credential { name: "me".to_owned(), secret: b"a-secret-of-17-by".to_vec() };
    let proof = Account { initiator: secret, target: None };
    // It was admitted by its first request, and then its owner changes the rules.
    for (said, status) in [(Err(LoginError::Forbidden), 0x0202), (Ok(Some(proof)), 0x0301)] {
        let (server, portal, _) = named_and_asked(None, vec![said, Ok(None)]);
        let refused = Initiator::login(&portal, &format!("{PREFIX}v.lun"), 1, false);
        assert_eq!(refused.err(), Some(status));
        eventually("it has no session", || server.sessions().is_empty());
    }
}

#[test]
fn command_that_does_not_say_that_it_sends_its_data_does_nothing() {
    let server = TestServer::plain();
    let mut initiator = login(&server, 1);
    let before = [7; 4096];
    initiator.command(1, &transfer(0x2a, 0, 8), WRITES, 4096, &before);
    assert_eq!(initiator.status().0, 0);
    let write_same = transfer(0x41, 0, 8);
    let mut compare_and_write = [0; 16];
    (compare_and_write[0], compare_and_write[13]) = (0x89, 1);
    // Compared with all data, and with one block of it for all.
    let verify = |bytes_check: u8| {
        let mut cdb = transfer(0x2f, 0, 8);
        cdb[1] = bytes_check << 1;
        cdb
    };
    for flags in [0, READS] {
        for (cdb, expected) in
            [(write_same, 512), (compare_and_write, 1024), (verify(1), 4096), (verify(3), 512)]
        {
            initiator.command(2, &cdb, flags, expected, &[]);
            assert_eq!(initiator.status(), (2, vec![5, 0x24, 0]), "{cdb:?}, {flags:#x}");
        }
    }
    initiator.command(3, &transfer(0x28, 0, 8), READS, 4096, &[]);
    assert_eq!(initiator.receive().unwrap().1, before);
}

/// Memory of which some is not mapped, in pieces of 512 bytes: each stretch's end, and whether it
/// is a hole.
struct Holes(MemoryDevice, [(u64, bool); 4]);

impl Device for Holes {
    fn geometry(&self) -> cairn_device::Geometry {
        self.0.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        self.0.run(batch);
    }

    fn extents(&self, offset: u64, _: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        let mut at = offset;
        let behind = self.1.iter().filter(|(end, _)| *end > offset);
        let extents = behind.map(|&(end, hole)| {
            let length = end - std::mem::replace(&mut at, end);
            Extent { length, hole, zero: hole }
        });
        Ok(extents.take(limit).collect())
    }
}

#[test]
fn block_that_is_mapped_in_part_is_told_as_mapped() {
    const BLOCK: u64 = 4096;
    // The first 512 bytes of block 0, the last ones of block 2, and all of block 3.
    let stretches = [(512, false), (3 * BLOCK - 512, true), (4 * BLOCK, false), (1 << 20, true)];
    let (_server, mut initiator) = through(Arc::new(Holes(MemoryDevice::new(1 << 20), stretches)));
    let mut status = |lba: u8| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[9], cdb[12]) = (0x9e, 0x12, lba, 4);
        initiator.command(1, &cdb, READS, 1024, &[]);
        let (_, data) = initiator.receive().unwrap();
        let descriptors =
            data[8..].chunks(16).map(|one| (one[7], u16::from_be_bytes([one[10], one[11]]), one[12]));
        descriptors.collect::<Vec<_>>()
    };
    // SBC-3, section 5.4.2: 0 is mapped, 1 deallocated, which reads as zeroes.
    assert_eq!(status(0), [(0, 1, 0), (1, 1, 1), (2, 2, 0), (4, 252, 1)]);
    assert_eq!(status(1), [(1, 1, 1), (2, 2, 0), (4, 252, 1)]);
    assert_eq!(status(4), [(4, 252, 1)]);
}

/// MODE SELECT (6) of the caching page: with a write cache or without.
fn set_write_cache(initiator: &mut Initiator, on: bool) {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[4]) = (0x15, 0x10, 24);
    let mut list = [0; 24];
    (list[4], list[5], list[6]) = (0x08, 18, if on { 0x04 } else { 0 });
    initiator.command(40, &cdb, WRITES, 24, &list);
    assert_eq!(initiator.status().0, 0);
}

#[test]
fn what_was_answered_with_a_write_cache_is_durable_once_a_reset_has_ended_that() {
    let device = Arc::new(FaultDevice::new(1 << 20));
    let (_server, mut initiator) = through(device.clone());
    set_write_cache(&mut initiator, true);
    initiator.command(1, &transfer(0x2a, 0, 1), WRITES, 4096, &[7; 4096]);
    assert_eq!(initiator.status().0, 0);
    let durable = || device.durable_snapshot().read(0, 4096).unwrap().to_vec();
    assert!(durable() == [0; 4096], "there is a cache");
    let mut reset = Header::new(opcode::TASK_MANAGEMENT, 9).immediate();
    reset.flags = 0x80 | 5;
    initiator.send(reset, &[]);
    let (done, _) = initiator.receive().unwrap();
    assert_eq!((done.opcode(), done.detail[0]), (opcode::TASK_MANAGEMENT_RESPONSE, 0));
    assert!(durable() == [7; 4096], "who reads that there is none flushes nothing");
}

#[test]
fn write_that_began_with_a_write_cache_is_durable_when_it_is_answered_without_one() {
    let device = Arc::new(FaultDevice::new(1 << 20));
    let (_server, mut initiator) = through(device.clone());
    // In pieces, and in one requested piece.
    for at_once in [64 << 10, 0] {
        set_write_cache(&mut initiator, true);
        let data = vec![at_once as u8 ^ 7; 128 << 10];
        initiator.command(1, &transfer(0x2a, 0, 32), WRITES, data.len() as u32, &data[..at_once]);
        let (asked, _) = initiator.receive().unwrap();
        assert_eq!((asked.opcode(), asked.word(5)), (opcode::R2T, at_once as u32));
        set_write_cache(&mut initiator, false);
        let header =
            Header::new(opcode::DATA_OUT, 1).with_word(0, asked.word(0)).with_word(5, at_once as u32);
        initiator.send(header, &data[at_once..]);
        assert_eq!(initiator.status().0, 0);
        assert!(device.durable_snapshot().read(0, data.len() as u32).unwrap().to_vec() == data);
    }
}

/// Sends the rest of a command's data as it is requested; returns how often that was, and the final
/// answer.
fn send_asked(initiator: &mut Initiator, tag: u32, data: &[u8]) -> (u32, harness::initiator::Said) {
    for times in 0.. {
        let (said, sense) = initiator.receive().unwrap();
        if said.opcode() != opcode::R2T {
            return (times, (said, sense));
        }
        let (offset, bytes) = (said.word(5), said.word(6));
        let header = Header::new(opcode::DATA_OUT, tag).with_word(0, said.word(0)).with_word(5, offset);
        // In segments as long as the target takes them.
        let pieces: Vec<&[u8]> = data[offset as usize..][..bytes as usize].chunks(256 << 10).collect();
        for (number, piece) in pieces.iter().enumerate() {
            let at = offset + ((256 << 10) * number) as u32;
            let mut header = header.with_word(4, number as u32).with_word(5, at);
            header.flags = if number + 1 == pieces.len() { 0x80 } else { 0 };
            initiator.send(header, piece);
        }
    }
    unreachable!()
}

#[test]
fn data_that_is_compared_or_ored_is_taken_in_pieces_and_not_held() {
    const BYTES: usize = 8 << 20;
    let server = TestServer::plain();
    let mut initiator = login(&server, 1);
    let blocks = (BYTES / 512) as u16;
    let mut data = vec![0; BYTES];
    Rng::new(5).fill(&mut data);
    let with = |code: u8, bytes_check: u8| {
        let mut cdb = transfer(code, 3, blocks);
        cdb[1] = bytes_check << 1;
        cdb
    };
    // WRITE AND VERIFY, at an odd place, with an odd length of unsolicited data.
    initiator.command(1, &with(0x2e, 0), WRITES, BYTES as u32, &data[..1000]);
    let (_, (said, _)) = send_asked(&mut initiator, 1, &data);
    assert_eq!((said.opcode(), said.detail[1], said.flags), (opcode::SCSI_RESPONSE, 0, 0x80));
    let device = server.targets.targets.lock()[0].1.device.clone();
    let there = || device.read(3 * 512, BYTES as u32).unwrap().to_vec();
    assert!(there() == data);
    // VERIFY with the same, and with one byte of another value: later data is not requested.
    initiator.command(2, &with(0x2f, 1), WRITES, BYTES as u32, &data[..1000]);
    let (all, (said, _)) = send_asked(&mut initiator, 2, &data);
    assert_eq!((said.opcode(), said.detail[1]), (opcode::SCSI_RESPONSE, 0));
    let mut other = data.clone();
    other[2_000_000] ^= 1;
    initiator.command(3, &with(0x2f, 1), WRITES, BYTES as u32, &[]);
    let (asked, (said, sense)) = send_asked(&mut initiator, 3, &other);
    assert_eq!((said.opcode(), said.detail[1], sense[2 + 2]), (opcode::SCSI_RESPONSE, 2, 0x0e), "MISCOMPARE");
    assert_eq!(sense[2 + 3..2 + 7], 2_000_000u32.to_be_bytes(), "where it is");
    assert!(asked < all, "{asked} of {all}");
    // ORWRITE (16).
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[12], cdb[13]) = (0x8b, 3, (blocks >> 8) as u8, blocks as u8);
    initiator.command(4, &cdb, WRITES, BYTES as u32, &other[..1000]);
    let (_, (said, _)) = send_asked(&mut initiator, 4, &other);
    assert_eq!((said.opcode(), said.detail[1]), (opcode::SCSI_RESPONSE, 0));
    data[2_000_000] |= 1;
    assert!(there() == data);
    assert!(initiator.is_served());
}

/// A command that is ordered among others (RFC 7143, section 11.3.1.1).
fn ordered(initiator: &mut Initiator, tag: u32, cdb: &[u8; 16], flags: u8, expected: u32, data: &[u8]) {
    initiator.command(tag, cdb, flags | 2, expected, data);
}

/// Sends the data of a write that the R2T requests.
fn send_rest(initiator: &mut Initiator, asked: &Header, byte: u8) {
    let header =
        Header::new(opcode::DATA_OUT, asked.tag()).with_word(0, asked.word(0)).with_word(5, asked.word(5));
    initiator.send(header, &vec![byte; asked.word(6) as usize]);
}

#[test]
fn ordered_command_waits_for_all_before_it_and_those_behind_it_for_its_end() {
    let server = TestServer::plain();
    let mut initiator = login(&server, 1);
    let (write, read) = (transfer(0x2a, 0, 8), transfer(0x28, 0, 8));
    // Of three writes one arrives whole; the first and the ordered one wait for their data.
    initiator.command(1, &write, WRITES, 4096, &[]);
    let (first, _) = initiator.receive().unwrap();
    assert_eq!((first.opcode(), first.tag()), (opcode::R2T, 1));
    ordered(&mut initiator, 2, &write, WRITES, 4096, &[2; 1000]);
    initiator.command(3, &read, READS, 4096, &[]);
    initiator.command(4, &write, WRITES, 4096, &[4; 4096]);
    ordered(&mut initiator, 5, &read, READS, 4096, &[]);
    initiator.command(6, &write, WRITES, 4096, &[6; 4096]);
    send_rest(&mut initiator, &first, 1);
    let (done, _) = initiator.receive().unwrap();
    assert_eq!((done.opcode(), done.tag()), (opcode::SCSI_RESPONSE, 1));
    let (second, _) = initiator.receive().unwrap();
    assert_eq!((second.opcode(), second.tag(), second.word(5)), (opcode::R2T, 2, 1000));
    send_rest(&mut initiator, &second, 2);
    let mut read = Vec::new();
    for _ in 0..5 {
        let (said, data) = initiator.receive().unwrap();
        match said.opcode() {
            opcode::DATA_IN => read.push((said.tag(), data)),
            _ => assert_eq!((said.opcode(), said.detail[1]), (opcode::SCSI_RESPONSE, 0)),
        }
    }
    // The read after the ordered write may come before or after the write beside it.
    assert_eq!(read[0].0, 3);
    assert!(
        read[0].1 == [&[2; 1000][..], &[2; 3096]].concat() || read[0].1 == [4; 4096],
        "{:?}",
        read[0].1[..8].to_vec()
    );
    assert_eq!(read[1], (5, vec![4; 4096]));
    initiator.command(7, &transfer(0x28, 0, 8), READS, 4096, &[]);
    assert_eq!(initiator.receive().unwrap().1, [6; 4096]);
}

#[test]
fn held_command_can_be_aborted_and_holds_up_nothing_then() {
    let server = TestServer::plain();
    let mut initiator = login(&server, 1);
    let write = transfer(0x2a, 0, 8);
    initiator.command(1, &write, WRITES, 4096, &[]);
    let (first, _) = initiator.receive().unwrap();
    ordered(&mut initiator, 2, &write, WRITES, 4096, &[2; 4096]);
    initiator.command(3, &transfer(0x28, 0, 8), READS, 4096, &[]);
    let mut abort = Header::new(opcode::TASK_MANAGEMENT, 9).immediate().with_word(0, 2);
    abort.flags = 0x80 | 1;
    initiator.send(abort, &[]);
    let said: Vec<(u8, u32)> = (0..2)
        .map(|_| {
            let (said, _) = initiator.receive().unwrap();
            (said.opcode(), said.tag())
        })
        .collect();
    assert_eq!(said, [(opcode::TASK_MANAGEMENT_RESPONSE, 9), (opcode::DATA_IN, 3)]);
    send_rest(&mut initiator, &first, 1);
    assert_eq!(initiator.status().0, 0);
    // The tag is free, and an ordered command that is done holds up none of its tag.
    for _ in 0..2 {
        ordered(&mut initiator, 2, &transfer(0x28, 0, 8), READS, 4096, &[]);
        assert_eq!(initiator.receive().unwrap().1, [1; 4096]);
    }
}

#[test]
fn data_that_comes_unasked_for_a_command_that_is_held_is_not_lost() {
    let server = TestServer::plain();
    // Data comes unasked, but not with its command.
    let keys = "InitialR2T=No\0ImmediateData=No\0";
    let mut initiator = Initiator::login_with(&server.portal, &format!("{PREFIX}v.plain"), 1, keys).unwrap();
    initiator.command(1, &transfer(0x2a, 100, 8), WRITES, 4096, &[]);
    let (first, _) = initiator.receive().unwrap();
    assert_eq!((first.opcode(), first.tag()), (opcode::R2T, 1));
    let mut header = Header::new(opcode::SCSI_COMMAND, 2).with_word(0, 8192).with_cdb(&transfer(0x2a, 0, 16));
    header.flags = WRITES | 2;
    initiator.send(header, &[]);
    let unasked = Header::new(opcode::DATA_OUT, 2).with_word(0, pdu::NO_TAG);
    initiator.send(unasked, &[5; 5000]);
    send_rest(&mut initiator, &first, 1);
    assert_eq!(initiator.status().0, 0);
    let (asked, _) = initiator.receive().unwrap();
    assert_eq!((asked.opcode(), asked.tag(), asked.word(5)), (opcode::R2T, 2, 5000));
    send_rest(&mut initiator, &asked, 6);
    assert_eq!(initiator.status().0, 0);
    initiator.command(3, &transfer(0x28, 0, 16), READS, 8192, &[]);
    assert_eq!(initiator.receive().unwrap().1, [&[5; 5000][..], &[6; 3192]].concat());
}

/// A text request; its whole answer, how many pieces that came in, and how long the longest was.
fn ask_text(initiator: &mut Initiator, text: &str) -> (String, usize, usize) {
    let (mut answer, mut pieces, mut longest) = (Vec::new(), 0, 0);
    let (mut transfer_tag, mut data) = (pdu::NO_TAG, text.as_bytes());
    loop {
        initiator.send(Header::new(opcode::TEXT, 3).with_word(0, transfer_tag), data);
        let (said, piece) = initiator.receive().unwrap();
        assert_eq!((said.opcode(), said.tag()), (opcode::TEXT_RESPONSE, 3));
        (pieces, longest) = (pieces + 1, longest.max(piece.len()));
        answer.extend_from_slice(&piece);
        if said.is_final() {
            assert_eq!((said.flags, said.word(0)), (0x80, pdu::NO_TAG));
            return (String::from_utf8(answer).unwrap(), pieces, longest);
        }
        assert_eq!(said.flags, 0x40, "more comes");
        (transfer_tag, data) = (said.word(0), &[]);
    }
}

#[test]
fn targets_are_named_to_those_who_may_use_them_in_pieces_that_they_take() {
    let server = TestServer::plain();
    let keys = "SessionType=Discovery\0MaxRecvDataSegmentLength=512\0";
    let mut discovery = Initiator::login_with(&server.portal, "", 1, keys).unwrap();
    let address = format!("TargetAddress={},1", server.portal);
    let named = |answer: &str| -> Vec<String> {
        let pairs: Vec<&str> = answer.split_terminator('\0').filter(|pair| !pair.starts_with("X-")).collect();
        pairs
            .chunks(2)
            .map(|pair| {
                assert_eq!(pair[1], address);
                pair[0].strip_prefix(&format!("TargetName={PREFIX}")).unwrap().to_owned()
            })
            .collect()
    };
    let unknown: String = (0..9).map(|number| format!("X-{number}=1\0")).collect();
    let (answer, pieces, longest) = ask_text(&mut discovery, &format!("SendTargets=All\0{unknown}"));
    assert_eq!(answer.matches("=NotUnderstood\0").count(), 9);
    assert!(pieces > 1 && longest <= 512, "{pieces} pieces, up to {longest} bytes");
    let all = ["v.plain", "v.large", "v.readonly", "v.removable", "v.chap", "v.mutual"];
    assert_eq!(named(&answer), all);
    let (answer, ..) = ask_text(&mut discovery, &format!("SendTargets={PREFIX}v.large\0"));
    assert_eq!(named(&answer), ["v.large"]);
    let (answer, ..) = ask_text(&mut discovery, &format!("SendTargets={PREFIX}v.private\0"));
    assert_eq!(answer, "", "it is for a friend");
    let (answer, ..) = ask_text(&mut discovery, "MaxRecvDataSegmentLength=8192\0");
    assert_eq!(answer, "");
    assert_eq!(
        ask_text(&mut discovery, &format!("SendTargets=All\0{unknown}")).1,
        1,
        "one piece is enough now"
    );
    discovery.command(4, &[0; 16], 0, 0, &[]);
    assert_eq!(discovery.status().0, 2, "there is no unit");
    let mut normal = login(&server, 2);
    assert_eq!(named(&ask_text(&mut normal, "SendTargets=\0").0), ["v.plain"]);
    assert_eq!(ask_text(&mut normal, &format!("SendTargets={PREFIX}v.large\0")).0, "");
}

#[test]
fn portal_for_all_addresses_tells_an_initiator_that_came_over_ipv4_an_address_of_that() {
    let Ok(listener) = Listener::bind("[::]:0") else {
        eprintln!("skipped: there is no IPv6 here");
        return;
    };
    let server =
        IscsiServer::start(vec![listener], Arc::new(TestTargets::new()), ServerOptions::default()).unwrap();
    let port = server.addresses()[0].rsplit(':').next().unwrap().to_owned();
    for host in ["127.0.0.1", "[::1]"] {
        let portal = format!("{host}:{port}");
        if std::net::TcpStream::connect(&portal).is_err() {
            eprintln!("skipped: {host} does not lead to it");
            continue;
        }
        let mut discovery = Initiator::login_with(&portal, "", 1, "SessionType=Discovery\0").unwrap();
        let (answer, ..) = ask_text(&mut discovery, "SendTargets=All\0");
        let addresses: Vec<&str> =
            answer.split_terminator('\0').filter_map(|pair| pair.strip_prefix("TargetAddress=")).collect();
        let told = format!("{portal},1");
        assert!(!addresses.is_empty() && addresses.iter().all(|address| *address == told), "{answer}");
    }
}

#[test]
fn cold_reset_ends_all_sessions_of_the_target_and_no_others() {
    let server = TestServer::plain();
    let (mut one, mut other) = (login(&server, 1), login(&server, 2));
    let mut elsewhere = Initiator::login(&server.portal, &format!("{PREFIX}v.large"), 3, false).unwrap();
    let mut reset = Header::new(opcode::TASK_MANAGEMENT, 9).immediate();
    reset.flags = 0x80 | 7;
    one.send(reset, &[]);
    let (done, _) = one.receive().unwrap();
    assert_eq!((done.opcode(), done.detail[0]), (opcode::TASK_MANAGEMENT_RESPONSE, 0));
    assert!(one.is_closed() && other.is_closed());
    assert!(elsewhere.is_served());
}

#[test]
fn what_a_session_held_is_free_once_its_logout_is_answered() {
    let server = TestServer::plain();
    let (mut one, mut other) = (login(&server, 1), login(&server, 2));
    let mut reserve = [0; 16];
    reserve[0] = 0x16;
    for tag in 0..20 {
        one.command(1, &reserve, 0, 0, &[]);
        assert_eq!(one.status().0, 0);
        other.command(tag, &[0; 16], 0, 0, &[]);
        assert_eq!(other.status().0, 0x18, "RESERVATION CONFLICT");
        let mut logout = Header::new(opcode::LOGOUT, 9);
        logout.flags = 0x80;
        one.send(logout, &[]);
        let (done, _) = one.receive().unwrap();
        assert_eq!((done.opcode(), done.detail[0]), (opcode::LOGOUT_RESPONSE, 0));
        other.command(tag, &[0; 16], 0, 0, &[]);
        assert_eq!(other.status().0, 0);
        one = login(&server, 1);
    }
}

#[test]
fn wrong_digest_of_a_header_ends_the_session_and_does_nothing() {
    let server = TestServer::plain();
    let mut initiator = Initiator::login(&server.portal, &format!("{PREFIX}v.plain"), 1, true).unwrap();
    let header = Header::new(opcode::SCSI_COMMAND, 2).with_word(0, 512).with_word(1, 1);
    let mut header = header.with_cdb(&transfer(0x2a, 0, 1));
    header.flags = 0x80 | WRITES;
    let mut bytes = Vec::new();
    pdu::put(&mut bytes, header, &[8; 512], true, true);
    bytes[48] ^= 1;
    initiator.stream.write_all(&bytes).unwrap();
    assert!(initiator.is_closed());
    let mut initiator = login(&server, 1);
    initiator.command(1, &transfer(0x28, 0, 1), READS, 512, &[]);
    assert_eq!(initiator.receive().unwrap().1, [0; 512]);
}

#[test]
fn initiator_that_wants_a_part_of_a_block_gets_that_and_hears_of_the_rest() {
    let (_server, mut initiator) = through(Arc::new(FaultDevice::new(1 << 20)));
    initiator.command(1, &transfer(0x2a, 0, 2), WRITES, 8192, &[7; 8192]);
    assert_eq!(initiator.status().0, 0);
    initiator.command(2, &transfer(0x28, 0, 2), READS, 5000, &[]);
    let (said, data) = initiator.receive().unwrap();
    assert_eq!(
        (said.opcode(), said.flags, said.word(6)),
        (opcode::DATA_IN, 0x85, 3192),
        "final, with status, overflow"
    );
    assert_eq!(data, [7; 5000]);
    initiator.command(3, &transfer(0x28, 0, 1), READS, 5000, &[]);
    let (said, data) = initiator.receive().unwrap();
    assert_eq!((said.flags, said.word(6), data.len()), (0x83, 904, 4096), "underflow");
}
