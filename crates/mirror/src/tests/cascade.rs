//! A to B to C: three volumes, the one in the middle both destination and source.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_base::{Clock, ManualClock, Mutex, Rng, SnapshotId, Timestamp};
use cairn_device::{Device, MemoryDevice};
use cairn_stream::Compression;
use cairn_volume::{OpenOptions, Role, Volume};

use super::harness::{BLOCKS, Pair, Scoped, Trouble, assert_clean, content, format, open};
use crate::{
    Client, Destination, Lag, MirrorError, PeerName, Refusal, Relationship, Source, SourceVolumes, Threads,
    TransferKind, TransferReport, Work,
};

/// One volume, and its lag behind its own source.
struct Relay(Arc<Volume>, Option<Lag>);

impl SourceVolumes for Relay {
    fn volume(&self, _name: &str, _peer: &PeerName) -> Result<Arc<Volume>, Refusal> {
        Ok(self.0.clone())
    }

    fn upstream_lag(&self, _volume: &str) -> Option<Lag> {
        self.1
    }
}

/// A source, its mirror, and the mirror of that.
struct Chain {
    pair: Pair,
    last: Arc<Volume>,
    device: Arc<dyn Device>,
}

impl Chain {
    fn new(seed: u64) -> Self {
        let pair = Pair::new(seed);
        let bytes = Volume::device_bytes(BLOCKS, Role::Destination);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes));
        format(&device, BLOCKS, Role::Destination, &pair.clock);
        let last = open(&device, &pair.clock);
        Self { pair, last, device }
    }

    /// B gets the newest image of A, and reports the needs of C to A.
    fn first(&self) -> Result<TransferReport, MirrorError> {
        self.first_with(Trouble { threads: true, ..Trouble::default() })
    }

    fn first_with(&self, trouble: Trouble<'_>) -> Result<TransferReport, MirrorError> {
        let mirror = self.pair.mirror();
        mirror.set_relay(self.pair.other_registry.clone());
        self.pair.update_with(&mirror, trouble)
    }

    fn mirror(&self) -> Destination {
        Destination::new(self.last.clone(), "vol0", Relationship(0xc), Compression::Auto, None)
    }

    /// C gets the image of B.
    fn second(&self) -> Result<TransferReport, MirrorError> {
        let relay = Relay(self.pair.destination.clone(), None);
        update(&self.mirror(), &self.pair.other_registry, &relay, &mut |_| ())
    }

    fn assert_last_shows(&self, middle: &Arc<Volume>) {
        assert_clean(&self.last);
        let (here, there) = (self.last.image(None).unwrap(), middle.image(None).unwrap());
        assert!(content(&here) == content(&there), "the last shows another image than the one in the middle");
        for snapshot in middle.snapshots() {
            let (here, there) =
                (self.last.image(Some(snapshot.id)), middle.image(Some(snapshot.id)).unwrap());
            let here = here.unwrap_or_else(|_| panic!("{} is missing", snapshot.name));
            assert!(content(&here) == content(&there), "{}", snapshot.name);
        }
    }
}

fn update(
    mirror: &Destination,
    registry: &Source,
    volumes: &Relay,
    progress: &mut dyn FnMut(&crate::TransferProgress),
) -> Result<TransferReport, MirrorError> {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let cancel = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cancel = &cancel;
        scope.spawn(move || {
            let threads = Some(&Scoped as &dyn Threads);
            let mut work = cairn_stream::Work { cancel, progress: &mut |_| (), threads };
            let peer = PeerName::new("peer3").unwrap();
            let _ = registry.serve_session(&mut far, volumes, &peer, &mut work);
        });
        let mut work = Work { cancel, progress, threads: None };
        let outcome = Client::hello(&mut near).and_then(|mut client| mirror.update(&mut client, &mut work));
        drop(near);
        outcome
    })
}

