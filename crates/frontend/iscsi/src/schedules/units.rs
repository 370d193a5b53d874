//! Sessions at one logical unit: aborts of others' tasks, reservations, and operations that are one
//! step among all writes.
//!
//! Initiators have sent all their commands before their session begins, so that no session waits
//! for a socket. Their answers are read when it is over.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_base::explored::explore;
use cairn_device::{Device, DeviceError, Extent, Gate, Geometry, MemoryDevice, Operation, Request};
use cairn_frontend_session::Socket;
use cairn_proto_iscsi::pdu::{self, HEADER_BYTES, Header, opcode, padding};
use cairn_proto_iscsi::scsi::{CopyList, CopySegment, CopyTarget, Medium};
use shuttle::thread;

use crate::execute::{CopyUnit, Place};
use crate::locks::{AtomicBool, Mutex};
use crate::pacer::Pacer;
use crate::registry::{Entry, Registry};
use crate::server::Shared;
use crate::units::{Attached, Units};
use crate::*;

/// Schedules of each scenario and kind of scheduler.
const SCHEDULES: usize = 1000;
const BLOCK: usize = 4096;
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const CONFLICT: u8 = 0x18;

/// A slow device that records its writes, in order: the first byte of each.
struct Recorded {
    inner: MemoryDevice,
    written: Mutex<Vec<u8>>,
}

impl Recorded {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: MemoryDevice::new(16 * BLOCK as u64), written: Mutex::default() })
    }
}

impl Device for Recorded {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            thread::yield_now();
            let mut written = self.written.lock();
            self.inner.run(std::slice::from_mut(operation));
            if let Request::Write { data, .. } = operation.request() {
                written.push(data.to_vec()[0]);
            }
        }
        thread::yield_now();
    }

    /// Nothing is in memory, and each call gives others a chance.
    fn run_ready(&self, _batch: &mut [Operation]) {
        thread::yield_now();
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.extents(offset, length, limit)
    }
}

/// One target that is open to all.
struct OneTarget {
    device: Arc<Recorded>,
    reservations: ReservationState,
    /// Each saved state, in order.
    kept: Mutex<Vec<ReservationState>>,
}

impl OneTarget {
    fn export(device: &Arc<Recorded>, id: u64, reservations: ReservationState) -> Export {
        Export {
            name: format!("v/{id}"),
            unit: format!("v/{id}"),
            port: 1,
            ports: 1,
            device: device.clone(),
            id,
            read_only: false,
            block_bytes: BLOCK as u32,
            removable: false,
            write_cache: true,
            reservations,
        }
    }
}

impl Targets for OneTarget {
    fn list(&self, _: &Initiator) -> Vec<String> {
        vec!["target".to_owned()]
    }

    fn admit(&self, _: &Initiator, _: &str) -> Result<Option<Account>, LoginError> {
        Ok(None)
    }

    fn open(&self, _: &str) -> Result<Export, OpenTargetError> {
        Ok(Self::export(&self.device, 1, self.reservations.clone()))
    }

    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(1);
    }

    fn keep(&self, _: &str, state: &ReservationState) -> Result<(), String> {
        thread::yield_now();
        self.kept.lock().push(state.clone());
        thread::yield_now();
        Ok(())
    }
}

fn server(reservations: ReservationState) -> (Arc<Shared>, Arc<OneTarget>) {
    let targets = OneTarget { device: Recorded::new(), reservations, kept: Mutex::default() };
    let targets = Arc::new(targets);
    let shared = Shared {
        targets: targets.clone(),
        options: ServerOptions::default(),
        registry: Registry::default(),
        units: Units::default(),
        windows: Arc::default(),
        pacer: Pacer::default(),
    };
    (Arc::new(shared), targets)
}

fn port(name: &str) -> String {
    format!("{name},i,0x800000010000")
}

/// Of both initiators, under the keys 1 and 2.
fn registered(reserved: Option<(u8, String)>, persists: bool) -> ReservationState {
    let registration = |name, key| Registration { port: port(name), key };
    let registrations = vec![registration("one", 1), registration("two", 2)];
    ReservationState { generation: 0, persists, registrations, reserved }
}

/// An initiator's script: commands with the tags 0, 1, 2 and so on.
struct Script {
    bytes: Vec<u8>,
    commands: u32,
}

