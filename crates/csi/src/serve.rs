//! The services on a unix socket. Each call runs in a thread of its own, since the driver waits for
//! the server and for programs; the runtime only carries messages.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use cairn_proto_csi::v1;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};
use v1::controller_server::ControllerServer;
use v1::identity_server::IdentityServer;
use v1::node_server::NodeServer;
use v1::snapshot_metadata_server::SnapshotMetadataServer;

use crate::controller::{Controller, Ranges};
use crate::node::Node;

/// Pages of ranges that wait for a slow client.
const PAGES: usize = 4;
/// The longest message of a client, in bytes.
const MESSAGE_MAX: usize = 4 << 20;

/// The driver as a process.
pub struct Options {
    /// The unix socket.
    pub socket: PathBuf,
    /// The name of the driver.
    pub name: String,
    /// The Controller and SnapshotMetadata services.
    pub controller: Option<Controller>,
    /// The Node service.
    pub node: Option<Node>,
}

/// Why the driver ends.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket cannot be used.
    #[error("cannot listen at {path}: {source}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The runtime or a signal cannot be set up.
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
    /// The connection failed.
    #[error("the service failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Runs the driver until SIGTERM or SIGINT.
pub fn serve(options: Options) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(options))
}

async fn run(options: Options) -> Result<(), ServeError> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let listener = listen(&options.socket)?;
    let driver = Driver {
        name: options.name,
        controller: options.controller.map(Arc::new),
        node: options.node.map(Arc::new),
    };
    if let Some(controller) = driver.controller.clone() {
        // The server may be away for now; each deletion clears as well.
        tokio::task::spawn_blocking(move || {
            if let Err(error) = controller.clear_all() {
                tracing::warn!(%error, "rests of deleted volumes stay until the next start");
            }
        });
    }
    let controller = driver
        .controller
        .is_some()
        .then(|| ControllerServer::new(driver.clone()).max_decoding_message_size(MESSAGE_MAX));
    let ranges = driver.controller.is_some().then(|| SnapshotMetadataServer::new(driver.clone()));
    let node = driver.node.is_some().then(|| NodeServer::new(driver.clone()));
    let router = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(driver.clone()))
        .add_optional_service(controller)
        .add_optional_service(ranges)
        .add_optional_service(node);
    tracing::info!(socket = %options.socket.display(), "the driver listens");
    let end = async {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    };
    router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), end).await?;
    let _ = std::fs::remove_file(&options.socket);
    Ok(())
}

/// Listens, in place of an earlier driver that is gone.
fn listen(socket: &PathBuf) -> Result<UnixListener, ServeError> {
    let failed = |source| ServeError::Listen { path: socket.clone(), source };
    if socket.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
        if std::os::unix::net::UnixStream::connect(socket).is_ok() {
            return Err(failed(std::io::Error::from(std::io::ErrorKind::AddrInUse)));
        }
        std::fs::remove_file(socket).map_err(failed)?;
    }
    UnixListener::bind(socket).map_err(failed)
}

/// The services of one process.
#[derive(Clone)]
struct Driver {
    name: String,
    controller: Option<Arc<Controller>>,
    node: Option<Arc<Node>>,
}

/// Runs a call in a thread that may wait.
async fn blocking<S, Q, A>(
    service: Option<&Arc<S>>,
    request: Request<Q>,
    call: impl FnOnce(&S, &Q) -> Result<A, Status> + Send + 'static,
) -> Result<Response<A>, Status>
where
    S: Send + Sync + 'static,
    Q: Send + 'static,
    A: Send + 'static,
{
    let service =
        service.cloned().ok_or_else(|| Status::unimplemented("this process has no such service"))?;
    let asked = request.into_inner();
    let name = std::any::type_name::<Q>().rsplit("::").next().unwrap_or_default().trim_end_matches("Request");
    let done = tokio::task::spawn_blocking(move || call(&service, &asked)).await;
    let done = done.unwrap_or_else(|error| Err(Status::internal(format!("the call did not end: {error}"))));
    match &done {
        Ok(_) => tracing::debug!(call = name, "done"),
        Err(status) => {
            tracing::info!(call = name, code = ?status.code(), reason = status.message(), "refused")
        }
    }
    done.map(Response::new)
}

