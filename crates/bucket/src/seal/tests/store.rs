//! The store: ranges against a model, pieces, changed objects, and nothing readable below.

use proptest::prelude::{ProptestConfig, prop, prop_assert_eq, prop_oneof, proptest};

use super::*;
use crate::error::Trouble;
use crate::limits::PIECE_BYTES_MIN;
use crate::{ListFrom, Piece, Put, StoreError, Upload, list_all};

fn put(store: &dyn Store, text: &str, bytes: &Bytes) {
    assert_eq!(
        store.put_new(&name(text), bytes.clone(), Nonce([1; 16]), &never()).expect("put"),
        Put::Created
    );
}

/// Uploads pieces of these lengths, and returns all bytes.
fn upload(store: &dyn Store, text: &str, lengths: &[usize], seed: u64) -> (Bytes, Upload, Vec<Piece>) {
    let upload = store.begin(&name(text), Nonce([seed as u8; 16]), &never()).expect("begun");
    let (mut all, mut pieces) = (Vec::new(), Vec::new());
    for (number, length) in (1..).zip(lengths) {
        let bytes = noise(seed * 100 + u64::from(number), *length);
        pieces.push(store.put_piece(&upload, number, bytes.clone(), &never()).expect("a piece"));
        all.extend_from_slice(&bytes);
    }
    (all.into(), upload, pieces)
}

fn finish(store: &dyn Store, upload: &Upload, pieces: &[Piece], seed: u64) -> Result<Put, StoreError> {
    store.finish(upload, Nonce([seed as u8; 16]), pieces, &never())
}

fn expected(plain: &Bytes, offset: u64, length: usize) -> Bytes {
    let begin = (offset.min(plain.len() as u64)) as usize;
    plain.slice(begin..plain.len().min(begin.saturating_add(length)))
}

const PIECES: [usize; 4] = [PIECE_BYTES_MIN + 7, PIECE_BYTES_MIN + 65_536, PIECE_BYTES_MIN, 12_345];

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn ranges_of_whole_objects_are_those_of_a_model(
        length in prop_oneof![0_usize..3, 65_530_usize..65_545, 131_060_usize..131_080, 0_usize..400_000],
        reads in prop::collection::vec((0_u64..450_000, 0_usize..300_000), 1..12),
    ) {
        let (below, plain) = (memory(), noise(1, length));
        let store = sealed(below.clone(), 1);
        put(&store, "a", &plain);
        prop_assert_eq!(store.head(&name("a"), &never()).expect("a head").length, length as u64);
        let other = sealed(below, 2);
        for (offset, count) in reads {
            let read = store.get(&name("a"), offset, count, &never()).expect("read");
            prop_assert_eq!(&read, &expected(&plain, offset, count));
            prop_assert_eq!(other.get(&name("a"), offset, count, &never()).expect("read"), read);
        }
    }
}

#[test]
fn first_read_of_a_client_finds_any_range() {
    let below = memory();
    let plain = noise(1, 200_000);
    put(&sealed(below.clone(), 1), "a", &plain);
    for offset in [0, 1, 65_535, 65_536, 100_000, 131_072, 199_999, 200_000, 1 << 40] {
        for count in [0, 1, 16, 65_536, 65_537, 300_000] {
            let read = sealed(below.clone(), 2).get(&name("a"), offset, count, &never()).expect("read");
            assert!(read == expected(&plain, offset, count), "{count} bytes from {offset}");
        }
    }
}

