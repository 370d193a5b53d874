//! Clones among the volumes: made of a snapshot of another volume, opened after it, ended and
//! deleted before it.
//!
//! A clone is a volume like any other, in a folder of its own; `volume.json` names its base. A
//! crash before its folder has its name leaves nothing (a start removes the folder); after that, a
//! complete clone. The base is kept in the parent from before the clone has a name until its folder
//! is removed. A start protects it before any other change of the parent.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use cairn_api as api;
use cairn_device::Device;
use cairn_format::stream::root_digest;
use cairn_stream::MIRROR_PREFIX;
use cairn_volume::CloneDevice;

use super::waiting::OPENING;
use super::{VolumeState, Volumes, not_found};
use crate::daemon::data_dir::guard;
use crate::error::ServerError;
use crate::names::IMAGE_PREFIX;
use crate::volumes::deleting::remove_left;
use crate::volumes::disks::{in_the_folder, make_files, whole};
use crate::volumes::document::{CloneOf, VolumeDocument};
use crate::volumes::error::VolumesError;
use crate::volumes::open::{OpenVolume, Parts};
use crate::volumes::snapshots::find_snapshot;
use crate::volumes::under::Under;
use crate::{names, state};

impl Volumes {
    /// A snapshot of a volume as a clone names it.
    fn clone_of(&self, open: &OpenVolume, snapshot: &str, temporary: bool) -> Result<CloneOf, ServerError> {
        let found = find_snapshot(open, snapshot)?;
        if !temporary && [MIRROR_PREFIX, IMAGE_PREFIX].iter().any(|prefix| found.name.starts_with(prefix)) {
            return Err(ServerError::Invalid {
                fault: "mirrors and dumps delete this snapshot themselves, so it cannot be cloned",
                next: "clone one that `cairn snapshot create` made; for a mirror, create it at the source and update the mirror",
            });
        }
        let entries = open.volume.snapshot_entries();
        let entry = entries.iter().find(|entry| entry.id == found.id).ok_or(ServerError::Bug)?;
        let root = format!("{:?}", root_digest(entry));
        Ok(CloneOf { volume: open.name.clone(), snapshot: found.id.0, root, name: found.name, temporary })
    }

    /// The open parent of a clone, with the same snapshot.
    fn parent(&self, clone: &str, of: &CloneOf) -> Result<Arc<OpenVolume>, ServerError> {
        let gone = || {
            ServerError::Volumes(VolumesError::CloneBaseGone { clone: clone.to_owned(), base: of.shown() })
        };
        let open = self.get(&of.volume).map_err(|_| gone())?;
        let entries = open.volume.snapshot_entries();
        let same = |root: String| root == of.root;
        match entries.iter().find(|entry| entry.id == of.snapshot()) {
            Some(entry) if same(format!("{:?}", root_digest(entry))) => Ok(open),
            _ => Err(gone()),
        }
    }

    /// Protects the base of a clone, until the clone is deleted.
    pub(super) fn keep_base(&self, clone: &str, of: &CloneOf) -> Result<(), ServerError> {
        let parent = self.parent(clone, of)?;
        let kept = parent.volume.keep_snapshot(of.snapshot()).map_err(ServerError::volume(clone))?;
        // An earlier hold is dropped after the new one exists.
        let before = self.keeps.lock().insert(clone.to_owned(), kept);
        drop(before);
        Ok(())
    }

    /// The device on which a volume is opened: its devices, for a clone over those of its parent.
    pub(super) fn below(&self, name: &str, parts: &Parts) -> Result<Arc<dyn Device>, ServerError> {
        let own = parts.under.as_ref().map_or_else(|| whole(&parts.devices), Under::device);
        let own = match &parts.backed {
            Some(backed) => backed.device(own),
            None => own,
        };
        let Some(of) = &parts.clone_of else { return Ok(own) };
        let parent = self.parent(name, of)?;
        let device = CloneDevice::new(&parent.volume, of.snapshot(), own);
        Ok(Arc::new(device.map_err(ServerError::volume(name))?))
    }

