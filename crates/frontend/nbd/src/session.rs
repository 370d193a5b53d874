//! A session, on a thread of its own: negotiation, then rounds of requests until the client
//! disconnects.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_frontend_session::limits::{
    HANDSHAKE_LONGEST, HANDSHAKE_TIMEOUT, RECEIVE_BYTES, RECEIVE_BYTES_BETWEEN, SLOW_ROUND,
};
use cairn_frontend_session::{Input, Patience, Payload, ReadAhead, Socket, Window, Windows};
use cairn_proto_nbd::{
    Catalog, Command, Decoded, ExportDescription, ExportState, Handshake, NbdError, Negotiated, Refusal,
    ReplyTo, Request, Step, TlsPolicy, Violation, decode_request, request_header_bytes,
};

use crate::exports::{Export, OpenExportError, Visitor};
use crate::lanes::ReadLanes;
use crate::limits::LONG_WRITE_BYTES;
use crate::registry::{Entry, NotLetIn};
use crate::round::{Round, Surroundings, piece_bytes};
use crate::server::Shared;
use crate::transport::{Replies, Transport};

/// Why a session ended without a good-bye of the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    #[error("the client broke the protocol: {0}")]
    Violation(#[from] Violation),
    #[error("the client did not finish negotiating within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    HandshakeTimeout,
    #[error("TLS failed: {0}")]
    Tls(#[from] rustls::Error),
}

/// Serves one connection to its end.
pub(crate) fn run(shared: &Shared, entry: &Arc<Entry>, socket: Socket) -> Result<(), SessionEnd> {
    let mut input = Input::default();
    let Some(established) = negotiate(shared, entry, Transport::plain(socket), &mut input)? else {
        return Ok(());
    };
    let Established { mut transport, negotiated, name, mut export } = established;
    export.device = Arc::new(ReadAhead::new(export.device));
    let around = Arc::new(Surroundings { export, name, negotiated, entry: Arc::clone(entry) });
    let mut session = Session {
        lanes: ReadLanes::new(Arc::clone(&shared.windows), &around, &transport),
        around,
        input,
        incoming: None,
        long_writes: false,
        windows: Arc::clone(&shared.windows),
        window: None,
        patience: Patience::default(),
        received: Instant::now(),
    };
    let result = session.serve(&mut transport);
    // The last replies of its lanes come before the good-bye.
    drop(session);
    if result.is_ok() {
        transport.finish();
    }
    result
}

struct Established {
    transport: Transport,
    negotiated: Negotiated,
    name: String,
    export: Export,
}

/// Brings a client to an export. `None` when it left.
fn negotiate(
    shared: &Shared,
    entry: &Arc<Entry>,
    mut transport: Transport,
    input: &mut Input,
) -> Result<Option<Established>, SessionEnd> {
    let policy = match (&shared.options.tls, shared.options.tls_required) {
        (None, _) => TlsPolicy::Unavailable,
        (Some(_), false) => TlsPolicy::Offered,
        (Some(_), true) => TlsPolicy::Required,
    };
    let begun = Instant::now();
    let mut deadline = begun + HANDSHAKE_TIMEOUT;
    let mut out = Vec::new();
    let mut handshake = Handshake::new(policy, &mut out);
    let visitor = Visitor { from: entry.from, ..Visitor::default() };
    let mut negotiation = Negotiation { shared, entry, visitor, attached: None };
    let mut spoke = false;
    loop {
        let (taken, step) = handshake.receive(input.bytes(), &mut negotiation, &mut out);
        input.consume(taken);
        if let Step::Again = step {
            deadline = (Instant::now() + HANDSHAKE_TIMEOUT).min(begun + HANDSHAKE_LONGEST);
            // Answers of many small options go out together, but not without end.
            if out.len() < RECEIVE_BYTES {
                continue;
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(SessionEnd::HandshakeTimeout);
        }
        transport.set_timeout(Some(left.max(Duration::from_millis(1))))?;
        if !out.is_empty() {
            transport.send_all(&mut [IoSlice::new(&out)]).map_err(timed_out)?;
            out.clear();
        }
        match step {
            Step::Again => {}
            Step::More => {
                let into = input.room(1);
                match transport.receive(&mut [IoSliceMut::new(into)], true).map_err(timed_out)? {
                    None | Some(0) => return Ok(None),
                    Some(count) => input.received(count),
                }
                // Known from the first bytes under TLS on.
                if negotiation.visitor.tls && negotiation.visitor.certificates.is_empty() {
                    negotiation.visitor.certificates = transport.peer_certificates();
                }
                if !std::mem::replace(&mut spoke, true) {
                    shared.registry.spoke(entry);
                }
            }
            Step::StartTls => {
                let Some(config) = &shared.options.tls else { return Ok(None) };
                transport = transport.start_tls(Arc::clone(config))?;
                handshake.tls_started();
                negotiation.visitor.tls = true;
            }
            Step::Goodbye => {
                transport.finish();
                return Ok(None);
            }
            Step::Close(violation) => return Err(violation.into()),
            Step::Transmit(negotiated) => {
                let Some((name, export)) = negotiation.attached.take() else { return Ok(None) };
                transport.set_timeout(None)?;
                return Ok(Some(Established { transport, negotiated, name, export }));
            }
        }
    }
}

fn timed_out(error: io::Error) -> SessionEnd {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => SessionEnd::HandshakeTimeout,
        _ => SessionEnd::Connection(error),
    }
}

/// Answers the handshake's questions about exports.
struct Negotiation<'a> {
    shared: &'a Shared,
    entry: &'a Arc<Entry>,
    visitor: Visitor,
    attached: Option<(String, Export)>,
}

