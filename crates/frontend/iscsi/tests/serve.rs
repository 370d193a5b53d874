mod harness;
#[test]
#[ignore = "a server to try things on"]
fn serve() {
    let server = harness::TestServer::plain();
    std::fs::write("/tmp/li/portal", &server.portal).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(90));
}
