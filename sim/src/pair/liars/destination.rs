//! A destination that lies to its source: the source's volume and its snapshots match their model,
//! whatever it requests, claims or sends.

use std::io::{self, Cursor, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use cairn_base::{Checksum, FileId, Generation, Rng, SnapshotId, Timestamp, Vbn};
use cairn_format::stream::root_digest;
use cairn_mirror::forging::{self, Answered, Ask, Wish};
use cairn_mirror::{Departure, NackReason, PROTOCOL_VERSION, PeerName, Relationship, Source, Successor};
use cairn_stream::{Consumer, Have, MIRROR_PREFIX, Record};
use cairn_volume::Role;

use super::known::Known;
use super::twin::twin;
use crate::content::Tag;
use crate::pair::{Offering, PEER, VOLUME_NAME};
use crate::tally::Tally;
use crate::timeline::Timeline;
use crate::world::{Config, VOLUME, World};

/// Mirrors that it claims to have.
const RELATIONSHIPS: u64 = 3;
/// Snapshots of a mirror at its source: its base, and the one being transferred.
const HELD_MAX: usize = 2;
/// The prefix of snapshots that are kept for content which a mirror gave up.
const SPLIT_PREFIX: &str = "split-";

/// A source with a lying peer.
pub fn run(seed: u64, timeline: &mut Timeline, tally: &mut Tally) -> Result<()> {
    let mut rng = Rng::new(seed ^ 0x6465_7374);
    let blocks = 1024 + rng.below(256);
    let config = Config {
        blocks,
        blocks_max: blocks,
        files: 1 + rng.below(2) as usize,
        file_blocks: 6 + rng.below(60),
        snapshots: 2 + rng.below(3) as usize,
        log_device: rng.one_in(4),
        cut_every: 0,
    };
    let mut source = World::new("src", &mut rng, config, Role::Normal)?;
    source.mirrored = true;
    let mut sessions: Arc<Source> = Arc::default();
    let mut memory = Memory { keeps_nothing: rng.one_in(2), ..Memory::default() };
    for _ in 0..4 + rng.below(8) {
        timeline.step();
        for _ in 0..rng.below(8) {
            source.live(timeline)?;
        }
        if rng.one_in(6) {
            sessions = Arc::default();
        }
        if rng.one_in(5) {
            source.arm_cut(60);
        }
        let known = Known::of(&source.volume())?;
        let mut liar = Liar::new(rng.fork(), &known, &mut memory);
        source.pending.clear();
        let peer = PeerName::new(PEER).expect("a name as it must be");
        let cancel = AtomicBool::new(false);
        let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        let offering = Offering(source.volume());
        let outcome = sessions.serve_session(&mut liar, &offering, &peer, &mut work);
        let (requests, spills) = (liar.requests, liar.spills);
        drop(offering);
        tally.lies[0] += requests;
        tally.messages += requests;
        source.note(timeline, &format!("! a destination that lies, {requests} requests: {outcome:?}"));
        settle(&mut source, spills, timeline)?;
        source.compare_all().context("at a source that was lied to")?;
        source.check().context("at a source that was lied to")?;
        ensure!(source.volume().status().role == Role::Normal, "the source has given its role away");
        if memory.keeps_nothing {
            let bound = HELD_MAX * RELATIONSHIPS as usize;
            let kept = source.snapshots.values().filter(|s| s.name.starts_with(MIRROR_PREFIX)).count();
            ensure!(kept <= bound, "{kept} snapshots are kept for {RELATIONSHIPS} mirrors");
        }
    }
    source.device.cut_after(u64::MAX);
    source.count(tally);
    // The snapshots made for mirrors go with them.
    let volume = source.volume();
    for relationship in (0..RELATIONSHIPS).map(Relationship) {
        sessions.forget(&volume, &format!("{PEER}-{relationship}"))?;
    }
    source.adopt();
    source.committed();
    let left = volume.snapshots().into_iter().filter(|snapshot| snapshot.name.starts_with(MIRROR_PREFIX));
    let left: Vec<String> = left.map(|snapshot| snapshot.name).collect();
    ensure!(left.is_empty(), "{left:?} are left of mirrors that are forgotten");
    drop(volume);
    source.finish(timeline)
}

/// The source's work for the mirror: its snapshots came and went, and where it reported that it
/// gives something up, a base is kept.
pub fn settle(source: &mut World, spills: bool, timeline: &mut Timeline) -> Result<()> {
    let was_cut = source.device.is_off();
    source.device.cut_after(u64::MAX);
    if was_cut {
        // The model learns which snapshots were kept before it compares.
        source.power_cycle();
        source.volume = Some(source.open().context("opening after a cut")?);
    }
    let volume = source.volume();
    for snapshot in volume.snapshots() {
        let content = source.model.frozen_at(snapshot.generation);
        let is_split = spills && snapshot.name.starts_with(SPLIT_PREFIX);
        match source.snapshots.get_mut(&snapshot.id) {
            Some(known) if is_split && known.name.starts_with(MIRROR_PREFIX) => {
                known.name = snapshot.name;
                known.held = snapshot.held;
            }
            Some(known) if spills && !known.name.starts_with(MIRROR_PREFIX) => known.held |= snapshot.held,
            Some(_) => {}
            // It was made and kept in the same session.
            None if is_split => {
                let known = crate::world::SnapshotModel { name: snapshot.name, held: snapshot.held, content };
                source.snapshots.insert(snapshot.id, known);
            }
            None => {}
        }
    }
    source.adopt();
    match was_cut {
        true => source.come_back(timeline, false).context("at a source that was lied to"),
        false => source.end_round(timeline).context("at a source that was lied to"),
    }
}

/// Its memory of earlier conversations.
#[derive(Default)]
struct Memory {
    /// It never asks the source to keep its own mirrors' snapshots.
    keeps_nothing: bool,
    /// Images that it was sent, or claimed to have.
    targets: Vec<SnapshotId>,
}

/// One conversation.
struct Liar<'a> {
    rng: Rng,
    known: &'a Known,
    memory: &'a mut Memory,
    inbox: Vec<u8>,
    outbox: Cursor<Vec<u8>>,
    /// Requests until it hangs up.
    left: u64,
    requests: u64,
    /// It has claimed that its image is given up and spilled.
    spills: bool,
    /// Its last request.
    relationship: Relationship,
    mapped: Option<FileId>,
}

