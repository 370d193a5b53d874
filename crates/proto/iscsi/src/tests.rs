//! Tests of the protocol: login, sessions and the logical unit, driven by PDUs as an initiator
//! sends them.

use proptest::prelude::*;

use crate::chap::{Account, Algorithm, CHALLENGE_BYTES, Credential};
use crate::limits::{
    COMMAND_WINDOW, IMMEDIATE_COMMANDS_MAX, LOGIN_REQUESTS_MAX, LOGIN_SEGMENT_BYTES_MAX,
    LOGIN_TEXT_BYTES_MAX, RECEIVE_SEGMENT_BYTES_MAX, REGISTRATIONS_MAX,
};
use crate::pdu::{FLAG_CONTINUE, FLAG_FINAL, HEADER_BYTES, Header, NO_TAG, digest, opcode, put};
use crate::scsi::{
    Command, Compare, Description, Geometry, LogicalUnit, Medium, Nexus, Plan, ReservationState, Status,
    TargetPort, decode, nexus_name,
};
use crate::{
    Event, Gatekeeper, Identity, LoggedIn, Login, LoginError, Operational, Outcome, Session, Step, Violation,
    Wants, text,
};

const TARGET: &str = "iqn.2026-11.io.cairn:v.lun";

#[derive(Default)]
struct Gate {
    account: Option<Account>,
    /// Proofs are not checked.
    closed: bool,
    proved: u32,
}

impl Gatekeeper for Gate {
    fn admit(&mut self, identity: &Identity) -> Result<Option<Account>, LoginError> {
        match identity.target.as_deref() {
            None | Some(TARGET) => Ok(self.account.clone()),
            Some(_) => Err(LoginError::NotFound),
        }
    }

    fn challenge(&mut self) -> [u8; CHALLENGE_BYTES + 1] {
        [7; CHALLENGE_BYTES + 1]
    }

    fn before_proof(&mut self, _: &Identity) -> Result<(), LoginError> {
        if self.closed { Err(LoginError::Unavailable) } else { Ok(()) }
    }

    fn proved(&mut self, _: &Identity) {
        self.proved += 1;
    }

    fn has_session(&mut self, isid: &[u8; 6], tsih: u16) -> bool {
        *isid == [0, 2, 0x3d, 0, 0, 1] && tsih == 7
    }

    fn establish(&mut self, _: &Identity) -> Result<u16, LoginError> {
        Ok(1)
    }
}

fn request(stage: u8, next: u8, transit: bool) -> Header {
    let mut header = Header::new(opcode::LOGIN, 9).immediate().with_word(1, 100).with_word(2, 500);
    header.flags = stage << 2 | next | if transit { FLAG_FINAL } else { 0 };
    header.lun = [0, 2, 0x3d, 0, 0, 1, 0, 0];
    header
}

fn pairs(all: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    all.iter().for_each(|(key, value)| text::put(&mut bytes, key, value));
    bytes
}

/// Sends one login request; returns the outcome, the response's header and its pairs.
fn send(
    login: &mut Login,
    gate: &mut Gate,
    header: Header,
    all: &[(&str, &str)],
) -> (Step, Header, Vec<(String, String)>) {
    let mut out = Vec::new();
    let step = login.receive(&header, &pairs(all), gate, &mut out);
    let response = Header::parse(&out).unwrap();
    let data = &out[HEADER_BYTES..HEADER_BYTES + response.data_bytes() as usize];
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    (step, response, text::parse(data).unwrap().into_iter().map(owned).collect())
}

const NAMES: [(&str, &str); 3] =
    [("InitiatorName", "iqn.2000-01.example:me"), ("SessionType", "Normal"), ("TargetName", TARGET)];

fn logged_in() -> LoggedIn {
    let mut gate = Gate::default();
    let (step, ..) = send(&mut Login::default(), &mut gate, request(1, 3, true), &NAMES);
    let Step::Done(login) = step else { panic!("{step:?}") };
    *login
}

#[test]
fn login_without_authentication_takes_one_request() {
    let login = logged_in();
    assert_eq!(login.identity.target.as_deref(), Some(TARGET));
    assert_eq!(login.identity.port(), "iqn.2000-01.example:me,i,0x00023d000001");
    assert_eq!((login.command_number, login.status_number), (100, 501));
    assert_eq!(login.operational, Operational::default());
}

#[test]
fn keys_are_negotiated_as_the_specification_says() {
    let cases = [
        ("HeaderDigest", "CRC32C,None", "CRC32C"),
        ("DataDigest", "None,CRC32C", "None"),
        ("DataDigest", "MD5", "Reject"),
        ("MaxBurstLength", "16777215", "1048576"),
        ("MaxBurstLength", "4096", "4096"),
        ("MaxBurstLength", "511", "Reject"),
        ("FirstBurstLength", "0x10000", "65536"),
        ("MaxConnections", "8", "1"),
        ("InitialR2T", "Yes", "Yes"),
        ("InitialR2T", "No", "No"),
        ("InitialR2T", "Perhaps", "Reject"),
        ("ImmediateData", "Yes", "Yes"),
        ("ImmediateData", "No", "No"),
        ("DataPDUInOrder", "No", "Yes"),
        ("DataSequenceInOrder", "No", "Yes"),
        ("ErrorRecoveryLevel", "2", "0"),
        ("DefaultTime2Wait", "2", "2"),
        ("DefaultTime2Retain", "20", "0"),
        ("MaxOutstandingR2T", "16", "1"),
        ("OFMarker", "Yes", "No"),
        ("IFMarkInt", "2048~8192", "Reject"),
        ("TaskReporting", "FastAbort,RFC3720", "RFC3720"),
        ("iSCSIProtocolLevel", "2", "1"),
        ("X-com.example", "1", "NotUnderstood"),
    ];
    for (key, value, answer) in cases {
        let outcome = Operational::default().offer(key, value, false);
        assert_eq!(outcome, Outcome::Answer(answer.to_owned()), "{key}={value}");
    }
    let mut operational = Operational::default();
    assert_eq!(operational.offer("MaxRecvDataSegmentLength", "262144", false), Outcome::Declared);
    assert_eq!(operational.send_segment, 262_144);
    assert_eq!(operational.offer("MaxBurstLength", "1024", true), Outcome::Answer("Irrelevant".to_owned()));
}

fn account(mutual: bool) -> Account {
    let credential = |name: &str, secret: &str| Credential { name: name.to_owned(), secret: secret.into() };
    Account {
        initiator: credential("me", "my secret words"),
        target: mutual.then(|| credential("you", "your secret words")),
    }
}

/// Runs CHAP; returns the last step and its answer.
fn chap(
    account: Account,
    algorithm: &str,
    secret: &str,
    own: Option<(&str, &str)>,
) -> (Step, Vec<(String, String)>) {
    chap_at(&mut Gate { account: Some(account), ..Gate::default() }, algorithm, secret, own)
}

/// The same at a gate.
fn chap_at(
    gate: &mut Gate,
    algorithm: &str,
    secret: &str,
    own: Option<(&str, &str)>,
) -> (Step, Vec<(String, String)>) {
    let mut login = Login::default();
    let first: Vec<_> = NAMES.into_iter().chain([("AuthMethod", "CHAP,None")]).collect();
    let (step, _, answer) = send(&mut login, gate, request(0, 1, false), &first);
    assert_eq!(step, Step::More);
    assert!(answer.contains(&("AuthMethod".to_owned(), "CHAP".to_owned())));
    let (step, _, answer) = send(&mut login, gate, request(0, 1, false), &[("CHAP_A", algorithm)]);
    assert_eq!(step, Step::More);
    let find =
        |key: &str| answer.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone()).unwrap();
    let chosen = Algorithm::choose(&find("CHAP_A")).unwrap();
    let identifier: u8 = find("CHAP_I").parse().unwrap();
    let challenge = text::binary(&find("CHAP_C")).unwrap();
    let response = text::hexadecimal(&chosen.response(identifier, secret.as_bytes(), &challenge));
    let mut proof = vec![("CHAP_N", "me"), ("CHAP_R", response.as_str())];
    if let Some((identifier, challenge)) = own {
        proof.extend([("CHAP_I", identifier), ("CHAP_C", challenge)]);
    }
    let (step, _, answer) = send(&mut login, gate, request(0, 1, true), &proof);
    (step, answer)
}

