//! Tests of the table of roles.

use std::collections::BTreeSet;

use serde_json::json;

use super::*;

/// A route that a change adds without a row fails here.
#[test]
fn every_route_of_the_api_has_one_row_and_every_row_a_route() {
    let mut api = crate::http::api().into_openapi();
    let mut routes = BTreeSet::new();
    for (path, item) in &mut api.paths.paths {
        routes.extend(operations(item).map(|(method, _)| format!("{method} {path}")));
    }
    let rows: Vec<String> = RULES.iter().map(|rule| format!("{} {}", rule.method, rule.path)).collect();
    let known: BTreeSet<String> = rows.iter().cloned().collect();
    assert_eq!(known.len(), rows.len(), "two rows for one route");
    let missing: Vec<_> = routes.difference(&known).collect();
    assert!(missing.is_empty(), "add these to RULES in crates/server/src/http/rules.rs: {missing:?}");
    let extra: Vec<_> = known.difference(&routes).map(String::as_str).collect();
    assert_eq!(extra, ["GET /metrics", "GET /v1/openapi.json"]);
}

#[test]
fn no_route_that_deletes_is_for_operators_but_those_that_delete_no_data() {
    for rule in RULES.iter().filter(|rule| rule.method == "DELETE") {
        let is_mild = ["/v1/jobs/{job}", "/v1/recordings/{export}"].contains(&rule.path);
        assert_eq!(rule.need.admits(Role::Operator), is_mild, "{}", rule.path);
    }
    for rule in RULES {
        assert!(rule.need.admits(Role::Administrator), "{}", rule.path);
        let reads = rule.method == "GET" || rule.need.only_reads();
        assert!(reads || !rule.need.admits(Role::Viewer), "{}", rule.path);
    }
}

#[test]
fn body_decides_where_one_route_both_destroys_and_does_not() {
    let needs = |decide: fn(&Value) -> Need, body: &Value| {
        [Role::Operator, Role::LockKeeper, Role::Administrator].map(|role| decide(body).admits(role))
    };
    let (operator, keeper, administrator) = ([true, false, true], [false, true, true], [false, false, true]);
    for (body, expected) in [
        (json!({"paused": true, "lock_ms": null, "link": {"limit": null}}), operator),
        (json!({"every_ms": 1, "link": {"limit": 5}}), operator),
        (json!({"lock_ms": 0, "lock_key": ""}), keeper),
        (json!({"lock_ms": 0, "paused": false}), administrator),
        (json!({"hold": false}), administrator),
        (json!({"later_field": 1}), administrator),
    ] {
        assert_eq!(needs(mirror_settings, &body), expected, "{body}");
    }
    for (body, expected) in [
        (json!({"size_bytes": 1}), operator),
        (json!({"size_bytes": 1, "allow_shrink": false}), operator),
        (json!({"size_bytes": 1, "allow_shrink": true}), administrator),
        (json!({"size_bytes": 1, "allow_shrink": "x"}), administrator),
    ] {
        assert_eq!(needs(resize, &body), expected, "{body}");
    }
    assert_eq!(needs(hold, &json!({"held": true})), operator);
    for body in [json!({"held": false}), json!({}), json!(null), json!({"held": 1})] {
        assert_eq!(needs(hold, &body), administrator, "{body}");
    }
}

/// A route that the page names and that has no row would look forbidden to each role.
#[test]
fn every_need_of_an_action_of_the_page_is_a_route() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../web/page");
    let known: BTreeSet<String> = RULES.iter().map(|rule| format!("{} {}", rule.method, rule.path)).collect();
    let mut needs = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let quoted = text.split('"').skip(1).step_by(2);
        let methods = ["GET /", "POST /", "PUT /", "PATCH /", "DELETE /"];
        needs.extend(
            quoted.filter(|one| methods.iter().any(|method| one.starts_with(method))).map(str::to_owned),
        );
    }
    let unknown: Vec<_> = needs.difference(&known).collect();
    assert!(needs.len() > 20 && unknown.is_empty(), "{unknown:?} of {}", needs.len());
    let of = |role, is_bound| -> BTreeSet<String> {
        forbidden(role, is_bound).into_iter().map(|one| one.request).collect()
    };
    assert!(of(Role::Administrator, false).is_empty());
    let (viewer, bound) = (of(Role::Viewer, false), of(Role::Administrator, true));
    for (need, not_viewer, not_bound) in [
        ("GET /v1/status", false, false),
        ("POST /v1/clones", true, true),
        ("DELETE /v1/volumes/{volume}/snapshots/{snapshot}", true, false),
    ] {
        assert_eq!((viewer.contains(need), bound.contains(need)), (not_viewer, not_bound), "{need}");
    }
}
