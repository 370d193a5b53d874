//! Clients over TCP on a volume in memory.

#[allow(dead_code, reason = "this test program uses a part of it")]
mod harness;

use std::collections::BTreeSet;

use cairn_files::{New, SetXattr};
use cairn_frontend_nfs::{Rules, ServerOptions, Squash};
use cairn_proto_nfs::rpc::{self, Credential};
use cairn_proto_nfs::*;
use harness::client::{Client, at, mode, user};
use harness::{Scene, TestExport};

const FOLDER: New = New { mode: 0o755, uid: 0, gid: 0, device: 0, umask: 0 };

#[test]
fn files_are_made_written_read_and_removed() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut client = running.client();
    assert_eq!(client.exports(), ["/v"]);
    let root = client.mount("/v").unwrap();
    assert_eq!(client.stat(&root).unwrap().kind, Kind::Directory);
    let folder = client.make_directory(&root, b"folder").unwrap();
    let file = client.create(&folder, b"file").unwrap();
    let data: Vec<u8> = (0..100_000u32).map(|byte| byte as u8).collect();
    let written = client.write(&file, 3, &data).unwrap();
    assert_eq!((written.count, written.committed), (100_000, Stable::FileSync));
    let read = client.read_all(&file).unwrap();
    assert_eq!((&read[..3], &read[3..]), (&[0; 3][..], &data[..]));
    let attributes = client.stat(&file).unwrap();
    assert_eq!((attributes.size, attributes.mode, attributes.links), (100_003, 0o644, 1));
    assert!(client.read(&file, 200_000, 10).unwrap().end);

    client.link(&file, at(&root, b"second")).unwrap();
    assert_eq!(client.stat(&file).unwrap().links, 2);
    client.rename(at(&folder, b"file"), at(&root, b"moved")).unwrap();
    assert_eq!(client.lookup(&folder, b"file"), Err(Status::NoEntry));
    assert_eq!(client.lookup(&root, b"moved").unwrap().file, file);
    assert_eq!(client.list(&root).unwrap(), ["folder", "moved", "second"]);
    client.remove(&root, b"second").unwrap();
    client.remove(&root, b"moved").unwrap();
    assert_eq!(client.stat(&file), Err(Status::Stale));
    assert_eq!(client.remove(&root, b"folder").unwrap_err(), Status::IsDirectory);
    client.remove_directory(&root, b"folder").unwrap();
    assert_eq!(client.stat(&folder), Err(Status::Stale));

    let link = client.make_link(at(&root, b"link"), b"../any where").unwrap();
    assert_eq!(client.read_link(&link).unwrap(), b"../any where");
    assert_eq!(client.read(&link, 0, 10), Err(Status::Invalid));
    assert_eq!(client.read(&root, 0, 10), Err(Status::IsDirectory));
    let node = MakeNode {
        kind: Kind::CharacterDevice,
        attributes: mode(0o600),
        device: DeviceNumbers { major: 300, minor: 70_000 },
    };
    let made = client.call(&Call::MkNod { place: at(&root, b"device"), node });
    let Reply::MkNod(Ok(Made { attributes: Some(made), .. })) = made else { panic!("{made:?}") };
    assert_eq!((made.kind, made.device), (node.kind, node.device));
    let space = client.call(&Call::FsStat { file: root });
    assert!(matches!(space, Reply::FsStat(Ok(space)) if space.free_bytes > 1 << 20), "{space:?}");
    let limits = client.call(&Call::FsInfo { file: root });
    assert!(matches!(limits, Reply::FsInfo(Ok(limits)) if limits.write_max >= 64 << 10), "{limits:?}");
    let limits = client.call(&Call::PathConf { file: root });
    assert!(matches!(limits, Reply::PathConf(Ok(limits)) if limits.name_max == 255), "{limits:?}");
}