#[test]
fn proof_is_looked_at_when_its_turn_has_come_and_not_before() {
    let mut gate = Gate { account: Some(account(false)), closed: true, ..Gate::default() };
    let refused = Step::Failed(LoginError::Unavailable);
    assert_eq!(chap_at(&mut gate, "7", "my secret words", None).0, refused, "right, and not looked at");
    assert_eq!(
        chap_at(&mut gate, "7", "other words", None).0,
        refused,
        "so nothing is learnt of a wrong one"
    );
    gate.closed = false;
    chap_at(&mut gate, "7", "other words", None);
    assert_eq!(gate.proved, 0);
    chap_at(&mut gate, "7", "my secret words", None);
    assert_eq!(gate.proved, 1);
}

#[test]
fn chap_lets_in_who_knows_the_secret_and_nobody_else() {
    for algorithm in ["5", "7", "7,5", "99,5"] {
        assert_eq!(chap(account(false), algorithm, "my secret words", None).0, Step::More, "{algorithm}");
        let refused = Step::Failed(LoginError::Authentication);
        assert_eq!(chap(account(false), algorithm, "other words", None).0, refused, "{algorithm}");
    }
}

#[test]
fn target_proves_itself_when_asked_and_never_answers_its_own_challenge() {
    let theirs = text::hexadecimal(&[3; 16]);
    let (step, answer) = chap(account(true), "7", "my secret words", Some(("9", &theirs)));
    assert_eq!(step, Step::More);
    let proof = Algorithm::Sha256.response(9, b"your secret words", &[3; 16]);
    assert!(answer.contains(&("CHAP_R".to_owned(), text::hexadecimal(&proof))));
    assert!(answer.contains(&("CHAP_N".to_owned(), "you".to_owned())));
    let reflected = text::hexadecimal(&[7; 16]);
    let refused = Step::Failed(LoginError::Authentication);
    assert_eq!(chap(account(true), "7", "my secret words", Some(("9", &reflected))).0, refused);
    assert_eq!(chap(account(false), "7", "my secret words", Some(("9", &theirs))).0, refused);
}

#[test]
fn initiator_cannot_leave_the_security_stage_unproved() {
    let mut gate = Gate { account: Some(account(false)), ..Gate::default() };
    let refused = Step::Failed(LoginError::Authentication);
    assert_eq!(
        send(&mut Login::default(), &mut gate, request(1, 3, true), &NAMES).0,
        refused,
        "it skips the stage"
    );
    let none: Vec<_> = NAMES.into_iter().chain([("AuthMethod", "None")]).collect();
    assert_eq!(send(&mut Login::default(), &mut gate, request(0, 1, true), &none).0, refused);
    let mut login = Login::default();
    let both: Vec<_> = NAMES.into_iter().chain([("AuthMethod", "CHAP")]).collect();
    let (step, response, _) = send(&mut login, &mut gate, request(0, 3, true), &both);
    assert_eq!((step, response.is_final()), (Step::More, false), "the target does not go along");
    let (step, ..) = send(&mut login, &mut gate, request(1, 3, true), &[]);
    assert_eq!(step, Step::Failed(LoginError::Initiator), "nor does it later");
    let mut login = Login::default();
    let (step, ..) = send(&mut login, &mut gate, request(0, 3, true), &NAMES);
    assert_eq!(step, Step::More);
    let proof = [("CHAP_N", "me"), ("CHAP_R", "0x00")];
    assert_eq!(send(&mut login, &mut gate, request(0, 3, true), &proof).0, refused, "there was no challenge");
}

#[test]
fn logins_that_make_no_sense_are_refused_with_the_right_status() {
    let mut gate = Gate::default();
    let mut fails = |header: Header, all: &[(&str, &str)], status: u16| {
        let (step, response, _) = send(&mut Login::default(), &mut gate, header, all);
        assert!(matches!(step, Step::Failed(_)), "{all:?}: {step:?}");
        assert_eq!(response.word(4) >> 16, u32::from(status), "{all:?}");
    };
    fails(request(1, 3, true), &NAMES[1..], 0x0207);
    fails(request(1, 3, true), &NAMES[..1], 0x0207);
    fails(request(1, 3, true), &[NAMES[0], NAMES[1], ("TargetName", "iqn.other")], 0x0203);
    fails(request(1, 3, true), &[NAMES[0], ("SessionType", "Odd")], 0x0209);
    fails(request(1, 3, true), &[NAMES[0], NAMES[0], NAMES[2]], 0x0200);
    let long = format!("iqn.{}", "x".repeat(220));
    fails(request(1, 3, true), &[("InitiatorName", &long), NAMES[2]], 0x0200);
    let longest = [("InitiatorName", &long[..223]), NAMES[2]];
    assert!(matches!(
        send(&mut Login::default(), &mut Gate::default(), request(1, 3, true), &longest).0,
        Step::Done(_)
    ));
    fails(request(3, 3, true), &NAMES, 0x0200);
    fails(request(1, 1, true), &NAMES, 0x0200);
    fails(Header { lun: [0, 2, 0x3d, 0, 0, 1, 0, 7], ..request(1, 3, true) }, &NAMES, 0x0206);
    fails(Header { lun: [0, 2, 0x3d, 0, 0, 1, 0, 5], ..request(1, 3, true) }, &NAMES, 0x020a);
    fails(Header { lun: [0, 2, 0x3d, 0, 0, 2, 0, 7], ..request(1, 3, true) }, &NAMES, 0x020a);
    fails(Header { detail: [1, 1], ..request(1, 3, true) }, &NAMES, 0x0205);
    fails(Header::new(opcode::SCSI_COMMAND, 1), &[], 0x0200);
}

#[test]
fn login_is_of_one_connection_and_its_text_may_come_in_several_requests() {
    let mut gate = Gate::default();
    let continues = Header { flags: 1 << 2 | FLAG_CONTINUE, ..request(1, 3, false) };
    let step = |login: &mut Login, gate: &mut Gate, header: Header, text: &[u8]| {
        let mut out = Vec::new();
        (login.receive(&header, text, gate, &mut out), Header::parse(&out).unwrap().flags)
    };
    // A key that is cut in its middle.
    let text = pairs(&NAMES);
    let (front, back) = text.split_at(20);
    let mut login = Login::default();
    assert_eq!(step(&mut login, &mut gate, continues, front), (Step::More, 1 << 2));
    assert!(matches!(step(&mut login, &mut gate, request(1, 3, true), back).0, Step::Done(_)));
    let refused = Step::Failed(LoginError::Initiator);
    let both = Header { flags: continues.flags | FLAG_FINAL | 3, ..continues };
    assert_eq!(step(&mut Login::default(), &mut gate, both, front).0, refused, "more comes, and it is over");
    let last = request(1, 3, true);
    let others = [
        Header { lun: [0, 2, 0x3d, 0, 0, 2, 0, 0], ..last },
        Header { task_tag: 8.into(), ..last },
        last.with_word(0, 7 << 16),
    ];
    for other in others {
        let mut login = Login::default();
        assert_eq!(step(&mut login, &mut gate, continues, front).0, Step::More);
        assert_eq!(step(&mut login, &mut gate, other, back).0, refused, "{other:?}");
    }
    // Neither text nor requests without end.
    let most = LOGIN_TEXT_BYTES_MAX / LOGIN_SEGMENT_BYTES_MAX as usize;
    for (bytes, requests) in [(LOGIN_SEGMENT_BYTES_MAX as usize, most), (1, LOGIN_REQUESTS_MAX as usize)] {
        let mut login = Login::default();
        for _ in 0..requests {
            assert_eq!(step(&mut login, &mut gate, continues, &vec![b'x'; bytes]).0, Step::More);
        }
        assert_eq!(step(&mut login, &mut gate, continues, b"x").0, refused, "{requests} of {bytes} bytes");
    }
    assert_eq!(step(&mut Login::default(), &mut gate, continues, &[b'x'; 8193]).0, refused);
}

#[test]
fn first_burst_is_within_the_longest_one_whatever_is_offered_first() {
    let mut gate = Gate::default();
    let keys = [("FirstBurstLength", "65536"), ("MaxBurstLength", "4096")];
    let all: Vec<_> = NAMES.into_iter().chain(keys).collect();
    let (step, ..) = send(&mut Login::default(), &mut gate, request(1, 3, true), &all);
    let Step::Done(login) = step else { panic!("{step:?}") };
    assert_eq!((login.operational.first_burst, login.operational.max_burst), (4096, 4096));
}

