//! Adopted devices as the API shows them.

use std::sync::Arc;
use std::time::Duration;

use cairn_api as api;
use cairn_base::Interval;
use cairn_history::{FloorPolicy, Granularity, History, IoCount, Placement, Window};

use super::{DeviceState, Devices};
use crate::devices::open::{ClosedClone, DeviceDocument, OpenDevice, Shown};
use crate::error::ServerError;

impl Devices {
    /// One of them.
    pub(crate) fn show(
        &self,
        name: &str,
        uris: &dyn Fn(&str) -> Vec<String>,
    ) -> Result<api::Device, ServerError> {
        self.list(uris).into_iter().find(|device| device.name == name).ok_or_else(|| super::not_found(name))
    }

    /// All devices; `uris` tells where an export is.
    pub(crate) fn list(&self, uris: &dyn Fn(&str) -> Vec<String>) -> Vec<api::Device> {
        let device = |(name, entry): (&String, &DeviceState)| match entry {
            DeviceState::Open(open) => open.show(uris),
            DeviceState::Plain(document, device) => api::Device {
                size_bytes: device.geometry().length,
                uris: uris(name),
                problem: None,
                ..closed(name, document, String::new())
            },
            DeviceState::Unavailable(document, error) => closed(name, document, error.to_string()),
            DeviceState::Releasing(document) => closed(name, document, "it is being released".to_owned()),
        };
        self.entries.read().iter().map(device).collect()
    }

    /// The problems of all devices.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let unavailable = |(name, entry): (&String, &DeviceState)| match entry {
            DeviceState::Unavailable(document, error) => {
                Some((name.clone(), document.clone(), error.clone()))
            }
            _ => None,
        };
        let closed: Vec<_> = self.entries.read().iter().filter_map(unavailable).collect();
        let problem = |(name, document, error): (String, DeviceDocument, Arc<ServerError>)| {
            // Not under the lock: the remedy depends on the files.
            let next = self.next_of(&name, &document, &error);
            api::Problem { subject: name, message: error.to_string(), next }
        };
        let mut problems: Vec<_> = closed.into_iter().map(problem).collect();
        problems.extend(self.all().iter().flat_map(|open| open.problems()));
        problems
    }

    /// The exports of devices, with their length and whether they take no writes.
    pub(crate) fn sizes(&self) -> Vec<(String, u64, bool)> {
        let mut sizes: Vec<(String, u64, bool)> =
            self.plain().into_iter().map(|(name, device)| (name, device.geometry().length, false)).collect();
        for open in self.all() {
            let bytes = open.history.status().origin_bytes;
            sizes.push((open.name.clone(), bytes, false));
            for (view, shown) in open.shown.read().iter() {
                sizes.push((format!("{}@{view}", open.name), bytes, matches!(shown, Shown::View(_))));
            }
        }
        sizes
    }
}

fn closed(name: &str, document: &DeviceDocument, problem: String) -> api::Device {
    api::Device {
        name: name.to_owned(),
        origin: document.origin.to_string(),
        history: document.history.as_ref().map(ToString::to_string),
        size_bytes: 0,
        uris: Vec::new(),
        target: None,
        problem: Some(problem),
    }
}

impl OpenDevice {
    /// The problems of the device.
    pub(crate) fn problems(&self) -> Vec<api::Problem> {
        let failed = failed(&self.name, &self.history);
        let own = [failed, self.waiting_problem(), self.stopped_problem(), self.lost_problem()];
        own.into_iter().flatten().chain(self.clone_problems()).collect()
    }

    /// Clients that wait for room.
    fn waiting_problem(&self) -> Option<api::Problem> {
        let (count, name) = (self.history.status().waiting, &self.name);
        (count > 0).then(|| api::Problem {
            subject: name.clone(),
            message: format!(
                "{count} writes or flushes wait for room in its history, which is full and has nothing that is older than its floor"
            ),
            next: format!(
                "make the floor shorter with `cairn history window {name} --floor TIME`, and they resume at once; otherwise they resume as time passes"
            ),
        })
    }

