//! Tasks for which people open the page, each by the mouse and by the keyboard alone.

use std::fs;
use std::path::Path;

use crate::browser::Browser;
use crate::running::{Running, can_mount, vol0, wait_until};
use crate::{Web, make_vol0, server_with_http, sign_in, sign_in_and_out};

/// A server with files in `vol0`, mounted; the folder of the mount.
fn server_with_files(dir: &Path) -> (Running, std::path::PathBuf) {
    let dumps = dir.join("dumps");
    fs::create_dir(&dumps).unwrap();
    let server =
        Running::start_with(dir, "a", &["--mirror", "127.0.0.1:0", "--dumps", dumps.to_str().unwrap()]);
    server.good(&["volume", "create", "vol0", "--size", "256M"]);
    let mounted = dir.join("mnt");
    fs::create_dir(&mounted).unwrap();
    server.good(&["mount", "vol0", mounted.to_str().unwrap()]);
    fs::create_dir(mounted.join("notes")).unwrap();
    fs::write(mounted.join("notes/report.txt"), "the first report").unwrap();
    fs::write(mounted.join("notes/plan.txt"), "the plan").unwrap();
    server.good(&["snapshot", "create", "vol0@monday"]);
    fs::remove_file(mounted.join("notes/report.txt")).unwrap();
    fs::remove_file(mounted.join("notes/plan.txt")).unwrap();
    // The kernel now knows that the names are missing, and the listing of the folder.
    assert!(!mounted.join("notes/report.txt").exists() && !mounted.join("notes/plan.txt").exists());
    assert_eq!(fs::read_dir(mounted.join("notes")).unwrap().count(), 0);
    (server, mounted)
}

