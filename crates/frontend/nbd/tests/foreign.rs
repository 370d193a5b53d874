//! Clients that others wrote: libnbd (nbdinfo, nbdcopy, its Python module) and qemu.
//!
//! A program that is missing is an error in CI and a named skip elsewhere.

mod harness;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cairn_frontend_nbd::{Address, ReplyMode, ServerOptions};
use harness::{SIZE, TestServer, pattern};

/// Runs a program to its end; its output, or `None` when it is missing and may be.
fn run(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}\n{err}", output.status);
            Some(out)
        }
        Err(error) => skip(program, &error.to_string()),
    }
}

fn skip(program: &str, why: &str) -> Option<String> {
    assert!(std::env::var_os("CI").is_none(), "{program} is needed in CI: {why}");
    println!("SKIPPED: {program} is missing ({why})");
    None
}

/// Runs a script with libnbd's module; `uri` is its server.
fn python(script: &str, uri: &str) -> Option<String> {
    let interpreter = "/usr/bin/python3";
    let probe = Command::new(interpreter).args(["-c", "import nbd"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return skip("python3-libnbd", "python3 has no module nbd");
    }
    run(interpreter, &["-c", script, uri])
}

#[test]
fn nbdinfo_lists_and_describes_the_exports() {
    let server = TestServer::plain();
    let Some(list) = run("nbdinfo", &["--list", &server.uri("")]) else { return };
    for name in ["v/plain", "v/other", "v@s1/plain"] {
        assert!(list.contains(&format!("export=\"{name}\"")), "{list}");
    }
    let Some(info) = run("nbdinfo", &[&server.uri("v@s1/plain")]) else { return };
    for line in [
        &format!("export-size: {SIZE}"),
        "is_read_only: true",
        "can_multi_conn: true",
        "can_cache: true",
        "can_df: true",
        "can_fua: true",
        "qemu:dirty-bitmap:s1",
        "base:allocation",
        "description: about v@s1/plain",
    ] {
        assert!(info.contains(line), "{line} is missing in {info}");
    }
    let mut client = server.client("v/plain", ReplyMode::Simple);
    client.write(1 << 20, &pattern(1, 1 << 20)).unwrap();
    let Some(map) = run("nbdinfo", &["--map", "--totals", &server.uri("v/plain")]) else { return };
    assert!(map.contains("1048576") && map.contains("hole,zero"), "{map}");
    let Some(map) = run("nbdinfo", &["--map=qemu:dirty-bitmap:s1", &server.uri("v/plain")]) else { return };
    assert!(map.contains("dirty"), "{map}");
}

#[test]
fn nbdcopy_brings_an_image_in_and_out_over_several_connections() {
    let server = TestServer::plain();
    let image = server.folder.path().join("image");
    let bytes = pattern(2, SIZE as usize);
    std::fs::write(&image, &bytes).unwrap();
    let image = image.to_str().unwrap();
    for export in ["v/plain", "v/other"] {
        let back = server.folder.path().join("back");
        if run("nbdcopy", &["--connections=4", "--flush", image, &server.uri(export)]).is_none() {
            return;
        }
        run("nbdcopy", &["--connections=4", &server.uri(export), back.to_str().unwrap()]);
        assert!(std::fs::read(back).unwrap() == bytes, "{export}");
    }
}

#[test]
fn qemu_reads_writes_and_compares() {
    let server = TestServer::plain();
    let bytes = pattern(3, SIZE as usize);
    let image = server.folder.path().join("image");
    std::fs::write(&image, &bytes).unwrap();
    let image = image.to_str().unwrap();
    for export in ["v/plain", "v/other"] {
        let uri = server.uri(export);
        if run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &uri]).is_none() {
            return;
        }
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &uri]);
        let commands = [
            "write -f -P 5 1000 100000",
            "read -P 5 1000 100000",
            "write -z 4096 8192",
            "read -P 0 4096 8192",
            "write -z -u 1M 1M",
            "read -P 0 1M 1M",
            "discard 2M 1M",
            "aio_write -P 7 3M 2M",
            "aio_write -P 8 5M 512k",
            "aio_flush",
            "flush",
            "read -P 7 3M 2M",
            "read -P 8 5M 512k",
        ];
        let mut arguments = vec!["-f", "raw"];
        commands.iter().for_each(|command| arguments.extend(["-c", command]));
        arguments.push(&uri);
        let Some(out) = run("qemu-io", &arguments) else { return };
        assert!(!out.contains("failed"), "{out}");
    }
}

#[test]
fn qemu_sees_changed_blocks_as_a_dirty_bitmap() {
    let server = TestServer::plain();
    let socket = server.socket.display();
    let options = format!(
        "driver=nbd,server.type=unix,server.path={socket},export=v/plain,x-dirty-bitmap=qemu:dirty-bitmap:s1"
    );
    let Some(map) = run("qemu-img", &["map", "--output=json", "--image-opts", &options]) else { return };
    // qemu shows dirty as "not data" through this option.
    let map: String = map.split_whitespace().collect();
    assert!(map.contains("\"start\":0,\"length\":1048576") && map.contains("\"data\":false"), "{map}");
}

const EVERYTHING: &str = r#"
import sys, nbd, os, errno
uri = sys.argv[1]
def handle():
    h = nbd.NBD()
    # Errors are to come from the server, not from the library.
    h.set_strict_mode(0)
    return h
