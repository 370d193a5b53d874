//! A store in memory that fails on purpose, deterministically from a seed.
//!
//! # Faults that must be survived
//! - A call fails before it does anything: unreachable, 500, SlowDown with or without a time.
//! - A call is done and its answer is lost.
//! - A call times out and is done later, after a few other calls.
//! - A call is slow, and an answer comes late.
//! - A listing shows the store as it was a few changes ago.
//!
//! # Faults that a probe must find
//! [`Habits`]: conditions that are ignored, two winners of one name, nonces that are dropped, locks
//! that do not hold, reads past the end that fail.
//!
//! No acknowledged object is lost, unless a test removes it ([`Memory::replace`]).

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{Clock, Mutex, Rng, Timestamp};

use crate::error::{Blame, StoreError, Trouble, Verb};
use crate::limits::{GET_BYTES_MAX, PAGE_OBJECTS_MAX, PIECE_BYTES_MAX, PIECES_MAX, PUT_BYTES_MAX};
use crate::name::{Name, Prefix};
use crate::pause::Pause;
use crate::store::{Cursor, Head, ListFrom, Listed, Nonce, Page, Piece, Put, Store, Upload};

/// Changes that a late listing may lack at most.
const LATE_CHANGES_MAX: usize = 16;
/// A timed-out call takes effect after this many calls at the latest.
const LATE_CALLS_MAX: u64 = 12;
/// How close two puts must be for a store to see both as the first.
const RACE_CALLS: u64 = 8;

/// The frequency of each fault: once in this many calls on average; 0 for never.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// The call fails and does nothing.
    pub fails: u64,
    /// The call is done and fails.
    pub loses_answer: u64,
    /// The call fails and is done later.
    pub done_later: u64,
    /// The call takes this time more.
    pub slow: u64,
    /// The added latency.
    pub slow_by: Duration,
    /// A listing is late.
    pub lists_late: u64,
}

/// How locks behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Locks {
    /// As compliance mode: no call ends one before its time.
    #[default]
    Held,
    /// No locks.
    None,
    /// A later call can shorten one.
    Shortens,
    /// They are accepted and hold nothing.
    Ignored,
}

/// Lasting deviations from correct behaviour.
#[derive(Debug, Clone, Default)]
pub struct Habits {
    /// A put overwrites.
    pub ignores_create_only: bool,
    /// Finishing an upload overwrites.
    pub ignores_create_only_of_pieces: bool,
    /// Two puts at the same time both create; once in this many puts, 0 for never.
    pub two_winners: u64,
    /// Nonces are not kept.
    pub drops_nonces: bool,
    /// Locks.
    pub locks: Locks,
    /// A read that begins past the end fails.
    pub fails_past_end: bool,
    /// Uploads and their pieces are not listed.
    pub hides_uploads: bool,
    /// The credentials cannot delete.
    pub refuses_delete: bool,
}

#[derive(Debug, Clone)]
struct Object {
    bytes: Bytes,
    nonce: Nonce,
    locked_until: Option<Timestamp>,
    created: Timestamp,
    /// The number of the call that made it.
    call: u64,
}

#[derive(Debug)]
struct Begun {
    name: Name,
    pieces: BTreeMap<u32, (Bytes, u64)>,
}

#[derive(Debug, Clone)]
enum Change {
    Put { name: Name, bytes: Bytes, nonce: Nonce },
    Begin { name: Name, id: String },
    Piece { upload: Upload, number: u32, bytes: Bytes },
    Finish { upload: Upload, nonce: Nonce, pieces: Vec<Piece> },
    Abort { id: String },
    Delete { name: Name },
    Lock { name: Name, until: Timestamp },
}

#[derive(Debug)]
enum Done {
    Put(Put),
    Piece(Piece),
    Nothing,
}

struct State {
    objects: BTreeMap<Name, Object>,
    uploads: BTreeMap<String, Begun>,
    /// Calls that timed out, with the call after which they are done.
    later: VecDeque<(u64, Change)>,
    /// The entry of a name in a listing before each of the last changes, newest last.
    before: VecDeque<(Name, Option<Listed>)>,
    calls: u64,
    faults: Faults,
    habits: Habits,
    rng: Rng,
}