impl Script {
    /// Logs in. The initiator's name is also that of its port.
    fn of(name: &str) -> Self {
        let mut header = Header::new(opcode::LOGIN, 1).immediate();
        header.flags = 0x87;
        header.lun = [0x80, 0, 0, 1, 0, 0, 0, 0];
        let text = format!("InitiatorName={name}\0TargetName=target\0");
        let mut bytes = Vec::new();
        pdu::put(&mut bytes, header, text.as_bytes(), false, false);
        Self { bytes, commands: 0 }
    }

    fn put(mut self, header: Header, data: &[u8]) -> Self {
        pdu::put(&mut self.bytes, header.with_word(1, self.commands), data, false, false);
        self.commands += 1;
        self
    }

    fn command(self, cdb: &[u8; 16], data: &[u8]) -> Self {
        let header = Header::new(opcode::SCSI_COMMAND, self.commands);
        let mut header = header.with_word(0, data.len() as u32).with_cdb(cdb);
        header.flags = if data.is_empty() { 0x80 } else { 0xa0 };
        self.put(header, data)
    }

    /// TEST UNIT READY.
    fn test(self) -> Self {
        self.command(&[0; 16], &[])
    }

    /// WRITE (10) of the first block.
    fn write(self, content: u8) -> Self {
        let mut cdb = [0; 16];
        (cdb[0], cdb[8]) = (0x2a, 1);
        self.command(&cdb, &[content; BLOCK])
    }

    /// COMPARE AND WRITE of the first block.
    fn compare_and_write(self, old: u8, new: u8) -> Self {
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x89, 1);
        self.command(&cdb, &[[old; BLOCK], [new; BLOCK]].concat())
    }

    /// PERSISTENT RESERVE OUT.
    fn reserve_out(self, action: u8, kind: u8, keys: (u64, u64), persists: bool) -> Self {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, kind, 24);
        let flags = [0, 0, 0, 0, u8::from(persists), 0, 0, 0];
        self.command(&cdb, &[&keys.0.to_be_bytes()[..], &keys.1.to_be_bytes(), &flags].concat())
    }

    /// LOGICAL UNIT RESET (5), CLEAR TASK SET (4).
    fn manage(self, function: u8) -> Self {
        let mut header = Header::new(opcode::TASK_MANAGEMENT, self.commands);
        header.flags = 0x80 | function;
        self.put(header, &[])
    }

    /// Starts the session; joining it gives for each command how it was answered, if it was.
    fn run(self, shared: &Arc<Shared>) -> (Arc<Entry>, thread::JoinHandle<Vec<Option<u8>>>) {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        theirs.write_all(&self.bytes).expect("it fits");
        theirs.shutdown(std::net::Shutdown::Write).expect("it ends");
        let ours = Arc::new(Socket::from_unix(ours).expect("a socket"));
        let peer = SocketAddr::from(([127, 0, 0, 1], 3260));
        let entry = shared.registry.connected(peer, ours.another()).expect("it runs");
        let (shared, connection, commands) = (shared.clone(), entry.clone(), self.commands);
        let thread = thread::spawn(move || {
            assert!(crate::session::run(&shared, &connection, &ours).is_ok(), "it says good-bye");
            shared.registry.ended(connection.id);
            ours.close();
            answers(theirs, commands)
        });
        (entry, thread)
    }
}

fn answers(mut from: UnixStream, commands: u32) -> Vec<Option<u8>> {
    let mut statuses = vec![None; commands as usize];
    let mut bytes = [0; HEADER_BYTES];
    while from.read_exact(&mut bytes).is_ok() {
        let header = Header::parse(&bytes).expect("a header");
        let length = header.data_bytes() as usize;
        from.read_exact(&mut vec![0; length + padding(length)]).expect("its data");
        let status = match header.opcode() {
            opcode::LOGIN_RESPONSE => continue,
            opcode::SCSI_RESPONSE => header.detail[1],
            opcode::TASK_MANAGEMENT_RESPONSE => header.detail[0],
            other => panic!("{other:#x}"),
        };
        let before = statuses[header.tag() as usize].replace(status);
        assert_eq!(before, None, "a command is answered once");
    }
    statuses
}

/// How the tasks of another session are ended.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fence {
    Reset,
    Clear,
    /// PREEMPT AND ABORT that takes the reservation over, with or without saving it.
    Preempt {
        persists: bool,
    },
    /// PREEMPT AND ABORT of a registration; nothing is reserved.
    Unregister,
}

