//! A session, on a thread of its own: rounds of requests until the client disconnects.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cairn_frontend_session::limits::{HANDSHAKE_LONGEST, HANDSHAKE_TIMEOUT, SLOW_ROUND};
use cairn_frontend_session::{Input, Patience, Socket, Window};
use cairn_proto_nfs::Malformed;
use cairn_proto_nfs::record::{BadRecord, Front, front};

use crate::around::{Around, Outlet};
use crate::cold::ReadLanes;
use crate::limits::RECORD_BYTES_MAX;
use crate::registry::Entry;
use crate::round::{Round, Taken};
use crate::running::Shared;

/// Why a session ended without the client closing its connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    #[error("the client broke the protocol: {0}")]
    Record(#[from] BadRecord),
    #[error("the client broke the protocol: {0}")]
    Malformed(#[from] Malformed),
    #[error("the client has used no export within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Stranger,
    #[error("the server has {sessions_max} sessions, as many as it may")]
    Full { sessions_max: usize },
    #[error("a request that the client repeats does not end")]
    Stuck,
}

/// Why taking requests ended.
enum Gathered {
    /// Finish the round and come again.
    Round,
    /// Finish it and end.
    Last,
}

struct Session<'a> {
    around: &'a Arc<Around>,
    socket: &'a Socket,
    input: Input,
    /// Held while there is work.
    window: Option<Window>,
    patience: Patience,
    /// When bytes came last.
    received: Instant,
    is_established: bool,
    begun: Instant,
    /// Of a stranger.
    deadline: Instant,
    spoke: bool,
}

/// Serves one connection to its end.
pub(crate) fn run(shared: &Arc<Shared>, entry: &Arc<Entry>, socket: &Socket) -> Result<(), SessionEnd> {
    let now = Instant::now();
    let server = socket.local().unwrap_or(SocketAddr::new([127, 0, 0, 1].into(), 0));
    let around = Arc::new(Around {
        shared: Arc::clone(shared),
        entry: Arc::clone(entry),
        client: entry.peer.address.ip().to_canonical(),
        server: server.ip().to_canonical(),
        admitted: OnceLock::new(),
        outlet: Outlet::new(socket.another()),
    });
    let session = Session {
        around: &around,
        socket,
        input: Input::default(),
        window: None,
        patience: Patience::default(),
        received: now,
        is_established: false,
        begun: now,
        deadline: now + HANDSHAKE_TIMEOUT,
        spoke: false,
    };
    session.serve()
}

impl Session<'_> {
    fn serve(mut self) -> Result<(), SessionEnd> {
        let (around, mut round) = (self.around, Round::default());
        // They have answered all reads when they are dropped.
        let mut lanes = ReadLanes::new(around);
        loop {
            let gathered = self.gather(&mut round);
            let begin = Instant::now();
            // Requests that were executed have to be durable even if the next one is invalid.
            let finished = round.finish(around, &mut lanes);
            let gathered = gathered?;
            finished?;
            if begin.elapsed() > SLOW_ROUND && self.around.entry.gate.is_closed() {
                return Ok(());
            }
            if let Gathered::Last = gathered {
                return Ok(());
            }
        }
    }

    /// Executes requests until the round is full or no more have arrived; waits for the first only.
    fn gather(&mut self, round: &mut Round) -> Result<Gathered, SessionEnd> {
        loop {
            let windows = &self.around.shared.options.windows;
            let window = self.window.get_or_insert_with(|| windows.take()).bytes();
            let more = loop {
                if self.around.entry.gate.is_closed() {
                    return Ok(Gathered::Last);
                }
                if round.is_full(window) {
                    return Ok(Gathered::Round);
                }
                let (taken, used) = match front(self.input.bytes(), RECORD_BYTES_MAX)? {
                    Front::More(more) => break more,
                    Front::Record(record, used) => (round.take(self.around, &record, self.received)?, used),
                };
                match taken {
                    Taken::Done => self.input.consume(used),
                    Taken::FinishFirst => return Ok(Gathered::Round),
                    Taken::Stuck => return Err(SessionEnd::Stuck),
                }
                self.establish()?;
            };
            if !round.is_empty() {
                return Ok(Gathered::Round);
            }
            if self.input.bytes().is_empty() {
                self.window = None;
            }
            match self.receive(more)? {
                0 => return Ok(Gathered::Last),
                _ => self.has_spoken(),
            }
        }
    }

    fn has_spoken(&mut self) {
        if !std::mem::replace(&mut self.spoke, true) {
            self.around.shared.registry.spoke(&self.around.entry);
        }
    }

    /// A client that was admitted to an export is no stranger any more.
    fn establish(&mut self) -> Result<(), SessionEnd> {
        if self.is_established {
            return Ok(());
        }
        let Some(export) = self.around.admitted.get() else {
            // It has asked for something, and may ask for more.
            let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
            self.deadline = deadline.min(self.begun + HANDSHAKE_LONGEST);
            return Ok(());
        };
        let (shared, entry) = (&self.around.shared, &self.around.entry);
        let sessions_max = shared.options.max_sessions;
        let admitted = shared.registry.establish(entry, export, sessions_max);
        admitted.map_err(|_| {
            tracing::warn!(peer = %entry.peer.address, sessions_max, "refused an NFS session: there are too many");
            SessionEnd::Full { sessions_max }
        })?;
        self.is_established = true;
        self.socket.set_receive_timeout(None)?;
        Ok(())
    }

    /// Receives at least one byte, if the client sends any; 0 at its end.
    fn receive(&mut self, more: usize) -> Result<usize, SessionEnd> {
        if !self.is_established {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SessionEnd::Stranger);
            }
            self.socket.set_receive_timeout(Some(left.max(Duration::from_millis(1))))?;
        }
        let into = self.input.room(more);
        let socket = self.socket;
        let received = self.patience.receive(|wait| socket.receive(&mut [IoSliceMut::new(into)], wait))?;
        let Some(count) = received else {
            // Only the wait for a stranger has an end.
            return Err(SessionEnd::Stranger);
        };
        self.input.received(count);
        self.received = Instant::now();
        Ok(count)
    }
}
