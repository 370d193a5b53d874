//! Buckets: adding, checking and deleting them, reports of their faults with the next step, and
//! image dumps in them.

mod running;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use running::{PATIENCE, Running, content, fill, path, refused};
use serde_json::Value;

/// Within this time a store that cannot be reached is reported.
const REPORTED_WITHIN: Duration = Duration::from_secs(60);

/// A directory that a bucket may have; its place.
fn directory(dir: &Path, name: &str) -> String {
    let folder = path(dir, name);
    std::fs::create_dir(&folder).unwrap();
    format!("file://{folder}")
}

fn is_safe(bucket: &Value, what: &str) -> bool {
    let uses = bucket["uses"].as_array().unwrap();
    uses.iter().find(|found| found["use"] == what).unwrap()["allowed"].as_bool().unwrap()
}

/// Names of files below a directory.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap().path();
        match entry.is_dir() {
            true => found.extend(files(&entry)),
            false => found.push(entry.display().to_string()),
        }
    }
    found
}

#[test]
fn bucket_in_a_directory_is_added_checked_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    assert_eq!(server.json(&["bucket", "list"]), serde_json::json!([]));
    let place = directory(dir.path(), "store");
    let added = server.good(&["bucket", "add", "local", &place]);
    assert!(added.contains("image dumps  safe") && added.contains("create-only"), "{added}");
    let shown = server.json(&["bucket", "show", "local"]);
    assert_eq!((&shown["place"], &shown["credentials"]), (&place.as_str().into(), &Value::Null), "{shown}");
    for what in ["dump", "lock", "mirror", "volume"] {
        assert!(is_safe(&shown, what), "{what}: {shown}");
    }
    let store = dir.path().join("store");
    let objects = || files(&store).into_iter().filter(|name| !name.contains("/probe/")).count();
    assert_eq!(objects(), 0, "the probe cleans up: {:?}", files(&store));

    let checked = server.json(&["bucket", "check", "local"]);
    assert_eq!(checked["changed"], serde_json::json!([]), "{checked}");
    assert!(server.good(&["bucket", "check", "local"]).contains("local is as it was"));
    server.kill();
    server.restart();
    assert!(server.good(&["bucket", "list"]).contains(&place), "it outlives the server");

    std::fs::write(store.join("object"), "kept").unwrap();
    assert!(server.good(&["bucket", "delete", "local", "-n"]).contains("nothing was done"));
    assert!(server.good(&["bucket", "delete", "local"]).contains("stay"));
    assert_eq!(std::fs::read_to_string(store.join("object")).unwrap(), "kept");
    assert_eq!(server.json(&["bucket", "list"]), serde_json::json!([]));
    server.bad(10, "not-found", &["bucket", "delete", "local"]);
}

#[test]
fn change_of_a_store_is_reported_by_a_check() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    let place = directory(dir.path(), "store");
    server.good(&["bucket", "add", "local", &place]);
    server.terminate();
    // As if the probe had found something else then.
    let document = server.data.join("buckets.json");
    let text = std::fs::read_to_string(&document).unwrap();
    let mut known: Value = serde_json::from_str(&text).unwrap();
    let found = known["buckets"][0]["abilities"]["found"].as_array_mut().unwrap();
    found.iter_mut().find(|found| found["ability"] == "locks").unwrap()["verdict"] = "no".into();
    std::fs::write(&document, known.to_string()).unwrap();
    server.restart();
    assert!(!is_safe(&server.json(&["bucket", "show", "local"]), "lock"));
    let checked = server.json(&["bucket", "check", "local"]);
    let change = &checked["changed"][0];
    let of = [&change["ability"], &change["before"], &change["now"]];
    assert_eq!(of, ["locks", "no", "yes"], "{checked}");
    assert!(is_safe(&server.json(&["bucket", "show", "local"]), "lock"));
}

fn add<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&["bucket", "add"], rest].concat()
}

