//! The content of `mirror.json`: the source of a mirror, the manner of following, and the last
//! contact.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use cairn_api as api;
use cairn_base::{Checksum, Clock, SnapshotId, Timestamp};
use cairn_mirror::{Birth, Compression, Contact, Destination, HOPS_MAX, Options, SourceStatus};
use serde::{Deserialize, Serialize};

use crate::mirrors::limits::Limits;
use crate::mirrors::when::When;
use crate::peers::Credential;
use crate::peers::identity::Fingerprint;
use crate::peers::outbound::SourceAddress;
use crate::state;

/// Time in which a mirror may take over, by default.
pub(super) const ALLOWED_MS: u64 = 15 * 60_000;

/// How long a failover or an abort waits for the transfer that it cuts off.
pub(super) const CUT_PATIENCE: Duration = Duration::from_secs(30);

/// The content of `mirror.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MirrorDocument {
    pub(super) address: String,
    pub(super) fingerprint: Fingerprint,
    pub(super) volume: String,
    /// Kept until the source has pinned this server.
    pub(super) credential: Option<Credential>,
    #[serde(flatten)]
    pub(super) when: When,
    pub(super) rpo_ms: Option<u64>,
    pub(super) no_hold: bool,
    pub(super) stall_ms: Option<u64>,
    pub(super) paused: bool,
    /// Names this mirror to its source.
    pub(super) relationship: u64,
    /// The last contact with the source.
    pub(super) contact: Option<Heard>,
    /// When the snapshots were made, by this server's clock, while there is a lock.
    pub(super) births: Option<Vec<Born>>,
    /// This server's clock when they were saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) births_ns: Option<u64>,
    /// The digest of the secret that lifts locks before their time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lock_key: Option<String>,
    /// The visible image, if the source reported that it had never made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parted: Option<Parted>,
    pub(super) sent_bytes: u64,
    pub(super) updates: u64,
    pub(super) last: Option<api::Transfer>,
    pub(super) verified: Option<api::MirrorVerify>,
    pub(super) mended_here: u64,
    pub(super) mended_there: u64,
    pub(super) mended_locked: u64,
    /// The change that led to the present roles; none if they are the initial ones.
    pub(super) change: Option<Changed>,
    pub(super) decision: Option<Decision>,
    pub(super) link: Link,
    /// For how long a snapshot stays whatever the source does.
    pub(super) lock_ms: Option<u64>,
    /// Its owner made it a mirror of that source, which therefore gets its role back on request.
    /// All others need a consent of the owner.
    pub(super) origin: bool,
    /// The other side announced its address when the roles changed; this side does not connect to
    /// it before its owner has named that address.
    pub(super) unseen: bool,
    /// The address of this machine from which the source is reached.
    pub(super) facing: Option<IpAddr>,
}

/// How the link to the source is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// [`Limits`] as text; none for no limit.
    pub(super) limit: Option<String>,
    /// One by default.
    pub(super) connections: Option<u32>,
    pub(super) compress: api::Compress,
    /// Updates by an interval are not spread over a part of it.
    pub(super) at_once: bool,
}

/// A [`Contact`] as it is kept.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Heard {
    at_ns: u64,
    now_ns: u64,
    blocks: u64,
    used: u64,
    base: u64,
    base_taken_ns: Option<u64>,
    first_change_ns: Option<u64>,
    blocks_behind: u64,
    /// Numbers of a [`Route`].
    route: [u64; HOPS_MAX],
}

impl From<Contact> for Heard {
    fn from(contact: Contact) -> Self {
        let status = contact.status;
        Self {
            at_ns: contact.at.0,
            now_ns: status.now.0,
            blocks: status.blocks,
            used: status.used,
            base: status.base.0,
            base_taken_ns: status.base_taken.map(|taken| taken.0),
            first_change_ns: status.first_change.map(|first| first.0),
            blocks_behind: status.blocks_behind,
            route: status.route.numbers(),
        }
    }
}

impl From<Heard> for Contact {
    fn from(heard: Heard) -> Self {
        let status = SourceStatus {
            now: Timestamp(heard.now_ns),
            blocks: heard.blocks,
            used: heard.used,
            base: SnapshotId(heard.base),
            base_taken: heard.base_taken_ns.map(Timestamp),
            first_change: heard.first_change_ns.map(Timestamp),
            blocks_behind: heard.blocks_behind,
            route: heard.route.into(),
        };
        Contact { at: Timestamp(heard.at_ns), status }
    }
}

/// A [`Birth`] as it is kept.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Born {
    snapshot: u64,
    created_ns: u64,
    at_ns: u64,
    /// How long it stays from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    lock_ms: Option<u64>,
}

impl From<Birth> for Born {
    fn from(birth: Birth) -> Self {
        Self {
            snapshot: birth.snapshot.0,
            created_ns: birth.created.0,
            at_ns: birth.at.0,
            lock_ms: birth.lock.map(millis),
        }
    }
}

impl From<Born> for Birth {
    fn from(born: Born) -> Self {
        Self {
            snapshot: SnapshotId(born.snapshot),
            created: Timestamp(born.created_ns),
            at: Timestamp(born.at_ns),
            lock: born.lock_ms.map(Duration::from_millis),
        }
    }
}

/// An image as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Parted {
    pub(super) image: u64,
    /// Its content, in hex.
    pub(super) root: String,
}