impl Negotiation<'_> {
    /// The default export is opened, reported, listed and closed by its own name.
    fn name(&self, asked: &str) -> Result<String, (Refusal, String)> {
        match asked {
            "" => self.shared.exports.default_export().map_err(refused),
            name => Ok(name.to_owned()),
        }
    }

    fn admit(&self, name: &str) -> Result<(), (Refusal, String)> {
        self.shared.exports.admit(name, &self.visitor).map_err(|error| {
            tracing::info!(peer = self.entry.peer, %error, "refused a client");
            self.shared.exports.refused(name, &self.visitor, &error);
            refused(error)
        })
    }

    fn open(&self, name: &str) -> Result<Export, (Refusal, String)> {
        self.admit(name)?;
        self.shared.exports.open(name).map_err(refused)
    }
}

/// The refusal for the client.
fn refused(error: OpenExportError) -> (Refusal, String) {
    let refusal = match &error {
        OpenExportError::Unknown { .. } | OpenExportError::NoDefault { .. } => Refusal::Unknown,
        OpenExportError::GoingAway { .. } => Refusal::Shutdown,
        OpenExportError::Forbidden { .. } => Refusal::Policy,
        OpenExportError::NeedsTls { .. } => Refusal::NeedsTls,
        OpenExportError::Failed { name, source } => {
            tracing::warn!(export = name, %source, "an export can't be opened; the client was refused");
            Refusal::Failed
        }
    };
    (refusal, error.to_string())
}

fn unfinished(export: &str) -> (Refusal, String) {
    tracing::warn!(export, "refused a session: the device has not finished a write of an earlier one");
    (
        Refusal::Shutdown,
        "the device has not finished a write of an earlier connection; connect again later".to_owned(),
    )
}

impl Catalog for Negotiation<'_> {
    fn list(&mut self) -> Vec<(String, String)> {
        let exports = self.shared.exports.list().into_iter();
        let admitted =
            exports.filter(|export| self.shared.exports.admit(&export.name, &self.visitor).is_ok());
        admitted.map(|export| (export.name, export.description)).collect()
    }

    fn describe(&mut self, name: &str) -> Result<ExportDescription, (Refusal, String)> {
        let name = self.name(name)?;
        let export = self.open(&name)?;
        Ok(describe(name, &export))
    }

    fn attach(&mut self, name: &str) -> Result<ExportDescription, (Refusal, String)> {
        let name = self.name(name)?;
        // Earlier: a client that is refused must not end sessions that others have left.
        self.admit(&name)?;
        let sessions_max = self.shared.options.max_sessions;
        self.shared.registry.establish(self.entry, &name, self.visitor.tls, sessions_max).map_err(|why| {
            match why {
                NotLetIn::TooMany => {
                    tracing::warn!(
                        peer = self.entry.peer,
                        sessions_max,
                        "refused a session: there are too many"
                    );
                    (Refusal::Policy, format!("the server has {sessions_max} sessions, as many as it may"))
                }
                NotLetIn::Stopping => (Refusal::Shutdown, "the server is stopping".to_owned()),
                NotLetIn::Unfinished => unfinished(&name),
            }
        })?;
        let earlier = self.shared.registry.after_earlier(self.entry, &name);
        if earlier.is_err() {
            self.shared.registry.withdraw(self.entry);
            return Err(unfinished(&name));
        }
        // Opened only now: a caller that removes an export and then ends its sessions finds this
        // one, or this one finds no export.
        let export = self.open(&name).inspect_err(|_| self.shared.registry.withdraw(self.entry))?;
        let description = describe(name.clone(), &export);
        self.attached = Some((name, export));
        Ok(description)
    }
}

