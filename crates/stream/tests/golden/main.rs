//! Images and streams of every released format, opened by this program: it reads everything that an
//! older Cairn wrote.
//!
//! `vN/` holds files written by version N, and their whole content in `shown.txt`. The files are a
//! volume in the middle of its life (flushed writes wait in its intent log), a destination in the
//! middle of its life (blocks in the redirect area), a baseline and an update. `vN-log-device/`
//! holds a volume with its intent log on a device of its own, and that device; `vN-many-segments/`
//! a volume of many segments; `dump-vN/` an image dump in two parts and an incremental one. Those
//! of a release are never made anew. A format change adds the next folder: raise the version, set
//! `NEWEST` to the folder, and run `cargo test -p cairn-stream --test golden -- --ignored
//! golden_images_are_written`. `docs/format.md` has the whole recipe.

mod dumps;
mod life;
mod shown;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_device::{Device, MemoryDevice};
use cairn_format::layout::VERSION;
use cairn_format::stream::STREAM_VERSION;
use cairn_stream::{Applied, StreamError, Work, apply};
use cairn_volume::{FormatOptions, LogTarget, Role, Volume};

use life::{ID, clock, open};
use shown::{compared, shown, sound};

/// Every version with golden images.
const VERSIONS: &[&str] = &["v1"];
/// Where the images of this program's version are.
const NEWEST: &str = "v1";
/// Every version with a golden volume of many segments.
const VERSIONS_IN_PIECES: &[&str] = &["v1-many-segments"];
/// Where that of this program's version is.
const NEWEST_IN_PIECES: &str = "v1-many-segments";
/// Every version with a golden volume on a log device.
const VERSIONS_WITH_LOG: &[&str] = &["v1-log-device"];
/// Where that of this program's version is.
const NEWEST_WITH_LOG: &str = "v1-log-device";

fn folder(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version)
}

fn unpacked(version: &str, name: &str) -> Vec<u8> {
    let packed = std::fs::read(folder(version).join(name)).expect("a golden file is there");
    zstd::stream::decode_all(&packed[..]).expect("a golden file is one of zstd")
}

fn device(version: &str, name: &str) -> Arc<MemoryDevice> {
    let bytes = unpacked(version, name);
    let device = Arc::new(MemoryDevice::new(bytes.len() as u64));
    for (index, block) in bytes.chunks(4096).enumerate().filter(|(_, block)| block.iter().any(|b| *b != 0)) {
        device.write_from(index as u64 * 4096, block).expect("memory takes writes");
    }
    device
}

fn take(stream: &[u8], into: &Arc<Volume>) -> Result<Applied, StreamError> {
    let cancel = AtomicBool::new(false);
    apply(&mut &stream[..], into, &mut Work { cancel: &cancel, progress: &mut |_| {}, threads: None })
}

/// The part of `shown.txt` under a heading.
fn expected(version: &str, heading: &str) -> String {
    let text = std::fs::read_to_string(folder(version).join("shown.txt")).expect("what they show is there");
    let part = text.split("# ").find(|part| part.lines().next() == Some(heading));
    part.and_then(|part| part.split_once('\n')).expect("each golden file has a part").1.to_owned()
}

#[test]
fn golden_volume_opens_with_everything_that_was_flushed() {
    for version in VERSIONS.iter().chain(VERSIONS_IN_PIECES) {
        let device = device(version, "volume.img.zst");
        let volume = open(&device);
        assert!(volume.status().dirty > 0, "{version}: the log was replayed");
        compared(&shown(&volume), &expected(version, "volume"));
        sound(&volume);
    }
}

#[test]
fn golden_volume_goes_on_living() {
    for version in VERSIONS.iter().chain(VERSIONS_IN_PIECES) {
        let device = device(version, "volume.img.zst");
        let volume = open(&device);
        let before = shown(&volume);
        volume.consistency_point().expect("it commits");
        life::work_on(&volume);
        sound(&volume);
        volume.close().expect("it closes");
        let volume = open(&device);
        sound(&volume);
        let undo = volume.snapshot_named("held").expect("the golden volume has it");
        volume.rollback(undo.id).expect("it rolls back");
        for snapshot in volume.snapshots() {
            volume.hold_snapshot(snapshot.id, false).expect("it is released");
        }
        let all: Vec<_> = volume.snapshots().iter().map(|snapshot| snapshot.id).collect();
        volume.delete_snapshots(&all).expect("they are deleted");
        sound(&volume);
        assert_ne!(before, shown(&volume), "it was changed");
    }
}

