//! The planned change of the roles of a group: all of its volumes at one instant and without loss,
//! there and back, over kills of either side.

mod running;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use running::{Running, wait_until};
use serde_json::Value;

const VOLUMES: [&str; 3] = ["data", "index", "logs"];
/// Of each write: so that the last image takes a moment over a link with a limit.
const BYTES: usize = 64 << 10;

/// A source of three volumes that belong together, and a server with their mirrors; both keep their
/// addresses.
fn pair(dir: &Path) -> (Running, Running) {
    let mut source = Running::start(dir, "source");
    source.stay();
    let mut destination = Running::start(dir, "destination");
    destination.stay();
    for volume in VOLUMES {
        source.good(&["volume", "create", volume, "--size", "64M"]);
        source.good(&["lun", "create", &format!("{volume}/db"), "--size", "1M"]);
        let token = source.invite();
        destination.good(&["mirror", "create", volume, &token]);
    }
    for server in [&source, &destination] {
        server.good(&["group", "create", "bank", "data", "index", "logs"]);
    }
    (source, destination)
}

/// Writes a number to one volume after the other, durably, until one of them refuses; the last ones
/// that were answered.
fn count_up(server: &Running, from: u64) -> JoinHandle<[u64; 3]> {
    let mut disks = VOLUMES.map(|volume| server.disk(&format!("{volume}/db")));
    std::thread::spawn(move || {
        let mut answered = [from; 3];
        let mut number = from;
        loop {
            number += 1;
            for (disk, last) in disks.iter_mut().zip(&mut answered) {
                let bytes = number.to_le_bytes().repeat(BYTES / 8);
                if disk.write(0, &bytes).and_then(|()| disk.flush()).is_err() {
                    return answered;
                }
                *last = number;
            }
        }
    })
}

fn number(server: &Running, export: &str) -> u64 {
    u64::from_le_bytes(server.disk(export).read(0, 4096).unwrap()[..8].try_into().unwrap())
}

fn numbers(server: &Running) -> [u64; 3] {
    VOLUMES.map(|volume| number(server, &format!("{volume}/db")))
}

fn roles(server: &Running) -> [Value; 3] {
    VOLUMES.map(|volume| server.json(&["mirror", "status", volume])["role"].clone())
}

/// Of volumes that may not have been mirrors yet.
fn is(server: &Running, volume: &str, role: &str) -> bool {
    let shown = server.run(&["mirror", "status", volume, "--json"]);
    let found: Option<Value> = serde_json::from_slice(&shown.stdout).ok();
    shown.status.success() && found.is_some_and(|found| found["role"] == role)
}

fn are_all(server: &Running, role: &str) -> bool {
    VOLUMES.iter().all(|volume| is(server, volume, role))
}

fn problems(server: &Running) -> String {
    server.json(&["status"])["problems"].to_string()
}

/// Checks that every volume has all acknowledged counts, and that all of them show one instant.
/// Returns the count there.
fn assert_instant(server: &Running, answered: [u64; 3]) -> u64 {
    let shown = numbers(server);
    for (shown, answered) in shown.iter().zip(answered) {
        assert!(*shown >= answered, "{shown} is shown, and {answered} was answered");
    }
    assert!(shown.is_sorted_by(|a, b| a >= b) && shown[0] - shown[2] <= 1, "one instant: {shown:?}");
    let group = server.json(&["group", "show", "bank"]);
    let snapshot = group["common"]["name"].as_str().unwrap().to_owned();
    let named = VOLUMES.map(|volume| number(server, &format!("{volume}@{snapshot}/db")));
    assert_eq!(named, shown, "the snapshot of the group is what it stopped at");
    shown[0]
}

fn takes_writes(server: &Running) -> bool {
    let results = VOLUMES.map(|volume| {
        let mut disk = server.disk(&format!("{volume}/db"));
        disk.write(512 << 10, &[9; 4096]).and_then(|()| disk.flush()).is_ok()
    });
    assert!(results.iter().all(|taken| *taken == results[0]), "all of them or none: {results:?}");
    results[0]
}