#[test]
fn first_burst_that_is_answered_is_what_holds_and_never_above_the_longest_one() {
    let (first, longest) = (("FirstBurstLength", "65536"), ("MaxBurstLength", "32768"));
    for keys in [[first, longest], [longest, first]] {
        let all: Vec<_> = NAMES.into_iter().chain(keys).collect();
        let (step, _, answers) = send(&mut Login::default(), &mut Gate::default(), request(1, 3, true), &all);
        let Step::Done(login) = step else { panic!("{step:?}") };
        let answered = |key: &str| {
            let found = answers.iter().find(|(known, _)| known == key);
            found.and_then(|(_, value)| value.parse::<u32>().ok())
        };
        assert_eq!((answered("FirstBurstLength"), answered("MaxBurstLength")), (Some(32768), Some(32768)));
        assert_eq!((login.operational.first_burst, login.operational.max_burst), (32768, 32768));
    }
    // In requests of their own the first one is answered before the other is known.
    let mut operational = Operational::default();
    assert_eq!(operational.offer(first.0, first.1, false), Outcome::Answer("65536".to_owned()));
    assert_eq!(operational.offer(longest.0, longest.1, false), Outcome::Answer("Reject".to_owned()));
    operational.settle();
    assert_eq!(operational.first_burst, 65536);
    assert!(operational.first_burst <= operational.max_burst);
}

fn command(tag: u32, number: u32, flags: u8, expected: u32, immediate: usize) -> Header {
    let header = Header::new(opcode::SCSI_COMMAND, tag).with_word(0, expected).with_word(1, number);
    Header { flags, ..header }.with_data(immediate)
}

fn data_out(tag: u32, transfer_tag: u32, number: u32, offset: u32, bytes: usize, last: bool) -> Header {
    let header = Header::new(opcode::DATA_OUT, tag).with_word(0, transfer_tag).with_word(4, number);
    let flags = if last { FLAG_FINAL } else { 0 };
    Header { flags, ..header.with_word(5, offset) }.with_data(bytes)
}

#[test]
fn commands_are_taken_in_order_and_within_the_window() {
    let mut session = Session::new(&logged_in());
    assert!(matches!(session.receive(&command(1, 100, 0xc0, 0, 0)), Ok(Event::Command(_))));
    assert_eq!(session.receive(&command(2, 100, 0xc0, 0, 0)), Ok(Event::Ignore), "it was there before");
    assert_eq!(session.receive(&command(2, 99, 0xc0, 0, 0)), Ok(Event::Ignore), "too low");
    let beyond = 100 + COMMAND_WINDOW;
    assert_eq!(session.receive(&command(2, beyond, 0xc0, 0, 0)), Ok(Event::Ignore), "too high");
    let gap = Err(Violation::CommandGap { found: 102, expected: 101 });
    assert_eq!(session.receive(&command(2, 102, 0xc0, 0, 0)), gap);
    assert_eq!(session.receive(&command(1, 101, 0xc0, 0, 0)), Err(Violation::TagInUse { tag: 1 }));
    let long = command(3, 102, 0xa0, u32::MAX, RECEIVE_SEGMENT_BYTES_MAX as usize + 1);
    assert!(matches!(session.receive(&long), Err(Violation::SegmentTooLong { .. })));
}

#[test]
fn numbers_of_commands_go_on_past_the_end_of_32_bits() {
    let login = LoggedIn { command_number: u32::MAX - 2, status_number: u32::MAX, ..logged_in() };
    let mut session = Session::new(&login);
    let mut out = Vec::new();
    for (tag, number) in [u32::MAX - 2, u32::MAX - 1, u32::MAX, 0, 1].into_iter().enumerate() {
        let tag = tag as u32;
        let beyond = number.wrapping_add(COMMAND_WINDOW);
        assert_eq!(
            session.receive(&command(90, beyond, 0xc0, 0, 0)),
            Ok(Event::Ignore),
            "too high: {beyond}"
        );
        let before = number.wrapping_sub(1);
        assert_eq!(session.receive(&command(91, before, 0xc0, 0, 0)), Ok(Event::Ignore), "too low: {before}");
        assert!(matches!(session.receive(&command(tag, number, 0xc0, 0, 0)), Ok(Event::Command(_))));
        out.clear();
        session.respond(tag, 0, &[], crate::Residual::default(), 0, &mut out);
        let answer = Header::parse(&out).unwrap();
        let due = number.wrapping_add(1);
        let words = [1, 2, 3].map(|index| answer.word(index));
        assert_eq!(words, [tag.wrapping_sub(1), due, due.wrapping_add(COMMAND_WINDOW - 1)]);
    }
}

#[test]
fn data_comes_as_it_was_asked_for_or_the_command_fails() {
    let bytes = 1 << 21;
    let begin = || {
        let mut session = Session::new(&logged_in());
        // InitialR2T is Yes by default: 512 bytes come at once, the rest is asked for.
        assert!(matches!(session.receive(&command(1, 100, 0xa0, bytes, 512)), Ok(Event::Command(_))));
        session.begin(1, bytes);
        assert_eq!(session.wants(1), Wants::Solicit(262_144));
        let mut out = Vec::new();
        session.solicit(1, 1024, &mut out);
        let r2t = Header::parse(&out).unwrap();
        assert_eq!((r2t.opcode(), r2t.word(5), r2t.word(6)), (opcode::R2T, 512, 1024));
        (session, r2t.word(0))
    };
    let (mut session, tag) = begin();
    assert!(matches!(session.receive(&data_out(1, tag, 0, 512, 600, false)), Ok(Event::Data(_))));
    assert_eq!(session.wants(1), Wants::Data);
    assert!(matches!(session.receive(&data_out(1, tag, 1, 1112, 424, true)), Ok(Event::Data(_))));
    assert!(matches!(session.wants(1), Wants::Solicit(_)));
    type Make = fn(u32) -> Header;
    let wrong: [(&str, Make); 6] = [
        ("a number that is not due", |tag| data_out(1, tag, 1, 512, 1024, true)),
        ("another place", |tag| data_out(1, tag, 0, 0, 1024, true)),
        ("too much", |tag| data_out(1, tag, 0, 512, 1025, true)),
        ("an end that comes early", |tag| data_out(1, tag, 0, 512, 512, true)),
        ("no end", |tag| data_out(1, tag, 0, 512, 1024, false)),
        ("another transfer tag", |_| data_out(1, NO_TAG, 0, 512, 1024, true)),
    ];
    for (what, header) in wrong {
        let (mut session, tag) = begin();
        assert_eq!(session.receive(&header(tag)), Ok(Event::BadData { tag: 1 }), "{what}");
        assert_eq!(session.receive(&data_out(1, tag, 0, 512, 1024, true)), Ok(Event::Ignore), "after {what}");
    }
}

#[test]
fn commands_have_no_more_data_with_them_than_was_agreed_on_and_immediate_ones_are_few() {
    let mut session = Session::new(&logged_in());
    let unsolicited = |bytes| Err(Violation::Unsolicited { bytes });
    assert_eq!(session.receive(&command(1, 100, 0xa0, 1000, 1001)), unsolicited(1001), "more than it sends");
    assert_eq!(session.receive(&command(1, 101, 0xc0, 1000, 4)), unsolicited(4), "it reads");
    assert_eq!(session.receive(&command(1, 102, 0xa0, 1 << 20, 65_537)), unsolicited(65_537));
    let mut login = logged_in();
    login.operational.immediate_data = false;
    assert_eq!(Session::new(&login).receive(&command(1, 100, 0xa0, 1000, 4)), unsolicited(4));
    let mut session = Session::new(&login);
    for tag in 0..IMMEDIATE_COMMANDS_MAX as u32 {
        assert!(matches!(session.receive(&command(tag, 100, 0xc0, 0, 0).immediate()), Ok(Event::Command(_))));
    }
    let one_more = command(50, 100, 0xc0, 0, 0).immediate();
    assert_eq!(session.receive(&one_more), Err(Violation::TooManyImmediate));
    session.forget(3);
    assert!(matches!(session.receive(&one_more), Ok(Event::Command(_))), "one of them is over");
    assert!(
        matches!(session.receive(&command(60, 100, 0xc0, 0, 0)), Ok(Event::Command(_))),
        "no number was used"
    );
}

