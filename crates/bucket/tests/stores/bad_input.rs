//! Wrong input and answers of stores: each is an error of its own kind, with a next step and
//! without a secret.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cairn_bucket::{
    CredentialTrouble, Credentials, Key, ListFrom, Net, Options, Place, Put, Remote, Secret, StoreError,
    Trouble,
};

use super::*;

const SECRET: &str = "wJalrXUtnFEMI-SECRET-bPxRfiCY";
const TOKEN: &str = "session-TOKEN-that-stays-secret";

fn key() -> Key {
    Key { id: "AKIDEXAMPLE".to_owned(), secret: Secret::new(SECRET), token: Some(Secret::new(TOKEN)) }
}

fn no_variables(_: &str) -> Option<String> {
    None
}

fn open(endpoint: &str, credentials: Credentials) -> Result<Remote, StoreError> {
    let place: Place = "s3://backups/site-a".parse().expect("a place");
    let options = Options { endpoint: Some(endpoint.to_owned()), ..Options::new(credentials) };
    Remote::open(&place, &options, &no_variables, &Net::start().expect("a runtime"))
}

/// Answers each request with the next of these, the last one for ever; how many came.
fn serve(answers: Vec<String>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
            let head_end = loop {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => break None,
                    Ok(read) => request.extend_from_slice(&buffer[..read]),
                }
                let end = request.windows(4).position(|window| window == b"\r\n\r\n");
                if end.is_some() {
                    break end;
                }
            };
            let Some(head_end) = head_end else { continue };
            let head = String::from_utf8_lossy(&request[..head_end]).to_ascii_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            let mut left = length.unwrap_or(0_usize).saturating_sub(request.len() - head_end - 4);
            while left > 0 {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(read) => left = left.saturating_sub(read),
                }
            }
            let number = counted.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
            let _ = stream.write_all(answers[number].as_bytes());
        }
    });
    (format!("http://{address}"), count)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}")
}

fn coded(status: &str, code: &str) -> String {
    // Stores repeat parts of a request: these must not be shown.
    let body = format!(
        "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{SECRET} {TOKEN}</Message><Region>eu-central-1</Region></Error>"
    );
    answer(status, "", &body)
}

fn shown(error: &StoreError) -> String {
    let text = format!("{error} / {} / {error:?}", error.next());
    assert!(!text.contains(SECRET) && !text.contains(TOKEN), "{text}");
    assert!(!error.next().is_empty() && !text.contains("http://"), "{text}");
    text
}

type Expected = fn(&Trouble) -> bool;

