//! The locks of all files, and the requests that wait for them. No socket, no clock.
//!
//! A waiting request gets its lock as soon as no other lock is in the way, the oldest first. It has
//! the lock from then on, and its client is informed ([`Grant`]) until it confirms that. A client
//! that does not want the lock any more says so.
//!
//! Invariants:
//! - A file without locks, waits and shares has no entry.
//! - The cost of a host is that of its locks, waits, shares and unconfirmed grants, and is below
//!   the limit of a host; the sum of all is below that of the server.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use cairn_base::{FileId, VolumeId};
use cairn_proto_nfs::nlm::{Holder, LockStatus, Rights};

use crate::handle::{FileRef, Where};
use crate::limits::{LOCK_BYTES, LOCK_BYTES_OF_HOST, LOCK_SEARCH_STEPS, LOCKS_BYTES};
use crate::locks::host::{LockHost, Owner};
use crate::locks::ranges::{Held, Range, Ranges};

/// A file, also through several exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    volume: VolumeId,
    place: Where,
    file: FileId,
    generation: u64,
}

impl From<FileRef> for FileKey {
    fn from(at: FileRef) -> Self {
        let FileRef { volume, place, file, generation, .. } = at;
        Self { volume, place, file, generation }
    }
}

/// A request for a lock.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) file: FileKey,
    pub(crate) owner: Arc<Owner>,
    pub(crate) range: Range,
    pub(crate) exclusive: bool,
}

/// A lock that was granted to a request which had waited.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) wanted: Wanted,
    /// The handle as its client sent it, which the client compares.
    pub(crate) handle: Vec<u8>,
    /// The address of the server that the client knows.
    pub(crate) server: IpAddr,
}

/// A request that waits, with the parts of its [`Grant`].
type Waiting = Grant;

/// A grant whose client has not confirmed it.
struct Unconfirmed {
    grant: Grant,
    /// The locks that its owner had in the range before, for a client that declines.
    before: Vec<(Range, bool)>,
}

impl Unconfirmed {
    /// How many locks it counts for.
    fn count(&self) -> i64 {
        1 + self.before.len() as i64
    }
}

struct Share {
    owner: Arc<Owner>,
    deny: Rights,
    access: Rights,
}

#[derive(Default)]
struct OfFile {
    ranges: Ranges,
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    shares: Vec<Share>,
}

impl OfFile {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.waiting.is_empty() && self.shares.is_empty()
    }
}

#[derive(Default)]
struct OfHost {
    cost: u64,
    /// Where it has something.
    files: HashSet<FileKey>,
    /// The number of its last start, as it says.
    state: u32,
}

/// All locks.
#[derive(Default)]
pub(crate) struct Table {
    files: HashMap<FileKey, OfFile>,
    hosts: HashMap<LockHost, OfHost>,
    cost: u64,
    /// Grants that were not confirmed, by number.
    grants: BTreeMap<u64, Unconfirmed>,
    next: u64,
}

fn cost_of(owner: &Owner) -> u64 {
    LOCK_BYTES + (owner.bytes.len() + owner.host.name.len()) as u64
}

impl Table {
    /// Whether a host has or waits for anything.
    pub(crate) fn knows(&self, host: &LockHost) -> bool {
        self.hosts.contains_key(host)
    }

    /// Locks that are held.
    pub(crate) fn count(&self) -> usize {
        self.files.values().map(|of| of.ranges.all().len() + of.shares.len()).sum()
    }

    /// A client says the number of its last start. True if it has started again since it got locks.
    pub(crate) fn has_restarted(&mut self, host: &LockHost, state: u32) -> bool {
        let Some(known) = self.hosts.get_mut(host) else { return false };
        let before = known.state;
        known.state = before.max(state);
        before != 0 && state > before
    }

    /// Whether all that a host has is from before the start with that number.
    pub(crate) fn is_of_earlier_start(&self, host: &LockHost, number: u32) -> bool {
        self.hosts.get(host).is_some_and(|known| known.state == 0 || known.state < number)
    }

    /// The lock that is in the way.
    pub(crate) fn test(&self, wanted: &Wanted) -> Option<Holder> {
        let of = self.files.get(&wanted.file)?;
        let held = of.ranges.conflicts(&wanted.owner, wanted.range, wanted.exclusive).next()?;
        Some(Holder {
            exclusive: held.exclusive,
            process: held.owner.process,
            owner: held.owner.bytes.clone(),
            offset: held.range.first,
            length: held.range.length(),
        })
    }

