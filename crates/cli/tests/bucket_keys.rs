//! Key files and encrypted buckets: nothing readable in the store, other servers by their own keys,
//! wrong keys, and objects that were changed.

mod running;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use running::{Running, cairn, content, fill, path, server_with_disk};
use serde_json::Value;

/// Text on the disk that must not be found in the store.
const TEXT: &[u8] = b"a sentence that only the owner of the key may read";

/// Makes a key file, and returns its path and the public key.
fn key(dir: &Path, name: &str) -> (String, String) {
    let file = path(dir, name);
    let made = cairn().args(["key", "create", &file, "--yes", "--json"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    (file, made["recipients"][0].as_str().unwrap().to_owned())
}

/// A directory for a bucket, and its place.
fn store(dir: &Path, name: &str) -> (PathBuf, String) {
    let folder = dir.join(name);
    std::fs::create_dir(&folder).unwrap();
    let place = format!("file://{}", folder.display());
    (folder, place)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap().path();
        match entry.is_dir() {
            true => found.extend(files(&entry)),
            false => found.push(entry),
        }
    }
    found.sort();
    found
}

fn has(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|some| some == word)
}

/// Encrypted objects: neither keys nor what a probe left.
fn objects(folder: &Path) -> Vec<PathBuf> {
    let is_other = |file: &PathBuf| {
        let name = file.strip_prefix(folder).unwrap();
        !["key", "probe", ".cairn-bucket"].iter().any(|own| name.starts_with(own))
    };
    files(folder).into_iter().filter(is_other).collect()
}

#[test]
fn key_file_is_made_once_shown_and_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "own.key");
    // Without a terminal it asks for --yes, and says why.
    let asked = cairn().args(["key", "create", &file]).output().unwrap();
    assert_eq!(asked.status.code(), Some(2));
    let said = String::from_utf8(asked.stderr).unwrap();
    assert!(said.contains("data is lost") && !Path::new(&file).exists(), "{said}");
    let (file, public) = key(dir.path(), "own.key");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    let secret = text.lines().last().unwrap();
    let run = |arguments: &[&str]| cairn().args(arguments).output().unwrap();
    let shown = String::from_utf8(run(&["key", "show", &file]).stdout).unwrap();
    assert!(shown.contains(&public) && !shown.contains(secret), "{shown}");
    let again = run(&["key", "create", &file, "--yes"]);
    assert_eq!(again.status.code(), Some(21), "{again:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert_eq!(run(&["key", "show", &path(dir.path(), "none")]).status.code(), Some(10));
    let wrong = path(dir.path(), "wrong");
    std::fs::write(&wrong, format!("{}\n", secret.replace(&secret[20..22], "00"))).unwrap();
    let refused = run(&["key", "show", &wrong]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("line 1") && !said.contains(&secret[30..]));
}

