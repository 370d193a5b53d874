//! Sealed buckets: required properties of names, objects, keys and the store, each against a store
//! that changes them.

mod golden;
mod keys;
mod names;
mod objects;
mod store;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use cairn_base::{ManualClock, Mutex, Rng, Timestamp};

use super::*;
use crate::{Memory, Name, Nonce, Prefix, Store};

const NOW: Timestamp = Timestamp(1_795_000_000_000_000_000);

/// A generator as the source of randomness, so that a run is the same each time.
pub(crate) struct Seeded(Mutex<Rng>);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Rng::new(seed))))
    }
}

impl Entropy for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().fill(bytes);
    }
}

fn never() -> AtomicBool {
    AtomicBool::new(false)
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn noise(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    Rng::new(seed).fill(&mut bytes);
    bytes.into()
}

fn memory() -> Arc<Memory> {
    let clock = Arc::new(ManualClock::new(NOW));
    Arc::new(Memory::new(clock.clone(), clock))
}

fn key() -> BucketKey {
    BucketKey::from_bytes([5; 32])
}

/// A client of a sealed bucket.
pub(crate) fn sealed(below: Arc<dyn Store>, seed: u64) -> Sealed {
    Sealed::new(below, Arc::new(KeyHolder::with_key(&key())), Seeded::new(seed))
}
