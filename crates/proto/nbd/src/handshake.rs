//! The server's side of the fixed newstyle negotiation: bytes in, bytes and steps out.
//!
//! The machine knows no sockets. Its caller passes the input to it, sends the bytes that it
//! appends, and asks a [`Catalog`] about exports. It never keeps input: an incomplete message has
//! to be passed again with more.

use crate::constants::*;
use crate::context::{self, Context};
use crate::cursor::{Cursor, Put, clipped, wire_length};
use crate::error::Violation;
use crate::limits::{
    CONTEXTS_MAX, OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX, PAYLOAD_BYTES_MAX, STRING_BYTES_MAX,
};

/// The server's TLS policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPolicy {
    /// Without a certificate: `NBD_OPT_STARTTLS` is refused.
    Unavailable,
    /// Clients may ask for it.
    Offered,
    /// No other option is answered before it.
    Required,
}

/// The information about an export for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportDescription {
    /// The canonical name; differs from the requested one for the default export.
    pub name: String,
    /// For people.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// A flush on one connection covers writes completed on all.
    pub multi_conn: bool,
    /// The smallest block in bytes; a power of two.
    pub block_minimum: u32,
    /// The block that is fastest, in bytes.
    pub block_preferred: u32,
    /// Snapshots whose changed blocks can be asked for.
    pub snapshots: Vec<String>,
}

/// Why an export is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `NBD_REP_ERR_UNKNOWN`: there is no export of this name.
    Unknown,
    /// `NBD_REP_ERR_POLICY`: not for this client, or not now (too many sessions).
    Policy,
    /// `NBD_REP_ERR_SHUTDOWN`: the server or the device is going away.
    Shutdown,
    /// `NBD_REP_ERR_PLATFORM`: it failed to open.
    Failed,
    /// `NBD_REP_ERR_TLS_REQD`: only after TLS has started.
    NeedsTls,
}

impl Refusal {
    fn reply(self) -> u32 {
        match self {
            Refusal::Unknown => NBD_REP_ERR_UNKNOWN,
            Refusal::Policy => NBD_REP_ERR_POLICY,
            Refusal::Shutdown => NBD_REP_ERR_SHUTDOWN,
            Refusal::Failed => NBD_REP_ERR_PLATFORM,
            Refusal::NeedsTls => NBD_REP_ERR_TLS_REQD,
        }
    }
}

/// The known exports. Messages of refusals go to the client unchanged.
pub trait Catalog {
    /// Names and descriptions.
    fn list(&mut self) -> Vec<(String, String)>;
    /// The information about the export for a client; "" means the default one.
    fn describe(&mut self, name: &str) -> Result<ExportDescription, (Refusal, String)>;
    /// The same, when the client begins to use it: the export is opened and kept for the session.
    fn attach(&mut self, name: &str) -> Result<ExportDescription, (Refusal, String)>;
}

/// How replies look on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyMode {
    /// Only simple replies.
    Simple,
    /// `NBD_OPT_STRUCTURED_REPLY` was agreed.
    Structured,
    /// `NBD_OPT_EXTENDED_HEADERS` was agreed.
    Extended,
}

/// The negotiated parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// How replies look.
    pub mode: ReplyMode,
    /// The contexts of block status.
    pub contexts: Vec<Context>,
}

/// The caller's next step, after sending the appended bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Bring more bytes.
    More,
    /// A message was handled; look at the rest of the input.
    Again,
    /// Start TLS, then call [`Handshake::tls_started`].
    StartTls,
    /// The negotiation is over and requests follow.
    Transmit(Negotiated),
    /// The client sent a good-bye.
    Goodbye,
    /// Close: nothing can be answered.
    Close(Violation),
}

/// The state of a negotiation.
#[derive(Debug)]
pub struct Handshake {
    tls: TlsPolicy,
    encrypted: bool,
    client_flags: Option<u32>,
    options_seen: u32,
    skip_bytes: usize,
    mode: ReplyMode,
    contexts: Vec<Context>,
    contexts_of: Option<String>,
}

impl Handshake {
    /// A negotiation at its start; appends the server's greeting.
    pub fn new(tls: TlsPolicy, out: &mut Vec<u8>) -> Self {
        out.put_u64(NBD_MAGIC);
        out.put_u64(NBD_OPTS_MAGIC);
        out.put_u16(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES);
        Self {
            tls,
            encrypted: false,
            client_flags: None,
            options_seen: 0,
            skip_bytes: 0,
            mode: ReplyMode::Simple,
            contexts: Vec::new(),
            contexts_of: None,
        }
    }

    /// TLS has started. Everything negotiated in the clear is void, as an attacker could have
    /// changed it.
    pub fn tls_started(&mut self) {
        self.encrypted = true;
        self.mode = ReplyMode::Simple;
        self.contexts.clear();
        self.contexts_of = None;
    }

