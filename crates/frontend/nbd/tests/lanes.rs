//! Reads that wait for the disk, beside later requests of the same client.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cairn_device::{Device, DeviceError, Geometry, MemoryDevice, Operation, Request};
use cairn_frontend_nbd::{
    Address, Client, ClientOptions, Export, ExportInfo, Exports, Listener, NbdServer, OpenExportError,
    ServerOptions,
};
use parking_lot::{Condvar, Mutex};

const BLOCK: u32 = 4096;
const BLOCKS: u64 = 256;
/// Reads of blocks from here on wait for the disk.
const COLD: u64 = BLOCKS / 2;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// Memory whose second half is on a disk that gives nothing before it is opened.
struct Disk {
    inner: MemoryDevice,
    fails: bool,
    open: Mutex<bool>,
    changed: Condvar,
}

impl Disk {
    fn open(&self) {
        *self.open.lock() = true;
        self.changed.notify_all();
    }
}

fn is_cold(operation: &Operation) -> bool {
    matches!(operation.request(), Request::Read { offset, .. } if *offset >= COLD * u64::from(BLOCK))
}

impl Device for Disk {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        if batch.iter().any(|operation| operation.is_pending() && is_cold(operation)) {
            let mut open = self.open.lock();
            while !*open {
                self.changed.wait(&mut open);
            }
        }
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            if self.fails && is_cold(operation) {
                operation.finish(Err(DeviceError::OutOfService));
            }
        }
        self.inner.run(batch);
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        for operation in batch {
            if !is_cold(operation) && !operation.is_flush() {
                self.inner.run(std::slice::from_mut(operation));
            }
        }
    }
}

struct One(Arc<Disk>);

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
    disk: Arc<Disk>,
    _folder: tempfile::TempDir,
}

impl Served {
    /// Block number N is full of bytes N.
    fn new(fails: bool) -> Self {
        let inner = MemoryDevice::new(BLOCKS * u64::from(BLOCK));
        for number in 0..BLOCKS {
            inner.write_from(number * u64::from(BLOCK), &[number as u8; BLOCK as usize]).unwrap();
        }
        let disk = Arc::new(Disk { inner, fails, open: Mutex::default(), changed: Condvar::new() });
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Unix(folder.path().join("nbd.sock"));
        let listeners = vec![Listener::bind(&address).unwrap()];
        let exports = Arc::new(One(disk.clone()));
        let server = NbdServer::start(listeners, exports, ServerOptions::default()).unwrap();
        Self { server, disk, _folder: folder }
    }

    fn client(&self) -> Client {
        Client::connect(&self.server.addresses()[0], &ClientOptions::new("v/lun")).unwrap()
    }
}

/// A session by hand, whose requests can come in one piece. A cookie is the number of a block.
struct ByHand(UnixStream);

impl ByHand {
    fn new(served: &Served) -> Self {
        let Address::Unix(path) = served.server.addresses()[0].clone() else { panic!("a unix socket") };
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(1u32.to_be_bytes());
        hello.extend(5u32.to_be_bytes());
        hello.extend(b"v/lun");
        stream.write_all(&hello).unwrap();
        stream.read_exact(&mut [0; 18 + 10]).unwrap();
        Self(stream)
    }

    /// Sends requests of one kind for a block each.
    fn send(&mut self, kind: u16, blocks: std::ops::Range<u64>) {
        let mut bytes = Vec::new();
        for block in blocks {
            bytes.extend(0x2560_9513u32.to_be_bytes());
            bytes.extend(0u16.to_be_bytes());
            bytes.extend(kind.to_be_bytes());
            bytes.extend(block.to_be_bytes());
            let is_flush = kind == FLUSH;
            bytes.extend(if is_flush { 0 } else { block * u64::from(BLOCK) }.to_be_bytes());
            bytes.extend(if is_flush { 0 } else { BLOCK }.to_be_bytes());
            bytes.extend(vec![block as u8; if kind == WRITE { BLOCK as usize } else { 0 }]);
        }
        self.0.write_all(&bytes).unwrap();
    }

    /// The next reply: its cookie, and its error. Data of a read is that of its block.
    fn reply(&mut self, is_read: impl Fn(u64) -> bool) -> (u64, u32) {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        if is_read(cookie) && error == 0 {
            let mut data = [0; BLOCK as usize];
            self.0.read_exact(&mut data).unwrap();
            assert!(data.iter().all(|byte| *byte == cookie as u8), "block {cookie}");
        }
        (cookie, error)
    }
}

#[test]
fn later_requests_are_answered_while_reads_wait_for_the_disk() {
    let served = Served::new(false);
    let mut client = ByHand::new(&served);
    client.send(READ, COLD..COLD + 8);
    for kind in [READ, WRITE, FLUSH].into_iter().cycle().take(60) {
        client.send(kind, 7..8);
        assert_eq!(client.reply(|_| kind == READ), (7, 0));
    }
    served.disk.open();
    let replies: BTreeSet<(u64, u32)> = (0..8).map(|_| client.reply(|_| true)).collect();
    assert!(replies.into_iter().eq((COLD..COLD + 8).map(|block| (block, 0))));
}

#[test]
fn each_of_many_reads_in_flight_gets_its_own_bytes() {
    let served = Served::new(false);
    served.disk.open();
    let mut client = served.client();
    let mut bytes = vec![0; (BLOCKS * u64::from(BLOCK)) as usize];
    for (piece, depth) in [(4096, 32), (8192, 16), (4096, 3), (65536, 4)] {
        bytes.fill(0);
        client.read_all(0, &mut bytes, piece, depth).unwrap();
        for (number, block) in bytes.chunks(BLOCK as usize).enumerate() {
            assert!(block.iter().all(|byte| *byte == number as u8), "block {number}, {piece} bytes each");
        }
    }
}

#[test]
fn failed_reads_of_a_lane_are_answered_with_their_errors() {
    let served = Served::new(true);
    served.disk.open();
    let mut client = ByHand::new(&served);
    client.send(READ, COLD..COLD + 16);
    for _ in 0..16 {
        let (block, error) = client.reply(|_| true);
        assert!(error != 0, "{block}");
    }
    client.send(READ, 7..8);
    assert_eq!(client.reply(|_| true), (7, 0));
}

#[test]
fn session_whose_client_left_ends_when_its_reads_have() {
    let served = Served::new(false);
    let mut client = ByHand::new(&served);
    client.send(READ, COLD..COLD + 8);
    client.send(READ, 7..8);
    assert_eq!(client.reply(|_| true), (7, 0));
    drop(client);
    let closed = std::thread::scope(|scope| {
        let closing = scope.spawn(|| served.server.close_export("v/lun"));
        served.disk.open();
        closing.join().unwrap()
    });
    assert!(closed.is_ok(), "{closed:?}");
    assert_eq!(served.client().read(COLD * u64::from(BLOCK), BLOCK).unwrap()[0], COLD as u8);
}
