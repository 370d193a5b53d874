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

/// A file of ten blocks, of which the third rots; nothing is cached.
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
