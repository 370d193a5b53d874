//! Strangers on the network, against a real server: who has a right to be served is served, and memory has a bound.

mod running;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use cairn_frontend_nbd::{Address, Client, ClientOptions, ClientRequest};
use running::{Running, cairn};
use serde_json::Value;

/// A client of an export, or why it was not let in.
fn client(address: &str, export: &str) -> Result<Client, String> {
    let address: Address = address.parse().unwrap();
    Client::connect(&address, &ClientOptions::new(export)).map_err(|error| error.to_string())
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
    // The greeting, and the answer of who is let in.
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
fn memory_of_many_sessions_has_a_bound_and_is_given_back() {
    const SESSIONS: u64 = 150;
    /// The cache, data on its way, the sessions, and everything else.
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
        // What is no flag of a client.
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
