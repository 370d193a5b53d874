//! Handles, times, devices and kept replies.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use cairn_base::{FileId, VolumeId};
use cairn_proto_nfs::{DeviceNumbers, Handle, Time};
use proptest::prelude::*;

use crate::attributes::{device_number, ns, time};
use crate::handle::{FileRef, KEY_BYTES, Key, Keys, Where};
use crate::limits::{CLIENTS_KEPT, REPLIES_KEPT};
use crate::replies::{Claim, Replies};

fn keys(own: u8, earlier: &[u8]) -> Keys {
    let key = |byte: u8| Key::new([byte; KEY_BYTES]);
    Keys { own: key(own), earlier: earlier.iter().copied().map(key).collect() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn handle_is_read_as_it_was_made(
        volume in any::<[u8; 16]>(),
        (root, file, generation, tag) in any::<(u64, u64, u64, u64)>(),
    ) {
        for place in [Where::Present, Where::Snapshot(tag), Where::Snapshots] {
            let (volume, root, file) = (VolumeId(volume), FileId(root), FileId(file));
            let at = FileRef { volume, root, place, file, generation };
            let handle = at.seal(&keys(1, &[]).own);
            let read = FileRef::open(&handle).unwrap();
            prop_assert_eq!(read.claims(), (volume, root));
            prop_assert_eq!(read.verify(&keys(1, &[])), Some(at));
            prop_assert_eq!(read.verify(&keys(2, &[1])), Some(at));
            prop_assert_eq!(read.verify(&keys(2, &[3])), None);
        }
    }

    #[test]
    fn any_bytes_are_no_handle(bytes in proptest::collection::vec(any::<u8>(), 0..=64)) {
        let handle = Handle::new(&bytes).unwrap();
        prop_assert!(FileRef::open(&handle).and_then(|read| read.verify(&keys(1, &[2]))).is_none());
    }

    #[test]
    fn times_of_clients_are_kept(seconds in any::<u32>(), nanoseconds in 0u32..1_000_000_000) {
        let given = Time { seconds, nanoseconds };
        prop_assert_eq!(time(ns(given)), given);
    }
}

#[test]
fn times_outside_of_the_range_become_the_nearest() {
    assert_eq!(time(-1), Time::default());
    assert_eq!(time(i64::MAX).seconds, u32::MAX);
    assert_eq!(ns(Time { seconds: 1, nanoseconds: u32::MAX }), 1_999_999_999);
}

#[test]
fn numbers_of_devices_have_limits() {
    assert_eq!(device_number(DeviceNumbers { major: 8, minor: 1 }), Some(0x801));
    assert_eq!(device_number(DeviceNumbers { major: 1 << 12, minor: 0 }), None);
    assert_eq!(device_number(DeviceNumbers { major: 0, minor: 1 << 20 }), None);
}

fn address(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(number).into()
}

#[test]
fn kept_replies_are_bounded_and_those_of_one_client_push_out_no_others() {
    let replies = Arc::new(Replies::default());
    let done = |client: u32, xid: u32| match replies.claim(address(client), xid, b"record") {
        Claim::Mine(ticket) => {
            ticket.complete(b"reply");
            false
        }
        Claim::Done(reply) => &*reply == b"reply",
        Claim::Busy => panic!("nothing is being executed"),
    };
    assert!(!done(1, 1));
    for xid in 0..2 * REPLIES_KEPT as u32 {
        assert!(!done(2, xid));
    }
    assert!(done(1, 1));
    assert!(!done(2, 0));
    for client in 10..10 + 2 * CLIENTS_KEPT as u32 {
        assert!(!done(client, 1));
    }
    assert!(!done(1, 1));
}

#[test]
fn request_in_work_is_busy_and_forgotten_when_it_fails() {
    let replies = Arc::new(Replies::default());
    let Claim::Mine(ticket) = replies.claim(address(1), 1, b"record") else { panic!("it is new") };
    assert!(matches!(replies.claim(address(1), 1, b"record"), Claim::Busy));
    assert!(matches!(replies.claim(address(2), 1, b"record"), Claim::Mine(_)));
    assert!(matches!(replies.claim(address(1), 1, b"other"), Claim::Mine(_)));
    let waiting = {
        let replies = replies.clone();
        std::thread::spawn(move || matches!(replies.wait(address(1), 1, b"record"), Some(Claim::Mine(_))))
    };
    drop(ticket);
    assert!(waiting.join().unwrap());
}
