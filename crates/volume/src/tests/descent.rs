//! What a source says of the descent of its snapshots is believed only as far as it can be true.

use cairn_base::SnapshotId;

use super::*;

const BLOCKS: u64 = 1024;

/// Four snapshots in a row, each with blocks of its own.
fn source() -> (Arc<Volume>, FileId, Vec<Snapshot>) {
    let (_device, source) = fresh(BLOCKS);
    let lun = file(&source, 100);
    let row = (0..4).map(|number| {
        write(&source, lun, number * 10, 10, 1000 * number).expect("there is room");
        source.create_snapshot(&format!("s{number}")).expect("it is made")
    });
    let row = row.collect();
    (source, lun, row)
}

fn destination(source: &Volume) -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Destination)));
    let options = FormatOptions { id: source.id(), blocks: BLOCKS, role: Role::Destination };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1))).expect("it is formatted");
    open(&device)
}

/// Sends a snapshot whole, with what `lie` makes of the entries.
fn send(
    source: &Arc<Volume>,
    to: &Arc<Volume>,
    target: SnapshotId,
    lie: impl Fn(&mut Vec<cairn_format::SnapshotEntry>),
) -> Result<(), VolumeError> {
    let mut changes = source.changed_blocks(&[], target).expect("they are compared");
    let mut receiver = to.receive().expect("nothing else is received");
    for run in &changes.runs {
        let blocks = source.read_blocks(&[*run]).expect("they can be read");
        receiver.write(run.0, blocks).expect("there is room");
    }
    lie(&mut changes.snapshots);
    receiver.commit(ReceivedImage { target, snapshots: changes.snapshots })
}

fn with_parent(child: SnapshotId, parent: SnapshotId) -> impl Fn(&mut Vec<cairn_format::SnapshotEntry>) {
    move |entries| {
        for entry in entries.iter_mut().filter(|entry| entry.id == child) {
            entry.parent = parent;
        }
    }
}

fn is_refused(outcome: Result<(), VolumeError>) {
    assert!(
        matches!(&outcome, Err(VolumeError::Refused(why)) if why.contains("descend")),
        "an invented descent: {outcome:?}"
    );
}

#[test]
fn invented_descent_of_snapshots_is_refused_and_a_true_one_is_not() {
    let (source, lun, row) = source();
    let ids: Vec<SnapshotId> = row.iter().map(|snapshot| snapshot.id).collect();
    let to = destination(&source);
    // All new: what the third brought is in the fourth, and nothing between them says so.
    is_refused(send(&source, &to, ids[3], with_parent(ids[3], ids[0])));
    is_refused(send(&source, &to, ids[3], with_parent(ids[3], SnapshotId(77))));
    is_refused(send(&source, &to, ids[3], with_parent(ids[1], ids[1])));
    assert_eq!(to.snapshots().len(), 0, "the volume shows what it showed");
    send(&source, &to, ids[2], |_| {}).expect("the truth");
    // One is new, and shows what its invented parent's child brought.
    is_refused(send(&source, &to, ids[3], with_parent(ids[3], ids[0])));
    send(&source, &to, ids[3], |_| {}).expect("the truth");
    // All are known but the last, and one is said to have another past.
    let last = source.create_snapshot("last").expect("it is made");
    is_refused(send(&source, &to, last.id, with_parent(ids[3], ids[0])));
    send(&source, &to, last.id, |_| {}).expect("the truth");
    source.delete_snapshots(&[last.id]).expect("it is deleted");

    // A branch; its common ancestor is deleted, and what it brought is shown by siblings then.
    write(&source, lun, 50, 10, 5000).expect("there is room");
    let kept = source.rollback(ids[3]).expect("it is rolled back");
    send(&source, &to, kept.id, |_| {}).expect("the truth after a rollback");
    source.delete_snapshots(&[ids[1], ids[3]]).expect("they are deleted");
    write(&source, lun, 60, 10, 6000).expect("there is room");
    let branch = source.create_snapshot("branch").expect("it is made");
    is_refused(send(&source, &to, branch.id, with_parent(branch.id, ids[0])));
    send(&source, &to, branch.id, |_| {}).expect("the truth after deletions");
    to.failover().expect("it fails over");
    to.delete_snapshots(&[ids[2], branch.id]).expect("they are deleted");
    assert_eq!(read(&to, lun, 60, 10), (6060..6070).collect::<Vec<_>>());
    assert_sound(&to);
}
