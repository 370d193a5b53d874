//! Brings an initiator from its first byte to a session.

use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cairn_frontend_session::{Input, Socket};
use cairn_proto_iscsi::chap::{Account, CHALLENGE_BYTES};
use cairn_proto_iscsi::limits::LOGIN_SEGMENT_BYTES_MAX;
use cairn_proto_iscsi::pdu::{HEADER_BYTES, Header, padding};
use cairn_proto_iscsi::{Gatekeeper, Identity, LoggedIn, Login, LoginError, Step, Violation};

use crate::limits::PACE_LOOK;
use crate::listener::canonical;
use crate::registry::Entry;
use crate::server::Shared;
use crate::session::SessionEnd;
use crate::targets::{Export, Initiator, OpenTargetError};

/// A session that may begin.
pub(crate) struct Established {
    pub(crate) login: LoggedIn,
    pub(crate) initiator: Initiator,
    /// None in a discovery session.
    pub(crate) export: Option<Export>,
}

/// Serves a login. `None` when the initiator left or was refused.
pub(crate) fn run(
    shared: &Shared,
    entry: &Arc<Entry>,
    socket: &Socket,
    input: &mut Input,
) -> Result<Option<Established>, SessionEnd> {
    let deadline = Instant::now() + shared.options.login_timeout;
    let mut login = Login::default();
    let mut gate = Gate { shared, entry, socket, deadline, account: None, tried: None, export: None };
    let mut out = Vec::new();
    let mut spoke = false;
    loop {
        let Some(header) = Header::parse(input.bytes()) else {
            if !receive(shared, socket, input, deadline)? {
                return Ok(None);
            }
            if !std::mem::replace(&mut spoke, true) {
                shared.registry.spoke(entry);
            }
            continue;
        };
        let bytes = header.data_bytes();
        if bytes > LOGIN_SEGMENT_BYTES_MAX {
            return Err(Violation::SegmentTooLong { bytes }.into());
        }
        let begin = HEADER_BYTES + header.additional_bytes();
        let end = begin + bytes as usize;
        let whole = end + padding(bytes as usize);
        if input.bytes().len() < whole {
            if !receive(shared, socket, input, deadline)? {
                return Ok(None);
            }
            continue;
        }
        let step = login.receive(&header, &input.bytes()[begin..end], &mut gate, &mut out);
        input.consume(whole);
        socket.send_all(&mut [IoSlice::new(&out)])?;
        out.clear();
        match step {
            Step::More => {}
            Step::Failed(error) => {
                gate.report(error);
                return Err(SessionEnd::Refused(error));
            }
            Step::Done(login) => {
                let initiator = gate.initiator(&login.identity);
                return Ok(Some(Established { login: *login, initiator, export: gate.export }));
            }
        }
    }
}

fn receive(
    shared: &Shared,
    socket: &Socket,
    input: &mut Input,
    deadline: Instant,
) -> Result<bool, SessionEnd> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(SessionEnd::LoginTimeout(shared.options.login_timeout));
    }
    socket.set_receive_timeout(Some(left.max(Duration::from_millis(1))))?;
    let into = input.room(1);
    match socket.receive(&mut [IoSliceMut::new(into)], true)? {
        None => Err(SessionEnd::LoginTimeout(shared.options.login_timeout)),
        Some(0) => Ok(false),
        Some(count) => {
            input.received(count);
            Ok(true)
        }
    }
}

/// Answers the login's questions.
struct Gate<'a> {
    shared: &'a Shared,
    entry: &'a Arc<Entry>,
    socket: &'a Socket,
    deadline: Instant,
    /// The account that the initiator must prove.
    account: Option<Account>,
    /// The initiator that must prove it, and the target.
    tried: Option<(Initiator, String)>,
    export: Option<Export>,
}

impl Gate<'_> {
    fn address(&self) -> IpAddr {
        canonical(self.entry.peer.ip())
    }

    fn initiator(&self, identity: &Identity) -> Initiator {
        Initiator { name: identity.initiator.clone(), address: self.address() }
    }

    /// Reports a login that ended without the proof that it needs.
    fn report(&self, error: LoginError) {
        if let (LoginError::Authentication, Some(_), Some((initiator, target))) =
            (error, &self.account, &self.tried)
        {
            self.shared.targets.unproved(initiator, target);
        }
    }

    fn open(&self, target: &str) -> Result<Export, LoginError> {
        self.shared.targets.open(target).map_err(|error| match error {
            OpenTargetError::Unknown { .. } => LoginError::NotFound,
            OpenTargetError::Failed { .. } => {
                tracing::warn!(%error, "a target can't be opened; the initiator was refused");
                LoginError::Target
            }
        })
    }
}

impl Gatekeeper for Gate<'_> {
    fn admit(&mut self, identity: &Identity) -> Result<Option<Account>, LoginError> {
        if let Some(target) = &identity.target {
            let initiator = self.initiator(identity);
            self.account = self.shared.targets.admit(&initiator, target)?;
            self.tried = Some((initiator, target.clone()));
        }
        Ok(self.account.clone())
    }

    fn challenge(&mut self) -> [u8; CHALLENGE_BYTES + 1] {
        let mut bytes = [0; CHALLENGE_BYTES + 1];
        self.shared.targets.random(&mut bytes);
        bytes
    }

    fn before_proof(&mut self, identity: &Identity) -> Result<(), LoginError> {
        let pacer = &self.shared.pacer;
        let Some(ticket) = pacer.arrive(self.address(), &identity.initiator, Instant::now()) else {
            return Ok(());
        };
        // This thread is the initiator's own: no other one waits.
        let outcome = loop {
            let now = Instant::now();
            let Err(pause) = pacer.has_turn(ticket, now) else { break Ok(()) };
            if now >= self.deadline || self.socket.is_gone() {
                break Err(LoginError::Unavailable);
            }
            std::thread::sleep(pause.clamp(Duration::from_millis(1), PACE_LOOK));
        };
        pacer.leave(ticket);
        if outcome.is_err() {
            tracing::warn!(peer = %self.entry.peer, "a login was refused without a check: too many secrets are tried at once");
        }
        outcome
    }

    fn proved(&mut self, identity: &Identity) {
        self.entry.proved.store(true, Ordering::Relaxed);
        self.shared.pacer.succeeded(self.address(), &identity.initiator, Instant::now());
    }

    fn has_session(&mut self, isid: &[u8; 6], tsih: u16) -> bool {
        self.shared.registry.has_session(isid, tsih)
    }

    fn establish(&mut self, identity: &Identity) -> Result<u16, LoginError> {
        let sessions_max = self.shared.options.max_sessions;
        let registry = &self.shared.registry;
        let Some(target) = &identity.target else {
            return registry.establish(self.entry, identity, None, sessions_max);
        };
        let name = self.open(target)?.name;
        let tsih = registry.establish(self.entry, identity, Some(name.clone()), sessions_max)?;
        // An export opened before the session was known to others may be outdated: the author of a
        // change has ended only the known sessions. It may be the LUN itself, for example, and not
        // the device that replaced it. The initiator's required account may be outdated as well.
        if self.shared.targets.admit(&self.initiator(identity), target)? != self.account {
            return Err(LoginError::Unavailable);
        }
        let opened = self.open(target)?;
        if opened.name != name {
            return Err(LoginError::Unavailable);
        }
        self.export = Some(opened);
        Ok(tsih)
    }
}
