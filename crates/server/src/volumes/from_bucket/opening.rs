//! A volume is opened from an image: its devices, the record of local blocks and the volume are
//! made in a folder that a start would remove, and get their place at the end.
//!
//! A writable one claims the volume as the last step before that. A crash after the claim leaves
//! the volume without an owner and nothing here; the same command claims the next epoch.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use cairn_base::{SnapshotId, Timestamp, VolumeId};
use cairn_bucket::Use;
use cairn_bucket::backed::{BackedDevice, Base, presence_bytes};
use cairn_bucket::images::{
    BucketImages, ImageLabel, ImageReader, ImagesError, Owner, VolumeInBucket, label_of, snapshots_of,
    volumes,
};
use cairn_device::FileDevice;
use cairn_format::SnapshotEntry;
use cairn_format::layout::{SPACE_BLOCKS_MAX, SPACE_BLOCKS_MIN};
use cairn_volume::{FormatOptions, ReceivedImage, Role, Volume};

use super::cache::CacheWish;
use super::error::FromBucketError;
use super::{Backed, FromBucket, LateSource, Opened, images_of, record_error, record_path};
use crate::buckets::{OpenBucket, store_error};
use crate::daemon::data_dir::guard;
use crate::error::ServerError;
use crate::peers::token::random_bytes;
use crate::volumes::disks::{BLOCK, whole};
use crate::volumes::document::{Making, VolumeDocument};
use crate::volumes::error::VolumesError;
use crate::volumes::open::{OpenVolume, Parts};
use crate::volumes::{VolumeState, Volumes, making};
use crate::work::jobs::Progress;
use crate::{names, state};

/// Characters of an id that name a volume or an image, at least.
const ID_CHARS_MIN: usize = 4;
/// Newest images that a writable opening follows, if its owner makes another one meanwhile.
const NEWER_MAX: usize = 4;

/// A volume in a bucket, and how to open it.
pub(super) struct Wanted<'a> {
    pub(super) bucket: &'a OpenBucket,
    pub(super) name: &'a str,
    pub(super) there: VolumeInBucket,
    pub(super) image: Option<&'a str>,
    pub(super) read_only: bool,
    pub(super) devices: &'a [String],
    pub(super) fill_bytes: Option<u64>,
    /// Blocks of its block space; none for those of the image.
    pub(super) blocks: Option<u64>,
    /// Its devices are a cache.
    pub(super) cache: Option<&'a CacheWish>,
    /// Writes the mirror that continues the images into its folder.
    pub(super) beside: Option<&'a Beside<'a>>,
}

/// Writes further documents into the folder of a volume whose images were claimed.
pub(super) type Beside<'a> = dyn Fn(&Path, &Owner) -> Result<(), ServerError> + 'a;

/// An error of images in a bucket.
pub(super) fn images_error(bucket: &str) -> impl Fn(ImagesError) -> ServerError + '_ {
    move |source| match source {
        ImagesError::Store(error) => store_error(bucket, error),
        source => {
            from_bucket(FromBucketError::Images { bucket: bucket.to_owned(), source: Box::new(source) })
        }
    }
}

pub(super) fn from_bucket(error: FromBucketError) -> ServerError {
    ServerError::Volumes(VolumesError::FromBucket(error))
}

/// The volume that a user means: by its name at its owner, its id, or the beginning of that.
pub(super) fn find_volume(
    bucket: &OpenBucket,
    wanted: &str,
    progress: &Progress,
) -> Result<VolumeInBucket, ServerError> {
    let (all, _) = volumes(&bucket.store, &bucket.workers, progress.cancel_flag())
        .map_err(images_error(&bucket.name))?;
    let is = |there: &&VolumeInBucket| {
        let id = there.id.to_string();
        there.name() == Some(wanted) || (wanted.len() >= ID_CHARS_MIN && id.starts_with(wanted))
    };
    let mut found: Vec<VolumeInBucket> = all.iter().filter(is).cloned().collect();
    let (bucket, volume) = (bucket.name.clone(), wanted.to_owned());
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => {
            let shown = |there: &VolumeInBucket| {
                there.name().map_or_else(|| there.id.to_string(), |name| format!("{name} ({})", there.id))
            };
            let there = all.iter().map(shown).collect();
            Err(from_bucket(FromBucketError::NoVolume { bucket, volume, there }))
        }
        _ => {
            let there = found.iter().map(|there| format!("{} ({})", there.id, there.claim.label)).collect();
            Err(from_bucket(FromBucketError::SeveralVolumes { bucket, volume, there }))
        }
    }
}