fn describe(name: String, export: &Export) -> ExportDescription {
    let geometry = export.device.geometry();
    ExportDescription {
        name,
        description: export.description.clone(),
        size: geometry.length,
        read_only: export.read_only || geometry.read_only,
        multi_conn: export.multi_conn,
        block_minimum: geometry.alignment.max(1),
        block_preferred: geometry.alignment.max(4096),
        snapshots: if export.changed.is_some() { export.dirty_contexts.clone() } else { Vec::new() },
    }
}

/// The command, durable when it is answered.
fn with_fua(command: Command) -> Command {
    match command {
        Command::Write { offset, length, .. } => Command::Write { offset, length, fua: true },
        Command::Trim { offset, length, .. } => Command::Trim { offset, length, fua: true },
        Command::WriteZeroes { offset, length, may_trim, .. } => {
            Command::WriteZeroes { offset, length, may_trim, fua: true }
        }
        other => other,
    }
}

/// A request whose payload is being received.
enum Incoming {
    Write {
        to: ReplyTo,
        /// When its first bytes came.
        since: Instant,
        offset: u64,
        fua: bool,
        payload: Payload,
        /// Bytes of the same write after this payload: it does not fit into the window.
        rest: u64,
    },
    /// Refused, but its payload has to be consumed.
    Refused { to: ReplyTo, error: NbdError, left: u64 },
}

/// The first piece of a write of `left` bytes.
fn write_piece(to: ReplyTo, since: Instant, offset: u64, left: u64, fua: bool, window: u64) -> Incoming {
    let length = piece_bytes(offset, left, window);
    let payload = Payload::new(offset, length);
    Incoming::Write { to, since, offset, fua, payload, rest: left - u64::from(length) }
}

/// The reason why taking requests for a round ends.
enum Gathered {
    /// Run them and come again.
    Round,
    /// Run them and end.
    Last,
    /// Run them and end with this.
    Broken(Violation),
}

struct Session {
    around: Arc<Surroundings>,
    /// They end before this session does.
    lanes: ReadLanes,
    input: Input,
    incoming: Option<Incoming>,
    /// The last write was long, so the next probably is.
    long_writes: bool,
    windows: Arc<Windows>,
    /// Held while there is work.
    window: Option<Window>,
    patience: Patience,
    /// When bytes came last.
    received: Instant,
}

impl Session {
    fn serve(&mut self, transport: &mut Transport) -> Result<(), SessionEnd> {
        let mut round = Round::new(self.received);
        loop {
            let gathered = self.gather(&mut round, transport)?;
            let begin = Instant::now();
            round.run(&self.around, &mut self.lanes, transport)?;
            // Requests that a client has sent and not waited for are not done long after it has
            // disconnected.
            if begin.elapsed() > SLOW_ROUND && self.around.entry.gate.is_closed() {
                return Ok(());
            }
            if let Some(error) = round.take_failed_piece() {
                self.refuse_rest(error);
            }
            match gathered {
                Gathered::Round => {}
                Gathered::Last => return Ok(()),
                Gathered::Broken(violation) => return Err(violation.into()),
            }
        }
    }

    /// A piece of a write failed: the rest of its payload has to be consumed, and then it is
    /// answered.
    fn refuse_rest(&mut self, error: NbdError) {
        if let Some(Incoming::Write { to, payload, rest, .. }) = self.incoming.take() {
            self.incoming = Some(Incoming::Refused { to, error, left: payload.missing() as u64 + rest });
        }
    }

    /// Takes requests until the round is full or no more have arrived; waits for the first only.
    fn gather(&mut self, round: &mut Round, transport: &mut Transport) -> Result<Gathered, SessionEnd> {
        let geometry = self.around.export.device.geometry();
        let state = ExportState {
            size: geometry.length,
            read_only: self.around.export.read_only || geometry.read_only,
            fast_zeroes: geometry.fast_zeroes,
        };
        loop {
            round.window = self.window.get_or_insert_with(|| self.windows.take()).bytes();
            if let Some(end) = self.take_requests(round, state) {
                return Ok(end);
            }
            // A long write that has begun is worth another look; otherwise the received requests
            // are answered at once.
            let write_began = matches!(self.incoming, Some(Incoming::Write { .. }));
            if !round.is_empty() && !write_began {
                return Ok(Gathered::Round);
            }
            if round.is_empty() && self.incoming.is_none() {
                self.window = None;
            }
            match self.receive(transport, round.is_empty())? {
                None => return Ok(Gathered::Round),
                Some(0) => return Ok(Gathered::Last),
                Some(_) => {}
            }
        }
    }

