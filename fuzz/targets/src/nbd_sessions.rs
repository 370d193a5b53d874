//! Whole sessions of the NBD front end: real sockets, real threads, devices in memory.
//!
//! A session that stays open on another export must not notice a hostile one.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use cairn_device::{Device, DeviceError, MemoryDevice};
use cairn_frontend_nbd::{
    Address, ChangedBlocks, Client, ClientOptions, Export, ExportInfo, Exports, Listener, NbdServer,
    OpenExportError, ServerOptions,
};
use cairn_proto_nbd::constants::*;
use cairn_proto_nbd::{ReplyEvent, ReplyMode, decode_reply, put_request};

use crate::nbd::{hello, requests_of};
use crate::sparse::SparseDevice;

/// Bytes of each export.
const SIZE: u64 = 16 << 20;
/// A session that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);
const QUIET: &str = "quiet";
const QUIET_BYTES: [u8; 4096] = [0x51; 4096];

/// Reports that the first MiB changed since every snapshot.
struct FirstMebibyte;

impl ChangedBlocks for FirstMebibyte {
    fn changed_since(
        &self,
        _snapshot: &str,
        offset: u64,
        length: u64,
        limit: usize,
    ) -> Result<Vec<(u64, bool)>, DeviceError> {
        let changed = (1u64 << 20).saturating_sub(offset).min(length);
        let stretches = [(changed, true), (length - changed, false)];
        Ok(stretches.into_iter().filter(|(length, _)| *length > 0).take(limit).collect())
    }
}

/// Devices that take any offset, or only blocks, or nothing.
struct Shelf {
    plain: Arc<dyn Device>,
    aligned: Arc<dyn Device>,
    quiet: Arc<dyn Device>,
}

impl Exports for Shelf {
    fn list(&self) -> Vec<ExportInfo> {
        let info = |name: &str| ExportInfo { name: name.to_owned(), description: format!("about {name}") };
        NAMES.map(info).to_vec()
    }

    fn open(&self, name: &str) -> Result<Export, OpenExportError> {
        let (device, read_only) = match name {
            "v/plain" => (&self.plain, false),
            "v/aligned" => (&self.aligned, false),
            "v@s1/plain" => (&self.plain, true),
            QUIET => (&self.quiet, true),
            "" => return Err(OpenExportError::NoDefault { count: NAMES.len() }),
            _ => return Err(OpenExportError::Unknown { name: name.to_owned() }),
        };
        Ok(Export {
            device: device.clone(),
            description: String::new(),
            read_only,
            writes_through: false,
            multi_conn: true,
            dirty_contexts: vec!["s1".to_owned(), "s2".to_owned()],
            changed: Some(Arc::new(FirstMebibyte)),
        })
    }
}

const NAMES: [&str; 3] = ["v/plain", "v/aligned", "v@s1/plain"];

struct Running {
    _server: NbdServer,
    folder: tempfile::TempDir,
    quiet: Mutex<Client>,
}

/// The server, started once in a process.
fn running() -> &'static Running {
    static RUNNING: OnceLock<Running> = OnceLock::new();
    RUNNING.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder for the socket");
        let address = Address::Unix(folder.path().join("nbd.sock"));
        let quiet = MemoryDevice::new(SIZE);
        quiet.write_from(0, &QUIET_BYTES).expect("memory takes writes");
        let shelf = Shelf {
            plain: Arc::new(MemoryDevice::new(SIZE)),
            aligned: Arc::new(SparseDevice::new(SIZE, Arc::default())),
            quiet: Arc::new(quiet),
        };
        let listener = Listener::bind(&address).expect("a fresh path can be listened on");
        let server = NbdServer::start(vec![listener], Arc::new(shelf), ServerOptions::default());
        let client = Client::connect(&address, &ClientOptions::new(QUIET)).expect("the server is there");
        Running { _server: server.expect("the server starts"), folder, quiet: Mutex::new(client) }
    })
}

/// Sends all bytes, while it reads the answers, until the server has closed.
fn converse(bytes: &[u8]) -> Vec<u8> {
    let running = running();
    let mut stream = UnixStream::connect(running.folder.path().join("nbd.sock")).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let mut sending = stream.try_clone().expect("a socket can be shared");
    let mut answers = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The server may have hung up, as is its right.
            let _ = sending.write_all(bytes);
            let _ = sending.shutdown(Shutdown::Write);
        });
        let mut buffer = vec![0; 1 << 16];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => answers.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                // libFuzzer's own alarm.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("a session does not end: {error}"),
            }
        }
    });
    let mut quiet = running.quiet.lock().unwrap_or_else(PoisonError::into_inner);
    let read = quiet.read(0, QUIET_BYTES.len() as u32).expect("another session goes on");
    assert!(read == QUIET_BYTES, "another session reads what it should");
    answers
}

/// Any bytes, from the first on; and the same bytes after a good hello in each mode.
pub(crate) fn session(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let mode = [ReplyMode::Simple, ReplyMode::Structured, ReplyMode::Extended][usize::from(*first) / 4 % 3];
    match first % 4 {
        0 => drop(converse(rest)),
        number => drop(converse(&[&hello(NAMES[usize::from(number) - 1], mode, true), rest].concat())),
    }
}

