//! Images of mirrors in a few words: their number and time, or the snapshot of the source that they
//! are.
//!
//! The names that servers give to images have 63 characters: `mirror.PEER-RELATIONSHIP.NUMBER`.
//! They are in JSON, and with `-v`.

use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::output::duration;

static IN_FULL: AtomicBool = AtomicBool::new(false);

/// Shows names as servers have them from now on.
pub fn show_in_full() {
    IN_FULL.store(true, Ordering::Relaxed);
}

/// Names are shown as servers have them.
pub fn is_in_full() -> bool {
    IN_FULL.load(Ordering::Relaxed)
}

/// The number of an image that an update made, if `name` is that of one.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix("mirror.")?.rsplit_once('.')?.1.parse().ok()
}

/// `image 1 of 14:57:48`, or `snapshot daily.1 of 14:57:48`.
pub fn words(name: Option<&str>, taken_ms: Option<u64>) -> String {
    let Some(name) = name else { return "no image".to_owned() };
    let what = match number(name) {
        _ if is_in_full() => format!("image {name}"),
        Some(number) => format!("image {number}"),
        None => format!("snapshot {name}"),
    };
    match taken_ms {
        Some(at) => format!("{what} of {}", clock(at)),
        None => what,
    }
}

/// The same with the age of the image.
pub fn words_and_age(name: Option<&str>, taken_ms: Option<u64>, age_ms: Option<u64>) -> String {
    let text = words(name, taken_ms);
    match age_ms.filter(|_| name.is_some()) {
        Some(age) => format!("{text} ({} ago)", duration(age)),
        None => text,
    }
}

/// In a cell of a table: `1 of 14:57:48`.
pub fn cell(name: Option<&str>, taken_ms: Option<u64>) -> String {
    let Some(name) = name else { return "-".to_owned() };
    let what = match number(name) {
        Some(number) if !is_in_full() => number.to_string(),
        _ => name.to_owned(),
    };
    match taken_ms {
        Some(at) => format!("{what} of {}", clock(at)),
        None => what,
    }
}

/// A time of this day, or a date and a time: local.
pub fn clock(at_ms: u64) -> String {
    clock_in(at_ms, Timestamp::now(), &TimeZone::system())
}

fn clock_in(at_ms: u64, now: Timestamp, zone: &TimeZone) -> String {
    let Ok(at) =
        i64::try_from(at_ms).map_err(drop).and_then(|ms| Timestamp::from_millisecond(ms).map_err(drop))
    else {
        return format!("{at_ms} ms");
    };
    let (at, now) = (at.to_zoned_datetime(zone.clone()), now.to_zoned_datetime(zone.clone()));
    let form = if at.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M" };
    at.strftime(form).to_string()
}

#[cfg(test)]
mod tests;
