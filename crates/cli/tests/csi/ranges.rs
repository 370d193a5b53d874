//! Blocks of snapshots and changed blocks between two, over the socket of the driver.

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use cairn_frontend_nbd::{Address, Client, ClientOptions};
use cairn_proto_csi::v1;
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::body::Body;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::driver::{
    Driver, MIB, controller, create, delete, disk_of, from_snapshot, new_volume, publication, range, served,
    snapshot,
};
use crate::running::Running;

/// A connection for gRPC.
struct Wire(SendRequest<Body>);

impl tower_service::Service<http::Request<Body>> for Wire {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Calls a method that answers with a stream; all its messages.
fn stream<Q, A>(socket: &Path, method: &'static str, asked: Q) -> Result<Vec<A>, Status>
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = tokio::net::UnixStream::connect(socket).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let mut client = tonic::client::Grpc::with_origin(Wire(sender), "http://csi".parse().unwrap());
        client.ready().await.unwrap();
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        let path = PathAndQuery::from_static(method);
        let mut answer = client.server_streaming(Request::new(asked), path, codec).await?.into_inner();
        let mut messages = Vec::new();
        while let Some(message) = answer.message().await? {
            messages.push(message);
        }
        Ok(messages)
    })
}

fn allocated(
    driver: &Driver,
    asked: v1::GetMetadataAllocatedRequest,
) -> Result<Vec<v1::GetMetadataAllocatedResponse>, Status> {
    stream(&driver.socket, "/csi.v1.SnapshotMetadata/GetMetadataAllocated", asked)
}

fn delta(
    driver: &Driver,
    asked: v1::GetMetadataDeltaRequest,
) -> Result<Vec<v1::GetMetadataDeltaResponse>, Status> {
    stream(&driver.socket, "/csi.v1.SnapshotMetadata/GetMetadataDelta", asked)
}

fn disk(server: &Running, export: &str) -> Client {
    Client::connect(&Address::Unix(server.data.join("nbd.sock")), &ClientOptions::new(export)).unwrap()
}

fn write(server: &Running, volume: &str, blocks: impl Iterator<Item = u64>, byte: u8) {
    let mut disk = disk(server, &disk_of(volume));
    blocks.for_each(|block| disk.write(block * 4096, &[byte; 4096]).unwrap());
    disk.flush().unwrap();
    disk.disconnect().unwrap();
}

fn content(server: &Running, volume: &str, snapshot: &str, bytes: u64) -> Vec<u8> {
    let mut disk = disk(server, &format!("{volume}@{snapshot}/disk"));
    (0..bytes / MIB).flat_map(|piece| disk.read(piece * MIB, 1 << 20).unwrap()).collect()
}

fn blocks(ranges: &[v1::BlockMetadata]) -> Vec<u64> {
    let of = |range: &v1::BlockMetadata| {
        range.byte_offset as u64 / 4096..(range.byte_offset + range.size_bytes) as u64 / 4096
    };
    ranges.iter().flat_map(of).collect()
}

