//! Volumes opened from images in a bucket: read-only and writable, killed, without their store, and
//! with a damaged one.
//!
//! The images are made by the library that mirrors use, from the files of a server that is stopped.

mod running;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::{ByteSize, Clock, Rng, Timestamp};
use cairn_bucket::images::{BucketImages, ImagesError, Owner, VolumeImage, label_of};
use cairn_bucket::{Directory, Store, Workers};
use cairn_device::{FileDevice, FileOptions, SystemClock};
use cairn_volume::{OpenOptions, Volume};
use running::{BLOCKS, Running, content, fill, path, wait_until};
use serde_json::Value;

struct Threads;

impl Workers for Threads {
    fn start(&self, job: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        std::thread::Builder::new().spawn(job).map(drop)
    }
}

fn never() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}

fn store(folder: &Path) -> Arc<dyn Store> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    Arc::new(Directory::open(folder, clock, Rng::new(4)).unwrap())
}

/// The volume `v` of a stopped server.
fn volume_of(server: &Running) -> Arc<Volume> {
    let file = server.data.join("volumes/v/volume.img");
    let device = Arc::new(FileDevice::open(&file, FileOptions::default()).unwrap());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    Volume::open(device, OpenOptions { cache_bytes: ByteSize(16 << 20).0, clock }).unwrap()
}

/// Claims `v` in a store, as a server `source` does.
fn claim(volume: &Volume, store: &Arc<dyn Store>) -> (BucketImages, Owner) {
    let images = BucketImages::open(store.clone(), Arc::new(Threads), volume.id(), None, Rng::new(7));
    let label = label_of("v", "source");
    let owner = images.claim(&label, Timestamp(1 << 60), &never()).unwrap();
    (images, owner)
}

/// Brings a snapshot of `v` into a bucket.
fn bring(volume: &Arc<Volume>, owner: &mut Owner, snapshot: &str) {
    let id = volume.snapshot_named(snapshot).unwrap().id;
    let workers: Arc<dyn Workers> = Arc::new(Threads);
    VolumeImage::update(volume, owner, id, &workers, Timestamp(1 << 60), &never()).unwrap();
}

/// A bucket with two images of `v`; the content of each, and the owner of the bucket.
struct There {
    folder: PathBuf,
    old: Vec<u8>,
    new: Vec<u8>,
    owner: Owner,
}

fn there(dir: &Path) -> There {
    let folder = dir.join("store");
    std::fs::create_dir(&folder).unwrap();
    let mut server = running::server_with_disk(dir);
    let old = content(server.disk("v/db"));
    server.good(&["snapshot", "create", "v@old"]);
    fill(&server, 100, 900, 9);
    let new = content(server.disk("v/db"));
    server.good(&["snapshot", "create", "v@new"]);
    server.terminate();
    let (volume, store) = (volume_of(&server), store(&folder));
    let (_, mut owner) = claim(&volume, &store);
    bring(&volume, &mut owner, "old");
    bring(&volume, &mut owner, "new");
    There { folder, old, new, owner }
}

/// A server that has the bucket `offsite`.
fn with_bucket(dir: &Path, name: &str) -> Running {
    let server = Running::start(dir, name);
    server.good(&["bucket", "add", "offsite", &format!("file://{}", path(dir, "store"))]);
    server
}

fn bucket_of(server: &Running, name: &str) -> Value {
    server.json(&["volume", "show", name])["bucket"].clone()
}

fn open<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&["volume", "open"], rest].concat()
}

/// Objects of regions, the longest first.
fn regions(folder: &Path) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap().path();
            match entry.is_dir() {
                true => walk(&entry, found),
                false if entry.to_string_lossy().contains("/region/") => found.push(entry),
                false => {}
            }
        }
    }
    let mut found = Vec::new();
    walk(folder, &mut found);
    found.sort_by_key(|path| std::cmp::Reverse(std::fs::metadata(path).unwrap().len()));
    found
}

