use super::*;

#[test]
fn note_is_of_one_dump_and_whole_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record {
        path: "home/ann".to_owned(),
        level: 3,
        date: 1000,
        snapshot: "monday".to_owned(),
        bytes: 7,
        is_part: true,
    };
    let mut had = InodeMap::new();
    [2, 17, 70_000].into_iter().for_each(|number| had.insert(number));
    save(folder.path(), &record, &had).unwrap();
    assert_eq!(load(folder.path(), &record), Some(had));
    for other in [
        Record { path: "home/bob".to_owned(), ..record.clone() },
        Record { level: 2, ..record.clone() },
        Record { date: 1001, ..record.clone() },
        Record { snapshot: "tuesday".to_owned(), ..record.clone() },
    ] {
        assert_eq!(load(folder.path(), &other), None, "{other:?}");
    }
    let path = path(folder.path(), &record.path, record.level);
    let bytes = std::fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(load(folder.path(), &record), None, "byte {at}");
        std::fs::write(&path, &bytes[..at]).unwrap();
        assert_eq!(load(folder.path(), &record), None, "{at} bytes");
    }
}
