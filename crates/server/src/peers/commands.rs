//! Commands on peers and invitations: the methods of the server for them.

use std::time::Duration;

use cairn_api as api;

use crate::daemon::config::check_reachable;
use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::mirrors::transfer;
use crate::names;
use crate::peers::error::PeersError;

impl Server {
    pub(crate) fn list_peers(&self) -> Vec<api::Peer> {
        self.peers.list(&*self.clock)
    }

    /// Renames a peer.
    pub(crate) fn rename_peer(&self, id: &str, name: &str) -> Result<api::Peer, ServerError> {
        self.peers.rename(id, name)?;
        let found = self.list_peers().into_iter().find(|peer| peer.id == id);
        found.ok_or_else(|| ServerError::NotFound {
            what: "peer",
            name: id.to_owned(),
            list: "cairn peer list",
        })
    }

    /// Ends the access of a peer, and releases the data kept for its mirrors.
    pub(crate) fn revoke_peer(&self, id: &str) -> Result<(), ServerError> {
        let Some(gone) = self.peers.revoke(id)? else { return Ok(()) };
        let name = transfer::peer_digits(gone);
        let mut kept = Ok(());
        for open in &self.volumes.all() {
            if self.peers.allows(gone, &open.name, Some(open.volume.id())).is_ok() {
                continue;
            }
            let let_go = || {
                let failed = ServerError::volume(&open.name);
                let mirrors = self.mirrors_of(open).map_err(&failed)?;
                let mut own = mirrors.iter().filter(|mirror| mirror.peer() == name).peekable();
                if own.peek().is_some() {
                    // It would wait while holding state that all mirrors need, and block them too.
                    open.refuse_if_floor_leaves_no_room()?;
                }
                own.try_for_each(|mirror| self.source.forget(&open.volume, &mirror.name).map_err(&failed))
            };
            // A failure in one volume is no reason to keep the data in another. It is listed, with
            // the way to release it.
            kept = kept.and(let_go());
        }
        self.followers.keep(&self.source);
        kept
    }

    pub(crate) fn invite(&self, request: &api::Invite) -> Result<api::Invitation, ServerError> {
        if let Some(volume) = &request.volume {
            self.volumes.get(volume)?;
        }
        let listening = self.mirror_address.clone().ok_or_else(|| {
            ServerError::Peers(PeersError::NoAddress { listening: "nothing (--mirror off)".to_owned() })
        })?;
        let address = match request.advertise.clone().or_else(|| self.advertise.clone()) {
            Some(advertise) => {
                check_reachable(&advertise)?;
                advertise
            }
            None if listening.starts_with("0.0.0.0:") || listening.starts_with("[::]:") => {
                return Err(ServerError::Peers(PeersError::NoAddress { listening }));
            }
            None => listening,
        };
        if let Some(name) = &request.name {
            names::check("peer", name)?;
        }
        let expiry = request.expires_ms.map(Duration::from_millis);
        let (volume, name) = (request.volume.clone(), request.name.clone());
        self.peers.invite(&*self.clock, self.identity.fingerprint, address, volume, name, expiry)
    }
}