/// See the module. Several clients share one by reference.
pub struct Memory {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    pause: Arc<dyn Pause>,
    blame: Blame,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

enum Fate {
    Done,
    Fails(Trouble),
    LosesAnswer,
    DoneLater,
}

impl Memory {
    /// An empty store without faults.
    pub fn new(clock: Arc<dyn Clock>, pause: Arc<dyn Pause>) -> Self {
        Self::with_faults(clock, pause, Faults::default(), Habits::default(), Rng::new(0))
    }

    /// An empty store with faults.
    pub fn with_faults(
        clock: Arc<dyn Clock>,
        pause: Arc<dyn Pause>,
        faults: Faults,
        habits: Habits,
        rng: Rng,
    ) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            uploads: BTreeMap::new(),
            later: VecDeque::new(),
            before: VecDeque::new(),
            calls: 0,
            faults,
            habits,
            rng,
        };
        Self { state: Mutex::new(state), clock, pause, blame: Blame("memory:".into()) }
    }

    /// Changes the frequency of faults.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// Executes the calls that timed out and are still to be executed.
    pub fn settle(&self) {
        let mut state = self.state.lock();
        while let Some((_, change)) = state.later.pop_front() {
            let _ = self.apply(&mut state, change);
        }
    }

    /// The bytes of an object, without faults.
    pub fn raw(&self, name: &Name) -> Option<Bytes> {
        self.state.lock().objects.get(name).map(|object| object.bytes.clone())
    }

    /// Every name, without faults.
    pub fn names(&self) -> Vec<Name> {
        self.state.lock().objects.keys().cloned().collect()
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Replaces the bytes of an object, or removes it, as a hostile store does.
    pub fn replace(&self, name: &Name, bytes: Option<Bytes>) {
        let mut state = self.state.lock();
        match bytes {
            None => {
                state.objects.remove(name);
            }
            Some(bytes) => {
                if let Some(object) = state.objects.get_mut(name) {
                    object.bytes = bytes;
                }
            }
        }
    }

    /// Counts a call, does the work that is due, and decides the outcome of the call.
    fn begin_call(&self, state: &mut State, cancel: &AtomicBool) -> Fate {
        state.calls += 1;
        while let Some(at) = state.later.iter().position(|(due, _)| *due <= state.calls) {
            if let Some((_, change)) = state.later.remove(at) {
                let _ = self.apply(state, change);
            }
        }
        if cancel.load(Ordering::Relaxed) {
            return Fate::Fails(Trouble::Cancelled);
        }
        let State { faults, rng, .. } = state;
        let mut happens = |once_in: u64| once_in > 0 && rng.one_in(once_in);
        if happens(faults.fails) {
            return Fate::Fails(match rng.below(4) {
                0 => Trouble::Unreachable(ErrorKind::ConnectionRefused),
                1 => Trouble::Server { status: 500, code: Some("InternalError".to_owned()) },
                2 => Trouble::SlowDown(None),
                _ => Trouble::SlowDown(Some(Duration::from_secs(1))),
            });
        }
        if happens(faults.loses_answer) {
            return Fate::LosesAnswer;
        }
        if happens(faults.done_later) {
            return Fate::DoneLater;
        }
        if happens(faults.slow) {
            self.pause.pause(faults.slow_by);
        }
        Fate::Done
    }

    fn change(
        &self,
        verb: Verb,
        name: Option<&Name>,
        change: Change,
        cancel: &AtomicBool,
    ) -> Result<Done, StoreError> {
        let state = &mut *self.state.lock();
        let blamed = |trouble| self.blame.of(verb, name, trouble);
        match self.begin_call(state, cancel) {
            Fate::Done => self.apply(state, change).map_err(blamed),
            Fate::Fails(trouble) => Err(blamed(trouble)),
            Fate::LosesAnswer => {
                let _ = self.apply(state, change);
                let broken = Trouble::Unreachable(ErrorKind::ConnectionReset);
                Err(blamed(if state.rng.one_in(2) { Trouble::TimedOut } else { broken }))
            }
            Fate::DoneLater => {
                let due = state.calls + 1 + state.rng.below(LATE_CALLS_MAX);
                state.later.push_back((due, change));
                Err(blamed(Trouble::TimedOut))
            }
        }
    }

    /// A call that changes nothing: a lost answer is only a failure.
    fn look<T>(
        &self,
        verb: Verb,
        name: Option<&Name>,
        cancel: &AtomicBool,
        look: impl FnOnce(&mut State) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        let state = &mut *self.state.lock();
        let blamed = |trouble| self.blame.of(verb, name, trouble);
        match self.begin_call(state, cancel) {
            Fate::Done => look(state).map_err(blamed),
            Fate::Fails(trouble) => Err(blamed(trouble)),
            Fate::LosesAnswer | Fate::DoneLater => Err(blamed(Trouble::TimedOut)),
        }
    }

    fn note(&self, state: &mut State, name: &Name) {
        let listed = state.objects.get(name).map(|object| listed(name, object));
        state.before.push_back((name.clone(), listed));
        if state.before.len() > LATE_CHANGES_MAX {
            state.before.pop_front();
        }
    }

    fn create(
        &self,
        state: &mut State,
        name: &Name,
        (bytes, nonce): (Bytes, Nonce),
        overwrites: bool,
    ) -> Result<Done, Trouble> {
        if let Some(found) = state.objects.get(name) {
            let at_once = state.calls - found.call <= RACE_CALLS && found.nonce != nonce;
            let winners = state.habits.two_winners;
            let both_win = at_once && winners > 0 && state.rng.one_in(winners);
            if !overwrites && !both_win {
                return Ok(Done::Put(Put::Exists));
            }
        }
        self.note(state, name);
        let created = self.clock.now();
        let object = Object { bytes, nonce, locked_until: None, created, call: state.calls };
        state.objects.insert(name.clone(), object);
        Ok(Done::Put(Put::Created))
    }

    fn apply(&self, state: &mut State, change: Change) -> Result<Done, Trouble> {
        match change {
            Change::Put { name, bytes, nonce } => {
                let overwrites = state.habits.ignores_create_only;
                self.create(state, &name, (bytes, nonce), overwrites)
            }
            Change::Begin { name, id } => {
                state.uploads.insert(id, Begun { name, pieces: BTreeMap::new() });
                Ok(Done::Nothing)
            }
            Change::Piece { upload, number, bytes } => {
                let tag = state.calls;
                let begun = state.uploads.get_mut(&upload.id).ok_or(Trouble::NoUpload)?;
                let length = bytes.len() as u64;
                begun.pieces.insert(number, (bytes, tag));
                Ok(Done::Piece(Piece { number, length, tag: tag.to_string() }))
            }
            Change::Finish { upload, nonce, pieces } => {
                let begun = state.uploads.get(&upload.id).ok_or(Trouble::NoUpload)?;
                let mut whole = Vec::new();
                for piece in &pieces {
                    let (bytes, tag) = begun.pieces.get(&piece.number).ok_or(Trouble::NoUpload)?;
                    if tag.to_string() != piece.tag || bytes.len() as u64 != piece.length {
                        return Err(Trouble::NoUpload);
                    }
                    whole.extend_from_slice(bytes);
                }
                let overwrites = state.habits.ignores_create_only_of_pieces;
                let done = self.create(state, &upload.name, (whole.into(), nonce), overwrites)?;
                if matches!(done, Done::Put(Put::Created)) {
                    state.uploads.remove(&upload.id);
                }
                Ok(done)
            }
            Change::Abort { id } => {
                state.uploads.remove(&id);
                Ok(Done::Nothing)
            }
            Change::Delete { name } => {
                if state.habits.refuses_delete {
                    return Err(Trouble::Forbidden);
                }
                let holds = !matches!(state.habits.locks, Locks::Ignored);
                let until = state.objects.get(&name).and_then(|object| object.locked_until);
                if let Some(until) = until.filter(|until| holds && *until > self.clock.now()) {
                    return Err(Trouble::Locked(Some(until)));
                }
                self.note(state, &name);
                state.objects.remove(&name);
                Ok(Done::Nothing)
            }
            Change::Lock { name, until } => {
                let locks = state.habits.locks;
                if locks == Locks::None {
                    return Err(Trouble::Unsupported("locks"));
                }
                let object = state.objects.get_mut(&name).ok_or(Trouble::Missing)?;
                let later = object.locked_until.is_none_or(|held| held < until);
                if later || locks == Locks::Shortens {
                    object.locked_until = Some(until);
                }
                Ok(Done::Nothing)
            }
        }
    }
}

