use cairn_base::ManualClock;

use super::*;
use crate::{Memory, list_all};

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

#[test]
fn store_below_a_path_sees_its_own_objects_by_relative_names() {
    let clock = Arc::new(ManualClock::new(Timestamp(7)));
    let whole = Arc::new(Memory::new(clock.clone(), clock));
    let (cancel, nonce) = (AtomicBool::new(false), Nonce([1; 16]));
    let below = Below::at(whole.clone(), "servers/a").expect("a path");
    let put = |store: &dyn Store, at: &str| store.put_new(&name(at), "x".into(), nonce, &cancel);
    put(&*below, "images/1/one").expect("put");
    put(&*below, "images/2/two").expect("put");
    put(&*whole, "images/1/other").expect("put");
    put(&*whole, "servers/ab/images/1/other").expect("put");
    assert!(whole.head(&name("servers/a/images/1/one"), &cancel).is_ok());

    let listed = list_all(&*below, &Prefix::new("images/").expect("a prefix"), &cancel).expect("a list");
    let names: Vec<&str> = listed.iter().map(|listed| listed.name.as_str()).collect();
    assert_eq!(names, ["images/1/one", "images/2/two"]);
    let after = ListFrom::After(name("images/1/z"));
    let page = below.list(&Prefix::all(), &after, 9, &cancel).expect("a page");
    assert_eq!(page.objects.first().map(|listed| listed.name.as_str()), Some("images/2/two"));

    let upload = below.begin(&name("dumps/x"), nonce, &cancel).expect("begun");
    assert_eq!(below.uploads(&Prefix::all(), &cancel).expect("uploads"), std::slice::from_ref(&upload));
    let piece = below.put_piece(&upload, 1, "abc".into(), &cancel).expect("a piece");
    assert_eq!(below.finish(&upload, nonce, &[piece], &cancel).expect("finished"), Put::Created);
    assert_eq!(below.get(&name("dumps/x"), 0, 9, &cancel).expect("read"), "abc");
    below.delete(&name("dumps/x"), &cancel).expect("deleted");
    assert!(below.head(&name("dumps/x"), &cancel).expect_err("it is gone").is_missing());
    assert!(Below::at(whole, "no//path").is_err());
}
