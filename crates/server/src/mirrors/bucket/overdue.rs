//! Mirrors in buckets that are late against their own schedule, and those that no one ever
//! verified. A mirror without an RPO has no other limit of its lag.

use cairn_api as api;

use super::BucketMirrors;
use crate::schedules::put_back;

/// Intervals after which a lag is a problem: one passes until the update, and one within it.
const INTERVALS: u64 = 3;
/// And this time at least, as short intervals may be missed beside other work.
const LAG_MS_MIN: u64 = 60_000;
/// Age of an image that no one verified, from which on advice is given.
const UNVERIFIED_MS: u64 = 30 * 86_400_000;
const DAY_MS: u64 = 86_400_000;

/// The problem of a mirror whose updates take longer than their interval.
pub(super) fn overdue(shown: &api::BucketMirror) -> Option<api::Problem> {
    let (every_ms, lag_ms) = (shown.every_ms?, shown.lag_ms?);
    let most = every_ms.saturating_mul(INTERVALS).max(LAG_MS_MIN);
    if shown.check > 0 || shown.paused || lag_ms <= most {
        return None;
    }
    Some(api::Problem {
        subject: shown.name.clone(),
        message: format!(
            "the mirror is late: its lag is {}, and an image is due every {}",
            put_back(Some(lag_ms)),
            put_back(Some(every_ms))
        ),
        next: format!(
            "`cairn mirror show {0}` shows the running update; if its link is too slow, `cairn mirror set {0} --every 1h` or a higher --limit",
            shown.name
        ),
    })
}

/// Advice for a mirror that was not verified for a month.
fn unverified(shown: &api::BucketMirror, since_ms: u64, now_ms: u64) -> Option<api::Problem> {
    let verified_ms = shown.verified.as_ref().map(|verified| verified.started_ms);
    let age_ms = now_ms.saturating_sub(verified_ms.unwrap_or(since_ms));
    if age_ms < UNVERIFIED_MS || shown.image.is_none() {
        return None;
    }
    let days = age_ms / DAY_MS;
    let message = match verified_ms {
        None => format!("this mirror in a bucket is {days} days old, and was never verified"),
        Some(_) => format!("this mirror in a bucket was not verified for {days} days"),
    };
    Some(api::Problem {
        subject: shown.name.clone(),
        message,
        next: format!("`cairn mirror verify {}` reads its newest image and checks each object", shown.name),
    })
}

impl BucketMirrors {
    /// Advice for mirrors whose images no one verified for long.
    pub(crate) fn unverified(&self) -> Vec<api::Problem> {
        let now_ms = self.now_ms();
        let advice = |mirror: std::sync::Arc<super::BucketMirror>| {
            let since_ms = mirror.document.lock().created_ms?;
            unverified(&self.show(&mirror), since_ms, now_ms)
        };
        self.all().into_iter().filter_map(advice).collect()
    }
}

#[cfg(test)]
mod tests;
