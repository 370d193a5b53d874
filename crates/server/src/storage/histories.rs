//! Histories as the server makes and opens them: their options, from the request of an owner.

use std::sync::Arc;
use std::time::Duration;

use cairn_api as api;
use cairn_base::{Clock, HistoryId, Interval, Timestamp};
use cairn_device::Device;
use cairn_history::{
    FloorPolicy, Granularity, History, HistoryError, HistoryOptions, HistoryView, LogPosition, OpenOptions,
    Placement, Reduction, Thin, Window,
};

use crate::error::ServerError;
use crate::peers::token::random_bytes;

/// As much as a flush of the store is worth: with less, placements that write log and origin wait
/// for flushes.
pub(crate) const DIRTY_BYTES: u64 = 32 << 20;

pub(crate) const CACHE_BYTES: u64 = 64 << 20;

/// Bytes of the smallest store that is made unasked.
pub(crate) const STORE_MIN: u64 = 64 << 20;

/// The block of a history unless its owner wants another.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// The view of an instant that was kept when it was exported. Another one in its place would be a
/// wrong disk.
pub(crate) fn exactly(history: &Arc<History>, at: u64) -> Result<HistoryView, HistoryError> {
    history.view_again(Timestamp(at))
}

/// Refuses a store with another history: opened over this origin it would write data there that
/// belongs elsewhere.
pub(crate) fn refuse_other_store(name: &str, store: &dyn Device, expected: &str) -> Result<(), ServerError> {
    let found = History::id_of(store).map_err(ServerError::history(name))?.to_string();
    if found == expected {
        return Ok(());
    }
    Err(ServerError::history(name)(HistoryError::OtherStore { expected: expected.to_owned(), found }))
}

/// The id of a history as documents have it.
pub(crate) fn history_id(text: &str) -> Result<HistoryId, ServerError> {
    let id = u128::from_str_radix(text, 16).map_err(|_| ServerError::Bug)?;
    Ok(HistoryId(id.to_be_bytes()))
}

/// The options of a history under a volume: without a read cache, as the volume has one, and a
/// scrub of it reads from the media.
pub(crate) fn options_under_volume(clock: Arc<dyn Clock>) -> OpenOptions {
    OpenOptions { dirty_bytes: DIRTY_BYTES, read_bytes: 0, clock, at_least: LogPosition::default() }
}

/// The options of a clone over a view: redirect-on-write, and never folded back into it.
pub(crate) fn options_of_a_clone(block_bytes: u32) -> HistoryOptions {
    HistoryOptions {
        store: HistoryId(random_bytes()),
        placement: Placement::Logging,
        granularity: Granularity::Marks,
        block_bytes,
        window: Window::of_a_clone(),
    }
}

/// The options of a new history for a request.
pub(crate) fn new_history(
    placement: Option<api::Placement>,
    granularity: Option<&str>,
    window: &api::Window,
    floor_policy: FloorPolicy,
    block_bytes: u32,
) -> Result<HistoryOptions, ServerError> {
    Ok(HistoryOptions {
        store: HistoryId(random_bytes()),
        placement: engine_placement(placement.unwrap_or(api::Placement::Checkpointing)),
        granularity: parse_granularity(granularity.unwrap_or("marks"))?,
        block_bytes,
        window: engine_window(window, floor_policy)?,
    })
}

pub(crate) fn parse_granularity(text: &str) -> Result<Granularity, ServerError> {
    match text {
        "every-write" => Ok(Granularity::EveryWrite),
        "marks" => Ok(Granularity::Marks),
        interval => {
            let next = "give --granularity every-write, marks, or an interval from 1ms to 1d, such as 1s";
            let wrong = ServerError::Invalid { fault: "invalid granularity", next };
            match interval.parse::<Interval>() {
                Ok(Interval(each)) if each <= Duration::from_secs(86_400) => {
                    Ok(Granularity::Interval(each.as_nanos() as u64))
                }
                _ => Err(wrong),
            }
        }
    }
}

pub(crate) fn engine_placement(placement: api::Placement) -> Placement {
    match placement {
        api::Placement::Checkpointing => Placement::Checkpointing,
        api::Placement::Logging => Placement::Logging,
        api::Placement::SplitStream => Placement::SplitStream,
        api::Placement::SplitDownStream => Placement::SplitDownStream,
        api::Placement::Hybrid => Placement::Hybrid,
    }
}

/// A window, with this policy by default.
pub(crate) fn engine_window(window: &api::Window, floor_policy: FloorPolicy) -> Result<Window, ServerError> {
    let mut thin = Window::default().thin;
    if window.thin.len() > thin.len() {
        return Err(ServerError::Invalid {
            fault: "the retention has more than four steps",
            next: "give --thin at most four times",
        });
    }
    for (place, step) in thin.iter_mut().zip(&window.thin) {
        let (after, every) = (Duration::from_millis(step.after_ms), Duration::from_millis(step.every_ms));
        *place = Some(Thin { after, every });
    }
    Ok(Window {
        time: window.time_ms.map(Duration::from_millis),
        bytes: window.bytes,
        floor: Duration::from_millis(window.floor_ms.unwrap_or(0)),
        floor_policy: match window.floor_policy {
            None => floor_policy,
            Some(api::FloorPolicy::Wait) => FloorPolicy::Wait,
            Some(api::FloorPolicy::Fail) => FloorPolicy::Fail,
        },
        thin,
        reduction: match window.reduce.unwrap_or(api::Reduce::None) {
            api::Reduce::None => Reduction::NONE,
            api::Reduce::Xor => Reduction { xor: true, identical: false },
            api::Reduce::Identical => Reduction { xor: false, identical: true },
            api::Reduce::All => Reduction { xor: true, identical: true },
        },
    })
}