#[test]
fn changed_blocks_rebuild_the_later_snapshot_from_the_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    let driver = Driver::start(&server, dir.path(), &["--controller"]);
    let controller = controller(&server);
    let volume = create(&controller, &new_volume("a", 8 * MIB));
    controller.publish_volume(&publication(&volume, "a~unix")).unwrap();
    let empty = snapshot(&controller, "empty", &volume);
    write(&server, &volume, (0..600).step_by(3), 1);
    let first = snapshot(&controller, "first", &volume);
    write(&server, &volume, (100..200).chain([1999]), 2);
    let asked = v1::ControllerExpandVolumeRequest {
        volume_id: volume.clone(),
        capacity_range: range(16 * MIB),
        ..v1::ControllerExpandVolumeRequest::default()
    };
    controller.expand_volume(&asked).unwrap();
    write(&server, &volume, [4000].into_iter(), 3);
    let second = snapshot(&controller, "second", &volume);

    let between = |base: &str, target: &str, from: i64, max: i32| {
        let asked = v1::GetMetadataDeltaRequest {
            base_snapshot_id: base.to_owned(),
            target_snapshot_id: target.to_owned(),
            starting_offset: from,
            max_results: max,
            ..v1::GetMetadataDeltaRequest::default()
        };
        delta(&driver, asked)
    };
    let all = |messages: Vec<v1::GetMetadataDeltaResponse>, max: usize| {
        let mut ranges = Vec::new();
        for message in messages {
            assert_eq!(message.volume_capacity_bytes, 16 << 20);
            assert_eq!(message.block_metadata_type(), v1::BlockMetadataType::VariableLength);
            assert!(message.block_metadata.len() <= max);
            ranges.extend(message.block_metadata);
        }
        let in_order =
            |pair: &[v1::BlockMetadata]| pair[0].byte_offset + pair[0].size_bytes <= pair[1].byte_offset;
        assert!(ranges.windows(2).all(in_order));
        ranges
    };
    let whole = all(between(&first, &second, 0, 0).unwrap(), 4096);
    assert_eq!(blocks(&whole), (100..200).chain([1999, 4000]).collect::<Vec<u64>>());
    assert_eq!(all(between(&first, &second, 0, 1).unwrap(), 1), whole, "in small messages");
    let rest = all(between(&first, &second, 150 * 4096, 2).unwrap(), 2);
    assert_eq!(blocks(&rest), (150..200).chain([1999, 4000]).collect::<Vec<u64>>());
    assert!(all(between(&second, &second, 0, 0).unwrap(), 0).is_empty());
    // The earlier content with the changed ranges is the later content.
    let mut rebuilt = content(&server, &volume, "csi-first", 8 * MIB);
    let later = content(&server, &volume, "csi-second", 16 * MIB);
    rebuilt.resize(16 << 20, 0);
    for range in &whole {
        let range = range.byte_offset as usize..(range.byte_offset + range.size_bytes) as usize;
        rebuilt[range.clone()].copy_from_slice(&later[range]);
    }
    assert!(rebuilt == later);

    let of = |id: &str, from: i64| {
        let asked = v1::GetMetadataAllocatedRequest {
            snapshot_id: id.to_owned(),
            starting_offset: from,
            max_results: 7,
            ..v1::GetMetadataAllocatedRequest::default()
        };
        let messages = allocated(&driver, asked)?;
        Ok::<_, Status>(messages.into_iter().flat_map(|message| message.block_metadata).collect::<Vec<_>>())
    };
    assert!(of(&empty, 0).unwrap().is_empty());
    assert_eq!(blocks(&of(&first, 0).unwrap()), (0..600).step_by(3).collect::<Vec<u64>>());
    // A clone has the blocks of its origin, also when the origin is deleted.
    let mut asked = new_volume("b", 16 * MIB);
    asked.volume_content_source = from_snapshot(&first);
    let clone = create(&controller, &asked);
    let cloned = snapshot(&controller, "cloned", &clone);
    assert_eq!(blocks(&of(&cloned, 0).unwrap()), (0..600).step_by(3).collect::<Vec<u64>>());

    let code = |outcome: Result<Vec<v1::BlockMetadata>, Status>| outcome.unwrap_err().code();
    assert_eq!(code(of("", 0)), Code::InvalidArgument);
    assert_eq!(code(of("csi-a@csi-none", 0)), Code::NotFound);
    assert_eq!(code(of(&first, -1)), Code::OutOfRange);
    assert_eq!(code(of(&first, (8 << 20) + 1)), Code::OutOfRange);
    let code = |base: &str, target: &str| between(base, target, 0, 0).unwrap_err().code();
    assert_eq!(code(&cloned, &second), Code::InvalidArgument);
    assert_eq!(code("", &second), Code::InvalidArgument);
    assert_eq!(code("vol0@a", &second), Code::NotFound);
    delete(&controller, &clone);
}
