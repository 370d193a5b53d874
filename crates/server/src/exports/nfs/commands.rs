//! Commands on exports over NFS: the methods of the server for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_api as api;
use cairn_base::VolumeId;
use cairn_frontend_nfs::{KEY_BYTES, Registered, SessionInfo, Totals};

use super::{Exported, NfsDocument, NfsTable, Record, key_in, put_key, to_hex};
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::exports::commands::activity;
use crate::exports::error::ExportsError;
use crate::names;
use crate::peers::token::random_bytes;
use crate::state;

/// How long the end of an export waits for requests of clients that have begun.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

impl NfsTable {
    /// Refuses a change that would remove files in use by clients.
    pub(crate) fn refuse_if_exported(
        &self,
        concerned: impl Fn(&str, Option<&str>) -> bool,
    ) -> Result<(), ServerError> {
        match self.of_volume(concerned) {
            None => Ok(()),
            Some(name) => Err(ServerError::Exports(ExportsError::ExportedOverNfs { name })),
        }
    }

    /// Whether some of a volume is exported.
    pub(crate) fn has(&self, concerned: impl Fn(&str, Option<&str>) -> bool) -> bool {
        self.of_volume(concerned).is_some()
    }

    fn save(&self, exports: &[Arc<Exported>]) -> Result<(), ServerError> {
        let exports = exports.iter().map(|export| export.record.clone()).collect();
        state::save(&self.path, &NfsDocument { exports })
    }

    /// The key of a new export, and whether the volume has it.
    fn key_for(&self, record: &Record, in_volume: Option<[u8; KEY_BYTES]>) -> [u8; KEY_BYTES] {
        let of = record.of();
        let known = self.common.keys.lock().iter().find(|(other, _)| *other == of).map(|(_, key)| *key);
        match known.or(in_volume) {
            Some(key) if !self.common.is_taken(&key, &of) => key,
            _ => random_bytes(),
        }
    }
}

/// The path of an export in one form: `/` or `/PATH`.
fn clean(path: &str) -> Result<String, ServerError> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let is_bad = |part: &&str| matches!(*part, "." | ".." | ".snapshot") || part.contains('\0');
    if !path.starts_with('/') || parts.iter().any(is_bad) {
        return Err(ServerError::Invalid {
            fault: "the path of the export is not the path of a directory of the volume",
            next: "name it from the root of the volume's files: cairn export set VOLUME:/PATH --nfs",
        });
    }
    Ok(format!("/{}", parts.join("/")))
}

impl Server {
    /// Mounts on this machine, unless clients have the same files over NFS.
    pub(crate) fn create_mount(&self, request: &api::CreateMount) -> Result<api::Mount, ServerError> {
        let _deciding = self.nfs_exports.deciding.lock();
        if request.snapshot.is_none() {
            let volume = &request.volume;
            self.nfs_exports.refuse_if_exported(|of, snapshot| of == volume && snapshot.is_none())?;
        }
        self.mounts.create(request)
    }

    /// The exports over NFS.
    pub(crate) fn list_nfs(&self) -> Vec<api::NfsExport> {
        let (sessions, totals) = (self.nfs.sessions(), self.nfs.totals());
        let show = |export: &Arc<Exported>| {
            let mine = sessions.iter().filter(|session| session.export == export.name);
            let totals = totals.get(&export.name).copied().unwrap_or_default();
            self.show_nfs(export, mine.map(show_session).collect(), totals)
        };
        self.nfs_exports.all_mine().iter().map(show).collect()
    }

    fn show_nfs(&self, export: &Exported, sessions: Vec<api::Session>, totals: Totals) -> api::NfsExport {
        // Not by a look at the files: that could wait for room in a history.
        let open = self.volumes.get(&export.record.volume);
        let takes_writes =
            export.record.snapshot.is_none() && open.as_ref().is_ok_and(|open| self.groups.is_live(open));
        let problem = open.err().map(|error| error.to_string()).or_else(|| export.problem.lock().clone());
        let is_registered = self.nfs.registered() == Registered::Yes;
        let mount = |address: &String| {
            let address = names::from_elsewhere(address);
            let (host, port) = address.rsplit_once(':').unwrap_or((&address, "2049"));
            // The kernel of a client finds the lock manager by the port mapper alone.
            let locks = if is_registered { "" } else { ",nolock" };
            format!(
                "mount -t nfs -o vers=3,tcp,port={port},mountport={port}{locks} {host}:{} /mnt",
                export.client_path
            )
        };
        api::NfsExport {
            name: export.name.clone(),
            path: export.client_path.clone(),
            read_only: export.record.read_only || !takes_writes,
            squash: export.record.squash,
            networks: export.record.networks.clone(),
            mounts: self.nfs.addresses().iter().map(mount).collect(),
            problem,
            sessions,
            totals: api::ExportTotals {
                requests: totals.requests,
                read_bytes: totals.read_bytes,
                written_bytes: totals.written_bytes,
            },
        }
    }

