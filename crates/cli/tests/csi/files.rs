//! File systems on real devices of this machine, attached with nbdfuse and loop devices.

use std::path::{Path, PathBuf};

use cairn_csi::names::NodeId;
use cairn_csi::{Attachment, Controller, Node, NodeOptions, Programs};
use cairn_proto_csi::v1;
use tonic::{Code, Status};
use v1::volume_capability::AccessType;
use v1::volume_capability::access_mode::Mode;

use crate::driver::{
    MIB, capability, controller, create, delete, from_volume, mount, new_volume, publication, range, served,
    withdrawal,
};
use crate::running::Running;
use crate::sanity::can_attach;

const NODE: &str = "node-1~nbd=127.0.0.1";

/// A node, and the volumes of its server.
struct Machine {
    dir: PathBuf,
    controller: Controller,
    node: Node,
}

fn node(dir: &Path) -> Node {
    Node::new(NodeOptions {
        id: NodeId::parse(NODE).unwrap(),
        attachment: Attachment::Fuse,
        state: dir.join("state"),
        tls: None,
        programs: Programs::default(),
    })
}

impl Machine {
    fn new(server: &Running, dir: &Path) -> Self {
        Self { dir: dir.to_owned(), controller: controller(server), node: node(dir) }
    }

    fn create(&self, name: &str, bytes: u64, file_system: &str) -> String {
        let mut asked = new_volume(name, bytes);
        asked.volume_capabilities = vec![mount(file_system)];
        create(&self.controller, &asked)
    }

    fn path(&self, volume: &str, kind: &str) -> String {
        self.dir.join(format!("{volume}-{kind}")).to_str().unwrap().to_owned()
    }

    fn staging(&self, volume: &str, used: v1::VolumeCapability) -> v1::NodeStageVolumeRequest {
        let published = self.controller.publish_volume(&publication(volume, NODE)).unwrap();
        v1::NodeStageVolumeRequest {
            volume_id: volume.to_owned(),
            publish_context: published.publish_context,
            staging_target_path: self.path(volume, "staging"),
            volume_capability: Some(used),
            ..v1::NodeStageVolumeRequest::default()
        }
    }

    fn publish_at(
        &self,
        volume: &str,
        at: &str,
        used: v1::VolumeCapability,
        readonly: bool,
    ) -> Result<(), Status> {
        let asked = v1::NodePublishVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: self.path(volume, "staging"),
            target_path: self.path(volume, at),
            volume_capability: Some(used),
            readonly,
            ..v1::NodePublishVolumeRequest::default()
        };
        self.node.publish(&asked).map(drop)
    }

    fn unpublish(&self, volume: &str, at: &str) {
        let asked = v1::NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: self.path(volume, at),
        };
        self.node.unpublish(&asked).unwrap();
        self.node.unpublish(&asked).unwrap();
        assert!(!Path::new(&asked.target_path).exists());
    }

    fn unstage(&self, volume: &str) -> Result<(), Status> {
        let asked = v1::NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: self.path(volume, "staging"),
        };
        self.node.unstage(&asked).map(drop)
    }

    fn end(&self, volume: &str) {
        self.unstage(volume).unwrap();
        self.unstage(volume).unwrap();
        self.controller.unpublish_volume(&withdrawal(volume, NODE)).unwrap();
        delete(&self.controller, volume);
    }

    fn total_bytes(&self, volume: &str, at: &str) -> i64 {
        let asked = v1::NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: self.path(volume, at),
            ..v1::NodeGetVolumeStatsRequest::default()
        };
        self.node.stats(&asked).unwrap().usage[0].total
    }
}