#[test]
fn read_only_opening_serves_each_image_and_claims_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut there = there(dir.path());
    let mut server = with_bucket(dir.path(), "e");
    let shown = server.good(&open(&["offsite:v", "--read-only", "--fill-rate", "0"]));
    assert!(shown.contains("opened v") && shown.contains("read-only"), "{shown}");
    assert_eq!(content(server.disk("v/db")), there.new);
    server.good(&open(&["offsite:v", "--as", "before", "--at", "old", "--read-only", "--fill-rate", "0"]));
    assert_eq!(content(server.disk("before/db")), there.old);
    let bucket = bucket_of(&server, "before");
    assert_eq!((&bucket["read_only"], &bucket["epoch"]), (&true.into(), &Value::Null), "{bucket}");
    assert!(server.disk("v/db").write(0, &[1; 4096]).is_err(), "it takes no writes");
    let advice = server.advice(13, &["snapshot", "create", "v@mine"]);
    assert!(advice.contains("without --read-only"), "{advice}");
    server.kill();
    server.restart();
    assert_eq!(content(server.disk("v/db")), there.new);
    assert_eq!(content(server.disk("before/db")), there.old);
    // The owner continues.
    let label = there.owner.newest().unwrap();
    there.owner.begin(Some(label.id), Default::default(), &never()).unwrap();
    server.bad(11, "busy", &["bucket", "delete", "offsite"]);
    server.good(&["volume", "delete", "v", "--yes"]);
    server.good(&["volume", "delete", "before", "--yes"]);
    server.good(&["bucket", "delete", "offsite"]);
}

#[test]
fn writable_opening_fences_the_owner_and_keeps_writes_after_kills() {
    let dir = tempfile::tempdir().unwrap();
    let mut there = there(dir.path());
    let mut server = with_bucket(dir.path(), "e");
    let shown = server.good(&open(&["offsite:v", "--as", "v", "--fill-rate", "0"]));
    assert!(shown.contains("fenced") && shown.contains("% local"), "{shown}");
    let newest = there.owner.newest().unwrap();
    let fenced = there.owner.begin(Some(newest.id), Default::default(), &never());
    assert!(
        matches!(fenced, Err(ImagesError::Fenced { by, .. }) if by.starts_with("v on ")),
        "fenced by name"
    );

    let mut expected = there.new.clone();
    for round in 0..3 {
        // Changes of blocks that are local and of some that are not.
        let first = 1500 * round;
        fill(&server, first, 300, 50 + round);
        let read = content(server.disk("v/db"));
        let (from, to) = (first as usize * 4096, (first as usize + 300) * 4096);
        assert_eq!(read[..from], expected[..from]);
        assert_eq!(read[to..], expected[to..]);
        expected = read;
        if round == 1 {
            // Blocks of the base are free now, and their places are written again.
            server.good(&["snapshot", "delete", "v@old", "--yes"]);
            server.good(&["snapshot", "delete", "v@new", "--yes"]);
        }
        server.kill();
        server.restart();
        assert!(content(server.disk("v/db")) == expected, "round {round}");
    }
    assert!(bucket_of(&server, "v")["regions_left"].as_u64().unwrap() > 0);
    let checked = server.good(&["volume", "check", "v", "--deep"]);
    assert!(checked.contains("is sound"), "{checked}");
    assert_eq!(BLOCKS, 6000, "the disk is longer than the rounds");
}

#[test]
fn background_makes_everything_local_and_then_the_bucket_may_go() {
    let dir = tempfile::tempdir().unwrap();
    let there = there(dir.path());
    let mut server = with_bucket(dir.path(), "e");
    server.good(&open(&["offsite:v"]));
    fill(&server, 0, 10, 77);
    wait_until("everything is local", || bucket_of(&server, "v")["regions_left"] == 0);
    server.terminate();
    server.restart();
    std::fs::rename(&there.folder, dir.path().join("gone")).unwrap();
    let read = content(server.disk("v/db"));
    assert!(read[10 * 4096..] == there.new[10 * 4096..] && read[..4096] != there.new[..4096]);
    assert!(server.good(&["volume", "show", "v"]).contains("all local"));
    server.good(&["bucket", "delete", "offsite"]);
    server.kill();
    server.restart();
    assert!(content(server.disk("v/db")) == read);
    assert!(server.good(&["volume", "check", "v", "--deep"]).contains("is sound"));
}

