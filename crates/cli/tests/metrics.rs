//! The metrics that Prometheus reads from a server, over both of its listeners.

mod running;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use running::{Running, path};

/// Requests the metrics on a connection; returns the status line and the body.
fn scrape(stream: impl Read + Write, token: Option<&str>) -> (String, String) {
    ask(stream, token, "Accept: text/html, application/openmetrics-text;version=1.0.0;q=0.5\r\n")
}

/// The same with these headers.
fn ask(mut stream: impl Read + Write, token: Option<&str>, headers: &str) -> (String, String) {
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET /metrics HTTP/1.0\r\nHost: cairn\r\n{authorization}{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Name and labels to value, each line by the rules of the format.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    let mut types: BTreeMap<String, String> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            assert!(lines.peek().is_none(), "nothing comes behind the end");
            return values;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(helped.insert(rest.split_once(' ').unwrap().0.to_owned()), "once: {line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "once: {line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let name = series.split('{').next().unwrap();
            assert!(name.starts_with("cairn_"), "{line}");
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{line}");
            let family = name.strip_suffix("_total").unwrap_or(name);
            let kind = types.get(family).unwrap_or_else(|| panic!("no type: {line}"));
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(helped.contains(family), "{line}");
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(values.insert(series.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    panic!("there is no end");
}

#[test]
fn metrics_say_what_status_says_and_can_be_parsed() {
    let dir = tempfile::tempdir().unwrap();
    let source =
        Running::start_with(dir.path(), "source", &["--mirror", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    source.good(&["volume", "create", "v", "--size", "64M"]);
    source.good(&["lun", "create", "v/db", "--size", "8M"]);
    let (origin, history) = (path(dir.path(), "disk"), path(dir.path(), "history"));
    source.good(&["device", "adopt", "disk0", "--origin", &origin, "--size", "8M", "--history", &history]);
    let mut disk = source.disk("v/db");
    for block in 0..64 {
        disk.write(block * 4096, &[1; 4096]).unwrap();
    }
    disk.flush().unwrap();
    std::fs::create_dir(dir.path().join("bucket")).unwrap();
    source.good(&["bucket", "add", "offsite", &format!("file://{}", path(dir.path(), "bucket"))]);
    source.good(&["mirror", "create", "v", "--to", "offsite:", "--rpo", "1h"]);
    let mirror = Running::start(dir.path(), "mirror");
    let token = source.invite();
    mirror.good(&["mirror", "create", "v", &token, "--rpo", "1h"]);

    let of = |server: &Running| {
        let (head, body) = scrape(UnixStream::connect(server.data.join("control.sock")).unwrap(), None);
        assert!(head.starts_with("HTTP/1.0 200") && head.contains("application/openmetrics-text"), "{head}");
        parse(&body)
    };
    let values = of(&source);
    let status = source.json(&["status"]);
    let volume = &status["volumes"][0];
    assert_eq!(values["cairn_volume_size_bytes{volume=\"v\"}"], volume["size_bytes"].as_f64().unwrap());
    assert_eq!(values["cairn_volume_open{volume=\"v\"}"], 1.0);
    assert!(values["cairn_volume_consistency_points_total{volume=\"v\"}"] >= 1.0);
    assert_eq!(values["cairn_export_sessions{export=\"v/db\"}"], 1.0);
    assert!(values["cairn_export_operations_per_second{export=\"v/db\",operation=\"write\"}"] > 0.0);
    assert!(values["cairn_export_latency_p99_seconds{export=\"v/db\",operation=\"write\"}"] > 0.0);
    assert!(values["cairn_history_store_bytes{device=\"disk0\"}"] > 0.0);
    assert!(values.keys().any(|series| series.starts_with("cairn_follower_lag_seconds{volume=\"v\"")));
    let in_bucket = |name: &str| values.get(&format!("cairn_bucket_mirror_{name}{{mirror=\"offsite:v\"}}"));
    assert_eq!(in_bucket("check"), Some(&0.0));
    assert_eq!((in_bucket("lag_seconds"), in_bucket("rpo_seconds")), (Some(&0.0), Some(&3600.0)));
    assert_eq!((in_bucket("images"), in_bucket("updates_total")), (Some(&1.0), Some(&1.0)));
    assert_eq!(in_bucket("verified_timestamp_seconds"), None, "never verified");
    assert_eq!(values["cairn_bucket_mirror_state{mirror=\"offsite:v\",state=\"mirrored\"}"], 1.0);
    assert!(values["cairn_bucket_requests_total{bucket=\"offsite\",operation=\"put\"}"] > 3.0);
    assert!(
        values["cairn_bucket_sent_bytes_total{bucket=\"offsite\"}"]
            > in_bucket("sent_bytes_total").copied().unwrap()
    );
    assert_eq!(values["cairn_bucket_failed_requests_total{bucket=\"offsite\"}"], 0.0);
    let values = of(&mirror);
    assert_eq!(values["cairn_mirror_state{mirror=\"v\",state=\"mirrored\"}"], 1.0);
    assert_eq!(values["cairn_mirror_check{mirror=\"v\"}"], 0.0);
    assert_eq!(values["cairn_mirror_rpo_seconds{mirror=\"v\"}"], 3600.0);
    mirror.good(&["mirror", "pause", "v"]);
    assert_eq!(of(&mirror)["cairn_problems{subject=\"v\"}"], 1.0);

    // Over TCP with the token, as all else.
    let address = status["http"][1].as_str().unwrap();
    let (head, _) = scrape(TcpStream::connect(address).unwrap(), None);
    assert!(head.starts_with("HTTP/1.0 401"), "{head}");
    assert!(head.to_lowercase().contains("\r\nwww-authenticate: bearer"), "{head}");
    let token = std::fs::read_to_string(source.data.join("http-token")).unwrap();
    let (_, body) = scrape(TcpStream::connect(address).unwrap(), Some(token.trim()));
    assert!(parse(&body).len() > 20);
}

/// In the older format of Prometheus a counter is called by its whole name everywhere:
/// `promtool check metrics` looks for its help there.
#[test]
fn every_series_has_help_and_type_under_its_own_name_for_who_accepts_no_openmetrics() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "s");
    server.good(&["volume", "create", "v", "--size", "64M"]);
    for headers in ["", "Accept: */*\r\n", "Accept: text/plain\r\n"] {
        let stream = UnixStream::connect(server.data.join("control.sock")).unwrap();
        let (head, body) = ask(stream, None, headers);
        assert!(head.contains("text/plain; version=0.0.4"), "{head}");
        let after = |begin: &str| -> BTreeSet<&str> {
            let lines = body.lines().filter_map(|line| line.strip_prefix(begin)?.split_once(' '));
            lines.filter(|(_, text)| text.len() > 3).map(|(name, _)| name).collect()
        };
        let (helped, typed) = (after("# HELP "), after("# TYPE "));
        let series = body.lines().filter(|line| !line.starts_with('#'));
        let mut totals = 0;
        for name in series.filter_map(|line| line.split(['{', ' ']).next()) {
            assert!(helped.contains(name) && typed.contains(name), "{name} has no help: {body}");
            totals += usize::from(name.ends_with("_total"));
        }
        assert!(totals > 0 && !body.contains("# EOF"));
    }
}

#[test]
fn history_of_a_device_that_has_the_name_of_a_volume_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "one", "--size", "64M"]);
    let (origin, history) = (path(dir.path(), "disk"), path(dir.path(), "history"));
    server.good(&["device", "adopt", "one", "--origin", &origin, "--size", "8M", "--history", &history]);
    let (_, body) = scrape(UnixStream::connect(server.data.join("control.sock")).unwrap(), None);
    let values = parse(&body);
    assert!(values["cairn_history_store_bytes{device=\"one\"}"] > 0.0);
    assert_eq!(values["cairn_volume_open{volume=\"one\"}"], 1.0);
}

#[test]
fn completions_and_manual_pages_know_all_commands() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = running::cairn().args(["completions", shell]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("rehearse") && text.contains("mirror"), "{shell}");
    }
    let root = std::path::Path::new(env!("CARGO_BIN_EXE_cairn")).parent().unwrap().to_owned();
    let server = running::Running::start(dir.path(), "d");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    server.good(&["lun", "create", "vol0/db", "--size", "1M"]);
    server.good(&["snapshot", "create", "vol0@monday"]);
    // As bash calls it, which takes `@` for the end of a word.
    let completed = |line: &str, word: &str| {
        let script = "source <(cairn completions bash); COMP_POINT=${#COMP_LINE}; COMP_CWORD=${#COMP_WORDS[@]}; \
             _cairn_names cairn \"$WORD\" ''; printf '%s\\n' \"${COMPREPLY[@]}\"";
        let path = format!("{}:{}", root.display(), std::env::var("PATH").unwrap());
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", script]).env("PATH", path).env("CAIRN_DATA", &server.data);
        bash.env("COMP_LINE", line).env("WORD", word).env("COMP_WORDBREAKS", " @");
        String::from_utf8(bash.output().unwrap().stdout).unwrap()
    };
    assert_eq!(completed("cairn volume show vo", "vo"), "vol0\n");
    assert_eq!(completed("cairn lun delete ", ""), "vol0/db\n");
    assert_eq!(completed("cairn snapshot delete vol0@m", "m"), "monday\n");
    let mut asking = running::cairn();
    asking.args(["__complete", "cairn", "volume", "show", ""]).env("CAIRN_DATA", "/no");
    let none = asking.output().unwrap();
    assert!(none.status.success() && none.stdout.is_empty(), "a server that is away is no error");
    let made = running::cairn().arg("man").arg(dir.path()).status().unwrap();
    assert!(made.success());
    let page = std::fs::read_to_string(dir.path().join("cairn-volume-create.1")).unwrap();
    assert!(page.contains("size") && page.contains(".SH EXAMPLES"), "{page}");
}
