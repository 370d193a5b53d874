//! Tokens, certificates, rules for NBD and the audit log from the command line, with curl, libnbd
//! and qemu as clients.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cairn_frontend_nbd::{Address, Client, ClientOptions};
use cairn_oidc::fake::{CLIENT, FakeProvider};
use running::{Running, cairn};

mod running;

/// A port that was free a moment ago.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The output of a foreign program; none where it is not installed.
fn foreign(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Ok(output) => Some(output),
        Err(_) => {
            eprintln!("SKIPPED: {program} is not installed");
            None
        }
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A server with a volume `v` and the LUNs `db` and `log`, and the ports of HTTPS and NBD.
fn server(dir: &Path, more: &[&str]) -> (Running, String, String) {
    let (http, nbd) = (format!("127.0.0.1:{}", port()), format!("127.0.0.1:{}", port()));
    let own = ["--mirror", "off", "--iscsi", "off", "--http", &http, "--nbd", &nbd];
    let server = Running::start_with(dir, "server", &[&own, more].concat());
    server.good(&["volume", "create", "v", "--size", "128M"]);
    for lun in ["v/db", "v/log"] {
        server.good(&["lun", "create", lun, "--size", "8M"]);
    }
    (server, http, nbd)
}

/// Stores a text in a file that only the test reads.
fn file(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn opens(nbd: &str, export: &str) -> Result<(), String> {
    let address: Address = nbd.parse().unwrap();
    Client::connect(&address, &ClientOptions::new(export)).map(drop).map_err(|error| error.to_string())
}

#[test]
fn token_from_the_command_line_has_its_role_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (server, http, _) = server(dir.path(), &["--tls"]);
    let secret = server.good(&["token", "create", "reader", "--role", "viewer", "--expires", "30d"]);
    let token = file(dir.path(), "token", &secret);
    let root = file(dir.path(), "root.pem", &server.good(&["tls", "root"]));
    let far = |arguments: &[&str]| {
        let reach = ["--server", &http, "--token-file", &token, "--tls-root", &root];
        cairn().args(reach).args(arguments).output().unwrap()
    };
    let listed = far(&["volume", "list"]);
    assert!(listed.status.success() && said(&listed).contains("128 MiB"), "{}", said(&listed));
    let refused = far(&["volume", "delete", "v", "--yes"]);
    assert_eq!(refused.status.code(), Some(12), "{}", said(&refused));
    assert!(said(&refused).contains("needs the role administrator"), "{}", said(&refused));
    // Without TLS, and with the root of another server.
    let plain = cairn().args(["--server", &http, "--token-file", &token, "status"]).output().unwrap();
    assert!(!plain.status.success());
    let other = tempfile::tempdir().unwrap();
    let stranger =
        Running::start_with(other.path(), "other", &["--mirror", "off", "--iscsi", "off", "--nbd", "off"]);
    let foreign_root = file(dir.path(), "other.pem", &stranger.good(&["tls", "root"]));
    let strange = ["--server", &http, "--token-file", &token, "--tls-root", &foreign_root, "status"];
    let fooled = cairn().args(strange).output().unwrap();
    assert!(said(&fooled).contains("TLS with"), "{}", said(&fooled));
    let url = format!("https://{http}/v1/status");
    let header = file(dir.path(), "header", &format!("Authorization: Bearer {}", secret.trim()));
    let header = format!("@{header}");
    if let Some(answer) = foreign("curl", &["-sS", "--cacert", &root, "-H", &header, &url]) {
        assert!(said(&answer).contains("\"volumes\""), "{}", said(&answer));
    }
    if let Some(answer) = foreign("curl", &["-sS", "-H", &header, &url]) {
        assert!(!answer.status.success(), "its certificate is of no authority that the machine knows");
    }
    page_of_a_command_passes_on_over_tls(&http, &token, &root);
    let other = other_server_shows_this_one(dir.path(), &http, &token, &root);
    let listed = server.good(&["token", "list"]);
    assert!(listed.contains("reader") && listed.contains("http-token"), "{listed}");
    assert!(!listed.contains(secret.trim()));
    server.good(&["token", "revoke", "reader", "--yes"]);
    assert_eq!(far(&["status"]).status.code(), Some(12));
    let said = other.bad(12, "peer-refused", &["fleet", "test", "storage1"]);
    assert!(said.starts_with(&http), "{said}");
    assert!(other.good(&["fleet", "list"]).contains("UNREACHABLE"));
    let audit = server.good(&["audit", "list", "--since", "1h"]);
    for line in ["token reader", "refused: this request needs the role administrator", "POST /v1/tokens"] {
        assert!(audit.contains(line), "{audit}");
    }
}

/// `cairn web` with `--server`: the browser talks to this machine, and the command to the server.
fn page_of_a_command_passes_on_over_tls(http: &str, token: &str, root: &str) {
    use std::io::{BufRead, BufReader, Read, Write};
    let mut web = cairn();
    web.args(["web", "--no-open", "--json", "--server", http, "--token-file", token, "--tls-root", root]);
    let mut web = web.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(web.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    let url = told["url"].as_str().unwrap().trim_start_matches("http://");
    let (address, link) = url.split_once("/#link=").unwrap();
    let ask = |method: &str, path: &str, headers: &str, body: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let begun = ask("POST", "/session", "x-cairn: none\r\n", &format!("{{\"secret\":\"{link}\"}}"));
    let part =
        |begin: &str, end: char| begun.split(begin).nth(1).unwrap().split(end).next().unwrap().to_owned();
    let session =
        format!("cookie: {}\r\nx-cairn: {}\r\n", part("set-cookie: ", ';'), part("\"key\":\"", '"'));
    let status = ask("GET", "/v1/status", &session, "");
    assert!(status.starts_with("HTTP/1.1 200") && status.contains("\"volumes\""), "{status}");
    assert!(ask("GET", "/v1/access", &session, "").contains("\"token reader\""));
    let refused = ask("DELETE", "/v1/volumes/v", &session, "");
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    web.kill().unwrap();
    web.wait().unwrap();
}

/// Another server that reads this one with a token of a viewer; no list has that.
fn other_server_shows_this_one(dir: &Path, http: &str, token: &str, root: &str) -> Running {
    let own = ["--mirror", "off", "--iscsi", "off", "--nbd", "off"];
    let other = Running::start_with(dir, "fleet", &own);
    let from_file = format!("@{token}");
    let add = ["fleet", "create", "storage1", http, "--token", &from_file];
    let with_root = [&add[..], &["--root", root]].concat();
    // Without TLS, at an address that is not of this machine, with a wrong token, and with one that
    // may do more than it needs.
    assert!(!other.run(&add).status.success());
    let far = ["fleet", "create", "storage1", "192.0.2.1:7400", "--token", &from_file];
    assert!(other.bad(2, "usage", &far).contains("in the clear"));
    let wrong = format!("@{}", file(dir, "wrong", "cairnkey-wrong"));
    other.bad(12, "peer-refused", &["fleet", "create", "storage1", http, "--token", &wrong, "--root", root]);
    let first = format!("@{}", dir.join("server/http-token").display());
    let high = ["fleet", "create", "storage1", http, "--token", &first, "--root", root];
    assert!(other.bad(2, "usage", &high).contains("the role administrator"));
    other.good(&with_root);
    other.bad(21, "taken", &with_root);
    let listed = other.good(&["fleet", "list"]);
    assert!(listed.contains("storage1") && listed.contains(http), "{listed}");
    let shown = other.json(&["fleet", "show", "storage1"]);
    assert_eq!((&shown["tls"], &shown["summary"]["volumes"]), (&true.into(), &1.into()), "{shown}");
    let secret = std::fs::read_to_string(token).unwrap();
    let audit = other.json(&["audit", "list"]).to_string();
    for text in [listed, shown.to_string(), other.json(&["fleet", "list"]).to_string(), audit] {
        assert!(!text.contains(secret.trim()), "{text}");
    }
    let kept = other.data.join("fleet.json");
    assert!(std::fs::read_to_string(&kept).unwrap().contains(secret.trim()));
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(kept).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    other
}

/// A request to the page, as a browser sends it.
fn ask(to: &str, request: &str, headers: &[&str], body: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(to).unwrap();
    let mut text = format!(
        "{request} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    headers.iter().for_each(|header| text += &format!("{header}\r\n"));
    write!(stream, "{text}\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn part<'a>(answer: &'a str, begin: &str, end: char) -> &'a str {
    answer.split(begin).nth(1).unwrap_or_else(|| panic!("{answer}")).split(end).next().unwrap()
}

/// Signs a person in, and returns the answer with the session or the refusal.
fn sign_in_by(provider: &FakeProvider, http: &str) -> String {
    let begun = ask(http, "POST /session/oidc", &["x-cairn: none"], "");
    let (cookie, key) = (part(&begun, "set-cookie: ", ';'), part(&begun, "\"key\":\"", '"'));
    let query = provider.agree(part(&begun, "\"url\":\"", '"'));
    let get = |name: &str| query.iter().find(|(found, _)| found == name).unwrap().1.clone();
    let body = serde_json::json!({ "key": key, "state": get("state"), "code": get("code") });
    ask(
        http,
        "POST /session/oidc/finish",
        &["x-cairn: none", &format!("cookie: {cookie}")],
        &body.to_string(),
    )
}

#[test]
fn rules_on_claims_give_people_of_a_provider_their_roles() {
    let dir = tempfile::tempdir().unwrap();
    let provider = FakeProvider::start();
    let (server, http, _) = server(dir.path(), &[]);
    server.bad(10, "not-found", &["oidc", "show"]);
    let secret = file(dir.path(), "secret", &format!("{}\n", CLIENT.1));
    let redirect = format!("http://{http}/oidc");
    let place = ["--issuer", provider.issuer(), "--client-id", CLIENT.0, "--redirect-url", &redirect];
    let set = [&["oidc", "set", "--client-secret-file", &secret][..], &place].concat();
    let shown = server.good(&set);
    assert!(shown.contains("localhost") && shown.contains("client secret  set"), "{shown}");
    server.bad(2, "usage", &["oidc", "set", "--issuer", "http://login.example.com"]);
    server.bad(2, "usage", &["oidc", "set", "--redirect-url", &format!("http://{http}/")]);
    let found = server.json(&["oidc", "test"]);
    assert_eq!((&found["keys"], &found["scopes"][3]), (&1.into(), &"groups".into()), "{found}");

    let refused = sign_in_by(&provider, &http);
    assert!(refused.contains("no rule admits ann@example.com"), "{refused}");
    server.good(&[
        "oidc",
        "rule",
        "create",
        "team",
        "--claim",
        "groups=storage",
        "--role",
        "operator",
        "--volume",
        "v",
        "--session",
        "8h",
    ]);
    server.bad(21, "taken", &["oidc", "rule", "create", "team", "--claim", "groups=a", "--role", "viewer"]);
    server.bad(2, "usage", &["oidc", "rule", "create", "b", "--claim", "groups", "--role", "viewer"]);
    let begun = sign_in_by(&provider, &http);
    assert!(begun.contains("\"name\":\"oidc:ann@example.com\",\"role\":\"operator\""), "{begun}");
    let session = [
        format!("cookie: {}", part(&begun, "set-cookie: ", ';')),
        format!("x-cairn: {}", part(&begun, "\"key\":\"", '"')),
    ];
    let session = [&session[0][..], &session[1], "content-type: application/json"];
    let access = ask(&http, "GET /v1/access", &session, "");
    assert!(access.contains("\"volumes\":[\"v\"]"), "{access}");
    let snapshot = ask(&http, "POST /v1/volumes/v/snapshots", &session, "{\"name\":\"by-ann\"}");
    assert!(snapshot.starts_with("HTTP/1.1 200"), "{snapshot}");
    let deleted = ask(&http, "DELETE /v1/volumes/v/snapshots/by-ann", &session, "");
    assert!(
        deleted.starts_with("HTTP/1.1 403")
            && deleted.contains("the oidc:ann@example.com has the role operator"),
        "{deleted}"
    );
    let listed = server.good(&["oidc", "rule", "list"]);
    assert!(listed.contains("groups=storage") && listed.contains("8 h"), "{listed}");
    assert_eq!(server.json(&["oidc", "rule", "list"])[0]["sessions"], 1);
    // The settings are changed on the control socket only, and no answer has the secret.
    let header = format!(
        "authorization: Bearer {}",
        std::fs::read_to_string(server.data.join("http-token")).unwrap().trim()
    );
    let far = ask(&http, "PUT /v1/oidc", &[&header, "content-type: application/json"], "{\"name\":\"x\"}");
    assert!(far.starts_with("HTTP/1.1 403") || far.contains("control socket"), "{far}");
    let far = ask(&http, "GET /v1/oidc", &[&header], "");
    for text in
        [far, shown, server.good(&["oidc", "show", "--json"]), server.good(&["audit", "list", "--json"])]
    {
        assert!(!text.contains("100%"), "{text}");
    }
    let kept = server.data.join("oidc.json");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(kept).unwrap());
    assert_eq!(mode & 0o777, 0o600);

    server.good(&["oidc", "rule", "delete", "team", "--yes"]);
    assert!(ask(&http, "GET /v1/access", &session, "").starts_with("HTTP/1.1 401"));
    let audit = server.good(&["audit", "list"]);
    for line in
        ["oidc:ann@example.com", "refused: no rule admits", "sign in", "POST /v1/oidc/rules", "PUT /v1/oidc"]
    {
        assert!(audit.contains(line), "{line}: {audit}");
    }
    server.good(&["oidc", "delete", "--yes"]);
    assert!(!ask(&http, "GET /session", &[], "").contains("provider"));
}

/// The page shows dumps of a declared folder, and no request reaches another file.
#[test]
fn dump_folders_show_dumps_directly_in_them_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, elsewhere) = (dir.path().join("dumps"), dir.path().join("elsewhere"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::create_dir(&elsewhere).unwrap();
    let (server, http, _) = server(dir.path(), &["--dumps", folder.to_str().unwrap()]);
    let dump = |level: &str, file: &Path| {
        server.good(&["image", "dump", level, "v", "--to", file.to_str().unwrap()]);
    };
    dump("-0", &folder.join("full.cairn"));
    server.good(&["lun", "create", "v/third", "--size", "1M"]);
    dump("-1", &folder.join("increment.cairn"));
    dump("-0", &elsewhere.join("secret.cairn"));
    // A link to another dump, a link to a folder, a file that is no dump, a pipe, and a cut dump.
    std::os::unix::fs::symlink(elsewhere.join("secret.cairn"), folder.join("link.cairn")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, folder.join("folder")).unwrap();
    std::fs::write(folder.join("password"), "a password").unwrap();
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let whole = std::fs::read(elsewhere.join("secret.cairn")).unwrap();
    std::fs::write(folder.join("cut.cairn"), &whole[..whole.len() / 2]).unwrap();
    std::fs::copy(folder.join("full.cairn"), folder.join("copy.cairn")).unwrap();

    let own = |name: &str, role: &str, more: &[&str]| {
        let secret = server.good(&[&["token", "create", name, "--role", role], more].concat());
        format!("authorization: Bearer {}", secret.trim())
    };
    let (viewer, operator) = (own("viewer", "viewer", &[]), own("operator", "operator", &[]));
    let bound = own("bound", "operator", &["--volume", "v"]);
    let encoded = |path: &Path| path.to_str().unwrap().replace('/', "%2F");
    let get = |token: &str, path: &str| ask(&http, &format!("GET /v1/dump-folders{path}"), &[token], "");
    let folders = get(&viewer, "");
    assert!(folders.contains(&format!("[{{\"path\":\"{}\"}}]", folder.display())), "{folders}");
    assert!(get(&bound, "").ends_with("[]"));
    let listed = get(&viewer, &format!("/{}/dumps", encoded(&folder)));
    let body = listed.split("\r\n\r\n").nth(1).unwrap();
    let listed: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{listed}"));
    let files: Vec<String> =
        listed.as_array().unwrap().iter().map(|dump| dump["files"].to_string()).collect();
    assert!(
        files.contains(&"[\"increment.cairn\"]".to_owned()) && files.contains(&"[\"cut.cairn\"]".to_owned()),
        "{files:?}"
    );
    assert_eq!(files.len(), 3, "{files:?}");
    let id = |name: &str| {
        let found = listed.as_array().unwrap().iter().find(|dump| dump["files"].to_string().contains(name));
        found.unwrap()["id"].as_str().unwrap().to_owned()
    };
    // They open: the volume had disks alone. The increment needs the other dump.
    for name in ["copy.cairn", "increment.cairn"] {
        let answer = get(&viewer, &format!("/{}/files?of={}", encoded(&folder), id(name)));
        assert!(answer.contains("its volume had disks alone"), "{name}: {answer}");
    }
    let cut = get(&viewer, &format!("/{}/files?of={}", encoded(&folder), id("cut.cairn")));
    assert!(!cut.starts_with("HTTP/1.1 200") && !cut.contains("disks alone"), "{cut}");
    std::fs::remove_file(folder.join("full.cairn")).unwrap();
    std::fs::remove_file(folder.join("copy.cairn")).unwrap();

    // Other folders, and ids that are paths.
    let strange = [
        encoded(&elsewhere),
        encoded(dir.path()),
        format!("{}%2F..%2Felsewhere", encoded(&folder)),
        format!("{}%2F", encoded(&folder)),
        format!("{}%2Ffolder", encoded(&folder)),
        "%2F".to_owned(),
        "..".to_owned(),
    ];
    for name in strange {
        for path in [format!("/{name}/dumps"), format!("/{name}/files?of={}", id("cut.cairn"))] {
            let answer = get(&operator, &path);
            assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        }
    }
    for of in
        ["..%2Felsewhere%2Fsecret.cairn", "secret.cairn", "password", "link.cairn", "%2Fetc%2Fpasswd", ""]
    {
        let answer = get(&operator, &format!("/{}/files?of={of}", encoded(&folder)));
        assert!(answer.starts_with("HTTP/1.1 404"), "{of}: {answer}");
        let answer = get(&operator, &format!("/{}/files/content?of={of}", encoded(&folder)));
        assert!(answer.starts_with("HTTP/1.1 404"), "{of}: {answer}");
    }
    // Roles: a viewer gets names and no content, a bound token neither.
    let content = format!("/{}/files/content?of={}", encoded(&folder), id("cut.cairn"));
    assert!(get(&viewer, &content).starts_with("HTTP/1.1 403"));
    assert!(get(&bound, &format!("/{}/dumps", encoded(&folder))).starts_with("HTTP/1.1 403"));
}

#[test]
fn lun_with_chap_or_initiators_is_not_offered_over_nbd_without_a_rule() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _, nbd) = server(dir.path(), &[]);
    opens(&nbd, "v/db").unwrap();
    let secrets = file(dir.path(), "chap", "initiator alice a-long-secret-of-alice\n");
    server.good(&["export", "set", "v/db", "--chap-file", &secrets]);
    server.good(&["export", "set", "v/log", "--initiator", "iqn.2026-11.example:a"]);
    for export in ["v/db", "v/log"] {
        let refused = opens(&nbd, export).unwrap_err();
        assert!(refused.contains("no rule for NBD"), "{refused}");
        drop(server.disk(export));
    }
    let shown = server.json(&["export", "show", "v/db"]);
    let uris = shown["uris"].as_array().unwrap();
    assert!(uris.iter().all(|uri| uri.as_str().unwrap().starts_with("nbd+unix")), "{shown}");
    let list = server.good(&["export", "list"]);
    assert!(list.contains("unix socket"), "{list}");
    // A list over TCP does not name them.
    if let Some(listed) = foreign("nbdinfo", &["--list", &format!("nbd://{nbd}")]) {
        assert!(!said(&listed).contains("v/db"), "{}", said(&listed));
    }
    server.good(&["export", "set", "v/db", "--nbd", "10.0.0.0/8"]);
    assert!(opens(&nbd, "v/db").unwrap_err().contains("address"), "it is not 127.0.0.1");
    server.good(&["export", "set", "v/db", "--nbd", "10.0.0.0/8", "--nbd", "127.0.0.0/8"]);
    opens(&nbd, "v/db").unwrap();
    server.good(&["export", "set", "v/db", "--nbd", "off"]);
    assert!(opens(&nbd, "v/db").is_err());
    assert!(!server.has_export("v/db"), "nor on the unix socket");
    server.good(&["export", "set", "v/db", "--nbd", "default", "--no-chap"]);
    opens(&nbd, "v/db").unwrap();
    server.bad(2, "usage", &["export", "set", "v/db", "--nbd", "open", "--nbd", "off"]);
    let audit = server.good(&["audit", "list"]);
    assert!(audit.contains("NBD open") && audit.contains("v/log") && audit.contains("127.0.0.1"), "{audit}");
}

#[test]
fn nbd_client_with_a_certificate_is_admitted_and_verifies_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _, nbd) = server(dir.path(), &[]);
    let folder = |name: &str| dir.path().join(name).display().to_string();
    for name in ["backup1", "backup2"] {
        server.good(&["tls", "create", name, "--to", &folder(name)]);
    }
    server.good(&["export", "set", "v/db", "--nbd", "cert:backup1"]);
    assert!(opens(&nbd, "v/db").unwrap_err().contains("TLS"));
    let key = dir.path().join("backup1/client-key.pem");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(key).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let fingerprint = server.json(&["tls", "create", "backup3", "--to", &folder("backup3")]);
    let fingerprint = format!("cert:sha256:{}", fingerprint["fingerprint"].as_str().unwrap());
    server.good(&["export", "set", "v/log", "--nbd", &fingerprint]);
    let uri = |export: &str, name: &str| format!("nbds://{nbd}/{export}?tls-certificates={}", folder(name));
    let size = |uri: &str| foreign("nbdinfo", &["--size", uri]);
    for (export, name, is_admitted) in [
        ("v/db", "backup1", true),
        ("v/db", "backup2", false),
        ("v/db", "backup3", false),
        ("v/log", "backup3", true),
        ("v/log", "backup1", false),
    ] {
        let Some(answer) = size(&uri(export, name)) else { break };
        assert_eq!(answer.status.success(), is_admitted, "{export} {name}: {}", said(&answer));
    }
    let refusals =
        || server.good(&["audit", "list"]).matches("certificate of the client is not permitted").count();
    let before = refusals();
    assert!(foreign("nbdinfo", &["--version"]).is_none() || before == 3, "{before}");
    // A client that trusts another root does not trust this server.
    let other = tempfile::tempdir().unwrap();
    let stranger =
        Running::start_with(other.path(), "other", &["--mirror", "off", "--iscsi", "off", "--nbd", "off"]);
    stranger.good(&["tls", "create", "backup1", "--to", &folder("foreign")]);
    if let Some(fooled) = size(&uri("v/db", "foreign")) {
        assert!(!fooled.status.success() && refusals() == before, "{}", said(&fooled));
    }
    // A certificate of another authority has no name here, and a root that the client does trust.
    std::fs::copy(dir.path().join("backup1/ca-cert.pem"), dir.path().join("foreign/ca-cert.pem")).unwrap();
    if let Some(answer) = size(&uri("v/db", "foreign")) {
        assert!(!answer.status.success() && refusals() == before + 1, "{}", said(&answer));
    }
    let (host, port) = nbd.rsplit_once(':').unwrap();
    let credentials =
        format!("tls-creds-x509,id=tls0,endpoint=client,dir={},verify-peer=yes", folder("backup1"));
    let image = format!(
        "driver=raw,file.driver=nbd,file.export=v/db,file.tls-creds=tls0,file.server.type=inet,file.server.host={host},file.server.port={port}"
    );
    if let Some(info) = foreign("qemu-img", &["info", "--object", &credentials, "--image-opts", &image]) {
        assert!(info.status.success() && said(&info).contains("8 MiB"), "{}", said(&info));
    }
    // As nbdkit-nbd-plugin(1) and libnbd(3) have it; both verify the server.
    for (name, is_admitted) in [("backup1", true), ("backup2", false)] {
        let certificates = format!("tls-certificates={}", folder(name));
        let (address, number) = (format!("hostname={host}"), format!("port={port}"));
        let by_parts =
            ["nbd", &address, &number, "export=v/db", "tls=require", &certificates, "tls-verify=true"];
        let plain = format!("uri=nbds://{nbd}/v/db");
        let by_uri = ["nbd", &plain, &certificates, "tls-verify=true"];
        for arguments in [&by_parts[..], &by_uri] {
            let all = [&["-U", "-"], arguments, &["--run", "nbdinfo --size \"$uri\""]].concat();
            let Some(answer) = foreign("nbdkit", &all) else { break };
            let has_size = String::from_utf8_lossy(&answer.stdout).trim() == "8388608";
            assert_eq!(has_size, is_admitted, "{name} {arguments:?}: {}", said(&answer));
        }
        let script = format!(
            "import nbd\nh = nbd.NBD()\nh.set_tls(nbd.TLS_REQUIRE)\nh.set_tls_certificates('{}')\n\
             h.set_tls_verify_peer(True)\nh.set_export_name('v/db')\nh.connect_tcp('{host}', '{port}')\n\
             h.pwrite(b'by libnbd', 4096)\nh.flush()\nprint(h.pread(9, 4096).decode(), h.get_tls_negotiated())",
            folder(name)
        );
        if let Some(answer) = foreign("/usr/bin/python3", &["-c", &script]) {
            assert_eq!(said(&answer).contains("by libnbd True"), is_admitted, "{name}: {}", said(&answer));
        }
    }
    let tries = server.json(&["audit", "list", "--limit", "1000"]);
    let is_one = |line: &&serde_json::Value| {
        line["action"] == "NBD open" && line["object"] == "v/db" && line["outcome"] == "refused"
    };
    let tries: Vec<_> = tries.as_array().unwrap().iter().filter(is_one).collect();
    let of_certificates =
        |line: &&&serde_json::Value| line["reason"].as_str().unwrap().contains("certificate");
    assert!(tries.iter().filter(of_certificates).count() >= 4, "{tries:?}");
    let shown = server.good(&["export", "show", "v/db"]);
    assert!(shown.contains("certificates backup1"), "{shown}");
}