#[test]
fn invalid_names_and_handles_are_refused() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    for (name, wanted) in [
        (&b"a/b"[..], Status::Invalid),
        (b"nul\0", Status::Invalid),
        (b"", Status::NoEntry),
        (&[b'x'; 256], Status::NameTooLong),
        (b".", Status::Exists),
        (b"..", Status::Exists),
        (b".snapshot", Status::Exists),
    ] {
        assert_eq!(client.create(&root, name).unwrap_err(), wanted, "{name:?}");
        assert_eq!(client.make_directory(&root, name).unwrap_err(), wanted, "{name:?}");
    }
    assert_eq!(client.lookup(&root, &[b'x'; 256]), Err(Status::NameTooLong));
    assert_eq!(client.lookup(&root, b"a/b"), Err(Status::Invalid));
    assert_eq!(client.remove_directory(&root, b"..").unwrap_err(), Status::Invalid);
    assert_eq!(client.list(&root).unwrap(), Vec::<String>::new());

    // Every bit of a handle is covered by its code.
    for bit in 0..512 {
        let mut bytes = root.as_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let forged = Handle::new(&bytes).unwrap();
        let status = client.stat(&forged).unwrap_err();
        assert!(matches!(status, Status::BadHandle | Status::Stale), "bit {bit}: {status:?}");
    }
    for length in [0, 1, 32, 63] {
        let short = Handle::new(&root.as_bytes()[..length]).unwrap();
        assert_eq!(client.stat(&short), Err(Status::BadHandle));
    }
    client.stat(&root).unwrap();
}

#[test]
fn handle_of_a_removed_file_never_means_another_one() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    let first = client.create(&root, b"name").unwrap();
    client.remove(&root, b"name").unwrap();
    let second = client.create(&root, b"name").unwrap();
    client.write(&second, 0, b"of the second").unwrap();
    assert_ne!(first, second);
    assert_eq!(client.read(&first, 0, 10), Err(Status::Stale));
    assert_eq!(client.write(&first, 0, b"lost").unwrap_err(), Status::Stale);
    assert_eq!(client.commit(&first).unwrap_err(), Status::Stale);
    assert_eq!(client.read_all(&second).unwrap(), b"of the second");
}

#[test]
fn listing_of_thousands_survives_changes_between_its_parts() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    let name = |number: u32| format!("name-{number:05}");
    let pipelined: Vec<u32> = (0..3000).collect();
    for some in pipelined.chunks(100) {
        let names: Vec<String> = some.iter().map(|number| name(*number)).collect();
        let how = CreateHow::Guarded(mode(0o644));
        let calls: Vec<Call<'_>> =
            names.iter().map(|name| Call::Create { place: at(&root, name.as_bytes()), how }).collect();
        let first = client.xid;
        calls.iter().for_each(|call| _ = client.send(call));
        for index in 0..calls.len() {
            assert!(matches!(client.reply(first + index as u32, 8), Reply::Create(Ok(_))));
        }
    }
    // Of the names that stay, each comes once, whatever comes and goes.
    let (mut seen, mut cookie, mut round) = (Vec::new(), 0, 0);
    loop {
        let listing = client.list_plus_after(&root, cookie, 4096).unwrap();
        for entry in &listing.entries {
            cookie = entry.cookie;
            let name = String::from_utf8(entry.name.clone()).unwrap();
            if name.starts_with("name-") {
                assert_eq!(entry.attributes.map(|attributes| attributes.file_id), Some(entry.file_id));
                assert!(entry.file.is_some());
            }
            seen.push(name);
        }
        if listing.end {
            break;
        }
        // Numbers that are multiples of ten go.
        if round < 300 {
            client.remove(&root, name(round * 10).as_bytes()).unwrap();
            client.create(&root, format!("other-{round}").as_bytes()).unwrap();
            round += 1;
        }
    }
    let stayed = |seen: &String| seen.strip_prefix("name-").is_some_and(|number| !number.ends_with('0'));
    let seen: Vec<&String> = seen.iter().filter(|name| stayed(name)).collect();
    assert_eq!(seen.len(), 2700);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>().len(), 2700);
    // A huge size gives a bounded reply, a tiny one an error.
    let huge = client.list_after(&root, 0, u32::MAX).unwrap();
    assert!(!huge.end && huge.entries.len() < 3000);
    assert_eq!(client.list_after(&root, 0, 120).unwrap_err(), Status::TooSmall);
}

