//! Writers that are cut at every call of the store, and resume.

use std::sync::Mutex;

use cairn_base::Clock;

use super::*;

/// A second goes by at each look, so that every piece is noted.
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        NOW
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Writes or resumes a dump as a server does. `notes` is the state that survives it.
fn attempt(
    store: Arc<dyn Store>,
    source: &Source,
    target: SnapshotId,
    notes: &Mutex<Vec<PartNote>>,
) -> Result<DumpIndex, DumpsError> {
    let (cancel, id) = (never(), DumpId([6; 16]));
    let dumps = BucketDumps::new(store, Arc::new(None_), Rng::new(9));
    let plan = Plan::against(&source.volume, None, target).expect("a plan");
    let label = DumpLabel { id, level: DumpLevel::Level(0), name: "vol0".to_owned(), created: NOW };
    let dump = Dump::new(&plan, label, 2);
    dumps.begin(VOLUME, id, None, &cancel)?;
    let mut parts = Vec::new();
    for part in 0..2 {
        let note = notes.lock().expect("notes")[part].clone();
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        let with = PartWork {
            compression: Compression::None,
            work: &mut work,
            cancel: &cancel,
            clock: &Ticking(AtomicU64::new(0)),
            keep: &mut |note| notes.lock().expect("notes")[part] = note.clone(),
        };
        parts.push(dumps.write_part(&dump, (VOLUME, id, part as u32), note, with)?.0);
    }
    let index = DumpIndex {
        volume: VOLUME,
        dump: id,
        name: "vol0".to_owned(),
        level: DumpLevel::Level(0),
        created: NOW,
        target,
        target_name: "s0".to_owned(),
        base: None,
        on: None,
        blocks: dump.blocks(),
        parts,
    };
    dumps.seal(&index, &cancel)?;
    Ok(index)
}

#[test]
fn dump_that_was_cut_at_any_call_resumes_and_comes_back_byte_for_byte() {
    cut_at_any_call(&|store, _| store, &|memory| memory);
}

/// Each attempt is another process, which knows the notes of the first one.
#[test]
fn dump_into_an_encrypted_bucket_that_was_cut_at_any_call_resumes() {
    let client = |store: Arc<dyn Store>, seed| -> Arc<dyn Store> { Arc::new(sealed(store, seed)) };
    cut_at_any_call(&client, &|memory| Arc::new(sealed(memory, 9)));
}

/// `client` makes a client of a store, and `reader` one of the memory.
fn cut_at_any_call(
    client: &dyn Fn(Arc<dyn Store>, u64) -> Arc<dyn Store>,
    reader: &dyn Fn(Arc<Memory>) -> Arc<dyn Store>,
) {
    let mut source = Source::new();
    let target = source.step(6000, "s0");
    let expected = BTreeMap::from([(DumpId([6; 16]), source.content())]);
    let mut saved = 0;
    for after in 0.. {
        let memory = memory();
        let notes = Mutex::new(vec![PartNote::default(); 2]);
        let cut = Arc::new(Cut { store: memory.clone(), calls: AtomicU64::new(0), after });
        let first = attempt(client(cut.clone(), after), &source, target, &notes);
        let done = first.is_ok();
        let calls = memory.calls();
        let again =
            attempt(client(memory.clone(), 1000 + after), &source, target, &notes).expect("it resumes");
        saved += u64::from(memory.calls() - calls < after);
        if let Ok(first) = first {
            assert_eq!(first, again, "the same once more changes nothing");
        }
        assert_eq!(holds_in(reader(memory.clone()), &expected), [again.dump], "cut after {after} calls");
        if done {
            break;
        }
        assert!(after < 100, "it ends");
    }
    assert!(saved > 0, "what was there is not sent again");
}

#[test]
fn part_of_another_state_of_the_volume_is_not_resumed() {
    let mut source = Source::new();
    let target = source.step(100, "s0");
    let memory = memory();
    let notes = Mutex::new(vec![PartNote { head: Some("0".repeat(32)), ..PartNote::default() }; 2]);
    let error = attempt(memory, &source, target, &notes).expect_err("it was begun as another one");
    assert!(matches!(error, DumpsError::OtherBegin(_)), "{error}");
}
