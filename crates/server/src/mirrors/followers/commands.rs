//! Commands on the mirrors that follow volumes of this server: the methods of the server for them.

use std::collections::{HashMap, HashSet};

use cairn_api as api;
use cairn_base::BLOCK_SIZE;
use cairn_mirror::MirrorAtSource;
use cairn_volume::VolumeError;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::followers::follower;
use crate::mirrors::transfer;
use crate::volumes::open::OpenVolume;

impl Server {
    /// The mirrors of a volume. They are known by its id, which its clones have too: one for which
    /// nothing is kept in it is not a clone's, nor that of a volume beside which another of that id
    /// keeps something for it.
    pub(crate) fn mirrors_of(&self, open: &OpenVolume) -> Result<Vec<MirrorAtSource>, VolumeError> {
        let keeps = |mirror: &MirrorAtSource| mirror.base.is_some() || mirror.behind.is_some();
        let mut mirrors = self.source.mirrors(&open.volume)?;
        // Their state is here, not with a peer.
        mirrors.retain(|mirror| !self.bucket_mirrors.is_one(&open.name, &mirror.name));
        if mirrors.iter().all(keeps) {
            return Ok(mirrors);
        }
        let (id, all) = (open.volume.id(), self.volumes.all());
        let others = all.iter().filter(|other| other.name != open.name && other.volume.id() == id);
        let theirs = others.flat_map(|other| self.source.mirrors(&other.volume).unwrap_or_default());
        let theirs: HashSet<String> = theirs.filter(keeps).map(|mirror| mirror.name).collect();
        mirrors.retain(|mirror| keeps(mirror) || !open.is_clone() && !theirs.contains(&mirror.name));
        Ok(mirrors)
    }

    /// Whether any mirror follows a volume, or has something kept for it here. A former source of
    /// the volume is not its mirror, under any of its names.
    pub(crate) fn is_followed(&self, open: &OpenVolume) -> Result<bool, ServerError> {
        if self.source.mirrors(&open.volume).map_err(ServerError::volume(&open.name))?.is_empty() {
            return Ok(false);
        }
        // The list of mirrors is unknown otherwise.
        self.peers.check_known()?;
        self.followers.check_known()?;
        let (followers, leftovers) = self.followers();
        let of = followers.iter().map(|it| &it.volume).chain(leftovers.iter().map(|it| &it.volume));
        Ok(of.into_iter().any(|volume| *volume == open.name))
    }

    /// The mirrors that follow volumes here, of peers that are pinned; and the data that is kept
    /// for others.
    pub(crate) fn followers(&self) -> (Vec<api::Follower>, Vec<api::Leftover>) {
        let pinned: HashSet<String> = self.peers.pinned().into_iter().map(transfer::peer_digits).collect();
        // Then it is unknown which ones are not peers.
        let may_be = |peer: &str| pinned.contains(peer) || self.peers.check_known().is_err();
        let knows_all = self.peers.check_known().and_then(|()| self.followers.check_known()).is_ok();
        let names = self.peers.names().into_iter().rev();
        let names: HashMap<String, String> =
            names.map(|(certificate, name)| (transfer::peer_digits(certificate), name)).collect();
        let (mut followers, mut leftovers) = (Vec::new(), Vec::new());
        for open in &self.volumes.all() {
            let source = self.mirrors.source_of(&open.name);
            for mirror in self.mirrors_of(open).unwrap_or_default() {
                // A server that the volume follows again is not its mirror, whatever its role was
                // meanwhile. Likewise, a mirror of another volume on this server is not a mirror of
                // itself after its failover.
                let departed = mirror.follower.as_ref().and_then(|known| known.departed.as_ref());
                let is_itself = departed.is_some_and(|departed| departed.volume == open.name)
                    && self.mirrors.is_of_this_server(&open.name, &mirror.name);
                if is_itself || source.as_deref() == Some(&*mirror.name) {
                    continue;
                }
                let base = mirror.base.as_ref().map(|base| format!("{}@{}", open.name, base.name));
                // Otherwise there are recorded changes for it, as for a mirror that holds no
                // snapshot here.
                let is_kept_for = base.is_some() || mirror.behind.is_some() || mirror.follower.is_none();
                if mirror.follower.is_some() && may_be(mirror.peer()) {
                    let peer = names.get(mirror.peer()).cloned();
                    followers.push(api::Follower { peer, ..follower(&open.name, &mirror, base) });
                } else if knows_all && is_kept_for {
                    leftovers.push(api::Leftover {
                        volume: open.name.clone(),
                        name: mirror.name.clone(),
                        base,
                        behind_bytes: mirror.behind.map_or(0, |behind| behind.blocks * BLOCK_SIZE as u64),
                    });
                }
            }
        }
        (followers, leftovers)
    }

    /// Releases the data that is kept for a mirror that will not come again.
    pub(crate) fn forget_follower(&self, volume: &str, name: &str) -> Result<(), ServerError> {
        self.followers.check_known()?;
        let open = self.volumes.get(volume)?;
        let failed = ServerError::volume(volume);
        let known = self.mirrors_of(&open).map_err(&failed)?;
        if !known.iter().any(|mirror| mirror.name == name) {
            return Err(ServerError::NotFound {
                what: "mirror",
                name: name.to_owned(),
                list: "cairn status --json",
            });
        }
        open.refuse_if_floor_leaves_no_room()?;
        self.source.forget(&open.volume, name).map_err(&failed)?;
        self.followers.keep(&self.source);
        Ok(())
    }
}
