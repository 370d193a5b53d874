//! The codecs of NBD, on both sides, without a socket.

use cairn_proto_nbd::constants::*;
use cairn_proto_nbd::{
    Catalog, ClientHandshake, ClientStep, ClientWishes, Context, ContextKind, Decoded, ExportDescription,
    ExportState, Handshake, NbdError, Negotiated, Refusal, ReplyMode, ReplyTo, StatusExtent, Step, TlsPolicy,
    Violation, decode_reply, decode_request, put_block_status, put_block_status_request, put_error,
    put_read_header, put_request, put_success,
};

const MODES: [ReplyMode; 3] = [ReplyMode::Simple, ReplyMode::Structured, ReplyMode::Extended];

/// Two exports, one of them the default.
struct Shelf;

impl Catalog for Shelf {
    fn list(&mut self) -> Vec<(String, String)> {
        vec![("v/plain".to_owned(), "about it".to_owned()), ("v/other".to_owned(), String::new())]
    }

    fn describe(&mut self, name: &str) -> Result<ExportDescription, (Refusal, String)> {
        if !matches!(name, "" | "v/plain" | "v/other") {
            return Err((Refusal::Unknown, format!("there is no {name:?}")));
        }
        Ok(ExportDescription {
            name: "v/plain".to_owned(),
            description: "about it".to_owned(),
            size: 1 << 30,
            read_only: name == "v/other",
            multi_conn: true,
            block_minimum: 1,
            block_preferred: 4096,
            snapshots: vec!["s1".to_owned(), "s2".to_owned()],
        })
    }

    fn attach(&mut self, name: &str) -> Result<ExportDescription, (Refusal, String)> {
        self.describe(name)
    }
}

/// The result of a negotiation: all answers, how it ended, and the bytes taken.
fn negotiate(data: &[u8], tls: TlsPolicy, piece: usize) -> (Vec<u8>, Step, usize) {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(tls, &mut out);
    let (mut taken, mut here) = (0, piece.min(data.len()));
    loop {
        let (count, step) = handshake.receive(&data[taken..here], &mut Shelf, &mut out);
        assert!(count <= here - taken, "more was taken than there was");
        taken += count;
        match step {
            Step::Again => assert!(count > 0, "a message of no bytes was handled"),
            Step::More if here == data.len() => return (out, step, taken),
            Step::More => here = (here + piece).min(data.len()),
            Step::StartTls => handshake.tls_started(),
            // A wrong magic is known before all of it has arrived, and is then reported in part.
            Step::Close(Violation::OptionMagic { .. }) => {
                return (out, Step::Close(Violation::OptionMagic { found: 0 }), taken);
            }
            step => return (out, step, taken),
        }
    }
}

/// The answers do not depend on how the bytes were split on their way. (Bytes after a request for
/// TLS in the same piece end the session, so that policy is tried with whole input alone.)
pub(crate) fn handshake(data: &[u8]) {
    let whole = negotiate(data, TlsPolicy::Unavailable, usize::MAX);
    for piece in [1, 7] {
        assert!(
            negotiate(data, TlsPolicy::Unavailable, piece) == whole,
            "pieces are answered in another way"
        );
    }
    for tls in [TlsPolicy::Offered, TlsPolicy::Required] {
        negotiate(data, tls, usize::MAX);
    }
}

fn contexts() -> Vec<Context> {
    let kinds = [ContextKind::Allocation, ContextKind::ChangedSince("s1".to_owned())];
    (1..).zip(kinds).map(|(id, kind)| Context { id, kind }).collect()
}

/// Request after request, as a session takes them.
pub(crate) fn requests(data: &[u8]) {
    for mode in MODES {
        for read_only in [false, true] {
            let negotiated = Negotiated { mode, contexts: contexts() };
            let export = ExportState { size: 1 << 30, read_only, fast_zeroes: !read_only };
            let mut input = data;
            while let Decoded::Request(count, request) = decode_request(input, &negotiated, export) {
                assert!(
                    (1..=input.len()).contains(&count),
                    "a request takes some of the bytes that there are"
                );
                let payload = usize::try_from(request.payload_bytes).unwrap_or(usize::MAX);
                let Some(rest) = input[count..].get(payload..) else { break };
                input = rest;
            }
        }
    }
}

/// A server's bytes, to a client in each mode: the negotiation, then replies.
pub(crate) fn client(data: &[u8]) {
    for mode in MODES {
        let contexts = vec!["base:allocation".to_owned(), "qemu:dirty-bitmap:s1".to_owned()];
        let wishes = ClientWishes { export: "v/plain".to_owned(), mode, contexts };
        let mut handshake = ClientHandshake::new(wishes);
        let (mut out, mut input) = (Vec::new(), data);
        while let Ok((count, step)) = handshake.receive(input, &mut out) {
            input = &input[count..];
            match step {
                ClientStep::Again => assert!(count > 0, "a message of no bytes was handled"),
                ClientStep::More => break,
                ClientStep::Ready(offer) => {
                    replies(input, offer.mode);
                    break;
                }
            }
        }
        replies(data, mode);
    }
}

