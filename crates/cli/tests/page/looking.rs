//! The routes that the page uses for files, without a browser: every byte of downloads and
//! restores, and names of all kinds.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::running::{Running, can_mount};

/// The answer to one request on the control socket: the status, the head and the body.
fn ask(server: &Running, method: &str, path: &str, body: Option<&Value>) -> (u16, String, Vec<u8>) {
    let mut stream = UnixStream::connect(server.data.join("control.sock")).unwrap();
    let body = body.map(Value::to_string).unwrap_or_default();
    let length = body.len();
    // By HTTP/1.0 the body is not in chunks.
    write!(stream, "{method} {path} HTTP/1.0\r\nhost: cairn\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, answer[end + 4..].to_vec())
}

fn json_of(server: &Running, method: &str, path: &str, body: Option<&Value>) -> Value {
    let (status, _, bytes) = ask(server, method, path, body);
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// Restores, and waits for the end. The answer is the outcome.
fn restore(server: &Running, request: &Value) -> Value {
    let job = json_of(server, "POST", "/v1/volumes/vol0/files/restore", Some(request));
    loop {
        let path = format!("/v1/jobs/{}?within_ms=5000", job["id"].as_str().unwrap());
        let now = json_of(server, "GET", &path, None);
        match now["state"].as_str().unwrap() {
            "running" => {}
            "done" => return now["outcome"].clone(),
            _ => panic!("{now}"),
        }
    }
}

fn mounted(dir: &Path) -> (Running, PathBuf) {
    let server = Running::start_with(dir, "a", &["--mirror", "off", "--http", "127.0.0.1:0"]);
    server.good(&["volume", "create", "vol0", "--size", "512M"]);
    let mount = dir.join("mnt");
    fs::create_dir(&mount).unwrap();
    server.good(&["mount", "vol0", mount.to_str().unwrap()]);
    (server, mount)
}

/// Files of all kinds below `at`.
fn make_files(at: &Path) {
    fs::create_dir_all(at.join("deep/er")).unwrap();
    let bytes: Vec<u8> = (0..3_000_001u32).map(|at| (at / 7) as u8).collect();
    fs::write(at.join("large.bin"), bytes).unwrap();
    fs::write(at.join("empty"), "").unwrap();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(20 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"middle", 10 << 20).unwrap();
    fs::write(at.join("deep/er/secret"), "secret").unwrap();
    fs::set_permissions(at.join("deep/er/secret"), fs::Permissions::from_mode(0o4710)).unwrap();
    fs::set_permissions(at.join("deep"), fs::Permissions::from_mode(0o2751)).unwrap();
    fs::hard_link(at.join("deep/er/secret"), at.join("same")).unwrap();
    symlink("deep/../nowhere \u{e4}", at.join("link")).unwrap();
    fs::write(at.join(std::ffi::OsStr::from_bytes(b"raw \xff\n'\"%41")), "raw").unwrap();
    fs::write(at.join("n".repeat(255)), "long").unwrap();
    let deep = at.join("d".repeat(200)).join("e".repeat(200));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f".repeat(200)), "long path").unwrap();
    assert!(Command::new("mkfifo").arg(at.join("pipe")).status().unwrap().success());
}

/// All below a folder, with attributes and content.
fn shape(folder: &Path) -> Vec<(PathBuf, u32, u64, i64, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(below) = open.pop() {
        for entry in fs::read_dir(folder.join(&below)).unwrap() {
            let path = below.join(entry.unwrap().file_name());
            let whole = folder.join(&path);
            let meta = fs::symlink_metadata(&whole).unwrap();
            let content = match meta.file_type() {
                kind if kind.is_file() => fs::read(&whole).unwrap(),
                kind if kind.is_symlink() => fs::read_link(&whole).unwrap().as_os_str().as_bytes().to_vec(),
                _ => Vec::new(),
            };
            if meta.is_dir() {
                open.push(path.clone());
            }
            let length = if meta.is_dir() { 0 } else { meta.len() };
            let links = if meta.is_dir() { 0 } else { meta.nlink() as u32 };
            found.push((path, meta.mode(), length, meta.mtime(), links, content));
        }
    }
    found.sort();
    found
}

/// Extracts a zip file, and prints path, mode and time of each file in it as JSON.
const UNZIP: &str = r#"
import json, struct, sys, zipfile
zip = zipfile.ZipFile(sys.argv[1])
found = []
for info in zip.infolist():
    modified, extra = None, info.extra
    while extra:
        kind, length = struct.unpack('<HH', extra[:4])
        if kind == 0x5455: modified = struct.unpack('<i', extra[5:9])[0]
        extra = extra[4 + length:]
    found.append((info.filename.rstrip('/'), info.external_attr >> 16, modified))
zip.extractall(sys.argv[2])
print(json.dumps(found))
"#;

#[test]
fn folder_is_downloaded_as_tar_and_restored_with_every_byte_and_attribute() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (server, mount) = mounted(dir.path());
    make_files(&mount.join("folder"));
    let before = shape(&mount.join("folder"));
    server.good(&["snapshot", "create", "vol0@then"]);
    fs::write(mount.join("folder/large.bin"), "changed").unwrap();
    fs::remove_file(mount.join("folder/same")).unwrap();

    let path = "/v1/volumes/vol0/files/content?at=then&path=/folder";
    let (status, head, tar) = ask(&server, "GET", path, None);
    assert_eq!(status, 200, "{head}");
    assert!(head.contains("content-disposition: attachment; filename=\"folder.tar\""), "{head}");
    let (file, out) = (dir.path().join("folder.tar"), dir.path().join("out"));
    fs::write(&file, tar).unwrap();
    fs::create_dir(&out).unwrap();
    let mut extract = Command::new("tar");
    extract.args(["-x", "-p", "-f"]).arg(&file).arg("-C").arg(&out);
    assert!(extract.status().unwrap().success());
    assert_eq!(shape(&out.join("folder")), before);

    // As a zip file, which another program reads: all but the pipe.
    let (status, head, zip) = ask(&server, "GET", &format!("{path}&archive=zip"), None);
    assert_eq!(status, 200, "{head}");
    assert!(head.contains("content-disposition: attachment; filename=\"folder.zip\""), "{head}");
    let (file, out) = (dir.path().join("folder.zip"), dir.path().join("unzipped"));
    fs::write(&file, zip).unwrap();
    let read = Command::new("/usr/bin/python3").arg("-c").arg(UNZIP).args([&file, &out]).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let listed: Vec<(String, u32, i64)> = serde_json::from_slice(&read.stdout).unwrap();
    let is_kept = |mode: u32| [0o100_000, 0o040_000, 0o120_000].contains(&(mode & 0o170_000));
    let expected: Vec<_> = before.iter().filter(|one| is_kept(one.1)).collect();
    assert_eq!(listed.len(), expected.len() + 1, "and the folder itself");
    for (path, mode, _, modified, _, content) in expected {
        // The program takes names that are not UTF-8 for those of MS-DOS.
        let Some(name) = path.to_str() else { continue };
        assert!(listed.contains(&(format!("folder/{name}"), *mode, *modified)), "{name}: {listed:?}");
        let unzipped = out.join("folder").join(path);
        assert!(unzipped.is_dir() || fs::read(unzipped).unwrap() == *content, "{name}");
    }

    // A restore goes beside the present folder, which stays as it is.
    let now = shape(&mount.join("folder"));
    let request = json!({ "at": "then", "path": "/folder" });
    let plan = json_of(&server, "POST", "/v1/volumes/vol0/files/restore/plan", Some(&request));
    assert_eq!((plan["path"].as_str(), plan["beside"].as_bool()), (Some("/folder@then"), Some(true)));
    let done = restore(&server, &request);
    assert_eq!((done["path"].as_str(), done["beside"].as_bool()), (Some("/folder@then"), Some(true)));
    assert_eq!(shape(&mount.join("folder@then")), before);
    assert_eq!(shape(&mount.join("folder")), now);
    let sparse = fs::metadata(mount.join("folder@then/sparse")).unwrap();
    assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes: {} blocks", sparse.blocks());
    let again = restore(&server, &request);
    assert_eq!(again["path"], "/folder@then-2");
    let names: Vec<_> = fs::read_dir(&mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "nothing unfinished stays: {names:?}");

    // Of a folder that is gone, with the folders above it.
    fs::remove_dir_all(mount.join("folder")).unwrap();
    assert!(!mount.join("folder").exists());
    let done = restore(&server, &json!({ "at": "then", "path": "/folder/deep/er/secret" }));
    assert_eq!((done["path"].as_str(), done["files"].as_u64()), (Some("/folder/deep/er/secret"), Some(1)));
    let found = fs::metadata(mount.join("folder/deep/er/secret")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.len()), (0o4710, 6));
    assert_eq!(fs::metadata(mount.join("folder/deep")).unwrap().mode() & 0o7777, 0o2751);
    server.good(&["volume", "check", "vol0", "--deep"]);
}

