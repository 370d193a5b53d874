//! The server as the driver sees it: requests of its HTTP API, one connection each.

use std::path::PathBuf;
use std::time::Duration;

use cairn_api::client::{Client, Place};
use cairn_api::{self as api, ErrorBody, ErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tonic::Status;

use crate::errors::status;
use crate::names::{LUN, Prefix};

/// Longest wait for an answer of the server.
const PATIENCE: Duration = Duration::from_secs(60);

/// A method of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Reads.
    Get,
    /// Creates or acts.
    Post,
    /// Changes.
    Patch,
    /// Deletes.
    Delete,
}

/// The API of a server. Tests put faults between a driver and its server.
pub trait Api: Send + Sync {
    /// One request. An error may mean that the request was carried out and its answer was lost.
    fn call(&self, verb: Verb, path: &str, body: Option<Value>) -> Result<Value, ErrorBody>;
}

/// How to reach a server.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Where it is. The token of a place over TCP is not used.
    pub place: Place,
    /// A file with the token. It is read for each request, so that it can be replaced.
    pub token_file: Option<PathBuf>,
    /// A file with the root of the server's certificate, in PEM.
    pub tls_root: Option<PathBuf>,
}

impl Connection {
    fn client(&self) -> Result<Client, ErrorBody> {
        let unread = |path: &PathBuf, error: std::io::Error| {
            let message = format!("cannot read {}: {error}", path.display());
            ErrorBody::new(ErrorKind::Unauthorized, message, "check the secret of the driver")
        };
        let place = match &self.place {
            // So an absent server has an error of its own.
            Place::Data(dir) => Place::Unix(dir.join("control.sock")),
            Place::Unix(path) => Place::Unix(path.clone()),
            Place::Tcp(address, token) => {
                let token = match &self.token_file {
                    Some(file) => std::fs::read_to_string(file).map_err(|error| unread(file, error))?,
                    None => token.clone(),
                };
                Place::Tcp(address.clone(), token.trim().to_owned())
            }
        };
        let is_remote = matches!(place, Place::Tcp(..));
        let mut client = Client::new(place, |note| tracing::warn!("{note}"))?;
        if let Some(root) = self.tls_root.as_ref().filter(|_| is_remote) {
            client.use_tls(&std::fs::read(root).map_err(|error| unread(root, error))?)?;
        }
        client.hurry(PATIENCE);
        Ok(client)
    }
}

impl Api for Connection {
    fn call(&self, verb: Verb, path: &str, body: Option<Value>) -> Result<Value, ErrorBody> {
        let client = self.client()?;
        let body = body.unwrap_or(Value::Object(serde_json::Map::new()));
        match verb {
            Verb::Get => client.get(path),
            Verb::Post => client.post(path, &body),
            Verb::Patch => client.patch(path, &body),
            Verb::Delete => client.delete(path),
        }
    }
}

/// The requests that the controller makes.
pub(crate) struct Cairn {
    pub(crate) api: Box<dyn Api>,
    pub(crate) prefix: Prefix,
}

/// Makes an absent object a value.
pub(crate) fn if_there<T>(outcome: Result<T, ErrorBody>) -> Result<Option<T>, Status> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.error == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(status(&error)),
    }
}