#[test]
fn missing_store_is_a_problem_and_its_return_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let there = there(dir.path());
    let mut server = with_bucket(dir.path(), "e");
    server.good(&open(&["offsite:v", "--fill-rate", "0"]));
    let gone = dir.path().join("gone");
    std::fs::rename(&there.folder, &gone).unwrap();
    let whole = |server: &Running| {
        let mut disk = server.disk("v/db");
        (0..24).map(|piece| disk.read(piece << 20, 1 << 20)).collect::<Result<Vec<_>, _>>()
    };
    assert!(whole(&server).is_err(), "blocks that are not local cannot be read");
    // A fetch that began before may still succeed, and hide the problem until the next failure.
    wait_until("the problem is shown", || {
        let _ = whole(&server);
        server.good(&["status"]).contains("needs blocks from bucket `offsite`")
    });
    let status = server.good(&["status"]);
    assert!(!status.contains("is damaged"), "a block that cannot be reached is not damaged: {status}");
    // A flushed write needs no store.
    let mut disk = server.disk("v/db");
    disk.write(5000 << 12, &[3; 4096]).unwrap();
    disk.flush().unwrap();
    assert_eq!(disk.read(5000 << 12, 4096).unwrap(), [3; 4096]);
    server.kill();
    server.restart();
    std::fs::rename(&gone, &there.folder).unwrap();
    wait_until("the volume is open", || server.has_export("v/db"));
    let mut expected = there.new;
    expected[5000 << 12..5001 << 12].fill(3);
    wait_until("the store is used again", || whole(&server).is_ok());
    assert!(content(server.disk("v/db")) == expected);
    assert!(!server.good(&["status"]).contains("needs blocks from bucket"));
}

#[test]
fn damaged_object_is_named_and_never_served() {
    let dir = tempfile::tempdir().unwrap();
    let there = there(dir.path());
    let server = with_bucket(dir.path(), "e");
    let mut served = false;
    for object in regions(&there.folder) {
        let sound = std::fs::read(&object).unwrap();
        let mut damaged = sound.clone();
        let last = damaged.len() - 20;
        damaged[last] ^= 4;
        std::fs::write(&object, &damaged).unwrap();
        let output = server.run(&open(&["offsite:v", "--read-only", "--fill-rate", "0"]));
        let name = object.strip_prefix(&there.folder).unwrap().to_str().unwrap().to_owned();
        if !output.status.success() {
            // A block that the opening needs.
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains(&name), "{said}");
            let _ = server.run(&["volume", "delete", "v", "--yes"]);
            std::fs::write(&object, &sound).unwrap();
            continue;
        }
        let mut disk = server.disk("v/db");
        let mut failed = 0;
        for block in 0..BLOCKS {
            let at = (block << 12) as usize;
            match disk.read(block << 12, 4096) {
                Ok(read) => assert!(read == there.new[at..at + 4096], "block {block}"),
                Err(_) => failed += 1,
            }
        }
        if failed > 0 {
            let status = server.good(&["status"]);
            assert!(status.contains(&name) && status.contains("region"), "{status}");
            served = true;
        }
        drop(disk);
        server.good(&["volume", "delete", "v", "--yes"]);
        std::fs::write(&object, &sound).unwrap();
    }
    assert!(served, "the last frame of a region has data of the disk");
}