impl<'a> Liar<'a> {
    fn new(mut rng: Rng, known: &'a Known, memory: &'a mut Memory) -> Self {
        let left = 1 + rng.below(24);
        Self {
            rng,
            known,
            memory,
            inbox: Vec::new(),
            outbox: Cursor::new(Vec::new()),
            left,
            requests: 0,
            spills: false,
            relationship: Relationship(0),
            mapped: None,
        }
    }

    fn id(&mut self) -> SnapshotId {
        let known = &self.known.table;
        match self.rng.below(6) {
            0 => SnapshotId(self.rng.below(30)),
            1 | 2 if !self.memory.targets.is_empty() => {
                self.memory.targets[self.rng.below(self.memory.targets.len() as u64) as usize]
            }
            _ if known.is_empty() => SnapshotId(0),
            _ => known[self.rng.below(known.len() as u64) as usize].id,
        }
    }

    /// A snapshot, with its content or another one.
    fn root(&mut self) -> (SnapshotId, Checksum) {
        let id = self.id();
        let entry = self.known.table.iter().find(|entry| entry.id == id);
        let digest = entry.map(root_digest).filter(|_| !self.rng.one_in(5));
        (id, digest.unwrap_or(Checksum([self.rng.below(256) as u8; 16])))
    }

    fn have(&mut self) -> Vec<Have> {
        let mut have: Vec<Have> = self.known.table.iter().map(Have::from).collect();
        if self.rng.one_in(2) {
            have.retain(|_| !self.rng.one_in(2));
        }
        if self.rng.one_in(8) {
            for one in &mut have {
                if self.rng.one_in(3) {
                    one.root = Checksum([self.rng.below(256) as u8; 16]);
                }
                if self.rng.one_in(3) {
                    one.label = Checksum([self.rng.below(256) as u8; 16]);
                }
                one.mirror ^= self.rng.one_in(3);
            }
        }
        if self.rng.one_in(12) {
            for _ in 0..self.rng.below(40) {
                let (id, root) = self.root();
                have.push(Have { id, root, label: root, entry: root, mirror: self.rng.one_in(2) });
            }
        }
        have
    }

