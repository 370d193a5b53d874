//! Where the source of a mirror reaches this server, once the roles change: the address from which
//! this server reaches the source, at the port for mirrors.
//!
//! By default that port is open only to this machine. A server without configuration for it
//! (`--mirror`, `--advertise`) also opens it on that one address, as soon as it has a mirror: so a
//! failback needs no restart. A client there must still present the certificate of a peer. The
//! address is kept in `mirror.json`, for a start while the source is gone.

use std::net::{IpAddr, SocketAddr};

use super::{Mirrors, Opens, Relation};
use crate::peers::outbound::SourceStream;

impl Mirrors {
    /// How a place to listen on is opened, if that is to be done at all; it is done for the mirrors
    /// that there are.
    pub(crate) fn open_with(&self, opens: Opens) {
        if self.opens.set(opens).is_ok() {
            let facing: Vec<IpAddr> =
                self.all().iter().filter_map(|relation| relation.document.lock().facing).collect();
            facing.into_iter().for_each(|ip| self.open_at(ip));
        }
    }

    /// Further places where mirrors are listened for.
    pub(crate) fn opened(&self) -> Vec<SocketAddr> {
        self.opened.lock().clone()
    }

    /// Notes from where a source was reached, and listens there.
    pub(super) fn face(&self, relation: &Relation, stream: &SourceStream) {
        let local = stream.lanes().first().and_then(|lane| lane.sock.get_ref().local_addr().ok());
        let Some(ip) = local.map(|local| local.ip()).filter(|_| self.opens.get().is_some()) else { return };
        self.open_at(ip);
        let known = relation.document.lock().facing;
        if known != Some(ip)
            && let Err(error) = self.keep(relation, |document| document.facing = Some(ip))
        {
            tracing::warn!(mirror = relation.name, %error, "could not save the address for the source");
        }
    }

    fn open_at(&self, ip: IpAddr) {
        let Some(opens) = self.opens.get() else { return };
        match opens(ip) {
            Ok(None) => {}
            Ok(Some(address)) => {
                tracing::info!(%address, "listening for mirrors at this address too: the source of a mirror can reach this server there");
                self.opened.lock().push(address);
            }
            Err(error) => {
                tracing::warn!(%ip, %error, "cannot listen for mirrors where the source of a mirror could reach this server: a failback needs --mirror and --advertise");
            }
        }
    }
}
