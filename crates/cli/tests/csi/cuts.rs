//! A driver that dies at any request: the same call to the next driver completes.

use std::fmt::Debug;

use cairn_csi::Controller;
use cairn_proto_csi::v1;
use tonic::{Code, Status};

use crate::driver::{
    MIB, controller, create, delete, disk_of, dying, from_snapshot, from_volume, gone_snapshot, new_snapshot,
    new_volume, publication, range, served, snapshot, snapshots, volumes, withdrawal,
};
use crate::running::Running;

/// Prepares, lets the call die at each of its requests, repeats it, checks, and clears.
fn at_each_step<T: Debug>(
    prepare: &dyn Fn(&Controller),
    call: &dyn Fn(&Controller) -> Result<T, Status>,
    check: &dyn Fn(&Running, &Controller, T),
) {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    let sound = controller(&server);
    for loses_answer in [false, true] {
        for step in 0.. {
            prepare(&sound);
            let (cut, _) = dying(&server, step, loses_answer);
            let first = call(&cut);
            if let Err(error) = &first {
                assert_eq!(error.code(), Code::Unavailable, "step {step}: {error}");
            }
            let again = call(&controller(&server));
            let again = again.unwrap_or_else(|error| panic!("step {step}, {loses_answer}: {error}"));
            check(&server, &sound, again);
            // Clears everything, which also shows that nothing is in a strange state.
            for (volume, _) in volumes(&sound) {
                sound.unpublish_volume(&withdrawal(&volume, "")).unwrap();
                delete(&sound, &volume);
            }
            for one in snapshots(&sound) {
                sound.delete_snapshot(&gone_snapshot(&one)).unwrap();
            }
            sound.clear_all().unwrap();
            let left = server.good(&["volume", "list"]);
            assert!(!left.contains("csi-"), "step {step}, {loses_answer}: {left}");
            if first.is_ok() {
                assert!(step > 2, "{step} requests");
                break;
            }
        }
    }
}

fn prepared_snapshot(controller: &Controller) {
    create(controller, &new_volume("origin", 8 * MIB));
    snapshot(controller, "monday", "csi-origin");
}

fn access(server: &Running, volume: &str) -> (String, u64) {
    let shown = server.json(&["export", "show", &disk_of(volume)]);
    (shown["access"]["nbd"][0].as_str().unwrap_or_default().to_owned(), shown["size_bytes"].as_u64().unwrap())
}

#[test]
fn creation_of_a_volume_is_completed() {
    at_each_step(
        &|_| {},
        &|controller| controller.create_volume(&new_volume("a", 8 * MIB)),
        &|server, _, made| {
            assert_eq!(made.volume.unwrap().capacity_bytes, 8 << 20);
            assert_eq!(access(server, "csi-a"), ("off".to_owned(), 8 * MIB));
        },
    );
}

#[test]
fn creation_of_a_longer_clone_of_a_snapshot_is_completed() {
    let mut asked = new_volume("a", 16 * MIB);
    asked.volume_content_source = from_snapshot("csi-origin@csi-monday");
    at_each_step(&prepared_snapshot, &|controller| controller.create_volume(&asked), &|server, _, made| {
        assert_eq!(made.volume.unwrap().capacity_bytes, 16 << 20);
        assert_eq!(access(server, "csi-a"), ("off".to_owned(), 16 * MIB));
    });
}

#[test]
fn creation_of_a_clone_of_a_volume_is_completed() {
    let mut asked = new_volume("a", 16 * MIB);
    asked.volume_content_source = from_volume("csi-origin");
    at_each_step(
        &prepared_snapshot,
        &|controller| controller.create_volume(&asked),
        &|server, controller, _| {
            assert_eq!(access(server, "csi-a"), ("off".to_owned(), 16 * MIB));
            assert_eq!(snapshots(controller), ["csi-origin@csi-monday"], "its own snapshot is hidden");
        },
    );
}

#[test]
fn publication_and_withdrawal_are_completed() {
    let node = "a~nbd=127.0.0.1";
    at_each_step(
        &|controller| drop(create(controller, &new_volume("a", 8 * MIB))),
        &|controller| controller.publish_volume(&publication("csi-a", node)),
        &|server, controller, made| {
            assert_eq!(made.publish_context["export"], disk_of("csi-a"));
            assert_eq!(access(server, "csi-a").0, "127.0.0.1");
            assert_eq!(volumes(controller)[0].1, [node]);
        },
    );
    let prepare = |controller: &Controller| {
        create(controller, &new_volume("a", 8 * MIB));
        controller.publish_volume(&publication("csi-a", node)).unwrap();
    };
    at_each_step(
        &prepare,
        // Two calls, as one has few requests.
        &|controller| {
            controller.unpublish_volume(&withdrawal("csi-a", node))?;
            controller.unpublish_volume(&withdrawal("csi-a", node))
        },
        &|server, controller, _| {
            assert_eq!(access(server, "csi-a").0, "off");
            assert!(volumes(controller)[0].1.is_empty());
        },
    );
}

