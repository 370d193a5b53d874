//! Image dumps of every released format: restored and opened by this program.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::Timestamp;
use cairn_device::MemoryDevice;
use cairn_files::Luns;
use cairn_format::dump::{DUMP_VERSION, DumpId, DumpLevel};
use cairn_stream::{
    Compression, Dump, DumpBytes, DumpLabel, OpenDump, PartIndex, PartReader, Plan, Work, arrange, restore,
};
use cairn_volume::{Role, Volume};

use crate::life::{BLOCKS, Made, clock, made, open, work_on, write};
use crate::shown::{compared, shown, sound};
use crate::{expected, folder, keep, unpacked};

/// Every version with golden dumps.
const VERSIONS: &[&str] = &["dump-v1"];
/// Where the dumps of this program's version are.
const NEWEST: &str = "dump-v1";
const FILES: [&str; 3] = ["zero.1", "zero.2", "one"];

#[test]
fn golden_dumps_are_restored_and_opened() {
    for version in VERSIONS {
        let files: Vec<Arc<dyn DumpBytes>> = FILES
            .iter()
            .map(|name| Arc::new(unpacked(version, &format!("{name}.zst"))) as Arc<dyn DumpBytes>)
            .collect();
        let expected = expected(version, "dumped");
        let index = |bytes: &Arc<dyn DumpBytes>| PartIndex::open("golden", bytes.clone()).expect("a dump");
        let parts = files.iter().map(index).collect();
        let mounted = OpenDump::open(parts, false, false, clock(), 1 << 20).expect("it opens");
        assert_eq!(mounted.name, "golden");
        // A mounted dump takes no writes: it is a destination that receives nothing.
        let behind_role = |text: &str| text.split_once('\n').expect("it has lines").1.to_owned();
        assert_eq!(mounted.volume.status().role, Role::Destination);
        compared(&behind_role(&shown(&mounted.volume)), &behind_role(&expected));
        sound(&mounted.volume);

        let reader = |bytes: &Arc<dyn DumpBytes>| PartReader::open_file("golden", bytes).expect("a dump");
        let dumps = arrange(files.iter().map(reader).collect(), false).expect("they belong together");
        let device = Arc::new(MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
        let cancel = AtomicBool::new(false);
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        let restored = restore(dumps, &*device, BLOCKS, false, Timestamp(1), &mut work).expect("restored");
        assert!(restored.lost.is_empty());
        let volume = open(&device);
        compared(&shown(&volume), &expected);
        work_on(&volume);
        sound(&volume);
    }
}

#[test]
fn this_version_has_golden_dumps() {
    assert_eq!((NEWEST, DUMP_VERSION), ("dump-v1", 1), "read the head of main.rs");
    assert!(VERSIONS.contains(&NEWEST));
}

#[test]
#[ignore = "writes the golden dumps of a new version; those of a released one are never made anew"]
fn golden_dumps_are_written() {
    assert!(!folder(NEWEST).join("shown.txt").exists(), "they exist and stay as they are");
    keep(NEWEST, &lived());
}

fn lived() -> Made {
    let mut rng = cairn_base::Rng::new(3);
    let (_, volume) = made(BLOCKS, BLOCKS, Role::Normal);
    let luns = Luns::new(volume.clone());
    luns.create("db", 400 * 4096).expect("a LUN");
    let db = luns.find("db").expect("it exists").file;
    write(&volume, db, 0, 300, &mut rng);
    volume.create_snapshot("first").expect("a snapshot");
    write(&volume, db, 50, 30, &mut rng);
    let zero = volume.create_snapshot("zero").expect("a snapshot").id;
    let dump = |number: u8, base, target, parts, compression| {
        let plan = Plan::against(&volume, base, target).expect("a plan");
        let (id, level) = (DumpId([number; 16]), DumpLevel::Level(number));
        let label = DumpLabel { id, level, name: "golden".to_owned(), created: Timestamp(1) };
        let dump = Dump::new(&plan, label, parts);
        let write = |part| {
            let cancel = AtomicBool::new(false);
            let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
            let mut bytes = Vec::new();
            dump.write_part(part, &mut bytes, compression, &mut work).expect("written");
            bytes
        };
        (0..parts).map(write).collect::<Vec<_>>()
    };
    let mut files = dump(0, None, zero, 2, Compression::Zstd);
    write(&volume, db, 200, 60, &mut rng);
    volume.rename_snapshot(zero, "level.0").expect("it is renamed");
    let one = volume.create_snapshot("one").expect("a snapshot").id;
    files.extend(dump(1, Some(zero), one, 1, Compression::None));
    let shown = shown(&volume);
    Made { files: FILES.into_iter().zip(files).collect(), shown: vec![("dumped", shown)] }
}
