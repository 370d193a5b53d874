//! The login of a connection, seen from the target (RFC 7143, chapters 6 and 12; PDUs in 11.12 and
//! 11.13).
//!
//! [`Login`] takes login requests with their text and returns responses, until a session begins or
//! the login fails. A [`Gatekeeper`] decides on admission, and provides time and randomness. The
//! stages only go forward: security, operational, full feature.

use crate::chap::{Account, Algorithm, CHALLENGE_BYTES, Challenge};
use crate::limits::{
    COMMAND_WINDOW, LOGIN_REQUESTS_MAX, LOGIN_SEGMENT_BYTES_MAX, LOGIN_TEXT_BYTES_MAX, NAME_BYTES_MAX,
};
use crate::negotiate::{Operational, Outcome};
use crate::pdu::{self, FLAG_CONTINUE, FLAG_FINAL, Header, opcode};
use crate::text;

/// Why a login was refused, with the class and detail of RFC 7143, section 11.13.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// 0x0200
    #[error("the initiator broke the protocol of the login")]
    Initiator,
    /// 0x0201
    #[error("the initiator did not prove its identity")]
    Authentication,
    /// 0x0202
    #[error("the initiator may not use this target")]
    Forbidden,
    /// 0x0203
    #[error("there is no such target")]
    NotFound,
    /// 0x0205
    #[error("the initiator speaks another version of iSCSI")]
    Version,
    /// 0x0206
    #[error("a session has one connection")]
    TooManyConnections,
    /// 0x0207
    #[error("the login lacks a name")]
    MissingParameter,
    /// 0x0209
    #[error("sessions are Normal or Discovery")]
    SessionType,
    /// 0x020a
    #[error("there is no such session")]
    NoSession,
    /// 0x0300
    #[error("the target failed")]
    Target,
    /// 0x0301
    #[error("the target is not in service")]
    Unavailable,
    /// 0x0302
    #[error("there are as many sessions as there may be")]
    OutOfResources,
}

impl LoginError {
    /// Class and detail.
    pub fn status(self) -> u16 {
        match self {
            Self::Initiator => 0x0200,
            Self::Authentication => 0x0201,
            Self::Forbidden => 0x0202,
            Self::NotFound => 0x0203,
            Self::Version => 0x0205,
            Self::TooManyConnections => 0x0206,
            Self::MissingParameter => 0x0207,
            Self::SessionType => 0x0209,
            Self::NoSession => 0x020a,
            Self::Target => 0x0300,
            Self::Unavailable => 0x0301,
            Self::OutOfResources => 0x0302,
        }
    }
}

/// The initiator that logs in, and its target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// The initiator's iSCSI name.
    pub initiator: String,
    /// With the name, names the initiator's port.
    pub isid: [u8; 6],
    /// The target's iSCSI name; none in a discovery session.
    pub target: Option<String>,
}

impl Identity {
    /// The initiator port's name as SCSI knows it (RFC 7143, section 4.4.3).
    pub fn port(&self) -> String {
        let digits: String = self.isid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{},i,0x{digits}", self.initiator)
    }
}

/// Answers questions that a login can't.
pub trait Gatekeeper {
    /// May this initiator try this target (none for discovery), and how must it prove itself?
    /// `None`: it need not.
    fn admit(&mut self, identity: &Identity) -> Result<Option<Account>, LoginError>;

    /// Random bytes for a challenge.
    fn challenge(&mut self) -> [u8; CHALLENGE_BYTES + 1];

    /// A proof of the initiator has arrived. Returns when it may be checked, so that secrets can't
    /// be tried fast; an error ends the login.
    fn before_proof(&mut self, identity: &Identity) -> Result<(), LoginError>;

    /// The proof was right.
    fn proved(&mut self, identity: &Identity);

    /// Whether there is a session of this number, of an initiator port with this ISID.
    fn has_session(&mut self, isid: &[u8; 6], tsih: u16) -> bool;

    /// The login is complete: a session begins, in the place of an older one of the same port if
    /// there is one. Returns its TSIH, which is not 0.
    fn establish(&mut self, identity: &Identity) -> Result<u16, LoginError>;
}