fn shown_image(label: &ImageLabel) -> String {
    format!("{} (image {})", label.number, label.id)
}

impl Wanted<'_> {
    fn volume(&self) -> String {
        self.there.name().map_or_else(|| self.there.id.to_string(), ToOwned::to_owned)
    }

    /// The image that is meant.
    fn find_image(&self, images: &BucketImages, progress: &Progress) -> Result<ImageReader, ServerError> {
        let failed = images_error(&self.bucket.name);
        let cancel = progress.cancel_flag();
        let none = |image: &str, there: &[ImageLabel]| {
            from_bucket(FromBucketError::NoImage {
                bucket: self.bucket.name.clone(),
                volume: self.volume(),
                image: image.to_owned(),
                there: there.iter().map(shown_image).collect(),
            })
        };
        let newest = match images.image(None, cancel) {
            Err(ImagesError::NoImage(_)) => return Err(none("newest", &[])),
            newest => newest.map_err(&failed)?,
        };
        let Some(wanted) = self.image else { return Ok(newest) };
        let labels = images.images(cancel).map_err(&failed)?;
        let named = snapshots_of(newest.content()).unwrap_or_default();
        let named = named.iter().find(|entry| entry.name == wanted).map(|entry| entry.id.0);
        let is = |label: &&ImageLabel| {
            let by_id = wanted.len() >= ID_CHARS_MIN && label.id.to_string().starts_with(wanted);
            by_id || wanted.parse::<u64>().ok() == Some(label.number) || named == Some(label.number)
        };
        let found = labels.iter().rev().find(is).ok_or_else(|| none(wanted, &labels))?;
        if found.id == newest.label().id {
            return Ok(newest);
        }
        if !self.read_only {
            let (volume, image) = (self.volume(), shown_image(found));
            return Err(from_bucket(FromBucketError::NotNewest { volume, image }));
        }
        images.image(Some(found.id), cancel).map_err(&failed)
    }

    fn document(&self, label: &ImageLabel) -> FromBucket {
        FromBucket {
            bucket: self.bucket.name.clone(),
            volume: self.there.id.to_string(),
            owner_name: self.there.name().map(ToOwned::to_owned),
            image: label.id.to_string(),
            number: label.number,
            taken_ms: label.taken.0 / 1_000_000,
            read_only: self.read_only,
            epoch: None,
            fill_bytes: self.fill_bytes,
            cache_bytes: self.cache.map(|cache| cache.bytes),
            lag_ms: self.cache.map(|cache| cache.lag_ms),
        }
    }
}

impl Volumes {
    /// Refuses a second writable volume with the same blocks on this server.
    pub(super) fn refuse_if_here(&self, id: VolumeId, volume: &str) -> Result<(), ServerError> {
        match self.all().iter().find(|open| open.volume.id() == id && !open.is_read_only_image()) {
            Some(open) => {
                Err(from_bucket(FromBucketError::Here { volume: volume.to_owned(), name: open.name.clone() }))
            }
            None => Ok(()),
        }
    }

