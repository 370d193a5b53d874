//! Sessions over real sockets, spoken to by our own client and by hand-made bytes.

mod harness;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use cairn_base::Rng;
use cairn_frontend_nbd::{
    Address, Client, ClientError, ClientOptions, ClientRequest, ListenError, Listener, NbdError, ReplyMode,
    ServerOptions, StatusExtent,
};
use harness::{SIZE, SPOILED, TestServer, eventually, is_closed, pattern};

const MODES: [ReplyMode; 3] = [ReplyMode::Simple, ReplyMode::Structured, ReplyMode::Extended];

fn nbd_error<T: std::fmt::Debug>(result: Result<T, ClientError>) -> NbdError {
    match result {
        Err(ClientError::Failed { error, .. }) => error,
        other => panic!("expected a failed request, got {other:?}"),
    }
}

#[test]
fn random_requests_match_a_model_whatever_the_mode() {
    let server = TestServer::plain();
    for (seed, mode) in MODES.into_iter().enumerate() {
        for export in ["v/plain", "v/other"] {
            let mut client = server.client(export, mode);
            assert_eq!(client.offer().block_minimum, 1);
            let mut rng = Rng::new(seed as u64);
            let span = 256 << 10;
            let base = rng.below(SIZE - span);
            let mut model = vec![0xa5; span as usize];
            client.write(base, &model).unwrap();
            for step in 0..300 {
                let offset = rng.below(span);
                let length = 1 + rng.below((span - offset).min(40_000));
                let range = offset as usize..(offset + length) as usize;
                match rng.below(5) {
                    0 | 1 => {
                        let data = pattern(step, range.len());
                        client.write(base + offset, &data).unwrap();
                        model[range].copy_from_slice(&data);
                    }
                    2 => {
                        let no_hole = rng.one_in(2);
                        let request = ClientRequest::WriteZeroes {
                            offset: base + offset,
                            length,
                            no_hole,
                            fast: false,
                        };
                        client.perform(request).unwrap();
                        model[range].fill(0);
                    }
                    3 => client
                        .perform(ClientRequest::Cache { offset: base + offset, length })
                        .map(drop)
                        .unwrap(),
                    _ => assert_eq!(
                        client.read(base + offset, length as u32).unwrap(),
                        model[range],
                        "step {step}"
                    ),
                }
            }
            client.flush().unwrap();
            assert_eq!(client.read(base, span as u32).unwrap(), model);
            client.disconnect().unwrap();
        }
    }
}

#[test]
fn parts_of_blocks_are_refused_where_the_device_takes_whole_blocks() {
    let server = TestServer::plain();
    for mode in MODES {
        let mut client = server.client("v/blocks", mode);
        assert_eq!(client.offer().block_minimum, 4096);
        let bytes = pattern(6, 64 << 10);
        client.write(4096, &bytes).unwrap();
        assert_eq!(nbd_error(client.write(5000, &[1; 100])), NbdError::Invalid);
        assert_eq!(nbd_error(client.read(5, 4096)), NbdError::Invalid);
        let zeroes = ClientRequest::WriteZeroes { offset: 4096, length: 5, no_hole: false, fast: false };
        assert_eq!(nbd_error(client.perform(zeroes)), NbdError::Invalid);
        assert_eq!(
            nbd_error(client.perform(ClientRequest::Trim { offset: 5, length: 8192 })),
            NbdError::Invalid
        );
        assert!(client.read(4096, 64 << 10).unwrap() == bytes, "{mode:?}");
    }
}

#[test]
fn many_requests_in_flight_are_all_answered_with_their_own_data() {
    let server = TestServer::plain();
    let bytes = pattern(1, 8 << 20);
    for (export, address) in [("v/plain", server.unix()), ("v/other", server.tcp.clone())] {
        for (piece, depth) in [(4096, 64), (128 << 10, 32), (5000, 16), (3 << 20, 4)] {
            let mut client = Client::connect(&address, &ClientOptions::new(export)).unwrap();
            client.write_all(4096, &bytes, piece, depth).unwrap();
            let mut back = vec![0; bytes.len()];
            client.read_all(4096, &mut back, piece, depth).unwrap();
            assert!(back == bytes, "{export} in pieces of {piece}");
        }
    }
}

