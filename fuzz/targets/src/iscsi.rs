//! iSCSI: login texts, PDUs of a session, CDBs with their parameters.

use cairn_proto_iscsi::chap::{Account, CHALLENGE_BYTES, Credential};
use cairn_proto_iscsi::limits::{RECEIVE_SEGMENT_BYTES_MAX, TRANSFER_BYTES_MAX};
use cairn_proto_iscsi::pdu::{HEADER_BYTES, Header, opcode};
use cairn_proto_iscsi::scsi::{
    Description, Geometry, LogicalUnit, Medium, Nexus, Plan, ReservationState, TargetPort, decode,
};
use cairn_proto_iscsi::{
    Event, Gatekeeper, Identity, LoggedIn, Login, LoginError, Operational, Residual, Session, Step, Wants,
    text,
};

struct Gate(bool);

impl Gatekeeper for Gate {
    fn admit(&mut self, _: &Identity) -> Result<Option<Account>, LoginError> {
        let credential = || Credential { name: "me".to_owned(), secret: b"twelve bytes".to_vec() };
        Ok(self.0.then(|| Account { initiator: credential(), target: Some(credential()) }))
    }

    fn challenge(&mut self) -> [u8; CHALLENGE_BYTES + 1] {
        [7; CHALLENGE_BYTES + 1]
    }

    fn before_proof(&mut self, _: &Identity) -> Result<(), LoginError> {
        Ok(())
    }

    fn proved(&mut self, _: &Identity) {}

    fn has_session(&mut self, _: &[u8; 6], tsih: u16) -> bool {
        tsih == 1
    }

    fn establish(&mut self, _: &Identity) -> Result<u16, LoginError> {
        Ok(1)
    }
}

fn login_header(flags: u8) -> Vec<u8> {
    let mut header = Header::new(opcode::LOGIN, 1).immediate();
    header.flags = flags;
    let mut bytes = Vec::new();
    cairn_proto_iscsi::pdu::put_header(&mut bytes, &header, false);
    bytes
}

/// A login of several requests: each a header and the text up to the next.
pub(crate) fn login(data: &[u8]) {
    let (secured, mut rest) = match data {
        [first, rest @ ..] => (first & 1 == 1, rest),
        [] => return,
    };
    let mut gate = Gate(secured);
    let mut login = Login::default();
    let mut out = Vec::new();
    while let Some(header) = Header::parse(rest) {
        let body = &rest[HEADER_BYTES..];
        let (text, more) = body.split_at((header.data_bytes() as usize).min(body.len()));
        match login.receive(&header, text, &mut gate, &mut out) {
            Step::More => {}
            // No login succeeds without a proof: the secret is not in any input.
            Step::Done(done) => {
                assert!(!secured, "a login without a proof");
                assert!(done.operational.first_burst <= done.operational.max_burst);
                break;
            }
            Step::Failed(_) => break,
        }
        rest = more;
    }
    assert_eq!(out.len() % 4, 0);
    let _ = text::parse(data);
}

pub(crate) fn login_seeds() -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    for (key, value) in [
        ("InitiatorName", "iqn.2000-01.example:me"),
        ("TargetName", "iqn.2026-11.io.cairn:v.lun"),
        ("HeaderDigest", "CRC32C,None"),
        ("MaxRecvDataSegmentLength", "262144"),
        ("AuthMethod", "CHAP,None"),
        ("CHAP_A", "5,7"),
    ] {
        text::put(&mut keys, key, value);
    }
    [(0u8, 0x87u8), (0, 0x81), (1, 0x81), (1, 0x40)]
        .into_iter()
        .map(|(first, flags)| {
            let mut header = login_header(flags);
            header[6..8].copy_from_slice(&(keys.len() as u16).to_be_bytes());
            [&[first][..], &header, &keys].concat()
        })
        .collect()
}

/// Headers of a session, one after the other. Whatever comes, no data is requested beyond the
/// announced amount.
pub(crate) fn session(data: &[u8]) {
    let mut operational = Operational::default();
    operational.initial_r2t = false;
    let login = LoggedIn {
        identity: Identity::default(),
        tsih: 1,
        connection: 0,
        operational,
        command_number: 1,
        status_number: 1,
    };
    let mut session = Session::new(&login);
    let mut out = Vec::new();
    for bytes in data.chunks_exact(HEADER_BYTES) {
        let Some(header) = Header::parse(bytes) else { break };
        let Ok(event) = session.receive(&header) else { break };
        assert!(header.data_bytes() <= RECEIVE_SEGMENT_BYTES_MAX);
        match event {
            Event::Command(request) => {
                assert!(session.has_task(request.tag));
                if request.writes {
                    session.begin(request.tag, request.expected.min(1 << 20));
                } else {
                    session.respond(request.tag, 0, &[], Residual::default(), 0, &mut out);
                }
            }
            Event::Data(data) => assert!(data.wanted <= data.bytes),
            Event::BadData { tag } => session.respond(tag, 2, &[0; 18], Residual::default(), 0, &mut out),
            Event::Ping => session.pong(&header, &[], &mut out),
            Event::Reject(reason) => session.reject(&header, reason, &mut out),
            Event::Management(_) | Event::Text | Event::Logout { .. } | Event::Ignore => {}
        }
        if let Wants::Solicit(bytes) = session.wants(header.tag()) {
            session.solicit(header.tag(), bytes, &mut out);
        }
        out.clear();
    }
}