#[test]
fn listener_that_is_open_to_the_world_is_refused_or_reported() {
    let dir = tempfile::tempdir().unwrap();
    let serve = |more: &[&str]| {
        let data = dir.path().join("refused").display().to_string();
        let all =
            [&["serve", "--data", &data, "--mirror", "off", "--iscsi", "off", "--nbd", "off"], more].concat();
        cairn().args(all).output().unwrap()
    };
    let refused = serve(&["--http", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(
        said(&refused).contains("in the clear") && said(&refused).contains("--tls"),
        "{}",
        said(&refused)
    );
    let config = file(dir.path(), "cairn.toml", "http = \"0.0.0.0:7400\"\n");
    let checked = cairn().args(["config", "check", &config]).output().unwrap();
    assert!(!checked.status.success() && said(&checked).contains("in the clear"), "{}", said(&checked));
    std::fs::write(&config, "http = \"0.0.0.0:7400\"\ntls = true\n").unwrap();
    let checked = cairn().args(["config", "check", &config]).output().unwrap();
    assert!(checked.status.success(), "{}", said(&checked));
    let nbd = format!("0.0.0.0:{}", port());
    let own = ["--mirror", "off", "--iscsi", "off", "--nbd", &nbd];
    let server = Running::start_with(dir.path(), "server", &own);
    server.good(&["volume", "create", "v", "--size", "64M"]);
    let exposed = |server: &Running| {
        let problems = server.json(&["status"])["problems"].clone();
        problems
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["message"].as_str().unwrap().contains("no authentication"))
    };
    assert!(!exposed(&server), "there is nothing to reach");
    server.good(&["lun", "create", "v/db", "--size", "1M"]);
    assert!(exposed(&server));
    for rule in [&["unix"][..], &["10.0.0.0/24"], &["cert:a"], &["off"]] {
        let words: Vec<&str> = rule.iter().flat_map(|word| ["--nbd", word]).collect();
        server.good(&[&["export", "set", "v/db"], &words[..]].concat());
        assert!(!exposed(&server), "{rule:?}");
    }
    server.good(&["export", "set", "v/db", "--nbd", "open"]);
    assert!(exposed(&server));
}

#[test]
fn audit_log_survives_a_kill_and_its_torn_line_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let mut server =
        Running::start_with(dir.path(), "server", &["--mirror", "off", "--iscsi", "off", "--nbd", "off"]);
    server.good(&["volume", "create", "v", "--size", "64M"]);
    server.good(&["snapshot", "create", "v@one"]);
    server.kill();
    let path = server.data.join("audit.jsonl");
    let mut text = std::fs::read(&path).unwrap();
    text.extend_from_slice(b"{\"at_ms\":17950000");
    std::fs::write(&path, text).unwrap();
    server.restart();
    server.good(&["snapshot", "delete", "v@one", "--yes"]);
    let lines = server.json(&["audit", "list"]);
    let objects: Vec<&str> =
        lines.as_array().unwrap().iter().map(|line| line["object"].as_str().unwrap()).collect();
    assert_eq!(objects, ["v", "v/one", "v/one"]);
}

#[test]
fn token_of_a_peer_is_read_from_a_file_or_standard_input() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let source = Running::start(dir.path(), "source");
    source.good(&["volume", "create", "v", "--size", "64M"]);
    let copy = Running::start(dir.path(), "copy");
    let token = file(dir.path(), "token", &format!("{}\n", source.invite()));
    copy.good(&["mirror", "create", "v", &format!("@{token}"), "--as", "one"]);
    let mut child = cairn();
    child.args(["--data", &copy.data.display().to_string(), "mirror", "create", "v", "--as", "two"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(source.invite().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    copy.bad(2, "usage", &["mirror", "create", "v", "@/nonexistent", "--as", "three"]);
    copy.bad(2, "usage", &["mirror", "create", "v", "--as", "three"]);
}
