//! Snapshots by their times, for programs that read a time from a name: the directory `@GMT` in
//! every `.snapshot`. No listing shows it.
//!
//! Samba offers such names to Windows as Previous Versions. People and schedules choose the names
//! of snapshots, which carry no time that a program could rely on.

use cairn_volume::Snapshot;

/// The name of the directory. No snapshot can have it.
pub(crate) const TIMES_NAME: &[u8] = b"@GMT";

const NS: u64 = 1_000_000_000;
const DAY: u64 = 86_400;

/// The snapshots, the oldest first, each with its name by its time: `@GMT-2026.11.28-10.00.00`. Of
/// those of one second the later ones get the next free second.
pub(crate) fn by_time(snapshots: Vec<Snapshot>) -> Vec<(String, Snapshot)> {
    let mut next = 0;
    let named = |snapshot: Snapshot| {
        let second = (snapshot.created.0 / NS).max(next);
        next = second + 1;
        (name(second), snapshot)
    };
    snapshots.into_iter().map(named).collect()
}

/// The name for a second after 1970, in UTC.
fn name(second: u64) -> String {
    let (days, rest) = (second / DAY, second % DAY);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("@GMT-{year:04}.{month:02}.{day:02}-{hour:02}.{minute:02}.{second:02}")
}

/// The date of a day after 1970. A year begins in March, so that the leap day is its last.
fn date(days: u64) -> (u64, u64, u64) {
    // Days since 1 March of the year 0; 400 years have 146,097 days.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn seconds_have_their_dates() {
        assert_eq!(name(0), "@GMT-1970.01.01-00.00.00");
        assert_eq!(name(951_782_399), "@GMT-2000.02.28-23.59.59");
        assert_eq!(name(951_868_799), "@GMT-2000.02.29-23.59.59");
        assert_eq!(name(951_868_800), "@GMT-2000.03.01-00.00.00");
        assert_eq!(name(1_795_860_000), "@GMT-2026.11.28-10.00.00");
        assert_eq!(name(4_107_542_399), "@GMT-2100.02.28-23.59.59");
        assert_eq!(name(4_107_542_400), "@GMT-2100.03.01-00.00.00");
    }
}