#[test]
fn expansion_is_completed() {
    let asked = v1::ControllerExpandVolumeRequest {
        volume_id: "csi-a".to_owned(),
        // Past the space that the volume has for snapshots.
        capacity_range: range(200 * MIB),
        ..v1::ControllerExpandVolumeRequest::default()
    };
    at_each_step(
        &|controller| drop(create(controller, &new_volume("a", 8 * MIB))),
        &|controller| controller.expand_volume(&asked),
        &|server, _, made| {
            assert_eq!((made.capacity_bytes, made.node_expansion_required), (200 << 20, true));
            assert_eq!(access(server, "csi-a").1, 200 * MIB);
        },
    );
}

#[test]
fn snapshots_are_completed_and_deleted_with_their_clones() {
    at_each_step(
        &|controller| drop(create(controller, &new_volume("origin", 8 * MIB))),
        &|controller| controller.create_snapshot(&new_snapshot("monday", "csi-origin")),
        &|_, controller, made| {
            assert_eq!(made.snapshot.unwrap().size_bytes, 8 << 20);
            assert_eq!(snapshots(controller), ["csi-origin@csi-monday"]);
        },
    );
    let prepare = |controller: &Controller| {
        prepared_snapshot(controller);
        let mut asked = new_volume("a", 8 * MIB);
        asked.volume_content_source = from_snapshot("csi-origin@csi-monday");
        create(controller, &asked);
    };
    // The snapshot, the origin and the clone, each while others need it.
    at_each_step(
        &prepare,
        &|controller| controller.delete_snapshot(&gone_snapshot("csi-origin@csi-monday")),
        &|_, controller, _| assert!(snapshots(controller).is_empty()),
    );
    let gone = |volume: &str| v1::DeleteVolumeRequest {
        volume_id: volume.to_owned(),
        ..v1::DeleteVolumeRequest::default()
    };
    at_each_step(
        &prepare,
        &|controller| controller.delete_volume(&gone("csi-origin")),
        &|_, controller, _| {
            assert_eq!(volumes(controller).len(), 1);
            assert_eq!(snapshots(controller), ["csi-origin@csi-monday"], "a snapshot outlives its volume");
        },
    );
    at_each_step(
        &|controller| {
            prepare(controller);
            controller.delete_snapshot(&gone_snapshot("csi-origin@csi-monday")).unwrap();
            delete(controller, "csi-origin");
        },
        &|controller| controller.delete_volume(&gone("csi-a")),
        &|_, controller, _| assert!(volumes(controller).is_empty()),
    );
}

#[test]
fn incompatible_objects_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    let controller = controller(&server);
    prepared_snapshot(&controller);
    create(&controller, &new_volume("other", 8 * MIB));
    let code = |asked: &v1::CreateVolumeRequest| controller.create_volume(asked).unwrap_err().code();
    assert_eq!(code(&new_volume("origin", 16 * MIB)), Code::AlreadyExists);
    let clone = |name: &str, bytes, source| v1::CreateVolumeRequest {
        volume_content_source: source,
        ..new_volume(name, bytes)
    };
    assert_eq!(code(&clone("other", 8 * MIB, from_volume("csi-origin"))), Code::AlreadyExists);
    assert_eq!(code(&clone("b", 4 * MIB, from_snapshot("csi-origin@csi-monday"))), Code::OutOfRange);
    assert_eq!(code(&clone("b", 8 * MIB, from_snapshot("csi-other@csi-monday"))), Code::NotFound);
    assert_eq!(code(&clone("b", 8 * MIB, from_volume("csi-none"))), Code::NotFound);
    let taken = controller.create_snapshot(&new_snapshot("monday", "csi-other")).unwrap_err();
    assert_eq!(taken.code(), Code::AlreadyExists);
    // A deleted volume whose snapshot is left does not come back under its name.
    delete(&controller, "csi-origin");
    assert_eq!(code(&new_volume("origin", 8 * MIB)), Code::FailedPrecondition);
    controller.delete_snapshot(&gone_snapshot("csi-origin@csi-monday")).unwrap();
    create(&controller, &new_volume("origin", 8 * MIB));
    // Those of the owner stay, and are no volumes of the driver.
    server.good(&["volume", "create", "mine", "--size", "64M"]);
    server.good(&["lun", "create", "mine/disk", "--size", "8M"]);
    delete(&controller, "mine");
    assert!(server.good(&["volume", "list"]).contains("mine"));
    assert_eq!(volumes(&controller).len(), 2);
    // A full server, and one that is away.
    let huge = controller.create_volume(&new_volume("huge", 1 << 60)).unwrap_err();
    assert!(matches!(huge.code(), Code::OutOfRange | Code::ResourceExhausted), "{huge}");
    let mut server = server;
    server.kill();
    assert_eq!(controller.create_volume(&new_volume("c", 8 * MIB)).unwrap_err().code(), Code::Unavailable);
    assert!(!controller.probe().unwrap());
}