/// One writes; another aborts its tasks and then writes itself. Until the first one learns of it,
/// none of its earlier commands is written after that, answered or not. From then on it is served
/// like a new one, or refused.
fn fence_is_the_last_word(fence: Fence) {
    const LAST: u8 = 9;
    explore(SCHEDULES, move || {
        let reserved = matches!(fence, Fence::Preempt { .. }).then(|| (1, port("one")));
        let persists = fence == Fence::Preempt { persists: true };
        let (shared, targets) = server(registered(reserved, persists));
        let (entry, fenced) = Script::of("one").test().write(1).write(2).write(3).run(&shared);
        // It has a place at the unit when it has taken a command.
        while entry.meter.totals().requests == 0 {
            thread::yield_now();
        }
        let other = Script::of("two").test();
        let other = match fence {
            Fence::Reset => other.manage(5).test(),
            Fence::Clear => other.manage(4),
            _ => other.reserve_out(5, 1, (2, 1), persists),
        };
        let (_, other) = other.write(LAST).run(&shared);
        let other = other.join().expect("it ends");
        let fenced = fenced.join().expect("it ends");
        let written = targets.device.written.lock().clone();
        let last = written.iter().position(|content| *content == LAST).expect("it is written");
        let place = |content: u8| written.iter().position(|written| *written == content);
        let what = || format!("{fence:?}: {fenced:?} {other:?} {written:?}");
        // The other one gets nothing but its own unit attention of a reset.
        assert!(other.iter().all(|status| *status == Some(GOOD) || fence == Fence::Reset), "{}", what());
        assert_eq!(other.last(), Some(&Some(GOOD)), "{}", what());
        let heard = fenced.iter().position(|status| matches!(status, Some(CHECK_CONDITION | CONFLICT)));
        let heard = heard.unwrap_or(fenced.len());
        for (command, status) in fenced.iter().enumerate().skip(1) {
            let place = place(command as u8);
            if command < heard {
                assert!(place.is_none_or(|place| place < last), "behind the fence: {}", what());
                assert!(status.is_none() || place.is_some(), "answered and not done: {}", what());
            } else if command == heard {
                assert_eq!(place, None, "refused and done: {}", what());
            } else if matches!(fence, Fence::Preempt { .. }) {
                assert!(matches!(status, Some(CHECK_CONDITION | CONFLICT)) && place.is_none(), "{}", what());
            } else {
                assert!(*status == Some(GOOD) && place.is_some(), "it is served again: {}", what());
            }
        }
    });
}

#[test]
fn nothing_from_before_a_reset_is_written_behind_it_and_all_from_after_is_answered_in_any_schedule() {
    fence_is_the_last_word(Fence::Reset);
    fence_is_the_last_word(Fence::Clear);
}

#[test]
fn nothing_of_a_session_is_written_behind_the_preempt_and_abort_that_ended_it_in_any_schedule() {
    fence_is_the_last_word(Fence::Preempt { persists: false });
    fence_is_the_last_word(Fence::Preempt { persists: true });
    fence_is_the_last_word(Fence::Unregister);
}

/// A copy's writes to another unit belong to its own session: a session that aborts that session's
/// tasks, and writes there once that is answered, is the last.
#[test]
fn nothing_is_copied_behind_the_end_of_the_tasks_in_any_schedule() {
    const COPIED: u8 = 1;
    const LAST: u8 = 9;
    explore(SCHEDULES, || {
        let units = Arc::new(Units::default());
        let devices = [Recorded::new(), Recorded::new()];
        devices[0].inner.write_from(0, &[COPIED; 2 * BLOCK]).expect("it is written");
        let export = |id: u64| OneTarget::export(&devices[id as usize], id, ReservationState::default());
        let gate = Gate::new(Box::new(|_| false));
        let attached = Arc::new(units.attach("target".to_owned(), &export(0), &port("one"), &gate));
        let found = |id: u64| CopyUnit {
            unit: units.of(&export(id)),
            device: devices[id as usize].clone(),
            block_bytes: BLOCK as u32,
            read_only: false,
        };
        let (source, destination) = (found(0), found(1));
        let own: Arc<Attached> = attached.clone();
        let ticket = gate.ticket(1);
        let copier = thread::spawn(move || {
            let target = |id| CopyTarget { designator: vec![id], block_bytes: BLOCK as u32 };
            let segment = |lba| CopySegment {
                source: 0,
                destination: 1,
                blocks: 1,
                counts_destination: false,
                source_lba: lba,
                destination_lba: lba,
            };
            let list = CopyList {
                list: None,
                targets: vec![target(0), target(1)],
                segments: vec![segment(0), segment(1)],
            };
            let resolve = |designator: &[u8]| {
                Some(if designator == [0] { source.clone() } else { destination.clone() })
            };
            let place = Place {
                device: &*source.device,
                unit: &own.unit,
                block_bytes: BLOCK as u32,
                writes_through: false,
                ticket: &ticket,
                resolve: &resolve,
            };
            let _ = place.run(&Medium::Copy(list), &cairn_device::Segments::default(), 0);
        });
        assert!(attached.unit.reset());
        devices[1].write_from(0, &[LAST; BLOCK]).expect("it is written");
        copier.join().expect("it ends");
        let written = devices[1].written.lock().clone();
        assert_eq!(written.last(), Some(&LAST), "{written:?}");
    });
}

