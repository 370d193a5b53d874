//! Finds out how a store really behaves, by using it below a prefix of its own.
//!
//! The word of a store is not enough: of six that were tried, one ignores create-only puts and two
//! ignore conditions on the end of an upload. A race is tried several times, as losing one is luck.
//!
//! The probe cleans up. An object that it locked stays until the lock ends, and a later probe
//! removes it. An error of the store itself (no bucket, no right to put) ends the probe; a missing
//! ability does not.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{Clock, Rng, Timestamp};

use crate::abilities::{Abilities, Ability, Found, Verdict};
use crate::date::utc;
use crate::error::{StoreError, Trouble, Verb};
use crate::limits::{PAGE_OBJECTS_MAX, PIECE_BYTES_MIN};
use crate::name::{Name, Prefix};
use crate::store::{ListFrom, Nonce, Piece, Put, Store, Upload, list_all};
use crate::workers::{Workers, beside};

/// Objects of probes are below this.
const SCRATCH: &str = "probe/";
/// Names that several creators want at the same time. VersityGW 1.7 lets two of them win in one
/// race of ten, moto in one of eighty.
const RACES: usize = 48;
/// Creators of each name, by turns of either client.
const CREATORS: usize = 4;
/// The same for uploads, each of which moves a piece.
const PIECE_RACES: usize = 4;
/// Bytes of most objects of a probe.
const OBJECT_BYTES: usize = 1000;
/// The lock time of the object that tests locks.
const LOCK: Duration = Duration::from_secs(60);
/// A shorter lock.
const SHORT_LOCK: Duration = Duration::from_secs(5);
/// Age after which the leftovers of a probe are removed.
const REMAINS_AGE: Duration = Duration::from_secs(3600);

/// The parties of a probe.
pub struct ProbeWork<'a> {
    /// A second client of the same store, with connections of its own.
    pub other: Arc<dyn Store>,
    /// Threads for races.
    pub workers: &'a Arc<dyn Workers>,
    /// The time, for locks.
    pub clock: &'a dyn Clock,
    /// Seeded by the operating system.
    pub rng: &'a mut Rng,
    /// Ends the probe.
    pub cancel: &'a Arc<AtomicBool>,
}

/// Tries everything once.
///
/// # Errors
/// The store cannot be used at all, or the probe was cancelled. Some of its objects may still be
/// there.
pub fn probe(store: &Arc<dyn Store>, work: ProbeWork<'_>) -> Result<Abilities, StoreError> {
    let ProbeWork { other, workers, clock, rng, cancel } = work;
    let run = Nonce::random(rng);
    let prefix = Prefix::new(format!("{SCRATCH}{run}/"));
    let prefix = prefix.map_err(|_| blamed(store, Trouble::Rule("the prefix of the probe is wrong")))?;
    let mut trial =
        Trial { store, other, workers, clock, rng, cancel, prefix, abilities: Abilities::default() };
    let outcome = trial.all();
    trial.clean_up();
    outcome.map(|()| trial.abilities)
}

fn blamed(store: &Arc<dyn Store>, trouble: Trouble) -> StoreError {
    StoreError { verb: Verb::Open, name: None, place: store.place().into(), trouble }
}

struct Trial<'a> {
    store: &'a Arc<dyn Store>,
    other: Arc<dyn Store>,
    workers: &'a Arc<dyn Workers>,
    clock: &'a dyn Clock,
    rng: &'a mut Rng,
    cancel: &'a Arc<AtomicBool>,
    prefix: Prefix,
    abilities: Abilities,
}

