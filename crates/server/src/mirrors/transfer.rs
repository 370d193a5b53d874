//! The interface to `cairn-mirror`: progress and errors in the terms of the API.

use std::io::{Read, Write};
use std::sync::atomic::AtomicBool;

use cairn_base::BLOCK_SIZE;
use cairn_mirror::{Client, Destination, MirrorError, Pace, Threads, TransferKind, TransferReport};

use crate::peers::identity::Fingerprint;
use crate::work::jobs::Progress;
use crate::work::threads::Scoped;

/// Digits of a fingerprint that name a peer: 128 bits, and short enough for the name of a snapshot.
const PEER_DIGITS: usize = 32;
pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;

/// The digits under which `cairn-mirror` knows the holder of a certificate.
pub(crate) fn peer_digits(certificate: Fingerprint) -> String {
    let mut digits = certificate.to_string();
    digits.truncate(PEER_DIGITS);
    digits
}

/// The visible progress of a transfer.
#[derive(Default)]
pub(crate) struct Seen {
    /// The name of the transferred snapshot.
    pub(crate) snapshot: String,
    pub(crate) sent_bytes: u64,
    /// Of the changed ones.
    pub(crate) arrived_bytes: u64,
    pub(crate) changed_bytes: u64,
    pub(crate) full_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) wasted_bytes: u64,
    pub(crate) up_to_date: bool,
}

/// On the destination: bringing the newest image.
pub(crate) struct Fetch<'a> {
    pub(crate) destination: &'a Destination,
    pub(crate) progress: &'a Progress,
    /// Ends it at the next record.
    pub(crate) cancel: &'a AtomicBool,
    pub(crate) compare: bool,
}

impl Fetch<'_> {
    /// Runs the transfer, and calls `seen` with its progress.
    pub(crate) fn run(
        &self,
        stream: &mut (impl Read + Write),
        seen: &mut dyn FnMut(Seen),
    ) -> Result<(), MirrorError> {
        let progress = self.progress;
        progress.phase(if self.compare { "comparing" } else { "waiting for the source" });
        let mut client = Client::hello(stream)?;
        let mut tell = |at: &cairn_mirror::TransferProgress| {
            progress.phase("transferring");
            progress.bytes(at.blocks * BLOCK, at.blocks_total * BLOCK);
            seen(Seen {
                snapshot: at.snapshot.clone(),
                sent_bytes: at.bytes,
                arrived_bytes: at.blocks * BLOCK,
                changed_bytes: at.blocks_total * BLOCK,
                full_bytes: at.full_blocks * BLOCK,
                kept_bytes: at.kept_blocks * BLOCK,
                wasted_bytes: 0,
                up_to_date: false,
            });
        };
        let mut work = cairn_mirror::Work {
            cancel: self.cancel,
            progress: &mut tell,
            threads: Some(&Scoped as &dyn Threads),
        };
        let report = match self.compare {
            true => self.destination.update_comparing(&mut client, &mut work)?,
            false => self.destination.update(&mut client, &mut work)?,
        };
        seen(Seen {
            snapshot: report.name,
            sent_bytes: report.bytes,
            arrived_bytes: report.blocks * BLOCK,
            changed_bytes: report.blocks * BLOCK,
            full_bytes: report.full_blocks * BLOCK,
            kept_bytes: report.kept_blocks * BLOCK,
            wasted_bytes: report.wasted_blocks * BLOCK,
            up_to_date: report.kind == TransferKind::UpToDate,
        });
        Ok(())
    }
}

/// On the destination: one round of following the source.
pub(crate) fn follow<S: Read + Write>(
    destination: &Destination,
    client: &mut Client<'_, S>,
    pace: Pace,
    cancel: &AtomicBool,
) -> Result<Option<TransferReport>, MirrorError> {
    let mut work =
        cairn_mirror::Work { cancel, progress: &mut |_| (), threads: Some(&Scoped as &dyn Threads) };
    destination.follow(client, pace, &mut work)
}
