//! Counts of requests, failures and bytes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use cairn_base::{ManualClock, Timestamp};

use super::{Counted, Request, Tally};
use crate::memory::{Faults, Memory};
use crate::name::{Name, Prefix};
use crate::pause::Sleep;
use crate::store::{ListFrom, Nonce, Store};

#[test]
fn each_request_counts_once_and_a_missing_object_is_no_failure() {
    let tally = Arc::new(Tally::default());
    let memory = Arc::new(Memory::new(Arc::new(ManualClock::new(Timestamp(7))), Arc::new(Sleep::default())));
    let store = Counted::new(memory.clone(), tally.clone());
    let (name, never) = (Name::new("a").expect("a name"), AtomicBool::new(false));
    store.put_new(&name, Bytes::from_static(&[1; 100]), Nonce([1; 16]), &never).expect("put");
    assert_eq!(store.get(&name, 90, 100, &never).expect("read").len(), 10);
    store.list(&Prefix::new("").expect("a prefix"), &ListFrom::Start, 10, &never).expect("listed");
    store.delete(&name, &never).expect("deleted");
    assert!(store.head(&name, &never).expect_err("gone").is_missing());
    for kind in [Request::Put, Request::Get, Request::List, Request::Delete, Request::Head] {
        assert_eq!(tally.requests(kind), 1, "{kind:?}");
    }
    assert_eq!((tally.sent_bytes(), tally.received_bytes(), tally.failures()), (100, 10, 0));
    memory.set_faults(Faults { fails: 1, ..Faults::default() });
    store.head(&name, &never).expect_err("it fails");
    assert_eq!((tally.requests(Request::Head), tally.failures()), (2, 1));
}