#[test]
fn names_versions_and_downloads_of_files_are_exact() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (server, mount) = mounted(dir.path());
    make_files(&mount);
    server.good(&["snapshot", "create", "vol0@one"]);
    server.good(&["snapshot", "create", "vol0@two"]);
    fs::write(mount.join("empty"), "no more").unwrap();
    server.good(&["snapshot", "create", "vol0@three"]);
    fs::remove_file(mount.join("empty")).unwrap();

    // A listing in small pages has each name once.
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let page = json_of(&server, "GET", &format!("/v1/volumes/vol0/files?at=two&limit=3{after}"), None);
        for entry in page["entries"].as_array().unwrap() {
            names.push(entry.clone());
        }
        let Some(more) = page["more"].as_str() else { break };
        after = format!("&after={more}");
    }
    assert_eq!(names.len(), 10, "{names:?}");
    let raw = names.iter().find(|entry| entry["name_bytes"].is_string()).unwrap();
    assert_eq!(raw["name_bytes"], "raw%20%FF%0A%27%22%2541");
    let path = "/v1/volumes/vol0/files/content?at=two&path_bytes=raw%2520%25FF%250A%2527%2522%252541";
    let (status, head, body) = ask(&server, "GET", path, None);
    assert_eq!((status, &body[..]), (200, &b"raw"[..]));
    assert!(head.contains("content-length: 3") && head.contains("nosniff"), "{head}");

    let versions = json_of(&server, "GET", "/v1/volumes/vol0/files/versions?path=/empty", None);
    let versions = versions["versions"].as_array().unwrap();
    let of = |at: usize| {
        (versions[at]["at"].as_str(), versions[at]["since"].as_str(), versions[at]["entry"]["bytes"].as_u64())
    };
    assert_eq!(versions.len(), 3, "{versions:?}");
    assert_eq!(of(0), (None, None, None));
    assert_eq!(of(1), (Some("three"), Some("three"), Some(7)));
    assert_eq!(of(2), (Some("two"), Some("one"), Some(0)));

    // A prepared download works once, and needs no other credentials.
    let place = json!({ "at": "one", "path": "/large.bin" });
    let prepared = json_of(&server, "POST", "/v1/volumes/vol0/files/downloads", Some(&place));
    assert_eq!(
        (prepared["file_name"].as_str(), prepared["bytes"].as_u64()),
        (Some("large.bin"), Some(3_000_001))
    );
    let url = prepared["url"].as_str().unwrap();
    let (status, _, body) = ask(&server, "GET", url, None);
    assert!(status == 200 && body == fs::read(mount.join("large.bin")).unwrap());
    assert_eq!(ask(&server, "GET", url, None).0, 404);

    // One that was prepared with a token works no more once that is revoked.
    let secret = server.good(&["token", "create", "loader", "--role", "operator"]);
    let http = server.json(&["status"])["http"][1].as_str().unwrap().to_owned();
    let over_tcp = |method: &str, path: &str, body: &str| {
        let mut stream = std::net::TcpStream::connect(&http).unwrap();
        let secret = secret.trim();
        write!(stream, "{method} {path} HTTP/1.0\r\nhost: {http}\r\nauthorization: Bearer {secret}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let mut urls = (0..2).map(|_| {
        let answer = over_tcp("POST", "/v1/volumes/vol0/files/downloads", &place.to_string());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Value>(body).unwrap()["url"].as_str().unwrap().to_owned()
    });
    let (first, second) = (urls.next().unwrap(), urls.next().unwrap());
    assert_eq!(ask(&server, "GET", &first, None).0, 200);
    server.good(&["token", "revoke", "loader", "--yes"]);
    assert_eq!(ask(&server, "GET", &second, None).0, 404);

    for (method, path, body, expected) in [
        ("GET", "/v1/volumes/vol0/files?path=/none", None, 404),
        ("GET", "/v1/volumes/vol0/files?path=/../etc", None, 400),
        ("GET", "/v1/volumes/vol0/files?path=/large.bin", None, 400),
        ("GET", "/v1/volumes/vol0/files?at=never", None, 404),
        ("GET", "/v1/volumes/vol0/files?after=x", None, 400),
        ("GET", "/v1/volumes/vol0/files/content?path=/pipe", None, 400),
        ("GET", "/download/none", None, 404),
        ("POST", "/v1/volumes/vol0/files/restore", Some(json!({ "at": "one", "path": "/" })), 400),
        ("POST", "/v1/volumes/vol0/files/restore", Some(json!({ "at": "one", "path": "/none" })), 404),
    ] {
        let (status, _, answer) = ask(&server, method, path, body.as_ref());
        assert_eq!(status, expected, "{path}: {}", String::from_utf8_lossy(&answer));
    }
}

