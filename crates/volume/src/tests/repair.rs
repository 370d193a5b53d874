//! Damaged blocks are remembered, and mended with nothing but their own content.

use cairn_base::{Checksum, Rng};

use super::*;

const BLOCKS: u64 = 1024;

fn offset(vbn: u64) -> u64 {
    (cairn_format::layout::space_start(BLOCKS) + vbn) * 4096
}

/// The place of block `lba` of a file, as of the last consistency point.
fn vbn_of(volume: &Arc<Volume>, file: FileId, lba: u64) -> u64 {
    let committed = volume.state.lock().committed.clone();
    let inode = volume.inode(file).expect("the file exists");
    let pointer = volume.tree(&committed, file, inode.tree).pointers(&[Lba(lba)]).remove(0);
    pointer.expect("the way to it is whole").vbn.0
}

fn stored<D: Device>(device: &D, vbn: u64) -> Block {
    let mut bytes = cairn_device::BlockMut::zeroed();
    device.read_into(offset(vbn), &mut bytes[..]).expect("it is there");
    bytes.freeze()
}

/// A file of ten blocks with the third one damaged; nothing is cached.
fn rotten() -> (Arc<FaultDevice>, Arc<Volume>, FileId, u64) {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let lun = file(&volume, 10);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let vbn = vbn_of(&volume, lun, 2);
    volume.close().expect("it closes");
    device.corrupt(offset(vbn), 4096, &mut Rng::new(1));
    (device.clone(), open(&device), lun, vbn)
}

fn read_fails(volume: &Arc<Volume>, file: FileId, lba: u64) {
    let mut reads = [BlockRead::new(Lba(lba), 1)];
    volume.read(file, &mut reads, true);
    assert!(matches!(reads[0].outcome, Some(Err(_))), "{reads:?}");
}

#[test]
fn damaged_block_is_remembered_and_repaired_with_its_own_content_only() {
    let (device, volume, lun, vbn) = rotten();
    assert_eq!(volume.damaged(), []);
    read_fails(&volume, lun, 2);
    let checksum = Checksum::of(&block(102)[..]);
    let damaged =
        DamagedBlock { vbn: cairn_base::Vbn(vbn), checksum, place: Place::Data { file: lun, lba: Lba(2) } };
    assert_eq!(volume.damaged(), [damaged]);
    let wrong = volume.repair(damaged.vbn, checksum, &block(103));
    assert!(matches!(wrong, Err(VolumeError::Refused(_))), "{wrong:?}");
    let other = Checksum::of(&block(103)[..]);
    let wrong = volume.repair(damaged.vbn, other, &block(103));
    assert!(matches!(wrong, Err(VolumeError::Refused(_))), "{wrong:?}");
    read_fails(&volume, lun, 2);
    assert_eq!(volume.repair(damaged.vbn, checksum, &block(102)).expect("it is"), Repaired::Written);
    assert_eq!(volume.damaged(), []);
    assert_eq!(read(&volume, lun, 0, 10), (100..110).collect::<Vec<_>>());
    assert_sound(&volume);
    drop(volume);
    assert_eq!(read(&open(&device), lun, 0, 10), (100..110).collect::<Vec<_>>());
}

#[test]
fn block_that_only_a_snapshot_shows_is_repaired() {
    let (_device, volume, lun, vbn) = rotten();
    let snapshot = volume.create_snapshot("old").expect("it is made");
    write(&volume, lun, 0, 10, 200).expect("there is room");
    volume.consistency_point().expect("it commits");
    let found = volume.check(&mut |_| {}).expect("checking is possible").findings;
    assert_eq!(found.len(), 1, "{found:?}");
    let checksum = Checksum::of(&block(102)[..]);
    let repaired = volume.repair(cairn_base::Vbn(vbn), checksum, &block(102));
    assert_eq!(repaired.expect("it is"), Repaired::Written);
    let image = volume.image(Some(snapshot.id)).expect("it exists");
    assert_eq!(read_image(&image, lun, 0, 10), (100..110).collect::<Vec<_>>());
    assert_sound(&volume);
}

#[test]
fn node_is_repaired_and_writes_below_it_go_on() {
    let (device, volume) = fresh(BLOCKS);
    let lun = file(&volume, 10);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let leaf = volume.inode(lun).expect("it exists").tree.pointer;
    let whole = stored(&*device, leaf.vbn.0);
    volume.close().expect("it closes");
    device.write_from(offset(leaf.vbn.0), &[9; 100]).expect("it is there");
    let volume = open(&device);
    assert!(write(&volume, lun, 0, 1, 7).is_err());
    volume.compound().remove(lun).expect("its name is taken away");
    volume.background(std::time::Duration::ZERO).expect("background work goes on");
    assert_eq!(volume.repair(leaf.vbn, leaf.checksum, &whole).expect("it is"), Repaired::Written);
    write(&volume, lun, 0, 1, 7).expect("the node is whole");
    let used = volume.status().used;
    volume.background(std::time::Duration::ZERO).expect("the removed file can be freed now");
    volume.consistency_point().expect("it commits");
    assert!(volume.status().used < used, "the removed file is freed");
    assert_sound(&volume);
}