    /// Names of volumes, each after its parent.
    pub(super) fn parents_first(&self, names: Vec<String>) -> Vec<String> {
        let parent = |name: &String| Some(self.places(name)?.clone_of?.volume);
        let mut waiting: Vec<(String, Option<String>)> =
            names.into_iter().map(|name| (name.clone(), parent(&name))).collect();
        let mut ordered = Vec::with_capacity(waiting.len());
        loop {
            let left: BTreeSet<String> = waiting.iter().map(|(name, _)| name.clone()).collect();
            let is_ready =
                |(_, parent): &(String, Option<String>)| !parent.as_ref().is_some_and(|p| left.contains(p));
            let (ready, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_ready);
            let stuck = ready.is_empty();
            ordered.extend(ready.into_iter().map(|(name, _)| name));
            if stuck {
                // Documents that name each other: neither opens, and both are reported.
                ordered.extend(later.into_iter().map(|(name, _)| name));
                return ordered;
            }
            waiting = later;
        }
    }

    /// All open volumes, each before its parent.
    pub(super) fn clones_first(&self) -> Vec<Arc<OpenVolume>> {
        let names = self.all().iter().map(|open| open.name.clone()).collect();
        let ordered = self.parents_first(names);
        ordered.iter().rev().filter_map(|name| self.get(name).ok()).collect()
    }

    /// The clones of a volume, whether or not they could be opened.
    fn clones_of(&self, volume: &str) -> Vec<String> {
        let names: Vec<String> = self.entries.read().keys().cloned().collect();
        let of = |name: &String| Some(self.places(name)?.clone_of?.volume);
        names.into_iter().filter(|name| of(name).as_deref() == Some(volume)).collect()
    }

    /// Refuses to delete a volume with clones.
    pub(crate) fn refuse_if_cloned(&self, name: &str) -> Result<(), ServerError> {
        match self.clones_of(name).first() {
            Some(clone) => Err(ServerError::Volumes(VolumesError::HasClone {
                volume: name.to_owned(),
                clone: clone.clone(),
            })),
            None => Ok(()),
        }
    }

    /// A volume is back in service: so are its clones. The caller must hold the turn of the volume.
    pub(super) fn open_clones_of(&self, name: &str) {
        for clone in self.clones_of(name) {
            let _turn = match self.turns.take(&[&clone], OPENING) {
                Ok(turn) => turn,
                Err(error) => {
                    tracing::warn!(volume = clone, %error, "a clone is not opened together with its parent");
                    continue;
                }
            };
            if matches!(self.entries.read().get(&clone), Some(VolumeState::Unavailable(_))) {
                self.open_entry(&clone);
                self.open_clones_of(&clone);
            }
        }
    }

    fn is_temporary(&self, name: &str) -> bool {
        self.document(name).is_ok_and(|document| document.clone_of.is_some_and(|of| of.temporary))
    }

    /// Refuses lasting objects on a temporary volume: its base is an image of a mirror, which may
    /// be gone at the next start.
    pub(crate) fn refuse_temporary(&self, name: &str) -> Result<(), ServerError> {
        match self.is_temporary(name) {
            true => Err(ServerError::Invalid {
                fault: "this volume is the temporary clone of a drill",
                next: "clone a snapshot of the mirror that `cairn snapshot create` made at its source",
            }),
            false => Ok(()),
        }
    }

    /// Removes the remains of a temporary clone after a crash.
    pub(super) fn clear_temporary(&self, name: &str) -> bool {
        let is_temporary = self.is_temporary(name);
        if is_temporary {
            remove_left(&self.folder(name));
        }
        is_temporary
    }

