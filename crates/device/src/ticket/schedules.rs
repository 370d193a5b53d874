//! Schedules of writes that wait while their session is closed, explored:
//! `cargo test -p cairn-device --features shuttle --lib schedules`.

use std::time::{Duration, Instant};

use cairn_base::explored::{Mutex, explore};
use shuttle::thread;

use super::*;
use crate::Segments;

/// Schedules of each kind of scheduler.
const SCHEDULES: usize = 1000;

/// Three writes wait, each begins when it can, one command is aborted, then the session is closed,
/// and then a newer write is acknowledged. No byte of theirs comes after that. A withdrawal that
/// found nothing in progress ended the requests that it withdrew.
#[test]
fn no_withdrawn_write_comes_after_a_newer_one_that_was_acknowledged_in_any_schedule() {
    explore(SCHEDULES, || {
        let gate = Gate::new(Box::new(|_| false));
        let content = Arc::new(Mutex::new(0));
        let sessions: Vec<_> = (1..=3)
            .map(|tag| {
                let (content, ticket) = (content.clone(), gate.ticket(tag));
                thread::spawn(move || {
                    let data = Segments::copy_of(&[0; 4096]);
                    let mut operation = Operation::write(0, data).of(ticket);
                    admit(std::slice::from_mut(&mut operation));
                    if !operation.is_pending() {
                        return;
                    }
                    operation.park();
                    thread::yield_now();
                    let mut content = content.lock();
                    if operation.resume() {
                        *content = tag;
                        drop(content);
                        operation.succeed();
                    }
                })
            })
            .collect();
        let deadline = Instant::now() + Duration::from_secs(60);
        gate.withdraw(1);
        assert!(gate.wait_for(1, deadline));
        let had_first = *content.lock() == 1;
        thread::yield_now();
        assert!(had_first || *content.lock() != 1, "an aborted write comes no more");
        gate.close();
        assert!(gate.wait(deadline));
        *content.lock() = 9;
        sessions.into_iter().for_each(|session| session.join().expect("it ends"));
        assert_eq!(*content.lock(), 9);
    });
}
