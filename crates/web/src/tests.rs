//! Tests of the page over real sockets, and of its files.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use cairn_api::Role;
use cairn_base::ManualClock;
use sha2::{Digest, Sha256};

use super::*;
use crate::files::FILES;

const TOKEN: &str = "a-token-that-is-long-enough-to-be-one";

/// One token, which a test can revoke.
struct OneKey(AtomicBool);

impl Keys for OneKey {
    fn find(&self, secret: &str) -> Option<String> {
        (secret == TOKEN && !self.0.load(Ordering::Relaxed)).then(|| "identity".to_owned())
    }

    fn describe(&self, identity: &str) -> Option<Identity> {
        let is_valid = identity == "identity" && !self.0.load(Ordering::Relaxed);
        is_valid.then(|| Identity { name: "token one".to_owned(), role: Role::Viewer })
    }
}

fn page(clock: &Arc<ManualClock>) -> Arc<Page> {
    Page::with_keys(Arc::new(OneKey(AtomicBool::new(false))), clock.clone())
}

/// Serves a router on a port of its own, for as long as the test runs.
fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    in_background(async move {
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        axum::serve(listener, router).await.unwrap();
    });
    address
}

fn in_background(work: impl Future<Output = ()> + Send + 'static) {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work);
    });
}

/// The answer to one request, as text.
fn ask(to: SocketAddr, request: &str, headers: &[&str], body: &str) -> String {
    let mut answer = String::new();
    send(to, request, headers, body).read_to_string(&mut answer).unwrap();
    answer
}

/// The same, as it comes.
fn ask_bytes(to: SocketAddr, request: &str, headers: &[&str]) -> Vec<u8> {
    let mut answer = Vec::new();
    send(to, request, headers, "").read_to_end(&mut answer).unwrap();
    answer
}

fn send(to: SocketAddr, request: &str, headers: &[&str], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    let mut text = format!("{request} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|header| header.starts_with("host:")) {
        text += &format!("host: {to}\r\n");
    }
    headers.iter().for_each(|header| text += &format!("{header}\r\n"));
    write!(stream, "{text}\r\n{body}").unwrap();
    stream
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The value of a header, or of a field of a JSON body.
fn part<'a>(answer: &'a str, begin: &str, end: char) -> &'a str {
    let (_, rest) = answer.split_once(begin).unwrap_or_else(|| panic!("no {begin} in {answer}"));
    rest.split(end).next().unwrap()
}

/// The headers of the session that a sign-in has begun.
fn session(answer: &str) -> [String; 2] {
    assert_eq!(status(answer), 200, "{answer}");
    let cookie = part(answer, "set-cookie: ", ';');
    [format!("cookie: {cookie}"), format!("x-cairn: {}", part(answer, "\"key\":\"", '"'))]
}

fn sign_in(to: SocketAddr, secret: &str) -> String {
    ask(to, "POST /session", &["x-cairn: none"], &format!("{{\"secret\":\"{secret}\"}}"))
}

/// A provider that gives the holder of its binding the identity of the token.
struct OneProvider {
    name: &'static str,
    origin: String,
}

impl Provider for OneProvider {
    fn shown(&self) -> Option<ProviderShown> {
        let (name, origin) = (self.name.to_owned(), self.origin.clone());
        (!name.is_empty()).then_some(ProviderShown { name, origin })
    }

    fn begin(&self, _: Option<std::net::IpAddr>) -> Later<'_, Begun> {
        let url = "https://login.example.com/?state=one".to_owned();
        Box::pin(async { Ok(Begun { url, binding: "binding".to_owned() }) })
    }

    fn finish(&self, binding: String, returned: Returned) -> Later<'_, String> {
        let is_it = binding == "binding" && returned.state == "one" && returned.code.is_some();
        let message = format!("refused with {binding:?}");
        Box::pin(async move {
            let refused = NotSignedIn { message, next: "sign in again".to_owned(), is_refused: true };
            if is_it { Ok("identity".to_owned()) } else { Err(refused) }
        })
    }
}

/// A page that is served at the origin of its provider.
fn with_provider(name: &'static str, clock: &Arc<ManualClock>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let provider = Arc::new(OneProvider { name, origin: format!("http://{to}") });
    let router =
        routes(Page::with_provider(Arc::new(OneKey(AtomicBool::new(false))), provider, clock.clone()));
    in_background(async move {
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        axum::serve(listener, router).await.unwrap();
    });
    to
}

