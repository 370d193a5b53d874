//! The contract of every driver, also through `Retrying`.

use std::sync::Barrier;
use std::time::Duration;

use bytes::Bytes;
use cairn_bucket::limits::{GET_BYTES_MAX, PIECE_BYTES_MIN, PUT_BYTES_MAX};
use cairn_bucket::{ListFrom, Put, Trouble, list_all};

use super::*;

/// Runs every case on stores from `make`, each of its own. `locks` lets time pass there.
pub fn contract(make: &dyn Fn() -> Arc<dyn Store>, locks: Option<&dyn Fn(Duration)>) {
    without_races(make, true);
    one_of_many_creators_wins(make());
    if let Some(pass) = locks {
        locks_hold(&*make(), pass);
    }
}

/// All but races and locks. `lists_uploads` tells whether the store lists uploads by the beginning
/// of their names.
pub fn without_races(make: &dyn Fn() -> Arc<dyn Store>, lists_uploads: bool) {
    creates_once(&*make());
    reads_ranges(&*make());
    lists_in_order(&*make());
    deletes(&*make());
    puts_in_pieces(&*make(), lists_uploads);
    refuses_to_finish_over_an_object(&*make());
    aborts(&*make());
    cancels(&*make());
}

fn creates_once(store: &dyn Store) {
    let (key, cancel) = (name("dumps/a/index"), never());
    let first = noise(1, 5000);
    assert_eq!(store.put_new(&key, first.clone(), nonce(1), &cancel).expect("put"), Put::Created);
    assert_eq!(store.put_new(&key, noise(2, 4000), nonce(2), &cancel).expect("put"), Put::Exists);
    assert_eq!(store.get(&key, 0, 10_000, &cancel).expect("read"), first);
    let head = store.head(&key, &cancel).expect("a head");
    assert_eq!((head.length, head.nonce), (5000, Some(nonce(1))), "the nonce is that of the creator");
    assert!(head.tag.is_some() && head.locked_until.is_none());
    let other = store.put_new(&name("dumps/b"), first, nonce(3), &cancel);
    assert_eq!(other.expect("put"), Put::Created);
    assert_eq!(store.put_new(&name("empty"), Bytes::new(), nonce(4), &cancel).expect("put"), Put::Created);
    assert_eq!(store.head(&name("empty"), &cancel).expect("a head").length, 0);
    assert_eq!(store.get(&name("empty"), 0, 10, &cancel).expect("read"), Bytes::new());
    let long = Bytes::from(vec![0; PUT_BYTES_MAX + 1]);
    let refused = store.put_new(&name("long"), long, nonce(5), &cancel).expect_err("too long");
    assert!(matches!(refused.trouble, Trouble::Rule(_)), "{refused}");
}

fn reads_ranges(store: &dyn Store) {
    let (key, cancel) = (name("object"), never());
    let bytes = noise(3, 100_000);
    store.put_new(&key, bytes.clone(), nonce(1), &cancel).expect("put");
    for (offset, length) in
        [(0, 1), (0, 100_000), (99_999, 1), (500, 4096), (99_990, 100), (100_000, 10), (1 << 40, 10), (7, 0)]
    {
        let begin = (offset as usize).min(bytes.len());
        let expected = bytes.slice(begin..bytes.len().min(begin + length));
        assert_eq!(store.get(&key, offset, length, &cancel).expect("read"), expected, "{offset} {length}");
    }
    let missing = store.get(&name("other"), 0, 10, &cancel).expect_err("missing");
    assert!(missing.is_missing(), "{missing}");
    assert!(store.head(&name("other"), &cancel).expect_err("missing").is_missing());
    let long = store.get(&key, 0, GET_BYTES_MAX + 1, &cancel).expect_err("too long");
    assert!(matches!(long.trouble, Trouble::Rule(_)));
}

