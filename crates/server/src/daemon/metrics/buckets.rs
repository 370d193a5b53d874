//! Metrics of buckets, and of mirrors in them.

use std::fmt;

use cairn_api as api;
use cairn_bucket::{Request, Tally};

use super::{Labels, Page, Scrape, fact, of, seconds};

impl Scrape {
    pub(super) fn buckets(&self, page: &mut Page<'_>) -> fmt::Result {
        let counts = |value: fn(&Tally) -> u64| {
            self.buckets.iter().map(move |(name, tally)| (of("bucket", name), value(tally)))
        };
        let requests = self.buckets.iter().flat_map(|(name, tally)| {
            Request::ALL.into_iter().map(move |kind| {
                let labels = vec![("bucket", name.clone()), ("operation", kind.word().to_owned())];
                (labels, tally.requests(kind))
            })
        });
        page.counters("bucket_requests", "Requests to the store since the server started", requests)?;
        page.counters(
            "bucket_failed_requests",
            "Requests that failed, also those that a later try made good",
            counts(Tally::failures),
        )?;
        page.counters("bucket_sent_bytes", "Bytes of objects that were put", counts(Tally::sent_bytes))?;
        page.counters(
            "bucket_received_bytes",
            "Bytes of objects that were read",
            counts(Tally::received_bytes),
        )?;
        self.bucket_mirrors(page)
    }

    fn of_each_bucket_mirror(
        &self,
        value: fn(&api::BucketMirror) -> Option<f64>,
    ) -> impl Iterator<Item = (Labels, f64)> {
        let mirrors = self.status.bucket_mirrors.iter();
        mirrors.filter_map(move |mirror| Some((of("mirror", &mirror.name), value(mirror)?)))
    }

    fn bucket_mirrors(&self, page: &mut Page<'_>) -> fmt::Result {
        let mirrors = &self.status.bucket_mirrors;
        let of_each = |value| self.of_each_bucket_mirror(value);
        let counts = |value: fn(&api::BucketMirror) -> u64| {
            mirrors.iter().map(move |mirror| (of("mirror", &mirror.name), value(mirror)))
        };
        let state = |mirror: &api::BucketMirror| {
            let word = serde_json::to_value(mirror.state).ok();
            let word = word.as_ref().and_then(|word| word.as_str()).unwrap_or_default().to_owned();
            (vec![("mirror", mirror.name.clone()), ("state", word)], 1.0)
        };
        page.gauges("bucket_mirror_state", "1 for the state that it is in", mirrors.iter().map(state))?;
        page.gauges(
            "bucket_mirror_check",
            "0 all is well, 1 a warning, 2 critical, as cairn mirror check says",
            of_each(|m| Some(f64::from(m.check))),
        )?;
        page.gauges(
            "bucket_mirror_lag_seconds",
            "Since the first change that no image in the bucket has",
            of_each(|m| m.lag_ms.map(seconds)),
        )?;
        page.gauges(
            "bucket_mirror_rpo_seconds",
            "The largest acceptable lag",
            of_each(|m| m.rpo_ms.map(seconds)),
        )?;
        page.gauges(
            "bucket_mirror_over_rpo",
            "Whether the lag exceeds the largest acceptable one",
            of_each(|m| m.rpo_ms.map(|_| fact(m.over_rpo))),
        )?;
        page.gauges(
            "bucket_mirror_image_timestamp_seconds",
            "When the newest image was made",
            of_each(|m| m.image_ms.map(seconds)),
        )?;
        page.gauges("bucket_mirror_images", "Images in the bucket", of_each(|m| Some(m.images as f64)))?;
        page.gauges(
            "bucket_mirror_stored_bytes",
            "Bytes of the objects of the newest image",
            of_each(|m| Some(m.stored_bytes as f64)),
        )?;
        page.counters("bucket_mirror_updates", "Updates that made an image", counts(|m| m.updates))?;
        page.counters("bucket_mirror_sent_bytes", "Bytes that updates have put", counts(|m| m.sent_bytes))?;
        page.gauges(
            "bucket_mirror_verified_timestamp_seconds",
            "Start of the last verification",
            of_each(|m| m.verified.as_ref().map(|verified| seconds(verified.started_ms))),
        )?;
        page.gauges(
            "bucket_mirror_damaged_objects",
            "Objects that the last verification found damaged or missing",
            of_each(|m| m.verified.as_ref().map(|verified| verified.damaged_total as f64)),
        )?;
        page.gauges(
            "bucket_mirror_contradicting_blocks",
            "Blocks that the last verification found missing in the bucket, or different",
            of_each(|m| m.verified.as_ref().map(|verified| verified.contradictions as f64)),
        )
    }
}
