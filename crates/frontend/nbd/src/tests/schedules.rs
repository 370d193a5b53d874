//! Schedules of sessions that come, go and are closed, explored:
//! `cargo test -p cairn-frontend-nbd --features shuttle --lib`.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::explored::explore;
use cairn_frontend_session::Socket;
use shuttle::thread;

use crate::listener::Peer;
use crate::registry::Registry;

/// Schedules of each scenario and kind of scheduler.
const SCHEDULES: usize = 500;

/// A client's session from beginning to end: it counts a few requests, or ends with its socket;
/// without an export if it was not admitted.
fn session(registry: &Registry, export: &str, sessions_max: usize, using: &AtomicU64) -> u64 {
    let (ours, _client) = UnixStream::pair().expect("a pair");
    let ours = Socket::from_unix(ours).expect("a socket");
    let peer = Peer { name: "unix".to_owned(), from: None, listener: 0 };
    let Some(entry) = registry.connected(peer, ours.another()) else {
        return 0;
    };
    let mut requests = 0;
    if registry.establish(&entry, export, false, sessions_max).is_ok() {
        let users = using.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(users <= sessions_max as u64, "no more than may be");
        while requests < 3 && !ours.is_gone() {
            entry.meter.taken(1);
            requests += 1;
            thread::yield_now();
        }
        using.fetch_sub(1, Ordering::SeqCst);
    }
    registry.ended(entry.id);
    requests
}

/// Three clients of one export, each on a thread that returns its count.
fn three(
    registry: &Arc<Registry>,
    sessions_max: usize,
    using: &Arc<AtomicU64>,
) -> Vec<thread::JoinHandle<u64>> {
    let begin = |_| {
        let (registry, using) = (registry.clone(), using.clone());
        thread::spawn(move || session(&registry, "lun", sessions_max, &using))
    };
    (0..3).map(begin).collect()
}

/// One export is closed while its sessions, and others, come and go: when that is answered the
/// sessions that it found are gone, and each request is counted once.
#[test]
fn closing_waits_for_all_sessions_and_no_request_is_lost_in_any_schedule() {
    explore(SCHEDULES, || {
        let (registry, using) = (Arc::new(Registry::default()), Arc::new(AtomicU64::new(0)));
        let sessions = three(&registry, 2, &using);
        let mut least = 0;
        for _ in 0..3 {
            let seen = registry.totals().get("lun").map_or(0, |totals| totals.requests);
            assert!(least <= seen, "{least} <= {seen}: nothing is counted twice or not at all");
            least = seen;
            thread::yield_now();
        }
        let before: Vec<u64> = registry.sessions().iter().map(|session| session.id).collect();
        registry.close_export("lun").expect("nothing hangs");
        assert!(!registry.sessions().iter().any(|session| before.contains(&session.id)), "they are gone");
        registry.stop();
        assert_eq!(using.load(Ordering::SeqCst), 0, "nobody uses anything");
        assert!(registry.sessions().is_empty());
        let requests: u64 = sessions.into_iter().map(|session| session.join().expect("it ends")).sum();
        assert_eq!(registry.totals().get("lun").map_or(0, |totals| totals.requests), requests);
    });
}

/// The server stops while clients connect.
#[test]
fn nobody_comes_in_once_the_server_has_stopped_in_any_schedule() {
    explore(SCHEDULES, || {
        let (registry, using) = (Arc::new(Registry::default()), Arc::new(AtomicU64::new(0)));
        let sessions = three(&registry, 3, &using);
        registry.stop();
        let counted = || registry.totals().get("lun").map_or(0, |totals| totals.requests);
        let then = counted();
        let requests: u64 = sessions.into_iter().map(|session| session.join().expect("it ends")).sum();
        assert_eq!((then, counted()), (requests, requests), "all that was done was done before");
    });
}
