//! The directory driver in a process that is killed at any moment: acknowledged objects exist,
//! others are complete or absent.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use cairn_bucket::{Put, list_all};

use super::*;

const CHILD: &str = "CAIRN_BUCKET_CHILD";
const ROUNDS: u64 = 30;
/// Bytes of an object: its number, and noise from it.
const BYTES: usize = 200_000;

fn content(number: u64) -> bytes::Bytes {
    noise(number, BYTES + (number % 7) as usize)
}

/// Writes objects and prints each acknowledgement, until it is killed. Without the variable it does
/// nothing.
#[test]
fn child_writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let folder = std::path::PathBuf::from(folder);
    let round: u64 = std::env::var("CAIRN_BUCKET_ROUND").expect("a round").parse().expect("a number");
    let store = directory(&folder, Arc::new(RealClock::default()), round);
    let mut out = std::io::stdout();
    for step in 0.. {
        let number = round * 1_000_000 + step;
        let key = name(&format!("o/{number:012}"));
        let put = if step % 3 == 2 {
            let upload = store.begin(&key, nonce(number), &never()).expect("begun");
            let bytes = content(number);
            let halves = [bytes.slice(..1000), bytes.slice(1000..)];
            let pieces: Vec<_> = (1..)
                .zip(halves)
                .map(|(number, bytes)| store.put_piece(&upload, number, bytes, &never()).expect("a piece"))
                .collect();
            store.finish(&upload, nonce(number), &pieces, &never())
        } else {
            store.put_new(&key, content(number), nonce(number), &never())
        };
        assert_eq!(put.expect("an answer"), Put::Created);
        writeln!(out, "created {number}").and_then(|()| out.flush()).expect("a parent");
    }
}

#[test]
fn objects_survive_a_killed_process_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rng = Rng::new(11);
    let mut acknowledged = Vec::new();
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["killed::child_writes_until_it_is_killed", "--exact", "--nocapture"])
            .env(CHILD, folder.path())
            .env("CAIRN_BUCKET_ROUND", round.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a child");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let wanted = rng.below(12);
        let mut seen = 0;
        while seen < wanted {
            let line = lines.next().expect("it writes on").expect("text");
            if let Some(number) = line.strip_prefix("created ") {
                acknowledged.push(number.parse::<u64>().expect("a number"));
                seen += 1;
            }
        }
        // Somewhere within the next object.
        std::thread::sleep(Duration::from_micros(rng.below(4000)));
        child.kill().expect("killed");
        for line in lines.map_while(Result::ok) {
            if let Some(number) = line.strip_prefix("created ").and_then(|number| number.parse().ok()) {
                acknowledged.push(number);
            }
        }
        child.wait().expect("gone");
    }
    let store = directory(folder.path(), clock(), 99);
    let there = list_all(&store, &prefix(""), &never()).expect("a listing");
    for listed in &there {
        let number: u64 = listed.name.as_str().trim_start_matches("o/").parse().expect("a number");
        assert!(
            store.get(&listed.name, 0, 2 * BYTES, &never()).expect("read") == content(number),
            "{number} is torn"
        );
        assert_eq!(store.head(&listed.name, &never()).expect("a head").nonce, Some(nonce(number)));
    }
    for number in &acknowledged {
        let key = name(&format!("o/{number:012}"));
        assert!(there.iter().any(|listed| listed.name == key), "{number} was acknowledged and is lost");
    }
    assert!(acknowledged.len() > ROUNDS as usize);
    let new = std::fs::read_dir(folder.path().join(".cairn-bucket/new")).expect("a folder");
    let new: Vec<_> = new.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(
        new.is_empty(),
        "opening removes the files of the dead: {new:?} {}",
        std::fs::read_to_string("/proc/locks").unwrap_or_default()
    );
    for upload in store.uploads(&prefix(""), &never()).expect("uploads") {
        store.abort(&upload, &never()).expect("aborted");
    }
    let left = std::fs::read_dir(folder.path().join(".cairn-bucket/uploads")).expect("a folder").count();
    assert_eq!(left, 0, "every upload of the dead was listed and aborted");
}

#[test]
fn processes_that_create_the_same_names_agree() {
    let folder = tempfile::tempdir().expect("a folder");
    // Each opens the directory for itself, as processes do.
    let stores: Vec<Directory> = (0..3).map(|seed| directory(folder.path(), clock(), seed)).collect();
    let won: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&stores)
            .map(|(creator, store): (u64, _)| {
                scope.spawn(move || {
                    let create = |number: &u64| {
                        let key = name(&format!("deep/er/{}", number % 50));
                        let own = nonce(creator * 1000 + number);
                        let put = store.put_new(&key, noise(creator, 500), own, &never());
                        put.expect("an answer") == Put::Created
                    };
                    (0..50).filter(create).collect::<Vec<u64>>()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(won.iter().map(Vec::len).sum::<usize>(), 50, "each name once");
    for (creator, numbers) in (0..).zip(won) {
        for number in numbers {
            let read = stores[0].get(&name(&format!("deep/er/{number}")), 0, 1000, &never());
            assert_eq!(read.expect("read"), noise(creator, 500));
        }
    }
}

#[test]
fn folder_that_another_process_removes_is_made_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let stores: Vec<Directory> = (0..2).map(|seed| directory(folder.path(), clock(), seed)).collect();
    std::thread::scope(|scope| {
        for (creator, store) in (0..).zip(&stores) {
            scope.spawn(move || {
                for round in 0..300 {
                    let key = name(&format!("f/g/{creator}-{round}"));
                    store.put_new(&key, noise(1, 10), nonce(round), &never()).expect("put");
                    store.delete(&key, &never()).expect("deleted");
                }
            });
        }
    });
    assert!(list_all(&stores[0], &prefix(""), &never()).expect("a listing").is_empty());
}