#[test]
fn data_beyond_what_a_command_wants_is_taken_and_not_wanted() {
    let mut login = logged_in();
    login.operational.initial_r2t = false;
    let mut session = Session::new(&login);
    assert!(matches!(session.receive(&command(1, 100, 0x20, 4000, 1000)), Ok(Event::Command(_))));
    // Of 4000 bytes that the initiator sends the command wants 2500.
    session.begin(1, 2500);
    let wanted = [(0, 1000, 1000), (1, 1000, 500), (2, 1000, 0)];
    for (number, bytes, wanted) in wanted {
        assert_eq!(session.wants(1), Wants::Data);
        let offset = 1000 * (number + 1);
        let event = session.receive(&data_out(1, NO_TAG, number, offset, bytes, number == 2));
        assert_eq!(event, Ok(Event::Data(crate::DataOut { tag: 1, bytes: bytes as u32, wanted })));
    }
    assert_eq!(session.wants(1), Wants::Nothing);
    // R2Ts of a task are counted.
    assert!(matches!(session.receive(&command(2, 101, 0xa0, 3000, 0)), Ok(Event::Command(_))));
    session.begin(2, 3000);
    for number in 0..3 {
        let mut out = Vec::new();
        session.solicit(2, 1000, &mut out);
        let r2t = Header::parse(&out).unwrap();
        assert_eq!((r2t.word(4), r2t.word(5), r2t.word(6)), (number, 1000 * number, 1000));
        let event = session.receive(&data_out(2, r2t.word(0), 0, 1000 * number, 1000, true));
        assert!(matches!(event, Ok(Event::Data(_))), "{event:?}");
    }
    assert_eq!(session.wants(2), Wants::Nothing);
}

fn geometry() -> Geometry {
    Geometry {
        block_bytes: 512,
        blocks: 1 << 20,
        physical_bytes: 4096,
        read_only: false,
        thin: true,
        atomic_bytes: 1 << 20,
    }
}

fn unit(state: ReservationState) -> LogicalUnit {
    let description = Description {
        name: "v/lun".to_owned(),
        id: 0x0123_4567_89ab_cdef,
        ports: 2,
        removable: false,
        write_cache: true,
    };
    let mut unit = LogicalUnit::new(description, geometry(), state);
    unit.attach(Nexus(1), "iqn.a,i,0x1".to_owned(), through(1));
    unit.attach(Nexus(2), "iqn.b,i,0x2".to_owned(), through(1));
    unit
}

fn through(number: u8) -> TargetPort {
    TargetPort { target: if number == 1 { TARGET.to_owned() } else { format!("{TARGET}.{number}") }, number }
}

fn cdb(bytes: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..bytes.len()].copy_from_slice(bytes);
    cdb
}

/// The answer that a nexus gets for a command: status, sense key and code.
fn answer(unit: &mut LogicalUnit, nexus: u64, bytes: &[u8]) -> (Status, u8, u8) {
    match unit.receive(Nexus(nexus), &[0; 8], &cdb(bytes), 4096) {
        Plan::Answer(answer) => {
            let sense = |at: usize| answer.sense.get(at).copied().unwrap_or(0);
            (answer.status, sense(2), sense(12))
        }
        Plan::Medium(_) | Plan::Parameters(..) => (Status::Good, 0, 0),
    }
}

const READ: &[u8] = &[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
const WRITE: &[u8] = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0];

/// PERSISTENT RESERVE OUT; true when it was granted.
fn reserve_out(
    unit: &mut LogicalUnit,
    nexus: u64,
    action: u8,
    kind: u8,
    keys: (u64, u64),
    persists: bool,
) -> bool {
    let bytes = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let plan = unit.receive(Nexus(nexus), &[0; 8], &cdb(&bytes), 24);
    let Plan::Parameters(24, command) = plan else { panic!("{plan:?}") };
    let mut list = [keys.0.to_be_bytes(), keys.1.to_be_bytes(), [0; 8]].concat();
    list[20] = u8::from(persists);
    let outcome = unit.parameters(Nexus(nexus), &command, &list);
    assert_eq!(
        outcome.change.is_some(),
        persists && matches!(&outcome.plan, Plan::Answer(answer) if answer.status == Status::Good)
    );
    if let Some(change) = outcome.change {
        let before = unit.reservations().clone();
        assert_ne!(change.state(), &before, "it is not there before it is applied");
        let kept = change.state().clone();
        unit.apply(change);
        assert_eq!(unit.reservations(), &kept);
    }
    matches!(outcome.plan, Plan::Answer(answer) if answer.status == Status::Good)
}

/// The caching mode page, as MODE SENSE (6) with the values of `control` returns it: true when it
/// announces a write cache.
fn shows_write_cache(unit: &mut LogicalUnit, control: u8) -> bool {
    let bytes = [0x1a, 0x08, control << 6 | 0x08, 0, 255, 0];
    let plan = unit.receive(Nexus(1), &[0; 8], &cdb(&bytes), 4096);
    let Plan::Answer(answer) = plan else { panic!("{plan:?}") };
    assert_eq!((answer.status, answer.data[4]), (Status::Good, 0x08), "the page comes behind the header");
    answer.data[6] & 0x04 != 0
}

#[test]
fn write_cache_is_what_the_owner_says_until_an_initiator_asks_and_again_after_a_reset() {
    let mut unit = unit(ReservationState::default());
    assert!(!unit.writes_through() && shows_write_cache(&mut unit, 0) && shows_write_cache(&mut unit, 2));
    unit.set_write_cache(false);
    assert_eq!(answer(&mut unit, 1, READ), (Status::CheckCondition, 6, 0x2a), "the modes have changed");
    assert!(unit.writes_through() && !shows_write_cache(&mut unit, 0) && !shows_write_cache(&mut unit, 2));
    assert!(shows_write_cache(&mut unit, 1), "it can be changed");
    // MODE SELECT (6) of the caching page, by an initiator that wants one.
    let select = [0x15, 0x10, 0, 0, 24, 0];
    let plan = unit.receive(Nexus(1), &[0; 8], &cdb(&select), 24);
    let Plan::Parameters(24, command) = plan else { panic!("{plan:?}") };
    let mut list = [0; 24];
    (list[4], list[5], list[6]) = (0x08, 18, 0x04);
    let outcome = unit.parameters(Nexus(1), &command, &list);
    assert!(matches!(&outcome.plan, Plan::Answer(answer) if answer.status == Status::Good));
    assert!(!unit.writes_through() && shows_write_cache(&mut unit, 0));
    assert!(!shows_write_cache(&mut unit, 2), "the default is the owner's");
    unit.set_write_cache(false);
    assert!(!unit.writes_through(), "the owner has said nothing new");
    unit.reset();
    assert!(unit.writes_through(), "a reset ends what initiators asked for");
}

#[test]
fn write_cache_comes_on_behind_nobodys_back() {
    let mut unit = unit(ReservationState::default());
    unit.set_write_cache(false);
    for nexus in [1, 2] {
        assert_eq!(
            answer(&mut unit, nexus, WRITE),
            (Status::CheckCondition, 6, 0x2a),
            "the modes have changed"
        );
    }
    // Both have read that there is no write cache, and do not flush.
    unit.set_write_cache(true);
    unit.detach(Nexus(1));
    unit.set_write_cache(true);
    assert!(unit.writes_through(), "one of them is still here");
    unit.detach(Nexus(2));
    unit.set_write_cache(true);
    assert!(!unit.writes_through());
}

#[test]
fn persistent_reservation_keeps_others_out_and_survives_a_restart() {
    let mut first = unit(ReservationState::default());
    assert!(reserve_out(&mut first, 1, 0, 0, (0, 11), true));
    assert!(reserve_out(&mut first, 1, 1, 3, (11, 0), true), "exclusive access");
    assert!(!reserve_out(&mut first, 2, 1, 3, (22, 0), false), "it is not registered");
    // The server starts again; the initiator comes back with the same port name.
    let mut again = unit(first.reservations().clone());
    assert_eq!(answer(&mut again, 1, WRITE).0, Status::Good);
    assert_eq!(answer(&mut again, 2, WRITE).0, Status::ReservationConflict);
    assert_eq!(answer(&mut again, 2, READ).0, Status::ReservationConflict);
    assert_eq!(answer(&mut again, 2, &[0x12, 0, 0, 0, 96, 0]).0, Status::Good, "INQUIRY is always allowed");
    // The other takes over by the key, and the first learns of it.
    assert!(reserve_out(&mut again, 2, 0, 0, (0, 22), true));
    assert!(reserve_out(&mut again, 2, 4, 1, (22, 11), true));
    assert_eq!(answer(&mut again, 1, READ), (Status::CheckCondition, 6, 0x2a));
    assert_eq!(answer(&mut again, 1, READ).0, Status::Good, "write exclusive lets others read");
    assert_eq!(answer(&mut again, 1, WRITE).0, Status::ReservationConflict);
}

