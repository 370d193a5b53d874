//! Tests of access to exports.

use super::*;
use crate::daemon::error::DaemonError;

fn initiator(name: &str, address: &str) -> Initiator {
    Initiator { name: name.to_owned(), address: address.parse().unwrap() }
}

#[test]
fn network_holds_its_addresses_and_no_others() {
    let cases = [
        ("10.0.0.0/8", "10.9.8.7", true),
        ("10.0.0.0/8", "11.0.0.1", false),
        ("10.0.0.7", "10.0.0.7", true),
        ("10.0.0.7", "10.0.0.8", false),
        ("0.0.0.0/0", "192.168.1.1", true),
        ("fe80::/10", "fe80::1", true),
        ("::/0", "2001:db8::1", true),
        ("::1", "::2", false),
        ("::/0", "127.0.0.1", false),
    ];
    for (network, address, held) in cases {
        let network: Network = network.parse().unwrap();
        assert_eq!(network.holds(address.parse().unwrap()), held, "{network:?} and {address}");
    }
    for wrong in
        ["", "10.0.0.0/33", "10.0.0.0/255", "::/255", "10.0.0", "fe80::/129", "10.0.0.0/", "/8", "host"]
    {
        assert!(wrong.parse::<Network>().is_err(), "{wrong}");
    }
}

#[test]
fn access_is_kept_and_secrets_are_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let access = Access::open(dir.path()).unwrap();
    let anybody = initiator("iqn.2000-01.example:a", "127.0.0.1");
    assert_eq!(access.admit("v/a", &anybody), Ok(None));
    let chap = api::SetChap {
        name: "user".to_owned(),
        secret: "a long enough secret".to_owned(),
        target_name: None,
        target_secret: None,
    };
    let request = api::SetAccess {
        initiators: Some(vec!["iqn.2000-01.example:a".to_owned()]),
        networks: Some(vec!["127.0.0.0/8".to_owned()]),
        chap: Some(chap),
        ..api::SetAccess::default()
    };
    access.set("v/a", &request).unwrap();
    drop(access);
    let access = Access::open(dir.path()).unwrap();
    let account = access.admit("v/a", &anybody).unwrap().unwrap();
    assert_eq!(account.initiator.secret, b"a long enough secret");
    assert_eq!(access.admit("v/a", &initiator("iqn.other", "127.0.0.1")), Err(LoginError::Forbidden));
    let far = initiator("iqn.2000-01.example:a", "10.0.0.1");
    assert_eq!(access.admit("v/a", &far), Err(LoginError::Forbidden));
    assert_eq!(access.show("v/a").chap.as_deref(), Some("user"));
    let short = api::SetChap {
        name: "u".to_owned(),
        secret: "short".to_owned(),
        target_name: None,
        target_secret: None,
    };
    let request = api::SetAccess { chap: Some(short), ..api::SetAccess::default() };
    assert!(access.set("v/a", &request).is_err(), "a short secret is refused");
    access.forget(|name| name.starts_with("v/")).unwrap();
    assert_eq!(access.admit("v/a", &far), Ok(None));
}

#[test]
fn reservations_that_persist_are_there_after_a_restart_and_others_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let state = ReservationState {
        generation: 7,
        persists: true,
        registrations: vec![Registration { port: "iqn.a,i,0x00".to_owned(), key: u64::MAX }],
        reserved: Some((5, "iqn.a,i,0x00".to_owned())),
    };
    Access::open(dir.path()).unwrap().keep("v/a", &state).unwrap();
    let again = Access::open(dir.path()).unwrap();
    assert_eq!(again.reservations("v/a"), ReservationState { generation: 0, ..state.clone() });
    again.keep("v/a", &ReservationState { persists: false, ..state }).unwrap();
    assert_eq!(Access::open(dir.path()).unwrap().reservations("v/a"), ReservationState::default());
}

