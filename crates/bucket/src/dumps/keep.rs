//! The choice of dumps that stay: rules as for snapshots, and all dumps that a staying dump depends
//! on.

use std::collections::{HashMap, HashSet};

use cairn_base::Timestamp;
use cairn_format::dump::DumpId;

use super::index::DumpIndex;

const HOUR: u64 = 3_600_000_000_000;
const DAY: u64 = 24 * HOUR;

/// The number of the period that an instant is in.
type Period = fn(Timestamp) -> u64;

/// The number of dumps that stay: the newest of each hour, day, week, month and year in UTC. All
/// zero keeps all dumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeepDumps {
    /// The last ones.
    pub last: u32,
    /// Of the last hours that have one.
    pub hourly: u32,
    /// Of the last days that have one.
    pub daily: u32,
    /// Of the last weeks that have one, from Monday on.
    pub weekly: u32,
    /// Of the last months that have one.
    pub monthly: u32,
    /// Of the last years that have one.
    pub yearly: u32,
}

impl KeepDumps {
    fn keeps_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Which of these a rule keeps; the newest comes first.
    pub(crate) fn chosen(&self, newest: &[Timestamp]) -> Vec<bool> {
        if self.keeps_everything() {
            return vec![true; newest.len()];
        }
        let mut stays: Vec<bool> = (0..newest.len()).map(|at| at < self.last as usize).collect();
        let rules: [(u32, Period); 5] = [
            (self.hourly, hour),
            (self.daily, day),
            (self.weekly, week),
            (self.monthly, month),
            (self.yearly, year),
        ];
        for (count, period) in rules {
            let mut periods = HashSet::new();
            for (time, stays) in newest.iter().zip(&mut stays) {
                if periods.len() == count as usize {
                    break;
                }
                if periods.insert(period(*time)) {
                    *stays = true;
                }
            }
        }
        stays
    }
}

/// The dumps to delete, each before the dumps that it depends on.
///
/// A dump stays if a rule names it, if another staying dump depends on it, or if an unfinished dump
/// in `begun` does.
pub(super) fn expendable(dumps: &[DumpIndex], begun: &HashSet<DumpId>, keep: &KeepDumps) -> Vec<DumpId> {
    if keep.keeps_everything() {
        return Vec::new();
    }
    let mut newest: Vec<&DumpIndex> = dumps.iter().collect();
    newest.sort_by_key(|dump| std::cmp::Reverse((dump.created, dump.dump)));
    let mut stays: HashSet<DumpId> = begun.clone();
    let times: Vec<Timestamp> = newest.iter().map(|dump| dump.created).collect();
    let named = newest.iter().zip(keep.chosen(&times)).filter(|(_, stays)| *stays);
    stays.extend(named.map(|(dump, _)| dump.dump));
    let on: HashMap<DumpId, Option<DumpId>> = dumps.iter().map(|dump| (dump.dump, dump.on)).collect();
    for dump in stays.clone() {
        let mut next = on.get(&dump).copied().flatten();
        while let Some(below) = next.filter(|below| stays.insert(*below)) {
            next = on.get(&below).copied().flatten();
        }
    }
    let mut goes: Vec<&DumpIndex> = newest.into_iter().filter(|dump| !stays.contains(&dump.dump)).collect();
    // Clocks jump, so times do not show the dependencies between dumps.
    goes.sort_by_key(|dump| std::cmp::Reverse(depth(dump.dump, &on)));
    goes.into_iter().map(|dump| dump.dump).collect()
}

/// The number of dumps that it depends on.
fn depth(dump: DumpId, on: &HashMap<DumpId, Option<DumpId>>) -> usize {
    let mut next = on.get(&dump).copied().flatten();
    let mut depth = 0;
    while let Some(below) = next
        && depth <= on.len()
    {
        depth += 1;
        next = on.get(&below).copied().flatten();
    }
    depth
}

fn hour(at: Timestamp) -> u64 {
    at.0 / HOUR
}

fn day(at: Timestamp) -> u64 {
    at.0 / DAY
}

fn week(at: Timestamp) -> u64 {
    // 1970-01-01 was a Thursday.
    (at.0 / DAY + 3) / 7
}

fn month(at: Timestamp) -> u64 {
    let (year, month) = crate::date::year_and_month(at);
    year * 12 + month
}

fn year(at: Timestamp) -> u64 {
    crate::date::year_and_month(at).0
}