/// How an update is made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Manner {
    /// Where nothing is common, by comparing checksums.
    pub(super) compare: bool,
    /// The source holds the base, whatever the owner wants.
    pub(super) hold: bool,
    /// And then the next, and the next.
    pub(super) follows: bool,
    /// Time over which an update is spread, to spare the source's clients.
    pub(super) within: Option<Duration>,
}

pub(super) fn millis(length: Duration) -> u64 {
    length.as_millis().try_into().unwrap_or(u64::MAX)
}

pub(super) fn now_ms(clock: &dyn Clock) -> u64 {
    clock.now().0 / 1_000_000
}

impl MirrorDocument {
    /// The document of another side before the first contact.
    pub(crate) fn of(address: &str, fingerprint: Fingerprint, volume: &str, relationship: u64) -> Self {
        Self {
            address: address.to_owned(),
            fingerprint,
            volume: volume.to_owned(),
            credential: None,
            when: When::default(),
            rpo_ms: None,
            no_hold: false,
            stall_ms: None,
            paused: false,
            relationship,
            contact: None,
            births: None,
            births_ns: None,
            lock_key: None,
            parted: None,
            sent_bytes: 0,
            updates: 0,
            last: None,
            verified: None,
            mended_here: 0,
            mended_there: 0,
            mended_locked: 0,
            change: None,
            decision: None,
            link: Link::default(),
            lock_ms: None,
            origin: false,
            unseen: false,
            facing: None,
        }
    }

    /// Records the state of the source, and of its images.
    pub(super) fn heard(&mut self, destination: &Destination) {
        self.contact = destination.contact().map(Heard::from);
        self.note_births(destination);
        let parted = |(image, root): (SnapshotId, Checksum)| Parted { image: image.0, root: hex(root) };
        self.parted = destination.parted().map(parted);
    }

    /// Takes over what the owner of this side had set when it was the destination before: a
    /// returning role keeps these settings. A schedule from the other side overrides them.
    pub(super) fn settings_of(&mut self, before: &Self) {
        if self.when == When::default() {
            self.when = before.when.clone();
        }
        self.rpo_ms = self.rpo_ms.or(before.rpo_ms);
        self.no_hold = before.no_hold;
        self.stall_ms = before.stall_ms;
        self.link = before.link.clone();
        self.locks_of(before);
        // Only for that source: another one that its owner has let take over once needs a new
        // consent.
        self.origin = before.origin
            && before.fingerprint == self.fingerprint
            && before.relationship == self.relationship;
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            compression: match self.link.compress {
                api::Compress::Auto => Compression::Auto,
                api::Compress::Always => Compression::Zstd,
                api::Compress::Never => Compression::None,
            },
            hold: !self.no_hold,
            rpo: self.rpo(),
            gives_up: gives_up(self),
            lock: self.lock_ms.map(Duration::from_millis),
        }
    }

    /// How long a transfer may move no byte.
    pub(super) fn stall(&self, patience: Duration) -> Duration {
        self.stall_ms.map_or(patience, Duration::from_millis)
    }

    pub(super) fn source(&self) -> SourceAddress<'_> {
        SourceAddress {
            address: &self.address,
            fingerprint: self.fingerprint,
            volume: &self.volume,
            credential: self.credential.as_ref(),
            connections: 1,
        }
    }

    /// The same for a transfer.
    pub(super) fn link(&self) -> SourceAddress<'_> {
        SourceAddress { connections: self.link.connections.unwrap_or(1), ..self.source() }
    }

    pub(super) fn limits(&self) -> Limits {
        self.link.limit.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
    }
}

/// How the present roles came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    /// It was failed over.
    Failover,
    /// It took over, as planned.
    Reverse,
    /// It has given its role to the other side.
    HandOver,
    /// It gave way after both sides had parted.
    Resync,
}

/// A change of role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changed {
    pub(super) kind: Change,
    pub(super) at_ms: u64,
    /// The other side was notified.
    pub(super) told: bool,
}

/// A decision about the visible image; without effect if another one is visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Decision {
    pub(super) head: u64,
    /// The content of an image that was received, in hex; none for an own head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image: Option<String>,
    /// The file with the discarded blocks.
    pub(super) spill: Option<String>,
}

pub(super) fn hex(root: Checksum) -> String {
    root.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// None for an invalid text.
pub(super) fn unhex(root: &str) -> Option<Checksum> {
    u128::from_str_radix(root, 16).ok().map(|number| Checksum(number.to_be_bytes()))
}

/// The decision for a transfer, in the engine's form.
pub(super) fn gives_up(document: &MirrorDocument) -> Option<cairn_mirror::GivesUp> {
    let decision = document.decision.as_ref()?;
    let image = match &decision.image {
        // An invalid one has no effect.
        Some(image) => Some(unhex(image)?),
        None => None,
    };
    Some(cairn_mirror::GivesUp { head: SnapshotId(decision.head), image, spilled: decision.spill.is_some() })
}

/// Whether the volume in that folder follows a source, according to its document.
pub(crate) fn is_mirror(folder: &Path) -> bool {
    match state::load::<MirrorDocument>(&folder.join("mirror.json")) {
        Ok(Some(document)) => !document.takes_writes(),
        // An unreadable document counts as that of a mirror.
        Ok(None) => false,
        Err(_) => true,
    }
}

impl MirrorDocument {
    /// After a failover, or a reverse to this side.
    pub(super) fn takes_writes(&self) -> bool {
        self.change.is_some_and(|change| matches!(change.kind, Change::Failover | Change::Reverse))
    }
}