h = handle()
h.add_meta_context("base:allocation")
h.add_meta_context("qemu:dirty-bitmap:s1")
h.connect_uri(uri)
assert h.get_protocol() == "newstyle-fixed"
assert h.get_structured_replies_negotiated()
assert h.can_multi_conn() and h.can_fast_zero() and h.can_df() and h.can_cache() and h.can_trim()
assert h.can_meta_context("qemu:dirty-bitmap:s1")
assert h.get_block_size(nbd.SIZE_MAXIMUM) == 32 << 20
data = os.urandom(300000)
h.pwrite(data, 12345, nbd.CMD_FLAG_FUA)
assert h.pread(len(data), 12345) == data
chunks = []
h.pread_structured(len(data), 12345, lambda buf, off, status, err: chunks.append((off, len(buf))), nbd.CMD_FLAG_DF)
assert chunks == [(12345, len(data))], chunks
h.zero(100000, 20000, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(100000, 20000) == bytes(100000)
h.trim(1 << 20, 0, nbd.CMD_FLAG_FUA)
h.cache(1 << 20, 0)
h.flush()
seen = {}
def extents(context, offset, entries, err):
    seen[context] = entries
h.block_status(4 << 20, 0, extents)
assert sum(seen["base:allocation"][0::2]) == 4 << 20
assert seen["qemu:dirty-bitmap:s1"] == [1 << 20, 1, 3 << 20, 0], seen
h.block_status(4 << 20, 0, extents, nbd.CMD_FLAG_REQ_ONE)
assert len(seen["qemu:dirty-bitmap:s1"]) == 2
for wrong in [lambda: h.pread(512, h.get_size()), lambda: h.pwrite(b"x" * 512, h.get_size() - 1), lambda: h.trim(512, h.get_size())]:
    try:
        wrong()
        assert False, "it succeeded"
    except nbd.Error as error:
        assert error.errnum in (errno.EINVAL, errno.ENOSPC), error
# Many at once, completed in whatever order.
buffers = []
for i in range(200):
    buffer = nbd.Buffer(4096)
    buffers.append((buffer, h.aio_pread(buffer, 12345 + 1 + i * 512)))
for buffer, cookie in buffers:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
# A second connection reads what the first flushed.
other = handle()
other.connect_uri(uri)
h.pwrite(b"from one to the other", 5 << 20)
h.flush()
assert other.pread(21, 5 << 20) == b"from one to the other"
# No structured replies at all.
simple = handle()
simple.set_request_structured_replies(False)
simple.connect_uri(uri)
assert not simple.get_structured_replies_negotiated()
assert simple.pread(21, 5 << 20) == b"from one to the other"
# The size and flags by the old way in, without options.
old = handle()
old.set_handshake_flags(0)
old.connect_uri(uri)
assert old.get_size() == h.get_size()
for each in (other, simple, old, h):
    each.shutdown()
print("all is well")
"#;

#[test]
fn libnbd_finds_everything_that_the_protocol_has() {
    let server = TestServer::plain();
    for export in ["v/plain", "v/other"] {
        let Some(out) = python(EVERYTHING, &server.uri(export)) else { return };
        assert!(out.contains("all is well"));
    }
}

/// A folder with ca-cert.pem and server keys for "localhost" in the layout of libnbd, and the
/// server's side of it.
fn certificates(folder: &Path) -> Arc<rustls::ServerConfig> {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    std::fs::write(folder.join("ca-cert.pem"), authority_certificate.pem()).unwrap();
    let issuer = rcgen::Issuer::new(authority, authority_key);

    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    Arc::new(config)
}

const OVER_TLS: &str = r#"
import sys, nbd, os
port, folder = sys.argv[1].split(" ")
def connect(tls):
    h = nbd.NBD()
    h.set_export_name("v/plain")
    h.set_tls(tls)
    h.set_tls_certificates(folder)
    h.set_tls_verify_peer(True)
    h.connect_tcp("localhost", port)
    return h
h = connect(nbd.TLS_REQUIRE)
assert h.get_tls_negotiated()
data = os.urandom(3000000)
h.pwrite(data, 777)
h.flush()
assert h.pread(len(data), 777) == data
buffers = [(buffer, h.aio_pread(buffer, 777)) for buffer in (nbd.Buffer(65536) for _ in range(64))]
for buffer, cookie in buffers:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
    assert bytes(buffer.to_bytearray()) == data[:65536]
try:
    connect(nbd.TLS_DISABLE)
    print("in the clear")
except nbd.Error:
    print("only with TLS")
"#;

#[test]
fn libnbd_speaks_tls_and_is_refused_without_where_it_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(folder.path());
    for (tls_required, expected) in [(false, "in the clear"), (true, "only with TLS")] {
        let server = TestServer::start(ServerOptions {
            tls: Some(Arc::clone(&tls)),
            tls_required,
            ..Default::default()
        });
        let Address::Tcp(at) = &server.tcp else { panic!("the second listener is TCP") };
        let port = at.rsplit_once(':').unwrap().1;
        let Some(out) = python(OVER_TLS, &format!("{port} {}", folder.path().display())) else { return };
        assert_eq!(out.trim(), expected);
    }
}
