//! Identities, recipients and key objects.

use super::super::keys::Keys;
use super::*;
use crate::error::{KeyTrouble, Trouble};
use crate::{Put, StoreError};

fn identity(seed: u64) -> Identity {
    Identity::generate(&*Seeded::new(seed))
}

fn trouble(error: &StoreError) -> Option<KeyTrouble> {
    match error.trouble {
        Trouble::Key(trouble) => Some(trouble),
        _ => None,
    }
}

#[test]
fn identity_file_is_read_as_it_is_written_and_typing_errors_are_found() {
    let own = identity(1);
    let text = own.to_file();
    let read = Identity::parse_file(&text).expect("an identity");
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].recipient(), own.recipient());
    let public = own.recipient().to_string();
    assert!(text.contains(&public) && public.len() == 64);
    assert_eq!(public.parse::<Recipient>(), Ok(own.recipient()));
    let secret = text.lines().last().expect("a line");
    assert_eq!(secret.parse::<Recipient>(), Err(InvalidIdentity::Secret));
    assert!(!format!("{own:?}").contains(&secret[20..]));
    for at in 0..public.len() {
        let mut wrong = public.clone();
        let other = if &public[at..=at] == "0" { "1" } else { "0" };
        wrong.replace_range(at..=at, other);
        assert_eq!(wrong.parse::<Recipient>(), Err(InvalidIdentity::Recipient), "{at}");
    }
    assert_eq!(public.to_ascii_uppercase().parse::<Recipient>(), Err(InvalidIdentity::Recipient));
    assert_eq!(Identity::parse_file("# nothing\n").err(), Some(InvalidIdentity::Empty));
    assert_eq!(Identity::parse_file(&public).err(), Some(InvalidIdentity::Line(1)));
    let many = secret.to_owned() + "\n";
    assert_eq!(Identity::parse_file(&many.repeat(17)).err(), Some(InvalidIdentity::Many));
    assert_eq!(Identity::parse_file(&many.repeat(16)).expect("16").len(), 16);
}

#[test]
fn bucket_is_made_opened_and_given_to_others() {
    let (store, entropy, cancel) = (memory(), Seeded::new(3), never());
    let ring = Keyring::new(&*store);
    assert_eq!(ring.state(&cancel).expect("a state"), KeyringState::Plain);
    let (own, other, third) = (identity(1), identity(2), identity(3));
    let id = ring.create(&[own.recipient()], &*entropy, &cancel).expect("made");
    assert_eq!(ring.state(&cancel).expect("a state"), KeyringState::Encrypted(id));
    assert_eq!(ring.other_object(&cancel).expect("a listing"), None);
    let error = ring.unlock(id, std::slice::from_ref(&other), &cancel).expect_err("no recipient");
    assert_eq!(trouble(&error), Some(KeyTrouble::NotRecipient));

    let holder = KeyHolder::new(id, vec![own.clone()]);
    assert_eq!(ring.recipients(&holder, &cancel).expect("a list"), [own.recipient()]);
    assert!(ring.add(&holder, &other.recipient(), &*entropy, &cancel).expect("added"));
    assert!(!ring.add(&holder, &other.recipient(), &*entropy, &cancel).expect("it is one"));
    assert_eq!(ring.recipients(&holder, &cancel).expect("a list").len(), 2);
    let error = ring.remove(&holder, &third.recipient(), &cancel).expect_err("it is none");
    assert_eq!(trouble(&error), Some(KeyTrouble::NoRecipient));

    // The same key by either identity.
    let one = ring.unlock(id, std::slice::from_ref(&own), &cancel).expect("opened");
    let same = ring.unlock(id, &[third, other.clone()], &cancel).expect("opened");
    assert_eq!(one.bytes(), same.bytes());
    ring.remove(&holder, &own.recipient(), &cancel).expect("removed");
    let error = ring.unlock(id, &[own], &cancel).expect_err("no recipient any more");
    assert_eq!(trouble(&error), Some(KeyTrouble::NotRecipient));
    let error = ring.remove(&holder, &other.recipient(), &cancel).expect_err("the last one");
    assert_eq!(trouble(&error), Some(KeyTrouble::LastRecipient));
    assert_eq!(ring.recipients(&holder, &cancel).expect("a list"), [other.recipient()]);
}