fn listed(name: &Name, object: &Object) -> Listed {
    Listed { name: name.clone(), length: object.bytes.len() as u64, created: object.created }
}

impl Store for Memory {
    fn place(&self) -> &str {
        &self.blame.0
    }

    fn lists_in_order(&self) -> bool {
        true
    }

    fn put_new(
        &self,
        name: &Name,
        bytes: Bytes,
        nonce: Nonce,
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        if bytes.len() > PUT_BYTES_MAX {
            return Err(self.blame.of(
                Verb::Put,
                Some(name),
                Trouble::Rule("an object of one put is too long"),
            ));
        }
        let change = Change::Put { name: name.clone(), bytes, nonce };
        match self.change(Verb::Put, Some(name), change, cancel)? {
            Done::Put(put) => Ok(put),
            _ => Err(self.blame.of(Verb::Put, Some(name), Trouble::Answer("it is another one's"))),
        }
    }

    fn begin(&self, name: &Name, _nonce: Nonce, cancel: &AtomicBool) -> Result<Upload, StoreError> {
        let id = {
            let mut state = self.state.lock();
            format!("{:016x}", state.rng.next())
        };
        let upload = Upload { name: name.clone(), id: id.clone() };
        let change = Change::Begin { name: name.clone(), id };
        self.change(Verb::PutPieces, Some(name), change, cancel)?;
        Ok(upload)
    }

    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError> {
        let name = Some(&upload.name);
        if number == 0 || number > PIECES_MAX || bytes.len() > PIECE_BYTES_MAX {
            let rule = "a piece has a number from 1 to 10,000 and at most 64 MiB";
            return Err(self.blame.of(Verb::PutPieces, name, Trouble::Rule(rule)));
        }
        let change = Change::Piece { upload: upload.clone(), number, bytes };
        match self.change(Verb::PutPieces, name, change, cancel)? {
            Done::Piece(piece) => Ok(piece),
            _ => Err(self.blame.of(Verb::PutPieces, name, Trouble::Answer("it is another one's"))),
        }
    }

