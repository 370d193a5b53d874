//! Bad input that needs a scene: a full file system, a damaged block, a peer of another version.

mod running;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_frontend_nbd::{Client, ClientError};
use running::{PATIENCE, Running, SmallDisk};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

#[test]
fn full_disk_fails_the_writes_that_do_not_fit_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let Some(small) = SmallDisk::mount(&disk, 48 << 20) else { return };
    let mut server = Running::start(&disk, "d");
    server.good(&["volume", "create", "vol0", "--size", "256M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "128M"]);
    let mut client = server.disk("vol0/db");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    // Sparse until now; the file system is full long before the volume is.
    let mut refused = false;
    for megabyte in 1..100 {
        let bytes: Vec<u8> = (0..1 << 20).map(|n: u64| (n * megabyte % 251) as u8).collect();
        if client.write(megabyte << 20, &bytes).and_then(|()| client.flush()).is_err() {
            refused = true;
            break;
        }
    }
    assert!(refused, "a full disk takes no more");
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096], "what was flushed is still served");
    let message = server.bad(24, "no-space", &["volume", "create", "vol1", "--size", "256M"]);
    assert!(message.contains("vol1") || message.contains("space"), "{message}");
    assert!(!server.data.join("volumes/vol1").exists(), "nothing is left of it");
    let problem = server.json(&["status"])["problems"][0].clone();
    assert_eq!(problem["subject"], "vol0", "{problem}");
    let (message, next) = (problem["message"].as_str().unwrap(), problem["next"].as_str().unwrap());
    let mounted = disk.canonicalize().unwrap().display().to_string();
    assert!(message.contains("too little space") && message.contains(&mounted), "{problem}");
    assert!(next.contains("by itself") && !next.contains("restart"), "{problem}");
    let shown = server.json(&["volume", "show", "vol0"]);
    assert!(shown["problem"].as_str().unwrap().contains("too little space"), "{shown}");
    let host = &shown["host"];
    assert!(host["unwritten_bytes"].as_u64().unwrap() > host["free_bytes"].as_u64().unwrap(), "{shown}");
    server.bad(24, "no-space", &["snapshot", "create", "vol0@late"]);
    // Killed and started on the full disk, it serves flushed data.
    server.kill();
    server.restart();
    let mut client = server.disk("vol0/db");
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    for megabyte in 1..100 {
        if client.write(megabyte << 20, &vec![megabyte as u8; 1 << 20]).and_then(|()| client.flush()).is_err()
        {
            break;
        }
    }
    // With room again it resumes, without a restart, and for the same client.
    small.grow(512 << 20);
    let until = Instant::now() + PATIENCE;
    while client.write(4096, &[2; 4096]).and_then(|()| client.flush()).is_err() {
        assert!(Instant::now() < until, "there is room");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    // The file system is still small, and that alone is a problem.
    let status = server.json(&["status"]);
    let mut problems = status["problems"].as_array().unwrap().iter();
    assert!(problems.all(|problem| problem["message"].as_str().unwrap().contains("nearly full")), "{status}");
    server.good(&["snapshot", "create", "vol0@late"]);
    assert!(server.good(&["volume", "check", "vol0"]).contains("sound"));
}

/// Adopts a disk with a sparse history on a separate file system.
fn adoption_on_a_small_file_system(dir: &Path, disk: &Path, floor: &[&str]) -> Vec<String> {
    let (origin, history) = (running::path(dir, "disk.img"), running::path(disk, "history"));
    let adopt = ["device", "adopt", "disk0", "--origin", &origin, "--size", "64M", "--history", &history];
    let how = ["--placement", "split-down-stream", "--granularity", "every-write", "--history-size", "1G"];
    let all = [&adopt[..], &how, floor].concat();
    all.into_iter().map(str::to_owned).collect()
}

/// A write and a flush of a MiB that differs from all others.
fn write_megabyte(client: &mut Client, number: u64) -> Result<(), ClientError> {
    let bytes: Vec<u8> = (0..1 << 20).map(|n: u64| (n * number % 251) as u8).collect();
    client.write((1 + number % 40) << 20, &bytes)?;
    client.flush()
}

#[test]
fn full_disk_under_a_history_takes_the_oldest_of_it_and_no_write() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let Some(small) = SmallDisk::mount(&disk, 8 << 20) else { return };
    let mut server = Running::start(dir.path(), "d");
    let adopt = adoption_on_a_small_file_system(dir.path(), &disk, &[]);
    let adopt: Vec<&str> = adopt.iter().map(String::as_str).collect();
    let message = server.bad(24, "no-space", &adopt);
    assert!(message.contains("no space is left below the history's store"), "{message}");
    assert!(!disk.join("history").exists(), "nothing is left of it");
    small.grow(40 << 20);
    server.good(&adopt);
    let mut client = server.disk("disk0");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    for number in 1..80 {
        write_megabyte(&mut client, number).unwrap();
    }
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    let status = server.json(&["status"]);
    let problem = status["problems"][0].clone();
    assert_eq!(problem["subject"], "disk0", "{problem}");
    assert!(problem["next"].as_str().unwrap().contains("free some space"), "{problem}");
    let said = server.good(&["history", "status", "disk0"]);
    assert!(said.contains("given up"), "that history was given up is said: {said}");
    // Killed on the full file system, it restarts and resumes.
    server.kill();
    server.restart();
    let mut client = server.disk("disk0");
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    write_megabyte(&mut client, 81).unwrap();
}