/// A login that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedIn {
    /// The initiator and its target.
    pub identity: Identity,
    /// Names the session.
    pub tsih: u16,
    /// The connection's number, given by the initiator.
    pub connection: u16,
    /// The negotiated parameters.
    pub operational: Operational,
    /// `ExpCmdSN` to begin with.
    pub command_number: u32,
    /// `StatSN` of the next response.
    pub status_number: u32,
}

/// The result of a login request. The response is in the output in every case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Another request is awaited.
    More,
    /// A session begins.
    Done(Box<LoggedIn>),
    /// The response has the reason; the connection must be closed.
    Failed(LoginError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Stage {
    Security = 0,
    Operational = 1,
    FullFeature = 3,
}

impl Stage {
    fn of(bits: u8) -> Option<Self> {
        match bits & 3 {
            0 => Some(Self::Security),
            1 => Some(Self::Operational),
            3 => Some(Self::FullFeature),
            _ => None,
        }
    }
}

#[derive(Debug)]
enum Proof {
    /// No CHAP exchange has begun.
    Open,
    /// `AuthMethod=CHAP` was chosen.
    Chap,
    /// The challenge is out.
    Challenged(Box<Challenge>),
    /// It is proved, or need not be.
    Done,
}

/// The login of one connection.
#[derive(Debug)]
pub struct Login {
    stage: Option<Stage>,
    requests: u32,
    task_tag: u32,
    connection: u16,
    command_number: u32,
    status_number: u32,
    text: Vec<u8>,
    identity: Identity,
    session_type: Option<String>,
    account: Option<Account>,
    proof: Proof,
    operational: Operational,
    declared: bool,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            stage: None,
            requests: 0,
            task_tag: 0,
            connection: 0,
            command_number: 0,
            status_number: 0,
            text: Vec::new(),
            identity: Identity::default(),
            session_type: None,
            account: None,
            proof: Proof::Open,
            operational: Operational::default(),
            declared: false,
        }
    }
}

impl Login {
    /// Takes a login request and its text, and appends the response to `out`. Another PDU than a
    /// login request ends the login too.
    pub fn receive(
        &mut self,
        header: &Header,
        data: &[u8],
        gatekeeper: &mut dyn Gatekeeper,
        out: &mut Vec<u8>,
    ) -> Step {
        let outcome = self.take(header, data, gatekeeper);
        let (text, transit, done) = match outcome {
            Ok(Taken::More) => (Vec::new(), false, None),
            Ok(Taken::Answer { text, transit, done }) => (text, transit, done),
            Err(error) => {
                self.refuse(header, error, out);
                return Step::Failed(error);
            }
        };
        let next = if transit { header.flags & 3 } else { 0 };
        let stages = (header.flags & 0x0c) | next;
        let tsih = done.as_ref().map_or(0, |done: &LoggedIn| done.tsih);
        let response = self.response(header, tsih, 0);
        let flags = stages | if transit { FLAG_FINAL } else { 0 };
        pdu::put(out, Header { flags, ..response }, &text, false, false);
        self.status_number = self.status_number.wrapping_add(1);
        match done {
            Some(mut done) => {
                done.status_number = self.status_number;
                Step::Done(Box::new(done))
            }
            None => Step::More,
        }
    }

    fn response(&self, header: &Header, tsih: u16, status: u16) -> Header {
        let mut lun = header.lun;
        lun[6..].copy_from_slice(&tsih.to_be_bytes());
        Header { flags: 0, lun, ..Header::new(opcode::LOGIN_RESPONSE, header.tag()) }
            .with_word(1, self.status_number)
            .with_word(2, self.command_number)
            .with_word(3, self.command_number.wrapping_add(COMMAND_WINDOW - 1))
            .with_word(4, u32::from(status) << 16)
    }

    fn refuse(&self, header: &Header, error: LoginError, out: &mut Vec<u8>) {
        pdu::put(out, self.response(header, 0, error.status()), &[], false, false);
    }