    /// Handles at most one message from the front of `input`; returns how many bytes it took.
    pub fn receive(&mut self, input: &[u8], catalog: &mut dyn Catalog, out: &mut Vec<u8>) -> (usize, Step) {
        if self.skip_bytes > 0 {
            let skipped = self.skip_bytes.min(input.len());
            self.skip_bytes -= skipped;
            return (skipped, if self.skip_bytes > 0 { Step::More } else { Step::Again });
        }
        let mut cursor = Cursor::new(input);
        let Some(client_flags) = self.client_flags else {
            return match cursor.u32() {
                None => (0, Step::More),
                Some(flags) => (4, self.take_client_flags(flags)),
            };
        };
        let (Some(magic), Some(option), Some(length)) = (cursor.u64(), cursor.u32(), cursor.u32()) else {
            // A wrong magic is known early, and a client that speaks another protocol is not kept
            // waiting.
            let magic = NBD_OPTS_MAGIC.to_be_bytes();
            if !input.iter().zip(&magic).all(|(found, expected)| found == expected) {
                let mut start = [0; 8];
                start.iter_mut().zip(input).for_each(|(place, byte)| *place = *byte);
                return (0, Step::Close(Violation::OptionMagic { found: u64::from_be_bytes(start) }));
            }
            return (0, Step::More);
        };
        if magic != NBD_OPTS_MAGIC {
            return (0, Step::Close(Violation::OptionMagic { found: magic }));
        }
        if client_flags & NBD_FLAG_C_FIXED_NEWSTYLE == 0 && option != NBD_OPT_EXPORT_NAME {
            return (0, Step::Close(Violation::NotFixedNewstyle { option }));
        }
        if length > OPTION_SKIP_BYTES_MAX || (length > OPTION_BYTES_MAX && option == NBD_OPT_EXPORT_NAME) {
            return (0, Step::Close(Violation::OptionTooLong { option, length }));
        }
        if length > OPTION_BYTES_MAX {
            self.skip_bytes = usize::try_from(length).unwrap_or(usize::MAX);
            refuse(out, option, NBD_REP_ERR_TOO_BIG, "the option is too long");
            return (OPTION_HEADER_BYTES, self.counted(Step::Again));
        }
        let Some(data) = cursor.take(usize::try_from(length).unwrap_or(usize::MAX)) else {
            return (0, Step::More);
        };
        let rest_is_empty = cursor.is_empty();
        let step = self.option(option, data, catalog, out);
        let step = match step {
            Step::StartTls if !rest_is_empty => Step::Close(Violation::PlainAfterStartTls),
            step => step,
        };
        (OPTION_HEADER_BYTES + data.len(), self.counted(step))
    }

    fn take_client_flags(&mut self, flags: u32) -> Step {
        if flags & !(NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES) != 0 {
            return Step::Close(Violation::UnknownClientFlags { flags });
        }
        self.client_flags = Some(flags);
        Step::Again
    }

    fn counted(&mut self, step: Step) -> Step {
        self.options_seen += 1;
        match step {
            Step::Again if self.options_seen >= OPTIONS_MAX => {
                Step::Close(Violation::TooManyOptions { max: OPTIONS_MAX })
            }
            step => step,
        }
    }

    fn option(&mut self, option: u32, data: &[u8], catalog: &mut dyn Catalog, out: &mut Vec<u8>) -> Step {
        let needs_tls = self.tls == TlsPolicy::Required && !self.encrypted;
        if needs_tls && !matches!(option, NBD_OPT_STARTTLS | NBD_OPT_ABORT) {
            if option == NBD_OPT_EXPORT_NAME {
                return Step::Close(Violation::ExportNameRefused);
            }
            refuse(out, option, NBD_REP_ERR_TLS_REQD, "this server wants TLS first");
            return Step::Again;
        }
        match option {
            NBD_OPT_EXPORT_NAME => return self.export_name(data, catalog, out),
            NBD_OPT_ABORT => {
                reply(out, option, NBD_REP_ACK, &[]);
                return Step::Goodbye;
            }
            NBD_OPT_LIST => list(data, catalog, out),
            NBD_OPT_STARTTLS => return self.start_tls(data, out),
            NBD_OPT_INFO | NBD_OPT_GO => return self.info_or_go(option, data, catalog, out),
            NBD_OPT_STRUCTURED_REPLY => self.structured_reply(data, out),
            NBD_OPT_EXTENDED_HEADERS => self.extended_headers(data, out),
            NBD_OPT_LIST_META_CONTEXT | NBD_OPT_SET_META_CONTEXT => {
                self.meta_context(option, data, catalog, out);
            }
            _ => refuse(out, option, NBD_REP_ERR_UNSUP, "this option is not known here"),
        }
        Step::Again
    }

