//! The description of the API in the repository equals the server's own, and clients can be
//! generated from it.

use std::collections::BTreeSet;

use serde_json::Value;

#[test]
fn openapi_in_the_repository_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let described = cairn_server::openapi_json();
    if std::env::var_os("CAIRN_WRITE_OPENAPI").is_some() {
        std::fs::write(path, &described).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == described,
        "run `CAIRN_WRITE_OPENAPI=1 cargo test -p cairn-server --test openapi` and commit docs/openapi.json"
    );
    for path in
        ["/v1/status", "/v1/volumes/{volume}/snapshots", "/v1/mirrors/{mirror}/failover", "/v1/peers/invite"]
    {
        assert!(described.contains(&format!("\"{path}\"")), "{path}");
    }
}

/// A client that is made from the description puts a parameter of the path into the path.
#[test]
fn parameters_of_a_path_are_those_that_the_path_names() {
    let described: Value = serde_json::from_str(&cairn_server::openapi_json()).unwrap();
    for (path, operations) in described["paths"].as_object().unwrap() {
        let named: BTreeSet<&str> = path
            .split('/')
            .filter_map(|part| part.strip_prefix('{').and_then(|part| part.strip_suffix('}')))
            .collect();
        for (method, operation) in operations.as_object().unwrap() {
            let all = operation["parameters"].as_array().into_iter().flatten();
            let in_path: BTreeSet<&str> =
                all.filter(|one| one["in"] == "path").filter_map(|one| one["name"].as_str()).collect();
            assert_eq!(in_path, named, "{method} {path}");
        }
    }
}
