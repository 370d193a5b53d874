//! The order of a group's snapshots, and which volumes lack one.

use cairn_base::{ByteSize, ManualClock, Timestamp, VolumeId};
use cairn_volume::Role;

use super::*;
use crate::schedules::clocks::{self, Scheduled};
use crate::volumes::NewVolume;

fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn snapshots_of_a_group_are_in_the_order_in_which_they_were_made_whatever_their_times_say() {
    // The names begin with the hour of a clock that was set back after the second one.
    let made = names("10a 11a 10b 11b");
    assert_eq!(in_order(vec![made.clone(), made.clone()]), made);
    assert_eq!(in_order(vec![names("10a 11b"), made.clone()]), made, "one that misses some");
    assert_eq!(in_order(vec![made.clone(), names("11a 11b")]), made);
    assert_eq!(in_order(vec![names("b"), names("a b c"), names("a x b y c")]), names("a x b y c"));
    assert_eq!(in_order(vec![Vec::new(), names("b a")]), names("b a"));
    assert!(in_order(Vec::new()).is_empty());
}

/// The status and the metrics of a server with such a group wait for this.
#[test]
fn volumes_that_lack_a_snapshot_are_told_at_once_of_as_many_as_there_can_be() {
    let names: Vec<String> = (0..10_000).map(|n| format!("group.bank.2026-11-26T00-00-{n:05}Z")).collect();
    let volumes: Vec<String> = (0..MEMBERS_MAX + 1).map(|n| format!("volume{n}")).collect();
    let mut lists: BTreeMap<&str, Vec<String>> =
        volumes[1..].iter().map(|volume| (volume.as_str(), names.clone())).collect();
    lists.get_mut("volume7").unwrap().remove(3);
    let found = with_missing(names, &volumes, &lists);
    assert_eq!(found[3].1, ["volume0", "volume7"]);
    assert!(found.iter().enumerate().all(|(at, (_, missing))| at == 3 || *missing == ["volume0"]));
}

/// Its mirrors would be kept from newer images until the server is started again.
#[test]
fn failover_that_changed_nothing_is_over_also_where_nothing_can_be_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let place = folder.path().join("volumes");
    std::fs::create_dir(&place).unwrap();
    let volumes = Arc::new(Volumes::open(place, ByteSize(16 << 20), clock.clone(), None).unwrap());
    let (devices, log_device, history, beside) = (&[][..], None, None, None);
    let (name, id, role, blocks) = ("data", VolumeId([7; 16]), Role::Destination, Some(4096));
    let new = NewVolume { name, id, role, blocks, devices, log_device, history, beside };
    let _open = volumes.create(&new).unwrap();
    let failover = Failover {
        snapshot: "group.bank.2026-11-26T00-00-00.000Z".to_owned(),
        at_ms: 1,
        done: BTreeSet::new(),
        reverse: false,
        running: true,
    };
    let group = Group {
        name: "bank".to_owned(),
        volumes: vec!["data".to_owned()],
        every_ms: None,
        cron: None,
        zone: None,
        keep: api::Keep::default(),
        from_ms: 1,
        last_ms: None,
        problem: None,
        put_back_ms: None,
        failover: Some(failover),
        together: true,
        shown: None,
    };
    let groups = Groups::open(folder.path(), volumes, clock).unwrap();
    *groups.groups.lock() = vec![group];
    assert!(groups.refuse_if_unfinished("data").is_err(), "it runs");
    // The new file cannot be written, as on a full disk.
    std::fs::create_dir(folder.path().join("groups.new")).unwrap();
    let failed: Result<(), ServerError> = groups.ended("bank", Err(ServerError::Bug));
    assert!(matches!(failed, Err(ServerError::Bug)));
    assert!(groups.refuse_if_unfinished("data").is_ok(), "nothing was done to any of its volumes");
}

fn timed(every_ms: Option<u64>, cron: Option<&str>, from_ms: u64) -> Group {
    Group {
        name: "bank".to_owned(),
        volumes: Vec::new(),
        every_ms,
        cron: cron.map(str::to_owned),
        zone: None,
        keep: api::Keep::default(),
        from_ms,
        last_ms: None,
        problem: None,
        put_back_ms: None,
        failover: None,
        together: false,
        shown: None,
    }
}

impl Scheduled for Group {
    fn look(&mut self, now_ms: u64) -> bool {
        self.see_clock(now_ms);
        let runs = self.next_ms(now_ms).is_some_and(|next| next <= now_ms);
        if runs {
            self.last_ms = Some(now_ms);
        }
        runs
    }

    fn restart(&mut self, _now_ms: u64) {
        *self = serde_json::from_str(&serde_json::to_string(self).unwrap()).unwrap();
    }
}

#[test]
fn schedule_of_a_group_goes_on_within_a_period_whatever_the_clock_is_set_to() {
    const HOUR: u64 = 3_600_000;
    clocks::check("every", HOUR, |now| timed(Some(HOUR), None, now));
    clocks::check("cron", HOUR, |now| timed(None, Some("7 * * * *"), now));
}

/// The rules that delete snapshots of a group go by the times in their names.
#[test]
fn names_of_snapshots_of_a_group_follow_a_clock_that_is_put_back_and_come_once() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)));
    let volumes = Volumes::open(folder.path().to_owned(), ByteSize(1 << 20), clock.clone(), None).unwrap();
    let groups = Groups::open(folder.path(), Arc::new(volumes), clock.clone()).unwrap();
    let mut given = BTreeSet::new();
    for at_ms in [1_700_000_000_000u64, 1_800_000_000_000, 1_700_000_000_000, 1_700_000_000_001] {
        clock.set(Timestamp(at_ms * 1_000_000));
        let (name, named_ms) = groups.name_snapshot("bank");
        assert!(named_ms.abs_diff(at_ms) < 10, "{name} at {at_ms}");
        assert!(given.insert(name));
    }
}