    /// Opens a volume from a bucket. It exists completely, or not at all.
    pub(super) fn open_image(
        &self,
        wanted: &Wanted<'_>,
        now: Timestamp,
        progress: &Progress,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        let name = wanted.name;
        names::check("volume", name)?;
        let _turn = self.turns.take(&[name], "it is being opened from a bucket")?;
        let folder = self.folder(name);
        if self.entries.read().contains_key(name) || folder.exists() {
            return Err(ServerError::Taken { what: "volume", name: name.to_owned() });
        }
        self.refuse_if_restored(name)?;
        wanted.bucket.refuse_unsafe_for(if wanted.read_only { Use::Dump } else { Use::Volume })?;
        if !wanted.read_only {
            self.refuse_if_here(wanted.there.id, &wanted.volume())?;
        }
        let nursery = self.dir.join(format!(".{name}.new"));
        let images = images_of(wanted.bucket, wanted.there.id);
        progress.phase("reading the image");
        let mut reader = wanted.find_image(&images, progress)?;
        for _ in 0..NEWER_MAX {
            let label = reader.label();
            let made = self.make_from_image(wanted, reader, &nursery, (now, progress));
            let made = made.and_then(|made| {
                if wanted.read_only {
                    return Ok(Some(made));
                }
                progress.phase("claiming the volume");
                let owner = label_of(name, &names::host());
                let claimed = images.claim(&owner, now, progress.cancel_flag());
                let owner = claimed.map_err(images_error(&wanted.bucket.name))?;
                if owner.newest().is_none_or(|newest| newest.id != label.id) {
                    // The owner before has made another image meanwhile. It can make no more.
                    return Ok(None);
                }
                let (parts, mut document) = made;
                if let Some(from) = &mut document.from_bucket {
                    from.epoch = Some(owner.epoch());
                }
                wanted.beside.map_or(Ok(()), |write| write(nursery.as_path(), &owner))?;
                Ok(Some((parts, document)))
            });
            let put = made.and_then(|made| {
                let Some((mut parts, document)) = made else { return Ok(None) };
                let finished = VolumeDocument { made_as: None, ..document };
                state::save(&nursery.join("volume.json"), &finished)?;
                state::renew_copy(&nursery.join("volume.json"));
                // The same device stays open. It gets the document with the claim.
                if let (Some(backed), Some(from)) = (parts.backed.take(), finished.from_bucket) {
                    parts.backed = Some(Backed { from, ..backed });
                }
                fs::rename(&nursery, &folder)
                    .and_then(|()| state::sync_parent(&folder))
                    .map_err(ServerError::path("create", &folder))?;
                parts.paths.iter_mut().for_each(|path| *path = folder.join(&*path));
                Ok(Some(parts))
            });
            match put {
                Ok(Some(parts)) => {
                    progress.phase("opening the volume");
                    return self.serve_image(name, parts);
                }
                Ok(None) => {
                    self.clear_unopened(&nursery)?;
                    progress.phase("reading the image");
                    reader = wanted.find_image(&images, progress)?;
                }
                Err(error) => {
                    if let Err(left) = self.clear_unopened(&nursery) {
                        tracing::warn!(path = %nursery.display(), error = %left, "a folder stays until the next start");
                    }
                    return Err(error);
                }
            }
        }
        let by = "its owner makes new images all the time".to_owned();
        let source = Box::new(ImagesError::Taken { epoch: wanted.there.claim.epoch, by });
        Err(from_bucket(FromBucketError::Images { bucket: wanted.bucket.name.clone(), source }))
    }

    /// Opens a volume that has its place.
    pub(super) fn serve_image(&self, name: &str, parts: Parts) -> Result<Arc<OpenVolume>, ServerError> {
        let entry = match self.start(name, parts) {
            Ok(open) => {
                // No mirror would use their maps.
                if !open.is_destination() {
                    for mirror in open.volume.since_relationships() {
                        if let Err(error) = open.volume.delete_since(mirror.relationship) {
                            tracing::warn!(volume = name, %error, "the map of a mirror of the former owner stays");
                        }
                    }
                }
                VolumeState::Open(open)
            }
            // It has its place and can't be opened: it is shown as that, opened once its bucket is
            // there, and can be deleted.
            Err(error) => VolumeState::Unavailable(Arc::new(error)),
        };
        self.entries.write().insert(name.to_owned(), entry);
        self.get(name)
    }