    fn export_name(&mut self, data: &[u8], catalog: &mut dyn Catalog, out: &mut Vec<u8>) -> Step {
        let refused = Step::Close(Violation::ExportNameRefused);
        let Ok(name) = std::str::from_utf8(data) else { return refused };
        if name.len() > STRING_BYTES_MAX {
            return refused;
        }
        let Ok(export) = catalog.attach(name) else { return refused };
        out.put_u64(export.size);
        out.put_u16(self.transmission_flags(&export));
        if self.client_flags.unwrap_or(0) & NBD_FLAG_C_NO_ZEROES == 0 {
            out.put(&[0; 124]);
        }
        self.transmit(name)
    }

    fn transmit(&mut self, name: &str) -> Step {
        let mut contexts = std::mem::take(&mut self.contexts);
        if self.contexts_of.as_deref() != Some(name) {
            contexts.clear();
        }
        Step::Transmit(Negotiated { mode: self.mode, contexts })
    }

    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let option = NBD_OPT_STARTTLS;
        if !data.is_empty() {
            refuse(out, option, NBD_REP_ERR_INVALID, "this option carries no data");
        } else if self.encrypted {
            refuse(out, option, NBD_REP_ERR_INVALID, "TLS is in use already");
        } else if self.tls == TlsPolicy::Unavailable {
            refuse(out, option, NBD_REP_ERR_POLICY, "this server has no certificate for TLS");
        } else {
            reply(out, option, NBD_REP_ACK, &[]);
            return Step::StartTls;
        }
        Step::Again
    }

    fn structured_reply(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let option = NBD_OPT_STRUCTURED_REPLY;
        if !data.is_empty() {
            refuse(out, option, NBD_REP_ERR_INVALID, "this option carries no data");
        } else if self.mode == ReplyMode::Extended {
            refuse(out, option, NBD_REP_ERR_EXT_HEADER_REQD, "extended headers are in use already");
        } else {
            self.mode = ReplyMode::Structured;
            reply(out, option, NBD_REP_ACK, &[]);
        }
    }

    fn extended_headers(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let option = NBD_OPT_EXTENDED_HEADERS;
        if !data.is_empty() {
            refuse(out, option, NBD_REP_ERR_INVALID, "this option carries no data");
        } else if self.mode == ReplyMode::Extended {
            refuse(out, option, NBD_REP_ERR_INVALID, "extended headers are in use already");
        } else {
            self.mode = ReplyMode::Extended;
            reply(out, option, NBD_REP_ACK, &[]);
        }
    }

    fn info_or_go(&mut self, option: u32, data: &[u8], catalog: &mut dyn Catalog, out: &mut Vec<u8>) -> Step {
        let Some((name, requests)) = parse_info(data) else {
            refuse(out, option, NBD_REP_ERR_INVALID, "the option is malformed");
            return Step::Again;
        };
        let Some(name) = checked_string(option, name, out) else { return Step::Again };
        let found = if option == NBD_OPT_GO { catalog.attach(name) } else { catalog.describe(name) };
        let export = match found {
            Ok(export) => export,
            Err((refusal, message)) => {
                refuse(out, option, refusal.reply(), &message);
                return Step::Again;
            }
        };
        self.send_information(option, &export, &requests, out);
        reply(out, option, NBD_REP_ACK, &[]);
        if option == NBD_OPT_GO { self.transmit(name) } else { Step::Again }
    }

    fn send_information(&self, option: u32, export: &ExportDescription, requests: &[u16], out: &mut Vec<u8>) {
        let mut data = Vec::with_capacity(16);
        data.put_u16(NBD_INFO_EXPORT);
        data.put_u64(export.size);
        data.put_u16(self.transmission_flags(export));
        reply(out, option, NBD_REP_INFO, &data);

        for (kind, text) in [(NBD_INFO_NAME, &export.name), (NBD_INFO_DESCRIPTION, &export.description)] {
            let wanted = requests.contains(&kind) && (kind == NBD_INFO_NAME || !text.is_empty());
            if wanted && text.len() <= STRING_BYTES_MAX {
                data.clear();
                data.put_u16(kind);
                data.put(text.as_bytes());
                reply(out, option, NBD_REP_INFO, &data);
            }
        }

        // Sent even when not asked for: it costs 14 bytes, and clients that did not ask may ignore
        // it.
        data.clear();
        data.put_u16(NBD_INFO_BLOCK_SIZE);
        data.put_u32(export.block_minimum);
        data.put_u32(export.block_preferred);
        data.put_u32(PAYLOAD_BYTES_MAX);
        reply(out, option, NBD_REP_INFO, &data);
    }

    fn transmission_flags(&self, export: &ExportDescription) -> u16 {
        let mut flags = NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA | NBD_FLAG_SEND_CACHE;
        if export.read_only {
            flags |= NBD_FLAG_READ_ONLY;
        } else {
            flags |= NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO;
        }
        if export.multi_conn {
            flags |= NBD_FLAG_CAN_MULTI_CONN;
        }
        if self.mode != ReplyMode::Simple {
            flags |= NBD_FLAG_SEND_DF;
        }
        if self.mode == ReplyMode::Extended {
            flags |= NBD_FLAG_BLOCK_STATUS_PAYLOAD;
        }
        flags
    }

    fn meta_context(&mut self, option: u32, data: &[u8], catalog: &mut dyn Catalog, out: &mut Vec<u8>) {
        let set = option == NBD_OPT_SET_META_CONTEXT;
        if set {
            // A new selection, and a failed one, replaces the old.
            self.contexts.clear();
            self.contexts_of = None;
        }
        if set && self.mode == ReplyMode::Simple {
            refuse(
                out,
                option,
                NBD_REP_ERR_INVALID,
                "negotiate structured replies or extended headers first",
            );
            return;
        }
        let Some((name, queries)) = parse_meta_context(data) else {
            refuse(out, option, NBD_REP_ERR_INVALID, "the option is malformed");
            return;
        };
        let Some(name) = checked_string(option, name, out) else { return };
        // A query that is not text, or is too long, names no context of ours.
        let queries_known: Vec<&str> = queries
            .iter()
            .filter(|query| query.len() <= STRING_BYTES_MAX)
            .filter_map(|query| std::str::from_utf8(query).ok())
            .collect();
        let export = match catalog.describe(name) {
            Ok(export) => export,
            Err((refusal, message)) => {
                refuse(out, option, refusal.reply(), &message);
                return;
            }
        };
        let contexts = if set {
            context::select(&queries_known, &export.snapshots)
        } else if !queries.is_empty() && queries_known.is_empty() {
            Vec::new()
        } else {
            context::matching(&queries_known, &export.snapshots)
        };
        let mut payload = Vec::new();
        for context in &contexts {
            payload.clear();
            payload.put_u32(if set { context.id } else { 0 });
            payload.put(context.name().as_bytes());
            reply(out, option, NBD_REP_META_CONTEXT, &payload);
        }
        reply(out, option, NBD_REP_ACK, &[]);
        if set {
            debug_assert!(contexts.len() <= CONTEXTS_MAX);
            self.contexts = contexts;
            self.contexts_of = Some(name.to_owned());
        }
    }
}