#[test]
fn bad_input_is_refused_with_the_next_step_and_adds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let place = directory(dir.path(), "store");
    for url in
        ["store", "ftp://bucket/prefix", "s3://b", "s3://bucket//a", "file://relative", "azure://account"]
    {
        server.bad(2, "usage", &add(&["x", url]));
    }
    server.bad(2, "usage", &add(&["bad/name", &place]));
    server.bad(2, "usage", &add(&["x", "s3://bucket", "--endpoint", "not an address"]));
    server.bad(2, "usage", &add(&["x", "s3://bucket", "--region", "no region"]));
    server.bad(2, "usage", &add(&["x", &place, "--endpoint", "https://host"]));
    let own = format!("file://{}", server.data.join("volumes").display());
    server.bad(2, "usage", &add(&["x", &own]));

    let missing = format!("file://{}", path(dir.path(), "nothing"));
    server.bad(10, "not-found", &add(&["x", &missing]));
    assert!(server.advice(10, &add(&["x", &missing])).contains("create"));

    let none = path(dir.path(), "no-file");
    let advice = server.advice(10, &add(&["x", "s3://bucket", "--credentials", &none]));
    assert!(advice.contains(&none), "{advice}");
    server.bad(10, "not-found", &add(&["x", "s3://bucket", "--ca", &none]));
    let wrong = path(dir.path(), "wrong");
    std::fs::write(&wrong, "[default]\nnothing = here\n").unwrap();
    let advice = server.advice(12, &add(&["x", "s3://bucket", "--credentials", &wrong]));
    assert!(advice.contains("aws_access_key_id"), "{advice}");
    server.bad(2, "usage", &add(&["x", "s3://bucket", "--ca", &wrong]));
    assert_eq!(server.json(&["bucket", "list"]), serde_json::json!([]), "nothing was added");

    server.good(&add(&["local", &place]));
    server.bad(21, "taken", &add(&["local", &directory(dir.path(), "other")]));
    let advice = server.advice(21, &add(&["again", &place]));
    assert!(advice.contains("local"), "{advice}");
    server.bad(10, "not-found", &["bucket", "show", "nothing"]);
    server.bad(10, "not-found", &["bucket", "check", "nothing"]);
    // A check reports a missing directory, and the bucket stays.
    std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    server.bad(10, "not-found", &["bucket", "check", "local"]);
    server.good(&["bucket", "show", "local"]);
}

#[test]
fn damaged_list_of_buckets_is_reported_and_given_up_or_restored() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    let place = directory(dir.path(), "store");
    server.good(&["bucket", "add", "local", &place]);
    let document = server.data.join("buckets.json");
    let whole = std::fs::read(&document).unwrap();
    server.terminate();
    std::fs::write(&document, b"{\n  \"version\": 1,\n  \"buc").unwrap();
    server.restart();
    assert!(server.json(&["state", "list"]).to_string().contains("buckets.json"));
    for arguments in
        [&["bucket", "list"][..], &["bucket", "add", "b", &place], &["bucket", "delete", "local"]]
    {
        server.bad(27, "damaged", arguments);
    }
    std::fs::write(&document, &whole).unwrap();
    server.good(&["state", "restore", "buckets.json"]);
    assert!(server.good(&["bucket", "list"]).contains("local"));
    server.terminate();
    std::fs::write(&document, b"{").unwrap();
    server.restart();
    server.good(&["state", "give-up", "buckets.json", "--yes"]);
    assert_eq!(server.json(&["bucket", "list"]), serde_json::json!([]));
    server.good(&["bucket", "add", "local", &place]);
}

/// A file with credentials that no store knows.
fn credentials(dir: &Path, secret: &str) -> String {
    let file = path(dir, "credentials");
    std::fs::write(
        &file,
        format!("[default]\naws_access_key_id = cairn\naws_secret_access_key = {secret}\n"),
    )
    .unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    file
}

#[test]
fn store_that_cannot_be_reached_is_reported_in_bounded_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let file = credentials(dir.path(), "secret");
    // No process listens there any more.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // This one takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [closed, silent.local_addr().unwrap()] {
        let endpoint = format!("http://{address}");
        let began = Instant::now();
        let asked =
            ["bucket", "add", "far", "s3://bucket/prefix", "--endpoint", &endpoint, "--credentials", &file];
        let advice = server.advice(30, &asked);
        assert!(began.elapsed() < REPORTED_WITHIN, "{:?}", began.elapsed());
        assert!(advice.contains("network"), "{advice}");
    }
    assert_eq!(server.json(&["bucket", "list"]), serde_json::json!([]));
}

