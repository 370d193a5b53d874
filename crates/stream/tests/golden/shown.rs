//! All that a volume shows, as lines: two volumes with the same lines are the same to every client.

use std::fmt::Write;
use std::sync::Arc;

use cairn_base::{Checksum, FileId, Lba};
use cairn_files::{LunInfo, Luns};
use cairn_format::stream::chain_digest;
use cairn_volume::{BlockRead, Role, Volume};

/// Role, size, snapshots, and in the active state and each snapshot every file with the digest of
/// its content.
pub fn shown(volume: &Arc<Volume>) -> String {
    let status = volume.status();
    let mut text = String::new();
    let blocks = status.blocks;
    writeln!(text, "{} {:?} {blocks} blocks, at {:?}", status.id, status.role, status.cursor.snapshot)
        .unwrap();
    // A destination only carries the since maps of its source.
    for since in volume.since_relationships().iter().filter(|_| status.role == Role::Normal) {
        writeln!(text, "since map of {:x}", since.relationship).unwrap();
    }
    let luns = Luns::new(volume.clone());
    for snapshot in volume.snapshots() {
        let image = volume.image(Some(snapshot.id)).expect("a listed snapshot opens");
        let held = if snapshot.held { ", held" } else { "" };
        let (id, parent, generation) = (snapshot.id.0, snapshot.parent.0, snapshot.generation.0);
        let created = snapshot.created.0;
        writeln!(text, "{}: {id} of {parent}, generation {generation}, at {created}{held}", snapshot.name)
            .unwrap();
        let all = luns.list_in(&image).expect("the directory is whole");
        files(&mut text, &all, &|file, reads| image.read(file, reads, true));
    }
    writeln!(text, "active: of {}", volume.active_parent().0).unwrap();
    let all = luns.list().expect("the directory is whole");
    files(&mut text, &all, &|file, reads| volume.read(file, reads, true));
    text
}

fn files(text: &mut String, luns: &[LunInfo], read: &dyn Fn(FileId, &mut [BlockRead])) {
    for lun in luns {
        let mut reads = [BlockRead::new(Lba(0), lun.bytes.div_ceil(4096))];
        read(lun.file, &mut reads);
        let [read] = reads;
        let data = read.outcome.expect("it was waited for").expect("every block verifies").to_vec();
        let digest = data.chunks(4096).fold(Checksum::default(), chain_digest);
        writeln!(text, "  {} is file {}, {} bytes, {digest:?}", lun.name, lun.file.0, lun.bytes).unwrap();
    }
}

/// Fails with the first line that differs.
#[track_caller]
pub fn compared(found: &str, expected: &str) {
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

#[track_caller]
pub fn sound(volume: &Arc<Volume>) {
    assert_eq!(volume.check(&mut |_| {}).expect("checking is possible").findings, []);
}
