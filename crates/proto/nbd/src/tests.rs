//! Tests of the codecs: our server and our client agree, hostile bytes do no harm, and cuts of the
//! stream at any place do not matter.

use proptest::prelude::*;

use crate::constants::*;
use crate::limits::{OPTION_BYTES_MAX, OPTIONS_MAX, PAYLOAD_BYTES_MAX};
use crate::{
    Catalog, ClientHandshake, ClientStep, ClientWishes, Command, Context, ContextKind, Decoded,
    ExportDescription, ExportOffer, ExportState, Handshake, HandshakeFailure, NbdError, Negotiated, Refusal,
    ReplyEvent, ReplyMode, ReplyTo, Request, StatusExtent, Step, TlsPolicy, Violation, decode_reply,
    decode_request, put_block_status, put_block_status_request, put_error, put_read_header, put_request,
    put_success,
};

const SIZE: u64 = 1 << 30;
const STATE: ExportState = ExportState { size: SIZE, read_only: false, fast_zeroes: true };
const MODES: [ReplyMode; 3] = [ReplyMode::Simple, ReplyMode::Structured, ReplyMode::Extended];

/// One export "v/a" (also the default) with the snapshots s1 and s2.
struct OneExport;

impl Catalog for OneExport {
    fn list(&mut self) -> Vec<(String, String)> {
        vec![("v/a".into(), "a lun".into()), ("v/b".into(), String::new())]
    }

    fn describe(&mut self, name: &str) -> Result<ExportDescription, (Refusal, String)> {
        match name {
            "" | "v/a" => Ok(ExportDescription {
                name: "v/a".into(),
                description: "a lun".into(),
                size: SIZE,
                read_only: false,
                multi_conn: true,
                block_minimum: 1,
                block_preferred: 4096,
                snapshots: vec!["s1".into(), "s2".into()],
            }),
            _ => Err((Refusal::Unknown, "no such export".into())),
        }
    }