#[test]
fn full_disk_under_a_history_that_must_stay_fails_writes_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let Some(small) = SmallDisk::mount(&disk, 40 << 20) else { return };
    let server = Running::start(dir.path(), "d");
    let adopt = adoption_on_a_small_file_system(dir.path(), &disk, &["--floor", "1h"]);
    server.good(&adopt.iter().map(String::as_str).collect::<Vec<_>>());
    let mut client = server.disk("disk0");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    let refused = (1..40).find(|number| write_megabyte(&mut client, *number).is_err());
    let refused = refused.expect("a full disk takes no more");
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096], "what was flushed is still served");
    let problem = server.json(&["status"])["problems"][0].clone();
    assert_eq!(problem["subject"], "disk0", "{problem}");
    assert!(problem["next"].as_str().unwrap().contains("free some space"), "{problem}");
    // With room again it resumes, without a restart.
    small.grow(256 << 20);
    let until = Instant::now() + PATIENCE;
    while write_megabyte(&mut client, refused).is_err() {
        assert!(Instant::now() < until, "there is room");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    assert!(server.json(&["status"])["problems"].as_array().unwrap().is_empty());
}

#[test]
fn damaged_block_fails_its_reads_alone_and_its_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "128M"]);
    for lun in ["vol0/db", "vol0/web"] {
        server.good(&["lun", "create", lun, "--size", "4M"]);
    }
    let marked = [b"the block that rots ".as_slice(), &[7; 4076]].concat();
    let mut client = server.disk("vol0/db");
    client.write(0, &[1; 4096]).unwrap();
    client.write(4096, &marked).unwrap();
    server.disk("vol0/web").write(0, &[3; 4096]).unwrap();
    drop(client);
    assert_eq!(server.terminate(), 0);
    let path = server.data.join("volumes/vol0/volume.img");
    let image = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut block = vec![0; 4096];
    let found = (0..image.metadata().unwrap().len() / 4096).find(|number| {
        image.read_exact_at(&mut block, number * 4096).unwrap();
        block == marked
    });
    image.write_all_at(b"x", found.expect("the block is in the file") * 4096 + 100).unwrap();
    server.restart();
    let mut client = server.disk("vol0/db");
    let error = client.read(4096, 4096).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096], "its neighbour is served");
    client.write(8192, &[2; 4096]).unwrap();
    client.flush().unwrap();
    assert_eq!(server.disk("vol0/web").read(0, 4096).unwrap(), [3; 4096]);
    let output = server.run(&["volume", "check", "vol0", "--deep", "--json"]);
    assert_eq!(output.status.code(), Some(27), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("vol0/db") && !said.contains("vol0/web"), "the file is named: {said}");
    // Rewritten, the block is intact.
    client.write(4096, &marked).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(4096, 4096).unwrap(), marked);
}

/// Answers the hello of one destination as a source of version 99 does.
fn source_of_version_99(listener: &TcpListener, config: Arc<ServerConfig>) {
    let (socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut hello = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut hello).unwrap();
    let answer = br#"{"version":{"version":99}}"#;
    stream.write_all(&(answer.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(answer).unwrap();
    stream.flush().unwrap();
}

#[test]
fn peer_of_another_version_is_named_with_what_to_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = Running::start(dir.path(), "source");
    let destination = Running::start(dir.path(), "destination");
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    let token = source.invite();
    let address = source.json(&["status"])["mirror"].as_str().unwrap().to_owned();
    source.kill();
    // The same certificate at the same address, but another program.
    let identity = source.data.join("identity.pem");
    let certificate = CertificateDer::from_pem_file(&identity).unwrap();
    let key = PrivateKeyDer::from_pem_file(&identity).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let listener = TcpListener::bind(&address).unwrap();
    let message = std::thread::scope(|scope| {
        scope.spawn(|| source_of_version_99(&listener, Arc::new(config)));
        destination.bad(31, "version-mismatch", &["mirror", "create", "vol0", &token])
    });
    assert!(message.contains("99"), "both versions are told: {message}");
    assert_eq!(destination.json(&["volume", "list"]), serde_json::json!([]), "nothing is left of it");
}
