//! The parts of a session that its requests need, on each of its threads.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use cairn_frontend_session::{Meter, Socket};
use cairn_proto_nfs::rpc::Credential;
use parking_lot::Mutex;

use crate::locking::Locking;
use crate::node::Request;
use crate::registry::Entry;
use crate::running::Shared;

/// The surroundings of a round.
pub(crate) struct Around {
    pub(crate) shared: Arc<Shared>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) client: IpAddr,
    /// The address of the server that the client uses.
    pub(crate) server: IpAddr,
    /// The first export that the client was admitted to.
    pub(crate) admitted: OnceLock<String>,
    pub(crate) outlet: Outlet,
}

/// The way out of a session for all of its threads.
pub(crate) struct Outlet {
    socket: Socket,
    /// Held by the thread that sends.
    sending: Mutex<()>,
}

impl Outlet {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, sending: Mutex::default() }
    }

    /// Sends whole replies, with no reply of another thread in between.
    pub(crate) fn send_all(&self, from: &mut [IoSlice<'_>]) -> io::Result<()> {
        let _sending = self.sending.lock();
        self.socket.send_all(from)
    }

    /// Ends the connection: a reply was lost.
    pub(crate) fn close(&self) {
        self.socket.close();
    }
}

impl Around {
    pub(crate) fn meter(&self) -> &Meter {
        &self.entry.meter
    }

    /// A request of a user about locks.
    pub(crate) fn locking<'a>(&'a self, credential: &'a Credential) -> Locking<'a> {
        Locking { request: self.request(credential), locks: &self.shared.locks, server: self.server }
    }

    /// A request of a user.
    pub(crate) fn request<'a>(&'a self, credential: &'a Credential) -> Request<'a> {
        Request {
            exports: &*self.shared.exports,
            warnings: &self.shared.warnings,
            client: self.client,
            credential,
            admitted: &self.admitted,
        }
    }
}