fn replies(mut input: &[u8], mode: ReplyMode) {
    while let Ok(Some((count, _))) = decode_reply(input, mode) {
        assert!((1..=input.len()).contains(&count), "a reply takes some of the bytes that there are");
        input = &input[count..];
    }
}

fn option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend(NBD_OPTS_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

fn counted(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

/// A client's bytes until it is admitted: every option once, in the requested mode.
pub(crate) fn hello(export: &str, mode: ReplyMode, with_contexts: bool) -> Vec<u8> {
    let mut out = (NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES).to_be_bytes().to_vec();
    match mode {
        ReplyMode::Simple => {}
        ReplyMode::Structured => option(&mut out, NBD_OPT_STRUCTURED_REPLY, &[]),
        ReplyMode::Extended => option(&mut out, NBD_OPT_EXTENDED_HEADERS, &[]),
    }
    if with_contexts {
        let names = ["base:allocation", "qemu:dirty-bitmap:s1"].map(counted).concat();
        let data = [&counted(export)[..], &2u32.to_be_bytes(), &names].concat();
        option(&mut out, NBD_OPT_SET_META_CONTEXT, &data);
    }
    let infos = [&counted(export)[..], &1u16.to_be_bytes(), &NBD_INFO_NAME.to_be_bytes()].concat();
    option(&mut out, NBD_OPT_GO, &infos);
    out
}

pub(crate) fn handshake_seeds() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for mode in MODES {
        all.push(hello("v/plain", mode, mode != ReplyMode::Simple));
    }
    let mut many = 3u32.to_be_bytes().to_vec();
    option(&mut many, NBD_OPT_LIST, &[]);
    option(&mut many, NBD_OPT_STARTTLS, &[]);
    option(&mut many, NBD_OPT_INFO, &[&counted("v/other")[..], &0u16.to_be_bytes()].concat());
    option(&mut many, NBD_OPT_LIST_META_CONTEXT, &[&counted("v/plain")[..], &0u32.to_be_bytes()].concat());
    option(&mut many, 99, b"unknown");
    option(&mut many, NBD_OPT_ABORT, &[]);
    all.push(many);
    let mut old = 3u32.to_be_bytes().to_vec();
    option(&mut old, NBD_OPT_EXPORT_NAME, b"v/plain");
    all.push(old);
    all
}

/// A few requests of every kind, in one mode.
pub(crate) fn requests_of(mode: ReplyMode) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |command, flags, cookie, offset, length: u64, payload: &[u8]| {
        put_request(&mut out, mode, command, flags, cookie, offset, length);
        out.extend(payload);
    };
    put(NBD_CMD_WRITE, NBD_CMD_FLAG_FUA, 1, 4096, 12, b"twelve bytes");
    put(NBD_CMD_READ, 0, 2, 4000, 300, &[]);
    put(NBD_CMD_FLUSH, 0, 3, 0, 0, &[]);
    put(NBD_CMD_TRIM, 0, 4, 8192, 65536, &[]);
    put(NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_NO_HOLE, 5, 100, 5000, &[]);
    put(NBD_CMD_CACHE, 0, 6, 0, 1 << 20, &[]);
    put(NBD_CMD_BLOCK_STATUS, 0, 7, 0, 1 << 24, &[]);
    put(NBD_CMD_READ, 0, 8, u64::MAX - 5, 4096, &[]);
    if mode == ReplyMode::Extended {
        put_block_status_request(&mut out, NBD_CMD_FLAG_REQ_ONE, 9, 0, 1 << 20, &[1, 2]);
    }
    put_request(&mut out, mode, NBD_CMD_DISC, 0, 10, 0, 0);
    out
}

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    MODES.map(requests_of).to_vec()
}

pub(crate) fn client_seeds() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for mode in MODES {
        let said = hello("v/plain", mode, mode != ReplyMode::Simple);
        let (mut out, step, _) = negotiate(&said, TlsPolicy::Unavailable, usize::MAX);
        assert!(matches!(step, Step::Transmit(_)), "a good hello is let in");
        let to = |cookie| ReplyTo { cookie, offset: 0 };
        put_success(&mut out, mode, to(1));
        put_error(&mut out, mode, to(2), NbdError::Invalid, "no");
        if mode != ReplyMode::Simple {
            let extents = [StatusExtent { length: 4096, flags: 0 }, StatusExtent { length: 8192, flags: 3 }];
            put_block_status(&mut out, mode, to(3), true, 1, &extents);
        }
        put_read_header(&mut out, mode, to(4), 0, 5);
        out.extend(b"bytes");
        all.push(out);
    }
    all
}
