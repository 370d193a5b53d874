//! Interrupted restores resume where the device was durable, and in the end it holds the same as
//! after an uninterrupted one.

use cairn_base::Vbn;
use cairn_device::Block;

use super::*;

/// Notes the progress of a restore after every few writes, and cancels it after some.
struct Notes<'a> {
    device: &'a dyn Device,
    every: u64,
    left: u64,
    noted: Standing,
}

impl<'a> Notes<'a> {
    fn from(device: &'a dyn Device, noted: &Standing, left: u64) -> Self {
        Self { device, every: 1, left, noted: noted.clone() }
    }
}

impl RestoreLedger for Notes<'_> {
    fn standing(&self) -> Standing {
        self.noted.clone()
    }

    fn writing(&mut self, dump: usize, _: &[(Vbn, Vec<Block>)]) -> Result<(), DumpError> {
        assert!(dump >= self.noted.dump, "what a later dump has written over stays");
        Ok(())
    }

    fn written(&mut self, standing: &Standing) -> Result<(), DumpError> {
        assert!(standing.dump >= self.noted.dump && standing.blocks >= self.noted.blocks);
        if self.left.is_multiple_of(self.every) {
            self.device.flush()?;
            self.noted = standing.clone();
        }
        self.left = self.left.checked_sub(1).ok_or(StreamError::Cancelled)?;
        Ok(())
    }
}

/// The readers of a restore: of files, or of pipes.
fn sources(files: &[Vec<u8>], pipes: bool) -> Vec<Vec<PartReader>> {
    let pipe = |(number, file): (usize, &Vec<u8>)| {
        PartReader::open(&format!("f{number}"), Box::new(std::io::Cursor::new(file.clone())))
    };
    let opened = match pipes {
        true => files.iter().enumerate().map(pipe).collect(),
        false => readers(files),
    };
    arrange(opened.expect("heads"), false).expect("arranged")
}

/// Resumes where the notes say.
fn go_on(
    files: &[Vec<u8>],
    pipes: bool,
    (accept, threads): (bool, bool),
    notes: &mut Notes<'_>,
) -> Result<Restored, DumpError> {
    let device = notes.device;
    let run = |work: &mut Work<'_>| {
        restore_on(sources(files, pipes), device, BLOCKS, accept, Timestamp(5), notes, work)
    };
    on_threads(threads, run)
}

fn empty() -> MemoryDevice {
    MemoryDevice::new(Volume::device_bytes(BLOCKS, Role::Normal))
}

/// All of the block space.
fn space_of(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; (BLOCKS * 4096) as usize];
    device.read_into(Volume::space_offset(BLOCKS), &mut bytes).expect("read");
    bytes
}

/// Takes the volume away that a restore has made before it was cut at its very end.
fn clear_beginning(device: &dyn Device) {
    device.write_from(0, &vec![0; 128 << 10]).expect("cleared");
    device.flush().expect("flushed");
}

#[test]
fn restore_that_is_cut_at_any_device_operation_goes_on_where_it_was_durable() {
    let (mut cuts, mut went_on) = (0, 0);
    for (seed, parts, threads) in [(21, 1, false), (22, 2, true), (23, 3, false)] {
        let (expected, dumps) = life(seed, parts, Compression::Zstd);
        let files = dumps.concat();
        let (uncut, whole) = restored_to(&files, false, threads).expect("restored");
        let mut rng = Rng::new(seed);
        for (pipes, fate) in Fate::ALL.into_iter().flat_map(|fate| [(false, fate), (true, fate)]) {
            let mut device = FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal));
            let mut noted = Standing::default();
            for round in 0.. {
                device.cut_after(rng.below(6 + 2 * round));
                let mut notes = Notes { every: 1 + rng.below(3), ..Notes::from(&device, &noted, 10_000) };
                let outcome = go_on(&files, pipes, (false, threads), &mut notes);
                let there = std::mem::replace(&mut noted, notes.noted).blocks;
                if let Ok(restored) = outcome {
                    assert_eq!((restored.there, restored.blocks), (there, whole.blocks));
                    went_on += u64::from(there > 0);
                    break;
                }
                assert!(device.is_off(), "nothing else ends it");
                cuts += 1;
                device = device.power_cycle_as(fate, &mut rng);
                clear_beginning(&device);
            }
            assert!(space_of(&device) == space_of(&*uncut), "seed {seed}, {fate:?}, pipes: {pipes}");
            let volume = open(Arc::new(device));
            assert_eq!(shown(&volume), expected, "seed {seed}, {fate:?}, pipes: {pipes}");
            assert!(is_sound(&volume));
        }
    }
    assert!(cuts > 40 && went_on > 12, "{cuts} cuts, {went_on} went on");
}

