//! Snapshots: many of them, branches of descent, and readers of deleted ones.

use cairn_base::SnapshotId;

use super::*;

#[test]
fn blocks_shared_by_children_of_a_deleted_snapshot_stay_with_those_that_show_them() {
    let (device, volume) = fresh(4096);
    let lun = file(&volume, 100);
    let base = volume.create_snapshot("base").expect("it is made");
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let parent = volume.create_snapshot("parent").expect("it is made");
    write(&volume, lun, 50, 1, 0).expect("there is room");
    let child = volume.rollback(parent.id).expect("it rolls back");
    // The child and the active state share the blocks that the parent brought, and now have no
    // common ancestor that holds them.
    volume.delete_snapshots(&[parent.id]).expect("it is deleted");
    volume.punch(lun, Lba(0), 5).expect("it is punched");
    volume.consistency_point().expect("it commits");
    assert_sound(&volume);
    write(&volume, lun, 20, 60, 900).expect("there is room");
    volume.consistency_point().expect("it commits");
    let image = volume.image(Some(child.id)).expect("it exists");
    assert_eq!(read_image(&image, lun, 0, 10), (100..110).collect::<Vec<_>>());
    drop(image);
    volume.delete_snapshots(&[child.id]).expect("it is deleted");
    assert_eq!(read(&volume, lun, 5, 5), (105..110).collect::<Vec<_>>(), "the active state keeps its share");
    assert_sound(&volume);
    volume.delete_snapshots(&[base.id]).expect("it is deleted");
    assert_sound(&volume);
    let used = volume.status().used;
    drop(volume);
    assert_eq!(open(&device).status().used, used, "nothing leaked");
}

/// The tree of descent has branches, and some of its snapshots are deleted before.
#[test]
fn blocks_that_a_deletion_would_free_are_those_that_it_frees() {
    for seed in 0..40u64 {
        let (_device, volume) = fresh(4096);
        let lun = file(&volume, 200);
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut made = Vec::new();
        for round in 0..12 {
            for _ in 0..3 {
                write(&volume, lun, next(150), 1 + next(40), 1000 * round).expect("there is room");
            }
            made.push(volume.create_snapshot(&format!("s{round}")).expect("it is made").id);
            if next(4) == 0 {
                let goal = made[next(made.len() as u64) as usize];
                made.push(volume.rollback(goal).expect("it rolls back").id);
            }
        }
        while !made.is_empty() {
            let count = (1 + next(3)).min(made.len() as u64);
            let go: Vec<_> = (0..count).map(|_| made.remove(next(made.len() as u64) as usize)).collect();
            let before = volume.status();
            let would = volume.would_free(&go).expect("its maps are read");
            assert_eq!(volume.status().generation, before.generation, "nothing has changed");
            assert_eq!(volume.delete_snapshots(&go).expect("they are deleted"), would, "seed {seed}: {go:?}");
            assert!(volume.would_free(&go).is_err(), "they do not exist");
        }
    }
}

#[test]
fn image_names_its_snapshot_and_that_of_the_active_state_none() {
    let (_device, volume) = fresh(1024);
    for name in ["one", "two"] {
        let made = volume.create_snapshot(name).expect("it is made").id;
        let image = volume.image(Some(made)).expect("it exists");
        assert_eq!(image.snapshot(), Some(made));
    }
    assert_eq!(volume.image(None).expect("there is one").snapshot(), None);
}

#[test]
fn active_state_goes_on_from_the_snapshot_that_its_content_came_from() {
    let (device, volume) = fresh(1024);
    let lun = file(&volume, 10);
    assert_eq!(volume.active_parent(), SnapshotId(0));
    let mut made = Vec::new();
    for round in 0..3 {
        write(&volume, lun, 0, 5, 100 * round).expect("there is room");
        let snapshot = volume.create_snapshot(&format!("s{round}")).expect("it is made");
        assert_eq!(volume.active_parent(), snapshot.id);
        made.push(snapshot.id);
    }
    let before = volume.rollback(made[1]).expect("it rolls back");
    assert_eq!(volume.active_parent(), made[1]);
    let parent = |id| volume.entry(id).expect("it is there").parent;
    assert_eq!(parent(before.id), made[2], "what was there goes on from the last one");
    assert_eq!(open(&device).active_parent(), made[1]);
    volume.delete_snapshots(&[made[1]]).expect("it is deleted");
    assert_eq!(volume.active_parent(), made[0], "the nearest that is left");
    let next = volume.create_snapshot("next").expect("it is made");
    assert_eq!((volume.active_parent(), parent(next.id)), (next.id, made[0]));
}