    /// Takes a lock, or waits for it.
    pub(crate) fn lock(&mut self, wanted: Waiting, block: bool, state: u32) -> LockStatus {
        let Wanted { file, owner, range, exclusive } = wanted.wanted.clone();
        let (is_free, is_there) = match self.files.get(&file) {
            None => (true, false),
            Some(of) => (
                of.ranges.conflicts(&owner, range, exclusive).next().is_none(),
                of.ranges.has(&owner, range, exclusive),
            ),
        };
        if is_free {
            // The new one, and the two parts of a lock of the other kind around it.
            if !is_there && !self.has_room(&owner, 3) {
                return LockStatus::NoLocks;
            }
            self.stop_waiting(&wanted.wanted);
            self.set(file, &owner, range, Some(exclusive));
            self.keep_state(&owner.host, state);
            self.drop_grants(&wanted.wanted);
            // One that was exclusive may be shared now.
            self.wake(file);
            return LockStatus::Granted;
        }
        if !block {
            return LockStatus::Denied;
        }
        if self.would_wait_for_itself(&wanted.wanted) {
            return LockStatus::Deadlock;
        }
        self.stop_waiting(&wanted.wanted);
        if !self.has_room(&owner, 1) {
            return LockStatus::NoLocks;
        }
        self.change_cost(&owner, 1);
        self.host_mut(&owner.host).files.insert(file);
        self.files.entry(file).or_default().waiting.push_back(wanted);
        self.keep_state(&owner.host, state);
        LockStatus::Blocked
    }

    /// Gives a range up.
    pub(crate) fn unlock(&mut self, wanted: &Wanted) -> LockStatus {
        let Some(of) = self.files.get(&wanted.file) else { return LockStatus::Granted };
        let is_split = |held: &Held| {
            held.range.first < wanted.range.first
                && held.range.last > wanted.range.last
                && *held.owner == *wanted.owner
        };
        if of.ranges.all().iter().any(is_split) && !self.has_room(&wanted.owner, 1) {
            return LockStatus::NoLocks;
        }
        self.set(wanted.file, &wanted.owner, wanted.range, None);
        self.drop_grants(wanted);
        self.wake(wanted.file);
        LockStatus::Granted
    }

    /// Ends a wait, also of a request whose client does not know yet that it has the lock.
    pub(crate) fn cancel(&mut self, wanted: &Wanted) -> LockStatus {
        if self.stop_waiting(wanted) {
            return LockStatus::Granted;
        }
        let mut grants = self.grants.iter();
        match grants.find(|(_, known)| is_same(&known.grant.wanted, wanted)).map(|(number, _)| *number) {
            Some(number) => {
                self.decline(number);
                LockStatus::Granted
            }
            None => LockStatus::Denied,
        }
    }

    /// Takes a share.
    pub(crate) fn share(
        &mut self,
        file: FileKey,
        owner: &Arc<Owner>,
        access: Rights,
        deny: Rights,
    ) -> LockStatus {
        let of = self.files.get(&file);
        let shares = of.map(|of| of.shares.as_slice()).unwrap_or_default();
        let is_in_the_way = |other: &Share| access.meets(other.deny) || deny.meets(other.access);
        if shares.iter().any(|other| other.owner != *owner && is_in_the_way(other)) {
            return LockStatus::Denied;
        }
        if let Some(mine) = shares.iter().position(|mine| mine.owner == *owner) {
            if let Some(of) = self.files.get_mut(&file) {
                of.shares[mine] = Share { owner: Arc::clone(owner), deny, access };
            }
            return LockStatus::Granted;
        }
        if !self.has_room(owner, 1) {
            return LockStatus::NoLocks;
        }
        self.change_cost(owner, 1);
        self.host_mut(&owner.host).files.insert(file);
        let share = Share { owner: Arc::clone(owner), deny, access };
        self.files.entry(file).or_default().shares.push(share);
        LockStatus::Granted
    }

    /// Gives a share up.
    pub(crate) fn unshare(&mut self, file: FileKey, owner: &Arc<Owner>) {
        let Some(of) = self.files.get_mut(&file) else { return };
        let before = of.shares.len();
        of.shares.retain(|share| share.owner != *owner);
        let gone = before - of.shares.len();
        self.change_cost(owner, -(gone as i64));
        self.tidy(file, &owner.host);
    }

