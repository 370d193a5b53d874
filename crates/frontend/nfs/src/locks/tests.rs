//! The table of locks against a model that has an entry for each byte, and its limits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use cairn_base::{FileId, VolumeId};
use cairn_proto_nfs::nlm::{LockStatus, Rights};
use proptest::collection::vec;
use proptest::prelude::*;

use super::host::{LockHost, Owner};
use super::ranges::Range;
use super::table::{FileKey, Grant, Table, Wanted};
use crate::handle::{FileRef, Where};
use crate::limits::{LOCK_BYTES, LOCK_BYTES_OF_HOST};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// Bytes that the model has entries for; the last one represents all after it.
const BYTES: u64 = 40;

fn host(number: u32) -> LockHost {
    LockHost { address: HERE, name: format!("host{number}") }
}

/// Owners of two hosts.
fn owner(number: u32) -> Arc<Owner> {
    Arc::new(Owner { host: host(number % 2), process: number, bytes: vec![number as u8; 3] })
}

fn file(number: u64) -> FileKey {
    let volume = VolumeId([1; 16]);
    FileRef { volume, root: FileId(1), place: Where::Present, file: FileId(number), generation: 1 }.into()
}

fn wanted(file_number: u64, by: u32, offset: u64, length: u64, exclusive: bool) -> Wanted {
    let range = Range::new(offset, length).unwrap();
    Wanted { file: file(file_number), owner: owner(by), range, exclusive }
}

fn grant(wanted: Wanted) -> Grant {
    Grant { wanted, handle: Vec::new(), server: HERE }
}

/// A request as the model has it: file, owner, first and last byte, kind.
type Plain = (u64, u32, u64, u64, bool);

/// Locks byte by byte.
#[derive(Default)]
struct Model {
    /// By file, byte and owner: whether it is exclusive.
    bytes: BTreeMap<(u64, u64, u32), bool>,
    waiting: Vec<Plain>,
    /// With the bytes that the owner had in the range before.
    granted: Vec<(Plain, Vec<(u64, bool)>)>,
}

impl Model {
    fn conflicts(&self, (file, by, first, last, exclusive): Plain) -> Vec<u32> {
        let is_in_the_way = |((of, byte, owner), kind): (&(u64, u64, u32), &bool)| {
            (*of == file && (first..=last).contains(byte) && *owner != by && (exclusive || *kind))
                .then_some(*owner)
        };
        self.bytes.iter().filter_map(is_in_the_way).collect()
    }

    fn set(&mut self, (file, by, first, last, _): Plain, kind: Option<bool>) {
        for byte in first..=last {
            match kind {
                Some(kind) => _ = self.bytes.insert((file, byte, by), kind),
                None => _ = self.bytes.remove(&(file, byte, by)),
            }
        }
    }

    /// Whether one that is in the way of a request waits, maybe through others, for its owner.
    fn waits_for_itself(&self, plain: Plain) -> bool {
        let (mut next, mut seen) = (vec![plain], Vec::new());
        while let Some(wait) = next.pop() {
            for other in self.conflicts(wait) {
                if other == plain.1 {
                    return true;
                }
                if !seen.contains(&other) {
                    seen.push(other);
                    next.extend(self.waiting.iter().filter(|wait| wait.1 == other));
                }
            }
        }
        false
    }

    fn lock(&mut self, plain: Plain, block: bool) -> LockStatus {
        if self.conflicts(plain).is_empty() {
            self.waiting.retain(|other| *other != plain);
            self.set(plain, Some(plain.4));
            self.know(plain);
            self.wake();
            LockStatus::Granted
        } else if !block {
            LockStatus::Denied
        } else if self.waits_for_itself(plain) {
            LockStatus::Deadlock
        } else {
            self.waiting.retain(|other| *other != plain);
            self.waiting.push(plain);
            LockStatus::Blocked
        }
    }

    fn wake(&mut self) {
        while let Some(place) = self.waiting.iter().position(|wait| self.conflicts(*wait).is_empty()) {
            let plain = self.waiting.remove(place);
            let (file, by, first, last, _) = plain;
            let had = |byte| self.bytes.get(&(file, byte, by)).map(|kind| (byte, *kind));
            let before = (first..=last).filter_map(had).collect();
            self.set(plain, Some(plain.4));
            self.granted.push((plain, before));
        }
    }

    /// The owner has learned of its grants in a range.
    fn know(&mut self, plain: Plain) {
        let meets = |other: &Plain| {
            (other.0, other.1) == (plain.0, plain.1) && other.2 <= plain.3 && plain.2 <= other.3
        };
        self.granted.retain(|(other, _)| !meets(other));
    }