#[test]
fn block_that_was_damaged_before_stays_known_while_nobody_can_say_how_it_is() {
    let (device, volume) = fresh(BLOCKS);
    let lun = file(&volume, 10);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let leaf = volume.inode(lun).expect("it exists").tree.pointer;
    let (vbn, whole) = (vbn_of(&volume, lun, 2), stored(&*device, leaf.vbn.0));
    volume.close().expect("it closes");
    device.write_from(offset(vbn), &[9; 100]).expect("it is there");
    device.write_from(offset(leaf.vbn.0), &[9; 100]).expect("it is there");
    let volume = open(&device);
    let checksum = Checksum::of(&block(102)[..]);
    let damaged =
        DamagedBlock { vbn: cairn_base::Vbn(vbn), checksum, place: Place::Data { file: lun, lba: Lba(2) } };
    volume.remember_damaged([damaged]);
    let looked = volume.look_again(&damaged);
    assert!(matches!(looked, Err(VolumeError::Refused(_))), "{looked:?}");
    assert!(volume.damaged().contains(&damaged), "{:?}", volume.damaged());
    assert_eq!(volume.repair(leaf.vbn, leaf.checksum, &whole).expect("it is"), Repaired::Written);
    assert_eq!(volume.look_again(&damaged).expect("the way is whole"), Health::Damaged);
    assert_eq!(volume.damaged(), [damaged]);
    assert_eq!(volume.repair(damaged.vbn, checksum, &block(102)).expect("it is"), Repaired::Written);
    assert_eq!(volume.damaged(), []);
    assert_sound(&volume);
}

#[test]
fn block_that_was_given_to_another_file_meanwhile_is_left_alone() {
    let (_device, volume, lun, vbn) = rotten();
    read_fails(&volume, lun, 2);
    volume.punch(lun, Lba(0), 10).expect("it is punched");
    volume.consistency_point().expect("it commits");
    let other = file(&volume, 100);
    let reused = (1..40).find(|round| {
        write(&volume, other, 0, 100, round * 1000).expect("there is room");
        volume.consistency_point().expect("it commits");
        (0..100).any(|lba| vbn_of(&volume, other, lba) == vbn)
    });
    let salt = reused.expect("places are used in turn") * 1000;
    let checksum = Checksum::of(&block(102)[..]);
    let repaired = volume.repair(cairn_base::Vbn(vbn), checksum, &block(102));
    assert_eq!(repaired.expect("nothing is to be done"), Repaired::Gone);
    volume.store.forget();
    assert_eq!(read(&volume, other, 0, 100), (salt..salt + 100).collect::<Vec<_>>());
    assert_sound(&volume);
}

#[test]
fn block_that_can_be_read_again_is_not_written() {
    let (device, volume) = {
        let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
        format(&*device, BLOCKS);
        let volume = open(&device);
        (device, volume)
    };
    let lun = file(&volume, 10);
    write(&volume, lun, 0, 10, 100).expect("there is room");
    volume.consistency_point().expect("it commits");
    let vbn = vbn_of(&volume, lun, 2);
    volume.store.forget();
    device.fail_reads(offset(vbn)..offset(vbn) + 4096);
    read_fails(&volume, lun, 2);
    device.heal_reads();
    device.take_log();
    let checksum = Checksum::of(&block(102)[..]);
    let repaired = volume.repair(cairn_base::Vbn(vbn), checksum, &block(102));
    assert_eq!(repaired.expect("it is"), Repaired::Sound);
    assert_eq!(device.take_log(), [], "nothing was written");
}