#[test]
fn image_of_a_deleted_snapshot_is_whole_until_it_is_closed() {
    let (_device, volume) = fresh(1024);
    let lun = file(&volume, 200);
    write(&volume, lun, 0, 100, 100).expect("there is room");
    let snapshot = volume.create_snapshot("short-lived").expect("it is made");
    let image = volume.image(Some(snapshot.id)).expect("it exists");
    volume.delete_snapshots(&[snapshot.id]).expect("it is deleted");
    // The active state releases the blocks that it shared with the deleted snapshot, and needs room
    // repeatedly.
    for round in 1..20 {
        match write(&volume, lun, 0, 100, 1000 * round) {
            Ok(()) => {}
            // Nothing that an open image could show is used again.
            Err(VolumeError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
        volume.consistency_point().expect("it commits");
    }
    let shown = read_image(&image, lun, 0, 100);
    assert_eq!(shown, (100..200).collect::<Vec<_>>());
}

#[test]
fn ten_thousand_snapshots_open_and_go_again() {
    let blocks = 1 << 20;
    let (device, volume) = fresh(blocks);
    let lun = file(&volume, 1000);
    let count = 10_000;
    for number in 0..count {
        if number % 100 == 0 {
            write(&volume, lun, number / 100, 1, number).expect("there is room");
        }
        volume.create_snapshot(&format!("s{number}")).expect("it is made");
    }
    drop(volume);
    let volume = open(&device);
    let all = volume.snapshots();
    assert_eq!(all.len() as u64, count);
    let image = volume.image(Some(all[4242].id)).expect("it exists");
    assert_eq!(read_image(&image, lun, 42, 2), [4200 + 42, 0]);
    drop(image);
    assert_sound(&volume);
    let ids: Vec<_> = all.iter().map(|snapshot| snapshot.id).collect();
    volume.delete_snapshots(&ids).expect("all are deleted");
    assert_eq!(volume.status().snapshots, 0);
    assert_sound(&volume);
    drop(volume);
    let volume = open(&device);
    assert_eq!(volume.status().snapshots, 0);
    assert!(volume.status().used < 150 + 64, "{:?}", volume.status());
}

#[test]
fn small_volume_full_of_snapshots_deletes_all_at_once() {
    let (_device, volume) = fresh(1024);
    let lun = file(&volume, 10);
    let mut made = 0;
    let refusal = loop {
        match volume.create_snapshot(&format!("s{made}")) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refusal, VolumeError::TableFull), "{refusal}");
    let ids: Vec<_> = volume.snapshots().into_iter().map(|snapshot| snapshot.id).collect();
    write(&volume, lun, 0, 1, 1).expect("writing needs no room in the table");
    volume.delete_snapshots(&ids).expect("a full table can always be emptied");
    assert_eq!(volume.status().snapshots, 0);
    assert!(volume.status().latched.is_none());
    assert_sound(&volume);
}

#[test]
fn damaged_map_of_a_snapshot_harms_nothing_but_its_deletion() {
    let blocks = 4096;
    let (device, volume) = fresh(blocks);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let snapshot = volume.create_snapshot("old").expect("it is made");
    write(&volume, lun, 0, 10, 200).expect("there is room");
    volume.consistency_point().expect("it commits");
    drop(volume);
    let map = snapshot.root.active_map.pointer.vbn.0;
    device
        .write_from((cairn_format::layout::space_start(blocks) + map) * 4096, &[9; 100])
        .expect("it is there");

    // Blocks that only the lost map marked as in use must not be allocated: all blocks that it
    // described count as in use.
    let volume = open(&device);
    assert_eq!(volume.status().free, 0);
    assert_eq!(read(&volume, lun, 0, 10), (200..210).collect::<Vec<_>>());
    assert!(matches!(write(&volume, lun, 0, 1, 300), Err(VolumeError::NoSpace)));
    let found = volume.check(&mut |_| {}).expect("checking is possible").findings;
    assert!(
        found.iter().any(|finding| matches!(finding, Finding::DamagedBlock { vbn, .. } if vbn.0 == map)),
        "{found:?}"
    );
    let refused = volume.delete_snapshots(&[snapshot.id]);
    assert!(matches!(refused, Err(VolumeError::Damaged { .. })), "{refused:?}");
    assert!(volume.status().latched.is_none(), "only the deletion is refused");
    assert_eq!(
        read_image(&volume.image(Some(snapshot.id)).expect("it exists"), lun, 0, 10),
        (100..110).collect::<Vec<_>>()
    );
}

#[test]
fn deletion_that_meets_a_damaged_map_is_refused_before_it_freezes_changes() {
    let blocks = 40_000;
    let (device, volume) = fresh(blocks);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let snapshot = volume.create_snapshot("old").expect("it is made");
    write(&volume, lun, 0, 10, 200).expect("there is room");
    volume.consistency_point().expect("it commits");
    let committed = volume.state.lock().committed.clone();
    let map = volume.tree(&committed, crate::known_files::ACTIVE_MAP, snapshot.root.active_map);
    let region = map.pointers(&[Lba(0)]).remove(0).expect("the map is whole").vbn.0;
    drop(committed);
    drop(volume);
    device
        .write_from((cairn_format::layout::space_start(blocks) + region) * 4096, &[9; 100])
        .expect("it is there");

    // The second region is whole, so writes continue; they are the changes that a consistency point
    // would freeze.
    let volume = open(&device);
    write(&volume, lun, 0, 10, 300).expect("there is room");
    let refused = volume.delete_snapshots(&[snapshot.id]);
    assert!(matches!(refused, Err(VolumeError::Damaged { .. })), "{refused:?}");
    assert!(volume.status().latched.is_none(), "only the deletion is refused");
    assert_eq!(read(&volume, lun, 0, 10), (300..310).collect::<Vec<_>>());
}

#[test]
fn deletion_that_meets_a_map_that_cannot_be_read_is_refused_and_stops_no_writes() {
    let blocks = 40_000;
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(blocks, Role::Normal)));
    format(&*device, blocks);
    let volume = open(&device);
    let lun = file(&volume, 100);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let snapshot = volume.create_snapshot("old").expect("it is made");
    write(&volume, lun, 0, 10, 200).expect("there is room");
    volume.consistency_point().expect("it commits");
    let committed = volume.state.lock().committed.clone();
    let map = volume.tree(&committed, crate::known_files::ACTIVE_MAP, snapshot.root.active_map);
    let region = map.pointers(&[Lba(0)]).remove(0).expect("the map is whole").vbn.0;
    drop(committed);
    let place = (cairn_format::layout::space_start(blocks) + region) * 4096;
    device.fail_reads(place..place + 4096);
    volume.store.forget();
    for (content, salt) in [(300, 400), (400, 500)] {
        // With changes that a consistency point would freeze, and without any.
        write(&volume, lun, 0, 10, content).expect("there is room");
        let refused = volume.delete_snapshots(&[snapshot.id]);
        assert!(matches!(refused, Err(VolumeError::Device(_))), "{refused:?}");
        volume.consistency_point().expect("only the deletion is refused");
        let refused = volume.delete_snapshots(&[snapshot.id]);
        assert!(matches!(refused, Err(VolumeError::Device(_))), "{refused:?}");
        assert!(volume.status().latched.is_none());
        write(&volume, lun, 20, 1, salt).expect("there is room");
        volume.flush().expect("it flushes");
        assert_eq!(read(&volume, lun, 0, 10), (content..content + 10).collect::<Vec<_>>());
    }
    device.heal_reads();
    volume.delete_snapshots(&[snapshot.id]).expect("it can be read again");
    assert_sound(&volume);
}