#[test]
fn a_cascade_sends_what_changed_on_each_link_and_goes_on_without_the_one_in_the_middle() {
    for seed in [31, 32] {
        let mut chain = Chain::new(seed);
        let mut rng = Rng::new(seed);
        assert!(matches!(chain.second(), Err(MirrorError::Refused(Refusal::NotASource))), "nothing to serve");
        let mut kinds = Vec::new();
        for round in 0..20u32 {
            for _ in 0..12 {
                chain.pair.work(&mut rng);
            }
            chain.first().expect("the first link");
            chain.pair.assert_mirrored();
            // The last follows the one in the middle at times of its own.
            if rng.below(3) > 0 {
                let report = chain.second().expect("the second link");
                kinds.push(report.kind);
                chain.assert_last_shows(&chain.pair.destination);
                assert_eq!(chain.second().unwrap().kind, TransferKind::UpToDate);
            }
            if round == 10 {
                // Both sides restart.
                chain.pair.reopen_destination();
                chain.last = open(&chain.device, &chain.pair.clock);
            }
        }
        assert_eq!(kinds.iter().filter(|kind| **kind == TransferKind::Baseline).count(), 1, "{kinds:?}");
        // One more that the last does not get. Then the middle is gone.
        chain.pair.work(&mut rng);
        chain.pair.write(chain.pair.files[0], 3, 20, &mut rng);
        chain.first().expect("the first link");
        chain.pair.write(chain.pair.files[1], 9, 20, &mut rng);
        let source = Relay(chain.pair.source.clone(), None);
        let direct = update(&chain.mirror(), &chain.pair.registry, &source, &mut |_| ()).expect("without it");
        assert_eq!(direct.kind, TransferKind::Update, "no new baseline");
        assert!(direct.blocks * 3 < direct.full_blocks, "{direct:?}");
        assert_clean(&chain.last);
        chain.assert_last_shows(&chain.pair.source);
        // Snapshots kept for the middle may go now.
        let name = "peer1-0000000000000abc";
        chain.pair.registry.forget(&chain.pair.source, name).expect("it is forgotten");
        chain.pair.write(chain.pair.files[1], 90, 5, &mut rng);
        let direct = update(&chain.mirror(), &chain.pair.registry, &source, &mut |_| ()).expect("without it");
        assert_eq!(direct.kind, TransferKind::Update);
        chain.assert_last_shows(&chain.pair.source);
    }
}

#[test]
fn what_a_further_mirror_has_is_kept_until_it_has_something_newer_and_no_longer() {
    let chain = Chain::new(8);
    let mut rng = Rng::new(8);
    let held = |chain: &Chain| chain.pair.source.snapshots().iter().filter(|s| s.held).count();
    for _ in 0..4 {
        chain.pair.write(chain.pair.files[0], rng.below(200), 10, &mut rng);
        chain.first().unwrap();
        assert_eq!(held(&chain), 1, "nothing is kept for nobody");
    }
    chain.second().unwrap();
    for _ in 0..5 {
        chain.pair.write(chain.pair.files[0], rng.below(200), 10, &mut rng);
        chain.first().unwrap();
    }
    assert!((2..=3).contains(&held(&chain)), "the last one's base, what the middle shows, and no more");
    assert_eq!(chain.second().unwrap().kind, TransferKind::Update);
    for _ in 0..2 {
        chain.pair.write(chain.pair.files[0], rng.below(200), 10, &mut rng);
        chain.first().unwrap();
        chain.second().unwrap();
    }
    assert!(held(&chain) <= 3, "{}", held(&chain));
    // The further mirror is given up.
    chain.pair.other_registry.forget(&chain.pair.destination, "peer3-000000000000000c").unwrap();
    chain.pair.write(chain.pair.files[0], 7, 1, &mut rng);
    chain.first().unwrap();
    assert_eq!(held(&chain), 1);
}

