//! Commands on state files that can't be read: the methods of the server for them.

use std::path::PathBuf;
use std::{fs, io};

use cairn_api as api;

use crate::daemon::damaged::{Kind, Place, UnreadFile, is_volume, kind_of, set_aside, survey};
use crate::daemon::error::DaemonError;
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::state;

impl Server {
    /// The state files that can't be read.
    pub(crate) fn damaged_state(&self) -> Vec<api::DamagedFile> {
        let dir = self.data_dir();
        self.not_known().iter().map(|found| found.show(dir)).collect()
    }

    /// Those that can't be read, and those that could not be when they were wanted and have not
    /// been taken in since.
    fn not_known(&self) -> Vec<UnreadFile> {
        let dir = self.data_dir();
        let mut all = survey(dir);
        for path in self.unknown.paths() {
            if all.iter().any(|found| found.path == path) {
                continue;
            }
            let Some((kind, name)) = kind_of(dir, &path).filter(|(kind, name)| self.waits_for(kind, name))
            else {
                self.unknown.forget(&path);
                continue;
            };
            let error = match path.symlink_metadata().is_ok() {
                true => ServerError::Daemon(DaemonError::StateNotTaken { path: path.clone() }),
                false => ServerError::Daemon(DaemonError::StateGone { path: path.clone() }),
            };
            all.push(UnreadFile { kind, path, name, error });
        }
        all
    }

    /// Whether the part that owns a state file still exists, and still lacks the file.
    fn waits_for(&self, kind: &Kind, name: &Option<String>) -> bool {
        let name = name.as_deref().unwrap_or_default();
        match (kind.place, kind.file) {
            (Place::Server, _) => true,
            (Place::Device, _) => self.devices.check_unread(name).is_ok(),
            (Place::Volume, "volume.json") => {
                self.volumes.get(name).is_err() && is_volume(self.data_dir(), name)
            }
            (Place::Volume, _) => is_volume(self.data_dir(), name),
        }
    }

    /// Problems with state files that no other part reports.
    pub(crate) fn state_problems(&self) -> Vec<api::Problem> {
        let untold = self.not_known().into_iter().filter(|found| !found.kind.is_told);
        let problem = |found: UnreadFile| api::Problem {
            subject: found.subject(),
            message: format!("{}; {}", found.error, found.kind.means),
            next: found.error.next(),
        };
        untold.map(problem).collect()
    }

    /// Takes in a state file that could not be read: as it is by now, or its previous generation.
    pub(crate) fn restore_state(&self, request: &api::RestoreState) -> Result<(), ServerError> {
        let (kind, path, name) = self.state_file(&request.file)?;
        let is_gone = path.symlink_metadata().is_err();
        if request.previous {
            if (kind.check)(&path).is_ok() && !is_gone {
                return Err(ServerError::Daemon(DaemonError::StateKnown { file: request.file.clone() }));
            }
            let old = state::previous(&path);
            if !old.is_file() {
                return Err(ServerError::Daemon(DaemonError::NoPrevious { path }));
            }
            (kind.check)(&old)?;
            let text = match (kind.file, &name) {
                ("mirror.json", Some(name)) => self.mirrors.of_an_earlier_time(name, &old)?,
                _ => fs::read(&old).map_err(ServerError::path("read", &old))?,
            };
            match is_gone {
                true => state::replace(&path, &text).map_err(ServerError::path("write", &path))?,
                false => drop(set_aside(&path, || state::replace(&path, &text))?),
            }
        } else if is_gone {
            return Err(ServerError::Daemon(DaemonError::StateGone { path }));
        }
        (kind.check)(&path)?;
        self.take_in_state(kind, name.as_deref())?;
        self.unknown.forget(&path);
        tracing::warn!(path = %path.display(), previous = request.previous, "a state file was restored");
        Ok(())
    }