/// Two compare and write, a third one writes: the one that finds the expected content is the first
/// to change it.
#[test]
fn compare_and_write_is_one_step_among_all_writes_in_any_schedule() {
    explore(SCHEDULES, || {
        let (shared, targets) = server(ReservationState::default());
        let sessions = [
            Script::of("one").compare_and_write(0, 1).run(&shared).1,
            Script::of("two").compare_and_write(0, 2).run(&shared).1,
            Script::of("three").write(3).run(&shared).1,
        ];
        let answers: Vec<_> = sessions.map(|session| session.join().expect("it ends")[0]).to_vec();
        let written = targets.device.written.lock().clone();
        let mut expected = Vec::new();
        for (content, answer) in (1..).zip(&answers) {
            let place = written.iter().position(|written| *written == content);
            assert_eq!(*answer == Some(GOOD), place.is_some(), "{answers:?} {written:?}");
            expected.extend(place.filter(|_| content < 3));
        }
        assert!(expected.iter().all(|place| *place == 0), "{answers:?} {written:?}");
        assert_eq!(answers[2], Some(GOOD));
    });
}

/// Two register at once: the last saved state is the valid one.
#[test]
fn reservations_that_are_kept_are_those_that_hold_in_any_schedule() {
    explore(SCHEDULES, || {
        let (shared, targets) = server(ReservationState::default());
        let sessions = [("one", 1), ("two", 2)]
            .map(|(name, key)| Script::of(name).reserve_out(0, 0, (0, key), true).run(&shared).1);
        for session in sessions {
            assert_eq!(session.join().expect("it ends"), [Some(GOOD)]);
        }
        let export = targets.open("target").expect("it is there");
        let held = shared.units.of(&export).state.lock().reservations().clone();
        assert_eq!(held.registrations.len(), 2, "{held:?}");
        assert_eq!(targets.kept.lock().last(), Some(&held));
    });
}

/// Others come, abort all tasks and leave: one disk is one unit for all of them, each waits for the
/// write in progress, and none waits for ever.
#[test]
fn sessions_that_end_tasks_come_and_go_and_wait_for_the_write_under_way_in_any_schedule() {
    explore(SCHEDULES, || {
        let units = Arc::new(Units::default());
        let device = Recorded::new();
        let export = OneTarget::export(&device, 1, ReservationState::default());
        let gate = Gate::new(Box::new(|_| false));
        let attached = Arc::new(units.attach("target".to_owned(), &export, &port("one"), &gate));
        let writing = Arc::new(AtomicBool::new(false));
        let (ticket, going) = (gate.ticket(1), writing.clone());
        let writer = thread::spawn(move || {
            for _ in 0..3 {
                let Ok(_pass) = ticket.begin() else { break };
                going.store(true, Ordering::SeqCst);
                thread::yield_now();
                going.store(false, Ordering::SeqCst);
            }
        });
        let (other, ends) = (attached.clone(), units.clone());
        let leaver = thread::spawn(move || {
            let export = OneTarget::export(&Recorded::new(), 1, ReservationState::default());
            let second =
                ends.attach("target".to_owned(), &export, &port("two"), &Gate::new(Box::new(|_| false)));
            assert!(Arc::ptr_eq(&second.unit, &other.unit), "one disk, one unit");
            assert!(second.unit.reset());
        });
        assert!(attached.unit.reset());
        assert!(!writing.load(Ordering::SeqCst), "a write under way is waited for");
        writer.join().expect("it ends");
        leaver.join().expect("it ends");
    });
}
