//! A store that waits transient failures out.
//!
//! A transient failure ([`StoreError::is_transient`]) is retried after a pause that doubles. The
//! pause is random within its upper half, so that many clients do not retry at once. A store that
//! asks for a pause gets it. After a number of tries or a time the error surfaces: no call is
//! retried for ever.
//!
//! # Lost answers
//! A create-only put whose answer was lost fails at the next try if it took effect: the object
//! exists. Its nonce shows whether the object is the caller's own. So `Exists` is returned only
//! after the nonce was read back. A put is answered with [`Put::Created`] exactly if this very call
//! made the existing object. Where the store drops nonces, a put that may have taken effect keeps
//! its error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{Clock, Mutex, Rng, Timestamp};

use crate::error::{StoreError, Trouble};
use crate::limits::STORE_PAUSE_MAX;
use crate::name::{Name, Prefix};
use crate::pause::{Pause, pause_for};
use crate::store::{Head, ListFrom, Nonce, Page, Piece, Put, Store, Upload};

/// The time during which transient failures are waited out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Tries in all.
    pub tries: u32,
    /// Time from the first try after which no other one begins.
    pub time: Duration,
    /// The first pause at most.
    pub first: Duration,
    /// A later pause at most.
    pub longest: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            tries: 12,
            time: Duration::from_secs(180),
            first: Duration::from_millis(200),
            longest: Duration::from_secs(20),
        }
    }
}

/// Receives each failure that is waited out, and the pause before the next try; none once a call
/// has ended.
pub type Waiting = dyn Fn(Option<(&StoreError, Duration)>) + Send + Sync;

/// See the module.
pub struct Retrying<S> {
    store: S,
    clock: Arc<dyn Clock>,
    pause: Arc<dyn Pause>,
    rng: Mutex<Rng>,
    patience: Patience,
    retries: AtomicU64,
    waiting: Option<Arc<Waiting>>,
}

impl<S: Store> Retrying<S> {
    /// Waits out failures of `store`.
    pub fn new(store: S, clock: Arc<dyn Clock>, pause: Arc<dyn Pause>, rng: Rng, patience: Patience) -> Self {
        Self {
            store,
            clock,
            pause,
            rng: Mutex::new(rng),
            patience,
            retries: AtomicU64::new(0),
            waiting: None,
        }
    }

    /// Tells `waiting` of every failure that is waited out, on the thread of the call.
    pub fn telling(mut self, waiting: Arc<Waiting>) -> Self {
        self.waiting = Some(waiting);
        self
    }

    /// The store below.
    pub fn inner(&self) -> &S {
        &self.store
    }

