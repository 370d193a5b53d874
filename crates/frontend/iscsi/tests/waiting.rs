//! Commands that wait in their device: task management is answered at once, and an aborted command
//! never takes effect later.

#[allow(dead_code, reason = "this test program uses a part of it")]
#[path = "harness/initiator.rs"]
mod initiator;
#[path = "../../session/tests/devices/waiting.rs"]
mod waiting_device;

use std::sync::Arc;

use cairn_frontend_iscsi::{
    Account, Export, IscsiServer, Listener, LoginError, OpenTargetError, ReservationState, ServerOptions,
    Targets,
};
use cairn_proto_iscsi::pdu::{Header, opcode};
use initiator::{Initiator, transfer};
use waiting_device::{STALE, Waiting};

const TARGET: &str = "iqn.2026-11.io.cairn:v.lun";
const WRITES: u8 = 0x20;
const BLOCK: usize = 4096;
const COMPLETE: u8 = 0;
const REJECTED: u8 = 255;

struct One(Arc<Waiting>);

impl Targets for One {
    fn list(&self, _: &cairn_frontend_iscsi::Initiator) -> Vec<String> {
        vec![TARGET.to_owned()]
    }

    fn admit(&self, _: &cairn_frontend_iscsi::Initiator, _: &str) -> Result<Option<Account>, LoginError> {
        Ok(None)
    }

    fn open(&self, _: &str) -> Result<Export, OpenTargetError> {
        Ok(Export {
            name: "v/lun".to_owned(),
            unit: "v/lun".to_owned(),
            port: 1,
            ports: 1,
            device: self.0.clone(),
            id: 1,
            read_only: false,
            block_bytes: 512,
            removable: false,
            write_cache: true,
            reservations: ReservationState::default(),
        })
    }

    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(1);
    }

    fn keep(&self, _: &str, _: &ReservationState) -> Result<(), String> {
        Ok(())
    }
}

struct Served {
    server: IscsiServer,
    device: Arc<Waiting>,
}

impl Served {
    fn new(begun: bool) -> Self {
        let device = Waiting::new(1 << 20, begun);
        let listeners = vec![Listener::bind("127.0.0.1:0").unwrap()];
        let server =
            IscsiServer::start(listeners, Arc::new(One(device.clone())), ServerOptions::default()).unwrap();
        Self { server, device }
    }

    fn log_in(&self, isid: u8) -> Initiator {
        Initiator::login(&self.server.addresses()[0], TARGET, isid, false).unwrap()
    }

    /// A session whose write waits; its tag is 1.
    fn stale(&self, isid: u8) -> Initiator {
        let mut initiator = self.log_in(isid);
        write(&mut initiator, 1, STALE);
        self.device.until_waiting(1);
        initiator
    }
}

fn write(initiator: &mut Initiator, tag: u32, byte: u8) {
    initiator.command(tag, &transfer(0x2a, 0, 8), WRITES, BLOCK as u32, &[byte; BLOCK]);
}

/// The response of a task management function; `immediate` or in the order of commands.
fn manage(initiator: &mut Initiator, function: u8, immediate: bool) -> u8 {
    let header = Header::new(opcode::TASK_MANAGEMENT, 99).with_word(0, 1);
    let mut header = if immediate { header.immediate() } else { header };
    header.flags = 0x80 | function;
    initiator.send(header, &[]);
    let (said, _) = initiator.receive().expect("it is answered");
    assert_eq!((said.opcode(), said.tag()), (opcode::TASK_MANAGEMENT_RESPONSE, 99));
    said.detail[0]
}

/// Writes once the unit attention of a reset was received.
fn write_anew(initiator: &mut Initiator, byte: u8) {
    for tag in 10..13 {
        write(initiator, tag, byte);
        if initiator.status().0 == 0 {
            return;
        }
    }
    panic!("it is not served");
}