    /// Takes complete requests from the input. `None` when more bytes are needed.
    fn take_requests(&mut self, round: &mut Round, state: ExportState) -> Option<Gathered> {
        loop {
            if round.is_full() {
                return Some(Gathered::Round);
            }
            match self.incoming.take() {
                None => {}
                Some(Incoming::Write { to, since, offset, fua, mut payload, rest }) => {
                    let taken = payload.fill(self.input.bytes());
                    self.input.consume(taken);
                    if payload.missing() > 0 {
                        self.incoming = Some(Incoming::Write { to, since, offset, fua, payload, rest });
                        return None;
                    }
                    let data = payload.finish();
                    let next = offset + data.len() as u64;
                    round.since = since;
                    round.write(to, offset, data, fua, rest > 0);
                    if rest > 0 {
                        self.incoming = Some(write_piece(to, since, next, rest, fua, round.window));
                        // The outcome of this piece is known before the next one is taken.
                        return Some(Gathered::Round);
                    }
                    continue;
                }
                Some(Incoming::Refused { to, error, left }) => {
                    let here = self.input.bytes().len();
                    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(here);
                    self.input.consume(taken);
                    let left = left - taken as u64;
                    if left > 0 {
                        self.incoming = Some(Incoming::Refused { to, error, left });
                        return None;
                    }
                    round.refuse(&self.around, to, error);
                    continue;
                }
            }
            match decode_request(self.input.bytes(), &self.around.negotiated, state) {
                Decoded::Incomplete => return None,
                Decoded::Close(violation) => return Some(Gathered::Broken(violation)),
                Decoded::Request(taken, request) => {
                    self.input.consume(taken);
                    if request.command == Ok(Command::Disconnect) {
                        return Some(Gathered::Last);
                    }
                    self.take_request(round, request);
                }
            }
        }
    }

    fn take_request(&mut self, round: &mut Round, request: Request) {
        let to = ReplyTo { cookie: request.cookie, offset: request.offset };
        round.since = self.received;
        match request.command {
            Ok(Command::Write { offset, length, fua }) if length > 0 => {
                let fua = fua || self.around.export.writes_through;
                self.long_writes = length >= LONG_WRITE_BYTES;
                self.incoming =
                    Some(write_piece(to, self.received, offset, u64::from(length), fua, round.window));
            }
            Ok(command) => {
                let through = self.around.export.writes_through;
                round.command(&self.around, to, if through { with_fua(command) } else { command });
            }
            Err(error) if request.payload_bytes > 0 => {
                self.incoming = Some(Incoming::Refused { to, error, left: request.payload_bytes });
            }
            Err(error) => round.refuse(&self.around, to, error),
        }
    }

    /// Receives more; payload bytes go directly to their blocks.
    fn receive(&mut self, transport: &mut Transport, wait: bool) -> Result<Option<usize>, SessionEnd> {
        let header_bytes = request_header_bytes(self.around.negotiated.mode);
        if let Some(Incoming::Write { payload, .. }) = &mut self.incoming
            && payload.missing() >= LONG_WRITE_BYTES as usize / 8
        {
            // The input is empty here, as the payload took all of it.
            let missing = payload.missing();
            let behind = self.input.room(RECEIVE_BYTES);
            let mut vectors = Vec::with_capacity(65);
            let room = payload.vectors(missing, &mut vectors);
            if room == missing {
                let behind_max = if self.long_writes { RECEIVE_BYTES_BETWEEN } else { RECEIVE_BYTES };
                vectors.push(IoSliceMut::new(&mut behind[..behind_max]));
            }
            let received = transport.receive(&mut vectors, wait)?;
            drop(vectors);
            if let Some(count) = received {
                let mine = count.min(room);
                payload.advance(mine);
                self.input.received(count - mine);
                self.received = Instant::now();
            }
            return Ok(received);
        }
        let into = self.input.room(header_bytes);
        let received = if wait {
            self.patience.receive(|wait| transport.receive(&mut [IoSliceMut::new(into)], wait))?
        } else {
            transport.receive(&mut [IoSliceMut::new(into)], false)?
        };
        if let Some(count) = received {
            self.input.received(count);
            self.received = Instant::now();
        }
        Ok(received)
    }
}