    /// A release that stopped.
    fn stopped_problem(&self) -> Option<api::Problem> {
        let message = stopped(self.document.lock().release_stopped.as_deref()?);
        let next = format!("run `cairn device release {}` again: it resumes", self.name);
        Some(api::Problem { subject: self.name.clone(), message, next })
    }

    /// The parts that can't be read any more.
    fn lost_problem(&self) -> Option<api::Problem> {
        let status = self.history.status();
        let first = status.lost.first()?;
        let (count, block, name) = (status.lost_versions, first.block, &self.name);
        Some(api::Problem {
            subject: name.clone(),
            message: format!(
                "{count} version(s) in its history are unreadable, the first of block {block}; requests that need them fail"
            ),
            next: format!(
                "see `cairn history status {name}`; to repair an unreadable block of the present, write all of it"
            ),
        })
    }

    /// The problems of its clones.
    fn clone_problems(&self) -> Vec<api::Problem> {
        let subject = |clone: &String| format!("{}@{clone}", self.name);
        let closed = self.closed.lock();
        let closed = closed.iter().map(|(clone, closed)| api::Problem {
            subject: subject(clone),
            message: closed.error.to_string(),
            next: closed.error.next(),
        });
        let mut problems: Vec<api::Problem> = closed.collect();
        for (clone, shown) in self.shown.read().iter() {
            if let Shown::Clone { history, .. } = shown {
                problems.extend(failed(&subject(clone), history));
            }
        }
        problems
    }

    /// The clones that could not be opened.
    fn closed_clones(&self) -> Vec<api::View> {
        let clones = self.document.lock().clones.clone();
        let closed = self.closed.lock();
        let show = |(clone, closed): (&String, &ClosedClone)| api::View {
            name: format!("{}@{clone}", self.name),
            at_ns: clones.get(clone).copied().unwrap_or_default(),
            writable: true,
            uris: Vec::new(),
            problem: Some(closed.error.to_string()),
        };
        closed.iter().map(show).collect()
    }

    pub(crate) fn show(&self, uris: &dyn Fn(&str) -> Vec<String>) -> api::Device {
        let status = self.history.status();
        let document = self.document.lock();
        api::Device {
            name: self.name.clone(),
            origin: document.origin.to_string(),
            history: document.history.as_ref().map(ToString::to_string),
            size_bytes: status.origin_bytes,
            uris: uris(&self.name),
            target: None,
            problem: status.failed.or_else(|| document.release_stopped.as_deref().map(stopped)),
        }
    }

    /// Its past; `uris` tells where an export is.
    pub(crate) fn show_history(&self, uris: &dyn Fn(&str) -> Vec<String>) -> api::HistoryStatus {
        let status = self.history.status();
        let span_ns = status.last.0.saturating_sub(status.start.0);
        let per_hour = status.live_bytes as f64 * 3.6e12 / span_ns.max(1) as f64;
        let mark = |mark: &cairn_history::Mark| api::Mark {
            name: mark.name.clone(),
            at_ns: mark.time.0,
            consistent: mark.consistent,
        };
        let view = |(view, shown): (&String, &Shown)| {
            let name = format!("{}@{view}", self.name);
            let writable = matches!(shown, Shown::Clone { .. });
            api::View { uris: uris(&name), at_ns: shown.instant(), writable, name, problem: None }
        };
        let mut views: Vec<api::View> = self.shown.read().iter().map(view).collect();
        views.extend(self.closed_clones());
        let copy = |revert: &cairn_history::RevertProgress| api::RevertCopy {
            at_ns: revert.instant.0,
            done_blocks: revert.done,
            blocks: revert.blocks,
        };
        let lost =
            |lost: &cairn_history::LostVersion| api::LostVersion { block: lost.block, at_ns: lost.time.0 };
        let counters = status.counters;
        api::HistoryStatus {
            device: self.show(uris),
            placement: placement(status.placement),
            granularity: granularity(status.granularity),
            block_bytes: status.block_bytes,
            window: window(&status.window),
            start_ns: status.start.0,
            last_ns: status.last.0,
            versions: status.versions,
            index_bytes: status.index_bytes,
            used_bytes: status.used_bytes,
            live_bytes: status.live_bytes,
            store_bytes: status.store_bytes,
            // A span of less than a minute does not give a rate per hour.
            bytes_per_hour: if span_ns < 60_000_000_000 { 0 } else { per_hour as u64 },
            dirty_bytes: status.dirty_bytes,
            marks: status.marks.iter().map(mark).collect(),
            views,
            folding: status.folding.map(|(done_blocks, blocks)| api::Folding { done_blocks, blocks }),
            reverts: status.reverts.iter().map(copy).collect(),
            given_up: status.events.len() as u64,
            written_blocks: counters.written_blocks,
            absorbed_blocks: counters.absorbed_blocks,
            io_per_write: counters.io_per_write(false),
            content_bytes: counters.content_bytes,
            stored_bytes: counters.stored_bytes,
            xor_versions: counters.xor_versions,
            identical_versions: counters.identical_versions,
            damaged: counters.damaged,
            lost: status.lost.iter().map(lost).collect(),
            lost_versions: status.lost_versions,
            waiting: status.waiting,
            current_reads: io(counters.current_reads),
            current_writes: io(counters.current_writes),
            history_reads: io(counters.history_reads),
            history_writes: io(counters.history_writes),
            metadata: io(counters.metadata),
        }
    }
}

