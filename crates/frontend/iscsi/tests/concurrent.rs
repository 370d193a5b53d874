//! Commands beside those of others: copies from one unit into another, and aborted tasks.
mod harness;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use cairn_base::Rng;
use cairn_device::{Device, Geometry, MemoryDevice, Operation, Request};
use cairn_frontend_iscsi::{
    Account, Credential, Export, IscsiServer, Listener, LoginError, OpenTargetError, ReservationState,
    ServerOptions, Targets,
};
use cairn_proto_iscsi::pdu::{self, Header, opcode};
use harness::initiator::{Initiator, transfer};
use harness::{PREFIX, SIZE};
use parking_lot::Mutex;

const READS: u8 = 0x40;
const WRITES: u8 = 0x20;
const BLOCK: usize = 512;
/// A forbidden event does not happen within this time.
const WHILE: Duration = Duration::from_millis(300);
/// The units' ids; the targets are `v.0` and `v.1`.
const IDS: [u64; 2] = [0x1234, 0x5678];

type Call = Box<dyn FnOnce() + Send>;

/// Calls a function after the first read, before that is answered, and before the first change;
/// reports changes. No operation completes at once; a function may be called where one could.
struct Watched {
    inner: MemoryDevice,
    length: AtomicU64,
    at_once: Mutex<Option<Call>>,
    behind_read: Mutex<Option<Call>>,
    before_changes: Mutex<VecDeque<Call>>,
    changed: Mutex<Option<Sender<()>>>,
}

impl Watched {
    fn new(content: u8) -> Arc<Self> {
        let inner = MemoryDevice::new(SIZE);
        inner.write_from(0, &[content; BLOCK]).unwrap();
        let (behind_read, before_changes) = (Mutex::default(), Mutex::default());
        let (at_once, changed) = (Mutex::default(), Mutex::default());
        let length = AtomicU64::new(SIZE);
        Arc::new(Self { inner, length, at_once, behind_read, before_changes, changed })
    }

    fn first(&self) -> Vec<u8> {
        self.inner.read(0, BLOCK as u32).unwrap().to_vec()
    }
}

impl Device for Watched {
    fn geometry(&self) -> Geometry {
        Geometry { length: self.length.load(Ordering::SeqCst), ..self.inner.geometry() }
    }

    fn run_ready(&self, _: &mut [Operation]) {
        let call = self.at_once.lock().take();
        call.into_iter().for_each(|call| call());
    }

    fn run(&self, batch: &mut [Operation]) {
        let any = |wanted: fn(&Request) -> bool| batch.iter().any(|operation| wanted(operation.request()));
        let reads = any(|request| matches!(request, Request::Read { .. }));
        let changes = any(|request| matches!(request, Request::Write { .. } | Request::WriteZeroes { .. }));
        if changes {
            let call = self.before_changes.lock().pop_front();
            call.into_iter().for_each(|call| call());
        }
        self.inner.run(batch);
        if changes && let Some(changed) = &*self.changed.lock() {
            let _ = changed.send(());
        }
        if reads {
            let call = self.behind_read.lock().take();
            call.into_iter().for_each(|call| call());
        }
    }
}

/// Two units, and the account that initiators of the second must prove from now on.
struct Two([Arc<Watched>; 2], Mutex<Option<Account>>);

impl Targets for Two {
    fn list(&self, _: &cairn_frontend_iscsi::Initiator) -> Vec<String> {
        (0..2).map(|index| format!("{PREFIX}v.{index}")).collect()
    }

    fn admit(
        &self,
        _: &cairn_frontend_iscsi::Initiator,
        target: &str,
    ) -> Result<Option<Account>, LoginError> {
        Ok(self.1.lock().clone().filter(|_| target.ends_with('1')))
    }