/// The record of further mirrors is saved from time to time, and usually late for one that follows
/// continuously: after a kill the server in the middle has an old record.
#[test]
fn what_a_further_mirror_has_is_kept_also_by_one_in_the_middle_that_remembers_what_it_had_before() {
    let mut chain = Chain::new(9);
    let mut rng = Rng::new(9);
    let held = |chain: &Chain| chain.pair.source.snapshots().iter().filter(|s| s.held).count();
    let mut changes = |chain: &Chain| chain.pair.write(chain.pair.files[0], rng.below(200), 10, &mut rng);
    changes(&chain);
    chain.first().unwrap();
    chain.second().unwrap();
    let written_down = chain.pair.other_registry.followers();
    for _ in 0..3 {
        changes(&chain);
        chain.first().unwrap();
        chain.second().unwrap();
    }
    chain.pair.reopen_destination();
    chain.pair.other_registry = Arc::new(Source::remembering(written_down));
    // It is quicker back at its source than the further mirror is at it.
    for _ in 0..3 {
        changes(&chain);
        chain.first().unwrap();
    }
    let report = chain.second().expect("what it has is there");
    assert_eq!(report.kind, TransferKind::Update);
    chain.assert_last_shows(&chain.pair.destination);
    for _ in 0..3 {
        changes(&chain);
        chain.first().unwrap();
        chain.second().unwrap();
    }
    assert!(held(&chain) <= 3, "and no longer than it is needed: {}", held(&chain));
}

#[test]
fn what_a_further_mirror_begins_with_while_the_next_image_is_on_its_way_is_kept() {
    let chain = Chain::new(6);
    let mut rng = Rng::new(6);
    chain.pair.write(chain.pair.files[0], 0, 40, &mut rng);
    chain.first().unwrap();
    chain.pair.write(chain.pair.files[0], 60, 40, &mut rng);
    // The one in the middle has asked for its next image when the last one comes for the first
    // time.
    let mut first = None;
    let mut meanwhile = || {
        first.get_or_insert_with(|| chain.second().expect("the second link").kind);
    };
    chain.first_with(Trouble { meanwhile: Some(&mut meanwhile), ..Trouble::default() }).unwrap();
    assert_eq!(first, Some(TransferKind::Baseline));
    chain.pair.write(chain.pair.files[0], 120, 40, &mut rng);
    chain.first().unwrap();
    assert_eq!(chain.second().expect("its base is there").kind, TransferKind::Update);
    chain.assert_last_shows(&chain.pair.destination);
    let held = chain.pair.source.snapshots().iter().filter(|s| s.held).count();
    assert_eq!(held, 2, "the last one's former base, and what the middle shows");
}

#[test]
fn an_image_that_is_replaced_while_it_is_sent_on_arrives_whole() {
    let chain = Chain::new(4);
    let mut rng = Rng::new(4);
    for _ in 0..30 {
        chain.pair.work(&mut Rng::new(rng.next()));
    }
    chain.first().unwrap();
    chain.second().unwrap();
    for _ in 0..6 {
        for lba in [0, 60, 120, 180] {
            chain.pair.write(chain.pair.files[0], lba, 50, &mut rng);
        }
        chain.first().unwrap();
        let before = content(&chain.pair.destination.image(None).unwrap());
        let relay = Relay(chain.pair.destination.clone(), None);
        let mut left = 1;
        let mut meanwhile = |_: &crate::TransferProgress| {
            if left > 0 {
                left -= 1;
                for lba in [0, 60, 120, 180] {
                    chain.pair.write(chain.pair.files[0], lba, 50, &mut Rng::new(77));
                }
                chain.first().expect("the middle gets the next one meanwhile");
            }
        };
        update(&chain.mirror(), &chain.pair.other_registry, &relay, &mut meanwhile).expect("it arrives");
        assert!(content(&chain.last.image(None).unwrap()) == before, "the image that was asked for");
        assert_clean(&chain.last);
        assert_eq!(chain.second().unwrap().kind, TransferKind::Update);
        chain.assert_last_shows(&chain.pair.destination);
    }
}