    /// Ends all that some hosts have and wait for: they have restarted.
    pub(crate) fn free(&mut self, is_gone: impl Fn(&LockHost) -> bool) {
        let gone: Vec<LockHost> = self.hosts.keys().filter(|host| is_gone(host)).cloned().collect();
        for host in gone {
            let Some(of_host) = self.hosts.remove(&host) else { continue };
            self.cost = self.cost.saturating_sub(of_host.cost);
            self.grants.retain(|_, known| known.grant.wanted.owner.host != host);
            for file in of_host.files {
                if let Some(of) = self.files.get_mut(&file) {
                    of.ranges.remove(|owner| owner.host == host);
                    of.waiting.retain(|waiting| waiting.wanted.owner.host != host);
                    of.shares.retain(|share| share.owner.host != host);
                }
                self.wake(file);
            }
        }
    }

    /// A grant that was not confirmed.
    pub(crate) fn grant(&self, number: u64) -> Option<&Grant> {
        self.grants.get(&number).map(|known| &known.grant)
    }

    /// The numbers of grants that were not confirmed, from one on.
    pub(crate) fn grants_from(&self, first: u64) -> impl Iterator<Item = u64> {
        self.grants.range(first..).map(|(number, _)| *number)
    }

    /// A client has a granted lock.
    pub(crate) fn confirm(&mut self, number: u64) {
        if let Some(known) = self.grants.remove(&number) {
            let Wanted { file, owner, .. } = &known.grant.wanted;
            self.change_cost(owner, -known.count());
            self.tidy(*file, &owner.host);
        }
    }

    /// A client does not want a granted lock any more. Its owner has again the locks that it had
    /// before; one that conflicts with a lock which others got since is shared.
    pub(crate) fn decline(&mut self, number: u64) {
        if let Some(known) = self.grants.remove(&number) {
            let Wanted { file, owner, range, .. } = known.grant.wanted.clone();
            self.change_cost(&owner, -known.count());
            self.set(file, &owner, range, None);
            for (part, exclusive) in known.before {
                let of = self.files.get(&file);
                let is_free = |of: &OfFile| of.ranges.conflicts(&owner, part, true).next().is_none();
                self.set(file, &owner, part, Some(exclusive && of.is_none_or(is_free)));
            }
            self.wake(file);
        }
    }

    /// Its client has changed a range, so it has learned of the grants there.
    fn drop_grants(&mut self, wanted: &Wanted) {
        let is_gone = |known: &Unconfirmed| {
            let of = &known.grant.wanted;
            of.file == wanted.file && of.owner == wanted.owner && of.range.meets(wanted.range)
        };
        let gone: Vec<u64> =
            self.grants.iter().filter(|(_, known)| is_gone(known)).map(|(number, _)| *number).collect();
        gone.into_iter().for_each(|number| self.confirm(number));
    }

    fn has_room(&self, owner: &Owner, more: u64) -> bool {
        let cost = cost_of(owner) * more;
        let mine = self.hosts.get(&owner.host).map_or(0, |host| host.cost);
        mine + cost <= LOCK_BYTES_OF_HOST && self.cost + cost <= LOCKS_BYTES
    }

    fn host_mut(&mut self, host: &LockHost) -> &mut OfHost {
        self.hosts.entry(host.clone()).or_default()
    }

    fn keep_state(&mut self, host: &LockHost, state: u32) {
        let known = self.host_mut(host);
        known.state = known.state.max(state);
    }

    fn change_cost(&mut self, owner: &Owner, count: i64) {
        let bytes = cost_of(owner) * count.unsigned_abs();
        let host = self.hosts.entry(owner.host.clone()).or_default();
        if count < 0 {
            host.cost = host.cost.saturating_sub(bytes);
            self.cost = self.cost.saturating_sub(bytes);
        } else {
            host.cost += bytes;
            self.cost += bytes;
        }
    }

    fn set(&mut self, file: FileKey, owner: &Arc<Owner>, range: Range, kind: Option<bool>) {
        let of = self.files.entry(file).or_default();
        let before = of.ranges.all().len() as i64;
        of.ranges.set(owner, range, kind);
        let more = of.ranges.all().len() as i64 - before;
        self.change_cost(owner, more);
        self.host_mut(&owner.host).files.insert(file);
        self.tidy(file, &owner.host);
    }

    /// Drops entries that have become empty.
    fn tidy(&mut self, file: FileKey, host: &LockHost) {
        let has_some = self.files.get(&file).is_some_and(|of| {
            of.ranges.all().iter().any(|held| held.owner.host == *host)
                || of.waiting.iter().any(|waiting| waiting.wanted.owner.host == *host)
                || of.shares.iter().any(|share| share.owner.host == *host)
        });
        if self.files.get(&file).is_some_and(OfFile::is_empty) {
            self.files.remove(&file);
        }
        if !has_some && let Some(of_host) = self.hosts.get_mut(host) {
            of_host.files.remove(&file);
            if of_host.files.is_empty() && of_host.cost == 0 {
                self.hosts.remove(host);
            }
        }
    }