    fn attach(&mut self, name: &str) -> Result<ExportDescription, (Refusal, String)> {
        self.describe(name)
    }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = NBD_OPTS_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn go(name: &str) -> Vec<u8> {
    let mut data = text(name);
    data.extend([0, 2, 0, 1, 0, 2]);
    option(NBD_OPT_GO, &data)
}

fn meta_context(kind: u32, name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = text(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(text(query)));
    option(kind, &data)
}

fn client_flags() -> Vec<u8> {
    3u32.to_be_bytes().to_vec()
}

/// Feeds `input` in pieces cut at `cuts`; returns the output after the greeting, and how it ended.
fn converse(tls: TlsPolicy, input: &[u8], cuts: &[usize]) -> (Vec<u8>, Step) {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(tls, &mut out);
    out.clear();
    let mut waiting = Vec::new();
    let mut from = 0;
    let mut last = Step::More;
    for cut in cuts.iter().copied().chain([input.len()]) {
        waiting.extend_from_slice(&input[from..cut.max(from)]);
        from = cut.max(from);
        loop {
            let (taken, step) = handshake.receive(&waiting, &mut OneExport, &mut out);
            assert!(taken <= waiting.len());
            waiting.drain(..taken);
            last = step;
            match last {
                Step::Again => {}
                Step::More => break,
                Step::StartTls => handshake.tls_started(),
                _ => return (out, last),
            }
        }
    }
    (out, last)
}

/// The types of the replies in `out`, with their data.
fn replies(mut out: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !out.is_empty() {
        assert_eq!(out[..8], NBD_REP_MAGIC.to_be_bytes());
        let kind = u32::from_be_bytes(out[12..16].try_into().unwrap());
        let length = u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize;
        found.push((kind, out[20..20 + length].to_vec()));
        out = &out[20 + length..];
    }
    found
}

fn kinds(out: &[u8]) -> Vec<u32> {
    replies(out).into_iter().map(|(kind, _)| kind).collect()
}

#[test]
fn negotiation_is_the_same_wherever_its_bytes_are_cut() {
    let script = [
        client_flags(),
        option(NBD_OPT_LIST, &[]),
        option(77, b"what is this"),
        option(NBD_OPT_STRUCTURED_REPLY, &[]),
        meta_context(NBD_OPT_LIST_META_CONTEXT, "v/a", &[]),
        meta_context(NBD_OPT_SET_META_CONTEXT, "v/a", &["base:allocation", "qemu:dirty-bitmap:s2", "x:y"]),
        go("nowhere"),
        go("v/a"),
    ]
    .concat();
    let whole = converse(TlsPolicy::Unavailable, &script, &[]);
    let contexts = vec![
        Context { id: 1, kind: ContextKind::Allocation },
        Context { id: 3, kind: ContextKind::ChangedSince("s2".into()) },
    ];
    assert_eq!(whole.1, Step::Transmit(Negotiated { mode: ReplyMode::Structured, contexts }));
    assert_eq!(
        kinds(&whole.0),
        [
            vec![NBD_REP_SERVER, NBD_REP_SERVER, NBD_REP_ACK, NBD_REP_ERR_UNSUP, NBD_REP_ACK],
            vec![NBD_REP_META_CONTEXT, NBD_REP_META_CONTEXT, NBD_REP_META_CONTEXT, NBD_REP_ACK],
            vec![NBD_REP_META_CONTEXT, NBD_REP_META_CONTEXT, NBD_REP_ACK, NBD_REP_ERR_UNKNOWN],
            vec![NBD_REP_INFO, NBD_REP_INFO, NBD_REP_INFO, NBD_REP_INFO, NBD_REP_ACK],
        ]
        .concat()
    );
    for cut in 0..script.len() {
        assert_eq!(converse(TlsPolicy::Unavailable, &script, &[cut]), whole, "cut at {cut}");
    }
    let everywhere: Vec<usize> = (0..script.len()).collect();
    assert_eq!(converse(TlsPolicy::Unavailable, &script, &everywhere), whole);
}

#[test]
fn export_name_sends_zeroes_only_to_those_who_want_them() {
    for (flags, bytes) in [(1u32, 8 + 2 + 124), (3, 8 + 2)] {
        let script = [flags.to_be_bytes().to_vec(), option(NBD_OPT_EXPORT_NAME, b"v/a")].concat();
        let (out, step) = converse(TlsPolicy::Unavailable, &script, &[]);
        assert!(matches!(step, Step::Transmit(_)));
        assert_eq!(out.len(), bytes);
        assert_eq!(out[..8], SIZE.to_be_bytes());
    }
}

#[test]
fn nothing_is_answered_before_tls_when_it_is_required() {
    let script =
        [client_flags(), option(NBD_OPT_LIST, &[]), go("v/a"), option(NBD_OPT_STRUCTURED_REPLY, &[])]
            .concat();
    let (out, step) = converse(TlsPolicy::Required, &script, &[]);
    assert_eq!((kinds(&out), step), (vec![NBD_REP_ERR_TLS_REQD; 3], Step::More));

    let name = [client_flags(), option(NBD_OPT_EXPORT_NAME, b"v/a")].concat();
    assert_eq!(converse(TlsPolicy::Required, &name, &[]).1, Step::Close(Violation::ExportNameRefused));
}

#[test]
fn tls_voids_what_was_agreed_in_the_clear() {
    let before =
        [client_flags(), option(NBD_OPT_STRUCTURED_REPLY, &[]), option(NBD_OPT_STARTTLS, &[])].concat();
    let script = [before.clone(), go("v/a")].concat();
    let (_, step) = converse(TlsPolicy::Offered, &script, &[before.len()]);
    assert_eq!(step, Step::Transmit(Negotiated { mode: ReplyMode::Simple, contexts: Vec::new() }));
}

#[test]
fn bytes_injected_behind_starttls_end_the_session() {
    let script = [client_flags(), option(NBD_OPT_STARTTLS, &[]), go("v/a")].concat();
    assert_eq!(converse(TlsPolicy::Offered, &script, &[]).1, Step::Close(Violation::PlainAfterStartTls));
}

#[test]
fn contexts_of_one_export_do_not_hold_for_another() {
    let script = [
        client_flags(),
        option(NBD_OPT_STRUCTURED_REPLY, &[]),
        meta_context(NBD_OPT_SET_META_CONTEXT, "", &["base:allocation"]),
        go("v/a"),
    ]
    .concat();
    let (_, step) = converse(TlsPolicy::Unavailable, &script, &[]);
    assert_eq!(step, Step::Transmit(Negotiated { mode: ReplyMode::Structured, contexts: Vec::new() }));
}

#[test]
fn contexts_need_structured_replies() {
    let script =
        [client_flags(), meta_context(NBD_OPT_SET_META_CONTEXT, "v/a", &["base:allocation"])].concat();
    assert_eq!(kinds(&converse(TlsPolicy::Unavailable, &script, &[]).0), [NBD_REP_ERR_INVALID]);
}

#[test]
fn structured_replies_after_extended_headers_are_refused_as_the_specification_says() {
    let script = [
        client_flags(),
        option(NBD_OPT_EXTENDED_HEADERS, &[]),
        option(NBD_OPT_STRUCTURED_REPLY, &[]),
        option(NBD_OPT_EXTENDED_HEADERS, &[]),
    ]
    .concat();
    let (out, _) = converse(TlsPolicy::Unavailable, &script, &[]);
    assert_eq!(kinds(&out), [NBD_REP_ACK, NBD_REP_ERR_EXT_HEADER_REQD, NBD_REP_ERR_INVALID]);
}

#[test]
fn long_options_are_skipped_and_longer_ones_end_the_session() {
    let long = vec![7; OPTION_BYTES_MAX as usize + 1];
    let script = [client_flags(), option(NBD_OPT_INFO, &long), option(NBD_OPT_ABORT, &[])].concat();
    let (out, step) = converse(TlsPolicy::Unavailable, &script, &[]);
    assert_eq!((kinds(&out), step), (vec![NBD_REP_ERR_TOO_BIG, NBD_REP_ACK], Step::Goodbye));

    let mut endless = [client_flags(), option(NBD_OPT_INFO, &[])].concat();
    let at = endless.len() - 4;
    endless[at..].copy_from_slice(&u32::MAX.to_be_bytes());
    let close = Step::Close(Violation::OptionTooLong { option: NBD_OPT_INFO, length: u32::MAX });
    assert_eq!(converse(TlsPolicy::Unavailable, &endless, &[]).1, close);
}

#[test]
fn a_flood_of_options_ends_the_session() {
    let mut script = client_flags();
    (0..=OPTIONS_MAX).for_each(|_| script.extend(option(NBD_OPT_LIST, b"x")));
    let close = Step::Close(Violation::TooManyOptions { max: OPTIONS_MAX });
    assert_eq!(converse(TlsPolicy::Unavailable, &script, &[]).1, close);
}

#[test]
fn malformed_options_are_invalid() {
    for kind in [NBD_OPT_GO, NBD_OPT_INFO, NBD_OPT_LIST_META_CONTEXT] {
        for data in [&b""[..], b"\0\0\0\x09v/a", b"\xff\xff\xff\xff", b"\0\0\0\x03v/a\0\0\0\x01\0"] {
            let script = [client_flags(), option(kind, data)].concat();
            assert_eq!(kinds(&converse(TlsPolicy::Unavailable, &script, &[]).0), [NBD_REP_ERR_INVALID]);
        }
    }
    let long = go(&"n".repeat(4097));
    let script = [client_flags(), long].concat();
    assert_eq!(kinds(&converse(TlsPolicy::Unavailable, &script, &[]).0), [NBD_REP_ERR_TOO_BIG]);
}

#[test]
fn clients_that_are_not_nbd_are_closed_at_once() {
    let (_, step) = converse(TlsPolicy::Unavailable, b"GET / HTTP/1.1\r\n\r\n", &[]);
    assert!(matches!(step, Step::Close(Violation::UnknownClientFlags { .. })));
    let script = [client_flags(), b"SSH".to_vec()].concat();
    assert!(matches!(
        converse(TlsPolicy::Unavailable, &script, &[]).1,
        Step::Close(Violation::OptionMagic { found }) if found.to_be_bytes().starts_with(b"SSH")
    ));
}

/// A client and a server of ours; bytes travel `step` at a time.
fn meet(wishes: ClientWishes, step: usize) -> Result<(ExportOffer, Negotiated), HandshakeFailure> {
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    let mut server = Handshake::new(TlsPolicy::Unavailable, &mut to_client);
    let mut client = ClientHandshake::new(wishes);
    let (mut granted, mut offer) = (None, None);
    let (mut client_input, mut server_input) = (Vec::new(), Vec::new());
    for _ in 0..10_000 {
        if let (Some(offer), Some(granted)) = (offer.clone(), granted.clone()) {
            return Ok((offer, granted));
        }
        client_input.extend(to_client.drain(..step.min(to_client.len())));
        if offer.is_none() {
            let (taken, next) = client.receive(&client_input, &mut to_server)?;
            client_input.drain(..taken);
            if let ClientStep::Ready(ready) = next {
                offer = Some(ready);
            }
        }
        server_input.extend(to_server.drain(..step.min(to_server.len())));
        if granted.is_none() {
            let (taken, next) = server.receive(&server_input, &mut OneExport, &mut to_client);
            server_input.drain(..taken);
            if let Step::Transmit(ready) = next {
                granted = Some(ready);
            }
        }
    }
    panic!("the two never agree");
}

#[test]
fn our_client_and_server_agree_in_every_mode() {
    for mode in MODES {
        for step in [1, 7, 100_000] {
            let contexts = vec!["base:allocation".to_owned(), "qemu:dirty-bitmap:s1".to_owned()];
            let wishes = ClientWishes { export: String::new(), mode, contexts };
            let (offer, granted) = meet(wishes, step).unwrap();
            assert_eq!((offer.size, offer.name.as_str(), offer.description.as_str()), (SIZE, "v/a", "a lun"));
            assert_eq!((offer.mode, granted.mode), (mode, mode));
            assert_eq!(offer.flags & NBD_FLAG_SEND_DF != 0, mode != ReplyMode::Simple);
            let names: Vec<_> = granted.contexts.iter().map(|context| (context.id, context.name())).collect();
            assert_eq!(offer.contexts, names);
            assert_eq!(names.len(), if mode == ReplyMode::Simple { 0 } else { 2 });
        }
    }
    let wishes = ClientWishes { export: "nope".into(), mode: ReplyMode::Simple, contexts: vec![] };
    assert!(matches!(meet(wishes, 9), Err(HandshakeFailure::UnknownExport { .. })));
}

fn negotiated(mode: ReplyMode) -> Negotiated {
    let contexts = vec![
        Context { id: 1, kind: ContextKind::Allocation },
        Context { id: 3, kind: ContextKind::ChangedSince("s2".into()) },
    ];
    Negotiated { mode, contexts }
}

fn decode(mode: ReplyMode, bytes: &[u8], state: ExportState) -> Request {
    match decode_request(bytes, &negotiated(mode), state) {
        Decoded::Request(taken, request) => {
            assert_eq!(taken, bytes.len());
            request
        }
        other => panic!("{other:?}"),
    }
}

fn request(mode: ReplyMode, command: u16, flags: u16, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_request(&mut bytes, mode, command, flags, 99, offset, length);
    bytes
}

#[test]
fn every_command_decodes_in_every_mode_and_no_prefix_of_it_does() {
    for mode in MODES {
        let (offset, length) = (4096, 512);
        let cases = [
            (NBD_CMD_READ, 0, Command::Read { offset, length: 512, one_chunk: false }),
            (NBD_CMD_WRITE, NBD_CMD_FLAG_FUA, Command::Write { offset, length: 512, fua: true }),
            (NBD_CMD_TRIM, 0, Command::Trim { offset, length, fua: false }),
            (NBD_CMD_CACHE, 0, Command::Cache { offset, length }),
            (
                NBD_CMD_WRITE_ZEROES,
                NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO,
                Command::WriteZeroes { offset, length, may_trim: false, fua: false },
            ),
            (
                NBD_CMD_BLOCK_STATUS,
                NBD_CMD_FLAG_REQ_ONE,
                Command::BlockStatus { offset, length, one: true, only: None },
            ),
            (NBD_CMD_FLUSH, 0, Command::Flush),
            (NBD_CMD_DISC, 0, Command::Disconnect),
        ];
        for (command, flags, expected) in cases {
            let bytes = request(mode, command, flags, offset, length);
            let found = decode(mode, &bytes, STATE);
            assert_eq!((found.cookie, found.command), (99, Ok(expected)));
            assert_eq!(found.payload_bytes, if command == NBD_CMD_WRITE { 512 } else { 0 });
            for cut in 0..bytes.len() {
                assert_eq!(decode_request(&bytes[..cut], &negotiated(mode), STATE), Decoded::Incomplete);
            }
        }
    }
}

#[test]
fn illegal_requests_get_the_error_that_the_specification_names() {
    let read_only = ExportState { read_only: true, ..STATE };
    let slow_zeroes = ExportState { fast_zeroes: false, ..STATE };
    let long = u64::from(PAYLOAD_BYTES_MAX) + 1;
    let cases = [
        (NBD_CMD_READ, 0, SIZE, 1, STATE, NbdError::Invalid),
        (NBD_CMD_READ, 0, u64::MAX, 1, STATE, NbdError::Invalid),
        (NBD_CMD_READ, 0, 0, long, STATE, NbdError::Overflow),
        (NBD_CMD_READ, NBD_CMD_FLAG_FAST_ZERO, 0, 1, STATE, NbdError::Invalid),
        (NBD_CMD_WRITE, 0, SIZE - 1, 2, STATE, NbdError::NoSpace),
        (NBD_CMD_WRITE, 0, 0, long, STATE, NbdError::Overflow),
        (NBD_CMD_WRITE, 0, 0, 1, read_only, NbdError::NotPermitted),
        (NBD_CMD_TRIM, 0, 0, 1, read_only, NbdError::NotPermitted),
        (NBD_CMD_TRIM, 0, SIZE, 1, STATE, NbdError::Invalid),
        (NBD_CMD_WRITE_ZEROES, 0, SIZE, 1, STATE, NbdError::NoSpace),
        (NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_FAST_ZERO, 0, 1, slow_zeroes, NbdError::NotSupported),
        (NBD_CMD_BLOCK_STATUS, 0, 0, 0, STATE, NbdError::Invalid),
        (9, 0, 0, 0, STATE, NbdError::Invalid),
    ];
    for (command, flags, offset, length, state, error) in cases {
        let bytes = request(ReplyMode::Structured, command, flags, offset, length);
        let found = decode(ReplyMode::Structured, &bytes, state);
        assert_eq!(found.command, Err(error), "command {command} at {offset}, {length} bytes");
        // The payload of a refused write still has to be taken.
        assert_eq!(found.payload_bytes, if command == NBD_CMD_WRITE { length } else { 0 });
    }
    let bytes = request(ReplyMode::Simple, NBD_CMD_WRITE, 0, 0, u64::from(u32::MAX));
    let close = Decoded::Close(Violation::PayloadTooLong { length: u64::from(u32::MAX) });
    assert_eq!(decode_request(&bytes, &negotiated(ReplyMode::Simple), STATE), close);
    assert!(matches!(
        decode_request(&bytes, &negotiated(ReplyMode::Extended), STATE),
        Decoded::Close(Violation::RequestMagic { .. })
    ));
}

#[test]
fn a_payload_filters_the_contexts_of_block_status() {
    let ask = |ids: &[u32]| {
        let mut bytes = Vec::new();
        put_block_status_request(&mut bytes, 0, 5, 0, 8 << 30, ids);
        bytes
    };
    let state = ExportState { size: 1 << 40, ..STATE };
    let found = decode(ReplyMode::Extended, &ask(&[3]), state);
    let only = Some(vec![1]);
    assert_eq!(found.command, Ok(Command::BlockStatus { offset: 0, length: 8 << 30, one: false, only }));
    for wrong in [&[2][..], &[1, 1], &[]] {
        assert_eq!(decode(ReplyMode::Extended, &ask(wrong), state).command, Err(NbdError::Invalid));
    }
    let bytes = ask(&[1, 3]);
    for cut in 0..bytes.len() {
        assert_eq!(
            decode_request(&bytes[..cut], &negotiated(ReplyMode::Extended), state),
            Decoded::Incomplete
        );
    }
}

#[test]
fn replies_decode_to_what_was_encoded() {
    let to = ReplyTo { cookie: 7, offset: 4096 };
    let extents = [StatusExtent { length: 4096, flags: 3 }, StatusExtent { length: 8192, flags: 0 }];
    for mode in MODES {
        let simple = mode == ReplyMode::Simple;
        let mut cases: Vec<(Vec<u8>, ReplyEvent)> = Vec::new();
        let mut add = |put: &dyn Fn(&mut Vec<u8>), event| {
            let mut bytes = Vec::new();
            put(&mut bytes);
            cases.push((bytes, event));
        };
        let success = match mode {
            ReplyMode::Extended => ReplyEvent::Done { cookie: 7 },
            _ => ReplyEvent::Simple { cookie: 7, error: None },
        };
        add(&|out| put_success(out, mode, to), success);
        let data = ReplyEvent::Data { cookie: 7, offset: 4096, length: 512, done: true };
        let data = if simple { ReplyEvent::Simple { cookie: 7, error: None } } else { data };
        add(&|out| put_read_header(out, mode, to, 4096, 512), data);
        let failed = match mode {
            ReplyMode::Simple => ReplyEvent::Simple { cookie: 7, error: Some(NbdError::NoSpace) },
            _ => {
                ReplyEvent::Failed { cookie: 7, error: NbdError::NoSpace, message: "full".into(), done: true }
            }
        };
        add(&|out| put_error(out, mode, to, NbdError::NoSpace, "full"), failed);
        if !simple {
            let status = crate::ContextStatus { context: 3, extents: extents.to_vec() };
            let status = ReplyEvent::Status { cookie: 7, status, done: false };
            add(&|out| put_block_status(out, mode, to, false, 3, &extents), status);
        }
        for (bytes, event) in cases {
            assert_eq!(decode_reply(&bytes, mode), Ok(Some((bytes.len(), event))));
            for cut in 0..bytes.len() {
                assert_eq!(decode_reply(&bytes[..cut], mode), Ok(None), "{mode:?} cut at {cut}");
            }
        }
    }
}

#[test]
fn extents_of_4_gib_are_cut_in_32_bit_replies_and_end_them() {
    let extents = [StatusExtent { length: 8 << 30, flags: 1 }, StatusExtent { length: 4096, flags: 0 }];
    let mut out = Vec::new();
    put_block_status(&mut out, ReplyMode::Structured, ReplyTo { cookie: 1, offset: 0 }, true, 1, &extents);
    match decode_reply(&out, ReplyMode::Structured) {
        Ok(Some((_, ReplyEvent::Status { status, .. }))) => {
            assert_eq!(status.extents.len(), 1);
            assert!(status.extents[0].length.is_multiple_of(16 << 20));
        }
        other => panic!("{other:?}"),
    }
}

fn any_mode() -> impl Strategy<Value = ReplyMode> {
    prop_oneof![Just(ReplyMode::Simple), Just(ReplyMode::Structured), Just(ReplyMode::Extended)]
}

fn any_tls() -> impl Strategy<Value = TlsPolicy> {
    prop_oneof![Just(TlsPolicy::Unavailable), Just(TlsPolicy::Offered), Just(TlsPolicy::Required)]
}

/// An option that is nearly right, so that random bytes get past the magic.
fn any_option() -> impl Strategy<Value = Vec<u8>> {
    (0u32..13, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(kind, data)| option(kind, &data))
}

proptest! {
    #[test]
    fn random_bytes_never_panic_a_negotiation(tls in any_tls(), bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        converse(tls, &bytes, &[]);
        converse(tls, &[client_flags(), bytes].concat(), &[]);
    }

    #[test]
    fn random_options_never_panic_and_do_not_depend_on_cuts(
        tls in any_tls(),
        options in prop::collection::vec(any_option(), 0..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let script = [client_flags(), options.concat()].concat();
        let whole = converse(tls, &script, &[]);
        // Where TLS starts, a cut decides whether the following bytes were injected: both are
        // right.
        if tls == TlsPolicy::Unavailable {
            prop_assert_eq!(converse(tls, &script, &[cut.index(script.len())]), whole);
        }
    }

    #[test]
    fn random_bytes_never_panic_a_request(mode in any_mode(), magic in any::<bool>(), bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let start = if mode == ReplyMode::Extended { NBD_EXTENDED_REQUEST_MAGIC } else { NBD_REQUEST_MAGIC };
        let bytes = if magic { [start.to_be_bytes().to_vec(), bytes].concat() } else { bytes };
        if let Decoded::Request(taken, request) = decode_request(&bytes, &negotiated(mode), STATE) {
            prop_assert!(taken <= bytes.len());
            if let Ok(Command::Read { offset, length, .. } | Command::Write { offset, length, .. }) = request.command {
                prop_assert!(offset + u64::from(length) <= SIZE && length <= PAYLOAD_BYTES_MAX);
            }
        }
    }

    #[test]
    fn nearly_legal_requests_are_checked(
        mode in any_mode(), command in 0u16..10, flags in 0u16..64, offset in any::<u64>(), length in any::<u64>(),
    ) {
        let bytes = request(mode, command, flags, offset, length);
        let Decoded::Request(_, request) = decode_request(&bytes, &negotiated(mode), STATE) else { return Ok(()) };
        if let Ok(
            Command::Trim { offset, length, .. } | Command::Cache { offset, length }
            | Command::WriteZeroes { offset, length, .. } | Command::BlockStatus { offset, length, .. },
        ) = request.command
        {
            prop_assert!(offset.checked_add(length).is_some_and(|end| end <= SIZE));
        }
    }

    #[test]
    fn random_bytes_never_panic_a_client(mode in any_mode(), magic in 0u32..4, bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let start = [0, NBD_SIMPLE_REPLY_MAGIC, NBD_STRUCTURED_REPLY_MAGIC, NBD_EXTENDED_REPLY_MAGIC][magic as usize];
        let bytes = [start.to_be_bytes().to_vec(), bytes].concat();
        if let Ok(Some((taken, _))) = decode_reply(&bytes, mode) {
            prop_assert!(taken <= bytes.len());
        }
        let mut greeting = Vec::new();
        Handshake::new(TlsPolicy::Unavailable, &mut greeting);
        let mut client = ClientHandshake::new(ClientWishes { export: "v/a".into(), mode, contexts: vec![] });
        let mut out = Vec::new();
        client.receive(&greeting, &mut out).unwrap();
        // It must not panic on any input.
        let _ = client.receive(&bytes, &mut out);
        let _ = client.receive(&[NBD_REP_MAGIC.to_be_bytes().to_vec(), bytes].concat(), &mut out);
    }
}
