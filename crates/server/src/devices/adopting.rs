//! How a device is adopted: recorded before any file is created or written, and reverted by the
//! next start if a kill has interrupted it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_api as api;
use cairn_device::{Device, FileDevice};
use cairn_history::{FloorPolicy, History, HistoryOptions};

use super::{DeviceState, Devices, wants_history};
use crate::devices::open::DeviceDocument;
use crate::error::ServerError;
use crate::storage::files::{MUST_BE_EMPTY, origin_options, refuse_used, take_store_file};
use crate::storage::histories::{BLOCK_BYTES, CACHE_BYTES, DIRTY_BYTES, STORE_MIN, history_id, new_history};
use crate::storage::place::Place;
use crate::storage::seen::Seen;
use crate::{names, state};

/// A file of that length, or of none yet, in which nothing was ever written, according to its file
/// system. A file system that does not track holes reports all of it as data.
fn is_untouched(path: &Path, bytes: u64) -> bool {
    let is_file = fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_file() && (found.len() == bytes || found.len() == 0));
    let data = |file| rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0));
    is_file && fs::File::open(path).is_ok_and(|file| data(file) == Err(rustix::io::Errno::NXIO))
}

/// The files that an adoption has created so far.
#[derive(Default)]
struct Made {
    files: Vec<PathBuf>,
    /// A history is written into its store, or was.
    history: bool,
}

/// The LUNs of a device that is being adopted.
struct Claim<'a> {
    devices: &'a Devices,
    luns: Vec<Place>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.devices.claimed.lock().retain(|place| !self.luns.contains(place));
    }
}

impl Devices {
    /// Adopts a device; a failure leaves no files behind.
    pub(crate) fn adopt(&self, request: &api::AdoptDevice) -> Result<(), ServerError> {
        let name = &request.name;
        names::check("device", name)?;
        let _turn = self.turns.take(&[name], "it is being adopted")?;
        if self.entries.read().contains_key(name) {
            return Err(ServerError::Taken { what: "device", name: name.clone() });
        }
        // For `cairn history` the name would be ambiguous.
        if self.volumes.has_history(name) {
            return Err(ServerError::Taken { what: "volume", name: name.clone() });
        }
        let (document, options) = self.plan(request)?;
        let _claim = self.claim(&document)?;
        // Before any file is created or written: it identifies the remains of a kill, which the
        // next start removes.
        state::save(&self.path(name), &document)?;
        let mut made = Made::default();
        let outcome = self.adopt_as(&document, request, &options, &mut made);
        if outcome.is_err() {
            made.files.iter().for_each(|path| drop(fs::remove_file(path)));
            if made.history {
                self.clear_store(name, &document);
            }
            if let Err(error) = self.drop_document(name) {
                tracing::warn!(device = name, %error, "the document of a failed adoption stays until the next start");
            }
        }
        self.entries.write().insert(name.clone(), outcome?);
        Ok(())
    }