#[test]
fn ranges_of_objects_in_pieces_are_those_of_a_model() {
    let below = memory();
    let store = sealed(below.clone(), 1);
    for (number, lengths) in
        [&PIECES[..], &PIECES[..1], &PIECES[3..], &[PIECE_BYTES_MIN, 0]].iter().enumerate()
    {
        let text = format!("part-{number}");
        let (plain, upload, pieces) = upload(&store, &text, lengths, 1);
        assert_eq!(finish(&store, &upload, &pieces, 1).expect("finished"), Put::Created);
        let mut rng = Rng::new(7);
        let ends: Vec<usize> = lengths
            .iter()
            .scan(0, |end, length| {
                *end += length;
                Some(*end)
            })
            .collect();
        let mut ranges = vec![(0, plain.len() + 5), (plain.len() as u64, 10), (1 << 40, 10), (0, 1)];
        for end in ends {
            ranges.extend([
                (end.saturating_sub(1) as u64, 2),
                (end as u64, 100),
                (end.saturating_sub(70_000) as u64, 140_000),
            ]);
        }
        ranges.extend((0..40).map(|_| (rng.below(plain.len() as u64 + 10), rng.below(200_000) as usize)));
        for (offset, count) in ranges {
            let read = store.get(&name(&text), offset, count, &never()).expect("read");
            assert!(read == expected(&plain, offset, count), "{count} bytes from {offset} of {lengths:?}");
        }
        let fresh = sealed(below.clone(), 9);
        assert!(fresh.get(&name(&text), 0, plain.len(), &never()).expect("read") == plain);
        let head = fresh.head(&name(&text), &never()).expect("a head");
        assert_eq!((head.length, head.nonce), (plain.len() as u64, Some(Nonce([1; 16]))));
        let listed = list_all(&fresh, &Prefix::all(), &never()).expect("a listing");
        let listed = listed.iter().find(|listed| listed.name == name(&text)).expect("it").length;
        assert!(
            listed >= plain.len() as u64 && listed - plain.len() as u64 <= 600,
            "{listed} {}",
            plain.len()
        );
    }
}

#[test]
fn upload_is_resumed_by_another_client() {
    let below = memory();
    let first = sealed(below.clone(), 1);
    let (plain, upload, mut pieces) = upload(&first, "part", &PIECES[..3], 1);
    drop(first);
    let second = sealed(below.clone(), 2);
    let there = second.pieces(&upload, &never()).expect("pieces");
    assert!(pieces.iter().zip(&there).all(|(own, found)| own.is(found)) && there.len() == 3);
    assert_eq!(second.uploads(&Prefix::all(), &never()).expect("uploads"), std::slice::from_ref(&upload));
    let last = noise(99, 1000);
    pieces.push(second.put_piece(&upload, 4, last.clone(), &never()).expect("a piece"));
    assert_eq!(finish(&second, &upload, &pieces, 1).expect("finished"), Put::Created);
    let whole: Bytes = [plain, last].concat().into();
    assert!(second.get(&name("part"), 0, whole.len(), &never()).expect("read") == whole);
    // The answer may have been lost: the end of an upload is found by its nonce.
    assert_eq!(finish(&second, &upload, &pieces, 1).expect("it is its own"), Put::Created);
    let error = finish(&second, &upload, &pieces, 2).expect_err("not with another nonce");
    assert!(matches!(error.trouble, Trouble::NoUpload), "{error}");
}

#[test]
fn short_piece_of_another_client_cannot_be_the_last_one() {
    let below = memory();
    let (_, upload, pieces) = upload(&sealed(below.clone(), 1), "part", &[1000], 1);
    let error = finish(&sealed(below, 2), &upload, &pieces, 1).expect_err("its bytes are not known");
    assert!(matches!(error.trouble, Trouble::NoUpload), "{error}");
}

/// A piece that was put again with other bytes has another key, and its first form is refused.
#[test]
fn piece_that_was_replaced_is_not_accepted() {
    let below = memory();
    let store = sealed(below.clone(), 1);
    let begun = store.begin(&name("part"), Nonce([1; 16]), &never()).expect("begun");
    let (old, new) = (noise(1, PIECE_BYTES_MIN), noise(2, PIECE_BYTES_MIN));
    let replaced = store.put_piece(&begun, 1, old, &never()).expect("a piece");
    let piece = store.put_piece(&begun, 1, new.clone(), &never()).expect("a piece");
    assert_ne!(replaced.tag.split_once('~'), piece.tag.split_once('~'));
    finish(&store, &begun, std::slice::from_ref(&piece), 1).expect("finished");
    let stored = below.names().remove(0);
    let whole = below.raw(&stored).expect("it");
    assert!(store.get(&name("part"), 0, new.len(), &never()).expect("read") == new);

    // The store kept the first form.
    let other = memory();
    let twin = sealed(other.clone(), 1);
    let begun = twin.begin(&name("part"), Nonce([1; 16]), &never()).expect("begun");
    let first = twin.put_piece(&begun, 1, noise(1, PIECE_BYTES_MIN), &never()).expect("a piece");
    finish(&twin, &begun, &[first], 1).expect("finished");
    let kept = other.raw(&other.names()[0]).expect("it");
    let piece_bytes = sealed_bytes(PIECE_BYTES_MIN as u64) as usize;
    let mixed = [&kept[..piece_bytes], &whole[piece_bytes..]].concat();
    below.replace(&stored, Some(mixed.into()));
    for offset in [0, 70_000] {
        let error = sealed(below.clone(), 3).get(&name("part"), offset, 10, &never()).expect_err("refused");
        assert!(error.is_damaged(), "{error}");
    }
}

