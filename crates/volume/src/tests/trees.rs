//! Trees of several heights, and what differs between two.

use super::*;

const LENGTHS: [u64; 5] = [1, 126, 127, 126 * 126 + 1, 126 * 126 * 126 + 5];

#[test]
fn files_of_every_height_keep_their_first_last_and_middle_blocks() {
    let (device, volume) = fresh(4096);
    let mut luns = Vec::new();
    for length in LENGTHS {
        let lun = file(&volume, length);
        for lba in [0, length / 2, length - 1] {
            write(&volume, lun, lba, 1, 77).expect("there is room");
        }
        luns.push((lun, length));
    }
    volume.consistency_point().expect("it commits");
    drop(volume);
    let volume = open(&device);
    for (lun, length) in &luns {
        for lba in [0, length / 2, length - 1] {
            assert_eq!(read(&volume, *lun, lba, 1), [77 + lba], "block {lba} of {length}");
        }
    }
    assert_sound(&volume);
    for (lun, length) in &luns {
        volume.punch(*lun, Lba(0), *length).expect("it is punched");
    }
    volume.consistency_point().expect("it commits");
    for (lun, length) in &luns {
        assert_eq!(read(&volume, *lun, length - 1, 1), [0]);
        let inode = volume.inode(*lun).expect("it exists");
        assert!(inode.tree.pointer.is_hole(), "an empty file of {length} blocks keeps no node");
    }
    assert_sound(&volume);
}

#[test]
fn file_that_grows_taller_keeps_its_blocks_and_its_snapshots() {
    let (device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 100, 1000).expect("there is room");
    let low = volume.create_snapshot("low").expect("it is made");
    for (number, length) in LENGTHS.into_iter().skip(2).enumerate() {
        volume.compound().resize(lun, length * 4096).expect("it is resized");
        write(&volume, lun, length - 1, 1, 5).expect("there is room");
        volume.create_snapshot(&format!("taller{number}")).expect("it is made");
        assert_eq!(read(&volume, lun, 0, 100), (1000..1100).collect::<Vec<_>>());
        assert_eq!(read(&volume, lun, length - 1, 1), [length + 4]);
        assert_sound(&volume);
    }
    let base = volume.image(Some(low.id)).expect("it exists");
    let now = volume.image(None).expect("there is one");
    let ends: Vec<(Lba, u64)> = LENGTHS.into_iter().skip(2).map(|length| (Lba(length - 1), 1)).collect();
    assert_eq!(now.changed_since(&base, lun).expect("they are compared"), ends);
    assert_eq!(
        base.changed_since(&now, lun).expect("they are compared"),
        ends,
        "the other way round as well"
    );
    drop((base, now));
    volume.rollback(low.id).expect("it rolls back");
    assert_eq!(read(&volume, lun, 0, 100), (1000..1100).collect::<Vec<_>>());
    assert_sound(&volume);
    drop(volume);
    assert_sound(&open(&device));
}

#[test]
fn what_a_shorter_length_cut_off_never_comes_back() {
    let (_device, volume) = fresh(4096);
    let lun = file(&volume, 1000);
    write(&volume, lun, 0, 500, 1).expect("there is room");
    volume.consistency_point().expect("it commits");
    volume.compound().resize(lun, 100 * 4096).expect("it is resized");
    volume.compound().resize(lun, 1000 * 4096).expect("it is resized");
    assert_eq!(read(&volume, lun, 99, 3), [100, 0, 0]);
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, lun, 99, 3), [100, 0, 0]);
    assert_sound(&volume);
}

#[test]
fn number_of_a_lost_file_is_not_given_to_another() {
    let (device, volume) = fresh(1024);
    let lost = volume.compound().create(FileKind::Lun, 40_960).expect("there is room");
    write(&volume, lost, 0, 5, 9).expect("there is room");
    volume.flush().expect("it flushes");
    drop(volume);
    let volume = open(&device);
    let next = volume.compound().create(FileKind::Lun, 40_960).expect("there is room");
    assert_eq!(read(&volume, next, 0, 5), [0; 5]);
    volume.consistency_point().expect("it commits");
    assert_eq!(read(&volume, next, 0, 5), [0; 5]);
    assert_sound(&volume);
}

#[test]
fn listing_files_passes_the_numbers_of_those_that_are_gone() {
    let (_device, volume) = fresh(1024);
    let first = volume.compound().create(FileKind::Lun, 40_960).expect("there is room");
    // As many as a volume gives in the longest of lives: to look at each of them would not end.
    volume.state.lock().next_file = 1 << 44;
    let late = volume.compound().create(FileKind::Lun, 40_960).expect("there is room");
    assert_eq!(late, FileId(1 << 44));
    volume.consistency_point().expect("it commits");
    let image = volume.image(None).expect("there is one");
    let listed: Vec<FileId> = image.inodes().expect("it is read").iter().map(|inode| inode.id).collect();
    assert!(listed.contains(&first) && listed.last() == Some(&late), "{listed:?}");
    let (found, next) = image.inodes_from(FileId(1 << 30)).expect("it is read");
    assert_eq!((found.len(), next), (1, None));
    assert_sound(&volume);
}