#[test]
fn bad_input_is_refused_with_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let there = there(dir.path());
    let server = with_bucket(dir.path(), "e");
    server.bad(2, "usage", &open(&["offsite"]));
    server.bad(10, "not-found", &open(&["nothing:v"]));
    let advice = server.advice(10, &open(&["offsite:other"]));
    assert!(advice.contains("choose one of: v ("), "{advice}");
    let advice = server.advice(10, &open(&["offsite:v", "--at", "99", "--read-only"]));
    assert!(advice.contains("choose one of"), "{advice}");
    let advice = server.advice(2, &open(&["offsite:v", "--at", "old"]));
    assert!(advice.contains("--read-only"), "{advice}");
    server.bad(2, "usage", &open(&["offsite:v", "--as", "bad/name"]));
    // Devices that are too short, or not empty.
    let device = dir.path().join("device");
    std::fs::write(&device, vec![0; 1 << 20]).unwrap();
    let named = path(dir.path(), "device");
    server.bad(22, "too-small", &open(&["offsite:v", "--device", &named]));
    std::fs::write(&device, vec![1; 300 << 20]).unwrap();
    server.bad(32, "not-empty", &open(&["offsite:v", "--device", &named]));
    assert_eq!(server.json(&["volume", "list"]), serde_json::json!([]), "nothing was made");
    std::fs::write(&device, "").unwrap();
    std::fs::File::options().write(true).open(&device).unwrap().set_len(600 << 20).unwrap();
    server.good(&open(&["offsite:v", "--device", &named]));
    server.bad(21, "taken", &open(&["offsite:v"]));
    let advice = server.advice(21, &open(&["offsite:v", "--as", "again"]));
    assert!(advice.contains("--read-only"), "{advice}");
    server.good(&open(&["offsite:v", "--as", "again", "--read-only"]));
    assert!(content(server.disk("again/db")) == there.new);
    assert!(content(server.disk("v/db")) == there.new);
    server.good(&["volume", "delete", "v", "--yes"]);
    server.good(&["volume", "create", "w", "--device", &named]);
}

/// Bytes of a megabyte of the disk, which depend on its number and on `salt`.
fn megabyte(number: u64, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    Rng::new(number.wrapping_mul(1_000_003) ^ salt << 40).fill(&mut bytes);
    bytes
}

/// Writes and flushes megabytes of `big/db`.
fn write_some(server: &Running, numbers: std::ops::Range<u64>, salt: u64) {
    let mut disk = server.disk("big/db");
    for number in numbers {
        disk.write(number << 20, &megabyte(number, salt)).unwrap();
    }
    disk.flush().unwrap();
    disk.disconnect().unwrap();
}

/// Each megabyte of `big/db` has the bytes of its salt.
fn assert_salts(server: &Running, salts: &[u64]) {
    let mut disk = server.disk("big/db");
    for (number, salt) in (0..).zip(salts) {
        let read = disk.read(number << 20, 1 << 20).unwrap();
        assert!(read == megabyte(number, *salt), "megabyte {number} with salt {salt}");
    }
}

fn cache_of(server: &Running) -> Value {
    bucket_of(server, "big")["cache"].clone()
}

fn all_is_in_the_bucket(server: &Running) -> bool {
    let cache = cache_of(server);
    cache["only_here_bytes"] == 0 && cache["lag_ms"] == 0
}

const CACHE: u64 = 64 << 20;
const MEGABYTES: u64 = 400;