fn read_all(below: &Arc<Memory>, text: &str, length: usize) -> Result<Bytes, StoreError> {
    let store = sealed(below.clone(), 5);
    store.get(&name(text), 0, length + 1, &never())
}

#[test]
fn flipped_cut_lengthened_and_swapped_objects_are_detected_and_named() {
    let below = memory();
    let store = sealed(below.clone(), 1);
    let whole = noise(1, 150_000);
    put(&store, "dumps/whole", &whole);
    put(&store, "dumps/twin", &noise(2, 150_000));
    let (parts, begun, pieces) = upload(&store, "dumps/parts", &PIECES, 1);
    finish(&store, &begun, &pieces, 1).expect("finished");
    let stored_of = |text: &str| {
        let names = below.names();
        let opened =
            |stored: &&Name| super::super::names::open(&super::super::keys::Keys::of(&key()), stored);
        names.iter().find(|stored| opened(stored) == Some(name(text))).expect("it").clone()
    };
    let twin = below.raw(&stored_of("dumps/twin")).expect("it");
    let mut rng = Rng::new(3);
    for (text, length) in [("dumps/whole", whole.len()), ("dumps/parts", parts.len())] {
        let stored = stored_of(text);
        let bytes = below.raw(&stored).expect("it");
        let assert_damaged = |changed: Vec<u8>, how: &str| {
            below.replace(&stored, Some(changed.into()));
            let error = read_all(&below, text, length).expect_err(how);
            assert_eq!(error.name, Some(name(text)), "{how}: {error}");
            match error.trouble {
                Trouble::Damaged { .. } => assert!(error.to_string().contains(stored.as_str()), "{error}"),
                // A flip of the version.
                Trouble::Newer(_) => {}
                _ => panic!("{how}: {error}"),
            }
        };
        let mut places: Vec<usize> = (0..64).chain(bytes.len() - 200..bytes.len()).collect();
        places.extend((0..40).map(|_| rng.below(bytes.len() as u64) as usize));
        for at in places {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1 << rng.below(8);
            assert_damaged(changed, &format!("{text} flipped at {at}"));
        }
        for kept in [0, 63, 64, 80, 64 + 65_552, 64 + 2 * 65_552, bytes.len() - 1, bytes.len() - 16] {
            assert_damaged(bytes[..kept].to_vec(), &format!("{text} cut at {kept}"));
        }
        assert_damaged([&bytes[..], &[0]].concat(), "lengthened");
        assert_damaged(twin.to_vec(), "swapped");
        assert_damaged(vec![b'x'; 500], "not encrypted");
        below.replace(&stored, Some(bytes));
        read_all(&below, text, length).expect("as it was");
    }
    // A forged shorter length is found by a look and by a read past it.
    let stored = stored_of("dumps/whole");
    let mut forged = below.raw(&stored).expect("it").to_vec();
    forged[48..56].copy_from_slice(&100_u64.to_le_bytes());
    below.replace(&stored, Some(forged.into()));
    assert!(sealed(below.clone(), 6).head(&name("dumps/whole"), &never()).expect_err("forged").is_damaged());
    let past = sealed(below, 6).get(&name("dumps/whole"), 200_000, 10, &never());
    assert!(past.expect_err("forged").is_damaged());
}

#[test]
fn object_that_took_the_name_of_another_one_is_read() {
    let below = memory();
    let (store, other) = (sealed(below.clone(), 1), sealed(below, 2));
    put(&store, "deleting", &noise(1, 100));
    assert_eq!(store.get(&name("deleting"), 0, 200, &never()).expect("read"), noise(1, 100));
    other.delete(&name("deleting"), &never()).expect("deleted");
    assert!(store.get(&name("deleting"), 0, 200, &never()).expect_err("gone").is_missing());
    put(&other, "deleting", &noise(2, 70));
    assert_eq!(store.get(&name("deleting"), 0, 200, &never()).expect("read"), noise(2, 70));
    other.delete(&name("deleting"), &never()).expect("deleted");
    put(&other, "deleting", &noise(3, 50));
    assert_eq!(store.head(&name("deleting"), &never()).expect("a head").length, 50);
}