fn lists_in_order(store: &dyn Store) {
    let cancel = never();
    let mut names: Vec<Name> =
        ["b", "a/z", "a-b", "c/d/e", "a.b", "c/d/f", "a/a", "ab", "c/e"].map(name).into();
    for (number, name) in (0..).zip(&names) {
        store.put_new(name, noise(number, number as usize), nonce(number), &cancel).expect("put");
    }
    names.sort();
    let listed = |prefix: &str| -> Vec<Name> {
        let found = list_all(store, &super::prefix(prefix), &cancel).expect("a listing");
        found.into_iter().map(|listed| listed.name).collect()
    };
    assert_eq!(listed(""), names);
    assert_eq!(listed("a/"), ["a/a", "a/z"].map(name));
    assert_eq!(listed("c/"), ["c/d/e", "c/d/f", "c/e"].map(name));
    assert_eq!(listed("c/d/"), ["c/d/e", "c/d/f"].map(name));
    assert!(listed("d/").is_empty() && listed("a/a/").is_empty());
    for count in 1..=names.len() + 1 {
        let (mut found, mut from) = (Vec::new(), ListFrom::Start);
        loop {
            let page = store.list(&prefix(""), &from, count, &cancel).expect("a page");
            assert!(page.objects.len() <= count);
            found.extend(page.objects.into_iter().map(|listed| listed.name));
            let Some(next) = page.next else { break };
            from = ListFrom::Page(next);
        }
        assert_eq!(found, names, "{count} at a time");
    }
    for after in ["a", "a-b", "a.b", "a/", "aa", "c/d", "c/d/e", "zz", "0"] {
        let Ok(after) = Name::new(after) else { continue };
        let page = store.list(&prefix(""), &ListFrom::After(after.clone()), 100, &cancel).expect("a page");
        let expected: Vec<&Name> = names.iter().filter(|name| **name > after).collect();
        assert_eq!(page.objects.iter().map(|listed| &listed.name).collect::<Vec<_>>(), expected, "{after}");
    }
    let listed = list_all(store, &prefix("c/d/"), &cancel).expect("a listing");
    assert_eq!(listed.iter().map(|listed| listed.length).collect::<Vec<_>>(), [3, 5]);
}

fn deletes(store: &dyn Store) {
    let cancel = never();
    let (one, other) = (name("folder/one"), name("folder/other"));
    for key in [&one, &other] {
        store.put_new(key, noise(1, 10), nonce(1), &cancel).expect("put");
    }
    store.delete(&one, &cancel).expect("deleted");
    assert!(store.head(&one, &cancel).expect_err("gone").is_missing());
    assert!(store.get(&one, 0, 1, &cancel).expect_err("gone").is_missing());
    store.delete(&one, &cancel).expect("what is not there is no error");
    assert_eq!(list_all(store, &prefix(""), &cancel).expect("a listing").len(), 1);
    store.delete(&other, &cancel).expect("deleted");
    assert!(list_all(store, &prefix(""), &cancel).expect("a listing").is_empty());
    store.delete(&name("never/was"), &cancel).expect("what is not there is no error");
    let again = store.put_new(&one, noise(2, 20), nonce(2), &cancel);
    assert_eq!(again.expect("its folder is made again"), Put::Created);
}

fn puts_in_pieces(store: &dyn Store, lists_uploads: bool) {
    let (key, cancel) = (name("dumps/part-0"), never());
    let bytes = [noise(1, PIECE_BYTES_MIN + 77), noise(2, PIECE_BYTES_MIN), noise(3, 1)];
    let upload = store.begin(&key, nonce(1), &cancel).expect("begun");
    let mut pieces = vec![];
    // Not in order, and one twice.
    for number in [3, 1, 2, 1] {
        let content = if number == 1 && pieces.len() < 3 { noise(9, 100) } else { bytes[number - 1].clone() };
        let piece = store.put_piece(&upload, number as u32, content, &cancel).expect("a piece");
        pieces.retain(|other: &cairn_bucket::Piece| other.number != piece.number);
        pieces.push(piece);
        assert!(store.head(&key, &cancel).expect_err("unseen").is_missing());
        assert!(list_all(store, &prefix(""), &cancel).expect("a listing").is_empty());
    }
    pieces.sort_by_key(|piece| piece.number);
    let there = store.pieces(&upload, &cancel).expect("the pieces");
    let lengths = |pieces: &[cairn_bucket::Piece]| -> Vec<(u32, u64)> {
        pieces.iter().map(|piece| (piece.number, piece.length)).collect()
    };
    assert_eq!(lengths(&there), lengths(&pieces));
    if lists_uploads {
        let uploads = store.uploads(&prefix("dumps/"), &cancel).expect("uploads");
        assert_eq!(uploads, std::slice::from_ref(&upload));
    }
    assert!(store.uploads(&prefix("other/"), &cancel).expect("uploads").is_empty());
    let gap = store.finish(&upload, nonce(1), &pieces[1..], &cancel).expect_err("a gap");
    assert!(matches!(gap.trouble, Trouble::Rule(_)), "{gap}");
    // With the pieces that the store lists, as after a crash.
    assert_eq!(store.finish(&upload, nonce(1), &there, &cancel).expect("finished"), Put::Created);
    let whole: Vec<u8> = bytes.iter().flat_map(|bytes| bytes.iter().copied()).collect();
    assert!(store.get(&key, 0, whole.len() + 5, &cancel).expect("read") == whole);
    let head = store.head(&key, &cancel).expect("a head");
    assert_eq!((head.length, head.nonce), (whole.len() as u64, Some(nonce(1))));
    assert!(store.uploads(&prefix(""), &cancel).expect("uploads").is_empty());
}

