//! Mirrors that begin with a volume of this server instead of a baseline: a restored image dump, an
//! old copy of a destination, or any volume that has a snapshot in common with its source.
//!
//! It is a resync with a source that is new to the volume. The base is the newest snapshot that
//! both sides have with the same number and the same digest of its tree; nothing is sent before
//! that is known. The volume then shows its own state, read-only, until the first image is
//! committed on top of it in one superblock write.
//!
//! The state after a crash, step by step:
//!
//! | after | state | next |
//! |---|---|---|
//! | the connection | the volume takes writes; the source knows this server | the same command |
//! | `mirror.json` was written | the volume takes writes | the same command, or `mirror resync` |
//! | the role was changed | it shows its own state, and no decision is saved | `mirror resync` |
//! | the decision was written | the same, given up | the schedule or `mirror update`, with what has arrived |
//! | the image was committed | a mirror | |

use std::sync::Arc;

use cairn_api as api;
use cairn_base::{BLOCK_SIZE, ByteSize, VolumeId};
use cairn_mirror::{Client, Compression, Destination, MirrorError, Provision, Relationship, Standing};
use cairn_volume::{Divergence, Role};

use super::{BLOCK, Mirrors, commands, is_lost};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::Relation;
use crate::mirrors::document::{MirrorDocument, now_ms};
use crate::mirrors::error::MirrorsError;
use crate::mirrors::role_error::RoleError;
use crate::peers::outbound::{SourceStream, connect, hang_up};
use crate::volumes::open::OpenVolume;
use crate::work::jobs::Progress;

/// Bytes of a checksum on the wire.
const CHECKSUM: u64 = 16;

impl Server {
    /// The bytes that the creation of a mirror would send.
    pub(crate) fn plan_mirror(&self, request: &api::CreateMirror) -> Result<api::MirrorPlan, ServerError> {
        let name = request.name_here();
        let document = self.document_of(request)?;
        let open = match &request.seed {
            Some(seed) => Some(self.check_seed(name, request, seed)?),
            None => self.refuse_taken_destination(name).map(|()| None)?,
        };
        let (mut stream, wanted) = self.look_at_source(name, &document)?;
        let mut plan = api::MirrorPlan {
            name: name.to_owned(),
            volume: request.volume.clone(),
            address: document.address.clone(),
            full_bytes: wanted.used * BLOCK,
            changed_bytes: Some(wanted.used * BLOCK),
            compare_bytes: None,
            divergence: None,
        };
        if let Some(open) = open {
            refuse_other(name, &document, &open, wanted.id)?;
            let failed = |source| failed(name, source);
            let mut client = Client::hello(&mut stream).map_err(failed)?;
            let relationship = Relationship(document.relationship);
            let volume = open.volume.clone();
            let asks = Destination::new(volume, &document.volume, relationship, Compression::None, None);
            let standing = asks.standing(&mut client, None).map_err(failed)?;
            let divergence = asks.divergence(&standing).map_err(failed)?;
            let base = divergence.common.as_ref().map(|common| common.id);
            let status = base.map(|base| asks.price_from(&mut client, base)).transpose().map_err(failed)?;
            plan.changed_bytes = status.map(|status| status.blocks_behind * BLOCK);
            plan.compare_bytes = base.is_none().then_some(divergence.blocks * CHECKSUM);
            plan.divergence = Some(commands::described(name, &document, &standing, &divergence));
        }
        hang_up(&mut stream);
        Ok(plan)
    }

    /// Makes a volume of this server the mirror.
    pub(in crate::mirrors) fn seed_mirror(
        &self,
        name: &str,
        request: &api::CreateMirror,
        seed: &api::SeedMirror,
        document: MirrorDocument,
    ) -> Result<api::Job, ServerError> {
        let open = self.check_seed(name, request, seed)?;
        let (mut stream, wanted) = self.look_at_source(name, &document)?;
        hang_up(&mut stream);
        refuse_other(name, &document, &open, wanted.id)?;
        let wish = wish_of(seed);
        let path = self.volumes.folder(name).join("mirror.json");
        let relation = Arc::new(Relation::new(&open, path, document, now_ms(&*self.clock)));
        {
            // Shared with `mirror resync`: one command at a time makes the volume follow.
            let mut pending = self.mirrors.pending.lock();
            pending.retain(|_, relation| relation.strong_count() > 0);
            if pending.contains_key(name) {
                let by = "another command makes it follow a source";
                return Err(ServerError::Busy { name: name.to_owned(), by });
            }
            pending.insert(name.to_owned(), Arc::downgrade(&relation));
        }
        self.mirrors.start(
            &relation,
            "mirror create",
            |_| Ok(()),
            move |mirrors, relation, open, progress| mirrors.seed(relation, open, progress, &wish),
        )
    }