#[test]
fn sign_in_elsewhere_ends_only_with_the_cookie_and_the_key_of_its_browser() {
    let clock = Arc::default();
    let to = with_provider("Example", &clock);
    let shown = ask(to, "GET /session", &[], "");
    assert!(shown.contains(&format!(r#""provider":{{"name":"Example","origin":"http://{to}"}}"#)), "{shown}");
    let begun = ask(to, "POST /session/oidc", &["x-cairn: none"], "");
    assert!(begun.contains("https://login.example.com/?state=one") && begun.contains("HttpOnly"), "{begun}");
    assert!(begun.contains("SameSite=Strict") && begun.contains("Max-Age=600"), "{begun}");
    let cookie = format!("cookie: {}", part(&begun, "set-cookie: ", ';'));
    let key = part(&begun, "\"key\":\"", '"').to_owned();
    assert!(!begun.split("\r\n\r\n").nth(1).unwrap().contains("binding"), "scripts do not see it");
    let finish = |headers: &[&str], key: &str| {
        let body = format!(r#"{{"key":"{key}","state":"one","code":"a"}}"#);
        let all: Vec<&str> = ["x-cairn: none"].iter().chain(headers).copied().collect();
        ask(to, "POST /session/oidc/finish", &all, &body)
    };
    let stolen = format!("cookie: cairn-oidc-{}=binding.another", to.port());
    for (headers, key) in [
        (&[] as &[&str], &key[..]),
        (&[&cookie[..]], "another"),
        (&[&stolen[..]], &key),
        (&[&cookie[..]], ""),
    ] {
        let answer = finish(headers, key);
        assert!(status(&answer) == 403 && !answer.contains("set-cookie: cairn-1"), "{answer}");
        assert!(answer.contains(r#"refused with \"\""#), "the provider gets no binding: {answer}");
    }
    // Another site cannot end it, and cannot begin one.
    for request in ["POST /session/oidc", "POST /session/oidc/finish"] {
        for headers in [&["x-cairn: none", "origin: http://evil.example", &cookie][..], &[&cookie[..]]] {
            let answer = ask(to, request, headers, "{}");
            assert!(status(&answer) == 403 && answer.contains("does not come from this page"), "{answer}");
        }
    }
    let answer = finish(&[&cookie[..]], &key);
    assert_eq!(answer.matches("set-cookie: ").count(), 2, "{answer}");
    assert!(
        answer.contains(&format!("cairn-oidc-{}=; ", to.port())) && answer.contains("Max-Age=0"),
        "{answer}"
    );
    let own = format!("cookie: {}", part(&answer, "set-cookie: ", ';'));
    let key = format!("x-cairn: {}", part(&answer, "\"key\":\"", '"'));
    assert!(ask(to, "GET /session", &[&own, &key], "").contains(r#""name":"token one""#));
}

#[test]
fn refused_sign_ins_elsewhere_have_to_wait() {
    let clock = Arc::default();
    let to = with_provider("Example", &clock);
    let finish = || ask(to, "POST /session/oidc/finish", &["x-cairn: none"], r#"{"key":"a","state":"b"}"#);
    for _ in 0..5 {
        assert_eq!(status(&finish()), 403);
    }
    assert_eq!(status(&finish()), 429);
    clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(status(&finish()), 403);
}

#[test]
fn page_without_a_provider_offers_none() {
    let clock = Arc::default();
    let to = with_provider("", &clock);
    assert!(!ask(to, "GET /session", &[], "").contains("provider"));
    assert_eq!(status(&ask(to, "POST /session/oidc", &["x-cairn: none"], "")), 404);
    let other = with_provider("Example", &clock);
    let host = format!("host: localhost:{}", other.port());
    let answer = ask(other, "POST /session/oidc", &["x-cairn: none", &host], "");
    assert!(status(&answer) == 403 && answer.contains(&format!("open http://{other}")), "{answer}");
    assert_eq!(status(&ask(to, "GET /oidc?code=a&state=b", &[], "")), 200, "it is the page");
}

#[test]
fn files_load_nothing_from_elsewhere_and_have_no_inline_scripts() {
    for file in FILES {
        let text = std::str::from_utf8(file.bytes).unwrap().replace("http://www.w3.org/2000/svg", "");
        let text = text.replace("http://cairn/v1/jobs/", "");
        assert!(!text.contains("http://") && !text.contains("https://"), "{}", file.name);
        assert!(!text.contains("innerHTML") && !text.contains("eval("), "{}", file.name);
    }
    let index = FILES.iter().find(|file| file.name == "index.html").unwrap();
    let index = std::str::from_utf8(index.bytes).unwrap();
    assert!(!index.contains("<style") && !index.contains("style=") && !index.contains(" on"), "{index}");
    assert_eq!(index.matches("<script").count(), index.matches("<script type=\"module\" src=").count());
}

#[test]
fn every_file_that_the_page_names_is_served_and_none_is_left_over() {
    let mut named = BTreeSet::from(["index.html"]);
    for file in FILES {
        let text = std::str::from_utf8(file.bytes).unwrap();
        named.extend(text.split(" from \"./").skip(1).map(|rest| rest.split('"').next().unwrap()));
        named.extend(text.split("=\"/page/").skip(1).map(|rest| rest.split('"').next().unwrap()));
    }
    let served: BTreeSet<_> = FILES.iter().map(|file| file.name).collect();
    assert_eq!(named, served);
}

#[test]
fn every_answer_has_the_policy_and_a_file_is_sent_once() {
    let to = serve(routes(page(&Arc::default())));
    for request in
        ["GET /", "GET /oidc", "GET /page/app.js", "GET /page/none.js", "GET /session", "POST /session"]
    {
        let answer = ask(to, request, &[], "");
        assert!(answer.contains(&format!("content-security-policy: {}\r\n", *POLICY)), "{answer}");
        assert!(answer.contains("x-content-type-options: nosniff\r\n"), "{answer}");
        assert!(answer.contains("referrer-policy: no-referrer\r\n"), "{answer}");
    }
    let answer = ask(to, "GET /page/app.js", &[], "");
    assert!(answer.contains("content-type: text/javascript"), "{answer}");
    let known = format!("if-none-match: {}", part(&answer, "etag: ", '\r'));
    let again = ask(to, "GET /page/app.js", &[&known], "");
    assert_eq!(status(&again), 304);
    assert!(again.ends_with("\r\n\r\n"), "{again}");
    assert_eq!(status(&ask(to, "GET /page/none.js", &[], "")), 404);
    assert_eq!(status(&ask(to, "GET /page/..%2fsrc%2flib.rs", &[], "")), 404);
}

/// A browser that opens the page again asks for the document alone, and all files are packed.
#[test]
fn files_are_kept_by_the_browser_below_the_version_of_the_page() {
    let to = serve(routes(page(&Arc::default())));
    let index = ask(to, "GET /", &[], "");
    assert!(index.contains("cache-control: no-cache\r\n"), "{index}");
    // The style is in the document, and the policy permits exactly that.
    let style = index.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
    let digest = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(style.as_bytes()));
    assert!(index.contains(&format!("style-src 'self' 'sha256-{digest}';")), "{index}");
    assert!(index.matches("<style").count() == 1 && !index.contains("rel=\"stylesheet\""));
    let named: Vec<&str> =
        index.split("=\"/page/").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(named.len() > 20);
    let version = named[0].split('/').next().unwrap();
    for name in named {
        assert!(name.starts_with(&format!("{version}/")), "{name}");
        let answer = ask(to, &format!("GET /page/{name}"), &[], "");
        assert!(status(&answer) == 200 && answer.contains("max-age=31536000, immutable"), "{answer}");
    }
    let other = ask(to, "GET /page/0000000000000000/app.js", &[], "");
    assert!(status(&other) == 404 && !other.contains("immutable"), "{other}");
    // A browser that cannot unpack gets the file as it is; one tag is not that of the other form.
    let plain = ask(to, "GET /page/app.js", &["accept-encoding: br, gzip;q=0"], "");
    assert!(plain.contains("vary: accept-encoding") && !plain.contains("content-encoding"), "{plain}");
    let known = format!("if-none-match: {}", part(&plain, "etag: ", '\r'));
    for offer in ["gzip", "br, gzip;q=0.5"] {
        let head = ask_bytes(to, "GET /page/app.js", &[&format!("accept-encoding: {offer}"), &known]);
        let text = String::from_utf8_lossy(&head);
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("content-encoding: gzip"), "{text}");
        assert!(2 * head.len() < plain.len(), "{} of {}", head.len(), plain.len());
        let begin = head.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let mut unpacked = String::new();
        flate2::read::GzDecoder::new(&head[begin..]).read_to_string(&mut unpacked).unwrap();
        assert!(plain.ends_with(&unpacked));
    }
}

#[test]
fn session_begins_with_the_token_and_ends_with_the_sign_out() {
    let to = serve(routes(page(&Arc::default())));
    assert!(
        ask(to, "GET /session", &[], "")
            .contains(r#"{"proof":"token","signed_in":false,"name":null,"role":null}"#)
    );
    let wrong = sign_in(to, "wrong");
    assert_eq!(status(&wrong), 403);
    assert!(wrong.contains("the token is wrong") && !wrong.contains("set-cookie"), "{wrong}");
    let [cookie, key] = session(&sign_in(to, TOKEN));
    let is_in = |headers: &[&str]| ask(to, "GET /session", headers, "").contains("\"signed_in\":true");
    assert!(is_in(&[&cookie, &key]));
    let shown = ask(to, "GET /session", &[&cookie, &key], "");
    assert!(shown.contains(r#""name":"token one","role":"viewer""#), "{shown}");
    assert!(!is_in(&[&cookie]) && !is_in(&[&key]), "one part alone");
    assert!(!is_in(&[&cookie, &key, "origin: http://evil.example"]));
    assert!(!is_in(&[&cookie, &key, "sec-fetch-site: cross-site"]));
    assert_eq!(status(&ask(to, "DELETE /session", &[&cookie], "")), 401);
    let out = ask(to, "DELETE /session", &[&cookie, &key], "");
    assert!(status(&out) == 200 && out.contains("Max-Age=0"), "{out}");
    assert!(!is_in(&[&cookie, &key]));
}

#[test]
fn session_ends_when_its_token_is_revoked() {
    let keys = Arc::new(OneKey(AtomicBool::new(false)));
    let to = serve(routes(Page::with_keys(keys.clone(), Arc::<ManualClock>::default())));
    let [cookie, key] = session(&sign_in(to, TOKEN));
    let is_in = || ask(to, "GET /session", &[&cookie, &key], "").contains("\"signed_in\":true");
    assert!(is_in());
    keys.0.store(true, Ordering::Relaxed);
    assert!(!is_in());
    assert_eq!(status(&sign_in(to, TOKEN)), 403);
}

#[test]
fn cookie_that_a_stranger_has_set_gets_no_session() {
    let to = serve(routes(page(&Arc::default())));
    let fixed = format!("cookie: cairn-{}=chosen-by-a-stranger", to.port());
    let body = format!("{{\"secret\":\"{TOKEN}\"}}");
    let answer = ask(to, "POST /session", &["x-cairn: none", &fixed], &body);
    let [cookie, key] = session(&answer);
    assert!(!cookie.contains("chosen-by-a-stranger"), "the session has a new cookie");
    let is_in = |headers: &[&str]| ask(to, "GET /session", headers, "").contains("\"signed_in\":true");
    assert!(is_in(&[&cookie, &key]) && !is_in(&[&fixed, &key]));
}

#[test]
fn another_site_cannot_sign_a_browser_in() {
    let to = serve(routes(page(&Arc::default())));
    let body = format!("{{\"secret\":\"{TOKEN}\"}}");
    // A form sends no header of its own; a script of another site sends its origin.
    for headers in [&[][..], &["x-cairn: none", "origin: http://evil.example"]] {
        let answer = ask(to, "POST /session", headers, &body);
        assert!(status(&answer) == 403 && !answer.contains("set-cookie"), "{answer}");
    }
}

#[test]
fn wrong_tokens_have_to_wait_and_then_the_right_one_as_well() {
    let clock = Arc::default();
    let to = serve(routes(page(&clock)));
    for _ in 0..5 {
        assert_eq!(status(&sign_in(to, "wrong")), 403);
    }
    let late = sign_in(to, TOKEN);
    assert!(status(&late) == 429 && late.contains("retry-after: "), "{late}");
    clock.advance(std::time::Duration::from_secs(60));
    session(&sign_in(to, TOKEN));
}

#[test]
fn too_long_a_sign_in_is_refused() {
    let to = serve(routes(page(&Arc::default())));
    let answer = sign_in(to, &"x".repeat(SIGN_IN_MAX));
    assert!(matches!(status(&answer), 400 | 413), "{answer}");
}

/// A browser sends no key with a download. The URL is a secret that the server checks.
#[test]
fn local_page_passes_downloads_on_without_a_session_and_nothing_else() {
    let folder = std::env::temp_dir().join(format!("cairn-web-download-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("control.sock");
    let _ = std::fs::remove_file(&socket);
    let control = UnixListener::bind(&socket).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let local = LocalPage::new(listener, Target::Unix(socket), Arc::new(ManualClock::default())).unwrap();
    in_background(async move { serve_local(local, std::future::pending()).await.unwrap() });
    let server = std::thread::spawn(move || {
        let (mut stream, _) = control.accept().unwrap();
        let mut taken = [0; 1024];
        let count = stream.read(&mut taken).unwrap();
        let disposition = "content-disposition: attachment; filename=\"a\"";
        write!(stream, "HTTP/1.1 200 OK\r\n{disposition}\r\ncontent-length: 4\r\n\r\nfile").unwrap();
        String::from_utf8_lossy(&taken[..count]).into_owned()
    });
    let answer = ask(to, "GET /download/a-secret", &["cookie: x=y"], "");
    assert!(answer.contains("attachment") && answer.ends_with("file"), "{answer}");
    let taken = server.join().unwrap();
    assert!(taken.starts_with("GET /download/a-secret ") && !taken.contains("cookie"), "{taken}");
    assert_eq!(status(&ask(to, "GET /download/a/b", &[], "")), 401);
    assert_eq!(status(&ask(to, "GET /v1/download/a-secret", &[], "")), 401);
    let other = format!("host: evil.example:{}", to.port());
    assert_eq!(status(&ask(to, "GET /download/a-secret", &[&other], "")), 421);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn local_page_opens_once_and_passes_on_what_a_session_asks() {
    let folder = std::env::temp_dir().join(format!("cairn-web-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("control.sock");
    let _ = std::fs::remove_file(&socket);
    let control = UnixListener::bind(&socket).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let local = LocalPage::new(listener, Target::Unix(socket), Arc::new(ManualClock::default())).unwrap();
    let secret = local.url.split_once("/#link=").unwrap().1.to_owned();
    in_background(async move { serve_local(local, std::future::pending()).await.unwrap() });

    assert_eq!(status(&ask(to, "GET /v1/status", &[], "")), 401);
    let rebound = ask(to, "GET /", &[&format!("host: evil.example:{}", to.port())], "");
    assert_eq!(status(&rebound), 421, "{rebound}");
    // Other users of the machine cannot keep the user from the link.
    for _ in 0..6 {
        assert_eq!(status(&sign_in(to, "wrong")), 403);
    }
    let [cookie, key] = session(&sign_in(to, &secret));
    let again = sign_in(to, &secret);
    assert!(status(&again) == 403 && again.contains("the link was used"), "{again}");

    let server = std::thread::spawn(move || {
        let (mut stream, _) = control.accept().unwrap();
        let mut taken = Vec::new();
        while !taken.ends_with(b"{\"name\":\"a\"}") {
            let mut some = [0; 1024];
            let count = stream.read(&mut some).unwrap();
            assert!(count > 0, "the request is cut");
            taken.extend_from_slice(&some[..count]);
        }
        stream.write_all(b"HTTP/1.1 409 Conflict\r\ncontent-length: 4\r\n\r\nbusy").unwrap();
        String::from_utf8(taken).unwrap()
    });
    let headers = [&cookie[..], &key, "content-type: application/json"];
    let answer = ask(to, "POST /v1/volumes/v/snapshots?a=b", &headers, "{\"name\":\"a\"}");
    assert!(status(&answer) == 409 && answer.ends_with("busy"), "{answer}");
    let taken = server.join().unwrap();
    assert!(taken.starts_with("POST /v1/volumes/v/snapshots?a=b HTTP/1.1\r\n"), "{taken}");
    assert!(taken.contains("content-type: application/json"), "{taken}");
    assert!(!taken.contains("cookie") && !taken.contains("x-cairn"), "{taken}");
    std::fs::remove_dir_all(&folder).unwrap();
    let gone = ask(to, "GET /v1/status", &[&cookie, &key], "");
    assert!(status(&gone) == 502 && gone.contains("does not answer"), "{gone}");
}