fn refuses_to_finish_over_an_object(store: &dyn Store) {
    let (key, cancel) = (name("taken"), never());
    let upload = store.begin(&key, nonce(1), &cancel).expect("begun");
    let piece = store.put_piece(&upload, 1, noise(1, 100), &cancel).expect("a piece");
    store.put_new(&key, noise(2, 50), nonce(2), &cancel).expect("put");
    let put = store.finish(&upload, nonce(1), std::slice::from_ref(&piece), &cancel);
    assert_eq!(put.expect("an answer"), Put::Exists);
    assert_eq!(store.get(&key, 0, 100, &cancel).expect("read"), noise(2, 50));
    store.abort(&upload, &cancel).expect("aborted");
    assert!(store.uploads(&prefix(""), &cancel).expect("uploads").is_empty());
}

fn aborts(store: &dyn Store) {
    let (key, cancel) = (name("given-up"), never());
    let upload = store.begin(&key, nonce(1), &cancel).expect("begun");
    let piece = store.put_piece(&upload, 1, noise(1, 100), &cancel).expect("a piece");
    store.abort(&upload, &cancel).expect("aborted");
    store.abort(&upload, &cancel).expect("what is not there is no error");
    let gone = store.finish(&upload, nonce(1), std::slice::from_ref(&piece), &cancel).expect_err("gone");
    assert!(matches!(gone.trouble, Trouble::NoUpload), "{gone}");
    let gone = store.put_piece(&upload, 1, noise(1, 100), &cancel).expect_err("gone");
    assert!(matches!(gone.trouble, Trouble::NoUpload), "{gone}");
    assert!(store.head(&key, &cancel).expect_err("nothing was made").is_missing());
}

pub fn one_of_many_creators_wins(store: Arc<dyn Store>) {
    const CREATORS: u64 = 4;
    for round in 0..10 {
        let key = name(&format!("epoch/{round}"));
        let barrier = Barrier::new(CREATORS as usize);
        let won: Vec<u64> = std::thread::scope(|scope| {
            let create = |creator: u64| {
                let (store, key, barrier) = (&store, &key, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let put = loop {
                        match store.put_new(key, noise(creator, 100), nonce(creator), &never()) {
                            // The store did not decide.
                            Err(error) if matches!(error.trouble, Trouble::Conflict) => {}
                            put => break put.expect("an answer"),
                        }
                    };
                    (put == Put::Created).then_some(creator)
                })
            };
            let threads: Vec<_> = (0..CREATORS).map(create).collect();
            threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
        });
        let [winner] = won[..] else { panic!("one wins round {round}: {won:?}") };
        assert_eq!(store.get(&key, 0, 200, &never()).expect("read"), noise(winner, 100));
        assert_eq!(store.head(&key, &never()).expect("a head").nonce, Some(nonce(winner)));
    }
}

fn cancels(store: &dyn Store) {
    let cancel = AtomicBool::new(true);
    let key = name("cancelled");
    let error = store.put_new(&key, noise(1, 1000), nonce(1), &cancel).expect_err("cancelled");
    assert!(error.is_cancelled(), "{error}");
    assert!(store.head(&key, &never()).expect_err("nothing was made").is_missing());
}