#[test]
fn what_stands_under_both_names_of_a_disk_is_joined_under_the_one_of_its_lun() {
    let dir = tempfile::tempdir().unwrap();
    let access = Access::open(dir.path()).unwrap();
    let reserved = |name: &str, key: u64, kind: u8| ReservationState {
        generation: 0,
        persists: true,
        registrations: vec![Registration { port: name.to_owned(), key }],
        reserved: Some((kind, name.to_owned())),
    };
    access.keep("v/a", &reserved("iqn.a,i,0x00", 1, 1)).unwrap();
    for device in ["one", "two"] {
        access.keep(device, &reserved("iqn.a,i,0x00", 2, 3)).unwrap();
        let request = api::SetAccess {
            read_only: Some(true),
            initiators: Some(vec![format!("iqn.{device}")]),
            ..api::SetAccess::default()
        };
        access.set(device, &request).unwrap();
    }
    let request = api::SetAccess { block_bytes: Some(4096), ..api::SetAccess::default() };
    access.set("v/a", &request).unwrap();
    let pairs = [("one", "v/a"), ("two", "v/b")].map(|(device, lun)| (device.to_owned(), lun.to_owned()));
    access.join(&pairs).unwrap();
    // The next start finds nothing that is left to join.
    for access in [access, Access::open(dir.path()).unwrap()] {
        access.join(&pairs).unwrap();
        let of = |port: &str, key| Registration { port: port.to_owned(), key };
        let a = access.reservations("v/a");
        assert_eq!(a.registrations, [of("iqn.a,i,0x00", 1), of("iqn.a,i,0x00,t,0x0002", 2)]);
        assert_eq!(a.reserved, Some((1, "iqn.a,i,0x00".to_owned())), "the LUN's own reservation holds");
        let b = access.reservations("v/b");
        assert_eq!(b.registrations, [of("iqn.a,i,0x00,t,0x0002", 2)]);
        assert_eq!(b.reserved, Some((3, "iqn.a,i,0x00,t,0x0002".to_owned())));
        let (a, b) = (access.show("v/a"), access.show("v/b"));
        assert_eq!(
            (a.read_only, a.block_bytes, a.initiators),
            (true, 4096, Vec::new()),
            "read-only by either"
        );
        assert_eq!((b.read_only, b.initiators), (true, vec!["iqn.two".to_owned()]));
        assert_eq!(access.reservations("one"), ReservationState::default());
        assert!(!access.show("one").read_only);
    }
}

#[test]
fn what_is_set_at_the_source_stands_back_behind_what_is_set_here() {
    let dir = tempfile::tempdir().unwrap();
    let access = Access::open(dir.path()).unwrap();
    let friend = initiator("iqn.2000-01.example:a", "127.0.0.1");
    let named = |lun: &str| LunAccess {
        lun: lun.to_owned(),
        initiators: vec!["iqn.other".to_owned()],
        block_bytes: 512,
        ..LunAccess::default()
    };
    let proven = LunAccess { chap: Some("me".to_owned()), initiators: Vec::new(), ..named("proven") };
    access.take_over("v", &[named("a"), proven.clone()]).unwrap();
    assert_eq!(access.admit("v/a", &friend), Err(LoginError::Forbidden));
    assert_eq!(access.admit("v/proven", &friend), Err(LoginError::Forbidden), "the secret is not known");
    assert_eq!(access.without_secret(), [("v/proven".to_owned(), "me".to_owned())]);
    assert_eq!(
        access.of_volume("v").unwrap(),
        [named("a"), proven.clone()],
        "a mirror of it is told the same"
    );
    // Another setting does not change access.
    let read_only = api::SetAccess { read_only: Some(true), ..api::SetAccess::default() };
    access.set("v/proven", &read_only).unwrap();
    assert_eq!(access.admit("v/proven", &friend), Err(LoginError::Forbidden));
    // All initiators: the default, but set explicitly.
    let all = api::SetAccess { initiators: Some(Vec::new()), ..api::SetAccess::default() };
    for _ in 0..2 {
        access.set("v/a", &all).unwrap();
        access.take_over("v", &[named("a"), named("b")]).unwrap();
        assert_eq!(access.admit("v/a", &friend), Ok(None));
        assert_eq!(access.admit("v/b", &friend), Err(LoginError::Forbidden));
    }
    access.take_over("v", &[]).unwrap();
    drop(access);
    let access = Access::open(dir.path()).unwrap();
    assert_eq!(access.admit("v/b", &friend), Ok(None), "the source lets everybody in again");
    assert!(access.show("v/proven").secret_lacks, "what was set here is kept as it was then");
}

