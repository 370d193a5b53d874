//! `cairn top` on a real terminal, and without one.

mod running;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use running::{PATIENCE, Running, cairn, wait_until};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// A terminal of 80 columns and 12 lines.
struct Terminal {
    keys: File,
    slave: File,
    said: mpsc::Receiver<Vec<u8>>,
    text: String,
}

impl Terminal {
    fn open() -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&slave, Winsize { ws_row: 12, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let keys = File::from(master);
        let mut reader = keys.try_clone().unwrap();
        let (tell, said) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = reader.read(&mut bytes) {
                if count == 0 || tell.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { keys, slave, said, text: String::new() }
    }

    fn start(&self, server: &Running) -> std::process::Child {
        self.start_with(&["--data", server.data.to_str().unwrap()])
    }

    fn start_with(&self, arguments: &[&str]) -> std::process::Child {
        let end = || self.slave.try_clone().unwrap();
        let mut command = cairn();
        command.arg("top").args(arguments).env("NO_COLOR", "1");
        command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
    }

    /// Reads until `text` was shown that often since the beginning.
    fn wait_for(&mut self, text: &str, times: usize) {
        while self.text.matches(text).count() < times {
            let bytes =
                self.said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {text}: {}", self.text));
            self.text += &String::from_utf8_lossy(&bytes);
        }
    }

    fn is_plain(&self) -> bool {
        tcgetattr(&self.slave)
            .unwrap()
            .local_modes
            .contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }
}

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

fn server(dir: &tempfile::TempDir) -> Running {
    let server = Running::start(dir.path(), "d");
    server.good(&["volume", "create", "v", "--size", "64M"]);
    for lun in 0..20 {
        server.good(&["lun", "create", &format!("v/disk{lun}"), "--size", "1M"]);
    }
    server
}

#[test]
fn terminal_shows_what_goes_on_and_is_given_back_however_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server(&dir);
    let mut disk = server.disk("v/disk7");
    for key in ["q", "\x03", "TERM", "gone"] {
        let mut terminal = Terminal::open();
        let mut top = terminal.start(&server);
        terminal.wait_for(ENTER, 1);
        wait_until("keys come one by one", || !terminal.is_plain());
        if key != "gone" {
            disk.write(0, &[1; 4096]).unwrap();
            // The busy one is the first, and the others have no room.
            terminal.wait_for("v/disk7", 1);
            terminal.wait_for(" more\x1b[K", 2);
        }
        // Each look begins at the first line again.
        let looks = terminal.text.split(ENTER).nth(1).unwrap().replace("\x1b[H", "\n");
        for line in looks.split(['\n', '\r']) {
            let plain = line.replace("\x1b[?25l", "").replace("\x1b[2J", "");
            let plain = plain.replace("\x1b[K", "").replace("\x1b[J", "");
            assert!(plain.chars().count() <= 80 && !plain.contains('\x1b'), "{plain:?}");
        }
        match key {
            "TERM" => {
                let sent = std::process::Command::new("kill").arg(top.id().to_string()).status().unwrap();
                assert!(sent.success());
            }
            "gone" => server.kill(),
            key => terminal.keys.write_all(key.as_bytes()).unwrap(),
        }
        let code = top.wait().unwrap().code();
        terminal.wait_for(LEAVE, 1);
        assert!(terminal.is_plain(), "{key:?}");
        if key == "gone" {
            assert_eq!(code, Some(1));
            terminal.wait_for("no server is running", 1);
            assert!(terminal.text.find(LEAVE) < terminal.text.find("error: "), "on the terminal that stays");
        } else {
            assert_eq!(code, Some(0), "{key:?}: {}", terminal.text);
        }
    }
}

#[test]
fn keys_filter_sort_and_explain() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir);
    let mut terminal = Terminal::open();
    let mut top = terminal.start(&server);
    terminal.wait_for("sort: activity", 1);
    terminal.keys.write_all(b"?").unwrap();
    terminal.wait_for("Keys of cairn top", 1);
    terminal.keys.write_all(b"?s").unwrap();
    terminal.wait_for("sort: name", 1);
    terminal.keys.write_all(b"/disk17").unwrap();
    terminal.wait_for("filter: disk17_", 1);
    terminal.wait_for("v/disk17", 1);
    terminal.keys.write_all(b"\rq").unwrap();
    assert_eq!(top.wait().unwrap().code(), Some(0));
    terminal.wait_for(LEAVE, 1);
}