#[test]
fn the_longest_payload_goes_both_ways_and_one_byte_more_is_refused() {
    let server = TestServer::plain();
    let mut client = server.client("v/plain", ReplyMode::Structured);
    let bytes = pattern(2, 32 << 20);
    client.write(1, &bytes).unwrap();
    assert!(client.read(1, 32 << 20).unwrap() == bytes);
    assert_eq!(nbd_error(client.read(0, (32 << 20) + 1)), NbdError::Overflow);
    assert_eq!(nbd_error(client.write(0, &vec![1; (32 << 20) + 1])), NbdError::Overflow);
    assert_eq!(client.read(1, 16).unwrap(), bytes[..16]);
}

#[test]
fn refused_requests_leave_the_session_usable() {
    let server = TestServer::plain();
    for mode in MODES {
        let mut client = server.client("v/plain", mode);
        assert_eq!(nbd_error(client.read(SIZE, 1)), NbdError::Invalid);
        assert_eq!(nbd_error(client.write(SIZE - 1, &[1, 2])), NbdError::NoSpace);
        assert_eq!(
            nbd_error(client.perform(ClientRequest::Trim { offset: 1, length: SIZE })),
            NbdError::Invalid
        );
        client.write(0, b"fine").unwrap();
        let mut snapshot = server.client("v@s1/plain", mode);
        assert_eq!(nbd_error(snapshot.write(0, &pattern(3, 100_000))), NbdError::NotPermitted);
        assert_eq!(snapshot.read(0, 4).unwrap(), b"fine");
    }
}

#[test]
fn requests_without_bytes_succeed() {
    let server = TestServer::plain();
    for mode in MODES {
        let mut client = server.client("v/other", mode);
        assert_eq!(client.read(5, 0).unwrap(), b"");
        client.write(5, b"").unwrap();
        client.perform(ClientRequest::Trim { offset: 5, length: 0 }).unwrap();
        client
            .perform(ClientRequest::WriteZeroes { offset: 5, length: 0, no_hole: false, fast: false })
            .unwrap();
    }
}

#[test]
fn block_status_tells_holes_and_changed_blocks_in_the_selected_contexts() {
    let server = TestServer::plain();
    for mode in [ReplyMode::Structured, ReplyMode::Extended] {
        let mut client = server.client("v/plain", mode);
        client.perform(ClientRequest::Trim { offset: 0, length: SIZE }).unwrap();
        client.write(1 << 20, &pattern(4, 1 << 20)).unwrap();
        let status = client.block_status(0, SIZE).unwrap();
        let of = |name: &str| {
            let (id, _) = client.offer().contexts.iter().find(|(_, context)| context == name).unwrap();
            status.iter().find(|status| status.context == *id).unwrap().extents.clone()
        };
        let mib = 1u64 << 20;
        let extent = |length, flags| StatusExtent { length, flags };
        assert_eq!(of("base:allocation"), [extent(mib, 3), extent(mib, 0), extent(SIZE - 2 * mib, 3)]);
        assert_eq!(of("qemu:dirty-bitmap:s1"), [extent(mib, 1), extent(SIZE - mib, 0)]);
        assert_eq!(of("qemu:dirty-bitmap:s2"), [extent(SIZE, 0)]);

        let one = ClientRequest::BlockStatus { offset: 512, length: SIZE - 512, one: true, only: &[] };
        let status = client.perform(one).unwrap().status;
        assert!(status.iter().all(|status| status.extents.len() == 1) && status.len() == 3);
    }
    let mut client = server.client("v/plain", ReplyMode::Extended);
    let request = ClientRequest::BlockStatus { offset: 0, length: 4096, one: false, only: &[2] };
    let status = client.perform(request).unwrap().status;
    assert_eq!(status.iter().map(|status| status.context).collect::<Vec<_>>(), [2]);
}

#[test]
fn connections_see_what_others_wrote_and_part_blocks_do_not_lose_neighbours() {
    let server = TestServer::plain();
    std::thread::scope(|scope| {
        // Eight writers share each 4 KiB block.
        for lane in 0..8u64 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client("v/other", ReplyMode::Structured);
                for block in 0..64u64 {
                    client.write(block * 4096 + lane * 512, &[lane as u8 + 1; 512]).unwrap();
                }
                client.flush().unwrap();
            });
        }
    });
    let bytes = server.client("v/other", ReplyMode::Simple).read(0, 64 * 4096).unwrap();
    for (index, piece) in bytes.chunks(512).enumerate() {
        assert!(piece.iter().all(|byte| *byte == (index % 8) as u8 + 1), "piece {index}");
    }
}

