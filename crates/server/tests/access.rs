//! Each endpoint of the API against each role, as its description says, and attacks on that: a real
//! server in this process, asked over its sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cairn_server::{Config, Settings};
use serde_json::{Value, json};

const ROLES: [&str; 4] = ["viewer", "operator", "administrator", "lock-keeper"];

/// Secrets that were given to the server, and that no answer may have.
const SECRETS: [&str; 3] = ["chap-secret-of-the-initiator", "chap-secret-of-the-target", "secret-of-a-lock"];

struct Server {
    data: PathBuf,
    http: String,
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
    SERVER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let settings = Settings {
            data: Some(data.clone()),
            http: Some("127.0.0.1:0".parse().unwrap()),
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
        let mut server = Server { data, http, tokens: Vec::new(), bound: Vec::new(), _folder: folder };
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
    })
}

impl Server {
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
        self.talk(TcpStream::connect(&self.http).unwrap(), text)
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
    let server = server();
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