    /// Calls that were tried again so far.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    fn retry<T>(
        &self,
        cancel: &AtomicBool,
        mut call: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let begun = self.clock.monotonic();
        let mut tries = 0;
        loop {
            let error = match call() {
                Err(error) if error.is_transient() => error,
                outcome => {
                    self.tell(tries > 0, None);
                    return outcome;
                }
            };
            tries += 1;
            let wait = self.wait(tries, &error);
            let passed = self.clock.monotonic().saturating_sub(begun);
            if tries >= self.patience.tries || passed + wait > self.patience.time {
                self.tell(tries > 1, None);
                return Err(error);
            }
            self.tell(true, Some((&error, wait)));
            self.retries.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%error, wait_ms = wait.as_millis() as u64, tries, "the call is tried again");
            if !pause_for(&*self.pause, wait, cancel) {
                return Err(StoreError { trouble: Trouble::Cancelled, ..error });
            }
        }
    }

    fn tell(&self, has_waited: bool, what: Option<(&StoreError, Duration)>) {
        if let (true, Some(waiting)) = (has_waited, &self.waiting) {
            waiting(what);
        }
    }

    /// The pause after `tries` failed tries.
    fn wait(&self, tries: u32, error: &StoreError) -> Duration {
        let factor = 1_u32.checked_shl(tries - 1).unwrap_or(u32::MAX);
        let most = self.patience.first.saturating_mul(factor).min(self.patience.longest);
        let half_us = (most.as_micros() as u64 / 2).max(1);
        let wait = Duration::from_micros(half_us + self.rng.lock().below(half_us));
        match error.trouble {
            Trouble::SlowDown(Some(asked)) => wait.max(asked.min(STORE_PAUSE_MAX)),
            _ => wait,
        }
    }

    /// Finds the owner of an object, after a create-only put found one or may have made one.
    fn owner(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Owner, StoreError> {
        match self.retry(cancel, || self.store.head(name, cancel)) {
            Ok(Head { nonce: None, .. }) => Ok(Owner::Unknown),
            Ok(Head { nonce: Some(found), .. }) if found == nonce => Ok(Owner::This),
            Ok(_) => Ok(Owner::Other),
            Err(error) if error.is_missing() => Ok(Owner::Absent),
            Err(error) => Err(error),
        }
    }

    /// Creates by `create`, and determines the outcome of lost answers.
    fn create(
        &self,
        name: &Name,
        nonce: Nonce,
        cancel: &AtomicBool,
        mut create: impl FnMut() -> Result<Put, StoreError>,
    ) -> Result<Put, StoreError> {
        let mut unclear = None;
        let outcome = self.retry(cancel, || {
            create().inspect_err(|error| {
                if error.is_unclear() {
                    unclear = Some(error.clone());
                }
            })
        });
        let found = match &outcome {
            Ok(Put::Exists) => true,
            Err(error) if matches!(error.trouble, Trouble::NoUpload) => true,
            _ => false,
        };
        if !found {
            return outcome;
        }
        match (self.owner(name, nonce, cancel)?, unclear) {
            (Owner::This, _) => Ok(Put::Created),
            // A call whose answer was lost may have made it.
            (Owner::Unknown, Some(error)) => Err(error),
            (Owner::Other, _) => Ok(Put::Exists),
            (Owner::Unknown | Owner::Absent, _) => outcome,
        }
    }
}

enum Owner {
    This,
    Other,
    /// The store dropped the nonce.
    Unknown,
    Absent,
}

impl<S: Store> Store for Retrying<S> {
    fn place(&self) -> &str {
        self.store.place()
    }

    fn lists_in_order(&self) -> bool {
        self.store.lists_in_order()
    }

    fn put_new(
        &self,
        name: &Name,
        bytes: Bytes,
        nonce: Nonce,
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        self.create(name, nonce, cancel, || self.store.put_new(name, bytes.clone(), nonce, cancel))
    }

    fn begin(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError> {
        self.retry(cancel, || self.store.begin(name, nonce, cancel))
    }

    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError> {
        self.retry(cancel, || self.store.put_piece(upload, number, bytes.clone(), cancel))
    }

    fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        self.retry(cancel, || self.store.pieces(upload, cancel))
    }

    fn finish(
        &self,
        upload: &Upload,
        nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        let finish = || self.store.finish(upload, nonce, pieces, cancel);
        self.create(&upload.name, nonce, cancel, finish)
    }

    fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.retry(cancel, || self.store.abort(upload, cancel))
    }

    fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        self.retry(cancel, || self.store.uploads(prefix, cancel))
    }

    fn get(&self, name: &Name, offset: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, StoreError> {
        self.retry(cancel, || self.store.get(name, offset, length, cancel))
    }

    fn get_pieces(
        &self,
        name: &Name,
        offset: u64,
        length: usize,
        cancel: &AtomicBool,
    ) -> Result<Vec<Bytes>, StoreError> {
        self.retry(cancel, || self.store.get_pieces(name, offset, length, cancel))
    }

    fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<Head, StoreError> {
        self.retry(cancel, || self.store.head(name, cancel))
    }

    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<Page, StoreError> {
        self.retry(cancel, || self.store.list(prefix, from, count, cancel))
    }

    fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.retry(cancel, || self.store.delete(name, cancel))
    }

    fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.retry(cancel, || self.store.lock_until(name, until, cancel))
    }
}
