//! An initiator that sends what the test tells it to, right or wrong.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use cairn_proto_iscsi::pdu::{self, HEADER_BYTES, Header, opcode, padding};

/// A connection in full feature phase.
pub struct Initiator {
    pub stream: TcpStream,
    pub command_number: u32,
    digests: bool,
}

/// A target's answer: header and data.
pub type Said = (Header, Vec<u8>);

impl Initiator {
    /// Logs in without a proof. `isid` distinguishes ports of the initiator. The error is the
    /// status of the login response.
    pub fn login(portal: &str, target: &str, isid: u8, digests: bool) -> Result<Self, u16> {
        let digest = if digests { "CRC32C" } else { "None" };
        let keys = format!("HeaderDigest={digest}\0DataDigest={digest}\0InitialR2T=Yes\0");
        let initiator = Self::login_with(portal, target, isid, &keys)?;
        Ok(Self { digests, ..initiator })
    }

    /// The same with other keys than those of digests.
    pub fn login_with(portal: &str, target: &str, isid: u8, keys: &str) -> Result<Self, u16> {
        let text = format!("InitiatorName=iqn.2000-01.example:test\0TargetName={target}\0{keys}");
        let mut stream = TcpStream::connect(portal).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut header = Header::new(opcode::LOGIN, 1).immediate().with_word(1, 1);
        header.flags = 0x87;
        header.lun = [0x80, 0, 0, 1, 0, isid, 0, 0];
        let mut bytes = Vec::new();
        pdu::put(&mut bytes, header, text.as_bytes(), false, false);
        stream.write_all(&bytes).unwrap();
        let mut initiator = Self { stream, command_number: 1, digests: false };
        let (answer, _) = initiator.receive().expect("a login is answered");
        assert_eq!(answer.opcode(), opcode::LOGIN_RESPONSE);
        match (answer.word(4) >> 16) as u16 {
            0 => Ok(initiator),
            status => Err(status),
        }
    }

    /// Sends a PDU with its number.
    pub fn send(&mut self, header: Header, data: &[u8]) {
        let mut bytes = Vec::new();
        pdu::put(&mut bytes, header.with_word(1, self.command_number), data, self.digests, self.digests);
        self.stream.write_all(&bytes).unwrap();
        if !header.is_immediate() && header.opcode() != opcode::DATA_OUT {
            self.command_number += 1;
        }
    }

    /// Sends a SCSI command; `flags` in addition to F.
    pub fn command(&mut self, tag: u32, cdb: &[u8; 16], flags: u8, expected: u32, data: &[u8]) {
        let mut header = Header::new(opcode::SCSI_COMMAND, tag).with_word(0, expected).with_cdb(cdb);
        header.flags = 0x80 | flags;
        self.send(header, data);
    }

    /// The next PDU. `None` at the end.
    pub fn receive(&mut self) -> Option<Said> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).ok()?;
        let header = Header::parse(&header)?;
        let length = header.data_bytes() as usize;
        let digest = if self.digests { 4 } else { 0 };
        let mut rest = vec![0; digest + length + padding(length) + if length > 0 { digest } else { 0 }];
        self.stream.read_exact(&mut rest).ok()?;
        Some((header, rest[digest..digest + length].to_vec()))
    }

    /// The SCSI status of the next response; sense key and codes with CHECK CONDITION.
    pub fn status(&mut self) -> (u8, Vec<u8>) {
        let (header, data) = self.receive().expect("a command is answered");
        assert_eq!(header.opcode(), opcode::SCSI_RESPONSE, "{header:?}");
        let sense = data.get(2..).unwrap_or_default();
        let codes = if sense.len() >= 14 { vec![sense[2], sense[12], sense[13]] } else { Vec::new() };
        (header.detail[1], codes)
    }

    /// True when the unit answers.
    pub fn is_served(&mut self) -> bool {
        self.command(77, &[0; 16], 0, 0, &[]);
        self.receive().is_some_and(|(header, _)| header.opcode() == opcode::SCSI_RESPONSE)
    }

    /// True when the target has closed the connection, after any other data.
    pub fn is_closed(&mut self) -> bool {
        while self.receive().is_some() {}
        // A timeout is not the end.
        matches!(self.stream.read(&mut [0; 1]), Ok(0))
            || matches!(self.stream.read(&mut [0; 1]), Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset)
    }
}

/// WRITE (10) or READ (10).
pub fn transfer(code: u8, lba: u32, blocks: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = code;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
