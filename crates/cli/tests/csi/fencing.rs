//! At most one node can write a volume.

use std::sync::Barrier;

use cairn_frontend_nbd::{Address, Client, ClientError, ClientOptions};
use tonic::Code;

use crate::driver::{
    MIB, controller, create, delete, disk_of, from_volume, new_volume, publication, served, volumes,
    withdrawal,
};
use crate::running::Running;

const A: &str = "a~nbd=127.0.0.1";
const B: &str = "b~nbd=::1";

/// The NBD addresses over TCP: of the node A and of the node B.
fn addresses(server: &Running) -> [Address; 2] {
    let status = server.json(&["status"]);
    let all: Vec<&str> = status["nbd"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    ["127.0.0.1:", "[::1]:"].map(|start| {
        let found = all.iter().find(|address| address.starts_with(start)).unwrap();
        Address::Tcp((*found).to_owned())
    })
}

fn connect(address: &Address, volume: &str) -> Result<Client, ClientError> {
    Client::connect(address, &ClientOptions::new(&disk_of(volume)))
}

#[test]
fn node_is_fenced_before_another_node_is_admitted() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    let [from_a, from_b] = addresses(&server);
    let controller = controller(&server);
    let volume = create(&controller, &new_volume("pvc-1", 16 * MIB));
    assert!(connect(&from_a, &volume).is_err(), "a new volume admits no client");

    let context = controller.publish_volume(&publication(&volume, A)).unwrap().publish_context;
    assert_eq!((context["export"].as_str(), context["blank"].as_str()), (&*disk_of(&volume), "true"));
    let mut old = connect(&from_a, &volume).unwrap();
    old.write(0, &[1; 4096]).unwrap();
    assert!(connect(&from_b, &volume).is_err(), "only the node is admitted");
    let error = controller.publish_volume(&publication(&volume, B)).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    // The same again, and a withdrawal from the other node, change nothing and close nothing.
    controller.publish_volume(&publication(&volume, A)).unwrap();
    controller.unpublish_volume(&withdrawal(&volume, B)).unwrap();
    old.write(4096, &[2; 4096]).unwrap();
    assert_eq!(volumes(&controller), [(volume.clone(), vec![A.to_owned()])]);

    // The node does not answer any more; its client does not know that.
    controller.unpublish_volume(&withdrawal(&volume, A)).unwrap();
    assert!(old.write(0, &[3; 4096]).is_err(), "its session is closed");
    assert!(connect(&from_a, &volume).is_err(), "and it gets none");
    let context = controller.publish_volume(&publication(&volume, B)).unwrap().publish_context;
    assert_eq!(context["blank"], "false");
    let mut new = connect(&from_b, &volume).unwrap();
    assert_eq!(new.read(0, 4096).unwrap(), [1; 4096]);
    assert!(connect(&from_a, &volume).is_err());
    // A late withdrawal of the old node does not take the volume from the new one.
    controller.unpublish_volume(&withdrawal(&volume, A)).unwrap();
    new.write(0, &[4; 4096]).unwrap();

    // A node that came back with another address is the same node.
    controller.publish_volume(&publication(&volume, "b~nbd=127.0.0.1")).unwrap();
    assert!(new.write(0, &[5; 4096]).is_err());
    assert!(connect(&from_a, &volume).is_ok());
    let volume_in_use = controller.delete_volume(&cairn_proto_csi::v1::DeleteVolumeRequest {
        volume_id: volume.clone(),
        ..Default::default()
    });
    assert_eq!(volume_in_use.unwrap_err().code(), Code::FailedPrecondition);
    controller.unpublish_volume(&withdrawal(&volume, "")).unwrap();
    delete(&controller, &volume);
    assert_eq!(volumes(&controller), []);
}

#[test]
fn clone_of_a_published_volume_is_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    let [from_a, _] = addresses(&server);
    let controller = controller(&server);
    let volume = create(&controller, &new_volume("pvc-1", 16 * MIB));
    controller.publish_volume(&publication(&volume, A)).unwrap();
    let mut asked = new_volume("pvc-2", 32 * MIB);
    asked.volume_content_source = from_volume(&volume);
    let clone = create(&controller, &asked);
    assert!(connect(&from_a, &clone).is_err());
    assert_eq!(volumes(&controller), [(volume.clone(), vec![A.to_owned()]), (clone.clone(), Vec::new())]);
    controller.publish_volume(&publication(&clone, B)).unwrap();
    // The origin first: it goes when the clone goes.
    controller.unpublish_volume(&withdrawal(&volume, A)).unwrap();
    delete(&controller, &volume);
    assert_eq!(volumes(&controller), [(clone.clone(), vec![B.to_owned()])]);
    controller.unpublish_volume(&withdrawal(&clone, B)).unwrap();
    delete(&controller, &clone);
    assert!(!server.good(&["volume", "list"]).contains("csi-"), "nothing is left");
}

#[test]
fn of_two_controllers_one_publishes() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    let controllers = [controller(&server), controller(&server)];
    let volume = create(&controllers[0], &new_volume("pvc-1", 16 * MIB));
    for round in 0..20 {
        let start = Barrier::new(2);
        let publish = |controller: &cairn_csi::Controller, node: &str| {
            start.wait();
            controller.publish_volume(&publication(&volume, node)).is_ok()
        };
        let won = std::thread::scope(|scope| {
            let one = scope.spawn(|| publish(&controllers[0], A));
            let other = publish(&controllers[1], B);
            [one.join().unwrap(), other]
        });
        assert!(won[0] != won[1], "round {round}: {won:?}");
        let winner = if won[0] { A } else { B };
        assert_eq!(volumes(&controllers[0]), [(volume.clone(), vec![winner.to_owned()])]);
        controllers[0].unpublish_volume(&withdrawal(&volume, winner)).unwrap();
    }
}
