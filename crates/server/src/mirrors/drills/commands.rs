//! Commands on drills: the methods of the server for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_api::{self as api, DrillOutcome};

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::drills::probe::{Probe, Tried, end_left};
use crate::mirrors::drills::{ATTEMPTS, DrillDocument, DrillSchedule, LOOK_EVERY, Turn, clone_name};
use crate::mirrors::error::MirrorsError;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;
use crate::work::jobs::Progress;

impl Server {
    /// Starts the thread that begins drills when they are due.
    pub(crate) fn start_drills(self: &Arc<Self>) -> Result<DrillSchedule, ServerError> {
        end_left(&self.data_path(), None);
        let server = self.clone();
        let look = move || {
            let drills = &server.drills;
            while !drills.ending.load(Ordering::Acquire) {
                for name in drills.due() {
                    let is_mirror = server.volumes.get(&name).is_ok_and(|open| open.is_destination());
                    let running = drills.running.lock().contains(&name);
                    if is_mirror
                        && !running
                        && let Err(error) = server.drill(&name, &api::DrillRequest::default())
                    {
                        tracing::warn!(mirror = name, %error, "a drill could not begin");
                    }
                }
                let mut asleep = drills.asleep.lock();
                if !drills.ending.load(Ordering::Acquire) {
                    drills.wake.wait_for(&mut asleep, LOOK_EVERY);
                }
            }
        };
        let thread = std::thread::Builder::new().name("drills".to_owned()).spawn(look);
        let thread = thread.map_err(|source| ServerError::Thread { what: "the drills", source })?;
        Ok(DrillSchedule(Some(thread)))
    }

    /// Begins a drill of a mirror.
    pub(crate) fn drill(
        self: &Arc<Self>,
        name: &str,
        request: &api::DrillRequest,
    ) -> Result<api::Job, ServerError> {
        let open = self.volumes.get(name)?;
        if !open.is_destination() {
            return Err(ServerError::Mirrors(MirrorsError::NotAMirror { volume: name.to_owned() }));
        }
        if self.drills.ending.load(Ordering::Acquire) {
            return Err(ServerError::Ending);
        }
        if !self.drills.running.lock().insert(name.to_owned()) {
            return Err(ServerError::Busy { name: name.to_owned(), by: "another drill of it runs" });
        }
        let turn = Turn { drills: self.drills.clone(), mirror: name.to_owned() };
        let document = self.drills.note_request(name, request)?;
        let server = self.clone();
        self.jobs.start("mirror drill", name, move |progress| {
            let _turn = turn;
            let result = server.run_drill(&open, &document, progress);
            let (outcome, recovery_ms) = (result.outcome, result.recovery_ms);
            tracing::info!(mirror = open.name, ?outcome, recovery_ms, "made a drill");
            server.drills.note_result(&open.name, &result)?;
            Ok(Some(api::JobOutcome::Drill(Box::new(result))))
        })
    }

    fn run_drill(
        &self,
        open: &Arc<OpenVolume>,
        document: &DrillDocument,
        progress: &Progress,
    ) -> api::DrillResult {
        let began = self.clock.monotonic();
        let since = || self.clock.monotonic().saturating_sub(began).as_millis() as u64;
        let mut result = api::DrillResult {
            mirror: open.name.clone(),
            at_ms: self.drills.now_ms(),
            snapshot: String::new(),
            image_ms: 0,
            served_ms: 0,
            recovery_ms: 0,
            outcome: DrillOutcome::NotServed,
            exit_code: None,
            said: String::new(),
        };
        end_left(&self.data_path(), Some(&open.name));
        progress.phase("cloning the newest image");
        let name = clone_name(&open.name);
        let clone = match self.clone_newest(open, &name, &mut result) {
            Ok(clone) => clone,
            Err(error) => {
                result.said = error.to_string();
                return result;
            }
        };
        result.served_ms = since();
        progress.phase("running the probe");
        let tried = match self.probe(&clone, document, &result) {
            Ok(probe) => probe.run(progress.cancelled(), &*self.clock),
            Err(error) => {
                Tried { outcome: DrillOutcome::NotServed, exit_code: None, said: error.to_string() }
            }
        };
        result.recovery_ms = since();
        Tried { outcome: result.outcome, exit_code: result.exit_code, said: result.said } = tried;
        progress.phase("removing the clone");
        self.end_sessions(|export| export.volume == name);
        // Mounts left by a failed probe would be in the way of the next one.
        let unmounted = self.mounts.close_all(&name);
        if unmounted > 0 {
            tracing::warn!(mirror = open.name, unmounted, "a probe has left the clone of a drill mounted");
        }
        drop(clone);
        if let Err(error) = self.volumes.delete(&name).and_then(|()| self.access.forget_volume(&name)) {
            tracing::warn!(clone = name, %error, "the clone of a drill stays until the next start");
        }
        result
    }

    /// A temporary clone of the newest image. An update may replace that at any moment: then the
    /// next one is taken.
    fn clone_newest(
        &self,
        open: &Arc<OpenVolume>,
        name: &str,
        result: &mut api::DrillResult,
    ) -> Result<Arc<OpenVolume>, ServerError> {
        let mut attempt = 0;
        loop {
            let none = || ServerError::Mirrors(MirrorsError::NoImage { volume: open.name.clone() });
            let image = self.groups.shown_by(open)?.ok_or_else(none)?;
            result.snapshot = format!("{}@{}", open.name, image.name);
            result.image_ms = image.created.0 / 1_000_000;
            attempt += 1;
            match self.clone_as(&open.name, &image.name, name, true) {
                Err(
                    ServerError::Volumes(VolumesError::CloneBaseGone { .. }) | ServerError::NotFound { .. },
                ) if attempt < ATTEMPTS => {}
                made => return made,
            }
        }
    }

    fn probe(
        &self,
        clone: &OpenVolume,
        document: &DrillDocument,
        result: &api::DrillResult,
    ) -> Result<Probe, ServerError> {
        let luns = clone.luns.list().map_err(ServerError::files(&clone.name))?;
        let uris: Vec<String> = (luns.iter())
            .filter_map(|lun| self.uris(&format!("{}/{}", clone.name, lun.name)).into_iter().next())
            .collect();
        Ok(Probe {
            command: document.probe.clone(),
            of: (result.mirror.clone(), self.data_path()),
            timeout: Duration::from_millis(document.timeout_ms),
            log: self.volumes.folder(&clone.name).join("probe.log"),
            variables: vec![
                ("CAIRN_DRILL_VOLUME", clone.name.clone()),
                ("CAIRN_DRILL_SNAPSHOT", result.snapshot.clone()),
                ("CAIRN_DRILL_URI", uris.first().cloned().unwrap_or_default()),
                ("CAIRN_DRILL_URIS", uris.join(" ")),
                ("CAIRN_DATA", self.data_path()),
            ],
        })
    }
}