/// Slows the link of each mirror, so that a test can act before the last images have arrived.
fn slow(server: &Running) {
    for volume in VOLUMES {
        server.good(&["mirror", "set", volume, "--limit", "128K", "--compress", "never"]);
    }
}

fn begin(server: &Running, command: &[&str]) -> Child {
    let mut begun = running::cairn();
    begun.args(command).arg("--yes").arg("--data").arg(&server.data);
    begun.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Puts a server into the state of a kill after the first of the mirrors has taken over: that is
/// done, and the takeover of all of them is recorded.
fn take_over_first_and_be_killed(server: &mut Running) {
    let instant = server.json(&["group", "show", "bank"])["common"]["name"].clone();
    server.good(&["group", "apart", "bank"]);
    server.good(&["mirror", "failover", "data", "--yes"]);
    server.good(&["group", "together", "bank"]);
    server.kill();
    let path = server.data.join("groups.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    document["groups"][0]["failover"] =
        serde_json::json!({ "snapshot": instant, "at_ms": 1, "done": ["data"], "reverse": true });
    std::fs::write(&path, document.to_string()).unwrap();
    server.restart();
}

/// Begins the change of roles under load, and waits until the sources have given theirs away.
/// Returns the acknowledged counts.
fn give_away(from: &Running, to: &Running, at: u64) -> (Child, [u64; 3]) {
    let load = count_up(from, at);
    let change = begin(to, &["group", "reverse", "bank"]);
    wait_until("the sources give their roles away", || are_all(from, "destination"));
    (change, load.join().unwrap())
}

#[test]
fn group_changes_its_roles_at_one_instant_under_load_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    let command = ["group", "reverse", "bank", "--yes"];
    // Without a word of the source's owner for all of them, nothing is changed for any.
    destination.bad(12, "peer-refused", &command);
    for volume in ["data", "index"] {
        source.good(&["mirror", "allow-reverse", volume]);
    }
    destination.bad(12, "peer-refused", &command);
    assert!(
        source.data.join("volumes/data/reverse.json").exists(),
        "the consent of the other one was not used"
    );
    assert!(takes_writes(&source), "and it serves on");
    assert_eq!(roles(&destination), ["destination"; 3]);
    // A single volume cannot change its role without the others, even if only its source knows the
    // group.
    let told = destination.bad(13, "wrong-role", &["mirror", "reverse", "data", "--yes"]);
    assert!(told.contains("bank"), "{told}");
    destination.bad(13, "wrong-role", &["mirror", "failback", "data"]);
    destination.good(&["group", "delete", "bank"]);
    let told = destination.bad(13, "wrong-role", &["mirror", "reverse", "data", "--yes"]);
    assert!(told.contains("bank"), "{told}");
    // A group is the same on both sides.
    destination.good(&["group", "create", "bank", "data", "logs"]);
    destination.bad(10, "not-found", &command);
    destination.good(&["group", "delete", "bank"]);
    destination.good(&["group", "create", "bank", "data", "index", "logs"]);
    source.bad(10, "not-found", &command);
    assert!(takes_writes(&source));

    let allowed = source.json(&["group", "allow-reverse", "bank"]);
    assert_eq!(allowed.as_array().unwrap().len(), 3, "{allowed}");
    source.good(&["group", "allow-reverse", "bank", "--off"]);
    destination.bad(12, "peer-refused", &command);
    source.good(&["group", "allow-reverse", "bank", "--for", "5m"]);
    let said = destination.good(&["group", "reverse", "bank", "-n"]);
    assert!(said.contains("nothing was done"), "{said}");
    let mut at = 0;
    for round in 0..2 {
        let load = count_up(&source, at);
        wait_until("the clients are at work", || number(&source, "logs/db") > at + 5);
        let changed = destination.good(&command);
        let answered = load.join().unwrap();
        for volume in VOLUMES {
            assert!(changed.contains(&format!("roles: {volume} (here, source)")), "{round}: {changed}");
        }
        at = assert_instant(&destination, answered);
        assert_eq!(numbers(&source), numbers(&destination), "the old sources show the same");
        assert_eq!(roles(&source), ["destination"; 3]);
        assert_eq!(roles(&destination), ["source"; 3]);
        assert!(!takes_writes(&source) && takes_writes(&destination));
        assert!(destination.good(&command).contains("data (here, source)"), "done before, it says so");
        // Writes continue there, and arrive here.
        let made = destination.json(&["snapshot", "create", "--group", "bank"])["name"].clone();
        for volume in VOLUMES {
            source.good(&["mirror", "update", volume]);
        }
        wait_until("the old sources move on", || {
            source.json(&["group", "show", "bank"])["shown"]["name"] == made
        });
        // And back: to the source that it was made of without a word.
        let load = count_up(&destination, at);
        wait_until("the clients are at work", || number(&destination, "logs/db") > at + 5);
        source.good(&command);
        at = assert_instant(&source, load.join().unwrap());
        assert_eq!(roles(&destination), ["destination"; 3]);
        assert!(takes_writes(&source) && !takes_writes(&destination));
        source.good(&["group", "allow-reverse", "bank"]);
    }
    for volume in VOLUMES {
        assert!(source.good(&["volume", "check", volume]).contains("sound"));
        assert!(destination.good(&["volume", "check", volume]).contains("sound"));
    }
}

#[test]
fn group_whose_change_of_roles_is_cut_by_a_kill_of_either_side_goes_on_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mut destination) = pair(dir.path());
    let command = ["group", "reverse", "bank", "--yes"];
    slow(&destination);
    source.good(&["group", "allow-reverse", "bank"]);
    // The side that takes over dies when no side takes writes.
    let (mut change, answered) = give_away(&source, &destination, 0);
    destination.kill();
    assert!(!change.wait().unwrap().success());
    assert!(!takes_writes(&source));
    assert_instant(&source, answered);
    destination.restart();
    assert_eq!(roles(&destination), ["destination"; 3]);
    destination.good(&command);
    let at = assert_instant(&destination, answered);
    assert!(takes_writes(&destination) && !takes_writes(&source));
    // The side that gives its roles away dies right after that.
    slow(&source);
    let (mut change, answered) = give_away(&destination, &source, at);
    destination.kill();
    assert!(!change.wait().unwrap().success());
    destination.restart();
    assert!(!takes_writes(&destination));
    source.good(&command);
    let at = assert_instant(&source, answered);
    // The mirrors are permanently gone: their sources take their roles back, all with their
    // acknowledged writes.
    source.good(&["group", "allow-reverse", "bank"]);
    let (mut change, answered) = give_away(&source, &destination, at);
    destination.kill();
    assert!(!change.wait().unwrap().success());
    source.kill();
    source.restart();
    source.bad(13, "wrong-role", &["mirror", "failover", "data", "--yes"]);
    source.good(&["group", "failover", "bank", "--yes"]);
    assert_instant(&source, answered);
    assert!(takes_writes(&source));
}