#[test]
fn task_management_is_answered_while_a_write_waits_and_that_never_comes_later() {
    // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET WARM RESET.
    for function in [1, 2, 4, 5, 6] {
        for immediate in [true, false] {
            let served = Served::new(false);
            let mut initiator = served.stale(1);
            // Commands after it, with data, precede the function in the stream.
            let ahead = 5;
            (2..2 + ahead).for_each(|tag| write(&mut initiator, tag, 1));
            assert_eq!(manage(&mut initiator, function, immediate), COMPLETE, "{function}");
            if function == 1 {
                let answered: Vec<u32> = (0..ahead).map(|_| initiator.receive().unwrap().0.tag()).collect();
                assert_eq!(answered, (2..2 + ahead).collect::<Vec<_>>(), "the others are done");
            }
            write_anew(&mut initiator, 9);
            served.device.open();
            assert_eq!(served.device.first_byte(), 9, "{function}");
        }
    }
}

#[test]
fn function_of_another_session_is_answered_while_a_write_waits() {
    for function in [4, 5, 6] {
        let served = Served::new(false);
        let _waits = served.stale(1);
        let mut other = served.log_in(2);
        assert_eq!(manage(&mut other, function, true), COMPLETE, "{function}");
        write_anew(&mut other, 9);
        served.device.open();
        assert_eq!(served.device.first_byte(), 9, "{function}");
    }
}

#[test]
fn write_that_has_begun_is_not_called_aborted_and_is_answered_when_it_is_done() {
    let served = Served::new(true);
    let mut initiator = served.stale(1);
    assert_eq!(manage(&mut initiator, 1, true), REJECTED);
    served.device.open();
    let (said, _) = initiator.receive().unwrap();
    assert_eq!((said.opcode(), said.tag(), said.detail[1]), (opcode::SCSI_RESPONSE, 1, 0));
    assert_eq!(served.device.first_byte(), STALE);
}

#[test]
fn pings_and_commands_without_data_are_answered_while_a_write_waits() {
    let served = Served::new(false);
    let mut initiator = served.stale(1);
    initiator.send(Header::new(opcode::NOP_OUT, 50).immediate().with_word(0, u32::MAX), b"ping");
    let (said, data) = initiator.receive().unwrap();
    assert_eq!((said.opcode(), said.tag(), &data[..]), (opcode::NOP_IN, 50, &b"ping"[..]));
    assert!(initiator.is_served(), "TEST UNIT READY");
    served.device.open();
    let (said, _) = initiator.receive().unwrap();
    assert_eq!((said.opcode(), said.tag()), (opcode::SCSI_RESPONSE, 1));
}

#[test]
fn session_that_takes_the_place_of_another_is_the_only_one_that_writes() {
    for closes in [false, true] {
        let served = Served::new(false);
        let older = served.stale(1);
        let kept = if closes { None } else { Some(older) };
        let mut initiator = served.log_in(1);
        write_anew(&mut initiator, 9);
        served.device.open();
        assert_eq!(served.device.first_byte(), 9);
        drop(kept);
    }
}

#[test]
fn logout_is_answered_while_a_write_waits_and_that_never_comes_later() {
    let served = Served::new(false);
    let mut initiator = served.stale(1);
    let mut header = Header::new(opcode::LOGOUT, 60).immediate();
    header.flags = 0x80;
    initiator.send(header, &[]);
    let (said, _) = initiator.receive().unwrap();
    assert_eq!((said.opcode(), said.detail[0]), (opcode::LOGOUT_RESPONSE, 0));
    served.device.open();
    assert_eq!(served.device.first_byte(), 0);
}

#[test]
fn closing_an_export_drops_what_waits_and_returns() {
    let served = Served::new(false);
    let initiator = served.stale(1);
    assert_eq!(served.server.close_export("v/lun"), Ok(1));
    served.device.open();
    assert_eq!(served.device.first_byte(), 0);
    drop(initiator);
}