    fn open(&self, target: &str) -> Result<Export, OpenTargetError> {
        let index = usize::from(target.ends_with('1'));
        let name = format!("v/{index}");
        Ok(Export {
            name: name.clone(),
            unit: name,
            port: 1,
            ports: 1,
            device: self.0[index].clone(),
            id: IDS[index],
            read_only: false,
            block_bytes: BLOCK as u32,
            removable: false,
            write_cache: true,
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

/// A server of two units whose first blocks are all 1 and all 2, their devices, and a session of
/// each.
fn two() -> (IscsiServer, [Arc<Watched>; 2], [Initiator; 2]) {
    let (server, targets, initiators) = two_targets();
    (server, targets.0.clone(), initiators)
}

/// The same with its targets.
fn two_targets() -> (IscsiServer, Arc<Two>, [Initiator; 2]) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let targets = Arc::new(Two([Watched::new(1), Watched::new(2)], Mutex::default()));
    let server = IscsiServer::start(vec![listener], targets.clone(), ServerOptions::default()).unwrap();
    let portal = server.addresses()[0].clone();
    let log_in = |index| Initiator::login(&portal, &format!("{PREFIX}v.{index}"), 1, false).unwrap();
    let initiators = [log_in(0), log_in(1)];
    (server, targets, initiators)
}

/// Sends an EXTENDED COPY of the first block of unit `from` to that of unit `to`.
fn copy(initiator: &mut Initiator, from: usize, to: usize) {
    copy_blocks(initiator, from, to, 1);
}

/// Sends an EXTENDED COPY of the first blocks of unit `from` to those of unit `to` (SPC-4, section
/// 6.4).
fn copy_blocks(initiator: &mut Initiator, from: usize, to: usize, blocks: u16) {
    let mut list = vec![0; 16];
    list[1] = 3 << 3;
    list[3] = 64;
    list[11] = 28;
    for id in IDS {
        let mut target = [0; 32];
        target[..8].copy_from_slice(&[0xe4, 0, 0, 0, 1, 3, 0, 8]);
        target[8..16].copy_from_slice(&(3 << 60 | id).to_be_bytes());
        target[30] = (BLOCK >> 8) as u8;
        list.extend_from_slice(&target);
    }
    let mut segment = [0; 28];
    segment[..10].copy_from_slice(&[2, 0, 0, 24, 0, from as u8, 0, to as u8, 0, 0]);
    segment[10..12].copy_from_slice(&blocks.to_be_bytes());
    list.extend_from_slice(&segment);
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[13] = list.len() as u8;
    initiator.command(1, &cdb, WRITES, list.len() as u32, &list);
}

/// Sends a COMPARE AND WRITE of the first block.
fn compare_and_write(initiator: &mut Initiator, compared: u8, written: u8) {
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, 1);
    let data = [[compared; BLOCK], [written; BLOCK]].concat();
    initiator.command(2, &cdb, WRITES, data.len() as u32, &data);
}

/// Makes a device report when it was read, and answer when it was written, or a while later.
fn hold_read(device: &Watched) -> Receiver<()> {
    let (has_read, reads) = channel();
    let (has_changed, changes) = channel();
    *device.changed.lock() = Some(has_changed);
    *device.behind_read.lock() = Some(Box::new(move || {
        has_read.send(()).unwrap();
        let _ = changes.recv_timeout(WHILE);
    }));
    reads
}

#[test]
fn copy_into_another_unit_does_not_come_between_a_compare_and_its_write() {
    let (_server, devices, [mut copier, mut locker]) = two();
    let compared = hold_read(&devices[1]);
    compare_and_write(&mut locker, 2, 3);
    compared.recv().unwrap();
    copy(&mut copier, 0, 1);
    assert_eq!(locker.status().0, 0);
    assert_eq!(copier.status().0, 0);
    assert_eq!(devices[1].first(), [1; BLOCK], "what was compared was there until it was written");
}

#[test]
fn copies_in_opposite_directions_do_not_wait_for_each_other() {
    let (_server, devices, mut initiators) = two();
    let both = Arc::new(Barrier::new(2));
    for device in &devices {
        let both = Arc::clone(&both);
        *device.behind_read.lock() = Some(Box::new(move || {
            both.wait();
        }));
    }
    for (index, initiator) in initiators.iter_mut().enumerate() {
        copy(initiator, index, 1 - index);
    }
    for initiator in &mut initiators {
        assert_eq!(initiator.status().0, 0);
    }
    assert_eq!((devices[0].first(), devices[1].first()), (vec![2; BLOCK], vec![1; BLOCK]));
}

#[test]
fn copy_into_a_unit_that_is_reserved_or_takes_no_writes_is_refused() {
    let (_server, devices, [mut copier, mut other]) = two();
    let mut cdb = [0; 16];
    for opcode in [0x16, 0x17] {
        cdb[0] = opcode;
        other.command(1, &cdb, 0, 0, &[]);
        assert_eq!(other.status().0, 0, "RESERVE (6), RELEASE (6)");
        copy(&mut copier, 0, 1);
        let refused = (2, vec![0x0a, 0x0d, 0x02]);
        let expected = if opcode == 0x16 { refused } else { (0, Vec::new()) };
        assert_eq!(copier.status(), expected, "COPY TARGET DEVICE NOT REACHABLE");
    }
    // MODE SENSE (6) and MODE SELECT (6): the control page, with SWP.
    (cdb[0], cdb[1], cdb[2], cdb[4]) = (0x1a, 0x08, 0x0a, 255);
    other.command(1, &cdb, READS, 255, &[]);
    let (_, mut page) = other.receive().unwrap();
    (page[0], page[8]) = (0, page[8] | 0x08);
    (cdb[0], cdb[1], cdb[2], cdb[4]) = (0x15, 0x10, 0, page.len() as u8);
    devices[1].inner.write_from(0, &[9; BLOCK]).unwrap();
    other.command(1, &cdb, WRITES, page.len() as u32, &page);
    assert_eq!(other.status().0, 0);
    copy(&mut copier, 0, 1);
    assert_eq!(copier.status().0, 2);
    assert_eq!(devices[1].first(), [9; BLOCK]);
}

#[test]
fn copy_from_or_into_a_unit_that_wants_a_proof_is_refused() {
    let (_server, targets, [mut copier, mut other]) = two_targets();
    let secret = Credential { name: "me".to_owned(), secret: b"a-secret-of-17-by".to_vec() };
    *targets.1.lock() = Some(Account { initiator: secret, target: None });
    let refused = (2, vec![0x0a, 0x0d, 0x02]);
    for (from, to) in [(0, 1), (1, 0)] {
        copy(&mut copier, from, to);
        assert_eq!(copier.status(), refused, "COPY TARGET DEVICE NOT REACHABLE");
    }
    assert_eq!([0, 1].map(|index| targets.0[index].first()), [vec![1; BLOCK], vec![2; BLOCK]]);
    // An initiator logged in there copies within it, and to units that are open to all.
    copy(&mut other, 1, 0);
    assert_eq!(other.status().0, 0);
    assert_eq!(targets.0[0].first(), [2; BLOCK]);
}

#[test]
fn copy_goes_no_further_into_a_unit_that_somebody_reserves_meanwhile() {
    let (_server, devices, [mut copier, mut other]) = two();
    // More than one copy step; the last block shows it.
    let blocks: u16 = 5 << 11;
    let last = u64::from(blocks - 1) * BLOCK as u64;
    devices[1].inner.write_from(last, &[9; BLOCK]).unwrap();
    let (kept, reserver) = channel();
    *devices[0].behind_read.lock() = Some(Box::new(move || {
        other.command(1, &[0x16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, 0, &[]);
        assert_eq!(other.status().0, 0, "RESERVE (6)");
        // Its reservation ends with its session.
        kept.send(other).unwrap();
    }));
    copy_blocks(&mut copier, 0, 1, blocks);
    assert_eq!(copier.status(), (2, vec![0x0a, 0, 0]), "COPY ABORTED");
    drop(reserver);
    assert_eq!(devices[1].inner.read(last, BLOCK as u32).unwrap().to_vec(), [9; BLOCK]);
}

/// PERSISTENT RESERVE OUT; true when it is done.
fn reserve_out(initiator: &mut Initiator, action: u8, kind: u8, keys: (u64, u64)) -> bool {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, kind, 24);
    let parameters = [&keys.0.to_be_bytes()[..], &keys.1.to_be_bytes(), &[0; 8]].concat();
    initiator.command(1, &cdb, WRITES, 24, &parameters);
    initiator.status().0 == 0
}

/// A server, its second device, and two initiators that have registered there, the second of which
/// will end the tasks of the first.
fn fenced() -> (IscsiServer, Arc<Watched>, Initiator, Initiator) {
    let (server, [_, device], [_, mut fenced]) = two();
    let mut other = Initiator::login(&server.addresses()[0], &format!("{PREFIX}v.1"), 2, false).unwrap();
    assert!(reserve_out(&mut fenced, 0, 0, (0, 1)) && reserve_out(&mut other, 0, 0, (0, 2)), "REGISTER");
    (server, device, fenced, other)
}

/// Sends commands that write the first block in one step, each with its tag, its code and its
/// content.
fn write_all(initiator: &mut Initiator, commands: &[(u32, u8, u8)]) {
    let content = |content| vec![content; BLOCK];
    let commands =
        commands.iter().map(|&(tag, code, byte)| (tag, transfer(code, 0, 1), WRITES, content(byte)));
    send_all(initiator, &commands.collect::<Vec<_>>());
}

/// Sends commands in one go: tag, CDB, flags and data, which is as much as comes back.
fn send_all(initiator: &mut Initiator, commands: &[(u32, [u8; 16], u8, Vec<u8>)]) {
    let mut bytes = Vec::new();
    for (tag, cdb, flags, data) in commands {
        let header = Header::new(opcode::SCSI_COMMAND, *tag).with_word(0, BLOCK as u32);
        let mut header = header.with_word(1, initiator.command_number).with_cdb(cdb);
        header.flags = 0x80 | flags;
        pdu::put(&mut bytes, header, data, false, false);
        initiator.command_number += 1;
    }
    std::io::Write::write_all(&mut initiator.stream, &bytes).unwrap();
}

/// Writes the first block once PREEMPT AND ABORT is answered, past the waiting device, so that only
/// the fence orders it; then releases the waiting commands. The writes of `fenced` must not be
/// visible.
fn fence(device: &Watched, fenced: &mut Initiator, other: &mut Initiator, waits: &Sender<()>) {
    assert!(reserve_out(other, 5, 1, (2, 1)), "PREEMPT AND ABORT");
    device.inner.write_from(0, &[5; BLOCK]).unwrap();
    let _ = waits.send(());
    let _ = waits.send(());
    // It is there, and its begun commands are gone.
    fenced.command(77, &[0; 16], 0, 0, &[]);
    while fenced.receive().unwrap().0.tag() != 77 {}
    assert_eq!(device.first(), [5; BLOCK], "the write of the one who ended the tasks is the last");
}

#[test]
fn nothing_of_an_initiator_is_written_once_its_tasks_were_ended_by_another() {
    let (_server, device, mut first, mut other) = fenced();
    let (begins, has_begun) = channel();
    let (writes, has_written) = channel();
    let has_written = Arc::new(Mutex::new(has_written));
    let wait = || {
        let has_written = Arc::clone(&has_written);
        move || {
            let _ = has_written.lock().recv_timeout(WHILE);
        }
    };
    let (waits, next) = (wait(), wait());
    let begun = move || {
        begins.send(()).unwrap();
        waits();
    };
    *device.before_changes.lock() = VecDeque::from([Box::new(begun) as Call, Box::new(next)]);
    // A WRITE (10), followed by a WRITE SAME (10) with zeroes.
    write_all(&mut first, &[(5, 0x2a, 7), (6, 0x41, 0)]);
    has_begun.recv().unwrap();
    fence(&device, &mut first, &mut other, &writes);
}

#[test]
fn write_that_has_yet_to_be_done_is_not_done_once_its_task_was_ended_by_another() {
    let (_server, device, mut first, mut other) = fenced();
    let (begins, has_begun) = channel();
    let (writes, has_written) = channel();
    *device.at_once.lock() = Some(Box::new(move || {
        begins.send(()).unwrap();
        // Until the other one waits for this check of ready data to end.
        std::thread::sleep(WHILE);
    }));
    *device.before_changes.lock() = VecDeque::from([Box::new(move || {
        let _ = has_written.recv_timeout(WHILE);
    }) as Call]);
    write_all(&mut first, &[(5, 0x2a, 7)]);
    has_begun.recv().unwrap();
    fence(&device, &mut first, &mut other, &writes);
}

#[test]
fn status_of_blocks_that_have_gone_meanwhile_is_refused() {
    let (server, [device, _], [mut initiator, _]) = two();
    let mut other = Initiator::login(&server.addresses()[0], &format!("{PREFIX}v.0"), 2, false).unwrap();
    assert!(other.is_served(), "it has seen the size");
    let shrinks = Arc::clone(&device);
    *device.behind_read.lock() = Some(Box::new(move || {
        shrinks.length.store(SIZE / 2, Ordering::SeqCst);
        other.command(1, &[0; 16], 0, 0, &[]);
        assert_eq!(other.status(), (2, vec![6, 0x2a, 9]), "CAPACITY DATA HAS CHANGED");
    }));
    // GET LBA STATUS of a block of the second half, after a READ (10) of the same round.
    let mut status = [0; 16];
    (status[0], status[1], status[13]) = (0x9e, 0x12, 24);
    status[2..10].copy_from_slice(&(SIZE / BLOCK as u64 - 1).to_be_bytes());
    send_all(&mut initiator, &[(1, transfer(0x28, 0, 1), READS, vec![]), (2, status, READS, vec![])]);
    assert_eq!(initiator.receive().unwrap().1, [1; BLOCK]);
    assert_eq!(initiator.status(), (2, vec![5, 0x21, 0]), "LOGICAL BLOCK ADDRESS OUT OF RANGE");
}
