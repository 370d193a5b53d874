//! The results of the demo, as a table and as an object.

use std::time::{Duration, Instant};

use cairn_api::Transfer;
use serde::Serialize;

use crate::output::{duration, size, table};

/// An image that the source froze for a transfer.
pub struct Image {
    /// Its snapshot.
    pub snapshot: String,
    /// Of the disk in it.
    pub hash: blake3::Hash,
    /// When it was frozen.
    pub at: Instant,
    /// Bytes that the demo had changed by then.
    pub written_bytes: u64,
}

/// A step.
#[derive(Debug, Serialize)]
pub struct Step {
    name: String,
    duration_ms: u64,
    note: String,
}

/// Everything.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// In order.
    pub steps: Vec<Step>,
    /// All together.
    pub total_ms: u64,
    transfers: Vec<Transfer>,
    /// Bytes that full copies would have sent instead of the baseline and the updates.
    full_bytes: u64,
    sent_bytes: u64,
    /// The snapshot that the mirror showed after the disaster.
    pub image: String,
    /// Written to the source after that image: gone with it.
    pub lost_bytes: u64,
    /// From the image to the kill.
    pub lost_ms: u64,
    /// Of the disk in that image, as the demo wrote it.
    pub expected: String,
    /// Of the disk, as the mirror gave it.
    pub found: String,
    /// They are the same.
    pub proved: bool,
}

impl Report {
    /// Notes a step.
    pub fn step(&mut self, name: &str, took: Duration, note: String) {
        self.steps.push(Step { name: name.to_owned(), duration_ms: took.as_millis() as u64, note });
    }

    /// Notes a transfer that went through.
    pub fn transfer(&mut self, transfer: &Transfer) {
        self.full_bytes += transfer.full_bytes;
        self.sent_bytes += transfer.sent_bytes;
        self.transfers.push(transfer.clone());
    }

    /// Sent by all transfers but the first.
    pub fn updates_sent_bytes(&self) -> u64 {
        self.transfers.iter().skip(1).map(|transfer| transfer.sent_bytes).sum()
    }

    /// For people.
    pub fn table(&self) -> String {
        let row = |step: &Step| [step.name.clone(), duration(step.duration_ms), step.note.clone()];
        let steps = table(["STEP", "TIME", ""], self.steps.iter().map(row));
        let full: u64 = self.transfers.iter().skip(1).map(|transfer| transfer.full_bytes).sum();
        let verdict = if self.proved { "identical" } else { "DIFFERENT" };
        format!(
            "\n{steps}\n\ntotal      {}\n\
             lost       {} written in the last {} before the kill; nothing else\n\
             sent       {} for {} updates; full copies would have sent {} ({:.0} x)\n\
             image      {}\n\
             written    {}\nread back  {}\nproof      {verdict}",
            duration(self.total_ms),
            size(self.lost_bytes),
            duration(self.lost_ms),
            size(self.updates_sent_bytes()),
            self.transfers.len().saturating_sub(1),
            size(full),
            full as f64 / self.updates_sent_bytes().max(1) as f64,
            self.image,
            self.expected,
            self.found,
        )
    }
}
