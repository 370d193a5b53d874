//! `cairn image mount`: the LUNs in a dump over NBD, read-only, without restoring it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_api::remedy::io_kind;
use cairn_api::{ErrorBody, ErrorKind, tcp_uri, unix_uri};
use cairn_device::SystemClock;
use cairn_files::{FilesError, Luns};
use cairn_frontend_nbd::{
    Address, Export, ExportInfo, Exports, ListenError, Listener, NbdServer, OpenExportError, ServerOptions,
};
use cairn_stream::{DumpError, OpenDump, PartIndex};
use cairn_volume::{Image, VolumeError};

use super::bucket::Chain;
use super::{bucket, files};
use crate::arguments::MountImage;
use crate::exit::Failure;
use crate::output::{Output, note_line, print_line, size, table};

/// Memory for blocks that were read.
const CACHE_BYTES: u64 = 64 << 20;

/// Where dumps are read.
pub enum Dumps<'a> {
    /// In files.
    Files(&'a [PathBuf]),
    /// In a bucket.
    Bucket(Chain),
}

impl Dumps<'_> {
    /// The index of each part.
    pub fn index(&self) -> Result<Vec<PartIndex>, Failure> {
        match self {
            Dumps::Files(paths) => open_files(paths),
            Dumps::Bucket(chain) => chain.index(),
        }
    }
}

/// The index of each file.
pub fn open_files(paths: &[PathBuf]) -> Result<Vec<PartIndex>, Failure> {
    let open = |path: &PathBuf| {
        let file = std::fs::File::open(path).map_err(|error| files::opening(path, &error))?;
        if !file.metadata()?.is_file() {
            return Err(Failure::new(
                ErrorKind::Usage,
                format!("{} is not a regular file, and mounting a dump needs random access", path.display()),
                "copy it into a file first, or restore it with `cairn image restore NEWVOLUME -`",
            ));
        }
        PartIndex::open(&path.display().to_string(), Arc::new(file)).map_err(dump_failure)
    };
    paths.iter().map(open).collect()
}

/// Whether a file begins as dumps do.
pub fn is_dump(path: &Path) -> bool {
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    is_file && open_files(&[path.to_owned()]).is_ok()
}

/// An error of a dump as the API would tell it.
pub fn dump_failure(error: DumpError) -> Failure {
    if let DumpError::Read { file, source } = &error
        && let Some(said) = bucket::said(source)
    {
        return Failure::new(said.error, format!("{file}: {}", said.message), &said.next);
    }
    ErrorBody::from(error).into()
}

/// The server of a dump can't start.
fn not_served(kind: ErrorKind, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(kind, error, "choose another address with --nbd, or `--nbd off`")
}

fn listen_kind(error: &ListenError) -> ErrorKind {
    match error {
        ListenError::InUse { .. } | ListenError::NotASocket { .. } => ErrorKind::PortTaken,
        ListenError::NotPermitted { .. } => ErrorKind::ReadOnly,
        ListenError::PathTooLong { .. } => ErrorKind::Usage,
        ListenError::Failed { source, .. } => io_kind(source),
    }
}

/// Opens the volume in dumps.
pub fn open_dump(parts: Vec<PartIndex>, without_base: bool, damaged: bool) -> Result<OpenDump, Failure> {
    OpenDump::open(parts, without_base, damaged, Arc::new(SystemClock::new()), CACHE_BYTES)
        .map_err(dump_failure)
}

/// A LUN in a dump.
pub struct DumpLun {
    /// `VOLUME/LUN` or `VOLUME@SNAPSHOT/LUN`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// The content of a dump, as NBD clients open it.
pub struct DumpExports {
    dump: OpenDump,
    luns: Luns,
}

impl DumpExports {
    /// The LUNs of the target and of every snapshot.
    pub fn new(dump: OpenDump) -> Self {
        let luns = Luns::new(dump.volume.clone());
        Self { dump, luns }
    }

    /// All LUNs of the target, then those of each snapshot, without the unreadable ones.
    pub fn luns(&self) -> Vec<DumpLun> {
        let volume = &self.dump.name;
        let mut all = Vec::new();
        let mut list = |image: Result<Image, VolumeError>, prefix: String| {
            let Ok(image) = image else { return };
            for lun in self.luns.readable_in(&image).unwrap_or_default() {
                all.push(DumpLun { name: format!("{prefix}/{}", lun.name), bytes: lun.bytes });
            }
        };
        list(self.dump.volume.image(None), volume.clone());
        for snapshot in self.dump.volume.snapshots() {
            list(self.dump.volume.image(Some(snapshot.id)), format!("{volume}@{}", snapshot.name));
        }
        all
    }