#[test]
fn golden_volume_with_a_log_device_opens_with_everything_that_was_flushed() {
    for version in VERSIONS_WITH_LOG {
        let (device, log) = (device(version, "volume.img.zst"), device(version, "log.img.zst"));
        let volume = life::open_with_log(&device, &log);
        assert!(volume.status().dirty > 0, "{version}: the log was replayed");
        compared(&shown(&volume), &expected(version, "volume"));
        sound(&volume);
        life::work_on(&volume);
        let now = shown(&volume);
        drop(volume);
        let volume = life::open_with_log(&device, &log);
        compared(&shown(&volume), &now);
        sound(&volume);
        volume.move_log(&LogTarget::Internal).expect("it moves");
        drop(volume);
        compared(&shown(&open(&device)), &now);
    }
}

#[test]
fn golden_destination_shows_its_image_while_and_after_blocks_move_home() {
    for version in VERSIONS {
        let device = device(version, "destination.img.zst");
        let volume = open(&device);
        assert!(volume.status().redirected > 0, "{version}: it has redirected blocks");
        assert_eq!(volume.status().role, Role::Destination);
        let expected = expected(version, "destination");
        compared(&shown(&volume), &expected);
        sound(&volume);
        while volume.status().redirected > 0 {
            volume.background(std::time::Duration::ZERO).expect("background work");
        }
        compared(&shown(&volume), &expected);
        sound(&volume);
        volume.failover().expect("it fails over");
        life::work_on(&volume);
        sound(&volume);
    }
}

#[test]
fn golden_streams_bring_what_they_brought() {
    for version in VERSIONS {
        let device = Arc::new(MemoryDevice::new(Volume::device_bytes(life::BLOCKS, Role::Destination)));
        let options = FormatOptions { id: ID, blocks: life::BLOCKS, role: Role::Destination };
        Volume::format(&*device, &options, &*clock()).expect("an empty device is formatted");
        let volume = open(&device);
        take(&unpacked(version, "baseline.stream.zst"), &volume).expect("the baseline is taken");
        compared(&shown(&volume), &expected(version, "baseline"));
        take(&unpacked(version, "update.stream.zst"), &volume).expect("the update is taken");
        compared(&shown(&volume), &expected(version, "update"));
        sound(&volume);
        drop(volume);
        compared(&shown(&open(&device)), &expected(version, "update"));
    }
}

/// Without golden images a format would lose its readers unnoticed.
#[test]
fn this_version_has_golden_images() {
    assert_eq!((NEWEST, VERSION, STREAM_VERSION), ("v1", 1, 1), "read the head of this file");
    assert!(VERSIONS.contains(&NEWEST));
    assert!([NEWEST_IN_PIECES, NEWEST_WITH_LOG].iter().all(|folder| folder.starts_with("v1-")));
    assert!(VERSIONS_WITH_LOG.contains(&NEWEST_WITH_LOG) && VERSIONS_IN_PIECES.contains(&NEWEST_IN_PIECES));
}

#[test]
#[ignore = "writes the golden images of a new version; those of a released one are never made anew"]
fn golden_images_are_written() {
    let is_there = |version: &str| folder(version).join("shown.txt").exists();
    let all = [NEWEST, NEWEST_WITH_LOG, NEWEST_IN_PIECES];
    assert!(!all.into_iter().all(is_there), "all exist and stay as they are");
    if !is_there(NEWEST) {
        keep(NEWEST, &life::lived());
    }
    if !is_there(NEWEST_WITH_LOG) {
        keep(NEWEST_WITH_LOG, &life::lived_with_log());
    }
    if !is_there(NEWEST_IN_PIECES) {
        keep(NEWEST_IN_PIECES, &life::lived_in_pieces());
    }
}

fn keep(version: &str, made: &life::Made) {
    let folder = folder(version);
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, bytes) in &made.files {
        let packed = zstd::bulk::compress(bytes, 19).expect("it is packed");
        std::fs::write(folder.join(format!("{name}.zst")), packed).expect("it is written");
    }
    let text: String = made.shown.iter().map(|(heading, text)| format!("# {heading}\n{text}")).collect();
    std::fs::write(folder.join("shown.txt"), text).expect("it is written");
}
