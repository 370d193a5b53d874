//! A server on a free port, with targets of every kind.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod initiator;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cairn_device::MemoryDevice;
use cairn_frontend_iscsi::{
    Account, Credential, Export, Initiator, IscsiServer, Listener, LoginError, OpenTargetError,
    ReservationState, ServerOptions, Targets,
};
use parking_lot::Mutex;

/// Bytes of every LUN.
pub const SIZE: u64 = 64 << 20;
/// The prefix of all targets' names.
pub const PREFIX: &str = "iqn.2026-11.io.cairn:";

/// A target of the tests.
pub struct Target {
    pub device: Arc<MemoryDevice>,
    pub read_only: bool,
    pub removable: bool,
    pub block_bytes: u32,
    pub account: Option<Account>,
    pub only: Option<String>,
}

/// Targets `v.plain`, `v.large` (blocks of 4 KiB), `v.readonly`, `v.removable`, `v.chap`,
/// `v.mutual` and `v.private`.
#[derive(Default)]
pub struct TestTargets {
    pub targets: Mutex<Vec<(String, Target)>>,
    pub kept: Mutex<HashMap<String, ReservationState>>,
    /// Nothing can be saved.
    pub forgetful: AtomicBool,
}

fn credential(name: &str, secret: &str) -> Credential {
    Credential { name: name.to_owned(), secret: secret.as_bytes().to_vec() }
}

impl TestTargets {
    pub fn new() -> Self {
        let plain = || Target {
            device: Arc::new(MemoryDevice::new(SIZE)),
            read_only: false,
            removable: false,
            block_bytes: 512,
            account: None,
            only: None,
        };
        let chap = Account { initiator: credential("cairn", "a-secret-of-17-by"), target: None };
        let mutual = Account { target: Some(credential("target", "another-secret-18b")), ..chap.clone() };
        let targets = vec![
            ("v.plain", plain()),
            ("v.large", Target { block_bytes: 4096, ..plain() }),
            ("v.readonly", Target { read_only: true, ..plain() }),
            ("v.removable", Target { removable: true, ..plain() }),
            ("v.chap", Target { account: Some(chap), ..plain() }),
            ("v.mutual", Target { account: Some(mutual), ..plain() }),
            ("v.private", Target { only: Some("iqn.2000-01.example:friend".to_owned()), ..plain() }),
        ];
        let targets = targets.into_iter().map(|(name, target)| (format!("{PREFIX}{name}"), target)).collect();
        Self { targets: Mutex::new(targets), kept: Mutex::default(), forgetful: AtomicBool::new(false) }
    }
}

impl Targets for TestTargets {
    fn list(&self, initiator: &Initiator) -> Vec<String> {
        let targets = self.targets.lock();
        let allowed = targets
            .iter()
            .filter(|(_, target)| target.only.as_ref().is_none_or(|only| *only == initiator.name));
        allowed.map(|(name, _)| name.clone()).collect()
    }

    fn admit(&self, initiator: &Initiator, target: &str) -> Result<Option<Account>, LoginError> {
        let targets = self.targets.lock();
        let (_, found) = targets.iter().find(|(name, _)| name == target).ok_or(LoginError::NotFound)?;
        if found.only.as_ref().is_some_and(|only| *only != initiator.name) {
            return Err(LoginError::Forbidden);
        }
        Ok(found.account.clone())
    }

    fn open(&self, target: &str) -> Result<Export, OpenTargetError> {
        let targets = self.targets.lock();
        let unknown = || OpenTargetError::Unknown { name: target.to_owned() };
        let index = targets.iter().position(|(name, _)| name == target).ok_or_else(unknown)?;
        let found = &targets[index].1;
        Ok(Export {
            name: target[PREFIX.len()..].replace('.', "/"),
            unit: target[PREFIX.len()..].replace('.', "/"),
            port: 1,
            ports: 1,
            device: found.device.clone(),
            id: 0x1234_5678_9abc_0000 + index as u64,
            read_only: found.read_only,
            block_bytes: found.block_bytes,
            removable: found.removable,
            write_cache: true,
            reservations: self.kept.lock().get(target).cloned().unwrap_or_default(),
        })
    }

    fn random(&self, bytes: &mut [u8]) {
        cairn_base::Rng::new(u64::from(std::process::id())).fill(bytes);
    }

    fn keep(&self, export: &str, state: &ReservationState) -> Result<(), String> {
        if self.forgetful.load(Ordering::SeqCst) {
            return Err("the disk is full".to_owned());
        }
        self.kept.lock().insert(format!("{PREFIX}{}", export.replace('/', ".")), state.clone());
        Ok(())
    }
}

/// A running server.
pub struct TestServer {
    pub server: IscsiServer,
    pub targets: Arc<TestTargets>,
    pub portal: String,
}

impl TestServer {
    pub fn start(options: ServerOptions) -> Self {
        Self::with(Arc::new(TestTargets::new()), options)
    }

    pub fn with(targets: Arc<TestTargets>, options: ServerOptions) -> Self {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let server = IscsiServer::start(vec![listener], targets.clone(), options).unwrap();
        let portal = server.addresses()[0].clone();
        Self { server, targets, portal }
    }

    pub fn plain() -> Self {
        Self::start(ServerOptions::default())
    }

    /// Makes a target's device twice as long.
    pub fn grow(&self, target: &str) {
        let targets = self.targets.targets.lock();
        let named = targets.iter().find(|(name, _)| *name == format!("{PREFIX}{target}"));
        named.expect("it is a target").1.device.grow(2 * SIZE);
    }

    /// The URL of a target for libiscsi and qemu.
    pub fn url(&self, target: &str) -> String {
        format!("iscsi://{}/{PREFIX}{target}/0", self.portal)
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