#[test]
fn nexus_that_is_not_registered_and_registers_no_key_changes_nothing() {
    for action in [0, 6] {
        let mut unit = unit(ReservationState::default());
        assert!(reserve_out(&mut unit, 1, 0, 0, (0, 11), true));
        assert!(reserve_out(&mut unit, 1, 1, 1, (11, 0), true), "write exclusive");
        let before = unit.reservations().clone();
        let plan = unit.receive(Nexus(2), &[0; 8], &cdb(&[0x5f, action, 0, 0, 0, 0, 0, 0, 24, 0]), 24);
        let Plan::Parameters(24, command) = plan else { panic!("{plan:?}") };
        // APTPL is not set, which would end the persistence of others' registrations.
        let outcome = unit.parameters(Nexus(2), &command, &[0; 24]);
        assert!(matches!(&outcome.plan, Plan::Answer(answer) if answer.status == Status::Good));
        outcome.change.into_iter().for_each(|change| _ = unit.apply(change));
        assert_eq!(unit.reservations(), &before, "service action {action}");
    }
}

/// The data that a nexus gets for a command.
fn told(unit: &mut LogicalUnit, nexus: u64, bytes: &[u8]) -> Vec<u8> {
    match unit.receive(Nexus(nexus), &[0; 8], &cdb(bytes), 4096) {
        Plan::Answer(answer) if answer.status == Status::Good => answer.data,
        plan => panic!("{bytes:?}: {plan:?}"),
    }
}

/// READ FULL STATUS, by the layout of SPC-4, section 6.15.5: of each registration whether it holds,
/// the number of the target port and the initiator port.
fn full_status(unit: &mut LogicalUnit, nexus: u64) -> Vec<(bool, u16, String)> {
    let data = told(unit, nexus, &[0x5e, 3, 0, 0, 0, 0, 0, 0x10, 0, 0]);
    let mut registrations = Vec::new();
    let mut rest = &data[8..];
    while !rest.is_empty() {
        let length = u32::from_be_bytes(rest[20..24].try_into().unwrap()) as usize;
        let (holds, target_port) = (rest[12] & 1 == 1, u16::from_be_bytes([rest[18], rest[19]]));
        assert_eq!(
            (rest[24], rest[27]),
            (0x45, length as u8 - 4),
            "the transport is iSCSI, and the port has an ISID"
        );
        let name = rest[28..24 + length].split(|byte| *byte == 0).next().unwrap();
        registrations.push((holds, target_port, String::from_utf8(name.to_vec()).unwrap()));
        rest = &rest[24 + length..];
    }
    registrations
}

#[test]
fn initiator_port_is_another_nexus_by_another_target_port_of_the_same_unit() {
    let mut unit = unit(ReservationState::default());
    unit.attach(Nexus(3), nexus_name("iqn.a,i,0x1", 2), through(2));
    assert!(reserve_out(&mut unit, 1, 0, 0, (0, 11), true));
    assert!(reserve_out(&mut unit, 1, 1, 1, (11, 0), true), "write exclusive");
    assert_eq!(answer(&mut unit, 1, WRITE).0, Status::Good);
    assert_eq!(answer(&mut unit, 3, WRITE).0, Status::ReservationConflict);
    assert!(reserve_out(&mut unit, 3, 0, 0, (0, 33), true), "this nexus had no key yet");
    let port = || "iqn.a,i,0x1".to_owned();
    assert_eq!(full_status(&mut unit, 2), [(true, 1, port()), (false, 2, port())]);
    assert!(reserve_out(&mut unit, 3, 4, 1, (33, 11), true));
    assert_eq!(answer(&mut unit, 1, WRITE), (Status::CheckCondition, 6, 0x2a), "it is preempted");
    assert_eq!(answer(&mut unit, 1, WRITE).0, Status::ReservationConflict);
    assert_eq!(answer(&mut unit, 3, WRITE).0, Status::Good);
    assert_eq!(full_status(&mut unit, 2), [(true, 2, port())]);
    // It is one disk, by two ports.
    let vital = |page| [0x12, 1, page, 0x10, 0, 0];
    assert_eq!(told(&mut unit, 1, &vital(0x80)), told(&mut unit, 3, &vital(0x80)));
    let (one, other) = (told(&mut unit, 1, &vital(0x83)), told(&mut unit, 3, &vital(0x83)));
    assert_eq!(one[4..16], other[4..16], "the NAA designator");
    let holds = |page: &[u8], wanted: &[u8]| page.windows(wanted.len()).any(|bytes| bytes == wanted);
    for (page, number) in [(&one, 1), (&other, 2)] {
        assert!(holds(page, &[0x51, 0x94, 0, 4, 0, 0, 0, number]), "{page:?}");
        assert!(holds(page, format!("{},t,0x0001\0", through(number).target).as_bytes()), "{page:?}");
    }
    let groups: [u8; 20] = [0, 0, 0, 16, 0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(told(&mut unit, 1, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]), groups);
}

#[test]
fn reservation_for_registrants_lets_them_in_and_ends_with_its_last_holder() {
    let mut unit = unit(ReservationState::default());
    assert!(reserve_out(&mut unit, 1, 6, 0, (0, 11), false));
    assert!(reserve_out(&mut unit, 1, 1, 5, (11, 0), false));
    assert_eq!(answer(&mut unit, 2, WRITE).0, Status::ReservationConflict);
    assert!(reserve_out(&mut unit, 2, 6, 0, (0, 22), false));
    assert_eq!(answer(&mut unit, 2, WRITE).0, Status::Good);
    assert!(!reserve_out(&mut unit, 2, 1, 5, (22, 0), false), "one holds it");
    assert!(reserve_out(&mut unit, 1, 0, 0, (11, 0), false));
    assert_eq!(answer(&mut unit, 2, WRITE), (Status::CheckCondition, 6, 0x2a), "it hears of the release");
    assert_eq!(unit.reservations().reserved, None);
}

/// The unit attention that a nexus gets: the codes of the sense data.
fn attention(unit: &mut LogicalUnit, nexus: u64) -> Option<(u8, u8)> {
    match unit.receive(Nexus(nexus), &[0; 8], &[0; 16], 0) {
        Plan::Answer(answer) if answer.status == Status::CheckCondition => {
            assert_eq!(answer.sense[2], 6, "UNIT ATTENTION");
            Some((answer.sense[12], answer.sense[13]))
        }
        plan => {
            assert!(matches!(&plan, Plan::Answer(answer) if answer.status == Status::Good), "{plan:?}");
            None
        }
    }
}

const PREEMPTED: Option<(u8, u8)> = Some((0x2a, 0x03));
const RELEASED: Option<(u8, u8)> = Some((0x2a, 0x04));
const UNREGISTERED: Option<(u8, u8)> = Some((0x2a, 0x05));
/// Types of reservations: those that allow others to read, and those that admit registrants.
const KINDS: [(u8, bool, bool); 6] = [
    (1, true, false),
    (3, false, false),
    (5, true, true),
    (6, false, true),
    (7, true, true),
    (8, false, true),
];

/// A unit that nexus 1 has reserved, where nexus 2 is registered too, and nexus 3 is not.
fn reserved(kind: u8) -> LogicalUnit {
    let mut unit = unit(ReservationState::default());
    unit.attach(Nexus(3), "iqn.c,i,0x3".to_owned(), through(1));
    assert!(reserve_out(&mut unit, 1, 0, 0, (0, 11), false));
    assert!(reserve_out(&mut unit, 2, 0, 0, (0, 22), false));
    assert!(reserve_out(&mut unit, 1, 1, kind, (11, 0), false));
    unit
}

#[test]
fn each_type_of_reservation_keeps_out_whom_it_should() {
    for (kind, others_read, registrants) in KINDS {
        let mut unit = reserved(kind);
        let mut may = |nexus: u64| {
            [READ, WRITE].map(|command| answer(&mut unit, nexus, command).0 != Status::ReservationConflict)
        };
        assert_eq!(may(1), [true, true], "type {kind}");
        assert_eq!(may(2), [others_read || registrants, registrants], "type {kind}");
        assert_eq!(may(3), [others_read, false], "type {kind}");
    }
}

#[test]
fn end_of_a_reservation_is_told_to_registrants_whom_it_let_in() {
    for (kind, _, registrants) in KINDS {
        let told = if registrants { RELEASED } else { None };
        let mut unit = reserved(kind);
        assert!(reserve_out(&mut unit, 2, 2, kind, (22, 0), false), "who does not hold it releases nothing");
        let is_for_all = kind >= 7;
        assert_eq!(
            unit.reservations().reserved.is_none(),
            is_for_all,
            "but all registrants hold type {kind}"
        );
        let mut unit = reserved(kind);
        let generation = unit.reservations().generation;
        assert!(!reserve_out(&mut unit, 1, 2, if kind == 1 { 3 } else { 1 }, (11, 0), false), "another type");
        assert!(reserve_out(&mut unit, 1, 2, kind, (11, 0), false));
        assert_eq!(unit.reservations().reserved, None);
        assert_eq!(unit.reservations().generation, generation, "neither reserving nor releasing counts");
        assert_eq!([1, 2, 3].map(|nexus| attention(&mut unit, nexus)), [None, told, None], "type {kind}");
        // A nexus that leaves releases a reservation that no other one holds.
        let mut unit = reserved(kind);
        assert!(reserve_out(&mut unit, 1, 0, 0, (11, 0), false));
        assert_eq!(unit.reservations().reserved.is_none(), !is_for_all, "type {kind}");
        let told = if is_for_all { None } else { told };
        assert_eq!([1, 2, 3].map(|nexus| attention(&mut unit, nexus)), [None, told, None], "type {kind}");
        assert!(reserve_out(&mut unit, 2, 0, 0, (22, 0), false));
        assert_eq!(unit.reservations().reserved, None, "nobody is left");
    }
}

