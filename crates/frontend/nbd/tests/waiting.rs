//! Requests that wait in their device while their session ends: they never happen later.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cairn_device::{Device, DeviceError, Extent, Geometry, MemoryDevice, Operation, Request, park};
use cairn_frontend_nbd::{
    Address, Client, ClientOptions, ClientRequest, Export, ExportInfo, Exports, Listener, NbdServer,
    OpenExportError, ServerOptions,
};
use parking_lot::{Condvar, Mutex};

/// What a write that waits begins with.
const STALE: u8 = b'S';

/// Memory in which writes that begin with [`STALE`] wait until it is opened, as in a device without room. They have `begun` before they do, or not.
struct Waiting {
    inner: MemoryDevice,
    begun: bool,
    /// How many wait, and whether it is open.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Waiting {
    fn new(bytes: u64, begun: bool) -> Arc<Self> {
        let (inner, state, changed) = (MemoryDevice::new(bytes), Mutex::default(), Condvar::new());
        Arc::new(Self { inner, begun, state, changed })
    }

    /// Until so many writes wait.
    fn until_waiting(&self, count: usize) {
        let mut state = self.state.lock();
        while state.0 != count {
            self.changed.wait(&mut state);
        }
    }

    /// Lets all go on, and returns when they have.
    fn open(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
        self.until_waiting(0);
    }

    fn first_byte(&self) -> u8 {
        self.inner.read(0, 1).unwrap().to_vec()[0]
    }
}

impl Device for Waiting {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        let waits = |operation: &Operation| match operation.request() {
            Request::Write { data, .. } => data.to_vec().first() == Some(&STALE),
            _ => false,
        };
        let waiting = batch.iter().filter(|operation| operation.is_pending() && waits(operation)).count();
        if !self.begun {
            park(batch);
        }
        let mut state = self.state.lock();
        state.0 += waiting;
        self.changed.notify_all();
        while waiting > 0 && !state.1 && (self.begun || !batch.iter().any(Operation::is_withdrawn)) {
            self.changed.wait_for(&mut state, Duration::from_millis(20));
        }
        batch
            .iter_mut()
            .filter(|operation| operation.is_pending())
            .for_each(|operation| _ = if waiting > 0 { operation.resume() } else { operation.begin() });
        self.inner.run(batch);
        state.0 -= waiting;
        self.changed.notify_all();
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.extents(offset, length, limit)
    }
}

const SIZE: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// One export, in blocks of 4 KiB.
struct One(Arc<Waiting>);

impl Exports for One {
    fn list(&self) -> Vec<ExportInfo> {
        Vec::new()
    }

    fn open(&self, _: &str) -> Result<Export, OpenExportError> {
        Ok(Export {
            device: self.0.clone(),
            description: String::new(),
            read_only: false,
            writes_through: false,
            multi_conn: true,
            dirty_contexts: Vec::new(),
            changed: None,
        })
    }
}

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