    fn take(
        &mut self,
        header: &Header,
        data: &[u8],
        gatekeeper: &mut dyn Gatekeeper,
    ) -> Result<Taken, LoginError> {
        let (stage, next) = self.check(header, data, gatekeeper)?;
        let transit = header.is_final();
        self.text.extend_from_slice(data);
        if header.flags & FLAG_CONTINUE != 0 {
            return if transit { Err(LoginError::Initiator) } else { Ok(Taken::More) };
        }
        let received = std::mem::take(&mut self.text);
        let pairs = text::parse(&received).map_err(|_| LoginError::Initiator)?;
        for (index, (key, _)) in pairs.iter().enumerate() {
            if pairs[..index].iter().any(|(earlier, _)| earlier == key) {
                return Err(LoginError::Initiator);
            }
        }
        let mut answer = Vec::new();
        if self.stage.is_none() {
            self.introduce(&pairs, stage, gatekeeper, &mut answer)?;
        }
        self.stage = Some(stage);
        match stage {
            Stage::Security => self.prove(&pairs, gatekeeper, &mut answer)?,
            Stage::Operational => self.agree(&pairs, &mut answer),
            Stage::FullFeature => return Err(LoginError::Initiator),
        }
        // A target that still waits for a proof does not advance, whatever the initiator wishes.
        let transit = transit && matches!(self.proof, Proof::Done);
        if !transit {
            return Ok(Taken::Answer { text: answer, transit, done: None });
        }
        self.stage = Some(next);
        let done = if next == Stage::FullFeature { Some(self.finish(gatekeeper)?) } else { None };
        Ok(Taken::Answer { text: answer, transit, done })
    }

    /// Checks a request without its text. Returns its stage and the next one.
    fn check(
        &mut self,
        header: &Header,
        data: &[u8],
        gatekeeper: &mut dyn Gatekeeper,
    ) -> Result<(Stage, Stage), LoginError> {
        self.requests += 1;
        let first = self.requests == 1;
        if header.opcode() != opcode::LOGIN || self.requests > LOGIN_REQUESTS_MAX {
            return Err(LoginError::Initiator);
        }
        let connection = (header.word(0) >> 16) as u16;
        if first {
            self.task_tag = header.tag();
            self.connection = connection;
            self.command_number = header.command_number();
            self.status_number = header.word(2);
            self.identity.isid.copy_from_slice(&header.lun[..6]);
        }
        if header.detail[1] > 0 {
            return Err(LoginError::Version);
        }
        let tsih = u16::from_be_bytes([header.lun[6], header.lun[7]]);
        if tsih != 0 {
            // It names a session to which it wants to add a connection.
            let exists = gatekeeper.has_session(&self.identity.isid, tsih);
            return Err(if exists { LoginError::TooManyConnections } else { LoginError::NoSession });
        }
        let too_long = self.text.len() + data.len() > LOGIN_TEXT_BYTES_MAX
            || data.len() > LOGIN_SEGMENT_BYTES_MAX as usize;
        let another = header.lun[..6] != self.identity.isid
            || connection != self.connection
            || header.tag() != self.task_tag;
        let stage = Stage::of(header.flags >> 2).ok_or(LoginError::Initiator)?;
        let next = Stage::of(header.flags).ok_or(LoginError::Initiator)?;
        let backwards = self.stage.is_some_and(|current| stage != current) || stage == Stage::FullFeature;
        if too_long || another || backwards || (header.is_final() && next <= stage) {
            return Err(LoginError::Initiator);
        }
        Ok((stage, next))
    }

    /// The first request identifies the initiator.
    fn introduce(
        &mut self,
        pairs: &[(&str, &str)],
        stage: Stage,
        gatekeeper: &mut dyn Gatekeeper,
        answer: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        let find = |wanted: &str| pairs.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
        let initiator = find("InitiatorName").filter(|name| !name.is_empty());
        self.identity.initiator = initiator.ok_or(LoginError::MissingParameter)?.to_owned();
        // People read it in tables and logs.
        if self.identity.initiator.len() > NAME_BYTES_MAX
            || self.identity.initiator.chars().any(char::is_control)
        {
            return Err(LoginError::Initiator);
        }
        self.session_type = find("SessionType").map(str::to_owned);
        match self.session_type.as_deref().unwrap_or("Normal") {
            "Normal" => {
                let target = find("TargetName").filter(|name| !name.is_empty());
                self.identity.target = Some(target.ok_or(LoginError::MissingParameter)?.to_owned());
            }
            "Discovery" => self.identity.target = None,
            _ => return Err(LoginError::SessionType),
        }
        self.account = gatekeeper.admit(&self.identity)?;
        if stage != Stage::Security {
            if self.account.is_some() {
                return Err(LoginError::Authentication);
            }
            self.proof = Proof::Done;
        }
        if self.identity.target.is_some() {
            text::put(answer, "TargetPortalGroupTag", "1");
        }
        Ok(())
    }