#[test]
fn permissions_are_those_of_the_user_and_its_groups() {
    let scene = Scene::new();
    let squashed = TestExport { rules: Rules::default(), path: "/squashed", key: 2, ..scene.whole() };
    let all = Rules { squash: Squash::All, anonymous: (77, 78), ..Rules::default() };
    let anonymous = TestExport { rules: all, path: "/anonymous", key: 3, ..scene.whole() };
    let running = scene.serve(vec![scene.whole(), squashed, anonymous]);
    let mut root_user = running.client();
    let root = root_user.mount("/v").unwrap();
    root_user.set(&root, &mode(0o1777)).unwrap();

    let mut alice = running.client().used_by(user(1000, 100));
    let file = alice.create(&root, b"of-alice").unwrap();
    alice.set(&file, &mode(0o640)).unwrap();
    alice.write(&file, 0, b"secret").unwrap();
    let attributes = alice.stat(&file).unwrap();
    assert_eq!((attributes.uid, attributes.gid, attributes.mode), (1000, 100, 0o640));
    let mut member =
        running.client().used_by(Credential::Sys { uid: 1001, gid: 5, groups: (85..101).collect() });
    assert_eq!(member.read_all(&file).unwrap(), b"secret");
    assert_eq!(member.write(&file, 0, b"x").unwrap_err(), Status::Access);
    assert_eq!(member.access(&file, 0x3f).unwrap(), access::READ);
    let mut stranger = running.client().used_by(user(1002, 102));
    assert_eq!(stranger.read(&file, 0, 10).unwrap_err(), Status::Access);
    assert_eq!(stranger.access(&file, 0x3f).unwrap(), 0);
    assert_eq!(stranger.set(&file, &mode(0o777)).unwrap_err(), Status::Perm);
    let taken = SetAttributes { uid: Some(1002), ..SetAttributes::default() };
    assert_eq!(stranger.set(&file, &taken).unwrap_err(), Status::Perm);
    assert_eq!(alice.set(&file, &taken).unwrap_err(), Status::Perm);
    // The directory is sticky.
    assert_eq!(stranger.remove(&root, b"of-alice").unwrap_err(), Status::Access);
    assert_eq!(stranger.rename(at(&root, b"of-alice"), at(&root, b"mine")).unwrap_err(), Status::Access);

    // Root of a client is an anonymous user on a squashed export, and its group gives no rights.
    let mut squashed = running.client();
    let other_root = squashed.mount("/squashed").unwrap();
    let of_root = root_user.create(&root, b"of-root").unwrap();
    root_user.set(&of_root, &mode(0o060)).unwrap();
    let same = squashed.lookup(&other_root, b"of-root").unwrap().file;
    assert_eq!(squashed.read(&same, 0, 1).unwrap_err(), Status::Access);
    let mut group_of_root = running.client().used_by(Credential::Sys { uid: 1002, gid: 0, groups: vec![0] });
    assert_eq!(group_of_root.read(&same, 0, 1).unwrap_err(), Status::Access);
    let nobody = squashed.create(&other_root, b"of-nobody").unwrap();
    let attributes = squashed.stat(&nobody).unwrap();
    assert_eq!((attributes.uid, attributes.gid), Rules::NOBODY);
    let mut anonymous = running.client().used_by(user(1000, 100));
    let third_root = anonymous.mount("/anonymous").unwrap();
    let made = anonymous.create(&third_root, b"of-all").unwrap();
    assert_eq!(anonymous.stat(&made).map(|made| (made.uid, made.gid)), Ok((77, 78)));
    let of_alice = anonymous.lookup(&third_root, b"of-alice").unwrap().file;
    assert_eq!(anonymous.read(&of_alice, 0, 10).unwrap_err(), Status::Access);
    // A handle of one export is none of another one.
    assert_ne!(of_alice, file);
    assert_eq!(
        root_user.rename(at(&root, b"of-root"), at(&third_root, b"of-root")).unwrap_err(),
        Status::CrossDevice
    );

    // An access control list: user 1002 may read, masked.
    let file_id = cairn_base::FileId(root_user.stat(&file).unwrap().file_id);
    let rules: [(u16, u16, u32); 5] = [(1, 6, !0), (2, 7, 1002), (4, 0, !0), (16, 4, !0), (32, 0, !0)];
    let mut list = vec![2, 0, 0, 0];
    for (tag, rights, id) in rules {
        list.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(id.to_le_bytes()));
    }
    scene.tree.set_xattr(file_id, b"system.posix_acl_access", &list, SetXattr::Any).unwrap();
    assert_eq!(stranger.read_all(&file).unwrap(), b"secret");
    assert_eq!(stranger.write(&file, 0, b"x").unwrap_err(), Status::Access);
    assert_eq!(member.read(&file, 0, 10).unwrap_err(), Status::Access);
}

