//! Damage, temporary failures, and lost or misdirected writes of the media on either side of a
//! mirror. No wrong content is ever shown on either side, damage does not spread, and damage on one
//! side is repaired from the other.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, anyhow, bail, ensure};
use cairn_base::{Checksum, Lba, Rng, SnapshotId};
use cairn_device::Device;
use cairn_mirror::{Client, Compression, Destination, MirrorError, PeerName, Verified, VerifyWork, Work};
use cairn_volume::{BlockRead, Image, Look, Part, Piece, Place, Position, Until};
use parking_lot::Mutex;

use super::{Offering, Offers, PEER, Pair, RELATIONSHIP, VOLUME_NAME, With, offer, talk_out};
use crate::content::Tag;
use crate::link::{End, Link};
use crate::model::Frozen;
use crate::tally::{CopyFault, Fate, Tally};
use crate::tasks::Tasks;
use crate::timeline::Timeline;
use crate::world::{Config, World};

const BLOCK: u64 = 4096;

/// A mirror lives for a while, then the media of one side fail in one way.
pub fn run(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed ^ 0x636f_7069_6573);
    let config = Config {
        blocks: 1024 + rng.below(512),
        blocks_max: 2048,
        files: 1 + rng.below(3) as usize,
        file_blocks: 300,
        snapshots: 1 + rng.below(6) as usize,
        log_device: false,
        cut_every: 0,
    };
    let config = Config { blocks_max: config.blocks, ..config };
    let mut pair = Pair::new(&mut rng, config)?;
    for _ in 0..2 + rng.below(3) {
        for _ in 0..10 + rng.below(20) {
            pair.source.live(timeline)?;
        }
        pair.transfer(timeline, With::default())?;
    }
    let kinds = CopyFault::ALL.len() as u64;
    let fault = CopyFault::ALL[(seed % kinds) as usize];
    let at_source = (seed / kinds).is_multiple_of(2);
    if let Some(fate) = pair.suffer(fault, at_source, &mut rng, timeline)? {
        tally.copy_fault(fault, fate);
        let side = if at_source { "source" } else { "destination" };
        let at = pair.destination.standing();
        timeline.note("dst", at, &format!("! {fault:?} at the {side}: {fate:?}"));
    }
    pair.count(tally);
    Ok(())
}