pub(crate) fn session_seeds() -> Vec<Vec<u8>> {
    let mut write = Vec::new();
    let mut command = Header::new(opcode::SCSI_COMMAND, 5).with_word(0, 4096).with_word(1, 1);
    command.flags = 0xa0;
    cairn_proto_iscsi::pdu::put_header(&mut write, &command, false);
    let data = Header::new(opcode::DATA_OUT, 5).with_data(4096).with_word(0, 1);
    cairn_proto_iscsi::pdu::put_header(&mut write, &data, false);
    for kind in [opcode::NOP_OUT, opcode::TASK_MANAGEMENT, opcode::TEXT, opcode::LOGOUT, opcode::SNACK] {
        cairn_proto_iscsi::pdu::put_header(
            &mut write,
            &Header::new(kind, 6).with_word(1, 2).immediate(),
            false,
        );
    }
    vec![write]
}

/// CDBs of 16 bytes and the parameters after them. Operations on the medium are within the unit.
pub(crate) fn cdb(data: &[u8]) {
    let geometry = Geometry {
        block_bytes: 512,
        blocks: 1 << 20,
        physical_bytes: 4096,
        read_only: false,
        thin: true,
        atomic_bytes: 1 << 20,
    };
    let description =
        Description { name: "v/lun".to_owned(), id: 1, ports: 1, removable: true, write_cache: true };
    let mut unit = LogicalUnit::new(description, geometry, ReservationState::default());
    let port = TargetPort { target: "iqn.2026-11.io.cairn:v.lun".to_owned(), number: 1 };
    unit.attach(Nexus(1), "a,i,0x1".to_owned(), port);
    for (turn, chunk) in data.chunks(80).enumerate() {
        let mut cdb = [0; 16];
        let length = chunk.len().min(16);
        cdb[..length].copy_from_slice(&chunk[..length]);
        let _ = decode(&cdb);
        let parameters = &chunk[length..];
        let expected = u32::from(cdb[15]) * 512;
        let plan = match unit.receive(Nexus(1), &[0; 8], &cdb, expected) {
            Plan::Parameters(wanted, command) => {
                let wanted = parameters.len().min(wanted as usize);
                unit.parameters(Nexus(1), &command, &parameters[..wanted]).plan
            }
            plan => plan,
        };
        if let Plan::Medium(medium) = plan {
            within(&medium);
        }
        if turn % 7 == 6 {
            unit.reset();
        }
    }
}

fn within(medium: &Medium) {
    let end = match medium {
        Medium::Read { lba, blocks }
        | Medium::Write { lba, blocks, .. }
        | Medium::Verify { lba, blocks, .. }
        | Medium::OrWrite { lba, blocks, .. }
        | Medium::WriteAtomic { lba, blocks, .. }
        | Medium::CompareAndWrite { lba, blocks, .. } => lba + u64::from(*blocks),
        Medium::WriteSame { lba, blocks, .. } | Medium::Prefetch { lba, blocks } => lba + blocks,
        Medium::Unmap(list) => list.iter().map(|(lba, blocks)| lba + u64::from(*blocks)).max().unwrap_or(0),
        Medium::LbaStatus { lba, .. } => *lba,
        Medium::Synchronize { .. } | Medium::Copy(_) => 0,
    };
    assert!(end <= 1 << 20, "{medium:?} lies beyond the unit");
    assert!(medium.data_out_bytes(512) <= 2 * TRANSFER_BYTES_MAX);
}

pub(crate) fn cdb_seeds() -> Vec<Vec<u8>> {
    let opcodes = [
        0x00u8, 0x03, 0x12, 0x15, 0x1a, 0x1b, 0x1e, 0x25, 0x28, 0x2a, 0x41, 0x42, 0x5e, 0x5f, 0x83, 0x84,
        0x89, 0x8a, 0x93, 0x9e, 0xa0, 0xa3,
    ];
    opcodes
        .iter()
        .map(|opcode| [&[*opcode, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 24, 0, 1][..], &[0; 64]].concat())
        .collect()
}