#[test]
fn write_by_another_user_takes_rights_of_a_program() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut owner = running.client();
    let root = owner.mount("/v").unwrap();
    let program = owner.create(&root, b"program").unwrap();
    owner.set(&program, &mode(0o6777)).unwrap();
    owner.write(&program, 0, b"by root").unwrap();
    assert_eq!(owner.stat(&program).unwrap().mode, 0o6777);
    let mut other = running.client().used_by(user(5, 5));
    other.write(&program, 0, b"by another").unwrap();
    assert_eq!(owner.stat(&program).unwrap().mode, 0o777);
    // A user that is in no group of the file does not set its group ID.
    let mine = other.create(&root, b"x").unwrap_err();
    assert_eq!(mine, Status::Access);
}

#[test]
fn snapshots_are_below_every_directory_and_do_not_change() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    let folder = client.make_directory(&root, b"folder").unwrap();
    let file = client.create(&folder, b"file").unwrap();
    client.write(&file, 0, b"old").unwrap();
    scene.volume.create_snapshot("monday").unwrap();
    client.write(&file, 0, b"new").unwrap();
    client.create(&folder, b"later").unwrap();
    scene.volume.create_snapshot("tuesday").unwrap();
    client.remove(&folder, b"file").unwrap();

    assert_eq!(client.list(&root).unwrap(), ["folder"]);
    let snapshots = client.lookup(&folder, b".snapshot").unwrap();
    assert_eq!(client.list(&snapshots.file).unwrap(), ["monday", "tuesday"]);
    let monday = client.walk(&folder, ".snapshot/monday").unwrap();
    assert_eq!(client.list(&monday).unwrap(), ["file"]);
    let tuesday = client.walk(&root, ".snapshot/tuesday/folder").unwrap();
    assert_eq!(client.list(&tuesday).unwrap(), ["file", "later"]);
    for (directory, content) in [(monday, &b"old"[..]), (tuesday, b"new")] {
        let past = client.lookup(&directory, b"file").unwrap();
        assert_eq!(client.read_all(&past.file).unwrap(), content);
        assert_ne!(past.attributes.unwrap().file_id, client.stat(&folder).unwrap().file_id);
        assert_eq!(client.write(&past.file, 0, b"x").unwrap_err(), Status::ReadOnly);
        assert_eq!(client.set(&past.file, &mode(0)).unwrap_err(), Status::ReadOnly);
        assert_eq!(client.remove(&directory, b"file").unwrap_err(), Status::ReadOnly);
        assert_eq!(client.create(&directory, b"x").unwrap_err(), Status::ReadOnly);
        assert_eq!(client.rename(at(&directory, b"file"), at(&root, b"x")).unwrap_err(), Status::ReadOnly);
        assert_eq!(client.lookup(&directory, b".snapshot"), Err(Status::NoEntry));
    }
    assert_eq!(client.create(&snapshots.file, b"x").unwrap_err(), Status::ReadOnly);
    let plus = client.list_plus_after(&snapshots.file, 0, 8192).unwrap();
    let handles: Vec<Handle> = plus.entries.iter().filter_map(|entry| entry.file).collect();
    assert_eq!(handles[0], monday);
    // Up again: from a snapshot to the `.snapshot` of the export, and from there to the present.
    assert_eq!(client.lookup(&monday, b"..").unwrap().attributes.unwrap().kind, Kind::Directory);
    let top = client.walk(&root, ".snapshot/monday").unwrap();
    let up = client.lookup(&top, b"..").unwrap().file;
    assert_eq!(up, client.lookup(&root, b".snapshot").unwrap().file);
    assert_eq!(client.lookup(&up, b"..").unwrap().file, root);
    // It can be mounted by itself.
    assert_eq!(client.mount("/v/folder/.snapshot/monday"), Ok(monday));
    // All numbers of files differ.
    let numbers: BTreeSet<u64> = [root, folder, snapshots.file, monday, tuesday, top, up]
        .iter()
        .map(|handle| client.stat(handle).unwrap().file_id)
        .collect();
    assert_eq!(numbers.len(), 7);

    let monday_id = scene.volume.snapshot_named("monday").unwrap().id;
    scene.volume.delete_snapshots(&[monday_id]).unwrap();
    assert_eq!(client.stat(&monday), Err(Status::Stale));
    assert_eq!(client.list(&snapshots.file).unwrap(), ["tuesday"]);
}

