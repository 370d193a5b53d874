//! Entries in a port mapper, and datagrams of clients that have restarted.

#[allow(dead_code, reason = "this test program uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cairn_frontend_nfs::{Listener, NfsServer, Registered, ServerOptions};
use cairn_proto_nfs::nlm::{Bytes, LockStatus};
use cairn_proto_nfs::nsm::{NSM_PROGRAM, NSM_VERSION, NsmCall, Restarted};
use cairn_proto_nfs::portmap::{self, PortmapCall};
use cairn_proto_nfs::record::{Front, begin, finish, front};
use cairn_proto_nfs::rpc::{self, Credential, Incoming, RpcCall};
use harness::client::{Client, lock_of};
use harness::{Scene, TestExports};

/// Program, version and protocol, with the port.
type Entries = Arc<Mutex<BTreeMap<(u32, u32, u32), u32>>>;

/// A port mapper as rpcbind is one: it keeps an entry that is there, and removes all protocols.
struct Mapper {
    port: u16,
    entries: Entries,
}

impl Mapper {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let entries = Entries::default();
        let own = Arc::clone(&entries);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &own);
            }
        });
        Self { port, entries }
    }

    fn programs(&self) -> Vec<(u32, u32, u32, u32)> {
        let entries = self.entries.lock().unwrap();
        entries.iter().map(|((program, version, over), port)| (*program, *version, *over, *port)).collect()
    }
}

fn answer(mut stream: TcpStream, entries: &Entries) {
    let mut received = Vec::new();
    loop {
        if let Front::Record(record, used) = front(&received, 4096).unwrap() {
            let Ok(Incoming::Call(call)) = rpc::parse(&record) else { panic!("a call") };
            let mut entries = entries.lock().unwrap();
            let number = match portmap::parse_call(call.version, call.procedure, call.arguments).unwrap() {
                PortmapCall::Set(it) => {
                    let key = (it.program, it.version, it.protocol);
                    let is_free = !entries.contains_key(&key);
                    entries.entry(key).or_insert(it.port);
                    u32::from(is_free)
                }
                PortmapCall::Unset(it) => {
                    entries.retain(|key, _| (key.0, key.1) != (it.program, it.version));
                    1
                }
                PortmapCall::GetPort(it) => {
                    entries.get(&(it.program, it.version, it.protocol)).copied().unwrap_or(0)
                }
                other => panic!("{other:?}"),
            };
            let mut reply = Vec::new();
            let start = begin(&mut reply);
            rpc::write_accepted(call.xid, &mut reply);
            reply.extend(number.to_be_bytes());
            finish(&mut reply, start, 0);
            stream.write_all(&reply).unwrap();
            let rest = received.split_off(used);
            received = rest;
        }
        let mut piece = [0; 512];
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(count) => received.extend_from_slice(&piece[..count]),
        }
    }
}

fn start(scene: &Scene, address: &str, portmap_port: u16) -> NfsServer {
    let exports = Arc::new(TestExports(vec![Arc::new(scene.whole())]));
    let listeners = vec![Listener::bind(address).unwrap()];
    let server =
        NfsServer::start(listeners, exports, ServerOptions { portmap_port, ..ServerOptions::default() });
    server.unwrap()
}

fn wait_for(server: &NfsServer) -> Registered {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match server.registered() {
            Registered::Pending => assert!(Instant::now() < deadline),
            other => return other,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn port(server: &NfsServer) -> u32 {
    server.addresses()[0].rsplit_once(':').unwrap().1.parse().unwrap()
}

#[test]
fn programs_are_registered_while_the_server_runs() {
    let (scene, mapper) = (Scene::new(), Mapper::start());
    let server = start(&scene, "0.0.0.0:0", mapper.port);
    assert_eq!(wait_for(&server), Registered::Yes);
    let port = port(&server);
    let all = [
        (100_003, 3, 6, port),
        (100_005, 3, 6, port),
        (100_021, 4, 6, port),
        (100_024, 1, 6, port),
        (100_024, 1, 17, port),
    ];
    assert_eq!(mapper.programs(), all);
    drop(server);
    assert_eq!(mapper.programs(), []);
}

#[test]
fn entries_of_other_servers_stay_and_those_of_killed_ones_are_replaced() {
    let (scene, mapper) = (Scene::new(), Mapper::start());
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = u32::from(other.local_addr().unwrap().port());
    let left = u32::from(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    mapper.entries.lock().unwrap().extend([((100_024, 1, 6), taken), ((100_003, 3, 6), left)]);
    let server = start(&scene, "0.0.0.0:0", mapper.port);
    assert_eq!(wait_for(&server), Registered::Without(vec!["status"]));
    assert!(mapper.programs().contains(&(100_003, 3, 6, port(&server))));
    assert!(mapper.programs().contains(&(100_024, 1, 6, taken)));
    drop(server);
    assert!(mapper.programs().iter().all(|entry| entry.0 == 100_024), "{:?}", mapper.programs());
}

#[test]
fn server_without_a_port_mapper_or_on_loopback_alone_serves_all_the_same() {
    let scene = Scene::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = start(&scene, "0.0.0.0:0", free);
    assert_eq!(wait_for(&server), Registered::NoPortMapper);
    let mut client = Client::connect(&server.addresses()[0]);
    client.mount("/v").unwrap();
    let mapper = Mapper::start();
    let server = start(&scene, "127.0.0.1:0", mapper.port);
    assert_eq!(server.registered(), Registered::Off);
    drop(server);
    assert_eq!(mapper.programs(), []);
}

#[test]
fn datagram_of_a_client_that_has_restarted_frees_its_locks() {
    let (scene, mapper) = (Scene::new(), Mapper::start());
    let server = start(&scene, "0.0.0.0:0", mapper.port);
    let mut client = Client::connect(&server.addresses()[0]);
    let root = client.mount("/v").unwrap();
    let file = client.create(&root, b"file").unwrap();
    assert_eq!(client.lock(lock_of(&file, 1, 0, 0), false), LockStatus::Granted);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port(&server) as u16)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let ask = |program, procedure, arguments: &[u8]| {
        let call = RpcCall {
            xid: 9,
            program,
            version: NSM_VERSION,
            procedure,
            credential: Credential::None,
            arguments,
        };
        let mut message = Vec::new();
        rpc::write_call(&call, &mut message);
        socket.send(&message).unwrap();
        let mut reply = [0; 2048];
        let count = socket.recv(&mut reply).unwrap();
        assert!(count <= message.len(), "the reply is longer than the request");
        rpc::parse_reply(&reply[..count]).unwrap().results.map(<[u8]>::to_vec)
    };
    assert_eq!(ask(100_003, 0, &[]), None, "files are not served over datagrams");
    assert_eq!(ask(NSM_PROGRAM, 6, &[1, 2, 3]), None);
    socket.send(b"nonsense").unwrap();
    assert_eq!(server.locks(), 1);
    let notify = NsmCall::Notify(Restarted { name: Bytes(b"test"), state: 5 });
    let mut arguments = Vec::new();
    notify.write(&mut arguments);
    assert_eq!(ask(NSM_PROGRAM, notify.procedure(), &arguments), Some(Vec::new()));
    assert_eq!(server.locks(), 0);
}
