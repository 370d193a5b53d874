//! A server with one volume in memory.

pub mod client;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use cairn_base::{FileId, ManualClock, Timestamp, VolumeId};
use cairn_device::{Device, MemoryDevice};
use cairn_files::Tree;
use cairn_frontend_nfs::{
    Export, Exports, KEY_BYTES, Key, Keys, Listener, NfsServer, Rules, Served, ServerOptions, Unavailable,
    View,
};
use cairn_volume::{FormatOptions, OpenOptions, Role, Volume};
use client::Client;

pub const VOLUME: VolumeId = VolumeId([7; 16]);
/// Blocks of the volume of a test.
pub const BLOCKS: u64 = 8192;

/// An export of a test.
pub struct TestExport {
    pub path: &'static str,
    pub root: FileId,
    pub rules: Rules,
    pub served: Arc<Served>,
    /// Clients on the loopback network are refused.
    pub refuses: bool,
    pub key: u8,
}

impl Export for TestExport {
    fn name(&self) -> &str {
        self.path
    }

    fn path(&self) -> &str {
        self.path
    }

    fn volume(&self) -> VolumeId {
        VOLUME
    }

    fn rules(&self) -> Rules {
        self.rules
    }

    fn admits(&self, client: IpAddr) -> bool {
        assert!(client.is_loopback());
        !self.refuses
    }

    fn networks(&self) -> Vec<String> {
        Vec::new()
    }

    fn view(&self) -> Result<Arc<View>, Unavailable> {
        Ok(Arc::new(View {
            served: self.served.clone(),
            root: self.root,
            keys: Keys { own: Key::new([self.key; KEY_BYTES]), earlier: Vec::new() },
            shows_snapshots: true,
        }))
    }
}

pub struct TestExports(pub Vec<Arc<TestExport>>);

impl Exports for TestExports {
    fn all(&self) -> Arc<[Arc<dyn Export>]> {
        self.0.iter().map(|export| export.clone() as Arc<dyn Export>).collect()
    }

    fn rest(&self) {
        self.0.iter().for_each(|export| export.served.rest());
    }
}

/// A volume in memory, and its tree.
pub struct Scene {
    pub clock: Arc<ManualClock>,
    pub volume: Arc<Volume>,
    pub tree: Arc<Tree>,
    pub served: Arc<Served>,
}

static STARTS: AtomicU8 = AtomicU8::new(1);

impl Scene {
    pub fn new() -> Self {
        Self::on(Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal))))
    }

    /// A new volume on a device with room for it.
    pub fn on(device: Arc<dyn Device>) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
        let options = FormatOptions { id: VOLUME, blocks: BLOCKS, role: Role::Normal };
        Volume::format(&*device, &options, &*clock).unwrap();
        Self::open(device, clock)
    }

    /// The volume of a device, with nothing of it in memory.
    pub fn open(device: Arc<dyn Device>, clock: Arc<ManualClock>) -> Self {
        let volume =
            Volume::open(device, OpenOptions { cache_bytes: 8 << 20, clock: clock.clone() }).unwrap();
        let tree = Arc::new(Tree::open(volume.clone()).unwrap());
        let verifier = [STARTS.fetch_add(1, Ordering::Relaxed); 8];
        Self { clock, volume, served: Arc::new(Served::new(tree.clone(), verifier)), tree }
    }

    /// The whole tree as `/v`, without squashing.
    pub fn whole(&self) -> TestExport {
        TestExport {
            path: "/v",
            root: self.tree.root(),
            rules: Rules { squash: cairn_frontend_nfs::Squash::None, ..Rules::default() },
            served: self.served.clone(),
            refuses: false,
            key: 1,
        }
    }

    pub fn serve(&self, exports: Vec<TestExport>) -> Running {
        self.serve_with(exports, ServerOptions::default())
    }

    pub fn serve_with(&self, exports: Vec<TestExport>, options: ServerOptions) -> Running {
        let exports = TestExports(exports.into_iter().map(Arc::new).collect());
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let server = NfsServer::start(vec![listener], Arc::new(exports), options).unwrap();
        Running { server }
    }
}

pub struct Running {
    pub server: NfsServer,
}

impl Running {
    pub fn client(&self) -> Client {
        Client::connect(&self.server.addresses()[0])
    }
}