#[test]
fn no_path_leads_out_of_an_export() {
    let scene = Scene::new();
    let tree = &scene.tree;
    let home = tree.make_directory(tree.root(), b"home", &FOLDER).unwrap().file;
    let inner = tree.make_directory(home, b"inner", &FOLDER).unwrap().file;
    tree.make_directory(tree.root(), b"private", &FOLDER).unwrap();
    scene.volume.create_snapshot("s").unwrap();
    let part = TestExport { path: "/v/home", root: home, key: 9, ..scene.whole() };
    let running = scene.serve(vec![part]);
    let mut client = running.client();
    assert_eq!(client.mount("/v"), Err(MountStatus::NoEntry));
    assert_eq!(client.mount("/v/home/.."), Err(MountStatus::Invalid));
    assert_eq!(client.mount("/v/homes"), Err(MountStatus::NoEntry));
    let root = client.mount("/v/home").unwrap();
    assert_eq!(client.lookup(&root, b"..").unwrap().file, root);
    let parent = &client.list_after(&root, 0, 4096).unwrap().entries[1];
    assert_eq!((&parent.name[..], parent.file_id), (&b".."[..], home.0));
    let inside = client.mount("/v/home/inner").unwrap();
    assert_eq!(client.lookup(&inside, b"..").unwrap().file, root);
    // Also not through the past.
    let past = client.walk(&root, ".snapshot/s").unwrap();
    assert_eq!(client.list(&past).unwrap(), ["inner"]);
    let up = client.lookup(&past, b"..").unwrap().file;
    assert_eq!(client.lookup(&up, b"..").unwrap().file, root);
    // Nor through a directory that was moved out.
    tree.rename(home, b"inner", tree.root(), b"outside", cairn_files::Rename::Replace).unwrap();
    assert_eq!(client.stat(&inside).unwrap().file_id, inner.0);
    assert_eq!(client.lookup(&inside, b".."), Err(Status::Access));
}

#[test]
fn clients_of_other_networks_are_refused() {
    let scene = Scene::new();
    let open = scene.whole();
    let closed = TestExport { path: "/closed", refuses: true, key: 4, ..scene.whole() };
    let running = scene.serve(vec![open, closed]);
    let mut client = running.client();
    assert_eq!(client.mount("/closed"), Err(MountStatus::Access));
    assert_eq!(client.exports(), ["/v"]);
    assert_eq!(running.server.sessions(), []);
    let root = client.mount("/v").unwrap();
    client.stat(&root).unwrap();
    assert_eq!(running.server.sessions().len(), 1);
}

#[test]
fn read_only_export_refuses_changes() {
    let scene = Scene::new();
    let rules = Rules { read_only: true, ..scene.whole().rules };
    let running = scene.serve(vec![TestExport { rules, ..scene.whole() }]);
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    assert_eq!(client.create(&root, b"x").unwrap_err(), Status::ReadOnly);
    assert_eq!(client.set(&root, &mode(0)).unwrap_err(), Status::ReadOnly);
    assert_eq!(client.access(&root, access::MODIFY | access::READ).unwrap(), access::READ);
    client.commit(&root).unwrap();
}

