//! Commands on the files inside image dumps, in buckets and in folders: the methods of the server
//! for them. Nothing is restored.

use cairn_api as api;
use cairn_files::{Tree, path_text, quoted_path};

use crate::browse::commands::{empty_listing, list_directory, place_after, root_name};
use crate::browse::downloads::{self, Sending, Source};
use crate::browse::{DOWNLOADS_MAX, from_root, names_of};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::exports::quotas::asked_path;

/// Why a download needs a place.
const DOWNLOADING: &str = "other downloads from it are under way";

impl Source {
    /// A dump in a bucket, as people name it there.
    pub(crate) fn in_bucket(bucket: &str, of: &str) -> Self {
        Self::Dump(bucket.to_owned(), of.to_owned())
    }

    /// A dump in a folder, by its id.
    pub(crate) fn in_folder(folder: &str, id: &str) -> Self {
        Self::FolderDump(folder.to_owned(), id.to_owned())
    }

    /// For errors and for the audit log.
    fn name(&self) -> String {
        match self {
            Self::Volume(name) => name.clone(),
            Self::Dump(bucket, of) => format!("{bucket}:{of}"),
            Self::FolderDump(folder, id) => format!("{folder}: dump {id}"),
        }
    }

    /// The name of the root as a file that arrives.
    fn root_name(&self) -> &str {
        match self {
            Self::Volume(name) => name,
            Self::Dump(_, of) | Self::FolderDump(_, of) => root_name(of),
        }
    }
}

impl Server {
    fn dump_tree(&self, source: &Source, at: Option<&str>) -> Result<Tree, ServerError> {
        let dumps = &self.browsing.dumps;
        match source {
            Source::Dump(bucket, of) => dumps.tree(&self.buckets, &self.clock, (bucket, of), at),
            Source::FolderDump(folder, id) => {
                dumps.tree_in_folder(&self.dump_folders, &self.clock, (folder, id), at)
            }
            Source::Volume(_) => Err(ServerError::Bug),
        }
    }

    /// The names in a directory inside an image dump.
    pub(crate) fn list_dump_files(
        &self,
        source: &Source,
        asked: &api::ListDumpFiles,
    ) -> Result<api::FileListing, ServerError> {
        let path = asked_path(&asked.path, asked.path_bytes.as_deref())?;
        let names = names_of(&path)?;
        let whole = from_root(&names);
        let name = source.name();
        let tree = self.dump_tree(source, asked.at.as_deref())?;
        let mut listing = empty_listing(name.clone(), &whole);
        list_directory(&tree, &names, &mut listing, place_after(asked.after.as_deref())?, asked.limit)
            .map_err(self.failed_at(&name, &whole))?;
        Ok(listing)
    }

    /// Begins to send a file, or a folder as a tar or zip file, out of an image dump.
    pub(crate) fn send_dump_files(
        &self,
        source: &Source,
        place: &api::FilePlace,
    ) -> Result<Sending, ServerError> {
        let path = asked_path(&place.path, place.path_bytes.as_deref())?;
        let names = names_of(&path)?;
        let name = source.name();
        let taken = self.browsing.downloads.take(&name, DOWNLOADS_MAX, DOWNLOADING)?;
        let tree = self.dump_tree(source, place.at.as_deref())?;
        let failed = self.failed_at(&name, &from_root(&names));
        let (stat, file) = downloads::find(&tree, &names, source.root_name()).map_err(failed)?;
        let subject = format!("{name}:{}", quoted_path(&from_root(&names)));
        downloads::begin(tree, stat, file, place.archive.unwrap_or_default(), subject, taken)
    }

    /// Prepares a download out of an image dump.
    pub(crate) fn prepare_dump_download(
        &self,
        source: Source,
        place: api::FilePlace,
        token: Option<String>,
    ) -> Result<api::Download, ServerError> {
        let path = asked_path(&place.path, place.path_bytes.as_deref())?;
        let names = names_of(&path)?;
        let tree = self.dump_tree(&source, place.at.as_deref())?;
        let failed = self.failed_at(&source.name(), &from_root(&names));
        let (stat, file) = downloads::find(&tree, &names, source.root_name()).map_err(failed)?;
        let (file_name, bytes) = downloads::shape(&stat, &file, place.archive.unwrap_or_default())?;
        let secret = self.browsing.tickets.make(source, place, token, self.clock.monotonic())?;
        Ok(api::Download { url: format!("/download/{secret}"), file_name: path_text(&file_name), bytes })
    }
}