#[test]
fn probe_that_is_cancelled_adds_nothing_and_frees_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let file = credentials(dir.path(), "secret");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let asked =
        ["bucket", "add", "b", "s3://bucket", "--endpoint", &endpoint, "--credentials", &file, "--json"];
    let mut command = running::cairn();
    let command = command.args(asked).arg("--data").arg(&server.data);
    let adding = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !server.jobs().contains("probing the store") {
        assert!(Instant::now() < deadline, "it begins");
        std::thread::sleep(Duration::from_millis(20));
    }
    let place = directory(dir.path(), "store");
    server.bad(11, "busy", &["bucket", "add", "b", &place]);
    let killed = Command::new("kill").args(["-INT", &adding.id().to_string()]).status().unwrap();
    assert!(killed.success());
    refused(&adding.wait_with_output().unwrap(), 130, "interrupted", &asked);
    server.good(&["bucket", "add", "b", &place]);
}

/// An S3 server of another vendor, killed on drop.
struct Gateway {
    child: Child,
    endpoint: String,
    /// The command that runs it.
    command: Vec<String>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Gateway {
    /// With the bucket `backups`; none, with a message, where no server can be had.
    fn start(dir: &Path, secret: &str) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bucket/tests/s3-server");
        let found = Command::new(script).args(["versitygw", "find"]).output().unwrap();
        if !found.status.success() {
            eprintln!("skipped: {}", String::from_utf8_lossy(&found.stderr).trim());
            return None;
        }
        let program = String::from_utf8(found.stdout).unwrap();
        std::fs::create_dir_all(dir.join("buckets/backups")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let folder = path(dir, "buckets");
        let arguments =
            [program.trim(), "--access", "cairn", "--secret", secret, "--port", &address, "posix", &folder];
        let command: Vec<String> = arguments.map(str::to_owned).to_vec();
        let endpoint = format!("http://{address}");
        Some(Self { child: Self::run(&command, &address), endpoint, command })
    }

    fn run(command: &[String], address: &str) -> Child {
        let mut child = Command::new(&command[0]);
        let child = child.args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "the S3 server listens");
            std::thread::sleep(Duration::from_millis(50));
        }
        child
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = Self::run(&self.command, self.endpoint.strip_prefix("http://").unwrap());
    }
}

#[test]
fn secret_of_a_bucket_is_in_no_file_list_log_or_error() {
    const SECRET: &str = "a-secret-that-is-nowhere-1795";
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start_with(dir.path(), "d", &["-vv"]);
    let log = dir.path().join("log");
    server.terminate();
    server.keep_log(&log);
    server.restart();
    let file = credentials(dir.path(), SECRET);
    let mut said = String::new();
    let mut run = |server: &Running, arguments: &[&str]| {
        let output = server.run(arguments);
        said += &String::from_utf8_lossy(&output.stdout);
        said += &String::from_utf8_lossy(&output.stderr);
        output.status.code()
    };
    if let Some(gateway) = Gateway::start(dir.path(), SECRET) {
        let add = |name: &'static str, place: &'static str| {
            ["bucket", "add", name, place, "--endpoint", &gateway.endpoint, "--credentials", &file]
        };
        assert_eq!(run(&server, &add("offsite", "s3://backups/cairn")), Some(0));
        assert_eq!(run(&server, &add("nowhere", "s3://no-such-bucket")), Some(10));
        std::fs::write(&file, std::fs::read_to_string(&file).unwrap().replace("= a-", "= b-")).unwrap();
        assert_eq!(run(&server, &add("wrong", "s3://backups/other")), Some(12));
        std::fs::write(&file, std::fs::read_to_string(&file).unwrap().replace("= b-", "= a-")).unwrap();
        assert_eq!(run(&server, &["bucket", "check", "offsite"]), Some(0));
        assert_eq!(run(&server, &["bucket", "show", "offsite"]), Some(0));
    }
    let wrong =
        ["bucket", "add", "x", "s3://bucket", "--endpoint", "http://127.0.0.1:1", "--credentials", &file];
    assert_eq!(run(&server, &wrong), Some(30));
    assert_eq!(run(&server, &["bucket", "list", "--json"]), Some(0));
    said += &server.jobs();
    server.terminate();
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("bucket"), "the log is kept");
    said += &log;
    assert!(!said.contains("secret-that-is-nowhere"), "{said}");
    for found in files(&server.data) {
        let bytes = std::fs::read(&found).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains("secret-that-is-nowhere"), "{found}");
    }
}