#[test]
fn dumps_in_an_encrypted_bucket_are_unreadable_there_and_restored_by_each_recipient() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_disk(dir.path());
    let (own, own_public) = key(dir.path(), "own.key");
    let (other, other_public) = key(dir.path(), "other.key");
    let (folder, place) = store(dir.path(), "store");
    let added = server.good(&["bucket", "add", "b", &place, "--key", &own]);
    assert!(added.contains("AES-256-GCM") && added.contains(&own_public), "{added}");
    let shown = server.json(&["bucket", "show", "b"]);
    let id = shown["encryption"]["key_id"].as_str().unwrap().to_owned();
    assert!(server.good(&["bucket", "list"]).contains("ENCRYPTED"));
    assert!(server.good(&["bucket", "check", "b"]).contains("encrypted; its key opens"));
    assert!(server.good(&["key", "list"]).contains(&own));

    let mut disk = server.disk("v/db");
    disk.write(4 << 20, &TEXT.repeat(4096 / TEXT.len() + 1)[..4096]).unwrap();
    disk.flush().unwrap();
    drop(disk);
    let plain = server.json(&["image", "dump", "-0", "v", "b:secret/place/", "-n"])["cost"].clone();
    server.good(&["image", "dump", "-0", "v", "b:secret/place/"]);
    fill(&server, 100, 700, 700);
    let dumped =
        server.json(&["image", "dump", "-1", "v", "b:secret/place/", "--compress", "--streams", "2"]);
    let expected = content(server.disk("v/db"));
    assert!(has(&expected, TEXT));

    // Nothing of it is readable: no content, no name.
    let sealed = objects(&folder);
    assert!(sealed.len() >= 6, "{sealed:?}");
    let snapshot = dumped["snapshot"].as_str().unwrap_or("image.1").to_owned();
    let volume = server.json(&["image", "ls", "b:secret/place/"])["dumps"][0]["volume_id"].clone();
    let words = ["secret", "place", "dumps", "index", "part-", "image.", "CAIRN\0", volume.as_str().unwrap()];
    for file in &sealed {
        let bytes = std::fs::read(file).unwrap();
        let name = file.strip_prefix(&folder).unwrap().display().to_string();
        assert!(!has(&bytes, TEXT) && !has(&bytes, snapshot.as_bytes()), "{name}");
        for word in words {
            assert!(!name.contains(word) && !has(&bytes, word.as_bytes()), "{word} in {name}");
        }
    }
    let stored: u64 = sealed.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    assert!(plain["bytes"].as_u64().unwrap() < 2 * stored, "{plain} {stored}");

    // It comes back here, also after a restart.
    server.kill();
    server.restart();
    server.good(&["image", "verify", "b:secret/place/v", "--deep"]);
    server.good(&["image", "restore", "w", "b:secret/place/v"]);
    assert!(content(server.disk("w/db")) == expected);

    // Another server, without a key, with a wrong one, and as a recipient.
    let fresh = Running::start(dir.path(), "fresh");
    let said = fresh.bad(12, "peer-refused", &["bucket", "add", "far", &place]);
    assert!(said.contains("is encrypted"), "{said}");
    let advice = fresh.advice(12, &["bucket", "add", "far", &place]);
    assert!(advice.contains("--key FILE"), "{advice}");
    let advice = fresh.advice(12, &["bucket", "add", "far", &place, "--key", &other]);
    assert!(advice.contains("bucket key add"), "{advice}");
    assert_eq!(fresh.json(&["bucket", "list"]), serde_json::json!([]));
    server.bad(2, "usage", &["bucket", "key", "add", "b", "cairn1nothing"]);
    server.good(&["bucket", "key", "add", "b", &other_public]);
    let listed = server.json(&["bucket", "key", "list", "b"]);
    assert_eq!(listed["recipients"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed["key_id"], id.as_str());
    fresh.good(&["bucket", "add", "far", &place, "--key", &other]);
    assert_eq!(fresh.json(&["bucket", "show", "far"])["encryption"]["key_id"], id.as_str());
    fresh.good(&["image", "restore", "w", "far:secret/place/v"]);
    assert!(content(fresh.disk("w/db")) == expected);

    // Rotation: the first server takes the other key, and the first recipient is removed.
    server.bad(11, "busy", &["bucket", "key", "remove", "b", &own_public, "--yes"]);
    server.good(&["bucket", "key", "set", "b", &other]);
    server.good(&["bucket", "key", "remove", "b", &own_public, "--yes"]);
    server.bad(12, "peer-refused", &["bucket", "key", "set", "b", &own]);
    server.bad(10, "not-found", &["bucket", "key", "remove", "b", &own_public, "--yes"]);
    server.good(&["image", "verify", "b:secret/place/v"]);

    // The secret is in no state file or object.
    let secret = std::fs::read_to_string(&own).unwrap().lines().last().unwrap().to_owned();
    let kept =
        files(&server.data).into_iter().filter(|file| file.extension().is_some_and(|end| end == "json"));
    for file in kept.chain(files(&folder)) {
        assert!(!has(&std::fs::read(&file).unwrap(), &secret.as_bytes()[14..]), "{}", file.display());
    }
}

