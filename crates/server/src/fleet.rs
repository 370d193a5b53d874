//! Other servers that this one shows, each read with a token of a viewer.
//!
//! `fleet.json` has their addresses, roots and tokens; no answer, list or log has a token. A server
//! is asked when a client looks at the fleet, and at most once in [`FRESH`]. Each is asked by a
//! thread of its own, so one that hangs delays no other, and no client. All that it answers is
//! foreign text: it is cut, and only numbers and one message of it are kept.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_api::client::{Client, Place};
use cairn_api::{self as api, ErrorBody, ErrorKind, FleetState, FleetSummary};
use cairn_base::Clock;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ServerError;
use crate::exports::nbd_rules::is_reachable;
use crate::fleet::error::FleetError;
use crate::state::Unread;
use crate::{names, state};

mod commands;
pub(crate) mod error;

#[cfg(test)]
mod tests;

/// More servers are a mistake.
const SERVERS_MAX: usize = 100;

/// An answer that is no older is not asked for again.
const FRESH: Duration = Duration::from_secs(10);

/// Longest wait for a server.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest wait of a client of this server for answers.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Longest answer that is read, in bytes.
const ANSWER_MAX: usize = 16 << 20;

/// Longest text of another server that is kept, in characters.
const TEXT_MAX: usize = 300;

/// A server as it is kept.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    name: String,
    address: String,
    /// In PEM.
    root: Option<String>,
    token: String,
    added_ms: u64,
}

/// The content of `fleet.json`.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct FleetDocument {
    servers: Vec<Kept>,
}

/// The last try to read a server.
#[derive(Default)]
struct Seen {
    /// A thread asks it.
    is_asked: bool,
    /// The end of the last try, by the monotonic clock.
    tried: Option<Duration>,
    answered_ms: Option<u64>,
    summary: Option<FleetSummary>,
    message: Option<String>,
    /// The last try failed.
    failed: bool,
}

/// The other servers. Lock order: `document`, then `seen`.
pub(crate) struct Fleet {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    document: Mutex<FleetDocument>,
    unread: Mutex<Option<Unread>>,
    /// By name and the time at which it was added: another server may get the name later.
    seen: Mutex<HashMap<(String, u64), Seen>>,
    /// A try has ended.
    tried: Condvar,
}

impl Fleet {
    /// The servers in `dir`.
    pub(crate) fn open(dir: &Path, clock: Arc<dyn Clock>) -> Arc<Self> {
        let fleet = Self {
            path: dir.join("fleet.json"),
            clock,
            document: Mutex::default(),
            unread: Mutex::default(),
            seen: Mutex::default(),
            tried: Condvar::new(),
        };
        fleet.read();
        Arc::new(fleet)
    }

    /// Loads the present content of the file.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known::<FleetDocument>(&self.path);
        *self.document.lock() = document.unwrap_or_default();
        *self.unread.lock() = unread;
    }

    fn add(&self, asked: &api::AddFleetServer) -> Result<Kept, ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())?;
        let kept = Kept {
            name: asked.name.clone(),
            address: asked.address.trim().to_owned(),
            root: asked.root.clone(),
            token: asked.token.0.trim().to_owned(),
            added_ms: self.clock.now().0 / 1_000_000,
        };
        kept.check()?;
        self.refuse_taken(&kept.name, &self.document.lock())?;
        // Without a lock: it may take a while.
        let access: Option<api::OwnAccess> = match kept.ask("/v1/access") {
            Ok(access) => Some(access),
            // A version without this request.
            Err(error) if error.error == ErrorKind::NotFound => None,
            Err(error) => return Err(kept.failed(error)),
        };
        if let Some(role) = access.map(|access| access.role).filter(|role| *role != api::Role::Viewer) {
            return Err(FleetError::RoleTooHigh { address: kept.address, role }.into());
        }
        let mut document = self.document.lock();
        self.refuse_taken(&kept.name, &document)?;
        let mut new = document.clone();
        new.servers.push(kept.clone());
        state::save(&self.path, &new)?;
        *document = new;
        Ok(kept)
    }

    fn refuse_taken(&self, name: &str, document: &FleetDocument) -> Result<(), ServerError> {
        if document.servers.iter().any(|known| known.name == name) {
            return Err(ServerError::Taken { what: "server", name: name.to_owned() });
        }
        if document.servers.len() >= SERVERS_MAX {
            return Err(ServerError::Invalid {
                fault: "the fleet has 100 servers",
                next: "delete those that are no longer needed with `cairn fleet delete`",
            });
        }
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())?;
        let mut document = self.document.lock();
        let mut new = document.clone();
        new.servers.retain(|known| known.name != name);
        if new.servers.len() == document.servers.len() {
            return Err(not_found(name));
        }
        state::save(&self.path, &new)?;
        *document = new;
        self.seen.lock().retain(|(known, _), _| known != name);
        Ok(())
    }

    fn servers(&self) -> Result<Vec<Kept>, ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())?;
        Ok(self.document.lock().servers.clone())
    }

    fn find(&self, name: &str) -> Result<Kept, ServerError> {
        self.servers()?.into_iter().find(|known| known.name == name).ok_or_else(|| not_found(name))
    }

    /// All servers, by their last answers. Those whose answers are old get a request, for which
    /// this waits no longer than `wait`.
    fn look(self: &Arc<Self>, servers: &[Kept], wait: Duration) -> Vec<api::FleetServer> {
        let now = self.clock.monotonic();
        let mut seen = self.seen.lock();
        for kept in servers {
            let of = seen.entry(kept.key()).or_default();
            let is_fresh = of.tried.is_some_and(|tried| now.saturating_sub(tried) < FRESH);
            if !of.is_asked && !is_fresh {
                of.is_asked = self.ask_on_a_thread(kept.clone());
            }
        }
        let end = now + wait.min(WAIT_MAX);
        while servers.iter().any(|kept| seen.get(&kept.key()).is_some_and(|seen| seen.is_asked)) {
            let left = end.saturating_sub(self.clock.monotonic());
            if left.is_zero() || self.tried.wait_for(&mut seen, left).timed_out() {
                break;
            }
        }
        servers.iter().map(|kept| kept.show(seen.get(&kept.key()))).collect()
    }

    fn ask_on_a_thread(self: &Arc<Self>, kept: Kept) -> bool {
        let own = self.clone();
        let work = move || {
            let outcome = kept.ask::<Value>("/v1/status");
            own.note(&kept, outcome);
        };
        std::thread::Builder::new().name("fleet".to_owned()).spawn(work).is_ok()
    }

    fn note(&self, kept: &Kept, outcome: Result<Value, ErrorBody>) {
        let mut all = self.seen.lock();
        // It may have been deleted meanwhile.
        if let Some(seen) = all.get_mut(&kept.key()) {
            (seen.is_asked, seen.tried) = (false, Some(self.clock.monotonic()));
            seen.failed = outcome.is_err();
            match outcome {
                Ok(status) => {
                    seen.answered_ms = Some(self.clock.now().0 / 1_000_000);
                    seen.message = first_problem(&status);
                    seen.summary = Some(summary(&status));
                }
                Err(error) => seen.message = Some(cut(&error.message)),
            }
        }
        self.tried.notify_all();
    }
}

