//! The time until the page is painted, for a quiet machine: `just first-paint`.

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::running::Running;
use crate::{Web, server_with_http, sign_in};

/// Loads of each kind.
const LOADS: usize = 9;

/// The parts of a load, in milliseconds since it began, and its requests and bytes.
const PARTS: [&str; 8] =
    ["document", "style", "first paint", "content", "scripts", "drawn", "requests", "KiB"];

/// Times of the load that is shown. `drawn` is the largest content so far.
const LOOK: &str = "(async () => {
  const largest = await new Promise((resolve) => {
    const seen = new PerformanceObserver((list) => resolve(list.getEntries().at(-1).startTime));
    seen.observe({ type: 'largest-contentful-paint', buffered: true });
    setTimeout(() => resolve(0), 2000);
  });
  const paint = (name) => performance.getEntriesByName(name)[0]?.startTime ?? 0;
  const document = performance.getEntriesByType('navigation')[0];
  const files = performance.getEntriesByType('resource').filter((one) => one.name.includes('/page/'));
  const end = (of) => Math.max(0, ...files.filter((one) => one.name.endsWith(of)).map((one) => one.responseEnd));
  const all = [document, ...files];
  return [
    document.responseEnd, end('.css'), paint('first-paint'), paint('first-contentful-paint'), end('.js'), largest,
    all.filter((one) => one.transferSize > 0).length,
    all.reduce((sum, one) => sum + one.transferSize, 0) / 1024,
  ];
})()";

/// Loads a page, and looks when it says this.
fn load(browser: &mut Browser, url: &str, text: &str, rows: &mut Vec<Vec<f64>>) {
    browser.open(url);
    browser.until_text(text);
    let found = browser.value(LOOK);
    rows.push(found.as_array().unwrap().iter().map(|part| part.as_f64().unwrap()).collect());
}

fn median(rows: &[Vec<f64>], part: usize) -> f64 {
    let mut all: Vec<f64> = rows.iter().map(|row| row[part]).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Prints the medians of nine loads, and holds no limit: the machine decides about them.
#[test]
#[ignore = "a measurement for a quiet machine"]
fn first_paint_of_the_page() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (server, url) = server_with_http(dir.path());
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    let forget_files = |browser: &mut Browser| {
        browser.call("Network.clearBrowserCache", json!({}));
    };
    // The browser has to warm up: its first page takes as long as its start.
    load(&mut browser, &url, "Token of the API", &mut Vec::new());
    let (mut out, mut cold, mut warm, mut local) = (vec![], vec![], vec![], vec![]);
    for _ in 0..LOADS {
        forget_files(&mut browser);
        load(&mut browser, &url, "Token of the API", &mut out);
    }
    browser.open(&url);
    sign_in(&mut browser, &server);
    for _ in 0..LOADS {
        forget_files(&mut browser);
        load(&mut browser, &url, "All is well", &mut cold);
    }
    for _ in 0..LOADS {
        load(&mut browser, &url, "All is well", &mut warm);
    }
    local_loads(&mut browser, &server, &mut local);
    println!("medians of {LOADS} loads, in milliseconds since the load began");
    println!("{:24}{}", "", PARTS.map(|part| format!("{part:>12}")).concat());
    for (name, rows) in [
        ("sign-in, no file kept", &out),
        ("overview, no file kept", &cold),
        ("overview, files kept", &warm),
        ("cairn web, no file kept", &local),
    ] {
        let parts: Vec<String> =
            (0..PARTS.len()).map(|part| format!("{:12.0}", median(rows, part))).collect();
        println!("{name:24}{}", parts.concat());
    }
}

/// Loads of the page of `cairn web`, in the session of one link.
fn local_loads(browser: &mut Browser, server: &Running, rows: &mut Vec<Vec<f64>>) {
    let web = Web::start(server);
    browser.open(&web.url);
    browser.until_text("All is well");
    let address: Value = browser.value("location.origin + '/'");
    for _ in 0..LOADS {
        browser.call("Network.clearBrowserCache", json!({}));
        load(browser, address.as_str().unwrap(), "All is well", rows);
    }
}
