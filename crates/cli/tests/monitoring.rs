//! The dashboard and the alert rules of the repository: servers export every metric that they name,
//! with the labels that they use.

mod running;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use running::{Running, path, wait_until};

const DASHBOARD: &str = include_str!("../../../monitoring/cairn-dashboard.json");
const RULES: &str = include_str!("../../../monitoring/cairn.rules.yml");
/// Labels that Prometheus adds itself.
const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

/// Names and labels that a server gives.
fn scrape(server: &Running, families: &mut BTreeMap<String, BTreeSet<String>>) {
    let mut stream = UnixStream::connect(server.data.join("control.sock")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: cairn\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    for line in answer.lines().filter(|line| line.starts_with("cairn_")) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let labels = rest.strip_prefix('{').map_or("", |rest| rest.split_once('}').unwrap().0);
        let labels = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        families.entry(name.to_owned()).or_default().extend(labels);
    }
}

/// The metrics of an expression, each with the labels that it uses.
fn asked(expression: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut found: Vec<(String, BTreeSet<String>)> = Vec::new();
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut rest = expression;
    while let Some(at) = rest.find("cairn_") {
        rest = &rest[at..];
        let end = rest.find(|letter| !is_name(letter)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let selector = after.strip_prefix('{').map_or("", |after| after.split_once('}').unwrap().0);
        let labels = selector.split(',').filter(|part| !part.is_empty());
        let labels = labels.map(|part| part[..part.find(['=', '!']).unwrap()].trim().to_owned());
        found.push((name.to_owned(), labels.collect()));
        rest = after;
    }
    // `by (a, b)` is about all of them.
    for grouped in expression.split("by (").skip(1) {
        for label in grouped.split_once(')').unwrap().0.split(',') {
            for (_, labels) in &mut found {
                labels.insert(label.trim().to_owned());
            }
        }
    }
    found
}

/// The labels that a text for people names between `before` and `after`.
fn named(text: &str, before: &str, after: &str) -> BTreeSet<String> {
    text.split(before).skip(1).map(|rest| rest.split_once(after).unwrap().0.trim().to_owned()).collect()
}

struct Given(BTreeMap<String, BTreeSet<String>>);

impl Given {
    /// Checks that servers export the metrics of an expression, and the labels that its legend or
    /// text names.
    fn check(&self, place: &str, expression: &str, named: &BTreeSet<String>) {
        let asked = asked(expression);
        let has = |family: &BTreeSet<String>, label: &String| {
            family.contains(label) || OF_PROMETHEUS.contains(&label.as_str())
        };
        for (name, labels) in &asked {
            let family = self.0.get(name).unwrap_or_else(|| panic!("{place}: no server gives {name}"));
            for label in labels {
                assert!(has(family, label), "{place}: {name} has no label {label}");
            }
        }
        for label in named {
            let is_there = asked.iter().any(|(name, _)| has(&self.0[name], label));
            assert!(
                is_there || OF_PROMETHEUS.contains(&label.as_str()),
                "{place}: nothing has the label {label}"
            );
        }
    }
}

#[test]
fn dashboard_and_alerts_name_what_servers_give() {
    let dir = tempfile::tempdir().unwrap();
    let source = Running::start(dir.path(), "source");
    source.good(&["volume", "create", "v", "--size", "64M"]);
    source.good(&["lun", "create", "v/db", "--size", "8M"]);
    let (origin, history) = (path(dir.path(), "disk"), path(dir.path(), "history"));
    let adopt = ["device", "adopt", "disk0", "--origin", &origin, "--size", "8M", "--history", &history];
    source.good(&[&adopt[..], &["--window", "1h"]].concat());
    let mut disk = source.disk("v/db");
    disk.write(0, &[1; 4096]).unwrap();
    disk.read(0, 4096).unwrap();
    disk.flush().unwrap();
    disk.disconnect().unwrap();
    source.good(&["volume", "scrub", "v", "--wait"]);
    let mirror = Running::start(dir.path(), "mirror");
    let token = source.invite();
    mirror.good(&["mirror", "create", "v", &token, "--rpo", "1h"]);
    mirror.good(&["mirror", "verify", "v"]);
    mirror.good(&["mirror", "drill", "v", "--probe", "true"]);
    mirror.good(&["mirror", "update", "v"]);
    mirror.good(&["mirror", "pause", "v"]);

    // Rates and latencies are of the last seconds.
    let mut disk = source.disk("v/db");
    disk.write(4096, &[2; 8192]).unwrap();
    disk.read(0, 4096).unwrap();

    let mut given = BTreeMap::new();
    wait_until("the source has heard of its mirror's lag and wish", || {
        scrape(&source, &mut given);
        given.contains_key("cairn_follower_over_rpo")
    });
    scrape(&mirror, &mut given);
    let given = Given(given);
    // Both connections count, including the closed one.
    let status = source.json(&["status"]);
    let exports = status["exports"].as_array().unwrap();
    let totals = &exports.iter().find(|export| export["name"] == "v/db").unwrap()["totals"];
    assert_eq!(totals["written_bytes"], 4096 + 8192, "{totals}");
    assert_eq!(totals["read_bytes"], 2 * 4096, "{totals}");

    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    for variable in variables {
        for key in ["name", "type", "query"] {
            assert!(!variable[key].is_null(), "{variable}");
        }
    }
    let variables: BTreeSet<&str> =
        variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(variables, BTreeSet::from(["datasource", "instance"]));
    assert!(dashboard["title"].is_string() && dashboard["uid"].is_string() && dashboard["id"].is_null());
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36 && dashboard["time"]["from"].is_string());
    let (mut ids, mut used) = (BTreeSet::new(), BTreeSet::new());
    let mut taken: BTreeMap<(u64, u64), &str> = BTreeMap::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap_or_else(|| panic!("{title}: {key}"));
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24, "{title} is past the right edge");
                assert_eq!(taken.insert((x, y), title), None, "{title} is over another");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(["timeseries", "stat", "table"].contains(&panel["type"].as_str().unwrap()), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(panel["fieldConfig"]["defaults"].is_object() && panel["options"].is_object(), "{title}");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            given.check(title, expression, &named(target["legendFormat"].as_str().unwrap(), "{{", "}}"));
            used.extend(asked(expression).into_iter().map(|(name, _)| name));
            assert!(!target["refId"].as_str().unwrap().is_empty());
        }
    }

    // The rules, of which each expression is one line.
    let mut alerts = BTreeSet::new();
    for alert in RULES.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        assert!(alerts.insert(name), "{name} twice");
        let expression = alert.lines().find_map(|line| line.trim().strip_prefix("expr: ")).unwrap();
        given.check(name, expression, &named(alert, "$labels.", " "));
        for part in ["severity: ", "summary: ", "description: "] {
            assert!(alert.contains(part), "{name} has no {part}");
        }
        used.extend(asked(expression).into_iter().map(|(name, _)| name));
    }
    assert!(alerts.len() > 15 && used.len() > 40, "{used:?}");

    // And the manual has every family, with its labels aside.
    let manual = include_str!("../../../docs/reference/metrics.md");
    for name in given.0.keys() {
        let short = name.strip_prefix("cairn_").unwrap();
        assert!(manual.contains(&format!("`{short}`")), "docs/reference/metrics.md does not list {short}");
    }
}