#[async_trait]
impl v1::identity_server::Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..v1::GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        use v1::plugin_capability::service::Type as Kind;
        use v1::plugin_capability::volume_expansion::Type as Expansion;
        use v1::plugin_capability::{Service, Type, VolumeExpansion};
        let service = |kind: Kind| Type::Service(Service { r#type: kind.into() });
        let mut all = vec![Type::VolumeExpansion(VolumeExpansion { r#type: Expansion::Online.into() })];
        if self.controller.is_some() {
            all.extend([service(Kind::ControllerService), service(Kind::SnapshotMetadataService)]);
        }
        let capabilities = all.into_iter().map(|kind| v1::PluginCapability { r#type: Some(kind) }).collect();
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, request: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        if self.controller.is_none() {
            return Ok(Response::new(v1::ProbeResponse { ready: Some(true) }));
        }
        let probe = |controller: &Controller, _: &v1::ProbeRequest| controller.probe();
        let ready = blocking(self.controller.as_ref(), request, probe).await?.into_inner();
        Ok(Response::new(v1::ProbeResponse { ready: Some(ready) }))
    }
}

/// Methods that pass a request to the controller.
macro_rules! of_controller {
    ($($method:ident: $request:ident -> $response:ident = $call:ident;)*) => {
        #[async_trait]
        impl v1::controller_server::Controller for Driver {
            $(async fn $method(&self, request: Request<v1::$request>) -> Result<Response<v1::$response>, Status> {
                blocking(self.controller.as_ref(), request, Controller::$call).await
            })*

            async fn controller_get_capabilities(
                &self,
                request: Request<v1::ControllerGetCapabilitiesRequest>,
            ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
                blocking(self.controller.as_ref(), request, |controller, _| Ok(controller.capabilities())).await
            }

            async fn controller_list_volume_health(
                &self,
                _: Request<v1::ControllerListVolumeHealthRequest>,
            ) -> Result<Response<v1::ControllerListVolumeHealthResponse>, Status> {
                Err(Status::unimplemented("there is no health of volumes"))
            }

            async fn controller_get_volume_health(
                &self,
                _: Request<v1::ControllerGetVolumeHealthRequest>,
            ) -> Result<Response<v1::ControllerGetVolumeHealthResponse>, Status> {
                Err(Status::unimplemented("there is no health of volumes"))
            }

            async fn controller_get_volume(
                &self,
                _: Request<v1::ControllerGetVolumeRequest>,
            ) -> Result<Response<v1::ControllerGetVolumeResponse>, Status> {
                Err(Status::unimplemented("list the volumes instead"))
            }

            async fn controller_modify_volume(
                &self,
                _: Request<v1::ControllerModifyVolumeRequest>,
            ) -> Result<Response<v1::ControllerModifyVolumeResponse>, Status> {
                Err(Status::unimplemented("there are no parameters that can be changed"))
            }
        }
    };
}

of_controller! {
    create_volume: CreateVolumeRequest -> CreateVolumeResponse = create_volume;
    delete_volume: DeleteVolumeRequest -> DeleteVolumeResponse = delete_volume;
    controller_publish_volume: ControllerPublishVolumeRequest -> ControllerPublishVolumeResponse = publish_volume;
    controller_unpublish_volume: ControllerUnpublishVolumeRequest -> ControllerUnpublishVolumeResponse = unpublish_volume;
    validate_volume_capabilities: ValidateVolumeCapabilitiesRequest -> ValidateVolumeCapabilitiesResponse = validate;
    list_volumes: ListVolumesRequest -> ListVolumesResponse = list_volumes;
    get_capacity: GetCapacityRequest -> GetCapacityResponse = capacity;
    create_snapshot: CreateSnapshotRequest -> CreateSnapshotResponse = create_snapshot;
    delete_snapshot: DeleteSnapshotRequest -> DeleteSnapshotResponse = delete_snapshot;
    list_snapshots: ListSnapshotsRequest -> ListSnapshotsResponse = list_snapshots;
    get_snapshot: GetSnapshotRequest -> GetSnapshotResponse = snapshot;
    controller_expand_volume: ControllerExpandVolumeRequest -> ControllerExpandVolumeResponse = expand_volume;
}

/// Methods that pass a request to the node.
macro_rules! of_node {
    ($($method:ident: $request:ident -> $response:ident = $call:ident;)*) => {
        #[async_trait]
        impl v1::node_server::Node for Driver {
            $(async fn $method(&self, request: Request<v1::$request>) -> Result<Response<v1::$response>, Status> {
                blocking(self.node.as_ref(), request, Node::$call).await
            })*

            async fn node_get_capabilities(
                &self,
                request: Request<v1::NodeGetCapabilitiesRequest>,
            ) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
                blocking(self.node.as_ref(), request, |node, _| Ok(node.capabilities())).await
            }

            async fn node_get_info(
                &self,
                request: Request<v1::NodeGetInfoRequest>,
            ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
                blocking(self.node.as_ref(), request, |node, _| Ok(node.info())).await
            }

            async fn node_get_volume_health(
                &self,
                _: Request<v1::NodeGetVolumeHealthRequest>,
            ) -> Result<Response<v1::NodeGetVolumeHealthResponse>, Status> {
                Err(Status::unimplemented("there is no health of volumes"))
            }

            async fn node_get_storage_health(
                &self,
                _: Request<v1::NodeGetStorageHealthRequest>,
            ) -> Result<Response<v1::NodeGetStorageHealthResponse>, Status> {
                Err(Status::unimplemented("there is no health of storage"))
            }
        }
    };
}

of_node! {
    node_stage_volume: NodeStageVolumeRequest -> NodeStageVolumeResponse = stage;
    node_unstage_volume: NodeUnstageVolumeRequest -> NodeUnstageVolumeResponse = unstage;
    node_publish_volume: NodePublishVolumeRequest -> NodePublishVolumeResponse = publish;
    node_unpublish_volume: NodeUnpublishVolumeRequest -> NodeUnpublishVolumeResponse = unpublish;
    node_get_volume_stats: NodeGetVolumeStatsRequest -> NodeGetVolumeStatsResponse = stats;
    node_expand_volume: NodeExpandVolumeRequest -> NodeExpandVolumeResponse = expand;
}

type Messages<T> = ReceiverStream<Result<T, Status>>;

impl Driver {
    /// Streams the pages of ranges. The first page is read before the answer begins, so that a
    /// refused request has no stream.
    async fn pages<Q: Send + 'static, T: Send + 'static>(
        &self,
        request: Request<Q>,
        begin: impl FnOnce(&Controller, &Q) -> Result<Ranges, Status> + Send + 'static,
        message: impl Fn(i64, Vec<v1::BlockMetadata>) -> T + Send + 'static,
    ) -> Result<Response<Messages<T>>, Status> {
        let mut ranges = blocking(self.controller.as_ref(), request, begin).await?.into_inner();
        let controller = self.controller.clone().ok_or_else(|| Status::internal("there is no controller"))?;
        let (sender, receiver) = mpsc::channel(PAGES);
        tokio::task::spawn_blocking(move || {
            loop {
                let page = match controller.next_page(&mut ranges) {
                    Ok(None) => return,
                    Ok(Some((bytes, blocks))) => Ok(message(bytes, blocks)),
                    Err(error) => Err(error),
                };
                let is_last = page.is_err();
                // The client is gone.
                if sender.blocking_send(page).is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[async_trait]
impl v1::snapshot_metadata_server::SnapshotMetadata for Driver {
    type GetMetadataAllocatedStream = Messages<v1::GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<v1::GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<v1::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let message = |volume_capacity_bytes, block_metadata| v1::GetMetadataAllocatedResponse {
            block_metadata_type: v1::BlockMetadataType::VariableLength.into(),
            volume_capacity_bytes,
            block_metadata,
        };
        self.pages(request, Controller::allocated, message).await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<v1::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let message = |volume_capacity_bytes, block_metadata| v1::GetMetadataDeltaResponse {
            block_metadata_type: v1::BlockMetadataType::VariableLength.into(),
            volume_capacity_bytes,
            block_metadata,
        };
        self.pages(request, Controller::delta, message).await
    }
}
