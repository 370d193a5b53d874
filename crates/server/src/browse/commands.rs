//! Commands on the files of a volume: the methods of the server for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_api as api;
use cairn_files::{Tree, TreeError, path_bytes, path_text, quoted_path};

use crate::browse::downloads::{self, Sending, Source, Ticket};
use crate::browse::restoring::{Goal, Restoring, Stopped, find_goal};
use crate::browse::versions::{Instant, SNAPSHOTS_MAX, versions};
use crate::browse::{DOWNLOADS_MAX, entry, from_root, full_name, names_of, tree_of};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::exports::quotas::asked_path;
use crate::groups::Showing;
use crate::volumes::open::OpenVolume;

/// Names on a page of a listing.
const NAMES_MAX: u32 = 1000;

/// An answer with versions looks at no further snapshots after this time.
const VERSIONS_TIME: Duration = Duration::from_secs(4);

/// Why a download needs a place.
const DOWNLOADING: &str = "other downloads from it are under way";

impl Server {
    /// The tree at an instant, or as the volume is now. `None` if no file was ever stored.
    fn tree_at(&self, open: &Arc<OpenVolume>, at: Option<&str>) -> Result<Option<Arc<Tree>>, ServerError> {
        match at {
            Some(at) => Ok(tree_of(open, at)?.map(Arc::new)),
            None => self.tree_to_look_at(open),
        }
    }

    /// An image of an instant. That of the volume as it is now has all earlier writes.
    fn frozen_tree(&self, open: &Arc<OpenVolume>, at: Option<&str>) -> Result<Tree, ServerError> {
        let tree = match at {
            Some(at) => tree_of(open, at)?,
            None => {
                let image = match self.groups.showing(open)? {
                    Showing::Image(image) => image,
                    Showing::Newest => open.volume.image(None).map_err(ServerError::volume(&open.name))?,
                    Showing::Live => open.image_of(None)?,
                };
                match Tree::of_image(image) {
                    Err(TreeError::NoTree) => None,
                    tree => Some(tree.map_err(ServerError::tree(&open.name))?),
                }
            }
        };
        tree.ok_or_else(|| ServerError::tree(&full_name(&open.name, at))(TreeError::NoTree))
    }

    /// The names in a directory.
    pub(crate) fn list_files(
        &self,
        volume: &str,
        asked: &api::ListFiles,
    ) -> Result<api::FileListing, ServerError> {
        let open = self.volumes.get(volume)?;
        let path = asked_path(&asked.path, asked.path_bytes.as_deref())?;
        let names = names_of(&path)?;
        let whole = from_root(&names);
        let name = full_name(volume, asked.at.as_deref());
        let after = place_after(asked.after.as_deref())?;
        let mut listing = empty_listing(name.clone(), &whole);
        let Some(tree) = self.tree_at(&open, asked.at.as_deref())? else {
            return match names.is_empty() {
                true => Ok(listing),
                false => Err(self.failed_at(&name, &whole)(TreeError::NotFound)),
            };
        };
        list_directory(&tree, &names, &mut listing, after, asked.limit)
            .map_err(self.failed_at(&name, &whole))?;
        Ok(listing)
    }

    /// An error of a path, which the message names.
    pub(super) fn failed_at(&self, name: &str, path: &[u8]) -> impl Fn(TreeError) -> ServerError + use<> {
        let name = format!("{name}:{}", quoted_path(path));
        move |error| ServerError::tree(&name)(error)
    }

    /// The versions of a path over the snapshots, the newest first.
    pub(crate) fn file_versions(
        &self,
        volume: &str,
        asked: &api::ListVersions,
    ) -> Result<api::FileVersions, ServerError> {
        let open = self.volumes.get(volume)?;
        let path = asked_path(&asked.path, asked.path_bytes.as_deref())?;
        let names = names_of(&path)?;
        let mut snapshots: Vec<(String, u64)> = Vec::new();
        for snapshot in open.volume.snapshots().into_iter().rev() {
            snapshots.push((snapshot.name, snapshot.created.0 / 1_000_000));
        }
        let begin = match &asked.before {
            None => 0,
            Some(before) => {
                let found = snapshots.iter().position(|(name, _)| name == before);
                found.ok_or_else(|| open.no_snapshot(before))? + 1
            }
        };
        let end = (begin + SNAPSHOTS_MAX).min(snapshots.len());
        let now = asked.before.is_none().then_some(Instant { snapshot: None });
        let past = snapshots[begin..end].iter().map(|one| Instant { snapshot: Some(one.clone()) });
        let instants = now.into_iter().chain(past).collect();
        let name = names.last().copied().unwrap_or_default();
        let began = self.clock.monotonic();
        let is_late = || self.clock.monotonic().saturating_sub(began) > VERSIONS_TIME;
        let (versions, looked) =
            versions(&names.join(&b'/'), name, instants, is_late, |at| self.tree_at(&open, at));
        let end = begin + looked;
        let more = (looked > 0 && end < snapshots.len()).then(|| snapshots[end - 1].0.clone());
        Ok(api::FileVersions { path: path_text(&from_root(&names)), versions, more })
    }

