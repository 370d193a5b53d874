//! A source that lies: its answers and images are arbitrary.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use cairn_base::{Checksum, FileId, Generation, Rng, SnapshotId, Timestamp, Vbn};
use cairn_format::stream::root_digest;
use cairn_mirror::forging::{self, Asked, Told};
use cairn_mirror::{Refusal, Route, SourceStatus, Standing};
use cairn_volume::Role;

use super::known::Known;
use super::stream::Draft;
use super::twin::twin;
use crate::content::Tag;
use crate::world::VOLUME;

/// Its answer to a request for an image.
pub enum Answering {
    /// It sends one.
    Sends(Box<Sent>),
    /// It reports that there is no change.
    UpToDate,
    /// It refuses.
    Refuses(Refusal),
}

/// An image that it sends.
pub struct Sent {
    pub draft: Draft,
    /// The announced image.
    pub target: SnapshotId,
    pub name: String,
    /// How often it asks for the destination's claims, and omits those blocks, whether or not they
    /// are the same.
    pub asks_claims: u64,
    pub confirms_all: bool,
    /// It asks about since maps first.
    pub asks_began: bool,
}

/// One conversation.
pub struct Liar<'a> {
    pub rng: Rng,
    pub answering: Answering,
    pub status: SourceStatus,
    /// The destination's content.
    pub known: &'a Known,
    /// One in this many answers is to another question; 0 for none.
    pub absurd_every: u64,
    inbox: Vec<u8>,
    outbox: VecDeque<u8>,
    /// The number of its requests so far.
    asked: u64,
    claimed: Vec<(Vbn, Checksum)>,
    /// Calls at each moment at which the destination waits for it.
    look: &'a mut dyn FnMut(),
}

impl<'a> Liar<'a> {
    pub fn new(
        rng: Rng,
        answering: Answering,
        status: SourceStatus,
        known: &'a Known,
        look: &'a mut dyn FnMut(),
    ) -> Self {
        Self {
            rng,
            answering,
            status,
            known,
            absurd_every: 0,
            inbox: Vec::new(),
            outbox: VecDeque::new(),
            asked: 0,
            claimed: Vec::new(),
            look,
        }
    }

    fn say(&mut self, told: Told) {
        self.outbox.extend(forging::told(told));
    }

    fn answer(&mut self, asked: Asked) {
        if self.absurd_every > 0 && asked != Asked::Hello && self.rng.one_in(self.absurd_every) {
            let told = self.absurd();
            return self.say(told);
        }
        match asked {
            Asked::Hello => self.say(Told::Hello),
            Asked::Provision => self.say(Told::Provision(VOLUME, self.known.space)),
            Asked::Update(_, claims) => self.image(claims > 0),
            Asked::Began => self.image(true),
            Asked::Claims(claims) => {
                let is_last = claims.is_empty();
                self.claimed.extend(claims);
                self.image(!is_last);
            }
            Asked::Status | Asked::Ack(_) => self.say(Told::Status(self.status)),
            Asked::Nack(_) => {}
            Asked::Await => self.say(Told::Awaited(true, self.status)),
            Asked::Fetch(wanted) => {
                let blocks = wanted.iter().map(|(vbn, _)| self.block(*vbn)).collect();
                self.say(Told::Blocks(blocks));
            }
            Asked::Needs => {
                let needs = self.known.blocks.iter().take(40);
                let needs = needs.map(|(number, block)| (Vbn(*number), Checksum::of(&block[..]))).collect();
                self.say(Told::Needs(needs));
            }
            Asked::Give(count) => self.say(Told::Mended(count as u64 * 2)),
            Asked::Region => {
                let told = match self.rng.below(3) {
                    0 => Told::NoSuchRoot,
                    _ => Told::Region(Checksum([self.rng.below(256) as u8; 16]), self.region()),
                };
                self.say(told);
            }
            Asked::Standing => {
                let standing = self.standing();
                self.say(Told::Standing(standing));
            }
            Asked::HandOver => {
                let target = self.known.table.last().map_or(SnapshotId(9), |entry| entry.id);
                self.say(Told::HandedOver(target));
            }
            Asked::Farewell => self.say(Told::Farewell),
            Asked::Access => self.say(Told::Refused(Refusal::Unknown)),
        }
    }