/// A server with the disk `v/db` of 24 MiB, and the bucket `b` in the directory `store`.
fn server_with_bucket(dir: &Path) -> Running {
    let server = running::server_with_disk(dir);
    server.good(&["bucket", "add", "b", &directory(dir, "store")]);
    server
}

/// Another server that has the bucket of `dir` as `other`.
fn fresh_server(dir: &Path) -> Running {
    let server = Running::start(dir, "fresh");
    server.good(&["bucket", "add", "other", &format!("file://{}", path(dir, "store"))]);
    server
}

/// The parts of dumps in the bucket of `dir`, in order of their names.
fn parts(dir: &Path) -> Vec<PathBuf> {
    let all = files(&dir.join("store")).into_iter().map(PathBuf::from);
    let is_part = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().starts_with("part-");
    let mut parts: Vec<PathBuf> = all.filter(is_part).collect();
    parts.sort();
    parts
}

#[test]
fn dumps_in_a_bucket_come_back_on_a_server_that_has_never_seen_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    server.bad(10, "not-found", &["image", "dump", "-1", "v", "b:"]);
    let cost = server.json(&["image", "dump", "-0", "v", "b:", "-n"])["cost"].clone();
    assert!(
        cost["objects"].as_u64().unwrap() >= 3 && cost["dollars_monthly"].as_f64().unwrap() > 0.0,
        "{cost}"
    );
    let mut contents = vec![content(server.disk("v/db"))];
    let dumped = server.json(&["image", "dump", "-0", "v", "b:"]);
    assert_eq!((&dumped["bucket"], &dumped["level"]), (&"b:".into(), &"0".into()), "{dumped}");
    for (level, blocks) in [("-1", 700), ("-2", 40)] {
        fill(&server, 100, blocks, blocks);
        contents.push(content(server.disk("v/db")));
        server.good(&["image", "dump", level, "v", "b:", "--compress", "--streams", "2"]);
    }
    let levels = server.good(&["image", "levels", "v"]);
    assert_eq!(levels.matches("b:").count(), 3, "{levels}");
    let listed = server.good(&["image", "ls", "b:"]);
    assert!(listed.contains("image.2.") && !listed.contains("MISSING"), "{listed}");
    assert!(server.good(&["bucket", "show", "b"]).contains("3 image dumps"));
    // A path is a place of its own.
    server.bad(10, "not-found", &["image", "dump", "-1", "v", "b:host/a/"]);
    server.good(&["image", "dump", "-0", "v", "b:host/a/"]);
    assert_eq!(server.json(&["image", "list", "b:host/a/"])["dumps"].as_array().unwrap().len(), 1);

    let fresh = fresh_server(dir.path());
    let dumps = fresh.json(&["image", "list", "other:"])["dumps"].clone();
    for (number, expected) in contents.iter().enumerate() {
        let (name, id) = (format!("w{number}"), dumps[number]["id"].as_str().unwrap());
        fresh.good(&["image", "restore", &name, &format!("other:v@{}", &id[..8])]);
        assert!(content(fresh.disk(&format!("{name}/db"))) == *expected, "level {number}");
    }
    fresh.good(&["image", "verify", "other:v", "--deep"]);
    fresh.bad(10, "not-found", &["image", "restore", "x", "other:nothing"]);
    fresh.bad(2, "usage", &["image", "restore", "x", "other:v", "other:w"]);
    // A dump of a level above starts from the content of the bucket, without a record of this
    // server.
    fresh.good(&["volume", "delete", "w0", "--yes"]);
    fresh.good(&["volume", "delete", "w1", "--yes"]);
    fill_in(&fresh, "w2/db", 5);
    let next = fresh.json(&["image", "dump", "-3", "w2", "other:"]);
    assert!(next["data_bytes"].as_u64().unwrap() < 4 << 20, "{next}");
    let now = content(fresh.disk("w2/db"));
    fresh.good(&["image", "restore", "again", &format!("other:w2@{}", next["id"].as_str().unwrap())]);
    assert!(content(fresh.disk("again/db")) == now);
}

