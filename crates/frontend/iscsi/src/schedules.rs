//! Schedules of sessions that log in, replace each other, go and are closed, explored:
//! `cargo test -p cairn-frontend-iscsi --features shuttle --lib schedules`.

mod units;

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::explored::explore;
use cairn_frontend_session::Socket;
use cairn_proto_iscsi::Identity;
use shuttle::thread;

use crate::registry::Registry;

/// Schedules of each scenario and kind of scheduler.
const SCHEDULES: usize = 500;

/// An initiator's session from beginning to end: it counts a few requests, or ends on request or
/// with its socket.
fn session(registry: &Registry, initiator: u64, using: &[AtomicU64; 2]) -> u64 {
    let (ours, _theirs) = UnixStream::pair().expect("a pair");
    let ours = Socket::from_unix(ours).expect("a socket");
    let peer = SocketAddr::from(([127, 0, 0, 1], 3260));
    let Some(entry) = registry.connected(peer, ours.another()) else { return 0 };
    let identity =
        Identity { initiator: initiator.to_string(), isid: [0; 6], target: Some("target".to_owned()) };
    let mut requests = 0;
    if registry.establish(&entry, &identity, Some("lun".to_owned()), 8).is_ok() {
        let users = using[initiator as usize].fetch_add(1, Ordering::SeqCst) + 1;
        assert_eq!(users, 1, "one session of a port and a target");
        while requests < 3 && !ours.is_gone() {
            entry.meter.taken(1);
            requests += 1;
            thread::yield_now();
        }
        using[initiator as usize].fetch_sub(1, Ordering::SeqCst);
    }
    registry.ended(entry.id);
    requests
}

/// Two sessions of one initiator, the later one of which replaces the other, and one of another;
/// then the server stops.
#[test]
fn session_replaces_only_one_that_is_over_and_nobody_comes_in_behind_a_stop_in_any_schedule() {
    explore(SCHEDULES, || {
        let registry = Arc::new(Registry::default());
        let using = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let sessions: Vec<_> = [0, 0, 1]
            .into_iter()
            .map(|initiator| {
                let (registry, using) = (registry.clone(), using.clone());
                thread::spawn(move || session(&registry, initiator, &using))
            })
            .collect();
        let before: Vec<u64> = registry.sessions().iter().map(|session| session.id).collect();
        registry.close_export("lun").expect("nothing hangs");
        assert!(!registry.sessions().iter().any(|session| before.contains(&session.id)), "they are gone");
        registry.stop();
        let counted = || registry.totals().get("lun").map_or(0, |totals| totals.requests);
        let then = counted();
        let requests: u64 = sessions.into_iter().map(|session| session.join().expect("it ends")).sum();
        assert_eq!(
            (then, counted()),
            (requests, requests),
            "all that was done was done before, and is counted once"
        );
    });
}