fn locks_hold(store: &dyn Store, pass: &dyn Fn(Duration)) {
    let (key, cancel) = (name("locked"), never());
    store.put_new(&key, noise(1, 10), nonce(1), &cancel).expect("put");
    let until = |seconds: u64| Timestamp(NOW.0 + seconds * 1_000_000_000);
    store.lock_until(&key, until(100), &cancel).expect("locked");
    assert_eq!(store.head(&key, &cancel).expect("a head").locked_until, Some(until(100)));
    let refused = store.delete(&key, &cancel).expect_err("locked");
    assert!(matches!(refused.trouble, Trouble::Locked(Some(held)) if held == until(100)), "{refused}");
    store.lock_until(&key, until(50), &cancel).expect("nothing to do");
    assert_eq!(store.head(&key, &cancel).expect("a head").locked_until, Some(until(100)), "never shorter");
    store.lock_until(&key, until(200), &cancel).expect("extended");
    pass(Duration::from_secs(150));
    store.delete(&key, &cancel).expect_err("still locked");
    pass(Duration::from_secs(100));
    store.delete(&key, &cancel).expect("free");
    let missing = store.lock_until(&key, until(900), &cancel).expect_err("gone");
    assert!(missing.is_missing(), "{missing}");
}

#[test]
fn memory_keeps_the_contract() {
    let clock = clock();
    let make = || -> Arc<dyn Store> { Arc::new(Memory::new(clock.clone(), clock.clone())) };
    contract(&make, Some(&|time| clock.advance(time)));
    let again = clock.clone();
    again.set(NOW);
    let make = || -> Arc<dyn Store> { Arc::new(retrying(make(), 1)) };
    contract(&make, Some(&|time| clock.advance(time)));
}

#[test]
fn directory_keeps_the_contract() {
    let clock = clock();
    let folders = tempfile::tempdir().expect("a folder");
    let number = std::sync::atomic::AtomicU64::new(0);
    let make = || -> Arc<dyn Store> {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = folders.path().join(number.to_string());
        std::fs::create_dir(&folder).expect("a folder");
        Arc::new(directory(&folder, clock.clone(), number))
    };
    contract(&make, Some(&|time| clock.advance(time)));
    clock.set(NOW);
    let make = || -> Arc<dyn Store> { Arc::new(retrying(make(), 1)) };
    contract(&make, Some(&|time| clock.advance(time)));
}

#[test]
fn object_in_a_directory_is_a_file_of_its_name_and_content() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = directory(folder.path(), clock(), 1);
    store.put_new(&name("dumps/a/part-0"), noise(1, 777), nonce(1), &never()).expect("put");
    assert_eq!(std::fs::read(folder.path().join("dumps/a/part-0")).expect("a file"), noise(1, 777));
}

#[test]
fn names_that_exclude_each_other_in_a_directory_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = directory(folder.path(), clock(), 1);
    store.put_new(&name("a/b"), noise(1, 7), nonce(1), &never()).expect("put");
    store.put_new(&name("a"), noise(1, 7), nonce(2), &never()).expect_err("a folder has the name");
    store.put_new(&name("a/b/c"), noise(1, 7), nonce(3), &never()).expect_err("a file is in the way");
    assert_eq!(list_all(&store, &prefix(""), &never()).expect("a listing").len(), 1);
}

/// Encrypts with a key of the test, as each client of a bucket does.
fn encrypted(store: Arc<dyn Store>) -> Arc<dyn Store> {
    use cairn_bucket::seal::{BucketKey, Entropy, KeyHolder, Sealed};
    struct Counted(std::sync::atomic::AtomicU64);
    impl Entropy for Counted {
        fn fill(&self, bytes: &mut [u8]) {
            Rng::new(self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)).fill(bytes);
        }
    }
    let holder = KeyHolder::with_key(&BucketKey::from_bytes([7; 32]));
    Arc::new(Sealed::new(store, Arc::new(holder), Arc::new(Counted(1.into()))))
}

/// All but the order of listings, and an end of an upload with pieces of a listing: they lack the
/// salts.
#[test]
fn encrypted_store_keeps_the_contract() {
    let clock = clock();
    let folders = tempfile::tempdir().expect("a folder");
    let number = std::sync::atomic::AtomicU64::new(0);
    let in_memory = || encrypted(Arc::new(Memory::new(clock.clone(), clock.clone())));
    let in_directory = || {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = folders.path().join(number.to_string());
        std::fs::create_dir(&folder).expect("a folder");
        encrypted(Arc::new(directory(&folder, clock.clone(), number)))
    };
    let makes: [&dyn Fn() -> Arc<dyn Store>; 2] = [&in_memory, &in_directory];
    for make in makes {
        clock.set(NOW);
        creates_once(&*make());
        reads_ranges(&*make());
        deletes(&*make());
        refuses_to_finish_over_an_object(&*make());
        aborts(&*make());
        cancels(&*make());
        one_of_many_creators_wins(make());
        locks_hold(&*make(), &|time| clock.advance(time));
    }
}