/// Fills some blocks of another disk.
fn fill_in(server: &Running, disk: &str, byte: u8) {
    let mut disk = server.disk(disk);
    disk.write(8 << 20, &[byte; 65536]).unwrap();
    disk.flush().unwrap();
}

#[test]
fn files_and_disks_are_read_from_a_dump_in_a_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    let expected = content(server.disk("v/db"));
    server.good(&["image", "dump", "v", "b:"]);
    let socket = path(dir.path(), "mounted.sock");
    let mut mounting = running::cairn();
    let mounting =
        mounting.args(["image", "mount", "b:v", "--socket", &socket]).arg("--data").arg(&server.data);
    let mut mounted = mounting.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    running::wait_until("it is served", || Path::new(&socket).exists());
    let address = cairn_frontend_nbd::Address::Unix(socket.into());
    let options = cairn_frontend_nbd::ClientOptions::new("v/db");
    let disk = cairn_frontend_nbd::Client::connect(&address, &options).unwrap();
    assert!(content(disk) == expected);
    assert!(Command::new("kill").arg(mounted.id().to_string()).status().unwrap().success());
    assert!(mounted.wait().unwrap().success());

    if !running::can_mount() {
        return;
    }
    let at = path(dir.path(), "tree");
    std::fs::create_dir(&at).unwrap();
    server.good(&["volume", "create", "f", "--size", "64M"]);
    server.good(&["mount", "f", &at]);
    std::fs::create_dir_all(format!("{at}/a/b")).unwrap();
    std::fs::write(format!("{at}/a/b/note"), "kept in a bucket").unwrap();
    server.good(&["unmount", &at]);
    server.good(&["image", "dump", "f", "b:"]);
    assert!(server.good(&["image", "ls", "b:f", "/a/b"]).contains("note"));
    assert_eq!(server.good(&["image", "cat", "b:f", "/a/b/note"]), "kept in a bucket");
    let to = path(dir.path(), "out");
    std::fs::create_dir(&to).unwrap();
    server.good(&["image", "extract", "b:f", "/a", "--to", &to]);
    assert_eq!(std::fs::read_to_string(format!("{to}/a/b/note")).unwrap(), "kept in a bucket");
    server.bad(2, "usage", &["image", "ls", "b:", "/a"]);
}

#[test]
fn prune_keeps_what_rules_name_and_what_that_needs() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    let mut ids = Vec::new();
    for level in ["-0", "-1", "-0", "-1", "-2"] {
        fill(&server, 0, 10, ids.len() as u64);
        ids.push(server.json(&["image", "dump", level, "v", "b:"])["id"].clone());
    }
    let left = || {
        let found = server.json(&["image", "list", "b:"])["dumps"].clone();
        found.as_array().unwrap().iter().map(|dump| dump["id"].clone()).collect::<Vec<_>>()
    };
    server.bad(2, "usage", &["image", "prune", "b:"]);
    server.bad(2, "usage", &["image", "prune", "b:", "--keep-last", "1"]);
    let would = server.good(&["image", "prune", "b:", "--keep-last", "1", "-n"]);
    assert!(would.contains("would delete 2") && left().len() == 5, "{would}");
    let done = server.json(&["image", "prune", "b:", "--keep-last", "1", "--yes"]);
    assert_eq!((done["deleted"].as_array().unwrap().len(), left()), (2, ids[2..].to_vec()), "{done}");
    // Locked dumps stay, and so do the dumps that they depend on.
    fill(&server, 0, 10, 9);
    let locked = server.json(&["image", "dump", "-3", "v", "b:", "--lock", "1h"]);
    assert!(locked["locked_until_ms"].as_u64().is_some(), "{locked}");
    let listed = server.good(&["image", "list", "b:"]);
    assert_eq!(listed.matches("ends in").count(), 4, "every level below is locked: {listed}");
    fill(&server, 0, 10, 10);
    server.good(&["image", "dump", "-0", "v", "b:"]);
    let done = server.json(&["image", "prune", "b:", "--keep-last", "1", "--yes"]);
    assert_eq!((done["deleted"].as_array().unwrap().len(), left().len()), (0, 5), "{done}");
    server.bad(10, "not-found", &["image", "prune", "b:", "--volume", "w", "--keep-last", "1", "--yes"]);
}