#[test]
fn deleted_file_is_back_in_four_clicks_and_by_keyboard_alone() {
    if !can_mount() {
        return;
    }
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (server, mounted) = server_with_files(dir.path());
    let web = Web::start(&server);
    browser.open(&web.url);
    browser.until_text("All is well");
    browser.click("Files");
    browser.click("notes/");
    browser.until_text("Deleted from this folder");
    browser.until_text("report.txt");
    browser.picture("files-deleted");
    browser.click_named("Restore report.txt");
    browser.until_text("This restores it as /notes/report.txt, with its content and attributes of monday.");
    browser.picture("files-restore");
    browser.click("Restore");
    browser.until_text("Restored /notes/report.txt: 1 file, 16 B.");
    assert_eq!(fs::read_to_string(mounted.join("notes/report.txt")).unwrap(), "the first report");
    assert_eq!(fs::read_dir(mounted.join("notes")).unwrap().count(), 1);
    browser.click("Close");

    // The other one by the keyboard alone.
    browser.value("location.hash = '#/'");
    browser.until_text("Snapshots");
    browser.tab_to("it.getAttribute('aria-label') === 'Files of vol0'");
    browser.key("Enter");
    browser.until_text("notes/");
    browser.tab_to("it.textContent === 'notes/'");
    browser.key("Enter");
    browser.until_text("plan.txt");
    browser.tab_to("it.getAttribute('aria-label') === 'Restore plan.txt …'");
    browser.key("Enter");
    browser.until_text("This restores it as /notes/plan.txt");
    browser.until("document.activeElement.textContent === 'Restore'");
    browser.key("Enter");
    browser.until_text("Restored /notes/plan.txt: 1 file, 8 B.");
    assert_eq!(fs::read_to_string(mounted.join("notes/plan.txt")).unwrap(), "the plan");
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");

    // A version beside the present file, and the differences.
    fs::write(mounted.join("notes/report.txt"), "the second report, which is longer").unwrap();
    browser.value("location.hash = '#/files/vol0%40monday/notes'");
    browser.until_text("Files of vol0 at monday");
    browser.click_named("Versions of report.txt");
    browser.until("[...document.querySelectorAll('table')].some((it) => it.caption.textContent === 'Versions of report.txt' && it.rows.length === 3)");
    browser.picture("files-versions");
    browser.click_named("Restore report.txt …");
    browser.until_text("This restores it as /notes/report@monday.txt");
    browser.until_text("A file of that name is there now. It stays as it is.");
    browser.click("Restore");
    browser.until_text("Restored /notes/report@monday.txt");
    browser.click("Close");
    let read = |name: &str| fs::read_to_string(mounted.join("notes").join(name)).unwrap();
    assert_eq!(read("report@monday.txt"), "the first report");
    assert_eq!(read("report.txt"), "the second report, which is longer");
    browser.value("location.hash = '#/files/vol0/notes'");
    browser.until_text("Files of vol0 now");
    browser.until("document.getElementById('from')");
    browser.click("Compare");
    browser.until_text("cairn snapshot diff vol0@monday");
    browser.until_text("/notes/report@monday.txt");
    browser.picture("files-diff");

    let downloads = dir.path().join("downloads");
    fs::create_dir(&downloads).unwrap();
    browser.download_to(&downloads);
    browser.click_named("Download report.txt");
    wait_until("the file has arrived", || {
        fs::read(downloads.join("report.txt"))
            .is_ok_and(|bytes| bytes == b"the second report, which is longer")
    });
    browser.click_named("Download this folder as a zip file");
    let zip = downloads.join("notes.zip");
    wait_until("the folder has arrived as a zip file", || {
        fs::read(&zip).is_ok_and(|bytes| bytes.windows(4).any(|four| four == b"PK\x05\x06"))
    });
    browser.click_named("Download this folder as a tar file");
    let tar = downloads.join("notes.tar");
    wait_until("the folder has arrived", || {
        let listed = std::process::Command::new("tar").arg("tf").arg(&tar).output().unwrap();
        listed.status.success() && String::from_utf8_lossy(&listed.stdout).contains("notes/report@monday.txt")
    });

    // The same inside an image dump in a bucket.
    let store = dir.path().join("store");
    fs::create_dir(&store).unwrap();
    server.good(&["bucket", "add", "local", &format!("file://{}", store.display())]);
    server.good(&["image", "dump", "-0", "vol0", "local:"]);
    fs::remove_file(mounted.join("notes/report@monday.txt")).unwrap();
    browser.value("location.hash = '#/dumps'");
    browser.click("local");
    browser.until_text("Image dumps in local");
    browser.click("vol0@");
    browser.click("notes/");
    browser.until_text("report@monday.txt");
    browser.picture("dump-files");
    browser.click_named("Download report@monday.txt");
    wait_until("the file of the dump has arrived", || {
        fs::read(downloads.join("report@monday.txt")).is_ok_and(|bytes| bytes == b"the first report")
    });
    let notes = dir.path().join("from-dump");
    fs::remove_file(&zip).unwrap();
    browser.click_named("Download this folder as a zip file");
    wait_until("the folder of the dump has arrived", || {
        let script = "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])";
        let mut unzip = std::process::Command::new("/usr/bin/python3");
        unzip.args(["-c", script]).args([&zip, &notes]).stderr(std::process::Stdio::null());
        unzip.status().unwrap().success()
    });
    assert_eq!(fs::read(notes.join("notes/report@monday.txt")).unwrap(), b"the first report");

    // The same inside an image dump in a file of a declared folder.
    let file = dir.path().join("dumps/vol0.cairn");
    server.good(&["image", "dump", "-0", "vol0", "--to", file.to_str().unwrap()]);
    browser.value("location.hash = '#/dumps'");
    browser.click(dir.path().join("dumps").to_str().unwrap());
    browser.until_text("vol0.cairn");
    browser.picture("dumps-folder");
    browser.click("vol0");
    browser.click("notes/");
    browser.until_text("report.txt");
    fs::remove_file(downloads.join("report.txt")).unwrap();
    browser.click_named("Download report.txt");
    wait_until("the file of the dump in a folder has arrived", || {
        fs::read(downloads.join("report.txt"))
            .is_ok_and(|bytes| bytes == b"the second report, which is longer")
    });
    browser.assert_no_complaints();
}

/// A LUN with a history under its volume: 1 was written, and 2 after the instant of the answer.
fn database(server: &Running, store: &Path) -> u64 {
    make_vol0(server, Some(store));
    let now =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    vol0::write(server, 0, 7, 4096);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let good = now() / 1000;
    std::thread::sleep(std::time::Duration::from_millis(2500));
    vol0::write(server, 0, 9, 4096);
    good
}