#[test]
fn repeated_change_is_done_once() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    let file = client.create(&root, b"file").unwrap();
    let mut again = running.client();
    let mut both = |call: &Call<'_>| {
        let xid = client.xid;
        let first = client.call(call);
        // On another connection, as after a cut.
        again.xid = xid;
        assert_eq!(again.call(call), first, "{call:?}");
        first
    };
    let how = CreateHow::Guarded(mode(0o644));
    assert!(matches!(both(&Call::Create { place: at(&root, b"new"), how }), Reply::Create(Ok(_))));
    assert!(matches!(both(&Call::MkDir { place: at(&root, b"d"), new: mode(0o755) }), Reply::MkDir(Ok(_))));
    let (from, to) = (at(&root, b"new"), at(&root, b"newer"));
    assert!(matches!(both(&Call::Rename { from, to }), Reply::Rename(Ok(_))));
    assert!(matches!(both(&Call::Link { file, place: at(&root, b"link") }), Reply::Link(Ok(_))));
    assert!(matches!(both(&Call::Remove { place: at(&root, b"newer") }), Reply::Remove(Ok(_))));
    assert!(matches!(both(&Call::RmDir { place: at(&root, b"d") }), Reply::RmDir(Ok(_))));
    // A write that comes again does not overwrite a later one.
    let stable = Stable::Unstable;
    let write = |data| Call::Write { file, offset: 0, count: 1, stable, data };
    let xid = client.xid;
    client.call(&write(b"1"));
    client.call(&write(b"2"));
    again.xid = xid;
    again.call(&write(b"1"));
    assert_eq!(client.read_all(&file).unwrap(), b"2");
    // The same number with other bytes is another request.
    again.xid = xid;
    again.call(&write(b"3"));
    assert_eq!(client.read_all(&file).unwrap(), b"3");
}

#[test]
fn repeated_change_in_one_round_is_done_once() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    let make = Call::Create { place: at(&root, b"x"), how: CreateHow::Guarded(mode(0o644)) };
    let xid = client.send(&make);
    client.xid = xid;
    client.send(&make);
    let first = client.reply(xid, 8);
    assert!(matches!(first, Reply::Create(Ok(_))));
    assert_eq!(client.reply(xid, 8), first);
}

#[test]
fn create_follows_its_mode() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    let verifier = *b"12345678";
    let made = client.create_as(&root, b"exclusive", CreateHow::Exclusive(verifier)).unwrap();
    // The client repeats it to a server that has forgotten the first one.
    let again = client.create_as(&root, b"exclusive", CreateHow::Exclusive(verifier)).unwrap();
    assert_eq!(made.file, again.file);
    let other = client.create_as(&root, b"exclusive", CreateHow::Exclusive([0; 8]));
    assert_eq!(other.unwrap_err(), Status::Exists);
    let guarded = client.create_as(&root, b"exclusive", CreateHow::Guarded(mode(0o600)));
    assert_eq!(guarded.unwrap_err(), Status::Exists);
    let file = made.file.unwrap();
    client.write(&file, 0, b"content").unwrap();
    client.create(&root, b"exclusive").unwrap();
    assert_eq!(client.read_all(&file).unwrap(), b"content");
    let cut = SetAttributes { size: Some(3), ..SetAttributes::default() };
    client.create_as(&root, b"exclusive", CreateHow::Unchecked(cut)).unwrap();
    assert_eq!(client.read_all(&file).unwrap(), b"con");
    client.make_directory(&root, b"d").unwrap();
    assert_eq!(client.create(&root, b"d").unwrap_err(), Status::Exists);
}