#[test]
fn lock_is_refused_where_the_probe_found_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_bucket(dir.path());
    server.terminate();
    let document = server.data.join("buckets.json");
    let mut known: Value = serde_json::from_slice(&std::fs::read(&document).unwrap()).unwrap();
    let found = known["buckets"][0]["abilities"]["found"].as_array_mut().unwrap();
    found.iter_mut().find(|found| found["ability"] == "locks").unwrap()["verdict"] = "no".into();
    std::fs::write(&document, known.to_string()).unwrap();
    server.restart();
    for dry_run in [&["-n"][..], &[]] {
        let said =
            server.bad(1, "failed", &[&["image", "dump", "v", "b:", "--lock", "30d"], dry_run].concat());
        assert!(said.contains("locks"), "{said}");
    }
    assert!(parts(dir.path()).is_empty());
    let file = path(dir.path(), "file");
    server.bad(2, "usage", &["image", "dump", "v", "--to", &file, "--lock", "30d"]);
}

/// A dump that is slow because its volume is, and has sent `pieces` pieces.
fn begun(server: &Running, arguments: &[&str], pieces: usize) -> Child {
    server.good(&["volume", "rehearse", "v", "--delay", "250ms", "--yes"]);
    let mut command = running::cairn();
    command.args(["image", "dump", "v", "--json"]).args(arguments).arg("--data").arg(&server.data);
    let dump = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    running::wait_until("it is under way", || noted(server) >= pieces);
    dump
}

/// The number of noted pieces of an unfinished dump.
fn noted(server: &Running) -> usize {
    let text = std::fs::read(server.data.join("volumes/v/dumps.json")).unwrap_or_default();
    let document: Value = serde_json::from_slice(&text).unwrap_or_default();
    let pieces = &document["unfinished"]["bucket"]["parts"][0]["standing"]["pieces"];
    pieces.as_array().map_or(0, Vec::len)
}

#[test]
fn dump_into_a_bucket_resumes_after_a_kill_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_bucket(dir.path());
    let expected = content(server.disk("v/db"));
    let dump = begun(&server, &["b:"], 1);
    server.kill();
    assert!(!dump.wait_with_output().unwrap().status.success());
    server.restart();
    assert!(server.json(&["status"])["problems"].to_string().contains("--resume"));
    assert!(server.good(&["image", "levels", "v"]).contains("unfinished"));
    server.bad(11, "busy", &["image", "dump", "v", "b:"]);
    server.bad(11, "busy", &["bucket", "delete", "b"]);
    assert_eq!(server.json(&["image", "list", "b:"])["dumps"], serde_json::json!([]), "no reader sees it");
    // Later changes are not in it.
    fill(&server, 0, 100, 77);
    let dumped = server.json(&["image", "dump", "v", "--resume"]);
    assert!(dumped["there_bytes"].as_u64().unwrap() >= 8 << 20, "{dumped}");
    server.bad(10, "not-found", &["image", "dump", "v", "--resume"]);
    server.good(&["image", "verify", "b:v", "--deep"]);
    server.good(&["image", "restore", "w", "b:v"]);
    assert!(content(server.disk("w/db")) == expected);
    server.good(&["image", "dump", "-1", "v", "b:"]);
    server.good(&["bucket", "delete", "b"]);
}

