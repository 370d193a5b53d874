use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::{Device, MemoryDevice, Segments};

const LONG: Duration = Duration::from_secs(60);

fn gate() -> Arc<Gate> {
    Gate::new(Box::new(|_| false))
}

fn write(gate: &Arc<Gate>, tag: u32) -> Operation {
    Operation::write(0, Segments::copy_of(&[tag as u8; 4096])).of(gate.ticket(tag))
}

fn in_time() -> Instant {
    Instant::now() + LONG
}

#[test]
fn what_waits_is_dropped_by_a_withdrawal_and_what_has_begun_is_waited_for() {
    let gate = gate();
    let mut batch = [write(&gate, 1), write(&gate, 2)];
    admit(&mut batch);
    assert!(!gate.is_quiet(), "a device that knows no tickets may change bytes at any moment");
    batch[1].park();
    gate.withdraw_all();
    assert!(!gate.wait(Instant::now()), "the first one has begun");
    assert!(gate.wait_for(2, Instant::now()), "the second one has not");
    assert!(!batch[1].resume() && !batch[1].is_pending(), "and does not any more");
    batch[0].succeed();
    assert!(gate.wait(in_time()));
    let [first, second] = batch;
    assert!(first.into_outcome().is_ok());
    assert!(matches!(second.into_outcome(), Err(DeviceError::Withdrawn)));
}

#[test]
fn withdrawal_of_a_tag_concerns_no_other_and_ends_when_it_is_forgotten() {
    let gate = gate();
    gate.withdraw(1);
    assert!(gate.ticket(1).begin().is_err() && gate.ticket(2).begin().is_ok());
    gate.forget_withdrawn();
    assert!(gate.ticket(1).begin().is_ok());
    let before = gate.ticket(1);
    gate.withdraw_all();
    assert!(before.begin().is_err() && gate.ticket(1).begin().is_ok(), "what comes later begins");
    gate.close();
    assert!(gate.ticket(1).begin().is_err());
}

#[test]
fn nothing_begins_once_its_client_has_gone() {
    let gone = Arc::new(AtomicBool::new(false));
    let seen = gone.clone();
    let gate = Gate::new(Box::new(move |_| seen.load(Ordering::Acquire)));
    let ticket = gate.ticket(1);
    assert!(!ticket.is_withdrawn() && ticket.begin().is_ok());
    gone.store(true, Ordering::Release);
    assert!(ticket.is_withdrawn() && ticket.begin().is_err());
    gone.store(false, Ordering::Release);
    assert!(
        gate.is_closed() && ticket.begin().is_err(),
        "a client does not come back by the same connection"
    );
}

#[test]
fn reads_and_flushes_need_no_ticket_and_leave_nothing_under_way() {
    let gate = gate();
    gate.close();
    let mut batch = [Operation::read(0, 4096).of(gate.ticket(1)), Operation::flush().of(gate.ticket(1))];
    admit(&mut batch);
    assert!(gate.is_quiet());
    let device = MemoryDevice::new(4096);
    device.run(&mut batch);
    assert!(batch.into_iter().all(|operation| operation.into_outcome().is_ok()));
}

#[test]
fn operation_that_is_dropped_in_a_panic_leaves_nothing_under_way() {
    let gate = gate();
    let mut operation = write(&gate, 1);
    assert!(operation.resume() && !gate.is_quiet());
    drop(operation);
    assert!(gate.is_quiet());
}

#[test]
fn client_that_only_sends_no_more_is_gone_for_what_had_to_wait() {
    let gate = Gate::new(Box::new(|waited| waited));
    let ticket = gate.ticket(1);
    assert!(ticket.begin().is_ok(), "it may still read the answer");
    assert!(Ticket::begin_late(Some(&ticket)).is_err());
    assert!(ticket.begin().is_err(), "and for all that comes after that");
}

#[test]
fn change_that_was_parked_and_resumed_counts_as_one_that_waited() {
    let gate = Gate::new(Box::new(|waited| waited));
    let mut operation = write(&gate, 1);
    operation.park();
    assert!(!operation.resume() && !operation.is_pending());
}
