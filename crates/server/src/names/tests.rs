//! Names.

use super::*;

#[test]
fn names_that_need_no_quoting_are_taken() {
    for name in ["vol0", "a", "0.b_c-D", &"x".repeat(64)] {
        check("volume", name).unwrap();
    }
    for name in ["", ".", "..", "-n", "a/b", "a@b", "a:b", "a b", "ä", &"x".repeat(65)] {
        assert!(check("volume", name).is_err(), "{name}");
    }
}

#[test]
fn export_names_have_a_volume_and_a_lun() {
    let name = ExportName::parse("vol0@s1/db").unwrap();
    assert_eq!(name, ExportName { volume: "vol0", snapshot: Some("s1"), lun: "db" });
    assert_eq!(ExportName::parse("vol0/db").unwrap().snapshot, None);
    assert_eq!(ExportName::parse("vol0"), None);
}

#[test]
fn address_of_all_interfaces_is_told_by_the_name_of_the_machine() {
    for address in ["0.0.0.0:3260", "[::]:3260"] {
        assert_eq!(from_elsewhere(address), format!("{}:3260", host()), "{address}");
    }
    for address in ["10.0.0.7:3260", "[::1]:3260", "storage1:3260"] {
        assert_eq!(from_elsewhere(address), address);
    }
}