#[test]
fn repair_that_is_cut_leaves_a_damaged_block_or_a_right_one() {
    let checksum = Checksum::of(&block(102)[..]);
    let (mut damaged, mut right) = (0, 0);
    for seed in 0..60 {
        let (device, volume, lun, vbn) = rotten();
        read_fails(&volume, lun, 2);
        device.cut_after(seed % 3);
        let _ = volume.repair(cairn_base::Vbn(vbn), checksum, &block(102));
        drop(volume);
        let device = Arc::new(device.power_cycle(&mut Rng::new(seed)));
        let volume = open(&device);
        let mut reads = [BlockRead::new(Lba(2), 1)];
        volume.read(lun, &mut reads, true);
        match &reads[0].outcome {
            Some(Ok(bytes)) => {
                assert!(bytes.to_vec()[..] == block(102)[..]);
                right += 1;
            }
            Some(Err(VolumeError::Damaged { .. })) => {
                damaged += 1;
                let repaired = volume.repair(cairn_base::Vbn(vbn), checksum, &block(102));
                assert_eq!(repaired.expect("it is tried again"), Repaired::Written);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(read(&volume, lun, 0, 10), (100..110).collect::<Vec<_>>());
        assert_sound(&volume);
    }
    assert!(damaged > 0 && right > 0, "{damaged} damaged, {right} right");
}

fn damaged_at(volume: &Arc<Volume>, file: FileId, lba: u64) -> DamagedBlock {
    let here = Place::Data { file, lba: Lba(lba) };
    let known = volume.damaged();
    *known.iter().find(|block| block.place == here).expect("it is known")
}

#[test]
fn block_that_is_gone_is_forgotten_whatever_else_is_damaged() {
    let device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
    format(&*device, BLOCKS);
    let volume = open(&device);
    let (lun, other) = (file(&volume, 10), file(&volume, 10));
    write(&volume, lun, 0, 10, 100).expect("there is room");
    write(&volume, other, 0, 10, 200).expect("there is room");
    volume.consistency_point().expect("it commits");
    let victims = [(lun, 2), (lun, 3), (lun, 4), (other, 5)];
    for (file, lba) in victims {
        device.corrupt(offset(vbn_of(&volume, file, lba)), 4096, &mut Rng::new(1));
    }
    volume.store.forget();
    victims.iter().for_each(|(file, lba)| read_fails(&volume, *file, *lba));
    let blocks = victims.map(|(file, lba)| damaged_at(&volume, file, lba));
    // No root has the first two any more.
    write(&volume, lun, 2, 2, 300).expect("there is room");
    volume.consistency_point().expect("it commits");
    assert_eq!(volume.look_again(&blocks[0]).expect("the way is whole"), Health::Gone);
    let repaired = volume.repair(blocks[1].vbn, blocks[1].checksum, &block(103));
    assert_eq!(repaired.expect("the way is whole"), Repaired::Gone);
    let left: Vec<Place> = volume.damaged().iter().map(|block| block.place).collect();
    assert_eq!(left, [blocks[2].place, blocks[3].place]);
    assert_eq!(volume.look_again(&blocks[2]).expect("the way is whole"), Health::Damaged);
}

#[test]
fn block_of_a_file_whose_inode_can_not_be_read_is_not_called_gone() {
    let (device, volume, lun, _) = rotten();
    read_fails(&volume, lun, 2);
    let damaged = damaged_at(&volume, lun, 2);
    let committed = volume.state.lock().committed.clone();
    let tree = volume.tree(&committed, crate::known_files::INODE_FILE, committed.root.inode_file);
    let inodes = tree.pointer_at_level(0, cairn_format::Inode::place(lun).0).expect("it is whole");
    let whole = stored(&*device, inodes.vbn.0);
    device.corrupt(offset(inodes.vbn.0), 4096, &mut Rng::new(2));
    volume.store.forget();
    let looked = volume.look_again(&damaged);
    assert!(matches!(looked, Err(VolumeError::Refused(_))), "{looked:?}");
    assert!(volume.damaged().contains(&damaged));
    assert_eq!(volume.repair(inodes.vbn, inodes.checksum, &whole).expect("it is"), Repaired::Written);
    assert_eq!(volume.look_again(&damaged).expect("the way is whole"), Health::Damaged);
}

#[test]
fn block_that_was_repaired_stays_so_when_the_power_goes() {
    let (device, volume, lun, vbn) = rotten();
    read_fails(&volume, lun, 2);
    let checksum = Checksum::of(&block(102)[..]);
    assert_eq!(volume.repaired_blocks(), 0);
    let repaired = volume.repair(cairn_base::Vbn(vbn), checksum, &block(102));
    assert_eq!(repaired.expect("it is"), Repaired::Written);
    assert_eq!(volume.repaired_blocks(), 1);
    let volume = open(&Arc::new(device.durable_snapshot()));
    assert_eq!(read(&volume, lun, 0, 10), (100..110).collect::<Vec<_>>());
}

#[test]
fn block_that_can_not_be_read_after_its_repair_stays_known_as_damaged() {
    let (device, volume, lun, vbn) = rotten();
    read_fails(&volume, lun, 2);
    let damaged = damaged_at(&volume, lun, 2);
    device.fail_reads(offset(vbn)..offset(vbn) + 4096);
    let repaired = volume.repair(damaged.vbn, damaged.checksum, &block(102));
    assert!(matches!(repaired, Err(VolumeError::Damaged { .. })), "{repaired:?}");
    assert_eq!((volume.damaged(), volume.repaired_blocks()), (vec![damaged], 0));
}

#[test]
fn closed_volume_repairs_nothing() {
    let (device, volume, lun, vbn) = rotten();
    read_fails(&volume, lun, 2);
    let damaged = damaged_at(&volume, lun, 2);
    volume.close().expect("it closes");
    // The volume that has it open now may have reused the block for another file.
    device.write_from(offset(vbn), &block(777)[..]).expect("it is there");
    let repaired = volume.repair(damaged.vbn, damaged.checksum, &block(102));
    assert!(matches!(repaired, Err(VolumeError::Closed)), "{repaired:?}");
    assert!(stored(&*device, vbn)[..] == block(777)[..]);
}