    /// The image for the part of an export's name before the `/`.
    fn image(&self, of: &str) -> Option<Result<Image, VolumeError>> {
        let rest = of.strip_prefix(&self.dump.name)?;
        if rest.is_empty() {
            return Some(self.dump.volume.image(None));
        }
        let snapshot = self.dump.volume.snapshot_named(rest.strip_prefix('@')?)?;
        Some(self.dump.volume.image(Some(snapshot.id)))
    }
}

impl Exports for DumpExports {
    fn list(&self) -> Vec<ExportInfo> {
        let info =
            |lun: DumpLun| ExportInfo { name: lun.name, description: "image dump, read-only".to_owned() };
        self.luns().into_iter().map(info).collect()
    }

    fn default_export(&self) -> Result<String, OpenExportError> {
        let present = format!("{}/", self.dump.name);
        let names: Vec<String> = self.luns().into_iter().map(|lun| lun.name).collect();
        let mut present = names.iter().filter(|name| name.starts_with(&present));
        match (present.next(), present.next()) {
            (Some(one), None) => Ok(one.clone()),
            _ => Err(OpenExportError::NoDefault { count: names.len() }),
        }
    }

    fn open(&self, name: &str) -> Result<Export, OpenExportError> {
        let unknown = || OpenExportError::Unknown { name: name.to_owned() };
        let failed = |error: VolumeError| {
            tracing::error!(export = name, %error, "a LUN of the dump can't be opened");
            OpenExportError::Failed { name: name.to_owned(), source: error.to_device(0, 0) }
        };
        let (of, lun) = name.split_once('/').ok_or_else(unknown)?;
        let image = self.image(of).ok_or_else(unknown)?.map_err(failed)?;
        let device = self.luns.open_in(&image, lun).map_err(|error| match error {
            FilesError::Volume(error) => failed(error),
            _ => unknown(),
        })?;
        Ok(Export {
            device,
            description: "image dump, read-only".to_owned(),
            read_only: true,
            writes_through: false,
            multi_conn: true,
            dirty_contexts: Vec::new(),
            changed: None,
        })
    }
}

/// Serves until the program is interrupted.
pub fn run(asked: &MountImage, dumps: &Dumps<'_>, output: Output) -> Result<(), Failure> {
    let parts = dumps.index()?;
    for part in parts.iter().filter(|part| !part.is_whole()) {
        note_line(&format!(
            "note: {} is incomplete; reads of missing blocks will fail. `cairn image verify` lists them",
            part.file()
        ));
    }
    let exports = Arc::new(DumpExports::new(open_dump(parts, asked.without_base, asked.accept_damage)?));
    let address = match (&asked.socket, &asked.listen) {
        (Some(path), _) => Address::Unix(std::path::absolute(path)?),
        (None, Some(address)) => address.parse().map_err(|_| {
            Failure::new(
                ErrorKind::Usage,
                format!("`{address}` is not an address"),
                "give HOST:PORT or unix:PATH",
            )
        })?,
        (None, None) => Address::Tcp("127.0.0.1:10810".to_owned()),
    };
    let listener = Listener::bind(&address).map_err(|error| not_served(listen_kind(&error), &error))?;
    let server = NbdServer::start(vec![listener], exports.clone(), ServerOptions::default());
    let server = server.map_err(|error| not_served(ErrorKind::Failed, &error))?;
    let uri = |name: &str| match server.addresses().first() {
        Some(Address::Tcp(address)) => tcp_uri(address, name),
        Some(Address::Unix(path)) => unix_uri(path, name),
        None => String::new(),
    };
    let luns = exports.luns();
    let shown: Vec<_> = luns
        .iter()
        .map(|lun| serde_json::json!({ "name": lun.name, "size_bytes": lun.bytes, "uri": uri(&lun.name) }))
        .collect();
    output.show(&shown, |_| {
        table(
            ["LUN", "SIZE", "URI"],
            luns.iter().map(|lun| [lun.name.clone(), size(lun.bytes), uri(&lun.name)]),
        )
    });
    if !output.json && !output.quiet {
        print_line("serving, read-only; end with Ctrl-C");
    }
    wait_for_signal()?;
    server.stop();
    if let Address::Unix(path) = &address {
        let _ = std::fs::remove_file(path as &Path);
    }
    Ok(())
}

fn wait_for_signal() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut end, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}