/// As a kill leaves it between two volumes, on either side.
#[test]
fn group_whose_volumes_have_changed_their_roles_in_part_changes_all_of_them_at_one_instant() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mut destination) = pair(dir.path());
    let command = ["group", "reverse", "bank", "--yes"];
    slow(&destination);
    for server in [&source, &destination] {
        server.good(&["group", "apart", "bank"]);
    }
    // One of the sources has given way.
    source.good(&["mirror", "allow-reverse", "data"]);
    let load = count_up(&source, 0);
    let mut change = begin(&destination, &["mirror", "reverse", "data"]);
    wait_until("data gives its role away", || is(&source, "data", "destination"));
    let mut answered = load.join().unwrap();
    destination.kill();
    assert!(!change.wait().unwrap().success());
    source.kill();
    source.restart();
    destination.restart();
    for server in [&source, &destination] {
        server.good(&["group", "together", "bank"]);
    }
    // The others are written to.
    for (at, volume) in VOLUMES.iter().enumerate().skip(1) {
        answered[at] = 1000 - at as u64;
        let mut disk = source.disk(&format!("{volume}/db"));
        disk.write(0, &answered[at].to_le_bytes().repeat(BYTES / 8)).unwrap();
        disk.flush().unwrap();
        destination.bad(12, "peer-refused", &command);
        source.good(&["mirror", "allow-reverse", volume]);
    }
    let mut disk = source.disk("index/db");
    let load = std::thread::spawn(move || {
        while disk.write(256 << 10, &[7; 2 * BYTES]).and_then(|()| disk.flush()).is_ok() {}
    });
    let mut change = begin(&destination, &["group", "reverse", "bank"]);
    wait_until("the others give their roles away too", || are_all(&source, "destination"));
    load.join().unwrap();
    destination.kill();
    assert!(!change.wait().unwrap().success());
    destination.restart();
    for volume in VOLUMES {
        destination.good(&["mirror", "update", volume]);
    }
    take_over_first_and_be_killed(&mut destination);
    assert!(problems(&destination).contains("reverse was cut off"), "{}", problems(&destination));
    assert_eq!(&numbers(&destination)[1..], &answered[1..]);
    assert!(!takes_writes(&destination), "nobody writes to any before all do");
    // That needs nothing of the other side.
    source.kill();
    destination.good(&command);
    let shown = numbers(&destination);
    assert!(shown[0] >= answered[0] && shown[1..] == answered[1..], "{shown:?}, {answered:?}");
    assert!(takes_writes(&destination));
    assert!(!destination.good(&["snapshot", "list", "logs"]).contains("@before-rollback-"));
    source.restart();
    assert_eq!(numbers(&source), shown, "the old sources show that instant");
    for volume in VOLUMES {
        source.good(&["mirror", "update", volume]);
        assert!(destination.good(&["volume", "check", volume]).contains("sound"));
    }
}

