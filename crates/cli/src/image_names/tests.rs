//! Images have a number and a time, and snapshots of the source keep their names.

use super::*;

#[test]
fn image_has_its_number_and_time_and_a_snapshot_its_name() {
    let long = "mirror.85e3050b58555fb261a44c8cd8566ca6-f9368392572b7992.12";
    assert_eq!(words(Some(long), None), "image 12");
    assert_eq!(words(Some("daily.3"), None), "snapshot daily.3");
    assert_eq!(words(None, Some(7)), "no image");
    assert_eq!(cell(Some(long), None), "12");
    assert_eq!(words_and_age(Some(long), None, Some(7)), "image 12 (7 ms ago)");
    let now: Timestamp = "2026-11-20T15:00:00Z".parse().unwrap();
    let at = |text: &str| text.parse::<Timestamp>().unwrap().as_millisecond() as u64;
    assert_eq!(clock_in(at("2026-11-20T14:57:48Z"), now, &TimeZone::UTC), "14:57:48");
    assert_eq!(clock_in(at("2026-11-19T14:57:48Z"), now, &TimeZone::UTC), "2026-11-19 14:57");
}
