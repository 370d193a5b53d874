//! Reads that wait for the disk, beside later requests of the same client.

#[allow(dead_code, reason = "this test program uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_device::{Device, DeviceError, Geometry, MemoryDevice, Operation, Request};
use cairn_proto_nfs::rpc::parse_reply;
use cairn_proto_nfs::*;
use cairn_volume::{Role, Volume};
use harness::client::Client;
use harness::{BLOCKS, Running, Scene};
use parking_lot::{Condvar, Mutex};

const BLOCK: u32 = 4096;
/// Blocks of a file.
const LENGTH: u64 = 200;

/// The behaviour of reads of the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Done,
    Wait,
    Fail,
    Panic,
}

/// Memory whose reads can be made to wait.
struct Disk {
    inner: MemoryDevice,
    reads: Mutex<Reads>,
    changed: Condvar,
}

impl Disk {
    fn set(&self, reads: Reads) {
        *self.reads.lock() = reads;
        self.changed.notify_all();
    }
}

impl Device for Disk {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        let is_read = |operation: &Operation| matches!(operation.request(), Request::Read { .. });
        if batch.iter().any(|operation| operation.is_pending() && is_read(operation)) {
            let mut reads = self.reads.lock();
            while *reads == Reads::Wait {
                self.changed.wait(&mut reads);
            }
            let reads = *reads;
            for operation in batch.iter_mut().filter(|operation| operation.is_pending() && is_read(operation))
            {
                match reads {
                    Reads::Done | Reads::Wait => {}
                    Reads::Fail => operation.finish(Err(DeviceError::OutOfService)),
                    Reads::Panic => panic!("a device has a fault"),
                }
            }
        }
        self.inner.run(batch);
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        let is_read = |operation: &Operation| matches!(operation.request(), Request::Read { .. });
        for operation in batch {
            if !is_read(operation) && !operation.is_flush() {
                self.inner.run(std::slice::from_mut(operation));
            }
        }
    }
}

struct Served {
    disk: Arc<Disk>,
    running: Running,
    /// Block number N of file number M is full of bytes N + M.
    files: Vec<Handle>,
    _scene: Scene,
}

fn fill(file: usize, block: u64) -> u8 {
    (file as u64 + block) as u8
}

impl Served {
    /// Serves files whose first block is in memory, and no other.
    fn new(count: usize) -> Self {
        let inner = MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal));
        let disk = Arc::new(Disk { inner, reads: Mutex::new(Reads::Done), changed: Condvar::new() });
        let scene = Scene::on(disk.clone());
        {
            let running = scene.serve(vec![scene.whole()]);
            let mut client = running.client();
            let root = client.mount("/v").unwrap();
            for file in 0..count {
                let made = client.create(&root, format!("file{file}").as_bytes()).unwrap();
                let blocks = (0..LENGTH).flat_map(|block| vec![fill(file, block); BLOCK as usize]);
                let data: Vec<u8> = blocks.collect();
                for (number, piece) in data.chunks(256 << 10).enumerate() {
                    client.write(&made, (number as u64) << 18, piece).unwrap();
                }
            }
        }
        let clock = scene.clock.clone();
        scene.volume.close().unwrap();
        drop(scene);
        let scene = Scene::open(disk.clone(), clock);
        let running = scene.serve(vec![scene.whole()]);
        let mut client = running.client();
        let root = client.mount("/v").unwrap();
        let files: Vec<Handle> =
            (0..count).map(|file| client.walk(&root, &format!("file{file}")).unwrap()).collect();
        for (number, file) in files.iter().enumerate() {
            assert_eq!(client.read(file, 0, 1).unwrap().data, [fill(number, 0)]);
            // The blocks that a change needs are in memory as well.
            client.write(file, 0, &[fill(number, 0); BLOCK as usize]).unwrap();
        }
        Self { disk, running, files, _scene: scene }
    }
}

/// Sends reads of one block each at once, and returns their numbers with file and block.
fn send(client: &mut Client, served: &Served, blocks: &[(usize, u64)]) -> BTreeMap<u32, (usize, u64)> {
    client.together(|client| {
        let read = |(file, block): &(usize, u64)| {
            let call =
                Call::Read { file: served.files[*file], offset: block * u64::from(BLOCK), count: BLOCK };
            (client.send(&call), (*file, *block))
        };
        blocks.iter().map(read).collect()
    })
}

/// Receives the replies of all reads, in any order.
fn receive(client: &mut Client, mut sent: BTreeMap<u32, (usize, u64)>) {
    while !sent.is_empty() {
        let record = client.receive().expect("the server answers");
        let reply = parse_reply(&record).unwrap();
        let (file, block) = sent.remove(&reply.xid).expect("a read that was sent");
        let Reply::Read(Ok(read)) = Reply::parse(6, reply.results.unwrap()).unwrap() else {
            panic!("a read")
        };
        assert_eq!(read.data, vec![fill(file, block); BLOCK as usize], "file {file}, block {block}");
        assert_eq!(read.end, block + 1 == LENGTH);
    }
}