#[test]
fn nothing_readable_reaches_the_store() {
    let below = memory();
    let store = sealed(below.clone(), 1);
    let text: Bytes = b"the quick brown fox".repeat(10_000).into();
    put(&store, "servers/secret-place/dumps/index", &text);
    let begun = store.begin(&name("servers/secret-place/part"), Nonce([2; 16]), &never()).expect("begun");
    let piece = store.put_piece(&begun, 1, text.clone(), &never()).expect("a piece");
    finish(&store, &begun, &[piece], 2).expect("finished");
    for stored in below.names() {
        let bytes = below.raw(&stored).expect("it");
        assert!(!bytes.windows(5).any(|some| some == b"quick" || some == b"secre"));
        for word in ["servers", "secret", "dumps", "index", "part"] {
            assert!(!stored.as_str().contains(word), "{stored}");
        }
        let nonce = below.head(&stored, &never()).expect("a head").nonce.expect("one");
        assert!(nonce != Nonce([1; 16]) && nonce != Nonce([2; 16]));
    }
    // The same bytes under one name are another object each time.
    let again = memory();
    put(&sealed(again.clone(), 2), "servers/secret-place/dumps/index", &text);
    let one = again.raw(&again.names()[0]).expect("it");
    let other = below.raw(&again.names()[0]).expect("the same name");
    assert!(one != other && one.len() == other.len());
}

#[test]
fn listings_skip_what_is_not_sealed_and_keep_pages() {
    let below = memory();
    let store = sealed(below.clone(), 1);
    let mut names: Vec<Name> = (0..25).map(|number| name(&format!("a/{number:02}"))).collect();
    names.push(name("b"));
    names.iter().for_each(|own| put(&store, own.as_str(), &noise(1, 10)));
    for plain in ["key/bucket", "probe/x", "a/99", "dumps/other"] {
        below.put_new(&name(plain), noise(1, 5), Nonce([3; 16]), &never()).expect("put");
    }
    let listed = list_all(&store, &Prefix::all(), &never()).expect("a listing");
    assert!(listed.iter().map(|listed| &listed.name).eq(names.iter()), "sorted after the listing");
    assert!(listed.iter().all(|listed| listed.length == 10));
    let within = list_all(&store, &Prefix::new("a/").expect("a prefix"), &never()).expect("a listing");
    assert_eq!(within.len(), 25);
    let (mut found, mut from) = (Vec::new(), ListFrom::Start);
    loop {
        let page = store.list(&Prefix::all(), &from, 4, &never()).expect("a page");
        found.extend(page.objects.into_iter().map(|listed| listed.name));
        let Some(next) = page.next else { break };
        from = ListFrom::Page(next);
    }
    found.sort();
    assert_eq!(found, names);
    let last = found.last().expect("one").clone();
    let page = store.list(&Prefix::all(), &ListFrom::After(last), 100, &never()).expect("a page");
    assert!(page.objects.len() < 26);
}

#[test]
fn key_is_opened_when_it_is_needed_and_once() {
    let below = memory();
    let own = Identity::generate(&*Seeded::new(1));
    let id = Keyring::new(&*below).create(&[own.recipient()], &*Seeded::new(2), &never()).expect("made");
    let holder = Arc::new(KeyHolder::new(id, vec![own]));
    let calls = below.calls();
    let store = Sealed::new(below.clone(), holder.clone(), Seeded::new(3));
    assert_eq!(below.calls(), calls, "opening makes no request");
    put(&store, "a", &noise(1, 10));
    assert_eq!(below.calls(), calls + 2, "the wrapped key and the put");
    let second = Sealed::new(below.clone(), holder, Seeded::new(4));
    assert_eq!(second.get(&name("a"), 0, 10, &never()).expect("read"), noise(1, 10));
    assert_eq!(below.calls(), calls + 3);
    let wrong = Sealed::new(
        below,
        Arc::new(KeyHolder::new(id, vec![Identity::generate(&*Seeded::new(9))])),
        Seeded::new(4),
    );
    let error = wrong.get(&name("a"), 0, 10, &never()).expect_err("no recipient");
    assert!(matches!(error.trouble, Trouble::Key(_)), "{error}");
}
