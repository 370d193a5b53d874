//! A server on a unix socket and on TCP, in a folder of its own, with exports of every kind.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_device::{Device, DeviceError, Extent, Geometry, MemoryDevice, Operation, Request};
use cairn_frontend_nbd::{
    Address, ChangedBlocks, Client, ClientOptions, Export, ExportInfo, Exports, Listener, NbdServer,
    OpenExportError, ReplyMode, ServerOptions,
};

/// Bytes of every export.
pub const SIZE: u64 = 64 << 20;

/// Memory that takes only multiples of its alignment, and has only some of it ready at once.
pub struct Picky {
    pub inner: MemoryDevice,
    pub alignment: u32,
}

impl Device for Picky {
    fn geometry(&self) -> Geometry {
        Geometry { alignment: self.alignment, ..self.inner.geometry() }
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            if let Some(error) = self.refusal(operation.request()) {
                operation.finish(Err(error));
            }
        }
        self.inner.run(batch);
    }

    fn run_ready(&self, batch: &mut [Operation]) {
        // Every other read is "in memory".
        for operation in batch.iter_mut().step_by(2) {
            if matches!(operation.request(), Request::Read { .. }) {
                self.run(std::slice::from_mut(operation));
            }
        }
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.extents(offset, length, limit)
    }
}

impl Picky {
    fn refusal(&self, request: &Request) -> Option<DeviceError> {
        let (offset, length) = match request {
            Request::Read { offset, length } => (*offset, u64::from(*length)),
            Request::Write { offset, data, .. } => (*offset, data.len() as u64),
            Request::Trim { offset, length, .. }
            | Request::WriteZeroes { offset, length, .. }
            | Request::Prefetch { offset, length } => (*offset, *length),
            Request::Flush => return None,
        };
        let alignment = u64::from(self.alignment);
        if offset.is_multiple_of(alignment) && length.is_multiple_of(alignment) {
            return None;
        }
        let action = cairn_device::Action::Write;
        Some(DeviceError::Unaligned { action, offset, length, alignment: self.alignment })
    }
}

/// Memory with one block that can be neither read nor written.
pub struct Spoiled(pub MemoryDevice);

/// Where that block is.
pub const SPOILED: u64 = 20 << 20;

impl Device for Spoiled {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn run(&self, batch: &mut [Operation]) {
        for operation in batch.iter_mut().filter(|operation| operation.is_pending()) {
            let (offset, length) = match operation.request() {
                Request::Read { offset, length } => (*offset, u64::from(*length)),
                Request::Write { offset, data, .. } => (*offset, data.len() as u64),
                _ => continue,
            };
            if offset < SPOILED + 4096 && SPOILED < offset + length {
                operation.finish(Err(DeviceError::OutOfService));
            }
        }
        self.0.run(batch);
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DeviceError> {
        self.0.extents(offset, length, limit)
    }
}

/// Reports that the first MiB changed since "s1", and nothing since "s2".
struct FirstMebibyte;

impl ChangedBlocks for FirstMebibyte {
    fn changed_since(
        &self,
        snapshot: &str,
        offset: u64,
        length: u64,
        _limit: usize,
    ) -> Result<Vec<(u64, bool)>, DeviceError> {
        let changed = if snapshot == "s1" { (1u64 << 20).saturating_sub(offset).min(length) } else { 0 };
        Ok([(changed, true), (length - changed, false)]
            .into_iter()
            .filter(|(length, _)| *length > 0)
            .collect())
    }
}

/// The exports: `v/plain`, `v/other` and `v@s1/plain` (read-only); and `v/blocks`, whose device
/// takes whole blocks of 4 KiB, and `v/spoiled`, which are not listed.
pub struct TestExports {
    plain: Arc<dyn Device>,
    other: Arc<dyn Device>,
    blocks: Arc<dyn Device>,
    spoiled: Arc<dyn Device>,
}

impl Exports for TestExports {
    fn list(&self) -> Vec<ExportInfo> {
        ["v/plain", "v/other", "v@s1/plain"]
            .map(|name| ExportInfo { name: name.to_owned(), description: format!("about {name}") })
            .to_vec()
    }