    /// Begins to send a file, or a folder as a tar or zip file.
    pub(crate) fn send_files(&self, volume: &str, place: &api::FilePlace) -> Result<Sending, ServerError> {
        let open = self.volumes.get(volume)?;
        let path = asked_path(&place.path, place.path_bytes.as_deref())?;
        let names = names_of(&path)?;
        let taken = self.browsing.downloads.take(volume, DOWNLOADS_MAX, DOWNLOADING)?;
        let tree = self.frozen_tree(&open, place.at.as_deref())?;
        let name = full_name(volume, place.at.as_deref());
        let failed = self.failed_at(&name, &from_root(&names));
        let (stat, file) = downloads::find(&tree, &names, &name).map_err(failed)?;
        let subject = format!("{name}:{}", quoted_path(&from_root(&names)));
        downloads::begin(tree, stat, file, place.archive.unwrap_or_default(), subject, taken)
    }

    /// Prepares a download: a URL that works once, without other credentials.
    pub(crate) fn prepare_download(
        &self,
        volume: &str,
        place: api::FilePlace,
        token: Option<String>,
    ) -> Result<api::Download, ServerError> {
        let open = self.volumes.get(volume)?;
        let path = asked_path(&place.path, place.path_bytes.as_deref())?;
        let names = names_of(&path)?;
        let name = full_name(volume, place.at.as_deref());
        let failed = self.failed_at(&name, &from_root(&names));
        let tree = self.tree_at(&open, place.at.as_deref())?.ok_or_else(|| failed(TreeError::NotFound))?;
        let (stat, file) = downloads::find(&tree, &names, &name).map_err(failed)?;
        let (file_name, bytes) = downloads::shape(&stat, &file, place.archive.unwrap_or_default())?;
        let secret = self.browsing.tickets.make(
            Source::Volume(volume.to_owned()),
            place,
            token,
            self.clock.monotonic(),
        )?;
        Ok(api::Download { url: format!("/download/{secret}"), file_name: path_text(&file_name), bytes })
    }

    /// Begins a prepared download. `None` for a URL that does not work, or no longer.
    pub(crate) fn begin_download(&self, secret: &str) -> Result<Option<Sending>, ServerError> {
        let ticket = self.browsing.tickets.take(secret, self.clock.monotonic());
        // The token may have been revoked since then.
        let may = |token: &Option<String>| token.as_ref().is_none_or(|token| self.actor(token).is_some());
        let ticket = ticket.filter(|ticket| may(&ticket.token));
        let send = |ticket: Ticket| match &ticket.source {
            Source::Volume(volume) => self.send_files(volume, &ticket.place),
            Source::Dump(..) | Source::FolderDump(..) => self.send_dump_files(&ticket.source, &ticket.place),
        };
        ticket.map(send).transpose()
    }

    /// The image, the live tree and the place of a restore.
    fn restore_of(
        &self,
        open: &Arc<OpenVolume>,
        request: &api::RestoreFiles,
    ) -> Result<(Tree, Arc<Tree>, cairn_files::Stat, Goal), ServerError> {
        open.refuse_without_room()?;
        let path = asked_path(&request.path, request.path_bytes.as_deref())?;
        let names = names_of(&path)?;
        let full = full_name(&open.name, Some(&request.at));
        let image = self.frozen_tree(open, Some(&request.at))?;
        let live = open.live_tree()?;
        let failed = self.failed_at(&full, &from_root(&names));
        let stat = image.resolve(&names.join(&b'/')).map_err(failed)?;
        let goal = find_goal(&image, &live, &names, &request.at);
        let goal = goal.map_err(|stopped| stopped_error(&full, &open.name, stopped))?;
        Ok((image, live, stat, goal))
    }