    /// Continues without an unreadable state file. Returns the path to which it was set aside.
    pub(crate) fn give_up_state(&self, request: &api::GiveUpState) -> Result<api::GivenUp, ServerError> {
        let (kind, path, name) = self.state_file(&request.file)?;
        if (kind.check)(&path).is_ok() && !self.unknown.has(&path) {
            return Err(ServerError::Daemon(DaemonError::StateKnown { file: request.file.clone() }));
        }
        if kind.costs.is_none() {
            let ends = format!("`cairn volume delete {}` deletes the volume", name.unwrap_or_default());
            return Err(ServerError::Daemon(DaemonError::StateNeeded { path, ends }));
        }
        if kind.place == Place::Device {
            self.devices.check_unread(name.as_deref().unwrap_or_default())?;
        }
        let successor = match (kind.file, &name) {
            ("mirror.json", Some(name)) => {
                self.mirrors.refuse_forgetting_locks(name, &state::previous(&path))?;
                self.mirrors.of_nobody(name)?
            }
            _ => None,
        };
        let change = || match &successor {
            Some(text) => state::replace(&path, text),
            None => match fs::remove_file(&path) {
                // A folder was moved.
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => state::sync_parent(&path),
            },
        };
        let kept = match path.symlink_metadata() {
            Ok(_) => set_aside(&path, change)?.display().to_string(),
            // Its owner has removed it.
            Err(_) => change().map(|()| String::new()).map_err(ServerError::path("write", &path))?,
        };
        tracing::warn!(path = %path.display(), kept, "a state file was given up");
        if let ("mirror.json", Some(name)) = (kind.file, &name) {
            self.mirrors.forget_source(name);
        }
        self.take_in_state(kind, name.as_deref())?;
        self.unknown.forget(&path);
        Ok(api::GivenUp { file: request.file.clone(), aside: kept })
    }

    /// The state file that a name means: a path, or one below the data directory.
    fn state_file(&self, file: &str) -> Result<(&'static Kind, PathBuf, Option<String>), ServerError> {
        let unknown = || ServerError::Daemon(DaemonError::StateKnown { file: file.to_owned() });
        let dir = self.data_dir();
        let path = dir.join(file);
        let (kind, name) = kind_of(dir, &path).ok_or_else(unknown)?;
        let is_there = path.symlink_metadata().is_ok();
        if !is_there && !self.not_known().iter().any(|found| found.path == path) {
            return Err(unknown());
        }
        Ok((kind, path, name))
    }

    /// Has the part of the server that a file belongs to read it again.
    fn take_in_state(&self, kind: &Kind, name: Option<&str>) -> Result<(), ServerError> {
        let name = name.unwrap_or_default();
        let open = || self.volumes.get(name);
        match (kind.place, kind.file) {
            (Place::Device, _) => {
                self.devices.read(name)?;
                // A session that opened the LUN while its owner was unknown would otherwise bypass
                // the device.
                if let Some(lun) = self.devices.lun_of(name) {
                    self.end_late(&lun);
                }
                self.access.join(&self.devices.on_luns())?;
            }
            (_, "peers.json") => self.peers.read(),
            (_, "followers.json") => self.followers.read(&self.source),
            (_, "groups.json") => self.groups.read(),
            (_, "exports.json" | "reservations.json") => {
                self.access.read();
                self.access.join(&self.devices.on_luns())?;
            }
            (_, "mounts.json") => self.mounts.read(),
            (_, "nfs.json") => self.nfs_exports.read(),
            (_, "buckets.json") => self.buckets.read(),
            (_, "tokens.json") => self.tokens.read(),
            (_, "oidc.json") => self.oidc.read(),
            (_, "fleet.json") => self.fleet.read(),
            (_, "notify.json" | "notify.desks.json") => self.notify.read(),
            (_, "volume.json") => {
                if let Some(open) = self.volumes.open_again(name) {
                    self.take_in_volume(&open);
                }
                self.volumes.get(name)?;
            }
            (_, "mirror.json" | "reverse.json") => self.mirrors.take_in(&open()?),
            (_, "bucket-mirrors.json") => self.bucket_mirrors.take_in(&*open()?),
            (_, "drill.json") => self.drills.read(name),
            (_, "scrub.json") => open()?.read_scrub(),
            (_, "schedules.json") => open()?.schedules.read(),
            (_, "hooks.json") => open()?.hooks.read(),
            (_, "governor.json") => open()?.governor.read(),
            // Read where they are needed, or at the next start.
            _ => {}
        }
        Ok(())
    }
}