    /// The volume that is to become a mirror. Everything that can be refused without the source is.
    fn check_seed(
        &self,
        name: &str,
        request: &api::CreateMirror,
        seed: &api::SeedMirror,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        self.refuse_nonsense(&wish_of(seed))?;
        if !request.devices.is_empty() || request.log_device.is_some() || request.history.is_some() {
            return Err(ServerError::Invalid {
                fault: "a volume that becomes a mirror keeps its disks and its history",
                next: "leave out --device, --log-device and the options of the history",
            });
        }
        self.mirrors.check_known(name)?;
        let open = self.volumes.get(name)?;
        if self.mirrors.get(name).is_ok_and(|known| !known.is_failed_over()) {
            return Err(RoleError::SeedFollows { volume: name.to_owned() }.into());
        }
        open.refuse_read_only_image()?;
        if !open.is_local() {
            return Err(ServerError::Invalid {
                fault: "the volume still reads blocks of an image in a bucket",
                next: "wait until `cairn volume show` says that all of it is local, then create the mirror",
            });
        }
        self.check_follow(name, false)?;
        Ok(open)
    }

    /// Connects to the source, which uses the token, and asks for the properties of its volume.
    fn look_at_source(
        &self,
        name: &str,
        document: &MirrorDocument,
    ) -> Result<(SourceStream, Provision), ServerError> {
        let patience = document.stall(self.mirrors.patience);
        let mut stream = connect(&self.identity, &document.source(), patience, &|_| ())?;
        let wanted =
            Client::hello(&mut stream).and_then(|mut client| client.provision_info(&document.volume));
        Ok((stream, wanted.map_err(|source| failed(name, source))?))
    }
}

impl Mirrors {
    /// Makes a volume follow a source that is new to it, after the decision about its own data.
    fn seed(
        &self,
        relation: &Arc<Relation>,
        open: &Arc<OpenVolume>,
        progress: &Progress,
        wish: &api::ResyncRequest,
    ) -> Result<(), ServerError> {
        progress.phase("comparing with the source");
        let (standing, divergence) = self.compare_sides(relation)?;
        let lost: Vec<_> = divergence.snapshots.iter().map(|snapshot| snapshot.id).collect();
        self.refuse_losing(&relation.name, &lost)?;
        refuse_stale(relation, (&standing, &divergence), wish)?;
        refuse_diverged(relation, &divergence, wish)?;
        let shows_image = open.volume.status().role == Role::Destination && open.volume.own_head().is_none();
        if shows_image {
            // A copy of a destination's disk: no role has to change.
            self.take_place(relation)?;
        }
        self.follow_other(relation, open, progress, wish)
    }
}

/// Refuses a volume that has nothing in common with the source, unless the user asked for a
/// comparison.
fn refuse_stale(
    relation: &Relation,
    (standing, divergence): (&Standing, &Divergence),
    wish: &api::ResyncRequest,
) -> Result<(), ServerError> {
    if divergence.common.is_some() || wish.compare {
        return Ok(());
    }
    let snapshots = relation.destination.volume().snapshots();
    let stale = RoleError::SeedStale {
        volume: relation.name.clone(),
        snapshot: snapshots.last().map(|snapshot| snapshot.name.clone()),
        compare: ByteSize(divergence.blocks * CHECKSUM),
        data_max: ByteSize(standing.used * BLOCK_SIZE as u64),
    };
    Err(stale.into())
}

/// Refuses a volume that has content of its own, unless the user decided about that.
fn refuse_diverged(
    relation: &Relation,
    divergence: &Divergence,
    wish: &api::ResyncRequest,
) -> Result<(), ServerError> {
    if !is_lost(divergence) || wish.spill.is_some() || wish.discard {
        return Ok(());
    }
    let diverged = RoleError::SeedDiverged {
        volume: relation.name.clone(),
        common: divergence.common.as_ref().map(|common| common.name.clone()),
        bytes: ByteSize(divergence.blocks * BLOCK),
        snapshots: divergence.snapshots.iter().map(|snapshot| snapshot.name.clone()).collect(),
    };
    Err(diverged.into())
}

/// Refuses a volume that is not the source's.
fn refuse_other(
    name: &str,
    document: &MirrorDocument,
    open: &OpenVolume,
    wanted: VolumeId,
) -> Result<(), ServerError> {
    match open.volume.id() == wanted {
        true => Ok(()),
        false => {
            Err(RoleError::SeedIsOther { volume: name.to_owned(), there: document.volume.clone() }.into())
        }
    }
}

fn wish_of(seed: &api::SeedMirror) -> api::ResyncRequest {
    let api::SeedMirror { spill, discard, compare } = seed.clone();
    api::ResyncRequest { spill, discard, compare, ..api::ResyncRequest::default() }
}

fn failed(name: &str, source: MirrorError) -> ServerError {
    ServerError::Mirrors(MirrorsError::Mirror { volume: name.to_owned(), source: Box::new(source) })
}