    fn claims(&mut self, from: Vbn) -> Vec<(Vbn, Checksum)> {
        let all = self.known.blocks.range(from.0..);
        let mut claims: Vec<(Vbn, Checksum)> = Vec::new();
        for (number, block) in all {
            if !self.rng.one_in(3) {
                let sum = if self.rng.one_in(4) { Checksum([9; 16]) } else { Checksum::of(&block[..]) };
                claims.push((Vbn(*number), sum));
            }
        }
        match self.rng.below(24) {
            0 => claims.clear(),
            1 => claims.reverse(),
            2 => claims.push((Vbn(u64::MAX), Checksum([9; 16]))),
            3 => claims.insert(0, (Vbn(0), Checksum([9; 16]))),
            4 => claims.truncate(self.rng.below(40) as usize),
            _ => {}
        }
        claims
    }

    fn update(&mut self) -> Ask {
        let stance = self.rng.below(12);
        let stance = if stance > 3 { 0 } else { stance as u8 };
        self.spills |= stance == 3;
        let keep = self.keep();
        let have = self.have();
        // The newest that it claims to have, or any.
        let newest = have.last().map(|have| have.id).filter(|_| !self.rng.one_in(3));
        let shown = newest.unwrap_or_else(|| self.id());
        Ask::Update(Wish {
            relationship: self.relationship,
            blocks: if self.rng.one_in(24) { self.rng.below(2000) } else { 1 << 20 },
            hold: !self.rng.one_in(3),
            compare: self.rng.one_in(3),
            step: self.rng.one_in(3),
            stance,
            claims: self.rng.below(3) * 7,
            shown,
            keep,
            have,
        })
    }

    fn keep(&mut self) -> Vec<SnapshotId> {
        let count = if self.memory.keeps_nothing { 0 } else { self.rng.below(6) };
        (0..count).map(|_| self.id()).collect()
    }

    fn successor(&mut self) -> Successor {
        Successor {
            address: ["", ":1", "liar.example:7420"][self.rng.below(3) as usize].to_owned(),
            volume: "other".to_owned(),
            every_ms: Some(self.rng.next()),
            cron: "* * * * *".to_owned(),
            continuous: self.rng.one_in(2),
            zone: String::new(),
            rpo_ms: Some(0),
        }
    }

    fn blocks(&mut self) -> Vec<(Vbn, Checksum)> {
        let some = self.known.blocks.iter().filter(|_| self.rng.one_in(8));
        some.map(|(number, block)| (Vbn(*number), Checksum::of(&block[..]))).take(100).collect()
    }

    /// "Repairs": other blocks with the checksums of the real ones.
    fn gifts(&mut self) -> Vec<(Vbn, Checksum, Vec<u8>)> {
        let wanted = self.blocks();
        wanted
            .into_iter()
            .take(12)
            .map(|(vbn, sum)| {
                let other = Tag(self.rng.next() << 8 | u64::from(b'L')).block();
                (vbn, sum, twin(&self.known.blocks[&vbn.0][..], &other[..]).to_vec())
            })
            .collect()
    }

