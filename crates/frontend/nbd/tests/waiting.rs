//! Requests that wait in their device while their session ends: they never happen later.

mod harness;
#[path = "../../session/tests/devices/waiting.rs"]
mod waiting_device;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cairn_frontend_nbd::{Address, Client, ClientOptions, ClientRequest, Listener, NbdServer, ServerOptions};
use harness::One;
use waiting_device::{STALE, Waiting};

const SIZE: u64 = 1 << 20;
const BLOCK: usize = 4096;

struct Served {
    server: NbdServer,
    device: Arc<Waiting>,
    addresses: [Address; 2],
    _folder: tempfile::TempDir,
}

impl Served {
    fn new(begun: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let unix = Address::Unix(folder.path().join("nbd.sock"));
        let listeners =
            vec![Listener::bind(&unix).unwrap(), Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap()];
        let device = Waiting::new(SIZE, begun);
        let exports = Arc::new(One(device.clone()));
        let server = NbdServer::start(listeners, exports, ServerOptions::default()).unwrap();
        let addresses = [unix, server.addresses()[1].clone()];
        Self { server, device, addresses, _folder: folder }
    }

    fn client(&self, address: &Address) -> Client {
        Client::connect(address, &ClientOptions::new("v/lun")).unwrap()
    }

    /// A client whose write waits.
    fn stale(&self, address: &Address) -> Client {
        let mut client = self.client(address);
        client.submit(ClientRequest::Write { offset: 0, data: &[STALE; BLOCK], fua: false }).unwrap();
        self.device.until_waiting(1);
        client
    }
}

#[test]
fn write_of_a_connection_that_is_over_never_comes_behind_newer_ones() {
    for tcp in [false, true] {
        for is_there_before in [false, true] {
            let served = Served::new(false);
            let address = &served.addresses[usize::from(tcp)];
            let before = is_there_before.then(|| served.client(address));
            drop(served.stale(address));
            let mut client = before.unwrap_or_else(|| served.client(address));
            client.write(0, &[1; BLOCK]).unwrap();
            client.write(0, &[2; BLOCK]).unwrap();
            served.device.open();
            assert_eq!(served.device.first_byte(), 2, "tcp {tcp}, connected before {is_there_before}");
        }
    }
}

#[test]
fn closing_an_export_drops_what_waits_and_returns() {
    let served = Served::new(false);
    let client = served.stale(&served.addresses[0]);
    assert_eq!(served.server.close_export("v/lun"), Ok(1));
    served.device.open();
    assert_eq!(served.device.first_byte(), 0);
    drop(client);
}

#[test]
fn new_session_waits_for_what_an_earlier_one_has_begun() {
    let served = Served::new(true);
    drop(served.stale(&served.addresses[0]));
    std::thread::scope(|scope| {
        let again = scope.spawn(|| {
            let mut client = served.client(&served.addresses[0]);
            client.write(0, &[2; BLOCK]).unwrap();
        });
        assert_eq!(served.server.sessions().len(), 1, "it is not over");
        served.device.open();
        again.join().unwrap();
    });
    assert_eq!(served.device.first_byte(), 2);
}

#[test]
fn client_that_only_sends_no_more_gets_its_answers() {
    let served = Served::new(false);
    let Address::Unix(path) = &served.addresses[0] else { panic!("a unix socket") };
    let mut stream = UnixStream::connect(path).unwrap();
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend(1u32.to_be_bytes());
    hello.extend(5u32.to_be_bytes());
    hello.extend(b"v/lun");
    for cookie in 0..2u64 {
        hello.extend(0x2560_9513u32.to_be_bytes());
        hello.extend([0, 0, 0, 1]);
        hello.extend(cookie.to_be_bytes());
        hello.extend(0u64.to_be_bytes());
        hello.extend((BLOCK as u32).to_be_bytes());
        hello.extend([7; BLOCK]);
    }
    stream.write_all(&hello).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut answers).unwrap();
    let errors: Vec<&[u8]> = answers[28..].chunks(16).map(|answer| &answer[4..8]).collect();
    assert_eq!(errors, [[0; 4]; 2]);
    assert_eq!(served.device.first_byte(), 7);
}

#[test]
fn export_whose_device_does_not_finish_a_write_is_not_called_closed() {
    let served = Served::new(true);
    let client = served.stale(&served.addresses[0]);
    let unfinished = served.server.close_export("v/lun").unwrap_err();
    assert_eq!((unfinished.export.as_str(), unfinished.sessions), ("v/lun", 1));
    served.device.open();
    assert_eq!(served.device.first_byte(), STALE);
    drop(client);
}