impl Kept {
    fn key(&self) -> (String, u64) {
        (self.name.clone(), self.added_ms)
    }

    fn check(&self) -> Result<(), ServerError> {
        names::check("server", &self.name)?;
        let is_whole = self
            .address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
        if !is_whole {
            return Err(ServerError::Invalid {
                fault: "invalid address of a server",
                next: "give HOST:PORT of its API, such as storage2:7400",
            });
        }
        let is_sendable = !self.token.is_empty() && self.token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_sendable {
            return Err(ServerError::Invalid {
                fault: "the token is not one of the API",
                next: "create one on that server with `cairn token create NAME --role viewer`",
            });
        }
        if self.root.is_none() && is_reachable(&self.address) {
            return Err(FleetError::NeedsTls { address: self.address.clone() }.into());
        }
        Ok(())
    }

    /// The answer of the server.
    fn ask<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, ErrorBody> {
        let mut client = Client::new(Place::Tcp(self.address.clone(), self.token.clone()), |_| {})?;
        if let Some(root) = &self.root {
            client.use_tls(root.as_bytes())?;
        }
        client.hurry(PATIENCE);
        client.read_at_most(ANSWER_MAX);
        client.get(path)
    }

    fn failed(&self, error: ErrorBody) -> ServerError {
        let error = Box::new(ErrorBody { message: cut(&error.message), ..error });
        FleetError::Other { address: self.address.clone(), error }.into()
    }

    fn show(&self, seen: Option<&Seen>) -> api::FleetServer {
        let problems = seen.and_then(|seen| seen.summary.as_ref()).map(|summary| summary.problems);
        let state = match seen {
            Some(seen) if seen.failed => FleetState::Unreachable,
            _ => match problems {
                None => FleetState::Unknown,
                Some(0) => FleetState::Well,
                Some(_) => FleetState::Problems,
            },
        };
        api::FleetServer {
            name: self.name.clone(),
            address: self.address.clone(),
            tls: self.root.is_some(),
            state,
            message: seen.and_then(|seen| seen.message.clone()),
            answered_ms: seen.and_then(|seen| seen.answered_ms),
            summary: seen.and_then(|seen| seen.summary.clone()),
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(TEXT_MAX).collect()
}

/// The elements of a list of a status of any version.
fn list<'a>(status: &'a Value, name: &str) -> &'a [Value] {
    status[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn first_problem(status: &Value) -> Option<String> {
    let problem = list(status, "problems").first()?;
    let text = |field: &str| problem[field].as_str().unwrap_or_default();
    Some(cut(&format!("{}: {}", text("subject"), text("message"))))
}

fn summary(status: &Value) -> FleetSummary {
    let (volumes, mirrors) = (list(status, "volumes"), list(status, "mirrors"));
    let sum = |field: &str| {
        let each = volumes.iter().filter_map(|volume| volume[field].as_u64());
        each.fold(0, u64::saturating_add)
    };
    FleetSummary {
        version: cut(status["version"].as_str().unwrap_or_default()),
        problems: list(status, "problems").len() as u64,
        volumes: volumes.len() as u64,
        mirrors: mirrors.len() as u64,
        over_rpo: mirrors.iter().filter(|mirror| mirror["over_rpo"] == true).count() as u64,
        lag_ms: mirrors.iter().filter_map(|mirror| mirror["lag_ms"].as_u64()).max(),
        used_bytes: sum("used_bytes"),
        size_bytes: sum("size_bytes"),
    }
}

fn not_found(name: &str) -> ServerError {
    ServerError::NotFound { what: "server", name: name.to_owned(), list: "cairn fleet list" }
}