#[test]
fn hostile_sessions_end_and_harm_nobody() {
    let server = TestServer::plain();
    let mut witness = server.client("v/plain", ReplyMode::Extended);
    witness.write(0, b"still here").unwrap();
    let mut rng = Rng::new(5);
    for round in 0..60 {
        let mut stream = if round % 2 == 0 { server.raw() } else { server.raw_session("v/plain") };
        let mut garbage = vec![0; 1 + rng.below(2000) as usize];
        rng.fill(&mut garbage);
        // The server may have closed it already.
        let _ = stream.write_all(&garbage);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let mut stream = server.raw_session("v/plain");
    stream.write_all(&[0xff; 28]).unwrap();
    assert!(is_closed(&mut stream));
    assert_eq!(witness.read(0, 10).unwrap(), b"still here");
    drop(witness);
    eventually("the end of all sessions", || server.server.sessions().is_empty());
}

#[test]
fn a_client_that_goes_away_in_the_middle_of_a_reply_is_not_noticed_by_others() {
    let server = TestServer::plain();
    let mut witness = server.client("v/plain", ReplyMode::Structured);
    for _ in 0..10 {
        let mut stream = server.raw_session("v/plain");
        let mut read = 0x2560_9513u32.to_be_bytes().to_vec();
        read.extend([0, 0, 0, 0]);
        read.extend([7; 8]);
        read.extend(0u64.to_be_bytes());
        read.extend((16u32 << 20).to_be_bytes());
        for _ in 0..4 {
            stream.write_all(&read).unwrap();
        }
        stream.read_exact(&mut [0; 100]).unwrap();
        drop(stream);
        witness.write(0, b"x").unwrap();
    }
    eventually("the end of the others", || server.server.sessions().len() == 1);
}

#[test]
fn a_stalled_client_does_not_stall_others() {
    let server = TestServer::plain();
    let mut stalled = server.raw_session("v/plain");
    let mut write = 0x2560_9513u32.to_be_bytes().to_vec();
    write.extend([0, 0, 0, 1]);
    write.extend([7; 16]);
    write[16..24].fill(0);
    write.extend((1u32 << 20).to_be_bytes());
    write.extend([1; 5000]);
    stalled.write_all(&write).unwrap();
    let _silent: Vec<_> = (0..100).map(|_| server.raw()).collect();
    let mut client = server.client("v/plain", ReplyMode::Extended);
    client.write(1 << 20, b"served").unwrap();
    assert_eq!(client.read(1 << 20, 6).unwrap(), b"served");
}

/// Sessions that ask for much and take nothing, so that hardly any room is left for the data of
/// others.
fn deaf_clients(server: &TestServer) -> Vec<Client> {
    let ask = |_| {
        let mut client = server.client("v/plain", ReplyMode::Structured);
        client.submit(ClientRequest::Read { offset: 0, length: 32 << 20 }).unwrap();
        client.submit(ClientRequest::Read { offset: 0, length: 32 << 20 }).unwrap();
        client
    };
    let clients: Vec<Client> = (0..24).map(ask).collect();
    eventually("their requests are taken", || {
        server.server.sessions().iter().filter(|session| session.totals.requests > 0).count() >= 24
    });
    clients
}

#[test]
fn long_requests_are_whole_while_sessions_that_do_not_read_leave_little_room() {
    let server = TestServer::plain();
    let _deaf = deaf_clients(&server);
    for mode in MODES {
        for export in ["v/plain", "v/other"] {
            let mut client = server.client(export, mode);
            let start = (40 << 20) - 7;
            client.write(start - 5000, &pattern(1, 4 << 20)).unwrap();
            let bytes = pattern(2, (3 << 20) + 77);
            client.write(start, &bytes).unwrap();
            let mut whole = pattern(1, 4 << 20);
            whole[5000..5000 + bytes.len()].copy_from_slice(&bytes);
            assert!(client.read(start - 5000, 4 << 20).unwrap() == whole, "{mode:?} {export}");
        }
    }
}

#[test]
fn long_request_that_fails_in_a_piece_fails_once_and_leaves_the_session_usable() {
    let server = TestServer::plain();
    let _deaf = deaf_clients(&server);
    for mode in MODES {
        let mut client = server.client("v/spoiled", mode);
        let start = SPOILED - (1 << 20);
        nbd_error(client.write(start, &pattern(3, 4 << 20)));
        nbd_error(client.read(start, 4 << 20));
        client.write(0, &pattern(4, 1 << 20)).unwrap();
        assert!(client.read(0, 1 << 20).unwrap() == pattern(4, 1 << 20), "{mode:?}");
    }
}

#[test]
fn sessions_are_limited_listed_and_closed_by_export() {
    let server = TestServer::start(ServerOptions { max_sessions: 2, ..ServerOptions::default() });
    let mut first = server.client("v/plain", ReplyMode::Extended);
    let mut second = server.client("v/other", ReplyMode::Extended);
    let refused = Client::connect(&server.unix(), &ClientOptions::new("v/plain"));
    assert!(matches!(refused, Err(ClientError::Handshake(_))));
    first.write(0, &[1; 1000]).unwrap();
    first.read(0, 500).unwrap();
    let sessions = server.server.sessions();
    let info = sessions.iter().find(|session| session.export == "v/plain").unwrap();
    let totals = info.totals;
    assert_eq!((totals.requests, totals.written_bytes, totals.read_bytes), (2, 1000, 500));
    assert!(info.activity.write.p99.is_some() && info.activity.read.per_second > 0.0, "{info:?}");

    assert_eq!(server.server.close_export("v/plain"), Ok(1));
    assert!(first.read(0, 1).is_err());
    second.write(0, b"unharmed").unwrap();
    assert_eq!(server.server.sessions().len(), 1);

    server.server.stop();
    assert!(second.flush().is_err());
    assert!(!server.socket.exists(), "a stopped server leaves no socket behind");
}

#[test]
fn clients_that_fill_one_listener_take_no_place_of_another_and_silent_ones_none_at_all() {
    let server = TestServer::start(ServerOptions { max_sessions: 2, ..ServerOptions::default() });
    let over_tcp = || Client::connect(&server.tcp, &ClientOptions::new("v/plain"));
    let Address::Tcp(tcp) = &server.tcp else { panic!("it is TCP") };
    let _silent: Vec<_> = (0..300).map(|_| std::net::TcpStream::connect(tcp).unwrap()).collect();
    let _sessions = [over_tcp().unwrap(), over_tcp().unwrap()];
    assert!(matches!(over_tcp(), Err(ClientError::Handshake(_))));
    let mut local = server.client("v/plain", ReplyMode::Extended);
    local.write(0, b"served").unwrap();
}

#[test]
fn unknown_and_default_exports_are_refused_with_the_reason() {
    let server = TestServer::plain();
    for name in ["", "v/none"] {
        match Client::connect(&server.unix(), &ClientOptions::new(name)) {
            Err(ClientError::Handshake(failure)) => {
                assert!(failure.to_string().contains("VOLUME/LUN"), "{failure}")
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = Address::Unix(path.clone());
    let listener = Listener::bind(&address).unwrap();
    assert!(matches!(Listener::bind(&address), Err(ListenError::InUse { .. })));
    drop(listener);
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Listener::bind(&address), Err(ListenError::NotASocket { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");

    let tcp = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    assert!(matches!(Listener::bind(&tcp.address()), Err(ListenError::InUse { .. })));
}

/// A client that lists hundreds of exports asks for each, over a link that may be slow. A client
/// that sends nothing, or never a complete question, is disconnected after ten seconds.
#[test]
fn client_that_goes_on_asking_is_not_cut_off_and_one_that_says_nothing_is() {
    let server = TestServer::plain();
    let (mut asking, mut silent, mut dripping) = (server.raw(), server.raw(), server.raw());
    for stream in [&mut asking, &mut silent, &mut dripping] {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&3u32.to_be_bytes()).unwrap();
    }
    // An unknown option is refused, and nothing else happens.
    const UNKNOWN: u32 = 4711;
    let mut option = b"IHAVEOPT".to_vec();
    option.extend(UNKNOWN.to_be_bytes());
    option.extend(0u32.to_be_bytes());
    for turn in 0..5 {
        std::thread::sleep(Duration::from_millis(2500));
        let _ = dripping.write_all(&option[turn..=turn]);
        asking.write_all(&option).unwrap();
        let mut reply = [0; 20];
        asking.read_exact(&mut reply).unwrap();
        assert_eq!(reply[8..12], UNKNOWN.to_be_bytes());
        let message = u32::from_be_bytes(reply[16..].try_into().unwrap());
        asking.read_exact(&mut vec![0; message as usize]).unwrap();
    }
    assert!(is_closed(&mut silent) && is_closed(&mut dripping));
}
