//! The peers that may mirror from here: waiting invitations, and peers with a pinned certificate.
//!
//! One file holds both, so that using a token and pinning the certificate is one atomic step: a cut
//! in between neither loses the token nor lets it be used twice.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_api::{Invitation, Peer, PeerState};
use cairn_base::{Clock, Timestamp, VolumeId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::names;
use crate::peers::error::PeersError;
use crate::peers::identity::Fingerprint;
use crate::peers::token::{Secret, Token, random_name};
use crate::state;
use crate::state::Unread;

mod commands;
pub(crate) mod error;
pub(crate) mod identity;
pub(crate) mod outbound;
pub(crate) mod pace;
pub(crate) mod stall;
pub(crate) mod tls;
pub(crate) mod token;
pub(crate) mod watched;
pub(crate) mod wire;

/// By default, a token can be used for the first time within this time.
const DEFAULT_EXPIRY: Duration = Duration::from_secs(15 * 60);
/// After this time, an unused token is forgotten: its user then gets the error that it is unknown,
/// not that it expired.
const FORGET: Duration = Duration::from_secs(30 * 24 * 3600);
/// More invitations at a time are a mistake or an attack on the disk.
const MAX_ENTRIES: usize = 10_000;

/// An invitation, and the peer that it became.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct PeerRecord {
    id: String,
    secret_digest: String,
    invited_ms: u64,
    expires_ms: u64,
    volume: Option<String>,
    /// Name of the peer's server. Records with one certificate have one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// ID of the volume that the peer was admitted to. A different volume that later takes the same
    /// name is not covered.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "of")]
    volume_id: Option<[u8; 16]>,
    pinned: Option<Pinned>,
    /// The same by the monotonic clock, in the run of the program that made it: setting the wall
    /// clock back does not make a token valid again.
    #[serde(skip)]
    ends: Option<Duration>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Pinned {
    fingerprint: Fingerprint,
    at_ms: u64,
}

/// The content of `peers.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PeersDocument {
    peers: Vec<PeerRecord>,
}

/// The peers of a server. One lock, held while the file is written: two uses of a token come one
/// after the other.
pub(crate) struct Peers {
    path: PathBuf,
    document: Mutex<PeersDocument>,
    /// The peers are unknown: no new peer is admitted, and nothing that a peer may need is
    /// released.
    unread: Mutex<Option<Unread>>,
}

/// The credential that a destination presents.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Credential {
    /// The invitation.
    pub(crate) id: String,
    /// Its secret.
    pub(crate) secret: Secret,
}