#[test]
fn later_requests_are_answered_while_reads_wait_for_the_disk() {
    let served = Served::new(1);
    let mut client = served.running.client();
    let file = served.files[0];
    served.disk.set(Reads::Wait);
    let blocks: Vec<(usize, u64)> = (50..58).map(|block| (0, block)).collect();
    let sent = send(&mut client, &served, &blocks);
    for _ in 0..20 {
        assert_eq!(client.read(&file, 0, 1).unwrap().data, [0]);
        client.stat(&file).unwrap();
        client.write_as(&file, 0, &[0; BLOCK as usize], Stable::Unstable).unwrap();
        client.commit(&file).unwrap();
    }
    served.disk.set(Reads::Done);
    receive(&mut client, sent);
}

#[test]
fn each_of_many_reads_in_flight_gets_its_own_bytes() {
    let served = Served::new(5);
    let mut client = served.running.client();
    // Of one file, of several, and two of the same block.
    for step in [1, 7, 13] {
        let all: Vec<(usize, u64)> = (0..LENGTH).map(|block| ((block / step) as usize % 5, block)).collect();
        for some in all.chunks(33) {
            let twice: Vec<(usize, u64)> = some.iter().flat_map(|one| [*one, *one]).collect();
            let sent = send(&mut client, &served, &twice);
            receive(&mut client, sent);
        }
    }
}

#[test]
fn reads_that_find_no_lane_are_answered_as_well() {
    let served = Served::new(2);
    let mut client = served.running.client();
    served.disk.set(Reads::Wait);
    let blocks: Vec<(usize, u64)> = (20..180).flat_map(|block| [(0, block), (1, block)]).collect();
    let mut sent = BTreeMap::new();
    for some in blocks.chunks(40) {
        sent.append(&mut send(&mut client, &served, some));
        std::thread::yield_now();
    }
    served.disk.set(Reads::Done);
    receive(&mut client, sent);
}

#[test]
fn read_beside_a_change_of_its_round_is_answered() {
    let served = Served::new(1);
    let mut client = served.running.client();
    let file = served.files[0];
    let write = Call::Write { file, offset: 0, count: 1, stable: Stable::FileSync, data: &[0] };
    for block in 100..120 {
        let change = client.send(&write);
        let read = send(&mut client, &served, &[(0, block)]);
        let mut numbers = vec![change, *read.keys().next().unwrap()];
        for _ in 0..2 {
            let record = client.receive().unwrap();
            let xid = parse_reply(&record).unwrap().xid;
            numbers.retain(|number| *number != xid);
        }
        assert!(numbers.is_empty(), "{numbers:?}");
    }
}

#[test]
fn failed_reads_are_answered_with_their_errors() {
    let served = Served::new(1);
    let mut client = served.running.client();
    served.disk.set(Reads::Fail);
    let blocks: Vec<(usize, u64)> = (60..76).map(|block| (0, block)).collect();
    let sent = send(&mut client, &served, &blocks);
    for _ in 0..sent.len() {
        let record = client.receive().unwrap();
        let reply = parse_reply(&record).unwrap();
        let Reply::Read(outcome) = Reply::parse(6, reply.results.unwrap()).unwrap() else { panic!("a read") };
        assert_eq!(outcome.unwrap_err().status, Status::Io);
    }
    served.disk.set(Reads::Done);
    assert_eq!(client.read(&served.files[0], 0, 1).unwrap().data, [0]);
}

#[test]
fn client_whose_replies_are_lost_by_a_panic_finds_its_connection_closed() {
    let served = Served::new(1);
    let mut client = served.running.client();
    served.disk.set(Reads::Panic);
    let blocks: Vec<(usize, u64)> = (60..76).map(|block| (0, block)).collect();
    send(&mut client, &served, &blocks);
    while client.receive().is_some() {}
    served.disk.set(Reads::Done);
    let mut other = served.running.client();
    assert_eq!(other.read(&served.files[0], 0, 1).unwrap().data, [0], "the server continues");
}

#[test]
fn session_whose_client_left_ends_when_its_reads_have() {
    let served = Served::new(1);
    let mut client = served.running.client();
    served.disk.set(Reads::Wait);
    let blocks: Vec<(usize, u64)> = (60..76).map(|block| (0, block)).collect();
    send(&mut client, &served, &blocks);
    client.stat(&served.files[0]).unwrap();
    drop(client);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| served.running.server.stop());
        served.disk.set(Reads::Done);
        stopping.join().unwrap();
    });
    assert!(served.running.server.sessions().is_empty());
}
