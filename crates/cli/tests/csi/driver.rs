//! A driver: as a process, or as its controller in this process.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cairn_api::client::Place;
use cairn_api::{ErrorBody, ErrorKind};
use cairn_csi::names::{LUN, Prefix};
use cairn_csi::{Api, Connection, Controller, ControllerOptions, Verb};
use cairn_proto_csi::v1;
use serde_json::Value;
use v1::volume_capability::access_mode::Mode;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::running::{Running, cairn, wait_until};

pub const MIB: u64 = 1 << 20;

/// A server that listens for NBD on both loopback addresses.
pub fn served(dir: &Path) -> Running {
    Running::start_with(dir, "server", &["--mirror", "off", "--nbd", "127.0.0.1:0", "--nbd", "[::1]:0"])
}

/// A process of `cairn csi`.
pub struct Driver {
    process: Child,
    pub socket: PathBuf,
}

impl Driver {
    pub fn start(server: &Running, dir: &Path, arguments: &[&str]) -> Self {
        let socket = dir.join("csi.sock");
        let mut command = cairn();
        command.args(["csi", "--endpoint"]).arg(format!("unix://{}", socket.display()));
        command.arg("--data").arg(&server.data).args(arguments);
        let log = std::fs::File::create(dir.join("driver.log")).unwrap();
        let process = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        wait_until("the driver listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        Self { process, socket }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A server whose driver dies at one of its requests: before it, or after it and before the answer.
pub struct Cut {
    inner: Connection,
    /// Requests that still succeed.
    left: Arc<AtomicI64>,
    loses_answer: bool,
}

impl Api for Cut {
    fn call(&self, verb: Verb, path: &str, body: Option<Value>) -> Result<Value, ErrorBody> {
        let gone = || Err(ErrorBody::new(ErrorKind::PeerUnreachable, "it died", "start it again"));
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            left if left > 0 => self.inner.call(verb, path, body),
            0 if self.loses_answer => {
                let _ = self.inner.call(verb, path, body);
                gone()
            }
            _ => gone(),
        }
    }
}

fn connection(server: &Running) -> Connection {
    Connection { place: Place::Data(server.data.clone()), token_file: None, tls_root: None }
}

fn options() -> ControllerOptions {
    ControllerOptions { prefix: Prefix::new("csi-").unwrap(), nbd: None, iscsi: None }
}

/// The controller of a server.
pub fn controller(server: &Running) -> Controller {
    Controller::new(Box::new(connection(server)), options())
}

/// One that dies after so many requests; the counter shows how many it did not need.
pub fn dying(server: &Running, requests: i64, loses_answer: bool) -> (Controller, Arc<AtomicI64>) {
    let left = Arc::new(AtomicI64::new(requests));
    let cut = Cut { inner: connection(server), left: left.clone(), loses_answer };
    (Controller::new(Box::new(cut), options()), left)
}

pub fn block() -> v1::VolumeCapability {
    capability(Mode::SingleNodeWriter, AccessType::Block(BlockVolume {}))
}

pub fn mount(file_system: &str) -> v1::VolumeCapability {
    let mount = MountVolume { fs_type: file_system.to_owned(), ..MountVolume::default() };
    capability(Mode::SingleNodeWriter, AccessType::Mount(mount))
}

pub fn capability(mode: Mode, kind: AccessType) -> v1::VolumeCapability {
    v1::VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(kind) }
}

pub fn range(bytes: u64) -> Option<v1::CapacityRange> {
    Some(v1::CapacityRange { required_bytes: bytes.try_into().unwrap(), limit_bytes: 0 })
}

pub fn new_volume(name: &str, bytes: u64) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: range(bytes),
        volume_capabilities: vec![block()],
        ..v1::CreateVolumeRequest::default()
    }
}

fn source(of: v1::volume_content_source::Type) -> Option<v1::VolumeContentSource> {
    Some(v1::VolumeContentSource { r#type: Some(of) })
}

pub fn from_snapshot(id: &str) -> Option<v1::VolumeContentSource> {
    let snapshot_id = id.to_owned();
    source(v1::volume_content_source::Type::Snapshot(v1::volume_content_source::SnapshotSource {
        snapshot_id,
    }))
}

pub fn from_volume(id: &str) -> Option<v1::VolumeContentSource> {
    let volume_id = id.to_owned();
    source(v1::volume_content_source::Type::Volume(v1::volume_content_source::VolumeSource { volume_id }))
}

/// Creates a volume; its id.
pub fn create(controller: &Controller, asked: &v1::CreateVolumeRequest) -> String {
    controller.create_volume(asked).unwrap().volume.unwrap().volume_id
}

pub fn delete(controller: &Controller, id: &str) {
    let asked = v1::DeleteVolumeRequest { volume_id: id.to_owned(), ..v1::DeleteVolumeRequest::default() };
    controller.delete_volume(&asked).unwrap();
}

pub fn new_snapshot(name: &str, volume: &str) -> v1::CreateSnapshotRequest {
    v1::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume.to_owned(),
        ..v1::CreateSnapshotRequest::default()
    }
}

/// Creates a snapshot; its id.
pub fn snapshot(controller: &Controller, name: &str, volume: &str) -> String {
    controller.create_snapshot(&new_snapshot(name, volume)).unwrap().snapshot.unwrap().snapshot_id
}

pub fn gone_snapshot(id: &str) -> v1::DeleteSnapshotRequest {
    v1::DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..v1::DeleteSnapshotRequest::default() }
}

pub fn publication(volume: &str, node: &str) -> v1::ControllerPublishVolumeRequest {
    v1::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(block()),
        ..v1::ControllerPublishVolumeRequest::default()
    }
}

pub fn withdrawal(volume: &str, node: &str) -> v1::ControllerUnpublishVolumeRequest {
    v1::ControllerUnpublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        ..v1::ControllerUnpublishVolumeRequest::default()
    }
}

/// The ids of all volumes, and the nodes that they are published to.
pub fn volumes(controller: &Controller) -> Vec<(String, Vec<String>)> {
    let listed = controller.list_volumes(&v1::ListVolumesRequest::default()).unwrap();
    let entries = listed.entries.into_iter();
    entries.map(|entry| (entry.volume.unwrap().volume_id, entry.status.unwrap().published_node_ids)).collect()
}

/// The ids of all snapshots.
pub fn snapshots(controller: &Controller) -> Vec<String> {
    let listed = controller.list_snapshots(&v1::ListSnapshotsRequest::default()).unwrap();
    listed.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect()
}

/// The export of a volume.
pub fn disk_of(volume: &str) -> String {
    format!("{volume}/{LUN}")
}
