use std::fs;

use super::*;

#[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
struct Document {
    word: String,
}

fn says(word: &str) -> Document {
    Document { word: word.to_owned() }
}

#[test]
fn document_that_cannot_be_read_is_not_written_over() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("peers.json");
    for damage in
        [&b""[..], b"{ \"version\": 1, \"wo", b"{ \"version\": 2, \"word\": \"new\" }", b"{ \"version\": 1 }"]
    {
        fs::write(&path, damage).unwrap();
        assert!(save(&path, &says("one")).is_err(), "{damage:?}");
        assert_eq!(fs::read(&path).unwrap(), damage);
        let (document, unread) = known::<Document>(&path);
        assert!(document.is_none() && unread.is_some(), "it is not the same as none");
    }
    fs::remove_file(&path).unwrap();
    save(&path, &says("one")).unwrap();
    assert_eq!(known(&path).0, Some(says("one")));
}

#[test]
fn generation_before_stays_where_it_does_no_harm_and_nowhere_else() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("mirror.json");
    save(&path, &says("one")).unwrap();
    assert_eq!(load(&previous(&path)).unwrap(), Some(says("one")), "of the first a copy");
    save(&path, &says("two")).unwrap();
    save(&path, &says("three")).unwrap();
    assert_eq!(load(&previous(&path)).unwrap(), Some(says("two")));
    assert_eq!(load(&path).unwrap(), Some(says("three")));
    remove(&path).unwrap();
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing is left for another of its name");
    let rights = scratch.path().join("exports.json");
    save(&rights, &says("one")).unwrap();
    save(&rights, &says("two")).unwrap();
    assert!(!previous(&rights).exists(), "what was revoked does not come back");
}

#[test]
fn two_who_write_the_same_document_leave_it_whole() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("mirror.json");
    save(&path, &says("first")).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = &path;
            scope.spawn(move || {
                // Of different lengths: a mixture of two is not a document.
                let word = "word".repeat(1 + 200 * writer);
                for _ in 0..50 {
                    save(path, &says(&word)).unwrap();
                    assert!(load::<Document>(path).unwrap().is_some());
                }
            });
        }
    });
    assert!(load::<Document>(&previous(&path)).unwrap().is_some());
}
