//! Limits on a peer's requests, and the behaviour beyond them.

/// The longest data segment of a PDU that a target takes in full feature phase, declared as
/// `MaxRecvDataSegmentLength`. A longer one ends the connection.
pub const RECEIVE_SEGMENT_BYTES_MAX: u32 = 256 << 10;

/// The longest data segment before full feature phase (RFC 7143, section 13.12: the default). A
/// longer one ends the connection.
pub const LOGIN_SEGMENT_BYTES_MAX: u32 = 8192;

/// All text of one negotiation step, over several PDUs with the C bit. More ends the login.
pub const LOGIN_TEXT_BYTES_MAX: usize = 64 << 10;

/// The longest value of a key (RFC 7143, section 6.1: 255, or 8192 for CHAP and names). A longer
/// one is refused.
pub const VALUE_BYTES_MAX: usize = 8192;

/// The longest iSCSI name of an initiator (RFC 7143, section 4.2.7.1), in bytes. A longer one is
/// refused: it would be stored with its reservations.
pub const NAME_BYTES_MAX: usize = 223;

/// Keys in one text; more ends the login.
pub const KEYS_MAX: usize = 128;

/// Login requests in one login; more ends it.
pub const LOGIN_REQUESTS_MAX: u32 = 64;

/// Our wish for `MaxBurstLength`, in bytes.
pub const BURST_BYTES: u32 = 1 << 20;

/// Our wish for `FirstBurstLength`, in bytes: the data that an initiator may send unasked with a
/// command.
pub const FIRST_BURST_BYTES: u32 = 64 << 10;

/// Commands that an initiator may have in flight at once; `MaxCmdSN` announces it, and more are
/// ignored (RFC 7143, section 4.2.2.1).
pub const COMMAND_WINDOW: u32 = 128;

/// Immediate commands (they take no place in the window) under way at once; one more is rejected.
pub const IMMEDIATE_COMMANDS_MAX: usize = 16;

/// The longest transfer of one command, in bytes: MAXIMUM TRANSFER LENGTH of the Block Limits page.
/// A longer one gets INVALID FIELD IN CDB.
pub const TRANSFER_BYTES_MAX: u64 = 32 << 20;

/// The longest parameter list of a command other than reads and writes. A longer one gets PARAMETER
/// LIST LENGTH ERROR.
pub const PARAMETER_BYTES_MAX: u32 = 64 << 10;

/// Blocks that COMPARE AND WRITE compares at most.
pub const COMPARE_BLOCKS_MAX: u8 = 255;

/// Blocks of all descriptors of one UNMAP.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;

/// Descriptors of one UNMAP.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// Registrations of persistent reservations on one logical unit; one more gets INSUFFICIENT
/// REGISTRATION RESOURCES.
pub const REGISTRATIONS_MAX: usize = 128;

/// Unit attentions that wait for one nexus; of more the oldest are dropped.
pub const ATTENTIONS_MAX: usize = 8;

/// Target descriptors in one EXTENDED COPY.
pub const COPY_TARGETS_MAX: u16 = 8;

/// Segment descriptors in one EXTENDED COPY.
pub const COPY_SEGMENTS_MAX: u16 = 16;

/// Blocks of one segment of EXTENDED COPY come in a field of 16 bits.
pub const COPY_SEGMENT_BLOCKS_MAX: u32 = 65_535;

/// Results of EXTENDED COPY that are remembered for RECEIVE COPY RESULTS, for each nexus; of more
/// the oldest are dropped.
pub const COPY_RESULTS_MAX: usize = 8;

const _: () = assert!(FIRST_BURST_BYTES <= BURST_BYTES);
const _: () = assert!(LOGIN_SEGMENT_BYTES_MAX <= RECEIVE_SEGMENT_BYTES_MAX);
const _: () = assert!(BURST_BYTES as u64 <= TRANSFER_BYTES_MAX);