impl Trial<'_> {
    fn all(&mut self) -> Result<(), StoreError> {
        self.remove_remains();
        self.create_only()?;
        self.ranges()?;
        self.race()?;
        self.lists()?;
        self.pieces()?;
        self.deletes()?;
        self.locks()
    }

    fn name(&self, rest: &str) -> Result<Name, StoreError> {
        self.prefix.name(rest).map_err(|_| blamed(self.store, Trouble::Rule("a name of the probe is wrong")))
    }

    fn bytes(&mut self, length: usize) -> Bytes {
        let mut bytes = vec![0; length];
        self.rng.fill(&mut bytes);
        bytes.into()
    }

    fn note(&mut self, ability: Ability, verdict: Verdict, says: impl Into<String>) {
        self.abilities.found.push(Found { ability, verdict, says: says.into() });
    }

    fn judge(&mut self, ability: Ability, holds: bool, yes: &str, no: &str) {
        let verdict = if holds { Verdict::Yes } else { Verdict::No };
        self.note(ability, verdict, if holds { yes } else { no });
    }

    /// Whether an error means that the store lacks the ability, and is not a failure of the store
    /// as a whole.
    fn is_lack(error: &StoreError) -> bool {
        matches!(
            error.trouble,
            Trouble::Unsupported(_)
                | Trouble::Answer(_)
                | Trouble::Server { .. }
                | Trouble::Forbidden
                | Trouble::Missing
                | Trouble::NoUpload
                | Trouble::Locked(_)
        )
    }

    fn create_only(&mut self) -> Result<(), StoreError> {
        let name = self.name("once")?;
        let (first, second) = (self.bytes(OBJECT_BYTES), self.bytes(OBJECT_BYTES));
        let (own, others) = (Nonce::random(self.rng), Nonce::random(self.rng));
        self.store.put_new(&name, first.clone(), own, self.cancel)?;
        let read = self.other.get(&name, 0, 2 * OBJECT_BYTES, self.cancel)?;
        let at_once = read == first;
        self.judge(
            Ability::ReadsAfterWrite,
            at_once,
            "an object is there at once after it was put",
            "an object is not there, or another one, just after it was put",
        );
        let again = self.other.put_new(&name, second, others, self.cancel);
        let stays = self.store.get(&name, 0, 2 * OBJECT_BYTES, self.cancel)? == first;
        match again {
            Ok(Put::Exists) if stays => {
                self.note(Ability::CreateOnly, Verdict::Yes, "a put of a name that is taken is refused");
            }
            Ok(_) => {
                let says = "the store ignores that a put must not overwrite";
                self.note(Ability::CreateOnly, Verdict::No, says);
            }
            Err(error) if Self::is_lack(&error) => {
                self.note(Ability::CreateOnly, Verdict::No, "the store does not know create-only puts");
            }
            Err(error) => return Err(error),
        }
        let kept = self.store.head(&name, self.cancel)?.nonce == Some(own);
        let (yes, no) = ("metadata of an object is kept", "metadata of an object is lost");
        match self.abilities.has(Ability::CreateOnly) {
            true => self.judge(Ability::KeepsNonce, kept, yes, no),
            // The second put may have replaced it.
            false => {
                let head = self.store.head(&name, self.cancel)?;
                self.judge(Ability::KeepsNonce, head.nonce.is_some(), yes, no);
            }
        }
        Ok(())
    }

    fn ranges(&mut self) -> Result<(), StoreError> {
        let name = self.name("range")?;
        let bytes = self.bytes(OBJECT_BYTES);
        let nonce = Nonce::random(self.rng);
        self.store.put_new(&name, bytes.clone(), nonce, self.cancel)?;
        let get = |offset: usize, length: usize| self.store.get(&name, offset as u64, length, self.cancel);
        let within = match get(100, 200) {
            Ok(read) => read == bytes.slice(100..300),
            Err(error) if Self::is_lack(&error) => false,
            Err(error) => return Err(error),
        };
        let past = match (get(OBJECT_BYTES - 10, 100), get(OBJECT_BYTES, 100), get(10 * OBJECT_BYTES, 1)) {
            (Ok(end), Ok(at_end), Ok(past)) => {
                end == bytes.slice(OBJECT_BYTES - 10..) && at_end.is_empty() && past.is_empty()
            }
            _ => false,
        };
        self.judge(
            Ability::RangedGet,
            within,
            "a range of an object is read alone",
            "a range of an object cannot be read",
        );
        self.judge(
            Ability::RangePastEnd,
            past,
            "a range past the end gives what there is",
            "a range past the end fails",
        );
        Ok(())
    }

    fn race(&mut self) -> Result<(), StoreError> {
        let (mut double, mut wrong) = (0, 0);
        for number in 0..RACES {
            let name = self.name(&format!("race-{number}"))?;
            let contents: [Bytes; CREATORS] = std::array::from_fn(|_| self.bytes(OBJECT_BYTES));
            let mut waits = Vec::new();
            for (index, bytes) in contents.iter().cloned().enumerate() {
                let client = if index % 2 == 0 { self.store.clone() } else { self.other.clone() };
                let (name, nonce, cancel) = (name.clone(), Nonce::random(self.rng), self.cancel.clone());
                let put = move || client.put_new(&name, bytes, nonce, &cancel);
                waits.push(beside(self.workers, put).map_err(|error| self.no_thread(error))?);
            }
            let mut won = Vec::new();
            for (index, wait) in waits.into_iter().enumerate() {
                match wait.recv() {
                    Ok(Ok(Put::Created)) => won.push(index),
                    Ok(Ok(Put::Exists)) => {}
                    // Undecided: tried again, it is decided.
                    Ok(Err(error)) if matches!(error.trouble, Trouble::Conflict) => {}
                    Ok(Err(error)) if Self::is_lack(&error) => wrong += 1,
                    Ok(Err(error)) => return Err(error),
                    Err(_) => wrong += 1,
                }
            }
            if won.len() > 1 {
                double += 1;
            } else if let Some(winner) = won.first() {
                let found = self.store.get(&name, 0, 2 * OBJECT_BYTES, self.cancel)?;
                wrong += usize::from(found != contents[*winner]);
            }
        }
        let says = match (double, wrong) {
            (0, 0) => "of several puts of one name at the same time one wins".to_owned(),
            (0, _) => format!("{wrong} of {RACES} races for a name ended without the object of the winner"),
            _ => format!("in {double} of {RACES} races for a name more than one creator won"),
        };
        let verdict = if double + wrong == 0 { Verdict::Yes } else { Verdict::No };
        self.note(Ability::CreateOnlyRace, verdict, says);
        Ok(())
    }

    fn no_thread(&self, error: std::io::Error) -> StoreError {
        blamed(self.store, Trouble::Io(Arc::new(error)))
    }

    fn lists(&mut self) -> Result<(), StoreError> {
        let below = Prefix::new(format!("{}listed/", self.prefix))
            .map_err(|_| blamed(self.store, Trouble::Rule("a name of the probe is wrong")))?;
        let mut expected = Vec::new();
        let mut right = true;
        // Out of order, and with names whose order depends on the separator.
        for rest in ["b", "a/z", "a-b", "c/d/e", "a.b"] {
            let name = self.name(&format!("listed/{rest}"))?;
            let (bytes, nonce) = (self.bytes(10), Nonce::random(self.rng));
            self.store.put_new(&name, bytes, nonce, self.cancel)?;
            expected.push(name);
            expected.sort();
            right &= self.listed(&below)? == Some(expected.clone());
        }
        // Page by page.
        let mut paged = Vec::new();
        let mut from = ListFrom::Start;
        for _ in 0..2 * expected.len() {
            let page = self.other.list(&below, &from, 2, self.cancel)?;
            paged.extend(page.objects.into_iter().map(|listed| listed.name));
            match page.next {
                Some(next) => from = ListFrom::Page(next),
                None => break,
            }
        }
        right &= paged == expected;
        let after =
            self.other.list(&below, &ListFrom::After(expected[1].clone()), PAGE_OBJECTS_MAX, self.cancel)?;
        right &= after.objects.into_iter().map(|listed| listed.name).eq(expected[2..].iter().cloned());
        let gone = expected.remove(0);
        match self.store.delete(&gone, self.cancel) {
            Ok(()) => right &= self.listed(&below)? == Some(expected),
            Err(error) if Self::is_lack(&error) => {}
            Err(error) => return Err(error),
        }
        self.judge(
            Ability::ListsAfterWrite,
            right,
            "a listing is complete just after a put and a delete, and in order",
            "a listing is late, incomplete or not in order",
        );
        Ok(())
    }

    /// The listing of the other client; none if it is inconsistent.
    fn listed(&self, prefix: &Prefix) -> Result<Option<Vec<Name>>, StoreError> {
        match list_all(&*self.other, prefix, self.cancel) {
            Ok(listed) => Ok(Some(listed.into_iter().map(|listed| listed.name).collect())),
            Err(StoreError { trouble: Trouble::Answer(_), .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn upload(&mut self, name: &Name, bytes: &[Bytes]) -> Result<(Upload, Nonce, Vec<Piece>), StoreError> {
        let nonce = Nonce::random(self.rng);
        let upload = self.store.begin(name, nonce, self.cancel)?;
        let mut pieces = Vec::new();
        for (number, bytes) in (1..).zip(bytes) {
            pieces.push(self.store.put_piece(&upload, number, bytes.clone(), self.cancel)?);
        }
        Ok((upload, nonce, pieces))
    }

    fn pieces(&mut self) -> Result<(), StoreError> {
        let name = self.name("pieces")?;
        let bytes = [self.bytes(PIECE_BYTES_MIN + 4096), self.bytes(PIECE_BYTES_MIN), self.bytes(100)];
        let (upload, nonce, pieces) = match self.upload(&name, &bytes) {
            Ok(upload) => upload,
            Err(error) if Self::is_lack(&error) => {
                let says = "objects cannot be put in pieces";
                for ability in [
                    Ability::Pieces,
                    Ability::UnequalPieces,
                    Ability::CreateOnlyPieces,
                    Ability::ListsPieces,
                    Ability::ListsUploads,
                ] {
                    self.note(ability, Verdict::No, says);
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let unseen = match self.other.head(&name, self.cancel) {
            Err(error) if error.is_missing() => true,
            Ok(_) => false,
            Err(error) => return Err(error),
        };
        let (lists_uploads, lists_pieces) = self.lists_uploads(&upload, &pieces);
        let finished = match self.store.finish(&upload, nonce, &pieces, self.cancel) {
            Ok(put) => put == Put::Created,
            Err(error) if Self::is_lack(&error) => false,
            Err(error) => return Err(error),
        };
        let whole = finished && {
            let ends = bytes.iter().scan(0, |end, bytes| {
                *end += bytes.len();
                Some(*end)
            });
            let mut right = true;
            for (end, bytes) in ends.zip(&bytes) {
                let begin = end - bytes.len();
                right &= self.other.get(&name, begin as u64, bytes.len(), self.cancel)? == *bytes;
            }
            right
        };
        self.judge(
            Ability::UnequalPieces,
            whole,
            "the pieces of an object may differ in length",
            "an object of pieces that differ in length cannot be finished",
        );
        let (pieces_yes, pieces_no) = (
            "an object in pieces is unseen until it is finished, and then whole",
            "an object in pieces is seen too early, or is not whole",
        );
        self.judge(Ability::Pieces, unseen && whole, pieces_yes, pieces_no);
        self.judge(
            Ability::ListsPieces,
            lists_pieces,
            "the pieces of an upload are listed",
            "the pieces of an upload are not listed",
        );
        self.judge(
            Ability::ListsUploads,
            lists_uploads,
            "uploads are listed by the beginning of their names",
            "uploads are not listed by the beginning of their names",
        );
        if !finished {
            let _ = self.store.abort(&upload, self.cancel);
        }
        self.create_only_pieces(&name, &bytes[2])
    }

    fn lists_uploads(&self, upload: &Upload, pieces: &[Piece]) -> (bool, bool) {
        let found = self.other.uploads(&self.prefix, self.cancel);
        let listed = self.other.pieces(upload, self.cancel).unwrap_or_default();
        let same = |(one, other): (&Piece, &Piece)| one.number == other.number && one.length == other.length;
        let lists_pieces = listed.len() == pieces.len() && listed.iter().zip(pieces).all(same);
        (found.is_ok_and(|found| found.contains(upload)), lists_pieces)
    }

    /// Ends an upload whose name is taken, and ends two at the same time.
    fn create_only_pieces(&mut self, taken: &Name, small: &Bytes) -> Result<(), StoreError> {
        let (upload, nonce, pieces) = self.upload(taken, std::slice::from_ref(small))?;
        let mut refused = match self.store.finish(&upload, nonce, &pieces, self.cancel) {
            Ok(put) => put == Put::Exists,
            Err(error) if Self::is_lack(&error) => false,
            Err(error) => return Err(error),
        };
        let _ = self.store.abort(&upload, self.cancel);
        let length = self.store.head(taken, self.cancel).map(|head| head.length);
        refused &= length.is_ok_and(|length| length != small.len() as u64);
        let mut double = 0;
        for number in 0..PIECE_RACES {
            let name = self.name(&format!("piece-race-{number}"))?;
            let mut waits = Vec::new();
            let mut uploads = Vec::new();
            for client in [self.store.clone(), self.other.clone()] {
                let (upload, nonce, pieces) = self.upload(&name, std::slice::from_ref(small))?;
                let cancel = self.cancel.clone();
                uploads.push(upload.clone());
                let finish = move || client.finish(&upload, nonce, &pieces, &cancel);
                waits.push(beside(self.workers, finish).map_err(|error| self.no_thread(error))?);
            }
            let outcomes: Vec<_> = waits.into_iter().map(|wait| wait.recv()).collect();
            let won = outcomes.iter().filter(|put| matches!(put, Ok(Ok(Put::Created)))).count();
            double += usize::from(won > 1);
            for upload in &uploads {
                let _ = self.store.abort(upload, self.cancel);
            }
        }
        self.judge(
            Ability::CreateOnlyPieces,
            refused && double == 0,
            "an upload whose name is taken is not finished",
            "the store ignores that the end of an upload must not overwrite",
        );
        Ok(())
    }

    fn deletes(&mut self) -> Result<(), StoreError> {
        let name = self.name("deleted")?;
        let (bytes, nonce) = (self.bytes(10), Nonce::random(self.rng));
        self.store.put_new(&name, bytes, nonce, self.cancel)?;
        let deleted = match self.store.delete(&name, self.cancel) {
            Ok(()) => {
                let twice = self.store.delete(&name, self.cancel).is_ok();
                let gone = self.other.head(&name, self.cancel).is_err_and(|error| error.is_missing());
                twice && gone
            }
            Err(error) if Self::is_lack(&error) => false,
            Err(error) => return Err(error),
        };
        self.judge(
            Ability::Deletes,
            deleted,
            "objects are deleted at once",
            "objects cannot be deleted, or stay for a while",
        );
        Ok(())
    }

    fn locks(&mut self) -> Result<(), StoreError> {
        let name = self.name("locked")?;
        let (bytes, nonce) = (self.bytes(10), Nonce::random(self.rng));
        self.store.put_new(&name, bytes, nonce, self.cancel)?;
        let now = self.clock.now();
        let at = |after: Duration| Timestamp(now.0 + after.as_nanos() as u64);
        match self.store.lock_until(&name, at(LOCK), self.cancel) {
            Ok(()) => {}
            Err(error) if Self::is_lack(&error) => {
                let says = match error.trouble {
                    Trouble::Unsupported(_) => "the bucket has no object lock",
                    _ => "the credentials give no right to lock objects",
                };
                self.note(Ability::Locks, Verdict::No, says);
                self.note(Ability::LocksHold, Verdict::No, says);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        // Stores keep whole seconds.
        let long = |until: Option<Timestamp>| until.is_some_and(|until| until.0 + 1_000_000_000 > at(LOCK).0);
        let locked = long(self.store.head(&name, self.cancel)?.locked_until);
        let _ = self.other.lock_until(&name, at(SHORT_LOCK), self.cancel);
        let stays = long(self.store.head(&name, self.cancel)?.locked_until);
        let kept = self.store.delete(&name, self.cancel).is_err();
        let there = self.other.head(&name, self.cancel).is_ok();
        self.judge(
            Ability::Locks,
            locked,
            "objects are locked until a time",
            "a lock is accepted and not shown",
        );
        self.judge(
            Ability::LocksHold,
            locked && stays && kept && there,
            "a lock can be neither shortened nor passed by a delete",
            "a lock can be shortened, or what is locked can be deleted",
        );
        if there {
            self.abilities.left.push(format!("{name}, locked until {}", utc(at(LOCK))));
        }
        Ok(())
    }

    /// Deletes the objects of this probe.
    fn clean_up(&self) {
        self.remove(&self.prefix, None);
    }

    /// Deletes the remains of earlier probes.
    fn remove_remains(&self) {
        let Ok(all) = Prefix::new(SCRATCH) else { return };
        let old = Timestamp(self.clock.now().0.saturating_sub(REMAINS_AGE.as_nanos() as u64));
        self.remove(&all, Some(old));
    }

    fn remove(&self, prefix: &Prefix, before: Option<Timestamp>) {
        let never = AtomicBool::new(false);
        for listed in list_all(&**self.store, prefix, &never).unwrap_or_default() {
            if before.is_none_or(|before| listed.created < before) {
                // The findings name an object that cannot be deleted, or it is older than this
                // probe.
                let _ = self.store.delete(&listed.name, &never);
            }
        }
        if before.is_none() {
            for upload in self.store.uploads(prefix, &never).unwrap_or_default() {
                let _ = self.store.abort(&upload, &never);
            }
        }
    }
}