pub(crate) fn session_seeds() -> Vec<Vec<u8>> {
    let modes = [ReplyMode::Simple, ReplyMode::Structured, ReplyMode::Extended];
    let mut seeds = Vec::new();
    for (index, mode) in modes.into_iter().enumerate() {
        let whole = [vec![0], hello("v/plain", mode, mode != ReplyMode::Simple), requests_of(mode)].concat();
        seeds.push(whole);
        for export in 1..=3 {
            seeds.push([vec![index as u8 * 4 + export], requests_of(mode)].concat());
        }
    }
    seeds
}

#[derive(Debug, Arbitrary)]
struct Told {
    export: u8,
    mode: u8,
    contexts: bool,
    commands: Vec<Asked>,
}

#[derive(Debug, Arbitrary)]
struct Asked {
    kind: u8,
    flags: u8,
    /// In units of 512 bytes when it is odd, otherwise in bytes.
    offset: u32,
    length: u32,
    fill: u8,
}

/// The longest read or write here; the longest allowed is tried sometimes.
const LENGTH: u32 = 256 << 10;

/// Complete requests, possibly with invalid contents: each is answered once, in a form that a
/// client can read.
pub(crate) fn commands(data: &[u8]) {
    let Ok(told) = Told::arbitrary(&mut Unstructured::new(data)) else { return };
    let mode = [ReplyMode::Simple, ReplyMode::Structured, ReplyMode::Extended][usize::from(told.mode % 3)];
    let greeting = hello(NAMES[usize::from(told.export % 3)], mode, told.contexts && told.mode % 3 != 0);
    let mut bytes = greeting.clone();
    let mut reads = HashMap::new();
    for (cookie, asked) in (1000..).zip(told.commands.iter().take(64)) {
        reads.insert(cookie, asked.put(&mut bytes, mode, cookie));
    }
    put_request(&mut bytes, mode, NBD_CMD_DISC, 0, 1, 0, 0);
    let answers = converse(&bytes);
    let mut left = &answers[converse_prefix(&greeting)..];
    while !left.is_empty() {
        let decoded = decode_reply(left, mode).expect("a server sends what a client can read");
        let (count, event) = decoded.expect("a server sends whole replies before it closes");
        left = &left[count..];
        let (cookie, data, done) = match event {
            ReplyEvent::Simple { cookie, error } => {
                let data = if error.is_none() { reads.get(&cookie).copied().unwrap_or(0) } else { 0 };
                (cookie, data, true)
            }
            ReplyEvent::Data { cookie, length, done, .. } => (cookie, length as usize, done),
            ReplyEvent::Hole { cookie, done, .. }
            | ReplyEvent::Status { cookie, done, .. }
            | ReplyEvent::Failed { cookie, done, .. } => (cookie, 0, done),
            ReplyEvent::Done { cookie } => (cookie, 0, true),
        };
        left = left.get(data..).expect("the data of a read is whole");
        if done {
            assert!(reads.remove(&cookie).is_some(), "a request is answered once");
        } else {
            assert!(reads.contains_key(&cookie), "a reply is to a request");
        }
    }
    assert!(reads.is_empty(), "{} requests were not answered", reads.len());
}

/// The number of bytes that the server sends until this greeting is complete: the same as without
/// further bytes.
fn converse_prefix(greeting: &[u8]) -> usize {
    static KNOWN: Mutex<Option<HashMap<Vec<u8>, usize>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    *known.entry(greeting.to_vec()).or_insert_with(|| converse(greeting).len())
}

impl Asked {
    /// Appends the request, with its payload; returns how much data a successful read of it brings.
    fn put(&self, bytes: &mut Vec<u8>, mode: ReplyMode, cookie: u64) -> usize {
        let kinds = [
            NBD_CMD_READ,
            NBD_CMD_WRITE,
            NBD_CMD_FLUSH,
            NBD_CMD_TRIM,
            NBD_CMD_CACHE,
            NBD_CMD_WRITE_ZEROES,
            NBD_CMD_BLOCK_STATUS,
            77,
        ];
        let kind = kinds[usize::from(self.kind % 8)];
        let flags = [
            0,
            NBD_CMD_FLAG_FUA,
            NBD_CMD_FLAG_NO_HOLE,
            NBD_CMD_FLAG_DF,
            NBD_CMD_FLAG_REQ_ONE,
            NBD_CMD_FLAG_FAST_ZERO,
            NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_NO_HOLE,
            1 << 14,
        ][usize::from(self.flags % 8)];
        let unit = if self.offset % 2 == 1 { 512 } else { 1 };
        let offset = u64::from(self.offset / 2) * unit % (SIZE + 8192);
        let transfers = matches!(kind, NBD_CMD_READ | NBD_CMD_WRITE);
        let length = if transfers { self.length % LENGTH } else { self.length };
        put_request(bytes, mode, kind, flags, cookie, offset, u64::from(length));
        match kind {
            NBD_CMD_WRITE => bytes.resize(bytes.len() + length as usize, self.fill),
            NBD_CMD_READ => return length as usize,
            _ => {}
        }
        0
    }
}

pub(crate) fn command_seeds() -> Vec<Vec<u8>> {
    crate::seeds::noise(8, 400)
}
