//! Each endpoint of the API against each role, as its description says, and attacks on that: a real
//! server in this process, asked over its sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cairn_server::{Config, Settings};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

const ROLES: [&str; 4] = ["viewer", "operator", "administrator", "lock-keeper"];

/// Secrets that were given to the server, and that no answer may have.
const SECRETS: [&str; 3] = ["chap-secret-of-the-initiator", "chap-secret-of-the-target", "secret-of-a-lock"];

struct Server {
    data: PathBuf,
    http: String,
    /// For a client of it, where connections have TLS.
    tls: Option<Arc<ClientConfig>>,
    /// The secrets of a token for each of [`ROLES`].
    tokens: Vec<String>,
    /// An administrator, an operator and a viewer of the volume `mine` only.
    bound: Vec<String>,
    _folder: tempfile::TempDir,
}

/// An answer: its status, and its body.
struct Answer {
    status: u16,
    head: String,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    fn is_forbidden(&self) -> bool {
        self.status == 403 && self.json()["error"] == "forbidden"
    }
}

/// The server of all tests here.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(false))
}

impl Server {
    fn start(tls: bool) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let settings = Settings {
            data: Some(data.clone()),
            http: Some("127.0.0.1:0".parse().unwrap()),
            tls: Some(tls),
            mirror: Some("off".parse().unwrap()),
            nbd: Some(vec!["off".parse().unwrap()]),
            iscsi: Some(vec!["off".parse().unwrap()]),
            ..Settings::default()
        };
        let (told, ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let config = Config::new(settings).unwrap();
            cairn_server::run(config, |status| told.send(status.http[1].clone()).unwrap()).unwrap();
        });
        let http = ready.recv().unwrap();
        let (tokens, bound) = (Vec::new(), Vec::new());
        let mut server = Server { data, http, tls: None, tokens, bound, _folder: folder };
        if tls {
            let root = server.good("GET", "/v1/tls", &Value::Null)["root"].as_str().unwrap().to_owned();
            server.tls = Some(trusting(root.as_bytes()));
        }
        for volume in ["mine", "other"] {
            server.good("POST", "/v1/volumes", &json!({"name": volume, "size_bytes": 64 << 20}));
            let lun = json!({"name": "db", "size_bytes": 1 << 20});
            server.good("POST", &format!("/v1/volumes/{volume}/luns"), &lun);
        }
        let chap = json!({"name": "initiator", "secret": SECRETS[0], "target_name": "t", "target_secret": SECRETS[1]});
        server.good("PATCH", "/v1/volumes/other/luns/db/access", &json!({"chap": chap}));
        server.tokens = ROLES.map(|role| server.token(role, role, &[])).into();
        let of_mine = |role: &str| server.token(&format!("mine-{role}"), role, &["mine"]);
        server.bound = ["administrator", "operator", "viewer"].map(of_mine).into();
        server
    }

    fn talk(&self, mut stream: impl Read + Write, text: &str) -> Answer {
        // The server may refuse before it has read all.
        let _ = stream.write_all(text.as_bytes());
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            answer.extend_from_slice(&piece[..count]);
            // A stream of changes has no end.
            if String::from_utf8_lossy(&answer).contains("content-type: text/event-stream") {
                break;
            }
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_owned(), text: body.to_owned() }
    }

    fn raw(&self, text: &str) -> Answer {
        let stream = TcpStream::connect(&self.http).unwrap();
        let Some(tls) = &self.tls else { return self.talk(stream, text) };
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connection = ClientConnection::new(tls.clone(), name).unwrap();
        self.talk(StreamOwned::new(connection, stream), text)
    }

    /// A request over TCP.
    fn ask(&self, headers: &[&str], method: &str, path: &str, body: &Value) -> Answer {
        let body = if method == "GET" || method == "HEAD" { String::new() } else { body.to_string() };
        let mut text = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
            self.http,
            body.len()
        );
        headers.iter().for_each(|header| text += &format!("{header}\r\n"));
        self.raw(&format!("{text}\r\n{body}"))
    }

    fn with(&self, token: &str, method: &str, path: &str, body: &Value) -> Answer {
        self.ask(&[&format!("authorization: Bearer {token}")], method, path, body)
    }

    /// A request on the control socket that succeeds.
    fn good(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.local(method, path, body);
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text);
        answer.json()
    }

    fn local(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = body.to_string();
        let stream = UnixStream::connect(self.data.join("control.sock")).unwrap();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: cairn\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.talk(stream, &text)
    }

    fn token(&self, name: &str, role: &str, volumes: &[&str]) -> String {
        let made = self.good("POST", "/v1/tokens", &json!({"name": name, "role": role, "volumes": volumes}));
        made["secret"].as_str().unwrap().to_owned()
    }

    fn of_role(&self, role: &str) -> &str {
        &self.tokens[ROLES.iter().position(|one| *one == role).unwrap()]
    }

    fn audit(&self) -> Vec<Value> {
        let lines = self.good("GET", "/v1/audit?limit=100000", &Value::Null);
        lines.as_array().unwrap().clone()
    }
}

