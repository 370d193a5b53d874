//! Histories of every released format, opened by this program: their kept instants are shown
//! unchanged.
//!
//! `vN/` holds two lives written by version N: an origin, the store of its history, and in
//! `shown.txt` the content at each mark. Both were thinned and reverted, and closed with an
//! unfinished copy; contents of one are reduced. Those of a release are never made anew. A format
//! change adds the next folder: set `NEWEST` to it, add it to `VERSIONS`, and run `cargo test -p
//! cairn-history --test golden -- --ignored golden_histories_are_written`. `docs/format.md` has the
//! whole recipe.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{Checksum, HistoryId, ManualClock, Rng, Timestamp};
use cairn_device::{Device, MemoryDevice, Segments};
use cairn_format::layout::VERSION;
use cairn_history::{
    Granularity, History, HistoryOptions, LogPosition, OpenOptions, Placement, Reduction, Thin, Window,
    store_bytes_min,
};

/// Every version with golden histories.
const VERSIONS: &[&str] = &["v1"];
/// Where those of this program's version are.
const NEWEST: &str = "v1";
/// The lives, by the names of their files.
const LIVES: [(&str, Placement, Reduction); 2] = [
    ("plain", Placement::Checkpointing, Reduction::NONE),
    ("reduced", Placement::Logging, Reduction { xor: true, identical: true }),
];
const BEGAN: u64 = 1_790_000_000_000_000_000;
const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

fn folder(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version)
}

fn device(version: &str, name: &str) -> Arc<MemoryDevice> {
    let packed = std::fs::read(folder(version).join(format!("{name}.zst"))).expect("a golden file is there");
    let bytes = zstd::stream::decode_all(&packed[..]).expect("a golden file is one of zstd");
    let device = Arc::new(MemoryDevice::new(bytes.len() as u64));
    device.write(0, Segments::copy_of(&bytes)).expect("memory takes writes");
    device
}

/// The part of `shown.txt` under a heading.
fn expected(version: &str, heading: &str) -> String {
    let text = std::fs::read_to_string(folder(version).join("shown.txt")).expect("what they show is there");
    let part = text.split("# ").find(|part| part.lines().next() == Some(heading));
    part.and_then(|part| part.split_once('\n')).expect("each life has a part").1.to_owned()
}

fn bytes(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().length as usize];
    device.read_into(0, &mut bytes).expect("it can be read");
    bytes
}

/// The present, and each mark with the digest of the device's content then.
fn shown(history: &Arc<History>) -> String {
    let status = history.status();
    let mut text = String::new();
    let (placement, window) = (status.placement, status.window);
    writeln!(text, "{placement:?} of {} bytes, {window:?}", status.origin_bytes).unwrap();
    writeln!(text, "from {} to {}, {} reverts", status.start.0, status.last.0, status.reverts.len()).unwrap();
    for mark in history.marks() {
        let view = history.view(mark.time).expect("a mark in the window is reached");
        let consistent = if mark.consistent { ", consistent" } else { "" };
        let digest = Checksum::of(&bytes(&view));
        writeln!(text, "{} at {}{consistent}: {digest:?}", mark.name, mark.time.0).unwrap();
    }
    writeln!(text, "now: {:?}", Checksum::of(&bytes(&**history))).unwrap();
    text
}

fn opening(clock: &Arc<ManualClock>) -> OpenOptions {
    let at_least = LogPosition::default();
    OpenOptions { dirty_bytes: 64 << 10, read_bytes: 1 << 18, clock: clock.clone(), at_least }
}

/// Opens it this many hours after it began.
fn open(
    origin: &Arc<MemoryDevice>,
    store: &Arc<MemoryDevice>,
    hours: u64,
) -> (Arc<History>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp(BEGAN + hours * 3_600_000_000_000)));
    let history = History::open(origin.clone(), store.clone(), opening(&clock)).expect("the history opens");
    (history, clock)
}

/// Writes of blocks with a few changed bytes, of zeroes, and of other blocks' content, with an
/// occasional mark.
fn live(history: &History, clock: &ManualClock, name: &str, rounds: u64, rng: &mut Rng) {
    for round in 0..rounds {
        clock.advance(Duration::from_millis(10));
        let at = |rng: &mut Rng| rng.below(BLOCKS as u64) * BLOCK as u64;
        let mut content = vec![0; BLOCK];
        if !rng.one_in(4) {
            history.read_into(at(rng), &mut content).expect("it can be read");
        }
        let (to, from) = (at(rng), rng.below(BLOCK as u64 - 64) as usize);
        rng.fill(&mut content[from..from + 16]);
        history.write(to, Segments::copy_of(&content)).expect("a write");
        if round % 12 == 7 {
            history.mark(&format!("{name}.{round}"), round % 24 == 7).expect("a mark");
        }
    }
    history.flush().expect("it flushes");
}