#[test]
fn each_answer_of_a_store_is_an_error_of_its_kind() {
    use CredentialTrouble::{Expired, Wrong};
    let cases: Vec<(String, Expected, &str)> = vec![
        (coded("404 Not Found", "NoSuchBucket"), |t| matches!(t, Trouble::NoBucket), "the bucket does not exist"),
        (coded("404 Not Found", "NoSuchKey"), |t| matches!(t, Trouble::Missing), "there is no such object"),
        (
            coded("403 Forbidden", "InvalidAccessKeyId"),
            |t| matches!(t, Trouble::Credentials(Wrong)),
            "rejects the credentials",
        ),
        (
            coded("403 Forbidden", "SignatureDoesNotMatch"),
            |t| matches!(t, Trouble::Credentials(Wrong)),
            "correct the access key",
        ),
        (coded("400 Bad Request", "ExpiredToken"), |t| matches!(t, Trouble::Credentials(Expired)), "renew"),
        (coded("403 Forbidden", "AccessDenied"), |t| matches!(t, Trouble::Forbidden), "s3:GetObject"),
        (coded("403 Forbidden", "RequestTimeTooSkewed"), |t| matches!(t, Trouble::Clock), "set the clock"),
        (
            coded("301 Moved Permanently", "PermanentRedirect"),
            |t| matches!(t, Trouble::Redirect(Some(region)) if region == "eu-central-1"),
            "--region eu-central-1",
        ),
        (
            answer("301 Moved Permanently", "x-amz-bucket-region: us-west-2\r\n", ""),
            |t| matches!(t, Trouble::Redirect(Some(region)) if region == "us-west-2"),
            "--region us-west-2",
        ),
        (
            coded("400 Bad Request", "AuthorizationHeaderMalformed"),
            |t| matches!(t, Trouble::Redirect(Some(_))),
            "is in region eu-central-1",
        ),
        (coded("403 Forbidden", "InvalidObjectState"), |t| matches!(t, Trouble::Archived), "lifecycle rule"),
        (coded("403 Forbidden", "QuotaExceeded"), |t| matches!(t, Trouble::Quota), "raise the quota"),
        (
            answer("503 Slow Down", "retry-after: 7\r\n", "<Error><Code>SlowDown</Code></Error>"),
            |t| matches!(t, Trouble::SlowDown(Some(pause)) if *pause == Duration::from_secs(7)),
            "fewer requests",
        ),
        (answer("429 Too Many Requests", "", ""), |t| matches!(t, Trouble::SlowDown(None)), "fewer requests"),
        (
            coded("500 Internal Server Error", "InternalError"),
            |t| matches!(t, Trouble::Server { status: 500, .. }),
            "500 (InternalError)",
        ),
        (answer("507 Insufficient Storage", "", ""), |t| matches!(t, Trouble::Quota), "no room"),
        (
            coded("418 Teapot", "Weird"),
            |t| matches!(t, Trouble::Server { status: 418, .. }),
            "418 (Weird)",
        ),
        (
            coded("400 Bad Request", "a code <with> markup"),
            |t| matches!(t, Trouble::Server { status: 400, code: None }),
            "answers 400",
        ),
        (answer("200 OK", "", "hello"), |t| matches!(t, Trouble::Answer(_)), "makes no sense"),
        ("HTTP/1.1 nonsense\r\n\r\n".to_owned(), |t| matches!(t, Trouble::Unreachable(_)), "unreachable"),
        (String::new(), |t| matches!(t, Trouble::Unreachable(_)), "unreachable"),
        (
            "HTTP/1.1 206 Partial\r\ncontent-length: 9\r\ncontent-range: bytes 0-8/9\r\nconnection: close\r\n\r\nabc"
                .to_owned(),
            |t| matches!(t, Trouble::Unreachable(_)),
            "unreachable",
        ),
        (
            "HTTP/1.1 206 Partial\r\ncontent-length: 9\r\ncontent-range: bytes 5-13/90\r\nconnection: close\r\n\r\nabcdefghi"
                .to_owned(),
            |t| matches!(t, Trouble::Answer(_)),
            "makes no sense",
        ),
    ];
    for (reply, expected, text) in cases {
        let (endpoint, _) = serve(vec![reply.clone()]);
        let store = open(&endpoint, Credentials::Key(key())).expect("open");
        let error = store.get(&name("object"), 0, 100, &never()).expect_err("no success");
        let all = shown(&error);
        assert!(expected(&error.trouble), "{reply}: {all}");
        assert!(all.contains(text), "{all}");
        assert!(all.contains("s3://backups/site-a/object"), "{all}");
    }
}

#[test]
fn create_only_answers_are_told_apart() {
    let put = |reply: String| {
        let (endpoint, _) = serve(vec![reply]);
        let store = open(&endpoint, Credentials::Key(key())).expect("open");
        store.put_new(&name("object"), noise(1, 100), nonce(1), &never())
    };
    assert_eq!(put(answer("200 OK", "etag: \"a\"\r\n", "")).expect("put"), Put::Created);
    assert_eq!(put(coded("412 Precondition Failed", "PreconditionFailed")).expect("put"), Put::Exists);
    assert_eq!(put(answer("412 Precondition Failed", "", "")).expect("put"), Put::Exists);
    let conflict = put(coded("409 Conflict", "ConditionalRequestConflict")).expect_err("undecided");
    assert!(matches!(conflict.trouble, Trouble::Conflict) && conflict.is_transient());
    let unsupported = put(coded("501 Not Implemented", "NotImplemented")).expect_err("not known");
    assert!(matches!(unsupported.trouble, Trouble::Unsupported("create-only puts")), "{unsupported}");
    let forbidden = put(coded("403 Forbidden", "AccessDenied")).expect_err("no right");
    assert!(forbidden.next().contains("s3:PutObject"), "{}", forbidden.next());
}