/// Hands a connection on to the server, until either side is through with it.
fn hand_on(mut asks: UnixStream, server: &Path) {
    let mut answers = UnixStream::connect(server).unwrap();
    let (mut asked, mut there) = (asks.try_clone().unwrap(), answers.try_clone().unwrap());
    let upward = thread::spawn(move || {
        let _ = std::io::copy(&mut asked, &mut there);
        let _ = there.shutdown(Shutdown::Write);
    });
    let _ = std::io::copy(&mut answers, &mut asks);
    upward.join().unwrap();
}

#[test]
fn keys_and_signals_end_it_also_while_the_server_does_not_answer() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir);
    for (number, key) in ["q", "\x03", "TERM"].into_iter().enumerate() {
        let mut terminal = Terminal::open();
        let between = dir.path().join(format!("between{number}"));
        let listener = UnixListener::bind(&between).unwrap();
        let real = server.data.join("control.sock");
        let (tell, hangs) = mpsc::channel();
        thread::spawn(move || {
            // The first look is one of two questions; the next one is not answered.
            for _ in 0..2 {
                hand_on(listener.accept().unwrap().0, &real);
            }
            tell.send(listener.accept().unwrap().0)
        });
        let mut top = terminal.start_with(&["--server", &format!("unix:{}", between.display())]);
        let _held = hangs.recv_timeout(PATIENCE).expect("it asks again");
        terminal.wait_for(ENTER, 1);
        let said = match key {
            "TERM" => {
                let sent = std::process::Command::new("kill").arg(top.id().to_string()).status();
                sent.is_ok_and(|sent| sent.success())
            }
            key => terminal.keys.write_all(key.as_bytes()).is_ok(),
        };
        let until = Instant::now() + PATIENCE;
        while top.try_wait().unwrap().is_none() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        let ended = top.try_wait().unwrap();
        let _ = top.kill();
        top.wait().unwrap();
        assert_eq!((said, ended.and_then(|ended| ended.code())), (true, Some(0)), "{key:?} ends it");
        terminal.wait_for(LEAVE, 1);
        assert!(terminal.is_plain(), "{key:?}");
    }
}

#[test]
fn one_look_is_printed_where_there_is_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir);
    let mut disk = server.disk("v/disk3");
    let (stop, stopped) = mpsc::channel::<()>();
    let writer = thread::spawn(move || {
        while let Err(mpsc::TryRecvError::Empty) = stopped.try_recv() {
            disk.write(0, &[7; 8192]).unwrap();
        }
    });
    let text = server.good(&["top"]);
    let busy = text.lines().find(|line| line.starts_with("v/disk")).unwrap();
    assert!(busy.starts_with("v/disk3 ") && text.matches("v/disk").count() == 20, "{text}");
    assert!(text.contains("memory ") && text.contains("1 volume, cache 256 MiB"), "{text}");
    let lines = server.good(&["top", "--json"]);
    drop(stop);
    writer.join().unwrap();
    let objects: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects[0]["message_type"], "server");
    assert!(objects[0]["memory_bytes"].as_u64().unwrap() > 1 << 20, "{lines}");
    assert_eq!(objects[1]["message_type"], "export");
    assert_eq!(objects[1]["name"], "v/disk3", "{lines}");
    let (requests, written) = (&objects[1]["requests_per_second"], &objects[1]["written_bytes_per_second"]);
    let (requests, written) = (requests.as_f64().unwrap(), written.as_f64().unwrap());
    assert!(requests > 1.0 && (written / requests - 8192.0).abs() < 1.0, "{lines}");
    assert!(objects[1]["p99_us"].as_f64().unwrap() > 0.0);
    server.good(&["top", "--once"]);
    drop(server);
    let none = cairn().args(["top", "--json", "--data"]).arg(dir.path().join("d")).output().unwrap();
    running::refused(&none, 1, "failed", &["top"]);
}