impl Cairn {
    fn ask<T: DeserializeOwned>(&self, verb: Verb, path: &str, body: Option<Value>) -> Result<T, ErrorBody> {
        let answer = self.api.call(verb, path, body)?;
        serde_json::from_value(answer).map_err(|error| {
            let message = format!("the answer of the server cannot be used: {error}");
            ErrorBody::new(
                ErrorKind::Failed,
                message,
                "use the same version of `cairn` for server and driver",
            )
        })
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ErrorBody> {
        self.ask(Verb::Get, path, None)
    }

    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ErrorBody> {
        let body = serde_json::to_value(body)
            .map_err(|error| ErrorBody::new(ErrorKind::Usage, error, "report this as a bug"))?;
        self.ask(Verb::Post, path, Some(body))
    }

    pub(crate) fn delete(&self, path: &str) -> Result<(), ErrorBody> {
        self.api.call(Verb::Delete, path, None).map(drop)
    }

    pub(crate) fn volume(&self, name: &str) -> Result<Option<api::Volume>, Status> {
        if_there(self.get(&format!("/v1/volumes/{name}")))
    }

    pub(crate) fn volumes(&self) -> Result<Vec<api::Volume>, Status> {
        let all: Vec<api::Volume> = self.get("/v1/volumes").map_err(|error| status(&error))?;
        let mut ours: Vec<api::Volume> =
            all.into_iter().filter(|volume| self.prefix.owns(&volume.name)).collect();
        ours.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(ours)
    }

    /// The disk of a volume; none if the volume or its disk does not exist.
    pub(crate) fn disk(&self, volume: &str) -> Result<Option<api::Lun>, Status> {
        let luns: Option<Vec<api::Lun>> = if_there(self.get(&format!("/v1/volumes/{volume}/luns")))?;
        let name = format!("{volume}/{LUN}");
        Ok(luns.into_iter().flatten().find(|lun| lun.name == name))
    }

    /// All disks of the driver with their access, in order of name.
    pub(crate) fn exports(&self) -> Result<Vec<api::Export>, Status> {
        let all: Vec<api::Export> = self.get("/v1/exports").map_err(|error| status(&error))?;
        let mut ours: Vec<api::Export> =
            all.into_iter().filter(|export| self.volume_of(export).is_some()).collect();
        ours.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(ours)
    }

    /// The volume of an export, if it is a disk of the driver.
    pub(crate) fn volume_of<'a>(&self, export: &'a api::Export) -> Option<&'a str> {
        let (volume, lun) = export.name.split_once('/')?;
        (lun == LUN && self.prefix.owns(volume)).then_some(volume)
    }

    pub(crate) fn export(&self, volume: &str) -> Result<Option<api::Export>, Status> {
        Ok(self.exports()?.into_iter().find(|export| self.volume_of(export) == Some(volume)))
    }

    /// Changes the access of a disk if its holder is the expected one.
    pub(crate) fn set_access(&self, volume: &str, access: &api::SetAccess) -> Result<api::Export, ErrorBody> {
        let body = serde_json::to_value(access)
            .map_err(|error| ErrorBody::new(ErrorKind::Usage, error, "report this as a bug"))?;
        self.ask(Verb::Patch, &format!("/v1/volumes/{volume}/luns/{LUN}/access"), Some(body))
    }

    /// The snapshots of a volume; none if there is no such volume.
    pub(crate) fn snapshots(&self, volume: &str) -> Result<Vec<api::Snapshot>, Status> {
        match self.volume(volume)? {
            Some(there) => self.snapshots_of(&there),
            None => Ok(Vec::new()),
        }
    }

    /// The snapshots of a volume. A clone has a copy of the one that it was made from, under its
    /// name at that time: that one is not a snapshot of the clone.
    pub(crate) fn snapshots_of(&self, volume: &api::Volume) -> Result<Vec<api::Snapshot>, Status> {
        let found: Option<Vec<api::Snapshot>> =
            if_there(self.get(&format!("/v1/volumes/{}/snapshots", volume.name)))?;
        let base = volume.clone_of.as_deref().and_then(|of| of.split_once('@'));
        let base = base.map(|(_, snapshot)| format!("{}@{snapshot}", volume.name));
        Ok(found.into_iter().flatten().filter(|one| Some(&one.name) != base.as_ref()).collect())
    }

    /// The ranges of the disk in a snapshot, or of the present without one. `since` is the snapshot
    /// to compare with; without it, the ranges are all that have blocks.
    pub(crate) fn ranges(
        &self,
        volume: &str,
        since: Option<&str>,
        until: Option<&str>,
        offset: u64,
        limit: u32,
    ) -> Result<api::ChangedRanges, ErrorBody> {
        let mut path = format!("/v1/volumes/{volume}/luns/{LUN}/changed?offset={offset}&limit={limit}");
        for (key, value) in [("since", since), ("until", until)] {
            if let Some(value) = value {
                path.push_str(&format!("&{key}={value}"));
            }
        }
        self.get(&path)
    }
}