#[test]
fn nothing_is_made_of_a_disk_of_which_it_is_not_known_who_may_use_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("exports.json");
    let access = Access::open(dir.path()).unwrap();
    let networks = Some(vec!["10.0.0.0/8".to_owned()]);
    access.set("v/a", &api::SetAccess { networks, ..api::SetAccess::default() }).unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, b"{").unwrap();
    let access = Access::open(dir.path()).unwrap();
    assert!(matches!(access.copy("v", "c"), Err(ServerError::Daemon(DaemonError::StateUnread { .. }))));
    // Known again, it would be open to everybody.
    std::fs::write(&path, whole).unwrap();
    access.read();
    access.copy("v", "c").unwrap();
    let far = initiator("iqn.2000-01.example:a", "127.0.0.1");
    assert_eq!(access.admit("c/a", &far), Err(LoginError::Forbidden));
}

#[test]
fn what_cannot_be_written_down_as_forgotten_holds_still() {
    let dir = tempfile::tempdir().unwrap();
    let access = Access::open(dir.path()).unwrap();
    let networks = Some(vec!["10.0.0.0/8".to_owned()]);
    access.set("v/a", &api::SetAccess { networks, ..api::SetAccess::default() }).unwrap();
    let registrations = vec![Registration { port: "iqn.a,i,0x00".to_owned(), key: 1 }];
    let reserved = ReservationState { generation: 0, persists: true, registrations, reserved: None };
    access.keep("v/a", &reserved).unwrap();
    let far = initiator("iqn.2000-01.example:a", "127.0.0.1");
    for name in ["exports.new", "reservations.new"] {
        let in_the_way = dir.path().join(name);
        std::fs::create_dir(&in_the_way).unwrap();
        access.forget(|export| export == "v/a").unwrap_err();
        let after_a_start = Access::open(dir.path()).unwrap();
        for access in [&access, &after_a_start] {
            let is_kept_out = access.admit("v/a", &far) == Err(LoginError::Forbidden);
            assert_eq!(is_kept_out, name == "exports.new", "{name}");
            assert_eq!(access.reservations("v/a"), reserved, "{name}");
        }
        std::fs::remove_dir(in_the_way).unwrap();
    }
    access.forget(|export| export == "v/a").unwrap();
    assert_eq!(access.reservations("v/a"), ReservationState::default());
}

#[test]
fn holder_is_changed_only_from_the_expected_one() {
    let dir = tempfile::tempdir().unwrap();
    let access = Access::open(dir.path()).unwrap();
    let change = |holder: &str, from: Option<&str>| api::SetAccess {
        holder: Some(holder.to_owned()),
        if_holder: from.map(str::to_owned),
        ..api::SetAccess::default()
    };
    access.set("v/a", &change("one", Some(""))).unwrap();
    let error = access.set("v/a", &change("two", Some(""))).map(drop).unwrap_err();
    assert!(matches!(error, ServerError::Busy { .. }), "{error}");
    assert_eq!(access.show("v/a").holder.as_deref(), Some("one"));
    access.set("v/a", &change("two", Some("one"))).unwrap();
    // Other changes keep it, and it survives a restart.
    access.set("v/a", &api::SetAccess { read_only: Some(true), ..api::SetAccess::default() }).unwrap();
    assert_eq!(Access::open(dir.path()).unwrap().show("v/a").holder.as_deref(), Some("two"));
    access.set("v/a", &change("", Some("two"))).unwrap();
    assert_eq!(access.show("v/a").holder, None);
    for bad in ["a\nb".to_owned(), "n".repeat(513)] {
        assert!(access.set("v/a", &change(&bad, None)).is_err());
    }
}
