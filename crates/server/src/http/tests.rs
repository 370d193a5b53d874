//! Tests of the volume that a request concerns.

use super::volume_in;

/// Only a request for the volume that waits for room gets that answer.
#[test]
fn what_has_the_name_of_a_volume_is_not_taken_for_it() {
    for path in ["/v1/volumes/db/snapshots", "/v1/mirrors/db", "/v1/devices/db/revert", "/v1/clones/db"] {
        assert_eq!(volume_in(path), Some("db"), "{path}");
    }
    for path in [
        "/v1/groups/db/failover",
        "/v1/peers/db",
        "/v1/jobs/db",
        "/v1/recordings/db",
        "/v1/images/restore",
        "/v1/state/restore",
        "/v1/volumes",
        "/metrics",
        "/",
        "",
    ] {
        assert_eq!(volume_in(path), None, "{path}");
    }
}