#[test]
fn attributes_before_a_change_are_those_that_the_client_knows() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    let file = client.create(&root, b"file").unwrap();
    let known = client.stat(&root).unwrap();
    scene.clock.advance(std::time::Duration::from_secs(5));
    let Wcc { before: Some(before), after: Some(after) } = client.remove(&root, b"file").unwrap() else {
        panic!("no attributes");
    };
    assert_eq!((before.size, before.modified, before.changed), (known.size, known.modified, known.changed));
    assert!(after.changed.seconds >= known.changed.seconds + 5);
    assert_eq!(client.stat(&root).unwrap(), after);
    assert_eq!(client.stat(&file), Err(Status::Stale));

    let file = client.create(&root, b"file").unwrap();
    let changed = client.stat(&file).unwrap().changed;
    let set = |guard| Call::SetAttr { file, new: mode(0o600), guard: Some(guard) };
    let wrong = Time { seconds: 1, nanoseconds: 1 };
    assert!(matches!(client.call(&set(wrong)), Reply::SetAttr(Err(Failed { status: Status::NotSync, .. }))));
    assert!(matches!(client.call(&set(changed)), Reply::SetAttr(Ok(_))));
    let times = SetAttributes {
        accessed: SetTime::At(Time { seconds: 7, nanoseconds: 8 }),
        modified: SetTime::At(Time { seconds: u32::MAX, nanoseconds: 9 }),
        ..SetAttributes::default()
    };
    client.set(&file, &times).unwrap();
    let attributes = client.stat(&file).unwrap();
    assert_eq!(SetTime::At(attributes.accessed), times.accessed);
    assert_eq!(SetTime::At(attributes.modified), times.modified);
}

#[test]
fn invalid_calls_are_answered_and_invalid_streams_closed() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    for (program, version, procedure) in [
        (rpc::NFS_PROGRAM, 2, 1),
        (rpc::NFS_PROGRAM, 4, 1),
        (rpc::NFS_PROGRAM, 3, 22),
        (rpc::NFS_PROGRAM, 3, 1),
        (rpc::MOUNT_PROGRAM, 1, 0),
        (rpc::MOUNT_PROGRAM, 3, 6),
        (100_021, 4, 0),
        (100_227, 3, 0),
    ] {
        let xid = client.send_rpc(program, version, procedure, &[1, 2, 3, 4]);
        let record = client.receive().unwrap();
        let reply = rpc::parse_reply(&record).unwrap();
        assert_eq!((reply.xid, reply.results), (xid, None), "{program} {version} {procedure}");
    }
    client.stat(&root).unwrap();
    let streams: [&[u8]; 3] = [&[0xff; 4], &[0x80, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 1], &[0; 4096]];
    for stream in streams {
        let mut hostile = running.client();
        hostile.send_bytes(stream);
        assert_eq!(hostile.receive(), None);
    }
    client.stat(&root).unwrap();
}

#[test]
fn many_clients_write_at_once() {
    let scene = Scene::new();
    let running = scene.serve(vec![scene.whole()]);
    let root = running.client().mount("/v").unwrap();
    std::thread::scope(|scope| {
        for number in 0..8u8 {
            let mut client: Client = running.client();
            scope.spawn(move || {
                let folder = client.make_directory(&root, format!("d{number}").as_bytes()).unwrap();
                for index in 0..20u8 {
                    let name = format!("f{index}");
                    let file = client.create(&folder, name.as_bytes()).unwrap();
                    let data = vec![number ^ index; 10_000];
                    let written = client.write_as(&file, 0, &data, Stable::Unstable).unwrap();
                    assert_eq!(written.committed, Stable::Unstable);
                    assert_eq!(client.commit(&file).unwrap(), written.verifier);
                    assert_eq!(client.read_all(&file).unwrap(), data);
                }
                assert_eq!(client.list(&folder).unwrap().len(), 20);
            });
        }
    });
    let mut client = running.client();
    assert_eq!(client.list(&root).unwrap().len(), 8);
    assert_eq!(running.server.totals()["/v"].written_bytes, 8 * 20 * 10_000);
}

#[test]
fn strangers_take_no_places_of_clients() {
    let scene = Scene::new();
    let options = ServerOptions { max_handshakes: 4, max_sessions: 2, ..ServerOptions::default() };
    let running = scene.serve_with(vec![scene.whole()], options);
    let mut first = running.client();
    let root = first.mount("/v").unwrap();
    first.stat(&root).unwrap();
    let silent: Vec<Client> = (0..8).map(|_| running.client()).collect();
    let mut second = running.client();
    second.stat(&root).unwrap();
    assert_eq!(running.server.sessions().len(), 2);
    // There is no session for a third one, whose connection is closed after the first answer.
    let mut third = running.client();
    third.stat(&root).unwrap();
    assert_eq!(third.receive(), None);
    drop(silent);
    first.stat(&root).unwrap();
    second.stat(&root).unwrap();
}