#[test]
fn dump_whose_snapshots_were_renamed_starts_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server_with_bucket(dir.path());
    server.good(&["snapshot", "create", "v@monday"]);
    let dump = begun(&server, &["b:"], 1);
    server.kill();
    dump.wait_with_output().unwrap();
    server.restart();
    server.good(&["snapshot", "rename", "v@monday", "mon"]);
    let advice = server.advice(13, &["image", "dump", "v", "--resume"]);
    assert!(advice.contains("--anew"), "{advice}");
    server.good(&["image", "dump", "v", "b:", "--anew"]);
    server.good(&["image", "verify", "b:v"]);
    assert_eq!(server.json(&["image", "ls", "b:"])["unfinished"], serde_json::json!([]));
}

#[test]
fn dump_that_is_cancelled_resumes_or_leaves_nothing_in_the_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    let interrupt = |dump: Child| {
        assert!(Command::new("kill").args(["-INT", &dump.id().to_string()]).status().unwrap().success());
        dump.wait_with_output().unwrap()
    };
    let cut = interrupt(begun(&server, &["b:"], 1));
    refused(&cut, 130, "interrupted", &["image", "dump"]);
    assert!(String::from_utf8_lossy(&cut.stdout).contains("--resume"), "{cut:?}");
    server.good(&["volume", "rehearse", "v", "--off"]);
    server.good(&["image", "levels", "v", "--give-up", "--yes"]);
    let objects = || files(&dir.path().join("store")).into_iter().filter(|name| !name.contains("/probe/"));
    assert_eq!(objects().collect::<Vec<_>>(), Vec::<String>::new());
    let cut = interrupt(begun(&server, &["b:"], 1));
    refused(&cut, 130, "interrupted", &["image", "dump"]);
    server.good(&["image", "dump", "v", "--resume", "b:"]);
    server.good(&["image", "verify", "b:v"]);
}

#[test]
fn damage_in_a_bucket_is_named_and_never_restored() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    server.good(&["image", "dump", "-0", "v", "b:"]);
    fill(&server, 50, 600, 3);
    server.good(&["image", "dump", "-1", "v", "b:"]);
    let parts = parts(dir.path());
    assert_eq!(parts.len(), 2, "{parts:?}");
    let whole: Vec<Vec<u8>> = parts.iter().map(|part| std::fs::read(part).unwrap()).collect();
    let flipped = |bytes: &[u8], at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1;
        bytes
    };
    type Damage<'a> = (&'a str, i32, &'a str, [Option<Vec<u8>>; 2]);
    let damages: [Damage<'_>; 5] = [
        ("flipped", 27, "damaged", [Some(flipped(&whole[0], whole[0].len() / 2)), None]),
        ("flipped", 27, "damaged", [None, Some(flipped(&whole[1], whole[1].len() / 2))]),
        ("truncated", 27, "damaged", [Some(whole[0][..whole[0].len() / 2].to_vec()), None]),
        ("swapped", 27, "damaged", [Some(whole[1].clone()), Some(whole[0].clone())]),
        ("deleted", 10, "not-found", [Some(Vec::new()), None]),
    ];
    for (what, code, kind, changed) in damages {
        for (part, bytes) in parts.iter().zip(&changed) {
            match bytes {
                Some(bytes) if bytes.is_empty() => std::fs::remove_file(part).unwrap(),
                Some(bytes) => std::fs::write(part, bytes).unwrap(),
                None => {}
            }
        }
        let said = server.bad(code, kind, &["image", "restore", "w", "b:v"]);
        assert!(said.contains("part-00000") && said.contains("dumps/"), "{what}: {said}");
        assert!(!server.has_export("w/db"), "{what}");
        let _ = server.run(&["image", "restore", "w", "--give-up", "--yes"]);
        let verified = server.run(&["image", "verify", "b:v", "--json"]);
        assert_eq!(verified.status.code(), Some(code), "{what}: {verified:?}");
        for (part, bytes) in parts.iter().zip(&whole) {
            std::fs::write(part, bytes).unwrap();
        }
    }
    // A restore that stopped at damage resumes once the object is right again.
    let last = whole[0].len().max(whole[1].len());
    let full = whole.iter().position(|bytes| bytes.len() == last).unwrap();
    std::fs::write(&parts[full], flipped(&whole[full], last - (2 << 20))).unwrap();
    server.bad(27, "damaged", &["image", "restore", "w", "b:v"]);
    std::fs::write(&parts[full], &whole[full]).unwrap();
    let restored = server.json(&["image", "restore", "w", "--resume"]);
    assert!(restored["there_bytes"].as_u64().unwrap() > 0, "{restored}");
    assert!(content(server.disk("w/db")) == content(server.disk("v/db")));
    server.good(&["volume", "delete", "w", "--yes"]);
    // An index that was changed, or was copied from another dump, is reported.
    let index = parts[0].with_file_name("index");
    let bytes = std::fs::read(&index).unwrap();
    std::fs::write(&index, flipped(&bytes, 40)).unwrap();
    let listed = server.run(&["image", "list", "b:", "--json"]);
    assert_eq!(listed.status.code(), Some(3), "{listed:?}");
    let said = server.bad(27, "damaged", &["image", "restore", "w", "b:v"]);
    assert!(said.contains("/index"), "{said}");
    // A dump with a deleted index is reported too, and its parts are not swept.
    std::fs::remove_file(&index).unwrap();
    let said = server.bad(27, "damaged", &["image", "restore", "w", "b:v"]);
    assert!(said.contains("/index is gone"), "{said}");
    assert_eq!(server.run(&["image", "list", "b:"]).status.code(), Some(3));
    std::fs::write(&index, bytes).unwrap();
    server.good(&["image", "restore", "w", "b:v"]);
    assert!(content(server.disk("w/db")) == content(server.disk("v/db")));
}