#[test]
fn end_of_an_upload_that_fails_after_a_success_is_a_failure() {
    let begun = answer(
        "200 OK",
        "",
        "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>",
    );
    let piece = answer("200 OK", "etag: \"a\"\r\n", "");
    let late = answer("200 OK", "", "<Error><Code>InternalError</Code></Error>");
    let (endpoint, count) = serve(vec![begun, piece, late]);
    let store = open(&endpoint, Credentials::Key(key())).expect("open");
    let upload = store.begin(&name("object"), nonce(1), &never()).expect("begun");
    let piece = store.put_piece(&upload, 1, noise(1, 100), &never()).expect("a piece");
    let error = store.finish(&upload, nonce(1), &[piece], &never()).expect_err("it failed late");
    assert!(error.is_unclear() && error.is_transient(), "{error}");
    assert_eq!(count.load(Ordering::Relaxed), 3, "nothing is tried again below");
}

#[test]
fn answer_that_does_not_come_ends_when_cancelled() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let store = open(&endpoint, Credentials::Key(key())).expect("open");
    let cancel = AtomicBool::new(false);
    let begun = Instant::now();
    let error = std::thread::scope(|scope| {
        let get = scope.spawn(|| store.get(&name("object"), 0, 1, &cancel).expect_err("cancelled"));
        // It has connected, and waits for an answer.
        let _held = listener.accept();
        cancel.store(true, Ordering::Relaxed);
        get.join().expect("no panic")
    });
    assert!(error.is_cancelled() && begun.elapsed() < Duration::from_secs(5), "{error}");
}

#[test]
fn closed_port_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let store = open(&endpoint, Credentials::Key(key())).expect("open");
    let error = store.list(&prefix(""), &ListFrom::Start, 1, &never()).expect_err("no server");
    let text = shown(&error);
    assert!(matches!(error.trouble, Trouble::Unreachable(_)) && error.is_transient(), "{text}");
}

#[test]
fn certificate_of_an_unknown_authority_is_named_and_can_be_trusted() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let der = made.cert.der().clone();
    let private =
        rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![der], private)
            .expect("a configuration");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("https://localhost:{}", listener.local_addr().expect("an address").port());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut session = rustls::ServerConnection::new(config.clone()).expect("a session");
            let mut tls = rustls::Stream::new(&mut session, &mut stream);
            let mut buffer = [0; 4096];
            if matches!(tls.read(&mut buffer), Ok(read) if read > 0) {
                let _ = tls.write_all(coded("404 Not Found", "NoSuchKey").as_bytes());
                let _ = tls.flush();
            }
        }
    });
    let store = open(&endpoint, Credentials::Key(key())).expect("open");
    let error = store.get(&name("object"), 0, 1, &never()).expect_err("not trusted");
    let text = shown(&error);
    assert!(matches!(error.trouble, Trouble::Certificate) && !error.is_transient(), "{text}");
    let place: Place = "s3://backups".parse().expect("a place");
    let authority = Some(made.cert.pem().into_bytes());
    let options =
        Options { endpoint: Some(endpoint.clone()), authority, ..Options::new(Credentials::Key(key())) };
    let net = Net::start().expect("a runtime");
    let store = Remote::open(&place, &options, &no_variables, &net).expect("open");
    let error = store.get(&name("object"), 0, 1, &never()).expect_err("an answer");
    assert!(error.is_missing(), "{error}");
    let options = Options { authority: Some(b"no certificate".to_vec()), ..options };
    let error = Remote::open(&place, &options, &no_variables, &net).expect_err("no certificate");
    assert!(error.to_string().contains("PEM"), "{error}");
}

fn write(folder: &Path, text: &str) -> std::path::PathBuf {
    let path = folder.join("credentials");
    std::fs::write(&path, text).expect("written");
    path
}