#[test]
fn database_goes_back_to_a_second_by_its_time_and_by_keyboard_alone() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (server, url) = server_with_http(dir.path());
    let good = database(&server, &dir.path().join("store"));
    browser.open(&url);
    sign_in(&mut browser, &server);
    browser.click("vol0");
    browser.until_text("Time line");
    let time = format!("new Date({good}000).toTimeString().slice(0, 8)");
    let time = browser.value(&time);
    let time = time.as_str().unwrap().to_owned();
    // Also by the mouse, up to the question.
    browser.value("document.getElementById('line-goal').focus()");
    browser.write(&time);
    browser.click("Go");
    browser.until_text(&time);
    browser.until_text("In UTC");
    browser.click("Revert");
    browser.until_text("This brings vol0 back to");
    browser.picture("database-revert");
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");
    assert_eq!(vol0::content(&server)[0], 9);

    browser.value("location.hash = '#/'");
    browser.until_text("Snapshots");
    browser.tab_to("it.textContent === 'vol0'");
    browser.key("Enter");
    browser.until_text("Time line");
    browser.until("document.querySelector('.line-place canvas')");
    browser.tab_to("it.id === 'line-goal'");
    browser.write(&time);
    browser.key("Enter");
    browser.until_text("In UTC");
    browser.tab_to("it.textContent.startsWith('Revert')");
    browser.key("Enter");
    browser.until("document.activeElement.id === 'd-typed'");
    browser.until_text("This brings vol0 back to");
    browser.write("vol0");
    browser.key("Enter");
    browser.until_text("To undo:");
    assert_eq!(vol0::content(&server)[0], 7);
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");
    browser.assert_no_complaints();
}

/// One source and one mirror for three tasks: the price of a lag at the source, why the mirror is
/// behind, and a failover in a hurry.
#[test]
fn price_of_a_lag_a_mirror_behind_and_a_failover_by_keyboard_alone() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = Running::start(dir.path(), "source");
    make_vol0(&source, None);
    let here = Running::start(dir.path(), "here");
    here.good(&["mirror", "create", "vol0", &source.invite(), "--every", "1h", "--rpo", "5m"]);
    // The sample of a plan is small: it needs many blocks.
    for round in 0..3 {
        vol0::write(&source, 0, round, 4 << 20);
    }
    let web = Web::start(&source);
    browser.open(&web.url);
    browser.until_text("All is well");
    browser.value("location.hash = '#/volume/vol0'");
    browser.click("Mirrors");
    browser.until_text("Price of a lag");
    browser.until_text("Sent a day");
    // The row of the RPO of the mirror is marked.
    browser.until("document.querySelector('tr[aria-current] th')?.textContent === '5m'");
    browser.until_text("cairn plan vol0 --link 100M");
    browser.picture("price");

    browser.value("location.hash = '#/'");
    browser.until_text("Mirrored by");
    browser.tab_to("it.textContent === 'vol0'");
    browser.key("Enter");
    browser.until_text("Time line");
    browser.tab_to("it.textContent === 'Mirrors'");
    browser.key("Enter");
    browser.until_text("Sent a day");
    browser.tab_to("it.id === 'link'");
    browser.value("document.activeElement.select()");
    browser.write("64K");
    browser.key("Enter");
    browser.until_text("cairn plan vol0 --link 64K");

    // The mirror is behind: why, and the update.
    here.good(&["mirror", "update", "vol0"]);
    here.good(&["mirror", "set", "vol0", "--rpo", "1s"]);
    vol0::write(&source, 8192, 3, 1 << 20);
    wait_until("the mirror is behind", || vol0::status(&here)["state"] == "behind");
    let web = Web::start(&here);
    browser.open(&web.url);
    browser.until_text("1 problem");
    browser.tab_to("it.textContent === 'vol0' && it.hash === '#/mirror/vol0'");
    browser.key("Enter");
    browser.until_text("1.0 MiB of changes are not here");
    browser.until_text("it may lag 1s (RPO)");
    browser.tab_to("it.textContent.startsWith('Update now')");
    browser.key("Enter");
    browser.until_text("The source has changed 1.0 MiB since the image here.");
    browser.until("document.activeElement.textContent === 'Update'");
    browser.key("Enter");
    browser.until_text("The update runs");
    wait_until("the update is over", || vol0::status(&here)["lag_bytes"] == 0);
    browser.key("Escape");
    // The stream of changes says so: no press, and no reload.
    browser.until_text("Nothing had changed at the source");
    browser.picture("mirror-caught-up");

    // The source is gone: from the overview to a volume that takes writes.
    drop(source);
    browser.value("location.hash = '#/'");
    browser.until_text("Clients");
    browser.tab_to("it.textContent === 'vol0' && it.hash === '#/mirror/vol0'");
    browser.key("Enter");
    browser.tab_to("it.textContent.startsWith('Fail over')");
    browser.key("Enter");
    browser.until_text("Lost: at most the writes of the last");
    browser.until("document.activeElement.id === 'd-typed'");
    browser.write("vol0");
    browser.key("Enter");
    browser.until_text("vol0 takes writes now, and follows no source.");
    browser.until_text("cairn lun list vol0");
    assert_eq!(vol0::content(&here)[8192], 3);
    vol0::write(&here, 0, 9, 4096);
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");
    browser.assert_no_complaints();
}

