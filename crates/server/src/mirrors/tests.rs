//! Mirrors of a server without a network: the state after a panic, and after the record of a mirror
//! is given up.

use cairn_base::Timestamp;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

use cairn_base::{ByteSize, ManualClock, VolumeId};
use cairn_volume::Role;

use super::*;
use crate::mirrors::document::Change;
use crate::mirrors::document::Changed;
use crate::peers::identity::Fingerprint;
use crate::volumes::NewVolume;

/// A time by which a thread has surely ended.
const LATE: Duration = Duration::from_secs(60);

pub(super) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000)))
}

/// The mirrors of a server with that folder, which has `vol0` in that role.
pub(super) fn mirrors(folder: &Path, clock: Arc<dyn Clock>, role: Role) -> (Arc<Mirrors>, Arc<OpenVolume>) {
    std::fs::create_dir_all(folder.join("volumes")).unwrap();
    let volumes = Volumes::open(folder.join("volumes"), ByteSize(16 << 20), clock.clone(), None).unwrap();
    let volumes = Arc::new(volumes);
    let (devices, log_device, history, beside) = (&[][..], None, None, None);
    let (id, blocks) = (VolumeId([7; 16]), Some(4096));
    let new = NewVolume { name: "vol0", id, role, blocks, devices, log_device, history, beside };
    let open = volumes.create(&new).unwrap();
    let around = Surroundings {
        identity: Arc::new(Identity::open(folder).unwrap()),
        jobs: Arc::new(Jobs::new(clock.clone())),
        peers: Arc::new(Peers::open(folder).unwrap()),
        groups: Arc::new(Groups::open(folder, volumes.clone(), clock.clone()).unwrap()),
        source: Arc::new(cairn_mirror::Source::new()),
        access: Arc::new(Access::open(folder).unwrap()),
        devices: Arc::new(Devices::open(folder.join("devices"), clock.clone(), volumes.clone()).unwrap()),
        address: ":7420".to_owned(),
        patience: Duration::from_secs(5),
        volumes,
        clock,
    };
    (Arc::new(Mirrors::open(around).unwrap()), open)
}

/// The document of a mirror whose source is at `address`; no server answers there.
pub(super) fn of(address: &str, change: Option<Change>) -> MirrorDocument {
    let change = change.map(|kind| Changed { kind, at_ms: 1_700_000_000_000, told: false });
    MirrorDocument { change, ..MirrorDocument::of(address, Fingerprint::default(), "vol0", 1) }
}

/// Resumes a mirror with that saved document.
pub(super) fn known(mirrors: &Mirrors, open: &Arc<OpenVolume>, document: &MirrorDocument) -> Arc<Relation> {
    state::save(&mirrors.volumes.folder("vol0").join("mirror.json"), document).unwrap();
    mirrors.take_in(open);
    mirrors.get("vol0").unwrap()
}

/// Its saved document.
pub(super) fn written(mirrors: &Mirrors) -> MirrorDocument {
    state::load(&mirrors.volumes.folder("vol0").join("mirror.json")).unwrap().unwrap()
}

#[test]
fn what_still_runs_of_a_mirror_whose_source_was_given_up_writes_nothing_down() {
    let folder = tempfile::tempdir().unwrap();
    let (mirrors, open) = mirrors(folder.path(), clock(), Role::Destination);
    let before = known(&mirrors, &open, &of("source:1", None));
    // Its document is damaged, and its owner gives that up, while an update runs.
    before.claim(&*mirrors.clock).unwrap();
    let path = mirrors.volumes.folder("vol0").join("mirror.json");
    state::replace(&path, &mirrors.of_nobody("vol0").unwrap().unwrap()).unwrap();
    mirrors.forget_source("vol0");
    mirrors.take_in(&open);
    mirrors.note(&before, &Ok(()));
    assert_eq!(written(&mirrors).address, "", "the next start would follow what was given up");
    assert!(mirrors.get("vol0").unwrap().refuse_without_source().is_err());
}

#[test]
fn volume_with_which_something_was_done_that_panicked_is_updated_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let (mirrors, open) = mirrors(folder.path(), clock(), Role::Destination);
    let relation = known(&mirrors, &open, &of("source:1", None));
    let bug = || -> Result<(), ServerError> { panic!("a bug that this test has put in") };
    assert!(catch_unwind(AssertUnwindSafe(|| mirrors.alone("vol0", bug))).is_err());
    relation.claim(&*mirrors.clock).expect("nothing runs");
}

/// A clock that panics in the thread that reports a failover to the other side.
struct Broken(Arc<ManualClock>);

impl Clock for Broken {
    fn now(&self) -> Timestamp {
        assert_ne!(std::thread::current().name(), Some("tell"), "a bug that this test has put in");
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }
}

#[test]
fn other_side_is_asked_again_after_a_panic_of_who_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (mirrors, open) = mirrors(folder.path(), Arc::new(Broken(clock())), Role::Normal);
    let relation = known(&mirrors, &open, &of("source:1", Some(Change::Failover)));
    mirrors.tell_of_failover(&relation);
    let begun = Instant::now();
    while relation.live.lock().asking {
        assert!(begun.elapsed() < LATE, "the other side would never be told");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(relation.live.lock().asked.is_some(), "it was begun");
}
