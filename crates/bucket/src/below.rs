//! The part of a store below a path. Names of objects are relative to the path.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use cairn_base::Timestamp;

use crate::error::{Blame, StoreError, Trouble, Verb};
use crate::name::{InvalidName, Name, Prefix};
use crate::store::{Head, ListFrom, Nonce, Page, Piece, Put, Store, Upload};

/// See the module. Errors name objects by their whole names.
pub struct Below {
    store: Arc<dyn Store>,
    path: Prefix,
    place: String,
}

impl Below {
    /// The objects of `store` below `path`, which has no slashes at its ends. An empty path is the
    /// store itself.
    ///
    /// # Errors
    /// The path is not the beginning of a name.
    pub fn at(store: Arc<dyn Store>, path: &str) -> Result<Arc<dyn Store>, InvalidName> {
        if path.is_empty() {
            return Ok(store);
        }
        let prefix = Prefix::new(format!("{path}/"))?;
        let place = format!("{}/{path}", store.place().trim_end_matches('/'));
        Ok(Arc::new(Self { store, path: prefix, place }))
    }

    fn whole(&self, name: &Name, verb: Verb) -> Result<Name, StoreError> {
        self.path.name(name.as_str()).map_err(|_| {
            let blame = Blame(self.store.place().into());
            blame.of(verb, Some(name), Trouble::Rule("the path in the bucket is too long"))
        })
    }

    fn prefix(&self, prefix: &Prefix) -> Result<Prefix, StoreError> {
        Prefix::new(format!("{}{prefix}", self.path)).map_err(|_| {
            let blame = Blame(self.store.place().into());
            blame.of(Verb::List, None, Trouble::Rule("the path in the bucket is too long"))
        })
    }

    /// A name of the store, as callers know it; none for an object that is not below the path.
    fn relative(&self, name: &Name) -> Option<Name> {
        Name::new(name.as_str().strip_prefix(self.path.as_str())?).ok()
    }

    fn upload(&self, upload: &Upload) -> Result<Upload, StoreError> {
        Ok(Upload { name: self.whole(&upload.name, Verb::PutPieces)?, id: upload.id.clone() })
    }
}

impl Store for Below {
    fn place(&self) -> &str {
        &self.place
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
        self.store.put_new(&self.whole(name, Verb::Put)?, bytes, nonce, cancel)
    }

    fn begin(&self, name: &Name, nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError> {
        let begun = self.store.begin(&self.whole(name, Verb::PutPieces)?, nonce, cancel)?;
        Ok(Upload { name: name.clone(), id: begun.id })
    }

    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError> {
        self.store.put_piece(&self.upload(upload)?, number, bytes, cancel)
    }

    fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        self.store.pieces(&self.upload(upload)?, cancel)
    }

    fn finish(
        &self,
        upload: &Upload,
        nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        self.store.finish(&self.upload(upload)?, nonce, pieces, cancel)
    }

    fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.store.abort(&self.upload(upload)?, cancel)
    }

    fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        let found = self.store.uploads(&self.prefix(prefix)?, cancel)?;
        let relative = |upload: Upload| Some(Upload { name: self.relative(&upload.name)?, id: upload.id });
        Ok(found.into_iter().filter_map(relative).collect())
    }

    fn get(&self, name: &Name, offset: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, StoreError> {
        self.store.get(&self.whole(name, Verb::Get)?, offset, length, cancel)
    }

    fn get_pieces(
        &self,
        name: &Name,
        offset: u64,
        length: usize,
        cancel: &AtomicBool,
    ) -> Result<Vec<Bytes>, StoreError> {
        self.store.get_pieces(&self.whole(name, Verb::Get)?, offset, length, cancel)
    }

    fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<Head, StoreError> {
        self.store.head(&self.whole(name, Verb::Head)?, cancel)
    }

    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<Page, StoreError> {
        let from = match from {
            ListFrom::After(name) => ListFrom::After(self.whole(name, Verb::List)?),
            from => from.clone(),
        };
        let mut page = self.store.list(&self.prefix(prefix)?, &from, count, cancel)?;
        page.objects.retain_mut(|listed| match self.relative(&listed.name) {
            Some(name) => {
                listed.name = name;
                true
            }
            None => false,
        });
        Ok(page)
    }

    fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.store.delete(&self.whole(name, Verb::Delete)?, cancel)
    }

    fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.store.lock_until(&self.whole(name, Verb::Lock)?, until, cancel)
    }
}

#[cfg(test)]
mod tests;