/// The requests that the page has sent, other than those that read and the sign-in.
fn changes_sent(browser: &Browser) -> Vec<String> {
    let sent = |event: &serde_json::Value| {
        let request = &event["params"]["request"];
        let (method, url) = (request["method"].as_str()?, request["url"].as_str()?);
        let is_change =
            event["method"] == "Network.requestWillBeSent" && method != "GET" && !url.ends_with("/session");
        is_change.then(|| format!("{method} {url}"))
    };
    browser.events.iter().filter_map(sent).collect()
}

/// A viewer sees each action, why it may not do it, and the command for another person; the page
/// sends nothing. An operator may do more, and destroys nothing.
#[test]
fn viewer_cannot_destroy_and_learns_why_by_keyboard_as_well() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (server, url) = server_with_http(dir.path());
    make_vol0(&server, None);
    server.good(&["snapshot", "schedule", "set", "vol0", "nightly", "--cron", "0 3 * * *"]);
    let snapshots = || server.json(&["snapshot", "list", "vol0"]).as_array().unwrap().len();
    let enter_with = |browser: &mut Browser, role: &str| {
        let token = server.good(&["token", "create", role, "--role", role]);
        browser.open(&url);
        browser.until("document.activeElement?.id === 'token'");
        browser.write(token.trim());
        browser.key("Enter");
    };
    sign_in_and_out(&mut browser, &server, &url);
    enter_with(&mut browser, "viewer");
    browser.until_text("All is well");
    browser.until_text("token viewer (viewer)");
    browser.value("location.hash = '#/volume/vol0'");
    browser.click("before");
    browser.until_text("Its deletion would free");
    browser.until_text(" alone");
    // The line has as many runs as of a schedule with an interval.
    browser.until_text("To come: 60 runs until");
    for action in ["Take a snapshot", "Clone", "Roll back", "Hold", "Delete"] {
        browser.until(&format!(
            "[...document.querySelectorAll('button')].find((it) => it.textContent.startsWith('{action}')).getAttribute('aria-disabled') === 'true'"
        ));
    }
    browser.picture("viewer");
    browser.click("Delete");
    browser.until_text("This needs the role administrator. You are token viewer (viewer).");
    browser.until_text("cairn snapshot delete vol0@before");
    assert_eq!(browser.value("document.querySelectorAll('dialog button.danger, dialog input').length"), 0);
    browser.picture("viewer-denied");
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");
    browser.tab_to("it.textContent.startsWith('Roll back')");
    browser.key("Enter");
    browser.until_text("cairn snapshot rollback vol0@before");
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");
    browser.value("location.hash = '#/files/vol0'");
    browser.until_text("Folder");
    browser.value("location.hash = '#/log'");
    browser.until_text("The audit log is for administrators");
    let sent = changes_sent(&browser);
    let reads = |one: &&String| one.ends_with("/v1/schedules/simulate");
    assert_eq!(sent.iter().filter(|one| !reads(one)).collect::<Vec<_>>(), Vec::<&String>::new());
    browser.assert_no_complaints();
    // A script that asks all the same is refused by the server.
    let asked = "fetch('/v1/volumes/vol0/snapshots/before', { method: 'DELETE', headers: { 'x-cairn': localStorage.getItem('cairn-key') } }).then((answer) => answer.status)";
    assert_eq!(browser.value(asked), 403);
    assert_eq!(snapshots(), 1);
    browser.events.clear();

    browser.click("Sign out");
    enter_with(&mut browser, "operator");
    browser.until_text("token operator (operator)");
    browser.value("location.hash = '#/volume/vol0'");
    browser.click("Take a snapshot");
    browser.click("Take it");
    browser.until_text("Made vol0@page-");
    browser.click("Close");
    assert_eq!(snapshots(), 2);
    browser.click("before");
    browser.click("Roll back");
    browser.until_text("This needs the role administrator. You are token operator (operator).");
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");

    browser.click("Sign out");
    enter_with(&mut browser, "lock-keeper");
    browser.until_text("This role has no page");
    browser.until_text("You are token lock-keeper (lock keeper).");
    browser.assert_no_complaints();
}

