//! The web page in a real browser: Chromium without a window, which this file controls over a pipe.
//! Where Chromium is missing the tests are skipped and report that.
//!
//! Screenshots of each view are written to `target/page/`.

mod running;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use running::{PATIENCE, Running, cairn, vol0, wait_until};
use serde_json::{Value, json};

/// Tabs to an element, at most.
const TABS_MAX: usize = 120;

/// Looks for what makes a page hard to use: little contrast, no name, a width that scrolls.
const FINDINGS: &str = include_str!("page/findings.js");

/// A browser with one page. It ends when this is dropped.
struct Browser {
    process: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    next: u64,
    session: Option<String>,
    /// Events of the browser.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// None, and a line that says so, where there is no Chromium.
    fn start() -> Option<Self> {
        let runs = |name: &&str| {
            let tried = Command::new(name).arg("--version").stdin(Stdio::null()).output();
            tried.is_ok_and(|done| done.status.success())
        };
        let Some(program) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(runs) else {
            eprintln!("skipped: the page is tested in Chromium, which is not installed");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // The browser talks over the descriptors 3 and 4.
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null", "sh", program])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, mut output) = (process.stdin.take(), process.stdout.take().unwrap());
        let (send, messages) = channel();
        std::thread::spawn(move || {
            let (mut kept, mut some) = (Vec::new(), vec![0; 1 << 16]);
            while let Ok(count @ 1..) = output.read(&mut some) {
                kept.extend_from_slice(&some[..count]);
                while let Some(end) = kept.iter().position(|byte| *byte == 0) {
                    let message: Vec<u8> = kept.drain(..=end).collect();
                    let _ = send.send(serde_json::from_slice(&message[..end]).unwrap());
                }
            }
        });
        let events = Vec::new();
        let mut browser =
            Self { process, input, messages, next: 0, session: None, events, _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let asked = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", asked);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.call("Emulation.setFocusEmulationEnabled", json!({ "enabled": true }));
        browser.look_like(1280, false);
        Some(browser)
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{message}\0").as_bytes()).unwrap();
        input.flush().unwrap();
        loop {
            let answer = self.messages.recv_timeout(2 * PATIENCE);
            let mut answer = answer.unwrap_or_else(|_| panic!("the browser does not answer {method}"));
            if answer["id"] == self.next {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    /// The value of an expression of the page.
    fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", asked);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression of the page is true.
    fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.value(&format!("Boolean({expression})")) != true {
            if Instant::now() > deadline {
                let text = self.value("document.body.innerText");
                panic!("{expression}\n{}\n{:?}", text.as_str().unwrap_or_default(), self.complaints());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn until_text(&mut self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    fn open(&mut self, url: &str) {
        // From one fragment to another the page is the same.
        self.call("Page.navigate", json!({ "url": "about:blank" }));
        self.call("Page.navigate", json!({ "url": url }));
        self.until("document.readyState === 'complete'");
    }

    /// Clicks the first button or link whose text begins so; of the dialog where one is open.
    fn click(&mut self, text: &str) {
        let found = format!(
            "[...(document.querySelector('dialog[open]') ?? document).querySelectorAll('button, a')].find((one) => \
             one.offsetParent && !one.disabled && one.textContent.trim().startsWith({}))",
            json!(text)
        );
        self.until(&found);
        self.value(&format!("{found}.click()"));
    }

    fn key(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, None),
            "Enter" => (13, Some("\r")),
            "Escape" => (27, None),
            "ArrowLeft" => (37, None),
            "ArrowRight" => (39, None),
            "Home" => (36, None),
            "End" => (35, None),
            other => (0, Some(other)),
        };
        let kind = if text.is_some() { "keyDown" } else { "rawKeyDown" };
        let mut event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
        if let Some(text) = text {
            event["text"] = json!(text);
        }
        self.call("Input.dispatchKeyEvent", event.clone());
        event["type"] = json!("keyUp");
        self.call("Input.dispatchKeyEvent", event);
    }

    fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses Tab until what has the focus fits a condition on `it`.
    fn tab_to(&mut self, condition: &str) {
        for _ in 0..TABS_MAX {
            self.key("Tab");
            let asked = format!("((it) => Boolean({condition}))(document.activeElement)");
            if self.value(&asked) == true {
                let outline = "getComputedStyle(document.activeElement).outlineStyle";
                assert_ne!(self.value(outline), "none", "the focus on {condition} is not visible");
                return;
            }
        }
        panic!("Tab does not lead to {condition}");
    }

    fn look_like(&mut self, width: u32, dark: bool) {
        let height = if width < 500 { 844 } else { 900 };
        let device =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", device);
        let theme = if dark { "dark" } else { "light" };
        // Without motion nothing is half drawn.
        let features = json!([
            { "name": "prefers-color-scheme", "value": theme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Writes pictures of the view, wide and narrow, light and dark, and checks each.
    fn picture(&mut self, name: &str) {
        let folder = pictures();
        for (width, dark) in [(1280, false), (1280, true), (390, false), (390, true)] {
            self.look_like(width, dark);
            // Two frames: one lays the page out, the next one draws the line in its new width.
            self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
            let findings = self.value(FINDINGS);
            assert_eq!(findings, json!([]), "{name}, {width} pixels, dark: {dark}");
            let shot = json!({ "format": "png", "captureBeyondViewport": true });
            let picture = self.call("Page.captureScreenshot", shot);
            let theme = if dark { "dark" } else { "light" };
            let file = folder.join(format!("{name}-{width}-{theme}.png"));
            std::fs::write(file, base64(picture["data"].as_str().unwrap())).unwrap();
        }
        self.look_like(1280, false);
    }

    /// Errors on the console, and requests to other places than this one.
    fn complaints(&self) -> Vec<String> {
        let complaint = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(params.to_string()),
                "Runtime.consoleAPICalled" if params["type"] != "log" => Some(params.to_string()),
                "Log.entryAdded"
                    if matches!(params["entry"]["level"].as_str(), Some("error" | "warning")) =>
                {
                    Some(params.to_string())
                }
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str()?;
                    let is_here = url.starts_with("http://127.0.0.1:") || url.starts_with("data:");
                    (!is_here && url != "about:blank").then(|| format!("a request to {url}"))
                }
                _ => None,
            }
        };
        self.events.iter().filter_map(complaint).collect()
    }

    fn assert_no_complaints(&self) {
        assert_eq!(self.complaints(), Vec::<String>::new());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of the pipe is the end of the browser and of its helpers.
        self.input = None;
        let deadline = Instant::now() + PATIENCE / 3;
        while self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > deadline {
                let _ = self.process.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The folder of the pictures.
fn pictures() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("page");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The bytes of a text in base64, as the browser sends pictures.
fn base64(text: &str) -> Vec<u8> {
    let (mut bytes, mut kept, mut bits) = (Vec::new(), 0u32, 0);
    for character in text.bytes() {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        kept = kept << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((kept >> bits) as u8);
        }
    }
    bytes
}

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

    // The link was used.
    browser.open("about:blank");
    browser.assert_no_complaints();
    let mut other = Browser::start().unwrap();
    other.open(&web.url);
    other.until_text("the link was used, or has expired");
    other.picture("link-used");
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

#[test]
fn sign_in_with_a_wrong_token_says_what_to_do() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (server, url) = server_with_http(dir.path());
    browser.open(&url);
    browser.until("document.activeElement?.id === 'token'");
    browser.picture("sign-in");
    browser.write("not-the-token");
    browser.key("Enter");
    browser.until_text("Not signed in: the token is wrong. Next: copy the content of DIR/http-token");
    browser.picture("sign-in-wrong");
    let told: Vec<String> = browser.complaints();
    assert!(told.len() == 1 && told[0].contains("403"), "{told:?}");
    browser.events.clear();
    browser.write(&token(&server));
    browser.key("Enter");
    browser.until_text("All is well");
    // Scripts, which could be those of an attacker, do not see the session.
    assert_eq!(browser.value("document.cookie"), "");
    browser.open(&url);
    browser.until_text("All is well");
    browser.click("Sign out");
    browser.until("document.activeElement?.id === 'token'");
    browser.open(&url);
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
    let _client = server.disk("vol0/db");
    browser.open(&url);
    browser.until("document.activeElement?.id === 'token'");
    browser.write(&token(&server));
    browser.key("Enter");
    browser.until_text("All is well");
    browser.until_text("NBD ");
    browser.picture("overview");
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
    browser.assert_no_complaints();
}

/// Ten thousand snapshots are drawn within a frame of a screen at 60 Hz, at any zoom.
#[test]
fn line_of_ten_thousand_snapshots_is_drawn_within_a_frame() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "a");
    let web = Web::start(&server);
    browser.open(&web.url);
    browser.until_text("All is well");
    let paint = browser.value("performance.getEntriesByName('first-contentful-paint')[0]?.startTime");
    let frame = browser.value(include_str!("page/frames.js"));
    eprintln!("first paint after {paint} ms, a frame of the line takes {frame} ms");
    assert!(frame.as_f64().unwrap() < 1000.0 / 60.0, "{frame} ms");
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