    fn open(&self, name: &str) -> Result<Export, OpenExportError> {
        let (device, read_only) = match name {
            "v/plain" => (&self.plain, false),
            "v/other" => (&self.other, false),
            "v/blocks" => (&self.blocks, false),
            "v/spoiled" => (&self.spoiled, false),
            "v@s1/plain" => (&self.plain, true),
            "" => return Err(OpenExportError::NoDefault { count: 3 }),
            _ => return Err(OpenExportError::Unknown { name: name.to_owned() }),
        };
        Ok(Export {
            device: Arc::clone(device),
            description: format!("about {name}"),
            read_only,
            writes_through: false,
            multi_conn: true,
            dirty_contexts: vec!["s1".to_owned(), "s2".to_owned()],
            changed: Some(Arc::new(FirstMebibyte)),
        })
    }
}

/// One device under any name, unlisted.
pub struct One(pub Arc<dyn Device>);

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

/// A connection that has not sent any data yet.
pub fn raw(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// A connection on which `NBD_OPT_EXPORT_NAME` was just answered: simple replies.
pub fn raw_session(socket: &Path, export: &str) -> UnixStream {
    let mut stream = raw(socket);
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend(1u32.to_be_bytes());
    hello.extend((export.len() as u32).to_be_bytes());
    hello.extend(export.as_bytes());
    stream.write_all(&hello).unwrap();
    stream.read_exact(&mut [0; 18 + 10]).unwrap();
    stream
}

/// A running server.
pub struct TestServer {
    pub server: NbdServer,
    pub folder: tempfile::TempDir,
    pub socket: PathBuf,
    pub tcp: Address,
}

impl TestServer {
    pub fn start(options: ServerOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nbd.sock");
        let listeners = vec![
            Listener::bind(&Address::Unix(socket.clone())).unwrap(),
            Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap(),
        ];
        let exports = Arc::new(TestExports {
            plain: Arc::new(Picky { inner: MemoryDevice::new(SIZE), alignment: 1 }),
            other: Arc::new(Picky { inner: MemoryDevice::new(SIZE), alignment: 1 }),
            blocks: Arc::new(Picky { inner: MemoryDevice::new(SIZE), alignment: 4096 }),
            spoiled: Arc::new(Spoiled(MemoryDevice::new(SIZE))),
        });
        let server = NbdServer::start(listeners, exports, options).unwrap();
        let tcp = server.addresses()[1].clone();
        Self { server, folder, socket, tcp }
    }

    pub fn plain() -> Self {
        Self::start(ServerOptions::default())
    }

    pub fn unix(&self) -> Address {
        Address::Unix(self.socket.clone())
    }

    pub fn client(&self, export: &str, mode: ReplyMode) -> Client {
        let contexts = ["base:allocation", "qemu:dirty-bitmap:s1", "qemu:dirty-bitmap:s2"];
        let contexts = contexts.map(str::to_owned).to_vec();
        let options = ClientOptions { export: export.to_owned(), mode, contexts };
        Client::connect(&self.unix(), &options).unwrap()
    }

    /// The URI of an export for foreign programs.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// A connection that has not sent any data yet.
    pub fn raw(&self) -> UnixStream {
        raw(&self.socket)
    }

    /// A connection on which `NBD_OPT_EXPORT_NAME` was just answered: simple replies.
    pub fn raw_session(&self, export: &str) -> UnixStream {
        raw_session(&self.socket, export)
    }
}

/// Waits until `condition` holds; fails after ten seconds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come about");
        std::thread::yield_now();
    }
}

/// True when the peer closes without another byte.
pub fn is_closed(stream: &mut UnixStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    cairn_base::Rng::new(seed).fill(&mut bytes);
    bytes
}