#[test]
fn dump_waits_for_an_s3_server_that_was_killed_and_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut gateway) = Gateway::start(dir.path(), "secret") else { return };
    let server = running::server_with_disk(dir.path());
    let file = credentials(dir.path(), "secret");
    let place = ["s3://backups/cairn", "--endpoint", &gateway.endpoint, "--credentials", &file];
    server.good(&[&["bucket", "add", "far"], &place[..]].concat());
    let expected = content(server.disk("v/db"));
    let dump = begun(&server, &["far:"], 1);
    gateway.kill();
    running::wait_until("it shows what it waits for", || server.jobs().contains("to try again"));
    gateway.restart();
    server.good(&["volume", "rehearse", "v", "--off"]);
    let done = dump.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    fill(&server, 0, 300, 5);
    server.good(&["image", "dump", "-1", "v", "far:"]);
    server.good(&["image", "verify", "far:v", "--deep"]);
    let dumps = server.json(&["image", "ls", "far:"])["dumps"].clone();
    server.good(&["image", "restore", "w", &format!("far:v@{}", dumps[0]["id"].as_str().unwrap())]);
    assert!(content(server.disk("w/db")) == expected);
    let pruned = server.json(&["image", "prune", "far:", "--keep-last", "1", "--yes"]);
    assert_eq!(pruned["kept"], 2, "the base of a kept dump stays: {pruned}");
}

#[test]
fn dump_of_a_newer_version_is_reported_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_bucket(dir.path());
    server.good(&["image", "dump", "-0", "v", "b:"]);
    let index = parts(dir.path())[0].with_file_name("index");
    let text = std::fs::read_to_string(&index).unwrap();
    let json = text.lines().next().unwrap().replacen("\"format\":1", "\"format\":2", 1);
    let sum = cairn_base::Checksum::of(json.as_bytes());
    std::fs::write(&index, format!("{json}\n{sum:?}\n")).unwrap();
    let advice = server.advice(31, &["image", "restore", "w", "b:v"]);
    assert!(advice.contains("newer cairn"), "{advice}");
    assert_eq!(server.run(&["image", "ls", "b:"]).status.code(), Some(3));
}
