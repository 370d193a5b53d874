//! New volumes whose home is a bucket.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use cairn_base::VolumeId;
use cairn_bucket::Use;
use cairn_bucket::backed::{BackedDevice, Base, presence_bytes};
use cairn_device::FileDevice;
use cairn_volume::{FormatOptions, Role, Volume};

use super::cache::CacheWish;
use super::{Backed, FromBucket, record_error, record_path};
use crate::buckets::OpenBucket;
use crate::daemon::data_dir::guard;
use crate::error::ServerError;
use crate::peers::token::random_bytes;
use crate::volumes::disks::whole;
use crate::volumes::document::{Making, VolumeDocument};
use crate::volumes::open::{OpenVolume, Parts};
use crate::volumes::{Volumes, making};
use crate::{names, state};

/// A new volume in a bucket.
pub(super) struct NewHome<'a> {
    pub(super) name: &'a str,
    pub(super) id: VolumeId,
    pub(super) blocks: u64,
    pub(super) bucket: &'a OpenBucket,
    pub(super) cache: &'a CacheWish,
    /// Writes the mirror of the volume into its folder.
    pub(super) beside: &'a dyn Fn(&Path) -> Result<(), ServerError>,
}

impl Volumes {
    /// Creates a volume with a cache. It exists completely, with its mirror, or not at all.
    pub(super) fn create_home(&self, new: &NewHome<'_>) -> Result<Arc<OpenVolume>, ServerError> {
        let name = new.name;
        names::check("volume", name)?;
        let _turn = self.turns.take(&[name], "it is being made")?;
        let folder = self.folder(name);
        if self.entries.read().contains_key(name) || folder.exists() {
            return Err(ServerError::Taken { what: "volume", name: name.to_owned() });
        }
        self.refuse_if_restored(name)?;
        new.bucket.refuse_unsafe_for(Use::Volume)?;
        let nursery = self.dir.join(format!(".{name}.new"));
        self.clear_unopened(&nursery)?;
        guard::make_new_folder(&nursery).map_err(ServerError::path("create", &nursery))?;
        let mut files = Vec::new();
        let made = self.make_home(new, &nursery, &mut files).and_then(|mut parts| {
            fs::rename(&nursery, &folder)
                .and_then(|()| state::sync_parent(&folder))
                .map_err(ServerError::path("create", &folder))?;
            parts.paths.iter_mut().for_each(|path| *path = folder.join(&*path));
            Ok(parts)
        });
        match made {
            Ok(parts) => self.serve_image(name, parts),
            Err(error) => {
                making::take_back_made(&nursery);
                files.iter().for_each(|path| drop(fs::remove_file(path)));
                if let Err(left) = self.clear_unopened(&nursery) {
                    tracing::warn!(path = %nursery.display(), error = %left, "a folder stays until the next start");
                }
                Err(error)
            }
        }
    }

    fn make_home(
        &self,
        new: &NewHome<'_>,
        nursery: &Path,
        files: &mut Vec<std::path::PathBuf>,
    ) -> Result<Parts, ServerError> {
        let role = Role::Normal;
        let (paths, devices) = new.cache.make_files(Volume::device_bytes(new.blocks, role), nursery)?;
        files.extend(paths.iter().filter(|path| path.is_absolute()).cloned());
        let from = FromBucket::new_home(&new.bucket.name, new.id, new.name, new.cache);
        let document = VolumeDocument {
            from_bucket: Some(from.clone()),
            made_as: Some(Making::new(new.id, None)),
            ..VolumeDocument::of(paths.clone())
        };
        state::save(&nursery.join("volume.json"), &document)?;
        let local = whole(&devices);
        let options = FormatOptions { id: new.id, blocks: new.blocks, role };
        Volume::format(&*local, &options, &*self.clock).map_err(ServerError::volume(new.name))?;
        let record = FileDevice::create(record_path(nursery), presence_bytes(new.blocks))?;
        let of = (new.id, Base::default(), new.blocks);
        BackedDevice::create(&record, of, random_bytes(), std::iter::empty())
            .map_err(record_error(new.name))?;
        local.flush()?;
        drop(record);
        let backed = Backed::open(new.name, &from, nursery, local, self.buckets.as_ref())?;
        (new.beside)(nursery)?;
        let finished = VolumeDocument { made_as: None, ..document };
        state::save(&nursery.join("volume.json"), &finished)?;
        state::renew_copy(&nursery.join("volume.json"));
        Ok(Parts { backed: Some(backed), ..Parts::of(paths, devices) })
    }
}