#[test]
fn group_that_was_on_its_way_to_take_over_does_so_at_that_instant_whatever_came_since() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, mut destination) = pair(dir.path());
    let number_all = |number: u64| {
        for volume in VOLUMES {
            let mut disk = source.disk(&format!("{volume}/db"));
            disk.write(0, &number.to_le_bytes().repeat(BYTES / 8)).and_then(|()| disk.flush()).unwrap();
        }
    };
    number_all(1);
    source.good(&["snapshot", "create", "--group", "bank"]);
    for volume in VOLUMES {
        destination.good(&["mirror", "update", volume]);
    }
    take_over_first_and_be_killed(&mut destination);
    // The other side has its roles again, and resumes.
    number_all(2);
    for volume in &VOLUMES[1..] {
        destination.good(&["mirror", "update", volume]);
    }
    assert_eq!(numbers(&destination), [1; 3], "what is on its way to an instant shows that");
    source.kill();
    destination.good(&["group", "reverse", "bank", "--yes"]);
    assert_eq!(numbers(&destination), [1; 3]);
    assert!(takes_writes(&destination));
}

/// No mirror has the name of the group: advice to check one of that name would find none, as if no
/// change were running.
#[test]
fn change_of_roles_that_is_interrupted_names_what_there_is_to_look_at() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = pair(dir.path());
    for volume in VOLUMES {
        destination.good(&["mirror", "set", volume, "--limit", "16K", "--compress", "never"]);
        let mut disk = source.disk(&format!("{volume}/db"));
        disk.write(0, &[7; 1 << 20]).and_then(|()| disk.flush()).unwrap();
    }
    source.good(&["group", "allow-reverse", "bank"]);
    let mut command = running::cairn();
    command.args(["group", "reverse", "bank", "--yes", "--json", "--data"]).arg(&destination.data);
    let mut change = command.stdout(Stdio::piped()).spawn().unwrap();
    let (mut status, mut told) = (String::new(), String::new());
    let mut says = BufReader::new(change.stdout.take().unwrap());
    says.read_line(&mut status).unwrap();
    assert!(status.contains("message_type"), "it has begun: {status}");
    assert!(Command::new("kill").args(["-INT", &change.id().to_string()]).status().unwrap().success());
    says.read_to_string(&mut told).unwrap();
    assert!(!change.wait().unwrap().success());
    assert!(told.contains("group reverse of bank continues on the server"), "{told}");
    assert!(told.contains("`cairn group show bank`") && !told.contains("mirror abort"), "{told}");
    destination.good(&["group", "show", "bank"]);
}