/// One test, as it takes loop devices of the machine: files survive, clones show them beside their
/// origin, and nothing else is formatted.
#[test]
fn files_survive_the_node_and_a_clone_shows_them_beside_its_origin() {
    if !can_attach() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    let machine = Machine::new(&server, dir.path());
    for (file_system, bytes) in [("ext4", 64 * MIB), ("xfs", 320 * MIB)] {
        let volume = machine.create(&format!("a-{file_system}"), bytes, file_system);
        let used = mount(file_system);
        machine.node.stage(&machine.staging(&volume, used.clone())).unwrap();
        machine.publish_at(&volume, "one", used.clone(), false).unwrap();
        let file = Path::new(&machine.path(&volume, "one")).join("file");
        std::fs::write(&file, b"kept").unwrap();
        let size = machine.total_bytes(&volume, "one");
        assert_eq!(machine.unstage(&volume).unwrap_err().code(), Code::FailedPrecondition, "it is in use");
        machine.unpublish(&volume, "one");
        machine.unstage(&volume).unwrap();

        // Another driver on the node, a longer disk, and a reader beside a writer.
        let machine = Machine { node: node(dir.path()), ..Machine::new(&server, dir.path()) };
        let asked = v1::ControllerExpandVolumeRequest {
            volume_id: volume.clone(),
            capacity_range: range(2 * bytes),
            ..v1::ControllerExpandVolumeRequest::default()
        };
        machine.controller.expand_volume(&asked).unwrap();
        machine.node.stage(&machine.staging(&volume, used.clone())).unwrap();
        machine.node.stage(&machine.staging(&volume, used.clone())).unwrap();
        machine.publish_at(&volume, "one", used.clone(), false).unwrap();
        machine.publish_at(&volume, "two", used.clone(), true).unwrap();
        machine.publish_at(&volume, "two", used.clone(), true).unwrap();
        let second = Path::new(&machine.path(&volume, "two")).join("file");
        assert_eq!(std::fs::read(&second).unwrap(), b"kept");
        assert!(std::fs::write(&second, b"lost").is_err(), "it is read-only");
        assert!(machine.total_bytes(&volume, "one") > size * 3 / 2, "the file system grew");
        let single = match used.access_type.clone() {
            Some(kind @ AccessType::Mount(_)) => capability(Mode::SingleNodeSingleWriter, kind),
            _ => unreachable!(),
        };
        let error = machine.publish_at(&volume, "three", single, false).unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition);

        // A clone, mounted beside its origin.
        std::fs::File::open(machine.path(&volume, "one")).and_then(|dir| dir.sync_all()).unwrap();
        rustix::fs::syncfs(std::fs::File::open(machine.path(&volume, "one")).unwrap()).unwrap();
        let mut asked = new_volume(&format!("b-{file_system}"), 3 * bytes);
        asked.volume_capabilities = vec![used.clone()];
        asked.volume_content_source = from_volume(&volume);
        let clone = create(&machine.controller, &asked);
        machine.node.stage(&machine.staging(&clone, used.clone())).unwrap();
        machine.publish_at(&clone, "one", used.clone(), false).unwrap();
        let cloned = Path::new(&machine.path(&clone, "one")).join("file");
        assert_eq!(std::fs::read(&cloned).unwrap(), b"kept");
        std::fs::write(&cloned, b"other").unwrap();
        assert_eq!(std::fs::read(machine.path(&volume, "one") + "/file").unwrap(), b"kept");
        assert!(machine.total_bytes(&clone, "one") > size * 5 / 2, "it is longer than its origin");
        for (volume, targets) in [(&volume, &["one", "two"][..]), (&clone, &["one"][..])] {
            targets.iter().for_each(|at| machine.unpublish(volume, at));
            machine.end(volume);
        }
    }

    // Data that is no file system is not formatted, and neither is a blank beginning before data.
    for (name, offset) in [("data", 0), ("later", 32 * MIB)] {
        let volume = machine.create(name, 64 * MIB, "ext4");
        machine.controller.publish_volume(&publication(&volume, "node-1~unix")).unwrap();
        let mut disk = server.disk(&crate::driver::disk_of(&volume));
        disk.write(offset, &[7; 4096]).unwrap();
        disk.flush().unwrap();
        disk.disconnect().unwrap();
        let error = machine.node.stage(&machine.staging(&volume, mount("ext4"))).unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        machine.end(&volume);
    }
    assert!(!server.good(&["volume", "list"]).contains("csi-"), "nothing is left");
}
