//! Tests of names and of requests that are refused before the server is asked.

use cairn_api::{ErrorBody, ErrorKind};
use cairn_proto_csi::v1;
use serde_json::Value;
use tonic::Code;

use crate::names::{Holder, Identity, NodeId, Prefix, parse_token, token_after};
use crate::{Api, Controller, ControllerOptions, Verb};

fn prefix() -> Prefix {
    Prefix::new("csi-").expect("a prefix")
}

#[test]
fn names_of_csi_become_valid_names_that_stay_apart() {
    let prefix = prefix();
    let uuid = "pvc-0a1b2c3d-0000-1111-2222-333344445555";
    assert_eq!(prefix.name_of(uuid), format!("csi-{uuid}"));
    let odd = ["a.b", "a/b", "ä", "x-0", &"n".repeat(128), &"n".repeat(127), ""];
    let names: std::collections::BTreeSet<String> = odd.iter().map(|name| prefix.name_of(name)).collect();
    assert_eq!(names.len(), odd.len());
    for name in &names {
        assert!(name.len() <= 60 && prefix.owns(name) && name.starts_with("csi-x-"), "{name}");
        let hidden = prefix.hidden(name).next().expect("a name");
        assert!(prefix.is_hidden(&hidden) && !prefix.owns(&hidden) && hidden.len() <= 64);
        assert!(prefix.snapshot(&format!("{name}@{name}")).is_some());
        assert!(format!("{name}@{name}").len() <= 128);
    }
    assert!(prefix.is_hidden(&prefix.for_clone("csi-a")));
    for foreign in ["vol0", "csi-", "csi-a/b", "csi-a.b", "k8s-a"] {
        assert!(!prefix.owns(foreign), "{foreign}");
    }
    for bad in ["", "-", "x-", "csi", "1a-", "c/i-", "much-too-long-"] {
        assert_eq!(Prefix::new(bad), None, "{bad}");
    }
}

#[test]
fn nodes_and_holders_survive_their_text() {
    let identities = [
        Identity::Address("10.0.0.5".parse().expect("an address")),
        Identity::Address("fd00::5".parse().expect("an address")),
        Identity::Certificate("worker-1".to_owned()),
        Identity::Initiator("iqn.1993-08.org.debian:01:abc".to_owned()),
        Identity::Unix,
    ];
    for identity in identities {
        let node = NodeId { name: "worker-1".to_owned(), identity };
        assert_eq!(NodeId::parse(&node.to_string()), Some(node.clone()));
        let holder = Holder { volume: "csi-a".to_owned(), node };
        assert_eq!(Holder::of("csi-a", &holder.to_string()), Some(holder.clone()));
        // A clone has a copy of it.
        assert_eq!(Holder::of("csi-b", &holder.to_string()), None);
    }
    for bad in ["", "worker", "worker~", "~unix", "w~nbd=x", "w~cert=", "w|v~unix", "w w~unix", "w~unix~unix"]
    {
        assert_eq!(NodeId::parse(bad), None, "{bad}");
    }
    assert_eq!(parse_token(&token_after("csi-a")), Some("csi-a"));
    assert_eq!([parse_token("after:"), parse_token("invalid")], [None, None]);
}

/// A server that gives each request the same error.
struct Fails(ErrorKind);

impl Api for Fails {
    fn call(&self, _: Verb, _: &str, _: Option<Value>) -> Result<Value, ErrorBody> {
        Err(ErrorBody::new(self.0, "no", "try later"))
    }
}

fn controller(error: ErrorKind) -> Controller {
    let options = ControllerOptions { prefix: prefix(), nbd: None, iscsi: None };
    Controller::new(Box::new(Fails(error)), options)
}

fn capability(mode: v1::volume_capability::access_mode::Mode) -> v1::VolumeCapability {
    use v1::volume_capability::{AccessMode, AccessType, MountVolume};
    v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn new_volume() -> v1::CreateVolumeRequest {
    use v1::volume_capability::access_mode::Mode;
    v1::CreateVolumeRequest {
        name: "a".to_owned(),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter)],
        ..v1::CreateVolumeRequest::default()
    }
}

#[test]
fn errors_of_the_server_have_codes_that_the_sidecars_understand() {
    for (kind, code) in [
        (ErrorKind::PeerUnreachable, Code::Unavailable),
        (ErrorKind::Interrupted, Code::Unavailable),
        (ErrorKind::Failed, Code::Unavailable),
        (ErrorKind::Unauthorized, Code::Unauthenticated),
        (ErrorKind::Forbidden, Code::PermissionDenied),
        (ErrorKind::NoSpace, Code::ResourceExhausted),
    ] {
        let error = controller(kind).create_volume(&new_volume()).expect_err("it fails");
        assert_eq!(error.code(), code, "{kind:?}");
    }
}

#[test]
fn requests_that_make_no_sense_never_reach_the_server() {
    use v1::volume_capability::access_mode::Mode;
    let controller = controller(ErrorKind::PeerUnreachable);
    let range = |required_bytes, limit_bytes| Some(v1::CapacityRange { required_bytes, limit_bytes });
    let with = |change: &dyn Fn(&mut v1::CreateVolumeRequest)| {
        let mut asked = new_volume();
        change(&mut asked);
        controller.create_volume(&asked).expect_err("it is refused").code()
    };
    let key = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    assert_eq!(with(&|asked| asked.name.clear()), Code::InvalidArgument);
    assert_eq!(with(&|asked| asked.name = "n".repeat(129)), Code::InvalidArgument);
    assert_eq!(with(&|asked| asked.volume_capabilities.clear()), Code::InvalidArgument);
    assert_eq!(with(&|asked| asked.capacity_range = range(-1, 0)), Code::InvalidArgument);
    assert_eq!(with(&|asked| asked.capacity_range = range(2, 1)), Code::InvalidArgument);
    assert_eq!(with(&|asked| asked.parameters = key("size", "1")), Code::InvalidArgument);
    assert_eq!(with(&|asked| asked.parameters = key("snapshotReservePercent", "-1")), Code::InvalidArgument);
    for mode in [Mode::Unknown, Mode::MultiNodeReaderOnly, Mode::MultiNodeMultiWriter] {
        assert_eq!(with(&|asked| asked.volume_capabilities = vec![capability(mode)]), Code::InvalidArgument);
    }
    let publish = |volume: &str, node: &str| {
        let asked = v1::ControllerPublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(capability(Mode::SingleNodeWriter)),
            ..v1::ControllerPublishVolumeRequest::default()
        };
        controller.publish_volume(&asked).expect_err("it is refused").code()
    };
    assert_eq!(publish("", "n~unix"), Code::InvalidArgument);
    assert_eq!(publish("csi-a", ""), Code::InvalidArgument);
    assert_eq!(publish("vol0", "n~unix"), Code::NotFound);
    // Volumes that the driver did not make are absent for it, whatever the server has.
    let delete =
        v1::DeleteVolumeRequest { volume_id: "vol0".to_owned(), ..v1::DeleteVolumeRequest::default() };
    assert!(controller.delete_volume(&delete).is_ok());
    let delete = v1::DeleteSnapshotRequest {
        snapshot_id: "vol0@a".to_owned(),
        ..v1::DeleteSnapshotRequest::default()
    };
    assert!(controller.delete_snapshot(&delete).is_ok());
}