    /// Makes a clone of a snapshot. It exists completely, or not at all; `settle` runs before it
    /// becomes visible. A temporary one ends with the server, and its snapshot, which may be any,
    /// is not kept but held open, so that the updates of a mirror continue.
    pub(crate) fn clone_as(
        &self,
        volume: &str,
        snapshot: &str,
        name: &str,
        temporary: bool,
        settle: &dyn Fn() -> Result<(), ServerError>,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        names::check("volume", name)?;
        let _turn = self.turns.take(&[volume, name], "a clone is being made")?;
        self.refuse_temporary(volume)?;
        let of = self.clone_of(&*self.get(volume)?, snapshot, temporary)?;
        let folder = self.folder(name);
        if self.entries.read().contains_key(name) || folder.exists() {
            return Err(ServerError::Taken { what: "volume", name: name.to_owned() });
        }
        self.refuse_if_restored(name)?;
        settle()?;
        if !temporary {
            self.keep_base(name, &of)?;
        }
        let made = self.make_clone(name, &of, &format!(".{name}.clone")).and_then(|mut parts| {
            let nursery = self.dir.join(format!(".{name}.clone"));
            fs::rename(&nursery, &folder)
                .and_then(|()| state::sync_parent(&folder))
                .map_err(ServerError::path("create", &folder))?;
            parts.paths.iter_mut().for_each(|path| *path = folder.join(&*path));
            self.start(name, parts)
        });
        match made {
            Ok(open) => {
                self.entries.write().insert(name.to_owned(), VolumeState::Open(open.clone()));
                Ok(open)
            }
            Err(error) => {
                // It has no writes at any point of failure. It is moved first, as otherwise a start
                // could find half of it.
                let nursery = self.dir.join(format!(".{name}.clone"));
                let cleared = match folder.exists() {
                    true => fs::rename(&folder, &nursery).and_then(|()| state::sync_parent(&folder)),
                    false => Ok(()),
                };
                match cleared.and_then(|()| fs::remove_dir_all(&nursery)) {
                    Err(left) if left.kind() != std::io::ErrorKind::NotFound => {
                        tracing::warn!(path = %nursery.display(), %left, "a clone that was not made stays until the next start");
                    }
                    _ => drop(self.keeps.lock().remove(name)),
                }
                Err(error)
            }
        }
    }

    /// Makes a clone in the folder `nursery`, which a start clears away; paths are as in
    /// `volume.json`.
    fn make_clone(&self, name: &str, of: &CloneOf, nursery: &str) -> Result<Parts, ServerError> {
        let nursery = self.dir.join(nursery);
        match fs::remove_dir_all(&nursery) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => guard::make_new_folder(&nursery),
        }
        .map_err(ServerError::path("create", &nursery))?;
        let parent = self.parent(name, of)?;
        let failed = ServerError::volume(name);
        let bytes = CloneDevice::own_bytes(&parent.volume, of.snapshot()).map_err(&failed)?;
        let (paths, own) = make_files(&nursery.join("volume.img"), bytes)?;
        let device = CloneDevice::new(&parent.volume, of.snapshot(), whole(&own)).map_err(&failed)?;
        Arc::new(device).make(self.options()).map_err(&failed)?;
        let paths = in_the_folder(&paths);
        let clone_of = Some(of.clone());
        let document = VolumeDocument { clone_of: clone_of.clone(), ..VolumeDocument::of(paths.clone()) };
        state::save(&nursery.join("volume.json"), &document)?;
        Ok(Parts { clone_of, ..Parts::of(paths, own) })
    }

    /// All clones.
    pub(crate) fn list_clones(&self) -> Vec<api::VolumeClone> {
        let names: Vec<String> = self.entries.read().keys().cloned().collect();
        names.iter().filter_map(|name| self.show_clone(name).ok()).collect()
    }

    /// One clone.
    pub(crate) fn show_clone(&self, name: &str) -> Result<api::VolumeClone, ServerError> {
        let none =
            || ServerError::NotFound { what: "clone", name: name.to_owned(), list: "cairn clone list" };
        if !self.entries.read().contains_key(name) {
            return Err(none());
        }
        let document = self.document(name)?;
        let of = document.clone_of.ok_or_else(none)?;
        let own = document.devices.iter().map(|path| fs::metadata(self.folder(name).join(path)));
        let own_bytes = own.filter_map(Result::ok).map(|file| file.blocks() * 512).sum();
        let shown = self.show(name).map_err(|_| not_found(name))?;
        Ok(api::VolumeClone {
            name: name.to_owned(),
            of: of.shown(),
            size_bytes: shown.size_bytes,
            own_bytes,
            luns: shown.luns,
            problem: shown.problem,
        })
    }
}