/// A client's side of TLS that trusts a root.
fn trusting(root: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

/// The operations of the description: the method, the path, and the operation.
fn operations() -> Vec<(String, String, Value)> {
    let described: Value = serde_json::from_str(&cairn_server::openapi_json()).unwrap();
    let paths = described["paths"].as_object().unwrap().clone();
    let of = |(path, operations): (String, Value)| {
        let operations = operations.as_object().unwrap().clone();
        operations.into_iter().map(move |(method, one)| (method.to_uppercase(), path.clone(), one))
    };
    paths.into_iter().flat_map(of).collect()
}

/// A path with each of its parameters replaced.
fn filled(path: &str, with: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { with } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[test]
fn every_endpoint_answers_every_role_as_its_description_says() {
    check_every_endpoint(server());
}

#[test]
fn every_endpoint_answers_every_role_over_tls_as_well() {
    let server = Server::start(true);
    check_every_endpoint(&server);
    // Without TLS there is no answer of the API, and with another root the client sends nothing.
    let mut plain = TcpStream::connect(&server.http).unwrap();
    write!(plain, "GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    let stranger = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(trusting(stranger.cert.pem().as_bytes()), name).unwrap();
    let mut fooled = StreamOwned::new(connection, TcpStream::connect(&server.http).unwrap());
    let refused = fooled.write_all(b"GET / HTTP/1.1\r\n").unwrap_err().to_string();
    assert!(refused.contains("UnknownIssuer") || refused.contains("certificate"), "{refused}");
    // A session's cookie is for TLS only, whatever the browser says about its origin.
    let secret = server.token("browser", "viewer", &[]);
    let begun = server.ask(&["x-cairn: none"], "POST", "/session", &json!({"secret": secret}));
    assert!(begun.status == 200 && begun.head.contains("; Secure"), "{}", begun.head);
}

fn check_every_endpoint(server: &Server) {
    let all = operations();
    assert!(all.len() > 100);
    for (method, path, operation) in &all {
        let permitted: Vec<&str> = operation["x-cairn-access"]["roles"]
            .as_array()
            .unwrap_or_else(|| panic!("{method} {path} has no roles"))
            .iter()
            .map(|role| role.as_str().unwrap())
            .collect();
        let asked = filled(path, "none");
        for role in ROLES {
            let answer = server.with(server.of_role(role), method, &asked, &json!({}));
            assert_ne!(answer.status, 0, "{method} {asked} as {role}");
            let what = format!("{method} {asked} as {role}: {} {}", answer.status, answer.text);
            assert_eq!(answer.is_forbidden(), !permitted.contains(&role), "{what}");
            if answer.is_forbidden() {
                let needs = answer.json()["message"].as_str().unwrap().to_owned();
                assert!(needs.contains("needs the role") && needs.contains("administrator"), "{what}");
            }
        }
        // A user of the control socket is an administrator.
        if method == "GET" {
            assert!(!server.local(method, &asked, &Value::Null).is_forbidden(), "{asked}");
        }
    }
    // Each of these takes a while, so that guesses are slow.
    for some in all.chunks(4) {
        std::thread::scope(|scope| {
            for (method, path, _) in some {
                scope.spawn(move || {
                    let without = server.ask(&[], method, &filled(path, "none"), &json!({}));
                    assert_eq!(without.status, 401, "{method} {path}");
                    assert!(without.head.contains("www-authenticate"), "{}", without.head);
                });
            }
        });
    }
    for secret in ["", "wrong"] {
        assert_eq!(server.with(secret, "GET", "/metrics", &Value::Null).status, 401);
    }
    assert_eq!(server.ask(&[], "GET", "/metrics", &Value::Null).status, 401);
    for role in ROLES {
        let metrics = server.with(server.of_role(role), "GET", "/metrics", &Value::Null);
        assert_eq!(metrics.status == 200, role != "lock-keeper", "{role}");
    }
}

#[test]
fn token_of_a_volume_touches_and_shows_no_other() {
    let server = server();
    let [administrator, operator, viewer] = &server.bound[..] else { unreachable!() };
    server.good("POST", "/v1/volumes/other/check", &json!({}));
    for (method, path, operation) in operations() {
        let asked = filled(&path, "other");
        // Of the last one the volume is in the body.
        let body = json!({"what": "delete-volume", "volume": "other", "name": "other", "parent": "other"});
        let answer = server.with(administrator, &method, &asked, &body);
        let what = format!("{method} {asked}: {} {}", answer.status, answer.text);
        if path.contains('{') || operation["x-cairn-access"]["whole_server"] == true || path == "/v1/dry-run"
        {
            assert!(answer.is_forbidden(), "{what}");
        } else {
            assert!(!answer.text.contains("other"), "{what}");
        }
    }
    for (path, token) in
        [("/v1/volumes/mine", viewer), ("/v1/volumes/mine/luns", viewer), ("/v1/status", viewer)]
    {
        assert_eq!(server.with(token, "GET", path, &Value::Null).status, 200, "{path}");
    }
    let listed = server.with(viewer, "GET", "/v1/volumes", &Value::Null).json();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["name"], "mine");
    let exports = server.with(viewer, "GET", "/v1/exports", &Value::Null).json();
    assert!(exports.as_array().unwrap().iter().all(|export| export["name"] == "mine/db"), "{exports}");
    // Other spellings of the other volume.
    for path in [
        "/v1/volumes/mine%2f..%2fother",
        "/v1/volumes/mine/../other",
        "/v1/volumes/%6fther",
        "/v1/volumes/mine%00",
        "/v1/volumes/mine/luns/..%2f..%2fother",
        "/v1/plans/other%2Fdb",
        "/v1/devices/other",
    ] {
        let answer = server.with(viewer, "GET", path, &Value::Null);
        assert!(answer.status >= 400 && !answer.text.contains("size_bytes"), "{path}: {}", answer.text);
    }
    let made = server.with(operator, "POST", "/v1/volumes/mine/snapshots", &json!({"name": "s"}));
    assert_eq!(made.status, 200, "{}", made.text);
    let deleted = server.with(operator, "DELETE", "/v1/volumes/mine/snapshots/s", &Value::Null);
    assert!(deleted.is_forbidden(), "{}", deleted.text);
    let body = json!({"what": "delete-volume", "volume": "mine"});
    assert!(!server.with(viewer, "POST", "/v1/dry-run", &body).is_forbidden());
}

#[test]
fn requests_that_are_dressed_up_get_no_more_rights() {
    let server = server();
    let viewer = format!("authorization: Bearer {}", server.of_role("viewer"));
    let operator = server.of_role("operator");
    let administrator = format!("authorization: Bearer {}", server.of_role("administrator"));
    let none = Value::Null;
    assert_eq!(server.ask(&[&viewer], "HEAD", "/v1/tokens", &none).status, 403);
    for path in ["/v1/tokens/", "//v1/tokens", "/V1/tokens", "/v1/./tokens", "/v1/%74okens", "/v1/tokens%20"]
    {
        let answer = server.ask(&[&viewer], "GET", path, &none);
        assert!(answer.status >= 400 && !answer.text.contains("created_ms"), "{path}: {}", answer.text);
    }
    let absolute = format!("http://{}/v1/tokens", server.http);
    assert!(server.ask(&[&viewer], "GET", &absolute, &none).is_forbidden());
    // One of two is an administrator's: a proxy may have judged the other.
    for headers in [[&viewer[..], &administrator], [&administrator, &viewer]] {
        assert_eq!(server.ask(&headers, "GET", "/v1/tokens", &none).status, 401);
    }
    for header in ["x-http-method-override: GET", "x-forwarded-for: 127.0.0.1", "x-cairn-role: administrator"]
    {
        assert!(
            server.ask(&[&viewer, header], "DELETE", "/v1/volumes/none", &none).is_forbidden(),
            "{header}"
        );
    }
    let secret = server.of_role("administrator");
    for wrong in [
        format!("authorization: bearer {secret}"),
        format!("authorization: Bearer  {secret}"),
        format!("authorization: Bearer {secret},x"),
        format!("authorization: Basic {secret}"),
        format!("cookie: cairn-session={secret}"),
        format!("x-cairn: {secret}"),
        "authorization: Bearer ".to_owned(),
    ] {
        assert_eq!(server.ask(&[&wrong], "GET", "/v1/tokens", &none).status, 401, "{wrong}");
    }
    assert_eq!(server.ask(&[], "GET", &format!("/v1/tokens?token={secret}"), &none).status, 401);
    // Two lengths: what one reader takes for a body is a request for another.
    let smuggled = format!(
        "POST /v1/dry-run HTTP/1.1\r\nhost: x\r\n{viewer}\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\
         transfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/tokens HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    );
    let answer = server.raw(&smuggled);
    assert!(!answer.text.contains("created_ms") && !answer.head.contains("created_ms"), "{}", answer.text);
    let two = format!(
        "GET /v1/status HTTP/1.1\r\nhost: x\r\n{viewer}\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"
    );
    assert!(matches!(server.raw(&two).status, 0 | 400));
    // A body that destroys, written in several ways.
    let lun = "/v1/volumes/mine/luns/db";
    for body in
        [r#"{"size_bytes":512,"allow_shrink":true}"#, r#"{"size_bytes":512,"allow_shr\u0069nk":true}"#]
    {
        let body: Value = serde_json::from_str(body).unwrap();
        assert!(server.with(operator, "PATCH", lun, &body).is_forbidden(), "{body}");
    }
    let twice = r#"{"size_bytes":512,"allow_shrink":true,"allow_shrink":false}"#;
    let text = format!(
        "PATCH {lun} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {operator}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{twice}",
        twice.len()
    );
    assert!(server.raw(&text).status >= 400);
    let luns = server.good("GET", "/v1/volumes/mine/luns", &none);
    assert_eq!(luns[0]["size_bytes"], 1 << 20, "it has not shrunk");
}

#[test]
fn secrets_are_in_no_answer_and_not_in_the_audit_log() {
    let server = server();
    let invited =
        server.local("POST", "/v1/peers/invite", &json!({"volume": "mine", "advertise": "10.0.0.1:7420"}));
    let mut secrets: Vec<String> = SECRETS.map(str::to_owned).into();
    secrets.extend(server.tokens.iter().chain(&server.bound).cloned());
    secrets.extend(invited.json()["token"].as_str().map(str::to_owned));
    secrets.push(std::fs::read_to_string(server.data.join("http-token")).unwrap().trim().to_owned());
    for (method, path, _) in operations() {
        if method != "GET" {
            continue;
        }
        for with in ["mine", "other", "db", "administrator"] {
            let answer =
                server.with(server.of_role("administrator"), "GET", &filled(&path, with), &Value::Null);
            for secret in &secrets {
                assert!(!answer.text.contains(secret), "{path} {with}");
            }
        }
    }
    server.with("not-a-token-but-a-password", "GET", "/v1/status", &Value::Null);
    for file in ["audit.jsonl", "tokens.json"] {
        let text = std::fs::read_to_string(server.data.join(file)).unwrap();
        for secret in secrets.iter().map(String::as_str).chain(["not-a-token-but-a-password"]) {
            assert!(!text.contains(secret), "{file}");
        }
        assert_eq!(mode(&server.data.join(file)), 0o600, "{file}");
    }
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn session_of_the_page_has_the_role_of_its_token_and_ends_with_it() {
    let server = server();
    let secret = server.token("browser", "viewer", &[]);
    let own = format!("origin: http://{}", server.http);
    let begun = server.ask(&["x-cairn: none", &own], "POST", "/session", &json!({"secret": secret}));
    assert_eq!((begun.status, &begun.json()["role"]), (200, &json!("viewer")), "{}", begun.text);
    let cookie = begun.head.split("set-cookie: ").nth(1).unwrap().split("\r\n").next().unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = format!("cookie: {}", cookie.split(';').next().unwrap());
    let key = format!("x-cairn: {}", begun.json()["key"].as_str().unwrap());
    let none = Value::Null;
    assert_eq!(server.ask(&[&cookie, &key], "GET", "/v1/volumes", &none).status, 200);
    let refused = server.ask(&[&cookie, &key, &own], "DELETE", "/v1/volumes/mine", &none);
    assert!(
        refused.is_forbidden() && refused.text.contains("needs the role administrator"),
        "{}",
        refused.text
    );
    // The cookie alone, as a form of another site sends it, and a script of another site.
    for headers in [&[&cookie[..]][..], &[&cookie, &key, "origin: http://evil.example"]] {
        assert_eq!(
            server.ask(headers, "POST", "/v1/volumes/mine/snapshots", &json!({"name": "x"})).status,
            401
        );
    }
    server.good("DELETE", "/v1/tokens/browser", &none);
    assert_eq!(server.ask(&[&cookie, &key], "GET", "/v1/volumes", &none).status, 401);
    assert_eq!(server.with(&secret, "GET", "/v1/volumes", &none).status, 401);
}

#[test]
fn audit_log_has_changes_and_refused_tries() {
    let server = server();
    let none = Value::Null;
    server.with(
        server.of_role("operator"),
        "POST",
        "/v1/volumes/mine/snapshots",
        &json!({"name": "audited"}),
    );
    server.with(server.of_role("viewer"), "DELETE", "/v1/volumes/mine/snapshots/audited", &none);
    server.with(
        server.of_role("operator"),
        "POST",
        "/v1/volumes/mine/snapshots",
        &json!({"name": "audited"}),
    );
    server.good("DELETE", "/v1/volumes/mine/snapshots/audited", &none);
    // A command on this machine, which only the control socket accepts.
    server.with(server.of_role("administrator"), "PATCH", "/v1/volumes/mine/hooks", &json!({"before": "id"}));
    let lines = server.audit();
    let has = |actor: &str, action: &str, object: &str, outcome: &str| {
        lines.iter().any(|line| {
            line["actor"] == actor
                && line["action"] == action
                && line["object"] == object
                && line["outcome"] == outcome
        })
    };
    let (make, delete) =
        ("POST /v1/volumes/{volume}/snapshots", "DELETE /v1/volumes/{volume}/snapshots/{snapshot}");
    assert!(has("token operator", make, "mine/audited", "done"), "{lines:#?}");
    assert!(has("token operator", make, "mine/audited", "failed"), "it was there already");
    assert!(has("token viewer", delete, "mine/audited", "refused"));
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&server.data).unwrap());
    assert!(has(&format!("uid {uid}"), delete, "mine/audited", "done"));
    assert!(has("token administrator", "PATCH /v1/volumes/{volume}/hooks", "mine", "refused"));
    let refused =
        lines.iter().find(|line| line["actor"] == "token viewer" && line["outcome"] == "refused").unwrap();
    assert!(refused["from"] == "127.0.0.1" && refused["role"] == "viewer", "{refused}");
    assert!(refused["reason"].as_str().unwrap().contains("needs the role"), "{refused}");
}

#[test]
fn change_whose_client_leaves_is_in_the_audit_log_as_well() {
    let server = server();
    let body = json!({"name": "left-behind"}).to_string();
    let mut stream = TcpStream::connect(&server.http).unwrap();
    write!(
        stream,
        "POST /v1/volumes/mine/snapshots HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        server.of_role("operator"),
        body.len()
    )
    .unwrap();
    drop(stream);
    let within = |wanted: &dyn Fn() -> bool| {
        let begun = std::time::Instant::now();
        while !wanted() && begun.elapsed().as_secs() < 5 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        wanted()
    };
    let is_there = || {
        let snapshots = server.good("GET", "/v1/volumes/mine/snapshots", &Value::Null);
        snapshots.as_array().unwrap().iter().any(|one| one["name"] == "left-behind")
    };
    // A request that was cut off before it began has changed nothing.
    if within(&is_there) {
        assert!(within(&|| server.audit().iter().any(|line| line["object"] == "mine/left-behind")));
    }
}

/// Reads a stream until it has a text, or ends; true if it has it.
fn reads(stream: &mut TcpStream, text: &str) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (mut found, mut piece) = (String::new(), [0; 4096]);
    while !found.contains(text) {
        match stream.read(&mut piece) {
            Ok(count @ 1..) => found += &String::from_utf8_lossy(&piece[..count]),
            _ => return false,
        }
    }
    true
}

fn begin(server: &Server, secret: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&server.http).unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {secret}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn stream_ends_when_its_token_is_revoked_or_expires_and_a_job_of_it_does_not() {
    let server = server();
    let none = Value::Null;
    let secret = server.token("streaming", "viewer", &[]);
    let mut stream = begin(server, &secret, "/v1/changes");
    assert!(reads(&mut stream, ": hello"));
    let began = Instant::now();
    server.good("DELETE", "/v1/tokens/streaming", &none);
    assert!(!reads(&mut stream, "a text that never comes"));
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());

    // One that expires ends at the next beat at the latest.
    let body = json!({"name": "short", "role": "viewer", "expires_ms": 700});
    let secret = server.good("POST", "/v1/tokens", &body)["secret"].as_str().unwrap().to_owned();
    let mut stream = begin(server, &secret, "/v1/changes");
    assert!(reads(&mut stream, ": hello"));
    std::thread::sleep(Duration::from_millis(800));
    // A change wakes it, and it does not report that.
    server.good("POST", "/v1/volumes/mine/snapshots", &json!({"name": "wakes-streams"}));
    assert!(!reads(&mut stream, "data: changed"));
    server.good("DELETE", "/v1/volumes/mine/snapshots/wakes-streams", &none);

    // A job belongs to the server.
    let secret = server.token("working", "operator", &[]);
    let job = server.with(&secret, "POST", "/v1/volumes/mine/check", &json!({"deep": true})).json();
    server.good("DELETE", "/v1/tokens/working", &none);
    let path = format!("/v1/jobs/{}?within_ms=5000", job["id"].as_str().unwrap());
    assert_eq!(server.good("GET", &path, &none)["state"], "done");
    assert_eq!(server.with(&secret, "GET", &path, &none).status, 401);
}

/// Connections that send nothing, a part of a request, or a body without an end: none keeps others
/// out, and none is kept for long.
#[test]
fn slow_and_huge_requests_hold_up_no_other() {
    let server = server();
    let secret = server.of_role("operator");
    let head = |length: &str| {
        format!(
            "POST /v1/volumes/mine/snapshots HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
        )
    };
    let mut slow = Vec::new();
    for beginning in [
        "",
        "GET /v1/st",
        "GET / HTTP/1.1\r\nhost: x\r\n",
        "POST /session HTTP/1.1\r\ncontent-length: 9\r\n\r\n{",
    ] {
        let mut stream = TcpStream::connect(&server.http).unwrap();
        stream.write_all(beginning.as_bytes()).unwrap();
        slow.push(stream);
    }
    let mut half = TcpStream::connect(&server.http).unwrap();
    half.write_all(format!("{}{{\"name\":", head("content-length: 100")).as_bytes()).unwrap();
    let began = Instant::now();
    assert_eq!(server.with(secret, "GET", "/v1/status", &Value::Null).status, 200);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());

    // More than a request may have, with its length and in chunks.
    let large = format!("{}{}", head("content-length: 3000000"), "x".repeat(3_000_000));
    let answer = server.raw(&large);
    assert!(matches!(answer.status, 0 | 400 | 413), "{} {}", answer.status, answer.text);
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
    let answer = server.raw(&format!("{}{}0\r\n\r\n", head("transfer-encoding: chunked"), chunk.repeat(3)));
    assert!(matches!(answer.status, 0 | 400 | 413), "{} {}", answer.status, answer.text);
    let headers = format!("GET /v1/status HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "y".repeat(1 << 20));
    assert!(matches!(server.raw(&headers).status, 0 | 400 | 431));
    let many = "x-many: y\r\n".repeat(10_000);
    assert!(matches!(server.raw(&format!("GET / HTTP/1.1\r\nhost: x\r\n{many}\r\n")).status, 0 | 400 | 431));
    assert_eq!(server.with(secret, "GET", "/v1/status", &Value::Null).status, 200);

    // Those without a token are closed after ten seconds.
    for mut stream in slow {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

/// Names that look like further headers, files outside of the page, and cookies that are chosen.
#[test]
fn page_serves_its_files_alone_and_takes_no_headers_from_names() {
    let server = server();
    let none = Value::Null;
    for path in [
        "/page/../Cargo.toml",
        "/page/..%2f..%2fetc%2fpasswd",
        "/page/%2e%2e/%2e%2e/etc/passwd",
        "/page//etc/passwd",
        "/page/app.js%00.css",
        "/page/APP.JS",
        "/page/",
        "/etc/passwd",
        "/../../etc/passwd",
    ] {
        let answer = server.ask(&[], "GET", path, &none);
        assert!(matches!(answer.status, 400 | 401 | 404), "{path}: {}", answer.status);
        assert!(!answer.text.contains("root:") && !answer.text.contains("[package]"), "{path}");
    }
    let secret = server.of_role("operator");
    for name in ["a%0d%0aset-cookie:%20x=y", "a%0aset-cookie:x", "%0d%0a%0d%0a<script>"] {
        for path in [
            format!("/v1/volumes/mine/files/content?path={name}"),
            format!("/v1/volumes/{name}"),
            format!("/page/{name}"),
            format!("/download/{name}"),
        ] {
            let answer = server.with(secret, "GET", &path, &none);
            assert!(
                answer.status >= 400 && !answer.head.to_lowercase().contains("set-cookie"),
                "{}",
                answer.head
            );
        }
    }
    // A cookie or a key of another one's choice, and parts of a session of another token.
    let sessions: Vec<[String; 2]> = ["viewer", "operator"]
        .map(|role| {
            let begun =
                server.ask(&["x-cairn: none"], "POST", "/session", &json!({"secret": server.of_role(role)}));
            let cookie = begun.head.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap();
            [format!("cookie: {cookie}"), format!("x-cairn: {}", begun.json()["key"].as_str().unwrap())]
        })
        .into();
    let [[cookie, key], [other_cookie, other_key]] = &sessions[..] else { unreachable!() };
    for headers in [[cookie, other_key], [other_cookie, key], [cookie, &"x-cairn: ".to_owned()]] {
        let headers = headers.map(String::as_str);
        assert_eq!(server.ask(&headers, "GET", "/v1/status", &none).status, 401, "{headers:?}");
    }
    // Both cookies: the first of the name counts, and its key must fit.
    let both = format!("{cookie}; {}", other_cookie.trim_start_matches("cookie: "));
    assert_eq!(server.ask(&[&both, other_key], "GET", "/v1/status", &none).status, 401);
    for origin in ["null", "http://evil.example", "https://127.0.0.1.evil.example"] {
        let origin = format!("origin: {origin}");
        assert_eq!(server.ask(&[cookie, key, &origin], "GET", "/v1/status", &none).status, 401, "{origin}");
    }
}

#[test]
fn client_learns_which_requests_it_may_not_make() {
    let server = server();
    let none = Value::Null;
    let of = |secret: &str| server.with(secret, "GET", "/v1/access", &none).json();
    let forbidden = |shown: &Value, request: &str| {
        shown["forbidden"].as_array().unwrap().iter().any(|one| one["request"] == request)
    };
    let viewer = of(server.of_role("viewer"));
    assert_eq!((&viewer["name"], &viewer["role"]), (&json!("token viewer"), &json!("viewer")));
    assert!(forbidden(&viewer, "DELETE /v1/volumes/{volume}") && !forbidden(&viewer, "GET /v1/volumes"));
    assert_eq!(of(server.of_role("administrator"))["forbidden"], json!([]));
    let bound = of(&server.bound[0]);
    assert_eq!(bound["volumes"], json!(["mine"]));
    assert!(forbidden(&bound, "POST /v1/clones") && !forbidden(&bound, "DELETE /v1/volumes/{volume}"));
    assert_eq!(server.good("GET", "/v1/access", &none)["role"], "administrator");
}
