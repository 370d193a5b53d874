//! Reads that wait for the disk, beside later requests of the same client.

mod harness;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cairn_device::{Device, DeviceError, Geometry, MemoryDevice, Operation, Request};
use cairn_frontend_nbd::{Address, Client, ClientOptions, Listener, NbdServer, ServerOptions};
use harness::{One, is_closed, raw_session};
use parking_lot::{Condvar, Mutex};

const BLOCK: u32 = 4096;
const BLOCKS: u64 = 256;
/// Reads of blocks from here on wait for the disk.
const COLD: u64 = BLOCKS / 2;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// The behaviour of its cold blocks, once it is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cold {
    Reads,
    Fails,
    Panics,
}

/// Memory whose second half is on a disk that gives nothing before it is opened.
struct Disk {
    inner: MemoryDevice,
    cold: Cold,
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
            if !is_cold(operation) {
                continue;
            }
            match self.cold {
                Cold::Reads => {}
                Cold::Fails => operation.finish(Err(DeviceError::OutOfService)),
                Cold::Panics => panic!("a device has a fault"),
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

struct Served {
    server: NbdServer,
    disk: Arc<Disk>,
    _folder: tempfile::TempDir,
}

impl Served {
    /// Block number N is full of bytes N.
    fn new(cold: Cold) -> Self {
        let inner = MemoryDevice::new(BLOCKS * u64::from(BLOCK));
        for number in 0..BLOCKS {
            inner.write_from(number * u64::from(BLOCK), &[number as u8; BLOCK as usize]).unwrap();
        }
        let disk = Arc::new(Disk { inner, cold, open: Mutex::default(), changed: Condvar::new() });
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
        Self(raw_session(&path, "v/lun"))
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
    let served = Served::new(Cold::Reads);
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
    let served = Served::new(Cold::Reads);
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
fn reads_that_find_no_lane_are_answered_as_well() {
    let served = Served::new(Cold::Reads);
    let mut client = ByHand::new(&served);
    // More than all lanes take, in three rounds at least.
    for first in [0, 40, 80] {
        client.send(READ, COLD + first..COLD + first + 40);
        std::thread::yield_now();
    }
    served.disk.open();
    let replies: BTreeSet<(u64, u32)> = (0..120).map(|_| client.reply(|_| true)).collect();
    assert!(replies.into_iter().eq((COLD..COLD + 120).map(|block| (block, 0))));
}

#[test]
fn failed_reads_of_a_lane_are_answered_with_their_errors() {
    let served = Served::new(Cold::Fails);
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
fn client_whose_replies_are_lost_by_a_panic_finds_its_connection_closed() {
    let served = Served::new(Cold::Panics);
    served.disk.open();
    let mut client = ByHand::new(&served);
    client.send(READ, COLD..COLD + 8);
    assert!(is_closed(&mut client.0));
    assert_eq!(served.client().read(0, BLOCK).unwrap()[0], 0, "the server continues");
}

#[test]
fn session_whose_client_left_ends_when_its_reads_have() {
    let served = Served::new(Cold::Reads);
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