impl Peers {
    /// The peers in `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self, ServerError> {
        let path = dir.join("peers.json");
        let (document, unread) = state::known(&path);
        Ok(Self { path, document: Mutex::new(document.unwrap_or_default()), unread: Mutex::new(unread) })
    }

    /// Loads the current content of the file.
    pub(crate) fn read(&self) {
        let (document, unread) = state::known(&self.path);
        *self.document.lock() = document.unwrap_or_default();
        *self.unread.lock() = unread;
    }

    /// Refuses while the peers are not known.
    pub(crate) fn check_known(&self) -> Result<(), ServerError> {
        state::refuse_unread(self.unread.lock().as_ref())
    }

    /// Makes a token.
    pub(crate) fn invite(
        &self,
        clock: &dyn Clock,
        fingerprint: Fingerprint,
        address: String,
        volume: Option<String>,
        name: Option<String>,
        expiry: Option<Duration>,
    ) -> Result<Invitation, ServerError> {
        let now_ms = clock.now().0 / 1_000_000;
        let expiry = expiry.unwrap_or(DEFAULT_EXPIRY);
        let expires_ms = now_ms.saturating_add(expiry.as_millis().try_into().unwrap_or(u64::MAX));
        let (id, secret) = (random_name(), Secret::random());
        let entry = PeerRecord {
            id: id.clone(),
            secret_digest: secret.digest(),
            invited_ms: now_ms,
            expires_ms,
            volume: volume.clone(),
            name,
            volume_id: None,
            pinned: None,
            ends: Some(clock.monotonic().saturating_add(expiry)),
        };
        self.change(|document| {
            let forget_ms = FORGET.as_millis() as u64;
            document.peers.retain(|entry| {
                entry.pinned.is_some() || entry.expires_ms.saturating_add(forget_ms) > now_ms
            });
            if document.peers.len() >= MAX_ENTRIES {
                return Err(ServerError::Invalid {
                    fault: "this server has 10,000 peers and invitations, which is the limit",
                    next: "revoke some with `cairn peer revoke ID`; `cairn peer list` shows them",
                });
            }
            if let Some(name) = &entry.name {
                document.refuse_taken(name, None)?;
            }
            document.peers.push(entry);
            Ok(())
        })?;
        let token = Token {
            id: id.clone(),
            address: address.clone(),
            fingerprint,
            secret,
            expires_s: expires_ms / 1000,
            volume: volume.clone(),
        };
        Ok(Invitation { token: token.encode(), id, address, expires_ms, volume })
    }

    /// Everyone.
    pub(crate) fn list(&self, clock: &dyn Clock) -> Vec<Peer> {
        let document = self.document.lock();
        let peer = |entry: &PeerRecord| Peer {
            id: entry.id.clone(),
            name: document.name_of(entry),
            state: match &entry.pinned {
                Some(_) => PeerState::Pinned,
                None if entry.is_over(clock) => PeerState::Expired,
                None => PeerState::Invited,
            },
            fingerprint: entry.pinned.as_ref().map(|pinned| pinned.fingerprint.to_string()),
            volume: entry.volume.clone(),
            invited_ms: entry.invited_ms,
            expires_ms: entry.expires_ms,
            pinned_ms: entry.pinned.as_ref().map(|pinned| pinned.at_ms),
        };
        document.peers.iter().map(peer).collect()
    }

    /// Admits the holder of a certificate to a volume without a token: the other side of a mirror,
    /// when the roles change.
    pub(crate) fn pin(
        &self,
        now: Timestamp,
        certificate: Fingerprint,
        volume: &str,
        id: VolumeId,
    ) -> Result<(), ServerError> {
        if self.allows(certificate, volume, Some(id)).is_ok() {
            return Ok(());
        }
        let now_ms = now.0 / 1_000_000;
        let entry = PeerRecord {
            id: random_name(),
            secret_digest: Secret::random().digest(),
            invited_ms: now_ms,
            expires_ms: now_ms,
            volume: Some(volume.to_owned()),
            name: None,
            volume_id: Some(id.0),
            pinned: Some(Pinned { fingerprint: certificate, at_ms: now_ms }),
            ends: None,
        };
        self.change(|document| {
            document.peers.push(entry);
            Ok(())
        })
    }

    /// Renames a peer: every record with its certificate.
    pub(crate) fn rename(&self, id: &str, name: &str) -> Result<(), ServerError> {
        names::check("peer", name)?;
        self.change(|document| {
            let entry = document.peers.iter().find(|entry| entry.id == id);
            let not_found =
                || ServerError::NotFound { what: "peer", name: id.to_owned(), list: "cairn peer list" };
            let certificate = entry.ok_or_else(not_found)?.certificate();
            document.refuse_taken(name, Some((id, certificate)))?;
            for entry in &mut document.peers {
                if entry.id == id || (certificate.is_some() && entry.certificate() == certificate) {
                    entry.name = Some(name.to_owned());
                }
            }
            Ok(())
        })
    }

    /// Gives a peer without a name that of the host from which it came.
    pub(crate) fn name_after(&self, certificate: Fingerprint, host: &str) {
        let is_own = |entry: &PeerRecord| entry.certificate() == Some(certificate);
        let is_nameless = {
            let document = self.document.lock();
            let mut own = document.peers.iter().filter(|entry| is_own(entry)).peekable();
            own.peek().is_some() && own.all(|entry| entry.name.is_none())
        };
        if !is_nameless {
            return;
        }
        let named = self.change(|document| {
            let name = document.free_name(&host_name(host));
            document.peers.iter_mut().filter(|entry| is_own(entry)).for_each(|entry| {
                entry.name = Some(name.clone());
            });
            Ok(())
        });
        if let Err(error) = named {
            tracing::warn!(%error, "could not save the name of a peer");
        }
    }

    /// The names of the peers whose certificates are pinned.
    pub(crate) fn names(&self) -> Vec<(Fingerprint, String)> {
        let document = self.document.lock();
        let named = |entry: &PeerRecord| Some((entry.certificate()?, document.name_of(entry)));
        document.peers.iter().filter_map(named).collect()
    }

    /// The certificates that are pinned.
    pub(crate) fn pinned(&self) -> Vec<Fingerprint> {
        let document = self.document.lock();
        document.peers.iter().filter_map(|entry| Some(entry.pinned.as_ref()?.fingerprint)).collect()
    }

    /// Forgets a peer or an invitation, by its id. Its next connection is refused. The certificate
    /// that was pinned by it; another entry may still allow it other volumes.
    pub(crate) fn revoke(&self, id: &str) -> Result<Option<Fingerprint>, ServerError> {
        let mut gone = None;
        self.change(|document| {
            let at = document.peers.iter().position(|entry| entry.id == id);
            let not_found =
                || ServerError::NotFound { what: "peer", name: id.to_owned(), list: "cairn peer list" };
            let removed = document.peers.remove(at.ok_or_else(not_found)?);
            gone = removed.pinned.map(|pinned| pinned.fingerprint);
            Ok(())
        })?;
        Ok(gone)
    }

    /// Whether the holder of a credential may learn that there is no such volume: the credential is
    /// from here, no other peer has used it, and it is not for another volume.
    pub(crate) fn knows(
        &self,
        certificate: Fingerprint,
        credential: &Credential,
        volume: &str,
    ) -> Result<(), ServerError> {
        self.check_known()?;
        let document = self.document.lock();
        let mine = |entry: &&PeerRecord| {
            entry.id == credential.id && credential.secret.matches(&entry.secret_digest)
        };
        let entry = document.peers.iter().find(mine).ok_or(ServerError::Peers(PeersError::TokenUnknown))?;
        if !entry.allows(volume, None) {
            return Err(ServerError::Peers(PeersError::VolumeNotAllowed { volume: volume.to_owned() }));
        }
        match &entry.pinned {
            Some(pinned) if pinned.fingerprint != certificate => {
                Err(ServerError::Peers(PeersError::TokenUsed))
            }
            _ => Ok(()),
        }
    }

    /// Decides about a connection for `volume` from the holder of `certificate`; the first use of a
    /// token pins it.
    ///
    /// The same destination may present its token again: its first answer may have been lost on the
    /// way. `of` is the volume of that name, while it is open.
    pub(crate) fn admit(
        &self,
        clock: &dyn Clock,
        certificate: Fingerprint,
        credential: Option<&Credential>,
        volume: &str,
        id: Option<VolumeId>,
    ) -> Result<(), ServerError> {
        let now_ms = clock.now().0 / 1_000_000;
        let Some(credential) = credential else {
            self.allows(certificate, volume, id)?;
            if let Err(error) = self.bind(certificate, volume, id) {
                tracing::warn!(volume, %error, "could not save which volume this peer may access");
            }
            return Ok(());
        };
        self.change(|document| {
            let entry = document
                .peers
                .iter_mut()
                .find(|entry| entry.id == credential.id)
                .filter(|entry| credential.secret.matches(&entry.secret_digest))
                .ok_or(ServerError::Peers(PeersError::TokenUnknown))?;
            if !entry.allows(volume, id) {
                return Err(ServerError::Peers(PeersError::VolumeNotAllowed { volume: volume.to_owned() }));
            }
            match &entry.pinned {
                Some(pinned) if pinned.fingerprint == certificate => Ok(()),
                Some(_) => Err(ServerError::Peers(PeersError::TokenUsed)),
                None if entry.is_over(clock) => Err(ServerError::Peers(PeersError::TokenExpired)),
                None => {
                    entry.pinned = Some(Pinned { fingerprint: certificate, at_ms: now_ms });
                    // It is for one mirror: its holder does not get to see others.
                    entry.volume = Some(volume.to_owned());
                    entry.volume_id = id.map(|id| id.0);
                    Ok(())
                }
            }
        })
    }

    /// Notes which volume a peer was let in to, where that was not known then.
    fn bind(&self, certificate: Fingerprint, volume: &str, id: Option<VolumeId>) -> Result<(), ServerError> {
        let is_unbound = |entry: &PeerRecord| {
            let is_his = entry.pinned.as_ref().is_some_and(|pinned| pinned.fingerprint == certificate);
            is_his && entry.volume_id.is_none() && entry.volume.as_deref() == Some(volume)
        };
        let Some(id) = id.filter(|_| self.document.lock().peers.iter().any(is_unbound)) else {
            return Ok(());
        };
        self.change(|document| {
            document
                .peers
                .iter_mut()
                .filter(|entry| is_unbound(entry))
                .for_each(|entry| entry.volume_id = Some(id.0));
            Ok(())
        })
    }

    /// Whether the holder of a pinned certificate may have a volume. The id of the volume is not
    /// checked while it is not open.
    pub(crate) fn allows(
        &self,
        certificate: Fingerprint,
        volume: &str,
        id: Option<VolumeId>,
    ) -> Result<(), ServerError> {
        self.check_known()?;
        let document = self.document.lock();
        let pinned = |entry: &&PeerRecord| {
            entry.pinned.as_ref().is_some_and(|pinned| pinned.fingerprint == certificate)
        };
        let mut mine = document.peers.iter().filter(pinned).peekable();
        if mine.peek().is_none() {
            return Err(ServerError::Peers(PeersError::PeerNotPinned));
        }
        match mine.any(|entry| entry.allows(volume, id)) {
            true => Ok(()),
            false => Err(ServerError::Peers(PeersError::VolumeNotAllowed { volume: volume.to_owned() })),
        }
    }

    /// Changes the document and its file, or neither.
    fn change(
        &self,
        change: impl FnOnce(&mut PeersDocument) -> Result<(), ServerError>,
    ) -> Result<(), ServerError> {
        self.check_known()?;
        let mut document = self.document.lock();
        let mut changed = document.clone();
        change(&mut changed)?;
        state::save(&self.path, &changed)?;
        *document = changed;
        Ok(())
    }
}