impl Pair {
    /// None when there was nothing of the kind to be hit.
    fn suffer(
        &mut self,
        fault: CopyFault,
        at_source: bool,
        rng: &mut Rng,
        timeline: &mut Timeline,
    ) -> Result<Option<Fate>> {
        self.source.close_and_open()?;
        self.destination.held.clear();
        let mut offers = Offers::new();
        let rots = fault.is_rot();
        let side = if at_source { &mut self.source } else { &mut self.destination };
        if rots {
            let Some(block) = victim(side, self.shown.target, fault, rng)? else { return Ok(None) };
            side.device.corrupt(block * BLOCK, BLOCK, rng);
        }
        self.restart().context("opening with damage")?;
        if !rots {
            for _ in 0..8 {
                self.source.live(timeline)?;
            }
            let side = if at_source { &self.source } else { &self.destination };
            match fault {
                CopyFault::PassingReadError => side.device.fail_reads(0..side.device.geometry().length),
                CopyFault::LostWrite => side.device.lose_next_write(),
                _ => side.device.misdirect_next_write((1 + rng.below(300)) as i64 * BLOCK as i64),
            }
        }
        self.source.adopt();
        offer(&mut offers, &self.source, true);
        let updated = self.converse(rng, |client, destination| {
            let cancel = AtomicBool::new(false);
            let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
            destination.update(client, &mut work).map(drop)
        })?;
        for world in [&self.source, &self.destination] {
            world.device.heal_reads();
        }
        self.source.adopt();
        offer(&mut offers, &self.source, false);
        let news = self.destination.volume().status().cursor.snapshot != self.shown.target;
        ensure!(
            news || updated.is_err() || self.source.volume().status().dirty == 0 || rots,
            "no image came"
        );
        // No wrong content is shown, whatever the outcome of the update.
        self.both(&offers).context("after the update")?;
        let is_latched = |world: &World| world.volume().status().latched.is_some();
        if is_latched(&self.source) || is_latched(&self.destination) {
            // A failed read, or a misdirected write that others depend on, was noticed. The server
            // restarts.
            self.restart().context("opening after a failure")?;
            self.both(&offers).context("after a failure")?;
        }
        // As the server does from time to time: unreadable blocks may be readable by now. A volume
        // continues without an unreadable since map, and no mirror has that.
        for world in [&self.source, &self.destination] {
            for block in world.volume().damaged() {
                let _ = world.volume().look_again(&block);
            }
        }
        let mut last = None;
        for _ in 0..4 {
            let verified = self.converse(rng, |client, destination| {
                let cancel = AtomicBool::new(false);
                let mut work = VerifyWork { cancel: &cancel, progress: &mut |_| {}, region_blocks: u64::MAX };
                destination.verify(client, true, &mut work)
            })?;
            last = verified.ok();
        }
        let refused = self.both(&offers).context("after mending")?;
        let clean = |verified: &Verified| verified.differences_total == 0 && verified.mended.left_there == 0;
        let whole = refused == 0 && last.as_ref().is_some_and(clean);
        if rots || fault == CopyFault::PassingReadError {
            ensure!(whole, "what only one side lost is not mended: {refused} reads refused, {last:?}");
            ensure!(
                !is_latched(&self.source) && !is_latched(&self.destination),
                "changes are not taken again"
            );
        }
        Ok(Some(if whole { Fate::Survived } else { Fate::Reported }))
    }

    /// Both servers restart, with nothing in memory.
    fn restart(&mut self) -> Result<()> {
        self.sessions = Default::default();
        for world in [&mut self.source, &mut self.destination] {
            world.held.clear();
            world.volume = None;
            world.power_cycle();
            world.volume = Some(world.open_as_it_is()?);
        }
        Ok(())
    }

    /// Every block of every image of both sides, where they are open, is correct, or can't be read.
    /// Returns how many can't.
    fn both(&mut self, offers: &Offers) -> Result<u64> {
        let mut refused = 0;
        let volume = self.destination.volume.clone();
        for snapshot in volume.iter().flat_map(|volume| volume.snapshots()) {
            let known = offers.get(&snapshot.id).map(|offered| offered.content.clone());
            let known = known.or_else(|| self.shown.snapshots.get(&snapshot.id).map(|s| s.content.clone()));
            let expected =
                known.ok_or_else(|| anyhow!("the destination has {snapshot:?}, which nobody offered"))?;
            let Some(volume) = &volume else { break };
            let image = volume.image(Some(snapshot.id))?;
            refused += tolerant(&image, &expected).context("at the destination")?;
        }
        if let Some(volume) = &self.source.volume {
            for (id, snapshot) in &self.source.snapshots {
                let image = volume.image(Some(*id))?;
                refused += tolerant(&image, &snapshot.content).context("at the source")?;
            }
        }
        Ok(refused)
    }