#[test]
fn preempt_takes_what_the_key_stands_for_and_nothing_else() {
    const HOLDS: fn(&LogicalUnit) -> Option<(u8, String)> = |unit| unit.reservations().reserved.clone();
    let keys = |unit: &LogicalUnit| -> Vec<u64> {
        unit.reservations().registrations.iter().map(|known| known.key).collect()
    };
    let [first, second] = ["iqn.a,i,0x1", "iqn.b,i,0x2"].map(str::to_owned);
    for (kind, _, registrants) in KINDS {
        let is_for_all = kind >= 7;
        // The key of the holder: its registration goes, and the reservation, which all registrants
        // hold, only if it is its own.
        let mut unit = reserved(kind);
        let generation = unit.reservations().generation;
        assert!(reserve_out(&mut unit, 2, 4, 1, (22, 11), false));
        let holder = if is_for_all { (kind, first.clone()) } else { (1, second.clone()) };
        assert_eq!((HOLDS(&unit), keys(&unit)), (Some(holder), vec![22]), "type {kind}");
        assert_eq!(unit.reservations().generation, generation + 1);
        assert_eq!([1, 2, 3].map(|nexus| attention(&mut unit, nexus)), [UNREGISTERED, None, None]);
        // That of another nexus: no reservation changes hands.
        let mut unit = reserved(kind);
        assert!(reserve_out(&mut unit, 1, 4, 3, (11, 22), false));
        assert_eq!((HOLDS(&unit), keys(&unit)), (Some((kind, first.clone())), vec![11]), "type {kind}");
        assert_eq!([1, 2, 3].map(|nexus| attention(&mut unit, nexus)), [None, UNREGISTERED, None]);
        // Its own: the type changes, and the admitted nexuses learn of it.
        let mut unit = reserved(kind);
        let other = if kind == 3 { 1 } else { 3 };
        assert!(reserve_out(&mut unit, 1, 4, other, (11, 11), false));
        let expected = if is_for_all { (kind, first.clone()) } else { (other, first.clone()) };
        assert_eq!((HOLDS(&unit), keys(&unit)), (Some(expected), vec![11, 22]), "type {kind}");
        let told = if registrants && !is_for_all { RELEASED } else { None };
        assert_eq!([1, 2, 3].map(|nexus| attention(&mut unit, nexus)), [None, told, None], "type {kind}");
        // No key represents all, where all hold it, and is wrong elsewhere; an unregistered one is
        // a conflict.
        let mut unit = reserved(kind);
        assert_eq!(reserve_out(&mut unit, 2, 4, 1, (22, 0), false), is_for_all, "type {kind}");
        if is_for_all {
            assert_eq!((HOLDS(&unit), keys(&unit)), (Some((1, second.clone())), vec![22]));
            assert_eq!([1, 2, 3].map(|nexus| attention(&mut unit, nexus)), [UNREGISTERED, None, None]);
        }
        let mut unit = reserved(kind);
        assert!(!reserve_out(&mut unit, 2, 4, 1, (22, 33), false), "type {kind}");
        assert_eq!((HOLDS(&unit), keys(&unit)), (Some((kind, first.clone())), vec![11, 22]));
    }
}

#[test]
fn clear_by_any_registrant_ends_all_and_tells_the_others() {
    for (kind, ..) in KINDS {
        let mut unit = reserved(kind);
        assert!(!reserve_out(&mut unit, 3, 3, 0, (33, 0), false), "it is not registered");
        let generation = unit.reservations().generation;
        assert!(reserve_out(&mut unit, 2, 3, 0, (22, 0), false));
        let cleared = ReservationState { generation: generation + 1, ..ReservationState::default() };
        assert_eq!(unit.reservations(), &cleared);
        assert_eq!([1, 2, 3].map(|nexus| attention(&mut unit, nexus)), [PREEMPTED, None, None]);
    }
}

#[test]
fn reservation_of_a_session_keeps_others_out_and_does_not_go_with_registrations() {
    let mut unit = unit(ReservationState::default());
    let (reserve, release) = ([0x16, 0, 0, 0, 0, 0], [0x17, 0, 0, 0, 0, 0]);
    assert_eq!(answer(&mut unit, 1, &reserve).0, Status::Good);
    for command in [READ, WRITE, &reserve, &[0; 6], &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0]] {
        assert_eq!(answer(&mut unit, 2, command).0, Status::ReservationConflict, "{command:?}");
        assert_eq!(answer(&mut unit, 1, command).0, Status::Good, "{command:?}");
    }
    assert_eq!(answer(&mut unit, 2, &release).0, Status::Good, "it releases nothing");
    assert_eq!(answer(&mut unit, 2, READ).0, Status::ReservationConflict);
    assert_eq!(answer(&mut unit, 1, &release).0, Status::Good);
    assert_eq!(answer(&mut unit, 2, READ).0, Status::Good);
    assert!(reserve_out(&mut unit, 1, 0, 0, (0, 11), false));
    for command in [&reserve, &release] {
        assert_eq!(answer(&mut unit, 1, command).0, Status::ReservationConflict, "somebody is registered");
    }
}

#[test]
fn places_beyond_the_unit_and_writes_to_read_only_ones_are_refused() {
    let mut unit = unit(ReservationState::default());
    let at = |opcode: u8, lba: u32, blocks: u16| {
        let [a, b, c, d] = lba.to_be_bytes();
        let [high, low] = blocks.to_be_bytes();
        [opcode, 0, a, b, c, d, 0, high, low, 0]
    };
    assert_eq!(answer(&mut unit, 1, &at(0x28, (1 << 20) - 1, 1)).0, Status::Good);
    assert_eq!(answer(&mut unit, 1, &at(0x28, (1 << 20) - 1, 2)), (Status::CheckCondition, 5, 0x21));
    assert_eq!(answer(&mut unit, 1, &at(0x2a, u32::MAX, u16::MAX)), (Status::CheckCondition, 5, 0x21));
    assert!(unit.set_geometry(Geometry { blocks: 1 << 21, ..geometry() }));
    assert_eq!(answer(&mut unit, 1, READ), (Status::CheckCondition, 6, 0x2a), "its size changed");
    assert_eq!(answer(&mut unit, 1, READ).0, Status::Good);
    unit.set_geometry(Geometry { blocks: 1 << 21, read_only: true, ..geometry() });
    for write in [WRITE, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &at(0x41, 0, 1), &at(0x2e, 0, 1)] {
        assert_eq!(answer(&mut unit, 1, write), (Status::CheckCondition, 7, 0x27), "{write:?}");
    }
}

/// The answer that a nexus gets for a command with parameters: sense key and codes, all 0 on
/// success.
fn with_parameters(unit: &mut LogicalUnit, nexus: u64, bytes: &[u8], list: &[u8]) -> (u8, u8, u8) {
    let plan = match unit.receive(Nexus(nexus), &[0; 8], &cdb(bytes), list.len() as u32) {
        Plan::Parameters(_, command) => unit.parameters(Nexus(nexus), &command, list).plan,
        plan => plan,
    };
    match plan {
        Plan::Answer(answer) if answer.status == Status::CheckCondition => {
            (answer.sense[2], answer.sense[12], answer.sense[13])
        }
        _ => (0, 0, 0),
    }
}