/// A client that reads slowly takes no memory for the rest of a file, and one that leaves ends it.
#[test]
fn download_waits_for_its_client_and_ends_with_it() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (server, mount) = mounted(dir.path());
    let bytes: Vec<u8> = (0..64u32 << 20).map(|at| (at / 4096) as u8).collect();
    fs::write(mount.join("large"), &bytes).unwrap();
    server.good(&["snapshot", "create", "vol0@then"]);
    fs::remove_file(mount.join("large")).unwrap();
    let begin = || {
        let mut stream = UnixStream::connect(server.data.join("control.sock")).unwrap();
        write!(
            stream,
            "GET /v1/volumes/vol0/files/content?at=then&path=/large HTTP/1.0\r\nhost: cairn\r\n\r\n"
        )
        .unwrap();
        let mut some = [0; 1000];
        stream.read_exact(&mut some).unwrap();
        (stream, some)
    };
    let waiting: Vec<_> = (0..8).map(|_| begin()).collect();
    assert_eq!(server.threads("download"), 8);
    let (status, _, answer) = ask(&server, "GET", "/v1/volumes/vol0/files/content?at=then&path=/large", None);
    assert_eq!(status, 409, "{}", String::from_utf8_lossy(&answer));
    let mut waiting = waiting.into_iter();
    let (mut stream, some) = waiting.next().unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let whole = [&some[..], &rest].concat();
    assert!(whole.ends_with(&bytes), "{} bytes of {}", whole.len(), bytes.len());
    drop((stream, waiting));
    crate::running::wait_until("all downloads have ended", || server.threads("download") == 0);
}

/// The stream of changes has an event for each change, and ends with the server.
#[test]
fn stream_of_changes_tells_of_a_new_volume_and_ends_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "a");
    let mut stream = UnixStream::connect(server.data.join("control.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET /v1/changes HTTP/1.0\r\nhost: cairn\r\n\r\n").unwrap();
    let mut text = String::new();
    let mut until = |stream: &mut UnixStream, word: &str| {
        let mut some = [0; 1000];
        while !text.contains(word) {
            let count = stream.read(&mut some).unwrap();
            assert!(count > 0, "{text}");
            text += &String::from_utf8_lossy(&some[..count]);
        }
    };
    until(&mut stream, ": hello");
    std::thread::sleep(Duration::from_millis(1500));
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    until(&mut stream, "data: changed");
    let began = std::time::Instant::now();
    server.terminate();
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