const OPTION_HEADER_BYTES: usize = 16;

fn list(data: &[u8], catalog: &mut dyn Catalog, out: &mut Vec<u8>) {
    if !data.is_empty() {
        refuse(out, NBD_OPT_LIST, NBD_REP_ERR_INVALID, "this option carries no data");
        return;
    }
    let mut payload = Vec::new();
    for (name, description) in catalog.list() {
        if name.len() > STRING_BYTES_MAX {
            continue;
        }
        payload.clear();
        payload.put_u32(wire_length(name.len()));
        payload.put(name.as_bytes());
        if description.len() <= STRING_BYTES_MAX {
            payload.put(description.as_bytes());
        }
        reply(out, NBD_OPT_LIST, NBD_REP_SERVER, &payload);
    }
    reply(out, NBD_OPT_LIST, NBD_REP_ACK, &[]);
}

/// A name that is text of a valid length; otherwise the option is refused.
fn checked_string<'a>(option: u32, name: &'a [u8], out: &mut Vec<u8>) -> Option<&'a str> {
    if name.len() > STRING_BYTES_MAX {
        refuse(out, option, NBD_REP_ERR_TOO_BIG, "the name is longer than 4096 bytes");
        return None;
    }
    match std::str::from_utf8(name) {
        Ok(name) if !name.contains('\0') => Some(name),
        _ => {
            refuse(out, option, NBD_REP_ERR_INVALID, "the name is not UTF-8 text");
            None
        }
    }
}

fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut cursor = Cursor::new(data);
    let name = cursor.counted()?;
    let count = cursor.u16()?;
    let requests = (0..count).map(|_| cursor.u16()).collect::<Option<Vec<u16>>>()?;
    cursor.is_empty().then_some((name, requests))
}

fn parse_meta_context(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut cursor = Cursor::new(data);
    let name = cursor.counted()?;
    let count = cursor.u32()?;
    // Every query takes at least its length, so a false count ends soon.
    let queries = (0..count).map(|_| cursor.counted()).collect::<Option<Vec<&[u8]>>>()?;
    cursor.is_empty().then_some((name, queries))
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.put_u64(NBD_REP_MAGIC);
    out.put_u32(option);
    out.put_u32(kind);
    out.put_u32(wire_length(data.len()));
    out.put(data);
}

fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, message: &str) {
    reply(out, option, kind, clipped(message, STRING_BYTES_MAX).as_bytes());
}