    /// The answer to a request for an image, or its next question.
    fn image(&mut self, may_ask: bool) {
        let sent = match &self.answering {
            Answering::UpToDate => return self.say(Told::UpToDate(self.status)),
            Answering::Refuses(refusal) => return self.say(Told::Refused(refusal.clone())),
            Answering::Sends(sent) => sent,
        };
        if sent.asks_began && self.asked == 0 {
            self.asked += 1;
            return self.say(Told::AskBegan(FileId(3), FileId(u64::MAX)));
        }
        if may_ask && self.asked < sent.asks_claims {
            self.asked += 1;
            let from = self.claimed.last().map_or(0, |(vbn, _)| vbn.0 + 1);
            return self.say(Told::AskClaims(Vbn(from)));
        }
        let mut draft = sent.draft.clone();
        let before = draft.blocks.len();
        let confirms_all = sent.confirms_all;
        let has = |number: u64, checksum: Checksum| {
            self.claimed.iter().any(|(vbn, sum)| vbn.0 == number && (confirms_all || *sum == checksum))
        };
        draft.blocks.retain(|(number, block)| !has(*number, Checksum::of(&block[..])));
        let left_out = (before - draft.blocks.len()) as u64;
        let announced = Told::Transfer(sent.target, sent.name.clone(), left_out, self.status);
        let stream = draft.sealed(&mut self.rng);
        self.say(announced);
        self.outbox.extend(stream);
        self.asked = 0;
    }

    /// A requested block: as it is, with other content of the same checksum, or another block.
    fn block(&mut self, vbn: Vbn) -> Option<Vec<u8>> {
        let known = self.known.blocks.get(&vbn.0)?;
        let other = Tag(self.rng.next() << 8 | u64::from(b'L')).block();
        Some(match self.rng.below(4) {
            0 => known.to_vec(),
            1 => other.to_vec(),
            _ => twin(&known[..], &other[..]).to_vec(),
        })
    }

    fn region(&mut self) -> Vec<(Vbn, Checksum, bool)> {
        let known = self.known.blocks.iter().take(60);
        known
            .map(|(number, block)| {
                let sum = if self.rng.one_in(3) { Checksum([7; 16]) } else { Checksum::of(&block[..]) };
                (Vbn(*number), sum, !self.rng.one_in(3))
            })
            .collect()
    }

    fn standing(&mut self) -> Standing {
        let snapshots = self.known.table.iter().map(|entry| (entry.id, root_digest(entry)));
        Standing {
            id: VOLUME,
            role: if self.rng.one_in(2) { Role::Normal } else { Role::Destination },
            own_head: SnapshotId(self.rng.below(4)),
            handed_over: self.rng.one_in(2),
            generation: Generation(self.rng.below(1 << 20)),
            changed: Timestamp(self.rng.next()),
            used: self.rng.below(1 << 20),
            snapshots: snapshots.collect(),
        }
    }

    fn absurd(&mut self) -> Told {
        match self.rng.below(9) {
            0 => Told::HandedOver(SnapshotId(self.rng.below(9))),
            1 => Told::Standing(self.standing()),
            2 => Told::Awaited(self.rng.one_in(2), self.status),
            3 => Told::Farewell,
            4 => Told::Mended(u64::MAX),
            5 => Told::Refused(Refusal::Diverged(SnapshotId(self.rng.below(9)))),
            6 => Told::AskClaims(Vbn(self.rng.next())),
            7 => Told::AskBegan(FileId(self.rng.next()), FileId(2)),
            _ => Told::UpToDate(self.status),
        }
    }
}

impl Read for Liar<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (self.look)();
        if self.outbox.is_empty()
            && let Some((asked, length)) = forging::asked(&self.inbox)
        {
            self.inbox.drain(..length);
            self.answer(asked);
        }
        // An empty outbox is a connection that ends.
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

/// A status that may be absurd.
pub fn status(rng: &mut Rng, now: Timestamp, base: SnapshotId) -> SourceStatus {
    let off = rng.one_in(3);
    let time = |rng: &mut Rng| match rng.below(4) {
        0 => Timestamp(0),
        1 => Timestamp(u64::MAX),
        _ => Timestamp(rng.next()),
    };
    SourceStatus {
        now: if off { time(rng) } else { now },
        blocks: if off { rng.below(1 << 40) } else { 1024 },
        used: if off { rng.below(1 << 40) } else { 100 },
        base: if off { SnapshotId(rng.below(20)) } else { base },
        base_taken: if rng.one_in(4) { None } else { Some(time(rng)) },
        first_change: if rng.one_in(2) { None } else { Some(time(rng)) },
        blocks_behind: if off { rng.below(1 << 40) } else { 3 },
        route: Route::default(),
    }
}