/// The problem of a history that accepts no more writes, or has no room below it, and the remedy.
pub(crate) fn failed(subject: &str, history: &History) -> Option<api::Problem> {
    let status = history.status();
    let Some(why) = status.failed else {
        let below = status.lacking?;
        return Some(api::Problem {
            subject: subject.to_owned(),
            message: format!(
                "the file system below {below} is full: the history reuses its present space and discards the oldest history first; writes without space fail or wait"
            ),
            next: "free some space there: it is taken by itself, without a restart".to_owned(),
        });
    };
    let next = match status.failed_for_room {
        true => {
            "free some space on the file systems on which its origin and its history are, then start the server again"
        }
        false => "see the kernel's log for its disks, then start the server again",
    };
    let message = format!("it takes no more writes: {why}");
    Some(api::Problem { subject: subject.to_owned(), message, next: next.to_owned() })
}

fn stopped(why: &str) -> String {
    format!("its release stopped, and it is served as before: {why}")
}

fn io(count: IoCount) -> api::IoCount {
    api::IoCount { blocks: count.blocks, operations: count.operations, sequential: count.sequential }
}

fn placement(placement: Placement) -> api::Placement {
    match placement {
        Placement::Checkpointing => api::Placement::Checkpointing,
        Placement::Logging => api::Placement::Logging,
        Placement::SplitStream => api::Placement::SplitStream,
        Placement::SplitDownStream => api::Placement::SplitDownStream,
        Placement::Hybrid => api::Placement::Hybrid,
    }
}

fn granularity(granularity: Granularity) -> String {
    match granularity {
        Granularity::EveryWrite => "every-write".to_owned(),
        Granularity::Marks => "marks".to_owned(),
        Granularity::Interval(ns) => Interval(Duration::from_nanos(ns)).to_string(),
    }
}

fn window(window: &Window) -> api::Window {
    let ms = |time: Duration| time.as_millis() as u64;
    api::Window {
        time_ms: window.time.map(ms),
        bytes: window.bytes,
        floor_ms: Some(ms(window.floor)).filter(|floor| *floor > 0),
        floor_policy: Some(match window.floor_policy {
            FloorPolicy::Wait => api::FloorPolicy::Wait,
            FloorPolicy::Fail => api::FloorPolicy::Fail,
        }),
        thin: window
            .steps()
            .map(|step| api::Thin { after_ms: ms(step.after), every_ms: ms(step.every) })
            .collect(),
        reduce: Some(match (window.reduction.xor, window.reduction.identical) {
            (false, false) => api::Reduce::None,
            (true, false) => api::Reduce::Xor,
            (false, true) => api::Reduce::Identical,
            (true, true) => api::Reduce::All,
        }),
    }
}