#[test]
fn changed_object_of_an_encrypted_bucket_is_named_and_never_restored() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_disk(dir.path());
    let (own, _) = key(dir.path(), "own.key");
    let (folder, place) = store(dir.path(), "store");
    server.good(&["bucket", "add", "b", &place, "--key", &own]);
    server.good(&["image", "dump", "-0", "v", "b:"]);
    let sealed = objects(&folder);
    let part = sealed.iter().max_by_key(|file| std::fs::metadata(file).unwrap().len()).unwrap();
    let whole = std::fs::read(part).unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let chunk = 64 + 65_552;
    let changes = [
        ("flipped", flipped(whole.len() / 2)),
        ("header", flipped(40)),
        ("truncated", whole[..whole.len() / 2].to_vec()),
        ("cut at the border of a chunk", whole[..chunk].to_vec()),
        ("extended", [&whole[..], b"x"].concat()),
        ("swapped", std::fs::read(sealed.iter().find(|file| *file != part).unwrap()).unwrap()),
    ];
    for (what, bytes) in changes {
        std::fs::write(part, bytes).unwrap();
        let said = server.bad(27, "damaged", &["image", "restore", "w", "b:v"]);
        assert!(said.contains("part-00000") && said.contains("dumps/"), "{what}: {said}");
        assert!(!server.has_export("w/db"), "{what}");
        let _ = server.run(&["image", "restore", "w", "--give-up", "--yes"]);
        let verified = server.run(&["image", "verify", "b:v", "--json"]);
        assert_eq!(verified.status.code(), Some(27), "{what}: {verified:?}");
    }
    std::fs::write(part, &whole).unwrap();
    // The smallest object is the index, which is in a list.
    let index = sealed.iter().min_by_key(|file| std::fs::metadata(file).unwrap().len()).unwrap();
    let bytes = std::fs::read(index).unwrap();
    std::fs::write(index, &bytes[..bytes.len() - 1]).unwrap();
    let said = server.bad(27, "damaged", &["image", "restore", "w", "b:v"]);
    assert!(said.contains("/index"), "{said}");
    assert_eq!(server.run(&["image", "list", "b:", "--json"]).status.code(), Some(3));
    std::fs::write(index, bytes).unwrap();
    server.good(&["image", "restore", "w", "b:v"]);
    assert!(content(server.disk("w/db")) == content(server.disk("v/db")));

    // Key objects that were changed or are gone.
    let mark = folder.join("key/bucket");
    let text = std::fs::read(&mark).unwrap();
    std::fs::write(&mark, "{}").unwrap();
    server.bad(27, "damaged", &["bucket", "check", "b"]);
    std::fs::remove_file(&mark).unwrap();
    server.bad(27, "damaged", &["bucket", "check", "b"]);
    server.good(&["bucket", "delete", "b"]);
    server.bad(27, "damaged", &["bucket", "add", "b", &place, "--key", &own]);
    server.bad(12, "peer-refused", &["bucket", "add", "b", &place]);
    std::fs::write(&mark, text).unwrap();
    server.good(&["bucket", "add", "b", &place, "--key", &own]);
    server.good(&["image", "verify", "b:v"]);
}

#[test]
fn key_that_does_not_fit_is_refused_with_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_disk(dir.path());
    let (own, public) = key(dir.path(), "own.key");
    let (folder, place) = store(dir.path(), "plain");
    server.good(&["bucket", "add", "plain", &place]);
    server.bad(2, "usage", &["bucket", "key", "list", "plain"]);
    server.good(&["image", "dump", "-0", "v", "plain:"]);
    server.good(&["bucket", "delete", "plain"]);
    let said = server.bad(32, "not-empty", &["bucket", "add", "plain", &place, "--key", &own]);
    assert!(said.contains("not encrypted"), "{said}");
    assert!(!folder.join("key").exists(), "nothing was written");
    server.good(&["bucket", "add", "plain", &place]);

    let (_, place) = store(dir.path(), "empty");
    server.bad(10, "not-found", &["bucket", "add", "x", &place, "--key", &path(dir.path(), "none")]);
    let wrong = path(dir.path(), "wrong");
    std::fs::write(&wrong, format!("{public}\n")).unwrap();
    let advice = server.advice(2, &["bucket", "add", "x", &place, "--key", &wrong]);
    assert!(advice.contains("cairn key create"), "{advice}");
    // A secret that is given as a recipient is in no answer.
    server.good(&["bucket", "add", "x", &place, "--key", &own]);
    let secret = std::fs::read_to_string(&own).unwrap().lines().last().unwrap().to_owned();
    let said = server.bad(2, "usage", &["bucket", "key", "add", "x", &secret]);
    assert!(said.contains("secret key") && !said.contains(&secret[20..]), "{said}");
    // The file is read when the bucket is used first.
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(String::from_utf8_lossy(&server.run(&["bucket", "check", "x"]).stderr).contains("chmod 600"));
}

/// Bytes of a megabyte that name the number and the text that must not be found.
fn secret_megabyte(number: u64, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    cairn_base::Rng::new(number.wrapping_mul(1_000_003) ^ salt << 40).fill(&mut bytes);
    // Each block has readable text.
    bytes.chunks_mut(4096).for_each(|block| block[..TEXT.len()].copy_from_slice(TEXT));
    bytes
}