#[test]
fn credentials_come_from_the_environment_or_a_file_and_are_named_when_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let net = Net::start().expect("a runtime");
    let place: Place = "s3://backups/site-a".parse().expect("a place");
    let with = |credentials: Credentials, variables: &dyn Fn(&str) -> Option<String>| {
        let options =
            Options { endpoint: Some("http://127.0.0.1:1".to_owned()), ..Options::new(credentials) };
        Remote::open(&place, &options, variables, &net)
    };
    let variables = |name: &str| match name {
        "AWS_ACCESS_KEY_ID" => Some("AKID".to_owned()),
        "AWS_SECRET_ACCESS_KEY" => Some(SECRET.to_owned()),
        _ => None,
    };
    with(Credentials::Environment, &variables).expect("both are there");
    let error = with(Credentials::Environment, &no_variables).expect_err("none");
    assert!(matches!(error.trouble, Trouble::Credentials(CredentialTrouble::Missing)), "{error}");
    assert!(shown(&error).contains("AWS_ACCESS_KEY_ID"));
    let file = |text: &str, section: Option<&str>| {
        let path = write(folder.path(), text);
        with(Credentials::File { path, section: section.map(str::to_owned) }, &no_variables)
    };
    let whole =
        format!("# keys\n[default]\naws_access_key_id = A\naws_secret_access_key={SECRET}\n\n[other]\n");
    file(&whole, None).expect("the default section");
    for (text, section, expected) in [
        (whole.as_str(), Some("missing"), CredentialTrouble::Missing),
        (whole.as_str(), Some("other"), CredentialTrouble::Unreadable),
        ("", None, CredentialTrouble::Missing),
        ("[default]\naws_access_key_id = A\n", None, CredentialTrouble::Unreadable),
    ] {
        let error = file(text, section).expect_err("not usable");
        let found = matches!(error.trouble, Trouble::Credentials(trouble) if trouble == expected);
        assert!(found, "{section:?}: {error:?}");
        shown(&error);
    }
    let path = folder.path().join("none");
    let error = with(Credentials::File { path, section: None }, &no_variables).expect_err("no file");
    assert!(matches!(error.trouble, Trouble::Credentials(CredentialTrouble::Missing)), "{error}");
}

#[test]
fn renewed_credentials_in_a_file_are_taken_without_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, keys) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut buffer = [0; 8192];
            let read = stream.read(&mut buffer).unwrap_or(0);
            let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
            let key =
                text.split("Credential=").nth(1).and_then(|rest| rest.split('/').next().map(str::to_owned));
            let _ = sender.send(key);
            let _ = stream.write_all(coded("404 Not Found", "NoSuchKey").as_bytes());
        }
    });
    let text =
        |key: &str| format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n");
    let path = write(folder.path(), &text("FIRST"));
    let store = open(&endpoint, Credentials::File { path: path.clone(), section: None }).expect("open");
    store.get(&name("object"), 0, 1, &never()).expect_err("missing");
    assert_eq!(keys.recv().expect("a request").as_deref(), Some("FIRST"));
    write(folder.path(), &text("SECOND"));
    let later = std::time::SystemTime::now() + Duration::from_secs(5);
    std::fs::File::options().write(true).open(&path).expect("the file").set_modified(later).expect("set");
    store.get(&name("object"), 0, 1, &never()).expect_err("missing");
    assert_eq!(keys.recv().expect("a request").as_deref(), Some("SECOND"));
    std::fs::remove_file(&path).expect("removed");
    let error = store.get(&name("object"), 0, 1, &never()).expect_err("no credentials");
    assert!(matches!(error.trouble, Trouble::Credentials(CredentialTrouble::Missing)), "{error}");
}

