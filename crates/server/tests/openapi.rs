//! The description of the API that is in the repository is the one that the server gives.

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