/// Flips a byte in the middle of the last record with blocks of a part.
fn damage_last_record(file: &mut [u8]) {
    let mut reader = PartReader::open_file("f", &bytes_of(file)).expect("a head");
    let (mut before, mut end) = (reader.bytes(), reader.bytes());
    while reader.extents().expect("whole").is_some() {
        (before, end) = (end, reader.bytes());
    }
    file[((before + end) / 2) as usize] ^= 1;
}

#[test]
fn damage_that_was_accepted_is_named_over_interruptions_whatever_the_file_is_by_then() {
    let (_, dumps) = life(24, 1, Compression::None);
    let sound = dumps.concat();
    let mut files = sound.clone();
    damage_last_record(&mut files[0]);
    let uncut = empty();
    let mut notes = Notes::from(&uncut, &Standing::default(), 10_000);
    let whole = go_on(&files, false, (true, false), &mut notes).expect("restored as far as it goes");
    assert!(whole.lost.iter().any(|(_, lost)| !lost.spare));
    // The last write of the first dump, and those of the later dumps, which overwrite it.
    let writes = 10_000 - notes.left;
    assert!(writes >= 4, "{writes}");
    for left in 0..writes - 1 {
        for pipes in [false, true] {
            let device = empty();
            let mut notes = Notes::from(&device, &Standing::default(), left);
            let cut = go_on(&files, pipes, (true, false), &mut notes).expect_err("cut");
            assert!(matches!(cut, DumpError::Stream(StreamError::Cancelled)), "{cut}");
            let noted = notes.noted;
            // Once a later dump has begun, none of its blocks is written any more, even those that
            // could be read now.
            let again = if noted.dump > 0 { &sound } else { &files };
            let mut notes = Notes::from(&device, &noted, 10_000);
            let restored = go_on(again, pipes, (true, false), &mut notes).expect("restored");
            assert_eq!(restored.lost, whole.lost, "cut after {left}, pipes: {pipes}");
            assert!(space_of(&device) == space_of(&uncut), "cut after {left}, pipes: {pipes}");
        }
    }
}

#[test]
fn damage_ends_a_restore_that_goes_on_with_another_copy_of_the_file() {
    let (expected, dumps) = life(25, 1, Compression::None);
    let sound = dumps.concat();
    let mut damaged = sound.clone();
    damage_last_record(&mut damaged[0]);
    for pipes in [false, true] {
        let device = Arc::new(empty());
        let mut notes = Notes::from(&*device, &Standing::default(), 10_000);
        let refused = go_on(&damaged, pipes, (false, false), &mut notes).expect_err("damaged");
        assert!(matches!(refused, DumpError::Damaged { .. }), "{refused}");
        let noted = notes.noted;
        assert!(noted.blocks > 0 && noted.lost.is_empty());
        // For a pipe, damaged records before that place were written already: they lose nothing.
        let mut again = sound.clone();
        if pipes {
            again[0][9000] ^= 1;
        }
        let mut notes = Notes::from(&*device, &noted, 10_000);
        let restored = go_on(&again, pipes, (false, true), &mut notes).expect("restored");
        assert_eq!((restored.lost.as_slice(), restored.there), (&[][..], noted.blocks));
        let volume = open(device);
        assert_eq!(shown(&volume), expected);
        assert!(is_sound(&volume));
    }
}

#[test]
fn pipe_that_does_not_go_on_as_it_did_is_refused() {
    let (_, dumps) = life(26, 1, Compression::None);
    let (_, packed) = life(26, 1, Compression::Zstd);
    let device = empty();
    let mut notes = Notes::from(&device, &Standing::default(), 0);
    go_on(&dumps.concat(), true, (false, false), &mut notes).expect_err("cut");
    let noted = notes.noted;
    for accept in [false, true] {
        let mut notes = Notes::from(&device, &noted, 10_000);
        let refused = go_on(&packed.concat(), true, (accept, false), &mut notes).expect_err("refused");
        assert!(matches!(refused, DumpError::Changed { .. }), "{refused}");
        // One that ends earlier is a cut again, and none of the restored blocks is reported as
        // lost.
        let mut short = dumps.concat();
        short[0].truncate(5000);
        let mut notes = Notes::from(&device, &noted, 10_000);
        let cut = go_on(&short, true, (accept, false), &mut notes).expect_err("cut");
        assert!(matches!(cut, DumpError::Cut { .. }), "{cut}");
    }
}
