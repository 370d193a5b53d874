//! Names: found again, unreadable, bound to their folder, and in order where that is needed.

use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use super::super::keys::Keys;
use super::super::names::{open, seal, seal_prefix};
use super::*;

fn keys() -> Keys {
    Keys::of(&key())
}

proptest! {
    #[test]
    fn name_opens_to_the_sealed_one(text in "[a-z0-9_-][a-z0-9._-]{0,30}(/[a-z0-9_-][a-z0-9._-]{0,20}){0,3}") {
        let (keys, plain) = (keys(), name(&text));
        let sealed = seal(&keys, &plain).expect("short enough");
        prop_assert_eq!(open(&keys, &sealed), Some(plain.clone()));
        prop_assert_eq!(seal(&keys, &plain), Some(sealed.clone()), "the same each time");
        let other = Keys::of(&BucketKey::from_bytes([6; 32]));
        let is_readable = sealed.as_str().contains("n-");
        prop_assert!(is_readable || open(&other, &sealed).is_none());
        if let Some((above, _)) = text.rsplit_once('/') {
            let prefix = Prefix::new(format!("{above}/")).expect("a prefix");
            prop_assert!(seal_prefix(&keys, &prefix).expect("a prefix").has(&sealed));
        }
    }

    #[test]
    fn name_with_a_changed_character_is_no_name(at in 0_usize..60, with in "[0-9a-v.-]") {
        let keys = keys();
        let sealed = seal(&keys, &name("dumps/0123456789abcdef/index")).expect("short");
        let mut text = sealed.as_str().to_owned();
        let at = at % text.len();
        text.replace_range(at..=at, &with);
        let changed = Name::new(text).ok().filter(|changed| *changed != sealed);
        prop_assert!(changed.is_none_or(|changed| open(&keys, &changed).is_none()));
    }
}

#[test]
fn only_numbers_of_epochs_and_images_are_readable() {
    let keys = keys();
    let shown = |text: &str| seal(&keys, &name(text)).expect("short").as_str().to_owned();
    for text in ["images/a/epoch/fffffffe", "images/a/base/fffffffe", "images/a/root/fffffffe.fffffffd"] {
        let (_, last) = text.rsplit_once('/').expect("folders");
        assert!(shown(text).ends_with(&format!("/n-{last}")), "{text}");
        for word in text.split('/').filter(|word| *word != last && word.len() > 1) {
            assert!(!shown(text).contains(word), "{text}");
        }
    }
    for text in [
        "images/a/region/00000001/00000001.00000002",
        "images/a/list/00000001.00000002.00000003",
        "images/a/epoch/fffffffe/x",
        "images/a/root/fffffffe.x",
        "images/a/root/fffffffe.",
        "images/a/roots/fffffffe",
        "fffffffe",
        "epoch",
    ] {
        assert!(!shown(text).contains("n-"), "{text}");
    }
    let both = [shown("images/a/root/fffffffe.fffffffd"), shown("images/a/root/fffffffe.fffffffc")];
    assert!(both[1] < both[0], "the newest comes first");
}

#[test]
fn segment_of_another_folder_and_a_second_form_are_no_names() {
    let keys = keys();
    let (one, other) =
        (seal(&keys, &name("a/index")).expect("short"), seal(&keys, &name("b/index")).expect("short"));
    let last = |name: &Name| name.as_str().rsplit('/').next().expect("one").to_owned();
    assert_ne!(last(&one), last(&other), "equal segments differ between folders");
    let above = one.as_str().split('/').next().expect("one");
    assert_eq!(open(&keys, &name(&format!("{above}/{}", last(&other)))), None);
    let epoch = seal(&keys, &name("epoch/x")).expect("short");
    let folder = epoch.as_str().split('/').next().expect("one");
    assert_eq!(open(&keys, &name(&format!("{folder}/n-fffffffe"))), Some(name("epoch/fffffffe")));
    assert_eq!(open(&keys, &name(&format!("{folder}/n-fffffffe/n-fffffffe"))), None);
    assert_eq!(open(&keys, &name("n-fffffffe")), None);
}

#[test]
fn name_that_would_be_too_long_is_refused() {
    let keys = keys();
    assert!(seal(&keys, &name(&"a".repeat(109))).is_some());
    assert!(seal(&keys, &name(&"a".repeat(110))).is_none());
    let store = sealed(memory(), 1);
    let error = store.put_new(&name(&"a".repeat(110)), Bytes::new(), Nonce([1; 16]), &never());
    assert!(error.expect_err("too long").to_string().contains("too long for an encrypted bucket"));
}
