//! When a mirror in a bucket is late, and when its owner should verify it.

use cairn_api as api;

use super::{DAY_MS, overdue, unverified};

fn mirror(every_ms: Option<u64>, lag_ms: Option<u64>) -> api::BucketMirror {
    let json = serde_json::json!({
        "id": "0", "name": "offsite:v", "volume": "v", "volume_id": "", "bucket": "offsite",
        "state": "mirrored", "reason": "", "remedy": null, "check": 0, "lag_ms": lag_ms, "rpo_ms": null,
        "over_rpo": false, "continuous": false, "every_ms": every_ms, "cron": null, "zone": null, "paused": false,
        "keep": {"last": 0, "hourly": 0, "daily": 0, "weekly": 0, "monthly": 0, "yearly": 0},
        "limit": null, "limit_now_bytes": null, "image": "1", "image_number": 1, "image_ms": 1, "images": 1,
        "stored_bytes": 0, "epoch": 1, "last": null, "next_ms": null, "sent_bytes": 0, "updates": 1,
        "problem": null, "verified": null, "repairs": 0
    });
    serde_json::from_value(json).unwrap()
}

#[test]
fn mirror_that_lags_three_intervals_is_late() {
    let minutes = |count: u64| Some(count * 60_000);
    assert!(overdue(&mirror(minutes(15), minutes(44))).is_none());
    let late = overdue(&mirror(minutes(15), minutes(50))).unwrap();
    assert!(late.message.contains("an image is due every"), "{late:?}");
    assert!(late.next.contains("mirror show offsite:v"), "{late:?}");
    // Short intervals may be missed for a minute.
    assert!(overdue(&mirror(Some(5_000), Some(59_000))).is_none());
    assert!(overdue(&mirror(Some(5_000), Some(61_000))).is_some());
    assert!(overdue(&mirror(None, minutes(500))).is_none(), "on request");
    assert!(overdue(&mirror(minutes(1), None)).is_none());
    let paused = api::BucketMirror { paused: true, ..mirror(minutes(1), minutes(99)) };
    assert!(overdue(&paused).is_none());
}

#[test]
fn mirror_without_a_verification_gets_advice_after_a_month() {
    let now = 1_000 * DAY_MS;
    let young = mirror(None, Some(0));
    assert!(unverified(&young, now - 29 * DAY_MS, now).is_none());
    let advice = unverified(&young, now - 31 * DAY_MS, now).unwrap();
    assert!(advice.message.contains("31 days old") && advice.next.contains("mirror verify"), "{advice:?}");
    let verified = api::BucketVerify { started_ms: now - 5 * DAY_MS, ..Default::default() };
    let verified = api::BucketMirror { verified: Some(verified), ..young };
    assert!(unverified(&verified, 0, now).is_none());
}