    fn pieces(&self, upload: &Upload, cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        self.look(Verb::PutPieces, Some(&upload.name), cancel, |state| {
            if state.habits.hides_uploads {
                return Err(Trouble::Unsupported("listing pieces"));
            }
            let begun = state.uploads.get(&upload.id).ok_or(Trouble::NoUpload)?;
            let piece = |(number, (bytes, tag)): (&u32, &(Bytes, u64))| Piece {
                number: *number,
                length: bytes.len() as u64,
                tag: tag.to_string(),
            };
            Ok(begun.pieces.iter().map(piece).collect())
        })
    }

    fn finish(
        &self,
        upload: &Upload,
        nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        let name = Some(&upload.name);
        let in_order = (1..).zip(pieces).all(|(number, piece): (u32, _)| piece.number == number);
        if pieces.is_empty() || !in_order {
            let rule = "an upload is finished with all pieces from the first one on";
            return Err(self.blame.of(Verb::PutPieces, name, Trouble::Rule(rule)));
        }
        let change = Change::Finish { upload: upload.clone(), nonce, pieces: pieces.to_vec() };
        match self.change(Verb::PutPieces, name, change, cancel)? {
            Done::Put(put) => Ok(put),
            _ => Err(self.blame.of(Verb::PutPieces, name, Trouble::Answer("it is another one's"))),
        }
    }