#[test]
fn the_lag_of_a_further_mirror_is_counted_to_the_first_source() {
    let chain = Chain::new(2);
    let mut rng = Rng::new(2);
    chain.pair.write(chain.pair.files[0], 0, 10, &mut rng);
    chain.first().unwrap();
    chain.second().unwrap();
    let lag = Lag { age: Duration::from_secs(60), bytes: 8192, as_of: Timestamp(0), silent: Duration::ZERO };
    let relay = Relay(chain.pair.destination.clone(), Some(lag));
    let mirror = chain.mirror();
    let report = update(&mirror, &chain.pair.other_registry, &relay, &mut |_| ()).unwrap();
    assert_eq!(report.kind, TransferKind::UpToDate);
    let seen = mirror.lag().expect("it is known");
    assert_eq!((seen.age, seen.bytes), (Duration::from_secs(60), 8192));
    // The one in the middle has no contact to the first source: anything may have changed there
    // since its image.
    chain.pair.clock.advance(Duration::from_secs(90));
    let unheard = Relay(chain.pair.destination.clone(), None);
    let report = update(&mirror, &chain.pair.other_registry, &unheard, &mut |_| ()).unwrap();
    assert_eq!(report.kind, TransferKind::UpToDate);
    assert_eq!(mirror.lag().map(|lag| lag.age), Some(Duration::from_secs(90)));
    // A volume that takes writes itself lacks nothing.
    let first = Relay(chain.pair.source.clone(), None);
    update(&mirror, &chain.pair.registry, &first, &mut |_| ()).unwrap();
    assert_eq!(mirror.lag().map(|lag| lag.age), Some(Duration::ZERO));
}

/// A clock that calls a function on its first reading: while a source is in the middle of an
/// operation.
struct Asked {
    inner: Arc<ManualClock>,
    look: Mutex<Option<Box<dyn FnMut() -> bool + Send>>>,
}

impl Clock for Asked {
    fn now(&self) -> Timestamp {
        let look = self.look.lock().take();
        if let Some(mut look) = look
            && !look()
        {
            *self.look.lock() = Some(look);
        }
        self.inner.now()
    }

    fn monotonic(&self) -> Duration {
        self.inner.monotonic()
    }
}

/// The time after which a waiting thread counts as waiting: without the lock it has its answer much
/// sooner.
const WAITS: Duration = Duration::from_millis(500);

#[test]
fn image_that_is_being_given_to_a_further_mirror_is_kept_though_that_is_not_noted_yet() {
    let mut chain = Chain::new(41);
    let clock = Arc::new(Asked { inner: chain.pair.clock.clone(), look: Mutex::new(None) });
    chain.pair.destination.close().unwrap();
    let options = OpenOptions { cache_bytes: 1 << 20, clock: clock.clone() };
    chain.pair.destination = Volume::open(chain.pair.destination_device.clone(), options).unwrap();
    let mut rng = Rng::new(41);
    chain.pair.write(chain.pair.files[0], 0, 40, &mut rng);
    chain.first().unwrap();
    let shown = chain.pair.destination.status().cursor.snapshot;
    // The further mirror asks for its first image. That image is chosen, but not recorded yet, when
    // the one in the middle asks which snapshots to keep.
    let (registry, volume) = (chain.pair.other_registry.clone(), chain.pair.destination.clone());
    let asking: Arc<Mutex<Option<JoinHandle<Vec<SnapshotId>>>>> = Arc::default();
    let asks = asking.clone();
    let look = move || {
        if registry.house(volume.id()).try_lock().is_some() {
            return false;
        }
        let (registry, volume, (told, answered)) = (registry.clone(), volume.clone(), channel());
        *asks.lock() = Some(std::thread::spawn(move || {
            let kept = registry.relayed(&volume);
            let _ = told.send(());
            kept
        }));
        let _ = answered.recv_timeout(WAITS);
        true
    };
    *clock.look.lock() = Some(Box::new(look));
    let report = chain.second().unwrap();
    assert_eq!(report.target, shown);
    let asked = asking.lock().take().expect("it was asked while the image was chosen");
    assert_eq!(asked.join().unwrap(), [shown], "what the further mirror gets is not among what is kept");
}