/// All background work is done.
fn idle(history: &History) {
    while history.step().expect("a step") {}
}

struct Made {
    origin: Vec<u8>,
    store: Vec<u8>,
    shown: String,
}

fn lived(placement: Placement, reduction: Reduction) -> Made {
    let clock = Arc::new(ManualClock::new(Timestamp(BEGAN)));
    let origin = Arc::new(MemoryDevice::new((BLOCKS * BLOCK) as u64));
    let store = Arc::new(MemoryDevice::new(store_bytes_min() + (4 << 18)));
    let window = Window { reduction, ..Window::default() };
    let options = HistoryOptions {
        store: HistoryId(*b"a golden history"),
        placement,
        granularity: Granularity::EveryWrite,
        block_bytes: BLOCK as u32,
        window,
    };
    let history =
        History::create(origin.clone(), store.clone(), &options, opening(&clock)).expect("a history");
    let mut rng = Rng::new(4);
    live(&history, &clock, "first", 80, &mut rng);
    let mut thin = window;
    thin.thin[0] = Some(Thin { after: Duration::from_secs(1), every: Duration::from_millis(500) });
    history.set_window(thin).expect("a window");
    idle(&history);
    live(&history, &clock, "second", 80, &mut rng);
    idle(&history);
    let marks = history.marks();
    history.revert(marks[marks.len() / 2].time).expect("a revert");
    live(&history, &clock, "third", 20, &mut rng);
    let shown = shown(&history);
    drop(history);
    Made { origin: bytes(&*origin), store: bytes(&*store), shown }
}

#[test]
fn golden_history_shows_every_instant_that_it_kept() {
    for version in VERSIONS {
        for (name, ..) in LIVES {
            let (origin, store) =
                (device(version, &format!("{name}.origin")), device(version, &format!("{name}.store")));
            let (history, _) = open(&origin, &store, 1);
            assert_eq!(shown(&history), expected(version, name), "{version}, {name}");
        }
    }
}

#[test]
fn golden_history_goes_on_living() {
    for version in VERSIONS {
        for (name, ..) in LIVES {
            let (origin, store) =
                (device(version, &format!("{name}.origin")), device(version, &format!("{name}.store")));
            let (history, clock) = open(&origin, &store, 1);
            live(&history, &clock, "later", 60, &mut Rng::new(5));
            idle(&history);
            let (now, last) = (bytes(&*history), history.mark("last", true).expect("a mark").time);
            let undo = history.marks().first().expect("it has marks").time;
            let then = bytes(&history.view(undo).expect("it is reached"));
            history.revert(undo).expect("a revert");
            idle(&history);
            assert!(bytes(&*history) == then, "{version}, {name}: the instant is back");
            drop(history);
            let (history, _) = open(&origin, &store, 2);
            assert!(bytes(&*history) == then, "{version}, {name}");
            assert!(bytes(&history.view(last).expect("it is reached")) == now, "{version}, {name}");
            assert_eq!(history.status().lost_versions, 0);
        }
    }
}

/// Without a golden history a format would lose its readers unnoticed.
#[test]
fn this_version_has_golden_histories() {
    assert_eq!((NEWEST, VERSION), ("v1", 1), "read the head of this file");
    assert!(VERSIONS.contains(&NEWEST));
}

#[test]
#[ignore = "writes the golden histories of a new version; those of a released one are never made anew"]
fn golden_histories_are_written() {
    let folder = folder(NEWEST);
    assert!(!folder.join("shown.txt").exists(), "they exist and stay as they are");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut text = String::new();
    for (name, placement, reduction) in LIVES {
        let made = lived(placement, reduction);
        for (part, bytes) in [("origin", &made.origin), ("store", &made.store)] {
            let packed = zstd::bulk::compress(bytes, 19).expect("it is packed");
            std::fs::write(folder.join(format!("{name}.{part}.zst")), packed).expect("it is written");
        }
        write!(text, "# {name}\n{}", made.shown).unwrap();
    }
    std::fs::write(folder.join("shown.txt"), text).expect("it is written");
}