    /// True if the request waited.
    fn stop_waiting(&mut self, wanted: &Wanted) -> bool {
        let Some(of) = self.files.get_mut(&wanted.file) else { return false };
        let place = of.waiting.iter().position(|waiting| is_same(&waiting.wanted, wanted));
        if place.and_then(|place| of.waiting.remove(place)).is_none() {
            return false;
        }
        self.change_cost(&wanted.owner, -1);
        self.tidy(wanted.file, &wanted.owner.host);
        true
    }

    /// Gives locks to those requests that nothing is in the way of any more.
    fn wake(&mut self, file: FileKey) {
        loop {
            let Some(of) = self.files.get_mut(&file) else { return };
            let is_free = |waiting: &Waiting| {
                let Wanted { owner, range, exclusive, .. } = &waiting.wanted;
                of.ranges.conflicts(owner, *range, *exclusive).next().is_none()
            };
            let Some(grant) = of.waiting.iter().position(is_free).and_then(|place| of.waiting.remove(place))
            else {
                break;
            };
            // The cost of the wait becomes that of the unconfirmed grant.
            let Wanted { owner, range, exclusive, .. } = grant.wanted.clone();
            let before = of.ranges.within(&owner, range);
            self.change_cost(&owner, before.len() as i64);
            self.grants.insert(self.next, Unconfirmed { grant, before });
            self.next += 1;
            self.set(file, &owner, range, Some(exclusive));
        }
        if self.files.get(&file).is_some_and(OfFile::is_empty) {
            self.files.remove(&file);
        }
    }

    /// Whether a lock that is in the way has an owner that waits, maybe through others, for one of
    /// this owner. The search is cut short where many wait: then the wait is allowed.
    fn would_wait_for_itself(&self, wanted: &Wanted) -> bool {
        let (mut seen, mut next, mut steps) = (HashSet::new(), vec![wanted.clone()], 0);
        while let Some(wanting) = next.pop() {
            let Some(of) = self.files.get(&wanting.file) else { continue };
            for held in of.ranges.conflicts(&wanting.owner, wanting.range, wanting.exclusive) {
                if held.owner == wanted.owner {
                    return true;
                }
                steps += 1;
                if steps > LOCK_SEARCH_STEPS {
                    return false;
                }
                if !seen.insert(Arc::clone(&held.owner)) {
                    continue;
                }
                let Some(host) = self.hosts.get(&held.owner.host) else { continue };
                let files = host.files.iter().take(LOCK_SEARCH_STEPS).filter_map(|file| self.files.get(file));
                let waits = files
                    .flat_map(|of| of.waiting.iter().take(LOCK_SEARCH_STEPS))
                    .filter(|waiting| waiting.wanted.owner == held.owner);
                next.extend(waits.map(|waiting| waiting.wanted.clone()));
            }
        }
        false
    }

    /// Checks the invariants.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut costs: HashMap<&LockHost, u64> = HashMap::new();
        for (key, of) in &self.files {
            assert!(!of.is_empty(), "an empty file has an entry");
            for held in of.ranges.all() {
                *costs.entry(&held.owner.host).or_default() += cost_of(&held.owner);
                assert!(self.hosts[&held.owner.host].files.contains(key));
                let others = of.ranges.conflicts(&held.owner, held.range, held.exclusive);
                assert_eq!(others.count(), 0, "two locks overlap");
            }
            for waiting in &of.waiting {
                *costs.entry(&waiting.wanted.owner.host).or_default() += cost_of(&waiting.wanted.owner);
                assert!(self.hosts[&waiting.wanted.owner.host].files.contains(key));
                assert!(self.test(&waiting.wanted).is_some(), "a request waits for nothing");
            }
            for share in &of.shares {
                *costs.entry(&share.owner.host).or_default() += cost_of(&share.owner);
            }
        }
        for known in self.grants.values() {
            let owner = &known.grant.wanted.owner;
            *costs.entry(&owner.host).or_default() += cost_of(owner) * known.count().unsigned_abs();
        }
        for (host, of_host) in &self.hosts {
            assert_eq!(of_host.cost, costs.get(host).copied().unwrap_or(0), "{host:?}");
        }
        assert_eq!(self.cost, costs.values().sum::<u64>());
        assert!(costs.keys().all(|host| self.hosts.contains_key(*host)));
    }
}

fn is_same(one: &Wanted, other: &Wanted) -> bool {
    one.file == other.file
        && one.range == other.range
        && one.exclusive == other.exclusive
        && one.owner == other.owner
}