#[test]
fn role_of_the_machine_gives_credentials_or_is_named() {
    let place: Place = "s3://backups/site-a".parse().expect("a place");
    let (endpoint, _) = serve(vec![coded("404 Not Found", "NoSuchKey")]);
    let given = format!(
        "{{\"AccessKeyId\":\"ROLE\",\"SecretAccessKey\":\"{SECRET}\",\"Token\":\"{TOKEN}\",\"Expiration\":\"2099-01-01T00:00:00Z\",\"Code\":\"Success\",\"LastUpdated\":\"2026-01-01T00:00:00Z\",\"Type\":\"AWS-HMAC\"}}"
    );
    let with = |metadata: &str| {
        let metadata = metadata.to_owned();
        let variables =
            move |name: &str| (name == "AWS_EC2_METADATA_SERVICE_ENDPOINT").then(|| metadata.clone());
        let options = Options { endpoint: Some(endpoint.clone()), ..Options::new(Credentials::Role) };
        Remote::open(&place, &options, &variables, &Net::start().expect("a runtime")).expect("open")
    };
    // A token, the name of the role, its credentials.
    let (metadata, asked) =
        serve(vec![answer("200 OK", "", "t"), answer("200 OK", "", "r"), answer("200 OK", "", &given)]);
    let store = with(&metadata);
    let error = store.get(&name("object"), 0, 1, &never()).expect_err("missing");
    assert!(error.is_missing(), "the store was asked: {error}");
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    store.get(&name("object"), 0, 1, &never()).expect_err("missing");
    assert_eq!(asked.load(Ordering::Relaxed), 3, "they are kept while they last");
    let (metadata, _) = serve(vec![answer("404 Not Found", "", "")]);
    for metadata in [metadata.as_str(), "http://127.0.0.1:1"] {
        let error = with(metadata).get(&name("object"), 0, 1, &never()).expect_err("no role");
        let text = shown(&error);
        assert!(matches!(error.trouble, Trouble::Credentials(CredentialTrouble::NoRole)), "{text}");
        assert!(text.contains("give this machine a role"), "{text}");
    }
}

#[test]
fn credentials_are_looked_for_where_other_tools_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write(folder.path(), "[default]\n");
    let file = path.to_str().expect("text").to_owned();
    let with = |set: &[(&str, &str)]| {
        Credentials::found(&|name| {
            set.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        })
    };
    assert_eq!(with(&[("AWS_ACCESS_KEY_ID", "A"), ("HOME", "/nonexistent")]), Credentials::Environment);
    assert_eq!(with(&[("HOME", "/nonexistent")]), Credentials::Role);
    assert_eq!(
        with(&[("AWS_SHARED_CREDENTIALS_FILE", &file), ("AWS_PROFILE", "b")]),
        Credentials::File { path, section: Some("b".to_owned()) }
    );
}

#[test]
fn nothing_that_is_printed_holds_a_secret() {
    let credentials = Credentials::Key(key());
    let options = Options::new(credentials.clone());
    let store = open("http://127.0.0.1:1", credentials.clone()).expect("open");
    for text in
        [format!("{credentials:?}"), format!("{options:?}"), format!("{store:?}"), store.place().to_owned()]
    {
        assert!(!text.contains(SECRET) && !text.contains(TOKEN), "{text}");
    }
    let error = store.get(&name("object"), 0, 1, &never()).expect_err("no server");
    shown(&error);
}

#[test]
fn endpoints_and_places_that_are_none_are_refused() {
    for endpoint in
        ["", "localhost:9000", "ftp://x", "https://", "https://user:password@host", "https://host/path?x"]
    {
        let error = open(endpoint, Credentials::Key(key())).expect_err("no endpoint");
        assert!(
            matches!(error.trouble, Trouble::Rule(_)) && !error.to_string().contains("password"),
            "{error}"
        );
    }
    for place in [
        "s3:/x",
        "s3://",
        "s3://ab",
        "s3://bucket/a//b",
        "s3://bucket/../a",
        "s3://bucket/a?b",
        "file://relative",
        "azure://account",
        "http://bucket",
        "s3://buck et",
        "s3://bucket/.hidden",
    ] {
        place.parse::<Place>().expect_err(place);
    }
    for (place, again) in [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket.x/a", "gs://bucket.x/a"),
        ("azure://account/container/a", "azure://account/container/a"),
        ("file:///srv/x", "file:///srv/x"),
    ] {
        assert_eq!(place.parse::<Place>().expect(place).to_string(), again);
    }
}

#[test]
fn directory_that_is_missing_is_named() {
    let error = Directory::open(Path::new("/nonexistent/bucket"), clock(), Rng::new(1)).expect_err("missing");
    assert_eq!(error.next(), "create file:///nonexistent/bucket, or mount what belongs there");
}