#[test]
fn one_key_wins_if_two_servers_make_one() {
    let (store, cancel) = (memory(), never());
    let ring = Keyring::new(&*store);
    let (one, other) = (identity(1), identity(2));
    let first = ring.create(&[one.recipient()], &*Seeded::new(5), &cancel).expect("made");
    let second = ring.create(&[other.recipient()], &*Seeded::new(6), &cancel).expect("an answer");
    assert_eq!(first, second);
    assert_eq!(store.names().len(), 2, "the key of the loser is deleted: {:?}", store.names());
}

#[test]
fn interrupted_creation_is_neither_plain_nor_encrypted() {
    let (store, cancel) = (memory(), never());
    let ring = Keyring::new(&*store);
    ring.create(&[identity(1).recipient()], &*Seeded::new(5), &cancel).expect("made");
    store.delete(&name("key/bucket"), &cancel).expect("deleted");
    assert_eq!(ring.state(&cancel).expect("a state"), KeyringState::Begun);
    let id = ring.create(&[identity(1).recipient()], &*Seeded::new(6), &cancel).expect("made again");
    assert_eq!(ring.state(&cancel).expect("a state"), KeyringState::Encrypted(id));
}

/// The store flips each byte, cuts, and gives a wrapped key of its own.
#[test]
fn changed_key_object_never_gives_another_key() {
    let (store, cancel, own) = (memory(), never(), identity(1));
    let ring = Keyring::new(&*store);
    let id = ring.create(&[own.recipient()], &*Seeded::new(5), &cancel).expect("made");
    let right = ring.unlock(id, std::slice::from_ref(&own), &cancel).expect("opened");
    let names = store.names();
    for stored in &names {
        let bytes = store.raw(stored).expect("an object");
        for at in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1;
            store.replace(stored, Some(changed.into()));
            let opened = ring.unlock(id, std::slice::from_ref(&own), &cancel);
            match stored.as_str() {
                "key/bucket" => {
                    let state = ring.state(&cancel);
                    assert!(!matches!(state, Ok(KeyringState::Encrypted(found)) if found == id), "{at}");
                }
                _ => {
                    assert!(
                        opened.is_err_and(
                            |error| error.is_damaged() || matches!(error.trouble, Trouble::Newer(_))
                        ),
                        "{at}"
                    );
                    let holder = KeyHolder::with_key(&right);
                    assert!(ring.recipients(&holder, &cancel).expect("a list").is_empty());
                }
            }
        }
        store.replace(stored, Some(bytes));
    }
    // A key that the store made for the public key of the server.
    let other = memory();
    let forged_id =
        Keyring::new(&*other).create(&[own.recipient()], &*Seeded::new(9), &cancel).expect("made");
    assert_ne!(forged_id, id);
    let forged = other.names().into_iter().find(|name| name.as_str() != "key/bucket").expect("one");
    let object = other.raw(&forged).expect("bytes");
    let wrapped = names.iter().find(|name| name.as_str() != "key/bucket").expect("one");
    store.replace(wrapped, Some(object));
    assert!(ring.unlock(id, &[own], &cancel).is_err(), "a server that knows the id refuses it");
}

#[test]
fn recipient_of_low_order_is_refused() {
    let (store, cancel) = (memory(), never());
    let ring = Keyring::new(&*store);
    // The text of the public key that is zero.
    let zero = format!(
        "cairn1{}",
        data_encoding::BASE32_DNSSEC.encode(&{
            let mut bytes = vec![0; 32];
            bytes.extend_from_slice(&ring::digest::digest(&ring::digest::SHA256, &[0; 32]).as_ref()[..4]);
            bytes
        })
    );
    let zero: Recipient = zero.parse().expect("a public key");
    let error = ring.create(&[zero], &*Seeded::new(1), &cancel).expect_err("refused");
    assert!(matches!(error.trouble, Trouble::Rule(_)), "{error}");
    assert!(store.names().is_empty());
}

#[test]
fn nonces_and_keys_are_derived_for_one_use_each() {
    let keys = Keys::of(&key());
    for number in 0..100_u8 {
        let nonce = Nonce([number; 16]);
        let sealed = keys.seal_nonce(nonce);
        assert_ne!(sealed, nonce);
        assert_eq!(keys.open_nonce(sealed), nonce);
    }
    assert!(!format!("{:?} {keys:?}", key()).contains("05050505"));
    assert_eq!(KeyId::parse(&key().id().to_string()), Some(key().id()));
    let put = memory().put_new(&name("a"), Bytes::new(), Nonce([1; 16]), &never());
    assert_eq!(put.expect("put"), Put::Created);
}