    /// Exports a directory, or changes its export.
    pub(crate) fn set_nfs(&self, volume: &str, request: &api::SetNfs) -> Result<api::NfsExport, ServerError> {
        let table = &self.nfs_exports;
        state::refuse_unread(table.unread.lock().as_ref())?;
        let path = clean(&request.path)?;
        let snapshot = request.snapshot.as_deref();
        let open = self.volumes.get(volume)?;
        let _deciding = table.deciding.lock();
        if snapshot.is_none() {
            self.mounts.refuse_if_mounted(volume, |of, snapshot| of == volume && snapshot.is_none())?;
            self.mounts.refuse_if_left(volume)?;
        }
        let mut exports = table.all_mine();
        let index = exports.iter().position(|export| export.record.is(volume, snapshot, &path));
        let before = index.map(|index| exports[index].clone());
        let mut record = match &before {
            Some(export) => export.record.clone(),
            None => Record {
                volume: volume.to_owned(),
                snapshot: request.snapshot.clone(),
                path,
                read_only: false,
                squash: api::NfsSquash::Root,
                networks: Vec::new(),
                id: String::new(),
                key: String::new(),
            },
        };
        let VolumeId(id) = open.volume.id();
        record.id = to_hex(&id);
        record.read_only = request.read_only.unwrap_or(record.read_only);
        record.squash = request.squash.unwrap_or(record.squash);
        record.networks = request.networks.clone().unwrap_or(record.networks);
        if record.key.is_empty() {
            record.key = to_hex(&random_bytes::<KEY_BYTES>());
        }
        for network in &record.networks {
            network.parse::<super::Network>()?;
        }
        let make = |record: Record| Exported::new(record, table.common.clone()).ok_or(ServerError::Bug);
        let mut new = make(record.clone())?;
        // Opens the files, and refuses a path that is not there.
        let tree = new.tree(&open, None)?;
        new.show_only(&tree)?;
        if before.is_none() {
            record.key = to_hex(&table.key_for(&record, key_in(&tree)));
            new = make(record)?;
            if !tree.is_read_only() && key_in(&tree) != Some(new.key) {
                put_key(&tree, &new.key, &new.name);
                tree.sync_all().map_err(ServerError::tree(&new.name))?;
            }
        }
        new.look()?;
        let new = Arc::new(new);
        match index {
            Some(index) => exports[index] = new.clone(),
            None => exports.push(new.clone()),
        }
        table.save(&exports)?;
        table.put(exports);
        // Requests by the earlier rules end before the new ones are reported.
        if let Some(before) = before {
            wait_for(before);
        }
        tracing::info!(export = new.name, "exported files over NFS, or changed that export");
        Ok(self.show_nfs(&new, Vec::new(), Totals::default()))
    }

    /// Ends the export of a directory. When it returns, no request of a client can change it any
    /// more.
    pub(crate) fn remove_nfs(&self, volume: &str, request: &api::RemoveNfs) -> Result<(), ServerError> {
        let table = &self.nfs_exports;
        state::refuse_unread(table.unread.lock().as_ref())?;
        let path = clean(&request.path)?;
        let _deciding = table.deciding.lock();
        let mut exports = table.all_mine();
        let is_it = |export: &Arc<Exported>| export.record.is(volume, request.snapshot.as_deref(), &path);
        let index = exports.iter().position(is_it).ok_or_else(|| ServerError::NotFound {
            what: "NFS export",
            name: format!("{volume}:{path}"),
            list: "cairn export list",
        })?;
        let gone = exports.remove(index);
        table.save(&exports)?;
        table.put(exports);
        drop(gone.kept.lock().take());
        tracing::info!(export = gone.name, "ended an export over NFS");
        wait_for(gone);
        Ok(())
    }

    /// The entries in the port mapper, where clients may miss them.
    pub(crate) fn nfs_notes(&self) -> Vec<api::Problem> {
        if self.nfs_exports.all_mine().is_empty() {
            return Vec::new();
        }
        let (message, next) = match self.nfs.registered() {
            Registered::Off | Registered::Pending | Registered::Yes => return Vec::new(),
            Registered::NoPortMapper => (
                "no port mapper runs here: NFS clients name the port, and have locks of their own alone"
                    .to_owned(),
                "install and start rpcbind, so that clients have common locks".to_owned(),
            ),
            Registered::Without(names) => (
                format!(
                    "the port mapper has other programs for {}, so NFS clients do not find this server",
                    names.join(", ")
                ),
                "stop the other NFS server (see `rpcinfo -p`), or mount with the printed ports and `nolock`"
                    .to_owned(),
            ),
        };
        vec![api::Problem { subject: "NFS".to_owned(), message, next }]
    }

    /// Exports that show no files.
    pub(crate) fn nfs_problems(&self) -> Vec<api::Problem> {
        let problem = |export: &Arc<Exported>| {
            let problem = export.problem.lock().clone()?;
            Some(api::Problem {
                subject: export.name.clone(),
                message: format!("NFS clients wait, as the export shows no files: {problem}"),
                next: format!(
                    "check `cairn volume list`; or end the export: cairn export set {} --no-nfs",
                    export.name
                ),
            })
        };
        self.nfs_exports.all_mine().iter().filter_map(problem).collect()
    }
}

impl Exported {
    /// Checks that there is a directory to show.
    fn show_only(&self, tree: &cairn_files::Tree) -> Result<(), ServerError> {
        let failed = ServerError::tree(&self.name);
        let found = tree.resolve(self.record.path.as_bytes()).map_err(&failed)?;
        match found.kind {
            cairn_files::NodeKind::Directory => Ok(()),
            _ => Err(failed(cairn_files::TreeError::NotDirectory)),
        }
    }
}

/// Waits until no request uses an export that is in the table no more.
fn wait_for(export: Arc<Exported>) {
    let deadline = Instant::now() + PATIENCE;
    while Arc::strong_count(&export) > 1 {
        if Instant::now() >= deadline {
            tracing::warn!(
                export = export.name,
                "requests of NFS clients to an earlier export have not ended"
            );
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

fn show_session(session: &SessionInfo) -> api::Session {
    api::Session {
        id: session.id,
        peer: session.peer.clone(),
        requests: session.totals.requests,
        read_bytes: session.totals.read_bytes,
        written_bytes: session.totals.written_bytes,
        activity: activity(session.activity),
        initiator: None,
        parameters: None,
    }
}