#[test]
fn no_command_reaches_past_the_unit_or_the_limits_that_it_tells() {
    let mut unit = unit(ReservationState::default());
    let blocks = geometry().blocks;
    const BEYOND: (u8, u8) = (5, 0x21);
    const REFUSED: (u8, u8) = (5, 0x24);
    // Opcode, where its length ends, and how many bytes the initiator sends.
    for (code, at, sent) in [
        (0x88, 14, 0),
        (0x8a, 14, 512),
        (0x8b, 14, 512),
        (0x8e, 14, 512),
        (0x8f, 14, 512),
        (0x89, 14, 1024),
        (0x93, 14, 512),
    ] {
        let mut ends = |lba: u64, length: u32| {
            let mut bytes = [0; 16];
            bytes[0] = code;
            bytes[2..10].copy_from_slice(&lba.to_be_bytes());
            bytes[at - 4..at].copy_from_slice(&length.to_be_bytes());
            match unit.receive(Nexus(1), &[0; 8], &bytes, sent) {
                Plan::Answer(answer) if answer.status == Status::CheckCondition => {
                    (answer.sense[2], answer.sense[12])
                }
                Plan::Medium(_) => (0, 0),
                plan => panic!("{plan:?}"),
            }
        };
        assert_eq!(ends(blocks - 1, 1), (0, 0), "{code:#x}");
        for lba in [blocks, u64::MAX] {
            assert_eq!(ends(lba, 1), BEYOND, "{code:#x} at {lba}");
        }
        assert_eq!(ends(blocks - 1, 2).1, 0x21, "{code:#x}");
        let most = if code == 0x93 { 1 << 20 } else { (32 << 20) / 512 };
        if code != 0x89 {
            assert_eq!(ends(0, most), (0, 0), "{code:#x}");
        }
        if code != 0x89 && code != 0x93 {
            assert_eq!(ends(0, most + 1), REFUSED, "{code:#x}");
        }
    }
    unit.set_geometry(Geometry { blocks: 1 << 22, ..geometry() });
    [1, 2].into_iter().for_each(|nexus| assert_eq!(attention(&mut unit, nexus), Some((0x2a, 0x09))));
    let mut same = |length: u32| {
        let mut bytes = [0; 16];
        bytes[0] = 0x93;
        bytes[10..14].copy_from_slice(&length.to_be_bytes());
        matches!(unit.receive(Nexus(1), &[0; 8], &bytes, 512), Plan::Medium(_))
    };
    assert_eq!([0, 1, 1 << 20, (1 << 20) + 1].map(&mut same), [false, true, true, false]);
}

#[test]
fn unmap_stays_within_the_unit_and_its_own_limits() {
    let mut unit = unit(ReservationState::default());
    unit.set_geometry(Geometry { blocks: 1 << 22, ..geometry() });
    [1, 2].into_iter().for_each(|nexus| assert_eq!(attention(&mut unit, nexus), Some((0x2a, 0x09))));
    let mut unmap = |stretches: &[(u64, u32)]| {
        let length = 16 * stretches.len() as u16;
        let mut list = [(length + 6).to_be_bytes(), length.to_be_bytes(), [0; 2], [0; 2]].concat();
        for (lba, blocks) in stretches {
            list.extend_from_slice(&[&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat());
        }
        let [high, low] = (list.len() as u16).to_be_bytes();
        with_parameters(&mut unit, 1, &[0x42, 0, 0, 0, 0, 0, 0, high, low, 0], &list)
    };
    let end = 1 << 22;
    assert_eq!(unmap(&[(0, 8), (end - 1, 1), (end, 0)]), (0, 0, 0));
    assert_eq!(unmap(&[(0, 8), (end - 1, 2)]), (5, 0x21, 0));
    assert_eq!(unmap(&[(u64::MAX, 1)]), (5, 0x21, 0));
    assert_eq!(unmap(&[(0, 1 << 19), (1 << 20, 1 << 19)]), (0, 0, 0));
    assert_eq!(unmap(&[(0, 1 << 19), (1 << 20, (1 << 19) + 1)]), (5, 0x26, 0), "more blocks than it says");
    assert_eq!(unmap(&vec![(0, 1); 256]), (0, 0, 0));
    assert_eq!(unmap(&vec![(0, 1); 257]), (5, 0x26, 0), "more descriptors than it says");
    let list = [0, 22, 0, 16, 0, 0, 0, 0];
    assert_eq!(
        with_parameters(&mut unit, 1, &[0x42, 0, 0, 0, 0, 0, 0, 0, 8, 0], &list),
        (5, 0x1a, 0),
        "none is there"
    );
}

#[test]
fn mode_select_changes_what_can_be_changed_or_nothing() {
    let mut unit = unit(ReservationState::default());
    let mut select =
        |list: &[u8]| with_parameters(&mut unit, 1, &[0x15, 0x10, 0, 0, list.len() as u8, 0], list);
    let refused = (5, 0x26, 0);
    let caching = |flags: u8, other: u8| {
        let mut list = [0; 24];
        (list[4], list[5], list[6], list[7]) = (0x08, 18, flags, other);
        list
    };
    assert_eq!(select(&caching(0x01, 0)), refused, "RCD");
    assert_eq!(select(&caching(0, 1)), refused);
    let mut described = [&[0, 0, 0, 8][..], &[0; 8], &caching(0, 0)[4..]].concat();
    (described[10], described[11]) = (0x10, 0);
    assert_eq!(select(&described), refused, "blocks of 4096 bytes, where it has 512");
    (described[10], described[11]) = (0x02, 0);
    let control = |swp: u8| {
        let mut list = vec![0; 4];
        list.extend_from_slice(&[0x0a, 10, 0, 0x10, swp, 0, 0, 0, 0xff, 0xff, 0, 0]);
        list
    };
    // One page is right and the other is not.
    let both = [&control(0x08)[..], &caching(0, 1)[4..]].concat();
    assert_eq!(select(&both), refused);
    assert_eq!(select(&control(0x08)), (0, 0, 0));
    assert_eq!(select(&described), (0, 0, 0));
    assert!(unit.writes_through() && unit.is_write_protected());
    assert_eq!(attention(&mut unit, 2), Some((0x2a, 0x01)), "MODE PARAMETERS CHANGED");
    assert_eq!(attention(&mut unit, 2), None, "told once of both");
    assert_eq!(answer(&mut unit, 2, WRITE), (Status::CheckCondition, 7, 0x27));
    assert_eq!(answer(&mut unit, 2, READ).0, Status::Good);
}

#[test]
fn what_is_held_for_a_session_ends_with_it_and_with_a_reset() {
    let mut unit = unit(ReservationState::default());
    unit.set_removable(true);
    let reserve = [0x16, 0, 0, 0, 0, 0];
    let prevent = [0x1e, 0, 0, 0, 1, 0];
    let eject = [0x1b, 0, 0, 0, 2, 0];
    let prevented = (Status::CheckCondition, 5, 0x53);
    for ends in [0, 1] {
        assert_eq!(answer(&mut unit, 1, &prevent).0, Status::Good);
        assert_eq!(answer(&mut unit, 2, &eject), prevented);
        assert_eq!(answer(&mut unit, 1, &reserve).0, Status::Good);
        assert_eq!(answer(&mut unit, 2, READ).0, Status::ReservationConflict);
        if ends == 0 {
            unit.reset();
            assert_eq!([1, 2].map(|nexus| attention(&mut unit, nexus)), [Some((0x29, 0x03)); 2]);
        } else {
            unit.detach(Nexus(1));
        }
        assert_eq!(answer(&mut unit, 2, READ).0, Status::Good);
        assert_eq!(answer(&mut unit, 2, &eject).0, Status::Good);
        assert_eq!(answer(&mut unit, 2, READ), (Status::CheckCondition, 2, 0x3a), "no medium");
        assert_eq!(answer(&mut unit, 2, &[0x1b, 0, 0, 0, 3, 0]).0, Status::Good);
    }
}

#[test]
fn registrations_are_counted_and_have_an_end() {
    let mut unit = unit(ReservationState::default());
    for number in 0..REGISTRATIONS_MAX as u64 {
        unit.attach(Nexus(100 + number), format!("iqn.c,i,0x{number:x}"), through(1));
        assert!(reserve_out(&mut unit, 100 + number, 0, 0, (0, 11), false));
    }
    let list = [0u64.to_be_bytes(), 11u64.to_be_bytes(), [0; 8]].concat();
    let register = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(
        with_parameters(&mut unit, 1, &register, &list),
        (5, 0x55, 4),
        "INSUFFICIENT REGISTRATION RESOURCES"
    );
    assert!(reserve_out(&mut unit, 100, 0, 0, (11, 12), false), "another key takes no room");
    assert_eq!(unit.reservations().generation, REGISTRATIONS_MAX as u32 + 1);
}

#[test]
fn copy_whose_lists_are_not_all_there_is_refused() {
    let mut unit = unit(ReservationState::default());
    let mut list = vec![0; 16];
    (list[1], list[3], list[11]) = (3 << 3, 32, 28);
    let mut target = [0; 32];
    target[..8].copy_from_slice(&[0xe4, 0, 0, 0, 1, 3, 0, 8]);
    let mut segment = [0; 28];
    (segment[0], segment[3]) = (2, 24);
    list.extend_from_slice(&[&target[..], &segment].concat());
    let mut copy = |list: &[u8]| {
        let mut bytes = [0; 16];
        (bytes[0], bytes[13]) = (0x83, list.len() as u8);
        with_parameters(&mut unit, 1, &bytes, list)
    };
    assert_eq!(copy(&list), (0, 0, 0));
    for length in [15, 16, 47, 75] {
        assert_eq!(copy(&list[..length]), (5, 0x1a, 0), "{length} bytes of it");
    }
    let with = |at: usize, byte: u8| {
        let mut other = list.clone();
        other[at] = byte;
        other
    };
    assert_eq!(copy(&with(16, 0xe5)), (5, 0x26, 7), "another sort of target");
    assert_eq!(copy(&with(23, 21)), (5, 0x26, 0), "a designator that is longer than its place");
    assert_eq!(copy(&with(48, 0x0b)), (5, 0x26, 9), "another sort of segment");
    assert_eq!(copy(&with(15, 1)), (5, 0x1a, 0), "inline data");
}

#[test]
fn atomic_writes_are_of_whole_physical_blocks_and_only_where_they_are_promised() {
    let mut unit = unit(ReservationState::default());
    let at = |lba: u8, boundary: u8, blocks: u16| {
        let [high, low] = blocks.to_be_bytes();
        [0x9c, 0, 0, 0, 0, 0, 0, 0, 0, lba, 0, boundary, high, low, 0, 0]
    };
    let refused = (Status::CheckCondition, 5, 0x24);
    // The initiator sends 4096 bytes.
    assert_eq!(answer(&mut unit, 1, &at(8, 0, 8)).0, Status::Good);
    assert_eq!(answer(&mut unit, 1, &at(8, 8, 8)), refused, "no boundaries");
    assert_eq!(answer(&mut unit, 1, &at(1, 0, 8)), refused, "it begins within a physical block");
    assert_eq!(answer(&mut unit, 1, &at(8, 0, 4)), refused, "it ends within one");
    assert_eq!(answer(&mut unit, 1, &at(8, 0, 16)), refused, "less data than blocks");
    assert_eq!(answer(&mut unit, 1, &at(8, 0, 4096)), refused, "longer than promised");
    let limits = [0x12, 1, 0xb0, 0, 64, 0];
    let words = |unit: &mut LogicalUnit| match unit.receive(Nexus(1), &[0; 8], &cdb(&limits), 64) {
        Plan::Answer(answer) => answer.data[44..56].to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!(words(&mut unit), [0, 0, 8, 0, 0, 0, 0, 8, 0, 0, 0, 8]);
    unit.set_geometry(Geometry { atomic_bytes: 0, ..geometry() });
    assert_eq!(answer(&mut unit, 1, &at(8, 0, 8)), (Status::CheckCondition, 5, 0x20), "no such command");
    assert_eq!(words(&mut unit), [0; 12]);
}

#[test]
fn cdbs_are_decoded_by_length_and_flags() {
    let read = |bytes: &[u8]| decode(&cdb(bytes));
    assert_eq!(
        read(&[0x08, 0x1f, 0xff, 0xff, 0, 0]),
        Ok(Command::Medium(Medium::Read { lba: 0x1f_ffff, blocks: 256 }))
    );
    let write = Medium::Write { lba: 1 << 40, blocks: 2, fua: true, verify: false };
    assert_eq!(read(&[0x8a, 0x08, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]), Ok(Command::Medium(write)));
    let verify = Medium::Verify { lba: 7, blocks: 3, compare: Compare::All };
    assert_eq!(read(&[0x2f, 0x02, 0, 0, 0, 7, 0, 0, 3, 0]), Ok(Command::Medium(verify)));
    assert!(read(&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 1, 0]).is_err(), "no protection information");
    assert!(read(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 4]).is_err(), "no ACA");
    assert!(read(&[0xff]).is_err());
    assert!(read(&[0x9e, 0x1f]).is_err());
}