#[test]
fn block_that_a_sibling_shows_stays_in_use_wherever_in_the_volume_it_stands() {
    // Two blocks of map.
    let (device, volume) = fresh(40_000);
    let lun = file(&volume, 100);
    volume.create_snapshot("first").expect("it is made");
    // From here on allocation continues after the blocks of the first map block.
    volume.state.lock().used.fill(0, 1);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    let parent = volume.create_snapshot("parent").expect("it is made");
    let shown: Vec<cairn_base::Vbn> = {
        let committed = volume.state.lock().committed.clone();
        let tree = volume.inode(lun).expect("it exists").tree;
        let lbas: Vec<Lba> = (0..10).map(Lba).collect();
        let pointers = volume.tree(&committed, lun, tree).pointers(&lbas);
        pointers.into_iter().map(|pointer| pointer.expect("it is read").vbn).collect()
    };
    assert!(shown.iter().all(|vbn| vbn.0 >= 32_768), "{shown:?}");
    write(&volume, lun, 50, 1, 1).expect("there is room");
    let sibling = volume.create_snapshot("sibling").expect("it is made");
    volume.rollback(parent.id).expect("it rolls back");
    volume.delete_snapshots(&[parent.id]).expect("it is deleted");
    write(&volume, lun, 0, 10, 500).expect("there is room");
    volume.consistency_point().expect("it commits");
    let is_used = |vbn: &cairn_base::Vbn| volume.state.lock().used.get(*vbn);
    assert!(shown.iter().all(is_used), "the sibling shows them");
    drop(volume);
    let volume = open(&device);
    let image = volume.image(Some(sibling.id)).expect("it exists");
    assert_eq!(read_image(&image, lun, 0, 10), (100..110).collect::<Vec<_>>());
    drop(image);
    assert_sound(&volume);
}