    fn decline(&mut self, place: usize) {
        let (plain, before) = self.granted.remove(place);
        self.set(plain, None);
        // Neighbours that were one lock are exclusive together, or not at all.
        for part in before.chunk_by(|one, next| one.0 + 1 == next.0 && one.1 == next.1) {
            let (first, last) = (part[0].0, part[part.len() - 1].0);
            let lock = (plain.0, plain.1, first, last, true);
            let exclusive = part[0].1 && self.conflicts(lock).is_empty();
            self.set(lock, Some(exclusive));
        }
        self.wake();
    }

    fn unlock(&mut self, plain: Plain) {
        self.set(plain, None);
        self.know(plain);
        self.wake();
    }

    fn free(&mut self, host: u32) {
        self.bytes.retain(|(_, _, owner), _| owner % 2 != host);
        self.waiting.retain(|wait| wait.1 % 2 != host);
        self.granted.retain(|(wait, _)| wait.1 % 2 != host);
        self.wake();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Lock(Plain, bool),
    Unlock(Plain),
    Cancel(Plain),
    Free(u32),
    /// Answers the first unconfirmed grant.
    Answer(bool),
}

fn plain() -> impl Strategy<Value = Plain> {
    let range = prop_oneof![
        (0..BYTES - 8, 1..8u64).prop_map(|(first, count)| (first, first + count - 1)),
        (0..BYTES).prop_map(|first| (first, BYTES)),
    ];
    (0..2u64, 0..5u32, range, any::<bool>())
        .prop_map(|(file, by, (first, last), exclusive)| (file, by, first, last, exclusive))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (plain(), any::<bool>()).prop_map(|(plain, block)| Step::Lock(plain, block)),
        4 => plain().prop_map(Step::Unlock),
        1 => plain().prop_map(Step::Cancel),
        1 => (0..2u32).prop_map(Step::Free),
        2 => any::<bool>().prop_map(Step::Answer),
    ]
}

fn of_plain((file, by, first, last, exclusive): Plain) -> Wanted {
    let length = if last == BYTES { 0 } else { last - first + 1 };
    wanted(file, by, first, length, exclusive)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    #[test]
    fn table_does_what_a_model_with_an_entry_for_each_byte_does(steps in vec(step(), 5..60)) {
        let (mut table, mut model) = (Table::default(), Model::default());
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Lock(plain, block) => {
                    let status = table.lock(grant(of_plain(plain)), block, 0);
                    // The oldest first of each file alone.
                    prop_assert_eq!(status, model.lock(plain, block));
                }
                Step::Unlock(plain) => {
                    prop_assert_eq!(table.unlock(&of_plain(plain)), LockStatus::Granted);
                    model.unlock(plain);
                }
                Step::Cancel(plain) => {
                    let waited = model.waiting.contains(&plain);
                    model.waiting.retain(|other| *other != plain);
                    let granted = model.granted.iter().position(|(other, _)| *other == plain);
                    if let Some(place) = granted.filter(|_| !waited) {
                        model.decline(place);
                    }
                    let is_known = waited || granted.is_some();
                    let status = if is_known { LockStatus::Granted } else { LockStatus::Denied };
                    prop_assert_eq!(table.cancel(&of_plain(plain)), status);
                }
                Step::Free(number) => {
                    table.free(|other| *other == host(number));
                    model.free(number);
                }
                Step::Answer(wants) => {
                    let Some(number) = table.grants_from(0).next() else { continue };
                    let first = table.grant(number).unwrap().wanted.clone();
                    let is_it = |(plain, _): &(Plain, Vec<(u64, bool)>)| {
                        let other = of_plain(*plain);
                        (other.file, other.range, other.exclusive) == (first.file, first.range, first.exclusive)
                            && other.owner == first.owner
                    };
                    let place = model.granted.iter().position(is_it).unwrap();
                    if wants {
                        table.confirm(number);
                        model.granted.remove(place);
                    } else {
                        table.decline(number);
                        model.decline(place);
                    }
                }
            }
            table.check();
            prop_assert_eq!(table.grants_from(0).count(), model.granted.len());
            // The bytes one by one take long.
            let looked_at = if number % 5 == 4 { 0..2 } else { 0..0 };
            for number in looked_at {
                for byte in 0..=BYTES {
                    let at = if byte == BYTES { u64::MAX } else { byte };
                    for (by, exclusive) in (0..5).flat_map(|by| [(by, false), (by, true)]) {
                        let found = table.test(&wanted(number, by, at, 1, exclusive));
                        let expected = model.conflicts((number, by, byte, byte, exclusive));
                        prop_assert_eq!(found.is_some(), !expected.is_empty());
                        prop_assert!(found.is_none_or(|found| expected.contains(&found.process)));
                    }
                }
            }
        }
        table.free(|_| true);
        table.check();
        prop_assert!(!table.knows(&host(0)) && !table.knows(&host(1)) && table.count() == 0);
    }
}