    fn abort(&self, upload: &Upload, cancel: &AtomicBool) -> Result<(), StoreError> {
        let change = Change::Abort { id: upload.id.clone() };
        self.change(Verb::PutPieces, Some(&upload.name), change, cancel).map(|_| ())
    }

    fn uploads(&self, prefix: &Prefix, cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        self.look(Verb::List, None, cancel, |state| {
            if state.habits.hides_uploads {
                return Err(Trouble::Unsupported("listing uploads"));
            }
            let within = state.uploads.iter().filter(|(_, begun)| prefix.has(&begun.name));
            let mut uploads: Vec<Upload> =
                within.map(|(id, begun)| Upload { name: begun.name.clone(), id: id.clone() }).collect();
            uploads.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
            Ok(uploads)
        })
    }

    fn get(&self, name: &Name, offset: u64, length: usize, cancel: &AtomicBool) -> Result<Bytes, StoreError> {
        if length > GET_BYTES_MAX {
            return Err(self.blame.of(Verb::Get, Some(name), Trouble::Rule("a read is longer than 64 MiB")));
        }
        self.look(Verb::Get, Some(name), cancel, |state| {
            let object = state.objects.get(name).ok_or(Trouble::Missing)?;
            let have = object.bytes.len();
            let start = usize::try_from(offset).unwrap_or(have).min(have);
            if start == have && length > 0 && have > 0 && state.habits.fails_past_end {
                return Err(Trouble::Server { status: 416, code: Some("InvalidRange".to_owned()) });
            }
            Ok(object.bytes.slice(start..have.min(start.saturating_add(length))))
        })
    }

    fn head(&self, name: &Name, cancel: &AtomicBool) -> Result<Head, StoreError> {
        self.look(Verb::Head, Some(name), cancel, |state| {
            let drops = state.habits.drops_nonces;
            let object = state.objects.get(name).ok_or(Trouble::Missing)?;
            Ok(Head {
                length: object.bytes.len() as u64,
                tag: Some(object.nonce.to_string()),
                nonce: (!drops).then_some(object.nonce),
                locked_until: object.locked_until,
            })
        })
    }

    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        cancel: &AtomicBool,
    ) -> Result<Page, StoreError> {
        self.look(Verb::List, None, cancel, |state| {
            let mut shown: BTreeMap<Name, Listed> =
                state.objects.iter().map(|(name, object)| (name.clone(), listed(name, object))).collect();
            let late = state.faults.lists_late;
            if late > 0 && state.rng.one_in(late) {
                let lacks = state.rng.below(LATE_CHANGES_MAX as u64) as usize;
                for (name, was) in state.before.iter().rev().take(lacks) {
                    match was {
                        Some(listed) => shown.insert(name.clone(), listed.clone()),
                        None => shown.remove(name),
                    };
                }
            }
            let after = match from {
                ListFrom::Start => None,
                ListFrom::After(name) => Some(name.as_str()),
                ListFrom::Page(cursor) => Some(cursor.0.as_str()),
            };
            let count = count.clamp(1, PAGE_OBJECTS_MAX);
            let relevant = |listed: &Listed| {
                prefix.has(&listed.name) && after.is_none_or(|after| listed.name.as_str() > after)
            };
            let mut objects: Vec<Listed> = shown.into_values().filter(relevant).take(count + 1).collect();
            let more = objects.len() > count;
            objects.truncate(count);
            let last = objects.last().map(|last| last.name.as_str().to_owned());
            Ok(Page { next: last.filter(|_| more).map(Cursor), objects })
        })
    }

    fn delete(&self, name: &Name, cancel: &AtomicBool) -> Result<(), StoreError> {
        self.change(Verb::Delete, Some(name), Change::Delete { name: name.clone() }, cancel).map(|_| ())
    }

    fn lock_until(&self, name: &Name, until: Timestamp, cancel: &AtomicBool) -> Result<(), StoreError> {
        let change = Change::Lock { name: name.clone(), until };
        self.change(Verb::Lock, Some(name), change, cancel).map(|_| ())
    }
}
