//! A store that counts its requests and their bytes, for metrics and for the price of a bucket.
//!
//! It is below the retries, so that each try counts. Requests that a driver makes by itself, as for
//! the credentials of a role, do not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use cairn_base::Timestamp;

use crate::error::{StoreError, Trouble};
use crate::name::{Name, Prefix};
use crate::store::{Head, ListFrom, Nonce, Page, Piece, Put, Store, Upload};

/// A kind of request, as vendors charge for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Request {
    /// Objects, pieces, and the begin and end of an upload.
    Put,
    /// Ranges of objects.
    Get,
    /// Properties of an object.
    Head,
    /// Objects, uploads, and pieces.
    List,
    /// Objects, and uploads that are aborted.
    Delete,
    /// Locks.
    Lock,
}

impl Request {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Put, Self::Get, Self::Head, Self::List, Self::Delete, Self::Lock];

    /// In one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Lock => "lock",
        }
    }
}

/// The counts of a bucket, shared by all of its clients.
#[derive(Debug, Default)]
pub struct Tally {
    requests: [AtomicU64; Request::ALL.len()],
    failures: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Tally {
    /// Requests of a kind, with any outcome.
    pub fn requests(&self, kind: Request) -> u64 {
        self.requests[kind as usize].load(Ordering::Relaxed)
    }

    /// Requests that failed. A missing or locked object, a request that the store does not have,
    /// and a cancelled one are no failures.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Bytes of objects that were put.
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes of objects that were read.
    pub fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// See the module.
pub struct Counted<S> {
    store: S,
    tally: Arc<Tally>,
}

impl<S: Store> Counted<S> {
    /// Counts the requests to `store`.
    pub fn new(store: S, tally: Arc<Tally>) -> Self {
        Self { store, tally }
    }

    fn count<T>(&self, kind: Request, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        self.tally.requests[kind as usize].fetch_add(1, Ordering::Relaxed);
        let is_answer = |error: &StoreError| {
            matches!(
                error.trouble,
                Trouble::Missing | Trouble::Locked(_) | Trouble::Unsupported(_) | Trouble::Cancelled
            )
        };
        if outcome.as_ref().is_err_and(|error| !is_answer(error)) {
            self.tally.failures.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    fn send<T>(&self, length: usize, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        if outcome.is_ok() {
            self.tally.sent.fetch_add(length as u64, Ordering::Relaxed);
        }
        self.count(Request::Put, outcome)
    }
}

impl<S: Store> Store for Counted<S> {
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
        self.send(bytes.len(), self.store.put_new(name, bytes.clone(), nonce, cancel))
    }

    fn begin(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError> {
        self.count(Request::Put, self.store.begin(name, nonce, cancel))
    }

    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError> {
        let length = bytes.len();
        self.send(length, self.store.put_piece(upload, number, bytes, cancel))
    }

    fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        self.count(Request::List, self.store.pieces(upload, cancel))
    }

    fn finish(
        &self,
        upload: &Upload,
        nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        self.count(Request::Put, self.store.finish(upload, nonce, pieces, cancel))
    }

    fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.count(Request::Delete, self.store.abort(upload, cancel))
    }

    fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        self.count(Request::List, self.store.uploads(prefix, cancel))
    }

    fn get(&self, name: &Name, offset: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, StoreError> {
        let read = self.count(Request::Get, self.store.get(name, offset, length, cancel))?;
        self.tally.received.fetch_add(read.len() as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn get_pieces(
        &self,
        name: &Name,
        offset: u64,
        length: usize,
        cancel: &AtomicBool,
    ) -> Result<Vec<Bytes>, StoreError> {
        let read = self.count(Request::Get, self.store.get_pieces(name, offset, length, cancel))?;
        let bytes: usize = read.iter().map(Bytes::len).sum();
        self.tally.received.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<Head, StoreError> {
        self.count(Request::Head, self.store.head(name, cancel))
    }

    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<Page, StoreError> {
        self.count(Request::List, self.store.list(prefix, from, count, cancel))
    }

    fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.count(Request::Delete, self.store.delete(name, cancel))
    }

    fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.count(Request::Lock, self.store.lock_until(name, until, cancel))
    }
}

#[cfg(test)]
mod tests;
