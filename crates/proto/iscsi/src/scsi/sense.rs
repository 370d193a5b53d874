//! Sense data (SPC-4, section 4.5), and the one table from failures of a device to it.

/// An error in SCSI's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// Sense key.
    pub key: u8,
    /// Additional sense code.
    pub code: u8,
    /// Additional sense code qualifier.
    pub qualifier: u8,
    /// The INFORMATION field: an LBA, or an offset of a miscompare.
    pub information: Option<u64>,
    /// The byte of the CDB that is wrong.
    pub field: Option<u16>,
}

/// Errors of a device, by kind; a front end maps its own errors to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Reading failed.
    Read,
    /// The bytes are damaged: their checksum does not match.
    Damaged,
    /// Writing or flushing failed.
    Write,
    /// No space is left.
    NoSpace,
    /// Past the end: it shrank in between.
    OutOfRange,
    /// It takes no writes.
    ReadOnly,
    /// It is out of service.
    OutOfService,
    /// A request that the device does not take.
    Refused,
}

impl Sense {
    const fn new(key: u8, code: u8, qualifier: u8) -> Self {
        Self { key, code, qualifier, information: None, field: None }
    }

    /// The table of errors: the sense data for a failure of the device.
    pub fn of_failure(failure: Failure) -> Self {
        match failure {
            Failure::Read => Self::UNRECOVERED_READ,
            // "Data integrity": the medium returned other bytes than the written ones.
            Failure::Damaged => Self::new(0x03, 0x11, 0x14),
            Failure::Write => Self::WRITE_ERROR,
            // SPACE ALLOCATION FAILED WRITE PROTECT: thin provisioning's code for it; initiators
            // know not to retry.
            Failure::NoSpace => Self::new(0x07, 0x27, 0x07),
            Failure::OutOfRange => Self::LBA_OUT_OF_RANGE,
            Failure::ReadOnly => Self::WRITE_PROTECTED,
            Failure::OutOfService => Self::NOT_READY,
            Failure::Refused => Self::INVALID_FIELD_IN_CDB,
        }
    }

    pub(crate) const NO_SENSE: Self = Self::new(0x00, 0x00, 0x00);
    pub(crate) const NOT_READY: Self = Self::new(0x02, 0x04, 0x03);
    pub(crate) const NO_MEDIUM: Self = Self::new(0x02, 0x3a, 0x00);
    pub(crate) const UNRECOVERED_READ: Self = Self::new(0x03, 0x11, 0x00);
    pub(crate) const WRITE_ERROR: Self = Self::new(0x03, 0x0c, 0x00);
    pub(crate) const PARAMETER_LIST_LENGTH: Self = Self::new(0x05, 0x1a, 0x00);
    pub(crate) const INVALID_OPCODE: Self = Self::new(0x05, 0x20, 0x00);
    pub(crate) const LBA_OUT_OF_RANGE: Self = Self::new(0x05, 0x21, 0x00);
    /// A field of the CDB is wrong.
    pub const INVALID_FIELD_IN_CDB: Self = Self::new(0x05, 0x24, 0x00);
    pub(crate) const NO_SUCH_UNIT: Self = Self::new(0x05, 0x25, 0x00);
    pub(crate) const INVALID_FIELD_IN_PARAMETERS: Self = Self::new(0x05, 0x26, 0x00);
    pub(crate) const INVALID_RELEASE: Self = Self::new(0x05, 0x26, 0x04);
    pub(crate) const TOO_MANY_TARGETS: Self = Self::new(0x05, 0x26, 0x06);
    pub(crate) const UNSUPPORTED_TARGET: Self = Self::new(0x05, 0x26, 0x07);
    pub(crate) const TOO_MANY_SEGMENTS: Self = Self::new(0x05, 0x26, 0x08);
    pub(crate) const UNSUPPORTED_SEGMENT: Self = Self::new(0x05, 0x26, 0x09);
    pub(crate) const REMOVAL_PREVENTED: Self = Self::new(0x05, 0x53, 0x02);
    pub(crate) const NO_REGISTRATION_RESOURCES: Self = Self::new(0x05, 0x55, 0x04);
    pub(crate) const MODE_CHANGED: Self = Self::new(0x06, 0x2a, 0x01);
    pub(crate) const CAPACITY_CHANGED: Self = Self::new(0x06, 0x2a, 0x09);
    pub(crate) const RESERVATIONS_PREEMPTED: Self = Self::new(0x06, 0x2a, 0x03);
    pub(crate) const RESERVATIONS_RELEASED: Self = Self::new(0x06, 0x2a, 0x04);
    pub(crate) const REGISTRATIONS_PREEMPTED: Self = Self::new(0x06, 0x2a, 0x05);
    pub(crate) const BUS_DEVICE_RESET: Self = Self::new(0x06, 0x29, 0x03);
    pub(crate) const COMMANDS_CLEARED: Self = Self::new(0x06, 0x2f, 0x00);
    pub(crate) const WRITE_PROTECTED: Self = Self::new(0x07, 0x27, 0x00);
    pub(crate) const SOFTWARE_WRITE_PROTECTED: Self = Self::new(0x07, 0x27, 0x02);
    /// A copy manager could not reach the target of a descriptor.
    pub const COPY_TARGET_UNREACHABLE: Self = Self::new(0x0a, 0x0d, 0x02);
    /// A copy was ended: a segment failed.
    pub const COPY_ABORTED: Self = Self::new(0x0a, 0x00, 0x00);
    /// Data of a command came in a wrong order or amount.
    pub const DATA_PHASE: Self = Self::new(0x0b, 0x4b, 0x00);
    /// The sent data differs from the content.
    pub const MISCOMPARE: Self = Self::new(0x0e, 0x1d, 0x00);

    /// The same with an INFORMATION field.
    pub fn at(self, information: u64) -> Self {
        Self { information: Some(information), ..self }
    }

    /// The same, and which byte of the CDB is wrong.
    pub(crate) fn in_byte(self, field: u16) -> Self {
        Self { field: Some(field), ..self }
    }

    /// As bytes: in descriptor format, or in fixed format, whose INFORMATION has 32 bits.
    pub fn encode(self, descriptors: bool) -> Vec<u8> {
        if descriptors {
            let mut bytes = vec![0x72, self.key, self.code, self.qualifier, 0, 0, 0, 0];
            if let Some(information) = self.information {
                bytes[7] = 12;
                bytes.extend_from_slice(&[0x00, 0x0a, 0x80, 0x00]);
                bytes.extend_from_slice(&information.to_be_bytes());
            }
            if let Some(field) = self.field {
                bytes[7] += 8;
                let [high, low] = field.to_be_bytes();
                bytes.extend_from_slice(&[0x02, 0x06, 0, 0, 0xc0, high, low, 0]);
            }
            return bytes;
        }
        let mut bytes = vec![0; 18];
        bytes[0] = 0x70;
        bytes[2] = self.key;
        bytes[7] = 10;
        bytes[12] = self.code;
        bytes[13] = self.qualifier;
        if let Some(information) = self.information.and_then(|information| u32::try_from(information).ok()) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        if let Some(field) = self.field {
            bytes[15] = 0xc0;
            bytes[16..18].copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }
}