/// The views of history, of the fleet and of the log: at a server whose page is signed in, and at
/// its mirror.
pub fn history_fleet_and_log(browser: &mut Browser, (server, url): (&Running, &str), here: &Running) {
    for round in 0..3 {
        vol0::write(server, 0, round, 4 << 20);
    }
    browser.open(url);
    browser.until_text("All is well");
    browser.value("location.hash = '#/history/vol0'");
    browser.until_text("Cost as measured");
    browser.until_text("What another setting would cost");
    browser.until_text("Space of a window");
    browser.picture("history");
    browser.click("Change the window");
    browser.until_text("Older history than this is folded back");
    browser.key("Escape");
    browser.until("!document.querySelector('dialog')");
    here.good(&["mirror", "set", "vol0", "--rpo", "1s"]);
    vol0::write(server, 0, 5, 1 << 20);
    wait_until("the mirror is behind", || vol0::status(here)["state"] == "behind");
    let web = Web::start(here);
    browser.open(&web.url);
    browser.until_text("1 problem");
    // Another server, read with a token of a viewer; it ends, and the row says so.
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let token = here.data.with_extension("token");
    fs::write(&token, server.good(&["token", "create", "fleet", "--role", "viewer"])).unwrap();
    here.good(&["fleet", "create", "storage1", &address, "--token", &format!("@{}", token.display())]);
    browser.value("location.hash = '#/fleet'");
    browser.until_text("Servers that this one knows");
    browser.until_text("storage1 127.0.0.1:");
    browser.until_text("2 volumes, 0 mirrors");
    // The worst first.
    browser.until("document.querySelector('tbody tr .state').className.includes('bad')");
    browser.picture("fleet");
    browser.value("location.hash = '#/log'");
    browser.until_text("mirror create");
    browser.picture("log");
    browser.value("document.getElementById('text').focus()");
    browser.write("nothing like this");
    browser.until_text("nothing fits");
    browser.assert_no_complaints();
}

/// Ten thousand snapshots are drawn within a frame of a screen at 60 Hz, at any zoom.
fn check_line(browser: &mut Browser) {
    let paint = browser.value("performance.getEntriesByName('first-contentful-paint')[0]?.startTime");
    let frame = browser.value(include_str!("frames.js"));
    eprintln!("first paint after {paint} ms, a frame of the line takes {frame} ms");
    assert!(frame.as_f64().unwrap() < 1000.0 / 60.0, "{frame} ms");
}

/// The status is asked for once in a while when nothing changes, and at once when something does.
/// It is drawn within a frame, whatever the number of snapshots.
#[test]
fn page_asks_seldom_while_nothing_changes_and_not_at_all_while_hidden() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "a");
    server.good(&["volume", "create", "vol0", "--size", "64M"]);
    let web = Web::start(&server);
    browser.open(&web.url);
    browser.until_text("All is well");
    let asked = |browser: &mut Browser| {
        browser.value("performance.getEntriesByType('resource').filter((one) => one.name.endsWith('/v1/status')).length").as_u64().unwrap()
    };
    browser.until("performance.getEntriesByType('resource').filter((one) => one.name.endsWith('/v1/status')).length >= 1");
    let before = asked(&mut browser);
    std::thread::sleep(std::time::Duration::from_millis(4500));
    let idle = asked(&mut browser) - before;
    assert!(idle <= 1, "{idle} requests within 4.5 s");
    server.good(&["volume", "create", "vol1", "--size", "64M"]);
    browser.until("[...document.querySelectorAll('th a')].some((one) => one.textContent === 'vol1')");
    let show = |browser: &mut Browser, state: &str| {
        let set = "Object.defineProperty(document, 'visibilityState', { configurable: true, value: ";
        browser.value(&format!("{set}'{state}' }}); document.dispatchEvent(new Event('visibilitychange'))"));
    };
    show(&mut browser, "hidden");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let before = asked(&mut browser);
    server.good(&["volume", "create", "vol2", "--size", "64M"]);
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(asked(&mut browser), before);
    show(&mut browser, "visible");
    browser.until("[...document.querySelectorAll('th a')].some((one) => one.textContent === 'vol2')");
    check_line(&mut browser);
    browser.assert_no_complaints();
}