    /// The name that a restore would give, and whether the original one is taken.
    pub(crate) fn plan_restore(
        &self,
        volume: &str,
        request: &api::RestoreFiles,
    ) -> Result<api::RestoredFiles, ServerError> {
        let open = self.writable(volume)?;
        let (_, _, _, goal) = self.restore_of(&open, request)?;
        Ok(restored(&goal.names, goal.beside, 0, 0))
    }

    /// Begins to restore a file or a folder beside the present one.
    pub(crate) fn restore_files(
        self: &Arc<Self>,
        volume: &str,
        request: api::RestoreFiles,
    ) -> Result<api::Job, ServerError> {
        let open = self.writable(volume)?;
        let (image, live, stat, goal) = self.restore_of(&open, &request)?;
        self.jobs.start("file restore", volume, move |progress| {
            progress.phase("copying");
            let total = if stat.kind == cairn_files::NodeKind::File { stat.bytes } else { 0 };
            progress.bytes(0, total);
            let beside = goal.beside;
            let mut restoring = Restoring {
                image: &image,
                live: &live,
                progress,
                forget: &|directory, name| open.forget_name(directory, name),
                linked: HashMap::new(),
                files: 0,
                bytes: 0,
                total,
            };
            let full = full_name(&open.name, Some(&request.at));
            let names = restoring.run(&stat, goal, &request.at);
            let names = names.map_err(|stopped| stopped_error(&full, &open.name, stopped))?;
            let done = restored(&names, beside, restoring.files, restoring.bytes);
            tracing::info!(
                from = full,
                to = done.path,
                files = done.files,
                bytes = done.bytes,
                "restored files"
            );
            Ok(Some(api::JobOutcome::FileRestore(done)))
        })
    }
}

/// A listing without names.
pub(super) fn empty_listing(name: String, path: &[u8]) -> api::FileListing {
    api::FileListing {
        name,
        path: path_text(path),
        path_bytes: path_bytes(path),
        entries: Vec::new(),
        more: None,
    }
}

/// Where a page of a listing begins.
pub(super) fn place_after(after: Option<&str>) -> Result<u64, ServerError> {
    let Some(after) = after else { return Ok(0) };
    after.parse().map_err(|_| ServerError::Invalid {
        fault: "`after` is not the `more` of a listing",
        next: "begin the listing again, without `after`",
    })
}

/// The name of a downloaded dump, without its place.
pub(super) fn root_name(of: &str) -> &str {
    of.rsplit('/').next().unwrap_or(of)
}

/// Appends a page of the names in a directory.
pub(super) fn list_directory(
    tree: &Tree,
    names: &[&[u8]],
    listing: &mut api::FileListing,
    after: u64,
    limit: Option<u32>,
) -> Result<(), TreeError> {
    let directory = tree.resolve(&names.join(&b'/'))?.file;
    let limit = limit.unwrap_or(NAMES_MAX).clamp(1, NAMES_MAX) as usize;
    let found = tree.read_directory(directory, after, limit)?;
    listing.more = found.last().filter(|_| found.len() == limit).map(|last| last.cookie.to_string());
    let is_name = |name: &[u8]| name != b"." && name != b"..";
    for found in found.into_iter().filter(|found| is_name(&found.name)) {
        match tree.stat(found.file) {
            Ok(stat) => listing.entries.push(entry(tree, &found.name, &stat)),
            // It was deleted meanwhile.
            Err(TreeError::NotFound) if !tree.is_read_only() => {}
            Err(error) => listing.entries.push(api::FileEntry {
                name: path_text(&found.name),
                name_bytes: path_bytes(&found.name),
                kind: super::kind(found.kind),
                number: found.file.0,
                bytes: 0,
                modified_ms: 0,
                mode: 0,
                uid: 0,
                gid: 0,
                target: None,
                problem: Some(error.to_string()),
            }),
        }
    }
    Ok(())
}

fn restored(names: &[Vec<u8>], beside: bool, files: u64, bytes: u64) -> api::RestoredFiles {
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let path = from_root(&names);
    api::RestoredFiles { path: path_text(&path), path_bytes: path_bytes(&path), beside, files, bytes }
}

fn stopped_error(image: &str, volume: &str, stopped: Stopped) -> ServerError {
    match stopped {
        Stopped::Cancelled => ServerError::Cancelled,
        Stopped::Reading(error) => ServerError::tree(image)(error),
        Stopped::Writing(error) => ServerError::tree(volume)(error),
    }
}