    /// Keys of the security stage.
    fn prove(
        &mut self,
        pairs: &[(&str, &str)],
        gatekeeper: &mut dyn Gatekeeper,
        answer: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        let find = |wanted: &str| pairs.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
        if let Some(methods) = find("AuthMethod") {
            let wanted = if self.account.is_some() { "CHAP" } else { "None" };
            if !matches!(self.proof, Proof::Open) {
                return Err(LoginError::Initiator);
            }
            if !methods.split(',').any(|method| method == wanted) {
                return Err(LoginError::Authentication);
            }
            text::put(answer, "AuthMethod", wanted);
            self.proof = if self.account.is_some() { Proof::Chap } else { Proof::Done };
        }
        if let Some(algorithms) = find("CHAP_A") {
            if !matches!(self.proof, Proof::Chap) {
                return Err(LoginError::Initiator);
            }
            let algorithm = Algorithm::choose(algorithms).ok_or(LoginError::Authentication)?;
            let random = gatekeeper.challenge();
            let mut bytes = [0; CHALLENGE_BYTES];
            bytes.copy_from_slice(&random[1..]);
            let challenge = Challenge::new(algorithm, random[0], bytes);
            text::put(answer, "CHAP_A", algorithm.number());
            text::put(answer, "CHAP_I", &challenge.identifier());
            text::put(answer, "CHAP_C", &challenge.challenge());
            self.proof = Proof::Challenged(Box::new(challenge));
        }
        if let Some(response) = find("CHAP_R") {
            let name = find("CHAP_N").ok_or(LoginError::Authentication)?;
            self.judge(name, response, find("CHAP_I").zip(find("CHAP_C")), gatekeeper, answer)?;
        }
        if self.account.is_none() && matches!(self.proof, Proof::Open) {
            // It contains no methods, and need not.
            self.proof = Proof::Done;
        }
        Ok(())
    }

    /// Checks the initiator's proof, and sends ours on request.
    fn judge(
        &mut self,
        name: &str,
        response: &str,
        asked: Option<(&str, &str)>,
        gatekeeper: &mut dyn Gatekeeper,
        answer: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        let (Some(account), Proof::Challenged(challenge)) = (&self.account, &self.proof) else {
            return Err(LoginError::Authentication);
        };
        gatekeeper.before_proof(&self.identity)?;
        if !challenge.is_proof(&account.initiator, name, response) {
            return Err(LoginError::Authentication);
        }
        gatekeeper.proved(&self.identity);
        if let Some((identifier, theirs)) = asked {
            let credential = account.target.as_ref().ok_or(LoginError::Authentication)?;
            let proof = challenge.answer(credential, identifier, theirs).ok_or(LoginError::Authentication)?;
            text::put(answer, "CHAP_N", &credential.name);
            text::put(answer, "CHAP_R", &proof);
        }
        self.proof = Proof::Done;
        Ok(())
    }

    /// Keys of the operational stage.
    fn agree(&mut self, pairs: &[(&str, &str)], answer: &mut Vec<u8>) {
        // The answer for the first burst depends on the longest one, at any position.
        let (first_burst, others): (Vec<_>, Vec<_>) =
            pairs.iter().copied().partition(|(key, _)| *key == "FirstBurstLength");
        for (key, value) in others.into_iter().chain(first_burst) {
            if matches!(key, "InitiatorName" | "SessionType" | "TargetName" | "InitiatorAlias") {
                continue;
            }
            let discovery = self.identity.target.is_none();
            if let Outcome::Answer(value) = self.operational.offer(key, value, discovery) {
                text::put(answer, key, &value);
            }
        }
        if !self.declared {
            self.declared = true;
            Operational::declare(answer);
        }
    }

    fn finish(&mut self, gatekeeper: &mut dyn Gatekeeper) -> Result<LoggedIn, LoginError> {
        self.operational.settle();
        let tsih = gatekeeper.establish(&self.identity)?;
        Ok(LoggedIn {
            identity: self.identity.clone(),
            tsih,
            connection: self.connection,
            operational: self.operational,
            command_number: self.command_number,
            status_number: self.status_number,
        })
    }
}

enum Taken {
    More,
    Answer { text: Vec<u8>, transit: bool, done: Option<LoggedIn> },
}
