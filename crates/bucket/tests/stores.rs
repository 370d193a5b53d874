//! Every driver against one contract; the memory driver with faults against a model; the directory
//! driver killed in the middle; a real S3 server if one is available.

#[path = "stores/bad_input.rs"]
mod bad_input;
#[path = "stores/contract.rs"]
mod contract;
#[path = "stores/faults.rs"]
mod faults;
#[path = "stores/gateway.rs"]
mod gateway;
#[path = "stores/killed.rs"]
mod killed;
#[path = "stores/probes.rs"]
mod probes;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::{Clock, ManualClock, Rng, Timestamp};
use cairn_bucket::{
    Directory, Memory, Name, Nonce, Patience, Pause, Prefix, Retrying, Sleep, Store, Workers,
};

/// A day in November 2026.
const NOW: Timestamp = Timestamp(1_795_000_000_000_000_000);

fn never() -> AtomicBool {
    AtomicBool::new(false)
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn prefix(text: &str) -> Prefix {
    Prefix::new(text).expect("a prefix")
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(NOW))
}

fn noise(seed: u64, length: usize) -> bytes::Bytes {
    let mut bytes = vec![0; length];
    Rng::new(seed).fill(&mut bytes);
    bytes.into()
}

/// Nonces of tests, each used once.
fn nonce(number: u64) -> Nonce {
    Nonce::random(&mut Rng::new(number))
}

/// A thread for each job.
struct Spawned;

impl Workers for Spawned {
    fn start(&self, job: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        std::thread::Builder::new().spawn(job).map(|_| ())
    }
}

fn workers() -> Arc<dyn Workers> {
    Arc::new(Spawned)
}

fn memory() -> (Arc<Memory>, Arc<ManualClock>) {
    let clock = clock();
    (Arc::new(Memory::new(clock.clone(), clock.clone())), clock)
}

fn directory(folder: &std::path::Path, clock: Arc<dyn Clock>, seed: u64) -> Directory {
    Directory::open(folder, clock, Rng::new(seed)).expect("an open directory")
}

/// The machine's clock, as `cairn-device` has it.
struct RealClock(std::time::Instant);

impl Default for RealClock {
    fn default() -> Self {
        Self(std::time::Instant::now())
    }
}

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        let passed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(passed.expect("after 1970").as_nanos() as u64)
    }

    fn monotonic(&self) -> std::time::Duration {
        self.0.elapsed()
    }
}

fn retrying(store: Arc<dyn Store>, seed: u64) -> Retrying<Arc<dyn Store>> {
    let pause: Arc<dyn Pause> = Arc::new(Sleep::default());
    Retrying::new(store, Arc::new(RealClock::default()), pause, Rng::new(seed), Patience::default())
}