#[test]
fn encrypted_volume_on_a_cache_outlives_kills_and_its_machine_and_opens_with_its_key_alone() {
    const MEGABYTES: u64 = 150;
    let dir = tempfile::tempdir().unwrap();
    let (own, _) = key(dir.path(), "own.key");
    let (other, other_public) = key(dir.path(), "other.key");
    let (folder, place) = store(dir.path(), "store");
    std::fs::create_dir(dir.path().join("cache")).unwrap();
    let disk = path(dir.path(), "cache");
    let mut server = Running::start(dir.path(), "c");
    server.good(&["bucket", "add", "b", &place, "--key", &own]);
    let sized = ["--size", "1T", "--cache-disk", &disk, "--lag", "2s", "--cache-size", "64M"];
    server.good(&[&["volume", "create", "big", "--bucket", "b:"], &sized[..]].concat());
    server.good(&["lun", "create", "big/db", "--size", "10G"]);
    let write = |server: &Running, numbers: std::ops::Range<u64>, salt: u64| {
        let mut disk = server.disk("big/db");
        for number in numbers {
            disk.write(number << 20, &secret_megabyte(number, salt)).unwrap();
        }
        disk.flush().unwrap();
    };
    let check = |server: &Running, salts: &[u64]| {
        let mut disk = server.disk("big/db");
        for (number, salt) in (0..).zip(salts) {
            let read = disk.read(number << 20, 1 << 20).unwrap();
            assert!(read == secret_megabyte(number, *salt), "megabyte {number} with salt {salt}");
        }
    };
    let is_saved = |server: &Running| {
        let cache = server.json(&["volume", "show", "big"])["bucket"]["cache"].clone();
        cache["only_here_bytes"] == 0 && cache["lag_ms"] == 0
    };
    // More than the cache holds, with a kill in the middle.
    let mut salts = vec![1; MEGABYTES as usize];
    write(&server, 0..MEGABYTES / 2, 1);
    server.kill();
    server.restart();
    write(&server, MEGABYTES / 2..MEGABYTES, 1);
    write(&server, 3..9, 2);
    salts[3..9].fill(2);
    check(&server, &salts);
    running::wait_until("the mirror catches up", || is_saved(&server));
    server.kill();
    // Nothing readable is in the store: no content, no name.
    for file in objects(&folder) {
        let name = file.strip_prefix(&folder).unwrap().display().to_string();
        let bytes = std::fs::read(&file).unwrap();
        assert!(!has(&bytes, TEXT) && !has(&bytes, b"CAIRN\0"), "{name} is readable");
        assert!(!["images", "region", "epoch"].iter().any(|word| name.contains(word)), "{name}");
    }

    // The machine is lost. Another server needs a key of the bucket.
    let fresh = Running::start(dir.path(), "e");
    let said = fresh.bad(12, "peer-refused", &["bucket", "add", "b", &place]);
    assert!(said.contains("is encrypted"), "{said}");
    let advice = fresh.advice(12, &["bucket", "add", "b", &place, "--key", &other]);
    assert!(advice.contains("bucket key add"), "{advice}");
    fresh.bad(10, "not-found", &["volume", "open", "b:big"]);
    server.restart();
    server.good(&["bucket", "key", "add", "b", &other_public]);
    running::wait_until("the mirror catches up", || is_saved(&server));
    server.kill();
    fresh.good(&["bucket", "add", "b", &place, "--key", &other]);
    let opened = fresh.good(&["volume", "open", "b:big", "--cache-size", "64M", "--lag", "2s"]);
    assert!(opened.contains("a cache of 64"), "{opened}");
    check(&fresh, &salts);
    write(&fresh, 0..4, 3);
    salts[..4].fill(3);
    running::wait_until("the new owner makes images", || is_saved(&fresh));
    check(&fresh, &salts);
    // The old owner is fenced, and says so.
    server.restart();
    running::wait_until("the old owner is fenced", || {
        server.run(&["mirror", "update", "b:big"]).status.code() == Some(13)
    });
    check(&fresh, &salts);

    // It grows as it is opened, with everything that was in it.
    let advice = fresh.advice(2, &["volume", "grow", "big", "--size", "2T"]);
    assert!(advice.contains("with --size"), "{advice}");
    running::wait_until("the mirror catches up", || is_saved(&fresh));
    fresh.good(&["volume", "delete", "big", "--yes"]);
    let open = ["volume", "open", "b:big", "--cache-size", "64M", "--lag", "2s", "--size"];
    let advice = fresh.advice(22, &[&open[..], &["512G"]].concat());
    assert!(advice.contains("larger --size"), "{advice}");
    fresh.good(&[&open[..], &["2T"]].concat());
    assert_eq!(fresh.json(&["volume", "show", "big"])["size_bytes"], 2_u64 << 40);
    check(&fresh, &salts);
    write(&fresh, 10..14, 5);
    salts[10..14].fill(5);
    running::wait_until("the grown volume makes images", || is_saved(&fresh));
    check(&fresh, &salts);
}
