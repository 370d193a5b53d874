//! The contract and the probe against VersityGW, an S3 server of others. `tests/s3-server` builds it once.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_bucket::{
    Abilities, Ability, Allowed, CredentialTrouble, Credentials, Key, ListFrom, Net, Options, Place,
    ProbeWork, Put, Remote, Secret, Trouble, Use, probe,
};

use super::*;

const KEY: &str = "cairn";
const SECRET: &str = "cairn-secret";
/// SHA-256 of an empty body.
const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// For the server to take connections.
const START: Duration = Duration::from_secs(20);

/// The program; none, with a message, where it can't be had and this is not CI.
fn program() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/s3-server");
    let is_ci = std::env::var_os("CI").is_some();
    let mut command = Command::new(&script);
    command.arg("versitygw");
    if !is_ci {
        command.arg("find");
    }
    let output = command.output().expect("a script");
    if output.status.success() {
        return Some(String::from_utf8(output.stdout).expect("a path").trim().into());
    }
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!is_ci, "VersityGW is needed in CI: {why}");
    eprintln!("skipped: {}", why.trim());
    None
}

/// Killed when it goes.
struct Gateway {
    child: Child,
    endpoint: String,
    root: tempfile::TempDir,
    net: Arc<Net>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Gateway {
    fn start() -> Option<Self> {
        let program = program()?;
        let root = tempfile::tempdir().expect("a folder");
        for folder in ["buckets", "versions"] {
            std::fs::create_dir(root.path().join(folder)).expect("a folder");
        }
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a port")
            .port();
        let child = Command::new(program)
            .args(["--access", KEY, "--secret", SECRET, "--port", &format!("127.0.0.1:{port}"), "posix"])
            .arg("--versioning-dir")
            .arg(root.path().join("versions"))
            .arg(root.path().join("buckets"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a server");
        let gateway = Self {
            child,
            endpoint: format!("http://127.0.0.1:{port}"),
            root,
            net: Net::start().expect("a runtime"),
        };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < START, "the server takes no connections");
            std::thread::yield_now();
        }
        Some(gateway)
    }

    fn bucket(&self, name: &str) {
        std::fs::create_dir(self.root.path().join("buckets").join(name)).expect("a bucket");
    }

    /// A bucket with object lock can only be made by a request, which curl signs.
    fn locking_bucket(&self, name: &str) -> bool {
        let mut curl = Command::new("curl")
            .args(["--silent", "--fail", "--aws-sigv4", "aws:amz:us-east-1:s3", "--request", "PUT"])
            .args(["--header", "x-amz-bucket-object-lock-enabled: true", "--config", "-"])
            .args(["--header", &format!("x-amz-content-sha256: {OF_NOTHING}")])
            .arg(format!("{}/{name}", self.endpoint))
            .stdin(Stdio::piped())
            .spawn()
            .expect("curl");
        let mut input = curl.stdin.take().expect("its input");
        writeln!(input, "user = \"{KEY}:{SECRET}\"").expect("written");
        drop(input);
        curl.wait().expect("gone").success()
    }

    fn open(&self, place: &str) -> Remote {
        self.open_with(place, SECRET)
    }

    fn open_with(&self, place: &str, secret: &str) -> Remote {
        let place: Place = place.parse().expect("a place");
        let key = Key { id: KEY.to_owned(), secret: Secret::new(secret), token: None };
        let options =
            Options { endpoint: Some(self.endpoint.clone()), ..Options::new(Credentials::Key(key)) };
        Remote::open(&place, &options, &|_| None, &self.net).expect("open")
    }

    fn probed(&self, place: &str) -> Abilities {
        let store: Arc<dyn Store> = Arc::new(retrying(Arc::new(self.open(place)), 1));
        let work = ProbeWork {
            other: Arc::new(retrying(Arc::new(self.open(place)), 2)),
            workers: &workers(),
            clock: &RealClock::default(),
            rng: &mut Rng::new(3),
            cancel: &Arc::new(never()),
        };
        probe(&store, work).expect("a probe")
    }
}

/// But for races: version 1.7 looks whether a name is free, and then renames a file to it.
#[test]
fn versitygw_keeps_the_contract_but_for_races() {
    let Some(gateway) = Gateway::start() else { return };
    gateway.bucket("contract");
    let number = AtomicU64::new(0);
    let make = || -> Arc<dyn Store> {
        let number = number.fetch_add(1, Ordering::Relaxed);
        Arc::new(gateway.open(&format!("s3://contract/run-{number}")))
    };
    contract::without_races(&make);
    let make = || -> Arc<dyn Store> { Arc::new(retrying(make(), 1)) };
    contract::without_races(&make);
}

#[test]
fn probe_says_what_versitygw_is_good_for() {
    let Some(gateway) = Gateway::start() else { return };
    gateway.bucket("plain");
    let abilities = gateway.probed("s3://plain/probed");
    let races = [Ability::CreateOnlyRace, Ability::CreateOnlyPieces];
    for found in &abilities.found {
        let is_lock = matches!(found.ability, Ability::Locks | Ability::LocksHold);
        assert!(is_lock || races.contains(&found.ability) || abilities.has(found.ability), "{found:?}");
    }
    assert!(!matches!(abilities.allows(Use::Dump), Allowed::No(_)), "{abilities:#?}");
    let lets_two_win = !abilities.has(Ability::CreateOnlyRace);
    for what in [Use::Mirror, Use::Volume] {
        assert_eq!(
            matches!(abilities.allows(what), Allowed::No(_)),
            lets_two_win,
            "{what:?}: {abilities:#?}"
        );
    }
    assert!(!abilities.has(Ability::Locks), "{abilities:#?}");
    let left =
        gateway.open("s3://plain").list(&prefix(""), &ListFrom::Start, 10, &never()).expect("a listing");
    assert!(left.objects.is_empty(), "{left:?}");
}

#[test]
fn locks_of_versitygw_are_set_and_never_shortened_by_cairn() {
    let Some(gateway) = Gateway::start() else { return };
    assert!(gateway.locking_bucket("locking"), "curl makes a bucket");
    let abilities = gateway.probed("s3://locking/probed");
    assert!(abilities.has(Ability::Locks), "{abilities:#?}");
    // Version 1.7 lets a lock in compliance mode be shortened.
    assert!(!abilities.has(Ability::LocksHold), "{abilities:#?}");
    assert!(matches!(abilities.allows(Use::Lock), Allowed::No(_)), "{abilities:#?}");
    assert_eq!(abilities.left.len(), 1, "{abilities:#?}");
    // In a bucket that keeps versions a deleted object is gone for good.
    let store = gateway.open("s3://locking/versions");
    let (key, cancel) = (name("object"), never());
    store.put_new(&key, noise(1, 100), nonce(1), &cancel).expect("put");
    store.delete(&key, &cancel).expect("deleted");
    assert!(store.head(&key, &cancel).expect_err("gone").is_missing());
    let put = store.put_new(&key, noise(2, 100), nonce(2), &cancel).expect("put");
    assert_eq!(put, Put::Created);
    let until = Timestamp(RealClock::default().now().0 + 3_600_000_000_000);
    store.lock_until(&key, until, &cancel).expect("locked");
    let sooner = Timestamp(until.0 - 1_800_000_000_000);
    cairn_bucket::extend_lock(&store, &key, sooner, &cancel).expect("nothing to do");
    assert!(store.head(&key, &cancel).expect("a head").locked_until.is_some_and(|held| held >= until));
    let refused = store.delete(&key, &cancel).expect_err("locked");
    assert!(matches!(refused.trouble, Trouble::Locked(Some(_))), "{refused}");
    assert_eq!(store.get(&key, 0, 200, &cancel).expect("read"), noise(2, 100));
}

#[test]
fn wrong_bucket_and_wrong_secret_are_named_by_versitygw() {
    let Some(gateway) = Gateway::start() else { return };
    gateway.bucket("there");
    let list = |store: &Remote| store.list(&prefix(""), &ListFrom::Start, 10, &never()).expect_err("refused");
    let error = list(&gateway.open("s3://missing/prefix"));
    assert!(matches!(error.trouble, Trouble::NoBucket), "{error}");
    let error = list(&gateway.open_with("s3://there/prefix", "wrong"));
    assert!(matches!(error.trouble, Trouble::Credentials(CredentialTrouble::Wrong)), "{error}");
    let error = gateway.open("s3://missing/prefix").put_new(&name("a"), noise(1, 9), nonce(1), &never());
    assert!(matches!(error.expect_err("refused").trouble, Trouble::NoBucket));
    // An answer to HEAD has no code.
    let error =
        gateway.open_with("s3://there/prefix", "wrong").head(&name("a"), &never()).expect_err("refused");
    assert!(matches!(error.trouble, Trouble::Credentials(CredentialTrouble::Wrong)), "{error}");
}

#[test]
fn killed_server_is_waited_for_and_nothing_acknowledged_is_lost() {
    let Some(mut gateway) = Gateway::start() else { return };
    gateway.bucket("killed");
    let port = gateway.endpoint.rsplit(':').next().expect("a port").to_owned();
    let store = retrying(Arc::new(gateway.open("s3://killed/a")), 4);
    let cancel = never();
    let program = program().expect("it was there");
    for round in 0..3_u64 {
        for number in 0..20 {
            let key = name(&format!("o/{round}-{number:03}"));
            if number == 10 {
                gateway.child.kill().expect("killed");
                gateway.child.wait().expect("gone");
                let root = gateway.root.path().to_owned();
                let restart = || {
                    Command::new(&program)
                        .args([
                            "--access",
                            KEY,
                            "--secret",
                            SECRET,
                            "--port",
                            &format!("127.0.0.1:{port}"),
                            "posix",
                        ])
                        .arg("--versioning-dir")
                        .arg(root.join("versions"))
                        .arg(root.join("buckets"))
                        .stdout(Stdio::null())
                        .stderr(Stdio::null())
                        .spawn()
                        .expect("a server")
                };
                gateway.child = std::thread::scope(|scope| {
                    let put = scope.spawn(|| {
                        store.put_new(
                            &key,
                            noise(round * 100 + number, 50_000),
                            nonce(round * 100 + number),
                            &cancel,
                        )
                    });
                    let child = restart();
                    assert_eq!(put.join().expect("no panic").expect("put"), Put::Created);
                    child
                });
                continue;
            }
            let put = store.put_new(
                &key,
                noise(round * 100 + number, 50_000),
                nonce(round * 100 + number),
                &cancel,
            );
            assert_eq!(put.expect("put"), Put::Created);
        }
    }
    for round in 0..3_u64 {
        for number in 0..20 {
            let read = store.get(&name(&format!("o/{round}-{number:03}")), 0, 60_000, &cancel).expect("read");
            assert_eq!(read, noise(round * 100 + number, 50_000));
        }
    }
}