    fn request(&mut self) -> Ask {
        self.relationship = Relationship(self.rng.below(RELATIONSHIPS));
        let relationship = self.relationship;
        match self.rng.below(24) {
            0 => Ask::Provision,
            1 | 2 => {
                let (id, root) = self.root();
                Ask::Status(relationship, id, root)
            }
            3 => Ask::Fetch(self.blocks()),
            4 => Ask::Needs,
            5 => Ask::Give(self.gifts()),
            6 | 7 => {
                let (root, base) = (self.root(), self.root());
                let mut position = || (self.rng.next() >> self.rng.below(64), self.rng.below(300));
                let ends = [position(), position()];
                Ask::Region([root, base], ends, [self.rng.one_in(2), self.rng.one_in(2)])
            }
            8 => Ask::Standing(relationship, None),
            9 => {
                let (base, root) = self.root();
                let departure = Departure {
                    base,
                    root,
                    generation: Generation(self.rng.below(99)),
                    at: Timestamp(self.rng.next()),
                    address: "liar.example:1".to_owned(),
                    volume: "other".to_owned(),
                };
                Ask::Standing(relationship, Some(departure))
            }
            10 => Ask::HandOver(relationship, self.id(), self.successor()),
            11 => Ask::HandOverTogether(relationship, self.id(), self.successor()),
            12 | 13 => {
                let (id, root) = self.root();
                Ask::Await(relationship, id, root)
            }
            14 if self.rng.one_in(3) => Ask::Farewell(relationship),
            15 => Ask::Access,
            16 if self.rng.one_in(8) => Ask::Hello(self.rng.below(12) as u32),
            17 if self.rng.one_in(4) => Ask::Ack(self.id(), Vec::new()),
            _ => self.update(),
        }
    }

    /// Its next message, after the last answer.
    fn next(&mut self) -> Ask {
        if self.requests == 0 {
            return Ask::Hello(PROTOCOL_VERSION);
        }
        let heard = self.hear();
        if self.rng.one_in(12) {
            return self.request();
        }
        match heard {
            Some(Answered::AskBegan(file)) => {
                let file = match self.rng.below(4) {
                    0 => None,
                    1 => Some(FileId(self.rng.below(40))),
                    _ => Some(file),
                };
                self.mapped = file;
                Ask::Began(file, Generation(self.rng.below(60)), Timestamp(self.rng.next()))
            }
            Some(Answered::AskClaims(from)) => Ask::Claims(self.claims(from)),
            Some(Answered::Transfer(target)) => {
                self.memory.targets.push(target);
                let keep = self.keep();
                match self.rng.below(8) {
                    0 => Ask::Nack(NackReason::Unfit),
                    1 => Ask::Ack(self.id(), keep),
                    _ => Ask::Ack(target, keep),
                }
            }
            _ => self.request(),
        }
    }

    /// The last answer. A stream is read and discarded.
    fn hear(&mut self) -> Option<Answered> {
        let mut last = None;
        while let Some((answered, length)) = forging::answered(&self.inbox) {
            self.inbox.drain(..length);
            if matches!(answered, Answered::Transfer(_)) {
                let read = stream_length(&self.inbox);
                self.inbox.drain(..read);
            }
            last = Some(answered);
        }
        self.inbox.clear();
        last
    }
}

/// How long the stream at the start of `bytes` is.
fn stream_length(mut bytes: &[u8]) -> usize {
    let Ok(mut consumer) = Consumer::open(&mut bytes) else { return 0 };
    loop {
        match consumer.record() {
            Ok(Record::Trailer(_)) | Err(_) => return consumer.bytes() as usize,
            Ok(_) => {}
        }
    }
}

impl Read for Liar<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.outbox.position() == self.outbox.get_ref().len() as u64 {
            if self.left == 0 {
                return Ok(0);
            }
            self.left -= 1;
            let ask = self.next();
            self.requests += 1;
            self.outbox = Cursor::new(forging::ask(VOLUME_NAME, VOLUME, ask));
        }
        self.outbox.read(buffer)
    }
}

impl Write for Liar<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inbox.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