#[test]
fn bits_that_are_not_told_of_a_command_change_nothing_of_it() {
    let mut unit = unit(ReservationState::default());
    let list = told(&mut unit, 1, &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0]);
    let commands: Vec<[u8; 4]> =
        list[4..].chunks(8).map(|row| [row[0], row[2], row[3], row[5] & 1]).collect();
    assert!(commands.len() > 50, "{}", commands.len());
    for [opcode, high, low, has_action] in commands {
        // SPC-4, section 6.35.3: the CDB usage data.
        let asked = [0xa3, 0x0c, 1 + has_action, opcode, high, low, 0, 0, 0, 0xff, 0, 0];
        let one = told(&mut unit, 1, &asked);
        let usage = &one[4..];
        assert_eq!((one[1] & 7, usage[0], usage.len()), (3, opcode, usize::from(one[3])));
        let mut plain = [0; 16];
        (plain[0], plain[1]) = (opcode, low);
        for (byte, mask) in usage.iter().enumerate().skip(1) {
            // For a service action its own bits are reported.
            let mask = if byte == 1 && has_action == 1 { mask | 0x1f } else { *mask };
            for bit in (0..8).filter(|bit| mask >> bit & 1 == 0) {
                let mut other = plain;
                other[byte] |= 1 << bit;
                assert_eq!(decode(&other), decode(&plain), "opcode {opcode:#x}: bit {bit} of byte {byte}");
            }
        }
    }
}

#[test]
fn numbers_and_binaries_of_texts() {
    assert_eq!(text::number("0x1F"), Some(31));
    assert_eq!(text::number("4294967296"), None);
    assert_eq!(text::number("-1"), None);
    assert_eq!(text::binary("0x00ff"), Some(vec![0, 255]));
    assert_eq!(text::binary("0xf"), None);
    assert_eq!(text::binary("0bAP8="), Some(vec![0, 255]));
    assert_eq!(digest(&[&[0; 32]]), [0xaa, 0x36, 0x91, 0x8a], "RFC 7143, appendix A.4");
}

proptest! {
    #[test]
    fn text_that_was_written_reads_the_same(all in prop::collection::vec(("[A-Za-z0-9.+@_-]{1,63}", "[ -~]{0,100}"), 0..20)) {
        let mut bytes = Vec::new();
        all.iter().for_each(|(key, value)| text::put(&mut bytes, key, value));
        let read = text::parse(&bytes).unwrap();
        let owned: Vec<_> = read.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        prop_assert_eq!(owned, all);
    }

    #[test]
    fn header_that_was_written_reads_the_same(bytes in prop::array::uniform32(any::<u8>()), more in prop::array::uniform16(any::<u8>()), data in prop::collection::vec(any::<u8>(), 0..40)) {
        let raw = [&bytes[..], &more[..]].concat();
        let header = Header::parse(&raw).unwrap();
        let mut out = Vec::new();
        put(&mut out, header, &data, false, false);
        let again = Header::parse(&out).unwrap();
        prop_assert_eq!(again, header.with_data(data.len()));
        prop_assert_eq!(again.cdb(), header.cdb());
        prop_assert_eq!(out.len() % 4, 0);
    }

    #[test]
    fn no_text_and_no_command_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), code in prop::array::uniform16(any::<u8>()), expected: u32) {
        let _ = text::parse(&bytes);
        let mut unit = unit(ReservationState::default());
        if let Plan::Parameters(_, command) = unit.receive(Nexus(1), &[0; 8], &code, expected) {
            unit.parameters(Nexus(1), &command, &bytes);
        }
    }
}

#[test]
fn stretches_of_more_blocks_than_one_descriptor_has_are_told_without_a_gap() {
    let long = (1 << 32) + 24;
    let data = LogicalUnit::lba_status(16, &[(8, true), (long, false), (3 * long, true), (1, false)], 4096);
    let length = u32::from_be_bytes(data[..4].try_into().expect("four bytes"));
    assert_eq!(length as usize + 4, data.len());
    let mut at = 16;
    let mut told = [0; 2];
    for descriptor in data[8..].chunks(16) {
        let (lba, rest) = descriptor.split_at(8);
        assert_eq!(u64::from_be_bytes(lba.try_into().expect("eight bytes")), at, "behind the one before");
        let blocks = u64::from(u32::from_be_bytes(rest[..4].try_into().expect("four bytes")));
        told[usize::from(rest[4])] += blocks;
        at += blocks;
    }
    assert_eq!(told, [3 * long + 8, long + 1]);
    let short = LogicalUnit::lba_status(16, &[(long, false)], 20);
    assert_eq!((short.len(), &short[..4]), (20, &36_u32.to_be_bytes()[..]), "as long as there would be");
}
