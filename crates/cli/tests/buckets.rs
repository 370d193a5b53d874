//! Buckets: added, checked and deleted, and what is wrong with them said with the next step.

mod running;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use running::{PATIENCE, Running, path, refused};
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
    // A directory that went is reported by a check, and the bucket stays.
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
    // Nobody listens there any more.
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

/// An S3 server of others, killed when it goes.
struct Gateway {
    child: Child,
    endpoint: String,
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
        let child = Command::new(program.trim())
            .args(["--access", "cairn", "--secret", secret, "--port", &address, "posix"])
            .arg(dir.join("buckets"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(&address).is_err() {
            assert!(Instant::now() < deadline, "the S3 server listens");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(Self { child, endpoint: format!("http://{address}") })
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
