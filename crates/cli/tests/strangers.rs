//! Strangers on the network, against a real server: authorized clients are served, and memory is
//! bounded.

mod running;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use cairn_frontend_nbd::{Address, Client, ClientOptions, ClientRequest, StatusExtent};
use running::{Running, cairn};
use serde_json::Value;

/// A client of an export, or why it was not let in.
fn client(address: &str, export: &str) -> Result<Client, String> {
    let address: Address = address.parse().unwrap();
    Client::connect(&address, &ClientOptions::new(export)).map_err(|error| error.to_string())
}

/// The answer of the API on the control socket.
fn api(server: &Running, path: &str) -> Value {
    let mut stream = UnixStream::connect(server.data.join("control.sock")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: cairn\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// A line of `/proc/PID/FILE` that begins so, without that.
fn of_process(server: &Running, file: &str, begin: &str) -> String {
    let pid = server.json(&["status"])["pid"].as_u64().unwrap();
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    text.lines().find_map(|line| line.strip_prefix(begin)).unwrap().trim().to_owned()
}

fn anonymous_mib(server: &Running) -> u64 {
    let line = of_process(server, "status", "RssAnon:");
    line.split(' ').next().unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn sessions_over_tcp_take_no_place_from_the_local_socket_and_not_all_from_other_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--mirror", "off", "--nbd", "127.0.0.1:0"]);
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    let lun = server.json(&["lun", "create", "vol0/db", "--size", "8M"]);
    let uri = lun["uris"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .find(|uri| uri.starts_with("nbd://"));
    let tcp = uri.unwrap().trim_start_matches("nbd://").split('/').next().unwrap().to_owned();
    let mut sessions = Vec::new();
    let refusal = loop {
        match client(&tcp, "vol0/db") {
            Ok(session) => sessions.push(session),
            Err(refusal) => break refusal,
        }
    };
    assert!(refusal.contains("sessions"), "{refusal}");
    assert_eq!(sessions.len(), 256 - 256 / 8, "some places are for other addresses");
    for _ in 0..20 {
        assert_eq!(server.disk("vol0/db").read(0, 4096).unwrap(), vec![0; 4096]);
    }
    assert!(server.is_done_in_time(&["lun", "create", "vol0/other", "--size", "8M"]));
    // From another address.
    let (host, port) = tcp.rsplit_once(':').unwrap();
    assert_eq!(host, "127.0.0.1");
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    let at = |ip: [u8; 4], port: u16| std::net::SocketAddr::from((ip, port));
    rustix::net::bind(&socket, &at([127, 0, 0, 2], 0)).unwrap();
    rustix::net::connect(&socket, &at([127, 0, 0, 1], port.parse().unwrap())).unwrap();
    let mut other = TcpStream::from(socket);
    other.set_read_timeout(Some(running::PATIENCE)).unwrap();
    let export = b"vol0/db";
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT\0\0\0\x01");
    hello.extend((export.len() as u32).to_be_bytes());
    hello.extend(export);
    other.write_all(&hello).unwrap();
    // The greeting, and the answer to an admitted client.
    other.read_exact(&mut [0; 18 + 10]).unwrap();
}

#[test]
fn limit_of_open_files_is_raised_and_silent_connections_keep_no_mirror_out() {
    let dir = tempfile::tempdir().unwrap();
    let source = Running::start(dir.path(), "source");
    let limits = of_process(&source, "limits", "Max open files");
    let mut limits = limits.split_whitespace();
    assert_eq!(limits.next(), limits.next(), "the soft limit is the hard one");
    source.good(&["volume", "create", "vol0", "--size", "64M"]);
    let destination = Running::start_with(dir.path(), "destination", &["--mirror", "off"]);
    destination.good(&["mirror", "create", "vol0", &source.invite()]);
    let address = source.json(&["status"])["mirror"].as_str().unwrap().to_owned();
    // Each that is closed comes again.
    let connect = || TcpStream::connect(&address).unwrap();
    let mut silent: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    for _ in 0..4 {
        for stream in &mut silent {
            stream.set_nonblocking(true).unwrap();
            if !matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
            {
                *stream = connect();
            }
        }
        destination.good(&["mirror", "update", "vol0"]);
    }
}

#[test]
fn changed_blocks_are_told_since_every_snapshot_over_nbd_and_http() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "256M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "8M"]);
    let mib = 1u64 << 20;
    let mut disk = server.disk("vol0/db");
    for number in 0..70u64 {
        disk.write(number % 8 * mib, &[number as u8 + 1; 4096]).unwrap();
        disk.flush().unwrap();
        server.good(&["snapshot", "create", &format!("vol0@n{number}"), "-q"]);
    }
    disk.write(7 * mib + 8192, &[200; 4096]).unwrap();
    // Of the export, since, up to: the blocks that differ.
    let blocks = |megabytes: &[u64]| megabytes.iter().map(|number| (number * mib, 4096)).collect::<Vec<_>>();
    let last = (7 * mib + 8192, 4096);
    let all = blocks(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let cases = [
        ("vol0/db", "n69", None, vec![last]),
        ("vol0/db", "n0", None, [all.clone(), vec![last]].concat()),
        ("vol0@n69/db", "n68", Some("n69"), blocks(&[5])),
        ("vol0@n69/db", "n0", Some("n69"), all.clone()),
        ("vol0@n3/db", "n1", Some("n3"), blocks(&[2, 3])),
        ("vol0@n1/db", "n3", Some("n1"), blocks(&[2, 3])),
        ("vol0@n5/db", "n5", Some("n5"), Vec::new()),
    ];
    for (export, since, until, expected) in cases {
        let contexts = vec![format!("qemu:dirty-bitmap:{since}")];
        let options = ClientOptions { contexts, ..ClientOptions::new(export) };
        let address = Address::Unix(server.data.join("nbd.sock"));
        let mut client = Client::connect(&address, &options).unwrap();
        assert_eq!(client.offer().contexts.len(), 1, "{export} since {since}");
        let mut at = 0;
        let mut dirty = Vec::new();
        for StatusExtent { length, flags } in client.block_status(0, 8 * mib).unwrap().remove(0).extents {
            if flags == 1 {
                dirty.push((at, length));
            }
            at += length;
        }
        assert_eq!((at, &dirty), (8 * mib, &expected), "{export} since {since}");
        // In pages of three.
        let (mut ranges, mut offset) = (Vec::new(), Some(0));
        while let Some(from) = offset {
            let until = until.map(|until| format!("&until={until}")).unwrap_or_default();
            let path = format!("/v1/volumes/vol0/luns/db/changed?since={since}{until}&offset={from}&limit=3");
            let page = api(&server, &path);
            assert_eq!(page["size_bytes"], 8 * mib, "{page}");
            let pair = |range: &Value| (range["offset"].as_u64().unwrap(), range["bytes"].as_u64().unwrap());
            ranges.extend(page["ranges"].as_array().unwrap().iter().map(pair));
            offset = page["next"].as_u64();
        }
        assert_eq!(ranges, expected, "{export} since {since}, over HTTP");
    }
    let refused = api(&server, "/v1/volumes/vol0/luns/db/changed?since=none");
    assert!(refused["message"].as_str().unwrap().contains("vol0@none"), "{refused}");
    // A new LUN of its name shares no block with the earlier one, nor a hole.
    drop(disk);
    server.good(&["lun", "delete", "vol0/db", "--yes"]);
    server.good(&["lun", "create", "vol0/db", "--size", "8M"]);
    let page = api(&server, "/v1/volumes/vol0/luns/db/changed?since=n0");
    assert_eq!(page["ranges"], serde_json::json!([{ "offset": 0, "bytes": 8 * mib }]));
    // Lists are whole.
    let mut stream = UnixStream::connect(server.data.join("nbd.sock")).unwrap();
    let mut ask = 3u32.to_be_bytes().to_vec();
    ask.extend(b"IHAVEOPT\0\0\0\x03\0\0\0\0IHAVEOPT\0\0\0\x02\0\0\0\0");
    stream.write_all(&ask).unwrap();
    let mut list = Vec::new();
    stream.read_to_end(&mut list).unwrap();
    let list = String::from_utf8_lossy(&list);
    let is_listed = |number: &u64| list.contains(&format!("vol0@n{number}/db"));
    assert_eq!((0..70).filter(is_listed).count(), 70);
}

#[test]
fn memory_of_many_sessions_has_a_bound_and_is_given_back() {
    const SESSIONS: u64 = 150;
    /// The cache, data in flight, the sessions, and everything else.
    const BOUND_MIB: u64 = 64 + 64 + SESSIONS / 2 + 48;
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(dir.path(), "d", &["--mirror", "off", "--cache", "64M"]);
    server.good(&["volume", "create", "vol0", "--size", "1G"]);
    server.good(&["lun", "create", "vol0/db", "--size", "512M"]);
    let mut sessions: Vec<Client> = (0..SESSIONS).map(|_| server.disk("vol0/db")).collect();
    let mut most = 0;
    for round in 0..6u64 {
        for (number, session) in (0..).zip(&mut sessions) {
            // Scattered, and mostly where nothing was written before.
            let place = (number * 7919 + round * 104_729) % 8000;
            session
                .submit(ClientRequest::Write {
                    offset: place << 16,
                    data: &[round as u8; 64 << 10],
                    fua: false,
                })
                .unwrap();
            session
                .submit(ClientRequest::Read { offset: (place * 13 % 500) << 20, length: 1 << 20 })
                .unwrap();
        }
        for session in &mut sessions {
            while session.in_flight() > 0 {
                session.complete().unwrap().outcome.unwrap();
            }
        }
        most = most.max(anonymous_mib(&server));
    }
    assert!(most <= BOUND_MIB, "{most} MiB, and {BOUND_MIB} are allowed");
    drop(sessions);
    running::wait_until("memory goes back", || anonymous_mib(&server) <= 64 + 48);
}

#[test]
fn flood_of_refused_strangers_and_forged_names_leave_a_log_of_few_whole_lines() {
    let dir = tempfile::tempdir().unwrap();
    let (data, log) = (dir.path().join("d"), dir.path().join("log"));
    let file = std::fs::File::create(&log).unwrap();
    let mut command = cairn();
    command.args(["serve", "--mirror", "off", "--iscsi", "off", "--nbd", "127.0.0.1:0", "--data"]).arg(&data);
    let mut process = command.stdout(std::process::Stdio::null()).stderr(file).spawn().unwrap();
    running::wait_until("it serves", || UnixStream::connect(data.join("nbd.sock")).is_ok());
    for _ in 0..400 {
        let mut stream = UnixStream::connect(data.join("nbd.sock")).unwrap();
        // Invalid client flags.
        stream.write_all(&[0xff; 64]).unwrap();
        stream.set_read_timeout(Some(running::PATIENCE)).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let text = std::fs::read_to_string(&log).unwrap();
    let refusals = text.lines().filter(|line| line.contains("closed a session")).count();
    process.kill().unwrap();
    process.wait().unwrap();
    assert!((1..=30).contains(&refusals), "{refusals} lines");
}