    /// A conversation of this mirror, on the link of the two devices.
    pub(super) fn converse<T: Send>(
        &mut self,
        rng: &mut Rng,
        talk: impl FnOnce(&mut Client<'_, End>, &Destination) -> Result<T, MirrorError> + Send,
    ) -> Result<Result<T, MirrorError>> {
        let destination = Destination::new(
            self.destination.volume(),
            VOLUME_NAME,
            RELATIONSHIP,
            Compression::None,
            self.contact,
        );
        let (link, [mut source_end, mut destination_end]) =
            Link::new([&self.source.device, &self.destination.device], None, rng.fork());
        let (offering, sessions) = (Offering(self.source.volume()), self.sessions.clone());
        let outcome = Mutex::new(None);
        {
            let mut tasks = Tasks::default();
            tasks.spawn(|| {
                let peer = PeerName::new(PEER).expect("a name as it must be");
                let cancel = AtomicBool::new(false);
                let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
                let _ = sessions.serve_session(&mut source_end, &offering, &peer, &mut work);
                drop(source_end);
            });
            tasks.spawn(|| {
                let done = Client::hello(&mut destination_end)
                    .and_then(|mut client| talk(&mut client, &destination));
                *outcome.lock() = Some(done);
                drop(destination_end);
            });
            talk_out(&mut tasks, &link, rng)?;
        }
        outcome.into_inner().ok_or_else(|| anyhow!("a conversation did not end"))
    }
}

/// A block of the device with a block of that kind, of a snapshot that both sides have.
fn victim(world: &World, root: SnapshotId, fault: CopyFault, rng: &mut Rng) -> Result<Option<u64>> {
    let part = Part { root, base: SnapshotId(0) };
    let region = world.volume().region(part, Position::START, Until::Blocks(u64::MAX), Look::Nothing)?;
    let of_kind: Vec<Piece> = region.pieces.into_iter().filter(|piece| fault.hits(piece.place)).collect();
    let mut places: HashMap<[u8; 16], Vec<u64>> = HashMap::new();
    let mut bytes = vec![0; BLOCK as usize];
    for number in 0..world.device.geometry().length / BLOCK {
        world.device.read_into(number * BLOCK, &mut bytes)?;
        places.entry(Checksum::of(&bytes).0).or_default().push(number);
    }
    // Earlier copies of the content may be elsewhere as well; then it is unknown which one counts.
    let single: Vec<u64> = of_kind
        .iter()
        .filter_map(|piece| {
            places.get(&piece.checksum.0).filter(|at| at.len() == 1).and_then(|at| at.first())
        })
        .copied()
        .collect();
    Ok((!single.is_empty()).then(|| single[rng.below(single.len() as u64) as usize]))
}

fn tolerant(image: &Image, expected: &Frozen) -> Result<u64> {
    let mut refused = 0;
    for (file, content) in &expected.files {
        for lba in 0..content.blocks {
            let mut reads = [BlockRead::new(Lba(lba), 1)];
            image.read(*file, &mut reads, true);
            let [read] = reads;
            match read.outcome {
                Some(Ok(bytes)) => {
                    let seen = Tag::of(&bytes.to_vec());
                    ensure!(seen == Some(content.tag(lba)), "{file:?} {lba} reads {seen:?}, wrong bytes");
                }
                Some(Err(_)) => refused += 1,
                None => bail!("a read that may wait has no outcome"),
            }
        }
    }
    Ok(refused)
}

impl CopyFault {
    /// True for a damaged block at rest.
    fn is_rot(self) -> bool {
        !matches!(self, CopyFault::PassingReadError | CopyFault::LostWrite | CopyFault::MisdirectedWrite)
    }

    fn hits(self, place: Place) -> bool {
        // The numbers of the active map and of the inode file, as trees have them.
        const MAP: u64 = u64::MAX;
        const INODES: u64 = u64::MAX - 1;
        let (file, level) = match place {
            Place::Data { file, .. } => (file.0, 0),
            Place::Node(node) => (node.file.0, node.level),
            Place::Unknown => return false,
        };
        match self {
            CopyFault::RotInData => file < INODES && level == 0,
            CopyFault::RotInNode => file < INODES && level > 0,
            CopyFault::RotInInodes => file == INODES && level == 0,
            CopyFault::RotInInodeNode => file == INODES && level > 0,
            CopyFault::RotInMap => file == MAP && level == 0,
            CopyFault::RotInMapNode => file == MAP && level > 0,
            CopyFault::PassingReadError | CopyFault::LostWrite | CopyFault::MisdirectedWrite => false,
        }
    }
}
