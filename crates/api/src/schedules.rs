//! Snapshots that are made by the clock, and how long they are kept.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A schedule that a new volume has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultSchedule {
    /// Its label.
    pub label: &'static str,
    /// One so often, counted from the creation of the volume.
    pub every_ms: u64,
    /// The newest that stay.
    pub last: u32,
}

const HOUR_MS: u64 = 3_600_000;

/// The schedules of a new volume: a day of snapshots every four hours, and two days of daily ones.
/// Those are the defaults of the file server in the paper of OSDI 1999, section 2.1.
pub const DEFAULT_SCHEDULES: [DefaultSchedule; 2] = [
    DefaultSchedule { label: "hourly", every_ms: 4 * HOUR_MS, last: 6 },
    DefaultSchedule { label: "daily", every_ms: 24 * HOUR_MS, last: 2 },
];

/// The snapshots of a label that stay after a new one was made. All others are deleted, but never
/// one that is held or open. Without any number all stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Keep {
    /// The newest.
    pub last: u32,
    /// The newest of each of this many hours that have one.
    pub hourly: u32,
    /// The newest of each of this many days.
    pub daily: u32,
    /// The newest of each of this many weeks, which begin on Monday.
    pub weekly: u32,
    /// The newest of each of this many months.
    pub monthly: u32,
    /// The newest of each of this many years.
    pub yearly: u32,
}

/// When snapshots are made, and how long they are kept: `every_ms` or `cron`, not both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetSchedule {
    /// One so often.
    pub every_ms: Option<u64>,
    /// A cron expression: minute, hour, day of the month, month, day of the week.
    pub cron: Option<String>,
    /// The time zone of the expression, and of the hours and days of `keep`; UTC by default. An
    /// IANA name such as `Europe/Berlin`.
    pub zone: Option<String>,
    /// How long they are kept.
    pub keep: Keep,
    /// Changes nothing; the answer shows the result of the real run.
    pub dry_run: bool,
}

/// A schedule of snapshots.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// The volume.
    pub volume: String,
    /// Its name; its snapshots are called LABEL.TIME.
    pub label: String,
    /// One so often.
    pub every_ms: Option<u64>,
    /// Or by a cron expression.
    pub cron: Option<String>,
    /// In this time zone.
    pub zone: String,
    /// How long snapshots are kept.
    pub keep: Keep,
    /// The existing snapshots that it has made, the oldest first.
    pub snapshots: Vec<String>,
    /// Those of them that the next run deletes.
    pub deletes: Vec<String>,
    /// When it last ran.
    pub last_ms: Option<u64>,
    /// When it runs next; nothing while the volume is a mirror, whose source decides.
    pub next_ms: Option<u64>,
    /// Why the last run failed.
    pub problem: Option<String>,
}

/// Requests the snapshots that a schedule would have made.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Simulate {
    /// The schedule.
    pub schedule: SetSchedule,
    /// For how long it runs, from now on.
    pub for_ms: u64,
}

/// The snapshots that a schedule would have made.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Simulation {
    /// Snapshots that were made.
    pub made: u64,
    /// The most that were there at once.
    pub most: u64,
    /// The times of the snapshots that remain at the end, the oldest first.
    pub kept_ms: Vec<u64>,
}
