//! The web page in a real browser: Chromium without a window. Where Chromium is missing the tests
//! are skipped and report that; in CI that is an error.
//!
//! Screenshots of each view are written to `target/page/`.

#[path = "page/browser.rs"]
mod browser;
#[path = "page/looking.rs"]
mod looking;
#[path = "page/paint.rs"]
mod paint;
#[path = "page/provider.rs"]
mod provider;
mod running;
#[path = "page/stories.rs"]
mod stories;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use browser::Browser;
use running::{Running, cairn, vol0, wait_until};
use serde_json::Value;

/// `cairn web` on a server.
struct Web {
    process: Child,
    url: String,
}

impl Web {
    fn start(server: &Running) -> Self {
        let mut command = cairn();
        command.args(["web", "--no-open", "--json", "--data"]).arg(&server.data);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        Self { url: told["url"].as_str().unwrap().to_owned(), process }
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A server with the API over TCP; the address of its page.
fn server_with_http(dir: &Path) -> (Running, String) {
    let server = Running::start_with(dir, "a", &["--mirror", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    let status = server.json(&["status"]);
    let address = status["http"][1].as_str().unwrap().to_owned();
    (server, format!("http://{address}/"))
}

/// Signs in, on the page that asks for it.
fn sign_in(browser: &mut Browser, server: &Running) {
    browser.until("document.activeElement?.id === 'token'");
    browser.write(&token(server));
    browser.key("Enter");
    browser.until_text("All is well");
}

fn token(server: &Running) -> String {
    std::fs::read_to_string(server.data.join("http-token")).unwrap().trim().to_owned()
}

/// A volume with a LUN, and a snapshot from before its last write.
fn make_vol0(server: &Running, history: Option<&Path>) {
    let mut asked = vec!["volume", "create", "vol0", "--size", "256M"];
    let store = history.map(|store| store.to_str().unwrap());
    if let Some(store) = store {
        asked.extend(["--history", store, "--granularity", "1s"]);
    }
    server.good(&asked);
    server.good(&["lun", "create", "vol0/db", "--size", "4M"]);
    vol0::write(server, 0, 1, 4096);
    server.good(&["snapshot", "create", "vol0@before"]);
    vol0::write(server, 0, 2, 4096);
}

#[test]
fn mirror_that_is_behind_is_explained_and_updated_on_the_page() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = Running::start(dir.path(), "source");
    make_vol0(&source, None);
    let here = Running::start(dir.path(), "here");
    here.good(&["mirror", "create", "vol0", &source.invite(), "--every", "1h", "--rpo", "1s"]);
    vol0::write(&source, 8192, 3, 1 << 20);
    wait_until("the mirror is behind", || vol0::status(&here)["state"] == "behind");

    let web = Web::start(&here);
    browser.open(&web.url);
    browser.until_text("1 problem");
    assert_eq!(browser.value("location.hash"), "", "the link stays in the address");
    browser.picture("overview-problem");
    browser.click("vol0");
    browser.until("location.hash === '#/mirror/vol0'");
    browser.until_text("it may lag 1s (RPO)");
    browser.until_text("1.0 MiB of changes are not here");
    browser.picture("mirror-behind");

    // The rehearsal and the failover ask what would be lost; nothing is done.
    browser.click("Rehearse a failover");
    browser.until_text("Nothing is done. A failover now would do this:");
    browser.until_text("Lost: at most the writes of the last");
    browser.until_text("cairn mirror failover vol0 -n");
    browser.picture("mirror-rehearsal");
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");
    browser.click("Fail over");
    browser.until_text("Type vol0 to confirm");
    assert_eq!(browser.value("document.querySelector('dialog button.danger').disabled"), true);
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");

    browser.click("Update now");
    browser.until_text("The source has changed 1.0 MiB since the image here.");
    browser.click("Update");
    browser.until_text("The update runs");
    wait_until("the update is over", || vol0::status(&here)["lag_bytes"] == 0);
    browser.key("Escape");
    browser.until_text("Nothing had changed at the source");
    assert_eq!(vol0::content(&here)[8192], 3);

    browser.click("Fail over");
    browser.until("document.activeElement.id === 'd-typed'");
    browser.write("vol0");
    browser.click("Fail over");
    browser.until_text("vol0 takes writes now, and follows no source.");
    browser.click("Close");
    browser.until_text("Mirror vol0 failed over");
    browser.picture("mirror-failed-over");
    vol0::write(&here, 0, 9, 4096);
    browser.open("about:blank");
    browser.assert_no_complaints();

    // The way back, at the old source: first a rehearsal.
    vol0::write(&source, 4096, 8, 4096);
    let back = Web::start(&source);
    browser.open(&back.url);
    browser.until_text("its mirror was failed over");
    browser.value("location.hash = '#/mirror/vol0'");
    browser.click("Rehearse the way back");
    browser.until_text("Nothing is done. It would do this:");
    browser.until_text("that only this side has");
    browser.picture("source-rehearsal");
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");
    browser.click("Follow it");
    browser.until("document.activeElement.id === 'd-typed'");
    browser.until_text("that only this side has");
    browser.write("vol0");
    browser.click("Follow it");
    browser.until_text("vol0 follows the other side.");
    wait_until("the old source follows", || vol0::status(&source)["role"] == "destination");
    browser.click("Close");

    // The link was used, and works for no other browser.
    browser.assert_no_complaints();
    browser.forget();
    browser.open(&web.url);
    browser.until_text("the link was used, or has expired");
    browser.picture("link-used");
}

/// With the keyboard alone, from the sign-in to the undo.
#[test]
fn snapshot_is_rolled_back_from_the_time_line_by_keyboard_alone() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (server, url) = server_with_http(dir.path());
    make_vol0(&server, None);
    browser.open(&url);
    browser.until("document.activeElement?.id === 'token'");
    browser.write(&token(&server));
    browser.key("Enter");
    browser.until_text("All is well");
    browser.tab_to("it.textContent === 'vol0'");
    browser.key("Enter");
    browser.until_text("In this range: 1 instant");
    browser.tab_to("it.getAttribute('role') === 'slider'");
    browser.key("ArrowLeft");
    browser.until("document.activeElement.getAttribute('aria-valuetext').startsWith('before, ')");
    browser.tab_to("it.textContent.startsWith('Roll back')");
    browser.key("Enter");
    browser.until_text("This brings vol0 back to vol0@before; the state before is kept as a snapshot.");
    browser.until("document.activeElement.id === 'd-typed'");
    browser.write("vol");
    browser.key("Enter");
    assert_eq!(vol0::content(&server)[0], 2, "the name was not typed to its end");
    browser.write("0");
    browser.key("Enter");
    browser.until_text("vol0 is at vol0@before.");
    assert_eq!(vol0::content(&server)[0], 1);
    browser.until("document.activeElement.textContent === 'Close'");
    // Back to the button before it.
    browser.tab_to("it.textContent.startsWith('Undo')");
    browser.key("Enter");
    browser.until("document.activeElement.id === 'd-typed'");
    browser.until("!document.querySelector('dialog[open]').innerText.includes('Asking')");
    browser.write("vol0");
    browser.key("Enter");
    browser.until_text("vol0 is at vol0@before-rollback-");
    assert_eq!(vol0::content(&server)[0], 2);
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");
    browser.assert_no_complaints();
}

/// A sign-in with a wrong token says what to do, and the right one makes a session that ends with
/// the sign-out.
fn sign_in_and_out(browser: &mut Browser, server: &Running, url: &str) {
    browser.open(url);
    browser.until("document.activeElement?.id === 'token'");
    browser.picture("sign-in");
    browser.write("not-the-token");
    browser.key("Enter");
    browser.until_text("Not signed in: the token is wrong. Next: copy the content of DIR/http-token");
    browser.picture("sign-in-wrong");
    let told: Vec<String> = browser.complaints();
    assert!(told.len() == 1 && told[0].contains("403"), "{told:?}");
    browser.events.clear();
    browser.write(&token(server));
    browser.key("Enter");
    browser.until_text("All is well");
    // Scripts, which could be those of an attacker, do not see the session.
    assert_eq!(browser.value("document.cookie"), "");
    browser.open(url);
    browser.until_text("All is well");
    browser.click("Sign out");
    browser.until("document.activeElement?.id === 'token'");
    browser.open(url);
    browser.until("document.activeElement?.id === 'token'");
    browser.assert_no_complaints();
}

#[test]
fn every_view_is_drawn_wide_and_narrow_light_and_dark() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (server, url) = server_with_http(dir.path());
    make_vol0(&server, Some(&dir.path().join("store")));
    for name in ["one", "two", "three"] {
        server.good(&["snapshot", "create", &format!("vol0@{name}")]);
    }
    server.good(&["history", "mark", "vol0", "release-7"]);
    server.good(&["snapshot", "schedule", "set", "vol0", "hourly", "--every", "1h"]);
    let here = Running::start(dir.path(), "here");
    here.good(&["mirror", "create", "vol0", &server.invite(), "--every", "1h", "--rpo", "2h"]);
    std::fs::create_dir(dir.path().join("bucket")).unwrap();
    let place = format!("file://{}", dir.path().join("bucket").display());
    server.good(&["bucket", "add", "offsite", &place]);
    server.good(&["mirror", "create", "vol0", "--to", "offsite:", "--every", "1h", "--rpo", "2h"]);
    server.good(&["mirror", "verify", "offsite:vol0"]);
    let _client = server.disk("vol0/db");
    browser.open(&url);
    browser.until("document.activeElement?.id === 'token'");
    browser.write(&token(&server));
    browser.key("Enter");
    browser.until_text("All is well");
    browser.until_text("NBD ");
    browser.picture("overview");
    browser.click("offsite:vol0");
    browser.until_text("it may lag 2h (RPO)");
    browser.until_text("0 damaged objects");
    browser.picture("mirror-bucket");
    browser.click("Update now");
    browser.until_text("If nothing has changed, nothing is sent.");
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");
    browser.value("location.hash = '#/volume/vol0'");
    browser.until_text("release-7");
    browser.click("release-7");
    browser.until_text("In UTC");
    browser.picture("volume-mark");
    // The words of the dry run, and the undo by a mark.
    browser.click("Revert");
    browser.until_text("and ends its 1 session(s)");
    browser.picture("volume-revert");
    browser.write("vol0");
    browser.key("Enter");
    browser.until_text("To undo:");
    browser.key("Escape");
    browser.click("two");
    browser.until_text("cairn mount vol0@two /mnt");
    browser.picture("volume");
    browser.click("Clone");
    browser.click("Clone");
    browser.until_text("Made volume vol0-clone with 1 LUN(s).");
    browser.click("Close");
    // The snapshot is the base of a clone: the server refuses before the name is typed.
    browser.click("Delete");
    browser.until_text("The server refuses this:");
    browser.key("Escape");
    let refusal = |event: &Value| event["params"].to_string().contains("409");
    browser.events.retain(|event| !refusal(event));
    for view in ["exports", "peers"] {
        browser.value(&format!("location.hash = '#/{view}'"));
        browser.until("document.querySelector('main table')");
        browser.picture(view);
    }
    browser.value("location.hash = '#/volume/none'");
    browser.until_text("There is no volume or device none.");
    browser.assert_no_complaints();
    let web = Web::start(&here);
    browser.open(&web.url);
    browser.until_text("All is well");
    browser.value("location.hash = '#/mirror/vol0'");
    browser.until_text("The last update");
    browser.picture("mirror");
    browser.click("Time line");
    browser.until_text("shown image");
    browser.picture("volume-mirror");
    stories::history_fleet_and_log(&mut browser, (&server, &url), &here);
    browser.assert_no_complaints();
}

#[test]
fn page_of_a_command_is_served_on_loopback_addresses_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "a");
    let said = server.bad(2, "usage", &["web", "--no-open", "--listen", "0.0.0.0:0"]);
    assert!(said.contains("not a loopback address"), "{said}");
    // Without a server there is no empty page, but the error of every command.
    let output = cairn().args(["web", "--no-open", "--json", "--data"]).arg(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("no server is running"), "{said}");
}