#[test]
fn volume_on_a_small_cache_outlives_kills_a_missing_store_and_its_machine() {
    let dir = tempfile::tempdir().unwrap();
    let (store, away) = (dir.path().join("store"), dir.path().join("away"));
    std::fs::create_dir(&store).unwrap();
    std::fs::create_dir(dir.path().join("cache")).unwrap();
    let mut server = with_bucket(dir.path(), "c");
    let create = |rest: &[&str]| -> Vec<String> {
        let all = [&["volume", "create", "big", "--bucket", "offsite:"], rest].concat();
        all.into_iter().map(ToOwned::to_owned).collect()
    };
    let disk = path(dir.path(), "cache");
    let sized = ["--size", "20T", "--cache-disk", &disk, "--lag", "2s", "--cache-size"];
    let wrong = |rest: &[&str], code| {
        let arguments = create(rest);
        server.advice(code, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert!(wrong(&[&sized[..], &["63M"]].concat(), 22).contains("at least 64 MiB"));
    wrong(&["--size", "20T", "--cache-disk", "/nothing/there", "--cache-size", "64M"], 10);
    let arguments = create(&[&sized[..], &["64M"]].concat());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    server.good(&arguments);
    server.bad(21, "taken", &arguments);
    server.good(&["lun", "create", "big/db", "--size", "1T"]);
    server.bad(11, "busy", &["mirror", "delete", "offsite:big", "--yes"]);

    // More than the cache holds, and kills in the middle.
    let mut salts = vec![0; MEGABYTES as usize];
    for part in 0..4 {
        let numbers = part * MEGABYTES / 4..(part + 1) * MEGABYTES / 4;
        write_some(&server, numbers.clone(), 1 + part);
        salts[numbers.start as usize..numbers.end as usize].fill(1 + part);
        if part % 2 == 1 {
            // Some of it is not flushed.
            let mut disk = server.disk("big/db");
            disk.write(numbers.start << 20, &megabyte(numbers.start, 1 + part)).unwrap();
            server.kill();
            server.restart();
        }
    }
    assert_salts(&server, &salts);
    let used = cache_of(&server)["used_bytes"].as_u64().unwrap();
    assert!(used <= CACHE, "{used} bytes in the cache");
    let on_disk: u64 = std::fs::read_dir(dir.path().join("cache"))
        .unwrap()
        .map(|file| std::os::unix::fs::MetadataExt::blocks(&file.unwrap().metadata().unwrap()) * 512)
        .sum();
    // Label and log are beside the cache.
    assert!(on_disk < CACHE + (112 << 20), "{on_disk} bytes on the disk");

    // Without its store it takes writes until the cache is full of what the bucket lacks.
    std::fs::rename(&store, &away).unwrap();
    let writes = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_some(&server, 0..100, 7));
        wait_until("writes wait", || cache_of(&server)["holds_back"] == true);
        let status = server.good(&["status"]);
        assert!(status.contains("writes wait: the cache of 64 MiB is full"), "{status}");
        assert!(!status.contains("read-only"), "{status}");
        std::fs::rename(&away, &store).unwrap();
        writer.join()
    });
    writes.expect("no write failed");
    salts[..100].fill(7);
    assert_salts(&server, &salts);
    wait_until("the mirror catches up", || all_is_in_the_bucket(&server));

    // The machine is lost. The volume is opened elsewhere, and the old one writes nothing more.
    server.kill();
    let other = with_bucket(dir.path(), "e");
    let opened = other.good(&open(&["offsite:big", "--cache-size", "64M", "--lag", "2s"]));
    assert!(opened.contains("a cache of 64"), "{opened}");
    assert_salts(&other, &salts);
    write_some(&other, 0..4, 9);
    salts[..4].fill(9);
    wait_until("the new owner makes images", || all_is_in_the_bucket(&other));
    server.restart();
    wait_until("the old owner is fenced", || {
        server.run(&["mirror", "update", "offsite:big"]).status.code() == Some(13)
    });
    assert_salts(&other, &salts);
    // A full cache does not keep a server from ending.
    let mut other = other;
    let mut disk = other.disk("big/db");
    std::fs::rename(&store, &away).unwrap();
    std::thread::scope(|scope| {
        let writer =
            scope.spawn(move || (0..100).try_for_each(|n| disk.write(n << 20, &megabyte(n, 11)).map(drop)));
        wait_until("writes wait", || cache_of(&other)["holds_back"] == true);
        assert!(other.terminate_in_time(), "the server ends while writes wait");
        let _ = writer.join();
    });
    std::fs::rename(&away, &store).unwrap();
}