#[test]
fn ranges_end_at_the_largest_offset() {
    assert_eq!(Range::new(5, 0), Some(Range { first: 5, last: u64::MAX }));
    assert_eq!(Range::new(u64::MAX, 1).unwrap().length(), 0);
    assert_eq!(Range::new(u64::MAX, 2), None);
    let mut table = Table::default();
    assert_eq!(table.lock(grant(wanted(1, 0, 0, 0, true)), false, 0), LockStatus::Granted);
    assert_eq!(table.unlock(&wanted(1, 0, u64::MAX, 1, true)), LockStatus::Granted);
    assert!(table.test(&wanted(1, 1, u64::MAX, 1, true)).is_none());
    assert_eq!(table.test(&wanted(1, 1, u64::MAX - 1, 0, true)).unwrap().length, u64::MAX);
}

#[test]
fn client_with_many_locks_gets_no_more_and_others_do() {
    let mut table = Table::default();
    let most = LOCK_BYTES_OF_HOST / LOCK_BYTES;
    let mut granted = 0;
    while table.lock(grant(wanted(1, 0, granted * 2, 1, true)), false, 0) == LockStatus::Granted {
        granted += 1;
        assert!(granted < most);
    }
    assert!(granted > most / 2, "{granted}");
    // Not by pieces of one lock, or by waits either.
    assert_eq!(table.lock(grant(wanted(2, 1, 0, 0, true)), false, 0), LockStatus::Granted);
    let mut pieces = 1;
    while table.unlock(&wanted(2, 1, pieces * 2, 1, true)) == LockStatus::Granted {
        pieces += 1;
        assert!(pieces < most);
    }
    let mut waits = 0;
    while table.lock(grant(wanted(2, 0, 1, 1 + waits, true)), true, 0) == LockStatus::Blocked {
        waits += 1;
        assert!(waits < 5, "a lock has room for its parts, and no more");
    }
    table.check();
    assert_eq!(table.unlock(&wanted(1, 0, 0, 0, true)), LockStatus::Granted);
    assert_eq!(table.lock(grant(wanted(3, 0, 0, 0, true)), false, 0), LockStatus::Granted);
    table.check();
}

#[test]
fn shares_deny_others_what_they_say() {
    let mut table = Table::default();
    let (read, write, both, none) = (Rights::new(1), Rights::new(2), Rights::new(3), Rights::new(0));
    assert_eq!(table.share(file(1), &owner(0), read, write), LockStatus::Granted);
    assert_eq!(table.share(file(1), &owner(1), write, none), LockStatus::Denied);
    assert_eq!(table.share(file(1), &owner(1), read, none), LockStatus::Granted);
    assert_eq!(table.share(file(1), &owner(3), none, both), LockStatus::Denied);
    assert_eq!(table.share(file(2), &owner(1), write, both), LockStatus::Granted);
    // The same owner changes its share.
    assert_eq!(table.share(file(1), &owner(0), read, none), LockStatus::Granted);
    assert_eq!(table.share(file(1), &owner(1), both, none), LockStatus::Granted);
    table.check();
    table.unshare(file(1), &owner(0));
    table.unshare(file(1), &owner(1));
    table.unshare(file(2), &owner(1));
    table.check();
    assert!(!table.knows(&host(0)) && !table.knows(&host(1)));
}

#[test]
fn restart_of_a_client_is_seen_by_its_number() {
    let mut table = Table::default();
    assert_eq!(table.lock(grant(wanted(1, 0, 0, 0, true)), false, 7), LockStatus::Granted);
    assert!(!table.has_restarted(&host(0), 7));
    assert!(!table.is_of_earlier_start(&host(0), 7));
    assert!(table.is_of_earlier_start(&host(0), 9));
    assert!(!table.has_restarted(&host(0), 5));
    assert!(table.has_restarted(&host(0), 9));
    assert!(!table.has_restarted(&host(1), 9));
}
