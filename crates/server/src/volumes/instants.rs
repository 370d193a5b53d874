//! Views of a volume over a history are shown and ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_api::{self as api, ErrorKind};
use cairn_volume::{Image, VolumeError};

use crate::error::ServerError;
use crate::names;
use crate::volumes::Volumes;
use crate::volumes::error::VolumesError;
use crate::volumes::open::OpenVolume;
use crate::volumes::under::no_history;
use crate::volumes::views::VolumeView;

impl Volumes {
    /// Shows a volume as it was at an instant, as `VOLUME@NAME`.
    pub(crate) fn show_instant(
        &self,
        volume: &str,
        request: &api::CreateView,
    ) -> Result<(String, Arc<VolumeView>), ServerError> {
        let _turn = self.turns.take(&[volume], "it is being shown at an instant")?;
        let open = self.get(volume)?;
        let under = open.under.as_ref().ok_or_else(|| no_history(volume))?;
        let device = open.history()?;
        let asked = device.settled(&request.instant)?;
        let name = match &request.name {
            Some(name) => name.clone(),
            None => format!("at-{}", device.instant(&asked)? / 1_000_000),
        };
        names::check("view", &name)?;
        let full = format!("{volume}@{name}");
        open.refuse_name_of_view(&name)?;
        if open.volume.snapshot_named(&name).is_some() {
            return Err(ServerError::Taken { what: "snapshot", name: full });
        }
        let held = device.view(&asked)?;
        let view = Arc::new(under.views.look(volume, &full, held, &self.clock)?);
        under.views.change(None, |shown| drop(shown.insert(name.clone(), view.clone())))?;
        Ok((name, view))
    }

    /// Removes a view, which must be unused.
    pub(crate) fn hide_instant(&self, volume: &str, name: &str) -> Result<(), ServerError> {
        let _turn = self.turns.take(&[volume], "a view of it is being ended")?;
        let open = self.get(volume)?;
        let under = open.under.as_ref().ok_or_else(|| no_history(volume))?;
        if !under.views.names().contains(name) {
            let (name, list) = (format!("{volume}@{name}"), "cairn history view VOLUME");
            return Err(ServerError::NotFound { what: "view", name, list });
        }
        under.views.change(Some(name), |shown| drop(shown.remove(name)))
    }
}

impl OpenVolume {
    /// Its views, by name.
    pub(crate) fn views(&self) -> BTreeMap<String, Arc<VolumeView>> {
        self.under.as_ref().map(|under| under.views.shown.read().clone()).unwrap_or_default()
    }

    /// Those that could not be shown when it was opened.
    pub(crate) fn closed_views(&self) -> Vec<api::View> {
        self.under.as_ref().map(|under| under.views.show_closed(&self.name)).unwrap_or_default()
    }

    /// The view of that name.
    pub(crate) fn view(&self, name: &str) -> Option<Arc<VolumeView>> {
        self.under.as_ref()?.views.get(name)
    }

    /// The image of `VOLUME@NAME`: a view, or otherwise a snapshot. `None` if there is neither.
    pub(crate) fn past(&self, name: &str) -> Result<Option<Image>, VolumeError> {
        if let Some(view) = self.view(name) {
            return Ok(Some(view.image.clone()));
        }
        let snapshot = self.volume.snapshot_named(name);
        snapshot.map(|snapshot| self.volume.image(Some(snapshot.id))).transpose()
    }

    /// Refuses the name of a view to an object that it would hide.
    pub(crate) fn refuse_name_of_view(&self, name: &str) -> Result<(), ServerError> {
        let is_taken = self.under.as_ref().is_some_and(|under| under.views.names().contains(name));
        match is_taken {
            true => Err(ServerError::Taken { what: "view", name: format!("{}@{name}", self.name) }),
            false => Ok(()),
        }
    }

    /// The error for a missing snapshot: the name may be that of a view.
    pub(crate) fn no_snapshot(&self, name: &str) -> ServerError {
        if self.view(name).is_some() {
            return ServerError::Volumes(VolumesError::OverHistory {
                volume: self.name.clone(),
                kind: ErrorKind::Usage,
                why: "that is a view of an instant, and no snapshot",
                next: "read its LUNs as `VOLUME@NAME/LUN`, or its files with `cairn mount VOLUME@NAME DIR`; `cairn snapshot list` has the snapshots",
            });
        }
        ServerError::NotFound {
            what: "snapshot",
            name: format!("{}@{name}", self.name),
            list: "cairn snapshot list VOLUME",
        }
    }
}
