//! The contract, the probe and dumps against S3 servers of others. `tests/s3-server` builds one
//! once; without one these tests say that they are skipped.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_base::{SnapshotId, VolumeId};
use cairn_bucket::dumps::{BucketDumps, DumpIndex, PartUpload};
use cairn_bucket::{
    Abilities, Ability, Allowed, CredentialTrouble, Credentials, Key, ListFrom, Net, Options, Place,
    ProbeWork, Put, Remote, Secret, StoreError, Trouble, Use, probe,
};

use cairn_format::dump::{DumpId, DumpLevel};
use cairn_stream::{DumpBytes, Reached};

use super::*;

const KEY: &str = "cairn";
const SECRET: &str = "cairn-secret";
/// SHA-256 of an empty body.
const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// For the server to take connections.
const START: Duration = Duration::from_secs(20);

/// A server of others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    VersityGw,
    /// A version that lets two creators of one name win.
    VersityGwOld,
    /// Takes long to build, so it is used only if it was built before.
    MinIo,
}

impl Kind {
    /// The program from the environment or from the cache; otherwise none, with a message. A build
    /// takes minutes, so tests do not build it.
    fn program(self) -> Option<PathBuf> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/s3-server");
        let name = match self {
            Kind::VersityGw => "versitygw",
            Kind::VersityGwOld => "versitygw-1.7",
            Kind::MinIo => "minio",
        };
        let output = Command::new(&script).args([name, "find"]).output().expect("a script");
        if output.status.success() {
            return Some(String::from_utf8(output.stdout).expect("a path").trim().into());
        }
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        let named = self == Kind::VersityGw && std::env::var_os("CAIRN_S3_SERVER").is_some();
        assert!(!named, "CAIRN_S3_SERVER names no program: {why}");
        eprintln!("skipped: {}", why.trim());
        None
    }

    fn command(self, program: &Path, root: &Path, port: u16) -> Command {
        let mut command = Command::new(program);
        let address = format!("127.0.0.1:{port}");
        match self {
            Kind::VersityGw | Kind::VersityGwOld => {
                command
                    .args([
                        "--access",
                        KEY,
                        "--secret",
                        SECRET,
                        "--port",
                        &address,
                        "posix",
                        "--versioning-dir",
                    ])
                    .arg(root.join("versions"))
                    .arg(root.join("buckets"));
            }
            Kind::MinIo => {
                command
                    .args(["server", "--address", &address])
                    .arg(root.join("buckets"))
                    .env("MINIO_ROOT_USER", KEY)
                    .env("MINIO_ROOT_PASSWORD", SECRET)
                    .env("MINIO_UPDATE", "off")
                    .env("MINIO_BROWSER", "off");
            }
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// Killed when it goes.
struct Gateway {
    kind: Kind,
    program: PathBuf,
    child: Child,
    port: u16,
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
    fn start(kind: Kind) -> Option<Self> {
        let program = kind.program()?;
        let root = tempfile::tempdir().expect("a folder");
        for folder in ["buckets", "versions"] {
            std::fs::create_dir(root.path().join(folder)).expect("a folder");
        }
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a port").port();
        let child = kind.command(&program, root.path(), port).spawn().expect("a server");
        let endpoint = format!("http://127.0.0.1:{port}");
        let gateway =
            Self { kind, program, child, port, endpoint, root, net: Net::start().expect("a runtime") };
        gateway.wait();
        Some(gateway)
    }

    fn wait(&self) {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begun.elapsed() < START, "the server takes no connections");
            std::thread::yield_now();
        }
        // MinIO accepts connections before it has found its drives, and then requests a pause of a
        // minute.
        let store = self.open("s3://starting");
        loop {
            match store.list(&prefix(""), &ListFrom::Start, 1, &never()) {
                Err(StoreError { trouble: Trouble::NoBucket, .. }) => return,
                outcome => assert!(begun.elapsed() < START, "the server does not start: {outcome:?}"),
            }
            std::thread::yield_now();
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    fn restart(&mut self) {
        self.child = self.kind.command(&self.program, self.root.path(), self.port).spawn().expect("a server");
    }

    fn bucket(&self, name: &str) {
        assert!(self.make_bucket(name, false), "curl makes a bucket");
    }

    fn locking_bucket(&self, name: &str) {
        assert!(self.make_bucket(name, true), "curl makes a bucket");
    }

    /// Cairn makes no buckets, so curl does.
    fn make_bucket(&self, name: &str, locks: bool) -> bool {
        let mut curl = Command::new("curl")
            .args(["--silent", "--fail", "--aws-sigv4", "aws:amz:us-east-1:s3", "--request", "PUT"])
            .args(["--header", &format!("x-amz-bucket-object-lock-enabled: {locks}"), "--config", "-"])
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

#[test]
fn versitygw_keeps_the_contract() {
    let Some(gateway) = Gateway::start(Kind::VersityGw) else { return };
    gateway.bucket("contract");
    let number = AtomicU64::new(0);
    let make = || -> Arc<dyn Store> {
        let number = number.fetch_add(1, Ordering::Relaxed);
        Arc::new(gateway.open(&format!("s3://contract/run-{number}")))
    };
    contract::without_races(&make, true);
    let make = || -> Arc<dyn Store> { Arc::new(retrying(make(), 1)) };
    contract::without_races(&make, true);
    contract::one_of_many_creators_wins(make());
}

/// Version 1.7 looks whether a name is free, and then renames a file to it.
#[test]
fn store_that_lets_two_creators_win_may_not_be_the_home_of_a_volume() {
    let Some(gateway) = Gateway::start(Kind::VersityGwOld) else { return };
    gateway.bucket("plain");
    let abilities = gateway.probed("s3://plain/probed");
    assert!(!matches!(abilities.allows(Use::Dump), Allowed::No(_)), "{abilities:#?}");
    let lets_two_win = !abilities.has(Ability::CreateOnlyRace);
    for what in [Use::Mirror, Use::Volume] {
        assert_eq!(
            matches!(abilities.allows(what), Allowed::No(_)),
            lets_two_win,
            "{what:?}: {abilities:#?}"
        );
    }
}

#[test]
fn versitygw_may_be_the_home_of_a_volume() {
    let Some(gateway) = Gateway::start(Kind::VersityGw) else { return };
    gateway.bucket("plain");
    let abilities = gateway.probed("s3://plain/probed");
    for what in [Use::Dump, Use::Mirror, Use::Volume] {
        assert_eq!(abilities.allows(what), Allowed::Yes, "{what:?}: {abilities:#?}");
    }
    assert!(!abilities.has(Ability::Locks), "{abilities:#?}");
    let left =
        gateway.open("s3://plain").list(&prefix(""), &ListFrom::Start, 10, &never()).expect("a listing");
    assert!(left.objects.is_empty(), "{left:?}");
}

#[test]
fn locks_of_versitygw_are_set_and_never_shortened_by_cairn() {
    let Some(gateway) = Gateway::start(Kind::VersityGw) else { return };
    gateway.locking_bucket("locking");
    let abilities = gateway.probed("s3://locking/probed");
    assert_eq!(abilities.allows(Use::Lock), Allowed::Yes, "{abilities:#?}");
    assert_eq!(abilities.left.len(), 1, "{abilities:#?}");
    locks_and_versions(&gateway);
}

/// In a bucket that keeps versions a deleted object is removed permanently, and a locked one stays.
fn locks_and_versions(gateway: &Gateway) {
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
    let Some(gateway) = Gateway::start(Kind::VersityGw) else { return };
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
    for kind in [Kind::VersityGw, Kind::MinIo] {
        let Some(mut gateway) = Gateway::start(kind) else { continue };
        gateway.bucket("killed");
        let store = retrying(Arc::new(gateway.open("s3://killed/a")), 4);
        let cancel = never();
        let put = |number: u64| {
            let key = name(&format!("o/{number:03}"));
            let put = store.put_new(&key, noise(number, 50_000), nonce(number), &cancel);
            assert_eq!(put.expect("put"), Put::Created);
        };
        for number in 0..60 {
            // MinIO requests a pause of a minute after a start, so once is enough.
            if number % 20 != 10 || (kind == Kind::MinIo && number > 10) {
                put(number);
                continue;
            }
            gateway.kill();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| put(number));
                gateway.restart();
                waits.join().expect("no panic");
            });
        }
        for number in 0..60 {
            let read = store.get(&name(&format!("o/{number:03}")), 0, 60_000, &cancel).expect("read");
            assert_eq!(read, noise(number, 50_000));
        }
    }
}

#[test]
fn minio_keeps_the_contract_and_may_be_the_home_of_a_volume() {
    let Some(gateway) = Gateway::start(Kind::MinIo) else { return };
    gateway.bucket("contract");
    let number = AtomicU64::new(0);
    let make = || -> Arc<dyn Store> {
        let number = number.fetch_add(1, Ordering::Relaxed);
        Arc::new(gateway.open(&format!("s3://contract/run-{number}")))
    };
    contract::without_races(&make, false);
    contract::one_of_many_creators_wins(make());
    gateway.locking_bucket("locking");
    let abilities = gateway.probed("s3://locking/probed");
    for what in [Use::Lock, Use::Mirror, Use::Volume] {
        assert_eq!(abilities.allows(what), Allowed::Yes, "{what:?}: {abilities:#?}");
    }
    // It lists uploads of one whole name only.
    let Allowed::WithWarnings(warnings) = abilities.allows(Use::Dump) else { panic!("{abilities:#?}") };
    assert!(!abilities.has(Ability::ListsUploads) && warnings.len() == 1, "{warnings:?}");
    locks_and_versions(&gateway);
}

/// Parts of a dump through a real server: written, cut, resumed, made whole, listed, read in order
/// and anywhere.
#[test]
fn dump_in_a_real_bucket_resumes_and_reads_back() {
    const RECORD: usize = 1 << 20;
    for kind in [Kind::VersityGw, Kind::MinIo] {
        let Some(gateway) = Gateway::start(kind) else { continue };
        gateway.bucket("dumps");
        let dumps = |seed: u64| {
            let store: Arc<dyn Store> = Arc::new(retrying(Arc::new(gateway.open("s3://dumps/site")), seed));
            BucketDumps::new(store, workers(), Rng::new(seed))
        };
        let (volume, dump, cancel) = (VolumeId([1; 16]), DumpId([2; 16]), Arc::new(never()));
        let content = noise(9, 45 * RECORD);
        let feed = |upload: &mut PartUpload, from: usize, to: usize| {
            for number in from..to {
                upload.write_all(&content[number * RECORD..(number + 1) * RECORD]).expect("taken");
                let at = Reached {
                    bytes: ((number + 1) * RECORD) as u64,
                    records: number as u64 + 1,
                    ..Reached::default()
                };
                upload.reached(&at).expect("noted");
            }
        };
        let writer = dumps(1);
        writer.begin(volume, dump, None, &cancel).expect("begun");
        let mut upload = writer.part((volume, dump, 0), content.len() as u64, &cancel).expect("a part");
        feed(&mut upload, 0, 30);
        let standing = loop {
            if let Some(standing) = upload.standing().filter(|standing| standing.pieces.len() >= 2) {
                break standing;
            }
            std::thread::yield_now();
        };
        drop(upload);
        // Another process.
        let writer = dumps(2);
        let mut upload = writer.resume_part(dump, content.len() as u64, &standing, &cancel).expect("resumed");
        feed(&mut upload, standing.records as usize, 45);
        let part = writer.finish_part((volume, dump, 0), upload, &cancel).expect("finished");
        assert_eq!(part.length, content.len() as u64);
        let index = DumpIndex {
            volume,
            dump,
            name: "vol0".to_owned(),
            level: DumpLevel::Level(0),
            created: NOW,
            target: SnapshotId(1),
            target_name: "s".to_owned(),
            base: None,
            on: None,
            blocks: 1,
            parts: vec![part],
        };
        assert!(writer.list(None, &cancel).expect("a listing").dumps.is_empty(), "not yet");
        writer.seal(&index, &cancel).expect("sealed");
        assert_eq!(writer.list(None, &cancel).expect("a listing").dumps, std::slice::from_ref(&index));
        let part = writer.open_part(&index, 0, &cancel).expect("a part");
        let mut in_order = part.in_order(0).expect("reads ahead");
        let (mut blocks, mut read) = (std::collections::VecDeque::new(), Vec::new());
        loop {
            let count = in_order.next(&mut blocks).expect("read");
            if count == 0 {
                break;
            }
            let all: Vec<u8> = blocks.drain(..).flat_map(|block| block.to_vec()).collect();
            read.extend_from_slice(&all[..count]);
        }
        assert!(read == content);
        let mut buffer = vec![0; 100_000];
        assert_eq!(part.read_at(7_654_321, &mut buffer).expect("read"), buffer.len());
        assert!(buffer == content[7_654_321..7_754_321]);
        writer.delete(&index, NOW, &cancel).expect("deleted");
        let left =
            gateway.open("s3://dumps").list(&prefix(""), &ListFrom::Start, 10, &never()).expect("a listing");
        assert!(left.objects.is_empty(), "{left:?}");
    }
}