/// A host as a name: an IPv6 address has `-` in place of each `:`.
fn host_name(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = match host.contains(':') {
        true => format!("ip6-{}", host.replace(':', "-")),
        false => host.to_owned(),
    };
    if names::check("peer", &name).is_ok() { name } else { "peer".to_owned() }
}

impl PeersDocument {
    /// The name of a peer: its own, that of another record with its certificate, or its id.
    fn name_of(&self, entry: &PeerRecord) -> String {
        let of_peer = || {
            let certificate = entry.certificate()?;
            self.peers.iter().find(|other| other.certificate() == Some(certificate) && other.name.is_some())
        };
        let name = entry.name.as_ref().or_else(|| of_peer()?.name.as_ref());
        name.unwrap_or(&entry.id).clone()
    }

    /// Refuses a name that another peer has, or that is another's id. `own` is the peer that gets
    /// it, by its id and certificate.
    fn refuse_taken(&self, name: &str, own: Option<(&str, Option<Fingerprint>)>) -> Result<(), ServerError> {
        let is_own = |entry: &PeerRecord| {
            own.is_some_and(|(id, certificate)| {
                entry.id == id || (certificate.is_some() && entry.certificate() == certificate)
            })
        };
        let others = self.peers.iter().filter(|entry| !is_own(entry));
        match others.into_iter().any(|entry| entry.id == name || entry.name.as_deref() == Some(name)) {
            true => Err(ServerError::Taken { what: "peer", name: name.to_owned() }),
            false => Ok(()),
        }
    }

    /// `wanted`, with a number after it where another peer has that name.
    fn free_name(&self, wanted: &str) -> String {
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        let mut names = std::iter::once(wanted.to_owned()).chain(numbered);
        names.find(|name| self.refuse_taken(name, None).is_ok()).unwrap_or_else(|| wanted.to_owned())
    }
}

impl PeerRecord {
    /// The certificate that is pinned.
    fn certificate(&self) -> Option<Fingerprint> {
        self.pinned.as_ref().map(|pinned| pinned.fingerprint)
    }

    /// The time for its first use is over.
    fn is_over(&self, clock: &dyn Clock) -> bool {
        self.expires_ms <= clock.now().0 / 1_000_000
            || self.ends.is_some_and(|ends| ends <= clock.monotonic())
    }

    fn allows(&self, volume: &str, id: Option<VolumeId>) -> bool {
        let is_same = self.volume_id.zip(id).is_none_or(|(own, id)| own == id.0);
        is_same && self.volume.as_deref().is_none_or(|only| only == volume)
    }
}

#[cfg(test)]
mod tests;
