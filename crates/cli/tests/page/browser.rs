//! Chromium without a window, which the tests of the page control over a pipe.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::running::PATIENCE;

/// Tabs to an element, at most.
const TABS_MAX: usize = 120;

/// Looks for what makes a page hard to use: little contrast, no name, a width that scrolls.
const FINDINGS: &str = include_str!("findings.js");

/// A browser with one page. It ends when this is dropped.
pub struct Browser {
    process: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    next: u64,
    session: Option<String>,
    /// Events of the browser.
    pub events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// None, and a line that says so, where there is no Chromium.
    pub fn start() -> Option<Self> {
        let runs = |name: &&str| {
            let tried = Command::new(name).arg("--version").stdin(Stdio::null()).output();
            tried.is_ok_and(|done| done.status.success())
        };
        let Some(program) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(runs) else {
            assert!(std::env::var_os("CI").is_none(), "CI has Chromium");
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

    pub fn call(&mut self, method: &str, params: Value) -> Value {
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
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", asked);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression of the page is true.
    pub fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.value(&format!("Boolean({expression})")) != true {
            if Instant::now() > deadline {
                let text = self.value("document.body.innerText");
                panic!("{expression}\n{}\n{:?}", text.as_str().unwrap_or_default(), self.complaints());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn until_text(&mut self, text: &str) {
        self.until(&format!("document.body?.innerText.includes({})", json!(text)));
    }

    pub fn open(&mut self, url: &str) {
        // From one fragment to another the page is the same.
        self.call("Page.navigate", json!({ "url": "about:blank" }));
        self.call("Page.navigate", json!({ "url": url }));
        self.until("document.readyState === 'complete'");
    }

    /// Forgets cookies and all that pages have stored, as another browser.
    pub fn forget(&mut self) {
        self.value("localStorage.clear()");
        self.call("Network.clearBrowserCookies", json!({}));
    }

    /// Clicks the first button or link whose text begins so; of the dialog where one is open.
    pub fn click(&mut self, text: &str) {
        let found = format!(
            "[...(document.querySelector('dialog[open]') ?? document).querySelectorAll('button, a')].find((one) => \
             one.offsetParent && !one.disabled && one.textContent.trim().startsWith({}))",
            json!(text)
        );
        self.until(&found);
        self.value(&format!("{found}.click()"));
    }

    /// Clicks the first button whose name for screen readers begins so.
    pub fn click_named(&mut self, name: &str) {
        let found = format!(
            "[...document.querySelectorAll('button[aria-label]')].find((one) => \
             one.offsetParent && one.getAttribute('aria-label').startsWith({}))",
            json!(name)
        );
        self.until(&found);
        self.value(&format!("{found}.click()"));
    }

    pub fn key(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, None),
            "Enter" => (13, Some("\r")),
            "Escape" => (27, None),
            "ArrowLeft" => (37, None),
            "ArrowRight" => (39, None),
            "Home" => (36, None),
            "ArrowDown" => (40, None),
            " " => (32, Some(" ")),
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

    /// Has downloads go to a folder.
    pub fn download_to(&mut self, folder: &Path) {
        let asked = json!({ "behavior": "allow", "downloadPath": folder });
        self.call("Browser.setDownloadBehavior", asked);
    }

    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses Tab until what has the focus fits a condition on `it`.
    pub fn tab_to(&mut self, condition: &str) {
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

    /// Checks the view by the rules of axe, if `CAIRN_AXE` names its script. It is evaluated, not
    /// loaded: the policy of the page holds for the page alone.
    fn check_by_axe(&mut self, name: &str) {
        let Some(file) = std::env::var_os("CAIRN_AXE") else { return };
        if self.value("typeof window.axe") != "object" {
            let script = std::fs::read_to_string(file).unwrap();
            let asked = json!({ "expression": format!("{script}; 0"), "returnByValue": true });
            self.call("Runtime.evaluate", asked);
        }
        let findings = self.value(include_str!("axe.js"));
        assert_eq!(findings, json!([]), "{name}, by axe");
    }

    /// Writes pictures of the view, wide and narrow, light and dark, and checks each.
    pub fn picture(&mut self, name: &str) {
        let folder = pictures();
        for (width, dark) in [(1280, false), (1280, true), (390, false), (390, true)] {
            self.look_like(width, dark);
            // Two frames: one lays the page out, the next one draws the line in its new width.
            self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
            let findings = self.value(FINDINGS);
            assert_eq!(findings, json!([]), "{name}, {width} pixels, dark: {dark}");
            // By contrast the themes differ, and by layout the widths: two pictures have all.
            if dark == (width < 500) {
                self.check_by_axe(name);
            }
            let shot = json!({ "format": "png", "captureBeyondViewport": true });
            let picture = self.call("Page.captureScreenshot", shot);
            let theme = if dark { "dark" } else { "light" };
            let file = folder.join(format!("{name}-{width}-{theme}.png"));
            std::fs::write(file, base64(picture["data"].as_str().unwrap())).unwrap();
        }
        self.look_like(1280, false);
    }

    /// Errors on the console, and requests to other places than this one.
    pub fn complaints(&self) -> Vec<String> {
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

    pub fn assert_no_complaints(&self) {
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