    /// Refuses LUNs that are a device's, or are about to be: those of the plan are its own from
    /// here on, until the claim goes.
    fn claim(&self, plan: &DeviceDocument) -> Result<Claim<'_>, ServerError> {
        let places = [Some(&plan.origin), plan.history.as_ref()].into_iter().flatten();
        let luns: Vec<Place> = places.filter(|place| place.lun_name().is_some()).cloned().collect();
        let mut claimed = self.claimed.lock();
        for place in &luns {
            if let Place::Lun { volume, lun } = place {
                self.volumes.refuse_temporary(volume)?;
                self.refuse_adopted(volume, Some(lun))?;
            }
            if claimed.contains(place) {
                return Err(ServerError::Busy { name: place.to_string(), by: "it is being adopted" });
            }
        }
        claimed.extend(luns.iter().cloned());
        Ok(Claim { devices: self, luns })
    }

    /// The plan of a device, before any of its files exist.
    pub(super) fn plan(
        &self,
        request: &api::AdoptDevice,
    ) -> Result<(DeviceDocument, HistoryOptions), ServerError> {
        let block_bytes = request.block_bytes.unwrap_or(BLOCK_BYTES);
        let origin_place = Place::parse(&request.origin)?;
        let history_place = request.history.as_deref().map(Place::parse).transpose()?;
        if history_place.as_ref() == Some(&origin_place) {
            return Err(ServerError::Invalid {
                fault: "the history and the origin are the same file",
                next: "give --history another file or an empty disk",
            });
        }
        if history_place.is_none() && wants_history(request) {
            return Err(ServerError::Invalid {
                fault: "options of a history need a history, and none is named",
                next: "name a file or an empty disk with --history PATH, or leave out the window, placement, granularity, block and cache options",
            });
        }
        let granularity = request.granularity.as_deref();
        let options =
            new_history(request.placement, granularity, &request.window, FloorPolicy::Fail, block_bytes)?;
        let document = DeviceDocument {
            history_id: history_place.as_ref().map(|_| options.store.to_string()).unwrap_or_default(),
            block_bytes,
            dirty_bytes: request.dirty_bytes.unwrap_or(DIRTY_BYTES),
            cache_bytes: request.cache_bytes.unwrap_or(CACHE_BYTES),
            views: BTreeMap::new(),
            clones: BTreeMap::new(),
            loose: BTreeSet::new(),
            adopting: true,
            // An existing file must never be removed, except one of length 0, which a kill has
            // left.
            origin_made_bytes: request.size_bytes.filter(|_| origin_place.is_free()),
            origin: origin_place,
            history: history_place,
            releasing: false,
            release_stopped: None,
            in_use: request.in_use,
            unknown: false,
        };
        Ok((document, options))
    }

    fn adopt_as(
        &self,
        plan: &DeviceDocument,
        request: &api::AdoptDevice,
        options: &HistoryOptions,
        made: &mut Made,
    ) -> Result<DeviceState, ServerError> {
        let name = &request.name;
        let origin = self.take_origin(&plan.origin, plan.in_use, request.size_bytes, &mut made.files)?;
        let document = DeviceDocument { adopting: false, origin_made_bytes: None, ..plan.clone() };
        let Some(place) = &document.history else {
            self.note_adopted(name, &document)?;
            return Ok(DeviceState::Plain(document, origin));
        };
        let bytes = request.history_bytes.unwrap_or(origin.geometry().length.max(STORE_MIN));
        let store = self.take_store(place, bytes, &mut made.files)?;
        made.history = true;
        let history = History::create(origin, store, options, self.open_options(&document))
            .map_err(ServerError::history(name))?;
        self.note_adopted(name, &document)?;
        let seen = Seen::at(self.seen_path(name), &document.history_id);
        self.serve(name, &document, history, seen).map(DeviceState::Open)
    }

    /// The device is adopted. The copy beside its document must also stop showing the adoption as
    /// unfinished.
    fn note_adopted(&self, name: &str, document: &DeviceDocument) -> Result<(), ServerError> {
        state::save(&self.path(name), document)?;
        state::renew_copy(&self.path(name));
        Ok(())
    }

    /// Removes the remains of an adoption that a kill has interrupted: an origin that was created
    /// and is still empty, the beginnings of a history, and the plan. The same command then starts
    /// over.
    pub(super) fn take_back(&self, name: &str, document: &DeviceDocument) -> Result<(), ServerError> {
        if let (Some(bytes), Place::File(path)) = (document.origin_made_bytes, &document.origin)
            && is_untouched(path, bytes)
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!(device = name, path = %path.display(), %error, "could not remove the origin that an adoption created");
        }
        self.clear_store(name, document);
        self.drop_document(name)
    }

    fn drop_document(&self, name: &str) -> Result<(), ServerError> {
        let path = self.path(name);
        state::remove(&path).map_err(ServerError::path("remove", &path))
    }

    /// Removes the beginnings of a history in its store, if they belong to that plan and the store
    /// has nothing else.
    fn clear_store(&self, name: &str, document: &DeviceDocument) {
        if let Some(place) = document.history.as_ref().filter(|place| place.is_there())
            && let Err(error) = self.clear_unfinished(place, &document.history_id)
        {
            tracing::warn!(device = name, store = %place, %error, "could not remove the remains of an unused history");
        }
    }

    /// Empties a store if the history of that id was only made in it.
    fn clear_unfinished(&self, place: &Place, id: &str) -> Result<(), ServerError> {
        let id = history_id(id)?;
        let store = self.open_store(place)?;
        let bytes = u64::from(MUST_BE_EMPTY);
        if History::is_unfinished(&*store, id).map_err(ServerError::history(&place.to_string()))? {
            store.write_from(0, &vec![0; bytes.min(store.geometry().length) as usize])?;
            store.flush()?;
        }
        Ok(())
    }

    fn take_origin(
        &self,
        place: &Place,
        in_use: bool,
        new: Option<u64>,
        made: &mut Vec<PathBuf>,
    ) -> Result<Arc<dyn Device>, ServerError> {
        // Neither as another origin nor as another device's history.
        if let Place::Lun { volume, lun } = place {
            self.refuse_adopted(volume, Some(lun))?;
        }
        match (place, new) {
            (Place::File(path), Some(bytes)) => {
                let device = FileDevice::create_with(path, bytes, origin_options())?;
                made.push(path.clone());
                Ok(Arc::new(device))
            }
            (Place::Lun { .. }, Some(_)) => Err(ServerError::WrongSize {
                fault: "a LUN has a size of its own",
                next: "leave out --size; `cairn lun create` creates a LUN of another size",
            }),
            (place, None) => {
                let origin = self.take_present_origin(place, in_use)?;
                // After locking it: no other process can claim it from here on.
                self.refuse_claimed_place(place)?;
                Ok(origin)
            }
        }
    }

    /// Opens an empty place for a history; a missing file is created.
    fn take_store(
        &self,
        place: &Place,
        bytes: u64,
        made: &mut Vec<PathBuf>,
    ) -> Result<Arc<dyn Device>, ServerError> {
        let (volume, short) = match place {
            Place::File(path) => {
                let store = take_store_file(path, bytes, made)?;
                self.refuse_claimed_place(place)?;
                return Ok(store);
            }
            Place::Lun { volume, lun } => (volume, lun),
        };
        self.refuse_adopted(volume, Some(short))?;
        tracing::info!(lun = format!("{volume}/{short}"), "a LUN holds a history");
        let store = self.open_store(place)?;
        refuse_used(&*store, place)?;
        Ok(store)
    }
}