    pub(super) fn clear_unopened(&self, nursery: &Path) -> Result<(), ServerError> {
        making::take_back_made(nursery);
        match fs::remove_dir_all(nursery) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ServerError::Path { action: "remove", path: nursery.to_owned(), source: error })
            }
            _ => Ok(()),
        }
    }

    /// Makes the volume in the folder `nursery`; paths are as in `volume.json`.
    fn make_from_image(
        &self,
        wanted: &Wanted<'_>,
        reader: ImageReader,
        nursery: &Path,
        (now, progress): (Timestamp, &Progress),
    ) -> Result<(Parts, VolumeDocument), ServerError> {
        progress.phase("making the volume");
        let (name, label) = (wanted.name, reader.label());
        self.clear_unopened(nursery)?;
        guard::make_new_folder(nursery).map_err(ServerError::path("create", nursery))?;
        if !(SPACE_BLOCKS_MIN..=SPACE_BLOCKS_MAX).contains(&label.blocks) {
            return Err(from_bucket(FromBucketError::Table));
        }
        let blocks = wanted.blocks.unwrap_or(label.blocks);
        if blocks < label.blocks {
            let (size, has) = (blocks * BLOCK, label.blocks * BLOCK);
            return Err(from_bucket(FromBucketError::Shrinks { volume: wanted.volume(), size, has }));
        }
        let table = snapshots_of(reader.content()).map_err(|_| from_bucket(FromBucketError::Table))?;
        let image = received(table)?;
        let role = if wanted.read_only { Role::Destination } else { Role::Normal };
        let options = FormatOptions { id: wanted.there.id, blocks, role };
        let (paths, devices) = match wanted.cache {
            Some(cache) => cache.make_files(Volume::device_bytes(blocks, role), nursery)?,
            None => self.take_devices(Some(blocks), role, wanted.devices, nursery)?,
        };
        let local = whole(&devices);
        let (need, have) = (Volume::device_bytes(blocks, role), local.geometry().length);
        if have < need {
            return Err(from_bucket(FromBucketError::DevicesTooSmall { need, have }));
        }
        // Before anything is written to devices that the user named: it identifies the remains.
        let document = VolumeDocument {
            from_bucket: Some(wanted.document(&label)),
            made_as: Some(Making::new(wanted.there.id, None)),
            ..VolumeDocument::of(paths.clone())
        };
        state::save(&nursery.join("volume.json"), &document)?;
        let failed = record_error(name);
        let record = FileDevice::create(record_path(nursery), presence_bytes(blocks))?;
        let target = image.snapshots.iter().find(|entry| entry.id == image.target);
        let target = target.ok_or_else(|| from_bucket(FromBucketError::Table))?;
        let of = (wanted.there.id, Base::of(label.id, target), blocks);
        BackedDevice::create(&record, of, random_bytes(), reader.regions()).map_err(&failed)?;
        let buckets = self.buckets.as_ref().ok_or(ServerError::Bug)?;
        // It has the patience of a volume, not that of a job.
        let bucket = buckets.open_for_volume(&wanted.bucket.name)?;
        let opened = Opened::new(bucket, wanted.there.id, Some(reader));
        let from = wanted.document(&label);
        let source = LateSource::new(name, &from, Some(buckets.clone()), Some(opened));
        let backed = Backed::over(name, &from, local.clone(), Arc::new(record), source)?;
        let device = backed.device(local);
        Volume::adopt(&*device, &options, &image, now).map_err(ServerError::volume(name))?;
        device.flush()?;
        Ok((Parts { backed: Some(backed), ..Parts::of(paths, devices) }, document))
    }
}

/// The image with all of its snapshots; the last one is the present state.
fn received(snapshots: Vec<SnapshotEntry>) -> Result<ReceivedImage, ServerError> {
    let newest = snapshots.iter().map(|entry| entry.id).max().filter(|id| *id > SnapshotId(0));
    let target = newest.ok_or_else(|| from_bucket(FromBucketError::Table))?;
    Ok(ReceivedImage { target, snapshots })
}
