use std::sync::Arc;

use cairn_base::{SnapshotId, Timestamp};
use cairn_bucket::{Nonce, StoreError, Trouble, Verb};

use super::*;
use crate::buckets::images::ImagesPlace;
use crate::mirrors::bucket::document::{Claim, id_in, prefix_of};

const NOW: u64 = 1_795_000_000_000;

fn document() -> BucketMirrorDocument {
    BucketMirrorDocument::new(7, &ImagesPlace::parse("offsite:").unwrap(), NOW)
}

fn seen(epoch: u32, nonce: u8) -> ClaimSeen {
    ClaimSeen { epoch, nonce: Nonce([nonce; 16]), at: Timestamp(1), label: "vol0 on other".to_owned() }
}

fn own(epoch: u32, nonce: u8) -> Claim {
    Claim { epoch, nonce: Nonce([nonce; 16]) }
}

fn why(outcome: Result<u32, Stopped>) -> Why {
    outcome.unwrap_err().why
}

#[test]
fn server_claims_after_its_own_claims_and_after_no_other() {
    let mut known = document();
    assert_eq!(claims_after(None, &known), Ok(0));
    assert_eq!(why(claims_after(Some(&seen(1, 1)), &known)), Why::Fenced);
    // The put of the claim has no answer yet: with any outcome the next try continues.
    known.claims.push(own(1, 1));
    assert_eq!(claims_after(None, &known), Ok(0));
    assert_eq!(claims_after(Some(&seen(1, 1)), &known), Ok(1));
    assert_eq!(why(claims_after(Some(&seen(1, 2)), &known)), Why::Fenced);
    (known.owned, known.claims) = (Some(4), vec![own(4, 4), own(5, 5), own(5, 6)]);
    assert_eq!(claims_after(Some(&seen(4, 4)), &known), Ok(4));
    assert_eq!(claims_after(Some(&seen(5, 6)), &known), Ok(5));
    assert_eq!(why(claims_after(Some(&seen(5, 4)), &known)), Why::Fenced, "another epoch of that nonce");
    assert_eq!(why(claims_after(Some(&seen(6, 9)), &known)), Why::Fenced);
    assert_eq!(why(claims_after(Some(&seen(3, 3)), &known)), Why::Replayed);
    assert_eq!(why(claims_after(None, &known)), Why::Replayed);
    known.takes_over = true;
    assert_eq!(claims_after(Some(&seen(6, 9)), &known), Ok(6));
    assert_eq!(claims_after(Some(&seen(3, 3)), &known), Ok(3));
}

fn store(trouble: Trouble) -> SourceError {
    let error = StoreError { verb: Verb::Put, name: None, place: "file:///x".into(), trouble };
    ImagesError::Store(error).into()
}

#[test]
fn failure_stops_a_mirror_or_is_retried() {
    let stops = |error: SourceError| match consequence(&error) {
        Consequence::Stop(stopped) => Some(stopped.why),
        Consequence::Retry { .. } => None,
    };
    let fenced = || ImagesError::Fenced { epoch: 2, by: "vol0 on b".to_owned() };
    assert_eq!(stops(fenced().into()), Some(Why::Fenced));
    let replayed = ImagesError::Replayed { epoch: 2, seq: 9, found_epoch: 2, found_seq: 3 };
    assert_eq!(stops(replayed.into()), Some(Why::Replayed));
    let name = || cairn_bucket::Name::new("images/x").unwrap();
    assert_eq!(stops(ImagesError::Gone(name()).into()), Some(Why::Damaged));
    let damaged = ImagesError::Damaged { name: name(), how: "its digest is wrong" };
    assert_eq!(stops(damaged.into()), Some(Why::Damaged));
    let diverged = StreamError::Diverged { snapshot: SnapshotId(3) };
    assert_eq!(stops(diverged.into()), Some(Why::Diverged));

    let anew = |error: &SourceError| consequence(error) == Consequence::Retry { anew: true };
    let io = || Arc::new(std::io::Error::from(std::io::ErrorKind::NotFound));
    assert!(!anew(&store(Trouble::TimedOut)), "the owner finds out whether its root was written");
    assert!(!anew(&store(Trouble::Cancelled)));
    assert!(anew(&store(Trouble::Forbidden)));
    assert!(anew(&store(Trouble::Io(io()))));
    let taken = ImagesError::Taken { epoch: 2, by: "vol0 on b".to_owned() };
    assert!(anew(&taken.into()));
}

#[test]
fn retries_come_later_each_time_and_never_stop() {
    let waits: Vec<u64> = (1..=9).map(|failures| (retry_ms(failures, NOW) - NOW) / 1000).collect();
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(retry_ms(u32::MAX, NOW), NOW + RETRY_MS_MAX);
}

#[test]
fn upkeep_is_hourly_daily_and_monthly() {
    let mut upkeep = document().upkeep;
    assert!(due(&upkeep, NOW).is_empty());
    let mut counts = [0; 3];
    for hour in 1..=60 * 24 {
        let now = NOW + hour * HOUR_MS;
        for task in due(&upkeep, now) {
            upkeep.done(task, now);
            counts[task as usize] += 1;
        }
    }
    assert_eq!(counts, [60 * 24, 58, 2]);
    // A clock that was set back does not end it.
    assert_eq!(due(&upkeep, NOW), [Task::Expire, Task::All]);
}

#[test]
fn names_of_snapshots_show_their_mirror() {
    assert_eq!(id_in(&format!("{}17", prefix_of(0xabc))), Some(0xabc));
    assert_eq!(id_in("mirror.bucket-0000000000000abc.x"), None);
    assert_eq!(id_in("mirror.bucket-abc.1"), None);
    assert_eq!(id_in("mirror.0123456789abcdef-0123456789abcdef.1"), None);
}
